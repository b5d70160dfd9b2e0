/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Rows of a batch don't depend on each other, and a cache changes nothing. */
#include "support/device.h"
#include "support/fixtures.h"
#include "support/generation.h"

static EbbModule *
open_model (const char *row)
{
  g_autofree char *folder = g_test_build_filename (G_TEST_DIST, "fixtures", "models", row, NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = ebb_model_open (folder, &error);

  g_assert_no_error (error);
  g_assert_true (ebb_module_to_device (model, test_device (), &error));
  g_assert_true (ebb_module_to_dtype (model, EBB_DTYPE_F32, &error));
  return g_steal_pointer (&model);
}

static EbbGeneration *
generate (EbbModule *model, EbbTensor **prompts, gsize n, EbbGenerationOptions *options)
{
  g_autoptr (GError) error = NULL;
  EbbGeneration *generation = ebb_model_generate (model, prompts, n, options, NULL, NULL, NULL, &error);

  g_assert_no_error (error);
  return generation;
}

/* The tokens drawn for the middle row of three are the same whatever the other rows hold, and whenever they end. */
static void
draws_do_not_depend_on_the_other_rows (void)
{
  g_autoptr (EbbModule) gpt = open_model ("gpt2");
  g_autoptr (EbbTensor) own = test_prompt (9, 2, -1);
  g_autoptr (EbbTensor) a = test_prompt (5, 6, 7, 8, 9, -1), b = test_prompt (1, -1), c = test_prompt (40, 41, -1);
  EbbTensor *const others[][2] = { { a, b }, { b, a }, { c, c }, { b, b } };
  g_autoptr (EbbTensor) expected = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (others) * 4; i++)
    {
      EbbTensor *prompts[] = { others[i / 4][0], own, others[i / 4][1] };
      g_autoptr (EbbGenerator) generator = ebb_generator_new (5);
      g_autoptr (EbbGenerationOptions) options =
          g_object_new (EBB_TYPE_GENERATION_OPTIONS, "max-tokens", 12, "temperature", 1.0, "generator", generator,
                        "use-cache", i % 2 == 0, "top-k", 40, "top-p", 0.95, "repetition-penalty", 1.1, NULL);
      g_autoptr (EbbGeneration) all = NULL;

      ebb_generation_options_add_stop_token (options, 2); /* the folder's, which others would replace */
      all = generate (gpt, prompts, 3, options);
      for (guint row = 0; row < 3 && i / 2 % 2 == 1; row += 2) /* once more, where the others end early */
        {
          g_autoptr (EbbTensor) tokens = ebb_generation_get_tokens (all, row);
          const gint64 stop = ((const gint64 *) test_read (tokens))[MIN (row, ebb_tensor_get_dim (tokens, 0) - 1)];
          const gint64 *drawn = test_read (expected);
          gboolean is_own = FALSE;

          for (gint64 j = 0; j < ebb_tensor_get_dim (expected, 0); j++)
            is_own = is_own || drawn[j] == stop;
          if (!is_own)
            ebb_generation_options_add_stop_token (options, stop);
        }
      if (i / 2 % 2 == 1)
        {
          g_autoptr (EbbGenerator) same = ebb_generator_new (5);
          gsize n_stops;

          ebb_generation_options_get_stop_tokens (options, &n_stops);
          g_assert_cmpuint (n_stops, >, 1);
          g_object_set (options, "generator", same, NULL);
          g_clear_object (&all);
          all = generate (gpt, prompts, 3, options);
        }
      if (expected == NULL)
        expected = ebb_generation_get_tokens (all, 1);
      else
        {
          g_autoptr (EbbTensor) tokens = ebb_generation_get_tokens (all, 1);

          g_assert_true (ebb_tensor_equal (tokens, expected));
        }
    }
}

