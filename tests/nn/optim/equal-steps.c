/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only cudaemu */
#include "support/device.h"

/* Steps of a GPT with dropout, clipped gradients and AdamW give the same parameters to the bit in each of their runs,
 * in f32 and in bf16, with moments of every format; on the emulated GPU in any order of blocks, warps and lanes. */

#define N_RUNS_ON_CPU 4
#define N_RUNS 20
#define N_STEPS 2
#define VOCAB 40
#define CONTEXT 33
#define BATCH 2

typedef struct
{
  const char *name;
  gboolean autocast;
  EbbMomentFormat moments;
} Case;

static EbbModule *
make_model (void)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (GError) error = NULL;
  EbbModule *model;

  config->vocab = VOCAB;
  config->context = CONTEXT;
  config->width = 64;
  config->heads = 2;
  config->layers = 1;
  config->dropout = 0.1;
  model = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  return model;
}

static void
step (EbbModule *model,
      EbbOptimizer *optimizer,
      gboolean autocast)
{
  const gint64 shape[] = { BATCH, CONTEXT };
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tokens = ebb_randint (0, VOCAB, shape, 2, EBB_DTYPE_I64, NULL, NULL, &error);
  g_autoptr (EbbTensor) targets = ebb_randint (0, VOCAB, shape, 2, EBB_DTYPE_I64, NULL, NULL, &error);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) norm = NULL;

  ebb_push_autocast (autocast, EBB_DTYPE_BF16);
  loss = ebb_gpt_loss (EBB_GPT (model), tokens, targets, &error);
  ebb_pop_autocast ();
  g_assert_no_error (error);
  g_assert_true (ebb_tensor_backward (loss, &error));
  norm = ebb_optimizer_clip_grad_p_norm (optimizer, 0.1, 2, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  ebb_optimizer_zero_grad (optimizer);
}

/* The parameters after some steps. */
static EbbArgs *
train (const Case *test)
{
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (GError) error = NULL;

  ebb_manual_seed (7);
  model = make_model ();
  optimizer = ebb_adamw_new (model, 1e-2, &error);
  g_assert_no_error (error);
  g_object_set (optimizer, "moment-format", test->moments, NULL);
  for (guint i = 0; i < N_STEPS; i++)
    step (model, optimizer, test->autocast);
  return ebb_module_get_state_dict (model);
}

static void
assert_same_bits (EbbArgs *state,
                  EbbArgs *first,
                  guint run)
{
  for (guint i = 0; i < ebb_args_get_length (first); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (state, i);
      g_autoptr (EbbTensor) expected = ebb_args_get_tensor (first, i);
      g_autoptr (GError) error = NULL;
      g_autoptr (GBytes) bytes = ebb_tensor_get_bytes (tensor, &error);
      g_autoptr (GBytes) expected_bytes = ebb_tensor_get_bytes (expected, &error);

      g_assert_no_error (error);
      if (!g_bytes_equal (bytes, expected_bytes))
        g_error ("run %u: %s is not what it was after the first run", run, ebb_args_get_key (first, i));
    }
}

static void
gives_the_same_bits (gconstpointer data)
{
  const guint n_runs = test_device_is_cpu () ? N_RUNS_ON_CPU : N_RUNS;
  g_autoptr (EbbArgs) first = NULL;

  for (guint run = 0; run < n_runs; run++)
    {
      g_autofree char *order = g_strdup_printf ("%u", run);
      g_autoptr (EbbArgs) state = NULL;

      g_setenv ("EBB_CUDAEMU_ORDER", order, TRUE);
      state = train (data);
      if (first == NULL)
        first = g_steal_pointer (&state);
      else
        assert_same_bits (state, first, run);
    }
}

int
main (int argc,
      char **argv)
{
  static const Case cases[] = {
    { "f32", FALSE, EBB_MOMENT_FORMAT_F32 },
    { "bf16", TRUE, EBB_MOMENT_FORMAT_F32 },
    { "bf16-moments", TRUE, EBB_MOMENT_FORMAT_BF16 },
    { "eight-bit-moments", FALSE, EBB_MOMENT_FORMAT_EIGHT_BIT },
  };

  test_init (&argc, &argv);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *path = g_strconcat ("/equal-steps/", cases[i].name, NULL);

      g_test_add_data_func (path, &cases[i], gives_the_same_bits);
    }
  return g_test_run ();
}
