/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "tensor/util/checksum-private.h"
#include "offload/disk/space-map-private.h"
#include "offload/transfer/transfer-private.h"
#include "support/device.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

#include <glib/gstdio.h>
#include <stdlib.h>
#include <string.h>

/* Stores of a device whose memory the host can't read: "remote", whose addresses are off by a fixed distance. */

#define DISTANCE ((gsize) 1 << 62)

static gsize remote_bytes, bytes_to_host, bytes_from_host;
static int copies_to_fail;

static void *
remote_alloc (int index,
              gsize size,
              GError **error)
{
  remote_bytes += size;
  return (char *) aligned_alloc (64, (size + 127) / 64 * 64) + DISTANCE;
}

static void
remote_free (int index,
             void *data,
             gsize size)
{
  remote_bytes -= size;
  free ((char *) data - DISTANCE);
}

static gboolean
remote_copy (int index,
             void *destination,
             const void *source,
             gsize size,
             gboolean to_host,
             GError **error)
{
  if (copies_to_fail > 0 && --copies_to_fail == 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE, "remote: the copy failed");
      return FALSE;
    }
  *(to_host ? &bytes_to_host : &bytes_from_host) += size;
  memcpy ((char *) destination - (to_host ? 0 : DISTANCE), (const char *) source - (to_host ? DISTANCE : 0), size);
  return TRUE;
}

static const EbbBackend remote_backend = {
  .version = EBB_BACKEND_VERSION,
  .name = "remote",
  .alloc = remote_alloc,
  .free = remote_free,
  .copy = remote_copy,
};

static const EbbKernelFunc *
remote_get_kernels (void)
{
  return ebb_cpu_backend.get_kernels ();
}

static EbbDevice *remote;

static EbbTensor *
send (EbbTensor *tensor)
{
  GError *error = NULL;
  EbbTensor *there = ebb_to_device (tensor, remote, &error);

  g_assert_no_error (error);
  return there;
}

static EbbTensor *
fetch (EbbTensor *tensor)
{
  GError *error = NULL;
  EbbTensor *here = ebb_tensor_new_uninitialized (tensor->view.shape, (guint) tensor->view.n_dims, tensor->view.dtype,
                                                  NULL, &error);

  g_assert_no_error (error);
  g_assert_true (
      ebb_transfer_to_host (remote, here->view.data, tensor->view.data, ebb_tensor_get_n_bytes (tensor), &error));
  return here;
}

static EbbSavedTensorHooks *
new_store (gboolean disk)
{
  EbbSavedTensorHooks *store = disk ? test_disk_store_new (g_get_tmp_dir ()) : ebb_host_store_new ();

  g_object_set (store, "least-size", (guint64) 1, NULL);
  return store;
}

static guint64
activations (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (NULL);

  return ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION);
}

static void
device_memory_is_freed_and_comes_back (gconstpointer data)
{
  const gboolean disk = GPOINTER_TO_INT (data);
  const gsize size = 70 * 50 * 4;
  GError *error = NULL;
  g_autoptr (EbbSavedTensorHooks) store = new_store (disk);
  g_autoptr (EbbTensor) x = test_randn (1, 70, 50, -1);
  EbbTensor *there = send (x);
  EbbTensor *turned = ebb_transpose (there, 0, 1, &error);
  g_autoptr (EbbHandle) handle = NULL;
  g_autoptr (EbbHandle) view = NULL;
  g_autoptr (EbbTensor) back = NULL;
  g_autoptr (EbbTensor) here = NULL;

  bytes_to_host = bytes_from_host = 0;
  handle = test_pack (store, there);
  view = test_pack (store, turned);
  g_assert_cmpuint (remote_bytes, ==, size);
  ebb_tensor_unref (there);
  ebb_tensor_unref (turned);
  g_assert_cmpuint (remote_bytes, ==, 0);
  g_assert_cmpuint (bytes_to_host, ==, size);
  g_assert_cmpuint (activations (), ==, disk ? 0 : size);
  back = test_unpack (store, handle);
  turned = test_unpack (store, view);
  g_assert_true (back->storage->device == remote && turned->storage == back->storage);
  g_assert_cmpint (turned->view.strides[0], ==, 1);
  g_assert_cmpint (turned->view.strides[1], ==, 50);
  g_assert_cmpuint (bytes_from_host, ==, size);
  g_assert_cmpuint (remote_bytes, ==, size);
  here = fetch (back);
  g_assert_true (ebb_tensor_equal (x, here));
  ebb_tensor_unref (turned);
  g_clear_pointer (&back, ebb_tensor_unref);
  g_assert_cmpuint (remote_bytes, ==, 0);
  g_clear_pointer (&handle, ebb_handle_unref);
  g_clear_pointer (&view, ebb_handle_unref);
  g_assert_cmpuint (activations (), ==, 0);
  g_assert_cmpuint (test_held (store), ==, 0);
}

