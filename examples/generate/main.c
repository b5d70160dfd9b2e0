/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "chat.h"
#include "session.h"

#include "common/command.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Continues a text, or answers, with a model from a folder: `generate --help`. */

/* The text to continue; *is_there FALSE: there is none, and standard input is a terminal. */
static char *
read_prompt (const Options *options,
             gboolean *is_there,
             GError **error)
{
  *is_there = TRUE;
  if (options->prompt != NULL)
    return g_strdup (options->prompt);
  if (options->words != NULL)
    return g_strjoinv (" ", options->words);
  if (options->file == NULL)
    {
      *is_there = !isatty (STDIN_FILENO);
      return *is_there ? session_read_text ("standard input", NULL, error) : NULL;
    }
  return session_read_text ("--file", options->file, error);
}

static gboolean
run_prompt (Session *session,
            GError **error)
{
  const Options *options = session->options;
  gboolean is_there;
  g_autofree char *prompt = NULL;

  if (options->chat && options->prompt == NULL && options->words == NULL && options->file == NULL)
    return chat_converse (session, error);
  prompt = read_prompt (options, &is_there, error);
  if (!is_there)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                 "there is no prompt: give --prompt, --file, --batch, a text, or --chat");
  if (prompt == NULL)
    return FALSE;
  return options->chat ? chat_answer (session, prompt, error) : session_continue (session, prompt, error);
}

static int
generate (const Options *options)
{
  g_autoptr (GError) error = NULL;
  Session session;
  gboolean ok = session_open (&session, options, &error);
  gboolean is_stopped = FALSE;

  if (ok)
    {
      session_watch_interrupts ();
      ok = options->batch != NULL ? session_continue_lines (&session, options->batch, &error)
                                  : run_prompt (&session, &error);
      is_stopped = session_take_interrupt ();
    }
  ok = ok && session_report (&session, &error);
  session_close (&session);
  return !ok ? command_fail (1, error->message) : is_stopped ? 130
                                                             : 0;
}

int
main (int argc,
      char **argv)
{
  Options options;
  g_autoptr (GError) error = NULL;
  int status = 0;

  command_init (argv);
  options_init (&options);
  if (!options_parse (&options, argc, argv, &error))
    status = option_table_fail (&options.state, error->message);
  else if (!option_table_is_question (&options.state))
    status = generate (&options);
  status = command_finish (status);
  options_clear (&options);
  return status;
}
