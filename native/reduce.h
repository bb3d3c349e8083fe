// Arithmetic over arrays: widen contributions into accumulators, combine them, and round the result
// back to the wire type. Knows types and operations, nothing about tensors, keys or peers.
//
// A contribution arrives in its wire type and is summed in an accumulation type: f32 for f16 and
// bf16, i64 for i8, u8, i16 and i32, its own type for all others. Integer sums wrap. Scale factors
// pass through double for integers (truncated, saturated to i64) and through the accumulation type
// for floats; booleans ignore them. Arrays need no alignment. Where sizes and operations are known
// not to fit (an unknown enum value), behaviour is undefined: callers check what comes from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace byteps {

enum class DType : uint8_t { f64, f32, f16, bf16, i8, u8, i16, i32, i64, boolean };
enum class Op : uint8_t { sum, average, min, max, product, copy };
inline constexpr size_t kDTypes = 10;
inline constexpr size_t kOps = 6;

// The instruction set in use, chosen for this machine: "avx512", "avx2" or "baseline".
const char* instruction_set();

// Bytes per element as sent, and as accumulated (for Op::copy the same).
size_t wire_size(DType dtype);
size_t accumulator_size(DType dtype, Op op);

// Whether the wire type is the accumulation type, so that a contribution can be received straight
// into the accumulator.
bool accumulates_in_place(DType dtype, Op op);

// acc[i] = wide(src[i]) * prescale. `acc` may equal `src` where accumulates_in_place.
void widen(DType dtype, Op op, void* acc, const void* src, size_t n, double prescale);

// acc[i] = acc[i] (op) wide(src[i]) * prescale. Minimum and maximum propagate NaN.
// Booleans: sum, average and maximum are "or", minimum and product are "and".
void accumulate(DType dtype, Op op, void* acc, const void* src, size_t n, double prescale);

// acc[i] = also[i] = wide(terms[0][i]) + wide(terms[1][i]) + ... in this order, of two to kMostTerms arrays:
// each is read once and each sum written once. `also` may equal `acc`, and a term either where
// accumulates_in_place.
inline constexpr size_t kMostTerms = 4;
void add(DType dtype, void* acc, void* also, std::span<const std::byte* const> terms, size_t n);

// acc[i] = acc[i] (op) other[i], both accumulators.
void merge(DType dtype, Op op, void* acc, const void* other, size_t n);

// out[i] = narrow(acc[i] * postscale / divisor). Floats round to nearest even, integers truncate
// toward zero and wrap to the wire type. `out` may equal `acc`, also where it is narrower.
void finish(DType dtype, Op op, void* out, const void* acc, size_t n, double postscale, uint32_t divisor);

}  // namespace byteps
