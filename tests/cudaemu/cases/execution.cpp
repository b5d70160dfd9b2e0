/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The emulated execution model: its results, and the mistakes of kernels that it finds, each planted in a kernel here.
 */
#include "tensor/cuda/kernels/device.cuh"

#include <glib.h>
#include <math.h>
#include <string.h>

static cudaStream_t stream;

/* Memory of the device that holds @n elements. */
template <typename T>
static T *
new_array (gsize n)
{
  void *data;

  g_assert_cmpint (cudaMalloc (&data, n * sizeof (T)), ==, cudaSuccess);
  return static_cast<T *> (data);
}

template <typename T>
static void
fetch (T *values,
       const T *array,
       gsize n)
{
  g_assert_cmpint (cudaMemcpy (values, array, n * sizeof (T), cudaMemcpyDeviceToHost), ==, cudaSuccess);
}

template <typename T>
static void
send (T *array,
      const T *values,
      gsize n)
{
  g_assert_cmpint (cudaMemcpy (array, values, n * sizeof (T), cudaMemcpyHostToDevice), ==, cudaSuccess);
}

static void
set_order (int order)
{
  g_autofree char *number = g_strdup_printf ("%d", order);

  g_setenv ("EBB_CUDAEMU_ORDER", number, TRUE);
}

static void
synchronize ()
{
  g_assert_cmpint (cudaStreamSynchronize (stream), ==, cudaSuccess);
}

#define LAUNCH(...) g_assert_cmpint (EBB_CUDA_LAUNCH (__VA_ARGS__), ==, cudaSuccess)

/* -- every thread once --------------------------------------------------------------------------------------------- */

