/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"
#include "support/ranks.h"

#include <ebb/ebb.h>
#include <string.h>

/* A rank fails, or leaves, at each phase of a step: the others end at once with an error that names it, nothing hangs,
 * and their models can still be freed. */

#define N_RANKS 3
#define FAILS 1

typedef enum
{
  BEFORE_SHARDING,
  OTHER_ORDER,
  IN_FORWARD,
  BEFORE_BACKWARD,
  IN_BACKWARD,
  BEFORE_CLIPPING,
  BEFORE_SUMMONING,
  N_PHASES
} Phase;

static const char *const phase_names[] = { "before-sharding", "in-another-order", "in-forward", "before-backward",
                                           "in-backward", "before-clipping", "before-summoning" };

typedef struct
{
  Phase phase;
  gboolean leaves; /* without an error */
  char *messages[N_RANKS];
} Run;

typedef struct
{
  Run *run;
  EbbProcessGroup *group;
  guint n_steps;
} Rank;

static gboolean
fail (GError **error)
{
  g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "the power went");
  return FALSE;
}

/* TRUE if this is the rank, the step and the phase. */
static gboolean
is_time (const Rank *rank,
         Phase phase)
{
  return rank->n_steps == 1 && rank->run->phase == phase && ebb_process_group_get_rank (rank->group) == FAILS;
}

static gboolean
look_at_call (EbbModule *module,
              EbbArgs *args,
              EbbArgs *result,
              gpointer user_data,
              GError **error)
{
  return is_time (user_data, ebb_is_recomputing () ? IN_BACKWARD : IN_FORWARD) ? fail (error) : TRUE;
}

static EbbModule *
make_model (Rank *rank,
            GError **error)
{
  g_autoptr (EbbModule) gpt = test_ranks_model (3, 0, 1);
  g_autoptr (EbbModule) blocks = ebb_module_get_child (gpt, "h");
  g_autoptr (EbbModule) block = ebb_module_get_child (blocks, "1");

  ebb_module_add_forward_pre_hook (block, look_at_call, rank, NULL);
  if (!ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, NULL, error))
    return NULL;
  rank->n_steps = 1;
  if (is_time (rank, OTHER_ORDER))
    {
      g_autoptr (EbbModule) same = ebb_fully_shard (block, rank->group, NULL, error);

      g_assert_null (same);
      return NULL;
    }
  rank->n_steps = 0;
  return ebb_fully_shard_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, rank->group, NULL, error) ? g_steal_pointer (&gpt)
                                                                                               : NULL;
}

static gboolean
run_step (Rank *rank,
          EbbModule *gpt,
          EbbOptimizer *optimizer,
          GError **error)
{
  g_autoptr (EbbTensor) loss =
      test_ranks_loss (gpt, rank->n_steps, ebb_process_group_get_rank (rank->group), 1, error);

  if (loss == NULL || (is_time (rank, BEFORE_BACKWARD) && !fail (error)) || !ebb_tensor_backward (loss, error)
      || (is_time (rank, BEFORE_CLIPPING) && !fail (error))
      || !test_clip_grad (optimizer, 1, 2, NULL, error) || !ebb_optimizer_step (optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (optimizer);
  return (!is_time (rank, BEFORE_SUMMONING) || fail (error)) && ebb_summon_full_params (gpt, error)
         && ebb_release_full_params (gpt, FALSE, error);
}

static gboolean
train (Rank *rank,
       GError **error)
{
  g_autoptr (EbbModule) gpt = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;

  rank->n_steps = 1;
  if (is_time (rank, BEFORE_SHARDING))
    return fail (error);
  gpt = make_model (rank, error);
  optimizer = gpt != NULL ? ebb_adamw_new (gpt, 1e-3, error) : NULL;
  for (rank->n_steps = 0; optimizer != NULL && rank->n_steps < 3; rank->n_steps++)
    if (!run_step (rank, gpt, optimizer, error))
      return FALSE;
  return optimizer != NULL;
}

static gboolean
run_rank (EbbProcessGroup *group,
          gpointer user_data,
          GError **error)
{
  Run *run = user_data;
  Rank rank = { .run = run, .group = group };
  g_autoptr (GError) failure = NULL;

  g_assert_false (train (&rank, &failure));
  g_assert_nonnull (failure);
  run->messages[ebb_process_group_get_rank (group)] = g_strdup (failure->message);
  if (run->leaves && ebb_process_group_get_rank (group) == FAILS)
    return TRUE;
  g_propagate_error (error, g_steal_pointer (&failure));
  return FALSE;
}

static void
test_phase (gconstpointer data)
{
  for (int leaves = 0; leaves < 2; leaves++)
    {
      Run run = { .phase = (Phase) GPOINTER_TO_UINT (data), .leaves = leaves };
      g_autoptr (GError) error = NULL;

      g_assert_false (ebb_run_ranks (N_RANKS, run_rank, &run, &error));
      g_assert_nonnull (error);
      for (guint i = 0; i < N_RANKS; i++)
        {
          g_test_message ("%u: %s", i, run.messages[i]);
          if (i != FAILS)
            g_assert_nonnull (strstr (run.messages[i], "rank 1"));
          else if (run.phase != OTHER_ORDER)
            g_assert_nonnull (strstr (run.messages[i], "the power went"));
          g_free (run.messages[i]);
        }
    }
}

int
main (int argc,
      char **argv)
{
  g_autoptr (EbbModule) gpt = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;

  test_init (&argc, &argv);
  /* Before there are threads: how GLib orders the making of classes is hidden from ThreadSanitizer. */
  gpt = test_ranks_model (1, 0, 1);
  optimizer = ebb_adamw_new (gpt, 1e-3, NULL);
  for (guint i = 0; i < N_PHASES; i++)
    {
      g_autofree char *path = g_strconcat ("/fully-shard/a-rank-fails/", phase_names[i], NULL);

      g_test_add_data_func (path, GUINT_TO_POINTER (i), test_phase);
    }
  return g_test_run ();
}
