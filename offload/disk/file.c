/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The nameless file of a disk store: opening it, taking and returning space, reading and writing by sectors. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* O_DIRECT, O_TMPFILE, fallocate */
#endif
#include "offload/disk/file-private.h"

#include "offload/disk/name-private.h"
#include "offload/disk/space-map-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/lock-private.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct _EbbDiskFile
{
  int fd;
  pid_t owner;
  char *folder;
  char *path; /* of a file that could not lose its name while it is open; or NULL */
  pthread_mutex_t lock;
  EbbSpaceMap space; /* under the lock */
  guint64 aside;     /* up to here the file system was asked for space; under the lock */
};

int (*ebb_disk_fault) (EbbDiskOperation operation);

static int
get_fault (EbbDiskOperation operation)
{
  int (*fault) (EbbDiskOperation) = __atomic_load_n (&ebb_disk_fault, __ATOMIC_ACQUIRE);

  return G_UNLIKELY (fault != NULL) ? fault (operation) : 0;
}

/* @folder as it may stand in a message of one line. */
static char *
display_folder (const char *folder)
{
  return g_strdelimit (g_filename_display_name (folder), "\n\r", '?');
}

/* -- opening ------------------------------------------------------------------------------------------------------- */

/* Where each file has a name at first. Should somebody else remove it meanwhile, so much the better. */
static int
open_and_unlink (const char *folder,
                 char **path)
{
  int fd;

  ebb_disk_name_remove_leftovers (folder);
  *path = ebb_disk_name_new (folder);
  fd = mkostemp (*path, O_CLOEXEC);
  if (fd < 0 || unlink (*path) == 0 || errno == ENOENT)
    {
      int reason = errno;

      g_clear_pointer (path, g_free);
      errno = reason;
    }
  return fd;
}

