/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

static gboolean
replicate (EbbModule *module, EbbProcessGroup *group, gboolean zeros, GError **error)
{
  g_autoptr (EbbReplicateOptions) options = ebb_replicate_options_new ();
  g_autoptr (EbbModule) same = NULL;

  if (zeros)
    g_object_set (options, "unused-parameters", EBB_UNUSED_PARAMETERS_ZERO, NULL);
  same = ebb_replicate (module, group, options, error);
  g_assert_true (same == NULL || same == module);
  return same != NULL;
}

/* -- small modules ------------------------------------------------------------------------------------------------- */

/* Two gains of 8; forward uses those that the bits of @data say. */
static EbbTensor *
use_some (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  guint bits = GPOINTER_TO_UINT (data);
  g_autoptr (EbbTensor) y = ebb_tensor_ref (x);

  for (guint i = 0; i < 2; i++)
    if (bits & (1u << i))
      {
        g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, i == 0 ? "a" : "b");
        EbbTensor *product = ebb_mul (y, gain, error);

        ebb_tensor_unref (y);
        y = product;
        if (y == NULL)
          return NULL;
      }
  return g_steal_pointer (&y);
}

static EbbModule *
two_gains_new (guint bits)
{
  EbbModule *module = test_lambda1_new (use_some, GUINT_TO_POINTER (bits));

  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) gain = test_randn (10 + i, 8, -1);

      g_assert_true (ebb_module_register_parameter (module, i == 0 ? "a" : "b", gain, NULL));
    }
  return module;
}

/* Its loss is the sum of x * a * b; x is other on each rank. */
static EbbTensor *
make_input (EbbProcessGroup *group, guint pass)
{
  return test_randn (50 + 10 * pass + ebb_process_group_get_rank (group), 8, -1);
}

static gboolean
run_pass (EbbModule *module, EbbTensor *x, GError **error)
{
  g_autoptr (EbbTensor) y = ebb_module_call1 (module, x, error);
  g_autoptr (EbbTensor) loss = ebb_sum (y, NULL, 0, FALSE, error);

  return loss != NULL && ebb_tensor_backward (loss, error);
}

static EbbTensor *
get_grad (EbbModule *module, const char *name)
{
  g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (module, name);

  return ebb_tensor_get_grad (parameter);
}

/* The mean over ranks of the gradients of "a", x * b, summed over the passes from @first to @last. */
static void
assert_mean (EbbModule *module, EbbProcessGroup *group, guint first, guint last)
{
  g_autoptr (EbbTensor) grad = get_grad (module, "a");
  g_autoptr (EbbTensor) b = ebb_module_get_parameter (module, "b");
  guint n = ebb_process_group_get_size (group);

  g_assert_nonnull (grad);
  for (gsize i = 0; i < 8; i++)
    {
      double sum = 0;

      for (guint pass = first; pass <= last; pass++)
        for (guint rank = 0; rank < n; rank++)
          {
            g_autoptr (EbbTensor) x = test_randn (50 + 10 * pass + rank, 8, -1);

            sum += (double) test_at (x, i) * (double) test_at (b, i) / n;
          }
      g_assert_cmpfloat_with_epsilon (test_at (grad, i), sum, 1e-5);
    }
}

static EbbModule *
replicated_gains_new (EbbProcessGroup *group, guint bits, gboolean zeros, GError **error)
{
  EbbModule *module = two_gains_new (bits);

  if (!replicate (module, group, zeros, error))
    g_clear_object (&module);
  return module;
}

#define RUN(module, pass)                                         \
  G_STMT_START                                                    \
  {                                                               \
    g_autoptr (EbbTensor) run_input = make_input (group, (pass)); \
                                                                  \
    if (!run_pass ((module), run_input, error))                   \
      return FALSE;                                               \
  }                                                               \
  G_STMT_END

static guint64
count_reductions (EbbProcessGroup *group)
{
  return ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_REDUCE);
}

static gboolean
accumulate_means (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = replicated_gains_new (group, 3, FALSE, error);

  if (module == NULL)
    return FALSE;
  for (guint pass = 0; pass < 3; pass++)
    {
      RUN (module, pass);
      assert_mean (module, group, 0, pass);
      g_assert_cmpuint (count_reductions (group), ==, pass + 1);
    }
  return TRUE;
}

