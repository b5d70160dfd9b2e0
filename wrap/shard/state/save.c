/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/state-dict.h"

#include "dist/init.h"
#include "dist/agree-private.h"
#include "nn/args-private.h"
#include "nn/module-instance-private.h"
#include "nn/files/state-file-private.h"
#include "nn/state/training-state-private.h"
#include "tensor/error-private.h"
#include "tensor/util/atomic-file-private.h"
#include "wrap/shard/state/state-private.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>

/* Saves a state to a folder. The ranks exchange which ranges they hold; each range is saved by the first rank that
 * holds it. Each rank writes its files under names that no earlier save has. Once all of them are on the disk, rank 0
 * replaces the index, and only then removes the files of states that don't stay. So there is always an index whose
 * files all exist. Rank 0 begins the index, as an unfinished file, before any rank writes: so files without an index
 * belong to a first save that was interrupted, and not to a state whose index was lost. A process alone is a group of
 * one rank. */

typedef struct
{
  EbbProcessGroup *group;
  const char *folder;
  guint rank, n_ranks;
  guint keep; /* states in the folder, the new one counted */
  EbbOptimizer *optimizer;
  EbbArgs *training;    /* a tree of this rank's; NULL: none */
  GArray *entries;      /* of the module; NULL: none */
  GArray *items;        /* of the optimizer */
  EbbArgs *rest;        /* of the optimizer's state; NULL: none */
  EbbShardIndex *index; /* of all ranks */
  GPtrArray *written;   /* paths */
  EbbAtomicFile file;   /* rank 0: the new index */
  char *replaced;       /* rank 0: the text of the index before; NULL: none */
  gint64 replaced_save;
} Saving;

/* @part: of the module, beside the names in @trained. */
static gboolean save_state (Saving *self,
                            EbbModule *module,
                            EbbStatePart part,
                            GHashTable *trained,
                            GError **error);
static gboolean save_training (EbbTrainingState *training,
                               EbbProcessGroup *group,
                               guint keep,
                               const char *folder,
                               gint64 step,
                               GError **error);

/**
 * ebb_save_sharded_state:
 * @module: a module: fully sharded, replicated, tensor-parallel, or none of these
 * @optimizer: (nullable): the optimizer whose state is saved with it
 * @folder: (type filename): a folder that all ranks see, made if it does not exist
 * @error: return location for an error
 *
 * Saves each rank's shards to safetensors files of that rank, for the third save of four ranks
 * `model-00000003-00001-of-00004.safetensors` and likewise `optimizer-` and `state-`, and an index of all of them,
 * `index.json`: the shape and dtype of each tensor, how tensor-parallel ranks split it, and which of its elements are
 * in which file. Tensors that several ranks hold alike (buffers, replicated parameters) are saved once. Nothing is
 * gathered, so saving needs no additional memory.
 *
 * A file appears under its name when it is complete and on the disk. Rank 0 replaces the index when all ranks are done,
 * and then removes the files of earlier saves. So the folder always holds a complete state: if a rank fails, all ranks
 * fail with its error, and the state before is still there.
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

  return save_state (&(Saving){ .group = ebb_process_group_get_default (),
                                .folder = folder,
                                .keep = 1,
                                .optimizer = optimizer },
                     module, EBB_STATE_ALL, NULL, error);
}

/**
 * ebb_training_state_save:
 * @self: what is to be saved
 * @folder: (type filename): a folder, made if it does not exist
 * @step: how many steps were taken, from 0 to 2^53
 * @error: return location for an error
 *
 * Saves the state of the module, the optimizer, the place in the data, the random generators (this thread's default
 * one, those of its #EbbGeneratorTracker and those added), #EbbTrainingState:config and #EbbTrainingState:values in the
 * files of ebb_save_sharded_state(), with this process as the only rank. The new state counts once all of it has
 * reached the disk; only then older ones go, but for the newest #EbbTrainingState:keep. So whenever the machine stops,
 * a whole state is left. What killed saves have left is removed first. See #EbbFolderLock for programs that may be
 * started twice.
 *
 * Returns: %FALSE with %EBB_ERROR_IO if it can't be written, %EBB_ERROR_INVALID_ARGUMENT if @step is out of range,
 *   %EBB_ERROR_STATE if #EbbTrainingState:values hold what can't be saved; older states are still there
 */
