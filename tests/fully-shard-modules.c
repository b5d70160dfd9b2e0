/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"
#include "support/training.h"

#include <ebb/ebb.h>
#include <math.h>
#include <string.h>

/* Parameters that are frozen, shared, unused in a step or too few for all ranks; what a user sees of them; and what is
 * refused. */

#define N_RANKS 3

static EbbModule *
linear (guint64 seed,
        gint64 in,
        gint64 out)
{
  g_autoptr (GError) error = NULL;
  EbbModule *module;

  ebb_manual_seed (seed);
  module = ebb_linear_new (in, out, TRUE, &error);
  g_assert_no_error (error);
  return module;
}

static void
shard_with (EbbModule *module,
            EbbProcessGroup *group,
            EbbFullyShardOptions *options)
{
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (GError) error = NULL;

  same = ebb_fully_shard (module, group, options, &error);
  g_assert_no_error (error);
  g_assert_true (same == module);
}

static void
shard (EbbModule *module,
       EbbProcessGroup *group,
       gboolean flatten)
{
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();

  ebb_fully_shard_options_set_flatten (options, flatten);
  shard_with (module, group, options);
}

static void
shard_children_with (EbbModule *module,
                     EbbProcessGroup *group,
                     EbbFullyShardOptions *options)
{
  g_autofree EbbModule **children = NULL;
  guint n;

  children = ebb_module_get_children (module, &n);
  for (guint i = 0; i < n; i++)
    {
      shard_with (children[i], group, options);
      g_object_unref (children[i]);
    }
  shard_with (module, group, options);
}

static void
shard_children (EbbModule *module,
                EbbProcessGroup *group,
                gboolean flatten)
{
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();

  ebb_fully_shard_options_set_flatten (options, flatten);
  shard_children_with (module, group, options);
}

/* The mean over all rows of the sum of squares. */
static void
run_step (EbbModule *module,
          EbbProcessGroup *group)
{
  const gint64 n = group != NULL ? ebb_process_group_get_size (group) : 1;
  const gint64 rank = group != NULL ? ebb_process_group_get_rank (group) : 0;
  g_autoptr (EbbTensor) all = test_randn (5, 12, 8, -1);
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) scaled = NULL;
  g_autoptr (GError) error = NULL;

  x = ebb_narrow (all, 0, rank * 12 / n, 12 / n, &error);
  y = ebb_module_call1 (module, x, &error);
  g_assert_no_error (error);
  loss = test_loss (y);
  scaled = ebb_mul_scalar (loss, (double) n, &error);
  ebb_tensor_backward (scaled, &error);
  g_assert_no_error (error);
}

/* Elements of the gradient of each parameter, whole, as @module has them; NaN where there is none. */
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

/* What each rank has of the gradients follows, for per-row shards, from the whole ones. */
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

static void
freeze (EbbModule *chain,
        const char *name)
{
  g_autoptr (EbbModule) child = ebb_module_get_child (chain, name);
  g_autoptr (GError) error = NULL;

  ebb_module_set_requires_grad (child, FALSE, &error);
  g_assert_no_error (error);
}

static EbbModule *
make_chain (const char *frozen)
{
  EbbModule *chain = test_chain_new (linear (1, 8, 16), linear (2, 16, 2), linear (3, 2, 8), NULL);

  if (frozen != NULL)
    freeze (chain, frozen);
  return chain;
}

static gboolean
check_frozen (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  static const char *const frozen[] = { NULL, "0", "1", "2" };

  for (guint i = 0; i < G_N_ELEMENTS (frozen); i++)
    for (int checkpointed = 0; checkpointed < 2; checkpointed++)
      {
        g_autoptr (EbbModule) whole = make_chain (frozen[i]);
        g_autoptr (EbbModule) units = make_chain (frozen[i]);
        g_autoptr (EbbModule) one = make_chain (frozen[i]);

        shard_children (units, group, FALSE);
        shard (one, group, FALSE);
        if (checkpointed)
          {
            test_wrap_leaves (units, NULL);
            test_wrap_leaves (one, NULL);
          }
        run_step (whole, NULL);
        run_step (units, group);
        run_step (one, group);
        assert_gradients (units, whole, group);
        assert_gradients (one, whole, group);
      }
  return TRUE;
}

/* The same layer three times in the model, in a unit of its own and in none. */
static EbbModule *
make_shared (void)
{
  g_autoptr (EbbModule) layer = linear (4, 8, 8);

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
  shard (layer, group, FALSE);
  shard (units, group, FALSE);
  shard (one, group, FALSE);
  run_step (whole, NULL);
  run_step (units, group);
  run_step (one, group);
  assert_gradients (units, whole, group);
  assert_gradients (one, whole, group);
  return TRUE;
}

