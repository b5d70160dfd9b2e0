/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/compat/oslo.h"

#include "dist/init.h"
#include "dist/tensor-parallel/parallelize.h"
#include "dist/agree-private.h"
#include "nn/module-private.h"
#include "nn/layers/block.h"
#include "tensor/error-private.h"
#include "wrap/checkpoint/wrapper.h"
#include "wrap/compat/oslo-config-private.h"
#include "wrap/compat/model-blocks-private.h"
#include "dist/mpu-private.h"
#include "wrap/compat/store-chain-private.h"

/* OSLO's interface: one call that divides a model among ranks and checkpoints its blocks. All errors are found before
 * the model is changed: the one step that can still fail, dividing it, comes first and leaves the model alone if it
 * fails. */

/* Belongs to a model that was initialised. */
typedef struct
{
  EbbMesh *mesh;
  EbbCheckpointOptions *options;
} Initialised;

static GQuark
initialised_quark (void)
{
  return g_quark_from_static_string ("ebb-initialised");
}

static void
initialised_free (gpointer data)
{
  Initialised *self = data;

  g_clear_object (&self->mesh);
  g_clear_object (&self->options);
  g_free (self);
}

/* -- ranks --------------------------------------------------------------------------------------------------------- */

/* The mesh of the default group: tensor_parallel_size ranks along "tensor", and the rest along "data". */
static EbbMesh *
make_mesh (const EbbInitializeConfig *config,
           EbbProcessGroup *group,
           GError **error)
{
  static const char *const names[] = { "data", EBB_MPU_DIM };
  const gint64 sizes[] = { -1, config->n_tensor_ranks };
  const guint n_ranks = ebb_process_group_get_size (group);
  g_autofree char *text = ebb_initialize_config_to_string (config);

  if (!ebb_agree_same_text (group, "the configuration", text, error))
    return NULL;
  if (n_ranks % config->n_tensor_ranks == 0)
    return ebb_mesh_new (group, names, sizes, G_N_ELEMENTS (names), error);
  return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                        "model_parallelism: tensor_parallel_size is %u and the process group \"%s\" has %u rank%s: "
                        "their number must be a multiple of it",
                        config->n_tensor_ranks, ebb_process_group_get_name (group), n_ranks, n_ranks == 1 ? "" : "s");
}

/* -- the model ----------------------------------------------------------------------------------------------------- */

static EbbCheckpointOptions *
make_options (const EbbInitializeConfig *config,
              EbbMesh *mesh,
              guint n_blocks,
              GError **error)
{
  /* The checkpoints of several micro-batches may live at once, and the configuration does not say how many. */
  const EbbStoreChain chain = {
    .group = config->is_partitioned ? ebb_mesh_get_group (mesh, EBB_MPU_DIM) : NULL,
    .n_checkpoints = config->is_contiguous ? n_blocks : 0,
    .grow = TRUE,
    .host = config->host,
  };

  return ebb_store_chain_make_options (&chain, error);
}

static gboolean
divide (EbbModule *model,
        EbbMesh *mesh,
        GError **error)
{
  g_autoptr (EbbModule) same = ebb_parallelize (model, ebb_mesh_get_group (mesh, EBB_MPU_DIM), NULL, error);

  return same != NULL;
}

static gboolean
initialize (EbbModule *model,
            const EbbInitializeConfig *config,
            Initialised *made,
            GError **error)
{
  guint n_blocks = 0;

  if (config->checkpoints)
    {
      n_blocks = ebb_model_blocks_count (model, error);
      if (n_blocks == 0)
        {
          g_prefix_error_literal (error, "activation_checkpointing: enable is true: ");
          return FALSE;
        }
    }
  if (config->is_parallel)
    {
      made->mesh = make_mesh (config, ebb_process_group_get_default (), error);
      if (made->mesh == NULL)
        return FALSE;
    }
  if (config->checkpoints)
    {
      made->options = make_options (config, made->mesh, n_blocks, error);
      if (made->options == NULL)
        return FALSE;
    }
  if (config->n_tensor_ranks > 1 && !divide (model, made->mesh, error))
    {
      g_prefix_error (error, "model_parallelism: tensor_parallel_size is %u: ", config->n_tensor_ranks);
      return FALSE;
    }
  return !config->checkpoints
         || ebb_checkpoint_wrap_each (model, EBB_TYPE_BLOCK, made->options, error);
}

