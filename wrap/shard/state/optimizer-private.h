/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/optim/optimizer-private.h"
#include "wrap/shard/state/claims-private.h"
#include "wrap/shard/state/index-private.h"
#include "wrap/shard/place-private.h"

/* An optimizer's state taken apart: its tensors one by one, and the rest. */

G_BEGIN_DECLS

typedef struct
{
  char *parameter;   /* its name */
  char *key;         /* "exp_avg" */
  gint64 n_steps;    /* of the parameter */
  EbbTensor *tensor; /* NULL: none here */
} EbbOptimizerItem;

/* An array of EbbOptimizerItem, which it owns. */
GArray *ebb_optimizer_items_new (void);
/* Takes over @tensor, which may be NULL. */
void ebb_optimizer_items_add (GArray *items,
                              const char *parameter,
                              const char *key,
                              gint64 n_steps,
                              EbbTensor *tensor);
/* @state without its tensors; these are appended to @items. NULL: it is no optimizer's state. */
EbbArgs *ebb_optimizer_state_split (EbbArgs *state,
                                    GArray *items,
                                    GError **error);
/* Fails if @index lacks a tensor that @rest says there was. @folder names the state in errors. */
gboolean ebb_optimizer_rest_check (EbbArgs *rest,
                                   EbbShardIndex *index,
                                   const char *folder,
                                   GError **error);
/* The other way round. Parameters that only @items know of come last. */
EbbArgs *ebb_optimizer_state_join (EbbArgs *rest,
                                   GArray *items);

/* The optimizer's parameter of that name; NULL: there is none. */
EbbTensor *ebb_optimizer_find_parameter (EbbOptimizer *optimizer,
                                         const char *name);

/* "h.0.weight/exp_avg", the name of an item's record, and back: @key points into @name. */
char *ebb_optimizer_item_make_name (const char *parameter,
                                    const char *key);
char *ebb_optimizer_item_parse_name (const char *name,
                                     const char **key);
/* Lists @items in @index: each as large as its whole, or "per_rank" where it doesn't follow the elements of a parameter
 * that is split. With the parts that lie here, if @claims are given and this rank is the one that speaks for them. */
gboolean ebb_optimizer_items_describe (EbbOptimizer *optimizer,
                                       GArray *items,
                                       EbbShardClaims *claims,
                                       EbbShardIndex *index,
                                       GError **error);

G_END_DECLS
