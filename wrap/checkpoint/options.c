/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The options of a checkpoint: properties, and the functions that are called for it. */
#include "wrap/checkpoint/options-private.h"

#include "offload/host/store.h"
#include "tensor/util/property-private.h"

G_DEFINE_FINAL_TYPE (EbbCheckpointOptions, ebb_checkpoint_options, G_TYPE_OBJECT)

G_DEFINE_ENUM_TYPE (EbbDeterminismCheck,
                    ebb_determinism_check,
                    G_DEFINE_ENUM_VALUE (EBB_DETERMINISM_CHECK_NONE, "none"),
                    G_DEFINE_ENUM_VALUE (EBB_DETERMINISM_CHECK_DEFAULT, "default"),
                    G_DEFINE_ENUM_VALUE (EBB_DETERMINISM_CHECK_VALUES, "values"))

static void listener_unref (EbbRecomputeListener *listener);

/**
 * ebb_checkpoint_options_new:
 *
 * Returns: (transfer full): the defaults: everything inside is recomputed, random numbers are drawn again, early stop,
 *   default checks, inputs held where they are
 */
EbbCheckpointOptions *
ebb_checkpoint_options_new (void)
{
  return g_object_new (EBB_TYPE_CHECKPOINT_OPTIONS, NULL);
}

/**
 * ebb_checkpoint_options_new_selective:
 *
 * Options with ebb_checkpoint_options_set_policy_selective().
 *
 * Returns: (transfer full): the options
 */
EbbCheckpointOptions *
ebb_checkpoint_options_new_selective (void)
{
  EbbCheckpointOptions *self = ebb_checkpoint_options_new ();

  ebb_checkpoint_options_set_policy_selective (self);
  return self;
}

/**
 * ebb_checkpoint_options_get_store:
 * @self: options
 *
 * Returns: (transfer none) (nullable): where inputs are held
 */
EbbSavedTensorHooks *
ebb_checkpoint_options_get_store (EbbCheckpointOptions *self)
{
  g_return_val_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self), NULL);

  return self->store;
}

/**
 * ebb_checkpoint_options_set_store:
 * @self: options
 * @store: (nullable): where inputs are held; %NULL: where they are
 *
 * The store holds the inputs of wrapped modules, and results that a policy saves.
 */
void
ebb_checkpoint_options_set_store (EbbCheckpointOptions *self,
                                  EbbSavedTensorHooks *store)
{
  g_return_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self));

  g_set_object (&self->store, store);
}

/**
 * ebb_checkpoint_options_set_recompute_func:
 * @self: options
 * @func: (nullable) (scope notified) (closure user_data) (destroy destroy): called before and after each recompute;
 *   %NULL for none
 * @user_data: user data
 * @destroy: frees @user_data
 *
 * Sets the function that is called at each recompute.
 */
void
ebb_checkpoint_options_set_recompute_func (EbbCheckpointOptions *self,
                                           EbbRecomputeFunc func,
                                           gpointer user_data,
                                           GDestroyNotify destroy)
{
  EbbRecomputeListener *old;

  g_return_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self));

  old = g_steal_pointer (&self->listener);
  if (func != NULL)
    {
      self->listener = g_atomic_rc_box_new (EbbRecomputeListener);
      *self->listener = (EbbRecomputeListener){ func, user_data, destroy };
    }
  else if (destroy != NULL)
    destroy (user_data);
  g_clear_pointer (&old, listener_unref);
}

/* -- for wrap/ ----------------------------------------------------------------------------------------------------- */

EbbSavedTensorHooks *
ebb_checkpoint_options_get_effective_store (EbbCheckpointOptions *self)
{
  return self->store == NULL && self->offload_to_cpu ? ebb_host_store_get_default () : self->store;
}

gboolean
ebb_checkpoint_options_announce (EbbCheckpointOptions *self,
                                 EbbModule *module,
                                 EbbRecomputePhase phase,
                                 GError **error)
{
  GError *local = NULL;
  EbbRecomputeListener *listener = self->listener;
  gboolean ok;

  if (listener == NULL)
    return TRUE;
  g_atomic_rc_box_acquire (listener);
  ok = listener->func (module, phase, listener->data, &local);
  listener_unref (listener);
  if (ok && local == NULL)
    return TRUE;
  if (local == NULL)
    g_set_error (&local, EBB_ERROR, EBB_ERROR_CALLBACK, "a recompute callback failed without saying why");
  g_propagate_error (error, local);
  return FALSE;
}

/* -- object -------------------------------------------------------------------------------------------------------- */

static void
listener_clear (gpointer data)
{
  EbbRecomputeListener *listener = data;

  if (listener->destroy != NULL)
    listener->destroy (listener->data);
}

static void
listener_unref (EbbRecomputeListener *listener)
{
  g_atomic_rc_box_release_full (listener, listener_clear);
}

