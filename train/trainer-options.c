/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The settings of a training: properties, and which of them contradict each other. */
#include "train/trainer-options-private.h"

#include "tensor/error-private.h"
#include "tensor/util/property-private.h"

#include <math.h>
#include <string.h>

typedef EbbTrainerSettings EbbTrainerOptionsPrivate;

G_DEFINE_TYPE_WITH_PRIVATE (EbbTrainerOptions, ebb_trainer_options, G_TYPE_OBJECT)

EbbTrainerSettings *
ebb_trainer_options_get_settings (EbbTrainerOptions *self)
{
  return ebb_trainer_options_get_instance_private (self);
}

/**
 * ebb_trainer_options_new:
 *
 * Makes settings with the defaults.
 *
 * Returns: (transfer full): the settings
 */
EbbTrainerOptions *
ebb_trainer_options_new (void)
{
  return g_object_new (EBB_TYPE_TRAINER_OPTIONS, NULL);
}

EbbTrainerOptions *
ebb_trainer_options_copy (EbbTrainerOptions *self)
{
  EbbTrainerOptions *copy = g_object_new (self != NULL ? G_OBJECT_TYPE (self) : EBB_TYPE_TRAINER_OPTIONS, NULL);
  guint n;
  g_autofree GParamSpec **specs = g_object_class_list_properties (G_OBJECT_GET_CLASS (copy), &n);

  for (guint i = 0; self != NULL && i < n; i++)
    {
      g_auto (GValue) value = G_VALUE_INIT;

      g_value_init (&value, specs[i]->value_type);
      g_object_get_property (G_OBJECT (self), specs[i]->name, &value);
      g_object_set_property (G_OBJECT (copy), specs[i]->name, &value);
    }
  return copy;
}

/* -- checks -------------------------------------------------------------------------------------------------------- */

static gboolean
check_numbers (const EbbTrainerSettings *self, GError **error)
{
  if (!(isfinite (self->epochs) && isfinite (self->clip)))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "trainer: epochs %g, clip %g: both must be finite",
                     self->epochs, self->clip);
  if (self->dtype == NULL || strcmp (self->dtype, "f32") == 0 || strcmp (self->dtype, "bf16") == 0)
    return TRUE;
  return ebb_fail (error, EBB_ERROR_DTYPE, "trainer: dtype \"%s\": it must be f32 or bf16", self->dtype);
}

static gboolean
check_lengths (const EbbTrainerSettings *self, GError **error)
{
  if (self->steps != EBB_TRAINER_NO_STEPS && self->epochs > 0)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "trainer: steps %" G_GINT64_FORMAT " and epochs %g: set one of both", self->steps, self->epochs);
  if (self->batch_size > 0 && self->micro_batch_size > self->batch_size)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "trainer: micro-batch-size %" G_GINT64_FORMAT " and batch-size %" G_GINT64_FORMAT
                     ": a part has at most the rows of its batch",
                     self->micro_batch_size, self->batch_size);
  return TRUE;
}

static gboolean
check_step_in_backward (const EbbTrainerSettings *self, EbbOptimizer *optimizer, GError **error)
{
  gboolean steps_in_backward = FALSE;

  if (optimizer != NULL)
    g_object_get (optimizer, "step-in-backward", &steps_in_backward, NULL);
  if (!steps_in_backward)
    return TRUE;
  if (self->clip > 0)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "trainer: clip %g and the optimizer's step-in-backward: the norm needs all gradients at once",
                     self->clip);
  if (self->accumulate > 1)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "trainer: accumulate %" G_GINT64_FORMAT " and the optimizer's step-in-backward: batches that are "
                     "summed need gradients that stay",
                     self->accumulate);
  if (self->micro_batch_size > 0 && (self->batch_size == 0 || self->micro_batch_size < self->batch_size))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "trainer: micro-batch-size %" G_GINT64_FORMAT " and the optimizer's step-in-backward: parts that "
                     "are summed need gradients that stay",
                     self->micro_batch_size);
  return TRUE;
}

/* The files may not exist yet: "a/b/" and "./a/b" are the same path. */
static gboolean
is_same_path (const char *a, const char *b)
{
  g_autofree char *one = a != NULL ? g_canonicalize_filename (a, NULL) : NULL;
  g_autofree char *other = b != NULL ? g_canonicalize_filename (b, NULL) : NULL;

  return one != NULL && g_strcmp0 (one, other) == 0;
}

