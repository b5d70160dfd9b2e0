/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* A linear layer with low-rank branches: its call, and the modules that hold A and B. */
#include "wrap/lora/lora-private.h"

#include "nn/args-private.h"
#include "nn/layers/layer-private.h"
#include "tensor/ops/activation.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/product-private.h"
#include "tensor/ops/product.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

#include <math.h>
#include <string.h>

#define LORA_INTERCEPTOR "lora"
#define NAME_A "lora_A"
#define NAME_B "lora_B"

/* -- factors ------------------------------------------------------------------------------------------------------- */

/* Below a layer, "lora_A" has one of these for each adapter, with A as its weight: the parameters have PEFT's names,
 * "c_attn.lora_A.default.weight". Nobody calls them. */
#define EBB_TYPE_LORA_FACTOR (ebb_lora_factor_get_type ())
G_DECLARE_FINAL_TYPE (EbbLoraFactor, ebb_lora_factor, EBB, LORA_FACTOR, EbbModule)

struct _EbbLoraFactor
{
  EbbModule parent_instance;

  EbbTensor *weight;
};

G_DEFINE_FINAL_TYPE (EbbLoraFactor, ebb_lora_factor, EBB_TYPE_MODULE)

static void
ebb_lora_factor_class_init (EbbLoraFactorClass *klass)
{
}

static void
ebb_lora_factor_init (EbbLoraFactor *self)
{
  ebb_module_get_private (EBB_MODULE (self))->is_adapter = TRUE;
  ebb_module_bind_parameter (EBB_MODULE (self), "weight", &self->weight);
}

EbbTensor *
ebb_lora_factor_get_weight (EbbModule *factor)
{
  return ((EbbLoraFactor *) factor)->weight;
}

/* -- calls --------------------------------------------------------------------------------------------------------- */

/* dropout (x) A^T, multiplied by the scale. */
static EbbTensor *
project (EbbModule *module,
         const EbbLoraBranch *branch,
         const EbbLoraOperands *operands,
         GError **error)
{
  EbbTensor *x = operands->x, *a = operands->factors[0];
  g_autoptr (EbbTensor) dropped = branch->dropout > 0 && ebb_module_get_training (module)
                                      ? ebb_lora_ranks_drop (module, x, branch->dropout, error)
                                      : ebb_tensor_ref (x);
  g_autoptr (EbbTensor) cast = NULL;
  g_autoptr (EbbTensor) part = NULL;
  g_autoptr (EbbTensor) low = NULL;
  EbbDType dtype;

  if (dropped == NULL)
    return NULL;
  /* The product is of the dtype of x, which is the larger one to cast. */
  cast = a->view.dtype == x->view.dtype || ebb_autocast_get (&dtype) ? ebb_tensor_ref (a)
                                                                     : ebb_cast (a, x->view.dtype, error);
  part = ebb_linear (dropped, cast, NULL, error);
  low = part != NULL ? ebb_lora_ranks_leave (module, part, error) : NULL;
  /* The last that backward needs of this layer: a recompute that ends here leaves out the layer's own product. */
  return low != NULL ? ebb_mul_scalar_saved (low, branch->scale, error) : NULL;
}

/* The result of the layer without its branch, as the only reference. */
static EbbTensor *
call_base (EbbModule *module,
           EbbTensor *x,
           gboolean add_bias,
           const EbbForwardChain *inside,
           GError **error)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;

  ebb_args_add_tensor (args, NULL, x);
  if (!add_bias)
    ebb_args_add_boolean (args, "add_bias", FALSE);
  result = ebb_forward_chain_call (inside, module, args, error);
  return ebb_module_take_only_tensor (module, result, error);
}

/* Of the product with its branch as logits: a layer that computes the loss itself never makes them. */
static EbbTensor *
compute_loss (EbbModule *module,
              EbbTensor *logits,
              EbbTensor *targets,
              double softcap,
              GError **error)
{
  g_autoptr (EbbTensor) capped = softcap != 0 ? ebb_soft_cap (logits, softcap, error) : ebb_tensor_ref (logits);

  return capped != NULL ? ebb_lora_ranks_loss (module, capped, targets, error) : NULL;
}

/* The branch comes before the layer's own product: backward then has given away the gradient of y when it makes that of
 * x here. */
static EbbTensor *
call_with_branch (EbbModule *module,
                  const EbbLoraBranch *branch,
                  const EbbLoraOperands *operands,
                  gboolean add_bias,
                  const EbbForwardChain *inside,
                  GError **error)
{
  g_autoptr (EbbTensor) low = project (module, branch, operands, error);
  g_autoptr (EbbTensor) y = low != NULL ? call_base (module, operands->x, add_bias, inside, error) : NULL;

  return y != NULL ? ebb_lora_ranks_add (module, y, low, operands->factors[1], error) : NULL;
}

