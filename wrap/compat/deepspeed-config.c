/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads DeepSpeed's activation checkpointing options, from JSON or from the arguments of its configure (). */
#include "wrap/compat/deepspeed-config-private.h"

#include "wrap/compat/json-config-private.h"

#define SECTION "activation_checkpointing"
#define FIELD(field) offsetof (EbbCheckpointingConfig, field)

/* The names of the JSON, and those of the function's arguments. */
static const EbbConfigKey keys[] = {
  { "partition_activations", EBB_CONFIG_BOOLEAN, FIELD (partition), NULL },
  { "cpu_checkpointing", EBB_CONFIG_BOOLEAN, FIELD (cpu), NULL },
  { "contiguous_memory_optimization", EBB_CONFIG_BOOLEAN, FIELD (contiguous), NULL },
  { "number_checkpoints", EBB_CONFIG_COUNT_OR_NULL, FIELD (n_checkpoints), NULL },
  { "synchronize_checkpoint_boundary", EBB_CONFIG_BOOLEAN, FIELD (synchronize), NULL },
  { "profile", EBB_CONFIG_BOOLEAN, FIELD (profile), NULL },
};
static const EbbConfigKey arguments[] = {
  { "partition_activations", EBB_CONFIG_BOOLEAN, FIELD (partition), NULL },
  { "checkpoint_in_cpu", EBB_CONFIG_BOOLEAN, FIELD (cpu), NULL },
  { "contiguous_checkpointing", EBB_CONFIG_BOOLEAN, FIELD (contiguous), NULL },
  { "num_checkpoints", EBB_CONFIG_COUNT_OR_NULL, FIELD (n_checkpoints), NULL },
  { "synchronize", EBB_CONFIG_BOOLEAN, FIELD (synchronize), NULL },
  { "profile", EBB_CONFIG_BOOLEAN, FIELD (profile), NULL },
};

gboolean
ebb_checkpointing_config_read_json (EbbCheckpointingConfig *config,
                                    const char *json,
                                    GError **error)
{
  g_auto (EbbJsonConfig) loaded = { NULL };
  const EbbJson *section;
  g_autofree char *inside = NULL;

  if (!ebb_json_config_load (&loaded, json, "{\"" SECTION "\": {...}}", error))
    return FALSE;
  /* A key outside of the section would do nothing, and no error would say so. */
  for (guint i = 0; i < G_N_ELEMENTS (keys); i++)
    if (ebb_json_get (loaded.root, keys[i].name) != NULL)
      return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                       "%s: %s stands outside of \"" SECTION "\": it must be {\"" SECTION "\": {\"%s\": ...}}",
                       loaded.where, keys[i].name, keys[i].name);
  if (!ebb_json_config_get_section (loaded.root, SECTION, loaded.where, &section, error))
    return FALSE;
  if (section == NULL)
    return TRUE;
  inside = g_strdup_printf ("%s: " SECTION, loaded.where);
  return ebb_json_config_read (section, inside, keys, G_N_ELEMENTS (keys), config, error);
}

gboolean
ebb_checkpointing_config_read_args (EbbCheckpointingConfig *config,
                                    EbbArgs *args,
                                    GError **error)
{
  return ebb_json_config_read_args (args, arguments, G_N_ELEMENTS (arguments), config, error);
}

gboolean
ebb_checkpointing_config_check (const EbbCheckpointingConfig *config,
                                const EbbMpu *mpu,
                                GError **error)
{
  if (config->contiguous && config->n_checkpoints == 0)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "contiguous_memory_optimization (contiguous_checkpointing) is true and number_checkpoints "
                     "(num_checkpoints) is null: it must be a whole number from 1 to %d, how many checkpoints a "
                     "forward pass has",
                     EBB_CONFIG_MAX_COUNT);
  if (!config->partition)
    return TRUE;
  if (mpu->world_size < 2)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "partition_activations is true and %s: it divides activations among model-parallel ranks, of "
                     "which there must be at least 2; one process alone takes false",
                     mpu->world_size == 0 ? "there is no mpu" : "mpu has one rank");
  return mpu->group != NULL
         || ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                      "partition_activations is true and mpu has %u ranks, but no group to communicate over: it must "
                      "be an EbbMesh or EbbProcessGroup, or have a model-parallel-group",
                      mpu->world_size);
}

EbbArgs *
ebb_checkpointing_config_to_args (const EbbCheckpointingConfig *config)
{
  EbbArgs *args = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < G_N_ELEMENTS (keys); i++)
    {
      const guint value = ebb_config_get_value (config, &keys[i]);

      if (keys[i].kind == EBB_CONFIG_BOOLEAN)
        ebb_args_add_boolean (args, keys[i].name, value != 0);
      else if (value != 0)
        ebb_args_add_int (args, keys[i].name, value);
      else
        ebb_args_add_none (args, keys[i].name);
    }
  return args;
}
