/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "dist/tensor-parallel/ops-private.h"
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"
#include "tensor/autograd/autograd-private.h"

#include <string.h>

/* The private ops of parallel layers. */

/* -- parts --------------------------------------------------------------------------------------------------------- */

static void
parts_follow_each_other_and_differ_by_one_at_most (void)
{
  for (gint64 n = 0; n < 40; n++)
    for (guint n_parts = 1; n_parts <= 9; n_parts++)
      {
        gint64 next = 0, last = n;

        for (guint i = 0; i < n_parts; i++)
          {
            gint64 first, count;

            ebb_parallel_get_part (n, n_parts, i, &first, &count);
            g_assert_cmpint (first, ==, next);
            g_assert_cmpint (count, <=, last);
            g_assert_cmpint (count, >=, n / n_parts);
            g_assert_cmpint (count, <=, n / n_parts + 1);
            next += count;
            last = count;
          }
        g_assert_cmpint (next, ==, n);
      }
}

/* -- which tensors are parts --------------------------------------------------------------------------------------- */

static gboolean
is_local_shard (EbbTensor *tensor)
{
  g_assert_nonnull (tensor);
  return tensor->is_local_shard;
}

/* Checks whether results of @x are local shards, as @expected says; a result of full tensors is none. */
static void
assert_all (EbbTensor *x,
            gboolean expected,
            GError **error)
{
  const gint64 shape[] = { -1 };
  g_autoptr (EbbTensor) whole = test_randn (8, (int) x->view.shape[1], -1);
  g_autoptr (EbbTensor) sum = ebb_add (whole, x, error);
  g_autoptr (EbbTensor) scaled = ebb_mul_scalar (x, 2, error);
  g_autoptr (EbbTensor) view = ebb_reshape (x, shape, 1, error);
  g_autoptr (EbbTensor) turned = ebb_transpose (x, 0, 1, error);
  g_autoptr (EbbTensor) dense = ebb_contiguous (turned, error);
  g_autoptr (EbbTensor) cast = ebb_cast (x, EBB_DTYPE_BF16, error);
  g_autoptr (EbbTensor) mean = ebb_mean (x, NULL, 0, FALSE, error);
  g_autoptr (EbbTensor) detached = ebb_tensor_detach (x);
  g_autoptr (EbbTensor) copied = ebb_copy (x, error);
  g_autoptr (EbbTensor) row = ebb_narrow (x, 0, 0, 1, error);
  g_autoptr (EbbTensor) apart = ebb_add_scalar (whole, 1, error);
  EbbTensor *const all[] = { sum, scaled, view, turned, dense, cast, mean, detached, copied, row };

  for (guint i = 0; i < G_N_ELEMENTS (all); i++)
    g_assert_true (is_local_shard (all[i]) == expected);
  g_assert_false (is_local_shard (apart));
}

static gboolean
mark_parts (EbbProcessGroup *group,
            gpointer user_data,
            GError **error)
{
  g_autoptr (EbbTensor) x = test_randn (1, 4, 4, -1);
  g_autoptr (EbbTensor) copy = ebb_parallel_copy (x, group, error);
  g_autoptr (EbbTensor) part = ebb_parallel_scatter (x, 0, group, error);
  g_autoptr (EbbTensor) part_copy = ebb_parallel_copy (part, group, error);
  g_autoptr (EbbTensor) whole = ebb_parallel_gather (part, 0, FALSE, group, error);
  g_autoptr (EbbTensor) again = ebb_parallel_gather (part, 0, TRUE, group, error);
  g_autoptr (EbbTensor) scattered = ebb_parallel_reduce_scatter (x, 1, group, error);
  g_autoptr (EbbTensor) sum = ebb_parallel_reduce (part, group, error);
  EbbTensor *const both[] = { x, part };
  EbbTensor *copies[2];

  assert_all (x, FALSE, error);
  assert_all (copy, FALSE, error);
  assert_all (part, TRUE, error);
  assert_all (part_copy, TRUE, error);
  assert_all (whole, FALSE, error);
  assert_all (again, FALSE, error);
  assert_all (scattered, TRUE, error);
  assert_all (sum, FALSE, error);
  g_assert_true (ebb_parallel_copy_all ((EbbTensor **) both, 2, copies, group, error));
  g_assert_false (is_local_shard (copies[0]));
  g_assert_true (is_local_shard (copies[1]));
  ebb_tensor_unref (copies[0]);
  ebb_tensor_unref (copies[1]);
  return TRUE;
}

static void
parts_are_known_wherever_they_go (void)
{
  test_ranks_run (2, mark_parts, NULL);
}

