/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only one-thread */
#include "support/device.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "tensor/backend/backend-private.h"

#include <glib/gstdio.h>

/* Each allocation of a step fails, one after another: an error every time, nothing left behind, and the next step is
 * right. A driver that fails on request takes the place of the CPU's, so that the library itself knows nothing of it.
 */

typedef enum
{
  NONE,
  SELECTIVE,
  FULL,
  NESTED,
  FUNCTION,
  SEGMENTS,
  N_WAYS
} Way;

static const char *const way_names[] = { "none", "selective", "full", "nested", "function", "segments" };

typedef enum
{
  KEEP = 1 << 0,
  HOST = 1 << 1,
  DISK = 1 << 2,
  VALUES = 1 << 3,
  AUTOCAST = 1 << 4,
  RETAIN = 1 << 5,
  ALL_AFTER = 1 << 6, /* memory stays short */
  CONTIGUOUS = 1 << 7,
} Habits;

typedef struct
{
  Way way;
  Habits habits;
} Case;

/* -- a driver that fails ------------------------------------------------------------------------------------------- */

static EbbBackend failing;
static gboolean counting, for_good;
static guint n_allocations, fails_at;

static void *
alloc_or_fail (int index,
               gsize size,
               GError **error)
{
  guint n = n_allocations;

  if (counting)
    n_allocations++;
  if (!counting || n < fails_at || (n > fails_at && !for_good))
    return ebb_cpu_backend.alloc (index, size, error);
  g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "allocation %u, of %" G_GSIZE_FORMAT " bytes, fails", n, size);
  return NULL;
}

static void
install (void)
{
  failing = ebb_cpu_backend;
  failing.alloc = alloc_or_fail;
  ebb_device_get_cpu ()->backend = &failing;
}

/* -- a model ------------------------------------------------------------------------------------------------------- */

#define WIDTH 8
#define LENGTH 5

typedef struct
{
  const Case *which;
  EbbModule *root;
  EbbModule **modules;
  guint n_modules;
  EbbTensor **parameters;
  guint n_parameters;
  EbbTensor *x;
  EbbGenerator *own;
  EbbCheckpointOptions *options;
  char *folder;
  GPtrArray *expected; /* gradients, then the loss */
  guint64 held;
} Fixture;

static void
set_store (Fixture *self)
{
  EbbSavedTensorHooks *store = NULL;
  g_autoptr (GError) error = NULL;

  if (self->which->habits & KEEP)
    store = ebb_keep_store_new ();
  else if (self->which->habits & HOST)
    store = ebb_host_store_new ();
  else if (self->which->habits & DISK)
    {
      self->folder = g_dir_make_tmp ("ebb-XXXXXX", &error);
      g_assert_no_error (error);
      store = test_disk_store_new (self->folder);
    }
  else if (self->which->habits & CONTIGUOUS)
    {
      store = ebb_contiguous_store_new (3, NULL, &error);
      g_assert_no_error (error);
      g_object_set (store, "grow", TRUE, NULL);
    }
  if (store == NULL)
    return;
  g_object_set (store, "least-size", (guint64) 1, NULL);
  ebb_checkpoint_options_set_store (self->options, store);
  g_object_unref (store);
}

static void
append (Fixture *self,
        EbbModule *module)
{
  g_autoptr (GError) error = NULL;

  ebb_sequential_append (EBB_SEQUENTIAL (self->root), module, &error);
  g_assert_no_error (error);
  g_object_unref (module);
}

static void
wrap (EbbModule *module,
      EbbCheckpointOptions *options)
{
  g_object_unref (ebb_checkpoint_wrapper (module, options, NULL));
}

static void
wrap_modules (Fixture *self)
{
  Way way = self->which->way;

  if (way == SELECTIVE)
    ebb_checkpoint_options_set_policy_selective (self->options);
  if (way == SELECTIVE || way == FULL || way == NESTED)
    ebb_checkpoint_wrap_each (self->root, EBB_TYPE_TRANSFORMER_BLOCK, self->options, NULL);
  if (way == NESTED)
    {
      ebb_checkpoint_wrap_each (self->root, EBB_TYPE_MULTI_HEAD_ATTENTION, self->options, NULL);
      wrap (self->root, self->options);
    }
}

