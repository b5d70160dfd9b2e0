/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tensor/sim/sim-private.h"

#include <unistd.h>

/* What the C library has for destructors of C++'s thread_local objects. Where it has them, exit () calls them before it
 * calls anything of other libraries: those that kernels need are then still whole. */
extern int __cxa_thread_atexit_impl (void (*func) (void *data),
                                     void *data,
                                     void *library) __attribute__ ((weak));
extern void *__dso_handle __attribute__ ((visibility ("hidden")));

/* A thread that enqueued work does not end before it, so that none runs while the process is taken down. Where that is
 * what happens, copies need not take their time. What the thread was not told of is told to nobody else. */
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
