/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/architecture-private.h"

#include "tensor/util/json-scanner-private.h"
#include "nn/models/folder/config-private.h"
#include "tensor/error-private.h"

#include <string.h>

/* The table of architectures. What stands for a missing key is what the configuration class of `transformers` has. */

#define ROW(name, kind, field, initial, nullable)                                         \
  {                                                                                       \
    name, EBB_CONFIG_KEY_##kind, G_STRUCT_OFFSET (EbbGptConfig, field), initial, nullable \
  }
#define SIZE(name, field, initial) ROW (name, SIZE, field, initial, FALSE)
#define SIZE_OR_NULL(name, field, initial) ROW (name, SIZE, field, initial, TRUE)
#define NUMBER(name, field, initial) ROW (name, NUMBER, field, initial, FALSE)
#define NUMBER_OR_NULL(name, field, initial) ROW (name, NUMBER, field, initial, TRUE)
#define SCALE(name, initial) ROW (name, SCALE, attention_scale, initial, FALSE)
#define DROPOUT(name, initial) ROW (name, DROPOUT, dropout, initial, TRUE)
#define ATTENTION_DROPOUT(name, initial) ROW (name, DROPOUT, attention_dropout, initial, TRUE)
#define FLAG(name, field, initial) ROW (name, FLAG, field, initial, FALSE)
#define ACTIVATION(name, initial) ROW (name, ACTIVATION, activation, initial, FALSE)
#define ONLY(name, values)                     \
  {                                            \
    name, EBB_CONFIG_KEY_ONLY, 0, values, TRUE \
  }
#define END \
  {         \
    NULL    \
  }

const EbbConfigKeyRow ebb_config_keys_of_all[] = {
  ONLY ("use_bidirectional_attention", "false|null"),
  ONLY ("add_cross_attention", "false|null"),
  ONLY ("is_decoder", "false|null"),
  ONLY ("is_encoder_decoder", "false|null"),
  ONLY ("pruned_heads", "{}|null"),
  ONLY ("text_config", "null"),
  ONLY ("vision_config", "null"),
  END,
};

/* -- keys ---------------------------------------------------------------------------------------------------------- */

static const EbbConfigKeyRow gpt2_keys[] = {
  SIZE ("vocab_size", vocab, "50257"),
  SIZE ("n_positions", context, "1024"),
  SIZE ("n_embd", width, "768"),
  SIZE ("n_layer", layers, "12"),
  SIZE ("n_head", heads, "12"),
  SIZE_OR_NULL ("n_inner", hidden, "null"),
  ACTIVATION ("activation_function", "\"gelu_new\""),
  DROPOUT ("resid_pdrop", "0.1"),
  DROPOUT ("embd_pdrop", "0.1"),
  ATTENTION_DROPOUT ("attn_pdrop", "0.1"),
  NUMBER ("layer_norm_epsilon", norm_eps, "1e-05"),
  FLAG ("tie_word_embeddings", tied, "true"),
  ONLY ("scale_attn_weights", "true"),
  ONLY ("scale_attn_by_inverse_layer_idx", "false"),
  END,
};

static const EbbConfigKeyRow llama_keys[] = {
  SIZE ("vocab_size", vocab, "32000"),
  SIZE ("hidden_size", width, "4096"),
  SIZE ("intermediate_size", hidden, "11008"),
  SIZE ("num_hidden_layers", layers, "32"),
  SIZE ("num_attention_heads", heads, "32"),
  SIZE_OR_NULL ("num_key_value_heads", kv_heads, "null"),
  SIZE_OR_NULL ("head_dim", head_width, "null"),
  SIZE ("max_position_embeddings", context, "2048"),
  ACTIVATION ("hidden_act", "\"silu\""),
  NUMBER ("rms_norm_eps", norm_eps, "1e-06"),
  ATTENTION_DROPOUT ("attention_dropout", "0.0"),
  FLAG ("attention_bias", qkv_bias, "false"),
  FLAG ("attention_bias", output_bias, "false"),
  FLAG ("mlp_bias", mlp_bias, "false"),
  FLAG ("tie_word_embeddings", tied, "false"),
  END,
};

