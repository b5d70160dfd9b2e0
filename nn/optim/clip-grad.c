/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/optim/clip-grad-private.h"

#include "tensor/autograd/op-support-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/pointwise.h"
#include "tensor/partition-private.h"
#include "tensor/error-private.h"
#include "tensor/profile/profiler-private.h"

#include <math.h>
#include <string.h>

/* The global norm of gradients, and clipping to it, on one rank or on all that share a model. All of it is computed
 * where the gradients are: sums of gradients in f32, sums of these in f64, which i64 tensors hold. */

gboolean
ebb_check_clip (double max_norm,
                double p,
                GError **error)
{
  if (!(max_norm > 0))
    ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT,
                   "gradients can't be clipped to a norm of %g: it must be more than 0", max_norm);
  else if (!(p > 0))
    ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT,
                   "gradients can't be clipped by a norm with p = %g: p must be more than 0, as 1, 2 or infinity", p);
  return max_norm > 0 && p > 0;
}

/* |x|^p in f32, which only p other than 1, 2 and infinity take memory for; else @grad, in a type that kernels read. */
static EbbTensor *
raise_to (EbbTensor *grad,
          double p,
          GError **error)
{
  const gboolean has_kernel = p == 1 || p == 2 || isinf (p);
  g_autoptr (EbbTensor) wide = NULL;
  g_autoptr (EbbTensor) magnitude = NULL;

  if (has_kernel && grad->view.dtype != EBB_DTYPE_F16)
    return ebb_tensor_ref (grad);
  wide = ebb_cast (grad, EBB_DTYPE_F32, error);
  if (wide == NULL || has_kernel)
    return g_steal_pointer (&wide);
  magnitude = ebb_abs (wide, error);
  g_clear_pointer (&wide, ebb_tensor_unref);
  return magnitude != NULL ? ebb_pow_scalar (magnitude, p, error) : NULL;
}

/* Element @index of @parts = the part of @grad in the norm. */
static gboolean
launch_part (EbbTensor *grad,
             double p,
             EbbTensor *parts,
             gint64 index,
             GError **error)
{
  static const gint64 ones[EBB_MAX_DIMS] = { 1, 1, 1, 1, 1, 1, 1, 1 };
  guint n_dims = (guint) grad->view.n_dims;
  g_autoptr (EbbTensor) x = raise_to (grad, p, error);
  g_autoptr (EbbTensor) part = ebb_tensor_new_view (parts->storage, index, ones, NULL, n_dims, EBB_DTYPE_F32);
  EbbReduceKind op = p == 2 ? EBB_REDUCE_SUM_SQUARES : isinf (p) ? EBB_REDUCE_MAX_ABS
                                                                 : EBB_REDUCE_SUM_ABS;
  const EbbKernelParams params = { .reduce = { .op = op, .dims = (1u << n_dims) - 1 } };

  return x != NULL && EBB_LAUNCH (EBB_KERNEL_REDUCE, &params, 1, error, x, part);
}

/* A parameter may be split twice: into parts by tensor parallelism, and these among ranks with other data. The parts of
 * all that are split over the same ranks go together, so that there is one call for each such group. */
typedef struct
{
  EbbTensor **parameters;
  guint n_parameters;
  double p;
  EbbDevice *device; /* of the first gradient */
  GPtrArray *splits; /* data ranks that have shards; NULL: full parameters. In the order of the parameters */
  GPtrArray *groups; /* of tensor-parallel ranks; NULL: the one of full parameters, which comes first */
  EbbTensor *parts;  /* f32 [gradients]: those of one split and group follow each other */
  EbbTensor *sums;   /* f64 [splits, groups] */
} Norm;

static gpointer
get_split (EbbTensor *parameter)
{
  EbbParameterOwner *owner = parameter->owner;

  return owner == NULL || owner->funcs->get_shard_group == NULL ? NULL : owner->funcs->get_shard_group (owner);
}

static gpointer
get_ranks (EbbTensor *parameter)
{
  EbbPartition *partition = parameter->partition;

  return partition == NULL || partition->n_parts == 1 ? NULL : partition->ranks;
}

static void
add_new (GPtrArray *array,
         gpointer ranks)
{
  if (!g_ptr_array_find (array, ranks, NULL))
    g_ptr_array_add (array, ranks);
}

