/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/profiles.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* The cost of products, which of them are the same work, and their floor. */

static gint64
get_op_number (JsonObject *object,
               const char *phase,
               const char *name,
               const char *member)
{
  JsonArray *ops = json_object_get_array_member (object, "ops");

  for (guint i = 0; i < json_array_get_length (ops); i++)
    {
      JsonObject *op = json_array_get_object_element (ops, i);

      if (strcmp (json_object_get_string_member (op, "phase"), phase) == 0
          && strcmp (json_object_get_string_member (op, "name"), name) == 0)
        return json_object_get_int_member (op, member);
    }
  g_error ("no op %s in phase %s", name, phase);
}

/* -- products ------------------------------------------------------------------------------------------------------ */

static void
flop_of_products_is_two_for_each_multiplication (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = test_profile_new (module, x);
  g_autoptr (JsonParser) parser = NULL;
  JsonObject *object = test_profile_get_json (profiler, &parser);
  const gint64 one = 2 * 4 * TEST_PROFILE_WIDTH * 2 * TEST_PROFILE_WIDTH;

  /* Backward has a product less: nobody wants the gradient of x. */
  g_assert_cmpint (get_op_number (object, "forward", "linear", "flop"), ==, 2 * one);
  g_assert_cmpint (get_op_number (object, "backward", "linear", "flop"), ==, 3 * one);
  g_assert_cmpint (get_op_number (object, "forward", "tanh", "flop"), ==, 4 * 2 * TEST_PROFILE_WIDTH);
}

static void
bytes_are_those_of_the_operands (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = test_profile_new (module, x);
  g_autoptr (JsonParser) parser = NULL;
  JsonObject *object = test_profile_get_json (profiler, &parser);
  const gint64 first = 4 * TEST_PROFILE_WIDTH + 2 * TEST_PROFILE_WIDTH * TEST_PROFILE_WIDTH + 2 * TEST_PROFILE_WIDTH
                       + 4 * 2 * TEST_PROFILE_WIDTH;
  const gint64 second = 4 * 2 * TEST_PROFILE_WIDTH + 2 * TEST_PROFILE_WIDTH * TEST_PROFILE_WIDTH + TEST_PROFILE_WIDTH
                        + 4 * TEST_PROFILE_WIDTH;

  g_assert_cmpint (get_op_number (object, "forward", "linear", "bytes"), ==, 4 * (first + second));
  g_assert_cmpint (get_op_number (object, "forward", "tanh", "bytes"), ==, 4 * 2 * 4 * 2 * TEST_PROFILE_WIDTH);
}

/* How often each kind of product was recorded: those that add to their result, and the others. */
static void
count_products (EbbProfiler *profiler,
                guint *n_kinds,
                gint64 *n_plain,
                gint64 *n_adding)
{
  g_autoptr (JsonParser) parser = NULL;
  JsonArray *products = json_object_get_array_member (test_profile_get_json (profiler, &parser), "products");

  *n_kinds = json_array_get_length (products);
  *n_plain = *n_adding = 0;
  for (guint i = 0; i < *n_kinds; i++)
    {
      JsonObject *product = json_array_get_object_element (products, i);
      gint64 count = json_object_get_int_member (product, "count");

      if (json_object_get_boolean_member (product, "accumulate"))
        *n_adding += count;
      else
        *n_plain += count;
    }
}

