/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The tables of kernels: the function of each, and what says how much workspace it needs. */
#include "tensor/cuda/cuda-private.h"

#define EBB_KERNEL(NUMBER, name, cost) EBB_CUDA_KERNEL (name);
#include "tensor/backend/kernel-list-private.h"

const EbbCudaKernelFunc ebb_cuda_kernels[EBB_N_KERNELS] = {
#define EBB_KERNEL(NUMBER, name, cost) ebb_cuda_##name,
#include "tensor/backend/kernel-list-private.h"
};

EBB_CUDA_WORKSPACE (column_sum);
EBB_CUDA_WORKSPACE (reduce);
EBB_CUDA_WORKSPACE (topk);
EBB_CUDA_WORKSPACE (layer_norm_grad);
EBB_CUDA_WORKSPACE (rms_norm_grad);
EBB_CUDA_WORKSPACE (index_add);
EBB_CUDA_WORKSPACE (attention);
EBB_CUDA_WORKSPACE (attention_grad);
EBB_CUDA_WORKSPACE (squared_norm);

#define WORKSPACE(NUMBER, name) [EBB_KERNEL_##NUMBER] = ebb_cuda_##name##_workspace

/* The plans of matrix products say how much workspace those need, see launch.c. */
const EbbCudaWorkspaceFunc ebb_cuda_workspaces[EBB_N_KERNELS] = {
  WORKSPACE (COLUMN_SUM, column_sum),
  WORKSPACE (REDUCE, reduce),
  WORKSPACE (TOPK, topk),
  WORKSPACE (LAYER_NORM_GRAD, layer_norm_grad),
  WORKSPACE (RMS_NORM_GRAD, rms_norm_grad),
  WORKSPACE (INDEX_ADD, index_add),
  WORKSPACE (ATTENTION, attention),
  WORKSPACE (ATTENTION_GRAD, attention_grad),
  WORKSPACE (SQUARED_NORM, squared_norm),
};
