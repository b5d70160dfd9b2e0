/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only one-thread */
#include "support/device.h"

#include <stdlib.h>

/* A training step that was done before asks the system for nothing: the memory of tensors and kernels comes from what
 * Ebb keeps, and the small structs of an op do too. */

#define N_WARM 2
#define N_STEPS 10
#define VOCAB 96
#define CONTEXT 32
#define BATCH 3

/* -- calls to malloc ----------------------------------------------------------------------------------------------- */

/* Put in front of the C library's for the whole process. A sanitizer puts its own there. */
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_MALLOC 1

static __thread guint64 n_malloc;

void *__libc_malloc (size_t size);
void *__libc_calloc (size_t n,
                     size_t size);
void *__libc_realloc (void *data,
                      size_t size);

__attribute__ ((visibility ("default"))) void *
malloc (size_t size)
{
  n_malloc++;
  return __libc_malloc (size);
}

__attribute__ ((visibility ("default"))) void *
calloc (size_t n,
        size_t size)
{
  n_malloc++;
  return __libc_calloc (n, size);
}

__attribute__ ((visibility ("default"))) void *
realloc (void *data,
         size_t size)
{
  n_malloc++;
  return __libc_realloc (data, size);
}

#else
#define COUNTS_MALLOC 0

static guint64 n_malloc;
#endif

/* -- training ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  const char *name;
  const char *checkpoint; /* NULL, "selective" or "full" */
  gboolean bf16;
  double dropout;
  int accumulate;
} Way;

static const Way ways[] = {
  { "none", NULL, FALSE, 0, 1 },
  { "none-dropout", NULL, FALSE, 0.1, 1 },
  { "none-bf16", NULL, TRUE, 0, 1 },
  { "none-accumulate", NULL, FALSE, 0, 2 },
  { "selective", "selective", FALSE, 0, 1 },
  { "selective-bf16-dropout", "selective", TRUE, 0.1, 1 },
  { "selective-accumulate", "selective", FALSE, 0.1, 2 },
  { "full", "full", FALSE, 0, 1 },
  { "full-bf16-dropout", "full", TRUE, 0.1, 1 },
  { "full-accumulate", "full", FALSE, 0.1, 2 },
  { "full-bf16-accumulate", "full", TRUE, 0, 2 },
};

typedef struct
{
  guint64 system_calls, reserved;
} Use;

static Use
measure (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return (Use){ ebb_memory_stats_get_system_calls (stats), ebb_memory_stats_get_reserved (stats) };
}

static EbbModule *
make_model (const Way *way)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (EbbCheckpointOptions) options = NULL;
  g_autoptr (GError) error = NULL;
  EbbModule *model;

  config->vocab = VOCAB;
  config->context = CONTEXT;
  config->width = 64;
  config->layers = 3;
  config->dropout = way->dropout;
  model = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  if (way->checkpoint == NULL)
    return model;
  options = g_str_equal (way->checkpoint, "selective") ? ebb_checkpoint_options_new_selective ()
                                                       : ebb_checkpoint_options_new ();
  ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, &error);
  g_assert_no_error (error);
  return model;
}

static void
go_forward_and_back (EbbModule *model,
                     const Way *way,
                     gint64 batch)
{
  const gint64 shape[] = { batch, CONTEXT };
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tokens = ebb_randint (0, VOCAB, shape, 2, EBB_DTYPE_I64, NULL, NULL, &error);
  g_autoptr (EbbTensor) targets = ebb_randint (0, VOCAB, shape, 2, EBB_DTYPE_I64, NULL, NULL, &error);
  g_autoptr (EbbTensor) loss = NULL;

  ebb_push_autocast (way->bf16, EBB_DTYPE_BF16);
  loss = ebb_gpt_loss (EBB_GPT (model), tokens, targets, &error);
  ebb_pop_autocast ();
  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
}

