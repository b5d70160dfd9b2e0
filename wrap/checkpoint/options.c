/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/checkpoint/options-private.h"

#include "offload/host/store.h"
#include "wrap/checkpoint/policy-private.h"

/* Who is told of recomputes. Held while it is told, since it may replace itself. */
typedef struct
{
  EbbRecomputeFunc func;
  gpointer data;
  GDestroyNotify destroy;
} Listener;

struct _EbbCheckpointOptions
{
  GObject parent_instance;

  gboolean preserve_rng_state;
  gboolean early_stop;
  gboolean retain_recomputed;
  EbbDeterminismCheck determinism_check;
  gboolean offload_to_cpu;
  gboolean synchronize;
  gboolean profile;
  EbbCheckpointTimes times;
  EbbSavedTensorHooks *store;
  Listener *listener; /* NULL: none */
  EbbPolicy *policy;  /* NULL: everything is recomputed */
};

enum
{
  PROP_PRESERVE_RNG_STATE = 1,
  PROP_EARLY_STOP,
  PROP_DETERMINISM_CHECK,
  PROP_STORE,
  PROP_OFFLOAD_TO_CPU,
  PROP_RETAIN_RECOMPUTED,
  PROP_SYNCHRONIZE,
  PROP_PROFILE,
  N_PROPS
};

G_DEFINE_FINAL_TYPE (EbbCheckpointOptions, ebb_checkpoint_options, G_TYPE_OBJECT)

static GType
determinism_check_get_type (void)
{
  static gsize type;
  static const GEnumValue values[] = {
    { EBB_DETERMINISM_CHECK_NONE, "EBB_DETERMINISM_CHECK_NONE", "none" },
    { EBB_DETERMINISM_CHECK_DEFAULT, "EBB_DETERMINISM_CHECK_DEFAULT", "default" },
    { EBB_DETERMINISM_CHECK_VALUES, "EBB_DETERMINISM_CHECK_VALUES", "values" },
    { 0, NULL, NULL },
  };

  if (g_once_init_enter (&type))
    g_once_init_leave (&type, g_enum_register_static ("EbbDeterminismCheck", values));
  return (GType) type;
}

/* -- for wrap/ ----------------------------------------------------------------------------------------------------- */

EbbPolicy *
ebb_checkpoint_options_get_policy (EbbCheckpointOptions *self)
{
  return self->policy;
}

void
ebb_checkpoint_options_take_policy (EbbCheckpointOptions *self,
                                    EbbPolicy *policy)
{
  EbbPolicy *old = self->policy;

  self->policy = policy;
  g_clear_pointer (&old, ebb_policy_unref);
}

EbbSavedTensorHooks *
ebb_checkpoint_options_get_effective_store (EbbCheckpointOptions *self)
{
  return self->store == NULL && self->offload_to_cpu ? ebb_host_store_get_default () : self->store;
}

EbbCheckpointTimes *
ebb_checkpoint_options_get_times (EbbCheckpointOptions *self)
{
  return &self->times;
}

static void
listener_clear (gpointer data)
{
  Listener *listener = data;

  if (listener->destroy != NULL)
    listener->destroy (listener->data);
}

static void
listener_unref (Listener *listener)
{
  g_atomic_rc_box_release_full (listener, listener_clear);
}

