/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/device.h"
#include "support/tensors.h"

#include "nn/optim/optimizer-private.h"
#include "nn/files/state-tree-private.h"
#include "nn/data/dataset-private.h"
#include "nn/state/training-state-private.h"

#include <string.h>

/* The text of a saved training: what the writer writes the reader takes, and what anybody else wrote is refused in one
 * line. The texts here are sealed with the right checksum, so that they are looked at. */

static EbbArgs *
restore (const char *tree, GError **error)
{
  g_autoptr (EbbArgs) tensors = ebb_args_new (EBB_ARGS_DICT);
  g_autofree char *text = ebb_state_tree_seal (tree);

  return ebb_state_tree_restore (text, tensors, "a state", error);
}

static void
assert_refused (const char *tree, const char *word)
{
  g_autoptr (GError) error = NULL;

  g_assert_null (restore (tree, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
  g_assert_true (g_utf8_validate (error->message, -1, NULL));
  g_assert_null (strchr (error->message, '\n'));
  if (strstr (error->message, word) == NULL)
    g_error ("\"%s\" does not say \"%s\"", error->message, word);
}

static void
other_types_are_refused (void)
{
  static const struct
  {
    const char *tree, *word;
  } cases[] = {
    { "{\"dict\":{\"a\":{\"int\":5}}}", "expected '\"', found '5'" },
    { "{\"dict\":{\"a\":{\"double\":5}}}", "expected '\"', found '5'" },
    { "{\"dict\":{\"a\":{\"tensor\":5}}}", "expected '\"', found '5'" },
    { "{\"dict\":{\"a\":{\"tensor\":null,\"sum\":null}}}", "expected '\"', found 'n'" },
    { "{\"dict\":{\"a\":{\"tensor\":\"t\",\"sum\":5}}}", "expected '\"', found '5'" },
    { "{\"dict\":{\"a\":{\"tensor\":\"t\",\"sum\":\"0123456789abcdef\"}}}", "no tensor \"t\"" },
    { "{\"dict\":{\"a\":{\"int\":\"5x\"}}}", "a broken number \"5x\"" },
    { "{\"dict\":{\"a\":{\"int\":\"9223372036854775808\"}}}", "a broken number" },
    { "{\"dict\":{\"a\":{\"double\":\"\"}}}", "a broken number \"\"" },
    { "{\"dict\":{\"a\":{\"int\":\"5\",\"int\":\"6\"}}}", "expected '}', found ','" },
    { "{\"dict\":{\"a\":null,\"a\":true}}", "twice the key \"a\"" },
    { "{\"dict\":{\"a\":5}}", "a value of an unknown type at \"a\"" },
    { "{\"dict\":{\"a\":[]}}", "a value of an unknown type at \"a\"" },
    { "{\"dict\":[]}", "expected '{', found '['" },
    { "{\"list\":{}}", "expected '[', found '{'" },
    { "{\"list\":5}", "expected '[', found '5'" },
    { "{\"bare\":[null,null]}", "more than one value in a container \"bare\"" },
    { "{\"set\":[]}", "the unknown type \"set\"" },
    { "{\"int\":\"5\"}", "the unknown type \"int\"" }, /* the root is a container */
    { "{}", "expected '\"', found '}'" },
    { "[]", "expected '{', found '['" },
    { "null", "expected '{', found 'n'" },
    { "", "expected '{', found '}'" },
    { "{\"list\":[]} x", "expected '}', found 'x'" },
    { "{\"list\":[\"\xff\"]}", "not UTF-8" },
    { "{\"dict\":{\"a\\n\":5}}", "at \"a\\n\"" },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    assert_refused (cases[i].tree, cases[i].word);
}

/* Containers in each other, @depth of them. */
static EbbArgs *
nest (guint depth)
{
  EbbArgs *args = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 1; i < depth; i++)
    {
      EbbArgs *outer = ebb_args_new (i % 2 ? EBB_ARGS_LIST : EBB_ARGS_DICT);

      ebb_args_add_args (outer, i % 2 ? NULL : "key", args);
      ebb_args_unref (args);
      args = outer;
    }
  return args;
}

static void
what_is_saved_is_loaded_at_every_depth (void)
{
  g_autoptr (EbbArgs) tensors = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) deeper = nest (EBB_STATE_MAX_DEPTH + 1);
  g_autoptr (GError) error = NULL;
  g_autoptr (GString) deepest = g_string_new (NULL);

  for (guint depth = 1; depth <= EBB_STATE_MAX_DEPTH; depth++)
    {
      g_autoptr (EbbArgs) args = nest (depth);
      g_autofree char *text = ebb_state_tree_flatten (args, tensors, &error);
      g_autofree char *again = NULL;
      g_autoptr (EbbArgs) loaded = NULL;

      g_assert_no_error (error);
      loaded = ebb_state_tree_restore (text, tensors, "a state", &error);
      g_assert_no_error (error);
      again = ebb_state_tree_flatten (loaded, tensors, &error);
      g_assert_cmpstr (text, ==, again);
    }
  g_assert_null (ebb_state_tree_flatten (deeper, tensors, &error));
  test_assert_error (error, EBB_ERROR_STATE, "can't be saved", "nested deeper than 64");
  g_clear_error (&error);

  for (guint i = 0; i < 100000; i++)
    g_string_append (deepest, "{\"list\":[");
  assert_refused (deepest->str, "nested deeper than 64");
}

static EbbArgs *
make_tree (void)
{
  EbbArgs *tree = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbTensor) tensor = test_randn (3, 2, 3, -1);
  g_autoptr (EbbTensor) host = ebb_to_device (tensor, ebb_device_get_cpu (), NULL);
  g_autoptr (EbbArgs) list = ebb_args_new (EBB_ARGS_LIST);

  ebb_args_add_int (list, NULL, G_MININT64);
  ebb_args_add_double (list, NULL, 0.1);
  ebb_args_add_boolean (list, NULL, TRUE);
  ebb_args_add_none (list, NULL);
  ebb_args_add_string (list, NULL, "a \"b\"\n\xc3\xa9");
  ebb_args_add_args (tree, "list", list);
  ebb_args_add_tensor (tree, "x", host);
  return tree;
}

