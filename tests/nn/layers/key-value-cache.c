/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"

/* A cache gives back the keys that were appended, whatever its buffers do meanwhile, within its capacity, counted. */

static guint64
cached_bytes (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_current (stats, EBB_PURPOSE_CACHE);
}

/* Keys as attention has them: [B, G, T, D], a view of [B, T, G, D]. */
static EbbTensor *
make_keys (guint64 seed, gint64 n_rows, gint64 n_tokens)
{
  g_autoptr (EbbTensor) by_token = test_randn (seed, n_rows, n_tokens, (gint64) 2, (gint64) 4, (gint64) -1);

  return ebb_transpose (by_token, 1, 2, NULL);
}

static gboolean
append (EbbKeyValueCache *cache, EbbModule *layer, EbbTensor *keys, EbbTensor **all_keys, GError **error)
{
  g_autoptr (EbbTensor) values = ebb_mul_scalar (keys, 2, NULL);
  g_autoptr (EbbTensor) all_values = NULL;
  g_autoptr (EbbTensor) doubled = NULL;

  if (!ebb_key_value_cache_append (cache, layer, keys, values, all_keys, &all_values, error))
    return FALSE;
  doubled = ebb_mul_scalar (*all_keys, 2, NULL);
  g_assert_true (ebb_tensor_equal (doubled, all_values));
  return TRUE;
}

static EbbTensor *
join (EbbTensor *a, EbbTensor *b)
{
  EbbTensor *parts[] = { a, b };

  return ebb_cat (parts, 2, 2, NULL);
}

static void
it_gives_back_what_was_appended (void)
{
  GError *error = NULL;
  g_autoptr (EbbKeyValueCache) cache = ebb_key_value_cache_new (100);
  g_autoptr (EbbModule) first_layer = ebb_relu_new ();
  g_autoptr (EbbModule) second_layer = ebb_relu_new ();
  EbbModule *layers[] = { first_layer, second_layer };
  EbbTensor *expected[2] = { NULL, NULL };
  const gint64 lengths[] = { 3, 1, 1, 70, 24, 1 }; /* up to the capacity, over two sizes of the buffers */
  gint64 length = 0;

  for (guint i = 0; i < G_N_ELEMENTS (lengths); i++)
    {
      for (guint layer = 0; layer < 2; layer++)
        {
          g_autoptr (EbbTensor) keys = make_keys (i * 2 + layer, 3, lengths[i]);
          g_autoptr (EbbTensor) all = NULL;
          EbbTensor *longer = expected[layer] != NULL ? join (expected[layer], keys) : ebb_tensor_ref (keys);

          g_clear_pointer (&expected[layer], ebb_tensor_unref);
          expected[layer] = longer;
          g_assert_cmpint (ebb_key_value_cache_get_length (cache), ==, length);
          g_assert_true (append (cache, layers[layer], keys, &all, &error));
          g_assert_no_error (error);
          g_assert_true (ebb_tensor_equal (all, expected[layer]));
        }
      ebb_key_value_cache_advance (cache, lengths[i]);
      length += lengths[i];
      g_assert_cmpuint (ebb_key_value_cache_get_n_bytes (cache), ==,
                        (length <= 64 ? 64 : 100) * 2 * 2 * 3 * 2 * 4 * sizeof (float));
      g_assert_cmpuint (cached_bytes (), ==, ebb_key_value_cache_get_n_bytes (cache));
    }
  ebb_tensor_unref (expected[0]);
  ebb_tensor_unref (expected[1]);
  ebb_key_value_cache_reset (cache);
  g_assert_cmpuint (cached_bytes (), ==, 0);
  g_assert_cmpint (ebb_key_value_cache_get_length (cache), ==, 0);
}

static void
rows_and_tokens_are_dropped (void)
{
  const gint64 rows[] = { 0, 2, 3 }, bad[] = { 2, 1 }, far[] = { 4 };
  GError *error = NULL;
  g_autoptr (EbbKeyValueCache) cache = ebb_key_value_cache_new (10);
  g_autoptr (EbbModule) layer = ebb_relu_new ();
  g_autoptr (EbbTensor) first = make_keys (1, 4, 5);
  g_autoptr (EbbTensor) second = make_keys (2, 3, 1);
  g_autoptr (EbbTensor) chosen = ebb_tensor_new_from_ints (rows, 3, (const gint64[]){ 3 }, 1, NULL);
  g_autoptr (EbbTensor) there = test_move (chosen);
  g_autoptr (EbbTensor) kept = ebb_index_select (first, 0, there, NULL);
  g_autoptr (EbbTensor) shorter = ebb_narrow (kept, 2, 0, 4, NULL);
  g_autoptr (EbbTensor) expected = join (shorter, second);
  g_autoptr (EbbTensor) all = NULL;
  g_autoptr (EbbTensor) more = NULL;

  g_assert_true (append (cache, layer, first, &all, &error));
  ebb_key_value_cache_advance (cache, 5);
  g_assert_false (ebb_key_value_cache_keep_rows (cache, bad, 2, &error));
  test_assert_error (error, EBB_ERROR_INDEX, "row 1 at 1", "[0, 4)");
  g_clear_error (&error);
  g_assert_false (ebb_key_value_cache_keep_rows (cache, far, 1, &error));
  test_assert_error (error, EBB_ERROR_INDEX, "row 4 at 0");
  g_clear_error (&error);
  g_assert_true (ebb_key_value_cache_keep_rows (cache, rows, 3, &error));
  ebb_key_value_cache_truncate (cache, 4);
  g_assert_true (append (cache, layer, second, &more, &error));
  g_assert_no_error (error);
  g_assert_true (ebb_tensor_equal (more, expected));
}

