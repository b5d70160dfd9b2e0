/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Names for the memory of a model and of its optimizer, for memory timelines. */
#include "nn/optim/memory-names.h"

#include "nn/optim/optimizer-private.h"

/* Takes the list. */
static void
name_tensors (EbbMemoryTimeline *self,
              EbbTensor **tensors,
              guint n_tensors,
              char **names)
{
  for (guint i = 0; i < n_tensors; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (tensors[i]);

      ebb_memory_timeline_name_tensor (self, tensors[i], names[i]);
      if (grad != NULL)
        {
          g_autofree char *name = g_strconcat (names[i], " (gradient)", NULL);

          ebb_memory_timeline_name_tensor (self, grad, name);
        }
      ebb_tensor_unref (tensors[i]);
    }
  g_free (tensors);
}

/**
 * ebb_memory_timeline_name_module:
 * @self: a timeline that runs
 * @module: a module
 *
 * Names the memory of all parameters, of the gradients that they have now, and of all buffers, as
 * ebb_memory_timeline_name_tensor() does.
 */
void
ebb_memory_timeline_name_module (EbbMemoryTimeline *self,
                                 EbbModule *module)
{
  g_auto (GStrv) parameter_names = NULL;
  g_auto (GStrv) buffer_names = NULL;
  EbbTensor **tensors;
  guint n_tensors;

  g_return_if_fail (EBB_IS_MEMORY_TIMELINE (self));
  g_return_if_fail (EBB_IS_MODULE (module));

  parameter_names = ebb_module_get_parameter_names (module, TRUE);
  tensors = ebb_module_get_parameters (module, TRUE, &n_tensors);
  name_tensors (self, tensors, n_tensors, parameter_names);
  buffer_names = ebb_module_get_buffer_names (module, TRUE);
  tensors = ebb_module_get_buffers (module, TRUE, &n_tensors);
  name_tensors (self, tensors, n_tensors, buffer_names);
}

static void
name_state (EbbMemoryTimeline *self,
            EbbTensor *state,
            const char *parameter,
            const char *what)
{
  g_autofree char *name = g_strdup_printf ("%s (%s)", parameter, what);

  if (state != NULL)
    ebb_memory_timeline_name_tensor (self, state, name);
}

/**
 * ebb_memory_timeline_name_optimizer:
 * @self: a timeline that runs
 * @optimizer: an optimizer
 *
 * Names the memory of the optimizer's state, as the moments of each parameter: there is some after its first step.
 */
void
ebb_memory_timeline_name_optimizer (EbbMemoryTimeline *self,
                                    EbbOptimizer *optimizer)
{
  EbbOptimizerPrivate *priv;
  const EbbOptimizerKind *kind;

  g_return_if_fail (EBB_IS_MEMORY_TIMELINE (self));
  g_return_if_fail (EBB_IS_OPTIMIZER (optimizer));

  priv = ebb_optimizer_get_private (optimizer);
  kind = ebb_optimizer_get_kind (optimizer);
  for (guint i = 0; kind != NULL && i < priv->n_slots; i++)
    {
      name_state (self, priv->slots[i].master, priv->slots[i].name, "master copy");
      for (guint k = 0; kind->state_names[k] != NULL; k++)
        name_state (self, priv->slots[i].states[k], priv->slots[i].name, kind->state_names[k]);
    }
}
