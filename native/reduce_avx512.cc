// Kernels for x86-64 processors with AVX-512.
#if defined(__x86_64__)
#define BYTEPS_KERNEL_NAMESPACE avx512
#define BYTEPS_KERNEL_TARGET [[gnu::target("avx2,avx512f,avx512bw,avx512dq,avx512vl")]]
#include "reduce_loops.h"
#endif
