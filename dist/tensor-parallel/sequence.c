/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The boundaries inside which a model is sequence-sharded, and the random numbers of sharded attention. */
#include "dist/tensor-parallel/layer-private.h"

#include "dist/rng-tracker.h"
#include "dist/tensor-parallel/ops-private.h"
#include "nn/args-private.h"
#include "nn/layers/layer-private.h"
#include "nn/layers/multi-head-attention.h"
#include "nn/layers/stack-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/thread-private.h"

EbbParallelModel *
ebb_parallel_model_new (EbbProcessGroup *group, gboolean has_sequence)
{
  EbbParallelModel *self = g_new0 (EbbParallelModel, 1);

  self->ref_count = 1;
  self->group = g_object_ref (group);
  self->has_sequence = self->sequence_on = has_sequence;
  return self;
}

EbbParallelModel *
ebb_parallel_model_ref (EbbParallelModel *self)
{
  __atomic_add_fetch (&self->ref_count, 1, __ATOMIC_RELAXED);
  return self;
}

void
ebb_parallel_model_unref (EbbParallelModel *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  g_object_unref (self->group);
  g_free (self);
}

static void
model_unref (gpointer data)
{
  ebb_parallel_model_unref (data);
}

static guint slot; /* the model whose sequence the ranks have sharded where the thread is; NULL: none. Only compared */

static void __attribute__ ((constructor))
register_slot (void)
{
  slot = ebb_modes_register_slot (NULL, NULL);
}

gboolean
ebb_parallel_model_is_sequence_sharded (EbbParallelModel *self)
{
  return self != NULL && ebb_modes.slots[slot] == self;
}

/* -- the sequence -------------------------------------------------------------------------------------------------- */

static gboolean
check_divisible (EbbModule *stack, EbbTensor *x, EbbProcessGroup *group, GError **error)
{
  const guint n = ebb_process_group_get_size (group);
  g_autofree char *shape = NULL;

  if (x->view.n_dims == 3 && x->view.shape[1] % n == 0)
    return TRUE;
  shape = ebb_tensor_shape_to_string (x);
  return ebb_fail (
      error, EBB_ERROR_SHAPE,
      "%s: sequence parallel shards [B, T, C] along T, which must be a multiple of %u, the number of ranks; "
      "got %s. Pad the sequence, or switch it off by ebb_parallel_set_sequence_parallel ()",
      ebb_module_get_type_name (stack), n, shape);
}

/* A stack inside a sequence-sharded one changes nothing, which leave () checks. */
static EbbTensor *
enter_sequence (EbbModule *stack, EbbTensor *x, gpointer user_data, GError **error)
{
  EbbParallelModel *model = user_data;
  EbbTensor *part;

  if (!model->sequence_on)
    return ebb_tensor_ref (x);
  if (!check_divisible (stack, x, model->group, error))
    return NULL;
  part = ebb_parallel_scatter (x, 1, model->group, error);
  if (part == NULL)
    return NULL;
  if (!ebb_generator_tracker_fork (ebb_generator_tracker_get_default (), EBB_MODEL_PARALLEL_RNG, error))
    {
      ebb_tensor_unref (part);
      return NULL;
    }
  ebb_modes.slots[slot] = model;
  return part;
}

static EbbTensor *
leave_sequence (EbbModule *stack, EbbTensor *x, gpointer user_data, GError **error)
{
  EbbParallelModel *model = user_data;

  if (ebb_modes.slots[slot] != model)
    return x != NULL ? ebb_tensor_ref (x) : NULL;
  ebb_modes.slots[slot] = NULL;
  ebb_generator_tracker_join (ebb_generator_tracker_get_default ());
  if (x == NULL)
    return NULL;
  return ebb_parallel_gather_sized (x, 1, x->view.shape[1] * ebb_process_group_get_size (model->group), FALSE,
                                    model->group, error);
}

static const EbbStackBoundaryFuncs sequence_boundary = { enter_sequence, leave_sequence };

void
ebb_parallel_sequence_install (EbbModule *stack, EbbParallelModel *model)
{
  ebb_stack_set_boundary (stack, &sequence_boundary, ebb_parallel_model_ref (model), model_unref);
}

static gboolean
share (EbbModule *norm, EbbTensor **parameters, guint n, EbbTensor **shared, gpointer user_data, GError **error)
{
  EbbParallelModel *model = user_data;

  if (ebb_parallel_model_is_sequence_sharded (model))
    return ebb_parallel_copy_all (parameters, n, shared, model->group, error);
  for (guint i = 0; i < n; i++)
    shared[i] = parameters[i] != NULL ? ebb_tensor_ref (parameters[i]) : NULL;
  return TRUE;
}

void
ebb_parallel_sequence_share (EbbModule *norm, EbbParallelModel *model)
{
  ebb_layer_set_share (norm, share, ebb_parallel_model_ref (model), model_unref);
}

/* -- inputs of products -------------------------------------------------------------------------------------------- */

/* Under autocast the product would cast x, so cast it before it is sent. */
static EbbTensor *
lower (EbbTensor *x, GError **error)
{
  EbbDType dtype;

  if (x != NULL && ebb_autocast_get (&dtype) && x->view.dtype == EBB_DTYPE_F32)
    return ebb_cast (x, dtype, error);
  return x != NULL ? ebb_tensor_ref (x) : NULL;
}

