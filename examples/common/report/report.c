/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* --report: writes losses, times, memory and options as JSON. */
#include "common/report/report.h"

#include "common/memory/planning.h"
#include "common/train/evaluate.h"
#include "common/train/store.h"
#include "common/train/wrapping.h"
#include "common/written-file.h"

#include <math.h>

static void
add_numbers (JsonBuilder *builder,
             const char *name,
             GArray *numbers)
{
  json_builder_set_member_name (builder, name);
  json_builder_begin_array (builder);
  for (guint i = 0; i < numbers->len; i++)
    json_builder_add_double_value (builder, g_array_index (numbers, double, i));
  json_builder_end_array (builder);
}

static void
add_integer (JsonBuilder *builder,
             const char *name,
             guint64 value)
{
  json_builder_set_member_name (builder, name);
  json_builder_add_int_value (builder, (gint64) value);
}

static void
add_memory (JsonBuilder *builder,
            EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);
  g_autoptr (EbbMemoryStats) host = ebb_memory_get_stats (NULL);

  add_integer (builder, "peak_bytes", ebb_memory_stats_get_peak_total (stats));
  add_integer (builder, "host_peak_bytes", ebb_memory_stats_get_peak_total (host));
  add_integer (builder, "activation_bytes_peak", ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION));
  add_integer (builder, "parameter_bytes", ebb_memory_stats_get_peak (stats, EBB_PURPOSE_PARAMETER));
  add_integer (builder, "gradient_bytes", ebb_memory_stats_get_peak (stats, EBB_PURPOSE_GRADIENT));
  add_integer (builder, "optimizer_bytes", ebb_memory_stats_get_peak (stats, EBB_PURPOSE_OPTIMIZER));
  add_integer (builder, "cache_bytes", ebb_memory_stats_get_peak (stats, EBB_PURPOSE_CACHE));
  add_integer (builder, "workspace_bytes", ebb_memory_stats_get_peak (stats, EBB_PURPOSE_WORKSPACE));
  add_integer (builder, "rss_peak_bytes", (guint64) rank_table_get_rss_peak ());
}

/* The counters of each wrapped block; none if nothing is wrapped. */
static void
add_checkpointing (JsonBuilder *builder,
                   EbbModule *model)
{
  g_autofree char *json = ebb_checkpoint_report_json (model);

  json_builder_set_member_name (builder, "checkpointing");
  json_builder_add_value (builder, json_from_string (json, NULL));
}

/* JSON has no word for a loss that is not a number. */
static void
add_number (JsonBuilder *builder,
            const char *name,
            double value)
{
  json_builder_set_member_name (builder, name);
  if (isfinite (value))
    json_builder_add_double_value (builder, value);
  else
    json_builder_add_null_value (builder);
}

static void
add_evaluations (JsonBuilder *builder,
                 const Trainer *trainer)
{
  json_builder_set_member_name (builder, "evaluations");
  json_builder_begin_array (builder);
  for (guint i = 0; i < trainer->evaluations->len; i++)
    {
      const Evaluation *one = &g_array_index (trainer->evaluations, Evaluation, i);

      json_builder_begin_object (builder);
      add_integer (builder, "step", (guint64) one->step);
      add_number (builder, "loss", one->loss);
      add_number (builder, "perplexity", evaluate_get_perplexity (one->loss));
      json_builder_end_object (builder);
    }
  json_builder_end_array (builder);
  if (trainer->best_step == 0)
    return;
  json_builder_set_member_name (builder, "best_loss");
  json_builder_add_double_value (builder, trainer->best_loss);
  add_integer (builder, "best_step", (guint64) trainer->best_step);
}

gboolean
report_write (const Trainer *trainer,
              const Progress *progress,
              const RankTable *table,
              const MemoryTimeline *timeline,
              GError **error)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();
  guint n = progress->losses->len;

  if (trainer->options->report == NULL)
    return TRUE;
  json_builder_begin_object (builder);
  json_builder_set_member_name (builder, "final_loss");
  if (n > 0)
    json_builder_add_double_value (builder, g_array_index (progress->losses, double, n - 1));
  else
    json_builder_add_null_value (builder);
  json_builder_set_member_name (builder, "tokens_per_second");
  json_builder_add_double_value (builder, progress_get_speed (progress));
  add_memory (builder, trainer->device);
  planning_add_json (trainer, builder);
  memory_timeline_add_json (timeline, builder);
  json_builder_set_member_name (builder, "store");
  store_add_json (trainer->store, trainer->options, builder);
  add_integer (builder, "recomputed_blocks", wrapping_count_recomputes (trainer->model));
  add_checkpointing (builder, trainer->model);
  rank_table_add_json (table, builder);
  add_integer (builder, "parameters", trainer->n_parameters);
  add_integer (builder, "first_step", (guint64) trainer->first_step);
  add_integer (builder, "last_step", (guint64) trainer->step);
  option_table_add_program (&trainer->options->state, builder);
  json_builder_set_member_name (builder, "version");
  json_builder_add_string_value (builder, ebb_get_version_string ());
  json_builder_set_member_name (builder, "config");
  options_add_json (trainer->options, builder);
  add_evaluations (builder, trainer);
  add_numbers (builder, "losses", progress->losses);
  add_numbers (builder, "step_seconds", progress->seconds);
  json_builder_end_object (builder);
  return written_file_write_json (trainer->options->report, builder, error);
}
