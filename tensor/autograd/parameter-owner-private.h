/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/partition-private.h"

/* The owner of a parameter that lives on several ranks: its values may be sharded until somebody asks for them, and its
 * gradient is complete only when it was summed over ranks. The tensor does not own its owner, which resets
 * tensor->owner before it is freed. */

G_BEGIN_DECLS

typedef struct _EbbParameterOwner EbbParameterOwner;

/* Any may be NULL: then there is nothing to do. */
typedef struct
{
  /* Backward is about to read the parameter's values, or to add to its gradient: makes the values available. */
  gboolean (*prepare) (EbbParameterOwner *self,
                       EbbTensor *parameter,
                       GError **error);
  /* No node of a live graph holds the parameter any more, so its gradient is final: called inside a backward pass,
   * when the last of these nodes has given its gradients. */
  gboolean (*unused) (EbbParameterOwner *self,
                      EbbTensor *parameter,
                      GError **error);
  /* An optimizer is about to use the parameter and its gradient: completes the reduction that is pending. */
  gboolean (*finalize) (EbbParameterOwner *self,
                        EbbTensor *parameter,
                        GError **error);
  /* The parameter's gradients are dropped; the owner drops those that it has stashed. */
  void (*drop_grads) (EbbParameterOwner *self,
                      EbbTensor *parameter);
  /* Identifies the ranks that each hold a shard of the parameter: equal for all parameters that are sharded over the
   * same ranks. NULL: every rank holds the full parameter. */
  gpointer (*get_shard_group) (EbbParameterOwner *self);
  /* Replaces each of @values, f64 [n] on any device (i64, see kernel-private.h), by its sum (EBB_REDUCE_SUM) or its
   * largest (EBB_REDUCE_MAX) over those ranks. */
  gboolean (*reduce_over_shards) (EbbParameterOwner *self,
                                  EbbReduceKind op,
                                  EbbTensor *values,
                                  GError **error);
  /* FALSE while this rank holds only a shard of the parameter, or has it in another shape: then only the owner may
   * convert or load it. NULL: always full. */
  gboolean (*is_full) (EbbParameterOwner *self,
                       EbbTensor *parameter);
  /* FALSE while the parameter points at this rank's shard, which its owner replaces by the values that ops read before
   * anything reads them: equal on all ranks, whatever their shards hold. NULL: always TRUE. */
  gboolean (*is_available) (EbbParameterOwner *self);
  /* A recompute is about to run a part of the forward that this owner had entered: makes the values available that a
   * graph still needs, or all of them if @is_needed. */
  gboolean (*prepare_recompute) (EbbParameterOwner *self,
                                 gboolean is_needed,
                                 GError **error);
  void (*ref) (EbbParameterOwner *self);
  void (*unref) (EbbParameterOwner *self);
  /* Of what the ranks shard: the full parameter, or this rank's part of it by tensor parallelism. */
  gint64 (*get_n_elements) (EbbParameterOwner *self,
                            EbbTensor *parameter);
  /* The place of this rank's first element among these. NULL: 0. */
  gint64 (*get_first_element) (EbbParameterOwner *self,
                               EbbTensor *parameter);
  /* The device that computes with the parameter. NULL: the one that it lies on. */
  EbbDevice *(*get_device) (EbbParameterOwner *self);
} EbbParameterOwnerFuncs;

struct _EbbParameterOwner
{
  const EbbParameterOwnerFuncs *funcs;
};

static inline gboolean
ebb_parameter_prepare (EbbTensor *parameter,
                       GError **error)
{
  EbbParameterOwner *owner = parameter->owner;

  return G_LIKELY (owner == NULL) || owner->funcs->prepare == NULL || owner->funcs->prepare (owner, parameter, error);
}

static inline gboolean
ebb_parameter_finalize (EbbTensor *parameter,
                        GError **error)
{
  EbbParameterOwner *owner = parameter->owner;

  return G_LIKELY (owner == NULL) || owner->funcs->finalize == NULL || owner->funcs->finalize (owner, parameter, error);
}

