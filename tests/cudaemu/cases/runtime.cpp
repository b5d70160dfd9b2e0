/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The stand-in runtime: how late its streams run, the memory that the host may touch, the mistakes that it finds, the
 * failures that it makes on request; and the products of its cuBLASLt. */
#include "tensor/cuda/kernels/device.cuh"

#include "cublasLt.h"
#include "cuda.h"

#include <glib.h>
#include <string.h>

#define CHECK(call) g_assert_cmpint (call, ==, cudaSuccess)

static cudaStream_t
new_stream ()
{
  cudaStream_t stream;

  CHECK (cudaStreamCreateWithFlags (&stream, cudaStreamNonBlocking));
  return stream;
}

static cudaEvent_t
new_event (unsigned flags)
{
  cudaEvent_t event;

  CHECK (cudaEventCreateWithFlags (&event, flags));
  return event;
}

static int *
new_device_memory (gsize n)
{
  void *data;

  CHECK (cudaMalloc (&data, n * sizeof (int)));
  return static_cast<int *> (data);
}

static int *
new_pinned_memory (gsize n)
{
  void *data;

  CHECK (cudaHostAlloc (&data, n * sizeof (int), cudaHostAllocPortable));
  return static_cast<int *> (data);
}

__global__ void
add (int *words,
     int n)
{
  for (int i = (int) threadIdx.x; i < n; i += (int) blockDim.x)
    words[i] += 1;
}

/* -- lateness ------------------------------------------------------------------------------------------------------ */

/* Nothing runs before it is waited for; then it runs in its order. */
static void
test_late ()
{
  cudaStream_t stream = new_stream ();
  int *there = new_device_memory (4), *here = new_pinned_memory (4);

  g_setenv ("EBB_CUDAEMU_ORDER", "0", TRUE);
  memset (here, 0, 16);
  CHECK (cudaMemcpyAsync (there, here, 16, cudaMemcpyHostToDevice, stream));
  here[0] = 7; /* too early: the copy has not run */
  CHECK (EBB_CUDA_LAUNCH (add, 1, 32, 0, stream, there, 4));
  CHECK (cudaMemcpyAsync (here, there, 16, cudaMemcpyDeviceToHost, stream));
  g_assert_cmpint (here[0], ==, 7);
  g_assert_cmpint (cudaStreamQuery (stream), ==, cudaErrorNotReady);
  g_assert_cmpint (here[0], ==, 7);
  CHECK (cudaStreamSynchronize (stream));
  g_assert_cmpint (here[0], ==, 8);
  g_assert_cmpint (here[1], ==, 1);
  CHECK (cudaStreamQuery (stream));
  CHECK (cudaFree (there));
  CHECK (cudaFreeHost (here));
  CHECK (cudaStreamDestroy (stream));
}

/* A stream that is waited for runs what its events need, and no more. */
static void
test_events ()
{
  cudaStream_t first = new_stream (), second = new_stream (), third = new_stream ();
  cudaEvent_t sent = new_event (cudaEventDisableTiming), timed[2] = { new_event (0), new_event (0) };
  int *there = new_device_memory (2), *here = new_pinned_memory (2);
  float milliseconds;

  g_setenv ("EBB_CUDAEMU_ORDER", "0", TRUE);
  memset (here, 0, 8);
  CHECK (cudaMemcpyAsync (there, here, 8, cudaMemcpyHostToDevice, first));
  CHECK (cudaEventRecord (sent, first));
  CHECK (EBB_CUDA_LAUNCH (add, 1, 32, 0, first, there, 1));
  CHECK (EBB_CUDA_LAUNCH (add, 1, 32, 0, third, there, 2));
  CHECK (cudaStreamWaitEvent (second, sent, 0));
  CHECK (cudaEventRecord (sent, third)); /* the wait is for the earlier point */
  CHECK (cudaMemcpyAsync (here, there, 8, cudaMemcpyDeviceToHost, second));
  CHECK (cudaStreamSynchronize (second));
  g_assert_cmpint (here[0], ==, 0);
  CHECK (cudaEventRecord (timed[0], first));
  CHECK (cudaEventRecord (timed[1], first));
  g_assert_cmpint (cudaEventElapsedTime (&milliseconds, timed[0], timed[1]), ==, cudaErrorNotReady);
  g_assert_cmpint (cudaEventQuery (timed[1]), ==, cudaErrorNotReady);
  CHECK (cudaDeviceSynchronize ());
  CHECK (cudaEventQuery (timed[1]));
  CHECK (cudaEventElapsedTime (&milliseconds, timed[0], timed[1]));
  g_assert_cmpfloat (milliseconds, >=, 0);
  g_assert_cmpint (cudaEventElapsedTime (&milliseconds, sent, timed[1]), ==, cudaErrorInvalidResourceHandle);
  CHECK (cudaMemcpy (here, there, 8, cudaMemcpyDeviceToHost));
  g_assert_cmpint (here[0], ==, 2);
  g_assert_cmpint (here[1], ==, 1);
  for (cudaEvent_t event : { sent, timed[0], timed[1] })
    CHECK (cudaEventDestroy (event));
  CHECK (cudaFree (there));
  CHECK (cudaFreeHost (here));
}

