/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* A plan's tiles of MLPs: which sizes it may choose, and how they are put on. */
#include "wrap/plan/mlp-tiles-private.h"

#include "nn/layers/linear.h"
#include "nn/layers/mlp.h"
#include "nn/module-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "wrap/checkpoint/tiles.h"

/* What an MLP has of one of so many tiles is less than the block's input, and more of them save hardly anything. */
#define MOST_TILES 8

static gboolean
is_free (EbbModule *module,
         const char *path,
         gpointer user_data)
{
  return EBB_IS_MLP (module) && !ebb_tile_is_wrapped (module);
}

/* The MLPs of @model that have no tiles, with references. */
static GPtrArray *
find_mlps (EbbModule *model)
{
  return ebb_module_select (model, is_free, NULL);
}

/* -- bits ---------------------------------------------------------------------------------------------------------- */

/* Layers that are divided among ranks, and parameters that are, add up gradients in their own order. */
static gboolean
is_plain (EbbModule *mlp)
{
  const guint n_children = ebb_module_get_n_children (mlp);
  g_autoptr (GPtrArray) parameters = ebb_module_list_parameters (mlp);
  gboolean plain = TRUE;

  for (guint i = 0; i < n_children; i++)
    plain &= G_OBJECT_TYPE (ebb_module_peek_child (mlp, i)) == EBB_TYPE_LINEAR;
  for (guint i = 0; i < parameters->len; i++)
    plain &= ebb_tensor_get_dtype (parameters->pdata[i]) == EBB_DTYPE_F32
             && !ebb_parameter_is_sharded (parameters->pdata[i]);
  return plain;
}

gboolean
ebb_plan_mlp_tiles_keep_bits (EbbModule *model,
                              EbbDevice *device)
{
  g_autoptr (GPtrArray) mlps = find_mlps (model);
  gboolean keep = device->backend->row_block != 0;

  for (guint i = 0; i < mlps->len && keep; i++)
    keep = is_plain (mlps->pdata[i]);
  return keep;
}

gint64
ebb_plan_mlp_tiles_choose (EbbModule *model,
                           gint64 n_rows)
{
  const gint64 block = ebb_tile_get_row_block ();
  const gint64 size =
      MAX (ebb_tile_get_least_rows (), (n_rows + MOST_TILES * block - 1) / (MOST_TILES * block) * block);
  g_autoptr (GPtrArray) mlps = find_mlps (model);

  return mlps->len > 0 && size <= n_rows / 2 ? size : 0;
}

/* -- putting ------------------------------------------------------------------------------------------------------- */

/* Where no tiles keep the bits, the plan was made by somebody who allowed others. */
static gboolean
check_bits (EbbModule *model,
            GPtrArray *mlps,
            gint64 n_rows,
            GError **error)
{
  if (mlps->len == 0
      || !ebb_plan_mlp_tiles_keep_bits (model, ebb_module_find_device (mlps->pdata[0], ebb_device_get_cpu ()))
      || (n_rows >= ebb_tile_get_least_rows () && n_rows % ebb_tile_get_row_block () == 0))
    return TRUE;
  return ebb_fail (error, EBB_ERROR_STATE,
                   "the plan's tiles of %" G_GINT64_FORMAT
                   " rows would change bits with %d threads: it takes a multiple of %" G_GINT64_FORMAT
                   " rows, %" G_GINT64_FORMAT
                   " or more; plan again, or set the threads that the plan was made with by ebb_set_num_threads ()",
                   n_rows, ebb_get_num_threads (), ebb_tile_get_row_block (), ebb_tile_get_least_rows ());
}

GPtrArray *
ebb_plan_mlp_tiles_put (EbbModule *model,
                        gint64 n_rows,
                        GError **error)
{
  g_autoptr (GPtrArray) mlps = find_mlps (model);

  if (!check_bits (model, mlps, n_rows, error))
    return NULL;
  for (guint i = 0; i < mlps->len; i++)
    {
      g_autoptr (EbbModule) same = ebb_tile_wrapper (mlps->pdata[i], n_rows, error);

      if (same != NULL)
        continue;
      while (i > 0)
        ebb_tile_unwrap (mlps->pdata[--i]);
      return NULL;
    }
  return g_steal_pointer (&mlps);
}
