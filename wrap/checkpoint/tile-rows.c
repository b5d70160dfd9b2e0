/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Takes tiles of rows from a tensor and puts results together, with gradients that are written to one tensor. */
#include "wrap/checkpoint/tile-rows-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/thread-private.h"

#include <string.h>

/* What both ops keep for backward, in extra.i. */
typedef struct
{
  gint64 first, n;            /* rows of the tile */
  gint64 n_dims;              /* of the whole */
  gint64 shape[EBB_MAX_DIMS]; /* of it */
} Tile;

G_STATIC_ASSERT (sizeof (Tile) <= sizeof (((EbbOpCall *) NULL)->extra.i));

gint64
ebb_tile_count_rows (EbbTensor *tensor)
{
  gint64 n = 1;

  for (int i = 0; i + 1 < tensor->view.n_dims; i++)
    n *= tensor->view.shape[i];
  return n;
}

static Tile
tile_of (EbbTensor *whole,
         gint64 first,
         gint64 n)
{
  Tile tile = { .first = first, .n = n, .n_dims = whole->view.n_dims };

  memcpy (tile.shape, whole->view.shape, sizeof (gint64) * (gsize) whole->view.n_dims);
  return tile;
}

/* The rows of the contiguous @whole that @tile says. */
static EbbTensor *
new_rows (EbbTensor *whole,
          const Tile *tile)
{
  const gint64 columns = whole->view.shape[whole->view.n_dims - 1];
  gint64 shape[EBB_MAX_DIMS];

  for (int i = 0; i < whole->view.n_dims; i++)
    shape[i] = 1;
  shape[whole->view.n_dims - 2] = tile->n;
  shape[whole->view.n_dims - 1] = columns;
  return ebb_tensor_new_view (whole->storage, whole->offset + tile->first * columns, shape, NULL,
                              (guint) whole->view.n_dims, whole->view.dtype);
}

static EbbTensor *
new_whole (EbbTensor *whole)
{
  return ebb_tensor_new_view (whole->storage, whole->offset, whole->view.shape, NULL, (guint) whole->view.n_dims,
                              whole->view.dtype);
}

/* -- taking -------------------------------------------------------------------------------------------------------- */

/* The gradient of the input, in memory that may be overwritten. The last tile makes it and those before it fill it in,
 * for backward goes from the last tile to the first. */
static EbbTensor *
take_input_grad (EbbBackward *ctx,
                 const Tile *tile,
                 GError **error)
{
  const gboolean is_last = ctx->n_outputs == 1;
  EbbTensor *like = ctx->grad_outputs[0], *dx;

  if (!is_last && ctx->grad_outputs[1] != NULL)
    {
      g_autoptr (EbbTensor) rest = ebb_backward_take_grad (ctx, 1, ctx->grad_outputs[1]->view.dtype, error);

      if (rest == NULL || ebb_tensor_is_unshared (rest))
        return g_steal_pointer (&rest);
      return ebb_tensor_convert (rest, rest->view.dtype, error);
    }
  dx = ebb_tensor_new_uninitialized (tile->shape, (guint) tile->n_dims, like->view.dtype, EBB_DEVICE_OF (like), error);
  if (dx != NULL && !is_last && !ebb_launch_fill (dx, 0.0, error))
    g_clear_pointer (&dx, ebb_tensor_unref);
  return dx;
}

static gboolean
take_backward (EbbBackward *ctx,
               GError **error)
{
  g_autoptr (EbbTensor) part = NULL;
  Tile tile;
  EbbTensor *dx;

  if (ctx->grad_outputs[0] == NULL && (ctx->n_outputs == 1 || ctx->grad_outputs[1] == NULL))
    return TRUE;
  memcpy (&tile, ctx->extra_i, sizeof tile);
  ctx->grad_inputs[0] = dx = take_input_grad (ctx, &tile, error);
  if (dx == NULL)
    return FALSE;
  part = new_rows (dx, &tile);
  return ctx->grad_outputs[0] != NULL ? ebb_launch_copy (ctx->grad_outputs[0], part, error)
                                      : ebb_launch_fill (part, 0.0, error);
}

static const EbbOp take_op = { "take_tile", EBB_OP_VIEW, EBB_N_KERNELS, NULL, take_backward };

EbbTensor *
ebb_tile_take (EbbTensor **rest,
               gint64 first,
               gint64 n,
               GError **error)
{
  g_autoptr (EbbTensor) x = g_steal_pointer (rest);
  const Tile tile = tile_of (x, first, n);
  EbbOpCall call;

  if (!ebb_op_begin (&call, &take_op, error, 1, x))
    return NULL;
  memcpy (call.extra.i, &tile, sizeof tile);
  call.outputs[call.n_outputs++] = new_rows (x, &tile);
  if (first + n < ebb_tile_count_rows (x))
    call.outputs[call.n_outputs++] = new_whole (x);
  if (!ebb_op_finish_views (&call, error))
    return NULL;
  if (call.n_outputs == 2)
    *rest = call.outputs[1];
  return call.outputs[0];
}

/* -- putting ------------------------------------------------------------------------------------------------------- */

/* The gradient of a tile is a view of that of the whole, which goes on to the tiles before. */
static gboolean
put_backward (EbbBackward *ctx,
              GError **error)
{
  g_autoptr (EbbTensor) dy = NULL;
  Tile tile;

  if (ctx->grad_outputs[0] == NULL)
    return TRUE;
  dy = ebb_backward_take_grad (ctx, 0, ctx->grad_outputs[0]->view.dtype, error);
  if (dy == NULL)
    return FALSE;
  memcpy (&tile, ctx->extra_i, sizeof tile);
  if (ctx->needs & 2)
    ctx->grad_inputs[1] = new_rows (dy, &tile);
  if (ctx->needs & 1)
    ctx->grad_inputs[0] = g_steal_pointer (&dy);
  return TRUE;
}

static const EbbOp put_op = { "put_tile", EBB_OP_VIEW, EBB_N_KERNELS, NULL, put_backward };

gboolean
ebb_tile_put (EbbTensor **whole,
              EbbTensor *result,
              gint64 first,
              GError **error)
{
  g_autoptr (EbbTensor) y = g_steal_pointer (whole);
  const Tile tile = tile_of (y, first, ebb_tile_count_rows (result));
  g_autoptr (EbbTensor) part = new_rows (y, &tile);
  EbbOpCall call;

  if (!ebb_op_begin (&call, &put_op, error, 2, y, result))
    return FALSE;
  if (!ebb_launch_copy (result, part, error))
    return ebb_op_clear (&call);
  if (G_UNLIKELY (ebb_storage_is_dry (y->storage)))
    y->storage->no_data = TRUE;
  memcpy (call.extra.i, &tile, sizeof tile);
  *whole = ebb_op_finish_view (&call, new_whole (y), error);
  return *whole != NULL;
}
