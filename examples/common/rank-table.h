/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "progress.h"

/* What each rank has used and sent, gathered when the training is done. */

G_BEGIN_DECLS

typedef struct
{
  guint n_ranks;
  gint64 n_steps;
  gint64 *figures; /* of one rank after the other; NULL in a program without ranks */
} RankTable;

/* Begins the counting: what came before is not the training's. */
void rank_table_begin (const Trainer *trainer);
/* Collective. */
gboolean rank_table_init (RankTable *self,
                          const Trainer *trainer,
                          guint n_steps,
                          GError **error);
void rank_table_clear (RankTable *self);

/* Shows it. */
void rank_table_print (const RankTable *self,
                       Progress *progress);
/* Adds it to an object: "ranks" and "communication". */
void rank_table_add_json (const RankTable *self,
                          JsonBuilder *builder);
/* The most memory that this process ever had resident, libraries included; 0 if the system does not say. */
gint64 rank_table_get_rss_peak (void);

G_END_DECLS
