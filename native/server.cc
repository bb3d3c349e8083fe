#include "server.h"

#include <algorithm>
#include <future>

#include "server_lane.h"

namespace byteps {

Server::Server(const Options& options) {
  for (uint32_t i = 0; i < options.lanes; ++i) {
    lanes_.push_back(std::make_unique<ServerLane>(options.workers, options.deterministic, options.lane));
  }
}

Server::~Server() { close(0); }

void Server::add_link(uint32_t rank, uint32_t lane, std::unique_ptr<Link> link) {
  ServerLane& to = *lanes_.at(lane);
  // std::function must be copyable, so the link travels in a shared holder.
  auto holder = std::make_shared<std::unique_ptr<Link>>(std::move(link));
  to.post([&to, rank, holder] { to.connect(rank, std::move(*holder)); });
}

void Server::add_beacon(std::unique_ptr<Link> link) { lanes_.at(0)->add_beacon(std::move(link)); }

void Server::start() {
  for (auto& lane : lanes_) lane->start();
  running_ = true;
}

void Server::on_each_lane(const std::function<void(ServerLane&)>& task) {
  std::vector<std::future<void>> done;
  for (auto& lane : lanes_) {
    auto work = std::make_shared<std::packaged_task<void()>>([&task, to = lane.get()] { task(*to); });
    done.push_back(work->get_future());
    lane->post([work] { (*work)(); });
  }
  if (!running_) return;  // the lanes run it first thing when they start
  for (auto& each : done) each.get();
}

void Server::install(const std::vector<TensorSpec>& tensors) {
  // One lane after the other would do as well; each lane takes only its own partitions.
  std::vector<ServerLane*> lanes;
  for (auto& lane : lanes_) lanes.push_back(lane.get());
  on_each_lane([tensors, lanes](ServerLane& lane) {
    for (const TensorSpec& tensor : tensors) {
      for (const PartitionSpec& partition : tensor.partitions) {
        if (lanes.at(partition.lane) == &lane) lane.install(tensor, partition);
      }
    }
  });
}

void Server::retire(const std::vector<uint32_t>& tensors) {
  on_each_lane([tensors](ServerLane& lane) {
    for (const uint32_t tensor : tensors) lane.retire(tensor);
  });
}

void Server::depart(uint32_t rank) {
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

void Server::close(double drain_s) {
  for (auto& lane : lanes_) lane->stop(drain_s);
  running_ = false;
}

void Server::abandon() {
  for (auto& lane : lanes_) lane->abandon();
}

namespace {

template <typename Lanes>
uint64_t sum(const Lanes& lanes, std::atomic<uint64_t> LaneCounters::*counter) {
  uint64_t total = 0;
  for (const auto& lane : lanes) total += (lane->counters().*counter).load(std::memory_order_relaxed);
  return total;
}

}  // namespace

uint64_t Server::bytes_sent() const { return sum(lanes_, &LaneCounters::bytes_sent); }
uint64_t Server::bytes_received() const { return sum(lanes_, &LaneCounters::bytes_received); }

}  // namespace byteps
