/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/stores.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What is compressed comes back, to the bit or with the error that was reported, whatever fails on the way. */

static char *scratch;

/* -- a next store that fails --------------------------------------------------------------------------------------- */

#define TYPE_TROUBLE (trouble_get_type ())
G_DECLARE_FINAL_TYPE (Trouble, trouble, TEST, TROUBLE, EbbActivationStore)

struct _Trouble
{
  EbbActivationStore parent_instance;
  int n_held, n_put, n_got, n_failures; /* the compressed store's thread gets, too */
  int awaits_fork, is_getting;
};

G_DEFINE_FINAL_TYPE (Trouble, trouble, EBB_TYPE_ACTIVATION_STORE)

typedef struct
{
  Trouble *trouble;
  EbbTensor *tensor;
} Kept;

static void
kept_free (gpointer data)
{
  Kept *kept = data;

  g_atomic_int_add (&kept->trouble->n_held, -1);
  ebb_tensor_unref (kept->tensor);
  g_free (kept);
}

static gboolean
fails (Trouble *self,
       GError **error)
{
  if (g_atomic_int_get (&self->n_failures) == 0)
    return FALSE;
  g_set_error_literal (error, EBB_ERROR, EBB_ERROR_IO, "no luck");
  g_atomic_int_add (&self->n_failures, -1);
  return TRUE;
}

static EbbHandle *
trouble_put (EbbActivationStore *store,
             EbbTensor *block,
             GError **error)
{
  Trouble *self = TEST_TROUBLE (store);
  Kept kept = { self, block };

  g_assert_cmpint (ebb_tensor_get_dtype (block), ==, EBB_DTYPE_U8);
  if (fails (self, error))
    return NULL;
  ebb_tensor_ref (block);
  g_atomic_int_inc (&self->n_held);
  g_atomic_int_inc (&self->n_put);
  return ebb_handle_new_for_data (g_memdup2 (&kept, sizeof kept), kept_free);
}

static int n_forks;

static void
count_fork (void)
{
  g_atomic_int_inc (&n_forks);
}

/* Until a fork has begun, and then for as long as it could take if nobody held it up. */
static void
await_fork (Trouble *self)
{
  const int before = g_atomic_int_get (&n_forks);

  g_atomic_int_set (&self->is_getting, 1);
  while (g_atomic_int_get (&n_forks) == before)
    g_thread_yield ();
  for (guint i = 0; i < 20000; i++)
    g_thread_yield ();
  g_atomic_int_set (&self->is_getting, 0);
}

static EbbTensor *
trouble_get (EbbActivationStore *store,
             EbbHandle *handle,
             GError **error)
{
  Trouble *self = TEST_TROUBLE (store);
  const Kept *kept = ebb_handle_get_data (handle);

  if (g_atomic_int_get (&self->awaits_fork))
    await_fork (self);
  if (fails (self, error))
    return NULL;
  g_atomic_int_inc (&self->n_got);
  return ebb_tensor_ref (kept->tensor);
}

static void
trouble_class_init (TroubleClass *klass)
{
  EbbActivationStoreClass *store_class = EBB_ACTIVATION_STORE_CLASS (klass);

  store_class->put = trouble_put;
  store_class->get = trouble_get;
}

static void
trouble_init (Trouble *self)
{
}

/* -- stores -------------------------------------------------------------------------------------------------------- */

static EbbSavedTensorHooks *
new_over (EbbSavedTensorHooks *next,
          guint64 staging)
{
  GError *error = NULL;
  EbbSavedTensorHooks *store = ebb_compressed_store_new (EBB_ACTIVATION_STORE (next), &error);

  g_assert_no_error (error);
  ebb_compressed_store_set_staging_limit (EBB_COMPRESSED_STORE (store), staging);
  ebb_activation_store_set_least_size (EBB_ACTIVATION_STORE (store), 1);
  return store;
}

