/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Answers a question, or many with their history. */
#include "chat.h"

#include "common/command.h"
#include "common/read-file.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>
#include <unistd.h>

typedef struct
{
  Session *session;
  GPtrArray *roles, *contents;
} Chat;

static void
say (Chat *self,
     const char *role,
     const char *content)
{
  g_ptr_array_add (self->roles, g_strdup (role));
  g_ptr_array_add (self->contents, g_strdup (content));
}

static void
reset (Chat *self)
{
  g_ptr_array_set_size (self->roles, 0);
  g_ptr_array_set_size (self->contents, 0);
  if (self->session->options->system != NULL)
    say (self, "system", self->session->options->system);
}

static void
chat_init (Chat *self,
           Session *session)
{
  *self = (Chat){ session, g_ptr_array_new_with_free_func (g_free), g_ptr_array_new_with_free_func (g_free) };
  reset (self);
}

static void
chat_clear (Chat *self)
{
  g_ptr_array_unref (self->roles);
  g_ptr_array_unref (self->contents);
}

/* A question that can't be answered is no part of the conversation. */
static gboolean
ask (Chat *self,
     const char *question,
     GError **error)
{
  g_autofree char *answer = NULL;

  say (self, "user", question);
  if (session_answer (self->session, self->roles, self->contents, &answer, error))
    {
      say (self, "assistant", answer);
      return TRUE;
    }
  g_ptr_array_set_size (self->roles, (int) self->roles->len - 1);
  g_ptr_array_set_size (self->contents, (int) self->contents->len - 1);
  return FALSE;
}

gboolean
chat_answer (Session *session,
             const char *question,
             GError **error)
{
  Chat self;
  gboolean answered;

  chat_init (&self, session);
  answered = ask (&self, question, error);
  chat_clear (&self);
  return answered;
}

/* Waits until there is a line on the terminal; FALSE after Ctrl-C, also one that comes just before the waiting. */
static gboolean
wait_for_line (void)
{
  sigset_t blocked, old;
  fd_set input;
  gboolean is_there;

  sigemptyset (&blocked);
  sigaddset (&blocked, SIGINT);
  pthread_sigmask (SIG_BLOCK, &blocked, &old);
  FD_ZERO (&input);
  FD_SET (STDIN_FILENO, &input);
  is_there = !session_take_interrupt () && pselect (STDIN_FILENO + 1, &input, NULL, NULL, NULL, &old) > 0;
  pthread_sigmask (SIG_SETMASK, &old, NULL);
  return !session_take_interrupt () && is_there;
}

/* FALSE at the end of the input, and with an error. *line is NULL after Ctrl-C. */
static gboolean
read_line (gboolean is_terminal,
           char **line,
           GError **error)
{
  g_autoptr (GString) text = g_string_new (NULL);
  int c;

  g_clear_pointer (line, g_free);
  if (is_terminal)
    {
      fputs ("> ", stdout);
      fflush (stdout);
      if (!wait_for_line ())
        return TRUE;
    }
  while ((c = getc (stdin)) != EOF && c != '\n' && c != '\0' && text->len < READ_MAX_SIZE)
    g_string_append_c (text, (char) c);
  if (c == '\n' || (c == EOF && text->len > 0))
    *line = g_string_free (g_steal_pointer (&text), FALSE);
  else if (c == '\0')
    g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "standard input: it is not text, it has a byte 0");
  else if (c != EOF)
    g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT,
                 "standard input: a line of more than %" G_GSIZE_FORMAT " bytes: it must have %" G_GSIZE_FORMAT
                 " at most",
                 READ_MAX_SIZE, READ_MAX_SIZE);
  return *line != NULL;
}

/* A slash and letters alone. */
static gboolean
is_command (const char *line)
{
  if (*line++ != '/')
    return FALSE;
  while (g_ascii_isalpha (*line))
    line++;
  return *line == '\0';
}

gboolean
chat_converse (Session *session,
               GError **error)
{
  const gboolean is_terminal = isatty (STDIN_FILENO) && isatty (STDOUT_FILENO);
  char *line = NULL;
  GError *input_failure = NULL;
  gboolean ok = TRUE;
  Chat self;

  chat_init (&self, session);
  session->is_conversation = TRUE;
  if (is_terminal)
    puts ("/reset begins a new conversation, /quit ends it, Ctrl-C stops an answer");
  while (ok && read_line (is_terminal, &line, &input_failure))
    {
      g_autoptr (GError) failure = NULL;

      if (line == NULL)
        printf ("\n/quit ends the conversation\n");
      else if (strcmp (line, "/quit") == 0)
        break;
      else if (strcmp (line, "/reset") == 0)
        reset (&self);
      else if (is_command (line))
        {
          g_autofree char *message = g_strdup_printf ("there is no %s: there are /reset and /quit", line);

          command_fail (0, message);
        }
      else if (*line != '\0')
        {
          if (!ask (&self, line, &failure))
            {
              ok = is_terminal;
              if (ok)
                command_fail (0, failure->message);
              else
                g_propagate_error (error, g_steal_pointer (&failure));
            }
          session_take_interrupt ();
        }
    }
  if (is_terminal && line == NULL)
    putchar ('\n');
  g_free (line);
  chat_clear (&self);
  if (input_failure != NULL)
    g_propagate_error (error, input_failure);
  return ok && input_failure == NULL;
}