gboolean
ebb_training_state_save (EbbTrainingState *self,
                         const char *folder,
                         gint64 step,
                         GError **error)
{
  g_autoptr (EbbProcessGroup) alone = NULL;

  if (!EBB_MAY_BEGIN (error, self, folder))
    return FALSE;
  g_return_val_if_fail (EBB_IS_TRAINING_STATE (self), FALSE);

  if (self->module != NULL
      && (!ebb_module_check_full (self->module, TRUE, "save it by ebb_training_state_save_sharded()", error)
          || !ebb_module_check_not_tensor_parallel (self->module, "save it by ebb_training_state_save_sharded()",
                                                    error)))
    return FALSE;
  alone = ebb_single_group_new ();
  return save_training (self, alone, self->keep, folder, step, error);
}

/**
 * ebb_training_state_save_sharded:
 * @self: the training state; on each rank its own
 * @folder: (type filename): a folder that all ranks see, made if it does not exist
 * @step: how many steps were taken
 * @error: return location for an error
 *
 * Saves a training run on many ranks: module and optimizer as ebb_save_sharded_state() does, and for each rank the rest
 * that ebb_training_state_save() saves: random generators, the position in the data, config and values. One state is
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
  if (!EBB_MAY_BEGIN (error, self, folder))
    return FALSE;
  g_return_val_if_fail (EBB_IS_TRAINING_STATE (self), FALSE);

  return save_training (self, ebb_process_group_get_default (), 1, folder, step, error);
}

static gboolean
save_training (EbbTrainingState *training,
               EbbProcessGroup *group,
               guint keep,
               const char *folder,
               gint64 step,
               GError **error)
{
  g_autoptr (EbbArgs) rest = NULL;
  GHashTable *trained;

  if (!ebb_training_state_check_step (step, error))
    return FALSE;
  trained = ebb_training_state_note_trained (training);
  if (!ebb_state_find_base (training, trained, group, error))
    return FALSE;
  rest = ebb_training_state_get_rest (training, step);
  return save_state (&(Saving){ .group = group,
                                .folder = folder,
                                .keep = keep,
                                .optimizer = training->optimizer,
                                .training = rest },
                     training->module, training->trained_only ? EBB_STATE_TRAINED : EBB_STATE_ALL, trained, error);
}

/* -- the folder ---------------------------------------------------------------------------------------------------- */

static gboolean
is_unfinished_index (const char *name)
{
  return g_str_has_prefix (name, EBB_SHARD_INDEX_FILE ".") && g_str_has_suffix (name, EBB_ATOMIC_FILE_SUFFIX);
}

/* Removes the files of interrupted saves and of older states before this save needs the space, or all of them if there
 * is an unfinished index alone, which is removed after them, when the new one is begun. Two states stay even if @keep
 * is 1: the newest may turn out to be damaged. */
static gboolean
remove_interrupted (Saving *self,
                    char **names,
                    GError **error)
{
  gboolean has_index = g_strv_contains ((const char *const *) names, EBB_SHARD_INDEX_FILE), is_unfinished = FALSE;
  GError *failure = NULL;
  g_autofree char *text = has_index ? ebb_shard_source_read_index (self->folder, EBB_SHARD_INDEX_FILE, &failure) : NULL;
  g_autoptr (EbbShardIndex) index = text != NULL ? ebb_shard_index_parse (text, EBB_SHARD_INDEX_FILE, NULL) : NULL;

  if (failure != NULL && !g_error_matches (failure, EBB_ERROR, EBB_ERROR_FORMAT))
    return ebb_fail_with (error, failure);
  g_clear_error (&failure);
  for (guint i = 0; names[i] != NULL; i++)
    is_unfinished = is_unfinished || is_unfinished_index (names[i]);
  if (index == NULL && (has_index || !is_unfinished))
    return TRUE;
  self->replaced = g_steal_pointer (&text);
  self->replaced_save = index != NULL ? index->save : 0;
  ebb_shard_folder_clean (self->folder, names, self->replaced_save, MAX (self->keep, 2));
  return TRUE;
}

