/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/device.h"
#include "support/shard-runs.h"
#include "support/tensors.h"
#include "wrap/shard/state/index-private.h"

#include <glib/gstdio.h>
#include <string.h>

/* A sharded state whose files are damaged, or were written by somebody else. */

typedef struct
{
  const char *folder;
  EbbModule *module; /* small, of one process */
  EbbOptimizer *optimizer;
} Small;

static void
small_start (Small *small,
             const char *folder)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = test_randn (5, 6, 8, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  EbbModule *modules[3];
  static const guint places[] = { 0, 1, 2, 2 }; /* the last layer twice, so that its parameters have two names */

  *small = (Small){ .folder = folder };
  ebb_manual_seed (1);
  modules[0] = ebb_linear_new (8, 4, TRUE, &error);
  modules[1] = ebb_batch_norm1d_new (4, 1e-5, 0.1, &error);
  modules[2] = ebb_linear_new (4, 4, FALSE, &error);
  g_assert_no_error (error);
  small->module = ebb_sequential_new ();
  for (guint i = 0; i < G_N_ELEMENTS (places); i++)
    ebb_sequential_append (EBB_SEQUENTIAL (small->module), modules[places[i]], &error);
  for (guint i = 0; i < 3; i++)
    g_object_unref (modules[i]);
  g_assert_no_error (error);
  small->optimizer = ebb_adamw_new (small->module, 1e-2, &error);
  y = ebb_module_call1 (small->module, x, &error);
  loss = ebb_sum (y, NULL, 0, FALSE, &error);
  ebb_tensor_backward (loss, &error);
  ebb_optimizer_step (small->optimizer, &error);
  ebb_save_sharded_state (small->module, small->optimizer, folder, &error);
  g_assert_no_error (error);
}

static void
small_clear (Small *small)
{
  g_clear_object (&small->optimizer);
  g_clear_object (&small->module);
}

/* Loads after @length bytes of @data were put into the file; gives whether that worked. A failure changes nothing. */
static gboolean
load_damaged (Small *small,
              const char *path,
              const char *data,
              gsize length,
              EbbArgs *before)
{
  g_autoptr (GError) error = NULL;
  gboolean ok;

  /* Not every GLib cuts a longer file. */
  g_remove (path);
  g_file_set_contents_full (path, data, (gssize) length, G_FILE_SET_CONTENTS_NONE, 0666, &error);
  g_assert_no_error (error);
  ok = ebb_load_sharded_state (small->module, small->optimizer, small->folder, &error);
  if (ok)
    return TRUE;
  g_assert_true (error->domain == EBB_ERROR);
  g_assert_null (strchr (error->message, '\n'));
  g_test_message ("%s", error->message);
  {
    g_autoptr (EbbArgs) after = ebb_get_full_state_dict (small->module, FALSE, NULL);
    g_autoptr (GError) changed = NULL;

    test_same_dicts (before, after, &changed);
    g_assert_no_error (changed);
  }
  return FALSE;
}

/* Bytes all over every file are damaged, one at a time, and every file is cut: each damage is found. */
static void
test_damage (void)
{
  g_autofree char *folder = test_make_folder ();
  static const char *const names[] = { "index.json", "model-00000001-00001-of-00001.safetensors",
                                       "optimizer-00000001-00001-of-00001.safetensors",
                                       "state-00000001-00001-of-00001.safetensors" };
  g_autoptr (EbbArgs) before = NULL;
  g_autoptr (GError) error = NULL;
  Small small;

  small_start (&small, folder);
  before = ebb_get_full_state_dict (small.module, FALSE, &error);
  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autofree char *path = g_build_filename (folder, names[i], NULL);
      g_autofree char *data = NULL;
      gsize length;

      g_file_get_contents (path, &data, &length, &error);
      g_assert_no_error (error);
      for (gsize at = 0; at < length; at += 5)
        {
          char old = data[at];

          data[at] ^= 1 << at % 7;
          if (load_damaged (&small, path, data, length, before))
            g_error ("%s: another byte than '%c' at %zu was not seen", names[i], old, at);
          data[at] = old;
        }
      for (gsize cut = 0; cut < length - 1; cut += length / 50 + 1)
        g_assert_false (load_damaged (&small, path, data, cut, before));
      g_assert_true (load_damaged (&small, path, data, length, before));
      g_remove (path);
      g_assert_false (ebb_load_sharded_state (small.module, small.optimizer, folder, &error));
      g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
      g_clear_error (&error);
      g_assert_true (load_damaged (&small, path, data, length, before));
    }
  small_clear (&small);
  test_remove_folder (folder);
}

