/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/fixtures.h"
#include "support/tensors.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>

/* Models' folders: opened, saved, saved over, and what does not fit. */

static const char *const rows[] = { "gpt2", "bert", "llama2", "llama3", "llama-linear", "llama-dynamic",
                                    "llama-yarn", "mistral", "qwen2", "qwen2-yarn", "qwen3", "gemma2",
                                    "gemma3", "phi3", "phi3-longrope", "smollm" };

/* -- helpers ------------------------------------------------------------------------------------------------------- */

static char *scratch;

static char *
get_fixture (const char *row)
{
  return g_test_build_filename (G_TEST_DIST, "fixtures", "models", row, NULL);
}

static char *
in_scratch (const char *name)
{
  return g_build_filename (scratch, name, NULL);
}

static void
remove_tree (const char *path)
{
  g_autoptr (GDir) dir = g_dir_open (path, 0, NULL);
  const char *name;

  while (dir != NULL && (name = g_dir_read_name (dir)) != NULL)
    {
      g_autofree char *child = g_build_filename (path, name, NULL);

      remove_tree (child);
    }
  g_remove (path);
}

static char *
read_text (const char *folder,
           const char *name)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);
  g_autoptr (GError) error = NULL;
  char *text = NULL;

  g_file_get_contents (path, &text, NULL, &error);
  g_assert_no_error (error);
  return text;
}

static void
write_text (const char *folder,
            const char *name,
            const char *text)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);

  g_assert_true (g_file_set_contents (path, text, -1, NULL));
}

static gboolean
has_file (const char *folder,
          const char *name)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);

  return g_file_test (path, G_FILE_TEST_EXISTS);
}

static guint
count_files (const char *folder)
{
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);
  guint n = 0;

  while (dir != NULL && g_dir_read_name (dir) != NULL)
    n++;
  return n;
}

/* A copy of a fixture that a test may change. */
static char *
copy_fixture (const char *row)
{
  g_autofree char *from = get_fixture (row);
  g_autofree char *to = in_scratch ("copy");
  g_autoptr (GDir) dir = g_dir_open (from, 0, NULL);
  const char *name;

  remove_tree (to);
  g_assert_cmpint (g_mkdir (to, 0777), ==, 0);
  while ((name = g_dir_read_name (dir)) != NULL)
    if (strcmp (name, "expected.safetensors") != 0 && strcmp (name, "config-old.json") != 0)
      {
        g_autofree char *path = g_build_filename (from, name, NULL);
        g_autofree char *target = g_build_filename (to, name, NULL);
        g_autofree char *data = NULL;
        gsize size;

        g_assert_true (g_file_get_contents (path, &data, &size, NULL));
        g_assert_true (g_file_set_contents (target, data, (gssize) size, NULL));
      }
  return g_steal_pointer (&to);
}

static EbbModule *
open_model (const char *folder)
{
  g_autoptr (GError) error = NULL;
  EbbModule *model = ebb_model_open (folder, &error);

  g_assert_no_error (error);
  return model;
}

static EbbModule *
open_fixture (const char *row)
{
  g_autofree char *folder = get_fixture (row);

  return open_model (folder);
}

static void
save_model (EbbModule *model,
            const char *folder)
{
  g_autoptr (GError) error = NULL;

  ebb_model_save (model, folder, &error);
  g_assert_no_error (error);
}

static void
assert_same_weights (EbbModule *a,
                     EbbModule *b)
{
  g_autoptr (EbbArgs) x = ebb_module_get_state_dict (a);
  g_autoptr (EbbArgs) y = ebb_module_get_state_dict (b);

  g_assert_cmpuint (ebb_args_get_length (x), ==, ebb_args_get_length (y));
  for (guint i = 0; i < ebb_args_get_length (x); i++)
    {
      g_autoptr (EbbTensor) one = ebb_args_get_tensor (x, i);
      g_autoptr (EbbTensor) other = ebb_args_get_tensor (y, i);

      g_assert_cmpint (ebb_tensor_get_dtype (one), ==, ebb_tensor_get_dtype (other));
      g_assert_cmpmem (test_read (one), ebb_tensor_get_n_bytes (one), test_read (other),
                       ebb_tensor_get_n_bytes (other));
    }
}

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

