/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/group/state-private.h"
#include "tensor/error-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

#include <string.h>

/* What ranks agree on: that they have the same, and which of them make a group. */

#define MAX_LINE 160

static gint64 *
new_counts (guint n,
            gint64 value)
{
  gint64 *counts = g_new (gint64, n);

  for (guint i = 0; i < n; i++)
    counts[i] = value;
  return counts;
}

/* -- the same ------------------------------------------------------------------------------------------------------ */

/* The first line of @a and of @b that differs, shortened; from there on, if a line is long. */
static void
find_difference (const char *a,
                 const char *b,
                 char **line_a,
                 char **line_b)
{
  const char *texts[] = { a, b };
  char **lines[] = { line_a, line_b };
  gsize n, m, same = 0;

  for (;; texts[0] += n + (texts[0][n] != '\0'), texts[1] += m + (texts[1][m] != '\0'))
    {
      n = strcspn (texts[0], "\n");
      m = strcspn (texts[1], "\n");
      if (n != m || memcmp (texts[0], texts[1], n) != 0 || (texts[0][n] == '\0' && texts[1][m] == '\0'))
        break;
    }
  while (same < MIN (n, m) && texts[0][same] == texts[1][same])
    same++;
  same = same > MAX_LINE / 2 ? same - MAX_LINE / 2 : 0;
  for (guint t = 0; t < 2; t++)
    {
      g_autofree char *rest = g_strndup (texts[t] + same, MIN (strcspn (texts[t] + same, "\n"), MAX_LINE));

      *lines[t] = *rest != '\0' ? g_utf8_make_valid (rest, -1) : g_strdup ("nothing");
    }
}

/* @texts: of all ranks, one after another, each with its zero byte. */
static gboolean
compare_texts (const char *what,
               const char *texts,
               const gint64 *lengths,
               guint n,
               GError **error)
{
  const char *text = texts;

  for (guint r = 0; r < n; text += lengths[r++])
    if (strcmp (text, texts) != 0)
      {
        g_autofree char *first = NULL;
        g_autofree char *other = NULL;

        find_difference (texts, text, &first, &other);
        g_set_error (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP,
                     "%s must be the same on all ranks: rank %u has \"%s\", rank 0 has \"%s\"", what, r, other, first);
        return FALSE;
      }
  return TRUE;
}

gboolean
ebb_process_group_check_same (EbbProcessGroup *self,
                              const char *what,
                              const char *text,
                              GError **error)
{
  const guint n = ebb_process_group_get_size (self);
  const gint64 mine[] = { (gint64) strlen (text) + 1, (gint64) g_str_hash (text) };
  g_autofree gint64 *counts = new_counts (n, 2);
  g_autoptr (EbbTensor) marks = NULL;
  g_autoptr (EbbTensor) texts = NULL;
  const gint64 *all;
  gboolean is_same = TRUE;

  if ((error != NULL && *error != NULL) || ebb_is_stopped ())
    return error == NULL || *error == NULL;
  marks = ebb_process_group_exchange (self, mine, counts, EBB_DTYPE_I64, error);
  if (marks == NULL)
    return FALSE;
  all = marks->view.data;
  for (guint r = 0; r < n; r++)
    {
      counts[r] = all[2 * r];
      is_same = is_same && all[2 * r] == all[0] && all[2 * r + 1] == all[1];
    }
  if (is_same)
    return TRUE;
  texts = ebb_process_group_exchange (self, text, counts, EBB_DTYPE_U8, error);
  return texts != NULL && compare_texts (what, texts->view.data, counts, n, error);
}

/* -- parts of a group ---------------------------------------------------------------------------------------------- */

/**
 * ebb_process_group_split:
 * @self: a group
 * @color: which part this rank is to be in
 * @error: return location for an error
 *
 * Makes groups of the ranks that give the same @color, numbered in the order of their ranks in @self. All ranks of
 * @self call it; each gets the group that it is in, with the same time limit.
 *
 * What was started in @self is done before. Ranks that are processes of MPI: calls that are under way in other groups
 * of a process stand still until all members of the new group have come, and so long no other thread of it may split a
 * group. Make groups before the work begins.
 *
 * Returns: (transfer full) (nullable): the new group, or %NULL with an error
 */
EbbProcessGroup *
ebb_process_group_split (EbbProcessGroup *self,
                         guint color,
                         GError **error)
{
  gint64 mine[2] = { color };
  g_autofree gint64 *counts = NULL;
  g_autofree guint *members = NULL;
  g_autoptr (EbbTensor) told = NULL;
  const gint64 *all; /* color and number of each rank */
  EbbGroupState *state;
  EbbProcessGroup *part;
  guint size, n_members = 0, rank = 0;

  if (!EBB_MAY_BEGIN (error, self))
    return NULL;
  if (ebb_is_stopped ())
    {
      g_set_error_literal (error, EBB_ERROR, EBB_ERROR_STOP, "split: a recompute that has all it needs makes none");
      return NULL;
    }
  size = ebb_process_group_get_size (self);
  counts = new_counts (size, 2);
  state = ebb_process_group_get_state (self);
  mine[1] = state->is_part ? state->own : state->rank;
  ebb_process_group_flush (self);
  told = ebb_process_group_exchange (self, mine, counts, EBB_DTYPE_I64, error);
  if (told == NULL)
    return NULL;
  all = told->view.data;
  members = g_new (guint, size);
  for (guint r = 0; r < size; r++)
    if (all[2 * r] == mine[0])
      {
        if (r == ebb_process_group_get_rank (self))
          rank = n_members;
        members[n_members++] = r;
      }
  part = ebb_process_group_get_funcs (self)->split (self, color, members, n_members, rank, error);
  if (part == NULL)
    return NULL;
  state = ebb_process_group_get_state (part);
  state->is_part = TRUE;
  state->own = (guint) mine[1];
  state->first = (guint) all[2 * members[0] + 1];
  return part;
}
