/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The states of a unit, as unit-private.h describes them: gathers its full parameters, reshards them, and frees the
 * unit on the thread that has it in its lists. */
#include "wrap/shard/unit-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/profile/timeline-private.h"
#include "tensor/util/lock-private.h"

static void thread_free (gpointer data);
static void unit_free (EbbShardUnit *self);

/* -- the lists of a thread ----------------------------------------------------------------------------------------- */

static GPrivate threads = G_PRIVATE_INIT (thread_free);
/* Of the lists that other threads append to: orphans and taken. */
static pthread_mutex_t handover_lock = PTHREAD_MUTEX_INITIALIZER;

guint64
ebb_shard_make_pass (void)
{
  static guint64 last;

  return __atomic_add_fetch (&last, 1, __ATOMIC_RELAXED);
}

static void
drop_taken (EbbShardThread *self)
{
  EBB_AUTO_LOCK (&handover_lock);
  for (guint i = 0; i < self->taken->len; i++)
    {
      g_ptr_array_remove (self->unsharded, g_ptr_array_index (self->taken, i));
      g_ptr_array_remove (self->forwarded, g_ptr_array_index (self->taken, i));
    }
  g_ptr_array_set_size (self->taken, 0);
  __atomic_store_n (&self->has_taken, FALSE, __ATOMIC_RELAXED);
}

EbbShardThread *
ebb_shard_get_thread (void)
{
  EbbShardThread *self = g_private_get (&threads);

  if (self != NULL)
    {
      if (G_UNLIKELY (__atomic_load_n (&self->has_taken, __ATOMIC_RELAXED)))
        drop_taken (self);
      return self;
    }
  self = g_atomic_rc_box_new0 (EbbShardThread);
  self->orphans = g_ptr_array_new ();
  self->taken = g_ptr_array_new ();
  self->unsharded = g_ptr_array_new ();
  self->forwarded = g_ptr_array_new ();
  self->pass = ebb_shard_make_pass ();
  g_private_set (&threads, self);
  return self;
}

static void
leave_thread (EbbShardUnit *self,
              EbbShardThread *thread)
{
  EBB_AUTO_LOCK (&handover_lock);
  if (thread->orphans != NULL)
    {
      g_ptr_array_add (thread->taken, self);
      __atomic_store_n (&thread->has_taken, TRUE, __ATOMIC_RELAXED);
    }
}

EbbShardThread *
ebb_shard_take_thread (EbbShardUnit *self)
{
  EbbShardThread *thread = ebb_shard_get_thread ();

  if (G_LIKELY (self->owner == thread))
    return thread;
  if (self->owner != NULL)
    {
      leave_thread (self, self->owner);
      g_atomic_rc_box_release (self->owner);
    }
  self->owner = g_atomic_rc_box_acquire (thread);
  self->forwarded = !self->is_in_place && ebb_shard_unit_is_used (self);
  if (self->forwarded)
    g_ptr_array_add (thread->forwarded, self);
  if (self->state != EBB_SHARD_SHARDED)
    g_ptr_array_add (thread->unsharded, self);
  return thread;
}

void
ebb_shard_note_unsharded (EbbShardUnit *self,
                          gboolean unsharded)
{
  GPtrArray *units = ebb_shard_take_thread (self)->unsharded;

  g_ptr_array_remove (units, self);
  if (unsharded)
    g_ptr_array_add (units, self);
}

EbbShardOrder *
ebb_shard_order_new (EbbShardUnit *root)
{
  EbbShardOrder *order = g_atomic_rc_box_new0 (EbbShardOrder);

  order->root = root;
  order->units = g_ptr_array_new ();
  return order;
}

void
ebb_shard_order_remove (EbbShardUnit *self)
{
  if (self->order == NULL)
    return;
  while (g_ptr_array_remove (self->order->units, self))
    ;
  g_clear_pointer (&self->order, ebb_shard_order_unref);
}

static void
order_clear (gpointer data)
{
  g_ptr_array_unref (((EbbShardOrder *) data)->units);
}

void
ebb_shard_order_unref (EbbShardOrder *order)
{
  g_atomic_rc_box_release_full (order, order_clear);
}

/* -- unsharding ---------------------------------------------------------------------------------------------------- */

static void
drop_full (EbbShardUnit *self)
{
  for (guint i = 0; i < self->layout->n_buffers; i++)
    g_clear_pointer (&self->buffers[i].full, ebb_tensor_unref);
  self->is_cached = FALSE;
}

/* This rank's input to the all-gather of a buffer: its shard, on the device and in the dtype of compute. */
static EbbTensor *
prepare_shard (EbbShardUnit *self,
               EbbTensor *shard,
               gboolean lowers,
               GError **error)
{
  g_autoptr (EbbTensor) cast = lowers ? ebb_tensor_convert (shard, self->compute_dtype, error) : ebb_tensor_ref (shard);

  return cast != NULL ? ebb_to_device (cast, self->device, error) : NULL;
}

