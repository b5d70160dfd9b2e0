/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The buffer pool of a contiguous store: parts of one size, cut from large buffers. */
#include "offload/contiguous/pool-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/autograd/op-private.h"
#include "tensor/dry-run-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/lock-private.h"

#include <pthread.h>

#define ALIGNMENT 256
/* For direct access to a disk. */
#define ALIGNMENT_ELSEWHERE 4096

/* Large buffers that are handed out in parts of one size. */

typedef struct
{
  EbbDevice *device;
  EbbDType dtype;
  gsize size;                /* bytes of a tensor */
  EbbActivationStore *next;  /* NULL: on the device */
  EbbMemoryAccount *account; /* of the dry run whose memory it is; NULL: real memory */
} Kind;

typedef struct _Buffer Buffer;

/* Its bytes are counted once: by the tensors that show it, else as an activation if it is held, else as workspace. */
struct _EbbBufferPart
{
  Buffer *buffer;
  /* under the pool's lock */
  guint n_refs;      /* of the holder and of the storages that show it; 0: free */
  EbbStorage *shown; /* the last one, while it lives */
  guint n_shown;
  gboolean is_held;
  gboolean is_changed; /* by a caller to whom it was shown */
};

struct _Buffer
{
  int ref_count;
  EbbBufferPool *pool;
  Kind kind;
  gsize stride;
  guint n_parts;
  char *data;      /* on the device... */
  EbbHandle *room; /* ...or in the next store */
  /* under the pool's lock */
  EbbBufferPart *parts;
  guint n_used;
  guint first_free; /* no part before it is free */
};

struct _EbbBufferPool
{
  int ref_count;
  pthread_mutex_t lock;
  GPtrArray *buffers; /* that parts are taken from */
  EbbBufferCounts counts;
};

/* -- the pool ------------------------------------------------------------------------------------------------------ */

static void buffer_unref (gpointer data);

EbbBufferPool *
ebb_buffer_pool_new (void)
{
  EbbBufferPool *self = g_new0 (EbbBufferPool, 1);

  self->ref_count = 1;
  self->buffers = g_ptr_array_new ();
  pthread_mutex_init (&self->lock, NULL);
  return self;
}

static void
pool_release (EbbBufferPool *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  g_ptr_array_unref (self->buffers);
  pthread_mutex_destroy (&self->lock);
  g_free (self);
}

void
ebb_buffer_pool_unref (EbbBufferPool *self)
{
  ebb_buffer_pool_reset (self);
  pool_release (self);
}

static void
buffers_free (GPtrArray *buffers)
{
  g_ptr_array_set_free_func (buffers, buffer_unref);
  g_ptr_array_unref (buffers);
}

void
ebb_buffer_pool_reset (EbbBufferPool *self)
{
  GPtrArray *buffers;

  pthread_mutex_lock (&self->lock);
  buffers = self->buffers;
  self->buffers = g_ptr_array_new ();
  pthread_mutex_unlock (&self->lock);
  buffers_free (buffers);
}

void
ebb_buffer_pool_get_counts (EbbBufferPool *self,
                            EbbBufferCounts *counts)
{
  EBB_AUTO_LOCK (&self->lock);
  *counts = self->counts;
}

/* -- buffers ------------------------------------------------------------------------------------------------------- */

static gsize
buffer_size (const Buffer *self)
{
  return self->stride * self->n_parts;
}

static void
buffer_unref (gpointer data)
{
  Buffer *self = data;

  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  if (self->data != NULL)
    ebb_device_free_of (self->kind.device, self->data, buffer_size (self), EBB_PURPOSE_WORKSPACE,
                        self->kind.account != NULL ? self->kind.account : ebb_thread.account);
  g_clear_pointer (&self->kind.account, ebb_memory_account_unref);
  g_clear_pointer (&self->room, ebb_handle_unref);
  g_clear_object (&self->kind.next);
  pthread_mutex_lock (&self->pool->lock);
  self->pool->counts.n_buffers--;
  pthread_mutex_unlock (&self->pool->lock);
  pool_release (self->pool);
  g_free (self->parts);
  g_free (self);
}

