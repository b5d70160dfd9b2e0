/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Checks before the work that files can be written, and writes them whole or not at all. */
#include "common/written-file.h"

#include "common/option-table.h"
#include "common/read-file.h"

#include <ebb/ebb.h>

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <limits.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* The longest name that a program or the library puts into a folder, with those of unfinished files. */
#define ROOM_INSIDE 128

/* Refuses names that are too long before the work begins: writing the file would fail at its end. */
static gboolean
check_names (const char *option,
             const char *path,
             const char *folder,
             GError **error)
{
  const long limit = pathconf (folder, _PC_NAME_MAX);
  const gsize most = limit > 0 ? (gsize) limit : NAME_MAX;
  g_autofree char *whole = g_canonicalize_filename (path, NULL);
  g_auto (GStrv) names = g_strsplit (path, G_DIR_SEPARATOR_S, -1);

  for (guint i = 0; names[i] != NULL; i++)
    if (strlen (names[i]) > most)
      {
        g_set_error (error, EBB_ERROR, EBB_ERROR_IO,
                     "--%s %s: a name of %" G_GSIZE_FORMAT " bytes: there a name has at most %" G_GSIZE_FORMAT, option,
                     path, strlen (names[i]), most);
        return FALSE;
      }
  if (strlen (whole) + ROOM_INSIDE < PATH_MAX)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "--%s %s: a path of %" G_GSIZE_FORMAT " bytes: it must have at most %d",
               option, path, strlen (whole), PATH_MAX - ROOM_INSIDE - 1);
  return FALSE;
}

/* Permissions say less than an attempt: the file system may be read-only, or full of files. The name is always the
 * same, so that the next run removes what one that was killed here has left. */
static gboolean
try_folder (const char *option,
            const char *path,
            const char *folder,
            GError **error)
{
  g_autofree char *name = g_strdup_printf (".%s-probe", g_get_prgname ());
  g_autofree char *probe = g_build_filename (folder, name, NULL);
  int fd;

  if (!check_names (option, path, folder, error))
    return FALSE;
  fd = g_open (probe, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);

  if (fd < 0)
    return fail (error, option, path, folder, errno);
  close (fd);
  g_unlink (probe);
  return TRUE;
}

/* A file in safetensors begins with the size of a JSON object, in 8 bytes, and that object. */
static gboolean
are_weights (const char *begin,
             gsize n,
             goffset size)
{
  guint64 n_header;

  if (n < 9)
    return FALSE;
  memcpy (&n_header, begin, sizeof n_header);
  return memcmp (begin, "GGUF", 4) == 0 || (begin[8] == '{' && GUINT64_FROM_LE (n_header) <= (guint64) size);
}

/* Reports of all programs have the options that took effect. */
static gboolean
is_report (const char *path)
{
  g_autoptr (JsonNode) root = option_table_read_json (path);
  JsonNode *config = root != NULL ? json_object_get_member (json_node_get_object (root), "config") : NULL;

  return config != NULL && JSON_NODE_HOLDS_OBJECT (config)
         && json_object_has_member (json_node_get_object (config), "device")
         && json_object_has_member (json_node_get_object (config), "threads");
}

/* Tells whether the existing file is of the kind that the option writes. An empty file is of every kind. */
static gboolean
is_of_kind (const char *path,
            goffset size,
            WrittenKind kind)
{
  char begin[1024] = "";
  const gsize n = read_start (path, begin, sizeof begin - 1);

  switch (kind)
    {
    case WRITTEN_WEIGHTS:
      return size == 0 || are_weights (begin, n, size);
    case WRITTEN_REPORT:
      return size == 0 || is_report (path);
    case WRITTEN_TRACE:
      return size == 0 || (*begin == '{' && strstr (begin, "\"traceEvents\":[") != NULL);
    case WRITTEN_PICTURE:
      return size == 0 || (*begin == '<' && strstr (begin, ">Memory over a training step</title>") != NULL);
    case WRITTEN_ANY:
    default:
      return TRUE;
    }
}

