/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Decides when units are unsharded, resharded and reduced in the forwards and the backward pass of one thread. While
 * nodes of live graphs hold a unit's parameters, another backward through the unit is still to come, however the
 * forward was wrapped: so it is not resharded after backward, and its gradients are not reduced.
 *
 * The modules' forward counters, which FairScale reads for that, are not enough. They count the forwards of checkpoints
 * alone, so they are zero for a unit without one; they are zero again when a recompute has ended, before the nodes of
 * that forward have had their backward; and they belong to modules, while several modules may use a parameter. While a
 * counter is above zero, the nodes of the forward that it counts hold the parameters, so nothing is lost by not reading
 * it. */
#include "wrap/shard/unit-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/thread-private.h"
#include "wrap/gradient-sync.h"

/* A prefetch begins only while fewer units than this are unsharded or unsharding, the root not counted. */
#define MAX_PREFETCHED 2

/* -- order --------------------------------------------------------------------------------------------------------- */

/* Roots with live graphs at the same time are parts of one model that is not sharded itself. */
static void
note_root (EbbShardThread *thread,
           EbbShardUnit *self)
{
  EbbShardUnit *other = thread->last != NULL ? thread->last->root : NULL;

  if (other != NULL && other != self && !self->has_siblings && ebb_shard_unit_is_used (other))
    self->has_siblings = other->has_siblings = TRUE;
  g_clear_pointer (&thread->last, ebb_shard_order_unref);
  thread->last = g_atomic_rc_box_acquire (self->own_order);
}

/* The next forward is expected to have the order of the last one. */
static void
note_position (EbbShardOrder *order,
               EbbShardUnit *self)
{
  if (self->order != order)
    ebb_shard_order_remove (self);
  if (self->order == NULL)
    self->order = g_atomic_rc_box_acquire (order);
  if (self->n_entries == 0)
    return;
  if (order->n < order->units->len)
    order->units->pdata[order->n] = self;
  else
    g_ptr_array_add (order->units, self);
  self->position = order->n++;
}

static guint
count_unsharded (EbbShardThread *thread,
                 EbbShardUnit *root)
{
  return thread->unsharded->len - (root != NULL && root->state != EBB_SHARD_SHARDED ? 1 : 0);
}

static gboolean
may_prefetch (EbbShardThread *thread,
              EbbShardUnit *self)
{
  return self->prefetch && self->order != NULL && ebb_modes.recomputing == 0
         && count_unsharded (thread, self->order->root) < MAX_PREFETCHED;
}

static gboolean
prefetch (EbbShardUnit *self,
          GError **error)
{
  if (self->state != EBB_SHARD_SHARDED || self->is_cached || self->n_entries == 0)
    return TRUE;
  self->n_prefetches++;
  return ebb_shard_unit_begin_unshard (self, error);
}

static gboolean
prefetch_next (EbbShardThread *thread,
               EbbShardUnit *self,
               GError **error)
{
  GPtrArray *units;

  if (!may_prefetch (thread, self) || self->n_entries == 0)
    return TRUE;
  units = self->order->units;
  return self->position + 1 >= units->len || prefetch (g_ptr_array_index (units, self->position + 1), error);
}

/* Prefetches the unit that was forwarded before, if its backward is still to come; the root's backward begins first. */
static gboolean
prefetch_previous (EbbShardThread *thread,
                   EbbShardUnit *self,
                   GError **error)
{
  guint position;

  if (!may_prefetch (thread, self))
    return TRUE;
  position = self == self->order->root ? self->order->units->len : MIN (self->position, self->order->units->len);
  while (position-- > 0)
    {
      EbbShardUnit *unit = g_ptr_array_index (self->order->units, position);

      if (unit != self->order->root)
        return !ebb_shard_unit_is_used (unit) || prefetch (unit, error);
    }
  return TRUE;
}

/* -- forward ------------------------------------------------------------------------------------------------------- */

static gboolean
unshard_borrowed (EbbShardUnit *self,
                  GError **error)
{
  for (guint i = 0; i < self->borrowed->len; i++)
    if (!ebb_shard_unit_unshard (g_ptr_array_index (self->borrowed, i), error))
      return FALSE;
  return TRUE;
}

