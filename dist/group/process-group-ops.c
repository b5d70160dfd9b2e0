/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The public operations: how a group is split, and collectives on one tensor each. No gradient flows through them. */
#include "dist/group/group-private.h"
#include "tensor/autograd/op-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/shape.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

#include <string.h>

/**
 * ebb_process_group_split:
 * @self: a group
 * @color: a number; ranks with the same one get the same group
 * @error: return location for an error
 *
 * Makes groups of the ranks that give the same @color, numbered in the order of their ranks in @self. All ranks of
 * @self call it; each gets the group that it is in, with the same time limit.
 *
 * The split waits for all work that was started in @self. With MPI, calls that run in other groups of a process pause
 * until all members of the new group have come, and no other thread of the process may split a group meanwhile. Make
 * groups before the work begins.
 *
 * Returns: (transfer full) (nullable): the new group, or %NULL with an error
 */
EbbProcessGroup *
ebb_process_group_split (EbbProcessGroup *self,
                         guint color,
                         GError **error)
{
  gint64 mine[2] = { color };
  g_autofree guint *members = NULL;
  g_autoptr (EbbTensor) colors = NULL;
  const gint64 *all; /* color and number of each rank */
  EbbGroupState *state;
  EbbProcessGroup *part;
  guint size, n_members = 0, rank = 0;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self);
  if (ebb_is_stopped ())
    return ebb_fail_null (error, EBB_ERROR_STOP, "split: a recompute that has all it needs makes no groups");
  size = ebb_process_group_get_size (self);
  state = ebb_process_group_get_state (self);
  mine[1] = state->is_split ? state->own : state->rank;
  ebb_process_group_flush (self);
  colors = ebb_process_group_exchange (self, mine, 2, NULL, EBB_DTYPE_I64, error);
  if (colors == NULL)
    return NULL;
  all = colors->view.data;
  members = g_new (guint, size);
  for (guint r = 0; r < size; r++)
    if (all[2 * r] == mine[0])
      {
        if (r == ebb_process_group_get_rank (self))
          rank = n_members;
        members[n_members++] = r;
      }
  part = ebb_process_group_get_funcs (self)->split (self, color, members, n_members, rank, error);
  if (part == NULL)
    return NULL;
  state = ebb_process_group_get_state (part);
  state->is_split = TRUE;
  state->own = (guint) mine[1];
  state->first = (guint) all[2 * members[0] + 1];
  return part;
}

/* Shadows and saved views of the tensor must see that it changes. */
static void
will_change (EbbTensor *tensor)
{
  if (!tensor->storage->placeholder)
    ebb_storage_change (tensor->storage);
}

static gboolean
is_ready (EbbProcessGroup *self,
          EbbTensor *tensor,
          GError **error)
{
  return self != NULL && tensor != NULL && (error == NULL || *error == NULL);
}

/* @tensor itself where it is contiguous. */
static EbbTensor *
as_contiguous (EbbTensor *tensor,
               GError **error)
{
  EbbTensor *copy;

  ebb_push_grad_enabled (FALSE);
  copy = ebb_contiguous (tensor, error);
  ebb_pop_grad_enabled ();
  return copy;
}

/* -- in place ------------------------------------------------------------------------------------------------------ */

static gboolean
run_in_place (EbbProcessGroup *self,
              EbbCollective which,
              EbbReduceOp op,
              EbbTensor *tensor,
              guint peer,
              GError **error)
{
  const EbbCollectivePart part = { .full = tensor };

  if (!is_ready (self, tensor, error))
    return FALSE;
  if (which != EBB_COLLECTIVE_SEND)
    will_change (tensor);
  return ebb_process_group_run (self, which, op, &part, 1, peer, NULL, error);
}

static EbbWork *
start_in_place (EbbProcessGroup *self,
                EbbCollective which,
                EbbReduceOp op,
                EbbTensor *tensor,
                guint peer,
                GError **error)
{
  const EbbCollectivePart part = { .full = tensor };

  if (!is_ready (self, tensor, error))
    return NULL;
  will_change (tensor);
  return ebb_process_group_start (self, which, op, &part, 1, peer, NULL, error);
}

/**
 * ebb_process_group_all_reduce:
 * @self: a group
 * @tensor: a contiguous tensor, of the same shape and dtype on all ranks
 * @op: how the elements of the ranks become one
 * @error: return location for an error
 *
 * Replaces @tensor on all ranks by the reduction of all of them. Elements are added in the order of the ranks, those of
 * 16-bit floats in f32: all ranks get the same bits, in every run. As all operations, it does nothing in a recompute
 * that has all it needs.
 *
 * Returns: %FALSE with %EBB_ERROR_PROCESS_GROUP if the ranks didn't come together
 */
