/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "nn/files/gguf-private.h"
#include "nn/files/q8-private.h"
#include "nn/models/folder/model-private.h"

#include "support/decoders.h"
#include "support/fixtures.h"
#include "support/gguf-files.h"
#include "support/model-folders.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

/* Models as GGUF files. Those in fixtures/gguf were written by the Python package `gguf`, with its names and blocks. */

static char *
get_fixture (const char *row)
{
  g_autofree char *name = g_strconcat (row, EBB_GGUF_SUFFIX, NULL);

  return g_test_build_filename (G_TEST_DIST, "fixtures", "gguf", name, NULL);
}

static EbbModule *
open_as (const char *path,
         int dtype)
{
  g_autoptr (GError) error = NULL;
  EbbModule *model = ebb_model_open_full (path, dtype, &error);

  g_assert_no_error (error);
  return model;
}

static void
save_as (EbbModule *model,
         const char *path,
         int dtype)
{
  g_autoptr (GError) error = NULL;

  ebb_model_save_full (model, path, dtype, 0, &error);
  g_assert_no_error (error);
}

static void
expect_messages (guint n)
{
  for (guint i = 0; i < n; i++)
    g_test_expect_message ("Ebb", G_LOG_LEVEL_MESSAGE, "*GGUF*");
}

/* The logits of the row's fixture tokens. */
static EbbTensor *
compute (EbbModule *model,
         const char *row)
{
  g_autofree char *name = g_build_filename ("models", row, "expected.safetensors", NULL);
  g_autoptr (EbbArgs) fixture = test_load_fixture (name);
  g_autoptr (EbbTensor) all = test_fixture_tensor (fixture, "tokens");
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) computed = NULL;
  g_autoptr (GError) error = NULL;
  EbbTensor *logits;

  tokens = ebb_select (all, 0, 0, &error);
  g_assert_no_error (error);
  computed = ebb_module_call1 (model, tokens, &error);
  logits = ebb_cast (computed, EBB_DTYPE_F32, &error);
  g_assert_no_error (error);
  return logits;
}

static void
assert_same_logits (EbbModule *a,
                    EbbModule *b,
                    const char *row,
                    double tolerance)
{
  g_autoptr (EbbTensor) x = compute (a, row);
  g_autoptr (EbbTensor) y = compute (b, row);

  g_assert_cmpfloat (test_relative_difference (x, y), <=, tolerance);
}

/* -- files of the Python package ----------------------------------------------------------------------------------- */

static const struct
{
  const char *row;
  double tolerance; /* of logits */
} rows[] = {
  { "gpt2", 0 },
  { "llama2", 2e-3 },
  { "llama3", 0 },
  { "qwen3", 0 },
  { "smollm", 0 },
  { "phi3-longrope", 3e-2 },
};

static void
a_foreign_file_is_the_same_model (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    {
      g_autofree char *path = get_fixture (rows[i].row);
      g_autoptr (EbbModule) folder = test_model_open_fixture (rows[i].row);
      g_autoptr (EbbModule) file = NULL;

      if (rows[i].tolerance > 0)
        g_test_expect_message ("Ebb", G_LOG_LEVEL_MESSAGE, "*converted to f32*");
      file = open_as (path, EBB_MODEL_KEEP_DTYPE);
      g_test_assert_expected_messages ();
      if (rows[i].tolerance == 0)
        test_assert_same_weights (folder, file);
      assert_same_logits (folder, file, rows[i].row, rows[i].tolerance);
    }
}

/* Every value of @b is in @a. */
static void
assert_has_values (const EbbGguf *a,
                   const EbbGguf *b)
{
  for (guint i = 0; i < b->values->len; i++)
    {
      const EbbGgufValue *value = &g_array_index (b->values, EbbGgufValue, i);
      const EbbGgufValue *found = ebb_gguf_find (a, value->key);
      const gsize begin = value->offset;
      const gsize end = i + 1 < b->values->len ? g_array_index (b->values, EbbGgufValue, i + 1).offset : begin;

      g_test_message ("%s", value->key);
      g_assert_nonnull (found);
      g_assert_cmpint (found->type, ==, value->type);
      g_assert_cmpuint (found->n, ==, value->n);
      /* Up to the next key: its length takes 8 bytes, its name, and its type 4, of an array 16. */
      if (end > begin)
        {
          const EbbGgufValue *next = value + 1;
          const gsize rest = 8 + strlen (next->key) + 4 + (next->is_array ? 12 : 0);

          g_assert_cmpmem (a->header + found->offset, end - begin - rest, b->header + begin, end - begin - rest);
        }
    }
}

