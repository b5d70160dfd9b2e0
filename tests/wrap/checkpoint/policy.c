/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/gpt-step.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* The bytes that each policy saves and the operations that it runs again, as computed by hand for one block of a GPT.
 */

enum
{
  TOKENS = TEST_GPT_BATCH * TEST_GPT_CONTEXT,
  WIDTH = TEST_GPT_WIDTH,
  N_LAYERS = 3,
  UNIT = TOKENS * WIDTH * 4,                  /* bytes of a tensor [B, T, width] */
  LOGSUMEXP = TOKENS * TEST_GPT_HEADS * 2 * 4 /* two f32 each */
};

/* The forward of a block: input, norm, QKV product, attention, its output product, sum and norm, two products with
 * bias + GELU between, sum. What comes after the last thing that backward needs, the last product, is never kept. */
#define INPUT UNIT
#define QKV (3 * UNIT)
#define ATTENTION (UNIT + LOGSUMEXP)
#define PROJECTION UNIT
#define HIDDEN (4 * UNIT)

#define PRODUCT_FLOP(in, out) (2 * (guint64) TOKENS * (in) * (out))

typedef void (*SetPolicy) (EbbCheckpointOptions *options);

typedef struct
{
  guint64 saved, dropped, flop, n_recomputes;
} Tally;

static EbbCheckpointOptions *
make_options (SetPolicy set)
{
  EbbCheckpointOptions *options = ebb_checkpoint_options_new ();

  g_object_set (options, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, NULL);
  if (set != NULL)
    set (options);
  return options;
}

static void
wrap_blocks (EbbModule *gpt, EbbCheckpointOptions *options)
{
  g_assert_true (ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, options, NULL));
}

/* Trains a GPT of one block, and checks that it trains as ever. */
static Tally
measure (SetPolicy set, gboolean with_mask)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (1, 0);
  g_autoptr (EbbCheckpointOptions) options = make_options (set);
  g_autoptr (EbbModule) block = NULL;
  g_autoptr (EbbModule) h = ebb_module_get_child (gpt, "h");
  g_autoptr (EbbCheckpointStats) stats = NULL;
  g_auto (TestGptStep) plain = { 0 };
  g_auto (TestGptStep) step = { 0 };

  test_gpt_step_run (gpt, with_mask, &plain);
  wrap_blocks (gpt, options);
  test_gpt_step_run (gpt, with_mask, &step);
  test_assert_same_gpt_step (&plain, &step);
  test_assert_counters (gpt, 0);
  block = ebb_module_list_get (EBB_MODULE_LIST (h), 0);
  stats = ebb_checkpoint_get_stats (block);
  g_assert_cmpuint (stats->saved_bytes, ==, 0);
  return (Tally){ .saved = stats->peak_saved_bytes,
                  .dropped = stats->peak_dropped_bytes,
                  .flop = stats->recompute_flop,
                  .n_recomputes = stats->n_recomputes };
}

/* -- ready-made policies ------------------------------------------------------------------------------------------- */

static void
save_linear (EbbCheckpointOptions *options)
{
  g_assert_true (
      ebb_checkpoint_options_set_policy_save_ops (options, (const char *const[]){ "linear", NULL }, NULL));
}

static void
save_nothing (EbbCheckpointOptions *options)
{
  g_assert_true (ebb_checkpoint_options_set_policy_save_ops (options, (const char *const[]){ NULL }, NULL));
}

static void
save_each_product (EbbCheckpointOptions *options)
{
  g_assert_true (ebb_checkpoint_options_set_policy_save_nth_product (options, 1, NULL));
}

static void
save_second_product (EbbCheckpointOptions *options)
{
  g_assert_true (ebb_checkpoint_options_set_policy_save_nth_product (options, 2, NULL));
}

static void
save_third_product (EbbCheckpointOptions *options)
{
  g_assert_true (ebb_checkpoint_options_set_policy_save_nth_product (options, 3, NULL));
}

