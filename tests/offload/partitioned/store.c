/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/partitions.h"
#include "support/ranks.h"
#include "support/stores.h"
#include "support/tensors.h"

#include <string.h>

/* Tensors that all ranks have, kept in pieces: they come back bit for bit, and as few bytes are kept as said. */

#define ROUND_UP(n, k) (((n) + (k) -1) / (k))
#define SAMPLE_BYTES 128

typedef struct
{
  guint n_ranks;
  TestBehind behind;
} Case;

/* -- tensors ------------------------------------------------------------------------------------------------------- */

static EbbTensor *
cast (EbbTensor *tensor,
      EbbDType dtype)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *result = ebb_cast (tensor, dtype, &error);

  g_assert_no_error (error);
  return result;
}

static EbbTensor *
make_tensor (guint kind)
{
  g_autoptr (EbbTensor) x = test_randn (1, 6, 10, 11, -1);

  switch (kind)
    {
    case 0: return g_steal_pointer (&x);
    case 1: return test_randn (2, 41, -1);
    case 2: return test_randn (3, 4, -1); /* one for each rank */
    case 3: return test_randn (4, 1, 1, 7, -1);
    case 4: return ebb_transpose (x, 0, 2, NULL);
    case 5: return ebb_narrow (x, 2, 3, 5, NULL);
    case 6: return ebb_narrow (x, 0, 5, 1, NULL);
    case 7: return cast (x, EBB_DTYPE_BF16);
    case 8: return cast (x, EBB_DTYPE_F16);
    case 9: return test_tokens (5, 50000, 3, 17, -1);
    case 10: return cast (x, EBB_DTYPE_BOOL);
    default: return NULL;
    }
}

static gboolean
bring_back_all (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  const Case *self = user_data;
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, self->behind);

  for (guint kind = 0;; kind++)
    {
      g_autoptr (EbbTensor) tensor = make_tensor (kind);
      g_autoptr (EbbTensor) twin = make_tensor (kind);
      g_autoptr (EbbHandle) handle = NULL;
      g_autoptr (EbbTensor) back = NULL;
      g_autoptr (EbbTensor) again = NULL;
      g_autofree gint64 *strides = NULL;
      const gint64 *now;
      guint n_dims;

      if (tensor == NULL)
        break;
      handle = test_pack (store, tensor);
      g_assert_true (ebb_tensor_equal (tensor, twin));
      now = ebb_tensor_get_strides (tensor, &n_dims);
      strides = g_memdup2 (now, n_dims * sizeof (gint64));
      g_clear_pointer (&tensor, ebb_tensor_unref);
      back = test_unpack (store, handle);
      g_assert_true (ebb_tensor_equal (back, twin));
      now = ebb_tensor_get_strides (back, NULL);
      g_assert_cmpmem (strides, n_dims * sizeof (gint64), now, n_dims * sizeof (gint64));
      g_clear_pointer (&back, ebb_tensor_unref);
      again = test_unpack (store, handle);
      g_assert_true (ebb_tensor_equal (again, twin));
    }
  g_assert_cmpuint (test_held (store), ==, 0);
  g_assert_cmpuint (test_get_double (store, "bytes-full"), ==, 0);
  g_assert_cmpuint (test_get_double (store, "bytes-kept"), ==, 0);
  return TRUE;
}

static void
gives_back_any_tensor (gconstpointer data)
{
  test_ranks_run (((const Case *) data)->n_ranks, bring_back_all, (gpointer) data);
}

