/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/state/training-state-private.h"

#include "nn/module-instance-private.h"
#include "nn/optim/optimizer-private.h"
#include "nn/files/state-tree-private.h"
#include "nn/data/dataset-private.h"
#include "tensor/error-private.h"
#include "tensor/util/property-private.h"

/* As a tree: { version, step, config, module: {...}, optimizer: {...}, dataset: {...}, values: {...},
 * generators: { name: { seed, offset } }, tracker: {...}, base: checksum }. */

#define STATE_VERSION 1

G_DEFINE_FINAL_TYPE (EbbTrainingState, ebb_training_state, G_TYPE_OBJECT)

static const EbbNamedGenerators *named_generators; /* NULL: there never were any */

void
ebb_training_state_set_named_generators (const EbbNamedGenerators *funcs)
{
  g_atomic_pointer_set (&named_generators, (gpointer) funcs);
}

const EbbNamedGenerators *
ebb_training_state_get_named_generators (void)
{
  return g_atomic_pointer_get (&named_generators);
}

/* -- saving -------------------------------------------------------------------------------------------------------- */

static void
add_generator_state (EbbArgs *generators,
                     const char *name,
                     EbbGenerator *generator)
{
  g_autoptr (EbbArgs) state = ebb_args_new (EBB_ARGS_DICT);

  ebb_args_add_int (state, "seed", (gint64) ebb_generator_get_seed (generator));
  ebb_args_add_int (state, "offset", (gint64) ebb_generator_get_offset (generator));
  ebb_args_add_args (generators, name, state);
}

static EbbArgs *
get_generators (EbbTrainingState *self)
{
  EbbArgs *generators = ebb_args_new (EBB_ARGS_DICT);
  GHashTableIter iter;
  gpointer name, generator;

  add_generator_state (generators, "default", ebb_generator_get_default ());
  g_hash_table_iter_init (&iter, self->generators);
  while (g_hash_table_iter_next (&iter, &name, &generator))
    add_generator_state (generators, name, generator);
  return generators;
}

EbbArgs *
ebb_training_state_get_rest (EbbTrainingState *self,
                             gint64 step)
{
  EbbArgs *tree = ebb_args_new (EBB_ARGS_DICT);
  const EbbNamedGenerators *named = g_atomic_pointer_get (&named_generators);
  g_autoptr (EbbArgs) generators = get_generators (self);
  g_autoptr (EbbArgs) others = named != NULL ? named->get () : NULL;
  g_autoptr (EbbArgs) dataset = NULL;

  ebb_args_add_int (tree, "version", STATE_VERSION);
  ebb_args_add_int (tree, "step", step);
  ebb_args_add_string (tree, "config", self->config ? self->config : "");
  ebb_args_add_args (tree, "generators", generators);
  if (others != NULL)
    ebb_args_add_args (tree, EBB_TRAINING_STATE_NAMED_GENERATORS, others);
  if (self->dataset != NULL)
    {
      dataset = ebb_dataset_get_state (self->dataset);
      ebb_args_add_args (tree, "dataset", dataset);
    }
  if (self->values != NULL)
    ebb_args_add_args (tree, "values", self->values);
  if (self->trained_only && self->module != NULL)
    ebb_args_add_int (tree, "base", (gint64) self->base);
  return tree;
}

gboolean
ebb_training_state_check_step (gint64 step,
                               GError **error)
{
  return (step >= 0 && step <= EBB_STATE_MAX_COUNT)
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "a state of step %" G_GINT64_FORMAT
                      " can't be saved: the step must be from 0 to %" G_GINT64_FORMAT,
                      step, EBB_STATE_MAX_COUNT);
}

/* -- loading ------------------------------------------------------------------------------------------------------- */

static EbbArgs *
read_part (EbbArgs *tree,
           const char *name,
           const char *folder,
           GError **error)
{
  int index = ebb_args_find (tree, name);
  EbbArgs *part = index < 0 ? NULL : ebb_args_get_args (tree, (guint) index);

  if (part == NULL)
    ebb_error_set (error, EBB_ERROR_STATE, "the state saved in %s has no %s", folder, name);
  return part;
}

