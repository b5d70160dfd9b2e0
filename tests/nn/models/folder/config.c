/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "nn/models/folder/config-private.h"

#include "support/tensors.h"

#include <string.h>

/* config.json of every architecture: both forms read, every choice written and read again, bad values refused. */

static EbbJson *
load (const char *row,
      const char *name)
{
  g_autofree char *path = g_test_build_filename (G_TEST_DIST, "fixtures", "models", row, name, NULL);
  g_autoptr (GError) error = NULL;
  EbbJson *document = ebb_json_read_file (path, EBB_CONFIG_MAX_SIZE, &error);

  g_assert_no_error (error);
  return document;
}

static EbbJson *
parse (const char *text)
{
  g_autoptr (GError) error = NULL;
  EbbJson *document = ebb_json_parse (text, strlen (text), "test", &error);

  g_assert_no_error (error);
  return document;
}

static EbbGptConfig *
read_gpt (const EbbJson *document,
          const EbbArchitecture **architecture,
          GError **error)
{
  EbbConfigSource source = { ebb_architecture_find (document, "config.json", error), "config.json", document };

  if (architecture != NULL)
    *architecture = source.architecture;
  return source.architecture != NULL ? ebb_config_read_gpt (&source, error) : NULL;
}

static const char *const rows[] = { "gpt2", "llama2", "llama3", "llama-linear", "llama-dynamic",
                                    "llama-yarn", "mistral", "qwen2", "qwen2-yarn", "qwen3",
                                    "gemma2", "gemma3", "phi3", "phi3-longrope", "smollm" };

static gboolean
is_text_equal (const EbbJson *a,
               const EbbJson *b)
{
  g_autoptr (GString) x = g_string_new (NULL);
  g_autoptr (GString) y = g_string_new (NULL);

  ebb_json_print (a, x);
  ebb_json_print (b, y);
  return strcmp (x->str, y->str) == 0;
}

static void
both_forms_are_the_same_model (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbJson) new = load (rows[i], "config.json");
      g_autofree char *old_path =
          g_test_build_filename (G_TEST_DIST, "fixtures", "models", rows[i], "config-old.json", NULL);
      g_autoptr (EbbJson) old = NULL;
      g_autoptr (EbbGptConfig) a = read_gpt (new, NULL, &error);
      g_autoptr (EbbGptConfig) b = NULL;

      g_assert_no_error (error);
      if (!g_file_test (old_path, G_FILE_TEST_EXISTS))
        continue;
      old = load (rows[i], "config-old.json");
      b = read_gpt (old, NULL, &error);
      g_assert_no_error (error);
      g_assert_cmpstr (ebb_config_find_difference (a, b), ==, NULL);
    }
}

/* A configuration written to a new document, or into one of the other form, reads as the same model. */
static void
a_written_model_is_read_back (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbJson) document = load (rows[i], "config.json");
      const EbbArchitecture *architecture;
      g_autoptr (EbbGptConfig) config = read_gpt (document, &architecture, &error);
      g_autoptr (EbbJson) fresh = ebb_config_write (architecture, NULL, config, &error);
      g_autoptr (EbbGptConfig) again = NULL;
      g_autoptr (EbbJson) same = NULL;
      const EbbArchitecture *found;

      g_assert_no_error (error);
      again = read_gpt (fresh, NULL, &error);
      g_assert_no_error (error);
      g_assert_cmpstr (ebb_config_find_difference (config, again), ==, NULL);
      same = ebb_config_write (architecture, document, config, &error);
      g_assert_no_error (error);
      g_assert_true (is_text_equal (document, same));
      found = ebb_config_find_architecture (config, &error);
      g_assert_no_error (error);
      g_assert_cmpint (found->norm, ==, config->norm);
    }
}

