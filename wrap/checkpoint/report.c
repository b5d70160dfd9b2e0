/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Counts of checkpoint wrappers: a snapshot of one, a table of all for people, and JSON for programs. */
#include "wrap/checkpoint/report.h"

#include "wrap/checkpoint/stack-private.h"
#include "wrap/checkpoint/wrapper.h"
#include "wrap/checkpoint/target-private.h"
#include "tensor/util/json-writer-private.h"

#include <string.h>

G_DEFINE_BOXED_TYPE (EbbCheckpointStats, ebb_checkpoint_stats, ebb_checkpoint_stats_copy, ebb_checkpoint_stats_free)

/**
 * ebb_checkpoint_stats_copy:
 * @stats: stats
 *
 * Returns: (transfer full): a copy
 */
EbbCheckpointStats *
ebb_checkpoint_stats_copy (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, NULL);

  return g_memdup2 (stats, sizeof *stats);
}

/**
 * ebb_checkpoint_stats_free:
 * @stats: (transfer full) (nullable): stats
 *
 * Frees a snapshot.
 */
void
ebb_checkpoint_stats_free (EbbCheckpointStats *stats)
{
  g_free (stats);
}

/* The numbers, by their names in JSON. */
static const struct
{
  const char *name;
  gsize offset;
  gboolean is_seconds;
} numbers[] = {
  { "forwards", offsetof (EbbCheckpointStats, n_forwards), FALSE },
  { "recomputes", offsetof (EbbCheckpointStats, n_recomputes), FALSE },
  { "saved_bytes", offsetof (EbbCheckpointStats, saved_bytes), FALSE },
  { "saved_bytes_peak", offsetof (EbbCheckpointStats, peak_saved_bytes), FALSE },
  { "dropped_bytes", offsetof (EbbCheckpointStats, dropped_bytes), FALSE },
  { "dropped_bytes_peak", offsetof (EbbCheckpointStats, peak_dropped_bytes), FALSE },
  { "recompute_seconds", offsetof (EbbCheckpointStats, recompute_seconds), TRUE },
  { "recompute_flop", offsetof (EbbCheckpointStats, recompute_flop), FALSE },
  { "forward_seconds", offsetof (EbbCheckpointStats, forward_seconds), TRUE },
  { "backward_seconds", offsetof (EbbCheckpointStats, backward_seconds), TRUE },
};

#define SECONDS(stats, i) (*(double *) (gpointer) ((char *) (stats) + numbers[i].offset))
#define COUNT(stats, i) (*(guint64 *) (gpointer) ((char *) (stats) + numbers[i].offset))

static void
add_stats (EbbCheckpointStats *sum,
           EbbCheckpointStats *stats)
{
  for (guint i = 0; i < G_N_ELEMENTS (numbers); i++)
    if (numbers[i].is_seconds)
      SECONDS (sum, i) += SECONDS (stats, i);
    else
      COUNT (sum, i) += COUNT (stats, i);
}

static EbbCheckpointStats
read_tally (const EbbCheckpointTally *tally)
{
  return (EbbCheckpointStats){
    .n_forwards = tally->n_forwards,
    .n_recomputes = tally->n_recomputes,
    .saved_bytes = tally->saved.now,
    .peak_saved_bytes = tally->saved.peak,
    .dropped_bytes = tally->dropped.now,
    .peak_dropped_bytes = tally->dropped.peak,
    .recompute_seconds = (double) tally->recompute_us * 1e-6,
    .recompute_flop = tally->recompute_flop,
    .forward_seconds = (double) tally->forward_us * 1e-6,
    .backward_seconds = (double) tally->backward_us * 1e-6,
  };
}

/**
 * ebb_checkpoint_get_stats:
 * @module: a module
 *
 * Takes a snapshot of what the outermost checkpoint wrapper of @module has done; for a stack in chunks, of the sums
 * over all of them.
 *
 * Returns: (transfer full) (nullable): the stats; %NULL if there is no wrapper
 */
EbbCheckpointStats *
ebb_checkpoint_get_stats (EbbModule *module)
{
  guint id;
  GPtrArray *segments;
  EbbCheckpointStats sum = { 0 };

  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  id = ebb_module_find_interceptor (module, EBB_CHECKPOINT_INTERCEPTOR);
  segments = ebb_checkpoint_stack_get_segments (module);
  if (id != 0)
    sum = read_tally (&((EbbCheckpointTarget *) ebb_module_get_interceptor_data (module, id))->tally);
  else if (segments == NULL)
    return NULL;
  for (guint i = 0; id == 0 && i < segments->len; i++)
    if (g_ptr_array_index (segments, i) != NULL)
      {
        EbbCheckpointStats stats = read_tally (&((EbbCheckpointTarget *) g_ptr_array_index (segments, i))->tally);

        add_stats (&sum, &stats);
      }
  return ebb_checkpoint_stats_copy (&sum);
}

