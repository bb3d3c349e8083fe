#include "shared_way.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "stream_copy.h"

namespace byteps {
namespace {

constexpr size_t kLeastLoan = 16 * 1024;  // what is shorter is copied sooner than looked up

}  // namespace

RingMemory::RingMemory(int fd, size_t offset, size_t capacity)
    : whole_(2 * capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), capacity(capacity) {
  for (std::byte* half : {whole_.data(), whole_.data() + capacity}) {
    map_over(half, capacity, PROT_READ | PROT_WRITE, fd, static_cast<off_t>(offset));
  }
}

WayOut::WayOut(Way& way, int fd, size_t ring_offset, size_t capacity, std::shared_ptr<const SumMemory> sums)
    : way_(way), memory_(fd, ring_offset, capacity), sums_(std::move(sums)) {}

// Whoever still reads what was lent finds this afterwards, and does not use it.
WayOut::~WayOut() {
  if (in_use() > 0) way_.withdrawn.exchange(1);
}

size_t WayOut::in_use() const {
  const uint64_t read = way_.read.load();
  for (uint64_t one = over_; one < lent_; ++one) {
    const Lent& loan = loans_[one % Way::kLoans];
    if (loan.end > read) return static_cast<size_t>(written_ - loan.begin);
  }
  return 0;
}

// In the ring. None either where as much as would fill it is on its way: nothing can overtake that.
size_t WayOut::room() {
  const uint64_t read = way_.read.load();
  if (read < read_ || read > written_) broken_ = true;
  if (broken_ || written_ - read >= memory_.capacity) return 0;
  read_ = read;
  for (; over_ < lent_ && loans_[over_ % Way::kLoans].end <= read; ++over_) {
    const Lent& loan = loans_[over_ % Way::kLoans];
    lent_bytes_ -= loan.end - loan.begin;
  }
  uint64_t lent = lent_bytes_;  // and not read
  if (over_ < lent_) lent -= read - std::min(read, loans_[over_ % Way::kLoans].begin);
  return memory_.capacity - static_cast<size_t>(written_ - read - lent);
}

size_t WayOut::put(const std::byte* from, size_t bytes) {
  const size_t n = std::min({room(), bytes, Way::kStepBytes});
  if (n == 0) return 0;
  if (lend(from, bytes)) return bytes;
  std::memcpy(memory_.at(in_ring_), from, n);
  in_ring_ += n;
  written_ += n;
  return n;
}

bool WayOut::lend(const std::byte* from, size_t bytes) {
  if (!sums_ || bytes < kLeastLoan || lent_ - over_ == Way::kLoans) return false;
  const auto offset = sums_->offset_of(from, bytes);
  if (!offset) return false;
  Loan& loan = way_.loans[lent_ % Way::kLoans];
  loan.position.store(written_);
  loan.offset.store(*offset);
  loan.bytes.store(bytes);
  loans_[lent_ % Way::kLoans] = {written_, written_ + bytes};
  way_.lent.store(++lent_);
  lent_bytes_ += bytes;
  written_ += bytes;
  return true;
}

WayIn::WayIn(Way& way, int fd, size_t ring_offset, size_t capacity, std::span<const std::byte> lent)
    : way_(way), memory_(fd, ring_offset, capacity), lent_(lent) {}

WayIn::Run WayIn::broken() {
  broken_ = true;
  return {};
}

WayIn::Run WayIn::next() {
  uint64_t held = way_.written.load() - read_;
  if (held == 0 || broken_) return {};
  if (way_.lent.load() != loans_) {
    const Loan& loan = way_.loans[loans_ % Way::kLoans];
    const uint64_t begin = loan.position.load();
    if (begin <= read_) return next_lent(loan, begin, held);
    held = std::min(held, begin - read_);
  }
  if (held > memory_.capacity) return broken();  // it wrote more than there is room for
  return {memory_.at(in_ring_), static_cast<size_t>(held)};
}

WayIn::Run WayIn::next_lent(const Loan& loan, uint64_t begin, uint64_t held) {
  const uint64_t offset = loan.offset.load(), bytes = loan.bytes.load(), done = read_ - begin;
  if (done >= bytes || offset > lent_.size() || bytes > lent_.size() - offset) return broken();
  const uint64_t n = std::min(bytes - done, held);
  return {&lent_[offset + done], static_cast<size_t>(n), true, n == bytes - done};
}

size_t WayIn::take(std::byte* to, size_t most) {
  const Run run = next();
  const size_t n = std::min({run.bytes, most, Way::kStepBytes});
  if (n == 0) return 0;
  run.is_lent ? stream_copy(to, run.data, n) : static_cast<void>(std::memcpy(to, run.data, n));
  if (run.is_lent) {
    // Not before the copy, hence a change of the value and not just a look at it.
    if (way_.withdrawn.fetch_add(0) != 0) return broken().bytes;
    if (run.ends_loan && n == run.bytes) ++loans_;
  } else {
    in_ring_ += n;
  }
  read_ += n;
  way_.read.store(read_);
  return n;
}

std::span<const std::byte> WayIn::peek() {
  const Run run = next();
  return run.is_lent ? std::span<const std::byte>() : std::span(run.data, run.bytes);
}

void WayIn::skip(size_t bytes) {
  in_ring_ += bytes;
  read_ += bytes;
  way_.read.store(read_);
}

}  // namespace byteps
