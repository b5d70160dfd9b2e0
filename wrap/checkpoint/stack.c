/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of several layers that are called one after another: chunks of a stack, segments of a sequence. */
#include "wrap/checkpoint/stack-private.h"

#include "nn/layers/module-list.h"
#include "nn/layers/sequential.h"
#include "nn/layers/stack-private.h"
#include "tensor/error-private.h"
#include "wrap/checkpoint/frame-private.h"

/* -- segments ------------------------------------------------------------------------------------------------------ */

/* Several modules that are checkpointed together: only the arguments of the first are saved. */
typedef struct
{
  EbbCheckpointTarget *target; /* which owns this */
  EbbStackFlow flow;
} Segment;

static EbbArgs *
segment_run (EbbArgs *args,
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

static EbbCheckpointTarget *
segment_new (EbbModule *stack,
             guint first,
             EbbModule *const *modules,
             guint n_modules,
             EbbStackFlow flow,
             EbbCheckpointOptions *options)
{
  g_autofree char *name = describe (stack, first, n_modules);
  Segment *segment = g_new (Segment, 1);

  segment->flow = flow;
  segment->target = ebb_checkpoint_target_new_func (name, segment_run, segment, g_free, modules, n_modules, options);
  return segment->target;
}

static gboolean
segment_is_for (EbbCheckpointTarget *segment,
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

static EbbArgs *
segment_call (EbbCheckpointTarget *segment,
              EbbArgs *args,
              GError **error)
{
  if (ebb_checkpoint_is_plain ())
    return segment_run (args, segment->data, error);
  return ebb_checkpoint_frame_run (segment, NULL, args, error);
}

/* -- chunks -------------------------------------------------------------------------------------------------------- */

/* The only interceptor that stacks ever have. It knows its layers as segments do, by weak references. */
typedef struct
{
  guint n_layers; /* of each chunk but the last */
  EbbCheckpointOptions *options;
  GPtrArray *segments; /* of EbbCheckpointTarget: made when they are first called, NULL until then */
} Chunks;

static void
chunks_free (gpointer data)
{
  Chunks *self = data;

  g_clear_object (&self->options);
  g_ptr_array_unref (self->segments);
  g_free (self);
}

static void
segment_unref (gpointer data)
{
  if (data != NULL)
    ebb_checkpoint_target_unref (data);
}

/* The chunk of @n layers from number @first on; made anew if the stack has other layers there meanwhile. */
static EbbCheckpointTarget *
get_segment (Chunks *self,
             EbbModule *stack,
             guint first,
             guint n,
             EbbStackFlow flow)
{
  g_autofree EbbModule **modules = g_new (EbbModule *, n);
  guint index = first / self->n_layers;
  EbbCheckpointTarget *segment;

  for (guint i = 0; i < n; i++)
    modules[i] = ebb_module_peek_child (stack, first + i);
  if (index >= self->segments->len)
    g_ptr_array_set_size (self->segments, (int) index + 1);
  segment = g_ptr_array_index (self->segments, index);
  if (segment == NULL || !segment_is_for (segment, modules, n, flow))
    {
      EbbCheckpointTarget *fresh = segment_new (stack, first, modules, n, flow, self->options);

      if (segment != NULL) /* the chunk's report goes on */
        {
          fresh->tally = segment->tally;
          fresh->tally.saved.now = fresh->tally.dropped.now = 0;
        }
      segment_unref (segment);
      segment = fresh;
      g_ptr_array_index (self->segments, index) = segment;
    }
  return ebb_checkpoint_target_ref (segment);
}

static EbbArgs *
call_chunk (EbbModule *stack,
            guint first,
            EbbStackFlow flow,
            EbbArgs *args,
            guint *n_done,
            gpointer user_data,
            GError **error)
{
  Chunks *self = user_data;
  EbbCheckpointTarget *segment;
  EbbArgs *result;

  if (ebb_checkpoint_is_plain ())
    return NULL;
  *n_done = MIN (self->n_layers - first % self->n_layers, ebb_module_get_n_children (stack) - first);
  segment = get_segment (self, stack, first, *n_done, flow);
  result = segment_call (segment, args, error);
  ebb_checkpoint_target_unref (segment);
  return result;
}

/* -- wrapping ------------------------------------------------------------------------------------------------------ */

static gboolean
check_stack (EbbModule *stack,
             guint n,
             const char *what,
             GError **error)
{
  guint n_layers = ebb_module_get_n_children (stack);

  if (!EBB_IS_MODULE_LIST (stack) && !EBB_IS_SEQUENTIAL (stack))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "%s is no stack of layers: it must be a ModuleList, as the child \"h\" of a Gpt, or a Sequential",
                     ebb_module_get_type_name (stack));
  if (n_layers == 0)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: there are no layers to checkpoint",
                     ebb_module_get_type_name (stack));
  return (n >= 1 && n <= n_layers)
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s is %u in a %s of %u layers: it must be from 1 to %u", what,
                      n, ebb_module_get_type_name (stack), n_layers, n_layers);
}

