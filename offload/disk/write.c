/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Writes the pieces of stored blocks: from the device to staging memory, and from there to the file. */
#include "offload/disk/block-private.h"

#include "tensor/util/checksum-private.h"

#include <string.h>

/* -- staging memory ------------------------------------------------------------------------------------------------ */

static void
unlink_staged (EbbDiskQueue *self,
               EbbDiskPiece *piece)
{
  g_queue_unlink (&self->staged, &piece->in_staged);
  self->n_staged -= piece->buffer_size;
}

/* With the lock, which is left meanwhile. */
static void
free_buffer (EbbDiskQueue *self,
             EbbDiskPiece *piece)
{
  GSList *emptying = g_steal_pointer (&piece->emptying);
  EbbTransfer *filling = g_steal_pointer (&piece->filling);
  char *buffer = g_steal_pointer (&piece->buffer);
  EbbDevice *device = piece->block->device;
  const gsize size = piece->buffer_size;

  unlink_staged (self, piece);
  pthread_mutex_unlock (&self->worker.lock);
  ebb_disk_wait_for_transfer (filling);
  g_slist_free_full (emptying, (GDestroyNotify) ebb_disk_wait_for_transfer);
  ebb_transfer_free_host (device, buffer, size, EBB_PURPOSE_WORKSPACE);
  pthread_mutex_lock (&self->worker.lock);
  pthread_cond_broadcast (&self->worker.change);
}

static void write_next (EbbWorkerJob *job);

static void
note_written (EbbDiskPiece *piece)
{
  piece->written = ebb_transfer_of_dry_disk (piece->block->device, TRUE, piece->buffer_size, piece->filling);
  g_clear_pointer (&piece->filling, ebb_transfer_unref);
  piece->state = EBB_DISK_WRITTEN;
}

static void
enqueue (EbbDiskQueue *self,
         EbbDiskPiece *piece)
{
  if (piece->block->is_dry)
    {
      note_written (piece);
      return;
    }
  piece->state = EBB_DISK_QUEUED;
  piece->job.run = write_next;
  ebb_worker_add (&self->worker, &self->worker.patient, &piece->job);
}

/* Which staging memory may be in use. */
typedef struct
{
  guint64 limit; /* bytes */
  guint64 group; /* pieces put before it stay only within EBB_DISK_PIECE bytes */
} Allowance;

static gboolean
is_too_much (EbbDiskQueue *self,
             gsize need,
             const Allowance *allowance)
{
  const EbbDiskPiece *oldest = self->staged.head ? self->staged.head->data : NULL;

  return oldest != NULL
         && (need > allowance->limit || self->n_staged > allowance->limit - need
             || (oldest->block->group < allowance->group && self->n_staged + need > EBB_DISK_PIECE));
}

/* With the lock: gives back the memory of the oldest pieces until @need more bytes are allowed. A piece that could not
 * be written is tried again once that error was returned. @device: whose computing goes on with it, or NULL. */
static gboolean
make_room (EbbDiskQueue *self,
           EbbDevice *device,
           gsize need,
           const Allowance *allowance,
           GError **error)
{
  while (is_too_much (self, need, allowance))
    {
      EbbDiskPiece *oldest = self->staged.head->data;

      if (oldest->state == EBB_DISK_FAILED)
        {
          if (!ebb_disk_queue_return_failure (self, error))
            return FALSE;
          enqueue (self, oldest);
        }
      if (device != NULL && oldest->written != NULL)
        ebb_transfer_order (oldest->written, NULL);
      if ((oldest->state == EBB_DISK_WRITTEN || oldest->state == EBB_DISK_LOST) && oldest->n_readers == 0)
        free_buffer (self, oldest);
      else
        ebb_worker_wait (&self->worker, device);
    }
  return TRUE;
}

/* -- putting ------------------------------------------------------------------------------------------------------- */

