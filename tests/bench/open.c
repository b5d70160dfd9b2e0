/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/bench-training.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The seconds until a folder's model is open, and until its weight files were read into fresh memory by as many
 * threads: --part says which, since memory that a process has used before costs less. Prints one JSON object. */

#define CHUNK (8 << 20)

static char *folder, *part;
static int threads = 0;

static const GOptionEntry entries[] = {
  { "folder", 0, 0, G_OPTION_ARG_FILENAME, &folder, "The model's folder", "FOLDER" },
  { "part", 0, 0, G_OPTION_ARG_STRING, &part, "open: ebb_model_open (); read: read () of the same files", "WHAT" },
  { "threads", 0, 0, G_OPTION_ARG_INT, &threads, "CPU threads", "N" },
  G_OPTION_ENTRY_NULL,
};

static guint64
get_resident (void)
{
  g_autofree char *text = NULL;

  if (!g_file_get_contents ("/proc/self/statm", &text, NULL, NULL))
    return 0;
  return g_ascii_strtoull (strchr (text, ' '), NULL, 10) * (guint64) sysconf (_SC_PAGESIZE);
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

typedef struct
{
  int fd;
  char *memory;
  gsize length;
} File;

static gboolean
open_file (File *file, const char *path, GError **error)
{
  struct stat status;

  file->fd = open (path, O_RDONLY | O_CLOEXEC);
  if (file->fd < 0 || fstat (file->fd, &status) < 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "%s: %s", path, g_strerror (errno));
      return FALSE;
    }
  file->length = (gsize) status.st_size;
  file->memory = mmap (NULL, file->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (file->memory != MAP_FAILED)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "%s: no memory", path);
  return FALSE;
}

static gboolean
read_chunk (const File *file, gsize chunk)
{
  gsize place = chunk * CHUNK;
  const gsize end = MIN (place + CHUNK, file->length);

  while (place < end)
    {
      const ssize_t n = pread (file->fd, file->memory + place, end - place, (off_t) place);

      if (n <= 0 && errno != EINTR)
        return FALSE;
      place += (gsize) MAX (n, 0);
    }
  return TRUE;
}

static gboolean
read_files (guint64 *bytes, GError **error)
{
  g_autoptr (GDir) dir = g_dir_open (folder, 0, error);
  gboolean ok = TRUE;

  if (dir == NULL)
    return FALSE;
  for (const char *name = g_dir_read_name (dir); name != NULL; name = g_dir_read_name (dir))
    {
      g_autofree char *path = g_build_filename (folder, name, NULL);
      File file;
      gint64 n_chunks;

      if (!g_str_has_suffix (name, ".safetensors"))
        continue;
      if (!open_file (&file, path, error))
        return FALSE;
      n_chunks = (gint64) ((file.length + CHUNK - 1) / CHUNK);
#pragma omp parallel for schedule(dynamic) reduction(&& \
                                                     : ok)
      for (gint64 i = 0; i < n_chunks; i++)
        ok = ok && read_chunk (&file, (gsize) i);
      *bytes += file.length;
      close (file.fd);
    }
  if (ok)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "%s: can't be read", folder);
  return FALSE;
}

/* -- opening ------------------------------------------------------------------------------------------------------- */

static gboolean
open_model (EbbModule **model, guint64 *bytes, GError **error)
{
  guint n;
  g_autofree EbbTensor **parameters = NULL;

  *model = ebb_model_open (folder, error);
  if (*model == NULL)
    return FALSE;
  parameters = ebb_module_get_parameters (*model, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      *bytes += ebb_tensor_get_n_bytes (parameters[i]);
      ebb_tensor_unref (parameters[i]);
    }
  return TRUE;
}

int
main (int argc, char **argv)
{
  g_autoptr (GOptionContext) options = g_option_context_new ("- time to open a model's folder");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = NULL;
  guint64 bytes = 0, resident;
  gint64 start;
  gboolean opens, ok;

  g_option_context_add_main_entries (options, entries, NULL);
  if (!g_option_context_parse (options, &argc, &argv, &error) || folder == NULL
      || (g_strcmp0 (part, "open") != 0 && g_strcmp0 (part, "read") != 0))
    {
      fprintf (stderr, "open: %s\n", error ? error->message : "--folder FOLDER and --part open or read are needed");
      return 2;
    }
  if (threads > 0)
    ebb_set_num_threads (threads);
  opens = strcmp (part, "open") == 0;
  resident = get_resident ();
  start = g_get_monotonic_time ();
  ok = opens ? open_model (&model, &bytes, &error) : read_files (&bytes, &error);
  if (!ok)
    {
      fprintf (stderr, "open: %s\n", error->message);
      return 1;
    }
  printf ("{\"seconds\": %.6f, \"bytes\": %" G_GUINT64_FORMAT ", \"growth_bytes\": %" G_GUINT64_FORMAT
          ", \"peak_bytes\": %" G_GUINT64_FORMAT "}\n",
          (double) (g_get_monotonic_time () - start) * 1e-6, bytes, get_resident () - resident,
          bench_get_resident_peak () - resident);
  return 0;
}
