/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensor-parallel.h"

#include <string.h>

/* The collectives of one tensor-parallel layer in a step, whatever of it is recomputed: counted as the difference of
 * two models of which one has N_MORE layers more. */

#define N_FEW 2
#define N_MORE 3

typedef enum
{
  NO_CHECKPOINT,
  FULL,
  FULL_WITHOUT_EARLY_STOP,
  SELECTIVE,
  CORE_ATTENTION,
  COLLECTIVES_KEPT,
  N_WAYS
} Way;

static const char *const way_names[] = { "no-checkpoint", "full", "full-without-early-stop", "selective",
                                         "core-attention", "collectives-kept" };

typedef struct
{
  guint all_reduces, all_gathers, reduce_scatters;
} Calls;

typedef struct
{
  Way way;
  gboolean by_sequence, is_partitioned;
  /* Of a layer. A BERT's ends with a norm, so that a recompute needs what its last product gives. */
  Calls forward, backward, bert_backward;
} Expected;

typedef struct
{
  const Expected *expected;
  TestParallel model;
  guint64 forward[EBB_N_COLLECTIVES], backward[EBB_N_COLLECTIVES];
} Run;

static EbbCheckpointOptions *
make_options (const Expected *expected,
              EbbProcessGroup *group,
              GError **error)
{
  static const char *const ops[] = { "parallel_gather", "parallel_reduce", "parallel_reduce_scatter", NULL };
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

  if (expected->way == FULL_WITHOUT_EARLY_STOP)
    g_object_set (options, "early-stop", FALSE, NULL);
  if (expected->way == SELECTIVE)
    ebb_checkpoint_options_set_policy_selective (options);
  if (expected->way == CORE_ATTENTION)
    ebb_checkpoint_options_set_policy_core_attention (options);
  if (expected->way == COLLECTIVES_KEPT && !ebb_checkpoint_options_set_policy_save_ops (options, ops, error))
    return NULL;
  if (expected->is_partitioned)
    {
      g_autoptr (EbbSavedTensorHooks) store = ebb_partitioned_store_new (group, NULL, error);

      if (store == NULL)
        return NULL;
      g_object_set (store, "least-size", (guint64) 0, NULL);
      ebb_checkpoint_options_set_store (options, store);
    }
  return g_steal_pointer (&options);
}

static void
count (EbbProcessGroup *group,
       guint64 *calls)
{
  for (guint i = 0; i < EBB_N_COLLECTIVES; i++)
    calls[i] = ebb_process_group_get_n_calls (group, (EbbCollective) i);
  ebb_process_group_reset_counters (group);
}

static gboolean
run_step (EbbProcessGroup *group,
          gpointer user_data,
          GError **error)
{
  Run *run = user_data;
  const TestParallel *settings = &run->model;
  g_autoptr (EbbModule) model = test_parallel_model (settings, error);
  g_autoptr (EbbCheckpointOptions) options = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  guint64 forward[EBB_N_COLLECTIVES], backward[EBB_N_COLLECTIVES];

  if (model == NULL || !test_parallel_divide (settings, model, group, error))
    return FALSE;
  options = make_options (run->expected, group, error);
  if (options == NULL
      || (run->expected->way != NO_CHECKPOINT
          && !ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, error)))
    return FALSE;
  ebb_process_group_reset_counters (group);
  loss = test_parallel_loss (settings, model, 0, error);
  count (group, forward);
  if (loss == NULL || !ebb_tensor_backward (loss, error))
    return FALSE;
  count (group, backward);
  if (ebb_process_group_get_rank (group) != 0)
    return TRUE;
  memcpy (run->forward, forward, sizeof forward);
  memcpy (run->backward, backward, sizeof backward);
  return TRUE;
}

