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
 * @memory: what has memory. Without that of its buffers a model is there to be looked at, not to be called; without
 * that of its parameters it is to be given theirs. */
typedef enum
{
  EBB_UNSET_WITH_MEMORY,
  EBB_UNSET_PARAMETERS_ABSENT, /* parameters have shapes and dtypes but no memory, whatever their size */
  EBB_UNSET_DESCRIBED          /* buffers too */
} EbbUnset;
void ebb_push_parameters_unset (EbbDType dtype,
                                EbbUnset memory);
void ebb_pop_parameters_unset (void);
/* FALSE: parameters are made as usual. */
gboolean ebb_get_parameters_unset (EbbDType *dtype);
/* Whether parameters are made without memory. */
gboolean ebb_are_parameters_absent (void);

G_END_DECLS
