/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks the command line. */
#include "options.h"

void
options_init (Options *self)
{
  *self = (Options){ .words = NULL };
  option_table_init (&self->state, &program_page);
}

void
options_clear (Options *self)
{
  option_table_clear (&self->state);
  g_strfreev (self->words);
}

/* Whether there is one source of the prompt at most. */
static gboolean
check_sources (const Options *self,
               GError **error)
{
  const struct
  {
    const char *name;
    gboolean is_given;
  } sources[] = { { "--prompt", self->prompt != NULL },
                  { "--file", self->file != NULL },
                  { "--batch", self->batch != NULL },
                  { "a text as an argument", self->words != NULL } };
  const char *first = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (sources); i++)
    {
      if (!sources[i].is_given)
        continue;
      if (first != NULL)
        return options_refuse (error, "%s and %s: give one of them", first, sources[i].name);
      first = sources[i].name;
    }
  if (self->batch != NULL && self->chat)
    return options_refuse (error, "--batch and --chat: give one of them");
  if (self->system != NULL && !self->chat)
    return options_refuse (error, "--system: it needs --chat");
  if (self->no_thinking && !self->chat)
    return options_refuse (error, "--no-thinking: it needs --chat");
  if (self->overwrite && self->report == NULL)
    return options_refuse (error, "--overwrite: it needs --report");
  return TRUE;
}

static gboolean
check_values (const Options *self,
              GError **error)
{
  if (self->model == NULL)
    return options_refuse (error, "--model is missing: name the folder of a model");
  if (self->top_p > 1)
    return options_refuse (error, "--top-p %g: it must be from 0 to 1", self->top_p);
  if (self->min_p > 1)
    return options_refuse (error, "--min-p %g: it must be from 0 to 1", self->min_p);
  if (OPTION_WAS_GIVEN (self, repetition_penalty) && self->repetition_penalty <= 0)
    return options_refuse (error, "--repetition-penalty %g: it must be above 0", self->repetition_penalty);
  for (guint i = 0; self->stop != NULL && self->stop[i] != NULL; i++)
    if (*self->stop[i] == '\0' || !g_utf8_validate (self->stop[i], -1, NULL))
      return options_refuse (error, "--stop: it must be a text in UTF-8 that is not empty");
  return TRUE;
}

static gboolean
check (const Options *self,
       GError **error)
{
  g_autoptr (GError) failure = NULL;

  if (!option_table_check (&self->state, error) || !check_sources (self, error) || !check_values (self, error))
    return FALSE;
  return ebb_device_get (self->device, &failure) != NULL
         || options_refuse (error, "--device %s: %s", self->device, failure->message);
}

gboolean
options_parse (Options *self,
               int argc,
               char **argv,
               GError **error)
{
  if (!option_table_parse (&self->state, argc, argv, &self->words, error))
    return FALSE;
  if (option_table_is_question (&self->state))
    {
      option_table_print (&self->state);
      return TRUE;
    }
  return option_table_fill (&self->state, error)
         && option_table_finish (&self->state, check (self, error), error);
}

EbbGenerationOptions *
options_make_generation (const Options *self,
                         EbbTokenizer *tokenizer,
                         GError **error)
{
  g_autoptr (EbbGenerationOptions) made = ebb_generation_options_open (self->model, error);
  g_autoptr (EbbGenerator) generator = ebb_generator_new ((guint64) self->seed);
  const gint64 end = ebb_tokenizer_get_special_token (tokenizer, EBB_SPECIAL_TOKEN_EOS);
  gsize n_stops;

  if (made == NULL)
    return NULL;
  g_object_set (made, "max-tokens", self->tokens, "use-cache", !self->no_cache, "generator", generator, "tokenizer",
                tokenizer, NULL);
  ebb_generation_options_get_stop_tokens (made, &n_stops);
  if (n_stops == 0 && end >= 0)
    ebb_generation_options_add_stop_token (made, end);
#define TAKE(name, member)             \
  if (OPTION_WAS_GIVEN (self, member)) \
  g_object_set (made, name, self->member, NULL)
  TAKE ("temperature", temperature);
  TAKE ("top-k", top_k);
  TAKE ("top-p", top_p);
  TAKE ("min-p", min_p);
  TAKE ("repetition-penalty", repetition_penalty);
  TAKE ("min-tokens", min_tokens);
  TAKE ("no-repeat-ngram-size", no_repeat_ngram);
  TAKE ("stop-strings", stop);
#undef TAKE
  return ebb_generation_options_check (made, error) ? g_steal_pointer (&made) : NULL;
}