gboolean
ebb_process_group_all_reduce (EbbProcessGroup *self,
                              EbbTensor *tensor,
                              EbbReduceOp op,
                              GError **error)
{
  return run_in_place (self, EBB_COLLECTIVE_ALL_REDUCE, op, tensor, 0, error);
}

/**
 * ebb_process_group_all_reduce_async:
 * @self: a group
 * @tensor: a contiguous tensor, of the same shape and dtype on all ranks
 * @op: how the elements of the ranks become one
 * @error: return location for an error
 *
 * Runs ebb_process_group_all_reduce() in the background. Leave @tensor alone until the work is done.
 *
 * Returns: (transfer full) (nullable): the work to wait for, or %NULL with an error
 */
EbbWork *
ebb_process_group_all_reduce_async (EbbProcessGroup *self,
                                    EbbTensor *tensor,
                                    EbbReduceOp op,
                                    GError **error)
{
  return start_in_place (self, EBB_COLLECTIVE_ALL_REDUCE, op, tensor, 0, error);
}

/**
 * ebb_process_group_broadcast:
 * @self: a group
 * @tensor: a contiguous tensor, of the same shape and dtype on all ranks
 * @root: whose elements it is to have
 * @error: return location for an error
 *
 * Replaces @tensor on all ranks by that of @root.
 *
 * Returns: %FALSE with %EBB_ERROR_PROCESS_GROUP if the ranks didn't come together
 */
gboolean
ebb_process_group_broadcast (EbbProcessGroup *self,
                             EbbTensor *tensor,
                             guint root,
                             GError **error)
{
  return run_in_place (self, EBB_COLLECTIVE_BROADCAST, EBB_REDUCE_OP_SUM, tensor, root, error);
}

/**
 * ebb_process_group_broadcast_async:
 * @self: a group
 * @tensor: a contiguous tensor, of the same shape and dtype on all ranks
 * @root: whose elements it is to have
 * @error: return location for an error
 *
 * Runs ebb_process_group_broadcast() in the background. Leave @tensor alone until the work is done.
 *
 * Returns: (transfer full) (nullable): the work to wait for, or %NULL with an error
 */
EbbWork *
ebb_process_group_broadcast_async (EbbProcessGroup *self,
                                   EbbTensor *tensor,
                                   guint root,
                                   GError **error)
{
  return start_in_place (self, EBB_COLLECTIVE_BROADCAST, EBB_REDUCE_OP_SUM, tensor, root, error);
}

/**
 * ebb_process_group_send:
 * @self: a group
 * @tensor: a contiguous tensor
 * @to: another rank, which calls ebb_process_group_recv() with a tensor of the same shape and dtype
 * @error: return location for an error
 *
 * Sends the elements of @tensor to another rank. It may wait until that rank receives them, so two ranks that both send
 * to each other may deadlock: one should receive first.
 *
 * Returns: %FALSE with %EBB_ERROR_PROCESS_GROUP if the ranks didn't come together
 */
gboolean
ebb_process_group_send (EbbProcessGroup *self,
                        EbbTensor *tensor,
                        guint to,
                        GError **error)
{
  return run_in_place (self, EBB_COLLECTIVE_SEND, EBB_REDUCE_OP_SUM, tensor, to, error);
}

/**
 * ebb_process_group_recv:
 * @self: a group
 * @tensor: a contiguous tensor
 * @from: another rank, which calls ebb_process_group_send() with a tensor of the same shape and dtype
 * @error: return location for an error
 *
 * Replaces the elements of @tensor by those that another rank sends.
 *
 * Returns: %FALSE with %EBB_ERROR_PROCESS_GROUP if the ranks didn't come together
 */
gboolean
ebb_process_group_recv (EbbProcessGroup *self,
                        EbbTensor *tensor,
                        guint from,
                        GError **error)
{
  return run_in_place (self, EBB_COLLECTIVE_RECV, EBB_REDUCE_OP_SUM, tensor, from, error);
}

/**
 * ebb_process_group_barrier:
 * @self: a group
 * @error: return location for an error
 *
 * Waits until all ranks are here.
 *
 * Returns: %FALSE with %EBB_ERROR_PROCESS_GROUP if the ranks didn't come together
 */
gboolean
ebb_process_group_barrier (EbbProcessGroup *self,
                           GError **error)
{
  return ebb_process_group_run (self, EBB_COLLECTIVE_BARRIER, EBB_REDUCE_OP_SUM, NULL, 0, 0, NULL, error);
}

