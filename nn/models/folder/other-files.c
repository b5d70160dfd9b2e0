/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The files of a model's folder beside its weights and its config.json: a tokenizer's, a chat template, the licence.
 * They come from the folder of the model, or from that of another tokenizer. */
#include "nn/models/folder/model-private.h"

#include "nn/data/tokenizer/bpe-tokenizer-private.h"
#include "nn/data/tokenizer/gguf-private.h"
#include "nn/files/gguf-private.h"
#include "nn/models/folder/config-private.h"
#include "tensor/error-private.h"

#include <string.h>
#include <sys/stat.h>

#define MAX_COPIED_SIZE ((gsize) 64 << 20)

/* Files that belong to the weights, and config.json. The files of a training's state, which may be in the same folder,
 * have one number more than shards. */
static gboolean
is_replaced (const char *name)
{
  return strcmp (name, EBB_CONFIG_FILE) == 0 || strcmp (name, EBB_WEIGHTS_FILE) == 0
         || strcmp (name, EBB_WEIGHTS_INDEX) == 0
         || (g_pattern_match_simple ("model-*-of-*.safetensors", name)
             && !g_pattern_match_simple ("model-*-*-of-*.safetensors", name));
}

static gboolean
is_one_of (const char *const *patterns,
           const char *name)
{
  for (guint i = 0; patterns[i] != NULL; i++)
    if (g_pattern_match_simple (patterns[i], name))
      return TRUE;
  return FALSE;
}

/* Files of a tokenizer, and of how text is written for it. */
static const char *const tokenizer_files[] = { "tokenizer*", "vocab*", "merges*", "special_tokens_map*",
                                               "added_tokens*", "spiece.model", "sentencepiece*", "*.tiktoken",
                                               "chat_template*", NULL };

/* Another tokenizer's files replace those that are there, and so does its generation_config.json, which has tokens. */
static gboolean
is_of_tokenizer (const char *name)
{
  return is_one_of (tokenizer_files, name) || strcmp (name, "generation_config.json") == 0;
}

/* Only files of data: a tokenizer.py that is there is the user's. */
static gboolean
is_replaced_with_tokenizer (const char *name)
{
  static const char *const data[] = {
    "*.json", "*.txt", "*.model", "*.model.v*", "*.bpe", "*.tiktoken", "*.jinja", NULL
  };

  return is_replaced (name) || (is_of_tokenizer (name) && is_one_of (data, name));
}

/* A file that is in the folder already is the user's and stays. @kept: names of those that differ; NULL: it is
 * replaced. */
static gboolean
write_other (EbbAtomicFolder *target,
             const char *name,
             const char *data,
             gsize size,
             GString *kept,
             GError **error)
{
  g_autofree char *there = g_build_filename (target->path, name, NULL);
  g_autofree char *old = NULL;
  struct stat status;
  gsize old_size;

  if (kept == NULL || lstat (there, &status) != 0)
    return ebb_atomic_folder_write (target, name, data, size, error);
  old = ebb_read_file (there, MAX_COPIED_SIZE, &old_size, NULL);
  if (old == NULL || old_size != size || memcmp (old, data, size) != 0)
    g_string_append_printf (kept, "%s%s", kept->len > 0 ? ", " : "", name);
  return TRUE;
}

static gboolean
copy_other (EbbAtomicFolder *target,
            const char *from,
            const char *name,
            GString *kept,
            GError **error)
{
  gsize size;
  g_autofree char *data = ebb_read_file (from, MAX_COPIED_SIZE, &size, error);

  return data != NULL && write_other (target, name, data, size, kept, error);
}

/* Only regular files of at most 64 MiB are copied. */
static gboolean
may_copy (const char *path)
{
  struct stat status;

  if (stat (path, &status) != 0 || !S_ISREG (status.st_mode))
    return FALSE;
  if ((gsize) status.st_size <= MAX_COPIED_SIZE)
    return TRUE;
  g_message ("%s is not copied: it has more than 64 MiB", path);
  return FALSE;
}

/* Writes tokenizer.json and tokenizer_config.json for the tokenizer of the GGUF file @path, for GPT-2's two files in
 * the folder @path, or for bytes if @path is NULL. @kept: as of write_other(). @copied: names of files that were copied
 * from the folder and stay; may be NULL. */
