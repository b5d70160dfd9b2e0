/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The options of a table as JSON: in reports, in the state of a resumed training, and in the file of --config. */
#include "common/option-table.h"
#include "common/read-file.h"

#include <ebb/ebb.h>

#include <string.h>

/* -- writing ------------------------------------------------------------------------------------------------------- */

/* The member of a report's config that lists the options that were typed. */
#define GIVEN "given"
/* The member of a report that names its program. */
#define PROGRAM "program"
/* The member of a report that has the step at which its run began. */
#define FIRST_STEP "first_step"

/* An option's name as a member of an object, which has underscores. */
static char *
get_member_name (const OptionRow *row)
{
  return g_strdelimit (g_strdup (row->name), "-", '_');
}

/* Returns the full path where the option's value @text names a file or folder; otherwise @text. Links are not followed,
 * and "byte" and shares of the data name no file. */
static char *
find_path (const OptionRow *row,
           const char *text)
{
  g_autofree char *here = NULL;
  char *end;

  g_ascii_strtod (text, &end);
  if (g_path_is_absolute (text) || *end == '\0' || g_strcmp0 (text, row->fallback) == 0
      || !g_file_test (text, G_FILE_TEST_EXISTS))
    return g_strdup (text);
  here = g_get_current_dir ();
  while (g_str_has_prefix (text, "." G_DIR_SEPARATOR_S))
    text += strlen ("." G_DIR_SEPARATOR_S);
  return g_build_filename (here, text, NULL);
}

static void
add_value (const OptionState *self,
           const OptionRow *row,
           gboolean full_paths,
           JsonBuilder *builder)
{
  char **list = option_row_is_list (row) ? OPTION_FIELD (char **, self, row) : NULL;

  switch (row->kind)
    {
    case OPTION_INT: json_builder_add_int_value (builder, OPTION_FIELD (int, self, row)); break;
    case OPTION_INT64: json_builder_add_int_value (builder, OPTION_FIELD (gint64, self, row)); break;
    case OPTION_DOUBLE: json_builder_add_double_value (builder, OPTION_FIELD (double, self, row)); break;
    case OPTION_FLAG: json_builder_add_boolean_value (builder, OPTION_FIELD (gboolean, self, row)); break;
    case OPTION_SIZE:
      if (row->names != NULL && OPTION_FIELD (char *, self, row) != NULL
          && g_strv_contains (row->names, OPTION_FIELD (char *, self, row)))
        json_builder_add_string_value (builder, OPTION_FIELD (char *, self, row));
      else
        json_builder_add_int_value (builder, G_STRUCT_MEMBER (gint64, self, row->bytes));
      break;
    case OPTION_RAWS:
    case OPTION_PATHS:
      json_builder_begin_array (builder);
      for (guint i = 0; list != NULL && list[i] != NULL; i++)
        {
          g_autofree char *path = full_paths && row->is_read ? find_path (row, list[i]) : g_strdup (list[i]);
          g_autofree char *name = g_filename_display_name (path);

          json_builder_add_string_value (builder, name);
        }
      json_builder_end_array (builder);
      break;
    default:
      if (OPTION_FIELD (char *, self, row) != NULL)
        {
          const char *value = OPTION_FIELD (char *, self, row);
          g_autofree char *path = full_paths && row->is_read ? find_path (row, value) : g_strdup (value);
          g_autofree char *text = g_utf8_make_valid (path, -1);

          json_builder_add_string_value (builder, text);
        }
      else
        json_builder_add_null_value (builder);
    }
}

void
option_table_add_program (const OptionState *self,
                          JsonBuilder *builder)
{
  json_builder_set_member_name (builder, PROGRAM);
  json_builder_add_string_value (builder, self->page->name);
}

void
option_table_add_json (const OptionState *self,
                       gboolean full_paths,
                       JsonBuilder *builder)
{
  for (const OptionRow *row = self->rows; row->name != NULL; row++)
    if (!self->absent[row - self->rows] && !row->is_common && option_row_has_value (row))
      {
        g_autofree char *name = get_member_name (row);

        json_builder_set_member_name (builder, name);
        add_value (self, row, full_paths, builder);
      }
}

void
option_table_add_given (const OptionState *self,
                        JsonBuilder *builder)
{
  json_builder_set_member_name (builder, GIVEN);
  json_builder_begin_array (builder);
  for (const OptionRow *row = self->rows; row->name != NULL; row++)
    if (self->typed[row - self->rows] && !row->is_common)
      {
        g_autofree char *name = get_member_name (row);

        json_builder_add_string_value (builder, name);
      }
  json_builder_end_array (builder);
}

/* -- a saved state ------------------------------------------------------------------------------------------------- */

/* json-glib recurses as deep as objects are nested; those of options and reports hardly are. */
#define MOST_DEPTH 100

