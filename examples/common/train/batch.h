/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/train/trainer.h"

/* The rows of text of a batch, divided among the models of the ranks, which compute theirs in one part or in some, as
 * --micro-batch says. */

G_BEGIN_DECLS

typedef struct
{
  EbbTensor *tokens, *targets, *starts; /* on the host, of all models; starts: NULL if rows are not documents */
  gint64 first, n_rows;                 /* this model's; it may have none */
  gint64 n_targets;                     /* tokens that all models predict */
  guint n_parts;                        /* the same for all models */
} Batch;

/* On the device. */
typedef struct
{
  EbbTensor *tokens, *targets, *starts;
  gint64 n_targets; /* tokens that are predicted */
} BatchPart;

/* The rows of a batch of @n_all that belong to this rank's model. */
void batch_share_rows (const Trainer *trainer,
                       gint64 n_all,
                       gint64 *first,
                       gint64 *n_rows);
/* The most rows that a model computes at one time. */
gint64 batch_get_part_rows (const Trainer *trainer,
                            gint64 n_all);
/* Takes the next @n_rows rows of @dataset. */
gboolean batch_take (Batch *self,
                     const Trainer *trainer,
                     EbbDataset *dataset,
                     gint64 n_rows,
                     GError **error);
/* Takes the batches of the next step, of Batch; @n_targets: tokens that all models predict in them together. */
GArray *batch_take_step (const Trainer *trainer,
                         gint64 *n_targets,
                         GError **error);
void batch_clear (Batch *self);
/* A part without rows gets one that does not count, because all ranks make the same calls. */
gboolean batch_take_part (const Batch *self,
                          const Trainer *trainer,
                          guint number,
                          BatchPart *part,
                          GError **error);
void batch_part_clear (BatchPart *self);

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Batch, batch_clear)
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (BatchPart, batch_part_clear)

G_END_DECLS
