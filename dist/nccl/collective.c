/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The data of collectives over NCCL. NCCL sums f32 and integers itself, in an order of its own that is the same in
 * every run; a mean of f32 is the sum of x / n. Where its result would differ from what this library promises (16-bit
 * sums, minimum and maximum with NaN, means of integers), it only moves the data: each rank gets all versions of its
 * own shard and reduces them. */
#include "dist/nccl/nccl-private.h"

#include <string.h>

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
  cudaStream_t stream;
} Run;

/* In the queue for collectives, as the moves before and after it: reduces the workspace, all versions of the own shard
 * of @part, to its @n elements at @dest. */
static gboolean
reduce_rows (Run *self,
             const Part *part,
             gsize n,
             char *dest,
             GError **error)
{
  EbbDevice *device = self->call->device;
  const gint64 n_ranks = self->group->size;
  const EbbView rows = { .data = self->call->workspace,
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

/* -- how NCCL names it --------------------------------------------------------------------------------------------- */

/* FALSE: NCCL moves the data of a reduction, and Ebb reduces them. */
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
  return op == EBB_REDUCE_OP_MIN ? ncclMin : (op == EBB_REDUCE_OP_MEAN ? ncclAvg : ncclSum);
}

static char *
get_place (const Part *part,
           guint rank)
{
  return part->full + (gsize) part->buffer->starts[rank] * part->size;
}

gsize
ebb_nccl_get_rows_size (EbbNcclGroup *group,
                        const EbbCollectiveCall *call)
{
  gsize size = 0;

  for (guint i = 0; i < call->n_parts && ebb_collective_reduces (call->which); i++)
    if (!is_native (call->parts[i].dtype, call->op))
      size = MAX (size, (gsize) call->parts[i].counts[group->rank] * group->size
                            * ebb_nccl_host->get_dtype_size (call->parts[i].dtype));
  return size;
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
      ncclAllGather (part->shard, part->full, (gsize) buffer->counts[0], type, self->comm, run->stream);
      return;
    }
  for (guint i = 0; i < self->size; i++)
    if (buffer->counts[i] > 0)
      ncclBroadcast (i == self->rank ? part->shard : get_place (part, i), get_place (part, i),
                     (gsize) buffer->counts[i], type, (int) i, self->comm, run->stream);
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
      ncclReduceScatter (part->full, part->shard, (gsize) buffer->counts[0], type, op, self->comm, run->stream);
      return;
    }
  for (guint i = 0; i < self->size; i++)
    if (buffer->counts[i] > 0)
      ncclReduce (get_place (part, i), i == self->rank ? part->shard : get_place (part, i),
                  (gsize) buffer->counts[i], type, op, (int) i, self->comm, run->stream);
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
      ncclSend (get_place (part, i), n, type, (int) i, self->comm, run->stream);
      ncclRecv (part->shard + (gsize) buffer->starts[i] * part->size, n, type, (int) i, self->comm, run->stream);
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

/* -- moved, and reduced here --------------------------------------------------------------------------------------- */

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
        ncclSend (get_place (part, i), (gsize) buffer->counts[i], type, (int) i, self->comm, run->stream);
      if (own > 0)
        ncclRecv ((char *) run->call->workspace + i * own * part->size, own, type, (int) i, self->comm, run->stream);
    }
}

static gboolean
reduce_here (Run *run,
             const Part *part,
             GError **error)
{
  EbbNcclGroup *self = run->group;
  const gsize n = (gsize) part->buffer->counts[self->rank];
  const gboolean to_all = run->call->which == EBB_COLLECTIVE_ALL_REDUCE;
  char *dest = to_all ? get_place (part, self->rank) : part->shard;
  Part gathered = *part;

  if (!run_group (run, enqueue_exchange, part, 1, error)
      || (n > 0 && !reduce_rows (run, part, n, dest, error)))
    return FALSE;
  gathered.shard = dest;
  return !to_all || run_group (run, gather, &gathered, 1, error);
}

/* -- one call ------------------------------------------------------------------------------------------------------ */

