/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/data/chat-template.h"
#include "nn/data/document-store-private.h"

/* Reads documents out of JSON lines and whole files, line by line: the text is never in memory as a whole. A line is
 * an object with `text`, with `prompt` and `completion`, or with `messages`; other keys are ignored. */

G_BEGIN_DECLS

/* The name of files with JSON lines ends in this, in small or capital letters. */
#define EBB_JSON_LINES_SUFFIX ".jsonl"

typedef struct
{
  EbbTokenizer *tokenizer;
  gint64 begin_token, end_token; /* around each text, and each prompt with its completion; -1: none */
  EbbChatTemplate *template;     /* of messages; NULL: they are an error */
  const char *template_failure;  /* why there is none, or NULL */
  EbbDocumentStore *store;
} EbbDocumentReader;

/* A file of JSON lines by its name, or else of one document. Errors begin with the file and the line. */
gboolean ebb_read_documents (const EbbDocumentReader *self,
                             const char *path,
                             GError **error);
/* JSON lines that are called @name in errors. */
gboolean ebb_read_document_lines (const EbbDocumentReader *self,
                                  GBytes *lines,
                                  const char *name,
                                  GError **error);

G_END_DECLS
