/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/fuzz.h"

#include <string.h>

/* Files of tensors: all of what is taken can be read. */

#define MAX_DATA 2000

static FuzzFile file;

/* The header of a file with up to eight tensors. */
static guint
make_header (GString *header)
{
  static const struct
  {
    const char *name;
    guint size;
  } dtypes[] = { { "F32", 4 }, { "BF16", 2 }, { "F16", 2 }, { "I32", 4 }, { "I64", 8 }, { "U8", 1 }, { "BOOL", 1 } };
  guint n_tensors = fuzz_draw (9), position = 0;

  g_string_append_c (header, '{');
  if (fuzz_draw (2))
    g_string_append (header, "\"__metadata__\":{\"format\":\"pt\"}");
  for (guint i = 0; i < n_tensors; i++)
    {
      guint dtype = fuzz_draw (G_N_ELEMENTS (dtypes)), rows = fuzz_draw (5), columns = fuzz_draw (5);
      guint size = rows * columns * dtypes[dtype].size;

      g_string_append_printf (header, "%s\"t%u\":{\"dtype\":\"%s\",\"shape\":[%u,%u],\"data_offsets\":[%u,%u]}",
                              header->len > 1 ? "," : "", i, dtypes[dtype].name, rows, columns, position,
                              position + size);
      position += size;
    }
  g_string_append_c (header, '}');
  return position;
}

static void
append_length (GString *input, guint64 length)
{
  length = GUINT64_TO_LE (length);
  g_string_append_len (input, (const char *) &length, 8);
}

static void
make_input (GString *input)
{
  g_autoptr (GString) header = g_string_new (NULL);
  guint size = make_header (header);

  if (fuzz_draw (10) > 0)
    fuzz_damage (header);
  append_length (input, fuzz_draw (50) > 0   ? header->len
                        : fuzz_draw (2) == 0 ? fuzz_draw (4096)
                                             : (guint64) 1 << fuzz_draw (64));
  g_string_append_len (input, header->str, (gssize) header->len);
  for (guint i = 0; i < MIN (size, MAX_DATA); i++)
    g_string_append_c (input, (char) fuzz_draw (2));
  if (fuzz_draw (20) == 0)
    fuzz_damage_bytes (input);
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

static gboolean
try_case (GString *input, GError **error)
{
  static volatile guint sum;
  g_autoptr (EbbArgs) tensors = NULL;
  g_autoptr (EbbArgs) metadata = NULL;

  make_input (input);
  fuzz_file_write (&file, input->str, input->len);
  tensors = ebb_load_safetensors_full (file.path, &metadata, error);
  if (tensors == NULL)
    return FALSE;
  g_assert_nonnull (metadata);
  sum += touch (tensors);
  return TRUE;
}

int
main (int argc, char **argv)
{
  int status;

  fuzz_file_open (&file);
  status = fuzz_run (argc, argv, "safetensors", 40000, try_case);
  fuzz_file_close (&file);
  return status;
}
