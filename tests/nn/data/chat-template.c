/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "tensor/util/json-private.h"
#include "support/tensors.h"
#include "tensor/tensor-private.h"

#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Each built-in form writes what jinja2 writes with a template of that form, and is recognised from the template's
 * text; what is no built-in form is refused by name. */

static const char *
get_string (const EbbJson *json, const char *key)
{
  const char *text = NULL;

  ebb_json_as_string (ebb_json_get (json, key), &text);
  return text;
}

static char **
get_strings (const EbbJson *json, const char *key)
{
  const EbbJson *list = ebb_json_get (json, key);
  char **strings = g_new0 (char *, list->n_items + 1);

  for (gsize i = 0; i < list->n_items; i++)
    strings[i] = g_strdup (list->items[i].text);
  return strings;
}

static char *
read_template (const char *name)
{
  g_autofree char *file = g_strdup_printf ("%s.jinja", name);
  g_autofree char *path = g_test_build_filename (G_TEST_DIST, "fixtures", "chat", file, NULL);
  char *text;

  g_assert_true (g_file_get_contents (path, &text, NULL, NULL));
  return text;
}

/* Each answer's span ends with the token that ends a turn, and has the answer's text. */
static void
check_spans (EbbChatTemplate *template, const EbbJson *json, const char *text, const gsize *spans, gsize n_spans)
{
  g_auto (GStrv) roles = get_strings (json, "roles");
  g_auto (GStrv) contents = get_strings (json, "contents");
  gsize n = 0, last = 0;

  for (guint i = 0; roles[i] != NULL; i++)
    if (strcmp (roles[i], "assistant") == 0)
      {
        g_autofree char *span = g_strndup (text + spans[n], spans[n + 1] - spans[n]);
        const char *answer = strstr (contents[i], "</think>") != NULL ? g_strrstr (contents[i], ">") + 1 : contents[i];
        g_autofree char *bare = g_strstrip (g_strdup (answer));

        g_assert_cmpuint (spans[n], >=, last);
        last = spans[n + 1];
        g_assert_true (g_str_has_suffix (span, ebb_chat_template_get_end_of_turn (template)));
        g_assert_true (!g_str_is_ascii (bare) || strstr (span, bare) != NULL);
        n += 2;
      }
  g_assert_cmpuint (n, ==, n_spans);
}

static void
check_text (EbbChatTemplate *template, const EbbJson *conversation, gboolean prompt, const EbbJson *expected)
{
  g_autoptr (GError) error = NULL;
  g_auto (GStrv) roles = get_strings (conversation, "roles");
  g_auto (GStrv) contents = get_strings (conversation, "contents");
  g_autofree gsize *spans = NULL;
  g_autofree char *text = NULL;
  gsize n_spans;

  text = ebb_chat_template_render (template, (const char *const *) roles, (const char *const *) contents, prompt,
                                   &spans, &n_spans, &error);
  if (expected->kind == EBB_JSON_NULL)
    {
      g_assert_null (text);
      test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "chat: ");
      return;
    }
  g_assert_no_error (error);
  if (g_strcmp0 (text, expected->text) != 0)
    g_error ("%s: \"%s\" should be \"%s\"", ebb_chat_template_get_name (template), text, expected->text);
  check_spans (template, conversation, text, spans, n_spans);
}

static void
check_template (const EbbJson *json, const EbbJson *conversations)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *source = read_template (get_string (json, "name"));
  g_autoptr (EbbChatTemplate) template =
      ebb_chat_template_new_from_text (source, get_string (json, "bos"), get_string (json, "eos"), &error);
  const EbbJson *texts = ebb_json_get (json, "texts");

  g_assert_no_error (error);
  g_assert_cmpstr (ebb_chat_template_get_name (template), ==, get_string (json, "form"));
  g_object_set (template, "date", get_string (json, "date"), NULL);
  g_assert_cmpuint (texts->n_items, ==, conversations->n_items);
  for (gsize i = 0; i < texts->n_items; i++)
    for (gsize way = 0; way < texts->items[i].n_items; way++)
      {
        g_object_set (template, "thinking", way < 2, NULL);
        check_text (template, &conversations->items[i], way > 0, &texts->items[i].items[way]);
      }
}

