/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/sim/sim-private.h"

/* Enqueued work that fails poisons its queue: everything in it is dropped, and so is the work of queues that wait for
 * it, until a thread is told. That thread waits until all that was enqueued is over, so afterwards each event is known
 * to be reached or to have failed, and none of the work that comes then depends on the moment of the failure. */

static void
note_dropped (SimDevice *device,
              guint64 thread,
              const GError *error)
{
  gpointer key = GSIZE_TO_POINTER ((gsize) thread);

  if (!g_hash_table_contains (device->dropped, key))
    g_hash_table_insert (device->dropped, key, g_error_copy (error));
}

void
sim_queue_note_dropped (SimQueue *queue,
                        const SimWork *work)
{
  note_dropped (queue->device, work->thread, queue->poison);
}

void
sim_queue_poison (SimQueue *queue,
                  const SimWork *work,
                  GError *error)
{
  SimDevice *device = queue->device;

  note_dropped (device, work->thread, error);
  if (device->failure == NULL)
    device->failure = g_error_copy (error);
  if (queue->poison == NULL)
    queue->poison = error;
  else
    g_error_free (error);
}

gboolean
sim_device_check_open (SimDevice *device,
                       GError **error)
{
  if (G_LIKELY (!device->closing))
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE, "%s does no more work: %s", device->name,
               device->forked ? "this process was forked from the one that opened it" : "the process ends");
  return FALSE;
}

gboolean
sim_device_tell (SimDevice *device,
                 GError **error)
{
  gpointer thread = GSIZE_TO_POINTER ((gsize) sim_get_thread ());
  GError *own;

  if (error == NULL) /* nobody to be told */
    return TRUE;
  if (G_UNLIKELY (device->race != NULL))
    {
      g_propagate_error (error, g_steal_pointer (&device->race));
      return FALSE;
    }
  if (G_LIKELY (device->failure == NULL && g_hash_table_size (device->dropped) == 0))
    return TRUE;
  if (device->failure == NULL && !g_hash_table_contains (device->dropped, thread))
    return TRUE;
  sim_device_drain (device);
  own = g_hash_table_lookup (device->dropped, thread);
  own = own != NULL ? g_error_copy (own) : g_steal_pointer (&device->failure);
  g_hash_table_remove (device->dropped, thread);
  g_clear_error (&device->failure);
  for (guint i = 0; i < EBB_N_STREAMS; i++)
    g_clear_error (&device->queues[i].poison);
  if (own == NULL)
    return TRUE; /* another thread was told in the meantime, and nothing of this one was dropped */
  g_propagate_error (error, own);
  return FALSE;
}

gboolean
sim_device_take_failure (SimDevice *device,
                         EbbFailure what)
{
  return device->fails[what] > 0 && --device->fails[what] == 0;
}
