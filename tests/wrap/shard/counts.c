/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: long-sim */
#include "support/device.h"
#include "support/gpt-step.h"
#include "support/tensors.h"
#include "support/training.h"

#include <ebb/ebb.h>
#include <string.h>

/* How often parameters are gathered and gradients reduced, from the group's counters: for each nesting with
 * checkpoints, with and without resharding after forward. U units own trained parameters, the root among them. */

#define N_LAYERS 3
#define N_UNITS (N_LAYERS + 1)

typedef enum
{
  PLAIN,
  SHARD_OUTSIDE,      /* sharded (checkpointed (block)) */
  CHECKPOINT_OUTSIDE, /* checkpointed (sharded (block)) */
  ROOT_CHECKPOINTED,  /* checkpointed (sharded (model)) over sharded blocks */
  ALL_CHECKPOINTED,   /* both: blocks and model */
  N_NESTINGS
} Nesting;

static const char *const nesting_names[] = { "plain", "shard-outside", "checkpoint-outside", "root-checkpointed",
                                             "all-checkpointed" };

typedef struct
{
  const char *name;
  EbbReshard reshard;
  guint n_gathers;
} Case;

static const Case cases[] = {
  { "auto", EBB_RESHARD_AUTO, 2 * N_UNITS - 1 },
  { "always", EBB_RESHARD_ALWAYS, 2 * N_UNITS },
  { "never", EBB_RESHARD_NEVER, N_UNITS },
};

static void
checkpoint_blocks (EbbModule *gpt)
{
  g_autoptr (GError) error = NULL;

  ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, NULL, &error);
  g_assert_no_error (error);
}

static void
checkpoint_root (EbbModule *gpt)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) same = ebb_checkpoint_wrapper (gpt, NULL, &error);

  g_assert_no_error (error);
  g_assert_true (same == gpt);
}

static EbbModule *
make_sharded (EbbProcessGroup *group,
              Nesting nesting,
              EbbReshard reshard,
              int n_layers)
{
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
  g_autoptr (GError) error = NULL;
  EbbModule *gpt = test_gpt_step_model (n_layers, 0.1);

  g_object_set (options, "reshard-after-forward", reshard, NULL);
  if (nesting == SHARD_OUTSIDE)
    checkpoint_blocks (gpt);
  ebb_fully_shard_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, group, options, &error);
  g_assert_no_error (error);
  if (nesting == CHECKPOINT_OUTSIDE || nesting == ALL_CHECKPOINTED)
    checkpoint_blocks (gpt);
  if (nesting == ROOT_CHECKPOINTED || nesting == ALL_CHECKPOINTED)
    checkpoint_root (gpt);
  return gpt;
}

static EbbTensor *
forward (EbbModule *gpt,
         int shift)
{
  g_autoptr (EbbTensor) tokens = test_tokens ((guint64) (11 + shift), 29, TEST_GPT_BATCH, TEST_GPT_CONTEXT, -1);
  g_autoptr (EbbTensor) targets = test_tokens ((guint64) (12 + shift), 29, TEST_GPT_BATCH, TEST_GPT_CONTEXT, -1);
  g_autoptr (GError) error = NULL;
  EbbTensor *loss;

  loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, targets, &error);
  g_assert_no_error (error);
  return loss;
}

static void
backward (EbbTensor *loss)
{
  g_autoptr (GError) error = NULL;

  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
}

static void
step (EbbModule *gpt)
{
  g_autoptr (EbbTensor) loss = forward (gpt, 0);

  backward (loss);
}

static void
assert_calls (EbbProcessGroup *group,
              guint64 n_gathers,
              guint64 n_reductions)
{
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_GATHER), ==, n_gathers);
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_REDUCE_SCATTER), ==, n_reductions);
  g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_REDUCE), ==, 0);
}

/* Every nesting and choice of resharding, three steps each. */
static gboolean
check_steps (EbbProcessGroup *group,
             gpointer user_data,
             GError **error)
{
  for (int nesting = 0; nesting < N_NESTINGS; nesting++)
    for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
      {
        g_autoptr (EbbModule) gpt = make_sharded (group, (Nesting) nesting, cases[i].reshard, N_LAYERS);

        for (int j = 0; j < 3; j++)
          {
            ebb_process_group_reset_counters (group);
            step (gpt);
            g_test_message ("%s, %s", nesting_names[nesting], cases[i].name);
            assert_calls (group, cases[i].n_gathers, N_UNITS);
            ebb_module_zero_grad (gpt);
          }
      }
  return TRUE;
}

