/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Plans of matrix products: which algorithm of cuBLASLt computes one, as a function of its shapes, strides and dtypes.
 *
 * An address never matters: all operands count as aligned to 16 bytes (one that is not is copied first), or a tensor
 * that was restored elsewhere would change the bits of a product. Sums that are split over blocks of threads are
 * joined in a fixed order, from workspace. */
#include "tensor/cuda/matmul-private.h"

#include <string.h>

/* Programs that generate text meet a new shape with each token, so all plans are dropped from time to time. */
#define MOST_PLANS 4096

/* -- the product --------------------------------------------------------------------------------------------------- */

/* The stride of the dimension that is @from_end from the end; 0 where the view has none or one of size 1. */
static gint64
get_stride (const EbbView *view,
            int from_end)
{
  int i = view->n_dims - 1 - from_end;

  return i < 0 || view->shape[i] == 1 ? 0 : view->strides[i];
}

/* Strides of single rows and columns mean nothing: they become those of dense memory. */
static void
canonicalize (EbbCudaMatrix *self)
{
  if (self->rows == 1 && self->columns == 1)
    self->row = self->column = 1;
  else if (self->columns == 1)
    self->column = self->row == 1 ? self->rows : 1;
  else if (self->rows == 1)
    self->row = self->column == 1 ? self->columns : 1;
}

static void
matrix_init (EbbCudaMatrix *self,
             const EbbView *view)
{
  self->rows = view->shape[view->n_dims - 2];
  self->columns = view->shape[view->n_dims - 1];
  self->row = view->strides[view->n_dims - 2];
  self->column = view->strides[view->n_dims - 1];
  self->dtype = view->dtype;
}

static void
drop_batch (EbbCudaProduct *self,
            gint64 i)
{
  EbbCudaMatrix *matrices[] = { &self->a, &self->b, &self->c };
  const gsize n = (gsize) (self->n_batch - i - 1) * sizeof (gint64);

  memmove (&self->batch[i], &self->batch[i + 1], n);
  self->batch[self->n_batch - 1] = 0;
  for (guint k = 0; k < G_N_ELEMENTS (matrices); k++)
    {
      memmove (&matrices[k]->batch[i], &matrices[k]->batch[i + 1], n);
      matrices[k]->batch[self->n_batch - 1] = 0;
    }
  self->n_batch--;
}

static gboolean
follows (const EbbCudaMatrix *matrix,
         const EbbCudaProduct *self,
         gint64 i)
{
  return matrix->batch[i - 1] == matrix->batch[i] * self->batch[i];
}

/* Two dimensions of the batch that are one in all three. */
static void
merge_batches (EbbCudaProduct *self)
{
  for (gint64 i = self->n_batch - 1; i > 0; i--)
    if (follows (&self->a, self, i) && follows (&self->b, self, i) && follows (&self->c, self, i))
      {
        self->batch[i] *= self->batch[i - 1];
        drop_batch (self, i - 1);
      }
}

/* [B, T, K] x [K, N] is [B * T, K] x [K, N]. */
static void
fold_batches_into_rows (EbbCudaProduct *self)
{
  while (self->n_batch > 0)
    {
      const gint64 last = self->n_batch - 1, a = self->a.batch[last], c = self->c.batch[last];

      if (self->b.batch[last] != 0 || a == 0)
        return;
      if (self->m != 1 && (a != self->m * self->a.row || c != self->m * self->c.row))
        return;
      if (self->m == 1)
        {
          self->a.row = a;
          self->c.row = c;
        }
      self->m *= self->batch[last];
      self->a.rows = self->c.rows = self->m;
      drop_batch (self, last);
    }
}

