/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/tensors.h"
#include "tensor/backend/backend-private.h"
#include "tensor/tensor-private.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What is missing or wrong around a GPU, or breaks on it, is one line, and the CPU goes on. Each case is a process of
 * its own, since CUDA begins once in a process. */

typedef struct
{
  const char *name, *variable, *value, *device, *says;
} Case;

static const Case cases[] = {
  { "no-driver", "EBB_CUDAEMU_FAIL", "no-driver", "cudaemu",
    "device \"cudaemu\": there is no NVIDIA driver on this machine (libcuda.so.1)" },
  { "old-driver", "EBB_CUDAEMU_FAIL", "old-driver", "cudaemu",
    "device \"cudaemu\": the NVIDIA driver is too old: it runs CUDA 11.4, and CUDA 12.0 is needed" },
  { "no-device", "EBB_CUDAEMU_FAIL", "no-device", "cudaemu", "device \"cudaemu\": there is no NVIDIA GPU" },
  { "hidden-device", "CUDA_VISIBLE_DEVICES", "", "cudaemu",
    "device \"cudaemu\": there is no NVIDIA GPU (CUDA_VISIBLE_DEVICES is \"\")" },
  { "no-kernels", "EBB_CUDAEMU_FAIL", "no-kernels", "cudaemu",
    "device \"cudaemu\": this build has no kernels for compute capability 8.0; build it with" },
  { "one-device", "EBB_CUDAEMU_DEVICES", "1", "cudaemu:1",
    "device \"cudaemu:1\": there is one GPU, \"cudaemu\"" },
  { "two-devices", "EBB_CUDAEMU_DEVICES", "2", "cudaemu:2",
    "device \"cudaemu:2\": there are 2 GPUs, \"cudaemu\" to \"cudaemu:1\"" },
  { "memory", "EBB_CUDA_MEMORY", "much", "cudaemu",
    "device \"cudaemu\": EBB_CUDA_MEMORY is \"much\"; it must be a size from 256 bytes on" },
  { "more-memory", "EBB_CUDA_MEMORY", "1T", "cudaemu",
    "device \"cudaemu\": EBB_CUDA_MEMORY is \"1T\", but the GPU has 2147483648 bytes" },
  { "tf32", "EBB_CUDA_TF32", "yes", "cudaemu",
    "device \"cudaemu\": EBB_CUDA_TF32 is \"yes\"; it must be 1 (products of f32 in TF32) or 0 (in full f32)" },
};

/* What every process does in the end. */
static void
compute_on_the_cpu (void)
{
  g_autoptr (GError) error = NULL;
  gint64 n = 3;
  g_autoptr (EbbTensor) x = ebb_ones (&n, 1, EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) y = ebb_add (x, x, &error);

  g_assert_no_error (error);
  g_assert_cmpfloat (test_at (y, 2), ==, 2);
}

