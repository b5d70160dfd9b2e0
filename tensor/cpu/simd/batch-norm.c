/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/simd-private.h"
#include "tensor/cpu/simd/statistics-private.h"

#include "tensor/cpu/parallel-private.h"

/* Batch norm (Ioffe, Szegedy 2015) of [N, C, L]: a channel is a view [N, L], read in blocks whatever L is. Sums of
 * blocks are added in f64, each channel on one thread. */

typedef struct
{
  const EbbView *dy;
  const EbbView *x;
  EbbView *y;
  gint64 n, channels, length;
  const float *weight;
  const float *bias;
  EbbView *running_mean;
  EbbView *running_var;
  float *mean;
  float *rstd;
  float *dweight;
  float *dbias;
  double eps, momentum;
  gboolean training, accumulate_weight, accumulate_bias;
} BatchNorm;

static void
init_channel (EbbCursor *cursor,
              const EbbView *x,
              const BatchNorm *work,
              gint64 channel)
{
  EbbView view = {
    .data = (char *) x->data + channel * work->length * ebb_dtype_size_ (x->dtype),
    .dtype = x->dtype,
    .n_dims = 2,
    .shape = { work->n, work->length },
    .strides = { work->channels * work->length, 1 },
  };

  ebb_cursor_init (cursor, &view);
  ebb_cursor_seek (cursor, 0);
}

/* The sum of a block of x - centre, and of its square to @squares */
static double
sum_block (const float *x,
           gint64 n,
           float centre,
           double *squares)
{
  EbbVec sum = { 0 }, sum_squares = { 0 };

  EBB_VEC_FOR (i, m, n)
    {
      EbbVec v = vec_first (vec_load_as (EBB_DTYPE_F32, x, i, m) - centre, m, (EbbVec){ 0 });

      sum += v;
      sum_squares = vec_fma (v, v, sum_squares);
    }
  *squares += vec_sum (sum_squares);
  return vec_sum (sum);
}

static double
sum_channel (const BatchNorm *work,
             gint64 channel,
             float centre,
             double *squares)
{
  gint64 count = work->n * work->length, n;
  float buffer[EBB_CURSOR_BLOCK];
  EbbCursor cursor;
  double sum = 0;

  *squares = 0;
  init_channel (&cursor, work->x, work, channel);
  for (gint64 i = 0; i < count; i += n)
    {
      n = MIN (count - i, EBB_CURSOR_BLOCK);
      sum += sum_block (ebb_cursor_read_f32 (&cursor, n, buffer), n, centre, squares);
    }
  return sum;
}

static float
get_number (const EbbView *view,
            gint64 i)
{
  float value;

  ebb_run_to_f32 (view->dtype, (const char *) view->data + i * ebb_dtype_size_ (view->dtype), 1, 1, &value);
  return value;
}

static void
move_number (EbbView *view,
             gint64 i,
             double towards,
             double momentum)
{
  float value;

  if (view == NULL)
    return;
  value = (float) ((1 - momentum) * get_number (view, i) + momentum * towards);
  ebb_run_from_f32 (view->dtype, (char *) view->data + i * ebb_dtype_size_ (view->dtype), 1, 1, &value);
}

/* Of the batch, or of those that ran before it */
static EbbStatistics
get_statistics (const BatchNorm *work,
                gint64 channel)
{
  double count = (double) (work->n * work->length), sum, squares;
  EbbStatistics statistics = { 0 };
  int pass = 0;

  if (!work->training && work->running_mean != NULL && work->running_var != NULL)
    {
      statistics.mean = get_number (work->running_mean, channel);
      statistics.variance = get_number (work->running_var, channel);
      return statistics;
    }
  statistics.centre = get_number (work->x, channel * work->length);
  do
    sum = sum_channel (work, channel, statistics.centre, &squares);
  while (!ebb_statistics_take (&statistics, sum, squares, count) && ++pass < 2);
  if (work->training)
    {
      move_number (work->running_mean, channel, (double) statistics.mean + statistics.rest, work->momentum);
      move_number (work->running_var, channel, statistics.variance * count / MAX (count - 1, 1), work->momentum);
    }
  return statistics;
}

