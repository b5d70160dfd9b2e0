/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* Which tensors ranks save for backward between their collectives, and which of these a recompute makes again. */

enum
{
  BATCH = 2,
  TIME = 8,
  WIDTH = 16,
  HIDDEN = 24 /* of one rank */
};

#define WHOLE_BYTES (BATCH * TIME * WIDTH * 4)
#define HIDDEN_BYTES (BATCH * TIME * HIDDEN * 4)
#define WEIGHT_BYTES (2 * HIDDEN * WIDTH * 4) /* not registered as parameters */

static guint64
get_kept (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION);
}

/* -- a layer ------------------------------------------------------------------------------------------------------- */

typedef enum
{
  NORM = 1,     /* of the operand first */
  SEQUENCE = 2, /* divided outside; else whole */
  VIEWED = 4,   /* what goes into the product is seen through a view, so that it is kept as it is */
  AUTOCAST = 8,
  READ = 16 /* the result by an op that needs it for backward */
} Way;

typedef struct
{
  EbbProcessGroup *group;
  Way way;
} Layer;

/* Of x, norm's weight and bias, and this rank's parts of A and B. */
static EbbTensor *
run_layer (Layer *self,
           EbbTensor **leaves,
           GError **error)
{
  const gint64 shape[] = { BATCH, TIME, WIDTH };
  g_autoptr (EbbTensor) y = self->way & NORM ? ebb_layer_norm (leaves[0], leaves[1], leaves[2], 1e-5, error)
                                             : ebb_tensor_ref (leaves[0]);
  g_autoptr (EbbTensor) in = self->way & SEQUENCE ? ebb_parallel_gather (y, 1, TRUE, self->group, error)
                                                  : ebb_parallel_copy (y, self->group, error);
  g_autoptr (EbbTensor) seen = self->way & VIEWED ? ebb_reshape (in, shape, 3, error) : in ? ebb_tensor_ref (in)
                                                                                           : NULL;
  g_autoptr (EbbTensor) hidden = ebb_linear (seen, leaves[3], NULL, error);
  g_autoptr (EbbTensor) active = ebb_gelu (hidden, EBB_GELU_TANH, error);
  g_autoptr (EbbTensor) summand = ebb_linear (active, leaves[4], NULL, error);
  g_autoptr (EbbTensor) sum = self->way & SEQUENCE ? ebb_parallel_reduce_scatter (summand, 1, self->group, error)
                                                   : ebb_parallel_reduce (summand, self->group, error);

  return self->way & READ ? ebb_sin (sum, error) : g_steal_pointer (&sum);
}

static void
make_leaves (EbbTensor **leaves,
             EbbProcessGroup *group,
             gboolean by_sequence)
{
  const guint size = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  const guint64 own = 10 * (rank + 1);
  g_autoptr (EbbTensor) x = test_randn (1, BATCH, TIME, WIDTH, -1);

  leaves[0] = by_sequence ? ebb_parallel_scatter (x, 1, group, NULL) : ebb_tensor_ref (x);
  if (size == 1)
    g_assert_true (leaves[0] == x);
  leaves[1] = test_randn (2, WIDTH, -1);
  leaves[2] = test_randn (3, WIDTH, -1);
  leaves[3] = test_randn (own + 4, HIDDEN, WIDTH, -1);
  leaves[4] = test_randn (own + 5, WIDTH, HIDDEN, -1);
  for (guint i = 0; i < 5; i++)
    ebb_tensor_set_requires_grad (leaves[i], TRUE, NULL);
}

static void
drop_leaves (EbbTensor **leaves)
{
  for (guint i = 0; i < 5; i++)
    g_clear_pointer (&leaves[i], ebb_tensor_unref);
}

