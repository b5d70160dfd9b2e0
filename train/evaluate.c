/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Measures the loss of a model on held-out data, batch by batch. */
#include "train/evaluate-private.h"

#include <math.h>

static gboolean
measure (EbbTrainPass *pass, EbbTrainSource *source, EbbDataset *data, double *loss, GError **error)
{
  const guint64 total = data != NULL ? (guint64) ebb_dataset_get_n_rows (data, source->context) : 0;
  double sum = 0, weight = 0;
  gint64 done = 0;

  if (data != NULL)
    g_object_set (data, "position", (gint64) 0, NULL);
  for (gint64 number = 0;; number++)
    {
      EbbTrainBatch *taken;
      g_autoptr (EbbTrainBatch) batch = NULL;

      if (!pass->notify (pass->notify_data, EBB_TRAINER_PHASE_EVALUATE, (guint64) done, total, error)
          || !ebb_train_source_take_measured (source, data, done, number, &taken, error))
        return FALSE;
      batch = taken;
      if (batch == NULL)
        break;
      if (!ebb_train_pass_measure (pass, batch, &sum, error))
        return FALSE;
      weight += ebb_train_batch_get_weight (batch);
      done += batch->n_rows;
      if (!ebb_train_ranks_poll (pass->ranks, error))
        return FALSE;
      if ((pass->ranks->agreed & EBB_TRAIN_CANCEL) != 0)
        return TRUE;
    }
  if (!ebb_train_ranks_sum (pass->ranks, &sum, 1, error))
    return FALSE;
  *loss = isnan (sum / weight) ? NAN : sum / weight; /* without a sign, which would mean nothing */
  return TRUE;
}

gboolean
ebb_train_evaluate (EbbTrainPass *pass, EbbTrainSource *source, EbbDataset *data, double *loss, GError **error)
{
  EbbGenerator *generator = ebb_generator_get_default ();
  const guint64 seed = ebb_generator_get_seed (generator), offset = ebb_generator_get_offset (generator);
  const gboolean was_training = ebb_module_get_training (pass->model);
  gboolean ok;

  *loss = NAN;
  ebb_module_set_training (pass->model, FALSE);
  ok = measure (pass, source, data, loss, error);
  ebb_module_set_training (pass->model, was_training);
  ebb_generator_set_state (generator, seed, offset);
  return ok;
}
