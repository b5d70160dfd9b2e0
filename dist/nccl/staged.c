/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Calls of tensors on the host: they go through pinned memory to buffers on the device, and the results back. */
#include "dist/nccl/nccl-private.h"

#include <string.h>

#define ALIGNMENT 256

/* How the parts lie, in pinned memory as on the device: one after another, the shards behind their full tensors. */
typedef struct
{
  EbbNcclRun run;
  char *host, *device;
} Staged;

static gsize
align (gsize size)
{
  return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static gsize
get_full_size (const EbbNcclPart *part)
{
  return (gsize) part->buffer->n_elements * part->size;
}

static char *
get_host (const Staged *self,
          const char *on_device)
{
  return self->host + (on_device - self->device);
}

/* Where the shard's elements are among the caller's. */
static char *
get_own_shard (const Staged *self,
               const EbbNcclPart *part)
{
  if (part->buffer->shard != NULL)
    return part->buffer->shard;
  return (char *) part->buffer->full + (ebb_nccl_get_place (part, self->run.group->rank) - part->full);
}

static gboolean
lies_inside (const EbbNcclPart *part)
{
  const char *full = part->buffer->full, *shard = part->buffer->shard;

  return shard >= full && shard < full + get_full_size (part);
}

static gboolean
lay_out (Staged *self,
         GError **error)
{
  EbbNcclGroup *group = self->run.group;
  const EbbCollectiveCall *call = self->run.call;
  const gsize rows = ebb_nccl_get_rows_size (group, call);
  gsize total = 0, offset = 0;

  for (guint i = 0; i < call->n_parts; i++)
    {
      EbbNcclPart *part = &self->run.parts[i];

      part->buffer = &call->parts[i];
      part->size = ebb_nccl_host->get_dtype_size (part->buffer->dtype);
      total += align (get_full_size (part)) + align (ebb_nccl_get_shard_size (&self->run, part));
    }
  self->device = ebb_nccl_get_memory (&group->memory, total + rows + ALIGNMENT, error);
  self->host = self->device != NULL ? ebb_nccl_get_memory (&group->host_memory, total + rows + ALIGNMENT, error) : NULL;
  if (self->host == NULL)
    return FALSE;
  self->run.rows = self->device + total;
  for (guint i = 0; i < call->n_parts; i++)
    {
      EbbNcclPart *part = &self->run.parts[i];

      part->full = self->device + offset;
      offset += align (get_full_size (part));
      if (part->buffer->shard == NULL)
        part->shard = ebb_nccl_get_place (part, group->rank);
      else if (lies_inside (part))
        part->shard = part->full + ((char *) part->buffer->shard - (char *) part->buffer->full);
      else
        part->shard = self->device + offset;
      offset += align (ebb_nccl_get_shard_size (&self->run, part));
    }
  return TRUE;
}

static gboolean
upload (Staged *self,
        char *to,
        const char *from,
        gsize size,
        GError **error)
{
  if (size == 0)
    return TRUE;
  memcpy (get_host (self, to), from, size);
  return ebb_nccl_check_cuda (
      cudaMemcpyAsync (to, get_host (self, to), size, cudaMemcpyHostToDevice, self->run.stream), "cudaMemcpyAsync",
      error);
}

static gboolean
download (Staged *self,
          char *from,
          gsize size,
          GError **error)
{
  return size == 0
         || ebb_nccl_check_cuda (
             cudaMemcpyAsync (get_host (self, from), from, size, cudaMemcpyDeviceToHost, self->run.stream),
             "cudaMemcpyAsync", error);
}

/* Copies the operands of the call to the device. */
static gboolean
put (Staged *self,
     GError **error)
{
  const EbbCollectiveCall *call = self->run.call;
  const gboolean is_result = call->which == EBB_COLLECTIVE_RECV
                             || (call->which == EBB_COLLECTIVE_BROADCAST && call->peer != self->run.group->rank);

  for (guint i = 0; i < call->n_parts && !is_result; i++)
    {
      const EbbNcclPart *part = &self->run.parts[i];

      if (call->which == EBB_COLLECTIVE_ALL_GATHER
              ? !upload (self, part->shard, get_own_shard (self, part), ebb_nccl_get_shard_size (&self->run, part),
                         error)
              : !upload (self, part->full, part->buffer->full, get_full_size (part), error))
        return FALSE;
    }
  return TRUE;
}

/* Copies the results back. */
static gboolean
take (Staged *self,
      GError **error)
{
  const EbbCollectiveCall *call = self->run.call;
  const gboolean to_shard =
      call->which == EBB_COLLECTIVE_REDUCE_SCATTER || call->which == EBB_COLLECTIVE_ALL_TO_ALL;
  const guint n_parts = call->which == EBB_COLLECTIVE_SEND ? 0 : call->n_parts;

  for (guint i = 0; i < n_parts; i++)
    {
      const EbbNcclPart *part = &self->run.parts[i];

      if (to_shard ? !download (self, part->shard, ebb_nccl_get_shard_size (&self->run, part), error)
                   : !download (self, part->full, get_full_size (part), error))
        return FALSE;
    }
  if (!ebb_nccl_wait (self->run.group, error))
    return FALSE;
  for (guint i = 0; i < n_parts; i++)
    {
      const EbbNcclPart *part = &self->run.parts[i];

      if (!to_shard && get_full_size (part) > 0)
        memcpy (part->buffer->full, get_host (self, part->full), get_full_size (part));
      else if (to_shard && part->buffer->shard != NULL)
        memcpy (part->buffer->shard, get_host (self, part->shard), ebb_nccl_get_shard_size (&self->run, part));
    }
  return TRUE;
}

/* The rows are the last in pinned memory too. */
static gboolean
reduce_on_host (EbbNcclRun *run,
                const EbbNcclPart *part,
                gsize n,
                char *dest,
                GError **error)
{
  Staged *self = (Staged *) run;
  EbbNcclGroup *group = run->group;
  const gsize n_bytes = n * part->size;
  char *rows = get_host (self, run->rows);
  g_autofree const void **sources = g_new (const void *, group->size);

  if (!download (self, run->rows, n_bytes * group->size, error) || !ebb_nccl_wait (group, error))
    return FALSE;
  for (guint i = 0; i < group->size; i++)
    sources[i] = rows + i * n_bytes;
  ebb_nccl_host->reduce (rows, sources, group->size, n, part->buffer->dtype, run->call->op);
  return ebb_nccl_check_cuda (cudaMemcpyAsync (dest, rows, n_bytes, cudaMemcpyHostToDevice, run->stream),
                              "cudaMemcpyAsync", error)
         && ebb_nccl_wait (group, error);
}

static gboolean
barrier (EbbNcclGroup *self,
         GError **error)
{
  char *memory = ebb_nccl_get_memory (&self->memory, ALIGNMENT, error);

  return memory != NULL
         && ebb_nccl_check_cuda (cudaMemsetAsync (memory, 0, 1, self->stream), "cudaMemsetAsync", error)
         && ebb_nccl_check (self, ncclAllReduce (memory, memory, 1, ncclUint8, ncclMax, self->comm, self->stream),
                            "ncclAllReduce", error)
         && ebb_nccl_wait (self, error);
}

gboolean
ebb_nccl_run_staged (EbbNcclGroup *self,
                     const EbbCollectiveCall *call,
                     GError **error)
{
  g_autofree EbbNcclPart *parts = g_new0 (EbbNcclPart, MAX (1, call->n_parts));
  Staged staged = {
    .run = { .group = self, .call = call, .parts = parts, .stream = self->stream, .reduce_rows = reduce_on_host }
  };

  if (call->which == EBB_COLLECTIVE_BARRIER)
    return barrier (self, error);
  return lay_out (&staged, error) && put (&staged, error) && ebb_nccl_enqueue (&staged.run, error)
         && take (&staged, error);
}
