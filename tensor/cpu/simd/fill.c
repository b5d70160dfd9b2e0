/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/elementwise-private.h"

#include "tensor/cpu/parallel-private.h"

/* Kernels that write by position: fill, arange, triangles. */

/* -- fill ---------------------------------------------------------------------------------------------------------- */

EBB_BLOCK_UNARY (fill_f32, a)
EBB_BLOCK_I64 (fill_i64, a)

EBB_SIMD_KERNEL (fill)
{
  EbbElementwise work = {
    .output = launch->outputs[0],
    .n_inputs = 1,
    .inputs = { { NULL, launch->params.fill.value } },
    .func_f32 = fill_f32,
    .func_i64 = fill_i64,
    .is_float = ebb_dtype_is_float_ (launch->outputs[0]->dtype),
    .grain = EBB_CPU_GRAIN,
    .params = &launch->params,
  };

  return ebb_elementwise (&work, error);
}

/* -- arange -------------------------------------------------------------------------------------------------------- */

static void
arange_part (gint64 begin,
             gint64 end,
             void *data)
{
  const EbbLaunch *launch = data;
  double start = launch->params.arange.start, step = launch->params.arange.step;
  EbbCursor output;
  gint64 n;

  ebb_cursor_init (&output, launch->outputs[0]);
  ebb_cursor_seek (&output, begin);
  for (gint64 i = begin; i < end; i += n)
    {
      n = MIN (end - i, EBB_CURSOR_BLOCK);
      if (ebb_dtype_is_float_ (output.dtype))
        {
          float values[EBB_CURSOR_BLOCK];

          for (gint64 k = 0; k < n; k++)
            values[k] = (float) (start + (double) (i + k) * step);
          ebb_cursor_store_f32 (&output, n, values);
        }
      else
        {
          gint64 values[EBB_CURSOR_BLOCK];

          for (gint64 k = 0; k < n; k++)
            values[k] = ebb_double_to_i64 (start + (double) (i + k) * step);
          ebb_cursor_store_i64 (&output, n, values);
        }
    }
}

EBB_SIMD_KERNEL (arange)
{
  ebb_cpu_parallel_for (ebb_view_count_elements (launch->outputs[0]), EBB_CPU_GRAIN / 4, arange_part, (void *) launch);
  return TRUE;
}

/* -- triangle ------------------------------------------------------------------------------------------------------ */

#define KEEP_BETWEEN(low, high, type, load, store, input, output, columns) \
  G_STMT_START                                                             \
  {                                                                        \
    for (gint64 j = 0; j < (columns); j += EBB_CURSOR_BLOCK)               \
      {                                                                    \
        type values[EBB_CURSOR_BLOCK];                                     \
        gint64 n = MIN ((columns) -j, EBB_CURSOR_BLOCK);                   \
                                                                           \
        load (input, n, values);                                           \
        for (gint64 k = 0; k < n; k++)                                     \
          values[k] = j + k >= (low) && j + k < (high) ? values[k] : 0;    \
        store (output, n, values);                                         \
      }                                                                    \
  }                                                                        \
  G_STMT_END

static void
triangle_rows (gint64 begin,
               gint64 end,
               void *data)
{
  const EbbLaunch *launch = data;
  const EbbView *x = launch->inputs[0];
  gint64 height = x->shape[x->n_dims - 2], columns = x->shape[x->n_dims - 1];
  gint64 diagonal = launch->params.triangle.diagonal;
  EbbCursor input, output;

  ebb_cursor_init (&input, x);
  ebb_cursor_init (&output, launch->outputs[0]);
  ebb_cursor_seek (&input, begin * columns);
  ebb_cursor_seek (&output, begin * columns);
  for (gint64 row = begin; row < end; row++)
    {
      gint64 limit = row % height + diagonal;
      gint64 low = launch->params.triangle.upper ? limit : 0;
      gint64 high = launch->params.triangle.upper ? columns : limit + 1;

      if (ebb_dtype_is_float_ (x->dtype))
        KEEP_BETWEEN (low, high, float, ebb_cursor_load_f32, ebb_cursor_store_f32, &input, &output, columns);
      else
        KEEP_BETWEEN (low, high, gint64, ebb_cursor_load_i64, ebb_cursor_store_i64, &input, &output, columns);
    }
}

EBB_SIMD_KERNEL (triangle)
{
  gint64 rows, columns;

  ebb_view_get_rows (launch->inputs[0], &rows, &columns);
  if (columns > 0)
    ebb_cpu_parallel_for (rows, MAX (1, EBB_CPU_GRAIN / 2 / columns), triangle_rows, (void *) launch);
  return TRUE;
}