__global__ void
count (int *visits,
       int *order,
       int *next)
{
  int block = (int) (blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
  int thread = (int) (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
  int i = block * (int) (blockDim.x * blockDim.y * blockDim.z) + thread;

  atomicAdd (&visits[i], 1);
  order[(*next)++] = i;
}

static void
test_threads ()
{
  const int n = 2 * 3 * 4 * 8 * 6 * 2;
  int *visits = new_array<int> (n), *order = new_array<int> (n), *next = new_array<int> (1);
  const int n_ways = 20;
  static int got[n_ways][n], counts[n];

  for (int way = 0; way < n_ways; way++)
    {
      set_order (way);
      g_assert_cmpint (cudaMemset (visits, 0, n * sizeof *visits), ==, cudaSuccess);
      g_assert_cmpint (cudaMemset (next, 0, sizeof *next), ==, cudaSuccess);
      LAUNCH (count, dim3 (2, 3, 4), dim3 (8, 6, 2), 0, stream, visits, order, next);
      fetch (counts, visits, n);
      for (int i = 0; i < n; i++)
        g_assert_cmpint (counts[i], ==, 1);
      fetch (got[way], order, n);
      for (int other = 0; other < way; other++)
        g_assert_cmpint (memcmp (got[way], got[other], sizeof got[way]), !=, 0);
    }
  for (int i = 0; i < n; i++)
    {
      g_assert_cmpint (got[0][i], ==, i);
      g_assert_cmpint (got[1][i], ==, n - 1 - i);
    }
}

/* -- barriers ------------------------------------------------------------------------------------------------------ */

/* Sums the numbers of the threads; without its barriers each order finds something else. */
template <bool HAS_BARRIER>
__global__ void
sum_threads (float *sums)
{
  EBB_SHARED (float, values);
  float sum = 0;

  values[threadIdx.x] = (float) threadIdx.x;
  if (HAS_BARRIER)
    __syncthreads ();
  for (unsigned i = 0; i < blockDim.x; i++)
    sum += values[i];
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

static void
test_missing_barrier ()
{
  float *sums = new_array<float> (3 * 96), right[3][3 * 96], wrong[3][3 * 96];

  for (int way = 0; way < 3; way++)
    {
      set_order (way);
      LAUNCH (sum_threads<true>, 3, 96, 96 * sizeof (float), stream, sums);
      fetch (right[way], sums, 3 * 96);
      LAUNCH (sum_threads<false>, 3, 96, 96 * sizeof (float), stream, sums);
      fetch (wrong[way], sums, 3 * 96);
    }
  for (int i = 0; i < 3 * 96; i++)
    g_assert_cmpfloat (right[0][i], ==, 95 * 96 / 2);
  g_assert_cmpmem (right[0], sizeof right[0], right[1], sizeof right[1]);
  g_assert_cmpmem (right[0], sizeof right[0], right[2], sizeof right[2]);
  /* Elements that no thread of this block wrote are NaN. */
  g_assert_true (isnan (wrong[0][0]) && !isnan (wrong[0][95]));
  g_assert_true (!isnan (wrong[1][0]) && isnan (wrong[1][95]));
  g_assert_true (memcmp (wrong[0], wrong[2], sizeof wrong[0]) != 0);
  g_assert_true (memcmp (wrong[1], wrong[2], sizeof wrong[0]) != 0);
}

/* A reduction that needs __syncwarp (): lanes read what others of their warp wrote. */
template <bool HAS_BARRIER>
__global__ void
turn_lanes (int *turned)
{
  EBB_SHARED_ARRAY (int, words, [64]);
  unsigned neighbour = threadIdx.x / 32 * 32 + (threadIdx.x + 1) % 32;

  words[threadIdx.x] = (int) threadIdx.x;
  if (HAS_BARRIER)
    __syncwarp ();
  turned[threadIdx.x] = words[neighbour];
}

static void
test_missing_warp_barrier ()
{
  int *turned = new_array<int> (64), right[64], wrong[2][64];

  for (int way = 0; way < 3; way++)
    {
      set_order (way);
      LAUNCH (turn_lanes<true>, 1, 64, 0, stream, turned);
      fetch (right, turned, 64);
      for (int i = 0; i < 64; i++)
        g_assert_cmpint (right[i], ==, i / 32 * 32 + (i + 1) % 32);
      LAUNCH (turn_lanes<false>, 1, 64, 0, stream, turned);
      if (way < 2)
        fetch (wrong[way], turned, 64);
    }
  g_assert_true (memcmp (wrong[0], wrong[1], sizeof wrong[0]) != 0);
}

__global__ void
count_even (int *counts)
{
  bool is_even = threadIdx.x % 2 == 0;
  int n = __syncthreads_count (is_even), any = __syncthreads_or (threadIdx.x == 5), all = __syncthreads_and (is_even);

  counts[threadIdx.x] = n * 100 + (any != 0) * 10 + (all != 0);
}

static void
test_counting_barriers ()
{
  int *counts = new_array<int> (96), got[96];

  for (int way = 0; way < 3; way++)
    {
      set_order (way);
      LAUNCH (count_even, 1, 96, 0, stream, counts);
      fetch (got, counts, 96);
      for (int i = 0; i < 96; i++)
        g_assert_cmpint (got[i], ==, 4810);
    }
}

/* -- warps --------------------------------------------------------------------------------------------------------- */

__global__ void
exchange (int *words)
{
  int lane = (int) threadIdx.x % 32, *own = words + threadIdx.x * 8;
  long long wide = (1LL << 40) + lane;

  own[0] = __shfl_sync (EBB_CUDA_ALL_LANES, lane * 10, 7);
  own[1] = __shfl_xor_sync (EBB_CUDA_ALL_LANES, lane, 5);
  own[2] = __shfl_up_sync (EBB_CUDA_ALL_LANES, lane, 3);
  own[3] = __shfl_down_sync (EBB_CUDA_ALL_LANES, lane, 3, 8);
  own[4] = (int) __ballot_sync (EBB_CUDA_ALL_LANES, lane % 3 == 0);
  own[5] = (int) (__shfl_sync (EBB_CUDA_ALL_LANES, wide, lane + 1) - (1LL << 40));
  own[6] = __any_sync (EBB_CUDA_ALL_LANES, lane == 4) * 10 + __all_sync (EBB_CUDA_ALL_LANES, lane != 4);
  own[7] = lane < 16 ? __shfl_xor_sync (0xffffu, lane, 1) : __shfl_xor_sync (0xffff0000u, lane, 2);
}

static void
test_warps ()
{
  int *words = new_array<int> (64 * 8), got[64 * 8];
  guint32 thirds = 0;

  for (int lane = 0; lane < 32; lane += 3)
    thirds |= 1u << lane;
  for (int way = 0; way < 3; way++)
    {
      set_order (way);
      LAUNCH (exchange, 1, 64, 0, stream, words);
      fetch (got, words, 64 * 8);
      for (int i = 0; i < 64; i++)
        {
          int lane = i % 32, *own = got + i * 8;

          g_assert_cmpint (own[0], ==, 70);
          g_assert_cmpint (own[1], ==, lane ^ 5);
          g_assert_cmpint (own[2], ==, lane >= 3 ? lane - 3 : lane);
          g_assert_cmpint (own[3], ==, lane % 8 + 3 < 8 ? lane + 3 : lane);
          g_assert_cmpuint ((guint32) own[4], ==, thirds);
          g_assert_cmpint (own[5], ==, (lane + 1) % 32);
          g_assert_cmpint (own[6], ==, 10);
          g_assert_cmpint (own[7], ==, lane < 16 ? lane ^ 1 : lane ^ 2);
        }
    }
}

__global__ void
reduce (const float *x,
        float *results)
{
  EBB_SHARED_ARRAY (float, scratch, [8]);
  float value = x[threadIdx.x];
  float sum = block_sum (value, scratch), max = block_max (value, scratch);

  results[threadIdx.x * 2] = sum;
  results[threadIdx.x * 2 + 1] = max;
}

static void
test_reductions ()
{
  float *x = new_array<float> (256), *results = new_array<float> (512), values[256], got[512], first[512];
  double sum = 0;

  for (int i = 0; i < 256; i++)
    {
      values[i] = sinf ((float) i) * expf ((float) (i % 7));
      sum += values[i];
    }
  send (x, values, 256);
  for (int way = 0; way < 3; way++)
    {
      set_order (way);
      LAUNCH (reduce, 1, 256, 0, stream, x, results);
      fetch (got, results, 512);
      if (way == 0)
        memcpy (first, got, sizeof first);
      g_assert_cmpmem (first, sizeof first, got, sizeof got);
      for (int i = 0; i < 256; i++)
        {
          g_assert_cmpfloat (got[2 * i], ==, got[0]);
          g_assert_cmpfloat (got[2 * i + 1], ==, got[1]);
        }
      g_assert_cmpfloat_with_epsilon (got[0], sum, 1e-2);
    }
}

/* -- tensor cores and copies beside computing ---------------------------------------------------------------------- */

#define INNER 48

/* c [16, 8] = a [16, INNER] b [INNER, 8], the right operand in rows or in columns; the copies' wait may be left out. */
template <bool BY_ROWS, bool WAITS>
__global__ void
multiply (const uint16_t *a,
          const uint16_t *b,
          float *c)
{
  EBB_SHARED (uint16_t, tile);
  uint16_t *left = tile, *right = tile + 16 * INNER;
  int lane = (int) threadIdx.x;
  float d[4] = {};

  for (int i = lane; i < 16 * INNER / 8; i += 32)
    cp_async_16 (left + i * 8, a + i * 8);
  for (int i = lane; i < 8 * INNER / 8; i += 32)
    cp_async_16 (right + i * 8, b + i * 8);
  cp_async_commit ();
  if (WAITS)
    cp_async_wait<0> ();
  __syncwarp ();
  for (int k = 0; k < INNER; k += 16)
    {
      uint32_t fa[4], fb[2];

      ldmatrix_x4 (fa, left + lane % 16 * INNER + k + lane / 16 * 8);
      if (BY_ROWS)
        ldmatrix_x2_trans (fb, right + (k + lane % 16) * 8);
      else
        ldmatrix_x2 (fb, right + lane % 8 * INNER + k + lane / 8 % 2 * 8);
      mma_bf16_16816 (d, fa, fb);
    }
  for (int i = 0; i < 4; i++)
    c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

static void
test_tensor_cores ()
{
  uint16_t *a = new_array<uint16_t> (16 * INNER), *b = new_array<uint16_t> (8 * INNER);
  uint16_t a_values[16 * INNER], b_values[8 * INNER], turned[8 * INNER];
  float *c = new_array<float> (128), got[128];

  for (int i = 0; i < 16 * INNER; i++)
    a_values[i] = bf16_from_float (sinf ((float) i));
  for (int i = 0; i < 8 * INNER; i++)
    b_values[i] = bf16_from_float (cosf ((float) i));
  for (int k = 0; k < INNER; k++)
    for (int column = 0; column < 8; column++)
      turned[k * 8 + column] = b_values[column * INNER + k];
  send (a, a_values, 16 * INNER);
  for (int by_rows = 0; by_rows < 2; by_rows++)
    for (int way = 0; way < 3; way++)
      {
        set_order (way);
        send (b, by_rows ? turned : b_values, 8 * INNER);
        if (by_rows)
          LAUNCH (multiply<true, true>, 1, 32, 24 * INNER * 2, stream, a, b, c);
        else
          LAUNCH (multiply<false, true>, 1, 32, 24 * INNER * 2, stream, a, b, c);
        fetch (got, c, 128);
        for (int row = 0; row < 16; row++)
          for (int column = 0; column < 8; column++)
            {
              double want = 0;

              for (int k = 0; k < INNER; k++)
                want +=
                    (double) bf16_to_float (a_values[row * INNER + k]) * bf16_to_float (b_values[column * INNER + k]);
              g_assert_cmpfloat_with_epsilon (got[row * 8 + column], want, 1e-4);
            }
      }
  LAUNCH (multiply<false, false>, 1, 32, 24 * INNER * 2, stream, a, b, c);
  fetch (got, c, 128);
  for (int i = 0; i < 128; i++)
    g_assert_true (isnan (got[i]));
}

__global__ void
pipeline (const int *from,
          int *to,
          int n)
{
  EBB_SHARED_ARRAY (int, slots, [2][32 * 4]);
  int *mine = &slots[0][threadIdx.x * 4], *other = &slots[1][threadIdx.x * 4];

  cp_async_16 (mine, from + threadIdx.x * 4);
  cp_async_commit ();
  for (int i = 0; i < n; i++)
    {
      int *next = i % 2 == 0 ? other : mine, *now = i % 2 == 0 ? mine : other;

      cp_async_16 (next, from + ((i + 1) * 32 + (int) threadIdx.x) * 4, i + 1 < n);
      cp_async_commit ();
      cp_async_wait<1> ();
      for (int k = 0; k < 4; k++)
        to[(i * 32 + (int) threadIdx.x) * 4 + k] = now[k];
    }
  cp_async_wait<0> ();
  to[(n * 32 + (int) threadIdx.x) * 4] = (n % 2 == 0 ? mine : other)[0]; /* invalid bytes are 0 */
}

static void
test_pipeline ()
{
  const int n = 5, size = n * 128;
  int *from = new_array<int> (size), *to = new_array<int> (size + 128), values[size], got[size + 128];

  for (int i = 0; i < size; i++)
    values[i] = i * 7;
  send (from, values, size);
  LAUNCH (pipeline, 1, 32, 0, stream, from, to, n);
  fetch (got, to, size + 128);
  g_assert_cmpmem (values, sizeof values, got, sizeof values);
  for (int i = 0; i < 32; i++)
    g_assert_cmpint (got[size + i * 4], ==, 0);
}

/* -- what ends the process ----------------------------------------------------------------------------------------- */

__global__ void
end_early ()
{
  if (threadIdx.x == 3)
    return;
  __syncthreads ();
}

__global__ void
meet_apart ()
{
  if (threadIdx.x < 32)
    __syncthreads ();
  else
    __syncthreads ();
}

__global__ void
wait_apart ()
{
  if (threadIdx.x < 32)
    __syncthreads ();
  else if (threadIdx.x < 48)
    __syncwarp ();
  else
    __syncthreads ();
}

__global__ void
leave_lane_out (int *words)
{
  words[threadIdx.x] = __shfl_sync (0xffu, (int) threadIdx.x, 0);
}

__global__ void
read_outside (int *words)
{
  if (threadIdx.x < 8)
    words[threadIdx.x] = __shfl_sync (0xffu, (int) threadIdx.x, 9);
}

__global__ void
wait_for_ended (int *words)
{
  if (threadIdx.x < 16)
    words[threadIdx.x] = __shfl_sync (EBB_CUDA_ALL_LANES, (int) threadIdx.x, 0);
}

__global__ void
differ (int *words)
{
  if (threadIdx.x < 16)
    words[threadIdx.x] = __shfl_sync (EBB_CUDA_ALL_LANES, (int) threadIdx.x, 0);
  else
    words[threadIdx.x] = (int) __ballot_sync (EBB_CUDA_ALL_LANES, 1);
}

__global__ void
copy_unaligned (int *words)
{
  EBB_SHARED_ARRAY (int, slot, [8]);

  cp_async_16 (slot, words + 1);
}

__global__ void
write_behind (int)
{
  EBB_SHARED (float, values);

  values[threadIdx.x] = 0;
}

static void
break_rule (gconstpointer data)
{
  int kind = GPOINTER_TO_INT (data), *words;

  set_order (kind % 3);
  words = new_array<int> (64);
  switch (kind)
    {
    case 0: LAUNCH (end_early, 1, 64, 0, stream); break;
    case 1: LAUNCH (meet_apart, 1, 64, 0, stream); break;
    case 2: LAUNCH (wait_apart, 1, 64, 0, stream); break;
    case 3: LAUNCH (leave_lane_out, 1, 32, 0, stream, words); break;
    case 4: LAUNCH (read_outside, 1, 32, 0, stream, words); break;
    case 5: LAUNCH (wait_for_ended, 1, 32, 0, stream, words); break;
    case 6: LAUNCH (differ, 1, 32, 0, stream, words); break;
    case 7: LAUNCH (copy_unaligned, 1, 32, 0, stream, words); break;
    case 8: LAUNCH (write_behind, 1, 64, 128, stream, 0); break;
    default: g_assert_not_reached ();
    }
  synchronize ();
}

static void
test_rules ()
{
  static const char *const messages[] = {
    "*end_early, block (0, 0, 0)*__syncthreads ()*",
    "*meet_apart*__syncthreads () in line*others at that in line*",
    "*wait_apart*",
    "*leave_lane_out*lane * whose mask 000000ff leaves it out*",
    "*read_outside*reads from lane 9*which the mask 000000ff leaves out*",
    "*wait_for_ended*",
    "*differ*lanes of a warp meet in different functions*",
    "*copy_unaligned*not aligned to its size*",
    "*",
  };

  for (guint i = 0; i < G_N_ELEMENTS (messages); i++)
    {
      g_autofree char *path = g_strdup_printf ("/execution/rules/subprocess/%u", i);

      g_test_trap_subprocess (path, 0, (GTestSubprocessFlags) 0);
      g_test_trap_assert_failed ();
      g_test_trap_assert_stderr (messages[i]);
    }
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, nullptr);
  g_assert_cmpint (cudaStreamCreateWithFlags (&stream, cudaStreamNonBlocking), ==, cudaSuccess);
  g_test_add_func ("/execution/threads", test_threads);
  g_test_add_func ("/execution/missing-barrier", test_missing_barrier);
  g_test_add_func ("/execution/missing-warp-barrier", test_missing_warp_barrier);
  g_test_add_func ("/execution/counting-barriers", test_counting_barriers);
  g_test_add_func ("/execution/warps", test_warps);
  g_test_add_func ("/execution/reductions", test_reductions);
  g_test_add_func ("/execution/tensor-cores", test_tensor_cores);
  g_test_add_func ("/execution/pipeline", test_pipeline);
  g_test_add_func ("/execution/rules", test_rules);
  for (int i = 0; i < 9; i++)
    {
      g_autofree char *path = g_strdup_printf ("/execution/rules/subprocess/%d", i);

      g_test_add_data_func (path, GINT_TO_POINTER (i), break_rule);
    }
  return g_test_run ();
}
