/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/bert.h"

#include "nn/args-private.h"
#include "nn/initialization.h"
#include "nn/layers/block-private.h"
#include "nn/layers/layer-private.h"
#include "nn/layers/module-list.h"
#include "nn/layers/stack-private.h"
#include "nn/layers/transformer-block.h"
#include "nn/models/model-config-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/activation.h"
#include "tensor/ops/creation.h"
#include "tensor/ops/indexing.h"
#include "tensor/ops/normalization.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/tensor-private.h"
#include "tensor/util/property-private.h"

/**
 * EbbBert:
 *
 * An encoder of post-norm transformer blocks with a masked-language-model head: BERT (Devlin et al., 2019). Children:
 * `word_embeddings`, `position_embeddings`, `segment_embeddings` and the norm of their sum, `embeddings_norm`; `layer`,
 * the list of #EbbTransformerBlock; and the head's `transform`, which is followed by GELU, and `transform_norm`. The
 * head ends with a product that shares the weight of `word_embeddings` and adds the parameter `output_bias`. The names
 * of the published files are those of ebb_bert_load_published().
 *
 * Called with tokens `[B, T]` of i64 or i32 it gives logits `[B, T, vocab]`. Its other arguments, by position or name:
 * `segments` `[B, T]`, to which of the segments each token belongs, the first if left out; `mask` `[B, T]` of bool or
 * integers, where zero is padding that no token attends to; and `targets` `[B, T]`, with which it gives the mean cross
 * entropy over the targets that are not -100, and never holds all logits. Of positions whose target is -100 the head
 * computes nothing: with the usual 15 % of targets that is most of its work. Which these are is read on the host.
 */
struct _EbbBert
{
  EbbModule parent_instance;

  EbbBertConfig *config;
  EbbModule *word_embeddings;
  EbbModule *position_embeddings;
  EbbModule *segment_embeddings;
  EbbModule *embeddings_norm;
  EbbModule *layer;
  EbbModule *transform;
  EbbModule *transform_norm;
  EbbTensor *output_bias; /* [vocab] */
};

G_DEFINE_TYPE (EbbBert, ebb_bert, EBB_TYPE_MODULE)

static void
ebb_bert_finalize (GObject *object)
{
  g_clear_pointer (&EBB_BERT (object)->config, ebb_bert_config_free);
  G_OBJECT_CLASS (ebb_bert_parent_class)->finalize (object);
}

/* -- building ------------------------------------------------------------------------------------------------------ */

static gboolean
add_embeddings (EbbBert *self, GError **error)
{
  EbbModule *module = EBB_MODULE (self);
  EbbBertConfig *config = self->config;
  int width = config->width;
  const struct
  {
    const char *name;
    int size;
  } tables[] = { { "word_embeddings", config->vocab },
                 { "position_embeddings", config->context },
                 { "segment_embeddings", config->segments } };

  for (guint i = 0; i < G_N_ELEMENTS (tables); i++)
    if (!ebb_layer_add_child (module, tables[i].name, ebb_embedding_new (tables[i].size, width, error), error))
      return FALSE;
  return ebb_layer_add_child (module, "embeddings_norm",
                              ebb_layer_norm_new (width, config->norm_eps, TRUE, error), error);
}

static gboolean
add_blocks (EbbBert *self, GError **error)
{
  EbbBertConfig *config = self->config;

  if (!ebb_layer_add_child (EBB_MODULE (self), "layer", ebb_module_list_new (), error))
    return FALSE;
  for (int i = 0; i < config->layers; i++)
    {
      g_autoptr (EbbModule) block =
          ebb_layer_new (EBB_TYPE_TRANSFORMER_BLOCK, error, "width", config->width, "heads", config->heads, "hidden",
                         config->hidden, "dropout", config->dropout, "attention-dropout", config->attention_dropout,
                         "causal", FALSE, "pre-norm", FALSE, "activation", EBB_ACTIVATION_GELU, "norm-eps",
                         config->norm_eps, "bias", TRUE, NULL);

      if (!ebb_module_list_append (EBB_MODULE_LIST (self->layer), block, error))
        return FALSE;
    }
  return TRUE;
}

