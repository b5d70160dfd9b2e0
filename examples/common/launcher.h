/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Reads from the environment which processes mpirun, Slurm or another launcher started together. */

G_BEGIN_DECLS

/* The number of processes, including this one; 1: it was started alone. */
int launcher_count (void);
/* Whether this process prints messages before there is a group. */
gboolean launcher_speaks (void);
/* Whether a launcher started this process, even as the only one. */
gboolean launcher_is_there (void);

G_END_DECLS
