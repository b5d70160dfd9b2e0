/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/sim/sim-private.h"

#include <stdlib.h>

/* The emulated device as a backend: opening, memory, and the table of functions. */

/* -- opening and closing ------------------------------------------------------------------------------------------- */

static int
compare_pointers (gconstpointer a,
                  gconstpointer b)
{
  return (gsize) a < (gsize) b ? -1 : (gsize) a > (gsize) b;
}

/* The first @n of them drop what they have not begun, and end. */
static void
end_queues (SimDevice *device,
            guint n)
{
  pthread_mutex_lock (&device->lock);
  device->closing = TRUE;
  for (guint i = 0; i < n; i++)
    pthread_cond_signal (&device->queues[i].filled);
  sim_device_hurry (device);
  sim_device_announce_progress (device);
  pthread_mutex_unlock (&device->lock);
  for (guint i = 0; i < n; i++)
    pthread_join (device->queues[i].thread, NULL);
}

static void
device_close (SimDevice *device)
{
  if (device->forked)
    return;
  for (guint i = 0; i < EBB_N_STREAMS; i++)
    if (pthread_equal (device->queues[i].thread, pthread_self ()))
      return;
  end_queues (device, EBB_N_STREAMS);
}

/* -- forks: the child has the memory of a device, but none of its threads; it can give memory back and no more ----- */

static void
lock_all (void)
{
  for (guint i = 0; i < SIM_MAX_DEVICES; i++)
    if (sim_device_get ((int) i) != NULL)
      pthread_mutex_lock (&sim_device_get ((int) i)->lock);
}

static void
unlock_all (void)
{
  for (guint i = 0; i < SIM_MAX_DEVICES; i++)
    if (sim_device_get ((int) i) != NULL)
      pthread_mutex_unlock (&sim_device_get ((int) i)->lock);
}

static void
close_in_child (void)
{
  for (guint i = 0; i < SIM_MAX_DEVICES; i++)
    if (sim_device_get ((int) i) != NULL)
      {
        SimDevice *device = sim_device_get ((int) i);

        device->closing = device->forked = TRUE;
        for (guint k = 0; k < EBB_N_STREAMS; k++)
          {
            device->queues[k].n = 0;
            device->queues[k].n_done = device->queues[k].n_enqueued;
          }
      }
  unlock_all ();
}

/* The threads must not run kernels while the libraries that these need are being taken down. */
static void
close_all (void)
{
  for (guint i = 0; i < SIM_MAX_DEVICES; i++)
    if (sim_device_get ((int) i) != NULL)
      device_close (sim_device_get ((int) i));
}

static void
device_free (SimDevice *device)
{
  sim_heap_clear (&device->heap);
  pthread_mutex_destroy (&device->lock);
  pthread_cond_destroy (&device->progress);
  pthread_cond_destroy (&device->hurries);
  g_clear_pointer (&device->host_blocks, g_tree_unref);
  g_clear_pointer (&device->dropped, g_hash_table_unref);
  g_clear_pointer (&device->spans, g_array_unref);
  g_free (device->name);
  g_free (device);
}

static gboolean
start_queues (SimDevice *device,
              GError **error)
{
  for (guint i = 0; i < EBB_N_STREAMS; i++)
    {
      SimQueue *queue = &device->queues[i];

      queue->device = device;
      queue->stream = (EbbStream) i;
      pthread_cond_init (&queue->filled, NULL);
      pthread_cond_init (&queue->emptied, NULL);
    }
  for (guint i = 0; i < EBB_N_STREAMS; i++)
    {
      int failure = pthread_create (&device->queues[i].thread, NULL, sim_queue_run, &device->queues[i]);

      if (failure == 0)
        continue;
      g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE, "%s: can't start a thread for queue %s: %s", device->name,
                   ebb_stream_get_name ((EbbStream) i), g_strerror (failure));
      end_queues (device, i);
      return FALSE;
    }
  return TRUE;
}

