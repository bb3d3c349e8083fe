// Native test of reduce.h: every type and operation over odd sizes and unaligned arrays (for the
// sanitizers), and the values that conversions get wrong.
#include "reduce.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "reduce_kernels.h"

namespace {

using byteps::DType;
using byteps::Op;

using Bytes = std::vector<char>;

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Reduces the contributions as a server does; results land over the accumulator.
template <class T>
std::vector<T> reduced(DType dtype, Op op, const std::vector<std::vector<T>>& contributions,
                       double prescale = 1.0, double postscale = 1.0, uint32_t divisor = 1) {
  const size_t n = contributions.front().size();
  // One byte off, so that nothing is aligned.
  Bytes acc(n * byteps::accumulator_size(dtype, op) + 1);
  bool first = true;
  for (const auto& contribution : contributions) {
    const Bytes source = bytes_of(contribution);
    if (first)
      byteps::widen(dtype, op, acc.data() + 1, source.data(), n, prescale);
    else
      byteps::accumulate(dtype, op, acc.data() + 1, source.data(), n, prescale);
    first = false;
  }
  byteps::finish(dtype, op, acc.data() + 1, acc.data() + 1, n, postscale, divisor);
  std::vector<T> out(n);
  if (n != 0) std::memcpy(out.data(), acc.data() + 1, n * sizeof(T));
  return out;
}

template <class T>
void check_sizes(DType dtype) {
  CHECK_EQUAL(byteps::wire_size(dtype), sizeof(T));
  for (const size_t n : {0, 1, 7, 63, 1023, 1025, 4099}) {
    const std::vector<T> zeros(n);  // all bits zero is zero, false or 0.0 in every type
    for (const Op op : {Op::sum, Op::average, Op::min, Op::max, Op::product}) {
      CHECK(reduced<T>(dtype, op, {zeros, zeros, zeros}) == zeros);
      CHECK(reduced<T>(dtype, op, {zeros, zeros}, 0.5, 2.0, 2) == zeros);
    }
    CHECK(reduced<T>(dtype, Op::copy, {zeros}) == zeros);
  }
}

void check_all_sizes() {
  check_sizes<double>(DType::f64);
  check_sizes<float>(DType::f32);
  check_sizes<uint16_t>(DType::f16);
  check_sizes<uint16_t>(DType::bf16);
  check_sizes<int8_t>(DType::i8);
  check_sizes<uint8_t>(DType::u8);
  check_sizes<int16_t>(DType::i16);
  check_sizes<int32_t>(DType::i32);
  check_sizes<int64_t>(DType::i64);
  check_sizes<uint8_t>(DType::boolean);
}

// Every bit pattern of a 16-bit float survives widening and narrowing, but for quieted NaNs.
void check_round_trip(DType dtype, uint16_t infinity) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const auto out = reduced<uint16_t>(dtype, Op::sum, {all});
  for (size_t i = 0; i < all.size(); ++i) {
    const bool nan = (all[i] & 0x7fff) > infinity;
    CHECK(nan ? (out[i] & 0x7fff) > infinity : out[i] == all[i]);
  }
}

// What the f32 accumulator `value` becomes as a 16-bit float.
uint16_t narrowed(DType dtype, float value) {
  uint16_t out = 0;
  byteps::finish(dtype, Op::sum, &out, &value, 1, 1.0, 1);
  return out;
}

void check_half_rounding() {
  CHECK_EQUAL(narrowed(DType::f16, 65504.0f), 0x7bff);
  CHECK_EQUAL(narrowed(DType::f16, 65519.0f), 0x7bff);
  CHECK_EQUAL(narrowed(DType::f16, 65520.0f), 0x7c00);
  CHECK_EQUAL(narrowed(DType::f16, -1e9f), 0xfc00);
  CHECK_EQUAL(narrowed(DType::f16, 0x1p-24f), 0x0001);
  CHECK_EQUAL(narrowed(DType::f16, 0x1p-25f), 0x0000);       // tie to even
  CHECK_EQUAL(narrowed(DType::f16, 0x1.8p-24f), 0x0002);     // tie to even
  CHECK_EQUAL(narrowed(DType::f16, 0x1.002p0f), 0x3c00);     // tie to even
  CHECK_EQUAL(narrowed(DType::f16, 0x1.006p0f), 0x3c02);     // tie to even
  CHECK_EQUAL(narrowed(DType::f16, -0x1.ff8p-15f), 0x83ff);  // largest subnormal
  CHECK((narrowed(DType::f16, std::nanf("")) & 0x7fff) > 0x7c00);
}

