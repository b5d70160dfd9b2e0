/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "support/reference-private.h"

#include <math.h>

/* Softmax, and the norms: layer, RMS, batch, and dropout + residual + layer norm. */

static double
load_or (const EbbView *view,
         gint64 i,
         double otherwise)
{
  return view != NULL ? ebb_reference_load (view, i) : otherwise;
}

static void
store_if (const EbbView *view,
          gint64 i,
          double value)
{
  if (view != NULL)
    ebb_reference_store (view, i, value);
}

/* Element @i of x in contiguous order: an RMS norm's rows may lie apart. */
static double
load_x (const EbbView *x,
        gint64 i)
{
  return ebb_reference_load (x, ebb_reference_offset (x, i));
}

/* The factor of column @i. */
static double
load_weight (const EbbLaunch *launch,
             const EbbView *weight,
             gint64 i)
{
  return weight != NULL ? ebb_reference_load (weight, i) + (launch->params.norm.unit_offset ? 1 : 0) : 1;
}

static gint64
get_columns (const EbbView *x)
{
  return x->shape[x->n_dims - 1];
}

gboolean
ebb_reference_softmax (const EbbLaunch *launch,
                       GError **error)
{
  const EbbView *x = launch->inputs[0], *y = launch->outputs[0];
  gint64 n = get_columns (x);

  for (gint64 at = 0; at < ebb_reference_count (x); at += n)
    {
      double maximum = -INFINITY, sum = 0;

      for (gint64 i = at; i < at + n; i++)
        maximum = MAX (maximum, ebb_reference_load (x, i));
      for (gint64 i = at; i < at + n; i++)
        sum += exp (ebb_reference_load (x, i) - maximum);
      for (gint64 i = at; i < at + n; i++)
        {
          double logarithm = ebb_reference_load (x, i) - maximum - log (sum);

          ebb_reference_store (y, i, launch->params.softmax.log ? logarithm : exp (logarithm));
        }
    }
  return TRUE;
}

gboolean
ebb_reference_softmax_grad (const EbbLaunch *launch,
                            GError **error)
{
  const EbbView *dy = launch->inputs[0], *y = launch->inputs[1], *dx = launch->outputs[0];
  gboolean is_log = launch->params.softmax.log;
  gint64 n = get_columns (y);

  for (gint64 at = 0; at < ebb_reference_count (y); at += n)
    {
      double sum = 0;

      for (gint64 i = at; i < at + n; i++)
        sum += ebb_reference_load (dy, i) * (is_log ? 1 : ebb_reference_load (y, i));
      for (gint64 i = at; i < at + n; i++)
        {
          double g = ebb_reference_load (dy, i), value = ebb_reference_load (y, i);

          ebb_reference_store (dx, i, is_log ? g - exp (value) * sum : value * (g - sum));
        }
    }
  return TRUE;
}

static void
norm_rows (const EbbLaunch *launch,
           gboolean is_centred,
           const EbbView *x,
           const EbbView *weight,
           const EbbView *bias,
           const EbbView *y,
           const EbbView *means,
           const EbbView *rstds)
{
  gint64 n = get_columns (x);

  for (gint64 row = 0; n > 0 && row < ebb_reference_count (x) / n; row++)
    {
      double mean = 0, squares = 0, rstd;

      for (gint64 i = 0; i < n && is_centred; i++)
        mean += load_x (x, row * n + i) / (double) n;
      for (gint64 i = 0; i < n; i++)
        squares += pow (load_x (x, row * n + i) - mean, 2);
      rstd = 1 / sqrt (squares / (double) n + launch->params.norm.eps);
      for (gint64 i = 0; i < n; i++)
        {
          double h = (load_x (x, row * n + i) - mean) * rstd;

          ebb_reference_store (y, row * n + i, h * load_weight (launch, weight, i) + load_or (bias, i, 0));
        }
      store_if (means, row, mean);
      store_if (rstds, row, rstd);
    }
}

gboolean
ebb_reference_layer_norm (const EbbLaunch *launch,
                          GError **error)
{
  norm_rows (launch, TRUE, launch->inputs[0], launch->inputs[1], launch->inputs[2], launch->outputs[0],
             launch->outputs[1], launch->outputs[2]);
  return TRUE;
}

gboolean
ebb_reference_rms_norm (const EbbLaunch *launch,
                        GError **error)
{
  norm_rows (launch, FALSE, launch->inputs[0], launch->inputs[1], NULL, launch->outputs[0], NULL, launch->outputs[1]);
  return TRUE;
}

