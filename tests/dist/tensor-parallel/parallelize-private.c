/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/tensor-parallel.h"

#include "support/device.h"

/* Tensor-parallel models compute the same as full ones. */

#define TOLERANCE 1e-5

static void
check_against_whole (TestParallel settings, double tolerance)
{
  TestParallel whole = settings;
  g_autoptr (TestParallelResult) expected = NULL;

  whole.is_full = TRUE;
  whole.is_sequence_parallel = FALSE;
  expected = test_parallel_run (&whole);
  for (guint n_ranks = 1; n_ranks <= 4; n_ranks *= 2)
    {
      g_autoptr (TestParallelResult) result = NULL;

      settings.n_ranks = n_ranks;
      result = test_parallel_run (&settings);
      test_parallel_assert_near (result, expected, tolerance);
    }
}

static void
test_gpt (gconstpointer data)
{
  check_against_whole (*(const TestParallel *) data, TOLERANCE);
}

static void
test_autocast (gconstpointer data)
{
  check_against_whole (*(const TestParallel *) data, 0.05);
}

static void
test_checkpointed (gconstpointer data)
{
  TestParallel settings = *(const TestParallel *) data;

  for (guint n_ranks = 2; n_ranks <= 4; n_ranks *= 2)
    {
      g_autoptr (TestParallelResult) plain = NULL;
      g_autoptr (TestParallelResult) checkpointed = NULL;

      settings.n_ranks = n_ranks;
      settings.is_checkpointed = FALSE;
      plain = test_parallel_run (&settings);
      settings.is_checkpointed = TRUE;
      checkpointed = test_parallel_run (&settings);
      test_parallel_assert_same (checkpointed, plain);
    }
}

/* The sums of sequence parallel are those of tensor parallel, in the same order of ranks. */
static void
test_sequence (gconstpointer data)
{
  TestParallel settings = *(const TestParallel *) data;
  g_autoptr (TestParallelResult) tensor = NULL;
  g_autoptr (TestParallelResult) sequence = NULL;

  settings.n_ranks = 4;
  settings.is_sequence_parallel = FALSE;
  tensor = test_parallel_run (&settings);
  settings.is_sequence_parallel = TRUE;
  sequence = test_parallel_run (&settings);
  test_parallel_assert_near (sequence, tensor, TOLERANCE);
}

int
main (int argc, char **argv)
{
  static const TestParallel gpt = { .n_passes = 1 }, untied = { .is_untied = TRUE }, passes = { .n_passes = 3 },
                            bert = { .is_bert = TRUE }, masked = { .is_bert = TRUE, .has_mask = TRUE },
                            bf16 = { .is_bf16 = TRUE }, gpt_drops = { .dropout = 0.2, .n_passes = 2 },
                            bert_drops = { .is_bert = TRUE, .dropout = 0.2, .has_mask = TRUE },
                            gpt_sequence = { .is_sequence_parallel = TRUE, .n_passes = 2 },
                            untied_sequence = { .is_sequence_parallel = TRUE, .is_untied = TRUE },
                            bert_sequence = { .is_sequence_parallel = TRUE, .is_bert = TRUE, .has_mask = TRUE },
                            gpt_sequence_drops = { .is_sequence_parallel = TRUE, .dropout = 0.2, .n_passes = 2 },
                            bert_sequence_drops = { .is_sequence_parallel = TRUE, .is_bert = TRUE, .dropout = 0.2 },
                            bf16_sequence = { .is_bf16 = TRUE, .is_sequence_parallel = TRUE };

  test_init (&argc, &argv);
  g_test_add_data_func ("/parallelize/gpt-is-the-whole-model", &gpt, test_gpt);
  g_test_add_data_func ("/parallelize/untied-gpt-is-the-whole-model", &untied, test_gpt);
  g_test_add_data_func ("/parallelize/several-passes-add-up", &passes, test_gpt);
  g_test_add_data_func ("/parallelize/bert-is-the-whole-model", &bert, test_gpt);
  g_test_add_data_func ("/parallelize/bert-with-padding-is-the-whole-model", &masked, test_gpt);
  g_test_add_data_func ("/parallelize/autocast-is-near-the-whole-model", &bf16, test_autocast);
  g_test_add_data_func ("/parallelize/checkpointed-gpt-is-bitwise-equal", &gpt_drops, test_checkpointed);
  g_test_add_data_func ("/parallelize/checkpointed-bert-is-bitwise-equal", &bert_drops, test_checkpointed);
  g_test_add_data_func ("/parallelize/sequence-parallel-gpt-is-the-whole-model", &gpt_sequence, test_gpt);
  g_test_add_data_func ("/parallelize/sequence-parallel-untied-gpt-is-the-whole-model", &untied_sequence, test_gpt);
  g_test_add_data_func ("/parallelize/sequence-parallel-bert-is-the-whole-model", &bert_sequence, test_gpt);
  g_test_add_data_func ("/parallelize/sequence-parallel-is-tensor-parallel", &gpt, test_sequence);
  g_test_add_data_func ("/parallelize/sequence-parallel-autocast-is-near-the-whole-model", &bf16_sequence,
                        test_autocast);
  g_test_add_data_func ("/parallelize/checkpointed-sequence-parallel-gpt-is-bitwise-equal", &gpt_sequence_drops,
                        test_checkpointed);
  g_test_add_data_func ("/parallelize/checkpointed-sequence-parallel-bert-is-bitwise-equal", &bert_sequence_drops,
                        test_checkpointed);
  return g_test_run ();
}