static void
norm_channels (gint64 begin,
               gint64 end,
               void *data)
{
  const BatchNorm *work = data;
  gint64 count = work->n * work->length, n;
  float in[EBB_CURSOR_BLOCK], out[EBB_CURSOR_BLOCK];

  for (gint64 channel = begin; channel < end; channel++)
    {
      EbbCursor x, y;
      EbbStatistics statistics = get_statistics (work, channel);
      float mean = statistics.mean, rstd = (float) (1 / sqrt (statistics.variance + work->eps));
      EbbVec scale, shift;

      scale = vec_set1 (work->weight != NULL ? work->weight[channel] * rstd : rstd);
      shift = vec_set1 (work->bias != NULL ? work->bias[channel] : 0) - statistics.rest * scale;
      init_channel (&x, work->x, work, channel);
      init_channel (&y, work->y, work, channel);
      for (gint64 i = 0; i < count; i += n)
        {
          const float *block;

          n = MIN (count - i, EBB_CURSOR_BLOCK);
          block = ebb_cursor_read_f32 (&x, n, in);
          EBB_VEC_FOR (k, m, n)
            vec_store_as (EBB_DTYPE_F32, out, k, m,
                          vec_fma (vec_load_as (EBB_DTYPE_F32, block, k, m) - mean, scale, shift));
          ebb_cursor_store_f32 (&y, n, out);
        }
      if (work->mean != NULL)
        work->mean[channel] = mean;
      if (work->rstd != NULL)
        work->rstd[channel] = rstd;
    }
}

/* The sums of dy, of dy h and of h = (x - mean) rstd */
static void
sum_grads (const BatchNorm *work,
           gint64 channel,
           double *sum_dy,
           double *sum_dyh,
           double *sum_h)
{
  gint64 count = work->n * work->length, n;
  const float mean = work->mean[channel], rstd = work->rstd[channel];
  float dy_buffer[EBB_CURSOR_BLOCK], x_buffer[EBB_CURSOR_BLOCK];
  EbbCursor dy, x;

  *sum_dy = *sum_dyh = *sum_h = 0;
  init_channel (&dy, work->dy, work, channel);
  init_channel (&x, work->x, work, channel);
  for (gint64 i = 0; i < count; i += n)
    {
      const float *a, *b;
      EbbVec block = { 0 }, block_dyh = { 0 }, block_h = { 0 };

      n = MIN (count - i, EBB_CURSOR_BLOCK);
      a = ebb_cursor_read_f32 (&dy, n, dy_buffer);
      b = ebb_cursor_read_f32 (&x, n, x_buffer);
      EBB_VEC_FOR (k, m, n)
        {
          EbbVec v = vec_load_as (EBB_DTYPE_F32, a, k, m), h = (vec_load_as (EBB_DTYPE_F32, b, k, m) - mean) * rstd;

          block += v;
          block_dyh = vec_fma (v, h, block_dyh);
          block_h += vec_first (h, m, (EbbVec){ 0 });
        }
      *sum_dy += vec_sum (block);
      *sum_dyh += vec_sum (block_dyh);
      *sum_h += vec_sum (block_h);
    }
}

/* dx = weight rstd (dy - mean_dy - h mean_dyh) */
static void
write_grads (const BatchNorm *work,
             gint64 channel,
             float mean_dy,
             float mean_dyh,
             float mean_h)
{
  gint64 count = work->n * work->length, n;
  const float mean = work->mean[channel], rstd = work->rstd[channel];
  const float scale = work->weight != NULL ? work->weight[channel] * rstd : rstd;
  float dy_buffer[EBB_CURSOR_BLOCK], x_buffer[EBB_CURSOR_BLOCK], out[EBB_CURSOR_BLOCK];
  EbbCursor dy, x, dx;

  init_channel (&dy, work->dy, work, channel);
  init_channel (&x, work->x, work, channel);
  init_channel (&dx, work->y, work, channel);
  for (gint64 i = 0; i < count; i += n)
    {
      const float *a, *b;

      n = MIN (count - i, EBB_CURSOR_BLOCK);
      a = ebb_cursor_read_f32 (&dy, n, dy_buffer);
      b = ebb_cursor_read_f32 (&x, n, x_buffer);
      EBB_VEC_FOR (k, m, n)
        {
          EbbVec h = (vec_load_as (EBB_DTYPE_F32, b, k, m) - mean) * rstd - mean_h;
          EbbVec v = vec_load_as (EBB_DTYPE_F32, a, k, m) - mean_dy - h * mean_dyh;

          vec_store_as (EBB_DTYPE_F32, out, k, m, v * scale);
        }
      ebb_cursor_store_f32 (&dx, n, out);
    }
}