/* What is saved has the same tensors under the same names as what was opened. */
static void
folders_come_back_as_they_were (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    {
      g_autofree char *folder = get_fixture (rows[i]);
      g_autofree char *saved = in_scratch ("saved");
      g_autofree char *name = g_build_filename ("models", rows[i], "expected.safetensors", NULL);
      g_autofree char *config = read_text (folder, "config.json");
      g_autofree char *config_saved = NULL;
      g_autoptr (EbbModule) model = open_model (folder);
      g_autoptr (EbbModule) again = NULL;
      g_autoptr (EbbArgs) expected = test_load_fixture (name);
      g_autoptr (EbbTensor) right = test_fixture_tensor (expected, "logits");
      g_autoptr (EbbTensor) logits = compute_logits (model, expected);

      g_test_message ("%s: %g", rows[i], test_difference (logits, right));
      save_model (model, saved);
      again = open_model (saved);
      assert_same_weights (model, again);
      config_saved = read_text (saved, "config.json");
      g_assert_cmpstr (g_strchomp (config), ==, g_strchomp (config_saved));
      g_assert_true (has_file (saved, "generation_config.json") == has_file (folder, "generation_config.json"));
      g_assert_false (has_file (saved, "model.safetensors.index.json"));
      if (has_file (folder, "model.safetensors"))
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
      remove_tree (saved);
    }
}

/* One weight a file, or all that fit. */
static void
files_have_the_size_that_is_asked_for (void)
{
  static const guint64 sizes[] = { 1, 6000, 1000000 };
  g_autoptr (EbbModule) model = open_fixture ("gpt2");
  g_autofree char *saved = in_scratch ("saved");
  guint n_before = G_MAXUINT;

  for (guint i = 0; i < G_N_ELEMENTS (sizes); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbModule) again = NULL;
      guint n;

      ebb_model_save_full (model, saved, EBB_MODEL_KEEP_DTYPE, sizes[i], &error);
      g_assert_no_error (error);
      again = open_model (saved);
      assert_same_weights (model, again);
      n = count_files (saved);
      g_assert_cmpuint (n, <, n_before); /* those of the last save are gone */
      g_assert_true (has_file (saved, "model.safetensors") == (i == 2));
      g_assert_true (has_file (saved, "model.safetensors.index.json") == (i < 2));
      n_before = n;
    }
  remove_tree (saved);
}

