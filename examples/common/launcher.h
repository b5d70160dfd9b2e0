/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* What the environment says about processes that mpirun, Slurm or another launcher started together. */

G_BEGIN_DECLS

/* How many there are, this one among them; 1: it was started alone. */
int launcher_count (void);
/* Whether this process is to speak before there is a group. */
gboolean launcher_speaks (void);
/* Whether one has started this process, be it alone. */
gboolean launcher_is_there (void);

G_END_DECLS
