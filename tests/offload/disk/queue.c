/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "offload/disk/file-private.h"
#include "offload/disk/block-private.h"
#include "support/stores.h"
#include "support/tensors.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A disk store's own thread: what it does, and how fast, changes nothing that the program sees. */

#define PAGE 4096

static char *scratch;

/* -- a disk that works when it is let ------------------------------------------------------------------------------ */

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_moved = PTHREAD_COND_INITIALIZER;
static gboolean is_closed;
static guint n_waiting, n_writes, n_reads;

static int
wait_at_gate (EbbDiskOperation operation)
{
  pthread_mutex_lock (&gate);
  n_waiting++;
  pthread_cond_broadcast (&gate_moved);
  while (is_closed)
    pthread_cond_wait (&gate_moved, &gate);
  n_waiting--;
  n_writes += operation == EBB_DISK_WRITE;
  n_reads += operation == EBB_DISK_READ;
  pthread_mutex_unlock (&gate);
  return 0;
}

static guint
look_at (const guint *number)
{
  guint value;

  pthread_mutex_lock (&gate);
  value = *number;
  pthread_mutex_unlock (&gate);
  return value;
}

static void
forget_reads (void)
{
  pthread_mutex_lock (&gate);
  n_reads = 0;
  pthread_mutex_unlock (&gate);
}

/* From now on nothing is written or read, until the gate is opened. */
static void
close_gate (void)
{
  pthread_mutex_lock (&gate);
  is_closed = TRUE;
  n_waiting = n_writes = n_reads = 0;
  pthread_mutex_unlock (&gate);
  g_atomic_pointer_set (&ebb_disk_fault, wait_at_gate);
}

static void
open_gate (void)
{
  pthread_mutex_lock (&gate);
  is_closed = FALSE;
  pthread_cond_broadcast (&gate_moved);
  pthread_mutex_unlock (&gate);
}

static void
await_thread (void)
{
  pthread_mutex_lock (&gate);
  while (n_waiting == 0)
    pthread_cond_wait (&gate_moved, &gate);
  pthread_mutex_unlock (&gate);
}

static EbbSavedTensorHooks *
new_store (guint64 staging)
{
  EbbSavedTensorHooks *store = test_disk_store_new (scratch);

  g_object_set (store, "staging-limit", (guint64) staging, NULL);
  return store;
}

static void
synchronize (EbbSavedTensorHooks *store)
{
  GError *error = NULL;

  g_assert_true (ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (store), &error));
  g_assert_no_error (error);
}

/* -- beside the program -------------------------------------------------------------------------------------------- */

/* The disk takes nothing at all: what fits into staging memory is stored, can be had back and goes. */
static void
nobody_waits_for_what_has_its_place (void)
{
  const guint64 before = test_bytes_in_use ();
  EbbSavedTensorHooks *store = new_store (8 * PAGE);
  g_autoptr (EbbTensor) x = test_randn (1, 2000, -1);
  g_autoptr (EbbTensor) y = test_randn (2, 2000, -1);
  const guint64 with_both = test_bytes_in_use ();
  EbbHandle *a, *b;
  EbbTensor *back;

  /* Growing is the program's own business. */
  b = test_pack (store, x);
  a = test_pack (store, y);
  ebb_handle_unref (a);
  ebb_handle_unref (b);
  close_gate ();
  a = test_pack (store, x);
  b = test_pack (store, y);
  await_thread ();
  g_assert_cmpuint (test_bytes_in_use () - with_both, >=, 4 * PAGE);
  g_assert_cmpuint (look_at (&n_writes), ==, 0);
  back = test_unpack (store, b);
  g_assert_true (ebb_tensor_equal (back, y));
  ebb_tensor_unref (back);
  ebb_handle_unref (b); /* never written */
  open_gate ();
  back = test_unpack (store, a);
  g_assert_true (ebb_tensor_equal (back, x));
  ebb_tensor_unref (back);
  ebb_handle_unref (a);
  g_assert_cmpuint (test_held (store), ==, 0);
  g_assert_cmpuint (test_bytes_in_use (), ==, with_both);
  g_object_unref (store);
  g_assert_cmpuint (look_at (&n_writes), <=, 1);
  g_assert_cmpuint (look_at (&n_reads), ==, 0);
  g_atomic_pointer_set (&ebb_disk_fault, NULL);
  g_clear_pointer (&x, ebb_tensor_unref);
  g_clear_pointer (&y, ebb_tensor_unref);
  g_assert_cmpuint (test_bytes_in_use (), ==, before);
}

