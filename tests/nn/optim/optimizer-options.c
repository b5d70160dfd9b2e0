/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"

#include <math.h>

/* The arguments of optimizers: lists of parameters, and numbers that make sense. */

static double
get_last (EbbTensor *tensor)
{
  return ((const float *) test_read (tensor))[2];
}

static EbbTensor *
make_leaf (double value)
{
  g_autoptr (GError) error = NULL;
  const gint64 size = 3;
  EbbTensor *leaf = ebb_full (&size, 1, value, EBB_DTYPE_F32, NULL, &error);

  g_assert_true (ebb_tensor_set_requires_grad (leaf, TRUE, &error));
  g_assert_no_error (error);
  return leaf;
}

static void
lists_are_groups_of_their_own (void)
{
  EbbOptimizer *(*make[]) (EbbTensor **, guint, double, GError **) = {
    ebb_sgd_new_for_parameters, ebb_adam_new_for_parameters, ebb_adamw_new_for_parameters
  };

  for (guint i = 0; i < G_N_ELEMENTS (make); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) a = make_leaf (1);
      g_autoptr (EbbTensor) b = make_leaf (1);
      g_autoptr (EbbTensor) c = make_leaf (1);
      g_autoptr (EbbOptimizer) optimizer = make[i]((EbbTensor *[]){ a, b, a }, 3, 0.5, &error);
      g_autoptr (EbbArgs) state = NULL;
      guint group;

      g_assert_no_error (error);
      g_object_set (optimizer, "weight-decay", 0.0, NULL);
      g_assert_true (ebb_optimizer_add_parameters (optimizer, &c, 1, 0.25, -1, &group, &error));
      g_assert_cmpuint (group, ==, 1);
      test_fill_grads (optimizer, 1);
      g_assert_true (ebb_optimizer_step (optimizer, &error));
      g_assert_no_error (error);
      g_assert_cmpfloat_with_epsilon (get_last (a), 0.5, 1e-6);
      g_assert_cmpfloat_with_epsilon (get_last (b), 0.5, 1e-6);
      g_assert_cmpfloat_with_epsilon (get_last (c), 0.75, 1e-6);
      for (guint g = 0; g < 2; g++)
        {
          g_auto (GStrv) names = ebb_optimizer_get_group_names (optimizer, g);
          g_autofree char *joined = g_strjoinv (" ", names);

          g_assert_cmpstr (joined, ==, g == 0 ? "0 1" : "2");
        }
      state = ebb_optimizer_get_state (optimizer);
      g_assert_true (ebb_optimizer_load_state (optimizer, state, &error));
    }
}

static void
lists_that_cannot_be_moved_are_refused (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) leaf = make_leaf (1);
  g_autoptr (EbbTensor) computed = ebb_mul_scalar (leaf, 2, &error);
  g_autoptr (EbbTensor) integers = ebb_zeros ((gint64[]){ 2 }, 1, EBB_DTYPE_I64, NULL, &error);
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new_for_parameters (&leaf, 1, 1, &error);
  const struct
  {
    EbbTensor *tensor;
    const char *words;
  } wrong[] = {
    { computed, "Sgd: parameter 1 of 2 was computed: only leaves can be moved" },
    { integers, "Sgd: parameter 1 of 2 holds no floating-point numbers" },
    { leaf, "Sgd: parameter 1 of 2 is in a group of this optimizer already" },
    { NULL, "Sgd: parameter 1 of 2 is NULL" },
  };

  g_assert_no_error (error);
  for (guint i = 0; i < G_N_ELEMENTS (wrong); i++)
    {
      g_autoptr (EbbTensor) good = make_leaf (2);

      g_assert_false (ebb_optimizer_add_parameters (optimizer, (EbbTensor *[]){ good, wrong[i].tensor }, 2, -1, -1,
                                                    NULL, &error));
      g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
      g_assert_cmpstr (error->message, ==, wrong[i].words);
      g_clear_error (&error);
      g_assert_cmpuint (ebb_optimizer_get_n_groups (optimizer), ==, 1);
    }
  g_assert_null (ebb_adamw_new_for_parameters (NULL, 0, 1, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_cmpstr (error->message, ==, "AdamW: the list of parameters is empty");
}

static void
numbers_that_make_no_sense_are_errors (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) module = ebb_linear_new (2, 2, TRUE, &error);
  const double bad[] = { -1, NAN, INFINITY };
  const struct
  {
    GType type;
    const char *name;
  } options[] = {
    { EBB_TYPE_ADAMW, "lr" },
    { EBB_TYPE_ADAMW, "weight-decay" },
    { EBB_TYPE_ADAMW, "beta1" },
    { EBB_TYPE_ADAM, "beta2" },
    { EBB_TYPE_ADAM, "eps" },
    { EBB_TYPE_SGD, "lr-scale" },
    { EBB_TYPE_SGD, "momentum" },
    { EBB_TYPE_SGD, "dampening" },
  };

  g_assert_no_error (error);
  /* Whichever way an optimizer is made or changed, and whichever number it is. */
  for (guint i = 0; i < G_N_ELEMENTS (options); i++)
    for (guint v = 0; v < G_N_ELEMENTS (bad); v++)
      {
        g_autoptr (EbbOptimizer) changed = g_initable_new (options[i].type, NULL, NULL, "module", module, NULL);
        g_autofree char *words =
            g_strdup_printf ("%s: %s is %g: it must be a number of 0 or more",
                             g_type_name (options[i].type) + strlen ("Ebb"), options[i].name, bad[v]);
        double before, after;

        g_assert_null (
            g_initable_new (options[i].type, NULL, &error, "module", module, options[i].name, bad[v], NULL));
        g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
        g_assert_true (g_str_has_prefix (error->message, words));
        g_clear_error (&error);
        g_object_get (changed, options[i].name, &before, NULL);
        g_assert_false (ebb_optimizer_set_option (changed, options[i].name, bad[v], &error));
        g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
        g_assert_true (g_str_has_prefix (error->message, words));
        g_clear_error (&error);
        g_object_get (changed, options[i].name, &after, NULL);
        g_assert_cmpfloat (before, ==, after);
        g_assert_true (ebb_optimizer_set_option (changed, options[i].name, 0.25, &error));
        g_object_get (changed, options[i].name, &after, NULL);
        g_assert_cmpfloat (after, ==, 0.25);
        g_assert_false (ebb_optimizer_set_option (changed, "momentun", 0.25, &error));
        g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
        g_clear_error (&error);
      }
}

