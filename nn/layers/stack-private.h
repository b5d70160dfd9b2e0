/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/layers/block-private.h"
#include "nn/module-private.h"

/* A stack is a module whose children are called one after another, by itself (EbbSequential) or by the model that it
 * belongs to (EbbModuleList). All such calls come through here, where an interceptor can take several children at once:
 * what an interceptor of a module's forward is for one. */

G_BEGIN_DECLS

/* The arguments of a child after the first. */
typedef enum
{
  EBB_STACK_PIPE, /* the result of the child before it: a single value as the one argument, a container as one value */
  EBB_STACK_SHARE /* the same, and again all arguments of the first child after its first: a mask, a flag */
} EbbStackFlow;

/* May replace the calls of the children from number @first on: sets *n_done to their number, and returns the result of
 * the last of them, or NULL with @error. If it sets *n_done to 0, the stack calls the child itself. */
typedef EbbArgs *(*EbbStackInterceptor) (EbbModule *stack,
                                         guint first,
                                         EbbStackFlow flow,
                                         EbbArgs *args,
                                         guint *n_done,
                                         gpointer user_data,
                                         GError **error);

/* There is one at most; NULL takes it off. A call under way goes on with the one that it began with. */
void ebb_stack_set_interceptor (EbbModule *stack,
                                EbbStackInterceptor func,
                                gpointer user_data,
                                GDestroyNotify destroy);
/* The interceptor's data; NULL: no interceptor is set. */
gpointer ebb_stack_get_interceptor_data (EbbModule *stack);

/* Functions at the beginning and the end of each call of a stack, around all of its children, whether the stack calls
 * them or its model. */
typedef struct
{
  /* Returns the input of the first child in place of @x; NULL with @error: neither a child nor leave () is called. */
  EbbTensor *(*enter) (EbbModule *stack,
                       EbbTensor *x,
                       gpointer user_data,
                       GError **error);
  /* Called once for each enter () that succeeded: returns the result of the stack in place of @x, the result of the
   * last child. @x NULL: a child has failed, @error is set, and the result is ignored. */
  EbbTensor *(*leave) (EbbModule *stack,
                       EbbTensor *x,
                       gpointer user_data,
                       GError **error);
} EbbStackBoundaryFuncs;

/* There is one at most; @funcs NULL takes it off. A call under way goes on with the one that it began with. */
void ebb_stack_set_boundary (EbbModule *stack,
                             const EbbStackBoundaryFuncs *funcs,
                             gpointer user_data,
                             GDestroyNotify destroy);

EbbArgs *ebb_stack_call (EbbModule *stack,
                         EbbStackFlow flow,
                         EbbArgs *args,
                         GError **error);
/* The same with one tensor in, which is consumed, and one out. */
EbbTensor *ebb_stack_call1 (EbbModule *stack,
                            EbbTensor *input,
                            GError **error);
/* The same, with the other inputs that there are for each module as well. */
EbbTensor *ebb_stack_call_blocks (EbbModule *stack,
                                  EbbTensor *x,
                                  const EbbBlockInputs *inputs,
                                  GError **error);
/* The calls alone, of any modules. */
EbbArgs *ebb_stack_call_modules (EbbModule *const *modules,
                                 guint n_modules,
                                 EbbStackFlow flow,
                                 EbbArgs *args,
                                 GError **error);

/* Turns the @result of a child into the arguments of the next; @args: those of the first. Consumes @result. */
EbbArgs *ebb_stack_take_args (EbbStackFlow flow,
                              EbbArgs *args,
                              EbbArgs *result);

G_END_DECLS
