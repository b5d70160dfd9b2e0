/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers slow one-thread long-sim */
/* Plans of the models that people train, for four budgets each (twelve with EBB_LONG) from the least to what a step
 * takes without a plan: at full size by dry steps, and at a small size by real ones. Seconds are those of fixed rates.
 */
#include "support/bench-training.h"
#include "support/device.h"
#include "support/tensors.h"
#include "wrap/plan/memory-plan-private.h"

#include <string.h>

#define VOCAB 200 /* tokens that all of them know */

typedef struct
{
  const char *name;
  BenchSettings full, small;
} Shape;

static const Shape shapes[] = {
  { "gpt2-124m",
    { .preset = "gpt2", .batch = 8, .context = 512 },
    { .preset = "gpt2", .layers = 4, .width = 64, .heads = 4, .vocab = VOCAB, .batch = 4, .context = 32 } },
  { "bert-large",
    { .preset = "bert-large", .batch = 32, .context = 128 },
    { .preset = "bert-large", .layers = 4, .width = 64, .heads = 4, .vocab = VOCAB, .batch = 4, .context = 32 } },
  { "llama-100m",
    { .preset = "llama-1b", .layers = 12, .width = 768, .heads = 12, .vocab = 32000, .batch = 8, .context = 512 },
    { .preset = "llama-1b", .layers = 4, .width = 64, .heads = 4, .vocab = VOCAB, .batch = 4, .context = 32 } },
};

typedef struct
{
  const Shape *shape;
  double dropout;
  gboolean bf16;
} Case;

static gboolean
run_step (EbbModule *model, gpointer user_data, GError **error)
{
  double seconds[BENCH_N_PARTS];

  return bench_training_step (user_data, seconds, NULL, error);
}

/* Made outside of dry runs, in which it would have no values: a model may count its targets. */
typedef struct
{
  EbbTensor *tokens, *targets;
} Batch;

static Batch
make_batch (const BenchSettings *settings)
{
  return (Batch){ test_tokens (11, VOCAB, settings->batch, settings->context, -1),
                  test_tokens (12, VOCAB, settings->batch, settings->context, -1) };
}

static void
batch_clear (Batch *self)
{
  ebb_tensor_unref (self->tokens);
  ebb_tensor_unref (self->targets);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Batch, batch_clear)

static BenchTraining *
make_training (const BenchSettings *settings, const Case *item, const Batch *batch)
{
  g_autoptr (GError) error = NULL;
  BenchSettings wanted = *settings;
  BenchTraining *training;

  wanted.dropout = item->dropout;
  wanted.bf16 = item->bf16;
  wanted.device = test_device ();
  training = bench_training_new (&wanted, &error);
  g_assert_no_error (error);
  ebb_tensor_unref (training->tokens);
  ebb_tensor_unref (training->targets);
  training->tokens = ebb_tensor_ref (batch->tokens);
  training->targets = ebb_tensor_ref (batch->targets);
  return training;
}

static EbbMemoryPlan *
make_plan (BenchTraining *training, guint64 budget)
{
  g_autoptr (GError) error = NULL;
  EbbMemoryPlan *plan =
      ebb_memory_plan_make (training->model, training->settings.device, NULL, run_step, training, budget, 0, &error);

  g_assert_no_error (error);
  return plan;
}

static guint64
get_budget (EbbMemoryPlan *most, guint i, guint n)
{
  return most->least_bytes + (most->unplanned_peak_bytes - most->least_bytes) * i / (n - 1);
}

/* -- by dry steps -------------------------------------------------------------------------------------------------- */

static guint64
predict (BenchTraining *training, EbbMemoryPlan *plan)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbMemoryEstimate) estimate = NULL;

  ebb_memory_plan_apply (plan, &error);
  g_assert_no_error (error);
  estimate = ebb_memory_estimate_new (training->model, training->settings.device, run_step, training, &error);
  g_assert_no_error (error);
  ebb_memory_plan_unapply (plan);
  return ebb_memory_estimate_get_peak_total (estimate);
}

