/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/checkpointing.h"

#include "offload/contiguous-store.h"
#include "offload/host-store.h"
#include "wrap/checkpoint-options-private.h"
#include "wrap/checkpointing-config-private.h"

#include <pthread.h>

/* DeepSpeed's interface: one configuration for the process, which its own checkpoint function uses and which modules
 * can be wrapped with. It is nothing but options that are made from keys. */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* under the lock */
static EbbCheckpointOptions *configured; /* NULL: never asked for */
static EbbCheckpointingConfig current;
static gboolean is_configured;

/* -- configuring --------------------------------------------------------------------------------------------------- */

static gboolean
get_world_size (GObject *mpu,
                guint *world_size,
                GError **error)
{
  GParamSpec *spec;
  g_auto (GValue) value = G_VALUE_INIT;

  *world_size = 0;
  if (mpu == NULL)
    return TRUE;
  spec = g_object_class_find_property (G_OBJECT_GET_CLASS (mpu), "world-size");
  g_value_init (&value, G_TYPE_INT64);
  if (spec == NULL || !(spec->flags & G_PARAM_READABLE) || spec->value_type == G_TYPE_STRING
      || !g_value_type_transformable (spec->value_type, G_TYPE_INT64))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "mpu is a %s, which has no number \"world-size\": it must be none, or an object that has one",
                   G_OBJECT_TYPE_NAME (mpu));
      return FALSE;
    }
  g_object_get_property (mpu, "world-size", &value);
  if (g_value_get_int64 (&value) < 1 || g_value_get_int64 (&value) > G_MAXINT32)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "mpu has the world-size %" G_GINT64_FORMAT ": it must be from 1 to %d", g_value_get_int64 (&value),
                   G_MAXINT32);
      return FALSE;
    }
  *world_size = (guint) g_value_get_int64 (&value);
  return TRUE;
}

static EbbSavedTensorHooks *
make_store (const EbbCheckpointingConfig *config,
            GError **error)
{
  EbbSavedTensorHooks *host = config->values[EBB_CHECKPOINTING_CPU] ? ebb_host_store_get_default () : NULL;

  if (!config->values[EBB_CHECKPOINTING_CONTIGUOUS])
    return g_object_ref (host);
  return ebb_contiguous_store_new (config->values[EBB_CHECKPOINTING_NUMBER], (EbbActivationStore *) host, error);
}

static EbbCheckpointOptions *
make_options (const EbbCheckpointingConfig *config,
              GError **error)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

  if (config->values[EBB_CHECKPOINTING_CPU] || config->values[EBB_CHECKPOINTING_CONTIGUOUS])
    {
      g_autoptr (EbbSavedTensorHooks) store = make_store (config, error);

      if (store == NULL)
        return NULL;
      ebb_checkpoint_options_set_store (options, store);
    }
  ebb_checkpoint_options_set_synchronize (options, config->values[EBB_CHECKPOINTING_SYNCHRONIZE] != 0);
  ebb_checkpoint_options_set_profile (options, config->values[EBB_CHECKPOINTING_PROFILE] != 0);
  return g_steal_pointer (&options);
}

/**
 * ebb_checkpointing_configure:
 * @mpu: (nullable): who knows the ranks that a model is divided among: an object with a number as its property
 *   `world-size`; %NULL for one process alone
 * @json: (nullable): a configuration of DeepSpeed: text, which begins with "{", or else the path of a file; %NULL for
 *   none
 * @overrides: (nullable): a dictionary of arguments: `partition_activations`, `contiguous_checkpointing`,
 *   `num_checkpoints`, `checkpoint_in_cpu`, `synchronize`, `profile`; what is none in it is as if it were not there;
 *   %NULL for none
 * @error: return location for an error
 *
 * Sets, for the process, what ebb_checkpointing_checkpoint() does and ebb_checkpointing_get_options() gives. Begins
 * with the defaults, then does what the object "activation_checkpointing" of @json says (other parts of a configuration
 * are not looked at), then what @overrides say:
 *
 * - `partition_activations` (false): demands several model-parallel ranks
 * - `cpu_checkpointing`, argument `checkpoint_in_cpu` (false): what checkpoints keep is held in host memory, by
 *   ebb_host_store_get_default()
 * - `contiguous_memory_optimization`, argument `contiguous_checkpointing` (false): it is held in one buffer for each
 *   kind of tensor, in host memory with `cpu_checkpointing`, else where it was
 * - `number_checkpoints`, argument `num_checkpoints` (null): how many checkpoints one forward has, for these buffers
 * - `synchronize_checkpoint_boundary`, argument `synchronize` (false): ebb_checkpoint_options_set_synchronize()
 * - `profile` (false): ebb_checkpoint_options_set_profile()
 *
 * Configuring again replaces all of it: nothing is left of what was set before. Modules that were wrapped with the
 * options of before keep those, and what they have stored comes back from where it is. May be called from any thread.
 *
 * Returns: %TRUE if it was set; %FALSE with an error that names the key, its value and what it may be, and then all is
 *   as before: %EBB_ERROR_INVALID_ARGUMENT for a key that there is not, a value of the wrong type and what can't be had
 *   together, %EBB_ERROR_FORMAT for what is not JSON or has a key twice, %EBB_ERROR_IO for a file that can't be read
 */
