/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/simd-private.h"
#include "tensor/cpu/simd/statistics-private.h"

#include "tensor/cpu/parallel-private.h"

/* The variance along dimensions. */

typedef struct
{
  EbbCursor kept, reduced;
  EbbView *var;
  EbbView *mean, *rest;
  double correction;
} Variance;

/* The sum of x - centre, and of its square */
static double
sum_centred (const EbbCursor *start,
             float centre,
             double *squares)
{
  EbbCursor reduced = *start;
  float buffer[EBB_CURSOR_BLOCK];
  double sum = 0;
  gint64 n;

  *squares = 0;

  ebb_cursor_seek (&reduced, 0);
  for (gint64 i = 0; i < reduced.n_elements; i += n)
    {
      const float *x;
      EbbVec block = { 0 }, block_squares = { 0 };

      n = MIN (reduced.n_elements - i, EBB_CURSOR_BLOCK);
      x = ebb_cursor_read_f32 (&reduced, n, buffer);
      EBB_VEC_FOR (k, m, n)
        {
          EbbVec v = vec_first (vec_load_as (EBB_DTYPE_F32, x, k, m) - centre, m, (EbbVec){ 0 });

          block += v;
          block_squares = vec_fma (v, v, block_squares);
        }
      sum += vec_sum (block);
      *squares += vec_sum (block_squares);
    }
  return sum;
}

static void
put_number (EbbView *view,
            gint64 i,
            double value)
{
  float number = (float) value;

  if (view != NULL)
    ebb_run_from_f32 (view->dtype, (char *) view->data + i * ebb_dtype_size_ (view->dtype), 1, 1, &number);
}

static void
get_variances (gint64 begin,
               gint64 end,
               void *data)
{
  const Variance *work = data;
  EbbCursor kept = work->kept, reduced = work->reduced;
  double count = (double) reduced.n_elements;

  for (gint64 output = begin; output < end; output++)
    {
      EbbStatistics statistics = { .centre = NAN };
      double sum, squares;
      int pass = 0;

      ebb_cursor_seek (&kept, output);
      reduced.data = kept.data + kept.offset * kept.size;
      if (count > 0)
        ebb_run_to_f32 (reduced.dtype, reduced.data, 1, 1, &statistics.centre);
      do
        sum = sum_centred (&reduced, statistics.centre, &squares);
      while (!ebb_statistics_take (&statistics, sum, squares, count) && ++pass < 2);
      put_number (work->var, output, statistics.variance * count / MAX (count - work->correction, 0));
      put_number (work->mean, output, statistics.mean);
      put_number (work->rest, output, statistics.rest);
    }
}

EBB_SIMD_KERNEL (var)
{
  const EbbView *x = launch->inputs[0];
  Variance work = {
    .var = ebb_launch_get_output (launch, 0),
    .mean = ebb_launch_get_output (launch, 1),
    .rest = ebb_launch_get_output (launch, 2),
    .correction = launch->params.reduce.correction,
  };

  ebb_cursor_init_dims (&work.kept, x, ~launch->params.reduce.dims);
  ebb_cursor_init_dims (&work.reduced, x, launch->params.reduce.dims);
  ebb_cpu_parallel_for (work.kept.n_elements, MAX (1, EBB_CPU_GRAIN / 2 / MAX (1, work.reduced.n_elements)),
                        get_variances, &work);
  return TRUE;
}
