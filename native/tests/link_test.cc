// Native test of link.h: one conformance suite over every kind of link.
#include "link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "links.h"

namespace {

using namespace byteps;

constexpr int kPatienceMs = 20'000;
static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT);

bool shows(int fd, uint32_t event, int timeout_ms) {
  pollfd entry{fd, static_cast<short>(event), 0};
  return poll(&entry, 1, timeout_ms) == 1;
}

bool readable(const Link& link, int timeout_ms = 0) { return shows(link.read_fd(), EPOLLIN, timeout_ms); }

bool writable(const Link& link, int timeout_ms = 0) {
  return shows(link.write_fd(), link.write_event(), timeout_ms);
}

// Byte `i` of the stream.
std::byte stream_byte(size_t i) { return static_cast<std::byte>(i * 7 + i / 251); }

// Describes `bytes` as up to five pieces of random length, empty ones among them.
std::vector<iovec> pieces(std::byte* bytes, size_t length, std::mt19937& random) {
  std::vector<iovec> parts;
  for (size_t at = 0; at < length || parts.empty();) {
    const size_t n = parts.size() == 4 ? length - at : random() % (length - at + 1);
    parts.push_back({bytes + at, n});
    at += n;
    if (parts.size() == 5) break;
  }
  return parts;
}

class Writer {
 public:
  explicit Writer(Link& link) : link_(link) {}
  // Offers up to 30 KB more; returns what was taken.
  ssize_t offer(std::mt19937& random) {
    std::vector<std::byte> bytes(random() % 30'000 + 1);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = stream_byte(sent + i);
    const auto parts = pieces(bytes.data(), bytes.size(), random);
    const ssize_t n = link_.send(parts.data(), static_cast<int>(parts.size()));
    if (n > 0) sent += static_cast<size_t>(n);
    return n;
  }
  void fill(std::mt19937& random) {
    while (offer(random) > 0) {
    }
  }
  size_t sent = 0;

 private:
  Link& link_;
};

class Reader {
 public:
  explicit Reader(Link& link) : link_(link) {}
  // Takes up to 30 KB and checks them.
  ssize_t take(std::mt19937& random) {
    std::vector<std::byte> bytes(random() % 30'000 + 1);
    const auto parts = pieces(bytes.data(), bytes.size(), random);
    const ssize_t n = link_.receive(parts.data(), static_cast<int>(parts.size()));
    for (ssize_t i = 0; i < n; ++i) CHECK(bytes[static_cast<size_t>(i)] == stream_byte(received++));
    return n;
  }
  void take_all(size_t total, std::mt19937& random) {
    while (received < total) {
      if (take(random) == 0) CHECK(readable(link_, kPatienceMs));
    }
  }
  size_t received = 0;

 private:
  Link& link_;
};

void check_order_both_ways(LinkMaker make) {
  std::mt19937 random(1);
  const auto [here, there] = make();
  Writer out(*here), back(*there);
  Reader in(*there), answer(*here);
  for (int i = 0; i < 400; ++i) {
    CHECK(out.offer(random) != Link::kClosed && back.offer(random) != Link::kClosed);
    CHECK(in.take(random) != Link::kClosed && answer.take(random) != Link::kClosed);
  }
  in.take_all(out.sent, random);
  answer.take_all(back.sent, random);
  CHECK(out.sent > 100'000 && back.sent > 100'000);
}

// Each end on its own thread, each waiting for the event that the link promises.
void check_events_between_threads(LinkMaker make) {
  constexpr size_t kTotal = 8 << 20;
  const auto [here, there] = make();
  std::thread sender([&link = *here] {
    std::mt19937 random(2);
    Writer out(link);
    while (out.sent < kTotal) {
      if (out.offer(random) == 0) CHECK(writable(link, kPatienceMs));
    }
  });
  std::mt19937 random(3);
  Reader(*there).take_all(kTotal, random);
  sender.join();
}

void check_readiness(LinkMaker make) {
  std::mt19937 random(4);
  const auto [here, there] = make();
  CHECK(writable(*here) && !readable(*here) && !readable(*there));
  CHECK_EQUAL(Reader(*there).take(random), 0);
  Writer out(*here);
  CHECK(out.offer(random) > 0);
  CHECK(readable(*there, kPatienceMs) && !readable(*here));
  Reader in(*there);
  in.take_all(out.sent, random);
  CHECK(!readable(*there) && in.take(random) == 0);
}

void check_backpressure(LinkMaker make) {
  std::mt19937 random(5);
  const auto [here, there] = make();
  here->set_low_water(16'384);
  Writer out(*here);
  Reader in(*there);
  out.fill(random);
  CHECK(out.sent > 0 && !writable(*here));
  CHECK(here->unsent() <= out.sent);
  CHECK(here->queued() >= here->unsent());
  while (!writable(*here)) {
    if (in.take(random) == 0) CHECK(readable(*there, kPatienceMs));
  }
  CHECK(here->unsent() < 16'384);
  CHECK(out.offer(random) > 0);
  in.take_all(out.sent, random);
  CHECK(here->unsent() == 0);
}

void check_close(LinkMaker make) {
  std::mt19937 random(6);
  auto [here, there] = make();
  Writer out(*here);
  CHECK(out.offer(random) > 0 && out.offer(random) >= 0);
  const size_t sent = out.sent;
  here.reset();
  CHECK(readable(*there, kPatienceMs));
  Reader in(*there);
  while (in.received < sent) CHECK(in.take(random) != Link::kClosed);
  CHECK(readable(*there, kPatienceMs));
  for (int i = 0; i < 3; ++i) CHECK_EQUAL(in.take(random), Link::kClosed);
  Writer late(*there);
  while (late.offer(random) != Link::kClosed) CHECK(writable(*there, kPatienceMs));
  CHECK(writable(*there) && late.offer(random) == Link::kClosed);
}

// Closed while the other end waits for room.
void check_close_while_blocked(LinkMaker make) {
  std::mt19937 random(7);
  auto [here, there] = make();
  Writer out(*here);
  out.fill(random);
  CHECK(!writable(*here));
  there.reset();
  CHECK(writable(*here, kPatienceMs) && readable(*here, kPatienceMs));
  CHECK_EQUAL(out.offer(random), Link::kClosed);
  CHECK_EQUAL(Reader(*here).take(random), Link::kClosed);
}

void check_unsent_in_the_kernel() {
  std::mt19937 random(8);
  const auto [here, there] = tcp_links();
  Writer out(*here);
  out.fill(random);
  CHECK(here->unsent() > 0);  // the receiver's window is full
  CHECK(here->queued() >= here->unsent());
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
  for (const LinkMaker make : {LinkMaker{unix_links}, LinkMaker{tcp_links}, LinkMaker{inproc_links}}) {
    check_order_both_ways(make);
    check_events_between_threads(make);
    check_readiness(make);
    check_backpressure(make);
    check_close(make);
    check_close_while_blocked(make);
  }
  check_unsent_in_the_kernel();
  check_only_stream_sockets_are_adopted();
  return 0;
}
