/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/state-private.h"

#include "dist/agree-private.h"
#include "nn/files/state-file-private.h"
#include "tensor/util/atomic-file-private.h"

#include <glib/gstdio.h>
#include <string.h>

/* The names of a state's files, and which states a folder has. The newest state has index.json. Each older one that
 * stays has a copy of its index whose name has the number of its save. Version 1.0 wrote the state of one process as
 * one file, state-NUMBER.safetensors. Such files are read, and removed when a newer state is complete. */

#define INDEX_COPY "index-%08" G_GINT64_FORMAT ".json"
#define OLD_FILE "state-%08" G_GINT64_FORMAT ".safetensors"
#define MAX_NUMBER G_GINT64_CONSTANT (999999999999999999)

/* -- names --------------------------------------------------------------------------------------------------------- */

/* The number between @prefix and @suffix; 0: the name is another one. */
static gint64
parse_number (const char *name,
              const char *prefix,
              const char *suffix)
{
  g_autofree char *digits = NULL;
  guint64 number = 0;

  if (!g_str_has_prefix (name, prefix) || !g_str_has_suffix (name, suffix)
      || strlen (name) <= strlen (prefix) + strlen (suffix))
    return 0;
  digits = g_strndup (name + strlen (prefix), strlen (name) - strlen (prefix) - strlen (suffix));
  return g_ascii_string_to_unsigned (digits, 10, 1, MAX_NUMBER, &number, NULL) ? (gint64) number : 0;
}

static gint64
parse_index_copy (const char *name)
{
  return parse_number (name, "index-", ".json");
}

/* The number of a state that one process saved with version 1.0, as one file; 0: the name is another one. */
static gint64
parse_old (const char *name)
{
  return parse_number (name, "state-", ".safetensors");
}

char *
ebb_shard_index_make_copy_name (gint64 save)
{
  return g_strdup_printf (INDEX_COPY, save);
}

/* -- a folder ------------------------------------------------------------------------------------------------------ */

gint64
ebb_shard_folder_find_last (char **names)
{
  gint64 last = 0;

  for (guint i = 0; names[i] != NULL; i++)
    last = MAX (last, MAX (ebb_shard_file_parse_name (names[i]), parse_index_copy (names[i])));
  return last;
}

static int
compare_descending (gconstpointer a,
                    gconstpointer b)
{
  gint64 x = *(const gint64 *) a, y = *(const gint64 *) b;

  return x > y ? -1 : x < y;
}

/* The numbers that @parse finds in names, each once, the greatest first. */
static GArray *
list_numbers (char **names,
              gint64 (*parse) (const char *name))
{
  GArray *numbers = g_array_new (FALSE, FALSE, sizeof (gint64));

  for (guint i = 0; names[i] != NULL; i++)
    {
      gint64 number = parse (names[i]);

      if (number > 0)
        g_array_append_val (numbers, number);
    }
  g_array_sort (numbers, compare_descending);
  return numbers;
}

/* The states of a folder with files of these names: those with an index, the newest first, then those of version 1.0.
 */
static char **
list_names (char **names)
{
  g_autoptr (GArray) copies = list_numbers (names, parse_index_copy);
  g_autoptr (GArray) old = list_numbers (names, parse_old);
  g_autoptr (GStrvBuilder) states = g_strv_builder_new ();

  if (g_strv_contains ((const char *const *) names, EBB_SHARD_INDEX_FILE))
    g_strv_builder_add (states, EBB_SHARD_INDEX_FILE);
  for (guint i = 0; i < copies->len + old->len; i++)
    {
      g_autofree char *name =
          i < copies->len ? g_strdup_printf (INDEX_COPY, g_array_index (copies, gint64, i))
                          : g_strdup_printf (OLD_FILE, g_array_index (old, gint64, i - copies->len));

      g_strv_builder_add (states, name);
    }
  return g_strv_builder_end (states);
}

static void
remove_file (const char *folder,
             const char *name)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);

  g_unlink (path);
}

