/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend/kernel-private.h"
#include "tensor/cuda/runtime-private.h"

/* The kernels of the GPU as C functions, between the host code (C) and the .cu files (C++). */

G_BEGIN_DECLS

/* The first index that was out of range: it lies in the device's memory, and @flag in host memory that the device
 * writes as well. Only the smallest position of the first such launch is kept. fault_report () and fault_is_set () of
 * fault.cuh write and read it. */
typedef struct
{
  guint32 serial; /* of the launch; 0: there is no fault */
  guint32 lock;   /* held while the rest changes; 0: free */
  gint64 position, value, limit;
  volatile guint32 *flag; /* becomes 1 after the rest was written; the host looks at it without waiting */
} EbbCudaFault;

/* Where a launch goes. */
typedef struct
{
  cudaStream_t stream;
  int device;                /* its index: function attributes, such as large shared memory, are set once for each */
  int architecture;          /* 80, 90, 100: ten times the compute capability */
  int n_multiprocessors;     /* for sizes of grids that don't change bits */
  int shared_bytes;          /* the most shared memory that a block may have: 99 KiB and more */
  guint32 serial;            /* of this launch among those that check indices, from 1 on */
  EbbCudaFault *fault;       /* in the device's memory */
  const EbbCudaFault *guard; /* the same if the launch changes what lasts, which it must not after a fault; else NULL */
} EbbCudaQueue;

/* cudaErrorNotSupported: there is no such kernel for these dtypes or shapes. Otherwise the result of the launches. A
 * launch without elements enqueues nothing. */
typedef cudaError_t (*EbbCudaKernelFunc) (const EbbLaunch *launch,
                                          const EbbCudaQueue *queue);

/* How many bytes of workspace it needs, by shapes, strides, dtypes and parameters alone. */
typedef gsize (*EbbCudaWorkspaceFunc) (const EbbLaunch *launch);

/* Whether the kernels were compiled for the current device: cudaSuccess if so. */
cudaError_t ebb_cuda_find_code (void);

/* The widest heads that attention takes: a tile of their keys and values fits into shared memory. */
#define EBB_CUDA_MAX_HEAD_WIDTH 256
#define EBB_CUDA_ROW_ALIGNMENT 128 /* bytes; from 16 on cuBLASLt has all of its algorithms */

/* Before the definition of each, and of all of them in kernels.c:
 * EBB_CUDA_KERNEL (layer_norm) { return EBB_CUDA_LAUNCH (...); } */
#ifdef __cplusplus
#define EBB_CUDA_KERNEL(name)                                                                  \
  extern "C" cudaError_t ebb_cuda_##name (const EbbLaunch *launch, const EbbCudaQueue *queue); \
  extern "C" cudaError_t ebb_cuda_##name (const EbbLaunch *launch, const EbbCudaQueue *queue)
#define EBB_CUDA_WORKSPACE(name)                                          \
  extern "C" gsize ebb_cuda_##name##_workspace (const EbbLaunch *launch); \
  extern "C" gsize ebb_cuda_##name##_workspace (const EbbLaunch *launch)
#else
#define EBB_CUDA_KERNEL(name) cudaError_t ebb_cuda_##name (const EbbLaunch *launch, const EbbCudaQueue *queue)
#define EBB_CUDA_WORKSPACE(name) gsize ebb_cuda_##name##_workspace (const EbbLaunch *launch)
#endif

G_END_DECLS