static void
a_saved_file_has_the_same_tensors_and_values (void)
{
  static const struct
  {
    const char *row;
    int dtype;
  } saved[] = { { "gpt2", EBB_DTYPE_F32 },  { "llama2", EBB_DTYPE_F16 },        { "llama3", EBB_MODEL_KEEP_DTYPE },
                { "qwen3", EBB_DTYPE_F32 }, { "smollm", EBB_MODEL_KEEP_DTYPE }, { "phi3-longrope", EBB_MODEL_Q8_0 } };

  for (guint i = 0; i < G_N_ELEMENTS (saved); i++)
    {
      g_autofree char *fixture = get_fixture (saved[i].row);
      g_autofree char *path = test_scratch_path ("model.gguf");
      g_autoptr (EbbModule) model = test_model_open_fixture (saved[i].row);
      g_autoptr (EbbGguf) a = NULL;
      g_autoptr (EbbGguf) b = test_gguf_open (fixture);

      expect_messages (1); /* the folder has no tokenizer */
      save_as (model, path, saved[i].dtype);
      g_test_assert_expected_messages ();
      test_gguf_assert_same_tensors (path, fixture);
      a = test_gguf_open (path);
      assert_has_values (a, b);
    }
}

/* Gemma's norms are one more in the file. The fixture's attention scale is one that llama.cpp doesn't have. */
static void
norms_of_gemma_are_shifted (void)
{
  g_autofree char *path = get_fixture ("gemma2");
  g_autofree char *scratch = test_scratch_path ("gemma.gguf");
  g_autoptr (EbbModule) folder = test_model_open_fixture ("gemma2");
  g_autoptr (EbbModule) file = open_as (path, EBB_MODEL_KEEP_DTYPE);
  g_autoptr (EbbTensor) a = ebb_module_get_parameter (folder, "norm.weight");
  g_autoptr (EbbTensor) b = ebb_module_get_parameter (file, "norm.weight");
  g_autoptr (GError) error = NULL;

  g_assert_cmpfloat (test_relative_difference (a, b), <, 1e-6);
  g_assert_false (ebb_model_save (folder, scratch, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);
  g_assert_nonnull (strstr (error->message, "attention scale"));
  g_assert_false (g_file_test (scratch, G_FILE_TEST_EXISTS));
  expect_messages (1);
  save_as (file, scratch, EBB_DTYPE_F32);
  g_test_assert_expected_messages ();
}

/* -- there and back ------------------------------------------------------------------------------------------------ */

/* Every kind of decoder that llama.cpp computes, with its own choices. */
static void
a_saved_model_opens_as_the_same (void)
{
  static const char *const refused[] = { "llama-dynamic", "llama-yarn", "smollm3", NULL };
  guint n_refused = 0;

  for (guint i = 0; test_decoder_names[i] != NULL; i++)
    {
      g_autoptr (EbbGptConfig) config = test_decoder_config (test_decoder_names[i]);
      g_autofree char *path = test_scratch_path ("model.gguf");
      g_autoptr (EbbModule) model = NULL;
      g_autoptr (EbbModule) again = NULL;
      g_autoptr (GError) error = NULL;

      if (config->norm == EBB_NORM_RMS_UNIT)
        config->attention_scale = 0; /* llama.cpp has no other */
      model = ebb_gpt_new (config, &error);
      g_assert_no_error (error);
      if (!ebb_model_save (model, path, &error))
        {
          g_test_message ("%s: %s", test_decoder_names[i], error->message);
          g_assert_null (strchr (error->message, '\n'));
          g_assert_true (g_strv_contains (refused, test_decoder_names[i]));
          n_refused++;
          continue;
        }
      again = open_as (path, EBB_MODEL_KEEP_DTYPE);
      if (config->norm == EBB_NORM_RMS_UNIT)
        assert_same_logits (model, again, "qwen3", 1e-5);
      else
        {
          test_assert_same_weights (model, again);
          if (config->window == 0)
            assert_same_logits (model, again, "qwen3", 1e-6);
        }
    }
  g_assert_cmpuint (n_refused, ==, g_strv_length ((char **) refused));
}

/* llama.cpp computes Phi-3 without its window. */
static void
phi3_ends_at_its_window (void)
{
  g_autoptr (EbbModule) model = test_model_open_fixture ("phi3");
  g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (EBB_GPT (model));
  g_autofree char *path = test_scratch_path ("phi3.gguf");
  g_autoptr (EbbModule) again = NULL;
  g_autoptr (EbbGptConfig) found = NULL;

  expect_messages (2); /* one says that there is no tokenizer */
  save_as (model, path, EBB_DTYPE_F32);
  g_test_assert_expected_messages ();
  again = open_as (path, EBB_MODEL_KEEP_DTYPE);
  found = ebb_gpt_get_config (EBB_GPT (again));
  g_assert_cmpint (config->window, <, config->context);
  g_assert_cmpint (found->context, ==, config->window);
}

static void
values_of_q8_0_are_near (void)
{
  float values[2 * EBB_Q8_BLOCK], again[2 * EBB_Q8_BLOCK];
  guint8 blocks[2 * EBB_Q8_BYTES];
  float largest = 0;

  for (guint i = 0; i < G_N_ELEMENTS (values); i++)
    {
      values[i] = sinf ((float) i * 1.7f) * (i < EBB_Q8_BLOCK ? 3 : 0);
      largest = MAX (largest, fabsf (values[i]));
    }
  ebb_q8_encode (values, blocks, G_N_ELEMENTS (values));
  ebb_q8_decode (blocks, again, G_N_ELEMENTS (values));
  for (guint i = 0; i < G_N_ELEMENTS (values); i++)
    g_assert_cmpfloat (fabsf (values[i] - again[i]), <=, largest / 127 * 0.5f + largest / 2048);
  g_assert_cmpfloat (again[EBB_Q8_BLOCK], ==, 0);
}

/* A file becomes a folder with its tokenizer, and a folder with a tokenizer a file. */
static void
the_tokenizer_comes_along (void)
{
  static const char text[] = "It's a test: 1234 naïve words,\n\n  more.";
  g_autofree char *fixture = get_fixture ("chat-model");
  g_autofree char *folder = g_test_build_filename (G_TEST_DIST, "fixtures", "chat-model", NULL);
  g_autofree char *saved = test_scratch_path ("chat.gguf");
  g_autofree char *back = test_scratch_path ("chat-folder");
  const char *const paths[] = { fixture, saved, back };
  g_autoptr (EbbModule) model = open_as (folder, EBB_MODEL_KEEP_DTYPE);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTokenizer) expected = ebb_tokenizer_open (folder, &error);
  g_autoptr (EbbModule) again = NULL;
  g_autoptr (EbbGguf) a = NULL;
  g_autoptr (EbbGguf) b = test_gguf_open (fixture);
  gsize n_expected;
  gint64 stop;
  g_autofree gint64 *tokens = ebb_tokenizer_encode_text_full (expected, text, TRUE, &n_expected, &error);

  g_assert_no_error (error);
  save_as (model, saved, EBB_DTYPE_F16);
  a = test_gguf_open (saved);
  assert_has_values (a, b);
  g_assert_true (ebb_gguf_get_int (a, "tokenizer.ggml.eot_token_id", &stop, &error)); /* of generation_config.json */
  g_assert_cmpint (stop, ==, 2);
  test_gguf_assert_same_tensors (saved, fixture);
  g_test_expect_message ("Ebb", G_LOG_LEVEL_MESSAGE, "*converted to f32*");
  again = open_as (saved, EBB_MODEL_KEEP_DTYPE);
  g_test_assert_expected_messages ();
  save_as (again, back, EBB_MODEL_KEEP_DTYPE);
  for (guint i = 0; i < G_N_ELEMENTS (paths); i++)
    {
      g_autoptr (EbbTokenizer) tokenizer = ebb_tokenizer_open (paths[i], &error);
      gsize n;
      g_autofree gint64 *found = NULL;
      g_autofree char *decoded = NULL;

      g_assert_no_error (error);
      found = ebb_tokenizer_encode_text_full (tokenizer, text, TRUE, &n, &error);
      g_assert_cmpmem (found, n * sizeof *found, tokens, n_expected * sizeof *tokens);
      decoded = ebb_tokenizer_decode_text (tokenizer, found, n, &error);
      g_assert_cmpstr (decoded, ==, text);
      g_assert_cmpstr (ebb_tokenizer_get_chat_template (tokenizer), ==, ebb_tokenizer_get_chat_template (expected));
      for (int which = EBB_SPECIAL_TOKEN_BOS; which <= EBB_SPECIAL_TOKEN_PAD; which++)
        g_assert_cmpint (ebb_tokenizer_get_special_token (tokenizer, (EbbSpecialToken) which), ==,
                         ebb_tokenizer_get_special_token (expected, (EbbSpecialToken) which));
    }
}