static gboolean
check_files (const EbbTrainerSettings *self, GError **error)
{
  if (self->save_every > 0 && self->resume == NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "trainer: save-every %" G_GINT64_FORMAT " without resume: name the folder of the state by resume",
                     self->save_every);
  if (self->config != NULL && self->resume == NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "trainer: config without resume: the text is kept in the state, whose folder resume names");
  if (is_same_path (self->save_best, self->resume))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "trainer: save-best %s and resume %s: weights and states need folders of their own",
                     self->save_best, self->resume);
  return TRUE;
}

gboolean
ebb_trainer_settings_check (const EbbTrainerSettings *self, EbbOptimizer *optimizer, GError **error)
{
  return check_numbers (self, error) && check_lengths (self, error)
         && check_step_in_backward (self, optimizer, error) && check_files (self, error);
}

char *
ebb_trainer_settings_describe (const EbbTrainerSettings *self, gint64 steps, gboolean has_evaluation)
{
  const gint64 numbers[] = { self->batch_size, self->context, self->accumulate, self->micro_batch_size,
                             steps, self->evaluate_every, self->save_every, has_evaluation,
                             self->resume != NULL, self->save_best != NULL, self->log != NULL };
  GString *text = g_string_new (self->dtype);

  for (guint i = 0; i < G_N_ELEMENTS (numbers); i++)
    g_string_append_printf (text, " %" G_GINT64_FORMAT, numbers[i]);
  g_string_append_printf (text, " %.17g %.17g", self->epochs, self->clip);
  return g_string_free (text, FALSE);
}

/* -- object -------------------------------------------------------------------------------------------------------- */

static void
ebb_trainer_options_finalize (GObject *object)
{
  EbbTrainerSettings *self = ebb_trainer_options_get_settings (EBB_TRAINER_OPTIONS (object));

  g_clear_object (&self->schedule);
  g_clear_object (&self->budget);
  g_clear_object (&self->mesh);
  g_clear_object (&self->evaluate);
  g_free (self->dtype);
  g_free (self->save_best);
  g_free (self->resume);
  g_free (self->config);
  g_free (self->log);
  G_OBJECT_CLASS (ebb_trainer_options_parent_class)->finalize (object);
}

#define FIELD(name) G_PRIVATE_OFFSET (EbbTrainerOptions, name)

static void
install_data (GObjectClass *klass, GParamFlags flags)
{
  /**
   * EbbTrainerOptions:batch-size:
   *
   * Rows of a batch, those of all ranks together. 0: 8. A batch function gives as many rows as it likes: with one, it
   * is for #EbbTrainerOptions:evaluate alone.
   */
  g_object_class_install_property (klass, FIELD (batch_size),
                                   g_param_spec_int64 ("batch-size", NULL, NULL, 0, G_MAXINT32, 0, flags));
  /**
   * EbbTrainerOptions:context:
   *
   * Tokens in a row of a dataset. 0: as many as the model takes.
   */
  g_object_class_install_property (klass, FIELD (context),
                                   g_param_spec_int64 ("context", NULL, NULL, 0, G_MAXINT32, 0, flags));
  /**
   * EbbTrainerOptions:accumulate:
   *
   * Batches whose gradients add up to one step of the optimizer.
   */
  g_object_class_install_property (klass, FIELD (accumulate),
                                   g_param_spec_int64 ("accumulate", NULL, NULL, 1, G_MAXINT32, 1, flags));
  /**
   * EbbTrainerOptions:micro-batch-size:
   *
   * The most rows of a batch that a model computes at one time; gradients of the parts add up. 0: all its rows.
   */
  g_object_class_install_property (klass, FIELD (micro_batch_size),
                                   g_param_spec_int64 ("micro-batch-size", NULL, NULL, 0, G_MAXINT32, 0, flags));
  /**
   * EbbTrainerOptions:steps:
   *
   * The step at which the training ends, counted from its beginning, resumed steps too. -1: it ends after
   * #EbbTrainerOptions:epochs, or when a batch function gives an empty batch.
   */
  g_object_class_install_property (
      klass, FIELD (steps), g_param_spec_int64 ("steps", NULL, NULL, EBB_TRAINER_NO_STEPS, G_MAXINT64 / 2, -1, flags));
  /**
   * EbbTrainerOptions:epochs:
   *
   * How often the training takes each row of the dataset, instead of #EbbTrainerOptions:steps; its last step may begin
   * another epoch. 0: it is not set.
   */
  g_object_class_install_property (klass, FIELD (epochs),
                                   g_param_spec_double ("epochs", NULL, NULL, 0, G_MAXDOUBLE, 0, flags));
}

