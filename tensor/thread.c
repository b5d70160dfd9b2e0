/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/thread-private.h"

#include "tensor/autograd/autograd.h"
#include "tensor/error.h"

__thread EbbThread ebb_thread;

struct _EbbModeStack
{
  struct _EbbModeStack *next;
  guint8 flag, dtype;
  EbbSavedTensorHooks *hooks;
};

typedef struct _EbbModeStack ModeStack;

static ModeStack *
stack_push (ModeStack **stack)
{
  ModeStack *entry = g_new0 (ModeStack, 1);

  entry->next = *stack;
  *stack = entry;
  return entry;
}

static void
stack_pop (ModeStack **stack)
{
  ModeStack *entry = *stack;

  *stack = entry->next;
  g_free (entry);
}

/**
 * ebb_is_grad_enabled:
 *
 * Returns: %TRUE if ops that this thread runs are recorded for the backward pass
 */
gboolean
ebb_is_grad_enabled (void)
{
  return !ebb_thread.no_grad;
}

/**
 * ebb_push_grad_enabled:
 * @enabled: whether ops are recorded
 *
 * Switches recording on or off for this thread, until ebb_pop_grad_enabled().
 */
void
ebb_push_grad_enabled (gboolean enabled)
{
  stack_push (&ebb_thread.grad_stack)->flag = ebb_thread.no_grad;
  ebb_thread.no_grad = !enabled;
}

/**
 * ebb_pop_grad_enabled:
 *
 * Undoes the last ebb_push_grad_enabled() of this thread.
 */
void
ebb_pop_grad_enabled (void)
{
  g_return_if_fail (ebb_thread.grad_stack != NULL);

  ebb_thread.no_grad = ebb_thread.grad_stack->flag;
  stack_pop (&ebb_thread.grad_stack);
}

/**
 * ebb_push_autocast:
 * @enabled: whether products run in a lower precision
 * @dtype: the lower precision: %EBB_DTYPE_BF16
 *
 * Makes matrix products and attention of this thread run in @dtype, with the parameters and their gradients in f32,
 * until ebb_pop_autocast().
 */
void
ebb_push_autocast (gboolean enabled,
                   EbbDType dtype)
{
  ModeStack *entry;

  g_return_if_fail (!enabled || dtype == EBB_DTYPE_BF16);

  entry = stack_push (&ebb_thread.autocast_stack);
  entry->flag = ebb_thread.autocast;
  entry->dtype = ebb_thread.autocast_dtype;
  ebb_thread.autocast = enabled != FALSE;
  ebb_thread.autocast_dtype = (guint8) dtype;
}

/**
 * ebb_pop_autocast:
 *
 * Undoes the last ebb_push_autocast() of this thread.
 */
void
ebb_pop_autocast (void)
{
  g_return_if_fail (ebb_thread.autocast_stack != NULL);

  ebb_thread.autocast = ebb_thread.autocast_stack->flag;
  ebb_thread.autocast_dtype = ebb_thread.autocast_stack->dtype;
  stack_pop (&ebb_thread.autocast_stack);
}

/**
 * ebb_is_autocast_enabled:
 *
 * Returns: %TRUE if products of this thread run in a lower precision
 */
gboolean
ebb_is_autocast_enabled (void)
{
  return ebb_thread.autocast;
}

/**
 * ebb_push_saved_tensor_hooks:
 * @hooks: who stands at the door
 *
 * From now on, until ebb_pop_saved_tensor_hooks(), what autograd nodes of this thread keep goes through @hooks alone.
 */
void
ebb_push_saved_tensor_hooks (EbbSavedTensorHooks *hooks)
{
  g_return_if_fail (hooks != NULL);

  stack_push (&ebb_thread.hooks_stack)->hooks = ebb_thread.hooks;
  ebb_thread.hooks = g_object_ref (hooks);
}

/**
 * ebb_pop_saved_tensor_hooks:
 *
 * Undoes the last ebb_push_saved_tensor_hooks() of this thread.
 */
void
ebb_pop_saved_tensor_hooks (void)
{
  EbbSavedTensorHooks *gone = ebb_thread.hooks;

  g_return_if_fail (ebb_thread.hooks_stack != NULL);

  ebb_thread.hooks = ebb_thread.hooks_stack->hooks;
  stack_pop (&ebb_thread.hooks_stack);
  g_object_unref (gone);
}

/**
 * ebb_get_default_device:
 *
 * Returns: (transfer none): where this thread makes tensors and layers if no other device is asked for; the CPU, unless
 *   ebb_set_default_device() said otherwise
 */
EbbDevice *
ebb_get_default_device (void)
{
  return ebb_thread.default_device != NULL ? ebb_thread.default_device : ebb_device_get_cpu ();
}

/**
 * ebb_set_default_device:
 * @device: (nullable): a device, or %NULL for the CPU
 *
 * Says where this thread makes tensors from now on whose device is given as %NULL, tensors of given numbers, and the
 * parameters and buffers of layers. A layer starts with the same values wherever it is made. What only looks at memory
 * of the host, what is read from files, and what tokenizers and texts give stays on the CPU; nothing that is there
 * already moves.
 */
void
ebb_set_default_device (EbbDevice *device)
{
  ebb_thread.default_device = device;
}

void
ebb_thread_push_observer (EbbOpObserver *observer)
{
  observer->outer = ebb_thread.observers;
  ebb_thread.observers = observer;
}

void
ebb_thread_pop_observer (EbbOpObserver *observer)
{
  g_return_if_fail (ebb_thread.observers == observer);

  ebb_thread.observers = observer->outer;
}

void
ebb_thread_touch (const void *data)
{
  for (EbbOpObserver *observer = ebb_thread.observers; observer != NULL; observer = observer->outer)
    if (observer->touch != NULL)
      observer->touch (observer, data);
}

void
ebb_thread_report_depth (const char *name,
                         GError **error)
{
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "%s: call %u in each other, of modules and their wrappers; at most %d can be nested", name,
               ebb_thread.call_depth + 1, EBB_MAX_CALL_DEPTH);
}

gboolean
ebb_thread_begin_call (void)
{
  static guint64 last;

  if (ebb_thread.call != 0)
    return FALSE;
  ebb_thread.call = __atomic_add_fetch (&last, 1, __ATOMIC_RELAXED);
  return TRUE;
}

EbbThreadModes
ebb_thread_save_modes (void)
{
  return (EbbThreadModes){
    .no_grad = ebb_thread.no_grad,
    .autocast = ebb_thread.autocast,
    .autocast_dtype = ebb_thread.autocast_dtype,
    .stopped = ebb_thread.stopped,
    .hooks = ebb_thread.hooks,
    .observers = ebb_thread.observers,
    .frame = ebb_thread.frame,
    .rematerialization_log = ebb_thread.rematerialization_log,
    .call = ebb_thread.call,
    .default_device = ebb_thread.default_device,
    .divided = ebb_thread.divided,
  };
}

void
ebb_thread_restore_modes (const EbbThreadModes *modes)
{
  ebb_thread.no_grad = modes->no_grad;
  ebb_thread.autocast = modes->autocast;
  ebb_thread.autocast_dtype = modes->autocast_dtype;
  ebb_thread.stopped = modes->stopped;
  ebb_thread.hooks = modes->hooks;
  ebb_thread.observers = modes->observers;
  ebb_thread.frame = modes->frame;
  ebb_thread.rematerialization_log = modes->rematerialization_log;
  ebb_thread.call = modes->call;
  ebb_thread.default_device = modes->default_device;
  ebb_thread.divided = modes->divided;
}
