/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/partitions.h"
#include "support/ranks.h"
#include "support/stores.h"
#include "support/tensors.h"

#include <gio/gio.h>
#include <string.h>

/* Ranks that don't have the same, or don't do the same: all of them hear of it, nothing hangs, and nothing stays
 * behind. */

#define N_RANKS 4
#define ODD 2 /* the rank that differs */

typedef struct
{
  const char *name;
  gboolean (*act) (EbbProcessGroup *group,
                   EbbModule *model,
                   EbbSavedTensorHooks *store,
                   GError **error);
  TestBehind behind;
  EbbPartitionCheck check;
  gboolean checks_determinism; /* by values */
  const char *words[5];        /* of the error on each other rank */
  gboolean goes_on;            /* the group can still be used */
  char *messages[N_RANKS];
} Fault;

static gboolean
is_odd (EbbProcessGroup *group)
{
  return ebb_process_group_get_rank (group) == ODD;
}

static EbbTensor *
forward (EbbModule *model,
         guint seed,
         GError **error)
{
  g_autoptr (EbbTensor) input = test_partition_input (seed);

  return test_partition_forward (model, input, error);
}

static gboolean
go_back (EbbTensor *loss,
         GError **error)
{
  return loss != NULL && ebb_tensor_backward (loss, error);
}

/* -- what ranks do ------------------------------------------------------------------------------------------------- */

static gboolean
put_something_else (EbbProcessGroup *group,
                    EbbModule *model,
                    EbbSavedTensorHooks *store,
                    GError **error)
{
  g_autoptr (EbbTensor) loss = forward (model, is_odd (group) ? 99 : 1, error);

  return go_back (loss, error);
}

/* One element in many: for a comparison of all. */
static gboolean
put_another_element (EbbProcessGroup *group,
                     EbbModule *model,
                     EbbSavedTensorHooks *store,
                     GError **error)
{
  g_autoptr (EbbTensor) input = test_partition_input (1);
  g_autoptr (EbbTensor) element = ebb_narrow (input, 2, 1, 1, error);
  g_autoptr (EbbTensor) row = ebb_narrow (element, 1, 1, 1, error);
  g_autoptr (EbbTensor) one = ebb_narrow (row, 0, 1, 1, error);
  g_autoptr (EbbTensor) loss = NULL;

  if (is_odd (group) && !ebb_tensor_fill (one, 0.5, error))
    return FALSE;
  loss = test_partition_forward (model, input, error);
  return go_back (loss, error);
}

static gboolean
put_another_shape (EbbProcessGroup *group,
                   EbbModule *model,
                   EbbSavedTensorHooks *store,
                   GError **error)
{
  g_autoptr (EbbTensor) input = test_partition_input (1);
  g_autoptr (EbbTensor) rows = ebb_narrow (input, 0, 0, is_odd (group) ? 4 : 5, error);
  g_autoptr (EbbTensor) copy = ebb_contiguous (rows, error);
  g_autoptr (EbbTensor) loss = test_partition_forward (model, copy, error);

  return go_back (loss, error);
}

static gboolean
die_before_backward (EbbProcessGroup *group,
                     EbbModule *model,
                     EbbSavedTensorHooks *store,
                     GError **error)
{
  g_autoptr (EbbTensor) loss = forward (model, 1, error);

  if (!is_odd (group))
    return go_back (loss, error);
  g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "the power went");
  return FALSE;
}

static gboolean
leave_before_backward (EbbProcessGroup *group,
                       EbbModule *model,
                       EbbSavedTensorHooks *store,
                       GError **error)
{
  g_autoptr (EbbTensor) loss = forward (model, 1, error);

  return is_odd (group) ? TRUE : go_back (loss, error);
}

static gboolean
drop_the_graph (EbbProcessGroup *group,
                EbbModule *model,
                EbbSavedTensorHooks *store,
                GError **error)
{
  g_autoptr (EbbTensor) loss = forward (model, 1, error);

  if (!is_odd (group))
    return go_back (loss, error);
  g_clear_pointer (&loss, ebb_tensor_unref);
  g_assert_cmpuint (test_held (store), ==, 0);
  return ebb_process_group_barrier (group, error);
}

