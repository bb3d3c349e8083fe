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
    if (header.type == FrameType::push || header.type == FrameType::local) return false;
    if (header.length == 0) return true;
    Active* active = worker_.find(header);
    if (active == nullptr) return true;  // given up meanwhile: the payload is discarded
    if (header.rank != worker_.rank_ || active->destination == nullptr) return false;
    if (header.offset + uint64_t{header.length} > active->part.bytes) return false;
    ++active->uses;  // keeps the memory ours until the frame is complete
    receiving_ = key(header.tensor, header.partition);
    return true;
  }

  std::span<std::byte> destination(const Header& header, size_t done) override {
    const size_t left = header.length - done;
    if (!receiving_) return {discarded_.data(), std::min(left, discarded_.size())};
    const Active& active = worker_.active_.at(*receiving_);
    return {active.destination + header.offset + done, left};
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

// A rank of the same node. It sends no payload: that is in shared memory.
class WorkerLane::Neighbour final : public Lane::Peer {
 public:
  Neighbour(WorkerLane& lane, uint32_t number, std::unique_ptr<Link> link)
      : Peer(lane, number, std::move(link)), worker_(lane) {}

  bool on_header(const Header& header) override {
    if (header.type == FrameType::heartbeat || header.epoch != worker_.options_.epoch) return true;
    worker_.counters_.frames_received.fetch_add(1, std::memory_order_relaxed);
    const uint32_t place = number() - worker_.first_neighbour_;
    return header.type == FrameType::local && worker_.node_->on_frame(place, header);
  }
  std::span<std::byte> destination(const Header&, size_t) override { return {}; }
  void on_filled(const Header&, size_t, size_t) override {}
  void on_frame(const Header&) override {}

  bool is_broken() const { return broken_; }

 private:
  WorkerLane& worker_;
};

void WorkerLane::connect(uint32_t server, std::unique_ptr<Link> link) {
  add_peer(std::make_unique<ServerPeer>(*this, server, std::move(link)));
}

void WorkerLane::join_node(uint32_t number, std::shared_ptr<const Node> node, uint32_t first_neighbour) {
  first_neighbour_ = first_neighbour;
  node_.emplace(*this, number, std::move(node));
}

void WorkerLane::add_neighbour(uint32_t place, std::unique_ptr<Link> link) {
  if (node_ && place < node_->node().size())
    add_peer(std::make_unique<Neighbour>(*this, first_neighbour_ + place, std::move(link)));
}

void WorkerLane::begin(const std::shared_ptr<Transfer>& transfer, const std::vector<PartRef>& parts,
                       const std::shared_ptr<const NodePlan>& plan) {
  for (const PartRef& part : parts) {
    if (plan && failure_ != Status::pending) {
      transfer->resolve(failure_, failed_peer_);
    } else if (plan) {
      node_->begin(transfer, part, plan);
    } else {
      const std::byte* source = transfer->source == nullptr ? nullptr : transfer->source + part.offset;
      std::byte* into = transfer->destination == nullptr ? nullptr : transfer->destination + part.offset;
      push({transfer, part, source, into, transfer->priority, {}});
    }
  }
}

void WorkerLane::push(Push push) {
  const uint64_t id = key(push.transfer->tensor, push.part.index);
  const Peer* server = peer(push.part.server);
  if (failure_ != Status::pending || server == nullptr) {  // null: never connected
    const bool failed = failure_ != Status::pending;
    return Active(push).resolve(failed ? failure_ : Status::link_lost,
                                failed ? failed_peer_ : push.part.server);
  }
  const uint64_t bytes = push.part.bytes;
  scheduler_.submit({id, push.priority, push.part.server, push.source != nullptr ? bytes : 0, bytes});
  record(EventKind::queued, *push.transfer, push.part, push.transfer->submitted);
  active_.insert_or_assign(id, Active(std::move(push)));
}

void WorkerLane::tell(uint32_t place, Header header) {
  header.epoch = options_.epoch;
  if (Peer* to = peer(first_neighbour_ + place)) send(*to, header);
}

void WorkerLane::flush_neighbours() {
  for (uint32_t place = 0; place < node_->node().size(); ++place) {
    if (Peer* to = peer(first_neighbour_ + place)) flush_early(*to);
  }
}

// Servers want to know who will send nothing for now: others need not wait for it.
Clock::time_point WorkerLane::after_events() {
  const auto now = Clock::now();
  if (now < look_at_) return look_at_;
  if (may_go_on(now)) return look_at_ = now + kQuiet;
  Header idle;
  idle.type = FrameType::heartbeat;
  idle.epoch = options_.epoch;
  idle.flags = kFlagIdle;
  send_all(idle);
  return look_at_ = Clock::time_point::max();
}

// Whether it still sends, or soon will. Who lacks credit only waits for results: these come in turns that are
// longer than a mere pause where links are slow, and only when none has come for as long as all of the credit
// takes to come back do ranks wait for each other crosswise.
bool WorkerLane::may_go_on(Clock::time_point now) {
  if (!is_quiet()) return true;
  if (!scheduler_.has_unsent()) return false;
  return !scheduler_.is_starved() || now < granted_ + credit_.turn(scheduler_.credit_bytes());
}

void WorkerLane::after_sending() {
  if (node_) node_->resolve_finished();
}

void WorkerLane::write_grant(const Grant& grant) {
  const auto now = Clock::now();
  granted_ = now;
  look_at_ = now + kQuiet;
  Active& active = active_.at(grant.id);
  if (grant.offset == 0) {
    active.begun = now;
    active.holds_credit = true;
    credit_.begin(active.part.bytes, scheduler_.in_flight_bytes() <= active.part.bytes, active.begun);
    record(EventKind::pushing, *active.transfer, active.part, active.begun);
  }
  if (grant.last) record(EventKind::pushed, *active.transfer, active.part, now);
  const Transfer& transfer = *active.transfer;
  Header header;
  header.type = FrameType::push;
  header.epoch = options_.epoch;
  header.tensor = transfer.tensor;
  header.partition = active.part.index;
  header.round = transfer.round;
  header.rank = rank_;
  header.priority = active.priority;
  header.flags = active.destination == nullptr ? kFlagNoResult : 0;
  Peer& server = *peer(grant.link);
  if (active.source == nullptr) {
    header.flags |= kFlagEmpty;
    send(server, header);
    return;
  }
  header.offset = static_cast<uint32_t>(grant.offset);
  header.length = static_cast<uint32_t>(grant.bytes);
  const iovec payload{const_cast<std::byte*>(active.source + grant.offset), grant.bytes};
  ++active.uses;
  const std::shared_ptr<void> until_written(nullptr, [this, id = grant.id](void*) { release(id); });
  send(server, header, {&payload, 1}, until_written);
}

void WorkerLane::record(EventKind kind, const Transfer& transfer, const PartRef& part, Clock::time_point at) {
  if (!events_.on()) return;
  events_.record({nanoseconds(at), kind, transfer.tensor, part.index, transfer.round, part.server,
                  static_cast<uint32_t>(part.bytes)});
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
    return_credit(active, Clock::now());
  } else if (header.type == FrameType::failed) {
    settle(id, static_cast<Status>(header.code), header.rank);
  } else if (header.type == FrameType::result) {
    active.received += header.length;
    const bool complete = (header.flags & kFlagDone) != 0 || active.received >= active.part.bytes;
    if (!complete) return;
    const auto now = Clock::now();
    return_credit(active, now);
    record(EventKind::returned, *active.transfer, active.part, now);
    settle(id, Status::ok, 0);
  }
}

