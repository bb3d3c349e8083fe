// The stream of bytes that a link is, cut into messages: large parts go as they are, without a copy, small
// ones are gathered. Each end tells the other how much it has taken, so that no more than a window is under
// way.
//
// The lifeline is the connection over which the peers met. Whoever closes in order says on it how much he has
// sent; if it ends without that, he died.
#include "link_ucx.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "flag.h"

namespace byteps {
namespace {

// Sent, and not taken yet: two of the largest messages, so that the receiver knows of the next one while it
// fetches one.
constexpr size_t kWindowBytes = 2 * UcxMessages::kMaxDataBytes;
constexpr size_t kCopiedWindowBytes = 4 << 20;  // for small parts, which lie in the receiver's queues
constexpr size_t kResumeBytes = 1 << 20;        // room in it that is worth a write event
constexpr size_t kDirectBytes = 64 * 1024;      // parts of this size are not copied
constexpr size_t kGatheredBytes = 64 * 1024;    // of small parts in one message
constexpr size_t kTellBytes = 64 * 1024;        // taken, before the peer is told while more is coming
constexpr size_t kUntoldBytes = 2048;           // left untold: less than any link may always have queued
constexpr size_t kOnTheWayBytes = 66 * 1024;    // the smallest chunk with its header, and what is left untold
constexpr size_t kAhead = 4;                    // messages fetched before somebody asks for them
// What is coming is looked for so long before the thread sleeps: over TCP each piece of it would else cost a
// sleep and a wake-up, which take longer than it is to the next piece.
constexpr std::chrono::microseconds kPatience{20};
constexpr std::chrono::milliseconds kFlushLimit{100};
constexpr std::chrono::nanoseconds kRetry{200'000};  // of what has no event

// A position in a list of parts.
class Cursor {
 public:
  Cursor(const iovec* parts, int count) : part_(parts), end_(parts + count) { skip(); }
  bool at_end() const { return part_ == end_; }
  std::byte* data() const { return static_cast<std::byte*>(part_->iov_base) + done_; }
  size_t contiguous() const { return at_end() ? 0 : part_->iov_len - done_; }
  void advance(size_t n) {
    done_ += n;
    skip();
  }

 private:
  void skip() {
    while (part_ != end_ && done_ == part_->iov_len) {
      ++part_;
      done_ = 0;
    }
  }
  const iovec* part_;
  const iovec* const end_;
  size_t done_ = 0;
};

class UcxLink final : public Link {
 public:
  UcxLink(std::unique_ptr<UcxMessages> messages, int lifeline)
      : messages_(std::move(messages)),
        lifeline_(lifeline),
        epoll_fd_(epoll_create1(EPOLL_CLOEXEC)),
        timer_fd_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
    fcntl(lifeline_, F_SETFL, fcntl(lifeline_, F_GETFL) | O_NONBLOCK);
    for (const int fd : {messages_->fd(), lifeline_, readable_.fd(), timer_fd_}) {
      epoll_event event{};
      event.events = EPOLLIN;
      if (fd >= 0) epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
    }
    prepare_to_sleep();
  }
  ~UcxLink() override;

  ssize_t send(const iovec* parts, int count) override;
  ssize_t receive(const iovec* parts, int count) override;
  int read_fd() const override { return epoll_fd_; }
  int write_fd() const override { return writable_.fd(); }
  uint32_t write_event() const override { return EPOLLIN; }
  size_t unsent() const override { return messages_->unfinished(); }
  size_t in_use() const override { return messages_->unfinished(); }

  // Neither UCX nor the device tells what has left this host. What the other end has not taken is the
  // nearest, but for a chunk that is on its way, or of which the word is on its way back.
  Queued queued() const override {
    const size_t untaken = messages_->sent() - messages_->consumed_there;
    return {std::max(untaken - std::min(untaken, kOnTheWayBytes), unsent())};
  }
  void set_low_water(size_t bytes) override {
    low_water_ = bytes;
    prepare_to_sleep();
  }
  void abandon() override {
    for (const int fd : {epoll_fd_, timer_fd_, lifeline_, readable_.fd(), writable_.fd()}) close(fd);
  }

 private:
  using State = UcxMessages::Arrival::State;

  size_t room() const {
    const size_t untaken = messages_->sent() - messages_->consumed_there;
    return window_ - std::min(untaken, window_);
  }
  bool is_over() const { return lifeline_ended_ || !messages_->failure().empty(); }
  void progress();
  void read_lifeline();
  void send_gathered(std::vector<std::byte>& small);
  size_t take(UcxMessages::Arrival& arrival, Cursor& to);
  void load(UcxMessages::Arrival& arrival, const Cursor& to);
  void tell(bool drained);
  bool is_complete() const;
  bool has_something_here() const;
  bool is_waiting_for_room() const;
  void wake_later(bool on);
  void prepare_to_sleep();

  std::unique_ptr<UcxMessages> messages_;
  const int lifeline_;
  const int epoll_fd_;
  const int timer_fd_;
  Flag readable_, writable_;
  size_t window_ = kCopiedWindowBytes;  // of the part that is next
  size_t low_water_ = SIZE_MAX;
  bool buffers_ = false;  // the last message was too large for where it was asked for
  bool timer_is_set_ = false;
  bool lifeline_ended_ = false;
  bool finished_ = false;
  std::array<std::byte, sizeof(uint64_t)> farewell_;  // how much the peer has sent, once it says so
  size_t farewell_bytes_ = 0;
};

UcxLink::~UcxLink() {
  progress();
  if (!is_over() && messages_->flush(Clock::now() + kFlushLimit)) {
    const uint64_t total = messages_->sent();
    [[maybe_unused]] const ssize_t n = ::send(lifeline_, &total, sizeof total, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  messages_.reset();
  for (const int fd : {epoll_fd_, timer_fd_, lifeline_}) close(fd);
}

ssize_t UcxLink::send(const iovec* parts, int count) {
  if (is_over()) return kClosed;
  messages_->progress();
  const uint64_t before = messages_->sent();
  std::vector<std::byte> small;
  for (Cursor from(parts, count); !from.at_end();) {
    window_ = from.contiguous() < kDirectBytes ? kCopiedWindowBytes : kWindowBytes;
    if (room() <= small.size()) break;
    size_t n = std::min(from.contiguous(), room() - small.size());
    if (n >= kDirectBytes) {
      n = std::min(n, UcxMessages::kMaxDataBytes);
      if (small.size() > UcxMessages::kMaxHeadBytes) send_gathered(small);
      messages_->send(small, {from.data(), n});
      small.clear();
    } else {
      small.insert(small.end(), from.data(), from.data() + n);
      if (small.size() >= kGatheredBytes) send_gathered(small);
    }
    from.advance(n);
  }
  if (!small.empty()) send_gathered(small);
  prepare_to_sleep();
  return is_over() ? kClosed : static_cast<ssize_t>(messages_->sent() - before);
}

void UcxLink::send_gathered(std::vector<std::byte>& small) { messages_->send_own(std::exchange(small, {})); }

ssize_t UcxLink::receive(const iovec* parts, int count) {
  progress();
  if (!has_something_here()) messages_->progress_for(kPatience);
  size_t moved = 0;
  Cursor to(parts, count);
  while (UcxMessages::Arrival* arrival = messages_->front()) {
    moved += take(*arrival, to);
    // Bytes that were moved are for the caller to look at first: what comes next may have to go elsewhere.
    if (arrival->state == State::waiting && moved == 0 && !to.at_end()) {
      load(*arrival, to);
      moved += take(*arrival, to);
    }
    if (arrival->taken < arrival->size()) break;
    messages_->pop_front();
  }
  if (buffers_) messages_->fetch_ahead(kAhead);
  messages_->consumed += moved;
  tell(!to.at_end());
  prepare_to_sleep();
  return moved == 0 && is_complete() ? kClosed : static_cast<ssize_t>(moved);
}

// Moves what is here of a message.
size_t UcxLink::take(UcxMessages::Arrival& arrival, Cursor& to) {
  const size_t before = arrival.taken;
  while (arrival.taken < arrival.head.size() && !to.at_end()) {
    const size_t n = std::min(arrival.head.size() - arrival.taken, to.contiguous());
    std::memcpy(to.data(), arrival.head.data() + arrival.taken, n);
    arrival.taken += n;
    to.advance(n);
  }
  while (arrival.state == State::here && arrival.taken < arrival.size() && !to.at_end()) {
    const std::byte* from = arrival.data + (arrival.taken - arrival.head.size());
    const size_t n = std::min(arrival.size() - arrival.taken, to.contiguous());
    if (from != to.data()) std::memcpy(to.data(), from, n);
    arrival.taken += n;
    to.advance(n);
  }
  return arrival.taken - before;
}

void UcxLink::load(UcxMessages::Arrival& arrival, const Cursor& to) {
  buffers_ = to.contiguous() < arrival.length;
  if (buffers_) {
    messages_->fetch_to_buffer(arrival);
  } else {
    messages_->fetch(arrival, to.data());
    messages_->fetch_behind(to.data() + arrival.length, to.contiguous() - arrival.length);
  }
}

void UcxLink::tell(bool drained) {
  const uint64_t untold = messages_->consumed - messages_->consumed_told;
  if (untold >= kTellBytes || (drained && untold > kUntoldBytes)) messages_->send_progress();
}

void UcxLink::progress() {
  if (finished_) return;
  messages_->progress();
  if (lifeline_ended_) return;
  const ssize_t n =
      recv(lifeline_, farewell_.data() + farewell_bytes_, farewell_.size() - farewell_bytes_, MSG_DONTWAIT);
  if (n > 0) farewell_bytes_ += static_cast<size_t>(n);
  const bool is_open = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  if (is_open || (n > 0 && farewell_bytes_ < farewell_.size())) return;
  lifeline_ended_ = true;
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, lifeline_, nullptr);
}

// Nothing more can come.
bool UcxLink::is_complete() const {
  if (!is_over() || has_something_here()) return false;
  if (!messages_->failure().empty() || farewell_bytes_ < farewell_.size()) return true;
  uint64_t total = 0;
  std::memcpy(&total, farewell_.data(), sizeof total);
  return messages_->consumed >= total;
}

bool UcxLink::has_something_here() const {
  const UcxMessages::Arrival* arrival = messages_->front();
  return arrival != nullptr && (arrival->state == State::here || arrival->taken < arrival->head.size());
}

bool UcxLink::is_waiting_for_room() const {
  return room() < kResumeBytes || messages_->unfinished() >= low_water_;
}

void UcxLink::wake_later(bool on) {
  if (!on && !timer_is_set_) return;
  itimerspec when{};
  when.it_value.tv_nsec = on ? kRetry.count() : 0;
  timerfd_settime(timer_fd_, 0, &when, nullptr);
  timer_is_set_ = on;
}

void UcxLink::prepare_to_sleep() {
  finished_ = finished_ || is_complete();  // what UCX would still say to the peer, nobody hears
  wake_later(!finished_ && !messages_->arm());
  const UcxMessages::Arrival* arrival = messages_->front();
  const bool waits = arrival != nullptr && arrival->state != State::coming;
  readable_.set(waits || has_something_here() || is_complete() || messages_->fd() < 0);
  writable_.set(is_over() || !is_waiting_for_room());
}

}  // namespace

std::unique_ptr<Link> make_ucx_link(std::unique_ptr<UcxMessages> messages, int lifeline) {
  return std::make_unique<UcxLink>(std::move(messages), lifeline);
}

}  // namespace byteps
