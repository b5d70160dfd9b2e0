/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "cudaemu/execution-private.h"
#include "cudaemu/runtime-private.h"

#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <set>
#include <vector>
#include <time.h>

/* Streams and events: work is put into queues, and runs when somebody waits for it. */

/* What the handles of the runtime point to. */
struct CUstream_st : cudaemu::Stream
{
};

struct CUevent_st
{
  bool is_timed;
  std::shared_ptr<cudaemu::Record> last; /* NULL: it was never recorded */
};

namespace cudaemu
{

/* A full queue makes the host wait for its oldest work; one in N_EARLY calls runs work before anybody asks for it where
 * the order is shuffled. */
constexpr std::size_t QUEUE_LENGTH = 1024;
constexpr std::uint32_t N_EARLY = 16;
constexpr long MOMENT = 200000; /* nanoseconds, between two looks at what another process does */

std::mutex lock;
/* These and the like are never freed: programs end while they are in use. */
static std::set<CUstream_st *> &streams = *new std::set<CUstream_st *>;
static cudaError_t context_error;
static thread_local bool runs_work;
static std::uint32_t random_state = 1;

static double
get_seconds ()
{
  struct timespec time;

  clock_gettime (CLOCK_MONOTONIC, &time);
  return (double) time.tv_sec + (double) time.tv_nsec * 1e-9;
}

static std::uint32_t
draw ()
{
  random_state = random_state * 1664525u + 1013904223u;
  return random_state >> 8;
}

bool
is_running_work ()
{
  return runs_work;
}

cudaError_t
get_context_error ()
{
  return context_error;
}

/* Of work that was dropped: all points count as reached. */
static void
reach (Record *record)
{
  record->stream = nullptr;
  record->time = get_seconds ();
}

static void
free_item (Item *item)
{
  if (item->kind == ITEM_KERNEL)
    item->call.free (item->call.arguments);
}

/* With the lock. */
static void
set_context_error (cudaError_t error)
{
  if (context_error != cudaSuccess)
    return;
  context_error = error;
  for (CUstream_st *stream : streams)
    while (!stream->items.empty ())
      {
        Item item = std::move (stream->items.front ());

        stream->items.pop_front ();
        if (item.kind == ITEM_RECORD)
          reach (item.record.get ());
        free_item (&item);
      }
}

void
end_context (cudaError_t error)
{
  if (is_running_work ()) /* the lock is held */
    {
      set_context_error (error);
      return;
    }

  std::unique_lock<std::mutex> guard (lock);

  set_context_error (error);
}

/* -- running ------------------------------------------------------------------------------------------------------- */

enum Progress
{
  RAN,
  BLOCKED, /* by something outside of this process */
  NOTHING
};

static bool
run_item (Item *item)
{
  bool done = true;

  open_memory ();
  runs_work = true;
  if (item->kind == ITEM_KERNEL && take_failure (FAIL_KERNEL))
    context_error = cudaErrorIllegalAddress;
  else if (item->kind == ITEM_KERNEL)
    run_grid (item->call);
  else
    done = item->work ();
  runs_work = false;
  return done;
}

/* The first item of @stream, or one that this waits for. */
static Progress
advance (Stream *stream)
{
  if (stream->items.empty ())
    return NOTHING;
  if (stream->items.front ().kind == ITEM_WAIT)
    {
      Stream *other = stream->items.front ().record->stream;

      if (other != nullptr)
        return advance (other);
    }

  Item item = std::move (stream->items.front ());

  stream->items.pop_front ();
  if (item.kind == ITEM_RECORD)
    reach (item.record.get ());
  else if (item.kind != ITEM_WAIT && !run_item (&item))
    {
      stream->items.push_front (std::move (item));
      return BLOCKED;
    }
  free_item (&item);
  if (context_error != cudaSuccess)
    {
      cudaError_t error = context_error;

      context_error = cudaSuccess;
      set_context_error (error);
    }
  return RAN;
}

/* Work of any stream: of the one that was made first, last, or by chance. */
static Progress
advance_any (const Stream *but)
{
  std::vector<Stream *> full;
  Order order = get_order ();

  for (CUstream_st *stream : streams)
    if (!stream->items.empty () && stream != but)
      full.push_back (stream);
  while (!full.empty ())
    {
      std::size_t i = order == ORDER_FORWARD ? 0 : order == ORDER_BACKWARD ? full.size () - 1
                                                                           : draw () % full.size ();
      Progress progress = advance (full[i]);

      if (progress == RAN)
        return RAN;
      full.erase (full.begin () + (std::ptrdiff_t) i);
      if (full.empty ())
        return progress;
    }
  return NOTHING;
}

/* Releases the lock for a moment: another process, or another thread, has to go on. */
static void
wait_outside (std::unique_lock<std::mutex> &guard)
{
  const struct timespec moment = { 0, MOMENT };

  close_memory ();
  guard.unlock ();
  nanosleep (&moment, nullptr);
  guard.lock ();
}

/* Runs what @stream needs until @is_done (). */
template <typename IsDone>
static void
run_until (std::unique_lock<std::mutex> &guard,
           Stream *stream,
           IsDone is_done)
{
  while (context_error == cudaSuccess && !is_done ())
    if (advance (stream) == BLOCKED && advance_any (stream) != RAN)
      wait_outside (guard);
  close_memory ();
}

void
drain (std::unique_lock<std::mutex> &guard)
{
  for (Progress progress = RAN; context_error == cudaSuccess && progress != NOTHING;)
    {
      progress = advance_any (nullptr);
      if (progress == BLOCKED)
        wait_outside (guard);
    }
  close_memory ();
}

bool
is_drained ()
{
  for (const CUstream_st *stream : streams)
    if (!stream->items.empty ())
      return false;
  return true;
}

bool
uses_host_memory (const void *data,
                  std::size_t size)
{
  const char *begin = static_cast<const char *> (data);

  for (const CUstream_st *stream : streams)
    for (const Item &item : stream->items)
      if (item.host_data != nullptr && item.host_data < begin + size && begin < item.host_data + item.host_size)
        return true;
  return false;
}

/* -- progress without anybody who waits ---------------------------------------------------------------------------- */

static bool exits; /* under the lock */

static void *
run_progress (void *)
{
  const struct timespec moment = { 0, 5 * MOMENT };

  for (;;)
    {
      nanosleep (&moment, nullptr);

      std::unique_lock<std::mutex> guard (lock, std::try_to_lock);

      if (!guard.owns_lock ())
        continue;
      if (exits)
        return nullptr;
      while (context_error == cudaSuccess && advance_any (nullptr) == RAN)
        ;
      close_memory ();
    }
  return nullptr;
}

void
start_progress ()
{
  static std::once_flag once;

  std::call_once (once, [] {
    pthread_t thread;

    if (pthread_create (&thread, nullptr, run_progress, nullptr) == 0)
      pthread_detach (thread);
    /* Before the streams go. */
    std::atexit ([] {
      std::unique_lock<std::mutex> guard (lock);

      exits = true;
    });
  });
}

/* -- enqueuing ----------------------------------------------------------------------------------------------------- */

static CUstream_st *
find_stream (cudaStream_t stream)
{
  return streams.count (stream) > 0 ? stream : nullptr;
}

cudaError_t
enqueue_item (cudaStream_t handle,
              Item item)
{
  Stream *stream = find_stream (handle);

  if (stream == nullptr)
    {
      explain ("work is enqueued to %s", handle == nullptr ? "the default stream, which waits for all others"
                                                           : "a stream that is not there");
      free_item (&item);
      return cudaErrorInvalidResourceHandle;
    }
  if (is_idle () && item.kind != ITEM_RECORD && item.kind != ITEM_WAIT)
    {
      free_item (&item);
      return cudaSuccess;
    }
  stream->items.push_back (std::move (item));
  if (stream->items.size () > QUEUE_LENGTH)
    advance (stream);
  if (is_idle ())
    while (advance (stream) == RAN)
      ;
  else if (get_order () == ORDER_SHUFFLED && draw () % N_EARLY == 0)
    advance_any (nullptr);
  close_memory ();
  return cudaSuccess;
}

cudaError_t
enqueue_work (cudaStream_t stream,
              std::function<bool ()> run)
{
  std::unique_lock<std::mutex> guard (lock);
  cudaError_t state = get_state ();
  Item item = {};

  if (state != cudaSuccess)
    return finish (state);
  item.kind = ITEM_WORK;
  item.work = std::move (run);
  return finish (enqueue_item (stream, std::move (item)));
}

/* -- copies -------------------------------------------------------------------------------------------------------- */

/* Which end of a copy is the host's; FALSE if memory and direction don't fit. */
static bool
check_copy (const void *destination,
            const void *source,
            std::size_t size,
            cudaMemcpyKind kind,
            const void **host_data)
{
  bool to_device = is_device_memory (destination, size), from_device = is_device_memory (source, size);

  *host_data = !to_device ? destination : !from_device ? source
                                                       : nullptr;
  if (kind == cudaMemcpyDefault || (to_device && from_device && kind == cudaMemcpyDeviceToDevice)
      || (to_device && !from_device && kind == cudaMemcpyHostToDevice)
      || (!to_device && from_device && kind == cudaMemcpyDeviceToHost))
    return true;
  explain ("a copy of %zu bytes in direction %d from %s to %s memory", size, (int) kind,
           from_device ? "the device's" : "host", to_device ? "the device's" : "host");
  return false;
}

static cudaError_t
enqueue_copy (void *destination,
              const void *source,
              std::size_t size,
              cudaMemcpyKind kind,
              cudaStream_t stream)
{
  const void *host_data;
  cudaError_t state = get_state ();
  Item item = {};

  if (state != cudaSuccess || size == 0)
    return state;
  if (!check_copy (destination, source, size, kind, &host_data))
    return cudaErrorInvalidValue;
  if (host_data != nullptr && !is_pinned_memory (host_data, size))
    {
      explain ("an asynchronous copy of %zu bytes uses host memory that is not pinned", size);
      return cudaErrorInvalidValue;
    }
  item.kind = ITEM_WORK;
  item.host_data = static_cast<const char *> (host_data);
  item.host_size = size;
  item.work = [=] {
    std::memmove (destination, source, size);
    return true;
  };
  return enqueue_item (stream, std::move (item));
}

/* -- kernels ------------------------------------------------------------------------------------------------------- */

constexpr std::size_t SHARED_BYTES = 48 * 1024, MOST_SHARED_BYTES = 163 * 1024;

/* Kernels that may have more shared memory than all have. */
static std::set<std::pair<const void *, std::size_t> > shared_limits;

static std::size_t
get_shared_limit (const void *kernel)
{
  auto place = shared_limits.lower_bound ({ kernel, 0 });

  return place != shared_limits.end () && place->first == kernel ? place->second : SHARED_BYTES;
}

static cudaError_t
check_call (const Call &call)
{
  std::uint64_t n_threads = (std::uint64_t) call.block.x * call.block.y * call.block.z;
  std::uint64_t n_blocks = (std::uint64_t) call.grid.x * call.grid.y * call.grid.z;
  const char *problem = nullptr;

  if (n_threads == 0 || n_blocks == 0)
    problem = "a grid or a block without threads";
  else if (n_threads > MAX_THREADS || call.block.z > 64)
    problem = "a block of more than 1024 threads, or 64 in the last dimension";
  else if (call.grid.x > 0x7fffffffu || call.grid.y > 65535 || call.grid.z > 65535)
    problem = "a grid of more than 2147483647 x 65535 x 65535 blocks";
  else if (call.shared_bytes > get_shared_limit (call.kernel))
    problem = "more shared memory than cudaFuncSetAttribute () allows";
  if (problem == nullptr)
    return cudaSuccess;
  explain ("%.*s: %s: grid (%u, %u, %u), block (%u, %u, %u), %zu bytes of shared memory",
           (int) get_name_length (call.text), call.text, problem, call.grid.x, call.grid.y, call.grid.z, call.block.x,
           call.block.y, call.block.z, call.shared_bytes);
  return call.shared_bytes > get_shared_limit (call.kernel) ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration;
}

cudaError_t
enqueue (const Call &call,
         cudaStream_t stream)
{
  std::unique_lock<std::mutex> guard (lock);
  cudaError_t state = get_state ();
  Item item = {};

  if (state == cudaSuccess)
    state = check_call (call);
  if (state == cudaSuccess && take_failure (FAIL_LAUNCH))
    state = cudaErrorLaunchOutOfResources;
  if (state != cudaSuccess)
    {
      call.free (call.arguments);
      return finish (state);
    }
  item.kind = ITEM_KERNEL;
  item.call = call;
  return finish (enqueue_item (stream, std::move (item)));
}

} // namespace cudaemu