/* The part of an index that its checksum covers. */
static const char *
find_rest (const char *text)
{
  const char *sum = strstr (text, "\"sum\": \"");

  g_assert_nonnull (sum);
  return sum + strlen ("\"sum\": \"0123456789abcdef\"");
}

/* Cuts the member that begins with @key, and the comma before or after it, out of @text, which is sealed again. */
static char *
cut_member (const char *text,
            const char *key)
{
  const char *rest = find_rest (text), *begin = strstr (rest, key), *end = begin;
  g_autoptr (GString) cut = g_string_new (NULL);
  int depth = 0;

  g_assert_nonnull (begin);
  do
    {
      depth += (*end == '{') - (*end == '}');
      end++;
    }
  while (depth > 0 || end[-1] != '}');
  if (*end == ',')
    end++;
  else
    while (*begin != ',' && *begin != '{')
      begin--;
  g_string_append_len (cut, rest, begin - rest + (*begin == '{'));
  g_string_append (cut, end);
  return ebb_shard_index_seal (cut->str);
}

/* An index with the right checksum that lacks something. */
static void
test_missing (void)
{
  static const struct
  {
    const char *key, *word;
  } cases[] = {
    { "\"0.weight/exp_avg\": {", "the optimizer had \"0.weight/exp_avg\"" },
    { "\"2.weight/exp_avg_sq\": {", "the optimizer had \"2.weight/exp_avg_sq\"" },
    { "\"optimizer\": {", "the index has no \"optimizer\"" },
    { "\"model\": {", "the index has no \"model\"" },
    { "\"0.bias\": {", "0.bias is missing" },
  };
  g_autofree char *folder = test_make_folder ();
  g_autofree char *path = g_build_filename (folder, "index.json", NULL);
  g_autofree char *text = NULL;
  g_autofree char *empty = NULL;
  g_autofree char *empty_sealed = NULL;
  g_autoptr (GError) error = NULL;
  char *optimizer;
  Small small;

  small_start (&small, folder);
  g_file_get_contents (path, &text, NULL, &error);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *cut = cut_member (text, cases[i].key);

      g_remove (path);
      g_file_set_contents (path, cut, -1, &error);
      g_assert_no_error (error);
      g_assert_false (ebb_load_sharded_state (small.module, small.optimizer, folder, &error));
      g_assert_nonnull (error);
      g_test_message ("%s", error->message);
      if (strstr (error->message, cases[i].word) == NULL)
        g_error ("\"%s\" does not say \"%s\"", error->message, cases[i].word);
      g_clear_error (&error);
    }
  /* The whole optimizer, whose table is still there. */
  empty = g_strdup (find_rest (text));
  optimizer = strstr (empty, "\"optimizer\": {");
  strcpy (optimizer, "\"optimizer\": {}}");
  empty_sealed = ebb_shard_index_seal (empty);
  g_remove (path);
  g_file_set_contents (path, empty_sealed, -1, &error);
  g_assert_false (ebb_load_sharded_state (small.module, small.optimizer, folder, &error));
  test_assert_error (error, EBB_ERROR_FORMAT, "the optimizer had \"0.weight/exp_avg\"");
  small_clear (&small);
  test_remove_folder (folder);
}

