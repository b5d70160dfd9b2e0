/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt's products, d = alpha op (a) op (b) + beta c with an epilogue, summed in f32 in the order of the inner
 * dimension. Operands that the library itself refuses are refused: wrong sizes, addresses that are less aligned than
 * the algorithm was chosen for, workspace that is too small. */
#include "cudaemu/runtime-private.h"

#include "cublasLt.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

struct cublasLtContext
{
  int nothing;
};

struct cublasLtMatrixLayout_st
{
  cudaDataType type;
  cublasLtOrder_t order;
  std::uint64_t rows, columns;
  std::int64_t leading_dimension;
  std::int32_t n_batches;
  std::int64_t batch_offset;
};

struct cublasLtMatmulDesc_st
{
  cublasComputeType_t compute_type;
  cublasLtPointerMode_t pointer_mode;
  cublasOperation_t transpose_a, transpose_b;
  cublasLtEpilogue_t epilogue;
  const void *bias;
  std::int64_t bias_batch_offset;
  cudaDataType bias_type;
  bool has_bias_type;
};

struct cublasLtMatmulPreference_st
{
  std::uint64_t workspace_size;
  std::uint32_t reduction_schemes;
  std::uint32_t alignments[4]; /* of a, b, c, d */
};

/* The 64 bytes of an algorithm: the product that it was chosen for. */
struct Algorithm
{
  std::uint64_t mark, workspace_size;
  std::uint32_t alignments[4];
  std::uint32_t reduction_scheme;
};

static_assert (sizeof (Algorithm) <= sizeof (cublasLtMatmulAlgo_t), "");

namespace
{

constexpr std::uint64_t MARK = 0x45626245626c6173;
/* So that products are tested which have workspace and must not share it. */
constexpr std::uint64_t WORKSPACE = 4096;
/* Results of so many elements are split sums, where those are allowed. */
constexpr std::uint64_t MOST_SPLIT = 4096;

/* A matrix in memory. */
struct Operand
{
  const void *data;
  cudaDataType type;
  std::int64_t row_stride, column_stride, batch_stride; /* in elements */
};

struct Product
{
  Operand a, b, c;
  void *d_data;
  Operand d;
  std::int64_t n_rows, n_columns, n_inner, n_batches;
  float alpha, beta;
  int epilogue;
  Operand bias;
  bool is_split;
  void *workspace;
};

bool
complain (const char *what)
{
  std::fprintf (stderr, "cudaemu: cublasLtMatmul: %s\n", what);
  return false;
}

/* It works in the thread's context and makes none. */
bool
check_context ()
{
  return cudaemu::has_context () || complain ("this thread has no context: cudaSetDevice () gives it one");
}

/* -- elements ------------------------------------------------------------------------------------------------------ */

float
load (const Operand &operand,
      std::int64_t offset)
{
  std::uint32_t bits;
  float x;

  if (operand.type == CUDA_R_32F)
    return static_cast<const float *> (operand.data)[offset];
  bits = (std::uint32_t) static_cast<const std::uint16_t *> (operand.data)[offset] << 16;
  std::memcpy (&x, &bits, sizeof x);
  return x;
}

void
store (const Operand &operand,
       void *data,
       std::int64_t offset,
       float x)
{
  std::uint32_t bits;

  if (operand.type == CUDA_R_32F)
    {
      static_cast<float *> (data)[offset] = x;
      return;
    }
  std::memcpy (&bits, &x, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    bits |= 0x400000u;
  else
    bits += 0x7fffu + (bits >> 16 & 1);
  static_cast<std::uint16_t *> (data)[offset] = (std::uint16_t) (bits >> 16);
}

/* What is left of it in @type */
float
round_to (cudaDataType type,
          float x)
{
  std::uint16_t bits = 0;

  if (type == CUDA_R_32F)
    return x;
  store ({ nullptr, type, 1, 1, 0 }, &bits, 0, x);
  return load ({ &bits, type, 1, 1, 0 }, 0);
}

/* -- the product --------------------------------------------------------------------------------------------------- */

/* [rows, columns] of a batch, side by side. */
void
pack (const Operand &operand,
      std::int64_t batch,
      std::int64_t n_rows,
      std::int64_t n_columns,
      std::vector<float> *packed)
{
  packed->resize ((std::size_t) (n_rows * n_columns));
  for (std::int64_t i = 0; i < n_rows; i++)
    for (std::int64_t k = 0; k < n_columns; k++)
      (*packed)[(std::size_t) (i * n_columns + k)] =
          load (operand, batch * operand.batch_stride + i * operand.row_stride + k * operand.column_stride);
}

float
gelu (float x)
{
  return 0.5f * x * (1 + std::tanh (0.7978845608f * (x + 0.044715f * x * x * x)));
}

/* Wider vectors where the processor has them: sums in another order there would be other bits, these are not. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
__attribute__ ((target_clones ("avx2", "default")))
#endif
void
multiply_row (const float *left,
              const float *right,
              std::int64_t n_inner,
              std::int64_t n_columns,
              float *__restrict__ sums)
{
  std::int64_t k = 0;

  for (std::int64_t column = 0; column < n_columns; column++)
    sums[column] = 0;
  for (; k + 4 <= n_inner; k += 4)
    {
      const float *a = right + k * n_columns, *b = a + n_columns, *c = b + n_columns, *d = c + n_columns;

      for (std::int64_t column = 0; column < n_columns; column++)
        {
          float sum = sums[column] + left[k] * a[column];

          sum = sum + left[k + 1] * b[column];
          sum = sum + left[k + 2] * c[column];
          sums[column] = sum + left[k + 3] * d[column];
        }
    }
  for (; k < n_inner; k++)
    for (std::int64_t column = 0; column < n_columns; column++)
      sums[column] += left[k] * right[k * n_columns + column];
}

void
run_batch (const Product &self,
           std::int64_t batch,
           const std::vector<float> &a,
           const std::vector<float> &b)
{
  std::vector<float> sums ((std::size_t) self.n_columns);
  const Operand &c = self.c, &d = self.d;

  for (std::int64_t row = 0; row < self.n_rows; row++)
    {
      multiply_row (a.data () + row * self.n_inner, b.data (), self.n_inner, self.n_columns, sums.data ());
      for (std::int64_t column = 0; column < self.n_columns; column++)
        {
          float x = self.alpha * sums[(std::size_t) column];

          if (self.beta != 0)
            x += self.beta * load (c, batch * c.batch_stride + row * c.row_stride + column * c.column_stride);
          /* As the library does */
          if ((self.epilogue & CUBLASLT_EPILOGUE_BIAS) && (self.is_split || self.beta != 0))
            x = round_to (d.type, x);
          if (self.epilogue & CUBLASLT_EPILOGUE_BIAS)
            x += load (self.bias, batch * self.bias.batch_stride + row);
          if (self.epilogue & CUBLASLT_EPILOGUE_GELU)
            x = gelu (x);
          store (d, self.d_data, batch * d.batch_stride + row * d.row_stride + column * d.column_stride, x);
        }
    }
}

