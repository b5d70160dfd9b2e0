/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/compat/store-chain-private.h"

#include "offload/contiguous/store.h"
#include "offload/host/store.h"
#include "offload/partitioned/store.h"

/* Puts @outer, made around *@chain, in its place. */
static gboolean
put_around (EbbSavedTensorHooks **chain,
            EbbSavedTensorHooks *outer)
{
  if (outer == NULL)
    return FALSE;
  g_clear_object (chain);
  *chain = outer;
  return TRUE;
}

gboolean
ebb_store_chain_open (const EbbStoreChain *self,
                      EbbSavedTensorHooks **store,
                      GError **error)
{
  g_autoptr (EbbSavedTensorHooks) chain = NULL;

  *store = NULL;
  if (self->host)
    chain = g_object_ref (ebb_host_store_get_default ());
  if (self->n_checkpoints > 0)
    {
      if (!put_around (&chain, ebb_contiguous_store_new (self->n_checkpoints, (EbbActivationStore *) chain, error)))
        return FALSE;
      ebb_contiguous_store_set_grow (EBB_CONTIGUOUS_STORE (chain), self->grow);
    }
  if (self->group != NULL)
    {
      if (!put_around (&chain, ebb_partitioned_store_new (self->group, (EbbActivationStore *) chain, error)))
        return FALSE;
      /* As in those systems every tensor with as many elements as there are ranks is partitioned. */
      ebb_activation_store_set_least_size (EBB_ACTIVATION_STORE (chain), 0);
    }
  *store = g_steal_pointer (&chain);
  return TRUE;
}

EbbSavedTensorHooks *
ebb_store_chain_next (EbbSavedTensorHooks *store)
{
  GParamSpec *spec = g_object_class_find_property (G_OBJECT_GET_CLASS (store), "next");
  EbbSavedTensorHooks *next = NULL;

  if (spec == NULL || !g_type_is_a (spec->value_type, EBB_TYPE_SAVED_TENSOR_HOOKS))
    return NULL;
  g_object_get (store, "next", &next, NULL);
  if (next != NULL)
    g_object_unref (next); /* @store holds it */
  return next;
}
