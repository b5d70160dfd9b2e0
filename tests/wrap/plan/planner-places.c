/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only one-thread */
/* The planner moves what blocks keep to the host or to a disk where copies are hidden, and recomputes where they are
 * not. */
#include "support/device.h"
#include "support/plan-runs.h"
#include "tensor/profile/cost-private.h"
#include "wrap/plan/memory-plan-private.h"

#include <glib/gstdio.h>
#include <string.h>

#define HIGH 1e11
#define MIDDLE 2e7
#define LOW 1e4
#define STAGING (256 * 1024)

/* @to_disk: its plans may move to a disk; else to the host, where that isn't the device. */
static void
init (TestPlanRun *self, EbbDevice *device, gboolean to_disk)
{
  g_autoptr (GError) error = NULL;
  BenchSettings
      settings = { .layers = 8, .width = 64, .heads = 4, .vocab = 64, .batch = 4, .context = 64, .dropout = 0.1 };

  settings.device = device;
  test_plan_run_init (self, &settings);
  if (!to_disk)
    return;
  self->store = ebb_disk_store_new (NULL, &error);
  g_assert_no_error (error);
  g_object_set (self->store, "staging-limit", (guint64) STAGING, NULL);
}

/* Costs with kernels of no figure and copies of @rate bytes a second. */
static EbbMemoryPlan *
plan_for (TestPlanRun *self, double rate, guint64 budget)
{
  g_autoptr (EbbCostTable) costs = NULL;

  g_remove (g_getenv ("EBB_COST_FILE"));
  costs = ebb_cost_table_new (self->training->settings.device);
  costs->host_seconds = 1e-6;
  costs->host_rates = self->store != NULL ? (EbbCostRates){ HIGH, HIGH } : (EbbCostRates){ rate, rate };
  costs->disk_rates = (EbbCostRates){ rate, rate };
  ebb_cost_file_save (costs);
  return test_plan_run_plan (self, budget);
}

/* A plan without its model, which later plans would count. */
typedef struct
{
  guint n_moved, n_recomputed;
  guint64 predicted_peak_bytes, least_bytes;
  double seconds;
} Counts;

static Counts
count (EbbMemoryPlan *plan)
{
  Counts counts = { .predicted_peak_bytes = plan->predicted_peak_bytes,
                    .least_bytes = plan->least_bytes,
                    .seconds = plan->seconds };

  for (guint i = 0; i < plan->rows->len; i++)
    {
      const EbbPlanRow *row = &g_array_index (plan->rows, EbbPlanRow, i);

      counts.n_moved += row->place != EBB_MEMORY_PLACE_DEVICE;
      counts.n_recomputed += row->is_checkpoint;
    }
  return counts;
}

typedef struct
{
  gboolean to_disk;
  guint64 most, least; /* bytes without copies */
  double recompute;    /* seconds of the slowest plan without copies */
  double losses[3];
} Plain;

static Plain
train_plain (EbbDevice *device, gboolean to_disk)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) most = NULL, least = NULL;
  Plain plain = { to_disk };

  init (&run, device, to_disk);
  most = plan_for (&run, 0, G_MAXUINT64);
  least = plan_for (&run, 0, most->least_bytes);
  g_assert_cmpuint (count (least).n_moved, ==, 0);
  plain.most = most->unplanned_peak_bytes;
  plain.least = most->least_bytes;
  plain.recompute = least->seconds;
  g_assert_cmpuint (test_plan_run_train (&run), ==, plain.most);
  memcpy (plain.losses, run.losses, sizeof plain.losses);
  return plain;
}

/* Plans within @budget and trains by the plan. */
static Counts
train_planned (EbbDevice *device, const Plain *plain, double rate, guint64 budget)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autofree char *text = NULL;
  g_autoptr (EbbMemoryPlan) plan = NULL;

  init (&run, device, plain->to_disk);
  plan = plan_for (&run, rate, budget);
  text = ebb_memory_plan_to_string (plan);
  g_test_message ("%.3g bytes a second, least %" G_GUINT64_FORMAT ", %.6f s more of %.6f\n%s", rate,
                  plan->least_bytes, plan->seconds, plan->step_seconds, text);
  g_assert_cmpuint (plan->predicted_peak_bytes, <=, budget);
  g_assert_true (ebb_memory_plan_apply (plan, NULL));
  g_assert_cmpuint (test_plan_run_train (&run), ==, plan->predicted_peak_bytes);
  g_assert_cmpmem (run.losses, sizeof run.losses, plain->losses, sizeof plain->losses);
  ebb_memory_plan_unapply (plan);
  return count (plan);
}

