/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "offload/compressed/codec-private.h"
#include "offload/compressed/rounding-private.h"
#include "support/sim.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "tensor/tensor-private.h"

#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

/* Compression gives every bit back, gains what it should on floats, and never reads or writes beyond its end. */

static const gsize elements[] = { 1, 2, 4, 8 };

typedef enum
{
  ZEROS,
  NOISE,
  NORMAL, /* f32 */
  COUNTS,
  SPARSE, /* f32, most of them 0 */
  N_CONTENTS
} Content;

static void
fill (guint8 *data,
      gsize size,
      Content content)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (7);

  memset (data, 0, size);
  for (gsize i = 0; i + 4 <= size && content != ZEROS; i += 4)
    {
      guint32 bits = g_rand_int (rand);
      float value = (float) (sqrt (-2 * log ((bits + 1.0) / 4294967296.0)) * cos (g_rand_double (rand) * 6.28));

      if (content == NORMAL || (content == SPARSE && i % 40 == 0))
        memcpy (&bits, &value, sizeof bits);
      else if (content == COUNTS)
        bits = (guint32) (i / 4);
      else if (content == SPARSE)
        bits = 0;
      memcpy (data + i, &bits, sizeof bits);
    }
}

/* Bytes around what may be written. */
#define MARGIN 64

static gsize
check (EbbCodec *codec,
       guint level,
       const guint8 *data,
       gsize size,
       gsize element)
{
  g_autofree guint8 *out = g_malloc (size + 2 * MARGIN), *back = g_malloc (size + 2 * MARGIN);
  GError *error = NULL;
  gsize stored;

  memset (out, 0xa5, size + 2 * MARGIN);
  memset (back, 0xa5, size + 2 * MARGIN);
  stored = ebb_codec_compress (codec, level, data, size, element, out + MARGIN, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (stored, >, 0);
  g_assert_cmpuint (stored, <=, size);
  for (guint i = 0; i < MARGIN; i++)
    g_assert_true (out[i] == 0xa5 && out[MARGIN + size + i] == 0xa5);
  if (stored == size)
    return size;
  g_assert_true (ebb_codec_decompress (codec, out + MARGIN, stored, back + MARGIN, size, element, &error));
  g_assert_no_error (error);
  g_assert_cmpint (memcmp (back + MARGIN, data, size), ==, 0);
  for (guint i = 0; i < MARGIN; i++)
    g_assert_true (back[i] == 0xa5 && back[MARGIN + size + i] == 0xa5);
  return stored;
}

static void
every_bit_comes_back (void)
{
  const gsize counts[] = { 1, 2, 3, 17, 1000, 65535, 65536, 65537, 3 * 65536 + 5, 12 * 65536 };
  EbbCodec *codec = ebb_codec_new (NULL);
  guint8 *data = g_malloc (8 * 12 * 65536);

  for (guint content = 0; content < N_CONTENTS; content++)
    {
      fill (data, 8 * 12 * 65536, content);
      for (guint i = 0; i < G_N_ELEMENTS (elements); i++)
        for (guint j = 0; j < G_N_ELEMENTS (counts); j++)
          {
            gsize size = counts[j] * elements[i];
            gsize stored = check (codec, 1, data, size, elements[i]);

            if (content == NOISE)
              g_assert_cmpuint (stored, ==, size);
            if (content == ZEROS && counts[j] >= 1000)
              g_assert_cmpuint (stored, <, size / 10);
          }
    }
  g_free (data);
  ebb_codec_free (codec);
}

static void
levels_change_the_size_alone (void)
{
  EbbCodec *codec = ebb_codec_new (NULL);
  const gsize size = 200000 * 4;
  guint8 *data = g_malloc (size);

  fill (data, size, NORMAL);
  /* Signs, exponents: 3 of 8 bits and some more. The rest is noise. */
  g_assert_cmpuint (check (codec, 1, data, size, 4), <, size * 87 / 100);
  for (guint level = 1; level <= EBB_CODEC_MAX_LEVEL; level += 3)
    check (codec, level, data, size, 4);
  g_assert_cmpuint (check (codec, 1, data, size, 4), <, size * 87 / 100);
  fill (data, size, SPARSE);
  g_assert_cmpuint (check (codec, 1, data, size, 4), <, size / 4);
  fill (data, size, COUNTS);
  g_assert_cmpuint (check (codec, 9, data, size, 4), <, size / 8);
  g_free (data);
  ebb_codec_free (codec);
}

static void
damage_is_an_error_or_other_bytes (void)
{
  EbbCodec *codec = ebb_codec_new (NULL);
  const gsize size = 20000 * 4;
  g_autofree guint8 *data = g_malloc (size);
  g_autofree guint8 *out = g_malloc (size);
  g_autofree guint8 *back = g_malloc (size);
  g_autoptr (GRand) rand = g_rand_new_with_seed (8);
  g_autoptr (GError) error = NULL;
  gsize stored;

  fill (data, size, NORMAL);
  stored = ebb_codec_compress (codec, 1, data, size, 4, out, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < 300; i++)
    {
      /* Of its own size, so that a tool sees what is read beyond. */
      gsize n = i % 3 == 0 ? (gsize) g_rand_int_range (rand, 0, (gint32) stored) : stored;
      g_autofree guint8 *damaged = g_memdup2 (out, n);

      if (n == stored)
        damaged[i < 100 ? i : (guint) g_rand_int_range (rand, 0, (gint32) stored)] ^= (guint8) (1 << i % 8);
      if (!ebb_codec_decompress (codec, damaged, n, back, size, 4, &error))
        test_assert_error (error, EBB_ERROR_FORMAT, "80000 bytes");
      g_clear_error (&error);
    }
  g_assert_true (ebb_codec_decompress (codec, out, stored, back, size, 4, &error));
  g_assert_cmpmem (back, size, data, size);
  g_assert_cmpuint (ebb_codec_compress (codec, 0, data, size, 4, out, &error), ==, 0);
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "level 0");
  ebb_codec_free (codec);
}