static void
test_each_pass_adds_its_mean (void)
{
  for (guint n = 1; n <= 3; n++)
    test_ranks_run (n, accumulate_means, NULL);
}

/* Averaged, alone, alone, together. */
static gboolean
accumulate_mixed (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = replicated_gains_new (group, 3, FALSE, error);
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 0, error);

  if (optimizer == NULL)
    return FALSE;
  RUN (module, 0);
  ebb_push_gradient_sync (FALSE);
  g_assert_false (ebb_is_gradient_sync_enabled ());
  RUN (module, 1);
  RUN (module, 2);
  ebb_pop_gradient_sync ();
  g_assert_true (ebb_is_gradient_sync_enabled ());
  g_assert_cmpuint (count_reductions (group), ==, 1);
  RUN (module, 3);
  g_assert_cmpuint (count_reductions (group), ==, 2);
  assert_mean (module, group, 0, 3);

  /* The step reduces gradients that no pass has reduced. */
  ebb_push_gradient_sync (FALSE);
  RUN (module, 4);
  ebb_pop_gradient_sync ();
  g_assert_cmpuint (count_reductions (group), ==, 2);
  if (!ebb_optimizer_step (optimizer, error))
    return FALSE;
  g_assert_cmpuint (count_reductions (group), ==, 3);
  assert_mean (module, group, 0, 4);

  ebb_optimizer_zero_grad (optimizer);
  RUN (module, 5);
  assert_mean (module, group, 5, 5);
  return ebb_optimizer_step (optimizer, error) && count_reductions (group) == 4;
}

static void
test_passes_alone_are_reduced_once (void)
{
  for (guint n = 1; n <= 3; n++)
    test_ranks_run (n, accumulate_mixed, NULL);
}

/* Forward, forward, backward, backward: one reduction, of the sum. */
static gboolean
two_forwards (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = replicated_gains_new (group, 3, FALSE, error);
  g_autoptr (EbbTensor) x0 = make_input (group, 0);
  g_autoptr (EbbTensor) x1 = make_input (group, 1);
  g_autoptr (EbbTensor) y0 = ebb_module_call1 (module, x0, error);
  g_autoptr (EbbTensor) y1 = ebb_module_call1 (module, x1, error);
  g_autoptr (EbbTensor) loss0 = ebb_sum (y0, NULL, 0, FALSE, error);
  g_autoptr (EbbTensor) loss1 = ebb_sum (y1, NULL, 0, FALSE, error);

  if (loss1 == NULL || !ebb_tensor_backward (loss1, error))
    return FALSE;
  g_assert_cmpuint (count_reductions (group), ==, 0);
  if (!ebb_tensor_backward (loss0, error))
    return FALSE;
  g_assert_cmpuint (count_reductions (group), ==, 1);
  assert_mean (module, group, 0, 1);
  return TRUE;
}

static void
test_reduces_after_the_last_backward (void)
{
  test_ranks_run (2, two_forwards, NULL);
}

/* A graph that stays is reduced by the optimizer, whether it is gone through again or dropped. */
static gboolean
retained (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = replicated_gains_new (group, 3, FALSE, error);
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 0, error);
  g_autoptr (EbbTensor) x = make_input (group, 0);
  g_autoptr (EbbTensor) y = ebb_module_call1 (module, x, error);
  g_autoptr (EbbTensor) loss = ebb_sum (y, NULL, 0, FALSE, error);

  if (loss == NULL || !ebb_backward (&loss, 1, NULL, 0, NULL, 0, TRUE, error))
    return FALSE;
  g_assert_cmpuint (count_reductions (group), ==, 0);
  if (!ebb_optimizer_step (optimizer, error))
    return FALSE;
  g_assert_cmpuint (count_reductions (group), ==, 1);
  assert_mean (module, group, 0, 0);
  return TRUE;
}

static void
test_retained_graphs_are_reduced_by_the_step (void)
{
  test_ranks_run (2, retained, NULL);
}

