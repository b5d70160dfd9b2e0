/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Copies between the device and any host memory, through a few MiB of pinned memory of the device's own.
 *
 * A copy to the device returns as soon as its bytes are in pinned memory: the caller may use its own again, and a step
 * that hands over its tokens doesn't wait for the step before. For all work that is enqueued later it is done:
 * computing runs in its queue, and other queues wait for it before their next work. */
#include "tensor/cuda/cuda-private.h"

#include <string.h>

static gboolean
open_slots (EbbCudaDevice *device,
            GError **error)
{
  EbbCudaStaging *self = &device->staging;
  void *data = NULL;

  if (self->data != NULL)
    return TRUE;
  if (!ebb_cuda_check (device,
                       cudaHostAlloc (&data, EBB_CUDA_N_STAGING_SLOTS * EBB_CUDA_STAGING_SLOT, cudaHostAllocPortable),
                       "allocating host memory for copies", error))
    return FALSE;
  self->data = data;
  return TRUE;
}

/* Waits until the last copy of slot @i is done; with the device unlocked. */
static gboolean
free_slot (EbbCudaDevice *device,
           guint i,
           GError **error)
{
  EbbCudaPoint *point = device->staging.points[i];
  cudaError_t status;
  gboolean ok;
  int previous;

  if (point == NULL)
    return TRUE;
  previous = ebb_cuda_enter (device->index);
  status = cudaEventSynchronize (point->event);
  ebb_cuda_leave (previous);
  EBB_AUTO_LOCK (&device->lock);
  device->staging.points[i] = NULL;
  ebb_cuda_point_unref (device, point);
  ok = ebb_cuda_check (device, status, "a copy", error);
  return ok;
}

/* Enqueues a copy between slot @i, which is free, and @data of the device. */
static gboolean
enqueue_slot (EbbCudaDevice *device,
              guint i,
              void *data,
              gsize size,
              gboolean to_host,
              GError **error)
{
  EbbCudaStaging *self = &device->staging;
  char *slot = self->data + i * EBB_CUDA_STAGING_SLOT;
  const cudaStream_t stream = device->streams[EBB_STREAM_COMPUTE].stream;
  cudaError_t status;
  int previous;

  if (!ebb_cuda_begin (device, &previous, error))
    return FALSE;
  if (to_host)
    status = cudaMemcpyAsync (slot, data, size, cudaMemcpyDeviceToHost, stream);
  else
    status = cudaMemcpyAsync (data, slot, size, cudaMemcpyHostToDevice, stream);
  if (ebb_cuda_check (device, status, to_host ? "copy to host" : "copy from host", error))
    self->points[i] = ebb_cuda_point_record (device, EBB_STREAM_COMPUTE, FALSE, error);
  if (self->points[i] != NULL && !to_host)
    {
      if (self->last_upload != NULL)
        ebb_cuda_point_unref (device, self->last_upload);
      self->last_upload = ebb_cuda_point_ref (self->points[i]);
      self->upload_serial++;
    }
  ebb_cuda_end (device, previous);
  return self->points[i] != NULL;
}

static gboolean
copy_from_host (EbbCudaDevice *device,
                char *data,
                const char *host,
                gsize size,
                GError **error)
{
  EbbCudaStaging *self = &device->staging;

  for (gsize done = 0; done < size; done += EBB_CUDA_STAGING_SLOT)
    {
      const gsize n = MIN (size - done, EBB_CUDA_STAGING_SLOT);
      const guint i = self->next;

      if (!free_slot (device, i, error))
        return FALSE;
      memcpy (self->data + i * EBB_CUDA_STAGING_SLOT, host + done, n);
      if (!enqueue_slot (device, i, data + done, n, FALSE, error))
        return FALSE;
      self->next = (i + 1) % EBB_CUDA_N_STAGING_SLOTS;
    }
  return TRUE;
}

/* Keeps half of the slots on the way while it empties the others. */
static gboolean
copy_to_host (EbbCudaDevice *device,
              char *host,
              char *data,
              gsize size,
              GError **error)
{
  const gsize ahead = EBB_CUDA_N_STAGING_SLOTS / 2 * EBB_CUDA_STAGING_SLOT;
  EbbCudaStaging *self = &device->staging;
  const guint first = self->next;
  gsize enqueued = 0;

  for (gsize done = 0; done < size; done += EBB_CUDA_STAGING_SLOT)
    {
      const guint slot = (guint) ((first + done / EBB_CUDA_STAGING_SLOT) % EBB_CUDA_N_STAGING_SLOTS);

      for (; enqueued < size && enqueued < done + ahead; enqueued += EBB_CUDA_STAGING_SLOT)
        {
          const guint i = (guint) ((first + enqueued / EBB_CUDA_STAGING_SLOT) % EBB_CUDA_N_STAGING_SLOTS);

          if (!free_slot (device, i, error)
              || !enqueue_slot (device, i, data + enqueued, MIN (size - enqueued, EBB_CUDA_STAGING_SLOT), TRUE, error))
            return FALSE;
        }
      if (!free_slot (device, slot, error))
        return FALSE;
      memcpy (host + done, self->data + slot * EBB_CUDA_STAGING_SLOT, MIN (size - done, EBB_CUDA_STAGING_SLOT));
    }
  return TRUE;
}

static gboolean
take_failure (EbbCudaDevice *device,
              gsize size,
              gboolean to_host,
              GError **error)
{
  gboolean fails;

  pthread_mutex_lock (&device->lock);
  fails = ebb_cuda_take_failure (device, to_host ? EBB_FAILURE_TO_HOST : EBB_FAILURE_FROM_HOST);
  pthread_mutex_unlock (&device->lock);
  if (fails)
    g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE,
                 "%s: the copy of %" G_GSIZE_FORMAT " bytes %s failed: asked to fail", device->name, size,
                 to_host ? "to the host" : "from the host");
  return fails;
}

gboolean
ebb_cuda_copy_now (int index,
                   void *destination,
                   const void *source,
                   gsize size,
                   gboolean to_host,
                   GError **error)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);
  gboolean ok;
  int previous;

  if (size == 0)
    return TRUE;
  /* In a process that was forked amid a copy nobody gives the lock back. */
  if (!ebb_cuda_check_alive (device, error) || take_failure (device, size, to_host, error))
    return FALSE;
  pthread_mutex_lock (&device->staging.lock);
  ok = ebb_cuda_begin (device, &previous, error);
  if (ok)
    {
      ok = open_slots (device, error);
      ebb_cuda_end (device, previous);
    }
  if (ok && to_host)
    ok = copy_to_host (device, destination, (char *) source, size, error);
  else if (ok)
    ok = copy_from_host (device, destination, source, size, error);
  pthread_mutex_unlock (&device->staging.lock);
  /* The copied values may depend on an index fault, which must be reported before they are used. */
  if (ok && to_host)
    {
      ok = ebb_cuda_begin (device, &previous, error);
      if (ok)
        ebb_cuda_end (device, previous);
    }
  return ok;
}

gboolean
ebb_cuda_come_after_uploads (EbbCudaDevice *device,
                             EbbStream stream,
                             GError **error)
{
  EbbCudaStaging *staging = &device->staging;
  EbbCudaStream *self = &device->streams[stream];

  if (stream == EBB_STREAM_COMPUTE || self->upload_serial == staging->upload_serial)
    return TRUE;
  if (!ebb_cuda_check (device, cudaStreamWaitEvent (self->stream, staging->last_upload->event, 0),
                       "waiting for a copy", error))
    return FALSE;
  self->upload_serial = staging->upload_serial;
  return TRUE;
}
