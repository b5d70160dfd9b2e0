/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* What --allow permits, and how the options of a training change by it. */
#include "common/memory/concessions.h"

#include "train/concessions-private.h"

#include <string.h>

/* Of the device's own chunk of logits. */
#define LOSS_CHUNK_PART 4

/* -- one by one ---------------------------------------------------------------------------------------------------- */

/* Where the training runs. */
typedef struct
{
  guint64 loss_chunk; /* bytes of logits that the device holds where no option says how many; 0: there is no device */
  int n_ranks;
} Place;

static gboolean
set_text (char **option,
          const char *to)
{
  g_free (*option);
  *option = g_strdup (to);
  return TRUE;
}

static gboolean
take_loss_chunk (Options *options,
                 const Place *place)
{
  if (place->loss_chunk == 0 || options->loss_chunk > 0)
    return FALSE;
  OPTION_GIVE (options, loss_chunk_text);
  options->loss_chunk = place->loss_chunk / LOSS_CHUNK_PART;
  return TRUE;
}

/* @level: parts of the rows that each model has. A step in backward can't add gradients up. */
static gboolean
take_micro_batches (Options *options,
                    int level,
                    const Place *place)
{
  const int n_models = place->n_ranks / options->ranks.tensor_parallel;
  const int of_model = (options->batch + n_models - 1) / n_models, rows = (of_model + level - 1) / level;

  if (options->step_in_backward || of_model < level
      || (options->micro_batch > 0 && options->micro_batch <= rows))
    return FALSE;
  OPTION_GIVE (options, micro_batch);
  options->micro_batch = rows;
  return TRUE;
}

static gboolean
take_bf16_moments (Options *options)
{
  OPTION_GIVE (options, moments);
  return strcmp (options->moments, "f32") == 0 && set_text (&options->moments, "bf16");
}

static gboolean
take_eight_bit_moments (Options *options)
{
  OPTION_GIVE (options, moments);
  return strcmp (options->moments, "8bit") != 0 && set_text (&options->moments, "8bit");
}

/* Clipping and accumulation need all gradients at once, and neither is ever dropped. */
static gboolean
take_step_in_backward (Options *options)
{
  if (options->step_in_backward || options->clip > 0 || options->accumulate > 1 || options->micro_batch > 0)
    return FALSE;
  OPTION_GIVE (options, step_in_backward);
  options->step_in_backward = TRUE;
  return TRUE;
}

static gboolean
take_bf16_residual (Options *options)
{
  OPTION_GIVE (options, residual);
  /* A folder's model says its own. */
  return options->model[0] == '\0' && strcmp (options->dtype, "bf16") == 0 && strcmp (options->residual, "f32") == 0
         && set_text (&options->residual, "bf16");
}

/* -- a search ------------------------------------------------------------------------------------------------------ */

/* The options that concessions change, as they are without any. */
typedef struct
{
  char *moments, *residual;
  gboolean step_in_backward;
  guint64 loss_chunk;
  int micro_batch;
} Untouched;

typedef struct
{
  Options *options;
  ConcessionAttempt attempt;
  gpointer data;
  Place place;
  Untouched untouched;
  gboolean is_begun; /* the options have been noted: a resumed training has those of its state after one attempt */
} Search;

static void
search_clear (Search *self)
{
  g_free (self->untouched.moments);
  g_free (self->untouched.residual);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Search, search_clear)

static void
reset (gpointer data)
{
  Search *self = data;
  Options *options = self->options;
  Untouched *untouched = &self->untouched;

  if (!self->is_begun)
    *untouched = (Untouched){ .moments = g_strdup (options->moments),
                              .residual = g_strdup (options->residual),
                              .step_in_backward = options->step_in_backward,
                              .loss_chunk = options->loss_chunk,
                              .micro_batch = options->micro_batch };
  self->is_begun = TRUE;
  set_text (&options->moments, untouched->moments);
  set_text (&options->residual, untouched->residual);
  options->step_in_backward = untouched->step_in_backward;
  options->loss_chunk = untouched->loss_chunk;
  options->micro_batch = untouched->micro_batch;
}

static gboolean
take (gpointer data,
      EbbConcessions change,
      guint n_parts)
{
  Search *self = data;

  switch (change)
    {
    case EBB_CONCESSIONS_LOSS_CHUNK: return take_loss_chunk (self->options, &self->place);
    case EBB_CONCESSIONS_MICRO_BATCHES: return take_micro_batches (self->options, (int) n_parts, &self->place);
    case EBB_CONCESSIONS_BF16_MOMENTS: return take_bf16_moments (self->options);
    case EBB_CONCESSIONS_EIGHT_BIT_MOMENTS: return take_eight_bit_moments (self->options);
    case EBB_CONCESSIONS_BF16_RESIDUAL: return take_bf16_residual (self->options);
    case EBB_CONCESSIONS_STEP_IN_BACKWARD: return take_step_in_backward (self->options);
    case EBB_CONCESSIONS_NONE:
    case EBB_CONCESSIONS_BF16_WEIGHTS:
    default: return FALSE;
    }
}

