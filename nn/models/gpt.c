/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/gpt.h"

#include "nn/args-private.h"
#include "nn/layers/embedding.h"
#include "nn/initialization.h"
#include "nn/layers/layer-norm.h"
#include "nn/layers/layer-private.h"
#include "nn/layers/module-list.h"
#include "nn/layers/stack-private.h"
#include "nn/layers/transformer-block.h"
#include "tensor/error-private.h"
#include "tensor/ops/creation.h"
#include "tensor/ops/loss.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/thread-private.h"
#include "tensor/util/property-private.h"

#include <math.h>

/**
 * EbbGpt:
 *
 * A decoder of pre-norm transformer blocks: GPT-2 (Radford et al., 2019), with its names. Children: `wte` and `wpe`,
 * the embeddings of tokens and positions; `h`, the list of #EbbTransformerBlock; `ln_f`; and `lm_head` where the output
 * product does not share the weight of `wte`.
 *
 * Called with tokens `[B, T]` of i64 or i32 it gives logits `[B, T, vocab]`. Its other arguments, by position or name:
 * `targets` `[B, T]`, with which it gives the mean cross entropy over the targets that are not -100, and never holds
 * all logits; `mask`, see #EbbMultiHeadAttention; and `last`, with which the logits are those of the last position
 * alone, `[B, 1, vocab]`.
 */
struct _EbbGpt
{
  EbbModule parent_instance;

  EbbGptConfig *config;
  EbbModule *wte;
  EbbModule *wpe;
  EbbModule *h;
  EbbModule *ln_f;
  EbbModule *lm_head; /* NULL where the weight is that of wte */
};

G_DEFINE_TYPE (EbbGpt, ebb_gpt, EBB_TYPE_MODULE)

static void
ebb_gpt_finalize (GObject *object)
{
  g_clear_pointer (&EBB_GPT (object)->config, ebb_gpt_config_free);
  G_OBJECT_CLASS (ebb_gpt_parent_class)->finalize (object);
}

static gboolean
add_blocks (EbbGpt *self, GError **error)
{
  EbbGptConfig *config = self->config;

  for (int i = 0; i < config->layers; i++)
    {
      g_autoptr (EbbModule) block = ebb_layer_new (
          EBB_TYPE_TRANSFORMER_BLOCK, error, "width", config->width, "heads",
          config->heads, "dropout", config->dropout, "causal", TRUE, "pre-norm",
          TRUE, "activation", config->activation, "norm-eps", config->norm_eps, "bias",
          config->bias, NULL);

      if (!ebb_module_list_append (EBB_MODULE_LIST (self->h), block, error))
        return FALSE;
    }
  return TRUE;
}

/* As GPT-2 begins: normal with 0.02, positions with 0.01; the products that end on the residual stream are scaled by
 * 1 / sqrt (their number), two in a block (Radford et al., 2019, section 2.3). Norms begin as ones and zeros anyway. */
static gboolean
initialize (EbbGpt *self, GError **error)
{
  double residual_scale = 1 / sqrt (2.0 * self->config->layers);
  g_auto (GStrv) names = ebb_module_get_parameter_names (EBB_MODULE (self), TRUE);
  guint n;
  EbbTensor **parameters = ebb_module_get_parameters (EBB_MODULE (self), TRUE, &n);
  gboolean done = TRUE;

  for (guint i = 0; i < n; i++)
    {
      if (ebb_tensor_get_n_dims (parameters[i]) == 2)
        {
          double std = g_str_equal (names[i], "wpe.weight")            ? 0.01
                       : g_str_has_suffix (names[i], ".c_proj.weight") ? 0.02 * residual_scale
                                                                       : 0.02;

          done = done && ebb_layer_reinitialize (parameters[i], EBB_INIT_NORMAL, std, error);
        }
      else if (g_str_has_suffix (names[i], ".bias"))
        done = done && ebb_layer_reinitialize (parameters[i], EBB_INIT_CONSTANT, 0, error);
      ebb_tensor_unref (parameters[i]);
    }
  g_free (parameters);
  return done;
}

static gboolean
add_children (EbbGpt *self, GError **error)
{
  EbbModule *module = EBB_MODULE (self);
  EbbGptConfig *config = self->config;
  int width = config->width;

  return ebb_layer_add_child (module, "wte", ebb_embedding_new (config->vocab, width, error), error)
         && ebb_layer_add_child (module, "wpe", ebb_embedding_new (config->context, width, error),
                                 error)
         && ebb_layer_add_child (module, "h", ebb_module_list_new (), error) && add_blocks (self, error)
         && ebb_layer_add_child (
             module, "ln_f",
             ebb_layer_norm_new (width, config->norm_eps, config->bias, error),
             error)
         && (config->tied
             || ebb_layer_add_child (module, "lm_head",
                                     ebb_linear_new (width, config->vocab, FALSE, error), error));
}

