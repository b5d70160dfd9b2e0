/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The blocks of a grid and the threads of a block: which one runs next, barriers of the block, shared memory. */
#include "cudaemu/execution-private.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <sys/mman.h>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cudaemu
{

Grid grid;
std::uint64_t SharedArray::current_launch;

/* -- failures ------------------------------------------------------------------------------------------------------ */

void
die (const char *format,
     ...)
{
  char message[512];
  std::va_list arguments;

  va_start (arguments, format);
  std::vsnprintf (message, sizeof message, format, arguments);
  va_end (arguments);
  std::fprintf (stderr, "cudaemu: %.*s, block (%u, %u, %u), thread (%u, %u, %u): %s\n",
                (int) get_name_length (grid.call->text), grid.call->text, blockIdx.x, blockIdx.y, blockIdx.z,
                threadIdx.x, threadIdx.y, threadIdx.z, message);
  std::fflush (stderr);
  std::abort ();
}

/* Some threads wait, and nobody can go on. */
[[noreturn]] static void
die_stuck ()
{
  unsigned n_in_warps = 0;
  int warp_line = 0;

  for (unsigned w = 0; w < grid.n_warps; w++)
    for (unsigned lane = 0; lane < 32; lane++)
      if (grid.warps[w].waiting >> lane & 1)
        {
          n_in_warps++;
          warp_line = grid.warps[w].meetings[lane].line;
        }
  if (grid.n_at_barrier > 0 && n_in_warps > 0)
    die ("%u threads wait at __syncthreads () in line %d, %u at a function of their warp in line %d, %u have ended",
         grid.n_at_barrier, grid.barrier_line, n_in_warps, warp_line, grid.n_done);
  if (n_in_warps > 0)
    die ("%u threads wait for lanes of their warp in line %d that don't come; %u have ended", n_in_warps, warp_line,
         grid.n_done);
  die ("%u threads wait at __syncthreads () in line %d, %u have ended", grid.n_at_barrier, grid.barrier_line,
       grid.n_done);
}

/* -- orders -------------------------------------------------------------------------------------------------------- */

static std::uint32_t
draw ()
{
  grid.random = grid.random * 1664525u + 1013904223u;
  return grid.random >> 8;
}

/* One of the bits that are set. */
static unsigned
pick (std::uint32_t bits)
{
  if (grid.order == ORDER_FORWARD)
    return (unsigned) __builtin_ctz (bits);
  if (grid.order == ORDER_BACKWARD)
    return 31 - (unsigned) __builtin_clz (bits);

  unsigned first = draw () & 31;
  std::uint32_t turned = bits >> first | bits << ((32 - first) & 31);

  return ((unsigned) __builtin_ctz (turned) + first) & 31;
}

/* The thread that runs next, or NONE. A warp goes on until all of its lanes wait, mostly: that keeps few stacks in the
 * caches, and lets it run ahead of the others as far as it can. */
static unsigned
pick_thread ()
{
  Warp *warp = &grid.warps[grid.warp];

  if (warp->ready == 0 || (grid.order == ORDER_SHUFFLED && (draw () & 15) == 0))
    {
      if (warp->ready == 0)
        grid.ready_warps &= ~(1u << grid.warp);
      if (grid.ready_warps == 0)
        return NONE;
      grid.warp = pick (grid.ready_warps);
      warp = &grid.warps[grid.warp];
    }

  unsigned lane = pick (warp->ready);

  warp->ready &= ~(1u << lane);
  return grid.warp * 32 + lane;
}

/* -- threads ------------------------------------------------------------------------------------------------------- */

static void run_fiber (Fiber *self);

static Fiber *
take_fiber ()
{
  Fiber *fiber = grid.free_fibers;

  if (fiber == nullptr)
    return fiber_new (run_fiber);
  grid.free_fibers = fiber->next_free;
  return fiber;
}

static void
set_current (unsigned thread)
{
  grid.thread = thread;
  threadIdx = grid.indices[thread];
}

void
suspend ()
{
  unsigned self = grid.thread, next = pick_thread ();
  Fiber *fiber = grid.fiber, *other;

  if (next == NONE)
    die_stuck ();
  if (next == self)
    return;
  other = grid.fibers[next] != nullptr ? grid.fibers[next] : take_fiber ();
  grid.fibers[next] = nullptr;
  grid.fibers[self] = fiber;
  grid.fiber = other;
  set_current (next);
  fiber_switch (fiber, other);
}

static bool begin_block (std::uint64_t number);

/* The loop of every fiber: it runs threads from their first instruction on, one after the other as long as they don't
 * wait. When another fiber has to go on, it stops between two threads. */
static void
run_fiber (Fiber *self)
{
  for (;;)
    {
      grid.call->run (grid.call->arguments);
      grid.n_done++;
      grid.warps[grid.thread / 32].live &= ~(1u << grid.thread % 32);
      if (grid.n_at_barrier > 0 || grid.warps[grid.thread / 32].waiting != 0)
        check_end ();

      unsigned next = pick_thread ();
      Fiber *other;

      if (next == NONE && grid.n_done < grid.n_threads)
        die_stuck ();
      if (next == NONE && begin_block (++grid.n_blocks_done))
        next = pick_thread ();
      if (next != NONE && grid.fibers[next] == nullptr)
        {
          set_current (next);
          continue;
        }
      self->next_free = grid.free_fibers;
      grid.free_fibers = self;
      other = next != NONE ? grid.fibers[next] : &grid.host;
      if (next != NONE)
        {
          grid.fibers[next] = nullptr;
          set_current (next);
        }
      grid.fiber = other;
      fiber_switch (self, other);
    }
}

/* -- barriers of the block ----------------------------------------------------------------------------------------- */

/* A thread has ended while others of its block wait. */
void
check_end ()
{
  const Warp *warp = &grid.warps[grid.thread / 32];

  if (grid.n_at_barrier > 0)
    die ("the thread ends while %u others wait at __syncthreads () in line %d", grid.n_at_barrier, grid.barrier_line);
  for (unsigned lane = 0; lane < 32; lane++)
    if ((warp->waiting >> lane & 1) && (warp->meetings[lane].mask >> grid.thread % 32 & 1))
      die ("the thread ends while lane %u waits for it in line %d", lane, warp->meetings[lane].line);
}

static std::uint32_t
get_lanes (unsigned warp)
{
  unsigned n = grid.n_threads - warp * 32;

  return n >= 32 ? 0xffffffffu : (1u << n) - 1;
}

void
block_barrier (int line)
{
  if (grid.n_done > 0)
    die ("the thread waits at __syncthreads () in line %d, and %u others have ended", line, grid.n_done);
  if (grid.n_at_barrier > 0 && grid.barrier_line != line)
    die ("the thread waits at __syncthreads () in line %d, others at that in line %d", line, grid.barrier_line);
  grid.barrier_line = line;
  if (++grid.n_at_barrier == grid.n_threads)
    {
      grid.n_at_barrier = 0;
      for (unsigned w = 0; w < grid.n_warps; w++)
        grid.warps[w].ready = get_lanes (w);
      grid.ready_warps = grid.n_warps == 32 ? 0xffffffffu : (1u << grid.n_warps) - 1;
      grid.warp = pick (grid.ready_warps);
      grid.count = grid.next_count;
      grid.next_count = 0;
    }
  suspend ();
}

int
block_count (bool predicate,
             int line)
{
  grid.next_count += predicate;
  block_barrier (line);
  return grid.count;
}

/* -- shared memory ------------------------------------------------------------------------------------------------- */

constexpr std::size_t SHARED_ALIGNMENT = 16, MOST_SHARED = 256 * 1024, PAGE = 4096;
/* Of the launch that runs. */
static std::vector<const SharedArray *> &arrays = *new std::vector<const SharedArray *>;

void *
get_shared_memory ()
{
  return grid.shared;
}

void
SharedArray::add ()
{
  launch_ = current_launch;
  arrays.push_back (this);
  fill ();
}

void
SharedArray::fill () const
{
  std::memset (data_, 0xff, size_);
}

/* Dynamic shared memory ends, up to its alignment, where memory that can't be reached begins. */
static void
place_shared (std::size_t size)
{
  static char *end;

  if (end == nullptr)
    {
      void *memory = mmap (nullptr, MOST_SHARED + PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

      if (memory == MAP_FAILED)
        die ("there is no memory for shared memory");
      end = static_cast<char *> (memory) + MOST_SHARED;
      mprotect (end, PAGE, PROT_NONE);
    }
  grid.shared_size = (size + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT;
  grid.shared = end - grid.shared_size;
}

static void
fill_shared ()
{
  std::memset (grid.shared, 0xff, grid.shared_size);
  for (const SharedArray *array : arrays)
    array->fill ();
}

/* -- grids --------------------------------------------------------------------------------------------------------- */

std::size_t
get_name_length (const char *text)
{
  int depth = 0;
  std::size_t n = 0;

  for (; text[n] != '\0' && (depth > 0 || text[n] != ','); n++)
    depth += text[n] == '<' || text[n] == '(' ? 1 : (text[n] == '>' || text[n] == ')' ? -1 : 0);
  return n;
}

/* FALSE: all blocks have run. */
static bool
begin_block (std::uint64_t number)
{
  if (number == grid.n_blocks)
    return false;

  std::uint64_t block = (grid.first_block + number * grid.block_step) % grid.n_blocks;

  blockIdx.x = (unsigned) (block % gridDim.x);
  blockIdx.y = (unsigned) (block / gridDim.x % gridDim.y);
  blockIdx.z = (unsigned) (block / gridDim.x / gridDim.y);
  for (unsigned w = 0; w < grid.n_warps; w++)
    {
      grid.warps[w].ready = grid.warps[w].live = get_lanes (w);
      grid.warps[w].waiting = 0;
    }
  grid.ready_warps = grid.n_warps == 32 ? 0xffffffffu : (1u << grid.n_warps) - 1;
  grid.warp = pick (grid.ready_warps);
  grid.n_done = 0;
  drop_copies ();
  fill_shared ();
  return true;
}

/* Blocks in the order first, first + step, .. modulo their number, which has no divisor with the step in common. */
static void
order_blocks ()
{
  grid.first_block = 0;
  grid.block_step = 1;
  if (grid.order == ORDER_BACKWARD)
    {
      grid.first_block = grid.n_blocks - 1;
      grid.block_step = grid.n_blocks - 1;
    }
  if (grid.order == ORDER_SHUFFLED && grid.n_blocks > 2)
    {
      grid.first_block = draw () % grid.n_blocks;
      do
        grid.block_step = 1 + draw () % (grid.n_blocks - 1);
      while (std::gcd (grid.block_step, grid.n_blocks) != 1);
    }
}

static void
number_threads (const dim3 &block)
{
  if (blockDim.x == block.x && blockDim.y == block.y && blockDim.z == block.z)
    return;
  blockDim = block;
  for (unsigned i = 0; i < block.x * block.y * block.z; i++)
    grid.indices[i] = { i % block.x, i / block.x % block.y, i / block.x / block.y };
}

void
run_grid (const Call &call)
{
  grid.call = &call;
  grid.order = get_order ();
  grid.random = get_shuffle ();
  gridDim = call.grid;
  number_threads (call.block);
  grid.n_threads = call.block.x * call.block.y * call.block.z;
  grid.n_warps = (grid.n_threads + 31) / 32;
  grid.n_blocks = (std::uint64_t) call.grid.x * call.grid.y * call.grid.z;
  grid.n_blocks_done = 0;
  grid.n_at_barrier = 0;
  grid.next_count = 0;
  SharedArray::begin_launch ();
  arrays.clear ();
  place_shared (call.shared_bytes);
  order_blocks ();
  begin_block (0);
  set_current (pick_thread ());
  fiber_init_host (&grid.host);
  grid.fiber = take_fiber ();
  fiber_switch (&grid.host, grid.fiber);
}

} // namespace cudaemu
