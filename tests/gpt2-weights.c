/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/fixtures.h"
#include "support/tensors.h"

static void
published_weights_give_pytorchs_logits (void)
{
  g_autoptr (EbbModule) gpt = test_fixture_gpt (97, 16, 32, EBB_GELU_TANH);
  g_autoptr (EbbArgs) weights = test_load_fixture ("gpt2-tiny.safetensors");
  g_autoptr (EbbArgs) expected = test_load_fixture ("gpt2-tiny-logits.safetensors");
  g_autoptr (EbbTensor) tokens = test_fixture_tensor (expected, "tokens");
  g_autoptr (EbbTensor) expected_logits = test_fixture_tensor (expected, "logits");
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_gpt_load_gpt2 (EBB_GPT (gpt), weights, &error));
  g_assert_no_error (error);
  logits = ebb_module_call1 (gpt, tokens, &error);
  g_assert_no_error (error);
  g_test_message ("largest difference %g", test_difference (logits, expected_logits));
  test_assert_near (logits, expected_logits, 1e-5);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/gpt2-weights/give-pytorchs-logits", published_weights_give_pytorchs_logits);
  return g_test_run ();
}
