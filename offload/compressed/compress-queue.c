/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/compressed/compress-queue-private.h"

/* That are kept for later. */
#define MAX_BLOCKS 16

/* -- the thread ---------------------------------------------------------------------------------------------------- */

static gboolean
do_work (gpointer data)
{
  EbbCompressQueue *self = data;

  if (self->fetches.head != NULL) /* somebody will wait for it */
    ebb_compress_queue_run_fetch (self);
  else if (self->compressions.head != NULL)
    ebb_compress_queue_run_compression (self);
  else
    return FALSE;
  return TRUE;
}

static const EbbWorkerKind kind = { "ebb-compress", "compressed store", TRUE, do_work };

gboolean
ebb_compress_queue_start (EbbCompressQueue *self,
                          GError **error)
{
  gboolean has_codec;

  if (!ebb_worker_is_own (&self->worker))
    {
      g_set_error_literal (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
                           "compressed store: it was made by another process, and its thread is there: make one here");
      return FALSE;
    }
  pthread_mutex_lock (&self->worker.lock);
  if (self->codec == NULL)
    self->codec = ebb_codec_new (error);
  has_codec = self->codec != NULL;
  pthread_mutex_unlock (&self->worker.lock);
  return has_codec && ebb_worker_start (&self->worker, error);
}

/* -- object -------------------------------------------------------------------------------------------------------- */

EbbCompressQueue *
ebb_compress_queue_new (EbbActivationStore *store,
                        EbbActivationStore *next)
{
  EbbCompressQueue *self = g_new0 (EbbCompressQueue, 1);

  self->store = store;
  self->next = g_object_ref (next);
  ebb_worker_init (&self->worker, &kind, self);
  return self;
}

/* Records hold the store, so none is left. */
void
ebb_compress_queue_free (EbbCompressQueue *self)
{
  ebb_worker_stop (&self->worker);
  ebb_compress_queue_end_lingering (self, 0);
  ebb_compress_queue_trim (self);
  if (self->scratch != NULL)
    ebb_device_free (ebb_device_get_cpu (), self->scratch, self->scratch_size, EBB_PURPOSE_WORKSPACE);
  g_clear_pointer (&self->codec, ebb_codec_free);
  g_clear_pointer (&self->idle, ebb_codec_free);
  ebb_worker_clear (&self->worker);
  g_object_unref (self->next);
  g_free (self);
}

void
ebb_compress_queue_count_seconds (EbbCompressQueue *self)
{
  double moving, waited;

  ebb_worker_take_seconds (&self->worker, &moving, &waited);
  ebb_activation_store_count_seconds (self->store, moving, waited);
}

/* -- what compressing needs ---------------------------------------------------------------------------------------- */

EbbCodec *
ebb_compress_queue_take_codec (EbbCompressQueue *self,
                               GError **error)
{
  EbbCodec *codec;

  pthread_mutex_lock (&self->worker.lock);
  codec = g_steal_pointer (&self->idle);
  pthread_mutex_unlock (&self->worker.lock);
  return codec != NULL ? codec : ebb_codec_new (error);
}

void
ebb_compress_queue_give_codec (EbbCompressQueue *self,
                               EbbCodec *codec)
{
  pthread_mutex_lock (&self->worker.lock);
  if (self->idle == NULL)
    self->idle = g_steal_pointer (&codec);
  pthread_mutex_unlock (&self->worker.lock);
  if (codec != NULL)
    ebb_codec_free (codec);
}

typedef struct
{
  EbbDevice *device;
  char *data;
  gsize size;
} Block;

static void
block_free (Block *self)
{
  ebb_transfer_free_host (self->device, self->data, self->size, EBB_PURPOSE_WORKSPACE);
  g_free (self);
}

static char *
find_block (EbbCompressQueue *self,
            EbbDevice *device,
            gsize size)
{
  char *data = NULL;

  pthread_mutex_lock (&self->worker.lock);
  for (GList *l = self->blocks.head; l != NULL && data == NULL; l = l->next)
    {
      Block *block = l->data;

      if (block->device != device || block->size != size)
        continue;
      data = block->data;
      g_free (block);
      g_queue_delete_link (&self->blocks, l);
      break;
    }
  pthread_mutex_unlock (&self->worker.lock);
  return data;
}

char *
ebb_compress_queue_take_host (EbbCompressQueue *self,
                              EbbDevice *device,
                              gsize size,
                              EbbPurpose purpose,
                              GError **error)
{
  char *data = find_block (self, device, size);

  if (data == NULL)
    return ebb_transfer_alloc_host (device, size, purpose, error);
  ebb_device_recount (ebb_device_get_cpu (), EBB_PURPOSE_WORKSPACE, (guint8) purpose, size);
  return data;
}

void
ebb_compress_queue_give_host (EbbCompressQueue *self,
                              EbbDevice *device,
                              char *data,
                              gsize size,
                              EbbPurpose purpose)
{
  const Block block = { device, data, size };
  Block *oldest = NULL;

  if (device->backend->streams == NULL)
    {
      ebb_transfer_free_host (device, data, size, purpose);
      return;
    }
  ebb_device_recount (ebb_device_get_cpu (), (guint8) purpose, EBB_PURPOSE_WORKSPACE, size);
  pthread_mutex_lock (&self->worker.lock);
  g_queue_push_head (&self->blocks, g_memdup2 (&block, sizeof block));
  if (self->blocks.length > MAX_BLOCKS)
    oldest = g_queue_pop_tail (&self->blocks);
  pthread_mutex_unlock (&self->worker.lock);
  if (oldest != NULL)
    block_free (oldest);
}

void
ebb_compress_queue_trim (EbbCompressQueue *self)
{
  GQueue blocks;
  Block *block;

  pthread_mutex_lock (&self->worker.lock);
  blocks = self->blocks;
  g_queue_init (&self->blocks);
  pthread_mutex_unlock (&self->worker.lock);
  while ((block = g_queue_pop_head (&blocks)) != NULL)
    block_free (block);
}

gboolean
ebb_compress_queue_need_scratch (EbbCompressQueue *self,
                                 gsize size,
                                 GError **error)
{
  EbbDevice *cpu = ebb_device_get_cpu ();
  char *scratch, *old;
  gsize old_size;

  pthread_mutex_lock (&self->worker.lock);
  old_size = self->scratch_size;
  pthread_mutex_unlock (&self->worker.lock);
  if (old_size >= size)
    return TRUE;
  scratch = ebb_device_alloc (cpu, size, EBB_PURPOSE_WORKSPACE, error);
  if (scratch == NULL)
    return FALSE;
  pthread_mutex_lock (&self->worker.lock);
  while (self->is_busy)
    ebb_worker_wait (&self->worker, NULL); /* for less than one block takes */
  old = self->scratch;
  old_size = self->scratch_size;
  if (old_size < size)
    {
      self->scratch = scratch;
      self->scratch_size = size;
    }
  pthread_mutex_unlock (&self->worker.lock);
  if (old_size >= size) /* another thread was faster */
    ebb_device_free (cpu, scratch, size, EBB_PURPOSE_WORKSPACE);
  else if (old != NULL)
    ebb_device_free (cpu, old, old_size, EBB_PURPOSE_WORKSPACE);
  return TRUE;
}