static EbbSavedTensorHooks *
new_store (gboolean disk,
           guint64 staging)
{
  g_autoptr (EbbSavedTensorHooks) next = disk ? test_disk_store_new (scratch) : ebb_host_store_new ();

  return new_over (next, staging);
}

static void
synchronize (EbbSavedTensorHooks *store)
{
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (store), &error));
  g_assert_no_error (error);
}

/* -- bits ---------------------------------------------------------------------------------------------------------- */

static EbbTensor *
from_bits (const guint32 *bits,
           gint64 n)
{
  g_autoptr (GBytes) bytes = g_bytes_new (bits, (gsize) n * sizeof *bits);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) foreign = ebb_tensor_new_from_bytes (bytes, 0, &n, 1, EBB_DTYPE_F32, &error);
  EbbTensor *x = ebb_copy (foreign, &error);

  g_assert_no_error (error);
  return x;
}

static void
every_bit_comes_back (gconstpointer data)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (GPOINTER_TO_INT (data), 100000);
  const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16, EBB_DTYPE_F16, EBB_DTYPE_I32,
                              EBB_DTYPE_I64, EBB_DTYPE_U8, EBB_DTYPE_BOOL };
  EbbTensor *tensors[3 * G_N_ELEMENTS (dtypes)];
  EbbHandle *handles[G_N_ELEMENTS (tensors)];
  GError *error = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (tensors); i++)
    {
      g_autoptr (EbbTensor) x = test_randn (i, 1 << (i % 3) * 7, 37, -1);
      g_autoptr (EbbTensor) cast = ebb_cast (x, dtypes[i / 3], &error);

      g_assert_no_error (error);
      tensors[i] = ebb_transpose (cast, 0, 1, &error);
      handles[i] = test_pack (store, tensors[i]);
    }
  for (guint round = 0; round < 2; round++)
    for (guint i = G_N_ELEMENTS (tensors); i-- > 0;)
      {
        g_autoptr (EbbTensor) back = test_unpack (store, handles[i]);
        guint n;

        g_assert_cmpint (ebb_tensor_get_dtype (back), ==, ebb_tensor_get_dtype (tensors[i]));
        g_assert_cmpint (ebb_tensor_get_strides (back, &n)[0], ==, 1);
        g_assert_true (ebb_tensor_equal (back, tensors[i]));
        if (i % 4 == 0)
          synchronize (store);
      }
  for (guint i = 0; i < G_N_ELEMENTS (tensors); i++)
    {
      ebb_tensor_unref (tensors[i]);
      ebb_handle_unref (handles[i]);
    }
  g_assert_cmpuint (test_held (store), ==, 0);
}

static void
bits_that_are_no_numbers_come_back (void)
{
  enum
  {
    N = 3000
  };
  guint32 bits[N] = { 0x7fc00001, 0xffc12345, 0x7f800001, 0xff800000, 0x80000000, 0x00000001, 0x807fffff, 0 };
  g_autoptr (EbbSavedTensorHooks) store = new_store (FALSE, 0);
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) back = NULL;
  g_autoptr (EbbHandle) handle = NULL;

  for (guint i = 8; i < N; i++)
    bits[i] = bits[i % 8];
  x = from_bits (bits, N);
  handle = test_pack (store, x);
  g_assert_cmpfloat (ebb_compressed_store_get_ratio (EBB_COMPRESSED_STORE (store)), >, 1.5);
  back = test_unpack (store, handle);
  g_assert_cmpmem (ebb_tensor_get_data (back, NULL), sizeof bits, bits, sizeof bits);
}

static void
what_gains_nothing_is_stored_as_it_is (void)
{
  enum
  {
    N = 200000
  };
  g_autofree guint32 *bits = g_new (guint32, N);
  g_autoptr (GRand) rand = g_rand_new_with_seed (1);
  g_autoptr (EbbSavedTensorHooks) store = new_store (TRUE, 0);
  EbbCompressedStore *self = EBB_COMPRESSED_STORE (store);
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) back = NULL;
  g_autoptr (EbbHandle) handle = NULL;

  for (guint i = 0; i < N; i++)
    bits[i] = g_rand_int (rand);
  x = from_bits (bits, N);
  handle = test_pack (store, x);
  g_assert_cmpuint (ebb_compressed_store_get_bytes_raw (self), ==, N * 4);
  g_assert_cmpuint (ebb_compressed_store_get_bytes_stored (self), ==, N * 4);
  back = test_unpack (store, handle);
  g_assert_cmpmem (ebb_tensor_get_data (back, NULL), N * 4, bits, N * 4);
}

