#include "worker_lane.h"

#include <algorithm>
#include <array>
#include <optional>

namespace byteps {
namespace {

constexpr std::chrono::milliseconds kQuiet{2};  // without sending: this is no mere pause

}  // namespace

// What a server sends: results go straight into the caller's memory.
class WorkerLane::ServerPeer final : public Lane::Peer {
 public:
  ServerPeer(WorkerLane& lane, uint32_t server, std::unique_ptr<Link> link)
      : Peer(lane, server, std::move(link)), worker_(lane) {}

  bool on_header(const Header& header) override {
    if (header.type == FrameType::push) return false;
    if (header.length == 0) return true;
    Active* active = worker_.find(header);
    if (active == nullptr) return true;  // given up meanwhile: the payload is discarded
    if (header.rank != worker_.rank_ || active->transfer->destination == nullptr) return false;
    if (header.offset + uint64_t{header.length} > active->part.bytes) return false;
    ++active->uses;  // keeps the memory ours until the frame is complete
    receiving_ = key(header.tensor, header.partition);
    return true;
  }

  std::span<std::byte> destination(const Header& header, size_t done) override {
    const size_t left = header.length - done;
    if (!receiving_) return {discarded_.data(), std::min(left, discarded_.size())};
    const Active& active = worker_.active_.at(*receiving_);
    return {active.transfer->destination + active.part.offset + header.offset + done, left};
  }

  void on_filled(const Header&, size_t, size_t) override {}

  void on_frame(const Header& header) override {
    worker_.counters_.frames_received.fetch_add(1, std::memory_order_relaxed);
    if (Active* active = worker_.find(header)) worker_.on_answer(header, *active);
    if (receiving_) {
      const uint64_t id = *receiving_;
      receiving_.reset();
      worker_.release(id);
    }
  }

