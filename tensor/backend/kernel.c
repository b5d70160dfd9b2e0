/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/backend/kernel-private.h"

/* The names of kernels. */

static const char *const names[EBB_N_KERNELS] = {
  [EBB_KERNEL_COPY] = "copy",
  [EBB_KERNEL_FILL] = "fill",
  [EBB_KERNEL_ARANGE] = "arange",
  [EBB_KERNEL_UNARY] = "unary",
  [EBB_KERNEL_UNARY_GRAD] = "unary_grad",
  [EBB_KERNEL_BINARY] = "binary",
  [EBB_KERNEL_BINARY_SCALAR] = "binary_scalar",
  [EBB_KERNEL_WHERE] = "where",
  [EBB_KERNEL_CLAMP] = "clamp",
  [EBB_KERNEL_CLAMP_GRAD] = "clamp_grad",
  [EBB_KERNEL_ADD_SCALED] = "add_scaled",
  [EBB_KERNEL_TRIANGLE] = "triangle",
  [EBB_KERNEL_UNIFORM] = "uniform",
  [EBB_KERNEL_NORMAL] = "normal",
  [EBB_KERNEL_RANDINT] = "randint",
  [EBB_KERNEL_DROPOUT] = "dropout",
  [EBB_KERNEL_MULTINOMIAL] = "multinomial",
  [EBB_KERNEL_BIAS_GELU] = "bias_gelu",
  [EBB_KERNEL_BIAS_GELU_GRAD] = "bias_gelu_grad",
  [EBB_KERNEL_GATED_ACTIVATION] = "gated_activation",
  [EBB_KERNEL_GATED_ACTIVATION_GRAD] = "gated_activation_grad",
  [EBB_KERNEL_COLUMN_SUM] = "column_sum",
  [EBB_KERNEL_REDUCE] = "reduce",
  [EBB_KERNEL_VAR] = "var",
  [EBB_KERNEL_ARG_REDUCE] = "arg_reduce",
  [EBB_KERNEL_TOPK] = "topk",
  [EBB_KERNEL_SOFTMAX] = "softmax",
  [EBB_KERNEL_SOFTMAX_GRAD] = "softmax_grad",
  [EBB_KERNEL_LAYER_NORM] = "layer_norm",
  [EBB_KERNEL_LAYER_NORM_GRAD] = "layer_norm_grad",
  [EBB_KERNEL_RMS_NORM] = "rms_norm",
  [EBB_KERNEL_RMS_NORM_GRAD] = "rms_norm_grad",
  [EBB_KERNEL_BATCH_NORM] = "batch_norm",
  [EBB_KERNEL_BATCH_NORM_GRAD] = "batch_norm_grad",
  [EBB_KERNEL_ADD_LAYER_NORM] = "add_layer_norm",
  [EBB_KERNEL_ADD_RMS_NORM] = "add_rms_norm",
  [EBB_KERNEL_CROSS_ENTROPY] = "cross_entropy",
  [EBB_KERNEL_CROSS_ENTROPY_GRAD] = "cross_entropy_grad",
  [EBB_KERNEL_CROSS_ENTROPY_PART] = "cross_entropy_part",
  [EBB_KERNEL_CROSS_ENTROPY_JOIN] = "cross_entropy_join",
  [EBB_KERNEL_INDEX_SELECT] = "index_select",
  [EBB_KERNEL_INDEX_ADD] = "index_add",
  [EBB_KERNEL_GATHER] = "gather",
  [EBB_KERNEL_SCATTER_ADD] = "scatter_add",
  [EBB_KERNEL_ROTARY] = "rotary",
  [EBB_KERNEL_DEQUANTIZE] = "dequantize",
  [EBB_KERNEL_MATMUL] = "matmul",
  [EBB_KERNEL_ATTENTION] = "attention",
  [EBB_KERNEL_ATTENTION_GRAD] = "attention_grad",
  [EBB_KERNEL_ADAMW] = "adamw",
  [EBB_KERNEL_SGD] = "sgd",
  [EBB_KERNEL_MOMENT_ENCODE] = "moment_encode",
  [EBB_KERNEL_MOMENT_DECODE] = "moment_decode",
  [EBB_KERNEL_SQUARED_NORM] = "squared_norm",
  [EBB_KERNEL_NORM_SUM] = "norm_sum",
  [EBB_KERNEL_CLIP_FACTOR] = "clip_factor",
  [EBB_KERNEL_REDUCE_RANKS] = "reduce_ranks",
};

const char *
ebb_kernel_get_name (EbbKernel kernel)
{
  g_return_val_if_fail ((guint) kernel < EBB_N_KERNELS, NULL);

  return names[kernel];
}

char *
ebb_index_fault_to_string (const char *op,
                           gint64 index,
                           gint64 position,
                           gint64 limit)
{
  return g_strdup_printf ("%s: index %" G_GINT64_FORMAT " at position %" G_GINT64_FORMAT
                          " is out of range; indices must be in [0, %" G_GINT64_FORMAT ")",
                          op, index, position, limit);
}

/* The sum of [first, first + n), each number brought into [0, limit]. */
static gint64
sum_clamped (gint64 first,
             gint64 n,
             gint64 limit)
{
  gint64 begin = CLAMP (first, 0, limit), end = CLAMP (first + n, 0, limit);

  return (end - begin) * (begin + end - 1) / 2 + MAX (first + n - MAX (first, limit), 0) * limit;
}

guint64
ebb_attention_count_flop (const EbbKernelParams *params,
                          gint64 n_queries,
                          gint64 n_keys,
                          guint64 of_pair)
{
  gint64 first = params->attention.first_query, window = params->attention.window;
  gboolean causal = params->attention.causal;
  gint64 ends = causal ? sum_clamped (first + 1, n_queries, n_keys) : n_queries * n_keys;
  gint64 begins = window > 0 ? sum_clamped (first + 1 - window, n_queries, n_keys) : 0;

  if (window == 0 && first == 0)
    return of_pair * (guint64) (n_queries * n_keys) / (causal ? 2 : 1);
  return of_pair * (guint64) MAX (ends - begins, 0);
}
