/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* What a model's folder says about how text is generated: the defaults of generation options. */
#include "nn/models/generation-options-private.h"

#include "nn/files/gguf-private.h"
#include "tensor/util/json-private.h"
#include "tensor/error-private.h"

#include <errno.h>
#include <unistd.h>

#define MAX_FILE (16 * 1024 * 1024)

static gboolean
refuse_key (const char *path, const char *key, const char *expected, GError **error)
{
  return ebb_fail (error, EBB_ERROR_FORMAT, "%s: \"%s\" must be %s", path, key, expected);
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

/* Appends one token, or the tokens of a list. */
static gboolean
take_tokens (const EbbJson *json, const char *path, const char *key, GArray *tokens, GError **error)
{
  const EbbJson *member = ebb_json_get (json, key);
  const gboolean is_list = member != NULL && member->kind == EBB_JSON_LIST;

  if (!is_given (member))
    return TRUE;
  for (gsize i = 0; i < (is_list ? member->n_items : 1); i++)
    {
      gint64 token;

      if (!ebb_json_as_int (is_list ? &member->items[i] : member, &token) || token < 0)
        return refuse_key (path, key, "a token or a list of tokens", error);
      g_array_append_val (tokens, token);
    }
  return TRUE;
}

/* The tokens that end a text. */
static gboolean
take_stop_tokens (EbbGenerationOptions *self, const EbbJson *json, const char *path, GError **error)
{
  g_autoptr (GArray) tokens = g_array_new (FALSE, FALSE, sizeof (gint64));

  if (!take_tokens (json, path, "eos_token_id", tokens, error))
    return FALSE;
  for (guint i = 0; i < tokens->len; i++)
    ebb_generation_options_add_stop_token (self, g_array_index (tokens, gint64, i));
  return TRUE;
}

static gboolean
take_token (const EbbJson *json, const char *path, const char *key, gint64 *token, GError **error)
{
  g_autoptr (GArray) tokens = g_array_new (FALSE, FALSE, sizeof (gint64));

  if (!take_tokens (json, path, key, tokens, error))
    return FALSE;
  if (tokens->len > 1)
    return refuse_key (path, key, "one token", error);
  *token = tokens->len > 0 ? g_array_index (tokens, gint64, 0) : -1;
  return TRUE;
}

/* The texts that end a row: one, or a list. */
static gboolean
take_stop_strings (EbbGenerationOptions *self, const EbbJson *json, const char *path, GError **error)
{
  const EbbJson *member = ebb_json_get (json, "stop_strings");
  const gboolean is_list = member != NULL && member->kind == EBB_JSON_LIST;
  g_autoptr (GStrvBuilder) texts = g_strv_builder_new ();

  if (!is_given (member))
    return TRUE;
  for (gsize i = 0; i < (is_list ? member->n_items : 1); i++)
    {
      const char *text;

      if (!ebb_json_as_string (is_list ? &member->items[i] : member, &text))
        return refuse_key (path, "stop_strings", "a text or a list of texts", error);
      g_strv_builder_add (texts, text);
    }
  self->stop_strings = g_strv_builder_end (texts);
  return TRUE;
}

/* Keys that don't choose tokens: what else is returned, how fast, and which tokens only a batch or an encoder has. */
static const char *const harmless_keys[] = {
  "transformers_version", "_from_model_config", "bos_token_id", "pad_token_id", "use_cache", "cache_implementation",
  "cache_config", "return_dict_in_generate", "output_attentions", "output_hidden_states", "output_scores",
  "output_logits", "return_legacy_cache", "low_memory", "num_return_sequences", "is_assistant", "compile_config",
  "disable_compile", "prefill_chunk_size", "max_time", "trust_remote_code", NULL
};
static const char *const taken_keys[] = {
  "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens", "min_new_tokens",
  "min_length", "no_repeat_ngram_size", "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens",
  "begin_suppress_tokens", "stop_strings", "eos_token_id", NULL
};

/* Whether a key has the value with which it changes nothing. */
static gboolean
is_neutral (const EbbJson *member)
{
  /* of the keys that have another neutral value than 0, false, null, or an empty list */
  static const char *const ones[] = { "num_beams", "num_beam_groups", "length_penalty", "typical_p", "guidance_scale",
                                      "encoder_repetition_penalty", NULL };
  double number;
  gboolean word;

  return member->kind == EBB_JSON_NULL
         || (ebb_json_as_double (member, &number) && number == (g_strv_contains (ones, member->key) ? 1 : 0))
         || (ebb_json_as_boolean (member, &word) && !word)
         || ((member->kind == EBB_JSON_LIST || member->kind == EBB_JSON_OBJECT) && member->n_items == 0);
}

/* The keys that would choose other tokens and that Ebb doesn't know; NULL: none. */
static char *
list_ignored (const EbbJson *json, const char *path)
{
  g_autoptr (GString) keys = g_string_new (NULL);
  g_autofree char *shown = ebb_escape_text (path);

  for (gsize i = 0; i < json->n_items; i++)
    {
      const EbbJson *member = &json->items[i];
      g_autofree char *key = NULL;

      if (g_strv_contains (taken_keys, member->key) || g_strv_contains (harmless_keys, member->key)
          || is_neutral (member)
          || (strcmp (member->key, "max_length") == 0 && is_given (ebb_json_get (json, "max_new_tokens"))))
        continue;
      key = ebb_escape_text (member->key);
      g_string_append_printf (keys, "%s %s", keys->len > 0 ? "," : "", key);
      if (member->kind == EBB_JSON_NUMBER || member->kind == EBB_JSON_BOOLEAN)
        g_string_append_printf (keys, " (%s)", member->text);
    }
  return keys->len > 0 ? g_strdup_printf ("%s: not known, so without effect:%s", shown, keys->str) : NULL;
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
      || !take_int (json, path, "min_new_tokens", &self->min_tokens, error)
      || !take_int (json, path, "min_length", &self->min_length, error)
      || !take_int (json, path, "no_repeat_ngram_size", &self->no_repeat_ngram_size, error)
      || !take_token (json, path, "forced_bos_token_id", &self->forced_bos_token, error)
      || !take_tokens (json, path, "forced_eos_token_id", self->forced_eos_tokens, error)
      || !take_tokens (json, path, "suppress_tokens", self->suppress_tokens, error)
      || !take_tokens (json, path, "begin_suppress_tokens", self->begin_suppress_tokens, error)
      || !take_stop_strings (self, json, path, error)
      || !take_stop_tokens (self, json, path, error))
    return FALSE;
  if (is_given (ebb_json_get (json, "min_new_tokens"))) /* as in transformers, which counts from the prompt then */
    self->min_length = 0;
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
  ebb_error_set (error, EBB_ERROR_FORMAT, "%s: it must be an object", *path);
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

/* *@ignored: keys without effect, as a message; NULL: none. */
static EbbGenerationOptions *
read_folder (const char *folder, char **ignored, GError **error)
{
  g_autoptr (EbbGenerationOptions) self = ebb_generation_options_new ();
  g_autoptr (EbbJson) json = NULL;
  g_autoptr (GError) failure = NULL;
  g_autofree char *path = NULL;
  gboolean ok = TRUE;

  *ignored = NULL;
  if (ebb_gguf_is_path (folder))
    {
      path = g_strdup (folder);
      ok = take_gguf (self, folder, &failure);
    }
  else
    json = read_object (folder, "generation_config.json", &path, &failure);
  if (json != NULL)
    ok = take_all (self, json, path, &failure);
  if (json != NULL && ok)
    *ignored = list_ignored (json, path);
  else if (json == NULL && failure == NULL && !ebb_gguf_is_path (folder))
    {
      g_free (path);
      json = read_object (folder, "config.json", &path, &failure);
      ok = json == NULL || take_stop_tokens (self, json, path, &failure);
    }
  self->given |= EBB_GENERATION_ALL_GIVEN & ~EBB_GENERATION_GIVEN (stop_tokens); /* which are given if there are any */
  if (failure == NULL && ok && ebb_generation_options_check_values (self, FALSE, &failure))
    return g_steal_pointer (&self);
  if (g_str_has_prefix (failure->message, "generate: "))
    g_prefix_error (&failure, "%s: ", path);
  g_propagate_error (error, g_steal_pointer (&failure));
  g_clear_pointer (ignored, g_free);
  return NULL;
}

/**
 * ebb_generation_options_open:
 * @folder: (type filename): a model's folder, or a GGUF file, which has nothing but the tokens that end a text
 * @error: return location for an error
 *
 * Makes options with what `generation_config.json` of a model's folder says: `do_sample` (without it the likeliest
 * token is taken), `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`, `max_new_tokens`, `min_new_tokens`,
 * `min_length`, `no_repeat_ngram_size`, `suppress_tokens`, `begin_suppress_tokens`, `forced_bos_token_id`,
 * `forced_eos_token_id`, `stop_strings`, and `eos_token_id`, which is looked for in `config.json` where that file is
 * missing. A message names other keys that would choose other tokens: they have no effect.
 *
 * Returns: (transfer full) (nullable): the options, or %NULL with @error set
 */
EbbGenerationOptions *
ebb_generation_options_open (const char *folder,
                             GError **error)
{
  EbbGenerationOptions *self;
  g_autofree char *ignored = NULL;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, folder);
  self = read_folder (folder, &ignored, error);
  if (ignored != NULL)
    g_message ("%s", ignored);
  return self;
}

