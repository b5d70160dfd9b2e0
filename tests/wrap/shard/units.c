/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"
#include "support/training.h"

#include <ebb/ebb.h>
#include <json-glib/json-glib.h>
#include <string.h>

/* Which modules become units: by size, by what a function picks, and what is left when it ends half-way. */

#define N_RANKS 2
#define N_LAYERS 2

/* The units of @module as "name elements, name elements", the root's name as "root". */
static char *
describe_units (EbbModule *module)
{
  g_autofree char *json = ebb_shard_report_json (module);
  g_autoptr (JsonNode) root = json_from_string (json, NULL);
  JsonArray *units = json_node_get_array (root);
  GString *text = g_string_new (NULL);

  for (guint i = 0; i < json_array_get_length (units); i++)
    {
      JsonObject *unit = json_array_get_object_element (units, i);
      const char *name = json_object_get_string_member (unit, "name");
      const char *end = strstr (name, " (");

      g_string_append_printf (text, "%s%.*s %" G_GINT64_FORMAT, i > 0 ? ", " : "",
                              end != NULL ? (int) (end - name) : (int) strlen ("root"), end != NULL ? name : "root",
                              json_object_get_int_member (unit, "elements"));
    }
  return g_string_free (text, FALSE);
}

static void
assert_units (EbbModule *module,
              const char *expected)
{
  g_autofree char *units = describe_units (module);

  g_assert_cmpstr (units, ==, expected);
}

/* The loss of some rows, and its backward. */
static double
run_step (EbbModule *gpt)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) loss = test_ranks_loss (gpt, 0, 0, 4, &error);
  g_autoptr (EbbTensor) host = NULL;
  double value;

  g_assert_no_error (error);
  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
  host = ebb_to_device (loss, ebb_device_get_cpu (), &error);
  ebb_tensor_get_item (host, &value, &error);
  g_assert_no_error (error);
  return value;
}

/* -- by size ------------------------------------------------------------------------------------------------------- */

/* Of the model: wte 928, wpe 512, ln_f 64; in a block of 12704: ln_1 and ln_2 64 each, attn 3168 + 1056, mlp 4224 +
 * 4128. */
static const struct
{
  const char *path;
  guint64 min;
  const char *units;
} sizes[] = {
  { "/fully-shard/units/lists-are-none", 20000, "root 26912" },
  { "/fully-shard/units/blocks", 12704, "h.0 12704, h.1 12704" },
  { "/fully-shard/units/what-is-left-is-too-small", 5000, "root 10208, h.0.mlp 8352, h.1.mlp 8352" },
  { "/fully-shard/units/attention-joins-its-block", 4200,
    "h.0 8480, h.0.mlp.c_fc 4224, h.1 8480, h.1.mlp.c_fc 4224" },
  { "/fully-shard/units/embeddings-are-none", 500,
    "root 1504, h.0 4352, h.0.mlp.c_fc 4224, h.0.mlp.c_proj 4128, h.1 4352, h.1.mlp.c_fc 4224, h.1.mlp.c_proj 4128" },
  { "/fully-shard/units/root-at-an-exact-fit", 1504,
    "root 1504, h.0 4352, h.0.mlp.c_fc 4224, h.0.mlp.c_proj 4128, h.1 4352, h.1.mlp.c_fc 4224, h.1.mlp.c_proj 4128" },
  { "/fully-shard/units/root-is-too-small", 1505,
    "h.0 4352, h.0.mlp.c_fc 4224, h.0.mlp.c_proj 4128, h.1 4352, h.1.mlp.c_fc 4224, h.1.mlp.c_proj 4128" },
  { "/fully-shard/units/none-is-large", 26913, "" },
};

