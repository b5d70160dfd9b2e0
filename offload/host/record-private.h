/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "offload/activation-store-private.h"
#include "offload/host/pool-private.h"

/* A block of a device's memory in host memory: its copy there, and the way back. */

G_BEGIN_DECLS

/* Host memory for one record, or for several that somebody lays out. */
typedef struct
{
  int ref_count;
  EbbHostPool *pool;
  EbbHostBlock *memory;
} EbbHostRoom;

EbbHostRoom *ebb_host_room_new (EbbHostPool *pool,
                                EbbDevice *device,
                                gsize size,
                                double *waited,
                                GError **error);
void ebb_host_room_unref (EbbHostRoom *room);

typedef struct _EbbHostRecord EbbHostRecord;

/* Begins to copy @block to byte @offset of @room, which the record takes a reference to. */
EbbHostRecord *ebb_host_record_new (EbbActivationStore *store,
                                    EbbHostRoom *room,
                                    gsize offset,
                                    EbbTensor *block,
                                    GError **error);
void ebb_host_record_free (EbbHostRecord *record);
/* Begins to bring the block back. */
void ebb_host_record_prefetch (EbbHostRecord *record);
/* The block, which computing may use from now on. */
EbbTensor *ebb_host_record_get (EbbHostRecord *record,
                                GError **error);

G_END_DECLS
