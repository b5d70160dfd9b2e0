/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels: the function of each, and what says how much workspace it needs. */
#include "tensor/cuda/cuda-private.h"

EBB_CUDA_KERNEL (copy);
EBB_CUDA_KERNEL (fill);
EBB_CUDA_KERNEL (arange);
EBB_CUDA_KERNEL (unary);
EBB_CUDA_KERNEL (unary_grad);
EBB_CUDA_KERNEL (binary);
EBB_CUDA_KERNEL (binary_scalar);
EBB_CUDA_KERNEL (where);
EBB_CUDA_KERNEL (clamp);
EBB_CUDA_KERNEL (clamp_grad);
EBB_CUDA_KERNEL (add_scaled);
EBB_CUDA_KERNEL (triangle);
EBB_CUDA_KERNEL (uniform);
EBB_CUDA_KERNEL (normal);
EBB_CUDA_KERNEL (randint);
EBB_CUDA_KERNEL (dropout);
EBB_CUDA_KERNEL (multinomial);
EBB_CUDA_KERNEL (bias_gelu);
EBB_CUDA_KERNEL (bias_gelu_grad);
EBB_CUDA_KERNEL (gated_activation);
EBB_CUDA_KERNEL (gated_activation_grad);
EBB_CUDA_KERNEL (column_sum);
EBB_CUDA_KERNEL (reduce);
EBB_CUDA_KERNEL (var);
EBB_CUDA_KERNEL (arg_reduce);
EBB_CUDA_KERNEL (topk);
EBB_CUDA_KERNEL (softmax);
EBB_CUDA_KERNEL (softmax_grad);
EBB_CUDA_KERNEL (layer_norm);
EBB_CUDA_KERNEL (layer_norm_grad);
EBB_CUDA_KERNEL (rms_norm);
EBB_CUDA_KERNEL (rms_norm_grad);
EBB_CUDA_KERNEL (batch_norm);
EBB_CUDA_KERNEL (batch_norm_grad);
EBB_CUDA_KERNEL (add_layer_norm);
EBB_CUDA_KERNEL (add_rms_norm);
EBB_CUDA_KERNEL (cross_entropy);
EBB_CUDA_KERNEL (cross_entropy_grad);
EBB_CUDA_KERNEL (cross_entropy_part);
EBB_CUDA_KERNEL (cross_entropy_join);
EBB_CUDA_KERNEL (index_select);
EBB_CUDA_KERNEL (index_add);
EBB_CUDA_KERNEL (gather);
EBB_CUDA_KERNEL (scatter_add);
EBB_CUDA_KERNEL (rotary);
EBB_CUDA_KERNEL (dequantize);
EBB_CUDA_KERNEL (matmul);
EBB_CUDA_KERNEL (attention);
EBB_CUDA_KERNEL (attention_grad);
EBB_CUDA_KERNEL (adamw);
EBB_CUDA_KERNEL (sgd);
EBB_CUDA_KERNEL (moment_encode);
EBB_CUDA_KERNEL (moment_decode);
EBB_CUDA_KERNEL (squared_norm);
EBB_CUDA_KERNEL (norm_sum);
EBB_CUDA_KERNEL (clip_factor);
EBB_CUDA_KERNEL (reduce_ranks);

EBB_CUDA_WORKSPACE (column_sum);
EBB_CUDA_WORKSPACE (reduce);
EBB_CUDA_WORKSPACE (topk);
EBB_CUDA_WORKSPACE (layer_norm_grad);
EBB_CUDA_WORKSPACE (rms_norm_grad);
EBB_CUDA_WORKSPACE (index_add);
EBB_CUDA_WORKSPACE (attention);
EBB_CUDA_WORKSPACE (attention_grad);
EBB_CUDA_WORKSPACE (squared_norm);

#define KERNEL(name)       \
  {                        \
    .run = ebb_cuda_##name \
  }
#define KERNEL_WITH_WORKSPACE(name)                                      \
  {                                                                      \
    .run = ebb_cuda_##name, .get_workspace = ebb_cuda_##name##_workspace \
  }

/* The plans of matrix products say how much workspace those need, see launch.c. */
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
  [EBB_KERNEL_COLUMN_SUM] = KERNEL_WITH_WORKSPACE (column_sum),
  [EBB_KERNEL_REDUCE] = KERNEL_WITH_WORKSPACE (reduce),
  [EBB_KERNEL_VAR] = KERNEL (var),
  [EBB_KERNEL_ARG_REDUCE] = KERNEL (arg_reduce),
  [EBB_KERNEL_TOPK] = KERNEL_WITH_WORKSPACE (topk),
  [EBB_KERNEL_SOFTMAX] = KERNEL (softmax),
  [EBB_KERNEL_SOFTMAX_GRAD] = KERNEL (softmax_grad),
  [EBB_KERNEL_LAYER_NORM] = KERNEL (layer_norm),
  [EBB_KERNEL_LAYER_NORM_GRAD] = KERNEL_WITH_WORKSPACE (layer_norm_grad),
  [EBB_KERNEL_RMS_NORM] = KERNEL (rms_norm),
  [EBB_KERNEL_RMS_NORM_GRAD] = KERNEL_WITH_WORKSPACE (rms_norm_grad),
  [EBB_KERNEL_BATCH_NORM] = KERNEL (batch_norm),
  [EBB_KERNEL_BATCH_NORM_GRAD] = KERNEL (batch_norm_grad),
  [EBB_KERNEL_ADD_LAYER_NORM] = KERNEL (add_layer_norm),
  [EBB_KERNEL_ADD_RMS_NORM] = KERNEL (add_rms_norm),
  [EBB_KERNEL_CROSS_ENTROPY] = KERNEL (cross_entropy),
  [EBB_KERNEL_CROSS_ENTROPY_GRAD] = KERNEL (cross_entropy_grad),
  [EBB_KERNEL_CROSS_ENTROPY_PART] = KERNEL (cross_entropy_part),
  [EBB_KERNEL_CROSS_ENTROPY_JOIN] = KERNEL (cross_entropy_join),
  [EBB_KERNEL_INDEX_SELECT] = KERNEL (index_select),
  [EBB_KERNEL_INDEX_ADD] = KERNEL_WITH_WORKSPACE (index_add),
  [EBB_KERNEL_GATHER] = KERNEL (gather),
  [EBB_KERNEL_SCATTER_ADD] = KERNEL (scatter_add),
  [EBB_KERNEL_ROTARY] = KERNEL (rotary),
  [EBB_KERNEL_DEQUANTIZE] = KERNEL (dequantize),
  [EBB_KERNEL_MATMUL] = KERNEL (matmul),
  [EBB_KERNEL_ATTENTION] = KERNEL_WITH_WORKSPACE (attention),
  [EBB_KERNEL_ATTENTION_GRAD] = KERNEL_WITH_WORKSPACE (attention_grad),
  [EBB_KERNEL_ADAMW] = KERNEL (adamw),
  [EBB_KERNEL_SGD] = KERNEL (sgd),
  [EBB_KERNEL_MOMENT_ENCODE] = KERNEL (moment_encode),
  [EBB_KERNEL_MOMENT_DECODE] = KERNEL (moment_decode),
  [EBB_KERNEL_SQUARED_NORM] = KERNEL_WITH_WORKSPACE (squared_norm),
  [EBB_KERNEL_NORM_SUM] = KERNEL (norm_sum),
  [EBB_KERNEL_CLIP_FACTOR] = KERNEL (clip_factor),
  [EBB_KERNEL_REDUCE_RANKS] = KERNEL (reduce_ranks),
};
