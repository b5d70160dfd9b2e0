/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/autograd/rematerialization-private.h"

#include "tensor/object-private.h"
#include "tensor/thread-private.h"

#include <string.h>

typedef struct
{
  EbbTensor *tensor;    /* as the kernel takes it, without graph; NULL: left out */
  EbbTensor *parameter; /* that @tensor is a copy of in a lower precision; NULL: none */
  guint version;
} Ingredient;

struct _EbbRecipe
{
  int ref_count;
  int n_tensors; /* that carry it */
  int is_empty;
  EbbRebuildFunc func;
  EbbRebuild how; /* owns its owner until it is empty */
  guint version;  /* of the result's storage */
  guint pinned;   /* the result could be written to from outside already when it was made */
  guint64 frame;  /* the checkpointed forward that it belongs to */
  guint n_ingredients;
  Ingredient ingredients[EBB_MAX_REBUILD];
};

struct _EbbDerived
{
  EbbRebuildFunc func;
  EbbRebuild how; /* owns its owner */
  EbbView view;   /* of the result; data unused */
  EbbDType dtype; /* that was kept: the result's, or a cast's */
  EbbDevice *device;
  guint n_operands;
  EbbSavedTensor operands[EBB_MAX_REBUILD];
};

/* -- recipe -------------------------------------------------------------------------------------------------------- */

static void
copy_how (EbbRebuild *to,
          const EbbRebuild *from)
{
  *to = *from;
  if (to->owner != NULL)
    g_object_ref (to->owner);
}

void
ebb_recipe_give_up (EbbRecipe *recipe)
{
  if (__atomic_exchange_n (&recipe->is_empty, TRUE, __ATOMIC_ACQ_REL) == FALSE)
    {
      for (guint i = 0; i < recipe->n_ingredients; i++)
        {
          ebb_tensor_unref (recipe->ingredients[i].tensor);
          ebb_tensor_unref (recipe->ingredients[i].parameter);
        }
      g_clear_object (&recipe->how.owner);
    }
  if (__atomic_sub_fetch (&recipe->ref_count, 1, __ATOMIC_ACQ_REL) == 0)
    ebb_object_free (recipe, sizeof *recipe);
}

void
ebb_recipe_put_down (EbbRecipe *recipe)
{
  if (__atomic_sub_fetch (&recipe->n_tensors, 1, __ATOMIC_ACQ_REL) == 0)
    ebb_recipe_give_up (recipe);
  else if (__atomic_sub_fetch (&recipe->ref_count, 1, __ATOMIC_ACQ_REL) == 0)
    ebb_object_free (recipe, sizeof *recipe);
}

void
ebb_tensor_share_recipe (EbbTensor *view,
                         EbbTensor *tensor)
{
  EbbRecipe *recipe = tensor->recipe;

  if (recipe == NULL || view->recipe != NULL)
    return;
  __atomic_add_fetch (&recipe->ref_count, 1, __ATOMIC_RELAXED);
  __atomic_add_fetch (&recipe->n_tensors, 1, __ATOMIC_RELAXED);
  view->recipe = recipe;
}

void
ebb_tensor_drop_recipe (EbbTensor *tensor,
                        guint64 frame)
{
  if (tensor->recipe != NULL && tensor->recipe->frame == frame)
    g_clear_pointer (&tensor->recipe, ebb_recipe_put_down);
}

/* @is_moved: what the operand is made from is less to keep than what it is moved to. */
static Ingredient
take_ingredient (EbbTensor *tensor,
                 EbbTensor *edge,
                 gboolean is_moved)
{
  Ingredient ingredient = { 0 };

  if (tensor == NULL)
    return ingredient;
  ingredient.version = tensor->storage->version;
  if (edge != NULL && edge->is_parameter && edge->shadow == tensor)
    ingredient.parameter = ebb_tensor_ref (edge);
  /* The graph that leads to an operand is the node's to hold, not the result's. */
  if (tensor->is_parameter || tensor->is_buffer || ingredient.parameter != NULL)
    ingredient.tensor = ebb_tensor_ref (tensor);
  else
    ingredient.tensor = ebb_tensor_alias (tensor);
  if (is_moved && ingredient.tensor != tensor)
    ebb_tensor_share_recipe (ingredient.tensor, tensor);
  return ingredient;
}

void
ebb_recipe_attach (EbbOpCall *call)
{
  EbbTensor *output = call->outputs[call->rebuild_output];
  EbbRecipe *recipe;

  if (output->node == NULL)
    return;
  recipe = ebb_object_new (EbbRecipe);
  recipe->ref_count = 2;
  recipe->n_tensors = 1;
  recipe->is_empty = FALSE;
  recipe->func = call->rebuild;
  copy_how (&recipe->how, &(EbbRebuild){ .params = call->params, .owner = call->owner });
  memcpy (recipe->how.extra_i, call->extra.i, sizeof recipe->how.extra_i);
  recipe->version = output->storage->version;
  recipe->pinned = output->storage->pinned;
  recipe->frame = ebb_thread.frame;
  recipe->n_ingredients = call->n_rebuild;
  for (guint i = 0; i < call->n_rebuild; i++)
    {
      const gboolean is_moved = call->op->kind == EBB_OP_COLLECTIVE;
      int from = call->rebuild_from[i];

      recipe->ingredients[i] = from >= 0 ? take_ingredient (call->inputs[from], call->edges[from], is_moved)
                                         : take_ingredient (call->outputs[~from], NULL, is_moved);
    }
  output->recipe = output->node->recipe = recipe;
}

