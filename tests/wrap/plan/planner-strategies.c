/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers one-thread */
/* Plans beside the strategies that have a name, each with what it keeps in place, on the host or on a disk: by a fixed
 * table of costs, in which copies are fast, as fast as computing, or slow. */
#include "support/device.h"
#include "support/plan-runs.h"
#include "wrap/plan/planner/choices-private.h"

#include <glib/gstdio.h>

#define STAGING (256 * 1024)
#define FAST 1e11
#define AS_COMPUTING 2e7
#define SLOW 1e4

typedef struct
{
  const char *name;
  EbbCheckpointOptions *(*make_options) (void); /* NULL: blocks aren't checkpointed */
  gboolean moves;                               /* what blocks keep, to the store */
} Strategy;

static const Strategy strategies[] = {
  { "none", NULL, FALSE },
  { "selective", ebb_checkpoint_options_new_selective, FALSE },
  { "full", ebb_checkpoint_options_new, FALSE },
  { "none, moved", NULL, TRUE },
  { "selective, moved", ebb_checkpoint_options_new_selective, TRUE },
  { "full, moved", ebb_checkpoint_options_new, TRUE },
};

/* Kernels have the figures of fixed rates. @rate: of copies to the host, or to the disk, where those to the host are
 * fast. */
static void
write_costs (double rate,
             gboolean is_disk)
{
  g_autoptr (EbbCostTable) costs = NULL;

  g_remove (g_getenv ("EBB_COST_FILE"));
  costs = ebb_cost_table_new (test_device ());
  costs->host_seconds = 1e-6;
  costs->host_rates = is_disk ? (EbbCostRates){ FAST, FAST } : (EbbCostRates){ rate, rate };
  costs->disk_rates = (EbbCostRates){ rate, rate };
  ebb_cost_file_save (costs);
}

static void
init (TestPlanRun *self)
{
  BenchSettings settings = { .layers = 6, .width = 64, .heads = 4, .vocab = 64, .batch = 4, .context = 64 };

  settings.dropout = 0.1;
  settings.device = test_device ();
  test_plan_run_init (self, &settings);
}

/* -- strategies ---------------------------------------------------------------------------------------------------- */

static void
wrap (EbbModule *block,
      EbbCheckpointOptions *options,
      EbbSavedTensorHooks *store)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) wrapped = NULL;

  if (options != NULL)
    wrapped = ebb_checkpoint_wrapper (block, options, &error);
  else if (store != NULL)
    wrapped = ebb_offload_wrapper (block, store, &error);
  g_assert_no_error (error);
}

static void
unwrap (EbbModule *block)
{
  if (ebb_checkpoint_is_wrapped (block))
    ebb_checkpoint_unwrap (block);
  if (ebb_offload_is_wrapped (block))
    ebb_offload_unwrap (block);
}

typedef struct
{
  guint64 peak;
  double seconds; /* of recomputes and of waits for copies */
} Outcome;

/* While the forward goes on, about as much waits to be written as staging memory holds, and no more, if nothing of it
 * is freed before backward. */
static void
check_staging (const EbbProbeStep *step)
{
  g_autoptr (GHashTable) writes = g_hash_table_new (g_direct_hash, g_direct_equal);
  guint64 n_bytes = 0;

  for (guint i = 0; i < step->copies->len; i++)
    {
      const EbbProbeCopy *copy = &g_array_index (step->copies, EbbProbeCopy, i);
      gpointer size;

      if (copy->part != EBB_PROBE_FORWARD)
        continue;
      if (copy->event.kind == EBB_COPY_TO_DISK)
        {
          g_hash_table_insert (writes, GSIZE_TO_POINTER (copy->event.number), GSIZE_TO_POINTER (copy->event.n_bytes));
          n_bytes += copy->event.n_bytes;
        }
      else if (copy->event.kind == EBB_COPY_AWAITED
               && g_hash_table_steal_extended (writes, GSIZE_TO_POINTER (copy->event.number), NULL, &size))
        n_bytes -= GPOINTER_TO_SIZE (size);
      g_assert_cmpuint (n_bytes, <=, 2 * STAGING);
    }
}