/* A pass reduces the gradients of its own modules alone, whatever passes of another module on this thread have left. */
static gboolean
beside_another (EbbProcessGroup *group, gpointer data, GError **error)
{
  const gboolean steps = GPOINTER_TO_UINT (data) & 1, zeros = GPOINTER_TO_UINT (data) & 2;
  g_autoptr (EbbModule) module = replicated_gains_new (group, 3, zeros, error);
  g_autoptr (EbbModule) other = replicated_gains_new (group, 3, FALSE, error);
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 0, error);

  if (other == NULL || optimizer == NULL)
    return FALSE;
  ebb_push_gradient_sync (FALSE);
  RUN (module, 0);
  ebb_pop_gradient_sync ();
  if (steps && !ebb_optimizer_step (optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (optimizer);
  ebb_process_group_reset_counters (group);
  RUN (other, 1);
  g_assert_cmpuint (count_reductions (group), ==, 1);
  assert_mean (other, group, 1, 1);
  RUN (module, 2);
  g_assert_cmpuint (count_reductions (group), ==, 2);
  assert_mean (module, group, 2, 2);
  return TRUE;
}

static gboolean
beside_a_sharded_one (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = two_gains_new (3);
  g_autoptr (EbbModule) other = replicated_gains_new (group, 3, FALSE, error);
  g_autoptr (EbbModule) same = ebb_fully_shard (module, group, NULL, error);
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 0, error);

  if (same == NULL || other == NULL || optimizer == NULL)
    return FALSE;
  ebb_push_gradient_sync (FALSE);
  RUN (module, 0);
  ebb_pop_gradient_sync ();
  if (!ebb_optimizer_step (optimizer, error))
    return FALSE;
  ebb_process_group_reset_counters (group);
  RUN (other, 1);
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_REDUCE_SCATTER), ==, 0);
  assert_mean (other, group, 1, 1);
  RUN (module, 2);
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_REDUCE_SCATTER), ==, 1);
  return TRUE;
}

/* Clipping reduces the gradients of a pass whose graph stays; the next pass through the graph reduces its own. */
static gboolean
sharded_and_retained (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = two_gains_new (3);
  g_autoptr (EbbModule) same = ebb_fully_shard (module, group, NULL, error);
  g_autoptr (EbbTensor) a = ebb_module_get_parameter (module, "a");
  g_autoptr (EbbTensor) x = make_input (group, 0);
  g_autoptr (EbbTensor) y = ebb_module_call1 (module, x, error);
  g_autoptr (EbbTensor) loss = ebb_sum (y, NULL, 0, FALSE, error);
  g_autoptr (EbbTensor) norm = NULL;

  if (loss == NULL || !ebb_backward (&loss, 1, NULL, 0, NULL, 0, TRUE, error))
    return FALSE;
  norm = ebb_clip_grad_norm (&a, 1, 1e9, error);
  if (norm == NULL)
    return FALSE;
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_REDUCE_SCATTER), ==, 1);
  if (!ebb_tensor_backward (loss, error))
    return FALSE;
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_REDUCE_SCATTER), ==, 2);
  return TRUE;
}

static void
test_other_modules_take_no_part (void)
{
  for (guint bits = 0; bits < 4; bits++)
    test_ranks_run (2, beside_another, GUINT_TO_POINTER (bits));
  test_ranks_run (2, beside_a_sharded_one, NULL);
  test_ranks_run (2, sharded_and_retained, NULL);
}

/* ebb_grad () takes no part, and leaves what is there. */
static gboolean
grad_beside (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = replicated_gains_new (group, 3, FALSE, error);
  g_autoptr (EbbTensor) x = make_input (group, 1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  EbbTensor **grads;
  guint n;

  if (module == NULL)
    return FALSE;
  RUN (module, 0);
  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  y = ebb_module_call1 (module, x, error);
  loss = ebb_sum (y, NULL, 0, FALSE, error);
  grads = ebb_grad (&loss, 1, &x, 1, NULL, 0, FALSE, &n, error);
  if (grads == NULL)
    return FALSE;
  ebb_tensor_unref (grads[0]);
  g_free (grads);
  g_assert_cmpuint (count_reductions (group), ==, 1);
  assert_mean (module, group, 0, 0);
  return TRUE;
}

static void
test_grad_takes_no_part (void)
{
  test_ranks_run (2, grad_beside, NULL);
}

/* -- unused and frozen parameters ---------------------------------------------------------------------------------- */

static gboolean
leave_out (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = replicated_gains_new (group, 1, FALSE, error);

  if (module == NULL)
    return FALSE;
  RUN (module, 0);
  return TRUE;
}

static void
test_unused_parameters_are_named (void)
{
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_run_ranks (2, leave_out, NULL, &error));
  test_assert_error (error, EBB_ERROR_STATE, "1 of 2 trainable parameters", ": b;", "unused-parameters");
}

