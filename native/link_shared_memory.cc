// A link through memory that two processes of one host share: a ring of bytes each way. Whoever finds nothing
// to do says so in the memory, looks once more, and is rung for then; as long as both are busy there is no
// system call. A connection between the two, over which nothing is sent, shows when one of them is gone.
//
// The peer can change the memory at any time, so nothing read from it is believed further than its ring goes.
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
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "link.h"

namespace byteps {
namespace {

constexpr size_t kStepBytes = 64 * 1024;  // copied before the other side may go on with it

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// What two ends know of one direction; all zero at first. Each value is on a cache line of its own.
struct Way {
  alignas(64) std::atomic<uint64_t> written;      // bytes since the start
  alignas(64) std::atomic<uint32_t> reader_busy;  // 0: it wants to be rung for
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) std::atomic<uint32_t> writer_waits;  // 1: it wants to be rung for when `read` is `wake_at`
  std::atomic<uint64_t> wake_at;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

class Mapping {
 public:
  Mapping(size_t bytes, int protection, int flags, int fd, off_t offset)
      : data_(mmap(nullptr, bytes, protection, flags, fd, offset)), bytes_(bytes) {
    if (data_ == MAP_FAILED) fail("cannot map shared memory");
    madvise(data_, bytes_, MADV_DONTFORK);  // a child has no use for it
  }
  ~Mapping() { munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* const data_;
  const size_t bytes_;
};

// A ring's memory, twice in a row: what begins anywhere in it goes on without a break.
class RingMemory {
 public:
  RingMemory(int fd, size_t offset, size_t capacity)
      : whole_(2 * capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), capacity(capacity) {
    for (std::byte* half : {whole_.data(), whole_.data() + capacity}) {
      const int flags = MAP_SHARED | MAP_FIXED;
      if (mmap(half, capacity, PROT_READ | PROT_WRITE, flags, fd, static_cast<off_t>(offset)) == MAP_FAILED)
        fail("cannot map shared memory");
      madvise(half, capacity, MADV_DONTFORK);
    }
  }
  std::byte* at(uint64_t position) const { return whole_.data() + position % capacity; }

 private:
  // It unmaps both halves at once: what is unmapped twice may be somebody else's by then.
  Mapping whole_;

 public:
  const size_t capacity;
};

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

size_t total(const iovec* parts, int count) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
  return bytes;
}

class SharedMemoryLink final : public Link {
 public:
  SharedMemoryLink(const SharedMemory& shared, bool is_first, int lifeline, size_t page, size_t capacity)
      : control_(page, PROT_READ | PROT_WRITE, MAP_SHARED, shared.memory, 0),
        out_memory_(shared.memory, page + (is_first ? 0 : capacity), capacity),
        in_memory_(shared.memory, page + (is_first ? capacity : 0), capacity),
        out_(way(is_first ? 0 : 1)),
        in_(way(is_first ? 1 : 0)),
        ring_reader_(shared.events[is_first ? 0 : 2]),
        ring_writer_(shared.events[is_first ? 3 : 1]),
        own_data_(shared.events[is_first ? 2 : 0]),
        own_room_(shared.events[is_first ? 1 : 3]),
        data_bell_(own_data_, lifeline),
        room_bell_(own_room_, lifeline),
        low_water_(capacity / 2),
        descriptors_{lifeline, shared.events[0], shared.events[1], shared.events[2], shared.events[3]} {
    ring(own_room_);  // there is room
    close(shared.memory);
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
      in_.reader_busy.store(0);
      moved = take(parts, count);
      // If he wrote in this moment he may not ring, and perhaps not all of it is taken now.
      if (moved > 0) ring(own_data_);
    }
    return moved == 0 && gone_ ? kClosed : static_cast<ssize_t>(moved);
  }

  std::span<const std::byte> peek() override { return {in_memory_.at(read_), available()}; }
  void skip(size_t bytes) override { give_back(bytes); }

  int read_fd() const override { return data_bell_.fd(); }
  int write_fd() const override { return room_bell_.fd(); }
  uint32_t write_event() const override { return EPOLLIN; }