static gboolean
has_number (GArray *numbers,
            gint64 number)
{
  for (guint i = 0; i < numbers->len; i++)
    if (g_array_index (numbers, gint64, i) == number)
      return TRUE;
  return FALSE;
}

void
ebb_shard_folder_clean (const char *folder,
                        char **names,
                        gint64 newest,
                        guint keep)
{
  g_autoptr (GArray) copies = list_numbers (names, parse_index_copy);
  g_autoptr (GArray) kept = g_array_new (FALSE, FALSE, sizeof (gint64));

  if (newest > 0)
    g_array_append_val (kept, newest);
  for (guint i = 0; i < copies->len && kept->len < keep; i++)
    if (g_array_index (copies, gint64, i) != newest)
      g_array_append_val (kept, g_array_index (copies, gint64, i));
  /* Indices go first, so that there is none without its files. */
  for (guint i = 0; names[i] != NULL; i++)
    {
      const gint64 save = parse_index_copy (names[i]);

      if (save > 0 && (save == newest || !has_number (kept, save)))
        remove_file (folder, names[i]);
    }
  for (guint i = 0; names[i] != NULL; i++)
    {
      const gint64 save = ebb_shard_file_parse_name (names[i]);

      if (save > 0 && !has_number (kept, save) && !g_str_has_suffix (names[i], EBB_ATOMIC_FILE_SUFFIX))
        remove_file (folder, names[i]);
    }
  for (guint kind = 0; kind < EBB_N_SHARD_FILES; kind++)
    {
      g_autofree char *prefix = g_strconcat (ebb_shard_file_kinds[kind], "-", NULL);

      ebb_atomic_file_clean (folder, prefix);
    }
  ebb_atomic_file_clean (folder, "index-");
}

void
ebb_shard_folder_remove_old (const char *folder,
                             char **names)
{
  for (guint i = 0; names[i] != NULL; i++)
    if (parse_old (names[i]) > 0)
      remove_file (folder, names[i]);
}

/* -- the newest state that is whole -------------------------------------------------------------------------------- */

/* The state whose index, or whose file of version 1.0, is @name. Rank 0 reads the index, so that all ranks see the same
 * one. */
static EbbShardSource *
open_source (EbbProcessGroup *group,
             const char *folder,
             const char *name,
             GError **error)
{
  const gboolean is_old = parse_old (name) > 0;
  g_autofree char *path = g_build_filename (folder, name, NULL);
  g_autofree char *text = NULL;
  g_autoptr (EbbArgs) tree = NULL;
  g_autoptr (EbbShardSource) old = NULL;
  g_auto (GStrv) texts = NULL;
  GError *failure = NULL;

  if (is_old)
    old = (tree = ebb_state_file_read (path, &failure)) != NULL ? ebb_shard_source_new_old (folder, tree, &failure)
                                                                : NULL;
  else if (ebb_process_group_get_rank (group) == 0)
    text = ebb_shard_source_read_index (folder, name, &failure);
  if (!ebb_agree_no_failure (group, failure, error))
    return NULL;
  if (is_old)
    return g_steal_pointer (&old);
  texts = ebb_agree_gather_texts (group, text != NULL ? text : "", error);
  return texts != NULL ? ebb_shard_source_new (folder, name, texts[0], error) : NULL;
}

static EbbShardSource *
open_source_alone (const char *folder,
                   const char *name,
                   GError **error)
{
  g_autoptr (EbbProcessGroup) alone = ebb_single_group_new ();

  return open_source (alone, folder, name, error);
}

/* Sets @step to the step of a state, or to -1 if it has none, as that of a module alone; FALSE: it can't be read. */
static gboolean
read_step (const char *folder,
           const char *name,
           gint64 *step)
{
  g_autoptr (EbbShardSource) source = open_source_alone (folder, name, NULL);
  g_autoptr (EbbArgs) rest = source != NULL ? ebb_shard_source_read_tree (source, 0, "training", NULL) : NULL;
  const int index = rest != NULL ? ebb_args_find (rest, "step") : -1;

  *step = index >= 0 && ebb_args_get_value_kind (rest, (guint) index) == EBB_VALUE_INT
              ? ebb_args_get_int (rest, (guint) index)
              : -1;
  return source != NULL;
}

