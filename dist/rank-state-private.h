/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group-private.h"
#include "nn/module.h"

/* The tensors of a module that ranks have alike when they begin: told in words, to be compared, and given from the
 * first rank to all. */

G_BEGIN_DECLS

typedef struct _EbbRankState EbbRankState;

EbbRankState *ebb_rank_state_new (void);
void ebb_rank_state_free (EbbRankState *self);
void ebb_rank_state_add_parameter (EbbRankState *self,
                                   const char *name,
                                   EbbTensor *parameter);
/* Those of @module and below it, each once. */
void ebb_rank_state_add_buffers (EbbRankState *self,
                                 EbbModule *module);
/* A line for each tensor. */
void ebb_rank_state_describe (EbbRankState *self,
                              GString *text);
/* A line for each tensor, with a checksum of its values. */
gboolean ebb_rank_state_describe_values (EbbRankState *self,
                                         GString *text,
                                         GError **error);
/* The first rank's values, about @max_bytes at once; the same is described on all ranks. A tensor that is not
 * contiguous is an error, on all of them. @group: NULL: this rank is alone. */
gboolean ebb_rank_state_broadcast (EbbRankState *self,
                                   EbbProcessGroup *group,
                                   guint64 max_bytes,
                                   const char *purpose,
                                   GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbRankState, ebb_rank_state_free)

G_END_DECLS
