/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/state-dict.h"

#include "dist/init.h"
#include "dist/agree-private.h"
#include "dist/rng-tracker-private.h"
#include "nn/args-private.h"
#include "nn/module-instance-private.h"
#include "tensor/util/json-scanner-private.h"
#include "nn/state/training-state-private.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/pointwise.h"
#include "wrap/shard/state/state-private.h"

#include <string.h>

/* Loads a state on any number of ranks: each reads its own elements from the files that have them. All ranks read and
 * check everything that they need before any rank changes anything. A process alone is a group of one rank. */

static gboolean load_state (EbbProcessGroup *group,
                            EbbModule *module,
                            EbbOptimizer *optimizer,
                            EbbTrainingState *training,
                            const char *folder,
                            gint64 *step,
                            GError **error);
static gboolean use_config (gpointer self,
                            EbbShardSource *source,
                            gboolean *is_final,
                            GError **error);

/**
 * ebb_load_sharded_state:
 * @module: a module: fully sharded, replicated, tensor-parallel, or none of these
 * @optimizer: (nullable): the optimizer whose state is loaded with it
 * @folder: (type filename): a folder that ebb_save_sharded_state() or ebb_training_state_save_sharded() wrote to
 * @error: return location for an error
 *
 * Loads such a state on any number of ranks, however the module is split, over tensor-parallel ranks too: each rank
 * reads the elements that it holds, in blocks of 1 MiB, whose checksums are compared. A single process without a group
 * can load it as well. The names must be those of the module; for a shared parameter one name is enough.
 *
 * An optimizer's 8-bit moments follow blocks of a rank's elements: they load only on ranks that hold the same ranges.
 *
 * All ranks of the process' default group call it together. State that does not fit or is damaged is found on all ranks
 * before anything is changed on any; only running out of memory may come later.
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

  return load_state (ebb_process_group_get_default (), module, optimizer, NULL, folder, NULL, error);
}

/**
 * ebb_training_state_load:
 * @self: what is to take the state over
 * @folder: (type filename): a folder that ebb_training_state_save() or ebb_training_state_save_sharded() wrote to
 * @step: (out) (optional): return location for how many steps had been taken
 * @error: return location for an error
 *
 * Loads the newest state that is whole (its size and checksums are right) into the module, the optimizer, the data and
 * the generators. A training that goes on from there computes what it would have computed without a stop, bit for bit,
 * on the same device and with as many threads. A newer one that can't be read now may be whole, so it is an error. Of a
 * state that ranks saved, the generators and the position in the data are those of the first rank. States of version
 * 1.0 are loaded, too.
 *
 * A state that does not fit changes nothing; only if memory runs out the load may stop half-way.
 *
 * Returns: %FALSE with %EBB_ERROR_IO if the folder or its newest state can't be read, %EBB_ERROR_FORMAT if no state is
 * whole, %EBB_ERROR_STATE if it does not fit
 */
gboolean
ebb_training_state_load (EbbTrainingState *self,
                         const char *folder,
                         gint64 *step,
                         GError **error)
{
  g_autoptr (EbbProcessGroup) alone = NULL;

  if (step != NULL)
    *step = 0;
  if (!EBB_MAY_BEGIN (error, self, folder))
    return FALSE;
  g_return_val_if_fail (EBB_IS_TRAINING_STATE (self), FALSE);

  if (self->module != NULL
      && (!ebb_module_check_full (self->module, TRUE, "load it by ebb_training_state_load_sharded()", error)
          || !ebb_module_check_not_tensor_parallel (self->module, "load it by ebb_training_state_load_sharded()",
                                                    error)))
    return FALSE;
  alone = ebb_single_group_new ();
  return load_state (alone, self->module, self->optimizer, self, folder, step, error);
}

