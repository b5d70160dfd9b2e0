/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The built-in forms of conversations, and how the text of a chat template is matched with one of them. */
#include "nn/data/chat-form-private.h"
#include "tensor/error-private.h"

#include <string.h>

#define IM_MESSAGE "<|im_start|>{role}\n{content}<|im_end|>\n"
#define IM_FIRST_SYSTEM "<|im_start|>system\n{messages[0].content}<|im_end|>\n"
#define IM_GENERATION "<|im_start|>assistant\n"
#define LLAMA3_TURN "<|start_header_id|>{role}<|end_header_id|>\n\n{content|trim}<|eot_id|>"
#define LLAMA3_GENERATION "<|start_header_id|>assistant<|end_header_id|>\n\n"
#define GEMMA_GENERATION "<start_of_turn>model\n"

/* A template has a form if it writes all required outputs of the form and, besides them, only optional ones. No two
 * forms match the same template, because each requires an output that the other doesn't have. */
static const EbbChatForm forms[] = {
  { .name = "ChatML",
    .system = EBB_CHAT_SYSTEM_TURN,
    .system_before = "<|im_start|>system\n",
    .system_after = "<|im_end|>\n",
    .user_before = "<|im_start|>user\n",
    .user_after = "<|im_end|>\n",
    .assistant_before = IM_GENERATION,
    .assistant_after = "<|im_end|>\n",
    .generation = IM_GENERATION,
    .required = { IM_MESSAGE, "generation:" IM_GENERATION },
    .optional = { "{bos_token}", IM_FIRST_SYSTEM } },
  { .name = "Qwen 3",
    .system = EBB_CHAT_SYSTEM_TURN,
    .system_before = "<|im_start|>system\n",
    .system_after = "<|im_end|>\n",
    .user_before = "<|im_start|>user\n",
    .user_after = "<|im_end|>\n",
    .assistant_before = IM_GENERATION,
    .assistant_after = "<|im_end|>\n",
    .generation = IM_GENERATION,
    .thinks = TRUE,
    .required = { IM_MESSAGE, IM_FIRST_SYSTEM,
                  "last:<|im_start|>{role}\n<think>\n{reasoning_content.strip('\n')}\n</think>\n\n"
                  "{content.lstrip('\n')}",
                  "<|im_start|>{role}\n{content}", "<|im_end|>\n", "generation:" IM_GENERATION,
                  "generation:<think>\n\n</think>\n\n" } },
  { .name = "Llama 2",
    .system = EBB_CHAT_SYSTEM_FIRST_USER,
    .system_before = "<<SYS>>\n",
    .system_after = "\n<</SYS>>\n\n",
    .user_before = "\1[INST] ",
    .user_after = " [/INST]",
    .assistant_before = " ",
    .assistant_after = " \2",
    .trim = EBB_CHAT_TRIM_TURNS,
    .alternates = TRUE,
    .required = { "content=<<SYS>>\n{system_message}\n<</SYS>>\n\n{content}",
                  "{bos_token}[INST] {content|trim} [/INST]", " {content|trim} {eos_token}" } },
  { .name = "Llama 3",
    .start = "\1",
    .system = EBB_CHAT_SYSTEM_TURN,
    .system_before = "<|start_header_id|>system<|end_header_id|>\n\n",
    .system_after = "<|eot_id|>",
    .user_before = "<|start_header_id|>user<|end_header_id|>\n\n",
    .user_after = "<|eot_id|>",
    .assistant_before = LLAMA3_GENERATION,
    .assistant_after = "<|eot_id|>",
    .generation = LLAMA3_GENERATION,
    .trim = EBB_CHAT_TRIM_ALL,
    .required = { "content=" LLAMA3_TURN, "content={bos_token}{content}", "{content}",
                  "generation:" LLAMA3_GENERATION } },
  { .name = "Llama 3.1",
    .start = "\1",
    .system = EBB_CHAT_SYSTEM_HEADER,
    .system_before = "<|start_header_id|>system<|end_header_id|>\n\n",
    .system_after = "<|eot_id|>",
    .user_before = "<|start_header_id|>user<|end_header_id|>\n\n",
    .user_after = "<|eot_id|>",
    .assistant_before = LLAMA3_GENERATION,
    .assistant_after = "<|eot_id|>",
    .generation = LLAMA3_GENERATION,
    .trim = EBB_CHAT_TRIM_ALL,
    .has_date = TRUE,
    .required = { "{bos_token}", "date_string=26 Jul 2024", "<|start_header_id|>system<|end_header_id|>\n\n",
                  "Cutting Knowledge Date: December 2023\nToday Date: {date_string}\n\n", "{system_message}<|eot_id|>",
                  LLAMA3_TURN, "generation:" LLAMA3_GENERATION } },
  { .name = "Mistral",
    .start = "\1",
    .system = EBB_CHAT_SYSTEM_REFUSED,
    .user_before = "[INST] ",
    .user_after = " [/INST]",
    .assistant_before = "",
    .assistant_after = "\2",
    .alternates = TRUE,
    .required = { "{bos_token}", "[INST] {content} [/INST]", "{content}{eos_token}" } },
  { .name = "Mistral 0.1",
    .start = "\1",
    .system = EBB_CHAT_SYSTEM_REFUSED,
    .user_before = "[INST] ",
    .user_after = " [/INST]",
    .assistant_before = "",
    .assistant_after = "\2 ",
    .alternates = TRUE,
    .required = { "{bos_token}", "[INST] {content} [/INST]", "{content}{eos_token} " } },
  { .name = "Mistral v1",
    .start = "\1",
    .system = EBB_CHAT_SYSTEM_FIRST_USER,
    .system_before = "",
    .system_after = "\n\n",
    .user_before = " [INST] ",
    .user_after = " [/INST]",
    .assistant_before = " ",
    .assistant_after = "\2",
    .alternates = TRUE,
    .required = { "{bos_token}", "first: [INST] {system_message}\n\n{content} [/INST]", " [INST] {content} [/INST]",
                  " {content}{eos_token}" } },
  { .name = "Mistral v3",
    .start = "\1",
    .system = EBB_CHAT_SYSTEM_LAST_USER,
    .system_before = "",
    .system_after = "\n\n",
    .user_before = "[INST] ",
    .user_after = "[/INST]",
    .assistant_before = " ",
    .assistant_after = "\2",
    .trim = EBB_CHAT_TRIM_ASSISTANT,
    .alternates = TRUE,
    .required = { "{bos_token}", "last:[INST] {system_message}\n\n{content}[/INST]", "[INST] {content}[/INST]",
                  " {content|trim}{eos_token}" } },
  { .name = "Mistral v3 Tekken",
    .start = "\1",
    .system = EBB_CHAT_SYSTEM_LAST_USER,
    .system_before = "",
    .system_after = "\n\n",
    .user_before = "[INST]",
    .user_after = "[/INST]",
    .assistant_before = "",
    .assistant_after = "\2",
    .alternates = TRUE,
    .required = { "{bos_token}", "last:[INST]{system_message}\n\n{content}[/INST]", "[INST]{content}[/INST]",
                  "{content}{eos_token}" } },
  { .name = "Gemma",
    .system = EBB_CHAT_SYSTEM_REFUSED,
    .user_before = "<start_of_turn>user\n",
    .user_after = "<end_of_turn>\n",
    .assistant_before = GEMMA_GENERATION,
    .assistant_after = "<end_of_turn>\n",
    .generation = GEMMA_GENERATION,
    .trim = EBB_CHAT_TRIM_CONTENTS,
    .alternates = TRUE,
    .required = { "role=model", "<start_of_turn>{role}\n{content|trim}<end_of_turn>\n",
                  "generation:" GEMMA_GENERATION },
    .optional = { "{bos_token}" } },
  { .name = "Gemma 3",
    .start = "\1",
    .system = EBB_CHAT_SYSTEM_FIRST_USER,
    .system_before = "",
    .system_after = "\n\n",
    .user_before = "<start_of_turn>user\n",
    .user_after = "<end_of_turn>\n",
    .assistant_before = GEMMA_GENERATION,
    .assistant_after = "<end_of_turn>\n",
    .generation = GEMMA_GENERATION,
    .trim = EBB_CHAT_TRIM_CONTENTS,
    .alternates = TRUE,
    .required = { "{bos_token}", "first_user_prefix={messages[0].content}\n\n", "role=model",
                  "<start_of_turn>{role}\n{(first_user_prefix if loop.first else'')}", "{content|trim}",
                  "<end_of_turn>\n", "generation:" GEMMA_GENERATION },
    .optional = { "first_user_prefix={messages[0].content[0].text}\n\n", "<start_of_image>", "{item.text|trim}" } },
  { .name = "Phi-3",
    .system = EBB_CHAT_SYSTEM_TURN,
    .system_before = "<|system|>\n",
    .system_after = "<|end|>\n",
    .user_before = "<|user|>\n",
    .user_after = "<|end|>\n",
    .assistant_before = "<|assistant|>\n",
    .assistant_after = "<|end|>\n",
    .generation = "<|assistant|>\n",
    .ending = "\2",
    .skips_empty_system = TRUE,
    .required = { "<|system|>\n{content}<|end|>\n", "<|user|>\n{content}<|end|>\n", "<|assistant|>\n{content}<|end|>\n",
                  "generation:<|assistant|>\n", "no generation:{eos_token}" },
    .optional = { "{bos_token}" } },
  { .name = "Phi-3 small",
    .system = EBB_CHAT_SYSTEM_TURN,
    .system_before = "<|system|>\n",
    .system_after = "<|end|>\n",
    .user_before = "<|user|>\n",
    .user_after = "<|end|>\n",
    .assistant_before = "<|assistant|>\n",
    .assistant_after = "<|end|>\n",
    .generation = "<|assistant|>\n",
    .ending = "\2",
    .required = { "<|{role}|>\n{content}<|end|>\n", "generation:<|assistant|>\n", "no generation:{eos_token}" },
    .optional = { "{bos_token}" } },
  { .name = "Phi-3 of April 2024",
    .system = EBB_CHAT_SYSTEM_REFUSED,
    .user_before = "<|user|>\n",
    .user_after = "<|end|>\n<|assistant|>\n",
    .assistant_before = "",
    .assistant_after = "<|end|>\n",
    .required = { "<|user|>\n{content}<|end|>\n<|assistant|>\n", "{content}<|end|>\n" },
    .optional = { "{bos_token}" } },
};