static void
begin_forward (EbbShardThread *thread,
               EbbShardUnit *self)
{
  EbbParameterOwner *outermost = ebb_parameter_owner_get_outermost (); /* only units enter */
  EbbShardUnit *root = outermost != NULL ? (EbbShardUnit *) outermost : self;

  self->is_root = root == self;
  if (self->is_root)
    {
      note_root (thread, self);
      self->own_order->n = 0;
    }
  note_position (root->own_order, self);
  if (!ebb_modes.no_grad && !self->forwarded)
    {
      self->forwarded = TRUE;
      g_ptr_array_remove (thread->forwarded, self);
      g_ptr_array_add (thread->forwarded, self);
    }
}

gboolean
ebb_shard_unit_pre_forward (EbbShardUnit *self,
                            GError **error)
{
  EbbShardThread *thread = ebb_shard_take_thread (self);
  const gboolean again = ebb_modes.recomputing > 0;

  ebb_shard_free_orphans (thread, FALSE);
  if (self->n_summoned > 0 && (self->lowers || !ebb_modes.no_grad))
    return ebb_fail (error, EBB_ERROR_STATE,
                     "%s has full parameters summoned: call ebb_release_full_params () before training%s", self->name,
                     self->lowers ? "" : ", or switch gradients off for the forward");
  if (!again)
    begin_forward (thread, self);
  if (!(ebb_modes.in_backward > 0 ? ebb_shard_unit_pre_backward (self, error) : ebb_shard_unit_unshard (self, error))
      || !unshard_borrowed (self, error) || (!again && !prefetch_next (thread, self, error)))
    return FALSE;
  self->n_forwards++;
  ebb_parameter_owner_enter (&self->base);
  return TRUE;
}

static gboolean
stays (EbbShardUnit *self)
{
  if (self->n_forwards > 0 || self->n_summoned > 0 || self->reshard == EBB_RESHARD_NEVER)
    return TRUE;
  return self->reshard == EBB_RESHARD_AUTO && self->is_root && !self->has_siblings && !ebb_modes.no_grad
         && ebb_shard_unit_is_used (self);
}

gboolean
ebb_shard_unit_post_forward (EbbShardUnit *self,
                             GError **error)
{
  gboolean done = TRUE;

  self->n_forwards--;
  if (ebb_modes.recomputing == 0)
    {
      if (self->is_root && self->n_forwards == 0)
        g_ptr_array_set_size (self->own_order->units, (int) self->own_order->n);
      if (!stays (self))
        done = ebb_shard_unit_reshard (self, error);
      for (guint i = 0; done && i < self->borrowed->len; i++)
        if (!stays (g_ptr_array_index (self->borrowed, i)))
          done = ebb_shard_unit_reshard (g_ptr_array_index (self->borrowed, i), error);
    }
  ebb_parameter_owner_leave ();
  return done;
}

/* -- backward ------------------------------------------------------------------------------------------------------ */

static gboolean
finish_reduction (EbbShardThread *thread,
                  GError **error)
{
  EbbShardUnit *unit = g_steal_pointer (&thread->reducing);
  gboolean ok = TRUE;

  if (unit == NULL)
    return TRUE;
  ok = ebb_shard_unit_finish_reduce (unit, error);
  ebb_shard_unit_unref (unit);
  return ok;
}

/* At most one reduction is in flight while the next gradients are computed: each holds the gradients of a full unit. */
static gboolean
reduce (EbbShardThread *thread,
        EbbShardUnit *self,
        GError **error)
{
  self->last_pass = thread->pass;
  if (!finish_reduction (thread, error) || !ebb_shard_unit_begin_reduce (self, error))
    return FALSE;
  if (self->reduction != NULL)
    thread->reducing = ebb_shard_unit_ref (self);
  return TRUE;
}

static gboolean
is_busy (EbbShardUnit *self)
{
  return self->n_forwards > 0 || self->n_summoned > 0 || ebb_shard_unit_is_used (self);
}

/* Every rank reduces the units in the reverse order of their forwards, whatever order its graph has: a unit that this
 * rank's graph left out counts as zero. While a graph still holds a unit, those before it wait, until the pass ends:
 * the backward of that unit is another pass then. */
