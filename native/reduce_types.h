// What one element is: for each DType its wire and accumulation types and the conversions between
// them, written without branches so that the compiler vectorises loops over them.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "reduce.h"

// Inlined into kernels whatever instruction set those are compiled for.
#define BYTEPS_INLINE [[gnu::always_inline]] inline

namespace byteps {

BYTEPS_INLINE float float_from_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
BYTEPS_INLINE uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }

BYTEPS_INLINE float float_from_half(uint16_t half) {
  const uint32_t exponent_mask = 0x7c00u << 13;
  const uint32_t magnitude = (half & 0x7fffu) << 13;
  const uint32_t exponent = magnitude & exponent_mask;
  const uint32_t normal = magnitude + ((127u - 15u) << 23);
  const uint32_t special = magnitude + ((255u - 31u) << 23);  // infinity and NaN
  // Subnormal: give it an implicit one, then subtract that one exactly.
  const float subnormal = float_from_bits(normal + (1u << 23)) - float_from_bits(113u << 23);
  uint32_t bits = exponent == exponent_mask ? special : normal;
  bits = exponent == 0 ? bits_of(subnormal) : bits;
  return float_from_bits(bits | (half & 0x8000u) << 16);
}

BYTEPS_INLINE uint16_t half_from_float(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Too large (65536 and up), infinity, NaN (made quiet, payload kept).
  const uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  const uint32_t large = magnitude > 0x7f800000u ? nan : 0x7c00u;
  // Below 2^-14: adding 0.5 shifts the mantissa into place, and the addition rounds to even.
  const uint32_t small = bits_of(float_from_bits(magnitude) + 0.5f) - bits_of(0.5f);
  // Normal: rebias the exponent and round to even; a carry into infinity is right.
  const uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  uint32_t half = magnitude < (113u << 23) ? small : normal;
  half = magnitude >= (143u << 23) ? large : half;
  return static_cast<uint16_t>(half | (bits >> 16 & 0x8000u));
}

BYTEPS_INLINE float float_from_bfloat(uint16_t half) { return float_from_bits(uint32_t{half} << 16); }

BYTEPS_INLINE uint16_t bfloat_from_float(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const uint32_t nan = bits >> 16 | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// Truncates toward zero; saturates, NaN becomes 0.
BYTEPS_INLINE int64_t truncated(double value) {
  if (value != value) return 0;
  if (value >= 0x1p63) return std::numeric_limits<int64_t>::max();
  if (value < -0x1p63) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(value);
}

struct Boolean {
  uint8_t value;
};

template <class T>
struct Own {  // accumulated in its wire type
  using Wire = T;
  using Accumulator = T;
  BYTEPS_INLINE static T widen(T value) { return value; }
};

template <class T>
struct Small {  // an integer accumulated in 64 bits
  using Wire = T;
  using Accumulator = int64_t;
  BYTEPS_INLINE static int64_t widen(T value) { return value; }
  BYTEPS_INLINE static T narrow(int64_t value) { return static_cast<T>(value); }
};

struct Half {
  using Wire = uint16_t;
  using Accumulator = float;
  BYTEPS_INLINE static float widen(uint16_t value) { return float_from_half(value); }
  BYTEPS_INLINE static uint16_t narrow(float value) { return half_from_float(value); }
};

struct BFloat {
  using Wire = uint16_t;
  using Accumulator = float;
  BYTEPS_INLINE static float widen(uint16_t value) { return float_from_bfloat(value); }
  BYTEPS_INLINE static uint16_t narrow(float value) { return bfloat_from_float(value); }
};

template <Op op, class T>
BYTEPS_INLINE T combined(T a, T b) {
  if constexpr (std::is_same_v<T, Boolean>) {
    if constexpr (op == Op::min || op == Op::product)
      return {static_cast<uint8_t>((a.value != 0) & (b.value != 0))};
    else
      return {static_cast<uint8_t>((a.value | b.value) != 0)};
  } else if constexpr (op == Op::min) {
    return ((a < b) | (a != a)) ? a : b;
  } else if constexpr (op == Op::max) {
    return ((a > b) | (a != a)) ? a : b;
  } else if constexpr (std::is_same_v<T, int64_t>) {  // wraps
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<int64_t>(op == Op::product ? x * y : x + y);
  } else {
    return op == Op::product ? a * b : a + b;
  }
}

}  // namespace byteps
