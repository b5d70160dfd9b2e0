/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/clip-grad-private.h"

#include "tensor/keeper-private.h"
#include "tensor/op-private.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/pointwise.h"
#include "tensor/partition-private.h"
#include "tensor/profiler-private.h"

#include <math.h>

gboolean
ebb_check_max_norm (double max_norm,
                    GError **error)
{
  if (max_norm > 0 && !isnan (max_norm))
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "gradients can't be clipped to a norm of %g: it must be more than 0", max_norm);
  return FALSE;
}

double
ebb_get_clip_factor (double norm,
                     double max_norm)
{
  double factor = max_norm / (norm + 1e-6);

  return isfinite (norm) && factor < 1 ? factor : 1;
}

/* Element @index of @sums = the sum of squares of @grad. */
static gboolean
launch_sum_of_squares (EbbTensor *grad,
                       EbbTensor *sums,
                       gint64 index,
                       GError **error)
{
  static const gint64 ones[EBB_MAX_DIMS] = { 1, 1, 1, 1, 1, 1, 1, 1 };
  guint n_dims = (guint) grad->view.n_dims;
  g_autoptr (EbbTensor) cast = grad->view.dtype == EBB_DTYPE_F16 ? ebb_cast (grad, EBB_DTYPE_F32, error) : NULL;
  g_autoptr (EbbTensor) sum = ebb_tensor_new_view (sums->storage, index, ones, NULL, n_dims, EBB_DTYPE_F32);
  EbbLaunch launch;

  if (grad->view.dtype == EBB_DTYPE_F16 && cast == NULL)
    return FALSE;
  ebb_launch_init (&launch, EBB_KERNEL_REDUCE);
  ebb_launch_input (&launch, cast ? cast : grad);
  ebb_launch_output (&launch, sum);
  launch.params.reduce.op = EBB_REDUCE_SUM_SQUARES;
  launch.params.reduce.dims = (1u << n_dims) - 1;
  return ebb_launch (grad->storage->device, &launch, error);
}

/* Fills @squares for all gradients on the device of the one at @first; those are marked as done. One copy to the host.
 */
static gboolean
sum_device (EbbTensor **parameters,
            guint n_parameters,
            guint first,
            double *squares,
            gboolean *done,
            GError **error)
{
  EbbDevice *device = parameters[first]->grad->storage->device;
  gint64 n = n_parameters - first;
  g_autoptr (EbbTensor) sums = ebb_tensor_new_uninitialized (&n, 1, EBB_DTYPE_F32, device, error);
  g_autoptr (EbbTensor) host = NULL;
  const float *values;

  if (sums == NULL)
    return FALSE;
  for (guint i = first; i < n_parameters; i++)
    if (!done[i] && parameters[i]->grad->storage->device == device && parameters[i]->grad->n_elements > 0
        && !launch_sum_of_squares (parameters[i]->grad, sums, i - first, error))
      return FALSE;
  host = ebb_to_device (sums, ebb_device_get_cpu (), error);
  values = ebb_tensor_get_data (host, error);
  if (values == NULL)
    return FALSE;
  for (guint i = first; i < n_parameters; i++)
    if (!done[i] && parameters[i]->grad->storage->device == device)
      {
        squares[i] = parameters[i]->grad->n_elements > 0 ? values[i - first] : 0;
        done[i] = TRUE;
      }
  return TRUE;
}

/* A parameter may be split twice: into parts by tensor parallelism, and these among ranks with other data. The sums of
 * squares of all that are split over the same ranks go together, so that there is one call for each such group. */
typedef struct
{
  EbbTensor **parameters;
  guint n_parameters;
  const double *squares; /* [n_parameters] */
  GPtrArray *groups;     /* of tensor-parallel ranks; NULL: the one of whole parameters, which comes first */
  double *sums;          /* [groups] */
} Norm;

static gpointer
get_split (EbbTensor *parameter)
{
  EbbKeeper *keeper = parameter->keeper;

  return keeper == NULL || keeper->funcs->get_split == NULL ? NULL : keeper->funcs->get_split (keeper);
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
  self->sums = g_new0 (double, self->groups->len);
}