/* The tensor that was stored last need not be read; all others are. */
static void
what_was_put_last_is_in_memory (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (4 * PAGE);
  EbbTensor *x[6];
  EbbHandle *handles[6];

  g_object_set (store, "prefetch", 0, NULL);
  for (guint i = 0; i < 6; i++)
    {
      x[i] = test_randn ((int) i, 1024, -1);
      handles[i] = test_pack (store, x[i]);
    }
  forget_reads ();
  g_atomic_pointer_set (&ebb_disk_fault, wait_at_gate);
  for (guint round = 0; round < 2; round++)
    {
      const guint first = round == 0 ? 2 : 6; /* that is in memory */

      for (guint i = 6; i-- > 0;)
        {
          g_autoptr (EbbTensor) back = test_unpack (store, handles[i]);

          g_assert_true (ebb_tensor_equal (back, x[i]));
          g_assert_cmpuint (look_at (&n_reads), ==, i >= first ? 0 : first - i);
        }
      synchronize (store); /* nothing stays */
      forget_reads ();
    }
  for (guint i = 0; i < 6; i++)
    {
      ebb_handle_unref (handles[i]);
      ebb_tensor_unref (x[i]);
    }
  g_atomic_pointer_set (&ebb_disk_fault, NULL);
}

/* Tensors of earlier modules leave memory though there would be room: here each packs 3 MiB and computes. */
static void
only_the_last_modules_stay_in_memory (void)
{
  enum
  {
    N = 6
  };
  const gsize size = 3 << 20;

  for (guint in_flight = 0; in_flight < 4; in_flight++)
    {
      g_autoptr (EbbSavedTensorHooks) store = new_store (1ul << 30);
      EbbHandle *handles[N];
      const guint64 before = test_bytes_in_use ();

      g_object_set (store, "in-flight", in_flight, NULL);
      for (guint i = 0; i < N; i++)
        {
          EbbTensor *x = test_randn ((int) i, (gint64) (size / 4), -1);
          EbbTensor *y = ebb_square (x, NULL);

          handles[i] = test_pack (store, x);
          ebb_tensor_unref (x);
          ebb_tensor_unref (y);
          /* Each buffer has a block in front for its alignment. */
          g_assert_cmpuint (test_bytes_in_use () - before, ==, MIN (i, in_flight) * (size + PAGE) + size + PAGE);
        }
      for (guint i = N; i-- > 0;)
        {
          g_autoptr (EbbTensor) back = test_unpack (store, handles[i]);
          g_autoptr (EbbTensor) x = test_randn ((int) i, (gint64) (size / 4), -1);

          g_assert_true (ebb_tensor_equal (back, x));
          ebb_handle_unref (handles[i]);
        }
      g_assert_cmpuint (test_bytes_in_use (), ==, before);
    }
}

/* A disk that now and then takes a rest. */
static int
rest_at_random (EbbDiskOperation operation)
{
  for (gint32 n = g_random_int_range (0, 200); n > 0; n--)
    g_thread_yield ();
  return 0;
}

static void
peaks_do_not_depend_on_the_disk (void)
{
  const guint64 limits[] = { 0, 3 * PAGE, 40 * PAGE, G_MAXUINT64 };
  g_autoptr (EbbModule) gpt = test_gpt_new ();

  for (guint i = 0; i < G_N_ELEMENTS (limits); i++)
    {
      g_autoptr (EbbSavedTensorHooks) store = new_store (limits[i]);
      guint64 expected = 0;

      for (guint n = 0; n < 6; n++)
        {
          g_autoptr (EbbMemoryStats) stats = NULL;
          TestStep step;

          g_atomic_pointer_set (&ebb_disk_fault, n % 2 ? rest_at_random : NULL);
          test_step_run (gpt, store, &step);
          test_step_clear (&step);
          stats = ebb_memory_get_stats (NULL);
          if (n == 1) /* the first makes what is made once */
            expected = ebb_memory_stats_get_peak_total (stats);
          else if (n > 1)
            g_assert_cmpuint (ebb_memory_stats_get_peak_total (stats), ==, expected);
          g_atomic_pointer_set (&ebb_disk_fault, NULL); /* while nothing is under way: all handles are gone */
        }
    }
}

