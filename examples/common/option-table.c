/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads, describes and checks the options of a table. */
#include "common/option-table.h"

#include "common/command.h"
#include "common/launcher.h"

#include <ebb/ebb.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Marks a number that was not given; none of them is in range. */
#define NO_INT G_MININT
#define NO_INT64 G_MININT64
#define NO_DOUBLE (-G_MAXDOUBLE)

/* -- values -------------------------------------------------------------------------------------------------------- */

gboolean
option_row_is_text (const OptionRow *row)
{
  return row->kind == OPTION_SIZE || row->kind == OPTION_TEXT || row->kind == OPTION_DEVICE || row->kind == OPTION_RAW
         || row->kind == OPTION_PATH;
}

gboolean
option_row_is_list (const OptionRow *row)
{
  return row->kind == OPTION_PATHS || row->kind == OPTION_RAWS;
}

gboolean
option_row_has_value (const OptionRow *row)
{
  return row->kind != OPTION_GROUP && row->kind != OPTION_NO_FLAG;
}

static gboolean
is_given (const OptionState *self,
          const OptionRow *row)
{
  switch (row->kind)
    {
    case OPTION_GROUP:
    case OPTION_NO_FLAG: return FALSE;
    case OPTION_INT: return OPTION_FIELD (int, self, row) != NO_INT;
    case OPTION_FLAG: return OPTION_FIELD (gboolean, self, row) != (row->is_common ? FALSE : NO_INT);
    case OPTION_INT64: return OPTION_FIELD (gint64, self, row) != NO_INT64;
    case OPTION_DOUBLE: return OPTION_FIELD (double, self, row) != NO_DOUBLE;
    default: return OPTION_FIELD (gpointer, self, row) != NULL;
    }
}

