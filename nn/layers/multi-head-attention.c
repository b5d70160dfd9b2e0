/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/multi-head-attention.h"

#include "nn/args-private.h"
#include "nn/module-private.h"
#include "nn/layers/layer-private.h"
#include "nn/layers/linear.h"
#include "tensor/ops/attention.h"
#include "tensor/ops/shape.h"

#include <math.h>

/**
 * EbbMultiHeadAttention:
 *
 * Multi-head attention (Vaswani et al., 2017, section 3.2). Self attention, on x `[B, T, width]`, computes queries,
 * keys and values in one product; its children are `c_attn` (width to 3 width) and `c_proj`, GPT-2's names. Cross
 * attention, with #EbbMultiHeadAttention:context-width set, takes keys and values from a context `[B, S,
 * context-width]`; its children are `q_attn`, `c_attn` (context width to 2 width) and `c_proj`. The result is `[B, T,
 * width]`.
 *
 * Called with more than x, it takes the arguments `x`, `context` and `mask`. A mask `[B, S]`, `[B, T, S]` or
 * `[B, H, T, S]` is bool, where true means that the query may attend to the key, or floating, added to the scores.
 * Dropout applies to the weights of attention, in training.
 */
struct _EbbMultiHeadAttention
{
  EbbModule parent_instance;

  int width;
  int heads;
  int context_width;
  double dropout;
  gboolean causal;
  gboolean has_bias;
  EbbModule *q_attn; /* in cross attention only */
  EbbModule *c_attn;
  EbbModule *c_proj;
};

G_DEFINE_TYPE (EbbMultiHeadAttention, ebb_multi_head_attention, EBB_TYPE_MODULE)

/**
 * EbbMultiHeadAttention:width:
 *
 * The size of the last dimension of input and output.
 */
/**
 * EbbMultiHeadAttention:heads:
 *
 * The number of heads, which divides the width.
 */
/**
 * EbbMultiHeadAttention:context-width:
 *
 * The size of the last dimension of the context, 0 for self attention.
 */
/**
 * EbbMultiHeadAttention:dropout:
 *
 * The probability with which a weight of attention is dropped in training.
 */
/**
 * EbbMultiHeadAttention:causal:
 *
 * Whether a position attends to itself and earlier ones only.
 */
/**
 * EbbMultiHeadAttention:bias:
 *
 * Whether the linear layers have a bias.
 */
static const EbbLayerProperty properties[] = {
  { "width", "Size of the last dimension", EBB_LAYER_INT, offsetof (EbbMultiHeadAttention, width), 0 },
  { "heads", "Number of heads", EBB_LAYER_INT, offsetof (EbbMultiHeadAttention, heads), 1 },
  { "context-width", "Size of the context's last dimension, 0 for self attention", EBB_LAYER_INT,
    offsetof (EbbMultiHeadAttention, context_width), 0 },
  { "dropout", "Probability of dropping a weight", EBB_LAYER_DOUBLE, offsetof (EbbMultiHeadAttention, dropout), 0 },
  { "causal", "Whether only earlier positions are seen", EBB_LAYER_BOOLEAN, offsetof (EbbMultiHeadAttention, causal),
    FALSE },
  { "bias", "Whether the linear layers have a bias", EBB_LAYER_BOOLEAN, offsetof (EbbMultiHeadAttention, has_bias),
    TRUE },
};

static gboolean
check_sizes (EbbMultiHeadAttention *self, GError **error)
{
  EbbModule *module = EBB_MODULE (self);

  if (!ebb_layer_check_positive (module, "width", self->width, error)
      || !ebb_layer_check_positive (module, "heads", self->heads, error)
      || !ebb_layer_check_probability (module, "dropout", self->dropout, error))
    return FALSE;
  if (self->width % self->heads != 0)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: a width of %d can't be divided among %d heads",
                 ebb_module_get_type_name (module), self->width, self->heads);
  else if (self->width > G_MAXINT / 3)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: a width of %d is too large, at most %d will do",
                 ebb_module_get_type_name (module), self->width, G_MAXINT / 3);
  else if (self->context_width < 0)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: context-width is %d, it must not be negative",
                 ebb_module_get_type_name (module), self->context_width);
  else
    return TRUE;
  return FALSE;
}

