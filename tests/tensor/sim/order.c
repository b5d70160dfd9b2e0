/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "offload/transfer/transfer-private.h"
#include "support/device.h"
#include "support/tensors.h"
#include "tensor/backend/backend-private.h"
#include "tensor/autograd/op-private.h"
#include "tensor/tensor-private.h"

#include <string.h>

/* Work of different queues that nothing orders is found when it is enqueued, whatever the queues do at that time. */

#define N 4096
#define SIZE (N * sizeof (float))

static EbbDevice *device;
static const EbbStreamFuncs *streams;

typedef struct
{
  EbbTensor *x;
  void *host;
} Fixture;

static void
setup (Fixture *fixture,
       gconstpointer data)
{
  const gint64 shape[] = { N };
  g_autoptr (GError) error = NULL;

  fixture->x = ebb_full (shape, 1, 3.0, EBB_DTYPE_F32, device, &error);
  g_assert_no_error (error);
  fixture->host = streams->alloc_host (device->index, SIZE, &error);
  g_assert_no_error (error);
  memset (fixture->host, 0, SIZE);
}

static void
teardown (Fixture *fixture,
          gconstpointer data)
{
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_device_synchronize (device, &error));
  g_assert_no_error (error);
  g_clear_pointer (&fixture->x, ebb_tensor_unref);
  if (fixture->host != NULL)
    streams->free_host (device->index, fixture->host, SIZE);
  g_assert_true (ebb_device_synchronize (device, &error));
  g_assert_no_error (error);
}

/* @stream comes after what is in the queue @first. */
static void
order (EbbStream stream,
       EbbStream first)
{
  g_autoptr (GError) error = NULL;
  gpointer event = streams->record (device->index, first, &error);

  g_assert_no_error (error);
  streams->wait (device->index, stream, event, &error);
  g_assert_no_error (error);
  streams->free_event (event);
}

static gboolean
copy_out (Fixture *fixture,
          GError **error)
{
  return streams->copy (device->index, EBB_STREAM_TO_HOST, fixture->host, fixture->x->view.data, SIZE, NULL, error);
}

static gboolean
copy_in (Fixture *fixture,
         GError **error)
{
  return streams->copy (device->index, EBB_STREAM_FROM_HOST, fixture->x->view.data, fixture->host, SIZE, NULL, error);
}

static gboolean
fill (EbbTensor *x,
      double value,
      GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_FILL);
  launch.params.fill.value = value;
  ebb_launch_output (&launch, x);
  return ebb_launch (device, &launch, error);
}

#define assert_race(error, ...)                               \
  do                                                          \
    {                                                         \
      test_assert_error (error, EBB_ERROR_RACE, __VA_ARGS__); \
      g_clear_error (&error);                                 \
    }                                                         \
  while (0)

static void
a_copy_must_wait_for_what_it_reads (Fixture *fixture,
                                    gconstpointer data)
{
  g_autoptr (GError) error = NULL;

  g_assert_false (copy_out (fixture, &error));
  assert_race (error, "queue to_host would read", "block", "compute");
  order (EBB_STREAM_TO_HOST, EBB_STREAM_COMPUTE);
  g_assert_true (copy_out (fixture, &error));
  g_assert_no_error (error);
}

static void
a_copy_of_what_a_kernel_has_written_must_wait (Fixture *fixture,
                                               gconstpointer data)
{
  g_autoptr (GError) error = NULL;

  order (EBB_STREAM_TO_HOST, EBB_STREAM_COMPUTE);
  g_assert_true (fill (fixture->x, 1.0, &error));
  g_assert_false (copy_out (fixture, &error));
  assert_race (error, "a copy in queue to_host would read bytes 0 to 16384 of block", "(16384 bytes)",
               "while fill in queue compute writes them", "let to_host wait for an event");
}

