/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/simd-private.h"

/* The table of kernels of one instruction set. */

const EbbKernelFunc EBB_SIMD_NAME (ebb_cpu_kernels)[EBB_N_KERNELS] = {
  /* elementwise */
  [EBB_KERNEL_COPY] = EBB_SIMD_NAME (ebb_cpu_copy),
  [EBB_KERNEL_FILL] = EBB_SIMD_NAME (ebb_cpu_fill),
  [EBB_KERNEL_ARANGE] = EBB_SIMD_NAME (ebb_cpu_arange),
  [EBB_KERNEL_UNARY] = EBB_SIMD_NAME (ebb_cpu_unary),
  [EBB_KERNEL_UNARY_GRAD] = EBB_SIMD_NAME (ebb_cpu_unary_grad),
  [EBB_KERNEL_BINARY] = EBB_SIMD_NAME (ebb_cpu_binary),
  [EBB_KERNEL_BINARY_SCALAR] = EBB_SIMD_NAME (ebb_cpu_binary_scalar),
  [EBB_KERNEL_WHERE] = EBB_SIMD_NAME (ebb_cpu_where),
  [EBB_KERNEL_CLAMP] = EBB_SIMD_NAME (ebb_cpu_clamp),
  [EBB_KERNEL_CLAMP_GRAD] = EBB_SIMD_NAME (ebb_cpu_clamp_grad),
  [EBB_KERNEL_ADD_SCALED] = EBB_SIMD_NAME (ebb_cpu_add_scaled),
  [EBB_KERNEL_TRIANGLE] = EBB_SIMD_NAME (ebb_cpu_triangle),

  /* random */
  [EBB_KERNEL_UNIFORM] = EBB_SIMD_NAME (ebb_cpu_uniform),
  [EBB_KERNEL_NORMAL] = EBB_SIMD_NAME (ebb_cpu_normal),
  [EBB_KERNEL_RANDINT] = EBB_SIMD_NAME (ebb_cpu_randint),
  [EBB_KERNEL_DROPOUT] = EBB_SIMD_NAME (ebb_cpu_dropout),
  [EBB_KERNEL_MULTINOMIAL] = EBB_SIMD_NAME (ebb_cpu_multinomial),

  /* activations */
  [EBB_KERNEL_BIAS_GELU] = EBB_SIMD_NAME (ebb_cpu_bias_gelu),
  [EBB_KERNEL_BIAS_GELU_GRAD] = EBB_SIMD_NAME (ebb_cpu_bias_gelu_grad),
  [EBB_KERNEL_GATED_ACTIVATION] = EBB_SIMD_NAME (ebb_cpu_gated_activation),
  [EBB_KERNEL_GATED_ACTIVATION_GRAD] = EBB_SIMD_NAME (ebb_cpu_gated_activation_grad),
  [EBB_KERNEL_COLUMN_SUM] = EBB_SIMD_NAME (ebb_cpu_column_sum),

  /* reductions */
  [EBB_KERNEL_REDUCE] = EBB_SIMD_NAME (ebb_cpu_reduce),
  [EBB_KERNEL_VAR] = EBB_SIMD_NAME (ebb_cpu_var),
  [EBB_KERNEL_ARG_REDUCE] = EBB_SIMD_NAME (ebb_cpu_arg_reduce),
  [EBB_KERNEL_TOPK] = EBB_SIMD_NAME (ebb_cpu_topk),

  /* rows */
  [EBB_KERNEL_SOFTMAX] = EBB_SIMD_NAME (ebb_cpu_softmax),
  [EBB_KERNEL_SOFTMAX_GRAD] = EBB_SIMD_NAME (ebb_cpu_softmax_grad),
  [EBB_KERNEL_LAYER_NORM] = EBB_SIMD_NAME (ebb_cpu_layer_norm),
  [EBB_KERNEL_LAYER_NORM_GRAD] = EBB_SIMD_NAME (ebb_cpu_layer_norm_grad),
  [EBB_KERNEL_ADD_LAYER_NORM] = EBB_SIMD_NAME (ebb_cpu_add_layer_norm),
  [EBB_KERNEL_ADD_RMS_NORM] = EBB_SIMD_NAME (ebb_cpu_add_rms_norm),
  [EBB_KERNEL_RMS_NORM] = EBB_SIMD_NAME (ebb_cpu_rms_norm),
  [EBB_KERNEL_RMS_NORM_GRAD] = EBB_SIMD_NAME (ebb_cpu_rms_norm_grad),
  [EBB_KERNEL_BATCH_NORM] = EBB_SIMD_NAME (ebb_cpu_batch_norm),
  [EBB_KERNEL_BATCH_NORM_GRAD] = EBB_SIMD_NAME (ebb_cpu_batch_norm_grad),

  /* cross entropy */
  [EBB_KERNEL_CROSS_ENTROPY] = EBB_SIMD_NAME (ebb_cpu_cross_entropy),
  [EBB_KERNEL_CROSS_ENTROPY_GRAD] = EBB_SIMD_NAME (ebb_cpu_cross_entropy_grad),
  [EBB_KERNEL_CROSS_ENTROPY_PART] = EBB_SIMD_NAME (ebb_cpu_cross_entropy_part),
  [EBB_KERNEL_CROSS_ENTROPY_JOIN] = EBB_SIMD_NAME (ebb_cpu_cross_entropy_join),

  /* indices */
  [EBB_KERNEL_INDEX_SELECT] = EBB_SIMD_NAME (ebb_cpu_index_select),
  [EBB_KERNEL_INDEX_ADD] = EBB_SIMD_NAME (ebb_cpu_index_add),
  [EBB_KERNEL_GATHER] = EBB_SIMD_NAME (ebb_cpu_gather),
  [EBB_KERNEL_SCATTER_ADD] = EBB_SIMD_NAME (ebb_cpu_scatter_add),

  /* positions, attention */
  [EBB_KERNEL_ROTARY] = EBB_SIMD_NAME (ebb_cpu_rotary),
  [EBB_KERNEL_ATTENTION] = EBB_SIMD_NAME (ebb_cpu_attention),
  [EBB_KERNEL_ATTENTION_GRAD] = EBB_SIMD_NAME (ebb_cpu_attention_grad),

  /* optimizers */
  [EBB_KERNEL_ADAMW] = EBB_SIMD_NAME (ebb_cpu_adamw),
  [EBB_KERNEL_SGD] = EBB_SIMD_NAME (ebb_cpu_sgd),
  [EBB_KERNEL_MOMENT_ENCODE] = EBB_SIMD_NAME (ebb_cpu_moment_encode),
  [EBB_KERNEL_MOMENT_DECODE] = EBB_SIMD_NAME (ebb_cpu_moment_decode),

  /* norms of gradients, and what ranks exchange: the last three are compiled once */
  [EBB_KERNEL_SQUARED_NORM] = EBB_SIMD_NAME (ebb_cpu_squared_norm),
  [EBB_KERNEL_NORM_SUM] = ebb_cpu_norm_sum,
  [EBB_KERNEL_CLIP_FACTOR] = ebb_cpu_clip_factor,
  [EBB_KERNEL_REDUCE_RANKS] = ebb_cpu_reduce_ranks,

  [EBB_KERNEL_DEQUANTIZE] = EBB_SIMD_NAME (ebb_cpu_dequantize),

  /* products with few rows: tensor/cpu/backend.c puts that of all products here */
  [EBB_KERNEL_MATMUL] = EBB_SIMD_NAME (ebb_cpu_few_rows),
};

