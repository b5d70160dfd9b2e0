/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/report/progress.h"

/* The memory that each rank used and the bytes it sent, gathered after the training. */

G_BEGIN_DECLS

typedef struct
{
  guint n_ranks;
  gint64 n_steps;
  gint64 *figures; /* rank by rank; NULL in a program without ranks */
} RankTable;

/* Resets the counters before the training. */
void rank_table_begin (const Trainer *trainer);
/* Collective. */
gboolean rank_table_init (RankTable *self,
                          const Trainer *trainer,
                          guint n_steps,
                          GError **error);
void rank_table_clear (RankTable *self);

/* Prints the table. */
void rank_table_print (const RankTable *self,
                       Progress *progress);
/* Adds the table to an object: "ranks" and "communication". */
void rank_table_add_json (const RankTable *self,
                          JsonBuilder *builder);
/* The most memory that this process ever had resident, libraries included; 0 if the system does not say. */
gint64 rank_table_get_rss_peak (void);
/* The same since rank_table_begin_training (), where the system can forget a peak. */
gint64 rank_table_get_training_rss_peak (void);
void rank_table_begin_training (void);

G_END_DECLS
