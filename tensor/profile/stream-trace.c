/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/profile/stream-trace.h"

#include "tensor/util/atomic-file-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"

#include <string.h>

/* A timeline of a device's queues, in the "Trace Event Format" of chrome://tracing and Perfetto: a row
 * for each queue, complete events ("X"), times in microseconds from the start. */

static const EbbStreamFuncs *
get_streams (EbbDevice *device,
             GError **error)
{
  if (!ebb_may_begin (error, "stream trace", "device", (const gconstpointer[]){ device }, 1))
    return NULL;
  if (device->backend->streams == NULL)
    ebb_error_set (error, EBB_ERROR_NOT_SUPPORTED,
                   "device %s has no queues: its work is done when a function returns; use a profiler", device->name);
  return device->backend->streams;
}

/**
 * ebb_stream_trace_start:
 * @device: a device that computes behind the caller's back
 * @error: return location for an error
 *
 * Waits for all that @device was asked for, then begins to record what its queues do: kernels, copies, and the time
 * that they stand waiting for each other. A trace that was begun before is forgotten. An event takes about 50 bytes.
 *
 * Returns: %FALSE with %EBB_ERROR_NOT_SUPPORTED if @device has no queues, or with the error of work that has failed
 */
gboolean
ebb_stream_trace_start (EbbDevice *device,
                        GError **error)
{
  const EbbStreamFuncs *streams = get_streams (device, error);
  g_autofree EbbStreamSpan *old = NULL;

  if (streams == NULL || !ebb_device_synchronize (device, error))
    return FALSE;
  streams->set_tracing (device->index, FALSE);
  streams->take_spans (device->index, &old);
  device->trace_start = (double) g_get_monotonic_time () * 1e-6;
  streams->set_tracing (device->index, TRUE);
  return TRUE;
}

static void
append_time (GString *text,
             const char *name,
             double seconds)
{
  char number[G_ASCII_DTOSTR_BUF_SIZE];

  g_string_append_printf (text, ",\"%s\":%s", name,
                          g_ascii_formatd (number, sizeof number, "%.3f", MAX (seconds, 0) * 1e6));
}

static void
append_name (GString *text,
             const char *kind,
             int row,
             const char *name)
{
  g_string_append_printf (text, "{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":\"%s\"}}", row,
                          kind, name);
}

static void
append_span (GString *text,
             const EbbStreamSpan *span,
             double origin)
{
  const char *category = span->is_wait ? "wait" : span->n_bytes > 0 ? "copy"
                                                                    : "kernel";

  g_string_append_printf (text, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"cat\":\"%s\",\"name\":\"%s%s\"",
                          (int) span->stream + 1, category, span->is_wait ? "wait for " : "", span->name);
  append_time (text, "ts", span->start - origin);
  append_time (text, "dur", span->end - span->start);
  if (span->n_bytes > 0)
    g_string_append_printf (text, ",\"args\":{\"bytes\":%" G_GSIZE_FORMAT "}", span->n_bytes);
  g_string_append_c (text, '}');
}

/**
 * ebb_stream_trace_stop:
 * @device: a device that is traced
 * @error: return location for an error
 *
 * Waits for all that @device was asked for, stops recording and gives what was recorded: one row for each queue
 * ("compute", "to_host", "from_host", "collective"), with events of the category "kernel", "copy" (with its bytes) or
 * "wait" (named for the queue that was waited for).
 *
 * Returns: (transfer full) (nullable): JSON as chrome://tracing and Perfetto (ui.perfetto.dev) show it; %NULL with
 *   %EBB_ERROR_NOT_SUPPORTED if @device has no queues, with %EBB_ERROR_INVALID_ARGUMENT if it is not traced, or with
 * the error of work that has failed
 */
char *
ebb_stream_trace_stop (EbbDevice *device,
                       GError **error)
{
  const EbbStreamFuncs *streams = get_streams (device, error);
  g_autofree EbbStreamSpan *spans = NULL;
  double origin;
  gboolean ok;
  GString *text;
  gsize n;

  if (streams == NULL)
    return NULL;
  if (device->trace_start == 0)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "device %s is not traced; call ebb_stream_trace_start () first", device->name);
  origin = device->trace_start;
  device->trace_start = 0;
  ok = ebb_device_synchronize (device, error);
  streams->set_tracing (device->index, FALSE);
  n = streams->take_spans (device->index, &spans);
  if (!ok)
    return NULL;
  text = g_string_sized_new (1024 + n * 128);
  g_string_append (text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  append_name (text, "process_name", 0, device->name);
  for (int i = 0; i < EBB_N_STREAMS; i++)
    {
      g_string_append (text, ",\n");
      append_name (text, "thread_name", i + 1, ebb_stream_get_name ((EbbStream) i));
    }
  for (gsize i = 0; i < n; i++)
    append_span (text, &spans[i], origin);
  g_string_append (text, "\n]}\n");
  return g_string_free (text, FALSE);
}

/**
 * ebb_stream_trace_save:
 * @device: a device that is traced
 * @path: (type filename): a file, replaced if it is there
 * @error: return location for an error
 *
 * Does what ebb_stream_trace_stop() does and writes the trace to a file, which appears as a whole or not at all. If it
 * can't be opened, nothing was stopped: call this again with another path.
 *
 * Returns: %FALSE with an error of ebb_stream_trace_stop(), or with %EBB_ERROR_IO if the file can't be written
 */
gboolean
ebb_stream_trace_save (EbbDevice *device,
                       const char *path,
                       GError **error)
{
  g_autofree char *text = NULL;
  EbbAtomicFile file;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, device, path);
  /* First the file: a wrong path must not cost what was recorded. */
  if (get_streams (device, error) == NULL || !ebb_atomic_file_open (&file, path, error))
    return FALSE;
  text = ebb_stream_trace_stop (device, error);
  if (text != NULL && ebb_atomic_file_write (&file, text, strlen (text), error))
    return ebb_atomic_file_commit (&file, error);
  ebb_atomic_file_abort (&file);
  return FALSE;
}

/**
 * ebb_stream_get_seconds:
 * @device: a device that computes behind the caller's back
 * @queue: "compute", "to_host", "from_host" or "collective"
 * @busy: (out) (optional): return location for the seconds that the queue has worked
 * @waited: (out) (optional): return location for the seconds that it stood waiting for other queues
 * @error: return location for an error
 *
 * Tells what a queue has done since the device was opened. The difference of two readings is that of what was between
 * them, if ebb_device_synchronize() was called before each.
 *
 * Returns: %FALSE with %EBB_ERROR_NOT_SUPPORTED if @device has no queues, with %EBB_ERROR_INVALID_ARGUMENT if there is
 *   none of that name
 */
gboolean
ebb_stream_get_seconds (EbbDevice *device,
                        const char *queue,
                        double *busy,
                        double *waited,
                        GError **error)
{
  const EbbStreamFuncs *streams = queue != NULL ? get_streams (device, error) : NULL;
  double worked, stood;

  if (streams == NULL)
    return FALSE;
  for (int i = 0; i < EBB_N_STREAMS; i++)
    if (strcmp (ebb_stream_get_name ((EbbStream) i), queue) == 0)
      {
        streams->get_seconds (device->index, (EbbStream) i, &worked, &stood);
        if (busy != NULL)
          *busy = worked;
        if (waited != NULL)
          *waited = stood;
        return TRUE;
      }
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "device %s has no queue \"%s\"; there are compute, to_host, from_host and collective", device->name,
                   queue);
}
