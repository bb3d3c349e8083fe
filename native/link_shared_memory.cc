// A link through memory that two processes of one host share, as shared_way.h says. Whoever finds nothing to
// do says so in the memory, looks once more, and is rung for then; as long as both are busy there is no
// system call. A connection between the two, over which nothing is sent, shows when one of them is gone.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <optional>
#include <span>
#include <stdexcept>
#include <system_error>

#include "link.h"
#include "shared_way.h"

namespace byteps {
namespace {

static_assert(2 * sizeof(Way) <= 4096);  // the smallest page

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// An end's ear: shows that the other end has rung, or that it is gone.
class Bell {
 public:
  Bell(int event, int lifeline) : fd_(epoll_create1(EPOLL_CLOEXEC)) {
    epoll_event ring{}, end{};
    ring.events = EPOLLIN | EPOLLET;  // each ring shows once, so that nobody has to count them down
    end.events = EPOLLIN | EPOLLRDHUP;
    end.data.u32 = 1;
    if (fd_ >= 0 && epoll_ctl(fd_, EPOLL_CTL_ADD, event, &ring) == 0 &&
        epoll_ctl(fd_, EPOLL_CTL_ADD, lifeline, &end) == 0)
      return;
    const int error = errno;
    if (fd_ >= 0) close(fd_);
    errno = error;
    fail("cannot wait for shared memory");
  }
  ~Bell() { close(fd_); }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  int fd() const { return fd_; }

  // What rang shows no longer. False: the other end is gone.
  bool hear() const {
    std::array<epoll_event, 2> events;
    const int count = epoll_wait(fd_, events.data(), static_cast<int>(events.size()), 0);
    return std::none_of(events.begin(), events.begin() + std::max(count, 0),
                        [](const epoll_event& event) { return event.data.u32 == 1; });
  }

 private:
  const int fd_;
};

void ring(int event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(event, &one, sizeof one);
}

// Memory that somebody cuts off while it is in use would end this process.
size_t sealed_bytes(int fd) {
  struct stat status{};
  if (fstat(fd, &status) != 0) fail("no shared memory");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) throw std::invalid_argument("this memory is not sealed");
  return static_cast<size_t>(status.st_size);
}

size_t total(const iovec* parts, int count) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
  return bytes;
}

// What the first process lends from, as the second one sees it; none if it lends nothing.
class LentMemory {
 public:
  explicit LentMemory(int fd) {
    if (fd < 0) return;
    bytes_ = sealed_bytes(fd);
    mapping_.emplace(bytes_, PROT_READ, MAP_SHARED, fd, 0);
  }
  std::span<const std::byte> all() const {
    return mapping_ ? std::span<const std::byte>(mapping_->data(), bytes_) : std::span<const std::byte>();
  }

 private:
  size_t bytes_ = 0;
  std::optional<Mapping> mapping_;
};

class SharedMemoryLink final : public Link {
 public:
  SharedMemoryLink(const SharedMemory& shared, bool is_first, int lifeline, size_t page, size_t capacity,
                   std::shared_ptr<const SumMemory> sums)
      : control_(page, PROT_READ | PROT_WRITE, MAP_SHARED, shared.memory, 0),
        lent_(is_first ? -1 : shared.sums),
        out_way_(way(is_first ? 0 : 1)),
        in_way_(way(is_first ? 1 : 0)),
        out_(out_way_, shared.memory, page + (is_first ? 0 : capacity), capacity, std::move(sums)),
        in_(in_way_, shared.memory, page + (is_first ? capacity : 0), capacity, lent_.all()),
        ring_reader_(shared.events[is_first ? 0 : 2]),
        ring_writer_(shared.events[is_first ? 3 : 1]),
        own_data_(shared.events[is_first ? 2 : 0]),
        own_room_(shared.events[is_first ? 1 : 3]),
        data_bell_(own_data_, lifeline),
        room_bell_(own_room_, lifeline),
        capacity_(capacity),
        low_water_(capacity / 2),
        descriptors_{lifeline, shared.events[0], shared.events[1], shared.events[2], shared.events[3]} {
    ring(own_room_);  // there is room
    close(shared.memory);
    if (shared.sums >= 0) close(shared.sums);
  }
  ~SharedMemoryLink() override { close_descriptors(); }

  ssize_t send(const iovec* parts, int count) override {
    if (gone_) return kClosed;
    const size_t moved = put(parts, count);
    publish();
    if (moved < total(parts, count)) wait_for_room();
    return gone_ && moved == 0 ? kClosed : static_cast<ssize_t>(moved);
  }

  ssize_t receive(const iovec* parts, int count) override {
    size_t moved = take(parts, count);
    if (moved == 0) {
      // Before the look at what is there: who is gone has written all that he will.
      if (!data_bell_.hear()) gone_ = true;
      in_way_.reader_busy.store(0);
      moved = take(parts, count);
      // If he wrote in this moment he may not ring, and perhaps not all of it is taken now.
      if (moved > 0) ring(own_data_);
    }
    return moved == 0 && gone_ ? kClosed : static_cast<ssize_t>(moved);
  }