static EbbArgs *
run_checkpointed (EbbArgs *args,
                  gpointer user_data,
                  GError **error)
{
  EbbTensor *leaves[5];
  g_autoptr (EbbTensor) y = NULL;

  for (guint i = 0; i < 5; i++)
    leaves[i] = ebb_args_get_tensor (args, i);
  y = run_layer (user_data, leaves, error);
  drop_leaves (leaves);
  return y != NULL ? ebb_args_new_for_tensor (y) : NULL;
}

static EbbTensor *
call (Layer *layer,
      EbbTensor **leaves,
      EbbCheckpointOptions *options,
      GError **error)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;
  EbbTensor *y = NULL;

  ebb_push_autocast ((layer->way & AUTOCAST) != 0, EBB_DTYPE_BF16);
  for (guint i = 0; i < 5; i++)
    ebb_args_add_tensor (args, NULL, leaves[i]);
  if (options == NULL)
    y = run_layer (layer, leaves, error);
  else
    result = ebb_checkpoint (run_checkpointed, layer, NULL, args, options, error);
  ebb_pop_autocast ();
  return result != NULL ? ebb_args_get_tensor (result, 0) : y;
}

typedef struct
{
  EbbTensor *grads[5];
  guint64 kept;
  guint64 forward[EBB_N_COLLECTIVES], backward[EBB_N_COLLECTIVES];
} Outcome;

static void
outcome_clear (Outcome *self)
{
  drop_leaves (self->grads);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Outcome, outcome_clear)

static void
count (EbbProcessGroup *group,
       guint64 *calls)
{
  for (guint i = 0; i < EBB_N_COLLECTIVES; i++)
    calls[i] = ebb_process_group_get_n_calls (group, (EbbCollective) i);
  ebb_process_group_reset_counters (group);
}

static gboolean
train (EbbProcessGroup *group,
       Way way,
       EbbCheckpointOptions *options,
       Outcome *outcome,
       GError **error)
{
  Layer layer = { group, way };
  EbbTensor *leaves[5];
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) factors = NULL;
  const guint64 before = get_kept ();
  gboolean done;

  make_leaves (leaves, group, way & SEQUENCE);
  count (group, outcome->forward); /* of the leaves */
  y = call (&layer, leaves, options, error);
  count (group, outcome->forward);
  if (y == NULL)
    return FALSE;
  outcome->kept = get_kept () - before;
  factors = test_randn (9, BATCH, (int) ebb_tensor_get_shape (y, NULL)[1], WIDTH, -1);
  done = ebb_backward (&y, 1, &factors, 1, NULL, 0, FALSE, error);
  count (group, outcome->backward);
  for (guint i = 0; i < 5; i++)
    outcome->grads[i] = ebb_tensor_get_grad (leaves[i]);
  drop_leaves (leaves);
  g_clear_pointer (&y, ebb_tensor_unref);
  g_assert_cmpuint (get_kept (), ==, before);
  return done;
}

static void
assert_same_grads (const Outcome *a,
                   const Outcome *b)
{
  for (guint i = 0; i < 5; i++)
    {
      g_assert_true ((a->grads[i] == NULL) == (b->grads[i] == NULL));
      if (a->grads[i] != NULL)
        g_assert_true (ebb_tensor_equal (a->grads[i], b->grads[i]));
    }
}

static void
assert_calls (const guint64 *calls,
              guint all_reduces,
              guint all_gathers,
              guint reduce_scatters)
{
  g_assert_cmpuint (calls[EBB_COLLECTIVE_ALL_REDUCE], ==, all_reduces);
  g_assert_cmpuint (calls[EBB_COLLECTIVE_ALL_GATHER], ==, all_gathers);
  g_assert_cmpuint (calls[EBB_COLLECTIVE_REDUCE_SCATTER], ==, reduce_scatters);
}

/* -- kept ---------------------------------------------------------------------------------------------------------- */

