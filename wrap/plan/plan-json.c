/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* A memory plan as JSON, in a file and out of it. */
#include "wrap/plan/memory-plan-private.h"

#include "nn/files/file-error-private.h"
#include "nn/module-private.h"
#include "tensor/util/json-private.h"
#include "tensor/util/json-scanner-private.h"
#include "tensor/autograd/op-names-private.h"
#include "tensor/util/atomic-file-private.h"
#include "wrap/plan/blocks-private.h"

#include <math.h>
#include <string.h>

/* The member that says what the file is; its value is the version of the format. */
#define VERSION_KEY "ebb_memory_plan"
#define VERSION 2
#define MAX_FILE_SIZE (64 << 20)

/* -- writing ------------------------------------------------------------------------------------------------------- */

static void
append_double (GString *json,
               double value)
{
  char text[G_ASCII_DTOSTR_BUF_SIZE];

  g_string_append (json, g_ascii_dtostr (text, sizeof text, value));
}

static void
append_row (GString *json,
            const EbbPlanRow *row)
{
  g_string_append (json, "    {\"block\": ");
  ebb_json_append_string (json, row->path);
  if (row->is_taken)
    {
      g_string_append (json, ", \"do\": \"leave\"}");
      return;
    }
  g_string_append_printf (json, ", \"do\": \"%s\"", row->is_checkpoint ? "checkpoint" : "keep");
  if (row->is_checkpoint)
    {
      g_string_append (json, ", \"saves\": [");
      for (guint i = 0; i < row->n_saved; i++)
        {
          g_string_append_printf (json, "%s{\"number\": %u, \"op\": ", i > 0 ? ", " : "", row->saved[i].ordinal);
          ebb_json_append_string (json, row->saved[i].name);
          g_string_append_c (json, '}');
        }
      g_string_append_c (json, ']');
    }
  g_string_append_printf (json, ", \"place\": \"%s\"", ebb_memory_place_names[row->place]);
  g_string_append_printf (json, ", \"kept_bytes\": %" G_GUINT64_FORMAT ", \"freed_bytes\": %" G_GUINT64_FORMAT,
                          row->kept_bytes, row->freed_bytes);
  g_string_append (json, ", \"seconds\": ");
  append_double (json, row->seconds);
  g_string_append_c (json, '}');
}

static void
append_figures (GString *json,
                EbbMemoryPlan *self)
{
  g_string_append_printf (json, "  \"predicted_peak_bytes\": %" G_GUINT64_FORMAT, self->predicted_peak_bytes);
  g_string_append (json, ",\n  \"seconds\": ");
  append_double (json, self->seconds);
  g_string_append (json, ",\n  \"step_seconds\": ");
  append_double (json, self->step_seconds);
  g_string_append (json, ",\n  \"binds\": ");
  ebb_json_append_string (json, self->binds);
}

static void
append_rungs (GString *json,
              EbbMemoryPlan *self)
{
  g_string_append (json, "  \"rungs\": {");
  for (guint i = 0; i < self->rungs->len; i++)
    {
      const EbbPlanRung *rung = &g_array_index (self->rungs, EbbPlanRung, i);

      g_string_append (json, i > 0 ? ", " : "");
      ebb_json_append_string (json, rung->name);
      g_string_append_printf (json, ": %" G_GINT64_FORMAT, rung->value);
    }
  g_string_append_c (json, '}');
}

static void
append_needs (GString *json,
              EbbMemoryPlan *self)
{
  g_string_append (json, ",\n  \"needs\": [");
  for (guint i = 0; self->needs != NULL && self->needs[i] != NULL; i++)
    {
      g_string_append (json, i > 0 ? ", " : "");
      ebb_json_append_string (json, self->needs[i]);
    }
  g_string_append_c (json, ']');
}

/* What differs between a plan and those that it may be lowered to. */
static void
append_plan (GString *json,
             EbbMemoryPlan *self)
{
  append_figures (json, self);
  g_string_append (json, ",\n  \"blocks\": [");
  for (guint i = 0; i < self->rows->len; i++)
    {
      g_string_append (json, i > 0 ? ",\n" : "\n");
      append_row (json, &g_array_index (self->rows, EbbPlanRow, i));
    }
  g_string_append (json, "\n  ],\n");
  append_rungs (json, self);
  if (self->lower == NULL)
    return;
  g_string_append (json, ",\n  \"lower\": {\n");
  append_plan (json, self->lower);
  g_string_append_c (json, '}');
}

