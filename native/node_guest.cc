// The side of a NodeLane that gives to neighbours and takes from them.
#include <cstring>

#include "node_lane.h"
#include "stream_copy.h"
#include "worker_lane.h"

namespace byteps {
namespace {

constexpr uint64_t kLargeBytes = 1024 * 1024;

}  // namespace

bool NodeLane::on_guest_frame(uint32_t from, LocalStep step, const Header& header) {
  const Key key = key_of(header);
  const auto own = owned_.find(key);
  if (step == LocalStep::failed && own != owned_.end()) {
    if (!is_complete(own->second)) fail_round(own, Status::departed, header.rank);
    return true;
  }
  const auto at = guests_.find(key);
  const bool known = at != guests_.end() && at->second.owner == from;
  if (known && header.offset >= at->second.part.bytes) return false;
  const auto status = static_cast<Status>(header.priority);
  if (known && step == LocalStep::failed && (status < Status::link_lost || status > Status::closed))
    return false;
  if (step == LocalStep::grant) {
    put(key, known ? &at->second : nullptr, from, header);
  } else if (step == LocalStep::result) {
    take(key, known ? at : guests_.end(), from, header);
  } else if (known && step == LocalStep::done) {
    end(at, Status::ok, 0);
  } else if (known) {
    end(at, status, header.rank);
  }
  return true;
}

// The owner may not know of the tensor yet, so not whose it is.
void NodeLane::warn(const Key& key, const Guest& guest, uint32_t rank) {
  if (guest.plan->is_for(rank)) tell(guest.owner, LocalStep::failed, key, 0, 0, rank);
}

// The answer is due even where this rank has given up the round: the owner waits for it.
void NodeLane::put(const Key& key, const Guest* guest, uint32_t owner, const Header& header) {
  const auto slot = static_cast<uint32_t>(header.priority);
  uint64_t bytes = 0;
  if (guest != nullptr && guest->transfer->source != nullptr) {
    const PartRef& part = guest->part;
    bytes = piece_at(part, header.offset);
    if (header.offset == 0) note(EventKind::pushing, *guest->transfer, part);
    std::memcpy(area(owner, slot, node_->place), guest->transfer->source + part.offset + header.offset,
                bytes);
    if (header.offset + bytes == part.bytes) note(EventKind::pushed, *guest->transfer, part);
  }
  tell(owner, LocalStep::put, key, header.offset, header.priority);
  moved(bytes);
}

void NodeLane::take(const Key& key, GuestMap::iterator at, uint32_t owner, const Header& header) {
  const auto slot = static_cast<uint32_t>(header.priority);
  tell(owner, LocalStep::taken, key, header.offset, header.priority);
  if (at == guests_.end()) return;
  Guest& guest = at->second;
  if (guest.transfer->destination == nullptr) return;
  const uint64_t bytes = piece_at(guest.part, header.offset);
  std::byte* const to = guest.transfer->destination + guest.part.offset + header.offset;
  const std::byte* const from = area(owner, slot, owner);
  // What is so large has left the nearer caches again, and would drive the slots out of them.
  guest.part.bytes >= kLargeBytes ? stream_copy(to, from, bytes)
                                  : static_cast<void>(std::memcpy(to, from, bytes));
  moved(bytes);
  guest.received += bytes;
  if (guest.received >= guest.part.bytes) end(at, Status::ok, 0);
}

void NodeLane::end(GuestMap::iterator at, Status status, uint32_t peer) {
  const Guest& guest = at->second;
  if (status == Status::ok) note(EventKind::returned, *guest.transfer, guest.part);
  guest.transfer->resolve(status, peer);
  guests_.erase(at);
}

}  // namespace byteps
