/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options/options.h"

/* The data that the options name. */

G_BEGIN_DECLS

/* Checks that the options about data fit together, before a file is read. */
gboolean data_check (const Options *options,
                     GError **error);
/* Opens --data in *@data and --eval, which may be a share of it, in *@held_out; either stays NULL if it was not given.
 */
gboolean data_open (const Options *options,
                    EbbTokenizer *tokenizer,
                    EbbDataset **data,
                    EbbDataset **held_out,
                    GError **error);

G_END_DECLS