/* A forward of "c" alone still holds it, so the bucket of "b" waits behind that of "c" until the pass of "a" ends. */
static gboolean
leave_out_behind_another_graph (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbReplicateOptions) options = ebb_replicate_options_new ();
  EbbModule *parts[3] = { test_lambda1_new (use_some, GUINT_TO_POINTER (1)),
                          test_lambda1_new (use_some, GUINT_TO_POINTER (1)),
                          test_lambda1_new (use_some, GUINT_TO_POINTER (1)) };
  g_autoptr (EbbModule) module = ebb_sequential_new ();
  g_autoptr (EbbTensor) x = test_randn (50, 8, -1);
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (EbbTensor) held = NULL;

  g_object_set (options, "bucket-bytes", (guint64) 1, NULL);
  for (guint i = 0; i < G_N_ELEMENTS (parts); i++)
    {
      g_autoptr (EbbTensor) gain = test_randn (10 + i, 8, -1);

      g_assert_true (ebb_module_register_parameter (parts[i], "a", gain, NULL));
      g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (module), parts[i], NULL));
      g_object_unref (parts[i]);
    }
  same = ebb_replicate (module, group, options, error);
  held = same != NULL ? ebb_module_call1 (parts[2], x, error) : NULL;
  if (held == NULL)
    return FALSE;
  RUN (parts[0], 0);
  return TRUE;
}

static void
test_unused_parameters_behind_another_graph (void)
{
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_run_ranks (2, leave_out_behind_another_graph, NULL, &error));
  test_assert_error (error, EBB_ERROR_STATE, "1 of 3 trainable parameters", ": 1.a;", "unused-parameters");
}

/* Rank 0 uses "a" alone, the others both. */
static gboolean
leave_out_on_one (EbbProcessGroup *group, gpointer data, GError **error)
{
  guint rank = ebb_process_group_get_rank (group), n = ebb_process_group_get_size (group);
  g_autoptr (EbbModule) module = replicated_gains_new (group, rank == 0 ? 1 : 3, TRUE, error);
  g_autoptr (EbbTensor) grad = NULL;
  g_autoptr (EbbTensor) a = NULL;

  if (module == NULL)
    return FALSE;
  RUN (module, 0);
  grad = get_grad (module, "b");
  a = ebb_module_get_parameter (module, "a");
  g_assert_nonnull (grad);
  for (gsize i = 0; i < 8; i++)
    {
      double sum = 0;

      for (guint other = 1; other < n; other++)
        {
          g_autoptr (EbbTensor) x = test_randn (50 + other, 8, -1);

          sum += (double) test_at (x, i) * (double) test_at (a, i) / n;
        }
      g_assert_cmpfloat_with_epsilon (test_at (grad, i), sum, 1e-5);
    }
  return TRUE;
}

static gboolean
leave_out_on_all (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = replicated_gains_new (group, 1, TRUE, error);
  g_autoptr (EbbTensor) a = NULL;
  g_autoptr (EbbTensor) b = NULL;

  if (module == NULL)
    return FALSE;
  RUN (module, 0);
  a = get_grad (module, "a");
  b = get_grad (module, "b");
  g_assert_nonnull (a);
  g_assert_null (b);
  return TRUE;
}

static void
test_unused_parameters_may_be_zeros (void)
{
  for (guint n = 1; n <= 3; n++)
    test_ranks_run (n, n == 1 ? leave_out_on_all : leave_out_on_one, NULL);
  test_ranks_run (3, leave_out_on_all, NULL);
}

