/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/disk/queue-private.h"

#include "tensor/util/checksum-private.h"
#include "tensor/thread-private.h"

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
    {
      g_clear_pointer (&piece->emptying, ebb_transfer_unref);
      piece->emptying = ebb_transfer_ref (transfer);
    }
  pthread_cond_broadcast (&self->queue->worker.change);
  pthread_mutex_unlock (&self->queue->worker.lock);
  if (transfer == NULL)
    return FALSE;
  ebb_activation_store_count_transfer (self->store, transfer);
  g_ptr_array_add (self->transfers, transfer);
  return TRUE;
}

static gboolean
begin_piece (EbbDiskRead *self,
             guint i,
             GError **error)
{
  EbbDiskPiece *piece = &self->record->pieces[i];
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
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE,
                   "disk store: %" G_GSIZE_FORMAT " bytes can't be given back: their copy from %s failed",
                   self->record->size, ebb_device_get_name (self->device));
      return FALSE;
    }
  if (!is_staged)
    {
      self->todo[self->n_todo++] = i;
      return TRUE;
    }
  ok = copy_staged (self, piece, filling, error);
  g_clear_pointer (&filling, ebb_transfer_unref);
  return ok;
}

/* Two where the copy of a piece runs beside the reading of the next one. */
static gboolean
take_buffers (EbbDiskRead *self,
              GError **error)
{
  const guint n = self->device->backend->streams != NULL ? 2 : 1;

  for (guint i = 0; i < self->n_todo; i++)
    self->buffer_size = MAX (self->buffer_size, self->record->pieces[self->todo[i]].buffer_size);
  for (guint i = 0; i < MIN (n, self->n_todo); i++)
    {
      self->buffers[i].memory =
          ebb_transfer_alloc_host (self->device, self->buffer_size, EBB_PURPOSE_WORKSPACE, error);
      if (self->buffers[i].memory == NULL)
        return FALSE;
      self->n_buffers++;
    }
  return TRUE;
}

/* What comes back has data, even where a recompute needs nothing more. */
static EbbTensor *
new_tensor (EbbDiskRecord *record,
            GError **error)
{
  const int stopped = ebb_thread.stopped;
  EbbTensor *tensor;

  ebb_thread.stopped = 0;
  tensor = ebb_tensor_new_uninitialized (&record->n_elements, 1, record->dtype, record->device, error);
  ebb_thread.stopped = stopped;
  return tensor;
}

/* What a device has to tell is for the program's threads; this one asks only why the copy can't be. */
static void
begin_copy (EbbDiskRead *self,
            EbbDiskPiece *piece,
            EbbDiskBuffer *buffer,
            GError **error)
{
  char *data = (char *) self->tensor->view.data + piece->start;
  const char *host = buffer->memory + piece->head;
  EbbTransfer *transfer = NULL;

  if (self->device->backend->streams != NULL)
    transfer = ebb_transfer_from_host_begin_after (self->device, data, host, piece->size, self->mark, NULL);
  if (transfer == NULL)
    transfer = ebb_transfer_from_host_begin_after (self->device, data, host, piece->size, self->mark, error);
  if (transfer == NULL)
    return;
  if (self->device->backend->streams == NULL) /* done */
    {
      ebb_disk_queue_end_transfer (self->queue, transfer, error);
      return;
    }
  g_ptr_array_add (self->transfers, ebb_transfer_ref (transfer));
  buffer->transfer = transfer;
}

static int
read_piece (EbbDiskRead *self,
            GError **error)
{
  EbbDiskQueue *queue = self->queue;
  EbbDiskPiece *piece = &self->record->pieces[self->todo[self->n_done]];
  EbbDiskBuffer *buffer = &self->buffers[self->n_done % self->n_buffers];
  gint64 start;
  int reason;

  if (buffer->transfer != NULL && !ebb_disk_queue_end_transfer (queue, g_steal_pointer (&buffer->transfer), error))
    return 0;
  ebb_worker_enter (&queue->worker);
  start = g_get_monotonic_time ();
  reason = ebb_disk_file_read (queue->file, buffer->memory, piece->buffer_size,
                               self->record->offset + piece->start - piece->head);
  if (reason == 0 && ebb_checksum_of (buffer->memory + piece->head, piece->size) != piece->checksum)
    reason = EBB_DISK_DAMAGED;
  ebb_worker_leave (&queue->worker);
  pthread_mutex_lock (&queue->worker.lock);
  ebb_worker_count_moving (&queue->worker, start);
  pthread_mutex_unlock (&queue->worker.lock);
  if (reason != 0)
    return reason;
  begin_copy (self, piece, buffer, error);
  return 0;
}

void
ebb_disk_queue_run_read (EbbDiskQueue *queue)
{
  EbbDiskRead *self = queue->reads.head->data;
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
  if (self->is_queued && (reason != 0 || error != NULL || self->n_done == self->n_todo))
    {
      g_queue_unlink (&queue->reads, &self->in_reads);
      self->is_queued = FALSE;
    }
  pthread_cond_broadcast (&queue->worker.change);
}

static void
start (EbbDiskRead *self)
{
  EbbDiskQueue *queue = self->queue;

  if (self->n_todo == 0)
    return;
  pthread_mutex_lock (&queue->worker.lock);
  g_queue_push_tail_link (&queue->reads, &self->in_reads);
  self->is_queued = TRUE;
  while (self->is_queued && !ebb_worker_is_own (&queue->worker)) /* the thread is in another process */
    ebb_disk_queue_run_read (queue);
  pthread_cond_signal (&queue->worker.work);
  pthread_mutex_unlock (&queue->worker.lock);
}