/**
 * ebb_initialize:
 * @model: a model, as #EbbGpt or #EbbBert, not wrapped
 * @json: a configuration of OSLO: text, which begins with "{", or else the path of a file
 * @error: return location for an error
 *
 * Does to a model, in place, what OSLO's `initialize` does:
 *
 * - `model_parallelism`: with `enable` true the ranks of ebb_process_group_get_default() are divided into groups of
 *   `tensor_parallel_size` (1), and the model among each of them, by ebb_parallelize(); ebb_initialize_get_mesh() has
 *   both these groups ("tensor") and those across them ("data"). If there is no group yet, ebb_init_process_group()
 *   makes it, as "auto". `pipeline_parallel_size` must be 1.
 * - `activation_checkpointing`: with `enable` true every #EbbBlock is checkpointed, and its inputs are
 * stored: with `partitioned_checkpointing` a part on each tensor-parallel rank; with `contiguous_checkpointing` in a
 * buffer for as many checkpoints as there are blocks, and another one when it is full; with `cpu_checkpointing` in host
 * memory. ebb_initialize_get_options() has the store.
 * - `kernel_fusion`: must not be enabled.
 *
 * A section with `enable` false is ignored; a section without `enable` is an error. Partitioned checkpoints need a
 * `tensor_parallel_size` above 1, contiguous ones need partitioned ones. All ranks call it together, with the same
 * configuration and models that are built in the same way. It does nothing to the ranks along "data":
 * ebb_replicate() or ebb_fully_shard() with the mesh's group "data" make them share the training.
 *
 * Returns: (transfer full) (nullable): @model; %NULL with an error that names the key, its value and what it may be,
 * and then nothing has changed: %EBB_ERROR_INVALID_ARGUMENT for an unknown key, a value of the wrong type and values
 * that contradict each other, %EBB_ERROR_NOT_SUPPORTED for what Ebb does not have, %EBB_ERROR_STATE for a model that
 * was initialised or checkpointed before, %EBB_ERROR_FORMAT for text that is not JSON or has a key twice, %EBB_ERROR_IO
 * for a file that can't be read, %EBB_ERROR_PROCESS_GROUP where ranks differ
 */
EbbModule *
ebb_initialize (EbbModule *model,
                const char *json,
                GError **error)
{
  EbbInitializeConfig config;
  Initialised *made;
  gboolean made_group = FALSE;

  if (!EBB_MAY_BEGIN (error, model, json))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (model), NULL);

  if (g_object_get_qdata (G_OBJECT (model), initialised_quark ()) != NULL)
    return ebb_fail_null (error, EBB_ERROR_STATE, "%s: it was initialised by ebb_initialize () already",
                          ebb_module_get_type_name (model));
  if (!ebb_initialize_config_read (&config, json, error))
    return NULL;
  if (config.is_parallel && !ebb_process_group_is_initialised ())
    {
      g_autoptr (EbbProcessGroup) group = ebb_init_process_group ("auto", error);

      if (group == NULL)
        return NULL;
      made_group = TRUE;
    }
  made = g_new0 (Initialised, 1);
  if (initialize (model, &config, made, error))
    {
      g_object_set_qdata_full (G_OBJECT (model), initialised_quark (), made, initialised_free);
      return g_object_ref (model);
    }
  initialised_free (made);
  if (made_group)
    ebb_destroy_process_group ();
  return NULL;
}

/**
 * ebb_initialize_get_mesh:
 * @model: a module
 *
 * Returns: (transfer none) (nullable): the mesh of "data" and "tensor" into which ebb_initialize() has divided the
 *   ranks; %NULL if @model was not initialised by it, with `model_parallelism` enabled
 */
EbbMesh *
ebb_initialize_get_mesh (EbbModule *model)
{
  Initialised *made;

  g_return_val_if_fail (EBB_IS_MODULE (model), NULL);

  made = g_object_get_qdata (G_OBJECT (model), initialised_quark ());
  return made != NULL ? made->mesh : NULL;
}

/**
 * ebb_initialize_get_options:
 * @model: a module
 *
 * Returns: (transfer none) (nullable): the options with which the blocks were checkpointed, to look at their store or
 * to checkpoint further modules in the same way; %NULL if @model was not initialised by ebb_initialize(), with
 *   `activation_checkpointing` enabled
 */
EbbCheckpointOptions *
ebb_initialize_get_options (EbbModule *model)
{
  Initialised *made;

  g_return_val_if_fail (EBB_IS_MODULE (model), NULL);

  made = g_object_get_qdata (G_OBJECT (model), initialised_quark ());
  return made != NULL ? made->options : NULL;
}
