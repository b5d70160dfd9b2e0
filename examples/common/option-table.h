/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>
#include <json-glib/json-glib.h>

/* The command line of a program as one table of options, which the parser, --help, the checks of single values, the
 * JSON of reports and the state of a resumed training read. The values are fields of a struct that begins with an
 * OptionState. A number is marked as not given, by a value that is out of range, until defaults are filled in. */

G_BEGIN_DECLS

typedef enum
{
  OPTION_GROUP, /* the rows that follow are one group of the help; metavar: its title */
  OPTION_INT,
  OPTION_INT64,
  OPTION_DOUBLE, /* 0 or more */
  OPTION_FLAG,
  OPTION_NO_FLAG, /* turns off the flag with the same place */
  OPTION_SIZE,    /* text; the program parses it into the guint64 at @bytes */
  OPTION_TEXT,
  OPTION_DEVICE, /* text; the help lists the kinds of devices */
  OPTION_RAW,    /* text of any bytes */
  OPTION_PATH,
  OPTION_PATHS
} OptionKind;

typedef struct
{
  OptionKind kind;
  const char *name; /* NULL ends the table */
  char letter;
  gsize place, bytes; /* of the field that takes the value */
  const char *metavar;
  const char *fallback; /* the default, as it would be typed */
  const char *shown;    /* the default in the help, where it is another text; "": none */
  const char *help;
  const char *help_on_ranks; /* of a program on ranks; NULL: the same */
  gint64 least, most;        /* of an integer that is given */
  const char *const *names;  /* the values that a text may have */
  gboolean is_saved;         /* a resumed training keeps it unless the command line sets it */
  const char *late;          /* its value in a state that does not have it; NULL: such a state is an error */
  gboolean on_ranks;         /* of a group: programs on ranks only */
  gboolean is_extra;         /* only of programs whose changes name it */
} OptionRow;

/* How an option of a program differs from its row. */
typedef struct
{
  const char *name; /* NULL ends the list */
  gboolean is_absent;
  const char *help, *metavar, *fallback, *shown; /* NULL: as in the row */
} OptionChange;

typedef struct
{
  OptionRow *rows;   /* as the program has them */
  gboolean *absent;  /* by row: the program doesn't have it, and its value is the default */
  gboolean on_ranks; /* the program trains on many ranks */
  gboolean *given;   /* by row: whether the command line has it */
  gboolean help, version;
} OptionState;

/* Marks all options as not given. @changes may be NULL. */
void option_table_init (OptionState *self,
                        const OptionRow *rows,
                        gboolean on_ranks,
                        const OptionChange *changes);
void option_table_clear (OptionState *self);
/* Adds the options in groups, and --version and --help to the last one. */
void option_table_add_groups (OptionState *self,
                              GOptionContext *context);
/* After the command line was read: notes which options were given, and gives the others their defaults. */
void option_table_fill (OptionState *self);
gboolean option_table_was_given (const OptionState *self,
                                 gsize place);
/* As if the command line had it: a state that is resumed doesn't set it. */
void option_table_give (OptionState *self,
                        gsize place);
#define OPTION_WAS_GIVEN(self, member) option_table_was_given (&(self)->state, G_STRUCT_OFFSET (Options, member))
#define OPTION_GIVE(self, member) option_table_give (&(self)->state, G_STRUCT_OFFSET (Options, member))
/* Checks each value by itself: ranges, names, and files without a name. */
gboolean option_table_check (const OptionState *self,
                             GError **error);
/* Which of its names the value of an option is. */
guint option_table_get_choice (const OptionState *self,
                               gsize place);
#define OPTION_CHOICE(self, member) option_table_get_choice (&(self)->state, G_STRUCT_OFFSET (Options, member))
/* FALSE with an error for the user. */
gboolean options_refuse (GError **error,
                         const char *format,
                         ...) G_GNUC_PRINTF (2, 3);
gboolean options_check_name (const char *option,
                             const char *value,
                             const char *const *names,
                             GError **error);

/* Adds a member for each option as it took effect. */
void option_table_add_json (const OptionState *self,
                            JsonBuilder *builder);
/* Parses @saved as a JSON object; NULL if it is not one, or not one that these programs saved. */
JsonNode *option_table_parse_json (const char *saved);
/* Gives options that are saved, and that were not given, the values in @saved. @folder: of the state, for errors. */
gboolean option_table_take_json (OptionState *self,
                                 const char *saved,
                                 const char *folder,
                                 GError **error);

G_END_DECLS
