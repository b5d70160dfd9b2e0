/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Adapters of the model: a new one, one of a folder, and what is written of it. */
#include "common/train/adapter.h"

#include "common/train/output.h"

#include <stdio.h>
#include <string.h>

static EbbModule *
add_new (EbbModule *model,
         const Options *options,
         GError **error)
{
  g_auto (GStrv) targets = options->lora_targets[0] != '\0' ? g_strsplit (options->lora_targets, ",", -1) : NULL;
  g_autoptr (EbbLoraOptions) how =
      g_object_new (EBB_TYPE_LORA_OPTIONS, "rank", options->lora, "alpha", options->lora_alpha, "dropout",
                    options->lora_dropout, "rslora", options->rslora, "targets", targets, NULL);

  return ebb_lora_wrap (model, how, error);
}

gboolean
adapter_add (EbbModule *model,
             const Options *options,
             GError **error)
{
  g_autoptr (EbbModule) same = NULL;

  if (!options_have_adapter (options))
    return TRUE;
  same = options->lora > 0 ? add_new (model, options, error) : ebb_lora_load (model, options->adapter, NULL, error);
  if (same == NULL && options->lora > 0)
    g_prefix_error (error, "--lora %d: ", options->lora);
  else if (same == NULL)
    g_prefix_error (error, "--adapter %s: ", options->adapter);
  return same != NULL;
}

EbbTrainingState *
adapter_make_state (const Trainer *trainer,
                    EbbOptimizer *optimizer)
{
  EbbTrainingState *state = ebb_training_state_new (trainer->model, optimizer, trainer->dataset);

  g_object_set (state, "trained-only", options_have_adapter (trainer->options), NULL);
  return state;
}

gboolean
adapter_save (Trainer *trainer,
              const char *path,
              GError **error)
{
  const Ranks *ranks = trainer->ranks;
  const gboolean is_split =
      ranks != NULL && (trainer->options->ranks.shard_kind != SHARD_NONE || ranks->tensor != NULL);
  gboolean ok = TRUE;

  if (ranks == NULL || is_split)
    return ebb_lora_save (trainer->model, path, NULL, error);
  if (ranks->rank == 0)
    ok = ebb_lora_save (trainer->model, path, NULL, error);
  return ranks_agree (trainer->ranks, ok, error);
}

char *
adapter_describe (const Trainer *trainer)
{
  const Options *options = trainer->options;
  g_autofree char *name = options->lora > 0 ? g_strdup_printf ("A new adapter of rank %d", options->lora)
                                            : g_strdup_printf ("The adapter %s", options->adapter);
  EbbQuantization base;

  if (!options_have_adapter (options))
    return NULL;
  base = ebb_get_quantization (trainer->model);
  if (base != EBB_QUANTIZATION_NONE)
    return g_strdup_printf ("%s: %" G_GUINT64_FORMAT " parameters are trained, over weights in %s", name,
                            trainer->n_trained, ebb_quantization_get_name (base));
  return g_strdup_printf ("%s: %" G_GUINT64_FORMAT " parameters are trained, %.2g %% of the model's", name,
                          trainer->n_trained, 100.0 * (double) trainer->n_trained / (double) trainer->n_parameters);
}

gboolean
adapter_merge (const Options *options,
               GError **error)
{
  g_autoptr (EbbModule) model = ebb_model_open (options->model, error);
  g_autoptr (EbbModule) same = model != NULL ? ebb_lora_load (model, options->merge, NULL, error) : NULL;

  if (model == NULL)
    return FALSE;
  if (same == NULL || !ebb_lora_merge (model, error) || !ebb_lora_unwrap (model, error))
    {
      g_prefix_error (error, "--merge %s: ", options->merge);
      return FALSE;
    }
  if (!output_check_replaced (options, model, error) || !ebb_model_save (model, options->save, error))
    return FALSE;
  if (!options->quiet)
    printf ("Merged model: %s\n", options->save);
  return TRUE;
}