static gboolean
look_at_counters (EbbProcessGroup *group,
                  gpointer user_data,
                  GError **error)
{
  const guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, TEST_BEHIND_NOTHING);
  g_autoptr (EbbTensor) large = test_randn (1, 1003, -1);
  g_autoptr (EbbTensor) small = test_randn (1, 3, -1);
  g_autoptr (EbbTensor) other = test_randn (2, 1003, -1);
  g_autoptr (EbbHandle) a = test_pack (store, large);
  g_autoptr (EbbHandle) b = test_pack (store, small);
  const guint64 own = (rank < 3 ? 251 : 250) * 4 + SAMPLE_BYTES;
  g_autoptr (EbbTensor) back = NULL;
  g_autofree char *json = NULL;
  g_autofree char *text = NULL;

  g_object_set (store, "prefetch", 0, NULL);
  g_assert_cmpuint (test_get_double (store, "bytes-full"), ==, 4012);
  g_assert_cmpuint (test_get_double (store, "bytes-kept"), ==, own);
  g_assert_cmpuint (test_held (store), ==, own + 12);
  g_assert_cmpuint (test_get_double (store, "n-partitioned"), ==, 1);
  g_assert_cmpuint (test_get_double (store, "n-gathers"), ==, 0);
  g_clear_pointer (&small, ebb_tensor_unref);
  back = test_unpack (store, b);
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_GATHER), ==, 0);
  g_clear_pointer (&back, ebb_tensor_unref);
  back = test_unpack (store, a);
  g_assert_true (ebb_tensor_equal (back, large));
  g_assert_cmpuint (test_get_double (store, "n-gathers"), ==, 1);
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_GATHER), ==, 1);
  json = ebb_activation_store_report_json (EBB_ACTIVATION_STORE (store));
  text = ebb_activation_store_report (EBB_ACTIVATION_STORE (store));
  g_assert_nonnull (strstr (json, "\"bytes_full\":4012"));
  g_assert_nonnull (strstr (json, "\"n_gathers\":1"));
  g_assert_nonnull (strstr (text, "n-partitioned 1"));
  ebb_activation_store_reset_stats (EBB_ACTIVATION_STORE (store));
  g_assert_cmpuint (test_get_double (store, "n-gathers"), ==, 0);
  g_assert_cmpuint (test_get_double (store, "bytes-full"), ==, 4012);

  /* Small tensors are kept in full by choice. */
  g_clear_pointer (&a, ebb_handle_unref);
  g_clear_pointer (&back, ebb_tensor_unref);
  g_object_set (store, "least-elements", (guint64) 1004, NULL);
  a = test_pack (store, other);
  g_assert_cmpuint (test_get_double (store, "n-partitioned"), ==, 0);
  g_assert_cmpuint (test_get_double (store, "bytes-full"), ==, 0);
  g_assert_cmpuint (test_held (store), ==, 4012 + 12);
  g_clear_pointer (&a, ebb_handle_unref);
  g_object_set (store, "least-elements", (guint64) 1003, NULL);
  a = test_pack (store, other);
  g_assert_cmpuint (test_get_double (store, "n-partitioned"), ==, 1);
  g_assert_cmpuint (test_get_double (store, "bytes-full"), ==, 4012);
  return TRUE;
}

/* Among four ranks a piece is a quarter and a sample of 32, if there is one. */
static gboolean
choose_what_to_cut (EbbProcessGroup *group,
                    gpointer user_data,
                    GError **error)
{
  static const struct
  {
    int n;
    EbbDType dtype;
    EbbPartitionCheck check;
    gboolean is_cut;
  } cases[] = {
    { 1000, EBB_DTYPE_F32, EBB_PARTITION_CHECK_SAMPLE, TRUE },
    { 1000, EBB_DTYPE_BF16, EBB_PARTITION_CHECK_SAMPLE, TRUE },
    { 1000, EBB_DTYPE_F16, EBB_PARTITION_CHECK_SAMPLE, TRUE },
    { 1000, EBB_DTYPE_I64, EBB_PARTITION_CHECK_SAMPLE, FALSE },
    { 1000, EBB_DTYPE_I32, EBB_PARTITION_CHECK_NONE, FALSE },
    { 1000, EBB_DTYPE_U8, EBB_PARTITION_CHECK_SAMPLE, FALSE },
    { 1000, EBB_DTYPE_BOOL, EBB_PARTITION_CHECK_VALUES, FALSE },
    { 44, EBB_DTYPE_F32, EBB_PARTITION_CHECK_SAMPLE, TRUE },
    { 43, EBB_DTYPE_F32, EBB_PARTITION_CHECK_SAMPLE, FALSE },
    { 43, EBB_DTYPE_F32, EBB_PARTITION_CHECK_VALUES, FALSE },
    { 43, EBB_DTYPE_F32, EBB_PARTITION_CHECK_NONE, TRUE },
    { 4, EBB_DTYPE_F32, EBB_PARTITION_CHECK_NONE, TRUE },
    { 3, EBB_DTYPE_F32, EBB_PARTITION_CHECK_NONE, FALSE },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, TEST_BEHIND_NOTHING);
      g_autoptr (EbbTensor) wide = test_randn (1, cases[i].n, -1);
      g_autoptr (EbbTensor) tensor = ebb_cast (wide, cases[i].dtype, error);
      g_autoptr (EbbHandle) handle = NULL;
      g_autoptr (EbbTensor) back = NULL;
      const guint64 n_bytes = ebb_tensor_get_n_bytes (tensor);

      g_object_set (store, "check", cases[i].check, NULL);
      handle = test_pack (store, tensor);
      g_assert_cmpuint (test_get_double (store, "n-partitioned"), ==, cases[i].is_cut);
      g_assert_cmpuint (test_held (store), <=, cases[i].is_cut ? n_bytes - 1 : n_bytes);
      back = test_unpack (store, handle);
      g_assert_true (ebb_tensor_equal (back, tensor));
    }
  return TRUE;
}

