/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/autograd/autograd.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/autograd/leaf-hook-private.h"
#include "tensor/object-private.h"
#include "tensor/autograd/rematerialization-private.h"
#include "tensor/thread-private.h"

#include <string.h>

/* One backward pass. The nodes that have gradients waiting lie in a heap with the greatest number on top. */

typedef struct
{
  EbbTensor *tensor; /* whose gradient is wanted */
  EbbTensor *grad;
} Capture;

typedef struct _Fresh Fresh;

struct _Fresh
{
  Fresh *next;
  EbbTensor *leaf;
};

#define HEAP_SIZE 32 /* of most passes: how many nodes wait at one time */

typedef struct
{
  EbbNode **heap; /* NULL: small_heap, which is enough so far */
  EbbNode *small_heap[HEAP_SIZE];
  guint n_heap, heap_size;
  Capture *captures; /* NULL: leaves take their gradients */
  guint n_captures;
  GHashTable *needed;    /* with captures: the nodes that lead to one */
  Fresh *fresh;          /* leaves that got their first gradient in this pass */
  EbbLeafCounts *counts; /* NULL: no leaf has a hook */
  gboolean retain_graph;
} Task;

/* -- heap ---------------------------------------------------------------------------------------------------------- */

static void
heap_grow (Task *task)
{
  if (task->heap == NULL)
    {
      task->heap = task->small_heap;
      task->heap_size = HEAP_SIZE;
      return;
    }
  task->heap_size *= 2;
  if (task->heap == task->small_heap)
    {
      task->heap = g_new (EbbNode *, task->heap_size);
      memcpy (task->heap, task->small_heap, sizeof task->small_heap);
    }
  else
    task->heap = g_renew (EbbNode *, task->heap, task->heap_size);
}

static void
heap_push (Task *task,
           EbbNode *node)
{
  guint i = task->n_heap++;

  if (G_UNLIKELY (i == task->heap_size))
    heap_grow (task);
  for (; i > 0 && task->heap[(i - 1) / 2]->sequence < node->sequence; i = (i - 1) / 2)
    task->heap[i] = task->heap[(i - 1) / 2];
  task->heap[i] = ebb_node_ref (node);
}

static EbbNode *
heap_pop (Task *task)
{
  EbbNode *top = task->heap[0], *last = task->heap[--task->n_heap];
  guint i = 0, child;

  for (; (child = 2 * i + 1) < task->n_heap; i = child)
    {
      if (child + 1 < task->n_heap && task->heap[child + 1]->sequence > task->heap[child]->sequence)
        child++;
      if (task->heap[child]->sequence <= last->sequence)
        break;
      task->heap[i] = task->heap[child];
    }
  task->heap[i] = last;
  return top;
}

/* -- gradients ----------------------------------------------------------------------------------------------------- */

static gboolean
add_into (EbbTensor *sum,
          EbbTensor *grad,
          EbbTensor *output,
          GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_ADD_SCALED);
  launch.params.add_scaled.alpha = 1;
  launch.params.add_scaled.beta = 1;
  ebb_launch_input (&launch, sum);
  ebb_launch_input (&launch, grad);
  ebb_launch_output (&launch, output);
  return ebb_launch (sum->storage->device, &launch, error);
}

/* Takes @grad over; @sum owns what was there. */
static gboolean
accumulate (EbbTensor **sum,
            EbbTensor *grad,
            GError **error)
{
  EbbTensor *target = NULL;
  gboolean ok;

  if (*sum == NULL)
    {
      *sum = grad;
      return TRUE;
    }
  if (ebb_tensor_is_unshared (*sum) && ebb_view_is_contiguous (&(*sum)->view))
    target = ebb_tensor_ref (*sum);
  else if (ebb_tensor_is_unshared (grad) && ebb_view_is_contiguous (&grad->view))
    target = ebb_tensor_ref (grad);
  else
    target = ebb_tensor_new_uninitialized (grad->view.shape, (guint) grad->view.n_dims, grad->view.dtype,
                                           grad->storage->device, error);
  ok = target != NULL && add_into (*sum, grad, target, error);
  ebb_tensor_unref (grad);
  if (!ok)
    {
      g_clear_pointer (&target, ebb_tensor_unref);
      return FALSE;
    }
  ebb_tensor_unref (*sum);
  *sum = target;
  return TRUE;
}