static void
append_parameters (GString *json,
                   EbbMemoryPlan *self)
{
  g_autoptr (GPtrArray) parameters =
      self->parameters != NULL ? g_ptr_array_ref (self->parameters) : ebb_plan_describe_parameters (self->model);

  g_string_append (json, "  \"parameters\": {");
  for (guint i = 0; i < parameters->len; i += 2)
    {
      g_string_append (json, i > 0 ? ",\n    " : "\n    ");
      ebb_json_append_string (json, parameters->pdata[i]);
      g_string_append (json, ": ");
      ebb_json_append_string (json, parameters->pdata[i + 1]);
    }
  g_string_append (json, "\n  }");
}

/**
 * ebb_memory_plan_to_json:
 * @self: a plan
 *
 * The content of the file that ebb_memory_plan_save() writes: "on_ranks", whether several ranks run the step together,
 * which then never runs again; "needs", "step", "budget_bytes", "predicted_peak_bytes",
 * "unplanned_peak_bytes", "least_bytes", "seconds", "step_seconds" and "binds" as the properties; "blocks", in their
 * order, each with what it does; "rungs", choices for the whole step; "lower", the plan that ebb_memory_plan_lower()
 * would make of it; and "parameters", the model for which it is.
 *
 * Returns: (transfer full): one JSON object
 */
char *
ebb_memory_plan_to_json (EbbMemoryPlan *self)
{
  GString *json = g_string_new (NULL);

  g_return_val_if_fail (EBB_IS_MEMORY_PLAN (self), NULL);

  g_string_append_printf (json, "{\n  \"%s\": %d,\n  \"step\": ", VERSION_KEY, VERSION);
  ebb_json_append_string (json, self->step);
  g_string_append_printf (json, ",\n  \"on_ranks\": %s", self->is_on_ranks ? "true" : "false");
  append_needs (json, self);
  g_string_append_printf (json, ",\n  \"budget_bytes\": %" G_GUINT64_FORMAT, self->budget_bytes);
  g_string_append_printf (json, ",\n  \"unplanned_peak_bytes\": %" G_GUINT64_FORMAT, self->unplanned_peak_bytes);
  g_string_append_printf (json, ",\n  \"least_bytes\": %" G_GUINT64_FORMAT ",\n", self->least_bytes);
  append_plan (json, self);
  g_string_append (json, ",\n");
  append_parameters (json, self);
  g_string_append (json, "\n}\n");
  return g_string_free (json, FALSE);
}

/**
 * ebb_memory_plan_save:
 * @self: a plan
 * @path: a file
 * @error: return location for an error
 *
 * Writes the plan to a file, which appears whole or not at all.
 *
 * Returns: %FALSE with %EBB_ERROR_IO
 */
gboolean
ebb_memory_plan_save (EbbMemoryPlan *self,
                      const char *path,
                      GError **error)
{
  g_autofree char *json = NULL;
  EbbAtomicFile file;

  if (!EBB_MAY_BEGIN (error, self, path))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MEMORY_PLAN (self) && self->model != NULL, FALSE);

  json = ebb_memory_plan_to_json (self);
  if (!ebb_atomic_file_open (&file, path, error))
    return FALSE;
  if (ebb_atomic_file_write (&file, json, strlen (json), error))
    return ebb_atomic_file_commit (&file, error);
  ebb_atomic_file_abort (&file);
  return FALSE;
}

/* -- reading: values ----------------------------------------------------------------------------------------------- */

/* A file that is read. */
typedef struct
{
  const char *path;
  GError **error;
  gboolean is_of_rank; /* of another one, whose shards may have other shapes */
} Source;

static gboolean
fail_value (const Source *source,
            const char *where,
            const char *key,
            const char *wanted)
{
  g_autofree char *quoted = ebb_json_quote (where);

  return *where == '\0' ? ebb_file_fail (source->path, source->error, "\"%s\" must be %s", key, wanted)
                        : ebb_file_fail (source->path, source->error, "block %s: \"%s\" must be %s", quoted, key,
                                         wanted);
}

static gboolean
read_text (const Source *source,
           const EbbJson *object,
           const char *where,
           const char *key,
           const char **value)
{
  return ebb_json_as_string (ebb_json_get (object, key), value) || fail_value (source, where, key, "a string");
}

