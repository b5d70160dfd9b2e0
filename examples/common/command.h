/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* The command lines of all example programs: their name, --help, --version, sizes, terminals. */

G_BEGIN_DECLS

/* Call it first: sets the locale and the program's name, g_get_prgname (), to the name it was started with. Unless the
 * environment already says so, it sets how long threads spin (GOMP_SPINCOUNT) and that malloc keeps no caches of
 * threads (GLIBC_TUNABLES), and starts the program again. */
void command_init (char **argv);

/* Whether @fd is a terminal on which a line can be written again. */
gboolean command_is_terminal (int fd);
/* Whether text on @fd has colours: on a terminal, unless TERM is dumb or NO_COLOR is set. */
gboolean command_has_colours (int fd);
/* The width of the terminal @fd. @fallback if @fd is no terminal or has no size: mpirun gives its ranks terminals of
 * size 0, even if its own output is a file. */
guint command_get_columns (int fd,
                           guint fallback);

/* The help text of @context, in lines that fit standard output, in colours where it has them. */
char *command_get_help (GOptionContext *context);
void command_print_version (void);

/* Prints "PROGRAM: MESSAGE" on standard error after what was printed before; returns @status. */
int command_fail (int status,
                  const char *message);
/* Flushes standard output; returns @status, or 1 in place of 0 if standard output can't be written. */
int command_finish (int status);

/* Reads the size, such as 1.5GiB, that was given as --@option @value. */
gboolean command_parse_size (const char *option,
                             const char *value,
                             guint64 *n_bytes,
                             GError **error);

G_END_DECLS
