/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* A memory plan: what each block keeps, recomputes and moves, and how that is put onto a model and taken off again. */
#include "wrap/plan/memory-plan-private.h"

#include "tensor/util/json-scanner-private.h"
#include "nn/module-private.h"
#include "offload/kinds/store-kinds-private.h"
#include "tensor/error-private.h"
#include "tensor/util/property-private.h"
#include "wrap/checkpoint/options-private.h"
#include "wrap/checkpoint/target-private.h"
#include "wrap/checkpoint/tiles.h"
#include "wrap/checkpoint/wrapper.h"
#include "wrap/offload-wrapper.h"
#include "wrap/plan/blocks-private.h"
#include "wrap/plan/mlp-tiles-private.h"
#include "wrap/plan/segments-private.h"

#include <string.h>

G_DEFINE_FINAL_TYPE (EbbMemoryPlan, ebb_memory_plan, G_TYPE_OBJECT)

const char *const ebb_memory_place_names[EBB_N_MEMORY_PLACES] = { "device", "host", "disk", "partitioned" };

/* -- rows ---------------------------------------------------------------------------------------------------------- */

EbbMemoryPlan *
ebb_memory_plan_new_empty (EbbModule *model)
{
  EbbMemoryPlan *self = g_object_new (EBB_TYPE_MEMORY_PLAN, NULL);

  g_set_object (&self->model, model);
  return self;
}

void
ebb_plan_row_clear (EbbPlanRow *row)
{
  g_free (row->path);
  g_free (row->saved);
}

void
ebb_memory_plan_add_row (EbbMemoryPlan *self,
                         const EbbPlanRow *row)
{
  g_array_append_vals (self->rows, row, 1);
}

static void
rung_clear (gpointer data)
{
  g_free (((EbbPlanRung *) data)->name);
}

void
ebb_memory_plan_add_rung (EbbMemoryPlan *self,
                          const char *name,
                          gint64 value)
{
  const EbbPlanRung rung = { g_strdup (name), value };

  g_array_append_val (self->rungs, rung);
}

gboolean
ebb_plan_rung_check (const EbbPlanRung *rung,
                     GError **error)
{
  const gboolean is_tiles = strcmp (rung->name, EBB_PLAN_MLP_TILES) == 0;
  g_autofree char *name = NULL;

  if (is_tiles || strcmp (rung->name, EBB_PLAN_SEGMENTS) == 0)
    return rung->value > 0
           || ebb_fail (error, EBB_ERROR_STATE,
                        is_tiles ? "the plan has tiles of %" G_GINT64_FORMAT " rows; a tile has one or more"
                                 : "the plan has segments of %" G_GINT64_FORMAT " blocks; a segment has one or more",
                        rung->value);
  name = ebb_json_quote (rung->name);
  return ebb_fail (error, EBB_ERROR_STATE, "the plan wants %s, which this Ebb doesn't know: plan again", name);
}

gboolean
ebb_plan_row_equal (const EbbPlanRow *a,
                    const EbbPlanRow *b)
{
  if (a->is_taken || b->is_taken)
    return a->is_taken == b->is_taken;
  if (a->is_checkpoint != b->is_checkpoint || a->place != b->place || a->n_saved != b->n_saved)
    return FALSE;
  for (guint i = 0; i < a->n_saved; i++)
    if (a->saved[i].ordinal != b->saved[i].ordinal || a->saved[i].name != b->saved[i].name)
      return FALSE;
  return TRUE;
}

/* -- stores -------------------------------------------------------------------------------------------------------- */

/**
 * ebb_memory_plan_set_store:
 * @self: a plan
 * @place: a place other than the device
 * @store: (nullable): the store that it stands for; %NULL for one of the plan's own
 *
 * Sets the store to which blocks move what they keep, before ebb_memory_plan_apply(). Without it the plan makes a host
 * store, or a disk store in `$TMPDIR` or `/var/tmp`; a partitioned store must be set, since only you know its ranks.
 * A new plan has the store that it was planned with.
 */
void
ebb_memory_plan_set_store (EbbMemoryPlan *self,
                           EbbMemoryPlace place,
                           EbbSavedTensorHooks *store)
{
  g_return_if_fail (EBB_IS_MEMORY_PLAN (self));
  g_return_if_fail (place > EBB_MEMORY_PLACE_DEVICE && place < EBB_N_MEMORY_PLACES);

  g_set_object (&self->stores[place], store);
}

