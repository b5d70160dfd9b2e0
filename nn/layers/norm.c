/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Norms after a residual connection: the sum and its norm in one pass over memory. */
#include "nn/args-private.h"
#include "nn/layers/layer-private.h"
#include "tensor/ops/normalization.h"
#include "tensor/tensor-private.h"

/* Checks the result of a user's wrapper before it is used in place of the fused op's results. */
static gboolean
check_pair (EbbModule *module, EbbArgs *result, EbbTensor *x, GError **error)
{
  g_autofree char *text = NULL;
  gboolean ok = ebb_args_get_length (result) == 2;

  for (guint i = 0; ok && i < 2; i++)
    {
      EbbTensor *tensor = ebb_args_peek_tensor (result, i);

      ok = tensor != NULL && ebb_shapes_equal (&tensor->view, &x->view);
    }
  if (ok)
    return TRUE;
  text = ebb_args_to_string (result);
  g_set_error (error, EBB_ERROR, EBB_ERROR_SHAPE,
               "%s: it must return two tensors of its input's shape, but it returned %s",
               ebb_module_get_type_name (module), text);
  return FALSE;
}

static EbbTensor *
call_wrapped (EbbModule *norm,
              EbbTensor *x,
              EbbTensor *residual,
              double dropout,
              gboolean training,
              EbbTensor **sum,
              GError **error)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;

  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_tensor (args, "residual", residual);
  ebb_args_add_double (args, "dropout", dropout);
  ebb_args_add_boolean (args, "training", training);
  result = ebb_module_call (norm, args, error);
  if (result == NULL || !check_pair (norm, result, x, error))
    return NULL;
  *sum = ebb_args_get_tensor (result, 1);
  return ebb_args_get_tensor (result, 0);
}

/* Whether one kernel normalizes both the branch and the sum. */
static gboolean
are_alike (EbbModule *norm, EbbModule *branch_norm)
{
  EbbRmsNorm *self = (EbbRmsNorm *) norm, *branch = (EbbRmsNorm *) branch_norm;

  return ebb_module_is_plain (norm, EBB_TYPE_RMS_NORM) && ebb_module_is_plain (branch_norm, EBB_TYPE_RMS_NORM)
         && self->eps == branch->eps && self->unit_offset == branch->unit_offset;
}

static EbbTensor *
add_and_normalize (EbbModule *norm,
                   EbbModule *branch_norm,
                   EbbTensor *x,
                   EbbTensor *residual,
                   double dropout,
                   gboolean training,
                   EbbTensor **sum,
                   GError **error)
{
  const GType type = G_OBJECT_TYPE (norm);

  if (type == EBB_TYPE_RMS_NORM && ebb_module_is_plain (norm, type))
    return ebb_rms_norm_add (norm, branch_norm, x, residual, dropout, training, sum, error);
  if (type == EBB_TYPE_LAYER_NORM && ebb_module_is_plain (norm, type))
    return ebb_layer_norm_add (norm, x, residual, dropout, training, sum, error);
  if ((type == EBB_TYPE_RMS_NORM || type == EBB_TYPE_LAYER_NORM) && ebb_module_is_only_wrapped (norm, type))
    return call_wrapped (norm, x, residual, dropout, training, sum, error);
  *sum = ebb_residual_dropout (x, residual, dropout, training, NULL, error);
  return ebb_module_call1 (norm, *sum, error);
}

EbbTensor *
ebb_norm_call_after_residual (EbbModule *norm,
                              EbbModule *branch_norm,
                              EbbTensor *x,
                              EbbTensor *residual,
                              double dropout,
                              gboolean training,
                              EbbTensor **sum,
                              GError **error)
{
  g_autoptr (EbbTensor) branch = NULL;

  if (x == NULL || residual == NULL) /* which the op reports, unless an error has been reported */
    return ebb_residual_dropout (x, residual, dropout, training, NULL, error);
  if (branch_norm == NULL || are_alike (norm, branch_norm))
    return add_and_normalize (norm, branch_norm, x, residual, dropout, training, sum, error);
  branch = ebb_module_call1 (branch_norm, x, error);
  return branch != NULL ? add_and_normalize (norm, NULL, branch, residual, dropout, training, sum, error) : NULL;
}

EbbArgs *
ebb_norm_forward_after_residual (EbbModule *module, EbbArgs *args, EbbNormAddFunc add, GError **error)
{
  EbbTensor *x, *residual;
  double dropout = 0;
  gboolean training = ebb_module_get_training (module);
  const EbbParameterSpec specs[] = { { "input", EBB_PARAMETER_TENSOR, &x },
                                     { "residual", EBB_PARAMETER_TENSOR, &residual },
                                     { "dropout", EBB_PARAMETER_DOUBLE, &dropout },
                                     { "training", EBB_PARAMETER_FLAG, &training } };
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) normalized = NULL;
  EbbArgs *result;

  if (!ebb_args_parse (args, ebb_module_get_type_name (module), specs, G_N_ELEMENTS (specs), error))
    return NULL;
  normalized = add (module, x, residual, dropout, training, &sum, error);
  if (normalized == NULL)
    return NULL;
  result = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (result, NULL, normalized);
  ebb_args_add_tensor (result, NULL, sum);
  return result;
}
