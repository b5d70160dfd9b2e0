/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Lists of requests of MPI, and how they are waited for. */
#include "dist/mpi/mpi-private.h"

#include <string.h>

/* -- lists of requests --------------------------------------------------------------------------------------------- */

MPI_Request *
ebb_mpi_requests_add (EbbMpiRequests *self)
{
  if (self->n == self->n_allocated)
    {
      self->n_allocated = MAX (16, 2 * self->n_allocated);
      self->requests = g_renew (MPI_Request, self->requests, self->n_allocated);
    }
  self->requests[self->n] = MPI_REQUEST_NULL;
  return &self->requests[self->n++];
}

int *
ebb_mpi_requests_add_array (EbbMpiRequests *self,
                            guint n)
{
  int *array = g_new0 (int, n);

  if (self->arrays == NULL)
    self->arrays = g_ptr_array_new_with_free_func (g_free);
  g_ptr_array_add (self->arrays, array);
  return array;
}

void
ebb_mpi_requests_free (EbbMpiRequests *self)
{
  g_clear_pointer (&self->requests, g_free);
  g_clear_pointer (&self->arrays, g_ptr_array_unref);
}

/* -- waiting ------------------------------------------------------------------------------------------------------- */

gboolean
ebb_mpi_wait (EbbMpiGroup *self,
              EbbMpiRequests *requests,
              GError **error)
{
  double timeout = ebb_mpi_group_get_timeout (self);
  gboolean look, good;
  EbbMpiPause pause;
  int done = 0;

  ebb_mpi_pause_begin (&pause, timeout);
  for (;;)
    {
      if (!ebb_mpi_lock (error))
        return FALSE;
      good = ebb_mpi_check (MPI_Testall (requests->n, requests->requests, &done, MPI_STATUSES_IGNORE), "MPI_Testall",
                            error);
      ebb_mpi_unlock ();
      if (!good)
        return FALSE;
      if (done)
        break;
      if (!ebb_mpi_pause (&pause, &look))
        {
          g_set_error (error, EBB_MPI_ERROR, EBB_ERROR_PROCESS_GROUP,
                       "all ranks have called it, but their data didn't come within %g s", timeout);
          return FALSE;
        }
      if (look && !ebb_mpi_look (self, error))
        return FALSE;
    }
  requests->n = 0;
  if (requests->arrays != NULL)
    g_ptr_array_set_size (requests->arrays, 0);
  return TRUE;
}

gboolean
ebb_mpi_wait_one (MPI_Request *request,
                  double timeout,
                  const char *what,
                  GError **error)
{
  gboolean look, good = TRUE;
  EbbMpiPause pause;
  int done = 0;

  ebb_mpi_pause_begin (&pause, timeout);
  while (good && !done)
    {
      if (!ebb_mpi_lock (error))
        return FALSE;
      good = ebb_mpi_check (MPI_Test (request, &done, MPI_STATUS_IGNORE), what, error);
      ebb_mpi_unlock ();
      if (!good || done)
        break;
      if (!ebb_mpi_pause (&pause, &look))
        {
          g_set_error (error, EBB_MPI_ERROR, EBB_ERROR_PROCESS_GROUP, "%s: not all ranks came within %g s", what,
                       timeout);
          good = FALSE;
        }
      else if (look && !ebb_mpi_are_all_alive ())
        {
          g_set_error (error, EBB_MPI_ERROR, EBB_ERROR_PROCESS_GROUP, "%s: the process of a rank has ended", what);
          good = FALSE;
        }
    }
  if (!good)
    ebb_mpi_abandon ();
  return good;
}
