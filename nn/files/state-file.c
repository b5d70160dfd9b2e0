/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/files/state-file-private.h"

#include "nn/files/safetensors.h"
#include "nn/files/state-tree-private.h"
#include "tensor/error-private.h"

/* Writes a tree of values as a safetensors file, and reads it. */

#define METADATA_KEY "ebb.state"

gboolean
ebb_state_file_write (const char *path,
                      EbbArgs *tree,
                      GError **error)
{
  g_autoptr (EbbArgs) tensors = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) metadata = ebb_args_new (EBB_ARGS_DICT);
  g_autofree char *text = ebb_state_tree_flatten (tree, tensors, error);

  if (text == NULL)
    return FALSE;
  ebb_args_add_string (metadata, METADATA_KEY, text);
  return ebb_save_safetensors (path, tensors, metadata, error);
}

EbbArgs *
ebb_state_file_read (const char *path,
                     GError **error)
{
  g_autoptr (EbbArgs) metadata = NULL;
  g_autoptr (EbbArgs) tensors = ebb_load_safetensors_full (path, &metadata, error);
  int index = tensors ? ebb_args_find (metadata, METADATA_KEY) : -1;

  if (tensors == NULL)
    return NULL;
  if (index < 0)
    return ebb_fail_null (error, EBB_ERROR_FORMAT, "%s: it holds tensors, but no saved training", ebb_show_text (path));
  return ebb_state_tree_restore (ebb_args_get_string (metadata, (guint) index), tensors, path, error);
}
