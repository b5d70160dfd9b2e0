/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Wraps modules that work row by row so that they are called on tiles of their rows, each of which is checkpointed. */
#include "wrap/checkpoint/tiles.h"

#include "nn/args-private.h"
#include "nn/layers/module-list.h"
#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/shape.h"
#include "wrap/checkpoint/frame-private.h"
#include "wrap/checkpoint/tile-rows-private.h"

#define TILE_INTERCEPTOR "tiles"

typedef struct
{
  gint64 n_rows;               /* of a tile; 0: the default; another thread may set it */
  EbbCheckpointTarget *target; /* of the frames of all tiles: the module behind this interceptor */
} Tiles;

/* -- one call ------------------------------------------------------------------------------------------------------ */

/* A call of a module while it goes from tile to tile. */
typedef struct
{
  EbbOpObserver observer; /* of generators; first */
  Tiles *tiles;
  EbbModule *module;
  const EbbForwardChain *inside;
  EbbArgs *args;
  gint64 n_rows;
  EbbTensor *rest;  /* where the next tile is taken from; NULL: all are taken */
  EbbTensor *whole; /* the results; NULL: none yet */
  GArray *draws;    /* of EbbDraw: where generators were before the first tile drew from them */
} Call;

static EbbTensor *
keep_tensor (EbbTensor *tensor,
             gpointer location,
             GError **error)
{
  *(EbbTensor **) location = tensor;
  return ebb_tensor_ref (tensor);
}

static EbbTensor *
replace_tensor (EbbTensor *tensor,
                gpointer tile,
                GError **error)
{
  return ebb_tensor_ref (tile);
}

/* The one tensor of the arguments, not owned. */
static EbbTensor *
find_input (EbbModule *module,
            EbbArgs *args,
            GError **error)
{
  const guint n = ebb_args_get_n_tensors (args);
  g_autoptr (EbbArgs) same = NULL;
  EbbTensor *input = NULL;

  if (n == 1)
    same = ebb_args_map_tensors (args, keep_tensor, &input, error);
  else
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                 "%s: it is called with %u tensors; a module in tiles takes one, whose rows the tiles divide",
                 ebb_module_get_type_name (module), n);
  return input;
}

static void
note_draw (EbbOpObserver *observer,
           EbbGenerator *generator)
{
  ebb_draws_note (((Call *) observer)->draws, generator);
}

/* FALSE with @error unless the tile's numbers belong to its rows. */
static gboolean
check_draws (Call *call,
             GError **error)
{
  return !ebb_thread.draws_torn
         || ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                      "%s: it draws random numbers that can't be divided among its rows as an untiled call does: draw "
                      "as many for each row, and make tiles of a multiple of 4 rows",
                      ebb_module_get_type_name (call->module));
}

/* The module's result for one tile, under the modes that say which rows it has. */
static EbbArgs *
call_for_rows (Call *call,
               EbbArgs *args,
               gint64 first,
               gint64 n,
               GError **error)
{
  const EbbRowTile outer = ebb_modes.tile;
  const gboolean were_torn = ebb_thread.draws_torn;
  EbbArgs *result;

  ebb_modes.tile = (EbbRowTile){ outer.first + first, n, outer.of != 0 ? outer.of : call->n_rows };
  ebb_thread.draws_torn = FALSE;
  ebb_thread_push_observer (&call->observer);
  if (ebb_modes.no_grad)
    result = ebb_forward_chain_call (call->inside, call->module, args, error);
  else
    result = ebb_checkpoint_frame_run (call->tiles->target, call->inside, args, error);
  ebb_thread_pop_observer (&call->observer);
  ebb_modes.tile = outer;
  if (result != NULL && !check_draws (call, error))
    g_clear_pointer (&result, ebb_args_unref);
  ebb_thread.draws_torn = were_torn;
  return result;
}

