/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/multi-head-attention.h"

#include "nn/args-private.h"
#include "nn/layers/block-private.h"
#include "nn/layers/layer-private.h"
#include "nn/layers/linear.h"
#include "nn/layers/rotary-private.h"
#include "nn/module-private.h"
#include "tensor/autograd/op-private.h"
#include "tensor/error-private.h"
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
 * The attention of an #EbbGpt with %EBB_GPT_LAYOUT_LLAMA has the children `q_proj`, `k_proj`, `v_proj` and `o_proj`,
 * with #EbbGptConfig.qk_norm also `q_norm` and `k_norm`, and what else its configuration chooses: fewer heads of keys
 * and values, rotary positions, a window, a soft cap.
 *
 * Called with more than x, it takes the arguments `x`, `context`, `mask`, `starts` and `cache`. A mask `[B, S]`,
 * `[B, T, S]` or `[B, H, T, S]` is bool, where true means that the query may attend to the key, or floating, added to
 * the scores. `starts` `[B, T]` of i64 or i32 says for each token at which index of its row its document begins: it
 * attends to nothing before, and its position counts from there; a token before its own start is padding and gives 0.
 * `cache` is an #EbbKeyValueCache with the keys and values of earlier calls, to which this call's are added. Dropout
 * applies to the weights of attention, in training.
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
  EbbBlockConfig *config; /* after build never NULL */
  int head_width;
  int kv_heads;
  int window;
  gboolean is_plain; /* of GPT-2's choices: no window, soft cap or scale of its own */
  EbbAttentionForm form;
  EbbRotary rotary;
  EbbModule *q_attn; /* in cross attention only */
  EbbModule *c_attn;
  EbbModule *c_proj;
  EbbModule *q_proj; /* in the layout of Llama, with those below */
  EbbModule *k_proj;
  EbbModule *v_proj;
  EbbModule *o_proj;
  EbbModule *q_norm;
  EbbModule *k_norm;
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
  if ((self->config == NULL || self->config->head_width == 0) && self->width % self->heads != 0)
    ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT, "%s: a width of %d can't be divided among %d heads",
                   ebb_module_get_type_name (module), self->width, self->heads);
  else if (self->width > G_MAXINT / 3)
    ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT, "%s: a width of %d is too large, at most %d will do",
                   ebb_module_get_type_name (module), self->width, G_MAXINT / 3);
  else if (self->context_width < 0)
    ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT, "%s: context-width is %d, it must not be negative",
                   ebb_module_get_type_name (module), self->context_width);
  else
    return TRUE;
  return FALSE;
}

/* Makes a configuration of the properties if the layer has none, and sets the fields from the configuration. */
static void
settle_config (EbbMultiHeadAttention *self)
{
  EbbBlockConfig *config = self->config;

  if (config == NULL)
    {
      config = self->config = ebb_block_config_new ();
      config->width = self->width;
      config->heads = self->heads;
      config->dropout = self->dropout;
      config->causal = self->causal;
      config->bias = self->has_bias;
    }
  self->head_width = config->head_width != 0 ? config->head_width : self->width / self->heads;
  self->kv_heads = config->kv_heads != 0 ? config->kv_heads : self->heads;
  self->window = config->window;
  self->is_plain = config->window == 0 && config->attention_softcap == 0;
  self->form = (EbbAttentionForm){
    .causal = self->causal,
    .window = config->window,
    .softcap = config->attention_softcap,
    .scale = config->attention_scale != 0 ? config->attention_scale : 1 / sqrt ((double) self->head_width),
  };
}

static gboolean
add_linear (EbbMultiHeadAttention *self,
            const char *name,
            EbbModule **field,
            gint64 n_in,
            gint64 n_out,
            gboolean has_bias,
            GError **error)
{
  EbbModule *module = EBB_MODULE (self);

  ebb_module_bind_child (module, name, field);
  return ebb_layer_add_child (module, name, ebb_linear_new ((int) n_in, (int) n_out, has_bias, error), error);
}

/* GPT-2's names, with one product for queries, keys and values. */
static gboolean
add_joined (EbbMultiHeadAttention *self, GError **error)
{
  const EbbBlockConfig *config = self->config;
  gboolean bias = config->bias || config->qkv_bias;
  int width = self->width;

  return (self->context_width == 0
              ? add_linear (self, "c_attn", &self->c_attn, width, 3 * width, bias, error)
              : add_linear (self, "q_attn", &self->q_attn, width, width, bias, error)
                    && add_linear (self, "c_attn", &self->c_attn, self->context_width, 2 * width, bias, error))
         && add_linear (self, "c_proj", &self->c_proj, width, width, config->bias || config->output_bias, error);
}

