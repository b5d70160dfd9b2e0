/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/side-by-side.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "support/training.h"

#include <glib/gstdio.h>

/* Two threads train two models at once, with the same options and the same store, and each does to the bit what it does
 * alone. */

typedef struct
{
  EbbCheckpointOptions *selective, *full;
  gboolean is_wrapped; /* as a whole, too */
} Wrapping;

static EbbModule *
make_model (gpointer data,
            GError **error)
{
  const Wrapping *self = data;
  EbbModule *model = ebb_sequential_new ();

  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbModule) block = ebb_transformer_block_new (TEST_SIDE_WIDTH, 2, 0.1, TRUE, TRUE, error);

      ebb_sequential_append (EBB_SEQUENTIAL (model), block, error);
      g_object_unref (ebb_checkpoint_wrapper (block, i == 1 ? self->full : self->selective, error));
    }
  ebb_checkpoint_wrap_each (model, EBB_TYPE_MLP, self->full, error);
  if (self->is_wrapped)
    g_object_unref (ebb_checkpoint_wrapper (model, self->full, error));
  return model;
}

static void
two_threads_do_what_each_does_alone (gconstpointer data)
{
  g_autoptr (EbbCheckpointOptions) selective = ebb_checkpoint_options_new_selective ();
  g_autoptr (EbbCheckpointOptions) full = ebb_checkpoint_options_new ();
  g_autofree char *folder = g_dir_make_tmp ("ebb-XXXXXX", NULL);
  Wrapping wrappings[] = { { selective, full, TRUE }, { selective, full, FALSE } };
  const TestSide sides[] = { { 5, test_device (), 25, make_model, &wrappings[0] },
                             { 6, test_device (), 25, make_model, &wrappings[1] } };

  g_object_set (full, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, NULL);
  if (data != NULL)
    {
      g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (folder);

      ebb_checkpoint_options_set_store (full, store);
    }
  test_side_by_side (sides, G_N_ELEMENTS (sides));
  g_clear_object (&full);
  g_rmdir (folder);
}

/* -- a forward, and another thread that wraps ---------------------------------------------------------------------- */

#define N_STEPS 60
#define N_ROUNDS 300

typedef struct
{
  EbbModule *model;
  EbbSavedTensorHooks *store;
  gint n_steps, n_rounds; /* atomic */
} Shared;

/* The hook's data is freed when the hook is removed, and no call may read it later. */
static gboolean
read_data (EbbModule *module,
           EbbArgs *args,
           EbbArgs *result,
           gpointer user_data,
           GError **error)
{
  return *(const int *) user_data == 17;
}

static int *
new_data (void)
{
  int *data = g_new (int, 1);

  *data = 17;
  return data;
}

static gpointer
wrap_and_unwrap (gpointer user_data)
{
  Shared *self = user_data;
  g_autoptr (GError) error = NULL;

  while (g_atomic_int_get (&self->n_steps) < N_STEPS || g_atomic_int_get (&self->n_rounds) < N_ROUNDS)
    {
      guint before = ebb_module_add_forward_pre_hook (self->model, read_data, new_data (), g_free);
      guint after;

      g_object_unref (ebb_checkpoint_wrapper (self->model, NULL, &error));
      after = ebb_module_add_forward_hook (self->model, read_data, new_data (), g_free);
      g_assert_true (ebb_module_remove_hook (self->model, before));
      g_assert_true (ebb_checkpoint_unwrap (self->model));
      g_object_unref (ebb_offload_wrapper (self->model, self->store, &error));
      g_assert_true (ebb_module_remove_hook (self->model, after));
      g_assert_true (ebb_offload_unwrap (self->model));
      g_assert_no_error (error);
      g_atomic_int_inc (&self->n_rounds);
    }
  return NULL;
}

static EbbTensor *
take_step (EbbModule *model,
           EbbTensor *x)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) y = ebb_module_call1 (model, x, &error);
  g_autoptr (EbbTensor) loss = NULL;
  EbbTensor *grad;

  g_assert_no_error (error);
  loss = test_loss (y);
  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
  grad = ebb_tensor_get_grad (x);
  ebb_tensor_set_grad (x, NULL, NULL);
  ebb_module_zero_grad (model);
  return grad;
}

/* Each step goes through what was there when it began, or through less. */
static void
a_model_is_wrapped_while_it_trains (void)
{
  g_autoptr (EbbModule) model = test_mlp_new (1);
  g_autoptr (EbbSavedTensorHooks) store = ebb_keep_store_new ();
  g_autoptr (EbbTensor) x = test_randn (5, 4, 8, -1);
  g_autoptr (EbbTensor) expected = NULL;
  Shared shared = { model, store, 0, 0 };
  GThread *thread;

  ebb_module_set_training (model, FALSE); /* it drops at random */
  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  expected = take_step (model, x);
  thread = g_thread_new ("wraps", wrap_and_unwrap, &shared);
  while (g_atomic_int_get (&shared.n_steps) < N_STEPS || g_atomic_int_get (&shared.n_rounds) < N_ROUNDS)
    {
      g_autoptr (EbbTensor) grad = take_step (model, x);

      g_assert_true (ebb_tensor_equal (grad, expected));
      g_atomic_int_inc (&shared.n_steps);
    }
  g_thread_join (thread);
  g_assert_false (ebb_checkpoint_is_wrapped (model));
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
  g_test_add_func ("/checkpoint/a-model-is-wrapped-while-it-trains", a_model_is_wrapped_while_it_trains);
  return g_test_run ();
}
