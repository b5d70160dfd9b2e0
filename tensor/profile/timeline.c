/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Records who holds which bytes of a device when: the memory of a thread's account, as it is counted. */
#include "tensor/profile/timeline-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "tensor/profile/profiler-private.h"
#include "tensor/storage-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

#include <string.h>

/* A recording is a list of blocks, and of changes to them in the order in which they were counted. Bytes that were
 * there before the recording are a number for each purpose, from which a block is taken as soon as one of them changes
 * or is named. So the sum over the blocks and this rest is at any moment what the counters say. */

#define TOTAL EBB_N_PURPOSES

G_DEFINE_FINAL_TYPE (EbbMemoryTimeline, ebb_memory_timeline, G_TYPE_OBJECT)

/* -- blocks -------------------------------------------------------------------------------------------------------- */

static guint32
add_block (EbbMemoryTimeline *self,
           const void *data,
           gsize n_bytes,
           guint8 purpose)
{
  EbbTimelineBlock block = { .n_bytes = n_bytes, .data = data, .first = EBB_TIMELINE_NEVER };
  guint32 index = self->blocks->len;

  block.last = EBB_TIMELINE_NEVER;
  block.was = block.purpose = purpose;
  block.phase = EBB_PHASE_OTHER;
  block.outer = GPOINTER_TO_UINT (g_hash_table_lookup (self->by_data, data));
  g_array_append_val (self->blocks, block);
  g_hash_table_insert (self->by_data, (gpointer) data, GUINT_TO_POINTER (index + 1));
  return index;
}

/* A block that was there before the recording. The rest may become negative, as the counters themselves: an account may
 * lose memory that was never counted to it, and bytes that were counted by hand may go in other amounts than they came.
 */
static guint32
take_from_rest (EbbMemoryTimeline *self,
                const void *data,
                gsize n_bytes,
                guint8 purpose)
{
  self->rest[purpose] -= (gint64) n_bytes;
  return add_block (self, data, n_bytes, purpose);
}

/* The live block of @purpose at @data with @n_bytes, + 1; 0: there is none. */
static guint32
find_block (EbbMemoryTimeline *self,
            const void *data,
            gsize n_bytes,
            guint8 purpose)
{
  guint32 found = GPOINTER_TO_UINT (g_hash_table_lookup (self->by_data, data));

  while (found != 0)
    {
      const EbbTimelineBlock *block = ebb_timeline_get_block (self, found - 1);

      if (block->n_bytes == n_bytes && block->purpose == purpose)
        break;
      found = block->outer;
    }
  return found;
}

/* Takes a block that ends out of the chain of those at its address. */
static void
remove_block (EbbMemoryTimeline *self,
              guint32 index)
{
  const EbbTimelineBlock *block = ebb_timeline_get_block (self, index);
  guint32 inner = GPOINTER_TO_UINT (g_hash_table_lookup (self->by_data, block->data));

  if (inner == index + 1)
    {
      if (block->outer != 0)
        g_hash_table_insert (self->by_data, (gpointer) block->data, GUINT_TO_POINTER (block->outer));
      else
        g_hash_table_remove (self->by_data, block->data);
      return;
    }
  while (ebb_timeline_get_block (self, inner - 1)->outer != index + 1)
    inner = ebb_timeline_get_block (self, inner - 1)->outer;
  ebb_timeline_get_block (self, inner - 1)->outer = block->outer;
}

static void
add_change (EbbMemoryTimeline *self,
            guint32 index,
            guint8 to)
{
  EbbTimelineBlock *block = ebb_timeline_get_block (self, index);
  EbbTimelineChange change = { .time = ebb_profiler_get_time () - self->start,
                               .block = index,
                               .position = self->n_launches,
                               .to = to };

  if (to == TOTAL)
    {
      block->last = self->changes->len;
      remove_block (self, index);
    }
  else
    block->purpose = to;
  g_array_append_val (self->changes, change);
}

