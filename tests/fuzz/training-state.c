/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/fuzz.h"

#include "nn/files/state-tree-private.h"
#include "nn/state/training-state-private.h"
#include "nn/module.h"
#include "nn/optim/optimizer-private.h"
#include "tensor/util/json-scanner-private.h"

#include <glib/gstdio.h>

#include <string.h>

/* The state of a whole training as version 1.0 wrote it: what is refused has changed nothing, and with what is taken
 * the training goes on and can be saved. */

static EbbModule *module;
static EbbOptimizer *optimizer;
static EbbTextDataset *dataset;
static EbbTrainingState *training;
static EbbArgs *tensors;
static char *tree; /* without its seal */
static char *folder, *path;
static char *head; /* of the file's header, before the text of the tree, and after it */
static char *rest;
static GBytes *data;

static void
step (void)
{
  static const gint64 shape[] = { 4, 3 };
  g_autoptr (EbbTensor) x = ebb_zeros (shape, 2, EBB_DTYPE_F32, NULL, NULL);
  g_autoptr (EbbTensor) y = ebb_module_call1 (module, x, NULL);
  g_autoptr (EbbTensor) loss = ebb_sum (y, NULL, 0, FALSE, NULL);
  g_autoptr (GError) error = NULL;

  ebb_tensor_backward (loss, &error);
  ebb_optimizer_step (optimizer, &error);
  if (error != NULL)
    g_error ("the training does not go on: %s", error->message);
  ebb_optimizer_zero_grad (optimizer);
}

static EbbArgs *
get_tree (void)
{
  EbbArgs *args = ebb_training_state_get_rest (training, 7);
  g_autoptr (EbbArgs) weights = ebb_module_get_state_dict (module);
  g_autoptr (EbbArgs) moments = ebb_optimizer_get_state (optimizer);

  ebb_args_add_args (args, "module", weights);
  ebb_args_add_args (args, "optimizer", moments);
  return args;
}

/* All of it, with the checksums of the tensors. */
static char *
describe (void)
{
  g_autoptr (EbbArgs) all = get_tree ();
  g_autoptr (EbbArgs) others = ebb_args_new (EBB_ARGS_DICT);
  char *text = ebb_state_tree_flatten (all, others, NULL);

  if (text == NULL)
    g_error ("the training can't be saved");
  return text;
}

/* Copies of the tensors, which later steps don't change. */
static EbbArgs *
copy (EbbArgs *args)
{
  EbbArgs *copies = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < ebb_args_get_length (args); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (args, i);
      g_autoptr (EbbTensor) own = NULL;

      ebb_push_grad_enabled (FALSE);
      own = ebb_copy (tensor, NULL);
      ebb_pop_grad_enabled ();
      ebb_args_add_tensor (copies, ebb_args_get_key (args, i), own);
    }
  return copies;
}

/* Takes apart the file that holds the tensors and the text. */
static void
make_file (const char *text)
{
  g_autoptr (EbbArgs) metadata = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (GError) error = NULL;
  g_autoptr (GString) quoted = g_string_new (NULL);
  g_autofree char *contents = NULL;
  char *found;
  guint64 length;
  gsize size;

  folder = g_dir_make_tmp ("ebb-fuzz-XXXXXX", &error);
  path = g_build_filename (folder, "state-00000001.safetensors", NULL);
  ebb_args_add_string (metadata, "ebb.state", text);
  if (!ebb_save_safetensors (path, tensors, metadata, &error) || !g_file_get_contents (path, &contents, &size, &error))
    g_error ("%s", error->message);
  memcpy (&length, contents, 8);
  length = GUINT64_FROM_LE (length);
  data = g_bytes_new (contents + 8 + length, size - 8 - length);
  contents[8 + length] = '\0';
  ebb_json_append_string (quoted, text);
  found = strstr (contents + 8, quoted->str);
  if (found == NULL)
    g_error ("the text is not in the header");
  head = g_strndup (contents + 8, (gsize) (found - contents - 8));
  rest = g_strchomp (g_strdup (found + quoted->len));
}

