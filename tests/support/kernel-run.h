/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Programs that link the library's public side use this too: no symbol of the library that is not public is needed. */
#ifndef EBB_COMPILATION
#define EBB_COMPILATION
#endif

#include "tensor/backend/kernel-private.h"

/* Runs a kernel of the CPU, or a reference, which has no workspace. */

G_BEGIN_DECLS

/* Runs @func with a workspace of exactly the size that it declares for @launch; the process ends if it writes beyond
 * that. */
gboolean test_kernel_run (EbbKernelFunc func,
                          EbbLaunch *launch,
                          GError **error);

G_END_DECLS