static gboolean
reserve (Buffer *self,
         GError **error)
{
  const Kind *kind = &self->kind;
  const gsize alignment = kind->next != NULL ? ALIGNMENT_ELSEWHERE : ALIGNMENT;

  self->stride = (kind->size + alignment - 1) & ~(alignment - 1);
  if (self->stride > G_MAXSSIZE / self->n_parts)
    return ebb_fail (error, EBB_ERROR_NO_MEMORY, "%u parts of %" G_GSIZE_FORMAT " bytes are more than can be addressed",
                     self->n_parts, kind->size);
  if (kind->next == NULL)
    {
      self->data = ebb_device_alloc (kind->device, buffer_size (self), EBB_PURPOSE_WORKSPACE, error);
      return self->data != NULL;
    }
  self->room = ebb_activation_store_reserve (kind->next, kind->device, buffer_size (self), error);
  return self->room != NULL;
}

static Buffer *
buffer_new (EbbBufferPool *pool,
            const Kind *kind,
            guint n_parts,
            GError **error)
{
  Buffer *self = g_new0 (Buffer, 1);

  self->ref_count = 1;
  self->pool = pool;
  __atomic_add_fetch (&pool->ref_count, 1, __ATOMIC_RELAXED);
  pthread_mutex_lock (&pool->lock);
  pool->counts.n_buffers++;
  pthread_mutex_unlock (&pool->lock);
  self->kind = *kind;
  if (kind->next != NULL)
    g_object_ref (kind->next);
  if (kind->account != NULL)
    ebb_memory_account_ref (kind->account);
  self->n_parts = n_parts;
  if (!reserve (self, error))
    {
      buffer_unref (self);
      return NULL;
    }
  self->parts = g_new0 (EbbBufferPart, n_parts);
  return self;
}

static gboolean
is_of_kind (const Buffer *self,
            const Kind *kind)
{
  return self->kind.device == kind->device && self->kind.dtype == kind->dtype && self->kind.size == kind->size
         && self->kind.next == kind->next && self->kind.account == kind->account;
}

/* -- taking a part ------------------------------------------------------------------------------------------------- */

/* The first free one, under the lock; parts are filled in order. */
static EbbBufferPart *
take_from (Buffer *buffer)
{
  EbbBufferCounts *counts = &buffer->pool->counts;
  EbbBufferPart *part;

  while (buffer->first_free < buffer->n_parts && buffer->parts[buffer->first_free].n_refs > 0)
    buffer->first_free++;
  if (buffer->first_free == buffer->n_parts)
    return NULL;
  part = &buffer->parts[buffer->first_free++];
  *part = (EbbBufferPart){ .buffer = buffer, .n_refs = 1, .is_held = TRUE };
  __atomic_add_fetch (&buffer->ref_count, 1, __ATOMIC_RELAXED);
  buffer->n_used++;
  counts->n_used++;
  counts->n_peak = MAX (counts->n_peak, counts->n_used);
  if (buffer->data != NULL)
    ebb_device_recount (buffer->kind.device, EBB_PURPOSE_WORKSPACE, EBB_PURPOSE_ACTIVATION, buffer->kind.size);
  return part;
}

/* @n_parts: how many there are of that kind. */
static EbbBufferPart *
take (EbbBufferPool *self,
      const Kind *kind,
      guint *n_parts)
{
  EbbBufferPart *part = NULL;

  *n_parts = 0;
  EBB_AUTO_LOCK (&self->lock);
  for (guint i = 0; i < self->buffers->len && part == NULL; i++)
    {
      Buffer *buffer = g_ptr_array_index (self->buffers, i);

      if (!is_of_kind (buffer, kind))
        continue;
      *n_parts += buffer->n_parts;
      part = take_from (buffer);
    }
  return part;
}

/* Dry runs have buffers of their own. */
static gboolean
is_of_now (const Buffer *self)
{
  return self->kind.account == (ebb_is_dry () ? ebb_thread.account : NULL);
}

/* A dry run has buffers of its own. They replace the idle buffers outside of the run, which a real step would use. */
static void
replace_idle_buffers (EbbBufferPool *self)
{
  EbbDryRun *run = ebb_dry_run_get_current ();
  EbbMemoryAccount *outer = ebb_dry_run_get_outer_account (run);

  EBB_AUTO_LOCK (&self->lock);
  for (guint i = 0; i < self->buffers->len; i++)
    {
      Buffer *buffer = g_ptr_array_index (self->buffers, i);

      if (buffer->n_used == 0 && buffer->data != NULL && !is_of_now (buffer))
        ebb_dry_run_replace (run, buffer, buffer->kind.device, EBB_PURPOSE_WORKSPACE, buffer_size (buffer),
                             buffer->kind.account == NULL && outer != NULL && !outer->is_dry ? outer
                                                                                             : buffer->kind.account);
    }
}