static gboolean
go_back_in_another_order (EbbProcessGroup *group,
                          EbbModule *model,
                          EbbSavedTensorHooks *store,
                          GError **error)
{
  g_autoptr (EbbTensor) a = forward (model, 1, error);
  g_autoptr (EbbTensor) b = forward (model, 2, error);

  return go_back (is_odd (group) ? a : b, error) && go_back (is_odd (group) ? b : a, error);
}

/* -- running them -------------------------------------------------------------------------------------------------- */

static gboolean
run_on_rank (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  Fault *fault = user_data;
  const guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, fault->behind);
  g_autoptr (EbbCheckpointOptions) options = test_partition_options_new (store);
  g_autoptr (EbbModule) model = NULL;
  GError *local = NULL;
  gboolean ok;

  g_object_set (store, "check", fault->check, NULL);
  if (fault->checks_determinism)
    g_object_set (options, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, NULL);
  model = test_partition_model_new (options);
  ok = fault->act (group, model, store, &local);
  g_assert_true (ok == (local == NULL));
  fault->messages[rank] = local != NULL ? g_strdup (local->message) : NULL;
  g_assert_cmpuint (test_held (store), ==, 0);
  if (fault->goes_on)
    {
      g_clear_error (&local);
      return ebb_process_group_barrier (group, error);
    }
  if (local != NULL)
    g_propagate_error (error, local);
  return ok;
}

static void
all_ranks_hear_of_it (gconstpointer data)
{
  Fault fault = *(const Fault *) data;
  g_autoptr (GError) error = NULL;

  g_assert_cmpint (ebb_run_ranks (N_RANKS, run_on_rank, &fault, &error), ==, fault.goes_on);
  for (guint rank = 0; rank < N_RANKS; rank++)
    {
      g_test_message ("rank %u: %s", rank, fault.messages[rank] != NULL ? fault.messages[rank] : "all right");
      if (rank == ODD && !fault.goes_on)
        continue;
      g_assert_nonnull (fault.messages[rank]);
      for (guint i = 0; i < G_N_ELEMENTS (fault.words) && fault.words[i] != NULL; i++)
        if (strstr (fault.messages[rank], fault.words[i]) == NULL)
          g_error ("rank %u: \"%s\" does not say \"%s\"", rank, fault.messages[rank], fault.words[i]);
    }
  for (guint rank = 0; rank < N_RANKS; rank++)
    g_free (fault.messages[rank]);
}

static const Fault faults[] = {
  { .name = "other-values-are-found-by-a-sample",
    .act = put_something_else,
    .check = EBB_PARTITION_CHECK_SAMPLE,
    .words = { "recompute of 3", "EbbSequential", "f32 [5, 7, 18], kept by checkpoint", "rank 2 put other values" },
    .goes_on = TRUE },
  { .name = "other-values-are-found-by-a-sample-that-was-on-disk",
    .act = put_something_else,
    .behind = TEST_BEHIND_CONTIGUOUS_DISK,
    .check = EBB_PARTITION_CHECK_SAMPLE,
    .words = { "recompute of 3", "rank 2 put other values", "rank 0" },
    .goes_on = TRUE },
  { .name = "one-other-element-is-found-by-values",
    .act = put_another_element,
    .check = EBB_PARTITION_CHECK_VALUES,
    .words = { "argument 0", "must be the same on all ranks", "rank 2 has", "kept by checkpoint", "checksum" },
    .goes_on = TRUE },
  { .name = "one-other-element-is-found-by-a-checkpoint-that-checks-values",
    .act = put_another_element,
    .check = EBB_PARTITION_CHECK_NONE,
    .checks_determinism = TRUE,
    .words = { "argument 0", "must be the same on all ranks", "rank 2 has", "kept by checkpoint", "checksum" },
    .goes_on = TRUE },
  { .name = "another-shape",
    .act = put_another_shape,
    .check = EBB_PARTITION_CHECK_NONE,
    .words = { "recompute of 3", "rank 2", "f32 [5, 7, 18]", "f32 [4, 7, 18]" } },
  { .name = "a-rank-dies-before-backward",
    .act = die_before_backward,
    .check = EBB_PARTITION_CHECK_SAMPLE,
    .words = { "recompute of 3", "EbbSequential", "gathering f32 [5, 7, 18], kept by checkpoint", "rank 2 has failed",
               "the power went" } },
  { .name = "a-rank-leaves-before-backward",
    .act = leave_before_backward,
    .check = EBB_PARTITION_CHECK_SAMPLE,
    .words = { "recompute of 3", "gathering f32 [5, 7, 18], kept by checkpoint", "rank 2 has left" } },
  { .name = "a-rank-drops-the-graph",
    .act = drop_the_graph,
    .check = EBB_PARTITION_CHECK_SAMPLE,
    .words = { "recompute of 3", "gathering f32 [5, 7, 18], kept by checkpoint", "rank 2 called barrier" } },
  { .name = "a-rank-goes-back-in-another-order",
    .act = go_back_in_another_order,
    .check = EBB_PARTITION_CHECK_SAMPLE,
    .words = { "recompute of 3", "rank 2 put other values", "drop the same graphs" },
    .goes_on = TRUE },
};