void
option_table_set (OptionState *self,
                  const OptionRow *row,
                  const char *text)
{
  if (row->kind == OPTION_INT || row->kind == OPTION_FLAG)
    OPTION_FIELD (int, self, row) = text != NULL ? (int) g_ascii_strtoll (text, NULL, 10) : NO_INT;
  else if (row->kind == OPTION_INT64)
    OPTION_FIELD (gint64, self, row) = text != NULL ? g_ascii_strtoll (text, NULL, 10) : NO_INT64;
  else if (row->kind == OPTION_DOUBLE)
    OPTION_FIELD (double, self, row) = text != NULL ? g_ascii_strtod (text, NULL) : NO_DOUBLE;
  else if (option_row_is_text (row))
    {
      g_free (OPTION_FIELD (char *, self, row));
      OPTION_FIELD (char *, self, row) = g_strdup (text);
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
    {
      row->help = row->help_on_ranks = change->help;
      row->get_help = NULL;
    }
  if (change->metavar != NULL)
    row->metavar = change->metavar;
  if (change->fallback != NULL)
    row->fallback = change->fallback;
  if (change->shown != NULL)
    row->shown = change->shown;
  if (change->get_names != NULL)
    row->get_names = change->get_names;
}

static guint
count_rows (const OptionRow *rows)
{
  guint n = 0;

  while (rows[n].name != NULL)
    n++;
  return n;
}

static gboolean
has_row (const OptionState *self,
         const char *name)
{
  for (const OptionRow *row = self->rows; row->name != NULL; row++)
    if (row->kind != OPTION_GROUP && strcmp (row->name, name) == 0)
      return TRUE;
  return FALSE;
}

/* The table of the program and below it the options of all programs. */
static OptionRow *
join_rows (const OptionRow *rows)
{
#define AT(member) .place = G_STRUCT_OFFSET (OptionState, member), .is_common = TRUE, .is_basic = TRUE, .shown = ""
  static const OptionRow common[] = {
    { OPTION_GROUP, "help", .metavar = "Help:" },
    { OPTION_PATH, "config", AT (config), .is_read = TRUE, .metavar = "FILE",
      .help =
          "Take the options that the command line leaves out from FILE: a JSON object of options, or a report, "
          "whose options that name a file to write are not taken" },
    { OPTION_FLAG, "version", AT (version), .help = "Print the version" },
    { OPTION_FLAG, "help", 'h', AT (help), .help = "Print the options that are used most" },
    { OPTION_FLAG, "help-all", AT (help_all), .help = "Print all options, and the exit statuses" },
    { .name = NULL },
  };
#undef AT
  const guint n = count_rows (rows);
  OptionRow *joined = g_new (OptionRow, n + G_N_ELEMENTS (common));

  memcpy (joined, rows, sizeof (OptionRow) * n);
  memcpy (joined + n, common, sizeof common);
  return joined;
}

void
option_table_init (OptionState *self,
                   const OptionPage *page)
{
  gboolean skips = FALSE; /* the rest of a group */
  guint n_rows;

  *self = (OptionState){ .page = page, .rows = join_rows (page->rows) };
  n_rows = count_rows (self->rows);
  self->absent = g_new0 (gboolean, n_rows);
  self->given = g_new0 (gboolean, n_rows);
  self->typed = g_new0 (gboolean, n_rows);
  self->by_file = g_new0 (gboolean, n_rows);
  for (guint i = 0; i < n_rows; i++)
    {
      OptionRow *row = &self->rows[i];
      const OptionChange *change = row->kind == OPTION_GROUP ? NULL : find_change (page->changes, row->name);

      if (row->kind == OPTION_GROUP)
        skips = row->on_ranks && !page->on_ranks;
      self->absent[i] = skips || (change != NULL ? change->is_absent : row->is_extra);
      if (change != NULL)
        apply (change, row);
      if (row->get_names != NULL)
        row->names = row->get_names ();
      if (row->get_help != NULL)
        row->help = row->get_help ();
      option_table_set (self, row, row->is_common && row->kind == OPTION_FLAG ? "0" : NULL);
    }
}

void
option_table_clear (OptionState *self)
{
  for (guint i = 0; self->rows[i].name != NULL; i++)
    if (option_row_is_text (&self->rows[i]))
      g_clear_pointer (&OPTION_FIELD (char *, self, &self->rows[i]), g_free);
    else if (option_row_is_list (&self->rows[i]))
      g_clear_pointer (&OPTION_FIELD (char **, self, &self->rows[i]), g_strfreev);
  if (self->left_out != NULL)
    g_string_free (self->left_out, TRUE);
  g_clear_pointer (&self->by_file, g_free);
  g_clear_pointer (&self->typed, g_free);
  g_clear_pointer (&self->given, g_free);
  g_clear_pointer (&self->absent, g_free);
  g_clear_pointer (&self->rows, g_free);
}

gboolean
option_table_fill (OptionState *self,
                   GError **error)
{
  for (guint i = 0; self->rows[i].name != NULL; i++)
    self->typed[i] = is_given (self, &self->rows[i]);
  if (self->config != NULL && !option_table_take_config (self, error))
    return FALSE;
  for (guint i = 0; self->rows[i].name != NULL; i++)
    {
      self->given[i] = self->typed[i];
      if (!self->given[i] && option_row_has_value (&self->rows[i]))
        option_table_set (self, &self->rows[i],
                          self->rows[i].kind == OPTION_FLAG ? "0" : self->rows[i].fallback);
    }
  return TRUE;
}

/* One of the processes that were started together prints it, unless it is to be quiet. */
static void
print_left_out (const OptionState *self)
{
  g_autofree char *line = NULL;

  for (const OptionRow *row = self->rows; row->name != NULL; row++)
    if (row->kind == OPTION_FLAG && strcmp (row->name, "quiet") == 0 && OPTION_FIELD (gboolean, self, row))
      return;
  if (self->left_out == NULL || !launcher_speaks ())
    return;
  line = g_strdup_printf ("--config %s: not taken from the report:%s: a run that is repeated writes the files that you "
                          "name",
                          self->config, self->left_out->str);
  command_fail (0, line);
}

gboolean
option_table_finish (const OptionState *self,
                     gboolean ok,
                     GError **error)
{
  if (ok)
    print_left_out (self);
  if (ok || self->config == NULL)
    return ok;
  for (guint i = 0; self->rows[i].name != NULL; i++)
    {
      g_autofree char *option = g_strdup_printf ("--%s", self->rows[i].name);
      const char *message = (*error)->message;

      if (self->by_file[i] && g_str_has_prefix (message, option)
          && strchr (" :", message[strlen (option)]) != NULL)
        {
          g_prefix_error (error, "--config %s: ", self->config);
          break;
        }
    }
  return FALSE;
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

  while (row->names[choice] != NULL && strcmp (row->names[choice], OPTION_FIELD (char *, self, row)) != 0)
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
    case OPTION_RAWS:
    case OPTION_PATHS: return G_OPTION_ARG_FILENAME_ARRAY;
    default: return G_OPTION_ARG_STRING;
    }
}