static void
cuts_floats_that_get_smaller (void)
{
  test_ranks_run (4, choose_what_to_cut, NULL);
}

static void
counters_tell_of_pieces (void)
{
  test_ranks_run (4, look_at_counters, NULL);
}

/* -- checkpoints --------------------------------------------------------------------------------------------------- */

static EbbTensor *
forward (EbbModule *model)
{
  g_autoptr (EbbTensor) input = test_partition_input (31);
  g_autoptr (GError) error = NULL;
  EbbTensor *loss = test_partition_forward (model, input, &error);

  g_assert_no_error (error);
  return loss;
}

static void
go_back (EbbTensor *loss,
         gboolean retains)
{
  g_autoptr (GError) error = NULL;

  if (retains)
    ebb_backward (&loss, 1, NULL, 0, NULL, 0, TRUE, &error);
  else
    ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
}

static void
train (EbbModule *model)
{
  g_autoptr (EbbTensor) loss = forward (model);

  go_back (loss, FALSE);
}

static gboolean
compare_gradients (EbbProcessGroup *group,
                   gpointer user_data,
                   GError **error)
{
  const Case *self = user_data;
  const guint n_ranks = ebb_process_group_get_size (group);
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, self->behind);
  g_autoptr (EbbCheckpointOptions) options = test_partition_options_new (store);
  g_autoptr (EbbModule) model = test_partition_model_new (options);
  g_autoptr (EbbModule) plain = test_partition_model_new (NULL);
  const guint64 n_inputs = n_ranks > 1 ? TEST_PARTITION_BLOCKS : 0;

  for (guint step = 0; step < 3; step++)
    {
      g_autoptr (EbbTensor) loss = NULL;

      g_object_set (store, "prefetch", step, NULL);
      train (plain);
      loss = forward (model);
      g_assert_cmpuint (test_get_double (store, "n-partitioned"), ==, (step + 1) * n_inputs);
      go_back (loss, FALSE);
      test_partition_assert_same_grads (model, plain);
      g_assert_cmpuint (test_get_double (store, "n-gathers"), ==, (step + 1) * n_inputs);
      g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_GATHER), ==, (step + 1) * n_inputs);
      g_assert_cmpuint (test_held (store), ==, 0);
    }
  return TRUE;
}

static void
gradients_are_bitwise_equal (gconstpointer data)
{
  test_ranks_run (((const Case *) data)->n_ranks, compare_gradients, (gpointer) data);
}

static gboolean
go_back_twice (EbbProcessGroup *group,
               gpointer user_data,
               GError **error)
{
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, TEST_BEHIND_HOST);
  g_autoptr (EbbCheckpointOptions) options = test_partition_options_new (store);
  g_autoptr (EbbModule) model = test_partition_model_new (options);
  g_autoptr (EbbModule) plain = test_partition_model_new (NULL);
  g_autoptr (EbbTensor) loss = forward (model);
  g_autoptr (EbbTensor) plain_loss = forward (plain);

  for (guint pass = 0; pass < 2; pass++)
    {
      go_back (loss, pass == 0);
      go_back (plain_loss, pass == 0);
    }
  test_partition_assert_same_grads (model, plain);
  g_assert_cmpuint (test_get_double (store, "n-gathers"), ==, 2 * TEST_PARTITION_BLOCKS);
  return TRUE;
}

static void
a_second_backward_gathers_again (void)
{
  test_ranks_run (2, go_back_twice, NULL);
}