static void
count_bytes (EbbMemoryTimeline *self,
             guint which,
             gboolean comes,
             gsize n_bytes)
{
  self->current[which] = comes ? self->current[which] + n_bytes : self->current[which] - n_bytes;
  if (!comes || (gint64) self->current[which] <= (gint64) self->peak[which])
    return;
  self->peak[which] = self->current[which];
  if (which == TOTAL)
    self->peak_change = self->changes->len - 1;
}

/* -- as an observer: under the lock of the observers --------------------------------------------------------------- */

static void
note_maker (EbbMemoryTimeline *self,
            guint32 index)
{
  EbbTimelineBlock *block = ebb_timeline_get_block (self, index);

  block->first = self->changes->len;
  if (g_thread_self () != self->thread)
    return;
  block->op = ebb_thread.op_name;
  block->path = ebb_thread.module_path;
  block->phase = (guint8) ebb_get_phase ();
}

static void
changed (EbbMemoryObserver *observer,
         EbbDevice *device,
         const void *data,
         guint8 from,
         guint8 to,
         gsize n_bytes)
{
  EbbMemoryTimeline *self = ((EbbTimelineObserver *) observer)->owner;
  guint32 found;

  if (device != self->device || n_bytes == 0)
    return;
  if (from == TOTAL)
    {
      found = add_block (self, data, n_bytes, to) + 1;
      note_maker (self, found - 1);
      add_change (self, found - 1, to);
    }
  else
    {
      found = find_block (self, data, n_bytes, from);
      if (found == 0)
        found = take_from_rest (self, data, n_bytes, from) + 1;
      add_change (self, found - 1, to);
    }
  if (from != TOTAL)
    count_bytes (self, from, FALSE, n_bytes);
  else
    count_bytes (self, TOTAL, TRUE, n_bytes);
  if (to != TOTAL)
    count_bytes (self, to, TRUE, n_bytes);
  else
    count_bytes (self, TOTAL, FALSE, n_bytes);
}

static void
append_shape (GString *text,
              const EbbView *view)
{
  g_string_append_printf (text, "%s [", ebb_dtype_get_name (view->dtype));
  for (int i = 0; i < view->n_dims; i++)
    g_string_append_printf (text, "%s%" G_GINT64_FORMAT, i > 0 ? ", " : "", view->shape[i]);
  g_string_append_c (text, ']');
}

/* A block is of the shape that the first kernel to fill it writes. */
static void
note_shape (EbbMemoryTimeline *self,
            const EbbLaunch *launch,
            const EbbView *view)
{
  guint32 found = view != NULL && view->data != NULL
                      ? GPOINTER_TO_UINT (g_hash_table_lookup (self->by_data, view->data))
                      : 0;
  EbbTimelineBlock *block = found != 0 ? ebb_timeline_get_block (self, found - 1) : NULL;
  gsize n_bytes = block != NULL ? ebb_dtype_get_size (view->dtype) : 0;
  g_autoptr (GString) text = NULL;

  if (block == NULL || block->shape != NULL)
    return;
  for (int i = 0; i < view->n_dims; i++)
    n_bytes *= (gsize) view->shape[i];
  if (n_bytes != block->n_bytes)
    return;
  text = g_string_new (NULL);
  append_shape (text, view);
  block->shape = g_string_chunk_insert_const (self->texts, text->str);
  if (block->op == NULL && block->first != EBB_TIMELINE_NEVER)
    block->op = launch->op != NULL ? launch->op : ebb_kernel_get_name (launch->kernel);
}

static void
launched (EbbMemoryObserver *observer,
          EbbDevice *device,
          const EbbLaunch *launch)
{
  EbbMemoryTimeline *self = ((EbbTimelineObserver *) observer)->owner;
  EbbTimelineSpan span;

  if (g_thread_self () != self->thread)
    return;
  span = (EbbTimelineSpan){ .time = ebb_profiler_get_time () - self->start,
                            .position = self->n_launches,
                            .phase = (guint8) ebb_get_phase () };
  if (self->spans->len == 0 || ebb_timeline_get_span (self, self->spans->len - 1)->phase != span.phase)
    g_array_append_val (self->spans, span);
  self->n_launches++;
  if (device == self->device)
    for (guint i = 0; i < launch->n_outputs; i++)
      note_shape (self, launch, launch->outputs[i]);
}

