/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
/* Memory runs out in a step: the training goes on with the same bits and a lower plan, or ends with the reason. */
#include "support/device.h"
#include "support/stores.h"
#include "tensor/backend/backend-private.h"
#include "wrap/plan/memory-plan-private.h"

#include <string.h>

#define VOCAB 256
#define WIDTH 8
#define CONTEXT 16
#define BATCH 6
#define N_BLOCKS 3
#define N_MICRO_BATCHES 2
#define N_STEPS 2

/* -- a driver that fails ------------------------------------------------------------------------------------------- */

static EbbBackend failing;
static gboolean counting;
static guint n_allocations, fails_at;

static void *
alloc_or_fail (int index, gsize size, GError **error)
{
  if (!counting || n_allocations++ != fails_at)
    return ebb_cpu_backend.alloc (index, size, error);
  g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "allocation %u fails", fails_at);
  return NULL;
}

/* -- a training with dropout, running statistics, clipping and two batches a step ---------------------------------- */

typedef struct
{
  EbbModule *model;
  EbbOptimizer *optimizer;
  EbbDataset *dataset;
  EbbTrainingState *state;
  EbbMemoryPlan *plan;
  gboolean in_backward;
  gboolean varies, varies_dry; /* a later step has fewer rows */
  guint n_dry;
  double losses[N_STEPS];
  guint n_steps;
} Training;

static void
append (Training *self, EbbModule *module)
{
  g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (self->model), module, NULL));
  g_object_unref (module);
}

static void
training_init (Training *self, gboolean in_backward)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  static const char text[] = "A line of some length, and another one, and so on until there are enough rows of it.";
  g_autoptr (GBytes) bytes = g_bytes_new_static (text, strlen (text));

  *self = (Training){ .in_backward = in_backward };
  ebb_manual_seed (3);
  self->model = ebb_sequential_new ();
  append (self, ebb_embedding_new (VOCAB, WIDTH, NULL));
  for (guint i = 0; i < N_BLOCKS; i++)
    append (self, ebb_transformer_block_new (WIDTH, 2, 0.1, TRUE, TRUE, NULL));
  append (self, ebb_batch_norm1d_new (CONTEXT, 1e-5, 0.1, NULL));
  append (self, ebb_linear_new (WIDTH, VOCAB, FALSE, NULL));
  self->optimizer = EBB_OPTIMIZER (ebb_adamw_new (self->model, 1e-2, NULL));
  g_object_set (self->optimizer, "step-in-backward", in_backward, NULL);
  self->dataset = EBB_DATASET (ebb_text_dataset_new_from_bytes (bytes, tokenizer, 5, NULL));
  self->state = ebb_training_state_new (self->model, self->optimizer, self->dataset);
}

static void
training_clear (Training *self)
{
  g_clear_object (&self->plan);
  g_clear_object (&self->state);
  g_clear_object (&self->dataset);
  g_clear_object (&self->optimizer);
  g_clear_object (&self->model);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Training, training_clear)

static gboolean
add_gradients (Training *self, gint64 n_rows, double *loss, GError **error)
{
  g_autoptr (EbbTensor) tokens = NULL, targets = NULL, logits = NULL, result = NULL;
  double one = 0;

  if (!ebb_dataset_get_rows (self->dataset, n_rows, CONTEXT, &tokens, &targets, NULL, error))
    return FALSE;
  logits = ebb_module_call1 (self->model, tokens, error);
  result = logits != NULL ? ebb_cross_entropy (logits, targets, error) : NULL;
  if (result == NULL || !ebb_tensor_backward (result, error)
      || (!ebb_is_dry_run () && !ebb_tensor_get_item (result, &one, error)))
    return FALSE;
  *loss += one;
  return TRUE;
}

