/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/save-private.h"

#include "nn/args-private.h"
#include "nn/files/state-folder-private.h"
#include "tensor/util/atomic-file-private.h"
#include "dist/init.h"
#include "dist/agree-private.h"
#include "wrap/shard/state/claims-private.h"
#include "wrap/shard/state/file-private.h"
#include "wrap/shard/state/optimizer-private.h"
#include "wrap/shard/state/state-dict-private.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>

/* Each rank writes its files, under names that no earlier save has; once all ranks have theirs on the disk, rank 0
 * replaces the index, and only then do the files of the save before go. So there always is an index whose files are all
 * there. Rank 0 begins the index, as an unfinished file, before any rank writes: so files without an index are known to
 * be those of a first save that was broken off, and not of a state whose index was lost. */

typedef struct
{
  EbbProcessGroup *group;
  const char *folder;
  guint rank, n_ranks;
  GArray *entries; /* of the module; NULL: none */
  EbbShardClaims *claims;
  EbbShardIndex *index; /* what this rank has */
  GPtrArray *written;   /* paths */
  EbbAtomicFile file;   /* rank 0: the new index */
} Saving;

/* -- the folder ---------------------------------------------------------------------------------------------------- */

/* The newest save that any file in @names is of; 0: none. */
static gint64
find_last (char **names)
{
  gint64 last = 0;

  for (guint i = 0; names[i] != NULL; i++)
    last = MAX (last, ebb_shard_file_parse_name (names[i]));
  return last;
}

/* Removes all files of saves but @save. Without a sight of all of them none goes. */
static void
remove_other (const char *folder,
              gint64 save)
{
  g_auto (GStrv) names = ebb_list_folder (folder, NULL);

  for (guint i = 0; names != NULL && names[i] != NULL; i++)
    {
      gint64 other = ebb_shard_file_parse_name (names[i]);
      g_autofree char *path = g_build_filename (folder, names[i], NULL);

      if (other > 0 && other != save)
        g_unlink (path);
    }
}

static gboolean
is_unfinished_index (const char *name)
{
  return g_str_has_prefix (name, EBB_SHARD_INDEX_FILE ".") && g_str_has_suffix (name, EBB_ATOMIC_FILE_SUFFIX);
}

/* Removes what saves that were broken off have left, before this one needs the room: all that the index doesn't name;
 * and without an index all files, if there is an unfinished one, which goes after them, as the new one is begun. */
static gboolean
remove_left (Saving *self,
             char **names,
             GError **error)
{
  gboolean has_index = g_strv_contains ((const char *const *) names, EBB_SHARD_INDEX_FILE), is_unfinished = FALSE;
  g_autofree char *text = has_index ? ebb_shard_source_read_index (self->folder, error) : NULL;
  g_autoptr (EbbShardIndex) index = NULL;

  if (has_index && text == NULL)
    return FALSE;
  index = has_index ? ebb_shard_index_parse (text, EBB_SHARD_INDEX_FILE, NULL) : NULL;
  for (guint i = 0; names[i] != NULL; i++)
    is_unfinished = is_unfinished || is_unfinished_index (names[i]);
  if (index != NULL || (!has_index && is_unfinished))
    remove_other (self->folder, index != NULL ? index->save : 0);
  return TRUE;
}

/* On rank 0: makes the folder ready; returns a number that no file in it has, or 0. */
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
  return names != NULL && remove_left (self, names, error) && ebb_atomic_file_open (&self->file, path, error)
             ? find_last (names) + 1
             : 0;
}

/* Rank 0 says which number this save has. */
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

static char *
make_path (Saving *self,
           EbbShardFile kind)
{
  g_autofree char *name = ebb_shard_file_make_name (kind, self->index->save, self->rank, self->n_ranks);

  return g_build_filename (self->folder, name, NULL);
}

static gboolean
write_tensors (Saving *self,
               EbbShardFile kind,
               EbbArgs *tensors,
               GError **error)
{
  char *path = make_path (self, kind);

  g_ptr_array_add (self->written, path);
  self->index->has_files[kind] = TRUE;
  return ebb_shard_file_write (path, tensors, error);
}

/* -- this rank's files --------------------------------------------------------------------------------------------- */

