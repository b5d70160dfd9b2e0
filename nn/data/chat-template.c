/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Writes conversations in the form that a model was trained with. */
#include "nn/data/chat-template.h"

#include "nn/data/answers-private.h"
#include "nn/data/chat-form-private.h"
#include "nn/data/tokenizer-settings-private.h"
#include "tensor/error-private.h"
#include "tensor/tensor-private.h"
#include "tensor/util/atomic-file-private.h"
#include "tensor/util/property-private.h"

#include <string.h>

/**
 * EbbChatTemplate:
 *
 * The form in which a model reads a conversation: the tokens around the messages of the system, the user and the
 * assistant. A folder's template is a program in Jinja; it is recognised by its outputs, the texts that it writes, and
 * a built-in form replaces it: ChatML, Qwen (2.5 as ChatML with its system message, 3 with
 * reasoning), Llama 2, 3 and 3.1, Mistral, Gemma and Phi-3. Tools are not part of it.
 *
 * A conversation is two lists of equal length, the roles (`system`, `user`, `assistant`) and the contents.
 */
struct _EbbChatTemplate
{
  GObject parent_instance;

  EbbChatRecognition recognition;
  char *bos_token, *eos_token; /* "" where there is none */
  char *date;
  gboolean thinking;
};

G_DEFINE_TYPE (EbbChatTemplate, ebb_chat_template, G_TYPE_OBJECT)

#define FIXED_DATE "26 Jul 2024" /* of Llama 3.1 where the template doesn't ask for today's */

static void
ebb_chat_template_finalize (GObject *object)
{
  EbbChatTemplate *self = EBB_CHAT_TEMPLATE (object);

  g_free (self->recognition.default_system);
  g_free (self->bos_token);
  g_free (self->eos_token);
  g_free (self->date);
  G_OBJECT_CLASS (ebb_chat_template_parent_class)->finalize (object);
}

static void
ebb_chat_template_class_init (EbbChatTemplateClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_chat_template_finalize;

  /**
   * EbbChatTemplate:date:
   *
   * The date that Llama 3.1's header names, as `26 Jul 2024`; %NULL for the template's own: today's from 3.2 on.
   */
  g_object_class_install_property (object_class, offsetof (EbbChatTemplate, date),
                                   g_param_spec_string ("date", NULL, "The date that the header names", NULL, flags));
  /**
   * EbbChatTemplate:thinking:
   *
   * Whether Qwen 3 reasons before it answers. If not, the prompt ends with reasoning that is empty.
   */
  g_object_class_install_property (
      object_class, offsetof (EbbChatTemplate, thinking),
      g_param_spec_boolean ("thinking", NULL, "Whether the model reasons before it answers", TRUE, flags));
}

static void
ebb_chat_template_init (EbbChatTemplate *self)
{
  self->thinking = TRUE;
}

/* -- opening ------------------------------------------------------------------------------------------------------- */

/**
 * ebb_chat_template_new_from_text:
 * @text: the template, a program in Jinja
 * @bos_token: (nullable): the token that begins a text
 * @eos_token: (nullable): the token that ends it
 * @error: return location for an error
 *
 * Recognises a template.
 *
 * Returns: (transfer full) (nullable): the template, or %NULL with @error set: to %EBB_ERROR_NOT_SUPPORTED if it is
 *   none of those that are built in
 */
EbbChatTemplate *
ebb_chat_template_new_from_text (const char *text,
                                 const char *bos_token,
                                 const char *eos_token,
                                 GError **error)
{
  EbbChatRecognition recognition;
  EbbChatTemplate *self;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, text);
  if (!g_utf8_validate (text, -1, NULL))
    return ebb_fail_null (error, EBB_ERROR_FORMAT, "the chat template is not UTF-8");
  if (!ebb_chat_form_recognise (text, &recognition, error))
    return NULL;
  self = g_object_new (EBB_TYPE_CHAT_TEMPLATE, NULL);
  self->recognition = recognition;
  self->bos_token = g_strdup (bos_token != NULL ? bos_token : "");
  self->eos_token = g_strdup (eos_token != NULL ? eos_token : "");
  return self;
}

/**
 * ebb_chat_template_open:
 * @folder: a model's folder
 * @error: return location for an error
 *
 * Reads `chat_template.jinja` of a model's folder, or `chat_template` of its `tokenizer_config.json`, and recognises
 * it.
 *
 * Returns: (transfer full) (nullable): the template, or %NULL with @error set: to %EBB_ERROR_NOT_SUPPORTED if the
 *   folder has none, or one that is not built in
 */