/* A device reads its settings when it is opened, so each bandwidth has a device of its own. */
static EbbDevice *
open_sim (const char *name, double rate)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *text = g_strdup_printf ("%.0f", rate);
  EbbDevice *device;

  g_setenv ("EBB_SIM_BANDWIDTH", text, TRUE);
  device = ebb_device_get (name, &error);
  g_assert_no_error (error);
  g_unsetenv ("EBB_SIM_BANDWIDTH");
  return device;
}

static void
test_bandwidths (void)
{
  const Plain plain = train_plain (open_sim ("sim:1", HIGH), FALSE);
  const guint64 budget = (plain.least + plain.most) / 2;
  const Counts high = train_planned (ebb_device_get ("sim:1", NULL), &plain, HIGH, budget);
  const Counts middle = train_planned (open_sim ("sim:2", MIDDLE), &plain, MIDDLE, budget);
  const Counts low = train_planned (ebb_device_get ("sim:1", NULL), &plain, LOW, budget);

  g_assert_cmpuint (high.n_moved, >, 0);
  g_assert_cmpuint (high.n_recomputed, ==, 0);
  g_assert_cmpuint (middle.n_moved, >, 0);
  g_assert_cmpuint (middle.n_recomputed, >, 0);
  g_assert_cmpuint (low.n_moved, ==, 0);
  g_assert_cmpfloat (high.seconds, <, middle.seconds);
  g_assert_cmpfloat (middle.seconds, <, low.seconds);
  g_assert_cmpfloat (low.seconds, <=, plain.recompute);
}

/* Below the least of plans that recompute alone. */
static void
test_least (void)
{
  EbbDevice *device = open_sim ("sim:1", HIGH);
  const Plain plain = train_plain (device, FALSE);
  const Counts most = train_planned (device, &plain, HIGH, plain.most);
  Counts least;

  g_assert_cmpuint (most.n_moved, ==, 0);
  g_assert_cmpuint (most.least_bytes, <, plain.least);
  least = train_planned (device, &plain, HIGH, most.least_bytes);
  g_assert_cmpuint (least.predicted_peak_bytes, ==, most.least_bytes);
  g_assert_cmpuint (least.n_moved, >, 0);
}

/* By a fixed table of costs. */
static void
test_never_worse (void)
{
  static const double rates[] = { HIGH, 1e8, MIDDLE, LOW };
  EbbDevice *device = open_sim ("sim:1", HIGH);
  const Plain plain = train_plain (device, FALSE);

  for (guint r = 0; r < G_N_ELEMENTS (rates); r++)
    for (guint i = 0; i < 3; i++)
      {
        const guint64 budget = plain.least + (plain.most - plain.least) * i / 3;
        g_auto (TestPlanRun) run = { 0 };
        g_autoptr (EbbMemoryPlan) without = NULL, with = NULL;

        init (&run, device, FALSE);
        without = plan_for (&run, 0, budget);
        with = plan_for (&run, rates[r], budget);
        g_test_message ("%.3g bytes a second, %" G_GUINT64_FORMAT ": %u moved, %u recomputed %.6f s and %.6f s without",
                        rates[r], budget, count (with).n_moved, count (with).n_recomputed, with->seconds,
                        without->seconds);
        g_assert_cmpuint (with->predicted_peak_bytes, <=, budget);
        g_assert_cmpfloat (with->seconds, <=, without->seconds);
      }
}

/* Real steps take the bytes that were planned, though a thread writes and reads meanwhile. */
static void
test_disk (gconstpointer name)
{
  EbbDevice *device = ebb_device_get (name, NULL);
  const Plain plain = train_plain (device, TRUE);
  const guint64 budget = (plain.least + plain.most) / 2;
  const Counts high = train_planned (device, &plain, HIGH, budget);
  const Counts middle = train_planned (device, &plain, MIDDLE, budget);
  const Counts low = train_planned (device, &plain, LOW, budget);
  Counts least;

  g_assert_cmpuint (high.n_moved, >, 0);
  g_assert_cmpuint (high.n_recomputed, ==, 0);
  g_assert_cmpuint (low.n_moved, ==, 0);
  g_assert_cmpfloat (high.seconds, <, middle.seconds);
  g_assert_cmpfloat (middle.seconds, <=, low.seconds);
  g_assert_cmpuint (high.least_bytes, <, plain.least);
  least = train_planned (device, &plain, HIGH, high.least_bytes);
  g_assert_cmpuint (least.predicted_peak_bytes, ==, high.least_bytes);
}

static void
test_refused_store (void)
{
  g_auto (TestPlanRun) run = { 0 };
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (GError) error = NULL;

  init (&run, ebb_device_get_cpu (), FALSE);
  run.store = ebb_keep_store_new ();
  plan = test_plan_run_try (&run, G_MAXUINT64, &error);
  g_assert_null (plan);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_cmpstr (error->message, ==,
                   "a plan moves what blocks keep to a host store or a disk store, not to an EbbKeepStore");
}

