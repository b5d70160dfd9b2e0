/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */

/* Folders of quantised models: quantised while they are opened, saved, opened again bit for bit, and those of
 * transformers; what is damaged is refused in one line. */

#include <string.h>

#include "nn/layers/layer-private.h"
#include "nn/models/folder/weights-private.h"
#include "support/device.h"
#include "support/fixtures.h"
#include "support/model-folders.h"
#include "support/tensors.h"

static const EbbQuantization quantizations[] = { EBB_QUANTIZATION_INT8, EBB_QUANTIZATION_NF4 };

static EbbModule *
open_quantized (const char *folder,
                EbbQuantization quantization)
{
  g_autoptr (GError) error = NULL;
  EbbModule *model = ebb_model_open_quantized (folder, EBB_MODEL_KEEP_DTYPE, quantization, &error);

  g_assert_no_error (error);
  return model;
}

/* All tensors of both, bit for bit. */
static void
assert_same (EbbModule *a,
             EbbModule *b)
{
  g_autoptr (EbbArgs) x = ebb_module_get_state_dict (a);
  g_autoptr (EbbArgs) y = ebb_module_get_state_dict (b);

  g_assert_cmpuint (ebb_args_get_length (x), ==, ebb_args_get_length (y));
  for (guint i = 0; i < ebb_args_get_length (x); i++)
    {
      g_autoptr (EbbTensor) one = ebb_args_get_tensor (x, i);
      g_autoptr (EbbTensor) other = ebb_args_get_tensor (y, i);

      g_assert_cmpstr (ebb_args_get_key (x, i), ==, ebb_args_get_key (y, i));
      g_assert_cmpint (ebb_tensor_get_dtype (one), ==, ebb_tensor_get_dtype (other));
      g_assert_cmpmem (test_read (one), ebb_tensor_get_n_bytes (one), test_read (other),
                       ebb_tensor_get_n_bytes (other));
    }
}

static EbbTensor *
get_logits (EbbModule *model)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tokens = test_tokens (3, 60, 2, 9, -1);
  EbbTensor *logits = ebb_module_call1 (model, tokens, &error);

  g_assert_no_error (error);
  return logits;
}

/* Opening gives what quantising in memory gives. */
static void
opening_quantises (void)
{
  static const char *const rows[] = { "llama3", "gpt2", "smollm", "phi3" };

  for (gsize i = 0; i < G_N_ELEMENTS (rows); i++)
    for (gsize q = 0; q < G_N_ELEMENTS (quantizations); q++)
      {
        g_autoptr (GError) error = NULL;
        g_autofree char *folder = test_model_fixture (rows[i]);
        g_autoptr (EbbModule) opened = open_quantized (folder, quantizations[q]);
        g_autoptr (EbbModule) quantised = test_model_open (folder);

        g_assert_true (ebb_quantize (quantised, quantizations[q], &error));
        g_assert_no_error (error);
        assert_same (opened, quantised);
        g_assert_cmpint (ebb_get_quantization (opened), ==, quantizations[q]);
      }
}

static void
saved_and_opened_again (void)
{
  static const char *const rows[] = { "llama3", "gpt2", "smollm" };

  for (gsize i = 0; i < G_N_ELEMENTS (rows); i++)
    for (gsize q = 0; q < G_N_ELEMENTS (quantizations); q++)
      {
        g_autofree char *folder = test_model_fixture (rows[i]);
        g_autofree char *path = test_scratch_path ("saved");
        g_autofree char *twice = test_scratch_path ("twice");
        g_autoptr (EbbModule) model = open_quantized (folder, quantizations[q]);
        g_autoptr (EbbModule) again = NULL;
        g_autoptr (EbbModule) same = NULL;
        g_autoptr (EbbTensor) logits = get_logits (model);
        g_autoptr (EbbTensor) expected = NULL;
        g_autofree char *config = NULL;

        test_model_save (model, path);
        again = test_model_open (path);
        assert_same (model, again);
        expected = get_logits (again);
        test_assert_near (logits, expected, 0);
        config = test_folder_read (path, "config.json");
        g_assert_nonnull (strstr (config, "\"quant_method\": \"bitsandbytes\""));
        test_model_save (again, twice);
        same = open_quantized (twice, quantizations[q]);
        assert_same (model, same);
        test_remove_tree (path);
        test_remove_tree (twice);
      }
}

/* int8 rows can be joined and divided: all architectures. */
static void
int8_joins_and_divides (void)
{
  static const char *const rows[] = { "phi3", "bert" };

  for (gsize i = 0; i < G_N_ELEMENTS (rows); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autofree char *folder = test_model_fixture (rows[i]);
      g_autofree char *path = test_scratch_path ("saved");
      g_autoptr (EbbModule) model = open_quantized (folder, EBB_QUANTIZATION_INT8);
      g_autoptr (EbbModule) again = NULL;
      g_autoptr (EbbModule) nf4 = open_quantized (folder, EBB_QUANTIZATION_NF4);

      test_model_save (model, path);
      again = test_model_open (path);
      assert_same (model, again);
      test_remove_tree (path);
      g_assert_false (ebb_model_save (nf4, path, &error));
      test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "nf4", "use int8");
      g_assert_false (g_file_test (path, G_FILE_TEST_EXISTS));
    }
}

