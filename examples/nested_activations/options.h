/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "step.h"

#include "common/option-table.h"

/* The command line. */

G_BEGIN_DECLS

typedef struct
{
  OptionState state; /* first */
  Sizes sizes;
} Options;

void options_init (Options *self);
void options_clear (Options *self);
/* Reads and checks it, and answers --help and --version; FALSE with an error for the user. */
gboolean options_parse (Options *self,
                        int argc,
                        char **argv,
                        GError **error);

G_END_DECLS