static void
a_copy_that_fails_harms_nothing (gconstpointer data)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (GPOINTER_TO_INT (data));
  g_autoptr (EbbTensor) x = test_randn (2, 300, -1);
  g_autoptr (EbbTensor) there = send (x);
  g_autoptr (EbbHandle) handle = NULL;
  g_autoptr (EbbTensor) back = NULL;
  g_autoptr (EbbTensor) here = NULL;
  g_autoptr (GError) error = NULL;

  copies_to_fail = 1;
  g_assert_null (ebb_saved_tensor_hooks_pack (store, there, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "the copy failed");
  g_clear_error (&error);
  g_assert_cmpuint (test_held (store), ==, 0);
  g_assert_cmpuint (activations (), ==, 0);
  handle = test_pack (store, there);
  copies_to_fail = 1;
  g_assert_null (ebb_saved_tensor_hooks_unpack (store, handle, &error));
  test_assert_error (error, EBB_ERROR_DEVICE, "the copy failed");
  g_assert_cmpuint (remote_bytes, ==, 300 * 4);
  back = test_unpack (store, handle);
  here = fetch (back);
  g_assert_true (ebb_tensor_equal (x, here));
}

static void
memory_that_cannot_be_met_is_an_error (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (FALSE);
  g_autoptr (EbbTensor) x = test_randn (3, 300, -1);
  g_autoptr (EbbTensor) there = send (x);
  g_autoptr (EbbHandle) handle = test_pack (store, there);
  g_autoptr (GError) error = NULL;

  ebb_memory_set_limit (remote, 1300);
  g_assert_null (ebb_saved_tensor_hooks_unpack (store, handle, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "remote", "1200 bytes");
  ebb_memory_set_limit (remote, 0);
}

/* After an early stop new tensors have no data; what a store gives back has. */
static void
what_comes_back_has_data_after_an_early_stop (gconstpointer data)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (GPOINTER_TO_INT (data));
  g_autoptr (EbbTensor) x = test_randn (4, 300, -1);
  g_autoptr (EbbTensor) there = send (x);
  g_autoptr (EbbHandle) handle = test_pack (store, there);
  g_autoptr (EbbTensor) back = NULL;
  g_autoptr (EbbTensor) here = NULL;

  ebb_modes.stopped++;
  back = test_unpack (store, handle);
  g_assert_cmpint (ebb_modes.stopped, ==, 1);
  ebb_modes.stopped--;
  here = fetch (back);
  g_assert_true (ebb_tensor_equal (x, here));
}

