/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The report of a training: losses, times, and memory, as JSON. */
#include "train/report-private.h"

#include "offload/kinds/store-kinds.h"
#include "tensor/memory.h"
#include "tensor/util/json-private.h"
#include "tensor/util/json-writer-private.h"
#include "tensor/version.h"
#include "train/progress-private.h"
#include "wrap/checkpoint/report.h"
#include "wrap/checkpoint/wrapper.h"

#include <math.h>
#include <string.h>

/* -- texts of other objects ---------------------------------------------------------------------------------------- */

/* Adds the members of the JSON object @text, which the library wrote, to the object that is open. */
static void
add_members (EbbJsonWriter *writer,
             const char *text)
{
  g_autoptr (EbbJson) object = ebb_json_parse (text, strlen (text), "report", NULL);

  for (gsize i = 0; object != NULL && i < object->n_items; i++)
    {
      g_autofree char *value = ebb_json_to_line (&object->items[i]);

      ebb_json_writer_add_json (writer, object->items[i].key, value);
    }
}

static void
add_store (EbbJsonWriter *writer,
           EbbActivationStore *store)
{
  const char *const *kinds = ebb_store_kind_get_names ();
  g_autofree char *text = NULL;

  if (store == NULL)
    return;
  text = ebb_activation_store_report_json (store);
  ebb_json_writer_begin (writer, "store", '{');
  add_members (writer, text);
  for (guint i = 0; kinds[i] != NULL; i++)
    if (ebb_store_kind_get_gtype (kinds[i]) == G_OBJECT_TYPE (store))
      ebb_json_writer_add_string (writer, "kind", kinds[i]);
  ebb_json_writer_end (writer);
}

static guint64
count_recomputes (EbbModule *model)
{
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (model, &n);
  guint64 n_recomputes = 0;

  for (guint i = 0; i < n; i++)
    {
      n_recomputes += ebb_checkpoint_get_n_recomputes (modules[i]);
      g_object_unref (modules[i]);
    }
  return n_recomputes;
}

static void
add_checkpointing (EbbJsonWriter *writer,
                   EbbModule *model)
{
  g_autofree char *text = ebb_checkpoint_report_json (model);

  ebb_json_writer_add_int (writer, "recomputed_blocks", (gint64) count_recomputes (model));
  ebb_json_writer_add_json (writer, "checkpointing", text);
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

guint64
ebb_training_report_get_rss_peak (void)
{
  g_autofree char *status = NULL;
  const char *line;

  if (!g_file_get_contents ("/proc/self/status", &status, NULL, NULL))
    return 0;
  line = strstr (status, "VmHWM:");
  return line != NULL ? g_ascii_strtoull (line + strlen ("VmHWM:"), NULL, 10) * 1024 : 0;
}

static void
add_memory (const EbbTrainingReport *self,
            EbbJsonWriter *writer)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (self->device);
  g_autoptr (EbbMemoryStats) host = ebb_memory_get_stats (NULL);
  const struct
  {
    const char *name;
    EbbPurpose purpose;
  } peaks[] = {
    { "activation_bytes_peak", EBB_PURPOSE_ACTIVATION },
    { "parameter_bytes", EBB_PURPOSE_PARAMETER },
    { "gradient_bytes", EBB_PURPOSE_GRADIENT },
    { "optimizer_bytes", EBB_PURPOSE_OPTIMIZER },
    { "cache_bytes", EBB_PURPOSE_CACHE },
    { "workspace_bytes", EBB_PURPOSE_WORKSPACE },
  };

  ebb_json_writer_add_int (writer, "peak_bytes", (gint64) ebb_memory_stats_get_peak_total (stats));
  ebb_json_writer_add_int (writer, "host_peak_bytes", (gint64) ebb_memory_stats_get_peak_total (host));
  for (guint i = 0; i < G_N_ELEMENTS (peaks); i++)
    ebb_json_writer_add_int (writer, peaks[i].name, (gint64) ebb_memory_stats_get_peak (stats, peaks[i].purpose));
  ebb_json_writer_add_int (writer, "rss_peak_bytes", (gint64) ebb_training_report_get_rss_peak ());
  ebb_json_writer_add_int (writer, "rss_peak_before_bytes", (gint64) self->rss_peak_before_bytes);
}