static void
every_form_writes_what_jinja_writes (void)
{
  g_autofree char *path = g_test_build_filename (G_TEST_DIST, "fixtures", "chat", "expected.json", NULL);
  g_autoptr (EbbJson) json = ebb_json_read_file (path, 1 << 24, NULL);
  const EbbJson *templates = ebb_json_get (json, "templates");

  g_assert_cmpuint (templates->n_items, ==, 18);
  for (gsize i = 0; i < templates->n_items; i++)
    check_template (&templates->items[i], ebb_json_get (json, "conversations"));
}

/* A change of a template's text that changes what it writes is not taken for the template. */
static void
changed_templates_are_refused (void)
{
  static const struct
  {
    const char *name, *from, *to, *says;
  } cases[] = {
    { "chatml", "<|im_end|>\\n", "<|im_end|>", "none of those that are built in" },
    { "chatml", "message.content +", "message.content | trim +", "{content|trim}" },
    { "chatml", "{% if add", "Answer: {% if add", "like ChatML but writes \"Answer: \"" },
    { "smollm2", "assistant.<|im_end|>", "<|im_sep|><|im_end|>", "like ChatML" },
    { "qwen2.5", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", "' + name + '",
      "like ChatML" },
    { "qwen3", "{{- '<think>\\n\\n</think>\\n\\n' }}", "{{- '<think>\\n' }}", "like ChatML" },
    { "llama2", "' [/INST]'", "'[/INST]'", "none of those" },
    { "llama3", "| trim", "", "none of those" },
    { "llama3", "{% if add_generation_prompt %}", "{% if true %}", "none of those" },
    { "llama3.1", "December 2023", "March 2024", "none of those" },
    { "mistral", "' [/INST]'", "' [/INST] '", "none of those" },
    { "mistral-v3", "loop.last and", "loop.first and", "none of those" },
    { "gemma2", "'model'", "'assistant'", "none of those" },
    { "gemma3", "+ '\\n\\n'", "+ '\\n'", "none of those" },
    { "phi3", "{% else %}{{ eos_token }}", "", "none of those" },
    { "phi3", "{% for message in messages %}", "{% for message in messages %}{{ loop.index }}", "like Phi-3" },
    { "chatml", "{% endfor %}", "{% endfor %}{% include 'x' %}", "the statement \"include 'x'\"" },
    { "chatml", "{% endif %}", "{{ 'x", "ends inside a tag" },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (GString) text = g_string_new (NULL);
      g_autofree char *source = read_template (cases[i].name);

      g_string_assign (text, source);
      g_assert_cmpuint (g_string_replace (text, cases[i].from, cases[i].to, 0), >, 0);
      if (ebb_chat_template_new_from_text (text->str, NULL, NULL, &error) != NULL)
        g_error ("%s with \"%s\" is recognised", cases[i].name, cases[i].to);
      if (strstr (error->message, cases[i].says) == NULL)
        g_error ("%s with \"%s\": %s", cases[i].name, cases[i].to, error->message);
      g_assert_null (strchr (error->message, '\n'));
    }
}

static void
bad_conversations_are_named (void)
{
  static const struct
  {
    const char *name, *roles[4], *contents[4], *says;
  } cases[] = {
    { "chatml", { NULL }, { NULL }, "there is no message" },
    { "chatml", { "user", NULL }, { NULL }, "there are 1 roles and 0 contents" },
    { "chatml", { "user", "tool", NULL }, { "a", "b", NULL }, "message 2 is of \"tool\"" },
    { "chatml", { "User", NULL }, { "a", NULL }, "a role is system, user or assistant" },
    { "chatml", { "user", NULL }, { "\xff", NULL }, "message 1 is not UTF-8" },
    { "gemma2", { "system", "user", NULL }, { "a", "b", NULL }, "which Gemma's template doesn't have" },
    { "llama2", { "user", "user", NULL }, { "a", "b", NULL }, "message 2 is of \"user\"" },
    { "llama2", { "system", NULL }, { "a", NULL }, "of the system alone" },
    { "gemma3", { "user", "system", NULL }, { "a", "b", NULL }, "it must be the first" },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autofree char *source = read_template (cases[i].name);
      g_autoptr (EbbChatTemplate) template = ebb_chat_template_new_from_text (source, "<s>", "</s>", NULL);

      g_assert_null (
          ebb_chat_template_render (template, cases[i].roles, cases[i].contents, TRUE, NULL, NULL, &error));
      test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, cases[i].says);
    }
}

