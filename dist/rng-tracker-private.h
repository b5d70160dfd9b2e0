/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/rng-tracker.h"

G_BEGIN_DECLS

/* The states of this thread's tracker with the offsets of @saved: for a rank that resumes from another rank's state
 * but must not draw its numbers. */
EbbArgs *ebb_rng_tracker_state_advance (EbbArgs *saved);

/* The seed of a rank's %EBB_MODEL_PARALLEL_RNG, where the group's default generators have @seed. */
guint64 ebb_rng_tracker_get_parallel_seed (guint64 seed,
                                           EbbProcessGroup *group);
/* Whether ebb_rng_tracker_begin_parallel () can begin with @seed. */
gboolean ebb_rng_tracker_check_parallel (EbbGeneratorTracker *self,
                                         guint64 seed,
                                         GError **error);
/* Puts %EBB_MODEL_PARALLEL_RNG at the start of @seed, unless the program has added or seeded it. */
void ebb_rng_tracker_begin_parallel (EbbGeneratorTracker *self,
                                     guint64 seed);

/* Makes the default generator outside of the forks to %EBB_MODEL_PARALLEL_RNG this thread's default one until
 * ebb_generator_tracker_join (): for a tensor that all tensor ranks have, within code that works on local shards. */
void ebb_rng_tracker_fork_shared (EbbGeneratorTracker *self);

G_END_DECLS
