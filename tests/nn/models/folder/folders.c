/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/fixtures.h"
#include "support/model-folders.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <string.h>

/* Models' folders: opened, saved, and what does not fit. */

static const char *const rows[] = { "gpt2", "bert", "llama2", "llama3", "llama-linear", "llama-dynamic",
                                    "llama-yarn", "mistral", "qwen2", "qwen2-yarn", "qwen3", "gemma2",
                                    "gemma3", "phi3", "phi3-longrope", "smollm" };

/* The tensors of a folder, by their names in its files. */
static EbbArgs *
load_weights (const char *folder)
{
  g_autofree char *path = g_build_filename (folder, "model.safetensors", NULL);
  g_autoptr (GError) error = NULL;
  EbbArgs *weights = ebb_load_safetensors (path, &error);

  g_assert_no_error (error);
  return weights;
}

static void
store_weights (const char *folder,
               EbbArgs *weights)
{
  g_autofree char *path = g_build_filename (folder, "model.safetensors", NULL);
  g_autoptr (GError) error = NULL;

  ebb_save_safetensors (path, weights, NULL, &error);
  g_assert_no_error (error);
}

/* -- opening and saving -------------------------------------------------------------------------------------------- */

static EbbTensor *
compute_logits (EbbModule *model,
                EbbArgs *expected)
{
  g_autoptr (EbbTensor) all = test_fixture_tensor (expected, "tokens");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tokens = ebb_select (all, 0, 0, &error);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;

  ebb_args_add_tensor (args, NULL, tokens);
  if (EBB_IS_BERT (model))
    for (guint i = 0; i < 2; i++)
      {
        const char *name = i == 0 ? "mask" : "segments";
        g_autoptr (EbbTensor) stacked = test_fixture_tensor (expected, "%s", name);
        g_autoptr (EbbTensor) one = ebb_select (stacked, 0, 0, &error);

        ebb_args_add_tensor (args, name, one);
      }
  ebb_push_grad_enabled (FALSE);
  result = ebb_module_call (model, args, &error);
  ebb_pop_grad_enabled ();
  g_assert_no_error (error);
  return ebb_args_get_tensor (result, 0);
}

/* A saved folder has the same tensors under the same names as the one that was opened. */
static void
folders_come_back_as_they_were (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    {
      g_autofree char *folder = test_model_fixture (rows[i]);
      g_autofree char *saved = test_scratch_path ("saved");
      g_autofree char *name = g_build_filename ("models", rows[i], "expected.safetensors", NULL);
      g_autofree char *config = test_folder_read (folder, "config.json");
      g_autofree char *config_saved = NULL;
      g_autoptr (EbbModule) model = test_model_open (folder);
      g_autoptr (EbbModule) again = NULL;
      g_autoptr (EbbArgs) expected = test_load_fixture (name);
      g_autoptr (EbbTensor) right = test_fixture_tensor (expected, "logits");
      g_autoptr (EbbTensor) logits = compute_logits (model, expected);

      g_test_message ("%s: %g", rows[i], test_difference (logits, right));
      test_model_save (model, saved);
      again = test_model_open (saved);
      test_assert_same_weights (model, again);
      config_saved = test_folder_read (saved, "config.json");
      g_assert_cmpstr (g_strchomp (config), ==, g_strchomp (config_saved));
      g_assert_true (test_folder_has (saved, "generation_config.json")
                     == test_folder_has (folder, "generation_config.json"));
      g_assert_false (test_folder_has (saved, "model.safetensors.index.json"));
      if (test_folder_has (folder, "model.safetensors"))
        {
          g_autoptr (EbbArgs) before = load_weights (folder);
          g_autoptr (EbbArgs) after = load_weights (saved);

          g_assert_cmpuint (ebb_args_get_length (before), ==, ebb_args_get_length (after));
          for (guint k = 0; k < ebb_args_get_length (after); k++)
            {
              int index = ebb_args_find (before, ebb_args_get_key (after, k));
              g_autoptr (EbbTensor) a = ebb_args_get_tensor (after, k);
              g_autoptr (EbbTensor) b = NULL;

              g_assert_cmpint (index, >=, 0);
              b = ebb_args_get_tensor (before, (guint) index);
              g_assert_cmpint (ebb_tensor_get_dtype (a), ==, ebb_tensor_get_dtype (b));
              g_assert_cmpmem (test_read (a), ebb_tensor_get_n_bytes (a), test_read (b), ebb_tensor_get_n_bytes (b));
            }
        }
      test_remove_tree (saved);
    }
}

