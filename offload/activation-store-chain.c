/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/activation-store-private.h"

/* Stores behind a store: the next one, which one kind or another has, and the fallback, which any may have. */

const char *const ebb_store_links[EBB_N_LINKS] = { "next", "fallback" };

EbbActivationStore *
ebb_activation_store_ref_behind (EbbActivationStore *self,
                                 guint i)
{
  GParamSpec *spec = g_object_class_find_property (G_OBJECT_GET_CLASS (self), ebb_store_links[i]);
  EbbActivationStore *store = NULL;

  if (spec != NULL && g_type_is_a (spec->value_type, EBB_TYPE_SAVED_TENSOR_HOOKS))
    g_object_get (self, ebb_store_links[i], &store, NULL);
  if (store != NULL && !EBB_IS_ACTIVATION_STORE (store))
    g_clear_object (&store);
  return store;
}

GPtrArray *
ebb_activation_store_get_chain (EbbActivationStore *self)
{
  GPtrArray *chain = g_ptr_array_new_with_free_func (g_object_unref);

  g_ptr_array_add (chain, g_object_ref (self));
  for (guint n = 0; n < chain->len; n++)
    for (guint i = 0; i < EBB_N_LINKS; i++)
      {
        EbbActivationStore *store = ebb_activation_store_ref_behind (chain->pdata[n], i);

        if (store != NULL && !g_ptr_array_find (chain, store, NULL))
          g_ptr_array_add (chain, store);
        else
          g_clear_object (&store);
      }
  return chain;
}