static void
ebb_checkpoint_options_finalize (GObject *object)
{
  EbbCheckpointOptions *self = EBB_CHECKPOINT_OPTIONS (object);

  g_clear_pointer (&self->policy, ebb_policy_unref);
  g_clear_pointer (&self->listener, listener_unref);
  g_clear_object (&self->store);
  G_OBJECT_CLASS (ebb_checkpoint_options_parent_class)->finalize (object);
}

static void
ebb_checkpoint_options_class_init (EbbCheckpointOptionsClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_checkpoint_options_finalize;

  /**
   * EbbCheckpointOptions:preserve-rng-state:
   *
   * Whether the recompute draws the random numbers of the forward again. Without it, a module that uses dropout gets
   * wrong gradients; it costs next to nothing.
   */
  g_object_class_install_property (object_class, offsetof (EbbCheckpointOptions, preserve_rng_state),
                                   g_param_spec_boolean ("preserve-rng-state", NULL, NULL, TRUE, flags));
  /**
   * EbbCheckpointOptions:early-stop:
   *
   * Whether the recompute ends as soon as it has all that backward needs. Ops after that point give tensors without
   * data.
   */
  g_object_class_install_property (object_class, offsetof (EbbCheckpointOptions, early_stop),
                                   g_param_spec_boolean ("early-stop", NULL, NULL, TRUE, flags));
  /**
   * EbbCheckpointOptions:determinism-check:
   *
   * How a recompute is compared with the forward that it repeats. %EBB_DETERMINISM_CHECK_VALUES reads every saved
   * tensor once more in each direction.
   */
  g_object_class_install_property (object_class, offsetof (EbbCheckpointOptions, determinism_check),
                                   g_param_spec_enum ("determinism-check", NULL, NULL, EBB_TYPE_DETERMINISM_CHECK,
                                                      EBB_DETERMINISM_CHECK_DEFAULT, flags));
  /**
   * EbbCheckpointOptions:store:
   *
   * The store that holds the inputs of wrapped modules and the tensors that a policy saves; %NULL: they stay where they
   * are.
   */
  g_object_class_install_property (
      object_class, offsetof (EbbCheckpointOptions, store),
      g_param_spec_object ("store", NULL, NULL, EBB_TYPE_SAVED_TENSOR_HOOKS, flags));
  /**
   * EbbCheckpointOptions:offload-to-cpu:
   *
   * Whether inputs that lie on another device are held in host memory, by the default #EbbHostStore, where no store is
   * set. Checkpointing frees the activations that are made inside a module, and this moves those that come in: the
   * savings add up. Inputs on the CPU stay as they are.
   */
  g_object_class_install_property (object_class, offsetof (EbbCheckpointOptions, offload_to_cpu),
                                   g_param_spec_boolean ("offload-to-cpu", NULL, NULL, FALSE, flags));
  /**
   * EbbCheckpointOptions:retain-recomputed:
   *
   * Whether recomputed tensors stay until their nodes are done. If a graph is retained and several backward passes go
   * through it, each recomputes again; with this option the others use the result of the first. It makes no difference
   * to a graph with one backward pass.
   */
  g_object_class_install_property (object_class, offsetof (EbbCheckpointOptions, retain_recomputed),
                                   g_param_spec_boolean ("retain-recomputed", NULL, NULL, FALSE, flags));
  /**
   * EbbCheckpointOptions:synchronize:
   *
   * Whether devices are synchronised where each forward and its backward begin and end: at these four points of each
   * checkpoint the host waits until the devices of its arguments, parameters and results have done all their work. It
   * shows where a device fails or where time goes, and nothing overlaps with computing across these points. A recompute
   * is a part of its backward; forwards inside it are not synchronised. On the CPU it makes no difference, since all
   * work is done when a call returns.
   */
  g_object_class_install_property (object_class, offsetof (EbbCheckpointOptions, synchronize),
                                   g_param_spec_boolean ("synchronize", NULL, NULL, FALSE, flags));
  /**
   * EbbCheckpointOptions:profile:
   *
   * Whether each checkpoint logs how long its forward took, and how long its backward: from the first value that the
   * backward pass asks of it, its recompute included, until the pass needs nothing more of it, or ends. Each is one
   * message of the level %G_LOG_LEVEL_MESSAGE in the log domain "Ebb". The messages are structured: EBB_CHECKPOINT is
   * the module's path and type, EBB_PASS is "forward" or "backward", EBB_SECONDS is the time. The sums are in
   * @forward_seconds and @backward_seconds of #EbbCheckpointStats.
   *
   * Devices are synchronised as by #EbbCheckpointOptions:synchronize, since times without that would be those of
   * enqueueing work.
   */
  g_object_class_install_property (object_class, offsetof (EbbCheckpointOptions, profile),
                                   g_param_spec_boolean ("profile", NULL, NULL, FALSE, flags));
}

static void
ebb_checkpoint_options_init (EbbCheckpointOptions *self)
{
}
