/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How long the streams work and wait, by pairs of events: copies and waits always, launches only while the device is
 * traced. Pairs are measured when somebody asks, or when many are left. */
#include "tensor/cuda/cuda-private.h"

#define MANY_SPANS 256         /* from here on those that are done are measured */
#define MOST_SPANS 8192        /* from here on the host waits for the older half: a trace must not take all memory */
#define LONGEST_MEASURE 1000.f /* milliseconds: beyond, a float of them is too coarse */

static void
span_clear (EbbCudaDevice *device,
            EbbCudaSpan *span)
{
  if (span->begin != NULL)
    ebb_cuda_point_unref (device, span->begin);
  ebb_cuda_point_unref (device, span->end);
  if (span->event != NULL)
    ebb_cuda_event_unref_locked (span->event);
}

/* Seconds; 0 if CUDA has no time for these events. */
static double
get_elapsed (EbbCudaPoint *begin,
             EbbCudaPoint *end)
{
  float milliseconds = 0;

  if (cudaEventElapsedTime (&milliseconds, begin->event, end->event) == cudaSuccess)
    return (double) milliseconds * 1e-3;
  cudaGetLastError ();
  return 0;
}

/* -- the trace ----------------------------------------------------------------------------------------------------- */

static void
trace (EbbCudaDevice *device,
       EbbStream stream,
       const EbbCudaSpan *span,
       double seconds)
{
  const double start = device->trace_time + get_elapsed (device->trace_base, span->begin);
  const EbbStreamSpan traced = { .stream = stream,
                                 .is_wait = span->kind == EBB_CUDA_SPAN_WAIT,
                                 .name = span->name,
                                 .n_bytes = span->n_bytes,
                                 .start = start,
                                 .end = start + seconds };

  g_array_append_val (device->trace, traced);
  /* Distances from the base stay short, so that they stay exact. */
  if (start - device->trace_time < (double) LONGEST_MEASURE * 1e-3)
    return;
  ebb_cuda_point_unref (device, device->trace_base);
  device->trace_base = ebb_cuda_point_ref (span->begin);
  device->trace_time = start;
}

/* -- measuring ----------------------------------------------------------------------------------------------------- */

static void
measure_span (EbbCudaDevice *device,
              EbbStream stream,
              EbbCudaSpan *span)
{
  EbbCudaStream *self = &device->streams[stream];
  double seconds;

  if (span->kind == EBB_CUDA_SPAN_EVENT)
    {
      span->event->work = self->unmarked;
      self->unmarked = 0;
      return;
    }
  seconds = get_elapsed (span->begin, span->end);
  if (span->kind == EBB_CUDA_SPAN_WORK)
    {
      self->busy += seconds;
      self->unmarked += seconds;
    }
  else
    {
      self->waited += seconds;
      /* A copy that waits keeps no kernel from running. */
      if (stream == EBB_STREAM_COMPUTE)
        span->event->waited += seconds;
    }
  if (device->tracing && device->trace_base != NULL)
    trace (device, stream, span, seconds);
}

static gboolean
is_done (EbbCudaPoint *point)
{
  if (cudaEventQuery (point->event) == cudaSuccess)
    return TRUE;
  cudaGetLastError ();
  return FALSE;
}

/* How many spans are done: a stream does its work in order. */
static guint
count_done (const EbbCudaStream *self)
{
  guint least = self->first_span, most = self->spans->len;

  while (least < most)
    {
      const guint middle = least + (most - least) / 2;

      if (is_done (g_array_index (self->spans, EbbCudaSpan, middle).end))
        least = middle + 1;
      else
        most = middle;
    }
  return least;
}

void
ebb_cuda_measure (EbbCudaDevice *device,
                  EbbStream stream)
{
  EbbCudaStream *self = &device->streams[stream];
  const guint n_done = count_done (self);

  for (; self->first_span < n_done; self->first_span++)
    {
      EbbCudaSpan *span = &g_array_index (self->spans, EbbCudaSpan, self->first_span);

      measure_span (device, stream, span);
      span_clear (device, span);
    }
  if (self->first_span > 0 && self->first_span * 2 >= self->spans->len)
    {
      g_array_remove_range (self->spans, 0, self->first_span);
      self->first_span = 0;
    }
}

