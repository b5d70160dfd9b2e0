/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Builds the chain of stores that a configuration asks for. */
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

EbbCheckpointOptions *
ebb_store_chain_make_options (const EbbStoreChain *self,
                              GError **error)
{
  g_autoptr (EbbSavedTensorHooks) chain = NULL;
  EbbCheckpointOptions *options;

  if (self->host)
    chain = g_object_ref (ebb_host_store_get_default ());
  if (self->n_checkpoints > 0)
    {
      if (!put_around (&chain, ebb_contiguous_store_new (self->n_checkpoints, (EbbActivationStore *) chain, error)))
        return NULL;
      g_object_set (chain, "grow", self->grow, NULL);
    }
  if (self->group != NULL)
    {
      if (!put_around (&chain, ebb_partitioned_store_new (self->group, (EbbActivationStore *) chain, error)))
        return NULL;
      /* As in those systems every tensor with as many elements as there are ranks is partitioned. */
      g_object_set (chain, "least-size", (guint64) 0, NULL);
    }
  options = ebb_checkpoint_options_new ();
  ebb_checkpoint_options_set_store (options, chain);
  return options;
}

EbbSavedTensorHooks *
ebb_store_chain_next (EbbSavedTensorHooks *store)
{
  return EBB_IS_ACTIVATION_STORE (store)
             ? (EbbSavedTensorHooks *) ebb_activation_store_get_next (EBB_ACTIVATION_STORE (store))
             : NULL;
}
