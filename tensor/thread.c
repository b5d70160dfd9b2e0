/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The state of a thread: scopes of its modes, the public functions that push and pop single ones, and what it does
 * while somebody watches. */
#include "tensor/thread-private.h"

#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/error.h"

__thread EbbThread ebb_thread;
__thread EbbModes ebb_modes;

/* -- scopes -------------------------------------------------------------------------------------------------------- */

static struct
{
  gpointer (*capture) (void);
  GDestroyNotify release;
} slots[EBB_MODES_MAX_SLOTS];
static guint n_slots;

guint
ebb_modes_register_slot (gpointer (*capture) (void),
                         GDestroyNotify release)
{
  g_assert (n_slots < EBB_MODES_MAX_SLOTS);
  slots[n_slots].capture = capture;
  slots[n_slots].release = release;
  return n_slots++;
}

EbbModes
ebb_modes_enter_internal (void)
{
  EbbModes modes = ebb_modes;

  modes.no_grad = TRUE;
  modes.autocast = FALSE;
  modes.stopped = 0;
  modes.hooks = NULL;
  modes.observers = NULL;
  modes.frame = 0;
  modes.rematerialization_log = NULL;
  return ebb_modes_enter (&modes);
}

void
ebb_modes_capture (EbbModes *modes,
                   EbbGenerator *generator)
{
  *modes = ebb_modes;
  modes->hooks = NULL;
  modes->observers = NULL;
  modes->saving = NULL;
  modes->rematerialization_log = NULL;
  modes->forks = NULL;
  modes->generator = g_object_ref (generator);
  for (guint i = 0; i < n_slots; i++)
    if (slots[i].capture != NULL)
      modes->slots[i] = slots[i].capture ();
}

void
ebb_modes_capture_rest (EbbModes *modes)
{
  for (guint i = 0; i < n_slots; i++)
    if (slots[i].capture != NULL && modes->slots[i] == NULL)
      modes->slots[i] = slots[i].capture ();
}

void
ebb_modes_release (EbbModes *modes)
{
  g_clear_object (&modes->generator);
  for (guint i = 0; i < n_slots; i++)
    if (slots[i].release != NULL)
      g_clear_pointer (&modes->slots[i], slots[i].release);
}

/* -- single modes -------------------------------------------------------------------------------------------------- */

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
  return !ebb_modes.no_grad;
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
  stack_push (&ebb_thread.grad_stack)->flag = ebb_modes.no_grad;
  ebb_modes.no_grad = !enabled;
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

  ebb_modes.no_grad = ebb_thread.grad_stack->flag;
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
  entry->flag = ebb_modes.autocast;
  entry->dtype = ebb_modes.autocast_dtype;
  ebb_modes.autocast = enabled != FALSE;
  ebb_modes.autocast_dtype = (guint8) dtype;
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

  ebb_modes.autocast = ebb_thread.autocast_stack->flag;
  ebb_modes.autocast_dtype = ebb_thread.autocast_stack->dtype;
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
  return ebb_modes.autocast;
}

/**
 * ebb_push_saved_tensor_hooks:
 * @hooks: they pack and unpack saved tensors
 *
 * From now on, until ebb_pop_saved_tensor_hooks(), tensors that autograd nodes of this thread save go through @hooks
 * alone.
 */
void
ebb_push_saved_tensor_hooks (EbbSavedTensorHooks *hooks)
{
  g_return_if_fail (hooks != NULL);

  stack_push (&ebb_thread.hooks_stack)->hooks = ebb_modes.hooks;
  ebb_modes.hooks = g_object_ref (hooks);
}

/**
 * ebb_pop_saved_tensor_hooks:
 *
 * Undoes the last ebb_push_saved_tensor_hooks() of this thread.
 */
void
ebb_pop_saved_tensor_hooks (void)
{
  EbbSavedTensorHooks *gone = ebb_modes.hooks;

  g_return_if_fail (ebb_thread.hooks_stack != NULL);

  ebb_modes.hooks = ebb_thread.hooks_stack->hooks;
  stack_pop (&ebb_thread.hooks_stack);
  g_object_unref (gone);
}

void
ebb_generator_push_default (EbbGenerator *generator,
                            gpointer owner)
{
  EbbGeneratorFork *fork = g_new (EbbGeneratorFork, 1);

  *fork = (EbbGeneratorFork){ ebb_modes.forks, g_object_ref (generator), owner };
  ebb_modes.forks = fork;
}

void
ebb_generator_pop_default (void)
{
  EbbGeneratorFork *fork = ebb_modes.forks;

  ebb_modes.forks = fork->outer;
  g_object_unref (fork->generator);
  g_free (fork);
}