/* The workspace that the kernels need; NULL: none. */
const EbbCpuWorkspaceFunc EBB_SIMD_NAME (ebb_cpu_workspaces)[EBB_N_KERNELS] = {
  [EBB_KERNEL_MULTINOMIAL] = EBB_SIMD_NAME (ebb_cpu_multinomial_workspace),
  [EBB_KERNEL_BIAS_GELU] = EBB_SIMD_NAME (ebb_cpu_bias_gelu_workspace),
  [EBB_KERNEL_BIAS_GELU_GRAD] = EBB_SIMD_NAME (ebb_cpu_bias_gelu_grad_workspace),
  [EBB_KERNEL_COLUMN_SUM] = EBB_SIMD_NAME (ebb_cpu_column_sum_workspace),
  [EBB_KERNEL_REDUCE] = EBB_SIMD_NAME (ebb_cpu_reduce_workspace),
  [EBB_KERNEL_TOPK] = EBB_SIMD_NAME (ebb_cpu_topk_workspace),
  [EBB_KERNEL_LAYER_NORM] = EBB_SIMD_NAME (ebb_cpu_layer_norm_workspace),
  [EBB_KERNEL_LAYER_NORM_GRAD] = EBB_SIMD_NAME (ebb_cpu_norm_grad_workspace),
  [EBB_KERNEL_RMS_NORM] = EBB_SIMD_NAME (ebb_cpu_rms_norm_workspace),
  [EBB_KERNEL_RMS_NORM_GRAD] = EBB_SIMD_NAME (ebb_cpu_norm_grad_workspace),
  [EBB_KERNEL_BATCH_NORM] = EBB_SIMD_NAME (ebb_cpu_batch_norm_workspace),
  [EBB_KERNEL_BATCH_NORM_GRAD] = EBB_SIMD_NAME (ebb_cpu_batch_norm_grad_workspace),
  [EBB_KERNEL_ADD_LAYER_NORM] = EBB_SIMD_NAME (ebb_cpu_add_layer_norm_workspace),
  [EBB_KERNEL_ADD_RMS_NORM] = EBB_SIMD_NAME (ebb_cpu_add_rms_norm_workspace),
  [EBB_KERNEL_ROTARY] = EBB_SIMD_NAME (ebb_cpu_rotary_workspace),
  [EBB_KERNEL_ATTENTION] = EBB_SIMD_NAME (ebb_cpu_attention_workspace),
  [EBB_KERNEL_ATTENTION_GRAD] = EBB_SIMD_NAME (ebb_cpu_attention_grad_workspace),
  [EBB_KERNEL_SQUARED_NORM] = EBB_SIMD_NAME (ebb_cpu_squared_norm_workspace),
  [EBB_KERNEL_DEQUANTIZE] = EBB_SIMD_NAME (ebb_cpu_dequantize_workspace),
  [EBB_KERNEL_MATMUL] = EBB_SIMD_NAME (ebb_cpu_few_rows_workspace),
};
