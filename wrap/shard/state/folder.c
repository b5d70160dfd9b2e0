/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/state-dict.h"

#include "nn/state/training-state-private.h"
#include "tensor/error-private.h"
#include "wrap/shard/state/save-private.h"

/* The folder of a sharded state, as callers see it. */

/**
 * ebb_save_sharded_state:
 * @module: a module: fully sharded, replicated, tensor-parallel, or none of these
 * @optimizer: (nullable): the optimizer whose state is saved with it
 * @folder: (type filename): a folder that all ranks see, made if it does not exist
 * @error: return location for an error
 *
 * Saves what each rank holds as safetensors files of that rank, `model-00000003-00001-of-00004.safetensors` and
 * likewise `optimizer-` and `state-` for the third save of four ranks, and an index of all of them, `index.json`: the
 * shape and dtype of each tensor, how tensor-parallel ranks have cut it, and which elements of it are in whose file.
 * What several ranks have alike (buffers, replicated parameters) is saved once. Nothing is gathered, so a rank needs no
 * more memory than it has in use.
 *
 * Each file appears as a whole, once it has reached the disk; rank 0 replaces the index when all ranks are done, and
 * then removes what earlier saves left. So the folder always holds a whole state: if a rank fails, all ranks fail with
 * its error, and the state before is still there.
 *
 * All ranks of the process' default group call it together.
 *
 * Returns: %FALSE with %EBB_ERROR_IO if it can't be written, %EBB_ERROR_PROCESS_GROUP if a rank is gone
 */
gboolean
ebb_save_sharded_state (EbbModule *module,
                        EbbOptimizer *optimizer,
                        const char *folder,
                        GError **error)
{
  if (!EBB_MAY_BEGIN (error, module, folder))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);
  g_return_val_if_fail (optimizer == NULL || EBB_IS_OPTIMIZER (optimizer), FALSE);

  return ebb_shard_save (module, optimizer, NULL, folder, error);
}

/**
 * ebb_load_sharded_state:
 * @module: a module: fully sharded, replicated, tensor-parallel, or none of these
 * @optimizer: (nullable): the optimizer whose state is loaded with it
 * @folder: (type filename): a folder that ebb_save_sharded_state() or ebb_training_state_save_sharded() wrote to
 * @error: return location for an error
 *
 * Loads such a state on any number of ranks, however the module is split, among tensor-parallel ranks too: each rank
 * reads the elements that it holds, and no more than blocks of 1 MiB around them, whose checksums are compared. One
 * process without a group loads it as well. The names must be those of the module; of a shared parameter one is enough.
 *
 * An optimizer's 8-bit moments follow blocks of the elements of a rank: they load on ranks that hold the same ranges.
 *
 * All ranks of the process' default group call it together. What does not fit or is damaged is found on all ranks
 * before anything is changed on any, but that a tensor finds no memory.
 *
 * Returns: %FALSE with %EBB_ERROR_IO if a file can't be read, %EBB_ERROR_FORMAT if one is damaged, %EBB_ERROR_STATE if
 *   the state does not fit
 */
gboolean
ebb_load_sharded_state (EbbModule *module,
                        EbbOptimizer *optimizer,
                        const char *folder,
                        GError **error)
{
  if (!EBB_MAY_BEGIN (error, module, folder))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);
  g_return_val_if_fail (optimizer == NULL || EBB_IS_OPTIMIZER (optimizer), FALSE);

  return ebb_shard_load (module, optimizer, NULL, folder, NULL, error);
}

/**
 * ebb_training_state_save_sharded:
 * @self: what is to be saved; on each rank its own
 * @folder: (type filename): a folder that all ranks see, made if it does not exist
 * @step: how many steps were taken
 * @error: return location for an error
 *
 * Saves a training on many ranks: module and optimizer as ebb_save_sharded_state() does, and of each rank what
 * ebb_training_state_save() saves besides: random generators, the place in the data, config and values. One state is
 * kept, whatever #EbbTrainingState:keep is. All ranks of the process' default group call it together.
 *
 * Returns: %FALSE with %EBB_ERROR_IO if it can't be written, %EBB_ERROR_PROCESS_GROUP if a rank is gone
 */
gboolean
ebb_training_state_save_sharded (EbbTrainingState *self,
                                 const char *folder,
                                 gint64 step,
                                 GError **error)
{
  g_autoptr (EbbModule) module = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbArgs) rest = NULL;

  if (!EBB_MAY_BEGIN (error, self, folder))
    return FALSE;
  g_return_val_if_fail (EBB_IS_TRAINING_STATE (self), FALSE);

  if (!ebb_training_state_check_step (step, error))
    return FALSE;
  g_object_get (self, "module", &module, "optimizer", &optimizer, NULL);
  rest = ebb_training_state_get_rest (self, step);
  return ebb_shard_save (module, optimizer, rest, folder, error);
}

/**
 * ebb_training_state_load_sharded:
 * @self: what is to take the state over; on each rank its own
 * @folder: (type filename): a folder that ebb_training_state_save_sharded() wrote to
 * @step: (out) (optional): return location for how many steps had been taken
 * @error: return location for an error
 *
 * Loads such a state as ebb_load_sharded_state() does. On as many ranks as saved it, of which as many are
 * tensor-parallel ones, a training goes on as it would have without a stop, bit for bit, with the generators of this
 * thread's #EbbGeneratorTracker. On another number, data rank d (ranks that share a model are one of these together)
 * takes generators, place in the data and values of data rank d modulo their number, and generators that were taken
 * before get other seeds; those of the tracker keep their own seeds and go on from the place that is saved.
 *
 * Returns: %FALSE with an error as by ebb_load_sharded_state()
 */
gboolean
ebb_training_state_load_sharded (EbbTrainingState *self,
                                 const char *folder,
                                 gint64 *step,
                                 GError **error)
{
  g_autoptr (EbbModule) module = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;

  if (step != NULL)
    *step = 0;
  if (!EBB_MAY_BEGIN (error, self, folder))
    return FALSE;
  g_return_val_if_fail (EBB_IS_TRAINING_STATE (self), FALSE);

  g_object_get (self, "module", &module, "optimizer", &optimizer, NULL);
  return ebb_shard_load (module, optimizer, self, folder, step, error);
}

/**
 * ebb_training_state_read_sharded_config:
 * @folder: (type filename): a folder that ebb_training_state_save_sharded() wrote to
 * @error: return location for an error
 *
 * Reads #EbbTrainingState:config as rank 0 has saved it, so that model and optimizer can be made by it. Any rank or
 * program may do so by itself.
 *
 * Returns: (transfer full) (nullable): the text; %NULL with an error as by ebb_load_sharded_state()
 */
char *
ebb_training_state_read_sharded_config (const char *folder,
                                        GError **error)
{
  g_autofree char *text = NULL;
  g_autoptr (EbbShardSource) source = NULL;
  g_autoptr (EbbArgs) tree = NULL;
  g_autoptr (EbbArgs) rest = NULL;
  int index;

  if (!EBB_MAY_BEGIN (error, folder))
    return NULL;
  text = ebb_shard_source_read_index (folder, error);
  source = text != NULL ? ebb_shard_source_new (folder, text, error) : NULL;
  tree = source != NULL ? ebb_shard_source_read_tree (source, 0, error) : NULL;
  index = tree != NULL ? ebb_args_find (tree, "training") : -1;
  rest = index >= 0 ? ebb_args_get_args (tree, (guint) index) : NULL;
  if (tree != NULL && rest == NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "the state saved in %s has no training", source->shown);
  return rest != NULL ? ebb_training_state_get_saved_config (rest, source->shown, error) : NULL;
}