/**
 * ebb_training_state_load_sharded:
 * @self: the training state that takes it over; on each rank its own
 * @folder: (type filename): a folder that ebb_training_state_save_sharded() or ebb_training_state_save() wrote to
 * @step: (out) (optional): return location for how many steps had been taken
 * @error: return location for an error
 *
 * Loads such a state as ebb_load_sharded_state() does. On the same numbers of data-parallel and tensor-parallel ranks a
 * training run continues as it would have without a stop, bit for bit, with the generators of this thread's
 * #EbbGeneratorTracker. On other numbers, data-parallel rank d takes generators, the position in the data and values of
 * data-parallel rank d modulo the number that saved. Generators that another rank has taken already get other seeds;
 * those of the tracker keep their seeds and continue from the saved position.
 *
 * A state that ebb_training_state_save() wrote is one of one rank. Of a state that a single process saved with version
 * 1.0, each rank reads all and takes its shards. If a folder of that version has both kinds, that of the greater step
 * is loaded.
 *
 * Returns: %FALSE with an error as by ebb_load_sharded_state()
 */
gboolean
ebb_training_state_load_sharded (EbbTrainingState *self,
                                 const char *folder,
                                 gint64 *step,
                                 GError **error)
{
  if (step != NULL)
    *step = 0;
  if (!EBB_MAY_BEGIN (error, self, folder))
    return FALSE;
  g_return_val_if_fail (EBB_IS_TRAINING_STATE (self), FALSE);

  return load_state (ebb_process_group_get_default (), self->module, self->optimizer, self, folder, step, error);
}

/**
 * ebb_training_state_read_config:
 * @folder: (type filename): a folder that ebb_training_state_save() or ebb_training_state_save_sharded() wrote to
 * @error: return location for an error
 *
 * Reads #EbbTrainingState:config of the newest state, as its first rank has saved it, so that the model and the
 * optimizer can be made by it before the state is loaded into them. Any rank or program may do so alone.
 *
 * Returns: (transfer full) (nullable): the text; %NULL with an error as by ebb_training_state_load()
 */
char *
ebb_training_state_read_config (const char *folder,
                                GError **error)
{
  g_autoptr (EbbProcessGroup) alone = NULL;
  char *config = NULL;

  if (!EBB_MAY_BEGIN (error, folder))
    return NULL;
  alone = ebb_single_group_new ();
  return ebb_shard_folder_use_newest (alone, folder, use_config, &config, error) ? config : NULL;
}

static gboolean
use_config (gpointer self,
            EbbShardSource *source,
            gboolean *is_final,
            GError **error)
{
  g_autoptr (EbbArgs) rest = ebb_shard_source_read_tree (source, 0, "training", error);
  char **config = self;

  *config = rest != NULL ? ebb_training_state_get_saved_config (rest, source->shown, error) : NULL;
  return *config != NULL;
}

typedef struct
{
  EbbProcessGroup *group;
  EbbShardSource *source;
  EbbModule *module;
  EbbOptimizer *optimizer;
  EbbTrainingState *training;
  GArray *entries;   /* of the module; NULL: none */
  EbbShardMesh mesh; /* of the ranks here */
  EbbArgs *optimizer_state;
  EbbArgs *rest;       /* of the training */
  GHashTable *saved;   /* the names that the state has of the module: a set */
  gboolean is_changed; /* the load has begun to change something */
  gint64 step;
} Loading;

/* -- the module ---------------------------------------------------------------------------------------------------- */

/* The record of a tensor of the module, under one of its names. */
static EbbShardRecord *
find_record (Loading *self,
             guint entry)
{
  guint first = g_array_index (self->entries, EbbStateEntry, entry).first;
  EbbShardRecord *record = NULL;

  for (guint i = first; record == NULL && i < self->entries->len; i++)
    {
      const EbbStateEntry *other = &g_array_index (self->entries, EbbStateEntry, i);

      if (other->first == first)
        record = ebb_shard_index_find (self->source->index, EBB_SHARD_FILE_MODEL, other->name);
    }
  return record;
}

