/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "nn/models/token-choice-private.h"

#include "tensor/util/json-private.h"

#include <ebb/ebb.h>
#include <math.h>
#include <string.h>

/* Penalty, temperature, top-k, top-p and min-p leave the same logits as transformers' processors; draws follow them. */

static double *
read_numbers (const EbbJson *list)
{
  double *numbers = g_new (double, list->n_items);

  for (gsize i = 0; i < list->n_items; i++)
    g_assert_true (ebb_json_as_double (&list->items[i], &numbers[i]));
  return numbers;
}

static EbbGenerationOptions *
read_options (const EbbJson *json)
{
  EbbGenerationOptions *options = ebb_generation_options_new ();

  g_object_set (options, "temperature", 1.0, NULL);
  for (gsize i = 0; i < json->n_items; i++)
    {
      g_autofree char *name = g_strdelimit (g_strdup (json->items[i].key), "_", '-');
      double value;

      g_assert_true (ebb_json_as_double (&json->items[i], &value));
      if (strcmp (name, "top-k") == 0)
        g_object_set (options, name, (int) value, NULL);
      else
        g_object_set (options, name, value, NULL);
    }
  return options;
}

typedef struct
{
  EbbTokenChoice *choice;
  const float *logits;
  const gint64 *earlier;
  gsize n_earlier;
} Position;

static gint64
choose (const Position *self, double uniform)
{
  return ebb_token_choice_choose (self->choice, self->logits, self->earlier, self->n_earlier, self->n_earlier, uniform);
}

/* Sets @have to the length of the part of [0, 1) in which the numbers lie that choose each token. */
static void
measure (const Position *self, double *have)
{
  const double last = nextafter (1, 0);
  double begin = 0, next;

  for (gint64 before = -1, token; begin <= last; before = token, begin = next)
    {
      double inside = begin;

      token = choose (self, begin);
      g_assert_cmpint (token, >, before); /* the parts are in the order of the tokens */
      next = last;
      while (nextafter (inside, 1) < next)
        {
          const double middle = inside + (next - inside) / 2;

          *(choose (self, middle) == token ? &inside : &next) = middle;
        }
      if (choose (self, next) == token)
        next = 1;
      have[token] = next - begin;
    }
}

static void
check_case (const EbbJson *json)
{
  const EbbJson *list = ebb_json_get (json, "logits");
  const gsize n = list->n_items, n_earlier = ebb_json_get (json, "earlier")->n_items;
  g_autofree double *logits = read_numbers (list);
  g_autofree double *earlier = read_numbers (ebb_json_get (json, "earlier"));
  g_autofree double *expected = read_numbers (ebb_json_get (json, "probabilities"));
  g_autofree double *have = g_new0 (double, n);
  g_autofree float *floats = g_new (float, n);
  g_autofree gint64 *tokens = g_new (gint64, n_earlier);
  g_autoptr (EbbGenerationOptions) options = read_options (ebb_json_get (json, "options"));
  g_autoptr (EbbTokenChoice) choice = ebb_token_choice_new (options, (gint64) n);
  const Position position = { choice, floats, tokens, n_earlier };

  for (gsize i = 0; i < n; i++)
    floats[i] = (float) logits[i];
  for (gsize i = 0; i < n_earlier; i++)
    tokens[i] = (gint64) earlier[i];
  measure (&position, have);
  for (gsize i = 0; i < n; i++)
    {
      g_assert_cmpint (have[i] > 0, ==, expected[i] > 0);
      g_assert_cmpfloat_with_epsilon (have[i], expected[i], 1e-6);
    }
}

static void
candidates_are_those_of_transformers (void)
{
  g_autofree char *path = g_test_build_filename (G_TEST_DIST, "fixtures", "sampling.json", NULL);
  g_autoptr (EbbJson) cases = ebb_json_read_file (path, 1 << 24, NULL);

  g_assert_cmpuint (cases->n_items, >, 20);
  for (gsize i = 0; i < cases->n_items; i++)
    check_case (&cases->items[i]);
}

static void
extremes_have_a_token_too (void)
{
  g_autoptr (EbbGenerationOptions) options = ebb_generation_options_new ();
  const float huge[] = { 1e38f, -1e38f, 3e38f, 0 }, infinite[] = { -INFINITY, 0, -INFINITY, -INFINITY };
  const float nothing[] = { NAN, NAN, NAN, NAN }, some[] = { NAN, 1, 2, NAN };

  for (double temperature = 0; temperature <= 2; temperature += 1e-40 + temperature * 1e38)
    {
      g_autoptr (EbbTokenChoice) choice = NULL;

      g_object_set (options, "temperature", MIN (temperature, 1), "top-p", 0.9, NULL);
      choice = ebb_token_choice_new (options, 4);
      g_assert_cmpint (ebb_token_choice_choose (choice, huge, NULL, 0, 0, 0.999), ==, 2);
      g_assert_cmpint (ebb_token_choice_choose (choice, infinite, NULL, 0, 0, 0), ==, 1);
      g_assert_cmpint (ebb_token_choice_choose (choice, nothing, NULL, 0, 0, 0), ==, -1);
      g_assert_cmpint (ebb_token_choice_choose (choice, some, NULL, 0, 0, 0.999), ==, 2);
    }
}