/* -- from one tensor to another ------------------------------------------------------------------------------------ */

/* Like @input, with another first dimension. */
static EbbTensor *
make_result (EbbTensor *input,
             gint64 first,
             GError **error)
{
  gint64 shape[EBB_MAX_DIMS];

  memcpy (shape, input->view.shape, sizeof shape);
  shape[0] = first;
  return ebb_tensor_new_uninitialized (shape, (guint) input->view.n_dims, input->view.dtype, input->storage->device,
                                       error);
}

static gboolean
check_has_dims (EbbTensor *input,
                EbbCollective which,
                GError **error)
{
  return input->view.n_dims > 0
         || ebb_fail (error, EBB_ERROR_SHAPE, "%s: a tensor of shape [] has no first dimension",
                      ebb_collective_get_name (which));
}

static gboolean
check_divides (EbbProcessGroup *self,
               EbbTensor *input,
               EbbCollective which,
               GError **error)
{
  const guint n = ebb_process_group_get_size (self);
  g_autofree char *shape = NULL;

  if (!check_has_dims (input, which, error))
    return FALSE;
  if (input->view.shape[0] % n == 0)
    return TRUE;
  shape = ebb_tensor_shape_to_string (input);
  return ebb_fail (error, EBB_ERROR_SHAPE, "%s: the first dimension of %s can't be split into %u equal shards",
                   ebb_collective_get_name (which), shape, n);
}

/* The larger tensor has the shape of the smaller one with n times its first dimension. */
static gboolean
check_fits (EbbProcessGroup *self,
            EbbTensor *full,
            EbbTensor *shard,
            EbbCollective which,
            GError **error)
{
  const guint n = ebb_process_group_get_size (self);
  const EbbView *a = &full->view, *b = &shard->view;
  g_autofree char *full_shape = NULL, *shard_shape = NULL;

  if (!check_has_dims (shard, which, error))
    return FALSE;
  if (a->n_dims == b->n_dims && a->shape[0] == b->shape[0] * n
      && memcmp (a->shape + 1, b->shape + 1, sizeof (gint64) * (gsize) (a->n_dims - 1)) == 0)
    return TRUE;
  full_shape = ebb_tensor_shape_to_string (full);
  shard_shape = ebb_tensor_shape_to_string (shard);
  return ebb_fail (error, EBB_ERROR_SHAPE, "%s: %s is not %u times %s along the first dimension",
                   ebb_collective_get_name (which), full_shape, n, shard_shape);
}

/* Returns a new tensor like @input, with @first as its first dimension: what a gather puts together, what is a shard of
 * the result elsewhere. */
static EbbTensor *
run_to_new (EbbProcessGroup *self,
            EbbCollective which,
            EbbReduceOp op,
            EbbTensor *input,
            gint64 first,
            GError **error)
{
  g_autoptr (EbbTensor) given = as_contiguous (input, error);
  g_autoptr (EbbTensor) result = given != NULL ? make_result (given, first, error) : NULL;
  const gboolean gathers = which == EBB_COLLECTIVE_ALL_GATHER;
  const EbbCollectivePart part = { .full = gathers ? result : given, .shard = gathers ? given : result };

  return result != NULL && ebb_process_group_run (self, which, op, &part, 1, 0, NULL, error)
             ? g_steal_pointer (&result)
             : NULL;
}

/**
 * ebb_process_group_all_gather:
 * @self: a group
 * @input: a tensor `[D, ...]`, of the same shape and dtype on all ranks
 * @error: return location for an error
 *
 * Puts the tensors of all ranks one after another, in the order of the ranks.
 *
 * Returns: (transfer full) (nullable): a tensor `[size * D, ...]`, or %NULL with an error
 */
EbbTensor *
ebb_process_group_all_gather (EbbProcessGroup *self,
                              EbbTensor *input,
                              GError **error)
{
  if (!is_ready (self, input, error) || !check_has_dims (input, EBB_COLLECTIVE_ALL_GATHER, error))
    return NULL;
  return run_to_new (self, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, input,
                     input->view.shape[0] * ebb_process_group_get_size (self), error);
}

/**
 * ebb_process_group_all_gather_async:
 * @self: a group
 * @output: a contiguous tensor `[size * D, ...]` for the result
 * @input: a contiguous tensor `[D, ...]`, of the same shape and dtype on all ranks
 * @error: return location for an error
 *
 * Runs ebb_process_group_all_gather() in the background. Leave both tensors alone until the work is done.
 *
 * Returns: (transfer full) (nullable): the work to wait for, or %NULL with an error
 */
