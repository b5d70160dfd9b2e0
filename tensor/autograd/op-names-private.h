/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/op-names.h"

G_BEGIN_DECLS

/* TRUE if ebb_op_list_names () has it. */
gboolean ebb_op_is_name (const char *name);

G_END_DECLS