static gboolean
make_full (EbbShardUnit *self,
           guint buffer,
           EbbTensor *shard,
           GError **error)
{
  EbbShardBuffer *it = &self->buffers[buffer];
  const gint64 n = self->layout->n_elements[buffer];
  const char *op_name = ebb_thread.op_name;

  ebb_thread.op_name = "all_gather"; /* not the op that runs while this unit is prefetched */
  if (n == shard->n_elements)
    it->full = ebb_tensor_alias (shard); /* one rank has it all */
  else
    it->full = ebb_tensor_new_uninitialized (&n, 1, shard->view.dtype, self->device, error);
  ebb_thread.op_name = op_name;
  if (it->full == NULL)
    return FALSE;
  ebb_storage_set_purpose (it->full->storage, EBB_PURPOSE_PARAMETER);
  if (n != shard->n_elements)
    ebb_timeline_name_tensor (it->full, "%s, unsharded", self->name);
  return TRUE;
}

gboolean
ebb_shard_unit_begin_gather (EbbShardUnit *self,
                             gboolean lowers,
                             GError **error)
{
  const guint n = self->layout->n_buffers;
  g_autofree EbbCollectivePart *parts = g_new0 (EbbCollectivePart, n + 1);
  g_autoptr (GPtrArray) shards = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  gboolean ok = TRUE;

  EBB_AUTO_INTERNAL_MODES ();
  for (guint i = 0; ok && i < n; i++)
    {
      EbbTensor *shard = prepare_shard (self, self->buffers[i].shard, lowers, error);

      if (shard != NULL)
        g_ptr_array_add (shards, shard);
      ok = shard != NULL && make_full (self, i, shard, error);
      if (ok)
        parts[i] = (EbbCollectivePart){
          .full = self->buffers[i].full,
          .shard = shard->n_elements > 0 ? shard : NULL,
          .counts = ebb_shard_layout_get_counts (self->layout, i),
        };
    }
  if (ok)
    {
      g_autofree char *purpose = g_strdup_printf ("gathering %s", self->name);

      self->gathering = ebb_process_group_start (self->group, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, parts, n, 0,
                                                 purpose, error);
    }
  if (!ok || self->gathering == NULL)
    {
      drop_full (self);
      g_prefix_error (error, "gathering %s: ", self->name);
      return FALSE;
    }
  for (guint i = 0; i < n; i++)
    self->gathered_bytes += ebb_tensor_get_n_bytes (self->buffers[i].full);
  self->n_gathers++;
  self->state = EBB_SHARD_UNSHARDING;
  ebb_shard_note_unsharded (self, TRUE);
  return TRUE;
}

static void
exchange_gradient (EbbShardEntry *entry)
{
  EbbTensor *grad = entry->tensor->grad;

  entry->tensor->grad = entry->stashed_grad;
  entry->stashed_grad = grad;
}

static void
exchange_gradients (EbbShardUnit *self)
{
  for (guint i = 0; i < self->n_entries; i++)
    exchange_gradient (&self->entries[i]);
}

/* Points the parameters into the full buffers. */
static void
use_full (EbbShardUnit *self)
{
  for (guint i = 0; i < self->n_entries; i++)
    {
      const EbbShardParameter *parameter = &self->layout->parameters[i];
      EbbShardBuffer *it = &self->buffers[parameter->buffer];
      g_autoptr (EbbTensor) view = NULL;

      it->full->storage->birth = it->shard->storage->birth;
      it->version = it->full->storage->version = it->shard->storage->version;
      view = ebb_tensor_new_view (it->full->storage, it->full->offset + parameter->start, parameter->shape, NULL,
                                  parameter->n_dims, it->full->view.dtype);
      ebb_tensor_swap_storage (self->entries[i].tensor, view);
    }
  exchange_gradients (self);
  self->state = EBB_SHARD_UNSHARDED;
}

gboolean
ebb_shard_unit_finish_gather (EbbShardUnit *self,
                              GError **error)
{
  g_autoptr (EbbWork) work = g_steal_pointer (&self->gathering);

  EBB_AUTO_INTERNAL_MODES ();
  if (ebb_work_wait (work, error))
    {
      use_full (self);
      return TRUE;
    }
  g_prefix_error (error, "gathering %s: ", self->name);
  drop_full (self);
  self->state = EBB_SHARD_SHARDED;
  ebb_shard_note_unsharded (self, FALSE);
  return FALSE;
}

