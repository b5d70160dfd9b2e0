/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

/* One row of tokens, targets and starts. */
typedef struct
{
  gint64 *tokens, *targets, *starts;
} Row;

static EbbDataset *
make_lines (const char *text, guint64 seed)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GBytes) lines = g_bytes_new (text, strlen (text));
  g_autoptr (GError) error = NULL;
  EbbDocumentDataset *self = ebb_document_dataset_new_from_bytes (lines, tokenizer, seed, &error);

  g_assert_no_error (error);
  return EBB_DATASET (self);
}

static Row
take (EbbDataset *self, gint64 n, gint64 context)
{
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) targets = NULL;
  g_autoptr (EbbTensor) starts = NULL;
  g_autoptr (GError) error = NULL;
  Row row;

  g_assert_true (ebb_dataset_get_rows (self, n, context, &tokens, &targets, &starts, &error));
  g_assert_no_error (error);
  g_assert_nonnull (starts);
  row.tokens = g_memdup2 (ebb_tensor_get_data (tokens, NULL), ebb_tensor_get_n_bytes (tokens));
  row.targets = g_memdup2 (ebb_tensor_get_data (targets, NULL), ebb_tensor_get_n_bytes (targets));
  row.starts = g_memdup2 (ebb_tensor_get_data (starts, NULL), ebb_tensor_get_n_bytes (starts));
  return row;
}

static void
clear (Row *row)
{
  g_free (row->tokens);
  g_free (row->targets);
  g_free (row->starts);
}

/* The row as text: tokens, targets with '.' for none, and the starts as letters from 'a' on. */
static void
assert_row (EbbDataset *self, gint64 context, const char *tokens, const char *targets, const char *starts)
{
  Row row = take (self, 1, context);
  g_autoptr (GString) x = g_string_new (NULL);
  g_autoptr (GString) y = g_string_new (NULL);
  g_autoptr (GString) s = g_string_new (NULL);

  for (gint64 i = 0; i < context; i++)
    {
      g_string_append_c (x, row.tokens[i] == 0 ? '_' : (char) row.tokens[i]);
      g_string_append_c (y, row.targets[i] == -100 ? '.' : (char) row.targets[i]);
      g_string_append_c (s, (char) ('a' + row.starts[i]));
    }
  g_assert_cmpstr (x->str, ==, tokens);
  g_assert_cmpstr (y->str, ==, targets);
  g_assert_cmpstr (s->str, ==, starts);
  clear (&row);
}

static void
documents_share_rows_and_begin_anew (void)
{
  g_autoptr (EbbDataset) self = make_lines ("{\"text\": \"hello\"}\n\n{\"id\": 3, \"text\": \"abc\"}\r\n"
                                            "{\"text\": \"worlds\"}",
                                            1);

  g_object_set (self, "shuffle", FALSE, NULL);
  g_assert_cmpint (ebb_document_dataset_get_n_documents (EBB_DOCUMENT_DATASET (self)), ==, 3);
  g_assert_cmpint (ebb_dataset_get_n_tokens (self), ==, 14);
  g_assert_cmpint (ebb_dataset_get_n_rows (self, 8), ==, 2);
  /* The best fit: "worlds" takes five places and "abc" two of the three that are left. */
  assert_row (self, 8, "hell____", "ello....", "aaaaeeee");
  assert_row (self, 8, "abworld_", "bcorlds.", "aaccccch");
  assert_row (self, 8, "hell____", "ello....", "aaaaeeee");
}

static void
answers_alone_are_learned (void)
{
  g_autoptr (EbbDataset) self = make_lines ("{\"prompt\": \"2+2=\", \"completion\": \"4!\"}\n"
                                            "{\"completion\": \"yes\", \"prompt\": \"\"}\n",
                                            1);

  g_object_set (self, "shuffle", FALSE, NULL);
  assert_row (self, 7, "2+2=4ye", "...4!es", "aaaaaff");
}

