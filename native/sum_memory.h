// Memory in which a lane of a server sums, and which workers of its host may read: what lies there need not
// be copied for each of them. Nobody but this process can write to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace byteps {

class SumMemory {
 public:
  explicit SumMemory(size_t bytes);  // throws std::system_error
  ~SumMemory();
  SumMemory(const SumMemory&) = delete;
  SumMemory& operator=(const SumMemory&) = delete;

  int fd() const { return fd_; }  // for who may read it
  void abandon();                 // in a forked child, which has the descriptor but not the memory
  // Where these bytes lie in it, if they do.
  std::optional<uint64_t> offset_of(const std::byte* data, size_t bytes) const;

  // One thread at a time. Null: there is no room, or memory is short. The lowest that is free: it was in use
  // last.
  std::byte* take(size_t bytes);
  void give_back(const std::byte* data, size_t bytes);

 private:
  bool provide(size_t bytes);
  void mark(size_t first, size_t count, bool taken);

  const size_t bytes_;
  const int fd_;
  std::byte* const data_;
  std::vector<bool> taken_;  // by block
  size_t provided_ = 0;      // so many bytes from the start have memory
  bool abandoned_ = false;
};

}  // namespace byteps
