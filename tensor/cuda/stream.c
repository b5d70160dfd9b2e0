/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The four queues: streams of CUDA that wait for nothing but events. Copies in them, records and waits. */
#include "tensor/cuda/cuda-private.h"

gboolean
ebb_cuda_streams_init (EbbCudaDevice *device,
                       GError **error)
{
  device->trace = g_array_new (FALSE, FALSE, sizeof (EbbStreamSpan));
  for (int i = 0; i < EBB_N_STREAMS; i++)
    {
      EbbCudaStream *self = &device->streams[i];

      self->spans = g_array_new (FALSE, FALSE, sizeof (EbbCudaSpan));
      /* The default stream, which other libraries use, must not order ours. */
      if (!ebb_cuda_check (device, cudaStreamCreateWithFlags (&self->stream, cudaStreamNonBlocking), "making a stream",
                           error))
        return FALSE;
    }
  return TRUE;
}

gpointer
ebb_cuda_get_native_stream (int index,
                            EbbStream stream)
{
  return ebb_cuda_device_get (index)->streams[stream].stream;
}

/* -- copies -------------------------------------------------------------------------------------------------------- */

static gboolean
copy_locked (EbbCudaDevice *device,
             EbbStream stream,
             void *destination,
             const void *source,
             gsize size,
             gpointer *event,
             GError **error)
{
  const gboolean to_host = ebb_cuda_heap_contains (&device->heap, source);
  const char *name = to_host ? "copy to host" : "copy from host";
  EbbCudaPoint *begin, *end;
  cudaError_t status;

  if (to_host == ebb_cuda_heap_contains (&device->heap, destination))
    return ebb_fail (error, EBB_ERROR_DEVICE,
                     "%s: a copy of %" G_GSIZE_FORMAT " bytes is not between the device and the host", device->name,
                     size);
  if (ebb_cuda_take_failure (device, to_host ? EBB_FAILURE_TO_HOST : EBB_FAILURE_FROM_HOST))
    return ebb_fail (error, EBB_ERROR_DEVICE, "%s: the copy of %" G_GSIZE_FORMAT " bytes %s failed: asked to fail",
                     device->name, size, to_host ? "to the host" : "from the host");
  begin = ebb_cuda_point_record (device, stream, TRUE, error);
  if (begin == NULL)
    return FALSE;
  status = cudaMemcpyAsync (destination, source, size, to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
                            device->streams[stream].stream);
  end = ebb_cuda_check (device, status, name, error) ? ebb_cuda_point_record (device, stream, TRUE, error) : NULL;
  if (end == NULL)
    {
      ebb_cuda_point_unref (device, begin);
      return FALSE;
    }
  if (event != NULL)
    *event = ebb_cuda_event_new (device, stream, ebb_cuda_point_ref (end));
  ebb_cuda_add_work (device, stream, begin, end, name, size);
  if (event != NULL)
    ebb_cuda_add_event (device, *event);
  return TRUE;
}

gboolean
ebb_cuda_enqueue_copy (int index,
                       EbbStream stream,
                       void *destination,
                       const void *source,
                       gsize size,
                       gpointer *event,
                       GError **error)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);
  gboolean ok;
  int previous;

  if (size == 0)
    {
      if (event == NULL)
        return TRUE;
      *event = ebb_cuda_record (index, stream, error);
      return *event != NULL;
    }
  if (!ebb_cuda_begin (device, &previous, error))
    return FALSE;
  ok = ebb_cuda_come_after_uploads (device, stream, error)
       && copy_locked (device, stream, destination, source, size, event, error);
  ebb_cuda_end (device, previous);
  return ok;
}

/* -- records and waits --------------------------------------------------------------------------------------------- */

gpointer
ebb_cuda_record (int index,
                 EbbStream stream,
                 GError **error)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);
  /* Computing is measured only while it is traced, and then by its launches. */
  const gboolean is_timed = stream != EBB_STREAM_COMPUTE;
  EbbCudaEvent *event = NULL;
  EbbCudaPoint *point;
  int previous;

  if (!ebb_cuda_begin (device, &previous, error))
    return NULL;
  point = ebb_cuda_point_record (device, stream, is_timed, error);
  if (point != NULL)
    {
      event = ebb_cuda_event_new (device, stream, point);
      ebb_cuda_add_event (device, event);
    }
  ebb_cuda_end (device, previous);
  return event;
}

gboolean
ebb_cuda_wait (int index,
               EbbStream stream,
               gpointer data,
               GError **error)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);
  EbbCudaEvent *event = data;
  EbbCudaPoint *begin = NULL, *end = NULL;
  gboolean ok = TRUE;
  int previous;

  if (event->device != device)
    return ebb_fail (error, EBB_ERROR_DEVICE, "%s: queue %s can't wait for an event of %s; let the host wait for it",
                     device->name, ebb_stream_get_name (stream), event->device->name);
  if (!ebb_cuda_begin (device, &previous, error))
    return FALSE;
  if (event->stream != stream && !__atomic_load_n (&event->reached, __ATOMIC_ACQUIRE))
    {
      begin = ebb_cuda_point_record (device, stream, TRUE, error);
      ok = begin != NULL
           && ebb_cuda_check (device, cudaStreamWaitEvent (device->streams[stream].stream, event->point->event, 0),
                              "waiting for an event", error);
      end = ok ? ebb_cuda_point_record (device, stream, TRUE, error) : NULL;
      ok = end != NULL;
      if (ok)
        ebb_cuda_add_wait (device, stream, begin, end, event);
      else if (begin != NULL)
        ebb_cuda_point_unref (device, begin);
    }
  ebb_cuda_end (device, previous);
  return ok;
}

gboolean
ebb_cuda_synchronize (int index,
                      GError **error)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);
  cudaError_t status;
  gboolean ok;
  int previous;

  if (!ebb_cuda_check_alive (device, error))
    return FALSE;
  previous = ebb_cuda_enter (index);
  /* Streams of other libraries, too: they may use memory of ours that they were shown (tensor/dlpack.c). */
  status = cudaDeviceSynchronize ();
  ebb_cuda_leave (previous);
  if (!ebb_cuda_begin (device, &previous, error))
    return FALSE;
  ok = ebb_cuda_check (device, status, "waiting for the device", error);
  /* Without a place for the report, an index fault stays for the next call. */
  if (ok && error == NULL)
    ok = *device->faults.flag == 0;
  ebb_cuda_end (device, previous);
  return ok;
}

/* -- teardown ------------------------------------------------------------------------------------------------------ */

/* Of a device that could not be opened: nothing was enqueued. */
void
ebb_cuda_streams_clear (EbbCudaDevice *device)
{
  for (int i = 0; i < EBB_N_STREAMS; i++)
    {
      if (device->streams[i].stream != NULL)
        cudaStreamDestroy (device->streams[i].stream);
      g_clear_pointer (&device->streams[i].spans, g_array_unref);
    }
  g_clear_pointer (&device->trace, g_array_unref);
}
