/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/unit-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/thread-private.h"
#include "wrap/gradient-sync.h"

#include <pthread.h>

/* Decides when units are unsharded, resharded and reduced in the forwards and the backward pass of one thread. While
 * nodes of live graphs hold a unit's parameters, another backward through the unit is still to come, however the
 * forward was wrapped: so it is not resharded after backward, and its gradients are not reduced.
 *
 * The modules' forward counters, which FairScale reads for that, are not enough. They count the forwards of checkpoints
 * alone, so they are zero for a unit without one; they are zero again when a recompute has ended, before the nodes of
 * that forward have had their backward; and they belong to modules, while several modules may use a parameter. While a
 * counter is above zero, the nodes of the forward that it counts hold the parameters, so nothing is lost by not reading
 * it. */

/* A prefetch begins only while fewer units than this are unsharded or unsharding, the root not counted. */
#define MAX_PREFETCHED 2

typedef struct _EbbShardThread
{
  GPtrArray *unsharded;   /* the units that are unsharded or unsharding */
  GPtrArray *forwarded;   /* the units whose gradients are to be reduced */
  EbbShardUnit *reducing; /* the unit whose reduction is in flight; a reference, or NULL */
  EbbShardOrder *last;    /* of the root that was last forwarded; NULL: none */
  gboolean at_end;        /* pass_ended () will be called */
  guint64 pass;           /* the number of this backward pass, or of the next one, which no thread has besides */
  gboolean has_gradients; /* this pass gave some */
  GPtrArray *orphans;     /* units whose last reference another thread has dropped; NULL: the thread has ended */
} Thread;

static void order_unref (EbbShardOrder *order);
static void thread_free (gpointer data);
static void free_orphans (Thread *self,
                          gboolean ends);

static GPrivate threads = G_PRIVATE_INIT (thread_free);

static guint64
make_pass (void)
{
  static guint64 last;

  return __atomic_add_fetch (&last, 1, __ATOMIC_RELAXED);
}

static Thread *
get_thread (void)
{
  Thread *self = g_private_get (&threads);

  if (self != NULL)
    return self;
  self = g_atomic_rc_box_new0 (Thread);
  self->orphans = g_ptr_array_new ();
  self->unsharded = g_ptr_array_new ();
  self->forwarded = g_ptr_array_new ();
  self->pass = make_pass ();
  g_private_set (&threads, self);
  return self;
}

/* The thread that forwards or gathers a unit has it in its lists, so it is the one to free it. */
static Thread *
take_thread (EbbShardUnit *self)
{
  Thread *thread = get_thread ();

  if (G_LIKELY (self->owner == thread))
    return thread;
  g_clear_pointer (&self->owner, g_atomic_rc_box_release);
  self->owner = g_atomic_rc_box_acquire (thread);
  return thread;
}

void
ebb_shard_note_unsharded (EbbShardUnit *self,
                          gboolean unsharded)
{
  GPtrArray *units = take_thread (self)->unsharded;

  if (unsharded)
    g_ptr_array_add (units, self);
  else
    g_ptr_array_remove (units, self);
}

/* -- order --------------------------------------------------------------------------------------------------------- */

EbbShardOrder *
ebb_shard_order_new (EbbShardUnit *root)
{
  EbbShardOrder *order = g_atomic_rc_box_new0 (EbbShardOrder);

  order->root = root;
  order->units = g_ptr_array_new ();
  return order;
}

static void
remove_from_order (EbbShardUnit *self)
{
  if (self->order == NULL)
    return;
  while (g_ptr_array_remove (self->order->units, self))
    ;
  g_clear_pointer (&self->order, order_unref);
}

/* Roots with live graphs at the same time are parts of one model that is not sharded itself. */
static void
note_root (Thread *thread,
           EbbShardUnit *self)
{
  EbbShardUnit *other = thread->last != NULL ? thread->last->root : NULL;

  if (other != NULL && other != self && !self->has_siblings && ebb_shard_unit_is_used (other))
    self->has_siblings = other->has_siblings = TRUE;
  g_clear_pointer (&thread->last, order_unref);
  thread->last = g_atomic_rc_box_acquire (self->own_order);
}