/* -- a gather ahead that can't be begun ---------------------------------------------------------------------------- */

/* The others have begun it: they get the reason why this one doesn't come, not the name of what it called instead. */
static gboolean
fail_ahead (EbbProcessGroup *group,
            gpointer user_data,
            GError **error)
{
  Fault *fault = user_data;
  g_autoptr (EbbSavedTensorHooks) next = test_watched_store_new (is_odd (group) ? 2 : 0);
  g_autoptr (EbbSavedTensorHooks) store = ebb_partitioned_store_new (group, EBB_ACTIVATION_STORE (next), error);
  g_autoptr (EbbCheckpointOptions) options = test_partition_options_new (store);
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (GError) local = NULL;

  g_object_set (store, "least-size", (guint64) 1, NULL);
  model = test_partition_model_new (options);
  loss = forward (model, 1, error);
  g_assert_false (go_back (loss, &local));
  fault->messages[ebb_process_group_get_rank (group)] = g_strdup (local->message);
  g_clear_pointer (&loss, ebb_tensor_unref);
  g_assert_cmpuint (test_held (store), ==, 0);
  g_propagate_error (error, g_steal_pointer (&local));
  return FALSE;
}

static void
the_reason_reaches_all_ranks (void)
{
  Fault fault = { NULL };
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_run_ranks (N_RANKS, fail_ahead, &fault, &error));
  for (guint rank = 0; rank < N_RANKS; rank++)
    {
      g_assert_nonnull (fault.messages[rank]);
      g_test_message ("rank %u: %s", rank, fault.messages[rank]);
      g_assert_nonnull (strstr (fault.messages[rank], "no room for get 2"));
      g_assert_nonnull (strstr (fault.messages[rank], "gathering f32 [5, 7, 18], kept by checkpoint ahead"));
      if (rank != ODD)
        g_assert_nonnull (strstr (fault.messages[rank], "rank 2 has failed"));
      g_free (fault.messages[rank]);
    }
}

/* -- a put that fails ---------------------------------------------------------------------------------------------- */

typedef struct
{
  gboolean everywhere; /* or on one rank */
  guint64 limit;       /* of the store behind, in bytes */
} FailedPut;

/* The ranks for which the put went well drop their graphs. Then the store gives what a new one gives. */
static gboolean
fail_and_go_on (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  const FailedPut *failed = user_data;
  g_autoptr (EbbSavedTensorHooks) disk = test_disk_store_new (g_get_tmp_dir ());
  g_autoptr (EbbSavedTensorHooks) store = ebb_partitioned_store_new (group, EBB_ACTIVATION_STORE (disk), error);
  g_autoptr (EbbSavedTensorHooks) new_store = test_partitioned_store_new (group, TEST_BEHIND_DISK);
  g_autoptr (EbbCheckpointOptions) options = test_partition_options_new (store);
  g_autoptr (EbbCheckpointOptions) new_options = test_partition_options_new (new_store);
  g_autoptr (EbbModule) model = test_partition_model_new (options);
  g_autoptr (EbbModule) expected = test_partition_model_new (new_options);
  const gboolean fails = failed->everywhere || is_odd (group);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (GError) refused = NULL;

  g_object_set (store, "least-size", (guint64) 1, NULL);
  if (fails)
    g_object_set (disk, "byte-limit", failed->limit, NULL);
  loss = forward (model, 1, &refused);
  g_assert_true ((loss == NULL) == fails);
  if (fails)
    test_assert_error (refused, EBB_ERROR_IO, "argument 0: checkpoint: disk store in", "raise byte-limit");
  g_clear_pointer (&loss, ebb_tensor_unref);
  g_assert_cmpuint (test_held (store), ==, 0);
  g_object_set (disk, "byte-limit", G_MAXUINT64, NULL);
  for (guint step = 0; step < 2; step++)
    {
      g_autoptr (EbbTensor) again = forward (model, 1 + step, error);
      g_autoptr (EbbTensor) other = again != NULL ? forward (expected, 1 + step, error) : NULL;

      if (!go_back (again, error) || !go_back (other, error))
        return FALSE;
      test_partition_assert_same_grads (model, expected);
      g_assert_cmpuint (test_held (store), ==, 0);
    }
  return TRUE;
}