/* -- the object ---------------------------------------------------------------------------------------------------- */

static void
stop (EbbMemoryTimeline *self)
{
  ebb_memory_account_pop_observer (self->account, &self->observer.observer);
  self->end = ebb_profiler_get_time () - self->start;
  g_clear_pointer (&self->account, ebb_memory_account_unref);
  g_hash_table_remove_all (self->by_data);
  self->thread = NULL;
}

static void
stop_at_thread_end (gpointer data)
{
  g_autoptr (GPtrArray) timelines = data;

  for (guint i = timelines->len; i > 0; i--)
    stop (g_ptr_array_index (timelines, i - 1));
}

/* Those that run on this thread, with a reference: the end of the thread stops them. */
static GPrivate running = G_PRIVATE_INIT (stop_at_thread_end);

const GPtrArray *
ebb_timeline_list_running (void)
{
  const GPtrArray *timelines = g_private_get (&running);

  return timelines != NULL && timelines->len > 0 ? timelines : NULL;
}

static void
forget (EbbMemoryTimeline *self)
{
  g_array_set_size (self->blocks, 0);
  g_array_set_size (self->changes, 0);
  g_array_set_size (self->spans, 0);
  g_string_chunk_clear (self->texts);
  memset (self->rest, 0, sizeof self->rest);
  memset (self->current, 0, sizeof self->current);
  memset (self->peak, 0, sizeof self->peak);
  self->peak_change = EBB_TIMELINE_NEVER;
  self->n_launches = 0;
  self->end = 0;
}

static void
ebb_memory_timeline_finalize (GObject *object)
{
  EbbMemoryTimeline *self = EBB_MEMORY_TIMELINE (object);

  g_array_unref (self->blocks);
  g_array_unref (self->changes);
  g_array_unref (self->spans);
  g_hash_table_unref (self->by_data);
  g_string_chunk_free (self->texts);
  g_free (self->name);
  G_OBJECT_CLASS (ebb_memory_timeline_parent_class)->finalize (object);
}

static void
ebb_memory_timeline_class_init (EbbMemoryTimelineClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = ebb_memory_timeline_finalize;
}

static void
ebb_memory_timeline_init (EbbMemoryTimeline *self)
{
  self->observer.observer.changed = changed;
  self->observer.observer.launched = launched;
  self->observer.owner = self;
  self->blocks = g_array_new (FALSE, FALSE, sizeof (EbbTimelineBlock));
  self->changes = g_array_new (FALSE, FALSE, sizeof (EbbTimelineChange));
  self->spans = g_array_new (FALSE, FALSE, sizeof (EbbTimelineSpan));
  self->by_data = g_hash_table_new (NULL, NULL);
  self->texts = g_string_chunk_new (4096);
  forget (self);
}

/**
 * ebb_memory_timeline_new:
 * @name: (nullable): the title of its picture, as "checkpointed"; %NULL for none
 *
 * Makes a timeline that has recorded nothing yet.
 *
 * Returns: (transfer full): a timeline
 */
EbbMemoryTimeline *
ebb_memory_timeline_new (const char *name)
{
  EbbMemoryTimeline *self = g_object_new (EBB_TYPE_MEMORY_TIMELINE, NULL);

  ebb_memory_timeline_set_name (self, name);
  return self;
}

/**
 * ebb_memory_timeline_set_name:
 * @self: a timeline
 * @name: (nullable): the title of its picture, as "checkpointed"; %NULL for none
 *
 * Names the timeline: that of an ebb_memory_estimate_get_timeline() has no name at first.
 */