#define BLANK "\xe2\x96\x81"

/* A vocabulary of SentencePiece's kind: every pair of tokens that is a token is a merge, in the order of what they
 * make. @normalizer comes before those of SentencePiece. */
static void
write_sentence_piece (const char *folder,
                      const char *normalizer,
                      const char *merges)
{
  static const char *const words[] = { BLANK, "a", "b", "c", "ab", BLANK "a", BLANK "ab", "abc" };
  g_autoptr (GString) json = g_string_new (
      "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 0, \"content\": \"<unk>\", \"special\": true, "
      "\"normalized\": false}, {\"id\": 1, \"content\": \"<s>\", \"special\": true, \"normalized\": false}, {\"id\": "
      "2, \"content\": \"<x>\", \"special\": false, \"normalized\": false}], \"normalizer\": {\"type\": "
      "\"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": \"" BLANK "\"}, {\"type\": "
      "\"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" BLANK "\"}]}, \"pre_tokenizer\": null, "
      "\"post_processor\": null, \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", "
      "\"pattern\": {\"String\": \"" BLANK "\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": "
      "\"Fuse\"}, {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]}, \"model\": {\"type\": "
      "\"BPE\", \"unk_token\": \"<unk>\", \"fuse_unk\": true, \"byte_fallback\": true, \"vocab\": {\"<unk>\": 0, "
      "\"<s>\": 1, \"<x>\": 2");

  g_string_replace (json, "\"normalizers\": [", normalizer, 1);
  for (guint i = 0; i < 256; i++)
    g_string_append_printf (json, ", \"<0x%02X>\": %u", i, 3 + i);
  for (guint i = 0; i < G_N_ELEMENTS (words); i++)
    g_string_append_printf (json, ", \"%s\": %u", words[i], 259 + i);
  g_string_append_printf (json, "}, \"merges\": [%s]}}", merges);
  g_mkdir (folder, 0777);
  test_folder_write (folder, "tokenizer.json", json->str);
  test_folder_write (folder, "tokenizer_config.json", "{\"bos_token\": \"<s>\", \"add_bos_token\": true}");
}

