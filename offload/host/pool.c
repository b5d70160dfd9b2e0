/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The pool of host buffers: reuses them, limits their bytes, and waits or spills when it is full. */
#include "offload/host/pool-private.h"

#include "offload/host/wait-private.h"
#include "offload/transfer/stall-private.h"
#include "tensor/dry-run-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/lock-private.h"

#include <pthread.h>

/* A buffer of up to 1 + 1 / LARGER times the size will do, where memory is not limited. */
#define LARGER 4

/* Bytes that a pool may have beyond its peak use: 1 / PART_SPARE of the peak, at least SPARE. Without this bound each
 * new length of a batch would leave buffers of its own size behind. */
#define PART_SPARE 20
#define SPARE ((guint64) 96 << 20)

struct _EbbHostPool
{
  pthread_mutex_t lock;
  /* under the lock */
  EbbHostLimit limit;
  GQueue in_use, kept; /* of EbbHostBuffer; of those that are kept, the one that was given back first comes first */
  guint64 n_in_use, n_kept;
  guint64 n_asked, n_most; /* bytes that were asked for: of buffers in use, and the most of these; not of dry runs */
  guint64 n_waste;         /* bytes of buffers in use beyond what was asked for */
  guint n_taking;          /* threads for which room was made that have no buffer yet */
  GList link;              /* in pools */
};

/* Of this process. */
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static GQueue pools;

/* Bytes of buffers that the CPU's counters don't include: those that are kept, and the rest of buffers in use beyond
 * the size that was asked for. */
static guint64 n_uncounted;

EbbHostPool *
ebb_host_pool_new (void)
{
  EbbHostPool *self = g_new0 (EbbHostPool, 1);

  self->limit = (EbbHostLimit){ G_MAXUINT64, EBB_WHEN_FULL_WAIT, EBB_HOST_PATIENCE };
  self->link.data = self;
  pthread_mutex_init (&self->lock, NULL);
  EBB_AUTO_LOCK (&pools_lock);
  g_queue_push_tail_link (&pools, &self->link);
  return self;
}

void
ebb_host_pool_get_limit (EbbHostPool *self,
                         EbbHostLimit *limit)
{
  EBB_AUTO_LOCK (&self->lock);
  *limit = self->limit;
}

void
ebb_host_pool_set_limit (EbbHostPool *self,
                         const EbbHostLimit *limit)
{
  pthread_mutex_lock (&self->lock);
  self->limit = *limit;
  pthread_mutex_unlock (&self->lock);
  ebb_host_announce ();
}

/* -- the system's memory ------------------------------------------------------------------------------------------- */

/* Bytes are counted as they are taken and given. The limit of the CPU holds for all that the pools have. */
static void
count (gint64 n_bytes)
{
  ebb_device_count (ebb_device_get_cpu (), EBB_PURPOSE_ACTIVATION, n_bytes);
  if (ebb_is_dry ())
    return;
  __atomic_sub_fetch (&n_uncounted, (guint64) n_bytes, __ATOMIC_RELAXED);
}

/* How many bytes are counted when memory for @size bytes comes from the system. */
static gint64
get_counted (EbbDevice *device,
             gsize size)
{
  return (gint64) (device->backend->streams != NULL ? size : size + EBB_TRANSFER_ALIGNMENT);
}

static void *
alloc (EbbDevice *device,
       gsize size,
       GError **error)
{
  const guint64 beside = __atomic_load_n (&n_uncounted, __ATOMIC_RELAXED);
  void *data;

  if (!ebb_device_check_limit (ebb_device_get_cpu (), size, beside, error))
    return NULL;
  data = ebb_transfer_alloc_host (device, size, EBB_PURPOSE_ACTIVATION, error);
  if (data != NULL)
    count (-get_counted (device, size));
  return data;
}

/* Where @error is NULL or set, an error of the device is left for another caller. */
static gboolean
finish (EbbTransfer *transfer,
        GError **error)
{
  gboolean ok;

  if (transfer == NULL)
    return TRUE;
  ok = ebb_transfer_is_done (transfer)
       || ebb_transfer_finish (transfer, error != NULL && *error == NULL ? error : NULL);
  ebb_transfer_unref (transfer);
  return ok;
}

