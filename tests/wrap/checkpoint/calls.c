/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* A wrapped module takes and gives whatever the module does. */

/* -- any call ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  EbbTensor *x, *y; /* y is passed at three places */
  GObject *object;
} Things;

static EbbArgs *
new_list (const Things *things)
{
  EbbArgs *list = ebb_args_new (EBB_ARGS_LIST);
  g_autoptr (EbbArgs) pair = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) empty = ebb_args_new (EBB_ARGS_LIST);

  ebb_args_add_none (pair, NULL);
  ebb_args_add_tensor (pair, NULL, things->y);
  ebb_args_add_args (list, NULL, pair);
  ebb_args_add_args (list, NULL, empty);
  ebb_args_add_string (list, NULL, "");
  ebb_args_add_object (list, NULL, things->object);
  return list;
}

static EbbArgs *
new_dictionary (const Things *things)
{
  EbbArgs *dictionary = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) list = new_list (things);
  g_autoptr (EbbArgs) empty = ebb_args_new (EBB_ARGS_DICT);

  ebb_args_add_args (dictionary, "z", list);
  ebb_args_add_double (dictionary, "a", -0.0);
  ebb_args_add_tensor (dictionary, "y", things->y);
  ebb_args_add_args (dictionary, "nothing", empty);
  return dictionary;
}

/* (x, None, -7, {"z": [(None, y), [], "", object], ...}, "text", *, flag=True, y=y, none=None, ratio=0.1, deep=[...])
 */
static EbbArgs *
new_call (const Things *things)
{
  EbbArgs *args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) dictionary = new_dictionary (things);
  g_autoptr (EbbArgs) list = new_list (things);

  ebb_args_add_tensor (args, NULL, things->x);
  ebb_args_add_none (args, NULL);
  ebb_args_add_int (args, NULL, G_MININT64);
  ebb_args_add_args (args, NULL, dictionary);
  ebb_args_add_string (args, NULL, "na\xc3\xafve");
  ebb_args_add_boolean (args, "flag", TRUE);
  ebb_args_add_tensor (args, "y", things->y);
  ebb_args_add_none (args, "none");
  ebb_args_add_double (args, "ratio", 0.1);
  ebb_args_add_object (args, "object", things->object);
  ebb_args_add_args (args, "deep", list);
  return args;
}

typedef struct
{
  EbbArgs *expected;
  guint calls;
} Echo;

/* Computes with the tensors at each depth, and gives all that it got. */
static EbbArgs *
echo (EbbModule *self, EbbArgs *args, gpointer data, GError **error)
{
  Echo *echo = data;
  g_autoptr (EbbArgs) dictionary = ebb_args_get_args (args, 3);
  g_autoptr (EbbArgs) list = ebb_args_get_args (dictionary, 0);
  g_autoptr (EbbArgs) pair = ebb_args_get_args (list, 0);
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = ebb_args_get_tensor (pair, 1);
  g_autoptr (EbbTensor) again = ebb_args_get_tensor (args, (guint) ebb_args_find (args, "y"));
  g_autoptr (EbbTensor) product = ebb_mul (x, y, error);
  g_autoptr (EbbTensor) sine = ebb_sin (product, error);
  g_autoptr (EbbTensor) result = ebb_mul (sine, again, error);
  EbbArgs *all;

  echo->calls++;
  if (echo->expected != NULL)
    test_assert_args_equal (args, echo->expected);
  if (result == NULL)
    return NULL;
  all = test_args_copy (args);
  ebb_args_add_tensor (all, "result", result);
  return all;
}

static Things
new_things (void)
{
  Things things = { test_randn (1, 3, 8, -1), test_randn (2, 3, 8, -1), g_object_new (G_TYPE_OBJECT, NULL) };

  g_assert_true (ebb_tensor_set_requires_grad (things.y, TRUE, NULL));
  return things;
}

static void
clear_things (Things *things)
{
  ebb_tensor_unref (things->x);
  ebb_tensor_unref (things->y);
  g_object_unref (things->object);
}

