/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How tokens are chosen when a model generates text, and when it ends. */
#include "nn/models/generation-options-private.h"

#include "tensor/error-private.h"
#include "tensor/util/property-private.h"

/**
 * EbbGenerationOptions:
 *
 * How ebb_model_generate() chooses tokens and when it ends. The logits of a position pass the repetition penalty, the
 * ban of repeated n-grams, the least length, forced and suppressed tokens, then the temperature, top-k, top-p and
 * min-p, in this order and with the meaning that they have in transformers.
 *
 * For a model that ebb_model_open() made, what was not set comes from the model's folder, as
 * ebb_generation_options_open() reads it. Where neither names a stop token, the tokenizer's token for the end of a text
 * is one.
 */
G_DEFINE_TYPE (EbbGenerationOptions, ebb_generation_options, G_TYPE_OBJECT)

static void
ebb_generation_options_finalize (GObject *object)
{
  EbbGenerationOptions *self = EBB_GENERATION_OPTIONS (object);

  g_strfreev (self->stop_strings);
  g_clear_object (&self->generator);
  g_clear_object (&self->tokenizer);
  g_array_unref (self->stop_tokens);
  g_array_unref (self->forced_eos_tokens);
  g_array_unref (self->suppress_tokens);
  g_array_unref (self->begin_suppress_tokens);
  G_OBJECT_CLASS (ebb_generation_options_parent_class)->finalize (object);
}

static void
set_property (GObject *object, guint id, const GValue *value, GParamSpec *spec)
{
  EBB_GENERATION_OPTIONS (object)->given |= G_GUINT64_CONSTANT (1) << (id / 4);
  ebb_property_set_field (object, id, value, spec);
}

#define FLAGS (G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS)
#define INSTALL(field, spec) \
  g_object_class_install_property (object_class, offsetof (EbbGenerationOptions, field), spec)
/* Values that make no sense are reported by ebb_generation_options_check (). */
#define DOUBLE(name, blurb, initial) \
  g_param_spec_double (name, NULL, blurb, -G_MAXDOUBLE, G_MAXDOUBLE, initial, FLAGS)

