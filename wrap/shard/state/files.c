/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/state-private.h"

#include "nn/args-private.h"
#include "tensor/util/json-scanner-private.h"
#include "nn/files/file-error-private.h"
#include "nn/files/safetensors.h"
#include "nn/files/state-file-private.h"
#include "nn/files/state-tree-private.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/tensor-private.h"
#include "tensor/util/atomic-file-private.h"

#include <string.h>

/* Writes a rank's tensors to a file, and reads elements out of the files of all ranks. */

#define BLOCK_BYTES ((gint64) 1 << 20)
/* A state of many ranks has more files than a process may open. */
#define MAX_OPEN_FILES 64
#define SUM_KEY "sums of " /* and the tensor's name, in the metadata: 16 hexadecimal digits for each block */
#define SUM_DIGITS 16

/* -- writing ------------------------------------------------------------------------------------------------------- */

static gboolean
add_sums (EbbArgs *metadata,
          const char *name,
          EbbTensor *tensor,
          GError **error)
{
  g_autofree char *key = g_strconcat (SUM_KEY, name, NULL);
  g_autoptr (GString) sums = g_string_new (NULL);
  g_autoptr (EbbTensor) contiguous = ebb_contiguous (tensor, error);
  g_autoptr (EbbTensor) host = ebb_to_device (contiguous, ebb_device_get_cpu (), error);
  gint64 size = host != NULL ? (gint64) ebb_tensor_get_n_bytes (host) : 0;
  const guint8 *data = size > 0 ? ebb_tensor_get_data (host, error) : NULL;

  if (host == NULL || (size > 0 && data == NULL))
    return FALSE;
  for (gint64 at = 0; at < size; at += BLOCK_BYTES)
    g_string_append_printf (sums, "%016" G_GINT64_MODIFIER "x",
                            ebb_state_checksum_tensor (data + at, (gsize) MIN (BLOCK_BYTES, size - at),
                                                       host->view.dtype, host->view.shape,
                                                       (guint) host->view.n_dims));
  ebb_args_add_string (metadata, key, sums->str);
  return TRUE;
}

gboolean
ebb_shard_file_write (const char *path,
                      EbbArgs *tensors,
                      GError **error)
{
  g_autoptr (EbbArgs) metadata = ebb_args_new (EBB_ARGS_DICT);
  gboolean ok = TRUE;

  EBB_AUTO_NO_GRAD ();
  for (guint i = 0; ok && i < ebb_args_get_length (tensors); i++)
    ok = add_sums (metadata, ebb_args_get_key (tensors, i), ebb_args_peek_tensor (tensors, i), error);
  return ok && ebb_save_safetensors (path, tensors, metadata, error);
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

static gboolean
fail (EbbTensorFile *file,
      const char *name,
      const char *problem,
      GError **error)
{
  return ebb_fail (error, EBB_ERROR_FORMAT, "%s: tensor %s %s", ebb_show_text (file->path),
                   ebb_in_message (ebb_json_quote (name)), problem);
}

/* Finds a tensor that must have that dtype and so many elements; -1: any. */
static const EbbTensorEntry *
find_entry (EbbTensorFile *file,
            const char *name,
            int dtype,
            gint64 n_elements,
            GError **error)
{
  const EbbTensorEntry *entry = ebb_tensor_file_find (file, name);

  if (entry == NULL)
    fail (file, name, "is missing, though the index says that it is there", error);
  else if ((dtype >= 0 && (int) entry->dtype != dtype)
           || (n_elements >= 0
               && entry->end - entry->begin != n_elements * (gint64) ebb_dtype_get_size (entry->dtype)))
    fail (file, name, "has another dtype or number of elements than the index says", error);
  else
    return entry;
  return NULL;
}

/* The checksums of all blocks, as text of the expected length. */
static const char *
find_sums (EbbTensorFile *file,
           const EbbTensorEntry *entry,
           GError **error)
{
  g_autofree char *key = g_strconcat (SUM_KEY, entry->name, NULL);
  int index = ebb_args_find (file->metadata, key);
  const char *sums = index >= 0 ? ebb_args_get_string (file->metadata, (guint) index) : NULL;
  gint64 n_blocks = (entry->end - entry->begin + BLOCK_BYTES - 1) / BLOCK_BYTES;

  if (sums != NULL && (gint64) strlen (sums) == n_blocks * SUM_DIGITS)
    return sums;
  fail (file, entry->name, "has no checksums", error);
  return NULL;
}

static gboolean
check_block (EbbTensorFile *file,
             const EbbTensorEntry *entry,
             const char *sum,
             const guint8 *data,
             gsize size,
             GError **error)
{
  char expected[SUM_DIGITS + 1];

  for (gsize i = 0; entry->dtype == EBB_DTYPE_BOOL && i < size; i++)
    if (data[i] > 1)
      return fail (file, entry->name, "is BOOL and has a byte other than 0 and 1", error);
  g_snprintf (expected, sizeof expected, "%016" G_GINT64_MODIFIER "x",
              ebb_state_checksum_tensor (data, size, entry->dtype, entry->shape, entry->n_dims));
  return memcmp (expected, sum, SUM_DIGITS) == 0
         || fail (file, entry->name, "has another checksum than was written: the file is damaged", error);
}

/* Reads the elements [begin, end), which are whole blocks, and compares them with their checksums. */
static gboolean
read_blocks (EbbTensorFile *file,
             const EbbTensorEntry *entry,
             gint64 begin,
             gint64 end,
             guint8 *data,
             GError **error)
{
  const gint64 element = (gint64) ebb_dtype_get_size (entry->dtype);
  const char *sums = find_sums (file, entry, error);

  if (sums == NULL)
    return FALSE;
  for (gint64 at = begin * element; at < end * element; at += BLOCK_BYTES, data += BLOCK_BYTES)
    {
      const gint64 size = MIN (BLOCK_BYTES, end * element - at);

      if (!ebb_tensor_file_read (file, entry, at, at + size, data, error)
          || !check_block (file, entry, sums + at / BLOCK_BYTES * SUM_DIGITS, data, (gsize) size, error))
        return FALSE;
    }
  return TRUE;
}

/* -- a folder of files --------------------------------------------------------------------------------------------- */

char *
ebb_shard_source_read_index (const char *folder,
                             const char *name,
                             GError **error)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);
  gsize size;
  g_autofree char *text = ebb_read_file (path, EBB_SHARD_INDEX_MAX_SIZE, &size, error);

  if (text != NULL && strlen (text) != size)
    return ebb_fail_null (error, EBB_ERROR_FORMAT, "%s: it has a zero byte", ebb_show_text (path));
  return g_steal_pointer (&text);
}

