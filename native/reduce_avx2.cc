// Kernels for x86-64 processors with AVX2.
#if defined(__x86_64__)
#define BYTEPS_KERNEL_NAMESPACE avx2
#define BYTEPS_KERNEL_TARGET [[gnu::target("avx2")]]
#include "reduce_loops.h"
#endif
