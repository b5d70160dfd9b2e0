/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Saves the state of a training and loads it, with the best loss, the place in the data, and settings. */
#include "train/resume-private.h"

#include "nn/optim/optimizer-private.h"
#include "wrap/shard/state/state-dict.h"

#include <math.h>

/* A setting that a state keeps, so that a resumed training can tell what it was. */
typedef struct
{
  const char *name;
  double value;
} KeptSetting;

#define N_KEPT_SETTINGS 6

static void
list_settings (const EbbTrainResume *self, KeptSetting *settings)
{
  const EbbTrainSource *source = self->source;
  double rate, decay;

  g_object_get (self->optimizer, "lr", &rate, "weight-decay", &decay, NULL);
  settings[0] = (KeptSetting){ "learning rate", rate };
  settings[1] = (KeptSetting){ "weight decay", decay };
  settings[2] = (KeptSetting){ "accumulate", (double) source->settings->accumulate };
  settings[3] = (KeptSetting){ "clip", source->settings->clip };
  settings[4] = (KeptSetting){ "batch-size", source->data != NULL ? (double) source->batch_size : 0 };
  settings[5] = (KeptSetting){ "context", source->data != NULL ? (double) source->context : 0 };
}

/* -- saving -------------------------------------------------------------------------------------------------------- */

/* The best loss goes on with the training, so that a resumed one saves the best weights when the whole one does. */
static EbbArgs *
make_values (const EbbTrainResume *self)
{
  EbbArgs *values = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) settings = ebb_args_new (EBB_ARGS_DICT);
  KeptSetting kept[N_KEPT_SETTINGS];

  if (self->record->best_step > 0)
    {
      ebb_args_add_double (values, "best_loss", self->record->best_loss);
      ebb_args_add_double (values, "best_step", (double) self->record->best_step);
    }
  if (self->source->data == NULL)
    ebb_args_add_int (values, "batches", self->source->n_batches);
  list_settings (self, kept);
  for (guint i = 0; i < N_KEPT_SETTINGS; i++)
    ebb_args_add_double (settings, kept[i].name, kept[i].value);
  ebb_args_add_args (values, "settings", settings);
  if (self->values != NULL)
    ebb_args_add_args (values, "program", self->values);
  return values;
}

gboolean
ebb_train_resume_save (const EbbTrainResume *self, GError **error)
{
  const char *folder = self->source->settings->resume;
  g_autoptr (EbbArgs) values = make_values (self);

  g_object_set (self->state, "values", values, NULL);
  if (self->is_on_ranks ? ebb_training_state_save_sharded (self->state, folder, self->record->step, error)
                        : ebb_training_state_save (self->state, folder, self->record->step, error))
    {
      self->record->saved_step = self->record->step;
      return TRUE;
    }
  g_prefix_error (error, "resume: ");
  return FALSE;
}

/* -- loading ------------------------------------------------------------------------------------------------------- */

static double
get_number (EbbArgs *values, const char *name)
{
  int index = values != NULL ? ebb_args_find (values, name) : -1;

  if (index >= 0 && ebb_args_get_value_kind (values, (guint) index) == EBB_VALUE_INT)
    return (double) ebb_args_get_int (values, (guint) index);
  return index >= 0 && ebb_args_get_value_kind (values, (guint) index) == EBB_VALUE_DOUBLE
             ? ebb_args_get_double (values, (guint) index)
             : 0;
}

static EbbArgs *
get_args (EbbArgs *values, const char *name)
{
  int index = values != NULL ? ebb_args_find (values, name) : -1;

  return index >= 0 && ebb_args_get_value_kind (values, (guint) index) == EBB_VALUE_ARGS
             ? ebb_args_get_args (values, (guint) index)
             : NULL;
}

