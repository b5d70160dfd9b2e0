/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include <string.h>

#include "tensor/backend/quantized-private.h"
#include "tensor/cpu/matmul-private.h"
#include "tensor/cpu/parallel-private.h"
#include "tensor/util/half-private.h"

/* Matrix products on the CPU: batches, views and casts around oneDNN, plain loops for small ones, and a kernel of its
 * own for few rows. */

/* Up to so many multiply-adds a product is done by plain loops: measured, a call of oneDNN costs about as much. */
#define DIRECT_LIMIT 4096

/* -- the plainest form -------------------------------------------------------------------------------------------- */

gint64
ebb_product_get_n_batches (const EbbProduct *product)
{
  gint64 n = 1;

  for (int i = 0; i < product->n_batch; i++)
    n *= product->batch[i];
  return n;
}

void
ebb_product_get_batch_offsets (const EbbProduct *product,
                               gint64 index,
                               gint64 *a,
                               gint64 *b,
                               gint64 *c)
{
  *a = *b = *c = 0;
  for (int i = (int) product->n_batch - 1; i >= 0; i--)
    {
      gint64 position = index % product->batch[i];

      index /= product->batch[i];
      *a += position * product->a_batch[i];
      *b += position * product->b_batch[i];
      *c += position * product->c_batch[i];
    }
}

static void
append_shape (GString *text,
              const EbbProduct *product,
              const gint64 *batch_strides,
              gint64 rows,
              gint64 columns)
{
  g_string_append_c (text, '[');
  for (int i = 0; i < product->n_batch; i++)
    g_string_append_printf (text, "%" G_GINT64_FORMAT ", ", batch_strides[i] ? product->batch[i] : (gint64) 1);
  g_string_append_printf (text, "%" G_GINT64_FORMAT ", %" G_GINT64_FORMAT "]", rows, columns);
}

char *
ebb_product_to_string (const EbbProduct *product)
{
  GString *text = g_string_new (ebb_dtype_get_name (product->ab_dtype));

  g_string_append_c (text, ' ');
  append_shape (text, product, product->a_batch, product->m, product->k);
  g_string_append (text, " x ");
  append_shape (text, product, product->b_batch, product->k, product->n);
  return g_string_free (text, FALSE);
}

/* The stride of a dimension of size 1 is never used, and may be anything: make it what a dense matrix would have. */
static void
normalize_matrix (gint64 rows,
                  gint64 columns,
                  gint64 *row_stride,
                  gint64 *column_stride)
{
  if (rows == 1 && columns == 1)
    *row_stride = *column_stride = 1;
  else if (rows == 1 && *column_stride == 1)
    *row_stride = columns;
  else if (rows == 1)
    *row_stride = 1;
  else if (columns == 1)
    *column_stride = 1;
}

static gboolean
is_matrix_plain (gint64 rows,
                 gint64 columns,
                 gint64 row_stride,
                 gint64 column_stride)
{
  return (column_stride == 1 && row_stride >= columns) || (row_stride == 1 && column_stride >= rows);
}

gboolean
ebb_product_is_plain (const EbbProduct *p)
{
  return p->ab_dtype == EBB_DTYPE_F32 && p->c_dtype == EBB_DTYPE_F32
         && (p->bias_dtype < 0 || (p->bias_dtype == EBB_DTYPE_F32 && p->bias_stride == 1))
         && is_matrix_plain (p->m, p->k, p->a_row, p->a_column) && is_matrix_plain (p->k, p->n, p->b_row, p->b_column);
}

/* Views are aligned at their last dimension; what a lacks of c's dimensions is broadcast. */
static gint64
get_batch_stride (const EbbView *view,
                  int from_end)
{
  int dim = view->n_dims - 1 - from_end;

  return dim >= 0 && view->shape[dim] != 1 ? view->strides[dim] : 0;
}

