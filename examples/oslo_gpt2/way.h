/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "text.h"

/* A few steps of the model with some of OSLO's options switched on, and this rank's memory. */

G_BEGIN_DECLS

typedef struct
{
  const char *name;
  gboolean partitioned, contiguous, host;
} Way;

/* All except the last two are bytes. */
typedef enum
{
  KEPT_ON_DEVICE, /* by the checkpoints when the forward pass ends */
  KEPT_ON_HOST,
  ALL_AFTER,        /* all that is on the device then */
  ACTIVATIONS_PEAK, /* of a step, on the device */
  ALL_PEAK,
  LOSS,         /* the bits of a double */
  MICROSECONDS, /* of the step */
  N_FIGURES
} Figure;

/* OSLO's configuration for @n_ranks. */
char *way_make_json (const Way *self,
                     guint n_ranks);
/* @figures of the last step; collective. */
gboolean way_run (const Way *self,
                  const Options *options,
                  const Text *text,
                  EbbProcessGroup *group,
                  gint64 *figures,
                  GError **error);

G_END_DECLS
