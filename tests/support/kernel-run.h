/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Programs that link the library's public side use this too: no symbol of the library that is not public is needed. */
#ifndef EBB_COMPILATION
#define EBB_COMPILATION
#endif

#include "tensor/backend/kernel-private.h"

/* Runs a kernel of the CPU, a reference, which has no workspace, or a kernel of the device under test
 * (support/device.h), which takes operands in host memory here. */

G_BEGIN_DECLS

/* Runs @func with a workspace of exactly the size that it declares for @launch; the process ends if it writes beyond
 * that. */
gboolean test_kernel_run (EbbKernelFunc func,
                          EbbLaunch *launch,
                          GError **error);

/* The kernels under test in one of the CPU's instruction sets, NULL if this processor lacks it. A device other than the
 * CPU has one set, under the name "portable", and NULL otherwise. */
const EbbKernelFunc *test_kernels_of (const char *simd);

/* How many threads run a kernel; 0: as many as by default. On another device, in which of its orders blocks, warps and
 * lanes run: 1, 2 and 3 are those of EBB_CUDAEMU_ORDER, and so on in turn. */
void test_kernel_set_threads (int n_threads);

G_END_DECLS