/* Running statistics do not depend on x, so nothing is subtracted for them. Those of the batch have a mean h of 0, but
 * for what their mean in f32 lacks. */
static void
grad_channels (gint64 begin,
               gint64 end,
               void *data)
{
  const BatchNorm *work = data;
  double count = (double) MAX (work->n * work->length, 1); /* the sums of an empty channel are 0 */

  for (gint64 channel = begin; channel < end; channel++)
    {
      double sum_dy, sum_dyh, sum_h;

      sum_grads (work, channel, &sum_dy, &sum_dyh, &sum_h);
      sum_h = work->training ? sum_h : 0;
      sum_dyh -= sum_dy * sum_h / count;
      if (work->dweight != NULL)
        work->dweight[channel] = (float) sum_dyh + (work->accumulate_weight ? work->dweight[channel] : 0);
      if (work->dbias != NULL)
        work->dbias[channel] = (float) sum_dy + (work->accumulate_bias ? work->dbias[channel] : 0);
      if (work->y != NULL && work->training)
        write_grads (work, channel, (float) (sum_dy / count), (float) (sum_dyh / count), (float) (sum_h / count));
      else if (work->y != NULL)
        write_grads (work, channel, 0, 0, 0);
    }
}

static gboolean
run_batch_norm (BatchNorm *work,
                const EbbLaunch *launch,
                const EbbView *weight,
                const EbbView *bias,
                EbbParallelFunc func)
{
  gint64 elements;
  gsize used = 0;

  work->n = work->x->shape[0];
  work->channels = work->x->shape[1];
  work->length = work->x->n_dims > 2 ? work->x->shape[2] : 1;
  work->eps = launch->params.norm.eps;
  work->momentum = launch->params.norm.momentum;
  work->training = launch->params.norm.training;
  elements = work->n * work->length;
  if (elements == 0 && work->dy == NULL)
    return TRUE;
  work->weight = ebb_vector_as_f32 (launch, &used, weight, FALSE);
  work->bias = ebb_vector_as_f32 (launch, &used, bias, FALSE);
  ebb_cpu_parallel_for (work->channels, MAX (1, EBB_CPU_GRAIN / 4 / MAX (elements, 1)), func, work);
  return TRUE;
}

EBB_SIMD_WORKSPACE (batch_norm)
{
  return ebb_vector_count_workspace (ebb_launch_get_input (launch, 1), FALSE)
         + ebb_vector_count_workspace (ebb_launch_get_input (launch, 2), FALSE);
}

EBB_SIMD_WORKSPACE (batch_norm_grad)
{
  return ebb_vector_count_workspace (launch->inputs[2], FALSE);
}

EBB_SIMD_KERNEL (batch_norm)
{
  BatchNorm work = {
    .x = launch->inputs[0],
    .y = launch->outputs[0],
    /* the two inputs that are moved in place */
    .running_mean = (EbbView *) ebb_launch_get_input (launch, 3),
    .running_var = (EbbView *) ebb_launch_get_input (launch, 4),
    .mean = ebb_launch_get_floats (launch, 1),
    .rstd = ebb_launch_get_floats (launch, 2),
  };

  return run_batch_norm (&work, launch, ebb_launch_get_input (launch, 1), ebb_launch_get_input (launch, 2),
                         norm_channels);
}

EBB_SIMD_KERNEL (batch_norm_grad)
{
  BatchNorm work = {
    .dy = launch->inputs[0],
    .x = launch->inputs[1],
    .y = ebb_launch_get_output (launch, 0),
    .mean = launch->inputs[3]->data,
    .rstd = launch->inputs[4]->data,
    .dweight = ebb_launch_get_floats (launch, 1),
    .dbias = ebb_launch_get_floats (launch, 2),
    .accumulate_weight = launch->params.norm.accumulate_weight,
    .accumulate_bias = launch->params.norm.accumulate_bias,
  };

  return run_batch_norm (&work, launch, launch->inputs[2], NULL, grad_channels);
}
