/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/stores.h"
#include "support/tensors.h"

#include <glib/gstdio.h>

/* Where activations are kept changes no bit of a gradient, and what goes elsewhere leaves the memory. */

static char *scratch;

static EbbSavedTensorHooks *
new_store (guint kind)
{
  EbbSavedTensorHooks *store = kind == 0 ? ebb_keep_store_new () : kind == 1 ? ebb_host_store_new ()
                                                                             : test_disk_store_new (scratch);

  g_object_set (store, "least-size", (guint64) 1, NULL);
  g_object_set (store, "in-flight", 0, NULL);
  return store;
}

static void
gradients_are_bitwise_equal (gconstpointer data)
{
  const guint kind = GPOINTER_TO_UINT (data);
  const gboolean moves = kind == 2 || (kind == 1 && !test_device_is_cpu ());
  GError *error = NULL;
  TestStep plain, hooked, full, wrapped, selective;
  g_autoptr (EbbModule) gpt = test_gpt_new ();
  g_autoptr (EbbSavedTensorHooks) store = new_store (kind);
  EbbActivationStore *statistics = EBB_ACTIVATION_STORE (store);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbCheckpointOptions) some = ebb_checkpoint_options_new_selective ();

  test_step_run (gpt, NULL, &plain);
  test_step_run (gpt, store, &hooked);
  test_step_assert_same (&plain, &hooked);
  g_assert_cmpuint (test_held (store), ==, 0);
  g_assert_cmpuint (ebb_activation_store_get_bytes_peak (statistics), >, 0);
  if (moves && test_device_is_cpu ())
    g_assert_cmpuint (hooked.peak, ==, 0);
  else if (moves) /* what is on its way back is there early */
    g_assert_cmpuint (hooked.peak, <, plain.peak / 4);
  else
    g_assert_cmpuint (hooked.peak, ==, plain.peak);
  g_assert_cmpuint (ebb_activation_store_get_bytes_peak (statistics) > plain.peak / 2, ==, TRUE);
  g_clear_object (&gpt);

  gpt = test_gpt_new ();
  ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, options, &error);
  test_step_run (gpt, NULL, &full);
  test_step_assert_same (&plain, &full);
  ebb_checkpoint_options_set_store (options, store);
  g_clear_object (&gpt);
  gpt = test_gpt_new ();
  ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, options, &error);
  ebb_activation_store_reset_stats (statistics);
  test_step_run (gpt, NULL, &wrapped);
  test_step_assert_same (&plain, &wrapped);
  /* One input each of three blocks: [2, 24, 48] f32. */
  g_assert_cmpuint (ebb_activation_store_get_bytes_peak (statistics), ==, 3 * 2 * 24 * 48 * 4);
  if (moves)
    {
      g_assert_cmpuint (wrapped.peak, <, full.peak);
      g_assert_cmpuint (ebb_activation_store_get_bytes_put (statistics), ==, 3 * 2 * 24 * 48 * 4);
      g_assert_cmpuint (ebb_activation_store_get_bytes_got (statistics), ==, 3 * 2 * 24 * 48 * 4);
    }
  g_clear_object (&gpt);

  gpt = test_gpt_new ();
  ebb_checkpoint_options_set_store (some, store);
  ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, some, &error);
  test_step_run (gpt, NULL, &selective);
  test_step_assert_same (&plain, &selective);
  g_assert_no_error (error);
  g_assert_cmpuint (test_held (store), ==, 0);
  test_step_clear (&plain);
  test_step_clear (&hooked);
  test_step_clear (&full);
  test_step_clear (&wrapped);
  test_step_clear (&selective);
}

static void
nested_wrappers_store_an_input_once (void)
{
  GError *error = NULL;
  TestStep plain, nested;
  g_autoptr (EbbModule) gpt = test_gpt_new ();
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

  test_step_run (gpt, NULL, &plain);
  ebb_checkpoint_options_set_store (options, store);
  ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, options, &error);
  ebb_checkpoint_wrap_each (gpt, EBB_TYPE_MLP, options, &error);
  test_step_run (gpt, NULL, &nested);
  test_step_assert_same (&plain, &nested);
  g_assert_cmpuint (test_held (store), ==, 0);
  /* The input of a feed-forward part was made inside its block, which recomputes it. */
  g_assert_cmpuint (ebb_activation_store_get_bytes_peak (EBB_ACTIVATION_STORE (store)), ==, 3 * 2 * 24 * 48 * 4);
  test_step_clear (&plain);
  test_step_clear (&nested);
}