/* A result has a row for each row of the tile. */
static gboolean
check_result (Call *call,
              EbbTensor *tile,
              EbbTensor *result,
              GError **error)
{
  const int n_dims = tile->view.n_dims;
  gboolean fits = result->view.n_dims == n_dims;

  for (int i = 0; fits && i + 1 < n_dims; i++)
    fits = result->view.shape[i] == tile->view.shape[i];
  /* All tiles give the same dtype and columns. */
  if (fits && call->whole != NULL)
    fits = result->view.dtype == call->whole->view.dtype
           && result->view.shape[n_dims - 1] == call->whole->view.shape[n_dims - 1];
  if (fits)
    return TRUE;
  return ebb_fail (error, EBB_ERROR_SHAPE,
                   "%s: it made %s of a tile %s; a module in tiles gives a row for each of its rows, all of one size "
                   "and dtype",
                   ebb_module_get_type_name (call->module), ebb_show_shape (result), ebb_show_shape (tile));
}

static EbbTensor *
new_whole_for (EbbTensor *input,
               EbbTensor *result,
               GError **error)
{
  EbbView view = input->view;

  view.shape[view.n_dims - 1] = result->view.shape[view.n_dims - 1];
  return ebb_tensor_new_uninitialized (view.shape, (guint) view.n_dims, result->view.dtype, result->storage->device,
                                       error);
}

static gboolean
run_tile (Call *call,
          EbbTensor *input,
          gint64 first,
          gint64 n,
          GError **error)
{
  g_autoptr (EbbTensor) tile = ebb_tile_take (&call->rest, first, n, error);
  g_autoptr (EbbTensor) result = NULL;
  g_autoptr (EbbArgs) args = NULL;
  g_autoptr (EbbArgs) results = NULL;

  if (tile != NULL)
    args = ebb_args_map_tensors (call->args, replace_tensor, tile, error);
  if (args != NULL)
    results = call_for_rows (call, args, first, n, error);
  result = ebb_module_take_only_tensor (call->module, results, error);
  g_clear_pointer (&results, ebb_args_unref);
  if (result == NULL || !check_result (call, tile, result, error))
    return FALSE;
  if (call->whole == NULL && (call->whole = new_whole_for (input, result, error)) == NULL)
    return FALSE;
  return ebb_tile_put (&call->whole, result, first, error);
}

/* Tiles of @of_tile rows; the last one has the rows that are left over as well. */
static gboolean
run_tiles (Call *call,
           EbbTensor *input,
           gint64 of_tile,
           GError **error)
{
  const gint64 n_tiles = call->n_rows / of_tile;

  for (gint64 i = 0; i < n_tiles; i++)
    {
      const gint64 first = i * of_tile, n = i + 1 < n_tiles ? of_tile : call->n_rows - first;

      /* Each tile begins where the call began: its numbers lie behind those of the rows before it. */
      ebb_draws_put_back (call->draws);
      if (!run_tile (call, input, first, n, error))
        return FALSE;
    }
  return TRUE;
}

/* A recompute that has all it needs made no more than the first tiles of the result, which nobody must read. */
static EbbTensor *
finish (Call *call,
        GError **error)
{
  EbbTensor *placeholder;

  if (G_LIKELY (!ebb_is_stopped ()) || call->whole->storage->placeholder)
    return g_steal_pointer (&call->whole);
  placeholder = ebb_tensor_new_uninitialized (call->whole->view.shape, (guint) call->whole->view.n_dims,
                                              call->whole->view.dtype, call->whole->storage->device, error);
  if (placeholder != NULL && call->whole->node != NULL)
    {
      placeholder->node = ebb_node_ref (call->whole->node);
      placeholder->output_index = call->whole->output_index;
    }
  return placeholder;
}

static EbbArgs *
call_in_tiles (Call *call,
               EbbTensor *input,
               gint64 of_tile,
               GError **error)
{
  g_autoptr (EbbTensor) rows = ebb_contiguous (input, error);
  g_autoptr (EbbTensor) output = NULL;

  if (rows == NULL)
    return NULL;
  call->observer.draw = note_draw;
  call->draws = ebb_draws_new ();
  call->rest = ebb_tensor_ref (rows);
  if (run_tiles (call, rows, of_tile, error))
    output = finish (call, error);
  else
    ebb_draws_put_back (call->draws);
  g_array_unref (call->draws);
  g_clear_pointer (&call->rest, ebb_tensor_unref);
  g_clear_pointer (&call->whole, ebb_tensor_unref);
  return output != NULL ? ebb_args_new_for_tensor (output) : NULL;
}