static void
every_value_comes_through (void)
{
  GError *error = NULL;
  Things things = new_things ();
  g_autoptr (EbbArgs) args = new_call (&things);
  g_autoptr (EbbArgs) same = new_call (&things);
  g_autoptr (EbbArgs) plain = NULL;
  g_autoptr (EbbArgs) wrapped = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  Echo seen = { same, 0 };
  g_autoptr (EbbModule) module = test_lambda_new (echo, &seen);

  plain = ebb_module_call (module, args, &error);
  wrapped = ebb_module_call (test_wrap (module, NULL), args, &error);
  g_assert_no_error (error);
  test_assert_args_equal (plain, wrapped);
  loss = test_loss_of_args (wrapped);
  test_backward (loss);
  g_assert_cmpuint (seen.calls, ==, 3); /* and the recompute got what the forward had got */
  test_assert_args_equal (args, same);
  clear_things (&things);
}

static EbbArgs *
give (EbbModule *self, EbbArgs *args, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = ebb_exp (x, error);

  return y != NULL ? ebb_args_ref (data) : NULL;
}

static void
results_keep_their_kind (void)
{
  const EbbArgsKind kinds[] = { EBB_ARGS_BARE, EBB_ARGS_LIST, EBB_ARGS_TUPLE, EBB_ARGS_DICT };
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);

  for (guint i = 0; i < G_N_ELEMENTS (kinds); i++)
    for (guint n = 0; n < (kinds[i] == EBB_ARGS_BARE ? 2u : 3u); n++)
      {
        g_autoptr (EbbArgs) value = ebb_args_new (kinds[i]);
        g_autoptr (EbbModule) module = test_lambda_new (give, value);
        g_autoptr (EbbArgs) result = NULL;

        for (guint j = 0; j < n; j++)
          ebb_args_add_tensor (value, kinds[i] != EBB_ARGS_DICT ? NULL : j == 0 ? "b"
                                                                                : "a",
                               x);
        result = ebb_module_call (test_wrap (module, NULL), args, NULL);
        test_assert_args_equal (result, value);
      }
}

/* -- tensors at any depth ------------------------------------------------------------------------------------------ */

static void
nested_tensors_are_differentiated (const TestMode *mode)
{
  Things things = { NULL, NULL, g_object_new (G_TYPE_OBJECT, NULL) };
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  g_autoptr (EbbTensor) y = test_randn (2, 3, 8, -1);
  Echo seen = { NULL, 0 };
  g_autoptr (EbbModule) module = test_lambda_new (echo, &seen);
  g_autoptr (EbbArgs) args = NULL;
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;

  things.x = ebb_cast (x, mode->dtype, NULL);
  things.y = ebb_cast (y, mode->dtype, NULL);
  ebb_tensor_set_requires_grad (things.x, TRUE, NULL);
  ebb_tensor_set_requires_grad (things.y, TRUE, NULL);
  args = new_call (&things);
  plain = test_train (module, args);
  wrapped = test_train (test_wrap (module, NULL), args);
  test_assert_same_outcome (plain, wrapped);
  clear_things (&things);
}

static void
nested_tensors_go_through_the_store (void)
{
  GError *error = NULL;
  Things things = new_things ();
  g_autoptr (EbbArgs) args = new_call (&things);
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (NULL);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  Echo seen = { NULL, 0 };
  g_autoptr (EbbModule) module = test_lambda_new (echo, &seen);
  g_autoptr (TestOutcome) plain = test_train (module, args);
  g_autoptr (TestOutcome) stored = NULL;

  ebb_checkpoint_options_set_store (options, store);
  stored = test_train (test_wrap (module, options), args);
  g_assert_no_error (error);
  test_assert_same_outcome (plain, stored);
  g_assert_cmpuint (ebb_activation_store_get_bytes_put (EBB_ACTIVATION_STORE (store)), ==, 2 * 3 * 8 * 4);
  g_assert_cmpuint (ebb_activation_store_get_bytes_got (EBB_ACTIVATION_STORE (store)), ==, 2 * 3 * 8 * 4);
  g_assert_cmpuint (test_held (store), ==, 0);
  clear_things (&things);
}