static void
transformers_folder_opens (void)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *row = test_model_fixture ("llama3");
  g_autofree char *folder = g_build_filename (row, "..", "..", "quantized", "llama3-nf4", NULL);
  g_autofree char *path = g_build_filename (folder, "expected.safetensors", NULL);
  g_autofree char *row_path = g_build_filename (row, "expected.safetensors", NULL);
  g_autoptr (EbbModule) model = test_model_open (folder);
  g_autoptr (EbbModule) own = open_quantized (row, EBB_QUANTIZATION_NF4);
  g_autoptr (EbbArgs) expected = ebb_load_safetensors (path, &error);
  g_autoptr (EbbArgs) rows = ebb_load_safetensors (row_path, &error);
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) batch = NULL;
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (EbbTensor) theirs = NULL;
  g_autoptr (EbbTensor) cpu = NULL;

  g_assert_no_error (error);
  g_assert_cmpint (ebb_get_quantization (model), ==, EBB_QUANTIZATION_NF4);
  tokens = test_fixture_tensor (rows, "tokens");
  batch = ebb_select (tokens, 0, 0, &error);
  logits = ebb_module_call1 (model, batch, &error);
  g_assert_no_error (error);
  cpu = ebb_to_device (logits, ebb_device_get_cpu (), &error);
  theirs = test_fixture_tensor (expected, "logits");
  g_assert_cmpfloat (test_relative_difference (logits, theirs), <=, 1e-5);
  g_assert_nonnull (own);
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

/* @full: the bytes of the full weights. */
static EbbModule *
open_within (const char *folder,
             EbbQuantization quantization,
             guint64 full)
{
  EbbDevice *cpu = ebb_device_get_cpu ();
  EbbMemoryStats *stats = ebb_memory_get_stats (cpu);
  const guint64 before = ebb_memory_stats_get_total (stats);
  EbbModule *model;

  ebb_memory_stats_free (stats);
  ebb_memory_reset_peaks (cpu);
  model = open_quantized (folder, quantization);
  stats = ebb_memory_get_stats (cpu);
  /* A weight of 512 x 128 in f32, what is quantised, and the rest: 1 / 4 of all would be int8 alone. */
  g_assert_cmpuint (ebb_memory_stats_get_peak_total (stats) - before, <, full / 4 + 512 * 128 * 4 + 131072);
  ebb_memory_stats_free (stats);
  return model;
}

/* One full weight at a time: a wide model's peak is far below its full weights. */
static void
opening_needs_one_full_weight (void)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *path = test_scratch_path ("wide");
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  guint64 full;

  if (!test_device_is_cpu ())
    {
      g_test_skip ("the host's memory is counted");
      return;
    }
  config->vocab = 64;
  config->context = 16;
  config->layers = 8;
  config->heads = 4;
  config->width = 128;
  {
    g_autoptr (EbbModule) model = ebb_gpt_new (config, &error);

    g_assert_no_error (error);
    full = 4 * ebb_module_count_parameters (model);
    test_model_save (model, path);
  }
  for (gsize q = 0; q < G_N_ELEMENTS (quantizations); q++)
    {
      g_autofree char *saved = test_scratch_path ("saved");
      g_autoptr (EbbModule) model = open_within (path, quantizations[q], full);
      g_autoptr (EbbModule) again = NULL;

      test_model_save (model, saved);
      again = open_within (saved, EBB_QUANTIZATION_NONE, full);
      assert_same (model, again);
      test_remove_tree (saved);
    }
  test_remove_tree (path);
}

/* -- what is refused ----------------------------------------------------------------------------------------------- */

static void
check_config (const char *key,
              const char *from,
              const char *to,
              const char *word)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *folder = test_model_fixture ("llama3");
  g_autofree char *path = test_scratch_path ("config");
  g_autoptr (EbbModule) model = open_quantized (folder, EBB_QUANTIZATION_NF4);
  g_autoptr (EbbModule) refused = NULL;
  g_autofree char *text = NULL;
  g_auto (GStrv) parts = NULL;
  g_autofree char *changed = NULL;

  test_model_save (model, path);
  text = test_folder_read (path, "config.json");
  parts = g_strsplit (text, from, 2);
  g_assert_nonnull (parts[1]);
  changed = g_strjoinv (to, parts);
  test_folder_write (path, "config.json", changed);
  refused = ebb_model_open (path, &error);
  g_assert_null (refused);
  test_assert_error (error, EBB_ERROR_STATE, key, word);
  test_remove_tree (path);
}

