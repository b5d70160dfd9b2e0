/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/profile/rerun-private.h"

#include "tensor/error-private.h"
#include "tensor/thread-private.h"

#include <stdlib.h>

/* Running launches again: their data, their workspace, and the median of their times. */

gsize
ebb_rerun_get_extent (const EbbView *view)
{
  gint64 extent = 1;

  for (int i = 0; i < view->n_dims; i++)
    extent += MAX (view->shape[i] - 1, 0) * view->strides[i];
  return (gsize) extent * ebb_dtype_get_size (view->dtype);
}

static gboolean
check_kernel (EbbDevice *device,
              const EbbLaunch *launch,
              GError **error)
{
  return device->kernels[launch->kernel] != NULL
         || ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "device %s has no kernel %s", device->name,
                      ebb_kernel_get_name (launch->kernel));
}

gboolean
ebb_rerun_launch (EbbDevice *device,
                  EbbLaunch *launch,
                  GError **error)
{
  return check_kernel (device, launch, error) && ebb_device_launch (device, launch, error)
         && (device->backend->synchronize == NULL || device->backend->synchronize (device->index, error));
}

gboolean
ebb_rerun_time_on_device (EbbDevice *device,
                          EbbLaunch *launch,
                          guint n,
                          double *seconds,
                          GError **error)
{
  const EbbBackend *backend = device->backend;
  gboolean ok;

  if (!check_kernel (device, launch, error))
    return FALSE;
  launch->workspace = NULL;
  launch->workspace_size = backend->get_workspace != NULL ? backend->get_workspace (device->index, launch) : 0;
  if (launch->workspace_size > 0)
    launch->workspace = ebb_device_alloc (device, launch->workspace_size, EBB_PURPOSE_WORKSPACE, error);
  if (launch->workspace_size > 0 && launch->workspace == NULL)
    return FALSE;
  ok = backend->time_launches (device->index, launch, n, seconds, error);
  if (launch->workspace != NULL)
    ebb_device_free (device, launch->workspace, launch->workspace_size, EBB_PURPOSE_WORKSPACE);
  return ok;
}

gboolean
ebb_rerun_fill_random (EbbDevice *device,
                       EbbView *view,
                       guint64 seed,
                       GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_UNIFORM);
  launch.params.random.philox.seed = seed;
  launch.params.random.low = -1;
  launch.params.random.high = 1;
  launch.outputs[launch.n_outputs++] = view;
  return ebb_rerun_launch (device, &launch, error);
}

static int
compare (const void *a,
         const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;

  return x < y ? -1 : x > y;
}

double
ebb_rerun_take_median (double *times,
                       guint n)
{
  qsort (times, n, sizeof (double), compare);
  return n % 2 == 1 ? times[n / 2] : (times[n / 2 - 1] + times[n / 2]) / 2;
}
