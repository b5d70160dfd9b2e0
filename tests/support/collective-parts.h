/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

G_BEGIN_DECLS

/* Calls over several tensors with uneven pieces, and what the wrappers need besides: through private functions, so for
 * tests of internals. On every rank of @group at the same time. */
void test_collective_parts (EbbProcessGroup *group);

G_END_DECLS
