/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/checkpoint-stats-private.h"

#include "wrap/checkpoint-stack-private.h"

#include <json-glib/json-glib.h>
#include <string.h>

struct _EbbCheckpointStats
{
  EbbCheckpointTally tally;
};

G_DEFINE_BOXED_TYPE (EbbCheckpointStats, ebb_checkpoint_stats, ebb_checkpoint_stats_copy, ebb_checkpoint_stats_free)

/* -- tally --------------------------------------------------------------------------------------------------------- */

void
ebb_checkpoint_level_add (EbbCheckpointLevel *level,
                          guint64 n_bytes)
{
  guint64 now = __atomic_add_fetch (&level->now, n_bytes, __ATOMIC_RELAXED);
  guint64 peak = __atomic_load_n (&level->peak, __ATOMIC_RELAXED);

  while (now > peak
         && !__atomic_compare_exchange_n (&level->peak, &peak, now, TRUE, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    ;
}

void
ebb_checkpoint_level_subtract (EbbCheckpointLevel *level,
                               guint64 n_bytes)
{
  __atomic_sub_fetch (&level->now, n_bytes, __ATOMIC_RELAXED);
}

/* -- stats --------------------------------------------------------------------------------------------------------- */

static EbbCheckpointStats *
stats_new (const EbbCheckpointTally *tally)
{
  EbbCheckpointStats *stats = g_new (EbbCheckpointStats, 1);

  stats->tally = *tally;
  return stats;
}

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

  return stats_new (&stats->tally);
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

/**
 * ebb_checkpoint_stats_get_n_forwards:
 * @stats: stats
 *
 * Returns: how many forwards were checkpointed; a recompute is none, nor is a forward without gradients
 */
guint64
ebb_checkpoint_stats_get_n_forwards (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->tally.n_forwards;
}

/**
 * ebb_checkpoint_stats_get_n_recomputes:
 * @stats: stats
 *
 * Returns: how many forwards were run again
 */
guint64
ebb_checkpoint_stats_get_n_recomputes (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->tally.n_recomputes;
}

/**
 * ebb_checkpoint_stats_get_saved_bytes:
 * @stats: stats
 *
 * Returns: the bytes that are held now for forwards whose backward is still to come: arguments, other tensors from
 *   outside that backward needs, and what a policy keeps. Parameters and buffers are left out, and what an outer
 * wrapper holds or recomputes
 */
guint64
ebb_checkpoint_stats_get_saved_bytes (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->tally.saved.now;
}

/**
 * ebb_checkpoint_stats_get_peak_saved_bytes:
 * @stats: stats
 *
 * Returns: the most that ebb_checkpoint_stats_get_saved_bytes() ever was
 */
guint64
ebb_checkpoint_stats_get_peak_saved_bytes (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->tally.saved.peak;
}

/**
 * ebb_checkpoint_stats_get_dropped_bytes:
 * @stats: stats
 *
 * Returns: the bytes that backward will need and that were let go after their forwards, until these are recomputed
 */
guint64
ebb_checkpoint_stats_get_dropped_bytes (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->tally.dropped.now;
}

/**
 * ebb_checkpoint_stats_get_peak_dropped_bytes:
 * @stats: stats
 *
 * Returns: the most that ebb_checkpoint_stats_get_dropped_bytes() ever was: what the wrapper saves
 */
guint64
ebb_checkpoint_stats_get_peak_dropped_bytes (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->tally.dropped.peak;
}

/**
 * ebb_checkpoint_stats_get_recompute_seconds:
 * @stats: stats
 *
 * Returns: the time that recomputes have taken, in seconds
 */
double
ebb_checkpoint_stats_get_recompute_seconds (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return (double) stats->tally.recompute_us * 1e-6;
}

/**
 * ebb_checkpoint_stats_get_recompute_flop:
 * @stats: stats
 *
 * Returns: the floating-point operations that recomputes have done: two for each multiplication of a matrix product,
 *   one for each element of any other op's result
 */
guint64
ebb_checkpoint_stats_get_recompute_flop (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->tally.recompute_flop;
}

static EbbCheckpointTally *
get_tally (EbbModule *module,
           guint interceptor)
{
  return &((EbbCheckpointTarget *) ebb_module_get_interceptor_data (module, interceptor))->tally;
}

static void
add_tally_to (EbbCheckpointTally *sum,
              const EbbCheckpointTally *tally)
{
  sum->n_forwards += tally->n_forwards;
  sum->n_recomputes += tally->n_recomputes;
  sum->saved.now += tally->saved.now;
  sum->saved.peak += tally->saved.peak;
  sum->dropped.now += tally->dropped.now;
  sum->dropped.peak += tally->dropped.peak;
  sum->recompute_us += tally->recompute_us;
  sum->recompute_flop += tally->recompute_flop;
}

static EbbCheckpointTally
sum_segments (GPtrArray *segments)
{
  EbbCheckpointTally sum = { 0 };

  for (guint i = 0; i < segments->len; i++)
    if (g_ptr_array_index (segments, i) != NULL)
      add_tally_to (&sum, &((EbbCheckpointTarget *) g_ptr_array_index (segments, i))->tally);
  return sum;
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
  EbbCheckpointTally sum;

  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  id = ebb_module_find_interceptor (module, EBB_CHECKPOINT_INTERCEPTOR);
  if (id != 0)
    return stats_new (get_tally (module, id));
  segments = ebb_checkpoint_stack_get_segments (module);
  if (segments == NULL)
    return NULL;
  sum = sum_segments (segments);
  return stats_new (&sum);
}

/* -- report -------------------------------------------------------------------------------------------------------- */

typedef struct
{
  char *name;
  const char *type;
  EbbCheckpointTally tally;
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
        func (modules[i], paths[i], get_tally (modules[i], id), user_data);
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
  Row row = { g_strdup (path), ebb_module_get_type_name (module), *tally };

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

/* The sum over all rows. Peaks of different wrappers need not come at one time; those of a step that calls each once
 * do. */
static EbbCheckpointTally
sum_rows (GArray *rows)
{
  EbbCheckpointTally sum = { 0 };

  for (guint i = 0; i < rows->len; i++)
    add_tally_to (&sum, &g_array_index (rows, Row, i).tally);
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
  tally->saved.peak = tally->saved.now;
  tally->dropped.peak = tally->dropped.now;
}

/**
 * ebb_checkpoint_reset_stats:
 * @root: a module
 *
 * Begins the counts of every wrapper on @root and below anew, and their peaks at what is held now.
 */
void
ebb_checkpoint_reset_stats (EbbModule *root)
{
  g_return_if_fail (EBB_IS_MODULE (root));

  for_each_wrapper (root, reset_tally, NULL);
}

#define ROW_FORMAT "%-*s %-20s %9" G_GUINT64_FORMAT " %10" G_GUINT64_FORMAT " %9.2f %9.2f %11.2f %11.3f %9.2f\n"
#define MIB(n_bytes) ((double) (n_bytes) / (1 << 20))

static void
append_row (GString *text,
            int width,
            const char *name,
            const char *type,
            const EbbCheckpointTally *tally)
{
  g_string_append_printf (text, ROW_FORMAT, width, name, type, tally->n_forwards, tally->n_recomputes,
                          MIB (tally->saved.now), MIB (tally->saved.peak), MIB (tally->dropped.peak),
                          (double) tally->recompute_us * 1e-6, (double) tally->recompute_flop * 1e-9);
}

/**
 * ebb_checkpoint_report:
 * @root: a module
 *
 * Describes what every checkpoint wrapper on @root and below has done, one a line, for people: forwards, recomputes,
 * MiB that are saved now and were at most, MiB let go at most, and what recomputes took in seconds and in 10^9
 * floating-point operations.
 *
 * Returns: (transfer full): the table, with a line that says so if nothing is wrapped
 */
char *
ebb_checkpoint_report (EbbModule *root)
{
  g_autoptr (GArray) rows = NULL;
  GString *text;
  EbbCheckpointTally sum;
  int width = (int) strlen ("module");

  g_return_val_if_fail (EBB_IS_MODULE (root), NULL);

  rows = collect_rows (root);
  if (rows->len == 0)
    return g_strdup ("no module is checkpointed\n");
  for (guint i = 0; i < rows->len; i++)
    width = MAX (width, (int) strlen (or_root (g_array_index (rows, Row, i).name)));
  text = g_string_new (NULL);
  g_string_append_printf (text, "%-*s %-20s %9s %10s %9s %9s %11s %11s %9s\n", width, "module", "type", "forwards",
                          "recomputes", "saved MiB", "at most", "let go MiB", "recompute s", "GFLOP");
  for (guint i = 0; i < rows->len; i++)
    {
      const Row *row = &g_array_index (rows, Row, i);

      append_row (text, width, or_root (row->name), row->type, &row->tally);
    }
  sum = sum_rows (rows);
  if (rows->len > 1)
    append_row (text, width, "sum", "", &sum);
  return g_string_free (text, FALSE);
}

static void
add_number (JsonBuilder *builder,
            const char *name,
            guint64 value)
{
  json_builder_set_member_name (builder, name);
  json_builder_add_int_value (builder, (gint64) value);
}

static void
add_tally (JsonBuilder *builder,
           const EbbCheckpointTally *tally)
{
  add_number (builder, "forwards", tally->n_forwards);
  add_number (builder, "recomputes", tally->n_recomputes);
  add_number (builder, "saved_bytes", tally->saved.now);
  add_number (builder, "saved_bytes_peak", tally->saved.peak);
  add_number (builder, "dropped_bytes", tally->dropped.now);
  add_number (builder, "dropped_bytes_peak", tally->dropped.peak);
  json_builder_set_member_name (builder, "recompute_seconds");
  json_builder_add_double_value (builder, (double) tally->recompute_us * 1e-6);
  add_number (builder, "recompute_flop", tally->recompute_flop);
}

/**
 * ebb_checkpoint_report_json:
 * @root: a module
 *
 * Describes what every checkpoint wrapper on @root and below has done, for programs.
 *
 * Returns: (transfer full): a JSON object: `modules`, an array of objects with `name`, `type`, `forwards`,
 * `recomputes`, `saved_bytes`, `saved_bytes_peak`, `dropped_bytes`, `dropped_bytes_peak`, `recompute_seconds` and
 * `recompute_flop`, and `sum`, an object with the sums of these numbers
 */
char *
ebb_checkpoint_report_json (EbbModule *root)
{
  g_autoptr (JsonBuilder) builder = NULL;
  g_autoptr (JsonNode) node = NULL;
  g_autoptr (GArray) rows = NULL;
  EbbCheckpointTally sum;

  g_return_val_if_fail (EBB_IS_MODULE (root), NULL);

  rows = collect_rows (root);
  builder = json_builder_new ();
  json_builder_begin_object (builder);
  json_builder_set_member_name (builder, "modules");
  json_builder_begin_array (builder);
  for (guint i = 0; i < rows->len; i++)
    {
      const Row *row = &g_array_index (rows, Row, i);

      json_builder_begin_object (builder);
      json_builder_set_member_name (builder, "name");
      json_builder_add_string_value (builder, row->name);
      json_builder_set_member_name (builder, "type");
      json_builder_add_string_value (builder, row->type);
      add_tally (builder, &row->tally);
      json_builder_end_object (builder);
    }
  json_builder_end_array (builder);
  sum = sum_rows (rows);
  json_builder_set_member_name (builder, "sum");
  json_builder_begin_object (builder);
  add_tally (builder, &sum);
  json_builder_end_object (builder);
  json_builder_end_object (builder);
  node = json_builder_get_root (builder);
  return json_to_string (node, TRUE);
}
