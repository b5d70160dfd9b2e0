/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "common/memory/concessions.h"

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

/* Each changes one option, in place of what concessions before it made of that. FALSE: it is of no use here. */
typedef gboolean (*Take) (Options *options,
                          int level,
                          const Place *place);

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
                 int level G_GNUC_UNUSED,
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
take_bf16_moments (Options *options,
                   int level G_GNUC_UNUSED,
                   const Place *place G_GNUC_UNUSED)
{
  OPTION_GIVE (options, moments);
  return strcmp (options->moments, "f32") == 0 && set_text (&options->moments, "bf16");
}

static gboolean
take_eight_bit_moments (Options *options,
                        int level G_GNUC_UNUSED,
                        const Place *place G_GNUC_UNUSED)
{
  OPTION_GIVE (options, moments);
  return strcmp (options->moments, "8bit") != 0 && set_text (&options->moments, "8bit");
}

/* Clipping and accumulation need all gradients at once, and neither is ever dropped. */
static gboolean
take_step_in_backward (Options *options,
                       int level G_GNUC_UNUSED,
                       const Place *place G_GNUC_UNUSED)
{
  if (options->step_in_backward || options->clip > 0 || options->accumulate > 1 || options->micro_batch > 0)
    return FALSE;
  OPTION_GIVE (options, step_in_backward);
  options->step_in_backward = TRUE;
  return TRUE;
}

static gboolean
take_bf16_residual (Options *options,
                    int level G_GNUC_UNUSED,
                    const Place *place G_GNUC_UNUSED)
{
  OPTION_GIVE (options, residual);
  /* A folder's model says its own. */
  return options->model[0] == '\0' && strcmp (options->dtype, "bf16") == 0 && strcmp (options->residual, "f32") == 0
         && set_text (&options->residual, "bf16");
}

#define LOSS_CHUNK (1u << 0)
#define MICRO_BATCHES (7u << 1)
#define BF16_MOMENTS (1u << 4)
#define STEP_IN_BACKWARD (1u << 7)

/* In the order of their bits, in which they are tried. */
static const struct
{
  const char *name;
  Take take;
  int level;
  guint replaces; /* bits of others, which are undone where this one is taken */
} concessions[] = {
  { "loss-chunk", take_loss_chunk, 0, 0 },
  { "micro-batches", take_micro_batches, 2, MICRO_BATCHES },
  { "micro-batches", take_micro_batches, 4, MICRO_BATCHES },
  { "micro-batches", take_micro_batches, 8, MICRO_BATCHES },
  { "bf16-moments", take_bf16_moments, 0, 0 },
  { "8bit-moments", take_eight_bit_moments, 0, BF16_MOMENTS },
  { "bf16-residual", take_bf16_residual, 0, 0 },
  { "step-in-backward", take_step_in_backward, 0, MICRO_BATCHES }, /* last: others go with what it replaces */
};

#define N_CONCESSIONS G_N_ELEMENTS (concessions)

/* -- sets of them -------------------------------------------------------------------------------------------------- */

/* The options that concessions change, as they are without any. */
typedef struct
{
  char *moments, *residual;
  gboolean step_in_backward;
  guint64 loss_chunk;
  int micro_batch;
} Untouched;

static void
untouched_init (Untouched *self,
                const Options *options)
{
  *self = (Untouched){ .moments = g_strdup (options->moments),
                       .residual = g_strdup (options->residual),
                       .step_in_backward = options->step_in_backward,
                       .loss_chunk = options->loss_chunk,
                       .micro_batch = options->micro_batch };
}

static void
untouched_clear (Untouched *self)
{
  g_free (self->moments);
  g_free (self->residual);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Untouched, untouched_clear)

typedef struct
{
  Options *options;
  ConcessionAttempt attempt;
  gpointer data;
  Place place;
  guint64 needed;      /* as the last attempt said */
  GError *interrupted; /* of an attempt that Ctrl-C or a signal has ended; NULL: none was */
} Search;

static void
search_clear (Search *self)
{
  g_clear_error (&self->interrupted);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Search, search_clear)