gboolean
ebb_checkpoint_options_announce (EbbCheckpointOptions *self,
                                 EbbModule *module,
                                 EbbRecomputePhase phase,
                                 GError **error)
{
  GError *local = NULL;
  Listener *listener = self->listener;
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
ebb_checkpoint_options_get_property (GObject *object,
                                     guint id,
                                     GValue *value,
                                     GParamSpec *pspec)
{
  EbbCheckpointOptions *self = EBB_CHECKPOINT_OPTIONS (object);

  switch (id)
    {
    case PROP_PRESERVE_RNG_STATE:
      g_value_set_boolean (value, self->preserve_rng_state);
      break;
    case PROP_EARLY_STOP:
      g_value_set_boolean (value, self->early_stop);
      break;
    case PROP_DETERMINISM_CHECK:
      g_value_set_enum (value, (int) self->determinism_check);
      break;
    case PROP_STORE:
      g_value_set_object (value, self->store);
      break;
    case PROP_OFFLOAD_TO_CPU:
      g_value_set_boolean (value, self->offload_to_cpu);
      break;
    case PROP_RETAIN_RECOMPUTED:
      g_value_set_boolean (value, self->retain_recomputed);
      break;
    case PROP_SYNCHRONIZE:
      g_value_set_boolean (value, self->synchronize);
      break;
    case PROP_PROFILE:
      g_value_set_boolean (value, self->profile);
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_checkpoint_options_set_property (GObject *object,
                                     guint id,
                                     const GValue *value,
                                     GParamSpec *pspec)
{
  EbbCheckpointOptions *self = EBB_CHECKPOINT_OPTIONS (object);

  switch (id)
    {
    case PROP_PRESERVE_RNG_STATE:
      self->preserve_rng_state = g_value_get_boolean (value);
      break;
    case PROP_EARLY_STOP:
      self->early_stop = g_value_get_boolean (value);
      break;
    case PROP_DETERMINISM_CHECK:
      self->determinism_check = (EbbDeterminismCheck) g_value_get_enum (value);
      break;
    case PROP_STORE:
      g_set_object (&self->store, g_value_get_object (value));
      break;
    case PROP_OFFLOAD_TO_CPU:
      self->offload_to_cpu = g_value_get_boolean (value);
      break;
    case PROP_RETAIN_RECOMPUTED:
      self->retain_recomputed = g_value_get_boolean (value);
      break;
    case PROP_SYNCHRONIZE:
      self->synchronize = g_value_get_boolean (value);
      break;
    case PROP_PROFILE:
      self->profile = g_value_get_boolean (value);
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
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
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_checkpoint_options_get_property;
  object_class->set_property = ebb_checkpoint_options_set_property;
  object_class->finalize = ebb_checkpoint_options_finalize;

  /**
   * EbbCheckpointOptions:preserve-rng-state:
   *
   * Whether the recompute draws the random numbers of the forward again.
   */
  g_object_class_install_property (object_class, PROP_PRESERVE_RNG_STATE,
                                   g_param_spec_boolean ("preserve-rng-state", NULL, NULL, TRUE, flags));
  /**
   * EbbCheckpointOptions:early-stop:
   *
   * Whether the recompute ends as soon as it has all that backward needs.
   */
  g_object_class_install_property (object_class, PROP_EARLY_STOP,
                                   g_param_spec_boolean ("early-stop", NULL, NULL, TRUE, flags));
  /**
   * EbbCheckpointOptions:determinism-check:
   *
   * How a recompute is compared with the forward that it repeats.
   */
  g_object_class_install_property (object_class, PROP_DETERMINISM_CHECK,
                                   g_param_spec_enum ("determinism-check", NULL, NULL, determinism_check_get_type (),
                                                      EBB_DETERMINISM_CHECK_DEFAULT, flags));
  /**
   * EbbCheckpointOptions:store:
   *
   * Where the inputs of wrapped modules, and what a policy keeps, are held; %NULL: where they are.
   */
  g_object_class_install_property (
      object_class, PROP_STORE, g_param_spec_object ("store", NULL, NULL, EBB_TYPE_SAVED_TENSOR_HOOKS, flags));
  /**
   * EbbCheckpointOptions:offload-to-cpu:
   *
   * Whether inputs that lie on another device are held in host memory, by the default host store, where no store is
   * set.
   */
  g_object_class_install_property (object_class, PROP_OFFLOAD_TO_CPU,
                                   g_param_spec_boolean ("offload-to-cpu", NULL, NULL, FALSE, flags));
  /**
   * EbbCheckpointOptions:retain-recomputed:
   *
   * Whether what was recomputed stays until its nodes are done, for a graph that is gone through several times.
   */
  g_object_class_install_property (object_class, PROP_RETAIN_RECOMPUTED,
                                   g_param_spec_boolean ("retain-recomputed", NULL, NULL, FALSE, flags));
  /**
   * EbbCheckpointOptions:synchronize:
   *
   * Whether devices are synchronised where each forward and its backward begin and end.
   */
  g_object_class_install_property (object_class, PROP_SYNCHRONIZE,
                                   g_param_spec_boolean ("synchronize", NULL, NULL, FALSE, flags));
  /**
   * EbbCheckpointOptions:profile:
   *
   * Whether the times of each forward and its backward are taken and logged.
   */
  g_object_class_install_property (object_class, PROP_PROFILE,
                                   g_param_spec_boolean ("profile", NULL, NULL, FALSE, flags));
}

static void
ebb_checkpoint_options_init (EbbCheckpointOptions *self)
{
  self->preserve_rng_state = TRUE;
  self->early_stop = TRUE;
  self->determinism_check = EBB_DETERMINISM_CHECK_DEFAULT;
}

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
 * ebb_checkpoint_options_get_preserve_rng_state:
 * @self: options
 *
 * Returns: whether the recompute draws the random numbers of the forward again
 */
gboolean
ebb_checkpoint_options_get_preserve_rng_state (EbbCheckpointOptions *self)
{
  g_return_val_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self), FALSE);

  return self->preserve_rng_state;
}

/**
 * ebb_checkpoint_options_set_preserve_rng_state:
 * @self: options
 * @preserve: whether the recompute draws the random numbers of the forward again
 *
 * Without it, a module that uses dropout gets wrong gradients; it costs next to nothing.
 */
void
ebb_checkpoint_options_set_preserve_rng_state (EbbCheckpointOptions *self,
                                               gboolean preserve)
{
  g_return_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self));

  self->preserve_rng_state = preserve;
}