static gboolean
read_boolean (const Source *source,
              const EbbJson *object,
              const char *key,
              gboolean *value)
{
  return ebb_json_as_boolean (ebb_json_get (object, key), value) || fail_value (source, "", key, "true or false");
}

static gboolean
read_bytes (const Source *source,
            const EbbJson *object,
            const char *where,
            const char *key,
            guint64 *value)
{
  gint64 number;

  if (!ebb_json_as_int (ebb_json_get (object, key), &number) || number < 0)
    return fail_value (source, where, key, "a number of bytes");
  *value = (guint64) number;
  return TRUE;
}

static gboolean
read_seconds (const Source *source,
              const EbbJson *object,
              const char *where,
              const char *key,
              double *value)
{
  if (!ebb_json_as_double (ebb_json_get (object, key), value) || !isfinite (*value) || *value < 0)
    return fail_value (source, where, key, "a number of seconds");
  return TRUE;
}

/* -- reading: blocks ----------------------------------------------------------------------------------------------- */

static gboolean
read_op (const Source *source,
         const EbbJson *item,
         const char *where,
         EbbPlanOp *op)
{
  gint64 number;
  const char *name;

  if (!ebb_json_as_int (ebb_json_get (item, "number"), &number) || number < 0 || number > G_MAXINT)
    return fail_value (source, where, "number", "the number of an op");
  if (!ebb_json_as_string (ebb_json_get (item, "op"), &name) || !ebb_op_is_name (name))
    return fail_value (source, where, "op", "the name of an op");
  *op = (EbbPlanOp){ (guint) number, g_intern_string (name) };
  return TRUE;
}

static gboolean
read_saved (const Source *source,
            const EbbJson *object,
            EbbPlanRow *row)
{
  const EbbJson *list = ebb_json_get (object, "saves");

  if (list == NULL || list->kind != EBB_JSON_LIST)
    return fail_value (source, row->path, "saves", "a list of ops");
  row->saved = g_new (EbbPlanOp, list->n_items);
  for (gsize i = 0; i < list->n_items; i++)
    {
      if (!read_op (source, &list->items[i], row->path, &row->saved[i]))
        return FALSE;
      if (i > 0 && row->saved[i].ordinal <= row->saved[i - 1].ordinal)
        return fail_value (source, row->path, "saves", "a list of ops in the order of their numbers");
      row->n_saved++;
    }
  return TRUE;
}

static gboolean
read_place (const Source *source,
            const EbbJson *object,
            EbbPlanRow *row)
{
  const char *name;

  if (!read_text (source, object, row->path, "place", &name))
    return FALSE;
  for (guint i = 0; i < EBB_N_MEMORY_PLACES; i++)
    if (strcmp (name, ebb_memory_place_names[i]) == 0)
      {
        row->place = (EbbMemoryPlace) i;
        return TRUE;
      }
  return fail_value (source, row->path, "place", "device, host, disk or partitioned");
}

static gboolean
read_row (const Source *source,
          const EbbJson *object,
          EbbPlanRow *row)
{
  const char *action;

  if (!read_text (source, object, row->path, "do", &action))
    return FALSE;
  row->is_taken = strcmp (action, "leave") == 0;
  row->is_checkpoint = strcmp (action, "checkpoint") == 0;
  if (row->is_taken)
    return TRUE;
  if (!row->is_checkpoint && strcmp (action, "keep") != 0)
    return fail_value (source, row->path, "do", "keep, checkpoint or leave");
  return (!row->is_checkpoint || read_saved (source, object, row)) && read_place (source, object, row)
         && read_bytes (source, object, row->path, "kept_bytes", &row->kept_bytes)
         && read_bytes (source, object, row->path, "freed_bytes", &row->freed_bytes)
         && read_seconds (source, object, row->path, "seconds", &row->seconds);
}