const char *
option_table_describe (const OptionState *self,
                       const OptionRow *row)
{
  const char *help = self->page->on_ranks && row->help_on_ranks != NULL ? row->help_on_ranks : row->help;
  const char *shown = row->shown != NULL ? row->shown : row->kind == OPTION_FLAG ? "no"
                                                                                 : row->fallback;
  g_autofree char *text = NULL;

  if (row->kind == OPTION_DEVICE)
    {
      g_auto (GStrv) kinds = ebb_list_device_kinds ();
      g_autofree char *names = g_strjoinv (", ", kinds);

      text = g_strdup_printf ("%s: %s (%s)", help, names, shown);
      return g_intern_string (text);
    }
  if (shown == NULL || *shown == '\0')
    return help;
  text = g_strdup_printf ("%s (%s)", help, shown);
  return g_intern_string (text);
}

/* Adds the options in groups: those that --help shows, or all. */
static void
add_groups (OptionState *self,
            gboolean shows_all,
            GOptionContext *context)
{
  const OptionRow *title = NULL; /* of a group that has no option yet */
  GOptionGroup *group = NULL;

  for (const OptionRow *row = self->rows; row->name != NULL; row++)
    if (row->kind == OPTION_GROUP)
      title = row;
    else if (!self->absent[row - self->rows] && (shows_all || row->is_basic))
      {
        const GOptionEntry entries[] = {
          { row->name, row->letter, row->kind == OPTION_NO_FLAG ? G_OPTION_FLAG_REVERSE : 0, get_arg (row->kind),
            &OPTION_FIELD (char, self, row), option_table_describe (self, row), row->metavar },
          { NULL }
        };

        if (title != NULL)
          {
            group = g_option_group_new (title->name, title->metavar, "", NULL, NULL);
            g_option_context_add_group (context, group);
            title = NULL;
          }
        g_option_group_add_entries (group, entries);
      }
}

static GOptionContext *
make_context (OptionState *self,
              gboolean shows_all)
{
  g_autofree char *usage = self->page->arguments != NULL
                               ? g_strdup_printf ("%s - %s", self->page->arguments, self->page->purpose)
                               : g_strdup_printf ("- %s", self->page->purpose);
  GOptionContext *context = g_option_context_new (usage);

  g_option_context_set_help_enabled (context, FALSE);
  add_groups (self, shows_all, context);
  return context;
}

/* A flag that the file of --config turns on is turned off by --no-FLAG, which no help lists: alone it does nothing. */
static void
add_opposites (OptionState *self,
               GOptionContext *context)
{
  for (const OptionRow *row = self->rows; row->name != NULL; row++)
    if (row->kind == OPTION_FLAG && !row->is_common && !self->absent[row - self->rows])
      {
        g_autofree char *name = g_str_has_prefix (row->name, "no-") ? g_strdup (row->name + strlen ("no-"))
                                                                    : g_strconcat ("no-", row->name, NULL);
        const GOptionEntry entries[] = { { g_intern_string (name), 0, G_OPTION_FLAG_REVERSE | G_OPTION_FLAG_HIDDEN,
                                           G_OPTION_ARG_NONE, &OPTION_FIELD (char, self, row), NULL, NULL },
                                         { NULL } };

        if (has_row (self, name))
          continue;
        g_option_context_add_main_entries (context, entries, NULL);
      }
}

/* -- names that no option has -------------------------------------------------------------------------------------- */

/* Names are at most so long. */
#define MOST_LETTERS 40

/* How many letters are to be changed, added, removed, or swapped with the next one, to make @a of @b. */
static guint
count_changes (const char *a,
               const char *b)
{
  guint rows[3][MOST_LETTERS + 1], *above = rows[0], *row = rows[1], *next = rows[2];
  const gsize n_a = strlen (a), n_b = strlen (b);

  if (n_a > MOST_LETTERS || n_b > MOST_LETTERS)
    return G_MAXUINT;
  for (guint j = 0; j <= n_b; j++)
    row[j] = above[j] = j;
  for (guint i = 1; i <= n_a; i++)
    {
      guint *last = above;

      next[0] = i;
      for (guint j = 1; j <= n_b; j++)
        {
          next[j] = MIN (MIN (row[j], next[j - 1]) + 1, row[j - 1] + (a[i - 1] != b[j - 1]));
          if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
            next[j] = MIN (next[j], above[j - 2] + 1);
        }
      above = row;
      row = next;
      next = last;
    }
  return row[n_b];
}

