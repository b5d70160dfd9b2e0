/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "options.h"

/* --store: where saved activations wait for backward. */

G_BEGIN_DECLS

/* Finds out what the names of the options mean, and whether they go together. */
gboolean store_check (const Options *options,
                      GError **error);
/* The store that the options ask for, in front of which --partition divides among @tensor_ranks, which may be NULL
 * without it. */
EbbSavedTensorHooks *store_make (const Options *options,
                                 EbbProcessGroup *tensor_ranks,
                                 GError **error);
/* Whether what the store takes leaves the memory of @device, and whether some of it goes to a file. */
gboolean store_leaves (const Options *options,
                       EbbDevice *device);
gboolean store_has_file (const Options *options);
/* An object with what @store has done. */
void store_add_json (EbbSavedTensorHooks *store,
                     const Options *options,
                     JsonBuilder *builder);
/* The same in a line, with the stores behind it; NULL where everything was to stay. */
char *store_describe (EbbSavedTensorHooks *store,
                      const Options *options,
                      EbbDevice *device);

G_END_DECLS
