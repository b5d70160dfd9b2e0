/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Matches a plan's patterns with a module tree, and checks whether the plan can be applied. */
#include "dist/tensor-parallel/job-private.h"

#include "nn/layers/block-private.h"
#include "nn/layers/layer-private.h"
#include "nn/module-instance-private.h"
#include "nn/layers/mlp.h"
#include "nn/layers/module-list.h"
#include "nn/layers/multi-head-attention.h"
#include "nn/layers/sequential.h"
#include "tensor/tensor-private.h"

#include <string.h>

gint64
ebb_parallel_get_heads (EbbModule *module)
{
  GParamSpec *spec = g_object_class_find_property (G_OBJECT_GET_CLASS (module), "heads");
  int heads = 0;

  if (spec != NULL && spec->value_type == G_TYPE_INT)
    g_object_get (module, "heads", &heads, NULL);
  return heads;
}

gboolean
ebb_parallel_check_heads (const char *path,
                          gint64 n_heads,
                          gint64 n_kv_heads,
                          EbbProcessGroup *group,
                          GError **error)
{
  const guint n = ebb_process_group_get_size (group);
  const char *colon = *path != '\0' ? ": " : "";

  if (n_heads % n == 0 && n_kv_heads % n == 0)
    return TRUE;
  if (n_kv_heads == n_heads)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "%s%s%" G_GINT64_FORMAT " heads can't be divided among %u ranks", path, colon, n_heads, n);
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "%s%s%" G_GINT64_FORMAT " heads and %" G_GINT64_FORMAT
                   " kv_heads can't both be divided among %u ranks",
                   path, colon, n_heads, n_kv_heads, n);
}

gboolean
ebb_parallel_check_no_graph (EbbModule *root, const char *what, GError **error)
{
  g_auto (GStrv) names = ebb_module_get_parameter_names (root, TRUE);
  guint n, first;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (root, TRUE, &n);

  first = n;
  for (guint i = n; i-- > 0;)
    {
      if (__atomic_load_n (&parameters[i]->n_uses, __ATOMIC_RELAXED) != 0)
        first = i;
      ebb_tensor_unref (parameters[i]);
    }
  return first == n
         || ebb_fail (error, EBB_ERROR_STATE, "%s: a graph holds the parameter %s: run its backward or drop it first",
                      what, names[first]);
}

/* -- the tree ------------------------------------------------------------------------------------------------------ */

static gboolean
fail (GError **error, EbbError code, const char *path, const char *format, ...) G_GNUC_PRINTF (4, 5);

static gboolean
fail (GError **error, EbbError code, const char *path, const char *format, ...)
{
  g_autofree char *text = NULL;
  va_list arguments;

  va_start (arguments, format);
  text = g_strdup_vprintf (format, arguments);
  va_end (arguments);
  return ebb_fail (error, code, "%s%s%s", path, *path != '\0' ? ": " : "", text);
}

typedef struct
{
  EbbParallelJob *job;
  guint *n_matches; /* of each rule */
  GError **error;
} Search;

/* The parameters of a parallel layer, or of one that has a parameter owner, can't be sharded again. */
static gboolean
check_module (EbbModule *module, const char *path, gpointer user_data)
{
  Search *search = user_data;
  EbbModulePrivate *priv = ebb_module_get_private (module);

  for (guint i = 0; i < priv->parameters.n_items; i++)
    {
      EbbTensor *parameter = priv->parameters.items[i].tensor;
      g_autofree char *name = ebb_module_join_path (path, priv->parameters.items[i].name);

      if (parameter != NULL && parameter->partition != NULL)
        return fail (search->error, EBB_ERROR_STATE, name, "the parameter is sharded over ranks already");
      if (parameter != NULL && parameter->owner != NULL)
        return fail (search->error, EBB_ERROR_STATE, name,
                     "the parameter is sharded or replicated already: parallelize first, then wrap");
    }
  return TRUE;
}

static guint
count_sections (EbbModule *module, EbbParallelStyle style)
{
  EbbModule *parent = ebb_module_get_private (module)->parent;
  int context_width = 0;

  if (style != EBB_PARALLEL_STYLE_COLUMN_QKV)
    return 1;
  if (parent != NULL && EBB_IS_MULTI_HEAD_ATTENTION (parent))
    g_object_get (parent, "context-width", &context_width, NULL);
  return context_width > 0 ? 2 : 3; /* in cross attention keys and values alone */
}

