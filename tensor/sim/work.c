/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/sim/sim-private.h"

#include "tensor/backend/launch-item-private.h"
#include <string.h>

/* Enqueueing: addresses are looked up, uses checked against those of the other queues, and a piece of work that needs
 * nothing of its caller any more is put into its queue. */

/* -- events -------------------------------------------------------------------------------------------------------- */

/* The next piece of work of a queue comes after all work that the host knows to be done. */
static void
catch_up (SimQueue *queue)
{
  sim_clock_merge (&queue->clock, &queue->device->host_clock);
}

static SimEvent *
record_locked (SimQueue *queue)
{
  SimEvent *event = g_new0 (SimEvent, 1);
  SimWork *work = sim_work_new (SIM_WORK_RECORD, "record", 0, 0);

  catch_up (queue);
  event->ref_count = 2; /* the caller's and the queue's */
  event->device = queue->device;
  event->stream = queue->stream;
  event->clock = queue->clock;
  work->u.event = event;
  sim_queue_push (queue, work);
  return event;
}

/* Locks the device and makes room in the queue: FALSE with @error set, and unlocked, if there is an error to report. */
static gboolean
begin (SimQueue *queue,
       GError **error)
{
  pthread_mutex_lock (&queue->device->lock);
  sim_queue_wait_for_room (queue);
  if (G_LIKELY (sim_device_check_open (queue->device, error) && sim_device_report (queue->device, error)))
    return TRUE;
  pthread_mutex_unlock (&queue->device->lock);
  return FALSE;
}

gpointer
sim_record (int index,
            EbbStream stream,
            GError **error)
{
  SimQueue *queue = &sim_device_get (index)->queues[stream];
  SimEvent *event;

  if (!begin (queue, error))
    return NULL;
  event = record_locked (queue);
  pthread_mutex_unlock (&queue->device->lock);
  return event;
}

gboolean
sim_wait (int index,
          EbbStream stream,
          gpointer data,
          GError **error)
{
  SimQueue *queue = &sim_device_get (index)->queues[stream];
  SimEvent *event = data;
  gboolean ok = TRUE;

  if (!begin (queue, error))
    return FALSE;
  if (event->device != queue->device)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE,
                   "%s: queue %s can't wait for an event of %s; let the host wait for it", queue->device->name,
                   ebb_stream_get_name (stream), event->device->name);
      ok = FALSE;
    }
  else if (event->reached && event->error != NULL)
    {
      if (error != NULL)
        *error = g_error_copy (event->error);
      ok = FALSE;
    }
  else if (event->stream != stream)
    {
      SimWork *work = sim_work_new (SIM_WORK_WAIT, ebb_stream_get_name (event->stream), 0, 0);

      work->u.event = sim_event_ref (event);
      sim_clock_merge (&queue->clock, &event->clock);
      /* A clock that knows of later work knows of the wait. */
      queue->clock.count[stream]++;
      sim_queue_push (queue, work);
    }
  pthread_mutex_unlock (&queue->device->lock);
  return ok;
}

/* The host has seen @event: the work before it is done. */
static gboolean
event_wait_locked (SimEvent *event,
                   GError **error)
{
  SimDevice *device = event->device;

  while (!event->reached && !device->closing)
    sim_device_wait_for_progress (device);
  if (!event->reached)
    return sim_device_check_open (device, error);
  sim_clock_merge (&device->host_clock, &event->clock);
  if (!sim_device_report (device, error))
    return FALSE;
  if (event->error == NULL)
    return TRUE;
  if (error != NULL)
    *error = g_error_copy (event->error);
  return FALSE;
}

gboolean
sim_synchronize_event (gpointer data,
                       GError **error)
{
  SimEvent *event = data;

  EBB_AUTO_LOCK (&event->device->lock);
  return event_wait_locked (event, error);
}

gboolean
sim_query_event (gpointer data)
{
  SimEvent *event = data;
  gboolean reached;

  EBB_AUTO_LOCK (&event->device->lock);
  reached = event->reached;
  return reached;
}

void
sim_get_times (gpointer data,
               double *work,
               double *waited)
{
  SimEvent *event = data;

  EBB_AUTO_LOCK (&event->device->lock);
  *work = (double) event->work * 1e-9;
  *waited = (double) event->waited * 1e-9;
}

gboolean
sim_synchronize (int index,
                 GError **error)
{
  SimDevice *device = sim_device_get (index);
  gboolean ok;

  EBB_AUTO_LOCK (&device->lock);
  sim_device_drain (device);
  ok = sim_device_check_open (device, error)
       && (error != NULL ? sim_device_report (device, error) : sim_device_is_well (device));
  return ok;
}

/* -- launches ------------------------------------------------------------------------------------------------------ */

static gsize
view_get_extent (const EbbView *view)
{
  gint64 last = 0;

  for (int i = 0; i < view->n_dims; i++)
    {
      if (view->shape[i] == 0)
        return 0;
      last += (view->shape[i] - 1) * view->strides[i];
    }
  return (gsize) (last + 1) * sim_host->get_dtype_size (view->dtype);
}

