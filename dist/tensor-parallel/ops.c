/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Collectives as ops of which each is another one's gradient (Megatron's f and g, arXiv 1909.08053, and those of
 * arXiv 2205.05198). The call's owner is the group. */
#include "dist/tensor-parallel/ops.h"

#include "dist/group/group-private.h"
#include "dist/init.h"
#include "dist/tensor-parallel/ops-private.h"
#include "tensor/error-private.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/autograd/rematerialization-private.h"
#include "tensor/thread-private.h"

#include <string.h>

enum
{
  DIM,
  N /* elements of the full tensor along DIM */
};

static EbbProcessGroup *
get_group (GObject *owner)
{
  return EBB_PROCESS_GROUP (owner);
}

static EbbProcessGroup *
group_or_default (EbbProcessGroup *group)
{
  return group != NULL ? group : ebb_process_group_get_default ();
}

static gboolean
is_alone (EbbProcessGroup *group)
{
  return ebb_process_group_get_size (group) == 1;
}

static EbbTensor *
pass (EbbTensor *x,
      GError **error)
{
  return error != NULL && *error != NULL ? NULL : ebb_tensor_ref (x);
}

/* FALSE: an operand is missing or unfit. */
static gboolean
begin (EbbOpCall *call,
       const EbbOp *op,
       EbbTensor *x,
       EbbProcessGroup *group,
       GError **error)
{
  if (!ebb_op_begin (call, op, error, 1, x))
    return FALSE;
  call->owner = G_OBJECT (group);
  return TRUE;
}

static gboolean
check_dim (const char *op_name,
           EbbTensor *x,
           int *dim,
           GError **error)
{
  if (!ebb_may_begin (error, op_name, "x", (const gconstpointer[]){ x }, 1))
    return FALSE;
  if (x->view.n_dims > 0)
    return ebb_normalize_dim (op_name, dim, (guint) x->view.n_dims, error);
  return ebb_fail (error, EBB_ERROR_SHAPE, "%s: a tensor of shape [] has no dimension to be divided along", op_name);
}

/* -- backward ------------------------------------------------------------------------------------------------------ */

static EbbTensor *
new_resized (EbbTensor *like,
             int dim,
             gint64 n,
             GError **error)
{
  EbbView view = like->view;

  view.shape[dim] = n;
  return ebb_tensor_new_uninitialized (view.shape, (guint) view.n_dims, view.dtype, like->storage->device, error);
}

static gint64
get_count (EbbProcessGroup *group,
           gint64 n)
{
  gint64 first, count;

  ebb_parallel_get_part (n, ebb_process_group_get_size (group), ebb_process_group_get_rank (group), &first, &count);
  return count;
}

/* The gradient of output @i in memory that may be overwritten. */
static EbbTensor *
take_own_grad (EbbBackward *ctx,
               guint i,
               GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_take_grad (ctx, i, ctx->grad_outputs[i]->view.dtype, error);

  if (dy == NULL || ebb_tensor_is_unshared (dy))
    return g_steal_pointer (&dy);
  return ebb_tensor_convert (dy, dy->view.dtype, error);
}

/* All gradients are summed in one call. */
static gboolean
sum_backward (EbbBackward *ctx,
              GError **error)
{
  EbbTensor *sums[EBB_OP_MAX_OUTPUTS];
  guint n = 0;

  for (guint i = 0; i < ctx->n_outputs; i++)
    if (ctx->grad_outputs[i] != NULL && (ctx->needs >> i & 1))
      {
        sums[n] = ctx->grad_inputs[i] = take_own_grad (ctx, i, error);
        if (sums[n++] == NULL)
          return FALSE;
      }
  return n == 0 || ebb_parallel_sum (sums, n, get_group (ctx->owner), "parallel_copy's gradient", error);
}

static gboolean
identity_backward (EbbBackward *ctx,
                   GError **error)
{
  ctx->grad_inputs[0] = ebb_backward_steal_grad (ctx, 0);
  return TRUE;
}

static gboolean
part_backward (EbbBackward *ctx,
               GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);

  if (dy != NULL)
    ctx->grad_inputs[0] = ebb_parallel_view_part (dy, (int) ctx->extra_i[DIM], get_group (ctx->owner));
  return TRUE;
}

