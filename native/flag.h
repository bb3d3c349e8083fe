// An eventfd used as a flag: readable while set.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>

namespace byteps {

class Flag {
 public:
  Flag() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error("eventfd failed: too many open files?");
  }
  ~Flag() { close(fd_); }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

  int fd() const { return fd_; }
  void set(bool on) {
    if (on == on_) return;
    uint64_t value = 1;
    const ssize_t n = on ? write(fd_, &value, sizeof value) : read(fd_, &value, sizeof value);
    on_ = n == sizeof value ? on : on_;
  }

 private:
  const int fd_;
  bool on_ = false;
};

}  // namespace byteps
