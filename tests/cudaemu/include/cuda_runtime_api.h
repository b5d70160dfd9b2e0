/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Stands in for the CUDA toolkit's header of the same name, on machines with and without a toolkit alike: the functions
 * of the CUDA runtime that Ebb calls, with the toolkit's types and numbers. tests/cudaemu/ implements them. A
 * function that is missing here doesn't exist in the emulation: declare it and implement it there. */

#include <stddef.h>

#include "cudaemu-api.h"

CUDAEMU_BEGIN_API

#define CUDART_VERSION 12080
#define CUDARTAPI
#define CUDART_CB

/* -- vectors ------------------------------------------------------------------------------------------------------- */

typedef struct uint3
{
  unsigned int x, y, z;
} uint3;

typedef struct dim3
{
  unsigned int x, y, z;
#ifdef __cplusplus
  constexpr dim3 (unsigned int x_size = 1,
                  unsigned int y_size = 1,
                  unsigned int z_size = 1)
      : x (x_size), y (y_size), z (z_size)
  {
  }
#endif
} dim3;

/* -- errors -------------------------------------------------------------------------------------------------------- */

typedef enum cudaError
{
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorCudartUnloading = 4,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevicePointer = 17,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorInsufficientDriver = 35,
  cudaErrorMissingConfiguration = 52,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorSymbolNotFound = 500,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchTimeout = 702,
  cudaErrorHostMemoryAlreadyRegistered = 712,
  cudaErrorHostMemoryNotRegistered = 713,
  cudaErrorAssert = 710,
  cudaErrorMisalignedAddress = 716,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotPermitted = 800,
  cudaErrorNotSupported = 801,
  cudaErrorSystemDriverMismatch = 803,
  cudaErrorUnknown = 999
} cudaError_t;

const char *cudaGetErrorName (cudaError_t error);
const char *cudaGetErrorString (cudaError_t error);
cudaError_t cudaGetLastError (void);
cudaError_t cudaPeekAtLastError (void);

/* -- devices ------------------------------------------------------------------------------------------------------- */

typedef enum cudaDeviceAttr
{
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
} cudaDeviceAttr;

typedef struct cudaUUID_st
{
  char bytes[16];
} cudaUUID_t;

struct cudaDeviceProp
{
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int warpSize;
  int maxThreadsPerBlock;
  int major, minor;
  int multiProcessorCount;
  int pciBusID, pciDeviceID, pciDomainID;
  size_t sharedMemPerMultiprocessor;
  size_t sharedMemPerBlockOptin;
  int l2CacheSize;
};

cudaError_t cudaDriverGetVersion (int *version);
cudaError_t cudaRuntimeGetVersion (int *version);
cudaError_t cudaGetDeviceCount (int *count);
cudaError_t cudaSetDevice (int device);
cudaError_t cudaGetDevice (int *device);
cudaError_t cudaGetDeviceProperties (struct cudaDeviceProp *properties,
                                     int device);
cudaError_t cudaDeviceGetAttribute (int *value,
                                    cudaDeviceAttr attribute,
                                    int device);
cudaError_t cudaDeviceGetPCIBusId (char *text,
                                   int size,
                                   int device);
cudaError_t cudaDeviceSynchronize (void);
cudaError_t cudaDeviceReset (void);
cudaError_t cudaMemGetInfo (size_t *n_free,
                            size_t *n_total);

enum cudaDriverEntryPointQueryResult
{
  cudaDriverEntryPointSuccess = 0,
  cudaDriverEntryPointSymbolNotFound = 1,
  cudaDriverEntryPointVersionNotSufficent = 2
};
typedef enum cudaDriverEntryPointQueryResult cudaDriverEntryPointQueryResult;
#define cudaEnableDefault 0

/* Of the functions of cuda.h. */
cudaError_t cudaGetDriverEntryPoint (const char *symbol,
                                     void **function,
                                     unsigned long long flags,
                                     cudaDriverEntryPointQueryResult *result);
cudaError_t cudaGetDriverEntryPointByVersion (const char *symbol,
                                              void **function,
                                              unsigned int version,
                                              unsigned long long flags,
                                              cudaDriverEntryPointQueryResult *result);