static void
memory_and_counters_say_what_was_gained (void)
{
  const guint64 before = test_bytes_in_use ();
  const guint64 size = 300 * 1000 * 4;
  EbbSavedTensorHooks *store = new_store (FALSE, 0);
  EbbCompressedStore *self = EBB_COMPRESSED_STORE (store);
  EbbTensor *x = test_randn (1, 300, 1000, -1);
  EbbHandle *handle = test_pack (store, x);
  guint64 stored = ebb_compressed_store_get_bytes_stored (self), scratch_bytes;
  g_autofree char *report = NULL;

  ebb_tensor_unref (x);
  g_assert_cmpuint (ebb_compressed_store_get_bytes_raw (self), ==, size);
  g_assert_cmpuint (stored, <, size * 88 / 100);
  g_assert_cmpfloat (ebb_compressed_store_get_ratio (self), ==, (double) size / (double) stored);
  g_assert_cmpuint (test_held (store), ==, size);
  g_assert_cmpuint (test_held (ebb_compressed_store_get_next (self)), ==, stored);
  scratch_bytes = size;
  g_assert_cmpuint (test_bytes_in_use (), ==, before + stored + scratch_bytes);
  report = ebb_activation_store_report_json (EBB_ACTIVATION_STORE (store));
  g_assert_nonnull (strstr (report, "\"bytes_raw\":1200000,\"bytes_stored\":"));
  g_assert_nonnull (strstr (report, "\"ratio\":1.1"));
  g_assert_nonnull (strstr (report, "\"next\":{\"store\":\"EbbHostStore\""));
  ebb_activation_store_reset_stats (EBB_ACTIVATION_STORE (store));
  g_assert_cmpuint (ebb_compressed_store_get_bytes_raw (self), ==, 0);
  g_assert_cmpfloat (ebb_compressed_store_get_ratio (self), ==, 1);
  ebb_handle_unref (handle);
  g_assert_cmpuint (test_bytes_in_use (), ==, before + scratch_bytes);
  g_object_unref (store);
  g_assert_cmpuint (test_bytes_in_use (), ==, before);
}

/* What is in memory, and in the next store, depends on what was put alone. */
static void
what_was_put_last_is_still_there (void)
{
  g_autoptr (EbbSavedTensorHooks) next = g_object_new (TYPE_TROUBLE, NULL);
  g_autoptr (EbbSavedTensorHooks) store = new_over (next, 3 * 4000);
  EbbHandle *handles[8];

  for (guint i = 0; i < 8; i++)
    {
      g_autoptr (EbbTensor) x = test_randn (i, 1000, -1);

      handles[i] = test_pack (store, x);
      g_assert_cmpint (g_atomic_int_get (&TEST_TROUBLE (next)->n_put), ==, i < 3 ? 0 : (int) i - 2);
    }
  for (guint i = 8; i-- > 0;)
    {
      g_autoptr (EbbTensor) x = test_randn (i, 1000, -1);
      g_autoptr (EbbTensor) back = test_unpack (store, handles[i]);

      g_assert_true (ebb_tensor_equal (x, back));
      g_clear_pointer (&handles[i], ebb_handle_unref);
      g_assert_cmpint (g_atomic_int_get (&TEST_TROUBLE (next)->n_put), ==, 5);
      if (i >= 6)
        g_assert_cmpint (g_atomic_int_get (&TEST_TROUBLE (next)->n_got), ==, 0);
    }
  g_assert_cmpint (g_atomic_int_get (&TEST_TROUBLE (next)->n_got), ==, 5);
  g_assert_cmpint (g_atomic_int_get (&TEST_TROUBLE (next)->n_held), ==, 0);
}

