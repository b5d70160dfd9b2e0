/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Memory timelines as one SVG file without a script: the bytes of each moment, stacked by purpose. */
#include "tensor/profile/timeline-private.h"

#include "tensor/error-private.h"
#include "tensor/profile/page/page-private.h"
#include "tensor/profile/profiler-private.h"
#include "tensor/util/atomic-file-private.h"

#include <math.h>
#include <string.h>

#define MIB ((double) (1 << 20))
/* Of the picture, in its units. */
#define WIDTH 800
#define LEFT 58
#define RIGHT 16
#define TOP 112
#define GAP 62
#define PLOT_HEIGHT 220
#define ROW_HEIGHT (PLOT_HEIGHT + 92)
#define STRIP 8
#define COLUMNS_PER_UNIT 2

/* From the bottom: what lasts lies below what comes and goes. */
static const EbbPurpose stacked[EBB_N_PURPOSES] = { EBB_PURPOSE_PARAMETER, EBB_PURPOSE_OPTIMIZER,
                                                    EBB_PURPOSE_GRADIENT, EBB_PURPOSE_ACTIVATION,
                                                    EBB_PURPOSE_CACHE, EBB_PURPOSE_WORKSPACE };

typedef struct
{
  gint64 bytes[EBB_N_PURPOSES];
} Moment;

typedef struct
{
  GString *svg;
  double left, top, width;
  double most_bytes; /* of the scale, as those that follow */
  double most_launches;
  guint64 budget;
} Panel;

/* In any locale with a point, and with one decimal if it isn't 0. */
static void
append_number (GString *svg,
               double value)
{
  const gboolean is_whole = fabs (value - round (value)) < 0.05;
  char text[G_ASCII_DTOSTR_BUF_SIZE];

  g_string_append (svg, g_ascii_formatd (text, sizeof text, is_whole ? "%.0f" : "%.1f", value));
}

/* Appends @format with a number in place of each @, and a string in place of each $. */
static void
append (GString *svg,
        const char *format,
        ...)
{
  va_list list;

  va_start (list, format);
  for (; *format != '\0'; format++)
    if (*format == '@')
      append_number (svg, va_arg (list, double));
    else if (*format == '$')
      g_string_append (svg, va_arg (list, const char *));
    else
      g_string_append_c (svg, *format);
  va_end (list);
}

static void G_GNUC_PRINTF (5, 6)
    append_text (GString *svg,
                 double x,
                 double y,
                 const char *attributes,
                 const char *format,
                 ...)
{
  g_autofree char *text = NULL, *escaped = NULL;
  va_list list;

  va_start (list, format);
  text = g_strdup_vprintf (format, list);
  va_end (list);
  escaped = g_markup_escape_text (text, -1);
  append (svg, "<text x=\"@\" y=\"@\" $>$</text>\n", x, y, attributes, escaped);
}

static void
append_box (GString *svg,
            double x,
            double y,
            double width,
            double height,
            const char *kind)
{
  append (svg, "<rect x=\"@\" y=\"@\" width=\"@\" height=\"@\" class=\"$\"/>\n", x, y, width, height, kind);
}

static void
append_line (GString *svg,
             double x1,
             double x2,
             double y1,
             double y2,
             const char *kind)
{
  append (svg, "<path d=\"M@ @L@ @\" class=\"$\"/>\n", x1, y1, x2, y2, kind);
}

static char *
format_mebibytes (double n_bytes)
{
  return g_strdup_printf ("%.*f MiB", n_bytes < 100 * MIB ? 2 : 1, n_bytes / MIB);
}

/* -- what there is to draw ----------------------------------------------------------------------------------------- */

static gint64
sum (const Moment *moment)
{
  gint64 total = 0;

  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    total += moment->bytes[i];
  return total;
}

static void
begin_moment (EbbMemoryTimeline *timeline,
              Moment *moment)
{
  memcpy (moment->bytes, timeline->rest, sizeof moment->bytes);
  for (guint i = 0; i < timeline->blocks->len; i++)
    {
      const EbbTimelineBlock *block = ebb_timeline_get_block (timeline, i);

      if (block->first == EBB_TIMELINE_NEVER)
        moment->bytes[block->was] += (gint64) block->n_bytes;
    }
}

