/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/fuzz.h"

#include "wrap/shard/state/index-private.h"

#include <glib/gstdio.h>
#include <string.h>

/* The index of a sharded state: what is taken is written and read as the same, and each of its slices can be used; now
 * and then the state is loaded by it. */

static char *texts[3]; /* as objects without the head that has the checksum */
static char *folder;
static EbbModule *module;
static EbbOptimizer *optimizer;

/* The text after the checksum. */
static const char *
find_rest (const char *text)
{
  return strstr (text, "\"sum\": \"") + strlen ("\"sum\": \"0123456789abcdef\"");
}

static char *
make_object (char *text)
{
  char *object = g_strconcat ("{", strchr (find_rest (text), ',') + 1, NULL);

  g_free (text);
  return object;
}

static char *
make_index (gboolean is_split)
{
  static const gint64 shape[] = { 6, 4 };
  g_autoptr (EbbShardIndex) index = ebb_shard_index_new (3, 4);

  for (guint t = 0; t < EBB_N_SHARD_TABLES; t++)
    {
      EbbShardFile table = (EbbShardFile) t;
      EbbShardRecord *parted = ebb_shard_index_add (index, table, "0.weight/exp_avg", EBB_DTYPE_F32, shape, 2);
      EbbShardRecord *blocks = ebb_shard_index_add (index, table, "0.weight/absmax", EBB_DTYPE_U8, shape, 2);
      EbbShardRecord *other = ebb_shard_index_add (index, table, "1.weight", EBB_DTYPE_BF16, shape, 2);

      parted->n_steps = 5;
      parted->split = (EbbTensorSplit){ is_split, 1, is_split ? 2 : 1 };
      for (guint r = 0; r < 4; r++)
        ebb_shard_record_add_range (parted, r, is_split ? r / 2 * 6 : r * 6, is_split ? r / 2 * 6 + 6 : r * 6 + 6,
                                    is_split ? r % 2 : 0);
      blocks->per_rank = TRUE;
      ebb_shard_record_add_range (blocks, 1, 0, 24, 0);
      g_free (other->stored_as);
      other->stored_as = g_strdup ("0.weight");
      ebb_shard_record_add_range (other, 2, 0, 24, 0);
    }
  for (guint i = 0; i < EBB_N_SHARD_FILES; i++)
    index->has_files[i] = TRUE;
  if (is_split)
    {
      index->mesh = g_new (EbbShardCoordinates, 4);
      for (guint r = 0; r < 4; r++)
        index->mesh[r] = (EbbShardCoordinates){ r / 2, r % 2 };
    }
  return make_object (ebb_shard_index_to_text (index));
}

static char *
save_state (void)
{
  g_autofree char *path = NULL;
  char *text;

  folder = g_dir_make_tmp ("ebb-fuzz-XXXXXX", NULL);
  module = ebb_linear_new (3, 2, TRUE, NULL);
  optimizer = ebb_adamw_new (module, 1e-2, NULL);
  if (!ebb_save_sharded_state (module, optimizer, folder, NULL))
    g_error ("no state was saved in %s", folder);
  path = g_build_filename (folder, "index.json", NULL);
  g_file_get_contents (path, &text, NULL, NULL);
  return make_object (text);
}

static gboolean
load_state (const char *text, GError **error)
{
  g_autofree char *path = g_build_filename (folder, "index.json", NULL);

  g_remove (path);
  g_file_set_contents_full (path, text, -1, G_FILE_SET_CONTENTS_NONE, 0600, NULL);
  return ebb_load_sharded_state (module, optimizer, folder, error);
}

/* Where the elements of small records lie. */
static void
use (EbbShardIndex *index)
{
  for (guint t = 0; t < EBB_N_SHARD_TABLES; t++)
    for (guint i = 0; i < index->records[t]->len; i++)
      {
        const EbbShardRecord *record = g_ptr_array_index (index->records[t], i);
        g_autofree guint8 *full = g_malloc0 (4096);
        g_autofree guint8 *slice_data = g_malloc0 (4096);
        const EbbShardSlice all = ebb_shard_slice_all (record->n_elements);

        if (record->per_rank || record->n_elements > 4096)
          continue;
        for (guint p = 0; p < record->ranges->len; p++)
          {
            const EbbSavedRange *range = &g_array_index (record->ranges, EbbSavedRange, p);
            const EbbShardSlice slice = ebb_shard_record_get_slice (record, range->index);

            ebb_shard_slice_copy (&slice, range->begin, range->end, slice_data, &all, 0, record->n_elements, full, 1);
          }
      }
  for (guint r = 0; r < MIN (index->n_ranks, 64); r++)
    ebb_shard_index_get_coordinates (index, r);
  ebb_shard_index_count_tensor_ranks (index);
}

static gboolean
try_index (const char *text, GError **error)
{
  g_autoptr (EbbShardIndex) index = ebb_shard_index_parse (text, "an index", error);
  g_autoptr (EbbShardIndex) again = NULL;
  g_autofree char *written = NULL;

  if (index == NULL || !ebb_shard_index_check (index, "an index", error))
    return FALSE;
  use (index);
  written = ebb_shard_index_to_text (index);
  again = ebb_shard_index_parse (written, "an index", error);
  if (again == NULL || !ebb_shard_index_check (again, "an index", error))
    g_error ("what was read can't be written and read again");
  return TRUE;
}

static gboolean
try_case (GString *input, GError **error)
{
  guint which = fuzz_draw (G_N_ELEMENTS (texts));
  g_autofree char *sealed = NULL;

  g_string_append (input, texts[which]);
  if (fuzz_draw (20) > 0)
    fuzz_damage (input);
  if (input->len > 0 && input->str[0] == '{')
    input->str[0] = ',';
  sealed = ebb_shard_index_seal (input->str);
  if (fuzz_draw (30) == 0)
    {
      g_autoptr (GString) text = g_string_new (sealed);

      fuzz_damage (text);
      g_free (sealed);
      sealed = g_strdup (text->str);
    }
  return which == 0 && fuzz_draw (16) == 0 ? load_state (sealed, error) : try_index (sealed, error);
}

int
main (int argc, char **argv)
{
  int status;
  GDir *dir;
  const char *name;

  texts[0] = save_state ();
  texts[1] = make_index (FALSE);
  texts[2] = make_index (TRUE);
  status = fuzz_run (argc, argv, "shard-index", 30000, try_case);
  dir = g_dir_open (folder, 0, NULL);
  while ((name = g_dir_read_name (dir)) != NULL)
    {
      g_autofree char *path = g_build_filename (folder, name, NULL);

      g_remove (path);
    }
  g_dir_close (dir);
  g_rmdir (folder);
  g_object_unref (optimizer);
  g_object_unref (module);
  return status;
}