static gboolean
check_entry (Loading *self,
             guint number,
             GError **error)
{
  const EbbStateEntry *entry = &g_array_index (self->entries, EbbStateEntry, number);
  const EbbLocalShard *shard = &entry->shard;
  const EbbShardRecord *record = find_record (self, number);

  if (record == NULL)
    return ebb_fail (error, EBB_ERROR_STATE, "the state saved in %s does not fit: %s is missing", self->source->shown,
                     entry->name);
  if (record->per_rank || record->n_dims != shard->n_dims
      || memcmp (record->shape, shard->shape, shard->n_dims * sizeof shard->shape[0]) != 0)
    return ebb_fail (error, EBB_ERROR_STATE,
                     "the state saved in %s does not fit: %s is %s there, which is not its shape here",
                     self->source->shown, entry->name,
                     ebb_in_message (ebb_shape_to_string (record->shape, record->n_dims)));
  return TRUE;
}

/* Bytes are codes, such as those of int8: no numbers are cast to them. */
static gboolean
check_dtype (Loading *self,
             guint number,
             GError **error)
{
  const EbbStateEntry *entry = &g_array_index (self->entries, EbbStateEntry, number);
  const EbbDType here = entry->shard.tensor->view.dtype, there = find_record (self, number)->dtype;

  return (there == EBB_DTYPE_U8) == (here == EBB_DTYPE_U8)
         || ebb_fail (error, EBB_ERROR_STATE, "the state saved in %s does not fit: %s is %s there, not %s",
                      self->source->shown, entry->name, ebb_dtype_get_name (there), ebb_dtype_get_name (here));
}

static gboolean
check_module (Loading *self,
              GError **error)
{
  GPtrArray *records = self->source->index->records[EBB_SHARD_FILE_MODEL];
  g_autoptr (GHashTable) names = g_hash_table_new (g_str_hash, g_str_equal);

  if (!self->source->index->has_files[EBB_SHARD_FILE_MODEL])
    return ebb_fail (error, EBB_ERROR_STATE, "the state saved in %s has no module", self->source->shown);
  for (guint i = 0; i < self->entries->len; i++)
    {
      if (!check_entry (self, i, error))
        return FALSE;
      g_hash_table_add (names, g_array_index (self->entries, EbbStateEntry, i).name);
    }
  for (guint i = 0; i < records->len; i++)
    {
      const EbbShardRecord *record = g_ptr_array_index (records, i);

      if (!g_hash_table_contains (names, record->name))
        return ebb_fail (error, EBB_ERROR_STATE,
                         "the state saved in %s does not fit: it has %s, which the module does not have",
                         self->source->shown, ebb_in_message (ebb_json_quote (record->name)));
    }
  for (guint i = 0; i < self->entries->len; i++)
    if (!check_dtype (self, i, error))
      return FALSE;
  return TRUE;
}

/* Compares the elements that this rank needs with their checksums. */
static gboolean
verify_module (Loading *self,
               GError **error)
{
  for (guint i = 0; i < self->entries->len; i++)
    {
      const EbbStateEntry *entry = &g_array_index (self->entries, EbbStateEntry, i);

      if (entry->first == i
          && !ebb_shard_source_read (self->source, EBB_SHARD_FILE_MODEL, find_record (self, i), &entry->shard.slice,
                                     entry->shard.begin, entry->shard.end, NULL, error))
        return FALSE;
    }
  return TRUE;
}

/* -- the optimizer ------------------------------------------------------------------------------------------------- */

/* Reads a tensor that follows blocks of a rank's elements, of a rank that had the elements that this rank has. */
static EbbTensor *
read_blocks (Loading *self,
             const EbbShardRecord *record,
             const EbbLocalShard *shard,
             GError **error)
{
  const gboolean same_split = memcmp (&record->split, &shard->split, sizeof shard->split) == 0;

  for (guint r = 0; same_split && r < record->ranges->len; r++)
    {
      const EbbSavedRange *range = &g_array_index (record->ranges, EbbSavedRange, r);

      if (range->begin == shard->begin && range->end == shard->end && range->index == shard->index)
        return ebb_shard_source_read_blocks (self->source, EBB_SHARD_FILE_OPTIMIZER, record, range, error);
    }
  return ebb_fail_null (error, EBB_ERROR_STATE,
                        "the state saved in %s keeps %s in blocks of each rank's elements: it can be loaded only on as "
                        "many ranks, with the parameters split in the same way (it was saved by %u ranks, %u of them "
                        "tensor-parallel ones; here are %u and %u)",
                        self->source->shown, record->name,
                        self->source->index->n_ranks, ebb_shard_index_count_tensor_ranks (self->source->index),
                        self->mesh.n_ranks, self->mesh.n_tensor);
}

