/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Results that backward rematerializes instead of saving them. */
#include "tensor/autograd/rematerialization-private.h"

#include "tensor/error-private.h"
#include "tensor/object-private.h"
#include "tensor/thread-private.h"

#include <string.h>

typedef struct
{
  EbbTensor *tensor;  /* as the kernel takes it, without graph; NULL: left out */
  gboolean as_shadow; /* the kernel takes the copy in shadow_dtype of @tensor, a parameter */
  EbbDType shadow_dtype;
  guint version;
} Operand;

/* How to compute a result again. */
struct _EbbRematerialization
{
  int ref_count;
  int n_tensors; /* that carry it */
  int is_released;
  EbbRematerializeFunc func;
  EbbRematerializeArgs args; /* owns its owner until it is released */
  EbbView view;              /* of the result; data unused */
  guint version;             /* of the result's storage */
  guint pinned;              /* the result could be written to from outside already when it was made */
  guint64 frame;             /* the checkpointed forward that it belongs to */
  guint n_operands;
  Operand operands[EBB_MAX_REMATERIALIZE];
};

/* Held by a node in place of a result that it needs and did not save. */
struct _EbbRematerialized
{
  EbbRematerializeFunc func;
  EbbRematerializeArgs args; /* owns its owner */
  EbbView view;              /* of the result; data unused */
  EbbDType dtype;            /* that was to be saved: the result's, or a cast's */
  gboolean is_permuted;      /* what was to be saved has the dimensions in another order, */
  EbbView permuted;          /* this one */
  EbbDevice *device;
  guint64 (*get_checksum) (EbbTensor *tensor); /* NULL: the result is not compared */
  guint64 checksum;                            /* of what was to be saved; 0: unknown */
  guint n_operands;
  EbbSavedTensor operands[EBB_MAX_REMATERIALIZE];
};

static void
copy_args (EbbRematerializeArgs *to,
           const EbbRematerializeArgs *from)
{
  *to = *from;
  if (to->owner != NULL)
    g_object_ref (to->owner);
}

/* -- carried by a result ------------------------------------------------------------------------------------------- */

/* @goes_on: saving the operand's own operands, where it can be rematerialized too, is less than saving it. */
static Operand
take_operand (EbbTensor *tensor,
              EbbTensor *edge,
              gboolean goes_on)
{
  Operand operand = { 0 };

  if (tensor == NULL)
    return operand;
  if (edge != NULL && edge->is_parameter && edge->shadow == tensor)
    {
      operand.as_shadow = TRUE;
      operand.shadow_dtype = tensor->view.dtype;
      tensor = edge; /* whose owner may drop the copy with the full parameter, before anything is saved */
    }
  operand.version = tensor->storage->version;
  /* The graph that leads to an operand is the node's to hold, not the result's. */
  if (tensor->is_parameter || tensor->is_buffer)
    operand.tensor = ebb_tensor_ref (tensor);
  else
    operand.tensor = ebb_tensor_alias (tensor);
  if (goes_on && operand.tensor != tensor)
    ebb_tensor_share_rematerialization (operand.tensor, tensor);
  return operand;
}

void
ebb_rematerialization_attach (EbbOpCall *call)
{
  EbbTensor *output = call->outputs[call->rematerialized_output];
  const gboolean goes_on = call->op->kind == EBB_OP_COLLECTIVE || call->rematerializes_operands;
  EbbRematerialization *self;

  if (output->node == NULL)
    return;
  self = ebb_object_new (EbbRematerialization);
  self->ref_count = 2;
  self->n_tensors = 1;
  self->is_released = FALSE;
  self->func = call->rematerialize;
  copy_args (&self->args, &(EbbRematerializeArgs){ .params = call->params, .owner = call->owner });
  memcpy (self->args.extra_i, call->extra.i, sizeof self->args.extra_i);
  self->view = output->view;
  self->view.data = NULL;
  self->version = output->storage->version;
  self->pinned = output->storage->pinned;
  self->frame = ebb_modes.frame;
  self->n_operands = call->n_rematerialize;
  for (guint i = 0; i < call->n_rematerialize; i++)
    {
      const int from = call->rematerialize_from[i];

      self->operands[i] = from >= 0 ? take_operand (call->inputs[from], call->edges[from], goes_on)
                                    : take_operand (call->outputs[~from], NULL, goes_on);
    }
  output->rematerialization = output->node->rematerialization = self;
}

