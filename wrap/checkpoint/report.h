/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

#define EBB_TYPE_CHECKPOINT_STATS (ebb_checkpoint_stats_get_type ())

/**
 * EbbCheckpointStats:
 * @n_forwards: how many forwards were checkpointed; recomputes and forwards without gradients are not counted
 * @n_recomputes: how many forwards were run again
 * @saved_bytes: the bytes that are saved now for forwards whose backward is still to come: arguments, other tensors
 *   from outside that backward needs, and results that a policy saves. Parameters and buffers are left out, and so is
 *   what an outer wrapper saves or recomputes
 * @peak_saved_bytes: the most that @saved_bytes ever was
 * @dropped_bytes: the bytes that backward will need and that were freed after their forwards, until they are recomputed
 * @peak_dropped_bytes: the most that @dropped_bytes ever was: what the wrapper saves
 * @recompute_seconds: the time that recomputes have taken
 * @recompute_flop: the floating-point operations of recomputes: two for each multiplication of a matrix product, one
 *   for each element of any other op's result
 * @forward_seconds: the time that forwards have taken; 0 unless #EbbCheckpointOptions:profile is set
 * @backward_seconds: the time that their backward passes have taken, recomputes included; 0 unless
 *   #EbbCheckpointOptions:profile is set
 *
 * The counts of one checkpoint wrapper so far.
 */
typedef struct
{
  guint64 n_forwards;
  guint64 n_recomputes;
  guint64 saved_bytes;
  guint64 peak_saved_bytes;
  guint64 dropped_bytes;
  guint64 peak_dropped_bytes;
  double recompute_seconds;
  guint64 recompute_flop;
  double forward_seconds;
  double backward_seconds;
} EbbCheckpointStats;

EBB_AVAILABLE_IN_ALL
GType ebb_checkpoint_stats_get_type (void);

EBB_AVAILABLE_IN_ALL
EbbCheckpointStats *ebb_checkpoint_stats_copy (EbbCheckpointStats *stats);

EBB_AVAILABLE_IN_ALL
void ebb_checkpoint_stats_free (EbbCheckpointStats *stats);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbCheckpointStats, ebb_checkpoint_stats_free)

EBB_AVAILABLE_IN_ALL
EbbCheckpointStats *ebb_checkpoint_get_stats (EbbModule *module);

EBB_AVAILABLE_IN_ALL
void ebb_checkpoint_reset_stats (EbbModule *root);

EBB_AVAILABLE_IN_ALL
char *ebb_checkpoint_report (EbbModule *root);

EBB_AVAILABLE_IN_ALL
char *ebb_checkpoint_report_json (EbbModule *root);

G_END_DECLS