/* A leaf takes the tensor itself as its gradient where nobody else holds it. */
static gboolean
accumulate_leaf (Task *task,
                 EbbTensor *leaf,
                 EbbTensor *grad,
                 GError **error)
{
  gboolean ok = TRUE;
  Fresh *fresh;

  if (grad == leaf->grad)
    {
      ebb_tensor_unref (grad);
      return TRUE;
    }
  if (G_UNLIKELY (!ebb_shapes_equal (&leaf->view, &grad->view)))
    {
      g_autofree char *a = ebb_tensor_shape_to_string (grad);
      g_autofree char *b = ebb_tensor_shape_to_string (leaf);

      ebb_error_set (error, EBB_ERROR_SHAPE, "backward gave a gradient of shape %s for a tensor of shape %s", a, b);
      ebb_tensor_unref (grad);
      return FALSE;
    }
  if (leaf->grad != NULL)
    {
      ok = add_into (leaf->grad, grad, leaf->grad, error);
      ebb_tensor_unref (grad);
      return ok;
    }
  if (ebb_tensor_is_unshared (grad) && ebb_view_is_contiguous (&grad->view)
      && grad->storage->size == ebb_tensor_get_n_bytes (grad))
    leaf->grad = grad;
  else
    {
      leaf->grad = ebb_tensor_convert (grad, grad->view.dtype, error);
      ebb_tensor_unref (grad);
      if (leaf->grad == NULL)
        return FALSE;
    }
  ebb_storage_set_purpose (leaf->grad->storage, EBB_PURPOSE_GRADIENT);
  fresh = ebb_object_new (Fresh);
  *fresh = (Fresh){ task->fresh, ebb_tensor_ref (leaf) };
  task->fresh = fresh;
  return TRUE;
}

/* A pass that fails leaves no half of a gradient where there was none; what was added to others stays. */
static void
finish_leaves (Task *task,
               gboolean ok)
{
  while (task->fresh != NULL)
    {
      Fresh *fresh = task->fresh;

      task->fresh = fresh->next;
      if (!ok && fresh->leaf->owner == NULL) /* an owner has put its own there meanwhile */
        g_clear_pointer (&fresh->leaf->grad, ebb_tensor_unref);
      ebb_tensor_unref (fresh->leaf);
      ebb_object_free (fresh, sizeof *fresh);
    }
}

static Capture *
find_capture (Task *task,
              EbbTensor *leaf)
{
  for (guint i = 0; i < task->n_captures; i++)
    if (task->captures[i].tensor == leaf)
      return &task->captures[i];
  return NULL;
}

/* The dtype in which @leaf takes @grad: its own. But a parameter in bf16 has an f32 gradient if the first that comes is
 * in f32, as those of a loss, of an embedding and of norms are: beside a sum in f32 a rounded copy would only cost
 * memory, and the next sum would need f32 again. */
static EbbDType
get_leaf_dtype (Task *task,
                EbbTensor *leaf,
                EbbTensor *grad)
{
  if (leaf->view.dtype != EBB_DTYPE_BF16 || !leaf->is_parameter || task->captures != NULL)
    return leaf->view.dtype;
  if (leaf->grad != NULL)
    return leaf->grad->view.dtype;
  return grad->view.dtype == EBB_DTYPE_F32 ? EBB_DTYPE_F32 : EBB_DTYPE_BF16;
}