using namespace cudaemu;

#pragma GCC visibility push(default)
extern "C"
{
  cudaError_t
  cudaFuncSetAttribute (const void *function,
                        cudaFuncAttribute attribute,
                        int value)
  {
    std::unique_lock<std::mutex> guard (lock);
    cudaError_t state = get_state ();

    if (state == cudaSuccess && attribute == cudaFuncAttributeMaxDynamicSharedMemorySize)
      {
        if (value < 0 || (std::size_t) value > MOST_SHARED_BYTES)
          return finish (cudaErrorInvalidValue);
        shared_limits.erase (shared_limits.lower_bound ({ function, 0 }),
                             shared_limits.upper_bound ({ function, ~0ul }));
        shared_limits.insert ({ function, (std::size_t) value });
      }
    return finish (state);
  }

  cudaError_t
  cudaMemcpyAsync (void *destination,
                   const void *source,
                   size_t size,
                   cudaMemcpyKind kind,
                   cudaStream_t stream)
  {
    std::unique_lock<std::mutex> guard (lock);

    return finish (enqueue_copy (destination, source, size, kind, stream));
  }

  /* After all that is enqueued, as in the default stream. */
  cudaError_t
  cudaMemcpy (void *destination,
              const void *source,
              size_t size,
              cudaMemcpyKind kind)
  {
    std::unique_lock<std::mutex> guard (lock);
    const void *host_data;
    cudaError_t state = get_state ();

    if (state != cudaSuccess || size == 0)
      return finish (state);
    if (!check_copy (destination, source, size, kind, &host_data))
      return finish (cudaErrorInvalidValue);
    drain (guard);
    if (context_error == cudaSuccess)
      {
        open_memory ();
        std::memmove (destination, source, size);
        close_memory ();
      }
    return finish (context_error);
  }

  static cudaError_t
  check_set (const void *data,
             size_t size)
  {
    cudaError_t state = get_state ();

    if (state == cudaSuccess && size > 0 && !is_device_memory (data, size) && !is_pinned_memory (data, size))
      {
        explain ("%zu bytes are set that are neither the device's nor pinned", size);
        return cudaErrorInvalidValue;
      }
    return state;
  }

  cudaError_t
  cudaMemsetAsync (void *data,
                   int byte,
                   size_t size,
                   cudaStream_t stream)
  {
    std::unique_lock<std::mutex> guard (lock);
    cudaError_t state = check_set (data, size);
    Item item = {};

    if (state != cudaSuccess || size == 0)
      return finish (state);
    item.kind = ITEM_WORK;
    item.work = [=] {
      std::memset (data, byte, size);
      return true;
    };
    return finish (enqueue_item (stream, std::move (item)));
  }

  cudaError_t
  cudaMemset (void *data,
              int byte,
              size_t size)
  {
    std::unique_lock<std::mutex> guard (lock);
    cudaError_t state = check_set (data, size);

    if (state != cudaSuccess)
      return finish (state);
    drain (guard);
    if (context_error == cudaSuccess)
      {
        open_memory ();
        std::memset (data, byte, size);
        close_memory ();
      }
    return finish (context_error);
  }

  /* -- streams -------------------------------------------------------------------------------------------------------
   */

  cudaError_t
  cudaDeviceGetStreamPriorityRange (int *least,
                                    int *greatest)
  {
    *least = 0;
    *greatest = -5;
    return finish (get_state ());
  }

  cudaError_t
  cudaStreamCreate (cudaStream_t *stream)
  {
    return cudaStreamCreateWithFlags (stream, cudaStreamDefault);
  }

  cudaError_t
  cudaStreamCreateWithFlags (cudaStream_t *stream,
                             unsigned int flags)
  {
    return cudaStreamCreateWithPriority (stream, flags, 0);
  }

  cudaError_t
  cudaStreamCreateWithPriority (cudaStream_t *stream,
                                unsigned int flags,
                                int priority)
  {
    std::unique_lock<std::mutex> guard (lock);
    cudaError_t state = get_state ();

    (void) priority;
    *stream = nullptr;
    if (state == cudaSuccess && (flags & ~cudaStreamNonBlocking) != 0)
      state = cudaErrorInvalidValue;
    if (state != cudaSuccess)
      return finish (state);
    *stream = new CUstream_st ();
    (*stream)->device = get_device ();
    streams.insert (*stream);
    return cudaSuccess;
  }

  cudaError_t
  cudaStreamDestroy (cudaStream_t stream)
  {
    std::unique_lock<std::mutex> guard (lock);

    if (find_stream (stream) == nullptr)
      return finish (cudaErrorInvalidResourceHandle);
    run_until (guard, stream, [=] { return stream->items.empty (); });
    streams.erase (stream);
    delete stream;
    return finish (context_error);
  }

  cudaError_t
  cudaStreamSynchronize (cudaStream_t stream)
  {
    std::unique_lock<std::mutex> guard (lock);
    cudaError_t state = get_state ();

    if (state != cudaSuccess)
      return finish (state);
    if (find_stream (stream) == nullptr)
      return finish (cudaErrorInvalidResourceHandle);
    run_until (guard, stream, [=] { return stream->items.empty (); });
    return finish (context_error);
  }

  /* Each question is answered by one piece of work more. */
  cudaError_t
  cudaStreamQuery (cudaStream_t stream)
  {
    std::unique_lock<std::mutex> guard (lock);
    cudaError_t state = get_state ();
    bool is_done;

    if (state != cudaSuccess)
      return finish (state);
    if (find_stream (stream) == nullptr)
      return finish (cudaErrorInvalidResourceHandle);
    is_done = stream->items.empty ();
    if (!is_done)
      advance (stream);
    close_memory ();
    return finish (context_error != cudaSuccess ? context_error : is_done ? cudaSuccess
                                                                          : cudaErrorNotReady);
  }

  cudaError_t
  cudaDeviceSynchronize ()
  {
    std::unique_lock<std::mutex> guard (lock);
    cudaError_t state = get_state ();

    if (state != cudaSuccess)
      return finish (state);
    drain (guard);
    return finish (context_error);
  }

  cudaError_t
  cudaLaunchHostFunc (cudaStream_t stream,
                      cudaHostFn_t function,
                      void *data)
  {
    return enqueue_work (stream, [=] {
      function (data);
      return true;
    });
  }

  /* -- events --------------------------------------------------------------------------------------------------------
   */

  cudaError_t
  cudaEventCreate (cudaEvent_t *event)
  {
    return cudaEventCreateWithFlags (event, cudaEventDefault);
  }

  cudaError_t
  cudaEventCreateWithFlags (cudaEvent_t *event,
                            unsigned int flags)
  {
    cudaError_t state = get_state ();

    *event = nullptr;
    if (state == cudaSuccess && (flags & ~(cudaEventBlockingSync | cudaEventDisableTiming)) != 0)
      state = cudaErrorInvalidValue;
    if (state != cudaSuccess)
      return finish (state);
    *event = new CUevent_st ();
    (*event)->is_timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
  }

  cudaError_t
  cudaEventDestroy (cudaEvent_t event)
  {
    std::unique_lock<std::mutex> guard (lock);

    if (event == nullptr)
      return finish (cudaErrorInvalidResourceHandle);
    delete event;
    return cudaSuccess;
  }

  cudaError_t
  cudaEventRecord (cudaEvent_t event,
                   cudaStream_t stream)
  {
    std::unique_lock<std::mutex> guard (lock);
    cudaError_t state = get_state ();
    Item item = {};

    if (state != cudaSuccess)
      return finish (state);
    if (event == nullptr)
      return finish (cudaErrorInvalidResourceHandle);
    item.kind = ITEM_RECORD;
    item.record = std::make_shared<Record> (Record{ find_stream (stream), 0 });
    event->last = item.record;
    return finish (enqueue_item (stream, std::move (item)));
  }

  cudaError_t
  cudaStreamWaitEvent (cudaStream_t stream,
                       cudaEvent_t event,
                       unsigned int flags)
  {
    std::unique_lock<std::mutex> guard (lock);
    cudaError_t state = get_state ();
    Item item = {};

    if (state != cudaSuccess)
      return finish (state);
    if (event == nullptr || flags != 0)
      return finish (event == nullptr ? cudaErrorInvalidResourceHandle : cudaErrorInvalidValue);
    if (event->last == nullptr || event->last->stream == nullptr)
      return finish (find_stream (stream) != nullptr ? cudaSuccess : cudaErrorInvalidResourceHandle);
    item.kind = ITEM_WAIT;
    item.record = event->last;
    return finish (enqueue_item (stream, std::move (item)));
  }

  cudaError_t
  cudaEventQuery (cudaEvent_t event)
  {
    std::unique_lock<std::mutex> guard (lock);
    cudaError_t state = get_state ();
    bool is_reached;

    if (state != cudaSuccess)
      return finish (state);
    if (event == nullptr)
      return finish (cudaErrorInvalidResourceHandle);
    is_reached = event->last == nullptr || event->last->stream == nullptr;
    if (!is_reached)
      advance (event->last->stream);
    close_memory ();
    return finish (context_error != cudaSuccess ? context_error : is_reached ? cudaSuccess
                                                                             : cudaErrorNotReady);
  }

  cudaError_t
  cudaEventSynchronize (cudaEvent_t event)
  {
    std::unique_lock<std::mutex> guard (lock);
    cudaError_t state = get_state ();

    if (state != cudaSuccess)
      return finish (state);
    if (event == nullptr)
      return finish (cudaErrorInvalidResourceHandle);
    if (event->last != nullptr && event->last->stream != nullptr)
      {
        std::shared_ptr<Record> record = event->last;

        run_until (guard, record->stream, [=] { return record->stream == nullptr; });
      }
    return finish (context_error);
  }

  cudaError_t
  cudaEventElapsedTime (float *milliseconds,
                        cudaEvent_t start,
                        cudaEvent_t end)
  {
    std::unique_lock<std::mutex> guard (lock);
    cudaError_t state = get_state ();

    *milliseconds = 0;
    if (state != cudaSuccess)
      return finish (state);
    if (start == nullptr || end == nullptr || start->last == nullptr || end->last == nullptr || !start->is_timed
        || !end->is_timed)
      return finish (cudaErrorInvalidResourceHandle);
    if (start->last->stream != nullptr || end->last->stream != nullptr)
      return finish (cudaErrorNotReady);
    *milliseconds = (float) ((end->last->time - start->last->time) * 1e3);
    return cudaSuccess;
  }

} /* extern "C" */
#pragma GCC visibility pop
