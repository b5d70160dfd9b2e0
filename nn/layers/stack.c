/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/layers/stack-private.h"

#include "nn/args-private.h"
#include "tensor/error-private.h"

/* Calls the children of a stack one after another, through the interceptor and within the boundary that are attached to
 * it. */

typedef struct
{
  int ref_count;
  EbbStackInterceptor intercept; /* or */
  const EbbStackBoundaryFuncs *funcs;
  gpointer user_data;
  GDestroyNotify destroy;
} Attachment;

enum
{
  INTERCEPTOR,
  BOUNDARY
};

/* Ranks that are threads may ask for one first at the same time. */
static GQuark
get_quark (guint which)
{
  static const char *const names[] = { "ebb-stack-interceptor", "ebb-stack-boundary" };
  static GQuark quarks[2];
  GQuark value = __atomic_load_n (&quarks[which], __ATOMIC_RELAXED);

  if (G_UNLIKELY (value == 0))
    {
      value = g_quark_from_static_string (names[which]);
      __atomic_store_n (&quarks[which], value, __ATOMIC_RELAXED);
    }
  return value;
}

static gpointer
attachment_ref (gpointer data, gpointer user_data)
{
  if (data != NULL)
    g_atomic_int_inc (&((Attachment *) data)->ref_count);
  return data;
}

static void
attachment_unref (gpointer data)
{
  Attachment *self = data;

  if (self == NULL || !g_atomic_int_dec_and_test (&self->ref_count))
    return;
  if (self->destroy != NULL)
    self->destroy (self->user_data);
  g_free (self);
}

static void
attach (EbbModule *stack, guint which, Attachment attachment)
{
  Attachment *self = NULL;

  if (attachment.intercept != NULL || attachment.funcs != NULL)
    self = g_memdup2 (&attachment, sizeof attachment);
  g_object_set_qdata_full (G_OBJECT (stack), get_quark (which), self, attachment_unref);
}

/* With a reference: a call goes on with what it began with. */
static Attachment *
hold (EbbModule *stack, guint which)
{
  return g_object_dup_qdata (G_OBJECT (stack), get_quark (which), attachment_ref, NULL);
}

void
ebb_stack_set_interceptor (EbbModule *stack,
                           EbbStackInterceptor func,
                           gpointer user_data,
                           GDestroyNotify destroy)
{
  attach (stack, INTERCEPTOR, (Attachment){ 1, func, NULL, user_data, destroy });
}

gpointer
ebb_stack_get_interceptor_data (EbbModule *stack)
{
  Attachment *self = g_object_get_qdata (G_OBJECT (stack), get_quark (INTERCEPTOR));

  return self != NULL ? self->user_data : NULL;
}

void
ebb_stack_set_boundary (EbbModule *stack,
                        const EbbStackBoundaryFuncs *funcs,
                        gpointer user_data,
                        GDestroyNotify destroy)
{
  attach (stack, BOUNDARY, (Attachment){ 1, NULL, funcs, user_data, destroy });
}

/* -- what goes from one to the next -------------------------------------------------------------------------------- */

EbbArgs *
ebb_stack_take_args (EbbStackFlow flow, EbbArgs *args, EbbArgs *result)
{
  guint n_shared = flow == EBB_STACK_SHARE ? ebb_args_get_length (args) : 0;
  gboolean is_bare = ebb_args_get_kind (result) == EBB_ARGS_BARE;
  EbbArgs *next;

  if (is_bare && n_shared <= 1)
    return result;
  next = ebb_args_new (EBB_ARGS_TUPLE);
  if (is_bare)
    ebb_args_add_value (next, NULL, result, 0);
  else
    ebb_args_add_args (next, NULL, result);
  for (guint i = 1; i < n_shared; i++)
    ebb_args_add_value (next, ebb_args_get_key (args, i), args, i);
  ebb_args_unref (result);
  return next;
}