void
ebb_cuda_product_init (EbbCudaProduct *self,
                       const EbbLaunch *launch)
{
  const EbbView *a = launch->inputs[0], *b = launch->inputs[1], *c = launch->outputs[0];
  const EbbView *bias = launch->n_inputs > 2 ? launch->inputs[2] : NULL;

  memset (self, 0, sizeof *self);
  matrix_init (&self->a, a);
  matrix_init (&self->b, b);
  matrix_init (&self->c, c);
  self->m = self->c.rows;
  self->n = self->c.columns;
  self->k = self->a.columns;
  for (int i = 0; i < c->n_dims - 2; i++)
    {
      const int from_end = c->n_dims - 1 - i;

      if (c->shape[i] == 1)
        continue;
      self->batch[self->n_batch] = c->shape[i];
      self->a.batch[self->n_batch] = get_stride (a, from_end);
      self->b.batch[self->n_batch] = get_stride (b, from_end);
      self->c.batch[self->n_batch] = c->strides[i];
      self->n_batch++;
    }
  self->bias_dtype = bias != NULL ? (gint64) bias->dtype : -1;
  self->bias_stride = bias != NULL && self->n > 1 ? bias->strides[bias->n_dims - 1] : 1;
  self->accumulate = launch->params.matmul.accumulate;
  merge_batches (self);
  fold_batches_into_rows (self);
  canonicalize (&self->a);
  canonicalize (&self->b);
  canonicalize (&self->c);
}

gint64
ebb_cuda_matrix_get_extent (const EbbCudaMatrix *matrix,
                            const EbbCudaProduct *product)
{
  gint64 last = (matrix->rows - 1) * matrix->row + (matrix->columns - 1) * matrix->column;

  for (gint64 i = 0; i < product->n_batch; i++)
    last += (product->batch[i] - 1) * matrix->batch[i];
  return last + 1;
}

static guint
product_hash (gconstpointer data)
{
  const EbbCudaProduct *self = data;
  const guint64 *words = data;
  guint64 hash = 0;

  for (gsize i = 0; i < sizeof *self / sizeof *words; i++)
    hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
  return (guint) (hash >> 32);
}

static gboolean
product_equal (gconstpointer a,
               gconstpointer b)
{
  return memcmp (a, b, sizeof (EbbCudaProduct)) == 0;
}

/* -- what cuBLASLt does not take ----------------------------------------------------------------------------------- */

/* One of the two strides is 1, and rows or columns do not overlap. */
static gboolean
is_readable (const EbbCudaMatrix *self)
{
  return (self->column == 1 && self->row >= self->columns) || (self->row == 1 && self->column >= self->rows);
}

/* Its dense copy, row after row; a batch that it doesn't vary over stays so. */
static void
make_dense (EbbCudaMatrix *self,
            const EbbCudaProduct *product)
{
  gint64 stride = self->rows * self->columns;

  self->row = self->columns;
  self->column = 1;
  for (gint64 i = product->n_batch - 1; i >= 0; i--)
    {
      if (self->batch[i] == 0)
        continue;
      self->batch[i] = stride;
      stride *= product->batch[i];
    }
}

/* cuBLASLt's fast algorithms of bf16 take multiples of 8 terms, of columns of the result, and of rows of an a whose
 * columns are dense, whatever the strides. With 50257 words the others run at a sixth of the rate. So most of them are
 * one call, and the up to 7 at the end another. */
#define CUT_UNIT 8
#define LEAST_CUT ((double) (1 << 28)) /* multiplications from which on the second call pays */

static gboolean
has_aligned_rows (const EbbCudaMatrix *self)
{
  return (self->column == 1 ? self->row : self->column) % CUT_UNIT == 0;
}

static gint64
cut (gint64 size)
{
  return size > CUT_UNIT ? size / CUT_UNIT * CUT_UNIT : size;
}

static void
choose_cuts (EbbCudaPlan *plan)
{
  const EbbCudaProduct *p = &plan->product;
  const gboolean is_added_in_f32 = p->c.dtype == EBB_DTYPE_F32
                                   || (p->n % CUT_UNIT == 0
                                       && (gsize) (p->m * p->n) <= EBB_CUDA_BLAS_WORKSPACE / sizeof (float));

  plan->first_m = p->m;
  plan->first_n = p->n;
  plan->first_k = p->k;
  if (p->a.dtype != EBB_DTYPE_BF16 || p->n_batch > 0 || (double) p->m * (double) p->n * (double) p->k < LEAST_CUT
      || !has_aligned_rows (&plan->a) || !has_aligned_rows (&plan->b) || !has_aligned_rows (&p->c))
    return;
  if (plan->a.column != 1)
    plan->first_m = cut (p->m);
  plan->first_n = cut (p->n);
  if (is_added_in_f32)
    plan->first_k = cut (p->k);
}