/* -- memory and views ---------------------------------------------------------------------------------------------- */

static void
memory_of_the_source_is_freed (void)
{
  const guint64 before = test_bytes_in_use ();
  const gsize size = 300 * 1000 * 4;
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);
  EbbTensor *x = test_randn (1, 300, 1000, -1);
  g_autoptr (EbbHandle) handle = test_pack (store, x);
  EbbTensor *back;

  g_assert_cmpuint (test_bytes_in_use (), ==, before + size);
  ebb_tensor_unref (x);
  g_assert_cmpuint (test_bytes_in_use (), ==, before);
  g_assert_cmpuint (test_held (store), ==, size);
  back = test_unpack (store, handle);
  g_assert_cmpuint (test_bytes_in_use (), ==, before + size);
  x = test_randn (1, 300, 1000, -1);
  g_assert_true (ebb_tensor_equal (x, back));
  ebb_tensor_unref (x);
  ebb_tensor_unref (back);
  g_assert_cmpuint (test_bytes_in_use (), ==, before);
  g_clear_pointer (&handle, ebb_handle_unref);
  g_assert_cmpuint (test_held (store), ==, 0);
}

static void
views_are_stored_once_and_come_back_as_they_were (void)
{
  const guint64 before = test_bytes_in_use ();
  GError *error = NULL;
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);
  EbbActivationStore *statistics = EBB_ACTIVATION_STORE (store);
  EbbTensor *x = test_randn (2, 6, 40, 30, -1), *views[4], *back[4];
  EbbHandle *handles[4];
  guint n;

  views[0] = ebb_tensor_ref (x);
  views[1] = ebb_transpose (x, 0, 2, &error);
  views[2] = ebb_narrow (x, 2, 10, 10, &error);
  views[3] = ebb_narrow (x, 0, 2, 1, &error); /* a sixth of it */
  g_assert_no_error (error);
  for (guint i = 0; i < 4; i++)
    handles[i] = test_pack (store, views[i]);
  g_assert_cmpuint (test_held (store), ==, 6 * 40 * 30 * 4);
  g_assert_cmpuint (ebb_activation_store_get_bytes_put (statistics), ==, 6 * 40 * 30 * 4);
  for (guint i = 0; i < 4; i++)
    {
      back[i] = test_unpack (store, handles[i]);
      g_assert_true (ebb_tensor_equal (views[i], back[i]));
      for (guint d = 0; d < 3; d++)
        g_assert_cmpint (ebb_tensor_get_strides (back[i], &n)[d], ==, ebb_tensor_get_strides (views[i], &n)[d]);
    }
  /* They share what was brought back too. */
  g_assert_cmpuint (ebb_activation_store_get_bytes_got (statistics), ==, 6 * 40 * 30 * 4);
  g_assert_cmpuint (test_bytes_in_use (), ==, before + 2 * 6 * 40 * 30 * 4);
  for (guint i = 0; i < 4; i++)
    {
      g_assert_cmpuint (test_held (store), ==, 6 * 40 * 30 * 4);
      ebb_tensor_unref (views[i]);
      ebb_tensor_unref (back[i]);
      ebb_handle_unref (handles[i]);
    }
  ebb_tensor_unref (x);
  g_assert_cmpuint (test_held (store), ==, 0);
  g_assert_cmpuint (test_bytes_in_use (), ==, before);
}

static void
a_small_view_of_much_is_stored_alone (void)
{
  GError *error = NULL;
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);
  g_autoptr (EbbTensor) x = test_randn (3, 100, 64, -1);
  g_autoptr (EbbTensor) row = ebb_narrow (x, 0, 7, 1, &error);
  g_autoptr (EbbHandle) handle = test_pack (store, row);
  g_autoptr (EbbTensor) back = test_unpack (store, handle);

  g_assert_no_error (error);
  g_assert_cmpuint (test_held (store), ==, 64 * 4);
  g_assert_true (ebb_tensor_equal (row, back));
}

