/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/compressed/compress-queue-private.h"

#include "offload/compressed/rounding-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/thread-private.h"

#include <string.h>

/* -- by the thread ------------------------------------------------------------------------------------------------- */

static void
note_rounding (EbbCompressQueue *queue,
               float worst)
{
  pthread_mutex_lock (&queue->worker.lock);
  queue->worst = MAX (queue->worst, worst);
  pthread_mutex_unlock (&queue->worker.lock);
}

/* What comes from a device is rounded here; from host memory it came rounded. If the copy has failed, the device tells
 * the thread of the program that began it. */
static gboolean
receive (EbbCompressRecord *self)
{
  if (self->filling != NULL && !ebb_transfer_finish (self->filling, NULL))
    return FALSE;
  if (self->is_rounded && !self->device->backend->host_memory)
    note_rounding (self->queue, ebb_round_to_bf16 ((const float *) (void *) self->staging, (gsize) self->n_elements,
                                                   (guint16 *) (void *) self->staging));
  return TRUE;
}

/* In place of the bytes, what will be stored of them: the bytes themselves where there is little to gain. */
static gsize
compress (EbbCompressRecord *self,
          GError **error)
{
  const EbbCompressQueue *queue = self->queue;
  gsize size = ebb_codec_compress (queue->codec, self->level, self->staging, self->payload, self->element,
                                   queue->scratch, error);

  if (size == 0 || size >= self->payload)
    return self->payload;
  memcpy (self->staging, queue->scratch, size);
  return size;
}

static void
note_failure (EbbCompressQueue *queue,
              GError *error)
{
  ebb_worker_enter (&queue->worker);
  ebb_activation_store_note_failure (queue->store, error);
  ebb_worker_leave (&queue->worker);
}

void
ebb_compress_queue_run_compression (EbbCompressQueue *queue)
{
  EbbCompressRecord *self = g_queue_pop_head_link (&queue->compressions)->data;
  GError *error = NULL;
  gboolean is_there;
  gsize size = 0;
  gint64 start;

  self->state = EBB_COMPRESS_RUNNING;
  queue->is_busy = TRUE;
  pthread_mutex_unlock (&queue->worker.lock);
  is_there = receive (self);
  start = g_get_monotonic_time ();
  if (is_there)
    size = compress (self, &error);
  if (error != NULL)
    note_failure (queue, error);
  pthread_mutex_lock (&queue->worker.lock);
  queue->is_busy = FALSE;
  ebb_worker_count_moving (&queue->worker, start);
  g_clear_pointer (&self->filling, ebb_transfer_unref);
  self->state = is_there ? EBB_COMPRESS_DONE : EBB_COMPRESS_LOST;
  self->stored_size = size;
  if (is_there)
    {
      queue->bytes_raw += self->size;
      queue->bytes_stored += size;
    }
  pthread_cond_broadcast (&queue->worker.change);
}

/* -- to the next store --------------------------------------------------------------------------------------------- */

static EbbHandle *
put_stored (EbbCompressRecord *self,
            GError **error)
{
  const gint64 n = (gint64) self->stored_size;
  const int stopped = ebb_thread.stopped;
  g_autoptr (EbbTensor) stored = NULL;

  ebb_thread.stopped = 0;
  stored = ebb_tensor_new_uninitialized (&n, 1, EBB_DTYPE_U8, NULL, error);
  ebb_thread.stopped = stopped;
  if (stored == NULL)
    return NULL;
  memcpy (stored->view.data, self->staging, self->stored_size);
  return ebb_activation_store_put_block (self->queue->next, stored, error);
}

/* Its place is free; under the lock. */
static char *
leave_staging (EbbCompressRecord *self)
{
  EbbCompressQueue *queue = self->queue;

  g_queue_unlink (&queue->staged, &self->in_staged);
  queue->n_staged -= self->staging_size;
  return g_steal_pointer (&self->staging);
}