static gboolean
ebb_multi_head_attention_build (EbbModule *module, GError **error)
{
  EbbMultiHeadAttention *self = EBB_MULTI_HEAD_ATTENTION (module);
  gboolean bias = self->has_bias;
  gboolean built;

  if (!check_sizes (self, error))
    return FALSE;
  if (self->context_width == 0)
    built = ebb_layer_add_child (module, "c_attn", ebb_linear_new (self->width, 3 * self->width, bias, error), error);
  else
    built = ebb_layer_add_child (module, "q_attn", ebb_linear_new (self->width, self->width, bias, error), error)
            && ebb_layer_add_child (module, "c_attn",
                                    ebb_linear_new (self->context_width, 2 * self->width, bias, error), error);
  return built
         && ebb_layer_add_child (module, "c_proj", ebb_linear_new (self->width, self->width, bias, error), error);
}

/* The mask of a call as attention takes it, [B, H or 1, T or 1, S]: [B, S] (padding) and [B, T, S] get the dimensions
 * that they lack. FALSE with @error for any other number of dimensions; *expanded is NULL if @mask is. */
static gboolean
expand_mask (EbbModule *module, EbbTensor *mask, EbbTensor **expanded, GError **error)
{
  g_autoptr (EbbTensor) with_heads = NULL;
  g_autofree char *shape = NULL;

  *expanded = NULL;
  if (mask == NULL)
    return TRUE;
  switch (ebb_tensor_get_n_dims (mask))
    {
    case 2:
      with_heads = ebb_unsqueeze (mask, 1, error);
      *expanded = ebb_unsqueeze (with_heads, 1, error);
      break;
    case 3: *expanded = ebb_unsqueeze (mask, 1, error); break;
    case 4: *expanded = ebb_tensor_ref (mask); break;
    default:
      shape = ebb_tensor_shape_to_string (mask);
      g_set_error (error, EBB_ERROR, EBB_ERROR_SHAPE, "%s: mask %s; it must be [B, S], [B, T, S] or [B, H, T, S]",
                   ebb_module_get_type_name (module), shape);
    }
  return *expanded != NULL;
}

static gboolean
check_input (EbbMultiHeadAttention *self, const char *name, EbbTensor *tensor, int width, GError **error)
{
  g_autofree char *shape = NULL;

  if (ebb_tensor_get_n_dims (tensor) == 3 && ebb_tensor_get_dim (tensor, 2) == width)
    return TRUE;
  shape = ebb_tensor_shape_to_string (tensor);
  g_set_error (error, EBB_ERROR, EBB_ERROR_SHAPE, "%s: %s %s; it must be [B, T, %d]",
               ebb_module_get_type_name (EBB_MODULE (self)), name, shape, width);
  return FALSE;
}

/* How many heads a projection with @n_parts side by side in its last dimension has: all, unless it gives a part of
 * them, as where ranks divide the heads among them. 0 with @error: no number of heads. */
static gint64
count_heads (EbbMultiHeadAttention *self, EbbTensor *projected, int n_parts, GError **error)
{
  gint64 head_width = self->width / self->heads;
  g_autofree char *shape = NULL;

  if (projected == NULL)
    return 0;
  if (ebb_tensor_get_n_dims (projected) == 3 && ebb_tensor_get_dim (projected, 2) > 0
      && ebb_tensor_get_dim (projected, 2) % (n_parts * head_width) == 0)
    return ebb_tensor_get_dim (projected, 2) / (n_parts * head_width);
  shape = ebb_tensor_shape_to_string (projected);
  g_set_error (error, EBB_ERROR, EBB_ERROR_SHAPE,
               "%s: the projection gives %s; it must be [B, T, n], with n a multiple of %d times %" G_GINT64_FORMAT
               ", the width of a head",
               ebb_module_get_type_name (EBB_MODULE (self)), shape, n_parts, head_width);
  return 0;
}