static void
assert_prompt (EbbTokenizer *tokenizer, JsonObject *expected)
{
  g_autoptr (JsonNode) node = json_node_init_object (json_node_alloc (), expected);
  g_autofree char *line = json_to_string (node, FALSE);
  g_autoptr (GBytes) lines = g_bytes_new (line, strlen (line));
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbDocumentDataset) self = ebb_document_dataset_new_from_bytes (lines, tokenizer, 1, &error);
  JsonArray *tokens = json_object_get_array_member (expected, "tokens");
  const gint64 n = json_array_get_length (tokens) - 1, answer = json_object_get_int_member (expected, "answer");
  Row row;

  g_assert_no_error (error);
  g_test_message ("%s", line);
  g_assert_cmpint (ebb_dataset_get_n_tokens (EBB_DATASET (self)), ==, n + 1);
  row = take (EBB_DATASET (self), 1, n);
  for (gint64 i = 0; i < n; i++)
    {
      const gint64 next = json_array_get_int_element (tokens, (guint) i + 1);

      g_assert_cmpint (row.tokens[i], ==, json_array_get_int_element (tokens, (guint) i));
      g_assert_cmpint (row.targets[i], ==, i + 1 < answer ? -100 : next);
    }
  clear (&row);
}

/* tests/fixtures/make_prompts.py wrote what transformers makes of the joined texts. */
static void
prompts_and_completions_are_one_text (void)
{
  static const char *const families[] = { "gpt2", "llama3", "qwen", "llama2", "mistral", "gemma" };
  g_autofree char *path = g_test_build_filename (G_TEST_DIST, "fixtures", "prompts.json", NULL);
  g_autoptr (JsonParser) parser = json_parser_new ();
  g_autoptr (GError) error = NULL;

  json_parser_load_from_file (parser, path, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < G_N_ELEMENTS (families); i++)
    {
      g_autofree char *folder = g_test_build_filename (G_TEST_DIST, "fixtures", "tokenizers", families[i], NULL);
      g_autoptr (EbbTokenizer) tokenizer = ebb_tokenizer_open (folder, &error);
      JsonArray *cases = json_object_get_array_member (json_node_get_object (json_parser_get_root (parser)),
                                                       families[i]);

      g_assert_no_error (error);
      for (guint k = 0; k < json_array_get_length (cases); k++)
        assert_prompt (tokenizer, json_array_get_object_element (cases, k));
    }
}

/* Segments meet at one token: the last target of one, the first token of the next. What has nothing to learn is left
 * out.
 */
static void
long_documents_are_split (void)
{
  g_autoptr (EbbDataset) self = make_lines ("{\"text\": \"abcdefghij\"}\n", 1);
  g_autoptr (EbbDataset) answers = make_lines ("{\"prompt\": \"abcdefg\", \"completion\": \"hij\"}\n", 1);

  g_object_set (self, "shuffle", FALSE, NULL);
  assert_row (self, 4, "abcd", "bcde", "aaaa");
  assert_row (self, 4, "efgh", "fghi", "aaaa");
  assert_row (self, 4, "i___", "j...", "abbb");
  g_assert_cmpint (ebb_dataset_get_n_rows (self, 4), ==, 3);
  g_assert_cmpint (ebb_document_dataset_count_split (EBB_DOCUMENT_DATASET (self), 4), ==, 1);
  g_assert_cmpint (ebb_document_dataset_count_split (EBB_DOCUMENT_DATASET (self), 9), ==, 0);
  g_assert_cmpint (ebb_dataset_get_n_rows (answers, 4), ==, 2);
}

static const char chatml[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static const char conversation[] = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n"
                                   "<|im_start|>user\nOK<|im_end|>\n<|im_start|>assistant\nNo<|im_end|>\n";

static EbbDataset *
make_chat (const char *text, GError **error)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (EbbChatTemplate) template = ebb_chat_template_new_from_text (chatml, NULL, NULL, error);
  g_autoptr (GBytes) lines = g_bytes_new (text, strlen (text));

  g_assert_nonnull (template);
  return g_initable_new (EBB_TYPE_DOCUMENT_DATASET, NULL, error, "lines", lines, "tokenizer", tokenizer, "template",
                         template, NULL);
}

/* What is learned of a conversation of @n_tokens. */
static char *
take_learned (EbbDataset *self, gint64 n_tokens)
{
  g_autoptr (GString) learned = g_string_new (NULL);
  Row row = take (self, 1, n_tokens - 1);

  for (gint64 i = 0; i < n_tokens - 1; i++)
    if (row.targets[i] != -100)
      g_string_append_c (learned, (char) row.targets[i]);
  clear (&row);
  return g_string_free (g_steal_pointer (&learned), FALSE);
}