static gboolean
check_layer (EbbModule *module, const char *path, EbbParallelStyle style, GError **error)
{
  GType wanted = style == EBB_PARALLEL_STYLE_VOCAB ? EBB_TYPE_EMBEDDING : EBB_TYPE_LINEAR;

  if (G_OBJECT_TYPE (module) != wanted)
    return fail (error, EBB_ERROR_NOT_SUPPORTED, path, "the style %s is for a %s, but this is a %s",
                 ebb_parallel_style_get_name (style), wanted == EBB_TYPE_LINEAR ? "Linear" : "Embedding",
                 ebb_module_get_type_name (module));
  if (ebb_module_get_private (module)->plan != NULL)
    return fail (error, EBB_ERROR_STATE, path,
                 "the layer is wrapped, or has hooks, which another layer in its place would not have: parallelize "
                 "first, then wrap");
  return TRUE;
}

static gboolean
check_attention (EbbParallelJob *job, EbbModule *module, const char *path, GError **error)
{
  const gint64 n_heads = ebb_parallel_get_heads (module);

  if (ebb_parallel_attention_is_installed (module))
    return fail (error, EBB_ERROR_STATE, path, "the attention is sharded over ranks already");
  return ebb_parallel_check_heads (
      path, n_heads, EBB_IS_MULTI_HEAD_ATTENTION (module) ? ebb_multi_head_attention_get_kv_heads (module) : n_heads,
      job->group, error);
}

static gboolean
check_stack (EbbModule *module, const char *path, GError **error)
{
  if (EBB_IS_MODULE_LIST (module) || EBB_IS_SEQUENTIAL (module))
    return TRUE;
  return fail (error, EBB_ERROR_NOT_SUPPORTED, path,
               "the style sequence is for a ModuleList or a Sequential, whose modules are called in turn, but this is "
               "a %s",
               ebb_module_get_type_name (module));
}

static gboolean
add_step (EbbParallelJob *job, EbbModule *module, const char *path, EbbParallelStyle style, EbbTensor *parameter)
{
  EbbParallelStep step = { .style = style, .path = g_strdup (path), .module = g_object_ref (module) };

  step.parameter = parameter != NULL ? ebb_tensor_ref (parameter) : NULL;
  step.n_sections = count_sections (module, style);
  g_array_append_val (job->steps, step);
  return TRUE;
}

static gboolean
has_step (EbbParallelJob *job, EbbModule *module, EbbParallelStyle style)
{
  for (guint i = 0; i < job->steps->len; i++)
    {
      const EbbParallelStep *step = &g_array_index (job->steps, EbbParallelStep, i);

      if (step->module == module && step->style == style)
        return TRUE;
    }
  return FALSE;
}

/* For the path "h.0.c_fc" the pattern that gave it its style: "h.*.c_fc" (column) */
static char *
describe_rule (EbbParallelJob *job, EbbModule *module, const char *path)
{
  for (guint i = 0; i < job->plan->rules->len; i++)
    {
      EbbParallelStyle style = ebb_parallel_plan_get_rule (job->plan, i)->style;

      if (has_step (job, module, style) && style != EBB_PARALLEL_STYLE_ATTENTION && style != EBB_PARALLEL_STYLE_SEQUENCE
          && ebb_parallel_rule_matches (ebb_parallel_plan_get_rule (job->plan, i), path))
        return g_strdup_printf ("\"%s\" (%s)", ebb_parallel_plan_get_rule (job->plan, i)->pattern,
                                ebb_parallel_style_get_name (style));
    }
  return g_strdup ("another pattern");
}

/* Queries, keys and values lie one after another: a shard of all of them is not a shard of each. */
static gboolean
check_joined (EbbModule *module, const char *path, EbbParallelStyle style, GError **error)
{
  EbbModule *parent = ebb_module_get_private (module)->parent;
  const char *name = strrchr (path, '.');

  if (style != EBB_PARALLEL_STYLE_COLUMN || parent == NULL || !EBB_IS_MULTI_HEAD_ATTENTION (parent)
      || strcmp (name != NULL ? name + 1 : path, "c_attn") != 0)
    return TRUE;
  return fail (error, EBB_ERROR_INVALID_ARGUMENT, path,
               "the style column would divide queries, keys and values of a %s as one; take column_qkv, which divides "
               "each",
               ebb_module_get_type_name (parent));
}

/* A module in several places is sharded once, so the plan must give it one style. */
static gboolean
add_layer (EbbParallelJob *job, EbbModule *module, const char *path, guint rule, GError **error)
{
  EbbParallelStyle style = ebb_parallel_plan_get_rule (job->plan, rule)->style;
  const char *before = g_hash_table_lookup (job->layers, module);
  g_autofree char *other = NULL;

  if (before == NULL)
    {
      if (!check_layer (module, path, style, error) || !check_joined (module, path, style, error))
        return FALSE;
      g_hash_table_insert (job->layers, module, g_strdup (path));
      return add_step (job, module, path, style, NULL);
    }
  if (has_step (job, module, style))
    return TRUE;
  other = describe_rule (job, module, before);
  return fail (error, EBB_ERROR_INVALID_ARGUMENT, path,
               "the plan's pattern \"%s\" gives the layer the style %s, and another one as %s: %s; it may have one of "
               "them",
               ebb_parallel_plan_get_rule (job->plan, rule)->pattern, ebb_parallel_style_get_name (style), before,
               other);
}

