/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/train/trainer.h"

G_BEGIN_DECLS

/* Prints the text of --sample while it is generated; Ctrl-C ends it. */
gboolean sample_print (Trainer *trainer,
                       GError **error);

G_END_DECLS