/* -- ranks --------------------------------------------------------------------------------------------------------- */

/* The values of a rank: its memory in the order of these names, then the calls of each collective, and its bytes. */
static const char *const memory_names[] = { "parameter_bytes_held", "optimizer_bytes_held", "parameter_bytes",
                                            "gradient_bytes", "optimizer_bytes", "activation_bytes_peak",
                                            "cache_bytes", "workspace_bytes", "peak_bytes",
                                            "host_peak_bytes", "rss_peak_bytes" };
static const char *const collective_names[EBB_N_COLLECTIVES] = { "all_reduce", "reduce_scatter", "all_gather",
                                                                 "broadcast", "all_to_all", "send", "recv",
                                                                 "barrier" };
#define N_MEMORY G_N_ELEMENTS (memory_names)
#define CALLS(collective) (N_MEMORY + (collective))
#define BYTES(collective) (N_MEMORY + EBB_N_COLLECTIVES + (collective))

G_STATIC_ASSERT (BYTES (EBB_N_COLLECTIVES) == EBB_N_RANK_VALUES);

void
ebb_training_report_take_rank (EbbDevice *device,
                               EbbProcessGroup *const *groups,
                               guint n_groups,
                               gint64 *values)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);
  g_autoptr (EbbMemoryStats) host = ebb_memory_get_stats (NULL);
  const guint64 memory[N_MEMORY] = { ebb_memory_stats_get_current (stats, EBB_PURPOSE_PARAMETER),
                                     ebb_memory_stats_get_current (stats, EBB_PURPOSE_OPTIMIZER),
                                     ebb_memory_stats_get_peak (stats, EBB_PURPOSE_PARAMETER),
                                     ebb_memory_stats_get_peak (stats, EBB_PURPOSE_GRADIENT),
                                     ebb_memory_stats_get_peak (stats, EBB_PURPOSE_OPTIMIZER),
                                     ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION),
                                     ebb_memory_stats_get_peak (stats, EBB_PURPOSE_CACHE),
                                     ebb_memory_stats_get_peak (stats, EBB_PURPOSE_WORKSPACE),
                                     ebb_memory_stats_get_peak_total (stats),
                                     ebb_memory_stats_get_peak_total (host),
                                     ebb_training_report_get_rss_peak () };

  memset (values, 0, EBB_N_RANK_VALUES * sizeof *values);
  for (guint i = 0; i < N_MEMORY; i++)
    values[i] = (gint64) memory[i];
  for (guint i = 0; i < n_groups; i++)
    for (guint j = 0; j < EBB_N_COLLECTIVES; j++)
      {
        values[CALLS (j)] += (gint64) ebb_process_group_get_n_calls (groups[i], (EbbCollective) j);
        values[BYTES (j)] += (gint64) ebb_process_group_get_n_bytes (groups[i], (EbbCollective) j);
      }
}

/* Usually a whole number, because each step does the same. */
static void
add_mean (EbbJsonWriter *writer,
          const char *name,
          gint64 sum,
          gint64 n)
{
  if (sum % n == 0)
    ebb_json_writer_add_int (writer, name, sum / n);
  else
    ebb_json_writer_add_double (writer, name, (double) sum / (double) n);
}

