/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/compressed/compress-queue-private.h"

#include "offload/compressed/rounding-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/thread-private.h"

#include <string.h>

/* -- bytes --------------------------------------------------------------------------------------------------------- */

/* Where the host writes a tensor's bytes. */
static char *
get_target (EbbCompressFetch *self)
{
  return self->landing != NULL ? self->landing : self->tensor->view.data;
}

/* Rounded numbers go to the second half, to be widened from there. */
static gboolean
unfold (EbbCompressFetch *self,
        EbbCodec *codec,
        const char *stored,
        gsize stored_size,
        GError **error)
{
  const EbbCompressRecord *record = self->record;
  char *target = get_target (self), *payload = target + (record->size - record->payload);

  if (stored_size == record->payload)
    memcpy (payload, stored, stored_size);
  else if (!ebb_codec_decompress (codec, stored, stored_size, payload, record->payload, record->element, error))
    return FALSE;
  if (record->is_rounded)
    ebb_widen_bf16 ((const guint16 *) (void *) payload, (gsize) record->n_elements, (float *) (void *) target);
  return TRUE;
}

/* From bytes that were not compressed yet. */
static void
copy_plain (EbbCompressFetch *self)
{
  const EbbCompressRecord *record = self->record;
  char *target = get_target (self);
  guint16 *payload = (guint16 *) (void *) (target + (record->size - record->payload));

  if (!record->is_rounded)
    memcpy (target, record->staging, record->size);
  else if (record->device->backend->host_memory)
    ebb_widen_bf16 ((const guint16 *) (void *) record->staging, (gsize) record->n_elements,
                    (float *) (void *) target);
  else
    {
      ebb_round_to_bf16 ((const float *) (void *) record->staging, (gsize) record->n_elements, payload);
      ebb_widen_bf16 (payload, (gsize) record->n_elements, (float *) (void *) target);
    }
}

/* The record is taken from the thread for so long. */
static gboolean
bring_waiting (EbbCompressFetch *self,
               GError **error)
{
  EbbCompressRecord *record = self->record;
  EbbCompressQueue *queue = self->queue;
  gboolean ok;

  g_queue_unlink (&queue->compressions, &record->in_work);
  record->state = EBB_COMPRESS_RUNNING;
  pthread_mutex_unlock (&queue->worker.lock);
  ok = record->filling == NULL || ebb_transfer_wait (record->filling, NULL);
  if (ok)
    copy_plain (self);
  else
    ebb_transfer_wait (record->filling, error);
  pthread_mutex_lock (&queue->worker.lock);
  record->state = ok ? EBB_COMPRESS_WAITING : EBB_COMPRESS_LOST;
  g_clear_pointer (&record->filling, ebb_transfer_unref);
  if (ok)
    g_queue_push_tail_link (&queue->compressions, &record->in_work);
  pthread_cond_signal (&queue->worker.work);
  pthread_cond_broadcast (&queue->worker.change);
  return ok;
}

static gboolean
bring_staged (EbbCompressFetch *self,
              EbbCodec *codec,
              GError **error)
{
  EbbCompressRecord *record = self->record;
  EbbCompressQueue *queue = self->queue;
  gboolean ok;

  record->n_readers++;
  pthread_mutex_unlock (&queue->worker.lock);
  ok = unfold (self, codec, record->staging, record->stored_size, error);
  pthread_mutex_lock (&queue->worker.lock);
  record->n_readers--;
  pthread_cond_broadcast (&queue->worker.change);
  return ok;
}

static gboolean
bring_stored (EbbCompressFetch *self,
              EbbCodec *codec,
              GError **error)
{
  EbbCompressRecord *record = self->record;
  EbbCompressQueue *queue = self->queue;
  const gboolean is_thread = codec == queue->codec;
  gboolean ok;

  pthread_mutex_unlock (&queue->worker.lock);
  if (is_thread) /* it takes locks that a child needs too, of the next store and of the allocator */
    ebb_worker_enter (&queue->worker);
  self->stored = ebb_activation_store_get_block (queue->next, record->inner, error);
  if (is_thread)
    ebb_worker_leave (&queue->worker);
  ok = self->stored != NULL && unfold (self, codec, self->stored->view.data, record->stored_size, error);
  pthread_mutex_lock (&queue->worker.lock);
  return ok;
}

/* Under the lock, which is let go meanwhile. */
static gboolean
bring (EbbCompressFetch *self,
       EbbCodec *codec,
       GError **error)
{
  EbbCompressRecord *record = self->record;

  while (record->is_leaving || record->state == EBB_COMPRESS_RUNNING)
    pthread_cond_wait (&self->queue->worker.change, &self->queue->worker.lock);
  switch (record->state)
    {
    case EBB_COMPRESS_WAITING:
      return bring_waiting (self, error);
    case EBB_COMPRESS_DONE:
      return bring_staged (self, codec, error);
    case EBB_COMPRESS_STORED:
      return bring_stored (self, codec, error);
    case EBB_COMPRESS_RUNNING:
    case EBB_COMPRESS_LOST:
      break;
    }
  g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE,
               "compressed store: %" G_GSIZE_FORMAT " bytes can't be given back: their copy from %s failed",
               record->size, ebb_device_get_name (record->device));
  return FALSE;
}