#define SYSTEM_BEFORE "<|im_start|>system\n"
#define SYSTEM_AFTER "<|im_end|>\n"

/* The system message that a template of ChatML writes where the conversation has none. */
static char *
get_default_system (const char *output)
{
  const char *begin = g_str_has_prefix (output, "first:") ? output + strlen ("first:") : output;
  gsize length = strlen (begin);

  if (!g_str_has_prefix (begin, SYSTEM_BEFORE) || !g_str_has_suffix (begin, SYSTEM_AFTER)
      || length <= strlen (SYSTEM_BEFORE) + strlen (SYSTEM_AFTER) || strchr (begin, '{') != NULL)
    return NULL;
  begin += strlen (SYSTEM_BEFORE);
  length -= strlen (SYSTEM_BEFORE) + strlen (SYSTEM_AFTER);
  if (g_strstr_len (begin, (gssize) length, "<|") != NULL)
    return NULL;
  return g_strndup (begin, length);
}

static gboolean
is_among (const char *const *list, gsize n, const char *output)
{
  for (gsize i = 0; i < n && list[i] != NULL; i++)
    if (strcmp (list[i], output) == 0)
      return TRUE;
  return FALSE;
}

/* The output without the prefix "tools:". */
static const char *
get_bare (const char *output)
{
  return g_str_has_prefix (output, "tools:") ? output + strlen ("tools:") : output;
}

