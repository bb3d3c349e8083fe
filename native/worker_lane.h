// One lane of a worker: the partitions in flight over its links.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "credit.h"
#include "lane.h"
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
  void begin(const std::shared_ptr<Transfer>& transfer, const std::vector<PartRef>& parts);
  void retract(uint32_t tensor);
  void fail(Status status, uint32_t peer);
  void set_credit(uint64_t bytes);  // 0: automatic

 private:
  class ServerPeer;

  // A partition whose result is not here yet.
  struct Active {
    std::shared_ptr<Transfer> transfer;
    PartRef part;
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
  Active* find(const Header& header);
  void record(EventKind kind, const Active& active, Clock::time_point at);
  void on_answer(const Header& header, Active& active);
  void return_credit(Active& active);
  void settle(uint64_t id, Status outcome, uint32_t peer);
  void resolve(uint64_t id);
  void release(uint64_t id);  // one use less

  Worker& worker_;  // of which this is a lane
  const uint32_t rank_;
  CreditWindow credit_;
  Clock::time_point look_at_ = Clock::time_point::max();  // when to see whether the lane is idle
  bool automatic_credit_;
  std::unordered_map<uint64_t, Active> active_;
  Status failure_ = Status::pending;
  uint32_t failed_peer_ = 0;
};

}  // namespace byteps