/* sum = residual + dropout (x) */
static void
add_residual (const EbbLaunch *launch,
              const EbbView *x,
              const EbbView *residual,
              const EbbView *sum)
{
  double p = launch->params.norm.p;

  for (gint64 i = 0; i < ebb_reference_count (x); i++)
    {
      gboolean kept = p == 0 || ebb_reference_draw (launch->params.norm.philox, (guint64) i) >= p * 4294967296.0;

      ebb_reference_store (sum, i,
                           ebb_reference_load (residual, i) + (kept ? ebb_reference_load (x, i) / (1 - p) : 0));
    }
}

gboolean
ebb_reference_add_layer_norm (const EbbLaunch *launch,
                              GError **error)
{
  const EbbView *sum = launch->outputs[0];

  add_residual (launch, launch->inputs[0], launch->inputs[1], sum);
  norm_rows (launch, TRUE, sum, launch->inputs[2], launch->inputs[3], launch->outputs[1], launch->outputs[2],
             launch->outputs[3]);
  return TRUE;
}

gboolean
ebb_reference_add_rms_norm (const EbbLaunch *launch,
                            GError **error)
{
  const EbbView *x = launch->inputs[0], *sum = launch->outputs[0];

  if (launch->params.norm.normalizes_branch)
    {
      norm_rows (launch, FALSE, x, launch->inputs[3], NULL, sum, NULL, launch->outputs[3]);
      x = sum;
    }
  add_residual (launch, x, launch->inputs[1], sum);
  norm_rows (launch, FALSE, sum, launch->inputs[2], NULL, launch->outputs[1], NULL, launch->outputs[2]);
  return TRUE;
}

static void
norm_grad_rows (const EbbLaunch *launch,
                gboolean is_centred,
                const EbbView *means,
                const EbbView *rstds,
                const EbbView *dsum)
{
  const EbbView *dy = launch->inputs[0], *x = launch->inputs[1], *weight = launch->inputs[2], *dx = launch->outputs[0];
  gint64 n = get_columns (x);

  for (gint64 row = 0; n > 0 && row < ebb_reference_count (x) / n; row++)
    {
      double mean = load_or (means, row, 0), rstd = ebb_reference_load (rstds, row), mean_g = 0, mean_gh = 0;

      for (gint64 i = 0; i < n; i++)
        {
          double g = ebb_reference_load (dy, row * n + i) * load_weight (launch, weight, i);

          mean_g += g / (double) n;
          mean_gh += g * (load_x (x, row * n + i) - mean) * rstd / (double) n;
        }
      for (gint64 i = 0; i < n; i++)
        {
          double g = ebb_reference_load (dy, row * n + i) * load_weight (launch, weight, i);
          double h = (load_x (x, row * n + i) - mean) * rstd;

          ebb_reference_store (dx, row * n + i,
                               rstd * (g - (is_centred ? mean_g : 0) - h * mean_gh) + load_or (dsum, row * n + i, 0));
        }
    }
}

/* dweight and dbias of rows [.., n], where element i of x belongs to parameter (i / length) % n */
static void
sum_parameter_grads (const EbbLaunch *launch,
                     gint64 n,
                     gint64 length,
                     gboolean by_row,
                     const EbbView *means,
                     const EbbView *rstds,
                     const EbbView *dweight,
                     const EbbView *dbias)
{
  const EbbView *dy = launch->inputs[0], *x = launch->inputs[1];

  for (gint64 j = 0; j < n; j++)
    {
      double weight_sum = launch->params.norm.accumulate_weight && dweight ? ebb_reference_load (dweight, j) : 0;
      double bias_sum = launch->params.norm.accumulate_bias && dbias ? ebb_reference_load (dbias, j) : 0;

      for (gint64 begin = j * length; begin < ebb_reference_count (x); begin += n * length)
        for (gint64 i = begin; i < begin + length; i++)
          {
            gint64 statistic = by_row ? i / n : j;
            double h = (load_x (x, i) - load_or (means, statistic, 0))
                       * ebb_reference_load (rstds, statistic);

            weight_sum += ebb_reference_load (dy, i) * h;
            bias_sum += ebb_reference_load (dy, i);
          }
      store_if (dweight, j, weight_sum);
      store_if (dbias, j, bias_sum);
    }
}