#define ALL_MERGES                                                                                      \
  "[\"a\", \"b\"], [\"" BLANK "\", \"a\"], [\"" BLANK "a\", \"b\"], [\"" BLANK "\", \"ab\"], [\"ab\", " \
  "\"c\"]"

/* llama.cpp merges by scores, which stand for the merges only if none is missing. */
static void
merges_of_sentence_piece_become_scores (void)
{
  static const char *const texts[] = { "ab abc", "abcabc  cab", "bab<x>a\xc3\xa9!", "" };
  g_autofree char *folder = test_scratch_path ("sentence-piece");
  g_autofree char *path = test_scratch_path ("sentence-piece.gguf");
  g_autoptr (EbbGptConfig) config = test_decoder_config ("llama2");
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbTokenizer) expected = NULL;
  g_autoptr (EbbTokenizer) found = NULL;
  g_autoptr (EbbTokenizer) other = NULL;
  g_autoptr (GError) error = NULL;

  config->vocab = 270;
  model = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  write_sentence_piece (folder, "\"normalizers\": [", ALL_MERGES);
  expected = ebb_tokenizer_open (folder, &error);
  g_assert_no_error (error);
  ebb_model_set_tokenizer (model, expected, folder);
  save_as (model, path, EBB_DTYPE_F32);
  found = ebb_tokenizer_open (path, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < G_N_ELEMENTS (texts); i++)
    {
      gsize n, n_expected;
      g_autofree gint64 *a = ebb_tokenizer_encode_text_full (expected, texts[i], TRUE, &n_expected, &error);
      g_autofree gint64 *b = ebb_tokenizer_encode_text_full (found, texts[i], TRUE, &n, &error);
      g_autofree char *decoded = NULL;

      g_assert_no_error (error);
      g_assert_cmpmem (b, n * sizeof *b, a, n_expected * sizeof *a);
      decoded = ebb_tokenizer_decode_text_full (found, b, n, TRUE, &error);
      if (strstr (texts[i], "<x>") == NULL)
        g_assert_cmpstr (decoded, ==, texts[i]);
    }
  write_sentence_piece (folder, "\"normalizers\": [", "[\"a\", \"b\"], [\"ab\", \"c\"]");
  other = ebb_tokenizer_open (folder, &error);
  g_assert_no_error (error);
  ebb_model_set_tokenizer (model, other, folder);
  g_assert_false (ebb_model_save (model, path, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);
  g_assert_nonnull (strstr (error->message, "5 pairs of its tokens make a token, and 2 of them are merges"));
  g_clear_error (&error);
  write_sentence_piece (folder, "\"normalizers\": [{\"type\": \"Lowercase\"}, ", ALL_MERGES);
  g_clear_object (&other);
  other = ebb_tokenizer_open (folder, &error);
  g_assert_no_error (error);
  ebb_model_set_tokenizer (model, other, folder);
  g_assert_false (ebb_model_save (model, path, &error));
  g_assert_nonnull (strstr (error->message, "a normalizer of it, Lowercase, is none of SentencePiece's"));
}