static gboolean
has_output (GPtrArray *outputs, const char *wanted)
{
  for (guint i = 0; i < outputs->len; i++)
    {
      const char *bare = get_bare (outputs->pdata[i]);

      if (strcmp (bare, wanted) == 0 || (g_str_has_prefix (bare, "first:") && strcmp (bare + 6, wanted) == 0))
        return TRUE;
    }
  return FALSE;
}

/* The first output outside of branches for tools that the form doesn't have; NULL if it has them all. */
static const char *
find_foreign (const EbbChatForm *form, GPtrArray *outputs, char **default_system)
{
  const gboolean is_chatml = form == &forms[0];

  for (guint i = 0; i < outputs->len; i++)
    {
      const char *output = outputs->pdata[i];
      const char *later = g_str_has_prefix (output, "first:") ? output + 6 : output;

      if (g_str_has_prefix (output, "tools:") || is_among (form->required, G_N_ELEMENTS (form->required), output)
          || is_among (form->optional, G_N_ELEMENTS (form->optional), output)
          || is_among (form->required, G_N_ELEMENTS (form->required), later))
        continue;
      if (is_chatml && *default_system == NULL)
        {
          *default_system = get_default_system (output);
          if (*default_system != NULL)
            continue;
        }
      return output;
    }
  return NULL;
}