/* A launch in the queue of collectives is ordered by events alone, as copies are. */
static void
a_launch_in_another_queue_must_wait (Fixture *fixture,
                                     gconstpointer data)
{
  g_autoptr (GError) error = NULL;
  EbbView rows = fixture->x->view, sum = fixture->x->view;
  const gint64 n = fixture->x->n_elements;
  EbbLaunch launch;

  rows.n_dims = 2;
  rows.shape[0] = 2;
  rows.shape[1] = n / 2;
  rows.strides[0] = n / 2;
  rows.strides[1] = 1;
  sum.n_dims = 1;
  sum.shape[0] = n / 2;
  sum.strides[0] = 1;
  ebb_launch_init (&launch, EBB_KERNEL_REDUCE_RANKS);
  launch.inputs[launch.n_inputs++] = &rows;
  launch.outputs[launch.n_outputs++] = &sum;
  launch.workspace = NULL;
  launch.workspace_size = 0;

  g_assert_true (fill (fixture->x, 1.5, &error));
  g_assert_false (streams->launch (device->index, EBB_STREAM_COLLECTIVE, &launch, &error));
  assert_race (error, "reduce_ranks in queue collective would read", "while fill in queue compute writes them");
  order (EBB_STREAM_COLLECTIVE, EBB_STREAM_COMPUTE);
  g_assert_true (streams->launch (device->index, EBB_STREAM_COLLECTIVE, &launch, &error));
  g_assert_false (fill (fixture->x, 1.5, &error));
  assert_race (error, "fill in queue compute would write", "while reduce_ranks in queue collective");
  order (EBB_STREAM_COMPUTE, EBB_STREAM_COLLECTIVE);
  g_assert_cmpfloat (((const float *) test_read (fixture->x))[n / 2 - 1], ==, 3);
  g_assert_cmpfloat (((const float *) test_read (fixture->x))[n / 2], ==, 1.5);
  g_assert_no_error (error);
}

static void
a_kernel_must_wait_for_what_it_reads (Fixture *fixture,
                                      gconstpointer data)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) y = NULL;

  order (EBB_STREAM_FROM_HOST, EBB_STREAM_COMPUTE);
  g_assert_true (copy_in (fixture, &error));
  y = ebb_square (fixture->x, &error);
  g_assert_null (y);
  assert_race (error, "unary in queue compute would read", "while a copy in queue from_host writes them");
  order (EBB_STREAM_COMPUTE, EBB_STREAM_FROM_HOST);
  y = ebb_square (fixture->x, &error);
  g_assert_no_error (error);
}

static void
a_kernel_must_not_write_what_a_copy_reads (Fixture *fixture,
                                           gconstpointer data)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) y = NULL;

  order (EBB_STREAM_TO_HOST, EBB_STREAM_COMPUTE);
  g_assert_true (copy_out (fixture, &error));
  y = ebb_square (fixture->x, &error); /* both read */
  g_assert_no_error (error);
  g_assert_false (fill (fixture->x, 1.0, &error));
  assert_race (error, "fill in queue compute would write", "while a copy in queue to_host reads them");
  order (EBB_STREAM_COMPUTE, EBB_STREAM_TO_HOST);
  g_assert_true (fill (fixture->x, 1.0, &error));
}

static void
a_later_copy_of_a_part_hides_nothing (Fixture *fixture,
                                      gconstpointer data)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) half = ebb_narrow (fixture->x, 0, 0, N / 2, &error);

  order (EBB_STREAM_TO_HOST, EBB_STREAM_COMPUTE);
  g_assert_true (copy_out (fixture, &error));
  g_assert_true (streams->copy (device->index, EBB_STREAM_TO_HOST, (char *) fixture->host + SIZE / 2,
                                (char *) fixture->x->view.data + SIZE / 2, SIZE / 2, NULL, &error));
  g_assert_false (fill (half, 1.0, &error));
  assert_race (error, "fill in queue compute would write bytes 0 to 8192");
  order (EBB_STREAM_COMPUTE, EBB_STREAM_TO_HOST);
  g_assert_true (fill (half, 1.0, &error));
}

static void
a_copy_must_not_write_what_a_kernel_reads (Fixture *fixture,
                                           gconstpointer data)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) y = NULL;

  order (EBB_STREAM_FROM_HOST, EBB_STREAM_COMPUTE);
  y = ebb_square (fixture->x, &error);
  g_assert_no_error (error);
  g_assert_false (copy_in (fixture, &error));
  assert_race (error, "a copy in queue from_host would write", "while unary in queue compute reads them");
}