static void
close_file (gpointer data)
{
  ebb_tensor_file_close (data);
}

static EbbShardSource *
source_new (const char *folder,
            EbbShardIndex *index)
{
  EbbShardSource *self = g_new0 (EbbShardSource, 1);

  self->folder = g_strdup (folder);
  self->shown = ebb_escape_text (folder);
  self->index = index;
  self->files = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, close_file);
  return self;
}

EbbShardSource *
ebb_shard_source_new (const char *folder,
                      const char *name,
                      const char *text,
                      GError **error)
{
  g_autofree char *what = g_build_filename (folder, name, NULL);
  g_autoptr (EbbShardIndex) index = ebb_shard_index_parse (text, what, error);

  return index != NULL && ebb_shard_index_check (index, what, error) ? source_new (folder, g_steal_pointer (&index))
                                                                     : NULL;
}

/* -- a state of version 1.0 that one process saved ----------------------------------------------------------------- */

static gboolean
add_tensor (EbbShardSource *self,
            EbbShardFile table,
            const char *name,
            gint64 n_steps,
            EbbTensor *tensor,
            GError **error)
{
  EbbShardRecord *record;

  if (name == NULL || tensor == NULL || ebb_shard_index_find (self->index, table, name) != NULL)
    return ebb_fail (error, EBB_ERROR_STATE, "the state saved in %s has %s, which is %s", self->shown,
                     ebb_in_message (ebb_json_quote (name != NULL ? name : "")),
                     tensor == NULL ? "not a tensor" : "there twice or without a name");
  record = ebb_shard_index_add (self->index, table, name, tensor->view.dtype, tensor->view.shape,
                                (guint) tensor->view.n_dims);
  record->n_steps = n_steps;
  ebb_shard_record_add_range (record, 0, 0, tensor->n_elements, 0);
  self->index->has_files[table] = TRUE;
  ebb_args_add_tensor (self->tensors[table], name, tensor);
  return TRUE;
}

