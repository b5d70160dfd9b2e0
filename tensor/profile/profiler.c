/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/profile/profiler-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"

#include <stddef.h>
#include <string.h>
#include <time.h>

/* Recording. Events lie in the order in which they began, each with its parent, so what belongs to one is found by
 * going up; what is asked of them is counted when it is asked. */

G_DEFINE_FINAL_TYPE (EbbProfiler, ebb_profiler, G_TYPE_OBJECT)

gint64
ebb_profiler_get_time (void)
{
  struct timespec now;

  clock_gettime (CLOCK_MONOTONIC, &now);
  return (gint64) now.tv_sec * 1000000000 + now.tv_nsec;
}

/* -- events -------------------------------------------------------------------------------------------------------- */

static int
get_innermost (EbbProfiler *self)
{
  return self->open->len > 0 ? g_array_index (self->open, int, self->open->len - 1) : -1;
}

static int
push_event (EbbProfiler *self,
            EbbEventKind kind,
            const char *name)
{
  EbbEvent event = { .name = name, .path = ebb_thread.module_path, .parent = get_innermost (self), .work = -1 };
  int index = (int) self->events->len;

  event.kind = (guint8) kind;
  event.phase = (guint8) ebb_get_phase ();
  g_array_append_val (self->events, event);
  g_array_append_val (self->open, index);
  /* Last: what the recording costs belongs to whatever is outside. */
  ebb_profiler_get_event (self, index)->start = ebb_profiler_get_time () - self->origin;
  return index;
}

static void
pop_event (EbbProfiler *self,
           gint64 now)
{
  EbbEvent *event = ebb_profiler_get_event (self, get_innermost (self));
  EbbEvent *parent = event->parent >= 0 ? ebb_profiler_get_event (self, event->parent) : NULL;

  event->end = now;
  g_array_set_size (self->open, self->open->len - 1);
  if (event->kind == EBB_EVENT_OP && !event->has_flop && event->flop == 0)
    event->flop = event->n_elements;
  if (parent == NULL || parent->kind != EBB_EVENT_OP)
    return;
  if (event->kind == EBB_EVENT_KERNEL)
    parent->bytes += event->bytes;
  else
    parent->inside += event->end - event->start;
}

static guint64
make_mark (EbbProfiler *self,
           int index)
{
  return (guint64) self->generation << 32 | (guint64) (index + 1);
}

static EbbProfiler *
get_profiler (EbbThreadObserver *observer)
{
  return (EbbProfiler *) (void *) ((char *) observer - offsetof (EbbProfiler, observer));
}

static guint64
open_event (EbbThreadObserver *observer,
            EbbEventKind kind,
            const char *name)
{
  EbbProfiler *self = get_profiler (observer);

  if (kind == EBB_EVENT_RANGE && strcmp (name, EBB_PROFILE_STEP) == 0)
    self->n_steps++;
  return make_mark (self, push_event (self, kind, name));
}

static guint64
open_op (EbbThreadObserver *observer,
         const char *name,
         guint64 flop)
{
  EbbProfiler *self = get_profiler (observer);
  int index = push_event (self, EBB_EVENT_OP, name);

  ebb_profiler_get_event (self, index)->flop = flop;
  ebb_profiler_get_event (self, index)->has_flop = TRUE;
  return make_mark (self, index);
}

static void
close_event (EbbThreadObserver *observer,
             guint64 mark)
{
  EbbProfiler *self = get_profiler (observer);
  int index = (int) (mark & 0xffffffffu) - 1;
  gint64 now;

  if (mark >> 32 != self->generation)
    return;
  now = ebb_profiler_get_time () - self->origin;
  while (get_innermost (self) >= index)
    pop_event (self, now);
}

/* -- kernels ------------------------------------------------------------------------------------------------------- */

static int
find_work (EbbProfiler *self,
           EbbDevice *device,
           const EbbLaunch *launch)
{
  EbbWorkKey key;
  EbbOpWork *work;
  gpointer index;

  if (!ebb_work_key_init (&key, device, launch))
    return -1;
  if (g_hash_table_lookup_extended (self->by_key, &key, NULL, &index))
    return GPOINTER_TO_INT (index);
  work = ebb_work_new (&key, launch);
  g_hash_table_insert (self->by_key, work, GUINT_TO_POINTER (self->works->len));
  g_ptr_array_add (self->works, work);
  return (int) self->works->len - 1;
}

static void
note_kernel (EbbProfiler *self,
             int index,
             EbbDevice *device,
             const EbbLaunch *launch)
{
  EbbEvent *event = ebb_profiler_get_event (self, index);
  EbbEvent *op = ebb_profiler_get_event (self, event->parent);

  event->bytes = ebb_launch_count_bytes (launch);
  event->work = find_work (self, device, launch);
  if (event->work >= 0)
    event->flop = ebb_profiler_get_work (self, event->work)->flop;
  else
    event->flop = ebb_launch_count_elements (launch);
  if (op->has_flop)
    return;
  if (event->work >= 0)
    op->flop += event->flop;
  else
    op->n_elements += event->flop;
}