void
ebb_generator_pop_forks_to (EbbGeneratorFork *fork)
{
  while (ebb_modes.forks != fork && ebb_modes.forks != NULL)
    ebb_generator_pop_default ();
}

void
ebb_thread_push_observer (EbbOpObserver *observer)
{
  observer->outer = ebb_modes.observers;
  ebb_modes.observers = observer;
}

void
ebb_thread_pop_observer (EbbOpObserver *observer)
{
  g_return_if_fail (ebb_modes.observers == observer);

  ebb_modes.observers = observer->outer;
}

void
ebb_thread_touch (const void *data)
{
  for (EbbOpObserver *observer = ebb_modes.observers; observer != NULL; observer = observer->outer)
    if (observer->touch != NULL)
      observer->touch (observer, data);
}

void
ebb_thread_report_depth (const char *name,
                         GError **error)
{
  ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT,
                 "%s: calls of modules and their wrappers are nested %u deep; the limit is %d", name,
                 ebb_thread.call_depth + 1, EBB_MAX_CALL_DEPTH);
}

gboolean
ebb_thread_begin_call (void)
{
  static guint64 last;

  if (ebb_modes.call != 0)
    return FALSE;
  ebb_modes.call = __atomic_add_fetch (&last, 1, __ATOMIC_RELAXED);
  return TRUE;
}

/* -- what a watched thread does ------------------------------------------------------------------------------------ */

void
ebb_thread_watch (void)
{
  static guint last;

  if (ebb_thread.n_watchers++ == 0)
    ebb_thread.watch = __atomic_add_fetch (&last, 1, __ATOMIC_RELAXED);
}

void
ebb_thread_unwatch (void)
{
  if (--ebb_thread.n_watchers > 0)
    return;
  ebb_thread.module_path = 0;
  ebb_thread.op_name = NULL;
  ebb_thread.phase = 0;
}

EbbPhase
ebb_get_phase (void)
{
  return ebb_thread.phase > 0 ? (EbbPhase) (ebb_thread.phase - 1) : EBB_PHASE_OTHER;
}

static EbbProfileMark
make_mark (void)
{
  return (EbbProfileMark){ .watch = ebb_thread.watch,
                           .module_path = ebb_thread.module_path,
                           .op_name = ebb_thread.op_name,
                           .phase = ebb_thread.phase };
}

/* The phase of a call that doesn't say it: that of the call around it; @outermost if there is none. */
static guint8
inherit_phase (EbbPhase outermost)
{
  return ebb_thread.phase != 0 ? ebb_thread.phase : (guint8) (outermost + 1);
}

static EbbProfileMark
open_event (EbbEventKind kind,
            const char *name,
            const char *op_name,
            GQuark path,
            guint8 phase)
{
  EbbProfileMark mark = make_mark ();

  ebb_thread.module_path = path;
  ebb_thread.op_name = op_name;
  ebb_thread.phase = phase;
  if (ebb_thread.observer != NULL)
    mark.event = ebb_thread.observer->open (ebb_thread.observer, kind, name);
  return mark;
}

EbbProfileMark
ebb_profile_open_range (const char *name,
                        EbbPhase phase)
{
  return open_event (EBB_EVENT_RANGE, name, name, 0, (guint8) (phase + 1));
}

EbbProfileMark
ebb_profile_open_module (const char *type_name,
                         GQuark path)
{
  return open_event (EBB_EVENT_MODULE, type_name, NULL, path, inherit_phase (EBB_PHASE_FORWARD));
}

EbbProfileMark
ebb_profile_open_op (const char *name,
                     gboolean needs_grad,
                     guint64 flop)
{
  EbbProfileMark mark = make_mark ();

  ebb_thread.op_name = name;
  ebb_thread.phase = inherit_phase (needs_grad ? EBB_PHASE_FORWARD : EBB_PHASE_OTHER);
  if (ebb_thread.observer != NULL)
    mark.event = ebb_thread.observer->open_op (ebb_thread.observer, name, flop);
  return mark;
}

EbbProfileMark
ebb_profile_open_backward (const char *op_name,
                           GQuark path)
{
  return open_event (EBB_EVENT_OP, op_name, op_name, path, inherit_phase (EBB_PHASE_BACKWARD));
}

void
ebb_profile_close (EbbProfileMark mark)
{
  if (mark.event != 0 && ebb_thread.observer != NULL)
    ebb_thread.observer->close (ebb_thread.observer, mark.event);
  if (ebb_thread.n_watchers == 0 || mark.watch != ebb_thread.watch)
    return;
  ebb_thread.module_path = mark.module_path;
  ebb_thread.op_name = mark.op_name;
  ebb_thread.phase = mark.phase;
}