static void
install_update (GObjectClass *klass, GParamFlags flags)
{
  /**
   * EbbTrainerOptions:schedule:
   *
   * How the learning rate changes over the steps. %NULL: it stays.
   */
  g_object_class_install_property (klass, FIELD (schedule),
                                   g_param_spec_object ("schedule", NULL, NULL, EBB_TYPE_SCHEDULE, flags));
  /**
   * EbbTrainerOptions:clip:
   *
   * The greatest norm of all gradients together; larger ones are scaled down to it. 0: they are not clipped.
   */
  g_object_class_install_property (klass, FIELD (clip),
                                   g_param_spec_double ("clip", NULL, NULL, 0, G_MAXDOUBLE, 0, flags));
  /**
   * EbbTrainerOptions:dtype:
   *
   * The type that the forward pass computes in, `f32` or `bf16`; parameters keep theirs. %NULL: that of the parameters.
   */
  g_object_class_install_property (klass, FIELD (dtype), g_param_spec_string ("dtype", NULL, NULL, NULL, flags));
  /**
   * EbbTrainerOptions:budget:
   *
   * The memory that the training keeps within. %NULL: there is no budget.
   */
  g_object_class_install_property (klass, FIELD (budget),
                                   g_param_spec_object ("budget", NULL, NULL, EBB_TYPE_MEMORY_BUDGET, flags));
  /**
   * EbbTrainerOptions:mesh:
   *
   * The ranks that train together: all of ebb_process_group_get_default(). Those along the dimension of
   * ebb_mesh_get_model_dim() share the rows of one model; along the others each has rows of its own. %NULL: this rank
   * trains alone.
   */
  g_object_class_install_property (klass, FIELD (mesh),
                                   g_param_spec_object ("mesh", NULL, NULL, EBB_TYPE_MESH, flags));
}

static void
install_evaluation (GObjectClass *klass, GParamFlags flags)
{
  /**
   * EbbTrainerOptions:evaluate:
   *
   * Data that the model is not trained on, whose loss is measured: all its rows, in order. %NULL: there is none, or
   * ebb_trainer_set_evaluate_func() gives it.
   */
  g_object_class_install_property (klass, FIELD (evaluate),
                                   g_param_spec_object ("evaluate", NULL, NULL, EBB_TYPE_DATASET, flags));
  /**
   * EbbTrainerOptions:evaluate-every:
   *
   * Steps from one measure to the next; the last step is always measured. 0: only that one.
   */
  g_object_class_install_property (klass, FIELD (evaluate_every),
                                   g_param_spec_int64 ("evaluate-every", NULL, NULL, 0, G_MAXINT64, 0, flags));
  /**
   * EbbTrainerOptions:save-best: (type filename)
   *
   * Where ebb_trainer_save_model() saves the weights whenever the measured loss is the best so far. %NULL: nowhere.
   */
  g_object_class_install_property (klass, FIELD (save_best),
                                   g_param_spec_string ("save-best", NULL, NULL, NULL, flags));
}

static void
install_files (GObjectClass *klass, GParamFlags flags)
{
  /**
   * EbbTrainerOptions:resume: (type filename)
   *
   * The folder of the training's state. One that is there is continued, and the last whole step is saved there.
   * %NULL: no state is kept.
   */
  g_object_class_install_property (klass, FIELD (resume), g_param_spec_string ("resume", NULL, NULL, NULL, flags));
  /**
   * EbbTrainerOptions:save-every:
   *
   * Steps from one saved state to the next. 0: only the last step is saved.
   */
  g_object_class_install_property (klass, FIELD (save_every),
                                   g_param_spec_int64 ("save-every", NULL, NULL, 0, G_MAXINT64, 0, flags));
  /**
   * EbbTrainerOptions:config:
   *
   * A text of the program's own that is kept in the state; see ebb_training_state_read_config().
   */
  g_object_class_install_property (klass, FIELD (config), g_param_spec_string ("config", NULL, NULL, NULL, flags));
  /**
   * EbbTrainerOptions:log: (type filename)
   *
   * The folder to which each step's numbers are written: `steps.jsonl`, and events for TensorBoard. %NULL: there is no
   * log.
   */
  g_object_class_install_property (klass, FIELD (log), g_param_spec_string ("log", NULL, NULL, NULL, flags));
}

static void
ebb_trainer_options_class_init (EbbTrainerOptionsClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_trainer_options_finalize;
  install_data (object_class, flags);
  install_update (object_class, flags);
  install_evaluation (object_class, flags);
  install_files (object_class, flags);
}

static void
ebb_trainer_options_init (EbbTrainerOptions *self)
{
}
