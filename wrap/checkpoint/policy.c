/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* A policy decides which results of a checkpointed forward are saved. */
#include "wrap/checkpoint/policy-private.h"

#include "tensor/error-private.h"

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
