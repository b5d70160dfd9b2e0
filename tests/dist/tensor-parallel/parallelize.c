/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/generation.h"
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensor-parallel.h"
#include "support/tensors.h"

#include <string.h>

/* How a model is divided, what is refused, and what goes on working. */

static const TestParallel gpt = { .n_ranks = 2 };

/* -- plans --------------------------------------------------------------------------------------------------------- */

static void
test_patterns_are_checked (void)
{
  static const char *const bad[] = { "", "h..attn", "h.*.at*n", ".h", "h." };
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();
  g_autoptr (EbbParallelPlan) copy = NULL;
  g_autofree char *text = NULL;
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (bad); i++)
    {
      g_assert_false (ebb_parallel_plan_add (plan, bad[i], EBB_PARALLEL_STYLE_ROW, &error));
      test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "pattern");
      g_clear_error (&error);
    }
  g_assert_false (ebb_parallel_plan_add (plan, "h", (EbbParallelStyle) 99, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "99 is no style");
  g_clear_error (&error);
  g_assert_true (ebb_parallel_plan_add (plan, "h.*.up", EBB_PARALLEL_STYLE_COLUMN, &error));
  g_assert_false (ebb_parallel_plan_add (plan, "h.*.up", EBB_PARALLEL_STYLE_COLUMN, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "\"h.*.up\" is planned as column already");
  copy = ebb_parallel_plan_copy (plan);
  text = ebb_parallel_plan_to_string (copy);
  g_assert_cmpstr (text, ==, "h.*.up: column\n");
}

static void
test_models_without_a_plan_are_refused (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) linear = ebb_linear_new (2, 2, TRUE, &error);

  g_assert_null (ebb_parallel_plan_new_for (linear, &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "Linear", "EbbParallelPlan");
}

/* -- a user's own tree --------------------------------------------------------------------------------------------- */

#define TREE_WIDTH 6
#define TREE_CLASSES 9

/* 0: a stack of blocks { 0: norm, 1: up, 2: tanh, 3: down }; 1: a head. */
static EbbModule *
make_tree (GError **error)
{
  g_autoptr (EbbModule) root = ebb_sequential_new ();
  g_autoptr (EbbModule) stack = ebb_sequential_new ();
  g_autoptr (EbbModule) head = NULL;

  ebb_manual_seed (21);
  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbModule) block = ebb_sequential_new ();
      EbbModule *parts[] = { ebb_rms_norm_new (TREE_WIDTH, 1e-5, error), ebb_linear_new (TREE_WIDTH, 10, TRUE, error),
                             ebb_tanh_new (), ebb_linear_new (10, TREE_WIDTH, TRUE, error) };

      for (guint k = 0; k < G_N_ELEMENTS (parts); k++)
        {
          g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (block), parts[k], error));
          g_object_unref (parts[k]);
        }
      g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (stack), block, error));
    }
  head = ebb_linear_new (TREE_WIDTH, TREE_CLASSES, TRUE, error);
  return ebb_sequential_append (EBB_SEQUENTIAL (root), stack, error)
                 && ebb_sequential_append (EBB_SEQUENTIAL (root), head, error)
             ? g_steal_pointer (&root)
             : NULL;
}

static EbbParallelOptions *
make_tree_options (gboolean sequence_parallel)
{
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();
  EbbParallelOptions *options = ebb_parallel_options_new ();

  g_assert_true (ebb_parallel_plan_add (plan, "0", EBB_PARALLEL_STYLE_SEQUENCE, NULL));
  g_assert_true (ebb_parallel_plan_add (plan, "0.*.1", EBB_PARALLEL_STYLE_COLUMN, NULL));
  g_assert_true (ebb_parallel_plan_add (plan, "0.*.3", EBB_PARALLEL_STYLE_ROW, NULL));
  g_assert_true (ebb_parallel_plan_add (plan, "1", EBB_PARALLEL_STYLE_COLUMN_GATHERED, NULL));
  g_object_set (options, "plan", plan, "sequence-parallel", sequence_parallel, NULL);
  return options;
}

