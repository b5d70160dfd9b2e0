/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/args.h"
#include "tensor/device.h"

/* The rows of a batch, divided among the models of the ranks. Each model computes its rows in one part or in several.
 */

G_BEGIN_DECLS

typedef struct
{
  EbbArgs *values; /* of all models, on the host */
  gint64 n_rows;
  guint64 n_bytes; /* of its tensors */
  double *weights; /* [n_rows + 1]: how much the rows before each one count */
} EbbTrainBatch;

typedef struct
{
  EbbArgs *values; /* on the device */
  double weight;   /* 0: the part has one row that does not count */
} EbbTrainPart;

/* How the models divide a batch. */
typedef struct
{
  guint model, n_models;
  gint64 most_rows; /* of a part; 0: all rows of a model are one part */
} EbbTrainShare;

/* Keeps @values, which are not empty; an error names the key that does not fit. */
EbbTrainBatch *ebb_train_batch_new (EbbArgs *values,
                                    GError **error);
void ebb_train_batch_free (EbbTrainBatch *self);
double ebb_train_batch_get_weight (const EbbTrainBatch *self);
/* The elements of `tokens`; without them, the rows. */
gint64 ebb_train_batch_count_tokens (const EbbTrainBatch *self);
/* The parts in which each model computes its rows: as many as the model with the most rows needs. */
guint ebb_train_batch_count_parts (const EbbTrainBatch *self,
                                   const EbbTrainShare *share);
/* A part without rows gets one that does not count, because all ranks make the same calls. */
gboolean ebb_train_batch_take_part (const EbbTrainBatch *self,
                                    const EbbTrainShare *share,
                                    guint number,
                                    EbbDevice *device,
                                    EbbTrainPart *part,
                                    GError **error);

static inline void
ebb_train_part_clear (EbbTrainPart *self)
{
  g_clear_pointer (&self->values, ebb_args_unref);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (EbbTrainPart, ebb_train_part_clear)
G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbTrainBatch, ebb_train_batch_free)

G_END_DECLS