/* Takes memory for @piece and has its bytes copied there. */
static gboolean
fill (EbbDiskPiece *piece,
      const char *data,
      GError **error)
{
  EbbDevice *device = piece->block->device;
  EbbTransfer *filling = NULL;
  char *buffer = ebb_transfer_alloc_host (device, piece->buffer_size, EBB_PURPOSE_WORKSPACE, error);

  if (buffer == NULL)
    return FALSE;
  if (!piece->block->is_dry)
    {
      memset (buffer, 0, piece->head);
      memset (buffer + piece->head + piece->size, 0, piece->buffer_size - piece->head - piece->size);
    }
  filling = ebb_transfer_to_host_begin (device, buffer + piece->head, data + piece->start, piece->size, NULL, error);
  if (filling == NULL)
    {
      ebb_transfer_free_host (device, buffer, piece->buffer_size, EBB_PURPOSE_WORKSPACE);
      return FALSE;
    }
  ebb_activation_store_count_transfer (piece->block->base.store, filling);
  piece->buffer = buffer;
  piece->filling = filling;
  return TRUE;
}

static gboolean
put_piece (EbbDiskPiece *piece,
           const char *data,
           const Allowance *allowance,
           EbbTransfer **last,
           GError **error)
{
  EbbDiskQueue *queue = piece->block->queue;
  gboolean ok;

  pthread_mutex_lock (&queue->worker.lock);
  ok = make_room (queue, piece->block->device, piece->buffer_size, allowance, error);
  if (ok)
    {
      piece->state = EBB_DISK_FILLING;
      g_queue_push_tail_link (&queue->staged, &piece->in_staged);
      queue->n_staged += piece->buffer_size;
    }
  pthread_mutex_unlock (&queue->worker.lock);
  if (!ok)
    return FALSE;
  ok = fill (piece, data, error);
  pthread_mutex_lock (&queue->worker.lock);
  if (ok)
    {
      *last = ebb_transfer_ref (piece->filling);
      enqueue (queue, piece);
      ok = make_room (queue, piece->block->device, 0, allowance, error);
    }
  else
    {
      piece->state = EBB_DISK_EMPTY;
      unlink_staged (queue, piece);
      pthread_cond_broadcast (&queue->worker.change);
    }
  pthread_mutex_unlock (&queue->worker.lock);
  return ok;
}