static EbbArgs *
branched_forward (EbbModule *module,
                  EbbArgs *args,
                  const EbbForwardChain *inside,
                  gpointer user_data,
                  GError **error)
{
  const EbbLoraLayer *self = user_data;
  EbbLoraBranch *branch = g_atomic_pointer_get (&self->active);
  EbbTensor *x, *targets = NULL;
  gboolean add_bias = TRUE;
  double softcap = 0;
  const EbbParameterSpec specs[] = { { "input", EBB_PARAMETER_TENSOR, &x },
                                     { "add_bias", EBB_PARAMETER_FLAG, &add_bias },
                                     { "targets", EBB_PARAMETER_OPTIONAL_TENSOR, &targets },
                                     { "softcap", EBB_PARAMETER_DOUBLE, &softcap } };
  EbbTensor *factors[2];
  EbbLoraOperands operands;
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  if (branch == NULL)
    return ebb_forward_chain_call (inside, module, args, error);
  if (!ebb_args_parse (args, ebb_module_get_type_name (module), specs, G_N_ELEMENTS (specs), error))
    return NULL;
  factors[0] = ebb_lora_factor_get_weight (branch->a);
  factors[1] = ebb_lora_factor_get_weight (branch->b);
  if (!ebb_lora_ranks_enter (module, self->enters, x, factors, &operands, error))
    return NULL;
  sum = call_with_branch (module, branch, &operands, add_bias, inside, error);
  ebb_lora_operands_clear (&operands);
  if (sum == NULL || targets == NULL)
    return sum != NULL ? ebb_args_new_for_tensor (sum) : NULL;
  loss = compute_loss (module, sum, targets, softcap, error);
  return loss != NULL ? ebb_args_new_for_tensor (loss) : NULL;
}

static gboolean
is_idle (gpointer user_data)
{
  return g_atomic_pointer_get (&((EbbLoraLayer *) user_data)->active) == NULL;
}

/* -- layers -------------------------------------------------------------------------------------------------------- */

void
ebb_lora_branch_free (gpointer data)
{
  EbbLoraBranch *branch = data;

  g_free (branch->adapter);
  g_clear_pointer (&branch->cut, ebb_cut_unref);
  g_object_unref (branch->a);
  g_object_unref (branch->b);
  g_free (branch);
}

static void
layer_free (gpointer data)
{
  EbbLoraLayer *self = data;

  g_ptr_array_unref (self->branches);
  g_free (self);
}

EbbLoraLayer *
ebb_lora_layer_get (EbbModule *module)
{
  return ebb_module_get_interceptor_data (module, ebb_module_find_interceptor (module, LORA_INTERCEPTOR));
}

guint64
ebb_lora_count_parameters (EbbModule *model)
{
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (model, &n);
  guint64 count = 0;

  for (guint i = 0; i < n; i++)
    {
      const EbbLoraLayer *layer = ebb_lora_layer_get (modules[i]);

      for (guint j = 0; layer != NULL && j < layer->branches->len; j++)
        {
          const EbbLoraBranch *branch = layer->branches->pdata[j];

          count += ebb_module_count_parameters (branch->a) + ebb_module_count_parameters (branch->b);
        }
      g_object_unref (modules[i]);
    }
  return count;
}

EbbLoraBranch *
ebb_lora_layer_find (EbbLoraLayer *self,
                     const char *adapter)
{
  for (guint i = 0; adapter != NULL && i < self->branches->len; i++)
    if (strcmp (((EbbLoraBranch *) g_ptr_array_index (self->branches, i))->adapter, adapter) == 0)
      return g_ptr_array_index (self->branches, i);
  return NULL;
}

/* A factor with its first values, where @weight is. */
static EbbModule *
new_factor (EbbTensor *weight,
            EbbInit init,
            double value,
            gint64 n_rows,
            gint64 n_columns,
            GError **error)
{
  g_autoptr (EbbModule) factor = g_initable_new (EBB_TYPE_LORA_FACTOR, NULL, error, NULL);

  if (factor == NULL
      || !ebb_layer_add_parameter (factor, "weight", init, value, (gint64[]){ n_rows, n_columns }, 2, error)
      || !ebb_module_to_device (factor, ebb_tensor_get_device (weight), error))
    return NULL;
  return g_steal_pointer (&factor);
}

/* A is Kaiming-uniform with a = sqrt (5), as PEFT draws it, and B zero: the branch changes nothing at first. Tensor
 * ranks draw all of A, so that the numbers don't depend on how many they are. */
