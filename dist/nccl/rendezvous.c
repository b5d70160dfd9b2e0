/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/nccl/nccl-private.h"

/* Who this process is among the others, and how they find each other. */

static gboolean
find_ranks (EbbNcclPlace *place,
            GError **error)
{
  if (ebb_nccl_host->count_mpi_processes () > 0)
    {
      place->mpi = ebb_nccl_host->load ("mpi", error);
      if (place->mpi == NULL)
        return FALSE;
      place->rank = ebb_nccl_host->get_rank (place->mpi);
      place->size = ebb_nccl_host->get_size (place->mpi);
      return TRUE;
    }
  return ebb_nccl_host->find_rank (&place->rank, &place->size, error);
}

gboolean
ebb_nccl_find_place (EbbNcclPlace *place,
                     GError **error)
{
  static const char *const variables[] = { "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                           "SLURM_LOCALID" };

  *place = (EbbNcclPlace){ 0 };
  if (!find_ranks (place, error))
    return FALSE;
  place->local_rank = place->rank;
  for (guint i = 0; i < G_N_ELEMENTS (variables); i++)
    {
      const char *text = g_getenv (variables[i]);
      guint64 value;

      if (text != NULL && g_ascii_string_to_unsigned (text, 10, 0, G_MAXINT, &value, NULL))
        {
          place->local_rank = (guint) value;
          break;
        }
    }
  return TRUE;
}

static gboolean
spread_over_mpi (const EbbNcclPlace *place,
                 void *data,
                 gsize size,
                 GError **error)
{
  const EbbProcessGroupFuncs *funcs = ((EbbProcessGroupClass *) G_OBJECT_GET_CLASS (place->mpi))->funcs;
  g_autofree gint64 *counts = g_new0 (gint64, place->size);
  g_autofree gint64 *starts = g_new0 (gint64, place->size + 1);
  const gint64 length = (gint64) size;
  const EbbCollectiveBuffer buffer = { .dtype = EBB_DTYPE_U8,
                                       .full = data,
                                       .n_elements = length,
                                       .counts = counts,
                                       .starts = starts,
                                       .shape = { length },
                                       .n_dims = 1 };
  const EbbCollectiveCall call = { .which = EBB_COLLECTIVE_BROADCAST,
                                   .sequence = 1,
                                   .signature = size,
                                   .n_parts = 1,
                                   .parts = &buffer };

  return funcs->run (place->mpi, &call, error);
}

gboolean
ebb_nccl_spread (const EbbNcclPlace *place,
                 void *data,
                 gsize size,
                 double timeout,
                 GError **error)
{
  if (place->size == 1)
    return TRUE;
  return place->mpi != NULL ? spread_over_mpi (place, data, size, error)
                            : ebb_nccl_host->spread (place->rank, place->size, data, size, timeout, error);
}