static void
step (EbbModule *model,
      EbbOptimizer *optimizer,
      const Way *way,
      gint64 batch)
{
  g_autoptr (GError) error = NULL;

  for (int i = 0; i < way->accumulate; i++)
    go_forward_and_back (model, way, batch);
  ebb_optimizer_step (optimizer, &error);
  g_assert_no_error (error);
  ebb_optimizer_zero_grad (optimizer);
}

static void
a_step_after_the_second_asks_the_system_for_no_memory (gconstpointer data)
{
  const Way *way = data;
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (GError) error = NULL;
  Use warm = { 0 };

  /* A process of its own: what an earlier test left would serve this one. */
  if (!g_test_subprocess ())
    {
      g_test_trap_subprocess (NULL, 0, G_TEST_SUBPROCESS_INHERIT_STDERR);
      g_test_trap_assert_passed ();
      return;
    }
  model = make_model (way);
  optimizer = ebb_adamw_new (model, 1e-3, &error);
  g_assert_no_error (error);
  for (int i = 0; i < N_STEPS; i++)
    {
      Use use;

      step (model, optimizer, way, BATCH);
      use = measure ();
      if (i >= N_WARM)
        {
          g_assert_cmpuint (use.system_calls, ==, warm.system_calls);
          g_assert_cmpuint (use.reserved, ==, warm.reserved);
        }
      warm = use;
    }

  /* A larger step does ask, and it is seen. */
  step (model, optimizer, way, 64 * BATCH);
  g_assert_cmpuint (measure ().system_calls, >, warm.system_calls);
  g_assert_cmpuint (measure ().reserved, >, warm.reserved);
}

/* -- ops ----------------------------------------------------------------------------------------------------------- */

static EbbTensor *
make_leaf (double value)
{
  const gint64 shape[] = { 2, 4 };
  g_autoptr (GError) error = NULL;
  EbbTensor *leaf = ebb_full (shape, 2, value, EBB_DTYPE_F32, NULL, &error);

  ebb_tensor_set_requires_grad (leaf, TRUE, &error);
  g_assert_no_error (error);
  return leaf;
}

static void
run_ops (EbbTensor *a,
         EbbTensor *b)
{
  const gint64 flat[] = { 8 };
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) sum = ebb_add (a, b, &error);
  g_autoptr (EbbTensor) product = ebb_mul (sum, b, &error);
  g_autoptr (EbbTensor) gelu = ebb_gelu (product, EBB_GELU_TANH, &error);
  g_autoptr (EbbTensor) view = ebb_reshape (gelu, flat, 1, &error);
  g_autoptr (EbbTensor) squared = ebb_matmul (view, view, &error);

  ebb_tensor_backward (squared, &error);
  g_assert_no_error (error);
  ebb_tensor_set_grad (a, NULL, NULL);
  ebb_tensor_set_grad (b, NULL, NULL);
}

static void
an_op_and_its_backward_call_no_malloc (void)
{
  g_autoptr (EbbTensor) a = make_leaf (0.5);
  g_autoptr (EbbTensor) b = make_leaf (0.25);
  g_autofree char *seen = NULL;
  guint64 before;

  if (!COUNTS_MALLOC)
    {
      g_test_skip ("malloc is a sanitizer's here");
      return;
    }
  before = n_malloc;
  seen = g_strdup ("x");
  g_assert_cmpuint (n_malloc, >, before);
  for (int i = 0; i < 3; i++)
    run_ops (a, b);
  before = n_malloc;
  for (int i = 0; i < 100; i++)
    run_ops (a, b);
  g_assert_cmpuint (n_malloc, ==, before);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  ebb_manual_seed (1);
  for (guint i = 0; i < G_N_ELEMENTS (ways); i++)
    {
      g_autofree char *path =
          g_strconcat ("/steady-state/a-step-after-the-second-asks-the-system-for-no-memory/", ways[i].name, NULL);

      g_test_add_data_func (path, &ways[i], a_step_after_the_second_asks_the_system_for_no_memory);
    }
  g_test_add_func ("/steady-state/an-op-and-its-backward-call-no-malloc", an_op_and_its_backward_call_no_malloc);
  return g_test_run ();
}