static gboolean
read_int (EbbArgs *tree,
          const char *name,
          const char *folder,
          gint64 *value,
          GError **error)
{
  int index = ebb_args_find (tree, name);

  if (index >= 0 && ebb_args_get_value_kind (tree, (guint) index) == EBB_VALUE_INT)
    {
      *value = ebb_args_get_int (tree, (guint) index);
      return TRUE;
    }
  return ebb_fail (error, EBB_ERROR_STATE, "the state saved in %s has no %s", folder, name);
}

static gboolean
read_step (EbbArgs *tree,
           const char *folder,
           gint64 *step,
           GError **error)
{
  gint64 version;

  if (!read_int (tree, "version", folder, &version, error) || !read_int (tree, "step", folder, step, error))
    return FALSE;
  if (version != STATE_VERSION)
    ebb_error_set (error, EBB_ERROR_STATE,
                   "the state saved in %s has the version %" G_GINT64_FORMAT ": this library reads version %d", folder,
                   version, STATE_VERSION);
  else if (*step < 0 || *step > EBB_STATE_MAX_COUNT)
    ebb_error_set (error, EBB_ERROR_STATE,
                   "the state saved in %s is of step %" G_GINT64_FORMAT ": it must be from 0 to %" G_GINT64_FORMAT,
                   folder, *step, EBB_STATE_MAX_COUNT);
  else
    return TRUE;
  return FALSE;
}

/* Looks at the state of one generator; sets it unless @check_only. */
static gboolean
load_generator (EbbArgs *generators,
                const char *name,
                EbbGenerator *generator,
                const char *folder,
                gboolean check_only,
                GError **error)
{
  int index = ebb_args_find (generators, name);
  g_autoptr (EbbArgs) state = index < 0 ? NULL : ebb_args_get_args (generators, (guint) index);
  gint64 seed, offset;

  if (state == NULL)
    return ebb_fail (error, EBB_ERROR_STATE, "the state saved in %s has no generator %s", folder, name);
  if (!read_int (state, "seed", folder, &seed, error) || !read_int (state, "offset", folder, &offset, error))
    return FALSE;
  if (!check_only)
    ebb_generator_set_state (generator, (guint64) seed, (guint64) offset);
  return TRUE;
}

static gboolean
load_generators (EbbTrainingState *self,
                 EbbArgs *generators,
                 const char *folder,
                 gboolean check_only,
                 GError **error)
{
  GHashTableIter iter;
  gpointer name, generator;
  gboolean ok = load_generator (generators, "default", ebb_generator_get_default (), folder, check_only, error);

  g_hash_table_iter_init (&iter, self->generators);
  while (ok && g_hash_table_iter_next (&iter, &name, &generator))
    ok = load_generator (generators, name, generator, folder, check_only, error);
  return ok;
}

/* Those that were saved replace those that are there. */
static gboolean
load_named_generators (EbbArgs *tree,
                       const char *folder,
                       gboolean check_only,
                       GError **error)
{
  const EbbNamedGenerators *named = g_atomic_pointer_get (&named_generators);
  int index = ebb_args_find (tree, EBB_TRAINING_STATE_NAMED_GENERATORS);
  g_autoptr (EbbArgs) states = index >= 0 ? ebb_args_get_args (tree, (guint) index) : NULL;

  if (index < 0 || (states != NULL && ebb_args_get_length (states) == 0))
    return TRUE;
  if (states != NULL && named != NULL)
    return named->set (states, check_only, error);
  return ebb_fail (error, EBB_ERROR_STATE,
                   "the state saved in %s has generators of a tracker, and there is none here: call "
                   "ebb_model_parallel_manual_seed () or ebb_generator_tracker_get_default () first",
                   folder);
}

/* The same seed and another stream give numbers of their own. */
static void
reseed (EbbGenerator *generator,
        guint64 stream)
{
  guint64 mixed = ebb_generator_get_seed (generator) + (stream + 1) * G_GUINT64_CONSTANT (0x9e3779b97f4a7c15);

  mixed = (mixed ^ (mixed >> 30)) * G_GUINT64_CONSTANT (0xbf58476d1ce4e5b9);
  mixed = (mixed ^ (mixed >> 27)) * G_GUINT64_CONSTANT (0x94d049bb133111eb);
  ebb_generator_set_state (generator, mixed ^ (mixed >> 31), ebb_generator_get_offset (generator));
}

static void
take_texts (EbbTrainingState *self,
            EbbArgs *tree)
{
  int config = ebb_args_find (tree, "config"), values = ebb_args_find (tree, "values");

  if (config >= 0)
    g_object_set (self, "config", ebb_args_get_string (tree, (guint) config), NULL);
  g_clear_pointer (&self->values, ebb_args_unref);
  if (values >= 0)
    self->values = ebb_args_get_args (tree, (guint) values);
}