/* -- what is refused ----------------------------------------------------------------------------------------------- */

static gsize
find_place (const GString *text,
            const char *what)
{
  const gsize length = strlen (what);

  for (gsize i = 0; i + length <= text->len; i++)
    if (memcmp (text->str + i, what, length) == 0)
      return i;
  g_assert_not_reached ();
}

static void
replace_bytes (GString *text,
               const char *old,
               const char *new)
{
  memcpy (text->str + find_place (text, old), new, strlen (new));
}

static GString *
read_file (const char *path)
{
  g_autofree char *data = NULL;
  gsize length;

  g_assert_true (g_file_get_contents (path, &data, &length, NULL));
  return g_string_new_len (data, (gssize) length);
}

static void
set_u64 (GString *text,
         gsize place,
         guint64 value)
{
  value = GUINT64_TO_LE (value);
  memcpy (text->str + place, &value, 8);
}

static void
assert_refused (const GString *text,
                const char *expected)
{
  g_autofree char *path = test_scratch_path ("damaged.gguf");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = NULL;

  g_assert_true (g_file_set_contents (path, text->str, (gssize) text->len, NULL));
  model = ebb_model_open (path, &error);
  g_assert_null (model);
  g_assert_nonnull (error);
  g_test_message ("%s", error->message);
  g_assert_null (strchr (error->message, '\n'));
  g_assert_nonnull (strstr (error->message, path));
  if (strstr (error->message, expected) == NULL)
    g_error ("\"%s\" lacks \"%s\"", error->message, expected);
}