/* Where each change is on the axis: those between two launches are spread between them. */
static double *
spread_changes (EbbMemoryTimeline *timeline)
{
  const guint n = timeline->changes->len;
  double *places = g_new (double, MAX (n, 1));

  for (guint i = 0, end = 0; i < n; i = end)
    {
      const guint32 position = ebb_timeline_get_change (timeline, i)->position;

      while (end < n && ebb_timeline_get_change (timeline, end)->position == position)
        end++;
      for (guint k = i; k < end; k++)
        places[k] = position + (k - i + 1.0) / (end - i + 1);
    }
  return places;
}

static void
apply_change (EbbMemoryTimeline *timeline,
              guint i,
              guint8 *purposes,
              Moment *now)
{
  const EbbTimelineChange *change = ebb_timeline_get_change (timeline, i);
  const gint64 n_bytes = (gint64) ebb_timeline_get_block (timeline, change->block)->n_bytes;

  if (purposes[change->block] != EBB_N_PURPOSES)
    now->bytes[purposes[change->block]] -= n_bytes;
  if (change->to != EBB_N_PURPOSES)
    now->bytes[change->to] += n_bytes;
  purposes[change->block] = change->to;
}

/* For each column the moment in it with the most bytes, so that the peak is seen on any scale. Returns how many columns
 * the recording fills. */
static guint
find_columns (EbbMemoryTimeline *timeline,
              double launches_per_column,
              Moment *columns,
              guint n_columns)
{
  const guint n_filled = MIN (n_columns, (guint) ceil ((timeline->n_launches + 1) / launches_per_column));
  g_autofree guint8 *purposes = ebb_timeline_replay (timeline, EBB_TIMELINE_NEVER);
  g_autofree double *places = spread_changes (timeline);
  Moment now;
  guint i = 0;

  begin_moment (timeline, &now);
  for (guint column = 0; column < n_filled; column++)
    {
      columns[column] = now;
      for (; i < timeline->changes->len
             && (places[i] < (column + 1) * launches_per_column || column + 1 == n_filled);
           i++)
        {
          apply_change (timeline, i, purposes, &now);
          if (sum (&now) > sum (&columns[column]))
            columns[column] = now;
        }
    }
  return n_filled;
}

/* -- drawing ------------------------------------------------------------------------------------------------------- */

static double
get_y (const Panel *panel,
       double n_bytes)
{
  return panel->top + PLOT_HEIGHT * (1 - n_bytes / panel->most_bytes);
}

static double
get_x (const Panel *panel,
       double launches)
{
  return panel->left + launches / panel->most_launches * panel->width;
}

/* 1, 2 or 5 times a power of ten: about @n of them make the whole. */
static double
get_step (double whole,
          double n)
{
  const double power = pow (10, floor (log10 (whole / n))), times = whole / n / power;

  return power * (times <= 1 ? 1 : times <= 2 ? 2
                               : times <= 5   ? 5
                                              : 10);
}

static void
draw_grid (const Panel *panel)
{
  const double step = get_step (panel->most_bytes / MIB, 5);
  const double along = MAX (get_step (panel->most_launches, panel->width / 90), 1);
  const double bottom = panel->top + PLOT_HEIGHT;
  char number[G_ASCII_DTOSTR_BUF_SIZE];

  for (double mebibytes = 0; mebibytes * MIB <= panel->most_bytes; mebibytes += step)
    {
      const double y = get_y (panel, mebibytes * MIB);

      append_line (panel->svg, panel->left, panel->left + panel->width, y, y, "grid");
      append_text (panel->svg, panel->left - 6, y + 4, "text-anchor=\"end\" class=\"small\"", "%s",
                   g_ascii_formatd (number, sizeof number, "%.6g", mebibytes));
    }
  for (double launches = 0; launches <= panel->most_launches; launches += along)
    {
      const double x = get_x (panel, launches);

      append_line (panel->svg, x, x, bottom + STRIP + 3, bottom + STRIP + 7, "axis");
      append_text (panel->svg, x, bottom + STRIP + 20, "text-anchor=\"middle\" class=\"small\"", "%.0f", launches);
    }
}

