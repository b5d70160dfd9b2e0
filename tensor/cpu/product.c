/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* A matrix product in its plainest form, and what all ways to compute it ask of it. */
#include "tensor/cpu/matmul-private.h"

#include <string.h>

#include "tensor/cpu/parallel-private.h"

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

void
ebb_product_init (EbbProduct *p,
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