void
ebb_tensor_share_rematerialization (EbbTensor *view,
                                    EbbTensor *tensor)
{
  EbbRematerialization *self = tensor->rematerialization;

  if (self == NULL || view->rematerialization != NULL)
    return;
  __atomic_add_fetch (&self->ref_count, 1, __ATOMIC_RELAXED);
  __atomic_add_fetch (&self->n_tensors, 1, __ATOMIC_RELAXED);
  view->rematerialization = self;
}

void
ebb_tensor_drop_rematerialization (EbbTensor *tensor,
                                   guint64 frame)
{
  if (tensor->rematerialization != NULL && tensor->rematerialization->frame == frame)
    g_clear_pointer (&tensor->rematerialization, ebb_rematerialization_drop);
}

void
ebb_rematerialization_drop (EbbRematerialization *self)
{
  if (__atomic_sub_fetch (&self->n_tensors, 1, __ATOMIC_ACQ_REL) == 0)
    ebb_rematerialization_release (self);
  else if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) == 0)
    ebb_object_free (self, sizeof *self);
}

void
ebb_rematerialization_release (EbbRematerialization *self)
{
  if (__atomic_exchange_n (&self->is_released, TRUE, __ATOMIC_ACQ_REL) == FALSE)
    {
      for (guint i = 0; i < self->n_operands; i++)
        ebb_tensor_unref (self->operands[i].tensor);
      g_clear_object (&self->args.owner);
    }
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) == 0)
    ebb_object_free (self, sizeof *self);
}

/* -- held by a node ------------------------------------------------------------------------------------------------ */

static gboolean
is_intact (const Operand *operand)
{
  const EbbTensor *tensor = operand->tensor;

  return tensor == NULL
         || (tensor->storage->version == operand->version
             && (!tensor->storage->pinned || tensor->is_parameter || tensor->is_buffer));
}

/* TRUE if nothing was changed in place since, nor shown to code outside of Ebb, whose changes nobody sees. */
static gboolean
is_valid (const EbbRematerialization *self,
          EbbTensor *made)
{
  if (self->is_released || made->storage->version != self->version || made->storage->pinned != self->pinned)
    return FALSE;
  for (guint i = 0; i < self->n_operands; i++)
    if (!is_intact (&self->operands[i]))
      return FALSE;
  return TRUE;
}

static gboolean
decide (const EbbRematerialization *self,
        EbbTensor *made)
{
  EbbRematerializationLog *log = ebb_modes.rematerialization_log;
  guint8 decision;

  if (log != NULL && log->repeats)
    return !self->is_released && log->next < log->decisions->len && log->decisions->data[log->next++];
  decision = is_valid (self, made);
  if (log != NULL)
    g_byte_array_append (log->decisions, &decision, 1);
  return decision;
}

/* TRUE if @tensor is the result as it is, a cast of it, or the result with its dimensions in another order. */
static gboolean
can_make (const EbbRematerialization *how,
          EbbTensor *tensor,
          EbbTensor *made,
          gboolean *is_permuted)
{
  *is_permuted = !ebb_view_is_contiguous (&made->view) || !ebb_shapes_equal (&made->view, &how->view);
  if (*is_permuted)
    return tensor->storage == made->storage && tensor->offset == made->offset
           && ebb_shapes_equal (&tensor->view, &made->view)
           && memcmp (tensor->view.strides, made->view.strides,
                      (gsize) made->view.n_dims * sizeof made->view.strides[0])
                  == 0;
  return ebb_view_is_contiguous (&tensor->view) && ebb_shapes_equal (&tensor->view, &made->view);
}

/* Only in the forward is the result there that backward must make again. */
static void
take_checksum (EbbRematerialized *self,
               EbbTensor *tensor)
{
  const EbbRematerializationLog *log = ebb_modes.rematerialization_log;

  if (log == NULL || log->repeats || log->get_checksum == NULL)
    return;
  self->get_checksum = log->get_checksum;
  self->checksum = log->get_checksum (tensor);
}

static gboolean
save_operand (EbbSavedTensor *saved,
              const EbbOp *op,
              const Operand *operand,
              GError **error)
{
  EbbTensor *tensor = operand->tensor;

  if (operand->as_shadow)
    return ebb_saved_tensor_save_shadow (saved, op, tensor, operand->shadow_dtype, error);
  return ebb_saved_tensor_save (saved, op, tensor, tensor != NULL && tensor->rematerialization != NULL ? tensor : NULL,
                                error);
}

