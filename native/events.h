// What happened when: a bounded buffer that one lane fills and any other thread empties. It costs one branch
// where nothing is recorded.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <mutex>
#include <vector>

#include "egress.h"

namespace byteps {

enum class EventKind : uint32_t {
  queued = 1,  // worker: submitted
  pushing,     // worker: its first byte was handed over to the link
  pushed,      // worker: its last chunk was
  returned,    // worker: the result is complete
  arrived,     // server: a contribution is complete, others are not
  summed,      // server: so is the last one
};

// Of one partition in one round. The layout is read by byteps.trace.
struct Event {
  int64_t time_ns = 0;  // steady clock
  EventKind kind = EventKind::queued;
  uint32_t tensor = 0;
  uint32_t partition = 0;
  uint32_t round = 0;
  uint32_t peer = 0;  // the server, or at a server the rank
  uint32_t bytes = 0;
};
static_assert(sizeof(Event) == 32);

inline int64_t nanoseconds(Clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

class EventBuffer {
 public:
  // Room for so many events, or a few more; 0: records nothing.
  explicit EventBuffer(size_t capacity) : events_(capacity == 0 ? 0 : std::bit_ceil(capacity)) {}

  bool on() const { return !events_.empty(); }

  // The lane's thread only.
  void record(const Event& event) {
    const uint64_t end = end_.load(std::memory_order_relaxed);
    if (end - begin_.load(std::memory_order_acquire) == events_.size()) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    events_[place(end)] = event;
    end_.store(end + 1, std::memory_order_release);
  }

  // Any thread: appends what was recorded since the last call, and returns how many were dropped since then.
  uint64_t take(std::vector<Event>& out) {
    if (!on()) return 0;
    const std::lock_guard lock(mutex_);
    const uint64_t end = end_.load(std::memory_order_acquire);
    const uint64_t begin = begin_.load(std::memory_order_relaxed);
    const Event* first = events_.data() + place(begin);
    const size_t before_wrap = std::min<size_t>(end - begin, events_.size() - place(begin));
    out.insert(out.end(), first, first + before_wrap);
    out.insert(out.end(), events_.data(), events_.data() + (end - begin - before_wrap));
    begin_.store(end, std::memory_order_release);
    return dropped_.exchange(0, std::memory_order_relaxed);
  }

 private:
  size_t place(uint64_t number) const { return number & (events_.size() - 1); }

  std::vector<Event> events_;
  std::atomic<uint64_t> begin_{0};
  std::atomic<uint64_t> end_{0};
  std::atomic<uint64_t> dropped_{0};
  std::mutex mutex_;  // between takers
};

// Those of all lanes of a worker or server.
template <typename Lanes>
uint64_t take_events(const Lanes& lanes, std::vector<Event>& out) {
  uint64_t dropped = 0;
  for (const auto& lane : lanes) dropped += lane->events().take(out);
  return dropped;
}

}  // namespace byteps
