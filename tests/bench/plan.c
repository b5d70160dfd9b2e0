/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/bench-training.h"
#include "wrap/plan/estimate-private.h"
#include "wrap/plan/planner/choices-private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Prints what plans for ten budgets, from the least to what a step takes without one, cost in seconds and take in
 * bytes, beside the step without a plan, selective and full checkpointing, and the fastest way in which all blocks do
 * the same. The figures are predicted by dry steps; with --measure each of them is trained, too. */

#define MIB (1024.0 * 1024.0)
#define N_BUDGETS 10
#define N_LEFT_OUT 2

typedef struct
{
  const char *name;
  BenchSettings settings;
} Case;

static const Case cases[] = {
  { "gpt2", { .preset = "gpt2", .batch = 8, .context = 512 } },
  { "bert-large", { .preset = "bert-large", .batch = 32, .context = 128 } },
  /* One block alone leaves nothing to plan: its backward follows its forward. */
  { "dropout", { .preset = "gpt2", .layers = 4, .vocab = 1000, .batch = 8, .context = 512, .dropout = 0.1 } },
};

static char *only;
static int steps = 3, threads = 0, batch = 0, layers = 0;
static double seconds_at_most = 60;
static gboolean measures, fixed, checks;

static const GOptionEntry entries[] = {
  { "only", 0, 0, G_OPTION_ARG_STRING, &only, "One of gpt2, bert-large, dropout; with --check gpt2-xl, too", "NAME" },
  { "batch", 0, 0, G_OPTION_ARG_INT, &batch, "Sequences a step instead of the case's", "N" },
  { "layers", 0, 0, G_OPTION_ARG_INT, &layers, "Layers instead of the case's", "N" },
  { "seconds", 0, 0, G_OPTION_ARG_DOUBLE, &seconds_at_most, "How long kernels are timed at most (default: 60)", "S" },
  { "fixed", 0, 0, G_OPTION_ARG_NONE, &fixed, "Take fixed rates instead of timing kernels", NULL },
  { "measure", 0, 0, G_OPTION_ARG_NONE, &measures, "Train with each plan and strategy, too", NULL },
  { "check", 0, 0, G_OPTION_ARG_NONE, &checks, "Check times and estimates instead", NULL },
  { "steps", 0, 0, G_OPTION_ARG_INT, &steps, "Steps that count when training, after two that don't", "N" },
  { "threads", 0, 0, G_OPTION_ARG_INT, &threads, "CPU threads", "N" },
  G_OPTION_ENTRY_NULL,
};

/* What a step takes, as dry steps show it. */
typedef struct
{
  double seconds;
  guint64 peak;
} Figures;

typedef struct
{
  const Case *item;
  BenchTraining *training; /* of the dry steps, for which its model is taken while there are choices */
  BenchTraining *measured; /* of the real ones; NULL without --measure */
  EbbPlanChoices *choices;
  guint n_steps;  /* dry ones */
  guint64 others; /* bytes in use beside what the measured steps take */
  Figures none;
  GArray *uniform; /* of Figures: all blocks do the same */
} Bench;

static void
bench_clear (Bench *self)
{
  g_clear_pointer (&self->choices, ebb_plan_choices_free);
  g_clear_pointer (&self->training, bench_training_free);
  g_clear_pointer (&self->measured, bench_training_free);
  g_clear_pointer (&self->uniform, g_array_unref);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Bench, bench_clear)

static BenchSettings
get_settings (const Case *item)
{
  BenchSettings settings = item->settings;

  if (batch > 0)
    settings.batch = batch;
  if (layers > 0)
    settings.layers = layers;
  return settings;
}

static gboolean
step (EbbModule *model, gpointer user_data, GError **error)
{
  Bench *self = user_data;
  double seconds[BENCH_N_PARTS];

  self->n_steps++;
  return bench_training_step (self->training, seconds, NULL, error);
}

static guint64
count_bytes (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (NULL);

  return ebb_memory_stats_get_total (stats);
}

/* -- figures ------------------------------------------------------------------------------------------------------- */