/* -- all wrappers -------------------------------------------------------------------------------------------------- */

typedef struct
{
  char *name;
  const char *type;
  EbbCheckpointStats stats;
} Row;

static void
row_clear (gpointer data)
{
  g_free (((Row *) data)->name);
}

static const char *
or_root (const char *name)
{
  return *name != '\0' ? name : "(root)";
}

typedef void (*TargetFunc) (EbbModule *module,
                            const char *path,
                            EbbCheckpointTally *tally,
                            gpointer user_data);

/**
 * ebb_checkpoint_get_n_recomputes:
 * @module: a wrapped module
 *
 * Returns: how often the forward behind its outermost wrapper was run again; all chunks of a stack together
 */
guint64
ebb_checkpoint_get_n_recomputes (EbbModule *module)
{
  g_autoptr (EbbCheckpointStats) stats = NULL;

  g_return_val_if_fail (EBB_IS_MODULE (module), 0);

  stats = ebb_checkpoint_get_stats (module);
  return stats != NULL ? stats->n_recomputes : 0;
}

/* A stack's chunks, which have no module of their own. */
static void
for_each_segment (EbbModule *stack,
                  TargetFunc func,
                  gpointer user_data)
{
  GPtrArray *segments = ebb_checkpoint_stack_get_segments (stack);

  for (guint i = 0; segments != NULL && i < segments->len; i++)
    {
      EbbCheckpointTarget *segment = g_ptr_array_index (segments, i);

      if (segment != NULL)
        func (stack, segment->name, &segment->tally, user_data);
    }
}

/* Each wrapper on @root and below, a module's outermost first. */
static void
for_each_wrapper (EbbModule *root,
                  TargetFunc func,
                  gpointer user_data)
{
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (root, &n);
  g_auto (GStrv) paths = ebb_module_get_module_names (root);

  for (guint i = 0; i < n; i++)
    {
      guint id = 0;

      while ((id = ebb_module_next_interceptor (modules[i], EBB_CHECKPOINT_INTERCEPTOR, id)) != 0)
        func (modules[i], paths[i], &((EbbCheckpointTarget *) ebb_module_get_interceptor_data (modules[i], id))->tally,
              user_data);
      for_each_segment (modules[i], func, user_data);
      g_object_unref (modules[i]);
    }
}

static void
add_row (EbbModule *module,
         const char *path,
         EbbCheckpointTally *tally,
         gpointer user_data)
{
  Row row = { g_strdup (path), ebb_module_get_type_name (module), read_tally (tally) };

  g_array_append_val ((GArray *) user_data, row);
}

static GArray *
collect_rows (EbbModule *root)
{
  GArray *rows = g_array_new (FALSE, FALSE, sizeof (Row));

  g_array_set_clear_func (rows, row_clear);
  for_each_wrapper (root, add_row, rows);
  return rows;
}

/* The peaks of different wrappers need not come at one time; those of a step that calls each wrapper once do. */
static EbbCheckpointStats
sum_rows (GArray *rows)
{
  EbbCheckpointStats sum = { 0 };

  for (guint i = 0; i < rows->len; i++)
    add_stats (&sum, &g_array_index (rows, Row, i).stats);
  return sum;
}

static void
reset_tally (EbbModule *module,
             const char *path,
             EbbCheckpointTally *tally,
             gpointer user_data)
{
  tally->n_forwards = tally->n_recomputes = 0;
  tally->recompute_us = tally->recompute_flop = 0;
  tally->forward_us = tally->backward_us = 0;
  tally->saved.peak = tally->saved.now;
  tally->dropped.peak = tally->dropped.now;
}

/**
 * ebb_checkpoint_reset_stats:
 * @root: a module
 *
 * Begins the counts of every wrapper on @root and below anew, and their peaks at what is saved now.
 */
void
ebb_checkpoint_reset_stats (EbbModule *root)
{
  g_return_if_fail (EBB_IS_MODULE (root));

  for_each_wrapper (root, reset_tally, NULL);
}

#define MIB(n_bytes) ((double) (n_bytes) / (1 << 20))

