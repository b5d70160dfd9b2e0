/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers long-sim */
#include "support/tensor-parallel.h"

#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"

/* Tensor-parallel models compute the same as full ones, and a refusal keeps no memory. */

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

/* -- quantised layers ---------------------------------------------------------------------------------------------- */

static guint64
get_bytes (EbbProcessGroup *group)
{
  EbbMemoryStats *stats = NULL;
  guint64 n;

  g_assert_true (ebb_process_group_barrier (group, NULL));
  stats = ebb_memory_get_stats (ebb_device_get_cpu ());
  n = ebb_memory_stats_get_total (stats);
  ebb_memory_stats_free (stats);
  g_assert_true (ebb_process_group_barrier (group, NULL));
  return n;
}

/* That the bias is divided in two ways is found when the second layer's codes and scales have been planned. */
static gboolean
refuse_a_shared_bias (EbbProcessGroup *group,
                      gpointer user_data,
                      GError **error)
{
  static const EbbParallelStyle styles[] = { EBB_PARALLEL_STYLE_COLUMN, EBB_PARALLEL_STYLE_COLUMN_QKV };
  g_autoptr (EbbModule) root = ebb_sequential_new ();
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();
  g_autoptr (EbbParallelOptions) options = ebb_parallel_options_new ();
  g_autoptr (EbbTensor) bias = NULL;
  g_autoptr (GError) refused = NULL;
  guint64 before;

  for (guint i = 0; i < G_N_ELEMENTS (styles); i++)
    {
      g_autoptr (EbbModule) layer = ebb_linear_new (384, 384, TRUE, error);
      const char path[] = { (char) ('0' + i), '\0' };

      if (!ebb_quantize (layer, EBB_QUANTIZATION_NF4, error)
          || (bias != NULL && !ebb_module_register_parameter (layer, "bias", bias, error))
          || !ebb_sequential_append (EBB_SEQUENTIAL (root), layer, error)
          || !ebb_parallel_plan_add (plan, path, styles[i], error))
        return FALSE;
      if (bias == NULL)
        bias = ebb_module_get_parameter (layer, "bias");
    }
  g_object_set (options, "plan", plan, NULL);
  before = get_bytes (group);
  g_assert_null (ebb_parallelize (root, group, options, &refused));
  test_assert_error (refused, EBB_ERROR_INVALID_ARGUMENT, "1.bias", "in another way");
  g_assert_cmpuint (get_bytes (group), ==, before);
  return TRUE;
}

static void
test_a_refusal_frees_what_was_planned (void)
{
  test_ranks_run (2, refuse_a_shared_bias, NULL);
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
  g_test_add_func ("/parallelize/a-refusal-frees-what-was-planned", test_a_refusal_frees_what_was_planned);
  return g_test_run ();
}