/* Pinned memory may have been changed by other programs, which leaves no trace. */
static gboolean
cache_is_valid (EbbShardUnit *self)
{
  for (guint i = 0; i < self->layout->n_buffers; i++)
    {
      const EbbShardBuffer *it = &self->buffers[i];

      if (it->shard->storage->version != it->version || it->full->storage->version != it->version
          || it->shard->storage->pinned)
        return FALSE;
    }
  return TRUE;
}

/* Without other ranks, a pass adds to a reduced gradient itself. A sum of its own, added afterwards, would have other
 * bits than the plain module's, and need memory of its own. */
static gboolean
use_in_place (EbbShardUnit *self)
{
  const gboolean is_alone = self->replicas != NULL && ebb_process_group_get_size (self->replicas) == 1;

  if (!self->is_in_place)
    return FALSE;
  for (guint i = 0; i < self->n_entries; i++)
    if (!is_alone || self->entries[i].stashed_grad != NULL)
      exchange_gradient (&self->entries[i]);
  self->state = EBB_SHARD_UNSHARDED;
  ebb_shard_note_unsharded (self, TRUE);
  return TRUE;
}

static gboolean
use_cache (EbbShardUnit *self)
{
  if (!self->is_cached || !cache_is_valid (self))
    return FALSE;
  EBB_AUTO_INTERNAL_MODES ();
  self->is_cached = FALSE;
  use_full (self);
  ebb_shard_note_unsharded (self, TRUE);
  return TRUE;
}

gboolean
ebb_shard_unit_begin_unshard (EbbShardUnit *self,
                              GError **error)
{
  if (self->n_entries == 0 || self->state != EBB_SHARD_SHARDED)
    return TRUE;
  drop_full (self);
  return ebb_shard_unit_begin_gather (self, self->lowers, error);
}

gboolean
ebb_shard_unit_unshard (EbbShardUnit *self,
                        GError **error)
{
  if (G_LIKELY (self->state == EBB_SHARD_UNSHARDED) || self->n_entries == 0 || use_in_place (self)
      || use_cache (self))
    return TRUE;
  return ebb_shard_unit_begin_unshard (self, error) && ebb_shard_unit_finish_gather (self, error);
}

/* -- resharding ---------------------------------------------------------------------------------------------------- */

gboolean
ebb_shard_unit_reshard_cached (EbbShardUnit *self,
                               GError **error)
{
  if (self->state == EBB_SHARD_SHARDED)
    return TRUE;
  if (self->state == EBB_SHARD_UNSHARDING && !ebb_shard_unit_finish_gather (self, error))
    return FALSE;
  for (guint i = 0; !self->is_in_place && i < self->n_entries; i++)
    ebb_tensor_swap_storage (self->entries[i].tensor, self->entries[i].shard);
  exchange_gradients (self);
  self->state = EBB_SHARD_SHARDED;
  self->is_cached = TRUE;
  ebb_shard_note_unsharded (self, FALSE);
  return TRUE;
}

gboolean
ebb_shard_unit_reshard (EbbShardUnit *self,
                        GError **error)
{
  if (!ebb_shard_unit_reshard_cached (self, error))
    return FALSE;
  drop_full (self);
  return TRUE;
}

/* -- queries ------------------------------------------------------------------------------------------------------- */

gboolean
ebb_shard_unit_is_used (const EbbShardUnit *self)
{
  for (guint i = 0; i < self->n_entries; i++)
    if (__atomic_load_n (&self->entries[i].tensor->n_uses, __ATOMIC_RELAXED) != 0)
      return TRUE;
  return FALSE;
}

gint64
ebb_shard_unit_count_elements (const EbbShardUnit *self)
{
  gint64 n = 0;

  for (guint i = 0; i < self->n_entries; i++)
    n += self->layout->parameters[i].n_elements;
  return n;
}

/* -- elements ------------------------------------------------------------------------------------------------------ */

static EbbTensor *
view_elements (EbbTensor *tensor,
               gint64 begin,
               gint64 n)
{
  return ebb_tensor_new_view (tensor->storage, tensor->offset + begin, &n, NULL, 1, tensor->view.dtype);
}

gboolean
ebb_shard_copy_elements (EbbTensor *source,
                         gint64 source_begin,
                         gint64 n,
                         EbbTensor *target,
                         gint64 target_begin,
                         GError **error)
{
  g_autoptr (EbbTensor) from = view_elements (source, source_begin, n);
  g_autoptr (EbbTensor) to = view_elements (target, target_begin, n);
  g_autoptr (EbbTensor) near = NULL;
  EbbLaunch launch;

  if (n == 0)
    return TRUE;
  near = ebb_to_device (from, target->storage->device, error);
  if (near == NULL)
    return FALSE;
  ebb_launch_init (&launch, EBB_KERNEL_COPY);
  ebb_launch_input (&launch, near);
  ebb_launch_output (&launch, to);
  return ebb_launch (target->storage->device, &launch, error);
}