static void
weights_have_the_dtype_that_is_asked_for (void)
{
  g_autofree char *saved = in_scratch ("saved");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = open_fixture ("gpt2");
  g_autoptr (EbbModule) kept = NULL;
  g_autoptr (EbbModule) widened = NULL;
  g_autofree char *folder = get_fixture ("gpt2");
  g_autoptr (EbbModule) narrowed = ebb_model_open_full (folder, EBB_DTYPE_BF16, &error);
  g_autoptr (EbbArgs) a = NULL;
  g_autoptr (EbbArgs) b = NULL;
  g_autofree char *config = NULL;

  g_assert_no_error (error);
  ebb_model_save_full (model, saved, EBB_DTYPE_BF16, 0, &error);
  g_assert_no_error (error);
  config = read_text (saved, "config.json");
  g_assert_nonnull (strstr (config, "\"bfloat16\""));
  kept = open_model (saved);
  assert_same_weights (kept, narrowed);
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
  remove_tree (saved);
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
  g_autofree char *folder = copy_fixture ("gpt2");
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbModule) exact = open_model (folder);
  g_autoptr (EbbArgs) a = NULL;
  g_autoptr (EbbArgs) b = ebb_module_get_state_dict (exact);
  g_autoptr (GError) error = NULL;

  cast_weights (folder, EBB_DTYPE_F16);
  g_test_expect_message ("Ebb", G_LOG_LEVEL_MESSAGE, "*F16*converted to f32*");
  model = open_model (folder);
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
  g_autofree char *saved = in_scratch ("deep/er/saved");
  g_autofree char *deep = in_scratch ("deep");
  g_autofree char *text = NULL;
  g_autoptr (GError) error = NULL;

  config->layers = 1;
  config->width = 16;
  config->heads = 2;
  config->tied = FALSE;
  model = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  save_model (model, saved);
  text = read_text (saved, "config.json");
  g_assert_nonnull (strstr (text, "\"GPT2LMHeadModel\""));
  again = open_model (saved);
  assert_same_weights (model, again);
  g_assert_cmpuint (count_files (saved), ==, 2);
  g_clear_object (&again);
  again = ebb_linear_new (2, 2, FALSE, NULL);
  g_assert_false (ebb_model_save (again, saved, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "Linear", "Gpt or a Bert");
  remove_tree (deep);
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
        model = open_fixture ("gpt2");
      tensor = ebb_randn ((gint64[]){ 1 }, 1, EBB_DTYPE_F32, NULL, NULL, NULL);
      drawn[i] = test_at (tensor, 0);
    }
  g_assert_cmpfloat (drawn[0], ==, drawn[1]);
  g_assert_false (ebb_module_get_training (model));
}

/* -- saving over --------------------------------------------------------------------------------------------------- */

static void
other_files_stay_where_a_model_is_replaced (void)
{
  g_autofree char *folder = copy_fixture ("gpt2");
  g_autofree char *inner = g_build_filename (folder, "notes", NULL);
  g_autofree char *leftover = in_scratch (".copy.0123abcd.ebb-partial");
  g_autoptr (EbbModule) model = open_model (folder);
  g_autoptr (EbbModule) again = NULL;
  g_autofree char *text = NULL;
  g_autofree char *inner_text = NULL;
  g_autofree char *tokenizer = NULL;

  write_text (folder, "tokenizer.json", "{\"a\": 1}");
  write_text (folder, "log.txt", "mine");
  g_assert_cmpint (g_mkdir (inner, 0777), ==, 0);
  write_text (inner, "b.txt", "inside");
  g_assert_cmpint (g_mkdir (leftover, 0777), ==, 0);
  write_text (leftover, "model.safetensors", "of a save that was killed");
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbArgs) state = ebb_module_get_state_dict (model);
      g_autoptr (EbbTensor) first = ebb_args_get_tensor (state, 0);

      g_assert_true (ebb_tensor_fill (first, i + 0.5, NULL));
      save_model (model, folder);
      g_clear_object (&again);
      again = open_model (folder);
      assert_same_weights (model, again);
    }
  text = read_text (folder, "log.txt");
  g_assert_cmpstr (text, ==, "mine");
  inner_text = read_text (inner, "b.txt");
  g_assert_cmpstr (inner_text, ==, "inside");
  tokenizer = read_text (folder, "tokenizer.json");
  g_assert_cmpstr (tokenizer, ==, "{\"a\": 1}");
  g_assert_false (g_file_test (leftover, G_FILE_TEST_EXISTS));
  g_assert_cmpuint (count_files (scratch), ==, 1);
}

/* A folder with files but no model keeps them and gets the model's. */
static void
a_folder_without_a_model_gets_one (void)
{
  g_autofree char *folder = in_scratch ("copy");
  g_autoptr (EbbModule) model = open_fixture ("bert");
  g_autoptr (EbbModule) again = NULL;

  remove_tree (folder);
  g_assert_cmpint (g_mkdir (folder, 0777), ==, 0);
  write_text (folder, "log.txt", "mine");
  write_text (folder, "model-00001-of-00002.safetensors", "stale");
  save_model (model, folder);
  again = open_model (folder);
  assert_same_weights (model, again);
  g_assert_true (has_file (folder, "log.txt"));
  g_assert_false (has_file (folder, "model-00001-of-00002.safetensors"));
  g_assert_cmpuint (count_files (scratch), ==, 1);
}