/* Brings @grad (taken over) to where @edge leads. */
static gboolean
deliver (Task *task,
         const EbbEdge *edge,
         EbbTensor *grad,
         GError **error)
{
  EbbDType wanted;
  Capture *capture;

  if (edge->leaf != NULL && !ebb_parameter_prepare (edge->leaf, error))
    {
      ebb_tensor_unref (grad);
      return FALSE;
    }
  wanted =
      edge->leaf ? get_leaf_dtype (task, edge->leaf, grad) : (EbbDType) edge->node->output_dtypes[edge->output_index];
  if (grad->view.dtype != wanted)
    {
      EbbTensor *converted = ebb_tensor_convert (grad, wanted, error);

      ebb_tensor_unref (grad);
      if (converted == NULL)
        return FALSE;
      grad = converted;
    }
  if (edge->leaf != NULL)
    {
      if (task->captures == NULL)
        return accumulate_leaf (task, edge->leaf, grad, error);
      capture = find_capture (task, edge->leaf);
      if (capture != NULL)
        return accumulate (&capture->grad, grad, error);
      ebb_tensor_unref (grad);
      return TRUE;
    }
  if (edge->node->task != task)
    {
      if (edge->node->task != NULL)
        {
          ebb_error_set (error, EBB_ERROR_GRAPH,
                         "%s: another backward pass is going through the same graph at this moment",
                         edge->node->op->name);
          ebb_tensor_unref (grad);
          return FALSE;
        }
      edge->node->task = task;
      heap_push (task, edge->node);
    }
  return accumulate (&edge->node->grads[edge->output_index], grad, error);
}

/* -- running ------------------------------------------------------------------------------------------------------- */

static gboolean
edge_is_needed (Task *task,
                const EbbEdge *edge)
{
  if (edge->node == NULL && edge->leaf == NULL)
    return FALSE;
  if (task->captures == NULL)
    return TRUE;
  if (edge->leaf != NULL)
    return find_capture (task, edge->leaf) != NULL;
  return g_hash_table_contains (task->needed, edge->node);
}

static void
release (EbbNode *node)
{
  ebb_node_release_leaves (node);
  node->released = node->n_saved > 0; /* what keeps nothing can be gone through again */
  for (guint i = 0; i < node->n_saved; i++)
    ebb_saved_tensor_clear (&node->saved[i]);
  if (node->rematerialization != NULL) /* a result that somebody holds on to keeps nothing else */
    {
      ebb_rematerialization_release (node->rematerialization);
      node->rematerialization = NULL;
    }
}

EbbTensor *
ebb_backward_take_saved (EbbBackward *ctx,
                         guint index)
{
  EbbNode *node = ctx->node;
  Task *task = node->task;

  if (!task->retain_graph)
    {
      node->released = TRUE;
      ebb_saved_tensor_clear (&node->saved[index]);
    }
  return g_steal_pointer (&ctx->saved[index]);
}

static void
drop_grads (EbbNode *node)
{
  for (guint i = 0; i < node->n_outputs; i++)
    g_clear_pointer (&node->grads[i], ebb_tensor_unref);
}

static gboolean
unpack_all (EbbBackward *ctx,
            EbbNode *node,
            GError **error)
{
  for (guint i = 0; i < node->n_saved; i++)
    if (!ebb_saved_tensor_is_empty (&node->saved[i]) && !(node->op->asks && node->saved[i].rematerialized != NULL))
      {
        ctx->saved[i] = ebb_saved_tensor_unpack (&node->saved[i], node->op, error);
        if (ctx->saved[i] == NULL)
          return FALSE;
      }
  return TRUE;
}

static gboolean
run_node (Task *task,
          EbbNode *node,
          GError **error)
{
  EbbBackward ctx = { .op = node->op,
                      .n_inputs = node->n_inputs,
                      .n_outputs = node->n_outputs,
                      .grad_outputs = node->grads,
                      .params = &node->params,
                      .extra_i = node->extra_i,
                      .extra_f = node->extra_f,
                      .owner = node->owner,
                      .node = node };
  gboolean ok;

  for (guint i = 0; i < node->n_outputs; i++)
    if (node->grads[i] != NULL)
      ctx.device = node->grads[i]->storage->device;
  for (guint i = 0; i < node->n_inputs; i++)
    if (edge_is_needed (task, &node->edges[i]))
      ctx.needs |= 1u << i;
  if (ctx.needs == 0) /* the gradient of an output was all that was wanted */
    return TRUE;
  if (node->released)
    return ebb_fail (error, EBB_ERROR_GRAPH,
                     "%s: its saved tensors were freed by the first backward pass; pass retain_graph to that pass",
                     node->op->name);

  ok = unpack_all (&ctx, node, error) && node->op->backward (&ctx, error);
  for (guint i = 0; i < node->n_saved; i++)
    if (ctx.saved[i] != NULL)
      ebb_tensor_unref (ctx.saved[i]);
  if (ok && !task->retain_graph)
    release (node);
  drop_grads (node);
  for (guint i = 0; i < node->n_inputs; i++)
    {
      EbbTensor *grad = ctx.grad_inputs[i];

      if (grad == NULL)
        continue;
      if (ok && (ctx.needs & (1u << i)))
        ok = deliver (task, &node->edges[i], grad, error);
      else
        ebb_tensor_unref (grad);
    }
  for (guint i = 0; ok && task->counts != NULL && i < node->n_inputs; i++)
    if (node->edges[i].leaf != NULL)
      ok = ebb_leaf_counts_use (task->counts, node->edges[i].leaf, error);
  return ebb_backward_run_after_node (ok ? error : NULL) && ok;
}