void
ebb_memory_timeline_set_name (EbbMemoryTimeline *self,
                              const char *name)
{
  g_return_if_fail (EBB_IS_MEMORY_TIMELINE (self));

  g_free (self->name);
  self->name = g_utf8_make_valid (name != NULL ? name : "", -1);
}

/**
 * ebb_memory_timeline_get_name:
 * @self: a timeline
 *
 * Returns: its name; "" for none
 */
const char *
ebb_memory_timeline_get_name (EbbMemoryTimeline *self)
{
  g_return_val_if_fail (EBB_IS_MEMORY_TIMELINE (self), NULL);

  return self->name;
}

/**
 * ebb_memory_timeline_start:
 * @self: a timeline
 * @device: (nullable): the device whose memory is recorded; %NULL for the CPU
 * @error: return location for an error
 *
 * Begins to record, until ebb_memory_timeline_stop(), the memory that ebb_memory_get_stats() counts on this thread: on
 * a thread of ebb_run_ranks() that of its rank, in a dry run that of the run, elsewhere that of all threads together.
 * The names of modules and ops and the phases are those of the calling thread. Each ebb_optimizer_step() on this thread
 * names the parameters that it moves, their gradients and their state. What was recorded before is forgotten. A change
 * takes 24 bytes and a block of memory 80: record steps, not hours. Only this thread may use @self while it runs.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if @self runs already
 */
gboolean
ebb_memory_timeline_start (EbbMemoryTimeline *self,
                           EbbDevice *device,
                           GError **error)
{
  g_autoptr (EbbMemoryStats) stats = NULL;
  GPtrArray *others;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_MEMORY_TIMELINE (self), FALSE);

  if (self->thread != NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "memory timeline: it runs already on %s thread; stop it first",
                     self->thread == g_thread_self () ? "this" : "another");
  forget (self);
  self->is_dry = ebb_is_dry ();
  self->has_times = !self->is_dry;
  self->device = device != NULL ? device : ebb_device_get_cpu ();
  self->thread = g_thread_self ();
  self->start = ebb_profiler_get_time ();
  self->account = ebb_thread.account != NULL ? ebb_memory_account_ref (ebb_thread.account) : NULL;
  ebb_memory_lock_observers ();
  stats = ebb_memory_get_stats (self->device);
  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    {
      self->current[i] = self->peak[i] = ebb_memory_stats_get_current (stats, (EbbPurpose) i);
      self->rest[i] = (gint64) self->current[i];
    }
  self->current[TOTAL] = self->peak[TOTAL] = ebb_memory_stats_get_total (stats);
  others = g_private_get (&running);
  if (others == NULL)
    {
      others = g_ptr_array_new_with_free_func (g_object_unref);
      g_private_set (&running, others);
    }
  g_ptr_array_add (others, g_object_ref (self));
  ebb_memory_account_push_observer (self->account, &self->observer.observer);
  ebb_memory_unlock_observers ();
  return TRUE;
}

/**
 * ebb_memory_timeline_stop:
 * @self: a timeline
 *
 * Stops recording; does nothing if @self does not run. To be called by the thread that has started it.
 */
void
ebb_memory_timeline_stop (EbbMemoryTimeline *self)
{
  if (self == NULL || self->thread == NULL)
    return;
  g_return_if_fail (EBB_IS_MEMORY_TIMELINE (self));
  g_return_if_fail (self->thread == g_thread_self ());

  stop (self);
  g_ptr_array_remove (g_private_get (&running), self);
}

/**
 * ebb_memory_timeline_is_running:
 * @self: a timeline
 *
 * Returns: %TRUE between ebb_memory_timeline_start() and ebb_memory_timeline_stop()
 */
gboolean
ebb_memory_timeline_is_running (EbbMemoryTimeline *self)
{
  g_return_val_if_fail (EBB_IS_MEMORY_TIMELINE (self), FALSE);

  return self->thread != NULL;
}