/* The rest of two steps differs by what lies in the cache, which is noise: recomputes alone count. */
static Figures
get_figures (Bench *self, const EbbProbeStep *ran)
{
  Figures figures = { ebb_probe_get_seconds (self->choices->probe, self->choices->none), ran->peak };

  for (guint i = 0; i < ran->n_stages; i++)
    figures.seconds += ran->stages[i].seconds[EBB_PROBE_RECOMPUTE];
  return figures;
}

static gboolean
find_uniform (Bench *self, GError **error)
{
  EbbPlanChoices *choices = self->choices;
  g_autofree guint *numbers = g_new0 (guint, choices->blocks->len);
  guint n = 0;

  for (guint i = 0; i < choices->classes->len; i++)
    n = MAX (n, ((EbbPlanClass *) choices->classes->pdata[i])->choices->len);
  for (guint k = 0; k < n; k++)
    {
      g_autoptr (EbbMemoryPlan) plan = ebb_memory_plan_new_empty (self->training->model);
      g_autoptr (EbbProbeStep) ran = NULL;
      Figures figures;

      for (guint i = 0; i < choices->blocks->len; i++)
        numbers[i] = MIN (k, choices->class_of[i]->choices->len - 1);
      ebb_plan_choices_fill (choices, numbers, plan);
      ran = ebb_plan_choices_try (choices, plan, error);
      if (ran == NULL)
        return FALSE;
      figures = get_figures (self, ran);
      g_array_append_val (self->uniform, figures);
    }
  return TRUE;
}

/* The fastest one within @budget; NULL: none is. */
static const Figures *
find_fastest_uniform (Bench *self, guint64 budget)
{
  const Figures *fastest = NULL;

  for (guint i = 0; i < self->uniform->len; i++)
    {
      const Figures *figures = &g_array_index (self->uniform, Figures, i);

      if (figures->peak <= budget && (fastest == NULL || figures->seconds < fastest->seconds))
        fastest = figures;
    }
  return fastest;
}

/* -- rows ---------------------------------------------------------------------------------------------------------- */

/* Real steps of the measured training as it is wrapped now. */
static gboolean
print_measured (Bench *self, GError **error)
{
  g_autofree double *times = g_new (double, (guint) steps);
  g_autoptr (EbbMemoryStats) stats = NULL;

  for (int i = 0; i < steps + N_LEFT_OUT; i++)
    {
      double seconds[BENCH_N_PARTS];

      if (i == N_LEFT_OUT)
        ebb_memory_reset_peaks (NULL);
      if (!bench_training_step (self->measured, seconds, NULL, error))
        return FALSE;
      if (i >= N_LEFT_OUT)
        times[i - N_LEFT_OUT] = seconds[BENCH_STEP];
    }
  stats = ebb_memory_get_stats (NULL);
  printf ("   measured %9.1f %9.3f", (double) (ebb_memory_stats_get_peak_total (stats) - self->others) / MIB,
          bench_median (times, (guint) steps));
  return TRUE;
}

static void
print_figures (Bench *self, const char *name, const Figures *figures)
{
  printf ("%-24s %9.1f %9.3f %+7.1f %%", name, (double) figures->peak / MIB, figures->seconds,
          100 * (figures->seconds / self->none.seconds - 1));
}

static gboolean
measure_strategy (Bench *self, EbbCheckpointOptions *options, GError **error)
{
  EbbModule *model = self->measured->model;
  g_autoptr (GArray) blocks = ebb_plan_find_blocks (model);
  gboolean ok;

  if (options == NULL)
    return print_measured (self, error);
  ok = ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, error) && print_measured (self, error);
  for (guint i = 0; i < blocks->len; i++)
    ebb_checkpoint_unwrap (g_array_index (blocks, EbbPlanBlock, i).module);
  return ok;
}

static gboolean
measure_plan (Bench *self, EbbMemoryPlan *plan, GError **error)
{
  g_autofree char *json = ebb_memory_plan_to_json (plan);
  g_autoptr (EbbMemoryPlan) same = ebb_memory_plan_new_from_json (self->measured->model, json, error);
  gboolean ok = same != NULL && ebb_memory_plan_apply (same, error) && print_measured (self, error);

  if (same != NULL)
    ebb_memory_plan_unapply (same);
  return ok;
}

