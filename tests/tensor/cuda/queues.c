/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/tensors.h"
#include "tensor/autograd/op-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/tensor-private.h"

#include <pthread.h>
#include <string.h>

/* The host's half of the CUDA backend over the emulated GPU: its memory, copies, events, times and traces. Work of the
 * emulated GPU runs as late as events allow, so that an order that nothing enforces shows. */

#define MEMORY ((gsize) 96 << 20)

static EbbDevice *device;
static const EbbStreamFuncs *streams;

static EbbTensor *
make (gint64 n,
      double value)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *x = ebb_full (&n, 1, value, EBB_DTYPE_F32, device, &error);

  g_assert_no_error (error);
  return x;
}

/* None is missing. */
static void
each_kernel_is_there (void)
{
  for (int i = 0; i < EBB_N_KERNELS; i++)
    if (device->kernels[i] == NULL)
      g_error ("there is no kernel %s", ebb_kernel_get_name ((EbbKernel) i));
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

static void *
alloc (gsize size)
{
  g_autoptr (GError) error = NULL;
  void *data = device->backend->alloc (device->index, size, &error);

  g_assert_no_error (error);
  g_assert_cmpuint ((gsize) data % 256, ==, 0);
  return data;
}

static void
give_back (void *data,
           gsize size)
{
  device->backend->free (device->index, data, size);
}

/* The smallest piece that is big enough, neighbours merged, whatever was mapped when. */
static void
addresses_repeat (void)
{
  void *first[6];

  for (guint round = 0; round < 3; round++)
    {
      void *a = alloc (1000), *b = alloc ((gsize) 3 << 20), *c = alloc (1), *d = alloc ((gsize) 40 << 20), *e, *f;

      give_back (b, (gsize) 3 << 20);
      e = alloc (5000);
      g_assert_true (e == b);
      give_back (a, 1000);
      f = alloc (1024);
      g_assert_true (f == a);
      if (round == 0)
        memcpy (first, (void *[]){ a, b, c, d, e, f }, sizeof first);
      g_assert_cmpmem (first, sizeof first, ((void *[]){ a, b, c, d, e, f }), sizeof first);
      give_back (c, 1);
      give_back (d, (gsize) 40 << 20);
      give_back (e, 5000);
      give_back (f, 1024);
    }
  /* All of it is one piece again, of the size that EBB_CUDA_MEMORY gave. */
  give_back (alloc (MEMORY), MEMORY);
  g_assert_cmpuint (device->backend->get_capacity (device->index), ==, MEMORY);
}

static void
no_memory_is_an_error_with_its_users (void)
{
  g_autoptr (GError) error = NULL, within = NULL;
  gint64 n = MEMORY / 8;
  g_autoptr (EbbTensor) half = ebb_tensor_new_uninitialized (&n, 1, EBB_DTYPE_F32, device, &error);
  g_autofree char *out_of_memory = g_strdup_printf ("out of memory on %s", ebb_device_get_name (device));
  void *all;

  g_assert_no_error (error);
  n = MEMORY / 4;
  g_assert_null (ebb_zeros (&n, 1, EBB_DTYPE_F32, device, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, out_of_memory, "100663296 bytes asked for",
                     "50331648 of 100663296 free", "in use: workspace 50331648");
  /* Counted bytes would fit here; the pieces don't. */
  all = alloc (MEMORY / 4);
  g_assert_null (device->backend->alloc (device->index, MEMORY / 2, &within));
  test_assert_error (within, EBB_ERROR_NO_MEMORY, "25165824 of 100663296 free, in pieces of at most 25165824");
  give_back (all, MEMORY / 4);
}

static void
pinned_blocks_share_slabs (void)
{
  const gsize sizes[] = { 1, 4096, 5000, 1 << 20, (1 << 20) + 1, 3 << 20 };
  char *blocks[G_N_ELEMENTS (sizes) * 4];
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (blocks); i++)
    {
      const gsize size = sizes[i % G_N_ELEMENTS (sizes)];

      blocks[i] = streams->alloc_host (device->index, size, &error);
      g_assert_no_error (error);
      g_assert_cmpuint ((gsize) blocks[i] % 4096, ==, 0);
      memset (blocks[i], (int) i + 1, size);
    }
  for (guint i = 0; i < G_N_ELEMENTS (blocks); i++)
    {
      const gsize size = sizes[i % G_N_ELEMENTS (sizes)];

      g_assert_cmpint (blocks[i][0], ==, (int) i + 1);
      g_assert_cmpint (blocks[i][size - 1], ==, (int) i + 1);
      streams->free_host (device->index, blocks[i], size);
    }
}

/* -- copies -------------------------------------------------------------------------------------------------------- */

/* More than the pinned memory that they go through, and odd sizes. */
static void
copies_at_once_bring_all_bytes (void)
{
  const gint64 sizes[] = { 1, 65536, 65537, (gint64) 9 << 18 };

  for (guint i = 0; i < G_N_ELEMENTS (sizes); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) here = ebb_arange (0, (double) sizes[i], 1, EBB_DTYPE_F32, NULL, &error);
      g_autoptr (EbbTensor) there = ebb_to_device (here, device, &error);
      g_autoptr (EbbTensor) twice = ebb_add (there, there, &error);
      g_autoptr (EbbTensor) back = ebb_to_device (twice, NULL, &error);
      const float *x, *y;

      g_assert_no_error (error);
      x = here->view.data;
      y = back->view.data;
      for (gint64 k = 0; k < sizes[i]; k++)
        g_assert_true (y[k] == 2 * x[k]);
    }
}