static void
norm_init (Norm *self,
           EbbTensor **parameters,
           guint n_parameters,
           double p)
{
  *self = (Norm){ parameters, n_parameters, p, NULL, g_ptr_array_new (), g_ptr_array_new (), NULL, NULL };
  g_ptr_array_add (self->groups, NULL);
  for (guint i = 0; i < n_parameters; i++)
    {
      add_new (self->splits, get_split (parameters[i]));
      add_new (self->groups, get_ranks (parameters[i]));
      if (self->device == NULL && parameters[i]->grad != NULL)
        self->device = parameters[i]->grad->storage->device;
    }
  if (self->splits->len == 0)
    g_ptr_array_add (self->splits, NULL);
  if (self->device == NULL)
    self->device = n_parameters > 0 ? parameters[0]->storage->device : ebb_device_get_cpu ();
}

static void
norm_clear (Norm *self)
{
  g_ptr_array_unref (self->splits);
  g_ptr_array_unref (self->groups);
  g_clear_pointer (&self->parts, ebb_tensor_unref);
  g_clear_pointer (&self->sums, ebb_tensor_unref);
}

/* -- the parts ----------------------------------------------------------------------------------------------------- */

/* Gradients whose squares one launch sums, into parts that follow each other. */
typedef struct
{
  GArray *items;
  EbbDType dtype;
  gint64 first;
} Batch;

static gboolean
batch_takes (EbbTensor *grad,
             const Norm *self)
{
  return self->p == 2 && grad->storage->device == self->device && ebb_view_is_contiguous (&grad->view)
         && (grad->view.dtype == EBB_DTYPE_F32 || grad->view.dtype == EBB_DTYPE_BF16);
}

static gboolean
batch_launch (Batch *batch,
              Norm *self,
              GError **error)
{
  const gint64 n = batch->items->len;
  g_autoptr (EbbTensor) to = NULL;
  EbbLaunch launch;

  if (n == 0)
    return TRUE;
  to = ebb_tensor_new_view (self->parts->storage, batch->first, &n, NULL, 1, EBB_DTYPE_F32);
  ebb_launch_init (&launch, EBB_KERNEL_SQUARED_NORM);
  launch.params.squared_norm.dtype = batch->dtype;
  launch.n_items = batch->items->len;
  launch.items = (const EbbLaunchItem *) (void *) batch->items->data;
  ebb_launch_output (&launch, to);
  if (!ebb_launch (self->device, &launch, error))
    return FALSE;
  g_array_set_size (batch->items, 0);
  return TRUE;
}

/* Part @index, of @grad, which may be on another device. */
static gboolean
add_part (Norm *self,
          Batch *batch,
          EbbTensor *grad,
          gint64 index,
          GError **error)
{
  g_autoptr (EbbTensor) near = NULL;

  if (batch_takes (grad, self))
    {
      const EbbLaunchItem item = { .data = { grad->view.data }, .n_elements = grad->n_elements };

      if (batch->items->len > 0 && batch->dtype != grad->view.dtype && !batch_launch (batch, self, error))
        return FALSE;
      if (batch->items->len == 0)
        batch->first = index;
      batch->dtype = grad->view.dtype;
      g_array_append_val (batch->items, item);
      return TRUE;
    }
  near = ebb_to_device (grad, self->device, error);
  return near != NULL && batch_launch (batch, self, error) && launch_part (near, self->p, self->parts, index, error);
}

/* Gradients of @split and @group; *@n counts all parts. */
static gboolean
add_parts (Norm *self,
           Batch *batch,
           gpointer split,
           gpointer group,
           gint64 *n,
           GError **error)
{
  for (guint i = 0; i < self->n_parameters; i++)
    {
      EbbTensor *parameter = self->parameters[i];

      if (parameter->grad != NULL && parameter->grad->n_elements > 0 && get_split (parameter) == split
          && get_ranks (parameter) == group && !add_part (self, batch, parameter->grad, (*n)++, error))
        return FALSE;
    }
  return TRUE;
}

/* -- their sums ---------------------------------------------------------------------------------------------------- */

/* @to, f64 with @n columns at @to_first of @to_storage = the sums over the rows of @from. */
static gboolean
launch_sum (Norm *self,
            const EbbView *from,
            EbbTensor *to,
            GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_NORM_SUM);
  launch.params.norm_sum.max = isinf (self->p) != 0;
  launch.inputs[launch.n_inputs++] = from;
  ebb_launch_output (&launch, to);
  return ebb_launch (self->device, &launch, error);
}

