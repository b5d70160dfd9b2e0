/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"
#include "nn/args.h"
#include "tensor/random.h"

G_BEGIN_DECLS

/**
 * EBB_MODEL_PARALLEL_RNG:
 *
 * The name of the generator for tensors of which each rank of a tensor-parallel group has a shard.
 */
#define EBB_MODEL_PARALLEL_RNG "model-parallel-rng"

#define EBB_TYPE_GENERATOR_TRACKER (ebb_generator_tracker_get_type ())

/**
 * EbbGeneratorTracker:
 *
 * Generators of random numbers with names, any of which can be a thread's default one for a while. Ranks that share a
 * model have the same seed for their default generators, so that dropout on full tensors agrees, and draw for local
 * shards from a named one with a seed of each rank's own.
 *
 * A checkpointed forward may fork inside, or run inside a fork: its recompute draws the same numbers, from the same
 * generators, on whichever thread it runs.
 *
 * A tracker belongs to one thread, as its generators do.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbGeneratorTracker, ebb_generator_tracker, EBB, GENERATOR_TRACKER, GObject)

EBB_AVAILABLE_IN_ALL
EbbGeneratorTracker *ebb_generator_tracker_new (void);

EBB_AVAILABLE_IN_ALL
EbbGeneratorTracker *ebb_generator_tracker_get_default (void);

EBB_AVAILABLE_IN_ALL
gboolean ebb_generator_tracker_add (EbbGeneratorTracker *self,
                                    const char *name,
                                    guint64 seed,
                                    GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_generator_tracker_has (EbbGeneratorTracker *self,
                                    const char *name);

EBB_AVAILABLE_IN_ALL
EbbGenerator *ebb_generator_tracker_get_generator (EbbGeneratorTracker *self,
                                                   const char *name);

EBB_AVAILABLE_IN_ALL
char **ebb_generator_tracker_get_names (EbbGeneratorTracker *self);

EBB_AVAILABLE_IN_ALL
void ebb_generator_tracker_reset (EbbGeneratorTracker *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_generator_tracker_fork (EbbGeneratorTracker *self,
                                     const char *name,
                                     GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_generator_tracker_join (EbbGeneratorTracker *self);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_generator_tracker_get_states (EbbGeneratorTracker *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_generator_tracker_set_states (EbbGeneratorTracker *self,
                                           EbbArgs *states,
                                           GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_model_parallel_manual_seed (guint64 seed,
                                         GObject *mpu,
                                         GError **error);

G_END_DECLS
