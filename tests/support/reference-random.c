/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "support/reference-private.h"

#include <math.h>

gboolean
ebb_reference_uniform (const EbbLaunch *launch,
                       GError **error)
{
  const EbbView *y = launch->outputs[0];
  double low = launch->params.random.low, high = launch->params.random.high;

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    {
      double u = (ebb_reference_draw (launch->params.random.philox, (guint64) i) >> 8) / 16777216.0;

      ebb_reference_store (y, ebb_reference_offset (y, i), low + u * (high - low));
    }
  return TRUE;
}

gboolean
ebb_reference_normal (const EbbLaunch *launch,
                      GError **error)
{
  const EbbView *y = launch->outputs[0];

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    {
      guint64 pair = (guint64) i / 2 * 2;
      double u = (ebb_reference_draw (launch->params.random.philox, pair) + 0.5) / 4294967296.0;
      double turn = (ebb_reference_draw (launch->params.random.philox, pair + 1) >> 8) / 16777216.0;
      double radius = sqrt (-2 * log (u));
      double z = radius * (i % 2 == 0 ? cos (2 * G_PI * turn) : sin (2 * G_PI * turn));

      ebb_reference_store (y, ebb_reference_offset (y, i), launch->params.random.mean + launch->params.random.std * z);
    }
  return TRUE;
}

gboolean
ebb_reference_randint (const EbbLaunch *launch,
                       GError **error)
{
  const EbbView *y = launch->outputs[0];
  gint64 low = (gint64) launch->params.random.low, high = (gint64) launch->params.random.high;

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    {
      guint64 draw = ebb_reference_draw (launch->params.random.philox, 2 * (guint64) i);

      draw |= (guint64) ebb_reference_draw (launch->params.random.philox, 2 * (guint64) i + 1) << 32;
      ebb_reference_store_integer (y, ebb_reference_offset (y, i), low + (gint64) (draw % (guint64) (high - low)));
    }
  return TRUE;
}

gboolean
ebb_reference_dropout (const EbbLaunch *launch,
                       GError **error)
{
  const EbbView *x = launch->inputs[0], *y = launch->outputs[0];
  double p = launch->params.random.p;

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    {
      gboolean kept = ebb_reference_draw (launch->params.random.philox, (guint64) i) >= p * 4294967296.0;

      ebb_reference_store (y, i, kept ? ebb_reference_load (x, i) / (1 - p) : 0);
    }
  return TRUE;
}

gboolean
ebb_reference_multinomial (const EbbLaunch *launch,
                           GError **error)
{
  const EbbView *weights = launch->inputs[0], *index = launch->outputs[0];
  gint64 n = weights->shape[weights->n_dims - 1], samples = index->shape[index->n_dims - 1];

  for (gint64 i = 0; i < ebb_reference_count (index); i++)
    {
      gint64 row = i / samples, picked = 0;
      double total = 0, sum, target;

      for (gint64 j = 0; j < n; j++)
        total += ebb_reference_load (weights, row * n + j);
      target = ebb_reference_draw (launch->params.random.philox, (guint64) i) / 4294967296.0 * total;
      sum = ebb_reference_load (weights, row * n);
      while (sum <= target)
        sum += ebb_reference_load (weights, row * n + ++picked);
      ebb_reference_store_integer (index, i, picked);
    }
  return TRUE;
}
