/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/fixtures.h"
#include "support/generation.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

/* Generation: the tokens that transformers gives, with a cache and without, in batches and alone; where rows end; what
 * the callback gets; and what is refused. */

static char *
get_folder (const char *row)
{
  return g_test_build_filename (G_TEST_DIST, "fixtures", "models", row, NULL);
}

static EbbModule *
open_model (const char *row)
{
  g_autofree char *folder = get_folder (row);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = ebb_model_open (folder, &error);

  g_assert_no_error (error);
  g_assert_true (ebb_module_to_device (model, test_device (), &error));
  return g_steal_pointer (&model);
}

static EbbGeneration *
generate (EbbModule *model, EbbTensor **prompts, gsize n, EbbGenerationOptions *options)
{
  g_autoptr (GError) error = NULL;
  EbbGeneration *generation = ebb_model_generate (model, prompts, n, options, NULL, NULL, NULL, &error);

  g_assert_no_error (error);
  return generation;
}

/* The row's tokens are those expected, up to the stop token that ends it; the fixture has padding after that. */
static void
check_row (EbbGeneration *generation, guint row, EbbTensor *expected, guint expected_row, EbbGenerationOptions *options)
{
  g_autoptr (EbbTensor) tokens = ebb_generation_get_tokens (generation, row);
  const gint64 n = ebb_tensor_get_dim (expected, 1);
  const gint64 *have = test_read (tokens), *should = (const gint64 *) test_read (expected) + expected_row * n;
  gint64 i;
  gsize n_stops;
  const gint64 *stops = ebb_generation_options_get_stop_tokens (options, &n_stops);
  gboolean is_over = FALSE;

  for (i = 0; i < n && !is_over; i++)
    {
      g_assert_cmpint (have[i], ==, should[i]);
      is_over = n_stops > 0 && should[i] == stops[0];
    }
  g_assert_cmpint (ebb_tensor_get_dim (tokens, 0), ==, i);
  g_assert_cmpint (ebb_generation_get_end (generation, row), ==,
                   is_over ? EBB_GENERATION_END_TOKEN : EBB_GENERATION_END_LENGTH);
}

/* The two prompts of a fixture, which are padded on the left there. */
static void
check_fixture (const char *row, gboolean is_fixed)
{
  g_autofree char *file = g_strdup_printf ("models/%s/expected.safetensors", row);
  g_autofree char *folder = get_folder (row);
  g_autoptr (EbbArgs) fixture = test_load_fixture (file);
  g_autoptr (EbbTensor) padded = test_fixture_tensor (fixture, "prompts");
  g_autoptr (EbbTensor) starts = test_fixture_tensor (fixture, "starts");
  g_autoptr (EbbTensor) expected = test_fixture_tensor (fixture, "generated");
  g_autoptr (EbbModule) model = open_model (row);
  EbbTensor *prompts[2];

  /* As the fixture was computed: in bf16 rounding may decide between two tokens. */
  g_assert_true (ebb_module_to_dtype (model, EBB_DTYPE_F32, NULL));
  for (int i = 0; i < 2; i++)
    {
      const gint64 start = ((const gint64 *) test_read (starts))[i];
      g_autoptr (EbbTensor) line = ebb_select (padded, 0, i, NULL);

      prompts[i] = ebb_narrow (line, 0, start, ebb_tensor_get_dim (padded, 1) - start, NULL);
    }
  for (int cached = !is_fixed; cached < 2; cached++)
    {
      g_autoptr (EbbGenerationOptions) options = ebb_generation_options_open (folder, NULL);
      g_autoptr (EbbGeneration) both = NULL;

      g_object_set (options, "max-tokens", (int) ebb_tensor_get_dim (expected, 1), "use-cache", cached, NULL);
      both = generate (model, prompts, 2, options);
      g_assert_cmpuint (ebb_generation_get_cache_bytes (both) > 0, ==, cached);
      for (guint i = 0; i < 2; i++)
        {
          g_autoptr (EbbGeneration) alone = is_fixed ? generate (model, &prompts[i], 1, options) : NULL;

          check_row (both, i, expected, i, options);
          if (alone != NULL)
            check_row (alone, 0, expected, i, options);
        }
    }
  for (int i = 0; i < 2; i++)
    ebb_tensor_unref (prompts[i]);
}

