/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/cuda/current-private.h"
#include "tensor/util/lock-private.h"

#include <nccl.h>
#include <pthread.h>

/* Process groups over NCCL: a module of its own, which is not linked to the library. One process for each GPU.
 *
 * Tensors on that GPU are used where they are: calls are enqueued to the device's stream for collectives, and nobody
 * waits for them here. Tensors on the host are gathered and broadcast only, as ranks do to agree and to save a state:
 * they go through buffers on the GPU, in a stream of the group's own, which the host waits for.
 *
 * NCCL's communicator never blocks, and one thread at a time uses it. A call that has to wait for the device leaves it
 * meanwhile, so that the group can give up. */

G_BEGIN_DECLS

extern const EbbProcessGroupHost *ebb_nccl_host;

#define ebb_nccl_fail(...) (ebb_nccl_host->error_set (__VA_ARGS__), FALSE)

/* The name of the kind of device that it works on. */
#ifndef EBB_CUDA_NAME
#define EBB_CUDA_NAME "cuda"
#endif

/* -- the group ----------------------------------------------------------------------------------------------------- */

/* It grows to twice its size at least. What it has outgrown waits for the group's end: to free memory CUDA waits for
 * the whole device, which may wait for a rank that has left. */
typedef struct
{
  gboolean is_on_host; /* else on the device */
  void *data;
  gsize size;
  GSList *outgrown;
} EbbNcclMemory;

typedef struct
{
  EbbProcessGroup parent_instance;

  guint rank, size;
  int device;
  pthread_mutex_t calls; /* of one call at a time, held before the next */
  pthread_mutex_t lock;  /* of the communicator; nobody waits for the device with it */
  ncclComm_t comm;       /* NULL: it was aborted */
  GError *failure;       /* for which it was */
  cudaStream_t stream;   /* of the group's own */
  EbbDevice *ebb_device; /* on which calls were enqueued; NULL: there were none */
  cudaEvent_t enqueued;  /* after the last of them; NULL: there were none */
  EbbProcessGroup *mpi;  /* announces the calls; NULL: NCCL itself does */
  gboolean checks;
  /* kept for the next call; copies to and from the host's are fast */
  EbbNcclMemory memory, host_memory;
} EbbNcclGroup;

/* communicator.c */
gboolean ebb_nccl_check_cuda (cudaError_t code,
                              const char *function,
                              GError **error);
/* Turns the result of a function of NCCL into an error; waits for one that is still in progress. */
gboolean ebb_nccl_check (EbbNcclGroup *self,
                         ncclResult_t code,
                         const char *function,
                         GError **error);
gboolean ebb_nccl_open (EbbNcclGroup *self,
                        const ncclUniqueId *id,
                        GError **error);
/* With the lock and the device current. After a failure @child may be freed only when @self was aborted. */
gboolean ebb_nccl_split (EbbNcclGroup *self,
                         EbbNcclGroup *child,
                         guint color,
                         GError **error);
/* Waits until the device has done all enqueued work, NCCL has failed, or the time is over. */
gboolean ebb_nccl_wait (EbbNcclGroup *self,
                        GError **error);
/* FALSE with @error set if NCCL will not finish its running operations. */
gboolean ebb_nccl_check_progress (EbbNcclGroup *self,
                                  GError **error);
/* FALSE with @error set if the communicator was aborted. */
gboolean ebb_nccl_check_open (EbbNcclGroup *self,
                              GError **error);
/* Ends all running operations; the device reports @reason if some of them are its own. */
void ebb_nccl_abort (EbbNcclGroup *self,
                     const GError *reason);
void ebb_nccl_close (EbbNcclGroup *self);
/* Memory of at least that size; NULL with @error set. Its contents are lost. */
char *ebb_nccl_get_memory (EbbNcclMemory *self,
                           gsize size,
                           GError **error);

/* -- calls --------------------------------------------------------------------------------------------------------- */

/* collective.c */
/* Bytes of all versions of the own shard, where @call reduces what NCCL doesn't. */
gsize ebb_nccl_get_rows_size (EbbNcclGroup *group,
                              const EbbCollectiveCall *call);
/* Enqueues a call on its device, or runs a call of tensors on the host to its end. */
gboolean ebb_nccl_run (EbbNcclGroup *self,
                       const EbbCollectiveCall *call,
                       GError **error);

G_END_DECLS