/* -- memory -------------------------------------------------------------------------------------------------------- */

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

typedef enum cudaMemcpyKind
{
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
} cudaMemcpyKind;

typedef enum cudaMemoryType
{
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3
} cudaMemoryType;

struct cudaPointerAttributes
{
  cudaMemoryType type;
  int device;
  void *devicePointer;
  void *hostPointer;
};

#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01
#define cudaHostAllocMapped 0x02
#define cudaHostAllocWriteCombined 0x04
#define cudaHostRegisterDefault 0x00
#define cudaHostRegisterPortable 0x01
#define cudaHostRegisterMapped 0x02

cudaError_t cudaMalloc (void **data,
                        size_t size);
cudaError_t cudaFree (void *data);
cudaError_t cudaMallocHost (void **data,
                            size_t size);
cudaError_t cudaHostAlloc (void **data,
                           size_t size,
                           unsigned int flags);
cudaError_t cudaFreeHost (void *data);
cudaError_t cudaHostRegister (void *data,
                              size_t size,
                              unsigned int flags);
cudaError_t cudaHostUnregister (void *data);
cudaError_t cudaHostGetDevicePointer (void **device_data,
                                      void *data,
                                      unsigned int flags);
cudaError_t cudaPointerGetAttributes (struct cudaPointerAttributes *attributes,
                                      const void *data);
cudaError_t cudaMemcpy (void *destination,
                        const void *source,
                        size_t size,
                        cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync (void *destination,
                             const void *source,
                             size_t size,
                             cudaMemcpyKind kind,
                             cudaStream_t stream);
cudaError_t cudaMemset (void *data,
                        int byte,
                        size_t size);
cudaError_t cudaMemsetAsync (void *data,
                             int byte,
                             size_t size,
                             cudaStream_t stream);

/* -- streams and events -------------------------------------------------------------------------------------------- */

#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaStreamLegacy ((cudaStream_t) 0x1)
#define cudaStreamPerThread ((cudaStream_t) 0x2)
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02
#define cudaEventInterprocess 0x04
#define cudaEventRecordDefault 0x00
#define cudaEventWaitDefault 0x00

typedef void (*cudaHostFn_t) (void *data);

cudaError_t cudaDeviceGetStreamPriorityRange (int *least,
                                              int *greatest);
cudaError_t cudaStreamCreate (cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags (cudaStream_t *stream,
                                       unsigned int flags);
cudaError_t cudaStreamCreateWithPriority (cudaStream_t *stream,
                                          unsigned int flags,
                                          int priority);
cudaError_t cudaStreamDestroy (cudaStream_t stream);
cudaError_t cudaStreamSynchronize (cudaStream_t stream);
cudaError_t cudaStreamQuery (cudaStream_t stream);
cudaError_t cudaStreamWaitEvent (cudaStream_t stream,
                                 cudaEvent_t event,
                                 unsigned int flags);
cudaError_t cudaEventCreate (cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags (cudaEvent_t *event,
                                      unsigned int flags);
cudaError_t cudaEventDestroy (cudaEvent_t event);
cudaError_t cudaEventRecord (cudaEvent_t event,
                             cudaStream_t stream);
cudaError_t cudaEventQuery (cudaEvent_t event);
cudaError_t cudaEventSynchronize (cudaEvent_t event);
cudaError_t cudaEventElapsedTime (float *milliseconds,
                                  cudaEvent_t start,
                                  cudaEvent_t end);
cudaError_t cudaLaunchHostFunc (cudaStream_t stream,
                                cudaHostFn_t function,
                                void *data);

/* -- kernels ------------------------------------------------------------------------------------------------------- */

typedef enum cudaFuncAttribute
{
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
} cudaFuncAttribute;

cudaError_t cudaFuncSetAttribute (const void *function,
                                  cudaFuncAttribute attribute,
                                  int value);

typedef struct cudaFuncAttributes
{
  int maxDynamicSharedSizeBytes;
} cudaFuncAttributes;

cudaError_t cudaFuncGetAttributes (cudaFuncAttributes *attributes,
                                   const void *function);

CUDAEMU_END_API
