/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "support/device.h"
#include "support/stores.h"

#include <glib/gstdio.h>

/* Two threads train two models at once, with the same options and the same store, and each does to the bit what it does
 * alone. */

#define N_STEPS 25
#define WIDTH 16

typedef struct
{
  guint64 seed;
  EbbCheckpointOptions *selective, *full;
  pthread_barrier_t *start; /* NULL: alone */
  GPtrArray *seen;          /* the losses, then the parameters */
} Training;

static EbbModule *
make_model (Training *self)
{
  EbbModule *model = ebb_sequential_new ();
  GError *error = NULL;

  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbModule) block = ebb_transformer_block_new (WIDTH, 2, 0.1, TRUE, TRUE, &error);

      ebb_sequential_append (EBB_SEQUENTIAL (model), block, &error);
      g_object_unref (ebb_checkpoint_wrapper (block, i == 1 ? self->full : self->selective, &error));
    }
  ebb_checkpoint_wrap_each (model, EBB_TYPE_MLP, self->full, &error);
  if (self->seed % 2)
    g_object_unref (ebb_checkpoint_wrapper (model, self->full, &error));
  g_assert_no_error (error);
  return model;
}

static void
train_step (Training *self,
            EbbModule *model,
            EbbOptimizer *optimizer)
{
  const gint64 shape[] = { 2, 6, WIDTH };
  GError *error = NULL;
  g_autoptr (EbbTensor) x = ebb_randn (shape, 3, EBB_DTYPE_F32, NULL, NULL, &error);
  g_autoptr (EbbTensor) y = ebb_module_call1 (model, x, &error);
  g_autoptr (EbbTensor) square = ebb_square (y, &error);
  g_autoptr (EbbTensor) loss = ebb_mean (square, NULL, 0, FALSE, &error);

  g_assert_true (ebb_tensor_backward (loss, &error));
  g_assert_no_error (error);
  g_assert_false (ebb_is_checkpointing ());
  g_assert_false (ebb_is_recomputing ());
  g_assert_cmpuint (ebb_module_get_forward_counter (model), ==, 0);
  ebb_optimizer_step (optimizer, &error);
  ebb_optimizer_zero_grad (optimizer);
  g_assert_no_error (error);
  g_ptr_array_add (self->seen, ebb_tensor_detach (loss));
}

static void *
train (void *data)
{
  Training *self = data;
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  guint n;
  g_autofree EbbTensor **parameters = NULL;

  ebb_set_num_threads (1);
  ebb_manual_seed (self->seed);
  model = make_model (self);
  optimizer = ebb_adamw_new (model, 1e-2, NULL);
  if (self->start != NULL)
    pthread_barrier_wait (self->start);
  for (guint i = 0; i < N_STEPS; i++)
    train_step (self, model, optimizer);
  parameters = ebb_module_get_parameters (model, TRUE, &n);
  for (guint i = 0; i < n; i++)
    g_ptr_array_add (self->seen, parameters[i]);
  return NULL;
}

static void
assert_same (const Training *a,
             const Training *b)
{
  g_assert_cmpuint (a->seen->len, ==, b->seen->len);
  for (guint i = 0; i < a->seen->len; i++)
    g_assert_true (ebb_tensor_equal (g_ptr_array_index (a->seen, i), g_ptr_array_index (b->seen, i)));
}

static void
two_threads_do_what_each_does_alone (gconstpointer data)
{
  g_autoptr (EbbCheckpointOptions) selective = ebb_checkpoint_options_new_selective ();
  g_autoptr (EbbCheckpointOptions) full = ebb_checkpoint_options_new ();
  g_autofree char *folder = g_dir_make_tmp ("ebb-XXXXXX", NULL);
  Training alone[2], together[2];
  pthread_barrier_t start;
  pthread_t threads[2];

  ebb_checkpoint_options_set_determinism_check (full, EBB_DETERMINISM_CHECK_VALUES);
  if (data != NULL)
    {
      g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (folder);

      ebb_checkpoint_options_set_store (full, store);
    }
  pthread_barrier_init (&start, NULL, 2);
  for (guint i = 0; i < 2; i++)
    {
      alone[i] = together[i] = (Training){ .seed = 5 + i, .selective = selective, .full = full };
      alone[i].seen = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
      together[i].seen = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
      together[i].start = &start;
      train (&alone[i]);
    }
  for (guint i = 0; i < 2; i++)
    test_thread_create (&threads[i], train, &together[i]);
  for (guint i = 0; i < 2; i++)
    pthread_join (threads[i], NULL);
  for (guint i = 0; i < 2; i++)
    {
      assert_same (&alone[i], &together[i]);
      g_ptr_array_unref (alone[i].seen);
      g_ptr_array_unref (together[i].seen);
    }
  pthread_barrier_destroy (&start);
  g_clear_object (&full);
  g_rmdir (folder);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_data_func ("/checkpoint/two-threads-do-what-each-does-alone/in-place", NULL,
                        two_threads_do_what_each_does_alone);
  g_test_add_data_func ("/checkpoint/two-threads-do-what-each-does-alone/on-disk", GINT_TO_POINTER (1),
                        two_threads_do_what_each_does_alone);
  return g_test_run ();
}
