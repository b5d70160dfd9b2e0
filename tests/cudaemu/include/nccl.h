/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Stands in for NCCL's header: the functions that Ebb calls, with the library's types and numbers. tests/cudaemu/nccl/
 * implements them over shared memory. */

#include <stddef.h>

#include "cuda_runtime_api.h"
#include "cudaemu-api.h"

CUDAEMU_BEGIN_API

#define NCCL_VERSION_CODE 22703
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_SPLIT_NOCOLOR -1

typedef struct ncclComm *ncclComm_t;

typedef struct
{
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum
{
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
} ncclResult_t;

typedef enum
{
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9
} ncclDataType_t;

typedef enum
{
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4
} ncclRedOp_t;

typedef struct
{
  int blocking;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER \
  {                             \
    1                           \
  }

const char *ncclGetErrorString (ncclResult_t result);
const char *ncclGetLastError (ncclComm_t comm);
ncclResult_t ncclGetVersion (int *version);

/* -- communicators ------------------------------------------------------------------------------------------------- */

ncclResult_t ncclGetUniqueId (ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig (ncclComm_t *comm,
                                     int n_ranks,
                                     ncclUniqueId id,
                                     int rank,
                                     ncclConfig_t *config);
ncclResult_t ncclCommSplit (ncclComm_t comm,
                            int color,
                            int key,
                            ncclComm_t *child,
                            ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError (ncclComm_t comm,
                                    ncclResult_t *state);
ncclResult_t ncclCommFinalize (ncclComm_t comm);
ncclResult_t ncclCommDestroy (ncclComm_t comm);
ncclResult_t ncclCommAbort (ncclComm_t comm);

/* -- moving data --------------------------------------------------------------------------------------------------- */

ncclResult_t ncclGroupStart (void);
ncclResult_t ncclGroupEnd (void);
ncclResult_t ncclAllReduce (const void *from,
                            void *to,
                            size_t n,
                            ncclDataType_t type,
                            ncclRedOp_t op,
                            ncclComm_t comm,
                            cudaStream_t stream);
ncclResult_t ncclReduce (const void *from,
                         void *to,
                         size_t n,
                         ncclDataType_t type,
                         ncclRedOp_t op,
                         int root,
                         ncclComm_t comm,
                         cudaStream_t stream);
ncclResult_t ncclReduceScatter (const void *from,
                                void *to,
                                size_t n_received,
                                ncclDataType_t type,
                                ncclRedOp_t op,
                                ncclComm_t comm,
                                cudaStream_t stream);
ncclResult_t ncclAllGather (const void *from,
                            void *to,
                            size_t n_sent,
                            ncclDataType_t type,
                            ncclComm_t comm,
                            cudaStream_t stream);
ncclResult_t ncclBroadcast (const void *from,
                            void *to,
                            size_t n,
                            ncclDataType_t type,
                            int root,
                            ncclComm_t comm,
                            cudaStream_t stream);
ncclResult_t ncclSend (const void *from,
                       size_t n,
                       ncclDataType_t type,
                       int peer,
                       ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t ncclRecv (void *to,
                       size_t n,
                       ncclDataType_t type,
                       int peer,
                       ncclComm_t comm,
                       cudaStream_t stream);

CUDAEMU_END_API
