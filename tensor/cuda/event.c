/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Points in streams: events of CUDA from two pools, with and without times, and the library's events over them. */
#include "tensor/cuda/cuda-private.h"

/* -- points -------------------------------------------------------------------------------------------------------- */

static EbbCudaPoint *
point_new (EbbCudaDevice *device,
           gboolean is_timed,
           GError **error)
{
  EbbCudaPoint *point = device->free_points[is_timed];
  cudaEvent_t event;

  if (G_LIKELY (point != NULL))
    {
      device->free_points[is_timed] = point->next;
      point->ref_count = 1;
      return point;
    }
  if (!ebb_cuda_check (device,
                       cudaEventCreateWithFlags (&event, is_timed ? cudaEventDefault : cudaEventDisableTiming),
                       "making an event", error))
    return NULL;
  point = g_new0 (EbbCudaPoint, 1);
  *point = (EbbCudaPoint){ .ref_count = 1, .is_timed = is_timed, .event = event };
  return point;
}

EbbCudaPoint *
ebb_cuda_point_record (EbbCudaDevice *device,
                       EbbStream stream,
                       gboolean is_timed,
                       GError **error)
{
  EbbCudaPoint *point = point_new (device, is_timed, error);

  if (point == NULL)
    return NULL;
  if (ebb_cuda_check (device, cudaEventRecord (point->event, device->streams[stream].stream), "recording an event",
                      error))
    return point;
  ebb_cuda_point_unref (device, point);
  return NULL;
}

EbbCudaPoint *
ebb_cuda_point_ref (EbbCudaPoint *point)
{
  point->ref_count++;
  return point;
}

void
ebb_cuda_point_unref (EbbCudaDevice *device,
                      EbbCudaPoint *point)
{
  if (--point->ref_count != 0)
    return;
  point->next = device->free_points[point->is_timed];
  device->free_points[point->is_timed] = point;
}

/* -- events -------------------------------------------------------------------------------------------------------- */

EbbCudaEvent *
ebb_cuda_event_new (EbbCudaDevice *device,
                    EbbStream stream,
                    EbbCudaPoint *point)
{
  EbbCudaEvent *event = g_new0 (EbbCudaEvent, 1);

  event->ref_count = 1;
  event->device = device;
  event->stream = stream;
  event->point = point;
  return event;
}

void
ebb_cuda_event_unref_locked (EbbCudaEvent *event)
{
  if (--event->ref_count != 0)
    return;
  ebb_cuda_point_unref (event->device, event->point);
  g_free (event);
}

gboolean
ebb_cuda_synchronize_event (gpointer data,
                            GError **error)
{
  EbbCudaEvent *event = data;
  EbbCudaDevice *device = event->device;
  cudaError_t status;
  gboolean ok;
  int previous;

  if (!ebb_cuda_check_alive (device, error))
    return FALSE;
  previous = ebb_cuda_enter (device->index);
  status = cudaEventSynchronize (event->point->event);
  ebb_cuda_leave (previous);
  if (!ebb_cuda_begin (device, &previous, error))
    return FALSE;
  __atomic_store_n (&event->reached, TRUE, __ATOMIC_RELEASE);
  ok = ebb_cuda_check (device, status, "waiting for an event", error);
  ebb_cuda_end (device, previous);
  return ok;
}

/* Without the device's lock: the thread that holds it may be waiting for the device to take more work, which never
 * happens if nobody finds that a collective hangs. */
gboolean
ebb_cuda_query_event (gpointer data)
{
  EbbCudaEvent *event = data;
  cudaError_t status;
  int previous;

  /* On a device that has ended, every event counts as reached: synchronize_event reports the end. */
  if (__atomic_load_n (&event->reached, __ATOMIC_ACQUIRE) || !ebb_cuda_check_alive (event->device, NULL))
    return TRUE;
  previous = ebb_cuda_enter (event->device->index);
  status = cudaEventQuery (event->point->event);
  cudaGetLastError ();
  ebb_cuda_leave (previous);
  if (status == cudaSuccess)
    __atomic_store_n (&event->reached, TRUE, __ATOMIC_RELEASE);
  return status != cudaErrorNotReady;
}

void
ebb_cuda_free_event (gpointer data)
{
  EbbCudaEvent *event = data;
  EbbCudaDevice *device = event->device;

  EBB_AUTO_LOCK (&device->lock);
  ebb_cuda_event_unref_locked (event);
}
