/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/util/atomic-file-private.h"

#include "tensor/error-private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Replaces files as a whole or not at all; opens, reads, maps and lists files with errors that name them. */

static gboolean
fail (GError **error,
      const char *verb,
      const char *path,
      int number)
{
  return ebb_fail (error, EBB_ERROR_IO, "can't %s %s: %s", verb, ebb_show_text (path), g_strerror (number));
}

char **
ebb_list_folder (const char *folder,
                 GError **error)
{
  g_autoptr (GStrvBuilder) names = g_strv_builder_new ();
  DIR *dir = opendir (folder);
  const struct dirent *entry;
  int number;

  if (dir == NULL)
    {
      fail (error, "read the folder", folder, errno);
      return NULL;
    }
  /* The end and a failure differ in errno alone. */
  while ((errno = 0, entry = readdir (dir)) != NULL)
    if (strcmp (entry->d_name, ".") != 0 && strcmp (entry->d_name, "..") != 0)
      g_strv_builder_add (names, entry->d_name);
  number = errno;
  closedir (dir);
  if (number != 0)
    {
      fail (error, "read the folder", folder, number);
      return NULL;
    }
  return g_strv_builder_end (names);
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

/* Removes @path unless a living process writes it. Where locks don't work nobody is known to. It is opened for writing,
 * since a file server gives no exclusive lock otherwise. */
static void
remove_dead (const char *path)
{
  int fd = open (path, O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);

  if (fd < 0)
    return;
  if (flock (fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
    unlink (path);
  close (fd);
}

void
ebb_atomic_file_clean (const char *folder,
                       const char *prefix)
{
  g_auto (GStrv) names = ebb_list_folder (folder, NULL);

  for (guint i = 0; names != NULL && names[i] != NULL; i++)
    if (g_str_has_prefix (names[i], prefix) && g_str_has_suffix (names[i], EBB_ATOMIC_FILE_SUFFIX))
      {
        g_autofree char *path = g_build_filename (folder, names[i], NULL);

        remove_dead (path);
      }
}

/* Between its making and its lock another process may take the new file for a leftover; then it is gone, and -1. */
static int
lock_new (int fd)
{
  struct stat status;

  while (flock (fd, LOCK_EX) != 0 && errno == EINTR)
    continue;
  if (fstat (fd, &status) != 0 || status.st_nlink > 0)
    return fd;
  close (fd);
  errno = EEXIST;
  return -1;
}

static int
open_new (const char *folder,
          const char *stem,
          char **temporary)
{
  for (int attempt = 0; attempt < 100; attempt++)
    {
      g_autofree char *name = g_strdup_printf ("%s.%08x" EBB_ATOMIC_FILE_SUFFIX, stem, g_random_int ());
      int fd;

      *temporary = g_build_filename (folder, name, NULL);
      fd = open (*temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      fd = fd >= 0 ? lock_new (fd) : fd;
      if (fd >= 0 || errno != EEXIST)
        return fd;
      g_clear_pointer (temporary, g_free);
    }
  errno = EEXIST;
  return -1;
}

/* What is added to a stem at most: ".STEM.01234567.ebb-partial.old.ebb-partial". */
#define MOST_ADDED 40

char *
ebb_atomic_file_make_stem (const char *path)
{
  g_autofree char *folder = g_path_get_dirname (path);
  g_autofree char *name = g_path_get_basename (path);
  const long limit = pathconf (folder, _PC_NAME_MAX);
  const gsize n_hash = 9, most = (gsize) (limit > MOST_ADDED + 16 ? limit : NAME_MAX) - MOST_ADDED;
  gsize n = most - n_hash;

  if (strlen (name) <= most)
    return g_steal_pointer (&name);
  while (n > 0 && (name[n] & 0xc0) == 0x80) /* inside a character */
    n--;
  return g_strdup_printf ("%.*s~%08x", (int) n, name, g_str_hash (name));
}

gboolean
ebb_atomic_file_open (EbbAtomicFile *self,
                      const char *path,
                      GError **error)
{
  g_autofree char *folder = g_path_get_dirname (path);
  g_autofree char *stem = ebb_atomic_file_make_stem (path);
  g_autofree char *prefix = g_strconcat (stem, ".", NULL);
  struct stat status;

  *self = (EbbAtomicFile){ .fd = -1 };
  if (stat (path, &status) == 0 && !S_ISREG (status.st_mode))
    return ebb_fail (error, EBB_ERROR_IO, "can't write %s: it is not a regular file", ebb_show_text (path));
  ebb_atomic_file_clean (folder, prefix);
  self->fd = open_new (folder, stem, &self->temporary);
  if (self->fd < 0)
    {
      int number = errno;

      g_clear_pointer (&self->temporary, g_free);
      return fail (error, "write", path, number);
    }
  self->path = g_strdup (path);
  return TRUE;
}

/* Past the limit on the size of files (ulimit -f) the kernel sends SIGXFSZ, which ends the process and would leave a
 * part of the file behind. Here the write fails with EFBIG instead. */
static gssize
write_without_signal (int fd,
                      const void *data,
                      gsize size)
{
  const struct timespec at_once = { 0, 0 };
  sigset_t limit, pending, old;
  gboolean was_pending;
  gssize n;
  int number;

  sigemptyset (&limit);
  sigaddset (&limit, SIGXFSZ);
  pthread_sigmask (SIG_BLOCK, &limit, &old);
  was_pending = sigpending (&pending) == 0 && sigismember (&pending, SIGXFSZ);
  n = write (fd, data, size);
  number = errno;
  if (n < 0 && number == EFBIG && !was_pending)
    while (sigtimedwait (&limit, NULL, &at_once) < 0 && errno == EINTR)
      ;
  pthread_sigmask (SIG_SETMASK, &old, NULL);
  errno = number;
  return n;
}

gboolean
ebb_atomic_file_write (EbbAtomicFile *self,
                       const void *data,
                       gsize size,
                       GError **error)
{
  const char *p = data;

  while (size > 0)
    {
      gssize n = write_without_signal (self->fd, p, MIN (size, (gsize) 1 << 30));

      if (n < 0 && errno == EINTR)
        continue;
      if (n < 0)
        return fail (error, "write", self->path, errno);
      p += n;
      size -= (gsize) n;
    }
  return TRUE;
}

/* Flushes a folder's entries to the disk, as far as its file system can. */
static gboolean
sync_folder (const char *folder,
             GError **error)
{
  int fd = open (folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int number = 0;

  if (fd < 0)
    return fail (error, "open the folder", folder, errno);
  if (fsync (fd) != 0 && errno != EINVAL && errno != ENOTSUP)
    number = errno;
  close (fd);
  return number == 0 || fail (error, "flush the folder", folder, number);
}

gboolean
ebb_atomic_file_commit (EbbAtomicFile *self,
                        GError **error)
{
  g_autofree char *folder = g_path_get_dirname (self->path);
  int number = 0;
  gboolean ok;

  /* Closed last: until it has its name its lock says that it is no leftover. What is flushed doesn't fail to close. */
  if (fsync (self->fd) != 0 || rename (self->temporary, self->path) != 0)
    number = errno;
  ok = number == 0 || fail (error, "write", self->path, number);
  if (ok)
    g_clear_pointer (&self->temporary, g_free);
  ebb_atomic_file_abort (self);
  return ok && sync_folder (folder, error);
}

void
ebb_atomic_file_abort (EbbAtomicFile *self)
{
  if (self->temporary != NULL)
    unlink (self->temporary);
  ebb_atomic_file_leave (self);
}

gboolean
ebb_atomic_file_save (const char *path,
                      const void *data,
                      gsize size,
                      GError **error)
{
  EbbAtomicFile self;

  if (!ebb_atomic_file_open (&self, path, error))
    return FALSE;
  if (ebb_atomic_file_write (&self, data, size, error))
    return ebb_atomic_file_commit (&self, error);
  ebb_atomic_file_abort (&self);
  return FALSE;
}

void
ebb_atomic_file_leave (EbbAtomicFile *self)
{
  if (self->fd >= 0)
    close (self->fd);
  self->fd = -1;
  g_clear_pointer (&self->temporary, g_free);
  g_clear_pointer (&self->path, g_free);
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

gboolean
ebb_check_folder (const char *folder,
                  GError **error)
{
  g_autofree char *shown = ebb_escape_text (folder);
  struct stat status;

  if (stat (folder, &status) == 0)
    {
      if (S_ISDIR (status.st_mode))
        return TRUE;
      ebb_error_set (error, EBB_ERROR_IO, "%s is no folder: name the one that has the model's files", shown);
    }
  else if (errno == ENOENT)
    ebb_error_set (error, EBB_ERROR_IO, "there is no folder %s", shown);
  else
    fail (error, "read", folder, errno);
  return FALSE;
}

#define LFS_POINTER "version https://git-lfs.github.com/spec/"

gboolean
ebb_check_is_content (const char *path,
                      const void *data,
                      gsize size,
                      GError **error)
{
  return size < strlen (LFS_POINTER) || memcmp (data, LFS_POINTER, strlen (LFS_POINTER)) != 0
         || ebb_fail (
             error, EBB_ERROR_FORMAT,
             "%s: it is a pointer of Git LFS, not the file itself: fetch the file by git lfs pull in its folder",
             ebb_show_text (path));
}

int
ebb_open_regular_file (const char *path,
                       gsize *size,
                       GError **error)
{
  struct stat status;
  /* A pipe without a writer must not hold us up. */
  int fd = open (path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

  if (fd < 0)
    {
      fail (error, "read", path, errno);
      return -1;
    }
  if (fstat (fd, &status) != 0)
    fail (error, "read", path, errno);
  else if (!S_ISREG (status.st_mode))
    {
      g_autofree char *shown = ebb_escape_text (path);

      ebb_error_set (error, EBB_ERROR_IO, "can't read %s: it is %s", shown,
                     S_ISDIR (status.st_mode) ? "a folder" : "not a regular file");
    }
  else
    {
      *size = (gsize) status.st_size;
      return fd;
    }
  close (fd);
  return -1;
}

gboolean
ebb_read_file_part (int fd,
                    const char *path,
                    guint64 offset,
                    void *data,
                    gsize size,
                    GError **error)
{
  char *p = data;

  while (size > 0)
    {
      gssize n = pread (fd, p, MIN (size, (gsize) 1 << 30), (off_t) offset);

      if (n < 0 && errno == EINTR)
        continue;
      if (n < 0)
        return fail (error, "read", path, errno);
      if (n == 0)
        return ebb_fail (error, EBB_ERROR_FORMAT, "%s: it ends before byte %" G_GUINT64_FORMAT, ebb_show_text (path),
                         offset + size);
      p += n;
      offset += (guint64) n;
      size -= (gsize) n;
    }
  return TRUE;
}

/**
 * ebb_read_file:
 * @path: (type filename): the path of a file
 * @max_size: the most bytes that the file may have
 * @size: (out): the number of bytes that were read
 * @error: return location for a #GError, or %NULL
 *
 * Reads a whole file, for programs that open files which others wrote. Only a regular file, or a link to one, is read:
 * a pipe would make the reader wait, and a device such as `/dev/zero` never ends. From C, the bytes are followed by one
 * more that is zero.
 *
 * Returns: (transfer full) (array length=size) (element-type guint8): the bytes of the file; free them with g_free().
 *   %NULL with %EBB_ERROR_IO if @path is missing, unreadable, or no regular file, and with %EBB_ERROR_FORMAT if it has
 *   more than @max_size bytes
 */
char *
ebb_read_file (const char *path,
               gsize max_size,
               gsize *size,
               GError **error)
{
  g_autofree char *data = NULL;
  gboolean ok;
  int fd;

  *size = 0;
  EBB_RETURN_UNLESS_BEGUN (NULL, error, path);
  fd = ebb_open_regular_file (path, size, error);
  if (fd < 0)
    return NULL;
  if (*size > max_size || (data = g_try_malloc (*size + 1)) == NULL)
    {
      g_autofree char *shown = ebb_escape_text (path);

      ebb_error_set (error, EBB_ERROR_FORMAT,
                     "%s: %" G_GSIZE_FORMAT " bytes: it must have %" G_GSIZE_FORMAT " at most%s", shown, *size,
                     max_size, *size > max_size ? "" : ", and there is no memory for them");
      close (fd);
      return NULL;
    }
  ok = ebb_read_file_part (fd, path, 0, data, *size, error);
  close (fd);
  data[*size] = '\0';
  return ok ? g_steal_pointer (&data) : NULL;
}

GBytes *
ebb_map_file (const char *path,
              GError **error)
{
  g_autoptr (GError) failure = NULL;
  g_autoptr (GMappedFile) mapped = NULL;
  gsize size;
  int fd = ebb_open_regular_file (path, &size, error);

  if (fd < 0)
    return NULL;
  mapped = g_mapped_file_new_from_fd (fd, TRUE, &failure);
  close (fd);
  if (mapped == NULL)
    return ebb_fail_null (error, EBB_ERROR_IO, "can't read %s: %s", ebb_show_text (path), failure->message);
  return g_mapped_file_get_bytes (mapped);
}
