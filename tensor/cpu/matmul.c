/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/backend/quantized-private.h"
#include "tensor/cpu/matmul-private.h"
#include "tensor/cpu/parallel-private.h"
#include "tensor/util/half-private.h"

/* Matrix products on the CPU: batches, views and casts around oneDNN, plain loops for small ones, and a kernel of its
 * own for few rows. */

/* Up to so many multiply-adds a product is done by plain loops: measured, a call of oneDNN costs about as much. */
#define DIRECT_LIMIT 4096

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
  ebb_product_init (product, a, b, bias, c, launch->params.matmul.accumulate, launch->params.matmul.row_block);
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