static EbbChatTemplate *
open_with (const char *config, const char *jinja, GError **error)
{
  g_autofree char *folder = g_dir_make_tmp ("ebb-chat-XXXXXX", NULL);
  g_autofree char *config_path = g_build_filename (folder, "tokenizer_config.json", NULL);
  g_autofree char *jinja_path = g_build_filename (folder, "chat_template.jinja", NULL);
  EbbChatTemplate *template;

  if (config != NULL)
    g_assert_true (g_file_set_contents (config_path, config, -1, NULL));
  if (jinja != NULL)
    g_assert_true (g_file_set_contents (jinja_path, jinja, -1, NULL));
  template = ebb_chat_template_open (folder, error);
  g_remove (config_path);
  g_remove (jinja_path);
  g_rmdir (folder);
  return template;
}

static void
folders_have_templates_in_three_places (void)
{
#define SHORT_CHATML                                                                                                 \
  "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\\\n' + message.content + '<|im_end|>\\\\n' }}" \
  "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\\\n' }}{% endif %}"
  static const struct
  {
    const char *config, *fixture, *name, *says;
  } cases[] = {
    { "{\"chat_template\": \"" SHORT_CHATML "\", \"eos_token\": \"</s>\"}", NULL, "ChatML", NULL },
    { "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"x\"}, {\"name\": \"default\", \"template\": "
      "\"" SHORT_CHATML "\"}]}",
      NULL, "ChatML", NULL },
    { "{\"bos_token\": {\"content\": \"<s>\"}, \"chat_template\": \"x\"}", "mistral", "Mistral", NULL },
    { NULL, "gemma3", "Gemma 3", NULL },
    { "{\"bos_token\": \"<s>\"}", NULL, NULL, "there is no chat template" },
    { NULL, NULL, NULL, "there is no chat template" },
    { "{\"chat_template\": \"### {{ x }}\"}", NULL, NULL, "writes \"### {x}\"; built in are ChatML, Qwen 3, Llama 2" },
    { "{\"chat_template\": \"\xc3\xa4\xe2\x82\xac {{ x }}\"}", NULL, NULL,
      "writes \"\xc3\xa4\xe2\x82\xac {x}\"; built" },
    { "{\"chat_template\": \"{% \xc3\xa4 %}\"}", NULL, NULL, "has the statement \"\xc3\xa4\"" },
    { "{", NULL, NULL, "tokenizer_config.json" },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autofree char *jinja = cases[i].fixture != NULL ? read_template (cases[i].fixture) : NULL;
      g_autoptr (EbbChatTemplate) template = open_with (cases[i].config, jinja, &error);

      if (cases[i].name != NULL)
        {
          g_assert_no_error (error);
          g_assert_cmpstr (ebb_chat_template_get_name (template), ==, cases[i].name);
        }
      else
        {
          g_assert_null (template);
          if (strstr (error->message, cases[i].says) == NULL)
            g_error ("\"%s\" does not say \"%s\"", error->message, cases[i].says);
        }
    }
}

/* An older folder names the special tokens that the template writes in a file of their own. */
static void
special_tokens_come_from_either_file (void)
{
  g_autofree char *folder = g_dir_make_tmp ("ebb-chat-XXXXXX", NULL);
  g_autofree char *jinja = read_template ("mistral");
  g_autofree char *path = g_build_filename (folder, "chat_template.jinja", NULL);
  g_autofree char *map = g_build_filename (folder, "special_tokens_map.json", NULL);
  g_autoptr (EbbChatTemplate) template = NULL;
  g_autofree char *text = NULL;
  GError *error = NULL;

  g_assert_true (g_file_set_contents (path, jinja, -1, NULL));
  g_assert_true (g_file_set_contents (map, "{\"bos_token\": \"<begin>\", \"eos_token\": \"<end>\"}", -1, NULL));
  template = ebb_chat_template_open (folder, &error);
  g_assert_no_error (error);
  text = ebb_chat_template_render (template, (const char *const[]){ "user", "assistant", NULL },
                                   (const char *const[]){ "a", "b", NULL }, FALSE, NULL, NULL, &error);
  g_assert_no_error (error);
  g_assert_true (g_str_has_prefix (text, "<begin>"));
  g_assert_true (g_str_has_suffix (text, "<end>"));
  g_remove (path);
  g_remove (map);
  g_rmdir (folder);
}