static gboolean
is_cut (const EbbCudaPlan *plan)
{
  return plan->first_m < plan->product.m || plan->first_n < plan->product.n || plan->first_k < plan->product.k;
}

/* A bf16 result of f32 operands, or of terms that are added in two parts, is rounded once, from f32; so is one to which
 * a product and a bias are added, since cuBLASLt rounds between the two. An f32 bias alone is no reason: made in f32,
 * such products took twice their time, so it is rounded instead. */
static void
choose_copies (EbbCudaPlan *plan,
               gboolean in_f32)
{
  const EbbCudaProduct *p = &plan->product;
  gboolean is_wide;

  plan->a = p->a;
  plan->b = p->b;
  plan->c = p->c;
  plan->copies_a = !is_readable (&p->a);
  plan->copies_b = !is_readable (&p->b);
  if (plan->copies_a)
    make_dense (&plan->a, p);
  if (plan->copies_b)
    make_dense (&plan->b, p);
  choose_cuts (plan);
  is_wide = p->c.dtype != EBB_DTYPE_F32
            && (in_f32 || p->a.dtype == EBB_DTYPE_F32 || plan->first_k < p->k
                || (p->bias_dtype >= 0 && p->accumulate));
  plan->copies_c = is_wide || p->c.column != 1 || p->c.row < p->n;
  if (is_wide)
    plan->c.dtype = EBB_DTYPE_F32;
  if (plan->copies_c)
    make_dense (&plan->c, p);
  plan->copies_bias = p->bias_dtype >= 0 && (p->bias_dtype != plan->c.dtype || p->bias_stride != 1);
}

/* -- cuBLASLt's description ---------------------------------------------------------------------------------------- */

static gboolean
check (EbbCudaDevice *device,
       cublasStatus_t status)
{
  if (G_LIKELY (status == CUBLAS_STATUS_SUCCESS))
    return TRUE;
  device->blas_status = cublasLtGetStatusName (status);
  return FALSE;
}

static cudaDataType_t
get_type (gint64 dtype)
{
  return dtype == EBB_DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

/* Rows of ours are columns of cuBLASLt's: a matrix with dense rows is one of theirs as it stands, transposed. */
static gboolean
is_by_rows (const EbbCudaMatrix *self)
{
  return self->column == 1 && self->row >= self->columns;
}

static gboolean
make_layout (EbbCudaDevice *device,
             const EbbCudaMatrix *matrix,
             gint64 n_matrices,
             gint64 stride,
             cublasLtMatrixLayout_t *layout)
{
  const gboolean by_rows = is_by_rows (matrix);
  const guint64 rows = (guint64) (by_rows ? matrix->columns : matrix->rows);
  const guint64 columns = (guint64) (by_rows ? matrix->rows : matrix->columns);
  const gint64 leading = by_rows ? matrix->row : matrix->column;
  const gint32 count = (gint32) n_matrices;

  return check (device, cublasLtMatrixLayoutCreate (layout, get_type (matrix->dtype), rows, columns, leading))
         && (n_matrices == 1
             || (check (device, cublasLtMatrixLayoutSetAttribute (*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                                  sizeof count))
                 && check (device,
                           cublasLtMatrixLayoutSetAttribute (*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                             &stride, sizeof stride))));
}

static gboolean
make_description (EbbCudaDevice *device,
                  const EbbCudaPlan *plan,
                  EbbCudaPart *part)
{
  const gboolean uses_tf32 = device->allows_tf32 && plan->a.dtype == EBB_DTYPE_F32;
  const gint32 left = is_by_rows (&plan->b) ? CUBLAS_OP_N : CUBLAS_OP_T;
  const gint32 right = is_by_rows (&plan->a) ? CUBLAS_OP_N : CUBLAS_OP_T;
  const guint32 epilogue = part->has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  const gint32 bias_type = (gint32) get_type (plan->c.dtype);

  return check (device, cublasLtMatmulDescCreate (&part->description,
                                                  uses_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                                  CUDA_R_32F))
         && check (device, cublasLtMatmulDescSetAttribute (part->description, CUBLASLT_MATMUL_DESC_TRANSA, &left,
                                                           sizeof left))
         && check (device, cublasLtMatmulDescSetAttribute (part->description, CUBLASLT_MATMUL_DESC_TRANSB, &right,
                                                           sizeof right))
         && check (device, cublasLtMatmulDescSetAttribute (part->description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                           sizeof epilogue))
         && (!part->has_bias
             || check (device,
                       cublasLtMatmulDescSetAttribute (part->description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                                       &bias_type, sizeof bias_type)));
}

/* The bytes to which every matrix of the batch is aligned if the first one is to 16. */
static guint32
get_alignment (const EbbCudaMatrix *matrix,
               const EbbCudaProduct *product)
{
  guint64 bits = EBB_CUDA_BLAS_ALIGNMENT;

  for (gint64 i = 0; i < product->n_batch; i++)
    bits |= (guint64) matrix->batch[i] * ebb_cuda_dtype_get_size (matrix->dtype);
  return (guint32) (bits & -bits);
}

static gboolean
set_preference (EbbCudaDevice *device,
                const EbbCudaPlan *plan,
                const EbbCudaPart *part,
                cublasLtMatmulPreference_t preference)
{
  const guint64 workspace = EBB_CUDA_BLAS_WORKSPACE;
  /* No splits are always allowed. With a bias, split sums of the few columns behind a cut would make plan_new ()
   * compute the whole product in f32 if its result is bf16. */
  const gboolean must_not_split = is_cut (plan) && part->has_bias && plan->c.dtype != EBB_DTYPE_F32;
  const guint32 schemes = must_not_split ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const guint32 a = get_alignment (&plan->b, &plan->product), b = get_alignment (&plan->a, &plan->product);
  const guint32 c = get_alignment (&plan->c, &plan->product);
  const struct
  {
    cublasLtMatmulPreferenceAttributes_t attribute;
    const void *value;
    gsize size;
  } settings[] = {
    { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace },
    { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes },
    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a },
    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b },
    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c },
    { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c },
  };

  for (guint i = 0; i < G_N_ELEMENTS (settings); i++)
    if (!check (device, cublasLtMatmulPreferenceSetAttribute (preference, settings[i].attribute, settings[i].value,
                                                              settings[i].size)))
      return FALSE;
  return TRUE;
}

