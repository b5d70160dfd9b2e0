/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Policies: which results of a checkpointed forward are saved, by a user's function or by one of the ready-made ones.
 */
#include "wrap/checkpoint/options-private.h"

#include "tensor/error-private.h"
#include "tensor/autograd/op-names-private.h"
#include "tensor/partition-private.h"

/* -- policies ------------------------------------------------------------------------------------------------------ */

EbbPolicy *
ebb_policy_new (EbbPolicyAnswer answer,
                gpointer data,
                GDestroyNotify destroy)
{
  EbbPolicy *self = g_atomic_rc_box_new (EbbPolicy);

  *self = (EbbPolicy){ answer, data, destroy };
  return self;
}

EbbPolicy *
ebb_policy_ref (EbbPolicy *self)
{
  return g_atomic_rc_box_acquire (self);
}

static void
policy_clear (gpointer data)
{
  EbbPolicy *self = data;

  if (self->destroy != NULL)
    self->destroy (self->data);
}

void
ebb_policy_unref (EbbPolicy *self)
{
  g_atomic_rc_box_release_full (self, policy_clear);
}

gboolean
ebb_policy_ask (EbbPolicy *self,
                const EbbPolicyQuestion *question,
                gboolean *saves,
                GError **error)
{
  GError *local = NULL;
  EbbCheckpointPolicy verdict;

  ebb_policy_ref (self); /* it may replace itself */
  verdict = self->answer (question, self->data, &local);
  ebb_policy_unref (self);
  if (local == NULL && (guint) verdict > EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE)
    g_set_error (&local, EBB_ERROR, EBB_ERROR_CALLBACK,
                 "a checkpoint policy returned %d for op %s: it must be a member of CheckpointPolicy, 0 to %d",
                 (int) verdict, question->call->op->name, EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE);
  if (local != NULL)
    {
      g_propagate_error (error, local);
      return FALSE;
    }
  *saves = verdict <= EBB_CHECKPOINT_POLICY_PREFER_SAVE;
  return TRUE;
}

/* -- a user's function --------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbCheckpointPolicyFunc func;
  gpointer data;
  GDestroyNotify destroy;
} UserFunc;

static EbbCheckpointPolicy
ask_user (const EbbPolicyQuestion *question,
          gpointer data,
          GError **error)
{
  UserFunc *user = data;

  return user->func (question->call->op->name, question->ordinal, question->n_bytes, user->data, error);
}

static void
user_func_free (gpointer data)
{
  UserFunc *user = data;

  if (user->destroy != NULL)
    user->destroy (user->data);
  g_free (user);
}

EbbPolicy *
ebb_policy_new_for_func (EbbCheckpointPolicyFunc func,
                         gpointer data,
                         GDestroyNotify destroy)
{
  UserFunc *user = g_new (UserFunc, 1);

  *user = (UserFunc){ func, data, destroy };
  return ebb_policy_new (ask_user, user, user_func_free);
}

/* -- ready-made ones ----------------------------------------------------------------------------------------------- */

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
save_uneven_products (const EbbPolicyQuestion *question,
                      gpointer data,
                      GError **error)
{
  return question->call->op->kind == EBB_OP_PRODUCT && is_uneven (question->call)
             ? EBB_CHECKPOINT_POLICY_MUST_SAVE
             : EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE;
}

static EbbCheckpointPolicy
recompute_attention (const EbbPolicyQuestion *question,
                     gpointer data,
                     GError **error)
{
  return question->call->op->kind == EBB_OP_ATTENTION ? EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE
                                                      : EBB_CHECKPOINT_POLICY_MUST_SAVE;
}

static EbbCheckpointPolicy
save_listed (const EbbPolicyQuestion *question,
             gpointer data,
             GError **error)
{
  return g_strv_contains (data, question->call->op->name) ? EBB_CHECKPOINT_POLICY_MUST_SAVE
                                                          : EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE;
}

static EbbCheckpointPolicy
save_nth_product (const EbbPolicyQuestion *question,
                  gpointer data,
                  GError **error)
{
  return question->call->op->kind == EBB_OP_PRODUCT && (question->n_products + 1) % GPOINTER_TO_UINT (data) == 0
             ? EBB_CHECKPOINT_POLICY_MUST_SAVE
             : EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE;
}

static void
take_policy (EbbCheckpointOptions *self,
             EbbPolicy *policy)
{
  EbbPolicy *old = self->policy;

  self->policy = policy;
  g_clear_pointer (&old, ebb_policy_unref);
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

  if (policy == NULL && destroy != NULL)
    destroy (user_data);
  take_policy (self,
               policy ? ebb_policy_new_for_func (policy, user_data, destroy) : NULL);
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

  take_policy (self, ebb_policy_new (save_uneven_products, NULL, NULL));
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

  take_policy (self, ebb_policy_new (recompute_attention, NULL, NULL));
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
      {
        g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                     "there is no op \"%s\" for a policy to save; ebb_op_list_names () lists the ops",
                     ops[i]);
        return FALSE;
      }
  take_policy (
      self, ebb_policy_new (save_listed, g_strdupv ((char **) ops), (GDestroyNotify) g_strfreev));
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
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "n is 0; it must be 1 or more, and 1 saves every product");
      return FALSE;
    }
  take_policy (self, ebb_policy_new (save_nth_product, GUINT_TO_POINTER (n), NULL));
  return TRUE;
}