/* While another backward is to come, nothing is freed or reduced. */
static gboolean
check_two_forwards (EbbProcessGroup *group,
                    gpointer user_data,
                    GError **error)
{
  for (int nesting = 0; nesting < N_NESTINGS; nesting++)
    {
      g_autoptr (EbbModule) gpt = make_sharded (group, (Nesting) nesting, EBB_RESHARD_AUTO, N_LAYERS);
      g_autoptr (EbbTensor) first = NULL;
      g_autoptr (EbbTensor) second = NULL;

      ebb_process_group_reset_counters (group);
      g_test_message ("%s", nesting_names[nesting]);
      first = forward (gpt, 0);
      second = forward (gpt, 2);
      /* The forward counter, which only checkpoints move, couldn't say so. */
      g_assert_cmpuint (ebb_module_get_forward_counter (gpt), ==, nesting >= ROOT_CHECKPOINTED ? 2 : 0);
      assert_calls (group, 2 * N_UNITS - 1, 0);
      backward (first);
      assert_calls (group, 3 * N_UNITS - 2, 0);
      backward (second);
      assert_calls (group, 3 * N_UNITS - 2, N_UNITS);
    }
  return TRUE;
}

/* A graph that is dropped is no backward to come. */
static gboolean
check_dropped (EbbProcessGroup *group,
               gpointer user_data,
               GError **error)
{
  for (int nesting = 0; nesting < N_NESTINGS; nesting++)
    {
      g_autoptr (EbbModule) gpt = make_sharded (group, (Nesting) nesting, EBB_RESHARD_AUTO, N_LAYERS);

      g_test_message ("%s", nesting_names[nesting]);
      ebb_tensor_unref (forward (gpt, 0));
      ebb_process_group_reset_counters (group);
      step (gpt); /* the root is still there */
      assert_calls (group, 2 * N_UNITS - 2, N_UNITS);
    }
  return TRUE;
}

static gboolean
check_no_grad (EbbProcessGroup *group,
               gpointer user_data,
               GError **error)
{
  g_autoptr (EbbModule) gpt = make_sharded (group, PLAIN, EBB_RESHARD_AUTO, N_LAYERS);

  ebb_process_group_reset_counters (group);
  ebb_push_grad_enabled (FALSE);
  ebb_tensor_unref (forward (gpt, 0));
  ebb_tensor_unref (forward (gpt, 0));
  ebb_pop_grad_enabled ();
  assert_calls (group, 2 * N_UNITS, 0);
  step (gpt);
  assert_calls (group, 2 * N_UNITS + 2 * N_UNITS - 1, N_UNITS);
  return TRUE;
}

/* This rank's parts, one after the other. */
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

      if (ebb_tensor_get_n_elements (grad) > 0)
        g_array_append_vals (values, test_read (grad), (guint) ebb_tensor_get_n_elements (grad));
      ebb_tensor_unref (parameters[i]);
    }
  return values;
}

/* Two passes without sync and one with it, twice: what a step doesn't reshard after forward stays over them; the
 * optimizer's step ends that, and so does a change of a shard. */
static gboolean
check_without_sync (EbbProcessGroup *group,
                    gpointer user_data,
                    GError **error)
{
  GArray *expected[2];

  for (int nesting = PLAIN; nesting < N_NESTINGS; nesting += ALL_CHECKPOINTED)
    for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
      {
        const gboolean keeps_all = cases[i].reshard == EBB_RESHARD_NEVER;
        const guint n_again = keeps_all ? 0 : cases[i].reshard == EBB_RESHARD_AUTO ? 2 * (N_UNITS - 1)
                                                                                   : 2 * N_UNITS;
        g_autoptr (EbbModule) gpt = make_sharded (group, (Nesting) nesting, cases[i].reshard, N_LAYERS);
        g_autoptr (EbbModule) ln_f = ebb_module_get_child (gpt, "ln_f");
        g_autoptr (EbbTensor) weight = ebb_module_get_parameter (ln_f, "weight");
        g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (gpt, 0.1, error);

        for (int j = 0; j < 2; j++)
          {
            g_autoptr (GArray) grads = NULL;

            g_test_message ("%s, %s, step %d", nesting_names[nesting], cases[i].name, j);
            for (int pass = 0; pass < 3; pass++)
              {
                g_autoptr (EbbTensor) grad = NULL;

                ebb_process_group_reset_counters (group);
                ebb_push_gradient_sync (pass == 2);
                step (gpt);
                ebb_pop_gradient_sync ();
                assert_calls (group, pass == 0 ? cases[i].n_gathers : n_again, pass == 2 ? N_UNITS : 0);
                grad = ebb_tensor_get_grad (weight);
                g_assert_true ((grad != NULL) == (pass == 2));
                g_assert_cmpint (ebb_tensor_get_n_elements (weight), <=,
                                 TEST_GPT_WIDTH / ebb_process_group_get_size (group) + 1);
              }
            grads = read_gradients (gpt);
            if (i == 0)
              expected[j] = g_array_ref (grads);
            g_assert_cmpmem (grads->data, grads->len * sizeof (float), expected[j]->data,
                             expected[j]->len * sizeof (float));
            if (i == G_N_ELEMENTS (cases) - 1)
              g_array_unref (expected[j]);
            g_assert_true (ebb_optimizer_step (optimizer, error));
            ebb_optimizer_zero_grad (optimizer);
          }
        ebb_push_gradient_sync (FALSE);
        step (gpt);
        ebb_push_grad_enabled (FALSE);
        ebb_tensor_fill (weight, 2, error); /* the root's */
        ebb_pop_grad_enabled ();
        ebb_process_group_reset_counters (group);
        step (gpt);
        ebb_pop_gradient_sync ();
        assert_calls (group, cases[i].reshard == EBB_RESHARD_ALWAYS ? n_again : n_again + 1, 0);
      }
  return TRUE;
}

