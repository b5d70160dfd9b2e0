/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "offload/disk/file-private.h"
#include "support/stores.h"
#include "support/tensors.h"

#include <errno.h>
#include <glib/gstdio.h>

/* Whatever a disk does: an error that says so, or the right gradients; and the next step is as if nothing had been. */

#define PAGE 4096

static char *scratch;

/* -- a disk that fails --------------------------------------------------------------------------------------------- */

static EbbDiskOperation failing_operation;
static int reason;
static gint n_operations, fails_at, n_failed;
static gboolean for_good;

static int
fail (EbbDiskOperation operation)
{
  gint n;

  if (operation != failing_operation)
    return 0;
  n = g_atomic_int_add (&n_operations, 1);
  if (n < fails_at || (n > fails_at && !for_good))
    return 0;
  g_atomic_int_inc (&n_failed);
  return reason;
}

static void
fail_from (EbbDiskOperation operation,
           gint which,
           gboolean all_after,
           int why)
{
  failing_operation = operation;
  fails_at = which;
  for_good = all_after;
  reason = why;
  n_operations = n_failed = 0;
  g_atomic_pointer_set (&ebb_disk_fault, fail);
}

static EbbSavedTensorHooks *
new_store (guint64 staging)
{
  EbbSavedTensorHooks *store = test_disk_store_new (scratch);

  g_object_set (store, "staging-limit", (guint64) staging, NULL);
  return store;
}

static gboolean
synchronize (EbbSavedTensorHooks *store,
             GError **error)
{
  return ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (store), error);
}

/* -- steps --------------------------------------------------------------------------------------------------------- */

static void
assert_grads (EbbModule *gpt,
              const TestStep *expected)
{
  g_autofree EbbTensor **parameters = NULL;
  guint n;

  parameters = ebb_module_get_parameters (gpt, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[i]);

      g_assert_true (ebb_tensor_equal (grad, expected->grads[i]));
      ebb_tensor_unref (parameters[i]);
    }
}

/* A failure that was not returned to the step is returned to the next caller. */
static void
run_failing_step (EbbModule *gpt,
                  EbbSavedTensorHooks *store,
                  gboolean wrapped,
                  const TestStep *expected)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GError) late = NULL;
  EbbTensor *loss;

  ebb_module_zero_grad (gpt);
  if (!wrapped)
    ebb_push_saved_tensor_hooks (store);
  loss = test_gpt_forward (gpt, &error);
  if (!wrapped)
    ebb_pop_saved_tensor_hooks ();
  if (ebb_tensor_backward (loss, &error))
    assert_grads (gpt, expected);
  else
    test_assert_error (error, EBB_ERROR_IO, scratch, " bytes", g_strerror (reason));
  g_clear_pointer (&loss, ebb_tensor_unref);
  if (!synchronize (store, &late))
    test_assert_error (late, EBB_ERROR_IO, scratch, " bytes", g_strerror (reason));
  else if (error == NULL)
    g_assert_cmpint (n_failed, ==, 0);
}

typedef struct
{
  EbbDiskOperation operation;
  int reason;
  gboolean for_good;
  gboolean wrapped;
} Case;

static void
each_operation_may_fail (gconstpointer data)
{
  const Case *which = data;
  const guint64 limits[] = { 0, 5 * PAGE, 32ul << 20 };
  g_autoptr (EbbModule) gpt = test_gpt_new ();
  gint most = 0; /* with some memory, how far the disk comes is a matter of its speed */
  TestStep plain;

  test_step_run (gpt, NULL, &plain);
  for (guint i = 0; i < G_N_ELEMENTS (limits); i++)
    {
      g_autoptr (EbbSavedTensorHooks) store = new_store (limits[i]);
      g_autoptr (EbbModule) model = test_gpt_new ();
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
      guint64 before;
      gint n = 0;

      if (which->wrapped)
        {
          ebb_checkpoint_options_set_store (options, store);
          ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, NULL);
        }
      before = test_bytes_in_use ();
      do
        {
          TestStep after;

          if (which->operation == EBB_DISK_GROW) /* only a file that is new does */
            {
              g_clear_object (&store);
              store = new_store (limits[i]);
              ebb_checkpoint_options_set_store (options, store);
              g_clear_object (&model);
              model = test_gpt_new ();
              if (which->wrapped)
                ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, NULL);
            }
          fail_from (which->operation, n++, which->for_good, which->reason);
          run_failing_step (model, store, which->wrapped, &plain);
          g_atomic_pointer_set (&ebb_disk_fault, NULL);
          ebb_module_zero_grad (model);
          g_assert_cmpuint (test_held (store), ==, 0);
          g_assert_cmpuint (test_bytes_in_use (), ==, before);
          if (n_failed == 0 || n % 4 == 0)
            {
              test_step_run (model, which->wrapped ? NULL : store, &after);
              test_step_assert_same (&plain, &after);
              test_step_clear (&after);
              ebb_module_zero_grad (model);
            }
        }
      while (n_failed > 0 || n < most);
      most = MAX (most, n);
      g_test_message ("%d operations with %" G_GUINT64_FORMAT " bytes of staging memory", n - 1, limits[i]);
      if (limits[i] == 0)
        g_assert_cmpint (n, >, 3);
    }
  test_step_clear (&plain);
}