/* -- prefetch ------------------------------------------------------------------------------------------------------ */

static EbbTensor *
get (EbbSavedTensorHooks *store,
     EbbHandle *handle,
     GError **error)
{
  return EBB_ACTIVATION_STORE_GET_CLASS (store)->get (EBB_ACTIVATION_STORE (store), handle, error);
}

static EbbHandle *
put (EbbSavedTensorHooks *store,
     EbbTensor *tensor,
     GError **error)
{
  return EBB_ACTIVATION_STORE_GET_CLASS (store)->put (EBB_ACTIVATION_STORE (store), tensor, error);
}

static void
prefetch (EbbSavedTensorHooks *store,
          EbbHandle *handle)
{
  EBB_ACTIVATION_STORE_GET_CLASS (store)->prefetch (EBB_ACTIVATION_STORE (store), handle);
}

/* Several pieces, of which the last is not whole. */
static void
what_was_prefetched_is_there (void)
{
  const guint64 before = test_bytes_in_use ();
  const guint64 limits[] = { 0, 5ul << 20, 64ul << 20 };

  for (guint i = 0; i < G_N_ELEMENTS (limits); i++)
    {
      EbbSavedTensorHooks *store = new_store (limits[i]);
      EbbTensor *x = test_randn (5, (9 << 18) + 77, -1), *back;
      EbbHandle *handle = put (store, x, NULL), *other = put (store, x, NULL);

      prefetch (store, handle);
      prefetch (store, handle); /* is on its way */
      prefetch (store, other);  /* never asked for */
      back = get (store, handle, NULL);
      g_assert_true (ebb_tensor_equal (back, x));
      ebb_tensor_unref (back);
      back = get (store, handle, NULL); /* and once more */
      g_assert_true (ebb_tensor_equal (back, x));
      ebb_tensor_unref (back);
      prefetch (store, handle);
      ebb_handle_unref (handle);
      ebb_handle_unref (other);
      ebb_tensor_unref (x);
      g_assert_cmpuint (test_bytes_in_use (), ==, before);
      g_object_unref (store);
    }
}

/* Its record goes while the thread reads for it, and while it waits for its turn. */
static void
a_prefetch_may_be_of_no_use (void)
{
  const guint64 before = test_bytes_in_use ();
  EbbSavedTensorHooks *store = new_store (0);
  EbbTensor *x = test_randn (6, 5000, -1);
  EbbHandle *handles[3];

  for (guint i = 0; i < 3; i++)
    handles[i] = put (store, x, NULL);
  close_gate ();
  for (guint i = 0; i < 3; i++)
    prefetch (store, handles[i]);
  await_thread ();
  ebb_handle_unref (handles[2]);
  ebb_handle_unref (handles[1]);
  open_gate ();
  ebb_handle_unref (handles[0]);
  g_assert_cmpuint (look_at (&n_reads), ==, 1);
  ebb_tensor_unref (x);
  g_assert_cmpuint (test_bytes_in_use (), ==, before);
  g_object_unref (store);
  g_atomic_pointer_set (&ebb_disk_fault, NULL);
}

/* -- side by side -------------------------------------------------------------------------------------------------- */

static EbbTensor *
new_bytes (gint64 n,
           guint8 value)
{
  EbbTensor *bytes = ebb_tensor_new_uninitialized (&n, 1, EBB_DTYPE_U8, NULL, NULL);

  memset (bytes->view.data, value, (gsize) n);
  return bytes;
}