static void
damaged_files_are_refused_in_one_line (void)
{
  g_autofree char *path = get_fixture ("qwen3");
  g_autoptr (GString) text = read_file (path);
  g_autoptr (GString) whole = g_string_new_len (text->str, (gssize) text->len);
  gsize place;

#define AGAIN()                \
  g_string_truncate (text, 0); \
  g_string_append_len (text, whole->str, (gssize) whole->len)

  text->str[0] = 'X';
  assert_refused (text, "not a GGUF file");
  AGAIN ();
  text->str[4] = 1;
  assert_refused (text, "version 1");
  AGAIN ();
  memcpy (text->str + 4, "\0\0\0\3", 4);
  assert_refused (text, "big-endian");
  AGAIN ();
  set_u64 (text, 8, G_MAXUINT64);
  assert_refused (text, "do not fit in a file");
  AGAIN ();
  set_u64 (text, 16, G_GUINT64_CONSTANT (1) << 62);
  assert_refused (text, "do not fit in a file");
  AGAIN ();
  set_u64 (text, 24, G_GUINT64_CONSTANT (1) << 63); /* the length of the first key */
  assert_refused (text, "the name of a value");
  AGAIN ();
  place = find_place (text, "general.type") + strlen ("general.type") + 4;
  set_u64 (text, place, G_GUINT64_CONSTANT (1) << 63);
  assert_refused (text, "truncated");
  AGAIN ();
  replace_bytes (text, "general.type", "general.arch");
  replace_bytes (text, "qwen3.block_count", "qwen3.block_wount");
  assert_refused (text, "block_count\" is missing");
  AGAIN ();
  replace_bytes (text, "blk.0.attn_q.weight", "blk.0.attn_k.weight");
  assert_refused (text, "there twice");
  AGAIN ();
  place = find_place (text, "blk.0.attn_q.weight") + strlen ("blk.0.attn_q.weight") + 4;
  set_u64 (text, place, G_GUINT64_CONSTANT (1) << 62);
  assert_refused (text, "no file can hold");
  AGAIN ();
  text->str[place + 16] = 12;
  assert_refused (text, "is Q4_K: it must be F32, F16, BF16 or Q8_0");
  AGAIN ();
  text->str[place + 16] = 5;
  assert_refused (text, "type 5, which is unknown");
  AGAIN ();
  set_u64 (text, place + 20, G_GUINT64_CONSTANT (1) << 40);
  assert_refused (text, "truncated: tensor");
  AGAIN ();
  set_u64 (text, place + 20, 4);
  assert_refused (text, "alignment");
  AGAIN ();
  set_u64 (text, place + 20, 0);
  assert_refused (text, "overlap");
  AGAIN ();
  g_string_truncate (text, text->len - 40);
  assert_refused (text, "truncated");
  g_string_truncate (text, 20);
  assert_refused (text, "truncated");
  g_string_truncate (text, 2);
  assert_refused (text, "not a GGUF file");
  AGAIN ();
  replace_bytes (text, "blk.1.ffn_up.weight", "blk.1.ffn_ub.weight");
  assert_refused (text, "missing (1): blk.1.ffn_up.weight");
  AGAIN ();
  place = find_place (text, "general.architecture") + strlen ("general.architecture") + 12;
  memcpy (text->str + place, "qwen9", 5);
  assert_refused (text, "general.architecture is \"qwen9\": it must be one of gpt2, llama, qwen2");
  AGAIN ();
  place = find_place (text, "general.type") + strlen ("general.type") + 12;
  memcpy (text->str + place, "vocab", 5);
  assert_refused (text, "general.type is");
#undef AGAIN
}

static void
what_llama_cpp_lacks_is_not_saved (void)
{
  static const struct
  {
    const char *row, *expected;
  } refused[] = { { "llama-dynamic", "no dynamic scaling" },
                  { "llama-yarn", "no YaRN with mscale" },
                  { "bert", "no Bert" } };
  g_autofree char *path = test_scratch_path ("refused.gguf");

  for (guint i = 0; i < G_N_ELEMENTS (refused); i++)
    {
      g_autoptr (EbbModule) model = test_model_open_fixture (refused[i].row);
      g_autoptr (GError) error = NULL;

      g_assert_false (ebb_model_save (model, path, &error));
      g_assert_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);
      g_assert_nonnull (strstr (error->message, refused[i].expected));
      g_assert_false (g_file_test (path, G_FILE_TEST_EXISTS));
    }
}

/* llama.cpp computes the attention factor of YaRN from its factor. */
static void
an_attention_factor_of_its_own_is_not_saved (void)
{
  const double factors[] = { 0.9, 0.1 * log (3) + 1 };

  for (guint i = 0; i < G_N_ELEMENTS (factors); i++)
    {
      g_autoptr (EbbGptConfig) config = test_decoder_config ("qwen2-yarn");
      g_autofree char *path = test_scratch_path ("yarn.gguf");
      g_autoptr (EbbModule) model = NULL;
      g_autoptr (GError) error = NULL;

      config->rotary.attention_factor = factors[i];
      model = ebb_gpt_new (config, &error);
      g_assert_no_error (error);
      g_assert_cmpint (ebb_model_save (model, path, &error), ==, i == 1);
      if (i == 0)
        g_assert_nonnull (strstr (error->message, "an attention factor of YaRN that follows from its factor"));
    }
}