static gboolean
reduce_in_order (EbbShardThread *thread,
                 gboolean at_end,
                 GError **error)
{
  for (guint i = thread->forwarded->len; i-- > 0;)
    {
      EbbShardUnit *unit = g_ptr_array_index (thread->forwarded, i);

      if (is_busy (unit))
        {
          if (!at_end)
            return TRUE;
          continue;
        }
      if (!reduce (thread, unit, error))
        return FALSE;
    }
  return TRUE;
}

/* Passes without sync don't change the shards, so a unit that isn't resharded after forward isn't gathered again by the
 * next of them. */
static gboolean
reshard_after_backward (EbbShardUnit *self,
                        GError **error)
{
  const gboolean caches =
      !ebb_is_gradient_sync_enabled ()
      && (self->reshard == EBB_RESHARD_NEVER
          || (self->reshard == EBB_RESHARD_AUTO && self->is_root && !self->has_siblings));

  return caches ? ebb_shard_unit_reshard_cached (self, error) : ebb_shard_unit_reshard (self, error);
}

static gboolean
reshard_unused (EbbShardThread *thread,
                GError **error)
{
  gboolean ok = TRUE;

  for (guint i = thread->unsharded->len; i-- > 0;)
    {
      EbbShardUnit *unit = g_ptr_array_index (thread->unsharded, i);

      if (!is_busy (unit) && !reshard_after_backward (unit, ok ? error : NULL))
        ok = FALSE;
    }
  return ok;
}

/* A pass that failed leaves no incomplete sums. */
static void
drop_gradients (EbbShardThread *thread)
{
  if (thread->reducing != NULL)
    ebb_shard_unit_drop_reduction (thread->reducing);
  g_clear_pointer (&thread->reducing, ebb_shard_unit_unref);
  for (guint i = 0; i < thread->forwarded->len; i++)
    {
      EbbShardUnit *unit = g_ptr_array_index (thread->forwarded, i);

      for (guint j = 0; j < unit->n_entries; j++)
        g_clear_pointer (ebb_shard_full_grad (unit, &unit->entries[j]), ebb_tensor_unref);
    }
}

/* The next pass of a replicated module lists its buckets again. Until then, passes of other modules don't reduce them.
 */
static void
forget_buckets (EbbShardThread *thread)
{
  for (guint i = thread->forwarded->len; i-- > 0;)
    if (((EbbShardUnit *) g_ptr_array_index (thread->forwarded, i))->is_in_place)
      g_ptr_array_remove_index (thread->forwarded, i);
}

static gboolean
pass_ended (gpointer data,
            GError **error)
{
  EbbShardThread *thread = ebb_shard_get_thread ();
  gboolean ok = error != NULL;

  thread->at_end = FALSE;
  if (ok && thread->has_gradients && ebb_is_gradient_sync_enabled ())
    ok = reduce_in_order (thread, TRUE, error);
  ok = ok && finish_reduction (thread, error);
  if (!ok)
    drop_gradients (thread);
  forget_buckets (thread);
  thread->has_gradients = FALSE;
  ok = reshard_unused (thread, ok ? error : NULL) && ok;
  thread->pass = ebb_shard_make_pass ();
  return ok;
}

gboolean
ebb_shard_unit_pre_backward (EbbShardUnit *self,
                             GError **error)
{
  EbbShardThread *thread = ebb_shard_take_thread (self);

  if (!thread->at_end && ebb_modes.in_backward > 0)
    {
      thread->at_end = TRUE;
      ebb_backward_call_at_end (pass_ended, NULL);
    }
  return ebb_shard_unit_unshard (self, error) && prefetch_previous (thread, self, error);
}

gboolean
ebb_shard_begins_pass (guint64 *pass)
{
  const guint64 before = *pass;

  *pass = ebb_shard_get_thread ()->pass;
  return *pass != before;
}

void
ebb_shard_reduce_in_pass (GPtrArray *units)
{
  EbbShardThread *thread = ebb_shard_get_thread ();

  for (guint i = units->len; i-- > 0;)
    {
      EbbShardUnit *unit = g_ptr_array_index (units, i);

      ebb_shard_take_thread (unit);
      g_ptr_array_remove (thread->forwarded, unit);
      g_ptr_array_add (thread->forwarded, unit);
    }
}

