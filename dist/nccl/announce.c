/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/nccl/nccl-private.h"

/* Each rank tells what it is about to do, before it does so: over MPI, which also sees who is late or has died; or,
 * where there is none, over NCCL itself, which sees neither but for the time that passes. */

/* Of all ranks, or of two. */
static gboolean
exchange (EbbNcclGroup *self,
          const EbbCollectiveCall *call,
          EbbAnnouncement *messages,
          GError **error)
{
  const gsize size = sizeof (EbbAnnouncement), n_bytes = size * self->size;
  char *memory = ebb_nccl_get_memory (self, n_bytes, error);
  char *own = memory + size * self->rank;

  if (memory == NULL
      || !ebb_nccl_check_cuda (cudaMemcpyAsync (own, &messages[self->rank], size, cudaMemcpyHostToDevice, self->stream),
                               "cudaMemcpyAsync", error)
      || !ebb_nccl_check (self, ncclGroupStart (), "ncclGroupStart", error))
    return FALSE;
  if (!ebb_collective_is_pair (call->which))
    ncclAllGather (own, memory, size, ncclUint8, self->comm, self->stream);
  else
    {
      ncclSend (own, size, ncclUint8, (int) call->peer, self->comm, self->stream);
      ncclRecv (memory + size * call->peer, size, ncclUint8, (int) call->peer, self->comm, self->stream);
    }
  return ebb_nccl_check (self, ncclGroupEnd (), "ncclGroupEnd", error)
         && ebb_nccl_check_cuda (cudaMemcpyAsync (messages, memory, n_bytes, cudaMemcpyDeviceToHost, self->stream),
                                 "cudaMemcpyAsync", error)
         && ebb_nccl_wait (self, error);
}

static gboolean
announce_over_nccl (EbbNcclGroup *self,
                    const EbbCollectiveCall *call,
                    GError **error)
{
  EbbAnnouncement *messages =
      (EbbAnnouncement *) (gpointer) ebb_nccl_get_host_memory (self, sizeof (EbbAnnouncement) * self->size, error);

  if (messages == NULL)
    return FALSE;
  ebb_nccl_host->announce (call, &messages[self->rank]);
  if (!exchange (self, call, messages, error))
    return FALSE;
  for (guint i = 0; i < self->size; i++)
    if (i != self->rank && (!ebb_collective_is_pair (call->which) || i == call->peer)
        && !ebb_nccl_host->check_announcement (call, self->rank, &messages[i], i, error))
      return FALSE;
  return TRUE;
}

gboolean
ebb_nccl_announce (EbbNcclGroup *self,
                   const EbbCollectiveCall *call,
                   GError **error)
{
  const EbbProcessGroupFuncs *funcs;
  EbbCollectiveCall announced = *call;

  if (!self->checks || self->size == 1)
    return TRUE;
  if (self->mpi == NULL)
    return announce_over_nccl (self, call, error);
  funcs = ((EbbProcessGroupClass *) G_OBJECT_GET_CLASS (self->mpi))->funcs;
  announced.is_announcement = TRUE;
  return funcs->run (self->mpi, &announced, error);
}
