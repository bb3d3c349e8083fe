#include "ucx.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "link_ucx.h"
#include "ucx_messages.h"

namespace byteps {
namespace {

// Closed, if nobody takes it before.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }
  int take() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

bool has_ended(int fd) {
  char byte;
  return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

// Each transport is `other`, or one of those that reach no other host.
bool uses_memory_or(const char* other, const std::string& resources) {
  const std::array known_names = {"self/", "sysv/", "posix/", "cma/", "knem/", "xpmem/", other};
  std::istringstream lines(resources);
  for (std::string line; std::getline(lines, line);) {
    const size_t slash = line.rfind('/');
    const size_t name = line.rfind(' ', slash) + 1;
    if (line.find(" resource ") == std::string::npos || slash == std::string::npos) continue;
    const auto is_it = [&](const char* known) { return line.compare(name, slash + 1 - name, known) == 0; };
    if (std::none_of(known_names.begin(), known_names.end(), is_it)) return false;
  }
  return true;
}

class Port final : public UcxPort {
 public:
  explicit Port(const std::shared_ptr<UcxContext>& context)
      : messages_(std::make_unique<UcxMessages>(context)) {}

  std::string address() const override { return messages_->address(); }

  std::unique_ptr<Link> connect(int lifeline, const std::string& address, double timeout_s) override {
    Descriptor owned(lifeline);
    UcxMessages& messages = *messages_;
    const auto limit = std::chrono::duration<double>(timeout_s);
    const auto by = Clock::now() + std::chrono::duration_cast<Clock::duration>(limit);
    const auto hear = [&] {
      const auto has_news = [&] {
        return messages.front() != nullptr || !messages.failure().empty() || has_ended(lifeline);
      };
      const bool in_time = messages.wait_until(has_news, lifeline, by);
      if (!messages.failure().empty()) throw UcxError(messages.failure());
      if (messages.front() == nullptr)
        throw UcxError(in_time ? "the peer hung up" : "the peer was not reached");
      messages.pop_front();
    };
    messages.connect(address);
    messages.send({}, {});  // a greeting
    hear();
    // UCX may still be on its way to better lanes, for which it needs both ends: each waits until the other
    // has all of its own.
    if (!messages.flush(by)) throw UcxError("the peer was not reached");
    messages.send({}, {});
    hear();
    return make_ucx_link(std::move(messages_), owned.take());
  }

 private:
  std::unique_ptr<UcxMessages> messages_;
};

class Library final : public Ucx {
 public:
  explicit Library(const Options& options) : context_(std::make_shared<UcxContext>()) {
    context_->polling = options.polling;
    const UcxApi& api = context_->api;
    ucp_config_t* config = nullptr;
    api.check(api.ucp_config_read(nullptr, nullptr, &config), "the settings of UCX (UCX_*) cannot be read");
    ucs_status_t status = UCS_OK;
    for (const auto& [name, value] : options.settings) {
      if (status == UCS_OK) status = api.ucp_config_modify(config, name.c_str(), value.c_str());
    }
    if (status == UCS_OK) status = init(config);
    api.ucp_config_release(config);
    api.check(status, "UCX finds nothing that it may use");
    const std::string found = resources();
    context_->within_host = uses_memory_or("", found);
    context_->through_sockets = !context_->within_host && uses_memory_or("tcp/", found);
  }

  std::string version() const override {
    unsigned major = 0, minor = 0, release = 0;
    context_->api.ucp_get_version(&major, &minor, &release);
    return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
  }

  std::string resources() const override {
    char* text = nullptr;
    size_t length = 0;
    FILE* stream = open_memstream(&text, &length);
    if (stream == nullptr) return "";
    context_->api.ucp_context_print_info(context_->handle, stream);
    std::fclose(stream);
    std::string result(text, length);
    std::free(text);
    return result;
  }

  std::unique_ptr<UcxPort> open_port() override { return std::make_unique<Port>(context_); }

 private:
  ucs_status_t init(const ucp_config_t* config) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_AM | (context_->polling ? 0 : UCP_FEATURE_WAKEUP);
    params.mt_workers_shared = 1;  // each lane has its own
    return context_->api.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_->handle);
  }

  const std::shared_ptr<UcxContext> context_;
};

}  // namespace

bool ucx_is_built() { return true; }

std::shared_ptr<Ucx> open_ucx(const Ucx::Options& options) { return std::make_shared<Library>(options); }

}  // namespace byteps