static gboolean
run (EbbModule *model, gpointer user_data, GError **error)
{
  Training *self = user_data;
  const gboolean is_dry = ebb_is_dry_run ();
  const gboolean is_other = is_dry ? self->varies_dry && self->n_dry++ >= 2 : self->varies && self->n_steps == 1;
  double loss = 0;

  for (guint i = 0; i < (self->in_backward ? 1 : N_MICRO_BATCHES); i++)
    if (!add_gradients (self, is_other ? BATCH - 1 : BATCH, &loss, error))
      return FALSE;
  if (!self->in_backward)
    {
      g_autoptr (EbbTensor) norm = ebb_optimizer_clip_grad_norm (self->optimizer, 1, error);

      if (norm == NULL)
        return FALSE;
    }
  if (!ebb_optimizer_step (self->optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (self->optimizer);
  if (!is_dry)
    self->losses[self->n_steps++] = loss;
  return TRUE;
}

/* One that has lower ones below it. */
static char *
make_plan (gboolean in_backward, guint64 *unplanned)
{
  g_auto (Training) training = { 0 };
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (GError) error = NULL;

  training_init (&training, in_backward);
  plan = ebb_memory_plan_make (training.model, NULL, run, &training, G_MAXINT64, 0, &error);
  g_assert_no_error (error);
  g_assert_nonnull (plan->lower);
  if (unplanned != NULL)
    g_object_get (plan, "predicted-peak-bytes", unplanned, NULL);
  return ebb_memory_plan_to_json (plan);
}

static void
apply (Training *self, const char *json)
{
  g_autoptr (GError) error = NULL;

  self->plan = ebb_memory_plan_new_from_json (self->model, json, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_memory_plan_apply (self->plan, &error));
}

/* All steps, in one of which one allocation fails. FALSE with an error if the training has ended there. */
static gboolean
train (Training *self, guint step, guint allocation, GError **error)
{
  for (guint i = 0; i < N_STEPS; i++)
    {
      gboolean ok;

      n_allocations = 0;
      fails_at = allocation;
      counting = i == step;
      ok = ebb_memory_plan_run_step (self->plan, self->state, run, self, error);
      counting = FALSE;
      if (!ok)
        return FALSE;
    }
  return TRUE;
}

/* Weights, and running statistics. */
static void
assert_same_state (Training *a, Training *b)
{
  g_autoptr (EbbArgs) x = ebb_module_get_state_dict (a->model), y = ebb_module_get_state_dict (b->model);

  g_assert_cmpmem (a->losses, sizeof a->losses, b->losses, sizeof b->losses);
  g_assert_cmpint (ebb_args_find (x, "4.running_mean"), >=, 0);
  for (guint i = 0; i < ebb_args_get_length (x); i++)
    {
      g_autoptr (EbbTensor) one = ebb_args_get_tensor (x, i), other = ebb_args_get_tensor (y, i);

      g_assert_true (ebb_tensor_equal (one, other));
    }
}

static void
each_allocation_of (guint step, gboolean in_backward)
{
  g_auto (Training) plain = { 0 };
  g_autofree char *json = make_plan (in_backward, NULL);
  const guint64 held = test_bytes_in_use ();
  guint n, n_ended = 0;

  failing = ebb_cpu_backend;
  failing.alloc = alloc_or_fail;
  ebb_device_get_cpu ()->backend = &failing;
  training_init (&plain, in_backward);
  apply (&plain, json);
  g_assert_true (train (&plain, step, G_MAXUINT, NULL));
  n = 0;
  for (gboolean failed = TRUE; failed; n++)
    {
      g_auto (Training) training = { 0 };
      g_autoptr (GError) error = NULL;
      guint n_lowered;

      training_init (&training, in_backward);
      apply (&training, json);
      training.plan->n_steps = G_MAXUINT; /* no look at the second step, which takes time */
      if (!train (&training, step, n, &error))
        {
          g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
          g_assert_nonnull (strstr (error->message, "fails; the step can't run again: "));
          g_assert_true (g_str_has_suffix (error->message, "has changed since the mark"));
          g_assert_true (in_backward); /* otherwise nothing changes before all memory is there */
          n_ended++;
          continue;
        }
      g_object_get (training.plan, "n-lowered", &n_lowered, NULL);
      failed = n_lowered > 0;
      assert_same_state (&training, &plain);
    }
  training_clear (&plain);
  ebb_device_get_cpu ()->backend = &ebb_cpu_backend;
  g_test_message ("%u allocations, of which %u end the training", n, n_ended);
  g_assert_cmpuint (n, >, 100);
  g_assert_true ((n_ended > 0) == in_backward);
  g_assert_cmpuint (test_bytes_in_use (), ==, held);
}

static void
test_first_step (void)
{
  each_allocation_of (0, FALSE);
}

static void
test_later_step (void)
{
  each_allocation_of (1, FALSE);
}

static void
test_step_in_backward (void)
{
  each_allocation_of (1, TRUE);
}

/* Other memory is in use than when it was planned. */
static void
test_limit (void)
{
  g_auto (Training) plain = { 0 };
  guint64 peak, least;
  g_autofree char *json = make_plan (FALSE, &peak);
  guint64 others = test_bytes_in_use ();

  training_init (&plain, FALSE);
  apply (&plain, json);
  g_object_get (plain.plan, "least-bytes", &least, NULL);
  g_assert_true (train (&plain, G_MAXUINT, 0, NULL));
  training_clear (&plain);
  for (guint64 limit = peak + 64; limit + 512 > least; limit -= MIN (limit, (peak - least) / 5))
    {
      g_auto (Training) training = { 0 };
      g_autoptr (GError) error = NULL;
      guint64 predicted;
      guint n_lowered;
      gboolean ok;

      training_init (&training, FALSE);
      apply (&training, json);
      ebb_memory_set_limit (NULL, others + limit);
      ok = train (&training, G_MAXUINT, 0, &error);
      ebb_memory_set_limit (NULL, 0);
      g_object_get (training.plan, "n-lowered", &n_lowered, "predicted-peak-bytes", &predicted, NULL);
      g_test_message ("limit %" G_GUINT64_FORMAT ": lowered %u times, %" G_GUINT64_FORMAT " bytes", limit, n_lowered,
                      predicted);
      if (ok)
        {
          g_assert_cmpmem (training.losses, sizeof training.losses, plain.losses, sizeof plain.losses);
          g_assert_true ((n_lowered > 0) == (limit < peak));
        }
      else
        {
          g_autofree char *wanted = g_strdup_printf ("no plan needs less than %.1f MiB",
                                                     (double) least / (1024.0 * 1024.0));

          g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
          g_assert_true (g_str_has_suffix (error->message, wanted));
          g_assert_cmpuint (limit, <, least);
        }
    }
}

static void
test_by_hand (void)
{
  g_auto (Training) training = { 0 };
  g_autofree char *json = make_plan (FALSE, NULL);
  g_autoptr (GError) error = NULL;
  guint64 least, before, now;

  training_init (&training, FALSE);
  apply (&training, json);
  g_object_get (training.plan, "least-bytes", &least, "predicted-peak-bytes", &before, NULL);
  while (ebb_memory_plan_lower (training.plan, &error))
    {
      g_autofree char *text = ebb_memory_plan_to_json (training.plan);
      g_autoptr (EbbMemoryPlan) again = NULL;
      g_autoptr (EbbMemoryEstimate) estimate = NULL;

      g_object_get (training.plan, "predicted-peak-bytes", &now, NULL);
      g_assert_cmpuint (now, <, before);
      before = now;
      estimate = ebb_memory_estimate_new (training.model, NULL, run, &training, NULL);
      g_assert_cmpuint (ebb_memory_estimate_get_peak_total (estimate), ==, now); /* it is applied */
      again = ebb_memory_plan_new_from_json (training.model, text, NULL);
      g_assert_nonnull (again);
    }
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
  g_assert_cmpuint (before, ==, least);
}

static void
test_same (void)
{
  g_auto (Training) training = { 0 };
  g_autofree char *json = make_plan (FALSE, NULL);
  g_autoptr (GError) error = NULL;

  training_init (&training, FALSE);
  apply (&training, json);
  g_assert_true (train (&training, G_MAXUINT, 0, NULL));
  g_assert_true (ebb_memory_plan_check_step (training.plan, training.state, run, &training, &error));
  g_assert_false (ebb_memory_plan_check_step (training.plan, training.state, run, &training, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
}

/* While it trains. */
static void
test_other_step (void)
{
  g_auto (Training) training = { 0 };
  g_autofree char *json = make_plan (FALSE, NULL);
  g_autoptr (GError) error = NULL;
  gint64 before, after;

  training_init (&training, FALSE);
  training.varies = TRUE;
  apply (&training, json);
  g_assert_true (train (&training, G_MAXUINT, 0, NULL));
  g_object_get (training.dataset, "position", &before, NULL);
  g_assert_false (ebb_memory_plan_check_step (training.plan, training.state, run, &training, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_test_message ("%s", error->message);
  g_assert_true (g_str_has_prefix (error->message, "the step isn't as it was planned: op 0 is "));
  g_assert_nonnull (strstr (error->message, " bytes) in the forward before the blocks, and was "));
  g_object_get (training.dataset, "position", &after, NULL);
  g_assert_cmpint (after, ==, before);
}

/* While it is planned. */
static void
test_varying_step (void)
{
  g_auto (Training) training = { 0 };
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (GError) error = NULL;

  training_init (&training, FALSE);
  training.varies_dry = TRUE;
  plan = ebb_memory_plan_make (training.model, NULL, run, &training, G_MAXINT64, 0, &error);
  g_assert_null (plan);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_assert_true (g_str_has_prefix (error->message,
                                   "the step isn't the same twice: the second time op 0 is "));
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  ebb_set_num_threads (1);
  g_test_add_func ("/plan/lower/each-allocation-of-the-first-step", test_first_step);
  g_test_add_func ("/plan/lower/each-allocation-of-a-later-step", test_later_step);
  g_test_add_func ("/plan/lower/each-allocation-of-a-step-in-backward", test_step_in_backward);
  g_test_add_func ("/plan/lower/a-limit", test_limit);
  g_test_add_func ("/plan/lower/by-hand", test_by_hand);
  g_test_add_func ("/plan/lower/a-step-as-it-was-planned", test_same);
  g_test_add_func ("/plan/lower/another-step-than-was-planned", test_other_step);
  g_test_add_func ("/plan/lower/a-step-that-is-not-the-same-twice", test_varying_step);
  return g_test_run ();
}
