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

/* copy.c, fill.c, unary.c, binary.c, select.c */
EBB_SIMD_KERNEL (copy);
EBB_SIMD_KERNEL (fill);
EBB_SIMD_KERNEL (arange);
EBB_SIMD_KERNEL (unary);
EBB_SIMD_KERNEL (unary_grad);
EBB_SIMD_KERNEL (binary);
EBB_SIMD_KERNEL (binary_scalar);
EBB_SIMD_KERNEL (where);
EBB_SIMD_KERNEL (clamp);
EBB_SIMD_KERNEL (clamp_grad);
EBB_SIMD_KERNEL (add_scaled);
EBB_SIMD_KERNEL (triangle);

/* random.c, multinomial.c */
EBB_SIMD_KERNEL (uniform);
EBB_SIMD_KERNEL (normal);
EBB_SIMD_KERNEL (randint);
EBB_SIMD_KERNEL (dropout);
EBB_SIMD_KERNEL (multinomial);

/* activation.c, column-sum.c */
EBB_SIMD_KERNEL (bias_gelu);
EBB_SIMD_KERNEL (bias_gelu_grad);
EBB_SIMD_KERNEL (gated_activation);
EBB_SIMD_KERNEL (gated_activation_grad);
EBB_SIMD_KERNEL (column_sum);

/* reduce.c, variance.c, arg-reduce.c, topk.c */
EBB_SIMD_KERNEL (reduce);
EBB_SIMD_KERNEL (squared_norm);
EBB_SIMD_KERNEL (var);
EBB_SIMD_KERNEL (arg_reduce);
EBB_SIMD_KERNEL (topk);

/* softmax.c, layer-norm.c, norm-grad.c, batch-norm.c */
EBB_SIMD_KERNEL (softmax);
EBB_SIMD_KERNEL (softmax_grad);
EBB_SIMD_KERNEL (layer_norm);
EBB_SIMD_KERNEL (layer_norm_grad);
EBB_SIMD_KERNEL (add_layer_norm);
EBB_SIMD_KERNEL (add_rms_norm);
EBB_SIMD_KERNEL (rms_norm);
EBB_SIMD_KERNEL (rms_norm_grad);
EBB_SIMD_KERNEL (batch_norm);
EBB_SIMD_KERNEL (batch_norm_grad);

/* cross-entropy.c, index.c, optimizer.c */
EBB_SIMD_KERNEL (cross_entropy);
EBB_SIMD_KERNEL (cross_entropy_grad);
EBB_SIMD_KERNEL (cross_entropy_part);
EBB_SIMD_KERNEL (cross_entropy_join);
EBB_SIMD_KERNEL (index_select);
EBB_SIMD_KERNEL (index_add);
EBB_SIMD_KERNEL (gather);
EBB_SIMD_KERNEL (scatter_add);
EBB_SIMD_KERNEL (adamw);
EBB_SIMD_KERNEL (sgd);
EBB_SIMD_KERNEL (moment_encode);
EBB_SIMD_KERNEL (moment_decode);

/* few-rows.c, convert.c */
EBB_SIMD_KERNEL (few_rows);
EBB_SIMD_KERNEL (dequantize);
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
EBB_SIMD_WORKSPACE (few_rows);
EBB_SIMD_WORKSPACE (dequantize);

/* rotary.c, attention.c, attention-grad.c */
EBB_SIMD_KERNEL (rotary);
EBB_SIMD_KERNEL (attention);
EBB_SIMD_KERNEL (attention_grad);

G_END_DECLS