static gboolean
add_head (EbbBert *self, GError **error)
{
  EbbModule *module = EBB_MODULE (self);
  int width = self->config->width;
  gint64 vocab = self->config->vocab;

  return ebb_layer_add_child (module, "transform", ebb_linear_new (width, width, TRUE, error), error)
         && ebb_layer_add_child (module, "transform_norm",
                                 ebb_layer_norm_new (width, self->config->norm_eps, TRUE, error),
                                 error)
         && ebb_layer_add_parameter (module, "output_bias", EBB_INIT_CONSTANT, 0, &vocab, 1, error);
}

static gboolean
ebb_bert_build (EbbModule *module, GError **error)
{
  EbbBert *self = EBB_BERT (module);
  gboolean added;

  if (!ebb_model_check_has_config (module, self->config, error) || !ebb_bert_config_check (self->config, error))
    return FALSE;
  /* All that the layers would draw is drawn anew. */
  ebb_push_initialization_skipped ();
  added = add_embeddings (self, error) && add_blocks (self, error) && add_head (self, error);
  ebb_pop_initialization_skipped ();
  return added && ebb_model_initialize (module, NULL, error);
}

/* -- forward ------------------------------------------------------------------------------------------------------- */

static gboolean
check_tokens (EbbBert *self, EbbTensor *tokens, GError **error)
{
  return (ebb_tensor_get_n_dims (tokens) == 2 && ebb_tensor_get_dim (tokens, 1) <= self->config->context)
         || ebb_fail (error, EBB_ERROR_SHAPE, "%s: tokens %s; they must be [B, T] with T at most %d, the context",
                      ebb_module_get_type_name (EBB_MODULE (self)), ebb_show_shape (tokens), self->config->context);
}

/* The embeddings' sum, in the order of the published model: words, segments, positions. */
static EbbTensor *
embed (EbbBert *self, EbbTensor *tokens, EbbTensor *segments, GError **error)
{
  EbbDevice *device = ebb_tensor_get_device (tokens);
  g_autoptr (EbbTensor) indices =
      ebb_arange (0, (double) ebb_tensor_get_dim (tokens, 1), 1, EBB_DTYPE_I64, device, error);
  g_autoptr (EbbTensor) first = segments == NULL ? ebb_zeros ((gint64[]){ 1 }, 1, EBB_DTYPE_I64, device, error) : NULL;
  g_autoptr (EbbTensor) words = ebb_module_call1 (self->word_embeddings, tokens, error);
  g_autoptr (EbbTensor) positions = ebb_module_call1 (self->position_embeddings, indices, error);
  g_autoptr (EbbTensor) parts = ebb_module_call1 (self->segment_embeddings, segments ? segments : first, error);
  g_autoptr (EbbTensor) both = ebb_add (words, parts, error);
  g_autoptr (EbbTensor) sum = ebb_add (both, positions, error);
  g_autoptr (EbbTensor) normalized = ebb_module_call1 (self->embeddings_norm, sum, error);

  return ebb_dropout (normalized, self->config->dropout,
                      ebb_module_get_training (EBB_MODULE (self)), NULL, error);
}

/* A padding mask [B, T] as attention reads it, [B, 1, 1, T] of bool, made once for all blocks. FALSE with @error;
 * *keys is NULL if @mask is. */
static gboolean
make_key_mask (EbbBert *self, EbbTensor *mask, EbbTensor **keys, GError **error)
{
  g_autoptr (EbbTensor) present = NULL;
  g_autoptr (EbbTensor) with_heads = NULL;

  *keys = NULL;
  if (mask == NULL)
    return TRUE;
  if (ebb_dtype_is_floating_point (ebb_tensor_get_dtype (mask)))
    return ebb_fail (error, EBB_ERROR_DTYPE, "%s: mask is %s; it must be bool or integers, zero for padding",
                     ebb_module_get_type_name (EBB_MODULE (self)),
                     ebb_dtype_get_name (ebb_tensor_get_dtype (mask)));
  present = ebb_tensor_get_dtype (mask) == EBB_DTYPE_BOOL ? ebb_tensor_ref (mask) : ebb_ne_scalar (mask, 0, error);
  with_heads = ebb_unsqueeze (present, 1, error);
  *keys = ebb_unsqueeze (with_heads, 1, error);
  return *keys != NULL;
}