/**
 * ebb_checkpoint_options_get_early_stop:
 * @self: options
 *
 * Returns: whether the recompute ends as soon as it has all that backward needs
 */
gboolean
ebb_checkpoint_options_get_early_stop (EbbCheckpointOptions *self)
{
  g_return_val_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self), FALSE);

  return self->early_stop;
}

/**
 * ebb_checkpoint_options_set_early_stop:
 * @self: options
 * @early_stop: whether the recompute ends as soon as it has all that backward needs
 *
 * Ops after that point give tensors without data.
 */
void
ebb_checkpoint_options_set_early_stop (EbbCheckpointOptions *self,
                                       gboolean early_stop)
{
  g_return_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self));

  self->early_stop = early_stop;
}

/**
 * ebb_checkpoint_options_get_determinism_check:
 * @self: options
 *
 * Returns: how a recompute is compared with the forward that it repeats
 */
EbbDeterminismCheck
ebb_checkpoint_options_get_determinism_check (EbbCheckpointOptions *self)
{
  g_return_val_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self), EBB_DETERMINISM_CHECK_DEFAULT);

  return self->determinism_check;
}

/**
 * ebb_checkpoint_options_set_determinism_check:
 * @self: options
 * @check: how a recompute is compared with the forward that it repeats
 *
 * %EBB_DETERMINISM_CHECK_VALUES reads every saved tensor once more in each direction.
 */
void
ebb_checkpoint_options_set_determinism_check (EbbCheckpointOptions *self,
                                              EbbDeterminismCheck check)
{
  g_return_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self));

  self->determinism_check = check;
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
 * The store holds the inputs of wrapped modules, and what a policy keeps.
 */
void
ebb_checkpoint_options_set_store (EbbCheckpointOptions *self,
                                  EbbSavedTensorHooks *store)
{
  g_return_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self));

  g_set_object (&self->store, store);
}

/**
 * ebb_checkpoint_options_get_offload_to_cpu:
 * @self: options
 *
 * Returns: whether inputs that lie on another device are held in host memory
 */
gboolean
ebb_checkpoint_options_get_offload_to_cpu (EbbCheckpointOptions *self)
{
  g_return_val_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self), FALSE);

  return self->offload_to_cpu;
}

/**
 * ebb_checkpoint_options_set_offload_to_cpu:
 * @self: options
 * @offload: whether inputs that lie on another device are held in host memory
 *
 * Uses the default #EbbHostStore where no store is set. Checkpointing lets go what is made inside a module (its inner
 * activations), this moves what comes in (its outer ones): the savings add up. Inputs on the CPU stay as they are.
 */
void
ebb_checkpoint_options_set_offload_to_cpu (EbbCheckpointOptions *self,
                                           gboolean offload)
{
  g_return_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self));

  self->offload_to_cpu = offload;
}