static gboolean
is_intact (const Ingredient *ingredient)
{
  const EbbTensor *tensor = ingredient->tensor;

  return tensor == NULL
         || (tensor->storage->version == ingredient->version
             && (!tensor->storage->pinned || tensor->is_parameter || tensor->is_buffer));
}

/* Nothing was changed in place since, nor shown to somebody outside, whose changes are seen by nobody. */
static gboolean
is_true (const EbbRecipe *recipe,
         EbbTensor *made)
{
  if (recipe->is_empty || made->storage->version != recipe->version || made->storage->pinned != recipe->pinned)
    return FALSE;
  for (guint i = 0; i < recipe->n_ingredients; i++)
    if (!is_intact (&recipe->ingredients[i]))
      return FALSE;
  return TRUE;
}

static gboolean
decide (const EbbRecipe *recipe,
        EbbTensor *made)
{
  EbbRecipeLog *log = ebb_thread.recipe_log;
  guint8 derived;

  if (log != NULL && log->repeats)
    return !recipe->is_empty && log->next < log->derived->len && log->derived->data[log->next++];
  derived = is_true (recipe, made);
  if (log != NULL)
    g_byte_array_append (log->derived, &derived, 1);
  return derived;
}

/* -- derived ------------------------------------------------------------------------------------------------------- */

void
ebb_derived_free (EbbDerived *derived)
{
  for (guint i = 0; i < derived->n_operands; i++)
    ebb_saved_tensor_clear (&derived->operands[i]);
  g_clear_object (&derived->how.owner);
  ebb_object_free (derived, sizeof *derived);
}

gboolean
ebb_derived_save (EbbDerived **derived,
                  const EbbOp *op,
                  EbbTensor *tensor,
                  EbbTensor *made,
                  GError **error)
{
  const EbbRecipe *recipe = made->recipe;
  EbbDerived *self;

  *derived = NULL;
  /* What comes into a checkpointed forward from outside, or goes out, is an argument or a result there: a recompute has
   * no recipe of it. */
  if (recipe->frame != ebb_thread.frame || !ebb_view_is_contiguous (&tensor->view)
      || tensor->view.n_dims != made->view.n_dims
      || memcmp (tensor->view.shape, made->view.shape, sizeof (gint64) * (gsize) made->view.n_dims) != 0
      || !decide (recipe, made))
    return TRUE;
  self = ebb_object_new (EbbDerived);
  memset (self, 0, sizeof *self);
  self->func = recipe->func;
  copy_how (&self->how, &recipe->how);
  self->view = made->view;
  self->view.data = NULL;
  self->dtype = tensor->view.dtype;
  self->device = made->storage->device;
  for (guint i = 0; i < recipe->n_ingredients; i++)
    {
      const Ingredient *ingredient = &recipe->ingredients[i];
      EbbTensor *edge = ingredient->parameter;

      if (edge == NULL && ingredient->tensor != NULL && ingredient->tensor->recipe != NULL)
        edge = ingredient->tensor;
      self->n_operands++;
      if (!ebb_saved_tensor_save (&self->operands[i], op, ingredient->tensor, edge, error))
        {
          ebb_derived_free (self);
          return FALSE;
        }
    }
  *derived = self;
  return TRUE;
}

static gboolean
unpack_operands (EbbDerived *self,
                 const EbbOp *op,
                 EbbTensor **operands,
                 GError **error)
{
  for (guint i = 0; i < self->n_operands; i++)
    if (!ebb_saved_tensor_is_empty (&self->operands[i]))
      {
        operands[i] = ebb_saved_tensor_unpack (&self->operands[i], op, error);
        if (operands[i] == NULL)
          return FALSE;
      }
  return TRUE;
}

EbbTensor *
ebb_derived_make (EbbDerived *self,
                  const EbbOp *op,
                  GError **error)
{
  EbbTensor *operands[EBB_MAX_REBUILD] = { NULL };
  EbbTensor *made = NULL;
  gboolean ok = unpack_operands (self, op, operands, error);

  if (ok)
    made = ebb_tensor_new_uninitialized (self->view.shape, (guint) self->view.n_dims, self->view.dtype, self->device,
                                         error);
  ok = made != NULL && self->func (&self->how, operands, made, error);
  for (guint i = 0; i < self->n_operands; i++)
    ebb_tensor_unref (operands[i]);
  if (ok && made->view.dtype != self->dtype)
    {
      EbbTensor *cast = ebb_tensor_convert (made, self->dtype, error);

      ebb_tensor_unref (made);
      return cast;
    }
  if (!ok)
    g_clear_pointer (&made, ebb_tensor_unref);
  return made;
}
