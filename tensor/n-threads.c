/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/n-threads-private.h"

#include <omp.h>
#include <pthread.h>

/* How many threads the kernels called by this thread use. */

/* 0: not set, so what OpenMP would take (OMP_NUM_THREADS, else the cores that the process may use). */
static _Thread_local int n_threads_of_thread;

/* A child of fork () would inherit a pool of threads that are not there, and wait for them in its first region. So the
 * pool of the thread that forks ends before; parent and child each make another one when they need it. */
static void
end_pool (void)
{
  omp_pause_resource_all (omp_pause_soft);
}

static void
watch_forks (void)
{
  static gsize watching;

  if (g_once_init_enter (&watching))
    {
      pthread_atfork (end_pool, NULL, NULL);
      g_once_init_leave (&watching, 1);
    }
}

int
ebb_cpu_get_n_threads (void)
{
  if (G_UNLIKELY (n_threads_of_thread == 0))
    {
      watch_forks ();
      n_threads_of_thread = MAX (1, omp_get_max_threads ());
    }
  return n_threads_of_thread;
}

void
ebb_cpu_set_n_threads (int n_threads)
{
  g_return_if_fail (n_threads >= 0);

  watch_forks ();
  /* ThreadSanitizer can't see how libgomp's threads wait for each other, and takes every region for a race. */
#if defined(__SANITIZE_THREAD__)
  n_threads = MIN (n_threads, 1);
#endif
  n_threads_of_thread = n_threads;
}
