/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/stores.h"
#include "support/tensors.h"
#include "support/test-modules.h"
#include "support/training.h"

#include <string.h>

/* A module's saved tensors go to a store, and nothing else changes. The store is a disk's, which moves tensors of the
 * CPU too. */

static EbbSavedTensorHooks *
new_store (void)
{
  return test_disk_store_new (g_get_tmp_dir ());
}

static guint64
get_put (EbbSavedTensorHooks *store)
{
  return ebb_activation_store_get_bytes_put (EBB_ACTIVATION_STORE (store));
}

static void
offload (EbbModule *module,
         EbbSavedTensorHooks *store)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) same = ebb_offload_wrapper (module, store, &error);

  g_assert_no_error (error);
  g_assert_true (same == module);
}

static EbbModule *
new_chain (void)
{
  return test_chain_new (test_mlp_new (1), test_mlp_new (2), test_mlp_new (3), NULL);
}

static EbbModule *
get_child (EbbModule *chain,
           const char *name)
{
  g_autoptr (EbbModule) child = ebb_module_get_child (chain, name);

  return child; /* the chain holds it */
}

static void
nothing_but_memory_changes (gconstpointer data)
{
  const guint n_wrapped = GPOINTER_TO_UINT (data); /* parts, or 0: the whole */
  g_autoptr (EbbTensor) x = test_randn (4, 6, 8, -1);
  g_autoptr (EbbModule) plain = new_chain ();
  g_autoptr (EbbModule) wrapped = new_chain ();
  g_autoptr (EbbSavedTensorHooks) store = new_store ();
  g_auto (GStrv) before = ebb_module_get_parameter_names (wrapped, TRUE);
  g_auto (GStrv) after = NULL;
  TestOutcome *expected, *outcome;

  for (guint i = 0; i < n_wrapped; i++)
    {
      g_autofree char *name = g_strdup_printf ("%u", i);

      offload (get_child (wrapped, name), store);
    }
  if (n_wrapped == 0)
    offload (wrapped, store);
  after = ebb_module_get_parameter_names (wrapped, TRUE);
  g_assert_true (g_strv_equal ((const char *const *) before, (const char *const *) after));
  expected = test_train1 (plain, x);
  outcome = test_train1 (wrapped, x);
  test_assert_same_outcome (expected, outcome);
  g_assert_cmpuint (get_put (store), >, 0);
  g_assert_cmpuint (test_held (store), ==, 0);
  test_outcome_free (expected);
  test_outcome_free (outcome);
}

/* The checkpoint's input, and nothing of what it makes again. */
static void
a_checkpoint_within_stores_its_input (void)
{
  g_autoptr (EbbTensor) x = test_randn (4, 6, 8, -1);
  g_autoptr (EbbModule) plain = new_chain ();
  g_autoptr (EbbModule) wrapped = new_chain ();
  g_autoptr (EbbSavedTensorHooks) store = new_store ();
  g_autoptr (TestOutcome) expected = test_train1 (plain, x);
  g_autoptr (TestOutcome) outcome = NULL;

  for (guint i = 0; i < 3; i++)
    {
      g_autofree char *name = g_strdup_printf ("%u", i);

      test_wrap (get_child (wrapped, name), NULL);
    }
  offload (wrapped, store);
  outcome = test_train1 (wrapped, x);
  test_assert_same_outcome (expected, outcome);
  g_assert_cmpuint (get_put (store), ==, 3 * 6 * 8 * 4);
  g_assert_cmpuint (test_held (store), ==, 0);
}

static void
within_a_checkpoint_nothing_is_stored (gconstpointer data)
{
  const gboolean same_module = GPOINTER_TO_INT (data);
  g_autoptr (EbbTensor) x = test_randn (4, 6, 8, -1);
  g_autoptr (EbbModule) plain = new_chain ();
  g_autoptr (EbbModule) wrapped = new_chain ();
  g_autoptr (EbbSavedTensorHooks) store = new_store ();
  g_autoptr (TestOutcome) expected = test_train1 (plain, x);
  g_autoptr (TestOutcome) outcome = NULL;

  offload (same_module ? wrapped : get_child (wrapped, "1"), store);
  test_wrap (wrapped, NULL);
  outcome = test_train1 (wrapped, x);
  test_assert_same_outcome (expected, outcome);
  g_assert_cmpuint (get_put (store), ==, 0);
}

