/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/random-tree.h"

#include "support/own-block.h"
#include "support/tensors.h"

/* -- growing a tree ------------------------------------------------------------------------------------------------ */

static EbbModule *make_plain (TestTree *tree,
                              guint depth);

static EbbModule *
make_leaf (TestTree *tree)
{
  GError *error = NULL;
  EbbModule *leaf = NULL;

  switch (test_dice_roll (&tree->dice, 12))
    {
    case 0:
    case 1:
    case 2: leaf = ebb_linear_new (TEST_WIDTH, TEST_WIDTH, test_dice_chance (&tree->dice, 70), &error); break;
    case 3: leaf = ebb_layer_norm_new (TEST_WIDTH, 1e-5, TRUE, &error); break;
    case 4: leaf = ebb_rms_norm_new (TEST_WIDTH, 1e-5, &error); break;
    case 5: leaf = ebb_dropout_new (0.3, &error); break;
    case 6: leaf = ebb_gelu_new (EBB_GELU_TANH); break;
    case 7: leaf = ebb_silu_new (); break;
    case 8: leaf = ebb_tanh_new (); break;
    case 9:
      leaf = ebb_multi_head_attention_new (TEST_WIDTH, 2, test_dice_chance (&tree->dice, 50) ? 0.2 : 0,
                                           test_dice_chance (&tree->dice, 50), &error);
      break;
    case 10: leaf = ebb_mlp_new (TEST_WIDTH, 2 * TEST_WIDTH, EBB_ACTIVATION_GELU_TANH, &error); break;
    default:
      leaf = ebb_transformer_block_new (TEST_WIDTH, 2, test_dice_chance (&tree->dice, 50) ? 0.1 : 0, TRUE,
                                        test_dice_chance (&tree->dice, 50), &error);
      break;
    }
  g_assert_no_error (error);
  if (EBB_IS_BLOCK (leaf) && test_dice_chance (&tree->block_dice, 40))
    {
      g_object_unref (leaf);
      leaf = test_own_block_new (TEST_WIDTH, 2 * TEST_WIDTH);
    }
  return leaf;
}

static void
add_child (EbbModule *parent,
           guint index,
           EbbModule *module)
{
  g_autofree char *name = g_strdup_printf ("part%u", index);
  g_autoptr (GError) error = NULL;

  ebb_module_register_child (parent, name, module, &error);
  g_assert_no_error (error);
  g_object_unref (module);
}

static void
add_parameter (TestTree *tree,
               TestPart *part,
               const char *name,
               gint64 rows)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tensor = rows > 0 ? test_randn (test_dice_roll (&tree->dice, 1000), (int) rows, TEST_WIDTH, -1)
                                          : test_randn (test_dice_roll (&tree->dice, 1000), TEST_WIDTH, -1);

  ebb_module_register_parameter (EBB_MODULE (part), name, tensor, &error);
  g_assert_no_error (error);
}

static void
add_own_state (TestTree *tree,
               TestPart *part)
{
  const guint salt = test_part_get_salt (part);
  g_autoptr (EbbTensor) sum = test_randn (5, TEST_WIDTH, -1);
  g_autoptr (GError) error = NULL;
  TestOwn own;

  test_part_get_kind (part, NULL, NULL, &own);
  switch (own)
    {
    case TEST_OWN_NOTHING: break;
    case TEST_OWN_GAIN: add_parameter (tree, part, "gain", 0); break;
    case TEST_OWN_TABLE: add_parameter (tree, part, "table", TEST_WIDTH); break;
    case TEST_OWN_SHARED_WEIGHT:
      ebb_module_register_parameter (EBB_MODULE (part), "weight", tree->shared[salt % TEST_N_SHARED], &error);
      break;
    case TEST_OWN_CLOSURE: test_part_set_closure (part, tree->closures[salt % TEST_N_CLOSURES]); break;
    case TEST_OWN_SUM: ebb_module_register_buffer (EBB_MODULE (part), "sum", sum, TRUE, &error); break;
    }
  g_assert_no_error (error);
  if (test_dice_chance (&tree->dice, 50))
    test_part_set_generator (part, tree->generators[salt % TEST_N_GENERATORS]);
}

static EbbModule *
make_sequence (TestTree *tree,
               guint depth)
{
  EbbModule *sequence = ebb_sequential_new ();
  guint n = 2 + test_dice_roll (&tree->dice, 3);

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbModule) module = make_plain (tree, depth > 0 ? depth - 1 : 0);
      g_autoptr (GError) error = NULL;

      ebb_sequential_append (EBB_SEQUENTIAL (sequence), module, &error);
      g_assert_no_error (error);
    }
  return sequence;
}

