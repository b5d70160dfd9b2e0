/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/data/tokenizer/gguf-private.h"
#include "nn/models/folder/gguf-model-private.h"

#include "support/fuzz.h"

#include <string.h>

/* GGUF files: what is taken can be read, its values make a configuration and a tokenizer or an error. */

static FuzzFile file;

static void
add_tokenizer (EbbGgufWriter *writer,
               gboolean is_byte_level)
{
  static const char *const texts[] = { "<unk>", "<s>", "</s>", "<0x41>", "a", "b", "ab", "\xe2\x96\x81",
                                       "\xe2\x96\x81"
                                       "ab",
                                       "[PAD9]" };
  static const gint32 types[] = { 2, 3, 3, 6, 1, 1, 1, 1, 1, 5 };
  static const float scores[] = { 0, -1000, -1000, 0, -3, -4, 0, -2, -1, -10000 };
  g_autoptr (GPtrArray) tokens = g_ptr_array_new ();
  g_autoptr (GPtrArray) merges = g_ptr_array_new ();

  for (guint i = 0; i < G_N_ELEMENTS (texts); i++)
    g_ptr_array_add (tokens, (gpointer) texts[i]);
  g_ptr_array_add (merges, (gpointer) "a b");
  ebb_gguf_writer_add_string (writer, "tokenizer.ggml.model", is_byte_level ? "gpt2" : "llama");
  ebb_gguf_writer_add_string (writer, "tokenizer.ggml.pre", is_byte_level ? "qwen2" : "default");
  ebb_gguf_writer_add_strings (writer, "tokenizer.ggml.tokens", tokens);
  ebb_gguf_writer_add_array (writer, "tokenizer.ggml.token_type", EBB_GGUF_I32, types, G_N_ELEMENTS (types));
  if (is_byte_level)
    ebb_gguf_writer_add_strings (writer, "tokenizer.ggml.merges", merges);
  else
    ebb_gguf_writer_add_array (writer, "tokenizer.ggml.scores", EBB_GGUF_F32, scores, G_N_ELEMENTS (scores));
  ebb_gguf_writer_add_u32 (writer, "tokenizer.ggml.bos_token_id", 1);
  ebb_gguf_writer_add_u32 (writer, "tokenizer.ggml.eos_token_id", 2);
  ebb_gguf_writer_add_boolean (writer, "tokenizer.ggml.add_bos_token", TRUE);
  ebb_gguf_writer_add_string (writer, "tokenizer.chat_template", "{{ messages }}");
}

static void
add_values (EbbGgufWriter *writer)
{
  static const char *const names[] = { "llama", "qwen3", "gemma3", "phi3" };
  static const char *const ints[] = { "context_length", "embedding_length", "block_count", "feed_forward_length",
                                      "attention.head_count", "attention.head_count_kv", "attention.sliding_window",
                                      "attention.sliding_window_pattern", "rope.scaling.original_context_length" };
  static const guint32 sizes[] = { 64, 8, 2, 16, 2, 1, 0, 2, 16 };
  const char *name = names[fuzz_draw (G_N_ELEMENTS (names))];

  ebb_gguf_writer_add_string (writer, "general.architecture", name);
  for (guint i = 0; i < G_N_ELEMENTS (ints); i++)
    {
      g_autofree char *key = g_strconcat (name, ".", ints[i], NULL);

      ebb_gguf_writer_add_u32 (writer, key, sizes[i]);
    }
  {
    g_autofree char *eps = g_strconcat (name, ".attention.layer_norm_rms_epsilon", NULL);
    g_autofree char *scaling = g_strconcat (name, ".rope.scaling.type", NULL);
    g_autofree char *factor = g_strconcat (name, ".rope.scaling.factor", NULL);

    ebb_gguf_writer_add_f32 (writer, eps, 1e-5f);
    ebb_gguf_writer_add_string (writer, scaling, fuzz_draw (2) ? "linear" : "yarn");
    ebb_gguf_writer_add_f32 (writer, factor, 2);
  }
  add_tokenizer (writer, fuzz_draw (2));
}