static gboolean
choose_algorithm (EbbCudaDevice *device,
                  EbbCudaPlan *plan,
                  EbbCudaPart *part)
{
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulHeuristicResult_t result;
  gboolean ok;
  int n = 0;

  if (!check (device, cublasLtMatmulPreferenceCreate (&preference)))
    return FALSE;
  ok = set_preference (device, plan, part, preference)
       && check (device, cublasLtMatmulAlgoGetHeuristic (device->blas->handle, part->description, part->left,
                                                         part->right, part->result, part->result, preference, 1,
                                                         &result, &n));
  cublasLtMatmulPreferenceDestroy (preference);
  if (!ok || n == 0)
    return ok && check (device, CUBLAS_STATUS_NOT_SUPPORTED);
  part->algorithm = result.algo;
  plan->workspace = MAX (plan->workspace, result.workspaceSize);
  return check (device, result.state);
}

/* -- plans --------------------------------------------------------------------------------------------------------- */

static void
part_clear (EbbCudaPart *self)
{
  if (self->left != NULL)
    cublasLtMatrixLayoutDestroy (self->left);
  if (self->right != NULL)
    cublasLtMatrixLayoutDestroy (self->right);
  if (self->result != NULL)
    cublasLtMatrixLayoutDestroy (self->result);
  if (self->description != NULL)
    cublasLtMatmulDescDestroy (self->description);
}

static void
plan_free (gpointer data)
{
  EbbCudaPlan *plan = data;

  for (int i = 0; i < plan->n_parts; i++)
    part_clear (&plan->parts[i]);
  g_free (plan);
}

/* The last dimension of the batch goes into one call. */
static void
choose_batch (EbbCudaPlan *plan)
{
  const EbbCudaProduct *p = &plan->product;

  plan->n_outer = (int) MAX (p->n_batch - 1, 0);
  plan->n_inner = 1;
  if (p->n_batch == 0)
    return;
  plan->n_inner = p->batch[plan->n_outer];
  plan->inner_a = plan->a.batch[plan->n_outer];
  plan->inner_b = plan->b.batch[plan->n_outer];
  plan->inner_c = plan->c.batch[plan->n_outer];
}

