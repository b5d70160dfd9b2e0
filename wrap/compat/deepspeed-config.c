/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/compat/deepspeed-config-private.h"

#include "nn/files/json-scanner-private.h"
#include "wrap/compat/json-config-private.h"

#include <string.h>

#define SECTION "activation_checkpointing"
#define N_KEYS EBB_N_CHECKPOINTING_KEYS

/* The names of the JSON, and those of the function's arguments. */
static const EbbConfigKey keys[N_KEYS] = {
  [EBB_CHECKPOINTING_PARTITION] = { "partition_activations", EBB_CONFIG_BOOLEAN, NULL },
  [EBB_CHECKPOINTING_CPU] = { "cpu_checkpointing", EBB_CONFIG_BOOLEAN, NULL },
  [EBB_CHECKPOINTING_CONTIGUOUS] = { "contiguous_memory_optimization", EBB_CONFIG_BOOLEAN, NULL },
  [EBB_CHECKPOINTING_NUMBER] = { "number_checkpoints", EBB_CONFIG_COUNT_OR_NULL, NULL },
  [EBB_CHECKPOINTING_SYNCHRONIZE] = { "synchronize_checkpoint_boundary", EBB_CONFIG_BOOLEAN, NULL },
  [EBB_CHECKPOINTING_PROFILE] = { "profile", EBB_CONFIG_BOOLEAN, NULL },
};
static const EbbConfigKey arguments[N_KEYS] = {
  [EBB_CHECKPOINTING_PARTITION] = { "partition_activations", EBB_CONFIG_BOOLEAN, NULL },
  [EBB_CHECKPOINTING_CPU] = { "checkpoint_in_cpu", EBB_CONFIG_BOOLEAN, NULL },
  [EBB_CHECKPOINTING_CONTIGUOUS] = { "contiguous_checkpointing", EBB_CONFIG_BOOLEAN, NULL },
  [EBB_CHECKPOINTING_NUMBER] = { "num_checkpoints", EBB_CONFIG_COUNT_OR_NULL, NULL },
  [EBB_CHECKPOINTING_SYNCHRONIZE] = { "synchronize", EBB_CONFIG_BOOLEAN, NULL },
  [EBB_CHECKPOINTING_PROFILE] = { "profile", EBB_CONFIG_BOOLEAN, NULL },
};

static gboolean
is_number (int key)
{
  return keys[key].kind == EBB_CONFIG_COUNT_OR_NULL;
}

/* -- JSON ---------------------------------------------------------------------------------------------------------- */

gboolean
ebb_checkpointing_config_read_json (EbbCheckpointingConfig *config,
                                    const char *json,
                                    GError **error)
{
  g_auto (EbbJsonConfig) loaded = { NULL };
  JsonObject *section;
  g_autofree char *inside = NULL;

  if (!ebb_json_config_load (&loaded, json, "{\"" SECTION "\": {...}}", error))
    return FALSE;
  /* Left there it would do nothing, and nothing would say so. */
  for (guint i = 0; i < N_KEYS; i++)
    if (json_object_has_member (loaded.root, keys[i].name))
      {
        g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                     "%s: %s stands outside of \"" SECTION "\": it must be {\"" SECTION "\": {\"%s\": ...}}",
                     loaded.where, keys[i].name, keys[i].name);
        return FALSE;
      }
  if (!ebb_json_config_get_section (loaded.root, SECTION, loaded.where, &section, error))
    return FALSE;
  if (section == NULL)
    return TRUE;
  inside = g_strdup_printf ("%s: " SECTION, loaded.where);
  return ebb_json_config_read (section, inside, keys, N_KEYS, config->values, error);
}

/* -- arguments ----------------------------------------------------------------------------------------------------- */

static char *
describe_value (EbbArgs *args,
                guint index)
{
  switch (ebb_args_get_value_kind (args, index))
    {
    case EBB_VALUE_NONE:
      return g_strdup ("null");
    case EBB_VALUE_BOOL:
      return g_strdup (ebb_args_get_boolean (args, index) ? "true" : "false");
    case EBB_VALUE_INT:
      return g_strdup_printf ("%" G_GINT64_FORMAT, ebb_args_get_int (args, index));
    case EBB_VALUE_DOUBLE:
      return g_strdup_printf ("%g", ebb_args_get_double (args, index));
    case EBB_VALUE_STRING:
      return ebb_json_quote (ebb_args_get_string (args, index));
    case EBB_VALUE_TENSOR:
      return g_strdup ("a tensor");
    case EBB_VALUE_ARGS:
      return g_strdup ("a container");
    case EBB_VALUE_OBJECT:
    default:
      return g_strdup ("an object");
    }
}

