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
 *
 * What one checkpoint wrapper has done so far.
 */
typedef struct _EbbCheckpointStats EbbCheckpointStats;

EBB_AVAILABLE_IN_ALL
GType ebb_checkpoint_stats_get_type (void);

EBB_AVAILABLE_IN_ALL
EbbCheckpointStats *ebb_checkpoint_stats_copy (EbbCheckpointStats *stats);

EBB_AVAILABLE_IN_ALL
void ebb_checkpoint_stats_free (EbbCheckpointStats *stats);

EBB_AVAILABLE_IN_ALL
guint64 ebb_checkpoint_stats_get_n_forwards (EbbCheckpointStats *stats);

EBB_AVAILABLE_IN_ALL
guint64 ebb_checkpoint_stats_get_n_recomputes (EbbCheckpointStats *stats);

EBB_AVAILABLE_IN_ALL
guint64 ebb_checkpoint_stats_get_saved_bytes (EbbCheckpointStats *stats);

EBB_AVAILABLE_IN_ALL
guint64 ebb_checkpoint_stats_get_peak_saved_bytes (EbbCheckpointStats *stats);

EBB_AVAILABLE_IN_ALL
guint64 ebb_checkpoint_stats_get_dropped_bytes (EbbCheckpointStats *stats);

EBB_AVAILABLE_IN_ALL
guint64 ebb_checkpoint_stats_get_peak_dropped_bytes (EbbCheckpointStats *stats);

EBB_AVAILABLE_IN_ALL
double ebb_checkpoint_stats_get_recompute_seconds (EbbCheckpointStats *stats);

EBB_AVAILABLE_IN_ALL
guint64 ebb_checkpoint_stats_get_recompute_flop (EbbCheckpointStats *stats);

EBB_AVAILABLE_IN_ALL
double ebb_checkpoint_stats_get_forward_seconds (EbbCheckpointStats *stats);

EBB_AVAILABLE_IN_ALL
double ebb_checkpoint_stats_get_backward_seconds (EbbCheckpointStats *stats);

EBB_AVAILABLE_IN_ALL
EbbCheckpointStats *ebb_checkpoint_get_stats (EbbModule *module);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbCheckpointStats, ebb_checkpoint_stats_free)

G_END_DECLS
