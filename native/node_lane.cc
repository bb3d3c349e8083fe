#include "node_lane.h"

#include <algorithm>
#include <cstring>

#include "worker_lane.h"

namespace byteps {
namespace {

constexpr uint64_t kTellBytes = 512 * 1024;  // copied or added: a tenth of a millisecond

}  // namespace

NodeLane::NodeLane(WorkerLane& lane, uint32_t number, std::shared_ptr<const Node> node)
    : lane_(lane), number_(number), node_(std::move(node)) {}

uint64_t NodeLane::piece_at(const PartRef& part, uint64_t offset) const {
  return std::min<uint64_t>(node_->piece_bytes, part.bytes - offset);
}

void NodeLane::tell(uint32_t place, LocalStep step, const Key& key, uint64_t offset, int32_t number,
                    uint32_t rank, uint16_t flags) {
  Header header;
  header.type = FrameType::local;
  header.tensor = key.tensor;
  header.partition = key.partition;
  header.round = key.round;
  header.rank = rank;
  header.offset = static_cast<uint32_t>(offset);
  header.priority = number;
  header.flags = flags;
  header.code = static_cast<uint16_t>(step);
  lane_.tell(place, header);
}

// Neighbours wait for what is told at the end of a turn: in a long one they are told earlier.
void NodeLane::moved(uint64_t bytes) {
  moved_ += bytes;
  if (moved_ < kTellBytes) return;
  moved_ = 0;
  lane_.flush_neighbours();
}

void NodeLane::note(EventKind kind, const Transfer& transfer, const PartRef& part) {
  if (lane_.events().on()) lane_.record(kind, transfer, part, Clock::now());
}

// Of what no neighbour takes part in.
void NodeLane::note_push(const Transfer& transfer, const PartRef& part) {
  note(EventKind::pushing, transfer, part);
  note(EventKind::pushed, transfer, part);
}

void NodeLane::begin(const std::shared_ptr<Transfer>& transfer, const PartRef& part,
                     const std::shared_ptr<const NodePlan>& plan) {
  const Key key{transfer->tensor, part.index, transfer->round};
  const bool gives = transfer->source != nullptr;
  const bool wants = transfer->destination != nullptr;
  const uint32_t owner = plan->owner(part.index);
  if (retracted_.contains(key.tensor)) return transfer->resolve(Status::retracted, 0);
  if (owner != node_->place) {
    if (has_departed(owner)) return transfer->resolve(Status::departed, node_->ranks[owner]);
    lane_.record(EventKind::queued, *transfer, part, transfer->submitted);
    const Guest& guest = guests_.insert_or_assign(key, Guest{transfer, part, plan, owner}).first->second;
    const int flags = (gives ? 0 : kFlagEmpty) | (wants ? 0 : kFlagNoResult);
    tell(owner, LocalStep::begun, key, 0, transfer->priority, 0, static_cast<uint16_t>(flags));
    for (const uint32_t rank : departed_) warn(key, guest, rank);
    if (!gives) note_push(*transfer, part);
    return;
  }
  if (const Failure* failure = failure_of(key)) return transfer->resolve(failure->status, failure->peer);
  Owned& owned = owned_.try_emplace(key, node_->size()).first->second;
  owned.transfer = transfer;
  owned.part = part;
  owned.plan = plan;
  arrive(key, owned, owner, {true, gives, wants}, transfer->priority);
}

void NodeLane::arrive(const Key& key, Owned& owned, uint32_t place, Arrival how, int32_t priority) {
  if (owned.arrivals[place].here) return;
  owned.arrivals[place] = how;
  owned.priority = std::max(owned.priority, priority);
  if (!owned.plan) return;
  const auto gone =
      std::find_if(departed_.begin(), departed_.end(), [&](uint32_t rank) { return lacks(owned, rank); });
  if (gone != departed_.end()) return fail_round(owned_.find(key), Status::departed, *gone);
  if (is_complete(owned)) all_are_here(key, owned);
}

bool NodeLane::is_complete(const Owned& owned) const {
  if (!owned.plan) return false;
  const auto& places = owned.plan->places;
  return std::all_of(places.begin(), places.end(), [&](uint32_t one) { return owned.arrivals[one].here; });
}

// Whether something is still to come from a rank. Of ranks elsewhere the servers know, once this node is
// complete; as long as it is not, those cannot have got the result, so they have left without.
bool NodeLane::lacks(const Owned& owned, uint32_t rank) const {
  if (!owned.plan || !owned.plan->is_for(rank)) return false;
  const auto place = node_->place_of(rank);
  if (!place) return !is_complete(owned);
  const Arrival& one = owned.arrivals[*place];
  return !one.here || (one.gives && owned.summed < owned.part.bytes);
}

bool NodeLane::anybody_wants(const Owned& owned) const {
  return std::any_of(owned.arrivals.begin(), owned.arrivals.end(), [](const auto& one) { return one.wants; });
}

std::vector<uint32_t> NodeLane::neighbours(const Owned& owned, bool Arrival::* how) const {
  std::vector<uint32_t> found;
  found.reserve(node_->size());
  for (uint32_t place = 0; place < node_->size(); ++place) {
    if (place != node_->place && owned.arrivals[place].*how && !has_departed(place)) found.push_back(place);
  }
  return found;
}

void NodeLane::all_are_here(const Key& key, Owned& owned) {
  owned.sequence = ++sequence_;
  const bool neighbours_give = !neighbours(owned, &Arrival::gives).empty();
  const bool gives = owned.arrivals[node_->place].gives;
  if (owned.transfer->destination != nullptr) {
    owned.sum = owned.transfer->destination + owned.part.offset;
  } else if (neighbours_give || gives || anybody_wants(owned)) {
    owned.own = make_buffer(owned.part.bytes);
    owned.sum = owned.own.get();
  }
  if (neighbours_give) {
    to_grant_.insert(turn(key, owned));
    advance();
  } else if (gives) {
    add_up(key, owned, std::nullopt, 0, owned.part.bytes);
    summed(key, owned);
  } else {
    if (!owned.plan->pushes && owned.sum != nullptr) std::memset(owned.sum, 0, owned.part.bytes);
    summed(key, owned);
  }
}

// Results first: they free memory and are waited for longest.
void NodeLane::advance() {
  while (true) {
    const bool is_result = !to_hand_out_.empty();
    const auto& queue = is_result ? to_hand_out_ : to_grant_;
    const auto slot = free_slot(is_result);
    if (queue.empty() || !slot) return;
    const Key key = std::get<Key>(*queue.begin());
    Owned& owned = owned_.at(key);
    is_result ? hand_out(key, owned, *slot) : grant(key, owned, *slot);
  }
}

std::optional<uint32_t> NodeLane::free_slot(bool for_result) const {
  for (uint32_t number = 0; number < slots_.size(); ++number) {
    const Slot& slot = slots_[number];
    if (slot.givers.empty() && !slot.is_full && (!for_result || slot.takers.empty())) return number;
  }
  return std::nullopt;
}

void NodeLane::grant(const Key& key, Owned& owned, uint32_t number) {
  Slot& slot = slots_[number];
  slot.key = key;
  slot.offset = owned.next;
  slot.givers = neighbours(owned, &Arrival::gives);
  for (const uint32_t place : slot.givers)
    tell(place, LocalStep::grant, key, owned.next, static_cast<int32_t>(number));
  owned.next += piece_at(owned.part, owned.next);
  if (owned.next == owned.part.bytes) to_grant_.erase(turn(key, owned));
}

void NodeLane::hand_out(const Key& key, Owned& owned, uint32_t slot) {
  const uint64_t bytes = piece_at(owned.part, owned.next);
  std::memcpy(own_area(slot), owned.sum + owned.next, bytes);
  slots_[slot].takers = neighbours(owned, &Arrival::wants);
  for (const uint32_t place : slots_[slot].takers)
    tell(place, LocalStep::result, key, owned.next, static_cast<int32_t>(slot));
  owned.next += bytes;
  if (owned.next < owned.part.bytes) return;
  to_hand_out_.erase(turn(key, owned));
  finish(owned_.find(key));
}

void NodeLane::answered(uint32_t from, uint32_t number, LocalStep step) {
  Slot& slot = slots_[number];
  auto& awaited = step == LocalStep::put ? slot.givers : slot.takers;
  if (std::erase(awaited, from) == 0 || !awaited.empty()) return;
  if (step == LocalStep::put) slot.is_full = true;
  look_at(number);
  advance();
}

// Adds up what lies in a slot once all of it is there, and the result before it has been taken.
void NodeLane::look_at(uint32_t number) {
  Slot& slot = slots_[number];
  if (!slot.is_full || !slot.takers.empty()) return;
  slot.is_full = false;
  const auto at = owned_.find(slot.key);
  if (at == owned_.end()) return;
  const Key key = slot.key;
  Owned& owned = at->second;
  const uint64_t bytes = piece_at(owned.part, slot.offset);
  add_up(key, owned, number, slot.offset, bytes);
  owned.summed += bytes;
  if (owned.summed == owned.part.bytes) summed(key, owned);
}

// Adds up a piece: what lies in the slot, if there is one, and this rank's own. Where the node has all there
// is, the result is handed out through the same slot at once.
void NodeLane::add_up(const Key& key, Owned& owned, std::optional<uint32_t> slot, uint64_t offset,
                      uint64_t bytes) {
  std::byte* const sum = owned.sum + offset;
  std::vector<const std::byte*> contributions;
  contributions.reserve(owned.plan->places.size());
  for (const uint32_t place : owned.plan->places) {
    if (!owned.arrivals[place].gives) continue;
    const bool is_own = place == node_->place;
    contributions.push_back(is_own ? owned.transfer->source + owned.part.offset + offset
                                   : area(node_->place, *slot, place));
  }
  std::vector<uint32_t> wanting;
  if (slot && !owned.plan->pushes) wanting = neighbours(owned, &Arrival::wants);
  std::byte* const also = wanting.empty() ? sum : own_area(*slot);
  sum_contributions(*owned.plan, std::move(contributions), sum, also, bytes);
  for (const uint32_t place : wanting)
    tell(place, LocalStep::result, key, offset, static_cast<int32_t>(*slot));
  if (!wanting.empty()) slots_[*slot].takers = std::move(wanting);
  moved(bytes);
}

void NodeLane::summed(const Key& key, Owned& owned) {
  if (!owned.plan->pushes) {
    lane_.record(EventKind::queued, *owned.transfer, owned.part, owned.transfer->submitted);
    note_push(*owned.transfer, owned.part);
    // What came through slots went out through them.
    if (owned.summed == owned.part.bytes) return finish(owned_.find(key));
    return give_out(key, owned);
  }
  const bool empty =
      std::none_of(owned.arrivals.begin(), owned.arrivals.end(), [](const auto& one) { return one.gives; });
  owned.pushing = true;
  lane_.push({owned.transfer, owned.part, empty ? nullptr : owned.sum,
              anybody_wants(owned) ? owned.sum : nullptr, owned.priority,
              [this, key](Status status, uint32_t peer) { pushed(key, status, peer); }});
}

void NodeLane::pushed(const Key& key, Status status, uint32_t peer) {
  const auto at = owned_.find(key);
  if (at == owned_.end()) return;
  at->second.pushing = false;
  if (status != Status::ok) return fail_round(at, status, peer);
  give_out(key, at->second);
}

void NodeLane::give_out(const Key& key, Owned& owned) {
  if (neighbours(owned, &Arrival::wants).empty()) return finish(owned_.find(key));
  owned.next = 0;
  to_hand_out_.insert(turn(key, owned));
  advance();
}

void NodeLane::finish(OwnedMap::iterator at) {
  const auto& [key, owned] = *at;
  for (uint32_t place = 0; place < node_->size(); ++place) {
    const Arrival& one = owned.arrivals[place];
    if (place != node_->place && one.here && !one.wants) tell(place, LocalStep::done, key);
  }
  if (!owned.plan->pushes) note(EventKind::returned, *owned.transfer, owned.part);
  finished_.push_back(owned.transfer);
  owned_.erase(at);
}

// Once the neighbours have been told: whoever has its result may leave, and say so to all, at once.
void NodeLane::resolve_finished() {
  for (const auto& transfer : std::exchange(finished_, {})) transfer->resolve(Status::ok, 0);
}

void NodeLane::fail_round(OwnedMap::iterator at, Status status, uint32_t peer) {
  const auto& [key, owned] = *at;
  for (uint32_t place = 0; place < node_->size(); ++place) {
    if (place != node_->place && owned.arrivals[place].here)
      tell(place, LocalStep::failed, key, 0, static_cast<int32_t>(status), peer);
  }
  if (owned.transfer) owned.transfer->resolve(status, peer);
  failures_.insert_or_assign({key.tensor, key.partition}, Failure{key.round, status, peer});
  to_grant_.erase(turn(key, owned));
  to_hand_out_.erase(turn(key, owned));
  owned_.erase(at);
}

const NodeLane::Failure* NodeLane::failure_of(const Key& key) const {
  const auto at = failures_.find({key.tensor, key.partition});
  return at != failures_.end() && at->second.round == key.round ? &at->second : nullptr;
}

bool NodeLane::on_frame(uint32_t from, const Header& header) {
  const auto step = static_cast<LocalStep>(header.code);
  const bool names_slot = step >= LocalStep::grant && step <= LocalStep::taken;
  if (names_slot && (header.priority < 0 || header.priority >= static_cast<int32_t>(Node::kSlots)))
    return false;
  if (step == LocalStep::begun) {
    on_begun(from, header);
    return true;
  }
  if (step == LocalStep::put || step == LocalStep::taken) {
    answered(from, static_cast<uint32_t>(header.priority), step);
    return true;
  }
  return on_guest_frame(from, step, header);
}

void NodeLane::on_begun(uint32_t from, const Header& header) {
  const Key key = key_of(header);
  if (retracted_.contains(key.tensor)) return;
  if (const Failure* failure = failure_of(key))
    return tell(from, LocalStep::failed, key, 0, static_cast<int32_t>(failure->status), failure->peer);
  Owned& owned = owned_.try_emplace(key, node_->size()).first->second;
  const Arrival how{true, (header.flags & kFlagEmpty) == 0, (header.flags & kFlagNoResult) == 0};
  arrive(key, owned, from, how, header.priority);
}

void NodeLane::retract(uint32_t tensor) {
  retracted_.insert(tensor);
  for (auto at = guests_.begin(); at != guests_.end();) {
    const auto one = at++;
    if (one->first.tensor == tensor) end(one, Status::retracted, 0);
  }
  for (auto at = owned_.begin(); at != owned_.end();) {
    const auto one = at++;
    // What the lane is pushing comes back from there.
    if (one->first.tensor == tensor && !one->second.pushing) fail_round(one, Status::retracted, 0);
  }
}

void NodeLane::depart(uint32_t rank) {
  if (!departed_.insert(rank).second) return;
  const auto place = node_->place_of(rank);
  for (auto at = guests_.begin(); at != guests_.end();) {
    const auto one = at++;
    if (place && one->second.owner == *place) {
      end(one, Status::departed, rank);
    } else {
      warn(one->first, one->second, rank);
    }
  }
  for (auto at = owned_.begin(); at != owned_.end();) {
    const auto one = at++;
    if (lacks(one->second, rank)) fail_round(one, Status::departed, rank);
  }
  if (!place) return;
  for (uint32_t number = 0; number < slots_.size(); ++number) {
    std::erase(slots_[number].givers, *place);
    std::erase(slots_[number].takers, *place);
    look_at(number);
  }
  advance();
}

void NodeLane::fail(Status status, uint32_t peer) {
  resolve_finished();
  for (auto& [key, guest] : std::exchange(guests_, GuestMap{})) guest.transfer->resolve(status, peer);
  for (auto& [key, owned] : std::exchange(owned_, OwnedMap{})) {
    if (owned.transfer) owned.transfer->resolve(status, peer);
  }
  to_grant_.clear();
  to_hand_out_.clear();
}

void NodeLane::add_missing(uint32_t tensor, std::set<uint32_t>& ranks) const {
  for (const auto& [key, owned] : owned_) {
    if (key.tensor != tensor) continue;
    const bool known = owned.plan != nullptr;
    for (uint32_t place = 0; place < node_->size(); ++place) {
      if (!owned.arrivals[place].here && (known ? owned.plan->has(place) : place == node_->place))
        ranks.insert(node_->ranks[place]);
    }
  }
}

}  // namespace byteps
