/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/op-private.h"
#include "wrap/checkpoint/options.h"

/* A policy decides, op by op, which results a checkpointed forward saves. Options and running forwards share it. */

G_BEGIN_DECLS

typedef struct
{
  const EbbOpCall *call; /* that has run */
  guint ordinal;         /* ops of this forward before it... */
  guint n_products;      /* and matrix products among them */
  guint64 n_bytes;
} EbbPolicyQuestion;

typedef EbbCheckpointPolicy (*EbbPolicyAnswer) (const EbbPolicyQuestion *question,
                                                gpointer data,
                                                GError **error);

typedef struct
{
  EbbPolicyAnswer answer;
  gpointer data;
  GDestroyNotify destroy;
} EbbPolicy;

EbbPolicy *ebb_policy_new (EbbPolicyAnswer answer,
                           gpointer data,
                           GDestroyNotify destroy);
/* One that asks a user's function. */
EbbPolicy *ebb_policy_new_for_func (EbbCheckpointPolicyFunc func,
                                    gpointer data,
                                    GDestroyNotify destroy);
EbbPolicy *ebb_policy_ref (EbbPolicy *self);
void ebb_policy_unref (EbbPolicy *self);
/* Sets @saves to whether the results are saved; FALSE with @error if the policy fails. */
gboolean ebb_policy_ask (EbbPolicy *self,
                         const EbbPolicyQuestion *question,
                         gboolean *saves,
                         GError **error);

G_END_DECLS
