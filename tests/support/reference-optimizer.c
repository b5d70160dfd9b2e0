/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "support/reference-private.h"

#include <math.h>

static double
get_scale (const EbbLaunch *launch,
           double scale)
{
  return launch->inputs[0] != NULL ? scale * ebb_reference_load (launch->inputs[0], 0) : scale;
}

gboolean
ebb_reference_adamw (const EbbLaunch *launch,
                     GError **error)
{
  double lr = launch->params.adamw.lr, decay = launch->params.adamw.weight_decay, eps = launch->params.adamw.eps;
  double beta1 = launch->params.adamw.beta1, beta2 = launch->params.adamw.beta2;
  double correction1 = 1.0 - pow (beta1, (double) launch->params.adamw.step);
  double correction2 = 1.0 - pow (beta2, (double) launch->params.adamw.step);

  for (guint k = 0; k < launch->n_items; k++)
    {
      const EbbLaunchItem *item = &launch->items[k];
      EbbView grad = { item->data[0], launch->params.adamw.grad_dtype, 1, { item->n_elements }, { 1 } };
      EbbView parameter = { item->data[1], launch->params.adamw.dtype, 1, { item->n_elements }, { 1 } };
      EbbView exp_avg = { item->data[2], EBB_DTYPE_F32, 1, { item->n_elements }, { 1 } };
      EbbView exp_avg_sq = { item->data[3], EBB_DTYPE_F32, 1, { item->n_elements }, { 1 } };

      for (gint64 i = 0; i < item->n_elements; i++)
        {
          double g = get_scale (launch, launch->params.adamw.grad_scale) * ebb_reference_load (&grad, i)
                     + launch->params.adamw.l2 * ebb_reference_load (&parameter, i);
          double m = beta1 * ebb_reference_load (&exp_avg, i) + (1.0 - beta1) * g;
          double v = beta2 * ebb_reference_load (&exp_avg_sq, i) + (1.0 - beta2) * g * g;
          double p = ebb_reference_load (&parameter, i) * (1.0 - lr * decay);

          ebb_reference_store (&parameter, i, p - lr * (m / correction1) / (sqrt (v / correction2) + eps));
          ebb_reference_store (&exp_avg, i, m);
          ebb_reference_store (&exp_avg_sq, i, v);
        }
    }
  return TRUE;
}

gboolean
ebb_reference_sgd (const EbbLaunch *launch,
                   GError **error)
{
  const EbbView *parameter = launch->outputs[0], *momentum = launch->n_outputs > 1 ? launch->outputs[1] : NULL;

  for (gint64 i = 0; i < ebb_reference_count (parameter); i++)
    {
      double p = ebb_reference_load (parameter, i);
      double g = get_scale (launch, launch->params.sgd.grad_scale) * ebb_reference_load (launch->inputs[1], i)
                 + launch->params.sgd.weight_decay * p;

      if (momentum)
        {
          double m = launch->params.sgd.first
                         ? g
                         : launch->params.sgd.momentum * ebb_reference_load (momentum, i)
                               + (1.0 - launch->params.sgd.dampening) * g;

          ebb_reference_store (momentum, i, m);
          g = launch->params.sgd.nesterov ? g + launch->params.sgd.momentum * m : m;
        }
      ebb_reference_store (parameter, i, p - launch->params.sgd.lr * g);
    }
  return TRUE;
}

gboolean
ebb_reference_squared_norm (const EbbLaunch *launch,
                            GError **error)
{
  for (guint k = 0; k < launch->n_items; k++)
    {
      const EbbLaunchItem *item = &launch->items[k];
      const EbbView x = { item->data[0], launch->params.squared_norm.dtype, 1, { item->n_elements }, { 1 } };
      double sum = 0;

      for (gint64 i = 0; i < item->n_elements; i++)
        sum += ebb_reference_load (&x, i) * ebb_reference_load (&x, i);
      ebb_reference_store (launch->outputs[0], k, sum);
    }
  return TRUE;
}
