/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The command lines of all example programs: name, --help, --version, sizes, devices, terminals, exit. */
#include "common/command.h"

#include <ebb/ebb.h>

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define BOLD "\033[1m"
#define RED "\033[1;31m"
#define PLAIN "\033[0m"
#define MAPPED_FROM (1 << 20)
#define FALLBACK_COLUMNS 80
#define LEAST_COLUMNS 40 /* of the help */
#define MOST_COLUMNS 100
#define WIDEST_OPTION 34 /* columns; the description of a wider option begins on the next line */

/* Between parallel regions libgomp's threads spin, by default for milliseconds, and take the core from other processes
 * for that time. FALSE: nothing is to be changed. */
static gboolean
limit_spinning (void)
{
  return g_getenv ("OMP_WAIT_POLICY") == NULL && g_getenv ("GOMP_SPINCOUNT") == NULL
         && g_setenv ("GOMP_SPINCOUNT", "1000", TRUE);
}

#ifdef __GLIBC__
#define CACHES "glibc.malloc.tcache_count"

/* oneDNN's products take aligned buffers of about a MiB from malloc on each thread. The small rests that glibc cuts off
 * them would stay in the thread's cache and keep buffers from being merged when they are freed: an arena grew to 11 MiB
 * for one buffer in use. */
static gboolean
drop_thread_caches (void)
{
  const char *others = g_getenv ("GLIBC_TUNABLES");
  g_autofree char *all = NULL;

  if (others != NULL && strstr (others, CACHES) != NULL)
    return FALSE;
  all = g_strconcat (others != NULL ? others : "", others != NULL ? ":" : "", CACHES "=0", NULL);
  return g_setenv ("GLIBC_TUNABLES", all, TRUE);
}

/* Larger buffers are mappings of their own, which are gone when the product is done. */
static void
map_large_buffers (void)
{
  mallopt (M_MMAP_THRESHOLD, MAPPED_FROM);
  mallopt (M_TRIM_THRESHOLD, 2 * MAPPED_FROM); /* which no longer follows the sizes of mappings */
}
#endif

/* libgomp and glibc read these settings when they are loaded, which is before main (). A program that the dynamic
 * linker was started with as an argument has no path of its own to start again, and no AT_BASE. */
static void
start_with_settings (char **argv)
{
  g_autofree char *path = getauxval (AT_BASE) != 0 ? g_file_read_link ("/proc/self/exe", NULL) : NULL;
  gboolean has_changed;

  if (path == NULL)
    return;
  has_changed = limit_spinning ();
#ifdef __GLIBC__
  has_changed |= drop_thread_caches ();
#endif
  if (has_changed)
    execv (path, argv); /* if this fails the program runs with the defaults */
}

/* A file that a program opens must not become its standard output, where that is closed: what it prints would stand in
 * the file. Printing fails instead. */
static void
open_standard (void)
{
  int fd;

  do
    fd = open ("/dev/null", O_RDONLY);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0)
    close (fd);
}

void
command_init (char **argv)
{
  g_autofree char *name = g_path_get_basename (argv[0] != NULL ? argv[0] : "ebb");

  open_standard ();
  start_with_settings (argv);
#ifdef __GLIBC__
  map_large_buffers ();
#endif
  setlocale (LC_CTYPE, "");
  g_set_prgname (name);
}

/* -- terminals ----------------------------------------------------------------------------------------------------- */

gboolean
command_is_terminal (int fd)
{
  return isatty (fd) && g_strcmp0 (g_getenv ("TERM"), "dumb") != 0;
}

