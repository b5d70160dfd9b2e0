/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/compat/deepspeed.h"

#include "dist/group/process-group-private.h"
#include "offload/contiguous/store.h"
#include "wrap/checkpoint/options-private.h"
#include "wrap/compat/deepspeed-config-private.h"
#include "dist/mpu-private.h"
#include "tensor/util/lock-private.h"
#include "wrap/compat/store-chain-private.h"

/* DeepSpeed's interface: one configuration for the process, made of keys, that DeepSpeed's checkpoint function uses and
 * that modules can be wrapped with as options. A rank that is a thread stands for a process: it has a configuration of
 * its own, with the group in which it is that rank. */

typedef struct
{
  EbbCheckpointOptions *options; /* NULL: nothing has used them yet */
  EbbCheckpointingConfig config;
  gboolean is_configured;
} Configuration;

static void
configuration_free (gpointer data)
{
  Configuration *self = data;

  g_clear_object (&self->options);
  g_free (self);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Configuration of_process; /* under the lock */
/* That of a thread of ebb_run_ranks (), once it has set one; freed when the thread ends. */
static GPrivate of_rank = G_PRIVATE_INIT (configuration_free);

/* The one in effect on this thread. No other thread sees that of a rank; the lock is for the process' own. */
static Configuration *
get_configuration (void)
{
  Configuration *own = g_private_get (&of_rank);

  return own != NULL ? own : &of_process;
}

/* -- configuring --------------------------------------------------------------------------------------------------- */

static EbbCheckpointOptions *
make_options (const EbbCheckpointingConfig *config,
              const EbbMpu *mpu,
              GError **error)
{
  EbbStoreChain chain = {
    .group = config->partition ? mpu->group : NULL,
    .n_checkpoints = config->contiguous ? config->n_checkpoints : 0,
    .host = config->cpu != 0,
  };
  EbbCheckpointOptions *options = ebb_store_chain_make_options (&chain, error);

  if (options == NULL)
    return NULL;
  options->synchronize = config->synchronize != 0;
  options->profile = config->profile != 0;
  return options;
}

static void
set_configuration (const EbbCheckpointingConfig *config,
                   EbbCheckpointOptions *options)
{
  g_autoptr (EbbCheckpointOptions) old = NULL;
  Configuration *place;

  if (ebb_process_group_get_thread_default () != NULL && g_private_get (&of_rank) == NULL)
    g_private_set (&of_rank, g_new0 (Configuration, 1));
  place = get_configuration ();
  EBB_AUTO_LOCK (&lock);
  old = place->options;
  *place = (Configuration){ .options = options, .config = *config, .is_configured = TRUE };
}

/**
 * ebb_checkpointing_configure:
 * @mpu: (nullable): an object that knows the ranks that a model is divided among: an #EbbMesh, by its
 *   ebb_mesh_get_model_dim(); the #EbbProcessGroup of these ranks; or any object with properties that have the names of
 *   DeepSpeed's and Megatron-LM's functions: `model-parallel-group` (an #EbbProcessGroup), `model-parallel-rank` and
 *   `model-parallel-world-size` (numbers), the same with `tensor-model-parallel-`, which come first, and
 *   `data-parallel-group` and so on; `world-size` stands for `model-parallel-world-size`. Without a group ranks
 *   cannot communicate, unless all ranks share the model; %NULL for a single process
 * @json: (nullable): a configuration of DeepSpeed: text, which begins with "{", or else the path of a file; %NULL for
 *   none
 * @overrides: (nullable): a dictionary of arguments: `partition_activations`, `contiguous_checkpointing`,
 *   `num_checkpoints`, `checkpoint_in_cpu`, `synchronize`, `profile`; arguments set to null are ignored; %NULL for
 *   none
 * @error: return location for an error
 *
 * Sets what ebb_checkpointing_checkpoint() does and ebb_checkpointing_get_options() returns: for the process, or, on a
 * thread of ebb_run_ranks(), for its rank until the thread ends. @overrides come before the object
 * "activation_checkpointing" of @json, which comes before the defaults; other parts of a configuration are ignored:
 *
 * - `partition_activations` (false): each rank of @mpu stores a part of the tensors that checkpoints save, by
 *   ebb_partitioned_store_new(); the following two then store the parts; needs several ranks
 * - `cpu_checkpointing`, argument `checkpoint_in_cpu` (false): the tensors that checkpoints save are stored in host
 *   memory, by ebb_host_store_get_default()
 * - `contiguous_memory_optimization`, argument `contiguous_checkpointing` (false): they are stored in one buffer for
 *   each kind of tensor, in host memory with `cpu_checkpointing`, else on their device
 * - `number_checkpoints`, argument `num_checkpoints` (null): how many checkpoints one forward has, for these buffers
 * - `synchronize_checkpoint_boundary`, argument `synchronize` (false): #EbbCheckpointOptions:synchronize
 * - `profile` (false): #EbbCheckpointOptions:profile
 *
 * Configuring again replaces all of it. Modules that were wrapped with the earlier options keep those and their stores.
 * May be called from any thread.
 *
 * Returns: %TRUE if it was set; %FALSE with an error that names the key, its value and what it may be, and then all is
 *   as before: %EBB_ERROR_INVALID_ARGUMENT for a key that there is not, a value of the wrong type and what can't be had
 *   together, %EBB_ERROR_FORMAT for text that is not JSON or has a key twice, %EBB_ERROR_IO for a file that can't be
 * read
 */
gboolean
ebb_checkpointing_configure (GObject *mpu,
                             const char *json,
                             EbbArgs *overrides,
                             GError **error)
{
  EbbCheckpointingConfig config = { 0 };
  EbbCheckpointOptions *options;
  g_auto (EbbMpu) unit = { 0 };

  if (error != NULL && *error != NULL)
    return FALSE;
  g_return_val_if_fail (mpu == NULL || G_IS_OBJECT (mpu), FALSE);

  if (!ebb_mpu_init (&unit, mpu, error)
      || (json != NULL && !ebb_checkpointing_config_read_json (&config, json, error))
      || (overrides != NULL && !ebb_checkpointing_config_read_args (&config, overrides, error))
      || !ebb_checkpointing_config_check (&config, &unit, error))
    return FALSE;
  options = make_options (&config, &unit, error);
  if (options == NULL)
    return FALSE;
  set_configuration (&config, options);
  return TRUE;
}

/**
 * ebb_checkpointing_is_configured:
 *
 * Returns: whether ebb_checkpointing_configure() has succeeded once; until then the defaults are in effect
 */
gboolean
ebb_checkpointing_is_configured (void)
{
  EBB_AUTO_LOCK (&lock);
  return get_configuration ()->is_configured;
}

/**
 * ebb_checkpointing_get_config:
 *
 * Returns: (transfer full): the configuration in effect: a dictionary of the keys of "activation_checkpointing"
 */
EbbArgs *
ebb_checkpointing_get_config (void)
{
  EBB_AUTO_LOCK (&lock);
  return ebb_checkpointing_config_to_args (&get_configuration ()->config);
}

/* -- using it ------------------------------------------------------------------------------------------------------ */

/**
 * ebb_checkpointing_get_options:
 *
 * Returns the configuration as options for ebb_checkpoint_wrapper() and every other function that takes them. It is the
 * same object until ebb_checkpointing_configure() is called again.
 *
 * Returns: (transfer full): the options; the defaults if nothing was configured
 */
EbbCheckpointOptions *
ebb_checkpointing_get_options (void)
{
  Configuration *place = get_configuration ();

  EBB_AUTO_LOCK (&lock);
  if (place->options == NULL)
    place->options = ebb_checkpoint_options_new ();
  return g_object_ref (place->options);
}

/**
 * ebb_checkpointing_checkpoint:
 * @func: (scope notified) (closure user_data) (destroy destroy): the function; it must do the same at each call
 * @user_data: user data
 * @destroy: frees @user_data when no backward needs @func any more
 * @args: the arguments
 * @error: return location for an error
 *
 * Calls a function as ebb_checkpoint() does, with the configured options. Several threads may do so at a time.
 *
 * Returns: (transfer full) (nullable): the result of @func
 */
EbbArgs *
ebb_checkpointing_checkpoint (EbbCheckpointFunc func,
                              gpointer user_data,
                              GDestroyNotify destroy,
                              EbbArgs *args,
                              GError **error)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpointing_get_options ();

  return ebb_checkpoint (func, user_data, destroy, args, options, error);
}

