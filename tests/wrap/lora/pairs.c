/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/decoders.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "support/training.h"

/* Adapted models together with checkpoints, stores and autocast: outputs and gradients are the same bit for bit. The
 * tokens require no gradient, and no parameter before the first branch does. */

static void
randomize (EbbModule *model)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbGenerator) generator = ebb_generator_new (7);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);

  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < n; i++)
    {
      if (ebb_tensor_get_requires_grad (parameters[i]))
        g_assert_true (ebb_tensor_fill_normal (parameters[i], 0, 0.2, generator, &error));
      ebb_tensor_unref (parameters[i]);
    }
  ebb_pop_grad_enabled ();
}

static EbbModule *
new_adapted (const char *targets)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = test_decoder_new ("llama3", 1);
  g_autoptr (EbbLoraOptions) options = ebb_lora_options_new ();
  g_autoptr (EbbModule) same = NULL;
  const char *list[] = { targets, NULL };

  g_object_set (options, "rank", 3, "alpha", 5.0, "dropout", 0.25, "targets", list, NULL);
  same = ebb_lora_wrap (model, options, &error);
  g_assert_no_error (error);
  randomize (model);
  return g_object_ref (model);
}

static void
wrap_blocks (EbbModule *model,
             gboolean checkpoints,
             gboolean stores)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (g_get_tmp_dir ());

  for (guint i = 0; i < 2; i++)
    {
      g_autofree char *name = g_strdup_printf ("layers.%u", i);
      g_autoptr (EbbModule) block = ebb_module_get_child (model, name);
      g_autoptr (EbbModule) same = NULL;

      g_assert_nonnull (block);
      if (checkpoints)
        test_wrap (block, NULL);
      if (stores)
        same = ebb_offload_wrapper (block, store, &error);
      g_assert_no_error (error);
    }
}

static void
compare (gboolean checkpoints,
         gboolean stores,
         const char *targets)
{
  g_autoptr (EbbModule) plain = new_adapted (targets);
  g_autoptr (EbbModule) wrapped = new_adapted (targets);
  g_autoptr (EbbTensor) tokens = test_tokens (3, 64, 2, 9, -1);
  g_autoptr (TestOutcome) expected = NULL;
  g_autoptr (TestOutcome) outcome = NULL;

  wrap_blocks (wrapped, checkpoints, stores);
  expected = test_train1 (plain, tokens);
  outcome = test_train1 (wrapped, tokens);
  test_assert_same_outcome (expected, outcome);
}

static void
with_checkpoints (void)
{
  compare (TRUE, FALSE, "*");
}

/* Nothing in the first block is trained. */
static void
with_checkpoints_of_a_frozen_block (void)
{
  compare (TRUE, FALSE, "layers.1.*");
}

static void
with_a_store (void)
{
  compare (FALSE, TRUE, "*");
}

static void
with_checkpoints_and_autocast (void)
{
  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  compare (TRUE, FALSE, "*");
  ebb_pop_autocast ();
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/lora/with-checkpoints", with_checkpoints);
  g_test_add_func ("/lora/with-checkpoints-of-a-frozen-block", with_checkpoints_of_a_frozen_block);
  g_test_add_func ("/lora/with-a-store", with_a_store);
  g_test_add_func ("/lora/with-checkpoints-and-autocast", with_checkpoints_and_autocast);
  return g_test_run ();
}
