/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/backend/backend-private.h"
#include "tensor/cpu/cpu-private.h"
#include "tensor/cpu/host-allocator-private.h"

static void *
cpu_alloc (int index,
           gsize size,
           GError **error)
{
  return ebb_host_alloc (size, error);
}

static void
cpu_free (int index,
          void *data,
          gsize size)
{
  ebb_host_free (data, size);
}

const EbbBackend ebb_cpu_backend = {
  .version = EBB_BACKEND_VERSION,
  .name = "cpu",
  .host_memory = TRUE,
  .alloc = cpu_alloc,
  .free = cpu_free,
  .get_kernels = ebb_cpu_get_kernels,
};
