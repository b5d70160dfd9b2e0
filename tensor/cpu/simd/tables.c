/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The tables of one instruction set: its kernels, and the workspace that they need. */
#include "tensor/cpu/simd/simd-private.h"

/* Of products the table has the kernel for few rows: tensor/cpu/backend.c puts that of all products here. */
const EbbKernelFunc EBB_SIMD_NAME (ebb_cpu_kernels)[EBB_N_KERNELS] = {
#define EBB_KERNEL(NUMBER, name, cost) EBB_SIMD_NAME (ebb_cpu_##name),
#include "tensor/backend/kernel-list-private.h"
};

#define WORKSPACE(NUMBER, name) [EBB_KERNEL_##NUMBER] = EBB_SIMD_NAME (ebb_cpu_##name##_workspace)

/* NULL: none. */
const EbbCpuWorkspaceFunc EBB_SIMD_NAME (ebb_cpu_workspaces)[EBB_N_KERNELS] = {
  WORKSPACE (MULTINOMIAL, multinomial),
  WORKSPACE (BIAS_GELU, bias_gelu),
  WORKSPACE (BIAS_GELU_GRAD, bias_gelu_grad),
  WORKSPACE (COLUMN_SUM, column_sum),
  WORKSPACE (REDUCE, reduce),
  WORKSPACE (TOPK, topk),
  WORKSPACE (LAYER_NORM, layer_norm),
  WORKSPACE (LAYER_NORM_GRAD, norm_grad),
  WORKSPACE (RMS_NORM, rms_norm),
  WORKSPACE (RMS_NORM_GRAD, norm_grad),
  WORKSPACE (BATCH_NORM, batch_norm),
  WORKSPACE (BATCH_NORM_GRAD, batch_norm_grad),
  WORKSPACE (ADD_LAYER_NORM, add_layer_norm),
  WORKSPACE (ADD_RMS_NORM, add_rms_norm),
  WORKSPACE (ROTARY, rotary),
  WORKSPACE (ATTENTION, attention),
  WORKSPACE (ATTENTION_GRAD, attention_grad),
  WORKSPACE (SQUARED_NORM, squared_norm),
  WORKSPACE (DEQUANTIZE, dequantize),
  WORKSPACE (MATMUL, matmul),
};
