/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/initialization.h"
#include "tensor/dtype.h"

/* Parameters that are about to be read from files. */

G_BEGIN_DECLS

/* Until ebb_pop_parameters_unset (), the parameters of layers that this thread makes have no values, not even those
 * that are constants elsewhere, and the dtype @dtype: nothing touches their memory before they are read into it.
 * Generators stay as they are. Buffers have their values. Calls do not nest.
 *
 * @is_described: parameters and buffers have shapes and dtypes but no memory, whatever their size. Such a model is
 * there to be looked at, not to be called. */
void ebb_push_parameters_unset (EbbDType dtype,
                                gboolean is_described);
void ebb_pop_parameters_unset (void);
/* FALSE: parameters are made as usual. */
gboolean ebb_get_parameters_unset (EbbDType *dtype);

G_END_DECLS
