/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The data of collectives over MPI. MPI moves it; reductions are computed here, in the order of the ranks, since MPI
 * promises no order and has no 16-bit floats. A reduction is an exchange, which gives each rank all versions of its own
 * shard, and for an all_reduce a gather; both send as little as possible. */
#include "dist/mpi/mpi-private.h"

#include <string.h>

/* Bytes of all versions of one shard: larger shards go in chunks, one being sent while another is reduced. */
#define ROWS_SIZE ((gsize) 4 << 20)
/* If all ranks' versions of a tensor are smaller together, every rank sends its version to all. */
#define SMALL_SIZE ((gsize) 32 << 10)

/* -- lists of requests --------------------------------------------------------------------------------------------- */

static MPI_Request *
requests_add (EbbMpiRequests *self)
{
  if (self->n == self->n_allocated)
    {
      self->n_allocated = MAX (16, 2 * self->n_allocated);
      self->requests = g_renew (MPI_Request, self->requests, self->n_allocated);
    }
  self->requests[self->n] = MPI_REQUEST_NULL;
  return &self->requests[self->n++];
}

static int *
requests_add_array (EbbMpiRequests *self,
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

/* Waits until all are done, and empties the list. */
static gboolean
wait_for_requests (EbbMpiGroup *self,
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
        return ebb_mpi_fail (error, EBB_ERROR_PROCESS_GROUP,
                             "all ranks have called it, but their data didn't come within %g s", timeout);
      if (look && !ebb_mpi_look (self, error))
        return FALSE;
    }
  requests->n = 0;
  if (requests->arrays != NULL)
    g_ptr_array_set_size (requests->arrays, 0);
  return TRUE;
}

/* -- one call ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  EbbMpiGroup *group;
  const EbbCollectiveCall *call;
  gint64 max_count; /* elements in one call of MPI, whose counts are ints */
} Run;

typedef struct
{
  const EbbCollectiveBuffer *buffer;
  gint64 begin, length; /* within each rank's shard */
} Chunk;

static gint64
get_max_count (void)
{
  /* Lets tests reach the code for tensors of more than 2^31 elements. */
  const char *text = g_getenv ("EBB_MPI_MAX_COUNT");
  gint64 count = text != NULL ? g_ascii_strtoll (text, NULL, 10) : 0;

  return count > 0 && count < G_MAXINT ? count : G_MAXINT;
}

static MPI_Datatype
get_type (gsize size)
{
  switch (size)
    {
    case 2: return MPI_UINT16_T;
    case 4: return MPI_UINT32_T;
    case 8: return MPI_UINT64_T;
    default: return MPI_UINT8_T;
    }
}

static gsize
get_size (const EbbCollectiveBuffer *buffer)
{
  return ebb_mpi_host->get_dtype_size (buffer->dtype);
}

static char *
get_address (const EbbCollectiveBuffer *buffer,
             void *base,
             gint64 element)
{
  return (char *) base + (gsize) element * get_size (buffer);
}

/* The elements of [begin, begin + length) that a shard of @count has. */
static gint64
clip (gint64 count,
      gint64 begin,
      gint64 length)
{
  return CLAMP (count - begin, 0, length);
}

/* -- requests; all of these need the lock -------------------------------------------------------------------------- */

typedef enum
{
  SEND,
  RECEIVE,
  BROADCAST
} Way;

/* Starts as many operations as @count elements take; @rank: the other one, or the root. */
static gboolean
start (Run *run,
       EbbMpiRequests *requests,
       Way way,
       const EbbCollectiveBuffer *buffer,
       char *data,
       gint64 count,
       guint rank,
       GError **error)
{
  static const char *const names[] = { "MPI_Isend", "MPI_Irecv", "MPI_Ibcast" };
  const gsize size = get_size (buffer);
  const MPI_Datatype type = get_type (size);
  const MPI_Comm comm = run->group->comm;
  int code = MPI_SUCCESS;

  for (gint64 i = 0; i < count; i += run->max_count)
    {
      const int n = (int) MIN (run->max_count, count - i);
      char *at = data + (gsize) i * size;
      MPI_Request *request = requests_add (requests);

      switch (way)
        {
        case SEND: code = MPI_Isend (at, n, type, (int) rank, EBB_MPI_TAG_DATA, comm, request); break;
        case RECEIVE: code = MPI_Irecv (at, n, type, (int) rank, EBB_MPI_TAG_DATA, comm, request); break;
        case BROADCAST: code = MPI_Ibcast (at, n, type, (int) rank, comm, request); break;
        }
      if (!ebb_mpi_check (code, names[way], error))
        return FALSE;
    }
  return TRUE;
}

