/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/util/json-private.h"

/* Reads the parts of a tokenizer.json: members that may be missing, and errors that name what doesn't fit. */

G_BEGIN_DECLS

/* Each of these leaves @value as it is if the member is missing or null, and fails if it is of another kind. */
gboolean ebb_json_part_get_string (const EbbJson *json,
                                   const char *key,
                                   const char **value,
                                   GError **error);
/* The same; a token may have U+0000, spelt EBB_JSON_NUL. */
gboolean ebb_json_part_get_token (const EbbJson *json,
                                  const char *key,
                                  const char **value,
                                  GError **error);
gboolean ebb_json_part_get_boolean (const EbbJson *json,
                                    const char *key,
                                    gboolean *value,
                                    GError **error);
/* An integer of 0 or more. */
gboolean ebb_json_part_get_count (const EbbJson *json,
                                  const char *key,
                                  gint64 *value,
                                  GError **error);
/* A string of one character. */
gboolean ebb_json_part_get_character (const EbbJson *json,
                                      const char *key,
                                      gunichar *value,
                                      GError **error);
/* One of @names, which ends with NULL: its place. */
gboolean ebb_json_part_get_choice (const EbbJson *json,
                                   const char *key,
                                   const char *const *names,
                                   int *value,
                                   GError **error);

/* Always FALSE, with an error that quotes @json. */
gboolean ebb_json_part_fail (const EbbJson *json,
                             GError **error,
                             const char *problem);
/* Always FALSE: parts of the kind @type are not supported, those of @known are. */
gboolean ebb_json_part_refuse (const char *type,
                               const char *known,
                               GError **error);
/* The place of @type in @names, which ends with NULL. If it isn't there, the part is refused. */
gboolean ebb_json_part_find_kind (const char *type,
                                  const char *const *names,
                                  int *kind,
                                  GError **error);

/* Calls @function for each part: none if @json is NULL or null, each member of the list @list_key if its type is
 * "Sequence", however deep, else @json itself. */
typedef gboolean (*EbbJsonPartFunc) (const EbbJson *part,
                                     const char *type,
                                     gpointer data,
                                     GError **error);
gboolean ebb_json_part_foreach (const EbbJson *json,
                                const char *list_key,
                                EbbJsonPartFunc function,
                                gpointer data,
                                GError **error);

G_END_DECLS
