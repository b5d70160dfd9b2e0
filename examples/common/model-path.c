/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Recognises what users name by --model although it is a part of a model. */
#include "common/model-path.h"

#include "common/option-table.h"
#include "common/read-file.h"

#include <ebb/ebb.h>

#include <string.h>

static gboolean
has_file (const char *folder,
          const char *name)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);

  return g_file_test (path, G_FILE_TEST_EXISTS);
}

/* The model that the adapter was trained on; "BASE" if the folder names none. */
static char *
read_base (const char *folder)
{
  g_autofree char *path = g_build_filename (folder, "adapter_config.json", NULL);
  g_autoptr (JsonNode) root = option_table_read_json (path);
  const char *base = root != NULL ? option_table_get_text (root, "base_model_name_or_path", NULL) : NULL;

  if (base == NULL || *base == '\0')
    return g_strdup ("BASE");
  for (const char *p = base; *p != '\0'; p++)
    if (g_ascii_iscntrl (*p)) /* an error is one line */
      return g_strdup ("BASE");
  return g_strdup (base);
}

/* A file in safetensors begins with the size of a JSON object, in 8 bytes, and that object. */
static gboolean
has_weights (const char *path)
{
  char begin[9];

  if (!g_file_test (path, G_FILE_TEST_IS_REGULAR))
    return FALSE;
  if (g_str_has_suffix (path, ".safetensors"))
    return TRUE;
  return read_start (path, begin, sizeof begin) == sizeof begin && begin[8] == '{' && memcmp (begin, "GGUF", 4) != 0;
}

gboolean
model_path_check (const char *path,
                  gboolean takes_adapter,
                  GError **error)
{
  if (has_file (path, "adapter_config.json") && !has_file (path, "config.json"))
    {
      g_autofree char *base = read_base (path);

      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   takes_adapter ? "--model %s: this is an adapter: --model %s --adapter %s"
                                 : "--model %s: this is an adapter: finetune --model %s --merge %s --save DIR makes a "
                                   "model of both",
                   path, base, path);
      return FALSE;
    }
  if (g_file_test (path, G_FILE_TEST_IS_DIR) && !has_file (path, "config.json"))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "--model %s: the folder is no model: it has no config.json; name a folder in Hugging Face's format, "
                   "or a GGUF file",
                   path);
      return FALSE;
    }
  if (!has_weights (path))
    return TRUE;
  /* Weights alone don't say which tokens they read. */
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "--model %s: it is a file of weights, and a model is a folder: of weights that train_gpt saved, "
               "train_gpt --load %s --steps 0 --save DIR/ makes one, and train_gpt --load %s --sample 200 continues "
               "text with them",
               path, path, path);
  return FALSE;
}
