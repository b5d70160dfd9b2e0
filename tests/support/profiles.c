/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/profiles.h"

#include "support/training.h"

JsonObject *
test_parse_json (const char *text,
                 JsonParser **parser)
{
  GError *error = NULL;

  *parser = json_parser_new ();
  json_parser_load_from_data (*parser, text, -1, &error);
  g_assert_no_error (error);
  return json_node_get_object (json_parser_get_root (*parser));
}

JsonObject *
test_profile_get_json (EbbProfiler *profiler,
                       JsonParser **parser)
{
  g_autofree char *text = ebb_profiler_get_json (profiler);

  return test_parse_json (text, parser);
}

void
test_profile_start (EbbProfiler *profiler)
{
  GError *error = NULL;

  g_assert_true (ebb_profiler_start (profiler, &error));
  g_assert_no_error (error);
}

void
test_profile_train (EbbModule *module,
                    EbbTensor *x,
                    EbbOptimizer *optimizer)
{
  GError *error = NULL;
  g_autoptr (EbbTensor) y = ebb_module_call1 (module, x, &error);
  g_autoptr (EbbTensor) square = ebb_square (y, &error);
  g_autoptr (EbbTensor) loss = ebb_mean (square, NULL, 0, FALSE, &error);

  ebb_tensor_backward (loss, &error);
  if (optimizer != NULL)
    ebb_optimizer_step (optimizer, &error);
  g_assert_no_error (error);
}

EbbProfiler *
test_profile_new (EbbModule *module,
                  EbbTensor *x)
{
  EbbProfiler *profiler = ebb_profiler_new ();

  test_profile_start (profiler);
  test_profile_train (module, x, NULL);
  ebb_profiler_stop (profiler);
  return profiler;
}

EbbModule *
test_profile_blocks_new (EbbCheckpointOptions *options)
{
  GError *error = NULL;
  EbbModule *blocks;

  ebb_manual_seed (3);
  blocks = test_chain_new (ebb_transformer_block_new (TEST_PROFILE_WIDTH, 2, 0.1, TRUE, TRUE, &error),
                           ebb_transformer_block_new (TEST_PROFILE_WIDTH, 2, 0.1, TRUE, TRUE, &error), NULL);
  g_assert_no_error (error);
  if (options != NULL)
    ebb_checkpoint_wrap_each (blocks, EBB_TYPE_TRANSFORMER_BLOCK, options, &error);
  g_assert_no_error (error);
  return blocks;
}