static EbbTensor *
run_tree (EbbModule *tree, EbbTensor *x, GError **error)
{
  g_autoptr (EbbTensor) y = ebb_module_call1 (tree, x, error);
  g_autoptr (EbbTensor) square = ebb_square (y, error);
  g_autoptr (EbbTensor) sum = ebb_sum (square, NULL, 0, FALSE, error);

  return sum != NULL && ebb_tensor_backward (sum, error) ? g_steal_pointer (&y) : NULL;
}

static gboolean
run_own_tree (EbbProcessGroup *group, gpointer sequence_parallel, GError **error)
{
  g_autoptr (EbbModule) whole = make_tree (error);
  g_autoptr (EbbModule) tree = make_tree (error);
  g_autoptr (EbbParallelOptions) options = make_tree_options (GPOINTER_TO_INT (sequence_parallel));
  g_autoptr (EbbModule) same = ebb_parallelize (tree, group, options, error);
  g_autoptr (EbbModule) up = ebb_module_get_child (tree, "0.2.1");
  g_autoptr (EbbModule) down = ebb_module_get_child (tree, "0.2.3");
  g_autoptr (EbbModule) head = ebb_module_get_child (tree, "1");
  g_autoptr (EbbTensor) x = test_randn (22, 2, 8, TREE_WIDTH, -1);
  g_autoptr (EbbTensor) same_x = test_randn (22, 2, 8, TREE_WIDTH, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) expected = NULL;
  static const char *const wholes[] = { "0.0.0.weight", "0.1.3.bias", "0.2.0.weight" };

  g_assert_true (same == tree);
  g_assert_true (EBB_IS_COLUMN_PARALLEL_LINEAR (up));
  g_assert_true (EBB_IS_ROW_PARALLEL_LINEAR (down));
  g_assert_true (EBB_IS_COLUMN_PARALLEL_LINEAR (head));
  g_assert_true (ebb_parallel_is_parallelized (tree));
  g_assert_true (ebb_parallel_is_parallelized (up));
  g_assert_false (ebb_parallel_is_parallelized (whole));
  g_assert_true (ebb_parallel_get_group (tree) == group);
  g_assert_true (ebb_tensor_set_requires_grad (x, TRUE, error));
  g_assert_true (ebb_tensor_set_requires_grad (same_x, TRUE, error));
  y = run_tree (tree, x, error);
  expected = run_tree (whole, same_x, error);
  if (y == NULL || expected == NULL)
    return FALSE;
  test_assert_near (y, expected, 1e-4);
  {
    g_autoptr (EbbTensor) dx = ebb_tensor_get_grad (x);
    g_autoptr (EbbTensor) same_dx = ebb_tensor_get_grad (same_x);

    test_assert_near (dx, same_dx, 1e-3);
  }
  for (guint i = 0; i < G_N_ELEMENTS (wholes); i++)
    {
      g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (tree, wholes[i]);
      g_autoptr (EbbTensor) same_parameter = ebb_module_get_parameter (whole, wholes[i]);
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameter);
      g_autoptr (EbbTensor) same_grad = ebb_tensor_get_grad (same_parameter);

      test_assert_near (grad, same_grad, 1e-3);
    }
  return TRUE;
}

static void
test_own_tree (gconstpointer sequence_parallel)
{
  for (guint n_ranks = 1; n_ranks <= 4; n_ranks *= 2)
    test_ranks_run (n_ranks, run_own_tree, (gpointer) sequence_parallel);
}

/* -- refusals ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  /* Makes the model of one rank and the options. */
  EbbModule *(*make) (EbbProcessGroup *group, EbbParallelOptions *options, GError **error);
  EbbError code;
  const char *words[3];
} Refusal;

