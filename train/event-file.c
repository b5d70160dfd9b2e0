/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Writes TensorBoard's event files. */
#include "train/event-file-private.h"

#include "tensor/util/file.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "events.out.tfevents."
#define SUFFIX ".ebb"
#define HEADER 12 /* bytes before a record's data: the length and its checksum */
#define FOOTER 4  /* after them: the data's checksum */
#define VERSION "brain.Event:2"

/* -- checksums ----------------------------------------------------------------------------------------------------- */

/* CRC-32C (Castagnoli, reflected). */
static guint32
get_crc (const guint8 *bytes,
         gsize n)
{
  guint32 crc = G_MAXUINT32;

  for (gsize i = 0; i < n; i++)
    {
      crc ^= bytes[i];
      for (int bit = 0; bit < 8; bit++)
        crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    }
  return ~crc;
}

/* TFRecord's: a checksum of data that holds checksums would be weak. */
static guint32
get_masked_crc (const guint8 *bytes,
                gsize n)
{
  const guint32 crc = get_crc (bytes, n);

  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* -- messages ------------------------------------------------------------------------------------------------------ */

/* Protocol buffers' wire types. */
enum
{
  VARINT = 0,
  FIXED_64 = 1,
  BYTES = 2,
  FIXED_32 = 5
};

static void
append_varint (GByteArray *message,
               guint64 value)
{
  guint8 byte;

  do
    {
      byte = (guint8) (value & 0x7f) | (value > 0x7f ? 0x80 : 0);
      g_byte_array_append (message, &byte, 1);
      value >>= 7;
    }
  while (value > 0);
}

static void
append_key (GByteArray *message,
            guint field,
            guint wire_type)
{
  append_varint (message, field << 3 | wire_type);
}

static void
append_fixed (GByteArray *message,
              guint64 bits,
              guint n_bytes)
{
  const guint64 little = GUINT64_TO_LE (bits);

  g_byte_array_append (message, (const guint8 *) &little, n_bytes);
}

static void
append_bytes (GByteArray *message,
              guint field,
              gconstpointer bytes,
              gsize n)
{
  append_key (message, field, BYTES);
  append_varint (message, n);
  g_byte_array_append (message, bytes, (guint) n);
}

/* Event: wall_time = 1, step = 2. */
static GByteArray *
begin_event (gint64 step)
{
  GByteArray *event = g_byte_array_new ();
  const double now = (double) g_get_real_time () / G_USEC_PER_SEC;
  guint64 bits;

  memcpy (&bits, &now, sizeof bits);
  append_key (event, 1, FIXED_64);
  append_fixed (event, bits, 8);
  append_key (event, 2, VARINT);
  append_varint (event, (guint64) step);
  return event;
}

/* Summary.Value: tag = 1, simple_value = 2, a float. */
static void
append_scalar (GByteArray *summary,
               const EbbEventScalar *scalar)
{
  g_autoptr (GByteArray) value = g_byte_array_new ();
  const float number = (float) scalar->value;
  guint32 bits;

  memcpy (&bits, &number, sizeof bits);
  append_bytes (value, 1, scalar->tag, strlen (scalar->tag));
  append_key (value, 2, FIXED_32);
  append_fixed (value, bits, 4);
  append_bytes (summary, 1, value->data, value->len); /* Summary: value = 1, repeated */
}

/* -- records ------------------------------------------------------------------------------------------------------- */

static gboolean
fail (const EbbEventFile *self,
      GError **error)
{
  const int number = errno;

  g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "log: can't write %s: %s", self->path, g_strerror (number));
  return FALSE;
}

static gboolean
write_record (EbbEventFile *self,
              const GByteArray *data,
              GError **error)
{
  g_autoptr (GByteArray) record = g_byte_array_new ();
  gsize written = 0;

  append_fixed (record, data->len, 8);
  append_fixed (record, get_masked_crc (record->data, 8), 4);
  g_byte_array_append (record, data->data, data->len);
  append_fixed (record, get_masked_crc (data->data, data->len), 4);
  while (written < record->len)
    {
      const gssize n = write (self->fd, record->data + written, record->len - written);

      if (n < 0 && errno != EINTR)
        return fail (self, error);
      written += (gsize) MAX (n, 0);
    }
  return TRUE;
}

