#include "worker.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <stdexcept>
#include <string>

#include "worker_lane.h"

namespace byteps {

// A futex and not a condition variable: a signal (Ctrl-C) must end the wait, and only the futex call reports it.
Transfer::Wake Transfer::wait(double timeout_s) const {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(std::min(timeout_s, 1e9)));
  while (status() == Status::pending) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
    if (left <= 0) return Wake::timed_out;
    const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
    const long result = syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&state_), FUTEX_WAIT_PRIVATE,
                                static_cast<uint32_t>(Status::pending), &timeout, nullptr, 0);
    if (result != 0 && errno == EINTR && status() == Status::pending) return Wake::interrupted;
  }
  return Wake::resolved;
}

void Transfer::resolve(Status status, uint32_t peer) {
  if (status != Status::ok) {
    uint32_t none = 0;
    if (failure_.compare_exchange_strong(none, static_cast<uint32_t>(status))) peer_ = peer;
  }
  if (unresolved_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const uint32_t failure = failure_.load();
  state_.store(failure != 0 ? failure : static_cast<uint32_t>(Status::ok), std::memory_order_release);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&state_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

Worker::Worker(const Options& options) : options_(options) {
  Lane::Options lane = options.lane;
  lane.credit_bytes = std::max<uint64_t>(1, lane.credit_bytes / std::max(1u, options.lanes));
  for (uint32_t i = 0; i < options.lanes; ++i) lanes_.push_back(std::make_unique<WorkerLane>(options.rank, lane));
}

Worker::~Worker() { close(); }

void Worker::add_link(uint32_t server, uint32_t lane, std::unique_ptr<Link> link) {
  WorkerLane& to = *lanes_.at(lane);
  // std::function must be copyable, so the link travels in a shared holder.
  auto holder = std::make_shared<std::unique_ptr<Link>>(std::move(link));
  to.post([&to, server, holder] { to.connect(server, std::move(*holder)); });
}

void Worker::add_beacon(std::unique_ptr<Link> link) { lanes_.at(0)->add_beacon(std::move(link)); }

void Worker::start() {
  for (auto& lane : lanes_) lane->start();
}

void Worker::declare(uint32_t tensor, std::vector<PartRef> parts) {
  Tensor entry;
  entry.by_lane.resize(lanes_.size());
  entry.partitions = static_cast<uint32_t>(parts.size());
  for (const PartRef& part : parts) entry.by_lane.at(part.lane).push_back(part);
  const std::lock_guard lock(mutex_);
  tensors_.insert_or_assign(tensor, std::move(entry));
}

void Worker::forget(uint32_t tensor) {
  const std::lock_guard lock(mutex_);
  tensors_.erase(tensor);
}

std::shared_ptr<Transfer> Worker::submit(uint32_t tensor, const std::byte* source, std::byte* destination,
                                         int32_t priority) {
  const std::lock_guard lock(mutex_);
  const auto at = tensors_.find(tensor);
  if (at == tensors_.end()) throw std::invalid_argument("tensor " + std::to_string(tensor) + " is not declared");
  Tensor& entry = at->second;
  if (entry.last && entry.last->status() == Status::pending) {
    throw std::logic_error("tensor " + std::to_string(tensor) + " is in flight already");
  }
  entry.last = std::make_shared<Transfer>(tensor, ++entry.round, source, destination, priority, entry.partitions);
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const auto& parts = entry.by_lane[i];
    if (parts.empty()) continue;
    if (closed_) {
      for (size_t n = 0; n < parts.size(); ++n) entry.last->resolve(Status::closed, 0);
      continue;
    }
    // The lane gets its own copy of the list: the tensor may be forgotten while the task is on its way.
    lanes_[i]->post([lane = lanes_[i].get(), transfer = entry.last, parts] { lane->begin(transfer, parts); });
  }
  return entry.last;
}

void Worker::retract(uint32_t tensor) {
  for (auto& lane : lanes_) lane->post([to = lane.get(), tensor] { to->retract(tensor); });
}

void Worker::fail(Status status, uint32_t peer) {
  for (auto& lane : lanes_) lane->post([to = lane.get(), status, peer] { to->fail(status, peer); });
}

void Worker::set_credit(uint64_t bytes) {
  const uint64_t share = std::max<uint64_t>(1, bytes / lanes_.size());
  for (auto& lane : lanes_) lane->post([to = lane.get(), share] { to->set_credit(share); });
}

void Worker::close() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  fail(Status::closed, 0);
  for (auto& lane : lanes_) lane->stop(0);
}

void Worker::abandon() {
  closed_ = true;  // the lock may be held by a thread that does not exist in this process
  for (auto& lane : lanes_) lane->abandon();
}

std::vector<std::shared_ptr<Transfer>> Worker::in_flight() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Transfer>> result;
  for (const auto& [id, tensor] : tensors_) {
    if (tensor.last && tensor.last->status() == Status::pending) result.push_back(tensor.last);
  }
  return result;
}

namespace {

template <typename Lanes>
uint64_t sum(const Lanes& lanes, std::atomic<uint64_t> LaneCounters::*counter) {
  uint64_t total = 0;
  for (const auto& lane : lanes) total += (lane->counters().*counter).load(std::memory_order_relaxed);
  return total;
}

}  // namespace

uint64_t Worker::bytes_sent() const { return sum(lanes_, &LaneCounters::bytes_sent); }
uint64_t Worker::bytes_received() const { return sum(lanes_, &LaneCounters::bytes_received); }
uint64_t Worker::frames_sent() const { return sum(lanes_, &LaneCounters::frames_sent); }

}  // namespace byteps
