/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
/* The planner: real steps keep the budget and the bits, and take what was predicted. */
#include "support/device.h"
#include "support/tensors.h"
#include "wrap/plan/memory-plan-private.h"

#include <string.h>

typedef struct
{
  EbbModule *gpt;
  EbbOptimizer *optimizer;
  double losses[3];
  guint n_losses;
  gboolean reads;
  guint64 others; /* bytes that are in use without it */
} Training;

static guint64
count_bytes (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (NULL);

  return ebb_memory_stats_get_total (stats);
}

#define VOCAB 200
#define BATCH 4
#define CONTEXT 32

static void
training_init (Training *self, double dropout)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();

  *self = (Training){ .others = count_bytes () };
  config->layers = 6;
  config->width = 64;
  config->heads = 4;
  config->context = CONTEXT;
  config->vocab = VOCAB;
  config->dropout = dropout;
  ebb_manual_seed (7);
  self->gpt = ebb_gpt_new (config, NULL);
  self->optimizer = EBB_OPTIMIZER (ebb_adamw_new (self->gpt, 1e-3, NULL));
}

static void
training_clear (Training *self)
{
  g_clear_object (&self->optimizer);
  g_clear_object (&self->gpt);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Training, training_clear)

static gboolean
step (EbbModule *model, gpointer user_data, GError **error)
{
  Training *self = user_data;
  g_autoptr (EbbTensor) tokens = test_tokens (11, VOCAB, BATCH, CONTEXT, -1);
  g_autoptr (EbbTensor) targets = test_tokens (12, VOCAB, BATCH, CONTEXT, -1);
  g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (model), tokens, targets, error);

  if (loss == NULL || !ebb_tensor_backward (loss, error) || !ebb_optimizer_step (self->optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (self->optimizer);
  return !self->reads || ebb_tensor_get_item (loss, &self->losses[self->n_losses++], error);
}

/* Real steps. Returns the bytes of the second one at most. */
static guint64
train (Training *self)
{
  g_autoptr (EbbMemoryStats) stats = NULL;

  self->reads = TRUE;
  for (guint i = 0; i < 3; i++)
    {
      if (i == 2)
        ebb_memory_reset_peaks (NULL);
      g_assert_true (step (self->gpt, self, NULL));
    }
  stats = ebb_memory_get_stats (NULL);
  return ebb_memory_stats_get_peak_total (stats) - self->others;
}

static EbbMemoryPlan *
plan_for (Training *self, guint64 budget)
{
  g_autoptr (GError) error = NULL;
  EbbMemoryPlan *plan = ebb_memory_plan_make (self->gpt, NULL, step, self, budget, 0, &error);

  g_assert_no_error (error);
  return plan;
}

typedef struct
{
  guint64 predicted, unplanned, least;
  double seconds;
} Figures;

static Figures
look (EbbMemoryPlan *plan)
{
  Figures figures;

  g_object_get (plan, "predicted-peak-bytes", &figures.predicted, "unplanned-peak-bytes", &figures.unplanned,
                "least-bytes", &figures.least, "seconds", &figures.seconds, NULL);
  return figures;
}

static void
check_budgets (double dropout)
{
  enum
  {
    N_BUDGETS = 9
  };
  g_auto (Training) plain = { 0 };
  g_autoptr (EbbMemoryPlan) first = NULL;
  Figures most, before;
  guint64 measured;

  training_init (&plain, dropout);
  first = plan_for (&plain, G_MAXUINT64);
  before = most = look (first);
  g_assert_cmpuint (most.predicted, ==, most.unplanned);
  measured = train (&plain);
  g_assert_cmpuint (measured, ==, most.predicted);
  for (guint i = 0; i <= N_BUDGETS; i++)
    {
      const guint64 budget = most.predicted - (most.predicted - most.least) * i / N_BUDGETS;
      g_auto (Training) planned = { 0 };
      g_autoptr (EbbMemoryPlan) plan = NULL;
      g_autofree char *text = NULL;
      Figures figures;

      training_init (&planned, dropout);
      plan = plan_for (&planned, budget);
      figures = look (plan);
      text = ebb_memory_plan_to_string (plan);
      g_test_message ("budget %" G_GUINT64_FORMAT "\n%s", budget, text);
      g_assert_cmpuint (figures.predicted, <=, budget);
      g_assert_cmpuint (figures.predicted, <=, before.predicted);
      g_assert_cmpfloat (figures.seconds, >=, before.seconds);
      before = figures;
      g_assert_true (ebb_memory_plan_apply (plan, NULL));
      measured = train (&planned);
      g_assert_cmpuint (measured, ==, figures.predicted);
      g_assert_cmpmem (planned.losses, sizeof planned.losses, plain.losses, sizeof plain.losses);
    }
}

static void
test_budgets (void)
{
  check_budgets (0);
}

static void
test_dropout (void)
{
  check_budgets (0.1);
}

static void
test_too_small (void)
{
  g_auto (Training) training = { 0 };
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (GError) error = NULL;

  training_init (&training, 0);
  plan = ebb_memory_plan_make (training.gpt, NULL, step, &training, 100000, 0, &error);
  g_assert_null (plan);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
  g_test_message ("%s", error->message);
  g_assert_true (g_str_has_prefix (error->message,
                                   "a budget of 0.1 MiB is too small: the step needs at least "));
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/plan/planner/budgets-and-bits", test_budgets);
  g_test_add_func ("/plan/planner/with-dropout", test_dropout);
  g_test_add_func ("/plan/planner/too-small-a-budget", test_too_small);
  return g_test_run ();
}
