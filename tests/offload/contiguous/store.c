/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/stores.h"
#include "support/tensors.h"

#include <string.h>

/* Parts side by side: in order, never overwritten, and where the numbers say. */

#define ROW (40 * 4)

static EbbSavedTensorHooks *
new_store (guint n_checkpoints,
           gboolean grow)
{
  GError *error = NULL;
  EbbSavedTensorHooks *store = ebb_contiguous_store_new (n_checkpoints, NULL, &error);

  g_assert_no_error (error);
  g_object_set (store, "grow", grow, NULL);
  g_object_set (store, "least-size", (guint64) 1, NULL);
  return store;
}

static EbbHandle *
pack_row (EbbSavedTensorHooks *store,
          guint seed)
{
  g_autoptr (EbbTensor) x = test_randn (seed, 40, -1);

  return test_pack (store, x);
}

static const char *
check_row (EbbSavedTensorHooks *store,
           EbbHandle *handle,
           guint seed)
{
  g_autoptr (EbbTensor) x = test_randn (seed, 40, -1);
  g_autoptr (EbbTensor) back = test_unpack (store, handle);

  g_assert_true (ebb_tensor_equal (x, back));
  return ebb_tensor_get_data (back, NULL);
}

static void
assert_counts (EbbSavedTensorHooks *store,
               guint n_buffers,
               guint n_parts,
               guint n_parts_peak)
{
  guint counts[3];

  g_object_get (store, "n-buffers", &counts[0], "n-parts", &counts[1], "n-parts-peak", &counts[2], NULL);
  g_assert_cmpuint (counts[0], ==, n_buffers);
  g_assert_cmpuint (counts[1], ==, n_parts);
  g_assert_cmpuint (counts[2], ==, n_parts_peak);
}

static void
parts_lie_side_by_side_and_are_used_again (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (4, FALSE);
  EbbHandle *handles[4];
  const char *places[4];

  for (guint i = 0; i < 4; i++)
    handles[i] = pack_row (store, i);
  assert_counts (store, 1, 4, 4);
  for (guint i = 4; i-- > 0;)
    places[i] = check_row (store, handles[i], i);
  for (guint i = 1; i < 4; i++)
    {
      g_assert_cmpint (places[i] - places[i - 1], ==, places[1] - places[0]);
      g_assert_cmpint (places[i] - places[i - 1], >=, ROW);
      g_assert_cmpint (places[i] - places[i - 1], <, ROW + 256);
    }
  /* Whichever is dropped is the next to be filled. */
  g_clear_pointer (&handles[2], ebb_handle_unref);
  g_clear_pointer (&handles[1], ebb_handle_unref);
  assert_counts (store, 1, 2, 4);
  handles[1] = pack_row (store, 11);
  handles[2] = pack_row (store, 12);
  g_assert_true (check_row (store, handles[1], 11) == places[1]);
  g_assert_true (check_row (store, handles[2], 12) == places[2]);
  check_row (store, handles[0], 0);
  check_row (store, handles[3], 3);
  /* In whichever order: the first to be dropped isn't forgotten over the second. */
  g_clear_pointer (&handles[0], ebb_handle_unref);
  g_clear_pointer (&handles[1], ebb_handle_unref);
  for (guint i = 0; i < 2; i++)
    {
      handles[i] = pack_row (store, 20 + i);
      g_assert_true (check_row (store, handles[i], 20 + i) == places[i]);
    }
  assert_counts (store, 1, 4, 4);
  for (guint i = 0; i < 4; i++)
    ebb_handle_unref (handles[i]);
  assert_counts (store, 1, 0, 4);
  g_assert_cmpuint (test_held (store), ==, 0);
}

static void
too_few_parts_are_an_error_before_anything_is_overwritten (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (2, FALSE);
  g_autoptr (EbbHandle) a = pack_row (store, 1);
  g_autoptr (EbbHandle) b = pack_row (store, 2);
  g_autoptr (EbbTensor) x = test_randn (3, 40, -1);
  g_autoptr (EbbTensor) was = test_randn (3, 40, -1);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbHandle) c = NULL;

  g_assert_null (ebb_saved_tensor_hooks_pack (store, x, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "all 2 parts", "160 bytes of f32 on cpu", "n-checkpoints", "grow",
                     "reset");
  check_row (store, a, 1);
  check_row (store, b, 2);
  g_assert_true (ebb_tensor_equal (x, was));
  assert_counts (store, 1, 2, 2);
  g_clear_pointer (&b, ebb_handle_unref);
  c = pack_row (store, 3);
  check_row (store, a, 1);
  check_row (store, c, 3);
}