static void
drop_batch (EbbProduct *p,
            int index)
{
  for (int i = index; i + 1 < p->n_batch; i++)
    {
      p->batch[i] = p->batch[i + 1];
      p->a_batch[i] = p->a_batch[i + 1];
      p->b_batch[i] = p->b_batch[i + 1];
      p->c_batch[i] = p->c_batch[i + 1];
    }
  p->n_batch--;
  p->batch[p->n_batch] = p->a_batch[p->n_batch] = p->b_batch[p->n_batch] = p->c_batch[p->n_batch] = 0;
}

static void
merge_batches (EbbProduct *p)
{
  for (int i = (int) p->n_batch - 1; i > 0; i--)
    {
      gint64 size = p->batch[i];

      if (p->a_batch[i - 1] != p->a_batch[i] * size || p->b_batch[i - 1] != p->b_batch[i] * size
          || p->c_batch[i - 1] != p->c_batch[i] * size)
        continue;
      p->batch[i] *= p->batch[i - 1];
      drop_batch (p, i - 1);
    }
}

/* [B, T, K] x [K, N] is [B * T, K] x [K, N]. */
static void
fold_batches_into_rows (EbbProduct *p)
{
  while (p->n_batch > 0)
    {
      int last = (int) p->n_batch - 1;
      gboolean is_one_row = p->m == 1;

      if (p->b_batch[last] != 0)
        return;
      if (!is_one_row && (p->a_batch[last] != p->m * p->a_row || p->c_batch[last] != p->m * p->c_row))
        return;
      if (is_one_row && p->a_batch[last] == 0)
        return;
      if (is_one_row)
        {
          p->a_row = p->a_batch[last];
          p->c_row = p->c_batch[last];
        }
      p->m *= p->batch[last];
      drop_batch (p, last);
    }
}

static void
product_init (EbbProduct *p,
              const EbbView *a,
              const EbbView *b,
              const EbbView *bias,
              const EbbView *c,
              gboolean accumulate,
              gint64 k_block)
{
  gint64 c_column = 1;
  double work;

  memset (p, 0, sizeof *p);
  p->m = c->shape[c->n_dims - 2];
  p->n = c->shape[c->n_dims - 1];
  p->k = a->shape[a->n_dims - 1];
  p->a_row = a->strides[a->n_dims - 2];
  p->a_column = a->strides[a->n_dims - 1];
  p->b_row = b->strides[b->n_dims - 2];
  p->b_column = b->strides[b->n_dims - 1];
  p->c_row = c->strides[c->n_dims - 2];
  for (int i = 0; i < c->n_dims - 2; i++)
    {
      int from_end = c->n_dims - 1 - i;

      if (c->shape[i] == 1)
        continue;
      p->batch[p->n_batch] = c->shape[i];
      p->a_batch[p->n_batch] = get_batch_stride (a, from_end);
      p->b_batch[p->n_batch] = get_batch_stride (b, from_end);
      p->c_batch[p->n_batch] = c->strides[i];
      p->n_batch++;
    }
  p->ab_dtype = a->dtype;
  p->c_dtype = c->dtype;
  p->bias_dtype = bias ? (gint32) bias->dtype : -1;
  p->bias_stride = bias && p->n > 1 ? bias->strides[bias->n_dims - 1] : 1;
  p->accumulate = accumulate;
  p->k_block = k_block > 0 && p->k >= k_block ? k_block : 0;
  merge_batches (p);
  fold_batches_into_rows (p);
  normalize_matrix (p->m, p->k, &p->a_row, &p->a_column);
  normalize_matrix (p->k, p->n, &p->b_row, &p->b_column);
  normalize_matrix (p->m, p->n, &p->c_row, &c_column);
  if (p->m == 1 || p->c_row < p->n)
    p->c_row = p->n;
  /* As a double, which no shape overflows. With blocks it does not depend on their number. */
  work = (double) p->m * (double) p->n * (double) (p->k_block > 0 ? p->k_block : p->k)
         * (double) ebb_product_get_n_batches (p);
  p->n_threads = ebb_cpu_get_n_parts ((gint64) MIN (work, 1e15), EBB_CPU_PRODUCT_GRAIN);
}

