/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/op-private.h"
#include "wrap/checkpoint/options.h"

/* What is left of a tensor that was made inside a frame: how it looked, and from the recompute on its value. */

G_BEGIN_DECLS

typedef struct
{
  EbbView view; /* data unused */
  EbbDevice *device;
  const EbbOp *op;  /* that saved it */
  guint64 birth;    /* of its storage, and... */
  guint64 n_bytes;  /* its size */
  guint64 checksum; /* with EBB_DETERMINISM_CHECK_VALUES */
  guint version;    /* of the storage, when the value was saved again */
  gint64 offset;
  guint n_wanted; /* nodes that may still ask for it */
  guint n_taken;  /* how many of them have asked since it was filled */
  guint n_fills;
  guint64 again; /* birth of the recomputed storage */
  EbbTensor *value;
} EbbSlot;

/* How messages about a recompute that differs end. */
#define EBB_RECOMPUTE_CAUSES                                                                                       \
  "was an input changed in place, are there random numbers from outside Ebb's generators, or a branch on a state " \
  "that changes?"

/* 64 bits over the values in row-major order, whatever the strides; 0: there are none, as in a placeholder. */
guint64 ebb_slot_checksum (EbbTensor *tensor);
/* Whether @tensor's values are known not to be those of @checksum. */
gboolean ebb_slot_checksum_differs (guint64 checksum,
                                    EbbTensor *tensor);
void ebb_slot_describe (EbbSlot *slot,
                        EbbTensor *tensor,
                        EbbDeterminismCheck check);
/* Fills the slot with the recomputed @tensor; FALSE with EBB_ERROR_RECOMPUTE if it is not what it was. */
gboolean ebb_slot_fill (EbbSlot *slot,
                        guint index,
                        EbbTensor *tensor,
                        EbbDeterminismCheck check,
                        GError **error);
/* TRUE if @tensor is the slot's, of the forward or, if @again, of the recompute: it then needs no slot of its own. */
gboolean ebb_slot_is_of (const EbbSlot *slot,
                         EbbTensor *tensor,
                         gboolean again);
/* What was filled in, which stays there if @retain, or until all that may ask have. */
EbbTensor *ebb_slot_take (EbbSlot *slot,
                          gboolean retain,
                          GError **error);
void ebb_slot_clear (EbbSlot *slot);

G_END_DECLS
