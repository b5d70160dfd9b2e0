/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/op-private.h"
#include "tensor/error-private.h"
#include "wrap/checkpoint/options.h"

/* The slot of a tensor that was made inside a frame: how the tensor looked, and its value after the recompute. */

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
} EbbFrameSlot;

/* Messages about a recompute that differs end with this. */
#define EBB_RECOMPUTE_CAUSES                                                                                       \
  "was an input changed in place, are there random numbers from outside Ebb's generators, or a branch on a state " \
  "that changes?"

/* 64 bits over the values in row-major order, whatever the strides; 0: there are none, as in a placeholder. */
guint64 ebb_slot_checksum (EbbTensor *tensor);
/* Whether @tensor's values are known not to be those of @checksum. */
gboolean ebb_slot_checksum_differs (guint64 checksum,
                                    EbbTensor *tensor);
void ebb_slot_describe (EbbFrameSlot *slot,
                        EbbTensor *tensor,
                        EbbDeterminismCheck check);
/* Fills the slot with the recomputed @tensor; FALSE with EBB_ERROR_RECOMPUTE if it is not what it was. */
gboolean ebb_slot_fill (EbbFrameSlot *slot,
                        guint index,
                        EbbTensor *tensor,
                        EbbDeterminismCheck check,
                        GError **error);
/* TRUE if @tensor is the slot's tensor of the forward or, if @again, of the recompute: it needs no other slot. */
gboolean ebb_slot_is_of (const EbbFrameSlot *slot,
                         EbbTensor *tensor,
                         gboolean again);
/* The value, which stays in the slot if @retain, or until all nodes that may ask have asked. */
EbbTensor *ebb_slot_take (EbbFrameSlot *slot,
                          gboolean retain,
                          GError **error);
void ebb_slot_clear (EbbFrameSlot *slot);

G_END_DECLS