static void
greedy_text_is_that_of_transformers (void)
{
  static const char *const rows[] = { "gpt2", "llama2", "llama3", "llama-linear", "llama-dynamic", "llama-yarn",
                                      "mistral", "qwen2", "qwen2-yarn", "qwen3", "gemma2", "gemma3", "phi3",
                                      "phi3-longrope", "smollm" };

  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    {
      g_test_message ("%s", rows[i]);
      /* Dynamic frequencies depend on the length of the longest row, and keys that are in the cache keep theirs: in
       * transformers too a row has another text alone or without a cache. */
      check_fixture (rows[i], strcmp (rows[i], "llama-dynamic") != 0);
    }
}

/* -- a small model ------------------------------------------------------------------------------------------------- */

#define VOCAB 128
#define CONTEXT 24

/* With weights that matter, and a token for each ASCII character. */
static EbbModule *
small_gpt (void)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (GError) error = NULL;
  EbbModule *gpt;
  guint n;
  EbbTensor **parameters;

  config->vocab = VOCAB;
  config->context = CONTEXT;
  config->width = 24;
  config->heads = 2;
  config->layers = 2;
  ebb_manual_seed (3);
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  parameters = ebb_module_get_parameters (gpt, TRUE, &n);
  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < n; i++)
    {
      g_assert_true (ebb_tensor_fill_normal (parameters[i], 0, 0.4, NULL, NULL));
      ebb_tensor_unref (parameters[i]);
    }
  ebb_pop_grad_enabled ();
  g_free (parameters);
  return gpt;
}

static void
check_same (EbbGeneration *a, guint row_a, EbbGeneration *b, guint row_b, gint64 n)
{
  g_autoptr (EbbTensor) x = ebb_generation_get_tokens (a, row_a);
  g_autoptr (EbbTensor) y = ebb_generation_get_tokens (b, row_b);

  g_assert_cmpint (ebb_tensor_get_dim (x, 0), >=, n);
  g_assert_cmpint (ebb_tensor_get_dim (y, 0), >=, n);
  g_assert_cmpint (memcmp (test_read (x), test_read (y), sizeof (gint64) * (gsize) n), ==, 0);
}

/* Rows end one after another: the rest goes on as if nothing had happened, over the end of the buffers and of the
 * positions too. */
static void
rows_end_each_at_its_place (void)
{
  g_autoptr (EbbModule) gpt = small_gpt ();
  g_autoptr (EbbTensor) a = test_prompt (5, -1), b = test_prompt (9, 1, 4, 80, 2, 11, -1), c = test_prompt (7, 7, -1);
  EbbTensor *prompts[] = { a, b, c };
  g_autoptr (EbbGenerationOptions) options = g_object_new (EBB_TYPE_GENERATION_OPTIONS, "max-tokens", 100, NULL);
  g_autoptr (EbbGeneration) all = generate (gpt, prompts, 3, options);
  gsize n;

  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbGeneration) alone = generate (gpt, &prompts[i], 1, options);
      g_autoptr (EbbTensor) tokens = ebb_generation_get_tokens (all, i);
      const gint64 left = CONTEXT + 1 - ebb_tensor_get_dim (prompts[i], 0);

      g_assert_cmpint (ebb_tensor_get_dim (tokens, 0), ==, left);
      g_assert_cmpint (ebb_generation_get_end (all, i), ==, EBB_GENERATION_END_CONTEXT);
      check_same (all, i, alone, 0, left);
    }
  for (guint i = 0; i < 2; i++) /* the second token of row 1, and the fourth of row 0 */
    {
      g_autoptr (EbbTensor) tokens = ebb_generation_get_tokens (all, 1 - i);

      ebb_generation_options_add_stop_token (options, ((const gint64 *) test_read (tokens))[2 * i + 1]);
    }
  g_assert_nonnull (ebb_generation_options_get_stop_tokens (options, &n));
  g_assert_cmpuint (n, >=, 1);
  {
    g_autoptr (EbbGeneration) stopped = generate (gpt, prompts, 3, options);

    for (guint i = 0; i < 3; i++)
      {
        g_autoptr (EbbTensor) tokens = ebb_generation_get_tokens (stopped, i);
        const gint64 length = ebb_tensor_get_dim (tokens, 0);

        check_same (stopped, i, all, i, length);
        if (i < 2)
          {
            g_assert_cmpint (ebb_generation_get_end (stopped, i), ==, EBB_GENERATION_END_TOKEN);
            g_assert_cmpint (length, <=, i == 1 ? 2 : 4);
          }
      }
  }
}