/**
 * ebb_checkpoint_wrap_uniform:
 * @stack: a #EbbModuleList whose model calls it by ebb_module_list_call_in_turn(), as the `h` of #EbbGpt, or an
 *   #EbbSequential
 * @n_layers_per_chunk: the number of layers in one checkpoint, from 1 to all
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Divides the layers, in place, into chunks of @n_layers_per_chunk that are each one checkpoint: only the arguments of
 * a chunk's first layer are saved, and a chunk is recomputed as a whole (Megatron-LM's `recompute_method` "uniform").
 * The last chunk takes the remaining layers. Memory is least with chunks of about the square root of the number of
 * layers (Chen et al., "Training deep nets with sublinear memory cost", 2016). Layers may be wrapped themselves, which
 * nests. A model that calls the layers of its list one by one is not affected.
 *
 * ebb_checkpoint_unwrap() on @stack takes it off.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if @stack is of another type, has no layers or is divided into
 *   chunks already, or if there are fewer layers than that
 */
gboolean
ebb_checkpoint_wrap_uniform (EbbModule *stack,
                             guint n_layers_per_chunk,
                             EbbCheckpointOptions *options,
                             GError **error)
{
  Chunks *chunks;
  gboolean is_first;

  if (!EBB_MAY_BEGIN (error, stack))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (stack), FALSE);

  is_first = !ebb_checkpoint_is_wrapped (stack);
  if (!check_stack (stack, n_layers_per_chunk, "n_layers_per_chunk", error))
    return FALSE;
  chunks = ebb_stack_get_interceptor_data (stack);
  if (chunks != NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "%s is checkpointed in chunks of %u layers already; ebb_checkpoint_unwrap () takes that off",
                     ebb_module_get_type_name (stack), chunks->n_layers);
  chunks = g_new (Chunks, 1);
  chunks->n_layers = n_layers_per_chunk;
  chunks->options = options != NULL ? g_object_ref (options) : ebb_checkpoint_options_new ();
  chunks->segments = g_ptr_array_new_with_free_func (segment_unref);
  ebb_stack_set_interceptor (stack, call_chunk, chunks, chunks_free);
  if (is_first)
    ebb_module_notify_activation_checkpointing (stack);
  return TRUE;
}

/**
 * ebb_checkpoint_wrap_block:
 * @stack: a #EbbModuleList or #EbbSequential
 * @n_layers: how many layers to wrap, from 1 to all
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Wraps each of the first @n_layers layers by ebb_checkpoint_wrapper(); the others save everything (Megatron-LM's
 * `recompute_method` "block"). A model that almost fits recomputes only as many layers as necessary.
 *
 * ebb_checkpoint_unwrap() on a layer takes its wrapper off.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if @stack is of another type or has fewer layers
 */
gboolean
ebb_checkpoint_wrap_block (EbbModule *stack,
                           guint n_layers,
                           EbbCheckpointOptions *options,
                           GError **error)
{
  if (!EBB_MAY_BEGIN (error, stack))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (stack), FALSE);

  if (!check_stack (stack, n_layers, "n_layers", error))
    return FALSE;
  for (guint i = 0; i < n_layers; i++)
    g_object_unref (ebb_checkpoint_wrapper (ebb_module_peek_child (stack, i), options, NULL));
  return TRUE;
}

GPtrArray *
ebb_checkpoint_stack_get_segments (EbbModule *module)
{
  Chunks *chunks = ebb_stack_get_interceptor_data (module);

  return chunks != NULL ? chunks->segments : NULL;
}

/* -- sequences ----------------------------------------------------------------------------------------------------- */

static gboolean
check_segments (EbbModule *sequential,
                guint n_segments,
                guint n_children,
                GError **error)
{
  return (n_segments >= 1 && n_segments <= MAX (n_children, 1))
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "n_segments is %u for a %s with %u modules; it must be from 1 to %u", n_segments,
                      ebb_module_get_type_name (sequential), n_children, MAX (n_children, 1));
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
  EbbCheckpointTarget *segment = segment_new (sequential, first, modules, n_modules, EBB_STACK_PIPE, options);
  EbbArgs *result = segment_call (segment, args, error);

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
 * Runs a sequence with every segment but the last checkpointed: only the arguments of each first child are saved
 * (Chen et al., "Training deep nets with sublinear memory cost", 2016). A segment has as many children as there are
 * divided by @n_segments, rounded down; the last one takes the rest. The result of a child, of any kind, goes to the
 * next as in #EbbSequential. A wrapper or hook on @sequential itself has no part in this.
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
