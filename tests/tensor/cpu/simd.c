/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"
#include "support/fixtures.h"
#include "support/tensors.h"

#include <math.h>
#include <string.h>

/* The kernels for each instruction set train alike. Which one is used is settled when the first kernel runs, so each
 * has a process of its own: this program again, with --train. */

#define N_STEPS 2

static void
train (void)
{
  g_autoptr (EbbArgs) weights = test_load_fixture ("curve-weights.safetensors");
  g_autoptr (EbbArgs) curve = test_load_fixture ("curve.safetensors");
  g_autoptr (EbbTensor) tokens = test_fixture_tensor (curve, "tokens");
  g_autoptr (EbbTensor) targets = test_fixture_tensor (curve, "targets");
  g_autoptr (EbbModule) gpt = test_fixture_gpt (67, 32, 72, EBB_ACTIVATION_GELU_TANH);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;

  ebb_gpt_load_gpt2 (EBB_GPT (gpt), weights, &error);
  g_assert_no_error (error);
  optimizer = ebb_adamw_new (gpt, 1e-2, &error);
  for (guint step = 0; step < N_STEPS; step++)
    {
      g_autoptr (EbbTensor) batch = ebb_select (tokens, 0, 0, NULL);
      g_autoptr (EbbTensor) right = ebb_select (targets, 0, 0, NULL);
      g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (gpt), batch, right, &error);

      g_print ("loss %.9g\n", test_at (loss, 0));
      ebb_tensor_backward (loss, &error);
      ebb_optimizer_step (optimizer, &error);
      g_assert_no_error (error);
      ebb_optimizer_zero_grad (optimizer);
    }
}

static const char *program;

/* The losses of a run with the kernels of @name; FALSE if this processor or build has none. */
static gboolean
train_with (const char *name,
            double losses[N_STEPS])
{
  const char *argv[] = { program, "--train", NULL };
  g_auto (GStrv) environment = g_environ_setenv (g_get_environ (), "EBB_CPU_SIMD", name, TRUE);
  g_autofree char *output = NULL;
  g_autofree char *messages = NULL;
  g_autoptr (GError) error = NULL;
  const char *next;
  int status;

  g_spawn_sync (NULL, (char **) argv, environment, G_SPAWN_DEFAULT, NULL, NULL, &output, &messages, &status, &error);
  g_assert_no_error (error);
  if (strstr (messages, "does not have") != NULL)
    return FALSE;
  g_spawn_check_wait_status (status, &error);
  if (error != NULL)
    g_error ("%s: %s: %s", name, error->message, messages);
  next = output;
  for (guint i = 0; i < N_STEPS; i++)
    {
      next = strstr (next, "loss ");
      g_assert_nonnull (next);
      next += strlen ("loss ");
      losses[i] = g_ascii_strtod (next, NULL);
    }
  g_test_message ("%s: %.9g, then %.9g", name, losses[0], losses[1]);
  return TRUE;
}

static void
instruction_sets_train_alike (void)
{
  static const char *const names[] = { "avx2", "avx512", "avx512bf16" };
  double expected[N_STEPS], losses[N_STEPS];
  guint n_compared = 0;

  g_assert_true (train_with ("portable", expected));
  g_assert_cmpfloat (expected[1], <, expected[0] - 0.1);
  for (guint k = 0; k < G_N_ELEMENTS (names); k++)
    if (train_with (names[k], losses))
      {
        n_compared++;
        for (guint i = 0; i < N_STEPS; i++)
          g_assert_cmpfloat (fabs (losses[i] - expected[i]), <, 1e-5);
      }
  if (n_compared == 0)
    g_test_skip ("this processor or build has only the portable kernels");
}

static void
an_unknown_instruction_set_is_named (void)
{
  double losses[N_STEPS];

  g_assert_false (train_with ("mmx", losses));
}

int
main (int argc,
      char **argv)
{
  gboolean trains = argc == 2 && g_str_equal (argv[1], "--train");

  if (trains)
    argc = 1;
  program = argv[0];
  test_init (&argc, &argv);
  if (trains)
    {
      train ();
      return 0;
    }
  g_test_add_func ("/cpu-simd/instruction-sets-train-alike", instruction_sets_train_alike);
  g_test_add_func ("/cpu-simd/an-unknown-instruction-set-is-named", an_unknown_instruction_set_is_named);
  return g_test_run ();
}