/* The caller's memory may change as soon as the copy returned, and other queues come after it as well. */
static void
uploads_are_done_when_they_return (void)
{
  const gsize size = 4096;
  g_autoptr (EbbTensor) x = make ((gint64) size / 4, 0);
  g_autoptr (GError) error = NULL;
  g_autofree char *source = g_malloc (size);
  char *host = streams->alloc_host (device->index, size, &error);
  gpointer event;

  for (guint i = 1; i < 50; i++)
    {
      memset (source, (int) i, size);
      g_assert_true (device->backend->copy (device->index, x->view.data, source, size, FALSE, &error));
      memset (source, 0xff, size);
      g_assert_true (streams->copy (device->index, EBB_STREAM_TO_HOST, host, x->view.data, size, &event, &error));
      g_assert_true (streams->synchronize_event (event, &error));
      g_assert_no_error (error);
      streams->free_event (event);
      g_assert_cmpint (host[0], ==, (int) i);
      g_assert_cmpint (host[size - 1], ==, (int) i);
    }
  streams->free_host (device->index, host, size);
}

static void
copies_are_between_device_and_host (void)
{
  g_autoptr (EbbTensor) x = make (64, 1), y = make (64, 2);
  g_autoptr (GError) error = NULL;

  g_assert_false (
      streams->copy (device->index, EBB_STREAM_TO_HOST, x->view.data, y->view.data, 256, NULL, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "not between the device and the host");
}

/* -- events, times, traces ----------------------------------------------------------------------------------------- */

/* A copy out, one back in elsewhere, and computing that waits for it. */
static void
run_round_trip (EbbTensor *x,
                char *host,
                gsize size,
                double *work,
                double *waited)
{
  g_autoptr (EbbTensor) y = make ((gint64) size / 4, 0);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  gpointer made = streams->record (device->index, EBB_STREAM_COMPUTE, &error), out, in;

  g_assert_true (streams->wait (device->index, EBB_STREAM_TO_HOST, made, &error));
  g_assert_true (streams->wait (device->index, EBB_STREAM_FROM_HOST, made, &error));
  streams->free_event (made);
  g_assert_true (streams->copy (device->index, EBB_STREAM_TO_HOST, host, x->view.data, size, &out, &error));
  g_assert_true (streams->wait (device->index, EBB_STREAM_FROM_HOST, out, &error));
  g_assert_true (streams->copy (device->index, EBB_STREAM_FROM_HOST, y->view.data, host, size, &in, &error));
  g_assert_true (streams->wait (device->index, EBB_STREAM_COMPUTE, in, &error));
  sum = ebb_add (x, y, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (test_at (sum, size / 4 - 1), ==, 6);
  g_assert_true (streams->query_event (in));
  g_assert_true (streams->query_event (out));
  streams->get_times (in, work, waited);
  streams->free_event (out);
  streams->free_event (in);
}

static void
queues_wait_for_events_alone (void)
{
  const gsize size = (gsize) 1 << 20;
  g_autoptr (EbbTensor) x = make ((gint64) size / 4, 3);
  g_autoptr (GError) error = NULL;
  char *host = streams->alloc_host (device->index, size, &error);
  double work, waited, busy, before;

  for (guint round = 0; round < 2; round++)
    {
      streams->get_seconds (device->index, EBB_STREAM_FROM_HOST, &before, &waited);
      run_round_trip (x, host, size, &work, &waited);
      g_assert_cmpfloat (work, >=, 0);
      g_assert_cmpfloat (waited, >=, 0);
      streams->get_seconds (device->index, EBB_STREAM_FROM_HOST, &busy, &waited);
      /* The event counts what its queue did since the event before. */
      g_assert_cmpfloat (ABS (busy - before - work), <, 1e-9);
    }
  g_assert_cmpfloat (*(float *) (void *) host, ==, 3);
  streams->free_host (device->index, host, size);
}

static gboolean
has_span (const EbbStreamSpan *spans,
          gsize n,
          EbbStream stream,
          gboolean is_wait,
          const char *name,
          gsize n_bytes)
{
  for (gsize i = 0; i < n; i++)
    if (spans[i].stream == stream && spans[i].is_wait == is_wait && strcmp (spans[i].name, name) == 0
        && spans[i].n_bytes == n_bytes && spans[i].end >= spans[i].start)
      return TRUE;
  return FALSE;
}

static void
traces_have_each_queue (void)
{
  const gsize size = (gsize) 1 << 16;
  g_autoptr (EbbTensor) x = make ((gint64) size / 4, 3);
  g_autoptr (GError) error = NULL;
  g_autofree EbbStreamSpan *spans = NULL;
  g_autofree char *json = NULL;
  char *host = streams->alloc_host (device->index, size, &error);
  const double began = (double) g_get_monotonic_time () * 1e-6;
  double work, waited;
  gsize n;

  g_assert_true (ebb_device_synchronize (device, &error));
  streams->set_tracing (device->index, TRUE);
  run_round_trip (x, host, size, &work, &waited);
  g_assert_true (ebb_device_synchronize (device, &error));
  streams->set_tracing (device->index, FALSE);
  n = streams->take_spans (device->index, &spans);
  g_assert_true (has_span (spans, n, EBB_STREAM_COMPUTE, FALSE, "fill", 0));
  g_assert_true (has_span (spans, n, EBB_STREAM_COMPUTE, FALSE, "binary", 0));
  g_assert_true (has_span (spans, n, EBB_STREAM_COMPUTE, TRUE, "from_host", 0));
  g_assert_true (has_span (spans, n, EBB_STREAM_TO_HOST, TRUE, "compute", 0));
  g_assert_true (has_span (spans, n, EBB_STREAM_TO_HOST, FALSE, "copy to host", size));
  g_assert_true (has_span (spans, n, EBB_STREAM_FROM_HOST, TRUE, "to_host", 0));
  g_assert_true (has_span (spans, n, EBB_STREAM_FROM_HOST, FALSE, "copy from host", size));
  for (gsize i = 0; i < n; i++)
    g_assert_cmpfloat (spans[i].start, >=, began - 1e-3);
  streams->free_host (device->index, host, size);
  /* Nothing is kept after it. */
  g_clear_pointer (&spans, g_free);
  g_assert_cmpuint (streams->take_spans (device->index, &spans), ==, 0);
  g_assert_true (ebb_stream_trace_start (device, &error));
  json = ebb_stream_trace_stop (device, &error);
  g_assert_no_error (error);
  g_assert_nonnull (strstr (json, "collective"));
}

/* Many more than are kept unmeasured. */
static void
long_traces_are_whole (void)
{
  const guint n_launches = 10000;
  g_autoptr (EbbTensor) x = make (4, 0);
  g_autoptr (GError) error = NULL;
  g_autofree EbbStreamSpan *spans = NULL;

  g_assert_true (ebb_device_synchronize (device, &error));
  streams->set_tracing (device->index, TRUE);
  for (guint i = 0; i < n_launches; i++)
    g_assert_true (ebb_tensor_fill (x, i, &error));
  g_assert_true (ebb_device_synchronize (device, &error));
  streams->set_tracing (device->index, FALSE);
  g_assert_cmpuint (streams->take_spans (device->index, &spans), ==, n_launches);
  for (guint i = 1; i < n_launches; i++)
    g_assert_cmpfloat (spans[i].start, >=, spans[i - 1].start - 1e-5);
}

static void
launches_are_timed (void)
{
  g_autoptr (EbbTensor) x = make (1024, 1);
  g_autoptr (GError) error = NULL;
  double seconds[5] = { -1, -1, -1, -1, -1 };
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_FILL);
  ebb_launch_output (&launch, x);
  launch.params.fill.value = 2;
  launch.workspace = NULL;
  launch.workspace_size = 0;
  g_assert_true (device->backend->time_launches (device->index, &launch, G_N_ELEMENTS (seconds), seconds, &error));
  g_assert_no_error (error);
  for (guint i = 0; i < G_N_ELEMENTS (seconds); i++)
    g_assert_cmpfloat (seconds[i], >=, 0);
  g_assert_cmpfloat (test_at (x, 1023), ==, 2);
}

/* -- failures of one call ------------------------------------------------------------------------------------------ */

static void
one_call_fails_and_the_next_does_not (void)
{
  static const struct
  {
    EbbFailure what;
    const char *says;
    EbbError code;
  } cases[] = {
    { EBB_FAILURE_ALLOC, "asked to fail", EBB_ERROR_NO_MEMORY },
    { EBB_FAILURE_LAUNCH, ": fill failed: asked to fail", EBB_ERROR_DEVICE },
    { EBB_FAILURE_TO_HOST, "the copy of 16 bytes to the host failed", EBB_ERROR_DEVICE },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    for (guint round = 0; round < 2; round++)
      {
        g_autoptr (GError) error = NULL;
        g_autoptr (EbbTensor) x = NULL, y = NULL;
        gint64 n = 4;

        g_assert_true (ebb_device_synchronize (device, NULL));
        if (round == 0)
          device->backend->fail (device->index, cases[i].what, 1);
        x = ebb_full (&n, 1, 5, EBB_DTYPE_F32, device, &error);
        y = ebb_to_device (x, NULL, &error);
        if (round == 0)
          test_assert_error (error, cases[i].code, cases[i].says);
        else
          g_assert_cmpfloat (test_at (y, 3), ==, 5);
      }
}

/* -- failures of enqueued work ------------------------------------------------------------------------------------- */

#define N_FAILURES 3000
#define LIBRARY_FAILURE "work of a library failed"

static void
set_failure (void)
{
  g_autoptr (GError) reason = g_error_new_literal (EBB_ERROR, EBB_ERROR_PROCESS_GROUP, LIBRARY_FAILURE);

  streams->set_failure (device->index, reason);
}

typedef struct
{
  int n_asked, n_done; /* atomic */
} Failures;

/* As a group's thread does that watches the clock: one each time that the main thread asks for one. */
static void *
set_failures (void *data)
{
  Failures *self = data;

  for (int i = 1; i <= N_FAILURES; i++)
    {
      while (g_atomic_int_get (&self->n_asked) < i)
        g_thread_yield ();
      set_failure ();
      g_atomic_int_set (&self->n_done, i);
    }
  return NULL;
}

/* TRUE if there was a failure; it is one that was caused. */
static gboolean
meet_failure (void)
{
  g_autoptr (GError) error = NULL;

  if (ebb_device_synchronize (device, &error))
    return FALSE;
  if (g_error_matches (error, EBB_ERROR, EBB_ERROR_INDEX))
    g_assert_cmpstr (error->message, ==,
                     "embedding: index 5 at position 0 is out of range; indices must be in [0, 4)");
  else
    g_assert_cmpstr (error->message, ==, LIBRARY_FAILURE);
  return TRUE;
}

/* A library's failure is reported once, and an index fault beside it leaves nothing behind. */
static void
failures_are_reported_as_they_were (void)
{
  const gint64 bad[] = { 5 }, n = 1;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) line = make (4, 1);
  g_autoptr (EbbTensor) table = ebb_reshape (line, (const gint64[]){ 4, 1 }, 2, &error);
  g_autoptr (EbbTensor) here = ebb_tensor_new_from_ints (bad, 1, &n, 1, &error);
  g_autoptr (EbbTensor) index = ebb_to_device (here, device, &error);
  Failures failures = { 0 };
  pthread_t thread;

  g_assert_no_error (error);
  set_failure ();
  g_assert_true (meet_failure ());
  g_assert_false (meet_failure ());
  g_assert_cmpint (pthread_create (&thread, NULL, set_failures, &failures), ==, 0);
  for (int i = 1; i <= N_FAILURES; i++)
    {
      g_autoptr (EbbTensor) row = ebb_embedding (table, index, NULL);

      g_atomic_int_set (&failures.n_asked, i);
      meet_failure ();
      while (g_atomic_int_get (&failures.n_done) < i)
        g_thread_yield ();
      meet_failure ();
      g_assert_false (meet_failure ());
    }
  pthread_join (thread, NULL);
  g_assert_true (ebb_tensor_fill (line, 3, &error));
  g_assert_cmpfloat (test_at (line, 3), ==, 3);
}

int
main (int argc,
      char *argv[])
{
  g_autoptr (GError) error = NULL;
  g_autofree char *size = g_strdup_printf ("%" G_GSIZE_FORMAT, MEMORY);

  g_setenv ("EBB_CUDA_MEMORY", size, TRUE);
  g_test_init (&argc, &argv, NULL);
  device = ebb_device_get (g_getenv ("EBB_TEST_DEVICE") ? g_getenv ("EBB_TEST_DEVICE") : "cudaemu", &error);
  g_assert_no_error (error);
  streams = device->backend->streams;
  g_test_add_func ("/cuda/each-kernel-is-there", each_kernel_is_there);
  /* First: the emulated GPU takes a while to open memory that was used, and does so often here. */
  g_test_add_func ("/cuda/long-traces-are-whole", long_traces_are_whole);
  g_test_add_func ("/cuda/addresses-repeat", addresses_repeat);
  g_test_add_func ("/cuda/no-memory-is-an-error-with-its-users", no_memory_is_an_error_with_its_users);
  g_test_add_func ("/cuda/pinned-blocks-share-slabs", pinned_blocks_share_slabs);
  g_test_add_func ("/cuda/copies-at-once-bring-all-bytes", copies_at_once_bring_all_bytes);
  g_test_add_func ("/cuda/uploads-are-done-when-they-return", uploads_are_done_when_they_return);
  g_test_add_func ("/cuda/copies-are-between-device-and-host", copies_are_between_device_and_host);
  g_test_add_func ("/cuda/queues-wait-for-events-alone", queues_wait_for_events_alone);
  g_test_add_func ("/cuda/traces-have-each-queue", traces_have_each_queue);
  g_test_add_func ("/cuda/launches-are-timed", launches_are_timed);
  g_test_add_func ("/cuda/one-call-fails-and-the-next-does-not", one_call_fails_and_the_next_does_not);
  g_test_add_func ("/cuda/failures-are-reported-as-they-were", failures_are_reported_as_they_were);
  return g_test_run ();
}