static gboolean
try (Search *self,
     GError **error)
{
  g_autoptr (GError) failure = NULL;

  if (self->attempt (self->options, self->data, &self->needed, &failure))
    return TRUE;
  if (self->interrupted == NULL && g_error_matches (failure, G_IO_ERROR, G_IO_ERROR_CANCELLED))
    self->interrupted = g_error_copy (failure);
  if (error != NULL)
    g_propagate_error (error, g_steal_pointer (&failure));
  return FALSE;
}

/* @wanted, and what is returned: a bit for each concession. Those that are of no use here aren't taken. */
static guint
apply (const Search *self,
       const Untouched *untouched,
       guint wanted)
{
  Options *options = self->options;
  guint taken = 0;

  set_text (&options->moments, untouched->moments);
  set_text (&options->residual, untouched->residual);
  options->step_in_backward = untouched->step_in_backward;
  options->loss_chunk = untouched->loss_chunk;
  options->micro_batch = untouched->micro_batch;
  for (guint i = 0; i < N_CONCESSIONS; i++)
    if ((wanted & 1u << i) != 0 && concessions[i].take (options, concessions[i].level, &self->place))
      taken |= 1u << i;
  return taken;
}

/* @taken and concession @i, without those that it replaces. */
static guint
add (guint taken,
     guint i)
{
  return (taken & ~concessions[i].replaces) | 1u << i;
}

/* Takes one concession less, as long as that fits. */
static guint
drop_needless (Search *self,
               const Untouched *untouched,
               guint taken)
{
  gboolean last_fits = TRUE;

  for (guint i = 0; i < N_CONCESSIONS; i++)
    {
      const guint without = taken & ~(1u << i);

      if (without == 0 || without == taken)
        continue;
      apply (self, untouched, without);
      last_fits = try (self, NULL);
      if (last_fits)
        taken = without;
    }
  if (last_fits)
    return taken;
  apply (self, untouched, taken);
  return try (self, NULL) ? taken : 0;
}

/* Whether all of them together are enough: with micro-batches, or with steps in backward in their place. */
static gboolean
would_all_do (Search *self,
              const Untouched *untouched)
{
  const guint all = (1u << N_CONCESSIONS) - 1;

  apply (self, untouched, all & ~STEP_IN_BACKWARD);
  if (try (self, NULL))
    return TRUE;
  apply (self, untouched, all & ~MICRO_BATCHES);
  return try (self, NULL);
}

/* Tries one concession more after the other until one fits: those of @named, then the others where @and_others, for
 * which those of @named have been tried by themselves; steps in backward are last. Returns those that are taken; 0 if
 * none is enough. @error: that of the attempt that needs least, of @least bytes and those before it. */
static guint
climb (Search *self,
       const Untouched *untouched,
       guint named,
       gboolean and_others,
       guint64 least,
       GError **error)
{
  guint taken = 0;

  /* The plan of a file wants some, and no others. */
  if (and_others && self->options->plan == NULL && !would_all_do (self, untouched))
    return 0;
  for (guint i = 0; i < 2 * N_CONCESSIONS; i++)
    {
      const guint number = i % N_CONCESSIONS;
      const gboolean is_named = (named & 1u << number) != 0, is_last = 1u << number == STEP_IN_BACKWARD;
      guint next;
      GError *failure = NULL;

      if ((is_named && !is_last) != (i < N_CONCESSIONS) || (!is_named && !and_others))
        continue;
      next = apply (self, untouched, add (taken, number));
      if ((next & 1u << number) == 0)
        continue;
      taken = next;
      if (and_others && i < N_CONCESSIONS)
        continue;
      if (try (self, &failure))
        return drop_needless (self, untouched, taken);
      if (self->needed > least)
        {
          g_error_free (failure);
          continue;
        }
      least = self->needed;
      g_clear_error (error);
      g_propagate_error (error, failure);
      if (least == 0)
        return 0;
    }
  return 0;
}

static char *
name_all (guint taken)
{
  GString *names = g_string_new (NULL);

  for (guint i = 0; i < N_CONCESSIONS; i++)
    if ((taken & 1u << i) != 0)
      g_string_append_printf (names, "%s%s", names->len > 0 ? "," : "", concessions[i].name);
  return g_string_free (names, FALSE);
}

