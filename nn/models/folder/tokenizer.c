/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer that a model is saved with in place of its folder's. */
#include "nn/models/folder/model-private.h"

#include "nn/data/byte-tokenizer.h"
#include "nn/data/tokenizer/bpe-tokenizer.h"

static GQuark
get_tokenizer_quark (void)
{
  return g_quark_from_static_string ("ebb-model-tokenizer");
}

static void
tokenizer_free (gpointer data)
{
  EbbModelTokenizer *tokenizer = data;

  g_free (tokenizer->folder);
  g_free (tokenizer);
}

/**
 * ebb_model_set_tokenizer:
 * @model: an #EbbGpt or an #EbbBert
 * @tokenizer: the tokenizer that the model is trained with
 * @folder: (type filename) (nullable): the folder that has its files; %NULL if it is an #EbbByteTokenizer
 *
 * Gives the model another tokenizer than its folder has: ebb_model_save() copies the tokenizer's files, chat template
 * and `generation_config.json` from @folder, in place of those that are where it saves, and `config.json` names its
 * special tokens. For an #EbbByteTokenizer, and for an #EbbBpeTokenizer whose folder has none, it writes a
 * `tokenizer.json` that gives the same tokens.
 */
void
ebb_model_set_tokenizer (EbbModule *model,
                         EbbTokenizer *tokenizer,
                         const char *folder)
{
  EbbModelTokenizer *made;

  g_return_if_fail (EBB_IS_MODULE (model));
  g_return_if_fail (EBB_IS_TOKENIZER (tokenizer));
  g_return_if_fail (folder != NULL || EBB_IS_BYTE_TOKENIZER (tokenizer));

  made = g_new (EbbModelTokenizer, 1);
  *made = (EbbModelTokenizer){ .is_gpt2 = EBB_IS_BPE_TOKENIZER (tokenizer),
                               .folder = folder != NULL ? g_canonicalize_filename (folder, NULL) : NULL,
                               .bos = ebb_tokenizer_get_special_token (tokenizer, EBB_SPECIAL_TOKEN_BOS),
                               .eos = ebb_tokenizer_get_special_token (tokenizer, EBB_SPECIAL_TOKEN_EOS),
                               .pad = ebb_tokenizer_get_special_token (tokenizer, EBB_SPECIAL_TOKEN_PAD) };
  g_object_set_qdata_full (G_OBJECT (model), get_tokenizer_quark (), made, tokenizer_free);
}

const EbbModelTokenizer *
ebb_model_get_tokenizer (EbbModule *model)
{
  return g_object_get_qdata (G_OBJECT (model), get_tokenizer_quark ());
}

void
ebb_model_tokenizer_write_tokens (const EbbModelTokenizer *tokenizer,
                                  EbbJson *document)
{
  const struct
  {
    const char *key;
    gint64 token;
  } tokens[] = {
    { "bos_token_id", tokenizer->bos },
    { "eos_token_id", tokenizer->eos },
    { "pad_token_id", tokenizer->pad },
  };

  for (guint i = 0; i < G_N_ELEMENTS (tokens); i++)
    {
      g_autofree char *text =
          tokens[i].token >= 0 ? g_strdup_printf ("%" G_GINT64_FORMAT, tokens[i].token) : g_strdup ("null");

      ebb_json_set (document, tokens[i].key, text);
    }
}
