/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* --profile: records a few steps, prints a table of them and writes a trace. */
#include "common/report/profile.h"

/* The first steps allocate and prepare, so their times mean little; a shorter run uses what it has. */
#define N_LEFT_OUT 2

void
profile_init (Profile *self,
              const Trainer *trainer)
{
  const Options *options = trainer->options;
  gint64 n_steps = MAX (options->steps - trainer->step, 0);
  gint64 n_before = CLAMP (n_steps - options->profile_steps, 0, N_LEFT_OUT);

  *self = (Profile){ .trainer = trainer };
  if (options->profile == NULL || n_steps == 0)
    return;
  self->profiler = ebb_profiler_new ();
  self->first = trainer->step + n_before;
  self->end = self->first + MIN (options->profile_steps, n_steps - n_before);
}

void
profile_clear (Profile *self)
{
  ebb_profiler_stop (self->profiler);
  g_clear_object (&self->profiler);
}

gboolean
profile_begin_step (Profile *self,
                    GError **error)
{
  if (self->profiler == NULL || self->trainer->step < self->first || self->trainer->step >= self->end)
    return TRUE;
  return ebb_profiler_start (self->profiler, error);
}

void
profile_end_step (Profile *self)
{
  ebb_profiler_stop (self->profiler);
}

/* There may be no memory for the operands of a product; the table is printed all the same. */
static void
show_table (Profile *self,
            Progress *progress)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *table = NULL;

  if (!ebb_profiler_measure_floor (self->profiler, &error))
    progress_note (progress, "The floor can't be measured: %s", error->message);
  table = ebb_profiler_get_table (self->profiler);
  progress_note (progress, "\n%s", g_strchomp (table));
}

gboolean
profile_finish (Profile *self,
                Progress *progress,
                GError **error)
{
  const Options *options = self->trainer->options;

  if (options->profile == NULL)
    return TRUE;
  if (self->profiler == NULL || ebb_profiler_get_n_steps (self->profiler) == 0)
    {
      progress_note (progress, "No step was profiled: %s was not written", options->profile);
      return TRUE;
    }
  if (!ebb_profiler_save_trace (self->profiler, options->profile, error))
    {
      g_prefix_error (error, "--profile: ");
      return FALSE;
    }
  if (!progress->quiet)
    show_table (self, progress);
  progress_note (progress, "Trace of steps %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT ": %s", self->first + 1,
                 MIN (self->end, self->trainer->step), options->profile);
  return TRUE;
}