static gboolean
ebb_gpt_build (EbbModule *module, GError **error)
{
  EbbGpt *self = EBB_GPT (module);
  gboolean added;

  if (self->config == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: config is missing",
                   ebb_module_get_type_name (module));
      return FALSE;
    }
  if (!ebb_gpt_config_check (self->config, error))
    return FALSE;
  /* All that the layers would draw is drawn anew. */
  ebb_push_initialization_skipped ();
  added = add_children (self, error);
  ebb_pop_initialization_skipped ();
  return added && initialize (self, error);
}

static gboolean
check_tokens (EbbGpt *self, EbbTensor *tokens, GError **error)
{
  g_autofree char *shape = NULL;

  if (ebb_tensor_get_n_dims (tokens) == 2
      && ebb_tensor_get_dim (tokens, 1) <= self->config->context)
    return TRUE;
  shape = ebb_tensor_shape_to_string (tokens);
  g_set_error (error, EBB_ERROR, EBB_ERROR_SHAPE, "%s: tokens %s; they must be [B, T] with T at most %d, the context",
               ebb_module_get_type_name (EBB_MODULE (self)), shape, self->config->context);
  return FALSE;
}

static EbbTensor *
embed (EbbGpt *self, EbbTensor *tokens, GError **error)
{
  g_autoptr (EbbTensor) indices = ebb_arange (0, (double) ebb_tensor_get_dim (tokens, 1), 1, EBB_DTYPE_I64,
                                              ebb_tensor_get_device (tokens), error);
  g_autoptr (EbbTensor) positions = ebb_module_call1 (self->wpe, indices, error);
  g_autoptr (EbbTensor) words = ebb_module_call1 (self->wte, tokens, error);
  EbbDType dtype = self->config->residual_dtype, autocast_dtype;
  g_autoptr (EbbTensor) sum = ebb_add (words, positions, error);

  if (sum != NULL && ebb_autocast_get (&autocast_dtype) && autocast_dtype == dtype)
    {
      EbbTensor *lowered = ebb_cast (sum, dtype, error);

      ebb_tensor_unref (sum);
      sum = lowered;
    }
  return ebb_dropout (sum, self->config->dropout, ebb_module_get_training (EBB_MODULE (self)), NULL,
                      error);
}

/* Consumes @x. */
static EbbTensor *
call_blocks (EbbGpt *self, EbbTensor *x, EbbTensor *mask, GError **error)
{
  g_autoptr (EbbModule) h = self->h != NULL ? g_object_ref (self->h) : NULL;

  return x != NULL && h != NULL ? ebb_stack_call1_masked (h, x, mask, error) : x;
}

/* What the output product is made of: [B, T, width], or [B, 1, width] of the last position. */
static EbbTensor *
run_blocks (EbbGpt *self, EbbTensor *tokens, EbbTensor *mask, gboolean last, GError **error)
{
  EbbTensor *x;

  if (!check_tokens (self, tokens, error))
    return NULL;
  x = call_blocks (self, embed (self, tokens, error), mask, error);
  if (x != NULL && last)
    {
      EbbTensor *end = ebb_narrow (x, 1, ebb_tensor_get_dim (x, 1) - 1, 1, error);

      ebb_tensor_unref (x);
      x = end;
    }
  if (x != NULL)
    {
      EbbTensor *normalized = ebb_module_call1 (self->ln_f, x, error);

      ebb_tensor_unref (x);
      x = normalized;
    }
  return x;
}

static EbbTensor *
compute_logits (EbbGpt *self, EbbTensor *x, GError **error)
{
  return self->lm_head != NULL ? ebb_module_call1 (self->lm_head, x, error)
                               : ebb_output_layer_logits (self->wte, x, NULL, error);
}

static EbbTensor *
compute_loss (EbbGpt *self, EbbTensor *x, EbbTensor *targets, GError **error)
{
  g_autoptr (EbbTensor) logits = NULL;

  if (self->lm_head == NULL)
    return ebb_output_layer_loss (self->wte, x, NULL, targets, 0, error);
  if (ebb_output_layer_is_open (self->lm_head) && EBB_IS_LINEAR (self->lm_head))
    return ebb_linear_call_for_loss (self->lm_head, x, targets, 0, error);
  logits = ebb_module_call1 (self->lm_head, x, error);
  return ebb_cross_entropy_full (logits, targets, EBB_IGNORED_TARGET, 0, EBB_REDUCTION_MEAN, error);
}

