/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/fixtures.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <string.h>

static void
published_weights_give_pytorchs_logits (void)
{
  g_autoptr (EbbModule) gpt = test_fixture_gpt (97, 16, 32, EBB_ACTIVATION_GELU_TANH);
  g_autoptr (EbbArgs) weights = test_load_fixture ("gpt2-tiny.safetensors");
  g_autoptr (EbbArgs) expected = test_load_fixture ("gpt2-tiny-logits.safetensors");
  g_autoptr (EbbTensor) tokens = test_fixture_tensor (expected, "tokens");
  g_autoptr (EbbTensor) expected_logits = test_fixture_tensor (expected, "logits");
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_gpt_load_gpt2 (EBB_GPT (gpt), weights, &error));
  g_assert_no_error (error);
  logits = ebb_module_call1 (gpt, tokens, &error);
  g_assert_no_error (error);
  g_test_message ("largest difference %g", test_difference (logits, expected_logits));
  test_assert_near (logits, expected_logits, 1e-5);
}

/* The fixture's weights with the rows of the embedding, each one place on, as a head of its own. */
static EbbArgs *
load_untied (void)
{
  EbbArgs *weights = test_load_fixture ("gpt2-tiny.safetensors");
  g_autoptr (EbbTensor) words = ebb_args_get_tensor (weights, (guint) ebb_args_find (weights, "wte.weight"));
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) first = ebb_narrow (words, 0, 0, 1, &error);
  g_autoptr (EbbTensor) rest = ebb_narrow (words, 0, 1, ebb_tensor_get_dim (words, 0) - 1, &error);
  EbbTensor *parts[] = { rest, first };
  g_autoptr (EbbTensor) head = ebb_cat (parts, 2, 0, &error);

  g_assert_no_error (error);
  ebb_args_add_tensor (weights, "lm_head.weight", head);
  return weights;
}

static EbbGptConfig *
make_config (EbbArgs *weights)
{
  g_autoptr (EbbArgs) metadata = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (GError) error = NULL;
  EbbGptConfig *config;

  ebb_args_add_string (metadata, "n_head", "4");
  config = ebb_gpt_config_new_from_gpt2 (weights, metadata, NULL, &error);
  g_assert_no_error (error);
  config->dropout = 0;
  return config;
}

