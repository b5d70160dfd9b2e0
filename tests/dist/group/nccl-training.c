/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"
#include "support/shard-runs.h"
#include "support/tensors.h"
#include "support/waits.h"

#include <string.h>

/* Training over NCCL, one process for each rank: the host waits for its device nowhere, since collectives work on the
 * device's memory. An index that is out of range ends no rank, and each rank learns of its own. */

#define VOCAB 29
#define ROWS 2
#define CONTEXT 8
#define TIMEOUT 0.5 /* seconds, where a rank waits in vain */

static EbbProcessGroup *world;

/* -- waits --------------------------------------------------------------------------------------------------------- */

static void
take_step (const TestShardRun *run,
           EbbTensor *tokens,
           EbbTensor *targets)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (run->model), tokens, targets, &error);
  g_autoptr (EbbTensor) norm = NULL;

  ebb_tensor_backward (loss, &error);
  norm = ebb_optimizer_clip_grad_norm (run->optimizer, 0.01, &error);
  ebb_optimizer_step (run->optimizer, &error);
  ebb_optimizer_zero_grad (run->optimizer);
  g_assert_no_error (error);
}

/* Replicated, and sharded by rows and flat. */
static void
a_step_waits_nowhere (gconstpointer data)
{
  const guint rank = ebb_process_group_get_rank (world);
  g_autoptr (EbbTensor) tokens = test_tokens (1 + rank, VOCAB, ROWS, CONTEXT, -1);
  g_autoptr (EbbTensor) targets = test_tokens (11 + rank, VOCAB, ROWS, CONTEXT, -1);
  g_autoptr (GError) error = NULL;
  TestShardRun run;

  test_shard_run_start (&run, world, NULL, (TestSplit) GPOINTER_TO_INT (data), 0.1, EBB_MOMENT_FORMAT_F32);
  take_step (&run, tokens, targets);
  test_waits_begin (test_device ());
  take_step (&run, tokens, targets);
  take_step (&run, tokens, targets);
  g_assert_cmpuint (test_waits_get_n (), ==, 0);
  ebb_device_synchronize (test_device (), &error);
  g_assert_no_error (error);
  g_assert_cmpuint (test_waits_get_n (), ==, 1);
  test_shard_run_clear (&run);
  ebb_process_group_barrier (world, &error);
  g_assert_no_error (error);
}

/* -- indices ------------------------------------------------------------------------------------------------------- */

/* Of all ranks, to be lost: a rank whose collective fails leaves its group, and the others wait for it in vain. */
static EbbProcessGroup *
make_group (void)
{
  g_autoptr (GError) error = NULL;
  EbbProcessGroup *group = ebb_process_group_split (world, 0, &error);

  g_assert_no_error (error);
  ebb_process_group_set_timeout (group, TIMEOUT);
  return group;
}

static void
assert_all_go_on (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) one = ebb_ones ((const gint64[]){ 3 }, 1, EBB_DTYPE_F32, NULL, &error);

  ebb_process_group_all_reduce (world, one, EBB_REDUCE_OP_SUM, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (test_at (one, 2), ==, ebb_process_group_get_size (world));
}

/* The classes are sharded, and the ranks have the same targets: each rank names the bad one, whether it learns of it in
 * the collective, or later because another rank did. */
static void
a_target_that_no_rank_has (void)
{
  g_autoptr (EbbProcessGroup) group = make_group ();
  const gint64 n_classes = 4 * ebb_process_group_get_size (group), shape[] = { 3 };
  const gint64 values[] = { 1, n_classes + 3, 0 };
  g_autofree char *expected =
      g_strdup_printf ("%scross_entropy: index %" G_GINT64_FORMAT
                       " at position 1 is out of range; indices must be in [0, %" G_GINT64_FORMAT ")",
                       ebb_process_group_get_size (group) > 1 ? "vocab_parallel_" : "", n_classes + 3, n_classes);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) logits = test_randn (1, 3, 4, -1);
  g_autoptr (EbbTensor) here = ebb_tensor_new_from_ints (values, 3, shape, 1, &error);
  g_autoptr (EbbTensor) targets = test_move (here);
  g_autoptr (EbbTensor) loss = NULL;
  double value;

  g_assert_no_error (error);
  loss = ebb_vocab_parallel_cross_entropy (logits, targets, n_classes, -1, EBB_REDUCTION_MEAN, group, &error);
  if (loss != NULL)
    g_assert_false (ebb_tensor_get_item (loss, &value, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INDEX);
  g_assert_true (g_str_has_suffix (error->message, expected));
  assert_all_go_on ();
}