static gboolean
has_required (const EbbChatForm *form, GPtrArray *outputs)
{
  for (guint i = 0; i < G_N_ELEMENTS (form->required) && form->required[i] != NULL; i++)
    if (!has_output (outputs, form->required[i]))
      return FALSE;
  return TRUE;
}

static void
set_unknown (GPtrArray *outputs, const char *foreign, const char *form_name, GError **error)
{
  g_autoptr (GString) names = g_string_new (NULL);
  g_autofree char *escaped = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (forms); i++)
    g_string_append_printf (names, "%s%s", i > 0 ? ", " : "", forms[i].name);
  if (foreign == NULL && outputs->len > 0)
    foreign = outputs->pdata[0];
  if (foreign == NULL)
    {
      ebb_error_set (error, EBB_ERROR_NOT_SUPPORTED, "the chat template writes nothing; built in are %s", names->str);
      return;
    }
  escaped = ebb_escape_beginning (get_bare (foreign), 60);
  if (form_name != NULL)
    ebb_error_set (error, EBB_ERROR_NOT_SUPPORTED, "the chat template is like %s but writes \"%s\"; built in are %s",
                   form_name, escaped, names->str);
  else
    ebb_error_set (error, EBB_ERROR_NOT_SUPPORTED,
                   "the chat template is none of those that are built in: it writes \"%s\"; built in are %s", escaped,
                   names->str);
}

gboolean
ebb_chat_form_recognise (const char *text, EbbChatRecognition *recognition, GError **error)
{
  g_autoptr (GPtrArray) outputs = ebb_chat_text_split (text, error);
  const char *like = NULL, *foreign = NULL;

  *recognition = (EbbChatRecognition){ NULL };
  if (outputs == NULL)
    return FALSE;
  for (guint i = 0; i < G_N_ELEMENTS (forms); i++)
    {
      g_autofree char *default_system = NULL;
      const char *other;

      if (!has_required (&forms[i], outputs))
        continue;
      other = find_foreign (&forms[i], outputs, &default_system);
      if (other == NULL)
        {
          recognition->form = &forms[i];
          recognition->writes_bos = forms[i].start == NULL && has_output (outputs, "{bos_token}");
          recognition->asks_date = strstr (text, "strftime_now") != NULL;
          recognition->default_system = g_steal_pointer (&default_system);
          return TRUE;
        }
      like = forms[i].name;
      foreign = other;
    }
  set_unknown (outputs, foreign, like, error);
  return FALSE;
}