/**
 * ebb_checkpointing_reset:
 *
 * Begins new buffers for `contiguous_memory_optimization`. Call it between forwards with gradients that no backward
 * pass follows, while their graphs still live and occupy parts of the buffers. A backward pass through those graphs
 * still works; their buffers are freed with them. Without such buffers nothing happens.
 */
void
ebb_checkpointing_reset (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpointing_get_options ();

  for (EbbSavedTensorHooks *store = ebb_checkpoint_options_get_store (options); store != NULL;
       store = ebb_store_chain_next (store))
    if (EBB_IS_CONTIGUOUS_STORE (store))
      ebb_contiguous_store_reset (EBB_CONTIGUOUS_STORE (store));
}

/**
 * ebb_checkpointing_get_profile:
 *
 * Returns the times that `profile` has measured since ebb_checkpointing_configure(), in all checkpoints with these
 * options, of functions and of modules.
 *
 * Returns: (transfer full): a dictionary: `forwards` and `backwards`, how many; `forward_seconds` and
 *   `backward_seconds`, their total times
 */
EbbArgs *
ebb_checkpointing_get_profile (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpointing_get_options ();
  EbbCheckpointTimes *times = &options->times;
  EbbArgs *profile = ebb_args_new (EBB_ARGS_DICT);

  ebb_args_add_int (profile, "forwards", (gint64) __atomic_load_n (&times->n_forwards, __ATOMIC_RELAXED));
  ebb_args_add_int (profile, "backwards", (gint64) __atomic_load_n (&times->n_backwards, __ATOMIC_RELAXED));
  ebb_args_add_double (profile, "forward_seconds",
                       (double) __atomic_load_n (&times->forward_us, __ATOMIC_RELAXED) * 1e-6);
  ebb_args_add_double (profile, "backward_seconds",
                       (double) __atomic_load_n (&times->backward_us, __ATOMIC_RELAXED) * 1e-6);
  return profile;
}
