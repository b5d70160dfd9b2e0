/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "support/reference-private.h"

#include <math.h>

static gint64
get_position (const EbbLaunch *launch,
              gint64 batch,
              gint64 t)
{
  const EbbView *starts = launch->inputs[2];
  gint64 index = launch->params.rotary.first + t, start = 0;

  if (starts != NULL)
    start = ebb_reference_load_integer (starts, batch * starts->strides[0] + t * starts->strides[1]);
  return index - CLAMP (start, 0, index);
}

/* The angle is rounded to f32, as it is by contract; from there on everything is float64. */
gboolean
ebb_reference_rotary (const EbbLaunch *launch,
                      GError **error)
{
  const EbbView *x = launch->inputs[0], *frequencies = launch->inputs[1], *y = launch->outputs[0];
  gint64 n_pairs = frequencies->shape[0], n_heads = x->shape[2], size = x->shape[3];

  for (gint64 row = 0; row < ebb_reference_count (x) / MAX (size, 1); row++)
    {
      gint64 t = row / n_heads % x->shape[1], batch = row / n_heads / x->shape[1];
      float position = (float) get_position (launch, batch, t);

      for (gint64 i = 0; i < n_pairs; i++)
        {
          float frequency = (float) (ebb_reference_load (frequencies, i)
                                     / pow (launch->params.rotary.ntk, (double) i / (double) n_pairs));
          float angle = position * frequency;
          double c = cos (angle) * launch->params.rotary.factor, s = sin (angle) * launch->params.rotary.factor;
          gint64 first = row * size + i, second = first + n_pairs;
          double a = ebb_reference_load (x, ebb_reference_offset (x, first));
          double b = ebb_reference_load (x, ebb_reference_offset (x, second));

          if (launch->params.rotary.reversed)
            s = -s;
          ebb_reference_store (y, ebb_reference_offset (y, first), a * c - b * s);
          ebb_reference_store (y, ebb_reference_offset (y, second), b * c + a * s);
        }
      for (gint64 i = 2 * n_pairs; i < size; i++)
        ebb_reference_store (y, ebb_reference_offset (y, row * size + i),
                             ebb_reference_load (x, ebb_reference_offset (x, row * size + i)));
    }
  return TRUE;
}
