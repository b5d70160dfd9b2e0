/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/config-private.h"

#include "tensor/error-private.h"

#include <math.h>
#include <string.h>

/* Reads config.json into a configuration, and writes a configuration into it: keys that say the same already stay as
 * they are, and so do keys that Ebb does not know. */

#define MAX_LAYERS 65536

/* -- reading ------------------------------------------------------------------------------------------------------- */

static void
begin_config (const EbbArchitecture *architecture,
              EbbGptConfig *config)
{
  config->layout = architecture->layout;
  config->dropout = 0; /* unless there is a key for it */
  config->norm = architecture->norm;
  config->norm_order = architecture->norm_order;
  config->gated = architecture->gated;
  config->bias = architecture->all_biases;
  config->qkv_bias = architecture->qkv_bias;
  config->qk_norm = architecture->qk_norm;
  config->positions = architecture->positions;
  config->rotary.theta = architecture->theta > 0 ? architecture->theta : config->rotary.theta;
}

static gboolean
prefix_check (const EbbConfigSource *source,
              gboolean ok,
              GError **error)
{
  g_autofree char *shown = ok ? NULL : ebb_escape_text (source->path);

  if (!ok)
    g_prefix_error (error, "%s: ", shown);
  return ok;
}

EbbGptConfig *
ebb_config_read_gpt (const EbbConfigSource *source,
                     GError **error)
{
  const EbbArchitecture *architecture = source->architecture;
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  EbbQuantization quantization; /* of the weights, which the model's configuration leaves out */

  begin_config (architecture, config);
  if (!ebb_config_read_quantization (source, &quantization, error)
      || !ebb_config_read_rows (source, ebb_config_keys_of_all, config, error)
      || !ebb_config_read_rows (source, architecture->keys, config, error))
    return NULL;
  if (config->layers > MAX_LAYERS)
    return ebb_fail_null (error, EBB_ERROR_STATE, "%s: %d layers: there must be %d at most",
                          ebb_show_text (source->path), config->layers, MAX_LAYERS);
  if (config->attention_dropout == config->dropout)
    config->attention_dropout = -1;
  if (architecture->scales_embeddings)
    config->embedding_scale = sqrt (config->width);
  if (!ebb_config_read_layers (source, config, error)
      || (architecture->positions == EBB_POSITIONS_ROTARY && !ebb_config_read_rotary (source, config, error))
      || !prefix_check (source, ebb_gpt_config_check (config, error), error))
    return NULL;
  return g_steal_pointer (&config);
}

EbbBertConfig *
ebb_config_read_bert (const EbbConfigSource *source,
                      GError **error)
{
  g_autoptr (EbbBertConfig) config = ebb_bert_config_new ();
  EbbQuantization quantization;

  if (!ebb_config_read_quantization (source, &quantization, error)
      || !ebb_config_read_rows (source, ebb_config_keys_of_all, config, error)
      || !ebb_config_read_rows (source, source->architecture->keys, config, error)
      || !prefix_check (source, ebb_bert_config_check (config, error), error))
    return NULL;
  if (config->attention_dropout == config->dropout)
    config->attention_dropout = -1;
  return g_steal_pointer (&config);
}

/* -- comparing ----------------------------------------------------------------------------------------------------- */

/* A copy in which what 0 stands for is there, so that equal models have equal fields. */
static EbbGptConfig *
spell_out (const EbbGptConfig *config)
{
  EbbGptConfig *copy = ebb_gpt_config_copy (config);

  copy->kv_heads = copy->kv_heads > 0 ? copy->kv_heads : copy->heads;
  copy->head_width = copy->head_width > 0 ? copy->head_width : copy->width / MAX (copy->heads, 1);
  copy->hidden = copy->hidden > 0 ? copy->hidden : 4 * copy->width;
  copy->attention_dropout = copy->attention_dropout >= 0 ? copy->attention_dropout : copy->dropout;
  copy->qkv_bias = copy->qkv_bias || copy->bias;
  copy->output_bias = copy->output_bias || copy->bias;
  copy->mlp_bias = copy->mlp_bias || copy->bias;
  copy->attention_scale = copy->attention_scale > 0 ? copy->attention_scale : 1 / sqrt (copy->head_width);
  copy->embedding_scale = copy->embedding_scale > 0 ? copy->embedding_scale : 1;
  return copy;
}

