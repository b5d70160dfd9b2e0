/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/compat/megatron.h"

#include "dist/tensor-parallel/parallelize.h"
#include "nn/module-private.h"
#include "nn/layers/transformer-block.h"
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
  GRANULARITY,
  METHOD,
  N_LAYERS,
  DISTRIBUTE,
  SHORTHAND,
  N_KEYS
};

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

static const char *const granularities[] = { "full", "selective", NULL };
static const char *const methods[] = { "uniform", "block", NULL };

static const EbbConfigKey keys[N_KEYS] = {
  [GRANULARITY] = { "recompute_granularity", EBB_CONFIG_CHOICE_OR_NULL, granularities },
  [METHOD] = { "recompute_method", EBB_CONFIG_CHOICE_OR_NULL, methods },
  [N_LAYERS] = { "recompute_num_layers", EBB_CONFIG_COUNT_OR_NULL, NULL },
  [DISTRIBUTE] = { "distribute_saved_activations", EBB_CONFIG_BOOLEAN, NULL },
  [SHORTHAND] = { "recompute_activations", EBB_CONFIG_BOOLEAN, NULL },
};

/* -- what goes together -------------------------------------------------------------------------------------------- */

static gboolean
refuse (const char *where,
        const char *what,
        const char *choice,
        GError **error)
{
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: %s: %s", where, what, choice);
  return FALSE;
}

/* "recompute_method is "uniform"", of a key that says something. */
static char *
describe (const guint *values,
          guint key)
{
  if (keys[key].kind == EBB_CONFIG_BOOLEAN)
    return g_strdup_printf ("%s is %s", keys[key].name, values[key] ? "true" : "false");
  if (values[key] == 0)
    return g_strdup_printf ("%s is null", keys[key].name);
  if (keys[key].kind == EBB_CONFIG_CHOICE_OR_NULL)
    return g_strdup_printf ("%s is \"%s\"", keys[key].name, keys[key].choices[values[key] - 1]);
  return g_strdup_printf ("%s is %u", keys[key].name, values[key]);
}

static gboolean
refuse_pair (const char *where,
             const guint *values,
             guint a,
             guint b,
             const char *choice,
             GError **error)
{
  g_autofree char *first = describe (values, a);
  g_autofree char *second = describe (values, b);
  g_autofree char *both = g_strdup_printf ("%s and %s", first, second);

  return refuse (where, both, choice, error);
}

static gboolean
check_keys (guint *values,
            const char *where,
            GError **error)
{
  if (values[SHORTHAND] && values[GRANULARITY] == FULL)
    return refuse_pair (where, values, SHORTHAND, GRANULARITY,
                        "the first is short for \"selective\", so one of them must go", error);
  if (values[SHORTHAND])
    values[GRANULARITY] = SELECTIVE;
  for (guint key = METHOD; key <= DISTRIBUTE; key++)
    if (values[key] && values[GRANULARITY] != FULL)
      return refuse_pair (
          where, values, key, GRANULARITY,
          "which layers are recomputed, and where their inputs are kept, can be chosen for \"full\" alone", error);
  if (values[GRANULARITY] != FULL)
    return TRUE;
  if (!values[METHOD])
    return refuse_pair (where, values, GRANULARITY, METHOD, "the method must be \"uniform\" or \"block\"", error);
  if (!values[N_LAYERS])
    return refuse_pair (where, values, METHOD, N_LAYERS,
                        values[METHOD] == UNIFORM ? "it must be the number of layers of a chunk, from 1 on"
                                                  : "it must be the number of layers to recompute, from 1 on",
                        error);
  return TRUE;
}

/* @mpu: of nobody, it becomes that of @model. */
static gboolean
check_ranks (EbbMpu *mpu,
             EbbModule *model,
             const char *where,
             GError **error)
{
  if (ebb_parallel_get_sequence_parallel (model))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "%s: distribute_saved_activations is true and the model's sequence_parallel is true: its layers' "
                   "inputs are parts of the ranks already, so one of them must be false",
                   where);
      return FALSE;
    }
  if (mpu->world_size == 0 && ebb_parallel_is_parallelized (model))
    {
      mpu->group = g_object_ref (ebb_parallel_get_group (model));
      mpu->world_size = ebb_process_group_get_size (mpu->group);
    }
  if (mpu->group != NULL && mpu->world_size >= 2)
    return TRUE;
  if (mpu->world_size >= 2)
    g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
                 "%s: distribute_saved_activations is true and mpu has %u ranks, but no group, over which they could "
                 "be talked to: it must be an EbbMesh or EbbProcessGroup, or have a model-parallel-group",
                 where, mpu->world_size);
  else
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                 "%s: distribute_saved_activations is true and %s: activations are distributed over tensor-parallel "
                 "ranks, of which there must be at least 2",
                 where,
                 mpu->world_size == 0 ? "there is no mpu, nor is the model divided among ranks"
                                      : "there is one tensor-parallel rank");
  return FALSE;
}

