/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/compat/megatron.h"

#include "dist/tensor-parallel/parallelize.h"
#include "nn/module-private.h"
#include "nn/layers/block.h"
#include "tensor/error-private.h"
#include "wrap/checkpoint/stack.h"
#include "wrap/checkpoint/wrapper.h"
#include "wrap/compat/json-config-private.h"
#include "wrap/compat/model-blocks-private.h"
#include "dist/mpu-private.h"
#include "wrap/compat/store-chain-private.h"

/* Megatron-LM's interface: which layers are recomputed, and how much of each. */

enum
{
  NO_GRANULARITY,
  FULL,
  SELECTIVE
};

enum
{
  NO_METHOD,
  UNIFORM,
  BLOCK
};

typedef struct
{
  guint granularity, method; /* of the enumerations above */
  guint n_layers;            /* 0: null */
  guint distribute, shorthand;
} Config;

static const char *const granularities[] = { "full", "selective", NULL };
static const char *const methods[] = { "uniform", "block", NULL };

enum
{
  GRANULARITY,
  METHOD,
  N_LAYERS,
  DISTRIBUTE,
  SHORTHAND,
  N_KEYS
};

static const EbbConfigKey keys[N_KEYS] = {
  [GRANULARITY] = { "recompute_granularity", EBB_CONFIG_CHOICE_OR_NULL, offsetof (Config, granularity), granularities },
  [METHOD] = { "recompute_method", EBB_CONFIG_CHOICE_OR_NULL, offsetof (Config, method), methods },
  [N_LAYERS] = { "recompute_num_layers", EBB_CONFIG_COUNT_OR_NULL, offsetof (Config, n_layers), NULL },
  [DISTRIBUTE] = { "distribute_saved_activations", EBB_CONFIG_BOOLEAN, offsetof (Config, distribute), NULL },
  [SHORTHAND] = { "recompute_activations", EBB_CONFIG_BOOLEAN, offsetof (Config, shorthand), NULL },
};

/* -- values that contradict each other ----------------------------------------------------------------------------- */

/* A key and its value, as "recompute_method is "uniform"". */
static char *
describe (const Config *config,
          const EbbConfigKey *key)
{
  const guint value = ebb_config_get_value (config, key);

  if (key->kind == EBB_CONFIG_BOOLEAN)
    return g_strdup_printf ("%s is %s", key->name, value ? "true" : "false");
  if (value == 0)
    return g_strdup_printf ("%s is null", key->name);
  if (key->kind == EBB_CONFIG_CHOICE_OR_NULL)
    return g_strdup_printf ("%s is \"%s\"", key->name, key->choices[value - 1]);
  return g_strdup_printf ("%s is %u", key->name, value);
}

static gboolean
refuse_pair (const char *where,
             const Config *config,
             guint a,
             guint b,
             const char *choice,
             GError **error)
{
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: %s and %s: %s", where,
                   ebb_in_message (describe (config, &keys[a])), ebb_in_message (describe (config, &keys[b])), choice);
}

static gboolean
check_keys (Config *config,
            const char *where,
            GError **error)
{
  if (config->shorthand && config->granularity == FULL)
    return refuse_pair (where, config, SHORTHAND, GRANULARITY,
                        "the first is short for \"selective\", so drop one of them", error);
  if (config->shorthand)
    config->granularity = SELECTIVE;
  for (guint key = METHOD; key <= DISTRIBUTE; key++)
    if (ebb_config_get_value (config, &keys[key]) && config->granularity != FULL)
      return refuse_pair (
          where, config, key, GRANULARITY,
          "which layers are recomputed, and where their inputs are kept, can be chosen for \"full\" alone", error);
  if (config->granularity != FULL)
    return TRUE;
  if (!config->method)
    return refuse_pair (where, config, GRANULARITY, METHOD, "the method must be \"uniform\" or \"block\"", error);
  if (!config->n_layers)
    return refuse_pair (where, config, METHOD, N_LAYERS,
                        config->method == UNIFORM ? "it must be the number of layers of a chunk, from 1 on"
                                                  : "it must be the number of layers to recompute, from 1 on",
                        error);
  return TRUE;
}

/* An @mpu without ranks becomes that of @model. */
static gboolean
check_ranks (EbbMpu *mpu,
             EbbModule *model,
             const char *where,
             GError **error)
{
  if (ebb_parallel_get_sequence_parallel (model))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "%s: distribute_saved_activations is true and the model's sequence_parallel is true: the ranks "
                     "hold parts of its layers' inputs already, so one of them must be false",
                     where);
  if (mpu->world_size == 0 && ebb_parallel_is_parallelized (model))
    {
      mpu->group = g_object_ref (ebb_parallel_get_group (model));
      mpu->world_size = ebb_process_group_get_size (mpu->group);
    }
  if (mpu->world_size < 2)
    return ebb_fail (
        error, EBB_ERROR_INVALID_ARGUMENT,
        "%s: distribute_saved_activations is true and %s: activations are distributed over tensor-parallel "
        "ranks, of which there must be at least 2",
        where,
        mpu->world_size == 0 ? "there is no mpu, nor is the model divided among ranks"
                             : "there is one tensor-parallel rank");
  return mpu->group != NULL
         || ebb_fail (
             error, EBB_ERROR_NOT_SUPPORTED,
             "%s: distribute_saved_activations is true and mpu has %u ranks, but no group to communicate over: "
             "it must be an EbbMesh or EbbProcessGroup, or have a model-parallel-group",
             where, mpu->world_size);
}