static void
a_change_in_place_is_another_tensor (void)
{
  GError *error = NULL;
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);
  g_autoptr (EbbTensor) x = test_randn (4, 100, -1);
  g_autoptr (EbbTensor) was = test_randn (4, 100, -1);
  g_autoptr (EbbHandle) first = test_pack (store, x);
  g_autoptr (EbbHandle) second = NULL;
  g_autoptr (EbbTensor) one = NULL;
  g_autoptr (EbbTensor) other = NULL;
  g_autoptr (EbbTensor) again = NULL;

  g_assert_true (ebb_tensor_fill (x, 2, &error));
  second = test_pack (store, x);
  one = test_unpack (store, first);
  other = test_unpack (store, second);
  g_assert_true (ebb_tensor_equal (one, was));
  g_assert_true (ebb_tensor_equal (other, x));
  /* Nor does it matter what becomes of what was given back. */
  g_assert_true (ebb_tensor_fill (one, 3, &error));
  again = test_unpack (store, first);
  g_assert_true (ebb_tensor_equal (again, was));
}

static void
every_dtype_comes_back (void)
{
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);
  g_autoptr (EbbTensor) x = test_randn (5, 37, 3, -1);
  const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16, EBB_DTYPE_F16, EBB_DTYPE_I32,
                              EBB_DTYPE_I64, EBB_DTYPE_U8, EBB_DTYPE_BOOL };

  for (guint i = 0; i < G_N_ELEMENTS (dtypes); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) cast = ebb_cast (x, dtypes[i], &error);
      g_autoptr (EbbHandle) handle = cast ? test_pack (store, cast) : NULL;
      g_autoptr (EbbTensor) back = handle ? test_unpack (store, handle) : NULL;

      g_assert_no_error (error);
      g_assert_cmpint (ebb_tensor_get_dtype (back), ==, dtypes[i]);
      g_assert_true (ebb_tensor_equal (cast, back));
    }
}

static void
parameters_and_small_tensors_are_left_alone (void)
{
  GError *error = NULL;
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);
  EbbActivationStore *statistics = EBB_ACTIVATION_STORE (store);
  g_autoptr (EbbModule) linear = ebb_linear_new (64, 64, FALSE, &error);
  g_autofree EbbTensor **parameters = NULL;
  g_autoptr (EbbTensor) x = test_randn (6, 10, -1);
  g_autoptr (EbbTensor) turned = NULL;
  guint n;

  parameters = ebb_module_get_parameters (linear, TRUE, &n);
  turned = ebb_transpose (parameters[0], 0, 1, &error);
  g_assert_no_error (error);
  g_object_set (statistics, "least-size", (guint64) 41, NULL);
  {
    g_autoptr (EbbHandle) a = test_pack (store, parameters[0]);
    g_autoptr (EbbHandle) b = test_pack (store, turned);
    g_autoptr (EbbHandle) c = test_pack (store, x);
    g_autoptr (EbbTensor) back = test_unpack (store, a);

    g_assert_true (back == parameters[0]);
    g_assert_cmpuint (test_held (store), ==, 0);
    g_assert_cmpuint (ebb_activation_store_get_n_kept (statistics), ==, 3);
    g_object_set (statistics, "least-size", (guint64) 40, NULL);
    ebb_handle_unref (test_pack (store, x));
    g_assert_cmpuint (ebb_activation_store_get_n_kept (statistics), ==, 3);
    g_assert_cmpuint (ebb_activation_store_get_n_packed (statistics), ==, 4);
    g_assert_cmpuint (ebb_activation_store_get_bytes_peak (statistics), ==, 40);
  }
  ebb_tensor_unref (parameters[0]);
}

static void
a_foreign_handle_is_refused (void)
{
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);
  g_autoptr (EbbSavedTensorHooks) other = test_disk_store_new (scratch);
  g_autoptr (EbbTensor) x = test_randn (7, 100, -1);
  g_autoptr (EbbHandle) handle = test_pack (other, x);
  g_autoptr (EbbHandle) empty = ebb_handle_new_for_data (NULL, NULL);
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_saved_tensor_hooks_unpack (store, handle, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "EbbDiskStore");
  g_clear_error (&error);
  g_assert_null (ebb_saved_tensor_hooks_unpack (store, empty, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "EbbDiskStore");
}

static void
a_handle_outlives_the_caller_s_store (void)
{
  EbbSavedTensorHooks *store = test_disk_store_new (scratch);
  g_autoptr (EbbTensor) x = test_randn (8, 100, -1);
  g_autoptr (EbbHandle) handle = test_pack (store, x);
  g_autoptr (EbbTensor) back = NULL;

  g_object_add_weak_pointer (G_OBJECT (store), (gpointer *) &store);
  g_object_unref (store);
  g_assert_nonnull (store);
  back = test_unpack (store, handle);
  g_assert_true (ebb_tensor_equal (x, back));
  g_clear_pointer (&handle, ebb_handle_unref);
  g_assert_null (store);
  g_clear_pointer (&back, ebb_tensor_unref);
}