static gboolean
run_refusal (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Refusal *self = user_data;
  g_autoptr (EbbParallelOptions) options = ebb_parallel_options_new ();
  g_autoptr (EbbModule) model = self->make (group, options, error);
  g_autoptr (GError) local = NULL;
  g_autofree char *before = NULL;
  g_autofree char *after = NULL;

  if (model == NULL)
    return FALSE;
  before = ebb_module_to_string (model);
  g_assert_null (ebb_parallelize (model, group, options, &local));
  test_assert_error (local, self->code, self->words[0], self->words[1], self->words[2]);
  after = ebb_module_to_string (model);
  g_assert_cmpstr (after, ==, before);
  return TRUE;
}

static void
test_refusal (gconstpointer data)
{
  test_ranks_run (2, run_refusal, (gpointer) data);
}

static EbbModule *
make_gpt (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  return test_parallel_model (&gpt, error);
}

static EbbModule *
make_odd_heads (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  return test_parallel_model (&(TestParallel){ .width = 30, .heads = 3 }, error);
}

static EbbModule *
make_unknown (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  return make_tree (error);
}

static EbbModule *
make_planned (EbbParallelOptions *options, const char *pattern, EbbParallelStyle style, GError **error)
{
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();

  g_assert_true (ebb_parallel_plan_add (plan, pattern, style, error));
  g_object_set (options, "plan", plan, NULL);
  return make_tree (error);
}

static EbbModule *
make_wrong_type (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  return make_planned (options, "0.*.2", EBB_PARALLEL_STYLE_COLUMN, error);
}

static EbbModule *
make_without_match (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  return make_planned (options, "0.*.down", EBB_PARALLEL_STYLE_ROW, error);
}

static EbbModule *
make_without_parameter (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  return make_planned (options, "0.gain", EBB_PARALLEL_STYLE_PARAMETER, error);
}

static EbbModule *
make_empty_plan (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();

  g_object_set (options, "plan", plan, NULL);
  return make_tree (error);
}

static EbbModule *
make_contradiction (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();

  ebb_parallel_plan_add (plan, "0.*.1", EBB_PARALLEL_STYLE_COLUMN, NULL);
  ebb_parallel_plan_add (plan, "0.0.1", EBB_PARALLEL_STYLE_ROW, NULL);
  g_object_set (options, "plan", plan, NULL);
  return make_tree (error);
}

static EbbModule *
make_joined_column (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();

  ebb_parallel_plan_add (plan, "h.*.attn.c_attn", EBB_PARALLEL_STYLE_COLUMN, NULL);
  ebb_parallel_plan_add (plan, "h.*.attn.c_proj", EBB_PARALLEL_STYLE_ROW, NULL);
  g_object_set (options, "plan", plan, NULL);
  return make_gpt (group, options, error);
}

/* Attention is divided by heads though the plan doesn't say so. */
static EbbModule *
make_implied_odd_heads (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();

  ebb_parallel_plan_add (plan, "h.*.attn.c_attn", EBB_PARALLEL_STYLE_COLUMN_QKV, NULL);
  ebb_parallel_plan_add (plan, "h.*.attn.c_proj", EBB_PARALLEL_STYLE_ROW, NULL);
  g_object_set (options, "plan", plan, NULL);
  return make_odd_heads (group, options, error);
}

static EbbModule *
make_without_stack (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  g_object_set (options, "sequence-parallel", TRUE, NULL);
  return make_planned (options, "0.*.1", EBB_PARALLEL_STYLE_COLUMN, error);
}

/* The rows of the second product are not divided, so that it has its parameters for a part of the sequence. */
static EbbModule *
make_whole_inside (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();

  ebb_parallel_plan_add (plan, "0", EBB_PARALLEL_STYLE_SEQUENCE, NULL);
  ebb_parallel_plan_add (plan, "1", EBB_PARALLEL_STYLE_COLUMN_GATHERED, NULL);
  g_object_set (options, "plan", plan, "sequence-parallel", TRUE, NULL);
  return make_tree (error);
}