bool
run (const Product &self)
{
  std::vector<float> a, b;

  if (self.workspace != nullptr)
    std::memset (self.workspace, 0xff, WORKSPACE);
  for (std::int64_t batch = 0; batch < self.n_batches; batch++)
    {
      if (batch == 0 || self.a.batch_stride != 0)
        pack (self.a, batch, self.n_rows, self.n_inner, &a);
      if (batch == 0 || self.b.batch_stride != 0)
        pack (self.b, batch, self.n_inner, self.n_columns, &b);
      run_batch (self, batch, a, b);
    }
  return true;
}

/* -- checking a product -------------------------------------------------------------------------------------------- */

Operand
describe (const void *data,
          const cublasLtMatrixLayout_st *layout,
          cublasOperation_t transpose)
{
  bool by_columns = (layout->order == CUBLASLT_ORDER_COL) == (transpose == CUBLAS_OP_N);

  return { data, layout->type, by_columns ? 1 : layout->leading_dimension,
           by_columns ? layout->leading_dimension : 1, layout->batch_offset };
}

bool
is_supported (cudaDataType type)
{
  return type == CUDA_R_32F || type == CUDA_R_16BF;
}

bool
check_layout (const cublasLtMatrixLayout_st *layout)
{
  std::uint64_t least = layout->order == CUBLASLT_ORDER_COL ? layout->rows : layout->columns;

  if (layout->leading_dimension < (std::int64_t) least)
    return complain ("a leading dimension is less than the rows");
  return layout->rows > 0 && layout->columns > 0 && layout->n_batches > 0;
}