/* One weight a file, or all that fit. */
static void
files_have_the_size_that_is_asked_for (void)
{
  static const guint64 sizes[] = { 1, 6000, 1000000 };
  g_autoptr (EbbModule) model = test_model_open_fixture ("gpt2");
  g_autofree char *saved = test_scratch_path ("saved");
  guint n_before = G_MAXUINT;

  for (guint i = 0; i < G_N_ELEMENTS (sizes); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbModule) again = NULL;
      guint n;

      ebb_model_save_full (model, saved, EBB_MODEL_KEEP_DTYPE, sizes[i], &error);
      g_assert_no_error (error);
      again = test_model_open (saved);
      test_assert_same_weights (model, again);
      n = test_folder_count (saved);
      g_assert_cmpuint (n, <, n_before); /* those of the last save are gone */
      g_assert_true (test_folder_has (saved, "model.safetensors") == (i == 2));
      g_assert_true (test_folder_has (saved, "model.safetensors.index.json") == (i < 2));
      n_before = n;
    }
  test_remove_tree (saved);
}

static void
weights_have_the_dtype_that_is_asked_for (void)
{
  g_autofree char *saved = test_scratch_path ("saved");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = test_model_open_fixture ("gpt2");
  g_autoptr (EbbModule) kept = NULL;
  g_autoptr (EbbModule) widened = NULL;
  g_autofree char *folder = test_model_fixture ("gpt2");
  g_autoptr (EbbModule) narrowed = ebb_model_open_full (folder, EBB_DTYPE_BF16, &error);
  g_autoptr (EbbArgs) a = NULL;
  g_autoptr (EbbArgs) b = NULL;
  g_autofree char *config = NULL;

  g_assert_no_error (error);
  ebb_model_save_full (model, saved, EBB_DTYPE_BF16, 0, &error);
  g_assert_no_error (error);
  config = test_folder_read (saved, "config.json");
  g_assert_nonnull (strstr (config, "\"bfloat16\""));
  kept = test_model_open (saved);
  test_assert_same_weights (kept, narrowed);
  widened = ebb_model_open_full (saved, EBB_DTYPE_F32, &error);
  g_assert_no_error (error);
  a = ebb_module_get_state_dict (widened);
  b = ebb_module_get_state_dict (model);
  for (guint i = 0; i < ebb_args_get_length (a); i++)
    {
      g_autoptr (EbbTensor) wide = ebb_args_get_tensor (a, i);
      g_autoptr (EbbTensor) original = ebb_args_get_tensor (b, i);
      g_autoptr (EbbTensor) narrow = ebb_cast (original, EBB_DTYPE_BF16, &error);
      g_autoptr (EbbTensor) right = ebb_cast (narrow, EBB_DTYPE_F32, &error);

      g_assert_cmpint (ebb_tensor_get_dtype (wide), ==, EBB_DTYPE_F32);
      test_assert_near (wide, right, 0);
    }
  g_assert_null (ebb_model_open_full (folder, EBB_DTYPE_I64, &error));
  test_assert_error (error, EBB_ERROR_DTYPE, "dtype is i64", "f32 or bf16");
  test_remove_tree (saved);
}