/* Whatever fails to be written, training goes on: it is in memory, or in the fallback. */
static void
the_fallback_takes_what_the_disk_refuses (gconstpointer data)
{
  const gboolean wrapped = GPOINTER_TO_INT (data);
  const guint64 limits[] = { 0, 5 * PAGE, 32ul << 20 };
  g_autoptr (EbbModule) gpt = test_gpt_new ();
  TestStep plain;

  test_step_run (gpt, NULL, &plain);
  for (guint i = 0; i < G_N_ELEMENTS (limits); i++)
    {
      g_autoptr (EbbSavedTensorHooks) store = new_store (limits[i]);
      g_autoptr (EbbSavedTensorHooks) fallback = ebb_keep_store_new ();
      g_autoptr (EbbModule) model = test_gpt_new ();
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

      ebb_activation_store_set_fallback (EBB_ACTIVATION_STORE (store), EBB_ACTIVATION_STORE (fallback), NULL);
      ebb_checkpoint_options_set_store (options, store);
      if (wrapped)
        ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, NULL);
      for (gint n = 0; n < 12; n++)
        {
          const guint64 before = ebb_activation_store_get_bytes_spilled (EBB_ACTIVATION_STORE (store));
          TestStep step;

          fail_from (n % 4 < 2 ? EBB_DISK_WRITE : EBB_DISK_GROW, n / 2, n % 2, ENOSPC);
          test_step_run (model, wrapped ? NULL : store, &step);
          test_step_assert_same (&plain, &step);
          test_step_clear (&step);
          g_assert_cmpuint (test_held (store), ==, 0);
          if (limits[i] == 0 && n_failed > 0)
            g_assert_cmpuint (ebb_activation_store_get_bytes_spilled (EBB_ACTIVATION_STORE (store)), >, before);
        }
      g_atomic_pointer_set (&ebb_disk_fault, NULL);
    }
  test_step_clear (&plain);
}

/* -- late failures ------------------------------------------------------------------------------------------------- */

static void
a_late_failure_loses_nothing (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (8 * PAGE);
  g_autoptr (EbbTensor) x = test_randn (1, 5000, -1); /* five blocks */
  g_autoptr (EbbTensor) y = test_randn (2, 1000, -1);
  g_autoptr (EbbHandle) a = NULL;
  g_autoptr (EbbHandle) b = NULL;
  g_autoptr (GError) error = NULL;

  fail_from (EBB_DISK_WRITE, 0, TRUE, ENOSPC);
  a = test_pack (store, x);
  g_assert_false (synchronize (store, &error));
  test_assert_error (error, EBB_ERROR_IO, scratch, "20000 bytes", "No space left");
  g_clear_error (&error);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) back = test_unpack (store, a);

      g_assert_true (ebb_tensor_equal (back, x));
    }
  b = test_pack (store, y); /* there is a place for it */
  g_assert_false (synchronize (store, &error));
  g_clear_error (&error);
  g_assert_null (ebb_saved_tensor_hooks_pack (store, y = (ebb_tensor_unref (y), test_randn (3, 5000, -1)), &error));
  test_assert_error (error, EBB_ERROR_IO, scratch, "20000 bytes", "No space left"); /* none for this */
  g_clear_error (&error);
  g_atomic_pointer_set (&ebb_disk_fault, NULL);
  g_assert_true (synchronize (store, &error)); /* the disk has room again */
  g_assert_no_error (error);
  {
    g_autoptr (EbbTensor) back = test_unpack (store, a);
    g_autoptr (EbbTensor) was = test_randn (2, 1000, -1);
    g_autoptr (EbbTensor) other = test_unpack (store, b);

    g_assert_true (ebb_tensor_equal (back, x));
    g_assert_true (ebb_tensor_equal (other, was));
  }
}

