/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/sharding.h"
#include "support/tensors.h"
#include "support/training.h"

#include <ebb/ebb.h>
#include <math.h>
#include <string.h>

/* Parameters that are frozen, shared, unused in a step or too few for all ranks; and what a user sees of them. */

#define N_RANKS 3

/* Elements of the full gradient of each parameter, as @module has them; NaN where there is none. */
static GArray *
read_gradients (EbbModule *module)
{
  GArray *values = g_array_new (FALSE, FALSE, sizeof (float));
  g_autofree EbbTensor **parameters = NULL;
  guint n;

  parameters = ebb_module_get_parameters (module, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[i]);
      const float none = NAN;

      if (grad != NULL)
        g_array_append_vals (values, test_read (grad), (guint) ebb_tensor_get_n_elements (grad));
      else
        g_array_append_val (values, none);
      ebb_tensor_unref (parameters[i]);
    }
  return values;
}

/* For per-row shards each rank's gradients follow from the full ones. */
static void
assert_gradients (EbbModule *sharded,
                  EbbModule *whole,
                  EbbProcessGroup *group)
{
  const gint64 n_ranks = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  g_autofree EbbTensor **a = NULL;
  g_autofree EbbTensor **b = NULL;
  guint n;

  a = ebb_module_get_parameters (sharded, TRUE, &n);
  b = ebb_module_get_parameters (whole, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) part = ebb_tensor_get_grad (a[i]);
      g_autoptr (EbbTensor) all = ebb_tensor_get_grad (b[i]);

      g_assert_true ((part == NULL) == (all == NULL));
      if (part != NULL)
        {
          const gint64 rows = ebb_tensor_get_dim (b[i], 0), row = ebb_tensor_get_n_elements (b[i]) / rows;
          const gint64 begin = rank * rows / n_ranks, end = (rank + 1) * rows / n_ranks;
          const float *x = test_read (part), *y = (const float *) test_read (all) + begin * row;

          g_assert_cmpint (ebb_tensor_get_n_elements (part), ==, (end - begin) * row);
          for (gint64 j = 0; j < (end - begin) * row; j++)
            g_assert_cmpfloat_with_epsilon (x[j], y[j], 1e-5 * (1 + fabsf (y[j])));
        }
      ebb_tensor_unref (a[i]);
      ebb_tensor_unref (b[i]);
    }
}

/* -- kinds of parameters ------------------------------------------------------------------------------------------- */

static gboolean
check_frozen (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  static const char *const frozen[] = { NULL, "0", "1", "2" };

  for (guint i = 0; i < G_N_ELEMENTS (frozen); i++)
    for (int checkpointed = 0; checkpointed < 2; checkpointed++)
      {
        g_autoptr (EbbModule) whole = test_shard_chain (frozen[i]);
        g_autoptr (EbbModule) units = test_shard_chain (frozen[i]);
        g_autoptr (EbbModule) one = test_shard_chain (frozen[i]);
        g_autoptr (EbbModule) flat = test_shard_chain (frozen[i]);
        EbbModule *const both[] = { whole, flat };
        double norms[2];

        test_shard_children (flat, group, TRUE);
        test_shard_children (units, group, FALSE);
        test_shard (one, group, FALSE);
        if (checkpointed)
          {
            test_wrap_leaves (units, NULL);
            test_wrap_leaves (one, NULL);
          }
        test_shard_step (whole, NULL);
        test_shard_step (units, group);
        test_shard_step (one, group);
        test_shard_step (flat, group);
        assert_gradients (units, whole, group);
        assert_gradients (one, whole, group);
        for (guint k = 0; k < 2; k++)
          {
            g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (both[k], 1, error);

            g_assert_true (test_clip_grad (optimizer, 1e9, 2, &norms[k], error));
          }
        g_assert_cmpfloat_with_epsilon (norms[1], norms[0], 1e-5 * norms[0]);
      }
  return TRUE;
}

/* The same layer three times in the model, in a unit of its own and in none. */
static EbbModule *
make_shared (void)
{
  g_autoptr (EbbModule) layer = test_linear (4, 8, 8);

  return test_chain_new (g_object_ref (layer), test_mlp_new (2), g_object_ref (layer), NULL);
}