/* Measured rates are those of the device, and are kept. */
static void
test_rates (void)
{
  g_autoptr (EbbCostTable) costs = NULL, again = NULL;
  g_autoptr (GError) error = NULL;

  g_remove (g_getenv ("EBB_COST_FILE"));
  costs = ebb_cost_table_new (open_sim ("sim:2", MIDDLE));
  costs->host_seconds = 1e-6;
  g_assert_cmpfloat (costs->host_rates.out, ==, 0);
  g_assert_true (ebb_cost_table_measure_host (costs, 1 << 20, &error));
  g_assert_no_error (error);
  g_assert_cmpfloat (costs->host_rates.out, >, 0);
  g_assert_cmpfloat (costs->host_rates.out, <=, MIDDLE * 1.001);
  again = ebb_cost_table_new (costs->device);
  g_assert_cmpfloat_with_epsilon (again->host_rates.out, costs->host_rates.out, 1e-6 * MIDDLE);
  g_assert_cmpfloat_with_epsilon (again->host_rates.in, costs->host_rates.in, 1e-6 * MIDDLE);
}

static void
test_rates_of_a_folder (void)
{
  g_autoptr (EbbCostTable) costs = NULL, again = NULL;
  g_autofree char *folder = g_dir_make_tmp ("ebb a\nfolder-XXXXXX", NULL);
  g_autoptr (GError) error = NULL;

  g_remove (g_getenv ("EBB_COST_FILE"));
  costs = ebb_cost_table_new (ebb_device_get_cpu ());
  costs->host_seconds = 1e-6;
  g_assert_true (ebb_cost_table_measure_folder (costs, folder, &error));
  g_assert_no_error (error);
  g_assert_cmpfloat (costs->disk_rates.out, >, 0);
  g_assert_cmpfloat (costs->disk_rates.in, >, 0);
  again = ebb_cost_table_new (costs->device);
  g_assert_cmpstr (again->disk_folder, ==, folder);
  again->disk_rates = costs->disk_rates = (EbbCostRates){ LOW, LOW };
  g_assert_true (ebb_cost_table_measure_folder (again, folder, &error));
  g_assert_cmpfloat (again->disk_rates.out, ==, LOW); /* not measured once more */
  g_assert_true (ebb_cost_table_measure_folder (again, g_get_tmp_dir (), &error));
  g_assert_cmpfloat (again->disk_rates.out, >, LOW);
  g_rmdir (folder);
  g_assert_false (ebb_cost_table_measure_folder (costs, "/no/such/folder", &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
}

/* A device may be opened by the same name with another bandwidth: by another process, since this one keeps it open. */
static void
test_rates_of_another_bandwidth (void)
{
  g_autoptr (EbbCostTable) costs = NULL, other = NULL, same = NULL;
  EbbDevice *device = open_sim ("sim:1", HIGH);
  EbbDevice reopened = *open_sim ("sim:2", MIDDLE);

  reopened.name = device->name;
  g_remove (g_getenv ("EBB_COST_FILE"));
  costs = ebb_cost_table_new (device);
  costs->host_seconds = 1e-6;
  costs->host_rates = (EbbCostRates){ HIGH, HIGH };
  ebb_cost_file_save (costs);
  other = ebb_cost_table_new (&reopened);
  g_assert_cmpfloat (other->host_rates.out, ==, 0);
  same = ebb_cost_table_new (device);
  g_assert_cmpfloat (same->host_rates.out, ==, HIGH);
}

int
main (int argc, char **argv)
{
  g_autofree char *folder = NULL, *file = NULL;
  int status;

  test_init (&argc, &argv);
  folder = g_dir_make_tmp ("ebb-places-XXXXXX", NULL);
  file = g_build_filename (folder, "costs", NULL);
  g_setenv ("EBB_COST_FILE", file, TRUE);
  g_test_add_func ("/plan/planner-places/moves-what-the-bandwidth-hides", test_bandwidths);
  g_test_add_func ("/plan/planner-places/least-is-below-that-of-recompute", test_least);
  g_test_add_func ("/plan/planner-places/never-slower-than-without-copies", test_never_worse);
  g_test_add_data_func ("/plan/planner-places/disk/cpu", "cpu", test_disk);
  g_test_add_data_func ("/plan/planner-places/disk/sim", "sim:1", test_disk);
  g_test_add_func ("/plan/planner-places/refused-store", test_refused_store);
  g_test_add_func ("/plan/planner-places/rates-are-measured-once", test_rates);
  g_test_add_func ("/plan/planner-places/rates-of-a-folder", test_rates_of_a_folder);
  g_test_add_func ("/plan/planner-places/rates-are-not-those-of-another-bandwidth", test_rates_of_another_bandwidth);
  status = g_test_run ();
  g_remove (file);
  g_rmdir (folder);
  return status;
}
