/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Quantises the weights of linear layers in place. */
#include "nn/layers/layer-private.h"

#include "tensor/autograd/autograd.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/quantized-private.h"
#include "tensor/ops/shape.h"

#include <string.h>

/* -- which layers -------------------------------------------------------------------------------------------------- */

typedef struct
{
  GArray *layers;      /* of EbbQuantizable */
  GHashTable *weights; /* tensor -> how many modules have it as a parameter */
  GError *error;
} Listing;

static void
quantizable_clear (gpointer data)
{
  g_free (((EbbQuantizable *) data)->path);
}

static gboolean
count_weights (EbbModule *module,
               const char *path,
               gpointer user_data)
{
  const EbbTensorRegistry *parameters = &ebb_module_get_private (module)->parameters;
  Listing *listing = user_data;

  for (guint i = 0; i < parameters->n_items; i++)
    {
      EbbTensor *tensor = parameters->items[i].tensor;

      if (tensor != NULL)
        g_hash_table_insert (listing->weights, tensor,
                             GUINT_TO_POINTER (GPOINTER_TO_UINT (g_hash_table_lookup (listing->weights, tensor)) + 1));
    }
  return TRUE;
}

/* As transformers does: what gives logits stays as it is. */
static gboolean
is_head (const char *path)
{
  return strcmp (path, "lm_head") == 0 || g_str_has_suffix (path, ".lm_head");
}

static gboolean
check_layer (EbbLinear *layer,
             const char *path,
             GError **error)
{
  if (ebb_linear_is_quantized (layer))
    ebb_error_set (error, EBB_ERROR_STATE, "quantize: the weight of %s is %s already", path,
                   ebb_quantization_get_name (layer->quantized.quantization));
  else if (layer->weight->owner != NULL || ebb_parameter_is_sharded (layer->weight))
    ebb_error_set (error, EBB_ERROR_STATE,
                   "quantize: the weight of %s is split over ranks; quantise before ebb_fully_shard () and "
                   "ebb_replicate ()",
                   path);
  else if (!ebb_module_is_plain (EBB_MODULE (layer), EBB_TYPE_LINEAR))
    ebb_error_set (error, EBB_ERROR_STATE, "quantize: %s is wrapped; quantise before you wrap it", path);
  else if (layer->weight->view.dtype != EBB_DTYPE_F32 && layer->weight->view.dtype != EBB_DTYPE_BF16)
    ebb_error_set (error, EBB_ERROR_DTYPE, "quantize: the weight of %s is %s; must be f32 or bf16", path,
                   ebb_dtype_get_name (layer->weight->view.dtype));
  else
    return TRUE;
  return FALSE;
}

static gboolean
list_layer (EbbModule *module,
            const char *path,
            gpointer user_data)
{
  Listing *listing = user_data;
  EbbQuantizable found = { (EbbLinear *) module, NULL };

  if (!EBB_IS_LINEAR (module) || is_head (path))
    return TRUE;
  if (G_OBJECT_TYPE (module) != EBB_TYPE_LINEAR)
    return ebb_fail (&listing->error, EBB_ERROR_NOT_SUPPORTED,
                     "quantize: %s is divided among tensor ranks; quantise before ebb_parallelize ()", path);
  if (!ebb_linear_is_quantized (found.layer)
      && GPOINTER_TO_UINT (g_hash_table_lookup (listing->weights, found.layer->weight)) > 1)
    return TRUE;
  if (!check_layer (found.layer, path, &listing->error))
    return FALSE;
  found.path = g_strdup (path);
  g_array_append_val (listing->layers, found);
  return TRUE;
}

GArray *
ebb_quantize_list_layers (EbbModule *model,
                          GError **error)
{
  g_autoptr (GArray) layers = g_array_new (FALSE, FALSE, sizeof (EbbQuantizable));
  g_autoptr (GHashTable) weights = g_hash_table_new (NULL, NULL);
  Listing listing = { layers, weights, NULL };

  g_array_set_clear_func (layers, quantizable_clear);
  ebb_module_visit (model, count_weights, &listing);
  ebb_module_visit (model, list_layer, &listing);
  if (listing.error == NULL && layers->len == 0)
    ebb_error_set (&listing.error, EBB_ERROR_INVALID_ARGUMENT,
                   "quantize: %s has no linear layer with a weight of its own, other than a head",
                   ebb_module_get_type_name (model));
  if (listing.error == NULL)
    return g_steal_pointer (&layers);
  g_propagate_error (error, listing.error);
  return NULL;
}