/* A tied weight: two modules, two units, one tensor. */
static EbbModule *
make_tied (void)
{
  EbbModule *chain = test_chain_new (linear (4, 8, 8), linear (5, 8, 8), NULL);
  g_autoptr (EbbModule) first = ebb_module_get_child (chain, "0");
  g_autoptr (EbbModule) second = ebb_module_get_child (chain, "1");
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (first, "weight");
  g_autoptr (GError) error = NULL;

  ebb_module_register_parameter (second, "weight", weight, &error);
  g_assert_no_error (error);
  return chain;
}

static gboolean
check_tied (EbbProcessGroup *group,
            gpointer user_data,
            GError **error)
{
  for (int checkpointed = 0; checkpointed < 2; checkpointed++)
    {
      g_autoptr (EbbModule) whole = make_tied ();
      g_autoptr (EbbModule) units = make_tied ();

      shard_children (units, group, FALSE);
      if (checkpointed)
        test_wrap_leaves (units, NULL);
      for (int i = 0; i < 2; i++)
        {
          run_step (whole, NULL);
          run_step (units, group);
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
      g_autoptr (EbbModule) expert = linear (10 + i, 8, 8);

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

  ebb_fully_shard_options_set_flatten (keeps, FALSE);
  ebb_fully_shard_options_set_reshard_after_forward (keeps, EBB_RESHARD_NEVER);
  shard_children_with (routed, group, keeps);
  shard (one, group, FALSE);
  shard_children (still, group, FALSE);
  for (int i = 0; i < 2; i++)
    {
      g_autoptr (GArray) a = NULL;
      g_autoptr (GArray) b = NULL;

      run_step (routed, group);
      run_step (one, group);
      run_step (still, group);
      a = read_gradients (routed);
      b = read_gradients (one);
      g_assert_cmpmem (a->data, a->len * sizeof (float), b->data, b->len * sizeof (float));
      for (guint j = 0; j < a->len; j++)
        g_assert_false (isnan (g_array_index (a, float, j)));
    }
  /* What no rank leads to has none, so that no optimizer decays it. */
  parameters = ebb_module_get_parameters (still, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[i]);

      g_assert_true ((grad != NULL) == (i < 2));
      ebb_tensor_unref (parameters[i]);
    }
  return TRUE;
}

/* One rank of four can't shard: all hear of it, those of the other group of shards too. */
static gboolean
check_hybrid_refusal (EbbProcessGroup *group,
                      gpointer user_data,
                      GError **error)
{
  static const char *const names[] = { "data", "shard" };
  const gint64 sizes[] = { 2, 2 };
  g_autoptr (EbbMesh) mesh = ebb_mesh_new (group, names, sizes, 2, error);
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
  g_autoptr (EbbModule) module = linear (1, 8, 8);
  g_autoptr (EbbModule) sharded = NULL;
  g_autoptr (GError) failure = NULL;

  ebb_fully_shard_options_set_replicate_group (options, ebb_mesh_get_group (mesh, "data"));
  if (ebb_process_group_get_rank (group) == 1)
    run_step (module, NULL);
  g_assert_null (ebb_fully_shard (module, ebb_mesh_get_group (mesh, "shard"), options, &failure));
  if (ebb_process_group_get_rank (group) == 1)
    test_assert_error (failure, EBB_ERROR_STATE, "has a gradient");
  else
    test_assert_error (failure, EBB_ERROR_PROCESS_GROUP, "has a gradient");
  g_clear_error (&failure);
  ebb_module_zero_grad (module);
  sharded = ebb_fully_shard (module, ebb_mesh_get_group (mesh, "shard"), options, error);
  return sharded != NULL;
}

static void
test_hybrid_refusal (void)
{
  test_ranks_run (4, check_hybrid_refusal, NULL);
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

  shard_children (routed, group, FALSE);
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
      test_chain_new (linear (1, 8, 8), test_with_gain (test_lambda1_new (tanh_of_gain, NULL), 2), NULL);
  g_autoptr (EbbModule) units =
      test_chain_new (linear (1, 8, 8), test_with_gain (test_lambda1_new (tanh_of_gain, NULL), 2), NULL);

  test_wrap_leaves (units, NULL);
  shard_children (units, group, FALSE);
  run_step (whole, NULL);
  run_step (units, group);
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
  shard_children (units, group, FALSE);
  run_step (whole, NULL);
  run_step (units, group);
  fails = TRUE;
  y = ebb_module_call1 (units, x, error);
  loss = test_loss (y);
  g_assert_false (ebb_tensor_backward (loss, error));
  g_assert_nonnull (strstr ((*error)->message, "not again"));
  g_clear_error (error);
  g_clear_pointer (&loss, ebb_tensor_unref);
  g_clear_pointer (&y, ebb_tensor_unref);
  fails = FALSE;
  run_step (whole, NULL);
  run_step (units, group);
  assert_gradients (units, whole, group);
  return TRUE;
}

/* A change of the shard between forward and backward is seen. */
static gboolean
check_versions (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  g_autoptr (EbbModule) units = make_chain (NULL);
  g_autoptr (EbbModule) last = ebb_module_get_child (units, "2");
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (last, "weight");
  g_autoptr (EbbTensor) x = test_randn (5, 12, 8, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  shard_children (units, group, FALSE);
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

/* Kept aside or not, dropped is dropped. */
static gboolean
check_set_grad (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  g_autoptr (EbbModule) whole = make_chain (NULL);
  g_autoptr (EbbModule) units = make_chain (NULL);
  g_autofree EbbTensor **parameters = NULL;
  guint n;

  shard_children (units, group, FALSE);
  ebb_push_gradient_sync (FALSE);
  run_step (units, group);
  ebb_pop_gradient_sync ();
  parameters = ebb_module_get_parameters (units, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      ebb_tensor_set_grad (parameters[i], NULL, error);
      ebb_tensor_unref (parameters[i]);
    }
  run_step (whole, NULL);
  run_step (units, group);
  assert_gradients (units, whole, group);
  return TRUE;
}

/* -- what a user sees ---------------------------------------------------------------------------------------------- */

static gboolean
check_summon (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  for (int flatten = 0; flatten < 2; flatten++)
    {
      g_autoptr (EbbModule) whole = make_chain (NULL);
      g_autoptr (EbbModule) sharded = make_chain (NULL);
      g_autoptr (EbbModule) first = ebb_module_get_child (sharded, "0");
      g_autoptr (EbbTensor) weight = ebb_module_get_parameter (first, "weight");
      guint64 n_all = ebb_module_count_parameters (whole), hash = test_ranks_hash (whole);

      shard_children (sharded, group, flatten);
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
      run_step (sharded, group);
    }
  return TRUE;
}

static gboolean
check_report (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  g_autoptr (EbbModule) sharded = make_chain (NULL);
  g_autofree char *text = NULL;
  g_autofree char *json = NULL;

  shard_children (sharded, group, FALSE);
  run_step (sharded, group);
  text = ebb_shard_report (sharded);
  json = ebb_shard_report_json (sharded);
  g_assert_nonnull (strstr (text, "0 (EbbLinear)"));
  g_assert_nonnull (strstr (json, "\"gathers\" : 2"));
  g_assert_nonnull (strstr (json, "\"elements\" : 144"));
  return TRUE;
}

/* -- what is refused ----------------------------------------------------------------------------------------------- */

static void
assert_error (GError **error,
              const char *part)
{
  g_assert_nonnull (*error);
  if (strstr ((*error)->message, part) == NULL)
    g_error ("\"%s\" is not in \"%s\"", part, (*error)->message);
  g_clear_error (error);
}

static gboolean
check_refusals (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  const guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbModule) sharded = make_chain (NULL);
  g_autoptr (EbbModule) trained = linear (1, 8, 8);
  g_autoptr (EbbModule) used = linear (1, 8, 8);
  g_autoptr (EbbModule) differs = linear (1, 8, rank == 2 ? 9 : 8);
  g_autoptr (EbbModule) first = ebb_module_get_child (sharded, "0");
  g_autoptr (EbbTensor) x = test_randn (5, 12, 8, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (sharded, 1e-3, error);
  g_autoptr (EbbOptimizer) late = ebb_adamw_new (trained, 1e-3, error);

  run_step (trained, NULL);
  g_assert_null (ebb_fully_shard (trained, group, NULL, error));
  assert_error (error, "weight has a gradient: drop it first");
  ebb_optimizer_step (late, error);
  ebb_optimizer_zero_grad (late);
  shard (trained, group, FALSE);
  run_step (trained, group);
  g_assert_false (ebb_optimizer_step (late, error));
  assert_error (error, "shard before the first step");

  y = ebb_module_call1 (used, x, error);
  g_assert_null (ebb_fully_shard (used, group, NULL, error));
  assert_error (error, "weight belongs to a graph whose backward is still to come");

  g_assert_null (ebb_fully_shard (differs, group, NULL, error));
  assert_error (error, "weight f32 [9, 8]");

  shard (first, group, FALSE);
  g_assert_null (ebb_fully_shard (first, group, NULL, error));
  assert_error (error, "Linear is sharded already");
  shard (sharded, group, FALSE);
  g_assert_false (ebb_release_full_params (sharded, FALSE, error));
  assert_error (error, "was not summoned");
  ebb_summon_full_params (sharded, error);
  g_assert_no_error (*error);
  g_assert_false (ebb_optimizer_clip_grad_norm (optimizer, 1, NULL, error));
  assert_error (error, "call ebb_release_full_params () before the optimizer");
  ebb_release_full_params (sharded, FALSE, error);
  g_assert_false (ebb_module_to_dtype (sharded, EBB_DTYPE_BF16, error));
  assert_error (error, "is split over ranks; convert the module before ebb_fully_shard()");
  g_assert_false (ebb_fully_shard_auto_wrap (sharded, 0, group, NULL, error));
  assert_error (error, "give 1 or more");
  run_step (sharded, group);
  return TRUE;
}

/* -- unwrapping ---------------------------------------------------------------------------------------------------- */

static gboolean
check_unwrap (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  g_autoptr (EbbModule) units = make_tied ();
  g_autoptr (EbbModule) whole = make_tied ();
  g_autoptr (EbbModule) first = ebb_module_get_child (units, "0");
  g_autoptr (EbbTensor) x = test_randn (5, 12, 8, -1);
  g_autoptr (EbbTensor) y = NULL;

  test_wrap_leaves (units, NULL);
  shard_children (units, group, FALSE);
  y = ebb_module_call1 (units, x, error);
  g_assert_false (ebb_fully_shard_unwrap (units, error));
  assert_error (error, "a graph holds its parameters: run its backward or drop it first");
  g_clear_pointer (&y, ebb_tensor_unref);
  ebb_summon_full_params (units, error);
  g_assert_no_error (*error);
  g_assert_null (ebb_module_call1 (units, x, error));
  assert_error (error, "is for looking, not for training");
  ebb_release_full_params (units, FALSE, error);
  /* One of two units that share a parameter. */
  ebb_fully_shard_unwrap (first, error);
  g_assert_no_error (*error);
  run_step (units, group);
  ebb_module_zero_grad (units);
  ebb_fully_shard_unwrap (units, error);
  g_assert_no_error (*error);
  g_assert_cmpuint (test_ranks_hash (units), ==, test_ranks_hash (whole));
  return TRUE;
}

/* A rank that can't shard tells the others at once. */
static gboolean
check_one_rank_refuses (EbbProcessGroup *group,
                        gpointer user_data,
                        GError **error)
{
  g_autoptr (EbbModule) layer = linear (1, 8, 8);

  if (ebb_process_group_get_rank (group) == 1)
    run_step (layer, NULL);
  g_assert_null (ebb_fully_shard (layer, group, NULL, error));
  assert_error (error, "weight has a gradient: drop it first");
  ebb_module_zero_grad (layer);
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
      EbbModule *units = make_chain (NULL);

      shard_children (units, group, FALSE);
      run_step (units, group);
      g_thread_join (g_thread_new ("collector", drop, units));
    }
  return TRUE;
}

/* Before there are threads: how GLib orders the making of classes is hidden from ThreadSanitizer. */
static void
make_all_types (void)
{
  guint which = 0;
  g_autoptr (EbbModule) chain = make_chain (NULL);
  g_autoptr (EbbModule) router = make_router (&which);
  g_autoptr (EbbModule) shared = make_shared ();
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (chain, 1, NULL);
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
  { "/fully-shard/modules/unused", check_unused },
  { "/fully-shard/modules/another-way-is-told", check_another_way },
  { "/fully-shard/modules/summon", check_summon },
  { "/fully-shard/modules/report", check_report },
  { "/fully-shard/modules/refusals", check_refusals },
  { "/fully-shard/modules/recompute-comes-first", check_recompute_first },
  { "/fully-shard/modules/failed-pass", check_failed_pass },
  { "/fully-shard/modules/versions", check_versions },
  { "/fully-shard/modules/dropped-gradients", check_set_grad },
  { "/fully-shard/modules/unwrap", check_unwrap },
  { "/fully-shard/modules/one-rank-refuses", check_one_rank_refuses },
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
  g_test_add_func ("/fully-shard/modules/one-rank-refuses-for-all-replicas", test_hybrid_refusal);
  return g_test_run ();
}