/* With slides the model sees the end of a row that is longer than its context. */
static void
rows_may_slide (void)
{
  g_autoptr (EbbModule) gpt = small_gpt ();
  g_autoptr (EbbTensor) start = test_tokens (2, VOCAB, 2, CONTEXT + 4, -1);
  g_autoptr (EbbTensor) row = test_generate (gpt, start, 3, 0, 0, 1, NULL, NULL);
  g_autoptr (EbbTensor) moved = test_move (start);
  g_autoptr (EbbTensor) end = ebb_narrow (moved, 1, 4, CONTEXT, NULL);
  g_autoptr (EbbTensor) short_row = test_generate (gpt, end, 1, 0, 0, 1, NULL, NULL);
  g_autoptr (EbbTensor) got = ebb_select (row, 1, CONTEXT + 4, NULL);
  g_autoptr (EbbTensor) expected = ebb_select (short_row, 1, CONTEXT, NULL);

  test_assert_near (got, expected, 0);
}

/* The tokens drawn for a row depend neither on the other rows nor on the cache. */
static void
draws_of_a_row_are_its_own (void)
{
  g_autoptr (EbbModule) gpt = small_gpt ();
  g_autoptr (EbbTensor) a = test_prompt (5, 6, -1), b = test_prompt (9, -1);
  EbbTensor *prompts[] = { a, b };
  g_autoptr (EbbGeneration) first = NULL;

  for (int i = 0; i < 3; i++)
    {
      g_autoptr (EbbGenerator) generator = ebb_generator_new (5);
      g_autoptr (EbbGenerationOptions) options =
          g_object_new (EBB_TYPE_GENERATION_OPTIONS, "max-tokens", 12, "temperature", 1.0, "generator", generator,
                        "use-cache", i < 2, "top-k", 40, "top-p", 0.95, "repetition-penalty", 1.1, NULL);
      g_autoptr (EbbGeneration) generation = NULL;

      generation = generate (gpt, prompts, i == 1 ? 1 : 2, options);
      if (first == NULL)
        first = g_object_ref (generation);
      if (i != 1) /* one row draws other numbers than two do */
        check_same (first, 0, generation, 0, 12);
    }
}

/* -- text ---------------------------------------------------------------------------------------------------------- */

typedef struct
{
  GString *texts[2];
  guint n_tokens[2];
  guint stops_after;
} Seen;

static gboolean
look (guint row, gint64 token, const char *text, gpointer user_data)
{
  Seen *seen = user_data;

  g_assert_cmpint (token, <, VOCAB);
  g_string_append (seen->texts[row], text);
  seen->n_tokens[row]++;
  return seen->n_tokens[0] != seen->stops_after;
}

static void
text_comes_with_its_tokens (void)
{
  g_autoptr (EbbModule) gpt = small_gpt ();
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (EbbTensor) a = test_prompt ('H', 'i', -1), b = test_prompt ('x', -1);
  EbbTensor *prompts[] = { a, b };
  g_autoptr (EbbGenerationOptions) options =
      g_object_new (EBB_TYPE_GENERATION_OPTIONS, "max-tokens", 12, "tokenizer", tokenizer, NULL);
  g_autoptr (EbbGeneration) plain = generate (gpt, prompts, 2, options);
  const char *text = ebb_generation_get_text (plain, 0);

  g_assert_cmpuint (strlen (text), ==, 12);
  for (guint length = 1; length <= 5; length += 2)
    {
      g_autofree char *stop = g_strndup (text + 4, length);
      const char *strings[] = { "never there", stop, NULL };
      Seen seen = { .texts = { g_string_new (NULL), g_string_new (NULL) } };
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbGeneration) generation = NULL;
      const char *cut;

      g_object_set (options, "stop-strings", strings, NULL);
      generation = ebb_model_generate (gpt, prompts, 2, options, look, &seen, NULL, &error);
      g_assert_no_error (error);
      cut = ebb_generation_get_text (generation, 0);
      g_assert_cmpint (ebb_generation_get_end (generation, 0), ==, EBB_GENERATION_END_STRING);
      g_assert_true (g_str_has_prefix (text, cut));
      g_assert_cmpuint (strlen (cut), ==, strstr (text, stop) - text);
      for (guint i = 0; i < 2; i++)
        {
          g_assert_cmpstr (seen.texts[i]->str, ==, ebb_generation_get_text (generation, i));
          g_string_free (seen.texts[i], TRUE);
        }
    }
}

/* A decoder for the tokens of a tokenizer's fixture. */
static EbbModule *
gpt_for (EbbTokenizer *tokenizer)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (GError) error = NULL;
  EbbModule *gpt;

  config->vocab = (int) ebb_tokenizer_get_vocab_size (tokenizer);
  config->width = 16;
  config->heads = 2;
  config->layers = 1;
  ebb_manual_seed (4);
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_module_to_device (gpt, test_device (), &error));
  return gpt;
}