/* An outer checkpoint around all inner ones keeps the one input; what the inner ones ask for is computed. */
static gboolean
nest (EbbProcessGroup *group,
      gpointer user_data,
      GError **error)
{
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, TEST_BEHIND_NOTHING);
  g_autoptr (EbbCheckpointOptions) options = test_partition_options_new (store);
  g_autoptr (EbbModule) model = test_partition_model_new (options);
  g_autoptr (EbbModule) plain = test_partition_model_new (NULL);

  g_object_unref (ebb_checkpoint_wrapper (model, options, error));
  train (model);
  train (plain);
  test_partition_assert_same_grads (model, plain);
  g_assert_cmpuint (test_get_double (store, "n-gathers"), ==, 1);
  return TRUE;
}

static void
nested_checkpoints_keep_the_outer_input (void)
{
  test_ranks_run (4, nest, NULL);
}

/* Every tensor that any op saves. */
static gboolean
push_hooks (EbbProcessGroup *group,
            gpointer user_data,
            GError **error)
{
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, TEST_BEHIND_CONTIGUOUS);
  g_autoptr (EbbModule) model = test_partition_model_new (NULL);
  g_autoptr (EbbModule) plain = test_partition_model_new (NULL);
  g_autoptr (EbbTensor) loss = NULL;

  ebb_push_saved_tensor_hooks (store);
  loss = forward (model);
  ebb_pop_saved_tensor_hooks ();
  go_back (loss, FALSE);
  train (plain);
  test_partition_assert_same_grads (model, plain);
  g_assert_cmpuint (test_get_double (store, "n-gathers"), >, 2 * TEST_PARTITION_BLOCKS);
  return TRUE;
}

static void
stores_what_every_op_saves (void)
{
  test_ranks_run (4, push_hooks, NULL);
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

#define LARGE 4096

static guint64
measure (EbbSavedTensorHooks *store)
{
  g_autoptr (EbbCheckpointOptions) options = test_partition_options_new (store);
  g_autoptr (EbbModule) model = test_partition_model_new (options);
  g_autoptr (EbbTensor) input = test_randn (3, LARGE, TEST_PARTITION_WIDTH, -1);
  g_autoptr (EbbTensor) loss = test_partition_forward (model, input, NULL);

  g_assert_nonnull (loss);
  return test_held (store);
}

static gboolean
compare_bytes (EbbProcessGroup *group,
               gpointer user_data,
               GError **error)
{
  g_autoptr (EbbSavedTensorHooks) keep = ebb_keep_store_new ();
  const guint64 plain = measure (keep);

  g_assert_cmpuint (plain, ==, TEST_PARTITION_BLOCKS * LARGE * TEST_PARTITION_WIDTH * 4);
  for (TestBehind behind = 0; behind < TEST_N_BEHIND; behind++)
    {
      g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, behind);

      g_assert_cmpfloat ((double) plain / (double) measure (store), >=, 3.9);
      g_assert_cmpuint (test_held (store), ==, 0);
    }
  return TRUE;
}

static void
four_ranks_keep_a_quarter (void)
{
  test_ranks_run (4, compare_bytes, NULL);
}

static guint64
get_current (EbbPurpose purpose)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_current (stats, purpose);
}

/* A host store that waits for its copies. */
static void
wait_for_copies (EbbSavedTensorHooks *store)
{
  EbbActivationStore *contiguous = ebb_activation_store_get_next (EBB_ACTIVATION_STORE (store));

  g_object_set (ebb_activation_store_get_next (EBB_ACTIVATION_STORE (contiguous)), "in-flight", 0, NULL);
}

/* Ranks count what is theirs. */
static gboolean
look_at_device (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  const gboolean moves = GPOINTER_TO_INT (user_data);
  g_autoptr (EbbSavedTensorHooks) store =
      test_partitioned_store_new (group, moves ? TEST_BEHIND_CONTIGUOUS_HOST : TEST_BEHIND_NOTHING);
  g_autoptr (EbbCheckpointOptions) options = test_partition_options_new (store);
  g_autoptr (EbbModule) model = test_partition_model_new (options);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) twin = NULL;
  const guint64 piece = ROUND_UP ((guint64) TEST_PARTITION_ROWS * TEST_PARTITION_WIDTH, 4) * 4 + SAMPLE_BYTES;

  if (moves)
    wait_for_copies (store);
  loss = forward (model);
  /* Beside the store the loss's own graph keeps the last output. */
  twin = test_partition_input (1);
  if (moves && !test_device_is_cpu ())
    g_assert_cmpuint (get_current (EBB_PURPOSE_ACTIVATION), ==, ebb_tensor_get_n_bytes (twin));
  else if (!moves)
    g_assert_cmpuint (get_current (EBB_PURPOSE_ACTIVATION), <=,
                      ebb_tensor_get_n_bytes (twin) + TEST_PARTITION_BLOCKS * piece);
  go_back (loss, FALSE);
  g_clear_pointer (&loss, ebb_tensor_unref);
  g_assert_cmpuint (get_current (EBB_PURPOSE_ACTIVATION), ==, 0);
  return TRUE;
}

