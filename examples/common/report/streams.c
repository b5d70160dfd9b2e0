/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* --stream-trace: writes a trace of the device's queues in one step. */
#include "common/report/streams.h"

/* The first steps allocate and prepare, so their times mean little; a shorter run traces its last one. */
#define N_LEFT_OUT 2

static gboolean
fail (GError **error)
{
  g_prefix_error (error, "--stream-trace: ");
  return FALSE;
}

/* An empty trace shows whether the device supports traces. */
static gboolean
try_device (EbbDevice *device,
            GError **error)
{
  g_autofree char *trace = ebb_stream_trace_start (device, error) ? ebb_stream_trace_stop (device, error) : NULL;

  return trace != NULL || fail (error);
}

gboolean
streams_init (Streams *self,
              const Trainer *trainer,
              GError **error)
{
  gint64 n_steps = trainer->options->steps - trainer->step;

  *self = (Streams){ .trainer = trainer, .path = trainer->options->stream_trace };
  self->step = trainer->step + CLAMP (n_steps - 1, 0, N_LEFT_OUT);
  return self->path == NULL || try_device (trainer->device, error);
}

gboolean
streams_begin_step (Streams *self,
                    GError **error)
{
  if (self->path == NULL || self->trainer->step != self->step)
    return TRUE;
  self->begun = TRUE;
  return ebb_stream_trace_start (self->trainer->device, error) || fail (error);
}

gboolean
streams_end_step (Streams *self,
                  GError **error)
{
  if (!self->begun || self->trainer->step != self->step + 1)
    return TRUE;
  return ebb_stream_trace_save (self->trainer->device, self->path, error) || fail (error);
}

void
streams_print (const Streams *self,
               Progress *progress)
{
  if (self->begun)
    progress_note (progress, "Trace of the queues of %s in step %" G_GINT64_FORMAT ": %s",
                   ebb_device_get_name (self->trainer->device), self->step + 1, self->path);
  else if (self->path != NULL)
    progress_note (progress, "No step was traced: %s was not written", self->path);
}