/* The account under which the memory of @buffer is freed: a dry run may end the use of real memory. */
static EbbMemoryAccount *
get_account (const EbbHostBuffer *buffer)
{
  if (buffer->account != NULL)
    return buffer->account;
  return ebb_is_dry () ? ebb_dry_run_get_outer_account (ebb_dry_run_get_current ()) : ebb_thread.account;
}

/* Once its copies are done. */
static gboolean
buffer_free (EbbHostBuffer *buffer,
             GError **error)
{
  EbbMemoryAccount *outer = ebb_thread_enter_account (get_account (buffer));
  gboolean ok = finish (buffer->in, error);

  ok = finish (buffer->out, error) && ok;
  count (get_counted (buffer->device, buffer->size));
  ebb_transfer_free_host (buffer->device, buffer->data, buffer->size, EBB_PURPOSE_ACTIVATION);
  ebb_thread_enter_account (outer);
  g_clear_pointer (&buffer->account, ebb_memory_account_unref);
  g_free (buffer);
  return ok;
}

static EbbHostBuffer *
buffer_new (EbbDevice *device,
            gsize size,
            GError **error)
{
  void *data = alloc (device, size, error);
  EbbHostBuffer *buffer;

  if (data == NULL)
    return NULL;
  buffer = g_new0 (EbbHostBuffer, 1);
  *buffer = (EbbHostBuffer){ .data = data, .size = size, .device = device, .link.data = buffer };
  if (ebb_is_dry ())
    buffer->account = ebb_memory_account_ref (ebb_thread.account);
  return buffer;
}

/* -- under the lock ------------------------------------------------------------------------------------------------ */

static void
unkeep (EbbHostPool *self,
        EbbHostBuffer *buffer)
{
  g_queue_unlink (&self->kept, &buffer->link);
  self->n_kept -= buffer->size;
}

static void
use (EbbHostPool *self,
     EbbHostBuffer *buffer)
{
  g_queue_push_tail_link (&self->in_use, &buffer->link);
  self->n_in_use += buffer->size;
}

/* Memory of a dry run is for that run alone. */
static EbbMemoryAccount *
get_dry_account (void)
{
  return ebb_is_dry () ? ebb_thread.account : NULL;
}

static gboolean
is_of_this_run (const EbbHostBuffer *buffer)
{
  return buffer->account == get_dry_account ();
}

static gboolean
is_of_a_dry_run (const EbbHostBuffer *buffer)
{
  return buffer->account != NULL;
}

/* The bytes of the buffers that this run keeps. */
static guint64
count_kept (const EbbHostPool *self)
{
  guint64 n_kept = 0;

  if (!ebb_is_dry ())
    return self->n_kept;
  for (GList *l = self->kept.head; l != NULL; l = l->next)
    n_kept += is_of_this_run (l->data) ? ((EbbHostBuffer *) l->data)->size : 0;
  return n_kept;
}

static gboolean
fits (EbbHostPool *self,
      guint64 size,
      guint64 limit)
{
  return size <= limit && (limit == G_MAXUINT64 || self->n_in_use + count_kept (self) <= limit - size);
}

/* Dry runs take nothing from the system, and the buffers that they ask for say nothing about the training. */
static void
count_asked (EbbHostPool *self,
             gboolean is_dry,
             gint64 n_bytes)
{
  if (is_dry)
    return;
  self->n_asked += (guint64) n_bytes;
  self->n_most = MAX (self->n_most, self->n_asked);
}

static guint64
get_spare (const EbbHostPool *self)
{
  return MAX (self->n_most / PART_SPARE, SPARE);
}

/* A buffer larger than the size is used where that wastes little: bytes that are wasted are spare ones, too. */
static gsize
get_largest (const EbbHostPool *self,
             gsize size)
{
  if (self->limit.n_bytes != G_MAXUINT64)
    return size;
  return size + (gsize) MIN (size / LARGER, get_spare (self) - MIN (self->n_waste, get_spare (self)));
}

static guint64
get_most_reserved (const EbbHostPool *self)
{
  return ebb_is_dry () ? self->limit.n_bytes : MIN (self->limit.n_bytes, self->n_most + get_spare (self));
}

