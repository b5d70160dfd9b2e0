/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/queue-private.h"
#include "dist/group/process-group-private.h"

/* What every group has, whatever its engine. */

G_BEGIN_DECLS

/* The ranks with which this one shares a model, see mpu.c. */
typedef struct
{
  GWeakRef owner; /* the model or mesh that says so */
  guint rank, size, first;
  gboolean several; /* others say something else */
} EbbModelRanks;

typedef struct
{
  guint rank, size;
  gboolean is_part;          /* of another group, by ebb_process_group_split () */
  guint own, first;          /* numbers in the group that is no part: this rank's, if @is_part, and that of rank 0 */
  gboolean is_divided_among; /* a model was, by ebb_parallelize () */
  EbbModelRanks known[2];    /* of the default group: by a model, by a mesh */
  char *backend, *name;
  double timeout;
  guint64 sequence; /* of the last call */
  guint64 n_calls[EBB_N_COLLECTIVES];
  guint64 n_bytes[EBB_N_COLLECTIVES];
  EbbGroupQueue *queue;
} EbbGroupState;

EbbGroupState *ebb_process_group_get_state (EbbProcessGroup *self);
#define ebb_process_group_get_funcs(self) ((const EbbProcessGroupFuncs *) EBB_PROCESS_GROUP_GET_CLASS (self)->funcs)

/* Brings the tensors of @work to where the engine reaches them, lets it do the call, and brings back what it gave. */
gboolean ebb_process_group_do (EbbProcessGroup *self,
                               EbbWork *work,
                               GError **error);

/* What all ranks have to tell, one after another: counts[r] elements of rank r; on the host, not counted. */
EbbTensor *ebb_process_group_exchange (EbbProcessGroup *self,
                                       const void *mine,
                                       const gint64 *counts,
                                       EbbDType dtype,
                                       GError **error);

G_END_DECLS
