#include "lane.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>

namespace byteps {
namespace {

constexpr size_t kReadBytes = 1024 * 1024;  // per peer and wake-up, so that sending gets its turn
constexpr std::chrono::minutes kMaxWait{1};
constexpr std::chrono::microseconds kDeparture{500};  // half of what may be in the host
constexpr size_t kFlushBytes = 512 * 1024;            // queued for one peer before a system call is due

Clock::duration duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

// The coordinator sends nothing on a beacon, so whatever arrives breaks the protocol.
class Lane::Beacon final : public Lane::Peer {
 public:
  using Peer::Peer;
  bool on_header(const Header&) override { return false; }
  std::span<std::byte> destination(const Header&, size_t) override { return {}; }
  void on_filled(const Header&, size_t, size_t) override {}
  void on_frame(const Header&) override {}
};

Lane::Peer::Peer(Lane& lane, uint32_t number, std::unique_ptr<Link> link)
    : lane_(lane),
      number_(number),
      link_(std::move(link)),
      last_heard_(Clock::now()),
      last_sent_(last_heard_) {}

void Lane::start() {
  if (thread_.joinable()) return;
  next_beat_ = Clock::now() + duration(options_.heartbeat_s);
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "byteps-io");
}

void Lane::stop(double drain_s) {
  const std::lock_guard lock(stop_mutex_);
  if (!thread_.joinable()) return;
  const auto by = Clock::now() + duration(drain_s);
  post([this, by] { stop_by_ = by; });
  thread_.join();
}

void Lane::abandon() {
  if (thread_.joinable()) thread_.detach();
  loop_.abandon();
  peers_.push_back(std::move(beacon_));
  for (auto& peer : peers_) {
    if (peer && peer->open_) peer->link_->abandon();
    // Never destroyed: what its outbox and link refer to is shared with the parent, or locked for good.
    [[maybe_unused]] Peer* leaked = peer.release();
  }
}

void Lane::run() {
  sigset_t signals;  // are for the program's own threads
  sigfillset(&signals);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  while (turn(true)) {
  }
  close_all();
}

bool Lane::turn(bool may_wait) {
  const auto wanted = after_events();
  const bool more = pump();
  after_sending();
  const auto now = Clock::now();
  if (stop_by_ && (drained() || now >= *stop_by_)) return false;
  if (now >= next_beat_) beat(now);
  // What the budget stopped is looked at again soon.
  const auto longest = may_wait ? longest_wait(more, wanted) : std::chrono::microseconds::zero();
  loop_.run_once(longest, more ? 0 : scheduler_.room_bytes());
  return true;
}

// Nothing tells that bytes have left the host's queue, so that is looked for.
std::chrono::microseconds Lane::longest_wait(bool more, Clock::time_point wanted) const {
  using std::chrono::microseconds;
  if (more) return pending_bytes() < egress_.budget_bytes() ? microseconds::zero() : kDeparture;
  const auto due = std::min(stop_by_ ? std::min(*stop_by_, next_beat_) : next_beat_, wanted);
  const auto left = std::chrono::ceil<microseconds>(due - Clock::now());
  return std::clamp<microseconds>(left, microseconds::zero(), kMaxWait);
}

bool Lane::drained() const {
  return !scheduler_.has_unsent() && std::all_of(peers_.begin(), peers_.end(), [](const auto& peer) {
    return !peer || !peer->open_ || (peer->outbox_.empty() && peer->link_->in_use() == 0);
  });
}

void Lane::add_peer(std::unique_ptr<Peer> peer) {
  if (peers_.size() <= peer->number_) peers_.resize(size_t{peer->number_} + 1);
  if (peers_[peer->number_]) return;  // never replaced: an event for it may be on its way
  Peer& added = *peer;
  peers_[peer->number_] = std::move(peer);
  loop_.watch(*added.link_, added);
}

void Lane::add_beacon(std::unique_ptr<Link> link) {
  // std::function must be copyable, so the link travels in a shared holder.
  auto holder = std::make_shared<std::unique_ptr<Link>>(std::move(link));
  post([this, holder] {
    if (beacon_) return;
    beacon_ = std::make_unique<Beacon>(*this, 0, std::move(*holder));
    loop_.watch(*beacon_->link_, *beacon_);
  });
}

void Lane::close_peer(Peer& peer) {
  if (!peer.open_) return;
  peer.open_ = false;
  peer.blocked_ = false;
  loop_.unwatch(*peer.link_);
  queued_bytes_ -= peer.outbox_.queued_bytes();
  in_host_bytes_ -= peer.in_host_bytes_;
  held_bytes_ -= peer.held_bytes_;
  peer.in_host_bytes_ = peer.held_bytes_ = 0;
  peer.link_.reset();  // before the memory that it may use is let go of
  peer.outbox_.clear();
  if (&peer != beacon_.get()) scheduler_.drop_link(peer.number_);
}

void Lane::close_all() {
  for (auto& peer : peers_) {
    if (peer) close_peer(*peer);
  }
  if (beacon_) close_peer(*beacon_);
}

void Lane::lose(Peer& peer) {
  if (!peer.open_) return;
  close_peer(peer);
  if (&peer != beacon_.get()) on_lost(peer);
}

void Lane::send(Peer& peer, const Header& header, std::span<const iovec> payload,
                std::shared_ptr<void> owner) {
  if (!peer.open_) return;
  const size_t before = peer.outbox_.queued_bytes();
  peer.outbox_.push(header, payload, std::move(owner));
  queued_bytes_ += peer.outbox_.queued_bytes() - before;
  counters_.frames_sent.fetch_add(1, std::memory_order_relaxed);
}

void Lane::send_all(const Header& header) {
  for (auto& peer : peers_) {
    if (peer) send(*peer, header);
  }
}

bool Lane::is_quiet() {
  return std::all_of(peers_.begin(), peers_.end(), [](const auto& peer) {
    return !peer || !peer->open_ || (peer->outbox_.empty() && peer->link_->unsent() == 0);
  });
}

// Sends until the scheduler has nothing to give, the links take no more, or the budget is used up. True if it
// was the budget, and more may be sent after a look at what came in: it can be more urgent, and a link that
// drains as fast as it is written to would keep this thread here.
bool Lane::pump() {
  const bool is_held_up = scheduler_.has_unsent() && pending_bytes() >= egress_.budget_bytes();
  const bool was_full = is_held_up || any_blocked();
  if (was_full) refresh_in_host();
  const bool has_line = was_full && in_host_bytes_ > held_bytes_;  // behind which stands what is new
  const bool more = grant_some();
  if (more && !has_line) refresh_in_host();
  if (more && pending_bytes() >= egress_.budget_bytes() && !device_is_busy()) block_full_links();
  egress_.observe(more || any_blocked(), written_bytes_ - in_host_bytes_, Clock::now());
  counters_.bytes_per_second.store(egress_.bytes_per_second(), std::memory_order_relaxed);
  return more;
}

// It has enough to send for now, whatever the links hold back. What is new counts: links mostly do not.
bool Lane::device_is_busy() const { return pending_bytes() - held_bytes_ >= egress_.budget_bytes(); }

// Each of them has its write event; the others may go on, however full one is. What waits in the host's queue
// has no event.
void Lane::block_full_links() {
  const size_t low_water = egress_.low_water_bytes(peers_.size());
  for (auto& peer : peers_) {
    if (peer && peer->open_ && peer->in_host_bytes_ >= low_water && peer->link_->unsent() >= low_water)
      block(*peer);
  }
}

bool Lane::any_blocked() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer && peer->blocked_; });
}