gboolean
written_file_check (const char *option,
                    const char *path,
                    WrittenKind kind,
                    GError **error)
{
  g_autofree char *folder = NULL;
  static const char *const names[] = { "", "weights", "a report", "a trace", "a memory timeline" };
  struct stat status;
  gboolean exists;

  if (path == NULL)
    return TRUE;
  exists = stat (path, &status) == 0;
  if (exists && !S_ISREG (status.st_mode))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "--%s %s: it is %s, it must be a file or not be there", option, path,
                   S_ISDIR (status.st_mode) ? "a folder" : "a device, pipe or socket");
      return FALSE;
    }
  if (exists && !is_of_kind (path, status.st_size, kind))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_IO,
                   "--%s %s: the file there is not %s: name another file, or replace it by --overwrite", option, path,
                   names[kind]);
      return FALSE;
    }
  folder = g_path_get_dirname (path);
  return try_folder (option, path, folder, error);
}

/* The folder is made when there is something to put into it; until then the nearest one above must do. */
gboolean
written_file_check_folder (const char *option,
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

      if ((errno != ENOENT && errno != ENAMETOOLONG) || strcmp (parent, folder) == 0)
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

static gboolean
write_all (int fd,
           const char *text)
{
  gsize size = strlen (text);

  while (size > 0)
    {
      gssize n = write (fd, text, size);

      if (n < 0 && errno != EINTR)
        return FALSE;
      text += MAX (n, 0);
      size -= (gsize) MAX (n, 0);
    }
  return ftruncate (fd, lseek (fd, 0, SEEK_CUR)) == 0 && fsync (fd) == 0;
}

#define UNFINISHED ".ebb-partial"

/* A name to which nothing can be added is cut, and a hash tells it from others. */
static char *
name_unfinished (const char *path)
{
  g_autofree char *folder = g_path_get_dirname (path);
  g_autofree char *name = g_path_get_basename (path);
  g_autofree char *short_name = NULL;
  const long limit = pathconf (folder, _PC_NAME_MAX);
  const gsize most = (limit > 0 ? (gsize) limit : NAME_MAX) - strlen (UNFINISHED);

  if (strlen (name) <= most)
    return g_strconcat (path, UNFINISHED, NULL);
  short_name = g_strdup_printf ("%08x" UNFINISHED, g_str_hash (name));
  return g_build_filename (folder, short_name, NULL);
}

/* The unfinished file always has the same name, so that the next run takes over what one that was killed has left of
 * it. A lock keeps out runs that are alive. */
static int
open_unfinished (const char *path)
{
  struct stat here, there;

  for (;;)
    {
      int fd = g_open (path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);

      if (fd < 0)
        return -1;
      if (flock (fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        {
          close (fd);
          errno = EBUSY;
          return -1;
        }
      /* The process that held the lock may have renamed the file. */
      if (fstat (fd, &here) == 0 && stat (path, &there) == 0 && here.st_ino == there.st_ino)
        return fd;
      close (fd);
    }
}

/* The text of JSON. json-glib leaves U+001F in strings as it is, which JSON does not allow. */
static char *
make_text (JsonBuilder *builder)
{
  g_autoptr (JsonGenerator) generator = json_generator_new ();
  g_autoptr (JsonNode) root = json_builder_get_root (builder);
  g_autofree char *json = NULL;
  GString *text;

  json_generator_set_root (generator, root);
  json_generator_set_pretty (generator, TRUE);
  json = json_generator_to_data (generator, NULL);
  text = g_string_new (json);
  g_string_replace (text, "\037", "\\u001f", 0);
  g_string_append_c (text, '\n');
  return g_string_free (text, FALSE);
}

gboolean
written_file_write_json (const char *path,
                         JsonBuilder *builder,
                         GError **error)
{
  g_autofree char *text = make_text (builder);
  g_autofree char *unfinished = name_unfinished (path);
  int fd = open_unfinished (unfinished), number;

  if (fd >= 0 && write_all (fd, text) && g_rename (unfinished, path) == 0)
    {
      close (fd);
      return TRUE;
    }
  number = errno;
  if (fd >= 0)
    {
      g_unlink (unfinished);
      close (fd);
    }
  g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "can't write %s: %s", path, g_strerror (number));
  return FALSE;
}