static gboolean
check_shared (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  g_autoptr (EbbModule) whole = make_shared ();
  g_autoptr (EbbModule) units = make_shared ();
  g_autoptr (EbbModule) one = make_shared ();
  g_autoptr (EbbModule) layer = ebb_module_get_child (units, "0");

  ebb_module_set_training (whole, FALSE); /* the mlp drops at random */
  ebb_module_set_training (units, FALSE);
  ebb_module_set_training (one, FALSE);
  test_shard (layer, group, FALSE);
  test_shard (units, group, FALSE);
  test_shard (one, group, FALSE);
  test_shard_step (whole, NULL);
  test_shard_step (units, group);
  test_shard_step (one, group);
  assert_gradients (units, whole, group);
  assert_gradients (one, whole, group);
  return TRUE;
}

static gboolean
check_tied (EbbProcessGroup *group,
            gpointer user_data,
            GError **error)
{
  for (int checkpointed = 0; checkpointed < 2; checkpointed++)
    {
      g_autoptr (EbbModule) whole = test_shard_tied ();
      g_autoptr (EbbModule) units = test_shard_tied ();

      test_shard_children (units, group, FALSE);
      if (checkpointed)
        test_wrap_leaves (units, NULL);
      for (int i = 0; i < 2; i++)
        {
          test_shard_step (whole, NULL);
          test_shard_step (units, group);
          assert_gradients (units, whole, group);
        }
    }
  return TRUE;
}

/* tanh (x w) v */
static EbbArgs *
use_parameter (EbbModule *self,
               EbbArgs *args,
               gpointer data,
               GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) w = ebb_args_get_tensor (args, 1);
  g_autoptr (EbbTensor) v = ebb_args_get_tensor (args, 2);
  g_autoptr (EbbTensor) product = ebb_mul (x, w, error);
  g_autoptr (EbbTensor) bent = ebb_tanh (product, error);
  g_autoptr (EbbTensor) part = ebb_mul (bent, v, error);

  return part != NULL ? ebb_args_new_for_tensor (part) : NULL;
}

/* Passes its parameter on to its child, as itself, and as another tensor that views the same memory. */
static EbbTensor *
pass_parameter (EbbModule *self,
                EbbTensor *x,
                gpointer data,
                GError **error)
{
  g_autoptr (EbbModule) child = ebb_module_get_child (self, "0");
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) view = ebb_narrow (gain, 0, 0, ebb_tensor_get_dim (gain, 0), error);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;

  if (view == NULL)
    return NULL;
  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_tensor (args, NULL, gain);
  ebb_args_add_tensor (args, NULL, view);
  result = ebb_module_call (child, args, error);
  return result != NULL ? ebb_args_get_tensor (result, 0) : NULL;
}

static EbbModule *
new_passing (guint64 seed)
{
  EbbModule *module = test_with_gain (test_lambda1_new (pass_parameter, NULL), seed);
  g_autoptr (EbbModule) child = test_lambda_new (use_parameter, NULL);

  g_assert_true (ebb_module_register_child (module, "0", child, NULL));
  return module;
}

/* A checkpoint is given parameters of the units around it. They are gathered into other memory for the recompute, also
 * where a store has taken the views away, and after the optimizer's changes. */
static gboolean
check_passed (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  for (int i = 0; i < 6; i++)
    {
      const gboolean flatten = i % 3 == 1, whole_model = i % 3 == 2, stores = i / 3;
      g_autoptr (EbbModule) whole = test_chain_new (new_passing (1), new_passing (2), NULL);
      g_autoptr (EbbModule) units = test_chain_new (new_passing (1), new_passing (2), NULL);
      g_autoptr (EbbSavedTensorHooks) store = ebb_host_store_new ();
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

      g_object_set (store, "least-size", (guint64) 0, NULL);
      g_object_set (options, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, NULL);
      if (stores)
        ebb_checkpoint_options_set_store (options, store);
      test_wrap_leaves (units, options);
      if (whole_model)
        test_shard (units, group, flatten);
      else
        test_shard_children (units, group, flatten);
      for (int step = 0; step < 2; step++)
        {
          test_shard_step (whole, NULL);
          test_shard_step (units, group);
          assert_gradients (units, whole, group);
        }
    }
  return TRUE;
}

