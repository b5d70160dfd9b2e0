/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error.h"
#include "tensor/error-private.h"

/* Reads the JSON of files that strangers wrote, strictly and token by token. The caller says what it expects and sees
 * every key, repeated ones too, which a parser that builds a tree would drop. */

G_BEGIN_DECLS

/* U+0000 in a string that ends with a byte 0: two bytes that UTF-8 never has, from which g_utf8_get_char () makes 0. */
#define EBB_JSON_NUL "\xc0\x80"

typedef struct
{
  const char *text;
  gsize length;
  gsize position;
  const char *what;   /* names the text in errors: "header of x.safetensors" */
  gboolean takes_nul; /* strings may have U+0000, spelt EBB_JSON_NUL; else such a string is an error */
} EbbJsonScanner;

/* FALSE if the text is not UTF-8. */
gboolean ebb_json_scanner_init (EbbJsonScanner *self,
                                const char *text,
                                gsize length,
                                const char *what,
                                GError **error);
/* Always FALSE, with an error that says where. */
#define ebb_json_scanner_fail(self, error, format, ...)                                                     \
  ebb_fail (error, EBB_ERROR_FORMAT, "%s: byte %" G_GSIZE_FORMAT ": " format, ebb_show_text ((self)->what), \
            (self)->position, ##__VA_ARGS__)
/* Skips white space; then takes @c if it is there. */
gboolean ebb_json_scanner_try (EbbJsonScanner *self,
                               char c);
gboolean ebb_json_scanner_expect (EbbJsonScanner *self,
                                  char c,
                                  GError **error);
/* The character after white space; 0 at the end. */
char ebb_json_scanner_peek (EbbJsonScanner *self);
/* Skips white space; then takes null, true or false if it is there. */
gboolean ebb_json_scanner_try_word (EbbJsonScanner *self,
                                    const char *word);
/* Takes what separates the members of a list or object that ends with @end: sets @more. Call it before each member,
 * with
 * @first TRUE before the first one. */
gboolean ebb_json_scanner_next (EbbJsonScanner *self,
                                gboolean first,
                                char end,
                                gboolean *more,
                                GError **error);
char *ebb_json_scanner_read_string (EbbJsonScanner *self,
                                    GError **error);
/* A string and the colon after it. */
char *ebb_json_scanner_read_key (EbbJsonScanner *self,
                                 GError **error);
/* An integer in [0, 2^63). */
gboolean ebb_json_scanner_read_uint (EbbJsonScanner *self,
                                     gint64 *value,
                                     GError **error);
/* Takes a value, in which objects and lists are nested at most @max_depth deep and no object has a key twice. */
gboolean ebb_json_scanner_skip_value (EbbJsonScanner *self,
                                      guint max_depth,
                                      GError **error);
/* Nothing but white space may be left. */
gboolean ebb_json_scanner_expect_end (EbbJsonScanner *self,
                                      GError **error);

/* Appends @text as a JSON string, quotes included. */
void ebb_json_append_string (GString *json,
                             const char *text);
/* The same, made UTF-8, and cut if it is long: a stranger's text as part of a message of one line. */
char *ebb_json_quote (const char *text);

G_END_DECLS