static const EbbConfigKeyRow mistral_keys[] = {
  SIZE ("vocab_size", vocab, "32000"),
  SIZE ("hidden_size", width, "4096"),
  SIZE ("intermediate_size", hidden, "14336"),
  SIZE ("num_hidden_layers", layers, "32"),
  SIZE ("num_attention_heads", heads, "32"),
  SIZE_OR_NULL ("num_key_value_heads", kv_heads, "8"),
  SIZE_OR_NULL ("head_dim", head_width, "null"),
  SIZE ("max_position_embeddings", context, "131072"),
  ACTIVATION ("hidden_act", "\"silu\""),
  NUMBER ("rms_norm_eps", norm_eps, "1e-06"),
  ATTENTION_DROPOUT ("attention_dropout", "0.0"),
  FLAG ("tie_word_embeddings", tied, "false"),
  END,
};

static const EbbConfigKeyRow qwen2_keys[] = {
  SIZE ("vocab_size", vocab, "151936"),
  SIZE ("hidden_size", width, "4096"),
  SIZE ("intermediate_size", hidden, "22016"),
  SIZE ("num_hidden_layers", layers, "32"),
  SIZE ("num_attention_heads", heads, "32"),
  SIZE_OR_NULL ("num_key_value_heads", kv_heads, "32"),
  SIZE_OR_NULL ("head_dim", head_width, "null"),
  SIZE ("max_position_embeddings", context, "32768"),
  ACTIVATION ("hidden_act", "\"silu\""),
  NUMBER ("rms_norm_eps", norm_eps, "1e-06"),
  ATTENTION_DROPOUT ("attention_dropout", "0.0"),
  FLAG ("tie_word_embeddings", tied, "false"),
  END,
};

static const EbbConfigKeyRow qwen3_keys[] = {
  SIZE ("vocab_size", vocab, "151936"),
  SIZE ("hidden_size", width, "4096"),
  SIZE ("intermediate_size", hidden, "22016"),
  SIZE ("num_hidden_layers", layers, "32"),
  SIZE ("num_attention_heads", heads, "32"),
  SIZE_OR_NULL ("num_key_value_heads", kv_heads, "32"),
  SIZE_OR_NULL ("head_dim", head_width, "128"),
  SIZE ("max_position_embeddings", context, "32768"),
  ACTIVATION ("hidden_act", "\"silu\""),
  NUMBER ("rms_norm_eps", norm_eps, "1e-06"),
  ATTENTION_DROPOUT ("attention_dropout", "0.0"),
  FLAG ("attention_bias", qkv_bias, "false"),
  FLAG ("attention_bias", output_bias, "false"),
  FLAG ("tie_word_embeddings", tied, "false"),
  END,
};

static const EbbConfigKeyRow gemma2_keys[] = {
  SIZE ("vocab_size", vocab, "256000"),
  SIZE ("hidden_size", width, "2304"),
  SIZE ("intermediate_size", hidden, "9216"),
  SIZE ("num_hidden_layers", layers, "26"),
  SIZE ("num_attention_heads", heads, "8"),
  SIZE ("num_key_value_heads", kv_heads, "4"),
  SIZE ("head_dim", head_width, "256"),
  SIZE ("max_position_embeddings", context, "8192"),
  ACTIVATION ("hidden_activation", "\"gelu_pytorch_tanh\""),
  NUMBER ("rms_norm_eps", norm_eps, "1e-06"),
  ATTENTION_DROPOUT ("attention_dropout", "0.0"),
  FLAG ("attention_bias", qkv_bias, "false"),
  FLAG ("attention_bias", output_bias, "false"),
  FLAG ("tie_word_embeddings", tied, "true"),
  SCALE ("query_pre_attn_scalar", "256"),
  NUMBER_OR_NULL ("final_logit_softcapping", logit_softcap, "30.0"),
  NUMBER_OR_NULL ("attn_logit_softcapping", attention_softcap, "50.0"),
  END,
};