typedef struct
{
  SimUses *uses;
  SimAccess access;
} Use;

static gboolean
find_use (SimDevice *device,
          SimQueue *queue,
          const void *data,
          gsize extent,
          gboolean writes,
          const char *name,
          Use *use,
          GError **error)
{
  gsize start;
  EbbHeapBlock *block;

  use->uses = NULL;
  if (extent == 0)
    return TRUE;
  block = sim_heap_find (&device->heap, data);
  start = block != NULL ? (gsize) data - (gsize) device->heap.base - block->offset : 0;
  if (block == NULL || extent > block->asked - start)
    return ebb_fail (error, EBB_ERROR_DEVICE,
                     "%s: %s would %s %" G_GSIZE_FORMAT " bytes at %p, which are %s memory of the device", device->name,
                     name, writes ? "write" : "read", extent, data,
                     block != NULL ? "beyond the end of a block of" : "not in a block of");
  use->uses = block->data;
  use->access = (SimAccess){ .start = start,
                             .end = start + extent,
                             .count = queue->clock.count[queue->stream] + 1,
                             .stream = queue->stream,
                             .writes = writes,
                             .name = name };
  return sim_uses_check (use->uses, device, &use->access, error);
}

static void
add_uses (SimDevice *device,
          Use *uses,
          guint n)
{
  for (guint i = 0; i < n; i++)
    if (uses[i].uses != NULL)
      sim_uses_add (uses[i].uses, device, &uses[i].access);
}

static gboolean
find_uses (SimDevice *device,
           SimQueue *queue,
           const EbbLaunch *launch,
           const char *name,
           GArray *uses,
           GError **error)
{
  for (guint i = 0; i < launch->n_inputs + launch->n_outputs; i++)
    {
      const gboolean writes = i >= launch->n_inputs;
      const EbbView *view = writes ? launch->outputs[i - launch->n_inputs] : launch->inputs[i];
      Use use;

      if (view == NULL)
        continue;
      if (!find_use (device, queue, view->data, view_get_extent (view), writes, name, &use, error))
        return FALSE;
      g_array_append_val (uses, use);
    }
  for (guint i = 0; i < launch->n_items; i++)
    for (guint k = 0; k < EBB_LAUNCH_ITEM_DATA; k++)
      {
        gboolean writes;
        gsize size = ebb_launch_item_get_size (launch, &launch->items[i], k, &writes);
        Use use;

        if (!find_use (device, queue, launch->items[i].data[k], size, writes, name, &use, error))
          return FALSE;
        g_array_append_val (uses, use);
      }
  return TRUE;
}

static void *
find_alias (SimDevice *device,
            void *data)
{
  return sim_heap_contains (&device->heap, data) ? sim_heap_get_alias (&device->heap, data) : data;
}

static EbbView *
copy_view (SimDevice *device,
           EbbView *to,
           const EbbView *from)
{
  *to = *from;
  to->data = find_alias (device, from->data);
  return to;
}

static EbbLaunchItem *
copy_items (SimDevice *device,
            EbbLaunchItem *to,
            const EbbLaunch *launch)
{
  if (launch->n_items > 0)
    memcpy (to, launch->items, launch->n_items * sizeof *to);
  for (guint i = 0; i < launch->n_items; i++)
    for (guint k = 0; k < EBB_LAUNCH_ITEM_DATA; k++)
      to[i].data[k] = find_alias (device, to[i].data[k]);
  return to;
}

static SimWork *
copy_launch (SimDevice *device,
             const EbbLaunch *launch,
             const char *name)
{
  SimWork *work = sim_work_new (SIM_WORK_LAUNCH, name, launch->n_inputs + launch->n_outputs, launch->n_items);
  EbbLaunch *copy = &work->u.kernel.launch;
  EbbView *view = work->views;

  *copy = *launch;
  for (guint i = 0; i < launch->n_inputs; i++)
    if (launch->inputs[i] != NULL)
      copy->inputs[i] = copy_view (device, view++, launch->inputs[i]);
  for (guint i = 0; i < launch->n_outputs; i++)
    if (launch->outputs[i] != NULL)
      copy->outputs[i] = copy_view (device, view++, launch->outputs[i]);
  copy->items =
      copy_items (device, (EbbLaunchItem *) (void *) (work->views + launch->n_inputs + launch->n_outputs), launch);
  copy->workspace = find_alias (device, launch->workspace);
  work->u.kernel.n_threads = sim_host->get_n_threads ();
  return work;
}

gboolean
sim_launch (int index,
            const EbbLaunch *launch,
            GError **error)
{
  return sim_launch_in (index, EBB_STREAM_COMPUTE, launch, error);
}

