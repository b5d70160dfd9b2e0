/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* References of the kernels that reduce over ranks and clip gradients. */
#include "support/reference-private.h"

#include <math.h>
#include <string.h>

/* An f32, or the f64 whose bits an i64 holds. */
static double
load_f64 (const EbbView *view,
          gint64 offset)
{
  double value;

  if (view->dtype == EBB_DTYPE_F32)
    return ebb_reference_load (view, offset);
  memcpy (&value, (const gint64 *) view->data + offset, sizeof value);
  return value;
}

gboolean
ebb_reference_norm_sum (const EbbLaunch *launch,
                        GError **error)
{
  const EbbView *x = launch->inputs[0];
  EbbView *y = launch->outputs[0];

  for (gint64 i = 0; i < x->shape[1]; i++)
    {
      double result = load_f64 (x, i * x->strides[1]);

      for (gint64 k = 1; k < x->shape[0]; k++)
        {
          double value = load_f64 (x, k * x->strides[0] + i * x->strides[1]);

          if (!launch->params.norm_sum.max)
            result += value;
          else if (isnan (value) || value > result)
            result = isnan (result) ? result : value;
        }
      memcpy ((gint64 *) y->data + i * y->strides[0], &result, sizeof result);
    }
  return TRUE;
}

gboolean
ebb_reference_clip_factor (const EbbLaunch *launch,
                           GError **error)
{
  const double p = launch->params.clip.p, total = load_f64 (launch->inputs[0], 0);
  const double earlier = launch->inputs[1] != NULL ? load_f64 (launch->inputs[1], 0) : 1;
  const double scale = launch->params.clip.scale * earlier;
  const double norm = fabs (scale) * (isinf (p) ? total : pow (total, 1 / p));
  const double factor = launch->params.clip.max_norm / (norm + 1e-6);

  ebb_reference_store (launch->outputs[0], 0, norm);
  ebb_reference_store (launch->outputs[1], 0, isfinite (norm) && factor < 1 ? scale * factor : scale);
  return TRUE;
}

static double
combine (int op,
         double a,
         double b)
{
  switch (op)
    {
    case 2: return isnan (a) || isnan (b) ? NAN : MIN (a, b);
    case 3: return isnan (a) || isnan (b) ? NAN : MAX (a, b);
    default: return a + b;
    }
}

gboolean
ebb_reference_reduce_ranks (const EbbLaunch *launch,
                            GError **error)
{
  const EbbView *x = launch->inputs[0];
  const int op = launch->params.reduce_ranks.op;

  for (gint64 i = 0; i < x->shape[1]; i++)
    {
      double result = ebb_reference_load (x, i);

      for (gint64 k = 1; k < x->shape[0]; k++)
        result = combine (op, result, ebb_reference_load (x, k * x->strides[0] + i));
      if (op == 1)
        result /= (double) x->shape[0];
      if (ebb_dtype_is_floating_point (x->dtype))
        ebb_reference_store (launch->outputs[0], i, result);
      else
        ebb_reference_store_integer (launch->outputs[0], i,
                                     x->dtype == EBB_DTYPE_BOOL ? result != 0 : (gint64) trunc (result));
    }
  return TRUE;
}