static const EbbConfigKeyRow gemma3_keys[] = {
  SIZE ("vocab_size", vocab, "262208"),
  SIZE ("hidden_size", width, "2304"),
  SIZE ("intermediate_size", hidden, "9216"),
  SIZE ("num_hidden_layers", layers, "26"),
  SIZE ("num_attention_heads", heads, "8"),
  SIZE ("num_key_value_heads", kv_heads, "4"),
  SIZE ("head_dim", head_width, "256"),
  SIZE ("max_position_embeddings", context, "131072"),
  ACTIVATION ("hidden_activation", "\"gelu_pytorch_tanh\""),
  NUMBER ("rms_norm_eps", norm_eps, "1e-06"),
  ATTENTION_DROPOUT ("attention_dropout", "0.0"),
  FLAG ("attention_bias", qkv_bias, "false"),
  FLAG ("attention_bias", output_bias, "false"),
  FLAG ("tie_word_embeddings", tied, "true"),
  SCALE ("query_pre_attn_scalar", "256"),
  NUMBER_OR_NULL ("final_logit_softcapping", logit_softcap, "null"),
  ONLY ("attn_logit_softcapping", "null"), /* `transformers` reads it and does not apply it */
  END,
};

static const EbbConfigKeyRow phi3_keys[] = {
  SIZE ("vocab_size", vocab, "32064"),
  SIZE ("hidden_size", width, "3072"),
  SIZE ("intermediate_size", hidden, "8192"),
  SIZE ("num_hidden_layers", layers, "32"),
  SIZE ("num_attention_heads", heads, "32"),
  SIZE_OR_NULL ("num_key_value_heads", kv_heads, "null"),
  SIZE_OR_NULL ("head_dim", head_width, "null"),
  SIZE ("max_position_embeddings", context, "4096"),
  ACTIVATION ("hidden_act", "\"silu\""),
  NUMBER ("rms_norm_eps", norm_eps, "1e-05"),
  DROPOUT ("resid_pdrop", "0.0"),
  DROPOUT ("embd_pdrop", "0.0"),
  ATTENTION_DROPOUT ("attention_dropout", "0.0"),
  FLAG ("tie_word_embeddings", tied, "false"),
  END,
};

#undef ROW
#define ROW(name, kind, field, initial, nullable)                                          \
  {                                                                                        \
    name, EBB_CONFIG_KEY_##kind, G_STRUCT_OFFSET (EbbBertConfig, field), initial, nullable \
  }

static const EbbConfigKeyRow bert_keys[] = {
  SIZE ("vocab_size", vocab, "30522"),
  SIZE ("hidden_size", width, "768"),
  SIZE ("num_hidden_layers", layers, "12"),
  SIZE ("num_attention_heads", heads, "12"),
  SIZE ("intermediate_size", hidden, "3072"),
  SIZE ("max_position_embeddings", context, "512"),
  SIZE ("type_vocab_size", segments, "2"),
  DROPOUT ("hidden_dropout_prob", "0.1"),
  ATTENTION_DROPOUT ("attention_probs_dropout_prob", "0.1"),
  NUMBER ("layer_norm_eps", norm_eps, "1e-12"),
  ONLY ("hidden_act", "\"gelu\""),
  ONLY ("position_embedding_type", "\"absolute\""),
  ONLY ("tie_word_embeddings", "true"),
  END,
};

/* -- names --------------------------------------------------------------------------------------------------------- */

static const EbbNameRule no_rules[] = { END };

static const EbbNameRule phi3_block_names[] = {
  { "self_attn.q_proj", "self_attn.qkv_proj", 0, 0 },
  { "self_attn.k_proj", "self_attn.qkv_proj", 0, 0 },
  { "self_attn.v_proj", "self_attn.qkv_proj", 0, 0 },
  { "mlp.gate_proj", "mlp.gate_up_proj", 0, 0 },
  { "mlp.up_proj", "mlp.gate_up_proj", 0, 0 },
  END,
};

static const EbbNameRule bert_names[] = {
  { "word_embeddings", "bert.embeddings.word_embeddings", 0, 0 },
  { "position_embeddings", "bert.embeddings.position_embeddings", 0, 0 },
  { "segment_embeddings", "bert.embeddings.token_type_embeddings", 0, 0 },
  { "embeddings_norm", "bert.embeddings.LayerNorm", 0, 0 },
  { "transform", "cls.predictions.transform.dense", 0, 0 },
  { "transform_norm", "cls.predictions.transform.LayerNorm", 0, 0 },
  { "output_bias", "cls.predictions.bias", 0, 0 },
  END,
};

