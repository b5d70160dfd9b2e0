/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* What stands in for an op's operand: a contiguous copy, a cast, which parameters keep, an expanded view. */
#include "tensor/autograd/op-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/thread-private.h"

/* -- converting ---------------------------------------------------------------------------------------------------- */

static gboolean
convert_into (EbbTensor *tensor,
              EbbTensor *copy,
              GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_COPY);
  ebb_launch_input (&launch, tensor);
  ebb_launch_output (&launch, copy);
  return ebb_launch (tensor->storage->device, &launch, error);
}

EbbTensor *
ebb_tensor_convert (EbbTensor *tensor,
                    EbbDType dtype,
                    GError **error)
{
  EbbTensor *copy = ebb_tensor_new_uninitialized (tensor->view.shape, (guint) tensor->view.n_dims, dtype,
                                                  tensor->storage->device, error);

  if (copy != NULL && !convert_into (tensor, copy, error))
    g_clear_pointer (&copy, ebb_tensor_unref);
  return copy;
}

static gboolean
can_overwrite (EbbTensor *shadow,
               EbbTensor *parameter,
               EbbDType dtype)
{
  return !ebb_modes.stopped && !shadow->storage->placeholder && shadow->view.dtype == dtype
         && shadow->storage->device == parameter->storage->device
         && ebb_shapes_equal (&shadow->view, &parameter->view)
         && ebb_tensor_is_unshared (shadow);
}

EbbTensor *
ebb_tensor_get_shadow (EbbTensor *parameter,
                       EbbDType dtype,
                       GError **error)
{
  EbbStorage *storage = parameter->storage;
  EbbTensor *shadow = parameter->shadow;

  if (shadow != NULL && shadow->view.dtype == dtype && parameter->shadow_birth == storage->birth
      && parameter->shadow_version == storage->version && !shadow->storage->placeholder)
    return ebb_tensor_ref (shadow);

  /* Over the old one if nobody looks at it: so that a step leaves the heap as it found it. */
  if (shadow != NULL && can_overwrite (shadow, parameter, dtype))
    {
      if (!convert_into (parameter, shadow, error))
        return NULL;
      parameter->shadow_birth = storage->birth;
      parameter->shadow_version = storage->version;
      return ebb_tensor_ref (shadow);
    }
  shadow = ebb_tensor_convert (parameter, dtype, error);
  if (shadow == NULL)
    return NULL;
  if (!shadow->storage->placeholder)
    ebb_storage_set_purpose (shadow->storage, EBB_PURPOSE_PARAMETER);
  if (parameter->shadow != NULL)
    ebb_tensor_unref (parameter->shadow);
  parameter->shadow = ebb_tensor_ref (shadow);
  parameter->shadow_birth = storage->birth;
  parameter->shadow_version = storage->version;
  return shadow;
}

/* -- standing in --------------------------------------------------------------------------------------------------- */

static void
stand_in (EbbOpCall *call,
          guint index,
          EbbTensor *tensor)
{
  g_assert (call->n_temporaries < EBB_OP_MAX_INPUTS);

  /* A parameter's copy is one for all threads; what saves it keeps the parameter. */
  if (!call->inputs[index]->is_parameter)
    tensor->is_local_shard = call->inputs[index]->is_local_shard;
  call->inputs[index] = tensor;
  call->temporaries[call->n_temporaries++] = tensor;
}

gboolean
ebb_op_contiguous (EbbOpCall *call,
                   guint index,
                   GError **error)
{
  EbbTensor *input = call->inputs[index], *copy;

  if (input == NULL || ebb_view_is_contiguous (&input->view))
    return TRUE;
  copy = ebb_tensor_convert (input, input->view.dtype, error);
  if (copy == NULL)
    return ebb_op_clear (call);
  stand_in (call, index, copy);
  return TRUE;
}

static __thread EbbSharedCast *shared_casts;

void
ebb_shared_cast_begin (EbbSharedCast *self,
                       EbbTensor *input)
{
  *self = (EbbSharedCast){ .input = input, .frame = ebb_modes.frame, .outer = shared_casts };
  shared_casts = self;
}

void
ebb_shared_cast_end (EbbSharedCast *self)
{
  shared_casts = self->outer;
  g_clear_pointer (&self->copy, ebb_tensor_unref);
}

static EbbTensor *
convert_shared (EbbTensor *input,
                EbbDType dtype,
                GError **error)
{
  EbbSharedCast *shared = shared_casts;

  while (shared != NULL && (shared->input != input || shared->frame != ebb_modes.frame))
    shared = shared->outer;
  if (shared == NULL)
    return ebb_tensor_convert (input, dtype, error);
  if (shared->copy == NULL || shared->copy->view.dtype != dtype || shared->version != input->storage->version
      || shared->birth != input->storage->birth)
    {
      g_clear_pointer (&shared->copy, ebb_tensor_unref);
      shared->copy = ebb_tensor_convert (input, dtype, error);
      shared->version = input->storage->version;
      shared->birth = input->storage->birth;
    }
  return shared->copy != NULL ? ebb_tensor_ref (shared->copy) : NULL;
}

gboolean
ebb_op_cast (EbbOpCall *call,
             guint index,
             EbbDType dtype,
             GError **error)
{
  EbbTensor *input = call->inputs[index], *copy;

  if (input == NULL || input->view.dtype == dtype)
    return TRUE;
  copy = input->is_parameter ? ebb_tensor_get_shadow (input, dtype, error) : convert_shared (input, dtype, error);
  if (copy == NULL)
    return ebb_op_clear (call);
  stand_in (call, index, copy);
  return TRUE;
}

void
ebb_op_expand (EbbOpCall *call,
               guint index,
               const gint64 *shape,
               guint n_dims)
{
  EbbTensor *input = call->inputs[index];
  gint64 strides[EBB_MAX_DIMS] = { 0 };
  guint lead = n_dims - (guint) input->view.n_dims;

  if (ebb_view_has_shape (&input->view, shape, n_dims))
    return;
  for (guint i = lead; i < n_dims; i++)
    strides[i] = input->view.shape[i - lead] == 1 ? 0 : input->view.strides[i - lead];
  stand_in (call, index,
            ebb_tensor_new_view (input->storage, input->offset, shape, strides, n_dims, input->view.dtype));
}
