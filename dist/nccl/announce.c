/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/nccl/nccl-private.h"

#include <string.h>

/* Each rank tells what it is about to do, before it does so: over MPI, which also sees who is late or has died; or,
 * where there is none, over NCCL itself, which sees neither but for the time that passes. */

typedef struct
{
  guint32 which, peer;
  guint64 sequence, signature;
  char text[488];
} Message;

G_STATIC_ASSERT (sizeof (Message) == 512);

static gboolean
is_pairwise (EbbCollective which)
{
  return which == EBB_COLLECTIVE_SEND || which == EBB_COLLECTIVE_RECV;
}

static gboolean
is_same_call (EbbNcclGroup *self,
              const EbbCollectiveCall *call,
              const Message *message)
{
  EbbCollective wanted = call->which == EBB_COLLECTIVE_SEND   ? EBB_COLLECTIVE_RECV
                         : call->which == EBB_COLLECTIVE_RECV ? EBB_COLLECTIVE_SEND
                                                              : call->which;

  return message->which == (guint32) wanted && message->signature == call->signature
         && message->peer == (is_pairwise (call->which) ? self->rank : call->peer);
}

/* Of all ranks, or of two. */
static gboolean
exchange (EbbNcclGroup *self,
          const EbbCollectiveCall *call,
          Message *messages,
          GError **error)
{
  const gsize size = sizeof (Message), n_bytes = size * self->size;
  char *memory = ebb_nccl_get_memory (self, n_bytes, error);
  char *own = memory + size * self->rank;

  if (memory == NULL
      || !ebb_nccl_check_cuda (cudaMemcpyAsync (own, &messages[self->rank], size, cudaMemcpyHostToDevice, self->stream),
                               "cudaMemcpyAsync", error)
      || !ebb_nccl_check (self, ncclGroupStart (), "ncclGroupStart", error))
    return FALSE;
  if (!is_pairwise (call->which))
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
  Message *messages = (Message *) (gpointer) ebb_nccl_get_host_memory (self, sizeof (Message) * self->size, error);
  g_autofree char *text = ebb_nccl_host->call_to_string (call);
  Message *own;

  if (messages == NULL)
    return FALSE;
  own = &messages[self->rank];
  memset (own, 0, sizeof *own);
  own->which = (guint32) call->which;
  own->peer = call->peer;
  own->sequence = call->sequence;
  own->signature = call->signature;
  g_strlcpy (own->text, text, sizeof own->text);
  if (!exchange (self, call, messages, error))
    return FALSE;
  for (guint i = 0; i < self->size; i++)
    if (i != self->rank && (!is_pairwise (call->which) || i == call->peer) && !is_same_call (self, call, &messages[i]))
      {
        g_set_error (error, EBB_NCCL_ERROR, EBB_ERROR_PROCESS_GROUP,
                     "rank %u calls %s%s (call %" G_GUINT64_FORMAT " there, %" G_GUINT64_FORMAT " here)", i,
                     messages[i].text, strcmp (messages[i].text, text) == 0 ? " with other shards" : "",
                     messages[i].sequence, call->sequence);
        return FALSE;
      }
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