/* Texts that an opponent would write. */
static void
test_hostile (void)
{
  static const struct
  {
    const char *search, *replacement;
  } cases[] = {
    { "model-00000001-00001-of-00001", "../../../../etc/passwd" },
    { "\"ranks\": 1", "\"ranks\": 1000000" },
    { "\"ranks\": 1", "\"ranks\": 0" },
    { "\"ranks\": 1", "\"ranks\": -1" },
    { "\"ranks\": 1", "\"ranks\": 1, \"mesh\": []" },
    { "\"ranks\": 1", "\"ranks\": 1, \"mesh\": [[0, 0], [0, 1]]" },
    { "\"ranks\": 1", "\"ranks\": 1, \"mesh\": [[0]]" },
    { "\"ranks\": 1", "\"ranks\": 1, \"mesh\": [[0, 4294967296]]" },
    { "\"save\": 1", "\"save\": 9223372036854775807" },
    { "[0, 0, 32]", "[0, 0, 33]" },
    { "[0, 0, 32]", "[0, 0, 31]" },
    { "[0, 0, 32]", "[0, 0, 16], [0, 15, 32]" },
    { "[0, 0, 32]", "[7, 0, 32]" },
    { "[0, 0, 32]", "[0, 0, 0]" },
    { "[0, 0, 32]", "" },
    { "[0, 0, 32]", "[0, 0]" },
    { "[0, 0, 32]", "[0, 0, 32, 0, 0]" },
    { "[0, 0, 32]", "[0, 0, 32, 1]" },
    { "[0, 0, 32]", "[0, 0, 16], [0, 0, 16, 1]" },
    { "\"0.weight\": {", "\"0.weight\": {\"split\": [0, 1, 2], " },
    { "\"0.weight\": {", "\"0.weight\": {\"split\": [2, 1, 2], " },
    { "\"0.weight\": {", "\"0.weight\": {\"split\": [0, 3, 2], " },
    { "\"0.weight\": {", "\"0.weight\": {\"split\": [0, 0, 2], " },
    { "\"0.weight\": {", "\"0.weight\": {\"split\": [0, 1, 0], " },
    { "\"0.weight\": {", "\"0.weight\": {\"split\": [0, 4294967297, 4294967298], " },
    { "\"0.weight\": {", "\"0.weight\": {\"split\": [0, 1], " },
    { "[4, 8]", "[4, 8, 1]" },
    { "[4, 8]", "[8, 4]" },
    { "[4, 8]", "[4294967296, 4294967296, 4294967296]" },
    { "[4, 8]", "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 8]" },
    { "\"0.weight\": {", "\"0.weight\": {\"per_rank\": 1, " },
    { "\"0.weight\": {", "\"0.weight\": {\"stored_as\": \"0.bias\", " },
    { "\"0.weight\"", "\"1.weight\"" },
    { "\"0.weight/exp_avg\"", "\"nobody/exp_avg\"" },
    { "\"0.weight/exp_avg\"", "\"exp_avg\"" },
    { "\"0.weight/exp_avg\": {", "\"0.weight/exp_avg\": {\"steps\": 99999999999999999999, " },
    { "\"F32\"", "\"BOOL\"" },
    { "\"save\"", "\"model\"" },
  };
  g_autofree char *folder = test_make_folder ();
  g_autofree char *path = g_build_filename (folder, "index.json", NULL);
  g_autofree char *text = NULL;
  const char *rest;
  g_autoptr (EbbArgs) before = NULL;
  g_autoptr (GError) error = NULL;
  Small small;

  small_start (&small, folder);
  before = ebb_get_full_state_dict (small.module, FALSE, &error);
  g_file_get_contents (path, &text, NULL, &error);
  g_assert_no_error (error);
  rest = find_rest (text);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      const char *found = strstr (rest, cases[i].search);
      g_autoptr (GString) changed = g_string_new (NULL);
      g_autofree char *sealed = NULL;

      g_assert_nonnull (found);
      g_string_append_len (changed, rest, found - rest);
      g_string_append (changed, cases[i].replacement);
      g_string_append (changed, found + strlen (cases[i].search));
      g_test_message ("%s instead of %s", cases[i].replacement, cases[i].search);
      sealed = ebb_shard_index_seal (changed->str);
      g_assert_false (load_damaged (&small, path, sealed, strlen (sealed), before));
    }
  small_clear (&small);
  test_remove_folder (folder);
}

/* An index that can't be read keeps nobody from saving. */
static void
test_saves_over_a_damaged_index (void)
{
  g_autofree char *folder = test_make_folder ();
  g_autofree char *path = g_build_filename (folder, "index.json", NULL);
  static const char damaged[] = "{\0}";
  g_autoptr (GError) error = NULL;
  Small small;

  small_start (&small, folder);
  g_remove (path);
  g_file_set_contents (path, damaged, sizeof damaged - 1, &error);
  g_assert_no_error (error);
  g_assert_false (ebb_load_sharded_state (small.module, small.optimizer, folder, &error));
  test_assert_error (error, EBB_ERROR_FORMAT, "index.json: it has a zero byte");
  g_clear_error (&error);
  ebb_save_sharded_state (small.module, small.optimizer, folder, &error);
  g_assert_no_error (error);
  ebb_load_sharded_state (small.module, small.optimizer, folder, &error);
  g_assert_no_error (error);
  small_clear (&small);
  test_remove_folder (folder);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/shard-damage/every-damage-is-found", test_damage);
  g_test_add_func ("/shard-damage/an-index-that-lacks-something-says-what", test_missing);
  g_test_add_func ("/shard-damage/saves-over-a-damaged-index", test_saves_over_a_damaged_index);
  g_test_add_func ("/shard-damage/hostile-indices-are-refused", test_hostile);
  return g_test_run ();
}