static void
ebb_generation_options_class_init (EbbGenerationOptionsClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = set_property;
  object_class->finalize = ebb_generation_options_finalize;

  /**
   * EbbGenerationOptions:max-tokens:
   *
   * The most tokens that are added to each prompt.
   */
  INSTALL (max_tokens,
           g_param_spec_int ("max-tokens", NULL, "Most tokens that are added", G_MININT, G_MAXINT, 128, FLAGS));
  /**
   * EbbGenerationOptions:min-tokens:
   *
   * The least tokens that are added to each prompt: before, no stop token is chosen. Stop strings end a row all the
   * same.
   */
  INSTALL (min_tokens,
           g_param_spec_int ("min-tokens", NULL, "Least tokens that are added", G_MININT, G_MAXINT, 0, FLAGS));
  /**
   * EbbGenerationOptions:min-length:
   *
   * The least tokens that a row has, prompt included, before a stop token may be chosen.
   */
  INSTALL (min_length,
           g_param_spec_int ("min-length", NULL, "Least tokens of a row", G_MININT, G_MAXINT, 0, FLAGS));
  /**
   * EbbGenerationOptions:no-repeat-ngram-size:
   *
   * Sequences of this many tokens occur once in a row, prompt included; 0: any number of times.
   */
  INSTALL (no_repeat_ngram_size, g_param_spec_int ("no-repeat-ngram-size", NULL, "Tokens that don't repeat; 0: none",
                                                   G_MININT, G_MAXINT, 0, FLAGS));
  /**
   * EbbGenerationOptions:forced-bos-token:
   *
   * The token that follows a prompt of one token; -1: any.
   */
  INSTALL (forced_bos_token, g_param_spec_int64 ("forced-bos-token", NULL, "Token after a prompt of one; -1: any",
                                                 G_MININT64, G_MAXINT64, -1, FLAGS));
  /**
   * EbbGenerationOptions:temperature:
   *
   * The divisor of the logits: 1 for the model's own probabilities; 0 always takes the likeliest token.
   */
  INSTALL (temperature, DOUBLE ("temperature", "What logits are divided by; 0: the likeliest token", 0));
  /**
   * EbbGenerationOptions:top-k:
   *
   * How many of the likeliest tokens are considered, 0 for all.
   */
  INSTALL (top_k,
           g_param_spec_int ("top-k", NULL, "Likeliest tokens considered; 0: all", G_MININT, G_MAXINT, 0, FLAGS));
  /**
   * EbbGenerationOptions:top-p:
   *
   * The likeliest tokens whose probabilities together reach this are considered; 1: all.
   */
  INSTALL (top_p, DOUBLE ("top-p", "Probability that the tokens considered have together", 1));
  /**
   * EbbGenerationOptions:min-p:
   *
   * Tokens are considered whose probability is at least this part of the likeliest one's; 0: all.
   */
  INSTALL (min_p, DOUBLE ("min-p", "Least probability, relative to the likeliest token's", 0));
  /**
   * EbbGenerationOptions:repetition-penalty:
   *
   * Divides the positive logits of tokens that the row has already, prompt included, and multiplies the negative ones;
   * 1: nothing.
   */
  INSTALL (repetition_penalty, DOUBLE ("repetition-penalty", "Divides the logits of earlier tokens", 1));
  /**
   * EbbGenerationOptions:stop-strings:
   *
   * A row ends as soon as its text has one of these. Its text is what comes before. Needs the tokenizer.
   */
  INSTALL (stop_strings, g_param_spec_boxed ("stop-strings", NULL, "Texts that end a row", G_TYPE_STRV, FLAGS));
  /**
   * EbbGenerationOptions:use-cache:
   *
   * Whether keys and values of earlier tokens are kept, so that each step computes one token for a row.
   */
  INSTALL (use_cache,
           g_param_spec_boolean ("use-cache", NULL, "Whether earlier keys and values are kept", TRUE, FLAGS));
  /**
   * EbbGenerationOptions:slides:
   *
   * Whether a row may become longer than the model's context: the model then sees the end of it, computed anew for each
   * token. If not, such a row ends, and a longer prompt is an error.
   */
  INSTALL (slides,
           g_param_spec_boolean ("slides", NULL, "Whether rows may be longer than the context", FALSE, FLAGS));
  /**
   * EbbGenerationOptions:generator:
   *
   * Where draws come from; %NULL for the thread's default. A row's draws don't depend on the other rows.
   */
  INSTALL (generator, g_param_spec_object ("generator", NULL, "Where draws come from", EBB_TYPE_GENERATOR, FLAGS));
  /**
   * EbbGenerationOptions:tokenizer:
   *
   * Turns tokens into text, for results, stop strings and callbacks; %NULL: there are tokens alone.
   */
  INSTALL (tokenizer, g_param_spec_object ("tokenizer", NULL, "Turns tokens into text", EBB_TYPE_TOKENIZER, FLAGS));
}

static void
ebb_generation_options_init (EbbGenerationOptions *self)
{
  self->max_tokens = 128;
  self->top_p = 1;
  self->repetition_penalty = 1;
  self->use_cache = TRUE;
  self->forced_bos_token = -1;
  self->stop_tokens = g_array_new (FALSE, FALSE, sizeof (gint64));
  self->forced_eos_tokens = g_array_new (FALSE, FALSE, sizeof (gint64));
  self->suppress_tokens = g_array_new (FALSE, FALSE, sizeof (gint64));
  self->begin_suppress_tokens = g_array_new (FALSE, FALSE, sizeof (gint64));
}

/**
 * ebb_generation_options_new:
 *
 * Makes options of which nothing is set: the model's folder gives them; without a folder the likeliest token is taken
 * always, 128 times.
 *
 * Returns: (transfer full): the options
 */
EbbGenerationOptions *
ebb_generation_options_new (void)
{
  return g_object_new (EBB_TYPE_GENERATION_OPTIONS, NULL);
}

