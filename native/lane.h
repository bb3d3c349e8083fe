// A lane: one I/O thread with the peers it owns. Connection k of every worker-server pair belongs to lane k
// at both ends, and every partition to one lane, so lanes share nothing and take no locks on the data path.
//
// What workers and servers have in common is here: event loop, heartbeats, and the pump that asks the
// scheduler what leaves next and stays within the egress budget.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "egress.h"
#include "events.h"
#include "frames.h"
#include "link.h"
#include "loop.h"
#include "schedule.h"

namespace byteps {

// Totals since the start, readable from any thread.
struct LaneCounters {
  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint64_t> frames_sent{0};
  std::atomic<uint64_t> frames_received{0};
  std::atomic<double> bytes_per_second{0};  // of sending, as last measured; 0: not yet
};

class Lane {
 public:
  struct Options {
    Policy policy = Policy::priority;
    uint64_t credit_bytes = UINT64_MAX;
    double heartbeat_s = 1.0;
    uint32_t epoch = 0;
    double peer_timeout_s = 0;    // a peer that is silent for so long is lost; 0: never
    uint32_t event_capacity = 0;  // how many events are kept until they are taken; 0: none are recorded
  };

  explicit Lane(const Options& options)
      : options_(options),
        scheduler_(options.policy, options.credit_bytes),
        events_(options.event_capacity) {}
  virtual ~Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Any thread. A task that is of no use before this many bytes of credit are free need not wake the lane.
  void post(std::function<void()> task, uint64_t need = 0) { loop_.post(std::move(task), need); }
  void start();
  void stop(double drain_s);  // sends what is pending (at most that long), then ends the thread; returns when
                              // it has
  void abandon();             // in a forked child: the thread does not exist here
  // Heartbeats only: to the coordinator, which must hear from a process whose Python is busy.
  void add_beacon(std::unique_ptr<Link> link);
  void set_chunk(uint64_t bytes) {  // see Egress
    post([this, bytes] { egress_.set_chunk(bytes); });
  }
  const LaneCounters& counters() const { return counters_; }
  EventBuffer& events() { return events_; }

  // One turn of the loop; false once stop() is done. For the lane's thread, or who drives a lane without one.
  bool turn(bool may_wait);

 protected:
  // A link with its reader and outbox. Kept until the lane ends, so that late events find it.
  class Peer : public Loop::Watcher, public FrameSink {
   public:
    Peer(Lane& lane, uint32_t number, std::unique_ptr<Link> link);

    void on_readable() override { lane_.read_from(*this); }
    void on_writable() override { lane_.unblock(*this); }
    bool is_open() const { return open_; }
    uint32_t number() const { return number_; }
    Clock::time_point last_heard() const { return last_heard_; }

   protected:
    friend class Lane;
    size_t pending_bytes() const { return outbox_.queued_bytes() + in_host_bytes_; }

    Lane& lane_;
    const uint32_t number_;
    std::unique_ptr<Link> link_;
    FrameReader reader_;
    Outbox outbox_;
    size_t in_host_bytes_ = 0;  // written, and not gone from this host, as last seen
    size_t held_bytes_ = 0;     // of those, held back by the link; the others stand in the device's line
    bool open_ = true;
    bool broken_ = false;   // it fell silent, or sent what is no frame of the protocol
    bool blocked_ = false;  // the link takes nothing now; its write event is awaited
    Clock::time_point last_heard_;
    Clock::time_point last_sent_;
  };

  // The lane's thread only.
  // Its number is the scheduler's link number. A second one with a number in use is hung up on.
  void add_peer(std::unique_ptr<Peer> peer);
  void send(Peer& peer, const Header& header, std::span<const iovec> payload = {},
            std::shared_ptr<void> owner = nullptr);
  void close_peer(Peer& peer);
  void send_all(const Header& header);
  void read_all_from(Peer& peer);  // what has come so far
  void flush_all();
  // Amid the handling of a frame: who is lost, or takes no more, is for the next flush to find.
  void flush_early(Peer& peer);
  bool is_quiet();  // the links have sent everything
  Peer* peer(uint32_t number) const { return number < peers_.size() ? peers_[number].get() : nullptr; }
  void close_all();

  virtual void write_grant(const Grant& grant) = 0;  // sends the chunk that the scheduler chose
  virtual void on_lost(Peer& peer) = 0;              // the peer hung up, or broke the protocol
  // Once per wake-up, before sending. Returns when it wants to be called again even if nothing happens.
  virtual Clock::time_point after_events() { return Clock::time_point::max(); }
  virtual void after_sending() {}  // once per wake-up

  const Options options_;
  Scheduler scheduler_;
  LaneCounters counters_;
  EventBuffer events_;

 private:
  class Beacon;

  void run();
  bool pump();
  bool grant_some();  // true if the budget stopped it
  bool accepts(uint32_t link);
  size_t pending_bytes() const { return queued_bytes_ + in_host_bytes_; }
  bool device_is_busy() const;
  void block_full_links();
  bool any_blocked() const;
  void flush(Peer& peer);
  bool write_out(Peer& peer);  // false: it is gone
  void block(Peer& peer);
  void unblock(Peer& peer);
  void refresh_in_host();  // asks the kernel
  void refresh_in_host(Peer& peer);
  void read_from(Peer& peer);
  void lose(Peer& peer);
  void beat(Clock::time_point now);
  void lose_silent_peers();
  std::chrono::microseconds longest_wait(bool more, Clock::time_point wanted) const;
  bool drained() const;

  Loop loop_;
  Egress egress_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by number; gaps are null
  std::unique_ptr<Peer> beacon_;
  size_t queued_bytes_ = 0;  // over all peers: in outboxes
  size_t in_host_bytes_ = 0;
  size_t held_bytes_ = 0;
  bool over_budget_ = false;
  uint64_t written_bytes_ = 0;
  Clock::time_point next_beat_{};
  std::optional<Clock::time_point> stop_by_;
  std::mutex stop_mutex_;
  std::thread thread_;
};

// One counter over all lanes of a worker or server.
template <typename Lanes>
uint64_t total(const Lanes& lanes, std::atomic<uint64_t> LaneCounters::* counter) {
  uint64_t sum = 0;
  for (const auto& lane : lanes) sum += (lane->counters().*counter).load(std::memory_order_relaxed);
  return sum;
}

}  // namespace byteps
