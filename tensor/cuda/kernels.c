/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels: the function of each, and what says how much workspace it needs. */
#include "tensor/cuda/cuda-private.h"

/* Whichever of them no source has is NULL. */
#define DECLARE(name)                                   \
  extern __attribute__ ((weak)) EBB_CUDA_KERNEL (name); \
  extern __attribute__ ((weak)) EBB_CUDA_WORKSPACE (name);
#define KERNEL(name)                             \
  {                                              \
    ebb_cuda_##name, ebb_cuda_##name##_workspace \
  }

/* clang-format off */
DECLARE (copy)
DECLARE (fill)
DECLARE (arange)
DECLARE (unary)
DECLARE (unary_grad)
DECLARE (binary)
DECLARE (binary_scalar)
DECLARE (where)
DECLARE (clamp)
DECLARE (clamp_grad)
DECLARE (add_scaled)
DECLARE (triangle)
DECLARE (uniform)
DECLARE (normal)
DECLARE (randint)
DECLARE (dropout)
DECLARE (multinomial)
DECLARE (bias_gelu)
DECLARE (bias_gelu_grad)
DECLARE (gated_activation)
DECLARE (gated_activation_grad)
DECLARE (column_sum)
DECLARE (reduce)
DECLARE (var)
DECLARE (arg_reduce)
DECLARE (topk)
DECLARE (softmax)
DECLARE (softmax_grad)
DECLARE (layer_norm)
DECLARE (layer_norm_grad)
DECLARE (rms_norm)
DECLARE (rms_norm_grad)
DECLARE (batch_norm)
DECLARE (batch_norm_grad)
DECLARE (add_layer_norm)
DECLARE (add_rms_norm)
DECLARE (cross_entropy)
DECLARE (cross_entropy_grad)
DECLARE (cross_entropy_part)
DECLARE (cross_entropy_join)
DECLARE (index_select)
DECLARE (index_add)
DECLARE (gather)
DECLARE (scatter_add)
DECLARE (rotary)
DECLARE (matmul)
DECLARE (attention)
DECLARE (attention_grad)
DECLARE (adamw)
DECLARE (sgd)
DECLARE (moment_encode)
DECLARE (moment_decode)
DECLARE (squared_norm)
DECLARE (norm_sum)
DECLARE (clip_factor)
DECLARE (reduce_ranks)
/* clang-format on */

const EbbCudaKernel ebb_cuda_kernels[EBB_N_KERNELS] = {
  [EBB_KERNEL_COPY] = KERNEL (copy),
  [EBB_KERNEL_FILL] = KERNEL (fill),
  [EBB_KERNEL_ARANGE] = KERNEL (arange),
  [EBB_KERNEL_UNARY] = KERNEL (unary),
  [EBB_KERNEL_UNARY_GRAD] = KERNEL (unary_grad),
  [EBB_KERNEL_BINARY] = KERNEL (binary),
  [EBB_KERNEL_BINARY_SCALAR] = KERNEL (binary_scalar),
  [EBB_KERNEL_WHERE] = KERNEL (where),
  [EBB_KERNEL_CLAMP] = KERNEL (clamp),
  [EBB_KERNEL_CLAMP_GRAD] = KERNEL (clamp_grad),
  [EBB_KERNEL_ADD_SCALED] = KERNEL (add_scaled),
  [EBB_KERNEL_TRIANGLE] = KERNEL (triangle),
  [EBB_KERNEL_UNIFORM] = KERNEL (uniform),
  [EBB_KERNEL_NORMAL] = KERNEL (normal),
  [EBB_KERNEL_RANDINT] = KERNEL (randint),
  [EBB_KERNEL_DROPOUT] = KERNEL (dropout),
  [EBB_KERNEL_MULTINOMIAL] = KERNEL (multinomial),
  [EBB_KERNEL_BIAS_GELU] = KERNEL (bias_gelu),
  [EBB_KERNEL_BIAS_GELU_GRAD] = KERNEL (bias_gelu_grad),
  [EBB_KERNEL_GATED_ACTIVATION] = KERNEL (gated_activation),
  [EBB_KERNEL_GATED_ACTIVATION_GRAD] = KERNEL (gated_activation_grad),
  [EBB_KERNEL_COLUMN_SUM] = KERNEL (column_sum),
  [EBB_KERNEL_REDUCE] = KERNEL (reduce),
  [EBB_KERNEL_VAR] = KERNEL (var),
  [EBB_KERNEL_ARG_REDUCE] = KERNEL (arg_reduce),
  [EBB_KERNEL_TOPK] = KERNEL (topk),
  [EBB_KERNEL_SOFTMAX] = KERNEL (softmax),
  [EBB_KERNEL_SOFTMAX_GRAD] = KERNEL (softmax_grad),
  [EBB_KERNEL_LAYER_NORM] = KERNEL (layer_norm),
  [EBB_KERNEL_LAYER_NORM_GRAD] = KERNEL (layer_norm_grad),
  [EBB_KERNEL_RMS_NORM] = KERNEL (rms_norm),
  [EBB_KERNEL_RMS_NORM_GRAD] = KERNEL (rms_norm_grad),
  [EBB_KERNEL_BATCH_NORM] = KERNEL (batch_norm),
  [EBB_KERNEL_BATCH_NORM_GRAD] = KERNEL (batch_norm_grad),
  [EBB_KERNEL_ADD_LAYER_NORM] = KERNEL (add_layer_norm),
  [EBB_KERNEL_ADD_RMS_NORM] = KERNEL (add_rms_norm),
  [EBB_KERNEL_CROSS_ENTROPY] = KERNEL (cross_entropy),
  [EBB_KERNEL_CROSS_ENTROPY_GRAD] = KERNEL (cross_entropy_grad),
  [EBB_KERNEL_CROSS_ENTROPY_PART] = KERNEL (cross_entropy_part),
  [EBB_KERNEL_CROSS_ENTROPY_JOIN] = KERNEL (cross_entropy_join),
  [EBB_KERNEL_INDEX_SELECT] = KERNEL (index_select),
  [EBB_KERNEL_INDEX_ADD] = KERNEL (index_add),
  [EBB_KERNEL_GATHER] = KERNEL (gather),
  [EBB_KERNEL_SCATTER_ADD] = KERNEL (scatter_add),
  [EBB_KERNEL_ROTARY] = KERNEL (rotary),
  [EBB_KERNEL_MATMUL] = KERNEL (matmul),
  [EBB_KERNEL_ATTENTION] = KERNEL (attention),
  [EBB_KERNEL_ATTENTION_GRAD] = KERNEL (attention_grad),
  [EBB_KERNEL_ADAMW] = KERNEL (adamw),
  [EBB_KERNEL_SGD] = KERNEL (sgd),
  [EBB_KERNEL_MOMENT_ENCODE] = KERNEL (moment_encode),
  [EBB_KERNEL_MOMENT_DECODE] = KERNEL (moment_decode),
  [EBB_KERNEL_SQUARED_NORM] = KERNEL (squared_norm),
  [EBB_KERNEL_NORM_SUM] = KERNEL (norm_sum),
  [EBB_KERNEL_CLIP_FACTOR] = KERNEL (clip_factor),
  [EBB_KERNEL_REDUCE_RANKS] = KERNEL (reduce_ranks),
};
