/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/file-private.h"

#include "nn/args-private.h"
#include "nn/files/json-scanner-private.h"
#include "nn/files/safetensors.h"
#include "nn/files/state-tree-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/tensor-private.h"

#include <string.h>

#define SUM_KEY "sums of " /* and the tensor's name, in the metadata: 16 hexadecimal digits for each block */
#define SUM_DIGITS 16

/* -- writing ------------------------------------------------------------------------------------------------------- */

static gboolean
add_sums (EbbArgs *metadata,
          const char *name,
          EbbTensor *tensor,
          GError **error)
{
  g_autofree char *key = g_strconcat (SUM_KEY, name, NULL);
  g_autoptr (GString) sums = g_string_new (NULL);
  g_autoptr (EbbTensor) contiguous = ebb_contiguous (tensor, error);
  g_autoptr (EbbTensor) host = ebb_to_device (contiguous, ebb_device_get_cpu (), error);
  gint64 size = host != NULL ? (gint64) ebb_tensor_get_n_bytes (host) : 0;
  const guint8 *data = size > 0 ? ebb_tensor_get_data (host, error) : NULL;

  if (host == NULL || (size > 0 && data == NULL))
    return FALSE;
  for (gint64 at = 0; at < size; at += EBB_SHARD_FILE_BLOCK)
    g_string_append_printf (sums, "%016" G_GINT64_MODIFIER "x",
                            ebb_state_checksum_tensor (data + at, (gsize) MIN (EBB_SHARD_FILE_BLOCK, size - at),
                                                       host->view.dtype, host->view.shape,
                                                       (guint) host->view.n_dims));
  ebb_args_add_string (metadata, key, sums->str);
  return TRUE;
}

gboolean
ebb_shard_file_write (const char *path,
                      EbbArgs *tensors,
                      GError **error)
{
  g_autoptr (EbbArgs) metadata = ebb_args_new (EBB_ARGS_DICT);
  gboolean ok = TRUE;

  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; ok && i < ebb_args_get_length (tensors); i++)
    ok = add_sums (metadata, ebb_args_get_key (tensors, i), ebb_args_peek_tensor (tensors, i), error);
  ebb_pop_grad_enabled ();
  return ok && ebb_save_safetensors (path, tensors, metadata, error);
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

static gboolean
fail (EbbSafetensorsReader *file,
      const char *name,
      const char *problem,
      GError **error)
{
  g_autofree char *quoted = ebb_json_quote (name);
  g_autofree char *shown = ebb_escape_text (file->path);

  g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: tensor %s %s", shown, quoted, problem);
  return FALSE;
}

const EbbSafetensorsEntry *
ebb_shard_file_find (EbbSafetensorsReader *file,
                     const char *name,
                     int dtype,
                     gint64 n_elements,
                     GError **error)
{
  const EbbSafetensorsEntry *entry = ebb_safetensors_reader_find (file, name);

  if (entry == NULL)
    fail (file, name, "is missing, though the index says that it is there", error);
  else if ((dtype >= 0 && (int) entry->dtype != dtype)
           || entry->end - entry->begin != n_elements * (gint64) ebb_dtype_get_size (entry->dtype))
    fail (file, name, "has another dtype or number of elements than the index says", error);
  else
    return entry;
  return NULL;
}

/* The checksums of all blocks, as text of the right length. */
static const char *
find_sums (EbbSafetensorsReader *file,
           const EbbSafetensorsEntry *entry,
           GError **error)
{
  g_autofree char *key = g_strconcat (SUM_KEY, entry->name, NULL);
  int index = ebb_args_find (file->header.metadata, key);
  const char *sums = index >= 0 ? ebb_args_get_string (file->header.metadata, (guint) index) : NULL;
  gint64 n_blocks = (entry->end - entry->begin + EBB_SHARD_FILE_BLOCK - 1) / EBB_SHARD_FILE_BLOCK;

  if (sums != NULL && (gint64) strlen (sums) == n_blocks * SUM_DIGITS)
    return sums;
  fail (file, entry->name, "has no checksums", error);
  return NULL;
}

static gboolean
check_block (EbbSafetensorsReader *file,
             const EbbSafetensorsEntry *entry,
             const char *sum,
             const guint8 *data,
             gsize size,
             GError **error)
{
  char expected[SUM_DIGITS + 1];

  for (gsize i = 0; entry->dtype == EBB_DTYPE_BOOL && i < size; i++)
    if (data[i] > 1)
      return fail (file, entry->name, "is BOOL and has a byte other than 0 and 1", error);
  g_snprintf (expected, sizeof expected, "%016" G_GINT64_MODIFIER "x",
              ebb_state_checksum_tensor (data, size, entry->dtype, entry->shape, entry->n_dims));
  return memcmp (expected, sum, SUM_DIGITS) == 0
         || fail (file, entry->name, "has another checksum than was written: the file is damaged", error);
}

gboolean
ebb_shard_file_read (EbbSafetensorsReader *file,
                     const EbbSafetensorsEntry *entry,
                     gint64 begin,
                     gint64 end,
                     void *data,
                     GError **error)
{
  const gint64 element = (gint64) ebb_dtype_get_size (entry->dtype), n_bytes = entry->end - entry->begin;
  const gint64 from = begin * element, to = end * element;
  const char *sums = find_sums (file, entry, error);
  g_autofree guint8 *scratch = NULL;

  if (sums == NULL)
    return FALSE;
  for (gint64 at = from - from % EBB_SHARD_FILE_BLOCK; at < to; at += EBB_SHARD_FILE_BLOCK)
    {
      gint64 size = MIN (EBB_SHARD_FILE_BLOCK, n_bytes - at), first = MAX (from, at), last = MIN (to, at + size);
      gboolean direct = data != NULL && first == at && last == at + size;
      guint8 *target = (guint8 *) data + (direct ? at - from : 0);

      if (!direct && scratch == NULL)
        scratch = g_malloc ((gsize) MIN (EBB_SHARD_FILE_BLOCK, n_bytes));
      if (!direct)
        target = scratch;
      if (!ebb_safetensors_reader_read (file, entry, at, at + size, target, error)
          || !check_block (file, entry, sums + at / EBB_SHARD_FILE_BLOCK * SUM_DIGITS, target, (gsize) size, error))
        return FALSE;
      if (!direct && data != NULL)
        memcpy ((guint8 *) data + (first - from), scratch + (first - at), (gsize) (last - first));
    }
  return TRUE;
}
