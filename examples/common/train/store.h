/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options/options.h"

/* --store: where saved activations wait for backward. */

G_BEGIN_DECLS

/* The help of --store, and the names and the help of --store-fallback, from the library's kinds of stores. */
const char *store_get_help (void);
const char *const *store_get_fallback_names (void);
const char *store_get_fallback_help (void);

/* Looks up the names, and checks that the options fit together. */
gboolean store_check (const Options *options,
                      GError **error);
/* Tells whether the training has a store; --store keep makes none. */
gboolean store_is_used (const Options *options);
/* The store that the options describe, behind a partitioned one over @tensor_ranks with --partition. @tensor_ranks may
 * be NULL without it. */
EbbSavedTensorHooks *store_make (const Options *options,
                                 EbbProcessGroup *tensor_ranks,
                                 GError **error);
/* @store where blocks of a plan choose whether they use it, with --store host or disk and a plan; else NULL. */
EbbSavedTensorHooks *store_for_plan (const Options *options,
                                     EbbSavedTensorHooks *store);
/* Whether stored activations leave the memory of @device, and whether some go to a file. */
gboolean store_leaves (const Options *options,
                       EbbDevice *device);
gboolean store_has_file (const Options *options);
/* An object with the counters of @store. */
void store_add_json (EbbSavedTensorHooks *store,
                     const Options *options,
                     JsonBuilder *builder);
/* The same as a line, with the stores behind it; NULL with --store keep. */
char *store_describe (EbbSavedTensorHooks *store,
                      const Options *options,
                      EbbDevice *device);

G_END_DECLS
