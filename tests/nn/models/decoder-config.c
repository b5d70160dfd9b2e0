/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
/* The choices of a decoder: those that don't go together are refused by name, and each kind has the modules of its
 * layout. */

#include <math.h>
#include <string.h>

#include "support/decoders.h"
#include "support/tensors.h"

/* -- what makes no model ------------------------------------------------------------------------------------------- */

typedef struct
{
  const char *words; /* of the message */
  const char *from;  /* a decoder's choices; NULL: GPT-2's */
  void (*change) (EbbGptConfig *config);
} Refusal;

#define CHANGE(name, ...)                 \
  static void name (EbbGptConfig *config) \
  {                                       \
    __VA_ARGS__;                          \
  }

CHANGE (choose_no_layout, config->layout = (EbbGptLayout) 2)
CHANGE (choose_no_norm, config->norm = (EbbNormKind) 3)
CHANGE (choose_no_order, config->norm_order = (EbbNormOrder) 3)
CHANGE (choose_no_positions, config->positions = (EbbPositions) 3)
CHANGE (choose_no_activation, config->activation = (EbbActivation) 3)
CHANGE (choose_groups, config->kv_heads = 2)
CHANGE (choose_gate, config->gated = TRUE)
CHANGE (choose_qk_norm, config->qk_norm = TRUE)
CHANGE (choose_head_width, config->head_width = 24)
CHANGE (choose_both, config->norm_order = EBB_NORM_ORDER_BOTH)
CHANGE (choose_rotary, config->positions = EBB_POSITIONS_ROTARY)
CHANGE (choose_learned, config->positions = EBB_POSITIONS_LEARNED)
CHANGE (choose_three_groups, config->kv_heads = 3)
CHANGE (choose_negative_window, config->window = -1)
CHANGE (choose_negative_hidden, config->hidden = -1)
CHANGE (choose_large_heads, config->head_width = G_MAXINT / 4)
CHANGE (choose_nan_scale, config->attention_scale = NAN)
CHANGE (choose_negative_cap, config->attention_softcap = -1)
CHANGE (choose_endless_cap, config->logit_softcap = INFINITY)
CHANGE (choose_negative_embedding, config->embedding_scale = -2)
CHANGE (choose_nan_dropout, config->attention_dropout = NAN)
CHANGE (choose_full_dropout, config->attention_dropout = 1)
CHANGE (choose_letters, ebb_gpt_config_set_layer_pattern (config, "fx\n"))
CHANGE (choose_no_letter, ebb_gpt_config_set_layer_pattern (config, ""))
CHANGE (choose_sliding, ebb_gpt_config_set_layer_pattern (config, "sf"))
CHANGE (choose_unturned, config->positions = EBB_POSITIONS_NONE; ebb_gpt_config_set_layer_pattern (config, "fF"))
CHANGE (choose_no_scaling, config->rotary.scaling = (EbbRotaryScaling) 6)
CHANGE (choose_no_theta, config->rotary.theta = 0)
CHANGE (choose_partial, config->rotary.partial = 1.5)
CHANGE (choose_odd, config->rotary.partial = 0.5)
CHANGE (choose_no_factor, config->rotary.factor = 0)
CHANGE (choose_alike, config->rotary.low_freq_factor = config->rotary.high_freq_factor)
CHANGE (choose_few_factors, config->rotary.n_factors = 2)
CHANGE (choose_zero_factor, config->rotary.long_factors[1] = 0)
CHANGE (choose_unit_theta, config->rotary.theta = 1)
CHANGE (choose_bad_local, config->local_rotary.theta = -1)
CHANGE (choose_one_position, config->rotary.original_context = 1)