/* (x, x, [x, its transpose], *, row=its second row), and the same tensor closed over. */
static EbbArgs *
new_views (EbbTensor *x)
{
  EbbArgs *args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) list = ebb_args_new (EBB_ARGS_LIST);
  g_autoptr (EbbTensor) turned = ebb_transpose (x, 0, 1, NULL);
  g_autoptr (EbbTensor) row = ebb_narrow (x, 0, 1, 1, NULL);

  ebb_args_add_tensor (list, NULL, x);
  ebb_args_add_tensor (list, NULL, turned);
  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_args (args, NULL, list);
  ebb_args_add_tensor (args, "row", row);
  return args;
}

static EbbArgs *
use_views (EbbModule *self, EbbArgs *args, gpointer closed_over, GError **error)
{
  g_autoptr (EbbArgs) list = ebb_args_get_args (args, 2);
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) again = ebb_args_get_tensor (args, 1);
  g_autoptr (EbbTensor) turned = ebb_args_get_tensor (list, 1);
  g_autoptr (EbbTensor) row = ebb_args_get_tensor (args, 3);
  g_autoptr (EbbTensor) square = ebb_mul (x, again, error);
  g_autoptr (EbbTensor) product = ebb_matmul (square, turned, error);
  g_autoptr (EbbTensor) wide = ebb_matmul (product, closed_over, error);
  g_autoptr (EbbTensor) last = ebb_mul (wide, row, error);
  g_autoptr (EbbTensor) y = ebb_tanh (last, error);

  return y != NULL ? ebb_args_new_for_tensor (y) : NULL;
}

static void
same_tensor_is_kept_once (void)
{
  GError *error = NULL;
  g_autoptr (EbbTensor) x = test_randn (1, 4, 8, -1);
  g_autoptr (EbbArgs) args = NULL;
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbSavedTensorHooks) store = ebb_keep_store_new ();
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbModule) module = test_lambda_new (use_views, x);
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;
  guint64 n_packed;

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  args = new_views (x);
  plain = test_train (module, args);
  g_object_set (store, "least-size", (guint64) 1, NULL);
  ebb_checkpoint_options_set_store (options, store);
  g_clear_pointer (&args, ebb_args_unref);
  args = new_views (x);
  wrapped = test_train (test_wrap (module, options), args);
  test_assert_same_outcome (plain, wrapped);

  g_clear_pointer (&args, ebb_args_unref);
  args = new_views (x);
  n_packed = ebb_activation_store_get_n_packed (EBB_ACTIVATION_STORE (store));
  result = ebb_module_call (module, args, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_activation_store_get_n_packed (EBB_ACTIVATION_STORE (store)) - n_packed, ==, 1);
  g_assert_cmpuint (test_held (store), ==, 4 * 8 * 4);
  stats = ebb_memory_get_stats (test_device ());
  g_assert_cmpuint (ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION), ==, 4 * 8 * 4);
}

typedef struct
{
  GBytes *bytes;
  const void *data;
  guint version;
  gboolean requires_grad, is_leaf;
  EbbTensor *grad;
} Look;

static Look
look_at (EbbTensor *tensor)
{
  return (Look){ ebb_tensor_get_bytes (tensor, NULL), ebb_tensor_get_data (tensor, NULL),
                 ebb_tensor_get_version (tensor), ebb_tensor_get_requires_grad (tensor),
                 ebb_tensor_is_leaf (tensor), ebb_tensor_get_grad (tensor) };
}

static void
assert_looks (EbbTensor *tensor, Look was)
{
  Look is = look_at (tensor);
  g_autoptr (GBytes) now = is.bytes;
  g_autoptr (GBytes) before = was.bytes;

  g_assert_true (g_bytes_equal (now, before));
  g_assert_true (is.data == was.data && is.version == was.version);
  g_assert_true (is.requires_grad == was.requires_grad && is.is_leaf == was.is_leaf);
  g_assert_true (is.grad == was.grad);
}

/* Neither leaves without gradient, nor results of earlier ops, nor views, nor what the module gave out; with stores
 * that take the data away and without. */