/* Reported once, by the first call. */
static void
the_next_caller_gets_the_error (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (64 * PAGE);
  g_autoptr (EbbTensor) x = test_randn (1, 5000, -1);
  g_autoptr (EbbTensor) y = test_randn (2, 500, -1);
  g_autoptr (EbbHandle) a = NULL;
  g_autoptr (EbbHandle) b = NULL;
  g_autoptr (GError) error = NULL;

  fail_from (EBB_DISK_WRITE, 0, FALSE, EIO);
  a = test_pack (store, x);
  while (g_atomic_int_get (&n_failed) == 0)
    g_thread_yield ();
  while (error == NULL) /* the thread has yet to say so */
    {
      g_clear_pointer (&b, ebb_handle_unref);
      b = ebb_saved_tensor_hooks_pack (store, y, &error);
    }
  test_assert_error (error, EBB_ERROR_IO, scratch, "20000 bytes", g_strerror (EIO));
  g_clear_error (&error);
  g_clear_pointer (&b, ebb_handle_unref);
  b = test_pack (store, y);
  g_assert_true (synchronize (store, &error));
  g_atomic_pointer_set (&ebb_disk_fault, NULL);
  {
    g_autoptr (EbbTensor) back = test_unpack (store, a);

    g_assert_true (ebb_tensor_equal (back, x));
  }
}

static void
what_can_t_be_read_is_tried_again (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (0);
  g_autoptr (EbbTensor) x = test_randn (1, (3 << 20) + 5, -1); /* four pieces */
  g_autoptr (EbbHandle) a = test_pack (store, x);
  const guint64 before = test_bytes_in_use ();

  for (gint i = 0; i < 4; i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) back = NULL;

      fail_from (EBB_DISK_READ, i, FALSE, EIO);
      g_assert_null (ebb_saved_tensor_hooks_unpack (store, a, &error));
      test_assert_error (error, EBB_ERROR_IO, scratch, "12582932 bytes at 0", g_strerror (EIO));
      g_assert_cmpuint (test_bytes_in_use (), ==, before);
      back = test_unpack (store, a);
      g_assert_true (ebb_tensor_equal (back, x));
    }
  g_atomic_pointer_set (&ebb_disk_fault, NULL);
}

/* Tensors go to the fallback without another try each. */
static void
a_disk_that_fails_again_and_again_is_left_alone (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (4 * PAGE);
  g_autoptr (EbbSavedTensorHooks) keep = ebb_keep_store_new ();
  g_autoptr (GPtrArray) handles = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_handle_unref);
  g_autoptr (GError) error = NULL;
  gint n = -1;

  g_assert_true (
      ebb_activation_store_set_fallback (EBB_ACTIVATION_STORE (store), EBB_ACTIVATION_STORE (keep), NULL));
  fail_from (EBB_DISK_WRITE, 0, TRUE, EIO);
  for (guint i = 0; i < 40; i++)
    {
      g_autoptr (EbbTensor) x = test_randn (i, PAGE / 4, -1);

      g_ptr_array_add (handles, test_pack (store, x));
      if (i == 20)
        n = g_atomic_int_get (&n_failed);
    }
  g_assert_cmpint (n, >, 0);
  g_assert_cmpint (g_atomic_int_get (&n_failed), ==, n);
  for (guint i = 0; i < 40; i++)
    {
      g_autoptr (EbbTensor) x = test_randn (i, PAGE / 4, -1);
      g_autoptr (EbbTensor) back = test_unpack (store, handles->pdata[i]);

      g_assert_true (ebb_tensor_equal (x, back));
    }
  ebb_disk_fault = NULL;
  while (!synchronize (store, &error)) /* tells what has failed, and tries again */
    g_clear_error (&error);
  g_ptr_array_set_size (handles, 0);
  ebb_activation_store_reset_stats (EBB_ACTIVATION_STORE (store));
  {
    g_autoptr (EbbTensor) x = test_randn (1, PAGE / 4, -1);
    g_autoptr (EbbHandle) handle = test_pack (store, x);

    g_assert_cmpuint (ebb_activation_store_get_bytes_spilled (EBB_ACTIVATION_STORE (store)), ==, 0);
  }
}

/* Room for which the disk had no space is free again. */
static void
refused_room_is_free_again (void)
{
  g_autoptr (GError) error = NULL;
  EbbDiskFile *file = ebb_disk_file_new (scratch, &error);
  guint64 offset = G_MAXUINT64;

  g_assert_no_error (error);
  fail_from (EBB_DISK_GROW, 0, FALSE, ENOSPC);
  g_assert_false (ebb_disk_file_take (file, PAGE, PAGE, &offset, &error));
  test_assert_error (error, EBB_ERROR_IO, scratch, "4096 bytes", g_strerror (ENOSPC));
  g_assert_cmpuint (ebb_disk_file_get_in_use (file), ==, 0);
  g_clear_error (&error);
  g_assert_true (ebb_disk_file_take (file, PAGE, PAGE, &offset, &error));
  g_assert_no_error (error);
  g_assert_cmpuint (offset, ==, 0);
  g_atomic_pointer_set (&ebb_disk_fault, NULL);
  ebb_disk_file_free (file);
}