static const Refusal refusals[] = {
  { "layout is 2, it must be", NULL, choose_no_layout },
  { "norm is 3, it must be", NULL, choose_no_norm },
  { "norm_order is 3, it must be", NULL, choose_no_order },
  { "positions is 3, it must be", NULL, choose_no_positions },
  { "activation is 3, it must be", NULL, choose_no_activation },
  { "kv_heads other than heads: this needs the layout of Llama", NULL, choose_groups },
  { "gated MLPs: this needs", NULL, choose_gate },
  { "qk_norm: this needs", NULL, choose_qk_norm },
  { "a head_width other than width / heads: this needs", NULL, choose_head_width },
  { "norm_order both: this needs", NULL, choose_both },
  { "rotary positions: this needs", NULL, choose_rotary },
  { "learned positions need the layout of GPT-2", "llama2", choose_learned },
  { "4 heads can't be divided among 3 kv_heads", "llama2", choose_three_groups },
  { "window is -1", "llama2", choose_negative_window },
  { "hidden is -1", "llama2", choose_negative_hidden },
  { "are too large", "llama2", choose_large_heads },
  { "attention_scale is nan", "llama2", choose_nan_scale },
  { "attention_softcap is -1", "llama2", choose_negative_cap },
  { "logit_softcap is inf", "llama2", choose_endless_cap },
  { "embedding_scale is -2", "llama2", choose_negative_embedding },
  { "attention_dropout is nan", "llama2", choose_nan_dropout },
  { "attention_dropout is 1, it must be below 1", "llama2", choose_full_dropout },
  { "the layer pattern is \"fx\\n\"", "mistral", choose_letters },
  { "the layer pattern is \"\"", "mistral", choose_no_letter },
  { "\"sf\" has sliding layers, but window is 0", "llama2", choose_sliding },
  { "\"fF\" has layers without rotary positions, but no layer has them", "llama2", choose_unturned },
  { "rotary: scaling is 6", "llama2", choose_no_scaling },
  { "rotary: theta is 0", "llama2", choose_no_theta },
  { "rotary: partial is 1.5", "llama2", choose_partial },
  { "rotary: 3 of a head's width of 6 are rotated", "llama2", choose_odd },
  { "rotary: factor is 0", "llama-linear", choose_no_factor },
  { "low_freq_factor and high_freq_factor are both 4", "llama3", choose_alike },
  { "n_factors is 2, it must be half of the width that is rotated, 3", "phi3-longrope", choose_few_factors },
  { "long_factors[1] is 0", "phi3-longrope", choose_zero_factor },
  { "local_rotary: theta is -1", "gemma3", choose_bad_local },
  { "theta is 1, for YaRN it must be above 1", "llama-yarn", choose_unit_theta },
  { "original_context is 1, it must be at least 2", "llama-yarn", choose_one_position },
};

static void
choices_that_do_not_go_together_are_refused (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (refusals); i++)
    {
      const Refusal *it = &refusals[i];
      g_autoptr (EbbGptConfig) config =
          it->from != NULL ? test_decoder_config (it->from) : ebb_gpt_config_new_preset ("tiny");
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbModule) gpt = NULL;

      g_assert_true (ebb_gpt_config_check (config, &error));
      it->change (config);
      g_assert_false (ebb_gpt_config_check (config, &error));
      test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, it->words);
      g_clear_error (&error);
      gpt = ebb_gpt_new (config, &error);
      g_assert_null (gpt);
      test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, it->words);
    }
}

/* -- what is chosen ------------------------------------------------------------------------------------------------ */

static void
a_copy_has_its_own_pattern (void)
{
  g_autoptr (EbbGptConfig) config = test_decoder_config ("gemma3");
  g_autoptr (EbbGptConfig) copy = ebb_gpt_config_copy (config);

  ebb_gpt_config_set_layer_pattern (config, ebb_gpt_config_get_layer_pattern (config)); /* its own text */
  ebb_gpt_config_set_layer_pattern (config, NULL);
  g_assert_null (ebb_gpt_config_get_layer_pattern (config));
  g_assert_cmpstr (ebb_gpt_config_get_layer_pattern (copy), ==, "ssf");
}

static void
patterns_repeat (void)
{
  g_autoptr (EbbGptConfig) gemma = test_decoder_config ("gemma3");
  g_autoptr (EbbGptConfig) mistral = test_decoder_config ("mistral");
  g_autoptr (EbbGptConfig) smollm = test_decoder_config ("smollm3");

  for (guint i = 0; i < 9; i++)
    {
      g_assert_cmpint (ebb_gpt_config_is_sliding_layer (gemma, i), ==, i % 3 != 2);
      g_assert_true (ebb_gpt_config_is_rotary_layer (gemma, i));
      g_assert_true (ebb_gpt_config_is_sliding_layer (mistral, i));
      g_assert_false (ebb_gpt_config_is_sliding_layer (smollm, i));
      g_assert_cmpint (ebb_gpt_config_is_rotary_layer (smollm, i), ==, i % 2 == 0);
    }
}