#define FIELD(field, kind)                                                           \
  {                                                                                  \
#field, EBB_CONFIG_KEY_##kind, G_STRUCT_OFFSET(EbbGptConfig, field), NULL, FALSE \
  }

/* Those of the model; the residual stream's dtype and dropout are of its training. */
static const EbbConfigKeyRow gpt_fields[] = {
  FIELD (layout, SIZE),
  FIELD (positions, SIZE),
  FIELD (norm, SIZE),
  FIELD (norm_order, SIZE),
  FIELD (vocab, SIZE),
  FIELD (context, SIZE),
  FIELD (width, SIZE),
  FIELD (heads, SIZE),
  FIELD (kv_heads, SIZE),
  FIELD (head_width, SIZE),
  FIELD (hidden, SIZE),
  FIELD (layers, SIZE),
  FIELD (activation, ACTIVATION),
  FIELD (gated, FLAG),
  FIELD (tied, FLAG),
  FIELD (bias, FLAG),
  FIELD (qkv_bias, FLAG),
  FIELD (output_bias, FLAG),
  FIELD (mlp_bias, FLAG),
  FIELD (qk_norm, FLAG),
  FIELD (norm_eps, NUMBER),
  FIELD (attention_scale, SCALE),
  FIELD (attention_softcap, NUMBER),
  FIELD (logit_softcap, NUMBER),
  FIELD (embedding_scale, SCALE),
};