/* The gradient, gathered along the call's dimension, or summed and sharded along it. */
static gboolean
move_gradient (EbbBackward *ctx,
               gboolean gathers,
               GError **error)
{
  const int dim = (int) ctx->extra_i[DIM];
  EbbProcessGroup *group = get_group (ctx->owner);
  g_autofree char *purpose = g_strdup_printf ("%s's gradient", ctx->op->name);
  g_autoptr (EbbTensor) dy = NULL;
  EbbTensor *dx;

  if (ctx->grad_outputs[0] == NULL)
    return TRUE;
  dy = ebb_backward_take_grad (ctx, 0, ctx->grad_outputs[0]->view.dtype, error);
  dx = dy ? new_resized (dy, dim, gathers ? ctx->extra_i[N] : get_count (group, ctx->extra_i[N]), error) : NULL;
  ctx->grad_inputs[0] = dx;
  if (dx == NULL)
    return FALSE;
  return gathers ? ebb_parallel_move (EBB_COLLECTIVE_ALL_GATHER, dx, dy, dim, group, purpose, error)
                 : ebb_parallel_move (EBB_COLLECTIVE_REDUCE_SCATTER, dy, dx, dim, group, purpose, error);
}

static gboolean
gather_gradient (EbbBackward *ctx,
                 GError **error)
{
  return move_gradient (ctx, TRUE, error);
}

static gboolean
sum_scatter_gradient (EbbBackward *ctx,
                      GError **error)
{
  return move_gradient (ctx, FALSE, error);
}

/* -- forward ------------------------------------------------------------------------------------------------------- */

/* The purpose of this thread's current call; NULL: the op's name. */
static __thread const char *reduce_purpose __attribute__ ((tls_model ("initial-exec")));

static gboolean
reduce_run (EbbOpCall *call,
            GError **error)
{
  EbbTensor *x = call->inputs[0], *y = call->outputs[0];

  if (y->storage == x->storage)
    ebb_storage_change (y->storage);
  else if (!ebb_launch_copy (x, y, error))
    return FALSE;
  return ebb_parallel_sum (call->outputs, 1, get_group (call->owner),
                           reduce_purpose != NULL ? reduce_purpose : call->op->name, error);
}

static gboolean
scatter_run (EbbOpCall *call,
             GError **error)
{
  g_autoptr (EbbTensor) part =
      ebb_parallel_view_part (call->inputs[0], (int) call->extra.i[DIM], get_group (call->owner));

  return ebb_launch_copy (part, call->outputs[0], error);
}

static gboolean
gather_run (EbbOpCall *call,
            GError **error)
{
  return ebb_parallel_move (EBB_COLLECTIVE_ALL_GATHER, call->outputs[0], call->inputs[0], (int) call->extra.i[DIM],
                            get_group (call->owner), call->op->name, error);
}

static gboolean
rematerialize_gather (const EbbRematerializeArgs *how,
                      EbbTensor **operands,
                      EbbTensor *output,
                      GError **error)
{
  return ebb_parallel_move (EBB_COLLECTIVE_ALL_GATHER, output, operands[0], (int) how->extra_i[DIM],
                            get_group (how->owner), "parallel_gather again", error);
}

static gboolean
reduce_scatter_run (EbbOpCall *call,
                    GError **error)
{
  return ebb_parallel_move (EBB_COLLECTIVE_REDUCE_SCATTER, call->inputs[0], call->outputs[0], (int) call->extra.i[DIM],
                            get_group (call->owner), call->op->name, error);
}

static const EbbOp op_copy = { "parallel_copy", EBB_OP_VIEW, EBB_N_KERNELS, NULL, sum_backward };
static const EbbOp op_reduce = { "parallel_reduce", EBB_OP_COLLECTIVE, EBB_N_KERNELS,
                                 reduce_run, identity_backward, .shard = EBB_OP_GIVES_FULL };
static const EbbOp op_scatter = { "parallel_scatter", EBB_OP_COPY, EBB_N_KERNELS,
                                  scatter_run, gather_gradient, .shard = EBB_OP_GIVES_SHARD };
static const EbbOp op_gather = { "parallel_gather", EBB_OP_COLLECTIVE, EBB_N_KERNELS,
                                 gather_run, part_backward, .shard = EBB_OP_GIVES_FULL };
static const EbbOp op_gather_summing = { "parallel_gather", EBB_OP_COLLECTIVE, EBB_N_KERNELS,
                                         gather_run, sum_scatter_gradient, .shard = EBB_OP_GIVES_FULL };
