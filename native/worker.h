// The data plane of one worker: pushes contributions to the servers and receives the results.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "lane.h"
#include "node.h"
#include "status.h"

namespace byteps {

// One round of one tensor on this worker. The caller waits on it; lanes resolve its partitions.
class Transfer {
 public:
  Transfer(uint32_t tensor, uint32_t round, const std::byte* source, std::byte* destination, int32_t priority,
           uint32_t partitions)
      : tensor(tensor),
        round(round),
        source(source),
        destination(destination),
        priority(priority),
        unresolved_(partitions) {
    if (partitions == 0) state_ = static_cast<uint32_t>(Status::ok);
  }

  const uint32_t tensor;
  const uint32_t round;
  const std::byte* const source;  // null: contributes nothing
  std::byte* const destination;   // null: wants no result
  const int32_t priority;
  const Clock::time_point submitted = Clock::now();

  Status status() const { return static_cast<Status>(state_.load(std::memory_order_acquire)); }
  uint32_t peer() const { return peer_.load(std::memory_order_relaxed); }
  uint32_t unresolved() const { return unresolved_.load(std::memory_order_relaxed); }

  enum class Wake { resolved, timed_out, interrupted };
  // Blocks until the transfer is resolved, the time is over or a signal arrived. Any thread.
  Wake wait(double timeout_s) const;

  // One partition is over; no lane touches its memory any more. The first failure decides the status.
  void resolve(Status status, uint32_t peer);

 private:
  Wake sleep(double timeout_s) const;

  std::atomic<uint32_t> unresolved_;
  std::atomic<uint32_t> failure_{0};
  std::atomic<uint32_t> peer_{0};
  std::atomic<uint32_t> state_{0};            // a Status; also the futex word
  mutable std::atomic<uint32_t> waiting_{0};  // threads
};

struct PartRef {
  uint32_t index = 0;
  uint32_t server = 0;
  uint32_t lane = 0;
  uint64_t offset = 0;  // within the tensor
  uint64_t bytes = 0;
};

class WorkerLane;

class Worker {
 public:
  struct Options {
    uint32_t rank = 0;
    uint32_t lanes = 1;
    Lane::Options lane;         // its credit is the worker's, which lanes share evenly; 0: each finds its own
    uint32_t busy_servers = 1;  // see CreditWindow
  };

  explicit Worker(const Options& options);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void add_link(uint32_t server, uint32_t lane, std::unique_ptr<Link> link);
  void add_beacon(std::unique_ptr<Link> link);
  void start();  // before the first submit
  // Before the first plan, and once. Servers' numbers end before `first_neighbour`.
  void join_node(std::shared_ptr<const Node> node, uint32_t first_neighbour);
  void add_neighbour(uint32_t place, uint32_t lane, std::unique_ptr<Link> link);

  // Throws std::invalid_argument for a partition that cannot be: of no bytes, 4 GiB and more, or on no lane.
  // With a plan, the ranks of this node sum first.
  void declare(uint32_t tensor, const std::vector<PartRef>& parts, std::shared_ptr<const NodePlan> plan = {});
  void forget(uint32_t tensor);

  // Begins the next round. The memory must stay valid until the transfer is resolved.
  // Throws std::invalid_argument for an unknown tensor, std::logic_error if its last round is not resolved or
  // the worker has not started.
  std::shared_ptr<Transfer> submit(uint32_t tensor, const std::byte* source, std::byte* destination,
                                   int32_t priority);

  // Fails the round in flight and those to come, even if the tensor is declared only later: ids are not used
  // again.
  void retract(uint32_t tensor);
  void depart(uint32_t rank);  // a rank left in order: what a node lacks of it will not come
  // Ranks of this node that the rounds of a tensor wait for, as far as this rank can tell.
  std::set<uint32_t> missing(uint32_t tensor);
  void fail(Status status, uint32_t peer);  // fails all rounds in flight and to come
  void set_credit(uint64_t bytes);
  void set_chunk(uint64_t bytes);  // of a frame; 0: by the measured rate
  void close();                    // fails what is in flight, ends the threads
  void abandon();                  // in a forked child

  uint32_t rank() const { return options_.rank; }
  std::vector<std::shared_ptr<Transfer>> in_flight() const;
  uint64_t take_events(std::vector<Event>& out);  // of all lanes; returns how many were dropped
  uint64_t bytes_sent() const;
  uint64_t bytes_received() const;
  uint64_t frames_sent() const;
  double bytes_per_second() const;  // of sending, as last measured while there was always more; 0: not yet

 private:
  struct Tensor {
    std::vector<std::shared_ptr<const std::vector<PartRef>>> by_lane;  // null: none there
    std::shared_ptr<const NodePlan> plan;
    uint32_t partitions = 0;
    uint32_t round = 0;
    bool declared = false;
    bool retracted = false;
    std::shared_ptr<Transfer> last;

    bool is_in_flight() const { return last && last->status() == Status::pending; }
  };

  const Options options_;
  std::vector<std::unique_ptr<WorkerLane>> lanes_;
  mutable std::mutex mutex_;
  std::unordered_map<uint32_t, Tensor> tensors_;  // guarded by mutex_
  std::shared_ptr<const Node> node_;              // guarded by mutex_
  bool started_ = false;                          // guarded by mutex_
  bool closed_ = false;                           // guarded by mutex_
  bool abandoned_ = false;
};

}  // namespace byteps
