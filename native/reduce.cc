// Composes the loops of the best instruction set at hand into the operations of reduce.h.
#include "reduce.h"

#include <algorithm>
#include <cstring>

#include "reduce_kernels.h"

namespace byteps {

namespace {

constexpr size_t kBlock = 1024;  // elements converted at a time; a block of accumulators stays in L1

const Kernels& select_kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return avx512::kernels;
  if (__builtin_cpu_supports("avx2")) return avx2::kernels;
#endif
  return baseline::kernels;
}

const Kernels& kernels() {
  static const Kernels& selected = select_kernels();
  return selected;
}

size_t index(DType dtype) { return static_cast<size_t>(dtype); }
size_t index(Op op) { return static_cast<size_t>(op); }

DType accumulation_type(DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
      return DType::f32;
    case DType::i8:
    case DType::u8:
    case DType::i16:
    case DType::i32:
      return DType::i64;
    default:
      return dtype;
  }
}

void scale(DType accumulation, void* values, size_t n, double factor, uint32_t divisor) {
  const auto loop = kernels().scale[index(accumulation)];
  if (loop != nullptr && (factor != 1.0 || divisor != 1))
    loop(static_cast<char*>(values), n, factor, divisor);
}

// A block of accumulators on the stack, for conversions whose input and output may overlap.
struct Block {
  alignas(64) char values[kBlock * sizeof(int64_t)];
};

}  // namespace

const char* instruction_set() {
#if defined(__x86_64__)
  if (&kernels() == &avx512::kernels) return "avx512";
  if (&kernels() == &avx2::kernels) return "avx2";
#endif
  return "baseline";
}

size_t wire_size(DType dtype) {
  constexpr uint8_t sizes[kDTypes] = {8, 4, 2, 2, 1, 1, 2, 4, 8, 1};
  return sizes[index(dtype)];
}

size_t accumulator_size(DType dtype, Op op) {
  return wire_size(op == Op::copy ? dtype : accumulation_type(dtype));
}

bool accumulates_in_place(DType dtype, Op op) { return op == Op::copy || accumulation_type(dtype) == dtype; }

void widen(DType dtype, Op op, void* acc, const void* src, size_t n, double prescale) {
  if (n == 0) return;
  if (!accumulates_in_place(dtype, op))
    kernels().widen[index(dtype)](static_cast<char*>(acc), static_cast<const char*>(src), n);
  else if (acc != src)
    std::memcpy(acc, src, n * wire_size(dtype));
  if (op != Op::copy) scale(accumulation_type(dtype), acc, n, prescale, 1);
}

void accumulate(DType dtype, Op op, void* acc, const void* src, size_t n, double prescale) {
  if (n == 0) return;
  if (op == Op::copy) {
    std::memcpy(acc, src, n * wire_size(dtype));
    return;
  }
  auto* out = static_cast<char*>(acc);
  const auto* in = static_cast<const char*>(src);
  if (prescale == 1.0) {
    kernels().combine[index(dtype)][index(op)](out, in, n);
    return;
  }
  const size_t in_size = wire_size(dtype), out_size = accumulator_size(dtype, op);
  Block block;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t count = std::min(kBlock, n - begin);
    widen(dtype, op, block.values, in + begin * in_size, count, prescale);
    merge(dtype, op, out + begin * out_size, block.values, count);
  }
}

void add(DType dtype, void* acc, void* also, std::span<const std::byte* const> terms, size_t n) {
  const auto loop = kernels().add[index(dtype)][terms.size() - 2];
  loop(static_cast<char*>(acc), static_cast<char*>(also), terms.data(), n);
}

void merge(DType dtype, Op op, void* acc, const void* other, size_t n) {
  const DType type = op == Op::copy ? dtype : accumulation_type(dtype);
  accumulate(type, op, acc, other, n, 1.0);
}

void finish(DType dtype, Op op, void* out, const void* acc, size_t n, double postscale, uint32_t divisor) {
  if (n == 0) return;
  const DType type = accumulation_type(dtype);
  if (accumulates_in_place(dtype, op)) {
    if (out != acc) std::memcpy(out, acc, n * wire_size(dtype));
    if (op != Op::copy) scale(type, out, n, postscale, divisor);
    return;
  }
  const size_t in_size = wire_size(type), out_size = wire_size(dtype);
  Block block;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t count = std::min(kBlock, n - begin);
    std::memcpy(block.values, static_cast<const char*>(acc) + begin * in_size, count * in_size);
    scale(type, block.values, count, postscale, divisor);
    kernels().narrow[index(dtype)](static_cast<char*>(out) + begin * out_size, block.values, count);
  }
}

}  // namespace byteps