/* At most 79 columns where names are short. What is saved at the moment, mostly nothing, is in the JSON alone. */
static void
append_row (GString *text,
            int name_width,
            int type_width,
            const char *name,
            const char *type,
            const EbbCheckpointStats *stats)
{
  g_string_append_printf (text,
                          "%-*s %-*s %8" G_GUINT64_FORMAT " %10" G_GUINT64_FORMAT " %9.2f %9.2f %8.3f %9.2f\n",
                          name_width, name, type_width, type, stats->n_forwards, stats->n_recomputes,
                          MIB (stats->peak_saved_bytes), MIB (stats->peak_dropped_bytes), stats->recompute_seconds,
                          (double) stats->recompute_flop * 1e-9);
}

/**
 * ebb_checkpoint_report:
 * @root: a module
 *
 * Describes what every checkpoint wrapper on @root and below has done, one a line, for people: forwards, recomputes,
 * the most MiB that were saved at a time, the most that were freed, and what recomputes took in seconds and in 10^9
 * floating-point operations.
 *
 * Returns: (transfer full): the table, or a line that says that nothing is wrapped
 */
char *
ebb_checkpoint_report (EbbModule *root)
{
  g_autoptr (GArray) rows = NULL;
  GString *text;
  EbbCheckpointStats sum;
  int name_width = (int) strlen ("module"), type_width = (int) strlen ("type");

  g_return_val_if_fail (EBB_IS_MODULE (root), NULL);

  rows = collect_rows (root);
  if (rows->len == 0)
    return g_strdup ("no module is checkpointed\n");
  for (guint i = 0; i < rows->len; i++)
    {
      name_width = MAX (name_width, (int) strlen (or_root (g_array_index (rows, Row, i).name)));
      type_width = MAX (type_width, (int) strlen (g_array_index (rows, Row, i).type));
    }
  text = g_string_new (NULL);
  g_string_append_printf (text, "%-*s %-*s %8s %10s %9s %9s %8s %9s\n", name_width, "module", type_width, "type",
                          "forwards", "recomputes", "saved MiB", "freed MiB", "seconds", "GFLOP");
  for (guint i = 0; i < rows->len; i++)
    {
      const Row *row = &g_array_index (rows, Row, i);

      append_row (text, name_width, type_width, or_root (row->name), row->type, &row->stats);
    }
  sum = sum_rows (rows);
  if (rows->len > 1)
    append_row (text, name_width, type_width, "sum", "", &sum);
  return g_string_free (text, FALSE);
}

static void
add_numbers (EbbJsonWriter *writer,
             EbbCheckpointStats *stats)
{
  for (guint i = 0; i < G_N_ELEMENTS (numbers); i++)
    if (numbers[i].is_seconds)
      ebb_json_writer_add_double (writer, numbers[i].name, SECONDS (stats, i));
    else
      ebb_json_writer_add_int (writer, numbers[i].name, (gint64) COUNT (stats, i));
}

/**
 * ebb_checkpoint_report_json:
 * @root: a module
 *
 * Describes what every checkpoint wrapper on @root and below has done, for programs.
 *
 * Returns: (transfer full): a JSON object: `modules`, an array of objects with `name`, `type`, `forwards`,
 * `recomputes`, `saved_bytes`, `saved_bytes_peak`, `dropped_bytes`, `dropped_bytes_peak`, `recompute_seconds`,
 * `recompute_flop`, `forward_seconds` and `backward_seconds` (0 unless profiled), and `sum`, an object with the sums of
 * these numbers
 */
char *
ebb_checkpoint_report_json (EbbModule *root)
{
  g_auto (EbbJsonWriter) json = { NULL };
  EbbJsonWriter *writer = &json;
  g_autoptr (GArray) rows = NULL;
  EbbCheckpointStats sum;

  g_return_val_if_fail (EBB_IS_MODULE (root), NULL);

  rows = collect_rows (root);
  ebb_json_writer_begin (writer, NULL, '{');
  ebb_json_writer_begin (writer, "modules", '[');
  for (guint i = 0; i < rows->len; i++)
    {
      Row *row = &g_array_index (rows, Row, i);

      ebb_json_writer_begin (writer, NULL, '{');
      ebb_json_writer_add_string (writer, "name", row->name);
      ebb_json_writer_add_string (writer, "type", row->type);
      add_numbers (writer, &row->stats);
      ebb_json_writer_end (writer);
    }
  ebb_json_writer_end (writer);
  sum = sum_rows (rows);
  ebb_json_writer_begin (writer, "sum", '{');
  add_numbers (writer, &sum);
  ebb_json_writer_end (writer);
  ebb_json_writer_end (writer);
  return ebb_json_writer_finish (writer);
}
