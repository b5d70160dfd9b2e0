/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/nccl/nccl-private.h"

#include <gmodule.h>

const EbbProcessGroupHost *ebb_nccl_host;

typedef struct
{
  EbbProcessGroupClass parent_class;
} EbbNcclGroupClass;

GType ebb_nccl_group_get_type (void);
G_DEFINE_TYPE (EbbNcclGroup, ebb_nccl_group, ebb_nccl_host->get_type ())

static const EbbProcessGroupFuncs *
get_mpi_funcs (EbbNcclGroup *self)
{
  return ((EbbProcessGroupClass *) G_OBJECT_GET_CLASS (self->mpi))->funcs;
}

/* -- the engine ---------------------------------------------------------------------------------------------------- */

/* Others may wait on the device for what never comes; they see it, at the latest, when their time is over. */
static void
fail (EbbProcessGroup *group,
      const GError *reason)
{
  EbbNcclGroup *self = (EbbNcclGroup *) group;

  if (self->mpi != NULL)
    get_mpi_funcs (self)->fail (self->mpi, reason);
  ebb_nccl_abort (self);
}

static gboolean
run (EbbProcessGroup *group,
     const EbbCollectiveCall *call,
     GError **error)
{
  EbbNcclGroup *self = (EbbNcclGroup *) group;
  GError *failure = NULL;

  if (self->comm == NULL)
    {
      g_set_error_literal (error, EBB_NCCL_ERROR, EBB_ERROR_PROCESS_GROUP, "NCCL was given up after a failure");
      return FALSE;
    }
  /* Calls may come from a thread of their own, and the device belongs to the thread. */
  if (ebb_nccl_check_cuda (cudaSetDevice (self->device), "cudaSetDevice", &failure)
      && ebb_nccl_announce (self, call, &failure) && ebb_nccl_collective (self, call, &failure))
    return TRUE;
  fail (group, failure);
  g_propagate_error (error, failure);
  return FALSE;
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
  gboolean good = ebb_nccl_split (self, child, color, error);

  if (good && self->mpi != NULL)
    {
      child->mpi = get_mpi_funcs (self)->split (self->mpi, color, members, n_members, rank, error);
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
  const char *name = ebb_nccl_host->get_device_name (device);
  g_autofree char *own = g_strdup_printf ("cuda:%d", ((EbbNcclGroup *) group)->device);

  return g_str_equal (name, own) || (((EbbNcclGroup *) group)->device == 0 && g_str_equal (name, "cuda"));
}

static void
finalize (GObject *object)
{
  EbbNcclGroup *self = (EbbNcclGroup *) object;

  ebb_nccl_close (self);
  g_clear_object (&self->mpi);
  G_OBJECT_CLASS (ebb_nccl_group_parent_class)->finalize (object);
}

static const EbbProcessGroupFuncs funcs = {
  .run = run,
  .split = split,
  .reaches = reaches,
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
  (void) self;
}

/* -- the module ---------------------------------------------------------------------------------------------------- */

static gboolean
find_device (const EbbNcclPlace *place,
             int *device,
             GError **error)
{
  int n_devices = 0;

  if (!ebb_nccl_check_cuda (cudaGetDeviceCount (&n_devices), "cudaGetDeviceCount", error))
    return FALSE;
  if (n_devices == 0)
    {
      g_set_error_literal (error, EBB_NCCL_ERROR, EBB_ERROR_DEVICE, "there is no GPU here");
      return FALSE;
    }
  /* A launcher may show each process a GPU of its own. */
  *device = n_devices == 1 ? 0 : (int) place->local_rank;
  if (*device < n_devices)
    return TRUE;
  g_set_error (error, EBB_NCCL_ERROR, EBB_ERROR_DEVICE, "this is rank %u of its machine, which has %d GPUs", *device,
               n_devices);
  return FALSE;
}

static gboolean
open_world (EbbNcclGroup *self,
            const EbbNcclPlace *place,
            GError **error)
{
  ncclUniqueId id = { { 0 } };
  ncclResult_t code = place->rank == 0 ? ncclGetUniqueId (&id) : ncclSuccess;

  if (code != ncclSuccess)
    {
      g_set_error (error, EBB_NCCL_ERROR, EBB_ERROR_PROCESS_GROUP, "ncclGetUniqueId: %s", ncclGetErrorString (code));
      return FALSE;
    }
  return ebb_nccl_spread (place, &id, sizeof id, ebb_nccl_host->get_timeout ((EbbProcessGroup *) self), error)
         && ebb_nccl_open (self, &id, error);
}

G_MODULE_EXPORT EbbProcessGroup *ebb_process_group_open_v1 (const EbbProcessGroupHost *host,
                                                            GError **error);

G_MODULE_EXPORT EbbProcessGroup *
ebb_process_group_open_v1 (const EbbProcessGroupHost *host,
                           GError **error)
{
  EbbNcclPlace place = { 0 };
  EbbNcclGroup *self;
  int device = 0;

  ebb_nccl_host = host;
  if (!ebb_nccl_find_place (&place, error))
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
