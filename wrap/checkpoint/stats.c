/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/checkpoint/stats-private.h"

#include "wrap/checkpoint/stack-private.h"

struct _EbbCheckpointStats
{
  EbbCheckpointTally tally;
};

G_DEFINE_BOXED_TYPE (EbbCheckpointStats, ebb_checkpoint_stats, ebb_checkpoint_stats_copy, ebb_checkpoint_stats_free)

/* -- tally --------------------------------------------------------------------------------------------------------- */

void
ebb_checkpoint_level_add (EbbCheckpointLevel *level,
                          guint64 n_bytes)
{
  guint64 now = __atomic_add_fetch (&level->now, n_bytes, __ATOMIC_RELAXED);
  guint64 peak = __atomic_load_n (&level->peak, __ATOMIC_RELAXED);

  while (now > peak
         && !__atomic_compare_exchange_n (&level->peak, &peak, now, TRUE, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    ;
}

void
ebb_checkpoint_level_subtract (EbbCheckpointLevel *level,
                               guint64 n_bytes)
{
  __atomic_sub_fetch (&level->now, n_bytes, __ATOMIC_RELAXED);
}

void
ebb_checkpoint_tally_add (EbbCheckpointTally *sum,
                          const EbbCheckpointTally *tally)
{
  sum->n_forwards += tally->n_forwards;
  sum->n_recomputes += tally->n_recomputes;
  sum->saved.now += tally->saved.now;
  sum->saved.peak += tally->saved.peak;
  sum->dropped.now += tally->dropped.now;
  sum->dropped.peak += tally->dropped.peak;
  sum->recompute_us += tally->recompute_us;
  sum->recompute_flop += tally->recompute_flop;
  sum->forward_us += tally->forward_us;
  sum->backward_us += tally->backward_us;
}

/* -- stats --------------------------------------------------------------------------------------------------------- */

static EbbCheckpointStats *
stats_new (const EbbCheckpointTally *tally)
{
  EbbCheckpointStats *stats = g_new (EbbCheckpointStats, 1);

  stats->tally = *tally;
  return stats;
}

/**
 * ebb_checkpoint_stats_copy:
 * @stats: stats
 *
 * Returns: (transfer full): a copy
 */
EbbCheckpointStats *
ebb_checkpoint_stats_copy (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, NULL);

  return stats_new (&stats->tally);
}

/**
 * ebb_checkpoint_stats_free:
 * @stats: (transfer full) (nullable): stats
 *
 * Frees a snapshot.
 */
void
ebb_checkpoint_stats_free (EbbCheckpointStats *stats)
{
  g_free (stats);
}

/**
 * ebb_checkpoint_stats_get_n_forwards:
 * @stats: stats
 *
 * Returns: how many forwards were checkpointed; a recompute is none, nor is a forward without gradients
 */
guint64
ebb_checkpoint_stats_get_n_forwards (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->tally.n_forwards;
}

/**
 * ebb_checkpoint_stats_get_n_recomputes:
 * @stats: stats
 *
 * Returns: how many forwards were run again
 */
guint64
ebb_checkpoint_stats_get_n_recomputes (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->tally.n_recomputes;
}

/**
 * ebb_checkpoint_stats_get_saved_bytes:
 * @stats: stats
 *
 * Returns: the bytes that are held now for forwards whose backward is still to come: arguments, other tensors from
 *   outside that backward needs, and what a policy keeps. Parameters and buffers are left out, and what an outer
 * wrapper holds or recomputes
 */
guint64
ebb_checkpoint_stats_get_saved_bytes (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->tally.saved.now;
}

/**
 * ebb_checkpoint_stats_get_peak_saved_bytes:
 * @stats: stats
 *
 * Returns: the most that ebb_checkpoint_stats_get_saved_bytes() ever was
 */
guint64
ebb_checkpoint_stats_get_peak_saved_bytes (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->tally.saved.peak;
}

/**
 * ebb_checkpoint_stats_get_dropped_bytes:
 * @stats: stats
 *
 * Returns: the bytes that backward will need and that were let go after their forwards, until these are recomputed
 */
guint64
ebb_checkpoint_stats_get_dropped_bytes (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->tally.dropped.now;
}

/**
 * ebb_checkpoint_stats_get_peak_dropped_bytes:
 * @stats: stats
 *
 * Returns: the most that ebb_checkpoint_stats_get_dropped_bytes() ever was: what the wrapper saves
 */
guint64
ebb_checkpoint_stats_get_peak_dropped_bytes (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->tally.dropped.peak;
}

/**
 * ebb_checkpoint_stats_get_recompute_seconds:
 * @stats: stats
 *
 * Returns: the time that recomputes have taken, in seconds
 */
double
ebb_checkpoint_stats_get_recompute_seconds (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return (double) stats->tally.recompute_us * 1e-6;
}

/**
 * ebb_checkpoint_stats_get_recompute_flop:
 * @stats: stats
 *
 * Returns: the floating-point operations that recomputes have done: two for each multiplication of a matrix product,
 *   one for each element of any other op's result
 */
guint64
ebb_checkpoint_stats_get_recompute_flop (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return stats->tally.recompute_flop;
}

/**
 * ebb_checkpoint_stats_get_forward_seconds:
 * @stats: stats
 *
 * Returns: the time that forwards have taken, in seconds; 0 unless they are profiled, see
 *   #EbbCheckpointOptions:profile
 */
double
ebb_checkpoint_stats_get_forward_seconds (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return (double) stats->tally.forward_us * 1e-6;
}

/**
 * ebb_checkpoint_stats_get_backward_seconds:
 * @stats: stats
 *
 * Returns: the time that their backward passes have taken, recomputes included, in seconds; 0 unless they are profiled,
 *   see #EbbCheckpointOptions:profile
 */
double
ebb_checkpoint_stats_get_backward_seconds (EbbCheckpointStats *stats)
{
  g_return_val_if_fail (stats != NULL, 0);

  return (double) stats->tally.backward_us * 1e-6;
}

static EbbCheckpointTally *
get_tally (EbbModule *module,
           guint interceptor)
{
  return &((EbbCheckpointTarget *) ebb_module_get_interceptor_data (module, interceptor))->tally;
}

static EbbCheckpointTally
sum_segments (GPtrArray *segments)
{
  EbbCheckpointTally sum = { 0 };

  for (guint i = 0; i < segments->len; i++)
    if (g_ptr_array_index (segments, i) != NULL)
      ebb_checkpoint_tally_add (&sum, &((EbbCheckpointTarget *) g_ptr_array_index (segments, i))->tally);
  return sum;
}

/**
 * ebb_checkpoint_get_stats:
 * @module: a module
 *
 * Takes a snapshot of what the outermost checkpoint wrapper of @module has done; for a stack in chunks, of the sums
 * over all of them.
 *
 * Returns: (transfer full) (nullable): the stats; %NULL if there is no wrapper
 */
EbbCheckpointStats *
ebb_checkpoint_get_stats (EbbModule *module)
{
  guint id;
  GPtrArray *segments;
  EbbCheckpointTally sum;

  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  id = ebb_module_find_interceptor (module, EBB_CHECKPOINT_INTERCEPTOR);
  if (id != 0)
    return stats_new (get_tally (module, id));
  segments = ebb_checkpoint_stack_get_segments (module);
  if (segments == NULL)
    return NULL;
  sum = sum_segments (segments);
  return stats_new (&sum);
}