/* Adds the squares of all parameters that are split over the same data ranks as the one at @first, on all of these.
 * They are asked for even where this rank has nothing to add: the others wait for it. */
static gboolean
sum_split (Norm *self,
           guint first,
           GError **error)
{
  EbbKeeper *keeper = self->parameters[first]->keeper;
  gpointer split = get_split (self->parameters[first]);
  g_autofree double *sums = g_new0 (double, self->groups->len);

  for (guint i = 0; i < first; i++)
    if (get_split (self->parameters[i]) == split)
      return TRUE;
  for (guint i = first; i < self->n_parameters; i++)
    {
      guint group = 0;

      if (get_split (self->parameters[i]) != split)
        continue;
      g_ptr_array_find (self->groups, get_ranks (self->parameters[i]), &group);
      sums[group] += self->squares[i];
    }
  if (split != NULL && !keeper->funcs->sum_over_split (keeper, sums, self->groups->len, error))
    return FALSE;
  for (guint group = 0; group < self->groups->len; group++)
    self->sums[group] += sums[group];
  return TRUE;
}

/* Over tensor-parallel ranks. What comes from elsewhere, whole parameters' sums too, is counted by the first of them
 * alone, so that all have the same bits. */
static gboolean
sum_parts (Norm *self,
           double *total,
           GError **error)
{
  *total = self->sums[0];
  for (guint group = 1; group < self->groups->len; group++)
    {
      EbbPartition *partition = NULL;

      for (guint i = 0; partition == NULL; i++)
        if (get_ranks (self->parameters[i]) == g_ptr_array_index (self->groups, group))
          partition = self->parameters[i]->partition;
      *total = self->sums[group] + (partition->index == 0 ? *total : 0);
      if (!partition->funcs->sum (partition, total, 1, error))
        return FALSE;
    }
  return TRUE;
}

static gboolean
sum_all (EbbTensor **parameters,
         guint n_parameters,
         const double *squares,
         double *total,
         GError **error)
{
  Norm self = { parameters, n_parameters, squares, g_ptr_array_new (), NULL };
  gboolean ok = TRUE;

  find_groups (&self);
  for (guint i = 0; ok && i < n_parameters; i++)
    ok = sum_split (&self, i, error);
  ok = ok && sum_parts (&self, total, error);
  g_ptr_array_unref (self.groups);
  g_free (self.sums);
  return ok;
}

/* What other ranks have to add to gradients comes first, in the same order on all of them. */
static gboolean
settle (EbbTensor **parameters,
        guint n_parameters,
        GError **error)
{
  for (guint i = 0; i < n_parameters; i++)
    if (!ebb_parameter_settle (parameters[i], error))
      return FALSE;
  return TRUE;
}

gboolean
ebb_compute_grad_norm (EbbTensor **parameters,
                       guint n_parameters,
                       double *norm,
                       GError **error)
{
  g_autofree double *squares = g_new0 (double, n_parameters + 1);
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
      ok = sum_device (parameters, n_parameters, i, squares, done, error);
  ebb_pop_grad_enabled ();
  ok = ok && sum_all (parameters, n_parameters, squares, &total, error);
  *norm = sqrt (total);
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
 * most
 * @max_norm (Pascanu et al., "On the difficulty of training recurrent neural networks", 2013): the factor is @max_norm
 * / (norm + 1e-6). If the norm is not finite, nothing is changed. Parameters without a gradient are passed over. Of
 * parameters that are split over ranks, by ebb_fully_shard(), ebb_parallelize() or both, it is the norm of the whole
 * gradients: all ranks call this together, and get the same norm, bit for bit.
 * ebb_optimizer_clip_grad_norm() does the same without a second pass over the gradients.
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
  EbbProfileMark mark;
  double total, factor;
  gboolean ok = TRUE;

  if (norm != NULL)
    *norm = 0;
  if ((error != NULL && *error != NULL) || (parameters == NULL && n_parameters > 0))
    return FALSE;
  for (guint i = 0; i < n_parameters; i++)
    if (parameters[i] == NULL)
      return FALSE;
  if (!ebb_check_max_norm (max_norm, error) || !ebb_compute_grad_norm (parameters, n_parameters, &total, error))
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
