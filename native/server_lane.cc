#include "server_lane.h"

#include <algorithm>
#include <array>

namespace byteps {
namespace {

constexpr std::chrono::milliseconds kLook{2};        // between looks at who waits for others
constexpr std::chrono::milliseconds kPatience{100};  // with ranks that send, but something else

}  // namespace

// What a worker sends: cells go into the sum of their round.
class ServerLane::WorkerPeer final : public Lane::Peer {
 public:
  WorkerPeer(ServerLane& lane, uint32_t rank, std::unique_ptr<Link> link)
      : Peer(lane, rank, std::move(link)), server_(lane) {}

  bool on_header(const Header& header) override {
    open_round_.reset();
    if (header.type == FrameType::heartbeat) {
      if ((header.flags & kFlagIdle) != 0) server_.falls_idle(number());
      return true;
    }
    if (header.type != FrameType::push || header.rank != number()) return false;
    server_.progress_[number()].idle = false;
    return server_.judge(header, open_round_) != Verdict::refuse;
  }

  std::span<std::byte> destination(const Header& header, size_t done) override {
    const size_t left = std::min<size_t>(header.length - done, kCellBytes);
    if (!open_round_) return std::span(scratch_).first(left);
    const auto destination = open_round_->sum.destination(number(), header.offset + done, scratch_);
    in_scratch_ = destination.data() == scratch_.data();
    return destination;
  }

  // Straight from the link's memory into the sum, unless they are the first and are to become the sum.
  bool use(const Header& header, size_t done, std::span<const std::byte> bytes) override {
    if (open_round_ && !in_scratch_) return false;
    if (open_round_) open_round_->sum.add_cell(number(), header.offset + done, bytes);
    return true;
  }

  void on_filled(const Header& header, size_t done, size_t) override {
    if (open_round_) open_round_->sum.add_cell(number(), header.offset + done, scratch_);
  }

  void on_frame(const Header& header) override {
    server_.counters_.frames_received.fetch_add(1, std::memory_order_relaxed);
    // Kept alive until here, even if the round was given up meanwhile: its memory was being written to.
    const auto round = std::move(open_round_);
    if (!round) return;
    if ((header.flags & kFlagEmpty) != 0) round->sum.add_nothing(number());
    if ((header.flags & kFlagNoResult) != 0) round->no_result[number()] = true;
    round->priority = std::max(round->priority, header.priority);
    if (round->sum.is_complete(number())) server_.contributed(header);
  }