static void
on_the_cpu_the_host_store_leaves_tensors_where_they_are (void)
{
  EbbSavedTensorHooks *store = ebb_host_store_get_default ();
  g_autoptr (EbbTensor) made = test_randn (9, 200, 200, -1);
  g_autoptr (EbbTensor) x = ebb_to_device (made, ebb_device_get_cpu (), NULL);
  g_autoptr (EbbHandle) handle = test_pack (store, x);
  g_autoptr (EbbTensor) back = test_unpack (store, handle);

  g_assert_true (store == ebb_host_store_get_default ());
  g_assert_true (ebb_tensor_get_data (back, NULL) == ebb_tensor_get_data (x, NULL));
  g_assert_cmpuint (test_held (store), ==, 200 * 200 * 4);
  g_assert_cmpuint (ebb_activation_store_get_bytes_put (EBB_ACTIVATION_STORE (store)), ==, 0);
  g_clear_pointer (&handle, ebb_handle_unref);
  g_assert_cmpuint (test_held (store), ==, 0);
}

/* Of put_block, as of pack. */
static void
a_block_of_another_store_is_refused (void)
{
  g_autoptr (EbbSavedTensorHooks) store = ebb_keep_store_new ();
  g_autoptr (EbbSavedTensorHooks) other = ebb_keep_store_new ();
  g_autoptr (EbbTensor) x = test_randn (1, 1000, -1);
  g_autoptr (EbbHandle) handle = ebb_activation_store_put_block (EBB_ACTIVATION_STORE (store), x, NULL);
  g_autoptr (EbbTensor) back = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_activation_store_get_block (EBB_ACTIVATION_STORE (other), handle, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "not returned by put_block");
  g_clear_error (&error);
  back = ebb_activation_store_get_block (EBB_ACTIVATION_STORE (store), handle, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_tensor_equal (back, x));
}

/* -- a store that hands out what another one returned -------------------------------------------------------------- */

G_DECLARE_FINAL_TYPE (Lender, lender, TEST, LENDER, EbbActivationStore)

struct _Lender
{
  EbbActivationStore parent_instance;
  EbbActivationStore *inner;
  gboolean lends_room; /* memory that the inner store reserved, which holds no block */
};

G_DEFINE_FINAL_TYPE (Lender, lender, EBB_TYPE_ACTIVATION_STORE)

static EbbHandle *
lender_put (EbbActivationStore *store,
            EbbTensor *block,
            GError **error)
{
  Lender *self = TEST_LENDER (store);

  if (self->lends_room)
    return ebb_activation_store_reserve (self->inner, ebb_tensor_get_device (block), ebb_tensor_get_n_bytes (block),
                                         error);
  return ebb_activation_store_put_block (self->inner, block, error);
}

static void
lender_class_init (LenderClass *klass)
{
  EBB_ACTIVATION_STORE_CLASS (klass)->put = lender_put;
}

static void
lender_init (Lender *self)
{
}

static void
a_handle_of_another_store_is_asked_of_that_store (void)
{
  g_autoptr (EbbSavedTensorHooks) inner = ebb_host_store_new ();
  g_autoptr (EbbActivationStore) store = g_object_new (lender_get_type (), NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 1000, -1);
  g_autoptr (GError) error = NULL;

  TEST_LENDER (store)->inner = EBB_ACTIVATION_STORE (inner);
  for (guint lends_room = 0; lends_room < 2; lends_room++)
    {
      g_autoptr (EbbHandle) handle = NULL;
      g_autoptr (EbbTensor) back = NULL;

      TEST_LENDER (store)->lends_room = (gboolean) lends_room;
      handle = ebb_activation_store_put_block (store, x, &error);
      g_assert_no_error (error);
      ebb_activation_store_prefetch_block (store, handle);
      back = ebb_activation_store_get_block (store, handle, &error);
      if (lends_room)
        test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "not returned by put_block", "EbbHostStore");
      else
        g_assert_true (ebb_tensor_equal (back, x));
    }
}

/* -- failures that are returned once ------------------------------------------------------------------------------- */

