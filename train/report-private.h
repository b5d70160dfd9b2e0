/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module.h"
#include "dist/group/process-group.h"
#include "offload/activation-store.h"

/* The report of a training: losses, times, and memory, as JSON. */

G_BEGIN_DECLS

/* One measure of held-out data. */
typedef struct
{
  gint64 step;
  double loss; /* a token's, in nats */
  gboolean is_best;
} EbbEvaluation;

typedef struct
{
  EbbModule *model;
  EbbDevice *device;
  EbbActivationStore *store;      /* NULL: there is none */
  const GArray *losses, *seconds; /* double, of each step of this run */
  const GArray *evaluations;      /* EbbEvaluation, of this run */
  double step_tokens;             /* that all ranks compute in a step */
  gint64 first_step, last_step;
  gint64 best_step; /* 0: none yet */
  double best_loss;
  guint64 n_parameters; /* without those of adapters */
  guint64 rss_peak_before_bytes;
  const char *budget;        /* a JSON object, whose members the report takes over; NULL: there is no budget */
  const gint64 *rank_values; /* EBB_N_RANK_VALUES of each rank, rank by rank; NULL: there are no ranks */
  guint n_ranks;
} EbbTrainingReport;

/* One JSON object in one line. */
char *ebb_training_report_to_json (const EbbTrainingReport *self);

/* The numbers of a rank in the report, which ranks exchange after the training. */
#define EBB_N_RANK_VALUES (11 + 2 * EBB_N_COLLECTIVES)

/* Takes this rank's numbers: the memory of @device, and what the groups sent since their counters were reset. */
void ebb_training_report_take_rank (EbbDevice *device,
                                    EbbProcessGroup *const *groups,
                                    guint n_groups,
                                    gint64 *values);
/* The most bytes that the process ever had resident, libraries included; 0 if the system doesn't say. */
guint64 ebb_training_report_get_rss_peak (void);

G_END_DECLS
