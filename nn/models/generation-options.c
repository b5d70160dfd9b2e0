/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How tokens are chosen when a model generates text, and when it ends. */
#include "nn/models/generation-options-private.h"

#include "nn/files/gguf-private.h"
#include "nn/files/json-private.h"
#include "tensor/error-private.h"
#include "tensor/util/property-private.h"

#include <errno.h>
#include <math.h>
#include <unistd.h>

/**
 * EbbGenerationOptions:
 *
 * How ebb_model_generate() chooses tokens and when it ends. The logits of a position pass the repetition penalty, then
 * the temperature, top-k, top-p and min-p, in this order and with the meaning that they have in transformers.
 *
 * For a model that ebb_model_open() made, what was not set comes from the model's folder, as
 * ebb_generation_options_open() reads it. Where neither names a stop token, the tokenizer's token for the end of a text
 * is one.
 */
G_DEFINE_TYPE (EbbGenerationOptions, ebb_generation_options, G_TYPE_OBJECT)

#define MAX_FILE (16 * 1024 * 1024)

static void
ebb_generation_options_finalize (GObject *object)
{
  EbbGenerationOptions *self = EBB_GENERATION_OPTIONS (object);

  g_strfreev (self->stop_strings);
  g_clear_object (&self->generator);
  g_clear_object (&self->tokenizer);
  g_array_unref (self->stop_tokens);
  G_OBJECT_CLASS (ebb_generation_options_parent_class)->finalize (object);
}

#define GIVEN(field) (G_GUINT64_CONSTANT (1) << (offsetof (EbbGenerationOptions, field) / 4))
#define ALL_GIVEN (GIVEN (stop_tokens) * 2 - 1)

G_STATIC_ASSERT (offsetof (EbbGenerationOptions, given) / 4 < 64);

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
  self->stop_tokens = g_array_new (FALSE, FALSE, sizeof (gint64));
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
  self->given |= GIVEN (stop_tokens);
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

  self->given |= GIVEN (stop_tokens);
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

/* -- a folder's defaults ------------------------------------------------------------------------------------------- */

static gboolean
refuse_key (const char *path, const char *key, const char *expected, GError **error)
{
  g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: \"%s\" must be %s", path, key, expected);
  return FALSE;
}

static gboolean
is_given (const EbbJson *json)
{
  return json != NULL && json->kind != EBB_JSON_NULL;
}

static gboolean
take_double (const EbbJson *json, const char *path, const char *key, double *value, GError **error)
{
  const EbbJson *member = ebb_json_get (json, key);

  return !is_given (member) || ebb_json_as_double (member, value) || refuse_key (path, key, "a number", error);
}

static gboolean
take_int (const EbbJson *json, const char *path, const char *key, int *value, GError **error)
{
  const EbbJson *member = ebb_json_get (json, key);
  gint64 number;

  if (!is_given (member))
    return TRUE;
  if (!ebb_json_as_int (member, &number) || number < G_MININT || number > G_MAXINT)
    return refuse_key (path, key, "an integer", error);
  *value = (int) number;
  return TRUE;
}

/* The tokens that end a text: one, or a list. */
static gboolean
take_stop_tokens (EbbGenerationOptions *self, const EbbJson *json, const char *path, GError **error)
{
  const EbbJson *member = ebb_json_get (json, "eos_token_id");
  const gboolean is_list = member != NULL && member->kind == EBB_JSON_LIST;

  if (!is_given (member))
    return TRUE;
  for (gsize i = 0; i < (is_list ? member->n_items : 1); i++)
    {
      gint64 token;

      if (!ebb_json_as_int (is_list ? &member->items[i] : member, &token) || token < 0)
        return refuse_key (path, "eos_token_id", "a token or a list of tokens", error);
      ebb_generation_options_add_stop_token (self, token);
    }
  return TRUE;
}

