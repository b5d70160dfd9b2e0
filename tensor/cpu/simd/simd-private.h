/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/cpu-private.h"

/* The kernels that this folder implements, once per instruction set. */

G_BEGIN_DECLS

#define EBB_SIMD_KERNEL(name)                                       \
  gboolean EBB_SIMD_NAME (ebb_cpu_##name) (const EbbLaunch *launch, \
                                           GError **error)

/* Bytes of workspace: a kernel takes them in one order, and its function of the same name with _workspace adds them up.
 */
#define EBB_SIMD_WORKSPACE(name) gsize EBB_SIMD_NAME (ebb_cpu_##name##_workspace) (const EbbLaunch *launch)

static inline gsize
ebb_workspace_round (gsize size)
{
  return (size + 63) / 64 * 64;
}

/* The next @size bytes of the launch's workspace; *@used goes on behind them. */
static inline void *
ebb_workspace_take (const EbbLaunch *launch,
                    gsize *used,
                    gsize size)
{
  void *data = (char *) launch->workspace + *used;

  *used += ebb_workspace_round (size);
  g_assert (*used <= launch->workspace_size);
  return data;
}

/* An optional operand: NULL if it is left out. */
static inline const EbbView *
ebb_launch_get_input (const EbbLaunch *launch,
                      guint k)
{
  return k < launch->n_inputs ? launch->inputs[k] : NULL;
}

static inline EbbView *
ebb_launch_get_output (const EbbLaunch *launch,
                       guint k)
{
  return k < launch->n_outputs ? launch->outputs[k] : NULL;
}

/* The data of an output; NULL if it is not wanted. */
static inline float *
ebb_launch_get_floats (const EbbLaunch *launch,
                       guint k)
{
  const EbbView *view = ebb_launch_get_output (launch, k);

  return view != NULL ? view->data : NULL;
}

#define EBB_KERNEL(NUMBER, name, cost) EBB_SIMD_KERNEL (name);
#include "tensor/backend/kernel-list-private.h"
/* The rows that EBB_KERNEL_DEQUANTIZE names, without a product. */
void EBB_SIMD_NAME (ebb_cpu_decode_rows) (const EbbLaunch *launch);

EBB_SIMD_WORKSPACE (multinomial);
EBB_SIMD_WORKSPACE (bias_gelu);
EBB_SIMD_WORKSPACE (bias_gelu_grad);
EBB_SIMD_WORKSPACE (column_sum);
EBB_SIMD_WORKSPACE (reduce);
EBB_SIMD_WORKSPACE (squared_norm);
EBB_SIMD_WORKSPACE (topk);
EBB_SIMD_WORKSPACE (layer_norm);
EBB_SIMD_WORKSPACE (rms_norm);
EBB_SIMD_WORKSPACE (add_layer_norm);
EBB_SIMD_WORKSPACE (add_rms_norm);
EBB_SIMD_WORKSPACE (norm_grad);
EBB_SIMD_WORKSPACE (batch_norm);
EBB_SIMD_WORKSPACE (batch_norm_grad);
EBB_SIMD_WORKSPACE (rotary);
EBB_SIMD_WORKSPACE (attention);
EBB_SIMD_WORKSPACE (attention_grad);
EBB_SIMD_WORKSPACE (matmul);
EBB_SIMD_WORKSPACE (dequantize);

G_END_DECLS