static inline void
ebb_parameter_drop_grads (EbbTensor *parameter)
{
  EbbParameterOwner *owner = parameter->owner;

  if (owner != NULL && owner->funcs->drop_grads != NULL)
    owner->funcs->drop_grads (owner, parameter);
}

static inline gboolean
ebb_parameter_is_full (EbbTensor *parameter)
{
  EbbParameterOwner *owner = parameter->owner;

  return owner == NULL || owner->funcs->is_full == NULL || owner->funcs->is_full (owner, parameter);
}

/* TRUE if ranks shard the parameter, though it may be full at this moment. */
static inline gboolean
ebb_parameter_is_sharded (EbbTensor *parameter)
{
  return parameter->owner != NULL && parameter->owner->funcs->is_full != NULL;
}

/* The device that computes with a parameter or a buffer, though a shard may lie in host memory. */
static inline EbbDevice *
ebb_parameter_get_device (EbbTensor *parameter)
{
  EbbParameterOwner *owner = parameter->owner;

  return owner != NULL && owner->funcs->get_device != NULL ? owner->funcs->get_device (owner)
                                                           : parameter->storage->device;
}

/* FALSE if only the owner can give the values that ops read, by ebb_parameter_prepare (). */
static inline gboolean
ebb_parameter_is_available (EbbTensor *parameter)
{
  EbbParameterOwner *owner = parameter->owner;

  return owner == NULL || owner->funcs->is_available == NULL || owner->funcs->is_available (owner);
}

/* Of the full parameter, wherever its shards are. */
static inline gint64
ebb_parameter_get_n_elements (EbbTensor *parameter)
{
  EbbParameterOwner *owner = parameter->owner;
  EbbPartition *partition = parameter->partition;
  gint64 n = 1;

  for (guint d = 0; partition != NULL && d < partition->n_dims; d++)
    n *= partition->shape[d];
  if (partition != NULL)
    return n;
  return owner == NULL || owner->funcs->get_n_elements == NULL
             ? parameter->n_elements
             : owner->funcs->get_n_elements (owner, parameter);
}

/* The place of the parameter's first element in the full one: elements of different ranks have different places. Those
 * of parts by tensor parallelism follow each other, part after part. */
static inline gint64
ebb_parameter_get_first_element (EbbTensor *parameter)
{
  EbbParameterOwner *owner = parameter->owner;
  EbbPartition *partition = parameter->partition;
  gint64 first = owner != NULL && owner->funcs->get_first_element != NULL
                     ? owner->funcs->get_first_element (owner, parameter)
                     : 0;

  if (partition != NULL && partition->index > 0)
    first += partition->index * ebb_partition_get_max_elements (partition);
  return first;
}

/* One more node holds the parameter as an operand or for backward, or one less. */
static inline void
ebb_parameter_use (EbbTensor *parameter)
{
  __atomic_add_fetch (&parameter->n_uses, 1, __ATOMIC_RELAXED);
}
void ebb_parameter_drop_use (EbbTensor *parameter);

/* The forward of a module begins on this thread, and its owner makes the parameters available; it ends. The owner is
 * referenced meanwhile. An owner that enters has prepare_recompute (), ref () and unref (). */
void ebb_parameter_owner_enter (EbbParameterOwner *self);
void ebb_parameter_owner_leave (void);
/* The first of those that have entered and not left; NULL: none. */
EbbParameterOwner *ebb_parameter_owner_get_outermost (void);
/* All of them, outermost first, with references; NULL: none. */
GPtrArray *ebb_parameter_owners_get_entered (void);
/* Calls prepare_recompute () for each of @owners, which may be NULL; the innermost is needed if @needs_innermost. */
gboolean ebb_parameter_owners_prepare_recompute (GPtrArray *owners,
                                                 gboolean needs_innermost,
                                                 GError **error);

G_END_DECLS