/* Prepares the folder on rank 0; returns a number that no file in it has, or 0. */
static gint64
begin (Saving *self,
       GError **error)
{
  g_autofree char *path = g_build_filename (self->folder, EBB_SHARD_INDEX_FILE, NULL);
  g_auto (GStrv) names = NULL;

  if (g_mkdir_with_parents (self->folder, 0777) != 0)
    {
      const int number = errno;
      g_autofree char *shown = ebb_escape_text (self->folder);

      g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "can't make the folder %s: %s", shown, g_strerror (number));
      return 0;
    }
  names = ebb_list_folder (self->folder, error);
  return names != NULL && remove_interrupted (self, names, error) && ebb_atomic_file_open (&self->file, path, error)
             ? ebb_shard_folder_find_last (names) + 1
             : 0;
}

/* All ranks take rank 0's number for this save. */
static gboolean
choose_number (Saving *self,
               gint64 *number,
               GError **error)
{
  GError *failure = NULL;
  gint64 own = self->rank == 0 ? begin (self, &failure) : 0;
  g_autofree char *text = NULL;
  g_auto (GStrv) texts = NULL;

  if (!ebb_agree_no_failure (self->group, failure, error))
    return FALSE;
  text = self->rank == 0 ? g_strdup_printf ("%" G_GINT64_FORMAT, own) : g_strdup ("");
  texts = ebb_agree_gather_texts (self->group, text, error);
  if (texts == NULL)
    return FALSE;
  *number = g_ascii_strtoll (texts[0], NULL, 10);
  return TRUE;
}

/* -- ranges of all ranks ------------------------------------------------------------------------------------------- */

static gboolean
list_optimizer (Saving *self,
                EbbShardIndex *index,
                GError **error)
{
  g_autoptr (EbbArgs) state = ebb_optimizer_get_state (self->optimizer);

  index->has_files[EBB_SHARD_FILE_OPTIMIZER] = TRUE;
  self->rest = ebb_optimizer_state_split (state, self->items, error);
  return self->rest != NULL
         && ebb_optimizer_items_describe (self->optimizer, self->items, self->rank, index, error);
}

/* The index of the ranges that this rank holds, as text; "" if this rank fails. */
static char *
list_own (Saving *self,
          GError **error)
{
  g_autoptr (EbbShardIndex) index = ebb_shard_index_new (self->index->save, self->n_ranks);

  index->has_files[EBB_SHARD_FILE_STATE] = TRUE;
  if (self->entries != NULL && !ebb_state_check_released (self->entries, error))
    return g_strdup ("");
  if (self->entries != NULL)
    ebb_state_entries_describe (self->entries, self->rank, index);
  if (self->optimizer != NULL && !list_optimizer (self, index, error))
    return g_strdup ("");
  return ebb_shard_index_to_text (index);
}

/* Merges the indices of all ranks; FALSE without an error if another rank has failed. */
static gboolean
merge_indices (Saving *self,
               char **texts,
               GError **error)
{
  for (guint r = 0; texts[r] != NULL; r++)
    if (*texts[r] == '\0' || !ebb_shard_index_merge_text (self->index, texts[r], r, error))
      return FALSE;
  ebb_shard_index_drop_duplicates (self->index);
  return ebb_shard_index_check (self->index, "the state of all ranks", error);
}

/* -- this rank's files --------------------------------------------------------------------------------------------- */

/* The path of a file that is about to be written. */
static const char *
begin_file (Saving *self,
            EbbShardFile kind)
{
  g_autofree char *name = ebb_shard_file_make_name (kind, self->index->save, self->rank, self->n_ranks);
  char *path = g_build_filename (self->folder, name, NULL);

  g_ptr_array_add (self->written, path);
  return path;
}