static gboolean
add_head_norm (EbbMultiHeadAttention *self, const char *name, EbbModule **field, GError **error)
{
  EbbModule *module = EBB_MODULE (self);

  ebb_module_bind_child (module, name, field);
  return ebb_layer_add_child (module, name, ebb_block_config_new_norm (self->config, self->head_width, error), error);
}

/* Llama's names, each product by itself. */
static gboolean
add_separate (EbbMultiHeadAttention *self, GError **error)
{
  const EbbBlockConfig *config = self->config;
  gboolean bias = config->bias || config->qkv_bias;
  int width = self->width, n_queries = self->heads * self->head_width, n_keys = self->kv_heads * self->head_width;

  return add_linear (self, "q_proj", &self->q_proj, width, n_queries, bias, error)
         && add_linear (self, "k_proj", &self->k_proj, width, n_keys, bias, error)
         && add_linear (self, "v_proj", &self->v_proj, width, n_keys, bias, error)
         && add_linear (self, "o_proj", &self->o_proj, n_queries, width, config->bias || config->output_bias, error)
         && (!config->qk_norm
             || (add_head_norm (self, "q_norm", &self->q_norm, error)
                 && add_head_norm (self, "k_norm", &self->k_norm, error)))
         && (!config->is_rotary
             || ebb_rotary_install (&self->rotary, EBB_MODULE (self), &config->rotary, self->head_width,
                                    config->context, error));
}

static gboolean
ebb_multi_head_attention_build (EbbModule *module, GError **error)
{
  EbbMultiHeadAttention *self = EBB_MULTI_HEAD_ATTENTION (module);

  if (!check_sizes (self, error))
    return FALSE;
  settle_config (self);
  return self->config->layout == EBB_GPT_LAYOUT_LLAMA ? add_separate (self, error) : add_joined (self, error);
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
      ebb_error_set (error, EBB_ERROR_SHAPE, "%s: mask %s; it must be [B, S], [B, T, S] or [B, H, T, S]",
                     ebb_module_get_type_name (module), shape);
    }
  return *expanded != NULL;
}

static gboolean
check_input (EbbMultiHeadAttention *self, const char *name, EbbTensor *tensor, int width, GError **error)
{
  return (ebb_tensor_get_n_dims (tensor) == 3 && ebb_tensor_get_dim (tensor, 2) == width)
         || ebb_fail (error, EBB_ERROR_SHAPE, "%s: %s %s; it must be [B, T, %d]",
                      ebb_module_get_type_name (EBB_MODULE (self)), name, ebb_show_shape (tensor), width);
}

/* How many heads a projection with @n_parts side by side in its last dimension has: all, unless it gives a part of
 * them, as where ranks divide the heads among them. 0 with @error: no number of heads. */
static gint64
count_heads (EbbMultiHeadAttention *self, EbbTensor *projected, int n_parts, GError **error)
{
  gint64 head_width = self->head_width;
  g_autofree char *shape = NULL;

  if (projected == NULL)
    return 0;
  if (ebb_tensor_get_n_dims (projected) == 3 && ebb_tensor_get_dim (projected, 2) > 0
      && ebb_tensor_get_dim (projected, 2) % (n_parts * head_width) == 0)
    return ebb_tensor_get_dim (projected, 2) / (n_parts * head_width);
  shape = ebb_tensor_shape_to_string (projected);
  ebb_error_set (error, EBB_ERROR_SHAPE,
                 "%s: the projection gives %s; it must be [B, T, n], with n a multiple of %d times %" G_GINT64_FORMAT
                 ", the width of a head",
                 ebb_module_get_type_name (EBB_MODULE (self)), shape, n_parts, head_width);
  return 0;
}

/* [B, T, H * D] as [B, T, H, D], without a copy. */
static EbbTensor *
split_heads (EbbTensor *x, gint64 n_heads, GError **error)
{
  gint64 shape[] = { ebb_tensor_get_dim (x, 0), ebb_tensor_get_dim (x, 1), n_heads,
                     ebb_tensor_get_dim (x, 2) / n_heads };

  return ebb_view (x, shape, 4, error);
}

