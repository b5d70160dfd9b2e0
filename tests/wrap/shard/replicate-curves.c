/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: slow cpu-only */
#include "support/device.h"
#include "support/ranks.h"

#include <string.h>

/* -- strategies ---------------------------------------------------------------------------------------------------- */

typedef struct
{
  guint64 bucket_bytes; /* 0: the default */
  gboolean checkpoint_outside, checkpoint_inside, checkpoint_blocks;
} How;

static EbbReplicateOptions *
make_options (const How *how)
{
  EbbReplicateOptions *options = ebb_replicate_options_new ();

  if (how->bucket_bytes > 0)
    g_object_set (options, "bucket-bytes", (guint64) how->bucket_bytes, NULL);
  return options;
}

static gboolean
checkpoint (EbbModule *module, gboolean wanted, GError **error)
{
  g_autoptr (EbbModule) same = NULL;

  if (!wanted)
    return TRUE;
  same = ebb_checkpoint_wrapper (module, NULL, error);
  return same != NULL;
}

static gboolean
replicate (EbbModule *gpt, EbbProcessGroup *group, gconstpointer data, GError **error)
{
  static const How plain = { 0 };
  const How *how = data != NULL ? data : &plain;
  g_autoptr (EbbReplicateOptions) options = make_options (how);
  g_autoptr (EbbModule) same = NULL;

  if (how->checkpoint_blocks && !ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, NULL, error))
    return FALSE;
  if (!checkpoint (gpt, how->checkpoint_inside, error))
    return FALSE;
  same = ebb_replicate (gpt, group, options, error);
  g_assert_true (same == NULL || same == gpt);
  return same != NULL && checkpoint (gpt, how->checkpoint_outside, error);
}

/* -- the same training --------------------------------------------------------------------------------------------- */

/* Against one rank that trains alone, without wrappers, all rows in one pass unless it is @passes that is tried. */
static void
check_curve (TestRanks settings)
{
  TestRanks alone = settings;
  g_autoptr (TestRanksResult) expected = NULL;

  alone.n_ranks = 1;
  alone.strategy = NULL;
  expected = test_ranks_train (&alone);
  g_assert_cmpfloat (expected->losses[expected->n_steps - 1], <, expected->losses[0]);
  for (guint n = 1; n <= 4; n++)
    {
      g_autoptr (TestRanksResult) result = NULL;

      settings.n_ranks = n;
      result = test_ranks_train (&settings);
      test_ranks_assert_near (expected, result, 1e-6);
      for (guint rank = 1; rank < n; rank++)
        g_assert_cmpuint (result->hashes[rank], ==, result->hashes[0]);
    }
}

static void
test_curve (void)
{
  check_curve ((TestRanks){ .strategy = replicate });
}

static void
test_curve_of_small_buckets (void)
{
  const How how = { .bucket_bytes = 1000 };

  check_curve ((TestRanks){ .strategy = replicate, .data = &how, .optimizer_is_first = TRUE });
}

static void
test_curve_with_checkpoint_outside (void)
{
  const How how = { .bucket_bytes = 20000, .checkpoint_outside = TRUE };

  check_curve ((TestRanks){ .strategy = replicate, .data = &how });
}

static void
test_curve_with_checkpoint_inside (void)
{
  const How how = { .bucket_bytes = 20000, .checkpoint_inside = TRUE };

  check_curve ((TestRanks){ .strategy = replicate, .data = &how });
}

static void
test_curve_with_checkpointed_blocks (void)
{
  const How how = { .bucket_bytes = 20000, .checkpoint_blocks = TRUE };

  check_curve ((TestRanks){ .strategy = replicate, .data = &how });
}

static void
test_curve_with_accumulation (void)
{
  check_curve ((TestRanks){ .strategy = replicate, .n_passes = 2 });
}

static void
test_curve_with_accumulation_of_means (void)
{
  check_curve ((TestRanks){ .strategy = replicate, .n_passes = 2, .syncs_all = TRUE });
}

static void
test_curve_with_clipping (void)
{
  const How how = { .bucket_bytes = 20000, .checkpoint_blocks = TRUE };

  check_curve ((TestRanks){ .strategy = replicate, .data = &how, .n_passes = 2, .max_norm = 0.5 });
}

static void
test_curve_with_steps_in_backward (void)
{
  const How how = { .bucket_bytes = 5000, .checkpoint_blocks = TRUE };

  check_curve ((TestRanks){ .strategy = replicate, .data = &how, .steps_in_backward = TRUE });
}

/* Checkpoints change no bit of what ranks do. */
static void
test_checkpoints_are_bitwise_equal (void)
{
  const How ways[] = { { .bucket_bytes = 20000 },
                       { .bucket_bytes = 20000, .checkpoint_outside = TRUE },
                       { .bucket_bytes = 20000, .checkpoint_inside = TRUE },
                       { .bucket_bytes = 20000, .checkpoint_blocks = TRUE },
                       { .bucket_bytes = 20000, .checkpoint_blocks = TRUE, .checkpoint_outside = TRUE } };
  g_autoptr (TestRanksResult) expected = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (ways); i++)
    {
      TestRanks settings = { .n_ranks = 2, .n_steps = 4, .dropout = 0.1, .strategy = replicate, .data = &ways[i] };
      g_autoptr (TestRanksResult) result = test_ranks_train (&settings);

      if (expected == NULL)
        expected = g_steal_pointer (&result);
      else
        {
          test_ranks_assert_same (expected, result);
          g_assert_cmpmem (expected->n_calls, sizeof expected->n_calls, result->n_calls, sizeof result->n_calls);
        }
    }
}