/* What a device has to tell is for the threads of the program; asked for is only why the copy can't be. */
static gboolean
begin_copy (EbbCompressFetch *self,
            GError **error)
{
  void *data = self->tensor->view.data;

  self->arriving =
      ebb_transfer_from_host_begin_after (self->device, data, self->landing, self->size, self->mark, NULL);
  if (self->arriving == NULL)
    self->arriving =
        ebb_transfer_from_host_begin_after (self->device, data, self->landing, self->size, self->mark, error);
  return self->arriving != NULL;
}

/* With the lock, by the thread or by whoever asks. */
static void
work (EbbCompressFetch *self,
      EbbCodec *codec)
{
  EbbCompressQueue *queue = self->queue;

  self->is_running = TRUE;
  self->is_done = bring (self, codec, &self->error);
  if (self->is_done && self->landing != NULL)
    {
      pthread_mutex_unlock (&queue->worker.lock);
      self->is_done = begin_copy (self, &self->error);
      pthread_mutex_lock (&queue->worker.lock);
    }
  self->is_running = FALSE;
  pthread_cond_broadcast (&queue->worker.change);
}

void
ebb_compress_queue_run_fetch (EbbCompressQueue *queue)
{
  EbbCompressFetch *self = g_queue_pop_head_link (&queue->fetches)->data;
  const gint64 start = g_get_monotonic_time ();

  self->is_queued = FALSE;
  work (self, queue->codec);
  ebb_worker_count_moving (&queue->worker, start);
}

/* -- object -------------------------------------------------------------------------------------------------------- */

/* Should the copy have failed, whoever needs what it brings is told. */
static void
fetch_free (EbbCompressFetch *self)
{
  if (self->arriving != NULL)
    ebb_transfer_finish (self->arriving, NULL);
  g_clear_pointer (&self->arriving, ebb_transfer_unref);
  g_clear_pointer (&self->mark, ebb_transfer_unref);
  if (self->landing != NULL)
    ebb_compress_queue_give_host (self->queue, self->device, self->landing, self->size, EBB_PURPOSE_WORKSPACE);
  g_clear_pointer (&self->stored, ebb_tensor_unref);
  g_clear_pointer (&self->tensor, ebb_tensor_unref);
  g_clear_error (&self->error);
  g_free (self);
}

void
ebb_compress_fetch_cancel (EbbCompressFetch *self)
{
  EbbCompressQueue *queue = self->queue;

  if (ebb_worker_is_own (&queue->worker))
    {
      pthread_mutex_lock (&queue->worker.lock);
      if (self->is_queued)
        g_queue_unlink (&queue->fetches, &self->in_work);
      self->is_queued = FALSE;
      while (self->is_running)
        ebb_worker_wait (&queue->worker, self->device);
      pthread_mutex_unlock (&queue->worker.lock);
    }
  /* The tensor's memory may be given to somebody else. */
  if (self->arriving != NULL)
    ebb_transfer_order (self->arriving, NULL);
  fetch_free (self);
}

void
ebb_compress_queue_end_lingering (EbbCompressQueue *queue,
                                  guint n)
{
  pthread_mutex_lock (&queue->worker.lock);
  while (queue->lingering.length > n)
    {
      EbbCompressFetch *oldest = g_queue_pop_head_link (&queue->lingering)->data;

      pthread_mutex_unlock (&queue->worker.lock);
      fetch_free (oldest);
      pthread_mutex_lock (&queue->worker.lock);
    }
  pthread_mutex_unlock (&queue->worker.lock);
}

static gboolean
take_memory (EbbCompressFetch *self,
             GError **error)
{
  const EbbCompressRecord *record = self->record;
  const int stopped = ebb_thread.stopped;

  ebb_thread.stopped = 0;
  self->tensor = ebb_tensor_new_uninitialized (&record->n_elements, 1, record->dtype, record->device, error);
  ebb_thread.stopped = stopped;
  if (self->tensor == NULL || record->device->backend->host_memory)
    return self->tensor != NULL;
  self->mark = ebb_transfer_mark (record->device, error);
  if (self->mark == NULL)
    return FALSE;
  self->landing =
      ebb_compress_queue_take_host (self->queue, record->device, self->size, EBB_PURPOSE_WORKSPACE, error);
  return self->landing != NULL;
}

static EbbCompressFetch *
fetch_new (EbbCompressRecord *record,
           GError **error)
{
  EbbCompressFetch *self;

  ebb_compress_queue_end_lingering (record->queue, 1);
  self = g_new0 (EbbCompressFetch, 1);
  self->queue = record->queue;
  self->record = record;
  self->device = record->device;
  self->size = record->size;
  self->in_work.data = self;
  if (take_memory (self, error))
    return self;
  fetch_free (self);
  return NULL;
}