  // What the receiver has not taken: nothing overtakes it.
  size_t unsent() const override { return static_cast<size_t>(written_ - out_.read.load()); }
  Queued queued() const override { return {unsent()}; }

  void set_low_water(size_t bytes) override {
    low_water_ = std::clamp<size_t>(bytes, 1, out_memory_.capacity);
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

  size_t room() {
    const uint64_t held = written_ - out_.read.load(std::memory_order_acquire);
    if (held > out_memory_.capacity) gone_ = true;  // it reads what nobody wrote
    return gone_ ? 0 : out_memory_.capacity - held;
  }

  size_t available() {
    const uint64_t held = in_.written.load() - read_;
    if (held > in_memory_.capacity) gone_ = broken_ = true;  // it wrote more than there is room for
    return broken_ ? 0 : held;
  }

  void publish() {
    if (published_ == written_) return;
    published_ = written_;
    out_.written.store(written_);
    if (out_.reader_busy.load() == 0 && out_.reader_busy.exchange(1) == 0) ring(ring_reader_);
  }

  // Raises the write event once less than the low water mark is there; at once if it is so already.
  void wait_for_room() {
    if (!room_bell_.hear()) gone_ = true;
    out_.wake_at.store(written_ - std::min<uint64_t>(written_, low_water_ - 1));
    out_.writer_waits.store(1);
    if (unsent() < low_water_ && out_.writer_waits.exchange(0) == 1) ring(own_room_);
  }

  size_t put(const iovec* parts, int count) {
    size_t moved = 0;
    for (int i = 0; i < count; ++i) {
      const auto* from = static_cast<const std::byte*>(parts[i].iov_base);
      for (size_t left = parts[i].iov_len; left > 0;) {
        const size_t n = std::min({left, room(), kStepBytes});
        if (n == 0) return moved;
        std::memcpy(out_memory_.at(written_), from, n);
        written_ += n;
        moved += n;
        from += n;
        left -= n;
        if (written_ - published_ >= kStepBytes) publish();
      }
    }
    return moved;
  }

  size_t take(const iovec* parts, int count) {
    size_t moved = 0;
    for (int i = 0; i < count; ++i) {
      auto* to = static_cast<std::byte*>(parts[i].iov_base);
      for (size_t left = parts[i].iov_len; left > 0;) {
        const size_t n = std::min({left, available(), kStepBytes});
        if (n == 0) return moved;
        std::memcpy(to, in_memory_.at(read_), n);
        moved += n;
        to += n;
        left -= n;
        give_back(n);
      }
    }
    return moved;
  }

  void give_back(size_t bytes) {
    read_ += bytes;
    in_.read.store(read_);
    if (in_.writer_waits.load() == 1 && read_ >= in_.wake_at.load() && in_.writer_waits.exchange(0) == 1)
      ring(ring_writer_);
  }

  const Mapping control_;
  const RingMemory out_memory_, in_memory_;
  Way& out_;
  Way& in_;
  const int ring_reader_, ring_writer_, own_data_, own_room_;  // events
  const Bell data_bell_, room_bell_;
  uint64_t written_ = 0, published_ = 0, read_ = 0;
  size_t low_water_;
  bool gone_ = false;
  bool broken_ = false;
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

std::unique_ptr<Link> make_shared_memory_link(const SharedMemory& shared, bool is_first, int lifeline) {
  const size_t page = page_bytes();
  struct stat status{};
  if (fstat(shared.memory, &status) != 0) fail("no shared memory");
  const int seals = fcntl(shared.memory, F_GET_SEALS);
  const auto size = static_cast<size_t>(status.st_size);
  // Memory that somebody cuts off while it is in use would end this process.
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || size < 3 * page || (size - page) % (2 * page) != 0)
    throw std::invalid_argument("this is no sealed memory of two rings");
  return std::make_unique<SharedMemoryLink>(shared, is_first, lifeline, page, (size - page) / 2);
}

}  // namespace byteps