static gboolean
check_sizes (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  const guint i = GPOINTER_TO_UINT (user_data);
  g_autoptr (EbbModule) whole = test_ranks_model (N_LAYERS, 0, 1);
  g_autoptr (EbbModule) sharded = test_ranks_model (N_LAYERS, 0, 1);

  if (!ebb_fully_shard_auto_wrap (sharded, sizes[i].min, group, NULL, error))
    return FALSE;
  assert_units (sharded, sizes[i].units);
  g_assert_cmpfloat (run_step (sharded), ==, run_step (whole));
  return ebb_fully_shard_unwrap (sharded, error);
}

static void
test_sizes (gconstpointer data)
{
  test_ranks_run (N_RANKS, check_sizes, (gpointer) data);
}

/* Blocks become no units, and nothing in an MLP does. */
static gboolean
check_types (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  const GType force_leaf[] = { EBB_TYPE_MLP };
  const GType exclude[] = { EBB_TYPE_TRANSFORMER_BLOCK, EBB_TYPE_EMBEDDING, EBB_TYPE_MODULE_LIST };
  g_autoptr (EbbModule) whole = test_ranks_model (N_LAYERS, 0, 1);
  g_autoptr (EbbModule) sharded = test_ranks_model (N_LAYERS, 0, 1);

  if (!ebb_fully_shard_auto_wrap_types (sharded, 1000, force_leaf, G_N_ELEMENTS (force_leaf), exclude,
                                        G_N_ELEMENTS (exclude), group, NULL, error))
    return FALSE;
  assert_units (sharded, "root 18464, h.0.attn.c_attn 3168, h.0.attn.c_proj 1056, h.1.attn.c_attn 3168, "
                         "h.1.attn.c_proj 1056");
  g_assert_cmpfloat (run_step (sharded), ==, run_step (whole));
  if (!ebb_fully_shard_unwrap (sharded, error))
    return FALSE;
  /* By no type: the attention is a module as any other. */
  if (!ebb_fully_shard_auto_wrap_types (sharded, 4000, NULL, 0, NULL, 0, group, NULL, error))
    return FALSE;
  assert_units (sharded, "h.0.attn 4224, h.0.mlp.c_fc 4224, h.0.mlp.c_proj 4128, h.1.attn 4224, h.1.mlp.c_fc 4224, "
                         "h.1.mlp.c_proj 4128");
  return TRUE;
}

/* -- by what is picked --------------------------------------------------------------------------------------------- */

static gboolean
pick_and_count (EbbModule *module,
                const char *name,
                gpointer user_data)
{
  guint *n_asked = user_data;

  g_assert_cmpstr (name, !=, ""); /* the root is a unit in any case */
  ++*n_asked;
  return strcmp (name, "h.0") == 0 || EBB_IS_MLP (module);
}

static gboolean
check_picked (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  g_autoptr (EbbModule) whole = test_ranks_model (N_LAYERS, 0, 1);
  g_autoptr (EbbModule) sharded = test_ranks_model (N_LAYERS, 0, 1);
  g_auto (GStrv) names = ebb_module_get_module_names (sharded);
  guint n_asked = 0;

  if (!ebb_fully_shard_wrap_if (sharded, pick_and_count, &n_asked, group, NULL, error))
    return FALSE;
  g_assert_cmpuint (n_asked, ==, g_strv_length (names) - 1);
  assert_units (sharded, "root 5856, h.0 4352, h.0.mlp 8352, h.1.mlp 8352");
  g_assert_cmpfloat (run_step (sharded), ==, run_step (whole));
  return TRUE;
}

/* -- half-way ------------------------------------------------------------------------------------------------------ */