static void
a_device_that_is_not_there_is_one_line (gconstpointer data)
{
  const Case *c = data;

  if (g_test_subprocess ())
    {
      g_autoptr (GError) error = NULL;

      g_setenv (c->variable, c->value, TRUE);
      if (strcmp (c->name, "hidden-device") == 0)
        g_setenv ("EBB_CUDAEMU_FAIL", "no-device", TRUE);
      g_assert_null (ebb_device_get (c->device, &error));
      test_assert_error (error, EBB_ERROR_DEVICE, c->says);
      compute_on_the_cpu ();
      return;
    }
  g_test_trap_subprocess (NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
  g_test_trap_assert_passed ();
}

static EbbTensor *
make (EbbDevice *device,
      GError **error)
{
  const gint64 n = 1000;

  return ebb_full (&n, 1, 2, EBB_DTYPE_F32, device, error);
}

/* A kernel faults: nothing is computed from what it left, and the process lives. */
static void
a_kernel_that_faults_ends_the_device_alone (void)
{
  if (g_test_subprocess ())
    {
      g_autoptr (GError) error = NULL, again = NULL, alloc = NULL;
      EbbDevice *device;

      g_setenv ("EBB_CUDAEMU_FAIL", "kernel:3", TRUE);
      device = ebb_device_get ("cudaemu", &error);
      g_assert_no_error (error);
      {
        g_autoptr (EbbTensor) x = make (device, &error), y = ebb_add (x, x, &error), z = ebb_mul (y, x, &error);
        g_autoptr (EbbTensor) here = NULL;

        here = ebb_to_device (z, NULL, &error);
        g_assert_null (here);
        test_assert_error (error, EBB_ERROR_DEVICE, "cudaemu does no more work in this process", "(cudaError");
        g_assert_null (ebb_add (x, x, &again));
        g_assert_cmpstr (again->message, ==, error->message);
        g_assert_false (ebb_device_synchronize (device, NULL));
        compute_on_the_cpu ();
      }
      g_assert_null (make (device, &alloc));
      g_assert_nonnull (strstr (alloc->message, error->message));
      return;
    }
  g_test_trap_subprocess (NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
  g_test_trap_assert_passed ();
}

/* What is wrong with one launch ends nothing. */
static void
a_launch_that_is_refused_is_one_error (void)
{
  if (g_test_subprocess ())
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) x = NULL, none = NULL, rows = NULL, columns = NULL, product = NULL;
      EbbDevice *device;

      g_setenv ("EBB_CUDAEMU_FAIL", "launch:1,blas:1", TRUE);
      device = ebb_device_get ("cudaemu", &error);
      g_assert_no_error (error);
      none = make (device, &error);
      g_assert_null (none);
      test_assert_error (error, EBB_ERROR_DEVICE, "cudaemu: fill failed: ");
      g_clear_error (&error);
      x = make (device, &error);
      g_assert_no_error (error);
      g_assert_cmpfloat (test_at (x, 999), ==, 2);
      rows = ebb_reshape (x, (const gint64[]){ 10, 100 }, 2, &error);
      columns = ebb_transpose (rows, 0, 1, &error);
      g_assert_no_error (error);
      g_assert_null (ebb_matmul (rows, columns, &error));
      test_assert_error (error, EBB_ERROR_DEVICE,
                         "cudaemu: matmul failed: cuBLASLt returns CUBLAS_STATUS_EXECUTION_FAILED");
      g_clear_error (&error);
      product = ebb_matmul (rows, columns, &error);
      g_assert_no_error (error);
      g_assert_cmpfloat (test_at (product, 99), ==, 400);
      return;
    }
  g_test_trap_subprocess (NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
  g_test_trap_assert_passed ();
}

/* The heap has room, but other processes have the memory. */
static void
memory_that_others_have_is_an_error (void)
{
  if (g_test_subprocess ())
    {
      const gint64 n = 1000;
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) x = NULL, again = NULL;
      EbbDevice *device;

      g_setenv ("EBB_CUDAEMU_FAIL", "alloc:2", TRUE);
      device = ebb_device_get ("cudaemu", &error);
      g_assert_no_error (error);
      x = ebb_zeros (&n, 1, EBB_DTYPE_F32, device, &error);
      g_assert_null (x);
      test_assert_error (error, EBB_ERROR_NO_MEMORY, "out of memory on cudaemu: 4000 bytes asked for, but the GPU has",
                         "other processes and libraries have the rest; in use: nothing");
      g_clear_error (&error);
      again = ebb_zeros (&n, 1, EBB_DTYPE_F32, device, &error);
      g_assert_no_error (error);
      g_assert_cmpfloat (test_at (again, 999), ==, 0);
      return;
    }
  g_test_trap_subprocess (NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
  g_test_trap_assert_passed ();
}

/* Pinned memory that nothing uses any more goes before a block is refused. */
static void
spare_pinned_memory_gives_way (void)
{
  const gsize size = 3 << 20, larger = 5 << 20;

  if (g_test_subprocess ())
    {
      g_autoptr (GError) error = NULL;
      const EbbStreamFuncs *streams;
      guint64 pinned = 0;
      EbbDevice *device;
      void *block;

      g_setenv ("EBB_CUDAEMU_FAIL", "host:3", TRUE); /* the first is for index faults */
      device = ebb_device_get ("cudaemu", &error);
      g_assert_no_error (error);
      streams = device->backend->streams;
      block = streams->alloc_host (device->index, size, &error);
      streams->free_host (device->index, block, size);
      device->backend->get_taken (device->index, NULL, &pinned);
      g_assert_cmpuint (pinned, ==, size);
      block = streams->alloc_host (device->index, larger, &error);
      g_assert_no_error (error);
      device->backend->get_taken (device->index, NULL, &pinned);
      g_assert_cmpuint (pinned, ==, larger);
      streams->free_host (device->index, block, larger);
      return;
    }
  g_test_trap_subprocess (NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
  g_test_trap_assert_passed ();
}

/* -- children ------------------------------------------------------------------------------------------------------ */

#define N_CHILDREN 40
#define PINNED 5000

static int has_ended; /* atomic */

/* Has the backend's locks at most times, and none of the library's. */
static gpointer
pin_and_copy (gpointer data)
{
  const EbbTensor *x = data;
  const EbbBackend *backend = x->storage->device->backend;
  const int index = x->storage->device->index;
  char here[1000];

  while (!g_atomic_int_get (&has_ended))
    {
      g_autoptr (GError) error = NULL;

      g_assert_true (backend->copy (index, here, x->view.data, sizeof here, TRUE, &error));
      for (int i = 0; i < 100; i++)
        backend->streams->free_host (index, backend->streams->alloc_host (index, PINNED, &error), PINNED);
      g_assert_no_error (error);
    }
  return NULL;
}

static void
live_without_a_device (EbbTensor *x,
                       void *pinned)
{
  EbbDevice *device = x->storage->device;
  g_autoptr (GError) error = NULL, again = NULL;

  alarm (20);
  g_assert_null (ebb_add (x, x, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "cudaemu does no work in this process: it was forked");
  g_assert_null (ebb_to_device (x, NULL, &again));
  g_assert_nonnull (strstr (again->message, "it was forked"));
  device->backend->streams->free_host (device->index, pinned, PINNED);
  compute_on_the_cpu ();
  _exit (EXIT_SUCCESS);
}

/* A child of this process has its memory, but no GPU, and waits for no lock that another thread of its parent had. */
static void
a_forked_process_has_no_device (void)
{
  if (g_test_subprocess ())
    {
      g_autoptr (GError) error = NULL;
      EbbDevice *device = ebb_device_get ("cudaemu", &error);
      g_autoptr (EbbTensor) x = make (device, &error);
      void *pinned = device->backend->streams->alloc_host (device->index, PINNED, &error);
      GThread *thread = g_thread_new ("busy", pin_and_copy, x);

      g_assert_no_error (error);
      for (int i = 0; i < N_CHILDREN; i++)
        {
          pid_t child = fork ();
          int status = -1;

          if (child == 0)
            live_without_a_device (x, pinned);
          g_assert_cmpint (waitpid (child, &status, 0), ==, child);
          g_assert_cmpint (status, ==, 0);
        }
      g_atomic_int_set (&has_ended, TRUE);
      g_thread_join (thread);
      device->backend->streams->free_host (device->index, pinned, PINNED);
      g_assert_cmpfloat (test_at (x, 0), ==, 2);
      return;
    }
  g_test_trap_subprocess (NULL, 0, G_TEST_SUBPROCESS_DEFAULT);
  g_test_trap_assert_passed ();
}

int
main (int argc,
      char *argv[])
{
  g_test_init (&argc, &argv, NULL);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *path = g_strdup_printf ("/cuda/a-device-that-is-not-there-is-one-line/%s", cases[i].name);

      g_test_add_data_func (path, &cases[i], a_device_that_is_not_there_is_one_line);
    }
  g_test_add_func ("/cuda/a-kernel-that-faults-ends-the-device-alone", a_kernel_that_faults_ends_the_device_alone);
  g_test_add_func ("/cuda/a-launch-that-is-refused-is-one-error", a_launch_that_is_refused_is_one_error);
  g_test_add_func ("/cuda/memory-that-others-have-is-an-error", memory_that_others_have_is_an_error);
  g_test_add_func ("/cuda/spare-pinned-memory-gives-way", spare_pinned_memory_gives_way);
  g_test_add_func ("/cuda/a-forked-process-has-no-device", a_forked_process_has_no_device);
  return g_test_run ();
}
