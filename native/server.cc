#include "server.h"

#include <algorithm>
#include <future>
#include <stdexcept>
#include <string>

#include "server_lane.h"

namespace byteps {
namespace {

constexpr size_t kSumBytes = 32 * 1024 * 1024;  // per lane

}  // namespace

Server::Server(const Options& options) : workers_(options.workers) {
  for (uint32_t i = 0; i < options.lanes; ++i) {
    lanes_.push_back(std::make_unique<ServerLane>(options.workers, options.deterministic, options.lane));
  }
  sum_memory_.resize(lanes_.size());
}

Server::~Server() { close(0); }

void Server::add_link(uint32_t rank, uint32_t lane, std::unique_ptr<Link> link) {
  check_rank(rank);
  ServerLane& to = *lanes_.at(lane);
  // std::function must be copyable, so the link travels in a shared holder.
  auto holder = std::make_shared<std::unique_ptr<Link>>(std::move(link));
  to.post([&to, rank, holder] { to.connect(rank, std::move(*holder)); });
}

std::shared_ptr<SumMemory> Server::sum_memory(uint32_t lane) {
  const std::lock_guard lock(mutex_);
  auto& memory = sum_memory_.at(lane);
  if (!memory) {
    memory = std::make_shared<SumMemory>(kSumBytes);
    lanes_[lane]->post([to = lanes_[lane].get(), memory] { to->sum_in(memory); });
  }
  return memory;
}

void Server::add_beacon(std::unique_ptr<Link> link) { lanes_.at(0)->add_beacon(std::move(link)); }

void Server::check_rank(uint32_t rank) const {
  if (rank >= workers_) throw std::out_of_range("there is no rank " + std::to_string(rank));
}

void Server::start() {
  const std::lock_guard lock(mutex_);
  for (auto& lane : lanes_) lane->start();
  phase_ = Phase::running;
}

void Server::on_each_lane(const std::function<void(ServerLane&)>& task) {
  const std::lock_guard lock(mutex_);  // a lane that has ended would never run it
  if (phase_ == Phase::closed) return;
  std::vector<std::future<void>> done;
  for (auto& lane : lanes_) {
    auto work = std::make_shared<std::packaged_task<void()>>([&task, to = lane.get()] { task(*to); });
    done.push_back(work->get_future());
    if (phase_ == Phase::fresh) {
      (*work)();  // there are no threads yet
    } else {
      lane->post([work] { (*work)(); });
    }
  }
  for (auto& each : done) each.wait();  // first: whatever throws must not leave `task` in use
  for (auto& each : done) each.get();
}

void Server::install(const std::vector<TensorSpec>& tensors) {
  for (const TensorSpec& tensor : tensors) {
    for (const uint32_t rank : tensor.members) {
      if (rank >= workers_)
        throw std::invalid_argument("tensor " + std::to_string(tensor.id) + " is for rank " +
                                    std::to_string(rank) + ", which there is not");
    }
    const size_t element = wire_size(tensor.arithmetic.dtype);
    for (const auto& [index, lane, bytes, owners] : tensor.partitions) {
      const bool owned = owners.empty() || (owners.size() == workers_ &&
                                            *std::max_element(owners.begin(), owners.end()) < workers_);
      if (owned && lane < lanes_.size() && bytes > 0 && bytes <= UINT32_MAX && bytes % element == 0) continue;
      throw std::invalid_argument("tensor " + std::to_string(tensor.id) + " has a partition of " +
                                  std::to_string(bytes) + " bytes on lane " + std::to_string(lane));
    }
  }
  on_each_lane([&](ServerLane& lane) {
    for (const TensorSpec& tensor : tensors) {
      for (const PartitionSpec& partition : tensor.partitions) {
        if (lanes_[partition.lane].get() == &lane) lane.install(tensor, partition);
      }
    }
  });
}

void Server::retire(const std::vector<uint32_t>& tensors) {
  on_each_lane([&](ServerLane& lane) {
    for (const uint32_t tensor : tensors) lane.retire(tensor);
  });
}

void Server::depart(uint32_t rank) {
  check_rank(rank);
  for (auto& lane : lanes_) lane->post([to = lane.get(), rank] { to->depart(rank); });
}

std::vector<Server::Missing> Server::missing(uint32_t tensor) {
  std::vector<Missing> result;
  std::mutex mutex;
  on_each_lane([&](ServerLane& lane) {
    const std::lock_guard lock(mutex);
    lane.add_missing(tensor, result);
  });
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return result;
}

std::vector<Server::OpenRound> Server::open_rounds() {
  std::vector<OpenRound> result;
  std::mutex mutex;
  on_each_lane([&](ServerLane& lane) {
    const std::lock_guard lock(mutex);
    lane.add_open_rounds(result);
  });
  return result;
}

void Server::close(double drain_s) {
  if (abandoned_) return;
  {
    const std::lock_guard lock(mutex_);
    phase_ = Phase::closed;
  }
  for (auto& lane : lanes_) lane->stop(drain_s);
}

void Server::abandon() {
  abandoned_ = true;  // locks may be held by threads that do not exist in this process
  for (auto& lane : lanes_) lane->abandon();
  for (auto& memory : sum_memory_) {
    if (memory) memory->abandon();
  }
}

uint64_t Server::take_events(std::vector<Event>& out) { return byteps::take_events(lanes_, out); }
uint64_t Server::bytes_sent() const { return total(lanes_, &LaneCounters::bytes_sent); }
uint64_t Server::bytes_received() const { return total(lanes_, &LaneCounters::bytes_received); }

}  // namespace byteps