static const EbbOp op_reduce_scatter = { "parallel_reduce_scatter", EBB_OP_COLLECTIVE, EBB_N_KERNELS,
                                         reduce_scatter_run, gather_gradient, .shard = EBB_OP_GIVES_SHARD };

/**
 * ebb_parallel_copy:
 * @x: (nullable): a tensor that is the same on all ranks
 * @group: (nullable): the ranks; %NULL for the default group
 * @error: return location for an error
 *
 * Passes a tensor on to a computation that the ranks share, as the first product of a parallel layer: returns @x (a
 * view), and sums the ranks' gradients (all_reduce) in the backward pass. Megatron's f.
 *
 * All ranks of @group call it with tensors of one shape, and traverse their graphs in the same order. In a group of one
 * rank it returns @x.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape, dtype and values of @x, or %NULL with @error set
 */
EbbTensor *
ebb_parallel_copy (EbbTensor *x,
                   EbbProcessGroup *group,
                   GError **error)
{
  EbbTensor *copy = NULL;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, x);
  group = group_or_default (group);
  if (is_alone (group))
    return pass (x, error);
  return ebb_parallel_copy_all (&x, 1, &copy, group, error) ? copy : NULL;
}

/* As many as one op takes. */
static gboolean
copy_some (EbbTensor **tensors,
           guint n_tensors,
           EbbTensor **copies,
           EbbProcessGroup *group,
           GError **error)
{
  EbbOpCall call;

  if (!begin (&call, &op_copy, tensors[0], group, error))
    return FALSE;
  for (guint i = 1; i < n_tensors; i++)
    if (!ebb_op_add_optional (&call, tensors[i], error))
      return FALSE;
  for (guint i = 0; i < n_tensors; i++)
    {
      call.outputs[i] = ebb_tensor_alias (tensors[i]);
      ebb_tensor_share_rematerialization (call.outputs[i], tensors[i]);
    }
  call.n_outputs = n_tensors;
  if (!ebb_op_finish_views (&call, error))
    return FALSE;
  /* They share a node, but each is a local shard only if its own operand is one. */
  for (guint i = 0; i < n_tensors; i++)
    {
      copies[i] = call.outputs[i];
      copies[i]->is_local_shard = tensors[i]->is_local_shard;
      /* Sharded data parallel frees the memory of a parameter, and unshards the parameter itself. */
      if (tensors[i]->is_parameter && copies[i]->original == NULL)
        copies[i]->original = ebb_tensor_ref (tensors[i]);
    }
  return TRUE;
}

gboolean
ebb_parallel_copy_all (EbbTensor **tensors,
                       guint n_tensors,
                       EbbTensor **copies,
                       EbbProcessGroup *group,
                       GError **error)
{
  EbbTensor *some[EBB_OP_MAX_OUTPUTS], *copied[EBB_OP_MAX_OUTPUTS];
  guint places[EBB_OP_MAX_OUTPUTS], n = 0;
  gboolean ok = group != NULL && (error == NULL || *error == NULL);

  memset (copies, 0, n_tensors * sizeof *copies);
  for (guint i = 0; ok && i < n_tensors; i++)
    {
      if (tensors[i] != NULL)
        {
          some[n] = tensors[i];
          places[n++] = i;
        }
      if (n == 0 || (n < EBB_OP_MAX_OUTPUTS && i + 1 < n_tensors))
        continue;
      if (is_alone (group))
        for (guint k = 0; k < n; k++)
          copied[k] = ebb_tensor_ref (some[k]);
      else
        ok = copy_some (some, n, copied, group, error);
      for (guint k = 0; ok && k < n; k++)
        copies[places[k]] = copied[k];
      n = 0;
    }
  for (guint i = 0; !ok && i < n_tensors; i++)
    g_clear_pointer (&copies[i], ebb_tensor_unref);
  return ok;
}

static EbbTensor *
reduce (EbbTensor *x,
        gboolean is_given_away,
        EbbProcessGroup *group,
        GError **error)
{
  EbbOpCall call;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, x);
  group = group_or_default (group);
  if (is_alone (group))
    return pass (x, error);
  if (!begin (&call, &op_reduce, x, group, error))
    return NULL;
  if (is_given_away && !ebb_is_stopped () && ebb_tensor_is_spent (x))
    call.outputs[call.n_outputs++] = ebb_tensor_alias (x);
  else
    ebb_op_add_output_like (&call, x);
  return ebb_op_finish1 (&call, error);
}

