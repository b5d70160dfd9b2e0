/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>

/* Damages safetensors files at random and loads them: whatever happens, the reader answers with tensors that can be
 * read or with an error of one line. fuzz-safetensors [SEED [CASES]] repeats a run; a sanitizer build sees more. */

#define MAX_SIZE 4096

typedef struct
{
  guint8 bytes[MAX_SIZE];
  gsize size;
} File;

static guint64 state;

static guint32
draw (guint32 limit)
{
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (guint32) ((state >> 32) % limit);
}

static void
append (File *file, const char *text)
{
  gsize n = MIN (strlen (text), MAX_SIZE - file->size);

  memcpy (file->bytes + file->size, text, n);
  file->size += n;
}

/* A valid file with up to eight tensors. */
static void
make_file (File *file)
{
  static const struct
  {
    const char *name;
    guint size;
  } dtypes[] = { { "F32", 4 }, { "BF16", 2 }, { "F16", 2 }, { "I32", 4 }, { "I64", 8 }, { "U8", 1 }, { "BOOL", 1 } };
  g_autoptr (GString) header = g_string_new ("{");
  guint n_tensors = draw (9), position = 0;
  guint64 length;

  if (draw (2))
    g_string_append (header, "\"__metadata__\":{\"format\":\"pt\"}");
  for (guint i = 0; i < n_tensors; i++)
    {
      guint dtype = draw (G_N_ELEMENTS (dtypes)), rows = draw (5), columns = draw (5);
      guint size = rows * columns * dtypes[dtype].size;

      g_string_append_printf (header, "%s\"t%u\":{\"dtype\":\"%s\",\"shape\":[%u,%u],\"data_offsets\":[%u,%u]}",
                              header->len > 1 ? "," : "", i, dtypes[dtype].name, rows, columns, position,
                              position + size);
      position += size;
    }
  g_string_append_c (header, '}');
  file->size = 8;
  length = GUINT64_TO_LE ((guint64) header->len);
  memcpy (file->bytes, &length, 8);
  append (file, header->str);
  for (guint i = 0; i < position && file->size < MAX_SIZE; i++)
    file->bytes[file->size++] = (guint8) draw (2);
}

static void
insert (File *file, gsize place, const char *text)
{
  gsize n = strlen (text);

  if (file->size + n > MAX_SIZE)
    return;
  memmove (file->bytes + place + n, file->bytes + place, file->size - place);
  memcpy (file->bytes + place, text, n);
  file->size += n;
}

static void
damage (File *file)
{
  static const char *const words[] = { "\"t0\"",
                                       "{",
                                       "}",
                                       "[",
                                       "]",
                                       ",",
                                       ":",
                                       "\"",
                                       "\\",
                                       "\\u",
                                       "\\ud83d",
                                       "null",
                                       "-",
                                       "1e9",
                                       "0",
                                       "9223372036854775807",
                                       "18446744073709551615",
                                       "4294967296",
                                       "\"dtype\"",
                                       "\"shape\":[",
                                       "\"data_offsets\"",
                                       "\"__metadata__\":{",
                                       "F64",
                                       "\xff",
                                       "\xc3\xa9",
                                       "true",
                                       " ",
                                       "." };
  gsize place = file->size > 0 ? draw ((guint32) file->size) : 0;
  gsize n;
  guint64 length;

  switch (draw (8))
    {
    case 0: /* a bit */
    case 1:
      if (file->size > 0)
        file->bytes[place] ^= (guint8) (1 << draw (8));
      break;
    case 2: /* a byte */
      if (file->size > 0)
        file->bytes[place] = (guint8) draw (256);
      break;
    case 3: /* the end cut off */
      file->size = place;
      break;
    case 4: /* a piece cut out */
      n = draw (16) + 1;
      n = MIN (n, file->size - place);
      memmove (file->bytes + place, file->bytes + place + n, file->size - place - n);
      file->size -= n;
      break;
    case 5: /* another length of the header */
      length = draw (2) ? (guint64) draw (2 * MAX_SIZE) : (guint64) 1 << draw (64);
      length = GUINT64_TO_LE (length);
      memcpy (file->bytes, &length, MIN (8, file->size));
      break;
    case 6: /* a digit */
      for (gsize i = place; i < file->size; i++)
        if (g_ascii_isdigit ((char) file->bytes[i]))
          {
            file->bytes[i] = (guint8) ('0' + draw (10));
            break;
          }
      break;
    default:
      insert (file, place, words[draw (G_N_ELEMENTS (words))]);
    }
}

/* Reads every byte, so that a tensor which reaches too far is seen. */
static guint
touch (EbbArgs *tensors)
{
  guint sum = 0;

  for (guint i = 0; i < ebb_args_get_length (tensors); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (tensors, i);
      gsize size = ebb_tensor_get_n_bytes (tensor);
      const guint8 *data = size > 0 ? ebb_tensor_get_data (tensor, NULL) : NULL;

      for (gsize b = 0; b < size; b++)
        sum += data[b];
    }
  return sum;
}

static void
write_file (const File *file, const char *path)
{
  FILE *stream = fopen (path, "wb");

  if (stream == NULL || fwrite (file->bytes, 1, file->size, stream) != file->size || fclose (stream) != 0)
    g_error ("%s can't be written", path);
}

static gboolean
try_file (const File *file, const char *path, guint *n_loaded)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) tensors = NULL;
  g_autoptr (EbbArgs) metadata = NULL;

  write_file (file, path);
  tensors = ebb_load_safetensors_full (path, &metadata, &error);
  if (tensors != NULL)
    {
      touch (tensors);
      (*n_loaded)++;
      return error == NULL && metadata != NULL;
    }
  return error != NULL && error->domain == EBB_ERROR && metadata == NULL && strchr (error->message, '\n') == NULL
         && g_utf8_validate (error->message, -1, NULL) && strlen (error->message) < 2000;
}

int
main (int argc, char **argv)
{
  guint64 seed = argc > 1 ? g_ascii_strtoull (argv[1], NULL, 10) : 1;
  guint n_cases = argc > 2 ? (guint) g_ascii_strtoull (argv[2], NULL, 10) : 4000, n_loaded = 0;
  g_autofree char *folder = g_dir_make_tmp ("ebb-fuzz-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, "x.safetensors", NULL);
  int status = 0;

  for (guint i = 0; i < n_cases && status == 0; i++)
    {
      File file;

      state = (seed + i) * G_GUINT64_CONSTANT (0x9e3779b97f4a7c15) | 1;
      draw (2);
      make_file (&file);
      for (guint n = i % 10 == 0 ? 0 : draw (4) + 1; n > 0; n--)
        damage (&file);
      if (!try_file (&file, path, &n_loaded))
        {
          g_printerr ("fuzz: seed %" G_GUINT64_FORMAT ": a wrong answer; the file is %s\n", seed + i, path);
          status = 1;
        }
    }
  g_print ("%u cases from seed %" G_GUINT64_FORMAT ", %u files loaded\n", n_cases, seed, n_loaded);
  /* Undamaged files are among them, or nothing was tried. */
  if (n_loaded < n_cases / 10)
    status = 1;
  if (status == 0)
    {
      g_remove (path);
      g_rmdir (folder);
    }
  return status;
}