static gboolean
take_all (EbbGenerationOptions *self, const EbbJson *json, const char *path, GError **error)
{
  const EbbJson *samples = ebb_json_get (json, "do_sample");
  gboolean do_sample = FALSE;

  if (is_given (samples) && !ebb_json_as_boolean (samples, &do_sample))
    return refuse_key (path, "do_sample", "true or false", error);
  self->temperature = 1;
  self->top_k = 50; /* transformers' values for what is left out */
  if (!take_double (json, path, "temperature", &self->temperature, error)
      || !take_int (json, path, "top_k", &self->top_k, error)
      || !take_double (json, path, "top_p", &self->top_p, error)
      || !take_double (json, path, "min_p", &self->min_p, error)
      || !take_double (json, path, "repetition_penalty", &self->repetition_penalty, error)
      || !take_int (json, path, "max_new_tokens", &self->max_tokens, error)
      || !take_stop_tokens (self, json, path, error))
    return FALSE;
  if (!do_sample)
    {
      self->temperature = 0;
      self->top_k = 0;
      self->top_p = 1;
      self->min_p = 0;
    }
  return TRUE;
}

/* NULL without @error: there is no such file. */
static EbbJson *
read_object (const char *folder, const char *name, char **path, GError **error)
{
  EbbJson *json;

  *path = g_build_filename (folder, name, NULL);
  if (access (*path, F_OK) != 0 && errno == ENOENT)
    return NULL;
  json = ebb_json_read_file (*path, MAX_FILE, error);
  if (json == NULL || json->kind == EBB_JSON_OBJECT)
    return json;
  g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: it must be an object", *path);
  ebb_json_free (json);
  return NULL;
}

