/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend/backend-private.h"

/* Runs launches again on random data, for the profiler's floor and for the table of costs. */

G_BEGIN_DECLS

/* From the first element of @view to its last, in bytes, with all that lies between them. */
gsize ebb_rerun_get_extent (const EbbView *view);
/* Runs @launch and waits for it. */
gboolean ebb_rerun_launch (EbbDevice *device,
                           EbbLaunch *launch,
                           GError **error);
/* Runs @launch, of a device that times launches itself, @n times, with a workspace. */
gboolean ebb_rerun_time_on_device (EbbDevice *device,
                                   EbbLaunch *launch,
                                   guint n,
                                   double *seconds,
                                   GError **error);
/* Numbers in [-1, 1). */
gboolean ebb_rerun_fill_random (EbbDevice *device,
                                EbbView *view,
                                guint64 seed,
                                GError **error);
/* Sorts @times. */
double ebb_rerun_take_median (double *times,
                              guint n);

G_END_DECLS
