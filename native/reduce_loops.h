// The loops themselves, for whichever instruction set the including file names:
//   BYTEPS_KERNEL_NAMESPACE   namespace of the table
//   BYTEPS_KERNEL_TARGET      attribute put on every loop
// Everything the loops call is always inlined, so no code for one instruction set can be linked
// into another's.

#include "reduce_kernels.h"
#include "reduce_types.h"

// Before a loop whose arrays may be the same, but do not otherwise overlap. clang's own pragma warns wherever
// it does not vectorise, as without optimisation; without one, arrays that are the same are slower there.
#if defined(__clang__)
#define BYTEPS_SAME_OR_APART
#else
#define BYTEPS_SAME_OR_APART _Pragma("GCC ivdep")
#endif

namespace byteps::BYTEPS_KERNEL_NAMESPACE {

namespace {

template <class T>
BYTEPS_INLINE T load(const char* values, size_t i) {
  T value;
  __builtin_memcpy(&value, values + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
BYTEPS_INLINE void store(char* values, size_t i, T value) {
  __builtin_memcpy(values + i * sizeof(T), &value, sizeof(T));
}

template <class Type>
BYTEPS_KERNEL_TARGET void widen(char* __restrict out, const char* __restrict in, size_t n) {
  for (size_t i = 0; i < n; ++i) store(out, i, Type::widen(load<typename Type::Wire>(in, i)));
}

template <class Type>
BYTEPS_KERNEL_TARGET void narrow(char* __restrict out, const char* __restrict in, size_t n) {
  for (size_t i = 0; i < n; ++i) store(out, i, Type::narrow(load<typename Type::Accumulator>(in, i)));
}

template <class Type, Op op>
BYTEPS_KERNEL_TARGET void combine(char* __restrict out, const char* __restrict in, size_t n) {
  using Accumulator = typename Type::Accumulator;
  for (size_t i = 0; i < n; ++i) {
    const Accumulator value = Type::widen(load<typename Type::Wire>(in, i));
    store(out, i, combined<op>(load<Accumulator>(out, i), value));
  }
}

template <class Type, size_t count>
BYTEPS_KERNEL_TARGET void add(char* out, char* also, const std::byte* const* in, size_t n) {
  using Wire = typename Type::Wire;
  const char* terms[count];
  for (size_t k = 0; k < count; ++k) terms[k] = reinterpret_cast<const char*>(in[k]);
  BYTEPS_SAME_OR_APART for (size_t i = 0; i < n; ++i) {
    auto value = Type::widen(load<Wire>(terms[0], i));
    for (size_t k = 1; k < count; ++k) value = combined<Op::sum>(value, Type::widen(load<Wire>(terms[k], i)));
    store(out, i, value);
    store(also, i, value);
  }
}

template <class Float>
BYTEPS_KERNEL_TARGET void scale_float(char* values, size_t n, double factor, uint32_t divisor) {
  const auto multiplier = static_cast<Float>(factor);
  const auto count = static_cast<Float>(divisor);
  if (factor != 1.0)
    for (size_t i = 0; i < n; ++i) store(values, i, load<Float>(values, i) * multiplier);
  if (divisor != 1)
    for (size_t i = 0; i < n; ++i) store(values, i, load<Float>(values, i) / count);
}

BYTEPS_KERNEL_TARGET void scale_integer(char* values, size_t n, double factor, uint32_t divisor) {
  if (factor != 1.0)
    for (size_t i = 0; i < n; ++i)
      store(values, i, truncated(static_cast<double>(load<int64_t>(values, i)) * factor));
  if (divisor != 1)
    for (size_t i = 0; i < n; ++i) store(values, i, load<int64_t>(values, i) / int64_t{divisor});
}

}  // namespace

#define BYTEPS_COMBINE(Type)                                                   \
  {combine<Type, Op::sum>, combine<Type, Op::sum>,     combine<Type, Op::min>, \
   combine<Type, Op::max>, combine<Type, Op::product>, nullptr}
#define BYTEPS_ADD(Type) {add<Type, 2>, add<Type, 3>, add<Type, 4>}

// In the order of DType.
const Kernels kernels{
    .widen = {nullptr, nullptr, widen<Half>, widen<BFloat>, widen<Small<int8_t>>, widen<Small<uint8_t>>,
              widen<Small<int16_t>>, widen<Small<int32_t>>, nullptr, nullptr},
    .narrow = {nullptr, nullptr, narrow<Half>, narrow<BFloat>, narrow<Small<int8_t>>, narrow<Small<uint8_t>>,
               narrow<Small<int16_t>>, narrow<Small<int32_t>>, nullptr, nullptr},
    .combine = {BYTEPS_COMBINE(Own<double>), BYTEPS_COMBINE(Own<float>), BYTEPS_COMBINE(Half),
                BYTEPS_COMBINE(BFloat), BYTEPS_COMBINE(Small<int8_t>), BYTEPS_COMBINE(Small<uint8_t>),
                BYTEPS_COMBINE(Small<int16_t>), BYTEPS_COMBINE(Small<int32_t>), BYTEPS_COMBINE(Own<int64_t>),
                BYTEPS_COMBINE(Own<Boolean>)},
    .add = {BYTEPS_ADD(Own<double>), BYTEPS_ADD(Own<float>), BYTEPS_ADD(Half), BYTEPS_ADD(BFloat),
            BYTEPS_ADD(Small<int8_t>), BYTEPS_ADD(Small<uint8_t>), BYTEPS_ADD(Small<int16_t>),
            BYTEPS_ADD(Small<int32_t>), BYTEPS_ADD(Own<int64_t>), BYTEPS_ADD(Own<Boolean>)},
    .scale = {scale_float<double>, scale_float<float>, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
              scale_integer, nullptr},
};

#undef BYTEPS_COMBINE
#undef BYTEPS_ADD
#undef BYTEPS_SAME_OR_APART

}  // namespace byteps::BYTEPS_KERNEL_NAMESPACE
