/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Copies, and memory that is set: at once, or as work of a stream. */
#include "cudaemu/runtime-private.h"

#include <cstring>

using namespace cudaemu;

/* Finds the end of a copy that is the host's. False if memory and direction don't fit. */
static bool
check_copy (const void *destination,
            const void *source,
            std::size_t size,
            cudaMemcpyKind kind,
            const void **host_data)
{
  bool to_device = is_device_memory (destination, size), from_device = is_device_memory (source, size);

  *host_data = !to_device ? destination : (!from_device ? source : nullptr);
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
  cudaError_t state = enter_context ();
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
  cudaError_t state = enter_context ();

  if (state != cudaSuccess || size == 0)
    return finish (state);
  if (!check_copy (destination, source, size, kind, &host_data))
    return finish (cudaErrorInvalidValue);
  drain (guard);
  if (get_context_error () == cudaSuccess)
    {
      open_memory ();
      std::memmove (destination, source, size);
      close_memory ();
    }
  return finish (get_context_error ());
}

static cudaError_t
check_set (const void *data,
           size_t size)
{
  cudaError_t state = enter_context ();

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
  if (get_context_error () == cudaSuccess)
    {
      open_memory ();
      std::memset (data, byte, size);
      close_memory ();
    }
  return finish (get_context_error ());
}
