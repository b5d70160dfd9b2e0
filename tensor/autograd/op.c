/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The gate that every op passes: describes a call, checks it, runs it and records its node. */
#include "tensor/autograd/op-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "tensor/autograd/rematerialization-private.h"
#include "tensor/thread-private.h"

#include <stdarg.h>
#include <string.h>

/* -- describing a call --------------------------------------------------------------------------------------------- */

static gboolean
check_device (EbbOpCall *call,
              EbbTensor *tensor,
              GError **error)
{
  EbbDevice *device = call->n_inputs > 0 ? call->inputs[0]->storage->device : tensor->storage->device;

  if (G_UNLIKELY (ebb_storage_is_dry (tensor->storage)) && !ebb_is_dry ())
    return ebb_op_fail (call, error, EBB_ERROR_DRY_RUN,
                        "an operand is of a dry run that is over: it has no data; make the model again outside of it");
  return G_LIKELY (tensor->storage->device == device)
         || ebb_op_fail (call, error, EBB_ERROR_DEVICE, "one operand is on %s and another on %s; move one of them",
                         device->name, tensor->storage->device->name);
}

static void
add_input (EbbOpCall *call,
           EbbTensor *tensor)
{
  call->edges[call->n_inputs] = tensor;
  call->inputs[call->n_inputs] = tensor != NULL && tensor->original != NULL ? tensor->original : tensor;
  call->n_inputs++;
  if (tensor != NULL && ebb_tensor_needs_grad (tensor) && !ebb_modes.no_grad)
    call->needs_grad = TRUE;
}

gboolean
ebb_op_begin (EbbOpCall *call,
              const EbbOp *op,
              GError **error,
              guint n_inputs,
              ...)
{
  va_list list;
  gboolean ok = error == NULL || *error == NULL;

  call->op = op;
  call->n_inputs = call->n_outputs = call->n_saved = call->n_temporaries = 0;
  call->non_differentiable = call->saved_is_output = call->updated = 0;
  call->needs_grad = FALSE;
  call->rematerialize = NULL;
  call->rematerializes_operands = FALSE;
  call->device = NULL;
  call->owner = NULL;
  ebb_kernel_params_clear (&call->params);
  memset (&call->extra, 0, sizeof call->extra);
  va_start (list, n_inputs);
  for (guint i = 0; ok && i < n_inputs; i++)
    {
      EbbTensor *tensor = va_arg (list, EbbTensor *);

      if (G_UNLIKELY (tensor == NULL))
        ebb_error_set_null (error, op->name, "an operand");
      ok = tensor != NULL && check_device (call, tensor, error);
      if (ok)
        add_input (call, tensor);
    }
  va_end (list);
  return ok;
}

gboolean
ebb_op_add_optional (EbbOpCall *call,
                     EbbTensor *tensor,
                     GError **error)
{
  if (tensor != NULL && !check_device (call, tensor, error))
    return FALSE;
  add_input (call, tensor);
  return TRUE;
}

void
ebb_op_add_output (EbbOpCall *call,
                   EbbDType dtype,
                   const gint64 *shape,
                   guint n_dims)
{
  g_assert (call->n_outputs < EBB_OP_MAX_OUTPUTS);

  call->outputs[call->n_outputs++] = ebb_tensor_new_view (NULL, 0, shape, NULL, n_dims, dtype);
}

void
ebb_op_add_output_like (EbbOpCall *call,
                        EbbTensor *tensor)
{
  ebb_op_add_output (call, tensor->view.dtype, tensor->view.shape, (guint) tensor->view.n_dims);
}

void
ebb_op_save_input (EbbOpCall *call,
                   guint index)
{
  call->saved[call->n_saved++] = call->inputs[index];
}

void
ebb_op_save_output (EbbOpCall *call,
                    guint index)
{
  call->saved_is_output |= 1u << call->n_saved;
  call->saved[call->n_saved++] = call->outputs[index];
}

void
ebb_op_rematerialize_output (EbbOpCall *call,
                             guint index,
                             EbbRematerializeFunc func,
                             guint n,
                             ...)
{
  va_list list;

  g_assert (n <= EBB_MAX_REMATERIALIZE);

  call->rematerialize = func;
  call->rematerialized_output = (guint8) index;
  call->n_rematerialize = (guint8) n;
  va_start (list, n);
  for (guint i = 0; i < n; i++)
    call->rematerialize_from[i] = (gint8) va_arg (list, int);
  va_end (list);
}

static void
drop_temporaries (EbbOpCall *call)
{
  while (call->n_temporaries > 0)
    ebb_tensor_unref (call->temporaries[--call->n_temporaries]);
}

gboolean
ebb_op_clear (EbbOpCall *call)
{
  drop_temporaries (call);
  while (call->n_outputs > 0)
    ebb_tensor_unref (call->outputs[--call->n_outputs]);
  return FALSE;
}