static gboolean
check_layers (const guint *values,
              EbbModule *stack,
              const char *where,
              GError **error)
{
  const guint n_layers = ebb_module_get_n_children (stack);

  if (values[N_LAYERS] <= n_layers)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "%s: recompute_num_layers is %u and the model has %u layer%s: it must be from 1 to %u", where,
               values[N_LAYERS], n_layers, n_layers == 1 ? "" : "s", n_layers);
  return FALSE;
}

/* -- the model ----------------------------------------------------------------------------------------------------- */

static gboolean
wrap_full (EbbModule *model,
           const guint *values,
           EbbProcessGroup *group,
           const char *where,
           GError **error)
{
  EbbStoreChain chain = { .group = values[DISTRIBUTE] ? group : NULL };
  EbbModule *stack = ebb_model_blocks_get_stack (model, error);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbSavedTensorHooks) store = NULL;

  if (stack == NULL || !check_layers (values, stack, where, error) || !ebb_store_chain_open (&chain, &store, error))
    return FALSE;
  if (store != NULL)
    ebb_checkpoint_options_set_store (options, store);
  if (values[METHOD] == UNIFORM)
    return ebb_checkpoint_wrap_uniform (stack, values[N_LAYERS], options, error);
  return ebb_checkpoint_wrap_block (stack, values[N_LAYERS], options, error);
}

static gboolean
wrap_selective (EbbModule *model,
                GError **error)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

  ebb_checkpoint_options_set_policy_core_attention (options);
  return ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, error);
}

/**
 * ebb_recompute_configure:
 * @model: a model of #EbbTransformerBlock's, as #EbbGpt or #EbbBert; none of them checkpointed
 * @json: Megatron-LM's options, as an object: text, which begins with "{", or else the path of a file
 * @mpu: (nullable): who knows the tensor-parallel ranks, as ebb_checkpointing_configure() takes it; %NULL for those
 * that ebb_parallelize() has divided @model among
 * @error: return location for an error
 *
 * Checkpoints the layers of a model, in place, as Megatron-LM does with the options of the same names:
 *
 * - `recompute_granularity` (null): "full" lets go of all that a layer makes inside; "selective" of the attention's
 * core alone, as ebb_checkpoint_options_set_policy_core_attention() does for every layer; null of nothing
 * - `recompute_method` (null), for "full": "uniform" is ebb_checkpoint_wrap_uniform(), "block" is
 *   ebb_checkpoint_wrap_block()
 * - `recompute_num_layers` (null), for "full": the layers of a chunk, or the first layers that are recomputed; from 1
 * to all
 * - `distribute_saved_activations` (false), for "full": the inputs of checkpoints are divided among the tensor-parallel
 *   ranks, by ebb_partitioned_store_new(); not with sequence parallelism, which has divided them already
 * - `recompute_activations` (false): short for `recompute_granularity` "selective"
 *
 * Nothing talks to other ranks until the model is called.
 *
 * Returns: %TRUE if it was done; %FALSE with an error that names the keys, their values and what they may be, and then
 *   nothing has changed: %EBB_ERROR_INVALID_ARGUMENT for a key that there is not, a value of the wrong type and what
 *   can't be had together, %EBB_ERROR_NOT_SUPPORTED if @model has not one stack of layers, %EBB_ERROR_STATE if a layer
 *   is checkpointed already, %EBB_ERROR_FORMAT for what is not JSON or has a key twice, %EBB_ERROR_IO for a file that
 *   can't be read
 */
gboolean
ebb_recompute_configure (EbbModule *model,
                         const char *json,
                         GObject *mpu,
                         GError **error)
{
  g_auto (EbbJsonConfig) loaded = { NULL };
  guint values[N_KEYS] = { 0 };
  g_auto (EbbMpu) unit = { 0 };

  if (!EBB_MAY_BEGIN (error, model, json))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (model), FALSE);
  g_return_val_if_fail (mpu == NULL || G_IS_OBJECT (mpu), FALSE);

  if (!ebb_mpu_init (&unit, mpu, error)
      || !ebb_json_config_load (&loaded, json, "{\"recompute_granularity\": ...}", error)
      || !ebb_json_config_read (loaded.root, loaded.where, keys, N_KEYS, values, error)
      || !check_keys (values, loaded.where, error)
      || (values[DISTRIBUTE] && !check_ranks (&unit, model, loaded.where, error)))
    return FALSE;
  if (values[GRANULARITY] == NO_GRANULARITY)
    return TRUE;
  if (ebb_model_blocks_count (model, error) == 0)
    return FALSE;
  return values[GRANULARITY] == FULL ? wrap_full (model, values, unit.group, loaded.where, error)
                                     : wrap_selective (model, error);
}
