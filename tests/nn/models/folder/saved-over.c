/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/model-folders.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <string.h>

/* Models saved over folders that are there: what is replaced, what stays, and what failures leave. */

static void
other_files_stay_where_a_model_is_replaced (void)
{
  g_autofree char *folder = test_model_copy ("gpt2");
  g_autofree char *inner = g_build_filename (folder, "notes", NULL);
  g_autofree char *leftover = test_scratch_path (".copy.0123abcd.ebb-partial");
  g_autoptr (EbbModule) model = test_model_open (folder);
  g_autoptr (EbbModule) again = NULL;
  g_autofree char *text = NULL;
  g_autofree char *inner_text = NULL;
  g_autofree char *tokenizer = NULL;

  test_folder_write (folder, "tokenizer.json", "{\"a\": 1}");
  test_folder_write (folder, "log.txt", "mine");
  g_assert_cmpint (g_mkdir (inner, 0777), ==, 0);
  test_folder_write (inner, "b.txt", "inside");
  g_assert_cmpint (g_mkdir (leftover, 0777), ==, 0);
  test_folder_write (leftover, "model.safetensors", "of a save that was killed");
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbArgs) state = ebb_module_get_state_dict (model);
      g_autoptr (EbbTensor) first = ebb_args_get_tensor (state, 0);

      g_assert_true (ebb_tensor_fill (first, i + 0.5, NULL));
      test_model_save (model, folder);
      g_clear_object (&again);
      again = test_model_open (folder);
      test_assert_same_weights (model, again);
    }
  text = test_folder_read (folder, "log.txt");
  g_assert_cmpstr (text, ==, "mine");
  inner_text = test_folder_read (inner, "b.txt");
  g_assert_cmpstr (inner_text, ==, "inside");
  tokenizer = test_folder_read (folder, "tokenizer.json");
  g_assert_cmpstr (tokenizer, ==, "{\"a\": 1}");
  g_assert_false (g_file_test (leftover, G_FILE_TEST_EXISTS));
  g_assert_cmpuint (test_folder_count (test_scratch_folder ()), ==, 1);
}

/* A folder with files but no model keeps them and gets the model's. */
static void
a_folder_without_a_model_gets_one (void)
{
  g_autofree char *folder = test_scratch_path ("copy");
  g_autoptr (EbbModule) model = test_model_open_fixture ("bert");
  g_autoptr (EbbModule) again = NULL;

  test_remove_tree (folder);
  g_assert_cmpint (g_mkdir (folder, 0777), ==, 0);
  test_folder_write (folder, "log.txt", "mine");
  test_folder_write (folder, "model-00001-of-00002.safetensors", "stale");
  test_model_save (model, folder);
  again = test_model_open (folder);
  test_assert_same_weights (model, again);
  g_assert_true (test_folder_has (folder, "log.txt"));
  g_assert_false (test_folder_has (folder, "model-00001-of-00002.safetensors"));
  g_assert_cmpuint (test_folder_count (test_scratch_folder ()), ==, 1);
}

static void
a_save_that_fails_changes_nothing (void)
{
  g_autofree char *folder = test_model_copy ("gpt2");
  g_autofree char *file = g_build_filename (folder, "config.json", NULL);
  g_autofree char *below = g_build_filename (folder, "config.json", "model", NULL);
  g_autofree char *before = test_folder_read (folder, "config.json");
  g_autofree char *after = NULL;
  g_autoptr (EbbModule) model = test_model_open (folder);
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_model_save (model, file, &error));
  test_assert_error (error, EBB_ERROR_IO, "config.json", "Not a directory");
  g_clear_error (&error);
  g_assert_false (ebb_model_save (model, below, &error));
  test_assert_error (error, EBB_ERROR_IO, "config.json");
  g_clear_error (&error);
  g_assert_false (ebb_model_save_full (model, folder, 77, 0, &error));
  test_assert_error (error, EBB_ERROR_DTYPE, "no dtype");
  after = test_folder_read (folder, "config.json");
  g_assert_cmpstr (before, ==, after);
  g_assert_cmpuint (test_folder_count (folder), ==, 3);
  g_assert_cmpuint (test_folder_count (test_scratch_folder ()), ==, 1);
}

