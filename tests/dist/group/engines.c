/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "dist/group/process-group-private.h"
#include "support/collective-cases.h"
#include "support/collective-parts.h"
#include "support/device.h"
#include "support/tensors.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

#include <math.h>
#include <string.h>

/* The functions of process groups that wrappers use, and the memory of ranks that are threads. */

static gboolean
run_parts (EbbProcessGroup *group,
           gpointer data,
           GError **error)
{
  test_collective_parts (group);
  return TRUE;
}

static void
test_parts (void)
{
  g_autoptr (EbbProcessGroup) single = ebb_single_group_new ();

  test_collective_parts (single);
  for (guint n = 1; n <= 4; n++)
    {
      g_autoptr (GError) error = NULL;

      ebb_run_ranks (n, run_parts, NULL, &error);
      g_assert_no_error (error);
    }
}

/* -- 16 bits ------------------------------------------------------------------------------------------------------- */

/* Every f16 and bf16 comes through f32 and back as it was, and halfway cases go to the even one. */
static void
test_sixteen_bits_are_kept (void)
{
  g_autofree guint16 *all = g_new (guint16, 65536), *result = g_new (guint16, 65536);
  const void *source = all;

  for (guint i = 0; i < 65536; i++)
    all[i] = (guint16) i;
  for (guint half = 0; half < 2; half++)
    {
      const EbbDType dtype = half ? EBB_DTYPE_F16 : EBB_DTYPE_BF16;
      const guint16 infinity = half ? 0x7c00 : 0x7f80;

      ebb_collective_reduce (result, &source, 1, 65536, dtype, EBB_REDUCE_OP_MAX);
      for (guint i = 0; i < 65536; i++)
        if ((i & 0x7fff) <= infinity)
          g_assert_cmpuint (result[i], ==, i);
        else
          g_assert_cmpuint (result[i] & 0x7fff, >, infinity);
    }
}

/* As the kernels of the CPU round: sums of two f16. */
static void
test_f16_rounds_as_casts_do (void)
{
  const gint64 length = 65536;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = test_randn (1, length, (gint64) -1);
  g_autoptr (EbbTensor) y = test_randn (2, length, (gint64) -1);
  g_autoptr (EbbTensor) small = ebb_mul_scalar (y, 1e-5, &error);

  for (guint d = 0; d < 2; d++)
    {
      const EbbDType dtype = d ? EBB_DTYPE_F16 : EBB_DTYPE_BF16;
      g_autoptr (EbbTensor) a = ebb_cast (x, dtype, &error);
      g_autoptr (EbbTensor) b = ebb_cast (small, dtype, &error);
      g_autoptr (EbbTensor) a32 = ebb_cast (a, EBB_DTYPE_F32, &error);
      g_autoptr (EbbTensor) b32 = ebb_cast (b, EBB_DTYPE_F32, &error);
      g_autoptr (EbbTensor) sum = ebb_add (a32, b32, &error);
      g_autoptr (EbbTensor) expected = ebb_cast (sum, dtype, &error);
      g_autoptr (EbbTensor) twice = ebb_add (b32, b32, &error);
      g_autoptr (EbbTensor) expected_twice = ebb_cast (twice, dtype, &error);
      const void *sources[] = { a->view.data, b->view.data }, *tiny[] = { b->view.data, b->view.data };
      g_autofree guint16 *result = g_new (guint16, (gsize) length);

      g_assert_no_error (error);
      ebb_collective_reduce (result, sources, 2, (gsize) length, dtype, EBB_REDUCE_OP_SUM);
      g_assert_cmpmem (result, 2 * (gsize) length, expected->view.data, 2 * (gsize) length);
      ebb_collective_reduce (result, tiny, 2, (gsize) length, dtype, EBB_REDUCE_OP_SUM);
      g_assert_cmpmem (result, 2 * (gsize) length, expected_twice->view.data, 2 * (gsize) length);
    }
}