/* The number of threads may change from call to call. */
static gint64
get_n_rows (Tiles *self)
{
  const gint64 n = __atomic_load_n (&self->n_rows, __ATOMIC_RELAXED);

  return n != 0 ? n : ebb_tile_get_least_rows ();
}

static gboolean
is_idle (gpointer user_data)
{
  return GPOINTER_TO_UINT (ebb_modes.slots[ebb_checkpoint_slot]) >= EBB_CHECKPOINT_DISABLED;
}

static EbbArgs *
tiled_forward (EbbModule *module,
               EbbArgs *args,
               const EbbForwardChain *inside,
               gpointer user_data,
               GError **error)
{
  Tiles *tiles = user_data;
  const gint64 of_tile = get_n_rows (tiles);
  Call call = { .tiles = tiles, .module = module, .inside = inside, .args = args };
  EbbTensor *input;

  if (is_idle (tiles))
    return ebb_forward_chain_call (inside, module, args, error);
  input = find_input (module, args, error);
  if (input == NULL)
    return NULL;
  call.n_rows = ebb_tile_count_rows (input);
  if (input->view.n_dims < 2 || call.n_rows / of_tile < 2)
    return ebb_forward_chain_call (inside, module, args, error);
  return call_in_tiles (&call, input, of_tile, error);
}

/* -- wrapping ------------------------------------------------------------------------------------------------------ */

static void
tiles_free (gpointer data)
{
  Tiles *self = data;

  ebb_checkpoint_target_unref (self->target);
  g_free (self);
}

static Tiles *
find (EbbModule *module)
{
  return ebb_module_get_interceptor_data (module, ebb_module_find_interceptor (module, TILE_INTERCEPTOR));
}

static gboolean
check_rows (gint64 n_rows,
            GError **error)
{
  return n_rows >= 0
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "tiles of %" G_GINT64_FORMAT " rows; a tile has one or more, or 0 for %d for each thread", n_rows,
                      EBB_HOST_ROW_BLOCK);
}

static gboolean
check_module (EbbModule *module,
              GError **error)
{
  if (EBB_IS_MODULE_LIST (module))
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                     "%s: tiles would do nothing, since a list is never called itself: wrap the modules of the list",
                     ebb_module_get_type_name (module));
  if (ebb_module_get_parameter_owner (module) != NULL)
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                     "%s: its parameters are sharded already and would be gathered for each tile: wrap it before "
                     "ebb_fully_shard ()",
                     ebb_module_get_type_name (module));
  return TRUE;
}

static void
wrap (EbbModule *module,
      gint64 n_rows)
{
  Tiles *self = find (module);

  if (self != NULL)
    {
      __atomic_store_n (&self->n_rows, n_rows, __ATOMIC_RELAXED);
      return;
    }
  self = g_new0 (Tiles, 1);
  self->n_rows = n_rows;
  self->target = ebb_checkpoint_target_new (module, NULL);
  ebb_module_add_idle_interceptor (module, TILE_INTERCEPTOR, tiled_forward, is_idle, self, tiles_free,
                                   &self->target->interceptor);
}

/**
 * ebb_tile_wrapper:
 * @module: a module that works row by row, such as an #EbbMlp: each row of its result depends on that row of its one
 *   tensor alone, where a row is what the last dimension holds
 * @n_rows: the rows of a tile; 0 for ebb_tile_get_least_rows() of each call. The last tile has the rows that are left
 *   over as well
 * @error: return location for an error
 *
 * Wraps a module in place: from now on, it is called on one tile of its rows after the other, and in the backward pass
 * each tile is recomputed before its gradients are. So the activations inside the module exist for one tile alone,
 * forward and backward (Bekman et al., "Arctic Long Sequence Training", 2025, call it TiledMLP). The module's type,
 * properties, parameter names and state dict do not change.
 *
 * With at least ebb_tile_get_least_rows() rows, a multiple of ebb_tile_get_row_block(), results, gradients and random
 * numbers are those of an untiled call, bit for bit, on the CPU, where parameters are f32 and the module consists of
 * linear layers and of ops that work element by element. With other numbers they differ by rounding. On a GPU, and in
 * other cases that docs/checkpointing.md names, gradients of parameters are added in another order. A call with fewer
 * rows than two tiles is not tiled.
 *
 * Between ebb_push_checkpointing_disabled() and its pop, it does nothing. Without gradients the module is called on
 * tiles that are not recomputed. Wrapping a module again sets another number of rows.
 *
 * A call fails with %EBB_ERROR_INVALID_ARGUMENT if it has no tensor or several, with %EBB_ERROR_SHAPE if the result has
 * not as many rows as the tensor, and with %EBB_ERROR_NOT_SUPPORTED if the module draws random numbers that can't be
 * divided among rows.
 *
 * Returns: (transfer full) (nullable): @module; %NULL with %EBB_ERROR_INVALID_ARGUMENT for a negative number of rows,
 *   with %EBB_ERROR_NOT_SUPPORTED for an #EbbModuleList, which is never called itself, and for a module whose
 * parameters are sharded already
 */
