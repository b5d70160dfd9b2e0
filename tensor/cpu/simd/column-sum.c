/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/column-sum-private.h"
#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/simd-private.h"

#include "tensor/cpu/parallel-private.h"

/* Rows are summed by fours, fours in blocks of a fixed number of rows, and the blocks in pairs: an order that depends
 * on the shape alone. */

/* Columns at once: their sums stay in the first-level cache while the rows stream by. */
#define STRIP 2048

typedef struct
{
  const void *x;
  EbbDType dtype;
  gint64 rows, columns;
  gint64 rows_per_block;
  gint64 n_strips;
  float *partials; /* [n_blocks, columns] */
} ColumnSum;

EBB_VEC_INLINE void
sum_block (const ColumnSum *work,
           EbbDType dtype,
           gint64 first_row,
           gint64 last_row,
           gint64 first_column,
           gint64 n,
           float *sums)
{
  gint64 columns = work->columns;

  EBB_VEC_FOR (i, m, n)
    vec_store_as (EBB_DTYPE_F32, sums, i, m, (EbbVec){ 0 });
  for (gint64 row = first_row; row < last_row; row += 4)
    {
      gint64 at = row * columns + first_column;

      if (row + 4 <= last_row)
        EBB_VEC_FOR (i, m, n)
          {
            EbbVec a = vec_load_as (dtype, work->x, at + i, m) + vec_load_as (dtype, work->x, at + columns + i, m);
            EbbVec b = vec_load_as (dtype, work->x, at + 2 * columns + i, m)
                       + vec_load_as (dtype, work->x, at + 3 * columns + i, m);

            vec_store_as (EBB_DTYPE_F32, sums, i, m, vec_load_as (EBB_DTYPE_F32, sums, i, m) + (a + b));
          }
      else
        for (gint64 r = row; r < last_row; r++, at += columns)
          EBB_VEC_FOR (i, m, n)
            vec_store_as (EBB_DTYPE_F32, sums, i, m,
                          vec_load_as (EBB_DTYPE_F32, sums, i, m) + vec_load_as (dtype, work->x, at + i, m));
    }
}

static void
sum_blocks (gint64 begin,
            gint64 end,
            void *data)
{
  const ColumnSum *work = data;

  for (gint64 item = begin; item < end; item++)
    {
      gint64 block = item / work->n_strips, column = item % work->n_strips * STRIP;
      gint64 first = block * work->rows_per_block, last = MIN (first + work->rows_per_block, work->rows);
      gint64 n = MIN (STRIP, work->columns - column);
      float *sums = work->partials + block * work->columns + column;

      if (work->dtype == EBB_DTYPE_BF16)
        sum_block (work, EBB_DTYPE_BF16, first, last, column, n, sums);
      else
        sum_block (work, EBB_DTYPE_F32, first, last, column, n, sums);
    }
}

void
ebb_sum_partials (float *partials,
                  gint64 n_partials,
                  gint64 stride,
                  gint64 n,
                  gboolean accumulate,
                  float *sums)
{
  for (gint64 step = 1; step < n_partials; step *= 2)
    for (gint64 k = 0; k + step < n_partials; k += 2 * step)
      {
        float *to = partials + k * stride;
        const float *from = partials + (k + step) * stride;

        EBB_VEC_FOR (i, m, n)
          vec_store_as (EBB_DTYPE_F32, to, i, m,
                        vec_load_as (EBB_DTYPE_F32, to, i, m) + vec_load_as (EBB_DTYPE_F32, from, i, m));
      }
  EBB_VEC_FOR (i, m, n)
    {
      EbbVec sum = n_partials > 0 ? vec_load_as (EBB_DTYPE_F32, partials, i, m) : (EbbVec){ 0 };

      if (accumulate)
        sum += vec_load_as (EBB_DTYPE_F32, sums, i, m);
      vec_store_as (EBB_DTYPE_F32, sums, i, m, sum);
    }
}

EBB_SIMD_WORKSPACE (column_sum)
{
  gint64 rows, columns, rows_per_block;

  ebb_view_get_rows (launch->inputs[0], &rows, &columns);
  rows_per_block = ebb_rows_per_block (rows);
  return (gsize) ((rows + rows_per_block - 1) / rows_per_block * columns) * sizeof (float);
}

EBB_SIMD_KERNEL (column_sum)
{
  const EbbView *x = launch->inputs[0];
  ColumnSum work = { .x = x->data, .dtype = x->dtype };
  gint64 n_blocks;

  ebb_view_get_rows (x, &work.rows, &work.columns);
  work.rows_per_block = ebb_rows_per_block (work.rows);
  work.n_strips = (work.columns + STRIP - 1) / STRIP;
  n_blocks = (work.rows + work.rows_per_block - 1) / work.rows_per_block;
  work.partials = launch->workspace;
  ebb_cpu_parallel_for (n_blocks * work.n_strips,
                        MAX (1, EBB_CPU_GRAIN / (work.rows_per_block * MIN (STRIP, MAX (work.columns, 1)))), sum_blocks,
                        &work);
  ebb_sum_partials (work.partials, n_blocks, work.columns, work.columns, launch->params.column_sum.accumulate,
                    launch->outputs[0]->data);
  return TRUE;
}
