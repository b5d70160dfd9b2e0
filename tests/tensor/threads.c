/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* RTLD_NEXT */

#include "support/device.h"
#include "support/op-cases.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

/* One thread makes tensors, another drops them; children of fork () compute; small ops run in one thread. */

#define N_ROUNDS 100
#define N_TENSORS 2000

/* POSIX's own primitives: ThreadSanitizer can't see into GLib's. */
typedef struct
{
  pthread_barrier_t turn; /* both threads wait for each other before and after each round */
  EbbTensor *tensors[N_TENSORS];
} Exchange;

/* Lives through all rounds, so that its lists are never given up. */
static void *
serve (void *data)
{
  const gint64 shape[] = { 8 };
  Exchange *exchange = data;

  for (guint round = 0; round < N_ROUNDS; round++)
    {
      for (guint i = 0; i < N_TENSORS; i++)
        exchange->tensors[i] = ebb_zeros (shape, 1, EBB_DTYPE_F32, NULL, NULL);
      pthread_barrier_wait (&exchange->turn);
      pthread_barrier_wait (&exchange->turn);
    }
  return NULL;
}

static guint64
get_reserved (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_reserved (stats);
}

static void
small_tensors_dropped_elsewhere_are_used_again (void)
{
  g_autofree Exchange *exchange = g_new0 (Exchange, 1);
  pthread_t maker;
  guint64 early = 0;

  pthread_barrier_init (&exchange->turn, NULL, 2);
  test_thread_create (&maker, serve, exchange);
  for (guint round = 0; round < N_ROUNDS; round++)
    {
      pthread_barrier_wait (&exchange->turn);
      for (guint i = 0; i < N_TENSORS; i++)
        ebb_tensor_unref (exchange->tensors[i]);
      if (round == 9)
        early = get_reserved ();
      pthread_barrier_wait (&exchange->turn);
    }
  pthread_join (maker, NULL);
  pthread_barrier_destroy (&exchange->turn);
  g_assert_cmpuint (get_reserved (), ==, early);
}

/* A forward here, its backward there: the recompute draws from the generator of here. */

static EbbTensor *
forward_with_dropout (EbbModule *module,
                      EbbTensor *x)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) square = NULL;
  EbbTensor *loss;

  ebb_manual_seed (7);
  y = ebb_module_call1 (module, x, &error);
  square = ebb_square (y, &error);
  loss = ebb_sum (square, NULL, 0, FALSE, &error);
  g_assert_no_error (error);
  return loss;
}

static void *
go_backward (void *loss)
{
  g_autoptr (GError) error = NULL;

  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
  return NULL;
}

static void
a_backward_elsewhere_draws_the_same_numbers (void)
{
  const gint64 shape[] = { 4, 64 };
  g_autoptr (EbbModule) module = ebb_sequential_new ();
  g_autoptr (EbbModule) dropout = ebb_dropout_new (0.5, NULL);
  g_autoptr (EbbModule) tanh = ebb_tanh_new ();
  g_autoptr (EbbTensor) x = ebb_randn (shape, 2, EBB_DTYPE_F32, NULL, NULL, NULL);
  g_autoptr (EbbTensor) expected = NULL;
  g_autoptr (EbbTensor) grad = NULL;
  g_autoptr (EbbTensor) plain = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  guint64 offset;
  pthread_t other;

  ebb_sequential_append (EBB_SEQUENTIAL (module), dropout, NULL);
  ebb_sequential_append (EBB_SEQUENTIAL (module), tanh, NULL);
  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  plain = forward_with_dropout (module, x);
  go_backward (plain);
  expected = ebb_tensor_get_grad (x);
  ebb_tensor_set_grad (x, NULL, NULL);

  g_object_unref (ebb_checkpoint_wrapper (module, NULL, NULL));
  loss = forward_with_dropout (module, x);
  offset = ebb_generator_get_offset (ebb_generator_get_default ());
  test_thread_create (&other, go_backward, loss);
  pthread_join (other, NULL);
  grad = ebb_tensor_get_grad (x);
  g_assert_true (ebb_tensor_equal (grad, expected));
  g_assert_cmpuint (ebb_generator_get_offset (ebb_generator_get_default ()), ==, offset);
}

