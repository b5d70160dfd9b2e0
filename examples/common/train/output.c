/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Checks before the training that files can be written; finds states; prints errors. */
#include "common/train/output.h"

#include "common/command.h"
#include "common/read-file.h"
#include "common/train/model.h"
#include "common/train/store.h"
#include "common/written-file.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* A state that one process saved with version 1.0. */
static gboolean
is_old_state (const char *name)
{
  return g_pattern_match_simple ("state-*.safetensors", name) && !is_part (name);
}

/* Tells whether an index.json belongs to a state: other programs write files of this name, too. */
static gboolean
is_index (const char *folder,
          const char *name)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);
  char start[64] = "";

  if (strcmp (name, "index.json") == 0)
    read_start (path, start, sizeof start - 1);
  return strstr (start, "\"ebb-sharded-state\"") != NULL;
}

/* What a training writes beside the model, if it is interrupted before it writes that. Hidden files are no model's. */
static gboolean
is_of_training (const char *folder,
                const char *name)
{
  return *name == '.' || is_part (name) || is_old_state (name) || is_index (folder, name)
         || g_pattern_match_simple ("index-*.json", name) || strcmp (name, "steps.jsonl") == 0
         || g_str_has_prefix (name, "events.out.");
}

/* Weights are a file, a folder or a GGUF file. --model may be in the state of a resumed training. */
static gboolean
check_weights (const Options *options,
               const char *option,
               const char *path,
               GError **error)
{
  if (path != NULL && model_is_saved_whole (options, path) && !g_str_has_suffix (path, ".gguf"))
    return written_file_check_folder (option, path, error);
  return written_file_check (option, path, options->overwrite ? WRITTEN_ANY : WRITTEN_WEIGHTS, error);
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
has_values_of (JsonObject *ours,
               JsonObject *there)
{
  static const char *const needed[] = { "peft_type", "r", "target_modules" };
  JsonObjectIter iter;
  const char *key;
  JsonNode *value;

  for (guint i = 0; i < G_N_ELEMENTS (needed); i++)
    if (!json_object_has_member (there, needed[i]))
      return FALSE;
  json_object_iter_init (&iter, there);
  while (json_object_iter_next (&iter, &key, &value))
    if (!json_object_has_member (ours, key) || !json_node_equal (value, json_object_get_member (ours, key)))
      return FALSE;
  return TRUE;
}

/* Tells whether the folder's configuration belongs to this model or adapter. */
static gboolean
is_own (const Options *options,
        EbbModule *model,
        const char *path,
        const char *config)
{
  g_autoptr (JsonNode) ours = json_from_string (config, NULL);
  g_autoptr (JsonNode) there = NULL;
  g_autofree char *text = NULL;
  gsize size;

  if (options_have_adapter (options))
    {
      there = option_table_read_json (path);
      return there != NULL && has_values_of (json_node_get_object (ours), json_node_get_object (there));
    }
  text = ebb_read_file (path, READ_JSON_MAX_SIZE, &size, NULL);
  return text != NULL && ebb_model_check_config (model, model_get_saved_dtype (options), text, NULL);
}

static gboolean
check_replaced (const Options *options,
                const char *option,
                const char *path,
                EbbModule *model,
                GError **error)
{
  const gboolean is_adapter = options_have_adapter (options);
  const char *name = is_adapter ? "adapter_config.json" : "config.json";
  g_autofree char *file = path != NULL ? g_build_filename (path, name, NULL) : NULL;
  g_autofree char *config = NULL;

  if (path == NULL || !model_is_saved_whole (options, path) || !g_file_test (path, G_FILE_TEST_IS_DIR)
      || is_free (path))
    return TRUE;
  if (g_file_test (file, G_FILE_TEST_EXISTS))
    {
      config = is_adapter ? ebb_lora_make_config (model, NULL, error)
                          : ebb_model_make_config (model, model_get_saved_dtype (options), error);
      if (config == NULL || is_own (options, model, file, config))
        return config != NULL;
      g_set_error (error, EBB_ERROR, EBB_ERROR_IO,
                   "--%s %s: its %s is not this %s's: name a new or an empty folder, or replace it by --overwrite",
                   option, path, name, is_adapter ? "adapter" : "model");
    }
  else
    g_set_error (error, EBB_ERROR, EBB_ERROR_IO,
                 "--%s %s: it is a folder with files that are not %s's: name a new or an empty folder, or write beside "
                 "them by --overwrite",
                 option, path, is_adapter ? "an adapter" : "a model");
  return FALSE;
}

gboolean
output_check_replaced (const Options *options,
                       EbbModule *model,
                       GError **error)
{
  return options->overwrite || options->silenced || options->estimate
         || (check_replaced (options, "save", options->save, model, error)
             && check_replaced (options, options->program->tunes ? "save" : "save-best", options->save_best, model,
                                error));
}

gboolean
output_check_base (const Options *options,
                   GError **error)
{
  const char *path = options->save != NULL ? options->save : options->save_best;
  struct stat base, target;

  if (!options->program->tunes || path == NULL || stat (options->model, &base) != 0 || stat (path, &target) != 0
      || base.st_dev != target.st_dev || base.st_ino != target.st_ino)
    return TRUE;
  return options_refuse (error, "--save %s: it is --model %s, which is only read: name another %s", path,
                         options->model, S_ISDIR (base.st_mode) ? "folder" : "file");
}

gboolean
output_check (const Options *options,
              GError **error)
{
  const gboolean replaces = options->overwrite;
  const WrittenKind trace = replaces ? WRITTEN_ANY : WRITTEN_TRACE;

  return (options->silenced
          || (check_weights (options, "save", options->save, error)
              && check_weights (options, options->program->tunes ? "save" : "save-best", options->save_best, error)))
         && written_file_check ("report", options->report, replaces ? WRITTEN_ANY : WRITTEN_REPORT, error)
         && written_file_check ("profile", options->profile, trace, error)
         && written_file_check ("stream-trace", options->stream_trace, trace, error)
         && written_file_check ("memory-timeline", options->memory_timeline, replaces ? WRITTEN_ANY : WRITTEN_PICTURE,
                                error)
         && (options->plan == NULL || g_file_test (options->plan, G_FILE_TEST_EXISTS)
             || written_file_check ("plan", options->plan, WRITTEN_ANY, error))
         && written_file_check_folder ("resume", options->resume, error)
         && written_file_check_folder ("log", options->log, error)
         && (!store_has_file (options) || written_file_check_folder ("store-folder", options->store_folder, error));
}

static void
note_state (const char *name,
            guint *found)
{
  if (strcmp (name, "index.json") == 0)
    *found |= FOUND_STATE;
  else if (g_str_has_prefix (name, "index.json.") && g_str_has_suffix (name, ".ebb-partial"))
    *found |= FOUND_UNFINISHED;
  else if (is_part (name))
    *found |= FOUND_PARTS;
  else if (is_old_state (name))
    *found |= FOUND_STATE;
}

gboolean
output_find_state (const char *folder,
                   guint *found,
                   GError **error)
{
  DIR *dir = folder != NULL ? opendir (folder) : NULL;
  const struct dirent *entry;
  int number = folder != NULL ? errno : ENOENT;

  *found = 0;
  if (dir != NULL)
    {
      while ((errno = 0, entry = readdir (dir)) != NULL)
        note_state (entry->d_name, found);
      number = errno;
      closedir (dir);
    }
  else if (number == ENOENT || number == ENOTDIR) /* another check finds folders that can't be written */
    number = 0;
  if (number == 0)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "--resume %s: can't read the folder %s: %s", folder, folder,
               g_strerror (number));
  return FALSE;
}