static gboolean
check_sequence (EbbTensor *x, GError **error)
{
  g_autofree char *shape = NULL;

  if (x->view.n_dims == 3)
    return TRUE;
  shape = ebb_tensor_shape_to_string (x);
  return ebb_fail (error, EBB_ERROR_SHAPE, "a parallel layer on a sequence shard: x is %s; it must be [B, T, C]",
                   shape);
}

EbbTensor *
ebb_parallel_enter (EbbParallelModel *model, EbbProcessGroup *group, EbbTensor *x, GError **error)
{
  g_autoptr (EbbTensor) lowered = NULL;

  if (x == NULL)
    return NULL;
  if (!ebb_parallel_model_is_sequence_sharded (model))
    return ebb_parallel_copy (x, group, error);
  if (!check_sequence (x, error))
    return NULL;
  lowered = lower (x, error);
  return lowered != NULL
             ? ebb_parallel_gather_sized (lowered, EBB_SEQUENCE_DIM,
                                          x->view.shape[EBB_SEQUENCE_DIM] * ebb_process_group_get_size (group), TRUE,
                                          group, error)
             : NULL;
}

/* -- inputs of several products ------------------------------------------------------------------------------------ */

static gboolean
share_input (EbbModule *module, EbbTensor **inputs, guint n, EbbTensor **shared, gpointer user_data, GError **error)
{
  EbbParallelModel *model = user_data;

  *shared = ebb_parallel_enter (model, model->group, *inputs, error);
  return *shared != NULL;
}

void
ebb_parallel_input_share (EbbModule *module, EbbParallelModel *model)
{
  ebb_layer_set_share (module, share_input, ebb_parallel_model_ref (model), model_unref);
}

/* -- attention ----------------------------------------------------------------------------------------------------- */

#define ATTENTION_INTERCEPTOR "parallel-attention"

typedef struct
{
  EbbProcessGroup *group;
  gint64 n_heads;
} Attention;

static void
attention_free (gpointer data)
{
  g_object_unref (((Attention *) data)->group);
  g_free (data);
}

/* Narrows a mask [B, H, T, S] to this rank's heads; other masks are for every head. */
static gboolean
narrow_mask (Attention *self, EbbArgs *args, EbbArgs **narrowed, GError **error)
{
  int index = ebb_args_find (args, "mask");
  EbbTensor *mask = index >= 0 ? ebb_args_peek_tensor (args, (guint) index) : NULL;
  g_autoptr (EbbTensor) own = NULL;
  gint64 first, count;

  *narrowed = NULL;
  if (mask == NULL || self->n_heads <= 1 || mask->view.n_dims != 4 || mask->view.shape[1] != self->n_heads)
    return TRUE;
  ebb_parallel_get_part (self->n_heads, ebb_process_group_get_size (self->group),
                         ebb_process_group_get_rank (self->group), &first, &count);
  own = ebb_narrow (mask, 1, first, count, error);
  if (own == NULL)
    return FALSE;
  *narrowed = ebb_args_new (ebb_args_get_kind (args));
  for (guint i = 0; i < ebb_args_get_length (args); i++)
    if ((int) i == index)
      ebb_args_add_tensor (*narrowed, ebb_args_get_key (args, i), own);
    else
      ebb_args_add_value (*narrowed, ebb_args_get_key (args, i), args, i);
  return TRUE;
}

static EbbArgs *
attend (EbbModule *module, EbbArgs *args, const EbbForwardChain *inside, gpointer user_data, GError **error)
{
  EbbGeneratorTracker *tracker = ebb_generator_tracker_get_default ();
  g_autoptr (EbbArgs) narrowed = NULL;
  EbbArgs *result;

  if (!narrow_mask (user_data, args, &narrowed, error)
      || !ebb_generator_tracker_fork (tracker, EBB_MODEL_PARALLEL_RNG, error))
    return NULL;
  result = ebb_forward_chain_call (inside, module, narrowed != NULL ? narrowed : args, error);
  ebb_generator_tracker_join (tracker);
  return result;
}

static gboolean
share_for_heads (EbbModule *norm,
                 EbbTensor **parameters,
                 guint n,
                 EbbTensor **shared,
                 gpointer user_data,
                 GError **error)
{
  return ebb_parallel_copy_all (parameters, n, shared, ((EbbParallelModel *) user_data)->group, error);
}

/* The norms of queries and keys see this rank's heads alone, with and without a sharded sequence. */
void
ebb_parallel_attention_share_norms (EbbModule *attention, EbbParallelModel *model)
{
  static const char *const names[] = { "q_norm", "k_norm" };

  for (guint i = 0; EBB_IS_MULTI_HEAD_ATTENTION (attention) && i < G_N_ELEMENTS (names); i++)
    {
      g_autoptr (EbbModule) norm = ebb_module_get_child (attention, names[i]);

      if (norm != NULL)
        ebb_layer_set_share (norm, share_for_heads, ebb_parallel_model_ref (model), model_unref);
    }
}

void
ebb_parallel_attention_install (EbbModule *attention, gint64 n_heads, EbbProcessGroup *group)
{
  Attention *self = g_new (Attention, 1);

  *self = (Attention){ g_object_ref (group), n_heads };
  ebb_module_add_interceptor (attention, ATTENTION_INTERCEPTOR, attend, self, attention_free);
}

gboolean
ebb_parallel_attention_is_installed (EbbModule *attention)
{
  return ebb_module_find_interceptor (attention, ATTENTION_INTERCEPTOR) != 0;
}
