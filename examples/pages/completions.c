/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Completions of a program's options and of their values, for bash, zsh and fish. */
#include "pages.h"

#include <string.h>

static char *
join_choices (const OptionRow *row)
{
  g_auto (GStrv) choices = page_list_choices (row);

  return g_strjoinv (" ", choices);
}

/* The name of the shell's function. */
static char *
name_function (const OptionState *options)
{
  return g_strdelimit (g_strconcat ("_", options->page->name, NULL), "-", '_');
}

/* -- bash ---------------------------------------------------------------------------------------------------------- */

/* After the option, or after "--option=", its values. */
static void
append_bash_case (GString *text,
                  const OptionRow *row)
{
  const PageValue value = page_get_value (row);
  g_autofree char *choices = value == PAGE_CHOICE ? join_choices (row) : NULL;

  if (value == PAGE_NO_VALUE)
    return;
  g_string_append_printf (text, "    --%s", row->name);
  if (row->letter != 0)
    g_string_append_printf (text, "|-%c", row->letter);
  g_string_append (text, ") ");
  if (value == PAGE_CHOICE)
    g_string_append_printf (text, "mapfile -t COMPREPLY < <(compgen -W '%s' -- \"$word\")", choices);
  else if (value == PAGE_FOLDER_OR_GGUF)
    g_string_append (text, "compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- \"$word\"; "
                           "compgen -f -X '!*.gguf' -- \"$word\")");
  else if (value == PAGE_FOLDER || value == PAGE_FILE)
    g_string_append_printf (text,
                            "compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -%c -- \"$word\")",
                            value == PAGE_FOLDER ? 'd' : 'f');
  else
    g_string_append (text, "COMPREPLY=()");
  g_string_append (text, "; return ;;\n");
}

char *
page_write_bash (const OptionState *options)
{
  g_autofree char *function = name_function (options);
  GString *text = g_string_new (NULL);

  g_string_append_printf (text,
                          "# Completions of %s for bash.\n"
                          "%s ()\n{\n"
                          "  local word=$2 option=$3\n"
                          "  # bash takes the = of --option=value for a word of its own.\n"
                          "  if [[ $word == = ]]; then\n    word=\n"
                          "  elif [[ $option == = ]]; then\n    option=${COMP_WORDS[COMP_CWORD-2]}\n  fi\n"
                          "  case $option in\n",
                          options->page->name, function);
  for (const OptionRow *row = options->rows; row->name != NULL; row++)
    if (page_has (options, row))
      append_bash_case (text, row);
  g_string_append (text, "  esac\n  if [[ $word != -* ]]; then\n"
                         "    compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
                         "    return\n  fi\n"
                         "  mapfile -t COMPREPLY < <(compgen -W '");
  for (const OptionRow *row = options->rows; row->name != NULL; row++)
    if (page_has (options, row))
      g_string_append_printf (text, "--%s ", row->name);
  g_string_append_printf (text, "' -- \"$word\")\n}\ncomplete -F %s %s\n", function, options->page->name);
  return g_string_free (text, FALSE);
}

/* -- zsh ----------------------------------------------------------------------------------------------------------- */

/* The help in single quotes, where brackets and colons have no meaning. */
static char *
quote_zsh (const char *help)
{
  g_autoptr (GString) text = g_string_new (help);

  g_string_replace (text, "\\", "\\\\", 0);
  g_string_replace (text, "[", "\\[", 0);
  g_string_replace (text, "]", "\\]", 0);
  g_string_replace (text, ":", "\\:", 0);
  g_string_replace (text, "'", "'\\''", 0);
  return g_strdup (text->str);
}

static void
append_zsh_action (GString *text,
                   const OptionRow *row)
{
  const PageValue value = page_get_value (row);
  g_autofree char *choices = value == PAGE_CHOICE ? join_choices (row) : NULL;

  if (value == PAGE_NO_VALUE)
    return;
  g_string_append_printf (text, ":%s:", row->metavar != NULL ? row->metavar : "value");
  if (value == PAGE_CHOICE)
    g_string_append_printf (text, "(%s)", choices);
  else if (value == PAGE_FOLDER)
    g_string_append (text, "_files -/");
  else if (value == PAGE_FOLDER_OR_GGUF)
    g_string_append (text, "_files -g \"*.gguf\"");
  else if (value == PAGE_FILE)
    g_string_append (text, "_files");
}

char *
page_write_zsh (const OptionState *options)
{
  GString *text = g_string_new (NULL);

  g_string_append_printf (text, "#compdef %s\n# Completions of %s for zsh.\n_arguments -S \\\n", options->page->name,
                          options->page->name);
  for (const OptionRow *row = options->rows; row->name != NULL; row++)
    {
      const gboolean has_value = page_get_value (row) != PAGE_NO_VALUE;
      g_autofree char *help = NULL;

      if (!page_has (options, row))
        continue;
      help = quote_zsh (option_table_describe (options, row));
      g_string_append_printf (text, "  '%s--%s%s[%s]", option_row_is_list (row) ? "*" : "", row->name,
                              has_value ? "=" : "", help);
      append_zsh_action (text, row);
      g_string_append (text, "' \\\n");
      if (row->letter == 0)
        continue;
      g_string_append_printf (text, "  '%s-%c%s[%s]", option_row_is_list (row) ? "*" : "", row->letter,
                              has_value ? "+" : "", help);
      append_zsh_action (text, row);
      g_string_append (text, "' \\\n");
    }
  g_string_append (text, options->page->arguments != NULL ? "  '*:file:_files'\n" : "  && return 0\n");
  return g_string_free (text, FALSE);
}

/* -- fish ---------------------------------------------------------------------------------------------------------- */

static char *
quote_fish (const char *help)
{
  g_autoptr (GString) text = g_string_new (help);

  g_string_replace (text, "\\", "\\\\", 0);
  g_string_replace (text, "'", "\\'", 0);
  return g_strdup (text->str);
}

char *
page_write_fish (const OptionState *options)
{
  static const char *const values[] = {
    [PAGE_NO_VALUE] = "",
    [PAGE_ANY] = " -x",
    [PAGE_CHOICE] = " -x",
    [PAGE_FILE] = " -r -F",
    [PAGE_FOLDER] = " -x",
    [PAGE_FOLDER_OR_GGUF] = " -x"
  };
  GString *text = g_string_new (NULL);

  g_string_append_printf (text, "# Completions of %s for fish.\n", options->page->name);
  for (const OptionRow *row = options->rows; row->name != NULL; row++)
    {
      const PageValue value = page_get_value (row);
      g_autofree char *choices = value == PAGE_CHOICE ? join_choices (row) : NULL;
      g_autofree char *help = NULL;

      if (!page_has (options, row))
        continue;
      help = quote_fish (option_table_describe (options, row));
      g_string_append_printf (text, "complete -c %s -l %s", options->page->name, row->name);
      if (row->letter != 0)
        g_string_append_printf (text, " -s %c", row->letter);
      g_string_append (text, values[value]);
      if (value == PAGE_CHOICE)
        g_string_append_printf (text, " -a '%s'", choices);
      else if (value == PAGE_FOLDER)
        g_string_append (text, " -a '(__fish_complete_directories)'");
      else if (value == PAGE_FOLDER_OR_GGUF)
        g_string_append (text, " -a '(__fish_complete_suffix .gguf)'");
      g_string_append_printf (text, " -d '%s'\n", help);
    }
  return g_string_free (text, FALSE);
}
