/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module.h"

/* The chain of forward interceptors: how wrappers stand between a caller and a module's forward. The one added last is
 * outermost. An interceptor goes on by ebb_forward_chain_call (); it may call more than once (a recompute), later (the
 * chain position is found again by id), or not at all. */

G_BEGIN_DECLS

typedef struct _EbbForwardChain EbbForwardChain; /* what is still inside */

typedef EbbArgs *(*EbbForwardInterceptor) (EbbModule *module,
                                           EbbArgs *args,
                                           const EbbForwardChain *inside,
                                           gpointer user_data,
                                           GError **error);

guint ebb_module_add_interceptor (EbbModule *self,
                                  const char *kind, /* static string: "checkpoint", "shard" */
                                  EbbForwardInterceptor func,
                                  gpointer user_data,
                                  GDestroyNotify destroy);
gboolean ebb_module_remove_interceptor (EbbModule *self,
                                        guint id);
/* The id of the outermost interceptor of @kind, 0 if none. */
guint ebb_module_find_interceptor (EbbModule *self,
                                   const char *kind);
gpointer ebb_module_get_interceptor_data (EbbModule *self,
                                          guint id);

/* Calls what lies inside, hooks and forward included. */
EbbArgs *ebb_forward_chain_call (const EbbForwardChain *inside,
                                 EbbModule *module,
                                 EbbArgs *args,
                                 GError **error);
/* The same from outside a call: what lies inside the interceptor @id of @self (all of the module if it is gone). */
EbbArgs *ebb_module_call_inside (EbbModule *self,
                                 guint id,
                                 EbbArgs *args,
                                 GError **error);

void ebb_module_add_to_forward_counter (EbbModule *self,
                                        int delta);

G_END_DECLS
