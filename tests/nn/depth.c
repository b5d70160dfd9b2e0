/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: one-thread */
#include "support/device.h"
#include "support/tensors.h"

#include <string.h>

/* Deep nesting either works or is an error that says how deep; it never overflows the stack. Each test runs on a
 * thread of its own, with the stack that threads have. */

#define MANY 5000

static void
run_on_a_thread (gconstpointer func)
{
  g_thread_join (g_thread_new ("deep", (GThreadFunc) func, NULL));
}

static EbbModule *
new_linear (void)
{
  g_autoptr (GError) error = NULL;
  EbbModule *module = ebb_linear_new (2, 2, TRUE, &error);

  g_assert_no_error (error);
  return module;
}

/* The error of a call or its backward pass, or NULL. */
static GError *
train (EbbModule *module)
{
  g_autoptr (EbbTensor) x = test_randn (1, 3, 2, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  GError *error = NULL;

  y = ebb_module_call1 (module, x, &error);
  loss = ebb_sum (y, NULL, 0, FALSE, &error);
  g_assert_true (ebb_tensor_backward (loss, &error) == (error == NULL));
  return error;
}

static void
assert_too_deep (const GError *error,
                 const char *number)
{
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_nonnull (strstr (error->message, number));
  g_assert_null (strchr (error->message, '\n'));
  g_assert_cmpuint (strlen (error->message), <, 400);
}

static void
wrap (EbbModule *module)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) same = ebb_checkpoint_wrapper (module, NULL, &error);

  g_assert_no_error (error);
}

/* Puts sequences around a layer until that fails; the outermost one. */
static EbbModule *
nest (guint n,
      gboolean wraps,
      GError **error)
{
  EbbModule *module = new_linear ();

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbModule) outer = ebb_sequential_new ();

      if (!ebb_sequential_append (EBB_SEQUENTIAL (outer), module, error))
        break;
      g_object_unref (module);
      module = g_object_ref (outer);
      if (wraps)
        wrap (module);
    }
  return module;
}

/* -- modules ------------------------------------------------------------------------------------------------------- */

static gpointer
wrapped_many_times (gpointer data)
{
  g_autoptr (EbbModule) module = new_linear ();
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < MANY; i++)
    {
      wrap (module);
      if (i == 900)
        {
          error = train (module);
          g_assert_no_error (error);
        }
    }
  error = train (module);
  assert_too_deep (error, "1001");
  return NULL;
}

static gpointer
nested_from_the_inside (gpointer data)
{
  for (int wraps = 0; wraps < 2; wraps++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (GError) failure = NULL;
      g_autoptr (EbbModule) module = nest (MANY, wraps, &error);

      assert_too_deep (error, "501");
      failure = train (module);
      g_assert_no_error (failure);
    }
  return NULL;
}

static gpointer
nested_from_the_outside (gpointer data)
{
  g_autoptr (EbbModule) outermost = ebb_sequential_new ();
  g_autoptr (GError) error = NULL;
  EbbModule *innermost = outermost;

  for (guint i = 0; i < MANY && error == NULL; i++)
    {
      g_autoptr (EbbModule) inner = ebb_sequential_new ();

      if (ebb_sequential_append (EBB_SEQUENTIAL (innermost), inner, &error))
        innermost = inner;
    }
  assert_too_deep (error, "501");
  return NULL;
}

/* A module that calls another which is not its child is nested as well. */
static gboolean
call_itself (EbbModule *module,
             EbbArgs *args,
             EbbArgs *result,
             gpointer user_data,
             GError **error)
{
  g_autoptr (EbbArgs) inner = ebb_module_call (module, args, error);

  return inner != NULL;
}

static gpointer
calls_in_each_other (gpointer data)
{
  g_autoptr (EbbModule) module = new_linear ();
  g_autoptr (GError) error = NULL;
  guint id = ebb_module_add_forward_pre_hook (module, call_itself, NULL, NULL);

  error = train (module);
  assert_too_deep (error, "1001");
  g_clear_error (&error);
  ebb_module_remove_hook (module, id);
  error = train (module);
  g_assert_no_error (error);
  return NULL;
}

/* -- functions ----------------------------------------------------------------------------------------------------- */

static EbbArgs *
checkpoint_itself (EbbArgs *args,
                   gpointer user_data,
                   GError **error)
{
  return ebb_checkpoint (checkpoint_itself, NULL, NULL, args, NULL, error);
}

