/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Programs that link the library's public side use this too: no symbol of the library that is not public is needed. */
#ifndef EBB_COMPILATION
#define EBB_COMPILATION
#endif

#include "tensor/backend/kernel-private.h"
#include "tensor/device.h"

/* A kernel of any device, on operands in host memory. */

G_BEGIN_DECLS

/* Copies the operands to @device, runs its kernel with a workspace of exactly the size that it declares, and copies the
 * outputs back. The process ends if the kernel writes beside its operands, beside its workspace, or to an operand that
 * it reads alone. */
gboolean test_device_kernel_run (EbbDevice *device,
                                 const EbbLaunch *launch,
                                 GError **error);

G_END_DECLS