/* Of those that are kept, the one that suits best. */
static EbbHostBuffer *
find_kept (EbbHostPool *self,
           EbbDevice *device,
           gsize size,
           gsize most)
{
  EbbHostBuffer *best = NULL;

  for (GList *l = self->kept.head; l != NULL; l = l->next)
    {
      EbbHostBuffer *buffer = l->data;

      if (buffer->device != device || !is_of_this_run (buffer) || buffer->size < size || buffer->size > most)
        continue;
      if (buffer->size == size)
        return buffer;
      if (best == NULL || buffer->size < best->size)
        best = buffer;
    }
  return best;
}

static gboolean
may_get_some (EbbHostPool *self)
{
  if (self->n_taking > 0) /* another thread, as this one waits */
    return TRUE;
  for (GList *l = self->in_use.head; l != NULL; l = l->next)
    if (ebb_host_owner_may_give (((EbbHostBuffer *) l->data)->owner))
      return TRUE;
  return FALSE;
}

static gboolean
refuse (EbbHostPool *self,
        gsize size,
        const char *why,
        GError **error)
{
  return ebb_fail (error, EBB_ERROR_NO_MEMORY,
                   "the host store is full: %" G_GSIZE_FORMAT " bytes asked for, %" G_GUINT64_FORMAT
                   " of %" G_GUINT64_FORMAT " in use%s; raise byte-limit, or set when-full and a fallback",
                   size, self->n_in_use, self->limit.n_bytes, why);
}

static gboolean
is_full (EbbHostPool *self,
         gsize size)
{
  return size > self->limit.n_bytes || self->n_in_use > self->limit.n_bytes - size;
}

/* Waits, if that was asked for, until there is room; releases the lock meanwhile. */
static gboolean
wait_for_room (EbbHostPool *self,
               gsize size,
               GError **error)
{
  const EbbHostLimit *limit = &self->limit; /* as it is whenever this thread has the lock */
  const gint64 deadline =
      g_get_monotonic_time () + (gint64) (MIN (self->limit.patience, 1e9) * G_USEC_PER_SEC);
  gboolean in_time = TRUE, ok = TRUE;

  pthread_mutex_unlock (&self->lock);
  ebb_host_wait_begin ();
  pthread_mutex_lock (&self->lock);
  while (ok && is_full (self, size))
    if (size > limit->n_bytes)
      ok = refuse (self, size, ", and it is larger than the limit", error);
    else if (limit->when_full != EBB_WHEN_FULL_WAIT)
      ok = refuse (self, size, "", error);
    else if (!in_time)
      ok = refuse (self, size, ", and waiting for it took too long", error);
    else if (!may_get_some (self))
      ok = refuse (self, size, ", and waiting for it would never end", error);
    else
      {
        pthread_mutex_unlock (&self->lock);
        in_time = ebb_host_wait (deadline);
        pthread_mutex_lock (&self->lock);
      }
  ebb_host_wait_end ();
  return ok;
}

static gboolean
wait_and_count (EbbHostPool *self,
                EbbDevice *device,
                gsize size,
                double *waited,
                GError **error)
{
  EbbStall stall;
  gboolean ok;

  if (!is_full (self, size))
    return TRUE;
  ebb_stall_begin (&stall, device);
  ok = wait_for_room (self, size, error);
  *waited += ebb_stall_end (&stall);
  return ok;
}

/* Takes out buffers of this run that are kept until @size bytes fit. */
static void
make_room (EbbHostPool *self,
           gsize size,
           guint64 limit,
           GQueue *gone)
{
  for (GList *l = self->kept.head, *next; l != NULL && !fits (self, size, limit); l = next)
    {
      EbbHostBuffer *buffer = l->data;

      next = l->next;
      if (!is_of_this_run (buffer))
        continue;
      unkeep (self, buffer);
      g_queue_push_tail_link (gone, &buffer->link);
    }
}

/* -- taking and giving --------------------------------------------------------------------------------------------- */