static gboolean
freeze (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = replicated_gains_new (group, 3, FALSE, error);
  g_autoptr (EbbTensor) b = NULL;
  g_autoptr (EbbTensor) grad = NULL;

  if (module == NULL)
    return FALSE;
  b = ebb_module_get_parameter (module, "b");
  ebb_tensor_set_requires_grad (b, FALSE, NULL);
  ebb_process_group_reset_counters (group);
  RUN (module, 0);
  assert_mean (module, group, 0, 0);
  grad = get_grad (module, "b");
  g_assert_null (grad);
  g_assert_cmpuint (count_reductions (group), ==, 1);
  ebb_tensor_set_requires_grad (b, TRUE, NULL);
  ebb_module_zero_grad (module);
  RUN (module, 1);
  assert_mean (module, group, 1, 1);
  grad = get_grad (module, "b");
  g_assert_nonnull (grad);
  return TRUE;
}

static void
test_frozen_parameters_are_left_out (void)
{
  test_ranks_run (2, freeze, NULL);
}

/* Gains of 32 bytes each: a bucket takes what fills it to the byte, and never more. */
static gboolean
fill_buckets (EbbProcessGroup *group, gpointer data, GError **error)
{
  static const struct
  {
    guint64 bytes;
    guint n_buckets;
  } cases[] = { { 31, 2 }, { 32, 2 }, { 63, 2 }, { 64, 1 }, { 65, 1 } };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (EbbReplicateOptions) options = ebb_replicate_options_new ();
      g_autoptr (EbbModule) module = two_gains_new (3);
      g_autoptr (EbbModule) same = NULL;

      g_object_set (options, "bucket-bytes", (guint64) cases[i].bytes, NULL);
      same = ebb_replicate (module, group, options, error);
      if (same == NULL)
        return FALSE;
      ebb_process_group_reset_counters (group);
      RUN (module, 0);
      g_assert_cmpuint (ebb_replicate_get_n_buckets (module), ==, cases[i].n_buckets);
      g_assert_cmpuint (count_reductions (group), ==, cases[i].n_buckets);
      assert_mean (module, group, 0, 0);
    }
  return TRUE;
}

static void
test_buckets_are_filled_to_the_byte (void)
{
  test_ranks_run (2, fill_buckets, NULL);
}

/* One parameter under two names. */
static gboolean
share (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = two_gains_new (3);
  g_autoptr (EbbTensor) a = ebb_module_get_parameter (module, "a");
  g_autoptr (EbbTensor) grad = NULL;

  if (!ebb_module_register_parameter (module, "b", a, error) || !replicate (module, group, FALSE, error))
    return FALSE;
  RUN (module, 0);
  g_assert_cmpuint (count_reductions (group), ==, 1);
  grad = ebb_tensor_get_grad (a);
  for (gsize i = 0; i < 8; i++)
    {
      double sum = 0;

      for (guint rank = 0; rank < 2; rank++)
        {
          g_autoptr (EbbTensor) x = test_randn (50 + rank, 8, -1);

          sum += (double) test_at (x, i) * (double) test_at (a, i);
        }
      g_assert_cmpfloat_with_epsilon (test_at (grad, i), sum, 1e-5);
    }
  return TRUE;
}

static void
test_shared_parameters_are_reduced_once (void)
{
  test_ranks_run (2, share, NULL);
}

/* -- beginning and ending ------------------------------------------------------------------------------------------ */

static gboolean
begin (EbbProcessGroup *group, gpointer data, GError **error)
{
  guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbModule) module = test_lambda1_new (use_some, GUINT_TO_POINTER (3));
  g_autoptr (EbbTensor) gain = test_randn (rank, 8, -1);
  g_autoptr (EbbTensor) other = test_randn (10 + rank, 8, -1);
  g_autoptr (EbbTensor) calls = test_tokens (20 + rank, 1000, 3, -1);
  g_autoptr (EbbTensor) expected_gain = test_randn (0, 8, -1);
  g_autoptr (EbbTensor) expected_calls = test_tokens (20, 1000, 3, -1);

  ebb_module_register_parameter (module, "a", gain, NULL);
  ebb_module_register_parameter (module, "b", other, NULL);
  ebb_module_register_buffer (module, "calls", calls, FALSE, NULL);
  if (!replicate (module, group, FALSE, error))
    return FALSE;
  g_assert_true (ebb_tensor_equal (gain, expected_gain));
  g_assert_true (ebb_tensor_equal (calls, expected_calls));
  return TRUE;
}

static void
test_begins_with_the_weights_of_rank_0 (void)
{
  test_ranks_run (3, begin, NULL);
}