static void
add_span (EbbCudaDevice *device,
          EbbStream stream,
          EbbCudaSpan span)
{
  EbbCudaStream *self = &device->streams[stream];
  const guint n = self->spans->len - self->first_span;

  g_array_append_val (self->spans, span);
  if (n < MANY_SPANS || n % (MANY_SPANS / 2) != 0)
    return;
  if (n >= MOST_SPANS)
    {
      const EbbCudaSpan *middle = &g_array_index (self->spans, EbbCudaSpan, self->first_span + n / 2);

      if (cudaEventSynchronize (middle->end->event) != cudaSuccess)
        cudaGetLastError ();
    }
  ebb_cuda_measure (device, stream);
}

void
ebb_cuda_add_work (EbbCudaDevice *device,
                   EbbStream stream,
                   EbbCudaPoint *begin,
                   EbbCudaPoint *end,
                   const char *name,
                   gsize n_bytes)
{
  add_span (device, stream, (EbbCudaSpan){ EBB_CUDA_SPAN_WORK, begin, end, NULL, name, n_bytes });
}

void
ebb_cuda_add_wait (EbbCudaDevice *device,
                   EbbStream stream,
                   EbbCudaPoint *begin,
                   EbbCudaPoint *end,
                   EbbCudaEvent *event)
{
  event->ref_count++;
  add_span (device, stream,
            (EbbCudaSpan){ EBB_CUDA_SPAN_WAIT, begin, end, event, ebb_stream_get_name (event->stream), 0 });
}

void
ebb_cuda_add_event (EbbCudaDevice *device,
                    EbbCudaEvent *event)
{
  /* Computing that isn't traced has nothing to count. */
  if (event->stream == EBB_STREAM_COMPUTE && !device->tracing)
    return;
  event->ref_count++;
  add_span (device, event->stream,
            (EbbCudaSpan){ EBB_CUDA_SPAN_EVENT, NULL, ebb_cuda_point_ref (event->point), event, NULL, 0 });
}

/* -- for the library ----------------------------------------------------------------------------------------------- */

void
ebb_cuda_get_seconds (int index,
                      EbbStream stream,
                      double *busy,
                      double *waited)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);
  int previous;

  if (ebb_cuda_begin (device, &previous, NULL))
    {
      ebb_cuda_measure (device, stream);
      ebb_cuda_end (device, previous);
    }
  EBB_AUTO_LOCK (&device->lock);
  *busy = device->streams[stream].busy;
  *waited = device->streams[stream].waited;
}

void
ebb_cuda_get_times (gpointer data,
                    double *work,
                    double *waited)
{
  EbbCudaEvent *event = data;
  EbbCudaDevice *device = event->device;
  int previous;

  if (ebb_cuda_begin (device, &previous, NULL))
    {
      ebb_cuda_measure (device, event->stream);
      ebb_cuda_measure (device, EBB_STREAM_COMPUTE);
      ebb_cuda_end (device, previous);
    }
  EBB_AUTO_LOCK (&device->lock);
  *work = event->work;
  *waited = event->waited;
}

static void
measure_all (EbbCudaDevice *device)
{
  for (int i = 0; i < EBB_N_STREAMS; i++)
    ebb_cuda_measure (device, (EbbStream) i);
}

/* The point whose time both clocks know. The device has nothing to do. */
static void
set_base (EbbCudaDevice *device)
{
  EbbCudaPoint *base = ebb_cuda_point_record (device, EBB_STREAM_COMPUTE, TRUE, NULL);

  if (base == NULL)
    return;
  if (cudaEventSynchronize (base->event) != cudaSuccess)
    cudaGetLastError ();
  device->trace_time = (double) g_get_monotonic_time () * 1e-6;
  if (device->trace_base != NULL)
    ebb_cuda_point_unref (device, device->trace_base);
  device->trace_base = base;
}

void
ebb_cuda_set_tracing (int index,
                      gboolean tracing)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);
  int previous;

  if (!ebb_cuda_begin (device, &previous, NULL))
    return;
  measure_all (device);
  if (tracing && !device->tracing)
    set_base (device);
  device->tracing = tracing;
  ebb_cuda_end (device, previous);
}

gsize
ebb_cuda_take_spans (int index,
                     EbbStreamSpan **spans)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);
  gsize n;
  int previous;

  if (ebb_cuda_begin (device, &previous, NULL))
    {
      measure_all (device);
      ebb_cuda_end (device, previous);
    }
  EBB_AUTO_LOCK (&device->lock);
  n = device->trace->len;
  *spans = n > 0 ? g_memdup2 (device->trace->data, n * sizeof (EbbStreamSpan)) : NULL;
  g_array_set_size (device->trace, 0);
  return n;
}