static EbbModule *
make_wrapped (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  EbbModule *model = make_gpt (group, options, error);
  g_autoptr (EbbModule) layer = ebb_module_get_child (model, "h.1.mlp.c_fc");

  g_assert_true (ebb_module_set_activation_checkpointing (layer, TRUE, error));
  return model;
}

static EbbModule *
make_sharded (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  EbbModule *model = make_gpt (group, options, error);
  g_autoptr (EbbModule) same = ebb_fully_shard (model, group, NULL, error);

  return same != NULL ? model : NULL;
}

static EbbModule *
make_divided (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  EbbModule *model = make_gpt (group, options, error);
  g_autoptr (EbbModule) same = ebb_parallelize (model, group, NULL, error);

  return same != NULL ? model : NULL;
}

static EbbModule *
make_other_on_second (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  TestParallel settings = { .n_layers = 1 + ebb_process_group_get_rank (group) };

  return test_parallel_model (&settings, error);
}

/* The first rank can do it. */
static EbbModule *
make_unknown_on_second (EbbProcessGroup *group, EbbParallelOptions *options, GError **error)
{
  return ebb_process_group_get_rank (group) == 0 ? make_gpt (group, options, error) : make_tree (error);
}

static gboolean
run_held (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  g_autoptr (EbbModule) model = test_parallel_model (&gpt, error);
  g_autoptr (EbbTensor) loss = test_parallel_loss (&gpt, model, 0, error);
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (GError) local = NULL;

  g_assert_null (ebb_parallelize (model, group, NULL, &local));
  test_assert_error (local, EBB_ERROR_STATE, "a graph holds the parameter");
  g_clear_pointer (&loss, ebb_tensor_unref);
  same = ebb_parallelize (model, group, NULL, error);
  return same != NULL;
}

static void
test_held_by_a_graph (void)
{
  test_ranks_run (2, run_held, NULL);
}

static gboolean
run_states (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  g_autoptr (EbbModule) model = test_parallel_model (&gpt, error);
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (GError) local = NULL;
  g_auto (GStrv) names = ebb_module_get_parameter_names (model, TRUE);
  g_auto (GStrv) divided = NULL;

  state = ebb_module_get_state_dict (model);
  same = ebb_parallelize (model, group, NULL, error);
  divided = ebb_module_get_parameter_names (model, TRUE);
  g_assert_cmpstrv ((const char *const *) names, (const char *const *) divided);
  g_assert_false (ebb_module_load_state_dict (model, state, TRUE, &local));
  test_assert_error (local, EBB_ERROR_STATE, "wte.weight", "ebb_load_full_state_dict");
  g_clear_error (&local);
  g_assert_null (ebb_gpt_to_gpt2_state (EBB_GPT (model), &local));
  test_assert_error (local, EBB_ERROR_STATE, "wte.weight", "ebb_get_full_state_dict");
  return same != NULL;
}

static void
test_states_name_the_way (void)
{
  test_ranks_run (2, run_states, NULL);
}

/* -- the sequence -------------------------------------------------------------------------------------------------- */