/* Saving over another folder: its files are the user's. Those it lacks are copied, by their names. */
static void
files_of_the_target_are_not_replaced (void)
{
  g_autofree char *folder = test_model_copy ("gpt2");
  g_autofree char *target = test_scratch_path ("target");
  g_autofree char *readme = NULL;
  g_autofree char *tokenizer = NULL;
  g_autofree char *merges = NULL;
  g_autoptr (EbbModule) model = test_model_open (folder);
  g_autoptr (EbbModule) again = NULL;

  test_folder_write (folder, "README.md", "of the origin");
  test_folder_write (folder, "tokenizer.json", "{\"origin\": 1}");
  test_folder_write (folder, "chats.jsonl", "data");
  test_model_save (model, target);
  g_assert_true (test_folder_has (target, "README.md") && test_folder_has (target, "tokenizer.json"));
  g_assert_false (test_folder_has (target, "chats.jsonl"));
  test_folder_write (target, "README.md", "mine");
  test_folder_write (target, "tokenizer.json", "{\"mine\": 1}");
  test_folder_write (folder, "merges.txt", "of the origin");
  g_test_expect_message ("Ebb", G_LOG_LEVEL_MESSAGE, "*stay as they are*: tokenizer.json");
  test_model_save (model, target);
  g_test_assert_expected_messages ();
  readme = test_folder_read (target, "README.md");
  g_assert_cmpstr (readme, ==, "mine");
  tokenizer = test_folder_read (target, "tokenizer.json");
  g_assert_cmpstr (tokenizer, ==, "{\"mine\": 1}");
  merges = test_folder_read (target, "merges.txt");
  g_assert_cmpstr (merges, ==, "of the origin");
  again = test_model_open (target);
  test_assert_same_weights (model, again);
  test_remove_tree (target);
  g_assert_cmpuint (test_folder_count (test_scratch_folder ()), ==, 1);
}

/* The tokenizer of a GGUF file is written as one of a folder is copied. */
static void
a_tokenizer_of_the_target_stays_beside_a_gguf_model (void)
{
  g_autofree char *path = g_test_build_filename (G_TEST_DIST, "fixtures", "gguf", "chat-model.gguf", NULL);
  g_autofree char *target = test_scratch_path ("target");
  g_autofree char *tokenizer = NULL;
  g_autoptr (EbbModule) model = NULL;

  g_test_expect_message ("Ebb", G_LOG_LEVEL_MESSAGE, "*weights are F16*");
  model = test_model_open (path);
  test_model_save (model, target);
  test_model_save (model, target); /* its own files don't differ */
  test_folder_write (target, "tokenizer.json", "{\"mine\": 1}");
  g_test_expect_message ("Ebb", G_LOG_LEVEL_MESSAGE, "*stay as they are*chat-model.gguf differ: tokenizer.json");
  test_model_save (model, target);
  g_test_assert_expected_messages ();
  tokenizer = test_folder_read (target, "tokenizer.json");
  g_assert_cmpstr (tokenizer, ==, "{\"mine\": 1}");
  test_remove_tree (target);
}

/* A tokenizer that the model was given replaces all of another one, with the tokens that config.json names. */
static void
another_tokenizer_replaces_that_of_the_folder (void)
{
  g_autofree char *other = g_test_build_filename (G_TEST_DIST, "fixtures", "tokenizers", "llama2", NULL);
  g_autofree char *folder = test_model_copy ("qwen2");
  g_autofree char *target = test_scratch_path ("target");
  g_autofree char *inner = g_build_filename (folder, "tokenizer", NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTokenizer) tokenizer = ebb_tokenizer_open (other, &error);
  g_autoptr (EbbModule) model = NULL;
  g_autofree char *wanted = test_folder_read (other, "tokenizer.json");

  g_assert_no_error (error);
  test_folder_write (folder, "tokenizer.json", "{\"of the origin\": 1}");
  test_folder_write (folder, "special_tokens_map.json", "{}");
  test_folder_write (folder, "LICENSE", "free");
  test_folder_write (folder, "tokenizer.py", "mine");
  g_assert_cmpint (g_mkdir (inner, 0777), ==, 0);
  test_folder_write (inner, "a.py", "mine");
  model = test_model_open (folder);
  ebb_model_set_tokenizer (model, tokenizer, other);
  for (guint i = 0; i < 2; i++) /* into a new folder, and over the one that the model came from */
    {
      const char *path = i == 0 ? target : folder;
      g_autoptr (EbbModule) again = NULL;
      g_autofree char *saved = NULL;
      g_autofree char *config = NULL;

      test_remove_tree (target);
      test_model_save (model, path);
      saved = test_folder_read (path, "tokenizer.json");
      g_assert_cmpstr (saved, ==, wanted);
      g_assert_true (test_folder_has (path, "tokenizer_config.json"));
      g_assert_true (test_folder_has (path, "LICENSE"));
      g_assert_false (test_folder_has (path, "special_tokens_map.json"));
      g_assert_false (test_folder_has (path, "generation_config.json"));
      config = test_folder_read (path, "config.json");
      g_assert_nonnull (strstr (config, "\"bos_token_id\": 0,"));
      g_assert_nonnull (strstr (config, "\"eos_token_id\": 1,"));
      again = test_model_open (path);
      test_assert_same_weights (model, again);
    }
  g_assert_true (test_folder_has (folder, "tokenizer.py"));
  g_assert_true (test_folder_has (inner, "a.py"));
  test_remove_tree (target);
}