static const EbbNameRule bert_block_names[] = {
  { "attn.c_attn", "attention.self.query", 0, 3 },
  { "attn.c_attn", "attention.self.key", 1, 3 },
  { "attn.c_attn", "attention.self.value", 2, 3 },
  { "attn.c_proj", "attention.output.dense", 0, 0 },
  { "ln_1", "attention.output.LayerNorm", 0, 0 },
  { "mlp.c_fc", "intermediate.dense", 0, 0 },
  { "mlp.c_proj", "output.dense", 0, 0 },
  { "ln_2", "output.LayerNorm", 0, 0 },
  END,
};

static const char *const gpt2_transposed[] = { "attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight",
                                               "mlp.c_proj.weight", NULL };
static const char *const gpt2_ignored[] = { "*h.*.attn.bias", "*h.*.attn.masked_bias", NULL };
static const char *const rotary_ignored[] = { "*rotary_emb.inv_freq", NULL };

/* Tied weights: the second name that files may have for one, and the module's tensor that it must be equal to. */
static const EbbTiedName gpt2_tied[] = { { "lm_head.weight", "wte.weight" }, END };
static const EbbTiedName llama_tied[] = { { "lm_head.weight", "embed_tokens.weight" }, END };
static const EbbTiedName bert_tied[] = { { "cls.predictions.decoder.weight", "word_embeddings.weight" },
                                         { "cls.predictions.decoder.bias", "output_bias" },
                                         END };
static const char *const bert_ignored[] = { "bert.pooler.dense.*", "cls.seq_relationship.*",
                                            "bert.embeddings.position_ids", NULL };

/* -- GGUF ---------------------------------------------------------------------------------------------------------- */

static const EbbNameRule gguf_gpt2_names[] = {
  { "wte", "token_embd", 0, 0 },
  { "wpe", "position_embd", 0, 0 },
  { "ln_f", "output_norm", 0, 0 },
  { "lm_head", "output", 0, 0 },
  END,
};

static const EbbNameRule gguf_gpt2_block_names[] = {
  { "ln_1", "attn_norm", 0, 0 },
  { "attn.c_attn", "attn_qkv", 0, 0 },
  { "attn.c_proj", "attn_output", 0, 0 },
  { "ln_2", "ffn_norm", 0, 0 },
  { "mlp.c_fc", "ffn_up", 0, 0 },
  { "mlp.c_proj", "ffn_down", 0, 0 },
  END,
};

static const EbbNameRule gguf_names[] = {
  { "embed_tokens", "token_embd", 0, 0 },
  { "norm", "output_norm", 0, 0 },
  { "lm_head", "output", 0, 0 },
  END,
};

#define GGUF_ATTENTION                                                                \
  { "input_layernorm", "attn_norm", 0, 0 }, { "self_attn.q_proj", "attn_q", 0, 0 },   \
      { "self_attn.k_proj", "attn_k", 0, 0 }, { "self_attn.v_proj", "attn_v", 0, 0 }, \
      { "self_attn.o_proj", "attn_output", 0, 0 },                                    \
      { "self_attn.q_norm", "attn_q_norm", 0, 0 },                                    \
  {                                                                                   \
    "self_attn.k_norm", "attn_k_norm", 0, 0                                           \
  }
#define GGUF_MLP                                                            \
  { "mlp.gate_proj", "ffn_gate", 0, 0 }, { "mlp.up_proj", "ffn_up", 0, 0 }, \
  {                                                                         \
    "mlp.down_proj", "ffn_down", 0, 0                                       \
  }

static const EbbNameRule gguf_block_names[] = {
  GGUF_ATTENTION,
  { "post_attention_layernorm", "ffn_norm", 0, 0 },
  GGUF_MLP,
  END,
};

static const EbbNameRule gguf_gemma_block_names[] = {
  GGUF_ATTENTION,
  { "post_attention_layernorm", "post_attention_norm", 0, 0 },
  { "pre_feedforward_layernorm", "ffn_norm", 0, 0 },
  { "post_feedforward_layernorm", "post_ffw_norm", 0, 0 },
  GGUF_MLP,
  END,
};