/**
 * ebb_parallel_reduce:
 * @x: (nullable): this rank's summand
 * @group: (nullable): the ranks; %NULL for the default group
 * @error: return location for an error
 *
 * Sums the ranks' tensors (all_reduce), as after the last product of a parallel layer; the gradient, which is the same
 * on all ranks, passes unchanged. Megatron's g.
 *
 * All ranks of @group call it with tensors of one shape and dtype. In a group of one rank it returns @x.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, the same on all ranks; %NULL with @error
 *   set, %EBB_ERROR_PROCESS_GROUP if a rank does not come or calls something else
 */
EbbTensor *
ebb_parallel_reduce (EbbTensor *x,
                     EbbProcessGroup *group,
                     GError **error)
{
  return reduce (x, FALSE, group, error);
}

EbbTensor *
ebb_parallel_reduce_over (EbbTensor *x,
                          EbbProcessGroup *group,
                          const char *purpose,
                          GError **error)
{
  EbbTensor *sum;

  reduce_purpose = purpose;
  sum = reduce (x, TRUE, group, error);
  reduce_purpose = NULL;
  return sum;
}

/* Describes and runs an op whose result has @n elements along @dim; @full: those of all ranks. */
static EbbTensor *
finish_along (const EbbOp *op,
              EbbTensor *x,
              int dim,
              gint64 n,
              gint64 full,
              EbbProcessGroup *group,
              GError **error)
{
  EbbOpCall call;
  EbbView view = x->view;

  if (!begin (&call, op, x, group, error) || !ebb_op_contiguous (&call, 0, error))
    return NULL;
  call.extra.i[DIM] = dim;
  call.extra.i[N] = full;
  view.shape[dim] = n;
  ebb_op_add_output (&call, view.dtype, view.shape, (guint) view.n_dims);
  if (op == &op_gather_summing)
    ebb_op_rematerialize_output (&call, 0, rematerialize_gather, 1, 0);
  return ebb_op_finish1 (&call, error);
}

/**
 * ebb_parallel_scatter:
 * @x: (nullable): a tensor that is the same on all ranks
 * @dim: the dimension to shard; negative ones count from the end
 * @group: (nullable): the ranks; %NULL for the default group
 * @error: return location for an error
 *
 * Returns this rank's shard of @x along a dimension, in the order of the ranks: of n elements on N ranks the first n %
 * N ranks get one more. Nothing is sent. The backward pass gathers the gradients of the shards (all_gather), so that
 * the gradient of @x is the same on all ranks.
 *
 * In a group of one rank it returns @x.
 *
 * Returns: (transfer full) (nullable): this rank's shard, a copy; %NULL with %EBB_ERROR_INDEX if @dim is out of range,
 *   %EBB_ERROR_SHAPE for a tensor without dimensions
 */
EbbTensor *
ebb_parallel_scatter (EbbTensor *x,
                      int dim,
                      EbbProcessGroup *group,
                      GError **error)
{
  if (!check_dim ("parallel_scatter", x, &dim, error))
    return NULL;
  group = group_or_default (group);
  if (is_alone (group))
    return pass (x, error);
  return finish_along (&op_scatter, x, dim, get_count (group, x->view.shape[dim]), x->view.shape[dim], group, error);
}

/**
 * ebb_parallel_reduce_scatter:
 * @x: (nullable): this rank's summand
 * @dim: the dimension along which the sum is sharded; negative ones count from the end
 * @group: (nullable): the ranks; %NULL for the default group
 * @error: return location for an error
 *
 * Sums the ranks' tensors and returns this rank's shard of the sum along a dimension (reduce_scatter), sharded as by
 * ebb_parallel_scatter(). The backward pass gathers the gradients of the shards (all_gather).
 *
 * All ranks of @group call it with tensors of one shape and dtype. In a group of one rank it returns @x.
 *
 * Returns: (transfer full) (nullable): this rank's shard of the sum; %NULL with %EBB_ERROR_INDEX if @dim is out of
 *   range, %EBB_ERROR_SHAPE for a tensor without dimensions, %EBB_ERROR_PROCESS_GROUP if a rank does not come or calls
 *   something else
 */
EbbTensor *
ebb_parallel_reduce_scatter (EbbTensor *x,
                             int dim,
                             EbbProcessGroup *group,
                             GError **error)
{
  if (!check_dim ("parallel_reduce_scatter", x, &dim, error))
    return NULL;
  group = group_or_default (group);
  if (is_alone (group))
    return pass (x, error);
  return finish_along (&op_reduce_scatter, x, dim, get_count (group, x->view.shape[dim]), x->view.shape[dim], group,
                       error);
}

