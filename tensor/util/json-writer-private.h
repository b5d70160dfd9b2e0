/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Writes JSON value by value:
 *
 *   g_auto (EbbJsonWriter) writer = { NULL };
 *
 *   ebb_json_writer_begin (&writer, NULL, '{');
 *   ebb_json_writer_add_int (&writer, "layers", 12);
 *   ebb_json_writer_end (&writer);
 *   return ebb_json_writer_finish (&writer);
 *
 * A member of an object has a name; an element of a list, and the value that is the text, have NULL. */

G_BEGIN_DECLS

typedef struct
{
  GString *text;
  GString *ends;    /* the brackets that close what is open */
  gboolean is_full; /* the object or list that is open has a value */
} EbbJsonWriter;

/* Begins an object, '{', or a list, '['. */
void ebb_json_writer_begin (EbbJsonWriter *self,
                            const char *name,
                            char bracket);
void ebb_json_writer_end (EbbJsonWriter *self);
/* Writes null if @value is NULL. */
void ebb_json_writer_add_string (EbbJsonWriter *self,
                                 const char *name,
                                 const char *value);
void ebb_json_writer_add_int (EbbJsonWriter *self,
                              const char *name,
                              gint64 value);
/* Writes the fewest digits from which the same value is read; null if it is no number. */
void ebb_json_writer_add_double (EbbJsonWriter *self,
                                 const char *name,
                                 double value);
void ebb_json_writer_add_boolean (EbbJsonWriter *self,
                                  const char *name,
                                  gboolean value);
/* Writes a value that is JSON already. */
void ebb_json_writer_add_json (EbbJsonWriter *self,
                               const char *name,
                               const char *json);
/* The text, in one line; @self is empty then. */
char *ebb_json_writer_finish (EbbJsonWriter *self);
void ebb_json_writer_clear (EbbJsonWriter *self);

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (EbbJsonWriter, ebb_json_writer_clear)

G_END_DECLS