/* One layer: its upper edge from left to right, then its lower one back. */
static void
draw_layer (const Panel *panel,
            EbbPurpose purpose,
            const double *below,
            const double *above,
            guint n_columns)
{
  const double unit = 1.0 / COLUMNS_PER_UNIT;

  append (panel->svg, "<path d=\"M@ @", panel->left, get_y (panel, above[0]));
  for (guint i = 0; i < n_columns; i++)
    if (i + 1 == n_columns || above[i + 1] != above[i])
      append (panel->svg, "H@V@", panel->left + (i + 1) * unit,
              get_y (panel, i + 1 == n_columns ? below[i] : above[i + 1]));
  for (guint i = n_columns - 1; i > 0; i--)
    if (below[i - 1] != below[i])
      append (panel->svg, "H@V@", panel->left + i * unit, get_y (panel, below[i - 1]));
  append (panel->svg, "H@Z\" class=\"$\"/>\n", panel->left, ebb_purpose_get_name (purpose));
}

static void
draw_stack (const Panel *panel,
            EbbMemoryTimeline *timeline)
{
  const guint n_columns = (guint) (panel->width * COLUMNS_PER_UNIT);
  g_autofree Moment *columns = g_new (Moment, n_columns);
  g_autofree double *below = g_new0 (double, n_columns);
  g_autofree double *above = g_new0 (double, n_columns);
  const guint n = find_columns (timeline, panel->most_launches / n_columns, columns, n_columns);

  for (guint layer = 0; layer < EBB_N_PURPOSES; layer++)
    {
      gboolean any = FALSE;

      for (guint i = 0; i < n; i++)
        {
          const gint64 n_bytes = columns[i].bytes[stacked[layer]];

          above[i] = below[i] + (double) MAX (n_bytes, 0);
          any = any || n_bytes > 0;
        }
      if (any)
        draw_layer (panel, stacked[layer], below, above, n);
      memcpy (below, above, n * sizeof *below);
    }
}

static const char *
get_phase_class (EbbPhase phase)
{
  static const char *const classes[] = { "forward", "recompute", "backward", "step", NULL };

  return classes[phase];
}

static void
draw_phases (const Panel *panel,
             EbbMemoryTimeline *timeline)
{
  for (guint i = 0; i < timeline->spans->len; i++)
    {
      const EbbTimelineSpan *span = ebb_timeline_get_span (timeline, i);
      const double end =
          i + 1 < timeline->spans->len ? ebb_timeline_get_span (timeline, i + 1)->position : timeline->n_launches;
      const double x = get_x (panel, span->position);

      if (span->phase != EBB_PHASE_OTHER)
        append_box (panel->svg, x, panel->top + PLOT_HEIGHT + 2, MAX (get_x (panel, end) - x, 0.2), STRIP,
                    get_phase_class ((EbbPhase) span->phase));
    }
}

static void
draw_lines (const Panel *panel,
            EbbMemoryTimeline *timeline)
{
  const double right = panel->left + panel->width;
  const double peak = (double) ebb_memory_timeline_get_peak_total (timeline);
  g_autofree char *text = format_mebibytes (peak);
  g_autofree char *budget = format_mebibytes ((double) panel->budget);

  append_line (panel->svg, panel->left, right, get_y (panel, peak), get_y (panel, peak), "peak");
  append_text (panel->svg, panel->left, panel->top - 10, "class=\"group\"", "%s%speak %s", timeline->name,
               *timeline->name != '\0' ? ": " : "", text);
  if (panel->budget == 0 || (double) panel->budget > panel->most_bytes)
    return;
  append_line (panel->svg, panel->left, right, get_y (panel, (double) panel->budget),
               get_y (panel, (double) panel->budget), "budget");
  append_text (panel->svg, right, get_y (panel, (double) panel->budget) - 5,
               "text-anchor=\"end\" class=\"small budget\"", "budget %s", budget);
}

static void
draw_panel (const Panel *panel,
            EbbMemoryTimeline *timeline)
{
  draw_grid (panel);
  draw_stack (panel, timeline);
  draw_phases (panel, timeline);
  draw_lines (panel, timeline);
  append_text (panel->svg, panel->left - 6, panel->top - 10, "text-anchor=\"end\" class=\"small\"", "MiB");
}

static gboolean
holds_any (EbbMemoryTimeline **timelines,
           guint n_timelines,
           EbbPurpose purpose)
{
  for (guint i = 0; i < n_timelines; i++)
    if (ebb_memory_timeline_get_peak (timelines[i], purpose) > 0)
      return TRUE;
  return FALSE;
}