static EbbTensor *
call_one_child (EbbModule *self,
                EbbTensor *x,
                gpointer data,
                GError **error)
{
  const guint *which = data;
  g_autofree EbbModule **children = NULL;
  EbbTensor *y = NULL;
  guint n;

  children = ebb_module_get_children (self, &n);
  for (guint i = 0; i < n; i++)
    {
      /* Both are called, and one is not among what the result depends on. */
      EbbTensor *result = ebb_module_call1 (children[i], x, error);

      if (i == *which)
        y = result;
      else
        ebb_tensor_unref (result);
      g_object_unref (children[i]);
    }
  return y;
}

static EbbModule *
make_router (guint *which)
{
  EbbModule *router = test_lambda1_new (call_one_child, which);
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbModule) expert = test_linear (10 + i, 8, 8);

      ebb_module_register_child (router, i == 0 ? "a" : "b", expert, &error);
    }
  g_assert_no_error (error);
  return router;
}

/* Ranks go different ways, which they can where backward has nothing to gather: what one leaves out counts as zero. */
static gboolean
check_unused (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  guint own = ebb_process_group_get_rank (group) == 0 ? 0 : 1, none = 0;
  g_autoptr (EbbModule) routed = make_router (&own);
  g_autoptr (EbbModule) one = make_router (&own);
  g_autoptr (EbbModule) still = make_router (&none);
  g_autoptr (EbbFullyShardOptions) keeps = ebb_fully_shard_options_new ();
  g_autofree EbbTensor **parameters = NULL;
  guint n;

  g_object_set (keeps, "flatten", FALSE, "reshard-after-forward", EBB_RESHARD_NEVER, NULL);
  test_shard_children_with (routed, group, keeps);
  test_shard (one, group, FALSE);
  test_shard_children (still, group, FALSE);
  for (int i = 0; i < 2; i++)
    {
      g_autoptr (GArray) a = NULL;
      g_autoptr (GArray) b = NULL;

      test_shard_step (routed, group);
      test_shard_step (one, group);
      test_shard_step (still, group);
      a = read_gradients (routed);
      b = read_gradients (one);
      g_assert_cmpmem (a->data, a->len * sizeof (float), b->data, b->len * sizeof (float));
      for (guint j = 0; j < a->len; j++)
        g_assert_false (isnan (g_array_index (a, float, j)));
    }
  /* A parameter that no rank's graph reaches has no gradient, so that no optimizer decays it. */
  parameters = ebb_module_get_parameters (still, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[i]);

      g_assert_true ((grad != NULL) == (i < 2));
      ebb_tensor_unref (parameters[i]);
    }
  return TRUE;
}

/* A parameter that one replica doesn't use has the mean of all gradients on that replica too. */
static gboolean
check_unused_on_a_replica (EbbProcessGroup *group,
                           gpointer user_data,
                           GError **error)
{
  static const char *const names[] = { "data", "shard" };
  const gint64 sizes[] = { -1, 1 };
  guint own = ebb_process_group_get_rank (group) == 0 ? 0 : 1;
  g_autoptr (EbbMesh) mesh = ebb_mesh_new (group, names, sizes, 2, error);
  g_autoptr (EbbModule) sharded = make_router (&own);
  g_autoptr (EbbModule) replicated = make_router (&own);
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
  EbbModule *const both[] = { sharded, replicated };
  double norms[2];

  g_object_set (options, "reshard-after-forward", EBB_RESHARD_NEVER, NULL);
  test_shard_children_with (sharded, group, options);
  g_object_set (options, "replicate-group", ebb_mesh_get_group (mesh, "data"), NULL);
  test_shard_children_with (replicated, ebb_mesh_get_group (mesh, "shard"), options);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (both[i], 1, error);

      test_shard_step (both[i], group);
      g_assert_true (test_clip_grad (optimizer, 1e9, 2, &norms[i], error));
    }
  g_assert_cmpfloat_with_epsilon (norms[1], norms[0], 1e-5 * norms[0]);
  return TRUE;
}