EbbModule *
ebb_tile_wrapper (EbbModule *module,
                  gint64 n_rows,
                  GError **error)
{
  g_return_val_if_fail (module == NULL || EBB_IS_MODULE (module), NULL);

  if (!EBB_MAY_BEGIN (error, module) || !check_rows (n_rows, error) || !check_module (module, error))
    return NULL;
  wrap (module, n_rows);
  return g_object_ref (module);
}

/**
 * ebb_tile_wrap_each:
 * @root: where to look
 * @type: a type of modules that work row by row, as %EBB_TYPE_MLP
 * @n_rows: the rows of a tile: see ebb_tile_wrapper()
 * @error: return location for an error
 *
 * Wraps every module of @type (or derived from it) below @root, and @root itself, as ebb_tile_wrapper() does.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if there is none, or with another error of ebb_tile_wrapper(): then
 *   none is wrapped
 */
gboolean
ebb_tile_wrap_each (EbbModule *root,
                    GType type,
                    gint64 n_rows,
                    GError **error)
{
  g_autoptr (GPtrArray) modules = NULL;

  g_return_val_if_fail (root == NULL || EBB_IS_MODULE (root), FALSE);

  if (!EBB_MAY_BEGIN (error, root) || !check_rows (n_rows, error)
      || (modules = ebb_module_select_each (root, type, error)) == NULL)
    return FALSE;
  for (guint i = 0; i < modules->len; i++)
    if (!check_module (modules->pdata[i], error))
      return FALSE;
  for (guint i = 0; i < modules->len; i++)
    wrap (modules->pdata[i], n_rows);
  return TRUE;
}

/**
 * ebb_tile_unwrap:
 * @module: a module
 *
 * Takes the wrapper with tiles off.
 *
 * Returns: %FALSE if there is none
 */
gboolean
ebb_tile_unwrap (EbbModule *module)
{
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  return ebb_module_remove_interceptor (module, ebb_module_find_interceptor (module, TILE_INTERCEPTOR));
}

/**
 * ebb_tile_is_wrapped:
 * @module: a module
 *
 * Returns: %TRUE if @module is called in tiles
 */
gboolean
ebb_tile_is_wrapped (EbbModule *module)
{
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  return find (module) != NULL;
}

/**
 * ebb_tile_get_rows:
 * @module: a module
 *
 * Returns: the rows of a tile; 0 if @module is not called in tiles
 */
gint64
ebb_tile_get_rows (EbbModule *module)
{
  Tiles *self;

  g_return_val_if_fail (EBB_IS_MODULE (module), 0);

  self = find (module);
  return self != NULL ? get_n_rows (self) : 0;
}

/**
 * ebb_tile_get_row_block:
 *
 * Gradients of weights are sums over blocks of so many rows, in tiles or not, on the CPU.
 *
 * Returns: the number that the rows of a tile must be a multiple of, for ebb_tile_wrapper() to give every bit of an
 *   untiled call
 */
gint64
ebb_tile_get_row_block (void)
{
  return EBB_HOST_ROW_BLOCK;
}

/**
 * ebb_tile_get_least_rows:
 *
 * Smaller tiles are divided among threads in another way than an untiled call.
 *
 * Returns: the least rows of a tile with which ebb_tile_wrapper() gives every bit of an untiled call:
 *   ebb_tile_get_row_block() for each thread of ebb_set_num_threads()
 */
gint64
ebb_tile_get_least_rows (void)
{
  return (gint64) EBB_HOST_ROW_BLOCK * ebb_get_num_threads ();
}
