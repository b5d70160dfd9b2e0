/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/decoders.h"
#include "support/model-folders.h"
#include "support/tensors.h"
#include "support/training.h"

#include <math.h>
#include <string.h>

/* LoRA beside PEFT (tests/fixtures/make_lora.py), its adapters and their files, and what it refuses. */

static EbbTensor *
get (EbbArgs *tensors,
     const char *name)
{
  const int index = ebb_args_find (tensors, name);

  g_assert_cmpint (index, >=, 0);
  return ebb_args_get_tensor (tensors, (guint) index);
}

static char *
get_fixture (const char *row,
             const char *name)
{
  return g_test_build_filename (G_TEST_DIST, "fixtures", "lora", row, name, NULL);
}

static EbbModule *
open_adapted (const char *row,
              EbbArgs **expected)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *folder = get_fixture (row, NULL);
  g_autofree char *path = get_fixture (row, "expected.safetensors");
  g_autoptr (EbbModule) model = test_model_open_fixture (row);
  g_autoptr (EbbModule) same = ebb_lora_load (model, folder, NULL, &error);

  g_assert_no_error (error);
  g_assert_true (same == model);
  ebb_module_set_training (model, FALSE);
  *expected = ebb_load_safetensors (path, &error);
  g_assert_no_error (error);
  return g_object_ref (model);
}

static EbbTensor *
get_logits (EbbModule *model,
            EbbArgs *expected)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tokens = get (expected, "tokens");
  EbbTensor *logits = ebb_module_call1 (model, tokens, &error);

  g_assert_no_error (error);
  return logits;
}

static void
assert_logits (EbbModule *model,
               EbbArgs *expected,
               const char *name)
{
  g_autoptr (EbbTensor) logits = get_logits (model, expected);
  g_autoptr (EbbTensor) right = get (expected, name);

  g_assert_cmpfloat (test_difference (logits, right), <, 1e-5);
}

static void
assert_gradients (EbbModule *model,
                  EbbArgs *expected)
{
  g_auto (GStrv) names = ebb_module_get_parameter_names (model, TRUE);
  const char *prefix = g_str_has_prefix (names[0], "wte") ? "transformer." : "model.";
  guint n_trained = 0;

  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (model, names[i]);
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameter);
      g_auto (GStrv) parts = g_strsplit (names[i], ".default", -1);
      g_autofree char *key = g_strdup_printf ("grad.base_model.model.%s%s%s", prefix, parts[0],
                                              parts[1] != NULL ? parts[1] : "");
      g_autoptr (EbbTensor) right = NULL;

      g_assert_true ((grad != NULL) == (strstr (names[i], ".lora_") != NULL));
      if (grad == NULL)
        continue;
      right = get (expected, key);
      g_assert_cmpfloat (test_difference (grad, right), <, 1e-5);
      n_trained++;
    }
  g_assert_cmpuint (n_trained, >, 0);
}

static void
computes_what_peft_does (gconstpointer data)
{
  const char *row = data;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) expected = NULL;
  g_autoptr (EbbModule) model = open_adapted (row, &expected);
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (EbbTensor) targets = get (expected, "targets");
  g_autoptr (EbbTensor) right = get (expected, "loss");
  g_autoptr (EbbTensor) loss = NULL;

  assert_logits (model, expected, "logits");
  logits = get_logits (model, expected);
  loss = ebb_cross_entropy (logits, targets, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (fabs (test_sum (loss) - test_sum (right)), <, 1e-5);
  test_backward (loss);
  assert_gradients (model, expected);
}