/* -- for callers --------------------------------------------------------------------------------------------------- */

/* "loss-chunk, micro-batches or bf16-moments" */
static char *
describe_names (void)
{
  GString *names = g_string_new (concessions[0].name);

  for (guint i = 1; i < N_CONCESSIONS; i++)
    if (strcmp (concessions[i].name, concessions[i - 1].name) != 0)
      g_string_append_printf (names, "%s%s", i + 1 < N_CONCESSIONS ? ", " : " or ", concessions[i].name);
  return g_string_free (names, FALSE);
}

#define NONE "none"

/* The value of --allow as names. */
static char **
list_allowed (const Options *options)
{
  g_autofree char *all = NULL;
  g_autofree char *named = NULL;

  if (options->allow != NULL || !options->program->tunes)
    return g_strsplit (options->allow != NULL && strcmp (options->allow, NONE) != 0 ? options->allow : "", ",", -1);
  all = name_all ((1u << N_CONCESSIONS) - 1);
  named = g_strconcat (CONCESSION_BF16_WEIGHTS ",", all, NULL);
  return g_strsplit (named, ",", -1);
}

gboolean
concessions_may_take (const Options *options,
                      const char *name)
{
  g_auto (GStrv) allowed = list_allowed (options);

  return g_strv_contains ((const char *const *) allowed, name);
}

static guint
find_named (char **names)
{
  guint named = 0;

  for (guint i = 0; i < N_CONCESSIONS; i++)
    if (g_strv_contains ((const char *const *) names, concessions[i].name))
      named |= 1u << i;
  return named;
}

gboolean
concessions_are_allowed (const Options *options)
{
  g_auto (GStrv) allowed = list_allowed (options);

  return find_named (allowed) != 0;
}

gboolean
concessions_check (const Options *options,
                   GError **error)
{
  g_auto (GStrv) names = list_allowed (options);

  for (guint i = 0; names[i] != NULL; i++)
    {
      char *name[] = { names[i], NULL };
      g_autofree char *known = describe_names ();

      if (find_named (name) == 0 && !(options->program->tunes && strcmp (names[i], CONCESSION_BF16_WEIGHTS) == 0))
        return options_refuse (error, "--allow: there is no \"%s\"; it must be %s%s; or " NONE " alone", names[i],
                               options->program->tunes ? CONCESSION_BF16_WEIGHTS ", " : "", known);
    }
  return options->allow == NULL || options->program->tunes || options_have_plan (options)
         || options_refuse (error, "--allow %s: it needs --memory", options->allow);
}

gboolean
concessions_take (Options *options,
                  guint n_ranks,
                  ConcessionAttempt attempt,
                  gpointer data,
                  char **taken_names,
                  GError **error)
{
  g_auto (GStrv) allowed = list_allowed (options);
  EbbDevice *device = ebb_device_get (options->device, NULL);
  g_auto (Search) search = { .options = options, .attempt = attempt, .data = data };
  const guint named = find_named (allowed);
  g_auto (Untouched) untouched = { 0 };
  g_autoptr (GError) failure = NULL;
  g_autoptr (GError) last = NULL;
  g_autofree char *enough = NULL;
  guint taken;

  *taken_names = NULL;
  search.place = (Place){ device != NULL ? ebb_device_get_loss_chunk (device) : 0, (int) n_ranks };
  if (try (&search, &failure))
    return TRUE;
  if (search.needed == 0)
    {
      g_propagate_error (error, g_steal_pointer (&failure));
      return FALSE;
    }
  untouched_init (&untouched, options); /* a resumed training has the options of its state by now */
  taken = climb (&search, &untouched, named, FALSE, search.needed, &failure);
  if (taken != 0)
    {
      *taken_names = name_all (taken);
      return TRUE;
    }
  taken = search.needed > 0 ? climb (&search, &untouched, named, TRUE, G_MAXUINT64, &last) : 0;
  enough = name_all (taken);
  if (search.interrupted != NULL)
    g_propagate_error (error, g_steal_pointer (&search.interrupted));
  else if (taken != 0)
    g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "%s; with --allow %s it fits", failure->message, enough);
  else
    g_propagate_error (error, g_steal_pointer (&failure));
  return FALSE;
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