/* -- children of fork () ------------------------------------------------------------------------------------------- */

/* A product, and what OpenMP's threads do beside it, forwards and backwards. */
static EbbTensor *
compute (void)
{
  const gint64 shape[] = { 256, 512 };
  g_autoptr (EbbGenerator) generator = ebb_generator_new (1);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = ebb_randn (shape, 2, EBB_DTYPE_F32, NULL, generator, &error);
  g_autoptr (EbbTensor) turned = ebb_transpose (x, 0, 1, &error);
  g_autoptr (EbbTensor) product = ebb_matmul (x, turned, &error);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  y = ebb_tanh (x, &error);
  loss = ebb_sum (y, NULL, 0, FALSE, &error);
  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
  return g_steal_pointer (&product);
}

/* @n_more generations of children that compute; one that hangs is ended by the alarm. */
static void
fork_and_compute (EbbTensor *expected,
                  guint n_more)
{
  g_autoptr (EbbTensor) again = NULL;
  int status = -1;
  pid_t child = fork ();

  g_assert_cmpint (child, >=, 0);
  if (child == 0)
    {
      g_autoptr (EbbTensor) product = NULL;

      alarm (60);
      product = compute ();
      if (n_more > 0)
        fork_and_compute (expected, n_more - 1);
      _exit (ebb_tensor_equal (product, expected) ? 0 : 1);
    }
  g_assert_cmpint (waitpid (child, &status, 0), ==, child);
  g_assert_cmpint (status, ==, 0);
  again = compute ();
  g_assert_true (ebb_tensor_equal (again, expected));
}

static void *
fork_elsewhere (void *expected)
{
  fork_and_compute (expected, 0);
  return NULL;
}

static void
children_compute_as_their_parents (void)
{
  g_autoptr (EbbTensor) expected = NULL;
  pthread_t other;

  if (!test_device_is_cpu ())
    {
      g_test_skip ("no device but the CPU is there in a child");
      return;
    }
  expected = compute ();
  for (guint i = 0; i < 3; i++)
    fork_and_compute (expected, 1);
  test_thread_create (&other, fork_elsewhere, expected);
  pthread_join (other, NULL);
}

/* -- parallel regions ---------------------------------------------------------------------------------------------- */

/* ThreadSanitizer's builds open no regions, and clang's go through other functions. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_REGIONS 1
#else
#define COUNTS_REGIONS 0
#endif

static gint n_regions; /* of more than one thread */

void GOMP_parallel (void (*func) (void *data),
                    void *data,
                    unsigned n_threads,
                    unsigned flags);

/* Put in front of libgomp's for the whole process: kernels and oneDNN open their regions by it. */
__attribute__ ((visibility ("default"))) void
GOMP_parallel (void (*func) (void *data),
               void *data,
               unsigned n_threads,
               unsigned flags)
{
  void (*open_region) (void (*) (void *), void *, unsigned, unsigned);

  *(void **) &open_region = dlsym (RTLD_NEXT, "GOMP_parallel");
  if (n_threads != 1)
    g_atomic_int_inc (&n_regions);
  open_region (func, data, n_threads, flags);
}

