/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Memory timelines as one HTML file: the page of the folder page/ around the recordings as JSON. */
#include "tensor/profile/timeline-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "tensor/profile/page/page-private.h"
#include "tensor/util/atomic-file-private.h"
#include "tensor/util/json-writer-private.h"
#include "tensor/version.h"

#include <string.h>

/* Texts are listed once and named by number; what grows along the recording is written as differences. */
typedef struct
{
  EbbJsonWriter json;
  GPtrArray *texts;    /* of one recording, by number */
  GHashTable *numbers; /* text -> its number */
} Writer;

static guint
get_number (Writer *self,
            const char *text)
{
  gpointer number;

  if (text == NULL)
    text = "";
  if (g_hash_table_lookup_extended (self->numbers, text, NULL, &number))
    return GPOINTER_TO_UINT (number);
  g_hash_table_insert (self->numbers, (gpointer) text, GUINT_TO_POINTER (self->texts->len));
  g_ptr_array_add (self->texts, (gpointer) text);
  return self->texts->len - 1;
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

  ebb_json_writer_begin (&self->json, "blocks", '{');
  for (guint column = 0; column < G_N_ELEMENTS (columns); column++)
    {
      ebb_json_writer_begin (&self->json, columns[column], '[');
      for (guint i = 0; i < timeline->blocks->len; i++)
        ebb_json_writer_add_int (&self->json, NULL,
                                 get_block_value (self, ebb_timeline_get_block (timeline, i), column));
      ebb_json_writer_end (&self->json);
    }
  ebb_json_writer_end (&self->json);
}

static void
append_changes (Writer *self,
                EbbMemoryTimeline *timeline)
{
  static const char *const columns[] = { "block", "to", "launches", "microseconds" };

  ebb_json_writer_begin (&self->json, "changes", '{');
  for (guint column = 0; column < G_N_ELEMENTS (columns); column++)
    {
      gint64 last = 0;

      ebb_json_writer_begin (&self->json, columns[column], '[');
      for (guint i = 0; i < timeline->changes->len; i++)
        {
          const EbbTimelineChange *change = ebb_timeline_get_change (timeline, i);
          const gint64 values[] = { change->block, change->to, change->position, change->time / 1000 };

          ebb_json_writer_add_int (&self->json, NULL, column == 1 ? values[1] : values[column] - last);
          last = values[column];
        }
      ebb_json_writer_end (&self->json);
    }
  ebb_json_writer_end (&self->json);
}

/* Each launch's phase, as lists of launches in a row: phase, first, microseconds. */
static void
append_spans (Writer *self,
              EbbMemoryTimeline *timeline)
{
  ebb_json_writer_begin (&self->json, "spans", '[');
  for (guint i = 0; i < timeline->spans->len; i++)
    {
      const EbbTimelineSpan *span = ebb_timeline_get_span (timeline, i);

      ebb_json_writer_add_int (&self->json, NULL, span->phase);
      ebb_json_writer_add_int (&self->json, NULL, span->position);
      ebb_json_writer_add_int (&self->json, NULL, span->time / 1000);
    }
  ebb_json_writer_end (&self->json);
}

static void
append_purposes (Writer *self,
                 const char *name,
                 const gint64 *bytes,
                 guint n)
{
  ebb_json_writer_begin (&self->json, name, '[');
  for (guint i = 0; i < n; i++)
    ebb_json_writer_add_int (&self->json, NULL, bytes[i]);
  ebb_json_writer_end (&self->json);
}

static void
append_timeline (Writer *self,
                 EbbMemoryTimeline *timeline)
{
  ebb_json_writer_begin (&self->json, NULL, '{');
  ebb_json_writer_add_string (&self->json, "name", timeline->name);
  ebb_json_writer_add_string (&self->json, "device", timeline->device != NULL ? timeline->device->name : "cpu");
  ebb_json_writer_add_boolean (&self->json, "dry", timeline->is_dry);
  ebb_json_writer_add_int (&self->json, "launches", timeline->n_launches);
  ebb_json_writer_add_int (&self->json, "microseconds", timeline->has_times ? timeline->end / 1000 : 0);
  append_purposes (self, "rest", timeline->rest, EBB_N_PURPOSES);
  append_purposes (self, "peak", (const gint64 *) timeline->peak, EBB_N_PURPOSES + 1);
  append_blocks (self, timeline);
  append_changes (self, timeline);
  append_spans (self, timeline);
  ebb_json_writer_begin (&self->json, "texts", '[');
  for (guint i = 0; i < self->texts->len; i++)
    ebb_json_writer_add_string (&self->json, NULL, self->texts->pdata[i]);
  ebb_json_writer_end (&self->json);
  ebb_json_writer_end (&self->json);
  g_ptr_array_set_size (self->texts, 0);
  g_hash_table_remove_all (self->numbers);
}

static char *
make_json (EbbMemoryTimeline **timelines,
           guint n_timelines,
           guint64 budget)
{
  g_autoptr (GPtrArray) texts = g_ptr_array_new ();
  g_autoptr (GHashTable) numbers = g_hash_table_new (g_str_hash, g_str_equal);
  Writer writer = { .texts = texts, .numbers = numbers };

  ebb_json_writer_begin (&writer.json, NULL, '{');
  ebb_json_writer_add_string (&writer.json, "version", ebb_get_version_string ());
  ebb_json_writer_add_int (&writer.json, "budget", (gint64) MIN (budget, (guint64) G_MAXINT64));
  ebb_json_writer_begin (&writer.json, "purposes", '[');
  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    ebb_json_writer_add_string (&writer.json, NULL, ebb_purpose_get_name ((EbbPurpose) i));
  ebb_json_writer_end (&writer.json);
  ebb_json_writer_begin (&writer.json, "runs", '[');
  for (guint i = 0; i < n_timelines; i++)
    append_timeline (&writer, timelines[i]);
  ebb_json_writer_end (&writer.json);
  ebb_json_writer_end (&writer.json);
  return ebb_json_writer_finish (&writer.json);
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
  g_autoptr (GString) page = NULL;
  g_autofree char *json = NULL;

  if (!EBB_MAY_BEGIN (error, path) || !ebb_timeline_check (timelines, n_timelines, error))
    return FALSE;

  json = make_json (timelines, n_timelines, budget);
  page = g_string_new (json);
  /* In a <script>, "</script>" and "<!--" in a string would end it or begin something else. */
  g_string_replace (page, "<", "\\u003c", 0);
  g_string_replace (page, ">", "\\u003e", 0);
  g_string_prepend_len (page, ebb_timeline_page,
                        strstr (ebb_timeline_page, EBB_TIMELINE_PAGE_PLACE) - ebb_timeline_page);
  g_string_append (page, strstr (ebb_timeline_page, EBB_TIMELINE_PAGE_PLACE) + strlen (EBB_TIMELINE_PAGE_PLACE));
  return ebb_atomic_file_save (path, page->str, page->len, error);
}
