/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/args.h"

#include <gio/gio.h>

G_BEGIN_DECLS

#define EBB_TYPE_MODULE (ebb_module_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_DERIVABLE_TYPE (EbbModule, ebb_module, EBB, MODULE, GObject)

/**
 * EbbModuleClass:
 * @forward: the computation, for any arguments and results; returns (transfer full)
 * @forward1: the fast form for one tensor in, one out. Implement @forward or @forward1; the default of each calls the
 *   other. If a class and its ancestor implement different ones, the class's own is used
 * @build: makes parameters and children from the construct properties, once, when the module is initialised
 *   (#GInitable); chains up first
 *
 * The class of modules. Call a module by ebb_module_call() or ebb_module_call1(), never by these.
 */
struct _EbbModuleClass
{
  GObjectClass parent_class;

  EbbArgs *(*forward) (EbbModule *self,
                       EbbArgs *args,
                       GError **error);
  EbbTensor *(*forward1) (EbbModule *self,
                          EbbTensor *input,
                          GError **error);
  gboolean (*build) (EbbModule *self,
                     GError **error);

  /*< private >*/
  gpointer dispatch[4]; /* which of forward and forward1 is the nearer, see module-call.c */
  gpointer padding[12];
};

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_module_call (EbbModule *self,
                          EbbArgs *args,
                          GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_module_call1 (EbbModule *self,
                             EbbTensor *input,
                             GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_module_register_parameter (EbbModule *self,
                                        const char *name,
                                        EbbTensor *parameter,
                                        GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_module_register_buffer (EbbModule *self,
                                     const char *name,
                                     EbbTensor *buffer,
                                     gboolean persistent,
                                     GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_module_register_child (EbbModule *self,
                                    const char *name,
                                    EbbModule *child,
                                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_module_get_parameter (EbbModule *self,
                                     const char *name);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_module_get_buffer (EbbModule *self,
                                  const char *name);

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_module_get_child (EbbModule *self,
                                 const char *name);

EBB_AVAILABLE_IN_ALL
EbbTensor **ebb_module_get_parameters (EbbModule *self,
                                       gboolean recurse,
                                       guint *n_parameters);

EBB_AVAILABLE_IN_ALL
char **ebb_module_get_parameter_names (EbbModule *self,
                                       gboolean recurse);

EBB_AVAILABLE_IN_ALL
EbbTensor **ebb_module_get_buffers (EbbModule *self,
                                    gboolean recurse,
                                    guint *n_buffers);

EBB_AVAILABLE_IN_ALL
char **ebb_module_get_buffer_names (EbbModule *self,
                                    gboolean recurse);

EBB_AVAILABLE_IN_ALL
EbbModule **ebb_module_get_children (EbbModule *self,
                                     guint *n_children);

EBB_AVAILABLE_IN_ALL
char **ebb_module_get_child_names (EbbModule *self);

EBB_AVAILABLE_IN_ALL
EbbModule **ebb_module_get_modules (EbbModule *self,
                                    guint *n_modules);

EBB_AVAILABLE_IN_ALL
char **ebb_module_get_module_names (EbbModule *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_module_count_parameters (EbbModule *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_module_get_training (EbbModule *self);

EBB_AVAILABLE_IN_ALL
void ebb_module_set_training (EbbModule *self,
                              gboolean training);

EBB_AVAILABLE_IN_ALL
gboolean ebb_module_set_requires_grad (EbbModule *self,
                                       gboolean requires_grad,
                                       GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_module_zero_grad (EbbModule *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_module_to_device (EbbModule *self,
                               EbbDevice *device,
                               GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_module_to_dtype (EbbModule *self,
                              EbbDType dtype,
                              GError **error);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_module_get_state_dict (EbbModule *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_module_load_state_dict (EbbModule *self,
                                     EbbArgs *state,
                                     gboolean strict,
                                     GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_module_compare_state_dict (EbbModule *self,
                                        EbbArgs *state,
                                        char ***missing,
                                        char ***unexpected,
                                        char **advice,
                                        GError **error);

EBB_AVAILABLE_IN_ALL
guint ebb_module_get_forward_counter (EbbModule *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_module_get_activation_checkpointing (EbbModule *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_module_set_activation_checkpointing (EbbModule *self,
                                                  gboolean enabled,
                                                  GError **error);

EBB_AVAILABLE_IN_ALL
char *ebb_module_to_string (EbbModule *self);

/**
 * EbbForwardHook:
 * @module: the module that was called
 * @args: its arguments
 * @result: (nullable): its result, %NULL before the forward
 * @user_data: user data
 * @error: return location for an error
 *
 * Sees a module's call; may refuse it, or replace @args before the forward and @result after it by
 * ebb_module_hand_over().
 *
 * Returns: %FALSE with @error set to make the call fail
 */
typedef gboolean (*EbbForwardHook) (EbbModule *module,
                                    EbbArgs *args,
                                    EbbArgs *result,
                                    gpointer user_data,
                                    GError **error);

EBB_AVAILABLE_IN_ALL
guint ebb_module_add_forward_pre_hook (EbbModule *self,
                                       EbbForwardHook hook,
                                       gpointer user_data,
                                       GDestroyNotify destroy);

EBB_AVAILABLE_IN_ALL
guint ebb_module_add_forward_hook (EbbModule *self,
                                   EbbForwardHook hook,
                                   gpointer user_data,
                                   GDestroyNotify destroy);

EBB_AVAILABLE_IN_ALL
gboolean ebb_module_hand_over (EbbModule *self,
                               EbbArgs *value,
                               GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_module_remove_hook (EbbModule *self,
                                 guint id);

G_END_DECLS