/* The gradients of captured non-leaf tensors are complete when their node comes up. */
static void
capture_outputs (Task *task,
                 EbbNode *node)
{
  for (guint i = 0; i < task->n_captures; i++)
    {
      EbbTensor *tensor = task->captures[i].tensor;

      if (tensor->node == node && node->grads[tensor->output_index] != NULL)
        task->captures[i].grad = ebb_tensor_ref (node->grads[tensor->output_index]);
    }
}

static gboolean
run_task (Task *task,
          GError **error)
{
  gboolean ok = TRUE;

  while (task->n_heap > 0)
    {
      EbbNode *node = heap_pop (task);

      if (ok)
        capture_outputs (task, node);
      if (ok && (task->needed == NULL || g_hash_table_contains (task->needed, node)))
        {
          EbbProfileMark mark = ebb_is_watched () ? ebb_profile_open_backward (node->op->name, node->module_path)
                                                  : EBB_NO_PROFILE_MARK;

          ok = run_node (task, node, error);
          ebb_profile_pop (mark);
        }
      drop_grads (node);
      node->task = NULL;
      ebb_node_unref (node);
    }
  return ok;
}

static int
compare_sequence (gconstpointer a,
                  gconstpointer b)
{
  guint64 x = (*(EbbNode *const *) a)->sequence, y = (*(EbbNode *const *) b)->sequence;

  return x < y ? -1 : x > y;
}

static void
collect (GPtrArray *all,
         GHashTable *seen,
         EbbNode *node)
{
  if (node != NULL && g_hash_table_add (seen, node))
    g_ptr_array_add (all, node);
}

/* Finds the nodes that must receive gradients so that all captures get theirs. Nodes are looked at from the first made
 * to the last, so those that a node leads to are known before it. */
static void
find_needed (Task *task,
             EbbTensor **outputs,
             guint n_outputs)
{
  g_autoptr (GPtrArray) all = g_ptr_array_new ();
  g_autoptr (GHashTable) seen = g_hash_table_new (NULL, NULL);

  task->needed = g_hash_table_new (NULL, NULL);
  for (guint i = 0; i < task->n_captures; i++)
    if (task->captures[i].tensor->node != NULL)
      g_hash_table_add (task->needed, task->captures[i].tensor->node);
  for (guint i = 0; i < n_outputs; i++)
    collect (all, seen, outputs[i]->node);
  for (guint i = 0; i < all->len; i++)
    {
      EbbNode *node = g_ptr_array_index (all, i);

      for (guint j = 0; j < node->n_inputs; j++)
        collect (all, seen, node->edges[j].node);
    }
  g_ptr_array_sort (all, compare_sequence);
  for (guint i = 0; i < all->len; i++)
    {
      EbbNode *node = g_ptr_array_index (all, i);

      for (guint j = 0; j < node->n_inputs; j++)
        if (edge_is_needed (task, &node->edges[j]))
          g_hash_table_add (task->needed, node);
    }
}

