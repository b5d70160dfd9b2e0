/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/tensor.h"

/* By which ranks tell whether they have the same values, without sending them. */

G_BEGIN_DECLS

/* Of the bytes of a tensor, contiguous or made so; from a device they are copied, and waited for. */
gboolean ebb_value_checksum (EbbTensor *tensor,
                             guint64 *checksum,
                             GError **error);

G_END_DECLS
