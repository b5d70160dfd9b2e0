/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/tensor-parallel.h"

#include "support/decoders.h"
#include <string.h>

#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"

/* Decoders of every kind, divided among ranks, compute what whole ones do. */

#define TOLERANCE 2e-5

static void
divided_is_the_whole (gconstpointer data)
{
  TestParallel settings = { .decoder = data, .n_ranks = 2, .has_documents = TRUE }, whole = settings;
  g_autoptr (TestParallelResult) expected = NULL;

  whole.is_full = TRUE;
  whole.n_ranks = 1;
  expected = test_parallel_run (&whole);
  for (int sequence = 0; sequence < 2; sequence++)
    {
      g_autoptr (TestParallelResult) plain = NULL;
      g_autoptr (TestParallelResult) checkpointed = NULL;

      settings.is_sequence_parallel = sequence;
      settings.is_checkpointed = FALSE;
      plain = test_parallel_run (&settings);
      test_parallel_assert_near (plain, expected, TOLERANCE);
      settings.is_checkpointed = TRUE;
      checkpointed = test_parallel_run (&settings);
      test_parallel_assert_same (checkpointed, plain);
    }
}

/* Each rank's cache has its heads. */
static gboolean
generate (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const TestParallel settings = { .decoder = user_data };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbTensor) tokens = test_tokens (3, 30, 2, 12, -1);
  g_autoptr (EbbTensor) head = ebb_narrow (tokens, 1, 0, 9, error);
  g_autoptr (EbbTensor) rest = ebb_narrow (tokens, 1, 9, 3, error);
  g_autoptr (EbbKeyValueCache) cache = ebb_key_value_cache_new (12);
  EbbTensor *parts[] = { head, rest };
  g_autoptr (EbbTensor) whole = NULL;
  g_autoptr (EbbTensor) expected = NULL;

  if (model == NULL || !test_parallel_divide (&settings, model, group, error))
    return FALSE;
  ebb_push_grad_enabled (FALSE);
  whole = ebb_module_call1 (model, tokens, error);
  for (guint i = 0; i < 2 && whole != NULL; i++)
    {
      g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
      g_autoptr (EbbArgs) result = NULL;
      g_autoptr (EbbTensor) logits = NULL;

      ebb_args_add_tensor (args, NULL, parts[i]);
      ebb_args_add_object (args, "cache", G_OBJECT (cache));
      result = ebb_module_call (model, args, error);
      if (result == NULL)
        break;
      logits = ebb_args_get_tensor (result, 0);
      g_clear_pointer (&expected, ebb_tensor_unref);
      expected = ebb_narrow (whole, 1, i == 0 ? 0 : 9, i == 0 ? 9 : 3, error);
      test_assert_near (logits, expected, 1e-5);
    }
  ebb_pop_grad_enabled ();
  return expected != NULL && ebb_key_value_cache_get_length (cache) == 12;
}

static void
caches_have_a_ranks_heads (gconstpointer data)
{
  test_ranks_run (2, generate, (gpointer) data);
}

/* Queries, keys and values take one input, whose gradient is summed once; so do a gate and what it multiplies. GPT-2's
 * norms have biases, whose gradients are summed as well where the sequence is sharded; there each product gathers its
 * input again in backward. */
static void
products_of_one_input_take_one_call (void)
{
  for (int sequence = 0; sequence < 2; sequence++)
    {
      TestParallel gpt2 = { .n_ranks = 2, .is_untied = TRUE, .is_sequence_parallel = sequence };
      TestParallel llama = { .n_ranks = 2, .decoder = "llama2", .is_sequence_parallel = sequence };
      g_autoptr (TestParallelResult) expected = test_parallel_run (&gpt2);
      g_autoptr (TestParallelResult) result = test_parallel_run (&llama);

      for (guint i = 0; i < EBB_N_COLLECTIVES; i++)
        if (!(sequence && i == EBB_COLLECTIVE_ALL_GATHER))
          g_assert_cmpuint (result->n_calls[i], <=, expected->n_calls[i]);
    }
}

static gboolean
refuse (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const TestParallel settings = { .decoder = "llama3" };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbParallelOptions) options = ebb_parallel_options_new ();
  g_autoptr (EbbParallelPlan) plan = ebb_parallel_plan_new ();
  g_autoptr (GError) refused = NULL;

  if (model == NULL)
    return FALSE;
  if (ebb_process_group_get_size (group) == 4)
    {
      g_assert_null (ebb_parallelize (model, group, NULL, &refused));
      test_assert_error (refused, EBB_ERROR_INVALID_ARGUMENT, "layers.0.self_attn",
                         "4 heads and 2 kv_heads can't both be divided among 4 ranks");
      return TRUE;
    }
  ebb_parallel_plan_add (plan, "layers.*.self_attn.q_proj", EBB_PARALLEL_STYLE_COLUMN, NULL);
  ebb_parallel_plan_add (plan, "layers.*.self_attn.v_proj", EBB_PARALLEL_STYLE_COLUMN, NULL);
  ebb_parallel_plan_add (plan, "layers.*.self_attn.o_proj", EBB_PARALLEL_STYLE_ROW, NULL);
  g_object_set (options, "plan", plan, NULL);
  g_assert_null (ebb_parallelize (model, group, options, &refused));
  test_assert_error (refused, EBB_ERROR_INVALID_ARGUMENT, "layers.0.self_attn.q_proj", "not its neighbour k_proj");
  return TRUE;
}

static void
what_cannot_be_divided_is_named (void)
{
  test_ranks_run (2, refuse, NULL);
  test_ranks_run (4, refuse, NULL);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  for (guint i = 0; test_decoder_names[i] != NULL; i++)
    {
      g_autofree char *path = g_strdup_printf ("/parallel-decoders/divided/%s", test_decoder_names[i]);
      g_autofree char *cached = g_strdup_printf ("/parallel-decoders/cache/%s", test_decoder_names[i]);

      /* On another device, where it takes long, Gemma has most of the parts. */
      if (!test_device_is_cpu () && !g_str_has_prefix (test_decoder_names[i], "gemma"))
        continue;
      g_test_add_data_func (path, test_decoder_names[i], divided_is_the_whole);
      g_test_add_data_func (cached, test_decoder_names[i], caches_have_a_ranks_heads);
    }
  g_test_add_func ("/parallel-decoders/calls", products_of_one_input_take_one_call);
  g_test_add_func ("/parallel-decoders/refusals", what_cannot_be_divided_is_named);
  return g_test_run ();
}