/* A part of the whole in place of the whole. */
static gboolean
keep_part (EbbProcessGroup *group,
           gpointer user_data,
           GError **error)
{
  const Way way = SEQUENCE | (Way) GPOINTER_TO_INT (user_data);
  const guint size = ebb_process_group_get_size (group);
  g_auto (Outcome) part = { 0 };
  g_auto (Outcome) whole = { 0 };

  if (!train (group, way, NULL, &part, error) || !train (group, way | VIEWED, NULL, &whole, error))
    return FALSE;
  assert_same_grads (&part, &whole);
  assert_calls (part.forward, 0, 1, 1);
  assert_calls (whole.forward, 0, 1, 1);
  assert_calls (part.backward, 0, 2, 1); /* that of the result's gradient, and the operand again */
  assert_calls (whole.backward, 0, 1, 1);
  if (way & AUTOCAST)
    {
      /* The gathered operand in half precision, which is the size of two ranks' part of the full one. */
      g_assert_cmpuint (whole.kept - part.kept, ==, (gint64) WHOLE_BYTES / 2 - (gint64) WHOLE_BYTES / size);
      return TRUE;
    }
  g_assert_cmpuint (part.kept, ==, WHOLE_BYTES / size + HIDDEN_BYTES + WEIGHT_BYTES);
  g_assert_cmpuint (whole.kept, ==, WHOLE_BYTES + HIDDEN_BYTES + WEIGHT_BYTES);
  return TRUE;
}

static void
a_product_of_what_was_gathered_keeps_this_ranks_part (void)
{
  test_ranks_run (2, keep_part, NULL);
  test_ranks_run (4, keep_part, NULL);
  test_ranks_run (2, keep_part, GINT_TO_POINTER (AUTOCAST));
}

/* The norm's result is rematerialized from its operand, and gathered again. */
static gboolean
keep_operand_of_norm (EbbProcessGroup *group,
                      gpointer user_data,
                      GError **error)
{
  const Way way = NORM | (Way) GPOINTER_TO_INT (user_data);
  const guint size = ebb_process_group_get_size (group);
  const guint64 rows = way & SEQUENCE ? BATCH * TIME / size : BATCH * TIME;
  g_auto (Outcome) rematerialized = { 0 };
  g_auto (Outcome) whole = { 0 };

  if (!train (group, way, NULL, &rematerialized, error) || !train (group, way | VIEWED, NULL, &whole, error))
    return FALSE;
  assert_same_grads (&rematerialized, &whole);
  /* With two statistics for each row. */
  g_assert_cmpuint (rematerialized.kept, ==, rows * WIDTH * 4 + 8 * rows + 2 * WIDTH * 4 + HIDDEN_BYTES + WEIGHT_BYTES);
  g_assert_cmpuint (whole.kept - rematerialized.kept, ==,
                    WHOLE_BYTES - WIDTH * 4); /* the shift is needed to rematerialize it */
  if (way & SEQUENCE)
    assert_calls (rematerialized.backward, 0, 2, 1);
  else
    assert_calls (rematerialized.backward, 1, 0, 0);
  return TRUE;
}

static void
a_norm_before_a_copy_or_gather_is_rematerialized (void)
{
  test_ranks_run (2, keep_operand_of_norm, NULL);
  test_ranks_run (4, keep_operand_of_norm, GINT_TO_POINTER (SEQUENCE));
}

/* A saved shard may lie anywhere, in half precision too; its result is gathered the same. */
static gboolean
keep_elsewhere (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  for (Way way = 0; way <= (NORM | SEQUENCE | VIEWED | AUTOCAST); way++)
    {
      g_autoptr (EbbSavedTensorHooks) store = ebb_host_store_new ();
      g_auto (Outcome) plain = { 0 };
      g_auto (Outcome) stored = { 0 };

      g_object_set (store, "least-size", (guint64) 0, NULL);
      if (!train (group, way, NULL, &plain, error))
        return FALSE;
      ebb_push_saved_tensor_hooks (store);
      if (!train (group, way, NULL, &stored, error))
        return FALSE;
      ebb_pop_saved_tensor_hooks ();
      assert_same_grads (&plain, &stored);
      g_assert_cmpmem (plain.backward, sizeof plain.backward, stored.backward, sizeof stored.backward);
    }
  return TRUE;
}

