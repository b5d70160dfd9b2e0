/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* What a watched thread does: phase, module and op, for its profiler and for those who watch its memory. */
#include "tensor/profile/profiler-private.h"

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

/* A call that doesn't say its phase has that of the call around it; @outermost if there is none. */
static void
inherit_phase (EbbPhase outermost)
{
  if (ebb_thread.phase == 0)
    ebb_thread.phase = (guint8) (outermost + 1);
}

EbbProfileMark
ebb_profile_open_range (const char *name,
                        EbbPhase phase)
{
  EbbProfileMark mark = make_mark ();

  ebb_thread.module_path = 0;
  ebb_thread.op_name = name;
  ebb_thread.phase = (guint8) (phase + 1);
  if (ebb_is_profiling ())
    mark.event = ebb_profiler_open (EBB_EVENT_RANGE, name);
  return mark;
}

EbbProfileMark
ebb_profile_open_module (const char *type_name,
                         GQuark path)
{
  EbbProfileMark mark = make_mark ();

  ebb_thread.module_path = path;
  ebb_thread.op_name = NULL;
  inherit_phase (EBB_PHASE_FORWARD);
  if (ebb_is_profiling ())
    mark.event = ebb_profiler_open (EBB_EVENT_MODULE, type_name);
  return mark;
}

EbbProfileMark
ebb_profile_open_op (const char *name,
                     gboolean needs_grad,
                     guint64 flop)
{
  EbbProfileMark mark = make_mark ();

  ebb_thread.op_name = name;
  inherit_phase (needs_grad ? EBB_PHASE_FORWARD : EBB_PHASE_OTHER);
  if (ebb_is_profiling ())
    mark.event = ebb_profiler_open_op (name, flop);
  return mark;
}

EbbProfileMark
ebb_profile_open_backward (const char *op_name,
                           GQuark path)
{
  EbbProfileMark mark = make_mark ();

  ebb_thread.module_path = path;
  ebb_thread.op_name = op_name;
  inherit_phase (EBB_PHASE_BACKWARD);
  if (ebb_is_profiling ())
    mark.event = ebb_profiler_open (EBB_EVENT_OP, op_name);
  return mark;
}

void
ebb_profile_close (EbbProfileMark mark)
{
  if (mark.event != 0)
    ebb_profiler_close (mark.event);
  if (ebb_thread.n_watchers == 0 || mark.watch != ebb_thread.watch)
    return;
  ebb_thread.module_path = mark.module_path;
  ebb_thread.op_name = mark.op_name;
  ebb_thread.phase = mark.phase;
}