static gboolean
take_module (EbbShardSource *self,
             EbbArgs *module,
             GError **error)
{
  self->index->has_files[EBB_SHARD_FILE_MODEL] = TRUE;
  for (guint i = 0; i < ebb_args_get_length (module); i++)
    if (!add_tensor (self, EBB_SHARD_FILE_MODEL, ebb_args_get_key (module, i), 0, ebb_args_peek_tensor (module, i),
                     error))
      return FALSE;
  return TRUE;
}

static gboolean
take_optimizer (EbbShardSource *self,
                EbbArgs *optimizer,
                GError **error)
{
  g_autoptr (GArray) items = ebb_optimizer_items_new ();
  g_autoptr (EbbArgs) rest = ebb_optimizer_state_split (optimizer, items, error);

  for (guint i = 0; rest != NULL && i < items->len; i++)
    {
      const EbbOptimizerItem *item = &g_array_index (items, EbbOptimizerItem, i);
      g_autofree char *name = ebb_optimizer_item_make_name (item);

      if (!add_tensor (self, EBB_SHARD_FILE_OPTIMIZER, name, item->n_steps, item->tensor, error))
        return FALSE;
    }
  if (rest != NULL)
    ebb_args_add_args (self->tree, "optimizer", rest);
  return rest != NULL;
}

EbbShardSource *
ebb_shard_source_new_old (const char *folder,
                          EbbArgs *tree,
                          GError **error)
{
  g_autoptr (EbbShardSource) self = source_new (folder, ebb_shard_index_new (1, 1));
  g_autoptr (EbbArgs) training = ebb_args_new (EBB_ARGS_DICT);

  self->tree = ebb_args_new (EBB_ARGS_DICT);
  for (guint t = 0; t < EBB_N_SHARD_TABLES; t++)
    self->tensors[t] = ebb_args_new (EBB_ARGS_DICT);
  for (guint i = 0; ebb_args_get_kind (tree) == EBB_ARGS_DICT && i < ebb_args_get_length (tree); i++)
    {
      const char *key = ebb_args_get_key (tree, i);
      EbbArgs *part = ebb_args_peek_args (tree, i);

      if (part != NULL && g_strcmp0 (key, "module") == 0)
        {
          if (!take_module (self, part, error))
            return NULL;
        }
      else if (part != NULL && g_strcmp0 (key, "optimizer") == 0)
        {
          if (!take_optimizer (self, part, error))
            return NULL;
        }
      else
        ebb_args_add_value (training, key, tree, i);
    }
  ebb_args_add_args (self->tree, "training", training);
  return g_steal_pointer (&self);
}

/* Such a state is in memory, whole, with its checksums compared. */
static gboolean
read_old (EbbShardSource *self,
          EbbShardFile table,
          const EbbShardRecord *record,
          const EbbShardSlice *slice,
          gint64 begin,
          gint64 end,
          void *data,
          GError **error)
{
  EbbArgs *tensors = self->tensors[table];
  EbbTensor *tensor = ebb_args_peek_tensor (tensors, (guint) ebb_args_find (tensors, record->name));
  g_autoptr (EbbTensor) host = ebb_tensor_to_host (tensor, error);
  const EbbShardSlice all = ebb_shard_slice_all (record->n_elements);

  if (host != NULL && data != NULL)
    ebb_shard_slice_copy (&all, 0, record->n_elements, host->view.data, slice, begin, end, data,
                          ebb_dtype_get_size (record->dtype));
  return host != NULL;
}

/* -- reading files ------------------------------------------------------------------------------------------------- */

static char *
make_path (EbbShardSource *self,
           EbbShardFile kind,
           guint rank)
{
  g_autofree char *name = ebb_shard_file_make_name (kind, self->index->save, rank, self->index->n_ranks);

  return g_build_filename (self->folder, name, NULL);
}

static EbbTensorFile *
open_file (EbbShardSource *self,
           EbbShardFile kind,
           guint rank,
           GError **error)
{
  g_autofree char *path = make_path (self, kind, rank);
  EbbTensorFile *file = g_hash_table_lookup (self->files, path);

  if (file != NULL)
    return file;
  if (!self->index->has_files[kind] || rank >= self->index->n_ranks)
    return ebb_fail_null (
        error, EBB_ERROR_FORMAT, "%s: the index does not name the file %s", self->shown,
        ebb_in_message (ebb_shard_file_make_name (kind, self->index->save, rank, self->index->n_ranks)));
  if (g_hash_table_size (self->files) >= MAX_OPEN_FILES)
    g_hash_table_remove_all (self->files);
  file = ebb_safetensors_open (path, FALSE, error);
  if (file != NULL)
    g_hash_table_insert (self->files, g_steal_pointer (&path), file);
  return file;
}