/* Exactly the blocks of the model, in their order. */
static gboolean
read_rows (const Source *source,
           const EbbJson *document,
           EbbMemoryPlan *plan)
{
  const EbbJson *list = ebb_json_get (document, "blocks");
  g_autoptr (GArray) blocks = ebb_plan_find_blocks (plan->model);

  if (list == NULL || list->kind != EBB_JSON_LIST)
    return fail_value (source, "", "blocks", "a list");
  if (list->n_items != blocks->len)
    return ebb_file_fail (source->path, source->error,
                          "a plan for another model: it has %" G_GSIZE_FORMAT " blocks, and this one %u",
                          list->n_items, blocks->len);
  for (guint i = 0; i < blocks->len; i++)
    {
      const char *path;
      EbbPlanRow row = { 0 };

      if (!read_text (source, &list->items[i], "", "block", &path))
        return FALSE;
      if (strcmp (path, g_array_index (blocks, EbbPlanBlock, i).path) != 0)
        {
          g_autofree char *quoted = ebb_json_quote (path);

          return ebb_file_fail (source->path, source->error,
                                "a plan for another model: its block %u is %s, and here it is \"%s\"", i, quoted,
                                g_array_index (blocks, EbbPlanBlock, i).path);
        }
      row.path = g_strdup (path);
      if (!read_row (source, &list->items[i], &row))
        {
          ebb_plan_row_clear (&row);
          return FALSE;
        }
      ebb_memory_plan_add_row (plan, &row);
    }
  return TRUE;
}