/* Buffers of which nothing is held make room for a new one: tensors of other sizes don't add up to ever more memory. */
static void
free_idle_buffers (EbbBufferPool *self)
{
  GPtrArray *idle = g_ptr_array_new ();

  pthread_mutex_lock (&self->lock);
  for (guint i = self->buffers->len; i > 0; i--)
    if (((Buffer *) g_ptr_array_index (self->buffers, i - 1))->n_used == 0
        && is_of_now (g_ptr_array_index (self->buffers, i - 1)))
      g_ptr_array_add (idle, g_ptr_array_steal_index (self->buffers, i - 1));
  pthread_mutex_unlock (&self->lock);
  buffers_free (idle);
}

void
ebb_buffer_pool_end_dry_run (EbbBufferPool *self)
{
  free_idle_buffers (self);
}

/* Nothing is locked while memory is asked for: that may take as long as others give some back. */
static gboolean
add_buffer (EbbBufferPool *self,
            const Kind *kind,
            guint n_parts,
            GError **error)
{
  Buffer *buffer;

  if (ebb_is_dry ())
    replace_idle_buffers (self);
  free_idle_buffers (self);
  buffer = buffer_new (self, kind, n_parts, error);
  if (buffer == NULL)
    return FALSE;
  EBB_AUTO_LOCK (&self->lock);
  g_ptr_array_add (self->buffers, buffer);
  return TRUE;
}

static EbbBufferPart *
take_or_add (EbbBufferPool *self,
             const Kind *kind,
             guint n_parts,
             gboolean grow,
             GError **error)
{
  guint n_there;
  EbbBufferPart *part = take (self, kind, &n_there);

  /* Another thread may take the parts that were added here. */
  while (part == NULL && (n_there == 0 || grow))
    {
      if (!add_buffer (self, kind, n_parts, error))
        return NULL;
      part = take (self, kind, &n_there);
    }
  if (part == NULL)
    ebb_error_set (
        error, EBB_ERROR_NO_MEMORY,
        "contiguous store: all %u parts for tensors of %" G_GSIZE_FORMAT
        " bytes of %s on %s are in use (n-checkpoints is %u): set n-checkpoints to as many of them as are kept "
        "at a time, or grow, or call reset between forwards that no backward follows",
        n_there, kind->size, ebb_dtype_get_name (kind->dtype), ebb_device_get_name (kind->device), n_parts);
  return part;
}

/* -- giving it back ------------------------------------------------------------------------------------------------ */

/* Under the lock. */
static void
part_unref (EbbBufferPart *self)
{
  Buffer *buffer = self->buffer;

  if (--self->n_refs > 0)
    return;
  buffer->n_used--;
  buffer->first_free = MIN (buffer->first_free, (guint) (self - buffer->parts));
  buffer->pool->counts.n_used--;
}

void
ebb_buffer_part_drop (EbbBufferPart *self)
{
  Buffer *buffer = self->buffer;
  EbbStorage *storage;

  pthread_mutex_lock (&buffer->pool->lock);
  self->is_held = FALSE;
  storage = ebb_storage_try_ref (self->shown);
  if (storage != NULL)
    ebb_storage_drop_saved (storage);
  else if (buffer->data != NULL && self->n_shown == 0)
    ebb_device_recount (buffer->kind.device, EBB_PURPOSE_ACTIVATION, EBB_PURPOSE_WORKSPACE, buffer->kind.size);
  part_unref (self);
  pthread_mutex_unlock (&buffer->pool->lock);
  if (storage != NULL)
    ebb_storage_unref (storage);
  buffer_unref (buffer);
}

/* -- filling ------------------------------------------------------------------------------------------------------- */

/* Bytes from the start of the buffer. */
static gsize
get_offset (const EbbBufferPart *self)
{
  return self->buffer->stride * (gsize) (self - self->buffer->parts);
}

static gboolean
copy_there (EbbBufferPart *self,
            EbbTensor *block,
            GError **error)
{
  EbbDevice *device = block->storage->device;
  EbbView there = block->view;
  EbbLaunch launch;

  there.data = self->buffer->data + get_offset (self);
  if (device->kernels[EBB_KERNEL_COPY] == NULL)
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "device %s has no kernel %s", device->name,
                     ebb_kernel_get_name (EBB_KERNEL_COPY));
  ebb_launch_init (&launch, EBB_KERNEL_COPY);
  launch.inputs[launch.n_inputs++] = &block->view;
  launch.outputs[launch.n_outputs++] = &there;
  /* No op: profilers and other observers of ops do not see it. */
  return ebb_device_launch (device, &launch, error);
}

