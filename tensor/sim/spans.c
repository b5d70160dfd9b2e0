/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/sim/sim-private.h"

void
sim_device_add_span (SimDevice *device,
                     EbbStream stream,
                     gboolean is_wait,
                     const char *name,
                     gsize n_bytes,
                     gint64 start,
                     gint64 end)
{
  const EbbStreamSpan span = { .stream = stream,
                               .is_wait = is_wait,
                               .name = name,
                               .n_bytes = n_bytes,
                               .start = (double) start * 1e-9,
                               .end = (double) end * 1e-9 };

  if (device->tracing)
    g_array_append_val (device->spans, span);
}

void
sim_get_seconds (int index,
                 EbbStream stream,
                 double *busy,
                 double *waited)
{
  SimDevice *device = sim_device_get (index);

  pthread_mutex_lock (&device->lock);
  *busy = (double) device->queues[stream].busy * 1e-9;
  *waited = (double) device->queues[stream].waited * 1e-9;
  pthread_mutex_unlock (&device->lock);
}

void
sim_set_tracing (int index,
                 gboolean tracing)
{
  SimDevice *device = sim_device_get (index);

  pthread_mutex_lock (&device->lock);
  device->tracing = tracing;
  pthread_mutex_unlock (&device->lock);
}

gsize
sim_take_spans (int index,
                EbbStreamSpan **spans)
{
  SimDevice *device = sim_device_get (index);
  gsize n;

  pthread_mutex_lock (&device->lock);
  n = device->spans->len;
  *spans = n > 0 ? g_memdup2 (device->spans->data, n * sizeof (EbbStreamSpan)) : NULL;
  g_array_set_size (device->spans, 0);
  pthread_mutex_unlock (&device->lock);
  return n;
}