EbbTensor *
ebb_tensor_new_zeros_like (EbbTensor *tensor,
                           GError **error)
{
  EbbLaunch launch;
  EbbTensor *zeros = ebb_tensor_new_uninitialized (tensor->view.shape, (guint) tensor->view.n_dims, tensor->view.dtype,
                                                   tensor->storage->device, error);

  if (zeros == NULL)
    return NULL;
  ebb_launch_init (&launch, EBB_KERNEL_FILL);
  ebb_launch_output (&launch, zeros);
  if (!ebb_launch (tensor->storage->device, &launch, error))
    g_clear_pointer (&zeros, ebb_tensor_unref);
  return zeros;
}

/* The gradient that a pass begins with: @given, or 1 for a scalar. */
static EbbTensor *
make_seed (EbbTensor *output,
           EbbTensor *given,
           GError **error)
{
  EbbLaunch launch;
  EbbTensor *seed;

  if (given != NULL && !ebb_shapes_equal (&output->view, &given->view))
    return ebb_fail_null (error, EBB_ERROR_SHAPE, "backward: the gradient has shape %s, but its output has shape %s",
                          ebb_show_shape (given), ebb_show_shape (output));
  if (given != NULL)
    return ebb_tensor_alias (given);
  if (output->n_elements != 1)
    return ebb_fail_null (error, EBB_ERROR_SHAPE,
                          "backward: the output has shape %s; it must be a scalar, or its gradient be given",
                          ebb_show_shape (output));
  seed = ebb_tensor_new_uninitialized (output->view.shape, (guint) output->view.n_dims, output->view.dtype,
                                       output->storage->device, error);
  if (seed == NULL)
    return NULL;
  ebb_launch_init (&launch, EBB_KERNEL_FILL);
  launch.params.fill.value = 1;
  ebb_thread.computes_dry = output->storage->device->backend->host_memory; /* backward looks at it */
  ebb_launch_output (&launch, seed);
  if (!ebb_launch (output->storage->device, &launch, error))
    g_clear_pointer (&seed, ebb_tensor_unref);
  ebb_thread.computes_dry = FALSE;
  return seed;
}

/* -- entry --------------------------------------------------------------------------------------------------------- */

static gboolean
start (Task *task,
       EbbTensor **outputs,
       guint n_outputs,
       EbbTensor **grad_outputs,
       guint n_grad_outputs,
       GError **error)
{
  gboolean ok = TRUE;

  if (n_grad_outputs != 0 && n_grad_outputs != n_outputs)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "backward: %u gradients were given for %u outputs; give one for each output, or none",
                     n_grad_outputs, n_outputs);
  for (guint i = 0; i < n_outputs; i++)
    if (!ebb_tensor_needs_grad (outputs[i]))
      return ebb_fail (
          error, EBB_ERROR_GRAPH,
          "backward: output %u does not require a gradient: no parameter or input that does leads to it, or it "
          "was made with gradients off",
          i);
  if (task->captures != NULL)
    find_needed (task, outputs, n_outputs);
  /* A pass inside another one would not know what that one still reads. */
  else if (!task->retain_graph && ebb_modes.in_backward == 1)
    task->counts = ebb_leaf_counts_new (outputs, n_outputs);
  for (guint i = 0; ok && i < n_outputs; i++)
    {
      EbbTensor *output = outputs[i], *seed;
      EbbEdge edge = { .node = output->node,
                       .leaf = output->node ? NULL : output,
                       .output_index = output->output_index };

      seed = make_seed (output, n_grad_outputs ? grad_outputs[i] : NULL, error);
      ok = seed != NULL;
      if (ok && edge_is_needed (task, &edge))
        ok = deliver (task, &edge, seed, error);
      else if (ok)
        ebb_tensor_unref (seed);
    }
  return ok;
}