/* The options of a model's folder; NULL: they can't be read, for the reason that is in the error. */
typedef struct
{
  EbbGenerationOptions *options;
  char *ignored; /* a message for the first generation; NULL: none, or it has been said */
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
  g_free (self->ignored);
  g_free (self);
}

void
ebb_generation_options_attach (EbbModule *model, const char *folder)
{
  FolderOptions *self = g_new0 (FolderOptions, 1);

  self->options = read_folder (folder, &self->ignored, &self->error);
  g_object_set_qdata_full (G_OBJECT (model), get_folder_quark (), self, folder_options_free);
}

EbbGenerationOptions *
ebb_generation_options_complete (EbbGenerationOptions *self, EbbModule *model, GError **error)
{
#define G(field) EBB_GENERATION_GIVEN (field)
  const guint64 of_folder = G (max_tokens) | G (min_tokens) | G (min_length) | G (no_repeat_ngram_size)
                            | G (forced_bos_token) | G (forced_eos_tokens) | G (temperature) | G (top_k) | G (top_p)
                            | G (min_p) | G (repetition_penalty) | G (stop_strings) | G (stop_tokens)
                            | G (suppress_tokens) | G (begin_suppress_tokens);
#undef G
  EbbGenerationOptions *made = self != NULL ? ebb_generation_options_copy (self) : ebb_generation_options_new ();
  FolderOptions *origin = g_object_get_qdata (G_OBJECT (model), get_folder_quark ());
  const EbbGenerationOptions *folder = origin != NULL ? origin->options : NULL;
  g_autofree char *ignored = NULL;
  gint64 end;

  if (origin != NULL && folder == NULL && (made->given & of_folder) != of_folder)
    {
      g_propagate_error (error, g_error_copy (origin->error));
      g_object_unref (made);
      return NULL;
    }
#define TAKE(field) \
  made->field = made->given & EBB_GENERATION_GIVEN (field) || folder == NULL ? made->field : folder->field
  TAKE (max_tokens);
  TAKE (min_tokens);
  TAKE (min_length);
  TAKE (no_repeat_ngram_size);
  TAKE (forced_bos_token);
  TAKE (temperature);
  TAKE (top_k);
  TAKE (top_p);
  TAKE (min_p);
  TAKE (repetition_penalty);
#undef TAKE
#define TAKE_TOKENS(field)                                                 \
  if (folder != NULL && (made->given & EBB_GENERATION_GIVEN (field)) == 0) \
  g_array_append_vals (made->field, folder->field->data, folder->field->len)
  TAKE_TOKENS (forced_eos_tokens);
  TAKE_TOKENS (suppress_tokens);
  TAKE_TOKENS (begin_suppress_tokens);
#undef TAKE_TOKENS
  if (folder != NULL && (made->given & EBB_GENERATION_GIVEN (stop_strings)) == 0)
    made->stop_strings = g_strdupv (folder->stop_strings);
  if (origin != NULL)
    ignored = __atomic_exchange_n (&origin->ignored, NULL, __ATOMIC_ACQ_REL); /* threads may share the model */
  if (ignored != NULL)
    g_message ("%s", ignored);
  if (made->given & EBB_GENERATION_GIVEN (stop_tokens))
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

  EBB_RETURN_UNLESS_BEGUN (NULL, error, model);
  g_return_val_if_fail (EBB_IS_MODULE (model), NULL);

  self = ebb_generation_options_complete (NULL, model, error);
  if (self != NULL)
    self->given |= EBB_GENERATION_ALL_GIVEN & ~(self->stop_tokens->len > 0 ? 0 : EBB_GENERATION_GIVEN (stop_tokens));
  return self;
}