/* Adds @tensor, if this rank is the one to save its range. */
static void
add_tensor (Saving *self,
            EbbShardFile table,
            const char *name,
            EbbTensor *tensor,
            EbbArgs *tensors)
{
  const EbbShardRecord *record = ebb_shard_index_find (self->index, table, name);

  for (guint r = 0; record != NULL && r < record->ranges->len; r++)
    if (g_array_index (record->ranges, EbbSavedRange, r).rank == self->rank)
      {
        ebb_args_add_tensor (tensors, name, tensor);
        return;
      }
}

static gboolean
write_own (Saving *self,
           GError **error)
{
  g_autoptr (EbbArgs) model = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) optimizer = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) tree = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; self->entries != NULL && i < self->entries->len; i++)
    {
      const EbbStateEntry *entry = &g_array_index (self->entries, EbbStateEntry, i);

      if (entry->first == i)
        add_tensor (self, EBB_SHARD_FILE_MODEL, entry->name, entry->shard.tensor, model);
    }
  for (guint i = 0; i < self->items->len; i++)
    {
      const EbbOptimizerItem *item = &g_array_index (self->items, EbbOptimizerItem, i);
      g_autofree char *name = ebb_optimizer_item_make_name (item);

      add_tensor (self, EBB_SHARD_FILE_OPTIMIZER, name, item->tensor, optimizer);
    }
  if ((self->entries != NULL && !ebb_shard_file_write (begin_file (self, EBB_SHARD_FILE_MODEL), model, error))
      || (self->rest != NULL
          && !ebb_shard_file_write (begin_file (self, EBB_SHARD_FILE_OPTIMIZER), optimizer, error)))
    return FALSE;
  if (self->rest != NULL)
    ebb_args_add_args (tree, "optimizer", self->rest);
  if (self->training != NULL)
    ebb_args_add_args (tree, "training", self->training);
  return ebb_state_file_write (begin_file (self, EBB_SHARD_FILE_STATE), tree, error);
}

static void
remove_own (Saving *self)
{
  for (guint i = 0; i < self->written->len; i++)
    g_unlink (g_ptr_array_index (self->written, i));
}

/* -- the index ----------------------------------------------------------------------------------------------------- */

/* The index of the state before stays under another name, if that state does. */
static gboolean
copy_replaced (Saving *self,
               GError **error)
{
  g_autofree char *name = ebb_shard_index_make_copy_name (self->replaced_save);
  g_autofree char *path = g_build_filename (self->folder, name, NULL);
  EbbAtomicFile file;

  if (self->replaced == NULL || self->keep == 1)
    return TRUE;
  if (!ebb_atomic_file_open (&file, path, error))
    return FALSE;
  if (ebb_atomic_file_write (&file, self->replaced, strlen (self->replaced), error))
    return ebb_atomic_file_commit (&file, error);
  ebb_atomic_file_abort (&file);
  return FALSE;
}

static gboolean
write_index (Saving *self,
             GError **error)
{
  g_autofree char *text = ebb_shard_index_to_text (self->index);

  return copy_replaced (self, error) && ebb_atomic_file_write (&self->file, text, strlen (text), error)
         && ebb_atomic_file_commit (&self->file, error);
}

/* The index may be in place even if writing it failed, and then its files must stay. */
static gboolean
index_is_in_place (Saving *self)
{
  g_autofree char *text = ebb_shard_source_read_index (self->folder, EBB_SHARD_INDEX_FILE, NULL);
  g_autoptr (EbbShardIndex) index = text != NULL ? ebb_shard_index_parse (text, "", NULL) : NULL;

  return index != NULL && index->save == self->index->save;
}

#define MAY_REMOVE 'r'
#define MUST_KEEP 'k'