/* The program's own text and values, where there are any. */
static gboolean
check_texts (EbbArgs *tree,
             const char *folder,
             GError **error)
{
  static const char *const names[] = { "config", "values" };
  static const EbbValueKind kinds[] = { EBB_VALUE_STRING, EBB_VALUE_ARGS };

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      int index = ebb_args_find (tree, names[i]);

      if (index < 0 || ebb_args_get_value_kind (tree, (guint) index) == kinds[i])
        continue;
      return ebb_fail (error, EBB_ERROR_STATE, "the state saved in %s has %s of another type than it should",
                       folder, names[i]);
    }
  return TRUE;
}

gboolean
ebb_training_state_check_rest (EbbTrainingState *self,
                               EbbArgs *tree,
                               const char *folder,
                               gint64 *step,
                               GError **error)
{
  g_autoptr (EbbArgs) generators = NULL;
  g_autoptr (EbbArgs) dataset = NULL;

  if (!read_step (tree, folder, step, error) || !check_texts (tree, folder, error)
      || !ebb_training_state_check_base (self, tree, folder, error))
    return FALSE;
  generators = read_part (tree, "generators", folder, error);
  if (generators == NULL || !load_generators (self, generators, folder, TRUE, error)
      || !load_named_generators (tree, folder, TRUE, error))
    return FALSE;
  return self->dataset == NULL
         || ((dataset = read_part (tree, "dataset", folder, error)) != NULL
             && ebb_dataset_check_state (self->dataset, dataset, error));
}

gboolean
ebb_training_state_load_rest (EbbTrainingState *self,
                              EbbArgs *tree,
                              const char *folder,
                              GError **error)
{
  g_autoptr (EbbArgs) generators = read_part (tree, "generators", folder, error);
  g_autoptr (EbbArgs) dataset = NULL;

  if (generators == NULL)
    return FALSE;
  if (self->dataset != NULL
      && ((dataset = read_part (tree, "dataset", folder, error)) == NULL
          || !ebb_dataset_load_state (self->dataset, dataset, error)))
    return FALSE;
  load_generators (self, generators, folder, FALSE, NULL);
  load_named_generators (tree, folder, FALSE, NULL);
  take_texts (self, tree);
  return TRUE;
}

void
ebb_training_state_reseed (EbbTrainingState *self,
                           guint64 stream)
{
  GHashTableIter iter;
  gpointer generator;

  reseed (ebb_generator_get_default (), stream);
  g_hash_table_iter_init (&iter, self->generators);
  while (g_hash_table_iter_next (&iter, NULL, &generator))
    reseed (generator, stream);
}

char *
ebb_training_state_get_saved_config (EbbArgs *tree,
                                     const char *folder,
                                     GError **error)
{
  int index = ebb_args_find (tree, "config");

  if (index >= 0 && ebb_args_get_value_kind (tree, (guint) index) == EBB_VALUE_STRING)
    return g_strdup (ebb_args_get_string (tree, (guint) index));
  return ebb_fail_null (error, EBB_ERROR_STATE, "the state saved in %s has no config", folder);
}

/* -- the object ---------------------------------------------------------------------------------------------------- */

/**
 * ebb_training_state_add_generator:
 * @self: a training
 * @name: a name of its own, other than "default"
 * @generator: a random generator
 *
 * Saves and loads the state of a generator besides this thread's default one.
 */
void
ebb_training_state_add_generator (EbbTrainingState *self,
                                  const char *name,
                                  EbbGenerator *generator)
{
  g_return_if_fail (EBB_IS_TRAINING_STATE (self));
  g_return_if_fail (name != NULL && !g_str_equal (name, "default"));
  g_return_if_fail (EBB_IS_GENERATOR (generator));

  g_hash_table_insert (self->generators, g_strdup (name), g_object_ref (generator));
}

void
ebb_training_mark_free (EbbTrainingMark *self)
{
  g_array_unref (self->parameters);
  g_hash_table_unref (self->seen);
  g_array_unref (self->buffers);
  g_array_unref (self->slots);
  g_array_unref (self->generators);
  g_clear_pointer (&self->named, ebb_args_unref);
  g_clear_pointer (&self->grad_factor, ebb_tensor_unref);
  g_free (self);
}