static gboolean
attempt (gpointer data,
         guint64 *needed,
         GError **error)
{
  Search *self = data;

  return self->attempt (self->options, self->data, needed, error);
}

/* -- for callers --------------------------------------------------------------------------------------------------- */

#define NONE "none"

/* The value of --allow. *@unknown: the first name that is none of the program's, owned by the caller; or NULL. */
static EbbConcessions
read_allowed (const Options *options,
              char **unknown)
{
  const EbbConcessions known =
      EBB_CONCESSIONS_SEARCHED | (options->program->tunes ? EBB_CONCESSIONS_BF16_WEIGHTS : EBB_CONCESSIONS_NONE);
  EbbConcessions allowed = EBB_CONCESSIONS_NONE;
  g_auto (GStrv) names = NULL;

  *unknown = NULL;
  if (options->allow == NULL && options->program->tunes)
    return known;
  names = g_strsplit (options->allow != NULL && strcmp (options->allow, NONE) != 0 ? options->allow : "", ",", -1);
  for (guint i = 0; names[i] != NULL; i++)
    {
      const EbbConcessions change = ebb_concessions_find (names[i]) & known;

      if (change == EBB_CONCESSIONS_NONE && *unknown == NULL)
        *unknown = g_strdup (names[i]);
      allowed |= change;
    }
  return allowed;
}

static EbbConcessions
get_allowed (const Options *options)
{
  g_autofree char *unknown = NULL;

  return read_allowed (options, &unknown);
}

gboolean
concessions_may_take (const Options *options,
                      EbbConcessions change)
{
  return (get_allowed (options) & change) != 0;
}

gboolean
concessions_are_allowed (const Options *options)
{
  return concessions_may_take (options, EBB_CONCESSIONS_SEARCHED);
}

/* "loss-chunk, micro-batches or bf16-moments" */
static char *
describe_names (void)
{
  g_autofree char *all = ebb_concessions_to_string (EBB_CONCESSIONS_SEARCHED);
  g_auto (GStrv) names = g_strsplit (all, ",", -1);
  const guint n = g_strv_length (names);
  GString *text = g_string_new (names[0]);

  for (guint i = 1; i < n; i++)
    g_string_append_printf (text, "%s%s", i + 1 < n ? ", " : " or ", names[i]);
  return g_string_free (text, FALSE);
}

gboolean
concessions_check (const Options *options,
                   GError **error)
{
  g_autofree char *unknown = NULL;
  g_autofree char *known = describe_names (), *weights = ebb_concessions_to_string (EBB_CONCESSIONS_BF16_WEIGHTS);

  read_allowed (options, &unknown);
  if (unknown != NULL)
    return options_refuse (error, "--allow: there is no \"%s\"; it must be %s%s%s; or " NONE " alone", unknown,
                           options->program->tunes ? weights : "", options->program->tunes ? ", " : "", known);
  return options->allow == NULL || options->program->tunes || options_have_plan (options)
         || options_refuse (error, "--allow %s: it needs --memory", options->allow);
}

gboolean
concessions_take (Options *options,
                  guint n_ranks,
                  ConcessionAttempt function,
                  gpointer data,
                  char **taken_names,
                  GError **error)
{
  static const EbbConcessionFuncs funcs = { reset, take, attempt };
  EbbDevice *device = ebb_device_get (options->device, NULL);
  g_auto (Search) search = { .options = options, .attempt = function, .data = data };
  EbbConcessions taken, enough;
  g_autoptr (GError) failure = NULL;
  g_autofree char *names = NULL;

  search.place = (Place){ device != NULL ? ebb_device_get_loss_chunk (device) : 0, (int) n_ranks };
  *taken_names = NULL;
  if (ebb_concessions_search (&funcs, &search, get_allowed (options), options->plan != NULL, &taken, &enough, &failure))
    {
      *taken_names = taken != EBB_CONCESSIONS_NONE ? ebb_concessions_to_string (taken) : NULL;
      return TRUE;
    }
  names = ebb_concessions_to_string (enough);
  if (enough != EBB_CONCESSIONS_NONE)
    g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "%s; with --allow %s it fits", failure->message, names);
  else
    g_propagate_error (error, g_steal_pointer (&failure));
  return FALSE;
}

EbbConcessions
concessions_find (const char *name)
{
  return ebb_concessions_find (name);
}

char **
concessions_list (const Options *options)
{
  GStrvBuilder *names = g_strv_builder_new ();
  char **list;

  if (options->loss_chunk > 0)
    g_strv_builder_add (names, "loss-chunk");
  if (options->micro_batch > 0 && options->micro_batch < options->batch)
    g_strv_builder_add (names, "micro-batches");
  if (strcmp (options->moments, "bf16") == 0)
    g_strv_builder_add (names, "bf16-moments");
  if (strcmp (options->moments, "8bit") == 0)
    g_strv_builder_add (names, "8bit-moments");
  if (options->step_in_backward)
    g_strv_builder_add (names, "step-in-backward");
  if (strcmp (options->residual, "bf16") == 0)
    g_strv_builder_add (names, "bf16-residual");
  list = g_strv_builder_end (names);
  g_strv_builder_unref (names);
  return list;
}
