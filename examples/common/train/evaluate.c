/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Measures the model on held-out data. */
#include "common/train/evaluate.h"

#include <math.h>

static gboolean
measure (Trainer *self,
         double *loss,
         gboolean *is_stopped,
         GError **error)
{
  gint64 n_rows = ebb_dataset_get_n_rows (self->held_out, self->options->context);
  double sum = 0, n_all = 0;

  g_object_set (self->held_out, "position", (gint64) 0, NULL);
  for (gint64 done = 0; done < n_rows; done += self->options->batch)
    {
      double one;
      gint64 n;

      if (!trainer_measure (self, self->held_out, MIN (self->options->batch, n_rows - done), &one, &n, error))
        return FALSE;
      sum += one;
      n_all += (double) n;
      if (!trainer_poll (self, error))
        return FALSE;
      if (trainer_must_stop (self))
        {
          *is_stopped = TRUE;
          return TRUE;
        }
    }
  if (self->ranks != NULL && !ranks_sum (self->ranks, &sum, error))
    return FALSE;
  *loss = sum / n_all;
  if (isnan (*loss))
    *loss = NAN; /* without a sign, which would mean nothing */
  return TRUE;
}

static gboolean
measure_in_evaluation_mode (Trainer *self,
                            double *loss,
                            gboolean *is_stopped,
                            GError **error)
{
  EbbGenerator *generator = ebb_generator_get_default ();
  const guint64 seed = ebb_generator_get_seed (generator), offset = ebb_generator_get_offset (generator);
  gboolean ok;

  ebb_module_set_training (self->model, FALSE);
  ok = measure (self, loss, is_stopped, error);
  ebb_module_set_training (self->model, TRUE);
  ebb_generator_set_state (generator, seed, offset);
  return ok;
}

gboolean
evaluate_if_due (Trainer *self,
                 GError **error)
{
  const Options *options = self->options;
  Evaluation evaluation = { .step = self->step };
  const gboolean is_before = options->program->tunes && self->step == 0 && options->steps > 0;
  gboolean is_stopped = FALSE;

  if (self->held_out == NULL || (self->step % options->eval_every != 0 && self->step != options->steps))
    return TRUE;
  if (!measure_in_evaluation_mode (self, &evaluation.loss, &is_stopped, error))
    return FALSE;
  if (is_stopped)
    return TRUE;
  evaluation.is_best =
      !is_before && !isnan (evaluation.loss) && (self->best_step == 0 || evaluation.loss < self->best_loss);
  if (evaluation.is_best)
    {
      self->best_loss = evaluation.loss;
      self->best_step = self->step;
    }
  g_array_append_val (self->evaluations, evaluation);
  return !evaluation.is_best || options->save_best == NULL || trainer_save_weights (self, options->save_best, error);
}

double
evaluate_get_perplexity (double loss)
{
  return exp (loss);
}
