/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Reads the files that a command line names and that may be pipes, as those of <(command). */

G_BEGIN_DECLS

/* A configuration, a prompt or a list of prompts has at most this many bytes. */
#define READ_MAX_SIZE ((gsize) 256 << 20)
/* The same for JSON that stands in a model's folder, which is a regular file. */
#define READ_JSON_MAX_SIZE ((gsize) 64 << 20)

/* Reads all of a file, or of a pipe until its end; it is an error if there is more than READ_MAX_SIZE. @path: NULL is
 * standard input. @length may be NULL. A zero byte follows the text. */
char *read_file_or_pipe (const char *path,
                         gsize *length,
                         GError **error);
/* Reads at most @size bytes from the beginning of a regular file; returns their number, 0 for all else. */
gsize read_start (const char *path,
                  void *data,
                  gsize size);

G_END_DECLS