bool
check (const cublasLtMatmulDesc_st *product,
       const cublasLtMatrixLayout_st *a,
       const cublasLtMatrixLayout_st *b,
       const cublasLtMatrixLayout_st *c,
       const cublasLtMatrixLayout_st *d)
{
  std::uint64_t n_rows = product->transpose_a == CUBLAS_OP_N ? a->rows : a->columns;
  std::uint64_t n_inner = product->transpose_a == CUBLAS_OP_N ? a->columns : a->rows;
  std::uint64_t n_columns = product->transpose_b == CUBLAS_OP_N ? b->columns : b->rows;
  std::uint64_t n_inner_b = product->transpose_b == CUBLAS_OP_N ? b->rows : b->columns;

  if (!check_layout (a) || !check_layout (b) || !check_layout (c) || !check_layout (d))
    return false;
  if (n_inner != n_inner_b || d->rows != n_rows || d->columns != n_columns || c->rows != n_rows
      || c->columns != n_columns)
    return complain ("the sizes of the matrices don't fit");
  if (a->n_batches != d->n_batches || b->n_batches != d->n_batches || c->n_batches != d->n_batches)
    return complain ("the numbers of batches differ");
  if (!is_supported (a->type) || a->type != b->type || !is_supported (d->type) || c->type != d->type
      || (a->type == CUDA_R_32F && d->type != CUDA_R_32F))
    return complain ("there is no product of these types");
  return true;
}

bool
is_aligned (const void *data,
            std::uint32_t alignment)
{
  return reinterpret_cast<std::uintptr_t> (data) % alignment == 0;
}

template <typename T>
cublasStatus_t
set (T *field,
     const void *value,
     std::size_t size)
{
  if (size != sizeof *field)
    return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy (field, value, size);
  return CUBLAS_STATUS_SUCCESS;
}

} // namespace

size_t
cublasLtGetVersion ()
{
  return CUBLAS_VERSION;
}

const char *
cublasLtGetStatusName (cublasStatus_t status)
{
  switch (status)
    {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR: return "CUBLAS_STATUS_LICENSE_ERROR";
    default: return "CUBLAS_STATUS_UNKNOWN";
    }
}

const char *
cublasLtGetStatusString (cublasStatus_t status)
{
  return cublasLtGetStatusName (status);
}

