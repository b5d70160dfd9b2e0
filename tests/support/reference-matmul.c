/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "support/reference-private.h"
#include "tensor/backend/quantized-private.h"
#include "tensor/util/half-private.h"

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

/* Element @i of a weight in nf4, counted row after row. Each step is rounded to f32: what is rounded to bf16 after that
 * may be another number otherwise. */
static float
decode_nf4 (const EbbLaunch *launch,
            gint64 i)
{
  static const float codes[16] = EBB_NF4_CODES;
  const gint64 block = i / EBB_NF4_BLOCK, both = ebb_reference_load_integer (launch->inputs[0], i / 2);
  const gint64 scale = ebb_reference_load_integer (launch->inputs[1], block);
  const float product = (float) ebb_reference_load (launch->inputs[3], scale)
                        * (float) ebb_reference_load (launch->inputs[2], block / EBB_NF4_GROUP (launch->inputs[2]));
  const float sum = product + (float) ebb_reference_load (launch->inputs[4], 0);

  return codes[i % 2 != 0 ? both & 15 : both >> 4] * sum;
}

static float
decode (const EbbLaunch *launch,
        gint64 row,
        gint64 column)
{
  const gint64 i = row * launch->params.dequantize.width + column;

  return launch->inputs[1]->dtype == EBB_DTYPE_U8
             ? decode_nf4 (launch, i)
             : (float) (gint8) ebb_reference_load_integer (launch->inputs[0], i)
                   * ((float) ebb_reference_load (launch->inputs[1], row) / 127.0f);
}

/* A row of x times a row of the weight as panels have it: rounded to the dtype of x. */
static double
multiply_decoded (const EbbLaunch *launch,
                  gint64 row,
                  gint64 column)
{
  const EbbView *x = launch->inputs[5], *bias = launch->inputs[6];
  double sum = bias != NULL ? ebb_reference_load (bias, column * bias->strides[0]) : 0;

  for (gint64 k = 0; k < x->shape[1]; k++)
    {
      const float element = decode (launch, column, k);

      sum += ebb_reference_load (x, row * x->strides[0] + k)
             * (double) (x->dtype == EBB_DTYPE_BF16 ? ebb_bf16_to_float (ebb_bf16_from_float (element)) : element);
    }
  return sum;
}

gboolean
ebb_reference_dequantize (const EbbLaunch *launch,
                          GError **error)
{
  const EbbView *y = launch->outputs[0];

  for (gint64 r = 0; r < y->shape[0]; r++)
    for (gint64 c = 0; c < y->shape[1]; c++)
      ebb_reference_store (y, r * y->strides[0] + c * y->strides[1],
                           launch->n_inputs > 5
                               ? multiply_decoded (launch, r, c)
                               : (double) decode (launch, launch->params.dequantize.row + r,
                                                  launch->params.dequantize.column + c));
  return TRUE;
}
