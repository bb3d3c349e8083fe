// The table of loops that reduce.cc composes, one table per instruction set. Loops take unaligned
// pointers that do not overlap; `n` counts elements.
#pragma once

#include <cstddef>

#include "reduce.h"

namespace byteps {

struct Kernels {
  using Unary = void (*)(char* out, const char* in, size_t n);
  using Add = void (*)(char* out, char* also, const std::byte* const* in, size_t n);
  using Scale = void (*)(char* values, size_t n, double factor, uint32_t divisor);

  Unary widen[kDTypes];              // accumulation type from wire type; null where they are the same
  Unary narrow[kDTypes];             // wire type from accumulation type; null where they are the same
  Unary combine[kDTypes][kOps];      // out = out (op) in, `in` of the wire type; null for copy
  Add add[kDTypes][kMostTerms - 1];  // out = also = the sum of 2, 3, 4 of the wire type; may equal a term
  Scale scale[kDTypes];              // by accumulation type: values * factor / divisor; null for booleans
};

namespace baseline {
extern const Kernels kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
#endif

}  // namespace byteps