EbbChatTemplate *
ebb_chat_template_open (const char *folder,
                        GError **error)
{
  g_autofree char *shown = NULL;
  g_autofree char *text = NULL;
  g_autoptr (EbbJson) config = NULL;
  g_autoptr (EbbJson) map = NULL;
  EbbChatTemplate *self;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, folder);
  if (ebb_gguf_is_path (folder))
    {
      const char *found = NULL;

      config = ebb_tokenizer_settings_read_gguf (folder, error);
      if (config == NULL)
        return NULL;
      ebb_json_as_string (ebb_json_get (config, "chat_template"), &found);
      text = g_strdup (found);
    }
  else if (!ebb_check_folder (folder, error)
           || !ebb_tokenizer_settings_read (folder, "tokenizer_config.json", &config, error)
           || !ebb_tokenizer_settings_read (folder, "special_tokens_map.json", &map, error)
           || !ebb_tokenizer_settings_read_chat_template (folder, config, &text, error))
    return NULL;
  shown = ebb_escape_text (folder);
  if (text == NULL)
    return ebb_fail_null (error, EBB_ERROR_NOT_SUPPORTED,
                          "%s: there is no chat template, %s: the model was not trained to chat", shown,
                          ebb_gguf_is_path (folder) ? "\"tokenizer.chat_template\""
                                                    : "neither chat_template.jinja nor \"chat_template\" in "
                                                      "tokenizer_config.json");
  self = ebb_chat_template_new_from_text (text, ebb_tokenizer_settings_find_token (config, map, "bos_token"),
                                          ebb_tokenizer_settings_find_token (config, map, "eos_token"), error);
  if (self == NULL)
    g_prefix_error (error, "%s: ", shown);
  return self;
}

static char *
spell_special_token (EbbTokenizer *tokenizer, EbbSpecialToken which)
{
  const gint64 token = ebb_tokenizer_get_special_token (tokenizer, which);

  return token >= 0 ? ebb_tokenizer_get_token (tokenizer, token) : NULL;
}

/**
 * ebb_chat_template_new_for_tokenizer:
 * @tokenizer: a model's tokenizer
 * @error: return location for an error
 *
 * Recognises the template of the folder that a tokenizer was opened from.
 *
 * Returns: (transfer full) (nullable): the template, or %NULL with @error set: to %EBB_ERROR_NOT_SUPPORTED if the
 *   tokenizer has none, or one that is not built in
 */
EbbChatTemplate *
ebb_chat_template_new_for_tokenizer (EbbTokenizer *tokenizer,
                                     GError **error)
{
  g_autofree char *bos = NULL;
  g_autofree char *eos = NULL;
  const char *text;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, tokenizer);
  g_return_val_if_fail (EBB_IS_TOKENIZER (tokenizer), NULL);

  text = ebb_tokenizer_get_chat_template (tokenizer);
  if (text == NULL)
    return ebb_fail_null (error, EBB_ERROR_NOT_SUPPORTED,
                          "chat: the tokenizer has no chat template: its model was not trained to chat");
  bos = spell_special_token (tokenizer, EBB_SPECIAL_TOKEN_BOS);
  eos = spell_special_token (tokenizer, EBB_SPECIAL_TOKEN_EOS);
  return ebb_chat_template_new_from_text (text, bos, eos, error);
}

/**
 * ebb_chat_template_get_name:
 * @self: a template
 *
 * Returns: the name of its form, as "Llama 3.1"
 */
