/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Searches for the fewest changes of values with which a training fits its budget. */
#include "train/concessions-private.h"

#include <gio/gio.h>
#include <string.h>

#define MICRO_BATCHES (7u << 1)
#define BF16_MOMENTS (1u << 4)
#define STEP_IN_BACKWARD (1u << 7)

/* What a search tries one by one, in the order of its bits. */
static const struct
{
  const char *name;
  EbbConcessions change;
  guint n_parts;
  guint replaces; /* bits of others, which are undone where this one is taken */
} rungs[] = {
  { "loss-chunk", EBB_CONCESSIONS_LOSS_CHUNK, 0, 0 },
  { "micro-batches", EBB_CONCESSIONS_MICRO_BATCHES, 2, MICRO_BATCHES },
  { "micro-batches", EBB_CONCESSIONS_MICRO_BATCHES, 4, MICRO_BATCHES },
  { "micro-batches", EBB_CONCESSIONS_MICRO_BATCHES, 8, MICRO_BATCHES },
  { "bf16-moments", EBB_CONCESSIONS_BF16_MOMENTS, 0, 0 },
  { "8bit-moments", EBB_CONCESSIONS_EIGHT_BIT_MOMENTS, 0, BF16_MOMENTS },
  { "bf16-residual", EBB_CONCESSIONS_BF16_RESIDUAL, 0, 0 },
  { "step-in-backward", EBB_CONCESSIONS_STEP_IN_BACKWARD, 0,
    MICRO_BATCHES }, /* last: others go with what it replaces */
};

#define N_RUNGS G_N_ELEMENTS (rungs)
#define WEIGHTS "bf16-weights"

/* -- names --------------------------------------------------------------------------------------------------------- */

char *
ebb_concessions_to_string (EbbConcessions changes)
{
  GString *names = g_string_new ((changes & EBB_CONCESSIONS_BF16_WEIGHTS) != 0 ? WEIGHTS : NULL);

  for (guint i = 0; i < N_RUNGS; i++)
    if ((changes & rungs[i].change) != 0 && (i == 0 || rungs[i].change != rungs[i - 1].change))
      g_string_append_printf (names, "%s%s", names->len > 0 ? "," : "", rungs[i].name);
  return g_string_free (names, FALSE);
}

EbbConcessions
ebb_concessions_find (const char *name)
{
  for (guint i = 0; i < N_RUNGS; i++)
    if (strcmp (rungs[i].name, name) == 0)
      return rungs[i].change;
  return strcmp (name, WEIGHTS) == 0 ? EBB_CONCESSIONS_BF16_WEIGHTS : EBB_CONCESSIONS_NONE;
}

/* -- attempts ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  const EbbConcessionFuncs *funcs;
  gpointer data;
  gboolean is_plan_given;
  guint64 needed;      /* as the last attempt said */
  GError *interrupted; /* of an attempt that was canceled; NULL: none was */
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

  if (self->funcs->attempt (self->data, &self->needed, &failure))
    return TRUE;
  if (self->interrupted == NULL && g_error_matches (failure, G_IO_ERROR, G_IO_ERROR_CANCELLED))
    self->interrupted = g_error_copy (failure);
  if (error != NULL)
    g_propagate_error (error, g_steal_pointer (&failure));
  return FALSE;
}

/* @wanted, and what is returned: a bit for each rung. Those that are of no use here aren't taken. */
static guint
apply (const Search *self,
       guint wanted)
{
  guint taken = 0;

  self->funcs->reset (self->data);
  for (guint i = 0; i < N_RUNGS; i++)
    if ((wanted & 1u << i) != 0 && self->funcs->take (self->data, rungs[i].change, rungs[i].n_parts))
      taken |= 1u << i;
  return taken;
}

/* @taken and rung @i, without those that it replaces. */
static guint
add (guint taken,
     guint i)
{
  return (taken & ~rungs[i].replaces) | 1u << i;
}

/* -- the search ---------------------------------------------------------------------------------------------------- */

/* Takes one change less, as long as that fits. */
static guint
drop_needless (Search *self,
               guint taken)
{
  gboolean last_fits = TRUE;

  for (guint i = 0; i < N_RUNGS; i++)
    {
      const guint without = taken & ~(1u << i);

      if (without == 0 || without == taken)
        continue;
      apply (self, without);
      last_fits = try (self, NULL);
      if (last_fits)
        taken = without;
    }
  if (last_fits)
    return taken;
  apply (self, taken);
  return try (self, NULL) ? taken : 0;
}

/* Whether all of them together are enough: with micro-batches, or with steps in backward in their place. */
static gboolean
would_all_do (Search *self)
{
  const guint all = (1u << N_RUNGS) - 1;

  apply (self, all & ~STEP_IN_BACKWARD);
  if (try (self, NULL))
    return TRUE;
  apply (self, all & ~MICRO_BATCHES);
  return try (self, NULL);
}

/* Tries one change more after the other until one fits: those of @named, then the others where @and_others, for which
 * those of @named have been tried by themselves; steps in backward are last. Returns those that are taken; 0 if none is
 * enough. @error: that of the attempt that needs least, of @least bytes and those before it. */
static guint
climb (Search *self,
       guint named,
       gboolean and_others,
       guint64 least,
       GError **error)
{
  guint taken = 0;

  if (and_others && !self->is_plan_given && !would_all_do (self))
    return 0;
  for (guint i = 0; i < 2 * N_RUNGS; i++)
    {
      const guint number = i % N_RUNGS;
      const gboolean is_named = (named & 1u << number) != 0, is_last = 1u << number == STEP_IN_BACKWARD;
      guint next;
      GError *failure = NULL;

      if ((is_named && !is_last) != (i < N_RUNGS) || (!is_named && !and_others))
        continue;
      next = apply (self, add (taken, number));
      if ((next & 1u << number) == 0)
        continue;
      taken = next;
      if (and_others && i < N_RUNGS)
        continue;
      if (try (self, &failure))
        return drop_needless (self, taken);
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

static EbbConcessions
to_changes (guint taken)
{
  EbbConcessions changes = EBB_CONCESSIONS_NONE;

  for (guint i = 0; i < N_RUNGS; i++)
    if ((taken & 1u << i) != 0)
      changes |= rungs[i].change;
  return changes;
}

gboolean
ebb_concessions_search (const EbbConcessionFuncs *funcs,
                        gpointer data,
                        EbbConcessions allow,
                        gboolean is_plan_given,
                        EbbConcessions *taken,
                        EbbConcessions *enough,
                        GError **error)
{
  g_auto (Search) search = { funcs, data, is_plan_given };
  g_autoptr (GError) failure = NULL, last = NULL;
  guint named = 0, found;

  *taken = *enough = EBB_CONCESSIONS_NONE;
  if (try (&search, &failure))
    return TRUE;
  for (guint i = 0; i < N_RUNGS; i++)
    if ((allow & rungs[i].change) != 0)
      named |= 1u << i;
  found = search.needed > 0 ? climb (&search, named, FALSE, search.needed, &failure) : 0;
  *taken = to_changes (found);
  if (found != 0)
    return TRUE;
  if (search.needed > 0)
    *enough = to_changes (climb (&search, named, TRUE, G_MAXUINT64, &last));
  if (search.interrupted != NULL)
    g_propagate_error (error, g_steal_pointer (&search.interrupted));
  else
    g_propagate_error (error, g_steal_pointer (&failure));
  return FALSE;
}
