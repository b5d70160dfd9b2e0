/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/disk/queue-private.h"

/* -- rooms --------------------------------------------------------------------------------------------------------- */

EbbDiskRoom *
ebb_disk_room_new (EbbDiskQueue *queue,
                   guint64 size,
                   guint64 limit,
                   GError **error)
{
  EbbDiskRoom *self;
  guint64 offset;

  if (!ebb_disk_file_take (queue->file, size, limit, &offset, error))
    return NULL;
  self = g_new0 (EbbDiskRoom, 1);
  self->ref_count = 1;
  self->queue = ebb_disk_queue_ref (queue);
  self->offset = offset;
  self->size = size;
  return self;
}

EbbDiskRoom *
ebb_disk_room_ref (EbbDiskRoom *self)
{
  __atomic_add_fetch (&self->ref_count, 1, __ATOMIC_RELAXED);
  return self;
}

void
ebb_disk_room_unref (EbbDiskRoom *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  ebb_disk_file_give (self->queue->file, self->offset, self->size);
  ebb_disk_queue_unref (self->queue);
  g_free (self);
}

/* -- records ------------------------------------------------------------------------------------------------------- */

/* Pieces end at blocks of the file, the last one excepted. */
static void
cut (EbbDiskRecord *self)
{
  const gsize head = self->offset % EBB_DISK_BLOCK;

  for (guint i = 0; i < self->n_pieces; i++)
    {
      EbbDiskPiece *piece = &self->pieces[i];

      piece->record = self;
      piece->in_staged.data = piece->in_writes.data = piece;
      piece->head = i == 0 ? head : 0;
      piece->start = i == 0 ? 0 : i * EBB_DISK_PIECE - head;
      piece->size = MIN (self->size, (i + 1) * EBB_DISK_PIECE - head) - piece->start;
      piece->buffer_size = EBB_DISK_ALIGN (piece->head + piece->size);
    }
}

static EbbDiskRecord *
record_new (EbbDiskQueue *queue,
            EbbActivationStore *store,
            EbbDiskRoom *room,
            guint64 offset,
            EbbTensor *block)
{
  const gsize size = ebb_tensor_get_n_bytes (block);
  const guint n = (guint) ((offset % EBB_DISK_BLOCK + size + EBB_DISK_PIECE - 1) / EBB_DISK_PIECE);
  EbbDiskRecord *self = g_malloc0 (sizeof *self + n * sizeof *self->pieces);

  self->queue = ebb_disk_queue_ref (queue);
  self->store = store;
  self->room = room ? ebb_disk_room_ref (room) : NULL;
  self->device = block->storage->device;
  self->dtype = block->view.dtype;
  self->n_elements = block->n_elements;
  self->size = size;
  self->offset = offset;
  self->group = ebb_activation_store_get_group (store);
  self->n_pieces = n;
  cut (self);
  pthread_mutex_lock (&queue->worker.lock);
  queue->n_records++;
  pthread_mutex_unlock (&queue->worker.lock);
  return self;
}

EbbDiskRecord *
ebb_disk_record_new (EbbDiskQueue *queue,
                     EbbActivationStore *store,
                     EbbTensor *block,
                     guint64 limit,
                     GError **error)
{
  guint64 offset;

  if (!ebb_disk_file_take (queue->file, ebb_tensor_get_n_bytes (block), limit, &offset, error))
    return NULL;
  return record_new (queue, store, NULL, offset, block);
}

EbbDiskRecord *
ebb_disk_record_new_in_room (EbbDiskRoom *room,
                             EbbActivationStore *store,
                             guint64 offset,
                             EbbTensor *block,
                             GError **error)
{
  const gsize size = ebb_tensor_get_n_bytes (block);

  if (!ebb_worker_is_own (&room->queue->worker))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "disk store: the room for %" G_GUINT64_FORMAT " bytes belongs to another process", room->size);
      return NULL;
    }
  if (size > room->size || offset > room->size - size)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "disk store: %" G_GSIZE_FORMAT " bytes at %" G_GUINT64_FORMAT
                   " do not fit into a room of %" G_GUINT64_FORMAT " bytes",
                   size, offset, room->size);
      return NULL;
    }
  return record_new (room->queue, store, room, room->offset + offset, block);
}

void
ebb_disk_record_free (EbbDiskRecord *self)
{
  EbbDiskQueue *queue = self->queue;
  gboolean is_last;

  if (self->ahead != NULL)
    ebb_disk_read_cancel (self->ahead);
  ebb_original_free (self->original);
  pthread_mutex_lock (&queue->worker.lock);
  for (guint i = 0; i < self->n_pieces; i++)
    ebb_disk_piece_drop (&self->pieces[i]);
  is_last = --queue->n_records == 0;
  pthread_mutex_unlock (&queue->worker.lock);
  if (is_last)
    ebb_disk_queue_end_lingering (queue, 0);
  if (self->room != NULL)
    ebb_disk_room_unref (self->room);
  else
    ebb_disk_file_give (queue->file, self->offset, self->size);
  ebb_disk_queue_unref (queue);
  g_free (self);
}