EbbLoraBranch *
ebb_lora_branch_new (EbbModule *module,
                     EbbLoraOptions *options,
                     GError **error)
{
  const EbbLinear *layer = (EbbLinear *) module;
  EbbTensor *weight = ebb_linear_peek_weight (layer);
  g_autoptr (EbbModule) a = new_factor (weight, EBB_INIT_UNIFORM, 1 / sqrt ((double) layer->in_features),
                                        options->rank, layer->in_features, error);
  g_autoptr (EbbModule) b =
      a != NULL ? new_factor (weight, EBB_INIT_CONSTANT, 0, layer->out_features, options->rank, error) : NULL;
  EbbLoraBranch *branch;
  EbbCut *cut;

  if (b == NULL
      || !ebb_lora_ranks_cut (module, ebb_lora_factor_get_weight (a), ebb_lora_factor_get_weight (b), &cut, error))
    return NULL;
  branch = g_new0 (EbbLoraBranch, 1);
  *branch = (EbbLoraBranch){ g_strdup (options->adapter), g_steal_pointer (&a), g_steal_pointer (&b), cut,
                             ebb_lora_options_get_alpha (options)
                                 / (options->rslora ? sqrt (options->rank) : options->rank),
                             options->dropout };
  return branch;
}

/* Puts the factor under NAME.ADAPTER of the layer; NULL takes it away, and the last one takes NAME with it. */
static void
set_factor (EbbModule *module,
            const char *name,
            const char *adapter,
            EbbModule *factor)
{
  g_autoptr (EbbModule) list = ebb_module_get_child (module, name);

  if (list == NULL)
    {
      list = g_initable_new (EBB_TYPE_LORA_FACTOR, NULL, NULL, NULL);
      ebb_module_register_child (module, name, list, NULL);
    }
  ebb_module_register_child (list, adapter, factor, NULL);
  if (ebb_module_get_n_children (list) == 0)
    ebb_module_register_child (module, name, NULL, NULL);
  else
    ebb_module_set_training (list, ebb_module_get_training (module));
}

/* Consumes @branch. */
void
ebb_lora_layer_add (EbbModule *module,
                    EbbLoraBranch *branch)
{
  EbbLoraLayer *self = ebb_lora_layer_get (module);

  if (self == NULL)
    {
      self = g_new0 (EbbLoraLayer, 1);
      self->module = module;
      self->branches = g_ptr_array_new_with_free_func (ebb_lora_branch_free);
      self->enters = ebb_lora_ranks_lets_enter (module);
      ebb_module_add_idle_interceptor (module, LORA_INTERCEPTOR, branched_forward, is_idle, self, layer_free, NULL);
    }
  g_ptr_array_add (self->branches, branch);
  set_factor (module, NAME_A, branch->adapter, branch->a);
  set_factor (module, NAME_B, branch->adapter, branch->b);
}

void
ebb_lora_layer_remove (EbbModule *module)
{
  guint id = ebb_module_find_interceptor (module, LORA_INTERCEPTOR);

  ebb_lora_layer_activate (ebb_module_get_interceptor_data (module, id), NULL);
  ebb_module_remove_interceptor (module, id);
  ebb_module_register_child (module, NAME_A, NULL, NULL);
  ebb_module_register_child (module, NAME_B, NULL, NULL);
}

void
ebb_lora_layer_drop (EbbModule *module,
                     const char *adapter)
{
  EbbLoraLayer *self = ebb_lora_layer_get (module);

  if (self->branches->len == 1)
    {
      ebb_lora_layer_remove (module);
      return;
    }
  set_factor (module, NAME_A, adapter, NULL);
  set_factor (module, NAME_B, adapter, NULL);
  g_ptr_array_remove (self->branches, ebb_lora_layer_find (self, adapter));
}

void
ebb_lora_layer_activate (EbbLoraLayer *self,
                         EbbLoraBranch *branch)
{
  g_atomic_pointer_set (&self->active, branch);
  if (self->enters)
    ebb_lora_ranks_set_entered (self->module, branch != NULL);
}

void
ebb_lora_layer_choose (EbbLoraLayer *self,
                       const char *adapter)
{
  EbbLoraBranch *chosen = ebb_lora_layer_find (self, adapter);

  for (guint i = 0; i < self->branches->len; i++)
    {
      EbbLoraBranch *branch = g_ptr_array_index (self->branches, i);

      ebb_tensor_set_requires_grad (ebb_lora_factor_get_weight (branch->a), branch == chosen, NULL);
      ebb_tensor_set_requires_grad (ebb_lora_factor_get_weight (branch->b), branch == chosen, NULL);
    }
  ebb_lora_layer_activate (self, chosen);
}
