/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads stored blocks back: pieces from staging memory or the file into a new tensor on the device. */
#include "offload/disk/block-private.h"

#include "tensor/util/checksum-private.h"
#include "tensor/thread-private.h"

/* Bytes of a block on their way back. */
struct _EbbDiskRead
{
  EbbWorkerJob job; /* to read the pieces that are in the file alone */
  EbbDiskQueue *queue;
  EbbDevice *device;
  EbbDiskBlock *block;
  EbbTensor *tensor;
  EbbTransfer *mark;    /* when the tensor's memory was taken */
  GPtrArray *transfers; /* computing must come after them */
  EbbDiskBuffers buffers;
  guint *todo; /* pieces that are in the file alone */
  guint n_todo;
  /* under the lock */
  guint n_done;
  gboolean is_running;
  int reason;    /* why the piece todo[n_done] can't be read */
  GError *error; /* why it can't be copied */
};

/* -- beginning ----------------------------------------------------------------------------------------------------- */

/* Has the bytes of a piece that is in staging memory copied from there. */
static gboolean
copy_staged (EbbDiskRead *self,
             EbbDiskPiece *piece,
             EbbTransfer *filling,
             GError **error)
{
  EbbTransfer *transfer =
      ebb_transfer_from_host_begin (self->device, (char *) self->tensor->view.data + piece->start,
                                    piece->buffer + piece->head, piece->size, filling, error);

  pthread_mutex_lock (&self->queue->worker.lock);
  piece->n_readers--;
  if (transfer != NULL)
    piece->emptying = g_slist_prepend (piece->emptying, ebb_transfer_ref (transfer));
  pthread_cond_broadcast (&self->queue->worker.change);
  pthread_mutex_unlock (&self->queue->worker.lock);
  if (transfer == NULL)
    return FALSE;
  ebb_activation_store_count_transfer (self->block->base.store, transfer);
  g_ptr_array_add (self->transfers, transfer);
  return TRUE;
}

static gboolean
begin_piece (EbbDiskRead *self,
             guint i,
             GError **error)
{
  EbbDiskPiece *piece = &self->block->pieces[i];
  EbbTransfer *filling = NULL;
  gboolean is_lost, is_staged, ok;

  pthread_mutex_lock (&self->queue->worker.lock);
  is_lost = piece->state == EBB_DISK_LOST;
  is_staged = !is_lost && piece->buffer != NULL;
  if (is_staged)
    piece->n_readers++;
  if (is_staged && piece->filling != NULL)
    filling = ebb_transfer_ref (piece->filling);
  pthread_mutex_unlock (&self->queue->worker.lock);
  if (is_lost)
    return ebb_fail (error, EBB_ERROR_DEVICE,
                     "disk store: %" G_GSIZE_FORMAT " bytes can't be given back: their copy from %s failed",
                     self->block->size, ebb_device_get_name (self->device));
  if (!is_staged)
    {
      self->todo[self->n_todo++] = i;
      return TRUE;
    }
  ok = copy_staged (self, piece, filling, error);
  g_clear_pointer (&filling, ebb_transfer_unref);
  return ok;
}

/* Two where the copy of a piece overlaps the reading of the next one. */
static gboolean
take_buffers (EbbDiskRead *self,
              GError **error)
{
  const guint n = self->device->backend->streams != NULL ? 2 : 1;

  EbbDiskBuffers *buffers = &self->buffers;

  buffers->device = self->device;
  for (guint i = 0; i < self->n_todo; i++)
    buffers->size = MAX (buffers->size, self->block->pieces[self->todo[i]].buffer_size);
  for (; buffers->n < MIN (n, self->n_todo); buffers->n++)
    {
      char *memory = ebb_transfer_alloc_host (self->device, buffers->size, EBB_PURPOSE_WORKSPACE, error);

      if (memory == NULL)
        return FALSE;
      buffers->buffers[buffers->n].memory = memory;
    }
  return TRUE;
}

/* A tensor that comes back has data, even where a recompute needs nothing more. */
static EbbTensor *
new_tensor (EbbDiskBlock *block,
            GError **error)
{
  const int stopped = ebb_modes.stopped;
  EbbTensor *tensor;

  ebb_modes.stopped = 0;
  tensor = ebb_tensor_new_uninitialized (&block->n_elements, 1, block->dtype, block->device, error);
  ebb_modes.stopped = stopped;
  return tensor;
}

