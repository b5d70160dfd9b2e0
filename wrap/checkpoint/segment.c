/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/checkpoint/segment-private.h"

#include "wrap/checkpoint/frame-private.h"

typedef struct
{
  EbbCheckpointTarget *target; /* which owns this */
  EbbStackFlow flow;
} Segment;

static EbbArgs *
run (EbbArgs *args,
     gpointer user_data,
     GError **error)
{
  Segment *segment = user_data;
  g_autoptr (GPtrArray) modules = ebb_checkpoint_target_get_modules (segment->target, error);

  return modules != NULL
             ? ebb_stack_call_modules ((EbbModule *const *) modules->pdata, modules->len, segment->flow, args, error)
             : NULL;
}

static char *
describe (EbbModule *stack,
          guint first,
          guint n_modules)
{
  g_autofree char *path = ebb_module_get_path (stack);
  const char *name = *path != '\0' ? path : ebb_module_get_type_name (stack);

  return n_modules == 1 ? g_strdup_printf ("%s.%u", name, first)
                        : g_strdup_printf ("%s.%u to %s.%u", name, first, name, first + n_modules - 1);
}

EbbCheckpointTarget *
ebb_segment_new (EbbModule *stack,
                 guint first,
                 EbbModule *const *modules,
                 guint n_modules,
                 EbbStackFlow flow,
                 EbbCheckpointOptions *options)
{
  g_autofree char *name = describe (stack, first, n_modules);
  Segment *segment = g_new (Segment, 1);

  segment->flow = flow;
  segment->target = ebb_checkpoint_target_new_func (name, run, segment, g_free, modules, n_modules, options);
  return segment->target;
}

gboolean
ebb_segment_is_for (EbbCheckpointTarget *segment,
                    EbbModule *const *modules,
                    guint n_modules,
                    EbbStackFlow flow)
{
  if (((Segment *) segment->data)->flow != flow || segment->n_modules != n_modules)
    return FALSE;
  for (guint i = 0; i < n_modules; i++)
    {
      g_autoptr (EbbModule) module = ebb_module_weak_get (segment->modules[i]);

      if (module != modules[i])
        return FALSE;
    }
  return TRUE;
}

EbbArgs *
ebb_segment_call (EbbCheckpointTarget *segment,
                  EbbArgs *args,
                  GError **error)
{
  if (ebb_checkpoint_is_plain ())
    return run (args, segment->data, error);
  return ebb_checkpoint_frame_run (segment, NULL, args, error);
}