static gboolean
is_too_deep (const char *text)
{
  gboolean is_in_string = FALSE;
  guint depth = 0;

  for (const char *p = text; *p != '\0' && depth <= MOST_DEPTH; p++)
    if (is_in_string && *p == '\\' && p[1] != '\0')
      p++;
    else if (*p == '"')
      is_in_string = !is_in_string;
    else if (!is_in_string && (*p == '{' || *p == '['))
      depth++;
    else if (!is_in_string && (*p == '}' || *p == ']') && depth > 0)
      depth--;
  return depth > MOST_DEPTH;
}

static JsonNode *
parse_object (const char *text,
              GError **error)
{
  g_autoptr (JsonNode) root = is_too_deep (text) ? NULL : json_from_string (text, error);

  if (root != NULL && JSON_NODE_HOLDS_OBJECT (root))
    return g_steal_pointer (&root);
  if (error != NULL && *error == NULL)
    options_refuse (error, "there is no object in it");
  return NULL;
}

static gboolean
has_type (JsonNode *node,
          GType type)
{
  const GType found = JSON_NODE_HOLDS_VALUE (node) ? json_node_get_value_type (node) : G_TYPE_INVALID;

  return found == type || (type == G_TYPE_DOUBLE && found == G_TYPE_INT64);
}

/* Returns the name of a member of a saved object that has another type than programs write; NULL: none has. */
static const char *
find_mistyped (JsonNode *root)
{
  /* Members that programs read, whether or not they are options. json-glib logs a critical message for another type. */
  static const struct
  {
    const char *name;
    GType type;
  } members[] = {
    { "seed", G_TYPE_INT64 },
    { "steps", G_TYPE_INT64 },
    { "layers", G_TYPE_INT64 },
    { "width", G_TYPE_INT64 },
    { "heads", G_TYPE_INT64 },
    { "context", G_TYPE_INT64 },
    { "vocab", G_TYPE_INT64 },
    { "gelu", G_TYPE_STRING },
    { "tied", G_TYPE_BOOLEAN },
    { "bias", G_TYPE_BOOLEAN },
    { "norm_eps", G_TYPE_DOUBLE },
    { "changes_dropout", G_TYPE_BOOLEAN },
    { "reads_bytes", G_TYPE_BOOLEAN },
    { "steps_by_epochs", G_TYPE_BOOLEAN },
  };

  for (guint i = 0; i < G_N_ELEMENTS (members); i++)
    {
      JsonNode *node = json_object_get_member (json_node_get_object (root), members[i].name);

      if (node != NULL && !JSON_NODE_HOLDS_NULL (node) && !has_type (node, members[i].type))
        return members[i].name;
    }
  return NULL;
}

JsonNode *
option_table_parse_json (const char *saved)
{
  g_autoptr (JsonNode) root = parse_object (saved, NULL);

  return root != NULL && find_mistyped (root) == NULL ? g_steal_pointer (&root) : NULL;
}

JsonNode *
option_table_read_json (const char *path)
{
  gsize size;
  g_autofree char *text = ebb_read_file (path, READ_JSON_MAX_SIZE, &size, NULL);

  return text != NULL ? parse_object (text, NULL) : NULL;
}

const char *
option_table_get_text (JsonNode *root,
                       const char *name,
                       const char *fallback)
{
  JsonNode *node = json_object_get_member (json_node_get_object (root), name);

  return node != NULL && has_type (node, G_TYPE_STRING) ? json_node_get_string (node) : fallback;
}

/* FALSE if @node is not of the kind that the option has. */
static gboolean
take (OptionState *self,
      const OptionRow *row,
      JsonNode *node)
{
  GType type = node != NULL && JSON_NODE_HOLDS_VALUE (node) ? json_node_get_value_type (node) : G_TYPE_INVALID;

  if (node == NULL && row->late != NULL)
    option_table_set (self, row, row->late);
  else if (option_row_is_text (row) && type == G_TYPE_STRING)
    option_table_set (self, row, json_node_get_string (node));
  else if (row->kind == OPTION_FLAG && type == G_TYPE_BOOLEAN)
    OPTION_FIELD (gboolean, self, row) = json_node_get_boolean (node);
  else if (row->kind == OPTION_DOUBLE && (type == G_TYPE_DOUBLE || type == G_TYPE_INT64))
    OPTION_FIELD (double, self, row) = json_node_get_double (node);
  else if (row->kind == OPTION_INT && type == G_TYPE_INT64 && json_node_get_int (node) >= G_MININT
           && json_node_get_int (node) <= G_MAXINT)
    OPTION_FIELD (int, self, row) = (int) json_node_get_int (node);
  else if (row->kind == OPTION_INT64 && type == G_TYPE_INT64)
    OPTION_FIELD (gint64, self, row) = json_node_get_int (node);
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
  g_autoptr (JsonNode) root = parse_object (saved, NULL);
  JsonObject *object = root != NULL ? json_node_get_object (root) : NULL;
  const char *mistyped = root != NULL ? find_mistyped (root) : NULL;

  if (mistyped != NULL)
    {
      g_autofree char *value = json_to_string (json_object_get_member (object, mistyped), FALSE);

      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "--resume %s: that state was not saved by %s: its %s is %s",
                   folder, g_get_prgname (), mistyped, value);
      return FALSE;
    }
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

