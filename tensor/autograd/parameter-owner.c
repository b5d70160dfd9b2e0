/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/autograd/parameter-owner-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/thread-private.h"

/* Without a place for an error the pass has failed already: nothing more is begun. */
static gboolean
tell_unused (gpointer data,
             GError **error)
{
  g_autoptr (EbbTensor) parameter = data;
  EbbParameterOwner *owner = parameter->owner;

  if (error == NULL || owner == NULL || __atomic_load_n (&parameter->n_uses, __ATOMIC_RELAXED) != 0)
    return TRUE;
  return owner->funcs->unused (owner, parameter, error);
}

/* The node that was last has yet to give its gradients. */
void
ebb_parameter_drop_use (EbbTensor *parameter)
{
  if (__atomic_sub_fetch (&parameter->n_uses, 1, __ATOMIC_RELAXED) != 0 || parameter->owner == NULL
      || parameter->owner->funcs->unused == NULL || ebb_thread.in_backward == 0)
    return;
  ebb_backward_call_after_node (tell_unused, ebb_tensor_ref (parameter));
}