/* Consumes @x. */
static EbbTensor *
call_blocks (EbbBert *self, EbbTensor *x, EbbTensor *mask, GError **error)
{
  g_autoptr (EbbModule) layer = self->layer != NULL ? g_object_ref (self->layer) : NULL;
  g_autoptr (EbbTensor) keys = NULL;

  if (x == NULL || layer == NULL)
    return x;
  if (mask != NULL && !make_key_mask (self, mask, &keys, error))
    {
      ebb_tensor_unref (x);
      return NULL;
    }
  return ebb_stack_call_blocks (layer, x, &(EbbBlockInputs){ .mask = keys }, error);
}

/* Dense layer, GELU, norm: [.., width]. */
static EbbTensor *
call_transform (EbbBert *self, EbbTensor *x, GError **error)
{
  g_autoptr (EbbTensor) dense = NULL;
  g_autoptr (EbbTensor) activated = NULL;

  if (ebb_linear_lends_bias (self->transform))
    {
      dense = ebb_linear_call_without_bias (self->transform, x, error);
      activated = ebb_bias_gelu (dense, EBB_LINEAR (self->transform)->bias, EBB_GELU_EXACT, error);
    }
  else
    {
      dense = ebb_module_call1 (self->transform, x, error);
      activated = ebb_gelu (dense, EBB_GELU_EXACT, error);
    }
  g_clear_pointer (&dense, ebb_tensor_unref);
  return ebb_module_call1 (self->transform_norm, activated, error);
}

/* Rows are filled up to a multiple of this with the first position, which then does not count: a product is prepared
 * for each number of rows, and there should be few of these. */
#define ROW_UNIT 16

/* *rows and *rows_targets, [n, width] and [n]: the positions of x [B, T, width] that have a target, in order. Both stay
 * NULL where nearly all have one, or none: there is nothing to leave out, or no loss. */
static gboolean
select_counted (EbbTensor *x, EbbTensor *targets, EbbTensor **rows, EbbTensor **rows_targets, GError **error)
{
  EbbDevice *device = ebb_tensor_get_device (x);
  gint64 n = ebb_tensor_get_n_elements (targets), n_counted = 0;
  g_autoptr (EbbTensor) wide = ebb_cast (targets, EBB_DTYPE_I64, error);
  g_autoptr (EbbTensor) dense = ebb_contiguous (wide, error);
  g_autoptr (EbbTensor) host = ebb_to_device (dense, ebb_device_get_cpu (), error);
  g_autoptr (EbbTensor) index = NULL;
  g_autoptr (EbbTensor) flat = NULL;
  g_autofree gint64 *positions = g_new (gint64, (gsize) n + 1);
  g_autofree gint64 *values = g_new (gint64, (gsize) n + 1);
  const gint64 *data = host != NULL && n > 0 ? ebb_tensor_get_data (host, error) : NULL;

  if (host == NULL || (n > 0 && data == NULL))
    return FALSE;
  for (gint64 i = 0; i < n; i++)
    if (data[i] != EBB_IGNORED_TARGET)
      {
        positions[n_counted] = i;
        values[n_counted++] = data[i];
      }
  if (n_counted == 0 || n_counted + ROW_UNIT > n)
    return TRUE;
  for (; n_counted % ROW_UNIT != 0; n_counted++)
    {
      positions[n_counted] = 0;
      values[n_counted] = EBB_IGNORED_TARGET;
    }
  index = ebb_tensor_new_from_values (positions, (gsize) n_counted, &n_counted, 1, EBB_DTYPE_I64, device, error);
  *rows_targets = ebb_tensor_new_from_values (values, (gsize) n_counted, &n_counted, 1, EBB_DTYPE_I64, device, error);
  flat = ebb_reshape (x, (gint64[]){ n, ebb_tensor_get_dim (x, 2) }, 2, error);
  *rows = ebb_index_select (flat, 0, index, error);
  return *rows != NULL && *rows_targets != NULL;
}