/* A text's tokens with the one that begins texts before them, as Llama 2's tokenizer frames it. */
static EbbTensor *
begin_text (EbbTokenizer *tokenizer, const char *text)
{
  gsize n;
  g_autofree gint64 *plain = ebb_tokenizer_encode_text (tokenizer, text, &n, NULL);
  g_autofree gint64 *framed = g_new (gint64, n + 1);
  const gint64 size = (gint64) n + 1;

  framed[0] = ebb_tokenizer_get_special_token (tokenizer, EBB_SPECIAL_TOKEN_BOS);
  g_assert_cmpint (framed[0], >=, 0);
  memcpy (framed + 1, plain, sizeof (gint64) * n);
  return ebb_tensor_new_from_ints (framed, (gsize) size, &size, 1, NULL);
}

static gboolean
collect (guint row, gint64 token, const char *text, gpointer user_data)
{
  g_string_append (((GString **) user_data)[row], text);
  return TRUE;
}

static void
texts_are_prompts_with_their_special_tokens (void)
{
  static const char *const texts[] = { "It was", "Once upon a time", NULL };
  g_autofree char *folder = g_test_build_filename (G_TEST_DIST, "fixtures", "tokenizers", "llama2", NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTokenizer) tokenizer = ebb_tokenizer_open (folder, &error);
  g_autoptr (EbbModule) gpt = gpt_for (tokenizer);
  g_autoptr (EbbTensor) a = begin_text (tokenizer, texts[0]), b = begin_text (tokenizer, texts[1]);
  EbbTensor *prompts[] = { a, b };
  g_autoptr (EbbGenerationOptions) options =
      g_object_new (EBB_TYPE_GENERATION_OPTIONS, "max-tokens", 8, "tokenizer", tokenizer, NULL);
  g_autoptr (EbbGeneration) expected = generate (gpt, prompts, 2, options);
  GString *seen[] = { g_string_new (NULL), g_string_new (NULL) };
  g_autoptr (EbbGeneration) generation = ebb_model_generate_texts (gpt, texts, options, collect, seen, NULL, &error);

  g_assert_no_error (error);
  g_assert_cmpuint (ebb_generation_get_n_rows (generation), ==, 2);
  for (guint i = 0; i < 2; i++)
    {
      check_same (generation, i, expected, i, 8);
      g_assert_cmpstr (ebb_generation_get_text (generation, i), ==, ebb_generation_get_text (expected, i));
      g_assert_cmpstr (seen[i]->str, ==, ebb_generation_get_text (expected, i));
      g_string_free (seen[i], TRUE);
    }
}

static void
bad_texts_are_named (void)
{
  static const char *const texts[] = { "a", "", NULL };
  g_autoptr (EbbModule) gpt = small_gpt ();
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (EbbGenerationOptions) bare = ebb_generation_options_new ();
  g_autoptr (EbbGenerationOptions) options =
      g_object_new (EBB_TYPE_GENERATION_OPTIONS, "max-tokens", 8, "tokenizer", tokenizer, NULL);
  const struct
  {
    const char *const *texts;
    EbbGenerationOptions *options;
    const char *says;
  } cases[] = { { texts, NULL, "options with a tokenizer" },
                { texts, bare, "options with a tokenizer" },
                { texts, options, "prompt 1 is empty" },
                { texts + 2, options, "prompt" },
                { NULL, options, "prompt" } };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;

      g_assert_null (ebb_model_generate_texts (gpt, cases[i].texts, cases[i].options, NULL, NULL, NULL, &error));
      g_assert_nonnull (error);
      g_assert_nonnull (strstr (error->message, cases[i].says));
      g_assert_null (strchr (error->message, '\n'));
    }
}

static void
the_callback_may_stop (void)
{
  g_autoptr (EbbModule) gpt = small_gpt ();
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (EbbTensor) a = test_prompt ('H', 'i', -1), b = test_prompt ('x', -1);
  EbbTensor *prompts[] = { a, b };
  g_autoptr (EbbGenerationOptions) options =
      g_object_new (EBB_TYPE_GENERATION_OPTIONS, "max-tokens", 12, "tokenizer", tokenizer, NULL);
  Seen seen = { .texts = { g_string_new (NULL), g_string_new (NULL) }, .stops_after = 3 };
  g_autoptr (EbbGeneration) generation = ebb_model_generate (gpt, prompts, 2, options, look, &seen, NULL, NULL);

  g_assert_cmpuint (seen.n_tokens[0], ==, 3);
  g_assert_cmpuint (seen.n_tokens[1], ==, 2);
  for (guint i = 0; i < 2; i++)
    {
      g_assert_cmpint (ebb_generation_get_end (generation, i), ==, EBB_GENERATION_END_STOPPED);
      g_assert_cmpstr (seen.texts[i]->str, ==, ebb_generation_get_text (generation, i));
      g_string_free (seen.texts[i], TRUE);
    }
}