/* Rank 0 writes the index and reports the outcome. */
static gboolean
publish (Saving *self,
         GError **error)
{
  g_autoptr (GError) failure = NULL;
  g_autofree char *outcome = g_strdup ("");
  g_auto (GStrv) outcomes = NULL;

  if (self->rank == 0 && !write_index (self, &failure))
    {
      g_free (outcome);
      outcome = g_strdup_printf ("%c%d %s", index_is_in_place (self) ? MUST_KEEP : MAY_REMOVE, failure->code,
                                 failure->message);
    }
  outcomes = ebb_agree_gather_texts (self->group, outcome, error);
  /* Without an answer it is unknown whether the index names these files. */
  if (outcomes == NULL)
    return FALSE;
  if (*outcomes[0] == '\0')
    return TRUE;
  if (*outcomes[0] == MAY_REMOVE)
    remove_own (self);
  if (failure != NULL)
    g_propagate_error (error, g_steal_pointer (&failure));
  else
    {
      char *message;
      int code = (int) strtol (outcomes[0] + 1, &message, 10);

      g_set_error (error, EBB_ERROR, code, "rank 0: %s", g_strchug (message));
    }
  return FALSE;
}

static gboolean
save (Saving *self,
      GError **error)
{
  GError *failure = NULL;
  g_autoptr (GError) agreed = NULL;
  g_auto (GStrv) names = NULL;
  g_autofree char *own = list_own (self, &failure);
  g_auto (GStrv) texts = NULL;
  EbbShardMesh mesh;

  if (!ebb_shard_mesh_init (&mesh, self->group, self->entries, self->optimizer, own, &texts, error))
    {
      g_clear_error (&failure);
      return FALSE;
    }
  if (mesh.n_tensor > 1)
    self->index->mesh = g_steal_pointer (&mesh.ranks);
  else
    g_free (mesh.ranks);
  if (failure == NULL && merge_indices (self, texts, &failure))
    write_own (self, &failure);
  if (!ebb_agree_no_failure (self->group, failure, &agreed))
    {
      /* No rank goes on to the index without all others, so nothing names these files. */
      remove_own (self);
      return ebb_fail_with (error, g_steal_pointer (&agreed));
    }
  /* The index is replaced only if no rank was lost after it had written its files. */
  if (!ebb_agree_no_failure (self->group, NULL, error) || !publish (self, error))
    return FALSE;
  if (self->rank == 0 && (names = ebb_list_folder (self->folder, NULL)) != NULL)
    {
      ebb_shard_folder_clean (self->folder, names, self->index->save, self->keep);
      ebb_shard_folder_remove_old (self->folder, names);
    }
  return TRUE;
}

/* After a failure the unfinished index stays as long as there is a file that only it explains: other ranks may not have
 * removed theirs yet. */
static void
end (Saving *self)
{
  g_auto (GStrv) names = ebb_list_folder (self->folder, NULL);

  if (names != NULL
      && (g_strv_contains ((const char *const *) names, EBB_SHARD_INDEX_FILE)
          || ebb_shard_folder_find_last (names) == 0))
    ebb_atomic_file_abort (&self->file);
  else
    ebb_atomic_file_leave (&self->file);
}

static gboolean
save_state (Saving *self,
            EbbModule *module,
            EbbStatePart part,
            GHashTable *trained,
            GError **error)
{
  gint64 number;
  gboolean ok;

  self->rank = ebb_process_group_get_rank (self->group);
  self->n_ranks = ebb_process_group_get_size (self->group);
  self->file.fd = -1;
  ok = choose_number (self, &number, error);
  if (ok)
    {
      self->index = ebb_shard_index_new (number, self->n_ranks);
      self->written = g_ptr_array_new_with_free_func (g_free);
      self->entries = module != NULL ? ebb_state_entries_new_part (module, part, trained) : NULL;
      self->items = ebb_optimizer_items_new ();
      ok = save (self, error);
      g_ptr_array_unref (self->written);
      g_clear_pointer (&self->entries, g_array_unref);
      g_array_unref (self->items);
      g_clear_pointer (&self->rest, ebb_args_unref);
      ebb_shard_index_free (self->index);
    }
  if (self->file.fd >= 0)
    end (self);
  g_free (self->replaced);
  return ok;
}