void check_bfloat_rounding() {
  CHECK_EQUAL(narrowed(DType::bf16, 0x1.01p0f), 0x3f80);  // tie to even
  CHECK_EQUAL(narrowed(DType::bf16, 0x1.03p0f), 0x3f82);  // tie to even
  CHECK_EQUAL(narrowed(DType::bf16, std::numeric_limits<float>::max()), 0x7f80);
  CHECK_EQUAL(narrowed(DType::bf16, 0x1p-149f), 0x0000);
  const float nan = __builtin_bit_cast(float, 0x7f800001u);  // its payload is below the kept bits
  CHECK((narrowed(DType::bf16, nan) & 0x7fff) > 0x7f80);
}

void check_integers() {
  using I64 = std::numeric_limits<int64_t>;
  CHECK_EQUAL(reduced<int64_t>(DType::i64, Op::sum, {{I64::max()}, {1}})[0], I64::min());
  CHECK_EQUAL(reduced<int64_t>(DType::i64, Op::product, {{I64::max()}, {2}})[0], int64_t{-2});
  CHECK_EQUAL(reduced<int64_t>(DType::i64, Op::sum, {{1}}, 1e300)[0], I64::max());
  CHECK_EQUAL(reduced<int64_t>(DType::i64, Op::sum, {{1}}, std::nan(""))[0], int64_t{0});
  CHECK_EQUAL(int{reduced<int8_t>(DType::i8, Op::sum, {{127}, {1}})[0]}, -128);
  CHECK_EQUAL(int{reduced<uint8_t>(DType::u8, Op::average, {{255}, {254}}, 1.0, 1.0, 2)[0]}, 254);
  CHECK_EQUAL(reduced<int32_t>(DType::i32, Op::average, {{-5}, {-2}}, 1.0, 1.0, 2)[0], -3);
  CHECK_EQUAL(reduced<int32_t>(DType::i32, Op::sum, {{-5}, {5}}, 0.5)[0], 0);
}

void check_merge_is_accumulate() {
  const std::vector<float> a{1.5f, -2.0f, 4.0f}, b{0.5f, 8.0f, -1.0f};
  std::vector<float> merged = a;
  byteps::merge(DType::bf16, Op::max, merged.data(), b.data(), 3);  // accumulators of bf16 are f32
  CHECK(merged == (std::vector<float>{1.5f, 8.0f, 4.0f}));
  byteps::merge(DType::bf16, Op::average, merged.data(), b.data(), 3);
  CHECK(merged == (std::vector<float>{2.0f, 16.0f, 3.0f}));
}

void check_in_place_widen() {
  CHECK(byteps::accumulates_in_place(DType::f32, Op::sum));
  CHECK(!byteps::accumulates_in_place(DType::f16, Op::sum));
  CHECK(byteps::accumulates_in_place(DType::f16, Op::copy));
  std::vector<float> values{1.0f, 2.0f, 3.0f};
  byteps::widen(DType::f32, Op::sum, values.data(), values.data(), 3, 0.5);
  CHECK(values == (std::vector<float>{0.5f, 1.0f, 1.5f}));
}

