/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/models/generation-options.h"

/* Chooses one token by the logits of one position, on the host. */

G_BEGIN_DECLS

typedef struct _EbbTokenChoice EbbTokenChoice;

/* Holds @options' values as they are now, and room for @vocab logits. */
EbbTokenChoice *ebb_token_choice_new (EbbGenerationOptions *options,
                                      gint64 vocab);
void ebb_token_choice_free (EbbTokenChoice *self);
/* ebb_token_choice_choose () found no token that the options leave. */
#define EBB_TOKEN_CHOICE_NONE (-2)

/* The token for @logits [vocab] by @uniform in [0, 1). @earlier: the tokens that the row has, of which @n_prompt are
 * its prompt's. -1 if there is no number among the logits. */
gint64 ebb_token_choice_choose (EbbTokenChoice *self,
                                const float *logits,
                                const gint64 *earlier,
                                gsize n_earlier,
                                gsize n_prompt,
                                double uniform);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbTokenChoice, ebb_token_choice_free)

G_END_DECLS