/* -- a layer ------------------------------------------------------------------------------------------------------- */

void
ebb_linear_take_quantized (EbbLinear *self,
                           EbbQuantizedWeight *weight)
{
  EbbModule *module = EBB_MODULE (self);
  EbbQuantizedTensor tensor;

  ebb_module_register_parameter (module, "weight", NULL, NULL);
  self->quantized = (EbbQuantizedWeight){ .quantization = weight->quantization,
                                          .n_rows = weight->n_rows,
                                          .n_columns = weight->n_columns,
                                          .blocks_per_scale = weight->blocks_per_scale,
                                          .n_full = weight->n_full };
  for (guint i = 0;
       ebb_quantized_describe (weight->quantization, i, weight->n_rows, weight->n_columns, &tensor); i++)
    {
      /* A new tensor under a name that is free: nothing can be wrong with it. */
      ebb_module_bind_buffer (module, tensor.name, &EBB_QUANTIZED_FIELD (&self->quantized, &tensor));
      ebb_module_register_exact_buffer (module, tensor.name, EBB_QUANTIZED_FIELD (weight, &tensor), TRUE, NULL);
    }
  if (weight->nested_index != NULL)
    {
      ebb_module_bind_buffer (module, "weight_nested_index", &self->quantized.nested_index);
      ebb_module_register_exact_buffer (module, "weight_nested_index", weight->nested_index, FALSE, NULL);
    }
  ebb_quantized_weight_clear (weight);
}

/* On the host, contiguous. */
static EbbTensor *
bring_weight (EbbTensor *weight,
              GError **error)
{
  g_autoptr (EbbTensor) alias = ebb_tensor_alias (weight);
  g_autoptr (EbbTensor) host = ebb_to_device (alias, ebb_device_get_cpu (), error);

  return host != NULL ? ebb_contiguous (host, error) : NULL;
}

static gboolean
encode_layer (EbbLinear *layer,
              EbbQuantization quantization,
              EbbQuantizedWeight *weight,
              GError **error)
{
  g_autoptr (EbbTensor) host = NULL;

  if (!ebb_quantized_weight_init (weight, quantization, layer->out_features, layer->in_features,
                                  layer->weight->storage->device, error))
    return FALSE;
  if (!layer->weight->storage->placeholder)
    host = bring_weight (layer->weight, error);
  return layer->weight->storage->placeholder || (host != NULL && ebb_quantized_weight_encode (weight, host, error));
}

static gboolean
encode_layers (GArray *layers,
               EbbQuantization quantization,
               EbbQuantizedWeight *weights,
               GError **error)
{
  for (guint i = 0; i < layers->len; i++)
    if (!encode_layer (g_array_index (layers, EbbQuantizable, i).layer, quantization, &weights[i], error))
      {
        g_prefix_error (error, "quantize: the weight of %s: ", g_array_index (layers, EbbQuantizable, i).path);
        return FALSE;
      }
  return TRUE;
}

/**
 * ebb_quantize:
 * @model: a module
 * @quantization: %EBB_QUANTIZATION_INT8 or %EBB_QUANTIZATION_NF4
 * @error: return location for an error
 *
 * Quantises the weights of the linear layers of @model in place: the same modules with the same names, whose products
 * dequantise a panel of the weight at a time. Heads (`lm_head`), weights that several modules share, embeddings, norms
 * and biases stay. A quantised weight is no parameter but buffers, of the memory of parameters: it has no gradient and
 * is not trained; ebb_lora_wrap() adds what is.
 *
 * In nf4 an element takes 0.5 bytes and 1 / 64 for its block's scale, in int8 one byte; codes are those that
 * bitsandbytes computes on the CPU. Weights are quantised on the CPU, wherever they are. All are quantised
 * before the first is exchanged: an error changes nothing, and until the end the model has both. Use
 * ebb_model_open_quantized() to open a model's folder without that.
 *
 * Returns: %TRUE if it was done; %FALSE with %EBB_ERROR_STATE if a weight is quantised, wrapped or split over ranks
 *   already, %EBB_ERROR_INVALID_ARGUMENT if there is no such layer or a value is not finite
 */