static void
test_policies_keep_what_they_say (void)
{
  const Tally full = measure (NULL, FALSE);
  const guint64 all_products = PRODUCT_FLOP (WIDTH, 3 * WIDTH) + PRODUCT_FLOP (WIDTH, WIDTH)
                               + PRODUCT_FLOP (WIDTH, 4 * WIDTH);
  Tally tally;

  g_assert_cmpuint (full.saved, ==, INPUT);
  g_assert_cmpuint (full.flop, >, all_products);

  tally = measure (ebb_checkpoint_options_set_policy_selective, FALSE);
  g_assert_cmpuint (tally.saved, ==, INPUT + QKV + HIDDEN);
  g_assert_cmpuint (full.flop - tally.flop, ==, all_products - PRODUCT_FLOP (WIDTH, WIDTH));

  tally = measure (save_linear, FALSE);
  g_assert_cmpuint (tally.saved, ==, INPUT + QKV + PROJECTION + HIDDEN);
  g_assert_cmpuint (full.flop - tally.flop, ==, all_products);

  tally = measure (save_each_product, FALSE);
  g_assert_cmpuint (tally.saved, ==, INPUT + QKV + PROJECTION + HIDDEN);
  g_assert_cmpuint (full.flop - tally.flop, ==, all_products);

  tally = measure (save_second_product, FALSE);
  g_assert_cmpuint (tally.saved, ==, INPUT + PROJECTION);
  g_assert_cmpuint (full.flop - tally.flop, ==, PRODUCT_FLOP (WIDTH, WIDTH));

  tally = measure (save_third_product, FALSE);
  g_assert_cmpuint (tally.saved, ==, INPUT + HIDDEN);
  g_assert_cmpuint (full.flop - tally.flop, ==, PRODUCT_FLOP (WIDTH, 4 * WIDTH));

  tally = measure (save_nothing, FALSE);
  g_assert_cmpuint (tally.saved, ==, full.saved);
  g_assert_cmpuint (tally.flop, ==, full.flop);
}

/* All but the attention's output and logsumexp is kept, and nothing that a plain forward would not have kept. */
static void
test_core_attention_recomputes_attention_alone (void)
{
  const Tally full = measure (NULL, FALSE);
  const Tally tally = measure (ebb_checkpoint_options_set_policy_core_attention, FALSE);

  g_assert_cmpuint (tally.dropped, ==, ATTENTION);
  g_assert_cmpuint (tally.saved, ==, full.saved + full.dropped - ATTENTION);
  g_assert_cmpuint (tally.n_recomputes, ==, 1);
  g_assert_cmpuint (tally.flop, >, 0);
  g_assert_cmpuint (tally.flop, <, PRODUCT_FLOP (WIDTH, WIDTH));
}

static void
test_core_attention_keeps_less_than_nothing_wrapped (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0.1);
  g_autoptr (EbbCheckpointOptions) options = make_options (ebb_checkpoint_options_set_policy_core_attention);
  g_auto (TestGptStep) plain = { 0 };
  g_auto (TestGptStep) step = { 0 };

  test_gpt_step_run (gpt, FALSE, &plain);
  wrap_blocks (gpt, options);
  test_gpt_step_run (gpt, FALSE, &step);
  test_assert_same_gpt_step (&plain, &step);
  g_assert_cmpuint (step.held, ==, plain.held - N_LAYERS * ATTENTION);
}

