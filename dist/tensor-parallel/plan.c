/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Plans: which modules are sharded and in which style. And the options of ebb_parallelize (). */
#include "dist/tensor-parallel/plan-private.h"

#include "nn/layers/block.h"
#include "nn/layers/module-list.h"
#include "nn/layers/sequential.h"
#include "nn/models/bert.h"
#include "nn/models/gpt.h"
#include "nn/module-instance-private.h"
#include "tensor/error-private.h"
#include "tensor/util/property-private.h"

#include <string.h>

G_DEFINE_BOXED_TYPE (EbbParallelPlan, ebb_parallel_plan, ebb_parallel_plan_copy, ebb_parallel_plan_free)

static const char *const style_names[] = { "column", "column_qkv", "column_gathered", "row", "row_scattered",
                                           "vocab", "parameter", "attention", "sequence", NULL };

#define N_STYLES (G_N_ELEMENTS (style_names) - 1)

static void
rule_clear (gpointer data)
{
  g_free (((EbbParallelRule *) data)->pattern);
}

/**
 * ebb_parallel_plan_new:
 *
 * Makes an empty plan.
 *
 * Returns: (transfer full): the plan
 */
EbbParallelPlan *
ebb_parallel_plan_new (void)
{
  EbbParallelPlan *self = g_new0 (EbbParallelPlan, 1);

  self->rules = g_array_new (FALSE, FALSE, sizeof (EbbParallelRule));
  g_array_set_clear_func (self->rules, rule_clear);
  return self;
}

/**
 * ebb_parallel_plan_copy:
 * @self: a plan
 *
 * Returns: (transfer full): a copy
 */
EbbParallelPlan *
ebb_parallel_plan_copy (const EbbParallelPlan *self)
{
  EbbParallelPlan *copy;

  g_return_val_if_fail (self != NULL, NULL);

  copy = ebb_parallel_plan_new ();
  for (guint i = 0; i < self->rules->len; i++)
    {
      EbbParallelRule rule = *ebb_parallel_plan_get_rule (self, i);

      rule.pattern = g_strdup (rule.pattern);
      g_array_append_val (copy->rules, rule);
    }
  return copy;
}

/**
 * ebb_parallel_plan_free:
 * @self: (transfer full) (nullable): a plan
 *
 * Frees it.
 */
void
ebb_parallel_plan_free (EbbParallelPlan *self)
{
  if (self == NULL)
    return;
  g_array_unref (self->rules);
  g_free (self);
}

static gboolean
check_pattern (const char *pattern, GError **error)
{
  g_auto (GStrv) parts = g_strsplit (pattern, ".", -1);

  for (guint i = 0; parts[i] != NULL; i++)
    if (*parts[i] == '\0' || (strchr (parts[i], '*') != NULL && parts[i][1] != '\0'))
      return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                       "the pattern \"%s\": \"%s\" is no part of a path; it must be a name, or \"*\" for any", pattern,
                       parts[i]);
  return parts[0] != NULL
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "the pattern is empty; it must be the path of a module, as in \"h.*.attn.c_proj\"");
}

/**
 * ebb_parallel_plan_add:
 * @self: a plan
 * @pattern: the path of modules (or of a parameter) from the model on, as in `h.*.attn.c_proj`: `*` stands for any one
 *   component between dots
 * @style: how they are sharded
 * @error: return location for an error
 *
 * Adds a rule. A module may have one style that shards its parameters, and in addition %EBB_PARALLEL_STYLE_ATTENTION or
 * %EBB_PARALLEL_STYLE_SEQUENCE.
 *
 * Returns: %TRUE if it was added, %FALSE with @error set to %EBB_ERROR_INVALID_ARGUMENT if @pattern is invalid, or has
 *   this style already
 */
gboolean
ebb_parallel_plan_add (EbbParallelPlan *self, const char *pattern, EbbParallelStyle style, GError **error)
{
  EbbParallelRule rule = { NULL, style };

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, pattern);
  if ((guint) style >= N_STYLES)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "the pattern \"%s\": %d is no style", pattern, (int) style);
  if (!check_pattern (pattern, error))
    return FALSE;
  for (guint i = 0; i < self->rules->len; i++)
    if (ebb_parallel_plan_get_rule (self, i)->style == style
        && strcmp (ebb_parallel_plan_get_rule (self, i)->pattern, pattern) == 0)
      return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "the pattern \"%s\" is planned as %s already", pattern,
                       style_names[style]);
  rule.pattern = g_strdup (pattern);
  g_array_append_val (self->rules, rule);
  return TRUE;
}

/**
 * ebb_parallel_plan_to_string:
 * @self: a plan
 *
 * Returns: (transfer full): the rules for people, one a line
 */
char *
ebb_parallel_plan_to_string (const EbbParallelPlan *self)
{
  GString *text;

  g_return_val_if_fail (self != NULL, NULL);

  text = g_string_new (NULL);
  for (guint i = 0; i < self->rules->len; i++)
    g_string_append_printf (text, "%s: %s\n", ebb_parallel_plan_get_rule (self, i)->pattern,
                            style_names[ebb_parallel_plan_get_rule (self, i)->style]);
  return g_string_free (text, FALSE);
}

