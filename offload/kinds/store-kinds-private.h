/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "offload/kinds/store-kinds.h"

G_BEGIN_DECLS

/* The place of the kind that @store, made alone, is of; the device for hooks of another class. */
EbbMemoryPlace ebb_store_kind_find_place (EbbSavedTensorHooks *store);
/* Makes a store of the first kind whose place is @place, with its initial settings; NULL without an error: there is no
 * such kind. */
EbbSavedTensorHooks *ebb_store_kind_make_at (EbbMemoryPlace place,
                                             GError **error);

/* The names of the kinds to which a plan may move what blocks keep. */
char *ebb_store_kind_join_moving (const char *separator);

G_END_DECLS
