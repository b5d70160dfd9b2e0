/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How a call runs. On a device that the engine reaches it is enqueued; else memory that the engine can't reach goes
 * through copies on the host. */
#include "dist/group/group-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

enum
{
  READ = 1,
  WRITE = 2
};

/* How a call uses the full tensor and the shard, which lie one after the other in EbbWork.tensors. */
static const guint8 uses[EBB_N_COLLECTIVES][2] = {
  [EBB_COLLECTIVE_ALL_REDUCE] = { READ | WRITE, 0 },
  [EBB_COLLECTIVE_REDUCE_SCATTER] = { READ, WRITE },
  [EBB_COLLECTIVE_ALL_GATHER] = { WRITE, READ },
  [EBB_COLLECTIVE_ALL_TO_ALL] = { READ, WRITE },
  [EBB_COLLECTIVE_SEND] = { READ, 0 },
  [EBB_COLLECTIVE_RECV] = { WRITE, 0 },
};

static guint
get_use (const EbbWork *work,
         guint i)
{
  if (work->call.which == EBB_COLLECTIVE_BROADCAST)
    return work->call.peer == work->queue->state->rank ? READ : WRITE;
  return uses[work->call.which][i % 2];
}

void
ebb_process_group_find_device (EbbProcessGroup *self,
                               EbbWork *work)
{
  const EbbProcessGroupFuncs *funcs = ebb_process_group_get_funcs (self);
  EbbDevice *device = NULL;

  if (funcs->reaches == NULL)
    return;
  for (guint i = 0; i < 2 * work->call.n_parts; i++)
    {
      EbbTensor *tensor = work->tensors[i];

      if (tensor == NULL)
        continue;
      if (tensor->storage->device->backend->host_memory || (device != NULL && tensor->storage->device != device))
        return;
      device = tensor->storage->device;
    }
  if (device != NULL && funcs->reaches (self, device))
    work->call.device = device;
}

/* -- on the device ------------------------------------------------------------------------------------------------- */

static gboolean
alloc_workspace (EbbProcessGroup *self,
                 EbbWork *work,
                 GError **error)
{
  const EbbProcessGroupFuncs *funcs = ebb_process_group_get_funcs (self);
  const gint64 size = funcs->get_workspace != NULL ? (gint64) funcs->get_workspace (self, &work->call) : 0;

  if (size == 0)
    return TRUE;
  work->workspace = ebb_tensor_new_uninitialized (&size, 1, EBB_DTYPE_U8, work->call.device, error);
  if (work->workspace == NULL)
    return FALSE;
  work->call.workspace = work->workspace->view.data;
  return TRUE;
}

/* The tensors are there, and their memory is free, when what is enqueued for computing now is done. */
static gboolean
come_after_computing (EbbDevice *device,
                      GError **error)
{
  const EbbStreamFuncs *streams = device->backend->streams;
  gpointer ready = streams->record (device->index, EBB_STREAM_COMPUTE, error);
  gboolean ok;

  if (ready == NULL)
    return FALSE;
  ok = streams->wait (device->index, EBB_STREAM_COLLECTIVE, ready, error);
  streams->free_event (ready);
  return ok;
}

static gboolean
run_engine (EbbProcessGroup *self,
            EbbWork *work,
            gboolean *engine_failed,
            GError **error)
{
  *engine_failed = !ebb_process_group_get_funcs (self)->run (self, &work->call, error);
  return !*engine_failed;
}

/* Without a place for an error, a bad index that computing found stays for a later call. To report it, the host would
 * wait for the device, and so for this call's ranks: nobody watches yet whether they come. */
static gpointer
record_end (EbbDevice *device,
            GError **error)
{
  const EbbStreamFuncs *streams = device->backend->streams;
  gpointer finished = streams->record (device->index, EBB_STREAM_COLLECTIVE, NULL);

  return finished != NULL ? finished : streams->record (device->index, EBB_STREAM_COLLECTIVE, error);
}

static gboolean
enqueue (EbbProcessGroup *self,
         EbbWork *work,
         gboolean *engine_failed,
         GError **error)
{
  EbbDevice *device = work->call.device;

  for (guint i = 0; i < work->call.n_parts; i++)
    {
      EbbTensor *shard = work->tensors[2 * i + 1];

      work->buffers[i].full = work->tensors[2 * i]->view.data;
      work->buffers[i].shard = shard != NULL ? shard->view.data : NULL;
    }
  if (!alloc_workspace (self, work, error) || !come_after_computing (device, error)
      || !run_engine (self, work, engine_failed, error))
    return FALSE;
  work->enqueued_at = g_get_monotonic_time ();
  work->finished = record_end (device, error);
  return work->finished != NULL;
}

/* -- on the host --------------------------------------------------------------------------------------------------- */

