// Kernels for the instruction set the compiler was asked for: any x86-64, arm64 with NEON.
#define BYTEPS_KERNEL_NAMESPACE baseline
#define BYTEPS_KERNEL_TARGET
#include "reduce_loops.h"