/* The regions of @variant of @op_case, forwards and backwards. */
static gint
count_regions (const OpCase *op_case,
               const OpVariant *variant)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *x[OP_CASE_MAX_INPUTS] = { NULL }, *y[OP_CASE_MAX_OUTPUTS] = { NULL };
  EbbTensor *outputs[OP_CASE_MAX_OUTPUTS], *grads[OP_CASE_MAX_OUTPUTS];
  guint n_inputs, n = 0;
  gint n_before;

  g_assert_true (op_case_make_inputs (variant, 1, test_device (), x, &n_inputs, &error));
  ebb_device_synchronize (test_device (), &error);
  g_assert_no_error (error);
  n_before = g_atomic_int_get (&n_regions);
  g_assert_true (op_case_run (op_case, variant, x, y, &error));
  for (guint i = 0; i < OP_CASE_MAX_OUTPUTS && !(op_case->flags & OP_CASE_CONSTANT); i++)
    if (y[i] != NULL && (ebb_tensor_get_requires_grad (y[i]) || !ebb_tensor_is_leaf (y[i])))
      {
        outputs[n] = y[i];
        grads[n++] = op_case_make_normal (y[i], 2, &error);
      }
  g_assert_no_error (error);
  if (n > 0)
    ebb_backward (outputs, n, grads, n, NULL, 0, FALSE, &error);
  ebb_device_synchronize (test_device (), &error);
  g_assert_no_error (error);
  op_case_clear (grads, n);
  op_case_clear (y, OP_CASE_MAX_OUTPUTS);
  op_case_clear (x, n_inputs);
  return g_atomic_int_get (&n_regions) - n_before;
}

static const OpCase *
find_case (const char *name)
{
  const OpCase *const *all = op_cases_get_all ();

  while (*all != NULL && strcmp ((*all)->name, name) != 0)
    all++;
  g_assert_nonnull (*all);
  return *all;
}

static void
small_ops_run_in_one_thread (void)
{
  const struct
  {
    const char *name;
    OpVariant variant;
  } of_small_models[] = {
    { "matmul", { "n:64x64 n:64x64" } },
    { "matmul", { "h:64x64 h:64x64" } },
    { "matmul", { "n:4x4x32x16 n:4x4x16x32" } },
    { "linear", { "n:4x32x32 n:96x32 n:96" } },
    { "add", { "n:64x256 n:256" } },
    { "contiguous", { "n:4096x2t" } },
    { "layer_norm", { "n:128x32 n:32 n:32" } },
    { "scaled_dot_product_attention", { "n:4x2x32x16 n:4x2x32x16 n:4x2x32x16 -", { 1, 0, 0 } } },
    { "gelu", { "n:4x32x64" } },
  };

  if (!COUNTS_REGIONS)
    {
      g_test_skip ("no regions can be counted in this build");
      return;
    }
  ebb_set_num_threads (2);
  for (const OpCase *const *op_case = op_cases_get_all (); *op_case != NULL; op_case++)
    for (const OpVariant *variant = (*op_case)->variants; variant->operands != NULL; variant++)
      if (count_regions (*op_case, variant) != 0)
        g_error ("%s (%s) opens a parallel region", (*op_case)->name, variant->operands);
  for (guint i = 0; i < G_N_ELEMENTS (of_small_models); i++)
    if (count_regions (find_case (of_small_models[i].name), &of_small_models[i].variant) != 0)
      g_error ("%s (%s) opens a parallel region", of_small_models[i].name, of_small_models[i].variant.operands);
}

static void
large_ops_open_parallel_regions (void)
{
  const char *const names[] = { "matmul", "scaled_dot_product_attention", "add", "layer_norm" };

  if (!COUNTS_REGIONS)
    {
      g_test_skip ("no regions can be counted in this build");
      return;
    }
  if (test_device_of_same_bits () != ebb_device_get_cpu ())
    {
      g_test_skip ("the device has threads of its own");
      return;
    }
  ebb_set_num_threads (2);
  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      const OpCase *op_case = find_case (names[i]);

      if (count_regions (op_case, &op_case->timing) == 0)
        g_error ("%s (%s) runs in one thread", names[i], op_case->timing.operands);
    }
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/threads/small-tensors-dropped-elsewhere-are-used-again",
                   small_tensors_dropped_elsewhere_are_used_again);
  g_test_add_func ("/threads/a-backward-elsewhere-draws-the-same-numbers",
                   a_backward_elsewhere_draws_the_same_numbers);
  g_test_add_func ("/threads/children-compute-as-their-parents", children_compute_as_their_parents);
  g_test_add_func ("/threads/small-ops-run-in-one-thread", small_ops_run_in_one_thread);
  g_test_add_func ("/threads/large-ops-open-parallel-regions", large_ops_open_parallel_regions);
  return g_test_run ();
}
