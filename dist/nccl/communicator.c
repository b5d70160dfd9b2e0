/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* NCCL's communicator, which never blocks: waiting here watches the clock and NCCL's errors. */
#include "dist/nccl/nccl-private.h"

const EbbProcessGroupHost *ebb_nccl_host;

gboolean
ebb_nccl_check_cuda (cudaError_t code,
                     const char *function,
                     GError **error)
{
  if (code == cudaSuccess)
    return TRUE;
  cudaGetLastError (); /* else another library would take it for an error of its own next call */
  return ebb_nccl_fail (error, EBB_ERROR_DEVICE, "%s: %s", function, cudaGetErrorString (code));
}

static gboolean
set_nccl_error (EbbNcclGroup *self,
                ncclResult_t code,
                const char *function,
                GError **error)
{
  const char *last = ncclGetLastError (self->comm);

  return ebb_nccl_fail (error, EBB_ERROR_PROCESS_GROUP, "%s: %s%s%s", function, ncclGetErrorString (code),
                        last != NULL && *last != '\0' ? ": " : "", last != NULL ? last : "");
}

/* -- waiting ------------------------------------------------------------------------------------------------------- */

/* NCCL enqueues in a few microseconds, which a nap would make fifty. */
#define N_LOOKS 100
#define LONGEST_NAP 50 /* microseconds */

/* NCCL's state of the communicator, which is in progress as long as a split has given none yet. */
static ncclResult_t
get_state (EbbNcclGroup *self,
           ncclResult_t *state)
{
  const ncclComm_t comm = g_atomic_pointer_get (&self->comm);

  *state = ncclInProgress;
  return comm != NULL ? ncclCommGetAsyncError (comm, state) : ncclSuccess;
}

/* @query: NULL: waits for NCCL itself only. */
static gboolean
wait_until (EbbNcclGroup *self,
            cudaError_t (*query) (cudaStream_t stream),
            const char *what,
            GError **error)
{
  double timeout = ebb_nccl_host->get_timeout ((EbbProcessGroup *) self);
  gint64 deadline = g_get_monotonic_time () + (gint64) (timeout * 1e6);

  for (guint n_looks = 1;; n_looks++)
    {
      ncclResult_t state, code = get_state (self, &state);
      cudaError_t progress = query != NULL ? query (self->stream) : cudaSuccess;

      if (code != ncclSuccess || (state != ncclSuccess && state != ncclInProgress))
        return set_nccl_error (self, code != ncclSuccess ? code : state, what, error);
      if (progress != cudaSuccess && progress != cudaErrorNotReady)
        return ebb_nccl_check_cuda (progress, what, error);
      if (state == ncclSuccess && progress == cudaSuccess)
        return TRUE;
      if (g_get_monotonic_time () > deadline)
        return ebb_nccl_fail (error, EBB_ERROR_PROCESS_GROUP, "%s: not all ranks did their part within %g s",
                              what, timeout);
      if (n_looks < N_LOOKS)
        g_thread_yield ();
      else
        g_usleep (MIN (n_looks - N_LOOKS + 1, LONGEST_NAP));
    }
}

gboolean
ebb_nccl_check (EbbNcclGroup *self,
                ncclResult_t code,
                const char *function,
                GError **error)
{
  if (code == ncclSuccess)
    return TRUE;
  if (code == ncclInProgress)
    return wait_until (self, NULL, function, error);
  return set_nccl_error (self, code, function, error);
}

gboolean
ebb_nccl_wait (EbbNcclGroup *self,
               GError **error)
{
  return wait_until (self, cudaStreamQuery, "NCCL", error);
}

/* -- begin and end ------------------------------------------------------------------------------------------------- */

gboolean
ebb_nccl_open (EbbNcclGroup *self,
               const ncclUniqueId *id,
               GError **error)
{
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  const int previous = ebb_cuda_enter (self->device);
  gboolean ok;

  config.blocking = 0;
  ok = ebb_nccl_check_cuda (cudaStreamCreateWithFlags (&self->stream, cudaStreamNonBlocking), "cudaStreamCreate", error)
       && ebb_nccl_check (self,
                          ncclCommInitRankConfig (&self->comm, (int) self->size, *id, (int) self->rank, &config),
                          "ncclCommInitRankConfig", error);
  ebb_cuda_leave (previous);
  return ok;
}

