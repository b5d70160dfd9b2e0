/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "options.h"

/* A model that continues texts, with what it has used and made so far. */

G_BEGIN_DECLS

typedef struct
{
  const Options *options;
  EbbDevice *device;
  EbbModule *model;
  EbbTokenizer *tokenizer;
  EbbGenerationOptions *generation;
  EbbChatTemplate *template; /* NULL without --chat */
  gboolean met_context;      /* a text that was just generated ended because the model has no more positions */
  gboolean is_conversation;  /* of many questions */
  GPtrArray *prompts;        /* texts, for the report */
  GPtrArray *results;        /* EbbGeneration: one for each prompt, or one for all of --batch */
} Session;

gboolean session_open (Session *self,
                       const Options *options,
                       GError **error);
void session_close (Session *self);

/* Reads the text of a file or a pipe; of standard input if @path is NULL. Errors begin with @option. */
char *session_read_text (const char *option,
                         const char *path,
                         GError **error);
/* Continues a text, which is printed first. */
gboolean session_continue (Session *self,
                           const char *text,
                           GError **error);
/* Continues the lines of a file together. */
gboolean session_continue_lines (Session *self,
                                 const char *path,
                                 GError **error);
/* Answers the conversation @roles and @contents. *answer: its text, even if Ctrl-C has stopped it. */
gboolean session_answer (Session *self,
                         GPtrArray *roles,
                         GPtrArray *contents,
                         char **answer,
                         GError **error);
/* Prints speed and memory on a terminal, and writes --report. */
gboolean session_report (Session *self,
                         GError **error);

/* Ctrl-C stops what is generated; a second one, with nothing in between, ends the program. */
void session_watch_interrupts (void);
/* Whether Ctrl-C came since the last call. */
gboolean session_take_interrupt (void);

G_END_DECLS
