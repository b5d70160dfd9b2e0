/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The engine over NCCL: how its processes find each other, announcements, and the entry of the module. */
#include "dist/nccl/nccl-private.h"

#include <gmodule.h>

typedef struct
{
  EbbProcessGroupClass parent_class;
} EbbNcclGroupClass;

GType ebb_nccl_group_get_type (void);
G_DEFINE_TYPE (EbbNcclGroup, ebb_nccl_group, ebb_nccl_host->get_type ())

static const EbbProcessGroupFuncs *
get_mpi_funcs (EbbProcessGroup *mpi)
{
  return ((EbbProcessGroupClass *) G_OBJECT_GET_CLASS (mpi))->funcs;
}

/* -- announcements ------------------------------------------------------------------------------------------------- */

/* Each rank reports its next call before it makes it: over MPI, which also sees who is late or has died; or, without
 * MPI, over NCCL itself, which sees only that time passes. */

/* Of all ranks, or of two. */
static gboolean
exchange (EbbNcclGroup *self,
          const EbbCollectiveCall *call,
          EbbAnnouncement *messages,
          GError **error)
{
  const gsize size = sizeof (EbbAnnouncement), n_bytes = size * self->size;
  char *memory = ebb_nccl_get_memory (&self->memory, n_bytes, error), *own;

  if (memory == NULL)
    return FALSE;
  own = memory + size * self->rank;
  if (!ebb_nccl_check_cuda (cudaMemcpyAsync (own, &messages[self->rank], size, cudaMemcpyHostToDevice, self->stream),
                            "cudaMemcpyAsync", error)
      || !ebb_nccl_check (self, ncclGroupStart (), "ncclGroupStart", error))
    return FALSE;
  if (!ebb_collective_is_pair (call->which))
    ncclAllGather (own, memory, size, ncclUint8, self->comm, self->stream);
  else
    {
      ncclSend (own, size, ncclUint8, (int) call->peer, self->comm, self->stream);
      ncclRecv (memory + size * call->peer, size, ncclUint8, (int) call->peer, self->comm, self->stream);
    }
  return ebb_nccl_check (self, ncclGroupEnd (), "ncclGroupEnd", error)
         && ebb_nccl_check_cuda (cudaMemcpyAsync (messages, memory, n_bytes, cudaMemcpyDeviceToHost, self->stream),
                                 "cudaMemcpyAsync", error)
         && ebb_nccl_wait (self, error);
}

static gboolean
announce_over_nccl (EbbNcclGroup *self,
                    const EbbCollectiveCall *call,
                    GError **error)
{
  EbbAnnouncement *messages = (EbbAnnouncement *) (gpointer) ebb_nccl_get_memory (
      &self->host_memory, sizeof (EbbAnnouncement) * self->size, error);

  if (messages == NULL)
    return FALSE;
  ebb_nccl_host->announce (call, &messages[self->rank]);
  if (!exchange (self, call, messages, error))
    return FALSE;
  for (guint i = 0; i < self->size; i++)
    if (i != self->rank && (!ebb_collective_is_pair (call->which) || i == call->peer)
        && !ebb_nccl_host->check_announcement (call, self->rank, &messages[i], i, error))
      return FALSE;
  return TRUE;
}

static gboolean
announce (EbbNcclGroup *self,
          const EbbCollectiveCall *call,
          GError **error)
{
  EbbCollectiveCall announced = *call;

  if (!self->checks || self->size == 1)
    return TRUE;
  if (self->mpi == NULL)
    return announce_over_nccl (self, call, error);
  announced.is_announcement = TRUE;
  return get_mpi_funcs (self->mpi)->run (self->mpi, &announced, error);
}

/* -- the engine ---------------------------------------------------------------------------------------------------- */

/* Other ranks may be waiting on the device; they find out by their timeout at the latest. With the lock; once. */
static void
fail_locked (EbbNcclGroup *self,
             const GError *reason)
{
  if (self->comm == NULL)
    return;
  ebb_nccl_abort (self, reason);
  if (self->mpi != NULL)
    get_mpi_funcs (self->mpi)->fail (self->mpi, reason);
}