/* A byte tokenizer has no files: the folder gets some that give the same tokens, of any bytes. */
static void
a_byte_tokenizer_gets_files (void)
{
  g_autofree char *folder = test_model_copy ("gpt2");
  g_autoptr (EbbModule) model = test_model_open (folder);
  g_autoptr (EbbTokenizer) bytes = ebb_byte_tokenizer_new ();
  g_autoptr (EbbTokenizer) again = NULL;
  g_autoptr (GString) text = g_string_new ("Fl\303\266de \342\200\224 it's 12 o'clock\n\n  ");
  g_autoptr (GBytes) whole = NULL;
  g_autoptr (EbbTensor) wanted = NULL;
  g_autoptr (EbbTensor) got = NULL;
  g_autoptr (GError) error = NULL;

  for (guint byte = 0; byte < 256; byte++)
    g_string_append_c (text, (char) byte);
  whole = g_bytes_new (text->str, text->len);
  ebb_model_set_tokenizer (model, bytes, NULL);
  test_model_save (model, folder);
  again = ebb_tokenizer_open (folder, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_tokenizer_get_vocab_size (again), ==, 256);
  wanted = ebb_tokenizer_encode (bytes, whole, &error);
  got = ebb_tokenizer_encode (again, whole, &error);
  g_assert_no_error (error);
  g_assert_cmpmem (ebb_tensor_get_data (got, NULL), (gsize) ebb_tensor_get_n_elements (got) * sizeof (gint64),
                   ebb_tensor_get_data (wanted, NULL), text->len * sizeof (gint64));
  g_assert_true (test_folder_has (folder, "tokenizer_config.json"));
  test_remove_tree (folder);
}

/* GPT-2's two files get a tokenizer.json that stands for them. */
static void
gpt2s_files_get_a_tokenizer (void)
{
  static const char *const text = "Hello, it's the quick brown fox: na\303\257ve 1234\n\n  and so on.";
  g_autofree char *from = g_test_build_filename (G_TEST_DIST, "fixtures", "bpe", NULL);
  g_autofree char *vocab = g_build_filename (from, "vocab.json", NULL);
  g_autofree char *merges = g_build_filename (from, "merges.txt", NULL);
  g_autofree char *folder = test_model_copy ("gpt2");
  g_autoptr (EbbModule) model = test_model_open (folder);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTokenizer) tokenizer = ebb_bpe_tokenizer_new (vocab, merges, &error);
  g_autoptr (EbbTokenizer) again = NULL;
  g_autofree gint64 *wanted = NULL;
  g_autofree gint64 *got = NULL;
  gsize n_wanted, n_got;

  g_assert_no_error (error);
  ebb_model_set_tokenizer (model, tokenizer, from);
  test_model_save (model, folder);
  g_assert_true (test_folder_has (folder, "merges.txt"));
  again = ebb_tokenizer_open (folder, &error);
  g_assert_no_error (error);
  wanted = ebb_tokenizer_encode_text_full (tokenizer, text, FALSE, &n_wanted, &error);
  got = ebb_tokenizer_encode_text_full (again, text, FALSE, &n_got, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (n_wanted, <, strlen (text));
  g_assert_cmpmem (got, n_got * sizeof *got, wanted, n_wanted * sizeof *wanted);
  test_remove_tree (folder);
}

