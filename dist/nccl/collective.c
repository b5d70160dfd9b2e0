/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The data of collectives over NCCL. NCCL sums f32 and integers itself, in an order of its own that is the same in
 * every run; a mean of f32 is the sum of x / n. Where its result would differ from what this library promises (16-bit
 * sums, minimum and maximum with NaN, means of integers), it only moves the data: each rank gets all versions of its
 * own shard and reduces them. */
#include "dist/nccl/nccl-private.h"

/* -- one call on the device ---------------------------------------------------------------------------------------- */

/* In the queue for collectives, as the moves before and after it. */
static gboolean
reduce_on_device (EbbNcclRun *self,
                  const EbbNcclPart *part,
                  gsize n,
                  char *dest,
                  GError **error)
{
  EbbDevice *device = self->call->device;
  const gint64 n_ranks = self->group->size;
  const EbbView rows = { .data = self->rows,
                         .dtype = part->buffer->dtype,
                         .n_dims = 2,
                         .shape = { n_ranks, (gint64) n },
                         .strides = { (gint64) n, 1 } };
  EbbView result = {
    .data = dest,
    .dtype = part->buffer->dtype,
    .n_dims = 1,
    .shape = { (gint64) n },
    .strides = { 1 }
  };
  const EbbLaunch launch = { .kernel = EBB_KERNEL_REDUCE_RANKS,
                             .n_inputs = 1,
                             .n_outputs = 1,
                             .inputs = { &rows },
                             .outputs = { &result },
                             .params.reduce_ranks.op = (int) self->call->op };

  gboolean ok;

  /* Another thread may hold the device while it waits for work of all ranks, of which one has left. */
  pthread_mutex_unlock (&self->group->lock);
  ok = device->backend->streams->launch (device->index, EBB_STREAM_COLLECTIVE, &launch, error);
  pthread_mutex_lock (&self->group->lock);
  return ok && ebb_nccl_check_open (self->group, error);
}

static gboolean
mark_end (EbbNcclGroup *self,
          cudaStream_t stream,
          GError **error)
{
  if (self->enqueued == NULL
      && !ebb_nccl_check_cuda (cudaEventCreateWithFlags (&self->enqueued, cudaEventDisableTiming),
                               "cudaEventCreateWithFlags", error))
    return FALSE;
  return ebb_nccl_check_cuda (cudaEventRecord (self->enqueued, stream), "cudaEventRecord", error);
}

gboolean
ebb_nccl_run_on_device (EbbNcclGroup *self,
                        const EbbCollectiveCall *call,
                        GError **error)
{
  const EbbDevice *device = call->device;
  g_autofree EbbNcclPart *parts = g_new0 (EbbNcclPart, MAX (1, call->n_parts));
  EbbNcclRun run = { .group = self,
                     .call = call,
                     .parts = parts,
                     .stream = device->backend->streams->get_native_stream (device->index, EBB_STREAM_COLLECTIVE),
                     .rows = call->workspace,
                     .reduce_rows = reduce_on_device };

  self->ebb_device = call->device;
  for (guint i = 0; i < call->n_parts; i++)
    {
      EbbNcclPart *part = &parts[i];

      part->buffer = &call->parts[i];
      part->size = ebb_nccl_host->get_dtype_size (part->buffer->dtype);
      part->full = part->buffer->full;
      part->shard = part->buffer->shard != NULL ? part->buffer->shard : ebb_nccl_get_place (part, self->rank);
    }
  return ebb_nccl_enqueue (&run, error) && mark_end (self, run.stream, error);
}

/* -- how NCCL names it --------------------------------------------------------------------------------------------- */

gboolean
ebb_nccl_is_native (EbbDType dtype,
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
  return op == EBB_REDUCE_OP_MIN ? ncclMin : (op == EBB_REDUCE_OP_MEAN ? ncclAvg : ncclSum);
}

char *
ebb_nccl_get_place (const EbbNcclPart *part,
                    guint rank)
{
  return part->full + (gsize) part->buffer->starts[rank] * part->size;
}

gsize
ebb_nccl_get_shard_size (const EbbNcclRun *self,
                         const EbbNcclPart *part)
{
  const gint64 n = self->call->which == EBB_COLLECTIVE_ALL_TO_ALL ? part->buffer->n_elements
                                                                  : part->buffer->counts[self->group->rank];

  return (gsize) n * part->size;
}

gsize
ebb_nccl_get_rows_size (EbbNcclGroup *group,
                        const EbbCollectiveCall *call)
{
  gsize size = 0;

  for (guint i = 0; i < call->n_parts && ebb_collective_reduces (call->which); i++)
    if (!ebb_nccl_is_native (call->parts[i].dtype, call->op))
      size = MAX (size, (gsize) call->parts[i].counts[group->rank] * group->size
                            * ebb_nccl_host->get_dtype_size (call->parts[i].dtype));
  return size;
}

static gboolean
are_equal (EbbNcclRun *run,
           const EbbCollectiveBuffer *buffer)
{
  for (guint i = 1; i < run->group->size; i++)
    if (buffer->counts[i] != buffer->counts[0])
      return FALSE;
  return TRUE;
}

/* -- on the device; enqueued within a group ------------------------------------------------------------------------ */

static void
gather (EbbNcclRun *run,
        const EbbNcclPart *part)
{
  EbbNcclGroup *self = run->group;
  const EbbCollectiveBuffer *buffer = part->buffer;
  const ncclDataType_t type = get_type (buffer->dtype);

  if (are_equal (run, buffer))
    {
      ncclAllGather (part->shard, part->full, (gsize) buffer->counts[0], type, self->comm, run->stream);
      return;
    }
  for (guint i = 0; i < self->size; i++)
    if (buffer->counts[i] > 0)
      ncclBroadcast (i == self->rank ? part->shard : ebb_nccl_get_place (part, i), ebb_nccl_get_place (part, i),
                     (gsize) buffer->counts[i], type, (int) i, self->comm, run->stream);
}