/* -- prefetching --------------------------------------------------------------------------------------------------- */

/* @inner: where it is, if that is in the next store. */
static gboolean
is_worth_fetching (EbbCompressRecord *record,
                   EbbHandle **inner)
{
  EbbCompressQueue *queue = record->queue;
  gboolean is_worth;

  if (!record->is_rounded && ebb_original_is_held (record->original))
    return FALSE;
  pthread_mutex_lock (&queue->worker.lock);
  *inner = record->inner;
  is_worth = record->fetch == NULL && record->state != EBB_COMPRESS_LOST;
  pthread_mutex_unlock (&queue->worker.lock);
  return is_worth;
}

void
ebb_compress_record_prefetch (EbbCompressRecord *record)
{
  EbbCompressQueue *queue = record->queue;
  EbbCompressFetch *fetch;
  EbbHandle *inner;

  if (!ebb_worker_is_own (&queue->worker) || !is_worth_fetching (record, &inner))
    return;
  if (inner != NULL)
    ebb_activation_store_prefetch_block (queue->next, inner);
  fetch = fetch_new (record, NULL);
  if (fetch == NULL)
    return; /* get will tell */
  pthread_mutex_lock (&queue->worker.lock);
  if (record->fetch == NULL)
    {
      record->fetch = fetch;
      fetch->is_queued = TRUE;
      g_queue_push_tail_link (&queue->fetches, &fetch->in_work);
      pthread_cond_signal (&queue->worker.work);
      fetch = NULL;
    }
  pthread_mutex_unlock (&queue->worker.lock);
  if (fetch != NULL)
    fetch_free (fetch);
}

/* -- getting ------------------------------------------------------------------------------------------------------- */

/* What a prefetch has begun, done if the thread has come to it, else for the caller to do. */
static EbbCompressFetch *
take_fetch (EbbCompressRecord *record)
{
  EbbCompressQueue *queue = record->queue;
  EbbCompressFetch *fetch;

  pthread_mutex_lock (&queue->worker.lock);
  fetch = g_steal_pointer (&record->fetch);
  if (fetch != NULL && fetch->is_queued)
    {
      g_queue_unlink (&queue->fetches, &fetch->in_work);
      fetch->is_queued = FALSE;
    }
  while (fetch != NULL && fetch->is_running)
    ebb_worker_wait (&queue->worker, record->device);
  pthread_mutex_unlock (&queue->worker.lock);
  return fetch;
}

static gboolean
work_here (EbbCompressFetch *self,
           GError **error)
{
  EbbCompressQueue *queue = self->queue;
  EbbCodec *codec = ebb_compress_queue_take_codec (queue, error);
  EbbStall stall;

  if (codec == NULL)
    return FALSE;
  ebb_stall_begin (&stall, self->device);
  pthread_mutex_lock (&queue->worker.lock);
  work (self, codec);
  ebb_worker_count_own (&queue->worker, &stall);
  pthread_mutex_unlock (&queue->worker.lock);
  ebb_compress_queue_give_codec (queue, codec);
  return TRUE;
}

/* Hands the tensor out. What it is copied from stays until that is done, for which nobody waits here. */
static EbbTensor *
finish (EbbCompressFetch *self,
        GError **error)
{
  EbbCompressQueue *queue = self->queue;
  EbbTensor *tensor;

  if (self->arriving != NULL && self->error == NULL)
    {
      ebb_activation_store_count_transfer (queue->store, self->arriving);
      ebb_transfer_order (self->arriving, &self->error);
    }
  if (self->error != NULL)
    {
      g_propagate_error (error, g_steal_pointer (&self->error));
      ebb_compress_fetch_cancel (self);
      return NULL;
    }
  tensor = g_steal_pointer (&self->tensor);
  self->record = NULL;
  g_clear_pointer (&self->stored, ebb_tensor_unref);
  if (self->arriving == NULL)
    fetch_free (self);
  else
    {
      pthread_mutex_lock (&queue->worker.lock);
      g_queue_push_tail_link (&queue->lingering, &self->in_work);
      pthread_mutex_unlock (&queue->worker.lock);
    }
  return tensor;
}

EbbTensor *
ebb_compress_record_get (EbbCompressRecord *record,
                         GError **error)
{
  EbbTensor *original = ebb_original_get (record->original);
  EbbCompressFetch *fetch;

  /* Rounded numbers are those that come back each time. */
  if (original != NULL && !record->is_rounded)
    return original;
  g_clear_pointer (&original, ebb_tensor_unref);
  fetch = take_fetch (record);
  if (fetch == NULL)
    fetch = fetch_new (record, error);
  if (fetch == NULL)
    return NULL;
  if (!fetch->is_done && fetch->error == NULL && !work_here (fetch, error))
    {
      ebb_compress_fetch_cancel (fetch);
      return NULL;
    }
  return finish (fetch, error);
}