static EbbTensor *
ebb_gpt_forward1 (EbbModule *module, EbbTensor *input, GError **error)
{
  EbbGpt *self = EBB_GPT (module);
  g_autoptr (EbbTensor) x = run_blocks (self, input, NULL, FALSE, error);

  return x != NULL ? compute_logits (self, x, error) : NULL;
}

static EbbArgs *
ebb_gpt_forward (EbbModule *module, EbbArgs *args, GError **error)
{
  EbbGpt *self = EBB_GPT (module);
  EbbTensor *tokens, *targets, *mask;
  gboolean last = FALSE;
  const EbbParameterSpec specs[] = { { "tokens", EBB_PARAMETER_TENSOR, &tokens },
                                     { "targets", EBB_PARAMETER_OPTIONAL_TENSOR, &targets },
                                     { "mask", EBB_PARAMETER_OPTIONAL_TENSOR, &mask },
                                     { "last", EBB_PARAMETER_FLAG, &last } };
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) result = NULL;

  if (!ebb_args_parse (args, ebb_module_get_type_name (module), specs, G_N_ELEMENTS (specs), error))
    return NULL;
  if (targets != NULL && last)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: targets and last can't be given together",
                   ebb_module_get_type_name (module));
      return NULL;
    }
  x = run_blocks (self, tokens, mask, last, error);
  if (x == NULL)
    return NULL;
  result = targets != NULL ? compute_loss (self, x, targets, error) : compute_logits (self, x, error);
  return result != NULL ? ebb_args_new_for_tensor (result) : NULL;
}

static void
ebb_gpt_class_init (EbbGptClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  EbbModuleClass *module_class = EBB_MODULE_CLASS (klass);

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_gpt_finalize;
  module_class->build = ebb_gpt_build;
  module_class->forward = ebb_gpt_forward;
  module_class->forward1 = ebb_gpt_forward1;

  /**
   * EbbGpt:config:
   *
   * The sizes and choices that the model was made with.
   */
  g_object_class_install_property (
      object_class, offsetof (EbbGpt, config),
      g_param_spec_boxed ("config", NULL, "The sizes and choices of the model", EBB_TYPE_GPT_CONFIG,
                          G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS));
}

static void
ebb_gpt_init (EbbGpt *self)
{
  EbbModule *module = EBB_MODULE (self);

  ebb_module_bind_child (module, "wte", &self->wte);
  ebb_module_bind_child (module, "wpe", &self->wpe);
  ebb_module_bind_child (module, "h", &self->h);
  ebb_module_bind_child (module, "ln_f", &self->ln_f);
  ebb_module_bind_child (module, "lm_head", &self->lm_head);
}

/**
 * ebb_gpt_new:
 * @config: the sizes and choices; the model keeps a copy
 * @error: return location for an error
 *
 * Makes a GPT with the initial weights of GPT-2, drawn from the thread's default generator.
 *
 * Returns: (transfer full) (type EbbGpt) (nullable): the model, or %NULL with @error set, to
 * %EBB_ERROR_INVALID_ARGUMENT if ebb_gpt_config_check() finds something
 */
EbbModule *
ebb_gpt_new (EbbGptConfig *config, GError **error)
{
  return EBB_MAY_BEGIN (error, config) ? ebb_layer_new (EBB_TYPE_GPT, error, "config", config, NULL) : NULL;
}

/**
 * ebb_gpt_get_config:
 * @self: a model
 *
 * Returns: (transfer full) (nullable): a copy of the configuration that the model was made with
 */
EbbGptConfig *
ebb_gpt_get_config (EbbGpt *self)
{
  g_return_val_if_fail (EBB_IS_GPT (self), NULL);

  return self->config != NULL ? ebb_gpt_config_copy (self->config) : NULL;
}

/**
 * ebb_gpt_loss:
 * @self: a model
 * @tokens: `[B, T]` of i64 or i32
 * @targets: `[B, T]`, the token that follows each; -100 where there is none
 * @error: return location for an error
 *
 * Calls the model for its loss: the mean cross entropy, in nats, over the targets that there are.
 *
 * Returns: (transfer full) (nullable): the loss, f32 `[]`, or %NULL with @error set
 */
EbbTensor *
ebb_gpt_loss (EbbGpt *self, EbbTensor *tokens, EbbTensor *targets, GError **error)
{
  g_autoptr (EbbArgs) args = NULL;

  if (!EBB_MAY_BEGIN (error, self, tokens, targets))
    return NULL;
  g_return_val_if_fail (EBB_IS_GPT (self), NULL);

  args = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (args, NULL, tokens);
  ebb_args_add_tensor (args, "targets", targets);
  return ebb_module_call_for_tensor (EBB_MODULE (self), args, error);
}