gboolean
ebb_quantize (EbbModule *model,
              EbbQuantization quantization,
              GError **error)
{
  g_autoptr (GArray) layers = NULL;
  g_autofree EbbQuantizedWeight *weights = NULL;
  gboolean done;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, model);
  g_return_val_if_fail (EBB_IS_MODULE (model), FALSE);

  if (quantization != EBB_QUANTIZATION_INT8 && quantization != EBB_QUANTIZATION_NF4)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "quantize: the quantisation is %s; must be int8 or nf4",
                     quantization == EBB_QUANTIZATION_NONE ? "none" : "unknown");
  layers = ebb_quantize_list_layers (model, error);
  if (layers == NULL)
    return FALSE;
  weights = g_new0 (EbbQuantizedWeight, layers->len);
  ebb_push_grad_enabled (FALSE);
  done = encode_layers (layers, quantization, weights, error);
  ebb_pop_grad_enabled ();
  for (guint i = 0; i < layers->len; i++)
    if (done)
      ebb_linear_take_quantized (g_array_index (layers, EbbQuantizable, i).layer, &weights[i]);
    else
      ebb_quantized_weight_clear (&weights[i]);
  return done;
}

/* -- quantised modules --------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbQuantization quantization;
  char *path; /* of the first */
} Search;

static gboolean
look_for_quantized (EbbModule *module,
                    const char *path,
                    gpointer user_data)
{
  Search *search = user_data;

  if (!EBB_IS_LINEAR (module) || !ebb_linear_is_quantized ((EbbLinear *) module))
    return TRUE;
  search->quantization = ((EbbLinear *) module)->quantized.quantization;
  search->path = g_strdup (path);
  return FALSE;
}

/**
 * ebb_get_quantization:
 * @model: a module
 *
 * Returns: how the weights of the linear layers of the module and of those below it are held: that of the first one
 *   that is quantised, %EBB_QUANTIZATION_NONE if none is
 */
EbbQuantization
ebb_get_quantization (EbbModule *model)
{
  Search search = { EBB_QUANTIZATION_NONE, NULL };

  g_return_val_if_fail (EBB_IS_MODULE (model), EBB_QUANTIZATION_NONE);

  ebb_module_visit (model, look_for_quantized, &search);
  g_free (search.path);
  return search.quantization;
}

gboolean
ebb_module_check_not_quantized (EbbModule *module,
                                const char *what,
                                GError **error)
{
  Search search = { EBB_QUANTIZATION_NONE, NULL };

  ebb_module_visit (module, look_for_quantized, &search);
  if (search.quantization == EBB_QUANTIZATION_NONE)
    return TRUE;
  ebb_error_set (error, EBB_ERROR_NOT_SUPPORTED, "the weight of %s is %s: %s",
                 *search.path != '\0' ? search.path : "the layer", ebb_quantization_get_name (search.quantization),
                 what);
  g_free (search.path);
  return FALSE;
}

/**
 * ebb_linear_dequantize:
 * @self: a linear layer with a quantised weight
 * @dtype: f32 or bf16
 * @error: return location for an error
 *
 * Computes the weight that the layer's products multiply with, all of it.
 *
 * Returns: (transfer full) (nullable): a tensor `[out-features, in-features]`; %NULL with %EBB_ERROR_STATE if the
 * weight is not quantised, %EBB_ERROR_DTYPE for another dtype
 */
EbbTensor *
ebb_linear_dequantize (EbbLinear *self,
                       EbbDType dtype,
                       GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, self);
  g_return_val_if_fail (EBB_IS_LINEAR (self), NULL);

  if (!ebb_linear_is_quantized (self))
    ebb_error_set (error, EBB_ERROR_STATE, "linear_dequantize: the weight is not quantised");
  else if (dtype != EBB_DTYPE_F32 && dtype != EBB_DTYPE_BF16)
    ebb_error_set (error, EBB_ERROR_DTYPE, "linear_dequantize: dtype is %s; must be f32 or bf16",
                   (guint) dtype < EBB_N_DTYPES ? ebb_dtype_get_name (dtype) : "no dtype");
  else
    return ebb_quantized_decode (&self->quantized, dtype, error);
  return NULL;
}