guint
command_get_columns (int fd,
                     guint fallback)
{
  struct winsize size;

  return ioctl (fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : fallback;
}

gboolean
command_has_colours (int fd)
{
  const char *no_colour = g_getenv ("NO_COLOR");

  return command_is_terminal (fd) && command_get_columns (fd, 0) > 0 && (no_colour == NULL || *no_colour == '\0');
}

/* -- help ---------------------------------------------------------------------------------------------------------- */

/* Appends @text word by word; the line holds @indent columns already, and further lines begin with as many spaces. */
static void
append_wrapped (GString *help,
                const char *text,
                glong indent,
                glong columns)
{
  g_auto (GStrv) words = g_strsplit (text, " ", -1);
  glong column = indent;

  for (guint i = 0; words[i] != NULL; i++)
    {
      const glong width = g_utf8_strlen (words[i], -1);

      if (column > indent && column + 1 + width > columns)
        {
          g_string_append_printf (help, "\n%*s", (int) indent, "");
          column = indent;
        }
      else if (i > 0)
        {
          g_string_append_c (help, ' ');
          column++;
        }
      g_string_append (help, words[i]);
      column += width;
    }
  g_string_append_c (help, '\n');
}

static void
append_line (GString *help,
             const char *line,
             glong columns,
             gboolean has_colours)
{
  const char *text = line + strspn (line, " ");
  const char *gap = *text == '-' ? strstr (text, "  ") : NULL;
  glong indent = text - line;

  if (has_colours && indent == 0 && g_str_has_suffix (line, ":")) /* the title of a group */
    {
      g_string_append_printf (help, BOLD "%s" PLAIN "\n", line);
      return;
    }
  if (gap != NULL) /* an option and its description */
    {
      text = gap + strspn (gap, " ");
      indent = MIN (g_utf8_strlen (line, text - line), MIN (WIDEST_OPTION, columns / 2));
      if (g_utf8_strlen (line, gap - line) + 2 > indent)
        g_string_append_printf (help, "%.*s\n%*s", (int) (gap - line), line, (int) indent, "");
      else
        g_string_append_printf (help, "%.*s%*s", (int) (gap - line), line,
                                (int) (indent - g_utf8_strlen (line, gap - line)), "");
    }
  else
    g_string_append_printf (help, "%*s", (int) indent, "");
  append_wrapped (help, text, indent, columns);
}

char *
command_get_help (GOptionContext *context)
{
  g_autofree char *unwrapped = g_option_context_get_help (context, FALSE, NULL);
  g_auto (GStrv) lines = g_strsplit (g_strchomp (unwrapped), "\n", -1);
  const glong columns = CLAMP (command_get_columns (STDOUT_FILENO, FALLBACK_COLUMNS), LEAST_COLUMNS, MOST_COLUMNS);
  GString *help = g_string_new (NULL);

  for (guint i = 0; lines[i] != NULL; i++)
    append_line (help, lines[i], columns, command_has_colours (STDOUT_FILENO));
  return g_string_free (help, FALSE);
}

void
command_print_version (void)
{
  printf ("%s (Ebb) %s\n", g_get_prgname (), ebb_get_version_string ());
}

/* -- failures ------------------------------------------------------------------------------------------------------ */

int
command_fail (int status,
              const char *message)
{
  g_autofree char *line = g_strdup (message);

  g_strdelimit (line, "\r\n", ' ');
  fflush (stdout); /* what was printed before comes first */
  fprintf (stderr, command_has_colours (STDERR_FILENO) ? RED "%s:" PLAIN " %s\n" : "%s: %s\n", g_get_prgname (), line);
  return status;
}

int
command_finish (int status)
{
  g_autofree char *message = NULL;

  errno = 0;
  if (fflush (stdout) == 0 && !ferror (stdout))
    return status;
  if (errno == 0 && putchar ('\n') != EOF) /* an earlier write has failed: another one says why */
    fflush (stdout);
  message =
      g_strdup_printf ("can't write to standard output: %s", errno != 0 ? g_strerror (errno) : "a part is missing");
  return command_fail (MAX (status, 1), message);
}

gboolean
command_parse_size (const char *option,
                    const char *value,
                    guint64 *n_bytes,
                    GError **error)
{
  g_autoptr (GError) failure = NULL;

  if (ebb_memory_parse_size (value, n_bytes, &failure))
    return TRUE;
  g_set_error (error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE, "--%s %s: %s", option, value, failure->message);
  return FALSE;
}