/* Parts of any size, at any place, in any order, over what was there. */
static void
parts_of_a_room_leave_each_other_alone (void)
{
  enum
  {
    PARTS = 7
  };
  const gint64 sizes[PARTS] = { 1, 5000, 4096, 12288, 100, 70001, 9 << 20 };
  const guint64 limits[] = { 0, 2 * PAGE, 64ul << 20 };
  g_autoptr (GRand) rand = g_rand_new_with_seed (3);

  for (guint k = 0; k < G_N_ELEMENTS (limits); k++)
    {
      g_autoptr (EbbSavedTensorHooks) store = new_store (limits[k]);
      EbbActivationStore *activations = EBB_ACTIVATION_STORE (store);
      EbbActivationStoreClass *klass = EBB_ACTIVATION_STORE_GET_CLASS (store);
      EbbHandle *parts[PARTS] = { NULL }, *room;
      guint8 values[PARTS] = { 0 };
      guint64 offsets[PARTS + 1] = { 0 };
      GError *error = NULL;

      for (guint i = 0; i < PARTS; i++)
        offsets[i + 1] = offsets[i] + (guint64) sizes[i];
      room = klass->reserve (activations, ebb_device_get_cpu (), offsets[PARTS], &error);
      g_assert_no_error (error);
      for (guint round = 0; round < 60; round++)
        {
          guint i = (guint) g_rand_int_range (rand, 0, PARTS);
          g_autoptr (EbbTensor) bytes = new_bytes (sizes[i], (guint8) (round + 1));

          g_clear_pointer (&parts[i], ebb_handle_unref);
          values[i] = (guint8) (round + 1);
          parts[i] = klass->put_at (activations, room, offsets[i], bytes, &error);
          g_assert_no_error (error);
          i = (guint) g_rand_int_range (rand, 0, PARTS);
          if (parts[i] != NULL)
            {
              g_autoptr (EbbTensor) expected = new_bytes (sizes[i], values[i]);
              g_autoptr (EbbTensor) back = get (store, parts[i], &error);

              g_assert_no_error (error);
              g_assert_true (ebb_tensor_equal (back, expected));
            }
          if (round % 8 == 7)
            synchronize (store);
        }
      {
        g_autoptr (EbbTensor) bytes = new_bytes (sizes[6], 1);

        g_assert_null (klass->put_at (activations, room, offsets[6] + 1, bytes, &error));
        test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "9437184 bytes at 91487", "9528670");
        g_clear_error (&error);
      }
      ebb_handle_unref (room); /* parts hold it */
      for (guint i = 0; i < PARTS; i++)
        if (parts[i] != NULL)
          {
            g_autoptr (EbbTensor) expected = new_bytes (sizes[i], values[i]);
            g_autoptr (EbbTensor) back = get (store, parts[i], &error);

            g_assert_no_error (error);
            g_assert_true (ebb_tensor_equal (back, expected));
            ebb_handle_unref (parts[i]);
          }
    }
}

/* -- threads and processes ----------------------------------------------------------------------------------------- */

static gpointer
pack_and_unpack (gpointer data)
{
  EbbSavedTensorHooks *store = data;
  EbbTensor *x[4];
  EbbHandle *handles[4];

  for (guint i = 0; i < 100; i++)
    {
      for (guint j = 0; j < 4; j++)
        {
          x[j] = new_bytes (3000 * (gint64) (j + 1) + (gint64) i, (guint8) (i + j));
          handles[j] = put (store, x[j], NULL);
          g_assert_nonnull (handles[j]);
        }
      for (guint j = 4; j-- > 0;)
        {
          EbbTensor *back;

          if (j > 0)
            prefetch (store, handles[j - 1]);
          back = i % 7 ? get (store, handles[j], NULL) : NULL;
          if (back != NULL)
            {
              g_assert_true (ebb_tensor_equal (back, x[j]));
              ebb_tensor_unref (back);
            }
          ebb_handle_unref (handles[j]);
          ebb_tensor_unref (x[j]);
        }
    }
  return NULL;
}

