/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/sim.h"

#include "support/tensors.h"
#include "support/training.h"

EbbDevice *test_sim;

void
test_sim_open (void)
{
  GError *error = NULL;

  g_setenv ("EBB_SIM_MEMORY", "64M", TRUE);
  g_setenv ("EBB_SIM_BANDWIDTH", "100M", TRUE);
  test_sim = ebb_device_get ("sim", &error);
  g_assert_no_error (error);
}

guint64
test_sim_in_use (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_total (stats);
}

static guint64
get_peak (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_peak_total (stats);
}

EbbTensor *
test_sim_send (EbbTensor *tensor)
{
  GError *error = NULL;
  EbbTensor *there = ebb_to_device (tensor, test_sim, &error);

  g_assert_no_error (error);
  return there;
}

EbbTensor *
test_sim_fetch (EbbTensor *tensor)
{
  GError *error = NULL;
  EbbTensor *here = ebb_to_device (tensor, ebb_device_get_cpu (), &error);

  g_assert_no_error (error);
  return here;
}

void
test_sim_assert_equal (EbbTensor *there,
                       EbbTensor *expected)
{
  g_autoptr (EbbTensor) here = test_sim_fetch (there);

  g_assert_true (ebb_tensor_equal (here, expected));
}

EbbActivationStore *
test_sim_new_store (void)
{
  EbbActivationStore *store = EBB_ACTIVATION_STORE (ebb_host_store_new ());

  g_object_set (store, "least-size", (guint64) 1, NULL);
  return store;
}

/* -- a model ------------------------------------------------------------------------------------------------------- */

/* Four activations of the size of the input are inside. */
static EbbTensor *
bend (EbbModule *self,
      EbbTensor *x,
      gpointer data,
      GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) dropped = ebb_dropout (scaled, 0.1, TRUE, NULL, error);
  g_autoptr (EbbTensor) bent = ebb_sin (dropped, error);

  return ebb_tanh (bent, error);
}

EbbModule *
test_sim_new_block (guint seed)
{
  EbbModule *block = test_lambda1_new (bend, NULL);
  g_autoptr (EbbTensor) gain = test_randn (seed, TEST_SIM_WIDTH, -1);

  ebb_module_register_parameter (block, "gain", gain, NULL);
  return block;
}

EbbModule *
test_sim_new_model (EbbDevice *device)
{
  EbbModule *model = ebb_sequential_new ();

  for (guint i = 0; i < TEST_SIM_BLOCKS; i++)
    {
      g_autoptr (EbbModule) block = test_sim_new_block (i);
      g_autofree char *name = g_strdup_printf ("%u", i);

      ebb_module_register_child (model, name, block, NULL);
    }
  g_assert_true (ebb_module_to_device (model, device, NULL));
  return model;
}

EbbTensor *
test_sim_forward (EbbModule *model,
                  EbbTensor *start,
                  GError **error)
{
  /* A result, as inputs within a model are; nobody else keeps it. */
  EbbTensor *x;
  EbbTensor *loss = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) square = NULL;

  ebb_manual_seed (3);
  x = ebb_copy (start, error);
  y = ebb_module_call1 (model, x, error);
  g_clear_pointer (&x, ebb_tensor_unref);
  square = y != NULL ? ebb_mul (y, y, error) : NULL;
  if (square != NULL)
    loss = ebb_sum (square, NULL, 0, FALSE, error);
  return loss;
}

/* Copies the gradients and sets them to 0 in place. */
GPtrArray *
test_sim_take_grads (EbbModule *model)
{
  GPtrArray *grads = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[i]);

      g_ptr_array_add (grads, test_sim_fetch (grad));
      g_assert_true (ebb_tensor_fill (grad, 0, NULL));
      ebb_tensor_unref (parameters[i]);
    }
  return grads;
}

void
test_sim_train (EbbModule *model,
                EbbTensor *start,
                guint n_backwards)
{
  GError *error = NULL;
  g_autoptr (EbbTensor) loss = test_sim_forward (model, start, &error);

  g_assert_no_error (error);
  for (guint i = 0; i < n_backwards; i++)
    {
      ebb_backward (&loss, 1, NULL, 0, NULL, 0, i + 1 < n_backwards, &error);
      g_assert_no_error (error);
    }
}

/* @n_backwards: through the same graph. */
TestSimStep
test_sim_run (EbbModule *model,
              guint n_backwards)
{
  g_autoptr (EbbTensor) here = test_randn (9, TEST_SIM_ROWS, TEST_SIM_WIDTH, -1);
  g_autoptr (EbbTensor) start = test_sim_send (here);
  guint64 before;
  TestSimStep step;

  test_sim_train (model, start, 1); /* so that gradients are there already */
  g_ptr_array_unref (test_sim_take_grads (model));
  before = test_sim_in_use (test_sim);
  ebb_memory_reset_peaks (test_sim);
  test_sim_train (model, start, n_backwards);
  step.peak = get_peak (test_sim) - before;
  step.grads = test_sim_take_grads (model);
  return step;
}

void
test_sim_step_clear (TestSimStep *step)
{
  g_ptr_array_unref (step->grads);
}

void
test_sim_assert_same_grads (const TestSimStep *a,
                            const TestSimStep *b)
{
  g_assert_cmpuint (a->grads->len, ==, b->grads->len);
  for (guint i = 0; i < a->grads->len; i++)
    g_assert_true (ebb_tensor_equal (a->grads->pdata[i], b->grads->pdata[i]));
}

EbbModule *
test_sim_new_wrapped (EbbActivationStore *store)
{
  EbbModule *model = test_sim_new_model (test_sim);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

  if (store != NULL)
    ebb_checkpoint_options_set_store (options, EBB_SAVED_TENSOR_HOOKS (store));
  test_wrap_leaves (model, options);
  return model;
}

/* Nothing is left in the store, nor in either memory beyond @there and @here. */
void
test_sim_assert_gone (EbbActivationStore *store,
                      guint64 there,
                      guint64 here)
{
  g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
  g_assert_cmpuint (test_sim_in_use (test_sim), ==, there);
  g_assert_cmpuint (test_sim_in_use (NULL), ==, here);
}