static void
a_change_in_place_is_another_tensor (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (FALSE, 1 << 20);
  g_autoptr (EbbTensor) x = test_randn (4, 1000, -1);
  g_autoptr (EbbTensor) was = test_randn (4, 1000, -1);
  g_autoptr (EbbHandle) handle = test_pack (store, x);
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_tensor_fill (x, 2, &error));
  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbTensor) back = test_unpack (store, handle);

      g_assert_true (ebb_tensor_equal (back, was));
      g_assert_true (ebb_tensor_fill (back, 3, &error));
      synchronize (store);
    }
}

/* -- rounding ------------------------------------------------------------------------------------------------------ */

static void
lossy_rounds_f32_alone_and_tells_the_error (void)
{
  g_autoptr (EbbSavedTensorHooks) next = ebb_keep_store_new ();
  g_autoptr (EbbSavedTensorHooks) store = g_object_new (EBB_TYPE_COMPRESSED_STORE, "next", next, "least-size",
                                                        (guint64) 1, "lossy", EBB_LOSSY_BF16, NULL);
  EbbCompressedStore *self = EBB_COMPRESSED_STORE (store);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = test_randn (1, 100, 1000, -1);
  g_autoptr (EbbTensor) half = ebb_cast (x, EBB_DTYPE_F16, &error);
  g_autoptr (EbbTensor) narrow = ebb_cast (x, EBB_DTYPE_BF16, &error);
  g_autoptr (EbbTensor) expected = ebb_cast (narrow, EBB_DTYPE_F32, &error);
  g_autoptr (EbbHandle) a = test_pack (store, x);
  g_autoptr (EbbHandle) b = test_pack (store, half);

  g_assert_no_error (error);
  /* Whether it is compressed already or not. */
  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbTensor) back = test_unpack (store, a);
      g_autoptr (EbbTensor) other = test_unpack (store, b);

      g_assert_true (ebb_tensor_equal (back, expected));
      g_assert_true (ebb_tensor_equal (other, half));
      if (i == 0)
        synchronize (store);
    }
  g_assert_cmpfloat (ebb_compressed_store_get_largest_error (self), >, 1.0 / 300);
  g_assert_cmpfloat (ebb_compressed_store_get_largest_error (self), <=, 1.0 / 256);
  g_assert_cmpfloat (ebb_compressed_store_get_ratio (self), >, 1.9);
  g_object_set (store, "lossy", EBB_LOSSY_NONE, NULL);
  {
    g_autoptr (EbbTensor) y = test_randn (2, 100, 1000, -1);
    g_autoptr (EbbHandle) c = test_pack (store, y);
    g_autoptr (EbbTensor) back = test_unpack (store, c);

    g_assert_true (ebb_tensor_equal (back, y));
  }
}

/* -- failures ------------------------------------------------------------------------------------------------------ */