static void
merges_and_unmerges (gconstpointer data)
{
  const char *row = data;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) expected = NULL;
  g_autoptr (EbbModule) plain = test_model_open_fixture (row);
  g_autoptr (EbbModule) model = open_adapted (row, &expected);
  g_autoptr (EbbTensor) without = NULL;
  g_autoptr (EbbTensor) logits = NULL;

  ebb_module_set_training (plain, FALSE);
  g_assert_true (ebb_lora_merge (model, &error));
  g_assert_true (ebb_lora_is_merged (model));
  assert_logits (model, expected, "merged_logits");
  g_assert_false (ebb_lora_merge (model, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_assert_nonnull (strstr (error->message, "is merged"));
  g_clear_error (&error);
  g_assert_true (ebb_lora_unmerge (model, &error));
  assert_logits (model, expected, "logits");
  g_assert_false (ebb_lora_unmerge (model, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_clear_error (&error);

  /* Without an adapter the model computes what it did before, up to rounding. */
  g_assert_true (ebb_lora_set_adapter (model, NULL, &error));
  without = get_logits (plain, expected);
  logits = get_logits (model, expected);
  g_assert_cmpfloat (test_difference (without, logits), <, 1e-5);
  g_assert_true (ebb_lora_unwrap (model, &error));
  g_assert_false (ebb_lora_is_wrapped (model));
}

/* Where there is memory for the products of some layers, and not for a larger one that comes later. */
static void
a_failed_merge_changes_nothing (gconstpointer data)
{
  const char *row = data;
  g_autoptr (EbbArgs) expected = NULL;
  g_autoptr (EbbModule) model = open_adapted (row, &expected);
  guint n_failed = 0;

  for (guint64 room = 0; !ebb_lora_is_merged (model); room += 1024)
    {
      g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (NULL);
      g_autoptr (GError) error = NULL;

      ebb_memory_set_limit (NULL, ebb_memory_stats_get_total (stats) + room);
      if (!ebb_lora_merge (model, &error))
        {
          g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
          n_failed++;
        }
      ebb_memory_set_limit (NULL, 0);
      assert_logits (model, expected, ebb_lora_is_merged (model) ? "merged_logits" : "logits");
    }
  g_assert_cmpuint (n_failed, >, 1);
}

/* Saved, and loaded under another name. */
static void
is_saved_as_it_was_loaded (gconstpointer data)
{
  const char *row = data;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) expected = NULL;
  g_autoptr (EbbModule) model = open_adapted (row, &expected);
  g_autoptr (EbbModule) other = test_model_open_fixture (row);
  g_autoptr (EbbModule) same = NULL;
  g_autofree char *folder = test_scratch_path ("adapter");
  g_autofree char *config = NULL;
  g_autofree char *described = ebb_lora_make_config (model, NULL, &error);

  g_assert_true (ebb_lora_save (model, folder, NULL, &error));
  g_assert_no_error (error);
  same = ebb_lora_load (other, folder, "again", &error);
  g_assert_no_error (error);
  ebb_module_set_training (other, FALSE);
  assert_logits (other, expected, "logits");
  config = test_folder_read (folder, "adapter_config.json");
  g_assert_cmpstr (described, ==, config);
  g_assert_nonnull (strstr (config, strcmp (row, "gpt2") == 0 ? "\"fan_in_fan_out\": true"
                                                              : "\"fan_in_fan_out\": false"));
  g_assert_nonnull (strstr (config, "\"peft_type\": \"LORA\""));
  test_remove_tree (folder);
}

static EbbLoraOptions *
new_options (int rank,
             const char *target,
             const char *adapter)
{
  const char *targets[] = { target, NULL };
  EbbLoraOptions *options = ebb_lora_options_new ();

  g_object_set (options, "rank", rank, "adapter", adapter, NULL);
  if (target != NULL)
    g_object_set (options, "targets", targets, NULL);
  return options;
}

static void
wrap (EbbModule *model,
      int rank,
      const char *target,
      const char *adapter)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbLoraOptions) options = new_options (rank, target, adapter);
  g_autoptr (EbbModule) same = ebb_lora_wrap (model, options, &error);

  g_assert_no_error (error);
  g_assert_true (same == model);
}

/* The new branches change nothing, and every base parameter has the name that it had. */
static void
begins_as_the_model (void)
{
  g_autoptr (EbbModule) model = test_decoder_new ("llama3", 1);
  g_autoptr (EbbTensor) tokens = test_tokens (3, 64, 2, 9, -1);
  g_auto (GStrv) names = ebb_module_get_parameter_names (model, TRUE);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) before = ebb_module_call1 (model, tokens, &error);
  g_autoptr (EbbTensor) after = NULL;

  wrap (model, 4, NULL, "default");
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (model, names[i]);

      g_assert_nonnull (parameter);
      g_assert_false (ebb_tensor_get_requires_grad (parameter));
    }
  after = ebb_module_call1 (model, tokens, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (test_difference (before, after), ==, 0);
  g_assert_true (ebb_lora_unwrap (model, &error));
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (model, names[i]);

      g_assert_true (ebb_tensor_get_requires_grad (parameter));
    }
}

