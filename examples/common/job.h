/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/program.h"

/* Training a GPT on a text, from the command line to the exit status: 0, 1 for a failure, 2 for a wrong command
 * line, 128 + the signal's number after a signal that ended it. */

G_BEGIN_DECLS

int job_main (const Program *program,
              int argc,
              char **argv);

G_END_DECLS
