/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The memory and the time of a training, from a dry run of its step. */
#include "common/memory/estimate.h"

#include "common/memory/concessions.h"
#include "common/memory/memory-timeline.h"
#include "common/memory/planning.h"
#include "common/report/progress.h"
#include "common/train/output.h"
#include "common/written-file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static char *
format_time (double seconds)
{
  if (seconds < 120)
    return g_strdup_printf ("%.3g s", seconds);
  return seconds < 7200 ? g_strdup_printf ("%.3g minutes", seconds / 60)
                        : g_strdup_printf ("%.3g hours", seconds / 3600);
}

static void
add_integer (JsonBuilder *builder,
             const char *name,
             gint64 value)
{
  json_builder_set_member_name (builder, name);
  json_builder_add_int_value (builder, value);
}

/* What is said of a step: of the rank that needs most. */
typedef struct
{
  gint64 peak, host_peak, extent, purposes[EBB_N_PURPOSES];
  PlanningNeed need; /* only .tensors with a plan, which says that */
  double seconds;
} Figures;

static void
take_figures (Figures *self,
              EbbMemoryEstimate *estimate)
{
  self->peak = (gint64) ebb_memory_estimate_get_peak_total (estimate);
  self->host_peak = (gint64) ebb_memory_estimate_get_host_peak_total (estimate);
  self->extent = (gint64) ebb_memory_estimate_get_extent (estimate);
  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    self->purposes[i] = (gint64) ebb_memory_estimate_get_peak (estimate, (EbbPurpose) i);
}

/* The largest of each number over the ranks. */
static gboolean
exchange (Ranks *ranks,
          Figures *figures,
          GError **error)
{
  enum
  {
    N = 3 + EBB_N_PURPOSES
  };
  gint64 mine[N] = { figures->peak, figures->host_peak, figures->extent };
  g_autofree gint64 *all = NULL;

  if (ranks == NULL)
    return TRUE;
  memcpy (mine + 3, figures->purposes, sizeof figures->purposes);
  all = g_new (gint64, (gsize) ranks->size * N);
  if (!ranks_exchange (ranks, mine, N, all, error))
    return FALSE;
  if (!planning_refuse_interrupt (ranks, error))
    return FALSE;
  for (guint i = 0; i < ranks->size * N; i++)
    mine[i % N] = MAX (mine[i % N], all[i]);
  figures->peak = mine[0];
  figures->host_peak = mine[1];
  figures->extent = mine[2];
  memcpy (figures->purposes, mine + 3, sizeof figures->purposes);
  return TRUE;
}

static gboolean
write_report (const Options *options,
              EbbMemoryEstimate *estimate,
              const Figures *figures,
              GError **error)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();

  if (options->report == NULL)
    return TRUE;
  json_builder_begin_object (builder);
  add_integer (builder, "predicted_peak_bytes", figures->peak);
  add_integer (builder, "predicted_host_peak_bytes", figures->host_peak);
  json_builder_set_member_name (builder, "peak_bytes_by_purpose");
  json_builder_begin_object (builder);
  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    add_integer (builder, progress_purposes[i], figures->purposes[i]);
  json_builder_end_object (builder);
  add_integer (builder, "heap_bytes", figures->extent);
  if (figures->need.tensors > 0)
    add_integer (builder, "least_bytes", (gint64) figures->need.tensors);
  if (figures->need.all > 0)
    add_integer (builder, "least_memory_bytes", (gint64) figures->need.all);
  if (options->memory > 0)
    add_integer (builder, "budget_bytes", (gint64) options->memory);
  if (ebb_memory_estimate_get_leak (estimate) != NULL)
    {
      add_integer (builder, "leaked_bytes", (gint64) ebb_memory_estimate_get_leaked_bytes (estimate));
      json_builder_set_member_name (builder, "leak");
      json_builder_add_string_value (builder, ebb_memory_estimate_get_leak (estimate));
    }
  json_builder_set_member_name (builder, "step_seconds");
  json_builder_add_double_value (builder, figures->seconds);
  json_builder_set_member_name (builder, "seconds_are_disturbed");
  json_builder_add_boolean_value (builder, ebb_memory_estimate_is_disturbed (estimate));
  json_builder_set_member_name (builder, "run_seconds");
  json_builder_add_double_value (builder, figures->seconds * (double) options->steps);
  memory_timeline_write_json (ebb_memory_estimate_get_timeline (estimate), builder);
  json_builder_set_member_name (builder, "config");
  options_add_json (options, builder);
  json_builder_end_object (builder);
  return written_file_write_json (options->report, builder, error);
}

static void
print_bytes (const char *name,
             gint64 n_bytes)
{
  if (n_bytes > 0)
    printf ("  %-12s %10.1f MiB\n", name, (double) n_bytes / (1 << 20));
}

/* Rounded up, so that --memory takes the number that is printed. */
static double
round_up (guint64 n_bytes)
{
  return ceil ((double) n_bytes / (1 << 20) * 10) / 10;
}

