// One direction of a link through shared memory, as its two ends see it. Bytes are copied into a ring, or
// lent: they stay where they are, in memory of the writer that the reader has mapped. Positions count all
// bytes since the start.
//
// The other end can change the memory at any time, so nothing read from it is believed further than the ring
// and the memory that is lent from go.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "mapping.h"
#include "sum_memory.h"

namespace byteps {

// A ring's memory, twice in a row: what begins anywhere in it goes on without a break.
class RingMemory {
 public:
  RingMemory(int fd, size_t offset, size_t capacity);
  std::byte* at(uint64_t position) const { return whole_.data() + position % capacity; }

 private:
  // It unmaps both halves at once: what is unmapped twice may be somebody else's by then.
  Mapping whole_;

 public:
  const size_t capacity;
};

struct Loan {
  std::atomic<uint64_t> position;  // of its first byte
  std::atomic<uint64_t> offset;    // of that in the lender's memory
  std::atomic<uint64_t> bytes;
};

// What two ends know of one direction; all zero at first. What changes alone is on a cache line of its own.
struct Way {
  static constexpr size_t kLoans = 64;
  static constexpr size_t kStepBytes = 64 * 1024;  // copied before the other side may go on with it

  alignas(64) std::atomic<uint64_t> written;       // bytes
  std::atomic<uint64_t> lent;                      // loans, of which the reader hears before `written`
  alignas(64) std::atomic<uint32_t> reader_busy;   // 0: it wants to be rung for
  alignas(64) std::atomic<uint64_t> read;          // bytes
  alignas(64) std::atomic<uint32_t> writer_waits;  // 1: it wants to be rung for when `read` is `wake_at`
  std::atomic<uint64_t> wake_at;
  std::atomic<uint32_t> withdrawn;  // 1: the writer has gone, and what it lent may be something else by now
  std::array<Loan, kLoans> loans;   // in turns
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

class WayOut {
 public:
  WayOut(Way& way, int fd, size_t ring_offset, size_t capacity, std::shared_ptr<const SumMemory> sums);
  ~WayOut();

  uint64_t written() const { return written_; }
  size_t unread() const { return static_cast<size_t>(written_ - way_.read.load()); }
  size_t in_use() const;  // so many of the last bytes are lent, or follow on some that are

  // Takes some of these bytes and returns how many. Nobody is told of them yet.
  size_t put(const std::byte* from, size_t bytes);
  bool is_broken() const { return broken_; }  // the reader reads what nobody wrote

 private:
  struct Lent {
    uint64_t begin, end;
  };

  size_t room();
  bool lend(const std::byte* from, size_t bytes);

  Way& way_;
  const RingMemory memory_;
  const std::shared_ptr<const SumMemory> sums_;
  uint64_t written_ = 0, read_ = 0;  // as last seen
  uint64_t in_ring_ = 0;             // of the bytes written, those that went into the ring
  std::array<Lent, Way::kLoans> loans_{};
  uint64_t lent_ = 0, over_ = 0;  // loans
  uint64_t lent_bytes_ = 0;       // of those that are not over
  bool broken_ = false;
};

class WayIn {
 public:
  // `lent`: the memory that the writer may lend from.
  WayIn(Way& way, int fd, size_t ring_offset, size_t capacity, std::span<const std::byte> lent);

  // Copies what comes next, at most so many bytes and as far as it lies in one piece; 0: there is nothing.
  size_t take(std::byte* to, size_t most);
  // What comes next, if it is in the ring.
  std::span<const std::byte> peek();
  void skip(size_t bytes);  // of those

  uint64_t read() const { return read_; }
  bool is_broken() const { return broken_; }  // the writer wrote what cannot be, or took back what it lent

 private:
  struct Run {
    const std::byte* data = nullptr;
    size_t bytes = 0;
    bool is_lent = false;
    bool ends_loan = false;  // once all of it is read
  };

  Run next();
  Run next_lent(const Loan& loan, uint64_t begin, uint64_t held);
  Run broken();

  Way& way_;
  const RingMemory memory_;
  const std::span<const std::byte> lent_;
  uint64_t read_ = 0;
  uint64_t in_ring_ = 0;  // of the bytes read, those that came out of the ring
  uint64_t loans_ = 0;    // read
  bool broken_ = false;
};

}  // namespace byteps
