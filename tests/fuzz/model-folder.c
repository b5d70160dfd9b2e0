/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/fuzz.h"

#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>

/* A model's folder, quantised or not: config.json, the weights' header, their data (of quantised ones JSON too) and the
 * index are damaged; what is opened is saved and opened again. */

static char *folder, *saved;

#define N_PLAIN 3 /* rows of which the configurations are here */
#define N_ROWS 5  /* then Llama in int8 and nf4, as it is saved */

static const char *const configs[N_PLAIN] = {
  "{\"model_type\": \"llama\", \"vocab_size\": 6, \"hidden_size\": 8, \"intermediate_size\": 4, "
  "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"max_position_embeddings\": 8, "
  "\"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-05, \"tie_word_embeddings\": true, \"head_dim\": null, "
  "\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 1e4, \"factor\": 2.0, \"low_freq_factor\": 1.0, "
  "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 4}, \"attention_dropout\": 0.0}",
  "{\"model_type\": \"qwen3\", \"vocab_size\": 6, \"hidden_size\": 8, \"intermediate_size\": 4, "
  "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4, "
  "\"max_position_embeddings\": 8, "
  "\"tie_word_embeddings\": true, \"rope_theta\": 1000000, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
  "\"original_max_position_embeddings\": 8}, \"use_sliding_window\": true, \"sliding_window\": 4, "
  "\"max_window_layers\": 0, \"layer_types\": null}",
  "{\"model_type\": \"gpt2\", \"vocab_size\": 6, \"n_embd\": 8, \"n_layer\": 1, \"n_head\": 2, \"n_positions\": 8, "
  "\"n_inner\": 4, \"activation_function\": \"gelu_new\", \"resid_pdrop\": 0.1, \"tie_word_embeddings\": true}",
};

static void
write_file (const char *name, const char *data, gsize size)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);

  FILE *file = fopen (path, "wb");

  g_assert_nonnull (file);
  g_assert_true (fwrite (data, 1, size, file) == size);
  g_assert_true (fclose (file) == 0);
}

static char *texts[N_ROWS];   /* of config.json */
static char *weights[N_ROWS]; /* headers */
static GString *bodies[N_ROWS];

/* The header of the file that a whole model of the configuration has. */
static void
learn_weights (guint which)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  g_autoptr (EbbModule) model = NULL;
  g_autofree char *path = g_build_filename (saved, "model.safetensors", NULL);
  g_autofree char *config_path = g_build_filename (saved, "config.json", NULL);
  g_autofree char *file = NULL;
  gsize size;
  guint64 length;

  config->vocab = 6;
  config->context = 8;
  config->width = 8;
  config->heads = 2;
  config->layers = 1;
  config->hidden = 4;
  if (which < 2 || which >= N_PLAIN)
    {
      config->layout = EBB_GPT_LAYOUT_LLAMA;
      config->positions = EBB_POSITIONS_ROTARY;
      config->norm = EBB_NORM_RMS;
      config->activation = EBB_ACTIVATION_SILU;
      config->gated = TRUE;
      config->bias = FALSE;
      config->kv_heads = 1;
      config->qk_norm = which == 1;
    }
  model = ebb_gpt_new (config, &error);
  if ((which >= N_PLAIN
       && !ebb_quantize (model, which == N_PLAIN ? EBB_QUANTIZATION_INT8 : EBB_QUANTIZATION_NF4, &error))
      || !ebb_model_save (model, saved, &error) || !g_file_get_contents (path, &file, &size, &error)
      || (which >= N_PLAIN && !g_file_get_contents (config_path, &texts[which], NULL, &error)))
    g_error ("%s", error->message);
  if (which < N_PLAIN)
    texts[which] = g_strdup (configs[which]);
  memcpy (&length, file, 8);
  weights[which] = g_strndup (file + 8, GUINT64_FROM_LE (length));
  length = GUINT64_FROM_LE (length);
  bodies[which] = g_string_new_len (file + 8 + length, (gssize) (size - 8 - length));
}