/* This rank's elements of one tensor of the state; NULL without an error if it has none. */
static EbbTensor *
read_item (Loading *self,
           const EbbShardRecord *record,
           EbbTensor *parameter,
           GError **error)
{
  gint64 shape[EBB_MAX_DIMS], begin = 0, end = record->n_elements;
  EbbShardSlice slice = ebb_shard_slice_all (record->n_elements);
  guint n_dims = record->n_dims;
  g_autoptr (EbbTensor) tensor = NULL;
  EbbLocalShard shard;

  ebb_local_shard_init (&shard, parameter);
  if (record->per_rank)
    return shard.begin < shard.end ? read_blocks (self, record, &shard, error) : NULL;
  memcpy (shape, record->shape, n_dims * sizeof shape[0]);
  if (ebb_local_shard_is_split (&shard))
    {
      if (n_dims != shard.n_dims || memcmp (shape, shard.shape, n_dims * sizeof shape[0]) != 0)
        return ebb_fail_null (error, EBB_ERROR_STATE,
                              "the state saved in %s has %s as %s: it can't be split as the parameter is",
                              self->source->shown, record->name,
                              ebb_in_message (ebb_shape_to_string (record->shape, record->n_dims)));
      n_dims = ebb_local_shard_get_shape (&shard, shape);
      begin = shard.begin;
      end = shard.end;
      slice = shard.slice;
    }
  tensor = ebb_tensor_new_empty (shape, n_dims, record->dtype, ebb_device_get_cpu (), error);
  if (tensor == NULL
      || (begin < end
          && !ebb_shard_source_read (self->source, EBB_SHARD_FILE_OPTIMIZER, record, &slice, begin, end,
                                     ebb_tensor_get_data (tensor, NULL), error)))
    return NULL;
  return g_steal_pointer (&tensor);
}

static gboolean
read_items (Loading *self,
            GArray *items,
            GError **error)
{
  GPtrArray *records = self->source->index->records[EBB_SHARD_FILE_OPTIMIZER];

  for (guint i = 0; i < records->len; i++)
    {
      const EbbShardRecord *record = g_ptr_array_index (records, i);
      const char *key;
      g_autofree char *name = ebb_optimizer_item_parse_name (record->name, &key);
      EbbTensor *parameter = ebb_optimizer_find_parameter (self->optimizer, name);
      g_autoptr (GError) failure = NULL;
      EbbTensor *tensor;

      if (parameter == NULL)
        return ebb_fail (error, EBB_ERROR_STATE,
                         "the state saved in %s is of an optimizer with the parameter %s, which this one does not have",
                         self->source->shown, ebb_in_message (ebb_json_quote (name)));
      tensor = read_item (self, record, parameter, &failure);
      if (failure != NULL)
        return ebb_fail_with (error, g_steal_pointer (&failure));
      ebb_optimizer_items_add (items, name, key, record->n_steps, tensor);
    }
  return TRUE;
}

/* The file of each rank that saved lists its tensors; each rank here checks some of these files. */
static gboolean
check_items (Loading *self,
             GError **error)
{
  const guint n_ranks = ebb_process_group_get_size (self->group);

  for (guint r = ebb_process_group_get_rank (self->group); r < self->source->index->n_ranks; r += n_ranks)
    {
      g_autoptr (EbbArgs) rest = ebb_shard_source_read_tree (self->source, r, "optimizer", error);

      if (rest == NULL || !ebb_optimizer_rest_check (rest, self->source->index, self->source->shown, error))
        return FALSE;
    }
  return TRUE;
}

