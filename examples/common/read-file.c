/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads files that may be pipes, and never more of them than a program has use for. */
#include "common/read-file.h"

#include <ebb/ebb.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Appends all of @fd to @text, or a little more than READ_MAX_SIZE bytes. */
static gboolean
read_all (int fd,
          GString *text)
{
  char buffer[1 << 16];
  gssize n;

  while ((n = read (fd, buffer, sizeof buffer)) > 0 || (n < 0 && errno == EINTR))
    {
      g_string_append_len (text, buffer, MAX (n, 0));
      if (text->len > READ_MAX_SIZE)
        break;
    }
  return n >= 0;
}

char *
read_file_or_pipe (const char *path,
                   gsize *length,
                   GError **error)
{
  GString *text = g_string_new (NULL);
  const char *shown = path != NULL ? path : "standard input";
  const int fd = path != NULL ? open (path, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
  const gboolean ok = fd >= 0 && read_all (fd, text);

  if (!ok)
    g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "can't read %s: %s", shown, g_strerror (errno));
  else if (text->len > READ_MAX_SIZE)
    g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT,
                 "%s: more than %" G_GSIZE_FORMAT " bytes: it must have %" G_GSIZE_FORMAT " at most", shown,
                 READ_MAX_SIZE, READ_MAX_SIZE);
  if (fd > STDIN_FILENO)
    close (fd);
  if (length != NULL)
    *length = text->len;
  return g_string_free (text, !ok || text->len > READ_MAX_SIZE);
}

gsize
read_start (const char *path,
            void *data,
            gsize size)
{
  struct stat status;
  const int fd = open (path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not hold us up */
  gssize n = 0;

  if (fd < 0)
    return 0;
  if (fstat (fd, &status) == 0 && S_ISREG (status.st_mode))
    n = pread (fd, data, size, 0);
  close (fd);
  return (gsize) MAX (n, 0);
}
