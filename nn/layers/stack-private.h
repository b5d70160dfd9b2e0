/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/layers/block-private.h"
#include "nn/module-private.h"

/* A stack is a module whose children are called one after another, by itself (EbbSequential) or by the model that it
 * belongs to (EbbModuleList). All such calls come through here, where an interceptor can take several children at once:
 * what an interceptor of a module's forward is for one. */

G_BEGIN_DECLS

/* What a child after the first is called with. */
typedef enum
{
  EBB_STACK_PIPE, /* what the one before gave: a single value as the one argument, a container as one value */
  EBB_STACK_SHARE /* the same, with all arguments but the first again: a mask, a flag */
} EbbStackFlow;

/* May stand in for the calls of the children from number @first on: sets *n_done to how many, and returns what the last
 * of them gives, or NULL with @error. With *n_done 0 the child is called as ever. */
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
/* Its data; NULL: there is none. */
gpointer ebb_stack_get_interceptor_data (EbbModule *stack);

/* What one call of a stack begins and ends with, around all of its children, whether it calls them itself or its model
 * does. */
typedef struct
{
  /* What goes into the first child in place of @x; NULL with @error: no child is called, nor leave (). */
  EbbTensor *(*enter) (EbbModule *stack,
                       EbbTensor *x,
                       gpointer user_data,
                       GError **error);
  /* Called once for each enter () that gave something: what comes out of the stack in place of @x, which the last child
   * gave; @x NULL: a child has failed, @error is set, and the result is not looked at. */
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

/* What @result of a child is as the arguments of the next, where @args were those of the first. Consumes @result. */
EbbArgs *ebb_stack_take_args (EbbStackFlow flow,
                              EbbArgs *args,
                              EbbArgs *result);

G_END_DECLS
