// Summation of one round of one partition, cell by cell. No I/O: a lane asks where received bytes go and says
// when a cell is complete.
//
// The first contribution to reach a cell is received straight into the accumulator where the wire type is the
// accumulation type; later ones go to a cell-sized buffer and are added from there, hot in the cache. While a
// slow contributor is still filling the accumulator's cell, the others sum aside, so it delays nobody's cell
// but its own.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "reduce.h"
#include "sum_memory.h"
#include "wire.h"

namespace byteps {

// What the coordinator declared about a tensor, as far as summing needs it.
struct Arithmetic {
  DType dtype = DType::f32;
  Op op = Op::sum;
  double prescale = 1.0;
  double postscale = 1.0;
};

// Uninitialised memory, aligned for any vector instruction.
using Buffer = std::shared_ptr<std::byte[]>;
Buffer make_buffer(size_t bytes);

// Buffers of one thread, kept for the next rounds when they are let go: memory fresh from the system costs a
// page fault for each of its pages, a third of the time of a sum.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  Buffer make(size_t bytes);
  Buffer make_sum(size_t bytes);  // where workers may read it, if there is room
  void sum_in(std::shared_ptr<SumMemory> memory) { sums_ = std::move(memory); }

 private:
  static constexpr size_t kMaxKeptBytes = 32 * 1024 * 1024;

  std::unordered_map<size_t, std::vector<Buffer>> kept_;  // by size
  size_t kept_bytes_ = 0;
  std::shared_ptr<SumMemory> sums_;
};

// The finished sum, in wire format. Cells are laid out at the accumulator's stride, which is wider than the
// wire's for the dtypes that accumulate in a wider type.
struct Sum {
  Buffer data;
  size_t bytes = 0;        // wire bytes
  size_t cell_stride = 0;  // bytes from one cell to the next

  // The pieces of memory that hold wire bytes [offset, offset + length); offset is a multiple of the cell
  // size.
  size_t pieces(size_t offset, size_t length, std::span<iovec> out) const;
};

class Round {
 public:
  // `members`: by rank, who contributes; nobody else may. Empty: all do. `divisor`: of an average; 0: as
  // many.
  Round(const Arithmetic& arithmetic, size_t bytes, uint32_t workers, bool deterministic,
        const std::vector<bool>& members = {}, uint32_t divisor = 0,
        std::shared_ptr<BufferPool> pool = std::make_shared<BufferPool>());

  // Where byte `offset` of rank's contribution goes, up to the end of its cell. `scratch` is the caller's
  // cell-sized buffer, used when the bytes cannot go into the sum directly.
  std::span<std::byte> destination(uint32_t rank, size_t offset, std::span<std::byte> scratch);
  // The cell that starts at `offset` is complete: in the accumulator or in scratch, as destination() said.
  void add_cell(uint32_t rank, size_t offset, std::span<const std::byte> scratch);
  void add_nothing(uint32_t rank);  // an empty contribution

  bool has_begun(uint32_t rank) const { return contributors_[rank].begun; }
  bool is_complete(uint32_t rank) const { return contributors_[rank].cells_left == 0; }
  bool is_complete() const { return incomplete_ == 0; }
  Sum result();  // once complete

 private:
  struct Cell {
    int32_t filler = -1;  // the rank that is receiving into the accumulator
    bool empty = true;    // no contribution is in the accumulator yet
    Buffer aside;         // the others' sum while a filler is at work
  };
  struct Contributor {
    uint32_t cells_left = 0;
    bool begun = false;
    Buffer data;  // deterministic mode: the whole contribution
  };

  size_t cell_of(size_t offset) const { return offset / kCellBytes; }
  size_t cell_bytes(size_t cell) const { return std::min(kCellBytes, bytes_ - cell * kCellBytes); }
  size_t elements(size_t cell) const { return cell_bytes(cell) / wire_size(arithmetic_.dtype); }
  std::byte* accumulator(size_t cell) { return sum_.get() + cell * stride_; }
  bool has(uint32_t rank, size_t cell) const { return have_[rank * cells_.size() + cell]; }
  void add_to_accumulator(size_t cell, const std::byte* from);
  void finish_filling(size_t cell);
  void add_aside(size_t cell, const std::byte* from);
  void add_in_rank_order();

  const Arithmetic arithmetic_;
  const size_t bytes_;
  const bool direct_;  // the wire type is the accumulation type
  const bool deterministic_;
  const size_t stride_;
  const std::shared_ptr<BufferPool> pool_;
  Buffer sum_;
  std::vector<Cell> cells_;
  std::vector<Contributor> contributors_;
  std::vector<bool> have_;  // (rank, cell): anything may arrive again and is ignored then
  uint32_t incomplete_;     // contributors that are not complete
  const uint32_t divisor_;  // of an average
};

}  // namespace byteps
