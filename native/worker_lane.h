// One lane of a worker: the partitions in flight over its links.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "credit.h"
#include "lane.h"
#include "node_lane.h"
#include "worker.h"

namespace byteps {

class WorkerLane final : public Lane {
 public:
  WorkerLane(Worker& worker, const Lane::Options& options, uint32_t busy_servers)
      : Lane(options), worker_(worker), rank_(worker.rank()), credit_(busy_servers) {
    set_credit(options.credit_bytes);
  }

  // The lane's thread only.
  void connect(uint32_t server, std::unique_ptr<Link> link);
  // Its neighbours' peer numbers begin with `first_neighbour`.
  void join_node(uint32_t number, std::shared_ptr<const Node> node, uint32_t first_neighbour);
  void add_neighbour(uint32_t place, std::unique_ptr<Link> link);
  // `plan`: how the ranks of this node sum first; null: each pushes for itself.
  void begin(const std::shared_ptr<Transfer>& transfer, const std::vector<PartRef>& parts,
             const std::shared_ptr<const NodePlan>& plan = nullptr);
  void retract(uint32_t tensor);
  void depart(uint32_t rank);  // it left in order
  void add_missing(uint32_t tensor, std::set<uint32_t>& ranks) const;
  void fail(Status status, uint32_t peer);
  void set_credit(uint64_t bytes);  // 0: automatic

  // What goes to a server, and where the result goes.
  struct Push {
    std::shared_ptr<Transfer> transfer;
    PartRef part;
    const std::byte* source;  // of the partition; null: contributes nothing
    std::byte* destination;   // null: wants no result
    int32_t priority;
    std::function<void(Status, uint32_t)> then;  // takes the outcome; none: the transfer does
  };

  // For NodeLane.
  void push(Push push);
  void tell(uint32_t place, Header header);
  void flush_neighbours();
  void record(EventKind kind, const Transfer& transfer, const PartRef& part, Clock::time_point at);

 private:
  class ServerPeer;
  class Neighbour;

  // A partition whose result is not here yet.
  struct Active : Push {
    explicit Active(Push push) : Push(std::move(push)) {}
    void resolve(Status status, uint32_t peer) const {
      then ? then(status, peer) : transfer->resolve(status, peer);
    }
    uint64_t received = 0;
    Clock::time_point begun{};  // when its first byte was handed over
    bool holds_credit = false;
    uint32_t uses = 0;  // chunks in an outbox, and a result frame being received: they use the memory
    Status outcome = Status::pending;  // once known; resolved with it when `uses` is 0
    uint32_t failed_peer = 0;
  };

  static uint64_t key(uint32_t tensor, uint32_t partition) {
    return static_cast<uint64_t>(tensor) << 32 | partition;
  }

  void write_grant(const Grant& grant) override;
  void on_lost(Peer& peer) override;
  Clock::time_point after_events() override;
  void after_sending() override;
  bool may_go_on(Clock::time_point now);
  Active* find(const Header& header);
  void on_answer(const Header& header, Active& active);
  void return_credit(Active& active, Clock::time_point now);
  void settle(uint64_t id, Status outcome, uint32_t peer);
  void resolve(uint64_t id);
  void release(uint64_t id);  // one use less

  Worker& worker_;  // of which this is a lane
  const uint32_t rank_;
  CreditWindow credit_;
  Clock::time_point look_at_ = Clock::time_point::max();  // when to see whether the lane is idle
  Clock::time_point granted_{};                           // when bytes were last handed over
  bool automatic_credit_;
  std::unordered_map<uint64_t, Active> active_;
  std::optional<NodeLane> node_;
  uint32_t first_neighbour_ = 0;
  Status failure_ = Status::pending;
  uint32_t failed_peer_ = 0;
};

}  // namespace byteps
