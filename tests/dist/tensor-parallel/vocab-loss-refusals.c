/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"

#include <string.h>

/* The cross entropies of sharded classes refuse bad input on all ranks alike, before any of them waits for another. */

static guint64
count_gathers (EbbProcessGroup *group)
{
  return ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_GATHER);
}

static gboolean
take_no_rows (EbbProcessGroup *group,
              gpointer data,
              GError **error)
{
  g_autoptr (EbbTensor) x = ebb_zeros ((gint64[]){ 0, 4 }, 2, EBB_DTYPE_F32, NULL, error);
  g_autoptr (EbbTensor) weight = test_randn (1, 3, 4, -1);
  g_autoptr (EbbTensor) targets = ebb_zeros ((gint64[]){ 0 }, 1, EBB_DTYPE_I64, NULL, error);
  g_autoptr (EbbTensor) loss = NULL;

  ebb_process_group_reset_counters (group);
  loss = ebb_vocab_parallel_linear_cross_entropy (x, weight, NULL, targets, 6, -100, EBB_REDUCTION_SUM, group, error);
  g_assert_no_error (*error);
  g_assert_cmpfloat (test_at (loss, 0), ==, 0);
  g_assert_cmpuint (count_gathers (group), ==, 0);
  return TRUE;
}

static void
no_rows_take_no_call (void)
{
  test_ranks_run (2, take_no_rows, NULL);
}

static gboolean
fail (EbbProcessGroup *group,
      gpointer data,
      GError **unused)
{
  const gboolean is_first = ebb_process_group_get_rank (group) == 0;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) logits = test_randn (1, 2, 4, -1);
  g_autoptr (EbbTensor) x = test_randn (1, 2, 5, -1);
  g_autoptr (EbbTensor) weight = test_randn (2, 4, 5, -1);
  g_autoptr (EbbTensor) bias = test_randn (2, 3, -1);
  g_autoptr (EbbTensor) targets = test_tokens (1, 8, 2, -1);
  g_autoptr (EbbTensor) far = ebb_add_scalar (targets, 8, &error);
  g_autoptr (EbbTensor) one = test_tokens (1, 8, 1, -1);

  ebb_process_group_reset_counters (group);
  g_assert_null (ebb_vocab_parallel_cross_entropy (logits, targets, 1, -1, EBB_REDUCTION_MEAN, group, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT,
                     "vocab_parallel_cross_entropy: 1 classes can't be divided among 2 ranks");
  g_clear_error (&error);
  g_assert_null (ebb_vocab_parallel_cross_entropy (logits, targets, 11, -1, EBB_REDUCTION_MEAN, group, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "vocab_parallel_cross_entropy: logits is [2, 4]; rank",
                     is_first ? "rank 0 of 2 has 6 of 11 classes" : "rank 1 of 2 has 5 of 11 classes");
  g_clear_error (&error);
  /* A device that works behind the caller's back finds it when the ranks have begun to gather. */
  if (test_device_is_cpu ())
    {
      g_assert_null (ebb_vocab_parallel_cross_entropy (logits, far, 8, -1, EBB_REDUCTION_MEAN, group, &error));
      test_assert_error (error, EBB_ERROR_INDEX, "out of range; indices must be in [0, 8)");
      g_clear_error (&error);
    }
  g_assert_null (ebb_vocab_parallel_cross_entropy (logits, one, 8, -1, EBB_REDUCTION_MEAN, group, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "[2, 4]", "[1]");
  g_clear_error (&error);
  g_assert_null (ebb_vocab_parallel_cross_entropy (targets, one, 8, -1, EBB_REDUCTION_MEAN, group, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "logits is [2]");
  g_clear_error (&error);
  g_assert_null (ebb_vocab_parallel_cross_entropy (logits, targets, 8, -1, (EbbReduction) 3, group, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "there is no reduction 3");
  /* An error that is set is left as it is. */
  g_assert_null (ebb_vocab_parallel_cross_entropy (logits, targets, 8, -1, EBB_REDUCTION_MEAN, group, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "there is no reduction 3");
  g_clear_error (&error);

  if (is_first)
    {
      /* The default group is this one. */
      g_assert_null (ebb_vocab_parallel_linear_cross_entropy (x, weight, NULL, targets, 9, -1, EBB_REDUCTION_MEAN, NULL,
                                                              &error));
      test_assert_error (error, EBB_ERROR_SHAPE, "rank 0 of 2", "of 9 classes");
    }
  g_clear_error (&error);
  g_assert_null (
      ebb_vocab_parallel_linear_cross_entropy (x, weight, bias, targets, 8, -1, EBB_REDUCTION_MEAN, group, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "vocab_parallel_linear_cross_entropy: bias is [3] and weight is [4, 5]");
  g_clear_error (&error);
  g_assert_null (ebb_vocab_parallel_linear_cross_entropy (logits, weight, NULL, targets, 8, -1, EBB_REDUCTION_MEAN,
                                                          group, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "x is [2, 4] and weight is [4, 5]");
  g_clear_error (&error);
  g_assert_null (
      ebb_vocab_parallel_linear_cross_entropy (NULL, weight, NULL, targets, 8, -1, EBB_REDUCTION_MEAN, group, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "an operand is NULL");
  g_clear_error (&error);
  g_assert_cmpuint (count_gathers (group), ==, 0);
  return TRUE;
}

static void
what_cannot_be_is_said (void)
{
  test_ranks_run (2, fail, NULL);
}

static gboolean
disagree (EbbProcessGroup *group,
          gpointer data,
          GError **error)
{
  g_autoptr (EbbTensor) logits = test_randn (1, 2 + (int) ebb_process_group_get_rank (group), 4, -1);
  g_autoptr (EbbTensor) targets = test_tokens (1, 8, 2 + (int) ebb_process_group_get_rank (group), -1);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (GError) own_error = NULL;

  loss = ebb_vocab_parallel_cross_entropy (logits, targets, 8, -1, EBB_REDUCTION_MEAN, group, &own_error);
  g_assert_null (loss);
  test_assert_error (own_error, EBB_ERROR_PROCESS_GROUP, "vocab_parallel_cross_entropy", "all_gather");
  return TRUE;
}

static void
ranks_with_other_rows_fail (void)
{
  test_ranks_run (2, disagree, NULL);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/vocab-loss-refusals/no-rows-take-no-call", no_rows_take_no_call);
  g_test_add_func ("/vocab-loss-refusals/what-cannot-be-is-said", what_cannot_be_is_said);
  g_test_add_func ("/vocab-loss-refusals/ranks-with-other-rows-fail", ranks_with_other_rows_fail);
  return g_test_run ();
}
