#include "ucx_api.h"

#include <dlfcn.h>

namespace byteps {
namespace {

constexpr const char* kLibrary = "libucp.so.0";

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr)
    throw UcxError(std::string(kLibrary) + " lacks " + name + ": byteps needs UCX 1.13 or newer");
}

}  // namespace

UcxApi::UcxApi() : library(dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
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
