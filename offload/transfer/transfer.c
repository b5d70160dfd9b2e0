/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Copies between a device and host memory, on the device's copy queues where it has them. */
#include "offload/transfer/transfer-private.h"

#include "offload/transfer/stall-private.h"
#include "tensor/memory-account-private.h"
#include "tensor/thread-private.h"

#include <string.h>

struct _EbbTransfer
{
  int ref_count;
  EbbDevice *device;
  gpointer event; /* of the device's queue; NULL: it was done at once */
  double seconds; /* of a transfer that was done at once */
  gint64 waited;  /* by the host, on whatever thread; microseconds */
  gboolean is_mark;
  guint64 number; /* of a copy in a dry run; 0: of none */
};

/* -- host memory --------------------------------------------------------------------------------------------------- */

/* The allocator of the CPU aligns to 64 bytes: the rest is taken in front, and the distance noted there. */
static void *
alloc_aligned (EbbPurpose purpose,
               gsize size,
               GError **error)
{
  char *memory = ebb_device_alloc (ebb_device_get_cpu (), size + EBB_TRANSFER_ALIGNMENT, (guint8) purpose, error);
  char *data;

  if (memory == NULL)
    return NULL;
  data = (char *) (((gsize) memory + EBB_TRANSFER_ALIGNMENT) & ~(gsize) (EBB_TRANSFER_ALIGNMENT - 1));
  ((void **) (void *) data)[-1] = memory;
  return data;
}

/* A dry run writes nothing in front. */
static gsize
get_size_dry (EbbDevice *device,
              gsize size)
{
  return device->backend->streams != NULL ? size : size + EBB_TRANSFER_ALIGNMENT;
}

void *
ebb_transfer_alloc_host (EbbDevice *device,
                         gsize size,
                         EbbPurpose purpose,
                         GError **error)
{
  const EbbStreamFuncs *streams = device->backend->streams;
  void *data;

  if (ebb_is_dry ())
    return ebb_device_alloc (ebb_device_get_cpu (), get_size_dry (device, size), (guint8) purpose, error);
  if (streams == NULL)
    return alloc_aligned (purpose, size, error);
  if (!ebb_device_check_limit (ebb_device_get_cpu (), size, 0, error))
    return NULL;
  data = streams->alloc_host (device->index, size, error);
  if (data != NULL)
    ebb_device_count (ebb_device_get_cpu (), (guint8) purpose, (gint64) size);
  return data;
}

void
ebb_transfer_free_host (EbbDevice *device,
                        void *host,
                        gsize size,
                        EbbPurpose purpose)
{
  const EbbStreamFuncs *streams = device->backend->streams;

  if (ebb_is_dry ())
    {
      ebb_device_free (ebb_device_get_cpu (), host, get_size_dry (device, size), (guint8) purpose);
      return;
    }
  if (streams == NULL)
    {
      ebb_device_free (ebb_device_get_cpu (), ((void **) host)[-1], size + EBB_TRANSFER_ALIGNMENT, (guint8) purpose);
      return;
    }
  streams->free_host (device->index, host, size);
  ebb_device_count (ebb_device_get_cpu (), (guint8) purpose, -(gint64) size);
}

/* -- at once ------------------------------------------------------------------------------------------------------- */

static gboolean
copy_now (EbbDevice *device,
          void *destination,
          const void *source,
          gsize size,
          gboolean to_host,
          GError **error)
{
  if (ebb_is_dry ())
    return TRUE;
  if (!device->backend->host_memory)
    return device->backend->copy (device->index, destination, source, size, to_host, error);
  memcpy (destination, source, size);
  return TRUE;
}

gboolean
ebb_transfer_to_host (EbbDevice *device,
                      void *host,
                      const void *data,
                      gsize size,
                      GError **error)
{
  return copy_now (device, host, data, size, TRUE, error);
}

/* -- queued copies ---------------------------------------------------------------------------------------------- */

static gboolean
come_after_computing (EbbDevice *device,
                      EbbStream stream,
                      GError **error)
{
  const EbbStreamFuncs *streams = device->backend->streams;
  gpointer event = streams->record (device->index, EBB_STREAM_COMPUTE, error);
  gboolean ok;

  if (event == NULL)
    return FALSE;
  ok = streams->wait (device->index, stream, event, error);
  streams->free_event (event);
  return ok;
}

/* The event that is reached when the copy is done; NULL with @error set if it could not be enqueued. */
static gpointer
enqueue (EbbDevice *device,
         EbbStream stream,
         void *destination,
         const void *source,
         gsize size,
         EbbTransfer *after,
         GError **error)
{
  const EbbStreamFuncs *streams = device->backend->streams;
  gpointer event = NULL;

  if ((after == NULL || !after->is_mark) && !come_after_computing (device, stream, error))
    return NULL;
  if (after != NULL && after->event != NULL && !streams->wait (device->index, stream, after->event, error))
    return NULL;
  return streams->copy (device->index, stream, destination, source, size, &event, error) ? event : NULL;
}

/* Returns the number of a copy that a dry run leaves out. */
static guint64
note_begun (EbbDevice *device,
            EbbCopyEventKind kind,
            gsize size,
            const EbbTransfer *after)
{
  const EbbCopyEvent event = { kind, __atomic_add_fetch (&ebb_thread.account->n_copies, 1, __ATOMIC_RELAXED),
                               after != NULL ? after->number : 0, size };

  ebb_memory_note_copy (device, &event);
  return event.number;
}