static gboolean
use_part_of_weight (EbbProcessGroup *group,
                    gpointer user_data,
                    GError **error)
{
  g_autoptr (EbbTensor) x = test_randn (1, 4, 8, -1);
  g_autoptr (EbbModule) linear = ebb_linear_new (8, 6, TRUE, error);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (linear, "weight");

  weight->is_local_shard = TRUE;
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) y = NULL;

      /* Its cast doesn't know, but it is not the operand. */
      ebb_push_autocast (i == 1, EBB_DTYPE_BF16);
      y = ebb_module_call1 (linear, x, error);
      ebb_pop_autocast ();
      g_assert_true (is_local_shard (y));
    }
  return TRUE;
}

static void
what_a_part_of_a_weight_gives_is_a_part (void)
{
  test_ranks_run (1, use_part_of_weight, NULL);
}

static EbbArgs *
scatter_and_square (EbbArgs *args,
                    gpointer user_data,
                    GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) part = ebb_parallel_reduce_scatter (x, 0, user_data, error);
  g_autoptr (EbbTensor) sine = ebb_sin (part, error);
  g_autoptr (EbbTensor) square = ebb_mul (sine, sine, error);

  g_assert_true (is_local_shard (part) && is_local_shard (sine) && is_local_shard (square));
  return ebb_args_new_for_tensor (square);
}

/* Also of results that a policy has kept, which are other tensors in the recompute. */
static gboolean
recompute_parts (EbbProcessGroup *group,
                 gpointer user_data,
                 GError **error)
{
  static const char *const ops[] = { "parallel_reduce_scatter", NULL };

  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
      g_autoptr (EbbTensor) x = test_randn (1, 4, 8, -1);
      g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
      g_autoptr (EbbArgs) result = NULL;
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;

      if (i == 1)
        ebb_checkpoint_options_set_policy_save_ops (options, ops, error);
      ebb_tensor_set_requires_grad (x, TRUE, error);
      ebb_args_add_tensor (args, NULL, x);
      result = ebb_checkpoint (scatter_and_square, group, NULL, args, options, error);
      if (result == NULL)
        return FALSE;
      y = ebb_args_get_tensor (result, 0);
      g_assert_true (is_local_shard (y));
      loss = ebb_sum (y, NULL, 0, FALSE, error);
      if (!ebb_tensor_backward (loss, error))
        return FALSE;
    }
  return TRUE;
}

static void
parts_are_parts_in_a_recompute (void)
{
  test_ranks_run (2, recompute_parts, NULL);
}

/* -- several tensors ----------------------------------------------------------------------------------------------- */

#define N_TENSORS 7

static gboolean
copy_many (EbbProcessGroup *group,
           gpointer user_data,
           GError **error)
{
  const guint size = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);

  /* One is left out, one gets no gradient, one wants none. */
  for (guint n = 1; n <= N_TENSORS; n++)
    {
      EbbTensor *leaves[N_TENSORS], *copies[N_TENSORS];
      g_autoptr (EbbTensor) loss = test_randn (9, 1, -1);

      for (guint i = 0; i < n; i++)
        {
          leaves[i] = i == 3 ? NULL : test_randn (i, (int) i + 2, -1);
          if (i != 3 && i != 5)
            ebb_tensor_set_requires_grad (leaves[i], TRUE, error);
        }
      if (!ebb_parallel_copy_all (leaves, n, copies, group, error))
        return FALSE;
      for (guint i = 0; i < n; i++)
        {
          g_autoptr (EbbTensor) scaled = NULL;
          g_autoptr (EbbTensor) sum = NULL;
          EbbTensor *next;

          g_assert_true ((copies[i] == NULL) == (i == 3));
          if (i == 3)
            continue;
          g_assert_true (ebb_tensor_equal (copies[i], leaves[i]));
          if (i == 1)
            continue;
          scaled = ebb_mul_scalar (copies[i], rank + 1 + i, error);
          sum = ebb_sum (scaled, NULL, 0, FALSE, error);
          next = ebb_add (loss, sum, error);
          ebb_tensor_unref (loss);
          loss = next;
        }
      ebb_process_group_reset_counters (group);
      if (!ebb_tensor_backward (loss, error))
        return FALSE;
      g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_REDUCE), ==,
                        size == 1 ? 0 : (n - (n > 3) + EBB_OP_MAX_OUTPUTS - 1) / EBB_OP_MAX_OUTPUTS);
      for (guint i = 0; i < n; i++)
        {
          g_autoptr (EbbTensor) grad = leaves[i] != NULL ? ebb_tensor_get_grad (leaves[i]) : NULL;

          g_assert_true ((grad == NULL) == (i == 1 || i == 3 || i == 5));
          for (gsize k = 0; grad != NULL && k < i + 2; k++)
            g_assert_cmpfloat (test_at (grad, k), ==, (float) (size * (size + 1) / 2 + size * i));
          g_clear_pointer (&leaves[i], ebb_tensor_unref);
          g_clear_pointer (&copies[i], ebb_tensor_unref);
        }
    }
  return TRUE;
}