/* Whether one name is the other with more words, or its beginning. */
static gboolean
extends (const char *a,
         const char *b)
{
  const gboolean a_is_longer = strlen (a) > strlen (b);
  const char *longer = a_is_longer ? a : b, *shorter = a_is_longer ? b : a;
  g_autofree char *at_end = g_strconcat ("-", shorter, NULL);
  g_autofree char *at_begin = g_strconcat (shorter, "-", NULL);

  if (strlen (shorter) <= 2)
    return FALSE;
  /* What was typed may end within a word of an option. An option must be whole words of what was typed, so that
   * --logits is not taken for --log. */
  return g_str_has_suffix (longer, at_end) || g_str_has_prefix (longer, a_is_longer ? at_begin : shorter);
}

static gboolean
takes (const OptionState *self,
       const OptionRow *row)
{
  return row->kind != OPTION_GROUP && !self->absent[row - self->rows];
}

const char *
option_table_find_similar (const OptionState *self,
                           const char *typed)
{
  g_autofree char *name = g_strdelimit (g_ascii_strdown (typed, -1), "_", '-');
  guint least = (guint) strlen (name) / 3 + 1;
  const char *found = NULL;

  /* --max-tokens is --tokens, although --min-tokens has fewer other letters. */
  for (const OptionRow *row = self->rows; row->name != NULL; row++)
    if (takes (self, row) && g_str_has_prefix (name, "max-") && strcmp (name + strlen ("max-"), row->name) == 0)
      return row->name;
  for (const OptionRow *row = self->rows; row->name != NULL; row++)
    {
      const guint n_changes = takes (self, row) ? count_changes (name, row->name) : G_MAXUINT;

      if (n_changes < least)
        {
          found = row->name;
          least = n_changes;
        }
    }
  for (const OptionRow *row = self->rows; row->name != NULL && found == NULL; row++)
    if (takes (self, row) && extends (name, row->name))
      found = row->name;
  return found;
}

/* GLib's error of an option that there is not names it at the end. */
static void
suggest (const OptionState *self,
         GError *error)
{
  const char *typed = strstr (error->message, "--");
  g_autofree char *name = typed != NULL ? g_strndup (typed + 2, strcspn (typed + 2, "= ")) : NULL;
  const char *similar = name != NULL ? option_table_find_similar (self, name) : NULL;
  char *message;

  if (similar == NULL)
    return;
  message = g_strdup_printf ("%s: did you mean --%s?", error->message, similar);
  g_free (error->message);
  error->message = message;
}

static gboolean
parse_words (OptionState *self,
             GOptionContext *context,
             char ***words,
             GError **error)
{
  GError *failure = NULL;

  if (g_option_context_parse_strv (context, words, &failure))
    return TRUE;
  if (g_error_matches (failure, G_OPTION_ERROR, G_OPTION_ERROR_UNKNOWN_OPTION))
    suggest (self, failure);
  g_propagate_error (error, failure);
  return FALSE;
}

/* -- the command line ---------------------------------------------------------------------------------------------- */

gboolean
option_table_parse (OptionState *self,
                    int argc,
                    char **argv,
                    char ***rest,
                    GError **error)
{
  g_auto (GStrv) words = g_new0 (char *, (gsize) argc + 1);
  g_autoptr (GOptionContext) context = make_context (self, TRUE);
  const GOptionEntry remaining[] = {
    { G_OPTION_REMAINING, 0, G_OPTION_FLAG_HIDDEN, G_OPTION_ARG_FILENAME_ARRAY, rest, NULL, NULL },
    { NULL }
  };

  for (int i = 0; i < argc; i++)
    words[i] = g_strdup (argv[i]);
  if (rest != NULL)
    g_option_context_add_main_entries (context, remaining, NULL);
  add_opposites (self, context);
  if (!parse_words (self, context, &words, error))
    return FALSE;
  if (option_table_is_question (self) || words[0] == NULL || words[1] == NULL)
    return TRUE;
  g_set_error (error, G_OPTION_ERROR, G_OPTION_ERROR_FAILED, "%s: only options are allowed", words[1]);
  return FALSE;
}

gboolean
option_table_is_question (const OptionState *self)
{
  return self->help || self->help_all || self->version;
}

/* What stands below the options. */
static char *
make_epilogue (const OptionState *self)
{
  const OptionPage *page = self->page;
  GString *text = g_string_new (NULL);

  for (guint i = 0; page->examples[i] != NULL; i++)
    g_string_append_printf (text, "%s%s\n", i == 0 ? "Examples: " : "          ", page->examples[i]);
  if (page->notes != NULL)
    g_string_append_printf (text, "%s\n", page->notes);
  for (guint i = 0; self->help_all && page->statuses[i].text != NULL; i++)
    g_string_append_printf (text, "%s%3d %s\n", i == 0 ? "Exit status: " : "             ", page->statuses[i].status,
                            page->statuses[i].text);
  if (!self->help_all)
    g_string_append (text, "PROGRAM --help-all lists all options.\n");
  g_string_replace (text, "PROGRAM", g_get_prgname (), 0);
  return g_string_free (text, FALSE);
}

