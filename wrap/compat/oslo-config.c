/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/compat/oslo-config-private.h"

#define PARALLEL "model_parallelism"
#define CHECKPOINTING "activation_checkpointing"
#define FUSION "kernel_fusion"

enum
{
  ENABLE, /* of every section */
  TENSOR_SIZE,
  PIPELINE_SIZE,
  N_PARALLEL_KEYS,
  HOST = 1,
  DIVIDED,
  CONTIGUOUS,
  N_CHECKPOINTING_KEYS,
  MEMORY_EFFICIENT = 1,
  CUSTOM_KERNELS,
  N_FUSION_KEYS,
  MAX_KEYS = N_CHECKPOINTING_KEYS
};

static const EbbConfigKey parallel_keys[N_PARALLEL_KEYS] = {
  [ENABLE] = { "enable", EBB_CONFIG_BOOLEAN, NULL },
  [TENSOR_SIZE] = { "tensor_parallel_size", EBB_CONFIG_COUNT, NULL },
  [PIPELINE_SIZE] = { "pipeline_parallel_size", EBB_CONFIG_COUNT, NULL },
};
static const EbbConfigKey checkpointing_keys[N_CHECKPOINTING_KEYS] = {
  [ENABLE] = { "enable", EBB_CONFIG_BOOLEAN, NULL },
  [HOST] = { "cpu_checkpointing", EBB_CONFIG_BOOLEAN, NULL },
  [DIVIDED] = { "partitioned_checkpointing", EBB_CONFIG_BOOLEAN, NULL },
  [CONTIGUOUS] = { "contiguous_checkpointing", EBB_CONFIG_BOOLEAN, NULL },
};
static const EbbConfigKey fusion_keys[N_FUSION_KEYS] = {
  [ENABLE] = { "enable", EBB_CONFIG_BOOLEAN, NULL },
  [MEMORY_EFFICIENT] = { "memory_efficient_fusion", EBB_CONFIG_BOOLEAN, NULL },
  [CUSTOM_KERNELS] = { "custom_cuda_kernels", EBB_CONFIG_ARRAY, NULL },
};

static const struct
{
  const char *name;
  const EbbConfigKey *keys;
  guint n_keys;
} sections[] = {
  { PARALLEL, parallel_keys, N_PARALLEL_KEYS },
  { CHECKPOINTING, checkpointing_keys, N_CHECKPOINTING_KEYS },
  { FUSION, fusion_keys, N_FUSION_KEYS },
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
  g_autoptr (GList) names = json_object_get_members (json->root);
  g_autofree char *list = list_sections ();

  for (GList *item = names; item != NULL; item = item->next)
    {
      gboolean is_known = FALSE;

      for (guint i = 0; i < G_N_ELEMENTS (sections); i++)
        is_known = is_known || g_strcmp0 (sections[i].name, item->data) == 0;
      if (!is_known)
        return ebb_json_config_refuse_key (json->root, item->data, json->where, list, error);
    }
  if (names != NULL)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s asks for nothing: its keys are %s", json->where, list);
  return FALSE;
}

/* @values: those of a section that is not there stay what they are. */
static gboolean
read_section (const EbbJsonConfig *json,
              guint section,
              guint *values,
              GError **error)
{
  const char *name = sections[section].name;
  g_autofree char *inside = g_strdup_printf ("%s: %s", json->where, name);
  JsonObject *object;

  if (!ebb_json_config_get_section (json->root, name, json->where, &object, error))
    return FALSE;
  if (object == NULL)
    return TRUE;
  if (!ebb_json_config_read (object, inside, sections[section].keys, sections[section].n_keys, values, error))
    return FALSE;
  if (json_object_has_member (object, "enable"))
    return TRUE;
  /* OSLO takes that for false, and says nothing. */
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "%s has no enable, without which nothing of it would take effect: it must be true or false", inside);
  return FALSE;
}

/* -- what goes together -------------------------------------------------------------------------------------------- */

static gboolean
check_parts (const char *where,
             const guint *parallel,
             const guint *fusion,
             GError **error)
{
  if (parallel[ENABLE] && parallel[PIPELINE_SIZE] > 1)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
                   "%s: " PARALLEL ": pipeline_parallel_size is %u: Ebb divides layers among ranks, not the model "
                   "between its layers; it must be 1",
                   where, parallel[PIPELINE_SIZE]);
      return FALSE;
    }
  if (fusion[ENABLE])
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
                   "%s: " FUSION ": enable is true: what Ebb has fused is always used, so there is nothing to enable; "
                   "it must be false",
                   where);
      return FALSE;
    }
  return TRUE;
}

static gboolean
check_together (const EbbInitializeConfig *self,
                const char *where,
                GError **error)
{
  if (self->is_contiguous && !self->is_divided)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                 "%s: " CHECKPOINTING ": contiguous_checkpointing is true and partitioned_checkpointing is false: both "
                 "must be true, or contiguous_checkpointing false",
                 where);
  else if (self->is_divided && self->n_tensor_ranks < 2)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                 "%s: " CHECKPOINTING ": partitioned_checkpointing is true and " PARALLEL ": %s: activations are "
                 "divided among tensor-parallel ranks, so tensor_parallel_size must be at least 2",
                 where, self->is_parallel ? "tensor_parallel_size is 1" : "enable is false");
  else
    return TRUE;
  return FALSE;
}

gboolean
ebb_initialize_config_read (EbbInitializeConfig *self,
                            const char *json,
                            GError **error)
{
  g_auto (EbbJsonConfig) loaded = { NULL };
  guint values[G_N_ELEMENTS (sections)][MAX_KEYS] = { [0] = { [TENSOR_SIZE] = 1, [PIPELINE_SIZE] = 1 } };
  const guint *parallel = values[0], *checkpointing = values[1], *fusion = values[2];

  *self = (EbbInitializeConfig){ .n_tensor_ranks = 1 };
  if (!ebb_json_config_load (&loaded, json, "{\"" PARALLEL "\": {...}, \"" CHECKPOINTING "\": {...}}", error)
      || !check_sections (&loaded, error))
    return FALSE;
  for (guint i = 0; i < G_N_ELEMENTS (sections); i++)
    if (!read_section (&loaded, i, values[i], error))
      return FALSE;
  self->is_parallel = parallel[ENABLE] != 0;
  self->n_tensor_ranks = self->is_parallel ? parallel[TENSOR_SIZE] : 1;
  self->checkpoints = checkpointing[ENABLE] != 0;
  self->host = self->checkpoints && checkpointing[HOST];
  self->is_divided = self->checkpoints && checkpointing[DIVIDED];
  self->is_contiguous = self->checkpoints && checkpointing[CONTIGUOUS];
  return check_parts (loaded.where, parallel, fusion, error) && check_together (self, loaded.where, error);
}

char *
ebb_initialize_config_to_string (const EbbInitializeConfig *self)
{
  return g_strdup_printf ("tensor_parallel_size %u\n" CHECKPOINTING " %d\ncpu_checkpointing %d\n"
                          "partitioned_checkpointing %d\ncontiguous_checkpointing %d",
                          self->n_tensor_ranks, self->checkpoints, self->host, self->is_divided, self->is_contiguous);
}
