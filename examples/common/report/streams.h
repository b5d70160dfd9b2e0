/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/report/progress.h"

/* --stream-trace: a trace file of the device's queues in one step. */

G_BEGIN_DECLS

typedef struct
{
  const Trainer *trainer;
  const char *path; /* NULL: no step is traced */
  gint64 step;      /* the traced step, as Trainer.step counts before it */
  gboolean begun;
} Streams;

/* FALSE with an error if the device has no queues. */
gboolean streams_init (Streams *self,
                       const Trainer *trainer,
                       GError **error);
/* Call them around each step. */
gboolean streams_begin_step (Streams *self,
                             GError **error);
gboolean streams_end_step (Streams *self,
                           GError **error);
/* Prints the path of the trace. */
void streams_print (const Streams *self,
                    Progress *progress);

G_END_DECLS