static void
gradients_of_several_copies_are_summed_in_one_call (void)
{
  for (guint n_ranks = 1; n_ranks <= 4; n_ranks *= 2)
    test_ranks_run (n_ranks, copy_many, NULL);
}

/* -- known sizes --------------------------------------------------------------------------------------------------- */

static gboolean
gather_sized (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  const guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 7, -1);
  g_autoptr (EbbTensor) part = ebb_parallel_scatter (x, 1, group, error);
  g_autoptr (EbbTensor) again = ebb_parallel_gather_sized (part, -1, 7, TRUE, group, error);
  g_autoptr (GError) failure = NULL;

  g_assert_true (ebb_tensor_equal (again, x));
  g_assert_null (ebb_parallel_gather_sized (part, 1, 11, TRUE, group, &failure));
  test_assert_error (failure, EBB_ERROR_SHAPE, "parallel_gather", "of 2", "11 elements",
                     rank == 0 ? "[3, 4]" : "[3, 3]", rank == 0 ? "have 6" : "have 5");
  return TRUE;
}

static void
a_known_size_is_checked_against_the_part (void)
{
  test_ranks_run (2, gather_sized, NULL);
}

/* -- in place ------------------------------------------------------------------------------------------------------ */

static gboolean
reduce_over (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  static const char *const held[] = { "by nobody else", "by a reference", "by a view", "for backward", "as a leaf" };

  for (guint i = 0; i < G_N_ELEMENTS (held); i++)
    {
      g_autoptr (EbbTensor) leaf = test_randn (1, 3, 4, -1);
      g_autoptr (EbbTensor) sine = NULL;
      g_autoptr (EbbTensor) x = NULL;
      g_autoptr (EbbTensor) holder = NULL;
      g_autoptr (EbbTensor) before = NULL;
      g_autoptr (EbbTensor) after = NULL;
      g_autoptr (EbbTensor) sum = NULL;
      g_autoptr (EbbTensor) expected = NULL;
      g_autoptr (EbbTensor) dx = NULL;
      const void *data;

      ebb_tensor_set_requires_grad (leaf, TRUE, error);
      sine = ebb_sin (leaf, error);
      x = i == 3 ? ebb_exp (sine, error) : i == 4 ? ebb_tensor_ref (leaf)
                                                  : ebb_neg (sine, error); /* exp keeps it */
      if (i == 1)
        holder = ebb_tensor_ref (x);
      if (i == 2)
        holder = ebb_tensor_detach (x);
      before = ebb_copy (x, error);
      data = x->view.data;
      sum = ebb_parallel_reduce_over (x, group, NULL, error);
      if (sum == NULL)
        return FALSE;
      g_assert_true ((sum->view.data == data) == (i == 0));
      expected = ebb_mul_scalar (before, ebb_process_group_get_size (group), error);
      g_assert_true (ebb_tensor_equal (sum, expected));
      g_assert_true (i == 0 || ebb_tensor_equal (x, before));
      g_assert_false (is_local_shard (sum));
      if (!ebb_backward (&sum, 1, &expected, 1, NULL, 0, FALSE, error))
        return FALSE;
      dx = ebb_tensor_get_grad (leaf);
      g_assert_nonnull (dx);
    }
  return TRUE;
}

static void
a_sum_lies_where_its_summand_was_if_nobody_else_sees_it (void)
{
  test_ranks_run (2, reduce_over, NULL);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
#define TEST(name, func) g_test_add_func ("/parallel-ops/" name, func)
  TEST ("parts-follow-each-other-and-differ-by-one-at-most", parts_follow_each_other_and_differ_by_one_at_most);
  TEST ("parts-are-known-wherever-they-go", parts_are_known_wherever_they_go);
  TEST ("what-a-part-of-a-weight-gives-is-a-part", what_a_part_of_a_weight_gives_is_a_part);
  TEST ("parts-are-parts-in-a-recompute", parts_are_parts_in_a_recompute);
  TEST ("gradients-of-several-copies-are-summed-in-one-call", gradients_of_several_copies_are_summed_in_one_call);
  TEST ("a-known-size-is-checked-against-the-part", a_known_size_is_checked_against_the_part);
  TEST ("a-sum-lies-where-its-summand-was-if-nobody-else-sees-it",
        a_sum_lies_where_its_summand_was_if_nobody_else_sees_it);
  return g_test_run ();
}
