/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <cublasLt.h>

#include "tensor/cuda/cuda-private.h"

/* A matrix product in its plainest form, and how cuBLASLt is to compute it. Launches that are the same product have the
 * same bytes in their EbbCudaProduct and one plan. */

G_BEGIN_DECLS

#define EBB_CUDA_MAX_BATCH (EBB_MAX_DIMS - 2)
#define EBB_CUDA_BLAS_ALIGNMENT 16
#define EBB_CUDA_BLAS_WORKSPACE ((gsize) 32 << 20)

/* [batch.., rows, columns]; strides in elements, those of a batch 0 where it does not vary. */
typedef struct
{
  gint64 rows, columns, row, column;
  gint64 batch[EBB_CUDA_MAX_BATCH];
  gint64 dtype;
} EbbCudaMatrix;

typedef struct
{
  gint64 m, n, k;
  EbbCudaMatrix a, b, c;
  gint64 n_batch;
  gint64 batch[EBB_CUDA_MAX_BATCH];
  gint64 bias_dtype; /* -1: there is no bias */
  gint64 bias_stride;
  gint64 accumulate;
} EbbCudaProduct;

/* One call of cuBLASLt: all of a product, or some of its rows, columns or terms. Offsets are in elements. */
typedef struct
{
  gint64 offset_a, offset_b, offset_c, offset_bias;
  gboolean adds; /* to the terms of the part before */
  gboolean has_bias;
  cublasLtMatmulDesc_t description;
  cublasLtMatrixLayout_t left, right, result; /* left is b, since cuBLASLt's matrices are columns first */
  cublasLtMatmulAlgo_t algorithm;
} EbbCudaPart;

#define EBB_CUDA_MAX_PARTS 8

/* How a product runs: the operands that go through workspace, and its parts. Shapes, strides and dtypes decide it, and
 * the algorithms that cuBLASLt has for them on this GPU, but no address. */
typedef struct
{
  EbbCudaProduct product;                /* the key */
  EbbCudaMatrix a, b, c;                 /* as cuBLASLt sees them; c possibly of another dtype */
  gboolean copies_a, copies_b, copies_c; /* operands whose strides or dtypes cuBLASLt does not take */
  gboolean copies_bias;
  gint64 n_inner;                   /* matrices of one call */
  gint64 inner_a, inner_b, inner_c; /* strides between them */
  int n_outer;                      /* dimensions of the batch before, a call for each */
  gint64 first_m, first_n, first_k; /* rows and columns of the result, and terms, of the first part */
  int n_parts;
  EbbCudaPart parts[EBB_CUDA_MAX_PARTS];
  gsize workspace; /* of cuBLASLt */
} EbbCudaPlan;

struct _EbbCudaBlas
{
  cublasLtHandle_t handle;
  GHashTable *plans;
};

EBB_CUDA_KERNEL (matmul);

void ebb_cuda_product_init (EbbCudaProduct *self,
                            const EbbLaunch *launch);
/* The plan of @launch, made at the first; NULL if cuBLASLt has none, with device->blas_status set. With the device
 * locked and current. */
const EbbCudaPlan *ebb_cuda_plan_find (EbbCudaDevice *device,
                                       const EbbLaunch *launch);

/* Elements from the first to the last of @matrix in a batch of such sizes. */
gint64 ebb_cuda_matrix_get_extent (const EbbCudaMatrix *matrix,
                                   const EbbCudaProduct *product);

static inline gsize
ebb_cuda_dtype_get_size (gint64 dtype)
{
  return dtype == EBB_DTYPE_F32 ? 4 : 2;
}

G_END_DECLS
