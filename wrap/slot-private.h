/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/tensor-private.h"
#include "wrap/checkpoint-options.h"

/* What is left of a tensor that was made inside a frame: how it looked, and from the recompute on its value. */

G_BEGIN_DECLS

typedef struct
{
  EbbView view; /* data unused */
  EbbDevice *device;
  guint64 checksum; /* with EBB_DETERMINISM_CHECK_VALUES */
  guint version;    /* of the storage, when the value was saved again */
  gboolean wanted;  /* a node may still ask for it */
  EbbTensor *value;
} EbbSlot;

void ebb_slot_describe (EbbSlot *slot,
                        EbbTensor *tensor,
                        EbbDeterminismCheck check);
/* Fills the slot with the recomputed @tensor; FALSE with EBB_ERROR_RECOMPUTE if it is not what it was. */
gboolean ebb_slot_fill (EbbSlot *slot,
                        guint index,
                        EbbTensor *tensor,
                        EbbDeterminismCheck check,
                        GError **error);
EbbTensor *ebb_slot_take (EbbSlot *slot,
                          GError **error);
void ebb_slot_clear (EbbSlot *slot);

G_END_DECLS
