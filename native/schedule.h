// The communication scheduler: which bytes leave next. Sans-IO: no clock, thread or socket, so that the
// planner can run it on a virtual clock and tests can step it.
//
// After ByteScheduler (Peng et al., SOSP 2019): a tensor's partitions queue by priority, and a credit bounds
// the bytes in flight, so that an urgent partition never waits behind more than the credit. Differences:
// credit counts bytes, a partition that waits only for other ranks holds none (see park), no smaller
// partition overtakes a more urgent one that lacks credit, and a partition is sent chunk by chunk, so that
// preemption is finer than partitions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace byteps {

enum class Policy : uint8_t {
  priority,       // most urgent first; first come first served among equals
  fifo,           // first come first served
  stop_and_wait,  // most urgent first, one partition in flight at a time (P3)
};

struct Task {
  uint64_t id = 0;            // chosen by the caller, unique among the live tasks
  int32_t priority = 0;       // larger is more urgent
  uint32_t link = 0;          // the peer it goes to
  uint64_t send_bytes = 0;    // 0: one empty grant
  uint64_t credit_bytes = 0;  // held from the first grant until finish or park
};

// The right to send `bytes` of task `id`, from `offset` on.
struct Grant {
  uint64_t id = 0;
  uint32_t link = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool last = false;
};

class Scheduler {
 public:
  explicit Scheduler(Policy policy, uint64_t credit_bytes) : policy_(policy), credit_bytes_(credit_bytes) {}

  void submit(const Task& task);

  // The most urgent chunk (at most chunk_bytes) among the links that can take bytes, or nothing. A task that
  // needs more credit than the whole window still runs when nothing else is in flight.
  std::optional<Grant> next(uint64_t chunk_bytes, const std::function<bool(uint32_t)>& can_send);

  void finish(uint64_t id);  // its result is back, or it was given up: forgets it and returns its credit
  void park(uint64_t id);    // it waits only for other ranks: returns its credit; finish still follows
  // Others wait for it: it goes before all else, if it has not gone. No more than two thirds of the credit
  // hurry.
  void hurry(uint64_t id);
  void drop_link(uint32_t link);  // forgets all tasks of a peer that is gone
  void clear();
  void set_credit(uint64_t bytes) { credit_bytes_ = bytes; }

  uint64_t in_flight_bytes() const { return in_flight_bytes_; }
  uint64_t credit_bytes() const { return credit_bytes_; }
  size_t size() const { return tasks_.size(); }
  bool has_unsent() const { return !started_.empty() || !waiting_.empty(); }
  bool is_starved() const;      // nothing can be sent for lack of credit, however free the links are
  uint64_t room_bytes() const;  // a new task that needs more credit than this cannot begin now

 private:
  // Order in a queue: most urgent first, then first come first served.
  using Rank = std::tuple<int64_t, uint64_t, uint64_t>;  // -priority, sequence, id

  struct State {
    Task task;
    Rank rank;
    uint64_t sent = 0;
    bool started = false;    // its first chunk was granted
    bool queued = true;      // it has bytes that were not granted
    bool in_flight = false;  // it holds its credit
    bool hurried = false;    // it goes before all else
  };

  // Ranks by link, and the first of each link in order: there may be hundreds of links.
  class Queue {
   public:
    void insert(uint32_t link, const Rank& rank);
    void erase(uint32_t link, const Rank& rank);  // no matter if it is not there
    void clear();
    bool empty() const { return firsts_.empty(); }
    std::optional<Rank> first(const std::function<bool(uint32_t)>& can_send) const;

   private:
    std::unordered_map<uint32_t, std::set<Rank>> links_;
    std::set<std::pair<Rank, uint32_t>> firsts_;
  };

  bool has_credit(const Task& task) const;
  void return_credit(State& state);
  void unqueue(const State& state);
  std::optional<Rank> choose(const std::function<bool(uint32_t)>& can_send) const;
  Grant grant(State& state, uint64_t chunk_bytes);

  const Policy policy_;
  uint64_t credit_bytes_;
  uint64_t in_flight_bytes_ = 0;
  uint64_t in_flight_tasks_ = 0;  // also those that need no credit
  uint64_t hurried_bytes_ = 0;    // of those that have not gone
  uint64_t sequence_ = 0;
  std::unordered_map<uint64_t, State> tasks_;
  Queue started_;
  Queue waiting_;
};

}  // namespace byteps