/* Resharding stashes the gradients that can't be reduced yet. */
gboolean
ebb_shard_unit_post_backward (EbbShardUnit *self,
                              GError **error)
{
  EbbShardThread *thread = ebb_shard_take_thread (self);

  if (is_busy (self) || self->state != EBB_SHARD_UNSHARDED)
    return TRUE;
  thread->has_gradients |= ebb_shard_unit_has_gradients (self);
  return reshard_after_backward (self, error)
         && (!thread->has_gradients || !ebb_is_gradient_sync_enabled () || reduce_in_order (thread, FALSE, error));
}

/* Reduces and reshards, even where a graph still uses the unit. */
static gboolean
finalize (EbbParameterOwner *owner,
          EbbTensor *parameter,
          GError **error)
{
  EbbShardUnit *self = (EbbShardUnit *) owner;

  if (G_LIKELY (self->state == EBB_SHARD_SHARDED && !self->is_cached && self->reduction == NULL
                && !ebb_shard_unit_has_gradients (self)))
    return TRUE;
  if (self->n_summoned > 0)
    return ebb_fail (error, EBB_ERROR_STATE,
                     "%s has full parameters summoned: call ebb_release_full_params () before the optimizer or a "
                     "forward",
                     self->name);
  if (!ebb_shard_unit_finish_reduce (self, error)
      || (ebb_shard_unit_has_gradients (self)
          && (!ebb_shard_unit_begin_reduce (self, error) || !ebb_shard_unit_finish_reduce (self, error))))
    return FALSE;
  return ebb_shard_unit_reshard (self, error);
}

/* -- summoned parameters ------------------------------------------------------------------------------------------- */

gboolean
ebb_shard_unit_summon (EbbShardUnit *self,
                       GError **error)
{
  if (self->n_forwards > 0)
    return ebb_fail (error, EBB_ERROR_STATE, "the full parameters of %s can't be summoned during its forward",
                     self->name);
  if (self->n_summoned == 0 && self->n_entries > 0
      && (!finalize (&self->base, NULL, error) || !ebb_shard_unit_begin_gather (self, FALSE, error)
          || !ebb_shard_unit_finish_gather (self, error)))
    return FALSE;
  self->n_summoned++;
  return TRUE;
}

/* Copies this rank's elements of the full parameters to its shards. */
static gboolean
write_back (EbbShardUnit *self,
            GError **error)
{
  const guint rank = ebb_process_group_get_rank (self->group);

  for (guint i = 0; i < self->n_entries; i++)
    {
      EbbTensor *tensor = self->entries[i].tensor;
      gint64 begin, end;

      ebb_shard_layout_get_range (self->layout, i, rank, &begin, &end);
      if (tensor->storage != self->entries[i].shard->storage
          && !ebb_shard_copy_elements (tensor, begin, end - begin, self->entries[i].shard, 0, error))
        return FALSE;
    }
  return TRUE;
}

gboolean
ebb_shard_unit_release (EbbShardUnit *self,
                        gboolean writeback,
                        GError **error)
{
  EbbModes modes;
  gboolean ok;

  if (self->n_summoned == 0)
    return ebb_fail (error, EBB_ERROR_STATE, "%s was not summoned: call ebb_summon_full_params () first", self->name);
  if (--self->n_summoned > 0 || self->n_entries == 0)
    return TRUE;
  modes = ebb_modes_enter_internal ();
  ok = !writeback || write_back (self, error);
  ebb_modes_leave (&modes);
  for (guint i = 0; writeback && i < self->layout->n_buffers; i++)
    if (self->buffers[i].full->storage != self->buffers[i].shard->storage)
      ebb_storage_change (self->buffers[i].shard->storage);
  return ebb_shard_unit_reshard (self, ok ? error : NULL) && ok;
}

/* -- the owner of the parameters ----------------------------------------------------------------------------------- */