gboolean
ebb_event_file_write (EbbEventFile *self,
                      gint64 step,
                      const EbbEventScalar *scalars,
                      guint n_scalars,
                      GError **error)
{
  g_autoptr (GByteArray) event = begin_event (step);
  g_autoptr (GByteArray) summary = g_byte_array_new ();

  for (guint i = 0; i < n_scalars; i++)
    append_scalar (summary, &scalars[i]);
  append_bytes (event, 5, summary->data, summary->len); /* Event: summary = 5 */
  return write_record (self, event, error);
}

/* -- opening ------------------------------------------------------------------------------------------------------- */

static guint64
read_fixed (const guint8 *bytes,
            guint n)
{
  guint64 value = 0;

  for (guint i = 0; i < n; i++)
    value |= (guint64) bytes[i] << (8 * i);
  return value;
}

/* The step of an event as begin_event () writes it; FALSE: it is another. */
static gboolean
read_step (const guint8 *event,
           gsize n,
           gint64 *step)
{
  guint64 value = 0;

  if (n < 11 || event[0] != (1 << 3 | FIXED_64) || event[9] != (2 << 3 | VARINT))
    return FALSE;
  for (gsize i = 10; i < n && i < 20; i++)
    {
      value |= (guint64) (event[i] & 0x7f) << (7 * (i - 10));
      if ((event[i] & 0x80) != 0)
        continue;
      *step = (gint64) value;
      return TRUE;
    }
  return FALSE;
}

/* How many bytes of a file are whole records of steps up to @last_step. */
static gsize
find_end (const guint8 *bytes,
          gsize n,
          gint64 last_step)
{
  gsize end = 0;

  while (n - end >= HEADER + FOOTER)
    {
      const guint8 *record = bytes + end;
      const guint64 length = read_fixed (record, 8);
      gint64 step;

      if (read_fixed (record + 8, 4) != get_masked_crc (record, 8) || length > n - end - HEADER - FOOTER
          || read_fixed (record + HEADER + length, 4) != get_masked_crc (record + HEADER, length)
          || !read_step (record + HEADER, length, &step) || step > last_step)
        break;
      end += HEADER + length + FOOTER;
    }
  return end;
}

/* The path of the first event file by its name, or of a new one if there is no other. Owned. */
static char *
find_path (const char *folder)
{
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);
  g_autofree char *found = NULL;
  const char *name;

  while (dir != NULL && (name = g_dir_read_name (dir)) != NULL)
    if (g_str_has_prefix (name, PREFIX) && g_str_has_suffix (name, SUFFIX)
        && (found == NULL || strcmp (name, found) < 0))
      {
        g_free (found);
        found = g_strdup (name);
      }
  if (found == NULL)
    found = g_strdup_printf (PREFIX "%010" G_GINT64_FORMAT ".%s" SUFFIX, g_get_real_time () / G_USEC_PER_SEC,
                             g_get_host_name ());
  return g_build_filename (folder, found, NULL);
}

/* A file begins with its version, as an event of step 0: file_version = 3. */
static gboolean
write_version (EbbEventFile *self,
               GError **error)
{
  g_autoptr (GByteArray) event = begin_event (0);

  append_bytes (event, 3, VERSION, strlen (VERSION));
  return write_record (self, event, error);
}

gboolean
ebb_event_file_open (EbbEventFile *self,
                     const char *folder,
                     gint64 last_step,
                     GError **error)
{
  g_autofree char *text = NULL;
  gsize n = 0, end;

  self->path = find_path (folder);
  self->fd = g_open (self->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (self->fd < 0)
    return fail (self, error);
  text = ebb_read_file (self->path, EBB_TRAINING_LOG_MAX_SIZE, &n, error);
  if (text == NULL)
    {
      g_prefix_error (error, "log: ");
      return FALSE;
    }
  end = find_end ((const guint8 *) text, n, last_step);
  if (end < n && ftruncate (self->fd, (off_t) end) != 0)
    return fail (self, error);
  return end > 0 || write_version (self, error);
}

void
ebb_event_file_close (EbbEventFile *self)
{
  if (self->fd >= 0)
    close (self->fd);
  self->fd = -1;
  g_clear_pointer (&self->path, g_free);
}
