#include "ucx_api.h"

#include <dlfcn.h>

#include <array>
#include <csignal>

namespace byteps {
namespace {

constexpr const char* kLibrary = "libucp.so.0";

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr)
    throw UcxError(std::string(kLibrary) + " lacks " + name + ": byteps needs UCX 1.13 or newer");
}

// Loading UCX takes signals over: SIGHUP would then stop the process for a debugger. They are the program's.
void* load_without_signal_handlers() {
  std::array<struct sigaction, NSIG> handlers{};
  for (int number = 1; number < NSIG; ++number) {
    sigaction(number, nullptr, &handlers[static_cast<size_t>(number)]);
  }
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  for (int number = 1; number < NSIG; ++number) {
    sigaction(number, &handlers[static_cast<size_t>(number)], nullptr);
  }
  return library;
}

}  // namespace

UcxApi::UcxApi() : library(load_without_signal_handlers()) {
  if (library == nullptr) throw UcxError(std::string("UCX cannot be loaded: ") + dlerror());
#define BYTEPS_UCX_FIND(name) find(library, #name, name);
  BYTEPS_UCX_FUNCTIONS(BYTEPS_UCX_FIND)
#undef BYTEPS_UCX_FIND
}

// Never unloaded: it has threads and hooks of its own.
UcxApi::~UcxApi() = default;

void UcxApi::check(ucs_status_t status, const std::string& what) const {
  if (status != UCS_OK) throw UcxError(what + ": " + ucs_status_string(status));
}

}  // namespace byteps
