/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/philox-private.h"
#include "tensor/cpu/simd/simd-private.h"
#include "tensor/cpu/simd/statistics-private.h"

#include "tensor/cpu/parallel-private.h"

/* Layer norm (Ba, Kiros, Hinton 2016) and RMS norm (Zhang, Sennrich 2019), which has no mean, no bias. */

typedef struct _Norm Norm;

struct _Norm
{
  gint64 columns;
  EbbRows x_rows; /* where the rows of x lie, of which an RMS norm's may lie apart */
  const void *x;
  const void *residual;
  const float *weight;
  const float *bias;
  void *sum;
  void *y;
  float *mean;
  float *rstd;
  float eps;
  float scale; /* of what dropout keeps */
  gboolean unit_offset;
  guint64 threshold;
  EbbPhilox philox;
  const Norm *branch; /* the norm of x before it is added, whose y is sum, or NULL */
};

static inline float
load_element (EbbDType dtype,
              const void *x,
              gint64 i)
{
  return dtype == EBB_DTYPE_F32 ? ((const float *) x)[i] : ebb_bf16_to_float (((const guint16 *) x)[i]);
}

/* The sum of (x - centre)^2, and of x - centre if @plain_sum is given */
EBB_VEC_INLINE float
sum_squares_row (EbbDType dtype,
                 const void *x,
                 gint64 at,
                 gint64 n,
                 EbbVec centre,
                 float *plain_sum)
{
  EbbVec sums[4] = { { 0 } }, plain[4] = { { 0 } };
  gint64 i = 0;

  for (; i + 4 * EBB_VEC_WIDTH <= n; i += 4 * EBB_VEC_WIDTH)
    for (int k = 0; k < 4; k++)
      {
        EbbVec v = vec_load_as (dtype, x, at + i + k * EBB_VEC_WIDTH, EBB_VEC_WIDTH) - centre;

        sums[k] = vec_fma (v, v, sums[k]);
        plain[k] += v;
      }
  for (; i < n; i += EBB_VEC_WIDTH)
    {
      gint64 m = MIN (n - i, EBB_VEC_WIDTH);
      EbbVec v = vec_first (vec_load_as (dtype, x, at + i, m) - centre, m, (EbbVec){ 0 });

      sums[0] = vec_fma (v, v, sums[0]);
      plain[0] += v;
    }
  if (plain_sum)
    *plain_sum = vec_sum ((plain[0] + plain[1]) + (plain[2] + plain[3]));
  return vec_sum ((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/* Elements [i, i + m) of a row, which begins at @x_at in x and at @at in y; @shift is what @centre lacks of the mean,
 * times -@rstd. */
EBB_VEC_INLINE void
norm_vector (const Norm *work,
             EbbDType dtype,
             gboolean is_centred,
             const void *x,
             gint64 x_at,
             gint64 at,
             gint64 i,
             gint64 m,
             EbbVec centre,
             EbbVec rstd,
             EbbVec shift)
{
  EbbVec v = vec_load_as (dtype, x, x_at + i, m);

  if (is_centred)
    v = vec_fma (v - centre, rstd, shift);
  else
    v *= rstd;
  if (work->weight != NULL)
    v *= vec_load_as (EBB_DTYPE_F32, work->weight, i, m);
  if (is_centred && work->bias != NULL)
    v += vec_load_as (EBB_DTYPE_F32, work->bias, i, m);
  vec_store_as (dtype, work->y, at + i, m, v);
}

EBB_VEC_INLINE void
norm_row (const Norm *work,
          EbbDType dtype,
          gboolean is_centred,
          const void *x,
          gint64 x_at,
          gint64 row)
{
  const Norm local = *work; /* which no store can change: its pointers stay in registers */
  gint64 n = work->columns, at = row * n, i = 0;
  EbbStatistics statistics = { 0 };
  EbbVec centre, shift;
  float rstd;

  if (is_centred)
    {
      float sum, squares;
      int pass = 0;

      statistics.centre = load_element (dtype, x, x_at);
      do
        squares = sum_squares_row (dtype, x, x_at, n, vec_set1 (statistics.centre), &sum);
      while (!ebb_statistics_take (&statistics, sum, squares, (double) n) && ++pass < 2);
    }
  else
    statistics.variance = sum_squares_row (dtype, x, x_at, n, (EbbVec){ 0 }, NULL) / (float) n;
  rstd = 1.0f / sqrtf (statistics.variance + work->eps);
  centre = vec_set1 (statistics.mean);
  shift = vec_set1 (-statistics.rest * rstd);
  for (; i + EBB_VEC_WIDTH <= n; i += EBB_VEC_WIDTH)
    norm_vector (&local, dtype, is_centred, x, x_at, at, i, EBB_VEC_WIDTH, centre, vec_set1 (rstd), shift);
  if (i < n)
    norm_vector (&local, dtype, is_centred, x, x_at, at, i, n - i, centre, vec_set1 (rstd), shift);
  if (work->mean != NULL)
    work->mean[row] = statistics.mean;
  if (work->rstd != NULL)
    work->rstd[row] = rstd;
}

/* The draws of elements at to at + 4 WIDTH - 1 */
EBB_VEC_INLINE void
draw_at (EbbPhilox philox,
         guint64 at,
         EbbVecU draws[4])
{
  if (at % 4 == 0)
    ebb_philox_draw_vector (philox.seed, philox.offset + at / 4, draws);
  else
    {
      guint32 words[EBB_PHILOX_VECTOR_DRAWS];

      ebb_philox_fill (philox.seed, philox.offset, at, EBB_PHILOX_VECTOR_DRAWS, words);
      memcpy (draws, words, sizeof words);
    }
}

EBB_VEC_INLINE void
add_row (const Norm *work,
         EbbDType dtype,
         gboolean drops,
         gint64 at)
{
  gint64 n = work->columns;
  EbbVecU draws[4];

  EBB_VEC_FOR (i, m, n)
    {
      EbbVec x = vec_load_as (dtype, work->x, at + i, m);

      if (drops)
        {
          if (i % EBB_PHILOX_VECTOR_DRAWS == 0)
            draw_at (work->philox, (guint64) (at + i), draws);
          x = vec_drop (draws[i / EBB_VEC_WIDTH % 4], work->threshold, vec_rounded (x * work->scale));
        }
      vec_store_as (dtype, work->sum, at + i, m, vec_load_as (dtype, work->residual, at + i, m) + x);
    }
}

static void
layer_norm_f32 (gint64 begin,
                gint64 end,
                void *data)
{
  const Norm *work = data;

  for (gint64 row = begin; row < end; row++)
    norm_row (work, EBB_DTYPE_F32, TRUE, work->x, row * work->columns, row);
}

static void
layer_norm_bf16 (gint64 begin,
                 gint64 end,
                 void *data)
{
  const Norm *work = data;

  for (gint64 row = begin; row < end; row++)
    norm_row (work, EBB_DTYPE_BF16, TRUE, work->x, row * work->columns, row);
}

static void
rms_norm_f32 (gint64 begin,
              gint64 end,
              void *data)
{
  const Norm *work = data;

  for (gint64 row = begin; row < end; row++)
    norm_row (work, EBB_DTYPE_F32, FALSE, work->x, ebb_rows_get_offset (&work->x_rows, row), row);
}

static void
rms_norm_bf16 (gint64 begin,
               gint64 end,
               void *data)
{
  const Norm *work = data;

  for (gint64 row = begin; row < end; row++)
    norm_row (work, EBB_DTYPE_BF16, FALSE, work->x, ebb_rows_get_offset (&work->x_rows, row), row);
}

/* Whatever sum's dtype keeps of the sum is what is normalised, so that backward sees the same. The branch's norm is put
 * into the sum before it is added there, rounded as a norm on its own would be. */
EBB_VEC_INLINE void
add_norm_rows (const Norm *work,
               EbbDType dtype,
               gboolean is_centred,
               gint64 begin,
               gint64 end)
{
  for (gint64 row = begin; row < end; row++)
    {
      gint64 at = row * work->columns;

      if (!is_centred && work->branch != NULL)
        norm_row (work->branch, dtype, FALSE, work->branch->x, at, row);
      if (work->threshold != 0)
        add_row (work, dtype, TRUE, at);
      else
        add_row (work, dtype, FALSE, at);
      norm_row (work, dtype, is_centred, work->sum, at, row);
    }
}

#define ADD_NORM_ROWS(name, dtype, is_centred)           \
  static void                                            \
  name (gint64 begin,                                    \
        gint64 end,                                      \
        void *data)                                      \
  {                                                      \
    add_norm_rows (data, dtype, is_centred, begin, end); \
  }

ADD_NORM_ROWS (add_layer_norm_f32, EBB_DTYPE_F32, TRUE)
ADD_NORM_ROWS (add_layer_norm_bf16, EBB_DTYPE_BF16, TRUE)
ADD_NORM_ROWS (add_rms_norm_f32, EBB_DTYPE_F32, FALSE)
ADD_NORM_ROWS (add_rms_norm_bf16, EBB_DTYPE_BF16, FALSE)

static gboolean
run_norm (Norm *work,
          const EbbLaunch *launch,
          gsize used,
          const EbbView *x,
          const EbbView *weight,
          const EbbView *bias,
          EbbParallelFunc func)
{
  gint64 rows;

  ebb_view_get_rows (x, &rows, &work->columns);
  if (rows == 0 || work->columns == 0)
    return TRUE;
  ebb_rows_init (&work->x_rows, x);
  work->weight = ebb_vector_as_f32 (launch, &used, weight, work->unit_offset);
  work->bias = ebb_vector_as_f32 (launch, &used, bias, FALSE);
  if (work->x == NULL)
    work->x = x->data;
  ebb_cpu_parallel_for (rows, MAX (1, EBB_CPU_GRAIN / 4 / work->columns), func, work);
  return TRUE;
}

EBB_SIMD_WORKSPACE (layer_norm)
{
  return ebb_vector_count_workspace (ebb_launch_get_input (launch, 1), FALSE)
         + ebb_vector_count_workspace (ebb_launch_get_input (launch, 2), FALSE);
}

EBB_SIMD_WORKSPACE (rms_norm)
{
  return ebb_vector_count_workspace (ebb_launch_get_input (launch, 1), launch->params.norm.unit_offset);
}

EBB_SIMD_WORKSPACE (add_layer_norm)
{
  return ebb_vector_count_workspace (ebb_launch_get_input (launch, 2), FALSE)
         + ebb_vector_count_workspace (ebb_launch_get_input (launch, 3), FALSE);
}

EBB_SIMD_WORKSPACE (add_rms_norm)
{
  const EbbView *branch = launch->params.norm.normalizes_branch ? ebb_launch_get_input (launch, 3) : NULL;

  return ebb_vector_count_workspace (branch, launch->params.norm.unit_offset)
         + ebb_vector_count_workspace (ebb_launch_get_input (launch, 2), launch->params.norm.unit_offset);
}

EBB_SIMD_KERNEL (layer_norm)
{
  const EbbView *x = launch->inputs[0];
  Norm work = {
    .y = launch->outputs[0]->data,
    .mean = ebb_launch_get_floats (launch, 1),
    .rstd = ebb_launch_get_floats (launch, 2),
    .eps = (float) launch->params.norm.eps,
  };

  return run_norm (&work, launch, 0, x, ebb_launch_get_input (launch, 1), ebb_launch_get_input (launch, 2),
                   x->dtype == EBB_DTYPE_BF16 ? layer_norm_bf16 : layer_norm_f32);
}

EBB_SIMD_KERNEL (rms_norm)
{
  const EbbView *x = launch->inputs[0];
  Norm work = {
    .y = launch->outputs[0]->data,
    .rstd = ebb_launch_get_floats (launch, 1),
    .eps = (float) launch->params.norm.eps,
    .unit_offset = launch->params.norm.unit_offset,
  };

  return run_norm (&work, launch, 0, x, ebb_launch_get_input (launch, 1), NULL,
                   x->dtype == EBB_DTYPE_BF16 ? rms_norm_bf16 : rms_norm_f32);
}

static void
prepare_add_norm (Norm *work,
                  const EbbLaunch *launch)
{
  double p = launch->params.norm.p;

  work->residual = launch->inputs[1]->data;
  work->sum = launch->outputs[0]->data;
  work->y = launch->outputs[1]->data;
  work->eps = (float) launch->params.norm.eps;
  work->scale = p < 1 ? (float) (1 / (1 - p)) : 0;
  work->threshold = ebb_dropout_threshold (p);
  work->philox = launch->params.norm.philox;
}

EBB_SIMD_KERNEL (add_layer_norm)
{
  const EbbView *x = launch->inputs[0];
  Norm work = { .mean = ebb_launch_get_floats (launch, 2), .rstd = ebb_launch_get_floats (launch, 3) };

  prepare_add_norm (&work, launch);
  return run_norm (&work, launch, 0, x, ebb_launch_get_input (launch, 2), ebb_launch_get_input (launch, 3),
                   x->dtype == EBB_DTYPE_BF16 ? add_layer_norm_bf16 : add_layer_norm_f32);
}

EBB_SIMD_KERNEL (add_rms_norm)
{
  const EbbView *x = launch->inputs[0], *branch_weight = ebb_launch_get_input (launch, 3);
  Norm work = { .rstd = ebb_launch_get_floats (launch, 2), .unit_offset = launch->params.norm.unit_offset };
  Norm branch = { .columns = x->shape[x->n_dims - 1], .x = x->data, .rstd = ebb_launch_get_floats (launch, 3) };
  gsize used = 0;

  prepare_add_norm (&work, launch);
  if (launch->params.norm.normalizes_branch)
    {
      branch.weight = ebb_vector_as_f32 (launch, &used, branch_weight, work.unit_offset);
      branch.y = work.sum;
      branch.eps = work.eps;
      work.branch = &branch;
      work.x = work.sum;
    }
  return run_norm (&work, launch, used, x, ebb_launch_get_input (launch, 2), NULL,
                   x->dtype == EBB_DTYPE_BF16 ? add_rms_norm_bf16 : add_rms_norm_f32);
}
