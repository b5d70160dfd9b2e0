/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads, describes, checks and saves the options of a table. */
#include "common/option-table.h"

#include "common/command.h"

#include <ebb/ebb.h>

#include <math.h>
#include <string.h>

/* Marks a number that was not given; none of them is in range. */
#define NO_INT G_MININT
#define NO_INT64 G_MININT64
#define NO_DOUBLE (-G_MAXDOUBLE)

#define FIELD(type, self, row) (*(type *) G_STRUCT_MEMBER_P ((self), (row)->place))

/* -- values -------------------------------------------------------------------------------------------------------- */

static gboolean
is_text (const OptionRow *row)
{
  return row->kind == OPTION_SIZE || row->kind == OPTION_TEXT || row->kind == OPTION_DEVICE || row->kind == OPTION_RAW
         || row->kind == OPTION_PATH;
}

static gboolean
is_given (const OptionState *self,
          const OptionRow *row)
{
  switch (row->kind)
    {
    case OPTION_GROUP:
    case OPTION_NO_FLAG: return FALSE;
    case OPTION_INT:
    case OPTION_FLAG: return FIELD (int, self, row) != NO_INT;
    case OPTION_INT64: return FIELD (gint64, self, row) != NO_INT64;
    case OPTION_DOUBLE: return FIELD (double, self, row) != NO_DOUBLE;
    default: return FIELD (gpointer, self, row) != NULL;
    }
}

/* The value that was typed as @text; NULL marks a number as not given. */
static void
set (OptionState *self,
     const OptionRow *row,
     const char *text)
{
  if (row->kind == OPTION_INT || row->kind == OPTION_FLAG)
    FIELD (int, self, row) = text != NULL ? (int) g_ascii_strtoll (text, NULL, 10) : NO_INT;
  else if (row->kind == OPTION_INT64)
    FIELD (gint64, self, row) = text != NULL ? g_ascii_strtoll (text, NULL, 10) : NO_INT64;
  else if (row->kind == OPTION_DOUBLE)
    FIELD (double, self, row) = text != NULL ? g_ascii_strtod (text, NULL) : NO_DOUBLE;
  else if (is_text (row))
    {
      g_free (FIELD (char *, self, row));
      FIELD (char *, self, row) = g_strdup (text);
    }
}

/* NULL: the row is as it stands. */
static const OptionChange *
find_change (const OptionChange *changes,
             const char *name)
{
  for (; changes != NULL && changes->name != NULL; changes++)
    if (strcmp (changes->name, name) == 0)
      return changes;
  return NULL;
}

static void
apply (const OptionChange *change,
       OptionRow *row)
{
  if (change->help != NULL)
    row->help = row->help_on_ranks = change->help;
  if (change->metavar != NULL)
    row->metavar = change->metavar;
  if (change->fallback != NULL)
    row->fallback = change->fallback;
  if (change->shown != NULL)
    row->shown = change->shown;
}

void
option_table_init (OptionState *self,
                   const OptionRow *rows,
                   gboolean on_ranks,
                   const OptionChange *changes)
{
  guint n_rows = 0;
  gboolean skips = FALSE; /* the rest of a group */

  while (rows[n_rows].name != NULL)
    n_rows++;
  *self = (OptionState){
    .rows = g_memdup2 (rows, sizeof (OptionRow) * (n_rows + 1)),
    .absent = g_new0 (gboolean, n_rows),
    .on_ranks = on_ranks,
    .given = g_new0 (gboolean, n_rows),
  };
  for (guint i = 0; i < n_rows; i++)
    {
      const OptionChange *change = rows[i].kind == OPTION_GROUP ? NULL : find_change (changes, rows[i].name);

      if (rows[i].kind == OPTION_GROUP)
        skips = rows[i].on_ranks && !on_ranks;
      self->absent[i] = skips || (change != NULL ? change->is_absent : rows[i].is_extra);
      if (change != NULL)
        apply (change, &self->rows[i]);
      set (self, &self->rows[i], NULL);
    }
}