/* The parts are those of all ranks of this process, so that they add up. */
static void
print_need (const Options *options,
            const PlanningNeed *need)
{
  const guint64 n_here = (guint64) MAX (options->ranks.n_ranks, 1);

  if (need->all == 0) /* beside a plan only the least for tensors is known */
    {
      if (need->tensors > 0)
        printf ("The tensors%s need at least %.1f MiB with --memory.\n", n_here > 1 ? " of each rank" : "",
                round_up (need->tensors));
      return;
    }
  printf ("With --memory it needs at least %.1f MiB", round_up (need->all));
  if (need->own > 0)
    printf (": tensors%s %.1f, gaps between them %.1f, the program itself %.1f", n_here > 1 ? " of its ranks" : "",
            round_up (need->tensors * n_here), round_up (need->gaps * n_here), round_up (need->own));
  else if (n_here > 1)
    printf (": %.1f of each rank", round_up (need->tensors));
  printf ("%s.\n", concessions_are_allowed (options) ? "; with what --allow includes it may need less" : "");
}

static void
print (const Options *options,
       const Ranks *ranks,
       EbbMemoryEstimate *estimate,
       const Figures *figures)
{
  EbbMemoryTimeline *timeline = ebb_memory_estimate_get_timeline (estimate);
  g_autofree char *table = ebb_memory_timeline_get_table (timeline, MEMORY_TIMELINE_HOLDERS);
  const char *device = options->device != NULL ? options->device : "cpu";
  g_autofree char *step = format_time (figures->seconds);
  g_autofree char *run = format_time (figures->seconds * (double) options->steps);

  printf ("A step needs %.1f MiB of %s%s, at most at one time:\n", (double) figures->peak / (1 << 20), device,
          ranks != NULL ? " on the rank that needs most" : "");
  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    print_bytes (progress_purposes[i], figures->purposes[i]);
  printf ("With the gaps between them the heap needs %.1f MiB.\n", (double) figures->extent / (1 << 20));
  if (figures->host_peak != figures->peak)
    printf ("Host memory: %.1f MiB.\n", (double) figures->host_peak / (1 << 20));
  print_need (options, &figures->need);
  printf ("At the peak%s the largest are:%s", ranks != NULL ? " of rank 0" : "", strchr (table, '\n'));
  if (ebb_memory_estimate_get_leak (estimate) != NULL)
    printf ("Warning: %s.\n", ebb_memory_estimate_get_leak (estimate));
  printf ("A step computes for about %s, %" G_GINT64_FORMAT " steps for about %s.\n", step, options->steps, run);
  if (ebb_memory_estimate_is_disturbed (estimate))
    printf ("That is too long: other programs took the processor while kernels were timed. Estimate again when the "
            "machine is quiet.\n");
}

/* The smallest budget for which there is a plan. */
static gboolean
find_need (Trainer *trainer,
           Figures *figures,
           GError **error)
{
  if (trainer->plan == NULL)
    return planning_find_need (trainer, &figures->need, error);
  g_object_get (trainer->plan, "least-bytes", &figures->need.tensors, NULL);
  return TRUE;
}

static gboolean
take_seconds (Trainer *trainer,
              EbbMemoryEstimate *estimate,
              Figures *figures,
              GError **error)
{
  const gboolean measures = trainer->ranks == NULL || trainer->ranks->rank == 0;
  GError *failure = NULL;

  figures->seconds = ebb_memory_estimate_measure_seconds (estimate, measures ? PLANNING_MAX_SECONDS : 0, &failure);
  if (failure != NULL)
    g_propagate_error (error, failure);
  return failure == NULL;
}

/* Of other ranks than the first the options name no file. */
static gboolean
save_timeline (Trainer *trainer,
               EbbMemoryEstimate *estimate,
               GError **error)
{
  EbbMemoryTimeline *timeline = ebb_memory_estimate_get_timeline (estimate);

  ebb_memory_timeline_set_name (timeline, memory_timeline_get_title (trainer));
  return trainer->options->memory_timeline == NULL || memory_timeline_save (timeline, trainer, error);
}

/* All parts of the training are made in a dry run. */
static EbbMemoryEstimate *
make_estimate (Options *options,
               Ranks *ranks,
               Figures *figures,
               GError **error)
{
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  Planning planning;
  Trainer trainer;
  gboolean ok;

  if (!planning_init (&planning, options, ranks, error))
    return NULL;
  ebb_push_dry_run ();
  ok = trainer_init (&trainer, options, ranks, error) && planning_apply (&planning, &trainer, error);
  ok = ok
       && (estimate = ebb_memory_estimate_new (trainer.model, trainer.device, planning_run_step, &trainer, error))
              != NULL;
  if (ok)
    take_figures (figures, estimate);
  ok = ok && take_seconds (&trainer, estimate, figures, error) && find_need (&trainer, figures, error)
       && save_timeline (&trainer, estimate, error);
  planning_clear (&planning);
  trainer_clear (&trainer);
  ebb_pop_dry_run ();
  return ok ? g_steal_pointer (&estimate) : NULL;
}

gboolean
estimate_run (Options *options,
              Ranks *ranks,
              GError **error)
{
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  Figures figures = { 0 };
  gboolean ok = output_check (options, error);

  if (ranks != NULL)
    ok = ranks_agree (ranks, ok, error);
  if (!ok)
    return FALSE;
  estimate = make_estimate (options, ranks, &figures, error);
  ok = ranks != NULL ? ranks_agree (ranks, estimate != NULL, error) : estimate != NULL;
  if (!ok)
    return FALSE;
  if (!exchange (ranks, &figures, error))
    return FALSE;
  if (ranks != NULL && ranks->rank > 0)
    return TRUE;
  if (!options->quiet)
    print (options, ranks, estimate, &figures);
  if (!options->quiet && options->memory_timeline != NULL)
    printf ("Picture of the memory of a step: %s\n", options->memory_timeline);
  return write_report (options, estimate, &figures, error);
}
