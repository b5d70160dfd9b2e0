/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group-private.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

/* Process groups over NCCL: a module of its own, which is not linked to the library. One process for each GPU. Tensors
 * on that GPU are used where they are, others go through buffers there. */

G_BEGIN_DECLS

extern const EbbProcessGroupHost *ebb_nccl_host;

#define EBB_NCCL_ERROR (ebb_nccl_host->get_error_quark ())

/* -- the group ----------------------------------------------------------------------------------------------------- */

typedef struct
{
  gboolean is_on_host; /* else on the device */
  void *data;
  gsize size;
} EbbNcclMemory;

typedef struct
{
  EbbProcessGroup parent_instance;

  guint rank, size;
  int device;
  ncclComm_t comm;
  cudaStream_t stream;
  EbbProcessGroup *mpi; /* announces the calls; NULL: NCCL itself does */
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
/* @child: NULL where this rank is in none. */
gboolean ebb_nccl_split (EbbNcclGroup *self,
                         EbbNcclGroup *child,
                         guint color,
                         GError **error);
/* Waits until the device has done all enqueued work, NCCL has failed, or the time is over. */
gboolean ebb_nccl_wait (EbbNcclGroup *self,
                        GError **error);
/* Ends all running operations. */
void ebb_nccl_abort (EbbNcclGroup *self);
void ebb_nccl_close (EbbNcclGroup *self);
/* Memory of at least that size; NULL with @error set. Its contents are lost. */
char *ebb_nccl_get_memory (EbbNcclMemory *self,
                           gsize size,
                           GError **error);

/* collective.c */
gboolean ebb_nccl_collective (EbbNcclGroup *self,
                              const EbbCollectiveCall *call,
                              GError **error);

G_END_DECLS