/* The same where the parts lie in a file. */
static void
too_few_parts_elsewhere_are_an_error_too (void)
{
  g_autoptr (EbbSavedTensorHooks) disk = test_disk_store_new (g_get_tmp_dir ());
  g_autoptr (EbbSavedTensorHooks) store = ebb_contiguous_store_new (2, EBB_ACTIVATION_STORE (disk), NULL);
  g_autoptr (EbbHandle) a = NULL;
  g_autoptr (EbbHandle) b = NULL;
  g_autoptr (EbbTensor) x = test_randn (3, 40, -1);
  g_autoptr (GError) error = NULL;

  g_object_set (store, "least-size", (guint64) 1, NULL);
  a = pack_row (store, 1);
  b = pack_row (store, 2);
  for (guint i = 0; i < 3; i++)
    {
      g_assert_null (ebb_saved_tensor_hooks_pack (store, x, &error));
      test_assert_error (error, EBB_ERROR_NO_MEMORY, "all 2 parts", "160 bytes of f32");
      g_clear_error (&error);
    }
  check_row (store, a, 1);
  check_row (store, b, 2);
  assert_counts (store, 1, 2, 2);
}

static void
it_grows_if_asked (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (2, TRUE);
  EbbHandle *handles[5];

  for (guint i = 0; i < 5; i++)
    handles[i] = pack_row (store, i);
  assert_counts (store, 3, 5, 5);
  for (guint i = 5; i-- > 0;)
    {
      check_row (store, handles[i], i);
      ebb_handle_unref (handles[i]);
    }
  assert_counts (store, 3, 0, 5);
  /* The store keeps the buffers that it has grown to, and uses them first. */
  for (guint i = 0; i < 5; i++)
    handles[i] = pack_row (store, i);
  assert_counts (store, 3, 5, 5);
  for (guint i = 0; i < 5; i++)
    ebb_handle_unref (handles[i]);
}

static void
after_a_reset_what_lives_keeps_its_bytes (void)
{
  const guint64 before = test_bytes_in_use ();
  g_autoptr (EbbSavedTensorHooks) store = new_store (2, FALSE);
  EbbHandle *handles[6];

  for (guint i = 0; i < 6; i++)
    {
      handles[i] = pack_row (store, i);
      if (i % 2 == 1)
        ebb_contiguous_store_reset (EBB_CONTIGUOUS_STORE (store));
    }
  assert_counts (store, 3, 6, 6);
  for (guint i = 0; i < 6; i++)
    check_row (store, handles[i], i);
  for (guint i = 0; i < 6; i++)
    {
      ebb_handle_unref (handles[i]);
      assert_counts (store, 3 - (i + 1) / 2, 5 - i, 6);
    }
  g_assert_cmpuint (test_bytes_in_use (), ==, before);
  handles[0] = pack_row (store, 0);
  ebb_handle_unref (handles[0]);
  assert_counts (store, 1, 0, 6);
  g_assert_cmpuint (test_bytes_in_use (), >, before);
  ebb_contiguous_store_reset (EBB_CONTIGUOUS_STORE (store));
  assert_counts (store, 0, 0, 6);
  g_assert_cmpuint (test_bytes_in_use (), ==, before);
}

static void
each_kind_has_its_buffer (void)
{
  GError *error = NULL;
  g_autoptr (EbbSavedTensorHooks) store = new_store (3, FALSE);
  const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16, EBB_DTYPE_F16, EBB_DTYPE_I32,
                              EBB_DTYPE_I64, EBB_DTYPE_U8, EBB_DTYPE_BOOL };
  EbbTensor *tensors[G_N_ELEMENTS (dtypes)][3];
  EbbHandle *handles[G_N_ELEMENTS (dtypes)][3];

  for (guint j = 0; j < 3; j++)
    for (guint i = 0; i < G_N_ELEMENTS (dtypes); i++)
      {
        g_autoptr (EbbTensor) x = test_randn (10 * i + j, 37, 3, -1);
        g_autoptr (EbbTensor) cast = ebb_cast (x, dtypes[i], &error);

        g_assert_no_error (error);
        tensors[i][j] = ebb_transpose (cast, 0, 1, &error);
        handles[i][j] = test_pack (store, tensors[i][j]);
      }
  assert_counts (store, G_N_ELEMENTS (dtypes), 3 * G_N_ELEMENTS (dtypes), 3 * G_N_ELEMENTS (dtypes));
  for (guint i = 0; i < G_N_ELEMENTS (dtypes); i++)
    for (guint j = 0; j < 3; j++)
      {
        g_autoptr (EbbTensor) back = test_unpack (store, handles[i][j]);
        guint n;

        g_assert_cmpint (ebb_tensor_get_dtype (back), ==, dtypes[i]);
        g_assert_cmpint (ebb_tensor_get_strides (back, &n)[0], ==, 1);
        g_assert_true (ebb_tensor_equal (back, tensors[i][j]));
        ebb_handle_unref (handles[i][j]);
        ebb_tensor_unref (tensors[i][j]);
      }
}

