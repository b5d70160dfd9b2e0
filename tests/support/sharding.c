/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/sharding.h"

#include "support/tensors.h"
#include "support/training.h"

EbbModule *
test_linear (guint64 seed,
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

void
test_shard_with (EbbModule *module,
                 EbbProcessGroup *group,
                 EbbFullyShardOptions *options)
{
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (GError) error = NULL;

  same = ebb_fully_shard (module, group, options, &error);
  g_assert_no_error (error);
  g_assert_true (same == module);
}

void
test_shard (EbbModule *module,
            EbbProcessGroup *group,
            gboolean flatten)
{
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();

  g_object_set (options, "flatten", flatten, NULL);
  test_shard_with (module, group, options);
}

void
test_shard_children_with (EbbModule *module,
                          EbbProcessGroup *group,
                          EbbFullyShardOptions *options)
{
  g_autofree EbbModule **children = NULL;
  guint n;

  children = ebb_module_get_children (module, &n);
  for (guint i = 0; i < n; i++)
    {
      test_shard_with (children[i], group, options);
      g_object_unref (children[i]);
    }
  test_shard_with (module, group, options);
}

void
test_shard_children (EbbModule *module,
                     EbbProcessGroup *group,
                     gboolean flatten)
{
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();

  g_object_set (options, "flatten", flatten, NULL);
  test_shard_children_with (module, group, options);
}

/* The mean over all rows of the sum of squares. */
void
test_shard_step (EbbModule *module,
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

static void
freeze (EbbModule *chain,
        const char *name)
{
  g_autoptr (EbbModule) child = ebb_module_get_child (chain, name);
  g_autoptr (GError) error = NULL;

  ebb_module_set_requires_grad (child, FALSE, &error);
  g_assert_no_error (error);
}

EbbModule *
test_shard_chain (const char *frozen)
{
  EbbModule *chain = test_chain_new (test_linear (1, 8, 16), test_linear (2, 16, 2), test_linear (3, 2, 8), NULL);

  if (frozen != NULL)
    freeze (chain, frozen);
  return chain;
}

/* A tied weight: two modules, two units, one tensor. */
EbbModule *
test_shard_tied (void)
{
  EbbModule *chain = test_chain_new (test_linear (4, 8, 8), test_linear (5, 8, 8), NULL);
  g_autoptr (EbbModule) first = ebb_module_get_child (chain, "0");
  g_autoptr (EbbModule) second = ebb_module_get_child (chain, "1");
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (first, "weight");
  g_autoptr (GError) error = NULL;

  ebb_module_register_parameter (second, "weight", weight, &error);
  g_assert_no_error (error);
  return chain;
}
