/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The text that the model reads: one token a byte. */
#include "text.h"

static const char own[] =
    "At high water the channels are one sheet, and a boat can cross anywhere. Six hours later the same water is gone "
    "and the way is found again by its banks: what was covered has not moved, it only was not seen. Nobody carries "
    "the sea out and back. It leaves, and what is needed of it returns in time for the next boat, to the inch, "
    "because the same moon draws it over the same ground.\n";

gboolean
text_init (Text *self,
           const Options *options,
           GError **error)
{
  *self = (Text){ 0 };
  if (options->data == NULL)
    {
      self->bytes = g_strdup (own);
      self->length = sizeof own - 1;
      return TRUE;
    }
  if (g_file_test (options->data, G_FILE_TEST_EXISTS) && !g_file_test (options->data, G_FILE_TEST_IS_REGULAR))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "--data %s: it is not a regular file", options->data);
      return FALSE;
    }
  if (!g_file_get_contents (options->data, &self->bytes, &self->length, error))
    {
      g_prefix_error (error, "--data %s: ", options->data);
      return FALSE;
    }
  if (self->length > 0)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "--data %s: there is nothing in it", options->data);
  return FALSE;
}

void
text_clear (Text *self)
{
  g_clear_pointer (&self->bytes, g_free);
}

static EbbTensor *
make (const Text *self,
      const Options *options,
      gsize first,
      int rows,
      EbbDevice *device,
      GError **error)
{
  const gint64 shape[] = { rows, options->sequence };
  const gsize n = (gsize) rows * (gsize) options->sequence;
  g_autofree gint64 *values = g_new (gint64, n);
  g_autoptr (EbbTensor) host = NULL;

  for (gsize i = 0; i < n; i++)
    values[i] = (guchar) self->bytes[(first + i) % self->length];
  host = ebb_tensor_new_from_ints (values, n, shape, G_N_ELEMENTS (shape), error);
  return ebb_to_device (host, device, error);
}

gboolean
text_get_batch (const Text *self,
                const Options *options,
                int step,
                int rows,
                EbbDevice *device,
                EbbTensor **tokens,
                EbbTensor **targets,
                GError **error)
{
  const gsize first = (gsize) step * (gsize) options->batch * (gsize) options->sequence;

  *tokens = make (self, options, first, rows, device, error);
  *targets = make (self, options, first + 1, rows, device, error);
  return *tokens != NULL && *targets != NULL;
}