/* Units of the same shapes are not taken for one another. */
static gboolean
check_another_way (EbbProcessGroup *group,
                   gpointer user_data,
                   GError **error)
{
  guint own = ebb_process_group_get_rank (group) == 0 ? 0 : 1;
  g_autoptr (EbbModule) routed = make_router (&own);
  g_autoptr (EbbTensor) x = test_randn (5, 4, 8, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (GError) failure = NULL;

  test_shard_children (routed, group, FALSE);
  y = ebb_module_call1 (routed, x, error);
  loss = test_loss (y);
  g_assert_false (ebb_tensor_backward (loss, &failure));
  test_assert_error (failure, EBB_ERROR_PROCESS_GROUP, own == 0 ? "gathering a (EbbLinear)" : "gathering b (EbbLinear)",
                     "for gathering a (EbbLinear)", "for gathering b (EbbLinear)");
  return TRUE;
}

static EbbTensor *
tanh_of_gain (EbbModule *self,
              EbbTensor *x,
              gpointer data,
              GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) product = ebb_mul (x, gain, error);

  return ebb_tanh (product, error);
}

/* Backward asks for what is recomputed before it asks for any parameter. */
static gboolean
check_recompute_first (EbbProcessGroup *group,
                       gpointer user_data,
                       GError **error)
{
  g_autoptr (EbbModule) whole =
      test_chain_new (test_linear (1, 8, 8), test_with_gain (test_lambda1_new (tanh_of_gain, NULL), 2), NULL);
  g_autoptr (EbbModule) units =
      test_chain_new (test_linear (1, 8, 8), test_with_gain (test_lambda1_new (tanh_of_gain, NULL), 2), NULL);

  test_wrap_leaves (units, NULL);
  test_shard_children (units, group, FALSE);
  test_shard_step (whole, NULL);
  test_shard_step (units, group);
  assert_gradients (units, whole, group);
  return TRUE;
}

static gboolean
fail_at_will (EbbModule *module,
              EbbArgs *args,
              EbbArgs *result,
              gpointer user_data,
              GError **error)
{
  if (!*(gboolean *) user_data || !ebb_is_recomputing ())
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "not again");
  return FALSE;
}

static EbbModule *
make_mlps (void)
{
  EbbModule *chain = test_chain_new (test_mlp_new (1), test_mlp_new (2), NULL);

  ebb_module_set_training (chain, FALSE); /* they drop at random */
  return chain;
}