/* The rows of the result from @m on, the columns from @n on and the terms from @k on: up to the cut, or behind it. */
static gboolean
add_part (EbbCudaDevice *device,
          EbbCudaPlan *plan,
          gint64 m,
          gint64 n,
          gint64 k)
{
  EbbCudaPart *part = &plan->parts[plan->n_parts++];
  EbbCudaMatrix a = plan->a, b = plan->b, c = plan->c;

  a.rows = c.rows = m < plan->first_m ? plan->first_m : plan->product.m - m;
  b.columns = c.columns = n < plan->first_n ? plan->first_n : plan->product.n - n;
  a.columns = b.rows = k < plan->first_k ? plan->first_k : plan->product.k - k;
  part->offset_a = m * a.row + k * a.column;
  part->offset_b = k * b.row + n * b.column;
  part->offset_c = m * c.row + n * c.column;
  part->offset_bias = n;
  part->adds = k > 0;
  part->has_bias = plan->product.bias_dtype >= 0 && k == 0;
  return make_description (device, plan, part)
         && make_layout (device, &b, plan->n_inner, plan->inner_b, &part->left)
         && make_layout (device, &a, plan->n_inner, plan->inner_a, &part->right)
         && make_layout (device, &c, plan->n_inner, plan->inner_c, &part->result)
         && choose_algorithm (device, plan, part);
}

/* Split over blocks that each add some of the terms */
static gboolean
is_split (const EbbCudaPart *part)
{
  guint32 scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
  gsize size;

  return cublasLtMatmulAlgoConfigGetAttribute (&part->algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                               sizeof scheme, &size)
             == CUBLAS_STATUS_SUCCESS
         && scheme != CUBLASLT_REDUCTION_SCHEME_NONE;
}

/* A split sum becomes bf16 before its bias is added. */
static gboolean
rounds_twice (const EbbCudaPlan *plan)
{
  if (plan->c.dtype == EBB_DTYPE_F32)
    return FALSE;
  for (int i = 0; i < plan->n_parts; i++)
    if (plan->parts[i].has_bias && is_split (&plan->parts[i]))
      return TRUE;
  return FALSE;
}

static EbbCudaPlan *
plan_new (EbbCudaDevice *device,
          const EbbCudaProduct *product,
          gboolean in_f32)
{
  EbbCudaPlan *plan = g_new0 (EbbCudaPlan, 1);
  gboolean ok = TRUE;

  plan->product = *product;
  choose_copies (plan, in_f32);
  choose_batch (plan);
  for (gint64 m = 0; m < product->m; m += plan->first_m)
    for (gint64 n = 0; n < product->n; n += plan->first_n)
      for (gint64 k = 0; k < product->k; k += plan->first_k)
        ok = ok && add_part (device, plan, m, n, k);
  if (ok && !rounds_twice (plan))
    return plan;
  plan_free (plan);
  /* Without splits a product of few rows would take several times as long. In f32 it takes one short copy more. */
  return ok ? plan_new (device, product, TRUE) : NULL;
}

static EbbCudaBlas *
get_blas (EbbCudaDevice *device)
{
  EbbCudaBlas *blas;
  cublasLtHandle_t handle;

  if (G_LIKELY (device->blas != NULL))
    return device->blas;
  if (!check (device, cublasLtCreate (&handle)))
    return NULL;
  blas = g_new0 (EbbCudaBlas, 1);
  blas->handle = handle;
  blas->plans = g_hash_table_new_full (product_hash, product_equal, NULL, plan_free);
  device->blas = blas;
  return blas;
}

const EbbCudaPlan *
ebb_cuda_plan_find (EbbCudaDevice *device,
                    const EbbLaunch *launch)
{
  EbbCudaBlas *blas = get_blas (device);
  EbbCudaProduct product;
  EbbCudaPlan *plan;

  if (blas == NULL)
    return NULL;
  ebb_cuda_product_init (&product, launch);
  plan = g_hash_table_lookup (blas->plans, &product);
  if (G_LIKELY (plan != NULL))
    return plan;
  if (g_hash_table_size (blas->plans) >= MOST_PLANS)
    g_hash_table_remove_all (blas->plans);
  plan = plan_new (device, &product, FALSE);
  if (plan != NULL)
    g_hash_table_insert (blas->plans, &plan->product, plan);
  return plan;
}