/* Brings the oldest record in staging memory to the next store, under the lock, which is let go meanwhile. */
static gboolean
retire (EbbCompressQueue *queue,
        EbbDevice *computing,
        GError **error)
{
  EbbCompressRecord *self = queue->staged.head->data;
  EbbHandle *inner = NULL;
  EbbDevice *device;
  char *staging;
  gsize size;

  if (self->is_leaving || self->n_readers > 0 || self->state == EBB_COMPRESS_WAITING
      || self->state == EBB_COMPRESS_RUNNING)
    {
      ebb_worker_wait (&queue->worker, computing);
      return TRUE;
    }
  if (self->state == EBB_COMPRESS_DONE)
    {
      self->is_leaving = TRUE;
      pthread_mutex_unlock (&queue->worker.lock);
      inner = put_stored (self, error);
      pthread_mutex_lock (&queue->worker.lock);
      self->is_leaving = FALSE;
      pthread_cond_broadcast (&queue->worker.change);
      if (inner == NULL)
        return FALSE;
      self->inner = inner;
      self->state = EBB_COMPRESS_STORED;
    }
  size = self->staging_size;
  device = self->device;
  staging = leave_staging (self);
  pthread_mutex_unlock (&queue->worker.lock); /* and the record may go */
  ebb_compress_queue_give_host (queue, device, staging, size, EBB_PURPOSE_ACTIVATION);
  pthread_mutex_lock (&queue->worker.lock);
  return TRUE;
}

/* Until @size bytes more are within @limit, or nothing is left that could leave. @computing: see ebb_stall_begin (). */
static gboolean
make_room (EbbCompressQueue *queue,
           EbbDevice *computing,
           gsize size,
           guint64 limit,
           GError **error)
{
  gboolean ok = TRUE;

  pthread_mutex_lock (&queue->worker.lock);
  while (ok && queue->n_staged > 0 && (size > limit || queue->n_staged > limit - size))
    ok = retire (queue, computing, error);
  pthread_mutex_unlock (&queue->worker.lock);
  return ok;
}

gboolean
ebb_compress_queue_flush (EbbCompressQueue *queue,
                          GError **error)
{
  gboolean ok = make_room (queue, NULL, 0, 0, error);

  ebb_compress_queue_end_lingering (queue, 0);
  ebb_compress_queue_trim (queue);
  return ok;
}

/* -- putting ------------------------------------------------------------------------------------------------------- */

static void
fill_from_host (EbbCompressRecord *self,
                EbbTensor *block)
{
  EbbStall stall;

  ebb_stall_begin (&stall, self->device);
  if (self->is_rounded)
    note_rounding (self->queue, ebb_round_to_bf16 (block->view.data, (gsize) self->n_elements,
                                                   (guint16 *) (void *) self->staging));
  else
    memcpy (self->staging, block->view.data, self->size);
  pthread_mutex_lock (&self->queue->worker.lock);
  ebb_worker_count_own (&self->queue->worker, &stall);
  pthread_mutex_unlock (&self->queue->worker.lock);
}

static gboolean
fill_from_device (EbbCompressRecord *self,
                  EbbTensor *block,
                  GError **error)
{
  EbbActivationStore *store = self->queue->store;

  self->filling = ebb_transfer_to_host_begin (self->device, self->staging, block->view.data, self->size, NULL, error);
  if (self->filling == NULL)
    return FALSE;
  ebb_activation_store_count_transfer (store, self->filling);
  self->original = ebb_activation_store_hold (store, block, self->filling);
  return TRUE;
}

static gboolean
fill (EbbCompressRecord *self,
      EbbTensor *block,
      GError **error)
{
  const gboolean is_on_host = self->device->backend->host_memory;

  self->staging_size = is_on_host ? self->payload : self->size;
  self->staging =
      ebb_compress_queue_take_host (self->queue, self->device, self->staging_size, EBB_PURPOSE_ACTIVATION, error);
  if (self->staging == NULL)
    return FALSE;
  if (!is_on_host)
    return fill_from_device (self, block, error);
  fill_from_host (self, block);
  return TRUE;
}