/* -- a recompute that has all it needs ----------------------------------------------------------------------------- */

static gboolean
run_stopped (EbbProcessGroup *group,
             gpointer data,
             GError **error)
{
  const guint rank = ebb_process_group_get_rank (group);
  const gint64 length = 4;
  g_autoptr (EbbTensor) tensor = test_collective_tensor (rank, EBB_DTYPE_F32, &length, 1);
  double expected[4];

  /* Only one of them is stopped: it would be missed. */
  ebb_process_group_set_timeout (group, 0.2);
  if (rank == 0)
    {
      g_autoptr (EbbTensor) whole = NULL;
      g_autoptr (EbbWork) work = NULL;

      ebb_modes.stopped++;
      g_assert_true (ebb_process_group_all_reduce (group, tensor, EBB_REDUCE_OP_SUM, error));
      whole = ebb_process_group_all_gather (group, tensor, error);
      g_assert_cmpint (ebb_tensor_get_dim (whole, 0), ==, 8);
      work = ebb_process_group_broadcast_async (group, tensor, 1, error);
      g_assert_true (ebb_work_is_done (work));
      g_assert_true (ebb_work_wait (work, error));
      ebb_modes.stopped--;
    }
  for (EbbCollective which = 0; which < EBB_N_COLLECTIVES; which++)
    g_assert_cmpuint (ebb_process_group_get_n_calls (group, which), ==, 0);
  for (gsize i = 0; i < 4; i++)
    expected[i] = test_collective_value (rank, i, EBB_DTYPE_F32);
  test_assert_elements (tensor, expected, 4);
  return ebb_process_group_barrier (group, error);
}

static void
test_stopped_calls_do_nothing (void)
{
  g_autoptr (GError) error = NULL;

  ebb_run_ranks (2, run_stopped, NULL, &error);
  g_assert_no_error (error);
}

/* -- memory of a rank ---------------------------------------------------------------------------------------------- */

#define N_FLOATS 1000

static guint64
get_total (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_total (stats);
}

static guint64
get_peak (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_peak_total (stats);
}

static EbbTensor *handed_over[4];

/* Rank r makes r + 1 tensors, and frees the last one of its neighbour. */
static gboolean
run_account (EbbProcessGroup *group,
             gpointer data,
             GError **error)
{
  const guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  const guint64 size = N_FLOATS * sizeof (float);
  const gint64 length = N_FLOATS;
  EbbTensor *tensors[4];

  g_assert_cmpuint (get_total (), ==, 0);
  for (guint i = 0; i <= rank; i++)
    tensors[i] = ebb_tensor_new_empty (&length, 1, EBB_DTYPE_F32, test_device (), error);
  g_assert_cmpuint (get_total (), ==, (rank + 1) * size);
  handed_over[rank] = tensors[rank];
  if (!ebb_process_group_barrier (group, error))
    return FALSE;
  ebb_storage_set_purpose (handed_over[(rank + 1) % n]->storage, EBB_PURPOSE_GRADIENT);
  if (!ebb_process_group_barrier (group, error))
    return FALSE;
  {
    g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

    g_assert_cmpuint (ebb_memory_stats_get_current (stats, EBB_PURPOSE_GRADIENT), ==, size);
    g_assert_cmpuint (ebb_memory_stats_get_current (stats, EBB_PURPOSE_WORKSPACE), ==, rank * size);
  }
  if (!ebb_process_group_barrier (group, error))
    return FALSE;
  ebb_tensor_unref (handed_over[(rank + 1) % n]);
  if (!ebb_process_group_barrier (group, error))
    return FALSE;
  g_assert_cmpuint (get_total (), ==, rank * size);
  g_assert_cmpuint (get_peak (), ==, (rank + 1) * size);
  ebb_memory_reset_peaks (test_device ());
  g_assert_cmpuint (get_peak (), ==, rank * size);
  for (guint i = 0; i < rank; i++)
    ebb_tensor_unref (tensors[i]);
  g_assert_cmpuint (get_total (), ==, 0);
  return TRUE;
}