static void
a_store_goes_on_after_a_failed_put (void)
{
  /* The first put fails, or the second one, after which the store drops the first part. */
  for (guint i = 0; i < 4; i++)
    {
      FailedPut failed = { i % 2, i < 2 ? 1 : 1000 };

      test_ranks_run (N_RANKS, fail_and_go_on, &failed);
    }
}

/* -- what is apart already ----------------------------------------------------------------------------------------- */

static gboolean
leaves_parts (EbbTensor *tensor,
              const char *op,
              gpointer user_data,
              GError **error)
{
  return ebb_tensor_get_dim (tensor, 0) == 5;
}

static gboolean
pass_a_part (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, TEST_BEHIND_NOTHING);
  g_autoptr (EbbCheckpointOptions) options = test_partition_options_new (store);
  g_autoptr (EbbModule) model = test_partition_model_new (options);
  g_autoptr (EbbTensor) input = test_randn (1, 8, TEST_PARTITION_WIDTH, -1);
  g_autoptr (EbbTensor) part = ebb_parallel_scatter (input, 0, group, error);
  g_autoptr (EbbTensor) doubled = ebb_add (part, part, error);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (GError) refused = NULL;

  for (guint i = 0; i < 3; i++)
    {
      /* Whatever its size. */
      g_object_set (store, "least-size", (guint64) (i < 2 ? 1 : 1 << 20), NULL);
      loss = test_partition_forward (model, i == 0 ? part : doubled, &refused);
      g_assert_null (loss);
      test_assert_error (refused, EBB_ERROR_INVALID_ARGUMENT, "argument 0", "checkpoint", "f32 [2, 18]",
                         "one rank's part", "4 ranks", "leave partitioning out",
                         "checkpoint the block rather than the layer inside it");
      g_clear_error (&refused);
    }
  g_object_set (store, "least-size", (guint64) 1, NULL);
  ebb_activation_store_set_filter (EBB_ACTIVATION_STORE (store), leaves_parts, NULL, NULL);
  loss = test_partition_forward (model, part, error);
  g_assert_cmpuint (test_get_double (store, "n-partitioned"), ==, 0);
  return go_back (loss, error);
}

static void
a_part_is_refused_in_the_forward (void)
{
  test_ranks_run (N_RANKS, pass_a_part, NULL);
}

/* A tensor that is no argument of a checkpoint is kept in full, besides the full tensor that it views. */
static gboolean
pack_a_part (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, TEST_BEHIND_HOST);
  g_autoptr (EbbTensor) input = test_randn (1, 8, TEST_PARTITION_WIDTH, -1);
  g_autoptr (EbbTensor) part = ebb_parallel_scatter (input, 0, group, error);
  g_autoptr (EbbTensor) own = ebb_add (part, part, error);
  g_autoptr (EbbHandle) a = test_pack (store, input);
  g_autoptr (EbbHandle) b = test_pack (store, part);
  g_autoptr (EbbHandle) c = test_pack (store, own);
  g_autoptr (EbbTensor) part_back = test_unpack (store, b);
  g_autoptr (EbbTensor) own_back = test_unpack (store, c);
  g_autoptr (EbbTensor) back = NULL;

  g_assert_cmpuint (test_get_double (store, "n-partitioned"), ==, 1);
  g_assert_true (ebb_tensor_equal (part, part_back));
  g_assert_true (ebb_tensor_equal (own, own_back));
  back = test_unpack (store, a);
  g_assert_true (ebb_tensor_equal (input, back));
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_GATHER), ==, 1);
  return TRUE;
}

