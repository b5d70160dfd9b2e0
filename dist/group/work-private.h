/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/queue-private.h"
#include "dist/group/process-group-private.h"

/* One call of a group, from its start until somebody has waited for it. */

G_BEGIN_DECLS

struct _EbbWork
{
  int ref_count;
  EbbGroupQueue *queue; /* whose lock guards done and error; NULL: done from the start */
  gboolean done;
  GError *error;
  /* Written before it is queued, then by whoever runs it; the tensors are let go of by the caller's thread. */
  EbbCollectiveCall call;
  EbbCollectiveBuffer *buffers;
  EbbTensor **tensors; /* [2 * n_parts] whole, piece or NULL */
  EbbTensor **staged;  /* [2 * n_parts] on the host, where the engine can't reach the tensor */
  gint64 *numbers;     /* counts and starts of all parts */
  char *purpose;       /* the call's */
  double seconds;      /* that it took, waiting for other ranks included; under the lock */
};

/* Done already: a collective in a recompute that has all it needs. */
EbbWork *ebb_work_new_done (void);
/* Lets go of the tensors; not on the group's thread, since freeing one may run code of the user. */
void ebb_work_release (EbbWork *work);

G_END_DECLS
