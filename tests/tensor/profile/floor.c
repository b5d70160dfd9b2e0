/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/device.h"
#include "support/profiles.h"
#include "support/tensors.h"
#include "support/training.h"
#include "tensor/backend/backend-private.h"

/* A backend that times launches by its own clock says what the floor is. */

static guint n_timed;

static gboolean
time_launches (int index, const EbbLaunch *launch, guint n, double *seconds, GError **error)
{
  const EbbKernelFunc *kernels = ebb_cpu_backend.get_kernels ();

  for (guint i = 0; i < n; i++)
    seconds[i] = i % 3 == 0 ? 1e-3 : 2e-3; /* the median is 2 */
  n_timed++;
  return kernels[launch->kernel](launch, error);
}

static void
the_device_times_its_launches (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = test_profile_new (module, x);
  EbbBackend backend = ebb_cpu_backend;

  backend.time_launches = time_launches;
  ebb_device_get_cpu ()->backend = &backend;
  g_assert_true (ebb_profiler_measure_floor (profiler, &error));
  ebb_device_get_cpu ()->backend = &ebb_cpu_backend;
  g_assert_no_error (error);
  g_assert_cmpuint (n_timed, >=, 2);
  /* Two products forward, three backward. */
  g_assert_cmpfloat_with_epsilon (ebb_profiler_get_floor_seconds (profiler), 5 * 2e-3, 1e-9);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/floor/the-device-times-its-launches", the_device_times_its_launches);
  return g_test_run ();
}
