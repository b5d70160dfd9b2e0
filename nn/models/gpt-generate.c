/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"
#include "nn/models/gpt.h"
#include "nn/module-instance-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/activation.h"
#include "tensor/ops/creation.h"
#include "tensor/ops/indexing.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/reduction.h"
#include "tensor/ops/shape.h"

/* Sampling: the logits of the last position, a token for each row, and again. */

typedef struct
{
  double temperature;
  int top_k;
  EbbGenerator *generator;
} Sampling;

static gboolean
check_arguments (EbbGpt *self, EbbTensor *tokens, int n_tokens, const Sampling *sampling, GError **error)
{
  if (ebb_tensor_get_n_dims (tokens) != 2 || ebb_tensor_get_dim (tokens, 1) < 1)
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (tokens);

      g_set_error (error, EBB_ERROR, EBB_ERROR_SHAPE, "generate: tokens %s; they must be [B, T] with T at least 1",
                   shape);
    }
  else if (ebb_dtype_is_floating_point (ebb_tensor_get_dtype (tokens)))
    g_set_error (error, EBB_ERROR, EBB_ERROR_DTYPE, "generate: tokens of %s; they must be of i64 or i32",
                 ebb_dtype_get_name (ebb_tensor_get_dtype (tokens)));
  else if (n_tokens < 0)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "generate: n_tokens is %d, it must not be negative",
                 n_tokens);
  else if (!(sampling->temperature >= 0))
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "generate: temperature is %g, it must not be negative",
                 sampling->temperature);
  else if (sampling->top_k < 0)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "generate: top_k is %d, it must be 0 for all, or more",
                 sampling->top_k);
  else
    return TRUE;
  return FALSE;
}

/* Logits [B, 1, vocab] of the position after the last of @sequence, as far back as the context reaches. */
static EbbTensor *
last_logits (EbbGpt *self, EbbTensor *sequence, gint64 context, GError **error)
{
  gint64 length = ebb_tensor_get_dim (sequence, 1);
  gint64 seen = MIN (length, context);
  g_autoptr (EbbTensor) window = ebb_narrow (sequence, 1, length - seen, seen, error);
  g_autoptr (EbbArgs) args = NULL;

  if (window == NULL)
    return NULL;
  args = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (args, NULL, window);
  ebb_args_add_boolean (args, "last", TRUE);
  return ebb_module_call_for_tensor (EBB_MODULE (self), args, error);
}

static EbbTensor *
draw (EbbTensor *logits, const Sampling *sampling, GError **error)
{
  g_autoptr (EbbTensor) scaled = ebb_mul_scalar (logits, 1 / sampling->temperature, error);
  g_autoptr (EbbTensor) weights = ebb_softmax (scaled, -1, error);

  return ebb_multinomial (weights, 1, sampling->generator, error);
}

/* Tokens [B, 1] by logits [B, 1, vocab]. */
static EbbTensor *
sample (EbbTensor *logits, const Sampling *sampling, GError **error)
{
  g_autoptr (EbbTensor) row = ebb_select (logits, 1, -1, error);
  g_autoptr (EbbTensor) cast = ebb_cast (row, EBB_DTYPE_F32, error); /* autocast may be on */
  g_autoptr (EbbTensor) best = NULL;
  g_autoptr (EbbTensor) candidates = NULL;
  g_autoptr (EbbTensor) choice = NULL;
  gint64 vocab;

  if (cast == NULL)
    return NULL;
  vocab = ebb_tensor_get_dim (cast, -1);
  if (sampling->temperature == 0)
    return ebb_argmax (cast, -1, TRUE, error);
  if (sampling->top_k == 0 || sampling->top_k >= vocab)
    return draw (cast, sampling, error);
  if (!ebb_topk (cast, sampling->top_k, TRUE, &best, &candidates, error))
    return NULL;
  choice = draw (best, sampling, error);
  return ebb_gather (candidates, 1, choice, error);
}