static gboolean
enqueue_parts (Run *run,
               GError **error)
{
  const EbbCollectiveCall *call = run->call;

  if (!ebb_collective_reduces (call->which))
    return run_group (run, enqueue, run->parts, call->n_parts, error);
  for (guint i = 0; i < call->n_parts; i++)
    {
      const Part *part = &run->parts[i];

      if (part->buffer->n_elements == 0)
        continue;
      if (is_native (part->buffer->dtype, call->op) ? !run_group (run, enqueue, part, 1, error)
                                                    : !reduce_here (run, part, error))
        return FALSE;
    }
  return TRUE;
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

static gboolean
run_on_device (Run *run,
               GError **error)
{
  EbbNcclGroup *self = run->group;
  const EbbDevice *device = run->call->device;

  self->ebb_device = run->call->device;
  run->stream = device->backend->streams->get_native_stream (device->index, EBB_STREAM_COLLECTIVE);
  for (guint i = 0; i < run->call->n_parts; i++)
    {
      Part *part = &run->parts[i];

      part->full = part->buffer->full;
      part->shard = part->buffer->shard != NULL ? part->buffer->shard : get_place (part, self->rank);
    }
  return enqueue_parts (run, error) && mark_end (self, run->stream, error);
}

/* -- tensors on the host: gathered, broadcast, or none at all ------------------------------------------------------ */

#define ALIGNMENT 256

static gsize
align (gsize size)
{
  return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static gsize
get_full_size (const Part *part)
{
  return (gsize) part->buffer->n_elements * part->size;
}

/* Copies what this rank gives of @part to @staged, its place in pinned memory, and from there to the device. */
static gboolean
put (Run *run,
     const Part *part,
     char *staged,
     GError **error)
{
  const EbbCollectiveBuffer *buffer = part->buffer;
  const guint rank = run->group->rank;
  gsize start = 0, size = run->call->peer == rank ? get_full_size (part) : 0;
  const char *own = buffer->full;

  if (run->call->which == EBB_COLLECTIVE_ALL_GATHER)
    {
      start = (gsize) buffer->starts[rank] * part->size;
      size = (gsize) buffer->counts[rank] * part->size;
      own = buffer->shard != NULL ? buffer->shard : own + start;
    }
  if (size == 0)
    return TRUE;
  memcpy (staged + start, own, size);
  return ebb_nccl_check_cuda (
      cudaMemcpyAsync (part->full + start, staged + start, size, cudaMemcpyHostToDevice, run->stream),
      "cudaMemcpyAsync", error);
}

static gboolean
meet (Run *run,
      char *device,
      GError **error)
{
  EbbNcclGroup *self = run->group;

  return ebb_nccl_check_cuda (cudaMemsetAsync (device, 0, 1, run->stream), "cudaMemsetAsync", error)
         && ebb_nccl_check (self, ncclAllReduce (device, device, 1, ncclUint8, ncclMax, self->comm, run->stream),
                            "ncclAllReduce", error)
         && ebb_nccl_wait (self, error);
}

/* Full tensors lie one after another, in pinned memory as on the device. */
static gboolean
run_on_host (Run *run,
             GError **error)
{
  EbbNcclGroup *self = run->group;
  const guint n_parts = run->call->n_parts;
  gsize total = ALIGNMENT, offset = 0;
  char *device, *host;

  for (guint i = 0; i < n_parts; i++)
    total += align (get_full_size (&run->parts[i]));
  device = ebb_nccl_get_memory (&self->memory, total, error);
  host = device != NULL ? ebb_nccl_get_memory (&self->host_memory, total, error) : NULL;
  if (host == NULL)
    return FALSE;
  run->stream = self->stream;
  if (run->call->which == EBB_COLLECTIVE_BARRIER)
    return meet (run, device, error);
  for (guint i = 0; i < n_parts; i++)
    {
      Part *part = &run->parts[i];

      part->full = device + offset;
      part->shard = get_place (part, self->rank);
      if (!put (run, part, host + offset, error))
        return FALSE;
      offset += align (get_full_size (part));
    }
  if (!enqueue_parts (run, error)
      || (offset > 0
          && !ebb_nccl_check_cuda (cudaMemcpyAsync (host, device, offset, cudaMemcpyDeviceToHost, run->stream),
                                   "cudaMemcpyAsync", error))
      || !ebb_nccl_wait (self, error))
    return FALSE;
  for (guint i = 0; i < n_parts; i++)
    if (get_full_size (&run->parts[i]) > 0)
      memcpy (run->parts[i].buffer->full, host + (run->parts[i].full - device), get_full_size (&run->parts[i]));
  return TRUE;
}

gboolean
ebb_nccl_run (EbbNcclGroup *self,
              const EbbCollectiveCall *call,
              GError **error)
{
  g_autofree Part *parts = g_new0 (Part, MAX (1, call->n_parts));
  Run run = { .group = self, .call = call, .parts = parts };

  for (guint i = 0; i < call->n_parts; i++)
    parts[i] = (Part){ .buffer = &call->parts[i], .size = ebb_nccl_host->get_dtype_size (call->parts[i].dtype) };
  return call->device != NULL ? run_on_device (&run, error) : run_on_host (&run, error);
}
