/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error.h"

/* The forms of conversations that chat templates write, and which of them the text of a template writes. */

G_BEGIN_DECLS

/* The place of a system message in the text. */
typedef enum
{
  EBB_CHAT_SYSTEM_REFUSED,
  EBB_CHAT_SYSTEM_TURN,       /* a turn of its own, anywhere */
  EBB_CHAT_SYSTEM_HEADER,     /* the first turn, which is there without a message too */
  EBB_CHAT_SYSTEM_FIRST_USER, /* before the content of the first turn of the user */
  EBB_CHAT_SYSTEM_LAST_USER   /* before that of the last message, if it is the user's */
} EbbChatSystem;

typedef enum
{
  EBB_CHAT_TRIM_NONE,
  EBB_CHAT_TRIM_ASSISTANT,
  EBB_CHAT_TRIM_TURNS,    /* of user and assistant, with the system message that is before it */
  EBB_CHAT_TRIM_CONTENTS, /* of user and assistant, then a system message is put before it */
  EBB_CHAT_TRIM_ALL
} EbbChatTrim;

/* In the texts \1 stands for the token that begins a text and \2 for the one that ends it. */
typedef struct
{
  const char *name;
  const char *start; /* of the whole text */
  EbbChatSystem system;
  const char *system_before, *system_after;
  const char *user_before, *user_after;
  const char *assistant_before, *assistant_after;
  const char *generation; /* after the last message, where an answer is to follow */
  const char *ending;     /* in its place where none is */
  EbbChatTrim trim;
  gboolean alternates; /* user and assistant take turns, or it is an error */
  gboolean skips_empty_system;
  gboolean thinks;   /* Qwen 3: answers after the last question show their reasoning */
  gboolean has_date; /* Llama 3.1: the header has knowledge and today's date */
  /* Outputs of the template, spelled as chat-text.c spells them. A template has all of @required, and no output that
   * is in neither list. */
  const char *required[10];
  const char *optional[8];
} EbbChatForm;

typedef struct
{
  const EbbChatForm *form; /* static */
  gboolean writes_bos;     /* at the start of the text */
  gboolean asks_date;      /* the date is today's, not a fixed one */
  char *default_system;    /* in a form of ChatML; NULL: none */
} EbbChatRecognition;

/* FALSE if the template @text has none of the forms; @error then names an output of @text that doesn't fit. */
gboolean ebb_chat_form_recognise (const char *text,
                                  EbbChatRecognition *recognition,
                                  GError **error);

/* The outputs of the template @text, each once. */
GPtrArray *ebb_chat_text_split (const char *text,
                                GError **error);

G_END_DECLS