static const EbbNameRule gguf_phi3_block_names[] = {
  { "input_layernorm", "attn_norm", 0, 0 },
  { "self_attn.q_proj", "attn_qkv", 0, 0 },
  { "self_attn.k_proj", "attn_qkv", 0, 0 },
  { "self_attn.v_proj", "attn_qkv", 0, 0 },
  { "self_attn.o_proj", "attn_output", 0, 0 },
  { "post_attention_layernorm", "ffn_norm", 0, 0 },
  { "mlp.gate_proj", "ffn_up", 0, 0 },
  { "mlp.up_proj", "ffn_up", 0, 0 },
  { "mlp.down_proj", "ffn_down", 0, 0 },
  END,
};

#define SILU .activation = EBB_ACTIVATION_SILU
#define GELU .activation = EBB_ACTIVATION_GELU_TANH

static const EbbGgufForm gguf_gpt2 = { "gpt2", gguf_gpt2_names, gguf_gpt2_block_names, .takes_biases = TRUE, GELU };
static const EbbGgufForm gguf_llama = { "llama", gguf_names, gguf_block_names, .permutes = TRUE, .takes_biases = TRUE,
                                        SILU };
static const EbbGgufForm gguf_qwen2 = { "qwen2", gguf_names, gguf_block_names, SILU };
static const EbbGgufForm gguf_qwen3 = { "qwen3", gguf_names, gguf_block_names, SILU };
static const EbbGgufForm gguf_gemma2 = { "gemma2", gguf_names, gguf_gemma_block_names, .adds_one = TRUE,
                                         .has_window = TRUE, .layers_of_27b = 46, GELU };
static const EbbGgufForm gguf_gemma3 = { "gemma3", gguf_names, gguf_gemma_block_names, .adds_one = TRUE,
                                         .has_window = TRUE, .layers_of_27b = 62, GELU };
static const EbbGgufForm gguf_phi3 = { "phi3", gguf_names, gguf_phi3_block_names, .has_window = TRUE, SILU };

/* -- architectures ------------------------------------------------------------------------------------------------- */

#define LLAMA_NAMES                                                                                                \
  .prefix = "model.", .own_list = "layers.", .file_list = "layers.",                                               \
  .names = no_rules, .tied = llama_tied, .ignored = rotary_ignored, .layout = EBB_GPT_LAYOUT_LLAMA, .gated = TRUE, \
  .positions = EBB_POSITIONS_ROTARY