static void
test_ranks_have_accounts (void)
{
  const guint64 before = get_total ();
  g_autoptr (GError) error = NULL;

  ebb_run_ranks (4, run_account, NULL, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (get_total (), ==, before);
}

/* A tensor outlives the rank that made it. */
static gboolean
run_bequest (EbbProcessGroup *group,
             gpointer data,
             GError **error)
{
  const gint64 length = N_FLOATS;

  handed_over[0] = ebb_tensor_new_empty (&length, 1, EBB_DTYPE_F32, test_device (), error);
  return TRUE;
}

static void
test_account_outlives_its_rank (void)
{
  const guint64 before = get_total ();
  g_autoptr (GError) error = NULL;

  ebb_run_ranks (1, run_bequest, NULL, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (get_total (), ==, before + N_FLOATS * sizeof (float));
  ebb_tensor_unref (handed_over[0]);
  g_assert_cmpuint (get_total (), ==, before);
}

/* Staging memory on the host is counted for its rank while it is in use. */
static gboolean
run_staged (EbbProcessGroup *group,
            gpointer data,
            GError **error)
{
  const gint64 length = N_FLOATS;
  g_autoptr (EbbTensor) tensor =
      test_collective_tensor (ebb_process_group_get_rank (group), EBB_DTYPE_F32, &length, 1);
  g_autoptr (EbbMemoryStats) stats = NULL;
  g_autoptr (EbbWork) work = NULL;
  guint64 before;

  stats = ebb_memory_get_stats (NULL);
  before = ebb_memory_stats_get_total (stats);
  ebb_memory_reset_peaks (NULL);
  work = ebb_process_group_all_reduce_async (group, tensor, EBB_REDUCE_OP_SUM, error);
  if (!ebb_work_wait (work, error))
    return FALSE;
  g_clear_pointer (&stats, ebb_memory_stats_free);
  stats = ebb_memory_get_stats (NULL);
  g_assert_cmpuint (ebb_memory_stats_get_total (stats), ==, before);
  g_assert_cmpuint (ebb_memory_stats_get_peak_total (stats), ==,
                    before + (test_device_is_cpu () ? 0 : N_FLOATS * sizeof (float)));
  return TRUE;
}

static void
test_copies_on_the_host_are_counted (void)
{
  g_autoptr (GError) error = NULL;

  ebb_run_ranks (2, run_staged, NULL, &error);
  g_assert_no_error (error);
}

/* -- a rank that can't take part ----------------------------------------------------------------------------------- */

static gboolean
run_without_memory (EbbProcessGroup *group,
                    gpointer data,
                    GError **error)
{
  const gint64 length = 1 << 20;
  g_autoptr (EbbTensor) tensor = ebb_tensor_new_empty (&length, 1, EBB_DTYPE_F32, test_device (), error);
  g_autoptr (GError) failure = NULL;
  g_autoptr (GError) later = NULL;
  gboolean is_short = ebb_process_group_get_rank (group) == 1;

  if (!ebb_process_group_barrier (group, error))
    return FALSE;
  if (is_short)
    ebb_memory_set_limit (NULL, 1 << 20);
  g_assert_false (ebb_process_group_all_reduce (group, tensor, EBB_REDUCE_OP_SUM, &failure));
  g_assert_false (ebb_process_group_barrier (group, &later));
  g_assert_cmpstr (failure->message, ==, later->message);
  if (is_short)
    {
      test_assert_error (failure, EBB_ERROR_NO_MEMORY, "all_reduce (sum) of f32 [1048576] on rank 1 of 2");
      ebb_memory_set_limit (NULL, 0);
    }
  return TRUE;
}

/* The first rank may be short of memory too; no rank waits for the time limit. */
static void
test_no_memory_is_told (void)
{
  g_autoptr (GError) error = NULL;

  if (test_device_is_cpu ())
    {
      g_test_skip ("nothing goes through the host");
      return;
    }
  ebb_run_ranks (2, run_without_memory, NULL, &error);
  g_assert_no_error (error);
}

/* -- what a call is for -------------------------------------------------------------------------------------------- */

typedef struct
{
  const char *purposes[2];
  const char *shown[2];
} Purposes;

/* The same tensors for something else. */
static gboolean
run_purposes (EbbProcessGroup *group,
              gpointer data,
              GError **error)
{
  const Purposes *it = data;
  const guint rank = ebb_process_group_get_rank (group);
  const gint64 length = 4;
  g_autoptr (EbbTensor) tensor = test_collective_tensor (rank, EBB_DTYPE_F32, &length, 1);
  g_autofree char *purpose = g_strdup (it->purposes[rank]);
  g_autofree char *own = g_strdup_printf ("all_reduce (sum) of f32 [4]%s on rank %u of 2", it->shown[rank], rank);
  g_autofree char *other =
      g_strdup_printf ("rank %u called all_reduce (sum) of f32 [4]%s", 1 - rank, it->shown[1 - rank]);
  EbbCollectivePart part = { .full = tensor };
  g_autoptr (GError) failure = NULL;
  g_autoptr (EbbWork) work = NULL;

  if (!ebb_process_group_run (group, EBB_COLLECTIVE_ALL_REDUCE, EBB_REDUCE_OP_SUM, &part, 1, 0, "the same", error))
    return FALSE;
  work = ebb_process_group_start (group, EBB_COLLECTIVE_ALL_REDUCE, EBB_REDUCE_OP_SUM, &part, 1, 0, purpose, error);
  g_clear_pointer (&purpose, g_free);
  g_assert_false (ebb_work_wait (work, &failure));
  test_assert_error (failure, EBB_ERROR_PROCESS_GROUP, own, other);
  return TRUE;
}

static void
test_another_purpose_is_told (void)
{
  g_autofree char *stem = g_strnfill (300, 'a');
  g_autofree char *tail = g_strnfill (197, 'a');
  g_autofree char *first = g_strdup_printf ("%s.0", stem);
  g_autofree char *second = g_strdup_printf ("%s.1", stem);
  g_autofree char *shown_first = g_strdup_printf (" for …%sa.0", tail);
  g_autofree char *shown_second = g_strdup_printf (" for …%sa.1", tail);
  Purposes cases[] = {
    { { "gathering h.1 (Block)", "gathering h.2 (Block)" },
      { " for gathering h.1 (Block)", " for gathering h.2 (Block)" } },
    { { NULL, "gathering h.2 (Block)" }, { "", " for gathering h.2 (Block)" } },
    { { first, second }, { shown_first, shown_second } },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;

      ebb_run_ranks (2, run_purposes, &cases[i], &error);
      g_assert_no_error (error);
    }
}

int
main (int argc,
      char *argv[])
{
  test_init (&argc, &argv);
  g_test_add_func ("/process-group/parts", test_parts);
  g_test_add_func ("/process-group/sixteen-bits-are-kept", test_sixteen_bits_are_kept);
  if (test_device_is_cpu ())
    g_test_add_func ("/process-group/f16-rounds-as-casts-do", test_f16_rounds_as_casts_do);
  g_test_add_func ("/process-group/stopped-calls-do-nothing", test_stopped_calls_do_nothing);
  g_test_add_func ("/process-group/ranks-have-accounts", test_ranks_have_accounts);
  g_test_add_func ("/process-group/account-outlives-its-rank", test_account_outlives_its_rank);
  g_test_add_func ("/process-group/copies-on-the-host-are-counted", test_copies_on_the_host_are_counted);
  g_test_add_func ("/process-group/no-memory-is-told", test_no_memory_is_told);
  g_test_add_func ("/process-group/another-purpose-is-told", test_another_purpose_is_told);
  return g_test_run ();
}
