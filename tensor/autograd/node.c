/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The life of a graph node: reference counting, recording, and freeing a graph without recursion. */
#include "tensor/autograd/autograd-private.h"

#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/object-private.h"
#include "tensor/autograd/rematerialization-private.h"
#include "tensor/thread-private.h"

#include <string.h>

static guint64 last_sequence;
/* The nodes that wait to be freed, chained through task, while a graph is taken apart. */
static __thread EbbNode *doomed __attribute__ ((tls_model ("initial-exec")));
static __thread gboolean dooming __attribute__ ((tls_model ("initial-exec")));

EbbNode *
ebb_node_ref (EbbNode *node)
{
  __atomic_add_fetch (&node->ref_count, 1, __ATOMIC_RELAXED);
  return node;
}

const EbbOp *
ebb_node_get_op (EbbNode *node)
{
  return node->op;
}

void
ebb_node_release_leaves (EbbNode *node)
{
  if (node->has_released_leaves)
    return;
  node->has_released_leaves = TRUE;
  for (guint i = 0; i < node->n_inputs; i++)
    if (node->edges[i].leaf != NULL)
      ebb_parameter_drop_use (node->edges[i].leaf);
}

static void
node_free (EbbNode *node)
{
  ebb_node_release_leaves (node);
  if (node->rematerialization != NULL)
    ebb_rematerialization_release (node->rematerialization);
  for (guint i = 0; i < node->n_saved; i++)
    ebb_saved_tensor_clear (&node->saved[i]);
  for (guint i = 0; i < node->n_inputs; i++)
    {
      if (node->edges[i].node != NULL)
        ebb_node_unref (node->edges[i].node);
      if (node->edges[i].leaf != NULL)
        ebb_tensor_unref (node->edges[i].leaf);
    }
  if (node->owner != NULL)
    g_object_unref (node->owner);
  ebb_object_free (node, node->size);
}

void
ebb_node_unref (EbbNode *node)
{
  if (__atomic_sub_fetch (&node->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;

  /* One after another: a chain of a million nodes must not need a million stack frames. */
  node->task = doomed;
  doomed = node;
  if (dooming)
    return;
  dooming = TRUE;
  while (doomed != NULL)
    {
      node = doomed;
      doomed = node->task;
      node_free (node);
    }
  dooming = FALSE;
}

static EbbNode *
node_new (EbbOpCall *call)
{
  gsize edges = sizeof (EbbEdge) * call->n_inputs, saved = sizeof (EbbSavedTensor) * call->n_saved;
  gsize grads = sizeof (EbbTensor *) * call->n_outputs;
  gsize size = sizeof (EbbNode) + edges + saved + grads;
  EbbNode *node = ebb_object_alloc (size);
  char *at = (char *) (node + 1);

  node->ref_count = 1;
  node->size = (guint16) size;
  node->n_inputs = (guint8) call->n_inputs;
  node->n_outputs = (guint8) call->n_outputs;
  node->n_saved = 0;
  node->released = node->has_released_leaves = FALSE;
  node->op = call->op;
  node->sequence = __atomic_add_fetch (&last_sequence, 1, __ATOMIC_RELAXED);
  node->task = NULL;
  node->rematerialization = NULL;
  node->owner = call->owner != NULL ? g_object_ref (call->owner) : NULL;
  node->module_path = ebb_thread.module_path;
  node->params = call->params;
  memcpy (node->extra_f, call->extra.f, sizeof node->extra_f);
  memcpy (node->extra_i, call->extra.i, sizeof node->extra_i);
  node->edges = (EbbEdge *) at;
  node->saved = (EbbSavedTensor *) (at + edges);
  node->grads = (EbbTensor **) (at + edges + saved);
  memset (node->grads, 0, grads);
  return node;
}

/* The operand that @saved stands in for; it may have been expanded after it was saved. */
static EbbTensor *
find_edge (EbbOpCall *call,
           EbbTensor *saved)
{
  for (guint i = 0; i < call->n_inputs; i++)
    if (call->inputs[i] == saved || (call->edges[i] != NULL && call->edges[i]->shadow == saved))
      return call->edges[i] != NULL && call->edges[i]->original != NULL ? call->edges[i]->original : call->edges[i];
  return NULL;
}

static void
link_edges (EbbNode *node,
            EbbOpCall *call)
{
  for (guint i = 0; i < call->n_inputs; i++)
    {
      EbbTensor *edge = call->edges[i];

      node->edges[i] = (EbbEdge){ 0 };
      if (edge == NULL)
        continue;
      if (edge->node != NULL)
        {
          node->edges[i].node = ebb_node_ref (edge->node);
          node->edges[i].output_index = edge->output_index;
        }
      else if (edge->requires_grad)
        {
          node->edges[i].leaf = ebb_tensor_ref (edge);
          ebb_parameter_use (edge);
        }
    }
}

static gboolean
save (EbbNode *node,
      EbbOpCall *call,
      gboolean outputs,
      GError **error)
{
  for (guint i = 0; i < call->n_saved; i++)
    {
      EbbTensor *saved = call->saved[i];

      if (((call->saved_is_output >> i) & 1) == (guint32) outputs
          && !ebb_saved_tensor_save (&node->saved[i], call->op, saved, saved ? find_edge (call, saved) : NULL, error))
        return FALSE;
    }
  return TRUE;
}

EbbNode *
ebb_node_begin (EbbOpCall *call,
                GError **error)
{
  EbbNode *node = node_new (call);

  link_edges (node, call);
  memset (node->saved, 0, sizeof (EbbSavedTensor) * call->n_saved);
  node->n_saved = (guint8) call->n_saved;
  if (save (node, call, FALSE, error))
    return node;
  ebb_node_unref (node);
  return NULL;
}

gboolean
ebb_node_end (EbbNode *node,
              EbbOpCall *call,
              gboolean ok,
              GError **error)
{
  ok = ok && save (node, call, TRUE, error);
  for (guint i = 0; ok && i < call->n_outputs; i++)
    {
      EbbTensor *output = call->outputs[i];

      node->output_dtypes[i] = (guint8) output->view.dtype;
      if ((call->non_differentiable & (1u << i)) || !ebb_dtype_is_floating_point (output->view.dtype))
        continue;
      output->node = ebb_node_ref (node);
      output->output_index = (guint16) i;
    }
  ebb_node_unref (node);
  return ok;
}