static void
the_innermost_store_takes_it (void)
{
  g_autoptr (EbbTensor) x = test_randn (4, 6, 8, -1);
  g_autoptr (EbbModule) plain = new_chain ();
  g_autoptr (EbbModule) wrapped = new_chain ();
  g_autoptr (EbbSavedTensorHooks) inner = new_store ();
  g_autoptr (EbbSavedTensorHooks) outer = new_store ();
  g_autoptr (EbbSavedTensorHooks) region = new_store ();
  g_autoptr (TestOutcome) expected = test_train1 (plain, x);
  g_autoptr (TestOutcome) outcome = NULL;

  offload (wrapped, outer);
  offload (get_child (wrapped, "1"), inner);
  ebb_push_saved_tensor_hooks (region);
  outcome = test_train1 (wrapped, x);
  ebb_pop_saved_tensor_hooks ();
  test_assert_same_outcome (expected, outcome);
  g_assert_cmpuint (get_put (inner), >, 0);
  g_assert_cmpuint (get_put (outer), >, get_put (inner));
  g_assert_cmpuint (get_put (region), >, 0); /* the loss */
}

/* Of the wrapper, which holds it. */
static EbbSavedTensorHooks *
get_store (EbbModule *module)
{
  g_autoptr (EbbSavedTensorHooks) store = ebb_offload_get_store (module);

  return store;
}

static void
wrapping_again_sets_another_store (void)
{
  g_autoptr (EbbTensor) x = test_randn (4, 6, 8, -1);
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbSavedTensorHooks) first = new_store ();
  g_autoptr (EbbSavedTensorHooks) second = new_store ();

  g_assert_false (ebb_offload_is_wrapped (module));
  g_assert_null (ebb_offload_get_store (module));
  offload (module, first);
  offload (module, second);
  g_assert_true (ebb_offload_is_wrapped (module));
  g_assert_true (get_store (module) == second);
  test_outcome_free (test_train1 (module, x));
  g_assert_cmpuint (get_put (first), ==, 0);
  g_assert_cmpuint (get_put (second), >, 0);
  g_assert_true (ebb_offload_unwrap (module));
  g_assert_false (ebb_offload_unwrap (module));
  g_assert_false (ebb_offload_is_wrapped (module));
  offload (module, NULL);
  g_assert_true (EBB_IS_HOST_STORE (get_store (module)));
}

static void
its_store_outlives_the_wrapper (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbSavedTensorHooks) store = NULL;

  offload (module, NULL);
  store = ebb_offload_get_store (module);
  g_assert_cmpuint (G_OBJECT (store)->ref_count, ==, 2);
  g_assert_true (ebb_offload_unwrap (module));
  g_assert_cmpuint (G_OBJECT (store)->ref_count, ==, 1);
}

static void
a_type_that_is_not_there_is_an_error (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_offload_wrap_each (module, EBB_TYPE_LINEAR, NULL, &error));
  g_assert_true (ebb_offload_is_wrapped (get_child (module, "0")));
  g_assert_false (ebb_offload_is_wrapped (module));
  g_assert_true (get_store (get_child (module, "0")) == get_store (get_child (module, "3")));
  g_assert_false (ebb_offload_wrap_each (module, EBB_TYPE_EMBEDDING, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "no Embedding in this Sequential");
  g_assert_null (ebb_offload_wrapper (module, NULL, &error)); /* an error is set already */
  g_clear_error (&error);
  g_assert_null (ebb_offload_wrapper (NULL, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "module is NULL");
}

static void
without_gradients_nothing_is_stored (void)
{
  g_autoptr (EbbTensor) x = test_randn (4, 6, 8, -1);
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbSavedTensorHooks) store = new_store ();
  g_autoptr (EbbTensor) y = NULL;

  offload (module, store);
  ebb_push_grad_enabled (FALSE);
  y = ebb_module_call1 (module, x, NULL);
  ebb_pop_grad_enabled ();
  g_assert_nonnull (y);
  g_assert_cmpuint (ebb_activation_store_get_n_packed (EBB_ACTIVATION_STORE (store)), ==, 0);
}

static void
an_error_in_the_middle_leaves_nothing (void)
{
  g_autoptr (EbbTensor) x = test_randn (4, 6, 8, -1);
  g_autoptr (EbbModule) wrapped =
      test_chain_new (test_mlp_new (1), test_stumbling_new (), test_mlp_new (3), NULL);
  g_autoptr (EbbSavedTensorHooks) store = new_store ();
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) y = NULL;
  TestState before;

  offload (wrapped, store);
  before = test_state_now ();
  g_assert_null (ebb_module_call1 (wrapped, x, &error));
  test_assert_error (error, EBB_ERROR_CALLBACK, "stumbled");
  before.offset = test_state_now ().offset; /* a dropout has drawn */
  test_assert_state (before);
  g_assert_cmpuint (get_put (store), >, 0);
  g_assert_cmpuint (test_held (store), ==, 0);
  /* The door is as it was before. */
  y = ebb_sin (x, NULL);
  g_assert_nonnull (y);
}

