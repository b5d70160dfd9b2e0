/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The rows of a batch: which of them a rank's model computes in which part, and how much a part counts. */
#include "train/batch-private.h"

#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"

/* -- weights ------------------------------------------------------------------------------------------------------- */

static gboolean
check_rows (EbbTrainBatch *self, const char *key, EbbTensor *tensor, GError **error)
{
  if (ebb_tensor_get_n_dims (tensor) == 0)
    return ebb_fail (error, EBB_ERROR_SHAPE, "batch: \"%s\" has no dimension: its first one must be rows", key);
  if (self->n_rows == 0)
    self->n_rows = ebb_tensor_get_dim (tensor, 0);
  self->n_bytes += ebb_tensor_get_n_bytes (tensor);
  if (self->n_rows > 0 && ebb_tensor_get_dim (tensor, 0) == self->n_rows)
    return TRUE;
  return ebb_fail (error, EBB_ERROR_SHAPE,
                   "batch: \"%s\" has %" G_GINT64_FORMAT " rows, and another tensor %" G_GINT64_FORMAT
                   ": all need the same number of rows, 1 or more",
                   key, ebb_tensor_get_dim (tensor, 0), self->n_rows);
}

typedef struct
{
  EbbTrainBatch *batch;
  const char *key;
} Check;

static EbbTensor *
check_tensor (EbbTensor *tensor, gpointer user_data, GError **error)
{
  const Check *self = user_data;

  return check_rows (self->batch, self->key, tensor, error) ? ebb_tensor_ref (tensor) : NULL;
}

static gboolean
check_values (EbbTrainBatch *self, GError **error)
{
  for (guint i = 0; i < ebb_args_get_length (self->values); i++)
    {
      const char *key = ebb_args_get_key (self->values, i);
      g_autoptr (EbbArgs) one = NULL;
      g_autoptr (EbbArgs) same = NULL;

      if (key == NULL)
        return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                         "batch: value %u has no key: it must be a dictionary, with \"tokens\" and \"targets\" for "
                         "example",
                         i);
      if (ebb_args_get_value_kind (self->values, i) == EBB_VALUE_TENSOR)
        {
          g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (self->values, i);

          one = ebb_args_new_for_tensor (tensor);
        }
      else if (ebb_args_get_value_kind (self->values, i) == EBB_VALUE_ARGS)
        one = ebb_args_get_args (self->values, i);
      else
        continue;
      same = ebb_args_map_tensors (one, check_tensor, &(Check){ self, key }, error);
      if (same == NULL)
        return FALSE;
    }
  if (self->n_rows > 0)
    return TRUE;
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "batch: it has no tensor: give \"tokens\" and \"targets\", or what "
                   "the loss function reads");
}

static EbbTensor *
find_tensor (EbbArgs *values, const char *key)
{
  const int index = ebb_args_find (values, key);

  return index >= 0 && ebb_args_get_value_kind (values, (guint) index) == EBB_VALUE_TENSOR
             ? ebb_args_get_tensor (values, (guint) index)
             : NULL;
}

/* Each row counts by its targets that are not negative. */
static gboolean
weigh_targets (EbbTrainBatch *self, EbbTensor *targets, GError **error)
{
  g_autoptr (EbbTensor) wide = ebb_tensor_get_dtype (targets) == EBB_DTYPE_I64
                                   ? ebb_tensor_ref (targets)
                                   : ebb_cast (targets, EBB_DTYPE_I64, error);
  g_autoptr (EbbTensor) host = wide != NULL ? ebb_to_device (wide, ebb_device_get_cpu (), error) : NULL;
  g_autoptr (EbbTensor) contiguous = host != NULL ? ebb_contiguous (host, error) : NULL;
  const gint64 *data = contiguous != NULL ? ebb_tensor_get_data (contiguous, error) : NULL;
  const gint64 width = (gint64) ebb_tensor_get_n_elements (targets) / self->n_rows;

  if (data == NULL)
    return width == 0 && contiguous != NULL;
  for (gint64 row = 0; row < self->n_rows; row++, data += width)
    {
      gint64 count = 0;

      for (gint64 i = 0; i < width; i++)
        count += data[i] >= 0;
      self->weights[row + 1] = self->weights[row] + (double) count;
    }
  return TRUE;
}