static void
a_save_that_fails_changes_nothing (void)
{
  g_autofree char *folder = copy_fixture ("gpt2");
  g_autofree char *file = g_build_filename (folder, "config.json", NULL);
  g_autofree char *below = g_build_filename (folder, "config.json", "model", NULL);
  g_autofree char *before = read_text (folder, "config.json");
  g_autofree char *after = NULL;
  g_autoptr (EbbModule) model = open_model (folder);
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_model_save (model, file, &error));
  test_assert_error (error, EBB_ERROR_IO, "config.json", "Not a directory");
  g_clear_error (&error);
  g_assert_false (ebb_model_save (model, below, &error));
  test_assert_error (error, EBB_ERROR_IO, "config.json");
  g_clear_error (&error);
  g_assert_false (ebb_model_save_full (model, folder, 77, 0, &error));
  test_assert_error (error, EBB_ERROR_DTYPE, "no dtype");
  after = read_text (folder, "config.json");
  g_assert_cmpstr (before, ==, after);
  g_assert_cmpuint (count_files (folder), ==, 3);
  g_assert_cmpuint (count_files (scratch), ==, 1);
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
  g_autofree char *folder = copy_fixture ("gpt2");
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
  g_autofree char *folder = copy_fixture ("gpt2");
  g_autoptr (EbbArgs) weights = load_weights (folder);
  int index = ebb_args_find (weights, "transformer.wte.weight");
  g_autoptr (EbbTensor) words = ebb_args_get_tensor (weights, (guint) index);
  g_autoptr (EbbTensor) other = ebb_neg (words, NULL);
  g_autoptr (EbbArgs) differing = NULL;
  g_autoptr (EbbModule) before = open_model (folder);
  g_autoptr (EbbModule) model = NULL;

  ebb_args_add_tensor (weights, "lm_head.weight", words);
  store_weights (folder, weights);
  model = open_model (folder);
  assert_same_weights (model, before);
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
  g_autofree char *folder = copy_fixture ("gpt2");
  g_autoptr (EbbArgs) weights = load_weights (folder);
  g_autoptr (EbbArgs) bare = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbModule) before = open_model (folder);
  g_autoptr (EbbModule) model = NULL;

  for (guint i = 0; i < ebb_args_get_length (weights); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (weights, i);

      ebb_args_add_tensor (bare, ebb_args_get_key (weights, i) + strlen ("transformer."), tensor);
    }
  store_weights (folder, bare);
  model = open_model (folder);
  assert_same_weights (model, before);
}

