/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "common/train/batch.h"

/* Models' rows lie in order, as evenly divided as possible. */
static void
share (gint64 n_all,
       gint64 number,
       gint64 n_parts,
       gint64 *first,
       gint64 *n)
{
  *first = number * n_all / n_parts;
  *n = (number + 1) * n_all / n_parts - *first;
}

static gint64
divide_up (gint64 n,
           gint64 by)
{
  return (n + by - 1) / by;
}

void
batch_share_rows (const Trainer *trainer,
                  gint64 n_all,
                  gint64 *first,
                  gint64 *n_rows)
{
  share (n_all, trainer->ranks != NULL ? trainer->ranks->model : 0, trainer_get_n_models (trainer), first, n_rows);
}

/* Those of the model that has most. */
static gint64
count_parts (const Trainer *trainer,
             gint64 n_all)
{
  const gint64 n_rows = divide_up (n_all, trainer_get_n_models (trainer)), n_micro = trainer->options->micro_batch;

  return n_micro > 0 ? MAX (divide_up (n_rows, n_micro), 1) : 1;
}

gint64
batch_get_part_rows (const Trainer *trainer,
                     gint64 n_all)
{
  return divide_up (divide_up (n_all, trainer_get_n_models (trainer)), count_parts (trainer, n_all));
}

static gint64
count_targets (EbbTensor *targets,
               gint64 first,
               gint64 n)
{
  const gint64 context = ebb_tensor_get_dim (targets, 1);
  const gint64 *data = (const gint64 *) ebb_tensor_get_data (targets, NULL) + first * context;
  gint64 count = 0;

  for (gint64 i = 0; i < n * context; i++)
    count += data[i] >= 0;
  return count;
}

gboolean
batch_take (Batch *self,
            const Trainer *trainer,
            EbbDataset *dataset,
            gint64 n_rows,
            GError **error)
{
  *self = (Batch){ .n_parts = (guint) count_parts (trainer, n_rows) };
  if (!ebb_dataset_get_rows (dataset, n_rows, trainer->options->context, &self->tokens, &self->targets, &self->starts,
                             error))
    return FALSE;
  batch_share_rows (trainer, n_rows, &self->first, &self->n_rows);
  self->n_targets = count_targets (self->targets, 0, n_rows);
  return TRUE;
}

void
batch_clear (Batch *self)
{
  g_clear_pointer (&self->tokens, ebb_tensor_unref);
  g_clear_pointer (&self->targets, ebb_tensor_unref);
  g_clear_pointer (&self->starts, ebb_tensor_unref);
}

GArray *
batch_take_step (const Trainer *trainer,
                 gint64 *n_targets,
                 GError **error)
{
  const Options *options = trainer->options;
  g_autoptr (GArray) batches = g_array_new (FALSE, TRUE, sizeof (Batch));

  g_array_set_clear_func (batches, (GDestroyNotify) batch_clear);
  *n_targets = 0;
  for (int i = 0; i < options->accumulate; i++)
    {
      Batch batch;

      if (!batch_take (&batch, trainer, trainer->dataset, options->batch, error))
        {
          batch_clear (&batch);
          return NULL;
        }
      *n_targets += batch.n_targets;
      g_array_append_val (batches, batch);
    }
  if (*n_targets > 0)
    return g_steal_pointer (&batches);
  if (trainer->ranks != NULL)
    trainer->ranks->failure_shared = TRUE; /* all ranks take the same rows */
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "the rows of step %" G_GINT64_FORMAT
               " have no token to predict: they need tokens that are not special, or a larger --batch than %d",
               trainer->step + 1, options->batch);
  return NULL;
}

/* Rows @first to @first + @n on the device. */
static EbbTensor *
take_rows (const Trainer *trainer,
           EbbTensor *rows,
           gint64 first,
           gint64 n,
           GError **error)
{
  g_autoptr (EbbTensor) part = NULL;

  if (n == ebb_tensor_get_dim (rows, 0))
    return ebb_to_device (rows, trainer->device, error);
  part = ebb_narrow (rows, 0, first, n, error);
  return ebb_to_device (part, trainer->device, error);
}

gboolean
batch_take_part (const Batch *self,
                 const Trainer *trainer,
                 guint number,
                 BatchPart *part,
                 GError **error)
{
  const gint64 n_all = ebb_tensor_get_dim (self->tokens, 0);
  gint64 first, n;

  *part = (BatchPart){ 0 };
  share (self->n_rows, number, self->n_parts, &first, &n);
  first += self->first;
  part->n_targets = count_targets (self->targets, first, n);
  first = MIN (first, n_all - 1);
  n = MAX (n, 1);
  part->tokens = take_rows (trainer, self->tokens, first, n, error);
  part->targets = part->tokens != NULL ? take_rows (trainer, self->targets, first, n, error) : NULL;
  if (self->starts != NULL && part->targets != NULL)
    part->starts = take_rows (trainer, self->starts, first, n, error);
  return part->targets != NULL && (self->starts == NULL || part->starts != NULL);
}

void
batch_part_clear (BatchPart *self)
{
  g_clear_pointer (&self->tokens, ebb_tensor_unref);
  g_clear_pointer (&self->targets, ebb_tensor_unref);
  g_clear_pointer (&self->starts, ebb_tensor_unref);
}
