/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* --memory-timeline: records who holds which bytes in one step, and writes the picture. */
#include "common/memory/memory-timeline.h"

/* The first step makes the optimizer's state, so the second is the first of which all others are like. */
#define N_LEFT_OUT 1

const char *
memory_timeline_get_title (const Trainer *trainer)
{
  return trainer->plan != NULL ? "planned" : trainer->options->checkpoint;
}

void
memory_timeline_init (MemoryTimeline *self,
                      const Trainer *trainer)
{
  const gint64 n_steps = trainer->options->steps - trainer->step;

  *self = (MemoryTimeline){ .trainer = trainer };
  if (trainer->options->memory_timeline == NULL || n_steps <= 0)
    return;
  self->timeline = ebb_memory_timeline_new (memory_timeline_get_title (trainer));
  self->step = trainer->step + MIN (n_steps - 1, N_LEFT_OUT);
}

void
memory_timeline_clear (MemoryTimeline *self)
{
  ebb_memory_timeline_stop (self->timeline);
  g_clear_object (&self->timeline);
}

gboolean
memory_timeline_begin_step (MemoryTimeline *self,
                            GError **error)
{
  if (self->timeline == NULL || self->trainer->step != self->step)
    return TRUE;
  if (!ebb_memory_timeline_start (self->timeline, self->trainer->device, error))
    return FALSE;
  ebb_memory_timeline_name_module (self->timeline, self->trainer->model);
  return TRUE;
}

void
memory_timeline_end_step (MemoryTimeline *self)
{
  ebb_memory_timeline_stop (self->timeline);
}

static gboolean
was_recorded (const MemoryTimeline *self)
{
  return self->timeline != NULL && self->trainer->step > self->step;
}

gboolean
memory_timeline_save (EbbMemoryTimeline *timeline,
                      const Trainer *trainer,
                      GError **error)
{
  const Options *options = trainer->options;
  const char *path = options->memory_timeline;
  const guint64 budget = trainer->plan != NULL ? trainer->limit : options->memory;
  EbbMemoryTimeline *both[] = { trainer->unplanned, timeline };
  EbbMemoryTimeline **timelines = trainer->unplanned != NULL ? both : both + 1;
  const guint n = trainer->unplanned != NULL ? 2 : 1;
  const gboolean ok = g_str_has_suffix (path, ".svg")
                          ? ebb_memory_timeline_save_svg (timelines, n, budget, path, error)
                          : ebb_memory_timeline_save_html (timelines, n, budget, path, error);

  if (!ok)
    g_prefix_error (error, "--memory-timeline: ");
  return ok;
}

gboolean
memory_timeline_finish (MemoryTimeline *self,
                        Progress *progress,
                        GError **error)
{
  const char *path = self->trainer->options->memory_timeline;

  if (path == NULL)
    return TRUE;
  if (!was_recorded (self))
    {
      progress_note (progress, "No step was recorded: %s was not written", path);
      return TRUE;
    }
  if (!memory_timeline_save (self->timeline, self->trainer, error))
    return FALSE;
  if (!progress->quiet)
    {
      g_autofree char *table = ebb_memory_timeline_get_table (self->timeline, MEMORY_TIMELINE_HOLDERS);

      progress_note (progress, "\nMemory of step %" G_GINT64_FORMAT ": %s", self->step + 1, g_strchomp (table));
    }
  progress_note (progress, "Picture of the memory of step %" G_GINT64_FORMAT ": %s", self->step + 1, path);
  return TRUE;
}

void
memory_timeline_write_json (EbbMemoryTimeline *timeline,
                            JsonBuilder *builder)
{
  g_autofree char *json = ebb_memory_timeline_get_json (timeline, MEMORY_TIMELINE_HOLDERS);

  json_builder_set_member_name (builder, "memory_timeline");
  json_builder_add_value (builder, json_from_string (json, NULL));
}

void
memory_timeline_add_json (const MemoryTimeline *self,
                          JsonBuilder *builder)
{
  if (was_recorded (self))
    memory_timeline_write_json (self->timeline, builder);
}
