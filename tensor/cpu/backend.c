/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The CPU as a backend: its memory, and the kernels for the instruction set of this processor with their workspace. */
#include "tensor/cpu/cpu-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/cpu/host-allocator-private.h"
#include "tensor/memory.h"

#include <string.h>

static EbbKernelFunc kernels[EBB_N_KERNELS];
static EbbCpuWorkspaceFunc workspaces[EBB_N_KERNELS];

static const EbbKernelFunc *
get_kernels (void)
{
  static gsize initialized;

  if (g_once_init_enter (&initialized))
    {
      const EbbCpuVariant *variant = ebb_cpu_get_variant ();

      memcpy (kernels, variant->kernels, sizeof kernels);
      kernels[EBB_KERNEL_MATMUL] = ebb_cpu_matmul;
      memcpy (workspaces, variant->workspaces, sizeof workspaces);
      workspaces[EBB_KERNEL_MATMUL] = ebb_cpu_matmul_workspace;
      g_once_init_leave (&initialized, 1);
    }
  return kernels;
}

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

/* The kernels were picked when the device was opened. */
static gsize
cpu_get_workspace (int index,
                   const EbbLaunch *launch)
{
  const EbbCpuWorkspaceFunc func = workspaces[launch->kernel];

  return func != NULL ? func (launch) : 0;
}

const EbbBackend ebb_cpu_backend = {
  .version = EBB_BACKEND_VERSION,
  .name = "cpu",
  .host_memory = TRUE,
  .row_block = EBB_HOST_ROW_BLOCK,
  .alloc = cpu_alloc,
  .free = cpu_free,
  .get_workspace = cpu_get_workspace,
  .get_kernels = get_kernels,
};
