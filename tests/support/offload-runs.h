/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "support/bench-training.h"
#include "support/stream-times.h"

/* One training whose blocks keep their inputs alone, with each of several stores for these inputs, and what that cost.
 * The device `sim` gets a bandwidth in multiples of what the rule asks for: that a block's input has left before the
 * next block has computed as long. */

G_BEGIN_DECLS

typedef struct
{
  const char *store; /* keep, host, disk, contiguous */
  gboolean on_sim;
  double factor; /* of the bandwidth that the rule asks for; 0: unlimited */

  EbbDevice *device;
  double bandwidth; /* bytes per second each way; 0: unlimited */
  EbbSavedTensorHooks *hooks;
  BenchTraining *training;
  GArray *seconds; /* double, of each step that counts */
  double losses[2];

  /* filled in by offload_runs_finish () */
  double median, least, most;
  double ratio;          /* to keep on the same device, median of the pairs */
  guint64 put, got;      /* bytes a step */
  guint64 stored;        /* bytes in the store at most */
  guint64 peak;          /* bytes on the device at most, besides parameters, gradients and moments */
  double moving, waited; /* seconds a step, of the store's counters */
  StreamTimes queues;    /* of one step on sim */
} OffloadRun;

typedef struct
{
  BenchSettings settings;
  int prefetch, rounds, steps;
  const char *folder; /* of the disk store; NULL: the system's */

  /* of the model; backward is with what is run again first */
  guint64 input_bytes;
  double forward_flop, backward_flop; /* of a block */
  double step_flop;

  double flop_per_second;    /* that a step with keep attains */
  double to_host, from_host; /* bytes per second that the rule asks for */
  GPtrArray *runs;           /* of OffloadRun */
} OffloadRuns;

OffloadRuns *offload_runs_new (const BenchSettings *settings,
                               int prefetch,
                               const char *folder);
void offload_runs_free (OffloadRuns *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (OffloadRuns, offload_runs_free)

/* The first one of a device must be keep: others are compared with it. */
void offload_runs_add (OffloadRuns *self,
                       const char *store,
                       gboolean on_sim,
                       double factor);
/* Lets them take turns: @rounds of @steps steps each, whose order changes. */
gboolean offload_runs_measure (OffloadRuns *self,
                               int rounds,
                               int steps,
                               GError **error);
/* The run that the others of a device are compared with. */
const OffloadRun *offload_runs_get_keep (OffloadRuns *self,
                                         gboolean on_sim);
/* How long a step would take by the rule, for each second that it takes with keep. */
double offload_runs_predict (OffloadRuns *self,
                             const OffloadRun *run);
/* One more step of the last run on sim, as a trace for a browser. */
gboolean offload_runs_trace (OffloadRuns *self,
                             const char *path,
                             GError **error);

G_END_DECLS
