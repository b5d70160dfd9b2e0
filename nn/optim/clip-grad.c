/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/optim/clip-grad-private.h"

#include "tensor/autograd/op-support-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/pointwise.h"
#include "tensor/partition-private.h"
#include "tensor/error-private.h"
#include "tensor/profile/profiler-private.h"

#include <math.h>

/* The global norm of gradients, and clipping to it, on one rank or on all that share a model. */

gboolean
ebb_check_clip (double max_norm,
                double p,
                GError **error)
{
  if (!(max_norm > 0))
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                 "gradients can't be clipped to a norm of %g: it must be more than 0", max_norm);
  else if (!(p > 0))
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                 "gradients can't be clipped by a norm with p = %g: p must be more than 0, as 1, 2 or infinity", p);
  return max_norm > 0 && p > 0;
}

double
ebb_get_clip_factor (double norm,
                     double max_norm)
{
  double factor = max_norm / (norm + 1e-6);

  return isfinite (norm) && factor < 1 ? factor : 1;
}

/* How the parts of a norm make the whole: the sum of |x|^p, or the largest |x| where p is infinite. */
static EbbReduceKind
get_reduction (double p)
{
  return isinf (p) ? EBB_REDUCE_MAX : EBB_REDUCE_SUM;
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

/* Fills @parts for all gradients on the device of the one at @first; those are marked as done. One copy to the host. */
static gboolean
reduce_device (EbbTensor **parameters,
               guint n_parameters,
               double p,
               guint first,
               double *parts,
               gboolean *done,
               GError **error)
{
  EbbDevice *device = parameters[first]->grad->storage->device;
  gint64 n = n_parameters - first;
  g_autoptr (EbbTensor) results = ebb_tensor_new_uninitialized (&n, 1, EBB_DTYPE_F32, device, error);
  g_autoptr (EbbTensor) host = NULL;
  const float *values;

  if (results == NULL)
    return FALSE;
  for (guint i = first; i < n_parameters; i++)
    if (!done[i] && parameters[i]->grad->storage->device == device && parameters[i]->grad->n_elements > 0
        && !launch_part (parameters[i]->grad, p, results, i - first, error))
      return FALSE;
  host = ebb_to_device (results, ebb_device_get_cpu (), error);
  values = ebb_tensor_get_data (host, error);
  if (values == NULL)
    return FALSE;
  for (guint i = first; i < n_parameters; i++)
    if (!done[i] && parameters[i]->grad->storage->device == device)
      {
        parts[i] = parameters[i]->grad->n_elements > 0 ? values[i - first] : 0;
        done[i] = TRUE;
      }
  return TRUE;
}

/* A parameter may be split twice: into parts by tensor parallelism, and these among ranks with other data. The parts of
 * all that are split over the same ranks go together, so that there is one call for each such group. */
typedef struct
{
  EbbTensor **parameters;
  guint n_parameters;
  EbbReduceKind op;
  const double *parts; /* [n_parameters] */
  GPtrArray *groups;   /* of tensor-parallel ranks; NULL: the one of full parameters, which comes first */
  double *totals;      /* [groups] */
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
find_groups (Norm *self)
{
  g_ptr_array_add (self->groups, NULL);
  for (guint i = 0; i < self->n_parameters; i++)
    if (!g_ptr_array_find (self->groups, get_ranks (self->parameters[i]), NULL))
      g_ptr_array_add (self->groups, get_ranks (self->parameters[i]));
  self->totals = g_new0 (double, self->groups->len);
}

/* Adds the parts of all parameters that are split over the same data ranks as the one at @first, on all of these.
 * They are asked for even where this rank has nothing to add: the others wait for it. */
static gboolean
reduce_split (Norm *self,
              guint first,
              GError **error)
{
  EbbParameterOwner *owner = self->parameters[first]->owner;
  gpointer split = get_split (self->parameters[first]);
  g_autofree double *values = g_new0 (double, self->groups->len);

  for (guint i = 0; i < first; i++)
    if (get_split (self->parameters[i]) == split)
      return TRUE;
  for (guint i = first; i < self->n_parameters; i++)
    {
      guint group = 0;

      if (get_split (self->parameters[i]) != split)
        continue;
      g_ptr_array_find (self->groups, get_ranks (self->parameters[i]), &group);
      values[group] = ebb_reduce_double (self->op, values[group], self->parts[i]);
    }
  if (split != NULL && !owner->funcs->reduce_over_shards (owner, self->op, values, self->groups->len, error))
    return FALSE;
  for (guint group = 0; group < self->groups->len; group++)
    self->totals[group] = ebb_reduce_double (self->op, self->totals[group], values[group]);
  return TRUE;
}

/* Over tensor-parallel ranks. What comes from elsewhere, of full parameters too, is counted by the first of them
 * alone, so that all have the same bits. */
static gboolean
reduce_partitions (Norm *self,
                   double *total,
                   GError **error)
{
  *total = self->totals[0];
  for (guint group = 1; group < self->groups->len; group++)
    {
      EbbPartition *partition = NULL;

      for (guint i = 0; partition == NULL; i++)
        if (get_ranks (self->parameters[i]) == g_ptr_array_index (self->groups, group))
          partition = self->parameters[i]->partition;
      *total = ebb_reduce_double (self->op, self->totals[group], partition->index == 0 ? *total : 0);
      if (!partition->funcs->reduce (partition, self->op, total, 1, error))
        return FALSE;
    }
  return TRUE;
}

static gboolean
reduce_all (EbbTensor **parameters,
            guint n_parameters,
            EbbReduceKind op,
            const double *parts,
            double *total,
            GError **error)
{
  Norm self = { parameters, n_parameters, op, parts, g_ptr_array_new (), NULL };
  gboolean ok = TRUE;

  find_groups (&self);
  for (guint i = 0; ok && i < n_parameters; i++)
    ok = reduce_split (&self, i, error);
  ok = ok && reduce_partitions (&self, total, error);
  g_ptr_array_unref (self.groups);
  g_free (self.totals);
  return ok;
}

/* Adds the gradients of other ranks before anything is measured, in the same order on all ranks. */
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

gboolean
ebb_compute_grad_norm (EbbTensor **parameters,
                       guint n_parameters,
                       double p,
                       double *norm,
                       GError **error)
{
  g_autofree double *parts = g_new0 (double, n_parameters + 1);
  g_autofree gboolean *done = g_new0 (gboolean, n_parameters + 1);
  EbbProfileMark mark = ebb_profile_push_range ("gradient norm", EBB_PHASE_OPTIMIZER);
  gboolean ok = TRUE;
  double total = 0;

  ebb_push_grad_enabled (FALSE);
  ok = settle (parameters, n_parameters, error);
  for (guint i = 0; i < n_parameters; i++)
    done[i] = parameters[i]->grad == NULL;
  for (guint i = 0; ok && i < n_parameters; i++)
    if (!done[i])
      ok = reduce_device (parameters, n_parameters, p, i, parts, done, error);
  ebb_pop_grad_enabled ();
  ok = ok && reduce_all (parameters, n_parameters, get_reduction (p), parts, &total, error);
  *norm = p == 2 ? sqrt (total) : p == 1 || isinf (p) ? total
                                                      : pow (total, 1 / p);
  ebb_profile_pop (mark);
  return ok;
}

/**
 * ebb_clip_grad_norm:
 * @parameters: (array length=n_parameters): the parameters
 * @n_parameters: how many
 * @max_norm: the largest norm, more than 0
 * @norm: (out) (optional): return location for the norm before clipping; not finite if a gradient is not
 * @error: return location for an error
 *
 * Scales the gradients of @parameters in place so that their global norm, the root of the sum of all squares, is at
 * most @max_norm (Pascanu et al., "On the difficulty of training recurrent neural networks", 2013):
 * ebb_clip_grad_p_norm() with p = 2. ebb_optimizer_clip_grad_norm() does the same without a second pass over the
 * gradients.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if @max_norm makes no sense
 */
gboolean
ebb_clip_grad_norm (EbbTensor **parameters,
                    guint n_parameters,
                    double max_norm,
                    double *norm,
                    GError **error)
{
  return ebb_clip_grad_p_norm (parameters, n_parameters, max_norm, 2, norm, error);
}

/**
 * ebb_clip_grad_p_norm:
 * @parameters: (array length=n_parameters): the parameters
 * @n_parameters: how many
 * @max_norm: the largest norm, more than 0
 * @p: which norm, more than 0; infinity: the largest absolute value
 * @norm: (out) (optional): return location for the norm before clipping; not finite if a gradient is not
 * @error: return location for an error
 *
 * Scales the gradients of @parameters in place so that their global p-norm, (sum of all |x|^p)^(1/p), is @max_norm at
 * most, by the factor @max_norm / (norm + 1e-6). If the norm is not finite, nothing is changed. Parameters without a
 * gradient are passed over. Of parameters that are split over ranks, by ebb_fully_shard(), ebb_parallelize() or both,
 * it is the norm of the whole gradients: all ranks call this together, and get the same norm, bit for bit. Powers are
 * taken in f32, for p other than 1, 2 and infinity in memory of twice the largest gradient.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if @max_norm or @p makes no sense
 */
gboolean
ebb_clip_grad_p_norm (EbbTensor **parameters,
                      guint n_parameters,
                      double max_norm,
                      double p,
                      double *norm,
                      GError **error)
{
  EbbProfileMark mark;
  double total, factor;
  gboolean ok = TRUE;

  if (norm != NULL)
    *norm = 0;
  if ((error != NULL && *error != NULL) || (n_parameters > 0 && !EBB_MAY_BEGIN (error, parameters)))
    return FALSE;
  for (guint i = 0; i < n_parameters; i++)
    if (!ebb_may_begin (error, G_STRFUNC, "a parameter", (const gconstpointer[]){ parameters[i] }, 1))
      return FALSE;
  if (!ebb_check_clip (max_norm, p, error) || !ebb_compute_grad_norm (parameters, n_parameters, p, &total, error))
    return FALSE;
  if (norm != NULL)
    *norm = total;
  factor = ebb_get_clip_factor (total, max_norm);
  if (factor == 1)
    return TRUE;
  mark = ebb_profile_push_range ("gradient clipping", EBB_PHASE_OPTIMIZER);
  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; ok && i < n_parameters; i++)
    if (parameters[i]->grad != NULL)
      ok = ebb_tensor_scale (parameters[i]->grad, factor, error);
  ebb_pop_grad_enabled ();
  ebb_profile_pop (mark);
  return ok;
}