/* Against a plain array of what is in use. */
static void
space_never_overlaps_and_is_used_again (void)
{
  enum
  {
    SIZE = 400,
    PARTS = 40
  };
  gboolean used[SIZE] = { FALSE };
  guint64 offsets[PARTS] = { 0 }, sizes[PARTS] = { 0 }, in_use = 0, end = 0;
  g_autoptr (GRand) rand = g_rand_new_with_seed (5);
  EbbSpaceMap map;

  ebb_space_map_init (&map);
  for (guint i = 0; i < 20000; i++)
    {
      guint part = (guint) g_rand_int_range (rand, 0, PARTS);

      if (sizes[part] > 0)
        {
          ebb_space_map_give (&map, offsets[part], sizes[part]);
          memset (used + offsets[part], 0, sizes[part] * sizeof *used);
          in_use -= sizes[part];
          sizes[part] = 0;
        }
      else
        {
          guint64 size = (guint64) g_rand_int_range (rand, 1, 25);

          if (!ebb_space_map_take (&map, size, SIZE, &offsets[part]))
            continue;
          sizes[part] = size;
          in_use += size;
          for (guint64 j = offsets[part]; j < offsets[part] + size; j++)
            {
              g_assert_cmpuint (j, <, SIZE);
              g_assert_false (used[j]);
              used[j] = TRUE;
            }
        }
      for (end = SIZE; end > 0 && !used[end - 1]; end--)
        ;
      g_assert_cmpuint (map.end, ==, end);
      g_assert_cmpuint (map.in_use, ==, in_use);
    }
  for (guint part = 0; part < PARTS; part++)
    if (sizes[part] > 0)
      ebb_space_map_give (&map, offsets[part], sizes[part]);
  g_assert_cmpuint (map.end, ==, 0);
  g_assert_cmpuint (map.holes->len, ==, 0);
  ebb_space_map_clear (&map);
}

static void
space_is_used_to_the_last_byte (void)
{
  EbbSpaceMap map;
  guint64 offset;

  ebb_space_map_init (&map);
  g_assert_true (ebb_space_map_take (&map, 300, 400, &offset));
  g_assert_false (ebb_space_map_take (&map, 101, 400, &offset));
  g_assert_true (ebb_space_map_take (&map, 100, 400, &offset));
  g_assert_cmpuint (offset, ==, 300);
  g_assert_false (ebb_space_map_take (&map, 1, 400, &offset));
  ebb_space_map_clear (&map);
}

static void
a_checksum_sees_every_bit_and_the_order (void)
{
  guint8 data[256] = { 0 }, other[256];
  guint64 sum = ebb_checksum_of (data, sizeof data);
  EbbChecksum parts;

  for (guint bit = 0; bit < 8 * sizeof data; bit++)
    {
      memcpy (other, data, sizeof data);
      other[bit / 8] ^= (guint8) (1 << bit % 8);
      g_assert_true (ebb_checksum_of (other, sizeof other) != sum);
    }
  g_assert_true (ebb_checksum_of (data, 128) != sum); /* zeros, but fewer */
  for (gsize size = 1; size <= 64; size++)
    {
      memcpy (other, data, size);
      other[size - 1] = 1;
      g_assert_true (ebb_checksum_of (other, size) != ebb_checksum_of (data, size));
    }
  for (guint i = 0; i < sizeof data; i++)
    data[i] = (guint8) (i * 7);
  sum = ebb_checksum_of (data, sizeof data);
  for (guint i = 0; i + 16 <= sizeof data; i += 8) /* neighbours, and words of one lane */
    for (guint j = i + 8; j + 8 <= sizeof data; j += 8)
      {
        memcpy (other, data, sizeof data);
        memcpy (other + i, data + j, 8);
        memcpy (other + j, data + i, 8);
        g_assert_true (ebb_checksum_of (other, sizeof other) != sum);
      }
  ebb_checksum_init (&parts);
  ebb_checksum_update (&parts, data, 96);
  ebb_checksum_update (&parts, data + 96, 160);
  g_assert_cmphex (ebb_checksum_finish (&parts), ==, sum);
}

