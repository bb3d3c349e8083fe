// One link over UCX, one way: a child sends blocks of one size to its parent, which says how fast they came.
//
//   ucx NBYTES COUNT      prints bytes per second, over COUNT blocks after a tenth as many
//
// UCX itself is told what to use by its variables (UCX_TLS, ...).
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "../native/ucx.h"

namespace {

using namespace byteps;

// Tells the other end this one's address, and hears its.
std::unique_ptr<Link> meet(int fd) {
  const auto ucx = open_ucx({});
  const auto port = ucx->open_port();
  const std::string own = port->address();
  const size_t length = own.size();
  size_t other_length = 0;
  if (send(fd, &length, sizeof length, 0) < 0 || send(fd, own.data(), length, 0) < 0 ||
      recv(fd, &other_length, sizeof other_length, MSG_WAITALL) < 0)
    std::abort();
  std::string other(other_length, '\0');
  if (recv(fd, other.data(), other_length, MSG_WAITALL) < 0) std::abort();
  return port->connect(fd, other, 10);
}

// Until one of the link's events; what comes in on a sender's side is for the link itself.
void wait_for(Link& link, bool to_send, std::vector<std::byte>& spare) {
  pollfd entries[2] = {{link.read_fd(), POLLIN, 0}, {to_send ? link.write_fd() : -1, POLLIN, 0}};
  poll(entries, 2, -1);
  const iovec part{spare.data(), spare.size()};
  if (to_send && entries[0].revents != 0) link.receive(&part, 1);
}

void send_blocks(Link& link, size_t nbytes, size_t count) {
  std::vector<std::byte> block(nbytes), spare(4096);
  for (size_t i = 0; i < count; ++i) {
    for (size_t done = 0; done < nbytes;) {
      const iovec part{block.data() + done, nbytes - done};
      const ssize_t n = link.send(&part, 1);
      if (n < 0) std::abort();
      if (n == 0) wait_for(link, true, spare);
      done += static_cast<size_t>(n);
    }
  }
  while (link.in_use() > 0) wait_for(link, true, spare);
}

void receive_blocks(Link& link, std::vector<std::byte>& block, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    for (size_t done = 0; done < block.size();) {
      const iovec part{block.data() + done, block.size() - done};
      const ssize_t n = link.receive(&part, 1);
      if (n < 0) std::abort();
      if (n == 0) wait_for(link, false, block);
      done += static_cast<size_t>(n);
    }
  }
}

}  // namespace

int main(int, char** arguments) {
  const size_t nbytes = std::strtoull(arguments[1], nullptr, 10);
  const size_t count = std::strtoull(arguments[2], nullptr, 10);
  const size_t before = count / 10 + 1;
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) return 1;
  const pid_t child = fork();
  close(fds[child == 0 ? 0 : 1]);
  auto link = meet(fds[child == 0 ? 1 : 0]);
  if (child == 0) {
    send_blocks(*link, nbytes, before + count);
    return 0;
  }
  std::vector<std::byte> block(nbytes);
  receive_blocks(*link, block, before);
  const auto start = std::chrono::steady_clock::now();
  receive_blocks(*link, block, count);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%.0f\n", static_cast<double>(nbytes * count) / took.count());
  link.reset();
  return waitpid(child, nullptr, 0) == child ? 0 : 1;
}
