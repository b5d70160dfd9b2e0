/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/device.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
gboolean ebb_stream_trace_start (EbbDevice *device,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
char *ebb_stream_trace_stop (EbbDevice *device,
                             GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_stream_trace_save (EbbDevice *device,
                                const char *path,
                                GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_stream_get_seconds (EbbDevice *device,
                                 const char *queue,
                                 double *busy,
                                 double *waited,
                                 GError **error);

G_END_DECLS