static gpointer
functions_in_each_other (gpointer data)
{
  g_autoptr (EbbTensor) x = test_randn (1, 3, 2, -1);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (GError) error = NULL;

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  g_assert_null (checkpoint_itself (args, NULL, &error));
  assert_too_deep (error, "1001");
  return NULL;
}

/* -- graphs -------------------------------------------------------------------------------------------------------- */

static gpointer
long_graphs (gpointer data)
{
  for (int backward = 0; backward < 2; backward++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) x = ebb_scalar (1, EBB_DTYPE_F32, NULL, NULL);
      g_autoptr (EbbTensor) grad = NULL;
      EbbTensor *y = ebb_tensor_ref (x);
      double value;

      ebb_tensor_set_requires_grad (x, TRUE, NULL);
      for (guint i = 0; i < 100000; i++)
        {
          EbbTensor *next = i % 2 == 0 ? ebb_mul (y, y, &error) : ebb_reshape (y, NULL, 0, &error);

          ebb_tensor_unref (y);
          y = next;
        }
      if (backward)
        ebb_tensor_backward (y, &error);
      ebb_tensor_unref (y);
      g_assert_no_error (error);
      grad = ebb_tensor_get_grad (x);
      g_assert_true ((grad != NULL) == backward);
      if (backward)
        g_assert_true (ebb_tensor_get_item (grad, &value, &error));
    }
  return NULL;
}

/* -- arguments ----------------------------------------------------------------------------------------------------- */

static EbbArgs *
nest_args (guint n)
{
  g_autoptr (EbbTensor) x = test_randn (1, 3, 2, -1);
  EbbArgs *args = ebb_args_new_for_tensor (x);

  for (guint i = 1; i < n; i++)
    {
      EbbArgs *outer = ebb_args_new (EBB_ARGS_LIST);

      ebb_args_add_args (outer, NULL, args);
      ebb_args_unref (args);
      args = outer;
    }
  return args;
}

static EbbTensor *
keep (EbbTensor *tensor,
      gpointer user_data,
      GError **error)
{
  return ebb_tensor_ref (tensor);
}

static EbbArgs *
give_args (EbbArgs *args,
           gpointer user_data,
           GError **error)
{
  return nest_args (*(const guint *) user_data);
}

static gpointer
nested_arguments (gpointer data)
{
  const guint depths[] = { 400, 100000 };

  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbModule) module = new_linear ();
      g_autoptr (EbbArgs) args = nest_args (depths[i]);
      g_autoptr (EbbArgs) one = nest_args (1);
      g_autofree char *text = ebb_args_to_string (args);
      GError *errors[4] = { NULL };
      EbbArgs *results[4];

      g_assert_cmpuint (strlen (text), <, 3000);
      g_assert_cmpuint (ebb_args_get_n_tensors (args), ==, i == 0);
      wrap (module);
      results[0] = ebb_args_map_tensors (args, keep, NULL, &errors[0]);
      results[1] = ebb_checkpoint (give_args, (gpointer) &depths[i], NULL, one, NULL, &errors[1]);
      results[2] = ebb_checkpoint (give_args, (gpointer) &depths[0], NULL, args, NULL, &errors[2]);
      results[3] = ebb_module_call (module, args, &errors[3]); /* which takes one tensor */
      for (guint k = 0; k < 4; k++)
        {
          if (i == 1)
            assert_too_deep (errors[k], "500");
          else
            g_assert_true ((results[k] != NULL) == (k < 3));
          g_clear_pointer (&results[k], ebb_args_unref);
          g_clear_error (&errors[k]);
        }
    }
  return NULL;
}

int
main (int argc,
      char **argv)
{
  static const struct
  {
    const char *path;
    GThreadFunc func;
  } tests[] = {
    { "/depth/a-module-that-is-wrapped-many-times", wrapped_many_times },
    { "/depth/modules-nested-from-the-inside", nested_from_the_inside },
    { "/depth/modules-nested-from-the-outside", nested_from_the_outside },
    { "/depth/calls-in-each-other", calls_in_each_other },
    { "/depth/checkpointed-functions-in-each-other", functions_in_each_other },
    { "/depth/long-graphs", long_graphs },
    { "/depth/nested-arguments", nested_arguments },
  };

  test_init (&argc, &argv);
  for (guint i = 0; i < G_N_ELEMENTS (tests); i++)
    g_test_add_data_func (tests[i].path, tests[i].func, run_on_a_thread);
  return g_test_run ();
}
