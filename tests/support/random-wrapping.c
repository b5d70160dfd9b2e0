/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/random-wrapping.h"

/* -- options ------------------------------------------------------------------------------------------------------- */

static EbbCheckpointPolicy
random_policy (const char *op,
               guint ordinal,
               guint64 n_bytes,
               gpointer user_data,
               GError **error)
{
  TestDice dice = test_dice_new (GPOINTER_TO_UINT (user_data) + g_str_hash (op) + 31 * ordinal);

  return (EbbCheckpointPolicy) test_dice_roll (&dice, 4);
}

static gboolean
announced (EbbModule *module,
           EbbRecomputePhase phase,
           gpointer user_data,
           GError **error)
{
  TestWrapping *wrapping = user_data;

  if (phase == EBB_RECOMPUTE_BEGIN)
    wrapping->n_begun++;
  else
    wrapping->n_ended++;
  return TRUE;
}

static void
set_policy (EbbCheckpointOptions *options,
            TestDice *dice,
            GString *text)
{
  g_autoptr (GError) error = NULL;
  guint n = 1 + test_dice_roll (dice, 3);

  switch (test_dice_roll (dice, 8))
    {
    case 0:
      g_string_append (text, " selective");
      ebb_checkpoint_options_set_policy_selective (options);
      break;
    case 1:
      g_string_append (text, " core-attention");
      ebb_checkpoint_options_set_policy_core_attention (options);
      break;
    case 2:
      g_string_append_printf (text, " nth-product %u", n);
      ebb_checkpoint_options_set_policy_save_nth_product (options, n, &error);
      break;
    case 3:
      {
        g_auto (GStrv) names = ebb_op_list_names ();
        guint n_names = g_strv_length (names);
        const char *some[] = { names[test_dice_roll (dice, n_names)], names[test_dice_roll (dice, n_names)],
                               names[test_dice_roll (dice, n_names)], "linear", NULL };

        g_string_append_printf (text, " save %s %s %s %s", some[0], some[1], some[2], some[3]);
        ebb_checkpoint_options_set_policy_save_ops (options, some, &error);
        break;
      }
    case 4:
    case 5:
      n = test_dice_roll (dice, 100000);
      g_string_append_printf (text, " policy %u", n);
      ebb_checkpoint_options_set_policy (options, random_policy, GUINT_TO_POINTER (n), NULL);
      break;
    default: break;
    }
  g_assert_no_error (error);
}

static EbbCheckpointOptions *
random_options (TestWrapping *wrapping,
                TestDice *dice)
{
  static const char *const checks[] = { "none", "default", "values" };
  EbbCheckpointOptions *options = ebb_checkpoint_options_new ();
  GString *text = wrapping->description;
  guint check = test_dice_roll (dice, 3), store = test_dice_roll (dice, 2 * TEST_N_STORES);

  g_string_append_printf (text, " check %s", checks[check]);
  g_object_set (options, "determinism-check", (EbbDeterminismCheck) check, NULL);
  set_policy (options, dice, text);
  if (store < TEST_N_STORES)
    {
      g_string_append_printf (text, " %s", wrapping->stores->names[store]);
      ebb_checkpoint_options_set_store (options, wrapping->stores->stores[store]);
    }
  if (test_dice_chance (dice, 30))
    {
      g_string_append (text, " no-early-stop");
      g_object_set (options, "early-stop", FALSE, NULL);
    }
  if (test_dice_chance (dice, 25))
    {
      g_string_append (text, " retain");
      g_object_set (options, "retain-recomputed", TRUE, NULL);
    }
  if (test_dice_chance (dice, 25))
    g_object_set (options, "offload-to-cpu", TRUE, NULL);
  if (test_dice_chance (dice, 50))
    ebb_checkpoint_options_set_recompute_func (options, announced, wrapping, NULL);
  g_string_append_c (text, '\n');
  return options;
}

/* -- wrapping ------------------------------------------------------------------------------------------------------ */

void
test_wrapping_wrap_module (TestWrapping *wrapping,
                           TestDice *dice,
                           EbbModule *module,
                           const char *name)
{
  g_autoptr (GError) error = NULL;

  do
    {
      g_autoptr (EbbCheckpointOptions) options = NULL;
      g_autoptr (EbbModule) same = NULL;

      g_string_append_printf (wrapping->description, "  %s \"%s\":", G_OBJECT_TYPE_NAME (module), name);
      options = random_options (wrapping, dice);
      same = ebb_checkpoint_wrapper (module, options, &error);
      g_assert_no_error (error);
    }
  while (test_dice_chance (dice, 12));
}

