/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"
#include "nn/models/bert.h"
#include "nn/models/gpt-file-private.h"
#include "nn/state/state-dict-private.h"
#include "nn/module-instance-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/shape.h"

#include <string.h>

/* the format of the published BERT files. Matrices are [out, in], as ours; queries, keys and values are three layers
 * there and three blocks of rows of one here, so that each published tensor is a view of ours: what saving gives is
 * where loading copies to. */

typedef struct
{
  const char *own; /* before ".weight" or ".bias" */
  const char *published;
  int part; /* which third of the rows, or -1 for all of them */
} Name;

static const Name of_model[] = {
  { "word_embeddings", "bert.embeddings.word_embeddings", -1 },
  { "position_embeddings", "bert.embeddings.position_embeddings", -1 },
  { "segment_embeddings", "bert.embeddings.token_type_embeddings", -1 },
  { "embeddings_norm", "bert.embeddings.LayerNorm", -1 },
  { "transform", "cls.predictions.transform.dense", -1 },
  { "transform_norm", "cls.predictions.transform.LayerNorm", -1 },
};

/* After "layer.N." and "bert.encoder.layer.N.". */
static const Name of_block[] = {
  { "attn.c_attn", "attention.self.query", 0 },
  { "attn.c_attn", "attention.self.key", 1 },
  { "attn.c_attn", "attention.self.value", 2 },
  { "attn.c_proj", "attention.output.dense", -1 },
  { "ln_1", "attention.output.LayerNorm", -1 },
  { "mlp.c_fc", "intermediate.dense", -1 },
  { "mlp.c_proj", "output.dense", -1 },
  { "ln_2", "output.LayerNorm", -1 },
};

/* Of the published files, what this model has no use for: the layers of the other task, position numbers, and what is
 * tied to the word embeddings or to the output bias. */
static const char *const passed_over[] = {
  "bert.pooler.dense.weight", "bert.pooler.dense.bias", "cls.seq_relationship.weight", "cls.seq_relationship.bias",
  "bert.embeddings.position_ids", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"
};

static gboolean
add_published (EbbArgs *published, const char *name, EbbTensor *tensor, int part, GError **error)
{
  g_autoptr (EbbTensor) rows = NULL;
  gint64 n_rows;

  if (part < 0)
    {
      ebb_args_add_tensor (published, name, tensor);
      return TRUE;
    }
  n_rows = ebb_tensor_get_dim (tensor, 0) / 3;
  rows = ebb_narrow (tensor, 0, part * n_rows, n_rows, error);
  if (rows == NULL)
    return FALSE;
  ebb_args_add_tensor (published, name, rows);
  return TRUE;
}

/* All tensors of @own whose name, after @own_prefix, begins with one of @names and a dot. */
static gboolean
add_renamed (EbbArgs *published,
             EbbArgs *own,
             const char *own_prefix,
             const char *published_prefix,
             const Name *names,
             guint n_names,
             GError **error)
{
  static const char *const kinds[] = { "weight", "bias" };

  for (guint i = 0; i < n_names; i++)
    for (guint kind = 0; kind < G_N_ELEMENTS (kinds); kind++)
      {
        g_autofree char *own_name = g_strconcat (own_prefix, names[i].own, ".", kinds[kind], NULL);
        g_autofree char *name = g_strconcat (published_prefix, names[i].published, ".", kinds[kind], NULL);
        int index = ebb_args_find (own, own_name);
        g_autoptr (EbbTensor) tensor = index >= 0 ? ebb_args_get_tensor (own, (guint) index) : NULL;

        if (tensor != NULL && !add_published (published, name, tensor, names[i].part, error))
          return FALSE;
      }
  return TRUE;
}

static EbbArgs *
collect_published (EbbBert *self, GError **error)
{
  g_autoptr (EbbArgs) own = ebb_module_get_state_dict (EBB_MODULE (self));
  g_autoptr (EbbArgs) published = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbBertConfig) config = ebb_bert_get_config (self);
  int bias = ebb_args_find (own, "output_bias");

  if (!ebb_module_check_not_tensor_parallel (
          EBB_MODULE (self), "gather it by ebb_get_full_state_dict(), and load that into a model that is not divided",
          error))
    return NULL;
  if (!add_renamed (published, own, "", "", of_model, G_N_ELEMENTS (of_model), error))
    return NULL;
  for (int i = 0; config != NULL && i < config->layers; i++)
    {
      g_autofree char *own_prefix = g_strdup_printf ("layer.%d.", i);
      g_autofree char *prefix = g_strdup_printf ("bert.encoder.layer.%d.", i);

      if (!add_renamed (published, own, own_prefix, prefix, of_block, G_N_ELEMENTS (of_block), error))
        return NULL;
    }
  if (bias >= 0)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (own, (guint) bias);

      ebb_args_add_tensor (published, "cls.predictions.bias", tensor);
    }
  return g_steal_pointer (&published);
}

