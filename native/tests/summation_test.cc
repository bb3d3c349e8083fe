// Native test of summation.h: whatever the order in which cells of several ranks arrive, the sum is that of a
// plain loop.
#include "summation.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "check.h"

namespace {

using namespace byteps;
using Bytes = std::vector<std::byte>;

Bytes few_small_values(DType dtype, size_t n, std::mt19937& random) {
  std::vector<int64_t> values(n);
  const int low = dtype == DType::u8 || dtype == DType::boolean ? 0 : -4;
  for (int64_t& value : values) value = low + static_cast<int>(random() % (dtype == DType::boolean ? 2 : 5));
  const std::vector<double> doubles(values.begin(), values.end());
  const std::vector<float> floats(values.begin(), values.end());
  const std::vector<uint8_t> booleans(values.begin(), values.end());
  const void* accumulators = values.data();
  if (dtype == DType::f64) accumulators = doubles.data();
  if (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16) accumulators = floats.data();
  if (dtype == DType::boolean) accumulators = booleans.data();
  Bytes bytes(n * wire_size(dtype));
  finish(dtype, Op::sum, bytes.data(), accumulators, n, 1.0, 1);
  return bytes;
}

// Small integers, the same few over and over: every order of adding them gives the same bits.
Bytes small_values(DType dtype, size_t n, std::mt19937& random) {
  const Bytes few = few_small_values(dtype, 509, random);
  Bytes bytes;
  while (bytes.size() < n * wire_size(dtype)) bytes.insert(bytes.end(), few.begin(), few.end());
  bytes.resize(n * wire_size(dtype));
  return bytes;
}

// The plain loop: one contribution after the other, in rank order.
Bytes reference(const Arithmetic& a, const std::vector<Bytes>& contributions, size_t bytes) {
  const size_t n = bytes / wire_size(a.dtype);
  Bytes accumulator(n * accumulator_size(a.dtype, a.op)), out(bytes);
  bool first = true;
  for (const Bytes& from : contributions) {
    if (from.empty()) continue;
    (first ? widen : accumulate)(a.dtype, a.op, accumulator.data(), from.data(), n, a.prescale);
    first = false;
  }
  const auto divisor = a.op == Op::average ? static_cast<uint32_t>(contributions.size()) : 1;
  if (!first) finish(a.dtype, a.op, out.data(), accumulator.data(), n, a.postscale, divisor);
  return out;
}

Bytes gathered(const Sum& sum, std::mt19937& random) {
  Bytes out;
  while (out.size() < sum.bytes) {
    const size_t cells = 1 + random() % kMaxChunkCells;
    const size_t length = std::min(cells * kCellBytes, sum.bytes - out.size());
    std::vector<iovec> pieces(kMaxChunkCells);
    const size_t count = sum.pieces(out.size(), length, pieces);
    for (size_t i = 0; i < count; ++i) {
      const auto* from = static_cast<const std::byte*>(pieces[i].iov_base);
      out.insert(out.end(), from, from + pieces[i].iov_len);
    }
  }
  CHECK_EQUAL(out.size(), sum.bytes);
  return out;
}

// One rank that sends its cells one after the other, some of them twice. Between begin() and finish() of a
// cell anything may happen elsewhere: that is what a slow sender is.
class Contributor {
 public:
  Contributor(Round& round, uint32_t rank, const Bytes& data) : round_(round), rank_(rank), data_(data) {}

  bool is_done() const { return !filling_ && sent_ && next_ >= data_.size(); }
  void step(std::mt19937& random) {
    if (data_.empty()) {
      round_.add_nothing(rank_);
      sent_ = true;
    } else if (filling_) {
      std::memcpy(filling_->data(), data_.data() + offset_, filling_->size());
      round_.add_cell(rank_, offset_, scratch_);
      filling_.reset();
    } else {
      const bool again = sent_ && random() % 8 == 0;
      offset_ = again ? offset_ : next_;
      filling_ = round_.destination(rank_, offset_, scratch_);
      CHECK_EQUAL(filling_->size(), std::min(kCellBytes, data_.size() - offset_));
      if (!again) next_ += filling_->size();
      sent_ = true;
    }
  }

