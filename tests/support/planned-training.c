/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/planned-training.h"

#include "support/device.h"

#include <string.h>

#define VOCAB 256
#define WIDTH 8
#define CONTEXT 16
#define BATCH 6
#define N_BLOCKS 3
#define N_MICRO_BATCHES 2

static void
append (TestPlanned *self, EbbModule *module)
{
  g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (self->model), module, NULL));
  g_object_unref (module);
}

void
test_planned_init (TestPlanned *self, gboolean in_backward)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  static const char text[] = "A line of some length, and another one, and so on until there are enough rows of it.";
  g_autoptr (GBytes) bytes = g_bytes_new_static (text, strlen (text));

  *self = (TestPlanned){ .in_backward = in_backward };
  ebb_manual_seed (3);
  self->model = ebb_sequential_new ();
  append (self, ebb_embedding_new (VOCAB, WIDTH, NULL));
  for (guint i = 0; i < N_BLOCKS; i++)
    append (self, ebb_transformer_block_new (WIDTH, 2, 0.1, TRUE, TRUE, NULL));
  append (self, ebb_batch_norm1d_new (CONTEXT, 1e-5, 0.1, NULL));
  append (self, ebb_linear_new (WIDTH, VOCAB, FALSE, NULL));
  g_assert_true (ebb_module_to_device (self->model, test_device (), NULL));
  self->optimizer = EBB_OPTIMIZER (ebb_adamw_new (self->model, 1e-2, NULL));
  g_object_set (self->optimizer, "step-in-backward", in_backward, NULL);
  self->schedule = EBB_SCHEDULE (ebb_cosine_schedule_new (TEST_PLANNED_STEPS, 2 * TEST_PLANNED_STEPS, 0.1));
  ebb_schedule_apply (self->schedule, self->optimizer);
  self->dataset = EBB_DATASET (ebb_text_dataset_new_from_bytes (bytes, tokenizer, 5, NULL));
  self->state = ebb_training_state_new (self->model, self->optimizer, self->dataset);
}

void
test_planned_clear (TestPlanned *self)
{
  g_clear_object (&self->plan);
  g_clear_object (&self->state);
  g_clear_object (&self->dataset);
  g_clear_object (&self->schedule);
  g_clear_object (&self->optimizer);
  g_clear_object (&self->model);
}

/* -- a step -------------------------------------------------------------------------------------------------------- */

static gboolean
read_loss (EbbTensor *loss, double *value, GError **error)
{
  g_autoptr (EbbTensor) host = NULL;

  if (ebb_is_dry_run ())
    return TRUE;
  host = ebb_to_device (loss, ebb_device_get_cpu (), error);
  return host != NULL && ebb_tensor_get_item (host, value, error);
}

static gboolean
add_gradients (TestPlanned *self, gint64 n_rows, double *loss, GError **error)
{
  g_autoptr (EbbTensor) rows = NULL, nexts = NULL, tokens = NULL, targets = NULL, logits = NULL, result = NULL;
  double one = 0;

  if (!ebb_dataset_get_rows (self->dataset, n_rows, CONTEXT, &rows, &nexts, NULL, error)
      || (tokens = ebb_to_device (rows, test_device (), error)) == NULL
      || (targets = ebb_to_device (nexts, test_device (), error)) == NULL)
    return FALSE;
  logits = ebb_module_call1 (self->model, tokens, error);
  result = logits != NULL ? ebb_cross_entropy (logits, targets, error) : NULL;
  if (result == NULL || !ebb_tensor_backward (result, error) || !read_loss (result, &one, error))
    return FALSE;
  *loss += one;
  return TRUE;
}

static gboolean
clip (TestPlanned *self, GError **error)
{
  g_autoptr (EbbTensor) norm = NULL;

  ebb_optimizer_scale_grad (self->optimizer, 1.0 / N_MICRO_BATCHES);
  norm = ebb_optimizer_clip_grad_norm (self->optimizer, 0.5, error);
  return norm != NULL;
}

gboolean
test_planned_step (EbbModule *model, gpointer user_data, GError **error)
{
  TestPlanned *self = user_data;
  const gboolean is_dry = ebb_is_dry_run ();
  gboolean is_other;
  double loss = 0;

  self->n_dry += is_dry;
  is_other = is_dry ? self->varies_dry && self->n_dry > 2 : self->varies && self->n_steps == 1;
  if (self->zeroes_first)
    ebb_optimizer_zero_grad (self->optimizer);
  for (guint i = 0; i < (self->in_backward ? 1 : N_MICRO_BATCHES); i++)
    if (!add_gradients (self, is_other ? BATCH - 1 : BATCH, &loss, error))
      return FALSE;
  if (!self->in_backward && !clip (self, error))
    return FALSE;
  if (is_dry && self->fails_dry == self->n_dry)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "dry step %u fails", self->n_dry);
      return FALSE;
    }
  if (!ebb_optimizer_step (self->optimizer, error))
    return FALSE;
  ebb_schedule_apply (self->schedule, self->optimizer);
  if (!self->zeroes_first)
    ebb_optimizer_zero_grad (self->optimizer);
  if (!is_dry)
    self->losses[self->n_steps++] = loss;
  return TRUE;
}

/* -- plans --------------------------------------------------------------------------------------------------------- */

void
test_planned_apply (TestPlanned *self, const char *json)
{
  g_autoptr (GError) error = NULL;

  self->plan = ebb_memory_plan_new_from_json (self->model, json, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_memory_plan_apply (self->plan, &error));
}

void
test_assert_same_planned (TestPlanned *a, TestPlanned *b)
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