static void
a_next_store_that_fails_loses_nothing (void)
{
  g_autoptr (EbbSavedTensorHooks) next = g_object_new (TYPE_TROUBLE, NULL);
  g_autoptr (EbbSavedTensorHooks) store = new_over (next, 2 * 4000);
  Trouble *trouble = TEST_TROUBLE (next);
  EbbHandle *handles[6] = { NULL };
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < 6; i++)
    {
      g_autoptr (EbbTensor) x = test_randn (i, 1000, -1);

      g_atomic_int_set (&trouble->n_failures, i == 3 ? 2 : 0);
      for (guint j = 0; j < (i == 3 ? 2 : 0); j++)
        {
          g_assert_null (ebb_saved_tensor_hooks_pack (store, x, &error));
          test_assert_error (error, EBB_ERROR_IO, "no luck");
          g_clear_error (&error);
        }
      g_atomic_int_set (&trouble->n_failures, 0);
      handles[i] = test_pack (store, x);
    }
  g_atomic_int_set (&trouble->n_failures, 1);
  g_assert_false (ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (store), &error));
  test_assert_error (error, EBB_ERROR_IO, "no luck");
  g_clear_error (&error);
  synchronize (store);
  g_assert_cmpint (g_atomic_int_get (&trouble->n_held), ==, 6);
  ebb_activation_store_set_prefetch (EBB_ACTIVATION_STORE (store), 0);
  for (guint i = 6; i-- > 0;)
    {
      g_autoptr (EbbTensor) x = test_randn (i, 1000, -1);
      g_autoptr (EbbTensor) back = NULL;

      g_atomic_int_set (&trouble->n_failures, i % 2);
      if (i % 2 == 1)
        {
          g_assert_null (ebb_saved_tensor_hooks_unpack (store, handles[i], &error));
          test_assert_error (error, EBB_ERROR_IO, "no luck");
          g_clear_error (&error);
        }
      back = test_unpack (store, handles[i]);
      g_assert_true (ebb_tensor_equal (x, back));
      ebb_handle_unref (handles[i]);
    }
  g_assert_cmpint (g_atomic_int_get (&trouble->n_held), ==, 0);
}

static void
a_prefetch_that_fails_is_told_by_the_next_get (void)
{
  g_autoptr (EbbSavedTensorHooks) next = g_object_new (TYPE_TROUBLE, NULL);
  g_autoptr (EbbSavedTensorHooks) store = new_over (next, 0);
  g_autoptr (EbbTensor) x = test_randn (1, 1000, -1);
  g_autoptr (EbbTensor) y = test_randn (2, 1000, -1);
  g_autoptr (EbbTensor) noise = NULL;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbHandle) a = test_pack (store, x);
  g_autoptr (EbbHandle) b = NULL;
  g_autoptr (EbbTensor) back = NULL;

  noise = ebb_add_scalar (x, 1, &error); /* parts the two */
  b = test_pack (store, y);
  back = test_unpack (store, b); /* and a is on its way, or will be */
  g_atomic_int_set (&TEST_TROUBLE (next)->n_failures, 1);
  g_clear_pointer (&back, ebb_tensor_unref);
  for (guint i = 0; i < 2; i++)
    {
      back = ebb_saved_tensor_hooks_unpack (store, a, &error);
      if (back == NULL)
        {
          test_assert_error (error, EBB_ERROR_IO, "no luck");
          g_clear_error (&error);
          continue;
        }
      g_assert_true (ebb_tensor_equal (x, back));
      g_clear_pointer (&back, ebb_tensor_unref);
    }
  g_atomic_int_set (&TEST_TROUBLE (next)->n_failures, 0);
  back = test_unpack (store, a);
  g_assert_true (ebb_tensor_equal (x, back));
}

static void
the_fallback_takes_what_the_next_store_refuses (void)
{
  g_autoptr (EbbSavedTensorHooks) next = g_object_new (TYPE_TROUBLE, NULL);
  g_autoptr (EbbSavedTensorHooks) store = new_over (next, 0);
  g_autoptr (EbbSavedTensorHooks) fallback = ebb_keep_store_new ();
  EbbHandle *handles[5];

  g_assert_true (
      ebb_activation_store_set_fallback (EBB_ACTIVATION_STORE (store), EBB_ACTIVATION_STORE (fallback), NULL));
  for (guint i = 0; i < 5; i++)
    {
      g_autoptr (EbbTensor) x = test_randn (i, 1000, -1);

      g_atomic_int_set (&TEST_TROUBLE (next)->n_failures, i == 2 || i == 3);
      handles[i] = test_pack (store, x);
    }
  g_assert_cmpuint (ebb_activation_store_get_bytes_spilled (EBB_ACTIVATION_STORE (store)), ==, 2 * 4000);
  for (guint i = 5; i-- > 0;)
    {
      g_autoptr (EbbTensor) x = test_randn (i, 1000, -1);
      g_autoptr (EbbTensor) back = test_unpack (store, handles[i]);

      g_assert_true (ebb_tensor_equal (x, back));
      ebb_handle_unref (handles[i]);
    }
}

