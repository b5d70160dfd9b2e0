/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The options of a program that tunes a folder's model. */
#include "common/options/tuning-options.h"

#include "common/launcher.h"
#include "common/memory/concessions.h"

#include <math.h>
#include <string.h>

/* What tunes many models well: of all weights, and of an adapter. */
#define FULL_LR 1e-5
#define ADAPTER_LR 2e-4
/* A part of the steps. */
#define WARMUP 0.03

gboolean
options_have_adapter (const Options *self)
{
  return self->lora > 0 || (self->adapter != NULL && self->adapter[0] != '\0');
}

/* One row for each model. */
static int
count_models (const Options *self)
{
  const int n = self->ranks.n_ranks > 0 ? self->ranks.n_ranks : launcher_count ();

  return MAX (n / MAX (self->ranks.tensor_parallel, 1), 1);
}

static void
set_text (char **option,
          const char *to)
{
  g_free (*option);
  *option = g_strdup (to);
}

void
tuning_options_fill (Options *self)
{
  const gboolean has_adapter = options_have_adapter (self);

  if (!OPTION_WAS_GIVEN (self, lr))
    self->lr = has_adapter ? ADAPTER_LR : FULL_LR;
  if (!OPTION_WAS_GIVEN (self, batch))
    self->batch = count_models (self);
  /* An adapter's moments are few. */
  if (!OPTION_WAS_GIVEN (self, moments) && !has_adapter
      && concessions_may_take (self, EBB_CONCESSIONS_EIGHT_BIT_MOMENTS))
    set_text (&self->moments, "8bit");
  self->steps_by_epochs = !OPTION_WAS_GIVEN (self, steps);
  if (self->steps_by_epochs)
    self->steps = self->merge != NULL || (self->data == NULL && !self->estimate) ? 0 : 1; /* until the data is open */
  tuning_options_keep_best (self);
}

void
tuning_options_keep_best (Options *self)
{
  if (self->eval[0] != '\0' && self->save != NULL)
    self->save_best = g_steal_pointer (&self->save);
}

void
tuning_options_take_saved (Options *self,
                           const char *saved)
{
  g_autoptr (JsonNode) root = option_table_parse_json (saved);
  JsonObject *object = root != NULL ? json_node_get_object (root) : NULL;

  if (object == NULL || OPTION_WAS_GIVEN (self, steps) || OPTION_WAS_GIVEN (self, epochs)
      || json_object_get_boolean_member_with_default (object, "steps_by_epochs", TRUE))
    return;
  self->steps_by_epochs = FALSE;
  self->steps = MAX (json_object_get_int_member_with_default (object, "steps", 0), 0);
}

/* Merging is by itself. */
static gboolean
check_merge (const Options *self,
             GError **error)
{
  static const char *const taken[] = { "model", "merge", "save", "overwrite", "threads", "quiet", "config", NULL };

  if (self->merge == NULL)
    return TRUE;
  for (guint i = 0; self->state.rows[i].name != NULL; i++)
    if (self->state.given[i] && !g_strv_contains (taken, self->state.rows[i].name))
      return options_refuse (error, "--merge %s and --%s: merging trains nothing: leave --%s out", self->merge,
                             self->state.rows[i].name, self->state.rows[i].name);
  if (self->save == NULL)
    return options_refuse (error, "--merge %s: --save is missing: name the folder of the merged model", self->merge);
  return launcher_count () <= 1
         || options_refuse (error, "--merge %s: %d processes were started together: one is enough", self->merge,
                            launcher_count ());
}

static gboolean
check_adapter (const Options *self,
               GError **error)
{
  const gboolean all_known = self->resume == NULL || self->saved_taken;
  const struct
  {
    const char *name;
    gboolean given;
  } shapes[] = {
    { "lora-targets", OPTION_WAS_GIVEN (self, lora_targets) },
    { "lora-alpha", OPTION_WAS_GIVEN (self, lora_alpha) },
    { "lora-dropout", OPTION_WAS_GIVEN (self, lora_dropout) },
    { "rslora", OPTION_WAS_GIVEN (self, rslora) },
  };

  if (OPTION_WAS_GIVEN (self, lora) && self->lora == 0)
    return options_refuse (error, "--lora 0: the rank must be at least 1");
  if (OPTION_WAS_GIVEN (self, lora_targets) && self->lora_targets[0] == '\0')
    return options_refuse (error, "--lora-targets: names are missing");
  if (self->lora_dropout >= 1)
    return options_refuse (error, "--lora-dropout %g: it must be below 1", self->lora_dropout);
  if (self->lora > 0 && self->adapter[0] != '\0')
    return options_refuse (error, "--adapter %s and --lora %d: the folder says the adapter's rank: leave --lora out",
                           self->adapter, self->lora);
  if (all_known && strcmp (self->base, "auto") != 0 && !options_have_adapter (self))
    return options_refuse (
        error, "--base %s: quantised weights have no gradient: it needs --lora RANK or --adapter DIR", self->base);
  for (guint i = 0; all_known && self->lora == 0 && i < G_N_ELEMENTS (shapes); i++)
    if (shapes[i].given)
      return options_refuse (error, "--%s: it needs --lora RANK", shapes[i].name);
  return TRUE;
}

gboolean
tuning_options_check (const Options *self,
                      GError **error)
{
  if (self->model[0] == '\0' && (self->resume == NULL || self->saved_taken))
    return options_refuse (error, "--model is missing: name the folder of the model to tune");
  if (OPTION_WAS_GIVEN (self, epochs) && OPTION_WAS_GIVEN (self, steps))
    return options_refuse (error, "--epochs %g and --steps %" G_GINT64_FORMAT ": one of them says how long it trains",
                           self->epochs, self->steps);
  return check_merge (self, error) && check_adapter (self, error);
}

void
tuning_options_set_steps (Options *self,
                          gint64 n_rows,
                          gboolean is_resumed)
{
  if (self->steps_by_epochs && self->data != NULL)
    self->steps = (gint64) ceil (self->epochs * (double) n_rows / ((double) self->batch * self->accumulate));
  if (!OPTION_WAS_GIVEN (self, warmup) && !is_resumed)
    self->warmup = (gint64) (WARMUP * (double) self->steps);
}
