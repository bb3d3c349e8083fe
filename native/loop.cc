#include "loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <span>
#include <stdexcept>
#include <string>

namespace byteps {
namespace {

// epoll's user data: the watcher's address; its lowest bit says "this is the write descriptor".
constexpr uintptr_t kWriteTag = 1;

void control(int epoll_fd, int operation, int fd, uint32_t events, uintptr_t data) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data;
  if (epoll_ctl(epoll_fd, operation, fd, &event) != 0 && operation != EPOLL_CTL_DEL) {
    throw std::runtime_error(std::string("epoll_ctl failed: ") + std::strerror(errno));
  }
}

// Kernels before 5.11, and some containers, know whole milliseconds only.
int wait_for(int epoll_fd, std::span<epoll_event> events, std::chrono::microseconds longest) {
  const int most = static_cast<int>(events.size());
#ifdef SYS_epoll_pwait2
  const auto whole = std::chrono::floor<std::chrono::seconds>(longest);
  const timespec timeout{whole.count(), std::chrono::nanoseconds(longest - whole).count()};
  const long count = syscall(SYS_epoll_pwait2, epoll_fd, events.data(), most, &timeout, nullptr, 0);
  if (count >= 0 || errno == EINTR) return static_cast<int>(count);
#endif
  const auto rounded = std::chrono::ceil<std::chrono::milliseconds>(longest);
  return epoll_wait(epoll_fd, events.data(), most, static_cast<int>(rounded.count()));
}

uintptr_t address(Loop::Watcher& watcher) { return reinterpret_cast<uintptr_t>(&watcher); }

}  // namespace

Loop::Loop() : epoll_fd_(epoll_create1(EPOLL_CLOEXEC)), wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (epoll_fd_ < 0 || wake_fd_ < 0) {
    if (epoll_fd_ >= 0) close(epoll_fd_);
    if (wake_fd_ >= 0) close(wake_fd_);
    throw std::runtime_error(std::string("cannot create an event loop: ") + std::strerror(errno));
  }
  control(epoll_fd_, EPOLL_CTL_ADD, wake_fd_, EPOLLIN, 0);
}

Loop::~Loop() {
  close(epoll_fd_);
  close(wake_fd_);
}

void Loop::post(std::function<void()> task, uint64_t need) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
    wake = asleep_ && need <= room_;
    if (wake) asleep_ = false;
  }
  if (wake) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(wake_fd_, &one, sizeof one);
  }
}

void Loop::watch(Link& link, Watcher& watcher) {
  control(epoll_fd_, EPOLL_CTL_ADD, link.read_fd(), EPOLLIN, address(watcher));
}

void Loop::unwatch(Link& link) {
  control(epoll_fd_, EPOLL_CTL_DEL, link.read_fd(), 0, 0);
  if (link.write_fd() != link.read_fd()) control(epoll_fd_, EPOLL_CTL_DEL, link.write_fd(), 0, 0);
}

void Loop::watch_writes(Link& link, Watcher& watcher, bool on) {
  if (link.write_fd() == link.read_fd()) {
    const uint32_t events = on ? EPOLLIN | link.write_event() : EPOLLIN;
    control(epoll_fd_, EPOLL_CTL_MOD, link.read_fd(), events, address(watcher));
    return;
  }
  control(epoll_fd_, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, link.write_fd(), link.write_event(),
          address(watcher) | kWriteTag);
}

void Loop::run_once(std::chrono::microseconds longest, uint64_t room) {
  std::array<epoll_event, 64> events;
  const int count = wait_for(epoll_fd_, events, falls_asleep(room) ? longest : longest.zero());
  for (const auto& task : wake_up()) task();  // first: what has come may answer them
  for (int i = 0; i < count; ++i) {
    const uintptr_t data = events[static_cast<size_t>(i)].data.u64;
    if (data == 0) {
      uint64_t value = 0;
      [[maybe_unused]] const ssize_t n = read(wake_fd_, &value, sizeof value);
      continue;
    }
    auto* watcher = reinterpret_cast<Watcher*>(data & ~kWriteTag);
    const uint32_t what = events[static_cast<size_t>(i)].events;
    const bool write_fd = (data & kWriteTag) != 0;
    if (write_fd || (what & EPOLLOUT) != 0) watcher->on_writable();
    if (!write_fd && (what & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) watcher->on_readable();
  }
}

// False: there are tasks already.
bool Loop::falls_asleep(uint64_t room) {
  const std::lock_guard lock(mutex_);
  asleep_ = posted_.empty();
  room_ = room;
  return asleep_;
}

std::vector<std::function<void()>> Loop::wake_up() {
  const std::lock_guard lock(mutex_);
  asleep_ = false;
  return std::exchange(posted_, {});
}

}  // namespace byteps