static void
the_module_may_be_unwrapped_before_backward (void)
{
  GError *error = NULL;
  g_autoptr (EbbTensor) x = test_randn (4, 6, 8, -1);
  g_autoptr (EbbModule) plain = test_mlp_new (1);
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbSavedTensorHooks) store = new_store ();
  g_autoptr (TestOutcome) expected = NULL;
  g_autoptr (TestOutcome) outcome = NULL;
  EbbModule *modules[] = { plain, module };

  offload (module, store);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) y = test_forward1 (modules[i], x);
      g_autoptr (EbbTensor) loss = test_loss (y);

      ebb_offload_unwrap (modules[i]);
      g_clear_object (&store);
      for (guint j = 0; j < 2; j++)
        g_assert_true (ebb_backward (&loss, 1, NULL, 0, NULL, 0, j == 0, &error));
    }
  expected = test_outcome_new (plain, NULL);
  outcome = test_outcome_new (module, NULL);
  test_assert_same_outcome (expected, outcome);
}

/* -- on an accelerator --------------------------------------------------------------------------------------------- */

static void
to_the_host_and_back (void)
{
  GError *error = NULL;
  EbbDevice *sim = ebb_device_get ("sim:7", &error);
  g_autoptr (EbbTensor) here = test_randn (4, 6, 8, -1);
  g_autoptr (GPtrArray) expected = NULL;

  g_assert_no_error (error);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbModule) module = new_chain ();
      g_autoptr (EbbTensor) x = ebb_to_device (here, sim, &error);
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;
      g_autoptr (GPtrArray) grads = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
      g_autofree EbbTensor **parameters = NULL;
      guint n;

      g_assert_true (ebb_module_to_device (module, sim, &error));
      if (i == 1)
        {
          offload (module, NULL);
          g_object_set (get_store (module), "least-size", (guint64) 1, NULL);
        }
      y = test_forward1 (module, x);
      loss = test_loss (y);
      ebb_tensor_backward (loss, &error);
      g_assert_no_error (error);
      parameters = ebb_module_get_parameters (module, TRUE, &n);
      for (guint j = 0; j < n; j++)
        {
          g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[j]);

          g_ptr_array_add (grads, ebb_to_device (grad, NULL, &error));
          ebb_tensor_unref (parameters[j]);
          if (expected != NULL)
            g_assert_true (ebb_tensor_equal (grads->pdata[j], expected->pdata[j]));
        }
      if (i == 1)
        {
          EbbActivationStore *store = EBB_ACTIVATION_STORE (get_store (module));

          g_assert_cmpuint (ebb_activation_store_get_bytes_got (store), >, 0);
          g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
        }
      else
        expected = g_steal_pointer (&grads);
    }
}

static void
a_list_is_never_called (void)
{
  g_autoptr (EbbModule) list = ebb_module_list_new ();
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_offload_wrapper (list, NULL, &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "would do nothing", "list");
  g_assert_false (ebb_offload_is_wrapped (list));
  g_clear_error (&error);
  g_assert_false (ebb_offload_wrap_each (list, EBB_TYPE_MODULE_LIST, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "no ModuleList in this ModuleList");
  g_clear_error (&error);
  g_assert_false (ebb_offload_wrap_each (list, G_TYPE_INVALID, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "unknown type");
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
#define TEST(name, func) g_test_add_func ("/offload-wrapper/" name, func)
#define TEST_DATA(name, data, func) g_test_add_data_func ("/offload-wrapper/" name, GUINT_TO_POINTER (data), func)
  TEST_DATA ("nothing-but-memory-changes/whole", 0, nothing_but_memory_changes);
  TEST_DATA ("nothing-but-memory-changes/one", 1, nothing_but_memory_changes);
  TEST_DATA ("nothing-but-memory-changes/each", 3, nothing_but_memory_changes);
  TEST ("a-checkpoint-within-stores-its-input", a_checkpoint_within_stores_its_input);
  TEST_DATA ("within-a-checkpoint-nothing-is-stored/part", FALSE, within_a_checkpoint_nothing_is_stored);
  TEST_DATA ("within-a-checkpoint-nothing-is-stored/same-module", TRUE, within_a_checkpoint_nothing_is_stored);
  TEST ("the-innermost-store-takes-it", the_innermost_store_takes_it);
  TEST ("wrapping-again-sets-another-store", wrapping_again_sets_another_store);
  TEST ("its-store-outlives-the-wrapper", its_store_outlives_the_wrapper);
  TEST ("a-type-that-is-not-there-is-an-error", a_type_that_is_not_there_is_an_error);
  TEST ("without-gradients-nothing-is-stored", without_gradients_nothing_is_stored);
  TEST ("an-error-in-the-middle-leaves-nothing", an_error_in_the_middle_leaves_nothing);
  TEST ("the-module-may-be-unwrapped-before-backward", the_module_may_be_unwrapped_before_backward);
  TEST ("to-the-host-and-back", to_the_host_and_back);
  TEST ("a-list-is-never-called", a_list_is_never_called);
  return g_test_run ();
}