static void
assert_more (const char *what,
             const guint64 *few,
             const guint64 *many,
             const Calls *expected)
{
  const guint64 per_layer[EBB_N_COLLECTIVES] = {
    [EBB_COLLECTIVE_ALL_REDUCE] = expected->all_reduces,
    [EBB_COLLECTIVE_ALL_GATHER] = expected->all_gathers,
    [EBB_COLLECTIVE_REDUCE_SCATTER] = expected->reduce_scatters,
  };

  for (guint i = 0; i < EBB_N_COLLECTIVES; i++)
    if (many[i] - few[i] != N_MORE * per_layer[i])
      g_error ("%s: %" G_GUINT64_FORMAT " calls of collective %u in %u layers more than the %" G_GUINT64_FORMAT
               " of %u; %" G_GUINT64_FORMAT " for each were expected",
               what, many[i] - few[i], i, N_MORE, few[i], N_FEW, per_layer[i]);
}

static void
a_layer_calls (gconstpointer data)
{
  const Expected *expected = data;

  for (guint n_ranks = 2; n_ranks <= 4; n_ranks *= 2)
    for (int is_bert = 0; is_bert < 2; is_bert++)
      {
        Run few = { .expected = expected, .model = { .n_ranks = n_ranks, .is_bert = is_bert, .dropout = 0.1 } };
        Run many;

        few.model.n_layers = N_FEW;
        few.model.is_sequence_parallel = expected->by_sequence;
        many = few;
        many.model.n_layers = N_FEW + N_MORE;
        test_ranks_run (n_ranks, run_step, &few);
        test_ranks_run (n_ranks, run_step, &many);
        assert_more ("forward", few.forward, many.forward, &expected->forward);
        assert_more ("backward", few.backward, many.backward, is_bert ? &expected->bert_backward : &expected->backward);
      }
}

int
main (int argc,
      char **argv)
{
  static const Expected tensor[] = {
    { NO_CHECKPOINT, FALSE, FALSE, { 2, 0, 0 }, { 2, 0, 0 }, { 2, 0, 0 } },
    { FULL, FALSE, FALSE, { 2, 0, 0 }, { 3, 0, 0 }, { 4, 0, 0 } },
    { FULL_WITHOUT_EARLY_STOP, FALSE, FALSE, { 2, 0, 0 }, { 4, 0, 0 }, { 4, 0, 0 } },
    { SELECTIVE, FALSE, FALSE, { 2, 0, 0 }, { 3, 0, 0 }, { 4, 0, 0 } },
    { CORE_ATTENTION, FALSE, FALSE, { 2, 0, 0 }, { 2, 0, 0 }, { 2, 0, 0 } },
    { COLLECTIVES_KEPT, FALSE, FALSE, { 2, 0, 0 }, { 2, 0, 0 }, { 2, 0, 0 } },
    { FULL, FALSE, TRUE, { 2, 0, 0 }, { 3, 1, 0 }, { 4, 1, 0 } },
  };
  static const Expected sequence[] = {
    { NO_CHECKPOINT, TRUE, FALSE, { 0, 2, 2 }, { 4, 4, 2 }, { 4, 4, 2 } },
    { FULL, TRUE, FALSE, { 0, 2, 2 }, { 4, 6, 3 }, { 4, 6, 4 } },
    { FULL_WITHOUT_EARLY_STOP, TRUE, FALSE, { 0, 2, 2 }, { 4, 6, 4 }, { 4, 6, 4 } },
    { SELECTIVE, TRUE, FALSE, { 0, 2, 2 }, { 4, 6, 3 }, { 4, 6, 4 } },
    { CORE_ATTENTION, TRUE, FALSE, { 0, 2, 2 }, { 4, 4, 2 }, { 4, 4, 2 } },
    { COLLECTIVES_KEPT, TRUE, FALSE, { 0, 2, 2 }, { 4, 4, 2 }, { 4, 4, 2 } },
  };

  test_init (&argc, &argv);
  for (guint i = 0; i < G_N_ELEMENTS (tensor) + G_N_ELEMENTS (sequence); i++)
    {
      const Expected *expected = i < G_N_ELEMENTS (tensor) ? &tensor[i] : &sequence[i - G_N_ELEMENTS (tensor)];
      g_autofree char *path =
          g_strdup_printf ("/parallel-collectives/a-layer-calls/%s/%s%s", expected->by_sequence ? "sequence" : "tensor",
                           way_names[expected->way], expected->is_partitioned ? "-partitioned" : "");

      g_test_add_data_func (path, expected, a_layer_calls);
    }
  return g_test_run ();
}