static void
ebb_training_state_finalize (GObject *object)
{
  EbbTrainingState *self = EBB_TRAINING_STATE (object);

  g_clear_object (&self->module);
  g_clear_object (&self->optimizer);
  g_clear_object (&self->dataset);
  g_clear_pointer (&self->mark, ebb_training_mark_free);
  g_clear_pointer (&self->generators, g_hash_table_unref);
  g_clear_pointer (&self->trained, g_hash_table_unref);
  g_clear_pointer (&self->values, ebb_args_unref);
  g_free (self->config);
  G_OBJECT_CLASS (ebb_training_state_parent_class)->finalize (object);
}

static void
ebb_training_state_class_init (EbbTrainingStateClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_training_state_finalize;

  /**
   * EbbTrainingState:module:
   *
   * The module whose parameters and buffers are saved.
   */
  g_object_class_install_property (object_class, offsetof (EbbTrainingState, module),
                                   g_param_spec_object ("module", NULL, NULL, EBB_TYPE_MODULE,
                                                        flags | G_PARAM_CONSTRUCT_ONLY));
  /**
   * EbbTrainingState:optimizer:
   *
   * The optimizer whose state is saved.
   */
  g_object_class_install_property (object_class, offsetof (EbbTrainingState, optimizer),
                                   g_param_spec_object ("optimizer", NULL, NULL, EBB_TYPE_OPTIMIZER,
                                                        flags | G_PARAM_CONSTRUCT_ONLY));
  /**
   * EbbTrainingState:dataset:
   *
   * The data whose position is saved.
   */
  g_object_class_install_property (object_class, offsetof (EbbTrainingState, dataset),
                                   g_param_spec_object ("dataset", NULL, NULL, EBB_TYPE_DATASET,
                                                        flags | G_PARAM_CONSTRUCT_ONLY));
  /**
   * EbbTrainingState:trained-only:
   *
   * Saves only parameters that require a gradient, and buffers; frozen parameters and quantised weights (the base) are
   * left out. The state keeps a checksum of the base: load it into a model over the same base. The parameters of all
   * adapters are saved, and those that the optimizer has moved or that an earlier state of this object has, even if
   * they are frozen now. A state that was saved without it is loaded in full.
   */
  g_object_class_install_property (object_class, offsetof (EbbTrainingState, trained_only),
                                   g_param_spec_boolean ("trained-only", NULL, NULL, FALSE, flags));
  /**
   * EbbTrainingState:config:
   *
   * A text of the program's own, in UTF-8, that describes model and training. It is saved with the state; see
   * ebb_training_state_read_config().
   */
  g_object_class_install_property (object_class, offsetof (EbbTrainingState, config),
                                   g_param_spec_string ("config", NULL, NULL, NULL, flags));
  /**
   * EbbTrainingState:values:
   *
   * Values of the program's own, which are saved with the state: numbers, strings in UTF-8, tensors and containers of
   * them, nested at most 60 deep.
   */
  g_object_class_install_property (object_class, offsetof (EbbTrainingState, values),
                                   g_param_spec_boxed ("values", NULL, NULL, EBB_TYPE_ARGS, flags));
  /**
   * EbbTrainingState:keep:
   *
   * How many states stay in the folder, the newest one counted.
   */
  g_object_class_install_property (object_class, offsetof (EbbTrainingState, keep),
                                   g_param_spec_uint ("keep", NULL, NULL, 1, G_MAXUINT, 2, flags | G_PARAM_CONSTRUCT));
}

static void
ebb_training_state_init (EbbTrainingState *self)
{
  self->generators = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, g_object_unref);
  self->trained = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
}

/**
 * ebb_training_state_new:
 * @module: (nullable): the module whose parameters and buffers are to be saved
 * @optimizer: (nullable): the optimizer whose state is to be saved
 * @dataset: (nullable): the data whose position is to be saved
 *
 * Says what belongs to a training. Schedules have nothing to save: they depend on the optimizer's steps.
 *
 * Returns: (transfer full): the training
 */
EbbTrainingState *
ebb_training_state_new (EbbModule *module,
                        EbbOptimizer *optimizer,
                        EbbDataset *dataset)
{
  return g_object_new (EBB_TYPE_TRAINING_STATE, "module", module, "optimizer", optimizer, "dataset", dataset, NULL);
}