/* @kind: NULL for any that goes from tensor to tensor. */
static EbbModule *
make_part (TestTree *tree,
           const char *kind,
           guint depth)
{
  TestPart *part = test_part_new (kind, &tree->dice);
  guint n_children, below = depth > 0 ? depth - 1 : 0;
  TestChild child;

  test_part_get_kind (part, &n_children, &child, NULL);
  g_ptr_array_add (tree->parts, part);
  for (guint i = 0; i < n_children; i++)
    switch (child)
      {
      case TEST_CHILD_PLAIN: add_child (EBB_MODULE (part), i, make_plain (tree, below)); break;
      case TEST_CHILD_RICH: add_child (EBB_MODULE (part), i, make_part (tree, "nested", below)); break;
      case TEST_CHILD_KEYED: add_child (EBB_MODULE (part), i, make_part (tree, "keyed", below)); break;
      case TEST_CHILD_SEQUENCE: add_child (EBB_MODULE (part), i, make_sequence (tree, below)); break;
      case TEST_CHILD_ROWS:
        add_child (EBB_MODULE (part), i, ebb_batch_norm1d_new (TEST_WIDTH, 1e-5, 0.1, NULL));
        break;
      }
  add_own_state (tree, part);
  return EBB_MODULE (part);
}

static EbbModule *
make_plain (TestTree *tree,
            guint depth)
{
  EbbModule *module;

  if (tree->sharable->len > 0 && test_dice_chance (&tree->dice, 12))
    return g_object_ref (g_ptr_array_index (tree->sharable, test_dice_roll (&tree->dice, tree->sharable->len)));
  if (tree->budget > 0)
    tree->budget--;
  if (depth == 0 || tree->budget == 0 || test_dice_chance (&tree->dice, 20))
    module = make_leaf (tree);
  else if (test_dice_chance (&tree->dice, 15))
    module = make_sequence (tree, depth - 1);
  else
    module = make_part (tree, NULL, depth);
  g_ptr_array_add (tree->sharable, module);
  return module;
}

/* -- a tree -------------------------------------------------------------------------------------------------------- */

static void
set_habits (TestTree *tree)
{
  guint n;
  g_autofree EbbModule **modules = test_tree_get_modules (tree, &n);
  guint frozen = test_dice_chance (&tree->dice, 30) ? 30 : 5, asleep = test_dice_chance (&tree->dice, 30) ? 30 : 5;

  for (guint i = 0; i < n; i++)
    {
      if (test_dice_chance (&tree->dice, frozen))
        ebb_module_set_requires_grad (modules[i], FALSE, NULL);
      if (test_dice_chance (&tree->dice, asleep))
        ebb_module_set_training (modules[i], FALSE);
      g_object_unref (modules[i]);
    }
}

void
test_tree_init (TestTree *tree,
                guint64 seed)
{
  *tree = (TestTree){ .dice = test_dice_new (seed), .block_dice = test_dice_new (seed + 30) };
  tree->parts = g_ptr_array_new ();
  tree->sharable = g_ptr_array_new ();
  tree->budget = 4 + test_dice_roll (&tree->dice, 16);
  ebb_manual_seed (seed);
  for (guint i = 0; i < TEST_N_GENERATORS; i++)
    tree->generators[i] = ebb_generator_new (seed + i);
  for (guint i = 0; i < TEST_N_CLOSURES; i++)
    {
      tree->closures[i] = test_randn (seed + 10 + i, TEST_WIDTH, -1);
      ebb_tensor_set_requires_grad (tree->closures[i], i == 0, NULL);
    }
  for (guint i = 0; i < TEST_N_SHARED; i++)
    tree->shared[i] = test_randn (seed + 20 + i, TEST_WIDTH, TEST_WIDTH, -1);
  tree->root = test_dice_chance (&tree->dice, 50) ? make_part (tree, "nested", 4)
                                                  : make_plain (tree, 2 + test_dice_roll (&tree->dice, 4));
  set_habits (tree);
}

void
test_tree_clear (TestTree *tree)
{
  g_clear_object (&tree->root);
  g_clear_pointer (&tree->parts, g_ptr_array_unref);
  g_clear_pointer (&tree->sharable, g_ptr_array_unref);
  for (guint i = 0; i < TEST_N_GENERATORS; i++)
    g_clear_object (&tree->generators[i]);
  for (guint i = 0; i < TEST_N_CLOSURES; i++)
    g_clear_pointer (&tree->closures[i], ebb_tensor_unref);
  for (guint i = 0; i < TEST_N_SHARED; i++)
    g_clear_pointer (&tree->shared[i], ebb_tensor_unref);
}

EbbModule **
test_tree_get_modules (TestTree *tree,
                       guint *n_modules)
{
  return ebb_module_get_modules (tree->root, n_modules);
}

char *
test_tree_get_path (TestTree *tree,
                    gpointer module)
{
  guint n;
  g_auto (GStrv) names = ebb_module_get_module_names (tree->root);
  g_autofree EbbModule **modules = test_tree_get_modules (tree, &n);
  char *path = NULL;

  for (guint i = 0; i < n; i++)
    {
      if (modules[i] == module)
        path = g_strdup (names[i]);
      g_object_unref (modules[i]);
    }
  return path;
}
