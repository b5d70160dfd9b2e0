/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/checkpoint/report.h"

#include "wrap/checkpoint/stack-private.h"
#include "wrap/checkpoint/target-private.h"

#include <json-glib/json-glib.h>
#include <string.h>

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
    ebb_checkpoint_tally_add (&sum, &g_array_index (rows, Row, i).tally);
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
 * Begins the counts of every wrapper on @root and below anew, and their peaks at what is held now.
 */
void
ebb_checkpoint_reset_stats (EbbModule *root)
{
  g_return_if_fail (EBB_IS_MODULE (root));

  for_each_wrapper (root, reset_tally, NULL);
}

#define MIB(n_bytes) ((double) (n_bytes) / (1 << 20))

/* At most 79 columns where names are short; what is held now, mostly nothing, is for programs. */
static void
append_row (GString *text,
            int name_width,
            int type_width,
            const char *name,
            const char *type,
            const EbbCheckpointTally *tally)
{
  g_string_append_printf (text,
                          "%-*s %-*s %8" G_GUINT64_FORMAT " %10" G_GUINT64_FORMAT " %8.2f %10.2f %8.3f %9.2f\n",
                          name_width, name, type_width, type, tally->n_forwards, tally->n_recomputes,
                          MIB (tally->saved.peak), MIB (tally->dropped.peak), (double) tally->recompute_us * 1e-6,
                          (double) tally->recompute_flop * 1e-9);
}

/**
 * ebb_checkpoint_report:
 * @root: a module
 *
 * Describes what every checkpoint wrapper on @root and below has done, one a line, for people: forwards, recomputes,
 * the most MiB that were held at a time, the most that were let go, and what recomputes took in seconds and in 10^9
 * floating-point operations.
 *
 * Returns: (transfer full): the table, or a line that says that nothing is wrapped
 */
char *
ebb_checkpoint_report (EbbModule *root)
{
  g_autoptr (GArray) rows = NULL;
  GString *text;
  EbbCheckpointTally sum;
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
  g_string_append_printf (text, "%-*s %-*s %8s %10s %8s %10s %8s %9s\n", name_width, "module", type_width, "type",
                          "forwards", "recomputes", "held MiB", "let go MiB", "again s", "GFLOP");
  for (guint i = 0; i < rows->len; i++)
    {
      const Row *row = &g_array_index (rows, Row, i);

      append_row (text, name_width, type_width, or_root (row->name), row->type, &row->tally);
    }
  sum = sum_rows (rows);
  if (rows->len > 1)
    append_row (text, name_width, type_width, "sum", "", &sum);
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
  json_builder_set_member_name (builder, "forward_seconds");
  json_builder_add_double_value (builder, (double) tally->forward_us * 1e-6);
  json_builder_set_member_name (builder, "backward_seconds");
  json_builder_add_double_value (builder, (double) tally->backward_us * 1e-6);
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