/* The folder with all of its weights cast. */
static void
cast_weights (const char *folder,
              EbbDType dtype)
{
  g_autoptr (EbbArgs) weights = load_weights (folder);
  g_autoptr (EbbArgs) cast = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < ebb_args_get_length (weights); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (weights, i);
      g_autoptr (EbbTensor) other = ebb_cast (tensor, dtype, NULL);

      ebb_args_add_tensor (cast, ebb_args_get_key (weights, i), other);
    }
  store_weights (folder, cast);
}

static void
half_floats_become_floats_with_a_message (void)
{
  g_autofree char *folder = test_model_copy ("gpt2");
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbModule) exact = test_model_open (folder);
  g_autoptr (EbbArgs) a = NULL;
  g_autoptr (EbbArgs) b = ebb_module_get_state_dict (exact);
  g_autoptr (GError) error = NULL;

  cast_weights (folder, EBB_DTYPE_F16);
  g_test_expect_message ("Ebb", G_LOG_LEVEL_MESSAGE, "*F16*converted to f32*");
  model = test_model_open (folder);
  g_test_assert_expected_messages ();
  a = ebb_module_get_state_dict (model);
  for (guint i = 0; i < ebb_args_get_length (a); i++)
    {
      g_autoptr (EbbTensor) one = ebb_args_get_tensor (a, i);
      g_autoptr (EbbTensor) other = ebb_args_get_tensor (b, i);
      g_autoptr (EbbTensor) half = ebb_cast (other, EBB_DTYPE_F16, &error);
      g_autoptr (EbbTensor) right = ebb_cast (half, EBB_DTYPE_F32, &error);

      g_assert_cmpint (ebb_tensor_get_dtype (one), ==, EBB_DTYPE_F32);
      test_assert_near (one, right, 0);
    }
  cast_weights (folder, EBB_DTYPE_I32);
  g_assert_null (ebb_model_open (folder, &error));
  test_assert_error (error, EBB_ERROR_DTYPE, "model.safetensors", "is I32", "F32, BF16 or F16");
}

/* A model that came from no folder. */
static void
a_new_model_gets_a_config_of_its_own (void)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbModule) again = NULL;
  g_autofree char *saved = test_scratch_path ("deep/er/saved");
  g_autofree char *deep = test_scratch_path ("deep");
  g_autofree char *text = NULL;
  g_autoptr (GError) error = NULL;

  config->layers = 1;
  config->width = 16;
  config->heads = 2;
  config->tied = FALSE;
  model = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  test_model_save (model, saved);
  text = test_folder_read (saved, "config.json");
  g_assert_nonnull (strstr (text, "\"GPT2LMHeadModel\""));
  again = test_model_open (saved);
  test_assert_same_weights (model, again);
  g_assert_cmpuint (test_folder_count (saved), ==, 2);
  g_clear_object (&again);
  again = ebb_linear_new (2, 2, FALSE, NULL);
  g_assert_false (ebb_model_save (again, saved, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "Linear", "Gpt or a Bert");
  test_remove_tree (deep);
}

static void
opening_leaves_the_generator_alone (void)
{
  g_autoptr (EbbModule) model = NULL;
  float drawn[2];

  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) tensor = NULL;

      ebb_manual_seed (7);
      if (i == 1)
        model = test_model_open_fixture ("gpt2");
      tensor = ebb_randn ((gint64[]){ 1 }, 1, EBB_DTYPE_F32, NULL, NULL, NULL);
      drawn[i] = test_at (tensor, 0);
    }
  g_assert_cmpfloat (drawn[0], ==, drawn[1]);
  g_assert_false (ebb_module_get_training (model));
}

/* -- what does not fit --------------------------------------------------------------------------------------------- */

static void
assert_refused (const char *folder,
                int code,
                const char *first,
                const char *second,
                const char *third)
{
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_model_open (folder, &error));
  test_assert_error (error, code, first, second, third);
}