static void
set_up (void)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GBytes) bytes = g_bytes_new_static ("a text of a few windows, one after the other", 44);
  g_autoptr (EbbGenerator) own = ebb_generator_new (3);
  g_autoptr (EbbArgs) values = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) all = NULL;
  g_autoptr (EbbArgs) borrowed = ebb_args_new (EBB_ARGS_DICT);
  g_autofree char *text = NULL;
  const char *begin;

  ebb_generator_tracker_add (ebb_generator_tracker_get_default (), "rng", 11, NULL);
  ebb_generator_tracker_add (ebb_generator_tracker_get_default (), "other", 12, NULL);
  module = ebb_linear_new (3, 2, TRUE, NULL);
  optimizer = ebb_adamw_new (module, 1e-2, NULL);
  dataset = ebb_text_dataset_new_from_bytes (bytes, tokenizer, 5, NULL);
  training = ebb_training_state_new (module, optimizer, EBB_DATASET (dataset));
  ebb_training_state_add_generator (training, "own", own);
  g_object_set (training, "config", "{\"width\": 3}", NULL);
  ebb_args_add_double (values, "best", 0.5);
  g_object_set (training, "values", values, NULL);
  step ();
  all = get_tree ();
  text = ebb_state_tree_flatten (all, borrowed, NULL);
  tensors = copy (borrowed);
  begin = strstr (text, "\"tree\":") + strlen ("\"tree\":");
  tree = g_strndup (begin, strlen (begin) - 1);
  make_file (text);
}

static void
go_on (void)
{
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) targets = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree char *text = describe ();

  if (!ebb_text_dataset_get_batch (dataset, 2, 5, &tokens, &targets, &error))
    g_error ("there is no next batch: %s", error->message);
  step ();
}

/* The file of version 1.0 with another text, loaded. */
static gboolean
load (const char *text, GError **error)
{
  g_autoptr (GString) file = g_string_new_len ("12345678", 8);
  guint64 length;

  g_string_append (file, head);
  ebb_json_append_string (file, text);
  g_string_append (file, rest);
  while (file->len % 8 != 0)
    g_string_append_c (file, ' ');
  length = GUINT64_TO_LE (file->len - 8);
  memcpy (file->str, &length, 8);
  g_string_append_len (file, g_bytes_get_data (data, NULL), (gssize) g_bytes_get_size (data));
  g_remove (path);
  g_file_set_contents_full (path, file->str, (gssize) file->len, G_FILE_SET_CONTENTS_NONE, 0600, NULL);
  return ebb_training_state_load (training, folder, NULL, error);
}

static gboolean
try_case (GString *input, GError **error)
{
  g_autofree char *text = NULL;
  g_autofree char *before = fuzz_draw (8) == 0 ? describe () : NULL;
  g_autofree char *after = NULL;

  g_string_append (input, tree);
  if (fuzz_draw (40) > 0)
    fuzz_damage_json (input);
  if (fuzz_draw (4) == 0)
    fuzz_damage (input);
  text = ebb_state_tree_seal (input->str);
  if (!load (text, error))
    {
      after = before != NULL ? describe () : NULL;
      if (g_strcmp0 (before, after) != 0)
        g_error ("a state that was refused has changed something: %s", (*error)->message);
      return FALSE;
    }
  go_on ();
  g_free (text);
  text = ebb_state_tree_seal (tree);
  if (!load (text, NULL))
    g_error ("the first state is refused");
  return TRUE;
}

int
main (int argc, char **argv)
{
  int status;

  set_up ();
  status = fuzz_run (argc, argv, "training-state", 12000, try_case);
  g_object_unref (training);
  g_object_unref (dataset);
  g_object_unref (optimizer);
  g_object_unref (module);
  ebb_args_unref (tensors);
  g_remove (path);
  g_rmdir (folder);
  g_free (path);
  g_free (folder);
  g_free (head);
  g_free (rest);
  g_bytes_unref (data);
  g_free (tree);
  return status;
}