static EbbView
view_matrix (EbbTensor *tensor,
             gint64 first,
             gint64 rows,
             gint64 columns)
{
  EbbView view = tensor->view;

  view.data = (char *) view.data + (gsize) first * ebb_dtype_get_size (view.dtype);
  view.n_dims = 2;
  view.shape[0] = rows;
  view.shape[1] = columns;
  view.strides[0] = columns;
  view.strides[1] = 1;
  return view;
}

/* The sums of one split, over its ranks: they are asked for even where this rank has nothing to add, since the others
 * wait for it. */
static gboolean
reduce_split (Norm *self,
              gpointer split,
              EbbTensor *sums,
              GError **error)
{
  EbbParameterOwner *owner = NULL;

  for (guint i = 0; owner == NULL; i++)
    if (get_split (self->parameters[i]) == split)
      owner = self->parameters[i]->owner;
  return owner->funcs->reduce_over_shards (owner, isinf (self->p) ? EBB_REDUCE_MAX : EBB_REDUCE_SUM, sums, error);
}

static gboolean
sum_split (Norm *self,
           Batch *batch,
           guint split,
           gint64 *n,
           GError **error)
{
  const gint64 n_groups = self->groups->len, one = 1;
  gpointer ranks = g_ptr_array_index (self->splits, split);
  g_autoptr (EbbTensor) sums = NULL;

  for (guint group = 0; group < n_groups; group++)
    {
      const gint64 first = *n, place = split * n_groups + group;
      g_autoptr (EbbTensor) sum = ebb_tensor_new_view (self->sums->storage, place, &one, NULL, 1, EBB_DTYPE_I64);
      EbbView parts;

      if (!add_parts (self, batch, ranks, g_ptr_array_index (self->groups, group), n, error))
        return FALSE;
      if (*n == first)
        {
          if (!ebb_launch_fill (sum, 0, error))
            return FALSE;
          continue;
        }
      parts = view_matrix (self->parts, first, *n - first, 1);
      if (!batch_launch (batch, self, error) || !launch_sum (self, &parts, sum, error))
        return FALSE;
    }
  if (ranks == NULL)
    return TRUE;
  sums = ebb_tensor_new_view (self->sums->storage, split * n_groups, &n_groups, NULL, 1, EBB_DTYPE_I64);
  return reduce_split (self, ranks, sums, error);
}

/* Over tensor-parallel ranks, from the totals of groups, f64 [groups]. What comes from elsewhere, of full parameters
 * too, is counted by the first of them alone, so that all have the same bits. Returns f64 [1]. */
static EbbTensor *
reduce_partitions (Norm *self,
                   EbbTensor *totals,
                   GError **error)
{
  const gint64 one = 1, two = 2;
  g_autoptr (EbbTensor) total = ebb_tensor_new_view (totals->storage, totals->offset, &one, NULL, 1, EBB_DTYPE_I64);

  for (guint group = 1; group < self->groups->len; group++)
    {
      EbbPartition *partition = NULL;
      g_autoptr (EbbTensor) pair = ebb_tensor_new_uninitialized (&two, 1, EBB_DTYPE_I64, self->device, error);
      g_autoptr (EbbTensor) own = NULL;
      g_autoptr (EbbTensor) first = NULL;
      g_autoptr (EbbTensor) second = NULL;
      EbbView rows;

      for (guint i = 0; partition == NULL; i++)
        if (get_ranks (self->parameters[i]) == g_ptr_array_index (self->groups, group))
          partition = self->parameters[i]->partition;
      if (pair == NULL)
        return NULL;
      own = ebb_tensor_new_view (totals->storage, totals->offset + group, &one, NULL, 1, EBB_DTYPE_I64);
      first = ebb_tensor_new_view (pair->storage, 0, &one, NULL, 1, EBB_DTYPE_I64);
      second = ebb_tensor_new_view (pair->storage, 1, &one, NULL, 1, EBB_DTYPE_I64);
      if (!ebb_launch_copy (own, first, error)
          || !(partition->index == 0 ? ebb_launch_copy (total, second, error) : ebb_launch_fill (second, 0, error)))
        return NULL;
      ebb_tensor_unref (total);
      total = ebb_tensor_new_uninitialized (&one, 1, EBB_DTYPE_I64, self->device, error);
      rows = view_matrix (pair, 0, 2, 1);
      if (total == NULL || !launch_sum (self, &rows, total, error)
          || !partition->funcs->reduce (partition, isinf (self->p) ? EBB_REDUCE_MAX : EBB_REDUCE_SUM, total, error))
        return NULL;
    }
  return g_steal_pointer (&total);
}