/**
 * ebb_checkpoint_options_get_retain_recomputed:
 * @self: options
 *
 * Returns: whether what was recomputed stays until its nodes are done
 */
gboolean
ebb_checkpoint_options_get_retain_recomputed (EbbCheckpointOptions *self)
{
  g_return_val_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self), FALSE);

  return self->retain_recomputed;
}

/**
 * ebb_checkpoint_options_set_retain_recomputed:
 * @self: options
 * @retain: whether what was recomputed stays until its nodes are done
 *
 * Where a graph is retained and gone through several times, each backward pass recomputes again; with this, the first
 * one's result is kept for the others. It makes no difference to a graph that is gone through once.
 */
void
ebb_checkpoint_options_set_retain_recomputed (EbbCheckpointOptions *self,
                                              gboolean retain)
{
  g_return_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self));

  self->retain_recomputed = retain;
}

/**
 * ebb_checkpoint_options_get_synchronize:
 * @self: options
 *
 * Returns: whether devices are synchronised where each forward and its backward begin and end
 */
gboolean
ebb_checkpoint_options_get_synchronize (EbbCheckpointOptions *self)
{
  g_return_val_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self), FALSE);

  return self->synchronize;
}

/**
 * ebb_checkpoint_options_set_synchronize:
 * @self: options
 * @synchronize: whether devices are synchronised where each forward and its backward begin and end
 *
 * Has the host wait, at these four points of each checkpoint, until the devices of its arguments, parameters and
 * results have done all their work: to find out where a device fails or where time goes, since nothing runs beside
 * computing across these points any more. A recompute is a part of its backward; forwards inside it are not
 * synchronised. On the CPU nothing runs behind the caller's back, so it makes no difference there.
 */
void
ebb_checkpoint_options_set_synchronize (EbbCheckpointOptions *self,
                                        gboolean synchronize)
{
  g_return_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self));

  self->synchronize = synchronize;
}

/**
 * ebb_checkpoint_options_get_profile:
 * @self: options
 *
 * Returns: whether the times of each forward and its backward are taken and logged
 */
gboolean
ebb_checkpoint_options_get_profile (EbbCheckpointOptions *self)
{
  g_return_val_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self), FALSE);

  return self->profile;
}

/**
 * ebb_checkpoint_options_set_profile:
 * @self: options
 * @profile: whether the times of each forward and its backward are taken and logged
 *
 * Has each checkpoint tell, by one message of the level %G_LOG_LEVEL_MESSAGE in the log domain "Ebb", how long its
 * forward took, and one for its backward: from the first thing that the backward pass asks of it, its recompute
 * included, until it needs nothing more of it, or ends. The messages are structured: EBB_CHECKPOINT is the module's
 * path and type, EBB_PASS is "forward" or "backward", EBB_SECONDS is the time. The sums are in
 * ebb_checkpoint_stats_get_forward_seconds() and ebb_checkpoint_stats_get_backward_seconds().
 *
 * Devices are synchronised as by ebb_checkpoint_options_set_synchronize(), since times without that would be those of
 * enqueueing work.
 */
void
ebb_checkpoint_options_set_profile (EbbCheckpointOptions *self,
                                    gboolean profile)
{
  g_return_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self));

  self->profile = profile;
}

/**
 * ebb_checkpoint_options_set_recompute_func:
 * @self: options
 * @func: (nullable) (scope notified) (closure user_data) (destroy destroy): called before and after each recompute;
 *   %NULL for none
 * @user_data: user data
 * @destroy: frees @user_data
 *
 * Has each recompute announced.
 */
void
ebb_checkpoint_options_set_recompute_func (EbbCheckpointOptions *self,
                                           EbbRecomputeFunc func,
                                           gpointer user_data,
                                           GDestroyNotify destroy)
{
  Listener *old;

  g_return_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self));

  old = g_steal_pointer (&self->listener);
  if (func != NULL)
    {
      self->listener = g_atomic_rc_box_new (Listener);
      *self->listener = (Listener){ func, user_data, destroy };
    }
  else if (destroy != NULL)
    destroy (user_data);
  g_clear_pointer (&old, listener_unref);
}