static gboolean
write_module (Saving *self,
              GError **error)
{
  GArray *entries = self->entries;
  g_autoptr (EbbArgs) tensors = ebb_args_new (EBB_ARGS_DICT);

  if (!ebb_state_check_released (entries, error))
    return FALSE;
  for (guint i = 0; i < entries->len; i++)
    {
      const EbbStateEntry *entry = &g_array_index (entries, EbbStateEntry, i);
      const EbbLocalShard *place = &entry->place;
      const char *stored_as = g_array_index (entries, EbbStateEntry, entry->first).name;
      EbbShardRecord *record = ebb_shard_index_add (self->index, EBB_SHARD_FILE_MODEL, entry->name,
                                                    place->local->view.dtype, place->shape, place->n_dims);

      g_free (record->stored_as);
      record->stored_as = g_strdup (stored_as);
      ebb_shard_record_set_cut (record, place);
      if (!ebb_shard_claims_speaks (self->claims, EBB_SHARD_FILE_MODEL, stored_as, place))
        continue;
      ebb_shard_record_add_part (record, self->rank, place->begin, place->end,
                                 place->partition != NULL ? place->partition->index : 0);
      if (entry->first == i && place->begin < place->end)
        ebb_args_add_tensor (tensors, entry->name, place->local);
    }
  return write_tensors (self, EBB_SHARD_FILE_MODEL, tensors, error);
}

static gboolean
write_optimizer (Saving *self,
                 EbbOptimizer *optimizer,
                 EbbArgs *tree,
                 GError **error)
{
  g_autoptr (EbbArgs) state = ebb_optimizer_get_state (optimizer);
  g_autoptr (GArray) items = ebb_optimizer_items_new ();
  g_autoptr (EbbArgs) rest = ebb_optimizer_state_split (state, items, error);
  g_autoptr (EbbArgs) tensors = ebb_args_new (EBB_ARGS_DICT);

  if (rest == NULL || !ebb_optimizer_items_describe (optimizer, items, self->claims, self->index, error))
    return FALSE;
  for (guint i = 0; i < items->len; i++)
    {
      const EbbOptimizerItem *item = &g_array_index (items, EbbOptimizerItem, i);
      g_autofree char *name = ebb_optimizer_item_make_name (item->parameter, item->key);
      const EbbShardRecord *record = ebb_shard_index_find (self->index, EBB_SHARD_FILE_OPTIMIZER, name);

      if (record != NULL && record->parts->len > 0)
        ebb_args_add_tensor (tensors, name, item->tensor);
    }
  ebb_args_add_args (tree, "optimizer", rest);
  return write_tensors (self, EBB_SHARD_FILE_OPTIMIZER, tensors, error);
}

static gboolean
write_own (Saving *self,
           EbbOptimizer *optimizer,
           EbbArgs *training,
           GError **error)
{
  g_autoptr (EbbArgs) tree = ebb_args_new (EBB_ARGS_DICT);
  char *path;

  if ((self->entries != NULL && !write_module (self, error))
      || (optimizer != NULL && !write_optimizer (self, optimizer, tree, error)))
    return FALSE;
  if (training != NULL)
    ebb_args_add_args (tree, "training", training);
  path = make_path (self, EBB_SHARD_FILE_STATE);
  g_ptr_array_add (self->written, path);
  self->index->has_files[EBB_SHARD_FILE_STATE] = TRUE;
  return ebb_state_file_write (path, tree, error);
}

static void
remove_own (Saving *self)
{
  for (guint i = 0; i < self->written->len; i++)
    g_unlink (g_ptr_array_index (self->written, i));
}

/* -- the index ----------------------------------------------------------------------------------------------------- */

static gboolean
write_index (Saving *self,
             char **texts,
             GError **error)
{
  g_autoptr (EbbShardIndex) all = ebb_shard_index_new (self->index->save, self->n_ranks);
  g_autofree char *text = NULL;

  for (guint r = 0; texts[r] != NULL; r++)
    {
      g_autofree char *what = g_strdup_printf ("what rank %u has saved", r);
      g_autoptr (EbbShardIndex) part = ebb_shard_index_parse (texts[r], what, error);

      if (part == NULL || !ebb_shard_index_merge (all, part, error))
        return FALSE;
    }
  if (!ebb_shard_index_check (all, "the state of all ranks", error))
    return FALSE;
  if (self->claims->mesh != NULL)
    all->mesh = g_memdup2 (self->claims->mesh, self->n_ranks * sizeof *all->mesh);
  text = ebb_shard_index_to_text (all);
  return ebb_atomic_file_write (&self->file, text, strlen (text), error) && ebb_atomic_file_commit (&self->file, error);
}

