/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* A memory plan as a table for people. */
#include "wrap/plan/memory-plan-private.h"

#include "wrap/plan/blocks-private.h"
#include "wrap/plan/segments-private.h"

#define MIB (1024.0 * 1024.0)
#define N_COLUMNS 6

/* A line of the table: blocks of neighbours that do the same. */
typedef struct
{
  char *cells[N_COLUMNS];
} Line;

static void
line_clear (gpointer data)
{
  for (guint i = 0; i < N_COLUMNS; i++)
    g_free (((Line *) data)->cells[i]);
}

static void
append_ops (GString *text,
            const EbbPlanRow *row)
{
  for (guint i = 0; i < row->n_saved; i++)
    g_string_append_printf (text, "%s%u %s", i > 0 ? ", " : "", row->saved[i].ordinal, row->saved[i].name);
}

static char *
describe_kept (const EbbPlanRow *row)
{
  GString *text = g_string_new (NULL);

  if (row->is_taken)
    g_string_append (text, "as you wrapped it");
  else if (!row->is_checkpoint)
    g_string_append (text, "everything");
  else
    g_string_append (text, row->n_saved > 0 ? "inputs, " : "inputs");
  append_ops (text, row);
  return g_string_free (text, FALSE);
}

static const char *
describe_recomputed (const EbbPlanRow *row)
{
  if (row->is_taken)
    return "";
  if (!row->is_checkpoint)
    return "nothing";
  return row->n_saved > 0 ? "the rest" : "everything";
}

static char *
describe_moved (const EbbPlanRow *row)
{
  if (row->is_taken || row->place == EBB_MEMORY_PLACE_DEVICE)
    return g_strdup ("");
  return row->place == EBB_MEMORY_PLACE_PARTITIONED ? g_strdup ("divided among ranks")
                                                    : g_strdup_printf ("to %s", ebb_memory_place_names[row->place]);
}

/* The rows from @first to before @end, which do the same. */
static void
add_line (GArray *lines,
          GArray *rows,
          guint first,
          guint end)
{
  const EbbPlanRow *row = &g_array_index (rows, EbbPlanRow, first);
  guint64 freed = 0;
  double seconds = 0;
  Line line;

  for (guint i = first; i < end; i++)
    {
      freed += g_array_index (rows, EbbPlanRow, i).freed_bytes;
      seconds += g_array_index (rows, EbbPlanRow, i).seconds;
    }
  line.cells[0] = end - first == 1 ? g_strdup (ebb_plan_describe_block (row->path))
                                   : g_strdup_printf ("%s to %s", row->path,
                                                      g_array_index (rows, EbbPlanRow, end - 1).path);
  line.cells[1] = describe_kept (row);
  line.cells[2] = g_strdup (describe_recomputed (row));
  line.cells[3] = describe_moved (row);
  line.cells[4] = g_strdup_printf ("%.4f", seconds);
  line.cells[5] = g_strdup_printf ("%.1f", (double) freed / MIB);
  g_array_append_val (lines, line);
}

static void
add_heads (GArray *lines)
{
  const Line heads = { { g_strdup ("blocks"), g_strdup ("keep"), g_strdup ("recompute"), g_strdup ("move"),
                         g_strdup ("seconds"), g_strdup ("freed MiB") } };

  g_array_append_val (lines, heads);
}

static void
append_line (GString *text,
             const Line *line,
             const int *widths)
{
  for (guint i = 0; i < N_COLUMNS; i++)
    if (widths[i] > 0)
      g_string_append_printf (text, i < 4 ? "%s%-*s" : "%s%*s", i > 0 ? "  " : "", widths[i], line->cells[i]);
  g_string_append_c (text, '\n');
}

