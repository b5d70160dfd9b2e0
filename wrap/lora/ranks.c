/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Branches of layers that tensor ranks share: which factor they divide, and how its product enters and leaves. */
#include "wrap/lora/lora-private.h"

#include "dist/rng-tracker-private.h"
#include "dist/tensor-parallel/layer-private.h"
#include "dist/tensor-parallel/ops-private.h"
#include "dist/tensor-parallel/vocab-loss.h"
#include "tensor/ops/loss.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/product-private.h"
#include "tensor/ops/product.h"
#include "tensor/tensor-private.h"

/* A column layer has its rows of B, which give its columns of the result. The input is the same on all ranks, and so is
 * A: each rank's gradient of A is a part of the sum. A row layer has its columns of A, and the ranks' products with
 * them are summed as the layer's own are; then each rank has all of B. */

static EbbParallelLayer *
get_layer (EbbModule *module)
{
  return EBB_IS_COLUMN_PARALLEL_LINEAR (module) ? &EBB_COLUMN_PARALLEL_LINEAR (module)->layer
         : EBB_IS_ROW_PARALLEL_LINEAR (module)  ? &EBB_ROW_PARALLEL_LINEAR (module)->layer
                                                : NULL;
}

gboolean
ebb_lora_ranks_cut (EbbModule *module,
                    EbbTensor *a,
                    EbbTensor *b,
                    EbbCut **cut,
                    GError **error)
{
  const EbbPartition *partition = ebb_linear_peek_weight ((EbbLinear *) module)->partition;

  *cut = NULL;
  if (partition == NULL)
    return TRUE;
  *cut = EBB_IS_COLUMN_PARALLEL_LINEAR (module)
             ? ebb_cut_new (b, "lora_B", 0, partition->n_sections, partition->ranks, error)
             : ebb_cut_new (a, "lora_A", 1, 1, partition->ranks, error);
  if (*cut == NULL || !ebb_cut_take (*cut, error))
    {
      g_clear_pointer (cut, ebb_cut_unref);
      return FALSE;
    }
  ebb_cut_apply (*cut);
  return TRUE;
}

gboolean
ebb_lora_ranks_lets_enter (EbbModule *module)
{
  const EbbParallelLayer *layer = get_layer (module);

  return layer != NULL && !layer->is_entered
         && !(EBB_IS_ROW_PARALLEL_LINEAR (module) && EBB_ROW_PARALLEL_LINEAR (module)->input_is_parallel);
}

void
ebb_lora_ranks_set_entered (EbbModule *module,
                            gboolean is_entered)
{
  get_layer (module)->is_entered = is_entered;
}

gboolean
ebb_lora_ranks_enter (EbbModule *module,
                      gboolean enters,
                      EbbTensor *x,
                      EbbTensor *factors[2],
                      EbbLoraOperands *operands,
                      GError **error)
{
  EbbParallelLayer *layer = get_layer (module);
  const gboolean is_column = EBB_IS_COLUMN_PARALLEL_LINEAR (module);
  guint shared = 2; /* the factor of which each rank computes a part of the gradient: none */

  *operands = (EbbLoraOperands){ NULL };
  if (layer == NULL)
    operands->x = ebb_tensor_ref (x);
  else if (is_column)
    operands->x = enters ? ebb_parallel_enter (layer->model, layer->group, x, error) : ebb_tensor_ref (x);
  else
    operands->x = enters ? ebb_parallel_scatter (x, -1, layer->group, error) : ebb_tensor_ref (x);
  if (operands->x == NULL)
    return FALSE;
  if (is_column)
    shared = 0;
  else if (layer != NULL && ebb_parallel_model_is_sequence_sharded (layer->model))
    shared = 1;
  for (guint i = 0; i < 2; i++)
    if (i != shared)
      operands->factors[i] = ebb_tensor_ref (factors[i]);
    else if (!ebb_parallel_copy_all (&factors[i], 1, &operands->factors[i], layer->group, error))
      {
        ebb_lora_operands_clear (operands);
        return FALSE;
      }
  return TRUE;
}

void
ebb_lora_operands_clear (EbbLoraOperands *self)
{
  g_clear_pointer (&self->x, ebb_tensor_unref);
  g_clear_pointer (&self->factors[0], ebb_tensor_unref);
  g_clear_pointer (&self->factors[1], ebb_tensor_unref);
}

/* Each rank has other features of a row layer's input, and draws for these. All ranks have the whole input of a column
 * layer and draw the same for this input. They do so too where the default generator is each rank's own: in attention
 * and inside a sharded sequence. */
EbbTensor *
ebb_lora_ranks_drop (EbbModule *module,
                     EbbTensor *x,
                     double dropout,
                     GError **error)
{
  EbbGeneratorTracker *tracker = ebb_generator_tracker_get_default ();
  EbbTensor *dropped;

  if (get_layer (module) == NULL)
    return ebb_dropout (x, dropout, TRUE, NULL, error);
  if (EBB_IS_COLUMN_PARALLEL_LINEAR (module))
    ebb_rng_tracker_fork_shared (tracker);
  else if (!ebb_generator_tracker_fork (tracker, EBB_MODEL_PARALLEL_RNG, error))
    return NULL;
  dropped = ebb_dropout (x, dropout, TRUE, NULL, error);
  ebb_generator_tracker_join (tracker);
  return dropped;
}

EbbTensor *
ebb_lora_ranks_leave (EbbModule *module,
                      EbbTensor *low,
                      GError **error)
{
  return EBB_IS_ROW_PARALLEL_LINEAR (module) ? ebb_parallel_layer_leave (get_layer (module), low, error)
                                             : ebb_tensor_ref (low);
}

static gboolean
is_gathered (EbbModule *module)
{
  return EBB_IS_COLUMN_PARALLEL_LINEAR (module) && EBB_COLUMN_PARALLEL_LINEAR (module)->gather_output;
}

EbbTensor *
ebb_lora_ranks_add (EbbModule *module,
                    EbbTensor *y,
                    EbbTensor *low,
                    EbbTensor *b,
                    GError **error)
{
  g_autoptr (EbbTensor) cast = NULL;
  g_autoptr (EbbTensor) part = NULL;
  g_autoptr (EbbTensor) full = NULL;

  if (!is_gathered (module))
    return ebb_add_linear_over (y, low, b, error);
  cast = ebb_cast (b, low->view.dtype, error);
  part = ebb_linear (low, cast, NULL, error);
  full = part != NULL ? ebb_parallel_gather_sized (part, -1, ((EbbLinear *) module)->out_features, FALSE,
                                                   get_layer (module)->group, error)
                      : NULL;
  return ebb_add (y, full, error);
}

EbbTensor *
ebb_lora_ranks_loss (EbbModule *module,
                     EbbTensor *logits,
                     EbbTensor *targets,
                     GError **error)
{
  if (!EBB_IS_COLUMN_PARALLEL_LINEAR (module) || is_gathered (module))
    return ebb_cross_entropy_full (logits, targets, EBB_IGNORED_TARGET, 0, EBB_REDUCTION_MEAN, error);
  return ebb_vocab_parallel_cross_entropy (logits, targets, ((EbbLinear *) module)->out_features, EBB_IGNORED_TARGET,
                                           EBB_REDUCTION_MEAN, get_layer (module)->group, error);
}