static void
configs_are_refused (void)
{
  check_config ("quant_method", "\"bitsandbytes\"", "\"gptq\"", "bitsandbytes");
  check_config ("bnb_4bit_quant_type", "\"nf4\"", "\"fp4\"", "nf4");
  check_config ("bnb_4bit_use_double_quant", "\"bnb_4bit_use_double_quant\": true",
                "\"bnb_4bit_use_double_quant\": false", "true");
  check_config ("bnb_4bit_quant_storage", "\"uint8\"", "\"bfloat16\"", "uint8");
  check_config ("llm_int8_skip_modules", "\"llm_int8_skip_modules\": null",
                "\"llm_int8_skip_modules\": [\"q_proj\"]", "lm_head");
  check_config ("load_in_4bit", "\"load_in_4bit\": true", "\"load_in_4bit\": false", "true");
  check_config ("load_in_4bit", "\"load_in_8bit\": false", "\"load_in_8bit\": true", "false");
}

/* Changes a part of the file of weights of the same length, or all of it by @change. */
static void
check_file (const char *from,
            const char *to,
            EbbError code,
            const char *word,
            const char *other)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *folder = test_model_fixture ("llama3");
  g_autofree char *path = test_scratch_path ("damaged");
  g_autofree char *file = NULL;
  g_autoptr (EbbModule) model = open_quantized (folder, EBB_QUANTIZATION_NF4);
  g_autoptr (EbbModule) refused = NULL;
  g_autofree char *data = NULL;
  gsize size;
  char *at = NULL;

  test_model_save (model, path);
  file = g_build_filename (path, "model.safetensors", NULL);
  g_assert_true (g_file_get_contents (file, &data, &size, NULL));
  g_assert_cmpuint (strlen (from), ==, strlen (to));
  for (gsize i = 0; at == NULL && i + strlen (from) <= size; i++)
    if (memcmp (data + i, from, strlen (from)) == 0)
      at = data + i;
  g_assert_nonnull (at);
  memcpy (at, to, strlen (to));
  g_assert_true (g_file_set_contents (file, data, (gssize) size, NULL));
  refused = ebb_model_open (path, &error);
  g_assert_null (refused);
  test_assert_error (error, code, word, other);
  test_remove_tree (path);
}

static void
damaged_files_are_refused (void)
{
  check_file ("\"blocksize\": 64", "\"blocksize\": 32", EBB_ERROR_FORMAT, "quant_state", "blocksize must be 64");
  check_file ("\"quant_type\": \"nf4\"", "\"quant_type\": \"nf3\"", EBB_ERROR_FORMAT, "quant_state", "nf4");
  check_file ("\"shape\": [24, 24]", "\"shape\": [12, 48]", EBB_ERROR_FORMAT, "quant_state", "[24, 24]");
  check_file ("{\"quant_type\"", "x\"quant_type\"", EBB_ERROR_FORMAT, "quant_state", "JSON");
  check_file ("\"nested_dtype\": \"float32\"", "\"nested_dtype\": \"float16\"", EBB_ERROR_FORMAT, "quant_state",
              "float32");
  check_file ("weight.nested_absmax", "weight.nested_absmix", EBB_ERROR_STATE, "missing", "nested_absmax");
  check_file ("\"dtype\":\"U8\",\"shape\":[288,1]", "\"dtype\":\"U8\",\"shape\":[1,288]", EBB_ERROR_STATE,
              "of another shape", "[288, 1]");
  /* the book: 0.5626170039176941 */
  check_file ("\xab\x07\x10\x3f", "\xac\x07\x10\x3f", EBB_ERROR_FORMAT, "quant_map", "16 values");
}

static void
a_quantised_folder_is_not_quantised_again (void)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *folder = test_model_fixture ("llama3");
  g_autofree char *path = test_scratch_path ("nf4");
  g_autoptr (EbbModule) model = open_quantized (folder, EBB_QUANTIZATION_NF4);
  g_autoptr (EbbModule) refused = NULL;

  test_model_save (model, path);
  refused = ebb_model_open_quantized (path, EBB_MODEL_KEEP_DTYPE, EBB_QUANTIZATION_INT8, &error);
  g_assert_null (refused);
  test_assert_error (error, EBB_ERROR_STATE, "nf4 already", "int8");
  g_clear_error (&error);
  refused = ebb_model_open_quantized (folder, EBB_MODEL_KEEP_DTYPE, 7, &error);
  g_assert_null (refused);
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "quantisation is 7");
  test_remove_tree (path);
}

int
main (int argc,
      char **argv)
{
  int status;

  test_init (&argc, &argv);
  test_scratch_begin ();
  g_test_add_func ("/quantized-folder/opening-quantises", opening_quantises);
  g_test_add_func ("/quantized-folder/saved-and-opened-again", saved_and_opened_again);
  g_test_add_func ("/quantized-folder/int8-joins-and-divides", int8_joins_and_divides);
  g_test_add_func ("/quantized-folder/transformers-folder-opens", transformers_folder_opens);
  g_test_add_func ("/quantized-folder/opening-needs-one-full-weight", opening_needs_one_full_weight);
  g_test_add_func ("/quantized-folder/configs-are-refused", configs_are_refused);
  g_test_add_func ("/quantized-folder/damaged-files-are-refused", damaged_files_are_refused);
  g_test_add_func ("/quantized-folder/a-quantised-folder-is-not-quantised-again",
                   a_quantised_folder_is_not_quantised_again);
  status = g_test_run ();
  test_scratch_end ();
  return status;
}
