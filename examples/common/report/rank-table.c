/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Gathers and prints what each rank used and sent. */
#include "common/report/rank-table.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024.0 * 1024.0)
#define MOST_ROWS 32

enum
{
  HELD_PARAMETERS, /* between steps */
  HELD_OPTIMIZER,
  PEAK_PARAMETERS,
  PEAK_GRADIENTS,
  PEAK_OPTIMIZER,
  PEAK_ACTIVATIONS,
  PEAK_CACHE,
  PEAK_WORKSPACE,
  PEAK_ALL,
  PEAK_HOST,
  PEAK_RSS,
  N_MEMORY,
  N_CALLS = N_MEMORY,
  N_BYTES = N_CALLS + EBB_N_COLLECTIVES,
  N_FIGURES = N_BYTES + EBB_N_COLLECTIVES
};

/* Their names in the report. */
static const char *const memory_names[N_MEMORY] = {
  "parameter_bytes_held", "optimizer_bytes_held", "parameter_bytes", "gradient_bytes", "optimizer_bytes",
  "activation_bytes_peak", "cache_bytes", "workspace_bytes", "peak_bytes", "host_peak_bytes", "rss_peak_bytes"
};
static const char *const collective_names[EBB_N_COLLECTIVES] = { "all_reduce", "reduce_scatter", "all_gather",
                                                                 "broadcast", "all_to_all", "send", "recv",
                                                                 "barrier" };

/* The peak of resident bytes before the training began. Ranks that are threads share it. */
static gint64 peak_before;
static pthread_mutex_t peak_lock = PTHREAD_MUTEX_INITIALIZER;

void
rank_table_begin_training (void)
{
  static const char forget_peak[] = "5"; /* of all bits, proc(5) */
  int fd;

  pthread_mutex_lock (&peak_lock);
  peak_before = MAX (peak_before, rank_table_get_training_rss_peak ());
  fd = open ("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (fd >= 0)
    {
      if (write (fd, forget_peak, strlen (forget_peak)) < 0)
        g_debug ("/proc/self/clear_refs: %s", g_strerror (errno)); /* the peak goes on from planning's */
      close (fd);
    }
  pthread_mutex_unlock (&peak_lock);
}

gint64
rank_table_get_rss_peak (void)
{
  gint64 before;

  pthread_mutex_lock (&peak_lock);
  before = peak_before;
  pthread_mutex_unlock (&peak_lock);
  return MAX (before, rank_table_get_training_rss_peak ());
}

gint64
rank_table_get_training_rss_peak (void)
{
  g_autofree char *status = NULL;
  const char *line;

  if (!g_file_get_contents ("/proc/self/status", &status, NULL, NULL))
    return 0;
  line = strstr (status, "VmHWM:");
  return line != NULL ? g_ascii_strtoll (line + strlen ("VmHWM:"), NULL, 10) * 1024 : 0;
}

/* -- gathering ----------------------------------------------------------------------------------------------------- */

void
rank_table_begin (const Trainer *trainer)
{
  EbbProcessGroup *groups[RANKS_MAX_GROUPS];
  guint n;

  if (trainer->ranks == NULL)
    return;
  n = ranks_get_groups (trainer->ranks, groups);
  for (guint i = 0; i < n; i++)
    ebb_process_group_reset_counters (groups[i]);
  ebb_memory_reset_peaks (trainer->device);
  if (trainer->device != ebb_device_get_cpu ())
    ebb_memory_reset_peaks (ebb_device_get_cpu ());
}

static void
take_memory (const Trainer *trainer,
             gint64 *mine)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (trainer->device);
  g_autoptr (EbbMemoryStats) host = ebb_memory_get_stats (NULL);

  mine[HELD_PARAMETERS] = (gint64) ebb_memory_stats_get_current (stats, EBB_PURPOSE_PARAMETER);
  mine[HELD_OPTIMIZER] = (gint64) ebb_memory_stats_get_current (stats, EBB_PURPOSE_OPTIMIZER);
  mine[PEAK_PARAMETERS] = (gint64) ebb_memory_stats_get_peak (stats, EBB_PURPOSE_PARAMETER);
  mine[PEAK_GRADIENTS] = (gint64) ebb_memory_stats_get_peak (stats, EBB_PURPOSE_GRADIENT);
  mine[PEAK_OPTIMIZER] = (gint64) ebb_memory_stats_get_peak (stats, EBB_PURPOSE_OPTIMIZER);
  mine[PEAK_ACTIVATIONS] = (gint64) ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION);
  mine[PEAK_CACHE] = (gint64) ebb_memory_stats_get_peak (stats, EBB_PURPOSE_CACHE);
  mine[PEAK_WORKSPACE] = (gint64) ebb_memory_stats_get_peak (stats, EBB_PURPOSE_WORKSPACE);
  mine[PEAK_ALL] = (gint64) ebb_memory_stats_get_peak_total (stats);
  mine[PEAK_HOST] = (gint64) ebb_memory_stats_get_peak_total (host);
  mine[PEAK_RSS] = rank_table_get_rss_peak ();
}

static void
take_communication (const Trainer *trainer,
                    gint64 *mine)
{
  EbbProcessGroup *groups[RANKS_MAX_GROUPS];
  guint n = ranks_get_groups (trainer->ranks, groups);

  for (guint i = 0; i < n; i++)
    for (guint j = 0; j < EBB_N_COLLECTIVES; j++)
      {
        mine[N_CALLS + j] += (gint64) ebb_process_group_get_n_calls (groups[i], (EbbCollective) j);
        mine[N_BYTES + j] += (gint64) ebb_process_group_get_n_bytes (groups[i], (EbbCollective) j);
      }
}