static void
nothing_whole_stays_on_the_device (void)
{
  test_ranks_run (4, look_at_device, GINT_TO_POINTER (FALSE));
  test_ranks_run (4, look_at_device, GINT_TO_POINTER (TRUE));
}

/* -- prefetch ------------------------------------------------------------------------------------------------------ */

#define N_AHEAD 6
#define AHEAD_BYTES (100 * 4)

typedef struct
{
  EbbSavedTensorHooks *store;
  EbbHandle *handles[N_AHEAD];
} Ahead;

/* A hook before a module's forward: all of it is put in one outermost call. */
static gboolean
put_tensors (EbbModule *module,
             EbbArgs *args,
             EbbArgs *result,
             gpointer user_data,
             GError **error)
{
  Ahead *self = user_data;

  for (guint i = 0; i < N_AHEAD; i++)
    {
      g_autoptr (EbbTensor) tensor = test_randn (i, 100, -1);

      self->handles[i] = test_pack (self->store, tensor);
    }
  return TRUE;
}

static void
put_in_one_call (Ahead *self,
                 EbbSavedTensorHooks *store)
{
  g_autoptr (EbbModule) module = test_partition_block_new (1);
  g_autoptr (EbbTensor) input = test_partition_input (1);
  g_autoptr (EbbTensor) output = NULL;

  self->store = store;
  ebb_module_add_forward_pre_hook (module, put_tensors, self, NULL);
  output = ebb_module_call1 (module, input, NULL);
  g_assert_nonnull (output);
}

static EbbTensor *
take_back (Ahead *self,
           guint i)
{
  g_autoptr (EbbTensor) twin = test_randn (i, 100, -1);
  EbbTensor *back = test_unpack (self->store, self->handles[i]);

  g_assert_true (ebb_tensor_equal (back, twin));
  return back;
}

static void
ahead_clear (Ahead *self)
{
  for (guint i = 0; i < N_AHEAD; i++)
    g_clear_pointer (&self->handles[i], ebb_handle_unref);
  g_assert_cmpuint (test_held (self->store), ==, 0);
}

static gboolean
gather_ahead (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  g_autoptr (EbbSavedTensorHooks) next = test_watched_store_new (0);
  g_autoptr (EbbSavedTensorHooks) store = ebb_partitioned_store_new (group, EBB_ACTIVATION_STORE (next), error);
  Ahead ahead = { NULL };
  guint64 held;

  g_object_set (store, "least-size", (guint64) 1, NULL);
  put_in_one_call (&ahead, store);
  held = test_held (store);
  for (guint i = N_AHEAD; i-- > 0;)
    {
      ebb_tensor_unref (take_back (&ahead, i));
      g_assert_cmpuint (test_get_double (store, "n-gathers"), ==,
                        i > 0 ? N_AHEAD + 1 - i : N_AHEAD);
      /* The two before the one that is gathered ahead are to be near by then. */
      g_assert_cmpuint (test_watched_store_get_n_prefetched (next), ==, i == 5 ? 2 : i == 4 ? 4
                                                                                            : 5);
      if (i == 5) /* with a sample of 16 elements or more from each rank */
        g_assert_cmpuint (test_held (store), >=, held + AHEAD_BYTES + 4 * 16 * 4);
      if (i == 4) /* what was begun for number 3 goes with it */
        {
          g_clear_pointer (&ahead.handles[3], ebb_handle_unref);
          i = 3;
        }
    }
  ahead_clear (&ahead);
  return ebb_process_group_barrier (group, error);
}

static void
a_gather_is_begun_ahead (void)
{
  test_ranks_run (4, gather_ahead, NULL);
}