/* The names are those of the files. */
static void
layouts_have_their_names (void)
{
  g_autoptr (EbbModule) gemma = test_decoder_new ("gemma3", 1);
  g_autoptr (EbbModule) qwen = test_decoder_new ("qwen2-yarn", 1);
  g_auto (GStrv) of_gemma = ebb_module_get_parameter_names (gemma, TRUE);
  g_auto (GStrv) of_qwen = ebb_module_get_parameter_names (qwen, TRUE);
  g_autoptr (EbbArgs) state = ebb_module_get_state_dict (gemma);
  static const char *const gemma_names[] = {
    "embed_tokens.weight",
    "layers.2.input_layernorm.weight",
    "layers.2.self_attn.q_proj.weight",
    "layers.2.self_attn.k_proj.weight",
    "layers.2.self_attn.v_proj.weight",
    "layers.2.self_attn.o_proj.weight",
    "layers.2.self_attn.q_norm.weight",
    "layers.2.self_attn.k_norm.weight",
    "layers.2.post_attention_layernorm.weight",
    "layers.2.pre_feedforward_layernorm.weight",
    "layers.2.mlp.gate_proj.weight",
    "layers.2.mlp.up_proj.weight",
    "layers.2.mlp.down_proj.weight",
    "layers.2.post_feedforward_layernorm.weight",
    "norm.weight",
  };
  static const char *const qwen_names[] = { "layers.0.self_attn.q_proj.bias", "layers.0.self_attn.k_proj.bias",
                                            "layers.0.self_attn.v_proj.bias", "lm_head.weight" };

  g_assert_cmpuint (g_strv_length (of_gemma), ==, 2 + 3 * 13);
  g_assert_cmpuint (ebb_args_get_length (state), ==, 2 + 3 * 13); /* frequencies are not in it */
  for (guint i = 0; i < G_N_ELEMENTS (gemma_names); i++)
    g_assert_true (g_strv_contains ((const char *const *) of_gemma, gemma_names[i]));
  for (guint i = 0; i < G_N_ELEMENTS (qwen_names); i++)
    g_assert_true (g_strv_contains ((const char *const *) of_qwen, qwen_names[i]));
  g_assert_false (g_strv_contains ((const char *const *) of_qwen, "layers.0.self_attn.o_proj.bias"));
}

/* As transformers begins: matrices with 0.02, biases and the weights of Gemma's norms 0, those of others 1. */
static void
models_begin_as_theirs (void)
{
  static const char *const names[] = { "qwen2", "gemma2" };

  for (guint m = 0; m < G_N_ELEMENTS (names); m++)
    {
      g_autoptr (EbbGptConfig) config = test_decoder_config (names[m]);
      g_autoptr (EbbModule) gpt = NULL;
      g_auto (GStrv) parameters = NULL;
      guint n;
      g_autofree EbbTensor **tensors = NULL;

      config->width = 128;
      config->embedding_scale = 0;
      ebb_manual_seed (1);
      gpt = ebb_gpt_new (config, NULL);
      parameters = ebb_module_get_parameter_names (gpt, TRUE);
      tensors = ebb_module_get_parameters (gpt, TRUE, &n);
      for (guint i = 0; i < n; i++)
        {
          g_autoptr (EbbTensor) tensor = tensors[i];
          g_autoptr (EbbTensor) detached = ebb_tensor_detach (tensor);
          g_autoptr (EbbTensor) square = ebb_square (detached, NULL);
          double mean = test_sum (square) / (double) ebb_tensor_get_n_elements (tensor);

          if (ebb_tensor_get_n_dims (tensor) == 2)
            g_assert_cmpfloat_with_epsilon (sqrt (mean), 0.02, 0.002);
          else if (g_str_has_suffix (parameters[i], ".bias") || g_str_equal (names[m], "gemma2"))
            g_assert_cmpfloat (mean, ==, 0);
          else
            g_assert_cmpfloat (mean, ==, 1);
        }
    }
}