/**
 * ebb_generation_options_copy:
 * @self: options
 *
 * Returns: (transfer full): options with the same values, of which the same are set
 */
EbbGenerationOptions *
ebb_generation_options_copy (EbbGenerationOptions *self)
{
  EbbGenerationOptions *copy;

  g_return_val_if_fail (EBB_IS_GENERATION_OPTIONS (self), NULL);

  copy = ebb_generation_options_new ();
  copy->max_tokens = self->max_tokens;
  copy->min_tokens = self->min_tokens;
  copy->min_length = self->min_length;
  copy->no_repeat_ngram_size = self->no_repeat_ngram_size;
  copy->forced_bos_token = self->forced_bos_token;
  copy->temperature = self->temperature;
  copy->top_k = self->top_k;
  copy->top_p = self->top_p;
  copy->min_p = self->min_p;
  copy->repetition_penalty = self->repetition_penalty;
  copy->stop_strings = g_strdupv (self->stop_strings);
  copy->use_cache = self->use_cache;
  copy->slides = self->slides;
  g_set_object (&copy->generator, self->generator);
  g_set_object (&copy->tokenizer, self->tokenizer);
  g_array_append_vals (copy->stop_tokens, self->stop_tokens->data, self->stop_tokens->len);
  g_array_append_vals (copy->forced_eos_tokens, self->forced_eos_tokens->data, self->forced_eos_tokens->len);
  g_array_append_vals (copy->suppress_tokens, self->suppress_tokens->data, self->suppress_tokens->len);
  g_array_append_vals (copy->begin_suppress_tokens, self->begin_suppress_tokens->data,
                       self->begin_suppress_tokens->len);
  copy->given = self->given;
  return copy;
}

/**
 * ebb_generation_options_set_stop_tokens:
 * @self: options
 * @tokens: (array length=n_tokens) (nullable): tokens that end a row
 * @n_tokens: how many there are; 0: no token ends a row, also if the model's folder names some
 *
 * Sets the tokens that end a row, in place of those there were.
 */
void
ebb_generation_options_set_stop_tokens (EbbGenerationOptions *self,
                                        const gint64 *tokens,
                                        gsize n_tokens)
{
  g_return_if_fail (EBB_IS_GENERATION_OPTIONS (self));

  g_array_set_size (self->stop_tokens, 0);
  self->given |= EBB_GENERATION_GIVEN (stop_tokens);
  for (gsize i = 0; i < n_tokens; i++)
    ebb_generation_options_add_stop_token (self, tokens[i]);
}

/**
 * ebb_generation_options_add_stop_token:
 * @self: options
 * @token: a token that ends a row
 *
 * Adds a token that ends a row. The row has it as its last token, and its text doesn't. Those of the model's folder
 * don't count then.
 */
void
ebb_generation_options_add_stop_token (EbbGenerationOptions *self,
                                       gint64 token)
{
  g_return_if_fail (EBB_IS_GENERATION_OPTIONS (self));

  self->given |= EBB_GENERATION_GIVEN (stop_tokens);
  for (guint i = 0; i < self->stop_tokens->len; i++)
    if (g_array_index (self->stop_tokens, gint64, i) == token)
      return;
  g_array_append_val (self->stop_tokens, token);
}

/**
 * ebb_generation_options_get_stop_tokens:
 * @self: options
 * @n_tokens: (out): return location for how many there are
 *
 * Returns: (array length=n_tokens) (transfer none): the tokens that end a row
 */
const gint64 *
ebb_generation_options_get_stop_tokens (EbbGenerationOptions *self,
                                        gsize *n_tokens)
{
  g_return_val_if_fail (EBB_IS_GENERATION_OPTIONS (self), NULL);

  *n_tokens = self->stop_tokens->len;
  return (const gint64 *) (gpointer) self->stop_tokens->data;
}