static gboolean
run_lengths (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  TestParallel settings = { .n_ranks = 2, .is_sequence_parallel = TRUE };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbModule) whole = test_parallel_model (&settings, error);
  g_autoptr (EbbTensor) odd = test_tokens (1, 30, 2, 5, -1);
  g_autoptr (EbbTensor) even = test_tokens (1, 30, 2, 6, -1);
  g_autoptr (EbbTensor) refused = NULL;
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (EbbTensor) generated = NULL;
  g_autoptr (EbbTensor) expected = NULL;
  g_autoptr (GError) local = NULL;

  if (!test_parallel_divide (&settings, model, group, error))
    return FALSE;
  ebb_module_set_training (model, FALSE);
  ebb_module_set_training (whole, FALSE);
  g_assert_true (ebb_parallel_get_sequence_parallel (model));
  refused = ebb_module_call1 (model, odd, &local);
  g_assert_null (refused);
  test_assert_error (local, EBB_ERROR_SHAPE, "multiple of 2", "[2, 5, 32]", "ebb_parallel_set_sequence_parallel");
  g_clear_error (&local);
  /* Nothing stayed open. */
  logits = ebb_module_call1 (model, even, error);
  g_assert_false (ebb_parallel_set_sequence_parallel (model, FALSE, &local));
  test_assert_error (local, EBB_ERROR_STATE, "a graph holds");
  g_clear_error (&local);
  g_clear_pointer (&logits, ebb_tensor_unref);
  g_assert_true (ebb_parallel_set_sequence_parallel (model, FALSE, error));
  g_assert_false (ebb_parallel_get_sequence_parallel (model));
  generated = test_generate (model, odd, 6, 0, 0, 1, NULL, error);
  expected = test_generate (whole, odd, 6, 0, 0, 1, NULL, error);
  if (generated == NULL || expected == NULL)
    return FALSE;
  test_assert_near (generated, expected, 0);
  return ebb_parallel_set_sequence_parallel (model, TRUE, error);
}

static void
test_lengths_that_do_not_divide (void)
{
  test_ranks_run (2, run_lengths, NULL);
}

static gboolean
run_never (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  g_autoptr (EbbModule) model = test_parallel_model (&gpt, error);
  g_autoptr (GError) local = NULL;

  if (!test_parallel_divide (&gpt, model, group, error))
    return FALSE;
  g_assert_false (ebb_parallel_set_sequence_parallel (model, TRUE, &local));
  test_assert_error (local, EBB_ERROR_STATE, "not parallelized with sequence-parallel");
  return ebb_parallel_set_sequence_parallel (model, FALSE, error);
}

static void
test_sequence_parallel_is_chosen_at_first (void)
{
  test_ranks_run (2, run_never, NULL);
}

/* A block that is called by itself has the whole sequence. */
static gboolean
run_block (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  TestParallel settings = { .n_ranks = 2, .is_sequence_parallel = TRUE };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbModule) whole = test_parallel_model (&settings, error);
  g_autoptr (EbbModule) block = ebb_module_get_child (model, "h.1");
  g_autoptr (EbbModule) whole_block = ebb_module_get_child (whole, "h.1");
  g_autoptr (EbbTensor) x = test_randn (2, 2, 7, 32, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) expected = NULL;

  if (!test_parallel_divide (&settings, model, group, error))
    return FALSE;
  y = ebb_module_call1 (block, x, error);
  expected = ebb_module_call1 (whole_block, x, error);
  if (y == NULL || expected == NULL)
    return FALSE;
  test_assert_near (y, expected, 1e-4);
  return TRUE;
}

static void
test_block_by_itself (void)
{
  test_ranks_run (2, run_block, NULL);
}

/* A mask for each head. */
static gboolean
run_mask (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  g_autoptr (EbbModule) model = test_parallel_model (&gpt, error);
  g_autoptr (EbbModule) whole = test_parallel_model (&gpt, error);
  g_autoptr (EbbTensor) tokens = test_tokens (1, 30, 2, 6, -1);
  g_autoptr (EbbTensor) mask = test_randn (3, 2, 4, 6, 6, -1);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbArgs) expected = NULL;
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (EbbTensor) expected_logits = NULL;

  if (!test_parallel_divide (&gpt, model, group, error))
    return FALSE;
  ebb_args_add_tensor (args, NULL, tokens);
  ebb_args_add_tensor (args, "mask", mask);
  result = ebb_module_call (model, args, error);
  expected = ebb_module_call (whole, args, error);
  if (result == NULL || expected == NULL)
    return FALSE;
  logits = ebb_args_get_tensor (result, 0);
  expected_logits = ebb_args_get_tensor (expected, 0);
  test_assert_near (logits, expected_logits, 1e-4);
  return TRUE;
}

static void
test_mask_for_each_head (void)
{
  test_ranks_run (4, run_mask, NULL);
}