/* An emptied cache takes rows of another number, width and dtype, like a new one; so does one whose first call failed.
 */
static void
an_emptied_cache_is_like_a_new_one (void)
{
  GError *error = NULL;
  const gint64 shapes[][4] = { { 2, 2, 3, 4 }, { 5, 2, 2, 4 }, { 1, 4, 6, 4 }, { 2, 2, 1, 8 } };
  g_autoptr (EbbKeyValueCache) cache = ebb_key_value_cache_new (6);
  g_autoptr (EbbModule) layer = ebb_relu_new ();

  for (guint i = 0; i < G_N_ELEMENTS (shapes) * 2; i++)
    {
      const gint64 *d = shapes[i % G_N_ELEMENTS (shapes)];
      g_autoptr (EbbTensor) wide = test_randn (i, d[0], d[1], d[2], d[3], (gint64) -1);
      g_autoptr (EbbTensor) keys = ebb_cast (wide, i < G_N_ELEMENTS (shapes) ? EBB_DTYPE_F32 : EBB_DTYPE_BF16, NULL);
      g_autoptr (EbbTensor) more = ebb_narrow (keys, 2, 0, 1, NULL);
      g_autoptr (EbbTensor) all = NULL;
      g_autoptr (EbbTensor) again = NULL;
      const gint64 first[] = { 0 };

      g_assert_true (append (cache, layer, keys, &all, &error));
      g_assert_no_error (error);
      g_assert_true (ebb_tensor_equal (all, keys));
      if (i % 2 == 0) /* the call ends, and rows do; otherwise it fails after this layer */
        {
          ebb_key_value_cache_advance (cache, d[2]);
          g_assert_true (ebb_key_value_cache_keep_rows (cache, first, 1, &error));
        }
      else
        {
          g_assert_false (append (cache, layer, more, &again, &error));
          g_assert_nonnull (error);
          g_clear_error (&error);
        }
      ebb_key_value_cache_truncate (cache, 0);
      g_assert_cmpint (ebb_key_value_cache_get_length (cache), ==, 0);
    }
}

static void
it_refuses_what_does_not_fit (void)
{
  GError *error = NULL;
  g_autoptr (EbbKeyValueCache) cache = ebb_key_value_cache_new (4);
  g_autoptr (EbbModule) layer = ebb_relu_new ();
  g_autoptr (EbbTensor) five = make_keys (1, 2, 5);
  g_autoptr (EbbTensor) three = make_keys (1, 2, 3);
  g_autoptr (EbbTensor) one = make_keys (1, 2, 1);
  g_autoptr (EbbTensor) other_rows = make_keys (1, 3, 1);
  g_autoptr (EbbTensor) wide = test_randn (1, (gint64) 2, (gint64) 2, (gint64) 1, (gint64) 8, (gint64) -1);
  g_autoptr (EbbTensor) flat = test_randn (1, (gint64) 2, (gint64) 8, (gint64) -1);
  g_autoptr (EbbTensor) half = ebb_cast (one, EBB_DTYPE_BF16, NULL);
  g_autoptr (EbbTensor) leaf = test_randn (1, (gint64) 2, (gint64) 2, (gint64) 1, (gint64) 4, (gint64) -1);
  g_autoptr (EbbTensor) all = NULL;

  g_assert_false (append (cache, layer, five, &all, &error));
  test_assert_error (error, EBB_ERROR_INDEX, "5 tokens after 0", "capacity of 4");
  g_clear_error (&error);
  g_assert_false (append (cache, layer, flat, &all, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "keys [2, 8]", "[B, G, T, D]");
  g_clear_error (&error);
  g_assert_true (append (cache, layer, three, &all, &error));
  g_clear_pointer (&all, ebb_tensor_unref);
  g_assert_false (append (cache, layer, three, &all, &error)); /* a second time in the same call */
  test_assert_error (error, EBB_ERROR_STATE, "holds 3 tokens and the cache 0");
  g_clear_error (&error);
  ebb_key_value_cache_advance (cache, 3);

  const struct
  {
    EbbTensor *keys;
    EbbError code;
    const char *says;
  } cases[] = { { three, EBB_ERROR_INDEX, "3 tokens after 3" },
                { other_rows, EBB_ERROR_SHAPE, "it holds 2 rows" },
                { wide, EBB_ERROR_SHAPE, "keys [2, 2, 1, 8] do not follow keys [2, 2, 4, 4]" },
                { half, EBB_ERROR_DTYPE, "keys of bf16 do not follow keys of f32" },
                { leaf, EBB_ERROR_GRAPH, "gradients are recorded" } };

  g_assert_true (ebb_tensor_set_requires_grad (leaf, TRUE, NULL));
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_assert_false (append (cache, layer, cases[i].keys, &all, &error));
      test_assert_error (error, cases[i].code, cases[i].says);
      g_clear_error (&error);
    }
  g_assert_true (append (cache, layer, one, &all, &error));
  g_assert_no_error (error);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/nn/layers/key-value-cache/gives-back", it_gives_back_what_was_appended);
  g_test_add_func ("/nn/layers/key-value-cache/drops", rows_and_tokens_are_dropped);
  g_test_add_func ("/nn/layers/key-value-cache/emptied", an_emptied_cache_is_like_a_new_one);
  g_test_add_func ("/nn/layers/key-value-cache/refuses", it_refuses_what_does_not_fit);
  return g_test_run ();
}