static gboolean
match_module (EbbParallelJob *job, EbbModule *module, const char *path, guint rule, GError **error)
{
  EbbParallelStyle style = ebb_parallel_plan_get_rule (job->plan, rule)->style;

  if (style != EBB_PARALLEL_STYLE_ATTENTION && style != EBB_PARALLEL_STYLE_SEQUENCE)
    return add_layer (job, module, path, rule, error);
  if (has_step (job, module, style))
    return TRUE;
  return (style == EBB_PARALLEL_STYLE_ATTENTION ? check_attention (job, module, path, error)
                                                : check_stack (module, path, error))
         && add_step (job, module, path, style, NULL);
}

static void
match_parameters (EbbParallelJob *job, guint rule, EbbModule *module, const char *path, guint *n_matches)
{
  EbbTensorRegistry *parameters = &ebb_module_get_private (module)->parameters;

  for (guint i = 0; i < parameters->n_items; i++)
    {
      g_autofree char *name = ebb_module_join_path (path, parameters->items[i].name);

      if (parameters->items[i].tensor == NULL
          || !ebb_parallel_rule_matches (ebb_parallel_plan_get_rule (job->plan, rule), name))
        continue;
      (*n_matches)++;
      add_step (job, module, name, EBB_PARALLEL_STYLE_PARAMETER, parameters->items[i].tensor);
    }
}

static gboolean
match (EbbModule *module, const char *path, gpointer user_data)
{
  Search *search = user_data;
  EbbParallelJob *job = search->job;

  for (guint i = 0; i < job->plan->rules->len; i++)
    {
      EbbParallelStyle style = ebb_parallel_plan_get_rule (job->plan, i)->style;

      if (*search->error != NULL)
        break;
      if (style == EBB_PARALLEL_STYLE_PARAMETER)
        match_parameters (job, i, module, path, &search->n_matches[i]);
      else if (*path != '\0' && ebb_parallel_rule_matches (ebb_parallel_plan_get_rule (job->plan, i), path))
        {
          search->n_matches[i]++;
          match_module (job, module, path, i, search->error);
        }
    }
  return TRUE;
}

static gboolean
check_matches (EbbParallelJob *job, const guint *n_matches, GError **error)
{
  if (job->plan->rules->len == 0)
    return fail (error, EBB_ERROR_INVALID_ARGUMENT, ebb_module_get_type_name (job->root),
                 "the plan is empty: nothing would be sharded");
  for (guint i = 0; i < job->plan->rules->len; i++)
    if (n_matches[i] == 0)
      return fail (error, EBB_ERROR_INVALID_ARGUMENT, ebb_module_get_type_name (job->root),
                   "the plan's pattern \"%s\" (%s) matches %s", ebb_parallel_plan_get_rule (job->plan, i)->pattern,
                   ebb_parallel_style_get_name (ebb_parallel_plan_get_rule (job->plan, i)->style),
                   ebb_parallel_plan_get_rule (job->plan, i)->style == EBB_PARALLEL_STYLE_PARAMETER ? "no parameter"
                                                                                                    : "no module");
  return TRUE;
}

/* Products of one input, of which a rank has shards that belong together: its heads, or a gate's elements with those
 * that they multiply. */
static gboolean
check_together (EbbParallelJob *job, GError **error)
{
  static const char *const names[] = { "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj" };

  for (guint i = 0; i < job->steps->len; i++)
    {
      const EbbParallelStep *step = &g_array_index (job->steps, EbbParallelStep, i);
      EbbModule *parent = ebb_module_get_private (step->module)->parent;

      if (step->style != EBB_PARALLEL_STYLE_COLUMN || parent == NULL
          || !(EBB_IS_MULTI_HEAD_ATTENTION (parent) || EBB_IS_MLP (parent)))
        continue;
      for (guint k = 0; k < G_N_ELEMENTS (names); k++)
        {
          g_autoptr (EbbModule) other = ebb_module_get_child (parent, names[k]);

          if (other != NULL && !has_step (job, other, EBB_PARALLEL_STYLE_COLUMN))
            return fail (error, EBB_ERROR_INVALID_ARGUMENT, step->path,
                         "the plan gives it the style column, but not its neighbour %s: both must be divided alike",
                         names[k]);
        }
    }
  return TRUE;
}