/* The result of a stack without children. */
static EbbArgs *
pass (EbbStackFlow flow, EbbArgs *args)
{
  EbbArgs *result;

  if (flow == EBB_STACK_PIPE)
    return ebb_args_ref (args);
  result = ebb_args_new (EBB_ARGS_BARE);
  ebb_args_add_value (result, NULL, args, 0);
  return result;
}

static gboolean
check_args (EbbStackFlow flow, EbbArgs *args, GError **error)
{
  return flow == EBB_STACK_PIPE || ebb_args_get_n_positional (args) > 0
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "the value that goes through the modules must be the first argument, by position; got %s",
                      ebb_in_message (ebb_args_to_string (args)));
}

/* -- calls --------------------------------------------------------------------------------------------------------- */

static EbbArgs *
call_child (EbbModule *stack, guint index, EbbArgs *args, GError **error)
{
  g_autoptr (EbbModule) child = g_object_ref (ebb_module_peek_child (stack, index)); /* it may remove itself */

  return ebb_module_call (child, args, error);
}

static EbbArgs *
call_children (EbbModule *stack, EbbStackFlow flow, EbbArgs *args, GError **error)
{
  Attachment *interceptor = hold (stack, INTERCEPTOR);
  EbbArgs *value = ebb_args_ref (args), *result = NULL;
  guint n_done;

  for (guint i = 0; i < ebb_module_get_n_children (stack); i += n_done)
    {
      if (result != NULL)
        value = ebb_stack_take_args (flow, args, result);
      n_done = 0;
      result = interceptor != NULL
                   ? interceptor->intercept (stack, i, flow, value, &n_done, interceptor->user_data, error)
                   : NULL;
      if (n_done == 0)
        {
          result = call_child (stack, i, value, error);
          n_done = 1;
        }
      g_clear_pointer (&value, ebb_args_unref);
      if (result == NULL)
        break;
    }
  attachment_unref (interceptor);
  return result;
}

/* @args with @tensor in the place of its first value. */
static EbbArgs *
exchange_first (EbbArgs *args, EbbTensor *tensor)
{
  EbbArgs *next = ebb_args_new (ebb_args_get_kind (args));

  ebb_args_add_tensor (next, ebb_args_get_key (args, 0), tensor);
  for (guint i = 1; i < ebb_args_get_length (args); i++)
    ebb_args_add_value (next, ebb_args_get_key (args, i), args, i);
  return next;
}

static EbbTensor *
peek_first (EbbModule *stack, EbbArgs *args, const char *which, GError **error)
{
  EbbTensor *first = ebb_args_get_length (args) > 0 ? ebb_args_peek_tensor (args, 0) : NULL;

  if (first != NULL)
    return first;
  return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "%s: %s must begin with a tensor, which is divided; got %s",
                        ebb_module_get_type_name (stack), which, ebb_in_message (ebb_args_to_string (args)));
}

static EbbArgs *
call_within (Attachment *boundary, EbbModule *stack, EbbStackFlow flow, EbbArgs *args, GError **error)
{
  EbbTensor *x = peek_first (stack, args, "the arguments", error);
  g_autoptr (EbbTensor) inside = x != NULL ? boundary->funcs->enter (stack, x, boundary->user_data, error) : NULL;
  g_autoptr (EbbTensor) outside = NULL;
  g_autoptr (EbbArgs) value = NULL;
  g_autoptr (EbbArgs) result = NULL;
  EbbTensor *last;

  if (inside == NULL)
    return NULL;
  value = exchange_first (args, inside);
  g_clear_pointer (&inside, ebb_tensor_unref);
  result = call_children (stack, flow, value, error);
  last = result != NULL ? peek_first (stack, result, "the result", error) : NULL;
  outside = boundary->funcs->leave (stack, last, boundary->user_data, error);
  return last != NULL && outside != NULL ? exchange_first (result, outside) : NULL;
}