/* Gradients of passes before one that fails, on all ranks, are still there. */
static gboolean
check_failed_pass (EbbProcessGroup *group,
                   gpointer user_data,
                   GError **error)
{
  gboolean fails = FALSE;
  g_autoptr (EbbModule) whole = make_mlps ();
  g_autoptr (EbbModule) units = make_mlps ();
  g_autoptr (EbbModule) first = ebb_module_get_child (units, "0");
  g_autoptr (EbbTensor) x = test_randn (5, 12, 8, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_module_add_forward_pre_hook (first, fail_at_will, &fails, NULL);
  test_wrap (first, NULL);
  test_shard_children (units, group, FALSE);
  test_shard_step (whole, NULL);
  test_shard_step (units, group);
  fails = TRUE;
  y = ebb_module_call1 (units, x, error);
  loss = test_loss (y);
  g_assert_false (ebb_tensor_backward (loss, error));
  g_assert_nonnull (strstr ((*error)->message, "not again"));
  g_clear_error (error);
  g_clear_pointer (&loss, ebb_tensor_unref);
  g_clear_pointer (&y, ebb_tensor_unref);
  fails = FALSE;
  test_shard_step (whole, NULL);
  test_shard_step (units, group);
  assert_gradients (units, whole, group);
  return TRUE;
}

/* A change of the shard between forward and backward is seen. */
static gboolean
check_versions (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  g_autoptr (EbbModule) units = test_shard_chain (NULL);
  g_autoptr (EbbModule) last = ebb_module_get_child (units, "2");
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (last, "weight");
  g_autoptr (EbbTensor) x = test_randn (5, 12, 8, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  test_shard_children (units, group, FALSE);
  y = ebb_module_call1 (units, x, error);
  loss = test_loss (y);
  ebb_push_grad_enabled (FALSE);
  ebb_tensor_scale (weight, 2, error);
  ebb_pop_grad_enabled ();
  g_assert_no_error (*error);
  g_assert_false (ebb_tensor_backward (loss, error));
  g_assert_nonnull (strstr ((*error)->message, "was changed in place after it was used"));
  g_clear_error (error);
  return TRUE;
}

/* Dropping gradients drops stashed ones too. */
static gboolean
check_set_grad (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  g_autoptr (EbbModule) whole = test_shard_chain (NULL);
  g_autoptr (EbbModule) units = test_shard_chain (NULL);
  g_autofree EbbTensor **parameters = NULL;
  guint n;

  test_shard_children (units, group, FALSE);
  ebb_push_gradient_sync (FALSE);
  test_shard_step (units, group);
  ebb_pop_gradient_sync ();
  parameters = ebb_module_get_parameters (units, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      ebb_tensor_set_grad (parameters[i], NULL, error);
      ebb_tensor_unref (parameters[i]);
    }
  test_shard_step (whole, NULL);
  test_shard_step (units, group);
  assert_gradients (units, whole, group);
  return TRUE;
}

/* Gradients are means over all ranks, however they are divided on the way; the losses of AdamW, which doesn't look at
 * how large they are, would not tell. */
static gboolean
check_means (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  static const char *const names[] = { "data", "shard" };
  const gint64 sizes[] = { -1, ebb_process_group_get_size (group) % 2 == 0 ? 2 : 1 };

  for (int i = 0; i < 8; i++)
    {
      const gboolean divides = i % 2, flatten = i / 2 % 2, hybrid = i / 4;
      g_autoptr (EbbModule) whole = test_shard_chain (NULL);
      g_autoptr (EbbModule) units = test_shard_chain (NULL);
      g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
      g_autoptr (EbbMesh) mesh = ebb_mesh_new (group, names, sizes, 2, error);
      EbbProcessGroup *shards = hybrid ? ebb_mesh_get_group (mesh, "shard") : group;
      double norm, whole_norm;
      g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (units, 1, error);
      g_autoptr (EbbOptimizer) whole_optimizer = ebb_sgd_new (whole, 1, error);

      g_object_set (options, "predivide-factor", (double) (divides ? 3 : 0), "flatten", flatten, NULL);
      if (hybrid)
        g_object_set (options, "replicate-group", ebb_mesh_get_group (mesh, "data"), NULL);
      test_shard_children_with (units, shards, options);
      test_shard_step (whole, NULL);
      test_shard_step (units, group);
      if (!flatten)
        assert_gradients (units, whole, shards);
      test_clip_grad (optimizer, 1e-3, 2, &norm, error);
      test_clip_grad (whole_optimizer, 1e-3, 2, &whole_norm, error);
      g_assert_no_error (*error);
      g_assert_cmpfloat_with_epsilon (norm, whole_norm, 1e-5 * whole_norm);
    }
  return TRUE;
}

static void
test_means (void)
{
  for (guint n = 1; n <= 4; n++)
    test_ranks_run (n, check_means, NULL);
}

/* -- what a user sees ---------------------------------------------------------------------------------------------- */

static gboolean
check_summon (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  for (int flatten = 0; flatten < 2; flatten++)
    {
      g_autoptr (EbbModule) whole = test_shard_chain (NULL);
      g_autoptr (EbbModule) sharded = test_shard_chain (NULL);
      g_autoptr (EbbModule) first = ebb_module_get_child (sharded, "0");
      g_autoptr (EbbTensor) weight = ebb_module_get_parameter (first, "weight");
      guint64 n_all = ebb_module_count_parameters (whole), hash = test_ranks_hash (whole);

      test_shard_children (sharded, group, flatten);
      g_assert_true (ebb_fully_shard_is_wrapped (first));
      g_assert_cmpuint (ebb_module_count_parameters (sharded), ==, n_all);
      g_assert_cmpint (ebb_tensor_get_n_dims (weight), ==, 2);
      g_assert_cmpint (ebb_tensor_get_n_elements (weight), <, 8 * 16);

      ebb_summon_full_params (sharded, error);
      g_assert_no_error (*error);
      g_assert_cmpuint (test_ranks_hash (sharded), ==, hash);
      ebb_push_grad_enabled (FALSE);
      ebb_tensor_fill (weight, 2, error);
      ebb_pop_grad_enabled ();
      ebb_release_full_params (sharded, FALSE, error); /* what was changed is gone */
      ebb_summon_full_params (sharded, error);
      g_assert_cmpuint (test_ranks_hash (sharded), ==, hash);
      ebb_push_grad_enabled (FALSE);
      ebb_tensor_fill (weight, 2, error);
      ebb_pop_grad_enabled ();
      g_assert_no_error (*error);
      ebb_release_full_params (sharded, TRUE, error);
      ebb_fully_shard_unwrap (sharded, error);
      g_assert_no_error (*error);
      g_assert_false (ebb_fully_shard_is_wrapped (first));
      g_assert_cmpint (ebb_tensor_get_n_elements (weight), ==, 8 * 16);
      for (int i = 0; i < 8 * 16; i++)
        g_assert_cmpfloat (((const float *) test_read (weight))[i], ==, 2);
      test_shard_step (sharded, group);
    }
  return TRUE;
}

static gboolean
check_report (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  g_autoptr (EbbModule) sharded = test_shard_chain (NULL);
  g_autofree char *text = NULL;
  g_autofree char *json = NULL;

  test_shard_children (sharded, group, FALSE);
  test_shard_step (sharded, group);
  text = ebb_shard_report (sharded);
  json = ebb_shard_report_json (sharded);
  g_assert_nonnull (strstr (text, "0 (EbbLinear)"));
  g_assert_nonnull (strstr (json, "\"gathers\":2"));
  g_assert_nonnull (strstr (json, "\"elements\":144"));
  return TRUE;
}

static gpointer
drop (gpointer module)
{
  g_object_unref (module);
  return NULL;
}

/* As a collector of garbage may. */
static gboolean
check_dropped_elsewhere (EbbProcessGroup *group,
                         gpointer user_data,
                         GError **error)
{
  for (int i = 0; i < 3; i++)
    {
      EbbModule *units = test_shard_chain (NULL);

      test_shard_children (units, group, FALSE);
      test_shard_step (units, group);
      g_thread_join (g_thread_new ("collector", drop, units));
    }
  return TRUE;
}

/* Before there are threads: how GLib orders the making of classes is hidden from ThreadSanitizer. */
static void
make_all_types (void)
{
  guint which = 0;
  g_autoptr (EbbModule) chain = test_shard_chain (NULL);
  g_autoptr (EbbModule) router = make_router (&which);
  g_autoptr (EbbModule) shared = make_shared ();
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (chain, 1, NULL);
  g_autoptr (EbbOptimizer) sgd = ebb_sgd_new (chain, 1, NULL);
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();

  test_wrap_leaves (chain, NULL);
}

static void
test_ranks (gconstpointer data)
{
  test_ranks_run (N_RANKS, *(const EbbRankFunc *) data, NULL);
}

static const struct
{
  const char *path;
  EbbRankFunc func;
} tests[] = {
  { "/fully-shard/modules/frozen", check_frozen },
  { "/fully-shard/modules/shared", check_shared },
  { "/fully-shard/modules/tied", check_tied },
  { "/fully-shard/modules/passed-to-a-checkpoint", check_passed },
  { "/fully-shard/modules/unused", check_unused },
  { "/fully-shard/modules/unused-on-a-replica", check_unused_on_a_replica },
  { "/fully-shard/modules/another-way-is-told", check_another_way },
  { "/fully-shard/modules/summon", check_summon },
  { "/fully-shard/modules/report", check_report },
  { "/fully-shard/modules/recompute-comes-first", check_recompute_first },
  { "/fully-shard/modules/failed-pass", check_failed_pass },
  { "/fully-shard/modules/versions", check_versions },
  { "/fully-shard/modules/dropped-gradients", check_set_grad },
  { "/fully-shard/modules/dropped-on-another-thread", check_dropped_elsewhere },
};

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  make_all_types ();
  for (guint i = 0; i < G_N_ELEMENTS (tests); i++)
    g_test_add_data_func (tests[i].path, &tests[i].func, test_ranks);
  g_test_add_func ("/fully-shard/modules/means", test_means);
  return g_test_run ();
}