static gboolean
run_kernel (EbbThreadObserver *observer,
            EbbDevice *device,
            EbbLaunch *launch,
            GError **error)
{
  EbbProfiler *self = get_profiler (observer);
  const char *name = ebb_kernel_get_name (launch->kernel);
  int parent = get_innermost (self), own = -1, index;
  EbbEvent *event;
  gboolean ok;

  /* Outside of an op, as the sum of two gradients or an update of parameters, it is one itself. */
  if (parent < 0 || ebb_profiler_get_event (self, parent)->kind != EBB_EVENT_OP)
    own = push_event (self, EBB_EVENT_OP, name);
  index = push_event (self, EBB_EVENT_KERNEL, name);
  note_kernel (self, index, device, launch);
  ebb_profiler_get_event (self, index)->start = ebb_profiler_get_time () - self->origin;
  ok = ebb_device_launch (device, launch, error);
  /* A device that runs behind our back is waited for: then its time is this kernel's. */
  if (ok && device->backend->synchronize != NULL)
    ok = device->backend->synchronize (device->index, error);
  pop_event (self, ebb_profiler_get_time () - self->origin);
  event = ebb_profiler_get_event (self, index);
  if (event->work >= 0)
    {
      EbbOpWork *work = ebb_profiler_get_work (self, event->work);

      work->count++;
      work->time += event->end - event->start;
    }
  if (own >= 0)
    pop_event (self, ebb_profiler_get_time () - self->origin);
  return ok;
}

/* -- the object ---------------------------------------------------------------------------------------------------- */

static void
stop_at_thread_end (gpointer data)
{
  EbbProfiler *self = data;
  gint64 now = ebb_profiler_get_time ();

  while (self->open->len > 0)
    pop_event (self, now - self->origin);
  self->total += now - self->started;
  ebb_thread.observer = NULL;
  ebb_thread_unwatch ();
  self->thread = NULL;
  g_object_unref (self);
}

/* The profiler that runs, with a reference: the end of its thread drops it. */
static GPrivate running = G_PRIVATE_INIT (stop_at_thread_end);

static void
take_new_generation (EbbProfiler *self)
{
  static guint last;

  self->generation = __atomic_add_fetch (&last, 1, __ATOMIC_RELAXED);
}

static void
forget (EbbProfiler *self)
{
  g_array_set_size (self->events, 0);
  g_array_set_size (self->open, 0);
  g_hash_table_remove_all (self->by_key);
  g_ptr_array_set_size (self->works, 0);
  self->n_steps = 0;
  self->total = 0;
  self->origin = 0;
}

static void
ebb_profiler_finalize (GObject *object)
{
  EbbProfiler *self = EBB_PROFILER (object);

  g_array_unref (self->events);
  g_array_unref (self->open);
  g_hash_table_unref (self->by_key);
  g_ptr_array_unref (self->works);
  G_OBJECT_CLASS (ebb_profiler_parent_class)->finalize (object);
}

static void
ebb_profiler_class_init (EbbProfilerClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = ebb_profiler_finalize;
}

static void
ebb_profiler_init (EbbProfiler *self)
{
  self->observer = (EbbThreadObserver){ open_event, open_op, close_event, run_kernel };
  self->events = g_array_new (FALSE, FALSE, sizeof (EbbEvent));
  self->open = g_array_new (FALSE, FALSE, sizeof (int));
  self->works = g_ptr_array_new_with_free_func (g_free);
  self->by_key = g_hash_table_new (ebb_work_hash, ebb_work_equal);
}

/**
 * ebb_profiler_new:
 *
 * Makes a profiler that has recorded nothing yet.
 *
 * Returns: (transfer full): a profiler
 */
EbbProfiler *
ebb_profiler_new (void)
{
  return g_object_new (EBB_TYPE_PROFILER, NULL);
}

/**
 * ebb_profiler_start:
 * @self: a profiler
 * @error: return location for an error
 *
 * Begins to record what the calling thread computes, until ebb_profiler_stop(). What was recorded before is kept. One
 * profiler can run on a thread at a time. Each op and each kernel in it takes about 150 bytes. While it runs, kernels
 * of a device that computes behind the caller's back are waited for one by one. Only this thread may ask it for
 * anything while it runs.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if @self runs already, or another one on this thread
 */
gboolean
ebb_profiler_start (EbbProfiler *self,
                    GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_PROFILER (self), FALSE);

  if (self->thread != NULL || ebb_thread.observer != NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "profiler: %s runs already on %s; stop it first",
                     self->thread != NULL ? "it" : "another one",
                     self->thread != NULL && self->thread != g_thread_self () ? "another thread" : "this thread");
  take_new_generation (self);
  self->thread = g_thread_self ();
  self->started = ebb_profiler_get_time ();
  if (self->origin == 0)
    self->origin = self->started;
  g_private_set (&running, g_object_ref (self));
  ebb_thread.observer = &self->observer;
  ebb_thread_watch ();
  return TRUE;
}

/**
 * ebb_profiler_stop:
 * @self: a profiler
 *
 * Stops recording; does nothing if @self does not run. To be called by the thread that has started it.
 */