/* @options: of all blocks; NULL: nothing is wrapped. */
static gboolean
print_strategy (Bench *self, const char *name, EbbCheckpointOptions *options, GError **error)
{
  g_autoptr (EbbProbeStep) ran = NULL;
  EbbModule *model = self->training->model;
  Figures figures;
  gboolean ok;

  if (options != NULL && !ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, error))
    return FALSE;
  ran = ebb_probe_run (self->choices->probe, error);
  ok = ran != NULL;
  if (ok)
    {
      ebb_probe_price (self->choices->probe, ran);
      figures = get_figures (self, ran);
      print_figures (self, name, &figures);
      ok = self->measured == NULL || measure_strategy (self, options, error);
      printf ("\n");
      fflush (stdout);
    }
  for (guint i = 0; options != NULL && i < self->choices->blocks->len; i++)
    ebb_checkpoint_unwrap (g_array_index (self->choices->blocks, EbbPlanBlock, i).module);
  return ok;
}

static gboolean
print_plan (Bench *self, guint64 budget, GError **error)
{
  const Figures *uniform = find_fastest_uniform (self, budget);
  g_autofree char *name = g_strdup_printf ("budget %.1f", (double) budget / MIB);
  g_autoptr (EbbMemoryPlan) plan = NULL;
  Figures figures;

  self->n_steps = 0;
  plan = ebb_memory_plan_make (self->training->model, NULL, NULL, step, self, budget, 0, error);
  if (plan == NULL)
    return FALSE;
  figures = (Figures){ plan->step_seconds, plan->predicted_peak_bytes };
  print_figures (self, name, &figures);
  if (self->measured != NULL && !measure_plan (self, plan, error))
    return FALSE;
  if (uniform != NULL)
    printf ("   uniform %9.1f %9.3f", (double) uniform->peak / MIB, uniform->seconds);
  else
    printf ("   uniform         -         -");
  printf (" %12u\n", self->n_steps);
  fflush (stdout);
  return TRUE;
}

static gboolean
print_all_plans (Bench *self, GError **error)
{
  g_autoptr (EbbMemoryPlan) first =
      ebb_memory_plan_make (self->training->model, NULL, NULL, step, self, G_MAXUINT64, 0, error);

  if (first == NULL)
    return FALSE;
  for (guint i = 0; i < N_BUDGETS; i++)
    {
      const double room = (double) (first->unplanned_peak_bytes - first->least_bytes);

      if (!print_plan (self, first->least_bytes + (guint64) (room * i / (N_BUDGETS - 1)), error))
        return FALSE;
    }
  return TRUE;
}

/* -- a case -------------------------------------------------------------------------------------------------------- */

static gboolean
print_case (const Case *item, GError **error)
{
  g_auto (Bench) self = { .item = item };
  g_autoptr (EbbCheckpointOptions) selective = ebb_checkpoint_options_new_selective ();
  g_autoptr (EbbCheckpointOptions) full = ebb_checkpoint_options_new ();
  const BenchSettings settings = get_settings (item);

  self.uniform = g_array_new (FALSE, FALSE, sizeof (Figures));
  self.training = bench_training_new (&settings, error);
  if (self.training == NULL)
    return FALSE;
  self.others = count_bytes () + 2 * sizeof (gint64) * (guint64) (settings.batch * settings.context); /* the batch */
  if (measures && (self.measured = bench_training_new (&settings, error)) == NULL)
    return FALSE;
  self.choices = ebb_plan_choices_new (
      &(EbbPlanRequest){ self.training->model, ebb_device_get_cpu (), .step = step, .user_data = &self },
      fixed ? 0 : seconds_at_most, EBB_ESTIMATE_MEASURED_BYTES, error);
  if (self.choices == NULL || !find_uniform (&self, error))
    return FALSE;
  self.none = get_figures (&self, self.choices->none);
  printf ("%s, %d x %d tokens\n%-24s %9s %9s %9s\n", item->name, settings.batch, settings.context, "", "peak MiB",
          "seconds", "more");
  return print_strategy (&self, "none", NULL, error) && print_strategy (&self, "selective", selective, error)
         && print_strategy (&self, "full", full, error) && print_all_plans (&self, error);
}