static void
other_parts_are_kept_whole (void)
{
  test_ranks_run (N_RANKS, pack_a_part, NULL);
}

/* An op that casts its operand saves the copy, which is a part, too. */
static gboolean
save_a_cast_part (EbbProcessGroup *group,
                  gpointer user_data,
                  GError **error)
{
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, TEST_BEHIND_NOTHING);
  g_autoptr (EbbTensor) input = test_randn (1, 8, TEST_PARTITION_WIDTH, -1);
  g_autoptr (EbbTensor) part = ebb_parallel_scatter (input, 0, group, error);
  g_autoptr (EbbTensor) weight = test_randn (2, TEST_PARTITION_WIDTH, TEST_PARTITION_WIDTH, -1);
  g_autoptr (EbbTensor) product = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  g_object_set (store, "least-size", (guint64) 1, "check", EBB_PARTITION_CHECK_NONE, NULL);
  if (!ebb_tensor_set_requires_grad (weight, TRUE, error))
    return FALSE;
  ebb_push_saved_tensor_hooks (store);
  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  product = ebb_linear (part, weight, NULL, error);
  ebb_pop_autocast ();
  ebb_pop_saved_tensor_hooks ();
  loss = ebb_sum (product, NULL, 0, FALSE, error);
  g_assert_cmpuint (test_get_double (store, "n-partitioned"), ==, 0);
  return go_back (loss, error);
}

static void
a_part_that_is_cast_is_kept_whole (void)
{
  test_ranks_run (N_RANKS, save_a_cast_part, NULL);
}

/* -- what can't be made -------------------------------------------------------------------------------------------- */

static gboolean
compose (EbbProcessGroup *group,
         gpointer user_data,
         GError **unused)
{
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, TEST_BEHIND_NOTHING);
  g_autoptr (EbbSavedTensorHooks) without = g_object_new (EBB_TYPE_PARTITIONED_STORE, NULL);
  g_autoptr (EbbTensor) tensor = test_randn (1, 1 << 15, -1);
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_partitioned_store_new (group, EBB_ACTIVATION_STORE (store), &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "partitioned store", "next is an EbbPartitionedStore");
  g_clear_error (&error);
  g_assert_null (ebb_contiguous_store_new (2, EBB_ACTIVATION_STORE (store), &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "contiguous store", "EbbPartitionedStore");
  g_clear_error (&error);
  g_assert_null (ebb_saved_tensor_hooks_pack (without, tensor, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "partitioned store", "group is missing");
  g_clear_error (&error);
  g_assert_null (g_initable_new (EBB_TYPE_PARTITIONED_STORE, NULL, &error, NULL));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "partitioned store", "group is missing");
  return TRUE;
}

static void
compositions_that_make_no_sense_are_refused (void)
{
  test_ranks_run (2, compose, NULL);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_get_tmp_dir (); /* made once, before there are threads */
  for (guint i = 0; i < G_N_ELEMENTS (faults); i++)
    {
      g_autofree char *path = g_strconcat ("/partitioned/faults/", faults[i].name, NULL);

      g_test_add_data_func (path, &faults[i], all_ranks_hear_of_it);
    }
  g_test_add_func ("/partitioned/faults/the-reason-reaches-all-ranks", the_reason_reaches_all_ranks);
  g_test_add_func ("/partitioned/faults/a-store-goes-on-after-a-failed-put", a_store_goes_on_after_a_failed_put);
  g_test_add_func ("/partitioned/a-part-is-refused-in-the-forward", a_part_is_refused_in_the_forward);
  g_test_add_func ("/partitioned/other-parts-are-kept-whole", other_parts_are_kept_whole);
  g_test_add_func ("/partitioned/a-part-that-is-cast-is-kept-whole", a_part_that_is_cast_is_kept_whole);
  g_test_add_func ("/partitioned/compositions-that-make-no-sense-are-refused",
                   compositions_that_make_no_sense_are_refused);
  return g_test_run ();
}