void WorkerLane::set_credit(uint64_t bytes) {
  automatic_credit_ = bytes == 0;
  scheduler_.set_credit(automatic_credit_ ? credit_.bytes() : bytes);
}

// The time for which it was held, and the rate at which credit comes back, tell how much is needed.
void WorkerLane::return_credit(Active& active, Clock::time_point now) {
  if (!active.holds_credit) return;
  active.holds_credit = false;
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
  active.resolve(active.outcome, active.failed_peer);
}

void WorkerLane::retract(uint32_t tensor) {
  std::vector<uint64_t> ids;
  for (const auto& [id, active] : active_) {
    if (active.transfer->tensor == tensor) ids.push_back(id);
  }
  for (const uint64_t id : ids) settle(id, Status::retracted, 0);
  if (node_) node_->retract(tensor);
}

void WorkerLane::depart(uint32_t rank) {
  if (!node_) return;
  const auto place = node_->node().place_of(rank);
  if (Peer* neighbour = place ? peer(first_neighbour_ + *place) : nullptr) read_all_from(*neighbour);
  node_->depart(rank);
}

void WorkerLane::add_missing(uint32_t tensor, std::set<uint32_t>& ranks) const {
  if (node_) node_->add_missing(tensor, ranks);
}

void WorkerLane::fail(Status status, uint32_t peer) {
  if (failure_ != Status::pending) return;
  failure_ = status;
  failed_peer_ = peer;
  if (status == Status::closed) flush_all();  // neighbours may not have been told yet of what is over here
  close_all();                                // from here on nothing uses the callers' memory
  scheduler_.clear();
  auto active = std::move(active_);
  active_.clear();
  for (auto& [id, part] : active) {
    if (!part.then) part.resolve(status, peer);
  }
  if (node_) node_->fail(status, peer);
}

// A neighbour that hangs up has left in order, or is lost: the coordinator says which. One broken link ends
// it on all lanes: what the others have in flight may wait for ranks that wait for this link.
void WorkerLane::on_lost(Peer& peer) {
  const auto* neighbour = dynamic_cast<const Neighbour*>(&peer);
  if (neighbour != nullptr && !neighbour->is_broken()) return;
  fail(Status::link_lost, peer.number());
  worker_.fail(Status::link_lost, peer.number());
}

}  // namespace byteps