static gboolean
weigh (EbbTrainBatch *self, GError **error)
{
  g_autoptr (EbbTensor) targets = find_tensor (self->values, "targets");
  const int index = ebb_args_find (self->values, "weight");
  double weight = (double) self->n_rows;

  self->weights = g_new0 (double, self->n_rows + 1);
  if (targets != NULL
      && (ebb_tensor_get_dtype (targets) == EBB_DTYPE_I64 || ebb_tensor_get_dtype (targets) == EBB_DTYPE_I32))
    return weigh_targets (self, targets, error);
  if (index >= 0 && ebb_args_get_value_kind (self->values, (guint) index) == EBB_VALUE_INT)
    weight = (double) ebb_args_get_int (self->values, (guint) index);
  else if (index >= 0 && ebb_args_get_value_kind (self->values, (guint) index) == EBB_VALUE_DOUBLE)
    weight = ebb_args_get_double (self->values, (guint) index);
  if (!(weight >= 0 && weight < 1e300))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "batch: its weight is %g: it must be finite, and 0 or more",
                     weight);
  for (gint64 row = 1; row <= self->n_rows; row++)
    self->weights[row] = weight * (double) row / (double) self->n_rows;
  return TRUE;
}

EbbTrainBatch *
ebb_train_batch_new (EbbArgs *values, GError **error)
{
  g_autoptr (EbbTrainBatch) self = g_new0 (EbbTrainBatch, 1);

  self->values = ebb_args_ref (values);
  return check_values (self, error) && weigh (self, error) ? g_steal_pointer (&self) : NULL;
}

void
ebb_train_batch_free (EbbTrainBatch *self)
{
  g_clear_pointer (&self->values, ebb_args_unref);
  g_free (self->weights);
  g_free (self);
}

double
ebb_train_batch_get_weight (const EbbTrainBatch *self)
{
  return self->weights[self->n_rows];
}

gint64
ebb_train_batch_count_tokens (const EbbTrainBatch *self)
{
  g_autoptr (EbbTensor) tokens = find_tensor (self->values, "tokens");

  return tokens != NULL ? ebb_tensor_get_n_elements (tokens) : self->n_rows;
}

/* -- parts --------------------------------------------------------------------------------------------------------- */

/* The shares lie in order, as evenly divided as possible. */
static void
divide (gint64 n_all, gint64 number, gint64 n_shares, gint64 *first, gint64 *n)
{
  *first = number * n_all / n_shares;
  *n = (number + 1) * n_all / n_shares - *first;
}

static gint64
divide_up (gint64 n, gint64 by)
{
  return (n + by - 1) / by;
}

guint
ebb_train_batch_count_parts (const EbbTrainBatch *self, const EbbTrainShare *share)
{
  const gint64 n_rows = divide_up (self->n_rows, share->n_models);

  return share->most_rows > 0 ? (guint) MAX (divide_up (n_rows, share->most_rows), 1) : 1;
}

typedef struct
{
  gint64 n_all, first, n;
  EbbDevice *device;
} Rows;

static EbbTensor *
take_rows (EbbTensor *tensor, gpointer user_data, GError **error)
{
  const Rows *self = user_data;
  g_autoptr (EbbTensor) part = NULL;

  if (self->n == self->n_all)
    return ebb_to_device (tensor, self->device, error);
  part = ebb_narrow (tensor, 0, self->first, self->n, error);
  return part != NULL ? ebb_to_device (part, self->device, error) : NULL;
}

gboolean
ebb_train_batch_take_part (const EbbTrainBatch *self,
                           const EbbTrainShare *share,
                           guint number,
                           EbbDevice *device,
                           EbbTrainPart *part,
                           GError **error)
{
  Rows rows = { .n_all = self->n_rows, .device = device };
  gint64 first, n;

  divide (self->n_rows, share->model, share->n_models, &first, &n);
  divide (n, number, ebb_train_batch_count_parts (self, share), &rows.first, &rows.n);
  rows.first += first;
  part->weight = self->weights[rows.first + rows.n] - self->weights[rows.first];
  rows.first = MIN (rows.first, self->n_rows - 1);
  rows.n = MAX (rows.n, 1);
  part->values = ebb_args_map_tensors (self->values, take_rows, &rows, error);
  return part->values != NULL;
}
