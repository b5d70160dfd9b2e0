/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Index faults: a kernel that meets an index out of range goes on with a valid one and records the first fault. The
 * host sees the flag without waiting, in whichever call it makes next, and only then waits to read the record.
 *
 * The failure of a library's work in a stream, a collective of NCCL, goes the same way; the host makes the record. */
#include "tensor/cuda/cuda-private.h"

#include <stddef.h>

/* The serial of a library's failure: no launch has it. */
#define OF_LIBRARY G_MAXUINT32

/* In pinned memory: the flag, a copy of the record, and the serial that is written for a library's failure. */
typedef struct
{
  EbbCudaFault record;
  guint32 library_failure;
  volatile guint32 flag;
} Mirror;

static Mirror *
get_mirror (EbbCudaDevice *device)
{
  return (Mirror *) (void *) ((char *) device->faults.flag - offsetof (Mirror, flag));
}

gboolean
ebb_cuda_faults_init (EbbCudaDevice *device,
                      GError **error)
{
  EbbCudaFaults *self = &device->faults;
  void *host = NULL, *mapped = NULL, *record = NULL;
  Mirror *mirror;

  if (!ebb_cuda_check (device, cudaHostAlloc (&host, sizeof (Mirror), cudaHostAllocPortable | cudaHostAllocMapped),
                       "allocating host memory", error))
    return FALSE;
  mirror = host;
  mirror->record = (EbbCudaFault){ .serial = 0 };
  mirror->library_failure = OF_LIBRARY;
  mirror->flag = 0;
  self->flag = &mirror->flag;
  if (!ebb_cuda_check (device, cudaStreamCreateWithFlags (&self->stream, cudaStreamNonBlocking), "making a stream",
                       error)
      || !ebb_cuda_check (device, cudaHostGetDevicePointer (&mapped, host, 0), "mapping host memory", error)
      || !ebb_cuda_check (device, cudaMalloc (&record, sizeof (EbbCudaFault)), "allocating memory", error))
    return FALSE;
  self->record = record;
  mirror->record.flag = (volatile guint32 *) (void *) ((char *) mapped + offsetof (Mirror, flag));
  return ebb_cuda_check (device,
                         cudaMemcpyAsync (record, &mirror->record, sizeof (EbbCudaFault), cudaMemcpyHostToDevice,
                                          device->streams[EBB_STREAM_COMPUTE].stream),
                         "a copy", error)
         && ebb_cuda_check (device, cudaStreamSynchronize (device->streams[EBB_STREAM_COMPUTE].stream), "a copy",
                            error);
}

/* In the place of an op's name: the position is that of a row of weights that nothing can be drawn from. */
static const char bad_weights[] = "multinomial";

static gboolean
reports_faults (EbbKernel kernel)
{
  switch (kernel)
    {
    case EBB_KERNEL_MULTINOMIAL:
    case EBB_KERNEL_INDEX_SELECT:
    case EBB_KERNEL_INDEX_ADD:
    case EBB_KERNEL_GATHER:
    case EBB_KERNEL_SCATTER_ADD:
    case EBB_KERNEL_CROSS_ENTROPY:
    case EBB_KERNEL_CROSS_ENTROPY_GRAD:
    case EBB_KERNEL_CROSS_ENTROPY_PART: return TRUE;
    default: return FALSE;
    }
}

guint32
ebb_cuda_faults_note (EbbCudaDevice *device,
                      const EbbLaunch *launch)
{
  EbbCudaFaults *self = &device->faults;

  if (!reports_faults (launch->kernel))
    return 0;
  if (++self->serial == OF_LIBRARY)
    self->serial = 1; /* 0 is no fault */
  self->ops[self->serial % EBB_CUDA_N_INDEX_LAUNCHES] =
      launch->kernel == EBB_KERNEL_MULTINOMIAL ? bad_weights
      : launch->op != NULL                     ? launch->op
                                               : ebb_cuda_host->get_kernel_name (launch->kernel);
  return self->serial;
}