/**
 * ebb_generation_options_set_forced_eos_tokens:
 * @self: options
 * @tokens: (array length=n_tokens) (nullable): tokens of which the last of #EbbGenerationOptions:max-tokens is one
 * @n_tokens: how many there are; 0: the last token may be any, also if the model's folder names some
 *
 * Sets the tokens among which the last of #EbbGenerationOptions:max-tokens tokens is chosen, each with the same
 * probability (at temperature 0: the first in the vocabulary), in place of those there were.
 */
void
ebb_generation_options_set_forced_eos_tokens (EbbGenerationOptions *self,
                                              const gint64 *tokens,
                                              gsize n_tokens)
{
  g_return_if_fail (EBB_IS_GENERATION_OPTIONS (self));

  g_array_set_size (self->forced_eos_tokens, 0);
  g_array_append_vals (self->forced_eos_tokens, tokens, (guint) n_tokens);
  self->given |= EBB_GENERATION_GIVEN (forced_eos_tokens);
}

/**
 * ebb_generation_options_get_forced_eos_tokens:
 * @self: options
 * @n_tokens: (out): return location for how many there are
 *
 * Returns: (array length=n_tokens) (transfer none): the tokens of which the last one is chosen; none: it may be any
 */
const gint64 *
ebb_generation_options_get_forced_eos_tokens (EbbGenerationOptions *self,
                                              gsize *n_tokens)
{
  g_return_val_if_fail (EBB_IS_GENERATION_OPTIONS (self), NULL);

  *n_tokens = self->forced_eos_tokens->len;
  return (const gint64 *) (gpointer) self->forced_eos_tokens->data;
}

/**
 * ebb_generation_options_set_suppress_tokens:
 * @self: options
 * @tokens: (array length=n_tokens) (nullable): tokens that are never chosen
 * @n_tokens: how many there are; 0: each token may be chosen, also if the model's folder names some
 *
 * Sets the tokens that are never chosen, in place of those there were.
 */
void
ebb_generation_options_set_suppress_tokens (EbbGenerationOptions *self,
                                            const gint64 *tokens,
                                            gsize n_tokens)
{
  g_return_if_fail (EBB_IS_GENERATION_OPTIONS (self));

  g_array_set_size (self->suppress_tokens, 0);
  g_array_append_vals (self->suppress_tokens, tokens, (guint) n_tokens);
  self->given |= EBB_GENERATION_GIVEN (suppress_tokens);
}

/**
 * ebb_generation_options_get_suppress_tokens:
 * @self: options
 * @n_tokens: (out): return location for how many there are
 *
 * Returns: (array length=n_tokens) (transfer none): the tokens that are never chosen
 */
const gint64 *
ebb_generation_options_get_suppress_tokens (EbbGenerationOptions *self,
                                            gsize *n_tokens)
{
  g_return_val_if_fail (EBB_IS_GENERATION_OPTIONS (self), NULL);

  *n_tokens = self->suppress_tokens->len;
  return (const gint64 *) (gpointer) self->suppress_tokens->data;
}

/**
 * ebb_generation_options_set_begin_suppress_tokens:
 * @self: options
 * @tokens: (array length=n_tokens) (nullable): tokens that are not chosen as the first one
 * @n_tokens: how many there are; 0: each token may be the first, also if the model's folder names some
 *
 * Sets the tokens that are not chosen as the first one after a prompt (after a forced one, as the second), in place of
 * those there were.
 */
void
ebb_generation_options_set_begin_suppress_tokens (EbbGenerationOptions *self,
                                                  const gint64 *tokens,
                                                  gsize n_tokens)
{
  g_return_if_fail (EBB_IS_GENERATION_OPTIONS (self));

  g_array_set_size (self->begin_suppress_tokens, 0);
  g_array_append_vals (self->begin_suppress_tokens, tokens, (guint) n_tokens);
  self->given |= EBB_GENERATION_GIVEN (begin_suppress_tokens);
}

/**
 * ebb_generation_options_get_begin_suppress_tokens:
 * @self: options
 * @n_tokens: (out): return location for how many there are
 *
 * Returns: (array length=n_tokens) (transfer none): the tokens that are not chosen as the first one
 */
