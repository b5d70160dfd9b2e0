/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/fuzz.h"

#include <string.h>

/* Damaged JSON lines: they are refused with their line, or all rows can be read, and each token that is to be learned
 * follows its input. */

static const char *const valid[] = {
  "{\"text\": \"one\"}",
  "{\"text\": \"na\xc3\xafve \\u00e9\\n\", \"id\": 3}",
  "{\"prompt\": \"2 + 2 =\", \"completion\": \" 4\"}",
  "{\"prompt\": \"\", \"completion\": \"yes\", \"more\": [1, {\"a\": null}]}",
  "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
  "{\"messages\": [{\"role\": \"system\", \"content\": \"\"}, {\"role\": \"user\", \"content\": \"c\"}, {\"role\": "
  "\"assistant\", \"content\": \"d\"}]}",
};

static const char chatml[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static gboolean
use (EbbDataset *dataset)
{
  const gint64 context = 1 + fuzz_draw (12), n_rows = ebb_dataset_get_n_rows (dataset, context);
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) targets = NULL;
  g_autoptr (EbbTensor) starts = NULL;
  g_autoptr (GError) error = NULL;
  const gint64 *x, *y, *s;

  if (n_rows == 0)
    return !ebb_dataset_check_context (dataset, context, &error) && error != NULL;
  if (!ebb_dataset_get_rows (dataset, n_rows, context, &tokens, &targets, &starts, &error))
    return FALSE;
  x = ebb_tensor_get_data (tokens, NULL);
  y = ebb_tensor_get_data (targets, NULL);
  s = ebb_tensor_get_data (starts, NULL);
  for (gint64 i = 0; i < n_rows * context; i++)
    if (x[i] < 0 || x[i] > 255 || s[i] < 0 || s[i] > i % context || (y[i] != -100 && (y[i] < 0 || y[i] > 255))
        || ((i + 1) % context != 0 && s[i + 1] == s[i] && y[i] != -100 && y[i] != x[i + 1]))
      return FALSE;
  return TRUE;
}

static gboolean
try_case (GString *input, GError **error)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (EbbDocumentDataset) dataset = NULL;
  g_autoptr (GBytes) bytes = NULL;
  g_autoptr (EbbChatTemplate) template = ebb_chat_template_new_from_text (chatml, NULL, NULL, NULL);
  guint kind = fuzz_draw (3) * 2;

  for (guint n = 1 + fuzz_draw (4); n > 0; n--)
    {
      g_autoptr (GString) line = g_string_new (valid[kind + fuzz_draw (2)]);

      if (fuzz_draw (4) == 0)
        fuzz_damage (line);
      if (fuzz_draw (16) == 0)
        kind = fuzz_draw (3) * 2;
      g_string_append_len (input, line->str, (gssize) line->len);
      g_string_append_c (input, '\n');
    }
  bytes = g_bytes_new (input->str, input->len);
  dataset = g_initable_new (EBB_TYPE_DOCUMENT_DATASET, NULL, error, "lines", bytes, "tokenizer", tokenizer, "template",
                            template, "seed", (guint64) fuzz_draw (9), NULL);
  if (dataset == NULL)
    return FALSE;
  if (!use (EBB_DATASET (dataset)))
    g_error ("rows are not as they must be");
  return TRUE;
}

int
main (int argc, char **argv)
{
  return fuzz_run (argc, argv, "json-lines", 20000, try_case);
}
