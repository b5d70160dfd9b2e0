/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The checksum of the tensors that a training leaves as they are, by which a state without them knows its base. */
#include "nn/state/training-state-private.h"

#include "nn/args-private.h"
#include "nn/optim/optimizer-private.h"
#include "nn/state/state-dict-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/dry-run.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/tensor-private.h"
#include "tensor/util/checksum-private.h"

#include <string.h>

static guint64
hash_name (const char *name,
           EbbDType dtype)
{
  return ebb_checksum_of (name, strlen (name)) ^ (guint64) dtype << 56;
}

gboolean
ebb_training_base_add (guint64 *sum,
                       const char *name,
                       EbbTensor *tensor,
                       const EbbTrainingBasePart *part,
                       GError **error)
{
  const gsize size = ebb_dtype_get_size (tensor->view.dtype);
  const guint64 seed = hash_name (name, tensor->view.dtype);
  g_autoptr (EbbTensor) alias = ebb_tensor_alias (tensor);
  g_autoptr (EbbTensor) contiguous = ebb_contiguous (alias, error);
  g_autoptr (EbbTensor) host = contiguous != NULL ? ebb_to_device (contiguous, ebb_device_get_cpu (), error) : NULL;
  const char *data;
  gint64 n;

  if (host == NULL)
    return FALSE;
  data = ebb_tensor_get_data (host, error);
  if (data == NULL && part->begin < part->end)
    return FALSE;
  for (gint64 at = part->begin; at < part->end; at += n)
    {
      const gint64 row = at / part->row, column = at % part->row;

      n = MIN (part->row - column, part->end - at);
      *sum += ebb_checksum_sum (seed, data + (gsize) (at - part->begin) * size, size,
                                row * part->stride + part->first + column, n);
    }
  return TRUE;
}

static void
add_name (const char *name,
          EbbTensor *tensor,
          gpointer user_data)
{
  g_hash_table_add (user_data, g_strdup (name));
}

typedef struct
{
  GHashTable *moved;
  GHashTable *names;
} Noting;

static void
add_moved_name (const char *name,
                EbbTensor *tensor,
                gpointer user_data)
{
  Noting *noting = user_data;

  if (g_hash_table_contains (noting->moved, tensor))
    add_name (name, tensor, noting->names);
}

/* A parameter that the optimizer has moved was trained, though it may have been frozen since. */
GHashTable *
ebb_training_state_note_trained (EbbTrainingState *self)
{
  g_autoptr (GHashTable) moved = NULL;

  if (!self->trained_only || self->module == NULL)
    return self->trained;
  ebb_module_visit_state_part (self->module, EBB_STATE_TRAINED, NULL, add_name, self->trained);
  if (self->optimizer != NULL)
    {
      moved = ebb_optimizer_list_moved (self->optimizer);
      ebb_module_visit_state_part (self->module, EBB_STATE_FROZEN, NULL, add_moved_name,
                                   &(Noting){ moved, self->trained });
    }
  return self->trained;
}

void
ebb_training_state_add_trained (EbbTrainingState *self,
                                EbbArgs *tree,
                                GHashTable *names)
{
  GHashTableIter iter;
  gpointer name;

  if (!ebb_training_state_is_without_base (tree))
    return;
  g_hash_table_iter_init (&iter, names);
  while (g_hash_table_iter_next (&iter, &name, NULL))
    g_hash_table_add (self->trained, g_strdup (name));
}

gboolean
ebb_training_state_is_without_base (EbbArgs *tree)
{
  return ebb_args_find (tree, "base") >= 0;
}

gboolean
ebb_training_state_check_base (EbbTrainingState *self,
                               EbbArgs *tree,
                               const char *folder,
                               GError **error)
{
  const int index = ebb_args_find (tree, "base");

  if (index >= 0 && !(self->trained_only && self->module != NULL))
    ebb_error_set (error, EBB_ERROR_STATE,
                   "the state saved in %s has only the weights that were trained: load it with trained-only", folder);
  else if (index >= 0 && !ebb_is_dry_run ()
           && (ebb_args_get_value_kind (tree, (guint) index) != EBB_VALUE_INT
               || (guint64) ebb_args_get_int (tree, (guint) index) != self->base))
    ebb_error_set (error, EBB_ERROR_STATE,
                   "the state saved in %s is of a training over another base: its frozen weights are not those of this "
                   "model",
                   folder);
  else
    return TRUE;
  return FALSE;
}