/* -- options of a folder ------------------------------------------------------------------------------------------- */

static EbbGenerationOptions *
open_options (const char *name, const char *json, GError **error)
{
  g_autofree char *folder = g_dir_make_tmp ("ebb-generate-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, name, NULL);
  EbbGenerationOptions *options;

  g_assert_true (g_file_set_contents (path, json, -1, NULL));
  options = ebb_generation_options_open (folder, error);
  g_remove (path);
  g_rmdir (folder);
  return options;
}

static void
folders_have_defaults (void)
{
  static const struct
  {
    const char *name, *json;
    double temperature, top_p;
    int top_k, n_stops;
  } good[] = {
    { "generation_config.json", "{\"eos_token_id\": [4, 5, 4]}", 0, 1, 0, 2 },
    { "generation_config.json", "{\"do_sample\": true, \"temperature\": 0.6, \"top_p\": 0.9, \"eos_token_id\": 2}", 0.6,
      0.9, 50, 1 },
    { "generation_config.json", "{\"do_sample\": true, \"top_k\": 20, \"nonsense\": []}", 1, 1, 20, 0 },
    { "generation_config.json", "{\"do_sample\": false, \"temperature\": 0.6, \"top_k\": 3}", 0, 1, 0, 0 },
    { "config.json", "{\"eos_token_id\": 7}", 0, 1, 0, 1 },
    { "other.json", "{}", 0, 1, 0, 0 },
  };
  static const struct
  {
    const char *json, *says;
  } bad[] = {
    { "[]", "it must be an object" },
    { "{", "generation_config.json" },
    { "{\"do_sample\": 1}", "\"do_sample\" must be true or false" },
    { "{\"do_sample\": true, \"temperature\": \"hot\"}", "\"temperature\" must be a number" },
    { "{\"do_sample\": true, \"temperature\": -1}", "generation_config.json: generate: temperature is -1" },
    { "{\"do_sample\": true, \"top_k\": 2.5}", "\"top_k\" must be an integer" },
    { "{\"eos_token_id\": \"</s>\"}", "\"eos_token_id\" must be a token or a list of tokens" },
    { "{\"eos_token_id\": [1, -2]}", "\"eos_token_id\" must be" },
  };

  for (guint i = 0; i < G_N_ELEMENTS (good); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbGenerationOptions) options = open_options (good[i].name, good[i].json, &error);
      gsize n_stops;

      g_assert_no_error (error);
      ebb_generation_options_get_stop_tokens (options, &n_stops);
      g_assert_cmpuint (n_stops, ==, good[i].n_stops);
      g_assert_cmpfloat (test_get_double (options, "temperature"), ==, good[i].temperature);
      g_assert_cmpfloat (test_get_double (options, "top-p"), ==, good[i].top_p);
      g_assert_cmpfloat (test_get_double (options, "top-k"), ==, good[i].top_k);
    }
  for (guint i = 0; i < G_N_ELEMENTS (bad); i++)
    {
      g_autoptr (GError) error = NULL;

      g_assert_null (open_options ("generation_config.json", bad[i].json, &error));
      if (strstr (error->message, bad[i].says) == NULL)
        g_error ("\"%s\" does not say \"%s\"", error->message, bad[i].says);
    }
}