/* FALSE if what is in staging memory, the record itself maybe, can't leave it. */
static gboolean
enqueue (EbbCompressRecord *self,
         guint64 limit,
         GError **error)
{
  EbbCompressQueue *queue = self->queue;

  pthread_mutex_lock (&queue->worker.lock);
  g_queue_push_tail_link (&queue->staged, &self->in_staged);
  queue->n_staged += self->staging_size;
  g_queue_push_tail_link (&queue->compressions, &self->in_work);
  pthread_cond_signal (&queue->worker.work);
  pthread_mutex_unlock (&queue->worker.lock);
  return make_room (queue, self->device, 0, limit, error);
}

EbbCompressRecord *
ebb_compress_record_new (EbbCompressQueue *queue,
                         EbbTensor *block,
                         guint level,
                         gboolean is_rounded,
                         guint64 limit,
                         GError **error)
{
  EbbCompressRecord *self = g_new0 (EbbCompressRecord, 1);

  self->queue = queue;
  self->device = block->storage->device;
  self->dtype = block->view.dtype;
  self->n_elements = block->n_elements;
  self->size = ebb_tensor_get_n_bytes (block);
  self->level = level;
  self->is_rounded = is_rounded && self->dtype == EBB_DTYPE_F32;
  self->payload = self->is_rounded ? self->size / 2 : self->size;
  self->element = self->is_rounded ? 2 : ebb_dtype_get_size (self->dtype);
  self->in_work.data = self->in_staged.data = self;
  if (make_room (queue, self->device, self->device->backend->host_memory ? self->payload : self->size, limit, error)
      && ebb_compress_queue_need_scratch (queue, self->payload, error) && fill (self, block, error)
      && enqueue (self, limit, error))
    return self;
  ebb_compress_record_free (self);
  return NULL;
}

/* -- dropping ------------------------------------------------------------------------------------------------------ */

/* Takes it from the thread, waiting where that or somebody else works on it. */
static char *
withdraw (EbbCompressRecord *self)
{
  EbbCompressQueue *queue = self->queue;
  char *staging = NULL;

  pthread_mutex_lock (&queue->worker.lock);
  while (self->state == EBB_COMPRESS_RUNNING || self->is_leaving || self->n_readers > 0)
    ebb_worker_wait (&queue->worker, self->device);
  if (self->in_staged.prev != NULL || self->in_staged.next != NULL || queue->staged.head == &self->in_staged)
    {
      if (self->state == EBB_COMPRESS_WAITING)
        g_queue_unlink (&queue->compressions, &self->in_work);
      staging = leave_staging (self);
      pthread_cond_broadcast (&queue->worker.change);
    }
  else
    staging = g_steal_pointer (&self->staging); /* it never came so far */
  pthread_mutex_unlock (&queue->worker.lock);
  return staging;
}

void
ebb_compress_record_free (EbbCompressRecord *self)
{
  EbbCompressQueue *queue = self->queue;
  char *staging;

  if (self->fetch != NULL)
    ebb_compress_fetch_cancel (g_steal_pointer (&self->fetch));
  ebb_original_free (self->original);
  /* A child of the process has not the thread that may be at it. */
  staging = ebb_worker_is_own (&queue->worker) ? withdraw (self) : self->staging;
  if (self->filling != NULL)
    ebb_transfer_wait (self->filling, NULL);
  g_clear_pointer (&self->filling, ebb_transfer_unref);
  if (staging != NULL)
    ebb_compress_queue_give_host (queue, self->device, staging, self->staging_size, EBB_PURPOSE_ACTIVATION);
  g_clear_pointer (&self->inner, ebb_handle_unref);
  ebb_compress_queue_count_seconds (queue);
  g_free (self);
}
