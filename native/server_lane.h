// One lane of a server: its partitions, the rounds being summed, and the results under way to the workers.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "lane.h"
#include "server.h"
#include "status.h"
#include "summation.h"

namespace byteps {

class ServerLane final : public Lane {
 public:
  ServerLane(uint32_t workers, bool deterministic, const Lane::Options& options)
      : Lane(options), workers_(workers), deterministic_(deterministic), progress_(workers) {}

  // The lane's thread only (or before it starts).
  void connect(uint32_t rank, std::unique_ptr<Link> link);
  void install(const TensorSpec& tensor, const PartitionSpec& partition);
  void retire(uint32_t tensor);
  void depart(uint32_t rank);
  void sum_in(std::shared_ptr<SumMemory> memory) { pool_->sum_in(std::move(memory)); }
  void add_missing(uint32_t tensor, std::vector<Server::Missing>& out) const;
  void add_open_rounds(std::vector<Server::OpenRound>& out) const;

 private:
  class WorkerPeer;

  // A round that is being summed, and what its contributors asked for.
  struct Open {
    Open(const Arithmetic& arithmetic, size_t bytes, uint32_t workers, bool deterministic,
         const std::vector<bool>& contributors, uint32_t divisor, const std::shared_ptr<BufferPool>& pool)
        : sum(arithmetic, bytes, workers, deterministic, contributors, divisor, pool), no_result(workers) {}
    Round sum;
    std::vector<bool> no_result;   // by rank
    int32_t priority = INT32_MIN;  // the most urgent that a contributor gave
    bool asked_for = false;        // those who are missing were told
  };

  // At most one round is open: who pushes round n + 1 proves that it holds the result of n, and results under
  // way are kept by their deliveries.
  struct Partition {
    uint32_t tensor = 0;
    uint32_t index = 0;
    size_t bytes = 0;
    Arithmetic arithmetic;
    std::vector<bool> members;       // by rank, whose tensor this is; empty: all ranks'
    std::vector<uint32_t> owners;    // by rank, who contributes for it; empty: each for itself
    std::vector<bool> contributors;  // by rank; empty: all
    uint32_t divisor = 0;            // see TensorSpec
    uint32_t completed = 0;          // the last complete round
    std::shared_ptr<Open> open;      // round completed + 1

    bool is_of(uint32_t rank) const { return members.empty() || members[rank]; }
    bool comes_from(uint32_t rank) const { return contributors.empty() || contributors[rank]; }
    uint32_t owner_of(uint32_t rank) const { return owners.empty() ? rank : owners[rank]; }
  };

  struct Delivery {
    Header header;
    Sum sum;
  };

  struct Parked {
    uint64_t key;
    uint32_t round;
    uint32_t rank;
    Clock::time_point since;
  };

  // What a rank does.
  struct Progress {
    bool idle = true;  // it sends nothing for now
    uint64_t key = 0;  // its last complete contribution
    uint32_t round = 0;
  };

  enum class Verdict { accept, discard, refuse };

  static uint64_t key(uint32_t tensor, uint32_t partition) {
    return static_cast<uint64_t>(tensor) << 32 | partition;
  }

  Verdict judge(const Header& header, std::shared_ptr<Open>& open);
  std::optional<uint32_t> lacks(const Partition& partition) const;
  void contributed(const Header& header);
  void deliver(Partition& partition);
  void fail(const Partition& partition, uint32_t round, uint32_t rank, uint32_t departed);
  Header header_for(const Partition& partition, uint32_t round, FrameType type, uint32_t rank) const;

  void write_grant(const Grant& grant) override;
  void on_lost(Peer& peer) override;
  Clock::time_point after_events() override;
  void falls_idle(uint32_t rank);
  bool tell_parked(const Parked& parked, Clock::time_point now);
  void ask_for(const Partition& partition);
  bool are_catching_up(const Open& open, uint32_t with) const;

  const uint32_t workers_;
  const bool deterministic_;
  const std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>();
  std::unordered_map<uint64_t, Partition> partitions_;
  std::unordered_map<uint32_t, std::vector<uint32_t>> by_tensor_;
  std::unordered_map<uint64_t, Delivery> deliveries_;
  std::vector<Parked> parked_;   // contributions whose rank may have to be told, oldest first
  Clock::time_point look_at_{};  // when to look at those next
  std::set<uint32_t> departed_;
  std::vector<Progress> progress_;  // by rank
  uint64_t next_delivery_ = 1;
  uint32_t highest_tensor_ = 0;  // ids above were never installed
};

}  // namespace byteps