static gboolean
differ (EbbProcessGroup *group, gpointer data, GError **error)
{
  guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbModule) module = NULL;
  gboolean ok;

  module = ebb_linear_new (4, rank == 1 ? 5 : 4, TRUE, error);
  ok = replicate (module, group, FALSE, error);
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_BROADCAST), ==, 0);
  g_assert_false (ebb_replicate_is_wrapped (module));
  return ok;
}

static void
test_models_that_differ_are_refused (void)
{
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_run_ranks (3, differ, NULL, &error));
  test_assert_error (error, EBB_ERROR_PROCESS_GROUP, "rank 1", "weight", "[5, 4]", "[4, 4]");
}

static EbbTensor *
call_in_autocast (EbbModule *module, GError **error)
{
  g_autoptr (EbbTensor) x = test_randn (50, 3, 4, -1);
  EbbTensor *y;

  ebb_push_grad_enabled (FALSE);
  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  y = ebb_module_call1 (module, x, error);
  ebb_pop_autocast ();
  ebb_pop_grad_enabled ();
  return y;
}

/* Casts that autocast cached of a rank's own weights are not used any more. */
static gboolean
begin_after_autocast (EbbProcessGroup *group, gpointer data, GError **error)
{
  guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbModule) module = NULL;
  g_autoptr (EbbTensor) before = NULL;
  g_autoptr (EbbTensor) after = NULL;
  g_autoptr (EbbTensor) all = NULL;
  g_autoptr (EbbTensor) first = NULL;

  ebb_manual_seed (rank);
  module = ebb_linear_new (4, 4, TRUE, error);
  before = call_in_autocast (module, error);
  if (before == NULL || !replicate (module, group, FALSE, error))
    return FALSE;
  after = call_in_autocast (module, error);
  all = ebb_process_group_all_gather (group, after, error);
  first = ebb_narrow (all, 0, 0, 3, error);
  if (first == NULL)
    return FALSE;
  g_assert_true (ebb_tensor_equal (after, first));
  g_assert_true (ebb_tensor_equal (before, after) == (rank == 0));
  return TRUE;
}

static void
test_begins_anew_after_autocast (void)
{
  test_ranks_run (2, begin_after_autocast, NULL);
}

/* The gains, of which the one of rank @data is a column, and a buffer that is one on all ranks if @data is no rank. */
static EbbModule *
strided_new (EbbProcessGroup *group, guint strided, GError **error)
{
  EbbModule *module = two_gains_new (3);
  g_autoptr (EbbTensor) table = test_randn (1, 8, 2, -1);
  g_autoptr (EbbTensor) column = ebb_select (table, 1, 0, error);
  gboolean in_parameter = strided == ebb_process_group_get_rank (group);

  if (in_parameter)
    g_assert_true (ebb_module_register_parameter (module, "b", column, error));
  else if (strided == G_MAXUINT)
    g_assert_true (ebb_module_register_buffer (module, "scale", column, TRUE, error));
  return module;
}

/* One rank can't: the others don't wait for it, and all can go on without. */
static gboolean
refuse_on_one (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = strided_new (group, 1, error);
  g_autoptr (GError) local = NULL;

  g_assert_false (replicate (module, group, FALSE, &local));
  if (ebb_process_group_get_rank (group) == 1)
    test_assert_error (local, EBB_ERROR_NOT_SUPPORTED, "parameter b is not contiguous");
  else
    test_assert_error (local, EBB_ERROR_PROCESS_GROUP, "rank 1 has", "parameter b is not contiguous");
  g_assert_false (ebb_replicate_is_wrapped (module));
  return ebb_process_group_barrier (group, error);
}

static void
test_one_rank_refuses_for_all (void)
{
  test_ranks_run (2, refuse_on_one, NULL);
}

static gboolean
refuse_buffer (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = strided_new (group, G_MAXUINT, error);
  g_autoptr (EbbReplicateOptions) options = ebb_replicate_options_new ();
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (GError) local = NULL;

  g_assert_false (replicate (module, group, FALSE, &local));
  test_assert_error (local, EBB_ERROR_NOT_SUPPORTED, "buffer scale is not contiguous");
  g_clear_error (&local);
  g_assert_null (ebb_fully_shard (module, group, NULL, &local));
  test_assert_error (local, EBB_ERROR_NOT_SUPPORTED, "buffer scale is not contiguous");
  g_object_set (options, "broadcast", FALSE, NULL);
  same = ebb_replicate (module, group, options, error);
  return same != NULL;
}