static void
test_policies_are_bitwise_equal (gconstpointer data)
{
  const SetPolicy policies[] = { ebb_checkpoint_options_set_policy_selective,
                                 ebb_checkpoint_options_set_policy_core_attention,
                                 save_linear,
                                 save_nothing,
                                 save_each_product,
                                 save_second_product };
  const gboolean autocast = GPOINTER_TO_INT (data) & 1, stays = GPOINTER_TO_INT (data) & 2;
  g_auto (TestGptStep) plain = { 0 };

  if (autocast)
    ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  for (guint i = 0; i <= G_N_ELEMENTS (policies); i++)
    for (int with_uniform = 0; with_uniform < 2; with_uniform++)
      {
        g_autoptr (EbbModule) gpt = test_gpt_step_model (3, 0.2);
        g_autoptr (EbbModule) h = ebb_module_get_child (gpt, "h");
        g_auto (TestGptStep) step = { 0 };

        if (i < G_N_ELEMENTS (policies))
          {
            g_autoptr (EbbCheckpointOptions) options = make_options (policies[i]);

            g_object_set (options, "early-stop", !stays, NULL);
            if (with_uniform)
              g_assert_true (ebb_checkpoint_wrap_uniform (h, 2, options, NULL));
            wrap_blocks (gpt, options);
          }
        test_gpt_step_run (gpt, TRUE, &step);
        test_assert_counters (gpt, 0);
        if (plain.loss == NULL)
          {
            g_autoptr (EbbModule) other = test_gpt_step_model (3, 0.2);

            test_gpt_step_run (other, TRUE, &plain);
          }
        test_assert_same_gpt_step (&plain, &step);
      }
  if (autocast)
    ebb_pop_autocast ();
}

/* -- a policy of one's own ----------------------------------------------------------------------------------------- */

typedef struct
{
  EbbCheckpointPolicy verdict;
  guint n_asked, n_destroyed;
  const char *fails_at;
  gboolean while_recomputing;
} Own;

static EbbCheckpointPolicy
decide (const char *op, guint ordinal, guint64 n_bytes, gpointer user_data, GError **error)
{
  Own *own = user_data;
  g_auto (GStrv) names = ebb_op_list_names ();

  g_assert_true (g_strv_contains ((const char *const *) names, op));
  g_assert_cmpuint (n_bytes, >, 0);
  own->n_asked++;
  own->while_recomputing = own->while_recomputing || ebb_is_recomputing ();
  if (own->fails_at != NULL && strcmp (op, own->fails_at) == 0)
    g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "nobody knows about %s", op);
  return own->verdict;
}

static void
note_destroyed (gpointer data)
{
  ((Own *) data)->n_destroyed++;
}

static EbbCheckpointOptions *
own_options (Own *own)
{
  EbbCheckpointOptions *options = ebb_checkpoint_options_new ();

  ebb_checkpoint_options_set_policy (options, decide, own, note_destroyed);
  return options;
}

/* Without a budget, "prefer" is "must". */
static void
test_prefer_is_must (void)
{
  guint64 saved[4], flop[4];

  for (guint verdict = 0; verdict < 4; verdict++)
    {
      Own own = { .verdict = (EbbCheckpointPolicy) verdict };
      g_autoptr (EbbModule) gpt = test_gpt_step_model (1, 0);
      g_autoptr (EbbModule) h = ebb_module_get_child (gpt, "h");
      g_autoptr (EbbModule) block = ebb_module_list_get (EBB_MODULE_LIST (h), 0);
      g_autoptr (EbbCheckpointStats) stats = NULL;
      g_auto (TestGptStep) step = { 0 };
      EbbCheckpointOptions *options = own_options (&own);

      wrap_blocks (gpt, options);
      g_object_unref (options);
      test_gpt_step_run (gpt, FALSE, &step);
      stats = ebb_checkpoint_get_stats (block);
      saved[verdict] = stats->peak_saved_bytes;
      flop[verdict] = stats->recompute_flop;
      g_assert_cmpuint (own.n_asked, ==, 9);
      g_assert_false (own.while_recomputing);
      g_assert_cmpuint (own.n_destroyed, ==, 0);
      g_assert_true (ebb_checkpoint_unwrap (block));
      g_assert_cmpuint (own.n_destroyed, ==, 1);
    }
  g_assert_cmpuint (saved[EBB_CHECKPOINT_POLICY_PREFER_SAVE], ==, saved[EBB_CHECKPOINT_POLICY_MUST_SAVE]);
  g_assert_cmpuint (flop[EBB_CHECKPOINT_POLICY_PREFER_SAVE], ==, 0);
  g_assert_cmpuint (flop[EBB_CHECKPOINT_POLICY_MUST_SAVE], ==, 0);
  g_assert_cmpuint (saved[EBB_CHECKPOINT_POLICY_PREFER_RECOMPUTE], ==, INPUT);
  g_assert_cmpuint (saved[EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE], ==, INPUT);
  g_assert_cmpuint (flop[EBB_CHECKPOINT_POLICY_PREFER_RECOMPUTE], ==, flop[EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE]);
}