/* After a failure it may be there all the same, and then its files must stay. */
static gboolean
index_is_in_place (Saving *self)
{
  g_autofree char *text = ebb_shard_source_read_index (self->folder, NULL);
  g_autoptr (EbbShardIndex) index = text != NULL ? ebb_shard_index_parse (text, "", NULL) : NULL;

  return index != NULL && index->save == self->index->save;
}

#define MAY_REMOVE 'r'
#define MUST_KEEP 'k'

/* Rank 0 writes the index and says how that went. */
static gboolean
publish (Saving *self,
         char **texts,
         GError **error)
{
  g_autoptr (GError) failure = NULL;
  g_autofree char *outcome = g_strdup ("");
  g_auto (GStrv) outcomes = NULL;

  if (self->rank == 0 && !write_index (self, texts, &failure))
    {
      g_free (outcome);
      outcome = g_strdup_printf ("%c%d %s", index_is_in_place (self) ? MUST_KEEP : MAY_REMOVE, failure->code,
                                 failure->message);
    }
  outcomes = ebb_agree_gather_texts (self->group, outcome, error);
  /* Without an answer nobody knows whether the index names these files. */
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
      EbbOptimizer *optimizer,
      EbbArgs *training,
      GError **error)
{
  GError *failure = NULL;
  g_autoptr (GError) agreed = NULL;
  g_autofree char *text = NULL;
  g_auto (GStrv) texts = NULL;

  self->claims = ebb_shard_claims_new (self->group, self->entries, optimizer, error);
  if (self->claims == NULL)
    return FALSE;
  write_own (self, optimizer, training, &failure);
  if (!ebb_agree_no_failure (self->group, failure, &agreed))
    {
      /* As long as no rank goes on to the index, which it can't without all, nothing names these files. */
      remove_own (self);
      g_propagate_error (error, g_steal_pointer (&agreed));
      return FALSE;
    }
  text = ebb_shard_index_to_text (self->index);
  texts = ebb_agree_gather_texts (self->group, text, error);
  if (texts == NULL || !publish (self, texts, error))
    return FALSE;
  if (self->rank == 0)
    remove_other (self->folder, self->index->save);
  return TRUE;
}

/* After a failure. The unfinished index stays as long as there is a file that only it explains: other ranks may not
 * have removed theirs yet. */
static void
end (Saving *self)
{
  g_auto (GStrv) names = ebb_list_folder (self->folder, NULL);

  if (names != NULL
      && (g_strv_contains ((const char *const *) names, EBB_SHARD_INDEX_FILE) || find_last (names) == 0))
    ebb_atomic_file_abort (&self->file);
  else
    ebb_atomic_file_leave (&self->file);
}

gboolean
ebb_shard_save (EbbModule *module,
                EbbOptimizer *optimizer,
                EbbArgs *training,
                const char *folder,
                GError **error)
{
  EbbProcessGroup *group = ebb_process_group_get_default ();
  Saving self = {
    .group = group,
    .folder = folder,
    .rank = ebb_process_group_get_rank (group),
    .n_ranks = ebb_process_group_get_size (group),
    .file = { .fd = -1 },
  };
  gint64 number;
  gboolean ok;

  if (!choose_number (&self, &number, error))
    {
      if (self.file.fd >= 0)
        end (&self);
      return FALSE;
    }
  self.index = ebb_shard_index_new (number, self.n_ranks);
  self.written = g_ptr_array_new_with_free_func (g_free);
  self.entries = module != NULL ? ebb_state_entries_new (module) : NULL;
  ok = save (&self, optimizer, training, error);
  if (self.file.fd >= 0)
    end (&self);
  g_ptr_array_unref (self.written);
  g_clear_pointer (&self.entries, g_array_unref);
  g_clear_pointer (&self.claims, ebb_shard_claims_free);
  ebb_shard_index_free (self.index);
  return ok;
}
