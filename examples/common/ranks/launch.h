/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options/options.h"
#include "common/ranks/ranks.h"

/* Starts ranks: threads of this process, or processes that mpirun, Slurm or another launcher started. */

G_BEGIN_DECLS

/* The function that one rank runs, with options of its own. */
typedef gboolean (*LaunchFunc) (Options *options,
                                Ranks *ranks,
                                GError **error);

/* Runs @func on each rank of this process. @options were read from @argv. @status becomes the exit status that
 * a signal asked for. FALSE without an error if another rank reports it; @status is that of the failure then. */
gboolean launch_run (Options *options,
                     int argc,
                     char **argv,
                     LaunchFunc func,
                     int *status,
                     GError **error);

G_END_DECLS