/* A unit that is frozen entirely has nothing to reduce, flattened or not. */
static gboolean
check_frozen_units (EbbProcessGroup *group,
                    gpointer user_data,
                    GError **error)
{
  for (int flatten = 0; flatten < 2; flatten++)
    for (guint n_frozen = 0; n_frozen < N_UNITS; n_frozen++)
      {
        g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
        g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0.1);
        g_autoptr (EbbModule) blocks = ebb_module_get_child (gpt, "h");

        for (guint i = 0; i < n_frozen; i++)
          {
            g_autoptr (EbbModule) block = ebb_module_get_child (blocks, (char[]){ (char) ('0' + i), '\0' });

            ebb_module_set_requires_grad (block, FALSE, error);
          }
        g_object_set (options, "flatten", flatten, NULL);
        ebb_fully_shard_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, group, options, error);
        g_assert_no_error (*error);
        ebb_process_group_reset_counters (group);
        step (gpt);
        g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_REDUCE_SCATTER), ==,
                          N_UNITS - n_frozen);
      }
  return TRUE;
}

/* A root that owns nothing. */
static gboolean
check_bare_root (EbbProcessGroup *group,
                 gpointer user_data,
                 GError **error)
{
  for (int wrapped = 0; wrapped < 2; wrapped++)
    {
      g_autoptr (EbbModule) chain = test_chain_new (test_mlp_new (1), test_mlp_new (2), test_mlp_new (3), NULL);
      g_autofree EbbModule **children = NULL;
      guint n;

      children = ebb_module_get_children (chain, &n);
      for (guint i = 0; i < n; i++)
        {
          g_autoptr (EbbModule) same = ebb_fully_shard (children[i], group, NULL, error);

          g_assert_no_error (*error);
          g_object_unref (children[i]);
        }
      if (wrapped)
        g_object_unref (ebb_fully_shard (chain, group, NULL, error));
      for (int j = 0; j < 3; j++)
        {
          g_autoptr (EbbTensor) x = test_randn (5, 4, 8, -1);
          g_autoptr (EbbTensor) y = NULL;
          g_autoptr (EbbTensor) loss = NULL;

          ebb_process_group_reset_counters (group);
          y = ebb_module_call1 (chain, x, error);
          loss = test_loss (y);
          backward (loss);
          ebb_module_zero_grad (chain);
          if (wrapped || j > 0) /* that none of them is the root of all shows in the first forward */
            assert_calls (group, 2 * n, n);
        }
    }
  return TRUE;
}

static EbbTensor *
forward_with_head (EbbModule *self,
                   EbbTensor *x,
                   gpointer data,
                   GError **error)
{
  g_autofree EbbModule **children = NULL;
  g_autoptr (EbbTensor) y = ebb_tensor_ref (x);
  guint n;

  children = ebb_module_get_children (self, &n);
  for (guint i = 0; i < n; i++)
    {
      EbbTensor *next = ebb_module_call1 (children[i], y, error);

      ebb_tensor_unref (y);
      y = next;
      g_object_unref (children[i]);
    }
  return g_steal_pointer (&y);
}