bool Lane::grant_some() {
  over_budget_ = false;
  const auto can_send = [this](uint32_t link) { return accepts(link); };
  while (const auto grant = scheduler_.next(egress_.chunk_bytes(), can_send)) {
    write_grant(*grant);
    Peer* to = peer(grant->link);
    if (to != nullptr && to->outbox_.queued_bytes() >= kFlushBytes) flush(*to);
  }
  flush_all();
  return over_budget_ && scheduler_.has_unsent();
}

bool Lane::accepts(uint32_t link) {
  const Peer* to = peer(link);
  if (to == nullptr || !to->open_ || to->blocked_) return false;
  if (pending_bytes() < egress_.budget_bytes()) return true;
  if (!device_is_busy() && to->pending_bytes() < egress_.low_water_bytes(peers_.size())) return true;
  over_budget_ = true;
  return false;
}

void Lane::flush_all() {
  for (auto& peer : peers_) {
    if (peer && peer->open_ && !peer->blocked_ && !peer->outbox_.empty()) flush(*peer);
  }
  if (beacon_ && beacon_->open_ && !beacon_->blocked_ && !beacon_->outbox_.empty()) flush(*beacon_);
}

void Lane::flush_early(Peer& peer) {
  if (peer.open_ && !peer.blocked_ && !peer.outbox_.empty()) write_out(peer);
}

