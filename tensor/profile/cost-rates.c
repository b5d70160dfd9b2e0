/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How fast bytes go between a device and the host, and between the host and a folder. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* O_DIRECT, O_TMPFILE */
#endif
#include "tensor/profile/cost-private.h"

#include "tensor/error-private.h"
#include "tensor/profile/profiler-private.h"
#include "tensor/profile/rerun-private.h"
#include "tensor/util/checksum-private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Copies are made larger until one takes so long. */
#define LEAST_HOST_BYTES (256 * 1024)
#define MOST_HOST_BYTES (16 * 1024 * 1024)
#define LEAST_SECONDS 0.005
#define N_ROUNDS 3
#define PIECE_BYTES (4 * 1024 * 1024) /* a disk store's */
#define N_PIECES 8
#define SECTOR 4096

static double
get_now (void)
{
  return (double) ebb_profiler_get_time () * 1e-9;
}

/* -- the host ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  EbbDevice *device;
  void *host, *data;
  gsize size;
} Pair;

/* One copy, in the queue that stores use for it. */
static gboolean
copy (const Pair *pair,
      gboolean to_host,
      GError **error)
{
  const EbbBackend *backend = pair->device->backend;
  void *destination = to_host ? pair->host : pair->data;
  const void *source = to_host ? pair->data : pair->host;
  gpointer event = NULL;
  gboolean ok;

  if (backend->streams == NULL && backend->copy != NULL)
    return backend->copy (pair->device->index, destination, source, pair->size, to_host, error);
  if (backend->streams == NULL)
    {
      memcpy (destination, source, pair->size);
      return TRUE;
    }
  if (!backend->streams->copy (pair->device->index, to_host ? EBB_STREAM_TO_HOST : EBB_STREAM_FROM_HOST, destination,
                               source, pair->size, &event, error))
    return FALSE;
  ok = backend->streams->synchronize_event (event, error);
  backend->streams->free_event (event);
  return ok;
}

static gboolean
time_copies (const Pair *pair,
             gboolean to_host,
             double *rate,
             GError **error)
{
  Pair part = *pair;
  double times[N_ROUNDS], began;

  for (part.size = MIN (pair->size, LEAST_HOST_BYTES);; part.size = MIN (pair->size, 2 * part.size))
    {
      began = get_now ();
      if (!copy (&part, to_host, error))
        return FALSE;
      if (part.size == pair->size || get_now () - began >= LEAST_SECONDS)
        break;
    }
  for (guint i = 0; i < N_ROUNDS; i++)
    {
      began = get_now ();
      if (!copy (&part, to_host, error))
        return FALSE;
      times[i] = get_now () - began;
    }
  *rate = (double) part.size / MAX (ebb_rerun_take_median (times, N_ROUNDS), 1e-9);
  return TRUE;
}

static gboolean
time_pair (Pair *pair,
           EbbCostRates *rates,
           GError **error)
{
  const EbbBackend *backend = pair->device->backend;
  const EbbStreamFuncs *streams = backend->streams;
  const int index = pair->device->index;
  gboolean ok;

  pair->host = streams != NULL ? streams->alloc_host (index, pair->size, error) : g_malloc (pair->size);
  if (pair->host == NULL)
    return FALSE;
  memset (pair->host, 1, pair->size);
  /* What was enqueued for computing may still read the memory. */
  ok = (backend->synchronize == NULL || backend->synchronize (index, error))
       && time_copies (pair, FALSE, &rates->in, error) && time_copies (pair, TRUE, &rates->out, error);
  if (streams != NULL)
    streams->free_host (index, pair->host, pair->size);
  else
    g_free (pair->host);
  return ok;
}

gboolean
ebb_cost_measure_host (EbbDevice *device,
                       guint64 max_bytes,
                       EbbCostRates *rates,
                       GError **error)
{
  EbbMemoryAccount *account = ebb_thread.account;
  Pair pair = { .device = device, .size = CLAMP (max_bytes, LEAST_HOST_BYTES, MOST_HOST_BYTES) };
  gboolean ok = FALSE;

  ebb_thread.account = NULL;
  pair.data = ebb_device_alloc (device, pair.size, EBB_PURPOSE_WORKSPACE, error);
  if (pair.data != NULL)
    {
      ok = time_pair (&pair, rates, error);
      ebb_device_free (device, pair.data, pair.size, EBB_PURPOSE_WORKSPACE);
    }
  ebb_thread.account = account;
  return ok;
}

