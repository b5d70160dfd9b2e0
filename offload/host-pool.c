/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/host-pool-private.h"

#include "offload/host-wait-private.h"

/* A block that is this part larger than what is asked for will do, where memory is not limited. */
#define LARGER 4

struct _EbbHostPool
{
  /* under ebb_host_lock () */
  GQueue in_use, kept; /* of EbbHostBlock; of those that are kept, the one that was given back first comes first */
  guint64 n_in_use, n_kept;
};

EbbHostPool *
ebb_host_pool_new (void)
{
  return g_new0 (EbbHostPool, 1);
}

void
ebb_host_pool_free (EbbHostPool *self)
{
  g_return_if_fail (g_queue_is_empty (&self->in_use));

  ebb_host_pool_trim (self, NULL);
  g_free (self);
}

/* -- the system's memory ------------------------------------------------------------------------------------------- */

/* Bytes are counted as they are taken and given; what the pool keeps is counted for nobody. */
static void
count (gint64 n_bytes)
{
  ebb_device_count (ebb_device_get_cpu (), EBB_PURPOSE_ACTIVATION, n_bytes);
}

static void *
alloc (EbbDevice *device,
       gsize size,
       GError **error)
{
  void *data;

  if (device->backend->streams != NULL)
    return device->backend->streams->alloc_host (device->index, size, error);
  data = ebb_device_alloc (ebb_device_get_cpu (), size, EBB_PURPOSE_ACTIVATION, error);
  if (data != NULL)
    count (-(gint64) size);
  return data;
}

static void
finish (EbbTransfer *transfer,
        GError **error)
{
  if (transfer == NULL)
    return;
  if (!ebb_transfer_is_done (transfer))
    ebb_transfer_finish (transfer, error != NULL && *error == NULL ? error : NULL);
  ebb_transfer_unref (transfer);
}

/* Once its copies are done. */
static gboolean
block_free (EbbHostBlock *block,
            GError **error)
{
  EbbDevice *device = block->device;
  GError *local = NULL;

  finish (block->in, &local);
  finish (block->out, &local);
  if (device->backend->streams != NULL)
    device->backend->streams->free_host (device->index, block->data, block->size);
  else
    {
      count ((gint64) block->size);
      ebb_device_free (ebb_device_get_cpu (), block->data, block->size, EBB_PURPOSE_ACTIVATION);
    }
  g_free (block);
  if (local == NULL)
    return TRUE;
  g_propagate_error (error, local);
  return FALSE;
}

static EbbHostBlock *
block_new (EbbDevice *device,
           gsize size,
           GError **error)
{
  void *data = alloc (device, size, error);
  EbbHostBlock *block;

  if (data == NULL)
    return NULL;
  block = g_new0 (EbbHostBlock, 1);
  *block = (EbbHostBlock){ .data = data, .size = size, .device = device, .link.data = block };
  return block;
}

/* -- under the lock ------------------------------------------------------------------------------------------------ */

static void
unkeep (EbbHostPool *self,
        EbbHostBlock *block)
{
  g_queue_unlink (&self->kept, &block->link);
  self->n_kept -= block->size;
}

static void
use (EbbHostPool *self,
     EbbHostBlock *block)
{
  g_queue_push_tail_link (&self->in_use, &block->link);
  self->n_in_use += block->size;
}

static gboolean
fits (EbbHostPool *self,
      guint64 size,
      guint64 limit)
{
  return size <= limit && self->n_in_use + self->n_kept <= limit - size;
}

/* Of those that are kept, the one that suits best. */
static EbbHostBlock *
find_kept (EbbHostPool *self,
           EbbDevice *device,
           gsize size,
           gsize most)
{
  EbbHostBlock *best = NULL;

  for (GList *l = self->kept.head; l != NULL; l = l->next)
    {
      EbbHostBlock *block = l->data;

      if (block->device != device || block->size < size || block->size > most)
        continue;
      if (block->size == size)
        return block;
      if (best == NULL || block->size < best->size)
        best = block;
    }
  return best;
}

static gboolean
may_get_some (EbbHostPool *self)
{
  for (GList *l = self->in_use.head; l != NULL; l = l->next)
    if (ebb_host_owner_may_give (((EbbHostBlock *) l->data)->owner))
      return TRUE;
  return FALSE;
}

static gboolean
refuse (EbbHostPool *self,
        gsize size,
        const EbbHostLimit *limit,
        const char *why,
        GError **error)
{
  g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY,
               "the host store is full: %" G_GSIZE_FORMAT " bytes asked for, %" G_GUINT64_FORMAT
               " of %" G_GUINT64_FORMAT " in use%s; raise byte-limit, or set when-full and a fallback",
               size, self->n_in_use, limit->n_bytes, why);
  return FALSE;
}

/* Waits, if that was asked for, until there is room; leaves the lock meanwhile. */
static gboolean
wait_for_room (EbbHostPool *self,
               gsize size,
               const EbbHostLimit *limit,
               GError **error)
{
  const gint64 deadline = g_get_monotonic_time () + (gint64) (MIN (limit->patience, 1e9) * G_USEC_PER_SEC);

  while (size > limit->n_bytes || self->n_in_use > limit->n_bytes - size)
    {
      if (limit->when_full != EBB_WHEN_FULL_WAIT)
        return refuse (self, size, limit, "", error);
      if (!may_get_some (self))
        return refuse (self, size, limit, ", and to wait for it would never end", error);
      if (!ebb_host_wait (deadline))
        return refuse (self, size, limit, ", and waiting for it took too long", error);
    }
  return TRUE;
}

