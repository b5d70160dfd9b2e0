/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "offload/transfer/transfer-private.h"
#include "support/tensors.h"
#include "tensor/backend/backend-private.h"
#include "tensor/autograd/op-private.h"
#include "tensor/tensor-private.h"

#include <string.h>

/* Copies take the time that bandwidth and latency ask for, and run beside computing. All bounds are lower bounds: a
 * busy machine makes things later, never earlier. */

#define SIZE ((gsize) 1 << 20)
#define TO_HOST 200e6
#define FROM_HOST 100e6
#define LATENCY 500e-6

static EbbDevice *device;

static EbbTensor *
make_tensor (void)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *x = ebb_ones ((const gint64[]){ SIZE / 4 }, 1, EBB_DTYPE_F32, device, &error);

  g_assert_no_error (error);
  return x;
}

static void *
alloc_host (void)
{
  g_autoptr (GError) error = NULL;
  void *host = ebb_transfer_alloc_host (device, SIZE, EBB_PURPOSE_ACTIVATION, &error);

  g_assert_no_error (error);
  g_assert_cmpuint ((gsize) host % 4096, ==, 0);
  return host;
}

static void
copies_take_their_time (void)
{
  g_autoptr (EbbTensor) x = make_tensor ();
  g_autoptr (GError) error = NULL;
  void *host = alloc_host ();
  EbbTransfer *out, *in;
  double seconds, waited;
  gint64 start = g_get_monotonic_time ();

  out = ebb_transfer_to_host_begin (device, host, x->view.data, SIZE, NULL, &error);
  in = ebb_transfer_from_host_begin (device, x->view.data, host, SIZE, out, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_transfer_wait (in, &error));
  g_assert_cmpfloat ((double) (g_get_monotonic_time () - start + 1) * 1e-6, >=,
                     (double) SIZE / TO_HOST + (double) SIZE / FROM_HOST + 2 * LATENCY);
  ebb_transfer_get_times (out, &seconds, &waited);
  g_assert_cmpfloat (seconds, >=, (double) SIZE / TO_HOST + LATENCY - 2e-9);
  ebb_transfer_get_times (in, &seconds, &waited);
  g_assert_cmpfloat (seconds, >=, (double) SIZE / FROM_HOST + LATENCY - 2e-9);
  ebb_transfer_unref (out);
  ebb_transfer_unref (in);
  ebb_transfer_free_host (device, host, SIZE, EBB_PURPOSE_ACTIVATION);
}

/* A copy at once goes through the same wire. */
static void
copies_at_once_take_their_time (void)
{
  g_autoptr (EbbTensor) x = make_tensor ();
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) here = NULL;
  gint64 start;

  g_assert_true (ebb_device_synchronize (device, &error));
  start = g_get_monotonic_time ();
  here = ebb_to_device (x, NULL, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat ((double) (g_get_monotonic_time () - start + 1) * 1e-6, >=, (double) SIZE / TO_HOST + LATENCY);
}

/* The queues stand still for what they wait for, no longer than it takes if they had nothing else to do. */
static void
waits_are_counted (void)
{
  g_autoptr (EbbTensor) x = make_tensor ();
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) y = NULL;
  void *host = alloc_host ();
  double before, after, seconds, waited;
  EbbTransfer *in;

  memset (host, 0, SIZE);
  g_assert_true (ebb_device_synchronize (device, &error));
  g_assert_true (ebb_stream_get_seconds (device, "compute", NULL, &before, &error));
  in = ebb_transfer_from_host_begin (device, x->view.data, host, SIZE, NULL, &error);
  g_assert_true (ebb_transfer_order (in, &error));
  y = ebb_square (x, &error);
  g_assert_true (ebb_device_synchronize (device, &error));
  g_assert_no_error (error);
  g_assert_true (ebb_stream_get_seconds (device, "compute", NULL, &after, &error));
  ebb_transfer_get_times (in, &seconds, &waited);
  /* Unless this thread was kept from asking for the wait all the time that the copy took. */
  g_assert_cmpfloat (waited, >=, 0);
  g_assert_cmpfloat (ABS (after - before - waited), <, 1e-6);
  ebb_transfer_unref (in);
  ebb_transfer_free_host (device, host, SIZE, EBB_PURPOSE_ACTIVATION);
}