/* A step with other sizes does not add its buffers to those of the step before. */
static void
buffers_that_hold_nothing_make_room (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (3, FALSE);
  guint64 least = 0;

  for (guint size = 1000; size < 1010; size++)
    {
      g_autoptr (EbbTensor) x = test_randn (size, size, -1);
      g_autoptr (EbbTensor) y = test_randn (size, size / 2, -1);
      g_autoptr (EbbHandle) a = test_pack (store, x);
      g_autoptr (EbbHandle) b = test_pack (store, y);

      assert_counts (store, 2, 2, 2);
      least = least ? least : test_bytes_in_use ();
      g_assert_cmpuint (test_bytes_in_use (), <=, least + 3 * 2 * 256);
    }
}

static guint64
in_use_for (EbbPurpose purpose)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (NULL);

  return ebb_memory_stats_get_current (stats, purpose);
}

static guint64
peak_for (EbbPurpose purpose)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (NULL);

  return ebb_memory_stats_get_peak (stats, purpose);
}

static void
bytes_are_counted_once (void)
{
  const guint64 before = test_bytes_in_use ();
  const guint64 size = 300 * 1024;
  EbbSavedTensorHooks *store = new_store (3, FALSE);
  EbbTensor *x = test_randn (1, 300, 256, -1), *back, *copy;
  EbbHandle *handle = test_pack (store, x), *other;

  g_assert_cmpuint (test_bytes_in_use (), ==, before + 4 * size);
  ebb_tensor_unref (x);
  g_assert_cmpuint (test_bytes_in_use (), ==, before + 3 * size);
  g_assert_cmpuint (in_use_for (EBB_PURPOSE_ACTIVATION), ==, size);
  ebb_memory_reset_peaks (NULL);
  back = test_unpack (store, handle); /* no memory is needed for that */
  g_assert_cmpuint (peak_for (EBB_PURPOSE_WORKSPACE), ==, in_use_for (EBB_PURPOSE_WORKSPACE));
  g_assert_cmpuint (test_bytes_in_use (), ==, before + 3 * size);
  g_assert_cmpuint (in_use_for (EBB_PURPOSE_ACTIVATION), ==, size);
  copy = test_unpack (store, handle);
  g_assert_true (ebb_tensor_get_data (copy, NULL) == ebb_tensor_get_data (back, NULL));
  other = ebb_handle_new (back);
  g_assert_cmpuint (in_use_for (EBB_PURPOSE_ACTIVATION), ==, size);
  ebb_handle_unref (other);
  ebb_tensor_unref (copy);
  ebb_tensor_unref (back);
  g_assert_cmpuint (in_use_for (EBB_PURPOSE_ACTIVATION), ==, size);
  back = test_unpack (store, handle);
  ebb_handle_unref (handle);
  /* Somebody still looks at it. */
  assert_counts (store, 1, 1, 1);
  g_assert_cmpuint (in_use_for (EBB_PURPOSE_ACTIVATION), ==, 0);
  ebb_tensor_unref (back);
  assert_counts (store, 1, 0, 1);
  g_assert_cmpuint (in_use_for (EBB_PURPOSE_ACTIVATION), ==, 0);
  g_assert_cmpuint (test_bytes_in_use (), ==, before + 3 * size);
  g_object_unref (store);
  g_assert_cmpuint (test_bytes_in_use (), ==, before);
}

static void
what_came_back_outlives_the_store (void)
{
  const guint64 before = test_bytes_in_use ();
  EbbSavedTensorHooks *store = new_store (2, FALSE);
  EbbHandle *handle = pack_row (store, 1);
  EbbTensor *back = test_unpack (store, handle), *x;

  ebb_handle_unref (handle);
  g_object_unref (store);
  x = test_randn (1, 40, -1);
  g_assert_true (ebb_tensor_equal (x, back));
  ebb_tensor_unref (x);
  ebb_tensor_unref (back);
  g_assert_cmpuint (test_bytes_in_use (), ==, before);
}

