// A link within one process: two bounded byte rings, each with an event for its reader and one for its
// writer.
#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "flag.h"
#include "link.h"

namespace byteps {
namespace {

// One direction.
class Ring {
 public:
  explicit Ring(size_t capacity) : bytes_(std::max<size_t>(capacity, 1)) { writable_.set(true); }

  ssize_t write(const iovec* parts, int count) {
    const std::lock_guard lock(mutex_);
    if (closed_) return Link::kClosed;
    return move(parts, count, [this](std::byte* from, size_t n) { return copy_in(from, n); });
  }

  ssize_t read(const iovec* parts, int count) {
    const std::lock_guard lock(mutex_);
    if (used_ == 0 && closed_) return Link::kClosed;
    return move(parts, count, [this](std::byte* to, size_t n) { return copy_out(to, n); });
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    raise_flags();
  }

  int readable_fd() const { return readable_.fd(); }
  int writable_fd() const { return writable_.fd(); }

 private:
  template <typename Copy>
  ssize_t move(const iovec* parts, int count, const Copy& copy) {
    size_t moved = 0;
    for (int i = 0; i < count; ++i) {
      const size_t n = copy(static_cast<std::byte*>(parts[i].iov_base), parts[i].iov_len);
      moved += n;
      if (n < parts[i].iov_len) break;
    }
    raise_flags();
    return static_cast<ssize_t>(moved);
  }

  void raise_flags() {
    readable_.set(used_ > 0 || closed_);
    writable_.set(used_ < bytes_.size() || closed_);
  }

  size_t copy_in(const std::byte* from, size_t n) {
    n = std::min(n, bytes_.size() - used_);
    const size_t at = (head_ + used_) % bytes_.size();
    const size_t first = std::min(n, bytes_.size() - at);
    if (n > 0) std::memcpy(&bytes_[at], from, first);
    if (n > first) std::memcpy(&bytes_[0], from + first, n - first);
    used_ += n;
    return n;
  }

  size_t copy_out(std::byte* to, size_t n) {
    n = std::min(n, used_);
    const size_t first = std::min(n, bytes_.size() - head_);
    if (n > 0) std::memcpy(to, &bytes_[head_], first);
    if (n > first) std::memcpy(to + first, &bytes_[0], n - first);
    head_ = (head_ + n) % bytes_.size();
    used_ -= n;
    return n;
  }

  std::mutex mutex_;
  std::vector<std::byte> bytes_;
  size_t head_ = 0;
  size_t used_ = 0;
  bool closed_ = false;
  Flag readable_;
  Flag writable_;
};

class InprocLink final : public Link {
 public:
  InprocLink(std::shared_ptr<Ring> in, std::shared_ptr<Ring> out)
      : in_(std::move(in)), out_(std::move(out)) {}
  ~InprocLink() override {
    in_->close();
    out_->close();
  }
  ssize_t send(const iovec* parts, int count) override { return out_->write(parts, count); }
  ssize_t receive(const iovec* parts, int count) override { return in_->read(parts, count); }
  int read_fd() const override { return in_->readable_fd(); }
  int write_fd() const override { return out_->writable_fd(); }
  uint32_t write_event() const override { return EPOLLIN; }
  size_t unsent() const override { return 0; }  // what is in the ring is at the receiver already
  Queued queued() const override { return {}; }
  void set_low_water(size_t) override {}
  void abandon() override {
    ::close(in_->readable_fd());
    ::close(out_->writable_fd());
  }

 private:
  std::shared_ptr<Ring> in_;
  std::shared_ptr<Ring> out_;
};

}  // namespace

std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make_inproc_links(size_t capacity) {
  auto there = std::make_shared<Ring>(capacity);
  auto back = std::make_shared<Ring>(capacity);
  return {std::make_unique<InprocLink>(back, there), std::make_unique<InprocLink>(there, back)};
}

}  // namespace byteps