/* The root's own parameters come last in the forward, so that they are done with first in the backward. */
static gboolean
check_head (EbbProcessGroup *group,
            gpointer user_data,
            GError **error)
{
  for (int nesting = PLAIN; nesting <= CHECKPOINT_OUTSIDE; nesting++)
    {
      g_autoptr (EbbModule) root = test_lambda1_new (forward_with_head, NULL);
      EbbModule *blocks[3];

      for (guint i = 0; i < 4; i++)
        {
          g_autoptr (EbbModule) block = test_mlp_new (i);
          const char name[2] = { (char) ('a' + i), '\0' };

          ebb_module_register_child (root, name, block, error);
          if (i < 3)
            blocks[i] = block;
        }
      for (guint i = 0; i < 3; i++)
        {
          if (nesting == SHARD_OUTSIDE)
            test_wrap (g_object_ref (blocks[i]), NULL);
          g_object_unref (ebb_fully_shard (blocks[i], group, NULL, error));
          if (nesting == CHECKPOINT_OUTSIDE)
            test_wrap (g_object_ref (blocks[i]), NULL);
        }
      g_object_unref (ebb_fully_shard (root, group, NULL, error));
      g_assert_no_error (*error);
      for (int i = 0; i < 2; i++)
        {
          g_autoptr (EbbTensor) x = test_randn (5, 4, 8, -1);
          g_autoptr (EbbTensor) y = NULL;
          g_autoptr (EbbTensor) loss = NULL;

          ebb_process_group_reset_counters (group);
          y = ebb_module_call1 (root, x, error);
          loss = test_loss (y);
          backward (loss);
          g_test_message ("%s", nesting_names[nesting]);
          assert_calls (group, 2 * 4 - 1, 4);
          ebb_module_zero_grad (root);
        }
      for (guint i = 0; nesting != PLAIN && i < 3; i++)
        g_object_unref (blocks[i]);
    }
  return TRUE;
}

/* Of the gathers of a step, all but the first in the forward and in the backward are begun before. */
static gboolean
check_prefetch (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  for (int nesting = PLAIN; nesting <= CHECKPOINT_OUTSIDE; nesting++)
    {
      g_autoptr (EbbModule) gpt = make_sharded (group, (Nesting) nesting, EBB_RESHARD_AUTO, N_LAYERS);
      guint n_prefetches = 0;

      for (int i = 0; i < 2; i++)
        {
          g_autofree char *json = NULL;

          step (gpt);
          ebb_module_zero_grad (gpt);
          json = ebb_shard_report_json (gpt);
          for (const char *at = json; (at = strstr (at, "\"prefetches\":")) != NULL; at++)
            n_prefetches += (guint) g_ascii_strtoull (at + strlen ("\"prefetches\":"), NULL, 10);
          g_test_message ("%s: %u", nesting_names[nesting], n_prefetches);
          /* The first forward doesn't know yet; the report sums over steps. */
          g_assert_cmpuint (n_prefetches, ==, i == 0 ? N_LAYERS : N_LAYERS + 3 * N_LAYERS);
        }
    }
  return TRUE;
}

/* GPT-2 124M by blocks, with another width. */
static gboolean
check_gpt2 (EbbProcessGroup *group,
            gpointer user_data,
            GError **error)
{
  for (int nesting = PLAIN; nesting <= CHECKPOINT_OUTSIDE; nesting++)
    {
      g_autoptr (EbbModule) gpt = make_sharded (group, (Nesting) nesting, EBB_RESHARD_AUTO, 12);

      ebb_process_group_reset_counters (group);
      step (gpt);
      assert_calls (group, 25, 13);
    }
  return TRUE;
}

/* -- ranks --------------------------------------------------------------------------------------------------------- */

static void
test_ranks (gconstpointer data)
{
  const EbbRankFunc func = *(const EbbRankFunc *) data;
  g_autoptr (GError) error = NULL;

  for (guint n = 1; n <= 3; n++)
    {
      ebb_run_ranks (n, func, NULL, &error);
      g_assert_no_error (error);
    }
}

static const struct
{
  const char *path;
  EbbRankFunc func;
} tests[] = {
  { "/fully-shard/counts/a-step", check_steps },
  { "/fully-shard/counts/two-forwards-two-backwards", check_two_forwards },
  { "/fully-shard/counts/a-dropped-graph", check_dropped },
  { "/fully-shard/counts/without-gradients", check_no_grad },
  { "/fully-shard/counts/passes-without-sync", check_without_sync },
  { "/fully-shard/counts/frozen-units", check_frozen_units },
  { "/fully-shard/counts/root-without-parameters", check_bare_root },
  { "/fully-shard/counts/head-in-the-root", check_head },
  { "/fully-shard/counts/prefetches", check_prefetch },
  { "/fully-shard/counts/gpt2", check_gpt2 },
};

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  for (guint i = 0; i < G_N_ELEMENTS (tests); i++)
    g_test_add_data_func (tests[i].path, &tests[i].func, test_ranks);
  return g_test_run ();
}