static void
a_change_in_place_of_what_came_back_is_found (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (2, FALSE);
  g_autoptr (EbbHandle) other = pack_row (store, 2);

  for (guint round = 0; round < 2; round++)
    {
      g_autoptr (EbbHandle) handle = pack_row (store, 1);
      g_autoptr (EbbTensor) back = test_unpack (store, handle);
      g_autoptr (GError) error = NULL;

      check_row (store, handle, 1);
      g_assert_true (ebb_tensor_fill (back, 3, &error));
      if (round == 1)
        g_clear_pointer (&back, ebb_tensor_unref);
      g_assert_null (ebb_saved_tensor_hooks_unpack (store, handle, &error));
      test_assert_error (error, EBB_ERROR_VERSION, "changed in place", "160 bytes of f32 on cpu");
      check_row (store, other, 2);
    }
}

static void
bits_that_are_no_numbers_come_back (void)
{
  const guint32 bits[] = { 0x7fc00001, 0xffc12345, 0x7f800001, 0xff800000, 0x80000000, 0x00000001, 0x807fffff, 0 };
  const gint64 n = G_N_ELEMENTS (bits);
  GError *error = NULL;
  g_autoptr (EbbSavedTensorHooks) store = new_store (2, FALSE);
  g_autoptr (GBytes) bytes = g_bytes_new (bits, sizeof bits);
  g_autoptr (EbbTensor) foreign = ebb_tensor_new_from_bytes (bytes, 0, &n, 1, EBB_DTYPE_F32, &error);
  g_autoptr (EbbTensor) x = ebb_copy (foreign, &error);
  g_autoptr (EbbHandle) handle = NULL;
  g_autoptr (EbbTensor) back = NULL;

  g_assert_no_error (error);
  handle = test_pack (store, x);
  assert_counts (store, 1, 1, 1);
  back = test_unpack (store, handle);
  g_assert_cmpmem (ebb_tensor_get_data (back, NULL), sizeof bits, bits, sizeof bits);
}

static void
what_makes_no_sense_is_refused (void)
{
  g_autoptr (EbbSavedTensorHooks) keep = ebb_keep_store_new ();
  g_autoptr (EbbSavedTensorHooks) unchecked = g_object_new (EBB_TYPE_CONTIGUOUS_STORE, NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 40, -1);
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_contiguous_store_new (0, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "n-checkpoints is 0");
  g_assert_null (ebb_contiguous_store_new (2, NULL, &error)); /* an error is set already */
  g_clear_error (&error);
  g_assert_null (ebb_contiguous_store_new (2, EBB_ACTIVATION_STORE (keep), &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "EbbKeepStore", "EbbHostStore", "EbbDiskStore");
  g_clear_error (&error);
  g_object_set (unchecked, "least-size", (guint64) 1, NULL);
  g_assert_null (ebb_saved_tensor_hooks_pack (unchecked, x, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "n-checkpoints is 0");
  g_clear_error (&error);
  g_object_set (unchecked, "n-checkpoints", G_MAXUINT, NULL);
  g_assert_null (ebb_saved_tensor_hooks_pack (unchecked, x, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "");
  assert_counts (unchecked, 0, 0, 0);
}

/* -- what it is for ------------------------------------------------------------------------------------------------ */

static EbbTensor *
try_bytes (EbbDevice *device,
           gint64 n,
           GError **error)
{
  return ebb_tensor_new_empty (&n, 1, EBB_DTYPE_U8, device, error);
}

/* In steps of 4 KiB. */
static gint64
get_largest_piece (EbbDevice *device)
{
  gint64 fits = 0, fails = 1 << 24;

  while (fails - fits > 4096)
    {
      g_autoptr (GError) error = NULL;
      gint64 n = (fits + fails) / 2;
      g_autoptr (EbbTensor) x = try_bytes (device, n, &error);

      *(x != NULL ? &fits : &fails) = n;
    }
  return fits;
}

/* Inputs that are kept among results that go after them, all at once: the largest piece of memory that is left. */
static gint64
keep_inputs (EbbDevice *device,
             EbbSavedTensorHooks *store)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GPtrArray) others = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  EbbHandle *handles[8];
  gint64 largest;

  g_object_set (store, "least-size", (guint64) 1, NULL);
  for (guint i = 0; i < G_N_ELEMENTS (handles); i++)
    {
      g_autoptr (EbbTensor) input = try_bytes (device, 64 << 10, &error);

      g_assert_no_error (error);
      handles[i] = test_pack (store, input);
      g_ptr_array_add (others, try_bytes (device, 160 << 10, &error));
      g_assert_no_error (error);
    }
  g_ptr_array_set_size (others, 0);
  largest = get_largest_piece (device);
  for (guint i = 0; i < G_N_ELEMENTS (handles); i++)
    ebb_handle_unref (handles[i]);
  return largest;
}

static void
the_rest_of_the_memory_stays_in_one_piece (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbSavedTensorHooks) keep = ebb_keep_store_new ();
  g_autoptr (EbbSavedTensorHooks) contiguous = ebb_contiguous_store_new (8, NULL, &error);
  EbbDevice *device;
  gint64 scattered, whole;

  g_setenv ("EBB_SIM_MEMORY", "2M", TRUE);
  device = ebb_device_get ("sim:30", &error);
  g_unsetenv ("EBB_SIM_MEMORY");
  g_assert_no_error (error);
  scattered = keep_inputs (device, keep);
  whole = keep_inputs (device, contiguous);
  g_test_message ("of 2 MiB, 512 KiB of them kept, the largest piece left has %" G_GINT64_FORMAT
                  " bytes, and %" G_GINT64_FORMAT " with parts side by side",
                  scattered, whole);
  g_assert_cmpint (scattered, <, whole / 2);
  /* All memory that is not kept, except that of the first source, which was there before the buffer. */
  g_assert_cmpint (whole, >=, (2048 - 512 - 64 - 8) << 10);
}

