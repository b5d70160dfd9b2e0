/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include <ebb/ebb.h>

#include <string.h>

/* Kinds of stores are found, asked, and made by their names. */

static void
each_kind_is_made (void)
{
  static const char *const names[] = { "grow", "n-checkpoints", "folder", "byte-limit", NULL };

  for (const char *const *kind = ebb_store_kind_get_names (); *kind != NULL; kind++)
    {
      GValue values[4] = { G_VALUE_INIT, G_VALUE_INIT, G_VALUE_INIT, G_VALUE_INIT };
      const char *taken[5] = { NULL };
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbSavedTensorHooks) store = NULL;
      EbbActivationStore *next;
      guint n = 0;

      for (guint i = 0; names[i] != NULL; i++)
        if (ebb_store_kind_has_setting (*kind, names[i]))
          {
            taken[n] = names[i];
            if (i == 2)
              g_value_set_static_string (g_value_init (&values[n++], G_TYPE_STRING), g_get_tmp_dir ());
            else
              g_value_set_int (g_value_init (&values[n++], G_TYPE_INT), i == 0 ? 1 : 4096);
          }
      store = ebb_store_kind_make (*kind, taken, values, n, &error);
      g_assert_no_error (error);
      g_assert_true (G_OBJECT_TYPE (store) == ebb_store_kind_get_gtype (*kind));
      next = ebb_activation_store_get_next (EBB_ACTIVATION_STORE (store));
      g_assert_true ((strchr (*kind, '+') != NULL) == (next != NULL));
      if (ebb_store_kind_has_setting (*kind, "byte-limit"))
        {
          guint64 limit;

          g_object_get (next != NULL ? G_OBJECT (next) : G_OBJECT (store), "byte-limit", &limit, NULL);
          g_assert_cmpuint (limit, ==, 4096);
        }
      for (guint i = 0; i < n; i++)
        g_value_unset (&values[i]);
    }
}

static void
places_are_of_the_last_store (void)
{
  g_assert_cmpint (ebb_store_kind_get_place ("keep"), ==, EBB_MEMORY_PLACE_DEVICE);
  g_assert_cmpint (ebb_store_kind_get_place ("host"), ==, EBB_MEMORY_PLACE_HOST);
  g_assert_cmpint (ebb_store_kind_get_place ("contiguous"), ==, EBB_MEMORY_PLACE_DEVICE);
  g_assert_cmpint (ebb_store_kind_get_place ("contiguous+host"), ==, EBB_MEMORY_PLACE_HOST);
  g_assert_cmpint (ebb_store_kind_get_place ("contiguous+disk"), ==, EBB_MEMORY_PLACE_DISK);
  g_assert_false (ebb_store_kind_has_setting ("contiguous", "next"));
  g_assert_false (ebb_store_kind_has_setting ("host", "folder"));
  g_assert_true (ebb_store_kind_has_setting ("contiguous+disk", "folder"));
  g_assert_true (ebb_store_kind_get_gtype ("none") == G_TYPE_INVALID);
}

static void
assert_refused (const char *kind,
                const char *name,
                GType type,
                int number,
                const char *expected)
{
  const char *const names[] = { name, NULL };
  g_auto (GValue) value = G_VALUE_INIT;
  g_autoptr (GError) error = NULL;

  g_value_init (&value, type);
  if (type == G_TYPE_INT)
    g_value_set_int (&value, number);
  else
    g_value_set_static_string (&value, "never");
  g_assert_null (ebb_store_kind_make (kind, name != NULL ? names : NULL, &value, name != NULL, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_true (g_str_has_prefix (error->message, expected));
}

static void
mistakes_are_named (void)
{
  const char *const two[] = { "byte-limit", "patience", NULL };
  g_auto (GValue) value = G_VALUE_INIT;
  g_autoptr (GError) error = NULL;

  assert_refused ("disc", NULL, G_TYPE_INT, 0,
                  "store kind disc: it must be one of keep, host, disk, contiguous, contiguous+host, contiguous+disk");
  assert_refused ("keep", "byte-limit", G_TYPE_INT, 1, "store kind keep: it has no setting byte-limit");
  assert_refused ("contiguous+host", "next", G_TYPE_INT, 1, "store kind contiguous+host: it has no setting next");
  assert_refused ("host", "byte-limit", G_TYPE_INT, -1, "store kind host: byte-limit is -1: it must be a guint64");
  assert_refused ("host", "patience", G_TYPE_INT, -1, "store kind host: patience is -1: it must be a gdouble");
  assert_refused ("host", "when-full", G_TYPE_STRING, 0,
                  "store kind host: when-full is \"never\": it must be a EbbWhenFull");
  g_value_init (&value, G_TYPE_INT);
  g_assert_null (ebb_store_kind_make ("host", two, &value, 1, &error));
  g_assert_cmpstr (error->message, ==,
                   "store kind host: 2 names of settings and 1 values: each name must have a value");
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/offload/each-kind-of-store-is-made-by-its-name", each_kind_is_made);
  g_test_add_func ("/offload/the-place-of-a-kind-is-that-of-its-last-store", places_are_of_the_last_store);
  g_test_add_func ("/offload/a-mistake-in-a-kind-of-store-is-named", mistakes_are_named);
  return g_test_run ();
}