EbbWork *
ebb_process_group_all_gather_async (EbbProcessGroup *self,
                                    EbbTensor *output,
                                    EbbTensor *input,
                                    GError **error)
{
  const EbbCollectivePart part = { .full = output, .shard = input };

  if (!is_ready (self, input, error) || output == NULL
      || !check_fits (self, output, input, EBB_COLLECTIVE_ALL_GATHER, error))
    return NULL;
  will_change (output);
  return ebb_process_group_start (self, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, &part, 1, 0, NULL, error);
}

/**
 * ebb_process_group_reduce_scatter:
 * @self: a group
 * @input: a tensor `[size * D, ...]`, of the same shape and dtype on all ranks
 * @op: how the elements of the ranks become one
 * @error: return location for an error
 *
 * Gives each rank its shard of the result of ebb_process_group_all_reduce().
 *
 * Returns: (transfer full) (nullable): a tensor `[D, ...]`, or %NULL with an error
 */
EbbTensor *
ebb_process_group_reduce_scatter (EbbProcessGroup *self,
                                  EbbTensor *input,
                                  EbbReduceOp op,
                                  GError **error)
{
  if (!is_ready (self, input, error) || !check_divides (self, input, EBB_COLLECTIVE_REDUCE_SCATTER, error))
    return NULL;
  return run_to_new (self, EBB_COLLECTIVE_REDUCE_SCATTER, op, input,
                     input->view.shape[0] / ebb_process_group_get_size (self), error);
}

/**
 * ebb_process_group_reduce_scatter_async:
 * @self: a group
 * @output: a contiguous tensor `[D, ...]` for the result; it may be this rank's shard of @input
 * @input: a contiguous tensor `[size * D, ...]`, of the same shape and dtype on all ranks
 * @op: how the elements of the ranks become one
 * @error: return location for an error
 *
 * Runs ebb_process_group_reduce_scatter() in the background. Leave both tensors alone until the work is done.
 *
 * Returns: (transfer full) (nullable): the work to wait for, or %NULL with an error
 */
EbbWork *
ebb_process_group_reduce_scatter_async (EbbProcessGroup *self,
                                        EbbTensor *output,
                                        EbbTensor *input,
                                        EbbReduceOp op,
                                        GError **error)
{
  const EbbCollectivePart part = { .full = input, .shard = output };

  if (!is_ready (self, input, error) || output == NULL
      || !check_fits (self, input, output, EBB_COLLECTIVE_REDUCE_SCATTER, error))
    return NULL;
  will_change (output);
  return ebb_process_group_start (self, EBB_COLLECTIVE_REDUCE_SCATTER, op, &part, 1, 0, NULL, error);
}

/**
 * ebb_process_group_all_to_all:
 * @self: a group
 * @input: a tensor `[size * D, ...]`, of the same shape and dtype on all ranks
 * @error: return location for an error
 *
 * Sends shard r of @input to each rank r, and joins the shards that come from the ranks in their order.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape of @input, or %NULL with an error
 */
EbbTensor *
ebb_process_group_all_to_all (EbbProcessGroup *self,
                              EbbTensor *input,
                              GError **error)
{
  if (!is_ready (self, input, error) || !check_divides (self, input, EBB_COLLECTIVE_ALL_TO_ALL, error))
    return NULL;
  return run_to_new (self, EBB_COLLECTIVE_ALL_TO_ALL, EBB_REDUCE_OP_SUM, input, input->view.shape[0], error);
}

/* -- norms --------------------------------------------------------------------------------------------------------- */

gboolean
ebb_process_group_reduce_norms (EbbProcessGroup *self,
                                EbbReduceKind op,
                                EbbTensor *values,
                                const char *purpose,
                                GError **error)
{
  const gint64 n = values->n_elements, shape[] = { ebb_process_group_get_size (self), n };
  EbbDevice *device = values->storage->device;
  g_autoptr (EbbTensor) all = ebb_tensor_new_uninitialized (shape, 2, EBB_DTYPE_I64, device, error);
  const EbbCollectivePart part = { .full = all, .shard = values };
  EbbLaunch launch;

  if (all == NULL
      || !ebb_process_group_run (self, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, &part, 1, 0, purpose, error))
    return FALSE;
  ebb_launch_init (&launch, EBB_KERNEL_NORM_SUM);
  launch.params.norm_sum.max = op == EBB_REDUCE_MAX;
  ebb_launch_input (&launch, all);
  ebb_launch_output (&launch, values);
  return ebb_launch (device, &launch, error);
}