/* Frequencies stay as they are when the weights get another dtype, and bf16 logits are near those of f32. */
static void
frequencies_keep_their_dtype (void)
{
  for (const char *const *name = test_decoder_names; *name != NULL; name++)
    {
      g_autoptr (EbbModule) wide = test_decoder_new (*name, 1);
      g_autoptr (EbbModule) narrow = test_decoder_new (*name, 1);
      g_autoptr (EbbTensor) tokens = test_tokens (3, 64, 2, 14, -1);
      g_autoptr (EbbTensor) expected = NULL;
      g_autoptr (EbbTensor) logits = NULL;
      g_autoptr (EbbTensor) cast = NULL;
      g_autoptr (GError) error = NULL;
      guint n;
      g_autofree EbbTensor **buffers = NULL;

      g_assert_true (ebb_module_to_dtype (narrow, EBB_DTYPE_BF16, &error));
      buffers = ebb_module_get_buffers (narrow, TRUE, &n);
      g_assert_cmpuint (n, >, 0);
      for (guint i = 0; i < n; i++)
        {
          g_assert_cmpint (ebb_tensor_get_dtype (buffers[i]), ==, EBB_DTYPE_F32);
          ebb_tensor_unref (buffers[i]);
        }
      expected = ebb_module_call1 (wide, tokens, &error);
      logits = ebb_module_call1 (narrow, tokens, &error);
      g_assert_no_error (error);
      g_assert_cmpint (ebb_tensor_get_dtype (logits), ==, EBB_DTYPE_BF16);
      cast = ebb_cast (logits, EBB_DTYPE_F32, &error);
      g_assert_cmpfloat (test_difference (cast, expected), >, 0);
    }
}

static void
metadata_have_the_activation (void)
{
  static const char *const names[] = { "gelu", "gelu_new", "silu" };

  for (int i = 0; i < 3; i++)
    {
      g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
      g_autoptr (EbbArgs) metadata = NULL;

      config->activation = (EbbActivation) i;
      metadata = ebb_gpt_config_to_gpt2_metadata (config);
      g_assert_cmpstr (ebb_args_get_string (metadata, (guint) ebb_args_find (metadata, "activation_function")), ==,
                       names[i]);
    }
}

static void
files_of_gpt2_are_for_its_layout (void)
{
  g_autoptr (EbbModule) gpt = test_decoder_new ("qwen3", 1);
  g_autoptr (EbbArgs) state = ebb_module_get_state_dict (gpt);
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_gpt_to_gpt2_state (EBB_GPT (gpt), &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "to_gpt2_state", "layout of Llama", "ebb_model_save ()");
  g_clear_error (&error);
  g_assert_false (ebb_gpt_load_gpt2 (EBB_GPT (gpt), state, &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "load_gpt2", "layout of Llama", "ebb_model_open ()");
}

/* For languages that can't write arrays inside a structure. */
static void
lists_of_factors_are_set_and_read (void)
{
  const double factors[EBB_ROTARY_MAX_FACTORS + 1] = { 1, 1.5, 2 };
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  EbbRotaryConfig *rotary = &config->rotary;
  g_autoptr (GError) error = NULL;
  gsize n;

  g_assert_true (ebb_rotary_config_set_short_factors (rotary, factors, 3, &error));
  g_assert_true (ebb_rotary_config_set_long_factors (rotary, factors + 1, 2, &error));
  g_assert_cmpint (rotary->n_factors, ==, 2);
  g_assert_cmpfloat (ebb_rotary_config_get_short_factors (rotary, &n)[1], ==, 1.5);
  g_assert_cmpuint (n, ==, 2);
  g_assert_cmpfloat (ebb_rotary_config_get_long_factors (rotary, &n)[1], ==, 2);
  g_assert_true (ebb_rotary_config_set_long_factors (rotary, NULL, 0, &error));
  g_assert_cmpfloat (rotary->long_factors[0], ==, 0);
  g_assert_false (ebb_rotary_config_set_short_factors (rotary, factors, EBB_ROTARY_MAX_FACTORS + 1, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "short_factors has 129 factors", "at most 128");
  g_assert_cmpint (rotary->n_factors, ==, 0);
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/decoder-config/refusals", choices_that_do_not_go_together_are_refused);
  g_test_add_func ("/decoder-config/copy", a_copy_has_its_own_pattern);
  g_test_add_func ("/decoder-config/patterns", patterns_repeat);
  g_test_add_func ("/decoder-config/names", layouts_have_their_names);
  g_test_add_func ("/decoder-config/initial-weights", models_begin_as_theirs);
  g_test_add_func ("/decoder-config/frequencies", frequencies_keep_their_dtype);
  g_test_add_func ("/decoder-config/metadata", metadata_have_the_activation);
  g_test_add_func ("/decoder-config/factors", lists_of_factors_are_set_and_read);
  g_test_add_func ("/decoder-config/files", files_of_gpt2_are_for_its_layout);
  return g_test_run ();
}