/* Each bit of the text counts, but blanks where JSON may have some. */
static void
a_text_that_was_changed_is_refused (void)
{
  g_autoptr (EbbArgs) tree = make_tree ();
  g_autoptr (EbbArgs) tensors = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (GError) error = NULL;
  g_autofree char *text = ebb_state_tree_flatten (tree, tensors, &error);

  g_assert_no_error (error);
  for (gsize i = 0; text[i] != '\0'; i++)
    for (guint bit = 0; bit < 8; bit++)
      {
        g_autoptr (EbbArgs) loaded = NULL;

        text[i] ^= (char) (1 << bit);
        loaded = ebb_state_tree_restore (text, tensors, "a state", &error);
        text[i] ^= (char) (1 << bit);
        g_assert_null (loaded);
        g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
        g_clear_error (&error);
      }
}

/* The same bytes with another dtype or shape are another tensor. */
static void
a_tensor_of_another_layout_is_refused (void)
{
  g_autoptr (EbbArgs) tree = make_tree ();
  g_autoptr (EbbArgs) tensors = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (tree, (guint) ebb_args_find (tree, "x"));
  g_autoptr (GError) error = NULL;
  g_autofree char *text = ebb_state_tree_flatten (tree, tensors, &error);
  g_autoptr (GBytes) bytes = g_bytes_new (ebb_tensor_get_data (tensor, NULL), ebb_tensor_get_n_bytes (tensor));
  const gint64 shapes[][2] = { { 2, 3 }, { 3, 2 }, { 2, 3 } };
  const EbbDType dtypes[] = { EBB_DTYPE_I32, EBB_DTYPE_F32, EBB_DTYPE_F32 };

  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbTensor) other = ebb_tensor_new_from_bytes (bytes, 0, shapes[i], 2, dtypes[i], &error);
      g_autoptr (EbbArgs) others = ebb_args_new (EBB_ARGS_DICT);
      g_autoptr (EbbArgs) loaded = NULL;

      ebb_args_add_tensor (others, "x", other);
      loaded = ebb_state_tree_restore (text, others, "a state", &error);
      if (i == 2)
        g_assert_no_error (error);
      else
        test_assert_error (error, EBB_ERROR_FORMAT, "another checksum");
      g_clear_error (&error);
    }
}

