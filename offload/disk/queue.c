/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/disk/queue-private.h"

/* The file, thread and memory of a disk store in one process, and the errors that no caller has got yet. */

/* Failures in turn after which a disk is left alone. */
#define MANY 4

/* -- object -------------------------------------------------------------------------------------------------------- */

EbbDiskQueue *
ebb_disk_queue_new (const char *folder,
                    GError **error)
{
  EbbDiskFile *file = ebb_disk_file_new (folder, error);
  EbbDiskQueue *self;

  if (file == NULL)
    return NULL;
  self = g_new0 (EbbDiskQueue, 1);
  self->ref_count = 1;
  self->file = file;
  ebb_worker_init (&self->worker, "ebb-disk", "disk store");
  return self;
}

EbbDiskQueue *
ebb_disk_queue_ref (EbbDiskQueue *self)
{
  __atomic_add_fetch (&self->ref_count, 1, __ATOMIC_RELAXED);
  return self;
}

/* Blocks hold the queue, so there is nothing to do any more when it is freed; nor does its own thread hold it. */
void
ebb_disk_queue_unref (EbbDiskQueue *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  ebb_worker_stop (&self->worker);
  ebb_disk_queue_end_lingering (self, 0);
  ebb_disk_file_free (self->file);
  ebb_worker_clear (&self->worker);
  g_aligned_free (self->sector);
  g_free (self);
}

/* -- transfers and failures ---------------------------------------------------------------------------------------- */

gboolean
ebb_disk_queue_end_transfer (EbbDiskQueue *self,
                             EbbTransfer *transfer,
                             GError **error)
{
  double seconds = 0, waited = 0;
  gboolean ok = ebb_transfer_finish (transfer, NULL) || ebb_transfer_finish (transfer, error);

  if (ok)
    ebb_transfer_get_times (transfer, &seconds, &waited);
  ebb_transfer_unref (transfer);
  EBB_AUTO_LOCK (&self->worker.lock);
  self->worker.moving += seconds;
  return ok;
}

void
ebb_disk_wait_for_transfer (EbbTransfer *transfer)
{
  if (transfer == NULL)
    return;
  ebb_transfer_wait (transfer, NULL);
  ebb_transfer_unref (transfer);
}

gboolean
ebb_disk_queue_return_failure (EbbDiskQueue *self,
                               GError **error)
{
  EbbDiskFailure *failure = &self->failure;

  if (!failure->is_pending && failure->n_in_turn < MANY)
    return TRUE;
  failure->is_pending = FALSE;
  ebb_disk_file_set_write_error (self->file, failure->size, failure->beside, failure->reason, error);
  return FALSE;
}

/* -- lingering buffers --------------------------------------------------------------------------------------------- */

void
ebb_disk_buffers_clear (EbbDiskBuffers *self)
{
  for (guint i = 0; i < self->n; i++)
    {
      ebb_disk_wait_for_transfer (self->buffers[i].transfer);
      ebb_transfer_free_host (self->device, self->buffers[i].memory, self->size, EBB_PURPOSE_WORKSPACE);
    }
  self->n = 0;
}

void
ebb_disk_queue_linger (EbbDiskQueue *self,
                       EbbDiskBuffers *buffers)
{
  pthread_mutex_lock (&self->worker.lock);
  g_queue_push_tail (&self->lingering, g_memdup2 (buffers, sizeof *buffers));
  pthread_mutex_unlock (&self->worker.lock);
  buffers->n = 0;
}

void
ebb_disk_queue_end_lingering (EbbDiskQueue *self,
                              guint n)
{
  pthread_mutex_lock (&self->worker.lock);
  while (self->lingering.length > n)
    {
      EbbDiskBuffers *oldest = g_queue_pop_head (&self->lingering);

      pthread_mutex_unlock (&self->worker.lock);
      ebb_disk_buffers_clear (oldest);
      g_free (oldest);
      pthread_mutex_lock (&self->worker.lock);
    }
  pthread_mutex_unlock (&self->worker.lock);
}
