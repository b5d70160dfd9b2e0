/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The queues of streams: work is put into them, and runs when somebody waits for it. */
#include "cudaemu/execution-private.h"
#include "cudaemu/runtime-private.h"

#include <cstdlib>
#include <pthread.h>
#include <set>
#include <time.h>
#include <vector>

/* The handle of a stream points to one. */
struct CUstream_st : cudaemu::Stream
{
};

namespace cudaemu
{

/* A full queue makes the host wait for its oldest work; one in N_EARLY calls runs work before anybody asks for it where
 * the order is shuffled. */
constexpr std::size_t QUEUE_LENGTH = 1024;
constexpr std::uint32_t N_EARLY = 16;
constexpr long MOMENT = 200000; /* nanoseconds, between two looks at what another process does */

std::mutex lock;
/* Never freed, as other sets and maps here: programs end while they are in use. */
static std::set<CUstream_st *> &streams = *new std::set<CUstream_st *>;
static cudaError_t context_error;
static thread_local bool runs_work;

cudaStream_t
add_stream ()
{
  CUstream_st *stream = new CUstream_st ();

  stream->device = get_device ();
  streams.insert (stream);
  return stream;
}

Stream *
find_stream (cudaStream_t handle)
{
  return streams.count (handle) > 0 ? handle : nullptr;
}

void
remove_stream (cudaStream_t handle)
{
  streams.erase (handle);
  delete handle;
}

/* -- failures ------------------------------------------------------------------------------------------------------ */

static double
get_seconds ()
{
  struct timespec time;

  clock_gettime (CLOCK_MONOTONIC, &time);
  return (double) time.tv_sec + (double) time.tv_nsec * 1e-9;
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

Progress
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

static std::uint32_t random_state = 1;

static std::uint32_t
draw ()
{
  random_state = random_state * 1664525u + 1013904223u;
  return random_state >> 8;
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
      std::size_t i =
          order == ORDER_FORWARD ? 0 : (order == ORDER_BACKWARD ? full.size () - 1 : draw () % full.size ());
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

void
run_until (std::unique_lock<std::mutex> &guard,
           Stream *stream,
           const std::function<bool ()> &is_done)
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

/* -- progress while nobody waits ----------------------------------------------------------------------------------- */

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
  if (stream->device != get_device () && item.kind != ITEM_WAIT)
    {
      explain ("work is enqueued to a stream of device %d while the thread's is %d", stream->device, get_device ());
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
  cudaError_t state = enter_context ();
  Item item = {};

  if (state != cudaSuccess)
    return finish (state);
  item.kind = ITEM_WORK;
  item.work = std::move (run);
  return finish (enqueue_item (stream, std::move (item)));
}

} // namespace cudaemu
