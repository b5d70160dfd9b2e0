/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Checks before the training that files can be written; finds states; prints errors. */
#include "common/train/output.h"

#include "common/command.h"
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

static gboolean
is_state (const char *name)
{
  return g_str_has_prefix (name, "state-") && g_str_has_suffix (name, ".safetensors");
}

/* What a training writes beside the model, if it is interrupted before it writes that. Hidden files are no model's. */
static gboolean
is_of_training (const char *name)
{
  return *name == '.' || is_state (name) || strcmp (name, "index.json") == 0 || strcmp (name, "steps.jsonl") == 0
         || g_str_has_prefix (name, "events.out.");
}

gboolean
output_is_for_model (const char *path)
{
  static const char *const weights[] = { "model.safetensors", "model.safetensors.index.json" };
  g_autoptr (GDir) folder = g_dir_open (path, 0, NULL);
  const char *name = NULL;

  if (folder == NULL)
    return FALSE;
  for (guint i = 0; i < G_N_ELEMENTS (weights); i++)
    {
      g_autofree char *file = g_build_filename (path, weights[i], NULL);

      if (g_file_test (file, G_FILE_TEST_EXISTS))
        return TRUE;
    }
  while ((name = g_dir_read_name (folder)) != NULL)
    if (!is_of_training (name))
      return FALSE;
  return TRUE;
}

/* Weights are a file, a folder or a GGUF file. --model may be in the state of a resumed training. */
static gboolean
check_weights (const Options *options,
               const char *option,
               const char *path,
               GError **error)
{
  const gboolean is_whole = path != NULL && model_is_saved_whole (options, path);

  if (path != NULL && !options->program->tunes && g_file_test (path, G_FILE_TEST_IS_DIR) && !output_is_for_model (path))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_IO,
                   "--%s %s: it is a folder with files that are not a model's: name a new or an empty folder, or that "
                   "of a model",
                   option, path);
      return FALSE;
    }
  if (is_whole && !g_str_has_suffix (path, ".gguf"))
    return written_file_check_folder (option, path, error);
  return written_file_check (option, path, error);
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
  return (options->silenced
          || (check_weights (options, "save", options->save, error)
              && check_weights (options, options->program->tunes ? "save" : "save-best", options->save_best, error)))
         && written_file_check ("report", options->report, error)
         && written_file_check ("profile", options->profile, error)
         && written_file_check ("stream-trace", options->stream_trace, error)
         && written_file_check ("memory-timeline", options->memory_timeline, error)
         && (options->plan == NULL || g_file_test (options->plan, G_FILE_TEST_EXISTS)
             || written_file_check ("plan", options->plan, error))
         && written_file_check_folder ("resume", options->resume, error)
         && written_file_check_folder ("log", options->log, error)
         && (!store_has_file (options) || written_file_check_folder ("store-folder", options->store_folder, error));
}

static gboolean
is_part (const char *name)
{
  return strstr (name, "-of-") != NULL;
}

/* Calls @func for each file in @folder, in which there may be none; FALSE unless it was read to its end. */
static gboolean
visit_folder (const char *folder,
              void (*func) (const char *folder,
                            const char *name,
                            guint *found),
              guint *found,
              GError **error)
{
  DIR *dir = opendir (folder);
  const struct dirent *entry;
  int number = errno;

  if (dir != NULL)
    {
      while ((errno = 0, entry = readdir (dir)) != NULL)
        func (folder, entry->d_name, found);
      number = errno;
      closedir (dir);
    }
  else if (number == ENOENT || number == ENOTDIR) /* another check finds folders that can't be written */
    number = 0;
  if (number == 0)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "can't read the folder %s: %s", folder, g_strerror (number));
  return FALSE;
}

static void
remove_whole (const char *folder,
              const char *name,
              guint *found G_GNUC_UNUSED)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);

  if (is_state (name) && !is_part (name))
    unlink (path);
}

void
output_remove_whole_states (const char *folder)
{
  visit_folder (folder, remove_whole, NULL, NULL);
}

static void
note_state (const char *folder G_GNUC_UNUSED,
            const char *name,
            guint *found)
{
  if (strcmp (name, "index.json") == 0)
    *found |= FOUND_INDEX;
  else if (g_str_has_prefix (name, "index.json.") && g_str_has_suffix (name, ".ebb-partial"))
    *found |= FOUND_UNFINISHED;
  else if (is_state (name))
    *found |= is_part (name) ? FOUND_PARTS : FOUND_WHOLE;
}

gboolean
output_find_state (const char *folder,
                   guint *found,
                   GError **error)
{
  *found = 0;
  if (folder == NULL || visit_folder (folder, note_state, found, error))
    return TRUE;
  g_prefix_error (error, "--resume %s: ", folder);
  return FALSE;
}

void
output_print_error (const char *message)
{
  g_autoptr (GString) line = g_string_new (message);

  /* Replaces names of the library by those of the command line. */
  g_string_replace (line, "; raise byte-limit", "; raise --store-limit", 0);
  g_string_replace (line, "set when-full and a fallback", "name a --store-fallback", 0);
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