/* A program that asks again and again gets there, and a full queue makes room. */
static void
test_progress ()
{
  cudaStream_t stream = new_stream ();
  int *there = new_device_memory (1), got = 0, n_questions = 0;

  CHECK (cudaMemset (there, 0, 4));
  for (int i = 0; i < 3000; i++)
    CHECK (EBB_CUDA_LAUNCH (add, 1, 32, 0, stream, there, 1));
  while (cudaStreamQuery (stream) == cudaErrorNotReady)
    n_questions++;
  g_assert_cmpint (n_questions, >, 100);
  g_assert_cmpint (n_questions, <, 3000);
  CHECK (cudaMemcpy (&got, there, 4, cudaMemcpyDeviceToHost));
  g_assert_cmpint (got, ==, 3000);
  CHECK (cudaFree (there));
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

static void
test_mapped_memory ()
{
  CUmemAllocationProp properties = {};
  CUmemAccessDesc access = {};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address;
  size_t n_free, n_less, n_total, granularity;
  void *function;
  cudaDriverEntryPointQueryResult found;

  CHECK (cudaGetDriverEntryPointByVersion ("cuMemMap", &function, 12000, cudaEnableDefault, &found));
  g_assert_true (function == reinterpret_cast<void *> (cuMemMap) && found == cudaDriverEntryPointSuccess);
  CHECK (cudaGetDriverEntryPointByVersion ("cuNothing", &function, 12000, cudaEnableDefault, &found));
  g_assert_cmpint (found, ==, cudaDriverEntryPointSymbolNotFound);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  g_assert_cmpint (cuMemGetAllocationGranularity (&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM), ==, 0);
  CHECK (cudaMemGetInfo (&n_free, &n_total));
  g_assert_cmpint (cuMemAddressReserve (&address, 4 * granularity, 0, 0, 0), ==, CUDA_SUCCESS);
  g_assert_cmpint (cuMemCreate (&handle, granularity + 1, &properties, 0), ==, CUDA_ERROR_INVALID_VALUE);
  g_assert_cmpint (cuMemCreate (&handle, n_total + granularity, &properties, 0), ==, CUDA_ERROR_OUT_OF_MEMORY);
  g_assert_cmpint (cuMemCreate (&handle, granularity, &properties, 0), ==, CUDA_SUCCESS);
  g_assert_cmpint (cuMemMap (address + granularity, granularity, 0, handle, 0), ==, CUDA_SUCCESS);
  g_assert_cmpint (cuMemMap (address + granularity, granularity, 0, handle, 0), ==, CUDA_ERROR_INVALID_VALUE);
  g_assert_cmpint (cuMemSetAccess (address, granularity, &access, 1), ==, CUDA_ERROR_INVALID_VALUE);
  g_assert_cmpint (cuMemSetAccess (address + granularity, granularity, &access, 1), ==, CUDA_SUCCESS);
  CHECK (cudaMemGetInfo (&n_less, &n_total));
  g_assert_cmpuint (n_free - n_less, ==, granularity);
  CHECK (cudaMemset (reinterpret_cast<void *> (address + granularity), 1, granularity));
  g_assert_cmpint (cudaMemset (reinterpret_cast<void *> (address), 1, 1), ==, cudaErrorInvalidValue);
  g_assert_cmpint (cudaMemset (reinterpret_cast<void *> (address + granularity), 1, granularity + 1), ==,
                   cudaErrorInvalidValue);
  g_assert_cmpint (cuMemAddressFree (address, 4 * granularity), ==, CUDA_ERROR_INVALID_VALUE);
  g_assert_cmpint (cuMemUnmap (address + granularity, granularity), ==, CUDA_SUCCESS);
  g_assert_cmpint (cuMemRelease (handle), ==, CUDA_SUCCESS);
  g_assert_cmpint (cuMemAddressFree (address, 4 * granularity), ==, CUDA_SUCCESS);
  CHECK (cudaMemGetInfo (&n_less, &n_total));
  g_assert_cmpuint (n_free, ==, n_less);
  cudaGetLastError ();
}

static void
test_refused_copies ()
{
  cudaStream_t stream = new_stream ();
  int *there = new_device_memory (4), *here = new_pinned_memory (4), pageable[4] = {};

  g_assert_cmpint (cudaMemcpyAsync (there, pageable, 16, cudaMemcpyHostToDevice, stream), ==, cudaErrorInvalidValue);
  g_assert_cmpint (cudaGetLastError (), ==, cudaErrorInvalidValue);
  g_assert_cmpint (cudaGetLastError (), ==, cudaSuccess);
  CHECK (cudaHostRegister (pageable, sizeof pageable, 0));
  CHECK (cudaMemcpyAsync (there, pageable, 16, cudaMemcpyHostToDevice, stream));
  CHECK (cudaStreamSynchronize (stream));
  CHECK (cudaHostUnregister (pageable));
  g_assert_cmpint (cudaMemcpyAsync (there, here, 16, cudaMemcpyDeviceToHost, stream), ==, cudaErrorInvalidValue);
  g_assert_cmpint (cudaMemcpyAsync (there + 5000, here, 16, cudaMemcpyHostToDevice, stream), ==, cudaErrorInvalidValue);
  g_assert_cmpint (cudaMemcpyAsync (there, here, 16, cudaMemcpyHostToDevice, nullptr), ==,
                   cudaErrorInvalidResourceHandle);
  g_assert_cmpint (EBB_CUDA_LAUNCH (add, 0, 32, 0, stream, there, 1), ==, cudaErrorInvalidConfiguration);
  g_assert_cmpint (EBB_CUDA_LAUNCH (add, 1, 2048, 0, stream, there, 1), ==, cudaErrorInvalidConfiguration);
  g_assert_cmpint (EBB_CUDA_LAUNCH (add, 1, 32, 49153, stream, there, 1), ==, cudaErrorInvalidValue);
  CHECK (ebb_cuda_allow_shared (add, 100000));
  CHECK (EBB_CUDA_LAUNCH (add, 1, 32, 100000, stream, there, 1));
  g_assert_cmpint (EBB_CUDA_LAUNCH (add, 1, 32, 100001, stream, there, 1), ==, cudaErrorInvalidValue);
  /* It is asked once: it does not see that the attribute was changed behind its back. */
  CHECK (cudaFuncSetAttribute (add, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000));
  CHECK (ebb_cuda_allow_shared (add, 100000));
  g_assert_cmpint (EBB_CUDA_LAUNCH (add, 1, 32, 100000, stream, there, 1), ==, cudaErrorInvalidValue);
  CHECK (ebb_cuda_allow_shared (add, 100004));
  CHECK (EBB_CUDA_LAUNCH (add, 1, 32, 100004, stream, there, 1));
  CHECK (cudaDeviceSynchronize ());
  cudaGetLastError ();
}

/* -- what ends the process, and what fails on request -------------------------------------------------------------- */

static void
touch_device_memory ()
{
  int *there = new_device_memory (4);

  there[1] = 5;
}

static void
touch_between_work ()
{
  int *there = new_device_memory (4);
  cudaStream_t stream = new_stream ();

  CHECK (EBB_CUDA_LAUNCH (add, 1, 32, 0, stream, there, 4));
  CHECK (cudaDeviceSynchronize ());
  g_print ("%d", there[0]);
}

static void
write_far_away ()
{
  int *there = new_device_memory (4);
  cudaStream_t stream = new_stream ();

  CHECK (cudaFree (there));
  CHECK (EBB_CUDA_LAUNCH (add, 1, 32, 0, stream, there, 4));
  cudaDeviceSynchronize ();
}

static void
free_what_is_copied ()
{
  int *there = new_device_memory (4), *here = new_pinned_memory (4);

  CHECK (cudaMemcpyAsync (here, there, 16, cudaMemcpyDeviceToHost, new_stream ()));
  cudaFreeHost (here);
}

static void
test_ends ()
{
  static const struct
  {
    const char *path, *message;
  } ends[] = {
    { "/runtime/ends/subprocess/touch", "*the host touched memory of the device*" },
    { "/runtime/ends/subprocess/touch-between", "*the host touched memory of the device*" },
    { "/runtime/ends/subprocess/far-away", "*a kernel or a copy touched memory of the device that is not there*" },
    { "/runtime/ends/subprocess/free", "*cudaFreeHost () of 4096 bytes that enqueued copies use*" },
  };

  for (const auto &end : ends)
    {
      g_test_trap_subprocess (end.path, 0, (GTestSubprocessFlags) 0);
      g_test_trap_assert_failed ();
      g_test_trap_assert_stderr (end.message);
    }
}

static void
fail_at_first ()
{
  static const struct
  {
    const char *what;
    cudaError_t error;
    int version;
  } failures[] = {
    { "no-driver", cudaErrorInsufficientDriver, 0 },
    { "old-driver", cudaErrorInsufficientDriver, 11040 },
    { "no-device", cudaErrorNoDevice, 12080 },
  };
  int n = 1, version = 1;

  for (const auto &failure : failures)
    if (g_str_equal (g_getenv ("EBB_CUDAEMU_FAIL"), failure.what))
      {
        CHECK (cudaDriverGetVersion (&version));
        g_assert_cmpint (version, ==, failure.version);
        g_assert_cmpint (cudaGetDeviceCount (&n), ==, failure.error);
        g_assert_cmpint (n, ==, 0);
        return;
      }
  g_assert_not_reached ();
}

/* EBB_CUDAEMU_FAIL=alloc:2,host:1,launch:2,kernel:2 */
static void
fail_later ()
{
  int *there = new_device_memory (4);
  cudaStream_t stream = new_stream (), other = new_stream ();
  cudaEvent_t event = new_event (0);
  void *data;

  g_assert_cmpint (cudaMalloc (&data, 4), ==, cudaErrorMemoryAllocation);
  g_assert_cmpint (cudaHostAlloc (&data, 4, 0), ==, cudaErrorMemoryAllocation);
  g_assert_cmpint (cudaGetLastError (), ==, cudaErrorMemoryAllocation);
  CHECK (EBB_CUDA_LAUNCH (add, 1, 32, 0, stream, there, 4));
  g_assert_cmpint (EBB_CUDA_LAUNCH (add, 1, 32, 0, stream, there, 4), ==, cudaErrorLaunchOutOfResources);
  CHECK (EBB_CUDA_LAUNCH (add, 1, 32, 0, stream, there, 4));
  CHECK (EBB_CUDA_LAUNCH (add, 1, 32, 0, other, there, 4));
  CHECK (cudaEventRecord (event, stream));
  g_assert_cmpint (cudaStreamSynchronize (stream), ==, cudaErrorIllegalAddress);
  /* It stays. */
  g_assert_cmpint (cudaGetLastError (), ==, cudaErrorIllegalAddress);
  g_assert_cmpint (cudaGetLastError (), ==, cudaErrorIllegalAddress);
  g_assert_cmpint (cudaEventQuery (event), ==, cudaErrorIllegalAddress);
  g_assert_cmpint (cudaMalloc (&data, 4), ==, cudaErrorIllegalAddress);
  g_assert_cmpint (EBB_CUDA_LAUNCH (add, 1, 32, 0, stream, there, 4), ==, cudaErrorIllegalAddress);
  CHECK (cudaEventDestroy (event));
}

static void
test_failures ()
{
  for (const char *what : { "no-driver", "old-driver", "no-device", "alloc:2,host:1,launch:2,kernel:2" })
    {
      g_setenv ("EBB_CUDAEMU_FAIL", what, TRUE);
      g_test_trap_subprocess (strchr (what, ':') != nullptr ? "/runtime/failures/subprocess/later"
                                                            : "/runtime/failures/subprocess/first",
                              0, (GTestSubprocessFlags) 0);
      g_test_trap_assert_passed ();
    }
  g_setenv ("EBB_CUDAEMU_FAIL", "kernel", TRUE);
  g_test_trap_subprocess ("/runtime/failures/subprocess/later", 0, (GTestSubprocessFlags) 0);
  g_test_trap_assert_failed ();
  g_test_trap_assert_stderr ("*EBB_CUDAEMU_FAIL is \"kernel\", must be a list of *");
  g_unsetenv ("EBB_CUDAEMU_FAIL");
}

/* -- products ------------------------------------------------------------------------------------------------------ */

static const int n_rows = 5, n_columns = 7, n_inner = 9, n_batches = 3;

static double
value_of (int batch,
          int i,
          int k)
{
  return ((batch * 31 + i * 17 + k * 7) % 13 - 6) * 0.25;
}

/* Operands by columns, as the library wants them; an operand may lie transposed in memory. */
static void
check_product (bool transpose_a,
               bool transpose_b,
               bool is_half,
               bool has_bias,
               float beta)
{
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t product;
  cublasLtMatmulPreference_t preference;
  cublasLtMatrixLayout_t layouts[3];
  cublasLtMatmulHeuristicResult_t result;
  cudaStream_t stream = new_stream ();
  cublasOperation_t transpose[2] = { transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N };
  cublasLtEpilogue_t epilogue = has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  const int rows[3] = { transpose_a ? n_inner : n_rows, transpose_b ? n_columns : n_inner, n_rows };
  const int columns[3] = { transpose_a ? n_rows : n_inner, transpose_b ? n_inner : n_columns, n_columns };
  const float alpha = 0.5f;
  uint32_t alignment = 4;
  uint64_t workspace_size = 65536;
  char *memory[5]; /* a, b, d, bias, workspace */
  int n_results;

  for (auto &piece : memory)
    piece = reinterpret_cast<char *> (new_device_memory (16384));
  g_assert_cmpint (cublasLtCreate (&handle), ==, 0);
  g_assert_cmpint (cublasLtMatmulDescCreate (&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), ==, 0);
  cublasLtMatmulDescSetAttribute (product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose[0], sizeof transpose[0]);
  cublasLtMatmulDescSetAttribute (product, CUBLASLT_MATMUL_DESC_TRANSB, &transpose[1], sizeof transpose[1]);
  cublasLtMatmulDescSetAttribute (product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
  cublasLtMatmulDescSetAttribute (product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &memory[3], sizeof memory[3]);
  for (int k = 0; k < 3; k++)
    {
      int64_t leading = rows[k] + 3, offset = leading * columns[k] + 1;
      int32_t n = n_batches;
      bool half = is_half && k < 2;
      g_autofree char *bytes = static_cast<char *> (g_malloc0 (65536));

      cublasLtMatrixLayoutCreate (&layouts[k], half ? CUDA_R_16BF : CUDA_R_32F, (uint64_t) rows[k],
                                  (uint64_t) columns[k], leading);
      cublasLtMatrixLayoutSetAttribute (layouts[k], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n);
      cublasLtMatrixLayoutSetAttribute (layouts[k], CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &offset,
                                        sizeof offset);
      for (int batch = 0; batch < n_batches; batch++)
        for (int i = 0; i < rows[k]; i++)
          for (int j = 0; j < columns[k]; j++)
            {
              int64_t at = batch * offset + j * leading + i;
              bool turned = k < 2 && transpose[k] == CUBLAS_OP_T;
              float value = (float) value_of (batch + k, turned ? j : i, turned ? i : j);

              if (half)
                reinterpret_cast<uint16_t *> (bytes)[at] = bf16_from_float (value);
              else
                reinterpret_cast<float *> (bytes)[at] = value;
            }
      CHECK (cudaMemcpy (memory[k], bytes, 65536, cudaMemcpyHostToDevice));
    }
  for (int i = 0; i < n_rows; i++)
    {
      float value = (float) i;

      CHECK (cudaMemcpy (memory[3] + i * sizeof value, &value, sizeof value, cudaMemcpyHostToDevice));
    }
  cublasLtMatmulPreferenceCreate (&preference);
  cublasLtMatmulPreferenceSetAttribute (preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_size,
                                        sizeof workspace_size);
  for (int k = 0; k < 4; k++)
    cublasLtMatmulPreferenceSetAttribute (
        preference, (cublasLtMatmulPreferenceAttributes_t) (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + k), &alignment,
        sizeof alignment);
  g_assert_cmpint (cublasLtMatmulAlgoGetHeuristic (handle, product, layouts[0], layouts[1], layouts[2], layouts[2],
                                                   preference, 1, &result, &n_results),
                   ==, 0);
  g_assert_cmpint (n_results, ==, 1);
  g_assert_cmpint (cublasLtMatmul (handle, product, &alpha, memory[0], layouts[0], memory[1], layouts[1], &beta,
                                   memory[2], layouts[2], memory[2], layouts[2], &result.algo, memory[4], 0, stream),
                   ==, CUBLAS_STATUS_INVALID_VALUE);
  g_assert_cmpint (cublasLtMatmul (handle, product, &alpha, memory[0], layouts[0], memory[1], layouts[1], &beta,
                                   memory[2], layouts[2], memory[2], layouts[2], &result.algo, memory[4], 65536,
                                   stream),
                   ==, 0);
  CHECK (cudaStreamSynchronize (stream));
  for (int batch = 0; batch < n_batches; batch++)
    for (int i = 0; i < n_rows; i++)
      for (int j = 0; j < n_columns; j++)
        {
          int64_t leading = n_rows + 3, at = batch * (leading * n_columns + 1) + j * leading + i;
          double want = beta * value_of (batch + 2, i, j) + (has_bias ? i : 0);
          float got;

          for (int k = 0; k < n_inner; k++)
            want += 0.5 * value_of (batch, i, k) * value_of (batch + 1, k, j);
          CHECK (cudaMemcpy (&got, memory[2] + at * 4, sizeof got, cudaMemcpyDeviceToHost));
          g_assert_cmpfloat_with_epsilon (got, want, 1e-5);
        }
  for (auto &piece : memory)
    CHECK (cudaFree (piece));
  for (auto &layout : layouts)
    cublasLtMatrixLayoutDestroy (layout);
  cublasLtMatmulPreferenceDestroy (preference);
  cublasLtMatmulDescDestroy (product);
  cublasLtDestroy (handle);
}

static void
test_products ()
{
  for (int i = 0; i < 32; i++)
    check_product (i & 1, i & 2, i & 4, i & 8, i & 16 ? 1.0f : 0.0f);
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, nullptr);
  g_test_add_func ("/runtime/late", test_late);
  g_test_add_func ("/runtime/events", test_events);
  g_test_add_func ("/runtime/progress", test_progress);
  g_test_add_func ("/runtime/mapped-memory", test_mapped_memory);
  g_test_add_func ("/runtime/refused-copies", test_refused_copies);
  g_test_add_func ("/runtime/ends", test_ends);
  g_test_add_func ("/runtime/failures", test_failures);
  g_test_add_func ("/runtime/products", test_products);
  g_test_add_func ("/runtime/ends/subprocess/touch", touch_device_memory);
  g_test_add_func ("/runtime/ends/subprocess/touch-between", touch_between_work);
  g_test_add_func ("/runtime/ends/subprocess/far-away", write_far_away);
  g_test_add_func ("/runtime/ends/subprocess/free", free_what_is_copied);
  g_test_add_func ("/runtime/failures/subprocess/first", fail_at_first);
  g_test_add_func ("/runtime/failures/subprocess/later", fail_later);
  return g_test_run ();
}
