#include "worker.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <future>
#include <stdexcept>
#include <string>

#include "worker_lane.h"

namespace byteps {

Transfer::Wake Transfer::wait(double timeout_s) const {
  if (status() != Status::pending) return Wake::resolved;
  ++waiting_;
  const Wake wake = sleep(timeout_s);
  --waiting_;
  return wake;
}

// A futex and not a condition variable: a signal (Ctrl-C) must end the wait, and only the futex call reports
// it.
Transfer::Wake Transfer::sleep(double timeout_s) const {
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
  state_.store(failure != 0 ? failure : static_cast<uint32_t>(Status::ok));
  if (waiting_ == 0) return;  // who begins to wait after this sees the state
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&state_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

namespace {

// A lane's part of the worker's credit; 0, automatic, stays 0.
uint64_t share(uint64_t credit_bytes, size_t lanes) {
  return credit_bytes == 0 ? 0 : std::max<uint64_t>(1, credit_bytes / lanes);
}

uint64_t smallest(const std::vector<PartRef>& parts) {
  const auto less = [](const PartRef& a, const PartRef& b) { return a.bytes < b.bytes; };
  return std::min_element(parts.begin(), parts.end(), less)->bytes;
}

}  // namespace

Worker::Worker(const Options& options) : options_(options) {
  Lane::Options lane = options.lane;
  lane.credit_bytes = share(lane.credit_bytes, std::max(1u, options.lanes));
  for (uint32_t i = 0; i < options.lanes; ++i)
    lanes_.push_back(std::make_unique<WorkerLane>(*this, lane, options.busy_servers));
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
  const std::lock_guard lock(mutex_);
  started_ = true;
}

void Worker::join_node(std::shared_ptr<const Node> node, uint32_t first_neighbour) {
  const std::lock_guard lock(mutex_);
  if (node_) throw std::logic_error("the worker has joined its node already");
  node_ = std::move(node);
  for (uint32_t i = 0; i < lanes_.size(); ++i)
    lanes_[i]->post([=, to = lanes_[i].get(), node = node_] { to->join_node(i, node, first_neighbour); });
}

void Worker::add_neighbour(uint32_t place, uint32_t lane, std::unique_ptr<Link> link) {
  WorkerLane& to = *lanes_.at(lane);
  auto holder = std::make_shared<std::unique_ptr<Link>>(std::move(link));
  to.post([&to, place, holder] { to.add_neighbour(place, std::move(*holder)); });
}

void Worker::depart(uint32_t rank) {
  for (auto& lane : lanes_) lane->post([to = lane.get(), rank] { to->depart(rank); });
}

std::set<uint32_t> Worker::missing(uint32_t tensor) {
  std::vector<std::future<std::set<uint32_t>>> answers;
  {
    const std::lock_guard lock(mutex_);
    if (!node_ || !started_ || closed_) return {};  // a lane that has ended would never answer
    for (auto& lane : lanes_) {
      auto answer = std::make_shared<std::promise<std::set<uint32_t>>>();
      answers.push_back(answer->get_future());
      lane->post([to = lane.get(), answer, tensor] {
        std::set<uint32_t> ranks;
        to->add_missing(tensor, ranks);
        answer->set_value(std::move(ranks));
      });
    }
  }
  std::set<uint32_t> all;
  for (auto& answer : answers) all.merge(answer.get());
  return all;
}

void Worker::declare(uint32_t tensor, const std::vector<PartRef>& parts,
                     std::shared_ptr<const NodePlan> plan) {
  std::vector<std::vector<PartRef>> by_lane(lanes_.size());
  for (const PartRef& part : parts) {
    // Offsets within a partition have 32 bits on the wire, and no bytes would mean no frames.
    if (part.lane >= by_lane.size() || part.bytes == 0 || part.bytes > UINT32_MAX) {
      throw std::invalid_argument("tensor " + std::to_string(tensor) + " has a partition of " +
                                  std::to_string(part.bytes) + " bytes on lane " + std::to_string(part.lane));
    }
    by_lane[part.lane].push_back(part);
  }
  const std::lock_guard lock(mutex_);
  if (plan && !node_) throw std::logic_error("a plan for a node that the worker has not joined");
  Tensor& entry = tensors_[tensor];
  if (entry.is_in_flight()) throw std::logic_error("tensor " + std::to_string(tensor) + " is in flight");
  entry.by_lane.clear();
  for (auto& lane : by_lane)
    entry.by_lane.push_back(lane.empty() ? nullptr
                                         : std::make_shared<const std::vector<PartRef>>(std::move(lane)));
  entry.plan = std::move(plan);
  entry.partitions = static_cast<uint32_t>(parts.size());
  entry.declared = true;
}

void Worker::forget(uint32_t tensor) {
  const std::lock_guard lock(mutex_);
  tensors_.erase(tensor);
}

std::shared_ptr<Transfer> Worker::submit(uint32_t tensor, const std::byte* source, std::byte* destination,
                                         int32_t priority) {
  const std::lock_guard lock(mutex_);
  const auto at = tensors_.find(tensor);
  if (at == tensors_.end() || !at->second.declared) {
    throw std::invalid_argument("tensor " + std::to_string(tensor) + " is not declared");
  }
  Tensor& entry = at->second;
  if (entry.is_in_flight())
    throw std::logic_error("tensor " + std::to_string(tensor) + " is in flight already");
  if (!started_) throw std::logic_error("the worker has not started");
  entry.last =
      std::make_shared<Transfer>(tensor, ++entry.round, source, destination, priority, entry.partitions);
  if (closed_ || entry.retracted) {
    const Status status = closed_ ? Status::closed : Status::retracted;
    for (uint32_t i = 0; i < entry.partitions; ++i) entry.last->resolve(status, 0);
    return entry.last;
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const auto& parts = entry.by_lane[i];
    if (!parts) continue;
    // The lane shares the list: the tensor may be forgotten while the task is on its way.
    auto begin = [lane = lanes_[i].get(), transfer = entry.last, parts, plan = entry.plan] {
      lane->begin(transfer, *parts, plan);
    };
    lanes_[i]->post(std::move(begin), entry.plan ? 0 : smallest(*parts));
  }
  return entry.last;
}

void Worker::retract(uint32_t tensor) {
  const std::lock_guard lock(mutex_);
  tensors_[tensor].retracted = true;
  for (auto& lane : lanes_) lane->post([to = lane.get(), tensor] { to->retract(tensor); });
}

void Worker::fail(Status status, uint32_t peer) {
  if (status <= Status::ok || status > Status::closed)
    throw std::invalid_argument("this status is no failure");
  for (auto& lane : lanes_) lane->post([to = lane.get(), status, peer] { to->fail(status, peer); });
}

void Worker::set_credit(uint64_t bytes) {
  const uint64_t each = share(bytes, lanes_.size());
  for (auto& lane : lanes_) lane->post([to = lane.get(), each] { to->set_credit(each); });
}

void Worker::set_chunk(uint64_t bytes) {
  for (auto& lane : lanes_) lane->set_chunk(bytes);
}

void Worker::close() {
  if (abandoned_) return;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  fail(Status::closed, 0);
  for (auto& lane : lanes_) lane->stop(0);
}

void Worker::abandon() {
  abandoned_ = closed_ = true;  // the lock may be held by a thread that does not exist in this process
  for (auto& lane : lanes_) lane->abandon();
  // Segments are not mapped here, so nothing may unmap them: they are never let go of.
  if (node_) [[maybe_unused]]
    auto* leaked = new std::shared_ptr<const Node>(node_);
}

std::vector<std::shared_ptr<Transfer>> Worker::in_flight() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Transfer>> result;
  for (const auto& [id, tensor] : tensors_) {
    if (tensor.is_in_flight()) result.push_back(tensor.last);
  }
  return result;
}

uint64_t Worker::take_events(std::vector<Event>& out) { return byteps::take_events(lanes_, out); }
uint64_t Worker::bytes_sent() const { return total(lanes_, &LaneCounters::bytes_sent); }
uint64_t Worker::bytes_received() const { return total(lanes_, &LaneCounters::bytes_received); }
uint64_t Worker::frames_sent() const { return total(lanes_, &LaneCounters::frames_sent); }

double Worker::bytes_per_second() const {
  double sum = 0;
  for (const auto& lane : lanes_) sum += lane->counters().bytes_per_second.load(std::memory_order_relaxed);
  return sum;
}

}  // namespace byteps
