// Native test of link_socket.cc: what sockets alone do; for the rest see link_test.cc.
#include <fcntl.h>

#include <stdexcept>

#include "link_ends.h"

namespace {

using namespace byteps;

void check_unsent_in_the_kernel() {
  Ends ends(tcp_links());
  ends.here.fill();
  CHECK(ends.here.link->unsent() > 0);  // the receiver's window is full
  const auto queued = ends.here.link->queued();
  CHECK(queued.bytes >= ends.here.link->unsent() + queued.at_device);
}

bool refuses(int fd) {
  try {
    make_socket_link(fd);
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

void check_only_stream_sockets_are_adopted() {
  int pipes[2], datagrams[2];
  CHECK(pipe2(pipes, O_CLOEXEC) == 0 && socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, datagrams) == 0);
  for (const int fd : {pipes[0], pipes[1], datagrams[0], datagrams[1]}) {
    CHECK(refuses(fd));
    CHECK(close(fd) == 0);  // it stayed ours
  }
  CHECK(refuses(-1));
}

}  // namespace

int main() {
  check_unsent_in_the_kernel();
  check_only_stream_sockets_are_adopted();
  return 0;
}
