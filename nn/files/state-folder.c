/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/files/state-folder-private.h"

#include "tensor/util/atomic-file-private.h"
#include "nn/files/safetensors.h"
#include "nn/files/state-tree-private.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>

/* Numbered state files in a folder: finds the newest that is complete, writes the next, removes the oldest. */

#define PREFIX "state-"
#define SUFFIX ".safetensors"
#define MAX_NUMBER G_GUINT64_CONSTANT (1000000000000000000) /* there always is a next one */
#define METADATA_KEY "ebb.state"

/* The number in a state's file name; 0 if it is not one. */
static guint64
parse_name (const char *name)
{
  g_autofree char *digits = NULL;
  guint64 number = 0;

  if (!g_str_has_prefix (name, PREFIX) || !g_str_has_suffix (name, SUFFIX))
    return 0;
  digits = g_strndup (name + strlen (PREFIX), strlen (name) - strlen (PREFIX SUFFIX));
  return g_ascii_string_to_unsigned (digits, 10, 1, MAX_NUMBER, &number, NULL) ? number : 0;
}

static char *
make_path (const char *folder,
           guint64 number)
{
  g_autofree char *name = g_strdup_printf (PREFIX "%08" G_GUINT64_FORMAT SUFFIX, number);

  return g_build_filename (folder, name, NULL);
}

static int
compare_descending (gconstpointer a,
                    gconstpointer b)
{
  guint64 x = *(const guint64 *) a, y = *(const guint64 *) b;

  return x > y ? -1 : x < y;
}

/* The numbers of all states, the newest first; NULL with @error if the folder can't be read to its end. */
static GArray *
list_states (const char *folder,
             GError **error)
{
  g_auto (GStrv) names = ebb_list_folder (folder, error);
  GArray *numbers;

  if (names == NULL)
    return NULL;
  numbers = g_array_new (FALSE, FALSE, sizeof (guint64));
  for (guint i = 0; names[i] != NULL; i++)
    {
      guint64 number = parse_name (names[i]);

      if (number > 0)
        g_array_append_val (numbers, number);
    }
  g_array_sort (numbers, compare_descending);
  return numbers;
}

/* Removes all states but the first @keep of @numbers. One that can't be removed takes room, and does no other harm. */
static void
remove_older (const char *folder,
              GArray *numbers,
              guint keep)
{
  for (guint i = keep; i < numbers->len; i++)
    {
      g_autofree char *path = make_path (folder, g_array_index (numbers, guint64, i));

      g_unlink (path);
    }
}

gboolean
ebb_state_file_write (const char *path,
                      EbbArgs *tree,
                      GError **error)
{
  g_autoptr (EbbArgs) tensors = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) metadata = ebb_args_new (EBB_ARGS_DICT);
  g_autofree char *text = ebb_state_tree_flatten (tree, tensors, error);

  if (text == NULL)
    return FALSE;
  ebb_args_add_string (metadata, METADATA_KEY, text);
  return ebb_save_safetensors (path, tensors, metadata, error);
}

gboolean
ebb_state_folder_write (const char *folder,
                        EbbArgs *tree,
                        guint keep,
                        GError **error)
{
  g_autoptr (GArray) numbers = NULL;
  g_autofree char *path = NULL;
  guint64 number;

  if (g_mkdir_with_parents (folder, 0777) != 0)
    {
      const int reason = errno;
      g_autofree char *shown = ebb_escape_text (folder);

      g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "can't make the folder %s: %s", shown, g_strerror (reason));
      return FALSE;
    }
  numbers = list_states (folder, error);
  if (numbers == NULL)
    return FALSE;
  number = numbers->len > 0 ? g_array_index (numbers, guint64, 0) + 1 : 1;
  path = make_path (folder, number);
  /* Remove files of a killed save and old states before this save needs the room. Keep two states even if @keep is 1:
   * the newest may turn out to be damaged. */
  ebb_atomic_file_clean (folder, PREFIX);
  remove_older (folder, numbers, MAX (keep, 2));
  if (!ebb_state_file_write (path, tree, error))
    return FALSE;
  g_array_prepend_val (numbers, number);
  remove_older (folder, numbers, keep);
  return TRUE;
}

EbbArgs *
ebb_state_file_read (const char *path,
                     GError **error)
{
  g_autoptr (EbbArgs) metadata = NULL;
  g_autoptr (EbbArgs) tensors = ebb_load_safetensors_full (path, &metadata, error);
  int index = tensors ? ebb_args_find (metadata, METADATA_KEY) : -1;

  if (tensors == NULL)
    return NULL;
  if (index < 0)
    {
      g_autofree char *shown = ebb_escape_text (path);

      g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: it holds tensors, but no saved training", shown);
      return NULL;
    }
  return ebb_state_tree_restore (ebb_args_get_string (metadata, (guint) index), tensors, path, error);
}

gboolean
ebb_state_folder_has_state (const char *folder)
{
  g_autoptr (GArray) numbers = list_states (folder, NULL);

  return numbers != NULL && numbers->len > 0;
}

EbbArgs *
ebb_state_folder_read (const char *folder,
                       GError **error)
{
  g_autoptr (GArray) numbers = list_states (folder, error);
  g_autoptr (GError) first = NULL;

  if (numbers == NULL)
    return NULL;
  for (guint i = 0; i < numbers->len; i++)
    {
      g_autofree char *path = make_path (folder, g_array_index (numbers, guint64, i));
      g_autoptr (GError) failure = NULL;
      EbbArgs *tree = ebb_state_file_read (path, &failure);

      if (tree != NULL)
        return tree;
      /* A damaged file stays so; one that can't be read now may be whole. */
      if (g_error_matches (failure, EBB_ERROR, EBB_ERROR_IO)
          || g_error_matches (failure, EBB_ERROR, EBB_ERROR_NO_MEMORY))
        {
          g_propagate_error (error, g_steal_pointer (&failure));
          return NULL;
        }
      g_message ("a saved state is passed over: %s", failure->message);
      if (first == NULL)
        first = g_steal_pointer (&failure);
    }
  if (first != NULL)
    g_propagate_error (error, g_steal_pointer (&first));
  else
    {
      g_autofree char *shown = ebb_escape_text (folder);

      g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "%s: no training was saved there", shown);
    }
  return NULL;
}