/* A split that doesn't block writes its communicator when it is done, which the state of @self says. */
gboolean
ebb_nccl_split (EbbNcclGroup *self,
                EbbNcclGroup *child,
                guint color,
                GError **error)
{
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

  config.blocking = 0;
  return ebb_nccl_check_open (self, error)
         && ebb_nccl_check_cuda (cudaStreamCreateWithFlags (&child->stream, cudaStreamNonBlocking), "cudaStreamCreate",
                                 error)
         && ebb_nccl_check (self, ncclCommSplit (self->comm, (int) color, (int) self->rank, &child->comm, &config),
                            "ncclCommSplit", error)
         && wait_until (self, NULL, "ncclCommSplit", error) && wait_until (child, NULL, "ncclCommSplit", error);
}

gboolean
ebb_nccl_check_progress (EbbNcclGroup *self,
                         GError **error)
{
  ncclResult_t state = ncclSuccess, code = ncclCommGetAsyncError (self->comm, &state);

  if (code == ncclSuccess && (state == ncclSuccess || state == ncclInProgress))
    return TRUE;
  return set_nccl_error (self, code != ncclSuccess ? code : state, "NCCL", error);
}

gboolean
ebb_nccl_check_open (EbbNcclGroup *self,
                     GError **error)
{
  if (self->comm != NULL)
    return TRUE;
  g_propagate_error (error, g_error_copy (self->failure));
  return FALSE;
}

/* Results that never arrive must change nothing lasting: the device gets the failure before they count as received. */
void
ebb_nccl_abort (EbbNcclGroup *self,
                const GError *reason)
{
  const EbbDevice *device = self->ebb_device;

  self->failure = g_error_copy (reason);
  if (device != NULL && self->enqueued != NULL)
    {
      const EbbStreamFuncs *streams = device->backend->streams;

      if (cudaEventQuery (self->enqueued) == cudaErrorNotReady && streams->set_failure != NULL)
        streams->set_failure (device->index, reason);
      cudaGetLastError ();
    }
  ncclCommAbort (self->comm);
  self->comm = NULL;
}

static void
free_memory (EbbNcclMemory *self)
{
  if (self->data != NULL)
    self->outgrown = g_slist_prepend (self->outgrown, self->data);
  for (const GSList *block = self->outgrown; block != NULL; block = block->next)
    if (self->is_on_host)
      cudaFreeHost (block->data);
    else
      cudaFree (block->data);
  g_slist_free (self->outgrown);
}

void
ebb_nccl_close (EbbNcclGroup *self)
{
  const int previous = self->stream != NULL || self->comm != NULL ? ebb_cuda_enter (self->device) : -1;

  if (self->comm != NULL && ebb_nccl_check (self, ncclCommFinalize (self->comm), "ncclCommFinalize", NULL))
    ncclCommDestroy (g_steal_pointer (&self->comm));
  if (self->comm != NULL)
    ncclCommAbort (g_steal_pointer (&self->comm));
  if (self->enqueued != NULL)
    cudaEventDestroy (self->enqueued);
  if (self->stream != NULL)
    cudaStreamDestroy (self->stream);
  free_memory (&self->memory);
  free_memory (&self->host_memory);
  ebb_cuda_leave (previous);
  g_clear_error (&self->failure);
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

char *
ebb_nccl_get_memory (EbbNcclMemory *self,
                     gsize size,
                     GError **error)
{
  void *data = NULL;
  cudaError_t code;

  if (size <= self->size)
    return self->data;
  size = MAX (size, 2 * self->size);
  code = self->is_on_host ? cudaMallocHost (&data, size) : cudaMalloc (&data, size);
  if (!ebb_nccl_check_cuda (code, self->is_on_host ? "cudaMallocHost" : "cudaMalloc", error))
    return NULL;
  if (self->data != NULL)
    self->outgrown = g_slist_prepend (self->outgrown, self->data);
  self->data = data;
  self->size = size;
  return data;
}
