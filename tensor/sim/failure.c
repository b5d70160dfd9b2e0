/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tensor/sim/sim-private.h"

#include <unistd.h>

/* Enqueued work that fails poisons its queue: everything in it is dropped, and so is the work of queues that wait for
 * it, until the error is reported to a thread. That thread waits until all that was enqueued is over, so afterwards
 * each event is known to be reached or to have failed, and none of the work that comes then depends on the moment of
 * the failure. */

/* A thread that has not received the report of an earlier failure receives this one instead. */
static void
note_dropped (SimDevice *device,
              guint64 thread,
              const GError *error)
{
  gpointer key = GSIZE_TO_POINTER ((gsize) thread);
  SimDropped *dropped = g_hash_table_lookup (device->dropped, key);

  if (dropped != NULL && dropped->number == device->n_reported)
    return;
  dropped = g_new (SimDropped, 1);
  *dropped = (SimDropped){ device->n_reported, g_error_copy (error) };
  g_hash_table_insert (device->dropped, key, dropped);
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
sim_device_is_well (SimDevice *device)
{
  gpointer thread = GSIZE_TO_POINTER ((gsize) sim_get_thread ());

  return device->race == NULL && device->failure == NULL && !g_hash_table_contains (device->dropped, thread);
}

/* The error that is reported to this thread for the failure that stopped all queues, which then go on. NULL: another
 * thread has received it in the meantime, and no work of this one was dropped. */
static GError *
take_error (SimDevice *device)
{
  gpointer thread = GSIZE_TO_POINTER ((gsize) sim_get_thread ());
  SimDropped *dropped = g_hash_table_lookup (device->dropped, thread);
  GError *own = NULL;

  /* An old one must not be reported in place of the present failure. */
  if (dropped != NULL && (dropped->number == device->n_reported || device->failure == NULL))
    own = g_error_copy (dropped->error);
  else if (device->failure != NULL)
    own = g_error_copy (device->failure);
  g_hash_table_remove (device->dropped, thread);
  if (device->failure == NULL)
    return own;
  g_clear_error (&device->failure);
  for (guint i = 0; i < EBB_N_STREAMS; i++)
    g_clear_error (&device->queues[i].poison);
  device->n_reported++;
  return own;
}

gboolean
sim_device_report (SimDevice *device,
                   GError **error)
{
  GError *own;

  if (error == NULL) /* no place for a report */
    return TRUE;
  if (G_UNLIKELY (device->race != NULL))
    {
      g_propagate_error (error, g_steal_pointer (&device->race));
      return FALSE;
    }
  if (G_LIKELY (device->failure == NULL && g_hash_table_size (device->dropped) == 0))
    return TRUE;
  if (sim_device_is_well (device))
    return TRUE;
  sim_device_drain (device);
  own = take_error (device);
  if (own == NULL)
    return TRUE;
  g_propagate_error (error, own);
  return FALSE;
}

/* The C library's registration of destructors of C++'s thread_local objects. Where the library has it, exit () calls
 * these destructors before those of other libraries, so the libraries that kernels need are still whole. */
extern int __cxa_thread_atexit_impl (void (*func) (void *data),
                                     void *data,
                                     void *library) __attribute__ ((weak));
extern void *__dso_handle __attribute__ ((visibility ("hidden")));

/* A thread that enqueued work does not end before it, so that none runs while the process is taken down. Where that is
 * what happens, copies need not take their time. Errors that the thread has not received are reported to nobody else.
 */
static void
wait_for_all (void *data)
{
  const gboolean ends = gettid () == getpid ();

  for (int i = 0; i < SIM_MAX_DEVICES; i++)
    {
      SimDevice *device = sim_device_get (i);

      if (device == NULL)
        continue;
      pthread_mutex_lock (&device->lock);
      if (ends && !device->forked)
        sim_device_hurry (device);
      sim_device_drain (device);
      g_hash_table_remove (device->dropped, data);
      pthread_mutex_unlock (&device->lock);
    }
}

guint64
sim_get_thread (void)
{
  static guint64 last;
  static _Thread_local guint64 own;

  if (own == 0)
    {
      own = __atomic_add_fetch (&last, 1, __ATOMIC_RELAXED);
      if (__cxa_thread_atexit_impl != NULL)
        __cxa_thread_atexit_impl (wait_for_all, GSIZE_TO_POINTER ((gsize) own), &__dso_handle);
    }
  return own;
}

void
sim_dropped_free (gpointer data)
{
  SimDropped *dropped = data;

  g_error_free (dropped->error);
  g_free (dropped);
}
