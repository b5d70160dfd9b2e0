/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/device.h"
#include "support/random-stores.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "tensor/backend/backend-private.h"

/* Each allocation, copy and launch (with most stores every ninth allocation and launch) of a training step on a device
 * fails, one after another, whatever store its activations go to: an error, or the right gradients where what failed
 * was only ahead of its time; nothing is lost, and the next step is the undisturbed one, bit for bit. */

#define WIDTH 8
#define LENGTH 5
#define MOST 10000 /* more than any step has of anything */

static const char *const failure_names[EBB_N_FAILURES] = { "alloc", "alloc-host", "launch", "to-host", "from-host" };

typedef struct
{
  guint store;
  gboolean recomputes; /* else what single ops keep is stored */
  guint stride;        /* of what a step has many of */
} Case;

typedef struct
{
  EbbDevice *device;
  TestStores stores;
  EbbSavedTensorHooks *store;
  const char *name;
  EbbModule *model;
  EbbTensor *x;
  EbbTensor **parameters;
  guint n_parameters;
  GPtrArray *values;   /* of the parameters, on the CPU */
  GPtrArray *expected; /* gradients, on the CPU */
  guint64 held, held_on_host;
} Fixture;

static guint64
get_bytes (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_total (stats);
}

static EbbTensor *
bring (EbbTensor *tensor)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *here = ebb_to_device (tensor, ebb_device_get_cpu (), &error);

  g_assert_no_error (error);
  return here;
}

/* -- a model ------------------------------------------------------------------------------------------------------- */

static void
make_model (Fixture *self,
            gboolean recomputes)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (GError) error = NULL;

  ebb_manual_seed (3);
  self->model = ebb_sequential_new ();
  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbModule) block = ebb_transformer_block_new (WIDTH, 2, 0.1, TRUE, TRUE, &error);

      ebb_sequential_append (EBB_SEQUENTIAL (self->model), block, &error);
    }
  ebb_checkpoint_options_set_store (options, self->store);
  if (recomputes)
    ebb_checkpoint_wrap_each (self->model, EBB_TYPE_TRANSFORMER_BLOCK, options, &error);
  else
    g_object_unref (ebb_offload_wrapper (self->model, self->store, &error));
  g_assert_no_error (error);
  self->x = test_randn (9, 2, LENGTH, WIDTH, -1);
  self->parameters = ebb_module_get_parameters (self->model, TRUE, &self->n_parameters);
}

static void
set_up (Fixture *self,
        const Case *which,
        EbbDevice *device)
{
  *self = (Fixture){ .device = device };
  ebb_set_default_device (device);
  ebb_set_num_threads (1);
  test_stores_open (&self->stores);
  self->store = self->stores.stores[which->store];
  self->name = self->stores.names[which->store];
  make_model (self, which->recomputes);
  self->values = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  self->expected = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  for (guint i = 0; i < self->n_parameters; i++)
    g_ptr_array_add (self->values, bring (self->parameters[i]));
}

static void
tear_down (Fixture *self)
{
  for (guint i = 0; i < self->n_parameters; i++)
    ebb_tensor_unref (self->parameters[i]);
  g_free (self->parameters);
  g_ptr_array_unref (self->values);
  g_ptr_array_unref (self->expected);
  ebb_tensor_unref (self->x);
  g_object_unref (self->model);
  test_stores_close (&self->stores);
  ebb_set_default_device (NULL);
}

/* -- a step -------------------------------------------------------------------------------------------------------- */

/* FALSE with @error set if anything has failed, even late. */
static gboolean
run_step (Fixture *self,
          GError **error)
{
  gboolean ok;

  ebb_manual_seed (17);
  {
    g_autoptr (EbbTensor) y = ebb_module_call1 (self->model, self->x, error);
    g_autoptr (EbbTensor) square = ebb_square (y, error);
    g_autoptr (EbbTensor) loss = ebb_sum (square, NULL, 0, FALSE, error);

    ok = ebb_tensor_backward (loss, error);
    g_assert_true (ok == (*error == NULL));
  }
  return ok && ebb_device_synchronize (self->device, error)
         && ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (self->store), error);
}

static void
assert_grads_are_right (Fixture *self)
{
  for (guint i = 0; i < self->n_parameters; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (self->parameters[i]);

      g_assert_nonnull (grad);
      g_assert_true (ebb_tensor_equal (grad, g_ptr_array_index (self->expected, i)));
    }
}

/* Failures elsewhere were reported before, or are now; then there are none left. */
static void
settle (Fixture *self)
{
  g_autoptr (GError) error = NULL;

  ebb_module_zero_grad (self->model);
  for (guint i = 0; i < 4; i++)
    {
      g_clear_error (&error);
      if (ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (self->store), &error)
          && ebb_device_synchronize (self->device, &error))
        break;
    }
  g_assert_no_error (error);
  test_stores_settle (&self->stores);
}

static void
assert_order (Fixture *self)
{
  g_assert_false (ebb_is_checkpointing () || ebb_is_recomputing () || !ebb_is_grad_enabled ());
  g_assert_cmpuint (ebb_module_get_forward_counter (self->model), ==, 0);
  g_assert_cmpuint (test_held (self->store), ==, 0);
  g_assert_cmpuint (get_bytes (self->device), ==, self->held);
  for (guint i = 0; i < self->n_parameters; i++)
    g_assert_true (ebb_tensor_equal (self->parameters[i], g_ptr_array_index (self->values, i)));
}

