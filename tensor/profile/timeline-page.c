/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Memory timelines as one HTML file: the page of the folder page/ around the recordings as JSON. */
#include "tensor/profile/timeline-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "tensor/profile/page/page-private.h"
#include "tensor/util/atomic-file-private.h"
#include "tensor/version.h"

#include <string.h>

/* Texts are listed once and named by number; what grows along the recording is written as differences. */
typedef struct
{
  GString *json;
  GString *texts;      /* of one recording */
  GHashTable *numbers; /* text -> its number */
} Writer;

/* As a string of JSON in a <script>: there, "</script>" and "<!--" would end it or begin something else. */
static void
append_string (GString *json,
               const char *string)
{
  g_string_append_c (json, '"');
  for (const guchar *p = (const guchar *) string; *p != '\0'; p++)
    if (*p == '"' || *p == '\\')
      g_string_append_printf (json, "\\%c", *p);
    else if (*p < 0x20 || *p == '<' || *p == '>' || *p == '&')
      g_string_append_printf (json, "\\u%04x", *p);
    else
      g_string_append_c (json, (char) *p);
  g_string_append_c (json, '"');
}

static guint
get_number (Writer *self,
            const char *text)
{
  gpointer number;

  if (text == NULL)
    text = "";
  if (g_hash_table_lookup_extended (self->numbers, text, NULL, &number))
    return GPOINTER_TO_UINT (number);
  if (self->texts->len > 0)
    g_string_append_c (self->texts, ',');
  append_string (self->texts, text);
  g_hash_table_insert (self->numbers, (gpointer) text, GUINT_TO_POINTER (g_hash_table_size (self->numbers)));
  return g_hash_table_size (self->numbers) - 1;
}

static void
begin_column (Writer *self,
              const char *name)
{
  const char last = self->json->str[self->json->len - 1];

  g_string_append_printf (self->json, "%s\"%s\":[", last == '{' ? "" : ",", name);
}

static void
append_integer (Writer *self,
                gint64 value)
{
  const char last = self->json->str[self->json->len - 1];

  g_string_append_printf (self->json, "%s%" G_GINT64_FORMAT, last == '[' ? "" : ",", value);
}

static gint64
get_block_value (Writer *self,
                 const EbbTimelineBlock *block,
                 guint column)
{
  switch (column)
    {
    case 0:
      return (gint64) block->n_bytes;
    case 1:
      return get_number (self, block->op);
    case 2:
      return get_number (self, block->path != 0 ? g_quark_to_string (block->path) : NULL);
    case 3:
      return get_number (self, block->name);
    case 4:
      return get_number (self, block->shape);
    case 5:
      return block->phase;
    default:
      return block->first == EBB_TIMELINE_NEVER ? block->was : EBB_N_PURPOSES; /* before the recording */
    }
}

static void
append_blocks (Writer *self,
               EbbMemoryTimeline *timeline)
{
  static const char *const columns[] = { "bytes", "op", "module", "name", "shape", "phase", "was" };

  g_string_append (self->json, ",\"blocks\":{");
  for (guint column = 0; column < G_N_ELEMENTS (columns); column++)
    {
      begin_column (self, columns[column]);
      for (guint i = 0; i < timeline->blocks->len; i++)
        append_integer (self, get_block_value (self, ebb_timeline_get_block (timeline, i), column));
      g_string_append_c (self->json, ']');
    }
  g_string_append_c (self->json, '}');
}

static void
append_changes (Writer *self,
                EbbMemoryTimeline *timeline)
{
  static const char *const columns[] = { "block", "to", "launches", "microseconds" };

  g_string_append (self->json, ",\"changes\":{");
  for (guint column = 0; column < G_N_ELEMENTS (columns); column++)
    {
      gint64 last = 0;

      begin_column (self, columns[column]);
      for (guint i = 0; i < timeline->changes->len; i++)
        {
          const EbbTimelineChange *change = ebb_timeline_get_change (timeline, i);
          const gint64 values[] = { change->block, change->to, change->position, change->time / 1000 };

          append_integer (self, column == 1 ? values[1] : values[column] - last);
          last = values[column];
        }
      g_string_append_c (self->json, ']');
    }
  g_string_append_c (self->json, '}');
}

/* Each launch's phase, as lists of launches in a row: phase, first, microseconds. */
static void
append_spans (Writer *self,
              EbbMemoryTimeline *timeline)
{
  begin_column (self, "spans");
  for (guint i = 0; i < timeline->spans->len; i++)
    {
      const EbbTimelineSpan *span = ebb_timeline_get_span (timeline, i);

      append_integer (self, span->phase);
      append_integer (self, span->position);
      append_integer (self, span->time / 1000);
    }
  g_string_append_c (self->json, ']');
}

static void
append_purposes (Writer *self,
                 const char *name,
                 const gint64 *bytes,
                 guint n)
{
  begin_column (self, name);
  for (guint i = 0; i < n; i++)
    append_integer (self, bytes[i]);
  g_string_append_c (self->json, ']');
}