/* The sum of all |x|^p, or the largest |x|: f64 [1]. */
static EbbTensor *
sum_all (Norm *self,
         GError **error)
{
  const gint64 n_parts = (gint64) self->n_parameters + 1, n_groups = self->groups->len;
  const gint64 n_sums = (gint64) self->splits->len * n_groups;
  Batch batch = { NULL };
  g_autoptr (EbbTensor) totals = NULL;
  gint64 n = 0;
  gboolean ok;

  self->parts = ebb_tensor_new_uninitialized (&n_parts, 1, EBB_DTYPE_F32, self->device, error);
  if (self->parts == NULL
      || (self->sums = ebb_tensor_new_uninitialized (&n_sums, 1, EBB_DTYPE_I64, self->device, error)) == NULL)
    return NULL;
  batch.items = g_array_new (FALSE, FALSE, sizeof (EbbLaunchItem));
  ok = TRUE;
  for (guint split = 0; ok && split < self->splits->len; split++)
    ok = sum_split (self, &batch, split, &n, error);
  g_array_unref (batch.items);
  if (!ok)
    return NULL;
  if (self->splits->len == 1)
    totals = ebb_tensor_ref (self->sums);
  else
    {
      const EbbView rows = view_matrix (self->sums, 0, self->splits->len, n_groups);

      totals = ebb_tensor_new_uninitialized (&n_groups, 1, EBB_DTYPE_I64, self->device, error);
      if (totals == NULL || !launch_sum (self, &rows, totals, error))
        return NULL;
    }
  return reduce_partitions (self, totals, error);
}

/* -- the norm ------------------------------------------------------------------------------------------------------ */

/* What other ranks have to add to gradients comes first, in the same order on all of them. */
static gboolean
settle (EbbTensor **parameters,
        guint n_parameters,
        GError **error)
{
  for (guint i = 0; i < n_parameters; i++)
    if (!ebb_parameter_finalize (parameters[i], error))
      return FALSE;
  return TRUE;
}

static EbbTensor *
find_factor (Norm *self,
             double max_norm,
             const EbbGradScale *scale,
             EbbTensor **factor,
             GError **error)
{
  const EbbKernelParams params = { .clip = { scale->scale, max_norm, self->p } };
  const gint64 one = 1;
  g_autoptr (EbbTensor) total = sum_all (self, error);
  g_autoptr (EbbTensor) earlier = NULL;
  g_autoptr (EbbTensor) norm = NULL;
  g_autoptr (EbbTensor) result = NULL;

  if (total == NULL
      || (norm = ebb_tensor_new_uninitialized (NULL, 0, EBB_DTYPE_F32, self->device, error)) == NULL
      || (result = ebb_tensor_new_uninitialized (&one, 1, EBB_DTYPE_F32, self->device, error)) == NULL
      || (scale->factor != NULL && (earlier = ebb_to_device (scale->factor, self->device, error)) == NULL)
      || !EBB_LAUNCH (EBB_KERNEL_CLIP_FACTOR, &params, 2, error, total, earlier, norm, result))
    return NULL;
  *factor = g_steal_pointer (&result);
  return g_steal_pointer (&norm);
}

EbbTensor *
ebb_compute_grad_norm (EbbTensor **parameters,
                       guint n_parameters,
                       double p,
                       double max_norm,
                       const EbbGradScale *scale,
                       EbbTensor **factor,
                       GError **error)
{
  EbbProfileMark mark = ebb_profile_push_range ("gradient norm", EBB_PHASE_OPTIMIZER);
  EbbTensor *norm = NULL;
  Norm self;

  ebb_push_grad_enabled (FALSE);
  if (settle (parameters, n_parameters, error))
    {
      norm_init (&self, parameters, n_parameters, p);
      norm = find_factor (&self, max_norm, scale, factor, error);
      norm_clear (&self);
    }
  ebb_pop_grad_enabled ();
  ebb_profile_pop (mark);
  return norm;
}