/* Settings that are beside GPT-2's two files are saved as they are, with the chat template that is in them. */
static void
gpt2s_files_keep_their_settings (void)
{
  static const char *const names[] = { "vocab.json", "merges.txt" };
  static const char *const settings = "{\"model_max_length\": 1024, \"chat_template\": \"{{ messages }}\"}";
  g_autofree char *fixture = g_test_build_filename (G_TEST_DIST, "fixtures", "bpe", NULL);
  g_autofree char *from = test_scratch_path ("gpt2");
  g_autofree char *folder = test_model_copy ("gpt2");
  g_autofree char *vocab = g_build_filename (from, names[0], NULL);
  g_autofree char *merges = g_build_filename (from, names[1], NULL);
  g_autoptr (EbbModule) model = test_model_open (folder);
  g_autoptr (EbbTokenizer) tokenizer = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree char *saved = NULL;

  test_remove_tree (from);
  g_assert_cmpint (g_mkdir (from, 0777), ==, 0);
  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autofree char *text = test_folder_read (fixture, names[i]);

      test_folder_write (from, names[i], text);
    }
  test_folder_write (from, "tokenizer_config.json", settings);
  tokenizer = ebb_bpe_tokenizer_new (vocab, merges, &error);
  g_assert_no_error (error);
  ebb_model_set_tokenizer (model, tokenizer, from);
  test_model_save (model, folder);
  saved = test_folder_read (folder, "tokenizer_config.json");
  g_assert_cmpstr (saved, ==, settings);
  g_assert_true (test_folder_has (folder, "tokenizer.json"));
  test_remove_tree (folder);
  test_remove_tree (from);
}

