/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Launches: from the library's description to the function of the kernel, with the few things that surround it. */
#include "tensor/cuda/cuda-private.h"

gsize
ebb_cuda_get_workspace (int index,
                        const EbbLaunch *launch)
{
  const EbbCudaWorkspaceFunc func = ebb_cuda_workspaces[launch->kernel];

  /* The plan of a product belongs to a device. */
  if (launch->kernel == EBB_KERNEL_MATMUL)
    return ebb_cuda_matmul_get_workspace (ebb_cuda_device_get (index), launch);
  return func != NULL ? func (launch) : 0;
}

/* "bf16 [4, 8]" for messages. */
static void
append_view (GString *text,
             const EbbView *view)
{
  static const char *const names[EBB_N_DTYPES] = { "f32", "bf16", "f16", "i32", "i64", "u8", "bool" };

  g_string_append_printf (text, "%s%s [", text->len > 0 ? ", " : "", names[view->dtype]);
  for (int i = 0; i < view->n_dims; i++)
    g_string_append_printf (text, "%s%" G_GINT64_FORMAT, i > 0 ? ", " : "", view->shape[i]);
  g_string_append_c (text, ']');
}

static void
set_not_supported (EbbCudaDevice *device,
                   const EbbLaunch *launch,
                   const char *name,
                   GError **error)
{
  g_autoptr (GString) text = g_string_new (NULL);

  for (guint i = 0; i < launch->n_inputs; i++)
    if (launch->inputs[i] != NULL)
      append_view (text, launch->inputs[i]);
  g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED, "%s: kernel %s does not take %s; compute it on cpu",
               device->name, name, text->len > 0 ? text->str : "this");
}

/* FALSE. Where CUDA itself has failed, cuBLASLt only says that it could not go on. */
static gboolean
report_blas (EbbCudaDevice *device,
             const char *name,
             GError **error)
{
  const char *status = g_steal_pointer (&device->blas_status);

  if (ebb_cuda_check (device, cudaGetLastError (), name, error))
    g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE, "%s: %s failed: cuBLASLt returns %s", device->name, name, status);
  return FALSE;
}

/* With the device locked. */
static gboolean
run (EbbCudaDevice *device,
     EbbStream stream,
     const EbbLaunch *launch,
     const char *name,
     GError **error)
{
  const EbbCudaQueue queue = { .stream = device->streams[stream].stream,
                               .device = device->index,
                               .architecture = device->architecture,
                               .n_multiprocessors = device->n_multiprocessors,
                               .shared_bytes = device->shared_bytes,
                               .serial = ebb_cuda_faults_note (device, launch),
                               .fault = device->faults.record,
                               .guard = launch->changes ? device->faults.record : NULL };
  cudaError_t status;

  if (G_UNLIKELY (ebb_cuda_take_failure (device, EBB_FAILURE_LAUNCH)))
    return ebb_fail (error, EBB_ERROR_DEVICE, "%s: %s failed: asked to fail", device->name, name);
  status = ebb_cuda_kernels[launch->kernel](launch, &queue);
  if (G_LIKELY (status == cudaSuccess))
    return TRUE;
  if (launch->kernel == EBB_KERNEL_MATMUL && device->blas_status != NULL)
    return report_blas (device, name, error);
  if (status != cudaErrorNotSupported)
    return ebb_cuda_check (device, status, name, error);
  cudaGetLastError ();
  set_not_supported (device, launch, name, error);
  return FALSE;
}

/* The same between two points. */
static gboolean
run_traced (EbbCudaDevice *device,
            EbbStream stream,
            const EbbLaunch *launch,
            const char *name,
            GError **error)
{
  EbbCudaPoint *begin = ebb_cuda_point_record (device, stream, TRUE, error);
  EbbCudaPoint *end = NULL;

  if (begin == NULL)
    return FALSE;
  if (run (device, stream, launch, name, error))
    end = ebb_cuda_point_record (device, stream, TRUE, error);
  if (end != NULL)
    ebb_cuda_add_work (device, stream, begin, end, name, 0);
  else
    ebb_cuda_point_unref (device, begin);
  return end != NULL;
}

gboolean
ebb_cuda_launch_in (int index,
                    EbbStream stream,
                    const EbbLaunch *launch,
                    GError **error)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);
  const char *name = ebb_cuda_host->get_kernel_name (launch->kernel);
  gboolean ok;
  int previous;

  /* A report waits for all queues, and amid a collective other ranks wait for this launch. */
  if (stream == EBB_STREAM_COLLECTIVE ? !ebb_cuda_begin_unreported (device, &previous, error)
                                      : !ebb_cuda_begin (device, &previous, error))
    return FALSE;
  ok = ebb_cuda_come_after_uploads (device, stream, error);
  if (ok && G_UNLIKELY (device->tracing))
    ok = run_traced (device, stream, launch, name, error);
  else if (ok)
    ok = run (device, stream, launch, name, error);
  ebb_cuda_end (device, previous);
  return ok;
}

gboolean
ebb_cuda_launch (int index,
                 const EbbLaunch *launch,
                 GError **error)
{
  return ebb_cuda_launch_in (index, EBB_STREAM_COMPUTE, launch, error);
}

gboolean
ebb_cuda_time_launches (int index,
                        const EbbLaunch *launch,
                        guint n,
                        double *seconds,
                        GError **error)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);
  const char *name = ebb_cuda_host->get_kernel_name (launch->kernel);
  g_autofree EbbCudaPoint **points = g_new0 (EbbCudaPoint *, n + 1);
  gboolean ok;
  int previous;

  if (!ebb_cuda_begin (device, &previous, error))
    return FALSE;
  points[0] = ebb_cuda_point_record (device, EBB_STREAM_COMPUTE, TRUE, error);
  ok = points[0] != NULL;
  for (guint i = 0; ok && i < n; i++)
    {
      ok = run (device, EBB_STREAM_COMPUTE, launch, name, error);
      points[i + 1] = ok ? ebb_cuda_point_record (device, EBB_STREAM_COMPUTE, TRUE, error) : NULL;
      ok = points[i + 1] != NULL;
    }
  ok = ok && ebb_cuda_check (device, cudaEventSynchronize (points[n]->event), name, error);
  for (guint i = 0; ok && i < n; i++)
    {
      float milliseconds = 0;

      ok = ebb_cuda_check (device, cudaEventElapsedTime (&milliseconds, points[i]->event, points[i + 1]->event), name,
                           error);
      seconds[i] = (double) milliseconds * 1e-3;
    }
  for (guint i = 0; i <= n; i++)
    if (points[i] != NULL)
      ebb_cuda_point_unref (device, points[i]);
  ebb_cuda_end (device, previous);
  return ok;
}
