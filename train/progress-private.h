/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/memory.h"

/* The line of text that shows how far a training is. */

G_BEGIN_DECLS

/* Lines with at least this many columns have whole words. */
#define EBB_PROGRESS_ROOMY 119

typedef struct
{
  gint64 step, n_steps;
  double loss, tokens_per_second;
  double seconds_left;
  guint64 budget_bytes, used_bytes; /* of the memory budget, and of it at the peak; the budget is 0: there is none */
  EbbMemoryStats *stats;            /* of the device */
  const char *owner;                /* after "MiB": " of rank 0"; or "" */
} EbbProgress;

/* As many figures as fit into @n_columns, the most important ones first: step, loss, speed, the time that is left, the
 * memory of the budget, and the peak of each purpose. The first figure ends with the number of steps. */
char *ebb_progress_format (const EbbProgress *self,
                           guint n_columns);
/* "1:02:03", or "2:03" below an hour. */
char *ebb_progress_format_time (double seconds);
/* The median of the last @n_last values of @values, an array of double; 0 if it is empty. */
double ebb_progress_get_median (const GArray *values,
                                guint n_last);

G_END_DECLS
