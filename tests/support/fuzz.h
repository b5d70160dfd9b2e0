/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Shared by the fuzzers in tests/fuzz/: random numbers that a seed repeats, damage by structure and by bytes,
 * and the program around a case. A case gives the same on each run by its seed alone. */

G_BEGIN_DECLS

/* A number from 0 to @limit - 1. */
guint32 fuzz_draw (guint32 limit);

/* Changes one thing of a valid JSON text: a value becomes another one or one of another type, a member goes, comes
 * twice or gets another name, a value is nested deeper, a number reaches its bounds, a string gets what strings should
 * not have. A text that is no JSON any more is damaged by bytes. */
void fuzz_damage_json (GString *text);
/* Changes a bit, a byte or a digit, cuts the end or a piece, or inserts a word of a file's grammar. */
void fuzz_damage_bytes (GString *bytes);
/* One to three of these: most by structure, some by bytes. */
void fuzz_damage (GString *text);

/* A file in memory that has a path. */
typedef struct
{
  int fd;
  char path[32];
} FuzzFile;

void fuzz_file_open (FuzzFile *file);
void fuzz_file_write (FuzzFile *file,
                      const void *data,
                      gsize size);
void fuzz_file_close (FuzzFile *file);

/* Tries one case, whose input goes to @input for reports: TRUE if it was taken, else FALSE with an error. */
typedef gboolean (*FuzzCase) (GString *input,
                              GError **error);

/* Runs `fuzz-NAME [SEED [CASES]]`, @n_cases unless told. A case is wrong that crashes, takes a minute, warns, or
 * refuses its input by anything but an error of EBB_ERROR in one line of UTF-8. At least one of 100 must be taken and
 * one refused, or nothing was tried. Returns the exit status. */
int fuzz_run (int argc,
              char **argv,
              const char *name,
              guint n_cases,
              FuzzCase try_case);

G_END_DECLS
