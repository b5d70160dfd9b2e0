/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "support/reference-private.h"

/* The offset of matrix @batch of c in @view, which lacks or broadcasts some of c's dimensions. */
static gint64
get_batch (const EbbView *view,
           const EbbView *c,
           gint64 batch)
{
  gint64 offset = 0;

  for (int i = c->n_dims - 3; i >= 0; i--)
    {
      int dim = i - (c->n_dims - view->n_dims);
      gint64 position = batch % c->shape[i];

      batch /= c->shape[i];
      if (dim >= 0 && view->shape[dim] != 1)
        offset += position * view->strides[dim];
    }
  return offset;
}

static double
dot (const EbbView *a,
     gint64 a_start,
     const EbbView *b,
     gint64 b_start,
     gint64 k)
{
  double sum = 0.0;

  for (gint64 i = 0; i < k; i++)
    sum += ebb_reference_load (a, a_start + i * a->strides[a->n_dims - 1])
           * ebb_reference_load (b, b_start + i * b->strides[b->n_dims - 2]);
  return sum;
}

gboolean
ebb_reference_matmul (const EbbLaunch *launch,
                      GError **error)
{
  const EbbView *a = launch->inputs[0], *b = launch->inputs[1];
  const EbbView *bias = launch->n_inputs > 2 ? launch->inputs[2] : NULL;
  const EbbView *c = launch->outputs[0];
  gint64 m = c->shape[c->n_dims - 2], n = c->shape[c->n_dims - 1], k = a->shape[a->n_dims - 1];
  gint64 n_batches = 1;

  for (int i = 0; i < c->n_dims - 2; i++)
    n_batches *= c->shape[i];
  for (gint64 batch = 0; batch < n_batches; batch++)
    for (gint64 i = 0; i < m; i++)
      for (gint64 j = 0; j < n; j++)
        {
          gint64 at = get_batch (c, c, batch) + i * c->strides[c->n_dims - 2] + j * c->strides[c->n_dims - 1];
          double value = dot (a, get_batch (a, c, batch) + i * a->strides[a->n_dims - 2], b,
                              get_batch (b, c, batch) + j * b->strides[b->n_dims - 1], k);

          if (bias)
            value += ebb_reference_load (bias, j * bias->strides[bias->n_dims - 1]);
          if (launch->params.matmul.accumulate)
            value += ebb_reference_load (c, at);
          ebb_reference_store (c, at, value);
        }
  return TRUE;
}
