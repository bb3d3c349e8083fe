// UCX, the library through which RDMA devices are used. Two processes that already share an authenticated
// connection exchange worker addresses over it; the connection then stays as the link's lifeline, which shows
// that the other end has closed, or died. No header of UCX is needed to include this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "link.h"

namespace byteps {

// What UCX, or its absence, does not allow. The message says what was tried.
struct UcxError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One end of a link before the other is known.
class UcxPort {
 public:
  virtual ~UcxPort() = default;

  // What the other end needs to reach this one.
  virtual std::string address() const = 0;

  // The link, once both ends have heard of each other through it: both call this at the same time. Takes the
  // connected socket as its lifeline, whatever happens. Once only. Throws UcxError.
  virtual std::unique_ptr<Link> connect(int lifeline, const std::string& address, double timeout_s) = 0;
};

// The library, opened with its settings (UCX_* variables, which UCX reads itself, and those given here).
class Ucx {
 public:
  struct Options {
    bool polling = false;  // never sleep in wait for events: for cores that have nothing else to do
    std::vector<std::pair<std::string, std::string>> settings;  // such as {"TLS", "tcp"}
  };

  virtual ~Ucx() = default;
  virtual std::string version() const = 0;
  virtual std::string resources() const = 0;  // the transports and devices that it may use, in UCX's words
  virtual std::unique_ptr<UcxPort> open_port() = 0;
};

bool ucx_is_built();
// Loads the library. Throws UcxError: it is not built in, not installed, or finds no device.
std::shared_ptr<Ucx> open_ucx(const Ucx::Options& options);

}  // namespace byteps
