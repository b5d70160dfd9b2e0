/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The man page of a program. */
#include "pages.h"

#include <ebb/ebb.h>

#include <string.h>

/* Appends @text as troff reads it, with the program's name in place of PROGRAM. */
static void
append_text (GString *page,
             const OptionState *options,
             const char *text)
{
  g_autoptr (GString) plain = g_string_new (text);

  g_string_replace (plain, "PROGRAM", options->page->name, 0);
  g_string_replace (plain, "\\", "\\e", 0);
  g_string_replace (plain, "-", "\\-", 0);
  if (plain->str[0] == '.' || plain->str[0] == '\'')
    g_string_append (page, "\\&");
  g_string_append (page, plain->str);
}

static void
append_line (GString *page,
             const OptionState *options,
             const char *before,
             const char *text,
             const char *after)
{
  g_string_append (page, before);
  append_text (page, options, text);
  g_string_append (page, after);
}

static void
append_option (GString *page,
               const OptionState *options,
               const OptionRow *row)
{
  g_string_append (page, ".TP\n");
  if (row->letter != 0)
    g_string_append_printf (page, "\\fB\\-%c\\fR, ", row->letter);
  append_line (page, options, "\\fB\\-\\-", row->name, "\\fR");
  if (row->metavar != NULL)
    append_line (page, options, "=\\fI", row->metavar, "\\fR");
  append_line (page, options, "\n", option_table_describe (options, row), "\n");
}

static void
append_options (GString *page,
                const OptionState *options)
{
  const OptionRow *title = NULL; /* of a group that has no option yet */

  g_string_append (page, ".SH OPTIONS\nDefaults are in parentheses.\n");
  for (const OptionRow *row = options->rows; row->name != NULL; row++)
    {
      if (row->kind == OPTION_GROUP)
        title = row;
      if (!page_has (options, row))
        continue;
      if (title != NULL)
        {
          g_autofree char *name = g_strndup (title->metavar, strlen (title->metavar) - 1); /* without the colon */

          append_line (page, options, ".SS ", name, "\n");
          title = NULL;
        }
      append_option (page, options, row);
    }
}

/* What all programs have in common. */
static void
append_common (GString *page,
               const OptionState *options)
{
  static const struct
  {
    const char *name, *text;
  } variables[] = {
    { "NO_COLOR",
      "If it is set and not empty, nothing has colours. Elsewhere a terminal has them, unless TERM is dumb." },
    { "OMP_NUM_THREADS", "Number of threads, where no option says it." },
    { "EBB_BACKEND_PATH", "Folders with modules of devices and of process groups, with colons between them; they are "
                          "looked at first." },
  };

  g_string_append (page, ".SH CONFIGURATION\n");
  append_text (
      page, options,
      "The file of --config has a JSON object with a member for each option that it sets, as in "
      "{\"batch\": 4, \"checkpoint\": \"full\"}. Words of a name have - or _ between them. Numbers and flags "
      "are JSON's numbers, true and false; an option that may be given several times takes an array; sizes are "
      "numbers of bytes, or texts with a unit. Files are named as on the command line, from the folder where "
      "the program is started. The command line overrides the file: --no-FLAG turns off a flag that it turns "
      "on.");
  g_string_append (page, "\n.PP\n");
  append_text (
      page, options,
      "A report is such a file, too. Its config has all options as they took effect. Only those that were typed "
      "are taken from it. Of these, options that name a file to write are left out, and a line on standard error "
      "lists them. "
      "A run with that file repeats the run of the report, bit for bit, and leaves its files as they are.");
  g_string_append (page, "\n.SH ENVIRONMENT\n");
  for (guint i = 0; i < G_N_ELEMENTS (variables); i++)
    {
      append_line (page, options, ".TP\n.B ", variables[i].name, "\n");
      append_line (page, options, "", variables[i].text, "\n");
    }
}

char *
page_write_man (const OptionState *options)
{
  const OptionPage *about = options->page;
  g_autofree char *upper = g_ascii_strup (about->name, -1);
  g_auto (GStrv) notes = g_strsplit (about->notes != NULL ? about->notes : "", "\n", -1);
  GString *page = g_string_new (NULL);

  append_line (page, options, ".TH ", upper, " 1 \"\" ");
  g_string_append_printf (page, "\"Ebb %s\" \"Programs of Ebb\"\n", ebb_get_version_string ());
  append_line (page, options, ".SH NAME\n", about->name, " \\- ");
  append_line (page, options, "", about->purpose, "\n");
  append_line (page, options, ".SH SYNOPSIS\n.B ", about->name, "\n[\\fIOPTION\\fR…]");
  if (about->arguments != NULL)
    append_line (page, options, " ", about->arguments, "");
  g_string_append (page, "\n");
  if (*notes != NULL && **notes != '\0')
    g_string_append (page, ".SH DESCRIPTION\n");
  for (guint i = 0; notes[i] != NULL; i++)
    append_line (page, options, i > 0 ? ".PP\n" : "", notes[i], "\n");
  append_options (page, options);
  append_common (page, options);
  g_string_append (page, ".SH EXIT STATUS\n");
  for (guint i = 0; about->statuses[i].text != NULL; i++)
    {
      g_string_append_printf (page, ".TP\n.B %d\n", about->statuses[i].status);
      append_line (page, options, "", about->statuses[i].text, "\n");
    }
  g_string_append (page, ".SH EXAMPLES\n.nf\n");
  for (guint i = 0; about->examples[i] != NULL; i++)
    append_line (page, options, "", about->examples[i], "\n");
  g_string_append (page, ".fi\n");
  return g_string_free (page, FALSE);
}