/* -- what else lives on one rank alone ----------------------------------------------------------------------------- */

/* The second time a tensor is asked for, after a few others, all ranks gather it, though one has it still. */
static gboolean
keep_a_tensor (EbbProcessGroup *group,
               gpointer user_data,
               GError **error)
{
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, TEST_BEHIND_NOTHING);
  g_autoptr (EbbTensor) kept = NULL;
  Ahead ahead = { NULL };

  put_in_one_call (&ahead, store);
  for (guint pass = 0; pass < 2; pass++)
    for (guint i = N_AHEAD; i-- > 0;)
      {
        g_autoptr (EbbTensor) back = take_back (&ahead, i);
        g_autoptr (EbbTensor) again = take_back (&ahead, i);

        if (i == 2 && kept == NULL && ebb_process_group_get_rank (group) == 1)
          kept = g_steal_pointer (&back);
        if (!ebb_process_group_barrier (group, error))
          return FALSE;
      }
  g_assert_cmpuint (test_get_double (store, "n-gathers"), ==, 2 * N_AHEAD);
  ahead_clear (&ahead);
  return ebb_process_group_barrier (group, error);
}

static void
a_rank_may_keep_a_tensor (void)
{
  test_ranks_run (2, keep_a_tensor, NULL);
}

/* Of a forward for validation, say, and of the same input. */
static gboolean
keep_a_graph (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  const gboolean keeps = ebb_process_group_get_rank (group) == 1;
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, GPOINTER_TO_UINT (user_data));
  g_autoptr (EbbCheckpointOptions) options = test_partition_options_new (store);
  g_autoptr (EbbModule) model = test_partition_model_new (options);
  g_autoptr (EbbModule) plain = test_partition_model_new (NULL);
  g_autoptr (EbbTensor) input = test_partition_input (31);
  g_autoptr (EbbTensor) kept = NULL;

  for (guint step = 1; step <= 3; step++)
    {
      g_autoptr (EbbTensor) other = test_partition_forward (model, input, error);
      g_autoptr (EbbTensor) loss = NULL;

      if (keeps && kept == NULL)
        kept = g_steal_pointer (&other);
      g_clear_pointer (&other, ebb_tensor_unref);
      loss = test_partition_forward (model, input, error);
      if (loss == NULL || !ebb_tensor_backward (loss, error) || !ebb_process_group_barrier (group, error))
        return FALSE;
      train (plain);
      test_partition_assert_same_grads (model, plain);
      g_assert_cmpuint (test_get_double (store, "n-gathers"), ==,
                        step * TEST_PARTITION_BLOCKS);
    }
  return TRUE;
}

static void
a_rank_may_keep_a_graph (void)
{
  test_ranks_run (4, keep_a_graph, GUINT_TO_POINTER (TEST_BEHIND_NOTHING));
  test_ranks_run (4, keep_a_graph, GUINT_TO_POINTER (TEST_BEHIND_HOST));
}

/* -- what is left out ---------------------------------------------------------------------------------------------- */

static gboolean
leaves_large (EbbTensor *tensor,
              const char *op,
              gpointer user_data,
              GError **error)
{
  return ebb_tensor_get_n_elements (tensor) < 100;
}

static gboolean
filter_on_rank (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  g_autoptr (EbbSavedTensorHooks) store = test_partitioned_store_new (group, TEST_BEHIND_NOTHING);
  g_autoptr (EbbTensor) large = test_randn (1, 200, -1);
  g_autoptr (EbbTensor) small = test_randn (1, 90, -1);
  g_autoptr (EbbHandle) a = NULL;
  g_autoptr (EbbHandle) b = NULL;
  g_autoptr (EbbTensor) back = NULL;

  ebb_activation_store_set_filter (EBB_ACTIVATION_STORE (store), leaves_large, NULL, NULL);
  a = test_pack (store, large);
  b = test_pack (store, small);
  g_assert_cmpuint (test_get_double (store, "n-partitioned"), ==, 1);
  back = test_unpack (store, a);
  g_assert_true (back == large);
  return TRUE;
}

static void
a_filter_leaves_tensors_out (void)
{
  test_ranks_run (2, filter_on_rank, NULL);
}