typedef gboolean (*StartFunc) (Run *run,
                               EbbMpiRequests *requests,
                               const EbbCollectiveBuffer *buffer,
                               GError **error);

/* Starts each part of the call except the skipped ones (NULL: none is), and waits for all. Takes the lock itself. */
static gboolean
run_parts (Run *run,
           StartFunc func,
           const gboolean *skipped,
           GError **error)
{
  EbbMpiRequests *requests = &run->group->requests[0];
  gboolean good = TRUE;

  if (!ebb_mpi_lock (error))
    return FALSE;
  for (guint i = 0; good && i < run->call->n_parts; i++)
    if (run->call->parts[i].n_elements > 0 && (skipped == NULL || !skipped[i]))
      good = func (run, requests, &run->call->parts[i], error);
  ebb_mpi_unlock ();
  return good && wait_for_requests (run->group, requests, error);
}

/* -- gather -------------------------------------------------------------------------------------------------------- */

/* The own shard is at its place, or in buffer->shard. */
static gboolean
start_gather (Run *run,
              EbbMpiRequests *requests,
              const EbbCollectiveBuffer *buffer,
              GError **error)
{
  EbbMpiGroup *self = run->group;
  const void *shard = buffer->shard;
  MPI_Datatype type = get_type (get_size (buffer));
  char *own = get_address (buffer, buffer->full, buffer->starts[self->rank]);
  gint64 own_count = buffer->counts[self->rank];
  int *counts, *starts;

  if (buffer->n_elements > run->max_count)
    {
      if (shard != NULL && shard != own)
        memmove (own, shard, (gsize) own_count * get_size (buffer));
      for (guint i = 0; i < self->size; i++)
        if (!start (run, requests, BROADCAST, buffer, get_address (buffer, buffer->full, buffer->starts[i]),
                    buffer->counts[i], i, error))
          return FALSE;
      return TRUE;
    }
  counts = requests_add_array (requests, self->size);
  starts = requests_add_array (requests, self->size);
  for (guint i = 0; i < self->size; i++)
    {
      counts[i] = (int) buffer->counts[i];
      starts[i] = (int) buffer->starts[i];
    }
  if (shard == NULL || shard == own)
    return ebb_mpi_check (MPI_Iallgatherv (MPI_IN_PLACE, 0, type, buffer->full, counts, starts, type, self->comm,
                                           requests_add (requests)),
                          "MPI_Iallgatherv", error);
  return ebb_mpi_check (MPI_Iallgatherv (shard, (int) own_count, type, buffer->full, counts, starts, type, self->comm,
                                         requests_add (requests)),
                        "MPI_Iallgatherv", error);
}

/* -- exchange and reduce ------------------------------------------------------------------------------------------- */

static gint64
get_chunk_length (Run *run,
                  const EbbCollectiveBuffer *buffer)
{
  gint64 n_rows = MAX (1, (gint64) run->group->size - 1);

  return MAX (1, (gint64) (ROWS_SIZE / get_size (buffer)) / n_rows);
}

static char *
get_rows (Run *run,
          guint slot)
{
  EbbMpiGroup *self = run->group;

  if (self->rows[slot] == NULL)
    self->rows[slot] = g_malloc (MAX (ROWS_SIZE, self->size * sizeof (gint64)));
  return self->rows[slot];
}

/* The next chunk after @chunk of the parts that are to be exchanged; FALSE: that was the last one. */
static gboolean
next_chunk (Run *run,
            const gboolean *skipped,
            Chunk *chunk)
{
  const EbbCollectiveBuffer *parts = run->call->parts;
  guint part = chunk->buffer != NULL ? (guint) (chunk->buffer - parts) : 0;

  for (; part < run->call->n_parts; part++)
    {
      gint64 longest = 0;

      if (chunk->buffer == &parts[part])
        chunk->begin += chunk->length;
      else
        *chunk = (Chunk){ &parts[part], 0, get_chunk_length (run, &parts[part]) };
      for (guint i = 0; i < run->group->size; i++)
        longest = MAX (longest, parts[part].counts[i]);
      if ((skipped == NULL || !skipped[part]) && chunk->begin < longest)
        return TRUE;
    }
  return FALSE;
}