static int
fail_every_other_write (EbbDiskOperation operation)
{
  return operation == EBB_DISK_WRITE && g_atomic_int_add (&n_operations, 1) % 2 == 0 ? EIO : 0;
}

/* Many failures are only a reason to give it up if nothing was written between them. */
static void
a_disk_that_fails_now_and_then_stays_in_use (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (0); /* each put waits for its write */
  g_autoptr (EbbSavedTensorHooks) keep = ebb_keep_store_new ();
  g_autoptr (GPtrArray) handles = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_handle_unref);

  g_assert_true (
      ebb_activation_store_set_fallback (EBB_ACTIVATION_STORE (store), EBB_ACTIVATION_STORE (keep), NULL));
  n_operations = 0;
  g_atomic_pointer_set (&ebb_disk_fault, fail_every_other_write);
  for (guint i = 0; i < 20; i++)
    {
      g_autoptr (EbbTensor) x = test_randn (i, PAGE / 4, -1);

      g_ptr_array_add (handles, test_pack (store, x));
      g_assert_cmpint (g_atomic_int_get (&n_operations), ==, i + 1);
      g_assert_cmpuint (ebb_activation_store_get_bytes_spilled (EBB_ACTIVATION_STORE (store)), ==,
                        PAGE * (i / 2 + 1));
    }
  g_atomic_pointer_set (&ebb_disk_fault, NULL);
  for (guint i = 0; i < 20; i++)
    {
      g_autoptr (EbbTensor) x = test_randn (i, PAGE / 4, -1);
      g_autoptr (EbbTensor) back = test_unpack (store, handles->pdata[i]);

      g_assert_true (ebb_tensor_equal (x, back));
    }
}

int
main (int argc, char **argv)
{
  static const Case cases[] = {
    { EBB_DISK_WRITE, EIO, FALSE, FALSE },
    { EBB_DISK_WRITE, EIO, FALSE, TRUE },
    { EBB_DISK_WRITE, ENOSPC, TRUE, FALSE },
    { EBB_DISK_WRITE, ENOSPC, TRUE, TRUE },
    { EBB_DISK_READ, EIO, FALSE, FALSE },
    { EBB_DISK_READ, EIO, FALSE, TRUE },
    { EBB_DISK_READ, EIO, TRUE, FALSE },
    { EBB_DISK_READ, EIO, TRUE, TRUE },
    { EBB_DISK_GROW, ENOSPC, FALSE, FALSE },
    { EBB_DISK_GROW, ENOSPC, TRUE, TRUE },
  };
  const char *const names[] = { "make", "grow", "write", "read" };
  int status;

  g_test_init (&argc, &argv, NULL);
  scratch = g_dir_make_tmp ("ebb-disk-failures-XXXXXX", NULL);
  g_assert_nonnull (scratch);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *path =
          g_strdup_printf ("/disk-failures/each-%s-may-fail/%s/%s", names[cases[i].operation],
                           cases[i].for_good ? "for-good" : "once", cases[i].wrapped ? "wrapped" : "hooks");

      g_test_add_data_func (path, &cases[i], each_operation_may_fail);
    }
  g_test_add_data_func ("/disk-failures/the-fallback-takes-what-the-disk-refuses/hooks", GINT_TO_POINTER (FALSE),
                        the_fallback_takes_what_the_disk_refuses);
  g_test_add_data_func ("/disk-failures/the-fallback-takes-what-the-disk-refuses/wrapped", GINT_TO_POINTER (TRUE),
                        the_fallback_takes_what_the_disk_refuses);
  g_test_add_func ("/disk-failures/a-late-failure-loses-nothing", a_late_failure_loses_nothing);
  g_test_add_func ("/disk-failures/a-disk-that-fails-again-and-again-is-left-alone",
                   a_disk_that_fails_again_and_again_is_left_alone);
  g_test_add_func ("/disk-failures/a-disk-that-fails-now-and-then-stays-in-use",
                   a_disk_that_fails_now_and_then_stays_in_use);
  g_test_add_func ("/disk-failures/refused-room-is-free-again", refused_room_is_free_again);
  g_test_add_func ("/disk-failures/the-next-caller-gets-the-error", the_next_caller_gets_the_error);
  g_test_add_func ("/disk-failures/what-cant-be-read-is-tried-again", what_can_t_be_read_is_tried_again);
  status = g_test_run ();
  g_assert_cmpint (g_rmdir (scratch), ==, 0); /* nothing is left in it */
  g_free (scratch);
  return status;
}