gboolean
output_check_no_model (const char *folder,
                       GError **error)
{
  static const char *const names[] = { "config.json", "adapter_config.json" };

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autofree char *path = g_build_filename (folder, names[i], NULL);

      if (!g_file_test (path, G_FILE_TEST_EXISTS))
        continue;
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                   "--resume %s: the folder has %s, but no state of a training: name the folder of a state, or a new "
                   "one; --%s continues from %s",
                   folder, names[i], i == 0 ? "model" : "adapter", i == 0 ? "a model" : "an adapter");
      return FALSE;
    }
  return TRUE;
}

void
output_print_error (const char *message)
{
  g_autoptr (GString) line = g_string_new (message);

  /* Replaces names of the library by those of the command line. */
  g_string_replace (line, "; raise byte-limit", "; raise --store-limit", 0);
  g_string_replace (line, "set when-full and a fallback", "name a --store-fallback", 0);
  g_string_replace (line, "; open another tokenizer,", "; name a folder with one by --tokenizer DIR,", 0);
  command_fail (1, line->str);
}

/* The last message, until it is known whether an error repeats it. */
static char *message;
static pthread_mutex_t message_lock = PTHREAD_MUTEX_INITIALIZER;

static GLogWriterOutput
keep_message (GLogLevelFlags level,
              const GLogField *fields,
              gsize n_fields,
              gpointer data)
{
  if ((level & G_LOG_LEVEL_MASK) != G_LOG_LEVEL_MESSAGE)
    return g_log_writer_default (level, fields, n_fields, data);
  for (gsize i = 0; i < n_fields; i++)
    if (strcmp (fields[i].key, "MESSAGE") == 0)
      {
        pthread_mutex_lock (&message_lock);
        g_free (message);
        message = g_strdup (fields[i].value);
        pthread_mutex_unlock (&message_lock);
      }
  return G_LOG_WRITER_HANDLED;
}

void
output_init (void)
{
  g_log_set_writer_func (keep_message, NULL, NULL);
}

void
output_print_message (void)
{
  g_autofree char *last = NULL;

  pthread_mutex_lock (&message_lock);
  last = g_steal_pointer (&message);
  pthread_mutex_unlock (&message_lock);
  if (last != NULL)
    output_print_error (last);
}