gboolean
ebb_reference_layer_norm_grad (const EbbLaunch *launch,
                               GError **error)
{
  const EbbView *means = launch->inputs[3], *rstds = launch->inputs[4];

  /* dx may lie in dy: it comes last. */
  sum_parameter_grads (launch, get_columns (launch->inputs[1]), 1, TRUE, means, rstds, launch->outputs[1],
                       launch->outputs[2]);
  if (launch->outputs[0] != NULL)
    norm_grad_rows (launch, TRUE, means, rstds, launch->inputs[5]);
  return TRUE;
}

gboolean
ebb_reference_rms_norm_grad (const EbbLaunch *launch,
                             GError **error)
{
  const EbbView *rstds = launch->inputs[3];

  sum_parameter_grads (launch, get_columns (launch->inputs[1]), 1, TRUE, NULL, rstds, launch->outputs[1], NULL);
  if (launch->outputs[0] != NULL)
    norm_grad_rows (launch, FALSE, NULL, rstds, launch->n_inputs > 4 ? launch->inputs[4] : NULL);
  return TRUE;
}

/* The mean of the elements of a channel of [N, C, L], or of their squared distance from a centre */
static double
get_moment (const EbbView *x,
            gint64 channel,
            gboolean squares,
            double centre)
{
  gint64 channels = x->shape[1], length = x->shape[2];
  double sum = 0;

  for (gint64 begin = channel * length; begin < ebb_reference_count (x); begin += channels * length)
    for (gint64 i = begin; i < begin + length; i++)
      {
        double v = ebb_reference_load (x, i) - centre;

        sum += squares ? v * v : v;
      }
  return sum / (double) (x->shape[0] * length);
}

gboolean
ebb_reference_batch_norm (const EbbLaunch *launch,
                          GError **error)
{
  const EbbView *x = launch->inputs[0], *running_mean = launch->inputs[3], *running_var = launch->inputs[4];
  gint64 channels = x->shape[1], length = x->shape[2], count = x->shape[0] * length;
  double momentum = launch->params.norm.momentum;

  for (gint64 c = 0; c < channels && count > 0; c++) /* statistics of nothing stay as they are */
    {
      double mean, variance, rstd;

      if (launch->params.norm.training)
        {
          mean = get_moment (x, c, FALSE, 0);
          variance = get_moment (x, c, TRUE, mean);
          store_if (running_mean, c, (1 - momentum) * load_or (running_mean, c, 0) + momentum * mean);
          store_if (running_var, c,
                    (1 - momentum) * load_or (running_var, c, 0)
                        + momentum * variance * (double) count / (double) (count - 1));
        }
      else
        {
          mean = ebb_reference_load (running_mean, c);
          variance = ebb_reference_load (running_var, c);
        }
      rstd = 1 / sqrt (variance + launch->params.norm.eps);
      for (gint64 i = 0; i < ebb_reference_count (x); i++)
        if (i / length % channels == c)
          ebb_reference_store (launch->outputs[0], i,
                               (ebb_reference_load (x, i) - mean) * rstd * load_or (launch->inputs[1], c, 1)
                                   + load_or (launch->inputs[2], c, 0));
      store_if (launch->outputs[1], c, mean);
      store_if (launch->outputs[2], c, rstd);
    }
  return TRUE;
}

gboolean
ebb_reference_batch_norm_grad (const EbbLaunch *launch,
                               GError **error)
{
  const EbbView *dy = launch->inputs[0], *x = launch->inputs[1], *means = launch->inputs[3], *rstds = launch->inputs[4];
  gint64 channels = x->shape[1], length = x->shape[2];

  sum_parameter_grads (launch, channels, length, FALSE, means, rstds, launch->outputs[1], launch->outputs[2]);
  for (gint64 c = 0; c < channels && launch->outputs[0] != NULL; c++)
    {
      double mean = ebb_reference_load (means, c), rstd = ebb_reference_load (rstds, c), mean_dy = 0, mean_dyh = 0;
      double count = (double) (x->shape[0] * length);

      for (gint64 i = 0; i < ebb_reference_count (x) && launch->params.norm.training; i++)
        if (i / length % channels == c)
          {
            mean_dy += ebb_reference_load (dy, i) / count;
            mean_dyh += ebb_reference_load (dy, i) * (ebb_reference_load (x, i) - mean) * rstd / count;
          }
      for (gint64 i = 0; i < ebb_reference_count (x); i++)
        if (i / length % channels == c)
          {
            double h = (ebb_reference_load (x, i) - mean) * rstd;

            ebb_reference_store (launch->outputs[0], i,
                                 (ebb_reference_load (dy, i) - mean_dy - h * mean_dyh) * rstd
                                     * load_or (launch->inputs[2], c, 1));
          }
    }
  return TRUE;
}