void
ebb_profiler_stop (EbbProfiler *self)
{
  if (self == NULL || self->thread == NULL)
    return;
  g_return_if_fail (EBB_IS_PROFILER (self));
  g_return_if_fail (self->thread == g_thread_self ());

  g_private_replace (&running, NULL);
}

/**
 * ebb_profiler_clear:
 * @self: a profiler
 *
 * Forgets all that was recorded and measured. One that runs goes on.
 */
void
ebb_profiler_clear (EbbProfiler *self)
{
  g_return_if_fail (EBB_IS_PROFILER (self));
  g_return_if_fail (self->thread == NULL || self->thread == g_thread_self ());

  forget (self);
  if (self->thread == NULL)
    return;
  take_new_generation (self);
  self->origin = self->started = ebb_profiler_get_time ();
}

/**
 * ebb_profiler_is_running:
 * @self: a profiler
 *
 * Returns: %TRUE between ebb_profiler_start() and ebb_profiler_stop()
 */
gboolean
ebb_profiler_is_running (EbbProfiler *self)
{
  g_return_val_if_fail (EBB_IS_PROFILER (self), FALSE);

  return self->thread != NULL;
}

/* -- sums ---------------------------------------------------------------------------------------------------------- */

const char *
ebb_phase_get_name (EbbPhase phase)
{
  static const char *const names[] = { "forward", "recompute", "backward", "optimizer", "other" };

  return names[phase];
}

static gint64
get_total (EbbProfiler *self)
{
  return self->total + (self->thread != NULL ? ebb_profiler_get_time () - self->started : 0);
}

gint64
ebb_event_get_time (const EbbEvent *event)
{
  return MAX (event->end - event->start - event->inside, 0);
}

static double
sum_work_seconds (EbbProfiler *self,
                  gboolean products)
{
  gint64 sum = 0;

  for (guint i = 0; i < self->works->len; i++)
    if (ebb_work_is_product (ebb_profiler_get_work (self, i)) == products)
      sum += ebb_profiler_get_work (self, i)->time;
  return (double) sum * 1e-9;
}

/**
 * ebb_profiler_count_ops:
 * @self: a profiler
 * @phase: a part of the training step
 * @name: (nullable): the name of an op, as "linear"; %NULL for all
 *
 * Ops that computed something: not views, nor what a recompute leaves out. A kernel that runs outside of any op, as the
 * update of a parameter, counts as an op of the kernel's name.
 *
 * Returns: how many ops of that name have ended in that phase
 */
guint64
ebb_profiler_count_ops (EbbProfiler *self,
                        EbbPhase phase,
                        const char *name)
{
  guint64 n = 0;

  g_return_val_if_fail (EBB_IS_PROFILER (self), 0);

  for (guint i = 0; i < self->events->len; i++)
    {
      const EbbEvent *event = ebb_profiler_get_event (self, i);

      n += event->kind == EBB_EVENT_OP && event->phase == phase && event->end > 0
           && (name == NULL || strcmp (event->name, name) == 0);
    }
  return n;
}

/**
 * ebb_profiler_get_n_steps:
 * @self: a profiler
 *
 * Returns: how many steps of optimizers were recorded
 */
guint
ebb_profiler_get_n_steps (EbbProfiler *self)
{
  g_return_val_if_fail (EBB_IS_PROFILER (self), 0);

  return self->n_steps;
}

/**
 * ebb_profiler_get_seconds:
 * @self: a profiler
 *
 * Returns: how long it has run in all, in seconds
 */
double
ebb_profiler_get_seconds (EbbProfiler *self)
{
  g_return_val_if_fail (EBB_IS_PROFILER (self), 0);

  return (double) get_total (self) * 1e-9;
}

/**
 * ebb_profiler_get_phase_seconds:
 * @self: a profiler
 * @phase: a part of the training step
 *
 * Returns: how long the ops of @phase took together, in seconds
 */
double
ebb_profiler_get_phase_seconds (EbbProfiler *self,
                                EbbPhase phase)
{
  gint64 sum = 0;

  g_return_val_if_fail (EBB_IS_PROFILER (self), 0);

  for (guint i = 0; i < self->events->len; i++)
    {
      const EbbEvent *event = ebb_profiler_get_event (self, i);

      if (event->kind == EBB_EVENT_OP && event->phase == phase && event->end > 0)
        sum += ebb_event_get_time (event);
    }
  return (double) sum * 1e-9;
}

/**
 * ebb_profiler_get_product_seconds:
 * @self: a profiler
 *
 * Returns: how long matrix products took, without those inside attention, in seconds
 */
double
ebb_profiler_get_product_seconds (EbbProfiler *self)
{
  g_return_val_if_fail (EBB_IS_PROFILER (self), 0);

  return sum_work_seconds (self, TRUE);
}

/**
 * ebb_profiler_get_attention_seconds:
 * @self: a profiler
 *
 * Returns: how long the kernels of attention and of its gradient took, in seconds
 */
double
ebb_profiler_get_attention_seconds (EbbProfiler *self)
{
  g_return_val_if_fail (EBB_IS_PROFILER (self), 0);

  return sum_work_seconds (self, FALSE);
}