/* Takes what is kept out of the way until @size bytes fit. */
static void
make_room (EbbHostPool *self,
           gsize size,
           guint64 limit,
           GQueue *gone)
{
  while (!fits (self, size, limit) && self->kept.head != NULL)
    {
      EbbHostBlock *block = self->kept.head->data;

      unkeep (self, block);
      g_queue_push_tail_link (gone, &block->link);
    }
}

/* -- taking and giving --------------------------------------------------------------------------------------------- */

static gboolean
free_all (GQueue *blocks,
          GError **error)
{
  GError *local = NULL;
  GList *link;

  while ((link = g_queue_pop_head_link (blocks)) != NULL)
    block_free (link->data, local == NULL ? &local : NULL);
  if (local == NULL)
    return TRUE;
  g_propagate_error (error, local);
  return FALSE;
}

gboolean
ebb_host_pool_trim (EbbHostPool *self,
                    GError **error)
{
  GQueue gone;

  ebb_host_lock ();
  gone = self->kept;
  g_queue_init (&self->kept);
  self->n_kept = 0;
  ebb_host_unlock ();
  return free_all (&gone, error);
}

/* Where the system has no more, what is kept may be in the way. */
static EbbHostBlock *
block_new_or_trim (EbbHostPool *self,
                   EbbDevice *device,
                   gsize size,
                   GError **error)
{
  GError *local = NULL;
  EbbHostBlock *block = block_new (device, size, &local);
  guint64 in_use, kept;

  ebb_host_pool_get_bytes (self, &in_use, &kept);
  if (block == NULL && kept > 0 && g_error_matches (local, EBB_ERROR, EBB_ERROR_NO_MEMORY))
    {
      g_clear_error (&local);
      if (ebb_host_pool_trim (self, &local))
        block = block_new (device, size, &local);
    }
  if (block == NULL)
    g_propagate_error (error, local);
  return block;
}

/* A block that is kept, or NULL with room made for a new one; FALSE with @error set. */
static gboolean
find_or_make_room (EbbHostPool *self,
                   EbbDevice *device,
                   gsize size,
                   const EbbHostLimit *limit,
                   EbbHostBlock **block,
                   GError **error)
{
  const gsize most = limit->n_bytes == G_MAXUINT64 ? size + size / LARGER : size;
  GQueue gone = G_QUEUE_INIT;

  ebb_host_lock ();
  if (!wait_for_room (self, size, limit, error))
    {
      ebb_host_unlock ();
      return FALSE;
    }
  *block = find_kept (self, device, size, most);
  if (*block != NULL)
    {
      unkeep (self, *block);
      use (self, *block);
      (*block)->owner = ebb_host_owner_get ();
    }
  else
    {
      make_room (self, size, limit->n_bytes, &gone);
      self->n_in_use += size; /* so that no other thread takes the room */
    }
  ebb_host_unlock ();
  if (free_all (&gone, error))
    return TRUE;
  ebb_host_lock ();
  self->n_in_use -= size;
  ebb_host_unlock ();
  return FALSE;
}

EbbHostBlock *
ebb_host_pool_take (EbbHostPool *self,
                    EbbDevice *device,
                    gsize size,
                    const EbbHostLimit *limit,
                    GError **error)
{
  EbbHostBlock *block = NULL;
  gboolean ok = find_or_make_room (self, device, size, limit, &block, error);

  if (block == NULL && ok)
    {
      block = block_new_or_trim (self, device, size, error);
      ebb_host_lock ();
      self->n_in_use -= size;
      if (block != NULL)
        {
          use (self, block);
          block->owner = ebb_host_owner_get ();
        }
      ebb_host_unlock ();
    }
  if (block == NULL)
    return NULL;
  block->n_used = size;
  count ((gint64) size);
  return block;
}

void
ebb_host_pool_give (EbbHostPool *self,
                    EbbHostBlock *block)
{
  EbbHostOwner *owner;

  count (-(gint64) block->n_used);
  ebb_host_lock ();
  owner = g_steal_pointer (&block->owner);
  g_queue_unlink (&self->in_use, &block->link);
  self->n_in_use -= block->size;
  g_queue_push_tail_link (&self->kept, &block->link);
  self->n_kept += block->size;
  ebb_host_announce ();
  ebb_host_unlock ();
  ebb_host_owner_unref (owner);
}

void
ebb_host_pool_get_bytes (EbbHostPool *self,
                         guint64 *in_use,
                         guint64 *kept)
{
  ebb_host_lock ();
  *in_use = self->n_in_use;
  *kept = self->n_kept;
  ebb_host_unlock ();
}

/* -- copies -------------------------------------------------------------------------------------------------------- */

void
ebb_host_block_note (EbbHostBlock *self,
                     EbbTransfer *transfer,
                     gboolean to_host)
{
  EbbTransfer **place = to_host ? &self->in : &self->out, *old;

  ebb_host_lock ();
  old = *place;
  *place = ebb_transfer_ref (transfer);
  ebb_host_unlock ();
  g_clear_pointer (&old, ebb_transfer_unref);
}

EbbTransfer *
ebb_host_block_get_reader (EbbHostBlock *self)
{
  EbbTransfer *reader;

  ebb_host_lock ();
  reader = self->out ? ebb_transfer_ref (self->out) : NULL;
  ebb_host_unlock ();
  if (reader == NULL || !ebb_transfer_is_done (reader))
    return reader;
  ebb_transfer_unref (reader);
  return NULL;
}