static void
assert_fails (EbbModule *model,
              EbbLoraOptions *options,
              int code,
              const char *message)
{
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_lora_wrap (model, options, &error));
  g_assert_error (error, EBB_ERROR, code);
  g_assert_cmpstr (error->message, ==, message);
}

static void
refuses_bad_options (void)
{
  g_autoptr (EbbModule) model = test_decoder_new ("llama3", 1);
  g_autoptr (EbbLoraOptions) nothing = new_options (4, "c_attn", "default");
  g_autoptr (EbbLoraOptions) no_rank = new_options (0, NULL, "default");
  g_autoptr (EbbLoraOptions) bad_name = new_options (4, NULL, "a.b");
  g_autoptr (EbbLoraOptions) same = new_options (4, NULL, "default");
  g_autoptr (GError) error = NULL;

  assert_fails (model, nothing, EBB_ERROR_INVALID_ARGUMENT,
                "lora: the target \"c_attn\" matches no linear layer of this Gpt; it has down_proj, gate_proj, k_proj, "
                "o_proj, q_proj, up_proj, v_proj");
  assert_fails (model, no_rank, EBB_ERROR_INVALID_ARGUMENT, "lora: rank is 0, it must be at least 1");
  assert_fails (model, bad_name, EBB_ERROR_INVALID_ARGUMENT,
                "lora: \"a.b\" can't name an adapter; a name has at least one character, no dot and no slash");
  g_assert_false (ebb_lora_is_wrapped (model));
  g_assert_false (ebb_lora_merge (model, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  wrap (model, 4, NULL, "default");
  assert_fails (model, same, EBB_ERROR_STATE,
                "lora: there is an adapter \"default\" already; give this one another name");
}

static void
assert_load_fails (EbbModule *model,
                   const char *folder,
                   int code,
                   const char *part)
{
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_lora_load (model, folder, NULL, &error));
  g_assert_error (error, EBB_ERROR, code);
  g_assert_nonnull (strstr (error->message, part));
  g_assert_null (strchr (error->message, '\n'));
  g_assert_false (ebb_lora_is_wrapped (model));
}

static void
change_config (const char *folder,
               const char *from,
               const char *to)
{
  g_autofree char *text = test_folder_read (folder, "adapter_config.json");
  g_auto (GStrv) parts = g_strsplit (text, from, 2);
  g_autofree char *changed = g_strjoinv (to, parts);

  g_assert_nonnull (parts[1]);
  test_folder_write (folder, "adapter_config.json", changed);
}

static void
refuses_adapters_of_others (void)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *gpt2 = get_fixture ("gpt2", NULL);
  g_autofree char *folder = test_scratch_path ("adapter");
  g_autoptr (EbbArgs) expected = NULL;
  g_autoptr (EbbModule) adapted = open_adapted ("llama3", &expected);
  g_autoptr (EbbModule) model = test_model_open_fixture ("llama3");

  assert_load_fails (model, gpt2, EBB_ERROR_STATE, "the adapter is of another model");
  g_assert_true (ebb_lora_save (adapted, folder, NULL, &error));
  change_config (folder, "\"r\": 3", "\"r\": 5");
  assert_load_fails (model, folder, EBB_ERROR_SHAPE, "is [3, 24]: for rank 5 and this model it must be [5, 24]");
  change_config (folder, "\"bias\": \"none\"", "\"bias\": \"all\"");
  assert_load_fails (model, folder, EBB_ERROR_NOT_SUPPORTED, "bias is \"all\"");
  test_remove_tree (folder);
}

