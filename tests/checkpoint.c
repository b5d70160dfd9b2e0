/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

/* Every strategy must give the gradients of the plain model, bit for bit. */

typedef struct
{
  EbbTensor *loss;
  EbbTensor **grads;
  guint n_grads;
  guint64 offset; /* of the generator after the step */
  guint64 peak;   /* bytes kept for backward */
} Step;

static void
step_clear (Step *step)
{
  ebb_tensor_unref (step->loss);
  for (guint i = 0; i < step->n_grads; i++)
    ebb_tensor_unref (step->grads[i]);
  g_free (step->grads);
}

static EbbModule *
make_gpt (double dropout)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  GError *error = NULL;
  EbbModule *gpt;

  ebb_gpt_config_set_layers (config, 3);
  ebb_gpt_config_set_width (config, 48);
  ebb_gpt_config_set_heads (config, 4);
  ebb_gpt_config_set_context (config, 24);
  ebb_gpt_config_set_vocab (config, 61);
  ebb_gpt_config_set_dropout (config, dropout);
  ebb_manual_seed (7);
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  return gpt;
}

static void
collect_grads (EbbModule *module,
               Step *step)
{
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (module, TRUE, &step->n_grads);

  step->grads = g_new0 (EbbTensor *, step->n_grads);
  for (guint i = 0; i < step->n_grads; i++)
    {
      step->grads[i] = ebb_tensor_get_grad (parameters[i]);
      g_assert_nonnull (step->grads[i]);
      ebb_tensor_unref (parameters[i]);
    }
}

static void
run_step (EbbModule *gpt,
          Step *step)
{
  GError *error = NULL;
  const gint64 shape[] = { 2, 24 };
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) targets = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;

  ebb_manual_seed (11);
  ebb_module_zero_grad (gpt);
  tokens = ebb_randint (0, 61, shape, 2, EBB_DTYPE_I64, NULL, NULL, &error);
  targets = ebb_randint (0, 61, shape, 2, EBB_DTYPE_I64, NULL, NULL, &error);
  ebb_memory_reset_peaks (NULL);
  step->loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, targets, &error);
  g_assert_no_error (error);
  ebb_tensor_backward (step->loss, &error);
  g_assert_no_error (error);
  stats = ebb_memory_get_stats (NULL);
  step->peak = ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION);
  g_assert_cmpuint (ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION), ==, 0);
  step->offset = ebb_generator_get_offset (ebb_generator_get_default ());
  collect_grads (gpt, step);
}

static void
assert_same_step (const Step *a,
                  const Step *b)
{
  g_assert_true (ebb_tensor_equal (a->loss, b->loss));
  g_assert_cmpuint (a->n_grads, ==, b->n_grads);
  for (guint i = 0; i < a->n_grads; i++)
    g_assert_true (ebb_tensor_equal (a->grads[i], b->grads[i]));
  g_assert_cmpuint (a->offset, ==, b->offset);
}

static void
assert_counters_zero (EbbModule *module)
{
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (module, &n);

  for (guint i = 0; i < n; i++)
    {
      g_assert_cmpuint (ebb_module_get_forward_counter (modules[i]), ==, 0);
      g_object_unref (modules[i]);
    }
}

/* -- equality ------------------------------------------------------------------------------------------------------ */

static EbbCheckpointOptions *
checked_options (gboolean selective)
{
  EbbCheckpointOptions *options = selective ? ebb_checkpoint_options_new_selective () : ebb_checkpoint_options_new ();

  ebb_checkpoint_options_set_determinism_check (options, EBB_DETERMINISM_CHECK_VALUES);
  return options;
}