/* The tokens that end a text, or a turn. */
static gboolean
take_gguf (EbbGenerationOptions *self, const char *path, GError **error)
{
  static const char *const keys[] = { "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                      "tokenizer.ggml.eom_token_id" };
  g_autoptr (EbbGguf) gguf = ebb_gguf_open (path, error);
  GError *failure = NULL;
  gint64 token;

  for (guint i = 0; gguf != NULL && failure == NULL && i < G_N_ELEMENTS (keys); i++)
    if (ebb_gguf_get_int (gguf, keys[i], &token, &failure))
      ebb_generation_options_add_stop_token (self, token);
  if (failure != NULL)
    g_propagate_error (error, failure);
  return gguf != NULL && failure == NULL;
}

/**
 * ebb_generation_options_open:
 * @folder: (type filename): a model's folder, or a GGUF file, which has nothing but the tokens that end a text
 * @error: return location for an error
 *
 * Makes options with what `generation_config.json` of a model's folder says: `do_sample` (without it the likeliest
 * token is taken), `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`, `max_new_tokens`, and
 * `eos_token_id`, which is looked for in `config.json` where that file is missing. Other keys don't count.
 *
 * Returns: (transfer full) (nullable): the options, or %NULL with @error set
 */
EbbGenerationOptions *
ebb_generation_options_open (const char *folder,
                             GError **error)
{
  g_autoptr (EbbGenerationOptions) self = NULL;
  g_autoptr (EbbJson) json = NULL;
  g_autoptr (GError) failure = NULL;
  g_autofree char *path = NULL;
  gboolean ok = TRUE;

  if (!EBB_MAY_BEGIN (error, folder))
    return NULL;
  self = ebb_generation_options_new ();
  if (ebb_gguf_is_path (folder))
    {
      path = g_strdup (folder);
      ok = take_gguf (self, folder, &failure);
    }
  else
    json = read_object (folder, "generation_config.json", &path, &failure);
  if (json != NULL)
    ok = take_all (self, json, path, &failure);
  else if (failure == NULL && !ebb_gguf_is_path (folder))
    {
      g_free (path);
      json = read_object (folder, "config.json", &path, &failure);
      ok = json == NULL || take_stop_tokens (self, json, path, &failure);
    }
  self->given |= ALL_GIVEN & ~GIVEN (stop_tokens); /* which are given if there are any */
  if (failure == NULL && ok && ebb_generation_options_check (self, &failure))
    return g_steal_pointer (&self);
  if (g_str_has_prefix (failure->message, "generate: "))
    g_prefix_error (&failure, "%s: ", path);
  g_propagate_error (error, g_steal_pointer (&failure));
  return NULL;
}

/* The options of a model's folder; NULL: they can't be read, for the reason that is in the error. */
typedef struct
{
  EbbGenerationOptions *options;
  GError *error;
} FolderOptions;

static GQuark
get_folder_quark (void)
{
  return g_quark_from_static_string ("ebb-generation-options");
}

static void
folder_options_free (gpointer data)
{
  FolderOptions *self = data;

  g_clear_object (&self->options);
  g_clear_error (&self->error);
  g_free (self);
}

void
ebb_generation_options_attach (EbbModule *model, const char *folder)
{
  FolderOptions *self = g_new0 (FolderOptions, 1);

  self->options = ebb_generation_options_open (folder, &self->error);
  g_object_set_qdata_full (G_OBJECT (model), get_folder_quark (), self, folder_options_free);
}

EbbGenerationOptions *
ebb_generation_options_complete (EbbGenerationOptions *self, EbbModule *model, GError **error)
{
  const guint64 of_folder = GIVEN (max_tokens) | GIVEN (temperature) | GIVEN (top_k) | GIVEN (top_p) | GIVEN (min_p)
                            | GIVEN (repetition_penalty) | GIVEN (stop_tokens);
  EbbGenerationOptions *made = self != NULL ? ebb_generation_options_copy (self) : ebb_generation_options_new ();
  const FolderOptions *origin = g_object_get_qdata (G_OBJECT (model), get_folder_quark ());
  const EbbGenerationOptions *folder = origin != NULL ? origin->options : NULL;
  gint64 end;

  if (origin != NULL && folder == NULL && (made->given & of_folder) != of_folder)
    {
      g_propagate_error (error, g_error_copy (origin->error));
      g_object_unref (made);
      return NULL;
    }
#define TAKE(field) made->field = made->given & GIVEN (field) || folder == NULL ? made->field : folder->field
  TAKE (max_tokens);
  TAKE (temperature);
  TAKE (top_k);
  TAKE (top_p);
  TAKE (min_p);
  TAKE (repetition_penalty);
#undef TAKE
  if (made->given & GIVEN (stop_tokens))
    return made;
  if (folder != NULL)
    g_array_append_vals (made->stop_tokens, folder->stop_tokens->data, folder->stop_tokens->len);
  end = made->tokenizer != NULL ? ebb_tokenizer_get_special_token (made->tokenizer, EBB_SPECIAL_TOKEN_EOS) : -1;
  if (made->stop_tokens->len == 0 && end >= 0)
    g_array_append_val (made->stop_tokens, end);
  return made;
}

/**
 * ebb_generation_options_new_for_model:
 * @model: a model
 * @error: return location for an error
 *
 * Makes the options that ebb_model_generate() takes where none are given: those of the model's folder, or of
 * ebb_generation_options_new() for a model that came from no folder.
 *
 * Returns: (transfer full) (nullable): the options, or %NULL with @error set if the folder's can't be read
 */
EbbGenerationOptions *
ebb_generation_options_new_for_model (EbbModule *model,
                                      GError **error)
{
  EbbGenerationOptions *self;

  if (!EBB_MAY_BEGIN (error, model))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (model), NULL);

  self = ebb_generation_options_complete (NULL, model, error);
  if (self != NULL)
    self->given |= ALL_GIVEN & ~(self->stop_tokens->len > 0 ? 0 : GIVEN (stop_tokens));
  return self;
}

/* -- checks -------------------------------------------------------------------------------------------------------- */

static gboolean
check_number (const char *name, double value, double least, double most, const char *expected, GError **error)
{
  if (value >= least && value <= most)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "generate: %s is %g, it must be %s", name, value,
               expected);
  return FALSE;
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
  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;
  g_return_val_if_fail (EBB_IS_GENERATION_OPTIONS (self), FALSE);

  if (!check_number ("max-tokens", self->max_tokens, 0, G_MAXINT, "0 or more", error)
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
                          : self->tokenizer == NULL                            ? "needs the tokenizer, which is not set"
                                                                               : NULL;

      if (fault != NULL)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "generate: stop string %u %s", i, fault);
          return FALSE;
        }
    }
  for (guint i = 0; i < self->stop_tokens->len; i++)
    if (g_array_index (self->stop_tokens, gint64, i) < 0)
      {
        g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                     "generate: stop token %" G_GINT64_FORMAT " is negative",
                     g_array_index (self->stop_tokens, gint64, i));
        return FALSE;
      }
  return TRUE;
}