/* A pipe without a writer is refused, not waited for, and so is a file without end; the folder's name stays on the
 * error's line. */
static void
templates_are_regular_files_of_a_bounded_size (void)
{
  g_autofree char *parent = g_dir_make_tmp ("ebb-chat-XXXXXX", NULL);
  g_autofree char *folder = g_build_filename (parent, "a\nb", NULL);
  g_autofree char *path = g_build_filename (folder, "chat_template.jinja", NULL);
  GError *error = NULL;

  g_assert_cmpint (g_mkdir (folder, 0700), ==, 0);
  g_assert_null (ebb_chat_template_open (folder, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);
  g_assert_null (strchr (error->message, '\n'));
  g_clear_error (&error);
  g_assert_cmpint (mkfifo (path, 0600), ==, 0);
  g_assert_null (ebb_chat_template_open (folder, &error));
  g_assert_nonnull (strstr (error->message, "chat_template.jinja"));
  g_assert_null (strchr (error->message, '\n'));
  g_clear_error (&error);
  g_remove (path);
  g_assert_true (g_file_set_contents (path, "", 0, NULL));
  g_assert_cmpint (truncate (path, 1 << 30), ==, 0);
  g_assert_null (ebb_chat_template_open (folder, &error));
  g_assert_nonnull (strstr (error->message, "16777216 at most"));
  g_clear_error (&error);
  g_remove (path);
  g_rmdir (folder);
  g_rmdir (parent);
}

/* A folder's tokenizer has its template, and the special tokens that the template writes. */
static void
tokenizers_have_the_template_of_their_folder (void)
{
  const char *roles[] = { "user", "assistant", NULL }, *contents[] = { "Hello", "Yes", NULL };
  g_autofree char *folder = g_test_build_filename (G_TEST_DIST, "fixtures", "chat-model", NULL);
  g_autofree char *other = g_test_build_filename (G_TEST_DIST, "fixtures", "tokenizers", "llama3", NULL);
  g_autoptr (EbbTokenizer) tokenizer = ebb_tokenizer_open (folder, NULL);
  g_autoptr (EbbTokenizer) llama3 = ebb_tokenizer_open (other, NULL);
  g_autoptr (EbbTokenizer) bytes = ebb_byte_tokenizer_new ();
  g_autoptr (EbbChatTemplate) opened = ebb_chat_template_open (folder, NULL);
  g_autofree char *expected = ebb_chat_template_render (opened, roles, contents, TRUE, NULL, NULL, NULL);
  GError *error = NULL;
  g_autoptr (EbbChatTemplate) template = ebb_chat_template_new_for_tokenizer (tokenizer, &error);
  g_autofree char *text = NULL;

  g_assert_no_error (error);
  text = ebb_chat_template_render (template, roles, contents, TRUE, NULL, NULL, &error);
  g_assert_cmpstr (text, ==, expected);
  g_assert_cmpstr (ebb_chat_template_get_end_of_turn (template), ==, "<|im_end|>");
  g_assert_null (ebb_chat_template_new_for_tokenizer (bytes, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);
  g_assert_nonnull (strstr (error->message, "the tokenizer has no chat template"));
  g_clear_error (&error);
  g_assert_null (ebb_chat_template_new_for_tokenizer (llama3, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);
  g_clear_error (&error);
}

/* With a token for each byte the marked tokens are the bytes of the answers. */
static void
answers_are_marked_among_tokens (void)
{
  const char *roles[] = { "user", "assistant", "user", "assistant", NULL };
  const char *contents[] = { "One", "Two", "Three", "Four", NULL };
  g_autoptr (GError) error = NULL;
  g_autofree char *source = read_template ("mistral-v1");
  g_autoptr (EbbChatTemplate) template = ebb_chat_template_new_from_text (source, "<s>", "</s>", NULL);
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (EbbTensor) answers = NULL;
  g_autoptr (EbbTensor) tokens =
      ebb_chat_template_encode (template, tokenizer, roles, contents, FALSE, &answers, &error);
  g_autoptr (GString) marked = g_string_new (NULL);
  const gint64 *data;
  const guint8 *marks;

  g_assert_no_error (error);
  data = ebb_tensor_get_data (tokens, NULL);
  marks = ebb_tensor_get_data (answers, NULL);
  for (gint64 i = 0; i < ebb_tensor_get_n_elements (tokens); i++)
    if (marks[i])
      g_string_append_c (marked, (char) data[i]);
  g_assert_cmpstr (marked->str, ==, " Two</s> Four</s>");
}

/* -- which tokens are answers -------------------------------------------------------------------------------------- */

/* Another tokenizer, which counts the bytes that it is given. */
typedef struct
{
  EbbTokenizer parent;
  EbbTokenizer *inner;
  gsize n_bytes;
} CountingTokenizer;

typedef EbbTokenizerClass CountingTokenizerClass;

GType counting_tokenizer_get_type (void);
G_DEFINE_TYPE (CountingTokenizer, counting_tokenizer, EBB_TYPE_TOKENIZER)

static EbbTensor *
counting_tokenizer_encode (EbbTokenizer *tokenizer, GBytes *text, GError **error)
{
  CountingTokenizer *self = (CountingTokenizer *) tokenizer;

  self->n_bytes += g_bytes_get_size (text);
  return ebb_tokenizer_encode (self->inner, text, error);
}

static guint
counting_tokenizer_get_vocab_size (EbbTokenizer *tokenizer)
{
  return ebb_tokenizer_get_vocab_size (((CountingTokenizer *) tokenizer)->inner);
}

static gssize
counting_tokenizer_find_cut (EbbTokenizer *tokenizer, GBytes *text, gsize from)
{
  return ebb_tokenizer_find_cut (((CountingTokenizer *) tokenizer)->inner, text, from);
}

static char *
counting_tokenizer_get_token (EbbTokenizer *tokenizer, gint64 token)
{
  return ebb_tokenizer_get_token (((CountingTokenizer *) tokenizer)->inner, token);
}

static gboolean
counting_tokenizer_is_special (EbbTokenizer *tokenizer, gint64 token)
{
  return ebb_tokenizer_is_special (((CountingTokenizer *) tokenizer)->inner, token);
}

static void
counting_tokenizer_class_init (CountingTokenizerClass *klass)
{
  klass->encode = counting_tokenizer_encode;
  klass->get_vocab_size = counting_tokenizer_get_vocab_size;
  klass->find_cut = counting_tokenizer_find_cut;
  klass->get_token = counting_tokenizer_get_token;
  klass->is_special = counting_tokenizer_is_special;
}

static void
counting_tokenizer_init (CountingTokenizer *self)
{
}

/* The marks are those of the tokens that the text up to an answer's bounds has. *@n_bytes: how many the encoding with
 * marks took; returns the text's. */
static gsize
check_marks (EbbChatTemplate *template,
             EbbTokenizer *tokenizer,
             const char *const *roles,
             const char *const *contents,
             gsize *n_bytes)
{
  CountingTokenizer *counting = g_object_new (counting_tokenizer_get_type (), NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) answers = NULL;
  g_autoptr (EbbTensor) tokens = NULL;
  g_autofree gsize *spans = NULL;
  g_autofree char *text = NULL;
  gsize n_spans;
  const gint64 *data;
  const guint8 *marks;
  gint64 done = 0, n;

  counting->inner = tokenizer;
  tokens = ebb_chat_template_encode (template, EBB_TOKENIZER (counting), roles, contents, FALSE, &answers, &error);
  g_assert_no_error (error);
  text = ebb_chat_template_render (template, roles, contents, FALSE, &spans, &n_spans, &error);
  data = ebb_tensor_get_data (tokens, NULL);
  marks = ebb_tensor_get_data (answers, NULL);
  n = ebb_tensor_get_n_elements (tokens);
  for (gsize j = 0; j < n_spans; j++)
    {
      g_autofree char *before = g_strndup (text, spans[j]);
      gsize n_before;
      g_autofree gint64 *prefix = ebb_tokenizer_encode_text (tokenizer, before, &n_before, &error);
      gint64 common = 0;

      g_assert_no_error (error);
      while (common < n && common < (gint64) n_before && prefix[common] == data[common])
        common++;
      for (; done < common; done++)
        g_assert_cmpint (marks[done], ==, j % 2);
    }
  for (; done < n; done++)
    g_assert_false (marks[done]);
  *n_bytes = counting->n_bytes;
  g_object_unref (counting);
  return strlen (text);
}

static EbbTokenizer *
open_tokenizer (const char *family)
{
  g_autofree char *folder = g_test_build_filename (G_TEST_DIST, "fixtures", "tokenizers", family, NULL);
  g_autoptr (GError) error = NULL;
  EbbTokenizer *tokenizer = ebb_tokenizer_open (folder, &error);

  g_assert_no_error (error);
  return tokenizer;
}

static void
answers_begin_where_the_text_before_them_ends (void)
{
  static const char *const families[] = { "llama2", "llama3", "mistral", "qwen", "gemma" };
  const char *roles[] = { "user", "assistant", "user", "assistant", "user", "assistant", NULL };
  const char *contents[] = { "One", " Two", "Three", "Four  </s>", "<s>", "Six", NULL };
  g_autofree char *source = read_template ("mistral-v1");
  g_autoptr (EbbChatTemplate) template = ebb_chat_template_new_from_text (source, "<s>", "</s>", NULL);
  gsize n_bytes;

  for (guint i = 0; i < G_N_ELEMENTS (families); i++)
    {
      g_autoptr (EbbTokenizer) tokenizer = open_tokenizer (families[i]);

      check_marks (template, tokenizer, roles, contents, &n_bytes);
    }
}

/* A tokenizer that has none of the template's tokens but can be cut: no text is encoded for each answer from the
 * beginning. */
static void
marking_long_conversations_takes_time_by_their_length (void)
{
  static const char *const families[] = { "gpt2", "llama3", "qwen", "bert-cased", NULL };
  static const char *const said[] = { "Why?", "Because.\nAnd so on:\n\n- one\n- two",
                                      "\xc3\xa9\xe4\xbd\xa0 \xe5\xa5\xbd", " blanks  \n around ", "x" };
  g_autofree char *source = read_template ("chatml");
  g_autoptr (EbbChatTemplate) template = ebb_chat_template_new_from_text (source, "", "<|im_end|>", NULL);
  g_autofree const char **roles = g_new0 (const char *, 121);
  g_autofree const char **contents = g_new0 (const char *, 121);

  for (guint i = 0; i < 120; i++)
    {
      roles[i] = i % 2 == 0 ? "user" : "assistant";
      contents[i] = said[i * i % 7 % G_N_ELEMENTS (said)];
    }
  for (guint i = 0; i <= G_N_ELEMENTS (families) - 1; i++)
    {
      g_autoptr (EbbTokenizer) tokenizer =
          families[i] != NULL ? open_tokenizer (families[i]) : ebb_byte_tokenizer_new ();
      gsize n_bytes, length = check_marks (template, tokenizer, roles, contents, &n_bytes);

      g_test_message ("%s: %" G_GSIZE_FORMAT " bytes of %" G_GSIZE_FORMAT, families[i] != NULL ? families[i] : "bytes",
                      n_bytes, length);
      g_assert_cmpuint (n_bytes, <=, 5 * length);
    }
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/nn/data/chat-template/jinja", every_form_writes_what_jinja_writes);
  g_test_add_func ("/nn/data/chat-template/changed", changed_templates_are_refused);
  g_test_add_func ("/nn/data/chat-template/conversations", bad_conversations_are_named);
  g_test_add_func ("/nn/data/chat-template/folders", folders_have_templates_in_three_places);
  g_test_add_func ("/nn/data/chat-template/special-tokens-come-from-either-file", special_tokens_come_from_either_file);
  g_test_add_func ("/nn/data/chat-template/tokenizers", tokenizers_have_the_template_of_their_folder);
  g_test_add_func ("/nn/data/chat-template/files", templates_are_regular_files_of_a_bounded_size);
  g_test_add_func ("/nn/data/chat-template/answers", answers_are_marked_among_tokens);
  g_test_add_func ("/nn/data/chat-template/bounds", answers_begin_where_the_text_before_them_ends);
  g_test_add_func ("/nn/data/chat-template/long", marking_long_conversations_takes_time_by_their_length);
  return g_test_run ();
}