  std::span<const std::byte> peek() override { return in_.peek(); }
  void skip(size_t bytes) override {
    in_.skip(bytes);
    tell_writer();
  }

  int read_fd() const override { return data_bell_.fd(); }
  int write_fd() const override { return room_bell_.fd(); }
  uint32_t write_event() const override { return EPOLLIN; }

  // What the receiver has not taken: nothing overtakes it.
  size_t unsent() const override { return out_.unread(); }
  Queued queued() const override { return {unsent()}; }
  size_t in_use() const override { return out_.in_use(); }

  void set_low_water(size_t bytes) override {
    low_water_ = std::clamp<size_t>(bytes, 1, capacity_);
    wait_for_room();
  }

  void abandon() override {
    close(data_bell_.fd());
    close(room_bell_.fd());
    close_descriptors();
  }

 private:
  Way& way(size_t i) const { return reinterpret_cast<Way*>(control_.data())[i]; }

  void close_descriptors() {
    for (const int fd : descriptors_) close(fd);
  }

  void publish() {
    if (published_ == out_.written()) return;
    published_ = out_.written();
    out_way_.written.store(published_);
    if (out_way_.reader_busy.load() == 0 && out_way_.reader_busy.exchange(1) == 0) ring(ring_reader_);
  }

  // Raises the write event once less than the low water mark is there; at once if it is so already.
  void wait_for_room() {
    if (!room_bell_.hear()) gone_ = true;
    out_way_.wake_at.store(published_ - std::min<uint64_t>(published_, low_water_ - 1));
    out_way_.writer_waits.store(1);
    if (unsent() < low_water_ && out_way_.writer_waits.exchange(0) == 1) ring(own_room_);
  }

  size_t put(const iovec* parts, int count) {
    size_t moved = 0;
    for (int i = 0; i < count; ++i) {
      const auto* from = static_cast<const std::byte*>(parts[i].iov_base);
      for (size_t left = parts[i].iov_len; left > 0;) {
        const size_t n = out_.put(from, left);
        if (out_.is_broken()) gone_ = true;
        if (n == 0) return moved;
        moved += n;
        from += n;
        left -= n;
        if (out_.written() - published_ >= Way::kStepBytes) publish();
      }
    }
    return moved;
  }

  size_t take(const iovec* parts, int count) {
    size_t moved = 0;
    for (int i = 0; i < count; ++i) {
      auto* to = static_cast<std::byte*>(parts[i].iov_base);
      for (size_t left = parts[i].iov_len; left > 0;) {
        const size_t n = in_.take(to, left);
        if (in_.is_broken()) gone_ = true;
        if (n == 0) return moved;
        moved += n;
        to += n;
        left -= n;
        tell_writer();
      }
    }
    return moved;
  }

  void tell_writer() {
    if (in_way_.writer_waits.load() == 1 && in_.read() >= in_way_.wake_at.load() &&
        in_way_.writer_waits.exchange(0) == 1)
      ring(ring_writer_);
  }

  const Mapping control_;
  const LentMemory lent_;
  Way& out_way_;
  Way& in_way_;
  WayOut out_;
  WayIn in_;
  const int ring_reader_, ring_writer_, own_data_, own_room_;  // events
  const Bell data_bell_, room_bell_;
  const size_t capacity_;
  uint64_t published_ = 0;
  size_t low_water_;
  bool gone_ = false;
  const std::array<int, 5> descriptors_;
};

}  // namespace

SharedMemory create_shared_memory(size_t ring_bytes) {
  const size_t page = page_bytes();
  const size_t bytes = page + 2 * ((std::max<size_t>(ring_bytes, 1) + page - 1) / page * page);
  SharedMemory shared;
  shared.memory = memfd_create("byteps", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  // All of it now: where memory is short, that shows here and not as a signal later.
  int error = shared.memory < 0 ? errno : posix_fallocate(shared.memory, 0, static_cast<off_t>(bytes));
  if (error == 0 && fcntl(shared.memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    error = errno;
  for (int& event : shared.events) {
    if (error == 0 && (event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) error = errno;
  }
  if (error == 0) return shared;
  for (const int fd :
       {shared.memory, shared.events[0], shared.events[1], shared.events[2], shared.events[3]}) {
    if (fd >= 0) close(fd);
  }
  throw std::system_error(error, std::generic_category(), "cannot create shared memory");
}

std::unique_ptr<Link> make_shared_memory_link(const SharedMemory& shared, bool is_first, int lifeline,
                                              std::shared_ptr<const SumMemory> sums) {
  const size_t page = page_bytes(), size = sealed_bytes(shared.memory);
  if (size < 3 * page || (size - page) % (2 * page) != 0)
    throw std::invalid_argument("this is no memory of two rings");
  return std::make_unique<SharedMemoryLink>(shared, is_first, lifeline, page, (size - page) / 2,
                                            is_first ? std::move(sums) : nullptr);
}

}  // namespace byteps
