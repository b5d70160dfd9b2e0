/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/generation.h"

#include "support/device.h"

static EbbTensor *
join_row (EbbTensor *prompt, EbbGeneration *generation, guint row)
{
  g_autoptr (EbbTensor) host = ebb_to_device (prompt, ebb_device_get_cpu (), NULL);
  g_autoptr (EbbTensor) tokens = ebb_generation_get_tokens (generation, row);
  EbbTensor *parts[] = { host, tokens };
  g_autoptr (EbbTensor) joined = ebb_cat (parts, 2, 0, NULL);

  return ebb_unsqueeze (joined, 0, NULL);
}

EbbTensor *
test_generate (EbbModule *model,
               EbbTensor *tokens,
               int n,
               double temperature,
               int top_k,
               guint64 seed,
               GCancellable *cancellable,
               GError **error)
{
  const guint n_rows = (guint) ebb_tensor_get_dim (tokens, 0);
  g_autoptr (EbbGenerator) generator = ebb_generator_new (seed);
  g_autoptr (EbbGenerationOptions) options =
      g_object_new (EBB_TYPE_GENERATION_OPTIONS, "max-tokens", n, "temperature", temperature, "top-k", top_k,
                    "generator", generator, "slides", TRUE, NULL);
  g_autofree EbbTensor **prompts = g_new (EbbTensor *, n_rows);
  g_autoptr (EbbGeneration) generation = NULL;
  EbbTensor *sequence = NULL;

  for (guint i = 0; i < n_rows; i++)
    prompts[i] = ebb_select (tokens, 0, i, NULL);
  generation = ebb_model_generate (model, prompts, n_rows, options, NULL, NULL, cancellable, error);
  if (generation != NULL)
    {
      g_autofree EbbTensor **rows = g_new (EbbTensor *, n_rows);
      g_autoptr (EbbTensor) joined = NULL;

      for (guint i = 0; i < n_rows; i++)
        rows[i] = join_row (prompts[i], generation, i);
      joined = ebb_cat (rows, n_rows, 0, NULL);
      sequence = test_move (joined);
      for (guint i = 0; i < n_rows; i++)
        ebb_tensor_unref (rows[i]);
    }
  for (guint i = 0; i < n_rows; i++)
    ebb_tensor_unref (prompts[i]);
  return sequence;
}

EbbTensor *
test_prompt (gint64 first, ...)
{
  gint64 tokens[64], n = 0;
  va_list args;

  va_start (args, first);
  for (gint64 token = first; token >= 0; token = va_arg (args, int))
    tokens[n++] = token;
  va_end (args);
  return ebb_tensor_new_from_ints (tokens, (gsize) n, &n, 1, NULL);
}
