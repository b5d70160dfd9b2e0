/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/stream-times.h"

#include <json-glib/json-glib.h>
#include <string.h>

typedef struct
{
  double start, end; /* microseconds */
} Span;

static void
add_span (GArray *spans,
          JsonObject *event)
{
  Span span;

  span.start = json_object_get_double_member (event, "ts");
  span.end = span.start + json_object_get_double_member (event, "dur");
  g_array_append_val (spans, span);
}

static double
get_length (const GArray *spans)
{
  double sum = 0;

  for (guint i = 0; i < spans->len; i++)
    sum += g_array_index (spans, Span, i).end - g_array_index (spans, Span, i).start;
  return sum;
}

/* How much of @spans lies in those of @others, which don't overlap each other. */
static double
get_overlap (const GArray *spans,
             const GArray *others)
{
  double sum = 0;

  for (guint i = 0; i < spans->len; i++)
    for (guint j = 0; j < others->len; j++)
      {
        const Span *a = &g_array_index (spans, Span, i), *b = &g_array_index (others, Span, j);

        sum += MAX (0, MIN (a->end, b->end) - MAX (a->start, b->start));
      }
  return sum;
}

/* The row of the compute queue is the one of that name. */
static gint64
find_compute (JsonArray *events)
{
  for (guint i = 0; i < json_array_get_length (events); i++)
    {
      JsonObject *event = json_array_get_object_element (events, i);

      if (strcmp (json_object_get_string_member (event, "name"), "thread_name") == 0
          && strcmp (json_object_get_string_member (json_object_get_object_member (event, "args"), "name"), "compute")
                 == 0)
        return json_object_get_int_member (event, "tid");
    }
  return -1;
}

gboolean
stream_times_read (StreamTimes *self,
                   const char *trace,
                   GError **error)
{
  g_autoptr (JsonParser) parser = json_parser_new ();
  g_autoptr (GArray) kernels = g_array_new (FALSE, FALSE, sizeof (Span));
  g_autoptr (GArray) copies = g_array_new (FALSE, FALSE, sizeof (Span));
  g_autoptr (GArray) waits = g_array_new (FALSE, FALSE, sizeof (Span));
  JsonArray *events;
  gint64 compute;

  if (!json_parser_load_from_data (parser, trace, -1, error))
    return FALSE;
  events = json_object_get_array_member (json_node_get_object (json_parser_get_root (parser)), "traceEvents");
  compute = find_compute (events);
  for (guint i = 0; i < json_array_get_length (events); i++)
    {
      JsonObject *event = json_array_get_object_element (events, i);
      const char *kind = json_object_get_string_member_with_default (event, "cat", "");
      gboolean on_compute = json_object_get_int_member (event, "tid") == compute;

      if (on_compute && strcmp (kind, "kernel") == 0)
        add_span (kernels, event);
      else if (on_compute && strcmp (kind, "wait") == 0)
        add_span (waits, event);
      else if (!on_compute && strcmp (kind, "copy") == 0)
        add_span (copies, event);
    }
  self->computing = get_length (kernels) * 1e-6;
  self->copying = get_length (copies) * 1e-6;
  self->waited = get_length (waits) * 1e-6;
  self->hidden = self->copying - get_overlap (copies, waits) * 1e-6;
  return TRUE;
}
