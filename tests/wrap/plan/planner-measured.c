/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: one-thread */
/* Plans by real steps, for models that read values: the steps are the first ones of the training, bit for bit, and the
 * plan keeps its budget. */
#include "support/bench-training.h"
#include "support/device.h"
#include "support/tensors.h"

#define N_LAYERS 6

typedef struct
{
  BenchTraining *training;
  GArray *losses; /* double */
} Run;

static gboolean
read_result (EbbModule *module,
             EbbArgs *args,
             EbbArgs *result,
             gpointer user_data,
             GError **error)
{
  g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (result, 0);
  g_autoptr (EbbTensor) sum = ebb_sum (tensor, NULL, 0, FALSE, error);
  g_autoptr (EbbTensor) host = sum != NULL ? ebb_to_device (sum, ebb_device_get_cpu (), error) : NULL;
  double value;

  return host != NULL && ebb_tensor_get_item (host, &value, error);
}

static void
run_init (Run *self,
          gboolean reads)
{
  const BenchSettings settings = { .layers = N_LAYERS,
                                   .width = 16,
                                   .heads = 2,
                                   .vocab = 50,
                                   .dropout = 0.1,
                                   .batch = 4,
                                   .context = 32,
                                   .device = test_device () };
  g_autoptr (EbbModule) h = NULL;
  g_autoptr (EbbModule) block = NULL;

  ebb_manual_seed (7);
  *self =
      (Run){ .training = bench_training_new (&settings, NULL), .losses = g_array_new (FALSE, FALSE, sizeof (double)) };
  g_assert_nonnull (self->training);
  h = ebb_module_get_child (self->training->model, "h");
  block = ebb_module_list_get (EBB_MODULE_LIST (h), 1);
  if (reads)
    ebb_module_add_forward_hook (block, read_result, NULL, NULL);
}

static void
run_clear (Run *self)
{
  bench_training_free (self->training);
  g_array_unref (self->losses);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Run, run_clear)

static gboolean
step (EbbModule *model,
      gpointer user_data,
      GError **error)
{
  Run *self = user_data;
  double seconds[BENCH_N_PARTS], loss;

  if (!bench_training_step (self->training, seconds, &loss, error))
    return FALSE;
  g_array_append_val (self->losses, loss);
  return TRUE;
}

static void
test_planned_by_real_steps (void)
{
  g_auto (Run) run = { 0 };
  g_auto (Run) plain = { 0 };
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;
  g_autoptr (GError) error = NULL;
  guint64 least, unplanned, predicted;

  run_init (&run, TRUE);
  g_assert_null (ebb_memory_plan_new (run.training->model, test_device (), NULL, step, &run, G_MAXUINT64, &error));
  test_assert_error (error, EBB_ERROR_DRY_RUN, "h.1: the values of the f32 tensor [] are read");
  g_clear_error (&error);
  g_assert_cmpuint (run.losses->len, ==, 0);
  ebb_manual_seed (8);
  plan = ebb_memory_plan_new_measured (run.training->model, test_device (), step, &run, G_MAXUINT64, &error);
  g_assert_no_error (error);
  g_object_get (plan, "least-bytes", &least, "unplanned-peak-bytes", &unplanned, NULL);
  g_assert_cmpuint (least, <, unplanned);
  g_clear_object (&plan);
  plan =
      ebb_memory_plan_new_measured (run.training->model, test_device (), step, &run, (least + unplanned) / 2, &error);
  g_assert_no_error (error);
  g_object_get (plan, "predicted-peak-bytes", &predicted, NULL);
  g_assert_cmpuint (predicted, <=, (least + unplanned) / 2);
  g_assert_true (ebb_memory_plan_apply (plan, &error));
  for (guint i = 0; i < 2; i++)
    {
      ebb_memory_reset_peaks (test_device ());
      g_assert_true (step (run.training->model, &run, &error));
    }
  stats = ebb_memory_get_stats (test_device ());
  g_assert_cmpuint (ebb_memory_stats_get_peak_total (stats), ==, predicted);

  run_init (&plain, FALSE);
  ebb_manual_seed (8);
  while (plain.losses->len < run.losses->len)
    g_assert_true (step (plain.training->model, &plain, &error));
  g_assert_cmpmem (plain.losses->data, plain.losses->len * sizeof (double), run.losses->data,
                   run.losses->len * sizeof (double));
}

static gboolean
step_of_fewer_launches (EbbModule *model,
                        gpointer user_data,
                        GError **error)
{
  Run *self = user_data;

  ebb_module_set_training (model, self->losses->len < 2);
  return step (model, user_data, error);
}

static void
test_steps_that_differ (void)
{
  g_auto (Run) run = { 0 };
  g_autoptr (GError) error = NULL;

  run_init (&run, TRUE);
  g_assert_null (ebb_memory_plan_new_measured (run.training->model, test_device (), step_of_fewer_launches, &run,
                                               G_MAXUINT64, &error));
  test_assert_error (error, EBB_ERROR_STATE, "the step isn't the same twice", "op ");
}

static gboolean
step_without_a_reason (EbbModule *model,
                       gpointer user_data,
                       GError **error)
{
  return FALSE;
}

static gboolean
step_without_backward (EbbModule *model,
                       gpointer user_data,
                       GError **error)
{
  BenchTraining *training = ((Run *) user_data)->training;
  g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (model), training->tokens, training->targets, error);

  return loss != NULL && ebb_optimizer_step (training->optimizer, error);
}

static void
test_bad_input (void)
{
  EbbDevice *cpu = ebb_device_get_cpu ();
  EbbDevice *other = test_device () == cpu ? ebb_device_get ("sim", NULL) : cpu;
  g_auto (Run) run = { 0 };
  g_autoptr (GError) error = NULL;

  run_init (&run, TRUE);
  g_assert_null (ebb_memory_plan_new_measured (run.training->model, test_device (), step_without_a_reason, NULL,
                                               G_MAXUINT64, &error));
  test_assert_error (error, EBB_ERROR_CALLBACK, "the step failed without saying why", "");
  g_clear_error (&error);
  g_assert_null (ebb_memory_plan_new_measured (run.training->model, test_device (), step_without_backward, &run,
                                               G_MAXUINT64, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "the step ran no backward pass",
                     "call backward () on the loss");
  g_clear_error (&error);
  g_assert_null (ebb_memory_plan_new_measured (run.training->model, other, step, &run, G_MAXUINT64, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "the model has parameters on", "name the device");
  g_assert_cmpuint (run.losses->len, ==, 0);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/planner-measured/planned-by-real-steps", test_planned_by_real_steps);
  g_test_add_func ("/planner-measured/steps-that-differ", test_steps_that_differ);
  g_test_add_func ("/planner-measured/bad-input", test_bad_input);
  return g_test_run ();
}