static gboolean
copy (EbbTensor *host,
      EbbTensor *tensor,
      gboolean to_host,
      GError **error)
{
  EbbDevice *device = tensor->storage->device;

  if (tensor->n_elements == 0 || ebb_is_dry ())
    return TRUE;
  return to_host ? device->backend->copy (device->index, host->view.data, tensor->view.data,
                                          ebb_tensor_get_n_bytes (tensor), TRUE, error)
                 : device->backend->copy (device->index, tensor->view.data, host->view.data,
                                          ebb_tensor_get_n_bytes (tensor), FALSE, error);
}

/* Finds the address that the engine uses for the tensor's elements; copies them to the host where it must. */
static gboolean
place (EbbWork *work,
       guint i,
       void **data,
       GError **error)
{
  EbbTensor *tensor = work->tensors[i];

  *data = NULL;
  if (tensor == NULL)
    return TRUE;
  if (tensor->storage->device->backend->host_memory)
    {
      *data = tensor->view.data;
      return TRUE;
    }
  work->staged[i] = ebb_tensor_new_uninitialized (tensor->view.shape, (guint) tensor->view.n_dims, tensor->view.dtype,
                                                  ebb_device_get_cpu (), error);
  if (work->staged[i] == NULL)
    return FALSE;
  *data = work->staged[i]->view.data;
  return !(get_use (work, i) & READ) || copy (work->staged[i], tensor, TRUE, error);
}

static gboolean
bring (EbbWork *work,
       GError **error)
{
  for (guint i = 0; i < work->call.n_parts; i++)
    if (!place (work, 2 * i, &work->buffers[i].full, error)
        || !place (work, 2 * i + 1, &work->buffers[i].shard, error))
      return FALSE;
  return TRUE;
}

static gboolean
bring_back (EbbWork *work,
            GError **error)
{
  for (guint i = 0; i < 2 * work->call.n_parts; i++)
    if (work->staged[i] != NULL && (get_use (work, i) & WRITE)
        && !copy (work->staged[i], work->tensors[i], FALSE, error))
      return FALSE;
  return TRUE;
}

/* -- both ---------------------------------------------------------------------------------------------------------- */

/* In a dry run, in which all ranks are: integers are sent, by which ranks agree on something; all else is left out. */
static gboolean
is_sent_dry (const EbbWork *work)
{
  for (guint i = 0; i < work->call.n_parts; i++)
    {
      const EbbTensor *full = work->tensors[2 * i];

      if (!full->storage->device->backend->host_memory || ebb_dtype_is_floating_point (full->view.dtype))
        return FALSE;
    }
  return TRUE;
}

static gboolean
map_values (EbbWork *work,
            GError **error)
{
  gboolean ok = TRUE;

  for (guint i = 0; ok && i < 2 * work->call.n_parts; i++)
    ok = work->tensors[i] == NULL || ebb_storage_map (work->tensors[i]->storage, error);
  return ok;
}

static gboolean
run_on_host (EbbProcessGroup *self,
             EbbWork *work,
             gboolean *engine_failed,
             GError **error)
{
  return bring (work, error)
         && ((work->is_dry && !is_sent_dry (work))
             || (map_values (work, error) && run_engine (self, work, engine_failed, error)))
         && bring_back (work, error);
}

static gboolean
run (EbbProcessGroup *self,
     EbbWork *work,
     gboolean *engine_failed,
     GError **error)
{
  if (work->call.device == NULL)
    return run_on_host (self, work, engine_failed, error);
  return work->is_dry ? alloc_workspace (self, work, error) : enqueue (self, work, engine_failed, error);
}

void
ebb_process_group_prefix_failure (EbbWork *work,
                                  GError *failure)
{
  const EbbGroupState *state = work->queue->state;
  g_autofree char *text = ebb_collective_call_to_string (&work->call);
  const gboolean is_world = g_strcmp0 (state->name, "world") == 0;

  g_prefix_error (&failure, "%s on rank %u of %u%s%s%s: ", text, state->rank, state->size, is_world ? "" : " (",
                  is_world ? "" : state->name, is_world ? "" : ")");
}

gboolean
ebb_process_group_do (EbbProcessGroup *self,
                      EbbWork *work,
                      GError **error)
{
  const EbbProcessGroupFuncs *funcs = ebb_process_group_get_funcs (self);
  GError *failure = NULL;
  gboolean engine_failed = FALSE;

  if (run (self, work, &engine_failed, &failure))
    return TRUE;
  if (failure == NULL)
    ebb_error_set (&failure, EBB_ERROR_CALLBACK, "the engine failed without saying why");
  ebb_process_group_prefix_failure (work, failure);
  /* An engine has reported its own failure to the others. */
  if (!engine_failed && funcs->fail != NULL)
    funcs->fail (self, failure);
  g_propagate_error (error, failure);
  return FALSE;
}
