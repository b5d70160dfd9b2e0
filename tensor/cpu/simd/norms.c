/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* From the parts of a norm of gradients to the norm, and the factor that gradients are clipped by; sums over ranks. */
#include "tensor/cpu/parallel-private.h"
#include "tensor/cpu/simd/simd-private.h"

#include <math.h>
#include <string.h>

static double
load (const EbbView *view,
      gint64 offset)
{
  double value;

  if (view->dtype == EBB_DTYPE_F32)
    return ((const float *) view->data)[offset];
  memcpy (&value, (const gint64 *) view->data + offset, sizeof value);
  return value;
}

EBB_SIMD_KERNEL (norm_sum)
{
  const EbbView *x = launch->inputs[0];
  EbbView *y = launch->outputs[0];

  for (gint64 i = 0; i < x->shape[1]; i++)
    {
      double sum = x->shape[0] > 0 ? load (x, i * x->strides[1]) : 0;

      for (gint64 k = 1; k < x->shape[0]; k++)
        {
          const double value = load (x, k * x->strides[0] + i * x->strides[1]);

          if (!launch->params.norm_sum.max)
            sum += value;
          else if (!(sum > value || isnan (sum)))
            sum = value;
        }
      memcpy ((gint64 *) y->data + i * y->strides[0], &sum, sizeof sum);
    }
  return TRUE;
}

EBB_SIMD_KERNEL (clip_factor)
{
  const EbbView *earlier = launch->n_inputs > 1 ? launch->inputs[1] : NULL;
  const double p = launch->params.clip.p, total = load (launch->inputs[0], 0);
  const double scale = launch->params.clip.scale * (earlier != NULL ? load (earlier, 0) : 1);
  double norm = p == 2 ? sqrt (total) : p == 1 || isinf (p) ? total
                                                            : pow (total, 1 / p);
  double factor;

  norm *= fabs (scale);
  factor = launch->params.clip.max_norm / (norm + 1e-6);
  *(float *) launch->outputs[0]->data = (float) norm;
  *(float *) launch->outputs[1]->data = (float) (isfinite (norm) && factor < 1 ? scale * factor : scale);
  return TRUE;
}

static void
reduce_part (gint64 begin,
             gint64 end,
             void *data)
{
  const EbbLaunch *launch = data;
  const EbbView *x = launch->inputs[0];
  const gsize size = ebb_dtype_get_size (x->dtype);
  const guint n = (guint) x->shape[0];
  g_autofree const void **sources = g_new (const void *, n);

  for (guint i = 0; i < n; i++)
    sources[i] = (const char *) x->data + (gsize) (i * x->strides[0] + begin) * size;
  ebb_cpu_reduce ((char *) launch->outputs[0]->data + (gsize) begin * size, sources, n, (gsize) (end - begin), x->dtype,
                  launch->params.reduce_ranks.op);
}

EBB_SIMD_KERNEL (reduce_ranks)
{
  const EbbView *x = launch->inputs[0];

  ebb_cpu_parallel_for_units (x->shape[1], EBB_REDUCE_BLOCK, EBB_CPU_GRAIN / MAX (1, x->shape[0]), reduce_part,
                              (void *) launch);
  return TRUE;
}
