/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"

/* Where the generator stands after a GPT and a BERT of seed 3 were made, and their state. */
static guint64
make_models (gboolean drawn, EbbModule **gpt, EbbModule **bert)
{
  g_autoptr (EbbGptConfig) gpt_config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (EbbBertConfig) bert_config = ebb_bert_config_new_preset ("tiny");
  g_autoptr (GError) error = NULL;

  gpt_config->tied = FALSE;
  ebb_manual_seed (3);
  if (!drawn)
    ebb_push_initialization_skipped ();
  *gpt = ebb_gpt_new (gpt_config, &error);
  *bert = ebb_bert_new (bert_config, &error);
  if (!drawn)
    ebb_pop_initialization_skipped ();
  g_assert_no_error (error);
  return ebb_generator_get_offset (ebb_generator_get_default ());
}

static void
skipping_leaves_what_is_drawn_after_it (void)
{
  g_autoptr (EbbModule) gpt = NULL;
  g_autoptr (EbbModule) bert = NULL;
  g_autoptr (EbbModule) skipped_gpt = NULL;
  g_autoptr (EbbModule) skipped_bert = NULL;
  guint64 offset = make_models (TRUE, &gpt, &bert);

  g_assert_cmpuint (make_models (FALSE, &skipped_gpt, &skipped_bert), ==, offset);
  g_assert_cmpuint (offset, >, 0);
}

static void
what_is_constant_is_set_all_the_same (void)
{
  g_autoptr (EbbModule) gpt = NULL;
  g_autoptr (EbbModule) bert = NULL;
  g_autoptr (EbbTensor) gain = NULL;
  g_autoptr (EbbTensor) bias = NULL;
  g_autoptr (EbbTensor) output_bias = NULL;

  make_models (FALSE, &gpt, &bert);
  gain = ebb_module_get_parameter (gpt, "h.1.ln_2.weight");
  bias = ebb_module_get_parameter (gpt, "h.1.mlp.c_fc.bias");
  output_bias = ebb_module_get_parameter (bert, "output_bias");
  g_assert_cmpfloat (test_sum (gain), ==, 128);
  g_assert_cmpfloat (test_sum (bias), ==, 0);
  g_assert_cmpfloat (test_sum (output_bias), ==, 0);
}

static void
a_loaded_state_makes_up_for_it (void)
{
  EbbModule *drawn[2];
  EbbModule *skipped[2];
  g_autoptr (EbbTensor) tokens = test_tokens (5, 256, 2, 8, -1);

  make_models (TRUE, &drawn[0], &drawn[1]);
  make_models (FALSE, &skipped[0], &skipped[1]);
  for (int i = 0; i < 2; i++)
    {
      g_autoptr (EbbArgs) state = ebb_module_get_state_dict (drawn[i]);
      g_autoptr (EbbTensor) expected = NULL;
      g_autoptr (EbbTensor) logits = NULL;
      g_autoptr (GError) error = NULL;

      g_assert_true (ebb_module_load_state_dict (skipped[i], state, TRUE, &error));
      ebb_module_set_training (drawn[i], FALSE);
      ebb_module_set_training (skipped[i], FALSE);
      expected = ebb_module_call1 (drawn[i], tokens, &error);
      logits = ebb_module_call1 (skipped[i], tokens, &error);
      g_assert_no_error (error);
      test_assert_near (logits, expected, 0);
      g_clear_object (&drawn[i]);
      g_clear_object (&skipped[i]);
    }
}

static gpointer
ask (gpointer data)
{
  return GINT_TO_POINTER (ebb_is_initialization_skipped ());
}

static void
it_nests_and_belongs_to_a_thread (void)
{
  g_assert_false (ebb_is_initialization_skipped ());
  ebb_push_initialization_skipped ();
  ebb_push_initialization_skipped ();
  ebb_pop_initialization_skipped ();
  g_assert_true (ebb_is_initialization_skipped ());
  g_assert_false (GPOINTER_TO_INT (g_thread_join (g_thread_new ("asks", ask, NULL))));
  ebb_pop_initialization_skipped ();
  g_assert_false (ebb_is_initialization_skipped ());
}

/* A seed is a promise: these were its weights when models drew twice what they draw now. */
static void
a_seed_gives_the_weights_that_it_always_gave (void)
{
  static const struct
  {
    const char *name;
    float first, last;
  } expected[] = {
    { "wte.weight", 0.0098664463f, -0.011207776f },
    { "wpe.weight", -0.0011225623f, 0.0071757864f },
    { "h.0.attn.c_attn.weight", -0.0010912623f, 0.0075502037f },
    { "h.3.mlp.c_proj.weight", -0.0044864509f, -0.0011755552f },
  };
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (EbbModule) gpt = NULL;

  ebb_manual_seed (7);
  gpt = ebb_gpt_new (config, NULL);
  for (guint i = 0; i < G_N_ELEMENTS (expected); i++)
    {
      g_autoptr (EbbTensor) weight = ebb_module_get_parameter (gpt, expected[i].name);
      gsize n = (gsize) ebb_tensor_get_n_elements (weight);

      g_assert_cmpfloat_with_epsilon (test_at (weight, 0), expected[i].first, 1e-7);
      g_assert_cmpfloat_with_epsilon (test_at (weight, n - 1), expected[i].last, 1e-7);
    }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/initialization/skipping-leaves-what-is-drawn-after-it", skipping_leaves_what_is_drawn_after_it);
  g_test_add_func ("/initialization/what-is-constant-is-set-all-the-same", what_is_constant_is_set_all_the_same);
  g_test_add_func ("/initialization/a-loaded-state-makes-up-for-it", a_loaded_state_makes_up_for_it);
  g_test_add_func ("/initialization/nests-and-belongs-to-a-thread", it_nests_and_belongs_to_a_thread);
  g_test_add_func ("/initialization/a-seed-gives-the-weights-that-it-always-gave",
                   a_seed_gives_the_weights_that_it_always_gave);
  return g_test_run ();
}
