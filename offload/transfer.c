/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/transfer-private.h"

#include <string.h>

static gboolean
transfer (EbbDevice *device,
          void *destination,
          const void *source,
          gsize size,
          gboolean to_host,
          GError **error)
{
  const EbbBackend *backend = device->backend;

  if (backend->host_memory)
    {
      memcpy (destination, source, size);
      return TRUE;
    }
  /* What was enqueued before must have written the source, and what comes after must find the destination written. */
  return (backend->synchronize == NULL || backend->synchronize (device->index, error))
         && backend->copy (destination, source, size, to_host, error)
         && (backend->synchronize == NULL || backend->synchronize (device->index, error));
}

gboolean
ebb_transfer_to_host (EbbDevice *device,
                      void *host,
                      const void *data,
                      gsize size,
                      GError **error)
{
  return transfer (device, host, data, size, TRUE, error);
}

gboolean
ebb_transfer_from_host (EbbDevice *device,
                        void *data,
                        const void *host,
                        gsize size,
                        GError **error)
{
  return transfer (device, data, host, size, FALSE, error);
}