static void
bad_arguments_are_named (void)
{
  g_autoptr (EbbModule) module = ebb_linear_new (2, 1, FALSE, NULL);
  g_autoptr (EbbModule) empty = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_adamw_new (module, -1, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_cmpstr (error->message, ==, "AdamW: lr is -1: it must be a number of 0 or more");
  g_clear_error (&error);
  g_assert_null (ebb_sgd_new (module, NAN, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_clear_error (&error);
  g_assert_null (ebb_adamw_new (NULL, 1, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_true (g_str_has_prefix (error->message, "AdamW: module is NULL"));
  g_clear_error (&error);
  empty = ebb_dropout_new (0.1, &error);
  g_assert_no_error (error);
  g_assert_null (ebb_adamw_new (empty, 1, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_cmpstr (error->message, ==, "AdamW: the module has no parameters");

  /* With an error set nothing moves. */
  optimizer = ebb_sgd_new (module, 1, NULL);
  test_fill_grads (optimizer, 1);
  g_assert_false (ebb_optimizer_step (optimizer, &error));
  g_assert_cmpint (ebb_optimizer_get_n_steps (optimizer), ==, 0);
  g_assert_false (ebb_optimizer_step (NULL, NULL));
}

/* -- a class of one's own ------------------------------------------------------------------------------------------ */

typedef EbbOptimizer OwnOptimizer;
typedef EbbOptimizerClass OwnOptimizerClass;
static GType own_optimizer_get_type (void);
G_DEFINE_TYPE (OwnOptimizer, own_optimizer, EBB_TYPE_OPTIMIZER)

static void
own_optimizer_class_init (OwnOptimizerClass *klass)
{
}

static void
own_optimizer_init (OwnOptimizer *self)
{
}

static gboolean
step (EbbOptimizer *self, GError **error)
{
  return TRUE;
}

static void
a_class_of_ones_own_steps_by_itself (void)
{
  const GType type = own_optimizer_get_type ();
  g_autoptr (EbbModule) module = ebb_linear_new (2, 2, FALSE, NULL);
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (GError) error = NULL;

  optimizer = g_initable_new (type, NULL, &error, "module", module, NULL);
  g_assert_no_error (error);
  test_fill_grads (optimizer, 1);
  g_assert_false (ebb_optimizer_step (optimizer, &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "OwnOptimizer does not implement step ()");
  g_clear_error (&error);
  EBB_OPTIMIZER_GET_CLASS (optimizer)->step = step;
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_no_error (error);

  /* It has no step of one parameter. */
  g_assert_null (g_initable_new (type, NULL, &error, "module", module, "step-in-backward", TRUE, NULL));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "OwnOptimizer: step-in-backward is for", "AdamW");
  g_test_expect_message ("Ebb", G_LOG_LEVEL_CRITICAL, "OwnOptimizer: step-in-backward is for*");
  g_object_set (optimizer, "step-in-backward", TRUE, NULL);
  g_test_assert_expected_messages ();
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/optimizer-options/lists-are-groups-of-their-own", lists_are_groups_of_their_own);
  g_test_add_func ("/optimizer-options/lists-that-cannot-be-moved-are-refused", lists_that_cannot_be_moved_are_refused);
  g_test_add_func ("/optimizer-options/numbers-that-make-no-sense-are-errors", numbers_that_make_no_sense_are_errors);
  g_test_add_func ("/optimizer-options/bad-arguments-are-named", bad_arguments_are_named);
  g_test_add_func ("/optimizer-options/a-class-of-ones-own-steps-by-itself", a_class_of_ones_own_steps_by_itself);
  return g_test_run ();
}
