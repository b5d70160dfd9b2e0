/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "train/memory-budget.h"

/* The search for the fewest changes of values with which a training fits its budget. */

G_BEGIN_DECLS

/* What a search asks of a training. */
typedef struct
{
  /* Undoes all changes that take () has made. */
  void (*reset) (gpointer data);
  /* Makes one change in place of what earlier changes made of the same setting. @n_parts: parts of the rows of each
   * model, with EBB_CONCESSIONS_MICRO_BATCHES. FALSE: the change is of no use here, and nothing was done. */
  gboolean (*take) (gpointer data,
                    EbbConcessions change,
                    guint n_parts);
  /* Tells whether the training fits as it is. *@needed: bytes with which it would fit; G_MAXUINT64 if unknown; 0 if the
   * failure has another reason, which no change mends. */
  gboolean (*attempt) (gpointer data,
                       guint64 *needed,
                       GError **error);
} EbbConcessionFuncs;

/* Makes changes until the training fits: only those of @allow, and no more than are needed. @is_plan_given: a file has
 * the plan, which wants certain changes and no others. *@taken: the changes that were made.
 *
 * FALSE with the error of the allowed attempt that needs the fewest bytes. *@enough is then the names of changes with
 * which the training would fit, for ebb_concessions_to_string (), or EBB_CONCESSIONS_NONE. */
gboolean ebb_concessions_search (const EbbConcessionFuncs *funcs,
                                 gpointer data,
                                 EbbConcessions allow,
                                 gboolean is_plan_given,
                                 EbbConcessions *taken,
                                 EbbConcessions *enough,
                                 GError **error);
/* The names of the changes in the order in which they are tried, "loss-chunk,micro-batches". Owned. */
char *ebb_concessions_to_string (EbbConcessions changes);
/* The change of a name; EBB_CONCESSIONS_NONE if there is no such change. */
EbbConcessions ebb_concessions_find (const char *name);
/* All changes that a search can make: all but EBB_CONCESSIONS_BF16_WEIGHTS. */
#define EBB_CONCESSIONS_SEARCHED ((EbbConcessions) (EBB_CONCESSIONS_BF16_WEIGHTS - 1))

G_END_DECLS
