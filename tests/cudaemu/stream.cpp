/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The runtime's functions of streams and events. */
#include "cudaemu/runtime-private.h"

using namespace cudaemu;

/* The handle of an event points to one. */
struct CUevent_st
{
  bool is_timed;
  std::shared_ptr<Record> last; /* NULL: it was never recorded */
};

/* -- streams ------------------------------------------------------------------------------------------------------- */

cudaError_t
cudaDeviceGetStreamPriorityRange (int *least,
                                  int *greatest)
{
  *least = 0;
  *greatest = -5;
  return finish (enter_context ());
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
  cudaError_t state = enter_context ();

  (void) priority;
  *stream = nullptr;
  if (state == cudaSuccess && (flags & ~cudaStreamNonBlocking) != 0)
    state = cudaErrorInvalidValue;
  if (state != cudaSuccess)
    return finish (state);
  *stream = add_stream ();
  return cudaSuccess;
}

cudaError_t
cudaStreamDestroy (cudaStream_t stream)
{
  std::unique_lock<std::mutex> guard (lock);
  Stream *queue = find_stream (stream);

  if (queue == nullptr)
    return finish (cudaErrorInvalidResourceHandle);
  run_until (guard, queue, [=] { return queue->items.empty (); });
  remove_stream (stream);
  return finish (get_context_error ());
}

cudaError_t
cudaStreamSynchronize (cudaStream_t stream)
{
  std::unique_lock<std::mutex> guard (lock);
  cudaError_t state = enter_context ();
  Stream *queue = find_stream (stream);

  if (state != cudaSuccess)
    return finish (state);
  if (queue == nullptr)
    return finish (cudaErrorInvalidResourceHandle);
  run_until (guard, queue, [=] { return queue->items.empty (); });
  return finish (get_context_error ());
}

/* Each question is answered by one piece of work more. */
cudaError_t
cudaStreamQuery (cudaStream_t stream)
{
  std::unique_lock<std::mutex> guard (lock);
  cudaError_t state = enter_context ();
  Stream *queue = find_stream (stream);
  bool is_done;

  if (state != cudaSuccess)
    return finish (state);
  if (queue == nullptr)
    return finish (cudaErrorInvalidResourceHandle);
  is_done = queue->items.empty ();
  if (!is_done)
    advance (queue);
  close_memory ();
  return finish (get_context_error () != cudaSuccess ? get_context_error ()
                                                     : (is_done ? cudaSuccess : cudaErrorNotReady));
}

cudaError_t
cudaDeviceSynchronize ()
{
  std::unique_lock<std::mutex> guard (lock);
  cudaError_t state = enter_context ();

  if (state != cudaSuccess)
    return finish (state);
  drain (guard);
  return finish (get_context_error ());
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

/* -- events -------------------------------------------------------------------------------------------------------- */

cudaError_t
cudaEventCreate (cudaEvent_t *event)
{
  return cudaEventCreateWithFlags (event, cudaEventDefault);
}

cudaError_t
cudaEventCreateWithFlags (cudaEvent_t *event,
                          unsigned int flags)
{
  cudaError_t state = enter_context ();

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
  cudaError_t state = enter_context ();
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
  cudaError_t state = enter_context ();
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
  cudaError_t state = enter_context ();
  bool is_reached;

  if (state != cudaSuccess)
    return finish (state);
  if (event == nullptr)
    return finish (cudaErrorInvalidResourceHandle);
  is_reached = event->last == nullptr || event->last->stream == nullptr;
  if (!is_reached)
    advance (event->last->stream);
  close_memory ();
  return finish (get_context_error () != cudaSuccess ? get_context_error ()
                                                     : (is_reached ? cudaSuccess : cudaErrorNotReady));
}

cudaError_t
cudaEventSynchronize (cudaEvent_t event)
{
  std::unique_lock<std::mutex> guard (lock);
  cudaError_t state = enter_context ();

  if (state != cudaSuccess)
    return finish (state);
  if (event == nullptr)
    return finish (cudaErrorInvalidResourceHandle);
  if (event->last != nullptr && event->last->stream != nullptr)
    {
      std::shared_ptr<Record> record = event->last;

      run_until (guard, record->stream, [=] { return record->stream == nullptr; });
    }
  return finish (get_context_error ());
}

cudaError_t
cudaEventElapsedTime (float *milliseconds,
                      cudaEvent_t start,
                      cudaEvent_t end)
{
  std::unique_lock<std::mutex> guard (lock);
  cudaError_t state = enter_context ();

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