/* Without the columns that are empty. */
static void
append_table (GString *text,
              GArray *lines)
{
  int widths[N_COLUMNS] = { 0 };

  for (guint c = 0; c < N_COLUMNS; c++)
    {
      for (guint i = 1; i < lines->len; i++)
        widths[c] = MAX (widths[c], (int) g_utf8_strlen (g_array_index (lines, Line, i).cells[c], -1));
      if (widths[c] > 0)
        widths[c] = MAX (widths[c], (int) g_utf8_strlen (g_array_index (lines, Line, 0).cells[c], -1));
    }
  for (guint i = 0; i < lines->len; i++)
    append_line (text, &g_array_index (lines, Line, i), widths);
}

/* A last block that is kept is worth a word: its backward comes first, so there is little time to use its memory. */
static void
append_counts (GString *text,
               GArray *rows)
{
  guint n_recompute = 0;

  for (guint i = 0; i < rows->len; i++)
    n_recompute += g_array_index (rows, EbbPlanRow, i).is_checkpoint;
  if (n_recompute == 0)
    return;
  g_string_append_printf (text, "%u of %u blocks recompute", n_recompute, rows->len);
  if (!g_array_index (rows, EbbPlanRow, rows->len - 1).is_checkpoint
      && !g_array_index (rows, EbbPlanRow, rows->len - 1).is_taken)
    g_string_append (text, ", the last one not: its backward comes first");
  g_string_append_c (text, '\n');
}

static void
append_figures (GString *text,
                EbbMemoryPlan *self)
{
  g_string_append_printf (text, "peak %.1f MiB of %.1f MiB", (double) self->predicted_peak_bytes / MIB,
                          (double) self->budget_bytes / MIB);
  if (*self->binds != '\0')
    g_string_append_printf (text, ", in %s", self->binds);
  g_string_append_printf (text, "; without the plan %.1f MiB, and no plan needs less than %.1f MiB\n",
                          (double) self->unplanned_peak_bytes / MIB, (double) self->least_bytes / MIB);
  g_string_append_printf (text, "%.4f s a step longer", self->seconds);
  if (self->step_seconds > 0)
    g_string_append_printf (text, ": %.4f s, %.1f %% more", self->step_seconds,
                            100 * self->seconds / MAX (self->step_seconds - self->seconds, 1e-9));
  g_string_append_c (text, '\n');
}

/**
 * ebb_memory_plan_to_string:
 * @self: a plan
 *
 * Describes the plan for people: a row for each run of blocks that do the same, with what they keep for backward (ops
 * by their number in the block's forward and their name), recompute and move, the seconds that this takes and the bytes
 * that it frees; then how many blocks recompute, the peak, where it is, and how much longer a step takes.
 *
 * Returns: (transfer full): the text, which ends with a newline
 */
char *
ebb_memory_plan_to_string (EbbMemoryPlan *self)
{
  GString *text = g_string_new (NULL);
  g_autoptr (GArray) lines = g_array_new (FALSE, FALSE, sizeof (Line));
  guint first = 0;

  g_return_val_if_fail (EBB_IS_MEMORY_PLAN (self), NULL);

  g_array_set_clear_func (lines, line_clear);
  add_heads (lines);
  for (guint i = 1; i <= self->rows->len; i++)
    if (i == self->rows->len
        || !ebb_plan_row_equal (&g_array_index (self->rows, EbbPlanRow, first),
                                &g_array_index (self->rows, EbbPlanRow, i)))
      {
        add_line (lines, self->rows, first, i);
        first = i;
      }
  append_table (text, lines);
  for (guint i = 0; i < self->rungs->len; i++)
    {
      const EbbPlanRung *rung = &g_array_index (self->rungs, EbbPlanRung, i);

      g_string_append_printf (text,
                              strcmp (rung->name, EBB_PLAN_SEGMENTS) == 0
                                  ? "%s: every %" G_GINT64_FORMAT
                                    " blocks are recomputed together, from the input of the first\n"
                                  : "%s: each MLP on %" G_GINT64_FORMAT " rows at a time\n",
                              rung->name, rung->value);
    }
  append_counts (text, self->rows);
  append_figures (text, self);
  return g_string_free (text, FALSE);
}