static EbbTensor *
compute_loss (EbbBert *self, EbbTensor *x, EbbTensor *targets, GError **error)
{
  g_autoptr (EbbTensor) rows = NULL;
  g_autoptr (EbbTensor) rows_targets = NULL;
  g_autoptr (EbbTensor) transformed = NULL;

  /* The loss says what is wrong with targets that are no indices. */
  if (!ebb_dtype_is_floating_point (ebb_tensor_get_dtype (targets))
      && !select_counted (x, targets, &rows, &rows_targets, error))
    return NULL;
  transformed = call_transform (self, rows ? rows : x, error);
  return ebb_output_layer_loss (self->word_embeddings, transformed, self->output_bias, rows ? rows_targets : targets, 0,
                                error);
}

static EbbTensor *
run_model (EbbBert *self, EbbTensor *tokens, EbbTensor *segments, EbbTensor *mask, EbbTensor *targets, GError **error)
{
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) transformed = NULL;

  if (!check_tokens (self, tokens, error)
      || !ebb_model_check_like_tokens (EBB_MODULE (self), "segments", segments, tokens, error)
      || !ebb_model_check_like_tokens (EBB_MODULE (self), "mask", mask, tokens, error)
      || !ebb_model_check_like_tokens (EBB_MODULE (self), "targets", targets, tokens, error))
    return NULL;
  x = call_blocks (self, embed (self, tokens, segments, error), mask, error);
  if (x == NULL)
    return NULL;
  if (targets != NULL)
    return compute_loss (self, x, targets, error);
  transformed = call_transform (self, x, error);
  g_clear_pointer (&x, ebb_tensor_unref);
  return ebb_output_layer_logits (self->word_embeddings, transformed, self->output_bias, error);
}

static EbbTensor *
ebb_bert_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  return run_model (EBB_BERT (module), input, NULL, NULL, NULL, error);
}

static EbbArgs *
ebb_bert_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  EbbTensor *tokens, *segments, *mask, *targets;
  const EbbParameterSpec specs[] = { { "tokens", EBB_PARAMETER_TENSOR, &tokens },
                                     { "segments", EBB_PARAMETER_OPTIONAL_TENSOR, &segments },
                                     { "mask", EBB_PARAMETER_OPTIONAL_TENSOR, &mask },
                                     { "targets", EBB_PARAMETER_OPTIONAL_TENSOR, &targets } };
  g_autoptr (EbbTensor) result = NULL;

  if (!ebb_args_parse (args, ebb_module_get_type_name (module), specs, G_N_ELEMENTS (specs), error))
    return NULL;
  result = run_model (EBB_BERT (module), tokens, segments, mask, targets, error);
  return result != NULL ? ebb_args_new_for_tensor (result) : NULL;
}

static void
ebb_bert_class_init (EbbBertClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_bert_finalize;
  module_class->build = ebb_bert_build;
  module_class->forward = ebb_bert_forward;
  module_class->forward1 = ebb_bert_forward1;

  /**
   * EbbBert:config:
   *
   * The sizes and choices that the model was made with.
   */
  g_object_class_install_property (
      object_class, offsetof (EbbBert, config),
      g_param_spec_boxed ("config", NULL, "The sizes and choices of the model", EBB_TYPE_BERT_CONFIG,
                          G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS));
}

