/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Opens the tokenizer that the options name. */
#include "common/train/tokenizer.h"

#include "common/model-path.h"

#include <string.h>
#include <unistd.h>

/* An estimate without a text needs no tokenizer. */
static gboolean
is_looked_at (const Options *options)
{
  return options->estimate && options->data == NULL;
}

gboolean
tokenizer_is_of_model (const Options *options)
{
  return options->model[0] != '\0' && !options->reads_bytes && strcmp (options->tokenizer, "byte") == 0;
}

static EbbTokenizer *
open_own_tokenizer (const Options *options,
                    GError **error)
{
  g_autofree char *path = g_build_filename (options->model, "tokenizer.json", NULL);
  g_autoptr (GError) failure = NULL;
  EbbTokenizer *tokenizer = ebb_tokenizer_open (options->model, &failure);

  if (tokenizer != NULL)
    return tokenizer;
  if (g_file_test (options->model, G_FILE_TEST_IS_DIR) && access (path, F_OK) != 0)
    g_set_error (error, failure->domain, failure->code,
                 "%s; or name another folder's tokenizer by --tokenizer DIR, or train on bytes by --tokenizer byte",
                 failure->message);
  else
    g_propagate_error (error, g_steal_pointer (&failure));
  return NULL;
}

EbbTokenizer *
tokenizer_make (const Options *options,
                GError **error)
{
  g_autofree char *parts = g_build_filename (options->tokenizer, "tokenizer.json", NULL);
  g_autofree char *vocab = g_build_filename (options->tokenizer, "vocab.json", NULL);
  g_autofree char *merges = g_build_filename (options->tokenizer, "merges.txt", NULL);

  if (options->model[0] != '\0' && !model_path_check (options->model, options->program->tunes, error))
    return NULL;
  if (tokenizer_is_of_model (options))
    return is_looked_at (options) ? ebb_byte_tokenizer_new () : open_own_tokenizer (options, error);
  if (strcmp (options->tokenizer, "byte") == 0)
    return ebb_byte_tokenizer_new ();
  return access (parts, F_OK) == 0 ? ebb_tokenizer_open (options->tokenizer, error)
                                   : ebb_bpe_tokenizer_new (vocab, merges, error);
}

void
tokenizer_attach (EbbTokenizer *tokenizer,
                  EbbModule *model,
                  const Options *options)
{
  if (!tokenizer_is_of_model (options))
    ebb_model_set_tokenizer (model, tokenizer, strcmp (options->tokenizer, "byte") == 0 ? NULL : options->tokenizer);
}

gboolean
tokenizer_check_loaded (const Options *options,
                        GError **error)
{
  static const char *const names[] = { "tokenizer.json", "vocab.json" };
  g_autofree char *folder = g_path_get_dirname (options->load);

  for (guint i = 0; i < G_N_ELEMENTS (names) && !OPTION_WAS_GIVEN (options, tokenizer); i++)
    {
      g_autofree char *path = g_build_filename (folder, names[i], NULL);

      if (access (path, F_OK) == 0)
        return options_refuse (error,
                               "--load %s: %s beside it has the tokens of these weights: add --tokenizer %s, or "
                               "--tokenizer byte to train on bytes",
                               options->load, names[i], folder);
    }
  return TRUE;
}
