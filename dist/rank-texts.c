/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/rank-texts-private.h"

#include <stdlib.h>
#include <string.h>

/* The lengths of all ranks' texts, [size]. */
static EbbTensor *
gather_lengths (EbbProcessGroup *group,
                const char *text,
                GError **error)
{
  const gint64 one = 1, length = (gint64) strlen (text);
  g_autoptr (EbbTensor) mine = ebb_tensor_new_empty (&one, 1, EBB_DTYPE_I64, ebb_device_get_cpu (), error);

  if (mine == NULL)
    return NULL;
  memcpy (ebb_tensor_get_data (mine, NULL), &length, sizeof length);
  return ebb_process_group_all_gather (group, mine, error);
}

static gboolean
gather_bytes (EbbProcessGroup *group,
              const char *text,
              const gint64 *lengths,
              EbbTensor *whole,
              GError **error)
{
  guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbTensor) piece =
      ebb_tensor_new_empty (&lengths[rank], 1, EBB_DTYPE_U8, ebb_device_get_cpu (), error);
  EbbCollectivePart part = { whole, piece, lengths };

  if (piece == NULL)
    return FALSE;
  if (lengths[rank] > 0)
    memcpy (ebb_tensor_get_data (piece, NULL), text, (gsize) lengths[rank]);
  return ebb_process_group_run (group, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, &part, 1, 0, NULL, error);
}

char **
ebb_rank_texts_gather (EbbProcessGroup *group,
                       const char *text,
                       GError **error)
{
  guint size = ebb_process_group_get_size (group);
  g_auto (GStrv) texts = g_new0 (char *, size + 1);
  g_autoptr (EbbTensor) lengths = NULL;
  g_autoptr (EbbTensor) whole = NULL;
  const gint64 *n;
  const char *data;
  gint64 sum = 0;

  if (size == 1)
    {
      texts[0] = g_strdup (text);
      return g_steal_pointer (&texts);
    }
  lengths = gather_lengths (group, text, error);
  if (lengths == NULL)
    return NULL;
  n = ebb_tensor_get_data (lengths, NULL);
  for (guint r = 0; r < size; r++)
    sum += n[r];
  whole = ebb_tensor_new_empty (&sum, 1, EBB_DTYPE_U8, ebb_device_get_cpu (), error);
  if (whole == NULL || (sum > 0 && !gather_bytes (group, text, n, whole, error)))
    return NULL;
  data = sum > 0 ? ebb_tensor_get_data (whole, NULL) : "";
  for (guint r = 0; r < size; r++)
    {
      texts[r] = g_strndup (data, (gsize) n[r]);
      data += n[r];
    }
  return g_steal_pointer (&texts);
}

gboolean
ebb_ranks_agree (EbbProcessGroup *group,
                 GError *failure,
                 GError **error)
{
  g_autoptr (GError) own = failure;
  g_autofree char *text = own != NULL ? g_strdup_printf ("%d %s", own->code, own->message) : g_strdup ("");
  g_auto (GStrv) texts = ebb_rank_texts_gather (group, text, error);

  if (texts == NULL)
    return FALSE;
  if (own != NULL)
    {
      g_propagate_error (error, g_steal_pointer (&own));
      return FALSE;
    }
  for (guint r = 0; texts[r] != NULL; r++)
    if (*texts[r] != '\0')
      {
        char *message;
        int code = (int) strtol (texts[r], &message, 10);

        g_set_error (error, EBB_ERROR, code, "rank %u: %s", r, g_strchug (message));
        return FALSE;
      }
  return TRUE;
}
