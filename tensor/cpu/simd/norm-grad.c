/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/column-sum-private.h"
#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/simd-private.h"

#include "tensor/cpu/parallel-private.h"

/* With h = (x - mean) rstd, where what a mean in f32 lacks is summed again, and g = dy weight, a row's gradient is
 *   layer norm: dx = rstd (g - mean (g) - h mean (g h))
 *   RMS norm:   dx = rstd (g - h mean (g h)), where mean is 0 in h
 * and dweight = sum over rows (dy h), dbias = sum over rows (dy), by fixed blocks of rows. */

typedef struct
{
  gint64 rows, columns, rows_per_block;
  EbbRows x_rows; /* where the rows of x lie, of which an RMS norm's may lie apart */
  const void *dy;
  const void *x;
  const float *weight;
  const float *mean;
  const float *rstd;
  const void *dsum;
  void *dx;
  float *partials; /* [n_blocks, 2, columns]: dweight and dbias, or NULL */
} NormGrad;

/* Sums over a row: of g, of g (x - mean) and of x - mean, of which a mean in f32 does not make 0. Two of each, so that
 * additions need not wait for one another. */
typedef struct
{
  EbbVec g[2], gx[2], x[2];
} RowSums;

EBB_VEC_INLINE void
sum_vector (const NormGrad *work,
            EbbDType dtype,
            gboolean is_centred,
            gint64 x_at,
            gint64 at,
            gint64 i,
            gint64 m,
            int k,
            EbbVec mean,
            RowSums *sums)
{
  /* Lanes behind the row's end have dy = 0. */
  EbbVec g = vec_load_as (dtype, work->dy, at + i, m);
  EbbVec x = vec_load_as (dtype, work->x, x_at + i, m);

  if (work->weight != NULL)
    g *= vec_load_as (EBB_DTYPE_F32, work->weight, i, m);
  if (is_centred)
    {
      x -= mean;
      sums->g[k] += g;
      sums->x[k] += vec_first (x, m, (EbbVec){ 0 });
    }
  sums->gx[k] = vec_fma (g, x, sums->gx[k]);
}

/* The means of g, of g h and of h */
EBB_VEC_INLINE void
get_row_means (const NormGrad *work,
               EbbDType dtype,
               gboolean is_centred,
               gint64 x_at,
               gint64 at,
               EbbVec mean,
               float rstd,
               float *mean_g,
               float *mean_gh,
               float *mean_h)
{
  const float n = (float) work->columns;
  RowSums sums = { .g = { { 0 } } };
  gint64 i = 0;

  for (; i + 2 * EBB_VEC_WIDTH <= work->columns; i += 2 * EBB_VEC_WIDTH)
    for (int k = 0; k < 2; k++)
      sum_vector (work, dtype, is_centred, x_at, at, i + k * EBB_VEC_WIDTH, EBB_VEC_WIDTH, k, mean, &sums);
  for (; i < work->columns; i += EBB_VEC_WIDTH)
    sum_vector (work, dtype, is_centred, x_at, at, i, MIN (work->columns - i, EBB_VEC_WIDTH), 0, mean, &sums);
  *mean_g = vec_sum (sums.g[0] + sums.g[1]) / n;
  *mean_h = vec_sum (sums.x[0] + sums.x[1]) * rstd / n;
  *mean_gh = vec_sum (sums.gx[0] + sums.gx[1]) * rstd / n - *mean_g * *mean_h;
}

/* Elements [i, i + m) of a row: its dx, and what it adds to dweight and dbias. */
EBB_VEC_INLINE void
norm_grad_vector (const NormGrad *work,
                  EbbDType dtype,
                  gboolean is_centred,
                  gint64 x_at,
                  gint64 at,
                  gint64 i,
                  gint64 m,
                  EbbVec mean,
                  float rstd,
                  float mean_g,
                  float mean_gh,
                  float mean_h,
                  float *dweight)
{
  EbbVec dy = vec_load_as (dtype, work->dy, at + i, m);
  EbbVec h = vec_load_as (dtype, work->x, x_at + i, m);

  if (is_centred)
    h = vec_fma (h - mean, vec_set1 (rstd), vec_set1 (-mean_h));
  else
    h *= rstd;
  if (work->dx != NULL)
    {
      EbbVec g = dy;

      if (work->weight != NULL)
        g *= vec_load_as (EBB_DTYPE_F32, work->weight, i, m);
      g = (g - mean_g - h * mean_gh) * rstd;
      if (work->dsum != NULL)
        g += vec_load_as (dtype, work->dsum, at + i, m);
      vec_store_as (dtype, work->dx, at + i, m, g);
    }
  if (dweight != NULL)
    {
      vec_store_as (EBB_DTYPE_F32, dweight, i, m, vec_fma (dy, h, vec_load_as (EBB_DTYPE_F32, dweight, i, m)));
      if (is_centred)
        {
          float *dbias = dweight + work->columns;

          vec_store_as (EBB_DTYPE_F32, dbias, i, m, vec_load_as (EBB_DTYPE_F32, dbias, i, m) + dy);
        }
    }
}