static gboolean
check_layers (const Config *config,
              EbbModule *stack,
              const char *where,
              GError **error)
{
  const guint n_layers = ebb_module_get_n_children (stack);

  return config->n_layers <= n_layers
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "%s: recompute_num_layers is %u and the model has %u layer%s: it must be from 1 to %u", where,
                      config->n_layers, n_layers, n_layers == 1 ? "" : "s", n_layers);
}

/* -- the model ----------------------------------------------------------------------------------------------------- */

static gboolean
wrap_full (EbbModule *model,
           const Config *config,
           EbbProcessGroup *group,
           const char *where,
           GError **error)
{
  EbbStoreChain chain = { .group = config->distribute ? group : NULL };
  EbbModule *stack = ebb_model_blocks_get_stack (model, error);
  g_autoptr (EbbCheckpointOptions) options = NULL;

  if (stack == NULL || !check_layers (config, stack, where, error)
      || (options = ebb_store_chain_make_options (&chain, error)) == NULL)
    return FALSE;
  if (config->method == UNIFORM)
    return ebb_checkpoint_wrap_uniform (stack, config->n_layers, options, error);
  return ebb_checkpoint_wrap_block (stack, config->n_layers, options, error);
}

static gboolean
wrap_selective (EbbModule *model,
                GError **error)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

  ebb_checkpoint_options_set_policy_core_attention (options);
  return ebb_checkpoint_wrap_each (model, EBB_TYPE_BLOCK, options, error);
}

/**
 * ebb_recompute_configure:
 * @model: a model of #EbbBlock, as #EbbGpt or #EbbBert; none of them checkpointed
 * @json: Megatron-LM's options, as an object: text, which begins with "{", or else the path of a file
 * @mpu: (nullable): an object that knows the tensor-parallel ranks, as in ebb_checkpointing_configure(); %NULL for
 * those that ebb_parallelize() has divided @model among
 * @error: return location for an error
 *
 * Checkpoints the layers of a model, in place, as Megatron-LM does with the options of the same names:
 *
 * - `recompute_granularity` (null): "full" recomputes a whole layer; "selective" only the attention's core, as
 *   ebb_checkpoint_options_set_policy_core_attention() does for every layer; null nothing
 * - `recompute_method` (null), for "full": "uniform" is ebb_checkpoint_wrap_uniform(), "block" is
 *   ebb_checkpoint_wrap_block()
 * - `recompute_num_layers` (null), for "full": the layers of a chunk, or the first layers that are recomputed; from 1
 *   to all
 * - `distribute_saved_activations` (false), for "full": the inputs of checkpoints are divided among the tensor-parallel
 *   ranks, by ebb_partitioned_store_new(); not with sequence parallelism, which divides them already
 * - `recompute_activations` (false): short for `recompute_granularity` "selective"
 *
 * The ranks do not communicate until the model is called.
 *
 * Returns: %TRUE if it was done; %FALSE with an error that names the keys, their values and what they may be, and then
 *   nothing has changed: %EBB_ERROR_INVALID_ARGUMENT for an unknown key, a value of the wrong type and values that
 *   contradict each other, %EBB_ERROR_NOT_SUPPORTED if @model does not have exactly one stack of layers,
 * %EBB_ERROR_STATE if a layer is checkpointed already, %EBB_ERROR_FORMAT for text that is not JSON or has a key twice,
 * %EBB_ERROR_IO for a file that can't be read
 */
gboolean
ebb_recompute_configure (EbbModule *model,
                         const char *json,
                         GObject *mpu,
                         GError **error)
{
  g_auto (EbbJsonConfig) loaded = { NULL };
  Config config = { 0 };
  g_auto (EbbMpu) unit = { 0 };

  if (!EBB_MAY_BEGIN (error, model, json))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (model), FALSE);
  g_return_val_if_fail (mpu == NULL || G_IS_OBJECT (mpu), FALSE);

  if (!ebb_mpu_init (&unit, mpu, error)
      || !ebb_json_config_load (&loaded, json, "{\"recompute_granularity\": ...}", error)
      || !ebb_json_config_read (loaded.root, loaded.where, keys, N_KEYS, &config, error)
      || !check_keys (&config, loaded.where, error)
      || (config.distribute && !check_ranks (&unit, model, loaded.where, error)))
    return FALSE;
  if (config.granularity == NO_GRANULARITY)
    return TRUE;
  if (ebb_model_blocks_count (model, error) == 0)
    return FALSE;
  return config.granularity == FULL ? wrap_full (model, &config, unit.group, loaded.where, error)
                                    : wrap_selective (model, error);
}
