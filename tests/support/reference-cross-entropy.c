/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "support/reference-private.h"

#include <math.h>

static double
get_logsumexp (const EbbView *logits,
               gint64 row,
               gint64 n)
{
  double best = -INFINITY, sum = 0.0;

  for (gint64 i = 0; i < n; i++)
    best = MAX (best, ebb_reference_load (logits, row * n + i));
  for (gint64 i = 0; i < n; i++)
    sum += exp (ebb_reference_load (logits, row * n + i) - best);
  return best + log (sum);
}

gboolean
ebb_reference_cross_entropy (const EbbLaunch *launch,
                             GError **error)
{
  const EbbView *logits = launch->inputs[0], *target = launch->inputs[1];
  gint64 n = logits->shape[1];
  double smoothing = launch->params.xent.smoothing;

  for (gint64 row = 0; row < logits->shape[0]; row++)
    {
      gint64 wanted = ebb_reference_load_integer (target, row);
      double result = get_logsumexp (logits, row, n), loss = 0.0;
      gboolean is_ignored = wanted == launch->params.xent.ignore_index;

      for (gint64 i = 0; !is_ignored && i < n; i++)
        {
          double weight = (i == wanted ? 1.0 - smoothing : 0.0) + smoothing / (double) n;

          if (weight != 0.0)
            loss += weight * (result - ebb_reference_load (logits, row * n + i));
        }
      ebb_reference_store (launch->outputs[0], row, loss);
      ebb_reference_store (launch->outputs[1], row, is_ignored ? 0.0 : result);
    }
  return TRUE;
}

gboolean
ebb_reference_cross_entropy_grad (const EbbLaunch *launch,
                                  GError **error)
{
  const EbbView *d_loss = launch->inputs[0], *logits = launch->inputs[1], *target = launch->inputs[2];
  gint64 n = logits->shape[1];
  double smoothing = launch->params.xent.smoothing;

  for (gint64 row = 0; row < logits->shape[0]; row++)
    {
      gint64 wanted = ebb_reference_load_integer (target, row);
      double result = get_logsumexp (logits, row, n);
      double d = wanted == launch->params.xent.ignore_index
                     ? 0.0
                     : ebb_reference_load (d_loss, row * d_loss->strides[0]);

      for (gint64 i = 0; i < n; i++)
        {
          double weight = (i == wanted ? 1.0 - smoothing : 0.0) + smoothing / (double) n;

          ebb_reference_store (launch->outputs[0], row * n + i,
                               d * (exp (ebb_reference_load (logits, row * n + i) - result) - weight));
        }
    }
  return TRUE;
}
