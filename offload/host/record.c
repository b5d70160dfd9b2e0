/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/host/record-private.h"

#include "tensor/tensor-private.h"

struct _EbbHostRecord
{
  EbbActivationStore *store; /* which outlives it */
  EbbHostRoom *room;
  gsize offset;
  EbbDevice *device;
  gint64 n_elements;
  EbbDType dtype;
  EbbTransfer *out; /* of the device's memory */
  EbbOriginal *original;
  pthread_mutex_t lock;
  /* under the lock: what a prefetch has begun */
  EbbTensor *ahead;
  EbbTransfer *in;
};

/* -- rooms --------------------------------------------------------------------------------------------------------- */

EbbHostRoom *
ebb_host_room_new (EbbHostPool *pool,
                   EbbDevice *device,
                   gsize size,
                   double *waited,
                   GError **error)
{
  EbbHostBlock *memory = ebb_host_pool_take (pool, device, size, waited, error);
  EbbHostRoom *room;

  if (memory == NULL)
    return NULL;
  room = g_new0 (EbbHostRoom, 1);
  *room = (EbbHostRoom){ 1, pool, memory };
  return room;
}

static EbbHostRoom *
room_ref (EbbHostRoom *room)
{
  __atomic_add_fetch (&room->ref_count, 1, __ATOMIC_RELAXED);
  return room;
}

void
ebb_host_room_unref (EbbHostRoom *room)
{
  if (__atomic_sub_fetch (&room->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  ebb_host_pool_give (room->pool, room->memory);
  g_free (room);
}

/* -- away ---------------------------------------------------------------------------------------------------------- */

static void *
get_host (EbbHostRecord *self)
{
  return (char *) self->room->memory->data + self->offset;
}

/* Notes a copy that has begun, for the counters and for whoever uses the host memory next. */
static void
note (EbbHostRecord *self,
      EbbTransfer *transfer,
      gboolean to_host)
{
  ebb_host_block_note (self->room->memory, transfer, to_host);
  ebb_activation_store_count_transfer (self->store, transfer);
}

EbbHostRecord *
ebb_host_record_new (EbbActivationStore *store,
                     EbbHostRoom *room,
                     gsize offset,
                     EbbTensor *block,
                     GError **error)
{
  EbbDevice *device = block->storage->device;
  EbbTransfer *reader = ebb_host_block_get_reader (room->memory);
  EbbTransfer *out = ebb_transfer_to_host_begin (device, (char *) room->memory->data + offset, block->view.data,
                                                 ebb_tensor_get_n_bytes (block), reader, error);
  EbbHostRecord *self;

  g_clear_pointer (&reader, ebb_transfer_unref);
  if (out == NULL)
    return NULL;
  self = g_new0 (EbbHostRecord, 1);
  *self = (EbbHostRecord){ .store = store,
                           .room = room_ref (room),
                           .offset = offset,
                           .device = device,
                           .n_elements = block->n_elements,
                           .dtype = block->view.dtype,
                           .out = out };
  pthread_mutex_init (&self->lock, NULL);
  note (self, out, TRUE);
  self->original = ebb_activation_store_hold (store, block, out);
  return self;
}

/* Memory that a copy may still write to is given back: computing, which may get it next, comes after the copy. */
static void
drop (EbbHostRecord *self,
      EbbTensor *block,
      EbbTransfer *in)
{
  if (block == NULL)
    return;
  ebb_activation_store_settle (self->store, in);
  ebb_transfer_unref (in);
  ebb_tensor_unref (block);
}

void
ebb_host_record_free (EbbHostRecord *self)
{
  ebb_original_free (self->original);
  drop (self, self->ahead, self->in);
  ebb_transfer_unref (self->out);
  ebb_host_room_unref (self->room);
  pthread_mutex_destroy (&self->lock);
  g_free (self);
}

/* -- back ---------------------------------------------------------------------------------------------------------- */

static EbbTensor *
bring (EbbHostRecord *self,
       EbbTransfer **in,
       GError **error)
{
  g_autoptr (EbbTensor) block =
      ebb_tensor_new_uninitialized (&self->n_elements, 1, self->dtype, self->device, error);

  if (block == NULL)
    return NULL;
  *in = ebb_transfer_from_host_begin (self->device, block->view.data, get_host (self), ebb_tensor_get_n_bytes (block),
                                      self->out, error);
  if (*in == NULL)
    return NULL;
  note (self, *in, FALSE);
  return g_steal_pointer (&block);
}

static EbbTensor *
take_ahead (EbbHostRecord *self,
            EbbTransfer **in)
{
  EbbTensor *block;

  pthread_mutex_lock (&self->lock);
  block = g_steal_pointer (&self->ahead);
  *in = g_steal_pointer (&self->in);
  pthread_mutex_unlock (&self->lock);
  return block;
}

void
ebb_host_record_prefetch (EbbHostRecord *self)
{
  EbbTransfer *in = NULL;
  EbbTensor *block;

  if (ebb_original_is_held (self->original))
    return;
  block = take_ahead (self, &in);
  /* Where there is no room yet, there may be when it is asked for; what fails otherwise is told then. */
  if (block == NULL)
    block = bring (self, &in, NULL);
  pthread_mutex_lock (&self->lock);
  if (self->ahead == NULL)
    {
      self->ahead = g_steal_pointer (&block);
      self->in = g_steal_pointer (&in);
    }
  pthread_mutex_unlock (&self->lock);
  drop (self, block, in);
}

EbbTensor *
ebb_host_record_get (EbbHostRecord *self,
                     GError **error)
{
  EbbTensor *block = ebb_original_get (self->original);
  EbbTransfer *in;

  if (block != NULL)
    return block;
  block = take_ahead (self, &in);
  if (block == NULL)
    block = bring (self, &in, error);
  if (block == NULL)
    return NULL;
  if (ebb_transfer_order (in, error))
    {
      ebb_transfer_unref (in);
      return block;
    }
  drop (self, block, in);
  return NULL;
}
