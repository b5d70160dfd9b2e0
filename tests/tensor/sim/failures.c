/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "offload/transfer/transfer-private.h"
#include "support/tensors.h"
#include "tensor/backend/backend-private.h"
#include "tensor/autograd/op-private.h"
#include "tensor/tensor-private.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Work that fails behind the caller's back: nothing is computed from data that never arrived, the error is reported,
 * and the next step is right. */

#define N 1000
#define SIZE (N * sizeof (float))

static EbbDevice *device;

static EbbTensor *
make_ones (void)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *x = ebb_ones ((const gint64[]){ N }, 1, EBB_DTYPE_F32, device, &error);

  g_assert_no_error (error);
  return x;
}

static void
assert_all_works (void)
{
  g_autoptr (EbbTensor) x = make_ones ();
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) y = ebb_add_scalar (x, 1.0, &error);
  g_autoptr (EbbTensor) here = ebb_to_device (y, NULL, &error);

  g_assert_no_error (error);
  g_assert_cmpfloat (test_sum (here), ==, 2.0 * N);
  g_assert_true (ebb_device_synchronize (device, &error));
}

static void
a_failed_kernel_is_reported_once (void)
{
  g_autoptr (EbbTensor) x = make_ones ();
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (GError) error = NULL;

  device->backend->fail (device->index, EBB_FAILURE_LAUNCH, 1);
  y = ebb_square (x, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (device->backend->fail (device->index, EBB_FAILURE_LAUNCH, 0), ==, 0);
  g_assert_false (ebb_device_synchronize (device, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "sim:40: unary failed: asked to fail");
  g_clear_error (&error);
  g_assert_true (ebb_device_synchronize (device, &error));
  assert_all_works ();
}

static void
what_comes_after_a_failure_is_dropped (void)
{
  g_autoptr (EbbTensor) x = make_ones ();
  g_autoptr (EbbTensor) here = NULL;
  g_autoptr (GError) error = NULL;
  EbbLaunch launch;
  gboolean ok = TRUE;

  g_assert_true (ebb_device_synchronize (device, &error));
  device->backend->fail (device->index, EBB_FAILURE_LAUNCH, 1);
  ebb_launch_init (&launch, EBB_KERNEL_FILL);
  launch.params.fill.value = 5.0;
  ebb_launch_output (&launch, x);
  /* The first fails; the second is dropped, or reported and never enqueued: nothing is written either way. */
  ok = ebb_launch (device, &launch, &error);
  g_assert_true (ok);
  if (ebb_launch (device, &launch, &error))
    g_assert_false (ebb_device_synchronize (device, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "sim:40: fill failed: asked to fail");
  g_clear_error (&error);
  here = ebb_to_device (x, NULL, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (test_sum (here), ==, N);
  assert_all_works ();
}

/* A copy that fails: computing that waits for it does not go on, and the events after it report it. */
static void
who_waits_for_a_failure_is_dropped_too (void)
{
  g_autoptr (EbbTensor) x = make_ones ();
  g_autoptr (EbbTensor) here = NULL;
  g_autoptr (GError) error = NULL;
  void *host = ebb_transfer_alloc_host (device, SIZE, EBB_PURPOSE_ACTIVATION, &error);
  EbbTransfer *in;
  EbbLaunch launch;

  memset (host, 0, SIZE);
  device->backend->fail (device->index, EBB_FAILURE_FROM_HOST, 1);
  in = ebb_transfer_from_host_begin (device, x->view.data, host, SIZE, NULL, &error);
  ebb_launch_init (&launch, EBB_KERNEL_FILL);
  launch.params.fill.value = 5.0;
  ebb_launch_output (&launch, x);
  if (in != NULL && ebb_transfer_order (in, &error) && ebb_launch (device, &launch, &error))
    ebb_device_synchronize (device, &error);
  test_assert_error (error, EBB_ERROR_DEVICE, "the copy of 4000 bytes from the host failed");
  g_clear_error (&error);
  /* Told; but who still waits for it must not take it for done. */
  if (in != NULL)
    {
      g_assert_true (ebb_transfer_is_done (in));
      g_assert_false (ebb_transfer_order (in, &error));
      test_assert_error (error, EBB_ERROR_DEVICE, "from the host failed");
      g_clear_error (&error);
      g_assert_false (ebb_transfer_wait (in, &error));
      test_assert_error (error, EBB_ERROR_DEVICE, "from the host failed");
      g_clear_error (&error);
      ebb_transfer_unref (in);
    }
  here = ebb_to_device (x, NULL, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (test_sum (here), ==, N);
  ebb_transfer_free_host (device, host, SIZE, EBB_PURPOSE_ACTIVATION);
  assert_all_works ();
}

/* A wait without a place for an error returns FALSE and leaves the report to others. */
static void
a_wait_without_a_place_for_it_is_no_lie (void)
{
  g_autoptr (EbbTensor) x = make_ones ();
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (GError) error = NULL;

  device->backend->fail (device->index, EBB_FAILURE_LAUNCH, 1);
  y = ebb_square (x, &error);
  g_assert_no_error (error);
  g_assert_false (ebb_device_synchronize (device, NULL));
  g_assert_false (ebb_device_synchronize (device, NULL));
  g_assert_false (ebb_device_synchronize (device, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "unary failed");
  g_assert_true (ebb_device_synchronize (device, NULL));
}

static pthread_barrier_t barrier;

/* Its kernel fails, of which it does not ask before something else has failed. */
static void *
fail_and_ask_late (void *data)
{
  g_autoptr (EbbTensor) x = make_ones ();
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (GError) error = NULL;

  device->backend->fail (device->index, EBB_FAILURE_LAUNCH, 1);
  y = ebb_square (x, &error);
  g_assert_no_error (error);
  g_assert_false (ebb_device_synchronize (device, NULL));
  pthread_barrier_wait (&barrier);
  pthread_barrier_wait (&barrier);
  g_assert_false (ebb_device_synchronize (device, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "from the host failed");
  return NULL;
}

static void
an_old_failure_is_not_reported_for_a_new_one (void)
{
  g_autoptr (EbbTensor) x = make_ones ();
  g_autoptr (GError) error = NULL;
  void *host = ebb_transfer_alloc_host (device, SIZE, EBB_PURPOSE_ACTIVATION, &error);
  EbbTransfer *in;
  pthread_t thread;

  memset (host, 0, SIZE);
  pthread_barrier_init (&barrier, NULL, 2);
  g_assert_cmpint (pthread_create (&thread, NULL, fail_and_ask_late, NULL), ==, 0);
  pthread_barrier_wait (&barrier);
  g_assert_false (ebb_device_synchronize (device, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "unary failed");
  g_clear_error (&error);
  device->backend->fail (device->index, EBB_FAILURE_FROM_HOST, 1);
  in = ebb_transfer_from_host_begin (device, x->view.data, host, SIZE, NULL, &error);
  g_assert_no_error (error);
  g_assert_false (ebb_device_synchronize (device, NULL));
  pthread_barrier_wait (&barrier);
  pthread_join (thread, NULL);
  pthread_barrier_destroy (&barrier);
  /* The copy was this thread's. */
  g_assert_false (ebb_device_synchronize (device, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "from the host failed");
  ebb_transfer_unref (in);
  ebb_transfer_free_host (device, host, SIZE, EBB_PURPOSE_ACTIVATION);
  assert_all_works ();
}

/* A dropped copy takes no time, and isn't given the time of another one. */
static void
work_that_is_dropped_takes_no_time (void)
{
  g_autoptr (EbbTensor) x = make_ones ();
  g_autoptr (GError) error = NULL;
  void *host = ebb_transfer_alloc_host (device, SIZE, EBB_PURPOSE_ACTIVATION, &error);
  EbbTransfer *first = ebb_transfer_to_host_begin (device, host, x->view.data, SIZE, NULL, &error), *second;
  double seconds, waited;

  g_assert_no_error (error);
  g_assert_true (ebb_device_synchronize (device, &error));
  device->backend->fail (device->index, EBB_FAILURE_TO_HOST, 1);
  second = ebb_transfer_to_host_begin (device, host, x->view.data, SIZE, NULL, &error);
  g_assert_no_error (error);
  g_assert_false (ebb_device_synchronize (device, &error));
  g_clear_error (&error);
  ebb_transfer_get_times (first, &seconds, &waited);
  g_assert_cmpfloat (seconds, >, 0);
  ebb_transfer_get_times (second, &seconds, &waited);
  g_assert_cmpfloat (seconds, ==, 0);
  ebb_transfer_unref (first);
  ebb_transfer_unref (second);
  ebb_transfer_free_host (device, host, SIZE, EBB_PURPOSE_ACTIVATION);
}

/* A quarter of an hour of copies. */
static void
a_process_ends_without_its_copies (void)
{
  if (g_test_subprocess ())
    {
      g_autoptr (GError) error = NULL;
      EbbDevice *slow;
      EbbTensor *x;
      void *host;

      g_setenv ("EBB_SIM_LATENCY", "10000000", TRUE);
      slow = ebb_device_get ("sim:41", &error);
      x = ebb_ones ((const gint64[]){ N }, 1, EBB_DTYPE_F32, slow, &error);
      host = ebb_transfer_alloc_host (slow, SIZE, EBB_PURPOSE_ACTIVATION, &error);
      for (guint i = 0; i < 90; i++)
        ebb_transfer_unref (ebb_transfer_to_host_begin (slow, host, x->view.data, SIZE, NULL, &error));
      g_assert_no_error (error);
      exit (0);
    }
  g_test_trap_subprocess (NULL, (guint64) 60 * G_USEC_PER_SEC, 0);
  g_test_trap_assert_passed ();
}

static void
memory_that_is_refused_is_an_error_at_once (void)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *x;

  device->backend->fail (device->index, EBB_FAILURE_ALLOC, 1);
  x = ebb_tensor_new_empty ((const gint64[]){ N }, 1, EBB_DTYPE_F32, device, &error);
  g_assert_null (x);
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "out of memory on sim:40: 4000 bytes asked for", "asked to fail");
  g_clear_error (&error);
  device->backend->fail (device->index, EBB_FAILURE_ALLOC_HOST, 1);
  g_assert_null (ebb_transfer_alloc_host (device, SIZE, EBB_PURPOSE_ACTIVATION, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "host memory for copies of sim:40", "4000");
  assert_all_works ();
}

/* -- each piece of work of a step ---------------------------------------------------------------------------------- */

static EbbTensor *
run_step (EbbTensor *weight,
          GError **error)
{
  g_autoptr (EbbTensor) x = ebb_ones ((const gint64[]){ 8, 16 }, 2, EBB_DTYPE_F32, device, error);
  g_autoptr (EbbTensor) y = ebb_matmul (x, weight, error);
  g_autoptr (EbbTensor) z = ebb_gelu (y, EBB_GELU_EXACT, error);
  g_autoptr (EbbTensor) loss = ebb_mean (z, NULL, 0, FALSE, error);
  EbbTensor *grad = NULL;

  if (loss != NULL && ebb_tensor_backward (loss, error))
    grad = ebb_tensor_get_grad (weight);
  ebb_tensor_set_grad (weight, NULL, NULL);
  return grad;
}

static guint64
get_current (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_total (stats);
}

static void
each_piece_of_work_may_fail (gconstpointer data)
{
  EbbFailure what = (EbbFailure) GPOINTER_TO_INT (data);
  g_autoptr (EbbTensor) weight =
      ebb_full ((const gint64[]){ 16, 4 }, 2, 0.1, EBB_DTYPE_F32, device, NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) right_there = NULL;
  g_autoptr (EbbTensor) right = NULL;
  guint64 before, left = 0;
  guint n_failed = 0;

  ebb_tensor_set_requires_grad (weight, TRUE, NULL);
  right_there = run_step (weight, &error);
  right = ebb_to_device (right_there, NULL, &error);
  g_clear_pointer (&right_there, ebb_tensor_unref);
  g_assert_no_error (error);
  before = get_current ();
  for (guint64 n = 1; left == 0; n++)
    {
      g_autoptr (EbbTensor) grad = NULL;
      g_autoptr (EbbTensor) here = NULL;

      device->backend->fail (device->index, what, n);
      grad = run_step (weight, &error);
      here = ebb_to_device (grad, NULL, &error);
      left = device->backend->fail (device->index, what, 0);
      if (left == 0)
        {
          g_assert_null (here);
          if (what == EBB_FAILURE_ALLOC)
            test_assert_error (error, EBB_ERROR_NO_MEMORY, "out of memory on sim:40");
          else
            test_assert_error (error, EBB_ERROR_DEVICE, "sim:40: ");
          n_failed++;
        }
      else
        g_assert_no_error (error);
      g_clear_error (&error);
      g_clear_pointer (&grad, ebb_tensor_unref);
      g_clear_pointer (&here, ebb_tensor_unref);
      g_assert_cmpuint (get_current (), ==, before);

      grad = run_step (weight, &error);
      here = ebb_to_device (grad, NULL, &error);
      g_assert_no_error (error);
      g_assert_true (ebb_tensor_equal (here, right));
    }
  g_assert_cmpuint (n_failed, >, what == EBB_FAILURE_TO_HOST ? 0 : 5);
}

/* -- several threads ----------------------------------------------------------------------------------------------- */

#define N_THREADS 4

static void *
work_and_fail (void *data)
{
  EbbTensor *x = data;

  ebb_set_num_threads (1);
  for (guint i = 0; i < 200; i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) y = ebb_add_scalar (x, i, &error);
      g_autoptr (EbbTensor) here = ebb_to_device (y, NULL, &error);

      if (here != NULL)
        g_assert_cmpfloat (test_at (here, N - 1), ==, 1.0f + (float) i);
      else
        g_assert_error (error, EBB_ERROR, EBB_ERROR_DEVICE);
      if (i % 50 == 49)
        device->backend->fail (device->index, EBB_FAILURE_LAUNCH, 3);
    }
  return NULL;
}

/* Each thread gets right values or an error. What they read was there before the first failure, which would drop the
 * work of a thread that has just begun. */
static void
threads_get_errors_of_their_own_work (void)
{
  g_autoptr (EbbTensor) x = make_ones ();
  g_autoptr (GError) error = NULL;
  pthread_t threads[N_THREADS];

  g_assert_true (ebb_device_synchronize (device, &error));
  for (guint i = 0; i < N_THREADS; i++)
    g_assert_cmpint (pthread_create (&threads[i], NULL, work_and_fail, x), ==, 0);
  for (guint i = 0; i < N_THREADS; i++)
    pthread_join (threads[i], NULL);
  device->backend->fail (device->index, EBB_FAILURE_LAUNCH, 0);
  ebb_device_synchronize (device, &error);
  assert_all_works ();
}

/* -- the host ------------------------------------------------------------------------------------------------------ */

static void
the_host_must_not_touch_its_memory (void)
{
  if (g_test_subprocess ())
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) x = make_ones ();

      g_assert_null (ebb_tensor_get_data (x, &error));
      test_assert_error (error, EBB_ERROR_DEVICE, "the host can't read the memory of sim:40");
      ((volatile float *) x->view.data)[3] = 1.0f;
      return;
    }
  g_test_trap_subprocess (NULL, 0, 0);
  g_test_trap_assert_failed ();
  g_test_trap_assert_stderr ("*Ebb: the host touched memory of sim:40: byte 12 of block *, which has 4000 bytes; copy "
                             "the tensor to cpu first\n*");
}

/* A child has none of the device's threads: an error, and it ends. */
static void
a_forked_child_gets_an_error (void)
{
  g_autoptr (EbbTensor) x = make_ones ();
  int status;
  pid_t child;

  child = fork ();
  if (child == 0)
    {
      g_autoptr (GError) error = NULL;
      EbbTensor *y = ebb_square (x, &error);
      gboolean ok = y == NULL && error != NULL && strstr (error->message, "was forked from") != NULL
                    && !ebb_device_synchronize (device, NULL);

      g_clear_error (&error);
      g_clear_pointer (&x, ebb_tensor_unref);
      /* Memory of the parent's threads, which the child lacks, looks like a leak. */
#if defined(__SANITIZE_ADDRESS__)
      _exit (ok ? 0 : 1);
#endif
      exit (ok ? 0 : 1);
    }
  g_assert_cmpint (child, >, 0);
  g_assert_cmpint (waitpid (child, &status, 0), ==, child);
  g_assert_true (WIFEXITED (status));
  g_assert_cmpint (WEXITSTATUS (status), ==, 0);
  assert_all_works ();
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GError) error = NULL;

  g_test_init (&argc, &argv, NULL);
  device = ebb_device_get ("sim:40", &error);
  g_assert_no_error (error);
  g_test_add_func ("/sim/failures/a-failed-kernel-is-reported-once", a_failed_kernel_is_reported_once);
  g_test_add_func ("/sim/failures/what-comes-after-a-failure-is-dropped", what_comes_after_a_failure_is_dropped);
  g_test_add_func ("/sim/failures/who-waits-for-a-failure-is-dropped-too", who_waits_for_a_failure_is_dropped_too);
  g_test_add_func ("/sim/failures/a-wait-without-a-place-for-it-is-no-lie", a_wait_without_a_place_for_it_is_no_lie);
  g_test_add_func ("/sim/failures/an-old-failure-is-not-reported-for-a-new-one",
                   an_old_failure_is_not_reported_for_a_new_one);
  g_test_add_func ("/sim/failures/work-that-is-dropped-takes-no-time", work_that_is_dropped_takes_no_time);
  g_test_add_func ("/sim/failures/a-process-ends-without-its-copies", a_process_ends_without_its_copies);
  g_test_add_func ("/sim/failures/memory-that-is-refused-is-an-error-at-once",
                   memory_that_is_refused_is_an_error_at_once);
  g_test_add_data_func ("/sim/failures/each-piece-of-work-may-fail/alloc", GINT_TO_POINTER (EBB_FAILURE_ALLOC),
                        each_piece_of_work_may_fail);
  g_test_add_data_func ("/sim/failures/each-piece-of-work-may-fail/launch", GINT_TO_POINTER (EBB_FAILURE_LAUNCH),
                        each_piece_of_work_may_fail);
  g_test_add_data_func ("/sim/failures/each-piece-of-work-may-fail/to-host", GINT_TO_POINTER (EBB_FAILURE_TO_HOST),
                        each_piece_of_work_may_fail);
  g_test_add_func ("/sim/failures/threads-get-errors-of-their-own-work", threads_get_errors_of_their_own_work);
  g_test_add_func ("/sim/failures/the-host-must-not-touch-its-memory", the_host_must_not_touch_its_memory);
  g_test_add_func ("/sim/failures/a-forked-child-gets-an-error", a_forked_child_gets_an_error);
  return g_test_run ();
}
