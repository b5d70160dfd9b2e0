/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Names for the memory of a model and of its optimizer, for memory timelines. */
#include "nn/optim/memory-names.h"

#include "nn/optim/optimizer-private.h"
#include "tensor/profile/timeline-private.h"
#include "tensor/tensor-private.h"

static void
name_gradient (EbbMemoryTimeline *self,
               EbbTensor *gradient,
               const char *parameter)
{
  g_autofree char *name = g_strconcat (parameter, " (gradient)", NULL);

  ebb_memory_timeline_name_tensor (self, gradient, name);
}

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
        name_gradient (self, grad, names[i]);
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

static void
name_slot (EbbMemoryTimeline *self,
           const EbbOptimizerSlot *slot,
           const EbbOptimizerKind *kind)
{
  ebb_memory_timeline_name_tensor (self, slot->parameter, slot->name);
  if (slot->parameter->grad != NULL)
    name_gradient (self, slot->parameter->grad, slot->name);
  name_state (self, slot->master, slot->name, "master copy");
  for (guint i = 0; kind != NULL && kind->state_names[i] != NULL; i++)
    name_state (self, slot->states[i], slot->name, kind->state_names[i]);
}

/**
 * ebb_memory_timeline_name_optimizer:
 * @self: a timeline that runs
 * @optimizer: an optimizer
 *
 * Names the memory of the parameters that @optimizer moves, of the gradients that they have now, and of its state, as
 * the moments of each parameter: there is some after its first step. ebb_optimizer_step() does so itself.
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
  for (guint i = 0; i < priv->n_slots; i++)
    name_slot (self, &priv->slots[i], kind);
}

void
ebb_optimizer_name_memory (EbbOptimizer *self)
{
  const GPtrArray *timelines = ebb_timeline_list_running ();

  for (guint i = 0; timelines != NULL && i < timelines->len; i++)
    ebb_memory_timeline_name_optimizer (g_ptr_array_index (timelines, i), self);
}
