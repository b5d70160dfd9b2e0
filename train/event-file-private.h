/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error.h"

/* TensorBoard's event files: numbers by name and step. A file is a sequence of records, each with its length, its bytes
 * and checksums of both (TFRecord); the bytes are an Event message of TensorFlow's event.proto. */

G_BEGIN_DECLS

/* A file of a log has at most this many bytes: millions of steps. */
#define EBB_TRAINING_LOG_MAX_SIZE ((gsize) 1 << 30)

typedef struct
{
  int fd; /* -1: it is closed */
  char *path;
} EbbEventFile;

/* Opens the file that Ebb has in @folder, or makes one. Of one that is there, what comes after step
 * @last_step goes, a record that a killed program left unfinished too; below 0 all of it goes. */
gboolean ebb_event_file_open (EbbEventFile *self,
                              const char *folder,
                              gint64 last_step,
                              GError **error);
void ebb_event_file_close (EbbEventFile *self);

typedef struct
{
  const char *tag;
  double value;
} EbbEventScalar;

/* Appends numbers of one step, as one record. */
gboolean ebb_event_file_write (EbbEventFile *self,
                               gint64 step,
                               const EbbEventScalar *scalars,
                               guint n_scalars,
                               GError **error);

G_END_DECLS
