/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Small modules that are sharded, and a step of them whose gradients are those of the whole batch. */

G_BEGIN_DECLS

EbbModule *test_linear (guint64 seed,
                        gint64 in,
                        gint64 out);
/* Three linear layers, of which the one with the name @frozen is not trained; NULL: all are. */
EbbModule *test_shard_chain (const char *frozen);
/* Two linear layers with one weight. */
EbbModule *test_shard_tied (void);
void test_shard_with (EbbModule *module,
                      EbbProcessGroup *group,
                      EbbFullyShardOptions *options);
void test_shard (EbbModule *module,
                 EbbProcessGroup *group,
                 gboolean flatten);
/* Each child by itself, then @module. */
void test_shard_children_with (EbbModule *module,
                               EbbProcessGroup *group,
                               EbbFullyShardOptions *options);
void test_shard_children (EbbModule *module,
                          EbbProcessGroup *group,
                          gboolean flatten);
/* Forward and backward over this rank's rows of 12; the loss is the sum of squares over all. @group NULL: all rows. */
void test_shard_step (EbbModule *module,
                      EbbProcessGroup *group);

G_END_DECLS