EBB_VEC_INLINE void
norm_grad_row (const NormGrad *work,
               EbbDType dtype,
               gboolean is_centred,
               gint64 row,
               float *dweight)
{
  const NormGrad local = *work; /* which no store can change: its pointers stay in registers */
  gint64 n = work->columns, at = row * n, x_at = is_centred ? at : ebb_rows_get_offset (&work->x_rows, row), i = 0;
  EbbVec mean = vec_set1 (is_centred ? work->mean[row] : 0);
  float rstd = work->rstd[row];
  float mean_g = 0, mean_gh = 0, mean_h = 0;

  if (work->dx != NULL || is_centred)
    get_row_means (&local, dtype, is_centred, x_at, at, mean, rstd, &mean_g, &mean_gh, &mean_h);
  for (; i + EBB_VEC_WIDTH <= n; i += EBB_VEC_WIDTH)
    norm_grad_vector (&local, dtype, is_centred, x_at, at, i, EBB_VEC_WIDTH, mean, rstd, mean_g, mean_gh, mean_h,
                      dweight);
  if (i < n)
    norm_grad_vector (&local, dtype, is_centred, x_at, at, i, n - i, mean, rstd, mean_g, mean_gh, mean_h, dweight);
}

EBB_VEC_INLINE void
norm_grad_blocks (const NormGrad *work,
                  EbbDType dtype,
                  gboolean is_centred,
                  gint64 begin,
                  gint64 end)
{
  for (gint64 block = begin; block < end; block++)
    {
      gint64 first = block * work->rows_per_block;
      gint64 last = MIN (first + work->rows_per_block, work->rows);
      float *sums = work->partials != NULL ? work->partials + block * 2 * work->columns : NULL;

      if (sums != NULL)
        memset (sums, 0, 2 * (gsize) work->columns * sizeof (float));
      for (gint64 row = first; row < last; row++)
        norm_grad_row (work, dtype, is_centred, row, sums);
    }
}

#define BLOCKS(name, dtype, is_centred)                     \
  static void                                               \
  name (gint64 begin,                                       \
        gint64 end,                                         \
        void *data)                                         \
  {                                                         \
    norm_grad_blocks (data, dtype, is_centred, begin, end); \
  }

BLOCKS (layer_norm_grad_f32, EBB_DTYPE_F32, TRUE)
BLOCKS (layer_norm_grad_bf16, EBB_DTYPE_BF16, TRUE)
BLOCKS (rms_norm_grad_f32, EBB_DTYPE_F32, FALSE)
BLOCKS (rms_norm_grad_bf16, EBB_DTYPE_BF16, FALSE)

EBB_SIMD_WORKSPACE (norm_grad)
{
  gint64 rows, n, rows_per_block;
  gsize size = ebb_vector_count_workspace (launch->inputs[2], launch->params.norm.unit_offset);

  ebb_view_get_rows (launch->inputs[1], &rows, &n);
  rows_per_block = ebb_rows_per_block (rows);
  if (ebb_launch_get_output (launch, 1) != NULL || ebb_launch_get_output (launch, 2) != NULL)
    size += ebb_workspace_round ((gsize) ((rows + rows_per_block - 1) / rows_per_block * 2 * n) * sizeof (float));
  return size;
}

/* dbias is NULL for RMS norm. */
static gboolean
run_norm_grad (NormGrad *work,
               const EbbLaunch *launch,
               EbbView *dweight,
               EbbView *dbias,
               EbbParallelFunc func)
{
  const EbbView *x = launch->inputs[1];
  gint64 n_blocks, n;
  gsize used = 0;

  ebb_view_get_rows (x, &work->rows, &work->columns);
  n = work->columns;
  ebb_rows_init (&work->x_rows, x);
  if (n == 0)
    return TRUE;
  work->weight = ebb_vector_as_f32 (launch, &used, launch->inputs[2], launch->params.norm.unit_offset);
  work->dy = launch->inputs[0]->data;
  work->x = x->data;
  work->dx = launch->outputs[0] != NULL ? launch->outputs[0]->data : NULL;
  work->rows_per_block = ebb_rows_per_block (work->rows);
  n_blocks = (work->rows + work->rows_per_block - 1) / work->rows_per_block;
  if (dweight != NULL || dbias != NULL)
    work->partials = ebb_workspace_take (launch, &used, (gsize) (n_blocks * 2 * n) * sizeof (float));
  ebb_cpu_parallel_for (n_blocks, MAX (1, EBB_CPU_GRAIN / 4 / (work->rows_per_block * n)), func, work);
  if (dweight != NULL)
    ebb_sum_partials (work->partials, n_blocks, 2 * n, n, launch->params.norm.accumulate_weight, dweight->data);
  if (dbias != NULL)
    ebb_sum_partials (work->partials + n, n_blocks, 2 * n, n, launch->params.norm.accumulate_bias, dbias->data);
  return TRUE;
}

EBB_SIMD_KERNEL (layer_norm_grad)
{
  const EbbView *dsum = ebb_launch_get_input (launch, 5);
  NormGrad work = {
    .mean = launch->inputs[3]->data,
    .rstd = launch->inputs[4]->data,
    .dsum = dsum != NULL ? dsum->data : NULL,
  };

  return run_norm_grad (&work, launch, ebb_launch_get_output (launch, 1), ebb_launch_get_output (launch, 2),
                        launch->inputs[1]->dtype == EBB_DTYPE_BF16 ? layer_norm_grad_bf16 : layer_norm_grad_f32);
}

EBB_SIMD_KERNEL (rms_norm_grad)
{
  const EbbView *dsum = ebb_launch_get_input (launch, 4);
  NormGrad work = { .rstd = launch->inputs[3]->data, .dsum = dsum != NULL ? dsum->data : NULL };

  return run_norm_grad (&work, launch, ebb_launch_get_output (launch, 1), NULL,
                        launch->inputs[1]->dtype == EBB_DTYPE_BF16 ? rms_norm_grad_bf16 : rms_norm_grad_f32);
}
