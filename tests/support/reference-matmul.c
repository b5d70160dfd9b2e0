/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "support/reference-private.h"
#include "tensor/backend/quantized-private.h"

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

/* Element @i of a weight in nf4, counted row after row. */
static double
decode_nf4 (const EbbLaunch *launch,
            gint64 i)
{
  static const float codes[16] = EBB_NF4_CODES;
  const gint64 block = i / EBB_NF4_BLOCK, both = ebb_reference_load_integer (launch->inputs[0], i / 2);
  const double scale = ebb_reference_load (launch->inputs[3], ebb_reference_load_integer (launch->inputs[1], block))
                       * ebb_reference_load (launch->inputs[2], block / EBB_NF4_NESTED_BLOCK);

  return (double) codes[i % 2 != 0 ? both & 15 : both >> 4] * (scale + ebb_reference_load (launch->inputs[4], 0));
}

gboolean
ebb_reference_dequantize (const EbbLaunch *launch,
                          GError **error)
{
  const EbbView *scales = launch->inputs[1], *y = launch->outputs[0];
  const gint64 width = launch->params.dequantize.width;

  for (gint64 r = 0; r < y->shape[0]; r++)
    for (gint64 c = 0; c < y->shape[1]; c++)
      {
        const gint64 row = launch->params.dequantize.row + r;
        const gint64 i = row * width + launch->params.dequantize.column + c;
        const double value = scales->dtype == EBB_DTYPE_U8
                                 ? decode_nf4 (launch, i)
                                 : (double) (gint8) ebb_reference_load_integer (launch->inputs[0], i)
                                       * ebb_reference_load (scales, row) / 127.0;

        ebb_reference_store (y, r * y->strides[0] + c * y->strides[1], value);
      }
  return TRUE;
}
