/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Which ops' results a block may save: the sets that are worth trying. */
#include "wrap/plan/planner/choices-private.h"

#include <stdlib.h>

/* Ops of which all subsets are looked at: those that take longest. */
#define MAX_CANDIDATES 8
/* Choices of a block that are tried out, besides keeping everything. */
#define MAX_SUBSETS 16
/* An op that takes less of its block's forward isn't worth a choice. */
#define LEAST_SHARE 0.005

static int
compare_seconds (gconstpointer a,
                 gconstpointer b,
                 gpointer ops)
{
  const EbbPlanTrace *left = &g_array_index ((GArray *) ops, EbbPlanTrace, *(const guint *) a);
  const EbbPlanTrace *right = &g_array_index ((GArray *) ops, EbbPlanTrace, *(const guint *) b);

  if (left->seconds != right->seconds)
    return left->seconds > right->seconds ? -1 : 1;
  return *(const guint *) a < *(const guint *) b ? -1 : 1;
}

static void
add_choice (EbbPlanClass *class,
            const guint *ordinals,
            guint n)
{
  EbbPlanChoice choice = { .is_checkpoint = TRUE, .n_saved = n };

  choice.saved = g_new (EbbPlanOp, n);
  for (guint i = 0; i < n; i++)
    choice.saved[i] = (EbbPlanOp){ ordinals[i], g_array_index (class->ops, EbbPlanTrace, ordinals[i]).name };
  g_array_append_val (class->choices, choice);
}

/* Keeping everything; full recompute; then each op alone whose results may be worth saving. */
void
ebb_plan_class_add_singles (EbbPlanClass *class)
{
  g_autofree guint *order = g_new (guint, class->ops->len + 1);
  const EbbPlanChoice all = { 0 };
  double sum = 0;

  for (guint i = 0; i < class->ops->len; i++)
    {
      order[i] = i;
      sum += g_array_index (class->ops, EbbPlanTrace, i).seconds;
    }
  g_qsort_with_data (order, (gint) class->ops->len, sizeof *order, compare_seconds, class->ops);
  g_array_append_val (class->choices, all);
  add_choice (class, NULL, 0);
  for (guint i = 0; i < MIN (class->ops->len, MAX_CANDIDATES); i++)
    if (g_array_index (class->ops, EbbPlanTrace, order[i]).seconds >= LEAST_SHARE * sum)
      add_choice (class, &order[i], 1);
}

/* A set of candidates, by its bits, with what it would keep and take if each op counted by itself. */
typedef struct
{
  guint bits;
  double bytes, seconds;
  gboolean is_taken;
} Subset;

static int
compare_subsets (gconstpointer a,
                 gconstpointer b)
{
  const Subset *left = a, *right = b;

  if (left->bytes != right->bytes)
    return left->bytes < right->bytes ? -1 : 1;
  if (left->seconds != right->seconds)
    return left->seconds < right->seconds ? -1 : 1;
  return left->bits < right->bits ? -1 : 1;
}

/* Leaves the subsets that are not beaten by others in both figures; returns their number. */
static guint
keep_best (Subset *subsets,
           guint n)
{
  guint n_best = 0;

  qsort (subsets, n, sizeof *subsets, compare_subsets);
  for (guint i = 0; i < n; i++)
    if (n_best == 0 || subsets[i].seconds < subsets[n_best - 1].seconds)
      subsets[n_best++] = subsets[i];
  return n_best;
}

/* Takes the corners of the convex hull. Returns how many. */
static guint
take_hull (Subset *subsets,
           guint n)
{
  guint at = 0, n_taken = 1;

  subsets[0].is_taken = TRUE;
  while (at + 1 < n)
    {
      guint next = at + 1;
      double steepest = -1;

      for (guint i = at + 1; i < n; i++)
        {
          const double slope = (subsets[at].seconds - subsets[i].seconds) / (subsets[i].bytes - subsets[at].bytes);

          if (slope >= steepest)
            {
              steepest = slope;
              next = i;
            }
        }
      subsets[next].is_taken = TRUE;
      n_taken++;
      at = next;
    }
  return n_taken;
}

/* Takes others too, evenly, until there are MAX_SUBSETS. */
static void
take_evenly (Subset *subsets,
             guint n,
             guint n_taken)
{
  const guint room = MAX_SUBSETS > n_taken ? MAX_SUBSETS - n_taken : 0, n_others = n - n_taken;
  guint other = 0;

  for (guint i = 0; i < n; i++)
    {
      if (subsets[i].is_taken)
        continue;
      subsets[i].is_taken = n_others <= room || (other * room) / n_others != ((other + 1) * room) / n_others;
      other++;
    }
}

static int
compare_ordinals (gconstpointer a,
                  gconstpointer b)
{
  return *(const guint *) a < *(const guint *) b ? -1 : 1;
}

/* The choices so far are singles, with their figures: adds the sets of them that may be worth a choice. */
void
ebb_plan_class_add_subsets (EbbPlanClass *class)
{
  const guint n_singles = class->choices->len - 2;
  const guint n_subsets = 1u << n_singles;
  g_autofree Subset *subsets = g_new0 (Subset, n_subsets);
  const EbbPlanChoice full = g_array_index (class->choices, EbbPlanChoice, 1);
  guint n_best;

  for (guint bits = 0; bits < n_subsets; bits++)
    {
      subsets[bits].bits = bits;
      for (guint i = 0; i < n_singles; i++)
        if (bits >> i & 1)
          {
            const EbbPlanChoice *single = &g_array_index (class->choices, EbbPlanChoice, i + 2);

            subsets[bits].bytes += (double) single->kept - (double) full.kept;
            subsets[bits].seconds -= full.seconds - single->seconds;
          }
    }
  n_best = keep_best (subsets, n_subsets);
  take_evenly (subsets, n_best, take_hull (subsets, n_best));
  for (guint s = 0; s < n_best; s++)
    {
      guint ordinals[MAX_CANDIDATES], n = 0;

      for (guint i = 0; i < n_singles; i++)
        if (subsets[s].bits >> i & 1)
          ordinals[n++] = g_array_index (class->choices, EbbPlanChoice, i + 2).saved[0].ordinal;
      qsort (ordinals, n, sizeof *ordinals, compare_ordinals);
      if (subsets[s].is_taken && n > 1)
        add_choice (class, ordinals, n);
    }
}
