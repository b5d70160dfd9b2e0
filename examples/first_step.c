/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

int
main (void)
{
  static const gint64 text[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 }, shape[] = { 1, 8 };
  g_autoptr (GError) error = NULL;

  ebb_manual_seed (1);
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (EbbModule) model = ebb_gpt_new (config, &error);
  ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, NULL, &error);

  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (model, 3e-4, &error);
  g_autoptr (EbbTensor) tokens = ebb_tensor_new_from_ints (text, 8, shape, 2, &error);
  g_autoptr (EbbTensor) targets = ebb_tensor_new_from_ints (text + 1, 8, shape, 2, &error);

  for (int step = 0; step < 10; step++)
    {
      g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (model), tokens, targets, &error);
      double value;

      if (!ebb_tensor_backward (loss, &error) || !ebb_optimizer_step (optimizer, &error)
          || !ebb_tensor_get_item (loss, &value, &error))
        g_error ("%s", error->message);
      ebb_optimizer_zero_grad (optimizer);
      g_print ("loss %g\n", value);
    }

  return 0;
}