static void
tensors_that_do_not_fit_are_listed (void)
{
  g_autofree char *folder = test_model_copy ("gpt2");
  g_autoptr (EbbArgs) weights = load_weights (folder);
  g_autoptr (EbbArgs) other = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < ebb_args_get_length (weights); i++)
    {
      const char *key = ebb_args_get_key (weights, i);
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (weights, i);
      g_autoptr (EbbTensor) flat = ebb_flatten (tensor, 0, -1, NULL);

      if (strstr (key, "ln_1.bias") == NULL)
        ebb_args_add_tensor (other, key, strstr (key, "c_fc.weight") != NULL ? flat : tensor);
      if (strstr (key, "wpe") != NULL)
        ebb_args_add_tensor (other, "transformer.h.0.extra", flat);
    }
  store_weights (folder, other);
  assert_refused (folder, EBB_ERROR_STATE, "do not fit config.json: missing (2): transformer.h.0.ln_1.bias",
                  "; unexpected (1): transformer.h.0.extra",
                  "; of another shape (2): transformer.h.0.mlp.c_fc.weight [");
}

/* A head that the embedding is tied to may be there as well, if it is the same. */
static void
a_tied_head_may_be_there_twice (void)
{
  g_autofree char *folder = test_model_copy ("gpt2");
  g_autoptr (EbbArgs) weights = load_weights (folder);
  int index = ebb_args_find (weights, "transformer.wte.weight");
  g_autoptr (EbbTensor) words = ebb_args_get_tensor (weights, (guint) index);
  g_autoptr (EbbTensor) other = ebb_neg (words, NULL);
  g_autoptr (EbbArgs) differing = NULL;
  g_autoptr (EbbModule) before = test_model_open (folder);
  g_autoptr (EbbModule) model = NULL;

  ebb_args_add_tensor (weights, "lm_head.weight", words);
  store_weights (folder, weights);
  model = test_model_open (folder);
  test_assert_same_weights (model, before);
  differing = load_weights (folder);
  index = ebb_args_find (differing, "lm_head.weight");
  {
    g_autoptr (EbbTensor) head = ebb_args_get_tensor (differing, (guint) index);

    g_assert_true (ebb_tensor_copy_from (head, other, NULL));
  }
  store_weights (folder, differing);
  assert_refused (folder, EBB_ERROR_STATE, "lm_head.weight differs", "tie_word_embeddings", NULL);
}

/* Files of a model without its head have no prefix. */
static void
names_may_lack_their_prefix (void)
{
  g_autofree char *folder = test_model_copy ("gpt2");
  g_autoptr (EbbArgs) weights = load_weights (folder);
  g_autoptr (EbbArgs) bare = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbModule) before = test_model_open (folder);
  g_autoptr (EbbModule) model = NULL;

  for (guint i = 0; i < ebb_args_get_length (weights); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (weights, i);

      ebb_args_add_tensor (bare, ebb_args_get_key (weights, i) + strlen ("transformer."), tensor);
    }
  store_weights (folder, bare);
  model = test_model_open (folder);
  test_assert_same_weights (model, before);
}