 private:
  Round& round_;
  const uint32_t rank_;
  const Bytes& data_;
  Bytes scratch_ = Bytes(kCellBytes);
  size_t next_ = 0, offset_ = 0;
  bool sent_ = false;
  std::optional<std::span<std::byte>> filling_;
};

// Lets the contributions arrive in an order that the seed decides.
Bytes summed(const Arithmetic& arithmetic, const std::vector<Bytes>& contributions, size_t bytes,
             bool deterministic, uint32_t seed) {
  std::mt19937 random(seed);
  const auto workers = static_cast<uint32_t>(contributions.size());
  Round round(arithmetic, bytes, workers, deterministic);
  std::vector<Contributor> ranks;
  for (uint32_t rank = 0; rank < workers; ++rank) ranks.emplace_back(round, rank, contributions[rank]);
  const uint32_t stalled = random() % (2 * workers);  // of half the histories: moves rarely
  uint32_t left = workers;
  while (left > 0) {
    const uint32_t rank = random() % workers;
    if (ranks[rank].is_done() || (rank == stalled && random() % 16 != 0)) continue;
    CHECK(!round.is_complete());
    ranks[rank].step(random);
    CHECK(round.has_begun(rank));
    if (!ranks[rank].is_done()) continue;
    CHECK(round.is_complete(rank));
    --left;
  }
  CHECK(round.is_complete());
  return gathered(round.result(), random);
}

void check_type(DType dtype, Op op) {
  std::mt19937 random(static_cast<uint32_t>(dtype) * 10 + static_cast<uint32_t>(op));
  const size_t element = wire_size(dtype);
  for (const size_t bytes : {element, kCellBytes, kCellBytes + element, 2 * kCellBytes - 80}) {
    for (uint32_t workers = 1; workers <= 4; workers += 1 + random() % 2) {
      std::vector<Bytes> contributions(workers);
      const uint32_t root = random() % workers;
      for (uint32_t rank = 0; rank < workers; ++rank) {
        const bool adds = op == Op::copy ? rank == root : random() % 6 != 0;
        if (adds) contributions[rank] = small_values(dtype, bytes / element, random);
      }
      Arithmetic arithmetic{dtype, op, 1.0, 1.0};
      if (random() % 2 == 0) arithmetic.prescale = 0.5;
      if (random() % 2 == 0) arithmetic.postscale = 2.0;
      const bool deterministic = random() % 4 == 0;
      const Bytes actual = summed(arithmetic, contributions, bytes, deterministic, random());
      CHECK(actual == reference(arithmetic, contributions, bytes));
    }
  }
}

// With values whose sum depends on the order, deterministic rounds give the bits of rank order; others may
// not.
void check_deterministic(DType dtype) {
  std::mt19937 random(1);
  const size_t n = 3 * kCellBytes / wire_size(dtype) / 2;
  std::vector<Bytes> contributions(5, Bytes(n * wire_size(dtype)));
  for (Bytes& from : contributions) {
    std::vector<float> values(n);
    for (float& value : values)
      value = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 60) - 30);
    finish(dtype == DType::f32 ? DType::bf16 : dtype, Op::sum, from.data(), values.data(), n, 1.0, 1);
    if (dtype == DType::f32) std::memcpy(from.data(), values.data(), from.size());
  }
  const Arithmetic arithmetic{dtype, Op::average, 0.3, 1.7};
  const Bytes expected = reference(arithmetic, contributions, n * wire_size(dtype));
  size_t different = 0;
  for (uint32_t seed = 0; seed < 8; ++seed) {
    CHECK(summed(arithmetic, contributions, expected.size(), true, seed) == expected);
    if (summed(arithmetic, contributions, expected.size(), false, seed) != expected) ++different;
  }
  CHECK(dtype != DType::f32 || different > 0);  // or this shows nothing
}

}  // namespace

int main() {
  for (size_t dtype = 0; dtype < kDTypes; ++dtype) {
    for (size_t op = 0; op < kOps; ++op) check_type(static_cast<DType>(dtype), static_cast<Op>(op));
  }
  check_deterministic(DType::f32);
  check_deterministic(DType::bf16);
  return 0;
}