static gboolean
free_all (GQueue *buffers,
          GError **error)
{
  gboolean ok = TRUE;
  GList *link;

  while ((link = g_queue_pop_head_link (buffers)) != NULL)
    ok = buffer_free (link->data, error) && ok;
  return ok;
}

/* Frees buffers whose memory the backend must not keep either, because it is beyond a limit or somebody else needs it.
 */
static gboolean
free_and_trim (GQueue *buffers,
               GError **error)
{
  gboolean ok = TRUE;
  GList *link;

  while ((link = g_queue_pop_head_link (buffers)) != NULL)
    {
      const EbbHostBuffer *buffer = link->data;
      EbbDevice *device = buffer->device;
      const EbbStreamFuncs *streams = buffer->account == NULL ? device->backend->streams : NULL;

      ok = buffer_free (link->data, error) && ok;
      if (streams != NULL && streams->trim_host != NULL)
        streams->trim_host (device->index);
    }
  return ok;
}

/* Takes out the buffers that are kept and that @is_wanted says. */
static void
take_kept (EbbHostPool *self,
           gboolean (*is_wanted) (const EbbHostBuffer *buffer),
           GQueue *gone)
{
  EBB_AUTO_LOCK (&self->lock);
  for (GList *l = self->kept.head, *next; l != NULL; l = next)
    {
      EbbHostBuffer *buffer = l->data;

      next = l->next;
      if (!is_wanted (buffer))
        continue;
      unkeep (self, buffer);
      g_queue_push_tail_link (gone, &buffer->link);
    }
  if (is_wanted == is_of_this_run && !ebb_is_dry ())
    self->n_most = self->n_asked;
}

gboolean
ebb_host_pool_trim (EbbHostPool *self,
                    GError **error)
{
  GQueue gone = G_QUEUE_INIT;

  take_kept (self, is_of_this_run, &gone);
  return free_and_trim (&gone, error);
}

void
ebb_host_pool_end_dry_run (EbbHostPool *self)
{
  GQueue gone = G_QUEUE_INIT;

  take_kept (self, is_of_a_dry_run, &gone);
  free_all (&gone, NULL);
}

/* Where there is no more memory, buffers that any pool keeps may be in the way. */
static EbbHostBuffer *
buffer_new_or_trim (EbbDevice *device,
                    gsize size,
                    GError **error)
{
  GError *local = NULL;
  EbbHostBuffer *buffer = buffer_new (device, size, &local);
  GQueue gone = G_QUEUE_INIT;

  if (buffer == NULL && g_error_matches (local, EBB_ERROR, EBB_ERROR_NO_MEMORY))
    {
      pthread_mutex_lock (&pools_lock);
      for (GList *l = pools.head; l != NULL; l = l->next)
        take_kept (l->data, is_of_this_run, &gone);
      pthread_mutex_unlock (&pools_lock);
    }
  if (!g_queue_is_empty (&gone))
    {
      g_clear_error (&local);
      if (free_and_trim (&gone, &local))
        buffer = buffer_new (device, size, &local);
    }
  if (buffer == NULL)
    g_propagate_error (error, local);
  return buffer;
}

/* Room was made for a buffer of @size bytes: it is there, or NULL, and the room is for others. */
static void
end_taking (EbbHostPool *self,
            EbbHostBuffer *buffer,
            gsize size)
{
  pthread_mutex_lock (&self->lock);
  self->n_taking--;
  self->n_in_use -= size;
  if (buffer != NULL)
    {
      use (self, buffer);
      buffer->owner = ebb_host_owner_get ();
    }
  else
    count_asked (self, ebb_is_dry (), -(gint64) size);
  pthread_mutex_unlock (&self->lock);
  ebb_host_announce (); /* there is room, or another thread to wait for */
}