static void
test_twice_is_bitwise_equal (void)
{
  const How how = { .bucket_bytes = 5000 };
  TestRanks settings = { .n_ranks = 3,
                         .n_steps = 10,
                         .n_passes = 2,
                         .max_norm = 0.5,
                         .dropout = 0.1,
                         .strategy = replicate,
                         .data = &how };
  g_autoptr (TestRanksResult) a = test_ranks_train (&settings);
  g_autoptr (TestRanksResult) b = test_ranks_train (&settings);

  test_ranks_assert_same (a, b);
}

static void
test_bf16 (void)
{
  TestRanks settings = { .n_ranks = 2, .n_steps = 10, .dtype = EBB_DTYPE_BF16, .strategy = replicate };
  TestRanks alone = { .n_steps = 10, .dtype = EBB_DTYPE_BF16 };
  g_autoptr (TestRanksResult) a = test_ranks_train (&settings);
  g_autoptr (TestRanksResult) b = test_ranks_train (&alone);

  test_ranks_assert_near (a, b, 1e-2);
  g_assert_cmpuint (a->hashes[0], ==, a->hashes[1]);
}

/* -- how much ------------------------------------------------------------------------------------------------------ */

/* All-reduce of P bytes: a ring sends 2 P (n - 1) / n from each rank. */
static void
test_counters (void)
{
  for (guint n = 1; n <= 4; n++)
    {
      const How how = { .bucket_bytes = 1 };
      TestRanks settings = { .n_ranks = n, .n_steps = 2, .n_passes = 2, .strategy = replicate };
      g_autoptr (TestRanksResult) one = test_ranks_train (&settings);
      g_autoptr (TestRanksResult) many = NULL;
      guint64 expected = 2 * one->parameter_bytes * (n - 1) / n;

      settings.data = &how;
      many = test_ranks_train (&settings);
      g_assert_cmpuint (one->n_calls[EBB_COLLECTIVE_ALL_REDUCE], ==, 1);
      g_assert_cmpuint (many->n_calls[EBB_COLLECTIVE_ALL_REDUCE], ==, 28);
      g_assert_cmpfloat (ABS ((double) one->n_bytes[EBB_COLLECTIVE_ALL_REDUCE] - (double) expected), <=,
                         0.01 * (double) expected);
      for (guint i = 0; i < EBB_N_COLLECTIVES; i++)
        if (i != EBB_COLLECTIVE_ALL_REDUCE)
          g_assert_cmpuint (one->n_calls[i], ==, 0);
    }
}

static void
check_report (const TestRanks *settings, EbbModule *gpt, EbbOptimizer *optimizer, EbbProcessGroup *group)
{
  g_autofree char *report = ebb_replicate_report (gpt);

  g_assert_nonnull (strstr (report, "28 of 28 parameters"));
  g_assert_nonnull (strstr (report, "in 28 buckets"));
  g_assert_nonnull (strstr (report, "reduced 3 times, 84 buckets"));
  g_assert_cmpuint (ebb_replicate_get_n_buckets (gpt), ==, 28);
}

static void
test_report (void)
{
  const How how = { .bucket_bytes = 1 };
  TestRanks settings = { .n_ranks = 2, .n_steps = 3, .strategy = replicate, .data = &how, .inspect = check_report };
  g_autoptr (TestRanksResult) result = test_ranks_train (&settings);
  g_autoptr (EbbModule) linear = ebb_linear_new (2, 2, TRUE, NULL);
  g_autofree char *nothing = ebb_replicate_report (linear);

  g_assert_nonnull (result);
  g_assert_cmpstr (nothing, ==, "");
  g_assert_cmpuint (ebb_replicate_get_n_buckets (linear), ==, 0);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/replicate-curves/curve", test_curve);
  g_test_add_func ("/replicate-curves/curve-of-small-buckets", test_curve_of_small_buckets);
  g_test_add_func ("/replicate-curves/curve-with-checkpoint-outside", test_curve_with_checkpoint_outside);
  g_test_add_func ("/replicate-curves/curve-with-checkpoint-inside", test_curve_with_checkpoint_inside);
  g_test_add_func ("/replicate-curves/curve-with-checkpointed-blocks", test_curve_with_checkpointed_blocks);
  g_test_add_func ("/replicate-curves/curve-with-accumulation", test_curve_with_accumulation);
  g_test_add_func ("/replicate-curves/curve-with-accumulation-of-means", test_curve_with_accumulation_of_means);
  g_test_add_func ("/replicate-curves/curve-with-clipping", test_curve_with_clipping);
  g_test_add_func ("/replicate-curves/curve-with-steps-in-backward", test_curve_with_steps_in_backward);
  g_test_add_func ("/replicate-curves/checkpoints-are-bitwise-equal", test_checkpoints_are_bitwise_equal);
  g_test_add_func ("/replicate-curves/twice-is-bitwise-equal", test_twice_is_bitwise_equal);
  g_test_add_func ("/replicate-curves/bf16", test_bf16);
  g_test_add_func ("/replicate-curves/counters", test_counters);
  g_test_add_func ("/replicate-curves/report", test_report);
  return g_test_run ();
}