static void
a_part_may_be_kept_by_a_store (void)
{
  test_ranks_run (2, keep_elsewhere, NULL);
}

/* -- recomputed ---------------------------------------------------------------------------------------------------- */

static gboolean
checkpoint_layer (EbbProcessGroup *group,
                  gpointer user_data,
                  GError **error)
{
  const Way way = (Way) GPOINTER_TO_INT (user_data);
  g_autoptr (EbbCheckpointOptions) early = ebb_checkpoint_options_new ();
  g_autoptr (EbbCheckpointOptions) late = ebb_checkpoint_options_new ();
  g_auto (Outcome) plain = { 0 };
  g_auto (Outcome) with_early_stop = { 0 };
  g_auto (Outcome) without = { 0 };

  g_object_set (late, "early-stop", FALSE, NULL);
  if (!train (group, way, NULL, &plain, error) || !train (group, way, early, &with_early_stop, error)
      || !train (group, way, late, &without, error))
    return FALSE;
  assert_same_grads (&plain, &with_early_stop);
  assert_same_grads (&plain, &without);
  if (!(way & AUTOCAST)) /* arguments are kept in full precision */
    g_assert_cmpuint (with_early_stop.kept, <, plain.kept);
  if (way & SEQUENCE)
    {
      const guint n_gathers = way & VIEWED ? 2 : 3;

      /* The recompute gathers; it ends before the last op, unless it is to do all. */
      assert_calls (with_early_stop.forward, 0, 1, 1);
      assert_calls (with_early_stop.backward, 0, n_gathers, 1);
      assert_calls (without.backward, 0, n_gathers, 2);
    }
  else
    {
      assert_calls (with_early_stop.forward, 1, 0, 0);
      assert_calls (with_early_stop.backward, 1, 0, 0);
      assert_calls (without.backward, 2, 0, 0);
    }
  return TRUE;
}

static void
a_recompute_that_has_all_it_needs_calls_nothing (void)
{
  for (guint n_ranks = 2; n_ranks <= 4; n_ranks *= 2)
    for (Way way = 0; way <= (NORM | SEQUENCE | VIEWED | AUTOCAST); way++)
      test_ranks_run (n_ranks, checkpoint_layer, GINT_TO_POINTER (way));
}

/* A policy keeps the results of collectives as those of other ops, and then they aren't called again. */
static gboolean
keep_by_policy (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  static const char *const ops[] = { "parallel_gather", "parallel_reduce", "parallel_reduce_scatter", NULL };
  const Way way = READ | (Way) GPOINTER_TO_INT (user_data);
  g_autoptr (EbbCheckpointOptions) nothing = ebb_checkpoint_options_new ();
  g_autoptr (EbbCheckpointOptions) collectives = ebb_checkpoint_options_new ();
  g_auto (Outcome) plain = { 0 };
  g_auto (Outcome) recomputed = { 0 };
  g_auto (Outcome) kept = { 0 };

  if (!ebb_checkpoint_options_set_policy_save_ops (collectives, ops, error)
      || !train (group, way, NULL, &plain, error) || !train (group, way, nothing, &recomputed, error)
      || !train (group, way, collectives, &kept, error))
    return FALSE;
  assert_same_grads (&plain, &recomputed);
  assert_same_grads (&plain, &kept);
  if (way & SEQUENCE)
    {
      assert_calls (recomputed.backward, 0, 3, 2);
      assert_calls (kept.backward, 0, 2, 1);
    }
  else
    {
      assert_calls (recomputed.backward, 2, 0, 0);
      assert_calls (kept.backward, 1, 0, 0);
    }
  return TRUE;
}

static void
a_policy_spares_the_collectives_of_a_recompute (void)
{
  test_ranks_run (2, keep_by_policy, GINT_TO_POINTER (NORM));
  test_ranks_run (2, keep_by_policy, GINT_TO_POINTER (NORM | SEQUENCE));
  test_ranks_run (2, keep_by_policy, GINT_TO_POINTER (SEQUENCE | AUTOCAST));
}