static void
the_current_folder_stays_the_current_one (void)
{
  g_autofree char *before = g_get_current_dir ();
  g_autofree char *folder = test_model_copy ("gpt2");
  g_autofree char *absolute = g_canonicalize_filename (folder, NULL);
  g_autoptr (EbbModule) model = test_model_open (absolute);
  g_autoptr (EbbModule) again = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_cmpint (g_chdir (absolute), ==, 0);
  for (guint i = 0; i < 2; i++)
    {
      g_assert_true (ebb_model_save_full (model, ".", EBB_MODEL_KEEP_DTYPE, i == 0 ? 6000 : 0, &error));
      g_assert_no_error (error);
      g_assert_true (g_file_test ("config.json", G_FILE_TEST_EXISTS));
      g_assert_true (g_file_test ("model.safetensors", G_FILE_TEST_EXISTS) == (i == 1));
    }
  again = test_model_open (absolute);
  test_assert_same_weights (model, again);
  g_assert_cmpuint (test_folder_count (test_scratch_folder ()), ==, 1);
  g_assert_false (ebb_model_save (model, "", &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "the name of the folder", "empty");
  g_clear_error (&error);
  g_assert_false (ebb_model_save (model, "/../.", &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "the folder /", "root");
  g_clear_error (&error);
  test_remove_tree (absolute);
  for (guint i = 0; i < 2; i++)
    {
      g_assert_false (ebb_model_save (model, i == 0 ? "." : "below", &error));
      test_assert_error (error, EBB_ERROR_IO, "the current folder has been removed");
      g_clear_error (&error);
    }
  g_assert_cmpint (g_chdir (before), ==, 0);
  g_assert_cmpuint (test_folder_count (test_scratch_folder ()), ==, 0);
}

/* A file that can't be replaced, when others have been replaced already. */
static void
a_save_that_fails_in_the_middle_is_undone (void)
{
  g_autofree char *folder = test_scratch_path ("copy");
  g_autofree char *obstacle = g_build_filename (folder, "model.safetensors", NULL);
  g_autofree char *shard = NULL;
  g_autoptr (EbbModule) model = test_model_open_fixture ("gpt2");
  g_autoptr (GError) error = NULL;

  test_remove_tree (folder);
  g_assert_cmpint (g_mkdir (folder, 0777), ==, 0);
  g_assert_cmpint (g_mkdir (obstacle, 0777), ==, 0);
  test_folder_write (folder, "model-00001-of-00002.safetensors", "old");
  test_folder_write (obstacle, "inside", "mine");
  g_assert_false (ebb_model_save (model, folder, &error));
  test_assert_error (error, EBB_ERROR_IO, "can't write the folder");
  shard = test_folder_read (folder, "model-00001-of-00002.safetensors");
  g_assert_cmpstr (shard, ==, "old");
  g_assert_true (test_folder_has (obstacle, "inside"));
  g_assert_cmpuint (test_folder_count (folder), ==, 2);
  g_assert_cmpuint (test_folder_count (test_scratch_folder ()), ==, 1);
}

/* A process that was killed between two renames: the only copy has a temporary name. */
static void
old_files_get_their_names_back (void)
{
  g_autofree char *folder = test_scratch_path ("copy");
  g_autofree char *old = test_scratch_path (".copy.0123abcd.ebb-partial.old.ebb-partial");
  g_autofree char *leftover = test_scratch_path (".copy.89abcdef.ebb-partial");
  g_autofree char *made = test_model_copy ("gpt2");
  g_autofree char *text = NULL;
  g_autofree char *config = NULL;
  g_autofree char *obstacle = g_build_filename (folder, "model.safetensors", NULL);
  g_autoptr (EbbModule) model = test_model_open (made);
  g_autoptr (GError) error = NULL;

  test_folder_write (made, "log.txt", "mine");
  g_assert_cmpint (g_rename (made, old), ==, 0);
  test_model_save (model, folder);
  text = test_folder_read (folder, "log.txt");
  g_assert_cmpstr (text, ==, "mine");
  g_assert_cmpuint (test_folder_count (test_scratch_folder ()), ==, 1);

  /* While files were replaced one by one; the next save fails. */
  test_remove_tree (folder);
  g_assert_cmpint (g_mkdir (folder, 0777), ==, 0);
  g_assert_cmpint (g_mkdir (leftover, 0777), ==, 0);
  g_assert_cmpint (g_mkdir (obstacle, 0777), ==, 0);
  test_folder_write (obstacle, "inside", "mine");
  test_folder_write (folder, "model.safetensors.index.json", "new");
  test_folder_write (leftover, "model.safetensors.index.json.ebb-old", "old");
  g_assert_false (ebb_model_save (model, folder, &error));
  config = test_folder_read (folder, "model.safetensors.index.json");
  g_assert_cmpstr (config, ==, "old");
  g_assert_cmpuint (test_folder_count (test_scratch_folder ()), ==, 1);
}

/* An unfinished folder or file has a longer name than what it becomes, unless the file system allows none. */
static void
names_may_be_as_long_as_can_be (void)
{
  g_autofree char *name = g_strnfill (255, 'n');
  g_autofree char *folder = test_scratch_path (name);
  g_autofree char *file = g_build_filename (folder, name, NULL);
  g_autoptr (EbbModule) model = test_model_open_fixture ("gpt2");
  g_autoptr (EbbModule) again = NULL;
  g_autoptr (EbbArgs) state = ebb_module_get_state_dict (model);
  g_autoptr (EbbArgs) loaded = NULL;
  g_autoptr (GError) error = NULL;
  const guint n_before = test_folder_count (test_scratch_folder ());
  guint n_files;

  for (guint i = 0; i < 2; i++)
    test_model_save (model, folder);
  again = test_model_open (folder);
  test_assert_same_weights (model, again);
  n_files = test_folder_count (folder);
  for (guint i = 0; i < 2; i++)
    g_assert_true (ebb_save_safetensors (file, state, NULL, &error));
  loaded = ebb_load_safetensors (file, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_args_get_n_tensors (loaded), ==, ebb_args_get_n_tensors (state));
  g_assert_cmpuint (test_folder_count (folder), ==, n_files + 1);
  g_assert_cmpuint (test_folder_count (test_scratch_folder ()), ==, n_before + 1);
}

static void
a_config_is_that_of_the_saved_folder (void)
{
  const char *const names[] = { "gpt2", "bert", "llama3" };

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    for (int dtype = EBB_MODEL_KEEP_DTYPE; dtype <= (int) EBB_DTYPE_BF16; dtype++)
      {
        g_autofree char *folder = test_scratch_path ("described");
        g_autoptr (EbbModule) model = test_model_open_fixture (names[i]);
        g_autoptr (GError) error = NULL;
        g_autofree char *config = NULL;
        g_autofree char *saved = NULL;

        if (dtype != EBB_MODEL_KEEP_DTYPE && dtype != EBB_DTYPE_F32 && dtype != EBB_DTYPE_BF16)
          continue;
        config = ebb_model_make_config (model, dtype, &error);
        g_assert_no_error (error);
        g_assert_true (ebb_model_save_full (model, folder, dtype, 0, &error));
        saved = test_folder_read (folder, "config.json");
        g_assert_cmpstr (config, ==, saved);
        g_assert_true (ebb_model_check_config (model, dtype, saved, &error));
        g_assert_no_error (error);
        test_remove_tree (folder);
      }
}

/* A key that goes without saying may be missing, as in what an older version wrote; no other may, nor be another. */
static void
a_config_without_a_default_is_the_models (void)
{
  static const struct
  {
    const char *from, *to; /* NULL: all */
    gboolean fits;
  } cases[] = {
    { "\"layer_norm_epsilon\": 1e-05,", "", TRUE },
    { "\"layer_norm_epsilon\": 1e-05,", "\"layer_norm_epsilon\": 1e-06,", FALSE },
    { "\"architectures\"", "\"mine\"", FALSE },
    { "\"n_layer\"", "\"other\"", FALSE },
    { "\"model_type\"", "\"new\": 1, \"model_type\"", FALSE },
    { NULL, "{\"mine\": true}", FALSE },
    { NULL, "{}", FALSE },
    { NULL, "[]", FALSE },
    { NULL, "{", FALSE },
  };
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  g_autoptr (EbbModule) model = NULL;
  g_autofree char *ours = NULL;
  g_autoptr (GError) failure = NULL;

  config->vocab = 50;
  config->context = 8;
  config->width = 8;
  config->heads = 2;
  config->layers = 1;
  model = EBB_MODULE (ebb_gpt_new (config, &failure));
  ours = ebb_model_make_config (model, EBB_MODEL_KEEP_DTYPE, &failure);
  g_assert_no_error (failure);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GString) text = g_string_new (cases[i].from != NULL ? ours : cases[i].to);
      g_autoptr (GError) error = NULL;

      if (cases[i].from != NULL)
        g_assert_cmpuint (g_string_replace (text, cases[i].from, cases[i].to, 0), ==, 1);
      if (ebb_model_check_config (model, EBB_MODEL_KEEP_DTYPE, text->str, &error) != cases[i].fits)
        g_error ("%s", text->str);
      g_assert_true ((error == NULL) == cases[i].fits);
    }
}