void
option_table_clear (OptionState *self)
{
  for (guint i = 0; self->rows[i].name != NULL; i++)
    if (is_text (&self->rows[i]))
      g_clear_pointer (&FIELD (char *, self, &self->rows[i]), g_free);
    else if (self->rows[i].kind == OPTION_PATHS)
      g_clear_pointer (&FIELD (char **, self, &self->rows[i]), g_strfreev);
  g_clear_pointer (&self->given, g_free);
  g_clear_pointer (&self->absent, g_free);
  g_clear_pointer (&self->rows, g_free);
}

void
option_table_fill (OptionState *self)
{
  for (guint i = 0; self->rows[i].name != NULL; i++)
    {
      self->given[i] = is_given (self, &self->rows[i]);
      if (!self->given[i] && self->rows[i].kind != OPTION_GROUP && self->rows[i].kind != OPTION_NO_FLAG)
        set (self, &self->rows[i], self->rows[i].kind == OPTION_FLAG ? "0" : self->rows[i].fallback);
    }
}

static guint
find_row (const OptionState *self,
          gsize place)
{
  for (guint i = 0; self->rows[i].name != NULL; i++)
    if (self->rows[i].kind != OPTION_GROUP && self->rows[i].place == place)
      return i;
  g_assert_not_reached ();
}

gboolean
option_table_was_given (const OptionState *self,
                        gsize place)
{
  return self->given[find_row (self, place)];
}

void
option_table_give (OptionState *self,
                   gsize place)
{
  self->given[find_row (self, place)] = TRUE;
}

guint
option_table_get_choice (const OptionState *self,
                         gsize place)
{
  const OptionRow *row = &self->rows[find_row (self, place)];
  guint choice = 0;

  while (row->names[choice] != NULL && strcmp (row->names[choice], FIELD (char *, self, row)) != 0)
    choice++;
  return choice;
}

/* -- the command line ---------------------------------------------------------------------------------------------- */

static GOptionArg
get_arg (OptionKind kind)
{
  switch (kind)
    {
    case OPTION_INT: return G_OPTION_ARG_INT;
    case OPTION_INT64: return G_OPTION_ARG_INT64;
    case OPTION_DOUBLE: return G_OPTION_ARG_DOUBLE;
    case OPTION_FLAG:
    case OPTION_NO_FLAG: return G_OPTION_ARG_NONE;
    case OPTION_RAW:
    case OPTION_PATH: return G_OPTION_ARG_FILENAME;
    case OPTION_PATHS: return G_OPTION_ARG_FILENAME_ARRAY;
    default: return G_OPTION_ARG_STRING;
    }
}

/* The help of an option, with its default. Owned by the program. */
static const char *
describe (const OptionState *self,
          const OptionRow *row)
{
  const char *help = self->on_ranks && row->help_on_ranks != NULL ? row->help_on_ranks : row->help;
  const char *shown = row->shown != NULL ? row->shown : row->kind == OPTION_FLAG ? "no"
                                                                                 : row->fallback;
  g_autofree char *text = NULL;

  if (row->kind == OPTION_DEVICE)
    return command_describe_devices (help, shown);
  if (shown == NULL || *shown == '\0')
    return help;
  text = g_strdup_printf ("%s (%s)", help, shown);
  return g_intern_string (text);
}

void
option_table_add_groups (OptionState *self,
                         GOptionContext *context)
{
  const GOptionEntry last[] = { COMMAND_ENTRIES (&self->version, &self->help), { NULL } };
  const OptionRow *title = NULL; /* of a group that has no option yet */
  GOptionGroup *group = NULL;

  for (const OptionRow *row = self->rows; row->name != NULL; row++)
    if (row->kind == OPTION_GROUP)
      title = row;
    else if (!self->absent[row - self->rows])
      {
        const GOptionEntry entries[] = { { row->name, row->letter,
                                           row->kind == OPTION_NO_FLAG ? G_OPTION_FLAG_REVERSE : 0, get_arg (row->kind),
                                           &FIELD (char, self, row), describe (self, row), row->metavar },
                                         { NULL } };

        if (title != NULL)
          {
            group = g_option_group_new (title->name, title->metavar, "", NULL, NULL);
            g_option_context_add_group (context, group);
            title = NULL;
          }
        g_option_group_add_entries (group, entries);
      }
  g_option_group_add_entries (group, last);
}