static EbbGeneration *
generate_greedily (EbbModule *model, EbbTensor **prompts, gsize n, gboolean use_cache, gint64 stop_token)
{
  g_autoptr (EbbGenerationOptions) options =
      g_object_new (EBB_TYPE_GENERATION_OPTIONS, "max-tokens", 24, "use-cache", use_cache, NULL);

  ebb_generation_options_add_stop_token (options, stop_token);
  return generate (model, prompts, n, options);
}

/* Rows begin within the original context and leave it. The longest row may end early: the others go on padded. */
static void
assert_a_cache_changes_nothing (EbbModule *model)
{
  static const int lengths[][3] = { { 12, 3, 7 }, { 3, 14, 15 }, { 16, 2, 17 }, { 5, 18, 1 } };

  for (guint i = 0; i < G_N_ELEMENTS (lengths); i++)
    {
      EbbTensor *prompts[3];
      gint64 stop = 2;
      guint longest = 0;

      for (guint row = 0; row < 3; row++)
        {
          const gint64 n = lengths[i][row];
          gint64 tokens[18];

          for (gint64 j = 0; j < n; j++)
            tokens[j] = 3 + (7 * j + 11 * row + 5 * i) % 60;
          prompts[row] = ebb_tensor_new_from_ints (tokens, (gsize) n, &n, 1, NULL);
          longest = n > lengths[i][longest] ? row : longest;
        }
      for (int ends = 0; ends < 2; ends++)
        {
          g_autoptr (EbbGeneration) plain = generate_greedily (model, prompts, 3, FALSE, stop);
          g_autoptr (EbbGeneration) cached = generate_greedily (model, prompts, 3, TRUE, stop);
          g_autoptr (EbbTensor) of_longest = ebb_generation_get_tokens (plain, longest);

          for (guint row = 0; row < 3; row++)
            {
              g_autoptr (EbbTensor) x = ebb_generation_get_tokens (plain, row);
              g_autoptr (EbbTensor) y = ebb_generation_get_tokens (cached, row);

              g_assert_true (ebb_tensor_equal (x, y));
            }
          stop = ((const gint64 *) test_read (of_longest))[1];
        }
      for (guint row = 0; row < 3; row++)
        ebb_tensor_unref (prompts[row]);
    }
}

static void
a_cache_changes_nothing_across_the_longrope_switch (void)
{
  g_autoptr (EbbModule) model = open_model ("phi3-longrope");

  assert_a_cache_changes_nothing (model);
}

/* Gives a new model weights that matter. */
static void
fill_weights (EbbModule *model)
{
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);

  ebb_manual_seed (3);
  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < n; i++)
    {
      g_assert_true (ebb_tensor_fill_normal (parameters[i], 0, 0.4, NULL, NULL));
      ebb_tensor_unref (parameters[i]);
    }
  ebb_pop_grad_enabled ();
}

/* Layers with a window may have a scaling of their own, beside another one or with another original context. */
static void
sliding_layers_switch_too (void)
{
  g_autoptr (EbbModule) opened = open_model ("phi3-longrope");

  for (int both = 0; both < 2; both++)
    {
      g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (EBB_GPT (opened));
      g_autoptr (EbbModule) model = NULL;
      g_autoptr (GError) error = NULL;

      config->local_rotary = config->rotary;
      config->window = 40;
      if (both)
        config->rotary.original_context = 24;
      else
        {
          config->rotary.scaling = EBB_ROTARY_DEFAULT;
          config->rotary.factor = 1;
        }
      ebb_gpt_config_set_layer_pattern (config, "sf");
      model = ebb_gpt_new (config, &error);
      g_assert_no_error (error);
      g_assert_true (ebb_module_to_device (model, test_device (), &error));
      fill_weights (model);
      assert_a_cache_changes_nothing (model);
    }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/generation-batches/other-rows", draws_do_not_depend_on_the_other_rows);
  g_test_add_func ("/generation-batches/longrope", a_cache_changes_nothing_across_the_longrope_switch);
  g_test_add_func ("/generation-batches/longrope-of-sliding-layers", sliding_layers_switch_too);
  return g_test_run ();
}
