/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/tensors.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/tensor-private.h"

/* A backward pass inside a node of another one: what is to be done when a node has given its gradients is done when
 * that node has, not when one of the inner pass has. */

G_DECLARE_FINAL_TYPE (NestedHooks, nested_hooks, TEST, NESTED_HOOKS, EbbSavedTensorHooks)
struct _NestedHooks
{
  EbbSavedTensorHooks parent_instance;
  gboolean inner_fails;
};
G_DEFINE_FINAL_TYPE (NestedHooks, nested_hooks, EBB_TYPE_SAVED_TENSOR_HOOKS)

static guint n_outer_done, n_inner_done;

static gboolean
count (gpointer data,
       GError **error)
{
  ++*(guint *) data;
  return TRUE;
}

G_DECLARE_FINAL_TYPE (InnerHooks, inner_hooks, TEST, INNER_HOOKS, EbbSavedTensorHooks)
struct _InnerHooks
{
  EbbSavedTensorHooks parent_instance;
  gboolean fails;
};
G_DEFINE_FINAL_TYPE (InnerHooks, inner_hooks, EBB_TYPE_SAVED_TENSOR_HOOKS)

static EbbTensor *
inner_unpack (EbbSavedTensorHooks *self,
              EbbHandle *handle,
              GError **error)
{
  g_autoptr (EbbTensor) tensor = ebb_handle_get_tensor (handle);

  ebb_backward_call_after_node (count, &n_inner_done);
  if (!TEST_INNER_HOOKS (self)->fails)
    return ebb_tensor_ref (tensor);
  g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "the inner one failed");
  return NULL;
}

static void
inner_hooks_class_init (InnerHooksClass *klass)
{
  EBB_SAVED_TENSOR_HOOKS_CLASS (klass)->unpack = inner_unpack;
}

static void
inner_hooks_init (InnerHooks *self)
{
}

/* The sum of squares of something, whose graph saves through @hooks. */
static EbbTensor *
sum_of_squares (EbbSavedTensorHooks *hooks,
                EbbTensor **x)
{
  g_autoptr (EbbTensor) y = NULL;
  GError *error = NULL;
  EbbTensor *sum;

  *x = test_randn (1, 5, 3, -1);
  g_assert_true (ebb_tensor_set_requires_grad (*x, TRUE, &error));
  ebb_push_saved_tensor_hooks (hooks);
  y = ebb_mul (*x, *x, &error);
  sum = ebb_sum (y, NULL, 0, FALSE, &error);
  ebb_pop_saved_tensor_hooks ();
  g_assert_no_error (error);
  return sum;
}

static EbbTensor *
nested_unpack (EbbSavedTensorHooks *self,
               EbbHandle *handle,
               GError **error)
{
  gboolean fails = TEST_NESTED_HOOKS (self)->inner_fails;
  g_autoptr (InnerHooks) hooks = g_object_new (inner_hooks_get_type (), NULL);
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  guint before = n_outer_done, inner_before = n_inner_done;
  GError *local = NULL;

  hooks->fails = fails;
  ebb_backward_call_after_node (count, &n_outer_done);
  ebb_push_grad_enabled (TRUE);
  sum = sum_of_squares (EBB_SAVED_TENSOR_HOOKS (hooks), &x);
  ebb_pop_grad_enabled ();
  g_assert_true (ebb_tensor_backward (sum, &local) == !fails);
  g_clear_error (&local);
  g_assert_cmpuint (n_inner_done, >, inner_before);
  g_assert_cmpuint (n_outer_done, ==, before);
  return ebb_handle_get_tensor (handle);
}

static void
nested_hooks_class_init (NestedHooksClass *klass)
{
  EBB_SAVED_TENSOR_HOOKS_CLASS (klass)->unpack = nested_unpack;
}

static void
nested_hooks_init (NestedHooks *self)
{
}

static void
an_inner_pass_ends_no_node_of_the_outer_one (gconstpointer data)
{
  g_autoptr (NestedHooks) hooks = g_object_new (nested_hooks_get_type (), NULL);
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  GError *error = NULL;

  hooks->inner_fails = GPOINTER_TO_INT (data);
  n_outer_done = n_inner_done = 0;
  sum = sum_of_squares (EBB_SAVED_TENSOR_HOOKS (hooks), &x);
  g_assert_true (ebb_tensor_backward (sum, &error));
  g_assert_no_error (error);
  g_assert_cmpuint (n_outer_done, ==, 2); /* both factors */
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_data_func ("/backward-passes/an-inner-pass-ends-no-node-of-the-outer-one", GINT_TO_POINTER (FALSE),
                        an_inner_pass_ends_no_node_of_the_outer_one);
  g_test_add_data_func ("/backward-passes/an-inner-pass-that-fails-neither", GINT_TO_POINTER (TRUE),
                        an_inner_pass_ends_no_node_of_the_outer_one);
  return g_test_run ();
}