/* Queries, keys and values [B, T or S, heads, D], which are consumed, as attention takes them; [B, T, heads * D]. */
static EbbTensor *
attend_by_heads (EbbMultiHeadAttention *self,
                 EbbTensor *queries,
                 EbbTensor *keys,
                 EbbTensor *values,
                 const EbbBlockInputs *inputs,
                 const EbbAttentionForm *form,
                 GError **error)
{
  g_autoptr (EbbTensor) q = ebb_transpose (queries, 1, 2, error);
  g_autoptr (EbbTensor) k = ebb_transpose (keys, 1, 2, error);
  g_autoptr (EbbTensor) v = ebb_transpose (values, 1, 2, error);
  g_autoptr (EbbTensor) heads = NULL;
  g_autoptr (EbbTensor) by_position = NULL;
  gint64 shape[3];

  g_clear_pointer (&queries, ebb_tensor_unref);
  g_clear_pointer (&keys, ebb_tensor_unref);
  g_clear_pointer (&values, ebb_tensor_unref);
  if (q == NULL || k == NULL || v == NULL)
    return NULL;
  if (inputs->cache != NULL)
    {
      EbbTensor *all_keys, *all_values;

      if (!ebb_key_value_cache_append (inputs->cache, EBB_MODULE (self), k, v, &all_keys, &all_values, error))
        return NULL;
      ebb_tensor_unref (k);
      ebb_tensor_unref (v);
      k = all_keys;
      v = all_values;
    }
  heads = ebb_attention (q, k, v, inputs->mask, inputs->starts, form, NULL, error);
  by_position = ebb_transpose (heads, 1, 2, error);
  if (by_position == NULL)
    return NULL;
  shape[0] = ebb_tensor_get_dim (by_position, 0);
  shape[1] = ebb_tensor_get_dim (by_position, 1);
  shape[2] = ebb_tensor_get_dim (by_position, 2) * ebb_tensor_get_dim (by_position, 3);
  return ebb_reshape (by_position, shape, 3, error);
}

/* The @part-th of @n_parts side by side in the last dimension of @packed, as heads. */
static EbbTensor *
take_heads (EbbTensor *packed, gint64 n_heads, int part, int n_parts, GError **error)
{
  gint64 width = ebb_tensor_get_dim (packed, 2) / n_parts;
  g_autoptr (EbbTensor) narrowed = ebb_narrow (packed, 2, part * width, width, error);

  return narrowed != NULL ? split_heads (narrowed, n_heads, error) : NULL;
}

/* Queries, keys and values side by side in one tensor. */
static EbbTensor *
attend_joined (EbbMultiHeadAttention *self,
               EbbTensor *projected,
               const EbbBlockInputs *inputs,
               const EbbAttentionForm *form,
               GError **error)
{
  gint64 n_heads = count_heads (self, projected, 3, error);

  if (n_heads == 0)
    return NULL;
  if (inputs->cache != NULL)
    return attend_by_heads (self, take_heads (projected, n_heads, 0, 3, error),
                            take_heads (projected, n_heads, 1, 3, error), take_heads (projected, n_heads, 2, 3, error),
                            inputs, form, error);
  if (self->is_plain && inputs->starts == NULL)
    return ebb_self_attention (projected, (guint) n_heads, inputs->mask, form->causal, form->scale, form->dropout_p,
                               NULL, error);
  return ebb_self_attention_full (projected, (guint) n_heads, inputs->mask, inputs->starts, form, NULL, error);
}

/* Queries with keys and values [B, S, 2 C] side by side. */
static EbbTensor *
attend_cross (EbbMultiHeadAttention *self,
              EbbTensor *queries,
              EbbTensor *projected,
              const EbbBlockInputs *inputs,
              const EbbAttentionForm *form,
              GError **error)
{
  gint64 n_heads = count_heads (self, queries, 1, error);

  if (n_heads == 0 || count_heads (self, projected, 2, error) == 0)
    return NULL;
  return attend_by_heads (self, split_heads (queries, n_heads, error), take_heads (projected, n_heads, 0, 2, error),
                          take_heads (projected, n_heads, 1, 2, error), inputs, form, error);
}

/* The heads of what @projection gives, normalised by @norm (NULL: not) and rotated if @is_rotated. */
static EbbTensor *
project_heads (EbbMultiHeadAttention *self,
               EbbModule *projection,
               EbbModule *norm,
               gboolean is_rotated,
               EbbTensor *x,
               EbbTensor *starts,
               gint64 first,
               GError **error)
{
  EbbTensor *projected = ebb_module_call1 (projection, x, error);
  gint64 n_heads = count_heads (self, projected, 1, error);
  EbbTensor *heads = n_heads > 0 ? split_heads (projected, n_heads, error) : NULL;

  g_clear_pointer (&projected, ebb_tensor_unref);
  if (heads != NULL && norm != NULL)
    {
      EbbTensor *normalized = ebb_module_call1 (norm, heads, error);

      ebb_tensor_unref (heads);
      heads = normalized;
    }
  if (heads != NULL && is_rotated)
    {
      EbbTensor *rotated = ebb_rotary_apply (&self->rotary, heads, starts, first, error);

      ebb_tensor_unref (heads);
      heads = rotated;
    }
  return heads;
}

