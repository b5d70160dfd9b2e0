/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/tensor-parallel.h"

#include "support/decoders.h"
#include "support/tensors.h"

#define SEED 11

static int
get_size (gint64 given, int standard)
{
  return given > 0 ? (int) given : standard;
}

static EbbModule *
make_bert (const TestParallel *self, GError **error)
{
  g_autoptr (EbbBertConfig) config = ebb_bert_config_new ();
  int width = get_size (self->width, 32);

  config->layers = get_size (self->n_layers, 2);
  config->width = width;
  config->heads = get_size (self->heads, 4);
  config->hidden = 4 * width;
  config->context = get_size (self->context, 16);
  config->vocab = get_size (self->vocab, 30);
  config->dropout = self->dropout;
  return ebb_bert_new (config, error);
}

static EbbModule *
make_decoder (const TestParallel *self, GError **error)
{
  g_autoptr (EbbGptConfig) config = test_decoder_config (self->decoder);

  if (self->width > 0)
    {
      config->width = (int) self->width;
      config->hidden = 2 * config->width;
    }
  config->vocab = get_size (self->vocab, 30);
  config->dropout = self->dropout;
  return ebb_gpt_new (config, error);
}

static EbbModule *
make_gpt (const TestParallel *self, GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();

  config->layers = get_size (self->n_layers, 2);
  config->width = get_size (self->width, 32);
  config->heads = get_size (self->heads, 4);
  config->context = get_size (self->context, 16);
  config->vocab = get_size (self->vocab, 30);
  config->dropout = self->dropout;
  config->tied = !self->is_untied;
  return ebb_gpt_new (config, error);
}

/* Biases and norms are drawn, too: zeros and ones would hide what is added twice. */
static gboolean
stir (EbbModule *model, GError **error)
{
  g_autoptr (EbbGenerator) generator = ebb_generator_new (SEED + 1);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);
  gboolean ok = TRUE;

  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < n; i++)
    {
      if (ebb_tensor_get_n_dims (parameters[i]) == 1)
        {
          gint64 length = ebb_tensor_get_dim (parameters[i], 0);
          g_autoptr (EbbTensor) drawn = ebb_randn (&length, 1, EBB_DTYPE_F32, ebb_device_get_cpu (), generator, error);
          g_autoptr (EbbTensor) scaled = ebb_mul_scalar (drawn, 0.1, error);
          g_autoptr (EbbTensor) there = ebb_to_device (scaled, ebb_tensor_get_device (parameters[i]), error);

          ok = ok && there != NULL && ebb_tensor_add_scaled (parameters[i], there, 1, error);
        }
      ebb_tensor_unref (parameters[i]);
    }
  ebb_pop_grad_enabled ();
  return ok;
}

EbbModule *
test_parallel_model (const TestParallel *self, GError **error)
{
  g_autoptr (EbbModule) model = NULL;

  ebb_manual_seed (SEED);
  model = self->is_bert           ? make_bert (self, error)
          : self->decoder != NULL ? make_decoder (self, error)
                                  : make_gpt (self, error);
  if (model == NULL || !stir (model, error)
      || (self->quantization != EBB_QUANTIZATION_NONE && !ebb_quantize (model, self->quantization, error)))
    return NULL;
  return g_steal_pointer (&model);
}

gboolean
test_parallel_divide (const TestParallel *self, EbbModule *model, EbbProcessGroup *group, GError **error)
{
  g_autoptr (EbbParallelOptions) options = ebb_parallel_options_new ();
  g_autoptr (EbbModule) same = NULL;

  if (self->is_full)
    return TRUE;
  g_object_set (options, "sequence-parallel", self->is_sequence_parallel, NULL);
  same = ebb_parallelize (model, group, options, error);
  return same != NULL;
}

/* One of @every has no target. */
static EbbTensor *
make_targets (guint64 seed, gint64 vocab, gint64 every, gint64 context, GError **error)
{
  g_autoptr (EbbTensor) tokens = test_tokens (seed, vocab, TEST_PARALLEL_ROWS, context, -1);
  g_autoptr (EbbTensor) draw = test_tokens (seed + 1000, every, TEST_PARALLEL_ROWS, context, -1);
  g_autoptr (EbbTensor) is_ignored = ebb_eq_scalar (draw, 0, error);
  g_autoptr (EbbTensor) ignored =
      ebb_full (NULL, 0, TEST_PARALLEL_IGNORED, EBB_DTYPE_I64, ebb_tensor_get_device (tokens), error);

  return ebb_where (is_ignored, ignored, tokens, error);
}

/* Each row has a document of 5 tokens and one with the rest. */
static EbbTensor *
compute_packed_loss (EbbModule *gpt, EbbTensor *tokens, EbbTensor *targets, GError **error)
{
  g_autoptr (EbbTensor) indices =
      ebb_arange (0, (double) ebb_tensor_get_dim (tokens, 1), 1, EBB_DTYPE_I64, ebb_tensor_get_device (tokens), error);
  g_autoptr (EbbTensor) is_second = ebb_ge_scalar (indices, 5, error);
  g_autoptr (EbbTensor) number = ebb_cast (is_second, EBB_DTYPE_I64, error);
  g_autoptr (EbbTensor) row = ebb_mul_scalar (number, 5, error);
  g_autoptr (EbbTensor) starts =
      ebb_expand (row, (gint64[]){ ebb_tensor_get_dim (tokens, 0), ebb_tensor_get_dim (tokens, 1) }, 2, error);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;

  if (starts == NULL)
    return NULL;
  ebb_args_add_tensor (args, NULL, tokens);
  ebb_args_add_tensor (args, "targets", targets);
  ebb_args_add_tensor (args, "starts", starts);
  result = ebb_module_call (gpt, args, error);
  return result != NULL ? ebb_args_get_tensor (result, 0) : NULL;
}

EbbTensor *
test_parallel_loss (const TestParallel *self, EbbModule *model, guint pass, GError **error)
{
  const gint64 context = get_size (self->context, 16), vocab = get_size (self->vocab, 30);
  g_autoptr (EbbTensor) tokens = test_tokens (10 + pass, vocab, TEST_PARALLEL_ROWS, context, -1);
  g_autoptr (EbbTensor) targets = make_targets (50 + pass, vocab, self->is_bert ? 2 : 5, context, error);
  g_autoptr (EbbTensor) segments = NULL;
  g_autoptr (EbbTensor) mask = NULL;

  if (targets == NULL)
    return NULL;
  if (self->has_documents)
    return compute_packed_loss (model, tokens, targets, error);
  if (!self->is_bert)
    return ebb_gpt_loss (EBB_GPT (model), tokens, targets, error);
  segments = test_tokens (90 + pass, 2, TEST_PARALLEL_ROWS, context, -1);
  if (self->has_mask)
    mask = test_tokens (70 + pass, 2, TEST_PARALLEL_ROWS, context, -1);
  return ebb_bert_loss (EBB_BERT (model), tokens, segments, mask, targets, error);
}