/**
 * ebb_clip_grad_norm:
 * @parameters: (array length=n_parameters): the parameters
 * @n_parameters: how many
 * @max_norm: the largest norm, more than 0
 * @error: return location for an error
 *
 * Scales the gradients of @parameters in place so that their global norm, the root of the sum of all squares, is at
 * most @max_norm (Pascanu et al., "On the difficulty of training recurrent neural networks", 2013):
 * ebb_clip_grad_p_norm() with p = 2. ebb_optimizer_clip_grad_norm() does the same without a second pass over the
 * gradients.
 *
 * Returns: (transfer full) (nullable): the norm before clipping, as ebb_clip_grad_p_norm() gives it; %NULL with
 *   %EBB_ERROR_INVALID_ARGUMENT if @max_norm makes no sense
 */
EbbTensor *
ebb_clip_grad_norm (EbbTensor **parameters,
                    guint n_parameters,
                    double max_norm,
                    GError **error)
{
  return ebb_clip_grad_p_norm (parameters, n_parameters, max_norm, 2, error);
}

/* FALSE: nothing changes, which the host sees without waiting. */
static gboolean
changes_gradients (EbbTensor *factor)
{
  return !factor->storage->device->backend->host_memory || factor->storage->no_data
         || *(const float *) factor->view.data != 1.0f;
}

static gboolean
scale_grad (EbbTensor *grad,
            EbbTensor *factor,
            GError **error)
{
  g_autoptr (EbbTensor) near = ebb_to_device (factor, grad->storage->device, error);
  g_autoptr (EbbTensor) wide = NULL;

  if (near == NULL)
    return FALSE;
  if (grad->view.dtype != EBB_DTYPE_F16)
    return ebb_tensor_scale_by (grad, near, error);
  /* No kernel computes in it. */
  wide = ebb_cast (grad, EBB_DTYPE_F32, error);
  return wide != NULL && ebb_tensor_scale_by (wide, near, error) && ebb_tensor_copy_from (grad, wide, error);
}

/**
 * ebb_clip_grad_p_norm:
 * @parameters: (array length=n_parameters): the parameters
 * @n_parameters: how many
 * @max_norm: the largest norm, more than 0
 * @p: which norm, more than 0; infinity: the largest absolute value
 * @error: return location for an error
 *
 * Scales the gradients of @parameters in place so that their global p-norm, (sum of all |x|^p)^(1/p), is @max_norm at
 * most, by the factor @max_norm / (norm + 1e-6). If the norm is not finite, nothing is changed. Parameters without a
 * gradient are passed over. Of parameters that are split over ranks, by ebb_fully_shard(), ebb_parallelize() or both,
 * it is the norm of the whole gradients: all ranks call this together, and get the same norm, bit for bit. Powers are
 * taken in f32, for p other than 1, 2 and infinity in memory of twice the largest gradient.
 *
 * The norm is a tensor of one element on the device of the first gradient, so that nobody waits for it:
 * ebb_tensor_get_item() does.
 *
 * Returns: (transfer full) (nullable): the norm before clipping, f32 []; not finite if a gradient is not. %NULL with
 *   %EBB_ERROR_INVALID_ARGUMENT if @max_norm or @p makes no sense
 */
EbbTensor *
ebb_clip_grad_p_norm (EbbTensor **parameters,
                      guint n_parameters,
                      double max_norm,
                      double p,
                      GError **error)
{
  const EbbGradScale none = { 1, NULL };
  g_autoptr (EbbTensor) norm = NULL;
  g_autoptr (EbbTensor) factor = NULL;
  EbbProfileMark mark;
  gboolean ok = TRUE;

  if ((error != NULL && *error != NULL) || (n_parameters > 0 && !EBB_MAY_BEGIN (error, parameters)))
    return NULL;
  for (guint i = 0; i < n_parameters; i++)
    if (!ebb_may_begin (error, G_STRFUNC, "a parameter", (const gconstpointer[]){ parameters[i] }, 1))
      return NULL;
  if (!ebb_check_clip (max_norm, p, error))
    return NULL;
  norm = ebb_compute_grad_norm (parameters, n_parameters, p, max_norm, &none, &factor, error);
  if (norm == NULL)
    return NULL;
  if (!changes_gradients (factor))
    return g_steal_pointer (&norm);
  mark = ebb_profile_push_range ("gradient clipping", EBB_PHASE_OPTIMIZER);
  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; ok && i < n_parameters; i++)
    if (parameters[i]->grad != NULL)
      ok = scale_grad (parameters[i]->grad, factor, error);
  ebb_pop_grad_enabled ();
  ebb_profile_pop (mark);
  return ok ? g_steal_pointer (&norm) : NULL;
}
