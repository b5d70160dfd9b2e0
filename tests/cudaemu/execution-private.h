/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The state of the grid that runs; one runs at a time, see runtime-private.h. */

#include "cudaemu/execution.h"
#include "cudaemu/fiber.h"

namespace cudaemu
{

constexpr unsigned MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / 32, NONE = 0xffffffffu;

enum Order
{
  ORDER_FORWARD,
  ORDER_BACKWARD,
  ORDER_SHUFFLED
};

/* Where a lane waits for others of its warp. */
struct Meeting
{
  std::uint32_t mask;
  int line;
  WarpFunc func;
  void *operand;
};

/* Sets of lanes as bits: those that can run, those that have not ended, those that wait for others of the warp. */
struct Warp
{
  std::uint32_t ready, live, waiting;
  Meeting meetings[32];
};

struct Grid
{
  const Call *call;
  Order order;
  std::uint32_t random;
  unsigned n_threads, n_warps;
  std::uint64_t n_blocks, n_blocks_done, first_block, block_step;
  /* of the block that runs */
  unsigned thread, warp; /* the one that runs */
  std::uint32_t ready_warps;
  unsigned n_done, n_at_barrier;
  int barrier_line;
  int count, next_count; /* of block_count () */
  char *shared;
  std::size_t shared_size;
  Warp warps[MAX_WARPS];
  uint3 indices[MAX_THREADS];
  Fiber *fibers[MAX_THREADS]; /* of threads that wait; NULL: it has not begun, runs or has ended */
  Fiber *fiber;               /* that runs */
  Fiber *free_fibers;
  Fiber host;
};

extern Grid grid;

/* Lets another thread run; returns when the caller is picked again. */
void suspend ();
void check_end ();
/* Copies to shared memory that nobody has waited for are forgotten. */
void drop_copies ();
/* EBB_CUDAEMU_ORDER, and where it is shuffled, from 1, how. */
Order get_order ();
std::uint32_t get_shuffle ();
/* Of the kernel's name at the begin of a call's text. */
std::size_t get_name_length (const char *text);

} // namespace cudaemu
