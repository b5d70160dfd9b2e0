/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "way.h"

/* The memory of all ranks, one way after the other, as rank 0 prints it. */

G_BEGIN_DECLS

#define TABLE_MAX_WAYS 8

typedef struct
{
  guint n_ranks, n_ways;
  const Way *ways[TABLE_MAX_WAYS];
  gint64 *figures[TABLE_MAX_WAYS]; /* rank by rank */
} Table;

void table_clear (Table *self);
/* Gathers the ranks' figures for @way. Collective. */
gboolean table_add (Table *self,
                    const Way *way,
                    EbbProcessGroup *group,
                    const gint64 *figures,
                    GError **error);
void table_print_head (void);
/* Prints the rows of the last way. */
void table_print_last (const Table *self);
/* Prints the ways relative to the first one. */
void table_print_end (const Table *self);
/* FALSE with an error unless the losses of all ways and ranks are equal bit for bit. */
gboolean table_check_losses (const Table *self,
                             GError **error);

G_END_DECLS
