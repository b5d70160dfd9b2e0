/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The one place that includes CUDA: its runtime, and the few functions of the driver that the runtime lacks. The
 * emulated GPU finds headers of the same names (tests/cudaemu/include). */

#include <cuda.h>
#include <cuda_runtime_api.h>

/* What this backend calls, which a stand-in has to have.
 *
 * The runtime:
 *   devices   cudaDriverGetVersion cudaRuntimeGetVersion cudaGetDeviceCount cudaGetDevice cudaSetDevice
 *             cudaDeviceGetAttribute (ComputeCapabilityMajor, ComputeCapabilityMinor, MultiProcessorCount)
 * cudaMemGetInfo cudaDeviceSynchronize cudaFree (NULL makes the context) errors    cudaGetLastError cudaGetErrorName
 * cudaGetErrorString memory    cudaMalloc cudaFree cudaHostAlloc (Portable | Mapped) cudaHostGetDevicePointer
 * cudaFreeHost cudaMemcpyAsync cudaMemsetAsync streams   cudaStreamCreateWithFlags (NonBlocking) cudaStreamSynchronize
 * cudaStreamQuery cudaStreamWaitEvent events    cudaEventCreateWithFlags (Default, DisableTiming) cudaEventRecord
 * cudaEventQuery cudaEventSynchronize cudaEventElapsedTime cudaEventDestroy driver    cudaGetDriverEntryPointByVersion
 * (cudaGetDriverEntryPoint before CUDA 12.5) kernels   what EBB_CUDA_LAUNCH needs, cudaFuncSetAttribute
 *
 * The driver, by that entry point: cuMemAddressReserve cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemUnmap
 *   cuMemSetAccess cuMemGetAllocationGranularity cuGetErrorName
 *
 * cuBLASLt (matmul-private.h): cublasLtCreate cublasLtMatmulDescCreate cublasLtMatmulDescDestroy
 *   cublasLtMatmulDescSetAttribute (TRANSA TRANSB EPILOGUE BIAS_POINTER BIAS_DATA_TYPE) cublasLtMatrixLayoutCreate
 *   cublasLtMatrixLayoutDestroy cublasLtMatrixLayoutSetAttribute (BATCH_COUNT STRIDED_BATCH_OFFSET)
 *   cublasLtMatmulPreferenceCreate cublasLtMatmulPreferenceDestroy cublasLtMatmulPreferenceSetAttribute
 *   (MAX_WORKSPACE_BYTES REDUCTION_SCHEME_MASK MIN_ALIGNMENT_A_BYTES _B_ _C_ _D_) cublasLtMatmulAlgoGetHeuristic (one
 *   result)
 *   cublasLtMatmul cublasLtGetStatusName */
