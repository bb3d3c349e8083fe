// A link over a connected stream socket (TCP, or a Unix socket pair in tests).
#include <fcntl.h>
#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "link.h"

namespace byteps {
namespace {

class SocketLink final : public Link {
 public:
  explicit SocketLink(int fd) : fd_(fd) {
    const int flags = fcntl(fd_, F_GETFL);
    int type = 0;
    socklen_t length = sizeof type;
    // Whatever is no stream socket is refused here: on the I/O thread nobody could be told.
    if (flags < 0 || fcntl(fd_, F_SETFL, flags | O_NONBLOCK) < 0 ||
        getsockopt(fd_, SOL_SOCKET, SO_TYPE, &type, &length) < 0 || type != SOCK_STREAM) {
      throw std::invalid_argument("descriptor " + std::to_string(fd) +
                                  " is no stream socket: " + std::strerror(errno));
    }
    const int one = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);  // refused by Unix sockets, which need none
  }
  ~SocketLink() override { close(fd_); }

  ssize_t send(const iovec* parts, int count) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = static_cast<size_t>(count);
    return outcome(sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
  }

  // Less than was asked for was all that there is: the next call says so and need not ask.
  ssize_t receive(const iovec* parts, int count) override {
    if (std::exchange(drained_, false)) return 0;
    const ssize_t n = readv(fd_, parts, count);
    size_t room = 0;
    for (int i = 0; i < count; ++i) room += parts[i].iov_len;
    drained_ = n > 0 && static_cast<size_t>(n) < room;
    return n == 0 ? kClosed : outcome(n);
  }

  int read_fd() const override { return fd_; }
  int write_fd() const override { return fd_; }
  uint32_t write_event() const override { return EPOLLOUT; }

  size_t unsent() const override {
    int bytes = 0;
    return ioctl(fd_, SIOCOUTQNSD, &bytes) == 0 ? static_cast<size_t>(bytes) : 0;
  }

  // Packets count until the device has sent them; a little more than their bytes, for how they are kept.
  // Those of a Unix socket, of which nothing can be unsent, wait for the receiver.
  Queued queued() const override {
    std::array<uint32_t, SK_MEMINFO_VARS> memory{};
    socklen_t length = sizeof memory;
    int unsent = 0;
    const bool is_tcp = ioctl(fd_, SIOCOUTQNSD, &unsent) == 0;
    const bool known = getsockopt(fd_, SOL_SOCKET, SO_MEMINFO, memory.data(), &length) == 0;
    const size_t packets = known ? memory[SK_MEMINFO_WMEM_ALLOC] : 0;
    return {static_cast<size_t>(unsent) + packets, is_tcp ? packets : 0};
  }

  void set_low_water(size_t bytes) override {
    const int value = static_cast<int>(bytes);
    if (value == low_water_) return;
    low_water_ = value;
    setsockopt(fd_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &value, sizeof value);
  }

  void abandon() override { close(fd_); }

 private:
  static ssize_t outcome(ssize_t n) {
    if (n >= 0) return n;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS ? 0 : kClosed;
  }

  const int fd_;
  int low_water_ = -1;
  bool drained_ = false;
};

}  // namespace

std::unique_ptr<Link> make_socket_link(int fd) { return std::make_unique<SocketLink>(fd); }

}  // namespace byteps