static void
reduce_scatter (EbbNcclRun *run,
                const EbbNcclPart *part)
{
  EbbNcclGroup *self = run->group;
  const EbbCollectiveBuffer *buffer = part->buffer;
  const ncclDataType_t type = get_type (buffer->dtype);
  const ncclRedOp_t op = get_op (buffer->dtype, run->call->op);

  if (are_equal (run, buffer))
    {
      ncclReduceScatter (part->full, part->shard, (gsize) buffer->counts[0], type, op, self->comm, run->stream);
      return;
    }
  for (guint i = 0; i < self->size; i++)
    if (buffer->counts[i] > 0)
      ncclReduce (ebb_nccl_get_place (part, i), i == self->rank ? part->shard : ebb_nccl_get_place (part, i),
                  (gsize) buffer->counts[i], type, op, (int) i, self->comm, run->stream);
}

static void
all_to_all (EbbNcclRun *run,
            const EbbNcclPart *part)
{
  EbbNcclGroup *self = run->group;
  const EbbCollectiveBuffer *buffer = part->buffer;
  const ncclDataType_t type = get_type (buffer->dtype);

  for (guint i = 0; i < self->size; i++)
    {
      const gsize n = (gsize) buffer->counts[i];

      if (n == 0)
        continue;
      ncclSend (ebb_nccl_get_place (part, i), n, type, (int) i, self->comm, run->stream);
      ncclRecv (part->shard + (gsize) buffer->starts[i] * part->size, n, type, (int) i, self->comm, run->stream);
    }
}

static void
enqueue (EbbNcclRun *run,
         const EbbNcclPart *part)
{
  EbbNcclGroup *self = run->group;
  const EbbCollectiveBuffer *buffer = part->buffer;
  const ncclDataType_t type = get_type (buffer->dtype);
  const gsize n = (gsize) buffer->n_elements;
  const int peer = (int) run->call->peer;

  switch (run->call->which)
    {
    case EBB_COLLECTIVE_ALL_REDUCE:
      ncclAllReduce (part->full, part->full, n, type, get_op (buffer->dtype, run->call->op), self->comm, run->stream);
      break;
    case EBB_COLLECTIVE_REDUCE_SCATTER:
      reduce_scatter (run, part);
      break;
    case EBB_COLLECTIVE_ALL_GATHER:
      gather (run, part);
      break;
    case EBB_COLLECTIVE_BROADCAST:
      ncclBroadcast (part->full, part->full, n, type, peer, self->comm, run->stream);
      break;
    case EBB_COLLECTIVE_ALL_TO_ALL:
      all_to_all (run, part);
      break;
    case EBB_COLLECTIVE_SEND:
      ncclSend (part->full, n, type, peer, self->comm, run->stream);
      break;
    case EBB_COLLECTIVE_RECV:
      ncclRecv (part->full, n, type, peer, self->comm, run->stream);
      break;
    case EBB_COLLECTIVE_BARRIER:
    default:
      break;
    }
}

/* The end of a group reports the errors of its calls. */
typedef void (*EnqueueFunc) (EbbNcclRun *run,
                             const EbbNcclPart *part);

static gboolean
run_group (EbbNcclRun *run,
           EnqueueFunc func,
           const EbbNcclPart *parts,
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

/* -- moved, and reduced here --------------------------------------------------------------------------------------- */

static void
enqueue_exchange (EbbNcclRun *run,
                  const EbbNcclPart *part)
{
  EbbNcclGroup *self = run->group;
  const EbbCollectiveBuffer *buffer = part->buffer;
  const ncclDataType_t type = get_type (buffer->dtype);
  const gsize own = (gsize) buffer->counts[self->rank];

  for (guint i = 0; i < self->size; i++)
    {
      if (buffer->counts[i] > 0)
        ncclSend (ebb_nccl_get_place (part, i), (gsize) buffer->counts[i], type, (int) i, self->comm, run->stream);
      if (own > 0)
        ncclRecv (run->rows + i * own * part->size, own, type, (int) i, self->comm, run->stream);
    }
}

static gboolean
reduce_here (EbbNcclRun *run,
             const EbbNcclPart *part,
             GError **error)
{
  EbbNcclGroup *self = run->group;
  const gsize n = (gsize) part->buffer->counts[self->rank];
  const gboolean to_all = run->call->which == EBB_COLLECTIVE_ALL_REDUCE;
  char *dest = to_all ? ebb_nccl_get_place (part, self->rank) : part->shard;
  EbbNcclPart gathered = *part;

  if (!run_group (run, enqueue_exchange, part, 1, error)
      || (n > 0 && !run->reduce_rows (run, part, n, dest, error)))
    return FALSE;
  gathered.shard = dest;
  return !to_all || run_group (run, gather, &gathered, 1, error);
}

/* -- one call ------------------------------------------------------------------------------------------------------ */

gboolean
ebb_nccl_enqueue (EbbNcclRun *run,
                  GError **error)
{
  const EbbCollectiveCall *call = run->call;

  if (!ebb_collective_reduces (call->which))
    return run_group (run, enqueue, run->parts, call->n_parts, error);
  for (guint i = 0; i < call->n_parts; i++)
    {
      const EbbNcclPart *part = &run->parts[i];

      if (part->buffer->n_elements == 0)
        continue;
      if (ebb_nccl_is_native (part->buffer->dtype, call->op) ? !run_group (run, enqueue, part, 1, error)
                                                             : !reduce_here (run, part, error))
        return FALSE;
    }
  return TRUE;
}