/* A buffer that is kept, or NULL with room made for a new one; FALSE with @error set. */
static gboolean
find_or_make_room (EbbHostPool *self,
                   EbbDevice *device,
                   gsize size,
                   EbbHostBuffer **buffer,
                   double *waited,
                   GError **error)
{
  GQueue gone = G_QUEUE_INIT;

  pthread_mutex_lock (&self->lock);
  if (!wait_and_count (self, device, size, waited, error))
    {
      pthread_mutex_unlock (&self->lock);
      return FALSE;
    }
  count_asked (self, ebb_is_dry (), (gint64) size);
  *buffer = find_kept (self, device, size, get_largest (self, size));
  if (*buffer != NULL)
    {
      unkeep (self, *buffer);
      use (self, *buffer);
      (*buffer)->owner = ebb_host_owner_get ();
      self->n_waste += (*buffer)->size - size;
    }
  else
    {
      make_room (self, size, get_most_reserved (self), &gone);
      self->n_in_use += size; /* so that no other thread takes the room */
      self->n_taking++;
    }
  pthread_mutex_unlock (&self->lock);
  if (free_and_trim (&gone, error))
    return TRUE;
  end_taking (self, NULL, size); /* something was in the way, so there is no buffer */
  return FALSE;
}

EbbHostBuffer *
ebb_host_pool_take (EbbHostPool *self,
                    EbbDevice *device,
                    gsize size,
                    double *waited,
                    GError **error)
{
  EbbHostBuffer *buffer = NULL;
  gboolean ok = find_or_make_room (self, device, size, &buffer, waited, error);

  if (buffer == NULL && ok)
    {
      buffer = buffer_new_or_trim (device, size, error);
      end_taking (self, buffer, size);
    }
  if (buffer == NULL)
    return NULL;
  buffer->ref_count = 1;
  buffer->pool = self;
  buffer->n_used = size;
  count ((gint64) size);
  return buffer;
}

EbbHostBuffer *
ebb_host_buffer_ref (EbbHostBuffer *buffer)
{
  __atomic_add_fetch (&buffer->ref_count, 1, __ATOMIC_RELAXED);
  return buffer;
}

void
ebb_host_buffer_unref (EbbHostBuffer *buffer)
{
  EbbHostPool *self = buffer->pool;
  EbbHostOwner *owner;

  if (__atomic_sub_fetch (&buffer->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  count (-(gint64) buffer->n_used);
  pthread_mutex_lock (&self->lock);
  owner = g_steal_pointer (&buffer->owner);
  g_queue_unlink (&self->in_use, &buffer->link);
  self->n_in_use -= buffer->size;
  self->n_waste -= buffer->size - buffer->n_used;
  count_asked (self, buffer->account != NULL, -(gint64) buffer->n_used);
  g_queue_push_tail_link (&self->kept, &buffer->link);
  self->n_kept += buffer->size;
  pthread_mutex_unlock (&self->lock);
  ebb_host_announce ();
  ebb_host_owner_unref (owner);
}

void
ebb_host_pool_get_bytes (EbbHostPool *self,
                         guint64 *in_use,
                         guint64 *kept)
{
  EBB_AUTO_LOCK (&self->lock);
  *in_use = self->n_in_use;
  *kept = self->n_kept;
}

/* -- copies -------------------------------------------------------------------------------------------------------- */

void
ebb_host_buffer_note (EbbHostBuffer *self,
                      EbbTransfer *transfer,
                      gboolean to_host)
{
  EbbTransfer **place = to_host ? &self->in : &self->out, *old;

  pthread_mutex_lock (&self->pool->lock);
  old = *place;
  *place = ebb_transfer_ref (transfer);
  pthread_mutex_unlock (&self->pool->lock);
  g_clear_pointer (&old, ebb_transfer_unref);
}

EbbTransfer *
ebb_host_buffer_get_reader (EbbHostBuffer *self)
{
  EbbTransfer *reader;

  pthread_mutex_lock (&self->pool->lock);
  reader = self->out ? ebb_transfer_ref (self->out) : NULL;
  pthread_mutex_unlock (&self->pool->lock);
  if (reader == NULL || !ebb_transfer_is_done (reader))
    return reader;
  ebb_transfer_unref (reader);
  return NULL;
}

void
ebb_host_pool_free (EbbHostPool *self)
{
  g_return_if_fail (g_queue_is_empty (&self->in_use));

  pthread_mutex_lock (&pools_lock);
  g_queue_unlink (&pools, &self->link);
  pthread_mutex_unlock (&pools_lock);
  free_all (&self->kept, NULL);
  pthread_mutex_destroy (&self->lock);
  g_free (self);
}