void
option_table_print (OptionState *self)
{
  g_autoptr (GOptionContext) context = NULL;
  g_autofree char *epilogue = NULL;
  g_autofree char *help = NULL;

  if (!self->help && !self->help_all)
    {
      command_print_version ();
      return;
    }
  context = make_context (self, self->help_all);
  epilogue = make_epilogue (self);
  g_option_context_set_summary (context, "Defaults are in parentheses.");
  g_option_context_set_description (context, epilogue);
  help = command_get_help (context);
  fputs (help, stdout);
}

/* Whether @text has the option, and not only one whose name begins in the same way. */
static gboolean
names_option (const char *text,
              const char *name)
{
  g_autofree char *option = g_strconcat ("--", name, NULL);

  while ((text = strstr (text, option)) != NULL)
    {
      text += strlen (option);
      if (!g_ascii_isalnum (*text) && *text != '-')
        return TRUE;
    }
  return FALSE;
}

int
option_table_fail (const OptionState *self,
                   const char *message)
{
  const char *help = "--help";
  g_autofree char *line = NULL;

  for (guint i = 0; self->rows[i].name != NULL; i++)
    if (self->rows[i].kind != OPTION_GROUP && !self->absent[i] && !self->rows[i].is_basic
        && names_option (message, self->rows[i].name))
      help = "--help-all";
  line = g_strdup_printf ("%s (%s %s lists the options)", message, g_get_prgname (), help);
  return command_fail (2, line);
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
  guint64 n_bytes;

  if (row->kind == OPTION_SIZE)
    return text == NULL || (row->names != NULL && g_strv_contains (row->names, text))
           || command_parse_size (row->name, text, &n_bytes, error);
  if (row->names != NULL && text != NULL)
    return options_check_name (row->name, text, row->names, error);
  if (row->kind == OPTION_PATH && text != NULL && *text == '\0')
    return options_refuse (error, "--%s: a name is missing", row->name);
  return TRUE;
}

/* Refuses @written if @row names the same file to read. */
static gboolean
check_input (const OptionState *self,
             const OptionRow *row,
             const OptionRow *written,
             const struct stat *target,
             GError **error)
{
  char *one[] = { NULL, NULL };
  char **inputs = one;
  struct stat input;

  if (option_row_is_list (row))
    inputs = OPTION_FIELD (char **, self, row);
  else
    one[0] = OPTION_FIELD (char *, self, row);
  for (; inputs != NULL && *inputs != NULL; inputs++)
    if (stat (*inputs, &input) == 0 && input.st_dev == target->st_dev && input.st_ino == target->st_ino)
      return options_refuse (error, "--%s %s: it is the file of --%s %s, which is only read: name another file",
                             written->name, OPTION_FIELD (char *, self, written), row->name, *inputs);
  return TRUE;
}

/* Checks that no file to write is one that the same run reads, except weights that it trains further. Folders may be
 * both. */
static gboolean
check_outputs (const OptionState *self,
               GError **error)
{
  for (guint i = 0; self->rows[i].name != NULL; i++)
    {
      const OptionRow *written = &self->rows[i];
      struct stat target;

      if (!written->is_written || written->kind != OPTION_PATH || !self->given[i]
          || stat (OPTION_FIELD (char *, self, written), &target) != 0 || !S_ISREG (target.st_mode))
        continue;
      for (guint j = 0; self->rows[j].name != NULL; j++)
        if (self->rows[j].is_read && self->given[j] && !(written->is_trained && self->rows[j].is_trained)
            && !check_input (self, &self->rows[j], written, &target, error))
          return FALSE;
    }
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
        ok = check_integer (row, OPTION_FIELD (int, self, row), error);
      else if (row->kind == OPTION_INT64)
        ok = check_integer (row, OPTION_FIELD (gint64, self, row), error);
      else if (row->kind == OPTION_DOUBLE
               && (!isfinite (OPTION_FIELD (double, self, row)) || OPTION_FIELD (double, self, row) < 0))
        ok = options_refuse (error, "--%s %g: it must be 0 or more", row->name, OPTION_FIELD (double, self, row));
      else if (option_row_is_text (row))
        ok = check_text (row, OPTION_FIELD (char *, self, row), error);
      if (!ok)
        return FALSE;
    }
  return check_outputs (self, error);
}