static void
folders_that_are_not_whole_are_refused (void)
{
  g_autofree char *folder = test_model_copy ("gpt2");
  g_autofree char *config = test_folder_read (folder, "config.json");
  g_autofree char *weights = g_build_filename (folder, "model.safetensors", NULL);
  g_autofree char *nowhere = test_scratch_path ("nowhere");
  g_autofree char *half = g_strndup (config, strlen (config) / 2);
  const char *lfs_pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";

  assert_refused (nowhere, EBB_ERROR_IO, "there is no folder ", "nowhere", NULL);
  assert_refused (weights, EBB_ERROR_IO, "model.safetensors is no folder", NULL, NULL);
  test_folder_write (folder, "config.json", half);
  assert_refused (folder, EBB_ERROR_FORMAT, "config.json", NULL, NULL);
  test_folder_write (folder, "config.json", "[]");
  assert_refused (folder, EBB_ERROR_STATE, "model_type is missing", "gpt2, llama", NULL);
  test_folder_write (folder, "config.json", config);
  test_folder_write (folder, "model.safetensors", "much too short");
  assert_refused (folder, EBB_ERROR_FORMAT, "model.safetensors", NULL, NULL);
  test_folder_write (folder, "model.safetensors", lfs_pointer);
  assert_refused (folder, EBB_ERROR_FORMAT, "model.safetensors", "a pointer of Git LFS", "git lfs pull");
  test_folder_write (folder, "config.json", lfs_pointer);
  assert_refused (folder, EBB_ERROR_FORMAT, "config.json", "a pointer of Git LFS", "git lfs pull");
  test_folder_write (folder, "config.json", config);
  g_assert_cmpint (g_remove (weights), ==, 0);
  assert_refused (folder, EBB_ERROR_FORMAT, "neither model.safetensors nor model.safetensors.index.json", NULL, NULL);
  test_folder_write (folder, "pytorch_model.bin", "pickle");
  assert_refused (folder, EBB_ERROR_FORMAT, "pytorch_model.bin is not read", "convert", "save_pretrained");
}

static void
an_index_that_does_not_fit_is_refused (void)
{
  static const struct
  {
    const char *index;
    int code;
    const char *words[3];
  } cases[] = {
    { "{\"weight_map\": {\"transformer.wte.weight\": \"../model.safetensors\"}}",
      EBB_ERROR_FORMAT,
      { "\"../model.safetensors\"", "the name of a file in the folder" } },
    { "{\"weight_map\": {\"transformer.wte.weight\": \"/etc/passwd\"}}", EBB_ERROR_FORMAT, { "\"/etc/passwd\"" } },
    { "{\"weight_map\": {\"transformer.wte.weight\": \"..\"}}", EBB_ERROR_FORMAT, { "\"..\"" } },
    { "{\"weight_map\": {\"transformer.wte.weight\": [1]}}", EBB_ERROR_FORMAT, { "not a string" } },
    { "{\"weight_map\": {\"transformer.wte.weight\": \"one.safetensors\"}}",
      EBB_ERROR_IO,
      { "one.safetensors", "No such" } },
    { "{\"weight_map\": {\"nothing\": \"part.safetensors\"}}",
      EBB_ERROR_FORMAT,
      { "\"nothing\" is not in \"part.safetensors\"" } },
    { "{\"weight_map\": {\"transformer.wte.weight\": \"part.safetensors\"}}",
      EBB_ERROR_FORMAT,
      { "the index does not have", "in part.safetensors" } },
    { "{\"weight_map\": {}}", EBB_ERROR_FORMAT, { "weight_map must be" } },
    { "{\"weight_map\": 3}", EBB_ERROR_FORMAT, { "weight_map must be" } },
    { "{}", EBB_ERROR_FORMAT, { "weight_map must be" } },
    { "{\"weight_map\": {", EBB_ERROR_FORMAT, { "model.safetensors.index.json" } },
  };
  g_autofree char *folder = test_model_copy ("gpt2");
  g_autofree char *from = g_build_filename (folder, "model.safetensors", NULL);
  g_autofree char *to = g_build_filename (folder, "part.safetensors", NULL);

  g_assert_cmpint (g_rename (from, to), ==, 0);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      test_folder_write (folder, "model.safetensors.index.json", cases[i].index);
      assert_refused (folder, cases[i].code, cases[i].words[0], cases[i].words[1], cases[i].words[2]);
    }
}

/* @config with the value that follows @key replaced. */
static char *
change_value (const char *config,
              const char *key,
              const char *value)
{
  g_auto (GStrv) parts = g_strsplit (config, key, 2);

  g_assert_nonnull (parts[1]);
  return g_strconcat (parts[0], key, value, parts[1] + strcspn (parts[1], ",\n"), NULL);
}