static void
write_weights (const char *name, const GString *header, const GString *body)
{
  g_autoptr (GString) file = g_string_new (NULL);
  const guint64 length = GUINT64_TO_LE ((guint64) header->len);

  g_string_append_len (file, (const char *) &length, 8);
  g_string_append_len (file, header->str, (gssize) header->len);
  g_string_append_len (file, body->str, (gssize) body->len);
  write_file (name, file->str, file->len);
}

static gboolean
try_case (GString *input, GError **error)
{
  const guint which = fuzz_draw (N_ROWS), damaged = fuzz_draw (4);
  const gboolean is_indexed = fuzz_draw (3) == 0;
  g_autoptr (GString) header = g_string_new (weights[which]);
  g_autoptr (GString) body = g_string_new_len (bodies[which]->str, (gssize) bodies[which]->len);
  g_autoptr (GString) config = g_string_new (texts[which]);
  g_autoptr (GString) index = g_string_new ("{\"metadata\": {}, \"weight_map\": {");
  g_autoptr (EbbArgs) names = NULL;
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbModule) again = NULL;
  g_autofree char *data = NULL; /* in base64, if it is damaged */
  g_autofree char *single = g_build_filename (folder, "model.safetensors", NULL);
  g_auto (GStrv) parts = g_strsplit (header->str, "\":{\"dtype\"", -1);

  for (guint i = 0; parts[i + 1] != NULL; i++)
    g_string_append_printf (index, "%s\"%s\": \"part.safetensors\"", i > 0 ? ", " : "", strrchr (parts[i], '"') + 1);
  g_string_append (index, "}}");
  if (damaged != 1 && damaged != 3)
    fuzz_damage (config);
  if (damaged == 1)
    fuzz_damage (header);
  if (damaged == 2 && is_indexed)
    fuzz_damage (index);
  if (damaged == 3)
    {
      fuzz_damage_bytes (body);
      /* As long as the header says. */
      while (body->len < bodies[which]->len)
        g_string_append_c (body, 0);
      g_string_truncate (body, bodies[which]->len);
      data = g_base64_encode ((const guint8 *) body->str, body->len);
    }
  g_string_append_printf (input, "%s\n%s\n%s\n%s", config->str, header->str, index->str, data != NULL ? data : "");
  g_unlink (single);
  write_file ("config.json", config->str, config->len);
  write_weights (is_indexed ? "part.safetensors" : "model.safetensors", header, body);
  write_file ("model.safetensors.index.json", index->str, index->len);
  model = ebb_model_open (folder, error);
  if (model == NULL)
    return FALSE;
  if (fuzz_draw (20) > 0)
    return TRUE;
  if (!ebb_model_save (model, saved, error))
    g_error ("a model that was opened can't be saved: %s", (*error)->message);
  again = ebb_model_open (saved, error);
  if (again == NULL)
    g_error ("a model that was saved can't be opened: %s", (*error)->message);
  return TRUE;
}

int
main (int argc, char **argv)
{
  char shared[] = "/dev/shm/ebb-fuzz-XXXXXX"; /* memory: a save there waits for no disk */
  g_autofree char *root = g_mkdtemp (shared) != NULL ? g_strdup (shared) : g_dir_make_tmp ("ebb-fuzz-XXXXXX", NULL);
  static const char *const files[] = { "folder/config.json", "folder/model.safetensors", "folder/part.safetensors",
                                       "folder/model.safetensors.index.json", "saved/config.json",
                                       "saved/model.safetensors", "folder", "saved", "" };
  int status;

  folder = g_build_filename (root, "folder", NULL);
  saved = g_build_filename (root, "saved", NULL);
  g_mkdir (folder, 0700);
  for (guint i = 0; i < N_ROWS; i++)
    learn_weights (i);
  status = fuzz_run (argc, argv, "model-folder", 2500, try_case);
  for (guint i = 0; i < G_N_ELEMENTS (files); i++)
    {
      g_autofree char *path = g_build_filename (root, files[i], NULL);

      g_remove (path);
    }
  for (guint i = 0; i < N_ROWS; i++)
    {
      g_free (texts[i]);
      g_free (weights[i]);
      g_string_free (bodies[i], TRUE);
    }
  g_free (folder);
  g_free (saved);
  return status;
}
