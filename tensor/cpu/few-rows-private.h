/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/cpu-private.h"

/* simd/few-rows.c, which simd/convert.c calls: EBB_KERNEL_DEQUANTIZE with an x. */

G_BEGIN_DECLS

gboolean EBB_SIMD_NAME (ebb_cpu_quantized_few_rows) (const EbbLaunch *launch,
                                                     GError **error);
gsize EBB_SIMD_NAME (ebb_cpu_quantized_few_rows_workspace) (const EbbLaunch *launch);

G_END_DECLS