static void
folders_that_are_not_whole_are_refused (void)
{
  g_autofree char *folder = copy_fixture ("gpt2");
  g_autofree char *config = read_text (folder, "config.json");
  g_autofree char *weights = g_build_filename (folder, "model.safetensors", NULL);
  g_autofree char *nowhere = in_scratch ("nowhere");
  g_autofree char *half = g_strndup (config, strlen (config) / 2);

  assert_refused (nowhere, EBB_ERROR_IO, "nowhere/config.json", "No such file", NULL);
  assert_refused (weights, EBB_ERROR_IO, "model.safetensors/config.json", NULL, NULL);
  write_text (folder, "config.json", half);
  assert_refused (folder, EBB_ERROR_FORMAT, "config.json", NULL, NULL);
  write_text (folder, "config.json", "[]");
  assert_refused (folder, EBB_ERROR_STATE, "model_type is missing", "gpt2, llama", NULL);
  write_text (folder, "config.json", config);
  write_text (folder, "model.safetensors", "much too short");
  assert_refused (folder, EBB_ERROR_FORMAT, "model.safetensors", NULL, NULL);
  g_assert_cmpint (g_remove (weights), ==, 0);
  assert_refused (folder, EBB_ERROR_FORMAT, "neither model.safetensors nor model.safetensors.index.json", NULL, NULL);
  write_text (folder, "pytorch_model.bin", "pickle");
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
  g_autofree char *folder = copy_fixture ("gpt2");
  g_autofree char *from = g_build_filename (folder, "model.safetensors", NULL);
  g_autofree char *to = g_build_filename (folder, "part.safetensors", NULL);

  g_assert_cmpint (g_rename (from, to), ==, 0);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      write_text (folder, "model.safetensors.index.json", cases[i].index);
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

/* Sizes in config.json that belong to another model are found before there is one. */
static void
sizes_of_another_model_are_refused (void)
{
  static const char *const changes[][4] = {
    { "\"n_embd\": ", "4294968", "of another shape: transformer.wte.weight [", "4294968]" },
    { "\"vocab_size\": ", "500000000", "of another shape: transformer.wte.weight [", "not [500000000, " },
    { "\"n_layer\": ", "60000", "it has 60000 layers", "tensors" },
    { "\"n_layer\": ", "1", "unexpected", "transformer.h.1." },
    { "\"n_positions\": ", "5000", "of another shape (1): transformer.wpe.weight", "not [5000, " },
  };
  g_autofree char *folder = copy_fixture ("gpt2");
  g_autofree char *config = read_text (folder, "config.json");

  for (guint i = 0; i < G_N_ELEMENTS (changes); i++)
    {
      g_autofree char *changed = change_value (config, changes[i][0], changes[i][1]);

      write_text (folder, "config.json", changed);
      assert_refused (folder, EBB_ERROR_STATE, changes[i][2], changes[i][3], NULL);
    }
}

int
main (int argc,
      char **argv)
{
  int status;

  test_init (&argc, &argv);
  scratch = g_dir_make_tmp ("ebb-folders-XXXXXX", NULL);
  g_test_add_func ("/model-folder/come-back-as-they-were", folders_come_back_as_they_were);
  g_test_add_func ("/model-folder/files-have-the-size-asked-for", files_have_the_size_that_is_asked_for);
  g_test_add_func ("/model-folder/weights-have-the-dtype-asked-for", weights_have_the_dtype_that_is_asked_for);
  g_test_add_func ("/model-folder/half-floats-become-floats", half_floats_become_floats_with_a_message);
  g_test_add_func ("/model-folder/new-model-gets-a-config", a_new_model_gets_a_config_of_its_own);
  g_test_add_func ("/model-folder/opening-leaves-the-generator-alone", opening_leaves_the_generator_alone);
  g_test_add_func ("/model-folder/other-files-stay", other_files_stay_where_a_model_is_replaced);
  g_test_add_func ("/model-folder/folder-without-a-model-gets-one", a_folder_without_a_model_gets_one);
  g_test_add_func ("/model-folder/failed-save-changes-nothing", a_save_that_fails_changes_nothing);
  g_test_add_func ("/model-folder/tensors-that-do-not-fit-are-listed", tensors_that_do_not_fit_are_listed);
  g_test_add_func ("/model-folder/tied-head-may-be-there-twice", a_tied_head_may_be_there_twice);
  g_test_add_func ("/model-folder/names-may-lack-their-prefix", names_may_lack_their_prefix);
  g_test_add_func ("/model-folder/not-whole-is-refused", folders_that_are_not_whole_are_refused);
  g_test_add_func ("/model-folder/index-that-does-not-fit", an_index_that_does_not_fit_is_refused);
  g_test_add_func ("/model-folder/sizes-of-another-model", sizes_of_another_model_are_refused);
  status = g_test_run ();
  remove_tree (scratch);
  g_free (scratch);
  return status;
}