/* -- graphs -------------------------------------------------------------------------------------------------------- */

/* A rematerialization holds the group, its operand and nothing else; the last holder frees them. */
static gboolean
drop (EbbProcessGroup *group,
      gpointer user_data,
      GError **error)
{
  const guint references = G_OBJECT (group)->ref_count;
  const guint64 before = get_kept ();

  for (guint which = 0; which < 6; which++)
    {
      Layer layer = { group, NORM | SEQUENCE };
      g_autoptr (EbbCheckpointOptions) options = which % 2 ? ebb_checkpoint_options_new () : NULL;
      g_autoptr (EbbTensor) factors = NULL;
      g_autoptr (EbbTensor) y = NULL;
      EbbTensor *leaves[5];

      make_leaves (leaves, group, TRUE);
      y = call (&layer, leaves, options, error);
      drop_leaves (leaves);
      if (y == NULL)
        return FALSE;
      factors = test_randn (9, BATCH, (int) ebb_tensor_get_shape (y, NULL)[1], WIDTH, -1);
      for (guint pass = 0; pass < which / 2; pass++)
        if (!ebb_backward (&y, 1, &factors, 1, NULL, 0, pass == 0, error))
          return FALSE;
    }
  g_assert_cmpuint (get_kept (), ==, before);
  g_assert_cmpuint (G_OBJECT (group)->ref_count, ==, references);
  return TRUE;
}

static void
graphs_that_are_dropped_or_used_twice_leave_nothing (void)
{
  test_ranks_run (2, drop, NULL);
}

/* Changing the part in place afterwards is an error, as with any tensor that backward needs. */
static gboolean
change_part (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  g_autoptr (EbbTensor) x = test_randn (1, 4, WIDTH, -1);
  g_autoptr (EbbTensor) weight = test_randn (2, 3, WIDTH, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) in = NULL;
  g_autoptr (EbbTensor) out = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (GError) failure = NULL;

  ebb_tensor_set_requires_grad (weight, TRUE, NULL);
  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  y = ebb_mul_scalar (x, 2, error);
  in = ebb_parallel_gather (y, 0, TRUE, group, error);
  out = ebb_linear (in, weight, NULL, error);
  loss = ebb_sum (out, NULL, 0, FALSE, error);
  ebb_push_grad_enabled (FALSE);
  g_assert_true (ebb_tensor_fill (y, 0, error));
  ebb_pop_grad_enabled ();
  g_assert_false (ebb_tensor_backward (loss, &failure));
  test_assert_error (failure, EBB_ERROR_VERSION, "linear", "changed in place");
  return TRUE;
}

static void
a_part_that_is_changed_in_place_is_an_error (void)
{
  test_ranks_run (2, change_part, NULL);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
#define TEST(name, func) g_test_add_func ("/parallel-saved-tensors/" name, func)
  TEST ("a-product-of-what-was-gathered-keeps-this-ranks-part", a_product_of_what_was_gathered_keeps_this_ranks_part);
  TEST ("a-norm-before-a-copy-or-gather-is-rematerialized", a_norm_before_a_copy_or_gather_is_rematerialized);
  TEST ("a-part-may-be-kept-by-a-store", a_part_may_be_kept_by_a_store);
  TEST ("a-recompute-that-has-all-it-needs-calls-nothing", a_recompute_that_has_all_it_needs_calls_nothing);
  TEST ("a-policy-spares-the-collectives-of-a-recompute", a_policy_spares_the_collectives_of_a_recompute);
  TEST ("graphs-that-are-dropped-or-used-twice-leave-nothing", graphs_that_are_dropped_or_used_twice_leave_nothing);
  TEST ("a-part-that-is-changed-in-place-is-an-error", a_part_that_is_changed_in_place_is_an_error);
  return g_test_run ();
}