/* Reads one block at a time and copies the wanted elements out of it; blocks without any are not read. */
static gboolean
read_range (EbbTensorFile *file,
            const EbbTensorEntry *entry,
            const EbbSavedRange *range,
            const EbbShardSlice *saved_slice,
            const EbbShardSlice *slice,
            gint64 begin,
            gint64 end,
            void *data,
            GError **error)
{
  const gsize element = ebb_dtype_get_size (entry->dtype);
  const gint64 n = BLOCK_BYTES / (gint64) element;
  g_autofree void *block = g_malloc ((gsize) MIN (n, range->end - range->begin) * element);

  for (gint64 at = range->begin; at < range->end; at += n)
    {
      const gint64 next = MIN (at + n, range->end);

      if (ebb_shard_slice_copy (saved_slice, at, next, NULL, slice, begin, end, NULL, element) == 0)
        continue;
      if (!read_blocks (file, entry, at - range->begin, next - range->begin, block, error))
        return FALSE;
      if (data != NULL)
        ebb_shard_slice_copy (saved_slice, at, next, block, slice, begin, end, data, element);
    }
  return TRUE;
}

gboolean
ebb_shard_source_read (EbbShardSource *self,
                       EbbShardFile table,
                       const EbbShardRecord *record,
                       const EbbShardSlice *slice,
                       gint64 begin,
                       gint64 end,
                       void *data,
                       GError **error)
{
  if (self->tree != NULL)
    return record->n_elements == 0 || read_old (self, table, record, slice, begin, end, data, error);
  for (guint i = 0; i < record->ranges->len; i++)
    {
      const EbbSavedRange *range = &g_array_index (record->ranges, EbbSavedRange, i);
      EbbTensorFile *file;
      const EbbTensorEntry *entry;
      const EbbShardSlice saved_slice = ebb_shard_record_get_slice (record, range->index);

      if (ebb_shard_slice_copy (&saved_slice, range->begin, range->end, NULL, slice, begin, end, NULL, 1) == 0)
        continue;
      file = open_file (self, table, range->rank, error);
      entry = file != NULL
                  ? find_entry (file, record->stored_as, record->dtype, range->end - range->begin, error)
                  : NULL;
      if (entry == NULL || !read_range (file, entry, range, &saved_slice, slice, begin, end, data, error))
        return FALSE;
    }
  return TRUE;
}

EbbTensor *
ebb_shard_source_read_blocks (EbbShardSource *self,
                              EbbShardFile table,
                              const EbbShardRecord *record,
                              const EbbSavedRange *range,
                              GError **error)
{
  EbbTensorFile *file = open_file (self, table, range->rank, error);
  const EbbTensorEntry *entry = file != NULL ? find_entry (file, record->stored_as, -1, -1, error) : NULL;
  g_autoptr (EbbTensor) tensor = NULL;

  if (entry == NULL)
    return NULL;
  tensor = ebb_tensor_new_empty (entry->shape, entry->n_dims, entry->dtype, ebb_device_get_cpu (), error);
  if (tensor == NULL
      || !read_blocks (file, entry, 0, tensor->n_elements, ebb_tensor_get_data (tensor, NULL), error))
    return NULL;
  return g_steal_pointer (&tensor);
}

EbbArgs *
ebb_shard_source_read_tree (EbbShardSource *self,
                            guint rank,
                            const char *part,
                            GError **error)
{
  g_autofree char *path = make_path (self, EBB_SHARD_FILE_STATE, rank);
  g_autoptr (EbbArgs) tree = self->tree != NULL ? ebb_args_ref (self->tree) : ebb_state_file_read (path, error);
  int index = tree != NULL ? ebb_args_find (tree, part) : -1;
  EbbArgs *found = index >= 0 ? ebb_args_get_args (tree, (guint) index) : NULL;

  if (tree != NULL && found == NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "the state saved in %s has no %s", self->shown, part);
  return found;
}

void
ebb_shard_source_free (EbbShardSource *self)
{
  g_hash_table_unref (self->files);
  for (guint t = 0; t < EBB_N_SHARD_TABLES; t++)
    g_clear_pointer (&self->tensors[t], ebb_args_unref);
  g_clear_pointer (&self->tree, ebb_args_unref);
  ebb_shard_index_free (self->index);
  g_free (self->folder);
  g_free (self->shown);
  g_free (self);
}
