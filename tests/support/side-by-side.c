/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/side-by-side.h"

#include <pthread.h>

typedef struct
{
  const TestSide *side;
  pthread_barrier_t *start; /* NULL: alone */
  GPtrArray *seen;          /* losses, then parameters */
} Training;

static void
train_step (Training *self,
            EbbModule *model,
            EbbOptimizer *optimizer)
{
  const gint64 shape[] = { 2, 6, TEST_SIDE_WIDTH };
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = ebb_randn (shape, 3, EBB_DTYPE_F32, NULL, NULL, &error);
  g_autoptr (EbbTensor) y = ebb_module_call1 (model, x, &error);
  g_autoptr (EbbTensor) square = ebb_square (y, &error);
  g_autoptr (EbbTensor) loss = ebb_mean (square, NULL, 0, FALSE, &error);

  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
  g_assert_false (ebb_is_checkpointing ());
  g_assert_false (ebb_is_recomputing ());
  g_assert_cmpuint (ebb_module_get_forward_counter (model), ==, 0);
  ebb_optimizer_step (optimizer, &error);
  g_assert_no_error (error);
  ebb_optimizer_zero_grad (optimizer);
  g_ptr_array_add (self->seen, ebb_tensor_detach (loss));
}

static void *
train (void *data)
{
  Training *self = data;
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree EbbTensor **parameters = NULL;
  guint n;

  ebb_set_default_device (self->side->device);
  ebb_set_num_threads (1);
  ebb_manual_seed (self->side->seed);
  model = self->side->make_model (self->side->data, &error);
  g_assert_no_error (error);
  optimizer = ebb_adamw_new (model, 1e-2, NULL);
  if (self->start != NULL)
    pthread_barrier_wait (self->start);
  for (guint i = 0; i < self->side->n_steps; i++)
    train_step (self, model, optimizer);
  parameters = ebb_module_get_parameters (model, TRUE, &n);
  for (guint i = 0; i < n; i++)
    g_ptr_array_add (self->seen, parameters[i]);
  return NULL;
}

static Training
training_on (const TestSide *side,
             pthread_barrier_t *start)
{
  return (Training){ side, start, g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref) };
}

static void
assert_same_and_clear (Training *a,
                       Training *b)
{
  g_assert_cmpuint (a->seen->len, >, a->side->n_steps);
  g_assert_cmpuint (a->seen->len, ==, b->seen->len);
  for (guint i = 0; i < a->seen->len; i++)
    g_assert_true (ebb_tensor_equal (g_ptr_array_index (a->seen, i), g_ptr_array_index (b->seen, i)));
  g_ptr_array_unref (a->seen);
  g_ptr_array_unref (b->seen);
}

void
test_side_by_side (const TestSide *sides,
                   guint n)
{
  g_autofree Training *alone = g_new (Training, n), *together = g_new (Training, n);
  g_autofree pthread_t *threads = g_new (pthread_t, n);
  EbbDevice *before = ebb_get_default_device ();
  pthread_barrier_t start;

  pthread_barrier_init (&start, NULL, n);
  for (guint i = 0; i < n; i++)
    {
      alone[i] = training_on (&sides[i], NULL);
      together[i] = training_on (&sides[i], &start);
      train (&alone[i]);
    }
  ebb_set_default_device (before);
  for (guint i = 0; i < n; i++)
    g_assert_cmpint (pthread_create (&threads[i], NULL, train, &together[i]), ==, 0);
  for (guint i = 0; i < n; i++)
    pthread_join (threads[i], NULL);
  for (guint i = 0; i < n; i++)
    assert_same_and_clear (&alone[i], &together[i]);
  pthread_barrier_destroy (&start);
}
