/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The options of a checkpoint: properties, the functions that are called for it, and the ready-made policies. */
#include "wrap/checkpoint/options-private.h"

#include "offload/host/store.h"
#include "tensor/autograd/op-names-private.h"
#include "tensor/error-private.h"
#include "tensor/partition-private.h"
#include "tensor/util/property-private.h"

G_DEFINE_FINAL_TYPE (EbbCheckpointOptions, ebb_checkpoint_options, G_TYPE_OBJECT)

G_DEFINE_ENUM_TYPE (EbbDeterminismCheck,
                    ebb_determinism_check,
                    G_DEFINE_ENUM_VALUE (EBB_DETERMINISM_CHECK_NONE, "none"),
                    G_DEFINE_ENUM_VALUE (EBB_DETERMINISM_CHECK_DEFAULT, "default"),
                    G_DEFINE_ENUM_VALUE (EBB_DETERMINISM_CHECK_VALUES, "values"))

/* -- functions that the options call ------------------------------------------------------------------------------- */

static void
func_clear (gpointer data)
{
  EbbOptionsFunc *self = data;

  if (self->destroy != NULL)
    self->destroy (self->data);
}

static void
func_unref (EbbOptionsFunc *self)
{
  g_atomic_rc_box_release_full (self, func_clear);
}

/* Replaces the function at @place; by none, if there is neither a user's nor an answer. */
static void
set_func (EbbOptionsFunc **place,
          const EbbOptionsFunc *func)
{
  EbbOptionsFunc *old = g_steal_pointer (place);

  if (func->func != NULL || func->answer != NULL)
    *place = (EbbOptionsFunc *) g_atomic_rc_box_dup (sizeof *func, func);
  else if (func->destroy != NULL)
    func->destroy (func->data);
  g_clear_pointer (&old, func_unref);
}

/* -- making -------------------------------------------------------------------------------------------------------- */

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
  g_return_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self));

  set_func (&self->listener,
            &(EbbOptionsFunc){ .func = G_CALLBACK (func), .data = user_data, .destroy = destroy });
}

/* -- policies ------------------------------------------------------------------------------------------------------ */

/* Looks at the sizes of the full layer where ranks share it, so that the number of ranks does not change which products
 * are saved. */
static gboolean
is_uneven (const EbbOpCall *call)
{
  const EbbPartition *partition = call->n_inputs > 1 && call->edges[1] != NULL ? call->edges[1]->partition : NULL;

  if (partition != NULL && partition->n_dims == 2)
    return partition->shape[0] != partition->shape[1];
  return call->outputs[0]->n_elements != call->inputs[0]->n_elements;
}

/* A product that widens or narrows is dear to run again: queries, keys and values in one, and both of the feed-forward
 * part. The ops between two of them recompute their results in little time: attention, its projection, sums, norms and
 * GELU, so backward needs none of these saved. If nothing reads the last product's result again, as in a pre-norm
 * block, it is freed although the policy saves it. */
static EbbCheckpointPolicy
save_uneven_products (const EbbOptionsFunc *self,
                      const EbbPolicyQuestion *question,
                      GError **error)
{
  return question->call->op->kind == EBB_OP_PRODUCT && is_uneven (question->call)
             ? EBB_CHECKPOINT_POLICY_MUST_SAVE
             : EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE;
}

static EbbCheckpointPolicy
recompute_attention (const EbbOptionsFunc *self,
                     const EbbPolicyQuestion *question,
                     GError **error)
{
  return question->call->op->kind == EBB_OP_ATTENTION ? EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE
                                                      : EBB_CHECKPOINT_POLICY_MUST_SAVE;
}

static EbbCheckpointPolicy
save_listed (const EbbOptionsFunc *self,
             const EbbPolicyQuestion *question,
             GError **error)
{
  return g_strv_contains (self->data, question->call->op->name) ? EBB_CHECKPOINT_POLICY_MUST_SAVE
                                                                : EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE;
}

static EbbCheckpointPolicy
save_nth_product (const EbbOptionsFunc *self,
                  const EbbPolicyQuestion *question,
                  GError **error)
{
  return question->call->op->kind == EBB_OP_PRODUCT && (question->n_products + 1) % GPOINTER_TO_UINT (self->data) == 0
             ? EBB_CHECKPOINT_POLICY_MUST_SAVE
             : EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE;
}

static EbbCheckpointPolicy
ask_user (const EbbOptionsFunc *self,
          const EbbPolicyQuestion *question,
          GError **error)
{
  return ((EbbCheckpointPolicyFunc) self->func) (question->call->op->name, question->ordinal, question->n_bytes,
                                                 self->data, error);
}