static gboolean
print_cases (GError **error)
{
  gboolean any = FALSE;

  printf (
      "A budget's last columns are the fastest way within it in which all blocks do the same, and the dry steps that "
      "the plan took.\n\n");
  for (gsize i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      if (only != NULL && !g_str_equal (only, cases[i].name))
        continue;
      if (!print_case (&cases[i], error))
        return FALSE;
      printf ("\n");
      any = TRUE;
    }
  if (!any)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                 "--only %s: must be gpt2, bert-large or dropout", only);
  return any;
}

/* -- what is asked ------------------------------------------------------------------------------------------------- */

#define MOST_OFF 0.15       /* of an estimate, of the measured step */
#define MOST_SECONDS 1.0    /* of planning 48 blocks, and of an estimate of GPT-2 XL */
#define MOST_RESIDENT 200.0 /* MiB, of this process after the estimate */
#define N_REPEATS 5         /* the median counts */

/* GPT-2 XL has 48 blocks. */
static const BenchSettings gpt2_xl = { .preset = "gpt2-xl", .batch = 32, .context = 1024 };

static double
get_clock (void)
{
  return (double) g_get_monotonic_time () * 1e-6;
}

/* Seconds that this thread computed: on a busy machine it waits, too. */
static double
get_own_seconds (void)
{
  struct timespec now;

  clock_gettime (CLOCK_THREAD_CPUTIME_ID, &now);
  return (double) now.tv_sec + (double) now.tv_nsec * 1e-9;
}

static gboolean
print_verdict (const char *what, double figure, const char *unit, double bound)
{
  printf ("%-44s %9.3f %-4s of at most %7.3f%s\n", what, figure, unit, bound, figure > bound ? "   too much" : "");
  fflush (stdout);
  return figure <= bound;
}

/* One estimate from nothing: the model is made in it, too. Kernels are timed for @max_seconds. */
static gboolean
estimate_once (double max_seconds, double *seconds, GError **error)
{
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  const double began = get_clock ();
  Bench self = { 0 };

  ebb_push_dry_run ();
  self.training = bench_training_new (&gpt2_xl, error);
  ebb_pop_dry_run ();
  if (self.training != NULL)
    estimate = ebb_memory_estimate_new (self.training->model, NULL, step, &self, error);
  if (estimate == NULL || ebb_memory_estimate_measure_seconds (estimate, max_seconds, error) <= 0)
    {
      bench_clear (&self);
      return FALSE;
    }
  *seconds = get_clock () - began;
  bench_clear (&self);
  return TRUE;
}

static gboolean
check_estimate (gboolean *ok, GError **error)
{
  double times[N_REPEATS], first;

  if (!estimate_once (seconds_at_most, &first, error))
    return FALSE;
  for (guint i = 0; i < N_REPEATS; i++)
    if (!estimate_once (0, &times[i], error))
      return FALSE;
  *ok &= print_verdict ("estimate of gpt2-xl, 32 x 1024", bench_median (times, N_REPEATS), "s", MOST_SECONDS);
  *ok &= print_verdict ("  resident", (double) bench_get_resident_peak () / MIB, "MiB", MOST_RESIDENT);
  return TRUE;
}

/* Within a budget in the middle between the least one and all. */
static gboolean
plan_once (Bench *self, EbbDevice *device, EbbMemoryPlan *all, double *seconds, double *own, GError **error)
{
  const guint64 budget = all->least_bytes + (all->unplanned_peak_bytes - all->least_bytes) / 2;
  const double began = get_clock (), own_began = get_own_seconds ();
  g_autoptr (EbbMemoryPlan) plan = NULL;

  self->n_steps = 0;
  plan = ebb_memory_plan_make (self->training->model, device, NULL, step, self, budget, 0, error);
  *seconds = get_clock () - began;
  *own = get_own_seconds () - own_began;
  return plan != NULL;
}