static int
find_argument (const char *name)
{
  for (int i = 0; name != NULL && i < N_KEYS; i++)
    if (strcmp (arguments[i].name, name) == 0)
      return i;
  return -1;
}

static gboolean
read_argument (EbbCheckpointingConfig *config,
               EbbArgs *args,
               guint index,
               GError **error)
{
  const char *name = ebb_args_get_key (args, index);
  int key = find_argument (name);
  EbbValueKind kind = ebb_args_get_value_kind (args, index);
  g_autofree char *value = NULL;

  if (key >= 0 && kind == EBB_VALUE_NONE)
    return TRUE;
  if (key >= 0 && !is_number (key) && kind == EBB_VALUE_BOOL)
    {
      config->values[key] = ebb_args_get_boolean (args, index) != FALSE;
      return TRUE;
    }
  if (key >= 0 && is_number (key) && kind == EBB_VALUE_INT && ebb_args_get_int (args, index) >= 1
      && ebb_args_get_int (args, index) <= EBB_CONFIG_MAX_COUNT)
    {
      config->values[key] = (guint) ebb_args_get_int (args, index);
      return TRUE;
    }
  value = describe_value (args, index);
  if (key < 0)
    {
      g_autofree char *quoted = name != NULL ? ebb_json_quote (name) : g_strdup ("without a name");
      g_autofree char *list = ebb_config_list_keys (arguments, N_KEYS);

      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "there is no argument %s (which is %s): the arguments are %s", quoted, value, list);
      return FALSE;
    }
  return ebb_config_refuse_value ("the arguments", &arguments[key], value, error);
}

gboolean
ebb_checkpointing_config_read_args (EbbCheckpointingConfig *config,
                                    EbbArgs *args,
                                    GError **error)
{
  for (guint i = 0; i < ebb_args_get_length (args); i++)
    if (!read_argument (config, args, i, error))
      return FALSE;
  return TRUE;
}

/* -- the whole ----------------------------------------------------------------------------------------------------- */

gboolean
ebb_checkpointing_config_check (const EbbCheckpointingConfig *config,
                                const EbbMpu *mpu,
                                GError **error)
{
  if (config->values[EBB_CHECKPOINTING_CONTIGUOUS] && config->values[EBB_CHECKPOINTING_NUMBER] == 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "contiguous_memory_optimization (contiguous_checkpointing) is true and number_checkpoints "
                   "(num_checkpoints) is null: it must be a whole number from 1 to %d, how many checkpoints a "
                   "forward pass has",
                   EBB_CONFIG_MAX_COUNT);
      return FALSE;
    }
  if (!config->values[EBB_CHECKPOINTING_PARTITION])
    return TRUE;
  if (mpu->world_size < 2)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                 "partition_activations is true and %s: it divides activations among model-parallel ranks, of which "
                 "there must be at least 2; one process alone takes false",
                 mpu->world_size == 0 ? "there is no mpu" : "mpu has one rank");
  else if (mpu->group == NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
                 "partition_activations is true and mpu has %u ranks, but no group, over which they could be talked "
                 "to: it must be an EbbMesh or EbbProcessGroup, or have a model-parallel-group",
                 mpu->world_size);
  return mpu->group != NULL && mpu->world_size >= 2;
}

EbbArgs *
ebb_checkpointing_config_to_args (const EbbCheckpointingConfig *config)
{
  EbbArgs *args = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < N_KEYS; i++)
    if (!is_number ((int) i))
      ebb_args_add_boolean (args, keys[i].name, config->values[i] != 0);
    else if (config->values[i] != 0)
      ebb_args_add_int (args, keys[i].name, config->values[i]);
    else
      ebb_args_add_none (args, keys[i].name);
  return args;
}
