/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* O_DIRECT, O_TMPFILE */
#endif
#include "offload/disk-file-private.h"

#include "offload/checksum-private.h"
#include "offload/space-map-private.h"
#include "offload/transfer-private.h"
#include "tensor/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* What direct access asks of addresses, offsets and sizes, on any disk that there is. */
#define ALIGNMENT 4096
#define PIECE (4ul << 20)

struct _EbbDiskFile
{
  int ref_count;
  int fd;
  pid_t owner;
  char *folder;
  pthread_mutex_t lock;
  EbbSpaceMap space; /* under the lock */
};

static gsize
align (gsize size)
{
  return (size + ALIGNMENT - 1) & ~(gsize) (ALIGNMENT - 1);
}

/* @folder as it may stand in a message of one line. */
static char *
display_folder (const char *folder)
{
  return g_strdelimit (g_filename_display_name (folder), "\n\r", '?');
}

/* -- opening ------------------------------------------------------------------------------------------------------- */

static int
open_unnamed (const char *folder)
{
  g_autofree char *path = g_build_filename (folder, "ebb-activations-XXXXXX", NULL);
  int fd = -1;

#ifdef O_TMPFILE
  fd = open (folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
#endif
  if (fd < 0) /* not every file system knows that */
    {
      fd = mkostemp (path, O_CLOEXEC);
      if (fd >= 0 && unlink (path) != 0)
        {
          int reason = errno;

          close (fd);
          errno = reason;
          fd = -1;
        }
    }
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
  int fd = open_unnamed (folder);

  if (fd < 0)
    {
      int reason = errno;
      g_autofree char *shown = display_folder (folder);

      g_set_error (error, EBB_ERROR, EBB_ERROR_IO,
                   "disk store in \"%s\": can't make a file: %s; it must be a folder that can be written", shown,
                   g_strerror (reason));
      return NULL;
    }
  self = g_new0 (EbbDiskFile, 1);
  self->ref_count = 1;
  self->fd = fd;
  self->owner = getpid ();
  self->folder = g_strdup (folder);
  pthread_mutex_init (&self->lock, NULL);
  ebb_space_map_init (&self->space);
  return self;
}

EbbDiskFile *
ebb_disk_file_ref (EbbDiskFile *self)
{
  __atomic_add_fetch (&self->ref_count, 1, __ATOMIC_RELAXED);
  return self;
}

void
ebb_disk_file_unref (EbbDiskFile *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  close (self->fd);
  ebb_space_map_clear (&self->space);
  pthread_mutex_destroy (&self->lock);
  g_free (self->folder);
  g_free (self);
}

gboolean
ebb_disk_file_is_own (EbbDiskFile *self)
{
  return self->owner == getpid ();
}

/* Bytes of the file in use, padding included. */
static guint64
get_in_use (EbbDiskFile *self)
{
  guint64 in_use;

  pthread_mutex_lock (&self->lock);
  in_use = self->space.in_use;
  pthread_mutex_unlock (&self->lock);
  return in_use;
}

/* -- pieces -------------------------------------------------------------------------------------------------------- */

/* Aligned host memory that a piece passes through. */
typedef struct
{
  void *memory;
  gsize size;
  char *piece;
} Buffer;

static gboolean
buffer_init (Buffer *self,
             gsize size,
             GError **error)
{
  self->size = MIN (align (size), PIECE) + ALIGNMENT;
  self->memory = ebb_device_alloc (ebb_device_get_cpu (), self->size, EBB_PURPOSE_WORKSPACE, error);
  self->piece = (char *) align ((gsize) self->memory);
  return self->memory != NULL;
}

static void
buffer_clear (Buffer *self)
{
  ebb_device_free (ebb_device_get_cpu (), self->memory, self->size, EBB_PURPOSE_WORKSPACE);
}

/* 0, or the number of an error. What was written of a last, incomplete block is written again, so that direct access
 * goes on at a block; if nothing gets through, the disk is full. */
static int
write_piece (int fd,
             const char *data,
             gsize size,
             guint64 offset)
{
  while (size > 0)
    {
      gssize n = pwrite (fd, data, size, (off_t) offset);

      if (n < 0 && (errno == EINTR || (errno == EINVAL && leave_direct (fd))))
        continue;
      if (n < 0)
        return errno;
      if ((gsize) n < size)
        n -= n % ALIGNMENT;
      if (n == 0)
        return ENOSPC;
      data += n;
      offset += (guint64) n;
      size -= (gsize) n;
    }
  return 0;
}

/* 0, the number of an error, or -1 where the file ends before. */
static int
read_piece (int fd,
            char *data,
            gsize size,
            guint64 offset)
{
  while (size > 0)
    {
      gssize n = pread (fd, data, size, (off_t) offset);

      if (n < 0 && (errno == EINTR || (errno == EINVAL && leave_direct (fd))))
        continue;
      if (n < 0)
        return errno;
      if ((gsize) n < size)
        n -= n % ALIGNMENT;
      if (n == 0)
        return -1;
      data += n;
      offset += (guint64) n;
      size -= (gsize) n;
    }
  return 0;
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

static gboolean
take_space (EbbDiskFile *self,
            guint64 limit,
            EbbDiskPart *part,
            GError **error)
{
  struct rlimit process = { RLIM_INFINITY, RLIM_INFINITY };
  gboolean ok;
  guint64 in_use;

  /* To write beyond the limit of the process would be its end. */
  getrlimit (RLIMIT_FSIZE, &process);
  limit = MIN (limit, (guint64) process.rlim_cur);
  pthread_mutex_lock (&self->lock);
  ok = ebb_space_map_take (&self->space, align (part->size), limit, &part->offset);
  in_use = self->space.in_use;
  pthread_mutex_unlock (&self->lock);
  if (!ok)
    {
      g_autofree char *shown = display_folder (self->folder);

      g_set_error (error, EBB_ERROR, EBB_ERROR_IO,
                   "disk store in \"%s\": no room for %" G_GSIZE_FORMAT " bytes: %" G_GUINT64_FORMAT
                   " of the %" G_GUINT64_FORMAT " bytes that it may use are taken",
                   shown, part->size, in_use, limit);
      return FALSE;
    }
  part->file = ebb_disk_file_ref (self);
  return TRUE;
}

static gboolean
write_pieces (EbbDiskFile *self,
              EbbDevice *device,
              const char *data,
              EbbDiskPart *part,
              GError **error)
{
  EbbChecksum checksum;
  Buffer buffer;
  int reason = 0;
  gboolean ok = TRUE;

  if (!buffer_init (&buffer, part->size, error))
    return FALSE;
  ebb_checksum_init (&checksum);
  for (gsize at = 0; ok && reason == 0 && at < part->size; at += PIECE)
    {
      gsize n = MIN (PIECE, part->size - at);

      ok = ebb_transfer_to_host (device, buffer.piece, data + at, n, error);
      if (!ok)
        break;
      memset (buffer.piece + n, 0, align (n) - n);
      ebb_checksum_update (&checksum, buffer.piece, align (n));
      reason = write_piece (self->fd, buffer.piece, align (n), part->offset + at);
    }
  buffer_clear (&buffer);
  part->checksum = ebb_checksum_finish (&checksum);
  if (reason != 0)
    {
      g_autofree char *shown = display_folder (self->folder);

      g_set_error (error, EBB_ERROR, EBB_ERROR_IO,
                   "disk store in \"%s\": can't write %" G_GSIZE_FORMAT " bytes beside %" G_GUINT64_FORMAT
                   " bytes in use: %s",
                   shown, part->size, get_in_use (self) - align (part->size), g_strerror (reason));
    }
  return ok && reason == 0;
}

gboolean
ebb_disk_file_write (EbbDiskFile *self,
                     guint64 limit,
                     EbbDevice *device,
                     const void *data,
                     gsize size,
                     EbbDiskPart *part,
                     GError **error)
{
  *part = (EbbDiskPart){ .size = size };
  if (!take_space (self, limit, part, error))
    return FALSE;
  if (write_pieces (self, device, data, part, error))
    return TRUE;
  ebb_disk_part_clear (part);
  return FALSE;
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

static gboolean
read_pieces (const EbbDiskPart *part,
             EbbDevice *device,
             char *data,
             EbbChecksum *checksum,
             int *reason,
             GError **error)
{
  Buffer buffer;
  gboolean ok = TRUE;

  if (!buffer_init (&buffer, part->size, error))
    return FALSE;
  for (gsize at = 0; ok && at < part->size; at += PIECE)
    {
      gsize n = MIN (PIECE, part->size - at);

      *reason = read_piece (part->file->fd, buffer.piece, align (n), part->offset + at);
      if (*reason != 0)
        break;
      ebb_checksum_update (checksum, buffer.piece, align (n));
      ok = ebb_transfer_from_host (device, data + at, buffer.piece, n, error);
    }
  buffer_clear (&buffer);
  return ok;
}

gboolean
ebb_disk_part_read (const EbbDiskPart *part,
                    EbbDevice *device,
                    void *data,
                    GError **error)
{
  g_autofree char *shown = NULL;
  EbbChecksum checksum;
  int reason = 0;

  ebb_checksum_init (&checksum);
  if (!read_pieces (part, device, data, &checksum, &reason, error))
    return FALSE;
  if (reason == 0 && ebb_checksum_finish (&checksum) == part->checksum)
    return TRUE;
  shown = display_folder (part->file->folder);
  g_set_error (error, EBB_ERROR, EBB_ERROR_IO,
               "disk store in \"%s\": can't read back %" G_GSIZE_FORMAT " bytes at %" G_GUINT64_FORMAT ": %s", shown,
               part->size, part->offset,
               reason > 0   ? g_strerror (reason)
               : reason < 0 ? "the file has become shorter"
                            : "they are not what was written (checksum)");
  return FALSE;
}

void
ebb_disk_part_clear (EbbDiskPart *part)
{
  EbbDiskFile *file = g_steal_pointer (&part->file);

  if (file == NULL)
    return;
  pthread_mutex_lock (&file->lock);
  ebb_space_map_give (&file->space, part->offset, align (part->size));
  pthread_mutex_unlock (&file->lock);
  ebb_disk_file_unref (file);
}