static void
what_makes_no_sense_is_refused (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbSavedTensorHooks) inner = new_store (FALSE, 0);
  g_autoptr (EbbSavedTensorHooks) contiguous = ebb_contiguous_store_new (2, NULL, &error);
  g_autoptr (EbbSavedTensorHooks) unchecked = g_object_new (EBB_TYPE_COMPRESSED_STORE, NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 40, -1);

  g_assert_null (ebb_compressed_store_new (EBB_ACTIVATION_STORE (inner), &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "EbbCompressedStore", "EbbHostStore", "EbbDiskStore");
  g_clear_error (&error);
  g_assert_null (ebb_compressed_store_new (EBB_ACTIVATION_STORE (contiguous), &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "EbbContiguousStore", "EbbHostStore");
  g_clear_error (&error);
  g_assert_null (ebb_contiguous_store_new (2, EBB_ACTIVATION_STORE (inner), &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "EbbCompressedStore", "EbbHostStore");
  g_clear_error (&error);
  ebb_activation_store_set_least_size (EBB_ACTIVATION_STORE (unchecked), 1);
  g_assert_null (ebb_saved_tensor_hooks_pack (unchecked, x, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "next is missing");
}

/* -- processes ----------------------------------------------------------------------------------------------------- */

static void
a_child_is_told_that_the_thread_is_elsewhere (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (FALSE, 1 << 20);
  g_autoptr (EbbTensor) x = test_randn (1, 1000, -1);
  g_autoptr (EbbTensor) other = test_randn (2, 1000, -1);
  g_autoptr (EbbHandle) handle = test_pack (store, x);
  g_autoptr (EbbTensor) back = NULL;
  int status;
  pid_t child = fork ();

  if (child == 0)
    {
      g_autoptr (GError) error = NULL;
      gboolean ok = ebb_saved_tensor_hooks_unpack (store, handle, &error) == NULL
                    && g_error_matches (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);

      g_clear_error (&error);
      ok = ok && ebb_saved_tensor_hooks_pack (store, other, &error) == NULL
           && g_error_matches (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);
      ebb_handle_unref (handle);
      _exit (ok ? 0 : 1);
    }
  g_assert_cmpint (waitpid (child, &status, 0), ==, child);
  g_assert_cmpint (status, ==, 0);
  back = test_unpack (store, handle);
  g_assert_true (ebb_tensor_equal (x, back));
}

/* In the child everything can go, whatever the thread was at. */
static pid_t
fork_and_drop (EbbSavedTensorHooks *store,
               EbbHandle **handles,
               guint n,
               gboolean *fails)
{
  pid_t child = fork ();

  if (child != 0)
    return child;
  alarm (60); /* rather than hang */
  for (guint i = 0; i < n; i++)
    ebb_handle_unref (handles[i]);
  g_object_unref (store);
  _exit (fails != NULL && *fails);
}

static void
await_child (pid_t child)
{
  int status;

  g_assert_cmpint (waitpid (child, &status, 0), ==, child);
  g_assert_cmpint (status, ==, 0);
}

static void
a_child_may_drop_all_that_it_has (void)
{
  for (guint round = 0; round < 40; round++)
    {
      EbbSavedTensorHooks *store = new_store (round % 2, round % 4 > 1 ? 1 << 20 : 10000);
      EbbHandle *handles[4];
      EbbTensor *x[4];
      pid_t child;

      for (guint i = 0; i < 4; i++)
        {
          x[i] = test_randn ((int) i, 3000, -1);
          handles[i] = ebb_activation_store_put_block (EBB_ACTIVATION_STORE (store), x[i], NULL);
        }
      for (guint i = 0; i < round % 5; i++)
        ebb_activation_store_prefetch_block (EBB_ACTIVATION_STORE (store), handles[i]);
      child = fork_and_drop (store, handles, 4, NULL);
      for (guint i = 0; i < 4; i++)
        {
          g_autoptr (EbbTensor) back =
              ebb_activation_store_get_block (EBB_ACTIVATION_STORE (store), handles[i], NULL);

          g_assert_true (ebb_tensor_equal (back, x[i]));
          ebb_handle_unref (handles[i]);
          ebb_tensor_unref (x[i]);
        }
      g_object_unref (store);
      await_child (child);
    }
}

/* Whatever locks that takes, the child has none of them. */
static void
a_fork_waits_for_the_next_store (void)
{
  static gboolean is_watched;
  g_autoptr (EbbSavedTensorHooks) next = g_object_new (TYPE_TROUBLE, NULL);
  EbbSavedTensorHooks *store = new_over (next, 0);
  Trouble *trouble = TEST_TROUBLE (next);
  g_autoptr (EbbTensor) x = test_randn (1, 1000, -1);
  EbbHandle *handle = ebb_activation_store_put_block (EBB_ACTIVATION_STORE (store), x, NULL);
  EbbTensor *back;

  if (!is_watched)
    is_watched = pthread_atfork (count_fork, NULL, NULL) == 0;
  g_atomic_int_set (&trouble->awaits_fork, 1);
  ebb_activation_store_prefetch_block (EBB_ACTIVATION_STORE (store), handle);
  while (!g_atomic_int_get (&trouble->is_getting))
    g_thread_yield ();
  await_child (fork_and_drop (store, &handle, 1, &trouble->is_getting));
  back = ebb_activation_store_get_block (EBB_ACTIVATION_STORE (store), handle, NULL);
  g_assert_true (ebb_tensor_equal (back, x));
  ebb_tensor_unref (back);
  ebb_handle_unref (handle);
  g_object_unref (store);
}

int
main (int argc, char **argv)
{
  int status;

  g_test_init (&argc, &argv, NULL);
  scratch = g_dir_make_tmp ("ebb-compressed-XXXXXX", NULL);
  g_assert_nonnull (scratch);
  g_test_add_data_func ("/compressed/host/every-bit-comes-back", GINT_TO_POINTER (FALSE), every_bit_comes_back);
  g_test_add_data_func ("/compressed/disk/every-bit-comes-back", GINT_TO_POINTER (TRUE), every_bit_comes_back);
  g_test_add_func ("/compressed/bits-that-are-no-numbers-come-back", bits_that_are_no_numbers_come_back);
  g_test_add_func ("/compressed/what-gains-nothing-is-stored-as-it-is", what_gains_nothing_is_stored_as_it_is);
  g_test_add_func ("/compressed/counters-say-what-was-gained", memory_and_counters_say_what_was_gained);
  g_test_add_func ("/compressed/what-was-put-last-is-still-there", what_was_put_last_is_still_there);
  g_test_add_func ("/compressed/a-change-in-place-is-another-tensor", a_change_in_place_is_another_tensor);
  g_test_add_func ("/compressed/lossy-rounds-f32-alone", lossy_rounds_f32_alone_and_tells_the_error);
  g_test_add_func ("/compressed/a-next-store-that-fails-loses-nothing", a_next_store_that_fails_loses_nothing);
  g_test_add_func ("/compressed/a-prefetch-that-fails-is-told", a_prefetch_that_fails_is_told_by_the_next_get);
  g_test_add_func ("/compressed/the-fallback-takes-what-is-refused", the_fallback_takes_what_the_next_store_refuses);
  g_test_add_func ("/compressed/what-makes-no-sense-is-refused", what_makes_no_sense_is_refused);
  g_test_add_func ("/compressed/a-child-is-told", a_child_is_told_that_the_thread_is_elsewhere);
  g_test_add_func ("/compressed/a-child-may-drop-all-that-it-has", a_child_may_drop_all_that_it_has);
  g_test_add_func ("/compressed/a-fork-waits-for-the-next-store", a_fork_waits_for_the_next_store);
  status = g_test_run ();
  g_assert_cmpint (g_rmdir (scratch), ==, 0);
  g_free (scratch);
  return status;
}