/* [B, T, H * D] as [B, H, T, D], without a copy. */
static EbbTensor *
split_heads (EbbTensor *x, gint64 n_heads, GError **error)
{
  gint64 shape[] = { ebb_tensor_get_dim (x, 0), ebb_tensor_get_dim (x, 1), n_heads,
                     ebb_tensor_get_dim (x, 2) / n_heads };
  g_autoptr (EbbTensor) split = ebb_view (x, shape, 4, error);

  return ebb_transpose (split, 1, 2, error);
}

/* Queries [B, T, C] with keys and values [B, S, 2 C] side by side. */
static EbbTensor *
cross_attend (EbbMultiHeadAttention *self,
              EbbTensor *queries,
              EbbTensor *keys_values,
              EbbTensor *mask,
              double dropout,
              GError **error)
{
  gint64 width = ebb_tensor_get_dim (queries, 2);
  gint64 n_heads = count_heads (self, queries, 1, error);
  g_autoptr (EbbTensor) keys = ebb_narrow (keys_values, 2, 0, width, error);
  g_autoptr (EbbTensor) values = ebb_narrow (keys_values, 2, width, width, error);
  g_autoptr (EbbTensor) q = NULL;
  g_autoptr (EbbTensor) k = NULL;
  g_autoptr (EbbTensor) v = NULL;
  g_autoptr (EbbTensor) heads = NULL;
  g_autoptr (EbbTensor) by_position = NULL;
  gint64 shape[] = { ebb_tensor_get_dim (queries, 0), ebb_tensor_get_dim (queries, 1), width };

  if (n_heads == 0 || keys == NULL || values == NULL)
    return NULL;
  q = split_heads (queries, n_heads, error);
  k = split_heads (keys, n_heads, error);
  v = split_heads (values, n_heads, error);
  heads = ebb_scaled_dot_product_attention (q, k, v, mask, self->causal, 1 / sqrt ((double) self->width / self->heads),
                                            dropout, NULL, error);
  by_position = ebb_transpose (heads, 1, 2, error);
  return ebb_reshape (by_position, shape, 3, error);
}

static EbbTensor *
attend (EbbMultiHeadAttention *self, EbbTensor *x, EbbTensor *context, EbbTensor *mask, GError **error)
{
  double dropout = ebb_module_get_training (EBB_MODULE (self)) ? self->dropout : 0;
  double scale = 1 / sqrt ((double) self->width / self->heads);
  g_autoptr (EbbTensor) expanded = NULL;
  g_autoptr (EbbTensor) projected = NULL;
  g_autoptr (EbbTensor) queries = NULL;
  g_autoptr (EbbTensor) attended = NULL;
  gint64 n_heads;

  if (!check_input (self, "x", x, self->width, error)
      || (context != NULL && !check_input (self, "context", context, self->context_width, error))
      || !expand_mask (EBB_MODULE (self), mask, &expanded, error))
    return NULL;

  projected = ebb_module_call1 (self->c_attn, context != NULL ? context : x, error);
  if (context == NULL)
    {
      n_heads = count_heads (self, projected, 3, error);
      if (n_heads > 0)
        attended = ebb_self_attention (projected, (guint) n_heads, expanded, self->causal, scale, dropout, NULL, error);
    }
  else
    {
      queries = ebb_module_call1 (self->q_attn, x, error);
      if (queries != NULL && projected != NULL)
        attended = cross_attend (self, queries, projected, expanded, dropout, error);
    }
  g_clear_pointer (&projected, ebb_tensor_unref); /* what backward needs of it is kept there */
  return ebb_module_call1 (self->c_proj, attended, error);
}

