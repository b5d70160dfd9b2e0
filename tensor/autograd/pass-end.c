/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Functions that a backward pass calls when a node is done or when the pass ends. */
#include "tensor/autograd/autograd-private.h"

typedef struct _AtEnd AtEnd;

struct _AtEnd
{
  AtEnd *next;
  EbbBackwardEndFunc func;
  gpointer data;
};

static __thread AtEnd *at_end __attribute__ ((tls_model ("initial-exec")));
static __thread AtEnd *after_node __attribute__ ((tls_model ("initial-exec")));

static void
add (AtEnd **list,
     EbbBackwardEndFunc func,
     gpointer data)
{
  AtEnd *entry = g_new (AtEnd, 1);

  *entry = (AtEnd){ *list, func, data };
  *list = entry;
}

/* Calls all of them and reports the first failure. */
static gboolean
run (AtEnd **list,
     GError **error)
{
  gboolean ok = TRUE;

  while (*list != NULL)
    {
      AtEnd *entry = *list;

      *list = entry->next;
      if (!entry->func (entry->data, ok ? error : NULL))
        ok = FALSE;
      g_free (entry);
    }
  return ok;
}

void
ebb_backward_call_at_end (EbbBackwardEndFunc func,
                          gpointer data)
{
  add (&at_end, func, data);
}

void
ebb_backward_call_after_node (EbbBackwardEndFunc func,
                              gpointer data)
{
  add (&after_node, func, data);
}

gboolean
ebb_backward_run_after_node (GError **error)
{
  return run (&after_node, error);
}

gpointer
ebb_backward_begin_pass (void)
{
  return g_steal_pointer (&after_node);
}

gboolean
ebb_backward_end_pass (gpointer outer,
                       GError **error)
{
  /* A failed pass may have dropped functions that a node was still to call. */
  gboolean ok = run (&after_node, error);

  after_node = outer;
  return ok;
}

gboolean
ebb_backward_run_at_end (GError **error)
{
  return run (&at_end, error);
}