/* Whatever an adapter of PEFT's has that branches of linear layers are not is named by its key. */
static void
refuses_what_is_not_there_by_its_key (void)
{
  static const struct
  {
    const char *key, *value;
  } asked[] = {
    { "peft_type", "\"LOHA\"" },
    { "bias", "\"lora_only\"" },
    { "use_dora", "true" },
    { "use_qalora", "true" },
    { "use_bdlora", "{}" },
    { "lora_bias", "true" },
    { "modules_to_save", "[\"lm_head\"]" },
    { "rank_pattern", "{\"q_proj\": 8}" },
    { "alpha_pattern", "{\"q_proj\": 8}" },
    { "layer_replication", "[[0, 1]]" },
    { "trainable_token_indices", "[1]" },
    { "target_parameters", "[\"w\"]" },
    { "alora_invocation_tokens", "[1]" },
    { "arrow_config", "{}" },
    { "kasa_config", "{}" },
    { "lora_ga_config", "{}" },
    { "monteclora_config", "{}" },
    { "velora_config", "{}" },
    { "init_lora_weights", "\"pissa\"" },
    { "ensure_weight_tying", "true" },
    { "megatron_config", "{}" },
    { "peft_type", "null" },
    { "r", "2.5" },
    { "lora_alpha", "0" },
    { "lora_dropout", "\"0\"" },
    { "use_a_new_way", "true" },
    { "new_sizes", "{\"q_proj\": 2}" },
    { "new_number", "0" },
    { "r", "0" },
    { "r", "null" },
    { "lora_alpha", "\"8\"" },
    { "lora_dropout", "1" },
    { "use_rslora", "\"yes\"" },
  };
  g_autofree char *folder = test_scratch_path ("adapter");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) expected = NULL;
  g_autoptr (EbbModule) adapted = open_adapted ("llama3", &expected);
  g_autoptr (EbbModule) model = test_model_open_fixture ("llama3");
  g_autoptr (EbbModule) loaded = NULL;

  assert_load_fails (model, folder, EBB_ERROR_IO, "adapter_config.json");
  g_assert_true (ebb_lora_save (adapted, folder, NULL, &error));
  for (guint i = 0; i < G_N_ELEMENTS (asked); i++)
    {
      static const char *const others[] = { "\"peft_type\": \"LORA\"", "\"r\": 3", "\"lora_alpha\": 5" };
      g_autoptr (GString) text = g_string_new ("{");
      g_autofree char *named = g_strdup_printf ("adapter_config.json: %s is ", asked[i].key);
      g_autofree char *quoted = g_strdup_printf ("\"%s\"", asked[i].key);

      for (guint k = 0; k < G_N_ELEMENTS (others); k++)
        if (!g_str_has_prefix (others[k], quoted))
          g_string_append_printf (text, "%s, ", others[k]);
      g_string_append_printf (text, "%s: %s}", quoted, asked[i].value);
      test_folder_write (folder, "adapter_config.json", text->str);
      assert_load_fails (model, folder, EBB_ERROR_NOT_SUPPORTED, named);
      ebb_push_dry_run ();
      assert_load_fails (model, folder, EBB_ERROR_NOT_SUPPORTED, named);
      ebb_pop_dry_run ();
    }
  test_folder_write (
      folder, "adapter_config.json",
      "{\"peft_type\": \"LORA\", \"r\": 3, \"lora_alpha\": 5, \"a\": null, \"b\": false, \"c\": [], \"d\": {}, "
      "\"peft_version\": \"0.18.0\", \"qalora_group_size\": 16, \"loftq_config\": {\"loftq_bits\": 4}}");
  loaded = ebb_lora_load (model, folder, NULL, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_lora_unwrap (model, &error));
  test_folder_write (folder, "adapter_config.json", "{\"r\": 3, \"lora_alpha\": 5}");
  assert_load_fails (model, folder, EBB_ERROR_NOT_SUPPORTED, "peft_type is missing");
  test_folder_write (folder, "adapter_config.json", "{");
  assert_load_fails (model, folder, EBB_ERROR_FORMAT, "adapter_config.json");
  test_remove_tree (folder);
}

static EbbArgs *
copy_with (EbbArgs *tensors, const char *key, EbbTensor *tensor)
{
  EbbArgs *copy = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < ebb_args_get_length (tensors); i++)
    {
      g_autoptr (EbbTensor) other = ebb_args_get_tensor (tensors, i);

      ebb_args_add_tensor (copy, ebb_args_get_key (tensors, i), other);
    }
  ebb_args_add_tensor (copy, key, tensor);
  return copy;
}

/* PEFT saves the head's own weight beside its branch, as "base_layer", and a head with the embedding's weight has no
 * layer of its own here. */
