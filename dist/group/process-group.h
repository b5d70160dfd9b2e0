/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/work.h"
#include "tensor/tensor.h"

G_BEGIN_DECLS

/**
 * EbbReduceOp:
 * @EBB_REDUCE_OP_SUM: the sum; of bool the logical or
 * @EBB_REDUCE_OP_MEAN: the sum divided by the number of ranks; of integers rounded towards zero. Not of bool
 * @EBB_REDUCE_OP_MIN: the least; NaN if one is NaN
 * @EBB_REDUCE_OP_MAX: the greatest; NaN if one is NaN
 *
 * How the elements of several ranks become one.
 */
typedef enum
{
  EBB_REDUCE_OP_SUM,
  EBB_REDUCE_OP_MEAN,
  EBB_REDUCE_OP_MIN,
  EBB_REDUCE_OP_MAX
} EbbReduceOp;

#define EBB_N_REDUCE_OPS 4

/**
 * EbbCollective:
 * @EBB_COLLECTIVE_ALL_REDUCE: all ranks get the reduction of all tensors
 * @EBB_COLLECTIVE_REDUCE_SCATTER: each rank gets its shard of the reduction
 * @EBB_COLLECTIVE_ALL_GATHER: all ranks get the shards of all
 * @EBB_COLLECTIVE_BROADCAST: all ranks get the tensor of one
 * @EBB_COLLECTIVE_ALL_TO_ALL: each rank gets a shard from each
 * @EBB_COLLECTIVE_SEND: one rank sends a tensor to another
 * @EBB_COLLECTIVE_RECV: one rank receives a tensor from another
 * @EBB_COLLECTIVE_BARRIER: all ranks wait for all
 *
 * The operations of a process group.
 */
typedef enum
{
  EBB_COLLECTIVE_ALL_REDUCE,
  EBB_COLLECTIVE_REDUCE_SCATTER,
  EBB_COLLECTIVE_ALL_GATHER,
  EBB_COLLECTIVE_BROADCAST,
  EBB_COLLECTIVE_ALL_TO_ALL,
  EBB_COLLECTIVE_SEND,
  EBB_COLLECTIVE_RECV,
  EBB_COLLECTIVE_BARRIER
} EbbCollective;

#define EBB_N_COLLECTIVES 8

#define EBB_TYPE_PROCESS_GROUP (ebb_process_group_get_type ())

/**
 * EbbProcessGroup:
 *
 * Ranks that compute together: processes of one or many machines, or threads of one process. All ranks of a group make
 * the same calls in the same order. If a rank calls something else, has left, has died, or doesn't come within the time
 * limit, the call fails on every rank with %EBB_ERROR_PROCESS_GROUP, which names the rank, its last call, and the
 * operation with its shapes; after that every call of the group fails at once with the same error.
 *
 * Wrappers' calls count too: a sharded model gathers in its forwards and backwards and reduces at the end of a
 * backward, and ranks compare which unit a call is for. The graphs that are alive decide which units are sharded again
 * between the passes. A graph that one rank alone keeps (an output that is held there, or that JavaScript's garbage
 * collector frees late) changes the order in which that rank gathers, and the ranks fail. So validate without graphs,
 * by ebb_push_grad_enabled() (no_grad in Python), and drop losses and outputs on all ranks alike.
 *
 * A group belongs to one thread. Tensors may be on any device; if the engine can't reach that device, the group copies
 * them through the host.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_DERIVABLE_TYPE (EbbProcessGroup, ebb_process_group, EBB, PROCESS_GROUP, GObject)

struct _EbbProcessGroupClass
{
  GObjectClass parent_class;

  /*< private >*/
  gconstpointer funcs;
  gpointer padding[8];
};

/* -- who */

EBB_AVAILABLE_IN_ALL
guint ebb_process_group_get_rank (EbbProcessGroup *self);

EBB_AVAILABLE_IN_ALL
guint ebb_process_group_get_size (EbbProcessGroup *self);

EBB_AVAILABLE_IN_ALL
const char *ebb_process_group_get_backend (EbbProcessGroup *self);

EBB_AVAILABLE_IN_ALL
const char *ebb_process_group_get_name (EbbProcessGroup *self);

EBB_AVAILABLE_IN_ALL
double ebb_process_group_get_timeout (EbbProcessGroup *self);

EBB_AVAILABLE_IN_ALL
void ebb_process_group_set_timeout (EbbProcessGroup *self,
                                    double seconds);

EBB_AVAILABLE_IN_ALL
EbbProcessGroup *ebb_process_group_split (EbbProcessGroup *self,
                                          guint color,
                                          GError **error);

/* -- what */

EBB_AVAILABLE_IN_ALL
gboolean ebb_process_group_all_reduce (EbbProcessGroup *self,
                                       EbbTensor *tensor,
                                       EbbReduceOp op,
                                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbWork *ebb_process_group_all_reduce_async (EbbProcessGroup *self,
                                             EbbTensor *tensor,
                                             EbbReduceOp op,
                                             GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_process_group_broadcast (EbbProcessGroup *self,
                                      EbbTensor *tensor,
                                      guint root,
                                      GError **error);

EBB_AVAILABLE_IN_ALL
EbbWork *ebb_process_group_broadcast_async (EbbProcessGroup *self,
                                            EbbTensor *tensor,
                                            guint root,
                                            GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_process_group_all_gather (EbbProcessGroup *self,
                                         EbbTensor *input,
                                         GError **error);

EBB_AVAILABLE_IN_ALL
EbbWork *ebb_process_group_all_gather_async (EbbProcessGroup *self,
                                             EbbTensor *output,
                                             EbbTensor *input,
                                             GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_process_group_reduce_scatter (EbbProcessGroup *self,
                                             EbbTensor *input,
                                             EbbReduceOp op,
                                             GError **error);

EBB_AVAILABLE_IN_ALL
EbbWork *ebb_process_group_reduce_scatter_async (EbbProcessGroup *self,
                                                 EbbTensor *output,
                                                 EbbTensor *input,
                                                 EbbReduceOp op,
                                                 GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_process_group_all_to_all (EbbProcessGroup *self,
                                         EbbTensor *input,
                                         GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_process_group_send (EbbProcessGroup *self,
                                 EbbTensor *tensor,
                                 guint to,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_process_group_recv (EbbProcessGroup *self,
                                 EbbTensor *tensor,
                                 guint from,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_process_group_barrier (EbbProcessGroup *self,
                                    GError **error);

/* -- how much */

EBB_AVAILABLE_IN_ALL
guint64 ebb_process_group_get_n_calls (EbbProcessGroup *self,
                                       EbbCollective which);

EBB_AVAILABLE_IN_ALL
guint64 ebb_process_group_get_n_bytes (EbbProcessGroup *self,
                                       EbbCollective which);

EBB_AVAILABLE_IN_ALL
void ebb_process_group_reset_counters (EbbProcessGroup *self);

G_END_DECLS