/* A change alters only its own keys, in the form that the document has. */
static void
other_keys_survive_a_change (void)
{
  static const char *const names[] = { "config.json", "config-old.json" };

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbJson) document = load ("gemma3", names[i]);
      const EbbArchitecture *architecture;
      g_autoptr (EbbGptConfig) config = NULL;
      g_autoptr (EbbGptConfig) again = NULL;
      g_autoptr (EbbJson) written = NULL;

      ebb_json_set (document, "house", "{\"rooms\": [1.50, 1e2, null, \"\\u00e9\"]}");
      config = read_gpt (document, &architecture, &error);
      g_assert_no_error (error);
      config->context = 96;
      config->rotary.factor = 16;
      config->local_rotary.theta = 20000;
      config->window = 7;
      written = ebb_config_write (architecture, document, config, &error);
      g_assert_no_error (error);
      g_assert_true (is_text_equal (ebb_json_get (document, "house"), ebb_json_get (written, "house")));
      g_assert_cmpstr (ebb_json_get (written, "max_position_embeddings")->text, ==, "96");
      g_assert_cmpstr (ebb_json_get (written, "rms_norm_eps")->text, ==, ebb_json_get (document, "rms_norm_eps")->text);
      g_assert_true ((ebb_json_get (written, "rope_parameters") != NULL) == (i == 0));
      again = read_gpt (written, NULL, &error);
      g_assert_no_error (error);
      g_assert_cmpstr (ebb_config_find_difference (config, again), ==, NULL);
    }
}

static void
a_choice_that_an_architecture_lacks_is_named (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbJson) document = load ("llama3", "config.json");
  const EbbArchitecture *architecture;
  g_autoptr (EbbGptConfig) config = read_gpt (document, &architecture, &error);

  g_assert_no_error (error);
  config->logit_softcap = 30;
  g_assert_null (ebb_config_write (architecture, document, config, &error));
  test_assert_error (error, EBB_ERROR_STATE, "llama", "logit_softcap");
  g_clear_error (&error);
  config->qk_norm = TRUE;
  g_assert_null (ebb_config_find_architecture (config, &error));
  test_assert_error (error, EBB_ERROR_STATE, "llama", "qwen3", "gemma2", "phi3");
}

/* Of BERT and GPT-2 the rest is in the tests of their files. */
static void
bert_is_read_and_written (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbJson) document = load ("bert", "config.json");
  EbbConfigSource source = { ebb_architecture_find (document, "config.json", &error), "config.json", document };
  g_autoptr (EbbBertConfig) config = ebb_config_read_bert (&source, &error);
  g_autoptr (EbbJson) same = NULL;

  g_assert_no_error (error);
  same = ebb_config_write (source.architecture, document, config, &error);
  g_assert_true (is_text_equal (document, same));
  config->layers = 7;
  ebb_json_free (g_steal_pointer (&same));
  same = ebb_config_write (source.architecture, document, config, &error);
  g_assert_cmpstr (ebb_json_get (same, "num_hidden_layers")->text, ==, "7");
}

/* Attention has its own probability, in every architecture; models like Llama have no other. */
static void
attention_has_its_own_dropout (void)
{
  static const struct
  {
    const char *row, *key;
    double dropout;
  } cases[] = { { "llama3", "attention_dropout", 0 },
                { "qwen3", "attention_dropout", 0 },
                { "gemma2", "attention_dropout", 0 },
                { "phi3", "attention_dropout", 0 },
                { "gpt2", "attn_pdrop", 0.1 } };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbJson) document = load (cases[i].row, "config.json");
      g_autoptr (EbbGptConfig) config = NULL;
      g_autoptr (EbbJson) same = NULL;
      g_autoptr (EbbJson) fresh = NULL;
      g_autoptr (EbbJson) changed = NULL;
      const EbbArchitecture *architecture;

      ebb_json_set (document, cases[i].key, "0.25");
      if (cases[i].dropout > 0)
        {
          ebb_json_set (document, "resid_pdrop", "0.1");
          ebb_json_set (document, "embd_pdrop", "0.1");
        }
      config = read_gpt (document, &architecture, &error);
      g_assert_no_error (error);
      g_assert_cmpfloat (config->dropout, ==, cases[i].dropout);
      g_assert_cmpfloat (config->attention_dropout, ==, 0.25);
      same = ebb_config_write (architecture, document, config, &error);
      g_assert_true (is_text_equal (document, same));
      fresh = ebb_config_write (architecture, NULL, config, &error);
      g_assert_cmpstr (ebb_json_get (fresh, cases[i].key)->text, ==, "0.25");
      config->attention_dropout = -1; /* as dropout */
      changed = ebb_config_write (architecture, document, config, &error);
      g_assert_cmpstr (ebb_json_get (changed, cases[i].key)->text, ==, cases[i].dropout > 0 ? "0.1" : "0.0");
    }
}