/* Makes the store of @place if it is not there. */
static gboolean
ensure_store (EbbMemoryPlan *self,
              EbbMemoryPlace place,
              GError **error)
{
  if (place == EBB_MEMORY_PLACE_DEVICE || self->stores[place] != NULL)
    return TRUE;
  if (place != EBB_MEMORY_PLACE_PARTITIONED)
    self->stores[place] = ebb_store_kind_make_at (place, error);
  else
    g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                 "the plan divides inputs among ranks, and has no store for that: set a partitioned store by "
                 "ebb_memory_plan_set_store ()");
  return self->stores[place] != NULL;
}

/* -- applying ------------------------------------------------------------------------------------------------------ */

typedef enum
{
  APPLIED_TILES,
  APPLIED_SEGMENTS,
  APPLIED_STORE,
  APPLIED_CHECKPOINT
} AppliedKind;

/* A wrapper that a plan has put on. */
typedef struct
{
  EbbModuleWeak *module;
  AppliedKind kind;
  guint checkpoint; /* the interceptor of one */
} Applied;

static void
applied_clear (gpointer data)
{
  Applied *applied = data;
  g_autoptr (EbbModule) module = ebb_module_weak_get (applied->module);

  if (module != NULL && applied->kind == APPLIED_TILES)
    ebb_tile_unwrap (module);
  else if (module != NULL && applied->kind == APPLIED_STORE)
    ebb_offload_unwrap (module);
  else if (module != NULL && applied->kind == APPLIED_SEGMENTS)
    ebb_plan_segments_take_off (module);
  else if (module != NULL && ebb_module_find_interceptor (module, EBB_CHECKPOINT_INTERCEPTOR) == applied->checkpoint)
    ebb_checkpoint_unwrap (module);
  else if (module != NULL)
    ebb_module_remove_interceptor (module, applied->checkpoint);
  ebb_module_weak_free (applied->module);
}

/* The ops that a policy saves, in a copy that the options own. */
typedef struct
{
  char *path;
  guint n_saved;
  EbbPlanOp saved[];
} SavedOps;

static void
saved_ops_free (gpointer data)
{
  SavedOps *self = data;

  g_free (self->path);
  g_free (self);
}

static EbbCheckpointPolicy
save_planned (const char *op,
              guint ordinal,
              guint64 n_bytes,
              gpointer user_data,
              GError **error)
{
  const SavedOps *self = user_data;

  for (guint i = 0; i < self->n_saved; i++)
    {
      if (self->saved[i].ordinal != ordinal)
        continue;
      if (strcmp (self->saved[i].name, op) == 0)
        return EBB_CHECKPOINT_POLICY_MUST_SAVE;
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                   "the plan saves op %u of %s, which was %s when it was planned and is %s now", ordinal, self->path,
                   self->saved[i].name, op);
      break;
    }
  return EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE;
}

static EbbCheckpointOptions *
make_options (EbbMemoryPlan *self,
              const EbbPlanRow *row)
{
  EbbCheckpointOptions *options = ebb_checkpoint_options_new ();
  SavedOps *saved;

  options->is_planned = TRUE;
  ebb_checkpoint_options_set_store (options, self->stores[row->place]);
  if (row->n_saved == 0)
    return options;
  saved = g_malloc (sizeof *saved + row->n_saved * sizeof *row->saved);
  saved->path = g_strdup (row->path);
  saved->n_saved = row->n_saved;
  memcpy (saved->saved, row->saved, row->n_saved * sizeof *row->saved);
  ebb_checkpoint_options_set_policy (options, save_planned, saved, saved_ops_free);
  return options;
}

static gboolean
wrap (EbbMemoryPlan *self,
      const EbbPlanRow *row,
      EbbModule *module,
      GError **error)
{
  g_autoptr (EbbCheckpointOptions) options = NULL;
  g_autoptr (EbbModule) wrapped = NULL;
  Applied applied = { .kind = row->is_checkpoint ? APPLIED_CHECKPOINT : APPLIED_STORE };

  if (!row->is_checkpoint && row->place == EBB_MEMORY_PLACE_DEVICE)
    return TRUE;
  if (row->is_checkpoint)
    {
      options = make_options (self, row);
      wrapped = ebb_checkpoint_wrapper (module, options, error);
    }
  else
    wrapped = ebb_offload_wrapper (module, self->stores[row->place], error);
  if (wrapped == NULL)
    return FALSE;
  if (row->is_checkpoint)
    applied.checkpoint = ebb_module_find_interceptor (module, EBB_CHECKPOINT_INTERCEPTOR);
  applied.module = ebb_module_weak_new (module);
  g_array_append_val (self->applied, applied);
  return TRUE;
}

