/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The data of collectives over NCCL. NCCL sums f32 and integers itself, in an order of its own that is the same in
 * every run; a mean of f32 is the sum of x / n. Where its result would differ from what this library promises (16-bit
 * sums, minimum and maximum with NaN, means of integers), it only moves the data: each rank gets all versions of its
 * own shard and reduces them on the host. */
#include "dist/nccl/nccl-private.h"

#define ALIGNMENT 256

typedef struct
{
  const EbbCollectiveBuffer *buffer;
  gsize size;         /* of an element */
  char *full, *shard; /* on the device */
} Part;

typedef struct
{
  EbbNcclGroup *group;
  const EbbCollectiveCall *call;
  Part *parts;
  char *rows; /* on the device: all versions of the own shard of one part */
} Run;

static gsize
align (gsize size)
{
  return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static gboolean
is_native (EbbDType dtype,
           EbbReduceOp op)
{
  switch (dtype)
    {
    case EBB_DTYPE_F32: return op == EBB_REDUCE_OP_SUM || op == EBB_REDUCE_OP_MEAN;
    case EBB_DTYPE_I32:
    case EBB_DTYPE_I64:
    case EBB_DTYPE_U8:
    case EBB_DTYPE_BOOL: return op != EBB_REDUCE_OP_MEAN;
    case EBB_DTYPE_BF16:
    case EBB_DTYPE_F16:
    default: return FALSE;
    }
}

static ncclDataType_t
get_type (EbbDType dtype)
{
  switch (dtype)
    {
    case EBB_DTYPE_F32: return ncclFloat32;
    case EBB_DTYPE_BF16: return ncclBfloat16;
    case EBB_DTYPE_F16: return ncclFloat16;
    case EBB_DTYPE_I32: return ncclInt32;
    case EBB_DTYPE_I64: return ncclInt64;
    case EBB_DTYPE_U8:
    case EBB_DTYPE_BOOL:
    default: return ncclUint8;
    }
}

static ncclRedOp_t
get_op (EbbDType dtype,
        EbbReduceOp op)
{
  /* The sum of bools is their logical or. */
  if (op == EBB_REDUCE_OP_MAX || dtype == EBB_DTYPE_BOOL)
    return op == EBB_REDUCE_OP_MIN ? ncclMin : ncclMax;
  return op == EBB_REDUCE_OP_MIN ? ncclMin : op == EBB_REDUCE_OP_MEAN ? ncclAvg
                                                                      : ncclSum;
}

static char *
get_place (const Part *part,
           guint rank)
{
  return part->full + (gsize) part->buffer->starts[rank] * part->size;
}

static gsize
get_shard_size (Run *run,
                const Part *part)
{
  const gint64 n = run->call->which == EBB_COLLECTIVE_ALL_TO_ALL ? part->buffer->n_elements
                                                                 : part->buffer->counts[run->group->rank];

  return (gsize) n * part->size;
}

static gboolean
are_equal (Run *run,
           const EbbCollectiveBuffer *buffer)
{
  for (guint i = 1; i < run->group->size; i++)
    if (buffer->counts[i] != buffer->counts[0])
      return FALSE;
  return TRUE;
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

static gboolean
lies_inside (const Part *part)
{
  const char *full = part->buffer->full, *shard = part->buffer->shard;

  return shard >= full && shard < full + (gsize) part->buffer->n_elements * part->size;
}

/* Places the parts on the device, one after another, or uses them where they are. */
static gboolean
lay_out (Run *run,
         GError **error)
{
  const gboolean on_device = run->call->device != NULL;
  gsize total = 0, rows = 0;
  char *memory;

  for (guint i = 0; i < run->call->n_parts; i++)
    {
      Part *part = &run->parts[i];

      part->buffer = &run->call->parts[i];
      part->size = ebb_nccl_host->get_dtype_size (part->buffer->dtype);
      if (ebb_collective_reduces (run->call->which) && !is_native (part->buffer->dtype, run->call->op))
        rows = MAX (rows, get_shard_size (run, part) * run->group->size);
      if (!on_device)
        total += align ((gsize) part->buffer->n_elements * part->size) + align (get_shard_size (run, part));
    }
  memory = ebb_nccl_get_memory (&run->group->memory, total + rows + ALIGNMENT, error);
  if (memory == NULL)
    return FALSE;
  run->rows = memory + total;
  for (guint i = 0; i < run->call->n_parts; i++)
    {
      Part *part = &run->parts[i];

      part->full = on_device ? part->buffer->full : memory;
      if (!on_device)
        memory += align ((gsize) part->buffer->n_elements * part->size);
      if (part->buffer->shard == NULL)
        part->shard = get_place (part, run->group->rank);
      else if (on_device)
        part->shard = part->buffer->shard;
      else if (lies_inside (part))
        part->shard = part->full + ((char *) part->buffer->shard - (char *) part->buffer->full);
      else
        part->shard = memory;
      if (!on_device)
        memory += align (get_shard_size (run, part));
    }
  return TRUE;
}

static gboolean
copy (Run *run,
      void *to,
      const void *from,
      gsize size,
      enum cudaMemcpyKind kind,
      GError **error)
{
  return size == 0
         || ebb_nccl_check_cuda (cudaMemcpyAsync (to, from, size, kind, run->group->stream), "cudaMemcpyAsync", error);
}

/* Copies what the call reads to the device. */
static gboolean
put (Run *run,
     GError **error)
{
  const EbbCollective which = run->call->which;
  const gboolean is_gather = which == EBB_COLLECTIVE_ALL_GATHER;
  const gboolean is_result = which == EBB_COLLECTIVE_RECV
                             || (which == EBB_COLLECTIVE_BROADCAST && run->call->peer != run->group->rank);

  /* Compute on the device has its own queue. */
  if (run->call->device != NULL)
    return ebb_nccl_check_cuda (cudaDeviceSynchronize (), "cudaDeviceSynchronize", error);
  for (guint i = 0; i < run->call->n_parts && !is_result; i++)
    {
      const Part *part = &run->parts[i];
      const gsize own = get_shard_size (run, part), all = (gsize) part->buffer->n_elements * part->size;
      const char *shard = part->buffer->shard != NULL
                              ? part->buffer->shard
                              : (char *) part->buffer->full + (get_place (part, run->group->rank) - part->full);

      if (is_gather ? !copy (run, part->shard, shard, own, cudaMemcpyHostToDevice, error)
                    : !copy (run, part->full, part->buffer->full, all, cudaMemcpyHostToDevice, error))
        return FALSE;
    }
  return TRUE;
}

/* Copies the results back. */
static gboolean
take (Run *run,
      GError **error)
{
  const EbbCollective which = run->call->which;
  const gboolean to_shard = which == EBB_COLLECTIVE_REDUCE_SCATTER || which == EBB_COLLECTIVE_ALL_TO_ALL;

  for (guint i = 0; i < run->call->n_parts && run->call->device == NULL && which != EBB_COLLECTIVE_SEND; i++)
    {
      const Part *part = &run->parts[i];
      const gsize all = (gsize) part->buffer->n_elements * part->size;

      if (to_shard && part->buffer->shard != NULL
          && !copy (run, part->buffer->shard, part->shard, get_shard_size (run, part), cudaMemcpyDeviceToHost, error))
        return FALSE;
      if (!to_shard && !copy (run, part->buffer->full, part->full, all, cudaMemcpyDeviceToHost, error))
        return FALSE;
    }
  return ebb_nccl_wait (run->group, error);
}

/* -- on the device; enqueued within a group ------------------------------------------------------------------------ */

static void
gather (Run *run,
        const Part *part)
{
  EbbNcclGroup *self = run->group;
  const EbbCollectiveBuffer *buffer = part->buffer;
  const ncclDataType_t type = get_type (buffer->dtype);

  if (are_equal (run, buffer))
    {
      ncclAllGather (part->shard, part->full, (gsize) buffer->counts[0], type, self->comm, self->stream);
      return;
    }
  for (guint i = 0; i < self->size; i++)
    if (buffer->counts[i] > 0)
      ncclBroadcast (i == self->rank ? part->shard : get_place (part, i), get_place (part, i),
                     (gsize) buffer->counts[i], type, (int) i, self->comm, self->stream);
}

static void
reduce_scatter (Run *run,
                const Part *part)
{
  EbbNcclGroup *self = run->group;
  const EbbCollectiveBuffer *buffer = part->buffer;
  const ncclDataType_t type = get_type (buffer->dtype);
  const ncclRedOp_t op = get_op (buffer->dtype, run->call->op);

  if (are_equal (run, buffer))
    {
      ncclReduceScatter (part->full, part->shard, (gsize) buffer->counts[0], type, op, self->comm, self->stream);
      return;
    }
  for (guint i = 0; i < self->size; i++)
    if (buffer->counts[i] > 0)
      ncclReduce (get_place (part, i), i == self->rank ? part->shard : get_place (part, i), (gsize) buffer->counts[i],
                  type, op, (int) i, self->comm, self->stream);
}

static void
all_to_all (Run *run,
            const Part *part)
{
  EbbNcclGroup *self = run->group;
  const EbbCollectiveBuffer *buffer = part->buffer;
  const ncclDataType_t type = get_type (buffer->dtype);

  for (guint i = 0; i < self->size; i++)
    {
      const gsize n = (gsize) buffer->counts[i];

      if (n == 0)
        continue;
      ncclSend (get_place (part, i), n, type, (int) i, self->comm, self->stream);
      ncclRecv (part->shard + (gsize) buffer->starts[i] * part->size, n, type, (int) i, self->comm, self->stream);
    }
}

static void
enqueue (Run *run,
         const Part *part)
{
  EbbNcclGroup *self = run->group;
  const EbbCollectiveBuffer *buffer = part->buffer;
  const ncclDataType_t type = get_type (buffer->dtype);
  const gsize n = (gsize) buffer->n_elements;
  const int peer = (int) run->call->peer;

  switch (run->call->which)
    {
    case EBB_COLLECTIVE_ALL_REDUCE:
      ncclAllReduce (part->full, part->full, n, type, get_op (buffer->dtype, run->call->op), self->comm,
                     self->stream);
      break;
    case EBB_COLLECTIVE_REDUCE_SCATTER:
      reduce_scatter (run, part);
      break;
    case EBB_COLLECTIVE_ALL_GATHER:
      gather (run, part);
      break;
    case EBB_COLLECTIVE_BROADCAST:
      ncclBroadcast (part->full, part->full, n, type, peer, self->comm, self->stream);
      break;
    case EBB_COLLECTIVE_ALL_TO_ALL:
      all_to_all (run, part);
      break;
    case EBB_COLLECTIVE_SEND:
      ncclSend (part->full, n, type, peer, self->comm, self->stream);
      break;
    case EBB_COLLECTIVE_RECV:
      ncclRecv (part->full, n, type, peer, self->comm, self->stream);
      break;
    case EBB_COLLECTIVE_BARRIER:
    default:
      break;
    }
}

/* The end of a group reports the errors of its calls. */
typedef void (*EnqueueFunc) (Run *run,
                             const Part *part);

static gboolean
run_group (Run *run,
           EnqueueFunc func,
           const Part *parts,
           guint n_parts,
           GError **error)
{
  if (!ebb_nccl_check (run->group, ncclGroupStart (), "ncclGroupStart", error))
    return FALSE;
  for (guint i = 0; i < n_parts; i++)
    if (parts[i].buffer->n_elements > 0)
      func (run, &parts[i]);
  return ebb_nccl_check (run->group, ncclGroupEnd (), "ncclGroupEnd", error);
}

/* -- reduced on the host ------------------------------------------------------------------------------------------- */

static void
enqueue_exchange (Run *run,
                  const Part *part)
{
  EbbNcclGroup *self = run->group;
  const EbbCollectiveBuffer *buffer = part->buffer;
  const ncclDataType_t type = get_type (buffer->dtype);
  const gsize own = (gsize) buffer->counts[self->rank];

  for (guint i = 0; i < self->size; i++)
    {
      if (buffer->counts[i] > 0)
        ncclSend (get_place (part, i), (gsize) buffer->counts[i], type, (int) i, self->comm, self->stream);
      if (own > 0)
        ncclRecv (run->rows + i * own * part->size, own, type, (int) i, self->comm, self->stream);
    }
}

static gboolean
reduce_on_host (Run *run,
                const Part *part,
                GError **error)
{
  EbbNcclGroup *self = run->group;
  const gsize n_bytes = get_shard_size (run, part);
  const gboolean to_all = run->call->which == EBB_COLLECTIVE_ALL_REDUCE;
  char *rows = ebb_nccl_get_memory (&self->host_memory, MAX (1, n_bytes * self->size), error);
  char *dest = to_all ? get_place (part, self->rank) : part->shard;
  g_autofree const void **sources = g_new (const void *, self->size);

  if (rows == NULL || !run_group (run, enqueue_exchange, part, 1, error)
      || !copy (run, rows, run->rows, n_bytes * self->size, cudaMemcpyDeviceToHost, error)
      || !ebb_nccl_wait (self, error))
    return FALSE;
  for (guint i = 0; i < self->size; i++)
    sources[i] = rows + i * n_bytes;
  ebb_nccl_host->reduce (rows, sources, self->size, n_bytes / part->size, part->buffer->dtype, run->call->op);
  if (!copy (run, dest, rows, n_bytes, cudaMemcpyHostToDevice, error))
    return FALSE;
  if (to_all)
    {
      Part gathered = *part;

      gathered.shard = dest;
      return run_group (run, gather, &gathered, 1, error) && ebb_nccl_wait (self, error);
    }
  return ebb_nccl_wait (self, error);
}

/* -- one call ------------------------------------------------------------------------------------------------------ */

static gboolean
barrier (Run *run,
         GError **error)
{
  EbbNcclGroup *self = run->group;
  char *memory = ebb_nccl_get_memory (&self->memory, ALIGNMENT, error);

  return memory != NULL
         && ebb_nccl_check_cuda (cudaMemsetAsync (memory, 0, 1, self->stream), "cudaMemsetAsync", error)
         && ebb_nccl_check (self, ncclAllReduce (memory, memory, 1, ncclUint8, ncclMax, self->comm, self->stream),
                            "ncclAllReduce", error)
         && ebb_nccl_wait (self, error);
}

gboolean
ebb_nccl_collective (EbbNcclGroup *self,
                     const EbbCollectiveCall *call,
                     GError **error)
{
  g_autofree Part *parts = g_new0 (Part, MAX (1, call->n_parts));
  Run run = { .group = self, .call = call, .parts = parts };

  if (call->which == EBB_COLLECTIVE_BARRIER)
    return barrier (&run, error);
  if (!lay_out (&run, error) || !put (&run, error))
    return FALSE;
  if (!ebb_collective_reduces (call->which))
    return run_group (&run, enqueue, parts, call->n_parts, error) && take (&run, error);
  for (guint i = 0; i < call->n_parts; i++)
    {
      if (parts[i].buffer->n_elements == 0)
        continue;
      if (is_native (parts[i].buffer->dtype, call->op) ? !run_group (&run, enqueue, &parts[i], 1, error)
                                                       : !reduce_on_host (&run, &parts[i], error))
        return FALSE;
    }
  return take (&run, error);
}
