/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* The command lines of all example programs: their name, --help, --version, sizes. */

G_BEGIN_DECLS

#define COMMAND_COLUMNS 80

/* Call it first: sets the locale and the program's name, g_get_prgname (), to the name it was started with. Where
 * neither OMP_WAIT_POLICY nor GOMP_SPINCOUNT is set it sets GOMP_SPINCOUNT and starts the program again. */
void command_init (char **argv);

/* The entries --version and --help, for the last group of a @context whose own help is off. */
#define COMMAND_ENTRIES(version, help)                                          \
  { "version", 0, 0, G_OPTION_ARG_NONE, (version), "Print the version", NULL }, \
  {                                                                             \
    "help", 'h', 0, G_OPTION_ARG_NONE, (help), "Print this help", NULL          \
  }

/* The help text of @context in lines of at most COMMAND_COLUMNS columns. */
char *command_get_help (GOptionContext *context);
void command_print_version (void);

/* Prints "PROGRAM: MESSAGE" on standard error after what was printed before; returns @status. */
int command_fail (int status,
                  const char *message);
/* The same for a wrong command line: points to --help and returns 2. */
int command_fail_usage (const char *message);
/* Flushes standard output; returns @status, or 1 if standard output can't be written. */
int command_finish (int status);

/* Reads the size, such as 1.5GiB, that was given as --@option @value. */
gboolean command_parse_size (const char *option,
                             const char *value,
                             guint64 *n_bytes,
                             GError **error);

/* "Device to train on: cpu, sim (DEFAULT)": @text, the available kinds of devices and the default. Owned by the
 * program. */
const char *command_describe_devices (const char *text,
                                      const char *default_name);

G_END_DECLS
