// Connected pairs of links of every kind, for the native tests.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "check.h"
#include "link.h"

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

inline LinkPair shared_memory_links() {
  int fds[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  const SharedMemory first = create_shared_memory(100'000);
  SharedMemory second{dup(first.memory), {}};
  for (size_t i = 0; i < first.events.size(); ++i) second.events[i] = dup(first.events[i]);
  return {make_shared_memory_link(first, true, fds[0]), make_shared_memory_link(second, false, fds[1])};
}

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

}  // namespace byteps
