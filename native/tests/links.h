// Connected pairs of links of every kind, for the native tests.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <iterator>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "check.h"
#include "link.h"
#include "sum_memory.h"
#include "ucx.h"

namespace byteps {

using LinkPair = std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>>;
using LinkMaker = LinkPair (*)();

inline LinkPair unix_links() {
  int fds[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  return {make_socket_link(fds[0]), make_socket_link(fds[1])};
}

inline LinkPair tcp_links() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* at = reinterpret_cast<sockaddr*>(&address);
  CHECK(bind(listener, at, length) == 0 && listen(listener, 1) == 0 &&
        getsockname(listener, at, &length) == 0);
  const int here = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(connect(here, at, length) == 0);
  const int there = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  CHECK(there >= 0);
  close(listener);
  return {make_socket_link(here), make_socket_link(there)};
}

inline LinkPair inproc_links() { return make_inproc_links(100'000); }

// The first end lends what it sends out of `sums`.
inline LinkPair lending_links(std::shared_ptr<const SumMemory> sums) {
  int fds[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  const SharedMemory first = create_shared_memory(100'000);
  SharedMemory second{dup(first.memory), {}, sums ? dup(sums->fd()) : -1};
  for (size_t i = 0; i < first.events.size(); ++i) second.events[i] = dup(first.events[i]);
  return {make_shared_memory_link(first, true, fds[0], std::move(sums)),
          make_shared_memory_link(second, false, fds[1])};
}

inline LinkPair shared_memory_links() { return lending_links(nullptr); }

// Over the transports that UCX calls so.
inline LinkPair ucx_links(const char* transports) {
  const auto ucx = open_ucx({false, {{"TLS", transports}}});
  const auto here = ucx->open_port(), there = ucx->open_port();
  const auto of_here = here->address(),
             of_there = there->address();  // a port that connects has none any more
  int lifeline[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, lifeline) == 0);
  constexpr double kLimitS = 20;
  LinkPair links;
  std::thread other([&] { links.second = there->connect(lifeline[1], of_here, kLimitS); });
  links.first = here->connect(lifeline[0], of_there, kLimitS);
  other.join();
  return links;
}

inline LinkPair ucx_tcp_links() { return ucx_links("tcp"); }
inline LinkPair ucx_sm_links() { return ucx_links("sm"); }
// UCX wires verbs up through ud_verbs and tcp; data goes the fastest way.
inline LinkPair ucx_verbs_links() { return ucx_links("rc_verbs,ud_verbs,tcp"); }

struct LinkKind {
  const char* name;
  LinkMaker make;
};

// A new kind of link joins the conformance suite, and the tests of whole jobs, by a line here.
inline constexpr LinkKind kLinkKinds[] = {
    {"unix", unix_links},
    {"tcp", tcp_links},
    {"inproc", inproc_links},
    {"shm", shared_memory_links},
};
inline constexpr LinkKind kUcxKinds[] = {
    {"ucx-tcp", ucx_tcp_links},
    {"ucx-sm", ucx_sm_links},
};

// Needs a device; tests/rdma.py has one.
inline constexpr LinkKind kVerbsKind = {"ucx-verbs", ucx_verbs_links};

// The kinds that are run everywhere, or a loud word that they are missing.
inline std::span<const LinkKind> ucx_kinds() {
  if (ucx_is_built()) return kUcxKinds;
  std::printf("UCX: not built, the tests of %zu kinds of link were NOT RUN (apt-get install libucx-dev)\n",
              std::size(kUcxKinds));
  return {};
}

}  // namespace byteps