static void
adapters_of_heads_have_the_head_too (void)
{
  static const char key[] = "base_model.model.lm_head.base_layer.weight";
  const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16 };
  g_autofree char *folder = test_scratch_path ("adapter");
  g_autofree char *path = g_build_filename (folder, "adapter_model.safetensors", NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = test_model_open_fixture ("llama2");
  g_autoptr (EbbModule) tied = test_model_open_fixture ("llama3");
  g_autoptr (EbbTensor) tokens = test_tokens (3, 64, 2, 9, -1);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (model, "lm_head.weight");
  g_autoptr (EbbTensor) wrong = ebb_mul_scalar (weight, 2, NULL);
  g_autoptr (EbbTensor) b = NULL;
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (EbbArgs) tensors = NULL;
  g_autoptr (EbbArgs) others = NULL;

  wrap (model, 3, "lm_head", "default");
  b = ebb_module_get_parameter (model, "lm_head.lora_B.default.weight");
  ebb_push_grad_enabled (FALSE);
  g_assert_true (ebb_tensor_fill (b, 0.3, &error));
  ebb_pop_grad_enabled ();
  ebb_module_set_training (model, FALSE);
  logits = ebb_module_call1 (model, tokens, &error);
  g_assert_true (ebb_lora_save (model, folder, NULL, &error));
  tensors = ebb_load_safetensors (path, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < G_N_ELEMENTS (dtypes); i++)
    {
      g_autoptr (EbbTensor) detached = ebb_tensor_detach (weight);
      g_autoptr (EbbTensor) saved = ebb_cast (detached, dtypes[i], &error);
      g_autoptr (EbbArgs) with = copy_with (tensors, key, saved);
      g_autoptr (EbbModule) other = test_model_open_fixture ("llama2");
      g_autoptr (EbbModule) same = NULL;
      g_autoptr (EbbTensor) again = NULL;

      g_assert_true (ebb_save_safetensors (path, with, NULL, &error));
      same = ebb_lora_load (other, folder, NULL, &error);
      g_assert_no_error (error);
      ebb_module_set_training (other, FALSE);
      again = ebb_module_call1 (other, tokens, &error);
      g_assert_true (ebb_tensor_equal (again, logits));
    }
  assert_load_fails (tied, folder, EBB_ERROR_NOT_SUPPORTED, "this model's head has the embedding's weight");
  others = copy_with (tensors, key, wrong);
  g_assert_true (ebb_lora_unwrap (model, &error));
  g_assert_true (ebb_save_safetensors (path, others, NULL, &error));
  assert_load_fails (model, folder, EBB_ERROR_STATE, "lm_head.base_layer.weight is not the model's own weight");
  test_remove_tree (folder);
}