/* A weight of 0 and "train": false leave a message in the text, and out of what is learned. */
static void
answers_may_be_left_out (void)
{
  static const struct
  {
    const char *first, *second, *learned;
  } cases[] = {
    { "\"weight\": 0", "\"weight\": 1", "No<|im_end|>" },
    { "\"train\": true", "\"train\": false", "Yes<|im_end|>" },
    { "\"weight\": null", "\"train\": false, \"weight\": 1", "Yes<|im_end|>" },
    { "\"weight\": 1.0", "\"name\": null, \"tool_calls\": []", "Yes<|im_end|>No<|im_end|>" },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autofree char *text =
          g_strdup_printf ("{\"tools\": null, \"id\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"Hi\", "
                           "\"weight\": 0}, {\"role\": \"assistant\", \"content\": \"Yes\", %s}, "
                           "{\"role\": \"user\", \"content\": \"OK\", \"train\": false}, "
                           "{\"role\": \"assistant\", \"content\": \"No\", %s}]}",
                           cases[i].first, cases[i].second);
      g_autoptr (EbbDataset) self = make_chat (text, &error);
      g_autofree char *learned = NULL;

      g_assert_no_error (error);
      g_assert_cmpint (ebb_dataset_get_n_tokens (self), ==, sizeof conversation - 1);
      learned = take_learned (self, sizeof conversation - 1);
      g_assert_cmpstr (learned, ==, cases[i].learned);
    }
}

/* A row that says of all its answers that they aren't learned is no document. */
static void
rows_may_be_left_out (void)
{
  static const char row[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": "
                            "\"assistant\", \"content\": \"Yes\", \"weight\": %d}]}\n";

  for (int learned = 0; learned < 2; learned++)
    {
      g_autoptr (GString) text = g_string_new (NULL);
      g_autoptr (EbbDataset) self = NULL;
      g_autoptr (GError) error = NULL;

      for (int i = 0; i < 3; i++)
        g_string_append_printf (text, row, learned && i == 1);
      self = make_chat (text->str, &error);
      g_assert_no_error (error);
      g_assert_cmpint (ebb_document_dataset_get_n_documents (EBB_DOCUMENT_DATASET (self)), ==, learned);
      g_assert_cmpint (ebb_document_dataset_get_n_left_out (EBB_DOCUMENT_DATASET (self)), ==, 3 - learned);
      g_assert_true (ebb_dataset_check_context (self, 16, &error) == learned);
      if (!learned)
        test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "the lines", "no document has a token to learn");
    }
}

/* All answers are learned, with the token that ends each of them. */
static void
messages_have_the_form_of_their_template (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbDataset) self = make_chat ("{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
                                           "{\"role\": \"assistant\", \"content\": \"Yes\"}, "
                                           "{\"content\": \"OK\", \"role\": \"user\", \"tool_calls\": null}, "
                                           "{\"role\": \"assistant\", \"content\": \"No\"}]}",
                                           &error);
  const gint64 context = sizeof conversation - 2;
  g_autofree char *learned = NULL;
  Row row;

  g_assert_no_error (error);
  row = take (self, 1, context);
  for (gint64 i = 0; i < context; i++)
    {
      g_assert_cmpint (row.tokens[i], ==, conversation[i]);
      if (row.targets[i] != -100)
        g_assert_cmpint (row.targets[i], ==, conversation[i + 1]);
    }
  clear (&row);
  learned = take_learned (self, context + 1);
  g_assert_cmpstr (learned, ==, "Yes<|im_end|>No<|im_end|>");
}

static void
copy_to (const char *folder, const char *fixture, const char *name)
{
  g_autofree char *source = g_test_build_filename (G_TEST_DIST, "fixtures", fixture, NULL);
  g_autofree char *path = g_build_filename (folder, name, NULL);
  g_autofree char *text = NULL;
  gsize size;

  g_assert_true (g_file_get_contents (source, &text, &size, NULL));
  g_assert_true (g_file_set_contents (path, text, (gssize) size, NULL));
}

