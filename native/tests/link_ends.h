// The two ends of a link for the conformance suite: each sends a known stream of bytes and checks the
// other's.
#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "links.h"

namespace byteps {

constexpr int kPatienceMs = 20'000;
constexpr int kQuietMs = 30;  // long enough for an event that should not come
static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT);

// One end and its owner, who does what a lane does: looks at the events that the link promises, and no more.
class End {
 public:
  explicit End(std::unique_ptr<Link> owned, unsigned seed) : link(std::move(owned)), random_(seed) {
    for (size_t i = 0; i < kPeriod; ++i) period_[i] = static_cast<std::byte>(i * 7 + i / 251);
  }

  // Offers `length` bytes more, in pieces of random length; returns what was taken. The bytes stay as they
  // are while the link uses them.
  ssize_t offer(size_t length) {
    while (!lent_.empty() && lent_.front().end + link->in_use() <= sent) lent_.pop_front();
    lent_.push_back({sent, stream(sent, length)});
    const auto parts = pieces(lent_.back().bytes.data(), length);
    const ssize_t n = link->send(parts.data(), static_cast<int>(parts.size()));
    if (n > 0) sent += static_cast<size_t>(n);
    lent_.back().end = sent;
    return n;
  }
  ssize_t offer_some() { return offer(random_() % 30'000 + 1); }

  // Asks for `length` bytes, or again for those that did not come, and checks what comes.
  ssize_t take(size_t length) {
    if (asked_.empty()) {
      asked_.resize(length);
      parts_ = pieces(asked_.data(), length);
    }
    const ssize_t n = link->receive(parts_.data(), static_cast<int>(parts_.size()));
    if (n == 0) return n;
    std::vector<std::byte> bytes = std::exchange(asked_, {});
    if (n < 0) return n;
    bytes.resize(static_cast<size_t>(n));
    CHECK(bytes == stream(received, bytes.size()));
    received += bytes.size();
    return n;
  }
  ssize_t take_some() { return take(random_() % 30'000 + 1); }

  // Until nothing is there, as a lane does before it waits.
  void drain() {
    while (take_some() > 0) {
    }
  }
  // Until the link takes no more.
  void fill() {
    while (offer_some() > 0) {
    }
  }

  bool readable(int timeout_ms = 0) const { return shows(link->read_fd(), EPOLLIN, timeout_ms); }
  // Meanwhile takes what comes, as a lane does: that may be what the link needs to go on sending.
  bool writable(int timeout_ms = 0) {
    while (true) {
      pollfd entries[2] = {{link->write_fd(), static_cast<short>(link->write_event()), 0},
                           {link->read_fd(), POLLIN, 0}};
      if (poll(entries, 2, timeout_ms) == 0) return false;
      if (entries[0].revents != 0) return true;
      drain();
    }
  }

  std::unique_ptr<Link> link;
  size_t sent = 0, received = 0;

 private:
  static constexpr size_t kPeriod = 256 * 251;

  std::vector<std::byte> stream(size_t from, size_t length) const {
    std::vector<std::byte> bytes(length);
    for (size_t done = 0; done < length;) {
      const size_t at = (from + done) % kPeriod, n = std::min(length - done, kPeriod - at);
      std::memcpy(&bytes[done], &period_[at], n);
      done += n;
    }
    return bytes;
  }

  static bool shows(int fd, uint32_t event, int timeout_ms) {
    pollfd entry{fd, static_cast<short>(event), 0};
    return poll(&entry, 1, timeout_ms) == 1;
  }

  // Pieces of random length, empty ones among them: a few, or of much as many as a lane gives at once.
  std::vector<iovec> pieces(std::byte* bytes, size_t length) {
    const size_t most = length > 100'000 ? 128 : 5;
    std::vector<iovec> parts;
    for (size_t at = 0; at < length && parts.size() < most;) {
      const size_t left = length - at, share = std::min(left, most > 5 ? 2 * length / most : left);
      const size_t n = parts.size() == most - 1 ? left : random_() % (share + 1);
      parts.push_back({bytes + at, n});
      at += n;
    }
    return parts;
  }

  struct Lent {
    size_t end;
    std::vector<std::byte> bytes;
  };

  std::vector<std::byte> period_ = std::vector<std::byte>(kPeriod);  // of what is sent
  std::mt19937 random_;
  std::deque<Lent> lent_;
  std::vector<std::byte> asked_;
  std::vector<iovec> parts_;
};

struct Ends {
  explicit Ends(LinkPair pair) : here(std::move(pair.first), 1), there(std::move(pair.second), 2) {}
  End here, there;
};

// Waits until there is something to do at `to`. Both owners follow their events meanwhile.
inline void wait_for_news(End& from, End& to) {
  pollfd entries[2] = {{to.link->read_fd(), POLLIN, 0}, {from.link ? from.link->read_fd() : -1, POLLIN, 0}};
  CHECK(poll(entries, 2, kPatienceMs) > 0);
  if (entries[1].revents != 0) from.drain();
}

// Takes at `to` until all that `from` has sent is there.
inline void deliver(End& from, End& to) {
  while (to.received < from.sent) {
    const ssize_t n = to.take_some();
    CHECK(n != Link::kClosed);
    if (n == 0) wait_for_news(from, to);
  }
}

// Closes one end. What it has sent may need the other one's help to get there, so both are at work.
inline void close_end(End& closing, End& other) {
  std::thread closer([link = std::move(closing.link)]() mutable { link.reset(); });
  deliver(closing, other);
  closer.join();
}

}  // namespace byteps
