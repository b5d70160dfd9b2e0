/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Measures the seconds in which a waiting host leaves its device idle. */
#include "offload/transfer/stall-private.h"

static double
get_occupied (EbbDevice *device)
{
  double busy = 0, waited = 0;

  if (device != NULL && device->backend->streams != NULL)
    device->backend->streams->get_seconds (device->index, EBB_STREAM_COMPUTE, &busy, &waited);
  return busy + waited;
}

void
ebb_stall_begin (EbbStall *self,
                 EbbDevice *device)
{
  *self = (EbbStall){ device, g_get_monotonic_time (), get_occupied (device) };
}

double
ebb_stall_end (EbbStall *self)
{
  const double seconds = (double) (g_get_monotonic_time () - self->start) / G_USEC_PER_SEC;

  return self->device != NULL ? MAX (0, seconds - (get_occupied (self->device) - self->before)) : 0;
}