static void
test_strided_buffers_are_refused (void)
{
  test_ranks_run (2, refuse_buffer, NULL);
}

static gboolean
refuse (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = two_gains_new (3);
  g_autoptr (EbbModule) sequence = ebb_sequential_new ();
  g_autoptr (EbbModule) empty = ebb_tanh_new ();
  g_autoptr (GError) local = NULL;

  if (!replicate (module, group, FALSE, error))
    return FALSE;
  g_assert_true (ebb_replicate_is_wrapped (module));
  g_assert_null (ebb_replicate (module, group, NULL, &local));
  test_assert_error (local, EBB_ERROR_STATE, "parameter a", "already");
  g_clear_error (&local);
  ebb_module_register_child (sequence, "0", module, NULL);
  g_assert_null (ebb_replicate (sequence, group, NULL, &local));
  test_assert_error (local, EBB_ERROR_STATE, "parameter 0.a", "already");
  g_clear_error (&local);
  g_assert_null (ebb_replicate (empty, group, NULL, &local));
  test_assert_error (local, EBB_ERROR_INVALID_ARGUMENT, "Tanh", "no parameters");
  g_assert_true (ebb_replicate_unwrap (module));
  g_assert_false (ebb_replicate_unwrap (module));
  g_assert_false (ebb_replicate_is_wrapped (module));
  ebb_process_group_reset_counters (group);
  RUN (module, 0);
  g_assert_cmpuint (count_reductions (group), ==, 0);
  return replicate (module, group, FALSE, error);
}

static void
test_wraps_once (void)
{
  test_ranks_run (2, refuse, NULL);
}

/* The module goes first; its parameters train on, alone. */
static gboolean
outlive (EbbProcessGroup *group, gpointer data, GError **error)
{
  EbbModule *module = replicated_gains_new (group, 3, FALSE, error);
  g_autoptr (EbbTensor) x = make_input (group, 0);
  g_autoptr (EbbTensor) a = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  gpointer weak = module;

  if (module == NULL)
    return FALSE;
  a = ebb_module_get_parameter (module, "a");
  y = ebb_module_call1 (module, x, error);
  loss = ebb_sum (y, NULL, 0, FALSE, error);
  g_object_add_weak_pointer (G_OBJECT (module), &weak);
  g_object_unref (module);
  g_assert_null (weak);
  ebb_process_group_reset_counters (group);
  if (!ebb_tensor_backward (loss, error))
    return FALSE;
  g_assert_cmpuint (count_reductions (group), ==, 0);
  return TRUE;
}

static void
test_keeps_no_module_alive (void)
{
  test_ranks_run (2, outlive, NULL);
}

static gboolean
load (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = replicated_gains_new (group, 3, FALSE, error);
  g_autoptr (EbbModule) other = two_gains_new (3);
  g_autoptr (EbbArgs) state = ebb_module_get_state_dict (other);

  if (module == NULL || !ebb_module_load_state_dict (module, state, TRUE, error)
      || !ebb_module_to_dtype (module, EBB_DTYPE_BF16, error) || !ebb_module_to_dtype (module, EBB_DTYPE_F32, error))
    return FALSE;
  RUN (module, 0);
  g_assert_cmpuint (ebb_module_count_parameters (module), ==, 16);
  return TRUE;
}

static void
test_replicated_modules_can_be_loaded_and_converted (void)
{
  test_ranks_run (2, load, NULL);
}

static void
test_errors_touch_nothing (void)
{
  g_autoptr (GError) error = g_error_new_literal (EBB_ERROR, EBB_ERROR_STATE, "before");
  g_autoptr (EbbModule) module = two_gains_new (3);

  g_assert_null (ebb_replicate (module, NULL, NULL, &error));
  g_assert_cmpstr (error->message, ==, "before");
  g_assert_null (ebb_replicate (NULL, NULL, NULL, NULL));
  g_assert_false (ebb_replicate_is_wrapped (module));
}