/* -- bf16 ---------------------------------------------------------------------------------------------------------- */

static guint16
round_bits (guint32 bits,
            float *error)
{
  float value;
  guint16 rounded;

  memcpy (&value, &bits, sizeof value);
  *error = ebb_round_to_bf16 (&value, 1, &rounded);
  return rounded;
}

static void
rounding_is_to_the_nearest_even (void)
{
  const struct
  {
    guint32 bits;
    guint16 rounded;
  } cases[] = {
    { 0x3f800000, 0x3f80 },
    { 0x3f807fff, 0x3f80 },
    { 0x3f808000, 0x3f80 },
    { 0x3f808001, 0x3f81 },
    { 0x3f818000, 0x3f82 },
    { 0xbf818000, 0xbf82 },
    { 0x80000000, 0x8000 },
    { 0x00000000, 0x0000 },
    { 0x7f800000, 0x7f80 },
    { 0xff800000, 0xff80 },
    { 0x7f7fffff, 0x7f80 },
    { 0x7f7f7fff, 0x7f7f },
    { 0x7f800001, 0x7fc0 },
    { 0xff800001, 0xffc0 },
    { 0x7fffffff, 0x7fff },
    { 0x00000001, 0x0000 },
    { 0x00008000, 0x0000 },
    { 0x00008001, 0x0001 },
  };
  float error;

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    g_assert_cmphex (round_bits (cases[i].bits, &error), ==, cases[i].rounded);
}

static void
the_largest_relative_error_is_told (void)
{
  float error;

  round_bits (0x3f800000, &error);
  g_assert_cmpfloat (error, ==, 0);
  round_bits (0x3f808000, &error); /* 1 + 2^-8 */
  g_assert_cmpfloat (error, ==, 0.00390625f / 1.00390625f);
  round_bits (0x7f7fffff, &error);
  g_assert_true (isinf (error));
  round_bits (0x00000001, &error);
  g_assert_cmpfloat (error, ==, 1);
  round_bits (0x7fc00000, &error);
  g_assert_cmpfloat (error, ==, 0);
  round_bits (0xff800000, &error);
  g_assert_cmpfloat (error, ==, 0);
  round_bits (0x80000000, &error);
  g_assert_cmpfloat (error, ==, 0);
}

static void
rounding_may_be_done_in_place (void)
{
  enum
  {
    N = 5003
  };
  g_autoptr (EbbTensor) x = test_randn (1, N, -1);
  const float *data = ebb_tensor_get_data (x, NULL);
  g_autofree float *expected = g_new (float, N), *memory = g_memdup2 (data, N * sizeof (float));
  g_autofree guint16 *rounded = g_new (guint16, N);
  float error = ebb_round_to_bf16 (data, N, rounded);

  g_assert_cmpfloat (error, >, 1.0f / 1024);
  g_assert_cmpfloat (error, <=, 1.0f / 256);
  g_assert_cmpfloat (ebb_round_to_bf16 (memory, N, (guint16 *) memory), ==, error);
  g_assert_cmpmem (memory, N * 2, rounded, N * 2);
  ebb_widen_bf16 (rounded, N, expected);
  memcpy ((guint16 *) memory + N, rounded, N * 2);
  ebb_widen_bf16 ((guint16 *) memory + N, N, memory);
  g_assert_cmpmem (memory, N * 4, expected, N * 4);
  for (guint i = 0; i < N; i++)
    g_assert_cmpfloat (fabsf (expected[i] - data[i]), <=, error * fabsf (data[i]));
}