EbbShardUnit *
ebb_shard_unit_of (EbbTensor *parameter,
                   guint *entry)
{
  EbbShardUnit *self = (EbbShardUnit *) parameter->owner;

  if (self == NULL || self->base.funcs != &ebb_shard_unit_funcs)
    return NULL;
  for (guint i = 0; i < self->n_entries; i++)
    if (self->entries[i].tensor == parameter)
      {
        if (entry != NULL)
          *entry = i;
        return self;
      }
  return NULL;
}

static gboolean
prepare (EbbParameterOwner *owner,
         EbbTensor *parameter,
         GError **error)
{
  EbbShardUnit *self = (EbbShardUnit *) owner;

  return ebb_modes.in_backward > 0 ? ebb_shard_unit_pre_backward (self, error) : ebb_shard_unit_unshard (self, error);
}

static gboolean
unused (EbbParameterOwner *owner,
        EbbTensor *parameter,
        GError **error)
{
  EbbShardUnit *self = (EbbShardUnit *) owner;

  return ebb_shard_unit_is_used (self) || ebb_shard_unit_post_backward (self, error);
}

static void
drop_grads (EbbParameterOwner *owner,
            EbbTensor *parameter)
{
  guint i = 0;
  EbbShardUnit *self = ebb_shard_unit_of (parameter, &i);

  g_clear_pointer (&self->entries[i].stashed_grad, ebb_tensor_unref);
}

static gpointer
get_shard_group (EbbParameterOwner *owner)
{
  EbbShardUnit *self = (EbbShardUnit *) owner;

  return ebb_process_group_get_size (self->group) > 1 ? self->group : NULL;
}

static gboolean
reduce_over_shards (EbbParameterOwner *owner,
                    EbbReduceKind op,
                    EbbTensor *values,
                    GError **error)
{
  return ebb_process_group_reduce_norms (((EbbShardUnit *) owner)->group, op, values, "a norm over shards", error);
}

static gboolean
is_full (EbbParameterOwner *owner,
         EbbTensor *parameter)
{
  return ((EbbShardUnit *) owner)->n_summoned > 0;
}

static gboolean
is_available (EbbParameterOwner *owner)
{
  return ((EbbShardUnit *) owner)->state == EBB_SHARD_UNSHARDED;
}

static gint64
get_n_elements (EbbParameterOwner *owner,
                EbbTensor *parameter)
{
  guint i = 0;
  EbbShardUnit *self = ebb_shard_unit_of (parameter, &i);

  return self->layout->parameters[i].n_elements;
}

static EbbDevice *
get_device (EbbParameterOwner *owner)
{
  return ((EbbShardUnit *) owner)->device;
}

/* A full parameter begins at its first element. */
static gint64
get_first_element (EbbParameterOwner *owner,
                   EbbTensor *parameter)
{
  guint i = 0;
  EbbShardUnit *self = ebb_shard_unit_of (parameter, &i);
  gint64 begin, end;

  ebb_shard_layout_get_range (self->layout, i, ebb_process_group_get_rank (self->group), &begin, &end);
  return parameter->n_elements == self->layout->parameters[i].n_elements ? 0 : begin;
}

/* A checkpoint will recompute a part of the unit's forward. */
static gboolean
prepare_recompute (EbbParameterOwner *owner,
                   gboolean is_needed,
                   GError **error)
{
  EbbShardUnit *self = (EbbShardUnit *) owner;

  return (!is_needed && !ebb_shard_unit_is_used (self))
         || (ebb_shard_unit_pre_backward (self, error) && unshard_borrowed (self, error));
}

static void
owner_ref (EbbParameterOwner *owner)
{
  ebb_shard_unit_ref ((EbbShardUnit *) owner);
}

static void
owner_unref (EbbParameterOwner *owner)
{
  ebb_shard_unit_unref ((EbbShardUnit *) owner);
}

const EbbParameterOwnerFuncs ebb_shard_unit_funcs = {
  .prepare = prepare,
  .unused = unused,
  .finalize = finalize,
  .drop_grads = drop_grads,
  .get_shard_group = get_shard_group,
  .reduce_over_shards = reduce_over_shards,
  .is_full = is_full,
  .is_available = is_available,
  .get_n_elements = get_n_elements,
  .get_first_element = get_first_element,
  .get_device = get_device,
  .prepare_recompute = prepare_recompute,
  .ref = owner_ref,
  .unref = owner_unref,
};