/* Keys of which each changes the text are taken, and the others are named where a text is generated. */
static void
keys_of_folders_count_or_are_named (void)
{
  static const char all[] =
      "{\"min_new_tokens\": 3, \"no_repeat_ngram_size\": 2, \"suppress_tokens\": [7, 8], \"min_length\": 30, "
      "\"begin_suppress_tokens\": [9], \"forced_bos_token_id\": 4, \"forced_eos_token_id\": [5, 6], \"stop_strings\": "
      "\"END\", \"eos_token_id\": 2, \"num_beams\": 4, \"bad_words_ids\": [[1, 2]], \"typical_p\": 1.0, "
      "\"max_length\": 50, \"sequence_bias\": null, \"early_stopping\": true, \"pad_token_id\": 0}";
  static const struct
  {
    const char *json, *says;
  } bad[] = {
    { "{\"min_new_tokens\": -1}", "generate: min-tokens is -1, it must be 0 or more" },
    { "{\"min_length\": \"3\"}", "\"min_length\" must be an integer" },
    { "{\"no_repeat_ngram_size\": -2}", "generate: no-repeat-ngram-size is -2" },
    { "{\"suppress_tokens\": [\"a\"]}", "\"suppress_tokens\" must be a token or a list of tokens" },
    { "{\"begin_suppress_tokens\": [-1]}", "\"begin_suppress_tokens\" must be a token or a list" },
    { "{\"forced_bos_token_id\": [1, 2]}", "\"forced_bos_token_id\" must be one token" },
    { "{\"forced_eos_token_id\": [1, \"a\"]}", "\"forced_eos_token_id\" must be a token or a list of tokens" },
    { "{\"stop_strings\": [1]}", "\"stop_strings\" must be a text or a list of texts" },
    { "{\"stop_strings\": \"\"}", "generate: stop string 0 is empty" },
  };
  const char *note = "*generation_config.json: not known, so without effect: num_beams (4), bad_words_ids, max_length "
                     "(50), early_stopping (true)";
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbGenerationOptions) options = NULL;
  const gint64 *tokens;
  gsize n;

  g_test_expect_message ("Ebb", G_LOG_LEVEL_MESSAGE, note);
  options = open_options ("generation_config.json", all, &error);
  g_assert_no_error (error);
  g_test_assert_expected_messages ();
  g_assert_cmpfloat (test_get_double (options, "min-tokens"), ==, 3);
  g_assert_cmpfloat (test_get_double (options, "min-length"), ==, 0); /* min_new_tokens comes first */
  g_assert_cmpfloat (test_get_double (options, "no-repeat-ngram-size"), ==, 2);
  g_assert_cmpfloat (test_get_double (options, "forced-bos-token"), ==, 4);
  tokens = ebb_generation_options_get_forced_eos_tokens (options, &n);
  g_assert_cmpmem (tokens, n * sizeof (gint64), ((const gint64[]){ 5, 6 }), 2 * sizeof (gint64));
  tokens = ebb_generation_options_get_suppress_tokens (options, &n);
  g_assert_cmpmem (tokens, n * sizeof (gint64), ((const gint64[]){ 7, 8 }), 2 * sizeof (gint64));
  tokens = ebb_generation_options_get_begin_suppress_tokens (options, &n);
  g_assert_cmpmem (tokens, n * sizeof (gint64), ((const gint64[]){ 9 }), sizeof (gint64));
  g_assert_false (ebb_generation_options_check (options, &error)); /* there is no tokenizer yet */
  g_assert_nonnull (strstr (error->message, "stop string 0 needs the tokenizer"));
  for (guint i = 0; i < G_N_ELEMENTS (bad); i++)
    {
      g_autoptr (GError) failure = NULL;

      g_assert_null (open_options ("generation_config.json", bad[i].json, &failure));
      if (strstr (failure->message, bad[i].says) == NULL)
        g_error ("\"%s\" does not say \"%s\"", failure->message, bad[i].says);
    }
}