gboolean
sim_launch_in (int index,
               EbbStream stream,
               const EbbLaunch *launch,
               GError **error)
{
  SimDevice *device = sim_device_get (index);
  SimQueue *queue = &device->queues[stream];
  const char *name = sim_host->get_kernel_name (launch->kernel);
  g_autoptr (GArray) uses =
      g_array_sized_new (FALSE, FALSE, sizeof (Use), EBB_LAUNCH_MAX_INPUTS + EBB_LAUNCH_MAX_OUTPUTS);
  SimWork *work = copy_launch (device, launch, name);
  gboolean ok;

  if (!begin (queue, error))
    {
      g_free (work);
      return FALSE;
    }
  catch_up (queue);
  ok = find_uses (device, queue, launch, name, uses, error);
  if (ok)
    {
      add_uses (device, (Use *) (void *) uses->data, uses->len);
      queue->clock.count[queue->stream]++;
      work->fails = sim_device_take_failure (device, EBB_FAILURE_LAUNCH);
      sim_queue_push (queue, work);
    }
  pthread_mutex_unlock (&device->lock);
  if (!ok)
    g_free (work);
  return ok;
}

/* -- copies -------------------------------------------------------------------------------------------------------- */

/* The use of @data by a copy, which may be on either side; @on_device says which. */
static gboolean
find_copy_use (SimDevice *device,
               SimQueue *queue,
               const void *data,
               gsize size,
               gboolean writes,
               gboolean must_be_pinned,
               Use *use,
               gboolean *on_device,
               GError **error)
{
  EbbHeapBlock *block = sim_heap_find (&device->heap, data);
  SimHostBlock *host_block = block == NULL ? sim_host_block_find (device, data) : NULL;
  gsize start = 0;

  if (block != NULL)
    use->uses = block->data;
  else
    use->uses = host_block != NULL ? &host_block->uses : NULL;
  *on_device = sim_heap_contains (&device->heap, data);
  if (block != NULL)
    start = (gsize) data - (gsize) device->heap.base - block->offset;
  else if (host_block != NULL)
    start = (gsize) data - (gsize) host_block->data;
  if (use->uses == NULL ? *on_device || must_be_pinned : start > use->uses->size || size > use->uses->size - start)
    return ebb_fail (error, EBB_ERROR_DEVICE,
                     "%s: a copy in queue %s would %s %" G_GSIZE_FORMAT " bytes at %p, which are not in %s",
                     device->name, ebb_stream_get_name (queue->stream), writes ? "write" : "read", size, data,
                     *on_device ? "a block of memory of the device" : "host memory that was allocated for copies");
  if (use->uses == NULL)
    return TRUE;
  use->access = (SimAccess){ .start = start,
                             .end = start + size,
                             .count = queue->clock.count[queue->stream] + 1,
                             .stream = queue->stream,
                             .writes = writes,
                             .name = "a copy" };
  return sim_uses_check (use->uses, device, &use->access, error);
}

static gboolean
copy_locked (SimQueue *queue,
             void *destination,
             const void *source,
             gsize size,
             gboolean must_be_pinned,
             GError **error)
{
  SimDevice *device = queue->device;
  gboolean to_device, from_device;
  Use uses[2];
  SimWork *work;

  catch_up (queue);
  if (!find_copy_use (device, queue, source, size, FALSE, must_be_pinned, &uses[0], &from_device, error)
      || !find_copy_use (device, queue, destination, size, TRUE, must_be_pinned, &uses[1], &to_device, error))
    return FALSE;
  if (to_device == from_device)
    return ebb_fail (error, EBB_ERROR_DEVICE,
                     "%s: a copy of %" G_GSIZE_FORMAT " bytes is not between the device and the host", device->name,
                     size);
  add_uses (device, uses, 2);
  queue->clock.count[queue->stream]++;
  work = sim_work_new (SIM_WORK_COPY, from_device ? "copy to host" : "copy from host", 0, 0);
  work->n_bytes = size;
  work->u.copy.to_host = from_device;
  work->u.copy.source = from_device ? sim_heap_get_alias (&device->heap, source) : source;
  work->u.copy.destination = to_device ? sim_heap_get_alias (&device->heap, destination) : destination;
  work->fails = sim_device_take_failure (device, from_device ? EBB_FAILURE_TO_HOST : EBB_FAILURE_FROM_HOST);
  sim_queue_push (queue, work);
  return TRUE;
}

gboolean
sim_copy (int index,
          EbbStream stream,
          void *destination,
          const void *source,
          gsize size,
          gpointer *event,
          GError **error)
{
  SimQueue *queue = &sim_device_get (index)->queues[stream];
  gboolean ok;

  if (!begin (queue, error))
    return FALSE;
  ok = size == 0 || copy_locked (queue, destination, source, size, TRUE, error);
  if (ok && event != NULL)
    *event = record_locked (queue);
  pthread_mutex_unlock (&queue->device->lock);
  return ok;
}

gboolean
sim_copy_now (int index,
              void *destination,
              const void *source,
              gsize size,
              gboolean to_host,
              GError **error)
{
  SimQueue *queue = &sim_device_get (index)->queues[EBB_STREAM_COMPUTE];
  gboolean ok;

  if (size == 0)
    return TRUE;
  if (!begin (queue, error))
    return FALSE;
  ok = copy_locked (queue, destination, source, size, FALSE, error);
  if (ok)
    {
      SimEvent *event = record_locked (queue);

      ok = event_wait_locked (event, error);
      sim_free_event (event);
    }
  pthread_mutex_unlock (&queue->device->lock);
  return ok;
}
