/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Plans: which modules are sharded and in which style. And the options of ebb_parallelize (). */
#include "dist/tensor-parallel/plan-private.h"

#include "nn/models/bert.h"
#include "nn/models/gpt.h"
#include "nn/module-private.h"
#include "tensor/error-private.h"
#include "tensor/error.h"
#include "tensor/util/property-private.h"

#include <string.h>

G_DEFINE_BOXED_TYPE (EbbParallelPlan, ebb_parallel_plan, ebb_parallel_plan_copy, ebb_parallel_plan_free)

static const char *const style_names[] = { "column", "column_qkv", "column_gathered", "row", "row_scattered",
                                           "vocab", "parameter", "attention", "sequence" };

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
      {
        g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                     "the pattern \"%s\": \"%s\" is no part of a path; it must be a name, or \"*\" for any", pattern,
                     parts[i]);
        return FALSE;
      }
  if (parts[0] != NULL)
    return TRUE;
  g_set_error_literal (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                       "the pattern is empty; it must be the path of a module, as in \"h.*.attn.c_proj\"");
  return FALSE;
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

  if (!EBB_MAY_BEGIN (error, self, pattern))
    return FALSE;
  if ((guint) style >= G_N_ELEMENTS (style_names))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "the pattern \"%s\": %d is no style", pattern,
                   (int) style);
      return FALSE;
    }
  if (!check_pattern (pattern, error))
    return FALSE;
  for (guint i = 0; i < self->rules->len; i++)
    if (ebb_parallel_plan_get_rule (self, i)->style == style
        && strcmp (ebb_parallel_plan_get_rule (self, i)->pattern, pattern) == 0)
      {
        g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "the pattern \"%s\" is planned as %s already",
                     pattern, style_names[style]);
        return FALSE;
      }
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
  const char *pattern;
  EbbParallelStyle style;
} KnownRule;

static const KnownRule gpt_rules[] = {
  { "wte", EBB_PARALLEL_STYLE_VOCAB },
  { "h", EBB_PARALLEL_STYLE_SEQUENCE },
  { "h.*.attn", EBB_PARALLEL_STYLE_ATTENTION },
  { "h.*.attn.c_attn", EBB_PARALLEL_STYLE_COLUMN_QKV },
  { "h.*.attn.c_proj", EBB_PARALLEL_STYLE_ROW },
  { "h.*.mlp.c_fc", EBB_PARALLEL_STYLE_COLUMN },
  { "h.*.mlp.c_proj", EBB_PARALLEL_STYLE_ROW },
  { "lm_head", EBB_PARALLEL_STYLE_COLUMN_GATHERED }, /* last: where there is one */
};

/* Gates and heads only where there are any. */
static const KnownRule llama_rules[] = {
  { "embed_tokens", EBB_PARALLEL_STYLE_VOCAB },
  { "layers", EBB_PARALLEL_STYLE_SEQUENCE },
  { "layers.*.self_attn", EBB_PARALLEL_STYLE_ATTENTION },
  { "layers.*.self_attn.q_proj", EBB_PARALLEL_STYLE_COLUMN },
  { "layers.*.self_attn.k_proj", EBB_PARALLEL_STYLE_COLUMN },
  { "layers.*.self_attn.v_proj", EBB_PARALLEL_STYLE_COLUMN },
  { "layers.*.self_attn.o_proj", EBB_PARALLEL_STYLE_ROW },
  { "layers.*.mlp.gate_proj", EBB_PARALLEL_STYLE_COLUMN },
  { "layers.*.mlp.up_proj", EBB_PARALLEL_STYLE_COLUMN },
  { "layers.*.mlp.down_proj", EBB_PARALLEL_STYLE_ROW },
  { "lm_head", EBB_PARALLEL_STYLE_COLUMN_GATHERED },
};

static const KnownRule bert_rules[] = {
  { "word_embeddings", EBB_PARALLEL_STYLE_VOCAB },
  { "output_bias", EBB_PARALLEL_STYLE_PARAMETER },
  { "layer", EBB_PARALLEL_STYLE_SEQUENCE },
  { "layer.*.attn", EBB_PARALLEL_STYLE_ATTENTION },
  { "layer.*.attn.c_attn", EBB_PARALLEL_STYLE_COLUMN_QKV },
  { "layer.*.attn.c_proj", EBB_PARALLEL_STYLE_ROW },
  { "layer.*.mlp.c_fc", EBB_PARALLEL_STYLE_COLUMN },
  { "layer.*.mlp.c_proj", EBB_PARALLEL_STYLE_ROW },
};

static EbbParallelPlan *
new_from (const KnownRule *rules, guint n)
{
  EbbParallelPlan *plan = ebb_parallel_plan_new ();

  for (guint i = 0; i < n; i++)
    ebb_parallel_plan_add (plan, rules[i].pattern, rules[i].style, NULL);
  return plan;
}

static EbbParallelPlan *
new_for_gpt (EbbGpt *gpt)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (gpt);
  EbbParallelPlan *plan;

  if (config->layout == EBB_GPT_LAYOUT_GPT2)
    return new_from (gpt_rules, G_N_ELEMENTS (gpt_rules) - (config->tied ? 1 : 0));
  plan = ebb_parallel_plan_new ();
  for (guint i = 0; i < G_N_ELEMENTS (llama_rules) - (config->tied ? 1 : 0); i++)
    if (config->gated || !g_str_has_suffix (llama_rules[i].pattern, ".gate_proj"))
      ebb_parallel_plan_add (plan, llama_rules[i].pattern, llama_rules[i].style, NULL);
  return plan;
}

/**
 * ebb_parallel_plan_new_for:
 * @module: a model
 * @error: return location for an error
 *
 * The plan that ebb_parallelize() has for a model of Ebb's own, #EbbGpt or #EbbBert: attention is sharded by heads, the
 * feed-forward parts by their hidden elements, the embedding of tokens and the output by the vocabulary (Shoeybi et
 * al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019, section 3); the
 * rest is the same on all ranks.
 *
 * Returns: (transfer full) (nullable): the plan, or %NULL with @error set to %EBB_ERROR_NOT_SUPPORTED for other models
 */
EbbParallelPlan *
ebb_parallel_plan_new_for (EbbModule *module, GError **error)
{
  if (!EBB_MAY_BEGIN (error, module))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  if (EBB_IS_GPT (module))
    return new_for_gpt (EBB_GPT (module));
  if (EBB_IS_BERT (module))
    return new_from (bert_rules, G_N_ELEMENTS (bert_rules));
  g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
               "no plan is known for a %s: name the layers to shard by an EbbParallelPlan in the options",
               ebb_module_get_type_name (module));
  return NULL;
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