static gboolean
check_context (EbbMultiHeadAttention *self, gboolean given, GError **error)
{
  if (given == (self->context_width > 0))
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: %s",
               ebb_module_get_type_name (EBB_MODULE (self)),
               given ? "a context is given, but this is self attention (context-width is 0)"
                     : "context is missing, which cross attention takes keys and values from");
  return FALSE;
}

static EbbTensor *
ebb_multi_head_attention_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  EbbMultiHeadAttention *self = EBB_MULTI_HEAD_ATTENTION (module);

  return check_context (self, FALSE, error) ? attend (self, input, NULL, NULL, error) : NULL;
}

static EbbArgs *
ebb_multi_head_attention_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  EbbMultiHeadAttention *self = EBB_MULTI_HEAD_ATTENTION (module);
  EbbTensor *x, *context, *mask;
  const EbbParameterSpec specs[] = { { "x", EBB_PARAMETER_TENSOR, &x },
                                     { "context", EBB_PARAMETER_OPTIONAL_TENSOR, &context },
                                     { "mask", EBB_PARAMETER_OPTIONAL_TENSOR, &mask } };
  g_autoptr (EbbTensor) result = NULL;

  if (!ebb_args_parse (args, ebb_module_get_type_name (module), specs, G_N_ELEMENTS (specs), error)
      || !check_context (self, context != NULL, error))
    return NULL;
  result = attend (self, x, context, mask, error);
  return result != NULL ? ebb_args_new_for_tensor (result) : NULL;
}

static void
ebb_multi_head_attention_class_init (EbbMultiHeadAttentionClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  module_class->build = ebb_multi_head_attention_build;
  module_class->forward = ebb_multi_head_attention_forward;
  module_class->forward1 = ebb_multi_head_attention_forward1;
  ebb_layer_class_install_properties (G_OBJECT_CLASS (klass), properties, G_N_ELEMENTS (properties));
}

static void
ebb_multi_head_attention_init (EbbMultiHeadAttention *self)
{
  EbbModule *module = EBB_MODULE (self);

  ebb_module_bind_child (module, "q_attn", &self->q_attn);
  ebb_module_bind_child (module, "c_attn", &self->c_attn);
  ebb_module_bind_child (module, "c_proj", &self->c_proj);
}

/**
 * ebb_multi_head_attention_new:
 * @width: the size of the last dimension of input and output
 * @heads: the number of heads, which divides @width
 * @dropout: the probability with which a weight of attention is dropped in training
 * @causal: whether a position attends to itself and earlier ones only
 * @error: return location for an error
 *
 * Makes a self attention.
 *
 * Returns: (transfer full) (type EbbMultiHeadAttention) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_multi_head_attention_new (int width, int heads, double dropout, gboolean causal, GError **error)
{
  return ebb_layer_new (EBB_TYPE_MULTI_HEAD_ATTENTION, error, "width", width, "heads", heads, "dropout", dropout,
                        "causal", causal, NULL);
}

/**
 * ebb_multi_head_attention_new_cross:
 * @width: the size of the last dimension of input and output
 * @heads: the number of heads, which divides @width
 * @context_width: the size of the context's last dimension
 * @dropout: the probability with which a weight of attention is dropped in training
 * @error: return location for an error
 *
 * Makes a cross attention, which is called with the arguments `x` and `context`.
 *
 * Returns: (transfer full) (type EbbMultiHeadAttention) (nullable): the layer, or %NULL with @error set
 */
EbbModule *
ebb_multi_head_attention_new_cross (int width, int heads, int context_width, double dropout, GError **error)
{
  return ebb_layer_new (EBB_TYPE_MULTI_HEAD_ATTENTION, error, "width", width, "heads", heads, "context-width",
                        context_width, "dropout", dropout, NULL);
}