const char *
ebb_config_find_difference (const EbbGptConfig *a,
                            const EbbGptConfig *b)
{
  g_autoptr (EbbGptConfig) x = spell_out (a);
  g_autoptr (EbbGptConfig) y = spell_out (b);

  for (guint i = 0; i < G_N_ELEMENTS (gpt_fields); i++)
    if (!ebb_config_row_is_equal (&gpt_fields[i], x, y))
      return gpt_fields[i].name;
  if (!ebb_config_rotary_is_equal (a, b))
    return a->rotary.scaling != b->rotary.scaling || a->local_rotary.theta == b->local_rotary.theta ? "rotary"
                                                                                                    : "local_rotary";
  return ebb_config_layers_are_equal (a, b) ? NULL : "window or the layer pattern";
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

static void
write_class (const EbbArchitecture *architecture,
             EbbJson *document)
{
  g_autofree char *list = g_strdup_printf ("[\"%s\"]", architecture->class_name);
  g_autofree char *type = g_strdup_printf ("\"%s\"", architecture->model_type);
  const EbbJson *old = ebb_json_get (document, "architectures");

  if (old == NULL || old->kind != EBB_JSON_LIST || old->n_items != 1
      || g_strcmp0 (old->items[0].text, architecture->class_name) != 0)
    ebb_json_set (document, "architectures", list);
  if (ebb_json_get (document, "model_type") == NULL)
    ebb_json_set (document, "model_type", type);
}

static EbbJson *
new_document (const EbbArchitecture *architecture)
{
  static const char *const tokens[] = { "bos_token_id", "eos_token_id", "pad_token_id" };
  EbbJson *document = ebb_json_parse ("{}", 2, EBB_CONFIG_FILE, NULL);

  write_class (architecture, document);
  /* The usual ones of the architecture belong to its own vocabulary. */
  for (guint i = 0; i < G_N_ELEMENTS (tokens); i++)
    ebb_json_set (document, tokens[i], "null");
  return document;
}

static EbbJson *
write_gpt (const EbbArchitecture *architecture,
           const EbbJson *document,
           const EbbGptConfig *config,
           GError **error)
{
  g_autoptr (EbbJson) written = document != NULL ? ebb_json_copy (document) : new_document (architecture);
  const EbbConfigSource source = { architecture, EBB_CONFIG_FILE, written, TRUE };
  g_autoptr (EbbGptConfig) before = document != NULL ? ebb_config_read_gpt (&source, NULL) : NULL;
  g_autoptr (EbbGptConfig) after = NULL;
  g_autoptr (EbbGptConfig) full = NULL;
  const char *difference;

  write_class (architecture, written);
  if (before == NULL || ebb_config_find_difference (before, config) != NULL || before->dropout != config->dropout
      || before->attention_dropout != config->attention_dropout)
    {
      full = spell_out (config);
      if (before != NULL)
        {
          EbbGptConfig *spelled = spell_out (before);

          ebb_gpt_config_free (before);
          before = spelled;
        }
      ebb_config_write_rows (architecture->keys, full, before, written);
      if (before == NULL || !ebb_config_rotary_is_equal (before, config))
        ebb_config_write_rotary (architecture, config, written);
      if (before == NULL || !ebb_config_layers_are_equal (before, config))
        ebb_config_write_layers (architecture, config, written);
    }
  after = ebb_config_read_gpt (&source, error);
  if (after == NULL)
    {
      g_prefix_error (error, "the model can't be saved as %s: ", architecture->model_type);
      return NULL;
    }
  difference = ebb_config_find_difference (after, config);
  if (difference == NULL)
    return g_steal_pointer (&written);
  return ebb_fail_null (error, EBB_ERROR_STATE,
                        "the model can't be saved as %s: its %s is one that such a model does not have",
                        architecture->model_type, difference);
}

static EbbJson *
write_bert (const EbbArchitecture *architecture,
            const EbbJson *document,
            const EbbBertConfig *config)
{
  EbbJson *written = document != NULL ? ebb_json_copy (document) : new_document (architecture);
  const EbbConfigSource source = { architecture, EBB_CONFIG_FILE, written, TRUE };
  g_autoptr (EbbBertConfig) before = document != NULL ? ebb_config_read_bert (&source, NULL) : NULL;
  g_autoptr (EbbBertConfig) full = ebb_bert_config_copy (config);

  full->hidden = full->hidden > 0 ? full->hidden : 4 * full->width;
  full->attention_dropout = full->attention_dropout >= 0 ? full->attention_dropout : full->dropout;
  if (before != NULL && before->attention_dropout < 0)
    before->attention_dropout = before->dropout;
  write_class (architecture, written);
  ebb_config_write_rows (architecture->keys, full, before, written);
  return written;
}

EbbJson *
ebb_config_write (const EbbArchitecture *architecture,
                  const EbbJson *document,
                  gconstpointer config,
                  GError **error)
{
  return architecture->is_bert ? write_bert (architecture, document, config)
                               : write_gpt (architecture, document, config, error);
}

const EbbArchitecture *
ebb_config_find_architecture (const EbbGptConfig *config,
                              GError **error)
{
  g_autoptr (GString) reasons = g_string_new (NULL);

  for (guint i = 0; i < ebb_n_architectures; i++)
    {
      const EbbArchitecture *architecture = &ebb_architectures[i];
      g_autoptr (GError) reason = NULL;
      g_autoptr (EbbJson) document = NULL;

      if (architecture->is_bert || architecture->layout != config->layout)
        continue;
      document = ebb_config_write (architecture, NULL, config, &reason);
      if (document != NULL)
        return architecture;
      g_string_append_printf (reasons, "%s%s", reasons->len > 0 ? "; " : "", reason->message);
    }
  return ebb_fail_null (error, EBB_ERROR_STATE, "no architecture has all choices of the model: %s", reasons->str);
}
