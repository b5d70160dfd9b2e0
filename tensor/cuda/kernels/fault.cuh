/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Indices that are out of range: kernels report them and go on with one that is in range; kernels that change lasting
 * state ask first whether there was one. The host reads the record, see tensor/cuda/fault.c. */

#include "tensor/cuda/kernels-private.h"

/* Keeps the report of the first launch, and of that the one with the smallest position. */
static __device__ inline void
fault_report (EbbCudaFault *fault,
              guint32 serial,
              gint64 position,
              gint64 value,
              gint64 limit)
{
  bool done = false;

  /* Lanes of a warp take the lock one at a time. */
  while (!done)
    if (atomicCAS (&fault->lock, 0u, 1u) == 0u)
      {
        __threadfence ();

        volatile EbbCudaFault *record = fault;

        if (record->serial == 0 || serial < record->serial
            || (serial == record->serial && position < record->position))
          {
            record->serial = serial;
            record->position = position;
            record->value = value;
            record->limit = limit;
            __threadfence_system ();
            *record->flag = 1;
          }
        __threadfence ();
        atomicExch (&fault->lock, 0u);
        done = true;
      }
}

/* Of launches before this one on its stream: all threads see the same. NULL: no fault matters. */
static __device__ __forceinline__ bool
fault_is_set (const EbbCudaFault *fault)
{
  return fault != NULL && *(const volatile uint32_t *) &fault->serial != 0;
}
