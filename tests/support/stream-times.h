/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* The times of a device's queues and of their overlap, in seconds, from its trace. */

G_BEGIN_DECLS

typedef struct
{
  double computing; /* kernels */
  double copying;   /* both copy queues, added up */
  double waited;    /* the compute queue stood waiting */
  double hidden;    /* of copying: while the compute queue did not */
} StreamTimes;

/* @trace: what ebb_stream_trace_stop () gives. */
gboolean stream_times_read (StreamTimes *self,
                            const char *trace,
                            GError **error);

G_END_DECLS