/**
 * ebb_checkpoint_options_set_policy:
 * @self: options
 * @policy: (nullable) (scope notified) (closure user_data) (destroy destroy): decides for each op; %NULL: recompute all
 * @user_data: user data
 * @destroy: frees @user_data
 *
 * Chooses for each op whether its results are saved or recomputed.
 */
void
ebb_checkpoint_options_set_policy (EbbCheckpointOptions *self,
                                   EbbCheckpointPolicyFunc policy,
                                   gpointer user_data,
                                   GDestroyNotify destroy)
{
  g_return_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self));

  set_func (&self->policy, &(EbbOptionsFunc){ .func = G_CALLBACK (policy),
                                              .answer = policy != NULL ? ask_user : NULL,
                                              .data = user_data,
                                              .destroy = destroy });
}

/**
 * ebb_checkpoint_options_set_policy_selective:
 * @self: options
 *
 * Saves the results of matrix products that are wider or narrower than their input, and recomputes the rest.
 * In a transformer block these are the queries, keys and values and the feed-forward part's hidden layer, 7 of the 10
 * times B T C numbers that its backward needs; and in a post-norm block, where a norm needs it, what the feed-forward
 * part gives. What is recomputed is the attention core with its projection, norms and GELU, a seventh of the block's
 * forward. In the layout of Llama they are the keys and values, if these have fewer heads, and both products of a gated
 * feed-forward part. Where ranks share a layer, the sizes of the whole layer count.
 */
void
ebb_checkpoint_options_set_policy_selective (EbbCheckpointOptions *self)
{
  g_return_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self));

  set_func (&self->policy, &(EbbOptionsFunc){ .answer = save_uneven_products });
}

/**
 * ebb_checkpoint_options_set_policy_core_attention:
 * @self: options
 *
 * Recomputes the attention core and saves all other results: Megatron-LM calls `recompute_granularity` "selective" with
 * `recompute_modules` "core_attn" (Korthikanti et al., "Reducing activation recomputation in large transformer models",
 * 2022, section 5). Ebb's attention never keeps the scores of all pairs, so that this saves the core's output alone,
 * for one more forward of it.
 */
void
ebb_checkpoint_options_set_policy_core_attention (EbbCheckpointOptions *self)
{
  g_return_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self));

  set_func (&self->policy, &(EbbOptionsFunc){ .answer = recompute_attention });
}

/**
 * ebb_checkpoint_options_set_policy_save_ops:
 * @self: options
 * @ops: (array zero-terminated=1): names from ebb_op_list_names()
 * @error: return location for an error
 *
 * Saves the results of the ops with these names, and recomputes all others.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if there is no op of such a name; the policy then stays what it was
 */
gboolean
ebb_checkpoint_options_set_policy_save_ops (EbbCheckpointOptions *self,
                                            const char *const *ops,
                                            GError **error)
{
  if (!EBB_MAY_BEGIN (error, self, ops))
    return FALSE;
  g_return_val_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self), FALSE);

  for (guint i = 0; ops[i] != NULL; i++)
    if (!ebb_op_is_name (ops[i]))
      return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                       "there is no op \"%s\" for a policy to save; ebb_op_list_names () lists the ops", ops[i]);
  set_func (&self->policy, &(EbbOptionsFunc){ .answer = save_listed,
                                              .data = g_strdupv ((char **) ops),
                                              .destroy = (GDestroyNotify) g_strfreev });
  return TRUE;
}

/**
 * ebb_checkpoint_options_set_policy_save_nth_product:
 * @self: options
 * @n: which, at least 1: 2 for every other one
 * @error: return location for an error
 *
 * Saves the result of every @n-th matrix product of a forward ("linear" and "matmul": the n-th, the 2n-th and so on),
 * and recomputes all else, attention included.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if @n is 0; the policy then stays what it was
 */
gboolean
ebb_checkpoint_options_set_policy_save_nth_product (EbbCheckpointOptions *self,
                                                    guint n,
                                                    GError **error)
{
  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;
  g_return_val_if_fail (EBB_IS_CHECKPOINT_OPTIONS (self), FALSE);

  if (n == 0)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "n is 0; it must be 1 or more, and 1 saves every product");
  set_func (&self->policy, &(EbbOptionsFunc){ .answer = save_nth_product, .data = GUINT_TO_POINTER (n) });
  return TRUE;
}

/* -- for wrap/ ----------------------------------------------------------------------------------------------------- */

EbbSavedTensorHooks *
ebb_checkpoint_options_get_effective_store (EbbCheckpointOptions *self)
{
  return self->store == NULL && self->offload_to_cpu ? ebb_host_store_get_default () : self->store;
}

