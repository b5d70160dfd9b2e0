/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/fuzz.h"

/* The config.json beside a GPT-2's weights, and the metadata in their file. */

static const char text[] =
    "{\"activation_function\": \"gelu_new\", \"architectures\": [\"GPT2LMHeadModel\"], \"attn_pdrop\": 0.1, "
    "\"embd_pdrop\": 0.1, \"layer_norm_epsilon\": 1e-05, \"model_type\": \"gpt2\", \"n_ctx\": 4, \"n_embd\": 8, "
    "\"n_head\": 2, \"n_inner\": null, \"n_layer\": 1, \"n_positions\": 4, \"resid_pdrop\": 0.1, "
    "\"scale_attn_weights\": true, \"tie_word_embeddings\": true, \"task_specific_params\": {\"a\": {\"b\": [1]}}, "
    "\"vocab_size\": 6}";

static EbbArgs *weights;
static FuzzFile file;

static gboolean
try_case (GString *input, GError **error)
{
  static const char *const names[] = { "n_head", "layer_norm_epsilon", "activation_function" };
  static const char *const rights[] = { "2", "1e-05", "gelu_new" };
  g_autoptr (EbbArgs) metadata = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbGptConfig) config = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autoptr (GString) value = g_string_new (rights[i]);

      if (fuzz_draw (8) == 0)
        fuzz_damage (value);
      if (fuzz_draw (2) && g_utf8_validate (value->str, -1, NULL))
        ebb_args_add_string (metadata, names[i], value->str);
    }
  g_string_append (input, text);
  if (fuzz_draw (10) > 0)
    fuzz_damage (input);
  fuzz_file_write (&file, input->str, input->len);
  config = ebb_gpt_config_new_from_gpt2 (weights, metadata, file.path, error);
  return config != NULL;
}

static void
add_zeros (const char *name, gint64 rows, gint64 columns)
{
  const gint64 shape[] = { rows, columns };
  g_autoptr (EbbTensor) tensor = ebb_zeros (shape, 2, EBB_DTYPE_F32, NULL, NULL);

  ebb_args_add_tensor (weights, name, tensor);
}

int
main (int argc, char **argv)
{
  int status;

  weights = ebb_args_new (EBB_ARGS_DICT);
  add_zeros ("wte.weight", 6, 8);
  add_zeros ("wpe.weight", 4, 8);
  add_zeros ("h.0.ln_1.weight", 1, 8);
  fuzz_file_open (&file);
  status = fuzz_run (argc, argv, "gpt-config", 30000, try_case);
  fuzz_file_close (&file);
  ebb_args_unref (weights);
  return status;
}