const char *
ebb_parallel_style_get_name (EbbParallelStyle style)
{
  return style_names[style];
}

gboolean
ebb_parallel_rule_matches (const EbbParallelRule *self, const char *path)
{
  const char *pattern = self->pattern;

  for (;;)
    {
      gsize n_pattern = strcspn (pattern, "."), n_path = strcspn (path, ".");

      if (n_path == 0 || (*pattern != '*' && (n_pattern != n_path || memcmp (pattern, path, n_path) != 0)))
        return FALSE;
      pattern += n_pattern;
      path += n_path;
      if (*pattern == '\0' || *path == '\0')
        return *pattern == *path;
      pattern++;
      path++;
    }
}

/* -- known models -------------------------------------------------------------------------------------------------- */

typedef struct
{
  const char *path;
  EbbParallelStyle style;
} KnownRule;

/* The parts of models outside of their blocks, where a model has them. */
static const KnownRule gpt_rules[] = {
  { "wte", EBB_PARALLEL_STYLE_VOCAB },
  { "embed_tokens", EBB_PARALLEL_STYLE_VOCAB },
  { "lm_head", EBB_PARALLEL_STYLE_COLUMN_GATHERED },
};

static const KnownRule bert_rules[] = {
  { "word_embeddings", EBB_PARALLEL_STYLE_VOCAB },
  { "output_bias", EBB_PARALLEL_STYLE_PARAMETER },
};

static void
add_known (EbbParallelPlan *self, EbbModule *model, const KnownRule *rules, guint n_rules)
{
  for (guint i = 0; i < n_rules; i++)
    {
      g_autoptr (EbbModule) child = ebb_module_get_child (model, rules[i].path);
      g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (model, rules[i].path);

      if (child != NULL || parameter != NULL)
        ebb_parallel_plan_add (self, rules[i].path, rules[i].style, NULL);
    }
}

static gboolean
has_rule (const EbbParallelPlan *self, const char *prefix, const char *path, EbbParallelStyle style)
{
  g_autofree char *pattern = g_strconcat (prefix, path, NULL);

  for (guint i = 0; i < self->rules->len; i++)
    if (ebb_parallel_plan_get_rule (self, i)->style == style
        && strcmp (ebb_parallel_plan_get_rule (self, i)->pattern, pattern) == 0)
      return TRUE;
  return FALSE;
}

/* Adds a rule of a block, "mlp.c_fc: column", below @prefix, "h.3.", unless it is there below @instead, "h.*.". */
static gboolean
add_text (EbbParallelPlan *self,
          EbbModule *block,
          const char *prefix,
          const char *instead,
          const char *text,
          GError **error)
{
  g_auto (GStrv) parts = g_strsplit (text, ": ", 2);
  g_autofree char *styles = NULL;
  g_autofree char *pattern = g_strconcat (prefix, parts[0], NULL);

  for (guint style = 0; g_strv_length (parts) == 2 && style < N_STYLES; style++)
    if (strcmp (parts[1], style_names[style]) == 0)
      return (instead != NULL && has_rule (self, instead, parts[0], (EbbParallelStyle) style))
             || ebb_parallel_plan_add (self, pattern, (EbbParallelStyle) style, error);
  styles = g_strjoinv (", ", (char **) style_names);
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "%s: list_parallel_rules: \"%s\" must be a path and a style, as \"mlp.c_fc: column\"; styles are %s",
                   ebb_module_get_type_name (block), text, styles);
}

/* The rules that all modules of a list have in common; NULL if @module is no list of blocks that ranks divide alike. */
static char **
get_common_rules (EbbModule *module)
{
  const guint n = EBB_IS_MODULE_LIST (module) || EBB_IS_SEQUENTIAL (module) ? ebb_module_get_n_children (module) : 0;
  g_auto (GStrv) common = NULL;

  for (guint i = 0; i < n; i++)
    {
      EbbModule *child = ebb_module_peek_child (module, i);
      g_auto (GStrv) rules = EBB_IS_BLOCK (child) ? ebb_block_list_parallel_rules (EBB_BLOCK (child)) : NULL;

      if (rules == NULL || rules[0] == NULL
          || (common != NULL && !g_strv_equal ((const char *const *) rules, (const char *const *) common)))
        return NULL;
      if (common == NULL)
        common = g_steal_pointer (&rules);
    }
  return g_steal_pointer (&common);
}

typedef struct
{
  EbbParallelPlan *plan;
  GError **error;
} Making;