/* The states of the folder, the newest first. Version 1.0 wrote both kinds into one folder, each with numbers of its
 * own: there that of the greater step comes first. */
static char **
list_states (const char *folder,
             GError **error)
{
  g_auto (GStrv) names = ebb_list_folder (folder, error);
  g_auto (GStrv) states = names != NULL ? list_names (names) : NULL;
  gint64 newest_step, old_step;
  guint old = 0;

  if (states == NULL)
    return NULL;
  if (states[0] == NULL)
    return ebb_fail_null (error, EBB_ERROR_IO, "can't read a state in %s: no training was saved there",
                          ebb_show_text (folder));
  while (states[old] != NULL && parse_old (states[old]) == 0)
    old++;
  if (old > 0 && states[old] != NULL && read_step (folder, states[0], &newest_step)
      && read_step (folder, states[old], &old_step) && old_step > newest_step)
    {
      char *newest = states[old];

      memmove (&states[1], &states[0], old * sizeof states[0]);
      states[0] = newest;
    }
  return g_steal_pointer (&states);
}

/* Whether all ranks may try an older state: a damaged file stays so; one that can't be read now may be whole. */
static gboolean
may_try_older (EbbProcessGroup *group,
               gboolean is_final,
               const GError *failure)
{
  const gboolean is_damaged = !is_final && g_error_matches (failure, EBB_ERROR, EBB_ERROR_FORMAT);
  g_auto (GStrv) answers = NULL;

  if (g_error_matches (failure, EBB_ERROR, EBB_ERROR_PROCESS_GROUP))
    return FALSE;
  answers = ebb_agree_gather_texts (group, is_damaged ? "" : "no", NULL);
  for (guint r = 0; answers != NULL && answers[r] != NULL; r++)
    if (*answers[r] != '\0')
      return FALSE;
  return answers != NULL;
}

gboolean
ebb_shard_folder_use_newest (EbbProcessGroup *group,
                             const char *folder,
                             EbbShardUseFunc use,
                             gpointer user_data,
                             GError **error)
{
  const gboolean is_first = ebb_process_group_get_rank (group) == 0;
  GError *problem = NULL;
  g_auto (GStrv) listed = is_first ? list_states (folder, &problem) : NULL;
  g_autofree char *text = listed != NULL ? g_strjoinv ("\n", listed) : g_strdup ("");
  g_auto (GStrv) texts = NULL;
  g_auto (GStrv) states = NULL;
  g_autoptr (GError) first = NULL;

  if (!ebb_agree_no_failure (group, problem, error)
      || (texts = ebb_agree_gather_texts (group, text, error)) == NULL)
    return FALSE;
  states = g_strsplit (texts[0], "\n", -1);
  for (guint i = 0; states[i] != NULL; i++)
    {
      g_autoptr (GError) failure = NULL;
      g_autoptr (EbbShardSource) source = open_source (group, folder, states[i], &failure);
      gboolean is_final = FALSE;

      if (source != NULL && use (user_data, source, &is_final, &failure))
        return TRUE;
      if (states[i + 1] == NULL || !may_try_older (group, is_final, failure))
        {
          /* Of states that are all damaged the newest is named. */
          return ebb_fail_with (error, first != NULL && g_error_matches (failure, EBB_ERROR, EBB_ERROR_FORMAT)
                                           ? g_steal_pointer (&first)
                                           : g_steal_pointer (&failure));
        }
      if (is_first)
        g_message ("a saved state is passed over: %s", failure->message);
      if (first == NULL)
        first = g_steal_pointer (&failure);
    }
  return FALSE;
}