static Outcome
try_strategy (EbbPlanChoices *choices,
              const Strategy *strategy)
{
  EbbSavedTensorHooks *store = strategy->moves ? choices->store : NULL;
  g_autoptr (EbbCheckpointOptions) options = strategy->make_options != NULL ? strategy->make_options () : NULL;
  g_autoptr (EbbProbeStep) ran = NULL;
  g_autoptr (GError) error = NULL;
  Outcome outcome = { 0 };

  if (options != NULL)
    ebb_checkpoint_options_set_store (options, store);
  for (guint i = 0; i < choices->blocks->len; i++)
    wrap (g_array_index (choices->blocks, EbbPlanBlock, i).module, options, store);
  ran = ebb_probe_run (choices->probe, &error);
  g_assert_no_error (error);
  ebb_probe_price (choices->probe, ran);
  for (guint i = 0; i < choices->blocks->len; i++)
    unwrap (g_array_index (choices->blocks, EbbPlanBlock, i).module);
  outcome.peak = ran->peak;
  for (guint i = 0; i < ran->n_stages; i++)
    outcome.seconds += ran->stages[i].seconds[EBB_PROBE_RECOMPUTE] + ran->stages[i].waited;
  if (options == NULL)
    check_staging (ran);
  return outcome;
}

static void
try_all (TestPlanRun *run,
         Outcome *outcomes)
{
  g_autoptr (GError) error = NULL;
  const EbbPlanRequest request = { run->training->model, test_device (), run->store, .step = test_plan_run_step,
                                   .user_data = run };
  g_autoptr (EbbPlanChoices) choices = ebb_plan_choices_new (&request, 0, 0, &error);

  g_assert_no_error (error);
  for (guint i = 0; i < G_N_ELEMENTS (strategies); i++)
    {
      outcomes[i] = try_strategy (choices, &strategies[i]);
      g_test_message ("%s: %" G_GUINT64_FORMAT " bytes, %g s more", strategies[i].name, outcomes[i].peak,
                      outcomes[i].seconds);
    }
}

/* -- plans beside them --------------------------------------------------------------------------------------------- */

static void
check_budget (TestPlanRun *run,
              const Outcome *outcomes,
              guint64 budget)
{
  g_autoptr (EbbMemoryPlan) plan = test_plan_run_plan (run, budget);

  g_test_message ("budget %" G_GUINT64_FORMAT ": %" G_GUINT64_FORMAT " bytes, %g s more", budget,
                  plan->predicted_peak_bytes, plan->seconds);
  g_assert_cmpuint (plan->predicted_peak_bytes, <=, budget);
  for (guint i = 0; i < G_N_ELEMENTS (strategies); i++)
    if (outcomes[i].peak <= budget)
      g_assert_cmpfloat (plan->seconds, <=, outcomes[i].seconds * (1 + 1e-9));
}

/* Their own peaks are the budgets at which they are hardest to beat. */
static void
check_rate (double rate,
            gboolean is_disk)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (GError) error = NULL;
  Outcome outcomes[G_N_ELEMENTS (strategies)];

  g_test_message ("copies of %g bytes a second", rate);
  write_costs (rate, is_disk);
  init (&run);
  run.store = is_disk ? ebb_disk_store_new (NULL, &error) : ebb_host_store_new ();
  g_assert_no_error (error);
  if (is_disk)
    g_object_set (run.store, "staging-limit", (guint64) STAGING, NULL);
  try_all (&run, outcomes);
  for (guint i = 0; i < G_N_ELEMENTS (strategies); i++)
    check_budget (&run, outcomes, outcomes[i].peak);
}

static void
check_rates (gconstpointer is_disk)
{
  const double rates[] = { FAST, AS_COMPUTING, SLOW };

  if (!GPOINTER_TO_INT (is_disk) && test_device ()->backend->host_memory)
    {
      g_test_skip ("host memory is the device's");
      return;
    }
  for (guint i = 0; i < G_N_ELEMENTS (rates); i++)
    check_rate (rates[i], GPOINTER_TO_INT (is_disk));
}

int
main (int argc,
      char **argv)
{
  g_autofree char *folder = NULL, *file = NULL;
  int status;

  test_init (&argc, &argv);
  folder = g_dir_make_tmp ("ebb-strategies-XXXXXX", NULL);
  file = g_build_filename (folder, "costs", NULL);
  g_setenv ("EBB_COST_FILE", file, TRUE);
  g_test_add_data_func ("/plan/never-worse-than-none-selective-full-each-with/host", GINT_TO_POINTER (FALSE),
                        check_rates);
  g_test_add_data_func ("/plan/never-worse-than-none-selective-full-each-with/disk", GINT_TO_POINTER (TRUE),
                        check_rates);
  status = g_test_run ();
  g_remove (file);
  g_rmdir (folder);
  return status;
}