static void
products_are_counted_by_shape_layout_and_accumulation (void)
{
  g_autoptr (EbbProfiler) profiler = ebb_profiler_new ();
  g_autoptr (EbbModule) module = NULL;
  g_autoptr (EbbTensor) x = test_randn (2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (EbbTensor) longer = test_randn (2, 5, TEST_PROFILE_WIDTH, -1);
  GError *error = NULL;
  guint n_kinds;
  gint64 n_plain, n_adding;

  module = ebb_linear_new (TEST_PROFILE_WIDTH, TEST_PROFILE_WIDTH, TRUE, &error);
  g_assert_no_error (error);
  test_profile_start (profiler);
  test_profile_train (module, x, NULL);
  count_products (profiler, &n_kinds, &n_plain, &n_adding);
  g_assert_cmpuint (n_kinds, ==, 2); /* x W^T + b; dy^T x */
  g_assert_cmpint (n_plain, ==, 2);
  test_profile_train (module, x, NULL); /* the weight has a gradient now, to which its product adds */
  test_profile_train (module, x, NULL);
  count_products (profiler, &n_kinds, &n_plain, &n_adding);
  g_assert_cmpuint (n_kinds, ==, 3);
  g_assert_cmpint (n_plain, ==, 4);
  g_assert_cmpint (n_adding, ==, 2);
  test_profile_train (module, longer, NULL);
  count_products (profiler, &n_kinds, &n_plain, &n_adding);
  g_assert_cmpuint (n_kinds, ==, 5);
  ebb_profiler_stop (profiler);
}

/* -- the floor ----------------------------------------------------------------------------------------------------- */

static void
the_floor_is_measured_once_for_each_product (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (EbbTensor) longer = test_randn (2, 5, TEST_PROFILE_WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = test_profile_new (module, x);
  GError *error = NULL;
  double floor;

  g_assert_cmpfloat (ebb_profiler_get_floor_seconds (profiler), ==, -1);
  g_assert_cmpfloat (ebb_profiler_get_floor_share (profiler), ==, -1);
  ebb_profiler_measure_floor (profiler, &error);
  g_assert_no_error (error);
  floor = ebb_profiler_get_floor_seconds (profiler);
  g_assert_cmpfloat (floor, >, 0);
  g_assert_cmpfloat (ebb_profiler_get_attention_floor_seconds (profiler), ==, 0);
  g_assert_cmpfloat_with_epsilon (ebb_profiler_get_floor_share (profiler), floor / ebb_profiler_get_seconds (profiler),
                                  1e-12);
  /* Measured floors stay, to the last bit; new products are not measured yet. */
  ebb_profiler_measure_floor (profiler, &error);
  g_assert_cmpfloat (ebb_profiler_get_floor_seconds (profiler), ==, floor);
  test_profile_start (profiler);
  test_profile_train (module, longer, NULL);
  ebb_profiler_stop (profiler);
  g_assert_cmpfloat (ebb_profiler_get_floor_seconds (profiler), ==, -1);
  ebb_profiler_measure_floor (profiler, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (ebb_profiler_get_floor_seconds (profiler), >, floor);
}

static void
attention_has_a_floor_of_its_own (void)
{
  g_autoptr (EbbModule) blocks = test_profile_blocks_new (NULL);
  g_autoptr (EbbTensor) x = test_randn (2, 2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = test_profile_new (blocks, x);
  g_autoptr (JsonParser) parser = NULL;
  g_autofree char *table = NULL;
  g_autofree char *products = NULL;
  GError *error = NULL;
  JsonArray *attention;

  ebb_profiler_measure_floor (profiler, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (ebb_profiler_get_floor_seconds (profiler), >, 0);
  g_assert_cmpfloat (ebb_profiler_get_attention_floor_seconds (profiler), >, 0);
  attention = json_object_get_array_member (test_profile_get_json (profiler, &parser), "attention");
  g_assert_cmpuint (json_array_get_length (attention), ==, 2); /* forward and backward, of equal blocks */
  for (guint i = 0; i < 2; i++)
    g_assert_cmpint (json_object_get_int_member (json_array_get_object_element (attention, i), "count"), ==, 2);
  /* 2 sequences of 4 positions, width 8; two products forward, five backward; two blocks; causal: half. */
  g_assert_cmpint (json_object_get_int_member (json_array_get_object_element (attention, 0), "flop"), ==,
                   2 * (2 * 2 * (2 * 4 * 4 * TEST_PROFILE_WIDTH)) / 2);
  g_assert_cmpint (json_object_get_int_member (json_array_get_object_element (attention, 1), "flop"), ==,
                   2 * (5 * 2 * (2 * 4 * 4 * TEST_PROFILE_WIDTH)) / 2);
  table = ebb_profiler_get_table (profiler);
  g_assert_nonnull (strstr (table, "floor, with those inside attention"));
  products = ebb_profiler_get_product_table (profiler);
  g_assert_nonnull (strstr (products, "f32 [8, 8] x [8, 24] + bias, b transposed\n"));
  g_assert_nonnull (strstr (products, "f32 [2, 2, 4, 4] to [2, 2, 4, 4], causal\n"));
  g_assert_nonnull (strstr (products, "f32 [2, 2, 4, 4] to [2, 2, 4, 4], causal, gradient\n"));
}

static void
the_floor_takes_what_products_take (void)
{
  const gint64 shape[] = { 2, 4, 6, TEST_PROFILE_WIDTH };
  GError *error = NULL;
  g_autoptr (EbbTensor) query = ebb_randn (shape, 4, EBB_DTYPE_BF16, NULL, NULL, &error);
  g_autoptr (EbbTensor) key =
      ebb_randn ((gint64[]){ 2, 2, 5, TEST_PROFILE_WIDTH }, 4, EBB_DTYPE_BF16, NULL, NULL, &error);
  g_autoptr (EbbTensor) vector = ebb_randn ((gint64[]){ TEST_PROFILE_WIDTH }, 1, EBB_DTYPE_F32, NULL, NULL, &error);
  g_autoptr (EbbTensor) matrix =
      ebb_randn ((gint64[]){ 3, TEST_PROFILE_WIDTH, 4 }, 3, EBB_DTYPE_F32, NULL, NULL, &error);
  g_autoptr (EbbTensor) expanded = ebb_expand (vector, (gint64[]){ 3, 6, TEST_PROFILE_WIDTH }, 3, &error);
  g_autoptr (EbbTensor) empty = ebb_zeros ((gint64[]){ 0, TEST_PROFILE_WIDTH }, 2, EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbProfiler) profiler = ebb_profiler_new ();
  g_autoptr (EbbTensor) grouped = NULL;
  g_autoptr (EbbTensor) vectors = NULL;
  g_autoptr (EbbTensor) broadcast = NULL;
  g_autoptr (EbbTensor) nothing = NULL;

  g_assert_no_error (error);
  test_profile_start (profiler);
  /* Heads that share keys; a vector; a batch that is one matrix; no rows at all. */
  grouped = ebb_scaled_dot_product_attention (query, key, key, NULL, FALSE, 0, 0, NULL, &error);
  vectors = ebb_matmul (vector, matrix, &error);
  broadcast = ebb_matmul (expanded, matrix, &error);
  nothing = ebb_matmul (empty, matrix, &error);
  ebb_profiler_stop (profiler);
  ebb_profiler_measure_floor (profiler, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (ebb_profiler_get_floor_seconds (profiler), >, 0);
  g_assert_cmpfloat (ebb_profiler_get_attention_floor_seconds (profiler), >, 0);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/profiler/flop-of-products", flop_of_products_is_two_for_each_multiplication);
  g_test_add_func ("/profiler/bytes-of-operands", bytes_are_those_of_the_operands);
  g_test_add_func ("/profiler/products-are-counted-by-kind", products_are_counted_by_shape_layout_and_accumulation);
  g_test_add_func ("/profiler/floor/is-measured-once-for-each-product", the_floor_is_measured_once_for_each_product);
  g_test_add_func ("/profiler/floor/of-attention", attention_has_a_floor_of_its_own);
  g_test_add_func ("/profiler/floor/takes-what-products-take", the_floor_takes_what_products_take);
  return g_test_run ();
}