static void
assert_next_step_is_right (Fixture *self)
{
  g_autoptr (GError) error = NULL;

  run_step (self, &error);
  g_assert_no_error (error);
  assert_grads_are_right (self);
  settle (self);
  assert_order (self);
  g_assert_cmpuint (get_bytes (NULL), ==, self->held_on_host);
}

static void
learn_what_is_right (Fixture *self)
{
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < 2; i++) /* the first makes what is made once */
    {
      run_step (self, &error);
      g_assert_no_error (error);
      for (guint k = 0; i == 1 && k < self->n_parameters; k++)
        {
          g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (self->parameters[k]);

          g_ptr_array_add (self->expected, bring (grad));
        }
      settle (self);
    }
  self->held = get_bytes (self->device);
  self->held_on_host = get_bytes (NULL);
}

/* -- failures ------------------------------------------------------------------------------------------------------ */

static guint64
let_fail (Fixture *self,
          EbbFailure what,
          guint64 n)
{
  return self->device->backend->fail (self->device->index, what, n);
}

/* FALSE if the step has not as many. */
static gboolean
fail_at (Fixture *self,
         EbbFailure what,
         guint64 n,
         guint *n_reported)
{
  g_autoptr (GError) error = NULL;
  gboolean done, has_failed;

  let_fail (self, what, n);
  done = run_step (self, &error);
  has_failed = let_fail (self, what, 0) == 0;
  if (done)
    assert_grads_are_right (self);
  else if (!has_failed)
    g_error ("%s: nothing failed, and the error is: %s", self->name, error->message);
  else if (!g_error_matches (error, EBB_ERROR, EBB_ERROR_NO_MEMORY)
           && !g_error_matches (error, EBB_ERROR, EBB_ERROR_DEVICE)
           && !g_error_matches (error, EBB_ERROR, EBB_ERROR_IO))
    g_error ("%s: %s %" G_GUINT64_FORMAT " failed, and the error is: %s", self->name, failure_names[what], n,
             error->message);
  if (has_failed && !done)
    (*n_reported)++;
  settle (self);
  assert_order (self);
  return has_failed;
}

/* A launch is where the step would be wrong if it were done without it: none may go untold. */
static void
each_of_a_kind_fails (Fixture *self,
                      EbbFailure what,
                      guint first,
                      guint stride)
{
  guint n_failed = 0, n_reported = 0;

  for (guint64 n = first; n < MOST && fail_at (self, what, n, &n_reported); n += stride)
    {
      n_failed++;
      assert_next_step_is_right (self);
    }
  g_test_message ("%s: %u %s, %u of them an error of the step", self->name, n_failed, failure_names[what], n_reported);
  if (what == EBB_FAILURE_LAUNCH || what == EBB_FAILURE_ALLOC)
    g_assert_cmpuint ((n_failed + 1) * stride, >, 50);
  if (what == EBB_FAILURE_LAUNCH)
    g_assert_cmpuint (n_reported, ==, n_failed);
  assert_next_step_is_right (self);
}

static void
each_piece_of_a_step_may_fail (gconstpointer data)
{
  static guint n_devices;
  const Case *which = data;
  g_autofree char *name = g_strdup_printf ("sim:%u", 60 + n_devices++);
  g_autoptr (GError) error = NULL;
  EbbDevice *device = ebb_device_get (name, &error);
  Fixture fixture;

  g_assert_no_error (error);
  set_up (&fixture, which, device);
  learn_what_is_right (&fixture);
  for (guint what = 0; what < EBB_N_FAILURES; what++)
    each_of_a_kind_fails (
        &fixture, (EbbFailure) what, 1 + n_devices % test_stride (), /* together the cases take each number */
        test_stride () * (what == EBB_FAILURE_ALLOC || what == EBB_FAILURE_LAUNCH ? which->stride : 1));
  tear_down (&fixture);
}

int
main (int argc,
      char **argv)
{
  static const char *const names[TEST_N_STORES] = { "keep",
                                                    "host",
                                                    "disk",
                                                    "contiguous",
                                                    "contiguous-host",
                                                    "contiguous-disk",
                                                    "little-host-then-disk" };
  static Case cases[2][TEST_N_STORES];

  g_test_init (&argc, &argv, NULL);
  g_setenv ("EBB_SIM_MEMORY", "64M", TRUE);
  for (guint recomputes = 0; recomputes < 2; recomputes++)
    for (guint i = 0; i < TEST_N_STORES; i++)
      {
        g_autofree char *path =
            g_strdup_printf ("/sim/each-piece-of-a-step-may-fail/%s/%s", recomputes ? "inputs" : "all", names[i]);

        cases[recomputes][i] = (Case){ i, recomputes != 0, recomputes && i == 1 ? 1 : 9 };
        g_test_add_data_func (path, &cases[recomputes][i], each_piece_of_a_step_may_fail);
      }
  return g_test_run ();
}