static void
set_int (EbbArgs *args, const char *key, gint64 value)
{
  g_assert_cmpint (ebb_args_find (args, key), >=, 0);
  ebb_args_add_int (args, key, value);
}

/* Steps and positions that no training reaches, at which sums overflow. */
static void
numbers_are_bounded (void)
{
  static const gint64 bad[] = { -5, -1, EBB_STATE_MAX_COUNT + 1, G_MAXINT64 - 2, G_MAXINT64, G_MININT64 };
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GBytes) bytes = g_bytes_new_static ("some text of some length", 24);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTextDataset) dataset = ebb_text_dataset_new_from_bytes (bytes, tokenizer, 1, &error);
  g_autoptr (EbbModule) module = ebb_linear_new (2, 2, TRUE, &error);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (module, 1e-2, &error);
  g_autoptr (EbbTrainingState) state = ebb_training_state_new (module, optimizer, EBB_DATASET (dataset));
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) targets = NULL;
  gint64 step;

  g_assert_no_error (error);
  for (guint i = 0; i < G_N_ELEMENTS (bad); i++)
    {
      g_autoptr (EbbArgs) tree = ebb_training_state_get_rest (state, 1);
      g_autoptr (EbbArgs) place = ebb_dataset_get_state (EBB_DATASET (dataset));
      g_autoptr (EbbArgs) steps = ebb_optimizer_get_state (optimizer);

      set_int (tree, "step", bad[i]);
      g_assert_false (ebb_training_state_check_rest (state, tree, "here", &step, &error));
      test_assert_error (error, EBB_ERROR_STATE, "step", "from 0 to 9007199254740992");
      g_clear_error (&error);
      g_assert_false (ebb_training_state_save (state, "/nonexistent", bad[i], &error));
      g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
      g_clear_error (&error);
      set_int (place, "position", bad[i]);
      g_assert_false (ebb_dataset_load_state (EBB_DATASET (dataset), place, &error));
      test_assert_error (error, EBB_ERROR_STATE, "position", "from 0 to 9007199254740992");
      g_clear_error (&error);
      set_int (steps, "n_steps", bad[i]);
      g_assert_false (ebb_optimizer_load_state (optimizer, steps, &error));
      test_assert_error (error, EBB_ERROR_STATE, "n_steps", "from 0 to 9007199254740992");
      g_clear_error (&error);
    }
  g_object_set (dataset, "position", G_MAXINT64 - 1, NULL);
  g_assert_false (ebb_text_dataset_get_batch (dataset, 2, 3, &tokens, &targets, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "positions end at 9223372036854775807");
  g_clear_error (&error);
  g_assert_true (ebb_text_dataset_get_batch (dataset, 1, 3, &tokens, &targets, &error));
  g_assert_no_error (error);
}

static void
texts_and_values_of_other_types_are_refused (void)
{
  g_autoptr (EbbTrainingState) state = ebb_training_state_new (NULL, NULL, NULL);
  g_autoptr (EbbArgs) tree = ebb_training_state_get_rest (state, 1);
  g_autoptr (GError) error = NULL;
  gint64 step;

  set_int (tree, "config", 5);
  g_assert_false (ebb_training_state_check_rest (state, tree, "here", &step, &error));
  test_assert_error (error, EBB_ERROR_STATE, "here has config of another type");
  g_clear_error (&error);
  ebb_args_add_string (tree, "config", "");
  ebb_args_add_int (tree, "values", 5);
  g_assert_false (ebb_training_state_check_rest (state, tree, "here", &step, &error));
  test_assert_error (error, EBB_ERROR_STATE, "here has values of another type");
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/state-tree/other-types-are-refused", other_types_are_refused);
  g_test_add_func ("/state-tree/what-is-saved-is-loaded-at-every-depth", what_is_saved_is_loaded_at_every_depth);
  g_test_add_func ("/state-tree/a-text-that-was-changed-is-refused", a_text_that_was_changed_is_refused);
  g_test_add_func ("/state-tree/a-tensor-of-another-layout-is-refused", a_tensor_of_another_layout_is_refused);
  g_test_add_func ("/state-tree/numbers-are-bounded", numbers_are_bounded);
  g_test_add_func ("/state-tree/texts-and-values-of-other-types-are-refused",
                   texts_and_values_of_other_types_are_refused);
  return g_test_run ();
}
