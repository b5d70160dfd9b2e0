/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/partition-private.h"

/* Someone who looks after a parameter that lives on several ranks: its values may be away until they are asked for, and
 * its gradient is complete only when it was summed over ranks. The tensor doesn't own its keeper, which takes itself
 * away before it goes. */

G_BEGIN_DECLS

typedef struct _EbbKeeper EbbKeeper;

/* Any may be NULL: then there is nothing to do. */
typedef struct
{
  /* Brings the values back: backward is about to read them, or to add to the gradient. */
  gboolean (*fetch) (EbbKeeper *self,
                     EbbTensor *parameter,
                     GError **error);
  /* No node of a live graph holds the parameter any more, so its gradient gets no more: called inside a backward pass,
   * when the node that was last has given its gradients. */
  gboolean (*unused) (EbbKeeper *self,
                      EbbTensor *parameter,
                      GError **error);
  /* An optimizer is about to use the parameter and its gradient: completes what is still pending. */
  gboolean (*settle) (EbbKeeper *self,
                      EbbTensor *parameter,
                      GError **error);
  /* Gradients are dropped, those that are kept aside as well. */
  void (*forget) (EbbKeeper *self,
                  EbbTensor *parameter);
  /* Names the ranks that each hold a part of the parameter, the same for all parameters that are split over the same
   * ones; NULL: every rank has all of it. */
  gpointer (*get_split) (EbbKeeper *self);
  /* Replaces each of @values by its sum (EBB_REDUCE_SUM) or its largest (EBB_REDUCE_MAX) over those ranks. */
  gboolean (*reduce_over_split) (EbbKeeper *self,
                                 EbbReduceKind op,
                                 double *values,
                                 guint n_values,
                                 GError **error);
  /* FALSE while this rank has only a part of the parameter, or has it in another shape: then nobody else may convert it
   * or load it; NULL: never. */
  gboolean (*is_whole) (EbbKeeper *self,
                        EbbTensor *parameter);
  /* Of what the ranks share out: the whole parameter, or this rank's part of it by tensor parallelism. */
  gint64 (*get_n_elements) (EbbKeeper *self,
                            EbbTensor *parameter);
} EbbKeeperFuncs;

struct _EbbKeeper
{
  const EbbKeeperFuncs *funcs;
};

static inline gboolean
ebb_parameter_fetch (EbbTensor *parameter,
                     GError **error)
{
  EbbKeeper *keeper = parameter->keeper;

  return G_LIKELY (keeper == NULL) || keeper->funcs->fetch == NULL || keeper->funcs->fetch (keeper, parameter, error);
}

static inline gboolean
ebb_parameter_settle (EbbTensor *parameter,
                      GError **error)
{
  EbbKeeper *keeper = parameter->keeper;

  return G_LIKELY (keeper == NULL) || keeper->funcs->settle == NULL || keeper->funcs->settle (keeper, parameter, error);
}

static inline void
ebb_parameter_forget (EbbTensor *parameter)
{
  EbbKeeper *keeper = parameter->keeper;

  if (keeper != NULL && keeper->funcs->forget != NULL)
    keeper->funcs->forget (keeper, parameter);
}

static inline gboolean
ebb_parameter_is_whole (EbbTensor *parameter)
{
  EbbKeeper *keeper = parameter->keeper;

  return keeper == NULL || keeper->funcs->is_whole == NULL || keeper->funcs->is_whole (keeper, parameter);
}

/* TRUE if ranks split the parameter among them, though it may be whole at this moment. */
static inline gboolean
ebb_parameter_is_split (EbbTensor *parameter)
{
  return parameter->keeper != NULL && parameter->keeper->funcs->is_whole != NULL;
}

/* Of the whole, wherever its parts are. */
static inline gint64
ebb_parameter_get_n_elements (EbbTensor *parameter)
{
  EbbKeeper *keeper = parameter->keeper;
  EbbPartition *partition = parameter->partition;
  gint64 n = 1;

  for (guint d = 0; partition != NULL && d < partition->n_dims; d++)
    n *= partition->shape[d];
  if (partition != NULL)
    return n;
  return keeper == NULL || keeper->funcs->get_n_elements == NULL
             ? parameter->n_elements
             : keeper->funcs->get_n_elements (keeper, parameter);
}

/* One node more, or one less, that holds the parameter as an operand or for backward. */
static inline void
ebb_parameter_use (EbbTensor *parameter)
{
  __atomic_add_fetch (&parameter->n_uses, 1, __ATOMIC_RELAXED);
}
void ebb_parameter_drop_use (EbbTensor *parameter);

G_END_DECLS