/* Sizes in config.json that belong to another model are found before there is one: most of these need more memory than
 * there is. */
static void
sizes_of_another_model_are_refused (void)
{
  static const char *const changes[][5] = {
    { "gpt2", "\"n_embd\": ", "4294968", "of another shape (", "transformer.wte.weight [64, 24], not [64, 4294968]" },
    { "gpt2", "\"n_embd\": ", "2000000000", "config.json: n_embd is 2000000000", "at most 536870911" },
    { "gpt2", "\"vocab_size\": ", "500000000", "of another shape (1): transformer.wte.weight [", "not [500000000, " },
    { "gpt2", "\"n_layer\": ", "60000", "config.json: n_layer is 60000", "tensors" },
    { "gpt2", "\"n_layer\": ", "1", "unexpected", "transformer.h.1." },
    { "gpt2", "\"n_positions\": ", "5000", "of another shape (1): transformer.wpe.weight", "not [5000, " },
    { "gpt2", "\"n_positions\": ", "500000000", "of another shape (1): transformer.wpe.weight", "not [500000000, " },
    { "llama2", "\"intermediate_size\": ", "500000000", "model.layers.0.mlp.gate_proj.weight [", "not [500000000, " },
    { "llama2", "\"num_hidden_layers\": ", "60000", "config.json: num_hidden_layers is 60000", "tensors" },
    { "qwen3", "\"head_dim\": ", "100000000", "model.layers.0.self_attn.q_norm.weight [", "not [100000000]" },
    { "bert", "\"intermediate_size\": ", "500000000", "bert.encoder.layer.0.intermediate.dense.weight [",
      "not [500000000, " },
    { "bert", "\"max_position_embeddings\": ", "500000000", "bert.embeddings.position_embeddings.weight [",
      "not [500000000, " },
  };

  for (guint i = 0; i < G_N_ELEMENTS (changes); i++)
    {
      g_autofree char *folder = test_model_copy (changes[i][0]);
      g_autofree char *config = test_folder_read (folder, "config.json");
      g_autofree char *changed = change_value (config, changes[i][1], changes[i][2]);

      test_folder_write (folder, "config.json", changed);
      assert_refused (folder, EBB_ERROR_STATE, folder, changes[i][3], changes[i][4]);
    }
}

int
main (int argc,
      char **argv)
{
  int status;

  test_init (&argc, &argv);
  test_scratch_begin ();
  g_test_add_func ("/model-folder/come-back-as-they-were", folders_come_back_as_they_were);
  g_test_add_func ("/model-folder/files-have-the-size-asked-for", files_have_the_size_that_is_asked_for);
  g_test_add_func ("/model-folder/weights-have-the-dtype-asked-for", weights_have_the_dtype_that_is_asked_for);
  g_test_add_func ("/model-folder/half-floats-become-floats", half_floats_become_floats_with_a_message);
  g_test_add_func ("/model-folder/new-model-gets-a-config", a_new_model_gets_a_config_of_its_own);
  g_test_add_func ("/model-folder/opening-leaves-the-generator-alone", opening_leaves_the_generator_alone);
  g_test_add_func ("/model-folder/tensors-that-do-not-fit-are-listed", tensors_that_do_not_fit_are_listed);
  g_test_add_func ("/model-folder/tied-head-may-be-there-twice", a_tied_head_may_be_there_twice);
  g_test_add_func ("/model-folder/names-may-lack-their-prefix", names_may_lack_their_prefix);
  g_test_add_func ("/model-folder/not-whole-is-refused", folders_that_are_not_whole_are_refused);
  g_test_add_func ("/model-folder/index-that-does-not-fit", an_index_that_does_not_fit_is_refused);
  g_test_add_func ("/model-folder/sizes-of-another-model", sizes_of_another_model_are_refused);
  status = g_test_run ();
  test_scratch_end ();
  return status;
}
