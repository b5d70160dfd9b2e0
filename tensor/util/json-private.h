/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error.h"

/* JSON as a tree, in the order of the file. Numbers keep the text that the file has, so a value that nobody understands
 * is written again as it was. What tensor/util/json-scanner-private.h refuses is refused here too, and so are objects
 * with a key twice. */

G_BEGIN_DECLS

#define EBB_JSON_MAX_DEPTH 64

typedef enum
{
  EBB_JSON_NULL,
  EBB_JSON_BOOLEAN,
  EBB_JSON_NUMBER,
  EBB_JSON_STRING,
  EBB_JSON_LIST,
  EBB_JSON_OBJECT
} EbbJsonKind;

typedef struct _EbbJson EbbJson;

struct _EbbJson
{
  EbbJsonKind kind;
  char *key;      /* as a member of an object, else NULL */
  char *text;     /* the value of a string; a number, true, false or null as it is written */
  EbbJson *items; /* the members of a list or an object */
  gsize n_items;
};

/* @what names the text in errors. Free the tree by ebb_json_free (). */
EbbJson *ebb_json_parse (const char *text,
                         gsize length,
                         const char *what,
                         GError **error);
EbbJson *ebb_json_read_file (const char *path,
                             gsize max_size,
                             GError **error);
/* The same, but strings may have U+0000, which tensor/util/json-scanner-private.h says how to spell. */
EbbJson *ebb_json_parse_with_nul (const char *text,
                                  gsize length,
                                  const char *what,
                                  GError **error);
EbbJson *ebb_json_read_file_with_nul (const char *path,
                                      gsize max_size,
                                      GError **error);
EbbJson *ebb_json_copy (const EbbJson *self);
void ebb_json_free (EbbJson *self);

/* The member called @key. NULL if there is none, or if @self is NULL or no object. */
const EbbJson *ebb_json_get (const EbbJson *self,
                             const char *key);
/* The text of a string, the truth of a word, the value of a number: FALSE if @self is NULL or of another kind. */
gboolean ebb_json_as_string (const EbbJson *self,
                             const char **value);
gboolean ebb_json_as_boolean (const EbbJson *self,
                              gboolean *value);
gboolean ebb_json_as_double (const EbbJson *self,
                             double *value);
/* Also FALSE if the number isn't an integer of 64 bits: 2.0 is one, 2.5 and 1e30 are not. */
gboolean ebb_json_as_int (const EbbJson *self,
                          gint64 *value);

/* Sets the member @key of an object to the JSON value @text, in its old place or as the last member. */
void ebb_json_set (EbbJson *self,
                   const char *key,
                   const char *text);
/* Appends the value, as people read it: two spaces for each level. */
void ebb_json_print (const EbbJson *self,
                     GString *json);
/* The value in one line. */
char *ebb_json_to_line (const EbbJson *self);
/* The value as part of a message: in one line, and cut if it is long. */
char *ebb_json_describe (const EbbJson *self);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbJson, ebb_json_free)

G_END_DECLS
