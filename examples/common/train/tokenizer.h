/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options/options.h"

/* The tokenizer that the options name. */

G_BEGIN_DECLS

/* Whether --model is trained with the tokenizer of its folder. */
gboolean tokenizer_is_of_model (const Options *options);
/* The byte tokenizer, or that of a folder: --model's, unless --tokenizer names another one. */
EbbTokenizer *tokenizer_make (const Options *options,
                              GError **error);
/* The model's folder is saved with @tokenizer, unless that is --model's own. */
void tokenizer_attach (EbbTokenizer *tokenizer,
                       EbbModule *model,
                       const Options *options);
/* Whether weights of --load are trained with bytes though a tokenizer's files are beside them. */
gboolean tokenizer_check_loaded (const Options *options,
                                 GError **error);

G_END_DECLS
