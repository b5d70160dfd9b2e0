/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The GPUs that are open: one call at a time on each, as the current one of its thread. */
#include "tensor/cuda/cuda-private.h"

#define LOSS_CHUNK ((gsize) 1 << 30)
#define LOSS_CHUNK_FRACTION 16

static EbbCudaDevice *devices[EBB_CUDA_MAX_DEVICES];

EbbCudaDevice *
ebb_cuda_device_get (int index)
{
  return __atomic_load_n (&devices[index], __ATOMIC_ACQUIRE);
}

void
ebb_cuda_device_add (EbbCudaDevice *device)
{
  __atomic_store_n (&devices[device->index], device, __ATOMIC_RELEASE);
}

guint64
ebb_cuda_get_capacity (int index)
{
  return ebb_cuda_device_get (index)->heap.blocks.capacity;
}

/* Few chunks: each one reads and writes the gradient of the weight once more. */
gsize
ebb_cuda_get_loss_chunk_bytes (int index)
{
  return MIN (LOSS_CHUNK, ebb_cuda_device_get (index)->heap.blocks.capacity / LOSS_CHUNK_FRACTION);
}

/* -- one call at a time -------------------------------------------------------------------------------------------- */

gboolean
ebb_cuda_begin_unreported (EbbCudaDevice *device,
                           int *previous,
                           GError **error)
{
  if (G_UNLIKELY (!ebb_cuda_check_alive (device, error)))
    return FALSE;
  *previous = ebb_cuda_enter (device->index);
  pthread_mutex_lock (&device->lock);
  return TRUE;
}

gboolean
ebb_cuda_begin (EbbCudaDevice *device,
                int *previous,
                GError **error)
{
  if (!ebb_cuda_begin_unreported (device, previous, error))
    return FALSE;
  if (G_LIKELY (error == NULL || *device->faults.flag == 0) || ebb_cuda_faults_report (device, error))
    return TRUE;
  ebb_cuda_end (device, *previous);
  return FALSE;
}

void
ebb_cuda_end (EbbCudaDevice *device,
              int previous)
{
  pthread_mutex_unlock (&device->lock);
  ebb_cuda_leave (previous);
}

/* -- failures that tests ask for ----------------------------------------------------------------------------------- */

guint64
ebb_cuda_fail (int index,
               EbbFailure what,
               guint64 n)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);
  guint64 left;

  EBB_AUTO_LOCK (&device->lock);
  left = device->fails[what];
  device->fails[what] = n;
  return left;
}

gboolean
ebb_cuda_take_failure (EbbCudaDevice *device,
                       EbbFailure what)
{
  return G_UNLIKELY (device->fails[what] > 0) && --device->fails[what] == 0;
}