/* One rank alone has too little room: it puts its pieces elsewhere, and nobody else notices. */
static gboolean
spill_on_rank (EbbProcessGroup *group,
               gpointer user_data,
               GError **error)
{
  const guint rank = ebb_process_group_get_rank (group);
  const gboolean on_next = GPOINTER_TO_INT (user_data);
  g_autoptr (EbbSavedTensorHooks) disk = test_disk_store_new (g_get_tmp_dir ());
  g_autoptr (EbbSavedTensorHooks) fallback = ebb_keep_store_new ();
  g_autoptr (EbbSavedTensorHooks) store =
      ebb_partitioned_store_new (group, EBB_ACTIVATION_STORE (disk), error);
  g_autoptr (EbbCheckpointOptions) options = test_partition_options_new (store);
  g_autoptr (EbbModule) model = test_partition_model_new (options);
  g_autoptr (EbbModule) plain = test_partition_model_new (NULL);

  g_object_set (store, "least-size", (guint64) 1, NULL);
  if (rank == 1)
    g_object_set (disk, "byte-limit", (guint64) 8192, NULL);
  ebb_activation_store_set_fallback (EBB_ACTIVATION_STORE (on_next ? disk : store), EBB_ACTIVATION_STORE (fallback),
                                     error);
  train (model);
  train (plain);
  test_partition_assert_same_grads (model, plain);
  g_assert_cmpuint (ebb_activation_store_get_bytes_spilled (EBB_ACTIVATION_STORE (on_next ? disk : store)) > 0, ==,
                    rank == 1);
  g_assert_cmpuint (test_get_double (store, "n-gathers"), ==, TEST_PARTITION_BLOCKS);
  return TRUE;
}

static void
pieces_go_to_a_fallback (void)
{
  test_ranks_run (2, spill_on_rank, GINT_TO_POINTER (FALSE));
  test_ranks_run (2, spill_on_rank, GINT_TO_POINTER (TRUE));
}

/* -- main ---------------------------------------------------------------------------------------------------------- */

static void
add_cases (void)
{
  static const guint sizes[] = { 1, 2, 4 };
  static Case cases[G_N_ELEMENTS (sizes)][TEST_N_BEHIND];

  for (guint i = 0; i < G_N_ELEMENTS (sizes); i++)
    for (TestBehind behind = 0; behind < TEST_N_BEHIND; behind++)
      {
        g_autofree char *tail = g_strdup_printf ("%u-ranks/%s", sizes[i], test_behind_names[behind]);
        g_autofree char *tensors = g_strconcat ("/partitioned/gives-back-any-tensor/", tail, NULL);
        g_autofree char *gradients = g_strconcat ("/partitioned/gradients-are-bitwise-equal/", tail, NULL);

        cases[i][behind] = (Case){ sizes[i], behind };
        g_test_add_data_func (tensors, &cases[i][behind], gives_back_any_tensor);
        g_test_add_data_func (gradients, &cases[i][behind], gradients_are_bitwise_equal);
      }
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_get_tmp_dir (); /* made once, before there are threads */
  add_cases ();
  g_test_add_func ("/partitioned/counters-tell-of-pieces", counters_tell_of_pieces);
  g_test_add_func ("/partitioned/cuts-floats-that-get-smaller", cuts_floats_that_get_smaller);
  g_test_add_func ("/partitioned/a-second-backward-gathers-again", a_second_backward_gathers_again);
  g_test_add_func ("/partitioned/nested-checkpoints-keep-the-outer-input", nested_checkpoints_keep_the_outer_input);
  g_test_add_func ("/partitioned/stores-what-every-op-saves", stores_what_every_op_saves);
  g_test_add_func ("/partitioned/four-ranks-keep-a-quarter", four_ranks_keep_a_quarter);
  g_test_add_func ("/partitioned/nothing-whole-stays-on-the-device", nothing_whole_stays_on_the_device);
  g_test_add_func ("/partitioned/a-gather-is-begun-ahead", a_gather_is_begun_ahead);
  g_test_add_func ("/partitioned/a-rank-may-keep-a-tensor", a_rank_may_keep_a_tensor);
  g_test_add_func ("/partitioned/a-rank-may-keep-a-graph", a_rank_may_keep_a_graph);
  g_test_add_func ("/partitioned/a-filter-leaves-tensors-out", a_filter_leaves_tensors_out);
  g_test_add_func ("/partitioned/pieces-go-to-a-fallback", pieces_go_to_a_fallback);
  return g_test_run ();
}