/* The oldest files call a norm's weight and bias gamma and beta. */
static char *
rename_norm (const char *name)
{
  static const char gamma[] = ".LayerNorm.gamma", beta[] = ".LayerNorm.beta";

  if (g_str_has_suffix (name, gamma))
    return g_strdup_printf ("%.*s.LayerNorm.weight", (int) (strlen (name) - strlen (gamma)), name);
  if (g_str_has_suffix (name, beta))
    return g_strdup_printf ("%.*s.LayerNorm.bias", (int) (strlen (name) - strlen (beta)), name);
  return g_strdup (name);
}

/* FALSE with an error if the state has a tied weight twice and the values differ. */
static gboolean
check_tied (EbbArgs *state, GError **error)
{
  static const char *const pairs[][2] = {
    { "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight" },
    { "cls.predictions.decoder.bias", "cls.predictions.bias" },
  };

  for (guint i = 0; i < G_N_ELEMENTS (pairs); i++)
    {
      int copy = ebb_args_find (state, pairs[i][0]), own = ebb_args_find (state, pairs[i][1]);
      EbbTensor *a = copy >= 0 ? ebb_args_peek_tensor (state, (guint) copy) : NULL;
      EbbTensor *b = own >= 0 ? ebb_args_peek_tensor (state, (guint) own) : NULL;

      if (a == NULL || b == NULL || ebb_weights_have_same_bits (a, b))
        continue;
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "load_published: %s differs from %s: an EbbBert has one for both",
                   pairs[i][0], pairs[i][1]);
      return FALSE;
    }
  return TRUE;
}

static EbbArgs *
drop_and_rename (EbbArgs *state, GError **error)
{
  g_autoptr (EbbArgs) result = ebb_args_new (EBB_ARGS_DICT);

  if (!check_tied (state, error))
    return NULL;
  for (guint i = 0; i < ebb_args_get_length (state); i++)
    {
      const char *name = ebb_args_get_key (state, i);
      g_autoptr (EbbTensor) tensor = NULL;
      g_autofree char *renamed = NULL;
      gboolean passed = FALSE;

      if (name == NULL || ebb_args_get_value_kind (state, i) != EBB_VALUE_TENSOR)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "load_published: entry %u, \"%s\", is not a tensor", i,
                       name != NULL ? name : "");
          return NULL;
        }
      for (guint j = 0; !passed && j < G_N_ELEMENTS (passed_over); j++)
        passed = strcmp (name, passed_over[j]) == 0;
      if (passed)
        continue;
      tensor = ebb_args_get_tensor (state, i);
      renamed = rename_norm (name);
      if (ebb_args_find (result, renamed) >= 0)
        {
          g_autofree char *shown = ebb_escape_text (renamed);

          g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "load_published: %s is there twice, by its old name too",
                       shown);
          return NULL;
        }
      ebb_args_add_tensor (result, renamed, tensor);
    }
  return g_steal_pointer (&result);
}

/**
 * ebb_bert_load_published:
 * @self: a model
 * @state: tensors by name, in the format of the published BERT files
 * @error: return location for an error
 *
 * Loads weights in the format of the published BERT files, as of `bert-base-uncased`: `bert.embeddings.*`,
 * `bert.encoder.layer.N.*`, with queries, keys and values apart, and `cls.predictions.*`. Norms may have `gamma` and
 * `beta`. The pooler, the head of the other task, and what is tied to other weights are passed over; a decoder that
 * differs from the embedding of the words, or its bias from `cls.predictions.bias`, is an error. With an error nothing
 * is changed.
 *
 * Returns: %TRUE if all was copied, %FALSE with @error set as ebb_module_load_state_dict() does
 */
gboolean
ebb_bert_load_published (EbbBert *self, EbbArgs *state, GError **error)
{
  g_autoptr (EbbArgs) source = NULL;
  g_autoptr (EbbArgs) targets = NULL;
  gboolean loaded = FALSE;

  if (!EBB_MAY_BEGIN (error, self, state))
    return FALSE;
  g_return_val_if_fail (EBB_IS_BERT (self), FALSE);

  source = drop_and_rename (state, error);
  if (source == NULL)
    return FALSE;
  ebb_push_grad_enabled (FALSE);
  targets = collect_published (self, error);
  if (targets != NULL)
    loaded = ebb_module_load_state_into (EBB_MODULE (self), targets, source, TRUE, error);
  ebb_pop_grad_enabled ();
  return loaded;
}

/**
 * ebb_bert_to_published_state:
 * @self: a model
 * @error: return location for an error
 *
 * Collects the weights in the format of the published BERT files, see ebb_bert_load_published(). The tensors share the
 * model's memory.
 *
 * Returns: (transfer full) (nullable): an %EBB_ARGS_DICT of tensors by name, or %NULL with @error set
 */
EbbArgs *
ebb_bert_to_published_state (EbbBert *self, GError **error)
{
  EbbArgs *published;

  if (!EBB_MAY_BEGIN (error, self))
    return NULL;
  g_return_val_if_fail (EBB_IS_BERT (self), NULL);

  ebb_push_grad_enabled (FALSE);
  published = collect_published (self, error);
  ebb_pop_grad_enabled ();
  return published;
}
