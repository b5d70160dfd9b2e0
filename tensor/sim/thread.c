/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/sim/sim-private.h"

/* What the C library has for destructors of C++'s thread_local objects. Where it has them, exit () calls them before it
 * calls anything of other libraries: those that kernels need are then still whole. */
extern int __cxa_thread_atexit_impl (void (*func) (void *data),
                                     void *data,
                                     void *library) __attribute__ ((weak));
extern void *__dso_handle __attribute__ ((visibility ("hidden")));

/* A thread that enqueued work does not end before it, so that none runs while the process is taken down. */
static void
wait_for_all (void *data)
{
  for (int i = 0; i < SIM_MAX_DEVICES; i++)
    {
      SimDevice *device = sim_device_get (i);

      if (device == NULL)
        continue;
      pthread_mutex_lock (&device->lock);
      sim_device_drain (device);
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
        __cxa_thread_atexit_impl (wait_for_all, NULL, &__dso_handle);
    }
  return own;
}