void Lane::flush(Peer& peer) {
  if (!write_out(peer)) {
    read_all_from(peer);  // what it sent before it went
    lose(peer);
  } else if (!peer.outbox_.empty()) {
    block(peer);
  }
}

bool Lane::write_out(Peer& peer) {
  const size_t before = peer.outbox_.queued_bytes();
  const bool alive = peer.outbox_.flush(*peer.link_);
  const size_t written = before - peer.outbox_.queued_bytes();
  queued_bytes_ -= written;
  peer.in_host_bytes_ += written;  // until the kernel is asked, assume that nothing has left
  in_host_bytes_ += written;
  written_bytes_ += written;
  counters_.bytes_sent.fetch_add(written, std::memory_order_relaxed);
  if (written > 0) peer.last_sent_ = Clock::now();
  return alive;
}

void Lane::block(Peer& peer) {
  if (peer.blocked_) return;
  peer.link_->set_low_water(egress_.low_water_bytes(peers_.size()));
  peer.blocked_ = true;
  loop_.watch_writes(*peer.link_, peer, true);
}

void Lane::unblock(Peer& peer) {
  if (!peer.open_ || !peer.blocked_) return;
  peer.blocked_ = false;
  loop_.watch_writes(*peer.link_, peer, false);
}

void Lane::refresh_in_host() {
  for (auto& peer : peers_) {
    if (peer) refresh_in_host(*peer);
  }
  if (beacon_) refresh_in_host(*beacon_);
}

void Lane::refresh_in_host(Peer& peer) {
  if (!peer.open_ || peer.in_host_bytes_ == 0) return;
  const auto queued = peer.link_->queued();
  const size_t in_host = std::min(queued.bytes, peer.in_host_bytes_);
  const size_t held = in_host - std::min(queued.at_device, in_host);
  in_host_bytes_ -= peer.in_host_bytes_ - in_host;
  held_bytes_ += held - peer.held_bytes_;
  peer.in_host_bytes_ = in_host;
  peer.held_bytes_ = held;
}

void Lane::read_from(Peer& peer) {
  if (!peer.open_) return;
  const uint64_t before = peer.reader_.bytes_read();
  const auto status = peer.reader_.read(*peer.link_, peer, kReadBytes);
  counters_.bytes_received.fetch_add(peer.reader_.bytes_read() - before, std::memory_order_relaxed);
  if (peer.reader_.bytes_read() > before) peer.last_heard_ = Clock::now();
  peer.outbox_.reclaim(*peer.link_);
  peer.broken_ = status == FrameReader::Status::malformed;
  if (status == FrameReader::Status::closed || peer.broken_) lose(peer);
}

void Lane::read_all_from(Peer& peer) {
  for (uint64_t before = UINT64_MAX; peer.open_ && before != peer.reader_.bytes_read();) {
    before = peer.reader_.bytes_read();
    read_from(peer);
  }
}

void Lane::beat(Clock::time_point now) {
  const auto interval = duration(options_.heartbeat_s);
  Header heartbeat;
  heartbeat.type = FrameType::heartbeat;
  heartbeat.epoch = options_.epoch;
  for (auto& peer : peers_) {
    if (!peer || !peer->open_ || !peer->outbox_.empty()) continue;  // what waits there says the same
    if (now - peer->last_sent_ >= interval / 2) send(*peer, heartbeat);
  }
  if (beacon_ && beacon_->open_ && beacon_->outbox_.empty()) send(*beacon_, heartbeat);
  next_beat_ = now + interval;
  flush_all();
  if (options_.peer_timeout_s > 0) lose_silent_peers();
}

void Lane::lose_silent_peers() {
  const auto is_silent = [&](const Peer& peer) {
    return peer.open_ && Clock::now() - peer.last_heard_ > duration(options_.peer_timeout_s);
  };
  for (auto& peer : peers_) {
    if (!peer || !is_silent(*peer)) continue;
    read_from(*peer);  // this process may have been stopped meanwhile, and what came not been looked at
    if (!is_silent(*peer)) continue;
    peer->broken_ = true;
    lose(*peer);
  }
}

}  // namespace byteps