/* -- the file of --config ------------------------------------------------------------------------------------------ */

/* Returns the option that @member sets; NULL if no option has its name. */
static const OptionRow *
find_option (const OptionState *self,
             const char *member)
{
  g_autofree char *name = g_strdelimit (g_strdup (member), "_", '-');

  for (const OptionRow *row = self->rows; row->name != NULL; row++)
    if (option_row_has_value (row) && !row->is_common && !self->absent[row - self->rows]
        && strcmp (row->name, name) == 0)
      return row;
  return NULL;
}

/* Returns the text as a user would type it; NULL if @node holds no text. Numbers are texts as well: --eval 0.05. */
static char *
get_text (JsonNode *node)
{
  const GType type = JSON_NODE_HOLDS_VALUE (node) ? json_node_get_value_type (node) : G_TYPE_INVALID;
  char text[G_ASCII_DTOSTR_BUF_SIZE];

  if (type == G_TYPE_STRING)
    return g_strdup (json_node_get_string (node));
  if (type == G_TYPE_INT64)
    return g_strdup_printf ("%" G_GINT64_FORMAT, json_node_get_int (node));
  if (type == G_TYPE_DOUBLE)
    return g_strdup (g_ascii_formatd (text, sizeof text, "%.15g", json_node_get_double (node)));
  return NULL;
}

/* One text, or an array of texts; NULL if @node is neither. */
static char **
get_list (JsonNode *node)
{
  g_autoptr (GStrvBuilder) list = g_strv_builder_new ();
  JsonArray *array = JSON_NODE_HOLDS_ARRAY (node) ? json_node_get_array (node) : NULL;

  for (guint i = 0; i < (array != NULL ? json_array_get_length (array) : 1); i++)
    {
      g_autofree char *text = get_text (array != NULL ? json_array_get_element (array, i) : node);

      if (text == NULL)
        return NULL;
      g_strv_builder_add (list, text);
    }
  return g_strv_builder_end (list);
}

/* NULL, or what @node should be instead. */
static const char *
take_value (OptionState *self,
            const OptionRow *row,
            JsonNode *node)
{
  const GType type = JSON_NODE_HOLDS_VALUE (node) ? json_node_get_value_type (node) : G_TYPE_INVALID;

  if (row->kind == OPTION_FLAG)
    return type == G_TYPE_BOOLEAN && take (self, row, node) ? NULL : "true or false";
  if (row->kind == OPTION_DOUBLE)
    return take (self, row, node) ? NULL : "a number";
  if (row->kind == OPTION_INT && type == G_TYPE_INT64)
    return take (self, row, node) ? NULL : "at most 2147483647";
  if (row->kind == OPTION_INT || row->kind == OPTION_INT64)
    return take (self, row, node) ? NULL : "a whole number";
  if (option_row_is_list (row))
    {
      char **list = get_list (node);

      if (list == NULL)
        return "a text, or an array of texts";
      OPTION_FIELD (char **, self, row) = *list != NULL ? list : NULL;
      if (*list == NULL)
        g_strfreev (list);
      return NULL;
    }
  g_autofree char *text = get_text (node);

  if (text != NULL)
    option_table_set (self, row, text);
  return text != NULL ? NULL : row->kind == OPTION_SIZE ? "a size like \"1.5GiB\", or a number of bytes"
                                                        : "a text";
}

/* An error: the program has no option @member. @maker: as in take_member(). */
static gboolean
refuse_member (const OptionState *self,
               const char *member,
               const char *maker,
               GError **error)
{
  const char *program = g_get_prgname (), *similar = option_table_find_similar (self, member);

  if (maker != NULL)
    return options_refuse (error, "--config %s: %s: %s has no such option: the report is of %s", self->config, member,
                           program, maker);
  if (similar != NULL && find_option (self, similar) != NULL)
    return options_refuse (error, "--config %s: %s: %s has no such option: did you mean %s?", self->config, member,
                           program, similar);
  return options_refuse (error, "--config %s: %s: %s has no such option: %s --help-all lists them", self->config,
                         member, program, program);
}

/* Checks that the text in @node is the name of a file that exists. */
static gboolean
is_there (JsonNode *node)
{
  return !has_type (node, G_TYPE_STRING) || g_file_test (json_node_get_string (node), G_FILE_TEST_EXISTS);
}

