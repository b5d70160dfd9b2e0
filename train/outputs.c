/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The folders and files of a training: finds the state to resume, checks what will be written, and saves weights. */
#include "train/outputs-private.h"

#include "nn/files/safetensors.h"
#include "nn/initialization.h"
#include "nn/models/bert.h"
#include "nn/models/gpt.h"
#include "nn/module-instance-private.h"
#include "tensor/dry-run.h"
#include "tensor/error-private.h"
#include "tensor/random.h"
#include "tensor/util/atomic-file-private.h"
#include "tensor/util/json-private.h"
#include "wrap/lora/wrapper.h"
#include "wrap/shard/state/state-dict.h"

#include <dirent.h>
#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_MAX_SIZE ((gsize) 1 << 24)

/* -- states -------------------------------------------------------------------------------------------------------- */

typedef enum
{
  FOUND_STATE = 1 << 0,      /* an index, or a file of version 1.0 that has all */
  FOUND_PARTS = 1 << 1,      /* files that an index should name */
  FOUND_UNFINISHED = 1 << 2, /* an index that a save has begun */
} Found;

/* A file of a state that an index names: model-00000003-00001-of-00004.safetensors. The shards of a model's folder have
 * one number less. */
static gboolean
is_part (const char *name)
{
  static const char *const kinds[] = { "model", "optimizer", "state" };

  for (guint i = 0; i < G_N_ELEMENTS (kinds); i++)
    {
      g_autofree char *pattern = g_strconcat (kinds[i], "-*-*-of-*.safetensors", NULL);

      if (g_pattern_match_simple (pattern, name))
        return TRUE;
    }
  return FALSE;
}

static void
note_file (const char *name, guint *found)
{
  if (strcmp (name, "index.json") == 0)
    *found |= FOUND_STATE;
  else if (g_str_has_prefix (name, "index.json.") && g_str_has_suffix (name, ".ebb-partial"))
    *found |= FOUND_UNFINISHED;
  else if (is_part (name))
    *found |= FOUND_PARTS;
  else if (g_pattern_match_simple ("state-*.safetensors", name)) /* that one process saved with version 1.0 */
    *found |= FOUND_STATE;
}

static gboolean
list_files (const char *folder, guint *found, GError **error)
{
  DIR *dir = opendir (folder);
  const struct dirent *entry;
  int number = errno;

  *found = 0;
  if (dir != NULL)
    {
      while ((errno = 0, entry = readdir (dir)) != NULL)
        note_file (entry->d_name, found);
      number = errno;
      closedir (dir);
    }
  else if (number == ENOENT || number == ENOTDIR) /* the lock says what is wrong with a path that can't be written */
    number = 0;
  return number == 0
         || ebb_fail (error, EBB_ERROR_IO, "resume %s: can't read the folder %s: %s", folder, folder,
                      g_strerror (number));
}

static gboolean
check_no_model (const char *folder, GError **error)
{
  static const char *const names[] = { "config.json", "adapter_config.json" };

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autofree char *path = g_build_filename (folder, names[i], NULL);

      if (g_file_test (path, G_FILE_TEST_EXISTS))
        return ebb_fail (error, EBB_ERROR_STATE,
                         "resume %s: the folder has %s, but no state of a training: name the folder of a state, or a "
                         "new one",
                         folder, names[i]);
    }
  return TRUE;
}

static gboolean
find_state (const char *folder, gboolean *is_there, GError **error)
{
  guint found;

  *is_there = FALSE;
  if (!list_files (folder, &found, error) || (found == 0 && !check_no_model (folder, error)))
    return FALSE;
  *is_there = (found & FOUND_STATE) != 0;
  if (found == FOUND_PARTS)
    return ebb_fail (error, EBB_ERROR_STATE,
                     "resume %s: it holds parts of a state, but not its index.json: files are missing; remove the "
                     "parts, or name another folder",
                     folder);
  return TRUE;
}

/* -- checks -------------------------------------------------------------------------------------------------------- */

/* The path itself, or the folder above it that is there. */
static gboolean
check_writable (const char *name, const char *path, GError **error)
{
  g_autofree char *place = g_canonicalize_filename (path, NULL);

  while (!g_file_test (place, G_FILE_TEST_EXISTS))
    {
      char *above = g_path_get_dirname (place);

      g_free (place);
      place = above;
    }
  if (access (place, W_OK) != 0)
    return ebb_fail (error, EBB_ERROR_IO, "%s %s: can't write %s: %s", name, path, place, g_strerror (errno));
  if (g_file_test (path, G_FILE_TEST_EXISTS) || g_file_test (place, G_FILE_TEST_IS_DIR))
    return TRUE;
  return ebb_fail (error, EBB_ERROR_IO, "%s %s: %s is a file, not a folder", name, path, place);
}