/* Attention with sharded queries, keys and values has a shard of the heads, whether the plan says so or not. */
static gboolean
imply_attention (EbbParallelJob *job, GError **error)
{
  for (guint i = 0, n = job->steps->len; i < n; i++)
    {
      const EbbParallelStep *step = &g_array_index (job->steps, EbbParallelStep, i);
      EbbModule *parent = ebb_module_get_private (step->module)->parent;
      g_autofree char *path = NULL;
      char *end;

      if ((step->style != EBB_PARALLEL_STYLE_COLUMN_QKV && step->style != EBB_PARALLEL_STYLE_COLUMN) || parent == NULL
          || !EBB_IS_MULTI_HEAD_ATTENTION (parent) || has_step (job, parent, EBB_PARALLEL_STYLE_ATTENTION))
        continue;
      path = g_strdup (step->path);
      end = strrchr (path, '.');
      *(end != NULL ? end : path) = '\0';
      if (!check_attention (job, parent, path, error))
        return FALSE;
      add_step (job, parent, path, EBB_PARALLEL_STYLE_ATTENTION, NULL);
    }
  return TRUE;
}

/* -- the sequence -------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbParallelJob *job;
  EbbModule *stack;
  const char *path;
  GError **error;
} Inside;

static gboolean
is_for_parts (EbbParallelJob *job, EbbModule *module)
{
  return has_step (job, module, EBB_PARALLEL_STYLE_COLUMN) || has_step (job, module, EBB_PARALLEL_STYLE_COLUMN_QKV)
         || has_step (job, module, EBB_PARALLEL_STYLE_ROW);
}

/* A module between the boundaries applies its parameters to a shard of the sequence, so that their gradients must be
 * summed, which only norms and layers that gather the sequence do. */
static gboolean
check_inside (EbbModule *module, const char *path, gpointer user_data)
{
  Inside *inside = user_data;
  EbbParallelJob *job = inside->job;
  g_autofree char *full = *path != '\0' ? g_strdup_printf ("%s.%s", inside->path, path) : g_strdup (inside->path);
  EbbTensorRegistry *parameters = &ebb_module_get_private (module)->parameters;
  gboolean has_parameters = FALSE;

  if (module != inside->stack && has_step (job, module, EBB_PARALLEL_STYLE_SEQUENCE))
    return fail (inside->error, EBB_ERROR_INVALID_ARGUMENT, full,
                 "the plan shards the sequence inside \"%s\", where it is sharded already", inside->path);
  for (guint i = 0; i < parameters->n_items; i++)
    has_parameters = has_parameters || parameters->items[i].tensor != NULL;
  if (!has_parameters || is_for_parts (job, module) || ebb_module_is_norm (module))
    return TRUE;
  return fail (inside->error, EBB_ERROR_NOT_SUPPORTED, full,
               "a %s %s can't have parameters where the sequence is sharded, between the boundaries of \"%s\": "
               "norms can, and layers of the styles column, column_qkv and row",
               ebb_module_get_type_name (module),
               g_hash_table_contains (job->layers, module) ? "of another style" : "that is not sharded", inside->path);
}

static gboolean
check_sequence (EbbParallelJob *job, GError **error)
{
  gboolean any = FALSE;

  for (guint i = 0; job->sequence && i < job->steps->len; i++)
    {
      const EbbParallelStep *step = &g_array_index (job->steps, EbbParallelStep, i);
      Inside inside = { job, step->module, step->path, error };

      if (step->style != EBB_PARALLEL_STYLE_SEQUENCE)
        continue;
      any = TRUE;
      if (!ebb_module_visit (step->module, check_inside, &inside))
        return FALSE;
    }
  return !job->sequence || any
         || fail (error, EBB_ERROR_INVALID_ARGUMENT, ebb_module_get_type_name (job->root),
                  "sequence-parallel is asked for, but the plan has no stack of the style sequence");
}

gboolean
ebb_parallel_job_check (EbbParallelJob *self, GError **error)
{
  g_autofree guint *n_matches = g_new0 (guint, self->plan->rules->len + 1);
  GError *failure = NULL;
  Search search = { self, n_matches, &failure };

  if (ebb_module_visit (self->root, check_module, &search))
    ebb_module_visit_paths (self->root, match, &search);
  if (failure == NULL && check_matches (self, n_matches, &failure) && check_together (self, &failure)
      && imply_attention (self, &failure)
      && check_sequence (self, &failure))
    ebb_parallel_check_no_graph (self->root, "dividing the model", &failure);
  if (failure == NULL)
    return TRUE;
  g_propagate_error (error, failure);
  return FALSE;
}