G_DECLARE_FINAL_TYPE (Faulty, faulty, TEST, FAULTY, EbbActivationStore)

struct _Faulty
{
  EbbActivationStore parent_instance;
  gboolean fails;
};

G_DEFINE_FINAL_TYPE (Faulty, faulty, EBB_TYPE_ACTIVATION_STORE)

/* As a device does. */
static EbbHandle *
faulty_put (EbbActivationStore *store,
            EbbTensor *block,
            GError **error)
{
  Faulty *self = TEST_FAULTY (store);

  if (!self->fails)
    return ebb_handle_new (block);
  self->fails = FALSE;
  g_set_error_literal (error, EBB_ERROR, EBB_ERROR_DEVICE, "something before has failed");
  return NULL;
}

static void
faulty_class_init (FaultyClass *klass)
{
  EBB_ACTIVATION_STORE_CLASS (klass)->put = faulty_put;
}

static void
faulty_init (Faulty *self)
{
}

/* Who had no place for it leaves it to the next one. */
static void
a_failure_that_no_caller_took_is_returned_next (void)
{
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbActivationStore) store = g_object_new (faulty_get_type (), NULL);
      g_autoptr (EbbTensor) x = test_randn (1, 1000, -1);
      g_autoptr (EbbHandle) handle = NULL;
      g_autoptr (GError) error = NULL;

      TEST_FAULTY (store)->fails = TRUE;
      g_assert_null (ebb_activation_store_put_block (store, x, NULL));
      if (i == 0)
        g_assert_null (ebb_activation_store_put_block (store, x, &error));
      else
        g_assert_false (ebb_activation_store_synchronize (store, &error));
      test_assert_error (error, EBB_ERROR_DEVICE, "something before has failed");
      g_clear_error (&error);
      handle = ebb_activation_store_put_block (store, x, &error);
      g_assert_no_error (error);
      g_assert_true (ebb_activation_store_synchronize (store, &error));
    }
}

int
main (int argc, char **argv)
{
  int status;

  test_init (&argc, &argv);
  scratch = g_dir_make_tmp ("ebb-offload-XXXXXX", NULL);
  g_assert_nonnull (scratch);
  g_test_add_data_func ("/offload/keep/gradients-are-bitwise-equal", GUINT_TO_POINTER (0), gradients_are_bitwise_equal);
  g_test_add_data_func ("/offload/host/gradients-are-bitwise-equal", GUINT_TO_POINTER (1), gradients_are_bitwise_equal);
  g_test_add_data_func ("/offload/disk/gradients-are-bitwise-equal", GUINT_TO_POINTER (2), gradients_are_bitwise_equal);
  g_test_add_func ("/offload/a-failure-that-no-caller-took-is-returned-next",
                   a_failure_that_no_caller_took_is_returned_next);
  g_test_add_func ("/offload/a-block-of-another-store-is-refused", a_block_of_another_store_is_refused);
  g_test_add_func ("/offload/a-handle-of-another-store-is-asked-of-that-store",
                   a_handle_of_another_store_is_asked_of_that_store);
  g_test_add_func ("/offload/nested-wrappers-store-an-input-once", nested_wrappers_store_an_input_once);
  g_test_add_func ("/offload/memory-of-the-source-is-freed", memory_of_the_source_is_freed);
  g_test_add_func ("/offload/views-are-stored-once", views_are_stored_once_and_come_back_as_they_were);
  g_test_add_func ("/offload/a-small-view-of-much-is-stored-alone", a_small_view_of_much_is_stored_alone);
  g_test_add_func ("/offload/a-change-in-place-is-another-tensor", a_change_in_place_is_another_tensor);
  g_test_add_func ("/offload/every-dtype-comes-back", every_dtype_comes_back);
  g_test_add_func ("/offload/parameters-and-small-tensors-are-left-alone", parameters_and_small_tensors_are_left_alone);
  g_test_add_func ("/offload/a-foreign-handle-is-refused", a_foreign_handle_is_refused);
  g_test_add_func ("/offload/a-handle-outlives-the-callers-store", a_handle_outlives_the_caller_s_store);
  g_test_add_func ("/offload/host/tensors-on-the-cpu-stay", on_the_cpu_the_host_store_leaves_tensors_where_they_are);
  status = g_test_run ();
  g_assert_cmpint (g_rmdir (scratch), ==, 0); /* nothing is left in it */
  g_free (scratch);
  return status;
}