const char *
ebb_chat_template_get_name (EbbChatTemplate *self)
{
  g_return_val_if_fail (EBB_IS_CHAT_TEMPLATE (self), NULL);

  return self->recognition.form->name;
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

/* TRUE for characters that Python's str.strip () removes. */
static gboolean
is_space (gunichar c)
{
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680
         || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static void
trim (const char **begin, const char **end)
{
  while (*begin < *end && is_space (g_utf8_get_char (*begin)))
    *begin = g_utf8_next_char (*begin);
  while (*begin < *end && is_space (g_utf8_get_char (g_utf8_prev_char (*end))))
    *end = g_utf8_prev_char (*end);
}

static void
append_trimmed (GString *text, const char *content)
{
  const char *begin = content, *end = content + strlen (content);

  trim (&begin, &end);
  g_string_append_len (text, begin, end - begin);
}

/* With the special tokens for \1 and \2. */
static void
append_form (EbbChatTemplate *self, GString *text, const char *form)
{
  for (; form != NULL && *form != '\0'; form++)
    if (*form == '\1')
      g_string_append (text, self->bos_token);
    else if (*form == '\2')
      g_string_append (text, self->eos_token);
    else
      g_string_append_c (text, *form);
}

typedef struct
{
  EbbChatTemplate *template;
  const EbbChatForm *form;
  const char *const *roles, *const *contents;
  gsize n;
  const char *system; /* that is before a turn of the user, or in the header; NULL: none */
  gsize first;        /* message of the turns: 1 where the first is @system */
  gsize last_question;
  GString *text;
  GArray *spans; /* gsize: begin, end */
} Writing;

static void
append_header (Writing *self)
{
  append_form (self->template, self->text, self->form->system_before);
  if (self->form->has_date)
    {
      g_autoptr (GDateTime) now = g_date_time_new_now_local ();
      static const char *const months[] = { "Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec" };
      g_autofree char *today =
          g_strdup_printf ("%02d %s %d", g_date_time_get_day_of_month (now), months[g_date_time_get_month (now) - 1],
                           g_date_time_get_year (now));

      g_string_append_printf (self->text, "Cutting Knowledge Date: December 2023\nToday Date: %s\n\n",
                              self->template->date != NULL            ? self->template->date
                              : self->template->recognition.asks_date ? today
                                                                      : FIXED_DATE);
    }
  if (self->system != NULL)
    append_trimmed (self->text, self->system);
  append_form (self->template, self->text, self->form->system_after);
}

static void
append_system (Writing *self, const char *content)
{
  if (*content == '\0' && self->form->skips_empty_system)
    return;
  append_form (self->template, self->text, self->form->system_before);
  if (self->form->trim == EBB_CHAT_TRIM_ALL)
    append_trimmed (self->text, content);
  else
    g_string_append (self->text, content);
  append_form (self->template, self->text, self->form->system_after);
}

static void
append_user (Writing *self, gsize i)
{
  const EbbChatForm *form = self->form;
  gboolean takes_system = self->system != NULL
                          && (form->system == EBB_CHAT_SYSTEM_FIRST_USER  ? i == self->first
                              : form->system == EBB_CHAT_SYSTEM_LAST_USER ? i + 1 == self->n
                                                                          : FALSE);
  g_autoptr (GString) content = g_string_new (NULL);

  append_form (self->template, self->text, form->user_before);
  if (takes_system)
    {
      append_form (self->template, content, form->system_before);
      g_string_append (content, self->system);
      append_form (self->template, content, form->system_after);
    }
  if (form->trim == EBB_CHAT_TRIM_CONTENTS || form->trim == EBB_CHAT_TRIM_ALL)
    append_trimmed (content, self->contents[i]);
  else
    g_string_append (content, self->contents[i]);
  if (form->trim == EBB_CHAT_TRIM_TURNS)
    append_trimmed (self->text, content->str);
  else
    g_string_append_len (self->text, content->str, (gssize) content->len);
  append_form (self->template, self->text, form->user_after);
}

static const char *
skip_breaks (const char *p)
{
  return p + strspn (p, "\n");
}

/* Answers after the last question with their reasoning, the last of all even where it has none; earlier ones
 * without. */
static void
append_thoughts (Writing *self, gsize i)
{
  const char *content = self->contents[i], *close = strstr (content, "</think>"),
             *last = g_strrstr (content, "</think>");
  g_autofree char *reasoning = g_strdup ("");

  if (close != NULL)
    {
      const char *open;

      g_free (reasoning);
      reasoning = g_strndup (content, (gsize) (close - content));
      for (gsize length = strlen (reasoning); length > 0 && reasoning[length - 1] == '\n'; length--)
        reasoning[length - 1] = '\0';
      open = g_strrstr (reasoning, "<think>");
      if (open != NULL)
        memmove (reasoning, open + strlen ("<think>"), strlen (open) - strlen ("<think>") + 1);
      content = skip_breaks (last + strlen ("</think>"));
    }
  if (i > self->last_question && (i + 1 == self->n || *skip_breaks (reasoning) != '\0'))
    {
      const char *begin = skip_breaks (reasoning);
      gsize length = strlen (begin);

      while (length > 0 && begin[length - 1] == '\n')
        length--;
      g_string_append_printf (self->text, "<think>\n%.*s\n</think>\n\n", (int) length, begin);
      content = skip_breaks (content);
    }
  g_string_append (self->text, content);
}

/* The answer's span begins where the model would begin to write, and ends with the token that ends a turn. */
static void
append_assistant (Writing *self, gsize i)
{
  const EbbChatForm *form = self->form;
  gsize begin = self->text->len, end;

  append_form (self->template, self->text, form->assistant_before);
  if (form->generation != NULL)
    begin = self->text->len;
  if (form->thinks)
    append_thoughts (self, i);
  else if (form->trim != EBB_CHAT_TRIM_NONE)
    append_trimmed (self->text, self->contents[i]);
  else
    g_string_append (self->text, self->contents[i]);
  append_form (self->template, self->text, form->assistant_after);
  end = self->text->len;
  while (end > begin && g_ascii_isspace (self->text->str[end - 1]))
    end--;
  g_array_append_val (self->spans, begin);
  g_array_append_val (self->spans, end);
}

static gboolean
is_question (const char *content)
{
  return !(g_str_has_prefix (content, "<tool_response>") && g_str_has_suffix (content, "</tool_response>"));
}

static void
write_all (Writing *self, gboolean add_generation_prompt)
{
  EbbChatTemplate *template = self->template;
  const EbbChatForm *form = self->form;
  const char *default_system = template->recognition.default_system;

  self->last_question = self->n - 1;
  for (gsize i = self->n; i-- > 0;)
    if (strcmp (self->roles[i], "user") == 0 && is_question (self->contents[i]))
      {
        self->last_question = i;
        break;
      }
  append_form (template, self->text, template->recognition.writes_bos ? "\1" : form->start);
  if (form->system == EBB_CHAT_SYSTEM_HEADER)
    append_header (self);
  else if (default_system != NULL && strcmp (self->roles[0], "system") != 0)
    append_system (self, default_system);
  for (gsize i = self->first; i < self->n; i++)
    if (strcmp (self->roles[i], "system") == 0)
      append_system (self, self->contents[i]);
    else if (strcmp (self->roles[i], "user") == 0)
      append_user (self, i);
    else
      append_assistant (self, i);
  append_form (template, self->text, add_generation_prompt ? form->generation : form->ending);
  if (add_generation_prompt && form->thinks && !template->thinking)
    g_string_append (self->text, "<think>\n\n</think>\n\n");
}

#define refuse(error, ...) ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "chat: " __VA_ARGS__)

static gboolean
check_message (Writing *self, gsize i, GError **error)
{
  const char *role = self->roles[i], *name = self->form->name;
  gboolean is_system = strcmp (role, "system") == 0;

  if (!g_utf8_validate (role, -1, NULL) || !g_utf8_validate (self->contents[i], -1, NULL))
    return refuse (error, "message %" G_GSIZE_FORMAT " is not UTF-8", i + 1);
  if (!is_system && strcmp (role, "user") != 0 && strcmp (role, "assistant") != 0)
    return refuse (error, "message %" G_GSIZE_FORMAT " is of \"%s\"; a role is system, user or assistant", i + 1,
                   role);
  if (is_system && self->form->system == EBB_CHAT_SYSTEM_REFUSED)
    return refuse (error, "message %" G_GSIZE_FORMAT " is of the system, which %s's template doesn't have", i + 1,
                   name);
  if (is_system && i > 0 && self->form->system >= EBB_CHAT_SYSTEM_FIRST_USER)
    return refuse (error, "message %" G_GSIZE_FORMAT " is of the system; in %s's template it must be the first", i + 1,
                   name);
  if (!self->form->alternates || i < self->first)
    return TRUE;
  if ((strcmp (role, "user") == 0) != ((i - self->first) % 2 == 0))
    return refuse (error,
                   "message %" G_GSIZE_FORMAT " is of \"%s\"; in %s's template user and assistant must alternate, the "
                   "user first",
                   i + 1, role, name);
  return TRUE;
}

static gboolean
begin_writing (Writing *self, GError **error)
{
  const EbbChatSystem system = self->form->system;

  self->n = g_strv_length ((char **) self->roles);
  if (self->n != g_strv_length ((char **) self->contents))
    return refuse (error, "there are %" G_GSIZE_FORMAT " roles and %u contents", self->n,
                   g_strv_length ((char **) self->contents));
  if (self->n == 0)
    return refuse (error, "there is no message");
  if (strcmp (self->roles[0], "system") == 0 && system >= EBB_CHAT_SYSTEM_HEADER)
    {
      self->system = self->contents[0];
      self->first = 1;
    }
  for (gsize i = 0; i < self->n; i++)
    if (!check_message (self, i, error))
      return FALSE;
  if (self->first == self->n && system != EBB_CHAT_SYSTEM_HEADER)
    return refuse (error, "there is a message of the system alone, which %s's template puts before the user's",
                   self->form->name);
  return TRUE;
}

/**
 * ebb_chat_template_render:
 * @self: a template
 * @roles: (array zero-terminated=1): who says each message: `system`, `user` or `assistant`
 * @contents: (array zero-terminated=1): what they say
 * @add_generation_prompt: whether the text ends with the beginning of an answer, for the model to go on
 * @spans: (out) (optional) (array length=n_spans) (transfer full): return location for where the text has answers of
 *   the assistant: for each the byte where it begins and the one behind its end, with the token that ends it
 * @n_spans: (out) (optional): return location for how many bytes @spans has, two for each answer
 * @error: return location for an error
 *
 * Writes a conversation as the model reads it.
 *
 * Returns: (transfer full) (nullable): the text; %NULL with @error set if there is no message, a role is unknown, or
 *   the template doesn't take roles in this order
 */
char *
ebb_chat_template_render (EbbChatTemplate *self,
                          const char *const *roles,
                          const char *const *contents,
                          gboolean add_generation_prompt,
                          gsize **spans,
                          gsize *n_spans,
                          GError **error)
{
  g_autoptr (GArray) bounds = NULL;
  Writing writing;

  if (spans != NULL)
    *spans = NULL;
  if (n_spans != NULL)
    *n_spans = 0;
  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, roles, contents);
  g_return_val_if_fail (EBB_IS_CHAT_TEMPLATE (self), NULL);

  writing = (Writing){ .template = self, .form = self->recognition.form, .roles = roles, .contents = contents };
  if (!begin_writing (&writing, error))
    return NULL;
  bounds = g_array_new (FALSE, FALSE, sizeof (gsize));
  writing.spans = bounds;
  writing.text = g_string_new (NULL);
  write_all (&writing, add_generation_prompt);
  if (n_spans != NULL)
    *n_spans = bounds->len;
  if (spans != NULL)
    *spans = (gsize *) (gpointer) g_array_free (g_steal_pointer (&bounds), FALSE);
  return g_string_free (writing.text, FALSE);
}

/**
 * ebb_chat_template_has_thinking:
 * @self: a template
 *
 * Returns: whether #EbbChatTemplate:thinking changes what the template writes
 */
gboolean
ebb_chat_template_has_thinking (EbbChatTemplate *self)
{
  g_return_val_if_fail (EBB_IS_CHAT_TEMPLATE (self), FALSE);

  return self->recognition.form->thinks;
}

/**
 * ebb_chat_template_get_end_of_turn:
 * @self: a template
 *
 * Returns: the text that ends an answer, usually a special token: generation stops there. The empty text if the
 *   template's folder names none.
 */
const char *
ebb_chat_template_get_end_of_turn (EbbChatTemplate *self)
{
  g_autofree char *token = NULL;
  const char *after;

  g_return_val_if_fail (EBB_IS_CHAT_TEMPLATE (self), NULL);

  after = self->recognition.form->assistant_after;
  if (strchr (after, '\2') != NULL)
    return self->eos_token;
  token = g_strchomp (g_strdup (after));
  return g_intern_string (token);
}

/* -- tokens -------------------------------------------------------------------------------------------------------- */

/**
 * ebb_chat_template_encode:
 * @self: a template
 * @tokenizer: the model's tokenizer
 * @roles: (array zero-terminated=1): who says each message
 * @contents: (array zero-terminated=1): what they say
 * @add_generation_prompt: whether the text ends with the beginning of an answer
 * @answers: (out) (optional) (transfer full): return location for which tokens are answers of the assistant, bool `[n]`
 * @error: return location for an error
 *
 * Writes a conversation as tokens. A token that belongs to an answer and to the text before it counts as the answer's.
 *
 * Returns: (transfer full) (nullable): i64 `[n]` on the CPU, or %NULL with @error set
 */
EbbTensor *
ebb_chat_template_encode (EbbChatTemplate *self,
                          EbbTokenizer *tokenizer,
                          const char *const *roles,
                          const char *const *contents,
                          gboolean add_generation_prompt,
                          EbbTensor **answers,
                          GError **error)
{
  g_autofree char *text = NULL;
  g_autofree gsize *spans = NULL;
  g_autoptr (EbbTensor) tokens = NULL;
  gsize n_spans;

  if (answers != NULL)
    *answers = NULL;
  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, tokenizer, roles, contents);
  text = ebb_chat_template_render (self, roles, contents, add_generation_prompt, &spans, &n_spans, error);
  tokens = text != NULL ? ebb_encode_part (tokenizer, text, strlen (text), error) : NULL;
  if (tokens != NULL && answers != NULL)
    {
      *answers = ebb_mark_answers (tokenizer, text, spans, n_spans, tokens, error);
      if (*answers == NULL)
        return NULL;
    }
  return g_steal_pointer (&tokens);
}