/* The template of Llama 3.2 asks for today's date; a run that is resumed tomorrow needs the same tokens. */
static void
messages_have_the_same_date_each_day (void)
{
  static const char text[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                             "{\"role\": \"assistant\", \"content\": \"b\"}]}";
  g_autofree char *folder = g_dir_make_tmp ("ebb-documents-XXXXXX", NULL);
  g_autofree char *tokenizer_path = g_build_filename (folder, "tokenizer.json", NULL);
  g_autofree char *template_path = g_build_filename (folder, "chat_template.jinja", NULL);
  g_autoptr (GBytes) lines = g_bytes_new_static (text, sizeof text - 1);
  g_autoptr (EbbTokenizer) tokenizer = NULL;
  g_autoptr (EbbDocumentDataset) self = NULL;
  g_autofree char *read = NULL;
  g_autoptr (GError) error = NULL;
  gint64 n;
  Row row;

  copy_to (folder, "chat-model/tokenizer.json", "tokenizer.json");
  copy_to (folder, "chat/llama3.2.jinja", "chat_template.jinja");
  tokenizer = ebb_tokenizer_open (folder, &error);
  g_assert_no_error (error);
  self = ebb_document_dataset_new_from_bytes (lines, tokenizer, 1, &error);
  g_assert_no_error (error);
  n = ebb_dataset_get_n_tokens (EBB_DATASET (self)) - 1;
  row = take (EBB_DATASET (self), 1, n);
  read = ebb_tokenizer_decode_text (tokenizer, row.tokens, (gsize) n, &error);
  g_assert_no_error (error);
  g_assert_nonnull (strstr (read, "Today Date: 26 Jul 2024"));
  clear (&row);
  g_assert_cmpint (g_unlink (tokenizer_path) | g_unlink (template_path) | g_rmdir (folder), ==, 0);
}

static void
assert_chat_refused (const char *messages, const char *message)
{
  g_autofree char *line = g_strdup_printf ("{\"messages\": %s}", messages);
  g_autofree char *whole = g_strdup_printf ("the lines: line 1: %s", message);
  g_autoptr (GError) error = NULL;

  g_assert_null (make_chat (line, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
  g_assert_cmpstr (error->message, ==, whole);
}

static void
bad_messages_are_named (void)
{
  static const char *const keys[] = { "tool_calls", "tool_call_id", "reasoning_content", "name", "id" };
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  const char text[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}";
  g_autoptr (GBytes) lines = g_bytes_new_static (text, sizeof text - 1);
  g_autoptr (GError) error = NULL;

  assert_chat_refused ("3", "messages is a number: it must be a list");
  assert_chat_refused ("[]", "messages is empty: there is nothing to learn");
  assert_chat_refused ("[\"a\"]", "message 1 is a string: it must be an object with role and content");
  assert_chat_refused ("[{\"role\": \"user\"}]", "message 1: content is missing");
  assert_chat_refused ("[{\"role\": 3, \"content\": \"a\"}]", "message 1: role is a number: it must be a string");
  assert_chat_refused ("[{\"role\": \"user\", \"content\": \"a\"}]",
                       "messages have none of the assistant that is learned: there is nothing to learn");
  for (guint i = 0; i < G_N_ELEMENTS (keys); i++)
    {
      g_autofree char *answer =
          g_strdup_printf ("[{\"role\": \"assistant\", \"content\": \"\", \"%s\": [{\"a\": 1}]}]", keys[i]);
      g_autofree char *message =
          g_strdup_printf ("message 1: %s is not learned: a message has role, content, weight, and train; leave the "
                           "row or the key out",
                           keys[i]);

      assert_chat_refused (answer, message);
    }
  assert_chat_refused ("[{\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0.5}]",
                       "message 1: weight is 0.5: it must be 0 or 1");
  assert_chat_refused ("[{\"role\": \"assistant\", \"content\": \"a\", \"train\": 0}]",
                       "message 1: train is 0: it must be true or false");
  assert_chat_refused ("[{\"role\": \"user\", \"content\": \"a\", \"train\": true}]",
                       "message 1: train is true: only messages of the assistant are learned");
  assert_chat_refused ("[], \"tools\": [{\"type\": \"function\"}]", "messages is empty: there is nothing to learn");
  assert_chat_refused ("[{\"role\": \"assistant\", \"content\": \"a\"}], \"tools\": [{\"type\": \"function\"}]",
                       "tools is not learned: only messages are written; leave the row or the key out");
  g_assert_null (ebb_document_dataset_new_from_bytes (lines, tokenizer, 1, &error));
  g_assert_cmpstr (
      error->message, ==,
      "the lines: line 1: messages need a tokenizer with a chat template; open another tokenizer, or write "
      "rows with prompt and completion");
}

static GString *
make_many (guint n)
{
  GString *lines = g_string_new (NULL);
  guint32 state = 7;

  for (guint i = 0; i < n; i++)
    {
      g_string_append_printf (lines, "{\"text\": \"%04u", i);
      state = state * 1664525 + 1013904223;
      for (guint j = state >> 27; j > 0; j--)
        g_string_append_c (lines, 'x');
      g_string_append (lines, "\"}\n");
    }
  return lines;
}

/* Each document comes once an epoch, whole, and rows are nearly full. */
static void
an_epoch_takes_each_document_once (void)
{
  g_autoptr (GString) lines = make_many (200);
  g_autoptr (EbbDataset) self = make_lines (lines->str, 3);
  gint64 n_rows = ebb_dataset_get_n_rows (self, 64), n_tokens = ebb_dataset_get_n_tokens (self);
  gint64 order[2][200] = { { 0 } };

  g_assert_cmpint (n_rows, <=, (n_tokens - 200) / 64 + 2);
  for (int epoch = 0; epoch < 2; epoch++)
    {
      gboolean seen[200] = { FALSE };
      gint64 n_seen = 0;

      for (gint64 r = 0; r < n_rows; r++)
        {
          Row row = take (self, 1, 64);

          for (gint64 i = 0; i < 64 && row.tokens[i] != 0; i++)
            if (row.starts[i] == i)
              {
                gint64 number = 0;

                for (int d = 0; d < 4; d++)
                  number = number * 10 + (d < 3 ? row.tokens[i + d] : row.targets[i + 2]) - '0';
                g_assert_cmpint (number, <, 200);
                g_assert_false (seen[number]);
                seen[number] = TRUE;
                order[epoch][n_seen++] = number;
              }
          clear (&row);
        }
      g_assert_cmpint (n_seen, ==, 200);
    }
  g_assert_cmpint (memcmp (order[0], order[1], sizeof order[0]), !=, 0);
}

/* The mean loss of one row; @starts may be NULL. */
static double
get_loss (EbbModule *model, EbbTensor *tokens, EbbTensor *targets, EbbTensor *starts)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) results = NULL;
  g_autoptr (EbbTensor) result = NULL;
  g_autoptr (GError) error = NULL;
  double loss;

  ebb_args_add_tensor (args, NULL, tokens);
  ebb_args_add_tensor (args, "targets", targets);
  if (starts != NULL)
    ebb_args_add_tensor (args, "starts", starts);
  results = ebb_module_call (model, args, &error);
  g_assert_no_error (error);
  result = ebb_args_get_tensor (results, 0);
  g_assert_true (ebb_tensor_get_item (result, &loss, &error));
  return loss;
}

/* The summed loss of the documents of a row, each by itself; *@n_targets is how many tokens they predict. */
static double
sum_alone (EbbModule *model, const Row *row, gint64 context, gint64 *n_targets)
{
  double sum = 0;

  *n_targets = 0;
  for (gint64 begin = 0, end; begin < context; begin = end)
    {
      const gint64 *shape;
      gint64 n, n_counted = 0;
      g_autoptr (EbbTensor) tokens = NULL;
      g_autoptr (EbbTensor) targets = NULL;

      for (end = begin; end < context && row->starts[end] == row->starts[begin]; end++)
        n_counted += row->targets[end] != -100;
      n = end - begin;
      if (n_counted == 0)
        continue;
      shape = (const gint64[]){ 1, n };
      tokens = ebb_tensor_new_from_ints (row->tokens + begin, (gsize) n, shape, 2, NULL);
      targets = ebb_tensor_new_from_ints (row->targets + begin, (gsize) n, shape, 2, NULL);
      sum += get_loss (model, tokens, targets, NULL) * (double) n_counted;
      *n_targets += n_counted;
    }
  return sum;
}

static void
packed_documents_have_the_loss_of_each_alone (void)
{
  for (int layout = 0; layout < 2; layout++)
    {
      g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
      g_autoptr (EbbDataset) self = make_lines ("{\"prompt\": \"12+30=\", \"completion\": \"42\"}\n"
                                                "{\"prompt\": \"the quick brown\", \"completion\": \" fox jumps\"}\n"
                                                "{\"prompt\": \"\", \"completion\": \"hello there\"}\n",
                                                1);
      g_autoptr (EbbModule) model = NULL;
      g_autoptr (EbbTensor) tokens = NULL;
      g_autoptr (EbbTensor) targets = NULL;
      g_autoptr (EbbTensor) starts = NULL;
      g_autoptr (GError) error = NULL;
      gint64 n_targets;
      double alone;
      Row row;

      config->layers = 2;
      config->width = 32;
      config->heads = 4;
      config->context = 48;
      config->vocab = 256;
      config->dropout = 0;
      if (layout == 1)
        {
          config->layout = EBB_GPT_LAYOUT_LLAMA;
          config->kv_heads = 2;
          config->positions = EBB_POSITIONS_ROTARY;
          config->norm = EBB_NORM_RMS;
          config->gated = TRUE;
          config->activation = EBB_ACTIVATION_SILU;
          config->bias = FALSE;
        }
      ebb_manual_seed (3);
      model = ebb_gpt_new (config, &error);
      g_assert_no_error (error);
      g_object_set (self, "shuffle", FALSE, NULL);
      g_assert_cmpint (ebb_dataset_get_n_rows (self, 48), ==, 1);
      row = take (self, 1, 48);
      alone = sum_alone (model, &row, 48, &n_targets);
      g_object_set (self, "position", (gint64) 0, NULL);
      g_assert_true (ebb_dataset_get_rows (self, 1, 48, &tokens, &targets, &starts, &error));
      g_assert_cmpint (n_targets, ==, 2 + 10 + 10);
      g_assert_cmpfloat (fabs (get_loss (model, tokens, targets, starts) - alone / (double) n_targets), <, 1e-5);
      g_assert_cmpfloat (fabs (get_loss (model, tokens, targets, NULL) - alone / (double) n_targets), >, 1e-5);
      clear (&row);
    }
}

static void
state_continues (void)
{
  g_autoptr (GString) lines = make_many (60);
  g_autoptr (EbbDataset) a = make_lines (lines->str, 5);
  g_autoptr (EbbDataset) b = make_lines (lines->str, 6);
  g_autoptr (EbbDataset) masked = make_lines ("{\"prompt\": \"ab\", \"completion\": \"cd\"}\n", 5);
  g_autoptr (EbbDataset) plain = make_lines ("{\"prompt\": \"abc\", \"completion\": \"d\"}\n", 5);
  g_autoptr (EbbArgs) other = ebb_dataset_get_state (masked);
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (GError) error = NULL;
  Row skipped = take (a, 23, 32), x, y;

  state = ebb_dataset_get_state (a);
  x = take (a, 9, 32);
  g_assert_true (ebb_dataset_load_state (b, state, &error));
  y = take (b, 9, 32);
  g_assert_cmpmem (x.tokens, 9 * 32 * sizeof *x.tokens, y.tokens, 9 * 32 * sizeof *y.tokens);
  g_assert_cmpmem (x.starts, 9 * 32 * sizeof *x.starts, y.starts, 9 * 32 * sizeof *y.starts);
  g_assert_false (ebb_dataset_load_state (plain, other, &error)); /* the same tokens, learned elsewhere */
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  clear (&skipped);
  clear (&x);
  clear (&y);
}

static void
held_out_documents_are_not_trained_on (void)
{
  g_autoptr (GString) lines = make_many (100);
  g_autoptr (EbbDataset) self = make_lines (lines->str, 5);
  g_autoptr (EbbDataset) again = make_lines (lines->str, 5);
  gint64 n_tokens = ebb_dataset_get_n_tokens (self);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbDataset) held = ebb_dataset_hold_out (self, 0.2, &error);
  g_autoptr (EbbDataset) same = ebb_dataset_hold_out (again, 0.2, &error);
  g_autoptr (EbbDataset) one = make_lines ("{\"text\": \"one\"}", 1);
  g_autoptr (EbbArgs) state = ebb_dataset_get_state (held);

  g_assert_no_error (error);
  g_assert_cmpint (ebb_document_dataset_get_n_documents (EBB_DOCUMENT_DATASET (held)), ==, 20);
  g_assert_cmpint (ebb_document_dataset_get_n_documents (EBB_DOCUMENT_DATASET (self)), ==, 80);
  g_assert_cmpint (ebb_dataset_get_n_tokens (self) + ebb_dataset_get_n_tokens (held), ==, n_tokens);
  g_assert_true (ebb_dataset_load_state (same, state, &error));
  g_assert_no_error (error);
  g_assert_null (ebb_dataset_hold_out (one, 0.5, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_clear_error (&error);
  g_assert_null (ebb_dataset_hold_out (self, 1, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
}

static void
assert_refused (const char *lines, const char *message)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GBytes) bytes = g_bytes_new (lines, strlen (lines));
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_document_dataset_new_from_bytes (bytes, tokenizer, 1, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
  g_assert_cmpstr (error->message, ==, message);
}

static void
bad_lines_are_named (void)
{
  assert_refused ("{\"text\": \"a\"}\n{\"text\": \"b\"",
                  "the lines: line 2: byte 12: expected ',' or '}', found "
                  "the end");
  assert_refused ("{\"text\": \"a\"}\n\n[1]\n", "the lines: line 3: a list: a line must be an object with text, with "
                                                "prompt and completion, or with messages");
  assert_refused ("{\"text\": 3}\n", "the lines: line 1: text is a number: it must be a string");
  assert_refused ("{\"text\": \"\"}\n", "the lines: line 1: text is empty: it needs text to learn");
  assert_refused ("{\"title\": \"x\"}\n",
                  "the lines: line 1: the object has neither text, nor prompt and completion, nor messages");
  assert_refused ("{\"prompt\": \"x\"}\n", "the lines: line 1: completion is missing");
  assert_refused ("{\"completion\": \"x\"}\n", "the lines: line 1: prompt is missing");
  assert_refused ("{\"prompt\": \"x\", \"completion\": \"\"}\n",
                  "the lines: line 1: completion is empty: it needs text to learn");
  assert_refused ("{\"prompt\": [], \"completion\": \"y\"}\n",
                  "the lines: line 1: prompt is a list: it must be a string");
  assert_refused ("{\"text\": \"a\", \"prompt\": \"b\"}\n",
                  "the lines: line 1: text and prompt and completion in one line: it must have one of them");
  assert_refused ("{\"text\": \"a\"}\n{\"prompt\": \"b\", \"completion\": \"c\"}\n",
                  "the lines: line 2: prompt and completion, but the lines before it have text: a file has lines of "
                  "one kind");
  assert_refused ("{\"text\": \"a\xff\"}\n", "the lines: line 1: byte 11: not UTF-8");
  assert_refused ("{\"text\": \"a\", \"text\": \"b\"}\n",
                  "the lines: line 1: byte 21: the key \"text\" stands twice in one object");
  assert_refused ("\n \n", "the lines is empty: there is nothing to train on");
  assert_refused ("", "the lines is empty: there is nothing to train on");
}

/* Lines go on from one block of a file to the next; the second file is one document. */
static void
files_are_read_in_blocks (void)
{
  g_autofree char *folder = g_dir_make_tmp ("ebb-documents-XXXXXX", NULL);
  g_autofree char *lines_path = g_build_filename (folder, "a.jsonl", NULL);
  g_autofree char *text_path = g_build_filename (folder, "b.txt", NULL);
  const char *const paths[] = { lines_path, text_path, NULL };
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (EbbDocumentDataset) self = NULL;
  g_autoptr (GString) text = g_string_new ("\357\273\277");
  g_autofree char *message = NULL;
  g_autoptr (GError) error = NULL;

  for (int i = 0; i < 3; i++)
    {
      g_string_append (text, "{\"text\": \"");
      for (int j = 0; j < 700000; j++)
        g_string_append_c (text, (char) ('a' + j % 26));
      g_string_append (text, "\"}\n");
    }
  g_assert_true (g_file_set_contents (lines_path, text->str, (gssize) text->len, NULL));
  g_assert_true (g_file_set_contents (text_path, "{not JSON}", -1, NULL));
  self = ebb_document_dataset_new (paths, tokenizer, 1, &error);
  g_assert_no_error (error);
  g_assert_cmpint (ebb_document_dataset_get_n_documents (self), ==, 4);
  g_assert_cmpint (ebb_dataset_get_n_tokens (EBB_DATASET (self)), ==, 3 * 700000 + 10);

  g_string_append (text, "[");
  g_assert_true (g_file_set_contents (lines_path, text->str, (gssize) text->len, NULL));
  g_assert_null (ebb_document_dataset_new (paths, tokenizer, 1, &error));
  message = g_strdup_printf ("%s: line 4: byte 1: expected a value", lines_path);
  g_assert_cmpstr (error->message, ==, message);
  g_clear_error (&error);
  for (guint i = 0; i < 2; i++)
    {
      static const char *const names[] = { "a.jsonl", "b.txt" };

      g_assert_true (g_file_set_contents (paths[i], "\3757zXZ\n{\"text\": \"a\"}\n", -1, NULL));
      g_assert_null (ebb_document_dataset_new (paths + i, tokenizer, 1, &error));
      test_assert_error (error, EBB_ERROR_FORMAT, names[i], "it is compressed by xz: unpack it first");
      g_clear_error (&error);
    }
  g_unlink (lines_path);
  g_assert_null (ebb_document_dataset_new (paths, tokenizer, 1, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_unlink (text_path);
  g_rmdir (folder);
}

static void
nothing_to_learn_is_an_error (void)
{
  g_autoptr (EbbDataset) self = make_lines ("{\"text\": \"a\"}\n{\"text\": \"b\"}\n", 1);
  g_autoptr (GError) error = NULL;

  g_assert_cmpint (ebb_dataset_get_n_rows (self, 4), ==, 0);
  g_assert_false (ebb_dataset_check_context (self, 4, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_clear_error (&error);
  g_assert_false (ebb_dataset_check_context (self, 0, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
}

/* -- packing beside a naive packer ------------------------------------------------------------------------------- */

static int
compare_down (gconstpointer a, gconstpointer b)
{
  return *(const int *) b - *(const int *) a;
}

/* The numbers of tokens in the rows that the best fit fills with segments of @lengths, longest first. */
static GArray *
pack_naively (GArray *lengths, int context)
{
  GArray *used = g_array_new (FALSE, FALSE, sizeof (int));

  g_array_sort (lengths, compare_down);
  for (guint i = 0; i < lengths->len; i++)
    {
      const int n = g_array_index (lengths, int, i);
      int *best = NULL;

      for (guint r = 0; r < used->len; r++)
        {
          int *row = &g_array_index (used, int, r);

          if (*row + n <= context && (best == NULL || *row > *best))
            best = row;
        }
      if (best != NULL)
        *best += n;
      else
        g_array_append_val (used, n);
    }
  g_array_sort (used, compare_down);
  return used;
}

/* Contexts on both sides of a multiple of 64, because rooms are kept in words of 64 bits. */
static void
rows_are_those_of_a_naive_packer (void)
{
  static const int contexts[] = { 1, 3, 31, 63, 64, 65, 100, 127, 128, 129, 191, 193, 500 };
  g_autoptr (GRand) rand = g_rand_new_with_seed (3);

  for (guint c = 0; c < G_N_ELEMENTS (contexts); c++)
    {
      const int context = contexts[c];
      g_autoptr (GString) lines = g_string_new (NULL);
      g_autoptr (GArray) lengths = g_array_new (FALSE, FALSE, sizeof (int));
      g_autoptr (GArray) expected = NULL;
      g_autoptr (GArray) used = g_array_new (FALSE, FALSE, sizeof (int));
      g_autoptr (EbbDataset) self = NULL;

      for (int i = 0; i < 60; i++)
        {
          /* A document of n + 1 bytes has n targets; every third one has a length at or beside the context's. */
          const int n = i % 3 == 0 ? MAX (context + i % 5 - 2, 1) : g_rand_int_range (rand, 1, 2 * context + 2);
          g_autofree char *text = g_strnfill ((gsize) n + 1, (char) ('a' + i % 26));

          g_string_append_printf (lines, "{\"text\": \"%s\"}\n", text);
          for (int left = n; left > 0; left -= context)
            {
              const int part = MIN (left, context);

              g_array_append_val (lengths, part);
            }
        }
      expected = pack_naively (lengths, context);
      self = make_lines (lines->str, 1);
      g_assert_cmpint (ebb_dataset_get_n_rows (self, context), ==, expected->len);
      for (guint r = 0; r < expected->len; r++)
        {
          Row row = take (self, 1, context);
          int n = 0;

          for (int i = 0; i < context; i++)
            n += row.tokens[i] != 0;
          g_array_append_val (used, n);
          clear (&row);
        }
      g_array_sort (used, compare_down);
      g_assert_cmpmem (used->data, used->len * sizeof (int), expected->data, expected->len * sizeof (int));
    }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/document-dataset/rows", documents_share_rows_and_begin_anew);
  g_test_add_func ("/document-dataset/naive-packer", rows_are_those_of_a_naive_packer);
  g_test_add_func ("/document-dataset/answers", answers_alone_are_learned);
  g_test_add_func ("/document-dataset/prompts", prompts_and_completions_are_one_text);
  g_test_add_func ("/document-dataset/split", long_documents_are_split);
  g_test_add_func ("/document-dataset/messages", messages_have_the_form_of_their_template);
  g_test_add_func ("/document-dataset/answers-left-out", answers_may_be_left_out);
  g_test_add_func ("/document-dataset/rows-left-out", rows_may_be_left_out);
  g_test_add_func ("/document-dataset/date", messages_have_the_same_date_each_day);
  g_test_add_func ("/document-dataset/bad-messages", bad_messages_are_named);
  g_test_add_func ("/document-dataset/alone", packed_documents_have_the_loss_of_each_alone);
  g_test_add_func ("/document-dataset/epoch", an_epoch_takes_each_document_once);
  g_test_add_func ("/document-dataset/state", state_continues);
  g_test_add_func ("/document-dataset/held-out", held_out_documents_are_not_trained_on);
  g_test_add_func ("/document-dataset/bad-lines", bad_lines_are_named);
  g_test_add_func ("/document-dataset/files", files_are_read_in_blocks);
  g_test_add_func ("/document-dataset/nothing", nothing_to_learn_is_an_error);
  return g_test_run ();
}
