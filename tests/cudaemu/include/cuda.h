/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Stands in for the CUDA toolkit's header of the same name: the functions of the driver that map memory into reserved
 * addresses and know of contexts. cudaGetDriverEntryPoint () finds them. */

#include <stddef.h>

#include "cudaemu-api.h"

CUDAEMU_BEGIN_API

#define CUDA_VERSION 12080
#define CUDAAPI

typedef unsigned long long CUdeviceptr;
typedef int CUdevice;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;

typedef enum cudaError_enum
{
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_SUPPORTED = 801
} CUresult;

typedef enum CUmemAllocationType_enum
{
  CU_MEM_ALLOCATION_TYPE_INVALID = 0,
  CU_MEM_ALLOCATION_TYPE_PINNED = 1
} CUmemAllocationType;

typedef enum CUmemAllocationHandleType_enum
{
  CU_MEM_HANDLE_TYPE_NONE = 0,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1
} CUmemAllocationHandleType;

typedef enum CUmemLocationType_enum
{
  CU_MEM_LOCATION_TYPE_INVALID = 0,
  CU_MEM_LOCATION_TYPE_DEVICE = 1
} CUmemLocationType;

typedef struct CUmemLocation_st
{
  CUmemLocationType type;
  int id;
} CUmemLocation;

typedef struct CUmemAllocationProp_st
{
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  void *win32HandleMetaData;
  struct
  {
    unsigned char compressionType, gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
} CUmemAllocationProp;

typedef enum CUmemAccess_flags_enum
{
  CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
  CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3
} CUmemAccess_flags;

typedef struct CUmemAccessDesc_st
{
  CUmemLocation location;
  CUmemAccess_flags flags;
} CUmemAccessDesc;

typedef enum CUmemAllocationGranularity_flags_enum
{
  CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1
} CUmemAllocationGranularity_flags;

CUresult cuGetErrorName (CUresult error,
                         const char **name);
CUresult cuGetErrorString (CUresult error,
                           const char **text);
CUresult cuCtxGetCurrent (CUcontext *context);
CUresult cuDevicePrimaryCtxGetState (CUdevice device,
                                     unsigned int *flags,
                                     int *is_active);
CUresult cuMemGetAllocationGranularity (size_t *granularity,
                                        const CUmemAllocationProp *properties,
                                        CUmemAllocationGranularity_flags option);
CUresult cuMemAddressReserve (CUdeviceptr *address,
                              size_t size,
                              size_t alignment,
                              CUdeviceptr wish,
                              unsigned long long flags);
CUresult cuMemAddressFree (CUdeviceptr address,
                           size_t size);
CUresult cuMemCreate (CUmemGenericAllocationHandle *handle,
                      size_t size,
                      const CUmemAllocationProp *properties,
                      unsigned long long flags);
CUresult cuMemRelease (CUmemGenericAllocationHandle handle);
CUresult cuMemMap (CUdeviceptr address,
                   size_t size,
                   size_t offset,
                   CUmemGenericAllocationHandle handle,
                   unsigned long long flags);
CUresult cuMemUnmap (CUdeviceptr address,
                     size_t size);
CUresult cuMemSetAccess (CUdeviceptr address,
                         size_t size,
                         const CUmemAccessDesc *accesses,
                         size_t n);

CUDAEMU_END_API
