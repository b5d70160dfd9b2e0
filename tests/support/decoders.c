/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/decoders.h"

#include <math.h>

#define N_LAYERS 2

const char *const test_decoder_names[] = { "llama2", "llama3", "llama-linear", "llama-dynamic", "llama-yarn",
                                           "mistral", "qwen2", "qwen2-yarn", "qwen3", "gemma2",
                                           "gemma3", "phi3", "phi3-longrope", "smollm", "smollm3",
                                           NULL };

/* Llama 2, without its theta. */
static EbbGptConfig *
new_llama (void)
{
  EbbGptConfig *config = ebb_gpt_config_new ();

  config->layout = EBB_GPT_LAYOUT_LLAMA;
  config->vocab = 64;
  config->context = 48;
  config->width = 24;
  config->heads = 4;
  config->kv_heads = 2;
  config->layers = N_LAYERS;
  config->hidden = 36;
  config->dropout = 0;
  config->tied = FALSE;
  config->activation = EBB_ACTIVATION_SILU;
  config->gated = TRUE;
  config->norm = EBB_NORM_RMS;
  config->bias = FALSE;
  config->positions = EBB_POSITIONS_ROTARY;
  return config;
}

static void
choose_gemma (EbbGptConfig *config)
{
  config->head_width = 8;
  config->activation = EBB_ACTIVATION_GELU_TANH;
  config->norm = EBB_NORM_RMS_UNIT;
  config->norm_order = EBB_NORM_ORDER_BOTH;
  config->tied = TRUE;
  config->window = 6;
  config->attention_scale = 1 / sqrt (12);
  config->embedding_scale = sqrt (24);
}

static void
choose_qwen (EbbGptConfig *config, const char *name)
{
  if (g_str_equal (name, "qwen3"))
    {
      config->head_width = 8;
      config->qk_norm = TRUE;
    }
  else
    config->qkv_bias = TRUE;
  config->tied = !g_str_equal (name, "qwen2-yarn");
  config->rotary.theta = config->tied ? 1e6 : 1e4;
  if (g_str_equal (name, "qwen2"))
    {
      config->window = 7;
      ebb_gpt_config_set_layer_pattern (config, "fs");
    }
  else if (!config->tied)
    {
      config->rotary.scaling = EBB_ROTARY_YARN;
      config->rotary.factor = 3;
      config->rotary.original_context = 16;
    }
}

static void
choose_llama (EbbGptConfig *config, const char *name)
{
  EbbRotaryConfig *rotary = &config->rotary;

  if (g_str_equal (name, "llama2"))
    config->kv_heads = 4;
  else if (g_str_equal (name, "llama3"))
    {
      config->tied = TRUE;
      rotary->scaling = EBB_ROTARY_LLAMA3;
      rotary->theta = 5e5;
      rotary->factor = 8;
      rotary->original_context = 16;
    }
  else if (g_str_equal (name, "llama-linear"))
    {
      config->qkv_bias = config->output_bias = config->mlp_bias = TRUE;
      rotary->scaling = EBB_ROTARY_LINEAR;
      rotary->factor = 2.5;
    }
  else if (g_str_equal (name, "llama-dynamic"))
    {
      config->context = 16;
      rotary->scaling = EBB_ROTARY_DYNAMIC;
      rotary->factor = 3;
    }
  else if (g_str_equal (name, "llama-yarn"))
    {
      config->head_width = 8;
      rotary->scaling = EBB_ROTARY_YARN;
      rotary->factor = 3;
      rotary->original_context = 16;
      rotary->beta_fast = 1;
      rotary->beta_slow = 0.1;
      rotary->mscale = 1.5;
      rotary->mscale_all_dim = 0.7;
      rotary->truncate = FALSE;
    }
}

static void
choose_phi (EbbGptConfig *config, const char *name)
{
  static const double short_factors[] = { 1.1, 1.3, 1.7 }, long_factors[] = { 1.4, 2.2, 4.5 };
  EbbRotaryConfig *rotary = &config->rotary;

  if (g_str_equal (name, "phi3"))
    {
      config->window = 5;
      return;
    }
  config->width = 32;
  rotary->scaling = EBB_ROTARY_LONGROPE;
  rotary->partial = 0.75;
  rotary->factor = 0;
  rotary->original_context = 16;
  rotary->n_factors = 3;
  for (int i = 0; i < 3; i++)
    {
      rotary->short_factors[i] = short_factors[i];
      rotary->long_factors[i] = long_factors[i];
    }
}

EbbGptConfig *
test_decoder_config (const char *name)
{
  EbbGptConfig *config = new_llama ();

  g_assert_true (g_strv_contains (test_decoder_names, name));
  if (g_str_has_prefix (name, "llama"))
    choose_llama (config, name);
  else if (g_str_has_prefix (name, "qwen"))
    choose_qwen (config, name);
  else if (g_str_has_prefix (name, "phi"))
    choose_phi (config, name);
  else if (g_str_equal (name, "mistral"))
    {
      config->head_width = 8;
      config->window = 5;
    }
  else if (g_str_equal (name, "gemma2"))
    {
      choose_gemma (config);
      config->attention_softcap = 3;
      config->logit_softcap = 4;
      ebb_gpt_config_set_layer_pattern (config, "sf");
    }
  else if (g_str_equal (name, "gemma3"))
    {
      choose_gemma (config);
      config->layers = 3;
      config->qk_norm = TRUE;
      config->rotary.theta = 1e6;
      config->rotary.scaling = EBB_ROTARY_LINEAR;
      config->rotary.factor = 8;
      config->local_rotary.theta = 1e4;
      ebb_gpt_config_set_layer_pattern (config, "ssf");
    }
  else if (g_str_has_prefix (name, "smollm"))
    {
      config->hidden = 40;
      config->tied = TRUE;
      config->rotary.theta = 1e5;
      if (g_str_equal (name, "smollm3"))
        ebb_gpt_config_set_layer_pattern (config, "fF");
    }
  return config;
}

EbbModule *
test_decoder_new (const char *name, guint64 seed)
{
  g_autoptr (EbbGptConfig) config = test_decoder_config (name);
  g_autoptr (GError) error = NULL;
  EbbModule *gpt;
  EbbTensor **parameters;
  guint n;

  ebb_manual_seed (seed);
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  parameters = ebb_module_get_parameters (gpt, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      double std = ebb_tensor_get_n_dims (parameters[i]) == 2 ? 0.2 : 0.3;

      ebb_push_grad_enabled (FALSE);
      g_assert_true (ebb_tensor_fill_normal (parameters[i], ebb_tensor_get_n_dims (parameters[i]) == 2 ? 0 : 0.7, std,
                                             NULL, &error));
      ebb_pop_grad_enabled ();
      ebb_tensor_unref (parameters[i]);
    }
  g_free (parameters);
  return gpt;
}
