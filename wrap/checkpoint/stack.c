/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/checkpoint/stack-private.h"

#include "nn/layers/module-list.h"
#include "nn/layers/sequential.h"
#include "tensor/error-private.h"
#include "wrap/checkpoint/wrapper.h"
#include "wrap/checkpoint/segment-private.h"

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
  if (segment == NULL || !ebb_segment_is_for (segment, modules, n, flow))
    {
      EbbCheckpointTarget *fresh = ebb_segment_new (stack, first, modules, n, flow, self->options);

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
  result = ebb_segment_call (segment, args, error);
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
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "%s is no stack of layers: it must be a ModuleList, as the child \"h\" of a Gpt, or a Sequential",
                   ebb_module_get_type_name (stack));
      return FALSE;
    }
  if (n_layers == 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: there are no layers to checkpoint",
                   ebb_module_get_type_name (stack));
      return FALSE;
    }
  if (n >= 1 && n <= n_layers)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s is %u in a %s of %u layers: it must be from 1 to %u",
               what, n, ebb_module_get_type_name (stack), n_layers, n_layers);
  return FALSE;
}

/**
 * ebb_checkpoint_wrap_uniform:
 * @stack: a #EbbModuleList whose model calls it by ebb_module_list_call_in_turn(), as the `h` of #EbbGpt, or an
 *   #EbbSequential
 * @n_layers_per_chunk: how many layers make one checkpoint, from 1 to all
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Divides the layers, in place, into chunks of @n_layers_per_chunk that are each one checkpoint: only what a chunk's
 * first layer is given is kept, and a chunk is recomputed as a whole (Megatron-LM's `recompute_method` "uniform"). The
 * last chunk takes what remains. With about the square root of the number of layers the least is kept and recomputed at
 * a time (Chen et al., "Training deep nets with sublinear memory cost", 2016). Layers may be wrapped themselves, which
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
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "%s is checkpointed in chunks of %u layers already; ebb_checkpoint_unwrap () takes that off",
                   ebb_module_get_type_name (stack), chunks->n_layers);
      return FALSE;
    }
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
 * Wraps each of the first @n_layers layers by ebb_checkpoint_wrapper(); the others keep all (Megatron-LM's
 * `recompute_method` "block"). For a model that almost fits: as few layers as need be are recomputed.
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

gboolean
ebb_checkpoint_stack_is_wrapped (EbbModule *stack)
{
  return ebb_stack_get_interceptor_data (stack) != NULL;
}

gboolean
ebb_checkpoint_stack_unwrap (EbbModule *stack)
{
  if (!ebb_checkpoint_stack_is_wrapped (stack))
    return FALSE;
  ebb_stack_set_interceptor (stack, NULL, NULL, NULL);
  return TRUE;
}

GPtrArray *
ebb_checkpoint_stack_get_segments (EbbModule *module)
{
  Chunks *chunks = ebb_stack_get_interceptor_data (module);

  return chunks != NULL ? chunks->segments : NULL;
}