static gboolean
start_exchange (Run *run,
                const Chunk *chunk,
                guint slot,
                GError **error)
{
  EbbMpiGroup *self = run->group;
  const EbbCollectiveBuffer *buffer = chunk->buffer;
  EbbMpiRequests *requests = &self->requests[slot];
  gint64 own = clip (buffer->counts[self->rank], chunk->begin, chunk->length);
  gboolean good = TRUE;

  if (!ebb_mpi_lock (error))
    return FALSE;
  /* Each rank begins with its successor, so that not all of them send to one. */
  for (guint step = 1; good && step < self->size; step++)
    {
      guint from = (self->rank + self->size - step) % self->size;
      gint64 row = from < self->rank ? from : from - 1;

      good = start (run, requests, RECEIVE, buffer, get_address (buffer, get_rows (run, slot), row * chunk->length),
                    own, from, error);
    }
  for (guint step = 1; good && step < self->size; step++)
    {
      guint to = (self->rank + step) % self->size;

      good = start (run, requests, SEND, buffer,
                    get_address (buffer, buffer->full, buffer->starts[to] + chunk->begin),
                    clip (buffer->counts[to], chunk->begin, chunk->length), to, error);
    }
  ebb_mpi_unlock ();
  return good;
}

static gboolean
finish_exchange (Run *run,
                 const Chunk *chunk,
                 guint slot,
                 GError **error)
{
  EbbMpiGroup *self = run->group;
  const EbbCollectiveBuffer *buffer = chunk->buffer;
  gint64 own = clip (buffer->counts[self->rank], chunk->begin, chunk->length);
  gint64 place = buffer->starts[self->rank] + chunk->begin;
  g_autofree const void **sources = g_new (const void *, self->size);
  void *dest = buffer->shard != NULL ? get_address (buffer, buffer->shard, chunk->begin)
                                     : get_address (buffer, buffer->full, place);

  if (!wait_for_requests (self, &self->requests[slot], error))
    return FALSE;
  for (guint i = 0; i < self->size; i++)
    {
      gint64 row = i < self->rank ? i : (gint64) i - 1;

      sources[i] = i == self->rank ? get_address (buffer, buffer->full, place)
                                   : get_address (buffer, get_rows (run, slot), row * chunk->length);
    }
  if (own > 0)
    ebb_mpi_host->reduce (dest, sources, self->size, (gsize) own, buffer->dtype, run->call->op);
  return TRUE;
}

/* Reduces each rank's shard of each part except the skipped ones: into part->shard, or else in its place. */
static gboolean
exchange (Run *run,
          const gboolean *skipped,
          GError **error)
{
  Chunk next = { NULL, 0, 0 }, chunks[2];
  gboolean more = next_chunk (run, skipped, &next);
  guint started = 0, finished = 0;

  while (more || finished < started)
    {
      if (more && started < finished + 2)
        {
          chunks[started % 2] = next;
          if (!start_exchange (run, &next, started % 2, error))
            return FALSE;
          started++;
          more = next_chunk (run, skipped, &next);
          continue;
        }
      if (!finish_exchange (run, &chunks[finished % 2], finished % 2, error))
        return FALSE;
      finished++;
    }
  return TRUE;
}

/* -- the operations ------------------------------------------------------------------------------------------------ */

/* Reduces tensors of few elements in one step instead of two: each rank gets all versions. Sets @done for these parts.
 */
static gboolean
all_reduce_small (Run *run,
                  gboolean *done,
                  GError **error)
{
  EbbMpiGroup *self = run->group;
  EbbMpiRequests *requests = &self->requests[0];
  g_autofree const void **sources = g_new (const void *, self->size);
  g_autofree char **rows = g_new0 (char *, run->call->n_parts);
  gboolean good = TRUE;
  gsize used = 0;

  if (!ebb_mpi_lock (error))
    return FALSE;
  for (guint i = 0; good && i < run->call->n_parts; i++)
    {
      const EbbCollectiveBuffer *buffer = &run->call->parts[i];
      gsize needed = (gsize) buffer->n_elements * get_size (buffer) * self->size;
      MPI_Datatype type = get_type (get_size (buffer));

      done[i] = needed <= SMALL_SIZE && used + needed <= ROWS_SIZE && buffer->n_elements <= run->max_count;
      if (!done[i] || needed == 0)
        continue;
      rows[i] = get_rows (run, 0) + used;
      used += (needed + 7) / 8 * 8;
      good = ebb_mpi_check (MPI_Iallgather (buffer->full, (int) buffer->n_elements, type, rows[i],
                                            (int) buffer->n_elements, type, self->comm,
                                            requests_add (requests)),
                            "MPI_Iallgather", error);
    }
  ebb_mpi_unlock ();
  if (!good || !wait_for_requests (self, requests, error))
    return FALSE;
  for (guint i = 0; i < run->call->n_parts; i++)
    if (rows[i] != NULL)
      {
        const EbbCollectiveBuffer *buffer = &run->call->parts[i];

        for (guint k = 0; k < self->size; k++)
          sources[k] = get_address (buffer, rows[i], (gint64) k * buffer->n_elements);
        ebb_mpi_host->reduce (buffer->full, sources, self->size, (gsize) buffer->n_elements, buffer->dtype,
                              run->call->op);
      }
  return TRUE;
}