/* -- training ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  TestParallel settings;
  gboolean optimizer_is_first;
  double losses[4];
} Training;

static gboolean
run_training (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Training *self = user_data;
  g_autoptr (EbbModule) model = test_parallel_model (&self->settings, error);
  g_autoptr (EbbOptimizer) optimizer = NULL;

  if (self->optimizer_is_first)
    optimizer = ebb_adamw_new (model, 1e-2, error);
  if (!test_parallel_divide (&self->settings, model, group, error))
    return FALSE;
  if (optimizer == NULL)
    optimizer = ebb_adamw_new (model, 1e-2, error);
  for (guint step = 0; step < G_N_ELEMENTS (self->losses); step++)
    {
      g_autoptr (EbbTensor) loss = test_parallel_loss (&self->settings, model, 0, error);
      double value;

      if (loss == NULL || !ebb_tensor_get_item (loss, &value, error) || !ebb_tensor_backward (loss, error)
          || !test_clip_grad (optimizer, 0.5, 2, NULL, error) || !ebb_optimizer_step (optimizer, error))
        return FALSE;
      if (ebb_process_group_get_rank (group) == 0)
        self->losses[step] = value;
      ebb_optimizer_zero_grad (optimizer);
    }
  return TRUE;
}

static void
test_training (gconstpointer sequence_parallel)
{
  Training whole = { .settings = { .is_full = TRUE } };

  test_ranks_run (1, run_training, &whole);
  g_assert_cmpfloat (whole.losses[3], <, whole.losses[0]);
  for (guint first = 0; first < 2; first++)
    {
      Training divided = { .settings = { .is_sequence_parallel = GPOINTER_TO_INT (sequence_parallel) },
                           .optimizer_is_first = first == 1 };

      test_ranks_run (2, run_training, &divided);
      for (guint i = 0; i < G_N_ELEMENTS (whole.losses); i++)
        g_assert_cmpfloat_with_epsilon (divided.losses[i], whole.losses[i], 2e-4);
    }
}

/* -- random numbers ------------------------------------------------------------------------------------------------ */

typedef struct
{
  guint64 seeds[2], offsets[2], default_offsets[2];
  double losses[2];
  gboolean is_sequence_parallel;
} Draws;

static gboolean
run_draws (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Draws *self = user_data;
  TestParallel settings = { .n_ranks = 2, .dropout = 0.3, .is_sequence_parallel = self->is_sequence_parallel };
  const guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbTensor) loss = NULL;
  EbbGenerator *own;

  if (!test_parallel_divide (&settings, model, group, error))
    return FALSE;
  loss = test_parallel_loss (&settings, model, 0, error);
  if (loss == NULL)
    return FALSE;
  own = ebb_generator_tracker_get_generator (ebb_generator_tracker_get_default (), EBB_MODEL_PARALLEL_RNG);
  self->seeds[rank] = ebb_generator_get_seed (own);
  self->offsets[rank] = ebb_generator_get_offset (own);
  self->default_offsets[rank] = ebb_generator_get_offset (ebb_generator_get_default ());
  return ebb_tensor_get_item (loss, &self->losses[rank], error);
}

static void
test_draws (gconstpointer sequence_parallel)
{
  Draws draws = { .is_sequence_parallel = GPOINTER_TO_INT (sequence_parallel) };

  test_ranks_run (2, run_draws, &draws);
  g_assert_cmpuint (draws.seeds[1], ==, draws.seeds[0] + 1);
  g_assert_cmpuint (draws.offsets[0], >, 0);
  g_assert_cmpuint (draws.offsets[0], ==, draws.offsets[1]);
  g_assert_cmpuint (draws.default_offsets[0], ==, draws.default_offsets[1]);
  g_assert_cmpfloat (draws.losses[0], ==, draws.losses[1]);
}

