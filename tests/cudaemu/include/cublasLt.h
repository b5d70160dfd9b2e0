/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Stands in for cuBLASLt's header: the part that Ebb uses, with the library's types and numbers. */

#include <stdint.h>

#include "cuda_runtime_api.h"
#include "cudaemu-api.h"

CUDAEMU_BEGIN_API

#define CUBLAS_VERSION 120804

typedef enum cudaDataType_t
{
  CUDA_R_32F = 0,
  CUDA_R_64F = 1,
  CUDA_R_16F = 2,
  CUDA_R_16BF = 14
} cudaDataType_t;
typedef cudaDataType_t cudaDataType;

typedef enum
{
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_NOT_INITIALIZED = 1,
  CUBLAS_STATUS_ALLOC_FAILED = 3,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_ARCH_MISMATCH = 8,
  CUBLAS_STATUS_MAPPING_ERROR = 11,
  CUBLAS_STATUS_EXECUTION_FAILED = 13,
  CUBLAS_STATUS_INTERNAL_ERROR = 14,
  CUBLAS_STATUS_NOT_SUPPORTED = 15,
  CUBLAS_STATUS_LICENSE_ERROR = 16
} cublasStatus_t;

typedef enum
{
  CUBLAS_OP_N = 0,
  CUBLAS_OP_T = 1,
  CUBLAS_OP_C = 2
} cublasOperation_t;

typedef enum
{
  CUBLAS_COMPUTE_16F = 64,
  CUBLAS_COMPUTE_32F = 68,
  CUBLAS_COMPUTE_32F_PEDANTIC = 69,
  CUBLAS_COMPUTE_32F_FAST_16F = 74,
  CUBLAS_COMPUTE_32F_FAST_16BF = 75,
  CUBLAS_COMPUTE_32F_FAST_TF32 = 77
} cublasComputeType_t;

typedef enum
{
  CUBLASLT_ORDER_COL = 0,
  CUBLASLT_ORDER_ROW = 1
} cublasLtOrder_t;

typedef enum
{
  CUBLASLT_POINTER_MODE_HOST = 0,
  CUBLASLT_POINTER_MODE_DEVICE = 1
} cublasLtPointerMode_t;

typedef enum
{
  CUBLASLT_EPILOGUE_DEFAULT = 1,
  CUBLASLT_EPILOGUE_BIAS = 4,
  CUBLASLT_EPILOGUE_GELU = 32,
  CUBLASLT_EPILOGUE_GELU_BIAS = CUBLASLT_EPILOGUE_GELU | CUBLASLT_EPILOGUE_BIAS
} cublasLtEpilogue_t;

typedef enum
{
  CUBLASLT_REDUCTION_SCHEME_NONE = 0,
  CUBLASLT_REDUCTION_SCHEME_INPLACE = 1,
  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
  CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4,
  CUBLASLT_REDUCTION_SCHEME_MASK = 7
} cublasLtReductionScheme_t;

typedef enum
{
  CUBLASLT_MATRIX_LAYOUT_TYPE = 0,
  CUBLASLT_MATRIX_LAYOUT_ORDER = 1,
  CUBLASLT_MATRIX_LAYOUT_ROWS = 2,
  CUBLASLT_MATRIX_LAYOUT_COLS = 3,
  CUBLASLT_MATRIX_LAYOUT_LD = 4,
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6
} cublasLtMatrixLayoutAttribute_t;

typedef enum
{
  CUBLASLT_MATMUL_DESC_COMPUTE_TYPE = 0,
  CUBLASLT_MATMUL_DESC_SCALE_TYPE = 1,
  CUBLASLT_MATMUL_DESC_POINTER_MODE = 2,
  CUBLASLT_MATMUL_DESC_TRANSA = 3,
  CUBLASLT_MATMUL_DESC_TRANSB = 4,
  CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
  CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE = 10,
  CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26
} cublasLtMatmulDescAttributes_t;