static void
test_a_failing_policy_fails_the_call (void)
{
  Own own = { .verdict = EBB_CHECKPOINT_POLICY_MUST_SAVE, .fails_at = "tanh" };
  g_autoptr (EbbModule) mlp = test_mlp_new (1);
  g_autoptr (EbbCheckpointOptions) options = own_options (&own);
  g_autoptr (EbbTensor) x = test_randn (2, 4, 8, -1);
  g_autoptr (TestOutcome) plain = test_train1 (mlp, x);
  g_autoptr (TestOutcome) after = NULL;
  TestState state;
  GError *error = NULL;

  test_wrap (mlp, options);
  ebb_module_zero_grad (mlp);
  state = test_state_now ();
  g_assert_null (ebb_module_call1 (mlp, x, &error));
  test_assert_error (error, EBB_ERROR_IO, "nobody knows about tanh");
  g_clear_error (&error);
  test_assert_counters (mlp, 0);
  test_assert_state (state);

  own.fails_at = NULL;
  own.verdict = (EbbCheckpointPolicy) 17;
  g_assert_null (ebb_module_call1 (mlp, x, &error));
  test_assert_error (error, EBB_ERROR_CALLBACK, "17", "linear", "CheckpointPolicy");
  g_clear_error (&error);

  own.verdict = EBB_CHECKPOINT_POLICY_MUST_SAVE;
  after = test_train1 (mlp, x);
  test_assert_same_outcome (after, plain);
}

/* A forward may read a value that is kept: it finds it again though nothing else would need it. */
static EbbTensor *
branch (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) product = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) mean = ebb_mean (product, NULL, 0, FALSE, error);
  g_autoptr (EbbTensor) y = NULL;
  double value = 0;

  if (!ebb_tensor_get_item (mean, &value, error))
    return NULL;
  y = value > 0 ? ebb_tanh (product, error) : ebb_sigmoid (product, error);
  return ebb_exp (y, error);
}

static void
test_a_value_that_the_forward_reads_is_kept (void)
{
  Own own = { .verdict = EBB_CHECKPOINT_POLICY_MUST_SAVE };
  g_autoptr (EbbModule) module = test_with_gain (test_lambda1_new (branch, NULL), 5);
  g_autoptr (EbbCheckpointOptions) options = own_options (&own);
  g_autoptr (EbbTensor) x = test_randn (2, 4, 8, -1);
  g_autoptr (TestOutcome) plain = test_train1 (module, x);
  g_autoptr (TestOutcome) outcome = NULL;

  test_wrap (module, options);
  outcome = test_train1 (module, x);
  test_assert_same_outcome (outcome, plain);
  g_assert_cmpuint (own.n_asked, ==, 4);
}

/* -- errors -------------------------------------------------------------------------------------------------------- */

