/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/fuzz.h"

#include <string.h>

/* Damaged chat templates: they are refused in one line, or write a conversation in UTF-8 whose spans lie in it. */

static const char *const valid[] = {
  "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
  "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
  "{{- bos_token }}\n{#- a comment #}\n{%- for message in messages %}\n    {%- if message.role == 'user' %}\n"
  "        {{- '[INST] ' + message[\"content\"] + ' [/INST]' }}\n    {%- else %}\n        {{- message.content + "
  "eos_token }}\n    {%- endif %}\n{%- endfor %}\n",
  "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe "
  "na\xc3\xafve<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
  "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
};

static gboolean
try_case (GString *input, GError **error)
{
  const char *roles[] = { "user", "assistant", NULL }, *contents[] = { " a ", "<think>\n</think>b", NULL };
  g_autoptr (EbbChatTemplate) template = NULL;
  g_autofree char *text = NULL;
  g_autofree gsize *spans = NULL;
  gsize n_spans;

  g_string_assign (input, valid[fuzz_draw (G_N_ELEMENTS (valid))]);
  if (fuzz_draw (8) != 0)
    fuzz_damage_bytes (input);
  template = ebb_chat_template_new_from_text (input->str, "<s>", "</s>", error);
  if (template == NULL)
    return FALSE;
  text = ebb_chat_template_render (template, roles, contents, fuzz_draw (2) != 0, &spans, &n_spans, error);
  g_assert_nonnull (text);
  g_assert_true (g_utf8_validate (text, -1, NULL));
  g_assert_cmpuint (n_spans, ==, 2);
  g_assert_cmpuint (spans[0], <=, spans[1]);
  g_assert_cmpuint (spans[1], <=, strlen (text));
  return TRUE;
}

int
main (int argc, char **argv)
{
  return fuzz_run (argc, argv, "chat-template", 4000, try_case);
}