gboolean
ebb_rematerialized_save (EbbRematerialized **rematerialized,
                         const EbbOp *op,
                         EbbTensor *tensor,
                         EbbTensor *made,
                         GError **error)
{
  const EbbRematerialization *how = made->rematerialization;
  gboolean is_permuted;
  EbbRematerialized *self;

  *rematerialized = NULL;
  /* A tensor that comes into a checkpointed forward from outside, or goes out, is an argument or a result there: a
   * recompute has no rematerialization of it. */
  if (how->frame != ebb_modes.frame || !can_make (how, tensor, made, &is_permuted) || !decide (how, made))
    return TRUE;
  self = ebb_object_new (EbbRematerialized);
  memset (self, 0, sizeof *self);
  self->func = how->func;
  copy_args (&self->args, &how->args);
  self->view = how->view;
  self->is_permuted = is_permuted;
  self->permuted = tensor->view;
  self->dtype = tensor->view.dtype;
  self->device = made->storage->device;
  take_checksum (self, tensor);
  for (guint i = 0; i < how->n_operands; i++)
    {
      self->n_operands++;
      if (!save_operand (&self->operands[i], op, &how->operands[i], error))
        {
          ebb_rematerialized_free (self);
          return FALSE;
        }
    }
  *rematerialized = self;
  return TRUE;
}

static gboolean
unpack_operands (EbbRematerialized *self,
                 const EbbOp *op,
                 EbbTensor **operands,
                 GError **error)
{
  for (guint i = 0; i < self->n_operands; i++)
    if (!ebb_saved_tensor_is_empty (&self->operands[i]))
      {
        operands[i] = ebb_saved_tensor_unpack (&self->operands[i], op, error);
        if (operands[i] == NULL)
          return FALSE;
      }
  return TRUE;
}

static EbbTensor *
make (EbbRematerialized *self,
      const EbbOp *op,
      GError **error)
{
  EbbTensor *operands[EBB_MAX_REMATERIALIZE] = { NULL };
  EbbTensor *made = NULL;
  gboolean ok = unpack_operands (self, op, operands, error);

  if (ok)
    made = ebb_tensor_new_uninitialized (self->view.shape, (guint) self->view.n_dims, self->view.dtype, self->device,
                                         error);
  ok = made != NULL && self->func (&self->args, operands, made, error);
  for (guint i = 0; i < self->n_operands; i++)
    ebb_tensor_unref (operands[i]);
  if (ok && made->view.dtype != self->dtype)
    {
      EbbTensor *cast = ebb_tensor_convert (made, self->dtype, error);

      ebb_tensor_unref (made);
      return cast;
    }
  if (ok && self->is_permuted)
    {
      EbbTensor *permuted = ebb_tensor_new_view (made->storage, 0, self->permuted.shape, self->permuted.strides,
                                                 (guint) self->permuted.n_dims, made->view.dtype);

      ebb_tensor_unref (made);
      return permuted;
    }
  if (!ok)
    g_clear_pointer (&made, ebb_tensor_unref);
  return made;
}

EbbTensor *
ebb_rematerialized_make (EbbRematerialized *self,
                         const EbbOp *op,
                         GError **error)
{
  EbbTensor *tensor = make (self, op, error);
  const guint64 now = tensor != NULL && self->checksum != 0 ? self->get_checksum (tensor) : 0;
  g_autofree char *shape = NULL;

  if (now == 0 || now == self->checksum)
    return tensor;
  shape = ebb_tensor_shape_to_string (tensor);
  ebb_error_set (error, EBB_ERROR_RECOMPUTE,
                 "%s: its operand, %s of shape %s, which backward makes again, has other values than in the forward",
                 op->name, ebb_dtype_get_name (tensor->view.dtype), shape);
  ebb_tensor_unref (tensor);
  return NULL;
}

void
ebb_rematerialized_free (EbbRematerialized *self)
{
  for (guint i = 0; i < self->n_operands; i++)
    ebb_saved_tensor_clear (&self->operands[i]);
  g_clear_object (&self->args.owner);
  ebb_object_free (self, sizeof *self);
}