static gboolean
read_optimizer (Loading *self,
                GError **error)
{
  g_autoptr (GArray) items = ebb_optimizer_items_new ();
  g_autoptr (EbbArgs) rest = ebb_shard_source_read_tree (self->source, 0, "optimizer", error);

  if (rest == NULL || !check_items (self, error) || !read_items (self, items, error))
    return FALSE;
  self->optimizer_state = ebb_optimizer_state_join (rest, items);
  return ebb_optimizer_check_state (self->optimizer, self->optimizer_state, error);
}

/* -- the training state -------------------------------------------------------------------------------------------- */

/* How many data-parallel ranks saved the state. */
static guint
count_data_ranks (Loading *self)
{
  const EbbShardIndex *index = self->source->index;

  return MAX (index->n_ranks / ebb_shard_index_count_tensor_ranks (index), 1);
}

/* The rank whose generators and position in the data are taken over: one that had the same data and the same slices, or
 * is as near as can be. */
static guint
find_predecessor (Loading *self)
{
  const EbbShardIndex *index = self->source->index;
  const EbbShardCoordinates own = self->mesh.own;
  const guint n_tensor = ebb_shard_index_count_tensor_ranks (index), n_data = count_data_ranks (self);

  for (guint r = 0; r < index->n_ranks; r++)
    {
      const EbbShardCoordinates it = ebb_shard_index_get_coordinates (index, r);

      if (it.data == own.data % n_data && it.tensor == own.tensor % n_tensor)
        return r;
    }
  return 0;
}

/* Returns @rest with the tracker's states advanced unless they are this rank's own. */
static EbbArgs *
take_rest (EbbArgs *rest,
           gboolean is_own)
{
  EbbArgs *moved = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < ebb_args_get_length (rest); i++)
    {
      const char *key = ebb_args_get_key (rest, i);
      EbbArgs *saved = ebb_args_peek_args (rest, i);

      if (!is_own && saved != NULL && g_strcmp0 (key, EBB_TRAINING_STATE_NAMED_GENERATORS) == 0)
        {
          g_autoptr (EbbArgs) states = ebb_rng_tracker_state_advance (saved);

          ebb_args_add_args (moved, key, states);
        }
      else
        ebb_args_add_value (moved, key, rest, i);
    }
  return moved;
}

/* -- all of it ----------------------------------------------------------------------------------------------------- */

/* A state that has the base, too, must have all of the module. */
static void
want_all (Loading *self,
          EbbArgs *tree)
{
  if (self->entries == NULL || ebb_training_state_is_without_base (tree))
    return;
  g_array_unref (self->entries);
  self->entries = ebb_state_entries_new (self->module);
}

static gboolean
read_rest (Loading *self,
           GError **error)
{
  g_autoptr (EbbArgs) rest = ebb_shard_source_read_tree (self->source, find_predecessor (self), "training", error);
  const gboolean has_own = ebb_shard_index_count_tensor_ranks (self->source->index) == self->mesh.n_tensor
                           && self->mesh.own.data < count_data_ranks (self);

  ebb_generator_tracker_get_default (); /* creates the tracker, which checks its own states */
  if (rest == NULL || !ebb_training_state_check_rest (self->training, rest, self->source->shown, &self->step, error))
    return FALSE;
  want_all (self, rest);
  self->rest = take_rest (rest, has_own);
  return TRUE;
}

/* Reads and checks all that this rank needs. */
static gboolean
prepare (Loading *self,
         GError **error)
{
  if (self->training != NULL && !read_rest (self, error))
    return FALSE;
  if (self->entries != NULL && (!check_module (self, error) || !verify_module (self, error)))
    return FALSE;
  return self->optimizer == NULL || read_optimizer (self, error);
}

