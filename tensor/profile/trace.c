/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/profile/profiler-private.h"

#include "tensor/error-private.h"
#include "tensor/util/atomic-file-private.h"
#include "tensor/util/json-scanner-private.h"

/* The recording as a file for chrome://tracing and Perfetto: "Trace Event Format", complete events ("X"), times in
 * microseconds. Events nest by time, as they were recorded. */

#define CHUNK_SIZE ((gsize) 1 << 20)

typedef struct
{
  EbbAtomicFile file;
  GString *text;
} Writer;

static gboolean
writer_flush (Writer *self,
              gsize at_least,
              GError **error)
{
  if (self->text->len < at_least)
    return TRUE;
  if (!ebb_atomic_file_write (&self->file, self->text->str, self->text->len, error))
    return FALSE;
  g_string_truncate (self->text, 0);
  return TRUE;
}

/* Exact, so that what ends with what is around it does so in the file too. */
static void
append_microseconds (GString *text,
                     const char *name,
                     gint64 nanoseconds)
{
  g_string_append_printf (text, ",\"%s\":%" G_GINT64_FORMAT ".%03d", name, nanoseconds / 1000,
                          (int) (nanoseconds % 1000));
}

static void
append_args (GString *text,
             EbbProfiler *self,
             const EbbEvent *event)
{
  const char *path = event->path != 0 ? g_quark_to_string (event->path) : NULL;

  g_string_append (text, ",\"args\":{\"phase\":");
  ebb_json_append_string (text, ebb_phase_get_name ((EbbPhase) event->phase));
  if (path != NULL)
    {
      g_string_append (text, ",\"module\":");
      ebb_json_append_string (text, path);
    }
  if (event->kind == EBB_EVENT_OP || event->kind == EBB_EVENT_KERNEL)
    g_string_append_printf (text, ",\"bytes\":%" G_GUINT64_FORMAT ",\"flop\":%" G_GUINT64_FORMAT, event->bytes,
                            event->flop);
  if (event->kind == EBB_EVENT_KERNEL && event->work >= 0)
    {
      g_autofree char *shapes = ebb_work_to_string (ebb_profiler_get_work (self, event->work));

      g_string_append (text, ",\"operands\":");
      ebb_json_append_string (text, shapes);
    }
  g_string_append (text, "}}");
}

static void
append_event (GString *text,
              EbbProfiler *self,
              const EbbEvent *event)
{
  static const char *const categories[] = { "phase", "module", "op", "kernel" };
  const char *path = event->kind == EBB_EVENT_MODULE ? g_quark_to_string (event->path) : "";

  g_string_append (text, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"cat\":");
  ebb_json_append_string (text, categories[event->kind]);
  g_string_append (text, ",\"name\":");
  ebb_json_append_string (text, *path != '\0' ? path : event->name);
  append_microseconds (text, "ts", event->start);
  append_microseconds (text, "dur", event->end - event->start);
  append_args (text, self, event);
}

static gboolean
write_events (Writer *writer,
              EbbProfiler *self,
              GError **error)
{
  g_string_append (writer->text,
                   "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
                   "{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"Ebb\"}}");
  for (guint i = 0; i < self->events->len; i++)
    {
      const EbbEvent *event = ebb_profiler_get_event (self, i);

      if (event->end == 0)
        continue;
      append_event (writer->text, self, event);
      if (!writer_flush (writer, CHUNK_SIZE, error))
        return FALSE;
    }
  g_string_append (writer->text, "\n]}\n");
  return writer_flush (writer, 0, error);
}

/**
 * ebb_profiler_save_trace:
 * @self: a profiler
 * @path: (type filename): a file, replaced if it is there
 * @error: return location for an error
 *
 * Writes what was recorded as a trace that chrome://tracing and Perfetto (ui.perfetto.dev) show: phases, calls of
 * modules, ops and kernels as events inside of each other, with bytes, floating-point operations and, of products and
 * attention, shapes. The file appears as a whole or not at all.
 *
 * Returns: %FALSE with %EBB_ERROR_IO if the file can't be written
 */
gboolean
ebb_profiler_save_trace (EbbProfiler *self,
                         const char *path,
                         GError **error)
{
  Writer writer;
  gboolean ok;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, path);
  g_return_val_if_fail (EBB_IS_PROFILER (self), FALSE);

  if (!ebb_atomic_file_open (&writer.file, path, error))
    return FALSE;
  writer.text = g_string_sized_new (CHUNK_SIZE + 4096);
  ok = write_events (&writer, self, error);
  if (ok)
    ok = ebb_atomic_file_commit (&writer.file, error);
  else
    ebb_atomic_file_abort (&writer.file);
  g_string_free (writer.text, TRUE);
  return ok;
}