/* -- checks -------------------------------------------------------------------------------------------------------- */

gboolean
options_refuse (GError **error,
                const char *format,
                ...)
{
  va_list args;
  g_autofree char *text = NULL;

  va_start (args, format);
  text = g_strdup_vprintf (format, args);
  va_end (args);
  g_set_error_literal (error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE, text);
  return FALSE;
}

gboolean
options_check_name (const char *option,
                    const char *value,
                    const char *const *names,
                    GError **error)
{
  g_autofree char *known = NULL;

  if (g_strv_contains (names, value))
    return TRUE;
  known = g_strjoinv (", ", (char **) names);
  return options_refuse (error, "--%s %s: it must be one of %s", option, value, known);
}

static gboolean
check_integer (const OptionRow *row,
               gint64 value,
               GError **error)
{
  if (value >= row->least && value <= row->most)
    return TRUE;
  if (row->most >= G_MAXINT)
    return options_refuse (error, "--%s %" G_GINT64_FORMAT ": it must be at least %" G_GINT64_FORMAT, row->name, value,
                           row->least);
  return options_refuse (error, "--%s %" G_GINT64_FORMAT ": it must be from %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT,
                         row->name, value, row->least, row->most);
}

static gboolean
check_text (const OptionRow *row,
            const char *text,
            GError **error)
{
  if (row->names != NULL)
    return options_check_name (row->name, text, row->names, error);
  if (row->kind == OPTION_PATH && text != NULL && *text == '\0')
    return options_refuse (error, "--%s: a name is missing", row->name);
  return TRUE;
}

gboolean
option_table_check (const OptionState *self,
                    GError **error)
{
  for (guint i = 0; self->rows[i].name != NULL; i++)
    {
      const OptionRow *row = &self->rows[i];
      gboolean ok = TRUE;

      if (!self->given[i] && !row->is_saved) /* its default may stand for a value that is found later */
        continue;
      if (row->kind == OPTION_INT)
        ok = check_integer (row, FIELD (int, self, row), error);
      else if (row->kind == OPTION_INT64)
        ok = check_integer (row, FIELD (gint64, self, row), error);
      else if (row->kind == OPTION_DOUBLE && (!isfinite (FIELD (double, self, row)) || FIELD (double, self, row) < 0))
        ok = options_refuse (error, "--%s %g: it must be 0 or more", row->name, FIELD (double, self, row));
      else if (is_text (row))
        ok = check_text (row, FIELD (char *, self, row), error);
      if (!ok)
        return FALSE;
    }
  return TRUE;
}

/* -- JSON ---------------------------------------------------------------------------------------------------------- */

/* An option's name as a member of an object, which has underscores. */
static char *
get_member_name (const OptionRow *row)
{
  return g_strdelimit (g_strdup (row->name), "-", '_');
}