static void
bert_has_a_dropout_of_attention (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbJson) document = load ("bert", "config.json");
  EbbConfigSource source = { ebb_architecture_find (document, "config.json", &error), "config.json", document };
  g_autoptr (EbbBertConfig) config = NULL;
  g_autoptr (EbbJson) changed = NULL;

  ebb_json_set (document, "hidden_dropout_prob", "0.2");
  ebb_json_set (document, "attention_probs_dropout_prob", "0.0");
  config = ebb_config_read_bert (&source, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (config->dropout, ==, 0.2);
  g_assert_cmpfloat (config->attention_dropout, ==, 0);
  config->attention_dropout = -1;
  changed = ebb_config_write (source.architecture, document, config, &error);
  g_assert_cmpstr (ebb_json_get (changed, "attention_probs_dropout_prob")->text, ==, "0.2");
}

static void
what_is_not_there_is_refused_by_its_key (void)
{
  static const struct
  {
    const char *row, *key, *value;
    const char *words[3];
  } cases[] = {
    { "llama3", "model_type", "\"mamba\"", { "model_type is \"mamba\"", "gpt2, llama", "or bert" } },
    { "llama3", "model_type", "7", { "model_type is 7" } },
    { "llama3",
      "quantization_config",
      "{\"bits\": 4}",
      { "quantization_config.quant_method is missing", "bitsandbytes" } },
    { "gemma2", "use_bidirectional_attention", "true", { "use_bidirectional_attention is true", "false" } },
    { "gemma3", "attn_logit_softcapping", "50.0", { "attn_logit_softcapping is 50.0", "null" } },
    { "llama3", "hidden_act", "\"relu\"", { "hidden_act is \"relu\"", "silu", "or gelu" } },
    { "llama3", "hidden_act", "null", { "hidden_act is null" } },
    { "llama3", "hidden_size", "0", { "hidden_size is 0", "at least 1" } },
    { "llama3", "hidden_size", "1.5", { "hidden_size is 1.5", "whole" } },
    { "llama3", "hidden_size", "1e300", { "hidden_size is 1e300" } },
    { "llama3", "hidden_size", "\"32\"", { "hidden_size is \"32\"" } },
    { "llama3", "num_hidden_layers", "400000000", { "400000000 layers", "65536" } },
    { "llama3", "rms_norm_eps", "-1", { "rms_norm_eps is -1", "at least 0" } },
    { "llama3", "rms_norm_eps", "1e999", { "rms_norm_eps is 1e999" } },
    { "llama3", "attention_dropout", "1", { "attention_dropout is 1", "below 1" } },
    { "llama3", "tie_word_embeddings", "\"yes\"", { "tie_word_embeddings is \"yes\"", "true or false" } },
    { "llama3", "num_key_value_heads", "3", { "config.json: Gpt:", "kv_heads" } },
    { "llama3", "rope_parameters", "[1]", { "rope_parameters is [1]", "an object" } },
    { "llama3",
      "rope_parameters",
      "{\"rope_type\": \"proportional\"}",
      { "rope_parameters.rope_type is \"proportional\"", "llama3, yarn or longrope" } },
    { "llama3",
      "rope_parameters",
      "{\"rope_type\": \"llama3\", \"factor\": 2, \"high_freq_factor\": 4}",
      { "rope_parameters.low_freq_factor is missing" } },
    { "llama3", "rope_parameters", "{\"rope_type\": \"linear\"}", { "rope_parameters.factor is missing" } },
    { "llama3", "rope_parameters", "{\"rope_theta\": \"a\"}", { "rope_parameters.rope_theta is \"a\"" } },
    { "llama3", "rope_scaling", "{\"type\": \"mrope\"}", { "rope_scaling.type is \"mrope\"" } },
    { "llama3", "rope_theta", "true", { "rope_theta is true", "a number" } },
    { "phi3-longrope",
      "rope_parameters",
      "{\"rope_type\": \"longrope\", \"short_factor\": [1], \"long_factor\": [1, 2]}",
      { "rope_parameters.long_factor", "as long as" } },
    { "phi3-longrope",
      "rope_parameters",
      "{\"rope_type\": \"longrope\", \"short_factor\": 1, \"long_factor\": []}",
      { "rope_parameters.short_factor is 1" } },
    { "phi3",
      "rope_parameters",
      "{\"rope_type\": \"linear\", \"factor\": 2}",
      { "rope_parameters.rope_type is \"linear\"", "default or longrope" } },
    { "llama3", "partial_rotary_factor", "0.5", { "partial_rotary_factor is 0.5", "must be 1" } },
    { "gemma3", "rope_parameters", "{\"rope_type\": \"default\"}", { "rope_parameters", "full_attention" } },
    { "gemma3", "rope_parameters", "{\"full_attention\": 3}", { "rope_parameters.full_attention is 3" } },
    { "gemma3", "layer_types", "[\"full_attention\"]", { "layer_types", "one for each layer" } },
    { "qwen3",
      "layer_types",
      "[\"chunked_attention\", \"full_attention\"]",
      { "layer_types[0] is \"chunked_attention\"", "sliding_attention" } },
    { "mistral", "sliding_window", "-3", { "sliding_window is -3", "or null" } },
    { "gpt2", "scale_attn_by_inverse_layer_idx", "true", { "scale_attn_by_inverse_layer_idx is true", "false" } },
    { "gpt2", "add_cross_attention", "true", { "add_cross_attention is true" } },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbJson) document = load (cases[i].row, "config.json");

      ebb_json_set (document, cases[i].key, cases[i].value);
      g_assert_null (read_gpt (document, NULL, &error));
      test_assert_error (error, error->code, "config.json: ", cases[i].words[0], cases[i].words[1], cases[i].words[2]);
    }
}