/* Tells whether an index.json belongs to a state: other programs write files of this name, too. */
static gboolean
is_index (const char *folder, const char *name)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);
  char start[64] = "";
  gsize size;
  const int fd = strcmp (name, "index.json") == 0 ? ebb_open_regular_file (path, &size, NULL) : -1;

  if (fd < 0)
    return FALSE;
  ebb_read_file_part (fd, path, 0, start, MIN (size, sizeof start - 1), NULL);
  close (fd);
  return strstr (start, "\"ebb-sharded-state\"") != NULL;
}

/* What a training writes beside the model, if it is interrupted before it writes that. Hidden files are no model's. */
static gboolean
is_of_training (const char *folder, const char *name)
{
  guint found = 0;

  note_file (name, &found);
  return *name == '.' || (found != 0 && strcmp (name, "index.json") != 0) || is_index (folder, name)
         || g_pattern_match_simple ("index-*.json", name) || strcmp (name, "steps.jsonl") == 0
         || g_str_has_prefix (name, "events.out.");
}

/* Checks that a folder has no files except those of a training. */
static gboolean
is_free (const char *path)
{
  g_autoptr (GDir) folder = g_dir_open (path, 0, NULL);
  const char *name;

  while (folder != NULL && (name = g_dir_read_name (folder)) != NULL)
    if (!is_of_training (path, name))
      return FALSE;
  return TRUE;
}

/* Tells whether each key of the saved configuration has the adapter's value. A later version may write more keys. */
static gboolean
is_own_adapter (EbbModule *model, const char *file)
{
  static const char *const needed[] = { "peft_type", "r", "target_modules" };
  g_autofree char *text = ebb_lora_make_config (model, NULL, NULL);
  g_autoptr (EbbJson) ours = text != NULL ? ebb_json_parse (text, strlen (text), "adapter", NULL) : NULL;
  g_autoptr (EbbJson) there = ebb_json_read_file (file, CONFIG_MAX_SIZE, NULL);

  for (guint i = 0; i < G_N_ELEMENTS (needed); i++)
    if (ebb_json_get (there, needed[i]) == NULL)
      return FALSE;
  for (gsize i = 0; i < there->n_items; i++)
    {
      const EbbJson *value = ebb_json_get (ours, there->items[i].key);
      g_autofree char *theirs = ebb_json_to_line (&there->items[i]);
      g_autofree char *own = value != NULL ? ebb_json_to_line (value) : NULL;

      if (g_strcmp0 (own, theirs) != 0)
        return FALSE;
    }
  return TRUE;
}

static gboolean
is_own_model (EbbModule *model, int dtype, const char *file)
{
  gsize size;
  g_autofree char *config = ebb_read_file (file, CONFIG_MAX_SIZE, &size, NULL);

  return config != NULL && ebb_model_check_config (model, dtype, config, NULL);
}

gboolean
ebb_train_check_output (const char *name, const char *path, EbbModule *model, int dtype, GError **error)
{
  const gboolean is_adapter = ebb_lora_is_wrapped (model);
  const char *config = is_adapter ? "adapter_config.json" : "config.json";
  g_autofree char *file = g_build_filename (path, config, NULL);

  if (!check_writable (name, path, error))
    return FALSE;
  if (is_adapter && !ebb_lora_check_save (model, path, NULL, error))
    {
      g_prefix_error (error, "%s %s: ", name, path);
      return FALSE;
    }
  if (!g_file_test (path, G_FILE_TEST_IS_DIR) || is_free (path))
    return TRUE;
  if (!g_file_test (file, G_FILE_TEST_EXISTS))
    return ebb_fail (error, EBB_ERROR_IO,
                     "%s %s: it is a folder with files that are not %s's: name a new or an empty folder", name, path,
                     is_adapter ? "an adapter" : "a model");
  return (is_adapter ? is_own_adapter (model, file) : is_own_model (model, dtype, file))
         || ebb_fail (error, EBB_ERROR_IO, "%s %s: its %s is not this %s's: name a new or an empty folder", name, path,
                      config, is_adapter ? "adapter" : "model");
}