static void
keeps_budgets_at_full_size (gconstpointer data)
{
  const Case *item = data;
  g_auto (Batch) batch = make_batch (&item->shape->full);
  const guint n = g_getenv ("EBB_LONG") != NULL ? 12 : 4;
  guint64 peak = 0;

  ebb_push_dry_run ();
  {
    g_autoptr (BenchTraining) training = make_training (&item->shape->full, item, &batch);
    g_autoptr (EbbMemoryPlan) most = make_plan (training, G_MAXUINT64);

    g_assert_cmpuint (most->predicted_peak_bytes, ==, most->unplanned_peak_bytes);
    for (guint i = 0; i < n; i++)
      {
        const guint64 budget = get_budget (most, i, n);
        g_autoptr (EbbMemoryPlan) plan = make_plan (training, budget);

        g_test_message ("budget %.1f MiB: %.1f MiB, %.3f s more", (double) budget / (1 << 20),
                        (double) plan->predicted_peak_bytes / (1 << 20), plan->seconds);
        g_assert_cmpuint (plan->least_bytes, ==, most->least_bytes);
        g_assert_cmpuint (plan->predicted_peak_bytes, <=, budget);
        g_assert_cmpuint (plan->predicted_peak_bytes, >=, peak);
        g_assert_cmpuint (predict (training, plan), ==, plan->predicted_peak_bytes);
        peak = plan->predicted_peak_bytes;
      }
  }
  ebb_pop_dry_run ();
}

/* -- by real steps ------------------------------------------------------------------------------------------------- */

typedef struct
{
  double losses[3];
  guint64 peak;
} Run;

static EbbMemoryStats *
get_stats (void)
{
  return ebb_memory_get_stats (test_device ());
}

/* Three steps; moments are made in the first one. */
static Run
train (const Case *item, const Batch *batch, EbbMemoryPlan *plan)
{
  g_autoptr (EbbMemoryStats) before = get_stats (), after = NULL;
  g_autoptr (BenchTraining) training = make_training (&item->shape->small, item, batch);
  g_autoptr (EbbMemoryPlan) same = NULL;
  g_autoptr (GError) error = NULL;
  Run run;

  if (plan != NULL)
    {
      g_autofree char *json = ebb_memory_plan_to_json (plan);

      same = ebb_memory_plan_new_from_json (training->model, json, &error);
      g_assert_no_error (error);
      g_assert_true (ebb_memory_plan_apply (same, &error));
    }
  for (guint i = 0; i < G_N_ELEMENTS (run.losses); i++)
    {
      double seconds[BENCH_N_PARTS];

      if (i > 0)
        ebb_memory_reset_peaks (test_device ());
      bench_training_step (training, seconds, &run.losses[i], &error);
      g_assert_no_error (error);
    }
  after = get_stats ();
  run.peak = ebb_memory_stats_get_peak_total (after) - ebb_memory_stats_get_total (before);
  return run;
}

/* At the least budget and half-way from it to the step without a plan. */
static void
keeps_budgets_and_bits (gconstpointer data)
{
  const Case *item = data;
  g_auto (Batch) batch = make_batch (&item->shape->small);
  g_autoptr (EbbMemoryPlan) most = NULL, half = NULL, least = NULL;
  Run plain, planned;

  ebb_push_dry_run ();
  {
    g_autoptr (BenchTraining) training = make_training (&item->shape->small, item, &batch);

    most = make_plan (training, G_MAXUINT64);
    half = make_plan (training, (most->least_bytes + most->unplanned_peak_bytes) / 2);
    least = make_plan (training, most->least_bytes);
  }
  ebb_pop_dry_run ();
  plain = train (item, &batch, NULL);
  g_assert_cmpuint (plain.peak, ==, most->unplanned_peak_bytes);
  planned = train (item, &batch, half);
  g_assert_cmpuint (planned.peak, ==, half->predicted_peak_bytes);
  g_assert_cmpuint (planned.peak, <=, half->budget_bytes);
  g_assert_cmpmem (planned.losses, sizeof planned.losses, plain.losses, sizeof plain.losses);
  planned = train (item, &batch, least);
  g_assert_cmpuint (planned.peak, ==, most->least_bytes);
  g_assert_cmpmem (planned.losses, sizeof planned.losses, plain.losses, sizeof plain.losses);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  for (guint i = 0; i < G_N_ELEMENTS (shapes); i++)
    for (guint j = 0; j < 4; j++)
      {
        static Case cases[G_N_ELEMENTS (shapes)][4];
        Case *item = &cases[i][j];
        g_autofree char *end = NULL, *full = NULL, *small = NULL;

        *item = (Case){ &shapes[i], j % 2 == 0 ? 0 : 0.1, j / 2 == 1 };
        end = g_strdup_printf ("%s/%s%s", item->shape->name, item->bf16 ? "bf16" : "f32",
                               item->dropout > 0 ? "/dropout" : "");
        full = g_strconcat ("/plan/planner-grid/dry/", end, NULL);
        small = g_strconcat ("/plan/planner-grid/measured/", end, NULL);
        g_test_add_data_func (full, item, keeps_budgets_at_full_size);
        if (!test_device_is_slow ())
          g_test_add_data_func (small, item, keeps_budgets_and_bits);
      }
  return g_test_run ();
}