static gboolean
run_evaluation (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  TestParallel settings = { .n_ranks = 2, .dropout = 0.3 };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbModule) whole = test_parallel_model (&settings, error);
  g_autoptr (EbbModule) layer = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) expected = NULL;

  ebb_module_set_training (model, FALSE);
  ebb_module_set_training (whole, FALSE);
  if (!test_parallel_divide (&settings, model, group, error))
    return FALSE;
  layer = ebb_module_get_child (model, "h.0.attn.c_attn");
  g_assert_false (ebb_module_get_training (layer));
  loss = test_parallel_loss (&settings, model, 0, error);
  expected = test_parallel_loss (&settings, whole, 0, error);
  if (loss == NULL || expected == NULL)
    return FALSE;
  test_assert_near (loss, expected, 1e-4);
  ebb_module_set_training (model, TRUE);
  g_assert_true (ebb_module_get_training (layer));
  return TRUE;
}

static void
test_evaluation (void)
{
  test_ranks_run (2, run_evaluation, NULL);
}

/* -- first values -------------------------------------------------------------------------------------------------- */

static gboolean
run_first_values (EbbProcessGroup *group, gpointer losses, GError **error)
{
  g_autoptr (EbbModule) model = test_parallel_model (&gpt, error);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (model, "ln_f.weight");
  g_autoptr (EbbTensor) loss = NULL;
  const guint rank = ebb_process_group_get_rank (group);

  ebb_push_grad_enabled (FALSE);
  if (rank > 0)
    g_assert_true (ebb_tensor_fill (weight, 7, error));
  ebb_pop_grad_enabled ();
  if (!test_parallel_divide (&gpt, model, group, error))
    return FALSE;
  loss = test_parallel_loss (&gpt, model, 0, error);
  return loss != NULL && ebb_tensor_get_item (loss, &((double *) losses)[rank], error);
}

static void
test_first_values (void)
{
  double losses[2] = { 0, 1 };

  test_ranks_run (2, run_first_values, losses);
  g_assert_cmpfloat (losses[0], ==, losses[1]);
}

/* -- life ---------------------------------------------------------------------------------------------------------- */

static gboolean
run_life (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  EbbModule *model = test_parallel_model (&gpt, error);
  EbbModule *layer = ebb_module_get_child (model, "h.0.mlp.c_fc");
  g_autoptr (EbbModule) other = NULL;

  g_object_add_weak_pointer (G_OBJECT (layer), (gpointer *) &layer);
  g_assert_true (test_parallel_divide (&gpt, model, group, error));
  g_object_unref (layer);
  g_assert_null (layer); /* the one that was replaced */
  layer = ebb_module_get_child (model, "h.0.mlp.c_fc");
  g_object_add_weak_pointer (G_OBJECT (layer), (gpointer *) &layer);
  g_object_unref (layer);
  g_assert_nonnull (layer);
  g_object_add_weak_pointer (G_OBJECT (model), (gpointer *) &model);
  g_object_unref (model);
  g_assert_null (model);
  g_assert_null (layer);
  return TRUE;
}

static void
test_nothing_is_kept (void)
{
  test_ranks_run (2, run_life, NULL);
}