/* PyTorch's logits, each one place on. */
static void
an_untied_head_is_used (void)
{
  g_autoptr (EbbArgs) weights = load_untied ();
  g_autoptr (EbbGptConfig) config = make_config (weights);
  g_autoptr (EbbArgs) recorded = test_load_fixture ("gpt2-tiny-logits.safetensors");
  g_autoptr (EbbTensor) tokens = test_fixture_tensor (recorded, "tokens");
  g_autoptr (EbbTensor) expected = test_fixture_tensor (recorded, "logits");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) gpt = ebb_gpt_new (config, &error);
  g_autoptr (EbbModule) tied = test_fixture_gpt (97, 16, 32, EBB_ACTIVATION_GELU_TANH);
  g_autoptr (EbbArgs) before = ebb_module_get_state_dict (tied);
  g_autoptr (EbbArgs) saved = NULL;
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (EbbTensor) on = NULL;
  g_autoptr (EbbTensor) off = NULL;

  g_assert_false (config->tied);
  g_assert_true (ebb_gpt_load_gpt2 (EBB_GPT (gpt), weights, &error));
  logits = ebb_module_call1 (gpt, tokens, &error);
  on = ebb_narrow (logits, 2, 0, 96, &error);
  off = ebb_narrow (expected, 2, 1, 96, &error);
  g_assert_no_error (error);
  test_assert_near (on, off, 1e-5);
  saved = ebb_gpt_to_gpt2_state (EBB_GPT (gpt), &error);
  g_assert_cmpint (ebb_args_find (saved, "lm_head.weight"), >=, 0);

  /* A model that has no place for it. */
  g_assert_false (ebb_gpt_load_gpt2 (EBB_GPT (tied), weights, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_assert_nonnull (strstr (error->message, "lm_head.weight differs from wte.weight"));
}

static void
a_head_that_is_the_embedding_is_tied (void)
{
  g_autoptr (EbbArgs) weights = test_load_fixture ("gpt2-tiny.safetensors");
  g_autoptr (EbbTensor) words = ebb_args_get_tensor (weights, (guint) ebb_args_find (weights, "wte.weight"));
  g_autoptr (EbbTensor) copy = ebb_copy (words, NULL);
  g_autoptr (EbbGptConfig) config = NULL;
  g_autoptr (EbbModule) gpt = NULL;
  g_autoptr (GError) error = NULL;

  ebb_args_add_tensor (weights, "lm_head.weight", copy);
  config = make_config (weights);
  g_assert_true (config->tied);
  gpt = ebb_gpt_new (config, &error);
  g_assert_true (ebb_gpt_load_gpt2 (EBB_GPT (gpt), weights, &error));
  g_assert_no_error (error);
}

/* Which of both is meant, nobody knows. */
static void
names_with_and_without_prefix_are_an_error (void)
{
  g_autoptr (EbbArgs) weights = load_untied ();
  g_autoptr (EbbGptConfig) config = make_config (weights);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = ebb_gpt_new (config, &error);
  g_autoptr (EbbTensor) head = ebb_args_get_tensor (weights, (guint) ebb_args_find (weights, "lm_head.weight"));

  g_assert_no_error (error);
  ebb_args_add_tensor (weights, "transformer.wte.weight", head);
  g_assert_false (ebb_gpt_load_gpt2 (EBB_GPT (model), weights, &error));
  test_assert_error (error, EBB_ERROR_STATE, "load_gpt2: wte.weight is there twice, with and without transformer.");
}

/* Each key of config.json sets the configuration, or agrees with the tensors, or is an error that names it. */
static void
the_configuration_is_taken_over (void)
{
  const struct
  {
    const char *json, *wrong; /* in the error; NULL: none */
  } cases[] = {
    { "{\"n_head\": 2, \"layer_norm_epsilon\": 1e-06, \"activation_function\": \"gelu\", \"resid_pdrop\": 0.3,"
      " \"embd_pdrop\": 0.3, \"attn_pdrop\": 0.3, \"model_type\": \"gpt2\", \"n_embd\": 32, \"n_inner\": null,"
      " \"tie_word_embeddings\": false, \"architectures\": [\"GPT2LMHeadModel\"]}",
      NULL },
    { "{\"n_head\": 0}", "n_head is 0: it must be a number of at least 1" },
    { "{\"n_head\": 2.5}", "n_head is 2.5" },
    { "{\"n_head\": 2, \"n_embd\": 64}", "n_embd is 64: it must be 32, as the tensors have it" },
    { "{\"n_head\": 2, \"vocab_size\": 98}", "vocab_size is 98: it must be 97" },
    { "{\"n_head\": 2, \"n_inner\": 64}", "n_inner is 64: it must be 128" },
    { "{\"n_head\": 2, \"layer_norm_epsilon\": \"x\"}", "layer_norm_epsilon is \"x\": it must be a number" },
    { "{\"n_head\": 2, \"activation_function\": \"relu\"}",
      "activation_function is \"relu\": it must be \"gelu_new\"" },
    { "{\"n_head\": 2, \"scale_attn_by_inverse_layer_idx\": true}", "must be false" },
    { "{\"n_head\": 2, \"scale_attn_weights\": false}", "must be true" },
    { "{\"n_head\": 2, \"tie_word_embeddings\": true}", "tie_word_embeddings is true: it must be false" },
    { "{\"model_type\": \"bert\"}", "model_type is \"bert\": it must be \"gpt2\"" },
    { "{\"n_head\": 2, \"n_head\": 4}", "the key \"n_head\" stands twice in one object" },
    { "[2]", "config.json" },
    { "{\"n_head\": 2", "config.json" },
  };
  g_autofree char *folder = g_dir_make_tmp ("ebb-gpt2-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, "config.json", NULL);
  g_autoptr (EbbArgs) weights = load_untied ();

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbGptConfig) config = NULL;

      g_assert_true (g_file_set_contents (path, cases[i].json, -1, NULL));
      config = ebb_gpt_config_new_from_gpt2 (weights, NULL, path, &error);
      if (cases[i].wrong != NULL)
        {
          g_assert_null (config);
          g_assert_nonnull (error);
          g_assert_nonnull (strstr (error->message, path));
          g_test_message ("%s", error->message);
          g_assert_nonnull (strstr (error->message, cases[i].wrong));
          continue;
        }
      g_assert_no_error (error);
      g_assert_cmpint (config->heads, ==, 2);
      g_assert_cmpint (config->layers, ==, 2);
      g_assert_cmpint (config->context, ==, 16);
      g_assert_cmpint (config->activation, ==, EBB_ACTIVATION_GELU);
      g_assert_cmpfloat (config->norm_eps, ==, 1e-6);
      g_assert_cmpfloat (config->dropout, ==, 0.3);
      g_assert_false (config->tied);
    }
  g_unlink (path);
  g_rmdir (folder);
}

static void
metadata_say_what_shapes_dont (void)
{
  g_autoptr (EbbArgs) weights = test_load_fixture ("gpt2-tiny.safetensors");
  g_autoptr (EbbGptConfig) config = make_config (weights);
  g_autoptr (EbbGptConfig) unknown = NULL;
  g_autoptr (EbbGptConfig) again = NULL;
  g_autoptr (EbbArgs) metadata = NULL;
  g_autoptr (GError) error = NULL;

  config->heads = 8;
  config->norm_eps = 1e-7 / 3;
  config->activation = EBB_ACTIVATION_GELU;
  metadata = ebb_gpt_config_to_gpt2_metadata (config);
  again = ebb_gpt_config_new_from_gpt2 (weights, metadata, NULL, &error);
  g_assert_no_error (error);
  g_assert_cmpint (again->heads, ==, 8);
  g_assert_cmpfloat (again->norm_eps, ==, 1e-7 / 3);
  g_assert_cmpint (again->activation, ==, EBB_ACTIVATION_GELU);
  unknown = ebb_gpt_config_new_from_gpt2 (weights, NULL, NULL, &error); /* 32 wide: not even a guess */
  g_assert_cmpint (unknown->heads, ==, 0);
  g_assert_null (ebb_gpt_config_new_from_gpt2 (metadata, NULL, NULL, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/gpt2-weights/give-pytorchs-logits", published_weights_give_pytorchs_logits);
  g_test_add_func ("/gpt2-weights/an-untied-head-is-used", an_untied_head_is_used);
  g_test_add_func ("/gpt2-weights/a-head-that-is-the-embedding-is-tied", a_head_that_is_the_embedding_is_tied);
  g_test_add_func ("/gpt2-weights/names-with-and-without-prefix-are-an-error",
                   names_with_and_without_prefix_are_an_error);
  g_test_add_func ("/gpt2-weights/the-configuration-is-taken-over", the_configuration_is_taken_over);
  g_test_add_func ("/gpt2-weights/metadata-say-what-shapes-dont", metadata_say_what_shapes_dont);
  return g_test_run ();
}
