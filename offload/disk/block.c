/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/disk/block-private.h"

/* Space in the file, and the stored blocks that lie there. */

EbbDiskSpace *
ebb_disk_space_new (EbbDiskQueue *queue,
                    guint64 size,
                    guint64 limit,
                    GError **error)
{
  EbbDiskSpace *self;
  guint64 offset;

  if (!ebb_disk_file_take (queue->file, size, limit, &offset, error))
    return NULL;
  self = g_new0 (EbbDiskSpace, 1);
  *self = (EbbDiskSpace){ 1, ebb_disk_queue_ref (queue), offset, size, FALSE };
  return self;
}

void
ebb_disk_space_unref (EbbDiskSpace *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  ebb_disk_file_give (self->queue->file, self->offset, self->size);
  ebb_disk_queue_unref (self->queue);
  g_free (self);
}

/* Pieces end at sectors of the file, the last one excepted. */
static void
cut (EbbDiskBlock *self)
{
  const gsize head = self->offset % EBB_DISK_SECTOR;

  for (guint i = 0; i < self->n_pieces; i++)
    {
      EbbDiskPiece *piece = &self->pieces[i];

      piece->block = self;
      piece->in_staged.data = piece;
      piece->head = i == 0 ? head : 0;
      piece->start = i == 0 ? 0 : i * EBB_DISK_PIECE - head;
      piece->size = MIN (self->size, (i + 1) * EBB_DISK_PIECE - head) - piece->start;
      piece->buffer_size = EBB_DISK_ALIGN (piece->head + piece->size);
    }
}

void
ebb_disk_count_seconds (EbbActivationStore *store,
                        EbbDiskQueue *queue)
{
  double moving, waited;

  ebb_worker_take_seconds (&queue->worker, &moving, &waited);
  ebb_activation_store_count_seconds (store, moving, waited);
}

static EbbTensor *
block_get (EbbStoredBlock *base,
           GError **error)
{
  EbbTensor *tensor = ebb_disk_block_get ((EbbDiskBlock *) base, error);

  ebb_disk_count_seconds (base->store, ((EbbDiskBlock *) base)->queue);
  return tensor;
}

static void
block_prefetch (EbbStoredBlock *base)
{
  ebb_disk_block_prefetch ((EbbDiskBlock *) base);
}

static void
block_clear (EbbStoredBlock *base)
{
  EbbDiskBlock *self = (EbbDiskBlock *) base;
  EbbDiskQueue *queue = self->queue;
  gboolean is_last;

  if (self->ahead != NULL)
    ebb_disk_read_cancel (self->ahead);
  ebb_in_flight_free (self->source);
  pthread_mutex_lock (&queue->worker.lock);
  for (guint i = 0; i < self->n_pieces; i++)
    ebb_disk_piece_drop (&self->pieces[i]);
  is_last = --queue->n_blocks == 0;
  pthread_mutex_unlock (&queue->worker.lock);
  if (is_last)
    ebb_disk_queue_end_lingering (queue, 0);
  ebb_disk_space_unref (self->space);
  ebb_disk_queue_unref (queue);
  g_free (self->pieces);
}

EbbDiskBlock *
ebb_disk_block_new (EbbActivationStore *store,
                    EbbDiskSpace *space,
                    guint64 offset,
                    EbbTensor *source,
                    GError **error)
{
  static const EbbStoredBlockFuncs funcs = { sizeof (EbbDiskBlock), block_get, block_prefetch, block_clear };
  const gsize size = ebb_tensor_get_n_bytes (source);
  EbbDiskBlock *self;

  if (!ebb_worker_is_own (&space->queue->worker))
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "disk store: the room for %" G_GUINT64_FORMAT " bytes belongs to another process",
                          space->size);
  if (size > space->size || offset > space->size - size)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "disk store: %" G_GSIZE_FORMAT " bytes at %" G_GUINT64_FORMAT
                          " do not fit into a room of %" G_GUINT64_FORMAT " bytes",
                          size, offset, space->size);
  self = ebb_stored_block_new (&funcs, store);
  self->queue = ebb_disk_queue_ref (space->queue);
  self->space = space;
  __atomic_add_fetch (&space->ref_count, 1, __ATOMIC_RELAXED);
  self->is_dry = ebb_is_dry ();
  self->device = source->storage->device;
  self->dtype = source->view.dtype;
  self->n_elements = source->n_elements;
  self->size = size;
  self->offset = space->offset + offset;
  self->group = ebb_activation_store_get_group (store);
  self->n_pieces = (guint) ((self->offset % EBB_DISK_SECTOR + size + EBB_DISK_PIECE - 1) / EBB_DISK_PIECE);
  self->pieces = g_new0 (EbbDiskPiece, self->n_pieces);
  cut (self);
  EBB_AUTO_LOCK (&self->queue->worker.lock);
  self->queue->n_blocks++;
  return self;
}
