/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Reads from the environment which processes mpirun, Slurm or another launcher started together. */

G_BEGIN_DECLS

/* The number of processes, including this one; 1: it was started alone. */
int launcher_count (void);
/* Whether this process prints messages before there is a group. */
gboolean launcher_speaks (void);
/* The status of a process that leaves an error in its options to the one that speaks. A launcher ends all processes
 * once one has failed, so this one gives the other a second to print. */
int launcher_fail_silently (void);
/* The number of this process among those of its machine, as launchers say it; 0 if none does. */
guint64 launcher_get_local_rank (void);

G_END_DECLS