EbbBufferPart *
ebb_buffer_pool_put (EbbBufferPool *self,
                     EbbActivationStore *next,
                     EbbTensor *block,
                     guint n_parts,
                     gboolean grow,
                     EbbHandle **inner,
                     GError **error)
{
  const Kind kind = { block->storage->device, block->view.dtype, ebb_tensor_get_n_bytes (block), next,
                      ebb_is_dry () ? ebb_thread.account : NULL };
  EbbBufferPart *part = take_or_add (self, &kind, n_parts, grow, error);
  gboolean ok;

  if (part == NULL)
    return NULL;
  if (next == NULL)
    ok = copy_there (part, block, error);
  else
    {
      *inner = ebb_activation_store_put_at (next, part->buffer->room, get_offset (part), block, error);
      ok = *inner != NULL;
    }
  if (!ok)
    g_clear_pointer (&part, ebb_buffer_part_drop);
  return part;
}

/* -- showing ------------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbBufferPart *part;
  EbbStorage *storage;
} Shown;

/* The storage is freed, and has ceased to count. */
static void
shown_free (gpointer data)
{
  Shown *shown = data;
  EbbBufferPart *part = shown->part;
  Buffer *buffer = part->buffer;

  pthread_mutex_lock (&buffer->pool->lock);
  if (shown->storage->version > 0)
    part->is_changed = TRUE;
  if (part->shown == shown->storage)
    part->shown = NULL;
  if (--part->n_shown == 0)
    ebb_device_count (buffer->kind.device, part->is_held ? EBB_PURPOSE_ACTIVATION : EBB_PURPOSE_WORKSPACE,
                      (gint64) buffer->kind.size);
  part_unref (part);
  pthread_mutex_unlock (&buffer->pool->lock);
  buffer_unref (buffer);
  g_free (shown);
}

static EbbStorage *
show (EbbBufferPart *self)
{
  Buffer *buffer = self->buffer;
  Shown *shown = g_new (Shown, 1);

  if (self->n_shown++ == 0)
    ebb_device_count (buffer->kind.device, EBB_PURPOSE_ACTIVATION, -(gint64) buffer->kind.size);
  *shown = (Shown){ .part = self };
  self->n_refs++;
  __atomic_add_fetch (&buffer->ref_count, 1, __ATOMIC_RELAXED);
  self->shown = shown->storage =
      ebb_storage_new_foreign (buffer->kind.device, EBB_PURPOSE_ACTIVATION, buffer->data + get_offset (self),
                               buffer->kind.size, shown_free, shown);
  self->shown->no_data = ebb_is_dry ();
  /* What the store keeps is saved whether it is shown or not: how long a collective shows it is a matter of time. */
  ebb_storage_hold_saved (self->shown);
  return self->shown;
}

EbbTensor *
ebb_buffer_part_show (EbbBufferPart *self,
                      GError **error)
{
  const Kind *kind = &self->buffer->kind;
  const gint64 n = (gint64) (kind->size / ebb_dtype_get_size (kind->dtype));
  EbbStorage *storage;
  EbbTensor *tensor;
  gboolean is_changed;

  pthread_mutex_lock (&self->buffer->pool->lock);
  storage = ebb_storage_try_ref (self->shown);
  if (storage == NULL && !self->is_changed)
    storage = show (self);
  is_changed = self->is_changed || storage->version > 0;
  pthread_mutex_unlock (&self->buffer->pool->lock);
  if (is_changed)
    {
      ebb_error_set (error, EBB_ERROR_VERSION,
                     "contiguous store: %" G_GSIZE_FORMAT " bytes of %s on %s were changed in place after they came "
                     "back, where the store still keeps them; change a copy",
                     kind->size, ebb_dtype_get_name (kind->dtype), ebb_device_get_name (kind->device));
      g_clear_pointer (&storage, ebb_storage_unref);
      return NULL;
    }
  tensor = ebb_tensor_new_view (storage, 0, &n, NULL, 1, kind->dtype);
  ebb_storage_unref (storage);
  return tensor;
}
