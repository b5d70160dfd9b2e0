/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/fuzz.h"

#include "nn/files/state-tree-private.h"

#include <string.h>

/* The text of nested values: what is taken is saved again as the same values. */

static EbbArgs *tensors;
static char *trees[8]; /* without their seals */

/* A container with values of all kinds, deeper for a higher number. */
static EbbArgs *
make_tree (guint number)
{
  static const gint64 shapes[][2] = { { 2, 3 }, { 1, 1 }, { 0, 4 } };
  static const EbbArgsKind kinds[] = { EBB_ARGS_DICT, EBB_ARGS_LIST, EBB_ARGS_TUPLE };
  EbbArgs *args = ebb_args_new (kinds[number % G_N_ELEMENTS (kinds)]);
  gboolean named = ebb_args_get_kind (args) == EBB_ARGS_DICT;
  g_autoptr (EbbArgs) bare = ebb_args_new (EBB_ARGS_BARE);

#define KEY(name) (named ? name : NULL)
  ebb_args_add_int (args, KEY ("n_steps"), number % 2 ? G_MININT64 : (gint64) number);
  ebb_args_add_double (args, KEY ("lr"), 0.1 * number);
  ebb_args_add_string (args, KEY ("kind"), "adamw \"\\\n\xc3\xa9");
  ebb_args_add_boolean (args, KEY ("on"), number % 2);
  ebb_args_add_none (args, KEY ("none"));
  ebb_args_add_int (bare, NULL, 1);
  ebb_args_add_args (args, KEY ("bare"), bare);
  for (guint i = 0; i < G_N_ELEMENTS (shapes); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_zeros (shapes[i], 2, EBB_DTYPE_F32, NULL, NULL);
      static const char *const names[] = { "weight", "bias", "empty" };

      ebb_args_add_tensor (args, KEY (names[i]), tensor);
    }
  if (number > 1)
    {
      g_autoptr (EbbArgs) nested = make_tree (number / 2 + 1 < number ? number / 2 + 1 : 1);

      ebb_args_add_args (args, KEY ("nested"), nested);
    }
#undef KEY
  return args;
}

/* The text between the seal and its brace. */
static char *
strip (const char *sealed)
{
  const char *begin = strstr (sealed, "\"tree\":") + strlen ("\"tree\":");

  return g_strndup (begin, strlen (begin) - 1);
}

static gboolean
try_case (GString *input, GError **error)
{
  g_autofree char *text = NULL;
  g_autofree char *again = NULL;
  g_autoptr (EbbArgs) tree = NULL;
  g_autoptr (EbbArgs) others = ebb_args_new (EBB_ARGS_DICT);

  g_string_append (input, trees[fuzz_draw (G_N_ELEMENTS (trees))]);
  if (fuzz_draw (20) > 0)
    fuzz_damage (input);
  text = ebb_state_tree_seal (input->str);
  if (fuzz_draw (20) == 0)
    {
      g_autoptr (GString) sealed = g_string_new (text);

      fuzz_damage (sealed);
      g_free (text);
      text = g_strdup (sealed->str);
    }
  tree = ebb_state_tree_restore (text, tensors, "a state", error);
  if (tree == NULL)
    return FALSE;
  again = ebb_state_tree_flatten (tree, others, error);
  if (again == NULL)
    g_error ("what was loaded can't be saved");
  return TRUE;
}

int
main (int argc, char **argv)
{
  tensors = ebb_args_new (EBB_ARGS_DICT);
  for (guint i = 0; i < G_N_ELEMENTS (trees); i++)
    {
      g_autoptr (EbbArgs) tree = make_tree (i);
      g_autofree char *sealed = ebb_state_tree_flatten (tree, tensors, NULL);

      trees[i] = strip (sealed);
    }
  return fuzz_run (argc, argv, "state-tree", 30000, try_case);
}