static EbbTensor *
extend (EbbGpt *self,
        EbbTensor *tokens,
        int n_tokens,
        const Sampling *sampling,
        GCancellable *cancellable,
        GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (self);
  gint64 context = config->context;
  EbbTensor *sequence = ebb_cast (tokens, EBB_DTYPE_I64, error);

  for (int i = 0; sequence != NULL && i < n_tokens; i++)
    {
      g_autoptr (EbbTensor) logits = NULL;
      g_autoptr (EbbTensor) next = NULL;
      EbbTensor *longer = NULL;

      if (g_cancellable_is_cancelled (cancellable))
        g_set_error (error, EBB_ERROR, EBB_ERROR_CANCELLED, "generate: cancelled after %d of %d tokens", i, n_tokens);
      else
        logits = last_logits (self, sequence, context, error);
      if (logits != NULL)
        next = sample (logits, sampling, error);
      if (next != NULL)
        {
          EbbTensor *parts[] = { sequence, next };

          longer = ebb_cat (parts, 2, 1, error);
        }
      ebb_tensor_unref (sequence);
      sequence = longer;
    }
  return sequence;
}

/* Puts all modules below @self in evaluation mode; the old modes are given back by restore_training (). */
static gboolean *
suspend_training (EbbModule **modules, guint n_modules)
{
  gboolean *saved = g_new (gboolean, n_modules);

  for (guint i = 0; i < n_modules; i++)
    {
      EbbModulePrivate *priv = ebb_module_get_private (modules[i]);

      saved[i] = priv->training;
      priv->training = FALSE;
    }
  return saved;
}

static void
restore_training (EbbModule **modules, guint n_modules, gboolean *saved)
{
  for (guint i = 0; i < n_modules; i++)
    {
      ebb_module_get_private (modules[i])->training = saved[i] != FALSE;
      g_object_unref (modules[i]);
    }
  g_free (saved);
  g_free (modules);
}

/**
 * ebb_gpt_generate:
 * @self: a model
 * @tokens: `[B, T]` of i64 or i32: where to begin
 * @n_tokens: how many tokens to add to each row
 * @temperature: what logits are divided by, 1 for the model's own probabilities; 0 takes the likeliest token always
 * @top_k: how many of the likeliest tokens are considered, 0 for all
 * @generator: (nullable): where draws come from; %NULL for the thread's default
 * @cancellable: (nullable): stops between two tokens
 * @error: return location for an error
 *
 * Continues each row token by token, in evaluation mode and without gradients. As soon as a row is longer than the
 * context, the model sees the end of it.
 *
 * Returns: (transfer full) (nullable): i64 `[B, T + n_tokens]`, or %NULL with @error set, to %EBB_ERROR_CANCELLED if it
 *   was stopped
 */
EbbTensor *
ebb_gpt_generate (EbbGpt *self,
                  EbbTensor *tokens,
                  int n_tokens,
                  double temperature,
                  int top_k,
                  EbbGenerator *generator,
                  GCancellable *cancellable,
                  GError **error)
{
  const Sampling sampling = { temperature, top_k, generator };
  EbbModule **modules;
  gboolean *saved;
  EbbTensor *sequence;
  guint n_modules;

  if (!EBB_MAY_BEGIN (error, self, tokens))
    return NULL;
  g_return_val_if_fail (EBB_IS_GPT (self), NULL);

  if (!check_arguments (self, tokens, n_tokens, &sampling, error))
    return NULL;
  modules = ebb_module_get_modules (EBB_MODULE (self), &n_modules);
  saved = suspend_training (modules, n_modules);
  ebb_push_grad_enabled (FALSE);
  sequence = extend (self, tokens, n_tokens, &sampling, cancellable, error);
  ebb_pop_grad_enabled ();
  restore_training (modules, n_modules, saved);
  return sequence;
}