const gint64 *
ebb_generation_options_get_begin_suppress_tokens (EbbGenerationOptions *self,
                                                  gsize *n_tokens)
{
  g_return_val_if_fail (EBB_IS_GENERATION_OPTIONS (self), NULL);

  *n_tokens = self->begin_suppress_tokens->len;
  return (const gint64 *) (gpointer) self->begin_suppress_tokens->data;
}

gboolean
ebb_generation_options_take_likeliest (const EbbGenerationOptions *self)
{
  return self->temperature == 0 && self->repetition_penalty == 1 && self->no_repeat_ngram_size == 0
         && self->min_tokens == 0 && self->min_length == 0 && self->forced_bos_token < 0
         && self->forced_eos_tokens->len + self->suppress_tokens->len + self->begin_suppress_tokens->len == 0;
}

/* -- checks -------------------------------------------------------------------------------------------------------- */

static gboolean
check_number (const char *name, double value, double least, double most, const char *expected, GError **error)
{
  return (value >= least && value <= most)
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "generate: %s is %g, it must be %s", name, value, expected);
}

static gboolean
check_tokens (const char *name, const GArray *tokens, GError **error)
{
  for (guint i = 0; i < tokens->len; i++)
    if (g_array_index (tokens, gint64, i) < 0)
      return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                       "generate: %s token %" G_GINT64_FORMAT " is negative", name, g_array_index (tokens, gint64, i));
  return TRUE;
}

gboolean
ebb_generation_options_check_values (EbbGenerationOptions *self, gboolean has_texts, GError **error)
{
  if (!check_number ("max-tokens", self->max_tokens, 0, G_MAXINT, "0 or more", error)
      || !check_number ("min-tokens", self->min_tokens, 0, G_MAXINT, "0 or more", error)
      || !check_number ("min-length", self->min_length, 0, G_MAXINT, "0 or more", error)
      || !check_number ("no-repeat-ngram-size", self->no_repeat_ngram_size, 0, G_MAXINT, "0, for none, or more", error)
      || !check_number ("forced-bos-token", (double) self->forced_bos_token, -1, G_MAXDOUBLE, "a token, or -1 for none",
                        error)
      || !check_number ("temperature", self->temperature, 0, G_MAXDOUBLE, "0, for the likeliest token, or more", error)
      || !check_number ("top-k", self->top_k, 0, G_MAXINT, "0, for all tokens, or more", error)
      || !check_number ("top-p", self->top_p, 0, 1, "from 0 to 1", error)
      || !check_number ("min-p", self->min_p, 0, 1, "from 0 to 1", error)
      || !check_number ("repetition-penalty", self->repetition_penalty, G_MINDOUBLE, G_MAXDOUBLE, "above 0", error))
    return FALSE;
  for (guint i = 0; self->stop_strings != NULL && self->stop_strings[i] != NULL; i++)
    {
      const char *fault = *self->stop_strings[i] == '\0'                       ? "is empty"
                          : !g_utf8_validate (self->stop_strings[i], -1, NULL) ? "is not UTF-8"
                          : has_texts && self->tokenizer == NULL               ? "needs the tokenizer, which is not set"
                                                                               : NULL;

      if (fault != NULL)
        return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "generate: stop string %u %s", i, fault);
    }
  return check_tokens ("stop", self->stop_tokens, error)
         && check_tokens ("forced last", self->forced_eos_tokens, error)
         && check_tokens ("suppressed", self->suppress_tokens, error)
         && check_tokens ("suppressed first", self->begin_suppress_tokens, error);
}

/**
 * ebb_generation_options_check:
 * @self: options
 * @error: return location for an error
 *
 * Checks that text can be generated with the options.
 *
 * Returns: %TRUE if it can, %FALSE with @error set to %EBB_ERROR_INVALID_ARGUMENT, the value and what would be right
 */
gboolean
ebb_generation_options_check (EbbGenerationOptions *self,
                              GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_GENERATION_OPTIONS (self), FALSE);

  return ebb_generation_options_check_values (self, TRUE, error);
}