gboolean
ebb_checkpoint_options_ask (EbbCheckpointOptions *self,
                            const EbbPolicyQuestion *question,
                            gboolean *saves,
                            GError **error)
{
  EbbOptionsFunc *policy = g_atomic_rc_box_acquire (self->policy);
  GError *local = NULL;
  EbbCheckpointPolicy verdict = policy->answer (policy, question, &local);

  func_unref (policy);
  if (local == NULL && (guint) verdict > EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE)
    return ebb_fail (error, EBB_ERROR_CALLBACK,
                     "a checkpoint policy returned %d for op %s: it must be a member of CheckpointPolicy, 0 to %d",
                     (int) verdict, question->call->op->name, EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE);
  if (local != NULL)
    g_propagate_error (error, local);
  *saves = verdict <= EBB_CHECKPOINT_POLICY_PREFER_SAVE;
  return local == NULL;
}

gboolean
ebb_checkpoint_options_announce (EbbCheckpointOptions *self,
                                 EbbModule *module,
                                 EbbRecomputePhase phase,
                                 GError **error)
{
  GError *local = NULL;
  EbbOptionsFunc *listener = self->listener;
  gboolean ok;

  if (listener == NULL)
    return TRUE;
  g_atomic_rc_box_acquire (listener);
  ok = ((EbbRecomputeFunc) listener->func) (module, phase, listener->data, &local);
  func_unref (listener);
  if (!ok && local == NULL)
    return ebb_fail (error, EBB_ERROR_CALLBACK, "a recompute callback failed without saying why");
  if (local != NULL)
    g_propagate_error (error, local);
  return local == NULL;
}

/* -- object -------------------------------------------------------------------------------------------------------- */

static void
ebb_checkpoint_options_finalize (GObject *object)
{
  EbbCheckpointOptions *self = EBB_CHECKPOINT_OPTIONS (object);

  g_clear_pointer (&self->policy, func_unref);
  g_clear_pointer (&self->listener, func_unref);
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
  ebb_property_add (object_class, EbbCheckpointOptions, preserve_rng_state, boolean, "preserve-rng-state", TRUE, flags);
  /**
   * EbbCheckpointOptions:early-stop:
   *
   * Whether the recompute ends as soon as it has all that backward needs. Ops after that point give tensors without
   * data.
   */
  ebb_property_add (object_class, EbbCheckpointOptions, early_stop, boolean, "early-stop", TRUE, flags);
  /**
   * EbbCheckpointOptions:determinism-check:
   *
   * How a recompute is compared with the forward that it repeats. %EBB_DETERMINISM_CHECK_VALUES reads every saved
   * tensor once more in each direction.
   */
  ebb_property_add (object_class, EbbCheckpointOptions, determinism_check, enum, "determinism-check",
                    EBB_TYPE_DETERMINISM_CHECK, EBB_DETERMINISM_CHECK_DEFAULT, flags);
  /**
   * EbbCheckpointOptions:store:
   *
   * The store that holds the inputs of wrapped modules and the tensors that a policy saves; %NULL: they stay where they
   * are.
   */
  ebb_property_add (object_class, EbbCheckpointOptions, store, object, "store", EBB_TYPE_SAVED_TENSOR_HOOKS, flags);
  /**
   * EbbCheckpointOptions:offload-to-cpu:
   *
   * Whether inputs that lie on another device are held in host memory, by the default #EbbHostStore, where no store is
   * set. Checkpointing frees the activations that are made inside a module, and this moves those that come in: the
   * savings add up. Inputs on the CPU stay as they are.
   */
  ebb_property_add (object_class, EbbCheckpointOptions, offload_to_cpu, boolean, "offload-to-cpu", FALSE, flags);
  /**
   * EbbCheckpointOptions:retain-recomputed:
   *
   * Whether recomputed tensors stay until their nodes are done. If a graph is retained and several backward passes go
   * through it, each recomputes again; with this option the others use the result of the first. It makes no difference
   * to a graph with one backward pass.
   */
  ebb_property_add (object_class, EbbCheckpointOptions, retain_recomputed, boolean, "retain-recomputed", FALSE, flags);
  /**
   * EbbCheckpointOptions:synchronize:
   *
   * Whether devices are synchronised where each forward and its backward begin and end: at these four points of each
   * checkpoint the host waits until the devices of its arguments, parameters and results have done all their work. It
   * shows where a device fails or where time goes, and nothing overlaps with computing across these points. A recompute
   * is a part of its backward; forwards inside it are not synchronised. On the CPU it makes no difference, since all
   * work is done when a call returns.
   */
  ebb_property_add (object_class, EbbCheckpointOptions, synchronize, boolean, "synchronize", FALSE, flags);
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
  ebb_property_add (object_class, EbbCheckpointOptions, profile, boolean, "profile", FALSE, flags);
}

static void
ebb_checkpoint_options_init (EbbCheckpointOptions *self)
{
}
