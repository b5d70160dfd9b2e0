/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error.h"

G_BEGIN_DECLS

/* g_set_error () in the domain EBB_ERROR. */
void ebb_error_set (GError **error,
                    EbbError code,
                    const char *format,
                    ...) G_GNUC_PRINTF (3, 4);
/* The failure for a function to return, which sets its @error. A call, so that it may go unused. */
static inline gboolean
ebb_failed (void)
{
  return FALSE;
}
#define ebb_fail(...) (ebb_error_set (__VA_ARGS__), ebb_failed ())
#define ebb_fail_null(...) (ebb_error_set (__VA_ARGS__), NULL)
/* The same with an error that is there, which @error takes over. */
#define ebb_fail_with(error, failure) (g_propagate_error (error, failure), FALSE)

/* Passes @text on to the message of the thread's next ebb_error_set (), which frees @text. */
const char *ebb_in_message (char *text);
#define ebb_show_text(text) ebb_in_message (ebb_escape_text (text))
#define ebb_show_shape(tensor) ebb_in_message (ebb_tensor_shape_to_string (tensor))

/* A stranger's text, or the name of a file, as part of a message: UTF-8, on one line, cut if it is long. */
char *ebb_escape_text (const char *text);
/* The same of its first characters, with "..." for the others. */
char *ebb_escape_beginning (const char *text,
                            guint n_characters);

/* Whether a function may begin: FALSE where an error is set already, and where a required argument is NULL. That is an
 * error as well, since the call that should have made the argument failed and its caller passed it no error: without
 * this one a later `error->message` would read from NULL. @names: the arguments as they stand in the code, "self,
 * tensor". */
gboolean ebb_may_begin (GError **error,
                        const char *function,
                        const char *names,
                        const gconstpointer *arguments,
                        guint n_arguments);
#define EBB_MAY_BEGIN(error, ...)                                                          \
  ebb_may_begin ((error), G_STRFUNC, #__VA_ARGS__, (const gconstpointer[]){ __VA_ARGS__ }, \
                 sizeof ((const gconstpointer[]){ __VA_ARGS__ }) / sizeof (gconstpointer))
#define EBB_RETURN_UNLESS_BEGUN(value, ...) \
  G_STMT_START                              \
  {                                         \
    if (!EBB_MAY_BEGIN (__VA_ARGS__))       \
      return value;                         \
  }                                         \
  G_STMT_END
/* Sets that error. */
void ebb_error_set_null (GError **error,
                         const char *function,
                         const char *argument);

G_END_DECLS