EbbArgs *
ebb_stack_call (EbbModule *stack, EbbStackFlow flow, EbbArgs *args, GError **error)
{
  Attachment *boundary;
  EbbArgs *result;

  if (!check_args (flow, args, error))
    return NULL;
  if (ebb_module_get_n_children (stack) == 0)
    return pass (flow, args);
  boundary = hold (stack, BOUNDARY);
  result = boundary != NULL ? call_within (boundary, stack, flow, args, error)
                            : call_children (stack, flow, args, error);
  attachment_unref (boundary);
  return result;
}

EbbArgs *
ebb_stack_call_modules (EbbModule *const *modules,
                        guint n_modules,
                        EbbStackFlow flow,
                        EbbArgs *args,
                        GError **error)
{
  EbbArgs *value = ebb_args_ref (args), *result = NULL;

  if (n_modules == 0)
    result = check_args (flow, args, error) ? pass (flow, args) : NULL;
  for (guint i = 0; i < n_modules; i++)
    {
      if (result != NULL)
        value = ebb_stack_take_args (flow, args, result);
      result = ebb_module_call (modules[i], value, error);
      g_clear_pointer (&value, ebb_args_unref);
      if (result == NULL)
        break;
    }
  g_clear_pointer (&value, ebb_args_unref);
  return result;
}

static EbbTensor *
call1_by_args (EbbModule *stack, EbbTensor *input, GError **error)
{
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (input);
  g_autoptr (EbbArgs) result = NULL;

  ebb_tensor_unref (input);
  result = ebb_stack_call (stack, EBB_STACK_PIPE, args, error);
  return ebb_module_take_only_tensor (stack, result, error);
}

/* Consumes @value. */
static EbbTensor *
call1_children (EbbModule *stack, EbbTensor *value, GError **error)
{
  for (guint i = 0; value != NULL && i < ebb_module_get_n_children (stack); i++)
    {
      g_autoptr (EbbModule) child = g_object_ref (ebb_module_peek_child (stack, i));
      EbbTensor *next = ebb_module_call1 (child, value, error);

      ebb_tensor_unref (value);
      value = next;
    }
  return value;
}

/* Consumes @input. */
static EbbTensor *
call1_within (Attachment *boundary, EbbModule *stack, EbbTensor *input, GError **error)
{
  EbbTensor *inside = boundary->funcs->enter (stack, input, boundary->user_data, error);
  g_autoptr (EbbTensor) last = NULL;
  g_autoptr (EbbTensor) outside = NULL;

  ebb_tensor_unref (input);
  if (inside == NULL)
    return NULL;
  last = call1_children (stack, inside, error);
  outside = boundary->funcs->leave (stack, last, boundary->user_data, error);
  return last != NULL ? g_steal_pointer (&outside) : NULL;
}

EbbTensor *
ebb_stack_call1 (EbbModule *stack, EbbTensor *input, GError **error)
{
  Attachment *boundary;
  EbbTensor *result;

  if (g_object_get_qdata (G_OBJECT (stack), get_quark (INTERCEPTOR)) != NULL)
    return call1_by_args (stack, input, error);
  if (ebb_module_get_n_children (stack) == 0)
    return input;
  boundary = hold (stack, BOUNDARY);
  result = boundary != NULL ? call1_within (boundary, stack, input, error) : call1_children (stack, input, error);
  attachment_unref (boundary);
  return result;
}

EbbTensor *
ebb_stack_call_blocks (EbbModule *stack, EbbTensor *x, const EbbBlockInputs *inputs, GError **error)
{
  g_autoptr (EbbArgs) args = NULL;
  g_autoptr (EbbArgs) result = NULL;

  if (ebb_block_inputs_is_empty (inputs))
    return ebb_stack_call1 (stack, x, error);
  args = ebb_block_inputs_to_args (inputs, x);
  ebb_tensor_unref (x);
  result = ebb_stack_call (stack, EBB_STACK_SHARE, args, error);
  return ebb_module_take_only_tensor (stack, result, error);
}