static gboolean
load_entry (Loading *self,
            guint number,
            GError **error)
{
  const EbbLocalShard *shard = &g_array_index (self->entries, EbbStateEntry, number).shard;
  const EbbShardRecord *record = find_record (self, number);
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims;
  g_autoptr (EbbTensor) host = NULL;
  g_autoptr (EbbTensor) moved = NULL;

  if (shard->begin == shard->end)
    return TRUE;
  n_dims = ebb_local_shard_get_shape (shard, shape);
  host = ebb_tensor_new_empty (shape, n_dims, record->dtype, ebb_device_get_cpu (), error);
  if (host == NULL
      || !ebb_shard_source_read (self->source, EBB_SHARD_FILE_MODEL, record, &shard->slice, shard->begin, shard->end,
                                 ebb_tensor_get_data (host, NULL), error))
    return FALSE;
  moved = ebb_to_device (host, shard->tensor->storage->device, error);
  return moved != NULL && ebb_tensor_copy_from (shard->tensor, moved, error);
}

static gboolean
apply (Loading *self,
       GError **error)
{
  for (guint i = 0; self->entries != NULL && i < self->entries->len; i++)
    if (g_array_index (self->entries, EbbStateEntry, i).first == i && !load_entry (self, i, error))
      return FALSE;
  if (self->optimizer != NULL && !ebb_optimizer_load_state (self->optimizer, self->optimizer_state, error))
    return FALSE;
  if (self->training == NULL)
    return TRUE;
  if (!ebb_training_state_load_rest (self->training, self->rest, self->source->shown, error))
    return FALSE;
  ebb_training_state_add_trained (self->training, self->rest, self->saved);
  /* Tensor-parallel ranks must draw the same numbers. */
  if (self->mesh.own.data >= count_data_ranks (self))
    ebb_training_state_reseed (self->training, self->mesh.own.data);
  return TRUE;
}

static void
list_saved (Loading *self)
{
  GPtrArray *records = self->source->index->records[EBB_SHARD_FILE_MODEL];

  self->saved = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  for (guint i = 0; i < records->len; i++)
    g_hash_table_add (self->saved, g_strdup (((EbbShardRecord *) g_ptr_array_index (records, i))->name));
}

/* Loads the state of the source. */
static gboolean
load (Loading *self,
      GError **error)
{
  const gboolean trained_only = self->training != NULL && self->training->trained_only;
  GError *failure = NULL;

  list_saved (self);
  if (self->training != NULL && !ebb_state_find_base (self->training, self->saved, self->group, error))
    return FALSE;
  if (self->module != NULL)
    self->entries =
        ebb_state_entries_new_part (self->module, trained_only ? EBB_STATE_TRAINED : EBB_STATE_ALL, self->saved);
  if (!ebb_shard_mesh_init (&self->mesh, self->group, self->entries, self->optimizer, "", NULL, error))
    return FALSE;
  if (ebb_state_reshard (self->entries, self->optimizer, &failure))
    prepare (self, &failure);
  if (!ebb_agree_no_failure (self->group, failure, error))
    return FALSE;
  failure = NULL;
  self->is_changed = TRUE;
  apply (self, &failure);
  return ebb_agree_no_failure (self->group, failure, error);
}

static void
loading_clear (Loading *self)
{
  g_clear_pointer (&self->entries, g_array_unref);
  g_clear_pointer (&self->saved, g_hash_table_unref);
  g_clear_pointer (&self->mesh.ranks, g_free);
  g_clear_pointer (&self->optimizer_state, ebb_args_unref);
  g_clear_pointer (&self->rest, ebb_args_unref);
}

static gboolean
use_state (gpointer data,
           EbbShardSource *source,
           gboolean *is_final,
           GError **error)
{
  Loading *self = data;
  gboolean ok;

  self->source = source;
  ok = load (self, error);
  *is_final = self->is_changed;
  loading_clear (self);
  return ok;
}

static gboolean
load_state (EbbProcessGroup *group,
            EbbModule *module,
            EbbOptimizer *optimizer,
            EbbTrainingState *training,
            const char *folder,
            gint64 *step,
            GError **error)
{
  Loading self = {
    .group = group,
    .module = module,
    .optimizer = optimizer,
    .training = training,
  };

  EBB_AUTO_NO_GRAD ();
  if (!ebb_shard_folder_use_newest (group, folder, use_state, &self, error))
    return FALSE;
  if (step != NULL)
    *step = self.step;
  return TRUE;
}
