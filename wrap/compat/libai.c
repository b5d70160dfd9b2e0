/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The configuration of LiBai, OneFlow's library of models: its switch of activation checkpointing. */
#include "wrap/compat/libai.h"

#include "nn/layers/block.h"
#include "tensor/error-private.h"
#include "wrap/checkpoint/wrapper.h"
#include "wrap/compat/json-config-private.h"
#include "wrap/compat/model-blocks-private.h"

#define TRAIN "train"
#define CHECKPOINT "activation_checkpoint"
#define ENABLED "enabled"

typedef struct
{
  guint enabled;
} Config;

static const EbbConfigKey keys[] = {
  { ENABLED, EBB_CONFIG_BOOLEAN, G_STRUCT_OFFSET (Config, enabled), NULL },
};

/* The sections beside them are the program's own: LiBai has them for data, models, optimizers and ranks. */
static gboolean
read_config (const EbbJsonConfig *json,
             Config *config,
             GError **error)
{
  g_autofree char *in_train = g_strdup_printf ("%s: " TRAIN, json->where);
  g_autofree char *inside = g_strdup_printf ("%s: " TRAIN ": " CHECKPOINT, json->where);
  const EbbJson *train, *checkpoint = NULL;

  if (!ebb_json_config_get_section (json->root, TRAIN, json->where, &train, error)
      || (train != NULL && !ebb_json_config_get_section (train, CHECKPOINT, in_train, &checkpoint, error))
      || (checkpoint != NULL
          && !ebb_json_config_read (checkpoint, inside, keys, G_N_ELEMENTS (keys), config, error)))
    return FALSE;
  return (checkpoint != NULL && ebb_json_get (checkpoint, ENABLED) != NULL)
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "%s lacks " TRAIN "." CHECKPOINT "." ENABLED
                      ", so it would have no effect; it must be true or false",
                      json->where);
}

/**
 * ebb_apply_libai_config:
 * @model: a model, as #EbbBert or #EbbGpt
 * @json: a configuration of LiBai as JSON: text, which begins with "{", or else the path of a file
 * @error: return location for an error
 *
 * Does to a model what LiBai's `train.activation_checkpoint.enabled` does: with true every #EbbBlock is
 * checkpointed, with false nothing happens. All other sections, and all other keys of `train`, are ignored.
 *
 * Returns: %FALSE with an error that names the key, its value and what it may be, and then nothing has changed:
 *   %EBB_ERROR_INVALID_ARGUMENT if the key is missing, beside one that is unknown or of the wrong type,
 *   %EBB_ERROR_STATE for a model that is checkpointed already, %EBB_ERROR_FORMAT for text that is not JSON,
 *   %EBB_ERROR_IO for a file that can't be read
 */
gboolean
ebb_apply_libai_config (EbbModule *model,
                        const char *json,
                        GError **error)
{
  g_auto (EbbJsonConfig) file = { 0 };
  Config config = { 0 };

  if (!EBB_MAY_BEGIN (error, model, json))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (model), FALSE);

  if (!ebb_json_config_load (&file, json, "{\"" TRAIN "\": {\"" CHECKPOINT "\": {\"" ENABLED "\": true}}}", error)
      || !read_config (&file, &config, error))
    return FALSE;
  if (!config.enabled)
    return TRUE;
  if (ebb_model_blocks_count (model, error) > 0)
    return ebb_checkpoint_wrap_each (model, EBB_TYPE_BLOCK, NULL, error);
  g_prefix_error_literal (error, TRAIN "." CHECKPOINT "." ENABLED " is true: ");
  return FALSE;
}