/* What the plan does to the whole model: with tiles the blocks run other ops, so these come before the blocks are
 * wrapped, and segments come after it, around the blocks' wrappers. */
static gboolean
put_rungs (EbbMemoryPlan *self,
           GArray *blocks,
           AppliedKind kind,
           GError **error)
{
  for (guint i = 0; i < self->rungs->len; i++)
    {
      const EbbPlanRung *rung = &g_array_index (self->rungs, EbbPlanRung, i);
      g_autoptr (GPtrArray) modules = NULL;

      if (!ebb_plan_rung_check (rung, error))
        return FALSE;
      if ((strcmp (rung->name, EBB_PLAN_SEGMENTS) == 0) != (kind == APPLIED_SEGMENTS))
        continue;
      modules = kind == APPLIED_SEGMENTS ? ebb_plan_segments_put (self->model, blocks, rung->value, error)
                                         : ebb_plan_mlp_tiles_put (self->model, rung->value, error);
      if (modules == NULL)
        return FALSE;
      for (guint j = 0; j < modules->len; j++)
        {
          const Applied applied = { ebb_module_weak_new (modules->pdata[j]), kind, 0 };

          g_array_append_val (self->applied, applied);
        }
    }
  return TRUE;
}

static const EbbPlanBlock *
find_block (GArray *blocks,
            const EbbPlanRow *row,
            GError **error)
{
  for (guint i = 0; i < blocks->len; i++)
    {
      const EbbPlanBlock *block = &g_array_index (blocks, EbbPlanBlock, i);

      if (strcmp (block->path, row->path) != 0)
        continue;
      if (block->is_taken == row->is_taken)
        return block;
      return ebb_fail_null (error, EBB_ERROR_STATE,
                            row->is_taken
                                ? "%s was wrapped by you when the step was planned, and is not wrapped now"
                                : "%s, which the plan is to wrap, is wrapped already, or a part of it or what it is in",
                            row->path);
    }
  return ebb_fail_null (error, EBB_ERROR_STATE, "the model has no block %s, which the plan is for", row->path);
}

static gboolean
wrap_rows (EbbMemoryPlan *self,
           GArray *blocks,
           GError **error)
{
  for (guint i = 0; i < self->rows->len; i++)
    {
      const EbbPlanRow *row = &g_array_index (self->rows, EbbPlanRow, i);
      const EbbPlanBlock *block = find_block (blocks, row, error);

      if (block == NULL
          || (!row->is_taken && !(ensure_store (self, row->place, error) && wrap (self, row, block->module, error))))
        return FALSE;
    }
  return TRUE;
}

/**
 * ebb_memory_plan_apply:
 * @self: a plan
 * @error: return location for an error
 *
 * Wraps the blocks of the model as the plan says. Blocks that you had wrapped when the step was planned stay as they
 * are. Gradients are the same bits as before.
 *
 * Returns: %FALSE with an error, and the model is as it was: %EBB_ERROR_STATE if the plan is applied already or if
 *   blocks have been wrapped or unwrapped since, %EBB_ERROR_IO if a disk store can't be made
 */
gboolean
ebb_memory_plan_apply (EbbMemoryPlan *self,
                       GError **error)
{
  g_autoptr (GArray) blocks = NULL;

  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MEMORY_PLAN (self) && self->model != NULL, FALSE);

  if (self->applied != NULL)
    return ebb_fail (error, EBB_ERROR_STATE, "the plan is applied already; ebb_memory_plan_unapply () undoes that");
  blocks = ebb_plan_find_blocks (self->model);
  self->applied = g_array_new (FALSE, FALSE, sizeof (Applied));
  g_array_set_clear_func (self->applied, applied_clear);
  if (put_rungs (self, blocks, APPLIED_TILES, error) && wrap_rows (self, blocks, error)
      && put_rungs (self, blocks, APPLIED_SEGMENTS, error))
    return TRUE;
  ebb_memory_plan_unapply (self);
  return FALSE;
}