static gboolean
write_tokenizer (EbbAtomicFolder *target,
                 const char *path,
                 GString *kept,
                 const char *const *copied,
                 GError **error)
{
  const gboolean is_gguf = path != NULL && ebb_gguf_is_path (path);
  g_autoptr (EbbGguf) gguf = is_gguf ? ebb_gguf_open (path, error) : NULL;
  g_autoptr (GString) tokenizer = g_string_new (NULL);
  g_autoptr (GString) settings = g_string_new (NULL);
  const struct
  {
    const char *name;
    GString *text;
  } files[] = { { "tokenizer.json", tokenizer }, { "tokenizer_config.json", settings } };

  if (is_gguf && gguf == NULL)
    return FALSE;
  if (is_gguf && !ebb_gguf_has_tokenizer (gguf))
    return TRUE;
  if (is_gguf ? !ebb_gguf_read_tokenizer (gguf, tokenizer, settings, error)
              : !ebb_bpe_tokenizer_write (path, tokenizer, settings, error))
    return FALSE;
  for (guint i = 0; i < G_N_ELEMENTS (files); i++)
    if ((copied == NULL || !g_strv_contains (copied, files[i].name))
        && !write_other (target, files[i].name, files[i].text->str, files[i].text->len, kept, error))
      return FALSE;
  return TRUE;
}

static gboolean
copy_tokenizer (EbbAtomicFolder *target,
                const EbbModelTokenizer *tokenizer,
                GError **error)
{
  g_auto (GStrv) names = NULL;

  if (tokenizer->folder == NULL || ebb_gguf_is_path (tokenizer->folder))
    return write_tokenizer (target, tokenizer->folder, NULL, NULL, error);
  names = ebb_list_folder (tokenizer->folder, error);
  for (guint i = 0; names != NULL && names[i] != NULL; i++)
    {
      g_autofree char *path = g_build_filename (tokenizer->folder, names[i], NULL);

      if (is_of_tokenizer (names[i]) && may_copy (path) && !copy_other (target, path, names[i], NULL, error))
        return FALSE;
    }
  return names != NULL
         && (!tokenizer->is_gpt2 || g_strv_contains ((const char *const *) names, "tokenizer.json")
             || write_tokenizer (target, tokenizer->folder, NULL, (const char *const *) names, error));
}

/* A model with the files of another one is reported. */
static void
report_kept (const EbbAtomicFolder *target,
             const EbbModelOrigin *origin,
             const GString *kept)
{
  g_autofree char *here = ebb_escape_text (target->path);
  g_autofree char *there = ebb_escape_text (origin->folder);
  g_autofree char *list = ebb_escape_text (kept->str);

  if (kept->len > 0)
    g_message ("%s: these files stay as they are, though those of %s differ: %s", here, there, list);
}

/* The tokenizer unless the model has @another, generation_config.json, chat templates, the licence. A folder with
 * another tokenizer is reported, one with another README is not. */
static gboolean
copy_others (EbbAtomicFolder *target,
             const EbbModelOrigin *origin,
             gboolean another,
             GError **error)
{
  static const char *const used[] = { "generation_config.json", "processor_config.json", "preprocessor_config.json",
                                      NULL };
  static const char *const shown[] = { "README*", "LICENSE*", "LICENCE*", "COPYING*", "NOTICE*", "USE_POLICY*", NULL };
  g_autoptr (GError) failure = NULL;
  g_auto (GStrv) names = NULL;
  g_autoptr (GString) texts = g_string_new (NULL);
  g_autoptr (GString) kept = g_string_new (NULL);

  if (ebb_gguf_is_path (origin->folder))
    {
      if (!another && !write_tokenizer (target, origin->folder, kept, NULL, error))
        return FALSE;
      report_kept (target, origin, kept);
      return TRUE;
    }
  names = ebb_list_folder (origin->folder, &failure);
  if (names == NULL)
    g_message ("the files beside the weights are not copied: %s", failure->message);
  for (guint i = 0; names != NULL && names[i] != NULL; i++)
    {
      g_autofree char *path = g_build_filename (origin->folder, names[i], NULL);
      const gboolean is_used = is_one_of (used, names[i]) || is_one_of (tokenizer_files, names[i]);

      if ((!is_used && !is_one_of (shown, names[i])) || (another && is_of_tokenizer (names[i])) || !may_copy (path))
        continue;
      if (!copy_other (target, path, names[i], is_used ? kept : texts, error))
        return FALSE;
    }
  report_kept (target, origin, kept);
  return TRUE;
}

EbbIsReplacedFunc
ebb_model_get_replaced_files (EbbModule *model)
{
  return ebb_model_get_tokenizer (model) != NULL ? is_replaced_with_tokenizer : is_replaced;
}

gboolean
ebb_model_copy_other_files (EbbModule *model,
                            EbbAtomicFolder *target,
                            GError **error)
{
  const EbbModelTokenizer *tokenizer = ebb_model_get_tokenizer (model);
  const EbbModelOrigin *origin = ebb_model_get_origin (model);

  return (tokenizer == NULL || copy_tokenizer (target, tokenizer, error))
         && (origin == NULL || copy_others (target, origin, tokenizer != NULL, error));
}