/* -- the trace ----------------------------------------------------------------------------------------------------- */

static gboolean
overlap (const EbbStreamSpan *a,
         const EbbStreamSpan *b)
{
  return a->start < b->end && b->start < a->end;
}

static gboolean
fill (EbbTensor *x,
      GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_FILL);
  ebb_launch_output (&launch, x);
  return ebb_launch (device, &launch, error);
}

/* Computing goes on beside a copy that takes long; what waits for it begins after it. */
static void
spans_are_in_order (void)
{
  const EbbStreamFuncs *streams = device->backend->streams;
  g_autoptr (EbbTensor) x = make_tensor ();
  g_autoptr (GError) error = NULL;
  g_autofree EbbStreamSpan *spans = NULL;
  const EbbStreamSpan *out = NULL, *last_kernel = NULL;
  void *host = alloc_host ();
  EbbTransfer *transfer;
  gsize n;

  g_assert_true (ebb_device_synchronize (device, &error));
  streams->set_tracing (device->index, TRUE);
  transfer = ebb_transfer_to_host_begin (device, host, x->view.data, SIZE, NULL, &error);
  for (guint i = 0; i < 4; i++)
    {
      g_autoptr (EbbTensor) y = ebb_square (x, &error);
    }
  g_assert_true (ebb_transfer_order (transfer, &error));
  g_assert_true (fill (x, &error));
  g_assert_true (ebb_device_synchronize (device, &error));
  g_assert_no_error (error);
  streams->set_tracing (device->index, FALSE);
  n = streams->take_spans (device->index, &spans);
  for (gsize i = 0; i < n; i++)
    {
      g_assert_cmpfloat (spans[i].start, <=, spans[i].end);
      for (gsize k = i + 1; k < n; k++)
        if (spans[k].stream == spans[i].stream)
          g_assert_false (overlap (&spans[i], &spans[k]));
      if (spans[i].stream == EBB_STREAM_TO_HOST && !spans[i].is_wait)
        out = &spans[i];
      if (spans[i].stream == EBB_STREAM_COMPUTE && !spans[i].is_wait)
        last_kernel = &spans[i];
    }
  g_assert_nonnull (out);
  g_assert_cmpuint (out->n_bytes, ==, SIZE);
  g_assert_cmpfloat (out->end - out->start, >=, (double) SIZE / TO_HOST);
  g_assert_cmpstr (last_kernel->name, ==, "fill");
  g_assert_cmpfloat (last_kernel->start, >=, out->end);
  ebb_transfer_unref (transfer);
  ebb_transfer_free_host (device, host, SIZE, EBB_PURPOSE_ACTIVATION);
}

/* More than a queue holds: who enqueues waits, and the order stays. */
static void
a_full_queue_is_waited_for (void)
{
  g_autoptr (EbbTensor) x = ebb_zeros ((const gint64[]){ 3 }, 1, EBB_DTYPE_F32, device, NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) here = NULL;

  for (guint i = 0; i < 5000; i++)
    {
      g_autoptr (EbbTensor) y = ebb_add_scalar (x, 1.0, &error);

      ebb_tensor_unref (x);
      x = g_steal_pointer (&y);
    }
  here = ebb_to_device (x, NULL, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (test_sum (here), ==, 15000);
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GError) error = NULL;

  g_test_init (&argc, &argv, NULL);
  g_setenv ("EBB_SIM_BANDWIDTH", "0.2G,100M", TRUE);
  g_setenv ("EBB_SIM_LATENCY", "500", TRUE);
  device = ebb_device_get ("sim:50", &error);
  g_assert_no_error (error);
  g_test_add_func ("/sim/copies/take-their-time", copies_take_their_time);
  g_test_add_func ("/sim/copies/at-once-take-their-time", copies_at_once_take_their_time);
  g_test_add_func ("/sim/copies/waits-are-counted", waits_are_counted);
  g_test_add_func ("/sim/copies/spans-are-in-order", spans_are_in_order);
  g_test_add_func ("/sim/copies/a-full-queue-is-waited-for", a_full_queue_is_waited_for);
  return g_test_run ();
}