/* Threads that share a store, and a tensor. */
static gpointer
pack_much (gpointer data)
{
  gpointer *both = data;
  EbbSavedTensorHooks *store = both[0];
  EbbTensor *shared = both[1];

  for (guint i = 0; i < 200; i++)
    {
      g_autoptr (EbbTensor) own =
          ebb_tensor_new_uninitialized ((const gint64[]){ 100 + i }, 1, EBB_DTYPE_U8, NULL, NULL);
      g_autoptr (EbbHandle) a = NULL;
      g_autoptr (EbbHandle) b = test_pack (store, shared);
      g_autoptr (EbbTensor) back = NULL;
      g_autoptr (EbbTensor) back_again = test_unpack (store, b);

      memset (own->view.data, (int) i, 100 + i);
      a = test_pack (store, own);
      back = test_unpack (store, a);
      g_assert_cmpint (memcmp (back->view.data, own->view.data, 100 + i), ==, 0);
      g_assert_cmpint (memcmp (back_again->view.data, shared->view.data, 1000), ==, 0);
    }
  return NULL;
}

static void
threads_share_a_store (void)
{
  g_autoptr (EbbSavedTensorHooks) store = new_store (TRUE);
  g_autoptr (EbbTensor) shared = test_randn (6, 250, -1);
  gpointer both[] = { store, shared };
  GThread *threads[4];

  for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
    threads[i] = g_thread_new (NULL, pack_much, both);
  for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
    g_thread_join (threads[i]);
  g_assert_cmpuint (test_held (store), ==, 0);
}

/* A buffer whose size is no number. */
static void
more_parts_than_can_be_addressed_are_refused (void)
{
  const gint64 n = ((gint64) 1 << 31) + 1;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbSavedTensorHooks) store = ebb_contiguous_store_new (G_MAXUINT, NULL, &error);
  g_autoptr (EbbTensor) x = /* of which nothing is written */
      ebb_tensor_new_uninitialized (&n, 1, EBB_DTYPE_U8, ebb_device_get_cpu (), &error);
  guint64 before;

  g_assert_no_error (error);
  before = test_bytes_in_use ();
  g_assert_null (ebb_saved_tensor_hooks_pack (store, x, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "4294967295 parts", "2147483649 bytes", "more than can be addressed");
  g_assert_cmpuint (test_bytes_in_use (), ==, before);
}

int
main (int argc, char **argv)
{
  static EbbBackend backend;

  test_init (&argc, &argv);
  backend = remote_backend;
  backend.get_kernels = remote_get_kernels;
  ebb_backend_register (&backend);
  remote = ebb_device_get ("remote", NULL);
  g_assert_nonnull (remote);
  g_test_add_data_func ("/stores/host/device-memory-is-freed-and-comes-back", GINT_TO_POINTER (FALSE),
                        device_memory_is_freed_and_comes_back);
  g_test_add_data_func ("/stores/disk/device-memory-is-freed-and-comes-back", GINT_TO_POINTER (TRUE),
                        device_memory_is_freed_and_comes_back);
  g_test_add_data_func ("/stores/host/a-copy-that-fails-harms-nothing", GINT_TO_POINTER (FALSE),
                        a_copy_that_fails_harms_nothing);
  g_test_add_data_func ("/stores/disk/a-copy-that-fails-harms-nothing", GINT_TO_POINTER (TRUE),
                        a_copy_that_fails_harms_nothing);
  g_test_add_func ("/stores/memory-that-cannot-be-met-is-an-error", memory_that_cannot_be_met_is_an_error);
  g_test_add_data_func ("/stores/host/after-an-early-stop", GINT_TO_POINTER (FALSE),
                        what_comes_back_has_data_after_an_early_stop);
  g_test_add_data_func ("/stores/disk/after-an-early-stop", GINT_TO_POINTER (TRUE),
                        what_comes_back_has_data_after_an_early_stop);
  g_test_add_func ("/stores/more-parts-than-can-be-addressed", more_parts_than_can_be_addressed_are_refused);
  g_test_add_func ("/stores/space-never-overlaps-and-is-used-again", space_never_overlaps_and_is_used_again);
  g_test_add_func ("/stores/space-is-used-to-the-last-byte", space_is_used_to_the_last_byte);
  g_test_add_func ("/stores/a-checksum-sees-every-bit", a_checksum_sees_every_bit_and_the_order);
  g_test_add_func ("/stores/threads-share-a-store", threads_share_a_store);
  return g_test_run ();
}
