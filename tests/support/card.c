/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/card.h"

#include "tensor/backend/backend-private.h"

#include <stdlib.h>
#include <string.h>

TestCard test_card;

static void *
card_alloc (int index,
            gsize size,
            GError **error)
{
  return aligned_alloc (64, (size + 127) / 64 * 64);
}

static void
card_free (int index,
           void *data,
           gsize size)
{
  free (data);
}

static gboolean
card_copy (int index,
           void *destination,
           const void *source,
           gsize size,
           gboolean to_host,
           GError **error)
{
  if (test_card.copies_fail)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE, "card: the copy failed");
      return FALSE;
    }
  *(to_host ? &test_card.bytes_to_host : &test_card.bytes_from_host) += size;
  memcpy (destination, source, size);
  return TRUE;
}

static gboolean
card_synchronize (int index,
                  GError **error)
{
  if (++test_card.n_synchronized != test_card.fails_at)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE, "card: its work has failed");
  return FALSE;
}

static const EbbKernelFunc *
card_get_kernels (void)
{
  return ebb_cpu_backend.get_kernels ();
}

static gsize
card_get_workspace (int index,
                    const EbbLaunch *launch)
{
  return ebb_cpu_backend.get_workspace (0, launch);
}

static const EbbBackend card_backend = {
  .version = EBB_BACKEND_VERSION,
  .name = "card",
  .alloc = card_alloc,
  .free = card_free,
  .copy = card_copy,
  .synchronize = card_synchronize,
  .get_workspace = card_get_workspace,
  .get_kernels = card_get_kernels,
};

EbbDevice *
test_card_open (void)
{
  EbbDevice *device;

  ebb_backend_register (&card_backend);
  device = ebb_device_get ("card", NULL);
  g_assert_nonnull (device);
  return device;
}