/* -- freeing units and threads ------------------------------------------------------------------------------------- */

/* TRUE if another thread will free the unit, whose last reference was dropped. */
static gboolean
leave_to_owner (EbbShardUnit *self)
{
  if (self->is_orphan || self->owner == NULL || self->owner == g_private_get (&threads))
    return self->is_orphan;
  EBB_AUTO_LOCK (&handover_lock);
  self->is_orphan = self->owner->orphans != NULL;
  if (self->is_orphan)
    g_ptr_array_add (self->owner->orphans, self);
  return self->is_orphan;
}

EbbShardUnit *
ebb_shard_unit_ref (EbbShardUnit *self)
{
  __atomic_add_fetch (&self->ref_count, 1, __ATOMIC_RELAXED);
  return self;
}

void
ebb_shard_unit_unref (EbbShardUnit *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) == 0 && !leave_to_owner (self))
    unit_free (self);
}

void
ebb_shard_reduction_free (EbbShardReduction *self)
{
  for (guint i = 0; i < self->n_buffers; i++)
    {
      g_clear_pointer (&self->full[i], ebb_tensor_unref);
      g_clear_pointer (&self->shards[i], ebb_tensor_unref);
    }
  g_clear_pointer (&self->work, ebb_work_unref);
  g_clear_pointer (&self->flags, ebb_tensor_unref);
  g_clear_pointer (&self->flag_shard, ebb_tensor_unref);
  g_free (self->present);
  g_free (self->full);
  g_free (self->shards);
  g_free (self);
}

void
ebb_shard_unit_drop_reduction (EbbShardUnit *self)
{
  EbbShardReduction *reduction = g_steal_pointer (&self->reduction);

  if (reduction == NULL)
    return;
  ebb_work_wait (reduction->work, NULL);
  ebb_shard_reduction_free (reduction);
}

static void
forget_unit (EbbShardUnit *self)
{
  EbbShardThread *thread = g_private_get (&threads);

  ebb_shard_order_remove (self);
  self->own_order->root = NULL;
  g_clear_pointer (&self->own_order, ebb_shard_order_unref);
  if (thread != NULL)
    g_ptr_array_remove (thread->forwarded, self);
  g_clear_pointer (&self->owner, g_atomic_rc_box_release);
}

void
ebb_shard_entry_clear (EbbShardUnit *self,
                       EbbShardEntry *entry)
{
  if (entry->tensor->owner == &self->base)
    entry->tensor->owner = NULL;
  g_clear_pointer (&entry->stashed_grad, ebb_tensor_unref);
  g_clear_pointer (&entry->shard, ebb_tensor_unref);
  ebb_tensor_unref (entry->tensor);
  g_free (entry->name);
}

/* Collectives in flight write to memory that is freed here, so they are waited for. Parameters that somebody else holds
 * stay as this rank's shards. */
static void
unit_free (EbbShardUnit *self)
{
  ebb_shard_unit_drop_reduction (self);
  if (self->layout != NULL)
    {
      ebb_shard_unit_reshard (self, NULL);
      for (guint i = 0; i < self->layout->n_buffers; i++)
        g_clear_pointer (&self->buffers[i].shard, ebb_tensor_unref);
    }
  forget_unit (self);
  for (guint i = 0; i < self->n_entries; i++)
    ebb_shard_entry_clear (self, &self->entries[i]);
  g_clear_pointer (&self->layout, ebb_shard_layout_free);
  g_free (self->buffers);
  g_free (self->entries);
  g_ptr_array_unref (self->borrowed);
  if (self->module != NULL)
    ebb_module_weak_free (self->module);
  g_clear_object (&self->replicas);
  g_object_unref (self->group);
  g_free (self->name);
  g_free (self);
}

void
ebb_shard_free_orphans (EbbShardThread *self,
                        gboolean ends)
{
  GPtrArray *orphans = NULL;

  pthread_mutex_lock (&handover_lock);
  if (ends || self->orphans->len > 0)
    {
      orphans = g_steal_pointer (&self->orphans);
      self->orphans = ends ? NULL : g_ptr_array_new ();
    }
  pthread_mutex_unlock (&handover_lock);
  if (orphans == NULL)
    return;
  for (guint i = 0; i < orphans->len; i++)
    unit_free (g_ptr_array_index (orphans, i));
  g_ptr_array_unref (orphans);
}

static void
thread_free (gpointer data)
{
  EbbShardThread *self = data;

  ebb_shard_free_orphans (self, TRUE);
  g_clear_pointer (&self->last, ebb_shard_order_unref);
  g_ptr_array_unref (self->taken);
  g_ptr_array_unref (self->unsharded);
  g_ptr_array_unref (self->forwarded);
  g_clear_pointer (&self->reducing, ebb_shard_unit_unref);
  g_atomic_rc_box_release (self);
}