/* Each rank has rows of its own, and the first has a bad token: it says so, and its parameters stay. The others either
 * got through the step, or their next collective says that a rank is missing. */
static void
a_token_of_one_rank (void)
{
  g_autoptr (EbbProcessGroup) group = make_group ();
  const guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbTensor) tokens = test_tokens (1 + rank, VOCAB, ROWS, CONTEXT, -1);
  g_autoptr (EbbTensor) targets = test_tokens (11 + rank, VOCAB, ROWS, CONTEXT, -1);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) far = ebb_add_scalar (tokens, VOCAB, &error);
  g_autoptr (EbbTensor) loss = NULL;
  g_autofree EbbTensor **parameters = NULL;
  g_autofree EbbTensor **before = NULL;
  TestShardRun run;
  guint n;

  test_shard_run_start (&run, group, NULL, TEST_SPLIT_NONE, 0, EBB_MOMENT_FORMAT_F32);
  parameters = ebb_module_get_parameters (run.model, TRUE, &n);
  before = g_new (EbbTensor *, n);
  for (guint i = 0; i < n; i++)
    before[i] = ebb_to_device (parameters[i], ebb_device_get_cpu (), &error);
  g_assert_no_error (error);
  loss = ebb_gpt_loss (EBB_GPT (run.model), rank == 0 ? far : tokens, targets, &error);
  if (loss != NULL && ebb_tensor_backward (loss, &error) && ebb_optimizer_step (run.optimizer, &error))
    ebb_device_synchronize (test_device (), &error);
  if (rank == 0)
    {
      g_assert_error (error, EBB_ERROR, EBB_ERROR_INDEX);
      g_assert_nonnull (strstr (error->message, "embedding: index "));
    }
  else if (error != NULL)
    g_assert_error (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP);
  for (guint i = 0; i < n; i++)
    {
      if (error != NULL)
        {
          g_autoptr (EbbTensor) now = ebb_to_device (parameters[i], ebb_device_get_cpu (), NULL);

          g_assert_true (ebb_tensor_equal (before[i], now));
        }
      ebb_tensor_unref (before[i]);
      ebb_tensor_unref (parameters[i]);
    }
  test_shard_run_clear (&run);
  assert_all_go_on ();
}

int
main (int argc,
      char **argv)
{
  static const char *const splits[TEST_N_SPLITS] = { "replicated", "by-rows", "flat" };
  g_autoptr (GError) error = NULL;
  int status;

  test_init (&argc, &argv);
  g_setenv ("EBB_PROCESS_GROUP_CHECK", "0", TRUE); /* to compare calls the host would wait */
  world = ebb_init_process_group ("nccl", &error);
  /* No module, or no GPU. */
  if (g_error_matches (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED)
      || g_error_matches (error, EBB_ERROR, EBB_ERROR_DEVICE))
    {
      g_printerr ("%s\n", error->message);
      return 77;
    }
  g_assert_no_error (error);
  if (test_device_is_cpu ())
    {
      g_printerr ("EBB_TEST_DEVICE must name a GPU\n");
      return 77;
    }
  for (guint i = 0; i < TEST_N_SPLITS; i++)
    {
      g_autofree char *path = g_strdup_printf ("/nccl-training/a-step-waits-nowhere/%s", splits[i]);

      g_test_add_data_func (path, GUINT_TO_POINTER (i), a_step_waits_nowhere);
    }
  g_test_add_func ("/nccl-training/a-target-that-no-rank-has", a_target_that_no_rank_has);
  g_test_add_func ("/nccl-training/a-token-of-one-rank", a_token_of_one_rank);
  status = g_test_run ();
  g_clear_object (&world);
  ebb_destroy_process_group ();
  return status;
}
