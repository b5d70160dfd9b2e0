/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/random-stores.h"

#include "support/stores.h"
#include "support/tensors.h"

#include <glib/gstdio.h>

#define LITTLE 2048 /* bytes: a few tensors of a random program */
#define LARGE 16384

static EbbActivationStore *
nth (TestStores *self,
     guint index)
{
  return EBB_ACTIVATION_STORE (self->stores[index]);
}

/* The store itself, or that behind the one that divides. */
static EbbActivationStore *
get_last (TestStores *self,
          guint index)
{
  return self->group != NULL ? ebb_activation_store_get_next (EBB_ACTIVATION_STORE (self->stores[index]))
                             : nth (self, index);
}

static guint
add (TestStores *self,
     guint *n,
     const char *name,
     EbbSavedTensorHooks *store)
{
  g_assert_nonnull (store);
  g_assert_cmpuint (*n, <, TEST_N_STORES);
  if (self->group != NULL)
    {
      EbbSavedTensorHooks *next = store;

      store = ebb_partitioned_store_new (self->group, EBB_ACTIVATION_STORE (next), NULL);
      g_object_unref (next);
      if (*n > 0) /* with a sample few tensors here are smaller in pieces */
        g_object_set (store, "check", EBB_PARTITION_CHECK_NONE, NULL);
    }
  g_object_set (store, "least-size", (guint64) 1, NULL);
  self->stores[*n] = store;
  self->names[*n] = name;
  return (*n)++;
}

/* In front of a store of its own, which nobody else sees. */
static EbbSavedTensorHooks *
make_contiguous (EbbSavedTensorHooks *next)
{
  g_autoptr (GError) error = NULL;
  EbbSavedTensorHooks *store =
      ebb_contiguous_store_new (3, next != NULL ? EBB_ACTIVATION_STORE (next) : NULL, &error);

  g_assert_no_error (error);
  g_object_set (store, "grow", TRUE, NULL);
  g_clear_object (&next);
  return store;
}

static EbbSavedTensorHooks *
make_little (EbbSavedTensorHooks *fallback)
{
  EbbSavedTensorHooks *store = ebb_host_store_new ();

  g_object_set (store, "byte-limit", (guint64) LITTLE, NULL);
  g_object_set (store, "when-full", EBB_WHEN_FULL_SPILL, NULL);
  ebb_activation_store_set_fallback (EBB_ACTIVATION_STORE (store), EBB_ACTIVATION_STORE (fallback), NULL);
  g_object_unref (fallback);
  return store;
}

/* The first tensor, larger than any that will come, makes a store ready, so that memory stays as it is from there. */
void
test_stores_open (TestStores *self)
{
  g_autoptr (GError) error = NULL;
  guint n = 0;

  self->folder = g_dir_make_tmp ("ebb-XXXXXX", &error);
  g_assert_no_error (error);
  add (self, &n, "keep", ebb_keep_store_new ());
  add (self, &n, "host", ebb_host_store_new ());
  add (self, &n, "disk", test_disk_store_new (self->folder));
  add (self, &n, "contiguous", make_contiguous (NULL));
  add (self, &n, "contiguous-host", make_contiguous (ebb_host_store_new ()));
  add (self, &n, "contiguous-disk", make_contiguous (test_disk_store_new (self->folder)));
  add (self, &n, "little-host-then-disk", make_little (test_disk_store_new (self->folder)));
  g_assert_cmpuint (n, ==, TEST_N_STORES);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) tensor = test_randn (1, LARGE, -1);
      g_autoptr (EbbHandle) handle = test_pack (self->stores[i], tensor);
      g_autoptr (EbbTensor) back = test_unpack (self->stores[i], handle);

      g_assert_true (ebb_tensor_equal (tensor, back));
    }
  test_stores_settle (self);
}

void
test_stores_close (TestStores *self)
{
  for (guint i = 0; i < TEST_N_STORES; i++)
    {
      g_assert_cmpuint (test_held (self->stores[i]), ==, 0);
      g_assert_finalize_object (self->stores[i]);
    }
  g_assert_cmpint (g_rmdir (self->folder), ==, 0); /* nothing is left in it */
  g_clear_pointer (&self->folder, g_free);
}

void
test_stores_assert_used (TestStores *self,
                         gboolean on_cpu)
{
  for (guint i = 0; i < TEST_N_STORES; i++)
    {
      g_test_message ("%s: %" G_GUINT64_FORMAT " tensors, %" G_GUINT64_FORMAT " bytes put, %" G_GUINT64_FORMAT " got",
                      self->names[i], ebb_activation_store_get_n_packed (nth (self, i)),
                      ebb_activation_store_get_bytes_put (nth (self, i)),
                      ebb_activation_store_get_bytes_got (nth (self, i)));
      g_assert_cmpuint (ebb_activation_store_get_n_packed (nth (self, i)), >, 0);
      if (i > 0 && !on_cpu)
        g_assert_cmpuint (ebb_activation_store_get_bytes_got (nth (self, i)), >, 0);
    }
}

static gboolean
takes (EbbTensor *tensor,
       const char *op,
       gpointer user_data,
       GError **error)
{
  TestDice dice = test_dice_new (GPOINTER_TO_UINT (user_data) + g_str_hash (op));

  return test_dice_chance (&dice, 60);
}

void
test_stores_draw (TestStores *self,
                  TestDice *dice,
                  GString *text)
{
  for (guint i = 0; i < TEST_N_STORES; i++)
    {
      guint ahead = test_dice_roll (dice, 4), behind = test_dice_roll (dice, 3), salt = test_dice_roll (dice, 100000);
      gboolean chooses = test_dice_chance (dice, 15);

      g_object_set (nth (self, i), "prefetch", ahead, NULL);
      g_object_set (nth (self, i), "in-flight", behind, NULL);
      ebb_activation_store_set_filter (nth (self, i), chooses ? takes : NULL, GUINT_TO_POINTER (salt), NULL);
      g_string_append_printf (text, "  %s: prefetch %u, in flight %u%s\n", self->names[i], ahead, behind,
                              chooses ? ", some ops" : "");
    }
}

void
test_stores_settle (TestStores *self)
{
  for (guint i = 0; i < TEST_N_STORES; i++)
    {
      g_autoptr (GError) error = NULL;

      g_assert_true (ebb_activation_store_synchronize (nth (self, i), &error));
      g_assert_no_error (error);
      if (EBB_IS_CONTIGUOUS_STORE (get_last (self, i)))
        ebb_contiguous_store_reset (EBB_CONTIGUOUS_STORE (get_last (self, i)));
    }
}