static void
set_up (Fixture *self,
        gconstpointer data)
{
  self->which = data;
  ebb_manual_seed (3);
  self->options = ebb_checkpoint_options_new ();
  self->root = ebb_sequential_new ();
  append (self, ebb_transformer_block_new (WIDTH, 2, 0.1, TRUE, TRUE, NULL));
  append (self, ebb_dropout_new (0.2, NULL));
  append (self, ebb_batch_norm1d_new (LENGTH, 1e-5, 0.1, NULL));
  append (self, ebb_transformer_block_new (WIDTH, 2, 0.1, TRUE, FALSE, NULL));
  if (self->which->habits & VALUES)
    g_object_set (self->options, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, NULL);
  g_object_set (self->options, "retain-recomputed", (self->which->habits & RETAIN) != 0, NULL);
  set_store (self);
  wrap_modules (self);
  self->modules = ebb_module_get_modules (self->root, &self->n_modules);
  self->parameters = ebb_module_get_parameters (self->root, TRUE, &self->n_parameters);
  self->x = test_randn (9, 2, LENGTH, WIDTH, -1);
  self->own = ebb_generator_new (1);
  self->expected = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
}

static void
tear_down (Fixture *self,
           gconstpointer data)
{
  for (guint i = 0; i < self->n_modules; i++)
    g_object_unref (self->modules[i]);
  for (guint i = 0; i < self->n_parameters; i++)
    ebb_tensor_unref (self->parameters[i]);
  g_free (self->modules);
  g_free (self->parameters);
  g_ptr_array_unref (self->expected);
  ebb_tensor_unref (self->x);
  g_object_unref (self->root);
  g_object_unref (self->own);
  g_object_unref (self->options);
  if (self->folder != NULL)
    g_rmdir (self->folder);
  g_free (self->folder);
}

/* -- a step -------------------------------------------------------------------------------------------------------- */

static guint64
get_draws (Fixture *self)
{
  return ebb_generator_get_offset (ebb_generator_get_default ()) * 1000003 + ebb_generator_get_offset (self->own);
}

/* With random numbers of its own. */
static EbbTensor *
compute (Fixture *self,
         EbbTensor *x,
         GError **error)
{
  g_autoptr (EbbTensor) y = self->which->way == SEGMENTS ? ebb_checkpoint_sequential (self->root, 2, x, error)
                                                         : ebb_module_call1 (self->root, x, error);

  return ebb_dropout (y, 0.25, TRUE, self->own, error);
}

static EbbArgs *
compute_args (EbbArgs *args,
              gpointer user_data,
              GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = compute (user_data, x, error);

  return y ? ebb_args_new_for_tensor (y) : NULL;
}

static EbbTensor *
call (Fixture *self,
      GError **error)
{
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (self->x);
  g_autoptr (EbbArgs) result = NULL;
  const guint64 before = get_draws (self);

  if (self->which->way != FUNCTION)
    return compute (self, self->x, error);
  result = ebb_checkpoint (compute_args, self, NULL, args, self->options, error);
  if (result == NULL) /* as if it had not been called */
    g_assert_cmpuint (get_draws (self), ==, before);
  return result ? ebb_args_get_tensor (result, 0) : NULL;
}

static EbbTensor *
forward (Fixture *self,
         GError **error)
{
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) square = NULL;

  ebb_push_autocast ((self->which->habits & AUTOCAST) != 0, EBB_DTYPE_BF16);
  y = call (self, error);
  ebb_pop_autocast ();
  square = ebb_square (y, error);
  return ebb_sum (square, NULL, 0, FALSE, error);
}

/* A new version of each parameter, as after an update: what was derived from it is rematerialized. */
static void
touch_parameters (Fixture *self)
{
  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < self->n_parameters; i++)
    g_assert_true (ebb_tensor_scale (self->parameters[i], 1, NULL));
  ebb_pop_grad_enabled ();
}

/* TRUE if the step was done. @fails: which allocation. */
static gboolean
run_step (Fixture *self,
          guint fails,
          GError **error)
{
  g_autoptr (EbbTensor) loss = NULL;
  guint64 after;
  gboolean ok;

  ebb_module_zero_grad (self->root);
  touch_parameters (self);
  ebb_manual_seed (17);
  ebb_generator_set_state (self->own, 1, 0);
  n_allocations = 0;
  fails_at = fails;
  counting = TRUE;
  loss = forward (self, error);
  after = get_draws (self);
  ok = ebb_tensor_backward (loss, error);
  counting = FALSE;

  g_assert_cmpuint (get_draws (self), ==, after);
  g_assert_true (ok == (loss != NULL && *error == NULL));
  return ok;
}

static void
assert_order (Fixture *self)
{
  EbbSavedTensorHooks *store;

  g_assert_false (ebb_is_checkpointing ());
  g_assert_false (ebb_is_recomputing ());
  g_assert_true (ebb_is_grad_enabled ());
  g_assert_false (ebb_is_autocast_enabled ());
  for (guint i = 0; i < self->n_modules; i++)
    {
      g_assert_cmpuint (ebb_module_get_forward_counter (self->modules[i]), ==, 0);
      g_assert_true (ebb_module_get_training (self->modules[i]));
    }
  store = ebb_checkpoint_options_get_store (self->options);
  if (store != NULL)
    g_assert_cmpuint (test_held (store), ==, 0);
  if (EBB_IS_CONTIGUOUS_STORE (store)) /* its memory is asked for again in the next step */
    ebb_contiguous_store_reset (EBB_CONTIGUOUS_STORE (store));
}

