/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/checkpoint/stats.h"

G_BEGIN_DECLS

/* A number of bytes and the most that it ever was. */
typedef struct
{
  guint64 now, peak;
} EbbCheckpointLevel;

/* What a target's frames have done, as they go. A graph may be dropped on another thread than the one that trains. */
typedef struct
{
  guint64 n_forwards, n_recomputes;
  EbbCheckpointLevel saved;   /* inputs and kept results, parameters left out */
  EbbCheckpointLevel dropped; /* let go after the forward */
  guint64 recompute_us;
  guint64 recompute_flop;
  guint64 forward_us, backward_us; /* with the option to profile */
} EbbCheckpointTally;

void ebb_checkpoint_level_add (EbbCheckpointLevel *level,
                               guint64 n_bytes);
void ebb_checkpoint_level_subtract (EbbCheckpointLevel *level,
                                    guint64 n_bytes);

void ebb_checkpoint_tally_add (EbbCheckpointTally *sum,
                               const EbbCheckpointTally *tally);

G_END_DECLS
