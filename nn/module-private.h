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
/* @is_idle says whether the interceptor, called now, would only go on to what is inside: then it may be left out, and a
 * call of one tensor needs no EbbArgs. @id, which may be NULL, is there before another thread can call @func. */
void ebb_module_add_idle_interceptor (EbbModule *self,
                                      const char *kind,
                                      EbbForwardInterceptor func,
                                      gboolean (*is_idle) (gpointer user_data),
                                      gpointer user_data,
                                      GDestroyNotify destroy,
                                      guint *id);
/* FALSE if there is none, as for the id 0. */
gboolean ebb_module_remove_interceptor (EbbModule *self,
                                        guint id);
/* The id of the outermost interceptor of @kind, 0 if none. */
guint ebb_module_find_interceptor (EbbModule *self,
                                   const char *kind);
/* The next further inside after @id (0: the outermost) of @kind; 0 if none. */
guint ebb_module_next_interceptor (EbbModule *self,
                                   const char *kind,
                                   guint id);
/* The kind of interceptor that makes the module's parameters available: its data is their EbbParameterOwner. */
#define EBB_PARAMETER_OWNER_INTERCEPTOR "parameter-owner"
struct _EbbParameterOwner *ebb_module_get_parameter_owner (EbbModule *self);
/* NULL if there is none, as for the id 0. */
gpointer ebb_module_get_interceptor_data (EbbModule *self,
                                          guint id);

/* Calls what lies inside, hooks and forward included. */
EbbArgs *ebb_forward_chain_call (const EbbForwardChain *inside,
                                 EbbModule *module,
                                 EbbArgs *args,
                                 GError **error);
/* The same from outside a call: what lies inside the interceptor @id of @self, which may be gone meanwhile: the
 * interceptors that were added before it, hooks and forward. */
EbbArgs *ebb_module_call_inside (EbbModule *self,
                                 guint id,
                                 EbbArgs *args,
                                 GError **error);

/* The one tensor of what a call of @self gave; NULL if @result is NULL, and with an error that names @self if it is
 * anything else. */
EbbTensor *ebb_module_take_only_tensor (EbbModule *self,
                                        EbbArgs *result,
                                        GError **error);
/* Calls @self for one tensor. */
EbbTensor *ebb_module_call_for_tensor (EbbModule *self,
                                       EbbArgs *args,
                                       GError **error);

void ebb_module_add_to_forward_counter (EbbModule *self,
                                        int delta);

/* The functions of the property "activation-checkpointing": wrap/ sets them when the library is loaded, and reports
 * changes of the property. */
typedef struct
{
  gboolean (*get) (EbbModule *module);
  gboolean (*set) (EbbModule *module,
                   gboolean enabled,
                   GError **error); /* called only to change it */
} EbbActivationCheckpointingFuncs;

void ebb_module_set_activation_checkpointing_funcs (const EbbActivationCheckpointingFuncs *funcs);
void ebb_module_notify_activation_checkpointing (EbbModule *self);

/* Binds a name to a field of the instance, which from then on holds, without a reference, whatever is registered under
 * that name: a layer's forward reads a field, and replacing or removing the parameter or child stays safe. */
void ebb_module_bind_parameter (EbbModule *self,
                                const char *name,
                                EbbTensor **field);
void ebb_module_bind_buffer (EbbModule *self,
                             const char *name,
                             EbbTensor **field);
/* A buffer that keeps its dtype when the module's is changed. Computed from the module's configuration, it is not
 * persistent: not in the state dict. */
gboolean ebb_module_register_exact_buffer (EbbModule *self,
                                           const char *name,
                                           EbbTensor *buffer,
                                           gboolean persistent,
                                           GError **error);
void ebb_module_bind_child (EbbModule *self,
                            const char *name,
                            EbbModule **field);

/* Children in order, without references. */
guint ebb_module_get_n_children (EbbModule *self);
EbbModule *ebb_module_peek_child (EbbModule *self,
                                  guint index);
/* TRUE if @module is exactly of @type and nothing stands between a caller and its forward: then a fused form that reads
 * its parameters may take the place of the call. */
gboolean ebb_module_is_plain (EbbModule *module,
                              GType type);

/* The same, but that wrappers may stand there: the caller must then ask for the part of the fused form that is the
 * module's through its call. Hooks see what a user calls, no such part. */
gboolean ebb_module_is_only_wrapped (EbbModule *module,
                                     GType type);

/* Says whether a module, at @path below the root, is selected. */
typedef gboolean (*EbbModulePickFunc) (EbbModule *module,
                                       const char *path,
                                       gpointer user_data);
/* The selection of what wraps several modules: @root and the modules below it that @pick picks, parents first. All are
 * picked before the first is wrapped. The array holds references. */
GPtrArray *ebb_module_select (EbbModule *root,
                              EbbModulePickFunc pick,
                              gpointer user_data);
/* The modules of @type, or derived from it; NULL with an error if there is none. */
GPtrArray *ebb_module_select_each (EbbModule *root,
                                   GType type,
                                   GError **error);
/* The parameters of @self and below, each once, with references. */
GPtrArray *ebb_module_list_parameters (EbbModule *self);
/* The device of the first parameter; @otherwise: there is none. */
EbbDevice *ebb_module_find_device (EbbModule *self,
                                   EbbDevice *otherwise);

/* Where the module is in the tree that it is a part of, as "h.3.attn"; "" for one that is no child. Owned. */
char *ebb_module_get_path (EbbModule *self);

/* A weak reference to a module: owned, and safe from any thread. */
typedef struct _EbbModuleWeak EbbModuleWeak;
EbbModuleWeak *ebb_module_weak_new (EbbModule *self);
/* The module, with a reference; NULL if it is gone. */
EbbModule *ebb_module_weak_get (EbbModuleWeak *weak);
void ebb_module_weak_free (EbbModuleWeak *weak);

/* The type's name as people know it, "Linear" for EbbLinear: how messages begin. */
const char *ebb_module_get_type_name (EbbModule *self);
const char *ebb_type_get_short_name (GType type);

G_END_DECLS