/* Each product by itself. */
static EbbTensor *
attend_separate (EbbMultiHeadAttention *self,
                 EbbTensor *input,
                 const EbbBlockInputs *inputs,
                 const EbbAttentionForm *form,
                 GError **error)
{
  g_autoptr (EbbTensor) x = ebb_layer_share_input (EBB_MODULE (self), input, error);
  const gint64 first = form->first_query;
  gboolean is_rotary = self->config->is_rotary;
  EbbTensor *queries, *keys = NULL, *values = NULL;
  EbbSharedCast cast;

  ebb_shared_cast_begin (&cast, x);
  queries = project_heads (self, self->q_proj, self->q_norm, is_rotary, x, inputs->starts, first, error);
  if (queries != NULL)
    keys = project_heads (self, self->k_proj, self->k_norm, is_rotary, x, inputs->starts, first, error);
  if (keys != NULL)
    values = project_heads (self, self->v_proj, NULL, FALSE, x, NULL, 0, error);
  ebb_shared_cast_end (&cast);
  return attend_by_heads (self, queries, keys, values, inputs, form, error);
}

static gboolean
check_starts (EbbMultiHeadAttention *self, EbbTensor *starts, EbbTensor *x, GError **error)
{
  return starts == NULL
         || (ebb_tensor_get_n_dims (starts) == 2 && ebb_tensor_get_dim (starts, 0) == ebb_tensor_get_dim (x, 0))
         || ebb_fail (error, EBB_ERROR_SHAPE, "%s: starts %s; it must be [B, T], one for each token",
                      ebb_module_get_type_name (EBB_MODULE (self)), ebb_show_shape (starts));
}

/* @inputs: of the call, the mask as it was given. */
static EbbTensor *
attend (EbbMultiHeadAttention *self, EbbTensor *x, EbbTensor *context, const EbbBlockInputs *inputs, GError **error)
{
  EbbAttentionForm form = self->form;
  g_autoptr (EbbTensor) mask = NULL;
  g_autoptr (EbbTensor) projected = NULL;
  g_autoptr (EbbTensor) queries = NULL;
  g_autoptr (EbbTensor) attended = NULL;
  EbbBlockInputs expanded = *inputs;

  if (!check_input (self, "x", x, self->width, error)
      || (context != NULL && !check_input (self, "context", context, self->context_width, error))
      || !check_starts (self, inputs->starts, x, error) || !expand_mask (EBB_MODULE (self), inputs->mask, &mask, error))
    return NULL;
  expanded.mask = mask;
  form.dropout_p = ebb_module_get_training (EBB_MODULE (self)) ? self->dropout : 0;
  form.first_query = inputs->cache != NULL ? ebb_key_value_cache_get_length (inputs->cache) : 0;

  if (self->config->layout == EBB_GPT_LAYOUT_LLAMA)
    {
      attended = attend_separate (self, x, &expanded, &form, error);
      return ebb_module_call1 (self->o_proj, attended, error);
    }
  projected = ebb_module_call1 (self->c_attn, context != NULL ? context : x, error);
  if (context == NULL)
    attended = attend_joined (self, projected, &expanded, &form, error);
  else
    {
      queries = ebb_module_call1 (self->q_attn, x, error);
      attended = attend_cross (self, queries, projected, &expanded, &form, error);
    }
  g_clear_pointer (&projected, ebb_tensor_unref); /* what backward needs of it is kept there */
  return ebb_module_call1 (self->c_proj, attended, error);
}

/* A context is for cross attention alone, and what belongs to a row of tokens for self attention. */
static gboolean
check_context (EbbMultiHeadAttention *self, gboolean given, const EbbBlockInputs *inputs, GError **error)
{
  if (given && (inputs->starts != NULL || inputs->cache != NULL))
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "%s: cross attention takes no %s",
                     ebb_module_get_type_name (EBB_MODULE (self)), inputs->starts != NULL ? "starts" : "cache");
  return given == (self->context_width > 0)
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: %s", ebb_module_get_type_name (EBB_MODULE (self)),
                      given ? "a context is given, but this is self attention (context-width is 0)"
                            : "context is missing, which cross attention takes keys and values from");
}

