/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/checkpoint/sequential.h"

#include "tensor/error-private.h"
#include "wrap/checkpoint/segment-private.h"

static gboolean
check_segments (EbbModule *sequential,
                guint n_segments,
                guint n_children,
                GError **error)
{
  if (n_segments >= 1 && n_segments <= MAX (n_children, 1))
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "%u segments of a %s with %u modules: n_segments must be from 1 to %u", n_segments,
               ebb_module_get_type_name (sequential), n_children, MAX (n_children, 1));
  return FALSE;
}

static EbbArgs *
call_segment (EbbModule *sequential,
              guint first,
              EbbModule *const *modules,
              guint n_modules,
              EbbArgs *args,
              EbbCheckpointOptions *options,
              GError **error)
{
  EbbCheckpointTarget *segment = ebb_segment_new (sequential, first, modules, n_modules, EBB_STACK_PIPE, options);
  EbbArgs *result = ebb_segment_call (segment, args, error);

  ebb_checkpoint_target_unref (segment);
  return result != NULL ? ebb_stack_take_args (EBB_STACK_PIPE, args, result) : NULL;
}

/**
 * ebb_checkpoint_sequential_full:
 * @sequential: a module whose children are called one after another, as #EbbSequential
 * @n_segments: into how many segments to divide it, at least 1 and at most its children
 * @args: the first child's arguments
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Runs a sequence with every segment but the last checkpointed: only what the first child of each is given is kept
 * (Chen et al., "Training deep nets with sublinear memory cost", 2016). A segment has as many children as there are
 * divided by @n_segments, rounded down; the last one takes the rest. What a child gives goes to the next as in
 * #EbbSequential, whatever it is. A wrapper or hook on @sequential itself has no part in this.
 *
 * Returns: (transfer full) (nullable): the last child's result
 */
EbbArgs *
ebb_checkpoint_sequential_full (EbbModule *sequential,
                                guint n_segments,
                                EbbArgs *args,
                                EbbCheckpointOptions *options,
                                GError **error)
{
  g_autofree EbbModule **children = NULL;
  EbbArgs *value = NULL, *result = NULL;
  guint n_children, size, first = 0;

  if (!EBB_MAY_BEGIN (error, sequential, args))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (sequential), NULL);

  children = ebb_module_get_children (sequential, &n_children);
  if (check_segments (sequential, n_segments, n_children, error))
    value = ebb_args_ref (args);
  size = value != NULL ? n_children / n_segments : 0;
  for (guint i = 1; value != NULL && i < n_segments; i++, first += size)
    {
      EbbArgs *next = call_segment (sequential, first, children + first, size, value, options, error);

      ebb_args_unref (value);
      value = next;
    }
  if (value != NULL)
    {
      result = ebb_stack_call_modules (children + first, n_children - first, EBB_STACK_PIPE, value, error);
      ebb_args_unref (value);
    }
  for (guint i = 0; i < n_children; i++)
    g_object_unref (children[i]);
  return result;
}

/**
 * ebb_checkpoint_sequential:
 * @sequential: a module whose children are called one after another, as #EbbSequential
 * @n_segments: into how many segments to divide it, at least 1 and at most its children
 * @input: the first child's input
 * @error: return location for an error
 *
 * ebb_checkpoint_sequential_full() with the defaults, for one tensor in and one out.
 *
 * Returns: (transfer full) (nullable): the last child's output
 */
EbbTensor *
ebb_checkpoint_sequential (EbbModule *sequential,
                           guint n_segments,
                           EbbTensor *input,
                           GError **error)
{
  g_autoptr (EbbArgs) args = NULL;
  g_autoptr (EbbArgs) result = NULL;

  if (!EBB_MAY_BEGIN (error, sequential, input))
    return NULL;
  args = ebb_args_new_for_tensor (input);
  result = ebb_checkpoint_sequential_full (sequential, n_segments, args, NULL, error);
  return ebb_module_take_only_tensor (sequential, result, error);
}