static gboolean
run_backward (Task *task,
              EbbTensor **outputs,
              guint n_outputs,
              EbbTensor **grad_outputs,
              guint n_grad_outputs,
              GError **error)
{
  EbbModes modes;
  EbbProfileMark mark = ebb_profile_push_range ("backward", EBB_PHASE_BACKWARD);
  gboolean ok;
  gpointer outer;
  GError *local = NULL;

  if (G_UNLIKELY (ebb_modes.observers != NULL))
    ebb_thread_touch (EBB_TOUCH_EVERYTHING);
  /* Backward is no forward: nothing is recorded, cast, watched or stopped, wherever it was called from. */
  modes = ebb_modes_enter_internal ();
  ebb_modes.in_backward++;
  outer = ebb_backward_begin_pass ();
  ok = start (task, outputs, n_outputs, grad_outputs, n_grad_outputs, &local);
  if (ok)
    ok = run_task (task, &local);
  else
    while (task->n_heap > 0)
      {
        EbbNode *node = heap_pop (task);

        drop_grads (node);
        node->task = NULL;
        ebb_node_unref (node);
      }
  if (!ebb_backward_end_pass (outer, ok ? &local : NULL))
    ok = FALSE;
  if (--ebb_modes.in_backward == 0 && !ebb_backward_run_at_end (ok ? &local : NULL))
    ok = FALSE;
  ebb_modes_leave (&modes);
  ebb_profile_pop (mark);
  if (task->heap != task->small_heap)
    g_free (task->heap);
  g_clear_pointer (&task->counts, ebb_leaf_counts_free);
  g_clear_pointer (&task->needed, g_hash_table_unref);
  if (!ok && local == NULL)
    ebb_error_set (&local, EBB_ERROR_CALLBACK, "backward failed without saying why");
  if (local != NULL)
    g_propagate_error (error, local);
  return ok;
}

/**
 * ebb_tensor_backward:
 * @tensor: a scalar that was made by recorded ops
 * @error: return location for an error
 *
 * Computes the gradients of @tensor with respect to all leaves that require one and adds them to what these have. The
 * graph is used up.
 *
 * Returns: %FALSE with an error: leaves that had no gradient then have none, others may have got a part of theirs
 */
gboolean
ebb_tensor_backward (EbbTensor *tensor,
                     GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, tensor);
  return ebb_backward (&tensor, 1, NULL, 0, NULL, 0, FALSE, error);
}

/* Whether no error is set yet and none of @tensors is NULL, which sets one. */
static gboolean
all_given (const char *function,
           const char *name,
           EbbTensor **tensors,
           guint n_tensors,
           GError **error)
{
  for (guint i = 0; i < n_tensors; i++)
    if (!ebb_may_begin (error, function, name, (const gconstpointer[]){ tensors[i] }, 1))
      return FALSE;
  return error == NULL || *error == NULL;
}

static Capture *
make_captures (EbbTensor **inputs,
               guint n_inputs)
{
  Capture *captures = g_new0 (Capture, n_inputs);

  for (guint i = 0; i < n_inputs; i++)
    captures[i].tensor = inputs[i];
  return captures;
}

/* Tensors that come twice among the inputs share the first one's gradient. */
static void
share_captures (Task *task)
{
  for (guint i = 0; i < task->n_captures; i++)
    for (guint j = 0; task->captures[i].grad == NULL && j < i; j++)
      if (task->captures[j].tensor == task->captures[i].tensor && task->captures[j].grad != NULL)
        task->captures[i].grad = ebb_tensor_ref (task->captures[j].grad);
}

/**
 * ebb_backward:
 * @outputs: (array length=n_outputs): what to differentiate
 * @n_outputs: how many
 * @grad_outputs: (array length=n_grad_outputs) (nullable): the gradient of each output
 * @n_grad_outputs: @n_outputs, or 0 if all outputs are scalars, whose gradient is then 1
 * @inputs: (array length=n_inputs) (nullable): leaves whose gradients are wanted; %NULL for all
 * @n_inputs: how many
 * @retain_graph: whether the graph can be gone through again
 * @error: return location for an error
 *
 * Computes gradients and adds them to those that the leaves have.
 *
 * Returns: %FALSE with an error: leaves that had no gradient then have none, others may have got a part of theirs
 */