static void
threads_share_its_memory (void)
{
  const guint64 before = test_bytes_in_use ();
  const guint64 limits[] = { 0, 4 * PAGE, 1ul << 20 };

  for (guint k = 0; k < G_N_ELEMENTS (limits); k++)
    {
      EbbSavedTensorHooks *store = new_store (limits[k]);
      GThread *threads[3];

      for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
        threads[i] = g_thread_new (NULL, pack_and_unpack, store);
      for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
        g_thread_join (threads[i]);
      g_assert_cmpuint (test_bytes_in_use (), ==, before);
      g_object_unref (store);
    }
}

static int
child_of_fork (EbbSavedTensorHooks *store,
               EbbHandle **handles,
               EbbTensor **x)
{
  GError *error = NULL;
  EbbHandle *own;

  for (guint i = 0; i < 4; i++)
    {
      EbbTensor *back = get (store, handles[i], &error);

      if (back == NULL || !ebb_tensor_equal (back, x[i]))
        return 1;
      ebb_tensor_unref (back);
    }
  for (guint i = 0; i < 4; i++)
    ebb_handle_unref (handles[i]);
#if defined(__SANITIZE_THREAD__) /* it can't start a thread here */
  return 0;
#endif
  own = put (store, x[0], &error);
  if (own == NULL || !ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (store), &error))
    return 2;
  ebb_handle_unref (own);
  g_object_unref (store);
  return 0;
}

/* Whatever the thread is doing at that moment. */
static void
a_child_goes_its_own_way (void)
{
#if defined(__SANITIZE_ADDRESS__)
  g_test_skip ("AddressSanitizer's allocator may be locked for good in a child, by a thread that isn't there");
  return;
#endif
  for (guint round = 0; round < 40; round++)
    {
      g_autoptr (EbbSavedTensorHooks) store = new_store (round % 2 ? 12 * PAGE : 3 * PAGE);
      EbbHandle *handles[4];
      EbbTensor *x[4];
      int status;
      pid_t child;

      for (guint i = 0; i < 4; i++)
        {
          x[i] = test_randn ((int) i, 3000, -1);
          handles[i] = put (store, x[i], NULL);
        }
      if (round % 4 > 1)
        prefetch (store, handles[0]);
      child = fork ();
      if (child == 0)
        _exit (child_of_fork (store, handles, x));
      g_assert_cmpint (waitpid (child, &status, 0), ==, child);
      g_assert_true (WIFEXITED (status));
      g_assert_cmpint (WEXITSTATUS (status), ==, 0);
      for (guint i = 0; i < 4; i++)
        {
          g_autoptr (EbbTensor) back = get (store, handles[i], NULL);

          g_assert_true (ebb_tensor_equal (back, x[i]));
          ebb_handle_unref (handles[i]);
          ebb_tensor_unref (x[i]);
        }
    }
}

int
main (int argc, char **argv)
{
  int status;

  g_test_init (&argc, &argv, NULL);
  scratch = g_dir_make_tmp ("ebb-disk-queue-XXXXXX", NULL);
  g_assert_nonnull (scratch);
  g_test_add_func ("/disk-queue/nobody-waits-for-what-has-its-place", nobody_waits_for_what_has_its_place);
  g_test_add_func ("/disk-queue/what-was-put-last-is-in-memory", what_was_put_last_is_in_memory);
  g_test_add_func ("/disk-queue/only-the-last-modules-stay-in-memory", only_the_last_modules_stay_in_memory);
  g_test_add_func ("/disk-queue/peaks-do-not-depend-on-the-disk", peaks_do_not_depend_on_the_disk);
  g_test_add_func ("/disk-queue/what-was-prefetched-is-there", what_was_prefetched_is_there);
  g_test_add_func ("/disk-queue/a-prefetch-may-be-of-no-use", a_prefetch_may_be_of_no_use);
  g_test_add_func ("/disk-queue/parts-of-a-room-leave-each-other-alone", parts_of_a_room_leave_each_other_alone);
  g_test_add_func ("/disk-queue/threads-share-its-memory", threads_share_its_memory);
  g_test_add_func ("/disk-queue/a-child-goes-its-own-way", a_child_goes_its_own_way);
  status = g_test_run ();
  g_assert_cmpint (g_rmdir (scratch), ==, 0); /* nothing is left in it */
  g_free (scratch);
  return status;
}