static void
memory_must_not_be_freed_under_a_copy (Fixture *fixture,
                                       gconstpointer data)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) y = NULL;

  order (EBB_STREAM_TO_HOST, EBB_STREAM_COMPUTE);
  g_assert_true (copy_out (fixture, &error));
  g_test_expect_message ("Ebb", G_LOG_LEVEL_CRITICAL,
                         "race on sim:30: block * was freed while a copy in queue to_host*");
  g_clear_pointer (&fixture->x, ebb_tensor_unref);
  g_test_assert_expected_messages ();
  y = ebb_zeros ((const gint64[]){ 1 }, 1, EBB_DTYPE_F32, device, &error);
  g_assert_null (y);
  assert_race (error, "was freed while a copy in queue to_host reads bytes 0 to 16384", "compute must wait");
  y = ebb_zeros ((const gint64[]){ 1 }, 1, EBB_DTYPE_F32, device, &error);
  g_assert_no_error (error);
}

static void
memory_may_be_freed_when_computing_waits (Fixture *fixture,
                                          gconstpointer data)
{
  g_autoptr (GError) error = NULL;

  order (EBB_STREAM_TO_HOST, EBB_STREAM_COMPUTE);
  g_assert_true (copy_out (fixture, &error));
  order (EBB_STREAM_COMPUTE, EBB_STREAM_TO_HOST);
  g_clear_pointer (&fixture->x, ebb_tensor_unref);
}

static void
memory_taken_over_is_computings_first (Fixture *fixture,
                                       gconstpointer data)
{
  const gint64 shape[] = { N };
  g_autoptr (GError) error = NULL;

  order (EBB_STREAM_FROM_HOST, EBB_STREAM_COMPUTE);
  order (EBB_STREAM_TO_HOST, EBB_STREAM_COMPUTE);
  g_assert_true (copy_out (fixture, &error));
  order (EBB_STREAM_FROM_HOST, EBB_STREAM_TO_HOST);
  order (EBB_STREAM_COMPUTE, EBB_STREAM_TO_HOST);
  g_clear_pointer (&fixture->x, ebb_tensor_unref);
  fixture->x = ebb_tensor_new_empty (shape, 1, EBB_DTYPE_F32, device, &error);
  g_assert_false (copy_in (fixture, &error));
  assert_race (error, "what was freed before", "let from_host wait");
  order (EBB_STREAM_FROM_HOST, EBB_STREAM_COMPUTE);
  g_assert_true (copy_in (fixture, &error));
}

static void
host_memory_is_watched_too (Fixture *fixture,
                            gconstpointer data)
{
  g_autoptr (GError) error = NULL;

  order (EBB_STREAM_TO_HOST, EBB_STREAM_COMPUTE);
  order (EBB_STREAM_FROM_HOST, EBB_STREAM_COMPUTE);
  g_assert_true (copy_out (fixture, &error));
  g_assert_false (copy_in (fixture, &error));
  assert_race (error, "queue from_host would read", "host block", "while a copy in queue to_host writes them");
  order (EBB_STREAM_FROM_HOST, EBB_STREAM_TO_HOST);
  g_assert_true (copy_in (fixture, &error));
  g_test_expect_message ("Ebb", G_LOG_LEVEL_CRITICAL, "race on sim:30: host block * was freed while a copy*host must*");
  streams->free_host (device->index, g_steal_pointer (&fixture->host), SIZE);
  g_test_assert_expected_messages ();
  g_assert_false (ebb_device_synchronize (device, &error));
  assert_race (error, "host block", "the host must wait");
}

static void
parts_of_a_block_are_apart (Fixture *fixture,
                            gconstpointer data)
{
  g_autoptr (GError) error = NULL;
  char *on_device = fixture->x->view.data, *host = fixture->host;
  const gsize part = SIZE / 64;

  order (EBB_STREAM_TO_HOST, EBB_STREAM_COMPUTE);
  order (EBB_STREAM_FROM_HOST, EBB_STREAM_COMPUTE);
  for (gsize i = 0; i < 32; i++)
    {
      gsize own = 2 * i * part, other = (2 * i + 1) * part;

      g_assert_true (
          streams->copy (device->index, EBB_STREAM_TO_HOST, host + own, on_device + own, part, NULL, &error));
      g_assert_true (
          streams->copy (device->index, EBB_STREAM_FROM_HOST, on_device + other, host + other, part, NULL, &error));
    }
  g_assert_false (
      streams->copy (device->index, EBB_STREAM_FROM_HOST, on_device + part / 2, host + part, part, NULL, &error));
  assert_race (error, "would write bytes 128 to 384", "to_host reads");
}

