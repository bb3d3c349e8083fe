// The data plane of one server: sums what the workers push and sends each sum back. It holds no parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "lane.h"
#include "sum_memory.h"
#include "summation.h"

namespace byteps {

struct PartitionSpec {
  uint32_t index = 0;
  uint32_t lane = 0;
  uint64_t bytes = 0;
  std::vector<uint32_t> owners = {};  // by rank, who contributes for it and its node; empty: each for itself
};

struct TensorSpec {
  uint32_t id = 0;
  Arithmetic arithmetic;
  std::vector<PartitionSpec> partitions;  // those of this server
  std::vector<uint32_t> members = {};     // ranks that take part; empty: all
  uint32_t divisor = 0;                   // of an average; 0: the number of contributions
};

class ServerLane;

class Server {
 public:
  struct Options {
    uint32_t workers = 1;
    uint32_t lanes = 1;
    bool deterministic = false;  // add in rank order, whatever the order of arrival
    Lane::Options lane;
  };

  explicit Server(const Options& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Throws std::out_of_range for a rank or lane that does not exist.
  void add_link(uint32_t rank, uint32_t lane, std::unique_ptr<Link> link);
  void add_beacon(std::unique_ptr<Link> link);
  void start();

  // What the lane sums in from now on, for links to workers of this host. Throws std::system_error where
  // there can be none, and std::out_of_range.
  std::shared_ptr<SumMemory> sum_memory(uint32_t lane);

  // Both return once every lane knows, so that no frame can be earlier than its declaration. Throws
  // std::invalid_argument for a partition that cannot be: of no or broken elements, 4 GiB and more, or on no
  // lane, and for a member or owner that is no rank.
  void install(const std::vector<TensorSpec>& tensors);
  void retire(const std::vector<uint32_t>& tensors);

  void depart(uint32_t rank);  // the rank left in order: rounds that lack its contribution fail

  // The ranks that the open rounds of a tensor wait for, with the seconds since each was last heard from.
  struct Missing {
    uint32_t rank = 0;
    double heard_s = 0;
  };
  std::vector<Missing> missing(uint32_t tensor);

  // Every round that is being summed, for a report.
  struct OpenRound {
    uint32_t tensor = 0;
    uint32_t partition = 0;
    uint32_t round = 0;
    uint64_t bytes = 0;
    std::vector<uint32_t> missing;  // ranks
  };
  std::vector<OpenRound> open_rounds();

  void close(double drain_s);
  void abandon();  // in a forked child

  uint64_t take_events(std::vector<Event>& out);  // of all lanes; returns how many were dropped
  uint64_t bytes_sent() const;
  uint64_t bytes_received() const;

 private:
  enum class Phase { fresh, running, closed };

  // Runs `task` on every lane and waits for all of them. Does nothing once closed.
  void on_each_lane(const std::function<void(ServerLane&)>& task);
  void check_rank(uint32_t rank) const;

  const uint32_t workers_;
  std::vector<std::unique_ptr<ServerLane>> lanes_;
  std::vector<std::shared_ptr<SumMemory>> sum_memory_;  // by lane; guarded by mutex_
  std::mutex mutex_;
  Phase phase_ = Phase::fresh;  // guarded by mutex_
  bool abandoned_ = false;
};

}  // namespace byteps
