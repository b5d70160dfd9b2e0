/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* How many threads the parallel regions of one thread have: always the operand of num_threads (). */

G_BEGIN_DECLS

int ebb_cpu_get_n_threads (void);
/* 0: as many as OpenMP would take. */
void ebb_cpu_set_n_threads (int n_threads);

G_END_DECLS