/* Errors of a device are for the program's threads; this one asks only why the copy can't be. */
static void
begin_copy (EbbDiskRead *self,
            EbbDiskPiece *piece,
            guint i,
            GError **error)
{
  char *data = (char *) self->tensor->view.data + piece->start;
  const char *host = self->buffers.buffers[i].memory + piece->head;
  EbbTransfer *transfer = NULL;

  if (self->device->backend->streams != NULL)
    transfer = ebb_transfer_from_host_begin (self->device, data, host, piece->size, self->mark, NULL);
  if (transfer == NULL)
    transfer = ebb_transfer_from_host_begin (self->device, data, host, piece->size, self->mark, error);
  if (transfer == NULL)
    return;
  if (self->device->backend->streams == NULL) /* done */
    {
      ebb_disk_queue_end_transfer (self->queue, transfer, error);
      return;
    }
  g_ptr_array_add (self->transfers, ebb_transfer_ref (transfer));
  self->buffers.buffers[i].transfer = transfer;
}

/* In a dry run a piece is read, and then copied to the device, where that has queues for it. */
static void
note_read (EbbDiskRead *self,
           EbbDiskPiece *piece,
           GError **error)
{
  EbbTransfer *read = ebb_transfer_of_dry_disk (self->device, FALSE, piece->buffer_size, piece->written);

  if (self->device->backend->streams != NULL)
    {
      EbbTransfer *copy =
          ebb_transfer_from_host_begin (self->device, (char *) self->tensor->view.data + piece->start,
                                        self->buffers.buffers[0].memory, piece->size, read, error);

      ebb_transfer_unref (read);
      read = copy;
    }
  if (read != NULL)
    g_ptr_array_add (self->transfers, read);
}

static int
read_piece (EbbDiskRead *self,
            GError **error)
{
  EbbDiskQueue *queue = self->queue;
  EbbDiskPiece *piece = &self->block->pieces[self->todo[self->n_done]];
  const guint i = self->n_done % self->buffers.n;
  char *memory = self->buffers.buffers[i].memory;
  EbbTransfer *last = g_steal_pointer (&self->buffers.buffers[i].transfer);
  gint64 start;
  int reason;

  if (self->block->is_dry)
    {
      note_read (self, piece, error);
      return 0;
    }
  if (last != NULL && !ebb_disk_queue_end_transfer (queue, last, error))
    return 0;
  ebb_worker_enter (&queue->worker);
  start = g_get_monotonic_time ();
  reason = ebb_disk_file_move (queue->file, EBB_DISK_READ, memory, piece->buffer_size,
                               self->block->offset + piece->start - piece->head);
  if (reason == 0 && ebb_checksum_of (memory + piece->head, piece->size) != piece->checksum)
    reason = EBB_DISK_DAMAGED;
  ebb_worker_leave (&queue->worker);
  pthread_mutex_lock (&queue->worker.lock);
  ebb_worker_count_moving (&queue->worker, start);
  pthread_mutex_unlock (&queue->worker.lock);
  if (reason != 0)
    return reason;
  begin_copy (self, piece, i, error);
  return 0;
}

/* With the lock, on the thread. */
static void
read_next (EbbWorkerJob *job)
{
  EbbDiskRead *self = (EbbDiskRead *) job;
  EbbDiskQueue *queue = self->queue;
  GError *error = NULL;
  int reason;

  self->is_running = TRUE;
  pthread_mutex_unlock (&queue->worker.lock);
  reason = read_piece (self, &error);
  pthread_mutex_lock (&queue->worker.lock);
  self->is_running = FALSE;
  self->reason = reason;
  self->error = error;
  if (reason == 0 && error == NULL)
    self->n_done++;
  if (job->lane != NULL && (reason != 0 || error != NULL || self->n_done == self->n_todo))
    ebb_worker_remove (job);
  pthread_cond_broadcast (&queue->worker.change);
}

static void
start (EbbDiskRead *self)
{
  EbbDiskQueue *queue = self->queue;

  if (self->n_todo == 0)
    return;
  EBB_AUTO_LOCK (&queue->worker.lock);
  self->job.run = read_next;
  ebb_worker_add (&queue->worker, &queue->worker.urgent, &self->job);
  /* The thread is in another process, or there is none. */
  while (self->job.lane != NULL && (self->block->is_dry || !ebb_worker_is_own (&queue->worker)))
    read_next (&self->job);
}

static EbbDiskRead *
read_new (EbbDiskBlock *block,
          GError **error)
{
  EbbDiskRead *self;
  gboolean ok;

  ebb_disk_queue_end_lingering (block->queue, 1);
  self = g_new0 (EbbDiskRead, 1);
  self->queue = block->queue;
  self->device = block->device;
  self->block = block;
  self->transfers = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_transfer_unref);
  self->todo = g_new (guint, block->n_pieces);
  self->tensor = new_tensor (block, error);
  self->mark = self->tensor ? ebb_transfer_mark (block->device, error) : NULL;
  ok = self->mark != NULL;
  for (guint i = 0; ok && i < block->n_pieces; i++)
    ok = begin_piece (self, i, error);
  if (ok && take_buffers (self, error))
    {
      start (self);
      return self;
    }
  ebb_disk_read_cancel (self);
  return NULL;
}

