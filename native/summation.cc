#include "summation.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace byteps {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

Buffer make_buffer(size_t bytes) {
  auto* data = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  return Buffer(data, [](std::byte* buffer) { ::operator delete(buffer, kAlignment); });
}

Buffer BufferPool::make(size_t bytes) {
  if (bytes < kCellBytes) return make_buffer(bytes);
  bytes = (bytes + kCellBytes - 1) / kCellBytes * kCellBytes;  // so that few sizes are kept
  auto& kept = kept_[bytes];
  Buffer memory;
  if (kept.empty()) {
    memory = make_buffer(bytes);
  } else {
    memory = std::move(kept.back());
    kept.pop_back();
    kept_bytes_ -= bytes;
  }
  std::byte* data = memory.get();
  return Buffer(data, [pool = shared_from_this(), memory = std::move(memory), bytes](std::byte*) mutable {
    if (pool->kept_bytes_ + bytes > kMaxKeptBytes) {  // other sizes than are used now, perhaps
      pool->kept_.clear();
      pool->kept_bytes_ = 0;
    }
    pool->kept_[bytes].push_back(std::move(memory));
    pool->kept_bytes_ += bytes;
  });
}

Buffer BufferPool::make_sum(size_t bytes) {
  std::byte* data = sums_ && bytes >= kCellBytes ? sums_->take(bytes) : nullptr;
  if (data == nullptr) return make(bytes);
  return Buffer(data, [sums = sums_, bytes](std::byte* sum) { sums->give_back(sum, bytes); });
}

size_t Sum::pieces(size_t offset, size_t length, std::span<iovec> out) const {
  if (cell_stride == kCellBytes) {
    out[0] = {data.get() + offset, length};
    return 1;
  }
  size_t count = 0;
  for (size_t done = 0; done < length; done += kCellBytes) {
    std::byte* cell = data.get() + (offset + done) / kCellBytes * cell_stride;
    out[count++] = {cell, std::min(kCellBytes, length - done)};
  }
  return count;
}

Round::Round(const Arithmetic& arithmetic, size_t bytes, uint32_t workers, bool deterministic,
             const std::vector<bool>& members, uint32_t divisor, std::shared_ptr<BufferPool> pool)
    : arithmetic_(arithmetic),
      bytes_(bytes),
      direct_(accumulates_in_place(arithmetic.dtype, arithmetic.op)),
      deterministic_(deterministic && arithmetic.op != Op::copy),
      stride_(kCellBytes / wire_size(arithmetic.dtype) * accumulator_size(arithmetic.dtype, arithmetic.op)),
      pool_(std::move(pool)),
      cells_((bytes + kCellBytes - 1) / kCellBytes),
      contributors_(workers),
      have_(workers * cells_.size()),
      incomplete_(members.empty() ? workers
                                  : static_cast<uint32_t>(std::count(members.begin(), members.end(), true))),
      divisor_(divisor == 0 ? incomplete_ : divisor) {
  // The last cell may be shorter than the stride; a small tensor should not cost a whole cell.
  const size_t widening = stride_ / kCellBytes;
  sum_ = pool_->make_sum((cells_.size() - 1) * stride_ + cell_bytes(cells_.size() - 1) * widening);
  for (uint32_t rank = 0; rank < workers; ++rank) {
    if (members.empty() || members[rank])
      contributors_[rank].cells_left = static_cast<uint32_t>(cells_.size());
  }
}

std::span<std::byte> Round::destination(uint32_t rank, size_t offset, std::span<std::byte> scratch) {
  const size_t index = cell_of(offset);
  const size_t length = cell_bytes(index);
  Contributor& from = contributors_[rank];
  from.begun = true;
  if (has(rank, index)) return scratch.first(length);  // received before: add_cell ignores it
  if (deterministic_) {
    if (!from.data) from.data = pool_->make(bytes_);
    return {from.data.get() + offset, length};
  }
  Cell& cell = cells_[index];
  if (!direct_ || !cell.empty || cell.filler >= 0) return scratch.first(length);
  cell.filler = static_cast<int32_t>(rank);
  return {accumulator(index), length};
}

void Round::add_cell(uint32_t rank, size_t offset, std::span<const std::byte> scratch) {
  const size_t index = cell_of(offset);
  Contributor& from = contributors_[rank];
  if (has(rank, index)) return;
  have_[rank * cells_.size() + index] = true;
  if (!deterministic_) {
    Cell& cell = cells_[index];
    if (cell.filler == static_cast<int32_t>(rank)) {
      finish_filling(index);
    } else if (cell.filler >= 0) {
      add_aside(index, scratch.data());
    } else {
      add_to_accumulator(index, scratch.data());
    }
  }
  if (--from.cells_left == 0) --incomplete_;
}

void Round::add_nothing(uint32_t rank) {
  Contributor& from = contributors_[rank];
  from.begun = true;
  if (from.cells_left == 0) return;
  from.cells_left = 0;
  --incomplete_;
}

void Round::add_to_accumulator(size_t index, const std::byte* from) {
  Cell& cell = cells_[index];
  const auto add = cell.empty ? widen : accumulate;
  add(arithmetic_.dtype, arithmetic_.op, accumulator(index), from, elements(index), arithmetic_.prescale);
  cell.empty = false;
}

// The cell was received in place. Only the scale and what the others summed aside are still to come.
void Round::finish_filling(size_t index) {
  Cell& cell = cells_[index];
  cell.filler = -1;
  cell.empty = false;
  if (arithmetic_.prescale != 1.0 && arithmetic_.op != Op::copy) {
    widen(arithmetic_.dtype, arithmetic_.op, accumulator(index), accumulator(index), elements(index),
          arithmetic_.prescale);
  }
  if (!cell.aside) return;
  merge(arithmetic_.dtype, arithmetic_.op, accumulator(index), cell.aside.get(), elements(index));
  cell.aside.reset();
}

void Round::add_aside(size_t index, const std::byte* from) {
  Cell& cell = cells_[index];
  const auto add = cell.aside ? accumulate : widen;
  if (!cell.aside) cell.aside = pool_->make(kCellBytes);
  add(arithmetic_.dtype, arithmetic_.op, cell.aside.get(), from, elements(index), arithmetic_.prescale);
}

void Round::add_in_rank_order() {
  for (size_t index = 0; index < cells_.size(); ++index) {
    for (Contributor& from : contributors_) {
      if (from.data) add_to_accumulator(index, from.data.get() + index * kCellBytes);
    }
  }
}

Sum Round::result() {
  if (deterministic_) add_in_rank_order();
  const uint32_t divisor = arithmetic_.op == Op::average ? divisor_ : 1;
  const bool as_is = direct_ && divisor == 1 && (arithmetic_.postscale == 1.0 || arithmetic_.op == Op::copy);
  for (size_t index = 0; index < cells_.size(); ++index) {
    if (cells_[index].empty) {
      std::memset(accumulator(index), 0, cell_bytes(index));  // nobody contributed: zero in every wire format
    } else if (!as_is) {
      finish(arithmetic_.dtype, arithmetic_.op, accumulator(index), accumulator(index), elements(index),
             arithmetic_.postscale, divisor);
    }
  }
  return {sum_, bytes_, stride_};
}

}  // namespace byteps
