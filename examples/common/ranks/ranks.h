/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options/rank-options.h"

/* The ranks that train together, as one of them sees them, and the few numbers that the program itself exchanges. */

G_BEGIN_DECLS

typedef struct
{
  EbbProcessGroup *group;   /* all ranks, only for the steps, so that its counters are theirs */
  EbbProcessGroup *control; /* the same ranks, for files and the program's own exchanges */
  EbbMesh *models;          /* of --tensor-parallel: the ranks of one model, and the same rank of the other models */
  EbbProcessGroup *tensor;  /* the ranks that share this one's model; NULL: there are none. Borrowed, as data is */
  EbbProcessGroup *data;    /* the same rank of all models, which have other rows */
  EbbMesh *mesh;            /* of --shard hybrid, within data */
  guint rank, size;
  guint model, n_models;     /* this rank's place and number in data */
  int interrupt;             /* the exit status that a signal to any rank asks for, as of the last exchange; 0: none */
  gboolean has_same_options; /* as all others: later only the first rank's name files */
  gboolean failure_shared;   /* all ranks have the same error, so one reports it */
} Ranks;

gboolean ranks_init (Ranks *self,
                     EbbProcessGroup *group,
                     GError **error);
void ranks_clear (Ranks *self);

/* Makes each @size neighbouring ranks share one model; @size must divide the ranks. Collective. */
gboolean ranks_split_models (Ranks *self,
                             guint size,
                             GError **error);

/* Undoes that, and forgets the mesh of --shard hybrid: the groups of a dry run. */
void ranks_forget_models (Ranks *self);

/* Gathers the @n numbers of each rank, rank by rank, and whether a rank was interrupted. */
gboolean ranks_exchange (Ranks *self,
                         const gint64 *mine,
                         guint n,
                         gint64 *all,
                         GError **error);
/* TRUE if all ranks pass @ok. If one does not, all get the error that it passes in @error. */
gboolean ranks_agree (Ranks *self,
                      gboolean ok,
                      GError **error);
/* Fails on all ranks unless they pass the same @text; @what names it in the error. */
gboolean ranks_check_same (Ranks *self,
                           const char *what,
                           const char *text,
                           GError **error);
/* The sum of the models' values, in order, in double; the ranks of one model pass the same value. */
gboolean ranks_sum (Ranks *self,
                    double *value,
                    GError **error);
/* Exchanges @self->interrupt. */
gboolean ranks_poll (Ranks *self,
                     GError **error);

/* The groups that the training uses, each once. Returns how many; borrowed. */
#define RANKS_MAX_GROUPS 5
guint ranks_get_groups (const Ranks *self,
                        EbbProcessGroup **groups);

G_END_DECLS