/* -- threads ------------------------------------------------------------------------------------------------------- */

static gpointer
pack_much (gpointer data)
{
  EbbSavedTensorHooks *store = data;

  for (guint i = 0; i < 200; i++)
    {
      g_autoptr (EbbHandle) a = pack_row (store, i);
      g_autoptr (EbbHandle) b = pack_row (store, i + 1);

      check_row (store, b, i + 1);
      check_row (store, a, i);
      if (i % 50 == 49)
        ebb_contiguous_store_reset (EBB_CONTIGUOUS_STORE (store));
    }
  return NULL;
}

static void
threads_share_a_store (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (3, TRUE);
  GThread *threads[4];

  for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
    threads[i] = g_thread_new (NULL, pack_much, store);
  for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
    g_thread_join (threads[i]);
  g_assert_cmpuint (test_held (store), ==, 0);
  g_assert_cmpuint (test_get_double (store, "n-parts"), ==, 0);
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/contiguous/parts-lie-side-by-side", parts_lie_side_by_side_and_are_used_again);
  g_test_add_func ("/contiguous/too-few-parts-are-an-error", too_few_parts_are_an_error_before_anything_is_overwritten);
  g_test_add_func ("/contiguous/too-few-parts-elsewhere-are-an-error", too_few_parts_elsewhere_are_an_error_too);
  g_test_add_func ("/contiguous/it-grows-if-asked", it_grows_if_asked);
  g_test_add_func ("/contiguous/what-lives-outlives-a-reset", after_a_reset_what_lives_keeps_its_bytes);
  g_test_add_func ("/contiguous/each-kind-has-its-buffer", each_kind_has_its_buffer);
  g_test_add_func ("/contiguous/buffers-that-hold-nothing-make-room", buffers_that_hold_nothing_make_room);
  g_test_add_func ("/contiguous/bytes-are-counted-once", bytes_are_counted_once);
  g_test_add_func ("/contiguous/what-came-back-outlives-the-store", what_came_back_outlives_the_store);
  g_test_add_func ("/contiguous/a-change-in-place-is-found", a_change_in_place_of_what_came_back_is_found);
  g_test_add_func ("/contiguous/bits-that-are-no-numbers-come-back", bits_that_are_no_numbers_come_back);
  g_test_add_func ("/contiguous/what-makes-no-sense-is-refused", what_makes_no_sense_is_refused);
  g_test_add_func ("/contiguous/the-rest-stays-in-one-piece", the_rest_of_the_memory_stays_in_one_piece);
  g_test_add_func ("/contiguous/threads-share-a-store", threads_share_a_store);
  return g_test_run ();
}