static void
make_input (GString *input)
{
  static const char *const factors[] = { "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight" };
  g_auto (EbbGgufWriter) writer = { NULL, NULL, 0, 0, 0 };
  guint64 words[2];

  ebb_gguf_writer_init (&writer);
  add_values (&writer);
  ebb_gguf_writer_add_tensor (&writer, "token_embd.weight", (const gint64[]){ 10, 8 }, 2, EBB_GGUF_TENSOR_F32);
  ebb_gguf_writer_add_tensor (&writer, "blk.0.attn_q.weight", (const gint64[]){ 2, 32 }, 2, EBB_GGUF_TENSOR_Q8_0);
  for (guint i = 0; i < G_N_ELEMENTS (factors); i++)
    if (fuzz_draw (3) == 0)
      ebb_gguf_writer_add_tensor (&writer, factors[i], (const gint64[]){ 2 }, 1, EBB_GGUF_TENSOR_F32);
  g_string_append_len (input, "GGUF\3\0\0\0", 8);
  words[0] = GUINT64_TO_LE (writer.n_tensors);
  words[1] = GUINT64_TO_LE (writer.n_values);
  g_string_append_len (input, (const char *) words, 16);
  g_string_append_len (input, (const char *) writer.values->data, writer.values->len);
  g_string_append_len (input, (const char *) writer.tensors->data, writer.tensors->len);
  while (input->len % EBB_GGUF_ALIGNMENT != 0)
    g_string_append_c (input, 0);
  for (guint64 i = 0; i < writer.data_size; i++)
    g_string_append_c (input, (char) (i % 4 == 3 ? 0x3f : 0));
  if (fuzz_draw (10) > 0)
    fuzz_damage_bytes (input);
  /* Lengths and counts. */
  if (fuzz_draw (4) == 0 && input->len > 16)
    {
      const guint64 word = GUINT64_TO_LE (fuzz_draw (2) ? (guint64) 1 << fuzz_draw (64) : G_MAXUINT64 - fuzz_draw (64));

      memcpy (input->str + fuzz_draw ((guint32) input->len - 8), &word, 8);
    }
}

/* Reads every byte, so that a tensor which reaches too far is seen. */
static gboolean
touch (EbbGguf *gguf,
       GError **error)
{
  for (gsize i = 0; i < gguf->tensors->n_entries; i++)
    {
      const EbbTensorEntry *entry = &gguf->tensors->entries[i];
      g_autofree char *data = g_malloc ((gsize) (entry->end - entry->begin) + 1);

      if (!ebb_tensor_file_read (gguf->tensors, entry, 0, entry->end - entry->begin, data, error))
        return FALSE;
    }
  return TRUE;
}

static gboolean
try_config (EbbGguf *gguf,
            GError **error)
{
  EbbConfigSource source = { .path = file.path, .is_own = TRUE, .is_gguf = TRUE };
  g_autoptr (EbbJson) document = ebb_gguf_read_config (gguf, &source.architecture, error);
  g_autoptr (EbbGptConfig) config = NULL;

  source.document = document;
  config = document != NULL ? ebb_config_read_gpt (&source, error) : NULL;
  return config != NULL;
}

static gboolean
try_tokenizer (EbbGguf *gguf,
               GError **error)
{
  g_autoptr (GString) tokenizer = g_string_new (NULL);
  g_autoptr (GString) settings = g_string_new (NULL);
  g_autoptr (EbbJson) json = NULL;
  g_autoptr (EbbJson) config = NULL;

  if (!ebb_gguf_read_tokenizer (gguf, tokenizer, settings, error))
    return FALSE;
  json = ebb_json_parse (tokenizer->str, tokenizer->len, file.path, error);
  config = json != NULL ? ebb_json_parse (settings->str, settings->len, file.path, error) : NULL;
  return config != NULL;
}

static gboolean
try_case (GString *input,
          GError **error)
{
  g_autoptr (EbbGguf) gguf = NULL;

  make_input (input);
  fuzz_file_write (&file, input->str, input->len);
  gguf = ebb_gguf_open (file.path, error);
  return gguf != NULL && touch (gguf, error)
         && (fuzz_draw (2) ? try_config (gguf, error) : try_tokenizer (gguf, error));
}

int
main (int argc,
      char **argv)
{
  int status;

  fuzz_file_open (&file);
  status = fuzz_run (argc, argv, "gguf", 20000, try_case);
  fuzz_file_close (&file);
  return status;
}