static void
fail (EbbProcessGroup *group,
      const GError *reason)
{
  EbbNcclGroup *self = (EbbNcclGroup *) group;
  int previous;

  EBB_AUTO_LOCK (&self->lock);
  previous = ebb_cuda_enter (self->device);
  fail_locked (self, reason);
  ebb_cuda_leave (previous);
}

static gboolean
check (EbbProcessGroup *group,
       GError **error)
{
  EbbNcclGroup *self = (EbbNcclGroup *) group;
  gboolean ok;

  /* A call that has the lock looks itself. */
  if (pthread_mutex_trylock (&self->lock) != 0)
    return TRUE;
  ok = self->comm == NULL || ebb_nccl_check_progress (self, error);
  pthread_mutex_unlock (&self->lock);
  return ok;
}

static gboolean
run (EbbProcessGroup *group,
     const EbbCollectiveCall *call,
     GError **error)
{
  EbbNcclGroup *self = (EbbNcclGroup *) group;
  GError *failure = NULL;
  gboolean ok;
  int previous;

  pthread_mutex_lock (&self->calls);
  pthread_mutex_lock (&self->lock);
  /* Calls come from several threads, and the current device is each thread's own. */
  previous = ebb_cuda_enter (self->device);
  ok = ebb_nccl_check_open (self, &failure) && announce (self, call, &failure)
       && ebb_nccl_run (self, call, &failure);
  if (!ok)
    fail_locked (self, failure);
  ebb_cuda_leave (previous);
  pthread_mutex_unlock (&self->lock);
  pthread_mutex_unlock (&self->calls);
  if (!ok)
    g_propagate_error (error, failure);
  return ok;
}

static gsize
get_workspace (EbbProcessGroup *group,
               const EbbCollectiveCall *call)
{
  return ebb_nccl_get_rows_size ((EbbNcclGroup *) group, call);
}

static EbbNcclGroup *
new_group (const char *name,
           guint rank,
           guint size,
           int device)
{
  EbbNcclGroup *self = g_object_new (ebb_nccl_group_get_type (), "backend", "nccl", "name", name, "rank", rank, "size",
                                     size, NULL);

  self->rank = rank;
  self->size = size;
  self->device = device;
  self->checks = g_strcmp0 (g_getenv ("EBB_PROCESS_GROUP_CHECK"), "0") != 0;
  return self;
}

static EbbProcessGroup *
split (EbbProcessGroup *group,
       guint color,
       const guint *members,
       guint n_members,
       guint rank,
       GError **error)
{
  EbbNcclGroup *self = (EbbNcclGroup *) group;
  g_autofree char *name = g_strdup_printf ("%s/%u", ebb_nccl_host->get_name (group), color);
  EbbNcclGroup *child = new_group (name, rank, n_members, self->device);
  GError *failure = NULL;
  gboolean good;
  int previous;

  pthread_mutex_lock (&self->calls);
  pthread_mutex_lock (&self->lock);
  previous = ebb_cuda_enter (self->device);
  good = ebb_nccl_split (self, child, color, &failure);
  /* NCCL may still be making the child's communicator, and would put it where the child was. */
  if (!good)
    fail_locked (self, failure);
  ebb_cuda_leave (previous);
  pthread_mutex_unlock (&self->lock);
  pthread_mutex_unlock (&self->calls);
  if (!good)
    g_propagate_error (error, failure);
  if (good && self->mpi != NULL)
    {
      child->mpi = get_mpi_funcs (self->mpi)->split (self->mpi, color, members, n_members, rank, error);
      good = child->mpi != NULL;
    }
  if (!good)
    g_clear_object (&child);
  return (EbbProcessGroup *) child;
}

static gboolean
reaches (EbbProcessGroup *group,
         EbbDevice *device)
{
  const EbbStreamFuncs *streams = device->backend->streams;

  return device->index == ((EbbNcclGroup *) group)->device && g_str_equal (device->backend->name, EBB_CUDA_NAME)
         && streams != NULL && streams->get_native_stream != NULL
         && streams->get_native_stream (device->index, EBB_STREAM_COLLECTIVE) != NULL;
}

