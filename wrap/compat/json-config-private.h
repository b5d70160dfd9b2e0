/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/args.h"
#include "tensor/error-private.h"
#include "tensor/util/json-private.h"

/* Reads configurations of other systems: JSON as text or in a file, or arguments of a function. A table names the keys
 * and says which field of a struct takes each value. A key that the table does not name, and a value of another type
 * than the table says, is an error that names the key, the value and the values that it may have. */

G_BEGIN_DECLS

#define EBB_CONFIG_MAX_COUNT G_MAXINT32
#define EBB_CONFIG_MAX_SIZE ((gsize) 16 << 20) /* of a file, in bytes */

typedef enum
{
  EBB_CONFIG_BOOLEAN,        /* 1 or 0 */
  EBB_CONFIG_COUNT,          /* from 1 on */
  EBB_CONFIG_COUNT_OR_NULL,  /* 0 for null */
  EBB_CONFIG_CHOICE_OR_NULL, /* 0 for null, else the number of the choice + 1 */
  EBB_CONFIG_ARRAY           /* 1; its elements are not read */
} EbbConfigKind;

typedef struct
{
  const char *name;
  EbbConfigKind kind;
  gsize offset;               /* of the guint that takes the value */
  const char *const *choices; /* of a choice; NULL at the end */
} EbbConfigKey;

/* The value of a key in @config, the struct that the key's table is about. */
#define ebb_config_get_value(config, key) (*(guint *) ((char *) (config) + (key)->offset))

typedef struct
{
  EbbJson *root;
  char *where; /* its name in errors: "the configuration", or the file, quoted */
} EbbJsonConfig;

/* @json: the text of an object, which begins with "{", or else the path of a file. @form: an example of such an object,
 * for errors. Its strings and objects live as long as @self. */
gboolean ebb_json_config_load (EbbJsonConfig *self,
                               const char *json,
                               const char *form,
                               GError **error);
void ebb_json_config_clear (EbbJsonConfig *self);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (EbbJsonConfig, ebb_json_config_clear)

/* Puts @object's members into @config; fields whose keys @object does not have stay as they are. */
gboolean ebb_json_config_read (const EbbJson *object,
                               const char *where,
                               const EbbConfigKey *keys,
                               guint n_keys,
                               gpointer config,
                               GError **error);
/* The same with a dictionary of arguments; those that are null are ignored. */
gboolean ebb_json_config_read_args (EbbArgs *args,
                                    const EbbConfigKey *keys,
                                    guint n_keys,
                                    gpointer config,
                                    GError **error);
/* The member @name of @object, which must be an object, in *@section; NULL if there is none. */
gboolean ebb_json_config_get_section (const EbbJson *object,
                                      const char *name,
                                      const char *where,
                                      const EbbJson **section,
                                      GError **error);
/* Always FALSE: @object has a key @name, which is none of @list. */
gboolean ebb_json_config_refuse_key (const EbbJson *object,
                                     const char *name,
                                     const char *where,
                                     const char *list,
                                     GError **error);
/* "a, b and c". */
char *ebb_config_list (const char *const *names,
                       guint n);

G_END_DECLS
