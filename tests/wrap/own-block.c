/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
/* A class of blocks of one's own takes part wherever blocks are looked for: in wraps, plans, configurations of other
 * systems, and among tensor ranks. */
#include "support/device.h"
#include "support/own-block.h"
#include "support/ranks.h"
#include "support/tensors.h"

#include <string.h>

#define WIDTH 16
#define HIDDEN 64

/* -- a model of it ------------------------------------------------------------------------------------------------- */

static EbbModule *
make_list (guint n_modules, gboolean are_blocks)
{
  EbbModule *list = ebb_sequential_new ();

  for (guint i = 0; i < n_modules; i++)
    {
      g_autoptr (EbbModule) module = are_blocks ? test_own_block_new (WIDTH, HIDDEN)
                                                : ebb_linear_new (WIDTH, WIDTH, TRUE, NULL);

      g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (list), module, NULL));
    }
  return list;
}

/* 0: a list of five linear layers, which is longer; 1: one of three blocks. */
static EbbModule *
make_model (void)
{
  EbbModule *model = ebb_sequential_new ();
  g_autoptr (EbbModule) layers = NULL;
  g_autoptr (EbbModule) blocks = NULL;

  ebb_manual_seed (5);
  layers = make_list (5, FALSE);
  blocks = make_list (3, TRUE);
  g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (model), layers, NULL));
  g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (model), blocks, NULL));
  return model;
}

/* Asserts that the blocks of @model are checkpointed, and no other module. */
static void
assert_blocks_are_wrapped (EbbModule *model)
{
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (model, &n);

  for (guint i = 0; i < n; i++)
    {
      g_assert_cmpint (ebb_checkpoint_is_wrapped (modules[i]), ==, EBB_IS_BLOCK (modules[i]));
      g_object_unref (modules[i]);
    }
}

static gboolean
step (EbbModule *model, gpointer user_data, GError **error)
{
  g_autoptr (EbbTensor) x = test_randn (3, 8, WIDTH, -1);
  g_autoptr (EbbTensor) y = ebb_module_call1 (model, x, error);
  g_autoptr (EbbTensor) sum = ebb_sum (y, NULL, 0, FALSE, error);

  return sum != NULL && ebb_tensor_backward (sum, error);
}

/* -- cases --------------------------------------------------------------------------------------------------------- */

static void
test_wrap (void)
{
  g_autoptr (EbbModule) model = make_model ();
  g_autoptr (EbbModule) again = make_model ();
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_checkpoint_wrap_each (model, EBB_TYPE_BLOCK, NULL, &error));
  g_assert_no_error (error);
  assert_blocks_are_wrapped (model);
  g_assert_true (
      ebb_apply_libai_config (again, "{\"train\": {\"activation_checkpoint\": {\"enabled\": true}}}", &error));
  g_assert_no_error (error);
  assert_blocks_are_wrapped (again);
}

static void
test_plan (void)
{
  g_autoptr (EbbModule) model = make_model ();
  g_autoptr (EbbMemoryPlan) most = NULL;
  g_autoptr (EbbMemoryPlan) least = NULL;
  g_autofree char *json = NULL;
  g_autoptr (GError) error = NULL;
  guint64 least_bytes;

  most = ebb_memory_plan_new (model, test_device (), NULL, step, NULL, G_MAXINT64, &error);
  g_assert_no_error (error);
  g_object_get (most, "least-bytes", &least_bytes, NULL);
  least = ebb_memory_plan_new (model, test_device (), NULL, step, NULL, least_bytes, &error);
  g_assert_no_error (error);
  json = ebb_memory_plan_to_json (least);
  g_assert_nonnull (strstr (json, "\"1.0\""));
  g_assert_nonnull (strstr (json, "\"1.2\""));
  g_assert_null (strstr (json, "\"0.0\""));
  g_assert_true (ebb_memory_plan_apply (least, &error));
  g_assert_no_error (error);
  g_assert_true (step (model, NULL, &error));
}

static EbbTensor *
run_model (EbbModule *model, GError **error)
{
  g_autoptr (EbbTensor) x = test_randn (3, 8, WIDTH, -1);

  return ebb_module_call1 (model, x, error);
}

static gboolean
run_rank (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  g_autoptr (EbbModule) whole = make_model ();
  g_autoptr (EbbModule) model = make_model ();
  g_autoptr (EbbModule) same = ebb_parallelize (model, group, NULL, error);
  g_autoptr (EbbModule) up = ebb_module_get_child (model, "1.2.up");
  g_autoptr (EbbTensor) expected = run_model (whole, error);
  g_autoptr (EbbTensor) y = run_model (model, error);

  if (y == NULL || expected == NULL)
    return FALSE;
  g_assert_true (same == model && EBB_IS_COLUMN_PARALLEL_LINEAR (up));
  test_assert_near (y, expected, 1e-4);
  return TRUE;
}

static void
test_ranks (void)
{
  g_autoptr (EbbModule) model = make_model ();
  g_autoptr (EbbModule) other = ebb_transformer_block_new (WIDTH, 2, 0, TRUE, TRUE, NULL);
  g_autoptr (EbbModule) blocks = ebb_module_get_child (model, "1");
  g_autoptr (EbbParallelPlan) plan = NULL;
  g_autoptr (EbbParallelPlan) mixed = NULL;
  g_autofree char *text = NULL;
  g_autofree char *mixed_text = NULL;
  g_autoptr (GError) error = NULL;

  plan = ebb_parallel_plan_new_for (model, &error);
  g_assert_no_error (error);
  text = ebb_parallel_plan_to_string (plan);
  g_assert_cmpstr (text, ==, "1: sequence\n1.*.up: column\n1.*.down: row\n");
  test_ranks_run (2, run_rank, NULL);

  /* Blocks that differ have rules of their own. */
  g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (blocks), other, &error));
  mixed = ebb_parallel_plan_new_for (model, &error);
  g_assert_no_error (error);
  mixed_text = ebb_parallel_plan_to_string (mixed);
  g_assert_true (g_str_has_prefix (mixed_text, "1.0.up: column\n1.0.down: row\n1.1.up: column\n"));
  g_assert_nonnull (strstr (mixed_text, "1.3.attn.c_attn: column_qkv\n"));

  test_own_block_set_rule ("up: columns");
  g_assert_null (ebb_parallel_plan_new_for (model, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "OwnBlock: list_parallel_rules: \"up: columns\" must be",
                     "column_qkv");
  test_own_block_set_rule (NULL);
}

int
main (int argc, char **argv)
{
  g_setenv ("EBB_COST_FILE", "", TRUE);
  test_init (&argc, &argv);
  g_test_add_func ("/own-block/wrap", test_wrap);
  g_test_add_func ("/own-block/plan", test_plan);
  g_test_add_func ("/own-block/ranks", test_ranks);
  return g_test_run ();
}
