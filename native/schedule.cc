#include "schedule.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace byteps {

void Scheduler::Queue::insert(uint32_t link, const Rank& rank) {
  std::set<Rank>& ranks = links_[link];
  const auto at = ranks.insert(rank).first;
  if (at != ranks.begin()) return;
  if (const auto next = std::next(at); next != ranks.end()) firsts_.erase({*next, link});
  firsts_.emplace(rank, link);
}

void Scheduler::Queue::erase(uint32_t link, const Rank& rank) {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  std::set<Rank>& ranks = found->second;
  if (ranks.erase(rank) == 0 || firsts_.erase({rank, link}) == 0) return;
  if (ranks.empty()) {
    links_.erase(found);
  } else {
    firsts_.emplace(*ranks.begin(), link);
  }
}

void Scheduler::Queue::clear() {
  links_.clear();
  firsts_.clear();
}

std::optional<Scheduler::Rank> Scheduler::Queue::first(const std::function<bool(uint32_t)>& can_send) const {
  for (const auto& [rank, link] : firsts_) {
    if (can_send(link)) return rank;
  }
  return std::nullopt;
}

void Scheduler::submit(const Task& task) {
  const int64_t urgency = policy_ == Policy::fifo ? 0 : -static_cast<int64_t>(task.priority);
  const Rank rank{urgency, sequence_++, task.id};
  const auto [at, inserted] = tasks_.try_emplace(task.id, State{task, rank});
  if (!inserted) throw std::logic_error("task " + std::to_string(task.id) + " is scheduled already");
  waiting_.insert(task.link, rank);
}

bool Scheduler::has_credit(const Task& task) const {
  if (policy_ == Policy::stop_and_wait) return in_flight_tasks_ == 0;
  return in_flight_bytes_ == 0 || in_flight_bytes_ + task.credit_bytes <= credit_bytes_;
}

uint64_t Scheduler::room_bytes() const {
  if (in_flight_tasks_ == 0) return UINT64_MAX;
  if (policy_ == Policy::stop_and_wait) return 0;
  return in_flight_bytes_ == 0 ? UINT64_MAX : credit_bytes_ - std::min(in_flight_bytes_, credit_bytes_);
}

bool Scheduler::is_starved() const {
  return has_unsent() && !choose([](uint32_t) { return true; });
}

void Scheduler::return_credit(State& state) {
  if (!state.in_flight) return;
  state.in_flight = false;
  in_flight_bytes_ -= state.task.credit_bytes;
  --in_flight_tasks_;
}

// The most urgent task that has not started yet may wait for credit. Tasks behind it must not take that
// credit first, on whatever link, or a stream of small ones would starve a large urgent one. Started ones go
// on.
std::optional<Scheduler::Rank> Scheduler::choose(const std::function<bool(uint32_t)>& can_send) const {
  const auto waiting = waiting_.first(can_send);
  const auto started = started_.first(can_send);
  if (!waiting || (started && *started < *waiting)) return started;
  return has_credit(tasks_.at(std::get<2>(*waiting)).task) ? waiting : started;
}

std::optional<Grant> Scheduler::next(uint64_t chunk_bytes, const std::function<bool(uint32_t)>& can_send) {
  const auto chosen = choose(can_send);
  if (!chosen) return std::nullopt;
  return grant(tasks_.at(std::get<2>(*chosen)), chunk_bytes);
}

Grant Scheduler::grant(State& state, uint64_t chunk_bytes) {
  if (!state.started) {
    state.started = state.in_flight = true;
    in_flight_bytes_ += state.task.credit_bytes;
    ++in_flight_tasks_;
    waiting_.erase(state.task.link, state.rank);
    started_.insert(state.task.link, state.rank);
  }
  const uint64_t bytes = std::min(chunk_bytes, state.task.send_bytes - state.sent);
  const Grant result{state.task.id, state.task.link, state.sent, bytes,
                     state.sent + bytes == state.task.send_bytes};
  state.sent += bytes;
  if (result.last) {
    state.queued = false;
    unqueue(state);
  }
  return result;
}

void Scheduler::unqueue(const State& state) {
  if (state.hurried) hurried_bytes_ -= state.task.credit_bytes;
  (state.started ? started_ : waiting_).erase(state.task.link, state.rank);
}

void Scheduler::park(uint64_t id) {
  const auto at = tasks_.find(id);
  if (at != tasks_.end()) return_credit(at->second);
}

// Only few: a rank that is behind in everything would send in the order of those who wait, not by urgency,
// and never catch up.
void Scheduler::hurry(uint64_t id) {
  const auto at = tasks_.find(id);
  if (at == tasks_.end() || !at->second.queued || at->second.hurried) return;
  State& state = at->second;
  if (hurried_bytes_ > 0 && hurried_bytes_ + state.task.credit_bytes > credit_bytes_ / 3 * 2) return;
  state.hurried = true;
  hurried_bytes_ += state.task.credit_bytes;
  Queue& queue = state.started ? started_ : waiting_;
  queue.erase(state.task.link, state.rank);
  std::get<0>(state.rank) = INT64_MIN;
  queue.insert(state.task.link, state.rank);
}

void Scheduler::finish(uint64_t id) {
  const auto at = tasks_.find(id);
  if (at == tasks_.end()) return;
  return_credit(at->second);
  if (at->second.queued) unqueue(at->second);
  tasks_.erase(at);
}

void Scheduler::drop_link(uint32_t link) {
  std::vector<uint64_t> gone;
  for (const auto& [id, state] : tasks_) {
    if (state.task.link == link) gone.push_back(id);
  }
  for (const uint64_t id : gone) finish(id);
}

void Scheduler::clear() {
  tasks_.clear();
  started_.clear();
  waiting_.clear();
  in_flight_bytes_ = 0;
  in_flight_tasks_ = 0;
  hurried_bytes_ = 0;
}

}  // namespace byteps
