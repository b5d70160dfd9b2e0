/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The state of the stand-in runtime, which one mutex guards. It is held while work runs. */

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "cudaemu/runtime.h"

namespace cudaemu
{

/* -- settings and errors (device.cpp) ------------------------------------------------------------------------------ */

constexpr int MAX_DEVICES = 16;

/* The names in EBB_CUDAEMU_FAIL. Those before FAIL_ALLOC fail from the beginning on; of the others the n-th fails. */
enum Failure
{
  FAIL_NO_DRIVER,
  FAIL_OLD_DRIVER,
  FAIL_NO_DEVICE,
  FAIL_NO_KERNELS, /* for this device */
  FAIL_ALLOC,      /* memory of the device */
  FAIL_HOST,       /* pinned memory */
  FAIL_LAUNCH,     /* a kernel is not enqueued */
  FAIL_KERNEL,     /* a running kernel faults */
  FAIL_BLAS,       /* a product is not enqueued */
  N_FAILURES
};

/* TRUE: it is the one. */
bool take_failure (Failure failure);
std::size_t get_memory_size ();       /* of a device: EBB_CUDAEMU_MEMORY */
std::size_t get_most_shared_bytes (); /* of a block: EBB_CUDAEMU_SHARED */
/* TRUE: work is dropped, not enqueued, so that the host's own time can be measured: EBB_CUDAEMU_IDLE. */
bool is_idle ();

/* Every function of the runtime ends with it: a failure is kept for cudaGetLastError (). */
cudaError_t finish (cudaError_t error);
/* Unless it is cudaSuccess, a function of the runtime does nothing and returns it. */
cudaError_t get_state ();
/* The same for a function that works in a context: a thread that has none gets that of its device. */
cudaError_t enter_context ();
/* Of this thread. Functions of cuBLASLt make none. */
bool has_context ();
int get_device ();
/* A line on stderr about a mistake of the caller that CUDA's errors don't explain. */
void explain (const char *format,
              ...) __attribute__ ((format (printf, 1, 2)));

/* -- streams and their queues (queue.cpp) -------------------------------------------------------------------------- */

struct Stream;

/* A point in a stream; an event has the last one that was recorded with it. */
struct Record
{
  Stream *stream; /* NULL: reached */
  double time;    /* seconds, when it was reached */
};

enum ItemKind
{
  ITEM_KERNEL,
  ITEM_WORK,
  ITEM_RECORD,
  ITEM_WAIT
};

struct Item
{
  ItemKind kind;
  Call call;
  std::function<bool ()> work;
  std::shared_ptr<Record> record;
  const char *host_data; /* that a copy uses; NULL: none */
  std::size_t host_size;
};

struct Stream
{
  int device;
  std::deque<Item> items;
};

extern std::mutex lock;

/* With the lock. */
cudaStream_t add_stream ();
void remove_stream (cudaStream_t handle);
/* NULL: there is none with that handle. */
Stream *find_stream (cudaStream_t handle);

/* With the lock. enqueue_item () may run work if there is too much of it. */
cudaError_t enqueue_item (cudaStream_t stream,
                          Item item);

enum Progress
{
  RAN,
  BLOCKED, /* by something outside of this process */
  NOTHING
};

/* Runs the first item of @stream, or one that this waits for. */
Progress advance (Stream *stream);
/* Runs what @stream needs until @is_done (). The lock may be released meanwhile. */
void run_until (std::unique_lock<std::mutex> &guard,
                Stream *stream,
                const std::function<bool ()> &is_done);
/* Runs all work of all streams. The lock may be released meanwhile. */
void drain (std::unique_lock<std::mutex> &guard);
/* TRUE if enqueued copies use that host memory, or a byte of it. */
bool uses_host_memory (const void *data,
                       std::size_t size);
bool is_drained ();
cudaError_t get_context_error ();
/* A thread that runs work may not call the runtime. */
bool is_running_work ();

/* -- memory (memory.cpp) ------------------------------------------------------------------------------------------- */

/* With the lock: from now on memory of devices can be touched, or not. */
void open_memory ();
void close_memory ();
bool is_pinned_memory (const void *data,
                       std::size_t size);

} // namespace cudaemu