// Equal bytes, or NaN on both sides in elements of the floating-point type T.
template <class T>
bool same_values(const Bytes& a, const Bytes& b) {
  for (size_t i = 0; i + sizeof(T) <= a.size(); i += sizeof(T)) {
    T x, y;
    std::memcpy(&x, a.data() + i, sizeof(T));
    std::memcpy(&y, b.data() + i, sizeof(T));
    if (std::memcmp(&x, &y, sizeof(T)) != 0 && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

bool same_accumulators(DType dtype, const Bytes& a, const Bytes& b) {
  if (dtype == DType::f64) return same_values<double>(a, b);
  if (dtype <= DType::bf16) return same_values<float>(a, b);
  return a == b;
}

Bytes random_bytes(size_t n) {
  std::mt19937 generator(1);
  Bytes bytes(n);
  for (char& byte : bytes) byte = static_cast<char>(generator());
  return bytes;
}

// Several terms at once against one after the other, also where the sum goes over a term.
void check_add(const byteps::Kernels& kernels, DType dtype) {
  constexpr size_t n = 1003;
  const auto t = static_cast<size_t>(dtype);
  const size_t size = byteps::wire_size(dtype);
  const bool in_place = byteps::accumulates_in_place(dtype, Op::sum);
  const Bytes data = random_bytes((byteps::kMostTerms * n + 1) * size);
  for (size_t count = 2; count <= byteps::kMostTerms; ++count) {
    Bytes terms = data, expected(n * byteps::accumulator_size(dtype, Op::sum)), also = expected;
    std::vector<const std::byte*> in;
    for (size_t i = 0; i < count; ++i) in.push_back(reinterpret_cast<std::byte*>(&terms[i * n * size + 1]));
    byteps::widen(dtype, Op::sum, expected.data(), in[0], n, 1.0);
    for (size_t i = 1; i < count; ++i) byteps::accumulate(dtype, Op::sum, expected.data(), in[i], n, 1.0);
    Bytes other(expected.size());
    char* const out = in_place ? &terms[(count - 1) * n * size + 1] : other.data();
    kernels.add[t][count - 2](out, also.data(), in.data(), n);
    CHECK(same_accumulators(dtype, also, expected));
    CHECK(same_accumulators(dtype, Bytes(out, out + expected.size()), expected));
  }
}

// One instruction set's loops against the baseline's, on random bits.
void check_kernels(const byteps::Kernels& kernels) {
  constexpr size_t n = 10001;
  for (size_t t = 0; t < byteps::kDTypes; ++t) {
    const auto dtype = static_cast<DType>(t);
    check_add(kernels, dtype);
    const Bytes in = random_bytes(n * byteps::wire_size(dtype));
    const Bytes start = random_bytes(n * byteps::accumulator_size(dtype, Op::sum));
    Bytes actual = start, expected = start;
    for (const Op op : {Op::sum, Op::average, Op::min, Op::max, Op::product}) {
      kernels.combine[t][static_cast<size_t>(op)](actual.data(), in.data(), n);
      byteps::baseline::kernels.combine[t][static_cast<size_t>(op)](expected.data(), in.data(), n);
      CHECK(same_accumulators(dtype, actual, expected));
    }
    if (kernels.scale[t] != nullptr) {
      actual = expected = start;
      kernels.scale[t](actual.data(), n, 0.3, 3);
      byteps::baseline::kernels.scale[t](expected.data(), n, 0.3, 3);
      CHECK(same_accumulators(dtype, actual, expected));
    }
    if (kernels.widen[t] == nullptr) continue;
    kernels.widen[t](actual.data(), in.data(), n);
    byteps::baseline::kernels.widen[t](expected.data(), in.data(), n);
    CHECK(same_accumulators(dtype, actual, expected));
    kernels.narrow[t](actual.data(), start.data(), n);
    byteps::baseline::kernels.narrow[t](expected.data(), start.data(), n);
    CHECK(actual == expected);
  }
}

void check_instruction_sets() {
  check_kernels(byteps::baseline::kernels);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) check_kernels(byteps::avx2::kernels);
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    check_kernels(byteps::avx512::kernels);
#endif
}

}  // namespace

int main() {
  for (const auto check : {check_all_sizes, check_half_rounding, check_bfloat_rounding, check_integers,
                           check_merge_is_accumulate, check_in_place_widen, check_instruction_sets})
    check();
  check_round_trip(DType::f16, 0x7c00);
  check_round_trip(DType::bf16, 0x7f80);
  return 0;
}
