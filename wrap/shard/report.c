/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/fully-shard.h"
#include "wrap/shard/unit-private.h"

#include <json-glib/json-glib.h>

/* What the units of a module are, and what they have done. */

static gint64
count_shard_elements (const EbbShardUnit *unit)
{
  gint64 n = 0;

  for (guint i = 0; i < unit->n_entries; i++)
    n += unit->entries[i].shard->n_elements;
  return n;
}

static void
append_row (GString *text,
            const EbbShardUnit *unit)
{
  g_string_append_printf (text,
                          "%-36s %10u %14" G_GINT64_FORMAT " %14" G_GINT64_FORMAT " %8" G_GUINT64_FORMAT
                          " %10" G_GUINT64_FORMAT " %10" G_GUINT64_FORMAT " %12.2f %12.2f\n",
                          unit->name, unit->n_entries, ebb_shard_unit_count_elements (unit),
                          count_shard_elements (unit), unit->n_gathers, unit->n_prefetches, unit->n_reductions,
                          (double) unit->gathered_bytes / (1 << 20), (double) unit->reduced_bytes / (1 << 20));
}

/**
 * ebb_shard_report:
 * @module: a module with sharded modules in it
 *
 * Tells in a table, a line for each unit, outer ones first: its parameters, their elements as a whole and on this rank,
 * how often they were gathered, how many of these times before they were needed, how often their gradients were
 * reduced, and MiB of both.
 *
 * Returns: (transfer full): the text
 */
char *
ebb_shard_report (EbbModule *module)
{
  g_autoptr (GPtrArray) units = NULL;
  GString *text;

  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  units = ebb_shard_units_below (module);
  text = g_string_new (NULL);
  g_string_append_printf (text, "%-36s %10s %14s %14s %8s %10s %10s %12s %12s\n", "unit", "parameters", "elements",
                          "on this rank", "gathers", "prefetched", "reductions", "gathered MiB", "reduced MiB");
  for (guint i = 0; i < units->len; i++)
    append_row (text, g_ptr_array_index (units, i));
  return g_string_free (text, FALSE);
}

static void
add_integer (JsonBuilder *builder,
             const char *name,
             gint64 value)
{
  json_builder_set_member_name (builder, name);
  json_builder_add_int_value (builder, value);
}

/**
 * ebb_shard_report_json:
 * @module: a module with sharded modules in it
 *
 * Tells the same as ebb_shard_report() for programs: an array of objects `name`, `parameters`, `elements`,
 * `shard_elements`, `gathers`, `prefetches`,
 * `reductions`, `gathered_bytes`, `reduced_bytes`.
 *
 * Returns: (transfer full): JSON
 */
char *
ebb_shard_report_json (EbbModule *module)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();
  g_autoptr (JsonNode) root = NULL;
  g_autoptr (GPtrArray) units = NULL;

  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  units = ebb_shard_units_below (module);
  json_builder_begin_array (builder);
  for (guint i = 0; i < units->len; i++)
    {
      const EbbShardUnit *unit = g_ptr_array_index (units, i);

      json_builder_begin_object (builder);
      json_builder_set_member_name (builder, "name");
      json_builder_add_string_value (builder, unit->name);
      add_integer (builder, "parameters", unit->n_entries);
      add_integer (builder, "elements", ebb_shard_unit_count_elements (unit));
      add_integer (builder, "shard_elements", count_shard_elements (unit));
      add_integer (builder, "gathers", (gint64) unit->n_gathers);
      add_integer (builder, "prefetches", (gint64) unit->n_prefetches);
      add_integer (builder, "reductions", (gint64) unit->n_reductions);
      add_integer (builder, "gathered_bytes", (gint64) unit->gathered_bytes);
      add_integer (builder, "reduced_bytes", (gint64) unit->reduced_bytes);
      json_builder_end_object (builder);
    }
  json_builder_end_array (builder);
  root = json_builder_get_root (builder);
  return json_to_string (root, TRUE);
}
