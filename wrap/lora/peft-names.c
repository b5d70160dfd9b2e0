/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* PEFT's names of a model's linear layers and of their factors. */
#include "wrap/lora/lora-private.h"

#include "nn/layers/layer-private.h"
#include "nn/models/bert.h"
#include "nn/models/folder/model-private.h"
#include "nn/models/gpt.h"
#include "tensor/error-private.h"

#include <string.h>

#define PREFIX "base_model.model."

const EbbArchitecture *
ebb_lora_find_architecture (EbbModule *model)
{
  return EBB_IS_GPT (model) || EBB_IS_BERT (model) ? ebb_model_find_architecture (model, NULL) : NULL;
}

/* TRUE if files join the weight of the layer with those of others. */
static gboolean
is_joined (const EbbArchitecture *architecture,
           const char *path)
{
  for (const EbbNameRule *rule = architecture->block_names; rule->own != NULL; rule++)
    for (const EbbNameRule *other = architecture->block_names; other->own != NULL; other++)
      if (g_str_has_suffix (path, rule->own) && strcmp (rule->file, other->file) == 0 && rule != other)
        return TRUE;
  return FALSE;
}

char *
ebb_lora_get_file_path (const EbbArchitecture *architecture,
                        EbbModule *layer,
                        const char *path,
                        GError **error)
{
  const EbbLinear *linear = (EbbLinear *) layer;
  const gint64 shape[] = { linear->out_features, linear->in_features };
  g_autofree char *name = g_strconcat (path, ".weight", NULL);
  g_autoptr (EbbWeightMap) map = NULL;
  const EbbWeight *found;

  if (architecture == NULL)
    return g_strdup (path);
  map = ebb_weight_map_new (architecture);
  ebb_weight_map_add (map, name, shape, 2, EBB_DTYPE_F32);
  found = &g_array_index (map->weights, EbbWeight, 0);
  if (map->weights->len == 1 && !is_joined (architecture, path))
    return g_strndup (found->name, strlen (found->name) - strlen (".weight"));
  return ebb_fail_null (error, EBB_ERROR_NOT_SUPPORTED,
                        "lora: a folder of %s has the weight of %s %s, so an adapter with it has no form there: leave "
                        "it out of the targets",
                        architecture->model_type, path,
                        map->weights->len > 1 ? "in several layers" : "joined with others");
}

const char *
ebb_lora_get_ending (const char *path)
{
  const char *dot = strrchr (path, '.');

  return dot != NULL ? dot + 1 : path;
}

char *
ebb_lora_get_key (const char *file_path,
                  const char *factor)
{
  return g_strconcat (PREFIX, file_path, ".", factor, ".weight", NULL);
}

gboolean
ebb_lora_get_keys (const EbbArchitecture *architecture,
                   EbbModule *layer,
                   const char *path,
                   char **key_a,
                   char **key_b)
{
  g_autofree char *file_path = ebb_lora_get_file_path (architecture, layer, path, NULL);

  if (file_path == NULL)
    return FALSE;
  *key_a = ebb_lora_get_key (file_path, "lora_A");
  *key_b = ebb_lora_get_key (file_path, "lora_B");
  return TRUE;
}
