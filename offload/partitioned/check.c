/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/partitioned/block-private.h"

#include "dist/agree-private.h"
#include "tensor/util/checksum-private.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

#include <string.h>

/* Whether ranks keep pieces of the same. */

/* A power of two. Few, since they are kept behind each shard. */
#define N_SAMPLED 32

char *
ebb_partition_describe (EbbTensor *tensor)
{
  g_autofree char *shape = ebb_tensor_shape_to_string (tensor);

  return g_strdup_printf ("%s %s, kept by %s", ebb_dtype_get_name (tensor->view.dtype), shape,
                          ebb_modes.saving != NULL ? ebb_modes.saving->name : "a store");
}

/* -- samples ------------------------------------------------------------------------------------------------------- */

/* The dimension in which samples lie furthest apart; -1: each element is one. */
static int
find_widest (const EbbView *view,
             const EbbView *sample)
{
  int widest = -1;

  for (int d = 0; d < view->n_dims; d++)
    if (view->strides[d] != 0 && view->shape[d] >= 2 * sample->shape[d]
        && (widest < 0
            || view->shape[d] / sample->shape[d] > view->shape[widest] / sample->shape[widest]))
      widest = d;
  return widest;
}

void
ebb_partition_sample (const EbbView *view,
                      EbbView *sample)
{
  const gint64 size = (gint64) ebb_dtype_get_size (view->dtype);
  int d;

  *sample = *view;
  for (d = 0; d < view->n_dims; d++)
    sample->shape[d] = 1;
  for (gint64 n = 1; n < N_SAMPLED && (d = find_widest (view, sample)) >= 0; n *= 2)
    sample->shape[d] *= 2;
  for (d = 0; d < view->n_dims; d++)
    {
      const gint64 step = view->shape[d] / sample->shape[d];

      sample->strides[d] = view->strides[d] * step;
      sample->data = (char *) sample->data + view->strides[d] * (step / 2) * size;
    }
}

/* "1", "1 and 3", "1, 2 and 3" */
static char *
join_ranks (const GArray *ranks)
{
  GString *text = g_string_new (NULL);

  for (guint i = 0; i < ranks->len; i++)
    g_string_append_printf (text, "%s%u", i == 0 ? "" : i + 1 == ranks->len ? " and "
                                                                            : ", ",
                            g_array_index (ranks, guint, i));
  return g_string_free (text, FALSE);
}

gboolean
ebb_partition_compare_samples (EbbTensor *samples,
                               guint n_ranks,
                               const char *what,
                               GError **error)
{
  const gsize size = ebb_tensor_get_n_bytes (samples) / n_ranks;
  g_autoptr (GArray) others = g_array_new (FALSE, FALSE, sizeof (guint));
  g_autofree char *copy = NULL;
  g_autofree char *names = NULL;
  const char *bytes;

  if (ebb_is_dry ())
    return TRUE;
  bytes = ebb_agree_read (samples, &copy, error);
  if (bytes == NULL)
    return FALSE;
  for (guint r = 1; r < n_ranks; r++)
    if (memcmp (bytes, bytes + r * size, size) != 0)
      g_array_append_val (others, r);
  if (others->len == 0)
    return TRUE;
  names = join_ranks (others);
  return ebb_fail (
      error, EBB_ERROR_PROCESS_GROUP,
      "%s: rank%s %s put other values into the EbbPartitionedStore than rank 0: a tensor must be the same on "
      "all ranks of its group (leave out others by a filter), and ranks must drop the same graphs",
      what, others->len == 1 ? "" : "s", names);
}

/* -- all values ---------------------------------------------------------------------------------------------------- */

/* A rank that can't compute its checksum sends the reason: it still has to take part. */
static char *
sum_up (EbbTensor *tensor)
{
  g_autoptr (GError) error = NULL;
  guint64 checksum;

  if (!ebb_agree_checksum (tensor, &checksum, &error))
    return g_strdup (error->message);
  return g_strdup_printf ("values of checksum %016" G_GINT64_MODIFIER "x", checksum);
}

gboolean
ebb_partition_compare_values (EbbProcessGroup *group,
                              EbbTensor *tensor,
                              GError **error)
{
  g_autofree char *what = ebb_partition_describe (tensor);
  g_autofree char *text = ebb_is_dry () ? g_strdup ("of a dry run") : sum_up (tensor);
  g_autofree char *mine = g_strdup_printf ("%s: %s", what, text);

  return ebb_agree_same_text (group, "what an EbbPartitionedStore keeps", mine, error);
}