/* -- small products ------------------------------------------------------------------------------------------------ */

static inline float
load (const void *data,
      gint64 index,
      int dtype)
{
  return dtype == EBB_DTYPE_F32 ? ((const float *) data)[index] : ebb_bf16_to_float (((const guint16 *) data)[index]);
}

static inline void
store (void *data,
       gint64 index,
       int dtype,
       float value)
{
  if (dtype == EBB_DTYPE_F32)
    ((float *) data)[index] = value;
  else
    ((guint16 *) data)[index] = ebb_bf16_from_float (value);
}

#define DIRECT_COLUMNS 32

static inline __attribute__ ((always_inline)) void
direct_columns (const EbbProduct *p,
                const EbbProductData *data,
                gint64 a,
                gint64 b,
                gint64 c,
                gint64 column,
                int n,
                int dtype)
{
  float sums[DIRECT_COLUMNS] = { 0 };

  if (p->b_column == 1 && n == DIRECT_COLUMNS)
    for (gint64 k = 0; k < p->k; k++)
      {
        float x = load (data->a, a + k * p->a_column, dtype);

        for (int j = 0; j < DIRECT_COLUMNS; j++)
          sums[j] += x * load (data->b, b + k * p->b_row + j, dtype);
      }
  else
    for (gint64 k = 0; k < p->k; k++)
      {
        float x = load (data->a, a + k * p->a_column, dtype);

        for (int j = 0; j < n; j++)
          sums[j] += x * load (data->b, b + k * p->b_row + j * p->b_column, dtype);
      }
  for (int j = 0; j < n; j++)
    {
      if (data->bias)
        sums[j] += load (data->bias, (column + j) * p->bias_stride, p->bias_dtype);
      if (p->accumulate)
        sums[j] += load (data->c, c + j, p->c_dtype);
      store (data->c, c + j, p->c_dtype, sums[j]);
    }
}

static inline __attribute__ ((always_inline)) void
direct_batch (const EbbProduct *p,
              const EbbProductData *data,
              gint64 batch,
              int dtype)
{
  gint64 a, b, c;

  ebb_product_get_batch_offsets (p, batch, &a, &b, &c);
  for (gint64 i = 0; i < p->m; i++)
    for (gint64 j = 0; j < p->n; j += DIRECT_COLUMNS)
      direct_columns (p, data, a + i * p->a_row, b + j * p->b_column, c + i * p->c_row + j, j,
                      (int) MIN (DIRECT_COLUMNS, p->n - j), dtype);
}

/* By plain loops: for products so small that a call costs more than the work. */
static void
run_direct (const EbbProduct *p,
            const EbbProductData *data)
{
  gint64 n_batches = ebb_product_get_n_batches (p);

  for (gint64 i = 0; i < n_batches; i++)
    if (p->ab_dtype == EBB_DTYPE_F32)
      direct_batch (p, data, i, EBB_DTYPE_F32);
    else
      direct_batch (p, data, i, EBB_DTYPE_BF16);
}

/* -- products with few rows ---------------------------------------------------------------------------------------- */

static gboolean
has_few_rows (const EbbProduct *p)
{
  return p->n_batch == 0 && EBB_HAS_FEW_ROWS (p->m, p->n, p->k) && p->a_column == 1 && p->b_row == 1;
}

/* The product as a launch of their kernel. */
typedef struct
{
  EbbView a, b, bias, c;
  EbbLaunch launch;
} FewRows;