EbbTensor *
ebb_parallel_gather_sized (EbbTensor *x,
                           int dim,
                           gint64 n,
                           gboolean sum_gradient,
                           EbbProcessGroup *group,
                           GError **error)
{
  if (!check_dim ("parallel_gather", x, &dim, error))
    return NULL;
  group = group_or_default (group);
  if (x->view.shape[dim] != get_count (group, n))
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (x);

      return ebb_fail_null (error, EBB_ERROR_SHAPE,
                            "parallel_gather: the shard of rank %u of %u has shape %s; of %" G_GINT64_FORMAT
                            " elements along dimension %d it must have %" G_GINT64_FORMAT,
                            ebb_process_group_get_rank (group), ebb_process_group_get_size (group), shape, n, dim,
                            get_count (group, n));
    }
  if (is_alone (group))
    return pass (x, error);
  return finish_along (sum_gradient ? &op_gather_summing : &op_gather, x, dim, n, n, group, error);
}

/* Fails on all ranks alike if the shards have other sizes than an even division gives. */
static gboolean
check_sizes (const gint64 *sizes,
             gint64 n,
             guint n_ranks,
             int dim,
             GError **error)
{
  for (guint r = 0; r < n_ranks; r++)
    {
      gint64 first, count;

      ebb_parallel_get_part (n, n_ranks, r, &first, &count);
      if (sizes[r] == count)
        continue;
      return ebb_fail (error, EBB_ERROR_SHAPE,
                       "parallel_gather: rank %u of %u has %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT
                       " elements along dimension %d; they must be divided evenly, so that it has %" G_GINT64_FORMAT,
                       r, n_ranks, sizes[r], n, dim, count);
    }
  return TRUE;
}

/* Exchanges how many elements each rank has, and sums them. */
static gboolean
sum_sizes (gint64 own,
           int dim,
           EbbProcessGroup *group,
           gint64 *sum,
           GError **error)
{
  const guint n_ranks = ebb_process_group_get_size (group);
  g_autoptr (EbbTensor) sizes = ebb_process_group_exchange (group, &own, 1, NULL, EBB_DTYPE_I64, error);

  if (sizes == NULL)
    return FALSE;
  *sum = 0;
  for (guint r = 0; r < n_ranks; r++)
    if (__builtin_add_overflow (*sum, ((const gint64 *) sizes->view.data)[r], sum))
      *sum = G_MAXINT64;
  return check_sizes (sizes->view.data, *sum, n_ranks, dim, error);
}

/**
 * ebb_parallel_gather:
 * @x: (nullable): this rank's shard
 * @dim: the dimension along which the shards are joined; negative ones count from the end
 * @sum_gradient: %TRUE: the ranks share the following computation, so that the gradients are summed over the ranks and
 *   sharded (reduce_scatter); %FALSE: all compute the same, and each takes its shard of the gradient
 * @group: (nullable): the ranks; %NULL for the default group
 * @error: return location for an error
 *
 * Joins the ranks' shards along a dimension (all_gather), in the order of the ranks; they are sharded as by
 * ebb_parallel_scatter().
 *
 * With @sum_gradient an op that would save the result for backward saves this rank's shard instead, and the backward
 * pass gathers the shards again, so that a layer under sequence parallelism saves activations of 1/N of the size.
 *
 * All ranks of @group call it with tensors whose shapes differ in @dim at most. In a group of one rank it returns @x.
 *
 * Returns: (transfer full) (nullable): the full tensor, the same on all ranks; %NULL with %EBB_ERROR_INDEX if @dim is
 *   out of range, %EBB_ERROR_SHAPE for a tensor without dimensions and if the sizes of the shards are others than
 *   ebb_parallel_scatter() gives, %EBB_ERROR_PROCESS_GROUP if a rank does not come or calls something else
 */
EbbTensor *
ebb_parallel_gather (EbbTensor *x,
                     int dim,
                     gboolean sum_gradient,
                     EbbProcessGroup *group,
                     GError **error)
{
  gint64 n;

  if (!check_dim ("parallel_gather", x, &dim, error))
    return NULL;
  group = group_or_default (group);
  if (is_alone (group))
    return pass (x, error);
  if (!sum_sizes (x->view.shape[dim], dim, group, &n, error))
    return NULL;
  return ebb_parallel_gather_sized (x, dim, n, sum_gradient, group, error);
}