/* Phi-3's folder joins queries, keys and values, which have branches of their own here. */
static void
joined_layers_have_no_form_in_files (void)
{
  g_autofree char *folder = test_scratch_path ("adapter");
  g_autofree char *path = g_build_filename (folder, "adapter_model.safetensors", NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = test_model_open_fixture ("phi3");
  g_autoptr (EbbModule) other = test_model_open_fixture ("phi3");
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (EbbArgs) tensors = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbTensor) a = ebb_zeros ((gint64[]){ 3, 24 }, 2, EBB_DTYPE_F32, NULL, &error);

  wrap (model, 3, "q_proj", "queries");
  g_assert_false (ebb_lora_check_save (model, folder, NULL, &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "layers.0.self_attn.q_proj", "joined with others");
  g_clear_error (&error);
  g_assert_false (ebb_lora_save (model, folder, NULL, &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "layers.0.self_attn.q_proj", "joined with others");
  g_clear_error (&error);
  g_assert_null (ebb_lora_make_config (model, NULL, &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "layers.0.self_attn.q_proj", "joined with others");
  g_clear_error (&error);
  wrap (model, 3, "o_proj", "outputs");
  g_assert_true (ebb_lora_check_save (model, folder, "outputs", &error));
  g_assert_true (ebb_lora_save (model, folder, "outputs", &error));
  same = ebb_lora_load (other, folder, NULL, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_lora_unwrap (other, &error));
  ebb_args_add_tensor (tensors, "base_model.model.model.layers.0.self_attn.qkv_proj.lora_A.weight", a);
  g_assert_true (ebb_save_safetensors (path, tensors, NULL, &error));
  assert_load_fails (other, folder, EBB_ERROR_NOT_SUPPORTED, "qkv_proj.lora_A.weight is of a layer that joins others");
  test_remove_tree (folder);
}

/* A model's folder has no place for branches, merged or not. */
static void
a_model_with_adapters_is_not_saved_as_one_without (void)
{
  g_autofree char *folder = test_scratch_path ("model");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) expected = NULL;
  g_autoptr (EbbModule) model = open_adapted ("llama3", &expected);
  g_autoptr (EbbModule) saved = NULL;

  for (guint merged = 0; merged < 2; merged++)
    {
      g_assert_false (ebb_model_save (model, folder, &error));
      test_assert_error (error, EBB_ERROR_STATE, "lora: this Gpt has adapters", "ebb_lora_unwrap ()");
      g_clear_error (&error);
      g_assert_false (g_file_test (folder, G_FILE_TEST_EXISTS));
      g_assert_true (merged || ebb_lora_merge (model, &error));
    }
  g_assert_false (ebb_lora_set_adapter (model, NULL, &error));
  test_assert_error (error, EBB_ERROR_STATE, "is merged: choose another one after ebb_lora_unmerge ()");
  g_clear_error (&error);
  g_assert_true (ebb_lora_unwrap (model, &error));
  g_assert_true (ebb_model_save (model, folder, &error));
  saved = ebb_model_open (folder, &error);
  g_assert_no_error (error);
  assert_logits (saved, expected, "merged_logits");
  test_remove_tree (folder);
}

/* Two adapters with the values of two models: switching by name gives each one's results. */
static void
adapters_are_switched (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) expected = NULL;
  g_autoptr (EbbModule) model = open_adapted ("llama3", &expected);
  g_autoptr (EbbTensor) other = NULL;
  g_autoptr (EbbTensor) first = get_logits (model, expected);
  g_auto (GStrv) adapters = NULL;
  g_autofree char *chosen = NULL;

  wrap (model, 2, "up_proj", "second");
  chosen = ebb_lora_get_adapter (model);
  g_assert_cmpstr (chosen, ==, "second");
  adapters = ebb_lora_get_adapters (model);
  g_assert_cmpuint (g_strv_length (adapters), ==, 2);
  other = get_logits (model, expected);
  g_assert_cmpfloat (test_difference (first, other), >, 1e-3);
  g_assert_true (ebb_lora_set_adapter (model, "default", &error));
  assert_logits (model, expected, "logits");
  g_assert_false (ebb_lora_set_adapter (model, "third", &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_cmpstr (error->message, ==, "lora: there is no adapter \"third\"; there are default, second");
}

/* A step trains the branches alone: the base keeps its values, and AdamW has moments for the branches alone. */
static void
trains_branches_alone (void)
{
  g_autoptr (EbbModule) model = test_decoder_new ("llama3", 1);
  g_autoptr (EbbModule) plain = test_decoder_new ("llama3", 1);
  g_autoptr (EbbTensor) tokens = test_tokens (3, 64, 2, 9, -1);
  g_auto (GStrv) names = ebb_module_get_parameter_names (plain, TRUE);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;

  wrap (model, 4, NULL, "default");
  optimizer = EBB_OPTIMIZER (ebb_adamw_new (model, 1e-2, &error));
  g_assert_no_error (error);
  for (guint step = 0; step < 2; step++)
    {
      g_autoptr (EbbTensor) y = ebb_module_call1 (model, tokens, &error);
      g_autoptr (EbbTensor) loss = test_loss (y);

      test_backward (loss);
      g_assert_true (ebb_optimizer_step (optimizer, &error));
      ebb_optimizer_zero_grad (optimizer);
    }
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autoptr (EbbTensor) a = ebb_module_get_parameter (model, names[i]);
      g_autoptr (EbbTensor) b = ebb_module_get_parameter (plain, names[i]);

      g_assert_cmpfloat (test_difference (a, b), ==, 0);
    }
}

/* All layers that end in c_proj have branches, and in a folder's names, where they end in dense, others do too. */
static void
names_of_bert_are_whole (void)
{
  static const char *const targets[] = { "c_proj", NULL };
  g_autoptr (GError) error = NULL;
  g_autofree char *folder = test_scratch_path ("adapter");
  g_autoptr (EbbModule) model = test_model_open_fixture ("bert");
  g_autoptr (EbbModule) other = test_model_open_fixture ("bert");
  g_autoptr (EbbLoraOptions) options = ebb_lora_options_new ();
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (EbbModule) loaded = NULL;
  g_autofree char *config = NULL;

  g_object_set (options, "rank", 2, "targets", targets, NULL);
  same = ebb_lora_wrap (model, options, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_lora_save (model, folder, NULL, &error));
  config = test_folder_read (folder, "adapter_config.json");
  g_assert_nonnull (strstr (config, "\"bert.encoder.layer.0.attention.output.dense\", "
                                    "\"bert.encoder.layer.0.output.dense\""));
  g_assert_null (strstr (config, "\"dense\""));
  loaded = ebb_lora_load (other, folder, NULL, &error);
  g_assert_no_error (error);
  test_remove_tree (folder);
}

/* The memory of a device ends while branches are made, or while their values are copied there. */
static void
check_failed_loads (const char *before)
{
  g_autoptr (GError) error = NULL;
  EbbDevice *device = ebb_device_get ("sim", &error);
  g_autofree char *folder = get_fixture ("llama3", NULL);
  g_autoptr (EbbModule) model = test_model_open_fixture ("llama3");
  g_auto (GStrv) names = NULL;
  guint n_failed = 0;
  gboolean is_loaded = FALSE;

  g_assert_true (ebb_module_to_device (model, device, &error));
  if (before != NULL)
    g_object_unref (ebb_lora_load (model, folder, before, &error));
  g_assert_no_error (error);
  names = ebb_module_get_parameter_names (model, TRUE);
  for (guint64 room = 0; !is_loaded; room += 256)
    {
      g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);
      g_autoptr (GError) failure = NULL;
      g_autoptr (EbbModule) same = NULL;
      g_auto (GStrv) left = NULL;
      g_autofree char *chosen = NULL;

      ebb_memory_set_limit (device, ebb_memory_stats_get_total (stats) + room);
      same = ebb_lora_load (model, folder, "second", &failure);
      ebb_memory_set_limit (device, 0);
      is_loaded = same != NULL;
      if (is_loaded)
        continue;
      n_failed++;
      g_assert_error (failure, EBB_ERROR, EBB_ERROR_NO_MEMORY);
      left = ebb_module_get_parameter_names (model, TRUE);
      chosen = ebb_lora_get_adapter (model);
      g_assert_cmpstrv (left, names);
      g_assert_cmpstr (chosen, ==, before);
      g_assert_true (ebb_lora_is_wrapped (model) == (before != NULL));
    }
  g_assert_cmpuint (n_failed, >, 8);
}

static void
a_failed_load_leaves_none (void)
{
  check_failed_loads (NULL);
  check_failed_loads ("first");
}

static void
add_rows (const char *path,
          GTestDataFunc func)
{
  static const char *const rows[] = { "gpt2", "llama3", "qwen3" };

  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    {
      g_autofree char *name = g_strdup_printf ("%s/%s", path, rows[i]);

      g_test_add_data_func (name, rows[i], func);
    }
}

int
main (int argc,
      char **argv)
{
  int result;

  g_test_init (&argc, &argv, NULL);
  test_scratch_begin ();
  add_rows ("/lora/computes-what-peft-does", computes_what_peft_does);
  add_rows ("/lora/merges-and-unmerges", merges_and_unmerges);
  add_rows ("/lora/a-failed-merge-changes-nothing", a_failed_merge_changes_nothing);
  add_rows ("/lora/is-saved-as-it-was-loaded", is_saved_as_it_was_loaded);
  g_test_add_func ("/lora/begins-as-the-model", begins_as_the_model);
  g_test_add_func ("/lora/refuses-bad-options", refuses_bad_options);
  g_test_add_func ("/lora/refuses-adapters-of-others", refuses_adapters_of_others);
  g_test_add_func ("/lora/refuses-what-is-not-there-by-its-key", refuses_what_is_not_there_by_its_key);
  g_test_add_func ("/lora/joined-layers-have-no-form-in-files", joined_layers_have_no_form_in_files);
  g_test_add_func ("/lora/a-model-with-adapters-is-not-saved-as-one-without",
                   a_model_with_adapters_is_not_saved_as_one_without);
  g_test_add_func ("/lora/names-of-bert-are-whole", names_of_bert_are_whole);
  g_test_add_func ("/lora/a-failed-load-leaves-none", a_failed_load_leaves_none);
  g_test_add_func ("/lora/adapters-are-switched", adapters_are_switched);
  g_test_add_func ("/lora/heads", adapters_of_heads_have_the_head_too);
  g_test_add_func ("/lora/trains-branches-alone", trains_branches_alone);
  result = g_test_run ();
  test_scratch_end ();
  return result;
}