gboolean
ebb_train_take_outputs (const EbbTrainerSettings *settings,
                        EbbModule *model,
                        int dtype,
                        guint rank,
                        EbbFolderLock **lock,
                        gboolean *is_there,
                        GError **error)
{
  *is_there = FALSE;
  if (ebb_is_dry_run ())
    return TRUE;
  if (settings->save_best != NULL && rank == 0
      && !ebb_train_check_output ("save-best", settings->save_best, model, dtype, error))
    return FALSE;
  if (settings->resume == NULL)
    return TRUE;
  if (!find_state (settings->resume, is_there, error))
    return FALSE;
  if (rank > 0 || *lock != NULL)
    return TRUE;
  *lock = ebb_folder_lock_new (settings->resume, error);
  if (*lock == NULL)
    g_prefix_error (error, "resume: ");
  return *lock != NULL;
}

/* -- weights ------------------------------------------------------------------------------------------------------- */

static gboolean
is_split (EbbModule *model)
{
  return !ebb_module_check_full (model, TRUE, "", NULL) || !ebb_module_check_not_tensor_parallel (model, "", NULL);
}

/* A model with all elements of @state. The training draws the same random numbers with and without it. */
static EbbModule *
make_full (EbbModule *model, EbbArgs *state, GError **error)
{
  g_autoptr (EbbModule) copy = NULL;
  g_autoptr (EbbTensor) first = ebb_args_get_tensor (state, 0);
  EbbGenerator *generator = ebb_generator_get_default ();
  const guint64 seed = ebb_generator_get_seed (generator), offset = ebb_generator_get_offset (generator);

  ebb_push_initialization_skipped ();
  ebb_push_parameter_dtype (ebb_tensor_get_dtype (first));
  if (EBB_IS_BERT (model))
    {
      g_autoptr (EbbBertConfig) config = ebb_bert_get_config (EBB_BERT (model));

      copy = ebb_bert_new (config, error);
    }
  else
    {
      g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (EBB_GPT (model));

      copy = ebb_gpt_new (config, error);
    }
  ebb_pop_parameter_dtype ();
  ebb_pop_initialization_skipped ();
  ebb_generator_set_state (generator, seed, offset);
  return copy != NULL && ebb_module_load_state_dict (copy, state, TRUE, error) ? g_steal_pointer (&copy) : NULL;
}

/* One file, with the names that are published for GPT-2 and BERT, else with the module's own. */
static gboolean
write_file (EbbModule *model, EbbArgs *state, const char *path, GError **error)
{
  g_autoptr (EbbModule) full = NULL;
  g_autoptr (EbbArgs) named = NULL;
  g_autoptr (EbbArgs) metadata = NULL;

  if (!EBB_IS_GPT (model) && !EBB_IS_BERT (model))
    {
      named = state != NULL ? ebb_args_ref (state) : ebb_module_get_state_dict (model);
      return ebb_save_safetensors (path, named, NULL, error);
    }
  full = state != NULL ? make_full (model, state, error) : g_object_ref (model);
  if (full == NULL)
    return FALSE;
  if (EBB_IS_BERT (full))
    named = ebb_bert_to_published_state (EBB_BERT (full), error);
  else
    {
      g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (EBB_GPT (full));

      named = ebb_gpt_to_gpt2_state (EBB_GPT (full), error);
      metadata = ebb_gpt_config_to_gpt2_metadata (config);
    }
  return named != NULL && ebb_save_safetensors (path, named, metadata, error);
}

static gboolean
save_file (EbbModule *model, EbbTrainRanks *ranks, const char *path, GError **error)
{
  g_autoptr (EbbArgs) state = NULL;
  gboolean ok = TRUE;

  if (is_split (model) && (state = ebb_get_full_state_dict (model, TRUE, error)) == NULL)
    return FALSE;
  if (ranks->rank == 0)
    ok = write_file (model, state, path, error);
  return ebb_train_ranks_agree (ranks, ok, error);
}

gboolean
ebb_train_save_model (EbbModule *model, EbbTrainRanks *ranks, const char *path, int dtype, GError **error)
{
  gboolean ok = TRUE;

  if (!ebb_lora_is_wrapped (model) && g_str_has_suffix (path, ".safetensors"))
    return save_file (model, ranks, path, error);
  /* Ranks that hold parts of the weights write them together. */
  if (ranks->rank == 0 || is_split (model))
    ok = ebb_lora_is_wrapped (model) ? ebb_lora_save (model, path, NULL, error)
                                     : ebb_model_save_full (model, path, dtype, 0, error);
  return is_split (model) ? ok : ebb_train_ranks_agree (ranks, ok, error);
}