/* With the device locked and nothing enqueued that could write the record. */
static gboolean
read_and_clear (EbbCudaDevice *device,
                EbbCudaFault *fault,
                GError **error)
{
  EbbCudaFaults *self = &device->faults;
  const cudaStream_t stream = device->streams[EBB_STREAM_COMPUTE].stream;
  Mirror *mirror = get_mirror (device);

  if (!ebb_cuda_check (device,
                       cudaMemcpyAsync (&mirror->record, self->record, sizeof (EbbCudaFault), cudaMemcpyDeviceToHost,
                                        stream),
                       "a copy", error)
      || !ebb_cuda_check (device, cudaMemsetAsync (self->record, 0, offsetof (EbbCudaFault, flag), stream), "a copy",
                          error)
      || !ebb_cuda_check (device, cudaStreamSynchronize (stream), "waiting for the device", error))
    return FALSE;
  *fault = mirror->record;
  *self->flag = 0;
  return TRUE;
}

gboolean
ebb_cuda_faults_report (EbbCudaDevice *device,
                        GError **error)
{
  EbbCudaFaults *self = &device->faults;
  g_autofree char *text = NULL;
  GError *library_failure = NULL;
  gboolean is_read;
  EbbCudaFault fault;
  cudaError_t status = cudaSuccess;

  /* Launches after the one with the fault must have seen it. The others that are enqueued meanwhile see it as well. */
  for (int i = 0; i < EBB_N_STREAMS && status == cudaSuccess; i++)
    status = cudaStreamSynchronize (device->streams[i].stream);
  if (!ebb_cuda_check (device, status, "waiting for the device", error))
    return FALSE;
  pthread_mutex_lock (&self->lock);
  is_read = read_and_clear (device, &fault, error);
  if (is_read)
    library_failure = g_steal_pointer (&self->library_failure);
  pthread_mutex_unlock (&self->lock);
  if (!is_read)
    return FALSE;
  if (fault.serial == 0 || fault.serial == OF_LIBRARY)
    {
      const gboolean is_over = library_failure == NULL; /* it was reported */

      if (!is_over)
        g_propagate_error (error, library_failure);
      return is_over;
    }
  g_clear_error (&library_failure); /* it came of the fault: ranks that report theirs leave others waiting */
  if (self->ops[fault.serial % EBB_CUDA_N_INDEX_LAUNCHES] == bad_weights)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "Row %" G_GINT64_FORMAT " of the weights to draw from must be finite, not negative and not all 0",
                     fault.position);
  text = ebb_cuda_host->index_fault_to_string (self->ops[fault.serial % EBB_CUDA_N_INDEX_LAUNCHES], fault.value,
                                               fault.position, fault.limit);
  return ebb_fail (error, EBB_ERROR_INDEX, "%s", text);
}

/* Without the device's lock: the thread that holds it may be waiting for the work that failed. A thread that reads the
 * record holds the other lock, and waits for nothing but its copy. */
void
ebb_cuda_faults_set_failure (EbbCudaDevice *device,
                             const GError *reason)
{
  EbbCudaFaults *self = &device->faults;
  int previous = ebb_cuda_enter (device->index);

  pthread_mutex_lock (&self->lock);
  if (self->library_failure == NULL)
    {
      self->library_failure = g_error_copy (reason);
      /* A fault that a kernel recorded stays. If CUDA fails, the device has ended and does nothing more anyway. */
      if (*self->flag == 0)
        cudaMemcpyAsync (&self->record->serial, &get_mirror (device)->library_failure, sizeof (guint32),
                         cudaMemcpyHostToDevice, self->stream);
      cudaStreamSynchronize (self->stream);
      *self->flag = 1;
    }
  pthread_mutex_unlock (&self->lock);
  ebb_cuda_leave (previous);
}

void
ebb_cuda_faults_clear (EbbCudaDevice *device)
{
  EbbCudaFaults *self = &device->faults;

  g_clear_error (&self->library_failure);
  if (self->stream != NULL)
    cudaStreamDestroy (self->stream);
  if (self->record != NULL)
    cudaFree (self->record);
  if (self->flag != NULL)
    cudaFreeHost (get_mirror (device));
}