cublasStatus_t
cublasLtCreate (cublasLtHandle_t *handle)
{
  if (!check_context ())
    return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasLtContext ();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtDestroy (cublasLtHandle_t handle)
{
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatrixLayoutCreate (cublasLtMatrixLayout_t *layout,
                            cudaDataType type,
                            uint64_t rows,
                            uint64_t columns,
                            int64_t leading_dimension)
{
  *layout = new cublasLtMatrixLayout_st{ type, CUBLASLT_ORDER_COL, rows, columns, leading_dimension, 1, 0 };
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatrixLayoutDestroy (cublasLtMatrixLayout_t layout)
{
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatrixLayoutSetAttribute (cublasLtMatrixLayout_t layout,
                                  cublasLtMatrixLayoutAttribute_t attribute,
                                  const void *value,
                                  size_t size)
{
  switch (attribute)
    {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: return set (&layout->type, value, size);
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return set (&layout->order, value, size);
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return set (&layout->rows, value, size);
    case CUBLASLT_MATRIX_LAYOUT_COLS: return set (&layout->columns, value, size);
    case CUBLASLT_MATRIX_LAYOUT_LD: return set (&layout->leading_dimension, value, size);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return set (&layout->n_batches, value, size);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return set (&layout->batch_offset, value, size);
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t
cublasLtMatmulDescCreate (cublasLtMatmulDesc_t *product,
                          cublasComputeType_t compute_type,
                          cudaDataType_t scale_type)
{
  if (scale_type != CUDA_R_32F)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  *product = new cublasLtMatmulDesc_st ();
  (*product)->compute_type = compute_type;
  (*product)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulDescDestroy (cublasLtMatmulDesc_t product)
{
  delete product;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulDescSetAttribute (cublasLtMatmulDesc_t product,
                                cublasLtMatmulDescAttributes_t attribute,
                                const void *value,
                                size_t size)
{
  switch (attribute)
    {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return set (&product->compute_type, value, size);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return set (&product->pointer_mode, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSA: return set (&product->transpose_a, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set (&product->transpose_b, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set (&product->epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set (&product->bias, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: return set (&product->bias_batch_offset, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      product->has_bias_type = true;
      return set (&product->bias_type, value, size);
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t
cublasLtMatmulPreferenceCreate (cublasLtMatmulPreference_t *preference)
{
  *preference = new cublasLtMatmulPreference_st{ 0, CUBLASLT_REDUCTION_SCHEME_MASK, { 256, 256, 256, 256 } };
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulPreferenceDestroy (cublasLtMatmulPreference_t preference)
{
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulPreferenceSetAttribute (cublasLtMatmulPreference_t preference,
                                      cublasLtMatmulPreferenceAttributes_t attribute,
                                      const void *value,
                                      size_t size)
{
  switch (attribute)
    {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set (&preference->workspace_size, value, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set (&preference->reduction_schemes, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return set (&preference->alignments[0], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return set (&preference->alignments[1], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return set (&preference->alignments[2], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return set (&preference->alignments[3], value, size);
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t
cublasLtMatmulAlgoGetHeuristic (cublasLtHandle_t handle,
                                cublasLtMatmulDesc_t product,
                                cublasLtMatrixLayout_t a,
                                cublasLtMatrixLayout_t b,
                                cublasLtMatrixLayout_t c,
                                cublasLtMatrixLayout_t d,
                                cublasLtMatmulPreference_t preference,
                                int n_wanted,
                                cublasLtMatmulHeuristicResult_t results[],
                                int *n_results)
{
  Algorithm algorithm = { MARK, preference->workspace_size >= WORKSPACE ? WORKSPACE : 0, {}, 0 };

  *n_results = 0;
  if (!check_context ())
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (handle == nullptr || n_wanted < 1 || !check (product, a, b, c, d))
    return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy (algorithm.alignments, preference->alignments, sizeof algorithm.alignments);
  if (d->rows * d->columns <= MOST_SPLIT)
    algorithm.reduction_scheme = preference->reduction_schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  std::memset (results, 0, sizeof results[0]);
  std::memcpy (results[0].algo.data, &algorithm, sizeof algorithm);
  results[0].workspaceSize = algorithm.workspace_size;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  *n_results = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulAlgoConfigGetAttribute (const cublasLtMatmulAlgo_t *algorithm,
                                      cublasLtMatmulAlgoConfigAttributes_t attribute,
                                      void *value,
                                      size_t size,
                                      size_t *written)
{
  Algorithm chosen = {};

  std::memcpy (&chosen, algorithm->data, sizeof chosen);
  if (attribute != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME || size != sizeof chosen.reduction_scheme)
    return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy (value, &chosen.reduction_scheme, size);
  *written = size;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmul (cublasLtHandle_t handle,
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
                cudaStream_t stream)
{
  Algorithm chosen = {};
  Product self = {};

  if (!check_context ())
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (handle == nullptr || !check (product, a, b, c, d))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (product->pointer_mode != CUBLASLT_POINTER_MODE_HOST)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (cudaemu::take_failure (cudaemu::FAIL_BLAS))
    return CUBLAS_STATUS_EXECUTION_FAILED;
  if (algorithm != nullptr)
    std::memcpy (&chosen, algorithm->data, sizeof chosen);
  if (algorithm == nullptr || chosen.mark != MARK)
    return complain ("the algorithm is not one of cublasLtMatmulAlgoGetHeuristic ()"), CUBLAS_STATUS_INVALID_VALUE;
  if (workspace_size < chosen.workspace_size || (chosen.workspace_size > 0 && !is_aligned (workspace, 256)))
    return complain ("the workspace is too small or not aligned to 256 bytes"), CUBLAS_STATUS_INVALID_VALUE;
  if (!is_aligned (a_data, chosen.alignments[0]) || !is_aligned (b_data, chosen.alignments[1])
      || !is_aligned (c_data, chosen.alignments[2]) || !is_aligned (d_data, chosen.alignments[3]))
    return complain ("an operand is less aligned than the algorithm was chosen for"), CUBLAS_STATUS_INVALID_VALUE;
  self.a = describe (a_data, a, product->transpose_a);
  self.b = describe (b_data, b, product->transpose_b);
  self.c = describe (c_data, c, CUBLAS_OP_N);
  self.d = describe (d_data, d, CUBLAS_OP_N);
  self.d_data = d_data;
  self.n_rows = (std::int64_t) d->rows;
  self.n_columns = (std::int64_t) d->columns;
  self.n_inner = (std::int64_t) (product->transpose_a == CUBLAS_OP_N ? a->columns : a->rows);
  self.n_batches = d->n_batches;
  self.alpha = *static_cast<const float *> (alpha);
  self.beta = *static_cast<const float *> (beta);
  self.epilogue = product->epilogue;
  self.is_split = chosen.reduction_scheme != CUBLASLT_REDUCTION_SCHEME_NONE;
  self.workspace = chosen.workspace_size > 0 ? workspace : nullptr;
  self.bias = { product->bias, product->has_bias_type ? product->bias_type : d->type, 1, 0,
                product->bias_batch_offset };
  if ((self.epilogue & CUBLASLT_EPILOGUE_BIAS) && (product->bias == nullptr || !is_supported (self.bias.type)))
    return complain ("the epilogue has no bias"), CUBLAS_STATUS_INVALID_VALUE;
  return cudaemu::enqueue_work (stream, [self] { return run (self); }) == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}
