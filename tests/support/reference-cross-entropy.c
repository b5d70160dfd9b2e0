/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "support/reference-private.h"

#include <math.h>

/* With the cap. */
static double
load_logit (const EbbLaunch *launch,
            const EbbView *logits,
            gint64 i)
{
  double cap = launch->params.xent.cap, logit = ebb_reference_load (logits, i);

  return cap != 0.0 ? cap * tanh (logit / cap) : logit;
}

static double
get_logsumexp (const EbbLaunch *launch,
               const EbbView *logits,
               gint64 row,
               gint64 n)
{
  double best = -INFINITY, sum = 0.0;

  for (gint64 i = 0; i < n; i++)
    best = MAX (best, load_logit (launch, logits, row * n + i));
  for (gint64 i = 0; i < n; i++)
    sum += exp (load_logit (launch, logits, row * n + i) - best);
  return best + log (sum);
}

/* As the sum of two f32 */
static void
store_logsumexp (const EbbView *view,
                 gint64 at,
                 double logsumexp)
{
  float rounded = (float) logsumexp;

  ebb_reference_store (view, at, rounded);
  ebb_reference_store (view, at + 1, logsumexp - rounded);
}

static double
load_logsumexp (const EbbView *view,
                gint64 at)
{
  return ebb_reference_load (view, at) + ebb_reference_load (view, at + 1);
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
      double result = get_logsumexp (launch, logits, row, n), loss = 0.0;
      gboolean is_ignored = wanted == launch->params.xent.ignore_index;

      for (gint64 i = 0; !is_ignored && i < n; i++)
        {
          double weight = (i == wanted ? 1.0 - smoothing : 0.0) + smoothing / (double) n;

          if (weight != 0.0)
            loss += weight * (result - load_logit (launch, logits, row * n + i));
        }
      ebb_reference_store (launch->outputs[0], row, loss);
      store_logsumexp (launch->outputs[1], 2 * row, is_ignored ? 0.0 : result);
    }
  return TRUE;
}

gboolean
ebb_reference_cross_entropy_grad (const EbbLaunch *launch,
                                  GError **error)
{
  const EbbView *d_loss = launch->inputs[0], *logits = launch->inputs[1], *target = launch->inputs[2];
  const EbbView *logsumexp = launch->inputs[3];
  gint64 n = logits->shape[1], first = launch->params.xent.first;
  double smoothing = launch->params.xent.smoothing;

  for (gint64 row = 0; row < logits->shape[0]; row++)
    {
      gint64 wanted = ebb_reference_load_integer (target, row);
      double result = load_logsumexp (logsumexp, 2 * row); /* of all classes, of which the logits may be a part */
      double d = wanted == launch->params.xent.ignore_index
                     ? 0.0
                     : ebb_reference_load (d_loss, row * d_loss->strides[0]);

      for (gint64 i = 0; i < n; i++)
        {
          double weight = (i + first == wanted ? 1.0 - smoothing : 0.0) + smoothing / (double) n;

          double cap = launch->params.xent.cap, logit = load_logit (launch, logits, row * n + i);
          double slope = cap != 0.0 ? 1.0 - logit / cap * (logit / cap) : 1.0;

          ebb_reference_store (launch->outputs[0], row * n + i, d * (exp (logit - result) - weight) * slope);
        }
    }
  return TRUE;
}

gboolean
ebb_reference_cross_entropy_part (const EbbLaunch *launch,
                                  GError **error)
{
  const EbbView *logits = launch->inputs[0], *target = launch->inputs[1];
  gint64 n = logits->shape[1], first = launch->params.xent.first;

  for (gint64 row = 0; row < logits->shape[0]; row++)
    {
      gint64 wanted = ebb_reference_load_integer (target, row);
      gboolean is_ignored = wanted == launch->params.xent.ignore_index;
      gboolean is_here = !is_ignored && wanted >= first && wanted < first + n;
      double result = is_ignored ? 0.0 : get_logsumexp (launch, logits, row, n);

      store_logsumexp (launch->outputs[0], 3 * row, result);
      ebb_reference_store (launch->outputs[0], 3 * row + 2,
                           is_here ? load_logit (launch, logits, row * n + wanted - first) : 0.0);
    }
  return TRUE;
}

gboolean
ebb_reference_cross_entropy_join (const EbbLaunch *launch,
                                  GError **error)
{
  const EbbView *parts = launch->inputs[0], *target = launch->inputs[1];
  gint64 n_rows = parts->shape[1];

  for (gint64 row = 0; row < n_rows; row++)
    {
      gboolean is_ignored = ebb_reference_load_integer (target, row) == launch->params.xent.ignore_index;
      double sum = 0.0, logit = 0.0, result;

      /* Numbers small enough that nothing overflows without their maximum. */
      for (gint64 i = 0; i < parts->shape[0]; i++)
        {
          gint64 at = 3 * (i * n_rows + row);

          sum += exp (load_logsumexp (parts, at));
          logit += ebb_reference_load (parts, at + 2);
        }
      result = log (sum);
      ebb_reference_store (launch->outputs[0], row, is_ignored ? 0.0 : result - logit);
      store_logsumexp (launch->outputs[1], 2 * row, is_ignored ? 0.0 : result);
    }
  return TRUE;
}