/* A list of blocks that are alike has one rule for all of them, and its sequence may be sharded. */
static gboolean
add_blocks (EbbModule *module, const char *path, gpointer user_data)
{
  Making *making = user_data;
  const char *name = strrchr (path, '.') != NULL ? strrchr (path, '.') + 1 : path;
  g_auto (GStrv) common = get_common_rules (module);
  g_auto (GStrv) own = EBB_IS_BLOCK (module) ? ebb_block_list_parallel_rules (EBB_BLOCK (module)) : NULL;
  g_autofree char *below = ebb_module_join_path (path, "*.");
  g_autofree char *beside = g_strdup_printf ("%.*s*.", (int) (name - path), path);
  g_autofree char *itself = *path != '\0' ? g_strconcat (path, ".", NULL) : g_strdup ("");
  gboolean ok = TRUE;

  if (common != NULL && *path != '\0')
    ok = ebb_parallel_plan_add (making->plan, path, EBB_PARALLEL_STYLE_SEQUENCE, making->error);
  for (guint i = 0; ok && common != NULL && common[i] != NULL; i++)
    ok = add_text (making->plan, ebb_module_peek_child (module, 0), below, NULL, common[i], making->error);
  for (guint i = 0; ok && own != NULL && own[i] != NULL; i++)
    ok = add_text (making->plan, module, itself, beside, own[i], making->error);
  return ok;
}

/**
 * ebb_parallel_plan_new_for:
 * @module: a model
 * @error: return location for an error
 *
 * The plan that ebb_parallelize() has for a model: each #EbbBlock is divided as it says, see
 * ebb_block_list_parallel_rules(). In those of #EbbGpt and #EbbBert attention is sharded by heads, the feed-forward
 * parts by their hidden elements, and beside the blocks the embedding of tokens and the output by the vocabulary
 * (Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019,
 * section 3); the rest is the same on all ranks.
 *
 * Returns: (transfer full) (nullable): the plan, or %NULL with @error set to %EBB_ERROR_NOT_SUPPORTED for a model whose
 *   blocks have no rules, and to %EBB_ERROR_INVALID_ARGUMENT for a text that is not a rule
 */
EbbParallelPlan *
ebb_parallel_plan_new_for (EbbModule *module, GError **error)
{
  g_autoptr (EbbParallelPlan) plan = NULL;
  GError *failure = NULL;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, module);
  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  plan = ebb_parallel_plan_new ();
  if (EBB_IS_GPT (module))
    add_known (plan, module, gpt_rules, G_N_ELEMENTS (gpt_rules));
  else if (EBB_IS_BERT (module))
    add_known (plan, module, bert_rules, G_N_ELEMENTS (bert_rules));
  if (!ebb_module_visit (module, add_blocks, &(Making){ plan, &failure }))
    {
      g_propagate_error (error, failure);
      return NULL;
    }
  if (plan->rules->len > 0)
    return g_steal_pointer (&plan);
  return ebb_fail_null (error, EBB_ERROR_NOT_SUPPORTED,
                        "no plan is known for a %s, which has no blocks with rules: name the layers to shard by an "
                        "EbbParallelPlan in the options",
                        ebb_module_get_type_name (module));
}

/* -- options ------------------------------------------------------------------------------------------------------- */

G_DEFINE_FINAL_TYPE (EbbParallelOptions, ebb_parallel_options, G_TYPE_OBJECT)

/**
 * ebb_parallel_options_new:
 *
 * Makes options with the defaults.
 *
 * Returns: (transfer full): the options
 */
EbbParallelOptions *
ebb_parallel_options_new (void)
{
  return g_object_new (EBB_TYPE_PARALLEL_OPTIONS, NULL);
}

static void
ebb_parallel_options_finalize (GObject *object)
{
  ebb_parallel_plan_free (EBB_PARALLEL_OPTIONS (object)->plan);
  G_OBJECT_CLASS (ebb_parallel_options_parent_class)->finalize (object);
}

static void
ebb_parallel_options_class_init (EbbParallelOptionsClass *klass)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT | G_PARAM_STATIC_STRINGS;
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_parallel_options_finalize;

  /**
   * EbbParallelOptions:plan:
   *
   * Which modules are sharded, and how, as a copy; %NULL, the default: the plan of ebb_parallel_plan_new_for().
   */
  g_object_class_install_property (object_class, offsetof (EbbParallelOptions, plan),
                                   g_param_spec_boxed ("plan", NULL, NULL, EBB_TYPE_PARALLEL_PLAN, flags));
  /**
   * EbbParallelOptions:sequence-parallel:
   *
   * Whether the activations between the sharded layers (norms, dropout, residuals) are sharded along the sequence
   * (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022). %FALSE by default.
   */
  g_object_class_install_property (object_class, offsetof (EbbParallelOptions, sequence_parallel),
                                   g_param_spec_boolean ("sequence-parallel", NULL, NULL, FALSE, flags));
  /**
   * EbbParallelOptions:synchronize-weights:
   *
   * Whether all ranks begin with the first rank's parameters and buffers and with the state of its default generator.
   * %TRUE by default; otherwise they must be the same on all ranks, which is checked.
   */
  g_object_class_install_property (object_class, offsetof (EbbParallelOptions, synchronize_weights),
                                   g_param_spec_boolean ("synchronize-weights", NULL, NULL, TRUE, flags));
}

static void
ebb_parallel_options_init (EbbParallelOptions *self)
{
}