gboolean
ebb_op_normalize_dim (EbbOpCall *call,
                      int *dim,
                      GError **error)
{
  return ebb_normalize_dim (call->op->name, dim, (guint) call->inputs[0]->view.n_dims, error) || ebb_op_clear (call);
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

/* -- running ------------------------------------------------------------------------------------------------------- */

EbbDevice *
ebb_op_call_get_device (EbbOpCall *call)
{
  if (call->n_inputs > 0)
    return call->inputs[0]->storage->device;
  return call->device ? call->device : ebb_device_get_cpu ();
}

static inline gboolean
run_kernels (EbbOpCall *call,
             EbbDevice *device,
             GError **error)
{
  EbbLaunch launch;

  if (call->op->run != NULL)
    return call->op->run (call, error);

  launch.kernel = call->op->kernel;
  launch.params = call->params;
  launch.n_inputs = call->n_inputs;
  launch.n_outputs = call->n_outputs;
  launch.n_items = 0;
  launch.changes = FALSE;
  launch.op = call->op->name;
  for (guint i = 0; i < call->n_inputs; i++)
    launch.inputs[i] = call->inputs[i] ? &call->inputs[i]->view : NULL;
  for (guint i = 0; i < call->n_outputs; i++)
    {
      ebb_tensor_note_dry_output (call->outputs[i]);
      launch.outputs[i] = &call->outputs[i]->view;
    }
  return ebb_launch (device, &launch, error);
}

/* Of numbers up to here a dry run computes with those that it has: scales of a loss, masks of tokens. */
#define MAX_DRY_ELEMENTS 4096

static gboolean
may_compute_dry (EbbOpCall *call,
                 EbbDevice *device)
{
  gboolean may = device->backend->host_memory && call->op->kind != EBB_OP_COLLECTIVE;

  for (guint i = 0; may && i < call->n_inputs; i++)
    may = call->inputs[i] == NULL
          || (!call->inputs[i]->storage->no_data && call->inputs[i]->n_elements <= MAX_DRY_ELEMENTS);
  for (guint i = 0; may && i < call->n_outputs; i++)
    {
      const EbbStorage *storage = call->outputs[i]->storage;

      may = call->outputs[i]->n_elements <= MAX_DRY_ELEMENTS && storage->device->backend->host_memory
            && ebb_storage_is_dry (storage);
    }
  return may;
}

static gboolean
map_values (EbbOpCall *call,
            GError **error)
{
  gboolean ok = TRUE;

  for (guint i = 0; ok && i < call->n_inputs; i++)
    ok = call->inputs[i] == NULL || ebb_storage_map (call->inputs[i]->storage, error);
  for (guint i = 0; ok && i < call->n_outputs; i++)
    ok = ebb_storage_map (call->outputs[i]->storage, error);
  return ok;
}

static gboolean
run_dry (EbbOpCall *call,
         EbbDevice *device,
         GError **error)
{
  const gboolean outer = ebb_thread.computes_dry; /* ops may call ops */
  gboolean ok;

  ebb_thread.computes_dry = may_compute_dry (call, device);
  for (guint i = 0; i < call->n_outputs; i++)
    ebb_tensor_note_dry_output (call->outputs[i]);
  ok = (!ebb_thread.computes_dry || map_values (call, error)) && run_kernels (call, device, error);
  ebb_thread.computes_dry = outer;
  return ok;
}

static inline gboolean
allocate_and_run (EbbOpCall *call,
                  EbbDevice *device,
                  GError **error)
{
  for (guint i = 0; i < call->n_outputs; i++)
    {
      EbbTensor *output = call->outputs[i];

      if (output->storage != NULL)
        continue;
      output->storage =
          ebb_storage_new (device, (gsize) output->n_elements * ebb_dtype_get_size (output->view.dtype), error);
      if (output->storage == NULL)
        return FALSE;
      output->view.data = output->storage->data;
    }
  if (G_UNLIKELY (ebb_modes.stopped))
    return TRUE;
  if (G_UNLIKELY (ebb_is_dry ()))
    return run_dry (call, device, error);
  return run_kernels (call, device, error);
}

/* Its results are seen to be its own. */
static G_GNUC_NO_INLINE gboolean
run_watched (EbbOpCall *call,
             EbbDevice *device,
             GError **error)
{
  EbbProfileMark mark = ebb_profile_open_op (call->op->name, call->needs_grad, ebb_op_call_get_flop (call));
  gboolean ok = allocate_and_run (call, device, error);

  ebb_profile_pop (mark);
  return ok;
}

static gboolean
run (EbbOpCall *call,
     EbbDevice *device,
     GError **error)
{
  if (ebb_is_watched () && !ebb_modes.stopped)
    return run_watched (call, device, error);
  return allocate_and_run (call, device, error);
}

/* The outermost observer comes first, and inner ones see the results that it caches. All are called in any case, since
 * they note something before each op. */
static gboolean
observe_before (EbbOpObserver *observer,
                EbbOpCall *call,
                gboolean *cached,
                GError **error)
{
  if (observer == NULL)
    return TRUE;
  if (!observe_before (observer->outer, call, cached, error))
    return FALSE;
  return observer->before == NULL || observer->before (observer, call, cached, error);
}

static gboolean
observe_after (EbbOpCall *call,
               GError **error)
{
  for (EbbOpObserver *observer = ebb_modes.observers; observer != NULL; observer = observer->outer)
    if (observer->after != NULL && !observer->after (observer, call, error))
      return FALSE;
  return TRUE;
}

static gboolean
run_observed (EbbOpCall *call,
              EbbDevice *device,
              GError **error)
{
  gboolean cached = FALSE;
  int which[EBB_OP_MAX_SAVED];

  /* Saved outputs are found again by place if others are cached. */
  for (guint i = 0; i < call->n_saved; i++)
    for (guint j = 0; j < call->n_outputs; j++)
      if ((call->saved_is_output & (1u << i)) && call->saved[i] == call->outputs[j])
        which[i] = (int) j;
  if (!observe_before (ebb_modes.observers, call, &cached, error))
    return FALSE;
  for (guint i = 0; cached && i < call->n_saved; i++)
    if (call->saved_is_output & (1u << i))
      call->saved[i] = call->outputs[which[i]];
  return (cached || run (call, device, error)) && observe_after (call, error);
}

/* Looks at the edges, since casts may stand in for operands. */
static void
mark_parts (EbbOpCall *call)
{
  gboolean is_local_shard = call->op->shard == EBB_OP_GIVES_SHARD;

  for (guint i = 0; call->op->shard == EBB_OP_GIVES_SHARD_IF_INPUT && i < call->n_inputs; i++)
    is_local_shard = is_local_shard || (call->edges[i] != NULL && call->edges[i]->is_local_shard);
  for (guint i = 0; i < call->n_outputs; i++)
    call->outputs[i]->is_local_shard = is_local_shard;
}

gboolean
ebb_op_finish (EbbOpCall *call,
               GError **error)
{
  EbbDevice *device = ebb_op_call_get_device (call);
  EbbNode *node = NULL;
  gboolean ok;

  mark_parts (call);
  /* Operands are saved before the op runs: a recompute that has all it needs then spares the last op. */
  if (call->needs_grad && call->op->backward != NULL)
    {
      node = ebb_node_begin (call, error);
      if (node == NULL)
        return ebb_op_clear (call);
    }
  if (G_UNLIKELY (ebb_modes.observers != NULL) && !ebb_modes.stopped)
    {
      ok = run_observed (call, device, error);
      mark_parts (call); /* others may have been cached */
    }
  else
    ok = run (call, device, error);
  if (node != NULL)
    ok = ebb_node_end (node, call, ok, error);
  if (!ok)
    return ebb_op_clear (call);
  if (node != NULL && call->rematerialize != NULL && !ebb_modes.stopped)
    ebb_rematerialization_attach (call);
  drop_temporaries (call);
  return TRUE;
}

EbbTensor *
ebb_op_finish1 (EbbOpCall *call,
                GError **error)
{
  if (!ebb_op_finish (call, error))
    return NULL;
  while (call->n_outputs > 1)
    ebb_tensor_unref (call->outputs[--call->n_outputs]);
  return call->outputs[0];
}

gboolean
ebb_op_finish_views (EbbOpCall *call,
                     GError **error)
{
  mark_parts (call);
  if (call->needs_grad && call->op->backward != NULL)
    {
      EbbNode *node = ebb_node_begin (call, error);

      if (node == NULL || !ebb_node_end (node, call, TRUE, error))
        return ebb_op_clear (call);
    }
  drop_temporaries (call);
  return TRUE;
}

EbbTensor *
ebb_op_finish_view (EbbOpCall *call,
                    EbbTensor *view,
                    GError **error)
{
  call->outputs[0] = view;
  call->n_outputs = 1;
  return ebb_op_finish_views (call, error) ? view : NULL;
}

/* -- shapes -------------------------------------------------------------------------------------------------------- */

gboolean
ebb_broadcast_shapes (const char *op_name,
                      EbbTensor *a,
                      EbbTensor *b,
                      gint64 *shape,
                      guint *n_dims,
                      GError **error)
{
  int n = MAX (a->view.n_dims, b->view.n_dims);

  for (int i = 1; i <= n; i++)
    {
      gint64 x = i <= a->view.n_dims ? a->view.shape[a->view.n_dims - i] : 1;
      gint64 y = i <= b->view.n_dims ? b->view.shape[b->view.n_dims - i] : 1;

      if (x != y && x != 1 && y != 1)
        return ebb_fail (
            error, EBB_ERROR_SHAPE,
            "%s: shapes %s and %s do not broadcast: sizes must be equal or 1, counted from the last dimension", op_name,
            ebb_show_shape (a), ebb_show_shape (b));
      shape[n - i] = x == 1 ? y : x;
    }
  *n_dims = (guint) n;
  return TRUE;
}

gboolean
ebb_normalize_dim (const char *op_name,
                   int *dim,
                   guint n_dims,
                   GError **error)
{
  int n = MAX ((int) n_dims, 1);

  if (*dim < -n || *dim >= n)
    return ebb_fail (error, EBB_ERROR_INDEX, "%s: dimension %d of a tensor with %u: must be from %d to %d",
                     op_name, *dim, n_dims, -n, n - 1);
  if (*dim < 0)
    *dim += n;
  return TRUE;
}
