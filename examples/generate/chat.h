/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "session.h"

/* --chat: an answer, or a conversation. */

G_BEGIN_DECLS

/* Answers @question. */
gboolean chat_answer (Session *session,
                      const char *question,
                      GError **error);
/* Reads messages from standard input until it ends or /quit comes. An answer that fails is reported; the conversation
 * goes on. */
gboolean chat_converse (Session *session,
                        GError **error);

G_END_DECLS