static void
ebb_bert_init (EbbBert *self)
{
  EbbModule *module = EBB_MODULE (self);

  ebb_module_bind_child (module, "word_embeddings", &self->word_embeddings);
  ebb_module_bind_child (module, "position_embeddings", &self->position_embeddings);
  ebb_module_bind_child (module, "segment_embeddings", &self->segment_embeddings);
  ebb_module_bind_child (module, "embeddings_norm", &self->embeddings_norm);
  ebb_module_bind_child (module, "layer", &self->layer);
  ebb_module_bind_child (module, "transform", &self->transform);
  ebb_module_bind_child (module, "transform_norm", &self->transform_norm);
  ebb_module_bind_parameter (module, "output_bias", &self->output_bias);
}

/**
 * ebb_bert_new:
 * @config: the sizes and choices; the model keeps a copy
 * @error: return location for an error
 *
 * Makes a BERT with initial weights as BERT's, drawn from the thread's default generator: matrices and embeddings are
 * normal with a standard deviation of 0.02, biases are zero.
 *
 * Returns: (transfer full) (type EbbBert) (nullable): the model, or %NULL with @error set, to
 * %EBB_ERROR_INVALID_ARGUMENT if ebb_bert_config_check() finds something
 */
EbbModule *
ebb_bert_new (EbbBertConfig *config, GError **error)
{
  return EBB_MAY_BEGIN (error, config) ? ebb_layer_new (EBB_TYPE_BERT, error, "config", config, NULL) : NULL;
}

/**
 * ebb_bert_get_config:
 * @self: a model
 *
 * Returns: (transfer full) (nullable): a copy of the configuration that the model was made with
 */
EbbBertConfig *
ebb_bert_get_config (EbbBert *self)
{
  g_return_val_if_fail (EBB_IS_BERT (self), NULL);

  return self->config != NULL ? ebb_bert_config_copy (self->config) : NULL;
}

/**
 * ebb_bert_set_dropout:
 * @self: a model
 * @dropout: the probability of dropout on embeddings and on each part's result
 * @attention_dropout: that of a weight of attention, below 0 for @dropout
 * @error: return location for an error
 *
 * Changes the dropout of a model that is there, as one from a folder is.
 *
 * Returns: %TRUE, or %FALSE with @error set to %EBB_ERROR_INVALID_ARGUMENT if one of them is no probability below 1
 */
gboolean
ebb_bert_set_dropout (EbbBert *self, double dropout, double attention_dropout, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_BERT (self), FALSE);

  if (!ebb_model_config_check_dropout ("Bert", dropout, attention_dropout, error))
    return FALSE;
  self->config->dropout = dropout;
  self->config->attention_dropout = attention_dropout;
  ebb_transformer_blocks_set_dropout (self->layer, dropout, attention_dropout);
  return TRUE;
}

/**
 * ebb_bert_loss:
 * @self: a model
 * @tokens: `[B, T]` of i64 or i32, some of them replaced as the masked language model asks
 * @segments: (nullable): `[B, T]` of i64 or i32: to which segment each token belongs; %NULL: all to the first
 * @mask: (nullable): `[B, T]` of bool or integers: zero where there is padding; %NULL: nowhere
 * @targets: `[B, T]` of i64 or i32: the tokens to predict; -100 elsewhere
 * @error: return location for an error
 *
 * Calls the model for its loss: the mean cross entropy, in nats, over the targets that there are. The head is computed
 * for their positions alone, which it reads on the host.
 *
 * Returns: (transfer full) (nullable): the loss, f32 `[]`, or %NULL with @error set
 */
EbbTensor *
ebb_bert_loss (EbbBert *self,
               EbbTensor *tokens,
               EbbTensor *segments,
               EbbTensor *mask,
               EbbTensor *targets,
               GError **error)
{
  g_autoptr (EbbArgs) args = NULL;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, tokens, targets);
  g_return_val_if_fail (EBB_IS_BERT (self), NULL);

  args = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (args, NULL, tokens);
  if (segments != NULL)
    ebb_args_add_tensor (args, "segments", segments);
  if (mask != NULL)
    ebb_args_add_tensor (args, "mask", mask);
  ebb_args_add_tensor (args, "targets", targets);
  return ebb_module_call_for_tensor (EBB_MODULE (self), args, error);
}
