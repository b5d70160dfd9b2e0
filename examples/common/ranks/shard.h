/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options/options.h"
#include "common/ranks/ranks.h"

/* --shard: shards or replicates the model. */

G_BEGIN_DECLS

/* How many ranks share one model. */
guint shard_get_size (const RankOptions *options,
                      guint n_ranks);
/* Shards or replicates @model as the options ask for; collective. */
gboolean shard_wrap (EbbModule *model,
                     const Options *options,
                     Ranks *ranks,
                     GError **error);

G_END_DECLS