/* On sim blocks may move what they keep, too. */
static gboolean
check_planning (const char *name, gboolean *ok, GError **error)
{
  g_autofree char *what = g_strdup_printf ("planning 48 blocks on %s", name);
  g_auto (Bench) self = { 0 };
  BenchSettings settings = gpt2_xl;
  g_autoptr (EbbMemoryPlan) all = NULL;
  double times[N_REPEATS], own[N_REPEATS];

  settings.device = ebb_device_get (name, error);
  if (settings.device == NULL)
    return FALSE;
  ebb_push_dry_run ();
  self.training = bench_training_new (&settings, error);
  ebb_pop_dry_run ();
  if (self.training != NULL) /* the first plan measures the rates */
    all = ebb_memory_plan_make (self.training->model, settings.device, NULL, step, &self, G_MAXUINT64, seconds_at_most,
                                error);
  if (all == NULL)
    return FALSE;
  for (guint i = 0; i < N_REPEATS; i++)
    if (!plan_once (&self, settings.device, all, &times[i], &own[i], error))
      return FALSE;
  *ok &= print_verdict (what, bench_median (times, N_REPEATS), "s", MOST_SECONDS);
  printf ("  computing %34.3f s, dry steps %u\n", bench_median (own, N_REPEATS), self.n_steps);
  return TRUE;
}

/* Steps before and after the kernels are timed count, so that both meet the same machine. */
static gboolean
check_seconds (const Case *item, gboolean *ok, GError **error)
{
  g_autofree char *what = NULL;
  g_autofree double *times = g_new (double, 2 * (guint) steps);
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  g_auto (Bench) self = { 0 };
  const BenchSettings settings = get_settings (item);
  double parts[BENCH_N_PARTS], estimated, measured;

  self.training = bench_training_new (&settings, error);
  if (self.training == NULL)
    return FALSE;
  for (int i = -N_LEFT_OUT; i < 2 * steps; i++)
    {
      if (i == steps)
        {
          estimate = ebb_memory_estimate_new (self.training->model, NULL, step, &self, error);
          if (estimate == NULL || ebb_memory_estimate_measure_seconds (estimate, seconds_at_most, error) <= 0)
            return FALSE;
        }
      if (!bench_training_step (self.training, parts, NULL, error))
        return FALSE;
      if (i >= 0)
        times[i] = parts[BENCH_STEP];
    }
  estimated = ebb_memory_estimate_measure_seconds (estimate, 0, error);
  if (estimated <= 0)
    return FALSE;
  measured = bench_median (times, 2 * (guint) steps);
  what = g_strdup_printf ("%s, %d x %d: %.3f s, estimated %.3f s%s", item->name, settings.batch, settings.context,
                          measured, estimated, ebb_memory_estimate_is_disturbed (estimate) ? " (disturbed)" : "");
  *ok &= print_verdict (what, 100 * fabs (estimated / measured - 1), "%", 100 * MOST_OFF);
  return TRUE;
}

/* The estimate comes first, while the process has nothing else. */
static gboolean
check (gboolean *ok, GError **error)
{
  const gboolean has_xl = only == NULL || g_str_equal (only, gpt2_xl.preset);
  gboolean any = has_xl;
  double load = 0;

  *ok = TRUE;
  if (has_xl
      && (!check_estimate (ok, error) || !check_planning ("cpu", ok, error) || !check_planning ("sim", ok, error)))
    return FALSE;
  for (gsize i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      if (only != NULL && !g_str_equal (only, cases[i].name))
        continue;
      if (!check_seconds (&cases[i], ok, error))
        return FALSE;
      any = TRUE;
    }
  if (!any)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                 "--only %s: must be gpt2-xl, gpt2, bert-large or dropout", only);
  if (any && getloadavg (&load, 1) == 1)
    printf ("the machine's load was %.1f\n", load);
  return any;
}

int
main (int argc, char **argv)
{
  g_autoptr (GOptionContext) context = g_option_context_new (NULL);
  g_autoptr (GError) error = NULL;
  gboolean ok, kept = TRUE;

  g_option_context_add_main_entries (context, entries, NULL);
  ok = g_option_context_parse (context, &argc, &argv, &error);
  if (ok && steps < 1)
    {
      g_set_error (&error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "--steps %d: must be at least 1", steps);
      ok = FALSE;
    }
  if (ok && checks && (fixed || measures))
    {
      g_set_error (&error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "--check goes with neither --fixed nor --measure");
      ok = FALSE;
    }
  if (ok && fixed)
    g_setenv ("EBB_COST_FILE", "", TRUE);
  if (ok && threads > 0)
    ebb_set_num_threads (threads);
  if (ok)
    ok = checks ? check (&kept, &error) : print_cases (&error);
  if (!ok)
    printf ("plan: %s\n", error->message);
  return ok && kept ? 0 : 1;
}
