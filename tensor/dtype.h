/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/error.h"

G_BEGIN_DECLS

/**
 * EbbDType:
 * @EBB_DTYPE_F32: IEEE binary32
 * @EBB_DTYPE_BF16: bfloat16: the upper half of a binary32
 * @EBB_DTYPE_F16: IEEE binary16; storage and conversion only
 * @EBB_DTYPE_I32: signed 32-bit integer
 * @EBB_DTYPE_I64: signed 64-bit integer
 * @EBB_DTYPE_U8: unsigned 8-bit integer
 * @EBB_DTYPE_BOOL: one byte, 0 or 1
 *
 * The type of a tensor's elements.
 */
typedef enum
{
  EBB_DTYPE_F32,
  EBB_DTYPE_BF16,
  EBB_DTYPE_F16,
  EBB_DTYPE_I32,
  EBB_DTYPE_I64,
  EBB_DTYPE_U8,
  EBB_DTYPE_BOOL
} EbbDType;

#define EBB_N_DTYPES 7

EBB_AVAILABLE_IN_ALL
gsize ebb_dtype_get_size (EbbDType dtype);

EBB_AVAILABLE_IN_ALL
const char *ebb_dtype_get_name (EbbDType dtype);

EBB_AVAILABLE_IN_ALL
gboolean ebb_dtype_from_name (const char *name,
                              EbbDType *dtype,
                              GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_dtype_is_floating_point (EbbDType dtype);

EBB_AVAILABLE_IN_ALL
EbbDType ebb_dtype_promote (EbbDType a,
                            EbbDType b);

G_END_DECLS
