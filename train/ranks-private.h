/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/mesh.h"

/* The ranks that train together, as one of them sees them, and the few numbers that they exchange beside the steps. A
 * rank that trains alone makes the same calls, which then exchange nothing. */

G_BEGIN_DECLS

/* Requests of a rank, which all ranks follow as of the next exchange. */
typedef enum
{
  EBB_TRAIN_CANCEL = 1 << 0,
  EBB_TRAIN_STOP = 1 << 1
} EbbTrainRequests;

typedef struct
{
  EbbMesh *mesh;            /* NULL: this rank trains alone */
  EbbProcessGroup *control; /* all ranks, for exchanges beside the steps; NULL: this rank trains alone */
  guint rank, size;
  guint model, n_models;   /* this rank's model among all models; each computes rows of its own */
  guint *models;           /* [size]: each rank's model */
  guint requested, agreed; /* EbbTrainRequests: this rank's, and those of any rank as of the last exchange */
  gboolean failure_shared; /* all ranks have the same error */
} EbbTrainRanks;

/* A rank that trains alone. */
#define EBB_TRAIN_RANKS_ALONE ((EbbTrainRanks){ .size = 1, .n_models = 1 })

/* The ranks of @mesh, which are all of the default group; NULL: this rank alone. Collective. */
gboolean ebb_train_ranks_init (EbbTrainRanks *self,
                               EbbMesh *mesh,
                               GError **error);
void ebb_train_ranks_clear (EbbTrainRanks *self);
/* Exchanges requests alone. */
gboolean ebb_train_ranks_poll (EbbTrainRanks *self,
                               GError **error);
/* Returns TRUE if all ranks pass @ok. If one does not, all get its error, which that rank passes in @error. */
gboolean ebb_train_ranks_agree (EbbTrainRanks *self,
                                gboolean ok,
                                GError **error);
/* Fails on all ranks unless they pass the same @text; @what names it in the error. */
gboolean ebb_train_ranks_check_same (EbbTrainRanks *self,
                                     const char *what,
                                     const char *text,
                                     GError **error);
/* Adds up the models' @n values in the order of the models; the ranks of one model pass the same values. */
gboolean ebb_train_ranks_sum (EbbTrainRanks *self,
                              double *values,
                              guint n,
                              GError **error);
/* Gathers the @n numbers of each rank, rank by rank. */
gboolean ebb_train_ranks_gather (EbbTrainRanks *self,
                                 const gint64 *mine,
                                 guint n,
                                 gint64 *all,
                                 GError **error);

G_END_DECLS