gboolean
ebb_cost_table_measure_host (EbbCostTable *self,
                             guint64 max_bytes,
                             GError **error)
{
  if (self->host_rates.out > 0)
    return TRUE;
  if (!ebb_cost_measure_host (self->device, max_bytes, &self->host_rates, error))
    return FALSE;
  ebb_cost_file_save (self);
  return TRUE;
}

/* -- a folder ------------------------------------------------------------------------------------------------------ */

/* A file without a name, past the page cache where that is possible. */
static int
open_file (const char *folder)
{
  int fd = -1;

#ifdef O_TMPFILE
  fd = open (folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
#endif
  if (fd < 0)
    {
      g_autofree char *path = g_build_filename (folder, ".ebb-cost-XXXXXX", NULL);

      fd = mkostemp (path, O_CLOEXEC);
      if (fd >= 0)
        unlink (path);
    }
  if (fd >= 0)
    fcntl (fd, F_SETFL, fcntl (fd, F_GETFL) | O_DIRECT);
  return fd;
}

static gboolean
move_piece (int fd,
            char *piece,
            guint index,
            gboolean writes)
{
  for (gsize done = 0; done < PIECE_BYTES;)
    {
      off_t place = (off_t) index * PIECE_BYTES + (off_t) done;
      gssize n = writes ? pwrite (fd, piece + done, PIECE_BYTES - done, place)
                        : pread (fd, piece + done, PIECE_BYTES - done, place);
      int flags = fcntl (fd, F_GETFL);

      if (n > 0)
        {
          done += (gsize) n;
          continue;
        }
      if (n < 0 && errno == EINTR)
        continue;
      /* Not every file system can do without its cache. */
      if (n < 0 && errno == EINVAL && (flags & O_DIRECT) != 0 && fcntl (fd, F_SETFL, flags & ~O_DIRECT) == 0)
        continue;
      if (n == 0)
        errno = EIO;
      return FALSE;
    }
  return TRUE;
}

static gboolean
time_pieces (int fd,
             char *piece,
             gboolean writes,
             double *rate)
{
  double began = get_now ();

  for (guint i = 0; i < N_PIECES; i++)
    {
      if (!move_piece (fd, piece, i, writes))
        return FALSE;
      ebb_checksum_of (piece, PIECE_BYTES);
    }
  if (writes && fdatasync (fd) != 0)
    return FALSE;
  *rate = (double) PIECE_BYTES * N_PIECES / MAX (get_now () - began, 1e-9);
  return TRUE;
}

gboolean
ebb_cost_measure_folder (const char *folder,
                         EbbCostRates *rates,
                         GError **error)
{
  int fd = open_file (folder);
  void *piece = NULL;
  gboolean ok = fd >= 0 && (errno = posix_memalign (&piece, SECTOR, PIECE_BYTES)) == 0;

  if (ok)
    memset (piece, 1, PIECE_BYTES);
  ok = ok && time_pieces (fd, piece, TRUE, &rates->out);
  /* Where the page cache can't be avoided, it is emptied of the file. */
  if (ok)
    posix_fadvise (fd, 0, 0, POSIX_FADV_DONTNEED);
  ok = ok && time_pieces (fd, piece, FALSE, &rates->in);
  if (!ok)
    {
      g_autofree char *shown = ebb_escape_text (folder);

      ebb_error_set (error, EBB_ERROR_IO, "can't measure how fast \"%s\" is: %s", shown, g_strerror (errno));
    }
  free (piece);
  if (fd >= 0)
    close (fd);
  return ok;
}

gboolean
ebb_cost_table_measure_folder (EbbCostTable *self,
                               const char *folder,
                               GError **error)
{
  if (self->disk_rates.out > 0 && g_strcmp0 (self->disk_folder, folder) == 0)
    return TRUE;
  if (!ebb_cost_measure_folder (folder, &self->disk_rates, error))
    return FALSE;
  g_free (self->disk_folder);
  self->disk_folder = g_strdup (folder);
  ebb_cost_file_save (self);
  return TRUE;
}