/* Nobody else is there: it is as without it. */
static void
test_default_group (void)
{
  g_autoptr (EbbModule) module = two_gains_new (3);
  g_autoptr (EbbModule) same = ebb_replicate (module, NULL, NULL, NULL);
  g_autoptr (EbbTensor) x = test_randn (50, 8, -1);

  g_assert_true (same == module);
  g_assert_true (run_pass (module, x, NULL));
  assert_mean (module, ebb_process_group_get_default (), 0, 0);
}

/* The gain is used twice, like a tied weight, so each pass adds two gradients. */
static EbbTensor *
use_twice (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) inner = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) outer = ebb_sin (inner, error);

  return outer != NULL ? ebb_mul (outer, gain, error) : NULL;
}

static void
test_one_rank_has_the_bits_of_the_plain_module (void)
{
  EbbTensor *grads[2];

  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbModule) module = test_lambda1_new (use_twice, NULL);
      g_autoptr (EbbTensor) gain = test_randn (10, 1000, -1);

      g_assert_true (ebb_module_register_parameter (module, "gain", gain, NULL));
      g_assert_true (i == 0 || replicate (module, NULL, FALSE, NULL));
      for (guint pass = 0; pass < 3; pass++)
        {
          g_autoptr (EbbTensor) x = test_randn (50 + pass, 1000, -1);

          ebb_push_gradient_sync (pass != 1);
          g_assert_true (run_pass (module, x, NULL));
          ebb_pop_gradient_sync ();
        }
      grads[i] = get_grad (module, "gain");
    }
  g_assert_true (ebb_tensor_equal (grads[0], grads[1]));
  ebb_tensor_unref (grads[0]);
  ebb_tensor_unref (grads[1]);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/replicate/each-pass-adds-its-mean", test_each_pass_adds_its_mean);
  g_test_add_func ("/replicate/passes-alone-are-reduced-once", test_passes_alone_are_reduced_once);
  g_test_add_func ("/replicate/reduces-after-the-last-backward", test_reduces_after_the_last_backward);
  g_test_add_func ("/replicate/retained-graphs-are-reduced-by-the-step", test_retained_graphs_are_reduced_by_the_step);
  g_test_add_func ("/replicate/other-modules-take-no-part", test_other_modules_take_no_part);
  g_test_add_func ("/replicate/grad-takes-no-part", test_grad_takes_no_part);
  g_test_add_func ("/replicate/unused-parameters-are-named", test_unused_parameters_are_named);
  g_test_add_func ("/replicate/unused-parameters-behind-another-graph", test_unused_parameters_behind_another_graph);
  g_test_add_func ("/replicate/unused-parameters-may-be-zeros", test_unused_parameters_may_be_zeros);
  g_test_add_func ("/replicate/frozen-parameters-are-left-out", test_frozen_parameters_are_left_out);
  g_test_add_func ("/replicate/buckets-are-filled-to-the-byte", test_buckets_are_filled_to_the_byte);
  g_test_add_func ("/replicate/shared-parameters-are-reduced-once", test_shared_parameters_are_reduced_once);
  g_test_add_func ("/replicate/begins-with-the-weights-of-rank-0", test_begins_with_the_weights_of_rank_0);
  g_test_add_func ("/replicate/models-that-differ-are-refused", test_models_that_differ_are_refused);
  g_test_add_func ("/replicate/begins-anew-after-autocast", test_begins_anew_after_autocast);
  g_test_add_func ("/replicate/one-rank-refuses-for-all", test_one_rank_refuses_for_all);
  g_test_add_func ("/replicate/strided-buffers-are-refused", test_strided_buffers_are_refused);
  g_test_add_func ("/replicate/wraps-once", test_wraps_once);
  g_test_add_func ("/replicate/keeps-no-module-alive", test_keeps_no_module_alive);
  g_test_add_func ("/replicate/can-be-loaded-and-converted", test_replicated_modules_can_be_loaded_and_converted);
  g_test_add_func ("/replicate/errors-touch-nothing", test_errors_touch_nothing);
  g_test_add_func ("/replicate/default-group", test_default_group);
  g_test_add_func ("/replicate/one-rank-has-the-bits-of-the-plain-module",
                   test_one_rank_has_the_bits_of_the_plain_module);
  return g_test_run ();
}