/* A missing key has the default of transformers 5.23: of LlamaConfig () and Gemma2Config (). */
/* Each key of "quantization_config" in each of its modes: with 4 bits, and with 8. */
static void
quantizations_that_are_not_there_are_refused_by_their_key (void)
{
  static const char *const modes[] = { "\"load_in_4bit\": true, \"bnb_4bit_quant_type\": \"nf4\", "
                                       "\"bnb_4bit_use_double_quant\": true",
                                       "\"load_in_8bit\": true" };
  static const struct
  {
    const char *key, *value;
    guint modes; /* a bit for each in which it is refused */
  } cases[] = {
    { "quant_method", "\"gptq\"", 3 },
    { "quant_method", "null", 3 },
    { "quant_method", "4", 3 },
    { "load_in_4bit", "\"yes\"", 3 },
    { "load_in_4bit", "true", 2 },
    { "load_in_8bit", "1", 3 },
    { "load_in_8bit", "true", 1 }, /* both: the key that is named is load_in_4bit */
    { "llm_int8_has_fp16_weight", "true", 3 },
    { "llm_int8_has_fp16_weight", "0", 3 },
    { "llm_int8_skip_modules", "[\"q_proj\"]", 3 },
    { "llm_int8_skip_modules", "\"lm_head\"", 3 },
    { "llm_int8_threshold", "\"6\"", 3 },
    { "bnb_4bit_compute_dtype", "{}", 3 },
    { "bnb_4bit_quant_type", "\"fp4\"", 1 },
    { "bnb_4bit_quant_type", "null", 1 }, /* fp4 */
    { "bnb_4bit_quant_storage", "\"bfloat16\"", 1 },
    { "bnb_4bit_quant_storage", "8", 1 },
    { "bnb_4bit_use_double_quant", "false", 1 },
    { "bnb_4bit_use_double_quant", "1", 1 },
    { "modules_to_not_convert", "[\"lm_head\"]", 3 },
    { "a_new_way", "true", 3 },
    { "a_new_number", "0", 3 },
    { "a_new_way", "false", 0 },
    { "a_new_way", "null", 0 },
    { "a_new_list", "[]", 0 },
    { "llm_int8_skip_modules", "[\"lm_head\"]", 0 },
    { "llm_int8_threshold", "5.0", 0 },
    { "llm_int8_enable_fp32_cpu_offload", "true", 0 },
    { "bnb_4bit_compute_dtype", "\"bfloat16\"", 0 },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    for (guint mode = 0; mode < 2; mode++)
      {
        g_autoptr (GError) error = NULL;
        g_autofree char *text = g_strdup_printf ("{\"quant_method\": \"bitsandbytes\", %s}", modes[mode]);
        g_autoptr (EbbJson) config = parse (text);
        g_autoptr (EbbJson) document = load ("llama3", "config.json");
        EbbConfigSource source = { ebb_architecture_find (document, "config.json", &error), "config.json", document };
        g_autoptr (GString) whole = g_string_new (NULL);
        const gboolean is_refused = (cases[i].modes >> mode & 1) != 0;
        g_autofree char *named =
            g_strdup_printf ("config.json: quantization_config.%s is ",
                             strcmp (cases[i].key, "load_in_8bit") == 0 && mode == 0 && cases[i].modes == 1
                                 ? "load_in_4bit"
                                 : cases[i].key);
        EbbQuantization quantization;

        ebb_json_set (config, cases[i].key, cases[i].value);
        ebb_json_print (config, whole);
        ebb_json_set (document, "quantization_config", whole->str);
        g_assert_cmpint (ebb_config_read_quantization (&source, &quantization, &error), ==, !is_refused);
        if (is_refused && !g_str_has_prefix (error->message, named))
          g_error ("\"%s\" does not begin with \"%s\"", error->message, named);
        else if (!is_refused)
          g_assert_cmpint (quantization, ==, mode == 0 ? EBB_QUANTIZATION_NF4 : EBB_QUANTIZATION_INT8);
      }
}

static void
missing_keys_are_the_usual_ones (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbJson) llama = parse ("{\"model_type\": \"llama\"}");
  g_autoptr (EbbJson) gemma = parse ("{\"model_type\": \"gemma2\", \"head_dim\": 128, \"num_hidden_layers\": 3}");
  g_autoptr (EbbGptConfig) a = read_gpt (llama, NULL, &error);
  g_autoptr (EbbGptConfig) b = read_gpt (gemma, NULL, &error);

  g_assert_no_error (error);
  g_assert_cmpint (a->vocab, ==, 32000);
  g_assert_cmpint (a->hidden, ==, 11008);
  g_assert_cmpfloat (a->rotary.theta, ==, 10000);
  g_assert_false (a->tied);
  g_assert_true (b->tied);
  g_assert_cmpstr (ebb_gpt_config_get_layer_pattern (b), ==, "sfs");
  g_assert_cmpint (b->window, ==, 4096);
  g_assert_cmpfloat (b->attention_scale, ==, 1 / 16.0);
  g_assert_cmpfloat (b->attention_softcap, ==, 50);
  g_assert_cmpfloat (b->logit_softcap, ==, 30);
  g_assert_cmpfloat (b->embedding_scale, ==, 48);
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/model-folder/config/both-forms-are-the-same-model", both_forms_are_the_same_model);
  g_test_add_func ("/model-folder/config/a-written-model-is-read-back", a_written_model_is_read_back);
  g_test_add_func ("/model-folder/config/other-keys-survive-a-change", other_keys_survive_a_change);
  g_test_add_func ("/model-folder/config/a-missing-choice-is-named", a_choice_that_an_architecture_lacks_is_named);
  g_test_add_func ("/model-folder/config/bert-is-read-and-written", bert_is_read_and_written);
  g_test_add_func ("/model-folder/config/dropout-of-attention", attention_has_its_own_dropout);
  g_test_add_func ("/model-folder/config/dropout-of-attention-in-bert", bert_has_a_dropout_of_attention);
  g_test_add_func ("/model-folder/config/refused-by-its-key", what_is_not_there_is_refused_by_its_key);
  g_test_add_func ("/model-folder/config/refused-quantizations",
                   quantizations_that_are_not_there_are_refused_by_their_key);
  g_test_add_func ("/model-folder/config/missing-keys-are-the-usual-ones", missing_keys_are_the_usual_ones);
  return g_test_run ();
}