static void
append_timeline (Writer *self,
                 EbbMemoryTimeline *timeline)
{
  g_string_append (self->json, "{\"name\":");
  append_string (self->json, timeline->name);
  g_string_append (self->json, ",\"device\":");
  append_string (self->json, timeline->device != NULL ? timeline->device->name : "cpu");
  g_string_append_printf (self->json, ",\"dry\":%s,\"launches\":%u,\"microseconds\":%" G_GINT64_FORMAT,
                          timeline->is_dry ? "true" : "false", timeline->n_launches,
                          timeline->has_times ? timeline->end / 1000 : 0);
  append_purposes (self, "rest", timeline->rest, EBB_N_PURPOSES);
  append_purposes (self, "peak", (const gint64 *) timeline->peak, EBB_N_PURPOSES + 1);
  append_blocks (self, timeline);
  append_changes (self, timeline);
  append_spans (self, timeline);
  g_string_append_printf (self->json, ",\"texts\":[%s]}", self->texts->str);
  g_string_truncate (self->texts, 0);
  g_hash_table_remove_all (self->numbers);
}

static GString *
make_json (EbbMemoryTimeline **timelines,
           guint n_timelines,
           guint64 budget)
{
  Writer writer = { g_string_new (NULL), g_string_new (NULL), g_hash_table_new (g_str_hash, g_str_equal) };

  g_string_append_printf (writer.json, "{\"version\":\"%s\",\"budget\":%" G_GUINT64_FORMAT ",\"purposes\":[",
                          ebb_get_version_string (), budget);
  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    g_string_append_printf (writer.json, "%s\"%s\"", i > 0 ? "," : "", ebb_purpose_get_name ((EbbPurpose) i));
  g_string_append (writer.json, "],\"runs\":[");
  for (guint i = 0; i < n_timelines; i++)
    {
      if (i > 0)
        g_string_append_c (writer.json, ',');
      append_timeline (&writer, timelines[i]);
    }
  g_string_append (writer.json, "]}");
  g_string_free (writer.texts, TRUE);
  g_hash_table_unref (writer.numbers);
  return writer.json;
}

gboolean
ebb_timeline_check (EbbMemoryTimeline **timelines,
                    guint n_timelines,
                    GError **error)
{
  if (n_timelines == 0)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "memory timeline: there is none to save");
  for (guint i = 0; i < n_timelines; i++)
    {
      g_return_val_if_fail (EBB_IS_MEMORY_TIMELINE (timelines[i]), FALSE);
      if (timelines[i]->thread == NULL)
        continue;
      return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "memory timeline: number %u still runs; stop it first",
                       i + 1);
    }
  return TRUE;
}

gboolean
ebb_timeline_write (const char *path,
                    const EbbTimelinePart *parts,
                    guint n_parts,
                    GError **error)
{
  EbbAtomicFile file;
  gboolean ok = TRUE;

  if (!ebb_atomic_file_open (&file, path, error))
    return FALSE;
  for (guint i = 0; ok && i < n_parts; i++)
    ok = ebb_atomic_file_write (&file, parts[i].text, parts[i].size, error);
  if (ok)
    return ebb_atomic_file_commit (&file, error);
  ebb_atomic_file_abort (&file);
  return FALSE;
}

/**
 * ebb_memory_timeline_save_html:
 * @timelines: (array length=n_timelines): timelines that don't run; two or more are drawn side by side on one scale
 * @n_timelines: how many
 * @budget: a line to draw, in bytes; 0 for none
 * @path: (type filename): a file, replaced if it is there
 * @error: return location for an error
 *
 * Writes a page that shows the bytes of each moment, stacked by purpose or by module, and names the tensor under the
 * pointer. It is one file and needs no network. The file appears as a whole or not at all.
 *
 * Returns: %FALSE with %EBB_ERROR_IO if the file can't be written, or with %EBB_ERROR_INVALID_ARGUMENT if there is no
 *   timeline, or one of them runs
 */
gboolean
ebb_memory_timeline_save_html (EbbMemoryTimeline **timelines,
                               guint n_timelines,
                               guint64 budget,
                               const char *path,
                               GError **error)
{
  EbbTimelinePart parts[3];
  const char *place;
  GString *json;
  gboolean ok;

  if (!EBB_MAY_BEGIN (error, path) || !ebb_timeline_check (timelines, n_timelines, error))
    return FALSE;

  place = strstr (ebb_timeline_page, EBB_TIMELINE_PAGE_PLACE);
  g_assert (place != NULL);
  json = make_json (timelines, n_timelines, budget);
  parts[0] = (EbbTimelinePart){ ebb_timeline_page, (gsize) (place - ebb_timeline_page) };
  parts[1] = (EbbTimelinePart){ json->str, json->len };
  place += strlen (EBB_TIMELINE_PAGE_PLACE);
  parts[2] = (EbbTimelinePart){ place, strlen (place) };
  ok = ebb_timeline_write (path, parts, G_N_ELEMENTS (parts), error);
  g_string_free (json, TRUE);
  return ok;
}
