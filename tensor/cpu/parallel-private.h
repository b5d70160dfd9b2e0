/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <omp.h>

#include "tensor/cpu/cpu-private.h"

/* Work is split statically: part k of n_parts gets the k-th of nearly equal ranges, and how many parts there are
 * depends on the size of the work and the thread count alone. */

G_BEGIN_DECLS

/* Elements of cheap elementwise work that are worth a part of their own: opening a region costs several microseconds.
 */
#define EBB_CPU_GRAIN 32768
/* The same in multiply-adds of products. */
#define EBB_CPU_PRODUCT_GRAIN 524288

typedef void (*EbbParallelFunc) (gint64 begin,
                                 gint64 end,
                                 void *data);

/* Parts for n items of which grain are worth a thread; 1 inside another parallel region. */
static inline int
ebb_cpu_get_n_parts (gint64 n,
                     gint64 grain)
{
  gint64 n_parts;

  if (n < 2 * grain || n < 2)
    return 1;
  n_parts = MIN (n / MAX (grain, 1), ebb_cpu_get_n_threads ());
  return n_parts < 2 || omp_in_parallel () ? 1 : (int) n_parts;
}

/* Calls func on ranges that cover [0, n), each beginning at a multiple of unit, perhaps at once on several threads. */
static inline void
ebb_cpu_parallel_for_units (gint64 n,
                            gint64 unit,
                            gint64 grain,
                            EbbParallelFunc func,
                            void *data)
{
  int n_parts = ebb_cpu_get_n_parts (n, grain);
  gint64 n_units = (n + unit - 1) / unit;

  if (n_parts == 1)
    {
      if (n > 0)
        func (0, n, data);
      return;
    }
#pragma omp parallel num_threads(n_parts)
  {
    /* OpenMP may give fewer threads than asked for; the parts stay the same. */
    for (int part = omp_get_thread_num (); part < n_parts; part += omp_get_num_threads ())
      {
        gint64 begin = n_units * part / n_parts * unit;
        gint64 end = MIN (n_units * (part + 1) / n_parts * unit, n);

        if (begin < end)
          func (begin, end, data);
      }
  }
}

static inline void
ebb_cpu_parallel_for (gint64 n,
                      gint64 grain,
                      EbbParallelFunc func,
                      void *data)
{
  ebb_cpu_parallel_for_units (n, 1, grain, func, data);
}

G_END_DECLS
