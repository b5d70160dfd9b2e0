/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/cpu-private.h"

#include <omp.h>

/* 0: not set, so what OpenMP would take (OMP_NUM_THREADS, else the cores that the process may use). */
static _Thread_local int n_threads_of_thread;

int
ebb_cpu_get_n_threads (void)
{
  if (G_UNLIKELY (n_threads_of_thread == 0))
    n_threads_of_thread = MAX (1, omp_get_max_threads ());
  return n_threads_of_thread;
}

void
ebb_cpu_set_n_threads (int n_threads)
{
  g_return_if_fail (n_threads >= 0);

  /* ThreadSanitizer can't see how libgomp's threads wait for each other, and takes every region for a race. */
#if defined(__SANITIZE_THREAD__)
  n_threads = MIN (n_threads, 1);
#endif
  n_threads_of_thread = n_threads;
}