static int
open_unnamed (const char *folder,
              char **path)
{
  int fd = -1;

#ifdef O_TMPFILE
  errno = get_fault (EBB_DISK_MAKE);
  if (errno == 0)
    fd = open (folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
#endif
  if (fd < 0) /* not every file system knows that */
    fd = open_and_unlink (folder, path);
  /* Past the page cache, which is memory too. Set afterwards: a refusal at opening would leave a named file behind. */
  if (fd >= 0)
    fcntl (fd, F_SETFL, fcntl (fd, F_GETFL) | O_DIRECT);
  return fd;
}

/* TRUE if that may have been the reason of an error. */
static gboolean
leave_direct (int fd)
{
  int flags = fcntl (fd, F_GETFL);

  return flags >= 0 && (flags & O_DIRECT) && fcntl (fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

EbbDiskFile *
ebb_disk_file_new (const char *folder,
                   GError **error)
{
  EbbDiskFile *self;
  char *path = NULL;
  int fd = open_unnamed (folder, &path);

  if (fd < 0)
    {
      int reason = errno;
      g_autofree char *shown = display_folder (folder);

      return ebb_fail_null (error, EBB_ERROR_IO,
                            "disk store in \"%s\": can't make a file: %s; it must be a folder that can be written",
                            shown, g_strerror (reason));
    }
  self = g_new0 (EbbDiskFile, 1);
  self->fd = fd;
  self->owner = getpid ();
  self->folder = g_strdup (folder);
  self->path = path;
  pthread_mutex_init (&self->lock, NULL);
  ebb_space_map_init (&self->space);
  return self;
}

void
ebb_disk_file_free (EbbDiskFile *self)
{
  close (self->fd);
  if (self->path != NULL && ebb_disk_file_is_own (self))
    unlink (self->path);
  ebb_space_map_clear (&self->space);
  pthread_mutex_destroy (&self->lock);
  g_free (self->path);
  g_free (self->folder);
  g_free (self);
}

gboolean
ebb_disk_file_is_own (EbbDiskFile *self)
{
  return self->owner == getpid ();
}

/* -- space --------------------------------------------------------------------------------------------------------- */

/* Has the file system set the space aside, so that a full disk is found here and not by a write that no caller waits
 * for. 0, or the number of an error; not every file system can do it. */
static int
set_aside (EbbDiskFile *self,
           guint64 offset,
           guint64 size)
{
  int reason;

  if (ebb_is_dry ())
    return 0;
  reason = get_fault (EBB_DISK_GROW);
  if (reason == 0 && fallocate (self->fd, 0, (off_t) offset, (off_t) size) != 0)
    reason = errno;
  return reason == ENOSPC || reason == EDQUOT || reason == EIO ? reason : 0;
}

static void
note_aside (EbbDiskFile *self,
            guint64 end)
{
  EBB_AUTO_LOCK (&self->lock);
  self->aside = MAX (self->aside, end);
}

gboolean
ebb_disk_file_take (EbbDiskFile *self,
                    guint64 size,
                    guint64 limit,
                    guint64 *offset,
                    GError **error)
{
  const guint64 whole = EBB_DISK_ALIGN (size);
  struct rlimit process = { RLIM_INFINITY, RLIM_INFINITY };
  g_autofree char *shown = NULL;
  guint64 in_use;
  gboolean ok, grows;
  int reason = 0;

  getrlimit (RLIMIT_FSIZE, &process);
  limit = MIN (limit, (guint64) process.rlim_cur);
  limit = MIN (limit, (guint64) G_MAXINT64); /* of offsets */
  pthread_mutex_lock (&self->lock);
  in_use = self->space.in_use;
  ok = whole >= size && ebb_space_map_take (&self->space, whole, limit, offset);
  grows = ok && *offset + whole > self->aside;
  pthread_mutex_unlock (&self->lock);
  if (grows)
    reason = set_aside (self, *offset, whole);
  if (ok && reason == 0)
    {
      if (grows)
        note_aside (self, *offset + whole);
      return TRUE;
    }
  if (ok)
    {
      ebb_disk_file_give (self, *offset, size);
      ebb_disk_file_set_write_error (self, size, in_use, reason, error);
      return FALSE;
    }
  shown = display_folder (self->folder);
  return ebb_fail (error, EBB_ERROR_IO,
                   "disk store in \"%s\": no room for %" G_GUINT64_FORMAT " bytes: %" G_GUINT64_FORMAT
                   " of the %" G_GUINT64_FORMAT " bytes that it may use are taken; raise byte-limit",
                   shown, size, in_use, limit);
}

void
ebb_disk_file_give (EbbDiskFile *self,
                    guint64 offset,
                    guint64 size)
{
  EBB_AUTO_LOCK (&self->lock);
  ebb_space_map_give (&self->space, offset, EBB_DISK_ALIGN (size));
}

guint64
ebb_disk_file_get_in_use (EbbDiskFile *self)
{
  EBB_AUTO_LOCK (&self->lock);
  return self->space.in_use;
}

/* -- bytes --------------------------------------------------------------------------------------------------------- */

/* After a short operation the last, incomplete sector is moved again, so that direct access goes on at a sector; if no
 * bytes get through, the disk is full or the file has ended. */
int
ebb_disk_file_move (EbbDiskFile *self,
                    EbbDiskOperation operation,
                    char *data,
                    gsize size,
                    guint64 offset)
{
  const gboolean writes = operation == EBB_DISK_WRITE;
  int reason = get_fault (operation);

  if (reason != 0)
    return reason;
  while (size > 0)
    {
      gssize n = writes ? pwrite (self->fd, data, size, (off_t) offset) : pread (self->fd, data, size, (off_t) offset);

      if (n < 0 && (errno == EINTR || (errno == EINVAL && leave_direct (self->fd))))
        continue;
      if (n < 0)
        return errno;
      if ((gsize) n < size)
        n -= n % EBB_DISK_SECTOR;
      if (n == 0)
        return writes ? ENOSPC : EBB_DISK_SHORTER;
      data += n;
      offset += (guint64) n;
      size -= (gsize) n;
    }
  return 0;
}

/* -- errors -------------------------------------------------------------------------------------------------------- */

void
ebb_disk_file_set_write_error (EbbDiskFile *self,
                               guint64 size,
                               guint64 beside,
                               int reason,
                               GError **error)
{
  g_autofree char *shown = display_folder (self->folder);

  ebb_error_set (error, EBB_ERROR_IO,
                 "disk store in \"%s\": can't write %" G_GUINT64_FORMAT " bytes beside %" G_GUINT64_FORMAT
                 " bytes in use: %s",
                 shown, size, beside, g_strerror (reason));
}

void
ebb_disk_file_set_read_error (EbbDiskFile *self,
                              guint64 size,
                              guint64 offset,
                              int reason,
                              GError **error)
{
  g_autofree char *shown = display_folder (self->folder);

  ebb_error_set (error, EBB_ERROR_IO,
                 "disk store in \"%s\": can't read back %" G_GUINT64_FORMAT " bytes at %" G_GUINT64_FORMAT ": %s",
                 shown, size, offset,
                 reason == EBB_DISK_SHORTER   ? "the file has become shorter"
                 : reason == EBB_DISK_DAMAGED ? "their checksum is not the one that was written"
                                              : g_strerror (reason));
}