gboolean
rank_table_init (RankTable *self,
                 const Trainer *trainer,
                 guint n_steps,
                 GError **error)
{
  gint64 mine[N_FIGURES] = { 0 };

  *self = (RankTable){ .n_steps = n_steps };
  if (trainer->ranks == NULL)
    return TRUE;
  self->n_ranks = trainer->ranks->size;
  self->figures = g_new (gint64, (gsize) self->n_ranks * N_FIGURES);
  take_memory (trainer, mine);
  take_communication (trainer, mine);
  return ranks_exchange (trainer->ranks, mine, N_FIGURES, self->figures, error);
}

void
rank_table_clear (RankTable *self)
{
  g_clear_pointer (&self->figures, g_free);
}

/* -- showing ------------------------------------------------------------------------------------------------------- */

static void
print_rank (const gint64 *figures,
            const char *name,
            Progress *progress)
{
  progress_note (progress, "%4s %10.1f %9.1f %9.1f %9.1f %11.1f %9.1f %9.1f", name,
                 (double) figures[HELD_PARAMETERS] / MIB, (double) figures[PEAK_PARAMETERS] / MIB,
                 (double) figures[PEAK_GRADIENTS] / MIB, (double) figures[PEAK_OPTIMIZER] / MIB,
                 (double) figures[PEAK_ACTIVATIONS] / MIB, (double) figures[PEAK_WORKSPACE] / MIB,
                 (double) figures[PEAK_ALL] / MIB);
}

static void
print_communication (const RankTable *self,
                     Progress *progress)
{
  GString *text = g_string_new (NULL);
  double steps = (double) MAX (self->n_steps, 1);

  for (guint i = 0; i < EBB_N_COLLECTIVES; i++)
    if (self->figures[N_CALLS + i] > 0)
      g_string_append_printf (text, "%s%.1f MiB in %.4g %s", text->len > 0 ? ", " : "",
                              (double) self->figures[N_BYTES + i] / MIB / steps,
                              (double) self->figures[N_CALLS + i] / steps, collective_names[i]);
  if (text->len > 0)
    progress_note (progress, "Rank 0 sends a step: %s", text->str);
  g_string_free (text, TRUE);
}

void
rank_table_print (const RankTable *self,
                  Progress *progress)
{
  if (self->figures == NULL || progress->losses->len == 0)
    return;
  progress_note (progress, "rank parameters   at most gradients optimizer activations workspace      peak (MiB)");
  for (guint i = 0; i < MIN (self->n_ranks, MOST_ROWS); i++)
    {
      g_autofree char *name = g_strdup_printf ("%u", i);

      print_rank (self->figures + (gsize) i * N_FIGURES, name, progress);
    }
  if (self->n_ranks > MOST_ROWS)
    {
      gint64 most[N_MEMORY] = { 0 };

      for (guint i = 0; i < self->n_ranks; i++)
        for (guint j = 0; j < N_MEMORY; j++)
          most[j] = MAX (most[j], self->figures[(gsize) i * N_FIGURES + j]);
      print_rank (most, "most", progress);
    }
  print_communication (self, progress);
}

/* Usually a whole number, because each step does the same. */
static void
add_mean (const char *name,
          gint64 sum,
          gint64 n,
          JsonBuilder *builder)
{
  json_builder_set_member_name (builder, name);
  if (sum % n == 0)
    json_builder_add_int_value (builder, sum / n);
  else
    json_builder_add_double_value (builder, (double) sum / (double) n);
}

/* One rank's average operations in a step. */
static void
add_communication (const RankTable *self,
                   const gint64 *figures,
                   JsonBuilder *builder)
{
  gint64 n_steps = MAX ((gint64) self->n_steps, 1);

  for (guint i = 0; i < EBB_N_COLLECTIVES; i++)
    {
      if (figures[N_CALLS + i] == 0)
        continue;
      json_builder_set_member_name (builder, collective_names[i]);
      json_builder_begin_object (builder);
      add_mean ("calls", figures[N_CALLS + i], n_steps, builder);
      add_mean ("bytes", figures[N_BYTES + i], n_steps, builder);
      json_builder_end_object (builder);
    }
}

static void
add_rank (const RankTable *self,
          guint rank,
          JsonBuilder *builder)
{
  const gint64 *figures = self->figures + (gsize) rank * N_FIGURES;

  json_builder_begin_object (builder);
  json_builder_set_member_name (builder, "rank");
  json_builder_add_int_value (builder, rank);
  for (guint i = 0; i < N_MEMORY; i++)
    {
      json_builder_set_member_name (builder, memory_names[i]);
      json_builder_add_int_value (builder, figures[i]);
    }
  json_builder_set_member_name (builder, "communication");
  json_builder_begin_object (builder);
  add_communication (self, figures, builder);
  json_builder_end_object (builder);
  json_builder_end_object (builder);
}

void
rank_table_add_json (const RankTable *self,
                     JsonBuilder *builder)
{
  if (self->figures == NULL)
    return;
  json_builder_set_member_name (builder, "ranks");
  json_builder_begin_array (builder);
  for (guint i = 0; i < self->n_ranks; i++)
    add_rank (self, i, builder);
  json_builder_end_array (builder);
  json_builder_set_member_name (builder, "communication");
  json_builder_begin_object (builder);
  add_communication (self, self->figures, builder);
  json_builder_end_object (builder);
}
