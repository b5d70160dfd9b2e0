/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend-private.h"

/* Bytes between the memory of a device and host memory, done when the call returns. */

G_BEGIN_DECLS

gboolean ebb_transfer_to_host (EbbDevice *device,
                               void *host,
                               const void *data,
                               gsize size,
                               GError **error);
gboolean ebb_transfer_from_host (EbbDevice *device,
                                 void *data,
                                 const void *host,
                                 gsize size,
                                 GError **error);

G_END_DECLS