static void
note_awaited (const EbbTransfer *self)
{
  if (self->number > 0 && ebb_is_dry ())
    ebb_memory_note_copy (self->device, &(EbbCopyEvent){ .kind = EBB_COPY_AWAITED, .number = self->number });
}

static EbbTransfer *
begin (EbbDevice *device,
       EbbStream stream,
       void *destination,
       const void *source,
       gsize size,
       EbbTransfer *after,
       GError **error)
{
  EbbTransfer transfer = { .ref_count = 1, .device = device };
  gboolean ok;

  if (ebb_is_dry ())
    {
      transfer.number =
          note_begun (device, stream == EBB_STREAM_TO_HOST ? EBB_COPY_TO_HOST : EBB_COPY_FROM_HOST, size, after);
      if (device->backend->streams == NULL)
        note_awaited (&transfer);
      ok = TRUE;
    }
  else if (device->backend->streams != NULL)
    {
      transfer.event = enqueue (device, stream, destination, source, size, after, error);
      ok = transfer.event != NULL;
    }
  else
    {
      const gint64 start = g_get_monotonic_time ();

      ok = copy_now (device, destination, source, size, stream == EBB_STREAM_TO_HOST, error);
      transfer.waited = g_get_monotonic_time () - start;
      transfer.seconds = (double) transfer.waited / G_USEC_PER_SEC;
    }
  return ok ? g_memdup2 (&transfer, sizeof transfer) : NULL;
}

EbbTransfer *
ebb_transfer_to_host_begin (EbbDevice *device,
                            void *host,
                            const void *data,
                            gsize size,
                            EbbTransfer *after,
                            GError **error)
{
  return begin (device, EBB_STREAM_TO_HOST, host, data, size, after, error);
}

EbbTransfer *
ebb_transfer_from_host_begin (EbbDevice *device,
                              void *data,
                              const void *host,
                              gsize size,
                              EbbTransfer *after,
                              GError **error)
{
  return begin (device, EBB_STREAM_FROM_HOST, data, host, size, after, error);
}

EbbTransfer *
ebb_transfer_of_dry_disk (EbbDevice *device,
                          gboolean writes,
                          gsize size,
                          const EbbTransfer *after)
{
  const EbbTransfer transfer = {
    .ref_count = 1,
    .device = device,
    .number = note_begun (device, writes ? EBB_COPY_TO_DISK : EBB_COPY_FROM_DISK, size, after)
  };

  return g_memdup2 (&transfer, sizeof transfer);
}

EbbTransfer *
ebb_transfer_mark (EbbDevice *device,
                   GError **error)
{
  EbbTransfer transfer = { .ref_count = 1, .device = device, .is_mark = TRUE };

  if (device->backend->streams != NULL && !ebb_is_dry ())
    {
      transfer.event = device->backend->streams->record (device->index, EBB_STREAM_COMPUTE, error);
      if (transfer.event == NULL)
        return NULL;
    }
  return g_memdup2 (&transfer, sizeof transfer);
}

EbbTransfer *
ebb_transfer_ref (EbbTransfer *self)
{
  __atomic_add_fetch (&self->ref_count, 1, __ATOMIC_RELAXED);
  return self;
}

void
ebb_transfer_unref (EbbTransfer *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  if (self->event != NULL)
    self->device->backend->streams->free_event (self->event);
  g_free (self);
}

EbbDevice *
ebb_transfer_get_device (EbbTransfer *self)
{
  return self->device;
}

gboolean
ebb_transfer_order (EbbTransfer *self,
                    GError **error)
{
  note_awaited (self);
  return self->event == NULL
         || self->device->backend->streams->wait (self->device->index, EBB_STREAM_COMPUTE, self->event, error);
}

gboolean
ebb_transfer_finish (EbbTransfer *self,
                     GError **error)
{
  return self->event == NULL || self->device->backend->streams->synchronize_event (self->event, error);
}

void
ebb_transfer_settle (EbbTransfer *self)
{
  /* A device's error is left for a caller that can return it: computing was dropped, maybe, of which the owner of the
   * memory knows nothing. A transfer that has failed is over, and the host comes after it. */
  if (!ebb_transfer_order (self, NULL))
    ebb_transfer_finish (self, NULL);
}

gboolean
ebb_transfer_wait (EbbTransfer *self,
                   GError **error)
{
  EbbStall stall;
  gboolean ok;

  if (self->event == NULL)
    return TRUE;
  ebb_stall_begin (&stall, self->device);
  ok = ebb_transfer_finish (self, error);
  __atomic_add_fetch (&self->waited, (gint64) (ebb_stall_end (&stall) * G_USEC_PER_SEC), __ATOMIC_RELAXED);
  return ok;
}

gboolean
ebb_transfer_is_done (EbbTransfer *self)
{
  if (self->event == NULL)
    return TRUE;
  if (!self->device->backend->streams->query_event (self->event))
    return FALSE;
  /* It does not wait any more; from now on the host is known to come after the transfer. */
  self->device->backend->streams->synchronize_event (self->event, NULL);
  return TRUE;
}

gboolean
ebb_transfer_is_over (EbbTransfer *self)
{
  return self->event == NULL || self->device->backend->streams->query_event (self->event);
}

void
ebb_transfer_get_times (EbbTransfer *self,
                        double *seconds,
                        double *waited)
{
  *seconds = self->seconds;
  *waited = 0;
  if (self->event != NULL)
    self->device->backend->streams->get_times (self->event, seconds, waited);
  *waited += (double) __atomic_load_n (&self->waited, __ATOMIC_RELAXED) / G_USEC_PER_SEC;
}