/* A model from a folder ends at its token; options say otherwise. */
static void
models_have_their_folders_defaults (void)
{
  static const char *const files[] = { "config.json", "model.safetensors", "generation_config.json" };
  g_autofree char *from = get_folder ("smollm"), *folder = g_dir_make_tmp ("ebb-generate-XXXXXX", NULL);
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbModule) damaged = NULL;
  g_autoptr (EbbTensor) prompt = test_prompt (5, 9, -1);
  g_autoptr (EbbGenerationOptions) options = g_object_new (EBB_TYPE_GENERATION_OPTIONS, "max-tokens", 4, NULL);
  g_autoptr (EbbGeneration) plain = NULL;
  g_autoptr (EbbGeneration) ended = NULL;
  g_autoptr (EbbGeneration) again = NULL;
  g_autoptr (EbbGeneration) whole = NULL;
  g_autoptr (EbbGeneration) endless = NULL;
  g_autoptr (EbbGenerationOptions) of_model = NULL;
  g_autoptr (GError) failure = NULL;
  int most;
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree char *json = NULL, *last = g_build_filename (folder, files[2], NULL);

  for (guint i = 0; i < 2; i++)
    {
      g_autofree char *source = g_build_filename (from, files[i], NULL),
                      *path = g_build_filename (folder, files[i], NULL);
      g_autofree char *data = NULL;
      gsize size;

      g_assert_true (g_file_get_contents (source, &data, &size, NULL));
      g_assert_true (g_file_set_contents (path, data, (gssize) size, NULL));
    }
  g_assert_true (g_file_set_contents (last, "{}", -1, NULL));
  model = ebb_model_open (folder, &error);
  g_assert_no_error (error);
  ebb_generation_options_set_stop_tokens (options, NULL, 0);
  plain = generate (model, &prompt, 1, options);
  tokens = ebb_generation_get_tokens (plain, 0);
  g_clear_object (&model);
  json = g_strdup_printf ("{\"eos_token_id\": %d, \"max_new_tokens\": 3, \"nonsense\": 7}",
                          (int) ((const gint64 *) test_read (tokens))[0]);
  g_assert_true (g_file_set_contents (last, json, -1, NULL));
  model = ebb_model_open (folder, &error);
  g_assert_no_error (error);
  g_test_expect_message ("Ebb", G_LOG_LEVEL_MESSAGE, "*generation_config.json: *effect: nonsense (7)"); /* once */
  ended = generate (model, &prompt, 1, NULL);
  g_test_assert_expected_messages ();
  g_assert_cmpint (ebb_generation_get_end (ended, 0), ==, EBB_GENERATION_END_TOKEN);
  of_model = ebb_generation_options_new_for_model (model, &error);
  g_assert_no_error (error);
  again = generate (model, &prompt, 1, of_model);
  g_assert_cmpint (ebb_generation_get_end (again, 0), ==, EBB_GENERATION_END_TOKEN);
  g_object_get (of_model, "max-tokens", &most, NULL);
  g_assert_cmpint (most, ==, 3);
  whole = generate (model, &prompt, 1, options);
  check_same (whole, 0, plain, 0, 4);
  g_clear_object (&options);
  options = ebb_generation_options_new ();
  ebb_generation_options_set_stop_tokens (options, NULL, 0);
  endless = generate (model, &prompt, 1, options);
  g_clear_pointer (&tokens, ebb_tensor_unref);
  tokens = ebb_generation_get_tokens (endless, 0);
  g_assert_cmpint (ebb_tensor_get_dim (tokens, 0), ==, 3);
  g_assert_true (g_file_set_contents (last, "[]", -1, NULL));
  damaged = ebb_model_open (folder, &error);
  g_assert_no_error (error);
  g_assert_null (ebb_generation_options_new_for_model (damaged, &failure));
  g_assert_nonnull (strstr (failure->message, "generation_config.json: it must be an object"));
  g_assert_null (ebb_model_generate (damaged, &prompt, 1, NULL, NULL, NULL, NULL, &error));
  g_assert_nonnull (strstr (error->message, "generation_config.json: it must be an object"));
  for (guint i = 0; i < G_N_ELEMENTS (files); i++)
    {
      g_autofree char *path = g_build_filename (folder, files[i], NULL);

      g_remove (path);
    }
  g_rmdir (folder);
}

/* -- bad input ----------------------------------------------------------------------------------------------------- */

static void
check_refused (EbbModule *model, EbbTensor **prompts, gsize n, EbbGenerationOptions *options, const char *says)
{
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_model_generate (model, prompts, n, options, NULL, NULL, NULL, &error));
  g_assert_nonnull (error);
  if (strstr (error->message, says) == NULL)
    g_error ("\"%s\" does not say \"%s\"", error->message, says);
  g_assert_null (strchr (error->message, '\n'));
  g_assert_true (ebb_module_get_training (model));
  g_assert_true (ebb_is_grad_enabled ());
}

static void
bad_prompts_are_named (void)
{
  g_autoptr (EbbModule) gpt = small_gpt ();
  g_autoptr (EbbModule) other = ebb_relu_new ();
  g_autoptr (EbbTensor) good = test_prompt (1, -1);
  g_autoptr (EbbTensor) far = test_prompt (1, VOCAB, -1);
  const gint64 none = 0, negative[] = { 1, 2, -7 }, three = 3;
  g_autoptr (EbbTensor) empty = ebb_zeros (&none, 1, EBB_DTYPE_I64, NULL, NULL);
  g_autoptr (EbbTensor) below = ebb_tensor_new_from_ints (negative, 3, &three, 1, NULL);
  g_autoptr (EbbTensor) table = test_tokens (1, VOCAB, 2, 2, -1);
  g_autoptr (EbbTensor) floats = test_randn (1, (gint64) 3, (gint64) -1);
  g_autoptr (EbbTensor) row = test_tokens (1, VOCAB, 1, CONTEXT + 1, -1);
  g_autoptr (EbbTensor) longer = ebb_select (row, 0, 0, NULL);
  const struct
  {
    EbbTensor *prompt;
    const char *says;
  } cases[] = { { empty, "prompt 1 is empty" },
                { far, "token 128 at 1 of prompt 1; it must be in [0, 128)" },
                { below, "token -7 at 2 of prompt 1" },
                { table, "prompt 1 is [2, 2]; it must be [n]" },
                { floats, "prompt 1 is of f32" },
                { longer, "prompt 1 has 25 tokens, more than the model's 24 positions" },
                { NULL, "prompt 1 is missing" } };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      EbbTensor *prompts[] = { good, cases[i].prompt };

      check_refused (gpt, prompts, 2, NULL, cases[i].says);
    }
  check_refused (gpt, NULL, 0, NULL, "there is no prompt");
  check_refused (other, &good, 1, NULL, "can't continue text");
}