static EbbDiskRead *
read_new (EbbDiskRecord *record,
          GError **error)
{
  EbbDiskRead *self;
  gboolean ok;

  ebb_disk_queue_end_lingering (record->queue, 1);
  self = g_new0 (EbbDiskRead, 1);
  self->in_reads.data = self;
  self->queue = record->queue;
  self->store = record->store;
  self->device = record->device;
  self->record = record;
  self->transfers = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_transfer_unref);
  self->todo = g_new (guint, record->n_pieces);
  self->tensor = new_tensor (record, error);
  self->mark = self->tensor ? ebb_transfer_mark (record->device, error) : NULL;
  ok = self->mark != NULL;
  for (guint i = 0; ok && i < record->n_pieces; i++)
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
  for (guint i = 0; i < self->n_buffers; i++)
    {
      ebb_disk_wait_for_transfer (self->buffers[i].transfer);
      ebb_transfer_free_host (self->device, self->buffers[i].memory, self->buffer_size, EBB_PURPOSE_WORKSPACE);
    }
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
  if (self->is_queued)
    g_queue_unlink (&queue->reads, &self->in_reads);
  self->is_queued = FALSE;
  while (self->is_running && ebb_worker_is_own (&queue->worker))
    ebb_worker_wait (&queue->worker, self->device);
  pthread_mutex_unlock (&queue->worker.lock);
  for (guint i = 0; i < self->transfers->len; i++)
    ebb_activation_store_settle (self->store, self->transfers->pdata[i]);
  g_clear_pointer (&self->tensor, ebb_tensor_unref);
  read_free (self);
}

void
ebb_disk_queue_end_lingering (EbbDiskQueue *queue,
                              guint n)
{
  pthread_mutex_lock (&queue->worker.lock);
  while (queue->lingering.length > n)
    {
      EbbDiskRead *oldest = g_queue_pop_head_link (&queue->lingering)->data;

      pthread_mutex_unlock (&queue->worker.lock);
      read_free (oldest);
      pthread_mutex_lock (&queue->worker.lock);
    }
  pthread_mutex_unlock (&queue->worker.lock);
}

/* Its memory is read until its copies are done, for which nobody waits here. */
static void
linger (EbbDiskRead *self)
{
  EbbDiskQueue *queue = self->queue;

  self->record = NULL;
  for (guint i = 0; i < self->n_buffers; i++)
    if (self->buffers[i].transfer != NULL)
      ebb_activation_store_count_transfer (self->store, self->buffers[i].transfer);
  if (self->device->backend->streams == NULL || self->n_buffers == 0)
    {
      read_free (self);
      return;
    }
  pthread_mutex_lock (&queue->worker.lock);
  g_queue_push_tail_link (&queue->lingering, &self->in_reads);
  pthread_mutex_unlock (&queue->worker.lock);
}

static EbbTensor *
read_finish (EbbDiskRead *self,
             GError **error)
{
  EbbDiskQueue *queue = self->queue;
  EbbDiskRecord *record = self->record;
  GError *local = NULL;
  EbbTensor *tensor;

  pthread_mutex_lock (&queue->worker.lock);
  while (self->is_queued || self->is_running)
    ebb_worker_wait (&queue->worker, self->device);
  pthread_mutex_unlock (&queue->worker.lock);
  if (self->error != NULL) /* what this thread has to be told comes first */
    ebb_transfer_order (self->mark, &local);
  if (local == NULL)
    local = g_steal_pointer (&self->error);
  if (self->reason != 0)
    ebb_disk_file_set_read_error (queue->file, record->size, record->offset, self->reason, &local);
  for (guint i = 0; local == NULL && i < self->transfers->len; i++)
    ebb_transfer_order (self->transfers->pdata[i], &local);
  if (local != NULL)
    {
      g_propagate_error (error, local);
      ebb_disk_read_cancel (self);
      return NULL;
    }
  tensor = g_steal_pointer (&self->tensor);
  linger (self);
  return tensor;
}

/* -- of a record --------------------------------------------------------------------------------------------------- */

void
ebb_disk_record_prefetch (EbbDiskRecord *record)
{
  EbbDiskQueue *queue = record->queue;
  EbbDiskRead *read;
  gboolean is_begun;

  pthread_mutex_lock (&queue->worker.lock);
  is_begun = record->ahead != NULL;
  pthread_mutex_unlock (&queue->worker.lock);
  if (is_begun || ebb_original_is_held (record->original) || !ebb_worker_is_own (&queue->worker))
    return;
  read = read_new (record, NULL); /* should it fail, get tries again and tells */
  pthread_mutex_lock (&queue->worker.lock);
  if (record->ahead == NULL)
    record->ahead = g_steal_pointer (&read);
  pthread_mutex_unlock (&queue->worker.lock);
  if (read != NULL) /* another thread was faster */
    ebb_disk_read_cancel (read);
}

EbbTensor *
ebb_disk_record_get (EbbDiskRecord *record,
                     GError **error)
{
  EbbDiskQueue *queue = record->queue;
  EbbTensor *original = ebb_original_get (record->original);
  EbbDiskRead *read;

  pthread_mutex_lock (&queue->worker.lock);
  read = g_steal_pointer (&record->ahead);
  pthread_mutex_unlock (&queue->worker.lock);
  if (read != NULL && (original != NULL || !ebb_worker_is_own (&queue->worker)))
    ebb_disk_read_cancel (g_steal_pointer (&read));
  if (original != NULL)
    return original;
  if (read == NULL)
    read = read_new (record, error);
  return read != NULL ? read_finish (read, error) : NULL;
}