static void
add_value (const OptionState *self,
           const OptionRow *row,
           JsonBuilder *builder)
{
  char **paths = row->kind == OPTION_PATHS ? FIELD (char **, self, row) : NULL;

  switch (row->kind)
    {
    case OPTION_INT: json_builder_add_int_value (builder, FIELD (int, self, row)); break;
    case OPTION_INT64: json_builder_add_int_value (builder, FIELD (gint64, self, row)); break;
    case OPTION_DOUBLE: json_builder_add_double_value (builder, FIELD (double, self, row)); break;
    case OPTION_FLAG: json_builder_add_boolean_value (builder, FIELD (gboolean, self, row)); break;
    case OPTION_SIZE: json_builder_add_int_value (builder, G_STRUCT_MEMBER (gint64, self, row->bytes)); break;
    case OPTION_PATHS:
      json_builder_begin_array (builder);
      for (guint i = 0; paths != NULL && paths[i] != NULL; i++)
        {
          g_autofree char *name = g_filename_display_name (paths[i]);

          json_builder_add_string_value (builder, name);
        }
      json_builder_end_array (builder);
      break;
    default:
      if (FIELD (char *, self, row) != NULL)
        {
          g_autofree char *text = g_utf8_make_valid (FIELD (char *, self, row), -1);

          json_builder_add_string_value (builder, text);
        }
      else
        json_builder_add_null_value (builder);
    }
}

void
option_table_add_json (const OptionState *self,
                       JsonBuilder *builder)
{
  for (const OptionRow *row = self->rows; row->name != NULL; row++)
    if (!self->absent[row - self->rows] && row->kind != OPTION_GROUP && row->kind != OPTION_NO_FLAG)
      {
        g_autofree char *name = get_member_name (row);

        json_builder_set_member_name (builder, name);
        add_value (self, row, builder);
      }
}

/* json-glib recurses as deep as objects are nested; a saved one hardly is. */
#define MOST_BRACKETS 1000

JsonNode *
option_table_parse_json (const char *saved)
{
  g_autoptr (JsonNode) root = NULL;
  guint n = 0;

  for (const char *p = saved; *p != '\0'; p++)
    n += *p == '{' || *p == '[';
  root = n <= MOST_BRACKETS ? json_from_string (saved, NULL) : NULL;
  return root != NULL && JSON_NODE_HOLDS_OBJECT (root) ? g_steal_pointer (&root) : NULL;
}

/* FALSE if @node is not of the kind that the option has. */
static gboolean
take (OptionState *self,
      const OptionRow *row,
      JsonNode *node)
{
  GType type = node != NULL && JSON_NODE_HOLDS_VALUE (node) ? json_node_get_value_type (node) : G_TYPE_INVALID;

  if (node == NULL && row->late != NULL)
    set (self, row, row->late);
  else if (is_text (row) && type == G_TYPE_STRING)
    set (self, row, json_node_get_string (node));
  else if (row->kind == OPTION_FLAG && type == G_TYPE_BOOLEAN)
    FIELD (gboolean, self, row) = json_node_get_boolean (node);
  else if (row->kind == OPTION_DOUBLE && (type == G_TYPE_DOUBLE || type == G_TYPE_INT64))
    FIELD (double, self, row) = json_node_get_double (node);
  else if (row->kind == OPTION_INT && type == G_TYPE_INT64)
    FIELD (int, self, row) = (int) CLAMP (json_node_get_int (node), G_MININT, G_MAXINT);
  else if (row->kind == OPTION_INT64 && type == G_TYPE_INT64)
    FIELD (gint64, self, row) = json_node_get_int (node);
  else if (row->kind == OPTION_SIZE && type == G_TYPE_INT64)
    G_STRUCT_MEMBER (gint64, self, row->bytes) = json_node_get_int (node);
  else
    return FALSE;
  return TRUE;
}

gboolean
option_table_take_json (OptionState *self,
                        const char *saved,
                        const char *folder,
                        GError **error)
{
  g_autoptr (JsonNode) root = option_table_parse_json (saved);
  JsonObject *object = root != NULL ? json_node_get_object (root) : NULL;

  for (guint i = 0; self->rows[i].name != NULL; i++)
    if (self->rows[i].is_saved && !self->given[i] && !self->absent[i])
      {
        g_autofree char *name = get_member_name (&self->rows[i]);

        if (object == NULL || !take (self, &self->rows[i], json_object_get_member (object, name)))
          {
            g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "--resume %s: that state was not saved by %s: it has no %s",
                         folder, g_get_prgname (), name);
            return FALSE;
          }
      }
  return TRUE;
}