void
test_wrapping_offload_module (TestWrapping *wrapping,
                              TestDice *dice,
                              EbbModule *module,
                              const char *name)
{
  guint store = test_dice_roll (dice, TEST_N_STORES);
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (GError) error = NULL;

  g_string_append_printf (wrapping->description, "  %s \"%s\": offloaded to %s\n", G_OBJECT_TYPE_NAME (module), name,
                          wrapping->stores->names[store]);
  same = ebb_offload_wrapper (module, wrapping->stores->stores[store], &error);
  g_assert_no_error (error);
}

/* The layers of a sequence in chunks, or the first few of them. */
static void
wrap_stack (TestWrapping *wrapping,
            TestDice *dice,
            EbbModule *module,
            const char *name)
{
  guint n_layers = ebb_sequential_get_length (EBB_SEQUENTIAL (module)), n = 1 + test_dice_roll (dice, n_layers);
  gboolean uniform = test_dice_chance (dice, 50);
  g_autoptr (EbbCheckpointOptions) options = NULL;
  g_autoptr (GError) error = NULL;

  g_string_append_printf (wrapping->description, "  %s %u \"%s\":", uniform ? "uniform" : "block", n, name);
  options = random_options (wrapping, dice);
  if (uniform)
    ebb_checkpoint_wrap_uniform (module, n, options, &error);
  else
    ebb_checkpoint_wrap_block (module, n, options, &error);
  g_assert_no_error (error);
}

static void
wrap_parts (TestWrapping *wrapping,
            TestDice *dice,
            TestTree *tree)
{
  for (guint i = 0; i < tree->parts->len; i++)
    {
      TestPart *part = g_ptr_array_index (tree->parts, i);
      g_autoptr (EbbCheckpointOptions) options = NULL;

      if (!test_part_may_checkpoint (part) || test_dice_chance (dice, 30))
        continue;
      g_string_append_printf (wrapping->description, "  part %u calls:", i);
      options = random_options (wrapping, dice);
      test_part_set_options (part, options);
    }
}

void
test_wrapping_apply (TestWrapping *wrapping,
                     TestTree *tree)
{
  static const guint percentages[] = { 15, 40, 80 };
  TestDice dice = test_dice_new (wrapping->seed);
  g_auto (GStrv) names = ebb_module_get_module_names (tree->root);
  guint n, percent, outside;
  g_autofree EbbModule **modules = test_tree_get_modules (tree, &n);

  wrapping->description = g_string_new (NULL);
  percent = percentages[test_dice_roll (&dice, G_N_ELEMENTS (percentages))];
  test_stores_draw (wrapping->stores, &dice, wrapping->description);
  for (guint i = 0; i < n; i++)
    {
      gboolean offloads = test_dice_chance (&dice, 20), first = test_dice_chance (&dice, 50);

      if (offloads && first)
        test_wrapping_offload_module (wrapping, &dice, modules[i], names[i]);
      if (test_dice_chance (&dice, percent))
        test_wrapping_wrap_module (wrapping, &dice, modules[i], names[i]);
      if (offloads && !first)
        test_wrapping_offload_module (wrapping, &dice, modules[i], names[i]);
      if (EBB_IS_SEQUENTIAL (modules[i]) && test_dice_chance (&dice, 40))
        wrap_stack (wrapping, &dice, modules[i], names[i]);
      g_object_unref (modules[i]);
    }
  wrap_parts (wrapping, &dice, tree);
  wrapping->disabled = test_dice_chance (&dice, 4);
  wrapping->fails_first = test_dice_chance (&dice, 25);
  outside = test_dice_roll (&dice, 4 * TEST_N_STORES);
  wrapping->outside = outside < TEST_N_STORES ? wrapping->stores->stores[outside] : NULL;
  if (wrapping->disabled)
    g_string_append (wrapping->description, "  disabled around the forwards\n");
  if (wrapping->fails_first)
    g_string_append (wrapping->description, "  after a step that fails\n");
  if (wrapping->outside != NULL)
    g_string_append_printf (wrapping->description, "  %s around the forwards\n", wrapping->stores->names[outside]);
}

void
test_wrapping_clear (TestWrapping *wrapping)
{
  if (wrapping->description != NULL)
    g_string_free (wrapping->description, TRUE);
  wrapping->description = NULL;
}