static void
finalize (GObject *object)
{
  EbbNcclGroup *self = (EbbNcclGroup *) object;

  ebb_nccl_close (self);
  pthread_mutex_destroy (&self->lock);
  pthread_mutex_destroy (&self->calls);
  g_clear_object (&self->mpi);
  G_OBJECT_CLASS (ebb_nccl_group_parent_class)->finalize (object);
}

static const EbbProcessGroupFuncs funcs = {
  .run = run,
  .split = split,
  .reaches = reaches,
  .moves_host_only = TRUE,
  .get_workspace = get_workspace,
  .check = check,
  .fail = fail,
};

static void
ebb_nccl_group_class_init (EbbNcclGroupClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = finalize;
  klass->parent_class.funcs = &funcs;
}

static void
ebb_nccl_group_init (EbbNcclGroup *self)
{
  self->host_memory.is_on_host = TRUE;
  pthread_mutex_init (&self->lock, NULL);
  pthread_mutex_init (&self->calls, NULL);
}

/* -- how the processes find each other ----------------------------------------------------------------------------- */

typedef struct
{
  guint rank, size;
  guint local_rank;     /* among the processes of this machine: the GPU */
  EbbProcessGroup *mpi; /* of the same ranks, if MPI started them */
} Place;

static gboolean
find_ranks (Place *place,
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

static gboolean
find_place (Place *place,
            GError **error)
{
  static const char *const variables[] = { "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                           "SLURM_LOCALID" };

  *place = (Place){ 0 };
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
spread_over_mpi (const Place *place,
                 void *data,
                 gsize size,
                 GError **error)
{
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

  return get_mpi_funcs (place->mpi)->run (place->mpi, &call, error);
}

static gboolean
spread (const Place *place,
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

/* -- the module ---------------------------------------------------------------------------------------------------- */

static gboolean
find_device (const Place *place,
             int *device,
             GError **error)
{
  int n_devices = 0;

  if (!ebb_nccl_check_cuda (cudaGetDeviceCount (&n_devices), "cudaGetDeviceCount", error))
    return FALSE;
  if (n_devices == 0)
    return ebb_nccl_fail (error, EBB_ERROR_DEVICE, "there is no GPU here");
  /* A launcher may show each process a GPU of its own. */
  *device = n_devices == 1 ? 0 : (int) place->local_rank;
  return *device < n_devices
         || ebb_nccl_fail (error, EBB_ERROR_DEVICE, "this is rank %u of its machine, which has %d GPUs", *device,
                           n_devices);
}

static gboolean
open_world (EbbNcclGroup *self,
            const Place *place,
            GError **error)
{
  ncclUniqueId id = { { 0 } };
  ncclResult_t code = place->rank == 0 ? ncclGetUniqueId (&id) : ncclSuccess;

  if (code != ncclSuccess)
    return ebb_nccl_fail (error, EBB_ERROR_PROCESS_GROUP, "ncclGetUniqueId: %s", ncclGetErrorString (code));
  return spread (place, &id, sizeof id, ebb_nccl_host->get_timeout ((EbbProcessGroup *) self), error)
         && ebb_nccl_open (self, &id, error);
}

G_MODULE_EXPORT EbbProcessGroup *ebb_process_group_open_v1 (const EbbProcessGroupHost *host,
                                                            GError **error);

G_MODULE_EXPORT EbbProcessGroup *
ebb_process_group_open_v1 (const EbbProcessGroupHost *host,
                           GError **error)
{
  Place place = { 0 };
  EbbNcclGroup *self;
  int device = 0;

  ebb_nccl_host = host;
  if (!find_place (&place, error))
    return NULL;
  if (!find_device (&place, &device, error))
    {
      g_clear_object (&place.mpi);
      return NULL;
    }
  self = new_group ("world", place.rank, place.size, device);
  self->mpi = place.mpi;
  if (!open_world (self, &place, error))
    g_clear_object (&self);
  return (EbbProcessGroup *) self;
}
