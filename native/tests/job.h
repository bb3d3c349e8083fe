// The data plane of a whole job in one process, for the native tests.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "links.h"
#include "server.h"
#include "worker.h"

namespace byteps {

constexpr double kPatienceS = 30;
constexpr double kNoHeartbeatS = 1000;  // so that no heartbeat wakes a lane that was forgotten

// How a round ended; it has to end.
inline Status outcome(const Transfer& transfer) {
  CHECK(transfer.wait(kPatienceS) == Transfer::Wake::resolved);
  return transfer.status();
}

struct Shape {
  uint32_t workers = 2;
  uint32_t servers = 1;
  uint32_t lanes = 1;
  LinkMaker make = inproc_links;
  uint64_t credit_bytes = 1 << 20;
  Policy policy = Policy::priority;
  bool deterministic = false;
  uint32_t event_capacity = 0;
};

class Job {
 public:
  explicit Job(const Shape& shape) : shape_(shape) {
    const Lane::Options lane{shape.policy, shape.credit_bytes, kNoHeartbeatS, 0, 0, shape.event_capacity};
    for (uint32_t i = 0; i < shape.servers; ++i) {
      const Server::Options options{shape.workers,
                                    shape.lanes,
                                    shape.deterministic,
                                    {.heartbeat_s = kNoHeartbeatS, .event_capacity = shape.event_capacity}};
      servers.push_back(std::make_unique<Server>(options));
      servers.back()->start();
    }
    for (uint32_t rank = 0; rank < shape.workers; ++rank) {
      workers.push_back(std::make_unique<Worker>(Worker::Options{rank, shape.lanes, lane, 1}));
      for (uint32_t server = 0; server < shape.servers; ++server) {
        for (uint32_t k = 0; k < shape.lanes; ++k) connect(rank, server, k);
      }
      workers.back()->start();
    }
  }

  // Partition i goes to server i, then lane i, each in turn.
  void declare(uint32_t tensor, uint64_t bytes, uint64_t partition_bytes, const Arithmetic& arithmetic = {},
               const std::vector<uint32_t>& members = {}) {
    std::vector<PartRef> parts;
    std::vector<TensorSpec> specs(shape_.servers, TensorSpec{tensor, arithmetic, {}, members});
    for (uint64_t offset = 0; offset < bytes; offset += partition_bytes) {
      const auto index = static_cast<uint32_t>(parts.size());
      const uint32_t server = (index + tensor) % shape_.servers, lane = index / shape_.servers % shape_.lanes;
      const uint64_t length = std::min(partition_bytes, bytes - offset);
      parts.push_back({index, server, lane, offset, length});
      specs[server].partitions.push_back({index, lane, length});
    }
    for (uint32_t server = 0; server < shape_.servers; ++server) servers[server]->install({specs[server]});
    for (auto& worker : workers) worker->declare(tensor, parts);
  }

  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::unique_ptr<Worker>> workers;

 private:
  void connect(uint32_t rank, uint32_t server, uint32_t lane) {
    const bool lends = shape_.make == shared_memory_links;
    auto [there, here] = lends ? lending_links(servers[server]->sum_memory(lane)) : shape_.make();
    servers[server]->add_link(rank, lane, std::move(there));
    workers[rank]->add_link(server, lane, std::move(here));
  }

  const Shape shape_;
};

// A float tensor of one rank.
struct Memory {
  explicit Memory(size_t bytes, float value = 1)
      : source(bytes / sizeof(float), value), result(source.size(), -1) {}
  std::shared_ptr<Transfer> submit(Worker& worker, uint32_t tensor, int32_t priority = 0) {
    return worker.submit(tensor, reinterpret_cast<const std::byte*>(source.data()),
                         reinterpret_cast<std::byte*>(result.data()), priority);
  }
  bool holds(float value) const {
    return std::all_of(result.begin(), result.end(), [&](float x) { return x == value; });
  }
  std::vector<float> source, result;
};

}  // namespace byteps