 private:
  WorkerLane& worker_;
  std::optional<uint64_t> receiving_;
  std::array<std::byte, kCellBytes> discarded_;
};

void WorkerLane::connect(uint32_t server, std::unique_ptr<Link> link) {
  add_peer(std::make_unique<ServerPeer>(*this, server, std::move(link)));
}

void WorkerLane::begin(const std::shared_ptr<Transfer>& transfer, const std::vector<PartRef>& parts) {
  for (const PartRef& part : parts) {
    const Peer* server = peer(part.server);
    if (failure_ != Status::pending) {
      transfer->resolve(failure_, failed_peer_);
      continue;
    }
    if (server == nullptr) {  // never connected
      transfer->resolve(Status::link_lost, part.server);
      continue;
    }
    const uint64_t id = key(transfer->tensor, part.index);
    const auto& active = active_.insert_or_assign(id, Active{transfer, part}).first->second;
    if (events_.on()) record(EventKind::queued, active, transfer->submitted);
    scheduler_.submit(
        {id, transfer->priority, part.server, transfer->source != nullptr ? part.bytes : 0, part.bytes});
  }
}

// Servers want to know who will send nothing for now: others need not wait for it.
Clock::time_point WorkerLane::after_events() {
  const auto now = Clock::now();
  if (now < look_at_) return look_at_;
  if (!is_quiet() || (scheduler_.has_unsent() && !scheduler_.is_starved())) return look_at_ = now + kQuiet;
  Header idle;
  idle.type = FrameType::heartbeat;
  idle.epoch = options_.epoch;
  idle.flags = kFlagIdle;
  send_all(idle);
  return look_at_ = Clock::time_point::max();
}

void WorkerLane::write_grant(const Grant& grant) {
  look_at_ = Clock::now() + kQuiet;
  Active& active = active_.at(grant.id);
  if (grant.offset == 0) {
    active.begun = Clock::now();
    active.holds_credit = true;
    credit_.begin(active.part.bytes, scheduler_.in_flight_bytes() <= active.part.bytes, active.begun);
    if (events_.on()) record(EventKind::pushing, active, active.begun);
  }
  if (events_.on() && grant.last) record(EventKind::pushed, active, Clock::now());
  const Transfer& transfer = *active.transfer;
  Header header;
  header.type = FrameType::push;
  header.epoch = options_.epoch;
  header.tensor = transfer.tensor;
  header.partition = active.part.index;
  header.round = transfer.round;
  header.rank = rank_;
  header.priority = transfer.priority;
  header.flags = transfer.destination == nullptr ? kFlagNoResult : 0;
  Peer& server = *peer(grant.link);
  if (transfer.source == nullptr) {
    header.flags |= kFlagEmpty;
    send(server, header);
    return;
  }
  header.offset = static_cast<uint32_t>(grant.offset);
  header.length = static_cast<uint32_t>(grant.bytes);
  const iovec payload{const_cast<std::byte*>(transfer.source + active.part.offset + grant.offset),
                      grant.bytes};
  ++active.uses;
  const std::shared_ptr<void> until_written(nullptr, [this, id = grant.id](void*) { release(id); });
  send(server, header, {&payload, 1}, until_written);
}

void WorkerLane::record(EventKind kind, const Active& active, Clock::time_point at) {
  const Transfer& transfer = *active.transfer;
  events_.record({nanoseconds(at), kind, transfer.tensor, active.part.index, transfer.round,
                  active.part.server, static_cast<uint32_t>(active.part.bytes)});
}

WorkerLane::Active* WorkerLane::find(const Header& header) {
  if (header.type == FrameType::heartbeat || header.epoch != options_.epoch) return nullptr;
  const auto at = active_.find(key(header.tensor, header.partition));
  return at != active_.end() && at->second.transfer->round == header.round ? &at->second : nullptr;
}

void WorkerLane::on_answer(const Header& header, Active& active) {
  const uint64_t id = key(header.tensor, header.partition);
  if (header.type == FrameType::parked && (header.flags & kFlagWanted) != 0) {
    scheduler_.hurry(id);
  } else if (header.type == FrameType::parked) {
    scheduler_.park(id);
    return_credit(active);
  } else if (header.type == FrameType::failed) {
    settle(id, static_cast<Status>(header.code), header.rank);
  } else if (header.type == FrameType::result) {
    active.received += header.length;
    const bool complete = (header.flags & kFlagDone) != 0 || active.received >= active.part.bytes;
    if (!complete) return;
    return_credit(active);
    if (events_.on()) record(EventKind::returned, active, Clock::now());
    settle(id, Status::ok, 0);
  }
}

void WorkerLane::set_credit(uint64_t bytes) {
  automatic_credit_ = bytes == 0;
  scheduler_.set_credit(automatic_credit_ ? credit_.bytes() : bytes);
}

// The time for which it was held, and the rate at which credit comes back, tell how much is needed.
void WorkerLane::return_credit(Active& active) {
  if (!active.holds_credit) return;
  active.holds_credit = false;
  const auto now = Clock::now();
  credit_.give_back(active.part.bytes, now - active.begun, now);
  if (automatic_credit_) scheduler_.set_credit(credit_.bytes());
}

// Takes the partition out of the schedule and resolves it as soon as nothing uses the caller's memory.
void WorkerLane::settle(uint64_t id, Status outcome, uint32_t peer) {
  Active& active = active_.at(id);
  scheduler_.finish(id);
  if (active.outcome == Status::pending) {
    active.outcome = outcome;
    active.failed_peer = peer;
  }
  if (active.uses == 0) resolve(id);
}

void WorkerLane::release(uint64_t id) {
  const auto at = active_.find(id);
  if (at == active_.end()) return;
  --at->second.uses;
  if (at->second.uses == 0 && at->second.outcome != Status::pending) resolve(id);
}

void WorkerLane::resolve(uint64_t id) {
  const auto node = active_.extract(id);
  const Active& active = node.mapped();
  active.transfer->resolve(active.outcome, active.failed_peer);
}

void WorkerLane::retract(uint32_t tensor) {
  std::vector<uint64_t> ids;
  for (const auto& [id, active] : active_) {
    if (active.transfer->tensor == tensor) ids.push_back(id);
  }
  for (const uint64_t id : ids) settle(id, Status::retracted, 0);
}

void WorkerLane::fail(Status status, uint32_t peer) {
  if (failure_ != Status::pending) return;
  failure_ = status;
  failed_peer_ = peer;
  close_all();  // from here on nothing uses the callers' memory
  scheduler_.clear();
  auto active = std::move(active_);
  active_.clear();
  for (auto& [id, part] : active) part.transfer->resolve(status, peer);
}

// One broken link ends it on all lanes: what the others have in flight may wait for ranks that wait for this
// link.
void WorkerLane::on_lost(Peer& peer) {
  fail(Status::link_lost, peer.number());
  worker_.fail(Status::link_lost, peer.number());
}

}  // namespace byteps
