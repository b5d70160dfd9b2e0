/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA GPUs as a backend: the table of functions, and the module's one symbol. */
#include "tensor/cuda/cuda-private.h"

/* The library calls launch () and asks here only whether there is a kernel. */
static gboolean
launch_is_enqueued (const EbbLaunch *launch,
                    GError **error)
{
  return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "%s: launches are enqueued", EBB_CUDA_NAME);
}

static const EbbKernelFunc *
get_kernels (void)
{
  static EbbKernelFunc kernels[EBB_N_KERNELS];

  for (int i = 0; i < EBB_N_KERNELS; i++)
    kernels[i] = launch_is_enqueued;
  return kernels;
}

static void
set_failure (int index,
             const GError *reason)
{
  ebb_cuda_faults_set_failure (ebb_cuda_device_get (index), reason);
}

static const EbbStreamFuncs streams = {
  .alloc_host = ebb_cuda_alloc_host,
  .free_host = ebb_cuda_free_host,
  .trim_host = ebb_cuda_trim_host,
  .copy = ebb_cuda_enqueue_copy,
  .record = ebb_cuda_record,
  .wait = ebb_cuda_wait,
  .synchronize_event = ebb_cuda_synchronize_event,
  .query_event = ebb_cuda_query_event,
  .get_times = ebb_cuda_get_times,
  .free_event = ebb_cuda_free_event,
  .get_seconds = ebb_cuda_get_seconds,
  .set_tracing = ebb_cuda_set_tracing,
  .take_spans = ebb_cuda_take_spans,
  .launch = ebb_cuda_launch_in,
  .get_native_stream = ebb_cuda_get_native_stream,
  .set_failure = set_failure,
};

static const EbbBackend backend = {
  .version = EBB_BACKEND_VERSION,
  .name = EBB_CUDA_NAME,
  .host_memory = FALSE,
  .open = ebb_cuda_device_open,
  .get_capacity = ebb_cuda_get_capacity,
  .alloc = ebb_cuda_alloc,
  .free = ebb_cuda_free,
  .get_taken = ebb_cuda_get_taken,
  .copy = ebb_cuda_copy_now,
  .synchronize = ebb_cuda_synchronize,
  .get_workspace = ebb_cuda_get_workspace,
  .launch = ebb_cuda_launch,
  .get_kernels = get_kernels,
  .streams = &streams,
  .time_launches = ebb_cuda_time_launches,
  .get_loss_chunk_bytes = ebb_cuda_get_loss_chunk_bytes,
  .most_head_width = EBB_CUDA_MAX_HEAD_WIDTH,
  .row_alignment = EBB_CUDA_ROW_ALIGNMENT,
  .fail = ebb_cuda_fail,
};

EBB_DEFINE_BACKEND_MODULE (backend, ebb_cuda_host)