/* @maker: the other program that wrote the report; NULL: this one did, the report names none, or the file is no
 * report. */
static gboolean
take_member (OptionState *self,
             const char *member,
             JsonNode *node,
             gboolean is_report,
             const char *maker,
             GError **error)
{
  const OptionRow *row = find_option (self, member);
  const char *wanted;
  gsize i;

  if (row == NULL)
    return refuse_member (self, member, maker, error);
  i = (gsize) (row - self->rows);
  if (self->typed[i] || node == NULL || JSON_NODE_HOLDS_NULL (node))
    return TRUE;
  if (is_report && (row->is_written || (row->is_made && !is_there (node))))
    {
      if (self->left_out == NULL)
        self->left_out = g_string_new (NULL);
      g_string_append_printf (self->left_out, "%s --%s", self->left_out->len > 0 ? "," : "", row->name);
      return TRUE;
    }
  wanted = take_value (self, row, node);
  if (wanted != NULL)
    {
      g_autofree char *text = json_to_string (node, FALSE);

      return options_refuse (error, "--config %s: %s: %s: it must be %s", self->config, member, text, wanted);
    }
  self->typed[i] = self->by_file[i] = TRUE;
  return TRUE;
}

/* Refuses a member of a report that is there and not of @type. */
static gboolean
check_report_member (const OptionState *self,
                     JsonObject *report,
                     const char *name,
                     GType type,
                     const char *wanted,
                     GError **error)
{
  JsonNode *node = json_object_get_member (report, name);
  g_autofree char *text = NULL;

  if (node == NULL || JSON_NODE_HOLDS_NULL (node) || has_type (node, type))
    return TRUE;
  text = json_to_string (node, FALSE);
  return options_refuse (error, "--config %s: %s: %s: in a report it must be %s", self->config, name, text, wanted);
}

/* Returns the program that wrote @report; NULL if it is this one, or the report doesn't say. */
static const char *
find_maker (const OptionState *self,
            JsonObject *report)
{
  const char *name = json_object_get_string_member_with_default (report, PROGRAM, NULL);

  return g_strcmp0 (name, self->page->name) != 0 ? name : NULL;
}

/* The options of a run that went on from a state are partly in that state. */
static gboolean
check_first_step (OptionState *self,
                  JsonObject *report,
                  GError **error)
{
  const OptionRow *resume = find_option (self, "resume");
  const gint64 step = json_object_get_int_member_with_default (report, FIRST_STEP, 0);

  if (resume == NULL || step <= 0 || self->typed[resume - self->rows])
    return TRUE;
  return options_refuse (error,
                         "--config %s: its run resumed a training at step %" G_GINT64_FORMAT
                         ": name the report of the run that began it, or a state of that step by --resume",
                         self->config, step);
}

gboolean
option_table_take_config (OptionState *self,
                          GError **error)
{
  g_autoptr (JsonNode) root = NULL;
  g_autoptr (GError) failure = NULL;
  g_autoptr (GList) members = NULL;
  g_autofree char *text = NULL;
  g_auto (GStrv) given = NULL;
  const char *maker = NULL;
  gboolean is_report;
  JsonObject *object;

  text = read_file_or_pipe (self->config, NULL, &failure);
  if (text == NULL
      || (root = parse_object (text, &failure)) == NULL)
    return options_refuse (error, "--config %s: it must be a file with a JSON object of options: %s", self->config,
                           failure->message);
  object = json_node_get_object (root);
  is_report = json_object_has_member (object, "config")
              && JSON_NODE_HOLDS_OBJECT (json_object_get_member (object, "config"));
  if (is_report)
    {
      if (!check_report_member (self, object, PROGRAM, G_TYPE_STRING, "a text", error)
          || !check_report_member (self, object, FIRST_STEP, G_TYPE_INT64, "an integer", error)
          || !check_first_step (self, object, error))
        return FALSE;
      maker = find_maker (self, object);
      object = json_object_get_object_member (object, "config");
    }
  if (json_object_has_member (object, GIVEN) && JSON_NODE_HOLDS_ARRAY (json_object_get_member (object, GIVEN)))
    given = get_list (json_object_get_member (object, GIVEN));
  if (given == NULL && json_object_has_member (object, GIVEN))
    return options_refuse (error, "--config %s: " GIVEN ": it must be an array of names", self->config);
  is_report |= given != NULL; /* or its config alone */
  for (guint i = 0; given != NULL && given[i] != NULL; i++)
    if (!take_member (self, given[i], json_object_get_member (object, given[i]), is_report, maker, error))
      return FALSE;
  members = given == NULL ? json_object_get_members (object) : NULL;
  for (GList *member = members; member != NULL; member = member->next)
    if (!take_member (self, member->data, json_object_get_member (object, member->data), is_report, maker, error))
      return FALSE;
  return TRUE;
}