gboolean
ebb_checkpointing_configure (GObject *mpu,
                             const char *json,
                             EbbArgs *overrides,
                             GError **error)
{
  EbbCheckpointingConfig config = { 0 };
  EbbCheckpointOptions *options, *old;
  guint world_size;

  if (error != NULL && *error != NULL)
    return FALSE;
  g_return_val_if_fail (mpu == NULL || G_IS_OBJECT (mpu), FALSE);

  if (!get_world_size (mpu, &world_size, error)
      || (json != NULL && !ebb_checkpointing_config_read_json (&config, json, error))
      || (overrides != NULL && !ebb_checkpointing_config_read_args (&config, overrides, error))
      || !ebb_checkpointing_config_check (&config, world_size, error))
    return FALSE;
  options = make_options (&config, error);
  if (options == NULL)
    return FALSE;
  pthread_mutex_lock (&lock);
  old = configured;
  configured = options;
  current = config;
  is_configured = TRUE;
  pthread_mutex_unlock (&lock);
  g_clear_object (&old);
  return TRUE;
}

/**
 * ebb_checkpointing_is_configured:
 *
 * Returns: whether ebb_checkpointing_configure() has succeeded once; what it would set without arguments is in effect
 *   until then
 */
gboolean
ebb_checkpointing_is_configured (void)
{
  gboolean result;

  pthread_mutex_lock (&lock);
  result = is_configured;
  pthread_mutex_unlock (&lock);
  return result;
}

/**
 * ebb_checkpointing_get_config:
 *
 * Returns: (transfer full): a dictionary of what is in effect, each key of "activation_checkpointing" with its value
 */
EbbArgs *
ebb_checkpointing_get_config (void)
{
  EbbCheckpointingConfig config;

  pthread_mutex_lock (&lock);
  config = current;
  pthread_mutex_unlock (&lock);
  return ebb_checkpointing_config_to_args (&config);
}

/* -- using it ------------------------------------------------------------------------------------------------------ */

/**
 * ebb_checkpointing_get_options:
 *
 * What was configured, as options to wrap modules with: by ebb_checkpoint_wrapper() and all others that take options.
 * It is the same object until ebb_checkpointing_configure() is called again.
 *
 * Returns: (transfer full): the options; the defaults if nothing was configured
 */
EbbCheckpointOptions *
ebb_checkpointing_get_options (void)
{
  EbbCheckpointOptions *options;

  pthread_mutex_lock (&lock);
  if (configured == NULL)
    configured = ebb_checkpoint_options_new ();
  options = g_object_ref (configured);
  pthread_mutex_unlock (&lock);
  return options;
}

/**
 * ebb_checkpointing_checkpoint:
 * @func: (scope notified) (closure user_data) (destroy destroy): what to do; must do the same each time it is called
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
 * Begins the buffers of `contiguous_memory_optimization` anew: to be called between forwards with gradients that no
 * backward pass follows, whose graphs still live and take parts of the buffers. A backward pass through those graphs
 * works all the same; the memory of their buffers goes with them. Without such buffers nothing happens.
 */
void
ebb_checkpointing_reset (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpointing_get_options ();
  EbbSavedTensorHooks *store = ebb_checkpoint_options_get_store (options);

  if (store != NULL && EBB_IS_CONTIGUOUS_STORE (store))
    ebb_contiguous_store_reset (EBB_CONTIGUOUS_STORE (store));
}

/**
 * ebb_checkpointing_get_profile:
 *
 * What `profile` has measured since ebb_checkpointing_configure(), in all checkpoints with these options, functions and
 * modules alike.
 *
 * Returns: (transfer full): a dictionary: `forwards` and `backwards`, how many; `forward_seconds` and
 *   `backward_seconds`, how long they took together
 */
EbbArgs *
ebb_checkpointing_get_profile (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpointing_get_options ();
  EbbCheckpointTimes *times = ebb_checkpoint_options_get_times (options);
  EbbArgs *profile = ebb_args_new (EBB_ARGS_DICT);

  ebb_args_add_int (profile, "forwards", (gint64) __atomic_load_n (&times->n_forwards, __ATOMIC_RELAXED));
  ebb_args_add_int (profile, "backwards", (gint64) __atomic_load_n (&times->n_backwards, __ATOMIC_RELAXED));
  ebb_args_add_double (profile, "forward_seconds",
                       (double) __atomic_load_n (&times->forward_us, __ATOMIC_RELAXED) * 1e-6);
  ebb_args_add_double (profile, "backward_seconds",
                       (double) __atomic_load_n (&times->backward_us, __ATOMIC_RELAXED) * 1e-6);
  return profile;
}