/* The next forward is expected to have the order of the last one. */
static void
note_position (EbbShardOrder *order,
               EbbShardUnit *self)
{
  if (self->order != order)
    remove_from_order (self);
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
count_unsharded (Thread *thread,
                 EbbShardUnit *root)
{
  return thread->unsharded->len - (root != NULL && root->state != EBB_SHARD_SHARDED ? 1 : 0);
}

static gboolean
may_prefetch (Thread *thread,
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
prefetch_next (Thread *thread,
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
prefetch_previous (Thread *thread,
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
begin_forward (Thread *thread,
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
  Thread *thread = take_thread (self);
  const gboolean again = ebb_modes.recomputing > 0;

  free_orphans (thread, FALSE);
  if (self->n_summoned > 0 && (self->lowers || !ebb_modes.no_grad))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                   "%s has full parameters summoned: call ebb_release_full_params () before training%s", self->name,
                   self->lowers ? "" : ", or switch gradients off for the forward");
      return FALSE;
    }
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

gboolean
ebb_shard_unit_pre_recompute (EbbShardUnit *self,
                              gboolean is_needed,
                              GError **error)
{
  return (!is_needed && !ebb_shard_unit_is_used (self))
         || (ebb_shard_unit_pre_backward (self, error) && unshard_borrowed (self, error));
}

/* -- backward ------------------------------------------------------------------------------------------------------ */

static gboolean
finish_reduction (Thread *thread,
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
reduce (Thread *thread,
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
reduce_in_order (Thread *thread,
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
      g_ptr_array_remove_index (thread->forwarded, i);
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
reshard_unused (Thread *thread,
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
drop_gradients (Thread *thread)
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

static gboolean
pass_ended (gpointer data,
            GError **error)
{
  Thread *thread = get_thread ();
  gboolean ok = error != NULL;

  thread->at_end = FALSE;
  if (ok && thread->has_gradients && ebb_is_gradient_sync_enabled ())
    ok = reduce_in_order (thread, TRUE, error);
  ok = ok && finish_reduction (thread, error);
  if (!ok)
    drop_gradients (thread);
  thread->has_gradients = FALSE;
  ok = reshard_unused (thread, ok ? error : NULL) && ok;
  thread->pass = make_pass ();
  return ok;
}

gboolean
ebb_shard_unit_pre_backward (EbbShardUnit *self,
                             GError **error)
{
  Thread *thread = get_thread ();

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

  *pass = get_thread ()->pass;
  return *pass != before;
}

void
ebb_shard_reduce_in_pass (GPtrArray *units)
{
  Thread *thread = get_thread ();

  for (guint i = units->len; i-- > 0;)
    {
      EbbShardUnit *unit = g_ptr_array_index (units, i);

      take_thread (unit);
      g_ptr_array_remove (thread->forwarded, unit);
      g_ptr_array_add (thread->forwarded, unit);
    }
}

/* Resharding stashes the gradients that can't be reduced yet. */
gboolean
ebb_shard_unit_post_backward (EbbShardUnit *self,
                              GError **error)
{
  Thread *thread = get_thread ();

  if (is_busy (self) || self->state != EBB_SHARD_UNSHARDED)
    return TRUE;
  thread->has_gradients |= ebb_shard_unit_has_gradients (self);
  return reshard_after_backward (self, error)
         && (!thread->has_gradients || !ebb_is_gradient_sync_enabled () || reduce_in_order (thread, FALSE, error));
}

gboolean
ebb_shard_unit_finalize (EbbShardUnit *self,
                         GError **error)
{
  if (G_LIKELY (self->state == EBB_SHARD_SHARDED && !self->is_cached && self->reduction == NULL
                && !ebb_shard_unit_has_gradients (self)))
    return TRUE;
  if (self->n_summoned > 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                   "%s has full parameters summoned: call ebb_release_full_params () before the optimizer or a forward",
                   self->name);
      return FALSE;
    }
  if (!ebb_shard_unit_finish_reduce (self, error)
      || (ebb_shard_unit_has_gradients (self)
          && (!ebb_shard_unit_begin_reduce (self, error) || !ebb_shard_unit_finish_reduce (self, error))))
    return FALSE;
  return ebb_shard_unit_reshard (self, error);
}

/* -- freeing units and threads ------------------------------------------------------------------------------------- */

void
ebb_shard_forget_unit (EbbShardUnit *self)
{
  Thread *thread = g_private_get (&threads);

  remove_from_order (self);
  self->own_order->root = NULL;
  g_clear_pointer (&self->own_order, order_unref);
  if (thread != NULL)
    g_ptr_array_remove (thread->forwarded, self);
  g_clear_pointer (&self->owner, g_atomic_rc_box_release);
}

static pthread_mutex_t orphans_lock = PTHREAD_MUTEX_INITIALIZER;

static void
free_orphans (Thread *self,
              gboolean ends)
{
  GPtrArray *orphans = NULL;

  pthread_mutex_lock (&orphans_lock);
  if (ends || self->orphans->len > 0)
    {
      orphans = g_steal_pointer (&self->orphans);
      self->orphans = ends ? NULL : g_ptr_array_new ();
    }
  pthread_mutex_unlock (&orphans_lock);
  if (orphans == NULL)
    return;
  for (guint i = 0; i < orphans->len; i++)
    ebb_shard_unit_free (g_ptr_array_index (orphans, i));
  g_ptr_array_unref (orphans);
}

gboolean
ebb_shard_leave_to_owner (EbbShardUnit *self)
{
  gboolean left = self->is_orphan;

  if (left || self->owner == NULL || self->owner == g_private_get (&threads))
    return left;
  pthread_mutex_lock (&orphans_lock);
  left = self->owner->orphans != NULL;
  self->is_orphan = left;
  if (left)
    g_ptr_array_add (self->owner->orphans, self);
  pthread_mutex_unlock (&orphans_lock);
  return left;
}

static void
thread_free (gpointer data)
{
  Thread *self = data;

  free_orphans (self, TRUE);
  g_clear_pointer (&self->last, order_unref);
  g_ptr_array_unref (self->unsharded);
  g_ptr_array_unref (self->forwarded);
  g_clear_pointer (&self->reducing, ebb_shard_unit_unref);
  g_atomic_rc_box_release (self);
}

static void
order_clear (gpointer data)
{
  g_ptr_array_unref (((EbbShardOrder *) data)->units);
}

static void
order_unref (EbbShardOrder *order)
{
  g_atomic_rc_box_release_full (order, order_clear);
}
