/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Decoders of every kind train to the last bit as ever under each policy and with a store: rotary positions, norms of
 * queries and keys, gated activations and windows are recomputed as they were. */

#include "support/decoders.h"
#include "support/device.h"
#include "support/tensors.h"
#include "support/training.h"

#define VOCAB 64

typedef enum
{
  PLAIN,
  NOTHING,
  SELECTIVE,
  ATTENTION,
  EVERY_SECOND_PRODUCT,
  NORMS_AND_TURNS,
  STORED,
  NORMS, /* each in a checkpoint of its own */
  N_WAYS
} Way;

static void
wrap_blocks (EbbModule *gpt, Way way)
{
  static const char *const ops[] = { "rms_norm", "rotary", "gated_activation", "residual_dropout_rms_norm", NULL };
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbSavedTensorHooks) store = way == STORED ? ebb_host_store_new () : NULL;
  g_autoptr (GError) error = NULL;

  if (way == PLAIN)
    return;
  g_object_set (options, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, NULL);
  if (way == SELECTIVE)
    ebb_checkpoint_options_set_policy_selective (options);
  else if (way == ATTENTION)
    ebb_checkpoint_options_set_policy_core_attention (options);
  else if (way == EVERY_SECOND_PRODUCT)
    ebb_checkpoint_options_set_policy_save_nth_product (options, 2, &error);
  else if (way == NORMS_AND_TURNS)
    ebb_checkpoint_options_set_policy_save_ops (options, ops, &error);
  else if (way == STORED)
    ebb_checkpoint_options_set_store (options, store);
  g_assert_no_error (error);
  g_assert_true (ebb_checkpoint_wrap_each (gpt, way == NORMS ? EBB_TYPE_RMS_NORM : EBB_TYPE_TRANSFORMER_BLOCK, options,
                                           &error));
  g_assert_no_error (error);
}

static TestOutcome *
train (const char *name, Way way)
{
  g_autoptr (EbbModule) gpt = test_decoder_new (name, 1);
  g_autoptr (EbbTensor) tokens = test_tokens (3, VOCAB, 2, 12, -1);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbTensor) starts = test_tokens (4, 3, 2, 12, -1);

  wrap_blocks (gpt, way);
  ebb_args_add_tensor (args, NULL, tokens);
  ebb_args_add_tensor (args, "starts", starts);
  return test_train (gpt, args);
}

static void
trains_as_ever (gconstpointer data)
{
  g_autoptr (TestOutcome) plain = train (data, PLAIN);

  for (Way way = NOTHING; way < N_WAYS; way++)
    {
      g_autoptr (TestOutcome) outcome = train (data, way);

      test_assert_same_outcome (plain, outcome);
    }
}

/* The sums are f32 there, the branches bf16: one kernel may normalize both only where a checkpoint can't divide it. */
static void
trains_as_ever_under_autocast (gconstpointer data)
{
  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  trains_as_ever (data);
  ebb_pop_autocast ();
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  for (const char *const *name = test_decoder_names; *name != NULL; name++)
    {
      g_autofree char *path = g_strdup_printf ("/checkpoint/decoders/%s", *name);

      g_test_add_data_func (path, *name, trains_as_ever);
    }
  g_test_add_data_func ("/checkpoint/decoders/gemma3-under-autocast", "gemma3", trains_as_ever_under_autocast);
  return g_test_run ();
}
