/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "pages.h"

#include <ebb/ebb.h>

#include <glib/gstdio.h>
#include <string.h>

/* Writes the man page of the program whose page.c it is linked with, and its completions for bash, zsh and fish, below
 * the folder that is its argument. The build runs it; it is not installed. */

gboolean
page_has (const OptionState *options,
          const OptionRow *row)
{
  return row->kind != OPTION_GROUP && !options->absent[row - options->rows];
}

PageValue
page_get_value (const OptionRow *row)
{
  if (row->kind == OPTION_FLAG || row->kind == OPTION_NO_FLAG)
    return PAGE_NO_VALUE;
  if (row->names != NULL || row->kind == OPTION_DEVICE)
    return PAGE_CHOICE;
  if (row->takes_gguf)
    return PAGE_FOLDER_OR_GGUF;
  if (row->metavar != NULL && strstr (row->metavar, "FILE") == NULL
      && (strstr (row->metavar, "DIR") != NULL || strstr (row->metavar, "FOLDER") != NULL))
    return PAGE_FOLDER;
  if (row->kind == OPTION_PATH || row->kind == OPTION_PATHS)
    return PAGE_FILE;
  return PAGE_ANY;
}

char **
page_list_choices (const OptionRow *row)
{
  return row->kind == OPTION_DEVICE ? ebb_list_device_kinds () : g_strdupv ((char **) row->names);
}

static gboolean
write_text (const char *folder,
            const char *below,
            const char *name,
            const char *text,
            GError **error)
{
  g_autofree char *parent = g_build_filename (folder, below, NULL);
  g_autofree char *path = g_build_filename (parent, name, NULL);

  if (g_mkdir_with_parents (parent, 0777) == 0)
    return g_file_set_contents (path, text, -1, error);
  g_set_error (error, G_FILE_ERROR, G_FILE_ERROR_FAILED, "%s: the folder can't be made", parent);
  return FALSE;
}

static gboolean
write_all (const OptionState *options,
           const char *folder,
           GError **error)
{
  const char *name = options->page->name;
  const struct
  {
    char *(*write) (const OptionState *options);
    const char *below, *format;
  } files[] = {
    { page_write_man, "man", "%s.1" },
    { page_write_bash, "bash", "%s" },
    { page_write_zsh, "zsh", "_%s" },
    { page_write_fish, "fish", "%s.fish" },
  };
  gboolean ok = TRUE;

  for (guint i = 0; i < G_N_ELEMENTS (files) && ok; i++)
    {
      g_autoptr (GString) file = g_string_new (files[i].format);
      g_autofree char *text = files[i].write (options);

      g_string_replace (file, "%s", name, 1);
      ok = write_text (folder, files[i].below, file->str, text, error);
    }
  return ok;
}

/* The options begin the struct of a program's options, whose size is known to the program alone. */
typedef struct
{
  OptionState state;
  char rest[8192];
} Options;

int
main (int argc,
      char **argv)
{
  Options options = { .rest = { 0 } };
  g_autoptr (GError) error = NULL;
  gboolean ok;

  if (argc != 2)
    {
      g_printerr ("usage: %s FOLDER\n", argv[0]);
      return 2;
    }
  for (const OptionRow *row = program_page.rows; row->name != NULL; row++)
    g_assert_cmpuint (row->place + sizeof (gpointer), <=, sizeof options);
  option_table_init (&options.state, &program_page);
  ok = write_all (&options.state, argv[1], &error);
  option_table_clear (&options.state);
  if (!ok)
    g_printerr ("%s: %s\n", argv[0], error->message);
  return ok ? 0 : 1;
}