/* What a GGUF file can't say of a tokenizer: @text with @new for @old is refused. */
static void
assert_tokenizer_refused (const char *text,
                          const char *old,
                          const char *new,
                          const char *expected)
{
  g_autofree char *fixture = g_test_build_filename (G_TEST_DIST, "fixtures", "chat-model", NULL);
  g_autofree char *folder = test_scratch_path ("changed-tokenizer");
  g_autofree char *path = test_scratch_path ("changed-tokenizer.gguf");
  g_autoptr (GString) changed = g_string_new (text);
  g_autoptr (EbbModule) model = open_as (fixture, EBB_MODEL_KEEP_DTYPE);
  g_autoptr (EbbTokenizer) tokenizer = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_cmpuint (g_string_replace (changed, old, new, 0), ==, 1);
  g_mkdir (folder, 0777);
  test_folder_write (folder, "tokenizer.json", changed->str);
  tokenizer = ebb_tokenizer_open (folder, &error);
  g_assert_no_error (error);
  ebb_model_set_tokenizer (model, tokenizer, folder);
  g_assert_false (ebb_model_save (model, path, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);
  if (strstr (error->message, expected) == NULL)
    g_error ("\"%s\" lacks \"%s\"", error->message, expected);
}

static void
tokenizers_that_llama_cpp_lacks_are_not_saved (void)
{
  g_autofree char *path = g_test_build_filename (G_TEST_DIST, "fixtures", "chat-model", "tokenizer.json", NULL);
  g_autoptr (GString) text = read_file (path);

  assert_tokenizer_refused (text->str, "\"NFC\"", "\"Lowercase\"", "a byte-level one must have NFC or none");
  assert_tokenizer_refused (text->str, "\"ignore_merges\":false", "\"ignore_merges\":true",
                            "its ignore_merges is true: llama.cpp has it false");
}

/* Writes a tokenizer of three tokens, which stand last. */
static void
write_tokens (const char *path, const char *const texts[3])
{
  static const gint32 types[] = { 2, 1, 1 };
  static const float scores[] = { 0, -1, -2 };
  g_autoptr (GPtrArray) tokens = g_ptr_array_new ();
  g_autoptr (GError) error = NULL;
  g_auto (EbbGgufWriter) writer = { NULL, NULL, 0, 0, 0 };
  EbbAtomicFile file;

  for (guint i = 0; i < 3; i++)
    g_ptr_array_add (tokens, (gpointer) texts[i]);
  ebb_gguf_writer_init (&writer);
  ebb_gguf_writer_add_string (&writer, "tokenizer.ggml.model", "llama");
  ebb_gguf_writer_add_array (&writer, "tokenizer.ggml.token_type", EBB_GGUF_I32, types, G_N_ELEMENTS (types));
  ebb_gguf_writer_add_array (&writer, "tokenizer.ggml.scores", EBB_GGUF_F32, scores, G_N_ELEMENTS (scores));
  ebb_gguf_writer_add_strings (&writer, "tokenizer.ggml.tokens", tokens);
  g_assert_true (ebb_atomic_file_open (&file, path, &error) && ebb_gguf_writer_write_header (&writer, &file, &error)
                 && ebb_atomic_file_commit (&file, &error));
}

static void
a_token_that_stands_twice_is_named (void)
{
  static const char *const texts[] = { "<unk>", "\xc3\xa4", "\xc3\xa4" };
  g_autofree char *path = test_scratch_path ("twice.gguf");
  g_autoptr (GError) error = NULL;

  write_tokens (path, texts);
  g_assert_null (ebb_tokenizer_open (path, &error));
  test_assert_error (error, EBB_ERROR_FORMAT, "tokens 1 and 2 of \"tokenizer.ggml.tokens\" are both \"\xc3\xa4\"",
                     "each must stand once");
}

/* A file that ends with a token of no bytes: nothing behind it is read (under AddressSanitizer). */
static void
an_empty_token_ends_the_file (void)
{
  static const char *const texts[] = { "<unk>", "a", "" };
  const char last[] = "tokenizer.ggml.tokens";
  g_autofree char *path = test_scratch_path ("empty-token.gguf");
  g_autoptr (GError) error = NULL;
  g_autoptr (GString) text = NULL;
  g_autoptr (EbbTokenizer) tokenizer = NULL;
  gsize end;

  write_tokens (path, texts);
  text = read_file (path);
  end = find_place (text, last) + strlen (last) + 4 + 4 + 8;
  for (guint i = 0; i < G_N_ELEMENTS (texts); i++)
    end += 8 + strlen (texts[i]);
  g_assert_true (g_file_set_contents (path, text->str, (gssize) end, &error));
  tokenizer = ebb_tokenizer_open (path, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_tokenizer_get_vocab_size (tokenizer), ==, G_N_ELEMENTS (texts));
}

/* A file of holes is large: what it has of a header says how many tensors there can be. */
static void
a_header_bounds_the_tensors (void)
{
  g_autofree char *fixture = get_fixture ("qwen3");
  g_autofree char *path = test_scratch_path ("holes.gguf");
  g_autoptr (GString) text = read_file (fixture);
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (GError) error = NULL;

  set_u64 (text, 8, G_GUINT64_CONSTANT (1) << 34);
  g_assert_true (g_file_set_contents (path, text->str, (gssize) text->len, &error));
  g_assert_cmpint (truncate (path, G_GINT64_CONSTANT (1) << 40), ==, 0);
  model = ebb_model_open (path, &error);
  g_assert_null (model);
  g_assert_nonnull (error);
  g_assert_nonnull (strstr (error->message, "do not fit in a header of 268435456 bytes"));
  g_unlink (path);
}

/* Heads of no width have no rotated frequency. */
static void
heads_of_no_width_are_refused (void)
{
  g_autofree char *path = get_fixture ("llama3");
  g_autoptr (GString) text = read_file (path);
  static const char *const keys[] = { "llama.attention.key_length", "llama.attention.value_length" };
  const char name[] = "rope_freqs.weight";

  for (guint i = 0; i < G_N_ELEMENTS (keys); i++)
    memcpy (text->str + find_place (text, keys[i]) + strlen (keys[i]) + 4, "\1\0\0\0", 4);
  replace_bytes (text, "llama.rope.dimension_count", "llama.rope.dimension_other");
  set_u64 (text, find_place (text, name) + strlen (name) + 4, 0);
  assert_refused (text, "one factor of F32 for each of 0 rotated frequencies");
}

int
main (int argc,
      char **argv)
{
  int status;

  g_test_init (&argc, &argv, NULL);
  test_scratch_begin ();
  g_test_add_func ("/gguf/a-foreign-file-is-the-same-model", a_foreign_file_is_the_same_model);
  g_test_add_func ("/gguf/a-saved-file-has-the-same-tensors-and-values", a_saved_file_has_the_same_tensors_and_values);
  g_test_add_func ("/gguf/norms-of-gemma-are-shifted", norms_of_gemma_are_shifted);
  g_test_add_func ("/gguf/a-saved-model-opens-as-the-same", a_saved_model_opens_as_the_same);
  g_test_add_func ("/gguf/values-of-q8-0-are-near", values_of_q8_0_are_near);
  g_test_add_func ("/gguf/the-tokenizer-comes-along", the_tokenizer_comes_along);
  g_test_add_func ("/gguf/merges-of-sentence-piece-become-scores", merges_of_sentence_piece_become_scores);
  g_test_add_func ("/gguf/damaged-files-are-refused-in-one-line", damaged_files_are_refused_in_one_line);
  g_test_add_func ("/gguf/what-llama-cpp-lacks-is-not-saved", what_llama_cpp_lacks_is_not_saved);
  g_test_add_func ("/gguf/phi3-ends-at-its-window", phi3_ends_at_its_window);
  g_test_add_func ("/gguf/an-attention-factor-of-its-own-is-not-saved", an_attention_factor_of_its_own_is_not_saved);
  g_test_add_func ("/gguf/tokenizers-that-llama-cpp-lacks-are-not-saved",
                   tokenizers_that_llama_cpp_lacks_are_not_saved);
  g_test_add_func ("/gguf/a-token-that-stands-twice-is-named", a_token_that_stands_twice_is_named);
  g_test_add_func ("/gguf/an-empty-token-ends-the-file", an_empty_token_ends_the_file);
  g_test_add_func ("/gguf/a-header-bounds-the-tensors", a_header_bounds_the_tensors);
  g_test_add_func ("/gguf/heads-of-no-width-are-refused", heads_of_no_width_are_refused);
  status = g_test_run ();
  test_scratch_end ();
  return status;
}