static void
logits_that_are_no_numbers_are_named (void)
{
  g_autoptr (EbbModule) gpt = small_gpt ();
  g_autoptr (EbbTensor) prompt = test_prompt (1, -1);
  guint n;
  EbbTensor **parameters = ebb_module_get_parameters (gpt, TRUE, &n);

  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < n; i++)
    {
      g_assert_true (ebb_tensor_fill (parameters[i], NAN, NULL));
      ebb_tensor_unref (parameters[i]);
    }
  ebb_pop_grad_enabled ();
  g_free (parameters);
  check_refused (gpt, &prompt, 1, NULL, "the logits of row 0 are not numbers");
}

static void
bad_options_are_named (void)
{
  static const struct
  {
    const char *name;
    double value;
    const char *says;
  } cases[] = { { "max-tokens", -1, "max-tokens is -1" },
                { "temperature", -0.5, "temperature is -0.5, it must be 0" },
                { "top-k", -3, "top-k is -3" },
                { "top-p", 1.5, "top-p is 1.5, it must be from 0 to 1" },
                { "min-p", -1, "min-p is -1" },
                { "repetition-penalty", 0, "repetition-penalty is 0, it must be above 0" } };
  const char *empty[] = { "", NULL }, *plain[] = { "x", NULL }, *broken[] = { "\xff", NULL };
  g_autoptr (EbbModule) gpt = small_gpt ();
  g_autoptr (EbbTensor) prompt = test_prompt (1, -1);
  g_autoptr (EbbGenerationOptions) options = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      const gboolean is_int = cases[i].name[0] == 'm' ? cases[i].name[1] == 'a' : strcmp (cases[i].name, "top-k") == 0;

      g_clear_object (&options);
      options = ebb_generation_options_new ();
      if (is_int)
        g_object_set (options, cases[i].name, (int) cases[i].value, NULL);
      else
        g_object_set (options, cases[i].name, cases[i].value, NULL);
      check_refused (gpt, &prompt, 1, options, cases[i].says);
    }
  g_clear_object (&options);
  options = ebb_generation_options_new ();
  g_object_set (options, "stop-strings", empty, NULL);
  check_refused (gpt, &prompt, 1, options, "stop string 0 is empty");
  g_object_set (options, "stop-strings", broken, NULL);
  check_refused (gpt, &prompt, 1, options, "stop string 0 is not UTF-8");
  g_object_set (options, "stop-strings", plain, NULL);
  check_refused (gpt, &prompt, 1, options, "stop string 0 needs the tokenizer");
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/generate/transformers", greedy_text_is_that_of_transformers);
  g_test_add_func ("/generate/ends", rows_end_each_at_its_place);
  g_test_add_func ("/generate/slides", rows_may_slide);
  g_test_add_func ("/generate/draws", draws_of_a_row_are_its_own);
  g_test_add_func ("/generate/text", text_comes_with_its_tokens);
  g_test_add_func ("/generate/texts", texts_are_prompts_with_their_special_tokens);
  g_test_add_func ("/generate/bad-texts", bad_texts_are_named);
  g_test_add_func ("/generate/callback", the_callback_may_stop);
  g_test_add_func ("/generate/folders", folders_have_defaults);
  g_test_add_func ("/generate/folders-keys", keys_of_folders_count_or_are_named);
  g_test_add_func ("/generate/bad-prompts", bad_prompts_are_named);
  g_test_add_func ("/generate/models-folders", models_have_their_folders_defaults);
  g_test_add_func ("/generate/not-numbers", logits_that_are_no_numbers_are_named);
  g_test_add_func ("/generate/bad-options", bad_options_are_named);
  return g_test_run ();
}
