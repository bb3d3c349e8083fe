#include "sum_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "wire.h"

#ifndef F_SEAL_FUTURE_WRITE  // Linux 5.1
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace byteps {
namespace {

constexpr size_t kBlockBytes = kCellBytes;

size_t blocks(size_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes; }

int create(size_t bytes) {
  const int fd = memfd_create("byteps", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0) return fd;
  const int error = errno;
  if (fd >= 0) close(fd);
  throw std::system_error(error, std::generic_category(), "cannot create memory for sums");
}

// For writing, which nobody may do after that.
std::byte* map(int fd, size_t bytes) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data != MAP_FAILED && fcntl(fd, F_ADD_SEALS, kSeals) == 0) {
    madvise(data, bytes, MADV_DONTFORK);
    return static_cast<std::byte*>(data);
  }
  const int error = errno;
  if (data != MAP_FAILED) munmap(data, bytes);
  close(fd);
  throw std::system_error(error, std::generic_category(), "cannot map memory for sums");
}

}  // namespace

SumMemory::SumMemory(size_t bytes)
    : bytes_(blocks(bytes) * kBlockBytes),
      fd_(create(bytes_)),
      data_(map(fd_, bytes_)),
      taken_(blocks(bytes_)) {}

// In a child something else may lie at its address by now.
SumMemory::~SumMemory() {
  if (abandoned_) return;
  munmap(data_, bytes_);
  close(fd_);
}

void SumMemory::abandon() {
  abandoned_ = true;
  close(fd_);
}

std::optional<uint64_t> SumMemory::offset_of(const std::byte* data, size_t bytes) const {
  const auto offset = reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(data_);
  return offset < bytes_ && bytes <= bytes_ - offset ? std::optional<uint64_t>(offset) : std::nullopt;
}

std::byte* SumMemory::take(size_t bytes) {
  const size_t count = blocks(bytes);
  size_t free = 0;  // blocks before `at`
  for (size_t at = 0; at < taken_.size(); ++at) {
    free = taken_[at] ? 0 : free + 1;
    if (free < count) continue;
    if (!provide((at + 1) * kBlockBytes)) return nullptr;
    mark(at + 1 - count, count, true);
    return data_ + (at + 1 - count) * kBlockBytes;
  }
  return nullptr;
}

void SumMemory::give_back(const std::byte* data, size_t bytes) {
  mark(static_cast<size_t>(data - data_) / kBlockBytes, blocks(bytes), false);
}

// Where memory is short, that shows here and not as a signal later.
bool SumMemory::provide(size_t bytes) {
  if (bytes <= provided_) return true;
  const auto from = static_cast<off_t>(provided_), length = static_cast<off_t>(bytes - provided_);
  if (posix_fallocate(fd_, from, length) != 0) return false;
  provided_ = bytes;
  return true;
}

void SumMemory::mark(size_t first, size_t count, bool taken) {
  std::fill_n(taken_.begin() + static_cast<ptrdiff_t>(first), count, taken);
}

}  // namespace byteps
