/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The line of text that shows how far a training is. */
#include "train/progress-private.h"

#include <stdlib.h>

#define MIB (1024.0 * 1024.0)

static int
compare_doubles (gconstpointer a,
                 gconstpointer b)
{
  const double x = *(const double *) a, y = *(const double *) b;

  return (x > y) - (x < y);
}

double
ebb_progress_get_median (const GArray *values,
                         guint n_last)
{
  const guint n = MIN (values->len, n_last);
  g_autofree double *sorted = NULL;

  if (n == 0)
    return 0;
  sorted = g_memdup2 (&g_array_index (values, double, values->len - n), sizeof (double) * n);
  qsort (sorted, n, sizeof (double), compare_doubles);
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

char *
ebb_progress_format_time (double seconds)
{
  const guint64 s = (guint64) (seconds + 0.5);

  if (s >= 3600)
    return g_strdup_printf ("%" G_GUINT64_FORMAT ":%02u:%02u", s / 3600, (guint) (s / 60 % 60), (guint) (s % 60));
  return g_strdup_printf ("%u:%02u", (guint) (s / 60), (guint) (s % 60));
}

/* Appends a figure if the line then has no more than @n_columns; FALSE if it doesn't fit. */
static gboolean G_GNUC_PRINTF (3, 4)
    append_figure (GString *line,
                   guint n_columns,
                   const char *format,
                   ...)
{
  const gsize length = line->len;
  va_list args;

  va_start (args, format);
  g_string_append_vprintf (line, format, args);
  va_end (args);
  if (line->len <= n_columns)
    return TRUE;
  g_string_truncate (line, length);
  return FALSE;
}

static gboolean
append_budget (const EbbProgress *self,
               GString *line,
               guint n_columns)
{
  return self->budget_bytes == 0
         || append_figure (line, n_columns, "%s%.0f of %.0f MiB",
                           n_columns >= EBB_PROGRESS_ROOMY ? "  memory " : " ", (double) self->used_bytes / MIB,
                           (double) self->budget_bytes / MIB);
}

/* The peaks of all purposes that there are. */
static gboolean
append_memory (const EbbProgress *self,
               GString *line,
               guint n_columns)
{
  static const char *const names[][EBB_N_PURPOSES] = {
    { "p", "g", "o", "a", "c", "w" },
    { "parameters", "gradients", "optimizer", "activations", "cache", "workspace" },
  };
  const gboolean is_roomy = n_columns >= EBB_PROGRESS_ROOMY;
  g_autofree char *first = g_strdup_printf ("%sMiB%s:", is_roomy ? "  " : " ", self->owner);
  const char *before = first;

  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    {
      const double mib = (double) ebb_memory_stats_get_peak (self->stats, i) / MIB;

      if (i == EBB_PURPOSE_CACHE && mib == 0) /* training itself has none */
        continue;
      if (!append_figure (line, n_columns, "%s %s %.*f", before, names[is_roomy][i], mib < 10 ? 1 : 0, mib))
        return FALSE;
      before = "";
    }
  return TRUE;
}

char *
ebb_progress_format (const EbbProgress *self,
                     guint n_columns)
{
  const gboolean is_roomy = n_columns >= EBB_PROGRESS_ROOMY;
  const char *gap = is_roomy ? "  " : " ";
  const int digits = g_snprintf (NULL, 0, "%" G_GINT64_FORMAT, self->n_steps);
  const double peak = (double) ebb_memory_stats_get_peak_total (self->stats) / MIB;
  g_autofree char *left = ebb_progress_format_time (self->seconds_left);
  GString *line = g_string_new (NULL);

  if (append_figure (line, n_columns, "%s%*" G_GINT64_FORMAT "/%" G_GINT64_FORMAT, is_roomy ? "step " : "", digits,
                     self->step, self->n_steps)
      && append_figure (line, n_columns, "%sloss %.4f", gap, self->loss)
      && append_figure (line, n_columns, "%s%.0f %s", gap, self->tokens_per_second, is_roomy ? "tokens/s" : "tok/s")
      && append_figure (line, n_columns, "%s%s left", gap, left) && append_budget (self, line, n_columns)
      && append_memory (self, line, n_columns) && is_roomy)
    append_figure (line, n_columns, " peak %.*f", peak < 10 ? 1 : 0, peak);
  return g_string_free (line, FALSE);
}