static gboolean
check_half_way (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  g_autoptr (EbbModule) gpt = test_ranks_model (N_LAYERS, 0, 1);
  g_autoptr (EbbModule) blocks = ebb_module_get_child (gpt, "h");
  g_autoptr (EbbModule) first = ebb_module_get_child (blocks, "0");
  g_autoptr (EbbModule) same = ebb_fully_shard (first, group, NULL, error);
  g_autoptr (GError) failure = NULL;

  g_assert_false (ebb_fully_shard_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, group, NULL, &failure));
  g_assert_error (failure, EBB_ERROR, EBB_ERROR_STATE);
  g_assert_false (ebb_fully_shard_is_wrapped (gpt));
  g_assert_true (ebb_fully_shard_unwrap (gpt, error));
  assert_units (gpt, "");
  if (!ebb_fully_shard_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, group, NULL, error))
    return FALSE;
  assert_units (gpt, "root 1504, h.0 12704, h.1 12704");
  return TRUE;
}

static void
test_ranks (gconstpointer data)
{
  test_ranks_run (N_RANKS, *(const EbbRankFunc *) data, NULL);
}

/* -- what is refused ----------------------------------------------------------------------------------------------- */

static void
expect_critical (const char *condition)
{
  g_autofree char *pattern = g_strdup_printf ("*%s*", condition);

  g_test_expect_message ("Ebb", G_LOG_LEVEL_CRITICAL, pattern);
}

static void
test_mistakes (void)
{
  g_autoptr (EbbModule) gpt = test_ranks_model (1, 0, 1);
  g_autoptr (GObject) other = g_object_new (EBB_TYPE_GENERATOR, NULL);
  g_autoptr (GError) error = NULL;
  guint n_asked = 0;

  g_assert_false (ebb_fully_shard_wrap_if (NULL, pick_and_count, &n_asked, NULL, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "root is NULL");
  g_clear_error (&error);
  g_assert_false (ebb_fully_shard_auto_wrap (NULL, 1, NULL, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "root is NULL");
  g_clear_error (&error);

  expect_critical ("pick != NULL");
  g_assert_false (ebb_fully_shard_wrap_if (gpt, NULL, NULL, NULL, NULL, &error));
  expect_critical ("EBB_IS_MODULE (root)");
  g_assert_false (ebb_fully_shard_wrap_if ((EbbModule *) other, pick_and_count, &n_asked, NULL, NULL, &error));
  expect_critical ("EBB_IS_MODULE (root)");
  g_assert_false (ebb_fully_shard_wrap_each ((EbbModule *) other, EBB_TYPE_MLP, NULL, NULL, &error));
  expect_critical ("EBB_IS_MODULE (root)");
  g_assert_false (ebb_fully_shard_auto_wrap ((EbbModule *) other, 1, NULL, NULL, &error));
  expect_critical ("EBB_IS_MODULE (module)");
  g_assert_false (ebb_fully_shard_unwrap ((EbbModule *) other, &error));
  g_test_assert_expected_messages ();
  g_assert_no_error (error);

  g_assert_false (ebb_fully_shard_wrap_each (gpt, EBB_TYPE_BATCH_NORM1D, NULL, NULL, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_clear_error (&error);
  g_assert_false (ebb_fully_shard_auto_wrap (gpt, 0, NULL, NULL, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_cmpuint (n_asked, ==, 0);
  assert_units (gpt, "");
}

/* Before there are threads: how GLib orders the making of classes is hidden from ThreadSanitizer. */
static void
make_all_types (void)
{
  g_autoptr (EbbModule) gpt = test_ranks_model (1, 0, 1);
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
}

int
main (int argc,
      char **argv)
{
  static const EbbRankFunc types = check_types, picked = check_picked, half_way = check_half_way;

  test_init (&argc, &argv);
  make_all_types ();
  for (guint i = 0; i < G_N_ELEMENTS (sizes); i++)
    g_test_add_data_func (sizes[i].path, GUINT_TO_POINTER (i), test_sizes);
  g_test_add_data_func ("/fully-shard/units/types", &types, test_ranks);
  g_test_add_data_func ("/fully-shard/units/picked", &picked, test_ranks);
  g_test_add_data_func ("/fully-shard/units/half-way", &half_way, test_ranks);
  g_test_add_func ("/fully-shard/units/mistakes", test_mistakes);
  return g_test_run ();
}