/* NULL if the settings are those of @saved, as far as that has them. */
static char *
describe_changes (const EbbTrainResume *self, EbbArgs *saved)
{
  KeptSetting kept[N_KEPT_SETTINGS];
  g_autoptr (GString) then = g_string_new (NULL);
  g_autoptr (GString) now = g_string_new (NULL);

  list_settings (self, kept);
  for (guint i = 0; saved != NULL && i < N_KEPT_SETTINGS; i++)
    {
      const double value = get_number (saved, kept[i].name);

      if (ebb_args_find (saved, kept[i].name) < 0 || value == kept[i].value)
        continue;
      g_string_append_printf (then, "%s%s %g", then->len > 0 ? ", " : "", kept[i].name, value);
      g_string_append_printf (now, "%s%g", now->len > 0 ? ", " : "", kept[i].value);
    }
  if (then->len == 0)
    return NULL;
  return g_strdup_printf ("resume %s: the state was saved with %s; the training goes on with %s",
                          self->source->settings->resume, then->str, now->str);
}

static char *
take_values (EbbTrainResume *self)
{
  g_autoptr (EbbArgs) values = NULL;
  g_autoptr (EbbArgs) settings = NULL;

  g_object_get (self->state, "values", &values, NULL);
  self->record->best_step = (gint64) get_number (values, "best_step");
  self->record->best_loss = self->record->best_step > 0 ? get_number (values, "best_loss") : NAN;
  self->source->n_batches = (gint64) get_number (values, "batches");
  g_clear_pointer (&self->values, ebb_args_unref);
  self->values = get_args (values, "program");
  settings = get_args (values, "settings");
  return describe_changes (self, settings);
}

/* A group of the optimizer's parameters as the program has set it up. */
typedef struct
{
  double lr, weight_decay;
  char **names;
} Group;

static void
group_clear (gpointer data)
{
  g_strfreev (((Group *) data)->names);
}

static GArray *
list_groups (EbbOptimizer *optimizer)
{
  const EbbOptimizerPrivate *priv = ebb_optimizer_get_private (optimizer);
  GArray *groups = g_array_new (FALSE, FALSE, sizeof (Group));

  g_array_set_clear_func (groups, group_clear);
  for (guint i = 0; i < priv->n_groups; i++)
    {
      const Group group = { priv->groups[i].lr, priv->groups[i].weight_decay,
                            ebb_optimizer_get_group_names (optimizer, i) };

      g_array_append_val (groups, group);
    }
  return groups;
}

/* A state from before a group existed lacks it. */
static gboolean
restore_groups (EbbOptimizer *optimizer, const GArray *groups, GError **error)
{
  for (guint i = 0; i < groups->len; i++)
    {
      const Group *group = &g_array_index (groups, Group, i);

      if (i >= ebb_optimizer_get_n_groups (optimizer)
          && !ebb_optimizer_add_group (optimizer, (const char *const *) group->names, group->lr, group->weight_decay,
                                       NULL, error))
        return FALSE;
      ebb_optimizer_set_group_lr (optimizer, i, group->lr);
      ebb_optimizer_set_group_weight_decay (optimizer, i, group->weight_decay);
    }
  return TRUE;
}

gboolean
ebb_train_resume_load (EbbTrainResume *self, char **note, GError **error)
{
  const char *folder = self->source->settings->resume;
  gint64 *step = &self->record->step;
  g_autoptr (GArray) groups = list_groups (self->optimizer);
  g_autofree char *config = NULL;
  double lr, weight_decay;

  *note = NULL;
  g_object_get (self->state, "config", &config, NULL);
  g_object_get (self->optimizer, "lr", &lr, "weight-decay", &weight_decay, NULL);
  if (!(self->is_on_ranks ? ebb_training_state_load_sharded : ebb_training_state_load) (self->state, folder, step,
                                                                                        error))
    {
      g_prefix_error (error, "resume: ");
      return FALSE;
    }
  g_object_set (self->state, "config", config, NULL);
  g_object_set (self->optimizer, "lr", lr, "weight-decay", weight_decay, NULL);
  if (!restore_groups (self->optimizer, groups, error))
    return FALSE;
  *note = take_values (self);
  return TRUE;
}