static gboolean
read_rungs (const Source *source,
            const EbbJson *document,
            EbbMemoryPlan *plan)
{
  const EbbJson *object = ebb_json_get (document, "rungs");

  if (object == NULL || object->kind != EBB_JSON_OBJECT)
    return fail_value (source, "", "rungs", "an object");
  for (gsize i = 0; i < object->n_items; i++)
    {
      g_autoptr (GError) unknown = NULL;
      EbbPlanRung rung = { .name = object->items[i].key };

      if (!ebb_json_as_int (&object->items[i], &rung.value))
        return fail_value (source, "", "rungs", "an object of integers");
      if (!ebb_plan_rung_check (&rung, &unknown))
        return ebb_file_fail (source->path, source->error, "%s", unknown->message);
      ebb_memory_plan_add_rung (plan, rung.name, rung.value);
    }
  return TRUE;
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

static gboolean
check_parameters (const Source *source,
                  const EbbJson *document,
                  EbbModule *model)
{
  const EbbJson *object = ebb_json_get (document, "parameters");
  g_autoptr (GPtrArray) parameters = ebb_plan_describe_parameters (model);

  if (object == NULL || object->kind != EBB_JSON_OBJECT)
    return fail_value (source, "", "parameters", "an object");
  for (guint i = 0; i < parameters->len; i += 2)
    {
      const char *name = parameters->pdata[i], *wanted = parameters->pdata[i + 1], *found;
      g_autofree char *quoted = NULL;

      if (!ebb_json_as_string (ebb_json_get (object, name), &found))
        return ebb_file_fail (source->path, source->error, "a plan for another model: it has no parameter %s", name);
      if (strcmp (found, wanted) == 0)
        continue;
      quoted = ebb_json_quote (found);
      return ebb_file_fail (source->path, source->error,
                            "a plan for another model: its %s is %s, and here it is \"%s\"", name, quoted, wanted);
    }
  if (object->n_items != parameters->len / 2)
    return ebb_file_fail (source->path, source->error,
                          "a plan for another model: it has %" G_GSIZE_FORMAT " parameters, and this one %u",
                          object->n_items, parameters->len / 2);
  return TRUE;
}

static gboolean
read_needs (const Source *source,
            const EbbJson *document,
            EbbMemoryPlan *plan)
{
  const EbbJson *list = ebb_json_get (document, "needs");

  if (list == NULL || list->kind != EBB_JSON_LIST)
    return fail_value (source, "", "needs", "a list of names");
  if (list->n_items == 0)
    return TRUE;
  plan->needs = g_new0 (char *, list->n_items + 1);
  for (gsize i = 0; i < list->n_items; i++)
    {
      const char *name;

      if (!ebb_json_as_string (&list->items[i], &name))
        return fail_value (source, "", "needs", "a list of names");
      plan->needs[i] = g_strdup (name);
    }
  return TRUE;
}

/* What differs between a plan and those that it may be lowered to. */
static gboolean
read_choices (const Source *source,
              const EbbJson *object,
              EbbMemoryPlan *plan)
{
  const EbbJson *lower = ebb_json_get (object, "lower");
  const char *binds;

  if (!read_text (source, object, "", "binds", &binds)
      || !read_bytes (source, object, "", "predicted_peak_bytes", &plan->predicted_peak_bytes)
      || !read_seconds (source, object, "", "seconds", &plan->seconds)
      || !read_seconds (source, object, "", "step_seconds", &plan->step_seconds))
    return FALSE;
  g_free (plan->binds);
  plan->binds = g_strdup (binds);
  if (!read_rows (source, object, plan) || !read_rungs (source, object, plan))
    return FALSE;
  if (lower == NULL)
    return TRUE;
  if (lower->kind != EBB_JSON_OBJECT)
    return fail_value (source, "", "lower", "a plan");
  plan->lower = ebb_memory_plan_new_below (plan);
  return read_choices (source, lower, plan->lower)
         && (plan->lower->predicted_peak_bytes < plan->predicted_peak_bytes
             || fail_value (source, "", "lower", "a plan that needs less"));
}

static gboolean
read_document (const Source *source,
               const EbbJson *document,
               EbbMemoryPlan *plan)
{
  const char *step;
  gint64 version;

  if (!ebb_json_as_int (ebb_json_get (document, VERSION_KEY), &version))
    return ebb_file_fail (source->path, source->error, "this is no memory plan: it has no \"%s\"", VERSION_KEY);
  if (version != VERSION)
    return ebb_file_fail (source->path, source->error,
                          "a memory plan of version %" G_GINT64_FORMAT "; this Ebb reads version %d, so plan again",
                          version, VERSION);
  if ((!source->is_of_rank && !check_parameters (source, document, plan->model))
      || !read_text (source, document, "", "step", &step)
      || !read_boolean (source, document, "on_ranks", &plan->is_on_ranks) || !read_needs (source, document, plan)
      || !read_bytes (source, document, "", "budget_bytes", &plan->budget_bytes)
      || !read_bytes (source, document, "", "unplanned_peak_bytes", &plan->unplanned_peak_bytes)
      || !read_bytes (source, document, "", "least_bytes", &plan->least_bytes))
    return FALSE;
  g_free (plan->step);
  plan->step = g_strdup (step);
  return read_choices (source, document, plan);
}

static EbbMemoryPlan *
read_plan (EbbModule *model,
           const EbbJson *document,
           const char *name,
           gboolean is_of_rank,
           GError **error)
{
  g_autoptr (EbbMemoryPlan) self = ebb_memory_plan_new_empty (model);
  const Source source = { name, error, is_of_rank };

  return read_document (&source, document, self) ? g_steal_pointer (&self) : NULL;
}

/**
 * ebb_memory_plan_load:
 * @model: the model that the plan is for
 * @path: a file that ebb_memory_plan_save() has written
 * @error: return location for an error
 *
 * Reads a plan. It must be for a model with the same blocks, and with parameters of the same names, shapes and types.
 *
 * Returns: (transfer full) (nullable): the plan; %NULL with %EBB_ERROR_FORMAT if the file is damaged, of another
 *   version or for another model, or with %EBB_ERROR_IO
 */
EbbMemoryPlan *
ebb_memory_plan_load (EbbModule *model,
                      const char *path,
                      GError **error)
{
  g_autoptr (EbbJson) document = NULL;

  if (!EBB_MAY_BEGIN (error, model, path))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (model), NULL);

  document = ebb_json_read_file (path, MAX_FILE_SIZE, error);
  return document != NULL ? read_plan (model, document, path, FALSE, error) : NULL;
}

/**
 * ebb_memory_plan_new_from_json: (constructor)
 * @model: the model that the plan is for
 * @json: what ebb_memory_plan_to_json() has given
 * @error: return location for an error
 *
 * The same as ebb_memory_plan_load() for a plan in memory, for example one that was made for a model of a dry run.
 *
 * Returns: (transfer full) (nullable): the plan; %NULL with %EBB_ERROR_FORMAT
 */
EbbMemoryPlan *
ebb_memory_plan_new_from_json (EbbModule *model,
                               const char *json,
                               GError **error)
{
  g_autoptr (EbbJson) document = NULL;

  if (!EBB_MAY_BEGIN (error, model, json))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (model), NULL);

  document = ebb_json_parse (json, strlen (json), "the plan", error);
  return document != NULL ? read_plan (model, document, "the plan", FALSE, error) : NULL;
}

EbbMemoryPlan *
ebb_memory_plan_new_of_rank (EbbModule *model,
                             const char *json,
                             GError **error)
{
  g_autoptr (EbbJson) document = ebb_json_parse (json, strlen (json), "the plan", error);

  return document != NULL ? read_plan (model, document, "the plan", TRUE, error) : NULL;
}
