/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend/kernel-private.h"

/* How much memory the items of a launch name. Inline, since modules use it too. */

G_BEGIN_DECLS

/* Bytes at data[k] of @item; 0 if there is none. @writes: whether the kernel writes them. */
static inline gsize
ebb_launch_item_get_size (const EbbLaunch *launch,
                          const EbbLaunchItem *item,
                          guint k,
                          gboolean *writes)
{
  static const guint8 sizes[EBB_N_DTYPES] = { 4, 2, 2, 4, 8, 1, 1 };
  const gsize n = (gsize) item->n_elements;

  *writes = launch->kernel == EBB_KERNEL_ADAMW && k > 0;
  if (item->data[k] == NULL)
    return 0;
  if (launch->kernel == EBB_KERNEL_SQUARED_NORM)
    return k == 0 ? n * sizes[launch->params.squared_norm.dtype] : 0;
  switch (k)
    {
    case 0: return n * sizes[launch->params.adamw.grad_dtype];
    case 1: return n * sizes[launch->params.adamw.dtype];
    case 2:
    case 3: return n * sizes[launch->params.adamw.moment_dtype];
    default: return (n + EBB_MOMENT_BLOCK - 1) / EBB_MOMENT_BLOCK * sizeof (float);
    }
}

G_END_DECLS