/* Letters have about half their height in width. */
static double
draw_legend_item (GString *svg,
                  double x,
                  double y,
                  double height,
                  const char *kind,
                  const char *text)
{
  append_box (svg, x, y - 5 - height / 2, 14, height, kind);
  append_text (svg, x + 20, y, "class=\"small\"", "%s", text);
  return x + 20 + 6.6 * (double) strlen (text) + 18;
}

static void
draw_legend (GString *svg,
             EbbMemoryTimeline **timelines,
             guint n_timelines)
{
  double x = LEFT;

  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    if (holds_any (timelines, n_timelines, stacked[i]))
      x = draw_legend_item (svg, x, 54, 12, ebb_purpose_get_name (stacked[i]), ebb_purpose_get_name (stacked[i]));
  x = LEFT;
  for (EbbPhase phase = EBB_PHASE_FORWARD; phase < EBB_PHASE_OTHER; phase++)
    x = draw_legend_item (svg, x, 76, 6, get_phase_class (phase), ebb_phase_get_name (phase));
}

static void
find_scale (EbbMemoryTimeline **timelines,
            guint n_timelines,
            Panel *panel)
{
  panel->most_bytes = panel->most_launches = 1;
  for (guint i = 0; i < n_timelines; i++)
    {
      panel->most_bytes = MAX (panel->most_bytes, (double) ebb_memory_timeline_get_peak_total (timelines[i]));
      panel->most_launches = MAX (panel->most_launches, timelines[i]->n_launches + 1.0);
    }
  if ((double) panel->budget > panel->most_bytes && (double) panel->budget < 1.6 * panel->most_bytes)
    panel->most_bytes = (double) panel->budget;
  panel->most_bytes *= 1.08;
}

static GString *
draw (EbbMemoryTimeline **timelines,
      guint n_timelines,
      guint64 budget)
{
  GString *svg = g_string_new (NULL);
  Panel panel = { .svg = svg, .budget = budget };
  const guint beside = MIN (n_timelines, 2);
  const double rows = ceil (n_timelines / (double) beside);

  find_scale (timelines, n_timelines, &panel);
  panel.width = floor ((WIDTH - LEFT - RIGHT - (beside - 1) * (double) GAP) / beside);
  g_string_append_printf (svg,
                          "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" role=\"img\" "
                          "aria-labelledby=\"title\">\n<title id=\"title\">Memory over a training step</title>\n"
                          "<style>\n%s</style>\n<rect width=\"100%%\" height=\"100%%\" class=\"page\"/>\n",
                          WIDTH, TOP + rows * ROW_HEIGHT - 30, ebb_timeline_picture_style);
  append_text (svg, LEFT, 28, "class=\"title\"", "Memory over a training step");
  draw_legend (svg, timelines, n_timelines);
  for (guint i = 0; i < n_timelines; i++)
    {
      panel.left = LEFT + (i % beside) * (panel.width + GAP);
      panel.top = TOP + (double) (i / beside) * ROW_HEIGHT;
      draw_panel (&panel, timelines[i]);
    }
  append_text (svg, LEFT, TOP + rows * ROW_HEIGHT - 46, "class=\"small\"", "kernels launched");
  g_string_append (svg, "</svg>\n");
  return svg;
}

/**
 * ebb_memory_timeline_save_svg:
 * @timelines: (array length=n_timelines): timelines that don't run; two are drawn side by side, on one scale
 * @n_timelines: how many
 * @budget: a line to draw, in bytes; 0 for none
 * @path: (type filename): a file, replaced if it is there
 * @error: return location for an error
 *
 * Writes a picture for documents: the bytes of each moment, stacked by purpose, without a script, for light and dark
 * pages. The file appears as a whole or not at all.
 *
 * Returns: %FALSE with %EBB_ERROR_IO if the file can't be written, or with %EBB_ERROR_INVALID_ARGUMENT if there is no
 *   timeline, or one of them runs
 */
gboolean
ebb_memory_timeline_save_svg (EbbMemoryTimeline **timelines,
                              guint n_timelines,
                              guint64 budget,
                              const char *path,
                              GError **error)
{
  g_autoptr (GString) svg = NULL;

  if (!EBB_MAY_BEGIN (error, path) || !ebb_timeline_check (timelines, n_timelines, error))
    return FALSE;

  svg = draw (timelines, n_timelines, budget);
  return ebb_atomic_file_save (path, svg->str, svg->len, error);
}