/**
 * ebb_memory_plan_unapply:
 * @self: a plan
 *
 * Takes off the wrappers that ebb_memory_plan_apply() has put on, and no others. A graph that exists already keeps what
 * it has. The wrappers stay when the plan itself is freed.
 */
void
ebb_memory_plan_unapply (EbbMemoryPlan *self)
{
  g_return_if_fail (EBB_IS_MEMORY_PLAN (self));

  g_clear_pointer (&self->applied, g_array_unref);
}

/* -- another model ------------------------------------------------------------------------------------------------- */

GPtrArray *
ebb_plan_describe_parameters (EbbModule *model)
{
  GPtrArray *texts = g_ptr_array_new_with_free_func (g_free);
  g_auto (GStrv) names = NULL;
  g_autoptr (GPtrArray) parameters = NULL;

  if (model == NULL)
    return texts;
  names = ebb_module_get_parameter_names (model, TRUE);
  parameters = ebb_module_list_parameters (model);
  for (guint i = 0; i < parameters->len; i++)
    {
      EbbTensor *parameter = parameters->pdata[i];
      g_autofree char *shape = ebb_tensor_shape_to_string (parameter);

      g_ptr_array_add (texts, g_strdup (names[i]));
      g_ptr_array_add (texts, g_strdup_printf ("%s %s", ebb_dtype_get_name (ebb_tensor_get_dtype (parameter)), shape));
    }
  return texts;
}

void
ebb_memory_plan_detach (EbbMemoryPlan *self)
{
  ebb_memory_plan_unapply (self);
  g_clear_pointer (&self->watch, ebb_plan_watch_free);
  for (guint i = 0; i < EBB_N_MEMORY_PLACES; i++)
    g_clear_object (&self->stores[i]);
  if (self->parameters == NULL && self->model != NULL)
    self->parameters = ebb_plan_describe_parameters (self->model);
  g_clear_object (&self->model);
  if (self->lower != NULL)
    ebb_memory_plan_detach (self->lower);
}

gboolean
ebb_memory_plan_attach (EbbMemoryPlan *self,
                        EbbModule *model,
                        GError **error)
{
  g_autoptr (GPtrArray) parameters = ebb_plan_describe_parameters (model);

  if (parameters->len != self->parameters->len)
    return ebb_fail (error, EBB_ERROR_STATE, "the plan is for a model with %u parameters, and this one has %u",
                     self->parameters->len / 2, parameters->len / 2);
  for (guint i = 0; i < parameters->len; i += 2)
    if (strcmp (parameters->pdata[i], self->parameters->pdata[i]) != 0
        || strcmp (parameters->pdata[i + 1], self->parameters->pdata[i + 1]) != 0)
      return ebb_fail (error, EBB_ERROR_STATE, "the plan is for a model with %s %s, and this one has %s %s",
                       (char *) self->parameters->pdata[i], (char *) self->parameters->pdata[i + 1],
                       (char *) parameters->pdata[i], (char *) parameters->pdata[i + 1]);
  for (EbbMemoryPlan *plan = self; plan != NULL; plan = plan->lower)
    {
      g_clear_pointer (&plan->parameters, g_ptr_array_unref);
      g_set_object (&plan->model, model);
    }
  return TRUE;
}

/* -- class --------------------------------------------------------------------------------------------------------- */

static void
ebb_memory_plan_init (EbbMemoryPlan *self)
{
  self->rows = g_array_new (FALSE, FALSE, sizeof (EbbPlanRow));
  g_array_set_clear_func (self->rows, (GDestroyNotify) ebb_plan_row_clear);
  self->rungs = g_array_new (FALSE, FALSE, sizeof (EbbPlanRung));
  g_array_set_clear_func (self->rungs, rung_clear);
  self->step = g_strdup ("");
  self->binds = g_strdup ("");
}

static void
ebb_memory_plan_finalize (GObject *object)
{
  EbbMemoryPlan *self = EBB_MEMORY_PLAN (object);

  if (self->applied != NULL)
    {
      for (guint i = 0; i < self->applied->len; i++)
        ebb_module_weak_free (g_array_index (self->applied, Applied, i).module);
      g_array_set_clear_func (self->applied, NULL);
      g_array_unref (self->applied);
    }
  for (guint i = 0; i < EBB_N_MEMORY_PLACES; i++)
    g_clear_object (&self->stores[i]);
  g_array_unref (self->rows);
  g_array_unref (self->rungs);
  g_clear_object (&self->lower);
  g_clear_pointer (&self->watch, ebb_plan_watch_free);
  g_clear_object (&self->model);
  g_clear_pointer (&self->parameters, g_ptr_array_unref);
  g_free (self->step);
  g_free (self->binds);
  g_strfreev (self->needs);
  G_OBJECT_CLASS (ebb_memory_plan_parent_class)->finalize (object);
}