 private:
  ServerLane& server_;
  std::shared_ptr<Open> open_round_;  // of the frame being received; null: its payload is discarded
  bool in_scratch_ = false;           // what is being received goes there, not into the sum
  alignas(64) std::array<std::byte, kCellBytes> scratch_;
};

void ServerLane::connect(uint32_t rank, std::unique_ptr<Link> link) {
  add_peer(std::make_unique<WorkerPeer>(*this, rank, std::move(link)));
}

void ServerLane::install(const TensorSpec& tensor, const PartitionSpec& partition) {
  const uint64_t id = key(tensor.id, partition.index);
  std::vector<bool> members(tensor.members.empty() ? 0 : workers_);
  for (const uint32_t rank : tensor.members) members[rank] = true;
  std::vector<bool> contributors = members;
  if (!partition.owners.empty()) {
    contributors.assign(workers_, false);
    for (uint32_t rank = 0; rank < workers_; ++rank) {
      if (members.empty() || members[rank]) contributors[partition.owners[rank]] = true;
    }
  }
  partitions_.try_emplace(
      id, Partition{tensor.id, partition.index, partition.bytes, tensor.arithmetic, std::move(members),
                    partition.owners, std::move(contributors), tensor.divisor, 0, nullptr});
  by_tensor_[tensor.id].push_back(partition.index);
  highest_tensor_ = std::max(highest_tensor_, tensor.id);
}

void ServerLane::retire(uint32_t tensor) {
  const auto at = by_tensor_.find(tensor);
  if (at == by_tensor_.end()) return;
  for (const uint32_t index : at->second) partitions_.erase(key(tensor, index));
  by_tensor_.erase(at);
}

// Decides over a push before its payload is received. On `accept`, `open` is the round it belongs to.
ServerLane::Verdict ServerLane::judge(const Header& header, std::shared_ptr<Open>& open) {
  if (header.epoch != options_.epoch) return Verdict::discard;
  const auto at = partitions_.find(key(header.tensor, header.partition));
  if (at == partitions_.end()) return header.tensor <= highest_tensor_ ? Verdict::discard : Verdict::refuse;
  Partition& partition = at->second;
  if (!partition.comes_from(header.rank)) return Verdict::refuse;
  const uint64_t end = header.offset + uint64_t{header.length};
  if (end > partition.bytes || (header.length % kCellBytes != 0 && end != partition.bytes))
    return Verdict::refuse;
  if (header.round <= partition.completed) return Verdict::discard;  // sent again
  if (const auto departed = lacks(partition)) {
    if (header.offset == 0) fail(partition, header.round, header.rank, *departed);
    return Verdict::discard;
  }
  if (header.round != partition.completed + 1) return Verdict::refuse;
  if (!partition.open) {
    partition.open = std::make_shared<Open>(partition.arithmetic, partition.bytes, workers_, deterministic_,
                                            partition.contributors, partition.divisor, pool_);
  }
  const Round& sum = partition.open->sum;
  if (sum.is_complete(header.rank)) return Verdict::discard;  // sent again
  if ((header.flags & kFlagEmpty) != 0 && sum.has_begun(header.rank)) return Verdict::refuse;
  open = partition.open;
  return Verdict::accept;
}

// A rank that has left although the round still needs its contribution: then it can never complete.
std::optional<uint32_t> ServerLane::lacks(const Partition& partition) const {
  const auto at = std::find_if(departed_.begin(), departed_.end(), [&](uint32_t rank) {
    return partition.is_of(rank) &&
           !(partition.open && partition.open->sum.is_complete(partition.owner_of(rank)));
  });
  return at != departed_.end() ? std::optional(*at) : std::nullopt;
}

void ServerLane::contributed(const Header& header) {
  const uint64_t id = key(header.tensor, header.partition);
  const auto at = partitions_.find(id);
  if (at == partitions_.end() || !at->second.open || header.round != at->second.completed + 1) return;
  progress_[header.rank] = {false, id, header.round};
  const bool complete = at->second.open->sum.is_complete();
  const auto now = Clock::now();
  if (events_.on()) {
    events_.record({nanoseconds(now), complete ? EventKind::summed : EventKind::arrived, header.tensor,
                    header.partition, header.round, header.rank, static_cast<uint32_t>(at->second.bytes)});
  }
  if (complete) {
    deliver(at->second);
  } else {
    if (parked_.empty()) look_at_ = now + kLook;
    parked_.push_back({id, header.round, header.rank, now});
  }
}

void ServerLane::deliver(Partition& partition) {
  const auto open = std::move(partition.open);
  const uint32_t round = ++partition.completed;
  const Sum sum = open->sum.result();
  for (uint32_t rank = 0; rank < workers_; ++rank) {
    const Peer* to = peer(rank);
    if (to == nullptr || !to->is_open() || !partition.comes_from(rank)) continue;
    Delivery delivery{header_for(partition, round, FrameType::result, rank), sum};
    delivery.header.priority = open->priority;
    if (open->no_result[rank]) delivery.header.flags = kFlagDone;
    const uint64_t bytes = open->no_result[rank] ? 0 : partition.bytes;
    const uint64_t id = next_delivery_++;
    deliveries_.emplace(id, std::move(delivery));
    scheduler_.submit({id, open->priority, rank, bytes, 0});
  }
}

void ServerLane::write_grant(const Grant& grant) {
  const auto at = deliveries_.find(grant.id);
  Header header = at->second.header;
  header.offset = static_cast<uint32_t>(grant.offset);
  header.length = static_cast<uint32_t>(grant.bytes);
  std::array<iovec, Outbox::kMaxPieces> pieces;
  const size_t count = grant.bytes == 0 ? 0 : at->second.sum.pieces(grant.offset, grant.bytes, pieces);
  send(*peer(grant.link), header, std::span(pieces).first(count), at->second.sum.data);
  if (!grant.last) return;
  scheduler_.finish(grant.id);
  deliveries_.erase(at);
}

Header ServerLane::header_for(const Partition& partition, uint32_t round, FrameType type,
                              uint32_t rank) const {
  Header header;
  header.type = type;
  header.epoch = options_.epoch;
  header.tensor = partition.tensor;
  header.partition = partition.index;
  header.round = round;
  header.rank = rank;
  return header;
}

// Tells `rank` that the round cannot complete because rank `departed` has left.
void ServerLane::fail(const Partition& partition, uint32_t round, uint32_t rank, uint32_t departed) {
  Peer* to = peer(rank);
  if (to == nullptr) return;
  Header header = header_for(partition, round, FrameType::failed, departed);
  header.code = static_cast<uint16_t>(Status::departed);
  send(*to, header);
}

void ServerLane::depart(uint32_t rank) {
  departed_.insert(rank);
  for (auto& [id, partition] : partitions_) {
    if (!partition.open || !lacks(partition)) continue;
    for (uint32_t other = 0; other < workers_; ++other) {
      if (partition.open->sum.has_begun(other)) fail(partition, partition.completed + 1, other, rank);
    }
    partition.open.reset();
  }
}

// Whoever waits only for others is told, so that it can use its credit for something else. Not while those
// others are sending: they will soon have caught up, and a rank that runs far ahead of them takes bandwidth
// that they need, here or from another job on its host, while the results wait for the last.
Clock::time_point ServerLane::after_events() {
  const auto now = Clock::now();
  if (!parked_.empty() && now >= look_at_) {
    std::erase_if(parked_, [&](const Parked& parked) { return tell_parked(parked, now); });
    look_at_ = now + kLook;
  }
  return parked_.empty() ? Clock::time_point::max() : look_at_;
}

void ServerLane::falls_idle(uint32_t rank) {
  progress_[rank].idle = true;
  look_at_ = Clock::now();
}

// False: not yet.
bool ServerLane::tell_parked(const Parked& parked, Clock::time_point now) {
  const auto at = partitions_.find(parked.key);
  Peer* to = peer(parked.rank);
  if (at == partitions_.end() || at->second.completed >= parked.round || to == nullptr) return true;
  if (at->second.open && now - parked.since < kPatience && are_catching_up(*at->second.open, parked.rank))
    return false;
  send(*to, header_for(at->second, parked.round, FrameType::parked, parked.rank));
  if (at->second.open && !at->second.open->asked_for) ask_for(at->second);
  return true;
}

// Tells those who are missing that others wait for them: ranks that get ready at different times would else
// choose differently what to send first, and for long nothing would be complete.
void ServerLane::ask_for(const Partition& partition) {
  partition.open->asked_for = true;
  for (uint32_t rank = 0; rank < workers_; ++rank) {
    if (partition.open->sum.is_complete(rank) || peer(rank) == nullptr) continue;
    Header header = header_for(partition, partition.completed + 1, FrameType::parked, rank);
    header.flags = kFlagWanted;
    send(*peer(rank), header);
  }
}

// Whether all whose contribution is missing are sending what this rank has sent before them.
bool ServerLane::are_catching_up(const Open& open, uint32_t with) const {
  for (uint32_t rank = 0; rank < workers_; ++rank) {
    if (open.sum.is_complete(rank)) continue;
    const Progress& last = progress_[rank];
    if (last.idle) return false;
    const auto at = partitions_.find(last.key);
    if (at == partitions_.end() || at->second.completed >= last.round) continue;
    if (!at->second.open || !at->second.open->sum.is_complete(with)) return false;
  }
  return true;
}

void ServerLane::on_lost(Peer& peer) {
  std::erase_if(deliveries_, [&](const auto& entry) { return entry.second.header.rank == peer.number(); });
}

void ServerLane::add_missing(uint32_t tensor, std::vector<Server::Missing>& out) const {
  const auto at = by_tensor_.find(tensor);
  if (at == by_tensor_.end()) return;
  const auto now = Clock::now();
  for (const uint32_t index : at->second) {
    const Partition& partition = partitions_.at(key(tensor, index));
    if (!partition.open) continue;
    for (uint32_t rank = 0; rank < workers_; ++rank) {
      const Peer* from = peer(rank);
      if (partition.open->sum.is_complete(rank)) continue;
      const auto known =
          std::find_if(out.begin(), out.end(), [&](const auto& entry) { return entry.rank == rank; });
      if (known != out.end()) continue;
      out.push_back(
          {rank, from == nullptr ? 0 : std::chrono::duration<double>(now - from->last_heard()).count()});
    }
  }
}

void ServerLane::add_open_rounds(std::vector<Server::OpenRound>& out) const {
  for (const auto& [id, partition] : partitions_) {
    if (!partition.open) continue;
    Server::OpenRound& entry = out.emplace_back();
    entry = {partition.tensor, partition.index, partition.completed + 1, partition.bytes, {}};
    for (uint32_t rank = 0; rank < workers_; ++rank) {
      if (!partition.open->sum.is_complete(rank)) entry.missing.push_back(rank);
    }
  }
}

}  // namespace byteps
