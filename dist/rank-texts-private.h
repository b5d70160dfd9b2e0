/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group-private.h"

/* What ranks tell each other in words. Each function is collective. */

G_BEGIN_DECLS

/* What each rank says, on all ranks: as many strings as there are ranks, and a NULL. An error is the group's own. */
char **ebb_rank_texts_gather (EbbProcessGroup *group,
                              const char *text,
                              GError **error);
/* Fails on all ranks if one has a @failure, which is taken: with its own on the rank that has it, with the first one's
 * and the number of its rank on the others. EBB_ERROR_PROCESS_GROUP: nobody knows what the others have. */
gboolean ebb_ranks_agree (EbbProcessGroup *group,
                          GError *failure,
                          GError **error);

G_END_DECLS