static EbbTensor *
ebb_multi_head_attention_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  EbbMultiHeadAttention *self = EBB_MULTI_HEAD_ATTENTION (module);

  return check_context (self, FALSE, EBB_NO_BLOCK_INPUTS, error)
             ? attend (self, input, NULL, EBB_NO_BLOCK_INPUTS, error)
             : NULL;
}

static EbbArgs *
ebb_multi_head_attention_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  EbbMultiHeadAttention *self = EBB_MULTI_HEAD_ATTENTION (module);
  EbbTensor *x, *context;
  EbbBlockInputs inputs = { 0 };
  const EbbParameterSpec specs[] = {
    { "x", EBB_PARAMETER_TENSOR, &x },
    { "context", EBB_PARAMETER_OPTIONAL_TENSOR, &context },
    { "mask", EBB_PARAMETER_OPTIONAL_TENSOR, &inputs.mask },
    { "starts", EBB_PARAMETER_OPTIONAL_TENSOR, &inputs.starts },
    { "cache", EBB_PARAMETER_OPTIONAL_OBJECT, &inputs.cache, EBB_TYPE_KEY_VALUE_CACHE },
  };
  g_autoptr (EbbTensor) result = NULL;

  if (!ebb_args_parse (args, ebb_module_get_type_name (module), specs, G_N_ELEMENTS (specs), error)
      || !check_context (self, context != NULL, &inputs, error))
    return NULL;
  result = attend (self, x, context, &inputs, error);
  return result != NULL ? ebb_args_new_for_tensor (result) : NULL;
}

static void
ebb_multi_head_attention_finalize (GObject *object)
{
  g_clear_pointer (&EBB_MULTI_HEAD_ATTENTION (object)->config, ebb_block_config_unref);
  G_OBJECT_CLASS (ebb_multi_head_attention_parent_class)->finalize (object);
}

/* A size that the configuration of a model chooses: it can be read. */
static void
install_chosen_size (EbbMultiHeadAttentionClass *klass, const char *name, gsize offset)
{
  g_object_class_install_property (
      G_OBJECT_CLASS (klass), (guint) offset,
      g_param_spec_int (name, NULL, NULL, 0, G_MAXINT, 0, G_PARAM_READABLE | G_PARAM_STATIC_STRINGS));
}

static void
ebb_multi_head_attention_class_init (EbbMultiHeadAttentionClass *klass)
{
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  G_OBJECT_CLASS (klass)->finalize = ebb_multi_head_attention_finalize;
  module_class->build = ebb_multi_head_attention_build;
  module_class->forward = ebb_multi_head_attention_forward;
  module_class->forward1 = ebb_multi_head_attention_forward1;
  ebb_layer_class_install_properties (G_OBJECT_CLASS (klass), properties, G_N_ELEMENTS (properties));

  /**
   * EbbMultiHeadAttention:kv-heads:
   *
   * The number of heads of keys and values; each serves as many heads of queries.
   */
  install_chosen_size (klass, "kv-heads", offsetof (EbbMultiHeadAttention, kv_heads));
  /**
   * EbbMultiHeadAttention:head-width:
   *
   * The width of a head.
   */
  install_chosen_size (klass, "head-width", offsetof (EbbMultiHeadAttention, head_width));
  /**
   * EbbMultiHeadAttention:window:
   *
   * How many positions a query sees, its own included; 0 for all.
   */
  install_chosen_size (klass, "window", offsetof (EbbMultiHeadAttention, window));
}

static void
ebb_multi_head_attention_init (EbbMultiHeadAttention *self)
{
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

EbbModule *
ebb_multi_head_attention_new_from (EbbBlockConfig *config, GError **error)
{
  const double dropout = config->attention_dropout < 0 ? config->dropout : config->attention_dropout;
  EbbMultiHeadAttention *self = g_object_new (EBB_TYPE_MULTI_HEAD_ATTENTION, "width", config->width, "heads",
                                              config->heads, "dropout", dropout, "causal", config->causal,
                                              "bias", config->bias || config->qkv_bias, NULL);

  self->config = ebb_block_config_ref (config);
  return ebb_layer_build (EBB_MODULE (self), error);
}

void
ebb_multi_head_attention_set_dropout (EbbModule *self, double dropout)
{
  EBB_MULTI_HEAD_ATTENTION (self)->dropout = dropout;
}

int
ebb_multi_head_attention_get_kv_heads (EbbModule *self)
{
  return EBB_MULTI_HEAD_ATTENTION (self)->kv_heads;
}
