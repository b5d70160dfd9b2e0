/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/shard/unit-private.h"

/* What a unit does with tensors when it is made, and small collectives. */

G_BEGIN_DECLS

typedef struct
{
  EbbTensor *tensor;
  char *name;
} EbbShardFound;

/* The parameters of @module and below it that no unit owns, each once; of EbbShardFound. Units beside it that own
 * others of them are added to @borrowed. NULL with @error if somebody else looks after one. */
GArray *ebb_shard_collect (EbbModule *module,
                           GPtrArray *borrowed,
                           GError **error);
/* FALSE with @error if they can't be split together. */
gboolean ebb_shard_check_alike (GArray *found,
                                gboolean flatten,
                                const char *unit,
                                GError **error);
/* FALSE with @error if the ranks don't shard the same, or one of them can't, for @failure, which is then the error
 * here. Collective. */
gboolean ebb_shard_check_ranks (EbbShardUnit *unit,
                                gboolean flatten,
                                const GError *failure,
                                GError **error);
/* The first rank's parameters of @unit, and the buffers of its modules, to all. Collective. */
gboolean ebb_shard_broadcast_state (EbbShardUnit *unit,
                                    EbbModule *module,
                                    GError **error);
/* Copies @n elements of contiguous tensors, in their flattened order, on whatever devices; types may differ. */
gboolean ebb_shard_copy_elements (EbbTensor *source,
                                  gint64 source_begin,
                                  gint64 n,
                                  EbbTensor *target,
                                  gint64 target_begin,
                                  GError **error);
/* Sums, or the largest, in the order of the ranks. Collective. */
gboolean ebb_shard_reduce_doubles (EbbProcessGroup *group,
                                   EbbReduceKind op,
                                   double *values,
                                   guint n_values,
                                   GError **error);

G_END_DECLS
