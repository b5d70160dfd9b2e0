/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* When the owner of a parameter is called: at its last use in backward, and before a recompute of its forward. */
#include "tensor/autograd/parameter-owner-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/thread-private.h"

/* `error == NULL` means that the pass has failed; start nothing. */
static gboolean
report_unused (gpointer data,
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
      || parameter->owner->funcs->unused == NULL || ebb_modes.in_backward == 0)
    return;
  ebb_backward_call_after_node (report_unused, ebb_tensor_ref (parameter));
}

/* -- forwards that run --------------------------------------------------------------------------------------------- */

static void
owner_unref (gpointer owner)
{
  ((EbbParameterOwner *) owner)->funcs->unref (owner);
}

static GPtrArray *
owners_new (void)
{
  return g_ptr_array_new_with_free_func (owner_unref);
}

static void
add_owner (GPtrArray *owners,
           EbbParameterOwner *owner)
{
  owner->funcs->ref (owner);
  g_ptr_array_add (owners, owner);
}

static GPrivate entered = G_PRIVATE_INIT ((GDestroyNotify) g_ptr_array_unref); /* outermost first, with references */

void
ebb_parameter_owner_enter (EbbParameterOwner *self)
{
  if (g_private_get (&entered) == NULL)
    g_private_set (&entered, owners_new ());
  add_owner (g_private_get (&entered), self);
}

void
ebb_parameter_owner_leave (void)
{
  GPtrArray *owners = g_private_get (&entered);

  g_ptr_array_set_size (owners, (int) owners->len - 1);
}

EbbParameterOwner *
ebb_parameter_owner_get_outermost (void)
{
  GPtrArray *owners = g_private_get (&entered);

  return owners != NULL && owners->len > 0 ? g_ptr_array_index (owners, 0) : NULL;
}

GPtrArray *
ebb_parameter_owners_get_entered (void)
{
  GPtrArray *owners = g_private_get (&entered), *copy;

  if (owners == NULL || owners->len == 0)
    return NULL;
  copy = owners_new ();
  for (guint i = 0; i < owners->len; i++)
    add_owner (copy, g_ptr_array_index (owners, i));
  return copy;
}

gboolean
ebb_parameter_owners_prepare_recompute (GPtrArray *owners,
                                        gboolean needs_innermost,
                                        GError **error)
{
  for (guint i = 0; owners != NULL && i < owners->len; i++)
    {
      EbbParameterOwner *owner = g_ptr_array_index (owners, i);

      if (!owner->funcs->prepare_recompute (owner, needs_innermost && i == owners->len - 1, error))
        return FALSE;
    }
  return TRUE;
}