/* -- ending -------------------------------------------------------------------------------------------------------- */

static void
read_free (EbbDiskRead *self)
{
  ebb_disk_buffers_clear (&self->buffers);
  g_ptr_array_unref (self->transfers);
  g_clear_pointer (&self->mark, ebb_transfer_unref);
  g_clear_error (&self->error);
  g_free (self->todo);
  g_free (self);
}

void
ebb_disk_read_cancel (EbbDiskRead *self)
{
  EbbDiskQueue *queue = self->queue;

  pthread_mutex_lock (&queue->worker.lock);
  if (self->job.lane != NULL)
    ebb_worker_remove (&self->job);
  while (self->is_running && ebb_worker_is_own (&queue->worker))
    ebb_worker_wait (&queue->worker, self->device);
  pthread_mutex_unlock (&queue->worker.lock);
  for (guint i = 0; i < self->transfers->len; i++)
    ebb_transfer_settle (self->transfers->pdata[i]);
  g_clear_pointer (&self->tensor, ebb_tensor_unref);
  read_free (self);
}

/* The buffers are read until their copies are done, for which nobody waits here. */
static void
end (EbbDiskRead *self)
{
  for (guint i = 0; i < self->buffers.n; i++)
    if (self->buffers.buffers[i].transfer != NULL)
      ebb_activation_store_count_transfer (self->block->base.store, self->buffers.buffers[i].transfer);
  if (self->device->backend->streams != NULL && self->buffers.n > 0)
    ebb_disk_queue_linger (self->queue, &self->buffers);
  read_free (self);
}

static EbbTensor *
read_finish (EbbDiskRead *self,
             GError **error)
{
  EbbDiskQueue *queue = self->queue;
  EbbDiskBlock *block = self->block;
  GError *local = NULL;
  EbbTensor *tensor;

  pthread_mutex_lock (&queue->worker.lock);
  while (self->job.lane != NULL || self->is_running)
    ebb_worker_wait (&queue->worker, self->device);
  pthread_mutex_unlock (&queue->worker.lock);
  if (self->error != NULL) /* an error of this thread's own computing comes first */
    ebb_transfer_order (self->mark, &local);
  if (local == NULL)
    local = g_steal_pointer (&self->error);
  if (self->reason != 0)
    ebb_disk_file_set_read_error (queue->file, block->size, block->offset, self->reason, &local);
  for (guint i = 0; local == NULL && i < self->transfers->len; i++)
    ebb_transfer_order (self->transfers->pdata[i], &local);
  if (local != NULL)
    {
      g_propagate_error (error, local);
      ebb_disk_read_cancel (self);
      return NULL;
    }
  tensor = g_steal_pointer (&self->tensor);
  end (self);
  return tensor;
}

/* -- of a block --------------------------------------------------------------------------------------------------- */

void
ebb_disk_block_prefetch (EbbDiskBlock *block)
{
  EbbDiskQueue *queue = block->queue;
  EbbDiskRead *read;
  gboolean is_begun;

  pthread_mutex_lock (&queue->worker.lock);
  is_begun = block->ahead != NULL;
  pthread_mutex_unlock (&queue->worker.lock);
  if (is_begun || ebb_in_flight_is_held (block->source) || !ebb_worker_is_own (&queue->worker))
    return;
  read = read_new (block, NULL); /* should it fail, get tries again and returns the error */
  pthread_mutex_lock (&queue->worker.lock);
  if (block->ahead == NULL)
    block->ahead = g_steal_pointer (&read);
  pthread_mutex_unlock (&queue->worker.lock);
  if (read != NULL) /* another thread was faster */
    ebb_disk_read_cancel (read);
}

EbbTensor *
ebb_disk_block_get (EbbDiskBlock *block,
                    GError **error)
{
  EbbDiskQueue *queue = block->queue;
  EbbTensor *source = ebb_in_flight_get (block->source);
  EbbDiskRead *read;

  pthread_mutex_lock (&queue->worker.lock);
  read = g_steal_pointer (&block->ahead);
  pthread_mutex_unlock (&queue->worker.lock);
  if (read != NULL && (source != NULL || !ebb_worker_is_own (&queue->worker)))
    ebb_disk_read_cancel (g_steal_pointer (&read));
  if (source != NULL)
    return source;
  if (read == NULL)
    read = read_new (block, error);
  return read != NULL ? read_finish (read, error) : NULL;
}
