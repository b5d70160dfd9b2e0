/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How a call runs, on any thread: memory that the engine can't reach goes through copies on the host. */
#include "dist/group/group-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/tensor-private.h"

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
get_use (EbbProcessGroup *self,
         const EbbWork *work,
         guint i)
{
  if (work->call.which == EBB_COLLECTIVE_BROADCAST)
    return work->call.peer == ebb_process_group_get_state (self)->rank ? READ : WRITE;
  return uses[work->call.which][i % 2];
}

/* The one device that all tensors are on, if the engine reaches it. */
static EbbDevice *
get_reached_device (EbbProcessGroup *self,
                    EbbWork *work)
{
  const EbbProcessGroupFuncs *funcs = ebb_process_group_get_funcs (self);
  EbbDevice *device = NULL;

  if (funcs->reaches == NULL)
    return NULL;
  for (guint i = 0; i < 2 * work->call.n_parts; i++)
    {
      EbbTensor *tensor = work->tensors[i];

      if (tensor == NULL)
        continue;
      if (tensor->storage->device->backend->host_memory || (device != NULL && tensor->storage->device != device))
        return NULL;
      device = tensor->storage->device;
    }
  return device != NULL && funcs->reaches (self, device) ? device : NULL;
}

static gboolean
copy (EbbTensor *host,
      EbbTensor *tensor,
      gboolean to_host,
      GError **error)
{
  EbbDevice *device = tensor->storage->device;

  if (tensor->n_elements == 0)
    return TRUE;
  return to_host ? device->backend->copy (device->index, host->view.data, tensor->view.data,
                                          ebb_tensor_get_n_bytes (tensor), TRUE, error)
                 : device->backend->copy (device->index, tensor->view.data, host->view.data,
                                          ebb_tensor_get_n_bytes (tensor), FALSE, error);
}

/* Finds the address that the engine uses for the tensor's elements; copies them to the host where it must. */
static gboolean
place (EbbProcessGroup *self,
       EbbWork *work,
       guint i,
       void **data,
       GError **error)
{
  EbbTensor *tensor = work->tensors[i];

  *data = NULL;
  if (tensor == NULL)
    return TRUE;
  if (work->call.device != NULL || tensor->storage->device->backend->host_memory)
    {
      *data = tensor->view.data;
      return TRUE;
    }
  work->staged[i] = ebb_tensor_new_uninitialized (tensor->view.shape, (guint) tensor->view.n_dims, tensor->view.dtype,
                                                  ebb_device_get_cpu (), error);
  if (work->staged[i] == NULL)
    return FALSE;
  *data = work->staged[i]->view.data;
  return !(get_use (self, work, i) & READ) || copy (work->staged[i], tensor, TRUE, error);
}

static gboolean
bring (EbbProcessGroup *self,
       EbbWork *work,
       GError **error)
{
  work->call.device = get_reached_device (self, work);
  for (guint i = 0; i < work->call.n_parts; i++)
    if (!place (self, work, 2 * i, &work->buffers[i].full, error)
        || !place (self, work, 2 * i + 1, &work->buffers[i].shard, error))
      return FALSE;
  return TRUE;
}

static gboolean
bring_back (EbbProcessGroup *self,
            EbbWork *work,
            GError **error)
{
  for (guint i = 0; i < 2 * work->call.n_parts; i++)
    if (work->staged[i] != NULL && (get_use (self, work, i) & WRITE)
        && !copy (work->staged[i], work->tensors[i], FALSE, error))
      return FALSE;
  return TRUE;
}

/* "all_reduce (sum) of f32 [2, 3] on rank 0 of 4: " */
static void
prefix (EbbProcessGroup *self,
        EbbWork *work,
        GError *failure)
{
  EbbGroupState *state = ebb_process_group_get_state (self);
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
  gboolean done;

  done = bring (self, work, &failure);
  if (done && !funcs->run (self, &work->call, &failure))
    {
      if (failure == NULL)
        g_set_error_literal (&failure, EBB_ERROR, EBB_ERROR_CALLBACK, "the engine failed without saying why");
      prefix (self, work, failure);
      g_propagate_error (error, failure);
      return FALSE;
    }
  done = done && bring_back (self, work, &failure);
  if (done)
    return TRUE;
  prefix (self, work, failure);
  if (funcs->fail != NULL)
    funcs->fail (self, failure);
  g_propagate_error (error, failure);
  return FALSE;
}