typedef enum
{
  CUBLASLT_MATMUL_PREF_SEARCH_MODE = 0,
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
} cublasLtMatmulPreferenceAttributes_t;

typedef enum
{
  CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME = 3
} cublasLtMatmulAlgoConfigAttributes_t;

typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cublasLtMatmulDesc_st *cublasLtMatmulDesc_t;
typedef struct cublasLtMatrixLayout_st *cublasLtMatrixLayout_t;
typedef struct cublasLtMatmulPreference_st *cublasLtMatmulPreference_t;

typedef struct
{
  uint64_t data[8];
} cublasLtMatmulAlgo_t;

typedef struct
{
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
} cublasLtMatmulHeuristicResult_t;

size_t cublasLtGetVersion (void);
const char *cublasLtGetStatusName (cublasStatus_t status);
const char *cublasLtGetStatusString (cublasStatus_t status);
cublasStatus_t cublasLtCreate (cublasLtHandle_t *handle);
cublasStatus_t cublasLtDestroy (cublasLtHandle_t handle);
cublasStatus_t cublasLtMatrixLayoutCreate (cublasLtMatrixLayout_t *layout,
                                           cudaDataType type,
                                           uint64_t rows,
                                           uint64_t columns,
                                           int64_t leading_dimension);
cublasStatus_t cublasLtMatrixLayoutDestroy (cublasLtMatrixLayout_t layout);
cublasStatus_t cublasLtMatrixLayoutSetAttribute (cublasLtMatrixLayout_t layout,
                                                 cublasLtMatrixLayoutAttribute_t attribute,
                                                 const void *value,
                                                 size_t size);
cublasStatus_t cublasLtMatmulDescCreate (cublasLtMatmulDesc_t *product,
                                         cublasComputeType_t compute_type,
                                         cudaDataType_t scale_type);
cublasStatus_t cublasLtMatmulDescDestroy (cublasLtMatmulDesc_t product);
cublasStatus_t cublasLtMatmulDescSetAttribute (cublasLtMatmulDesc_t product,
                                               cublasLtMatmulDescAttributes_t attribute,
                                               const void *value,
                                               size_t size);
cublasStatus_t cublasLtMatmulPreferenceCreate (cublasLtMatmulPreference_t *preference);
cublasStatus_t cublasLtMatmulPreferenceDestroy (cublasLtMatmulPreference_t preference);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute (cublasLtMatmulPreference_t preference,
                                                     cublasLtMatmulPreferenceAttributes_t attribute,
                                                     const void *value,
                                                     size_t size);
cublasStatus_t cublasLtMatmulAlgoGetHeuristic (cublasLtHandle_t handle,
                                               cublasLtMatmulDesc_t product,
                                               cublasLtMatrixLayout_t a,
                                               cublasLtMatrixLayout_t b,
                                               cublasLtMatrixLayout_t c,
                                               cublasLtMatrixLayout_t d,
                                               cublasLtMatmulPreference_t preference,
                                               int n_wanted,
                                               cublasLtMatmulHeuristicResult_t results[],
                                               int *n_results);
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute (const cublasLtMatmulAlgo_t *algorithm,
                                                     cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                     void *value,
                                                     size_t size,
                                                     size_t *written);
cublasStatus_t cublasLtMatmul (cublasLtHandle_t handle,
                               cublasLtMatmulDesc_t product,
                               const void *alpha,
                               const void *a_data,
                               cublasLtMatrixLayout_t a,
                               const void *b_data,
                               cublasLtMatrixLayout_t b,
                               const void *beta,
                               const void *c_data,
                               cublasLtMatrixLayout_t c,
                               void *d_data,
                               cublasLtMatrixLayout_t d,
                               const cublasLtMatmulAlgo_t *algorithm,
                               void *workspace,
                               size_t workspace_size,
                               cudaStream_t stream);

CUDAEMU_END_API