/* What is left of six tokens whose logits fall, by hand: the processors of transformers 4.57 do the same. */
static void
tokens_are_ruled_out_and_forced (void)
{
  static const float logits[] = { 5, 4, 3, 2, 1, 0 };
  static const struct
  {
    const char *name;
    int value;
    gint64 suppressed, suppressed_first, stop; /* -1: none */
    gint64 forced_last[2];                     /* 0: none */
    gint64 earlier[5];
    gsize n_earlier, n_prompt;
    gint64 chosen;
  } cases[] = {
    { NULL, 0, -1, -1, -1, { 0 }, { 1, 2 }, 2, 2, 0 },
    { NULL, 0, 0, -1, -1, { 0 }, { 1, 2 }, 2, 2, 1 },
    { NULL, 0, 0, 1, -1, { 0 }, { 1, 2 }, 2, 2, 2 },
    { NULL, 0, 0, 1, -1, { 0 }, { 1, 2 }, 2, 1, 1 }, /* it is not the first */
    { NULL, 0, 900, -1, -1, { 0 }, { 1 }, 1, 1, 0 }, /* outside of the vocabulary */
    { "no-repeat-ngram-size", 1, -1, -1, -1, { 0 }, { 0, 1, 3 }, 3, 3, 2 },
    { "no-repeat-ngram-size", 2, -1, -1, -1, { 0 }, { 5, 0, 5, 1, 5 }, 5, 1, 2 },
    { "no-repeat-ngram-size", 2, -1, -1, -1, { 0 }, { 3, 0, 0 }, 3, 1, 1 },
    { "no-repeat-ngram-size", 3, -1, -1, -1, { 0 }, { 5, 5, 0, 5, 5 }, 5, 1, 1 },
    { "no-repeat-ngram-size", 3, -1, -1, -1, { 0 }, { 5, 4, 0, 5, 5 }, 5, 1, 0 },
    { "no-repeat-ngram-size", 3, -1, -1, -1, { 0 }, { 0, 0 }, 2, 1, 0 },
    { "min-tokens", 2, -1, -1, 0, { 0 }, { 3, 3 }, 2, 1, 1 },
    { "min-tokens", 2, -1, -1, 0, { 0 }, { 3, 3, 3 }, 3, 1, 0 },
    { "min-length", 3, -1, -1, 0, { 0 }, { 3, 3 }, 2, 1, 1 },
    { "min-length", 3, -1, -1, 0, { 0 }, { 3, 3, 3 }, 3, 3, 0 },
    { "forced-bos-token", 4, -1, -1, -1, { 0 }, { 3 }, 1, 1, 4 },
    { "forced-bos-token", 4, -1, 0, -1, { 0 }, { 3, 4 }, 2, 1, 1 }, /* the first that is chosen */
    { "forced-bos-token", 4, -1, -1, -1, { 0 }, { 3, 3 }, 2, 2, 0 },
    { NULL, 0, -1, -1, -1, { 5 }, { 3, 3 }, 2, 1, 0 },
    { NULL, 0, -1, -1, -1, { 5 }, { 3, 3, 3 }, 3, 1, 5 },
    { NULL, 0, 5, -1, -1, { 5 }, { 3, 3, 3 }, 3, 1, EBB_TOKEN_CHOICE_NONE },
    { NULL, 0, -1, -1, -1, { 5, 4 }, { 3, 3 }, 2, 1, 0 },
    { NULL, 0, -1, -1, -1, { 5, 4 }, { 3, 3, 3 }, 3, 1, 4 }, /* both are as likely */
    { NULL, 0, 4, -1, -1, { 5, 4 }, { 3, 3, 3 }, 3, 1, 5 },
    { NULL, 0, -1, -1, -1, { 900, 5 }, { 3, 3, 3 }, 3, 1, 5 },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    for (guint samples = 0; samples < 2; samples++)
      {
        g_autoptr (EbbGenerationOptions) options = ebb_generation_options_new ();
        g_autoptr (EbbGenerationOptions) copy = NULL;
        g_autoptr (EbbTokenChoice) choice = NULL;
        g_auto (GValue) value = G_VALUE_INIT;

        g_object_set (options, "max-tokens", 3, "temperature", samples ? 1e-3 : 0.0, NULL);
        g_value_init (&value, G_TYPE_INT);
        g_value_set_int (&value, cases[i].value);
        if (cases[i].name != NULL)
          g_object_set_property (G_OBJECT (options), cases[i].name, &value);
        ebb_generation_options_set_suppress_tokens (options, &cases[i].suppressed, cases[i].suppressed >= 0);
        ebb_generation_options_set_begin_suppress_tokens (options, &cases[i].suppressed_first,
                                                          cases[i].suppressed_first >= 0);
        ebb_generation_options_set_stop_tokens (options, &cases[i].stop, cases[i].stop >= 0);
        ebb_generation_options_set_forced_eos_tokens (options, cases[i].forced_last,
                                                      (cases[i].forced_last[0] > 0) + (cases[i].forced_last[1] > 0));
        copy = ebb_generation_options_copy (options);
        choice = ebb_token_choice_new (copy, 6);
        g_assert_cmpint (ebb_token_choice_choose (choice, logits, cases[i].earlier, cases[i].n_earlier,
                                                  cases[i].n_prompt, 0.4),
                         ==, cases[i].chosen);
      }
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/nn/models/token-choice/transformers", candidates_are_those_of_transformers);
  g_test_add_func ("/nn/models/token-choice/ruled-out-and-forced", tokens_are_ruled_out_and_forced);
  g_test_add_func ("/nn/models/token-choice/extremes", extremes_have_a_token_too);
  return g_test_run ();
}