static void
few_rows_init (FewRows *self,
               const EbbProduct *p,
               const EbbProductData *data,
               const EbbLaunch *launch)
{
  self->a = (EbbView){ (void *) data->a, (EbbDType) p->ab_dtype, 2, { p->m, p->k }, { p->a_row, 1 } };
  self->b = (EbbView){ (void *) data->b, (EbbDType) p->ab_dtype, 2, { p->k, p->n }, { 1, p->b_column } };
  self->bias = (EbbView){ (void *) data->bias, (EbbDType) MAX (p->bias_dtype, 0), 1, { p->n }, { p->bias_stride } };
  self->c = (EbbView){ data->c, (EbbDType) p->c_dtype, 2, { p->m, p->n }, { p->c_row, 1 } };
  self->launch = (EbbLaunch){ .kernel = EBB_KERNEL_MATMUL,
                              .n_inputs = 3,
                              .n_outputs = 1,
                              .inputs = { &self->a, &self->b, data->bias ? &self->bias : NULL },
                              .outputs = { &self->c },
                              .params.matmul.accumulate = p->accumulate,
                              .workspace = launch->workspace,
                              .workspace_size = launch->workspace_size };
}

/* -- the choice ---------------------------------------------------------------------------------------------------- */

/* The choice depends on the shape alone, so that equal shapes are summed in one order. */
static gboolean
is_small (const EbbProduct *p)
{
  gint64 limit = DIRECT_LIMIT / MAX (p->k, 1);

  if (p->k == 0)
    return TRUE;
  if (p->m > limit || p->n > limit)
    return FALSE;
  limit /= p->m * p->n;
  return limit > 0 && ebb_product_get_n_batches (p) <= limit;
}

/* The ways above to compute a product. */
typedef enum
{
  WAY_EMPTY,
  WAY_DIRECT,
  WAY_FEW_ROWS,
  WAY_DNNL, /* or by tiles, if oneDNN lacks it */
  WAY_TILES
} Way;

static Way
find_way (const EbbLaunch *launch,
          EbbProduct *product,
          EbbProductData *data)
{
  const EbbView *a = launch->inputs[0], *b = launch->inputs[1];
  const EbbView *bias = launch->n_inputs > 2 ? launch->inputs[2] : NULL;
  const EbbView *c = launch->outputs[0];

  for (int i = 0; i < c->n_dims; i++)
    if (c->shape[i] == 0)
      return WAY_EMPTY;
  *data = (EbbProductData){ a->data, b->data, bias ? bias->data : NULL, c->data };
  product_init (product, a, b, bias, c, launch->params.matmul.accumulate, launch->params.matmul.row_block);
  if (product->k_block == 0 && is_small (product))
    return WAY_DIRECT;
  if (product->k_block == 0 && has_few_rows (product))
    return WAY_FEW_ROWS;
  return product->bias_stride == 1 ? WAY_DNNL : WAY_TILES;
}

gsize
ebb_cpu_matmul_workspace (const EbbLaunch *launch)
{
  EbbProduct product;
  EbbProductData data;
  Way way = find_way (launch, &product, &data);
  FewRows few_rows;
  gsize size = 0;

  if (way == WAY_FEW_ROWS)
    {
      few_rows_init (&few_rows, &product, &data, launch);
      return ebb_cpu_multiply_few_rows_workspace (&few_rows.launch);
    }
  if (way < WAY_DNNL || (way == WAY_DNNL && ebb_product_get_dnnl_workspace (&product, &size)))
    return size;
  return ebb_product_get_tiles_workspace (&product);
}

gboolean
ebb_cpu_matmul (const EbbLaunch *launch,
                GError **error)
{
  EbbProduct product;
  EbbProductData data;
  Way way = find_way (launch, &product, &data);
  FewRows few_rows;

  switch (way)
    {
    case WAY_EMPTY:
      return TRUE;
    case WAY_DIRECT:
      run_direct (&product, &data);
      return TRUE;
    case WAY_FEW_ROWS:
      few_rows_init (&few_rows, &product, &data, launch);
      return ebb_cpu_multiply_few_rows (&few_rows.launch, error);
    case WAY_DNNL:
      switch (ebb_product_run_dnnl (&product, &data, launch->workspace, launch->workspace_size, error))
        {
        case EBB_PRODUCT_DONE: return TRUE;
        case EBB_PRODUCT_FAILED: return FALSE;
        case EBB_PRODUCT_UNSUPPORTED: break;
        }
      break;
    case WAY_TILES:
      break;
    }
  return ebb_product_run_tiles (&product, &data, launch->workspace, error);
}
