/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/simd-private.h"

const EbbKernelFunc EBB_SIMD_NAME (ebb_cpu_kernels)[EBB_N_KERNELS] = {
  /* elementwise */

  /* random */

  /* bias and gelu */

  /* reductions */

  /* rows */

  /* cross entropy */

  /* indices */

  /* attention */

  /* optimizers */
  [EBB_KERNEL_MATMUL] = NULL, /* filled in by tensor/cpu/kernels.c */
};