/* -- threads ------------------------------------------------------------------------------------------------------- */

static gpointer
pack_much (gpointer data)
{
  gpointer *both = data;
  EbbSavedTensorHooks *store = both[0];
  EbbTensor *shared = both[1];

  for (guint i = 0; i < 100; i++)
    {
      g_autoptr (EbbTensor) own = test_randn (i, 300 + i, -1);
      g_autoptr (EbbTensor) other = test_randn (i + 1, 3000, -1);
      g_autoptr (EbbHandle) a = test_pack (store, own);
      g_autoptr (EbbHandle) b = test_pack (store, shared);
      g_autoptr (EbbHandle) c = test_pack (store, other);
      g_autoptr (EbbTensor) back = NULL;
      g_autoptr (EbbTensor) back_again = test_unpack (store, b);

      if (i % 3 == 0)
        g_clear_pointer (&c, ebb_handle_unref);
      if (i % 16 == 15)
        g_assert_true (ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (store), NULL));
      back = test_unpack (store, a);
      g_assert_cmpmem (back->view.data, (300 + i) * 4, own->view.data, (300 + i) * 4);
      g_assert_cmpmem (back_again->view.data, 2500 * 4, shared->view.data, 2500 * 4);
    }
  return NULL;
}

static void
threads_share_a_store (gconstpointer data)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *scratch = g_dir_make_tmp ("ebb-compressed-XXXXXX", &error);
  g_autoptr (EbbSavedTensorHooks) next = GPOINTER_TO_INT (data) ? test_disk_store_new (scratch) : ebb_keep_store_new ();
  g_autoptr (EbbSavedTensorHooks) store = ebb_compressed_store_new (EBB_ACTIVATION_STORE (next), &error);
  g_autoptr (EbbTensor) shared = test_randn (6, 2500, -1);
  gpointer both[] = { store, shared };
  GThread *threads[4];

  g_assert_no_error (error);
  ebb_activation_store_set_least_size (EBB_ACTIVATION_STORE (store), 1);
  ebb_compressed_store_set_staging_limit (EBB_COMPRESSED_STORE (store), 20000);
  for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
    threads[i] = g_thread_new (NULL, pack_much, both);
  for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
    g_thread_join (threads[i]);
  g_assert_cmpuint (test_held (store), ==, 0);
  g_assert_cmpuint (test_held (next), ==, 0);
  g_assert_cmpint (g_rmdir (scratch), ==, 0);
}

/* Of a device's tensor the original may still be there, or not: what comes back must not depend on that. */
static void
rounded_numbers_come_back_each_time (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbSavedTensorHooks) next = ebb_host_store_new ();
  g_autoptr (EbbSavedTensorHooks) store = ebb_compressed_store_new (EBB_ACTIVATION_STORE (next), &error);
  g_autoptr (EbbTensor) here = test_randn (1, 1000, -1);
  g_autoptr (EbbTensor) there = test_sim_send (here);
  g_autoptr (EbbTensor) rounded = ebb_cast (here, EBB_DTYPE_BF16, &error);
  g_autoptr (EbbTensor) expected = ebb_cast (rounded, EBB_DTYPE_F32, &error);
  g_autoptr (EbbHandle) handle = NULL;

  ebb_activation_store_set_least_size (EBB_ACTIVATION_STORE (store), 1);
  ebb_compressed_store_set_lossy (EBB_COMPRESSED_STORE (store), EBB_LOSSY_BF16);
  handle = test_pack (store, there);
  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbTensor) back = test_unpack (store, handle);

      test_sim_assert_equal (back, expected);
      g_clear_pointer (&back, ebb_tensor_unref);
      g_assert_true (ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (store), &error));
    }
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  test_sim_open ();
  g_test_add_func ("/compressed/rounded-numbers-come-back-each-time", rounded_numbers_come_back_each_time);
  g_test_add_func ("/codec/every-bit-comes-back", every_bit_comes_back);
  g_test_add_func ("/codec/levels-change-the-size-alone", levels_change_the_size_alone);
  g_test_add_func ("/codec/damage-is-an-error-or-other-bytes", damage_is_an_error_or_other_bytes);
  g_test_add_func ("/codec/rounding-is-to-the-nearest-even", rounding_is_to_the_nearest_even);
  g_test_add_func ("/codec/the-largest-relative-error-is-told", the_largest_relative_error_is_told);
  g_test_add_func ("/codec/rounding-may-be-done-in-place", rounding_may_be_done_in_place);
  g_test_add_data_func ("/compressed/keep/threads-share-a-store", GINT_TO_POINTER (FALSE), threads_share_a_store);
  g_test_add_data_func ("/compressed/disk/threads-share-a-store", GINT_TO_POINTER (TRUE), threads_share_a_store);
  return g_test_run ();
}