static void
test_errors_name_the_value (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  GError *error = NULL;

  g_assert_false (ebb_checkpoint_options_set_policy_save_ops (
      options, (const char *const[]){ "linear", "linera", NULL }, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "\"linera\"", "ebb_op_list_names ()");
  g_assert_false (ebb_checkpoint_options_set_policy_save_nth_product (options, 1, &error)); /* an error is set */
  g_clear_error (&error);
  g_assert_false (ebb_checkpoint_options_set_policy_save_nth_product (options, 0, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "n is 0", "1 or more");
  g_clear_error (&error);
  g_assert_false (ebb_checkpoint_options_set_policy_save_ops (NULL, (const char *const[]){ NULL }, NULL));
  g_assert_false (ebb_checkpoint_options_set_policy_save_ops (options, NULL, NULL));
}

/* Adds the names that a source folder has, except ops that no policy decides on. FALSE: there is no such folder. */
static gboolean
find_ops (GHashTable *found,
          const char *first,
          const char *second)
{
  g_autofree char *folder = g_build_filename (g_getenv ("EBB_SOURCE_DIR") ?: ".", first, second, NULL);
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);
  g_autoptr (GRegex) pattern = g_regex_new (
      "(?|\\{\\s*\"(\\w+)\",\\s*EBB_OP_(\\w+)|\\bUNARY \\(\"(\\w+)\"(,))", 0, 0, NULL);
  const char *const undecided[] = { "VIEW", "COPY", "GRADIENT", NULL };
  const char *file;

  while (dir != NULL && (file = g_dir_read_name (dir)) != NULL)
    {
      g_autofree char *path = g_build_filename (folder, file, NULL);
      g_autofree char *text = NULL;
      g_autoptr (GMatchInfo) match = NULL;

      if (g_file_test (path, G_FILE_TEST_IS_DIR))
        continue;
      g_assert_true (g_file_get_contents (path, &text, NULL, NULL));
      for (g_regex_match (pattern, text, 0, &match); g_match_info_matches (match); g_match_info_next (match, NULL))
        {
          g_autofree char *kind = g_match_info_fetch (match, 2);

          if (!g_strv_contains (undecided, kind))
            g_hash_table_add (found, g_match_info_fetch (match, 1));
        }
    }
  return dir != NULL;
}

/* The list is that of the sources: { "name", EBB_OP_KIND, ... }, or UNARY ("name", ...) for pointwise ones. */
static void
test_every_op_is_listed (void)
{
  g_auto (GStrv) names = ebb_op_list_names ();
  g_autoptr (GHashTable) found = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);

  for (guint i = 1; names[i] != NULL; i++)
    g_assert_cmpstr (names[i - 1], <, names[i]);
  if (!find_ops (found, "tensor", "ops") || !find_ops (found, "dist", "tensor-parallel"))
    {
      g_test_skip ("EBB_SOURCE_DIR does not name the source tree");
      return;
    }
  g_assert_cmpuint (g_hash_table_size (found), ==, g_strv_length (names));
  for (guint i = 0; names[i] != NULL; i++)
    if (!g_hash_table_contains (found, names[i]))
      g_error ("%s is listed in tensor/autograd/op-names.c, but no op has that name", names[i]);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/checkpoint-policy/policies-keep-what-they-say", test_policies_keep_what_they_say);
  g_test_add_func ("/checkpoint-policy/core-attention-recomputes-attention-alone",
                   test_core_attention_recomputes_attention_alone);
  g_test_add_func ("/checkpoint-policy/core-attention-keeps-less-than-nothing-wrapped",
                   test_core_attention_keeps_less_than_nothing_wrapped);
  g_test_add_data_func ("/checkpoint-policy/policies-are-bitwise-equal", GINT_TO_POINTER (0),
                        test_policies_are_bitwise_equal);
  g_test_add_data_func ("/checkpoint-policy/policies-are-bitwise-equal/autocast", GINT_TO_POINTER (1),
                        test_policies_are_bitwise_equal);
  g_test_add_data_func ("/checkpoint-policy/policies-are-bitwise-equal/no-early-stop", GINT_TO_POINTER (2),
                        test_policies_are_bitwise_equal);
  g_test_add_func ("/checkpoint-policy/prefer-is-must-without-a-budget", test_prefer_is_must);
  g_test_add_func ("/checkpoint-policy/a-failing-policy-fails-the-call", test_a_failing_policy_fails_the_call);
  g_test_add_func ("/checkpoint-policy/a-value-that-the-forward-reads-is-kept",
                   test_a_value_that_the_forward_reads_is_kept);
  g_test_add_func ("/checkpoint-policy/errors-name-the-value", test_errors_name_the_value);
  g_test_add_func ("/checkpoint-policy/every-op-is-listed", test_every_op_is_listed);
  return g_test_run ();
}