int
main (int argc,
      char **argv)
{
  int status;

  test_init (&argc, &argv);
  test_scratch_begin ();
  g_test_add_func ("/model-folder/config-without-a-default", a_config_without_a_default_is_the_models);
  g_test_add_func ("/model-folder/other-files-stay", other_files_stay_where_a_model_is_replaced);
  g_test_add_func ("/model-folder/folder-without-a-model-gets-one", a_folder_without_a_model_gets_one);
  g_test_add_func ("/model-folder/failed-save-changes-nothing", a_save_that_fails_changes_nothing);
  g_test_add_func ("/model-folder/files-of-the-target-stay", files_of_the_target_are_not_replaced);
  g_test_add_func ("/model-folder/tokenizer-of-the-target-stays", a_tokenizer_of_the_target_stays_beside_a_gguf_model);
  g_test_add_func ("/model-folder/another-tokenizer", another_tokenizer_replaces_that_of_the_folder);
  g_test_add_func ("/model-folder/byte-tokenizer", a_byte_tokenizer_gets_files);
  g_test_add_func ("/model-folder/gpt2s-files", gpt2s_files_get_a_tokenizer);
  g_test_add_func ("/model-folder/gpt2s-settings", gpt2s_files_keep_their_settings);
  g_test_add_func ("/model-folder/current-folder", the_current_folder_stays_the_current_one);
  g_test_add_func ("/model-folder/failure-in-the-middle-is-undone", a_save_that_fails_in_the_middle_is_undone);
  g_test_add_func ("/model-folder/old-files-get-their-names-back", old_files_get_their_names_back);
  g_test_add_func ("/model-folder/longest-names", names_may_be_as_long_as_can_be);
  g_test_add_func ("/model-folder/config-before-the-save", a_config_is_that_of_the_saved_folder);
  status = g_test_run ();
  test_scratch_end ();
  return status;
}