static void
collect (Fixture *self,
         GPtrArray *grads)
{
  for (guint i = 0; i < self->n_parameters; i++)
    {
      EbbTensor *grad = ebb_tensor_get_grad (self->parameters[i]);

      g_assert_nonnull (grad);
      g_ptr_array_add (grads, grad);
    }
}

static void
assert_grads_are_right (Fixture *self)
{
  g_autoptr (GPtrArray) grads = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);

  collect (self, grads);
  for (guint i = 0; i < grads->len; i++)
    g_assert_true (ebb_tensor_equal (g_ptr_array_index (grads, i), g_ptr_array_index (self->expected, i)));
}

static void
assert_step_is_right (Fixture *self)
{
  g_autoptr (GError) error = NULL;

  g_assert_true (run_step (self, G_MAXUINT, &error));
  g_assert_no_error (error);
  assert_grads_are_right (self);
}

/* A store that lacks memory to prefetch a tensor restores it later. */
static void
fail_at (Fixture *self,
         guint which)
{
  g_autoptr (GError) error = NULL;
  gboolean done;

  for_good = (self->which->habits & ALL_AFTER) != 0;
  done = run_step (self, which, &error);
  if (done && (for_good || !(self->which->habits & DISK)))
    g_error ("the step was done, though allocation %u failed", which);
  for_good = FALSE;
  if (done)
    assert_grads_are_right (self);
  else if (!g_error_matches (error, EBB_ERROR, EBB_ERROR_NO_MEMORY))
    g_error ("allocation %u failed, and the error is: %s", which, error->message);
  assert_order (self);
  ebb_module_zero_grad (self->root);
  if (test_bytes_in_use () != self->held)
    g_error ("allocation %u failed, and %" G_GINT64_FORMAT " bytes stay (%s)", which,
             (gint64) (test_bytes_in_use () - self->held), error ? error->message : "the step was done");
}

static void
each_allocation_may_fail (Fixture *self,
                          gconstpointer data)
{
  g_autoptr (GError) error = NULL;
  guint n;

  install ();
  for (guint i = 0; i < 2; i++) /* the first makes what is made once */
    {
      g_assert_true (run_step (self, G_MAXUINT, &error));
      g_assert_no_error (error);
    }
  n = n_allocations;
  g_assert_cmpuint (n, >, 50);
  collect (self, self->expected);
  {
    g_autoptr (GPtrArray) own = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);

    /* Copies, so that they stay while gradients go. */
    for (guint i = 0; i < self->expected->len; i++)
      g_ptr_array_add (own, ebb_copy (g_ptr_array_index (self->expected, i), NULL));
    g_ptr_array_set_size (self->expected, 0);
    g_ptr_array_extend_and_steal (self->expected, g_steal_pointer (&own));
  }
  ebb_module_zero_grad (self->root);
  assert_order (self);
  self->held = test_bytes_in_use ();
  for (guint i = 0; i < n; i++)
    {
      fail_at (self, i);
      if (i % 8 == 0)
        assert_step_is_right (self);
    }
  assert_step_is_right (self);
  g_test_message ("%u allocations", n);
  ebb_device_get_cpu ()->backend = &ebb_cpu_backend;
}

int
main (int argc,
      char **argv)
{
  static const struct
  {
    const char *name;
    Habits habits;
  } variants[] = { { "keep", KEEP },
                   { "host", HOST },
                   { "disk", DISK },
                   { "contiguous", CONTIGUOUS },
                   { "values", VALUES },
                   { "autocast", AUTOCAST },
                   { "for-good", ALL_AFTER },
                   { "everything", DISK | VALUES | AUTOCAST | RETAIN | ALL_AFTER } };
  static Case cases[N_WAYS][1 + G_N_ELEMENTS (variants)];

  test_init (&argc, &argv);
  ebb_set_num_threads (1);
  for (guint way = 0; way < N_WAYS; way++)
    for (guint i = 0; i <= G_N_ELEMENTS (variants); i++)
      {
        g_autofree char *path = g_strdup_printf ("/allocation-failures/each-one-is-an-error-and-leaves-nothing/%s%s%s",
                                                 way_names[way], i ? "-" : "", i ? variants[i - 1].name : "");

        cases[way][i] = (Case){ (Way) way, i ? variants[i - 1].habits : 0 };
        g_test_add (path, Fixture, &cases[way][i], set_up, each_allocation_may_fail, tear_down);
      }
  return g_test_run ();
}
