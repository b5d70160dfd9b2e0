/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Calls a leaf's hook once backward has added the last part of its gradient. */
#include "tensor/autograd/leaf-hook-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/util/lock-private.h"

#include <pthread.h>

typedef struct
{
  EbbLeafFunc func;
  gpointer data;
} Hook;

/* All threads' leaves; few threads and few calls, so one lock will do. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static GHashTable *hooks; /* of EbbTensor to Hook; NULL: none */

struct _EbbLeafCounts
{
  GHashTable *uses; /* of EbbTensor to a number */
};

void
ebb_leaf_set_hook (EbbTensor *leaf,
                   EbbLeafFunc func,
                   gpointer data)
{
  Hook *hook = g_new (Hook, 1);

  *hook = (Hook){ func, data };
  EBB_AUTO_LOCK (&lock);
  if (hooks == NULL)
    hooks = g_hash_table_new_full (NULL, NULL, NULL, g_free);
  g_hash_table_insert (hooks, leaf, hook);
}

void
ebb_leaf_clear_hook (EbbTensor *leaf,
                     gpointer data)
{
  Hook *hook;

  EBB_AUTO_LOCK (&lock);
  hook = hooks != NULL ? g_hash_table_lookup (hooks, leaf) : NULL;
  if (hook != NULL && hook->data == data)
    g_hash_table_remove (hooks, leaf);
  if (hooks != NULL && g_hash_table_size (hooks) == 0)
    g_clear_pointer (&hooks, g_hash_table_unref);
}

static gboolean
find_hook (EbbTensor *leaf,
           Hook *result)
{
  Hook *hook;

  EBB_AUTO_LOCK (&lock);
  hook = hooks != NULL ? g_hash_table_lookup (hooks, leaf) : NULL;
  if (hook != NULL)
    *result = *hook;
  return hook != NULL;
}

gboolean
ebb_leaf_notify (EbbTensor *leaf,
                 GError **error)
{
  Hook hook;

  return leaf->grad == NULL || !find_hook (leaf, &hook) || hook.func (leaf, hook.data, error);
}

static gboolean
any_hook (void)
{
  EBB_AUTO_LOCK (&lock);
  return hooks != NULL;
}

static void
count_edges (EbbLeafCounts *self,
             GPtrArray *nodes,
             GHashTable *seen,
             EbbNode *node)
{
  Hook hook;

  for (guint i = 0; i < node->n_inputs; i++)
    {
      const EbbEdge *edge = &node->edges[i];

      if (edge->node != NULL && g_hash_table_add (seen, edge->node))
        g_ptr_array_add (nodes, edge->node);
      if (edge->leaf != NULL && edge->leaf->owner == NULL && find_hook (edge->leaf, &hook))
        {
          guint n = GPOINTER_TO_UINT (g_hash_table_lookup (self->uses, edge->leaf));

          g_hash_table_insert (self->uses, edge->leaf, GUINT_TO_POINTER (n + 1));
        }
    }
}

EbbLeafCounts *
ebb_leaf_counts_new (EbbTensor **outputs,
                     guint n_outputs)
{
  g_autoptr (GPtrArray) nodes = NULL;
  g_autoptr (GHashTable) seen = NULL;
  EbbLeafCounts *self;

  if (!any_hook ())
    return NULL;
  nodes = g_ptr_array_new ();
  seen = g_hash_table_new (NULL, NULL);
  self = g_new (EbbLeafCounts, 1);
  self->uses = g_hash_table_new (NULL, NULL);
  for (guint i = 0; i < n_outputs; i++)
    if (outputs[i]->node != NULL && g_hash_table_add (seen, outputs[i]->node))
      g_ptr_array_add (nodes, outputs[i]->node);
  for (guint i = 0; i < nodes->len; i++)
    count_edges (self, nodes, seen, g_ptr_array_index (nodes, i));
  return self;
}

void
ebb_leaf_counts_free (EbbLeafCounts *self)
{
  g_hash_table_unref (self->uses);
  g_free (self);
}

gboolean
ebb_leaf_counts_use (EbbLeafCounts *self,
                     EbbTensor *leaf,
                     GError **error)
{
  guint n = GPOINTER_TO_UINT (g_hash_table_lookup (self->uses, leaf));

  if (n == 0)
    return TRUE;
  g_hash_table_insert (self->uses, leaf, GUINT_TO_POINTER (n - 1));
  return n > 1 || ebb_leaf_notify (leaf, error);
}