static gboolean
sim_device_open (int index,
                 GError **error)
{
  static gboolean closes;
  SimDevice *device = g_new0 (SimDevice, 1);

  device->index = index;
  device->name = index == 0 ? g_strdup ("sim") : g_strdup_printf ("sim:%d", index);
  device->host_blocks = g_tree_new (compare_pointers);
  device->dropped = g_hash_table_new_full (NULL, NULL, NULL, sim_dropped_free);
  device->spans = g_array_new (FALSE, FALSE, sizeof (EbbStreamSpan));
  pthread_mutex_init (&device->lock, NULL);
  pthread_cond_init (&device->progress, NULL);
  ebb_cond_init (&device->hurries);
  if (!sim_settings_read (device, error) || !sim_heap_init (&device->heap, (gsize) device->memory, error)
      || !start_queues (device, error))
    {
      device_free (device);
      return FALSE;
    }
  sim_watch_host_access (device);
  sim_device_add (device);
  if (!closes)
    {
      atexit (close_all);
      pthread_atfork (lock_all, unlock_all, close_in_child);
    }
  closes = TRUE;
  return TRUE;
}

static guint64
sim_get_capacity (int index)
{
  return sim_device_get (index)->heap.capacity;
}

static char *
sim_describe_speed (int index)
{
  const SimDevice *device = sim_device_get (index);

  return g_strdup_printf ("%.9g and %.9g bytes a second to and from the host, %" G_GINT64_FORMAT " ns a copy",
                          device->bytes_per_second[EBB_STREAM_TO_HOST],
                          device->bytes_per_second[EBB_STREAM_FROM_HOST], device->latency);
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

static void *
sim_alloc (int index,
           gsize size,
           GError **error)
{
  SimDevice *device = sim_device_get (index);
  EbbHeapBlock *block = NULL;
  gboolean fails;

  EBB_AUTO_LOCK (&device->lock);
  if (!sim_device_report (device, error))
    return NULL;
  fails = sim_device_take_failure (device, EBB_FAILURE_ALLOC);
  if (!fails)
    block = ebb_block_heap_alloc (&device->heap.blocks, size);
  if (block != NULL)
    sim_uses_init (block->data = g_new (SimUses, 1), device, "block", size);
  else
    {
      g_autofree char *shortage = ebb_block_heap_describe_shortage (&device->heap.blocks, size);

      g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "%s%s", shortage, fails ? " (asked to fail)" : "");
    }
  return block != NULL ? device->heap.base + block->offset : NULL;
}

static void
sim_free (int index,
          void *data,
          gsize size)
{
  SimDevice *device = sim_device_get (index);
  g_autoptr (GError) race = NULL;
  EbbHeapBlock *block;

  if (data == NULL)
    return;
  pthread_mutex_lock (&device->lock);
  block = ebb_block_heap_find_exactly (&device->heap.blocks, (gsize) data - (gsize) device->heap.base, size);
  if (block != NULL && !sim_uses_check_free (block->data, device, FALSE, &race))
    {
      if (device->race == NULL)
        device->race = g_error_copy (race);
      sim_device_drain (device);
    }
  if (block != NULL)
    {
      sim_uses_clear (block->data);
      g_free (block->data);
      ebb_block_heap_free (&device->heap.blocks, block);
    }
  pthread_mutex_unlock (&device->lock);
  if (race != NULL)
    g_critical ("%s", race->message);
  g_return_if_fail (block != NULL);
}

static gsize
sim_get_workspace (int index,
                   const EbbLaunch *launch)
{
  return sim_host->get_cpu_workspace (launch);
}

static const EbbKernelFunc *
sim_get_kernels (void)
{
  return sim_host->get_cpu_kernels ();
}

/* -- the module ---------------------------------------------------------------------------------------------------- */

static const EbbStreamFuncs streams = {
  .alloc_host = sim_alloc_host,
  .free_host = sim_free_host,
  .copy = sim_copy,
  .record = sim_record,
  .wait = sim_wait,
  .synchronize_event = sim_synchronize_event,
  .query_event = sim_query_event,
  .get_times = sim_get_times,
  .free_event = sim_free_event,
  .get_seconds = sim_get_seconds,
  .set_tracing = sim_set_tracing,
  .take_spans = sim_take_spans,
  .launch = sim_launch_in,
};

static const EbbBackend backend = {
  .version = EBB_BACKEND_VERSION,
  .name = "sim",
  .host_memory = FALSE,
  .row_block = EBB_HOST_ROW_BLOCK,
  .open = sim_device_open,
  .get_capacity = sim_get_capacity,
  .describe_speed = sim_describe_speed,
  .alloc = sim_alloc,
  .free = sim_free,
  .copy = sim_copy_now,
  .synchronize = sim_synchronize,
  .get_workspace = sim_get_workspace,
  .launch = sim_launch,
  .get_kernels = sim_get_kernels,
  .streams = &streams,
  .fail = sim_fail,
};

EBB_DEFINE_BACKEND_MODULE (backend, sim_host)