void
ebb_timeline_set_seconds (EbbMemoryTimeline *self,
                          const double *seconds,
                          guint n_launches)
{
  g_autofree gint64 *ends = g_new0 (gint64, (gsize) self->n_launches + 1);
  double sum = 0;

  for (guint i = 0; i < self->n_launches; i++)
    {
      sum += i < n_launches ? seconds[i] : 0;
      ends[i + 1] = (gint64) (sum * 1e9);
    }
  for (guint i = 0; i < self->changes->len; i++)
    ebb_timeline_get_change (self, i)->time = ends[ebb_timeline_get_change (self, i)->position];
  for (guint i = 0; i < self->spans->len; i++)
    ebb_timeline_get_span (self, i)->time = ends[ebb_timeline_get_span (self, i)->position];
  self->end = ends[self->n_launches];
  self->has_times = TRUE;
}

/* The block of @storage, which may have been there before the recording; + 1; 0: it is not recorded. */
static guint32
find_storage (EbbMemoryTimeline *self,
              EbbStorage *storage)
{
  const guint8 purpose = (guint8) ebb_storage_get_purpose (storage);
  guint32 found;

  if (storage->data == NULL || storage->placeholder || storage->size == 0
      || storage->device != self->device || storage->account != self->account)
    return 0;
  found = find_block (self, storage->data, storage->size, purpose);
  if (found != 0 || (gint64) storage->size > self->rest[purpose])
    return found;
  return take_from_rest (self, storage->data, storage->size, purpose) + 1;
}

static void
set_name (EbbMemoryTimeline *self,
          EbbTimelineBlock *block,
          const char *name,
          const EbbView *view)
{
  gsize n_bytes = ebb_dtype_get_size (view->dtype);
  g_autofree char *several = NULL;
  g_autoptr (GString) shape = NULL;

  if (block->name != NULL)
    return;
  for (int i = 0; i < view->n_dims; i++)
    n_bytes *= (gsize) view->shape[i];
  if (n_bytes < block->n_bytes) /* as one of a unit's shards, which lie in one buffer */
    several = g_strdup_printf ("%s and others", name);
  block->name = g_string_chunk_insert_const (self->texts, several != NULL ? several : name);
  if (block->shape != NULL || several != NULL)
    return;
  shape = g_string_new (NULL);
  append_shape (shape, view);
  block->shape = g_string_chunk_insert_const (self->texts, shape->str);
}

/**
 * ebb_memory_timeline_name_tensor:
 * @self: a timeline that runs
 * @tensor: a tensor
 * @name: its name, as "h.3.mlp.c_fc.weight"
 *
 * Names the memory of a tensor; without a name, memory that was there before the recording is shown as a sum. Memory
 * keeps its first name. Does nothing if the tensor has no memory on the recorded device.
 */
void
ebb_memory_timeline_name_tensor (EbbMemoryTimeline *self,
                                 EbbTensor *tensor,
                                 const char *name)
{
  g_autofree char *valid = NULL;
  guint32 found;

  g_return_if_fail (EBB_IS_MEMORY_TIMELINE (self));
  g_return_if_fail (self->thread == g_thread_self ());
  g_return_if_fail (tensor != NULL && name != NULL);

  if (tensor->storage == NULL)
    return;
  valid = g_utf8_make_valid (name, -1);
  ebb_memory_lock_observers ();
  found = find_storage (self, tensor->storage);
  if (found != 0)
    set_name (self, ebb_timeline_get_block (self, found - 1), valid, &tensor->view);
  ebb_memory_unlock_observers ();
}

void
ebb_timeline_name_tensor (EbbTensor *tensor,
                          const char *format,
                          ...)
{
  const GPtrArray *timelines = ebb_timeline_list_running ();
  g_autofree char *name = NULL;
  va_list list;

  if (G_LIKELY (timelines == NULL))
    return;
  va_start (list, format);
  name = g_strdup_vprintf (format, list);
  va_end (list);
  for (guint i = 0; i < timelines->len; i++)
    ebb_memory_timeline_name_tensor (g_ptr_array_index (timelines, i), tensor, name);
}