static void
what_the_host_has_seen_needs_no_order (Fixture *fixture,
                                       gconstpointer data)
{
  g_autoptr (GError) error = NULL;
  gpointer event = streams->record (device->index, EBB_STREAM_COMPUTE, &error);

  g_assert_true (streams->synchronize_event (event, &error));
  g_assert_true (streams->query_event (event));
  g_assert_true (copy_out (fixture, &error));
  streams->free_event (event);
  event = streams->record (device->index, EBB_STREAM_TO_HOST, &error);
  g_assert_true (streams->synchronize_event (event, &error));
  streams->free_event (event);
  g_assert_true (fill (fixture->x, 1.0, &error));
  g_assert_no_error (error);
}

/* Whether an answer came in time must not decide whether a race is found. */
static void
a_question_teaches_nothing (Fixture *fixture,
                            gconstpointer data)
{
  g_autoptr (GError) error = NULL;
  gpointer event = streams->record (device->index, EBB_STREAM_COMPUTE, &error);

  g_assert_no_error (error);
  while (!streams->query_event (event))
    g_thread_yield ();
  g_assert_false (copy_out (fixture, &error));
  assert_race (error, "queue to_host would read");
  g_assert_true (streams->synchronize_event (event, &error));
  g_assert_true (copy_out (fixture, &error));
  g_assert_no_error (error);
  streams->free_event (event);
}

/* Computing waits for each of them, which says nothing to the host. */
static void
many_copies_to_a_host_block_are_watched (Fixture *fixture,
                                         gconstpointer data)
{
  const gsize part = SIZE / 64;
  g_autoptr (GError) error = NULL;

  order (EBB_STREAM_TO_HOST, EBB_STREAM_COMPUTE);
  for (gsize i = 0; i < 32; i++)
    {
      g_assert_true (streams->copy (device->index, EBB_STREAM_TO_HOST, (char *) fixture->host + i * part,
                                    (char *) fixture->x->view.data + i * part, part, NULL, &error));
      order (EBB_STREAM_COMPUTE, EBB_STREAM_TO_HOST);
      order (EBB_STREAM_FROM_HOST, EBB_STREAM_TO_HOST);
    }
  g_test_expect_message ("Ebb", G_LOG_LEVEL_CRITICAL,
                         "race on sim:30: host block * was freed while a copy * writes bytes 0 to 256 of it*");
  streams->free_host (device->index, g_steal_pointer (&fixture->host), SIZE);
  g_test_assert_expected_messages ();
  g_assert_false (ebb_device_synchronize (device, &error));
  assert_race (error, "host block", "the host must wait");
}

static void
an_event_of_another_device_is_refused (Fixture *fixture,
                                       gconstpointer data)
{
  g_autoptr (GError) error = NULL;
  EbbDevice *other = ebb_device_get ("sim:31", &error);
  gpointer event = streams->record (other->index, EBB_STREAM_COMPUTE, &error);

  g_assert_no_error (error);
  g_assert_false (streams->wait (device->index, EBB_STREAM_TO_HOST, event, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "sim:30: queue to_host", "an event of sim:31");
  streams->free_event (event);
}

static void
only_whole_blocks_are_freed (Fixture *fixture,
                             gconstpointer data)
{
  char *memory = fixture->x->view.data;

  g_test_expect_message ("Ebb", G_LOG_LEVEL_CRITICAL, "*block != NULL*");
  device->backend->free (device->index, memory + 64, SIZE);
  g_test_assert_expected_messages ();
  g_test_expect_message ("Ebb", G_LOG_LEVEL_CRITICAL, "*block != NULL*");
  device->backend->free (device->index, memory, SIZE / 2);
  g_test_assert_expected_messages ();
}

/* The transfers of stores, through the functions that stores call. */
static void
transfers_are_ordered (Fixture *fixture,
                       gconstpointer data)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) back = NULL;
  g_autoptr (EbbTensor) here = NULL;
  EbbTransfer *out, *in;

  out = ebb_transfer_to_host_begin (device, fixture->host, fixture->x->view.data, SIZE, NULL, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_transfer_order (out, &error));
  g_clear_pointer (&fixture->x, ebb_tensor_unref);
  back = ebb_tensor_new_empty ((const gint64[]){ N }, 1, EBB_DTYPE_F32, device, &error);
  in = ebb_transfer_from_host_begin (device, back->view.data, fixture->host, SIZE, out, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_transfer_order (in, &error));
  here = ebb_to_device (back, NULL, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (test_sum (here), ==, 3.0 * N);
  g_assert_true (ebb_transfer_is_done (out) && ebb_transfer_is_done (in));
  ebb_transfer_unref (out);
  ebb_transfer_unref (in);
}