gboolean
ebb_disk_block_put (EbbDiskBlock *block,
                    EbbTensor *source,
                    guint64 limit,
                    GError **error)
{
  EbbDiskQueue *queue = block->queue;
  const guint64 in_flight = EBB_READ (ebb_activation_store_peek (block->base.store)->in_flight);
  const Allowance allowance = { limit, block->group - MIN (block->group, in_flight) };
  EbbTransfer *last = NULL;
  gboolean ok;

  pthread_mutex_lock (&queue->worker.lock);
  ok = ebb_disk_queue_return_failure (queue, error);
  pthread_mutex_unlock (&queue->worker.lock);
  ok = ok && (block->is_dry || ebb_worker_start (&queue->worker, error));
  for (guint i = 0; ok && i < block->n_pieces; i++)
    {
      g_clear_pointer (&last, ebb_transfer_unref);
      ok = put_piece (&block->pieces[i], source->view.data, &allowance, &last, error);
    }
  if (last != NULL) /* the copies read the source until the last one is done */
    {
      block->source = ebb_activation_store_hold (block->base.store, source, last);
      ebb_transfer_unref (last);
    }
  return ok;
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

/* The bytes beside a piece in the sectors at its ends; zeros where nothing was written yet. On the thread. */
static int
read_neighbours (EbbDiskQueue *self,
                 EbbDiskPiece *piece,
                 guint64 offset)
{
  const gsize end = piece->head + piece->size, last = piece->buffer_size - EBB_DISK_SECTOR;
  int reason = 0;

  if (self->sector == NULL)
    self->sector = g_aligned_alloc (1, EBB_DISK_SECTOR, EBB_DISK_SECTOR);
  if (piece->head > 0)
    {
      reason = ebb_disk_file_move (self->file, EBB_DISK_READ, self->sector, EBB_DISK_SECTOR, offset);
      if (reason == 0)
        memcpy (piece->buffer, self->sector, piece->head);
    }
  if (end < piece->buffer_size && (reason == 0 || reason == EBB_DISK_SHORTER))
    {
      reason = ebb_disk_file_move (self->file, EBB_DISK_READ, self->sector, EBB_DISK_SECTOR, offset + last);
      if (reason == 0)
        memcpy (piece->buffer + end, self->sector + (end - last), piece->buffer_size - end);
    }
  return reason == EBB_DISK_SHORTER ? 0 : reason;
}

static int
write_piece (EbbDiskQueue *self,
             EbbDiskPiece *piece,
             double *seconds)
{
  EbbDiskBlock *block = piece->block;
  const guint64 offset = block->offset + piece->start - piece->head;
  int reason = 0;
  gint64 start;

  ebb_worker_enter (&self->worker);
  start = g_get_monotonic_time ();
  piece->checksum = ebb_checksum_of (piece->buffer + piece->head, piece->size);
  if (block->space->is_room)
    reason = read_neighbours (self, piece, offset);
  if (reason == 0)
    reason = ebb_disk_file_move (self->file, EBB_DISK_WRITE, piece->buffer, piece->buffer_size, offset);
  *seconds = (double) (g_get_monotonic_time () - start) / G_USEC_PER_SEC;
  ebb_worker_leave (&self->worker);
  return reason;
}

/* The first failure is returned to a caller. */
static void
note_failure (EbbDiskQueue *self,
              EbbDiskPiece *piece,
              int reason)
{
  const guint64 in_use = ebb_disk_file_get_in_use (self->file), own = EBB_DISK_ALIGN (piece->block->size);

  piece->state = EBB_DISK_FAILED;
  self->failure.n_in_turn++;
  if (self->failure.is_pending)
    return;
  self->failure = (EbbDiskFailure){ .is_pending = TRUE,
                                    .n_in_turn = self->failure.n_in_turn,
                                    .size = piece->block->size,
                                    .beside = in_use - MIN (in_use, own),
                                    .reason = reason };
}

static void
write_next (EbbWorkerJob *job)
{
  EbbDiskPiece *piece = (EbbDiskPiece *) job;
  EbbDiskQueue *self = piece->block->queue;
  EbbTransfer *filling = piece->filling != NULL ? ebb_transfer_ref (piece->filling) : NULL;
  gboolean is_there;
  double seconds = 0;
  int reason = 0;

  ebb_worker_remove (job);
  piece->state = EBB_DISK_WRITING;
  pthread_mutex_unlock (&self->worker.lock);
  is_there = filling == NULL || ebb_transfer_finish (filling, NULL); /* none: it is tried again */
  if (is_there)
    reason = write_piece (self, piece, &seconds);
  g_clear_pointer (&filling, ebb_transfer_unref);
  pthread_mutex_lock (&self->worker.lock);
  g_clear_pointer (&piece->filling, ebb_transfer_unref); /* until now readers had to come after it */
  self->worker.moving += seconds;
  if (!is_there)
    piece->state = EBB_DISK_LOST;
  else if (reason == 0)
    {
      piece->state = EBB_DISK_WRITTEN;
      self->failure.n_in_turn = 0;
    }
  else
    note_failure (self, piece, reason);
  pthread_cond_broadcast (&self->worker.change);
}

void
ebb_disk_piece_drop (EbbDiskPiece *piece)
{
  EbbDiskQueue *queue = piece->block->queue;

  if (piece->state == EBB_DISK_QUEUED && ebb_worker_is_own (&queue->worker))
    {
      ebb_worker_remove (&piece->job);
      piece->state = EBB_DISK_EMPTY;
    }
  while (piece->state == EBB_DISK_WRITING && ebb_worker_is_own (&queue->worker))
    ebb_worker_wait (&queue->worker, piece->block->device);
  if (piece->buffer != NULL)
    free_buffer (queue, piece);
  g_clear_pointer (&piece->written, ebb_transfer_unref);
}

gboolean
ebb_disk_queue_flush (EbbDiskQueue *self,
                      GError **error)
{
  const Allowance none = { 0 };
  gboolean ok;

  pthread_mutex_lock (&self->worker.lock);
  self->failure.n_in_turn = 0; /* the disk may be well again */
  ok = make_room (self, NULL, 0, &none, error) && ebb_disk_queue_return_failure (self, error);
  pthread_mutex_unlock (&self->worker.lock);
  ebb_disk_queue_end_lingering (self, 0);
  return ok;
}