static void
install_bytes (GObjectClass *klass,
               gsize offset,
               const char *name)
{
  g_object_class_install_property (
      klass, (guint) offset,
      g_param_spec_uint64 (name, NULL, NULL, 0, G_MAXUINT64, 0, G_PARAM_READABLE | G_PARAM_STATIC_STRINGS));
}

static void
install_seconds (GObjectClass *klass,
                 gsize offset,
                 const char *name)
{
  g_object_class_install_property (
      klass, (guint) offset,
      g_param_spec_double (name, NULL, NULL, 0, G_MAXDOUBLE, 0, G_PARAM_READABLE | G_PARAM_STATIC_STRINGS));
}

static void
install_text (GObjectClass *klass,
              gsize offset,
              const char *name)
{
  g_object_class_install_property (
      klass, (guint) offset, g_param_spec_string (name, NULL, NULL, "", G_PARAM_READABLE | G_PARAM_STATIC_STRINGS));
}

static void
ebb_memory_plan_class_init (EbbMemoryPlanClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->finalize = ebb_memory_plan_finalize;
  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;

  /**
   * EbbMemoryPlan:budget-bytes:
   *
   * The bytes that the step may take at most. Set it where a plan goes on with another budget than it was made for: the
   * plan's printed form and its file then show that budget.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryPlan, budget_bytes),
                                   g_param_spec_uint64 ("budget-bytes", NULL, NULL, 0, G_MAXINT64, 0,
                                                        G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS));
  /**
   * EbbMemoryPlan:predicted-peak-bytes:
   *
   * The most bytes that the step will take at one time with the plan.
   */
  install_bytes (object_class, offsetof (EbbMemoryPlan, predicted_peak_bytes), "predicted-peak-bytes");
  /**
   * EbbMemoryPlan:unplanned-peak-bytes:
   *
   * The most bytes that the step would take without the plan.
   */
  install_bytes (object_class, offsetof (EbbMemoryPlan, unplanned_peak_bytes), "unplanned-peak-bytes");
  /**
   * EbbMemoryPlan:least-bytes:
   *
   * The smallest budget for which there would be a plan.
   */
  install_bytes (object_class, offsetof (EbbMemoryPlan, least_bytes), "least-bytes");
  /**
   * EbbMemoryPlan:seconds:
   *
   * How much longer the step takes than without the plan.
   */
  install_seconds (object_class, offsetof (EbbMemoryPlan, seconds), "seconds");
  /**
   * EbbMemoryPlan:step-seconds:
   *
   * How long the step takes with the plan; 0 if that was not estimated.
   */
  install_seconds (object_class, offsetof (EbbMemoryPlan, step_seconds), "step-seconds");
  /**
   * EbbMemoryPlan:n-lowered:
   *
   * How often ebb_memory_plan_lower() has replaced what the plan was.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryPlan, n_lowered),
                                   g_param_spec_uint ("n-lowered", NULL, NULL, 0, G_MAXUINT, 0,
                                                      G_PARAM_READABLE | G_PARAM_STATIC_STRINGS));
  /**
   * EbbMemoryPlan:binds:
   *
   * Where in the step the peak is, as "the backward of h.11".
   */
  install_text (object_class, offsetof (EbbMemoryPlan, binds), "binds");
  /**
   * EbbMemoryPlan:needs:
   *
   * Names of your own for what the step must have so that the plan keeps its budget and is not in the model, as
   * "8bit-moments"; %NULL: nothing. They are in the plan's file: compare them after ebb_memory_plan_load().
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryPlan, needs),
                                   g_param_spec_boxed ("needs", NULL, NULL, G_TYPE_STRV,
                                                       G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS));
  /**
   * EbbMemoryPlan:step:
   *
   * The shapes for which the step was planned.
   */
  install_text (object_class, offsetof (EbbMemoryPlan, step), "step");
}