gboolean
ebb_backward (EbbTensor **outputs,
              guint n_outputs,
              EbbTensor **grad_outputs,
              guint n_grad_outputs,
              EbbTensor **inputs,
              guint n_inputs,
              gboolean retain_graph,
              GError **error)
{
  Task task = { .retain_graph = retain_graph };
  gboolean ok;

  if (!all_given (G_STRFUNC, "an output", outputs, n_outputs, error)
      || !all_given (G_STRFUNC, "an input", inputs, n_inputs, error)
      || !all_given (G_STRFUNC, "a gradient of an output", grad_outputs, n_grad_outputs, error))
    return FALSE;
  if (ebb_is_stopped ())
    return TRUE;
  if (n_inputs > 0)
    {
      task.captures = make_captures (inputs, n_inputs);
      task.n_captures = n_inputs;
    }
  ok = run_backward (&task, outputs, n_outputs, grad_outputs, n_grad_outputs, error);
  for (guint i = 0; i < task.n_captures; i++)
    {
      EbbTensor *grad = task.captures[i].grad;

      for (guint j = 0; grad != NULL && j < i; j++)
        if (inputs[j] == inputs[i]) /* named twice, wanted once */
          g_clear_pointer (&grad, ebb_tensor_unref);
      if (grad != NULL && ok && ebb_parameter_prepare (inputs[i], error))
        ok = accumulate_leaf (&task, inputs[i], grad, error);
      else if (grad != NULL)
        {
          ok = FALSE;
          ebb_tensor_unref (grad);
        }
    }
  finish_leaves (&task, ok);
  g_free (task.captures);
  return ok;
}

/**
 * ebb_grad:
 * @outputs: (array length=n_outputs): what to differentiate
 * @n_outputs: how many
 * @inputs: (array length=n_inputs): with respect to what; leaves or results of recorded ops
 * @n_inputs: how many, at least one
 * @grad_outputs: (array length=n_grad_outputs) (nullable): the gradient of each output
 * @n_grad_outputs: @n_outputs, or 0 if all outputs are scalars, whose gradient is then 1
 * @retain_graph: whether the graph can be gone through again
 * @n_grads: (out): return location for the length of the result
 * @error: return location for an error
 *
 * Computes gradients and returns them; no leaf's own gradient is touched, and nothing is computed that the result does
 * not need. An input on which no output depends gets zeros.
 *
 * Returns: (transfer full) (array length=n_grads) (nullable): the gradient of each input
 */
EbbTensor **
ebb_grad (EbbTensor **outputs,
          guint n_outputs,
          EbbTensor **inputs,
          guint n_inputs,
          EbbTensor **grad_outputs,
          guint n_grad_outputs,
          gboolean retain_graph,
          guint *n_grads,
          GError **error)
{
  Task task = { .retain_graph = retain_graph, .n_captures = n_inputs };
  EbbTensor **grads = NULL;
  gboolean ok;

  *n_grads = 0;
  if (!all_given (G_STRFUNC, "an output", outputs, n_outputs, error)
      || !all_given (G_STRFUNC, "an input", inputs, n_inputs, error)
      || !all_given (G_STRFUNC, "a gradient of an output", grad_outputs, n_grad_outputs, error))
    return NULL;
  if (n_inputs == 0)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT, "grad: no inputs were given; name at least one");
  task.captures = make_captures (inputs, n_inputs);
  /* After the early stop of a recompute there is nothing to go through; the result is without data as well. */
  ok = ebb_is_stopped () || run_backward (&task, outputs, n_outputs, grad_outputs, n_grad_outputs, error);
  share_captures (&task);
  for (guint i = 0; ok && i < n_inputs; i++)
    if (task.captures[i].grad == NULL)
      {
        task.captures[i].grad = ebb_tensor_new_zeros_like (inputs[i], error);
        ok = task.captures[i].grad != NULL;
      }
  if (ok)
    {
      grads = g_new0 (EbbTensor *, n_inputs + 1);
      *n_grads = n_inputs;
    }
  for (guint i = 0; i < n_inputs; i++)
    if (ok)
      grads[i] = task.captures[i].grad;
    else if (task.captures[i].grad != NULL)
      ebb_tensor_unref (task.captures[i].grad);
  g_free (task.captures);
  return grads;
}

gboolean
ebb_backward_pass_captures (EbbNode *node)
{
  Task *task = node->task;

  return task != NULL && task->captures != NULL;
}
