/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "rank-options.h"

/* The ranks that train together, as one of them sees them, and the few numbers that the program itself exchanges. */

G_BEGIN_DECLS

typedef struct
{
  EbbProcessGroup *group;   /* all ranks, for the steps alone: what it counts is theirs */
  EbbProcessGroup *control; /* the same ranks, for what the program exchanges, and for files */
  EbbMesh *models;          /* of --tensor-parallel: the ranks of one model, and the same rank of the other models */
  EbbProcessGroup *tensor;  /* the ranks that share this one's model; NULL: there are none. Borrowed, as is */
  EbbProcessGroup *data;    /* the same rank of all models, which have other rows */
  EbbMesh *mesh;            /* of --shard hybrid, within data */
  guint rank, size;
  guint model, n_models;   /* this rank's place and number in data */
  int interrupt;           /* the exit status that a signal to any rank asks for, as of the last exchange; 0: none */
  gboolean failure_shared; /* all ranks have the same error, so one reports it */
} Ranks;

gboolean ranks_init (Ranks *self,
                     EbbProcessGroup *group,
                     GError **error);
void ranks_clear (Ranks *self);

/* Makes each @size neighbouring ranks share one model; @size must divide the ranks. Collective. */
gboolean ranks_split_models (Ranks *self,
                             guint size,
                             GError **error);

/* Gives all ranks the @n numbers of each, rank by rank; also finds out whether one was interrupted. */
gboolean ranks_exchange (Ranks *self,
                         const gint64 *mine,
                         guint n,
                         gint64 *all,
                         GError **error);
/* TRUE if all ranks call it with @ok set. Where one calls it without, with its error in @error, all get that error. */
gboolean ranks_agree (Ranks *self,
                      gboolean ok,
                      GError **error);
/* Fails on all ranks unless @text is the same on all; @what names it. */
gboolean ranks_check_same (Ranks *self,
                           const char *what,
                           const char *text,
                           GError **error);
/* The sum of what the models give, one after the other, in double; the ranks of one model have the same. */
gboolean ranks_sum (Ranks *self,
                    double *value,
                    GError **error);
/* Lets @self->interrupt be known. */
gboolean ranks_poll (Ranks *self,
                     GError **error);

/* The groups that the training uses, each once. Returns how many; borrowed. */
#define RANKS_MAX_GROUPS 5
guint ranks_get_groups (const Ranks *self,
                        EbbProcessGroup **groups);

G_END_DECLS