/* One rank's average operations in a step. */
static void
add_communication (EbbJsonWriter *writer,
                   const gint64 *values,
                   gint64 n_steps)
{
  ebb_json_writer_begin (writer, "communication", '{');
  for (guint i = 0; i < EBB_N_COLLECTIVES; i++)
    {
      if (values[CALLS (i)] == 0)
        continue;
      ebb_json_writer_begin (writer, collective_names[i], '{');
      add_mean (writer, "calls", values[CALLS (i)], MAX (n_steps, 1));
      add_mean (writer, "bytes", values[BYTES (i)], MAX (n_steps, 1));
      ebb_json_writer_end (writer);
    }
  ebb_json_writer_end (writer);
}

static void
add_ranks (const EbbTrainingReport *self,
           EbbJsonWriter *writer)
{
  if (self->rank_values == NULL)
    return;
  ebb_json_writer_begin (writer, "ranks", '[');
  for (guint i = 0; i < self->n_ranks; i++)
    {
      const gint64 *values = self->rank_values + (gsize) i * EBB_N_RANK_VALUES;

      ebb_json_writer_begin (writer, NULL, '{');
      ebb_json_writer_add_int (writer, "rank", i);
      for (guint j = 0; j < N_MEMORY; j++)
        ebb_json_writer_add_int (writer, memory_names[j], values[j]);
      add_communication (writer, values, self->losses->len);
      ebb_json_writer_end (writer);
    }
  ebb_json_writer_end (writer);
  add_communication (writer, self->rank_values, self->losses->len);
}

/* -- steps --------------------------------------------------------------------------------------------------------- */

static void
add_numbers (EbbJsonWriter *writer,
             const char *name,
             const GArray *numbers)
{
  ebb_json_writer_begin (writer, name, '[');
  for (guint i = 0; i < numbers->len; i++)
    ebb_json_writer_add_double (writer, NULL, g_array_index (numbers, double, i));
  ebb_json_writer_end (writer);
}

static void
add_evaluations (const EbbTrainingReport *self,
                 EbbJsonWriter *writer)
{
  ebb_json_writer_begin (writer, "evaluations", '[');
  for (guint i = 0; i < self->evaluations->len; i++)
    {
      const EbbEvaluation *one = &g_array_index (self->evaluations, EbbEvaluation, i);

      ebb_json_writer_begin (writer, NULL, '{');
      ebb_json_writer_add_int (writer, "step", one->step);
      ebb_json_writer_add_double (writer, "loss", one->loss);
      ebb_json_writer_add_double (writer, "perplexity", exp (one->loss));
      ebb_json_writer_end (writer);
    }
  ebb_json_writer_end (writer);
  if (self->best_step == 0)
    return;
  ebb_json_writer_add_double (writer, "best_loss", self->best_loss);
  ebb_json_writer_add_int (writer, "best_step", self->best_step);
}

char *
ebb_training_report_to_json (const EbbTrainingReport *self)
{
  const guint n = self->losses->len;
  const double seconds = ebb_progress_get_median (self->seconds, G_MAXUINT);
  g_auto (EbbJsonWriter) writer = { NULL };

  ebb_json_writer_begin (&writer, NULL, '{');
  ebb_json_writer_add_double (&writer, "final_loss", n > 0 ? g_array_index (self->losses, double, n - 1) : NAN);
  ebb_json_writer_add_double (&writer, "tokens_per_second", seconds > 0 ? self->step_tokens / seconds : 0);
  add_memory (self, &writer);
  if (self->budget != NULL)
    add_members (&writer, self->budget);
  add_store (&writer, self->store);
  add_checkpointing (&writer, self->model);
  add_ranks (self, &writer);
  ebb_json_writer_add_int (&writer, "parameters", (gint64) self->n_parameters);
  ebb_json_writer_add_int (&writer, "first_step", self->first_step);
  ebb_json_writer_add_int (&writer, "last_step", self->last_step);
  ebb_json_writer_add_string (&writer, "version", ebb_get_version_string ());
  add_evaluations (self, &writer);
  add_numbers (&writer, "losses", self->losses);
  add_numbers (&writer, "step_seconds", self->seconds);
  ebb_json_writer_end (&writer);
  return ebb_json_writer_finish (&writer);
}