const EbbArchitecture ebb_architectures[] = {
  {
      .model_type = "gpt2",
      .gguf = &gguf_gpt2,
      .class_name = "GPT2LMHeadModel",
      .keys = gpt2_keys,
      .prefix = "transformer.",
      .own_list = "h.",
      .file_list = "h.",
      .names = no_rules,
      .block_names = no_rules,
      .transposed = gpt2_transposed,
      .tied = gpt2_tied,
      .ignored = gpt2_ignored,
      .layout = EBB_GPT_LAYOUT_GPT2,
      .norm = EBB_NORM_LAYER,
      .all_biases = TRUE,
      .positions = EBB_POSITIONS_LEARNED,
  },
  {
      .model_type = "llama",
      .gguf = &gguf_llama,
      .class_name = "LlamaForCausalLM",
      .keys = llama_keys,
      .block_names = no_rules,
      .norm = EBB_NORM_RMS,
      .theta = 10000,
      LLAMA_NAMES,
  },
  {
      .model_type = "mistral",
      .gguf = &gguf_llama,
      .class_name = "MistralForCausalLM",
      .keys = mistral_keys,
      .block_names = no_rules,
      .norm = EBB_NORM_RMS,
      .theta = 10000,
      .window = EBB_WINDOW_ALL,
      LLAMA_NAMES,
  },
  {
      .model_type = "qwen2",
      .gguf = &gguf_qwen2,
      .class_name = "Qwen2ForCausalLM",
      .keys = qwen2_keys,
      .block_names = no_rules,
      .norm = EBB_NORM_RMS,
      .theta = 10000,
      .qkv_bias = TRUE,
      .window = EBB_WINDOW_FLAG,
      LLAMA_NAMES,
  },
  {
      .model_type = "qwen3",
      .gguf = &gguf_qwen3,
      .class_name = "Qwen3ForCausalLM",
      .keys = qwen3_keys,
      .block_names = no_rules,
      .norm = EBB_NORM_RMS,
      .theta = 10000,
      .qk_norm = TRUE,
      .window = EBB_WINDOW_FLAG,
      LLAMA_NAMES,
  },
  {
      .model_type = "gemma2",
      .gguf = &gguf_gemma2,
      .class_name = "Gemma2ForCausalLM",
      .keys = gemma2_keys,
      .block_names = no_rules,
      .norm = EBB_NORM_RMS_UNIT,
      .norm_order = EBB_NORM_ORDER_BOTH,
      .scales_embeddings = TRUE,
      .theta = 10000,
      .window = EBB_WINDOW_TYPES,
      .full_every = 2,
      LLAMA_NAMES,
  },
  {
      .model_type = "gemma3_text",
      .gguf = &gguf_gemma3,
      .class_name = "Gemma3ForCausalLM",
      .keys = gemma3_keys,
      .block_names = no_rules,
      .norm = EBB_NORM_RMS_UNIT,
      .norm_order = EBB_NORM_ORDER_BOTH,
      .qk_norm = TRUE,
      .scales_embeddings = TRUE,
      .theta = 1000000,
      .local_theta = 10000,
      .window = EBB_WINDOW_TYPES,
      .full_every = 6,
      LLAMA_NAMES,
  },
  {
      .model_type = "phi3",
      .gguf = &gguf_phi3,
      .class_name = "Phi3ForCausalLM",
      .keys = phi3_keys,
      .block_names = phi3_block_names,
      .norm = EBB_NORM_RMS,
      .theta = 10000,
      .original_context = 4096,
      .window = EBB_WINDOW_ALL,
      LLAMA_NAMES,
  },
  {
      .model_type = "bert",
      .class_name = "BertForMaskedLM",
      .keys = bert_keys,
      .prefix = "",
      .own_list = "layer.",
      .file_list = "bert.encoder.layer.",
      .names = bert_names,
      .block_names = bert_block_names,
      .tied = bert_tied,
      .ignored = bert_ignored,
      .is_bert = TRUE,
      .has_old_norm_names = TRUE,
  },
};

const guint ebb_n_architectures = G_N_ELEMENTS (ebb_architectures);

const EbbArchitecture *
ebb_architecture_find (const EbbJson *document,
                       const char *path,
                       GError **error)
{
  const EbbJson *member = ebb_json_get (document, "model_type");
  g_autoptr (GString) known = g_string_new (NULL);
  g_autofree char *shown = ebb_escape_text (path);
  g_autofree char *value = NULL;
  const char *name = NULL;

  if (ebb_json_as_string (member, &name))
    for (guint i = 0; i < ebb_n_architectures; i++)
      if (strcmp (ebb_architectures[i].model_type, name) == 0)
        return &ebb_architectures[i];
  for (guint i = 0; i < ebb_n_architectures; i++)
    g_string_append_printf (known, "%s%s", i == 0 ? "" : i + 1 < ebb_n_architectures ? ", "
                                                                                     : " or ",
                            ebb_architectures[i].model_type);
  value = member != NULL ? ebb_json_describe (member) : g_strdup ("missing");
  return ebb_fail_null (error, EBB_ERROR_STATE, "%s: model_type is %s: it must be %s", shown, value, known->str);
}

const EbbArchitecture *
ebb_architecture_find_gguf (const char *name,
                            const char *path,
                            GError **error)
{
  g_autoptr (GString) known = g_string_new (NULL);
  g_autofree char *shown = ebb_escape_text (path);

  for (guint i = 0; i < ebb_n_architectures; i++)
    {
      const EbbGgufForm *form = ebb_architectures[i].gguf;

      if (form != NULL && strcmp (form->name, name) == 0)
        return &ebb_architectures[i];
      /* Mistral's models are llama's. */
      if (form != NULL && form != (i > 0 ? ebb_architectures[i - 1].gguf : NULL))
        g_string_append_printf (known, "%s%s", known->len > 0 ? ", " : "", form->name);
    }
  return ebb_fail_null (error, EBB_ERROR_STATE, "%s: general.architecture is %s: it must be one of %s", shown,
                        ebb_in_message (ebb_json_quote (name)), known->str);
}
