/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>
#include <json-glib/json-glib.h>

/* The command line of a program as one table of options, which the parser, --help, man pages, completions of shells,
 * the checks of single values, the JSON of reports and of --config, and the state of a resumed training read. The
 * values are fields of a struct that begins with an OptionState. A number is marked as not given, by a value that is
 * out of range, until defaults are filled in. */

G_BEGIN_DECLS

typedef enum
{
  OPTION_GROUP, /* the rows that follow are one group of the help; metavar: its title */
  OPTION_INT,
  OPTION_INT64,
  OPTION_DOUBLE, /* 0 or more */
  OPTION_FLAG,
  OPTION_NO_FLAG, /* turns off the flag with the same place */
  OPTION_SIZE,    /* text: a size, or one of @names; the program parses it into the guint64 at @bytes */
  OPTION_TEXT,
  OPTION_DEVICE, /* text; the help lists the kinds of devices */
  OPTION_RAW,    /* text of any bytes */
  OPTION_PATH,
  OPTION_PATHS,
  OPTION_RAWS /* several texts of any bytes */
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
  const char *help_on_ranks;              /* of a program on ranks; NULL: the same */
  const char *(*get_help) (void);         /* the help, where it lists what is another's; else NULL */
  gint64 least, most;                     /* of an integer that is given */
  const char *const *names;               /* the values that a text may have */
  const char *const *(*get_names) (void); /* the same, where they are another's; else NULL */
  gboolean takes_gguf;                    /* of a folder: a GGUF file will do as well */
  gboolean is_saved;                      /* a resumed training keeps it unless the command line sets it */
  const char *late; /* its value in a state that does not have it; NULL: such a state is an error */
  gboolean on_ranks;                      /* of a group: programs on ranks only */
  gboolean is_extra;                      /* only of programs whose changes name it */
  gboolean is_basic;                      /* --help shows it; others only --help-all */
  gboolean is_common;                     /* all programs have it: no part of reports, nor of the files of --config */
  gboolean is_read;    /* it may name files or folders that a run reads: reports have their full paths */
  gboolean is_made;    /* it names a file that a run writes if it is missing: then it is not taken from reports */
  gboolean is_written; /* it names a file that a run writes, or goes with one: not taken from reports */
  gboolean is_trained; /* it names weights that are trained further, or those that are written: they may be one file */
} OptionRow;

/* How an option of a program differs from its row. */
typedef struct
{
  const char *name; /* NULL ends the list */
  gboolean is_absent;
  const char *help, *metavar, *fallback, *shown; /* NULL: as in the row */
  const char *const *(*get_names) (void);
} OptionChange;

typedef struct
{
  int status;
  const char *text;
} OptionStatus;

/* What a program is: its help, its man page and the completions of shells show it. In texts PROGRAM stands for the name
 * of the program. */
typedef struct
{
  const char *name;             /* as it is installed */
  const char *arguments;        /* what may stand beside options; NULL: nothing */
  const char *purpose;          /* a phrase: "train a GPT on a text" */
  const char *const *examples;  /* command lines */
  const char *notes;            /* lines; NULL: none */
  const OptionStatus *statuses; /* ends with a text that is NULL */
  const OptionRow *rows;
  const OptionChange *changes; /* NULL: none */
  gboolean on_ranks;           /* whether it has the options of ranks */
} OptionPage;

/* Each program defines its own, in a file page.c that the build also links with what writes man pages. */
extern const OptionPage program_page;

typedef struct
{
  const OptionPage *page;
  OptionRow *rows;   /* as the program has them */
  gboolean *absent;  /* by row: the program doesn't have it, and its value is the default */
  gboolean *given;   /* by row: whether the command line, or what counts as that, has it */
  gboolean *typed;   /* by row: whether the command line or the file of --config has it */
  gboolean *by_file; /* by row: whether the value is from that file */
  GString *left_out; /* options that a report has and that are not taken from it; NULL: none */
  char *config;
  gboolean help, help_all, version;
} OptionState;

/* Marks all options as not given. */
void option_table_init (OptionState *self,
                        const OptionPage *page);
void option_table_clear (OptionState *self);
/* Reads the command line. @rest takes the arguments that are no options; NULL: they are an error. After it
 * option_table_fill () is to be called, unless option_table_is_question (). */
gboolean option_table_parse (OptionState *self,
                             int argc,
                             char **argv,
                             char ***rest,
                             GError **error);
/* Whether the command line asks for --help, --help-all or --version, which option_table_print () answers. */
gboolean option_table_is_question (const OptionState *self);
void option_table_print (OptionState *self);
/* Reads the file of --config, notes which options were given, and gives the others their defaults. */
gboolean option_table_fill (OptionState *self,
                            GError **error);
/* Prints an error of the command line, points to the help that has the options it names, and returns 2. */
int option_table_fail (const OptionState *self,
                       const char *message);
/* Returns @ok. If it is FALSE because of a value from the file of --config, the error begins with that file's name.
 * Otherwise prints which options were not taken from a report. */
gboolean option_table_finish (const OptionState *self,
                              gboolean ok,
                              GError **error);
/* The help of an option, with its default. Owned by the program. */
const char *option_table_describe (const OptionState *self,
                                   const OptionRow *row);
gboolean option_table_was_given (const OptionState *self,
                                 gsize place);
/* As if the command line had it: a state that is resumed doesn't set it. */
void option_table_give (OptionState *self,
                        gsize place);
#define OPTION_WAS_GIVEN(self, member) option_table_was_given (&(self)->state, G_STRUCT_OFFSET (Options, member))
#define OPTION_GIVE(self, member) option_table_give (&(self)->state, G_STRUCT_OFFSET (Options, member))
#define OPTION_FIELD(type, self, row) (*(type *) G_STRUCT_MEMBER_P ((self), (row)->place))
/* The name of the option that @typed, a name that no option has, was likely meant to be; NULL: none is like it. */
const char *option_table_find_similar (const OptionState *self,
                                       const char *typed);
gboolean option_row_is_text (const OptionRow *row);
gboolean option_row_is_list (const OptionRow *row);
/* Whether the row is of an option that has a value of its own. */
gboolean option_row_has_value (const OptionRow *row);
/* Sets a value that is no list, as if @text had been typed; NULL marks a number as not given. */
void option_table_set (OptionState *self,
                       const OptionRow *row,
                       const char *text);
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

/* Adds a report's member that names the program. */
void option_table_add_program (const OptionState *self,
                               JsonBuilder *builder);
/* Adds a member for each option as it took effect. @full_paths: files that it reads as full paths. */
void option_table_add_json (const OptionState *self,
                            gboolean full_paths,
                            JsonBuilder *builder);
/* Adds the names of those that were typed: of such an object --config takes no others. */
void option_table_add_given (const OptionState *self,
                             JsonBuilder *builder);
/* Parses @saved as a JSON object; NULL if it is not one, or not one that these programs saved. */
JsonNode *option_table_parse_json (const char *saved);
/* Reads the JSON object in a regular file. Returns NULL if the file has no object. */
JsonNode *option_table_read_json (const char *path);
/* Returns the text that the object @root has as @name; @fallback if it has none. Owned by @root. */
const char *option_table_get_text (JsonNode *root,
                                   const char *name,
                                   const char *fallback);
/* Gives options that are saved, and that were not given, the values in @saved. @folder: of the state, for errors. */
gboolean option_table_take_json (OptionState *self,
                                 const char *saved,
                                 const char *folder,
                                 GError **error);
/* Gives options that were not typed the values in the file of --config. */
gboolean option_table_take_config (OptionState *self,
                                   GError **error);

G_END_DECLS