int
main (int argc, char **argv)
{
  static const Refusal refusals[] = {
    { make_odd_heads, EBB_ERROR_INVALID_ARGUMENT, { "h.0.attn: 3 heads can't be divided among 2 ranks" } },
    { make_unknown, EBB_ERROR_NOT_SUPPORTED, { "no plan is known for a Sequential" } },
    { make_wrong_type, EBB_ERROR_NOT_SUPPORTED, { "0.0.2", "column is for a Linear", "this is a Tanh" } },
    { make_without_match, EBB_ERROR_INVALID_ARGUMENT, { "\"0.*.down\" (row) matches no module" } },
    { make_without_parameter, EBB_ERROR_INVALID_ARGUMENT, { "\"0.gain\" (parameter) matches no parameter" } },
    { make_empty_plan, EBB_ERROR_INVALID_ARGUMENT, { "the plan is empty" } },
    { make_contradiction, EBB_ERROR_INVALID_ARGUMENT, { "0.0.1", "the style row, and another one", "(column)" } },
    { make_joined_column, EBB_ERROR_INVALID_ARGUMENT, { "h.0.attn.c_attn", "the style column", "column_qkv" } },
    { make_implied_odd_heads, EBB_ERROR_INVALID_ARGUMENT, { "h.0.attn: 3 heads can't be divided among 2 ranks" } },
    { make_without_stack, EBB_ERROR_INVALID_ARGUMENT, { "sequence-parallel", "no stack of the style sequence" } },
    { make_whole_inside, EBB_ERROR_NOT_SUPPORTED, { "0.0.1: a Linear that is not sharded", "\"0\"" } },
    { make_wrapped, EBB_ERROR_STATE, { "h.1.mlp.c_fc", "parallelize first, then wrap" } },
    { make_sharded, EBB_ERROR_STATE, { "the parameter is sharded", "parallelize first, then wrap" } },
    { make_divided, EBB_ERROR_STATE, { "Gpt is parallelized already" } },
    { make_other_on_second, EBB_ERROR_PROCESS_GROUP, { "must be the same on all ranks", "rank 1" } },
    { make_unknown_on_second, EBB_ERROR_NOT_SUPPORTED, { "no plan is known for a Sequential" } },
  };
  static const char *const names[] = { "odd-heads", "unknown-model", "wrong-type", "pattern-without-match",
                                       "missing-parameter", "empty-plan", "contradiction", "joined-column",
                                       "odd-heads-of-implied-attention", "sequence-without-stack",
                                       "whole-inside", "wrapped-layer", "sharded-model", "divided-model",
                                       "other-model", "failure-elsewhere" };

  test_init (&argc, &argv);
  g_test_add_func ("/parallelize/patterns-are-checked", test_patterns_are_checked);
  g_test_add_func ("/parallelize/models-without-a-plan-are-refused", test_models_without_a_plan_are_refused);
  g_test_add_data_func ("/parallelize/own-tree-is-the-whole-tree", GINT_TO_POINTER (FALSE), test_own_tree);
  g_test_add_data_func ("/parallelize/own-tree-sequence-sharded", GINT_TO_POINTER (TRUE), test_own_tree);
  for (guint i = 0; i < G_N_ELEMENTS (refusals); i++)
    {
      g_autofree char *path = g_strdup_printf ("/parallelize/refuses/%s", names[i]);

      g_test_add_data_func (path, &refusals[i], test_refusal);
    }
  g_test_add_func ("/parallelize/refuses/held-by-a-graph", test_held_by_a_graph);
  g_test_add_func ("/parallelize/states-name-the-way", test_states_name_the_way);
  g_test_add_func ("/parallelize/lengths-that-do-not-divide", test_lengths_that_do_not_divide);
  g_test_add_func ("/parallelize/sequence-parallel-is-chosen-at-first", test_sequence_parallel_is_chosen_at_first);
  g_test_add_func ("/parallelize/block-by-itself-has-the-whole-sequence", test_block_by_itself);
  g_test_add_func ("/parallelize/mask-for-each-head", test_mask_for_each_head);
  g_test_add_data_func ("/parallelize/trains-as-the-whole-model", GINT_TO_POINTER (FALSE), test_training);
  g_test_add_data_func ("/parallelize/trains-sequence-sharded", GINT_TO_POINTER (TRUE), test_training);
  g_test_add_data_func ("/parallelize/draws-differ-where-tensors-do", GINT_TO_POINTER (FALSE), test_draws);
  g_test_add_data_func ("/parallelize/draws-of-a-sequence-shard", GINT_TO_POINTER (TRUE), test_draws);
  g_test_add_func ("/parallelize/evaluation-drops-nothing", test_evaluation);
  g_test_add_func ("/parallelize/begins-with-the-first-ranks-values", test_first_values);
  g_test_add_func ("/parallelize/nothing-is-kept", test_nothing_is_kept);
  return g_test_run ();
}