static void
test_strategies_are_bitwise_equal (gconstpointer data)
{
  const gboolean autocast = GPOINTER_TO_INT (data) & 1, two_threads = GPOINTER_TO_INT (data) & 2;
  GError *error = NULL;
  Step plain, full, selective, nested;
  g_autoptr (EbbModule) gpt = make_gpt (0.1);
  g_autoptr (EbbCheckpointOptions) all = checked_options (FALSE);
  g_autoptr (EbbCheckpointOptions) some = checked_options (TRUE);

  ebb_set_num_threads (two_threads ? 2 : 1);
  if (autocast)
    ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  run_step (gpt, &plain);

  g_assert_true (ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, all, &error));
  run_step (gpt, &full);
  assert_same_step (&plain, &full);
  g_assert_cmpuint (full.peak, <, plain.peak);
  assert_counters_zero (gpt);

  /* Once more around: the whole model, each block, and each feed-forward part inside. */
  g_assert_true (ebb_checkpoint_wrap_each (gpt, EBB_TYPE_MLP, all, &error));
  g_object_unref (ebb_checkpoint_wrapper (gpt, all, &error));
  g_assert_no_error (error);
  run_step (gpt, &nested);
  assert_same_step (&plain, &nested);
  assert_counters_zero (gpt);
  g_clear_object (&gpt);

  gpt = make_gpt (0.1);
  g_assert_true (ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, some, &error));
  run_step (gpt, &selective);
  assert_same_step (&plain, &selective);
  g_assert_cmpuint (selective.peak, <, plain.peak);
  g_assert_cmpuint (full.peak, <, selective.peak);
  assert_counters_zero (gpt);

  if (autocast)
    ebb_pop_autocast ();
  step_clear (&plain);
  step_clear (&full);
  step_clear (&selective);
  step_clear (&nested);
}

/* -- what is run again --------------------------------------------------------------------------------------------- */

static void
test_recomputes_once (void)
{
  GError *error = NULL;
  Step step;
  guint n;
  g_autoptr (EbbModule) gpt = make_gpt (0.1);
  g_autofree EbbModule **modules = NULL;

  g_assert_true (ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, NULL, &error));
  run_step (gpt, &step);
  step_clear (&step);
  modules = ebb_module_get_modules (gpt, &n);
  for (guint i = 0; i < n; i++)
    {
      if (EBB_IS_TRANSFORMER_BLOCK (modules[i]))
        g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (modules[i]), ==, 1);
      g_object_unref (modules[i]);
    }
}

static void
test_wrapped_module_is_finalized_when_dropped (void)
{
  GError *error = NULL;
  EbbModule *linear = ebb_linear_new (4, 4, TRUE, &error);
  const gint64 shape[] = { 2, 4 };
  g_autoptr (EbbTensor) x = ebb_randn (shape, 2, EBB_DTYPE_F32, NULL, NULL, &error);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) z = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbModule) tanh = ebb_tanh_new ();
  EbbModule *gone, *sequence;

  g_assert_no_error (error);
  gone = linear;
  g_object_add_weak_pointer (G_OBJECT (linear), (gpointer *) &gone);
  sequence = ebb_sequential_new ();
  ebb_module_register_child (sequence, "0", linear, &error);
  ebb_module_register_child (sequence, "1", tanh, &error);
  g_object_unref (linear);
  g_object_unref (ebb_checkpoint_wrapper (sequence, NULL, &error));
  y = ebb_module_call1 (sequence, x, &error);
  g_assert_no_error (error);
  z = ebb_mul (y, y, &error);
  sum = ebb_sum (z, NULL, 0, FALSE, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_module_get_forward_counter (sequence), ==, 1);
  g_object_unref (sequence);
  g_assert_null (gone);

  g_assert_false (ebb_tensor_backward (sum, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_GRAPH);
  g_assert_nonnull (strstr (error->message, "finalized"));
  g_clear_error (&error);
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_data_func ("/checkpoint/strategies-are-bitwise-equal/1-thread", GINT_TO_POINTER (0),
                        test_strategies_are_bitwise_equal);
  g_test_add_data_func ("/checkpoint/strategies-are-bitwise-equal/2-threads", GINT_TO_POINTER (2),
                        test_strategies_are_bitwise_equal);
  g_test_add_data_func ("/checkpoint/strategies-are-bitwise-equal/autocast", GINT_TO_POINTER (3),
                        test_strategies_are_bitwise_equal);
  g_test_add_func ("/checkpoint/each-block-is-recomputed-once", test_recomputes_once);
  g_test_add_func ("/checkpoint/wrapped-module-is-finalized-when-dropped",
                   test_wrapped_module_is_finalized_when_dropped);
  return g_test_run ();
}