static void
only_its_own_memory_and_pinned_memory_is_copied (Fixture *fixture,
                                                 gconstpointer data)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *other = g_malloc (SIZE);
  EbbLaunch launch;
  EbbView view;

  order (EBB_STREAM_TO_HOST, EBB_STREAM_COMPUTE);
  g_assert_false (
      streams->copy (device->index, EBB_STREAM_TO_HOST, other, fixture->x->view.data, SIZE, NULL, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "host memory that was allocated for copies");
  g_clear_error (&error);
  g_assert_false (
      streams->copy (device->index, EBB_STREAM_TO_HOST, fixture->host, fixture->x->view.data, SIZE + 1, NULL, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "to_host", "16385 bytes");
  g_clear_error (&error);

  ebb_launch_init (&launch, EBB_KERNEL_FILL);
  view = fixture->x->view;
  view.data = other;
  launch.outputs[launch.n_outputs++] = &view;
  g_assert_false (ebb_launch (device, &launch, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "sim:30: fill would write 16384 bytes", "not in a block");
  g_clear_error (&error);
  view.data = (char *) fixture->x->view.data + 64;
  g_assert_false (ebb_launch (device, &launch, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "beyond the end of a block");
}

static void
add (const char *path,
     void (*func) (Fixture *, gconstpointer))
{
  g_test_add (path, Fixture, NULL, setup, func, teardown);
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GError) error = NULL;

  g_test_init (&argc, &argv, NULL);
  /* Slow copies: if something is told too late, they are not over by chance. */
  g_setenv ("EBB_SIM_LATENCY", "2000", TRUE);
  device = ebb_device_get ("sim:30", &error);
  g_assert_no_error (error);
  streams = device->backend->streams;
  add ("/sim/order/a-copy-must-wait-for-what-it-reads", a_copy_must_wait_for_what_it_reads);
  add ("/sim/order/a-copy-of-what-a-kernel-has-written-must-wait", a_copy_of_what_a_kernel_has_written_must_wait);
  add ("/sim/order/a-launch-in-another-queue-must-wait", a_launch_in_another_queue_must_wait);
  add ("/sim/order/a-kernel-must-wait-for-what-it-reads", a_kernel_must_wait_for_what_it_reads);
  add ("/sim/order/a-kernel-must-not-write-what-a-copy-reads", a_kernel_must_not_write_what_a_copy_reads);
  add ("/sim/order/a-later-copy-of-a-part-hides-nothing", a_later_copy_of_a_part_hides_nothing);
  add ("/sim/order/a-copy-must-not-write-what-a-kernel-reads", a_copy_must_not_write_what_a_kernel_reads);
  add ("/sim/order/memory-must-not-be-freed-under-a-copy", memory_must_not_be_freed_under_a_copy);
  add ("/sim/order/memory-may-be-freed-when-computing-waits", memory_may_be_freed_when_computing_waits);
  add ("/sim/order/memory-taken-over-is-computings-first", memory_taken_over_is_computings_first);
  add ("/sim/order/host-memory-is-watched-too", host_memory_is_watched_too);
  add ("/sim/order/parts-of-a-block-are-apart", parts_of_a_block_are_apart);
  add ("/sim/order/what-the-host-has-seen-needs-no-order", what_the_host_has_seen_needs_no_order);
  add ("/sim/order/a-question-teaches-nothing", a_question_teaches_nothing);
  add ("/sim/order/many-copies-to-a-host-block-are-watched", many_copies_to_a_host_block_are_watched);
  add ("/sim/order/an-event-of-another-device-is-refused", an_event_of_another_device_is_refused);
  add ("/sim/order/only-whole-blocks-are-freed", only_whole_blocks_are_freed);
  add ("/sim/order/transfers-are-ordered", transfers_are_ordered);
  add ("/sim/order/only-its-own-memory-and-pinned-memory-is-copied", only_its_own_memory_and_pinned_memory_is_copied);
  return g_test_run ();
}