static gboolean
all_reduce (Run *run,
            GError **error)
{
  g_autofree gboolean *done = g_new0 (gboolean, run->call->n_parts);
  gboolean all_done = TRUE;

  if (!all_reduce_small (run, done, error))
    return FALSE;
  for (guint i = 0; i < run->call->n_parts; i++)
    all_done = all_done && done[i];
  return all_done || (exchange (run, done, error) && run_parts (run, start_gather, done, error));
}

static gboolean
start_all_to_all (Run *run,
                  EbbMpiRequests *requests,
                  const EbbCollectiveBuffer *buffer,
                  GError **error)
{
  EbbMpiGroup *self = run->group;
  gboolean good = TRUE;

  for (guint step = 0; good && step < self->size; step++)
    {
      guint from = (self->rank + self->size - step) % self->size, to = (self->rank + step) % self->size;

      good = start (run, requests, RECEIVE, buffer, get_address (buffer, buffer->shard, buffer->starts[from]),
                    buffer->counts[from], from, error)
             && start (run, requests, SEND, buffer, get_address (buffer, buffer->full, buffer->starts[to]),
                       buffer->counts[to], to, error);
    }
  return good;
}

/* Of a broadcast, or to or from one rank. */
static gboolean
start_full (Run *run,
            EbbMpiRequests *requests,
            const EbbCollectiveBuffer *buffer,
            GError **error)
{
  static const Way ways[EBB_N_COLLECTIVES] = { [EBB_COLLECTIVE_BROADCAST] = BROADCAST,
                                               [EBB_COLLECTIVE_SEND] = SEND,
                                               [EBB_COLLECTIVE_RECV] = RECEIVE };

  return start (run, requests, ways[run->call->which], buffer, buffer->full, buffer->n_elements, run->call->peer,
                error);
}

static gboolean
barrier (Run *run,
         GError **error)
{
  EbbMpiRequests *requests = &run->group->requests[0];
  gboolean good;

  /* After an announcement all ranks have come. */
  if (run->group->checks)
    return TRUE;
  if (!ebb_mpi_lock (error))
    return FALSE;
  good = ebb_mpi_check (MPI_Ibarrier (run->group->comm, requests_add (requests)), "MPI_Ibarrier", error);
  ebb_mpi_unlock ();
  return good && wait_for_requests (run->group, requests, error);
}

static gboolean
run_collective (Run *run,
                GError **error)
{
  switch (run->call->which)
    {
    case EBB_COLLECTIVE_ALL_REDUCE: return all_reduce (run, error);
    case EBB_COLLECTIVE_REDUCE_SCATTER: return exchange (run, NULL, error);
    case EBB_COLLECTIVE_ALL_GATHER: return run_parts (run, start_gather, NULL, error);
    case EBB_COLLECTIVE_BROADCAST:
    case EBB_COLLECTIVE_SEND:
    case EBB_COLLECTIVE_RECV: return run_parts (run, start_full, NULL, error);
    case EBB_COLLECTIVE_ALL_TO_ALL: return run_parts (run, start_all_to_all, NULL, error);
    case EBB_COLLECTIVE_BARRIER:
    default: return barrier (run, error);
    }
}

gboolean
ebb_mpi_collective (EbbMpiGroup *self,
                    const EbbCollectiveCall *call,
                    GError **error)
{
  Run run = { self, call, get_max_count () };
  gboolean good = run_collective (&run, error);

  /* Operations may still run, in memory that the caller is about to free. */
  if (!good && (self->requests[0].n > 0 || self->requests[1].n > 0))
    self->unfinished = TRUE;
  return good;
}