static void
callers_tensors_are_never_changed (void)
{
  for (guint kind = 0; kind < 3; kind++)
    {
      GError *error = NULL;
      g_autoptr (EbbTensor) leaf = test_randn (1, 4, 8, -1);
      g_autoptr (EbbTensor) start = test_randn (2, 4, 8, -1);
      g_autoptr (EbbTensor) made = NULL;
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;
      g_autoptr (EbbArgs) args = new_views (leaf);
      g_autoptr (EbbArgs) same = test_args_copy (args);
      g_autoptr (EbbArgs) result = NULL;
      g_autoptr (EbbSavedTensorHooks) store = kind == 0 ? NULL : kind == 1 ? ebb_host_store_new ()
                                                                           : test_disk_store_new (NULL);
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
      g_autoptr (EbbModule) module = NULL;
      Look of_leaf, of_made, of_result;

      ebb_tensor_set_requires_grad (start, TRUE, NULL);
      made = ebb_tanh (start, &error);
      ebb_checkpoint_options_set_store (options, store);
      module = test_wrap (test_lambda_new (use_views, made), options);
      of_leaf = look_at (leaf);
      of_made = look_at (made);
      result = ebb_module_call (module, args, &error);
      g_assert_no_error (error);
      y = ebb_args_get_tensor (result, 0);
      of_result = look_at (y);
      loss = test_loss (y);
      test_backward (loss);
      assert_looks (leaf, of_leaf);
      assert_looks (made, of_made);
      assert_looks (y, of_result);
      test_assert_args_equal (args, same);
    }
}

/* -- functions ----------------------------------------------------------------------------------------------------- */

static EbbArgs *
exp_or_fail (EbbArgs *args, gpointer user_data, GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = ebb_exp (x, error);

  if (ebb_tensor_get_dim (x, 0) == 3)
    return ebb_args_new_for_tensor (y);
  g_set_error (error, G_IO_ERROR, G_IO_ERROR_BUSY, "told so");
  return NULL;
}

static void
count_up (gpointer data)
{
  ++*(guint *) data;
}

/* As soon as nobody can call it any more. */
static void
function_s_data_is_freed_once (void)
{
  for (guint use = 0; use < 6; use++) /* gradients off, no arguments, fails, not needed, dropped, used */
    {
      guint n_freed = 0;
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) x = test_randn (1, use == 2 ? 2 : 3, 8, -1);
      g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
      g_autoptr (EbbArgs) result = NULL;
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;

      ebb_tensor_set_requires_grad (x, use != 3, NULL);
      ebb_push_grad_enabled (use != 0);
      result = ebb_checkpoint (exp_or_fail, &n_freed, count_up, use == 1 ? NULL : args, NULL, &error);
      ebb_pop_grad_enabled ();
      g_assert_true ((result == NULL) == (use == 1 || use == 2));
      g_assert_cmpuint (n_freed, ==, use < 4);
      if (use == 5)
        {
          y = ebb_args_get_tensor (result, 0);
          loss = test_loss (y);
          test_backward (loss);
          g_assert_cmpuint (n_freed, ==, 1);
        }
      g_clear_pointer (&result, ebb_args_unref);
      g_clear_pointer (&y, ebb_tensor_unref);
      g_clear_pointer (&loss, ebb_tensor_unref);
      g_assert_cmpuint (n_freed, ==, 1);
    }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
#define TEST(name, func) g_test_add_func ("/checkpoint/calls/" name, func)
  TEST ("every-value-comes-through", every_value_comes_through);
  TEST ("results-keep-their-kind", results_keep_their_kind);
  test_add_modes ("/checkpoint/calls/nested-tensors-are-differentiated", nested_tensors_are_differentiated);
  TEST ("nested-tensors-go-through-the-store", nested_tensors_go_through_the_store);
  TEST ("same-tensor-is-kept-once", same_tensor_is_kept_once);
  TEST ("callers-tensors-are-never-changed", callers_tensors_are_never_changed);
  TEST ("function-s-data-is-freed-once", function_s_data_is_freed_once);
  return g_test_run ();
}
