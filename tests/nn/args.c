/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include <string.h>

#include "support/device.h"
#include "support/tensors.h"

static void
values_come_back (void)
{
  g_autoptr (EbbTensor) tensor = test_randn (1, 2, 3, -1);
  g_autoptr (GObject) object = g_object_new (G_TYPE_OBJECT, NULL);
  g_autoptr (EbbArgs) nested = ebb_args_new (EBB_ARGS_LIST);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbTensor) same_tensor = NULL;
  g_autoptr (EbbArgs) same_args = NULL;
  g_autoptr (GObject) same_object = NULL;

  ebb_args_add_none (args, NULL);
  ebb_args_add_boolean (args, NULL, TRUE);
  ebb_args_add_int (args, NULL, G_MININT64);
  ebb_args_add_double (args, NULL, 0.1);
  ebb_args_add_string (args, NULL, "text");
  ebb_args_add_tensor (args, NULL, tensor);
  ebb_args_add_args (args, NULL, nested);
  ebb_args_add_object (args, "object", object);

  g_assert_cmpuint (ebb_args_get_length (args), ==, 8);
  g_assert_cmpuint (ebb_args_get_n_positional (args), ==, 7);
  for (guint i = 0; i < 8; i++)
    g_assert_cmpuint (ebb_args_get_value_kind (args, i), ==, EBB_VALUE_NONE + i);
  g_assert_true (ebb_args_get_boolean (args, 1));
  g_assert_cmpint (ebb_args_get_int (args, 2), ==, G_MININT64);
  g_assert_cmpfloat (ebb_args_get_double (args, 3), ==, 0.1);
  g_assert_cmpstr (ebb_args_get_string (args, 4), ==, "text");
  same_tensor = ebb_args_get_tensor (args, 5);
  g_assert_true (same_tensor == tensor);
  same_args = ebb_args_get_args (args, 6);
  g_assert_true (same_args == nested);
  same_object = ebb_args_get_object (args, 7);
  g_assert_true (same_object == object);
}

static void
other_kinds_read_as_nothing (void)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_LIST);

  ebb_args_add_string (args, NULL, "text");
  ebb_args_add_int (args, NULL, 3);
  g_assert_null (ebb_args_get_tensor (args, 0));
  g_assert_null (ebb_args_get_args (args, 0));
  g_assert_null (ebb_args_get_object (args, 0));
  g_assert_cmpint (ebb_args_get_int (args, 0), ==, 0);
  g_assert_null (ebb_args_get_string (args, 1));
  g_assert_cmpfloat (ebb_args_get_double (args, 1), ==, 3);
}

static void
positional_values_come_first (void)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autofree char *text = NULL;

  ebb_args_add_int (args, "b", 2);
  ebb_args_add_int (args, NULL, 0);
  ebb_args_add_int (args, "c", 3);
  ebb_args_add_int (args, NULL, 1);
  ebb_args_add_string (args, "b", "again");
  g_assert_cmpint (ebb_args_find (args, "b"), ==, 2);
  g_assert_cmpint (ebb_args_find (args, "c"), ==, 3);
  g_assert_cmpint (ebb_args_find (args, "d"), ==, -1);
  g_assert_null (ebb_args_get_key (args, 1));
  g_assert_cmpstr (ebb_args_get_key (args, 3), ==, "c");
  text = ebb_args_to_string (args);
  g_assert_cmpstr (text, ==, "(0, 1, b=\"again\", c=3)");
}

static void
many_values_are_kept (void)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_DICT);

  for (int i = 0; i < 1000; i++)
    {
      g_autofree char *key = g_strdup_printf ("key%d", i);

      ebb_args_add_int (args, key, i);
    }
  g_assert_cmpuint (ebb_args_get_length (args), ==, 1000);
  for (guint i = 0; i < 1000; i++)
    g_assert_cmpint (ebb_args_get_int (args, i), ==, i);
}

/* {"a": [x, (y, 3)], "b": z} */
static EbbArgs *
make_nested (EbbTensor *x, EbbTensor *y, EbbTensor *z)
{
  EbbArgs *dict = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) list = ebb_args_new (EBB_ARGS_LIST);
  g_autoptr (EbbArgs) tuple = ebb_args_new (EBB_ARGS_TUPLE);

  ebb_args_add_tensor (tuple, NULL, y);
  ebb_args_add_int (tuple, NULL, 3);
  ebb_args_add_tensor (list, NULL, x);
  ebb_args_add_args (list, NULL, tuple);
  ebb_args_add_args (dict, "a", list);
  ebb_args_add_tensor (dict, "b", z);
  return dict;
}

static EbbTensor *
double_it (EbbTensor *tensor, gpointer user_data, GError **error)
{
  (*(int *) user_data)++;
  return ebb_mul_scalar (tensor, 2, error);
}

static void
tensors_at_any_depth_are_mapped (void)
{
  g_autoptr (EbbTensor) x = test_randn (1, 2, -1);
  g_autoptr (EbbTensor) y = test_randn (2, 3, -1);
  g_autoptr (EbbTensor) z = test_randn (3, 4, -1);
  g_autoptr (EbbArgs) args = make_nested (x, y, z);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) mapped = NULL;
  g_autoptr (EbbArgs) list = NULL;
  g_autoptr (EbbArgs) tuple = NULL;
  g_autoptr (EbbTensor) twice = NULL;
  g_autofree char *text = NULL;
  int calls = 0;

  g_assert_cmpuint (ebb_args_get_n_tensors (args), ==, 3);
  mapped = ebb_args_map_tensors (args, double_it, &calls, &error);
  g_assert_no_error (error);
  g_assert_cmpint (calls, ==, 3);
  text = ebb_args_to_string (mapped);
  g_assert_cmpstr (text, ==, "{\"a\": [f32[2], (f32[3], 3)], \"b\": f32[4]}");
  list = ebb_args_get_args (mapped, 0);
  tuple = ebb_args_get_args (list, 1);
  twice = ebb_args_get_tensor (tuple, 0);
  g_assert_cmpfloat (test_at (twice, 1), ==, 2 * test_at (y, 1));
}

static EbbTensor *
fail_at_the_second (EbbTensor *tensor, gpointer user_data, GError **error)
{
  return ++*(int *) user_data == 2 ? NULL : ebb_tensor_ref (tensor);
}

static void
a_function_that_fails_stops_the_map (void)
{
  g_autoptr (EbbTensor) x = test_randn (1, 2, -1);
  g_autoptr (EbbArgs) args = make_nested (x, x, x);
  g_autoptr (GError) error = NULL;
  int calls = 0;

  g_assert_null (ebb_args_map_tensors (args, fail_at_the_second, &calls, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_CALLBACK);
  g_assert_cmpint (calls, ==, 2);
  g_assert_null (
      ebb_args_map_tensors (args, fail_at_the_second, &calls, &error)); /* an error is set: nothing is done */
  g_assert_cmpint (calls, ==, 2);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/args/values-come-back", values_come_back);
  g_test_add_func ("/args/other-kinds-read-as-nothing", other_kinds_read_as_nothing);
  g_test_add_func ("/args/positional-values-come-first", positional_values_come_first);
  g_test_add_func ("/args/many-values-are-kept", many_values_are_kept);
  g_test_add_func ("/args/tensors-at-any-depth-are-mapped", tensors_at_any_depth_are_mapped);
  g_test_add_func ("/args/a-function-that-fails-stops-the-map", a_function_that_fails_stops_the_map);
  return g_test_run ();
}
