/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include "store.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *program_name;

static gboolean
fail (GError **error,
      const char *option,
      const char *path,
      const char *folder,
      int number)
{
  g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "--%s %s: can't write in the folder %s: %s", option, path, folder,
               g_strerror (number));
  return FALSE;
}

/* Permissions tell less than an attempt: the file system may be read-only, or full of files. */
static gboolean
try_folder (const char *option,
            const char *path,
            const char *folder,
            GError **error)
{
  g_autofree char *name = g_strdup_printf (".%s-XXXXXX", program_name);
  g_autofree char *probe = g_build_filename (folder, name, NULL);
  int fd = g_mkstemp (probe);

  if (fd < 0)
    return fail (error, option, path, folder, errno);
  close (fd);
  g_unlink (probe);
  return TRUE;
}

static gboolean
check_file (const char *option,
            const char *path,
            GError **error)
{
  g_autofree char *folder = NULL;
  struct stat status;

  if (path == NULL)
    return TRUE;
  if (stat (path, &status) == 0 && !S_ISREG (status.st_mode))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "--%s %s: it is %s, it must be a file or not be there", option, path,
                   S_ISDIR (status.st_mode) ? "a folder" : "a device, pipe or socket");
      return FALSE;
    }
  folder = g_path_get_dirname (path);
  return try_folder (option, path, folder, error);
}

/* The folder is made when there is something to put into it; until then the nearest one above must do. */
static gboolean
check_folder (const char *option,
              const char *path,
              GError **error)
{
  g_autofree char *folder = g_strdup (path);
  struct stat status;

  if (path == NULL)
    return TRUE;
  while (stat (folder, &status) != 0)
    {
      char *parent = g_path_get_dirname (folder);

      if (errno != ENOENT || strcmp (parent, folder) == 0)
        {
          g_free (parent);
          return fail (error, option, path, folder, errno);
        }
      g_free (folder);
      folder = parent;
    }
  if (!S_ISDIR (status.st_mode))
    return fail (error, option, path, folder, ENOTDIR);
  return try_folder (option, path, folder, error);
}

gboolean
output_check (const Options *options,
              GError **error)
{
  return (options->silenced || check_file ("save", options->save, error))
         && check_file ("report", options->report, error) && check_file ("profile", options->profile, error)
         && check_file ("stream-trace", options->stream_trace, error) && check_folder ("resume", options->resume, error)
         && (!store_has_file (options) || check_folder ("store-folder", options->store_folder, error));
}

gboolean
output_write (const char *path,
              const char *text,
              GError **error)
{
  g_autoptr (GError) failure = NULL;

  if (g_file_set_contents_full (path, text, -1, G_FILE_SET_CONTENTS_CONSISTENT, 0666, &failure))
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "can't write %s: %s", path, failure->message);
  return FALSE;
}

static gboolean
is_state (const char *name)
{
  return g_str_has_prefix (name, "state-") && g_str_has_suffix (name, ".safetensors");
}

static gboolean
is_part (const char *name)
{
  return strstr (name, "-of-") != NULL;
}

void
output_remove_whole_states (const char *folder)
{
  GDir *dir = g_dir_open (folder, 0, NULL);
  const char *name;

  while (dir != NULL && (name = g_dir_read_name (dir)) != NULL)
    if (is_state (name) && !is_part (name))
      {
        g_autofree char *path = g_build_filename (folder, name, NULL);

        g_unlink (path);
      }
  if (dir != NULL)
    g_dir_close (dir);
}

guint
output_find_state (const char *folder)
{
  GDir *dir = g_dir_open (folder, 0, NULL);
  guint found = 0;
  const char *name;

  while (dir != NULL && (name = g_dir_read_name (dir)) != NULL)
    if (strcmp (name, "index.json") == 0)
      found |= FOUND_INDEX;
    else if (is_state (name))
      found |= is_part (name) ? FOUND_PARTS : FOUND_WHOLE;
  if (dir != NULL)
    g_dir_close (dir);
  return found;
}

void
output_print_error (const char *message)
{
  g_autoptr (GString) line = g_string_new (message);

  /* What the library calls otherwise than the command line. */
  g_string_replace (line, "raise byte-limit, or set when-full and a fallback",
                    "raise --store-limit, or name a --store-fallback", 0);
  g_strdelimit (line->str, "\r\n", ' ');
  fprintf (stderr, "%s: %s\n", program_name, line->str);
}

/* The last message, kept until it is known whether an error says it all. */
static char *message;
static GMutex message_lock;

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
        g_mutex_lock (&message_lock);
        g_free (message);
        message = g_strdup (fields[i].value);
        g_mutex_unlock (&message_lock);
      }
  return G_LOG_WRITER_HANDLED;
}

void
output_init (const char *name)
{
  program_name = name;
  g_log_set_writer_func (keep_message, NULL, NULL);
}

void
output_print_message (void)
{
  g_autofree char *last = NULL;

  g_mutex_lock (&message_lock);
  last = g_steal_pointer (&message);
  g_mutex_unlock (&message_lock);
  if (last != NULL)
    output_print_error (last);
}
