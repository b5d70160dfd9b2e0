/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads OSLO's configuration and refuses combinations that Ebb can't apply. */
#include "wrap/compat/oslo-config-private.h"

#define PARALLEL "model_parallelism"
#define CHECKPOINTING "activation_checkpointing"
#define FUSION "kernel_fusion"

/* The sections as they are written. */
typedef struct
{
  guint parallel, tensor_size, pipeline_size;
  guint checkpointing, host, partitioned, contiguous;
  guint fusion, memory_efficient, custom_kernels;
} Keys;

#define FIELD(field) offsetof (Keys, field)

static const EbbConfigKey parallel_keys[] = {
  { "enable", EBB_CONFIG_BOOLEAN, FIELD (parallel), NULL },
  { "tensor_parallel_size", EBB_CONFIG_COUNT, FIELD (tensor_size), NULL },
  { "pipeline_parallel_size", EBB_CONFIG_COUNT, FIELD (pipeline_size), NULL },
};
static const EbbConfigKey checkpointing_keys[] = {
  { "enable", EBB_CONFIG_BOOLEAN, FIELD (checkpointing), NULL },
  { "cpu_checkpointing", EBB_CONFIG_BOOLEAN, FIELD (host), NULL },
  { "partitioned_checkpointing", EBB_CONFIG_BOOLEAN, FIELD (partitioned), NULL },
  { "contiguous_checkpointing", EBB_CONFIG_BOOLEAN, FIELD (contiguous), NULL },
};
static const EbbConfigKey fusion_keys[] = {
  { "enable", EBB_CONFIG_BOOLEAN, FIELD (fusion), NULL },
  { "memory_efficient_fusion", EBB_CONFIG_BOOLEAN, FIELD (memory_efficient), NULL },
  { "custom_cuda_kernels", EBB_CONFIG_ARRAY, FIELD (custom_kernels), NULL },
};

static const struct
{
  const char *name;
  const EbbConfigKey *keys;
  guint n_keys;
} sections[] = {
  { PARALLEL, parallel_keys, G_N_ELEMENTS (parallel_keys) },
  { CHECKPOINTING, checkpointing_keys, G_N_ELEMENTS (checkpointing_keys) },
  { FUSION, fusion_keys, G_N_ELEMENTS (fusion_keys) },
};

/* -- reading ------------------------------------------------------------------------------------------------------- */

static char *
list_sections (void)
{
  const char *names[G_N_ELEMENTS (sections)];

  for (guint i = 0; i < G_N_ELEMENTS (sections); i++)
    names[i] = sections[i].name;
  return ebb_config_list (names, G_N_ELEMENTS (sections));
}

static gboolean
check_sections (const EbbJsonConfig *json,
                GError **error)
{
  g_autofree char *list = list_sections ();

  for (gsize k = 0; k < json->root->n_items; k++)
    {
      const char *name = json->root->items[k].key;
      gboolean is_known = FALSE;

      for (guint i = 0; i < G_N_ELEMENTS (sections); i++)
        is_known = is_known || strcmp (sections[i].name, name) == 0;
      if (!is_known)
        return ebb_json_config_refuse_key (json->root, name, json->where, list, error);
    }
  return json->root->n_items > 0
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s is empty; its keys are %s", json->where, list);
}

/* The fields of a section that is not there stay as they are. */
static gboolean
read_section (const EbbJsonConfig *json,
              guint section,
              Keys *keys,
              GError **error)
{
  const char *name = sections[section].name;
  g_autofree char *inside = g_strdup_printf ("%s: %s", json->where, name);
  const EbbJson *object;

  if (!ebb_json_config_get_section (json->root, name, json->where, &object, error))
    return FALSE;
  if (object == NULL)
    return TRUE;
  if (!ebb_json_config_read (object, inside, sections[section].keys, sections[section].n_keys, keys, error))
    return FALSE;
  if (ebb_json_get (object, "enable") != NULL)
    return TRUE;
  /* OSLO silently takes that for false. */
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "%s lacks enable, so it would have no effect; enable must be true or false", inside);
}

/* -- values that contradict each other ----------------------------------------------------------------------------- */

static gboolean
check_parts (const char *where,
             const Keys *keys,
             GError **error)
{
  if (keys->parallel && keys->pipeline_size > 1)
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                     "%s: " PARALLEL ": pipeline_parallel_size is %u: Ebb divides "
                     "layers among ranks, not the model between its layers; it must be 1",
                     where, keys->pipeline_size);
  if (keys->fusion)
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                     "%s: " FUSION
                     ": enable is true: Ebb always uses its fused ops, so there is nothing to enable; it must be false",
                     where);
  return TRUE;
}

static gboolean
check_together (const EbbInitializeConfig *self,
                const char *where,
                GError **error)
{
  if (self->is_contiguous && !self->is_partitioned)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "%s: " CHECKPOINTING ": contiguous_checkpointing is true and "
                     "partitioned_checkpointing is false: both must be true, or contiguous_checkpointing false",
                     where);
  if (self->is_partitioned && self->n_tensor_ranks < 2)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "%s: " CHECKPOINTING ": partitioned_checkpointing is true and " PARALLEL
                     ": %s: activations are divided among tensor-parallel ranks, so tensor_parallel_size must "
                     "be at least 2",
                     where, self->is_parallel ? "tensor_parallel_size is 1" : "enable is false");
  return TRUE;
}

gboolean
ebb_initialize_config_read (EbbInitializeConfig *self,
                            const char *json,
                            GError **error)
{
  g_auto (EbbJsonConfig) loaded = { NULL };
  Keys keys = { .tensor_size = 1, .pipeline_size = 1 };

  *self = (EbbInitializeConfig){ .n_tensor_ranks = 1 };
  if (!ebb_json_config_load (&loaded, json, "{\"" PARALLEL "\": {...}, \"" CHECKPOINTING "\": {...}}", error)
      || !check_sections (&loaded, error))
    return FALSE;
  for (guint i = 0; i < G_N_ELEMENTS (sections); i++)
    if (!read_section (&loaded, i, &keys, error))
      return FALSE;
  self->is_parallel = keys.parallel != 0;
  self->n_tensor_ranks = self->is_parallel ? keys.tensor_size : 1;
  self->checkpoints = keys.checkpointing != 0;
  self->host = self->checkpoints && keys.host;
  self->is_partitioned = self->checkpoints && keys.partitioned;
  self->is_contiguous = self->checkpoints && keys.contiguous;
  return check_parts (loaded.where, &keys, error) && check_together (self, loaded.where, error);
}

char *
ebb_initialize_config_to_string (const EbbInitializeConfig *self)
{
  return g_strdup_printf ("tensor_parallel_size %u\n" CHECKPOINTING " %d\ncpu_checkpointing %d\n"
                          "partitioned_checkpointing %d\ncontiguous_checkpointing %d",
                          self->n_tensor_ranks, self->checkpoints, self->host, self->is_partitioned,
                          self->is_contiguous);
}
