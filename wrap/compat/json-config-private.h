/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error.h"

#include <json-glib/json-glib.h>

/* Configurations of other systems: JSON as text or in a file, whose keys a table names. Every key that the table does
 * not name, and every value of another type than it says, is an error that names it and what would be right. */

G_BEGIN_DECLS

#define EBB_CONFIG_MAX_COUNT G_MAXINT32
#define EBB_CONFIG_MAX_DEPTH 64                /* of objects and lists in each other */
#define EBB_CONFIG_MAX_SIZE ((gsize) 16 << 20) /* of a file, in bytes */

typedef enum
{
  EBB_CONFIG_BOOLEAN,        /* value: 1 or 0 */
  EBB_CONFIG_COUNT,          /* from 1 on */
  EBB_CONFIG_COUNT_OR_NULL,  /* 0 for null */
  EBB_CONFIG_CHOICE_OR_NULL, /* 0 for null, else the number of the choice + 1 */
  EBB_CONFIG_ARRAY           /* of whatever; 1 */
} EbbConfigKind;

typedef struct
{
  const char *name;
  EbbConfigKind kind;
  const char *const *choices; /* of a choice; NULL at the end */
} EbbConfigKey;

typedef struct
{
  JsonParser *parser;
  JsonObject *root;
  char *where; /* names it in errors: "the configuration", or the file, quoted */
} EbbJsonConfig;

/* @json: the text of an object, which begins with "{", or else the path of a file. @form: what it must look like, for
 * errors. Neither strings nor objects of it live longer than it. */
gboolean ebb_json_config_load (EbbJsonConfig *self,
                               const char *json,
                               const char *form,
                               GError **error);
void ebb_json_config_clear (EbbJsonConfig *self);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (EbbJsonConfig, ebb_json_config_clear)

/* @object's members into @values, in the order of @keys; those that it has not stay as they are. */
gboolean ebb_json_config_read (JsonObject *object,
                               const char *where,
                               const EbbConfigKey *keys,
                               guint n_keys,
                               guint *values,
                               GError **error);
/* The member @name of @object, which must be an object, in *@section; NULL if there is none. */
gboolean ebb_json_config_get_section (JsonObject *object,
                                      const char *name,
                                      const char *where,
                                      JsonObject **section,
                                      GError **error);
/* Always FALSE: @object has no key @name, but @list. */
gboolean ebb_json_config_refuse_key (JsonObject *object,
                                     const char *name,
                                     const char *where,
                                     const char *list,
                                     GError **error);
/* Always FALSE: @value, as it was written, is none for @key. */
gboolean ebb_config_refuse_value (const char *where,
                                  const EbbConfigKey *key,
                                  const char *value,
                                  GError **error);
/* "a, b and c". */
char *ebb_config_list (const char *const *names,
                       guint n);
char *ebb_config_list_keys (const EbbConfigKey *keys,
                            guint n_keys);

G_END_DECLS
