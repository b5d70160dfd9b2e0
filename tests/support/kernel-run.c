/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Runs kernels of the CPU with exactly the workspace that they declare, between bytes that must stay. */
#include "support/kernel-run.h"

#include "support/device.h"
#include "support/device-kernel-run.h"
#include "tensor/cpu/cpu-private.h"

#include <string.h>

#define MARGIN 4096
#define MARGIN_BYTE 0x5a
#define GARBAGE_BYTE 0xff /* a NaN as f32 and as f64 */

static EbbCpuWorkspaceFunc
find_workspace (EbbKernelFunc func,
                EbbKernel kernel)
{
  static const char *const simd_names[] = { "portable", "avx2", "avx512", "avx512bf16" };

  if (func == ebb_cpu_matmul)
    return ebb_cpu_matmul_workspace;
  for (guint i = 0; i < G_N_ELEMENTS (simd_names); i++)
    {
      const EbbCpuVariant variant = ebb_cpu_find_variant (simd_names[i]);

      if (variant.kernels != NULL && variant.kernels[kernel] == func)
        return variant.workspaces[kernel];
    }
  return NULL;
}

static void
check_margin (const guint8 *margin,
              const char *name,
              const char *side)
{
  for (gsize i = 0; i < MARGIN; i++)
    if (margin[i] != MARGIN_BYTE)
      g_error ("%s: memory %s the workspace was written", name, side);
}

gboolean
test_kernel_run (EbbKernelFunc func,
                 EbbLaunch *launch,
                 GError **error)
{
  EbbCpuWorkspaceFunc get_workspace = find_workspace (func, launch->kernel);
  gsize size = get_workspace != NULL ? get_workspace (launch) : 0;
  guint8 *memory = NULL, *workspace = NULL;
  gboolean ok;

  if (size > 0)
    {
      memory = aligned_alloc (64, (size + 2 * MARGIN + 63) / 64 * 64);
      workspace = memory + MARGIN;
      memset (memory, MARGIN_BYTE, MARGIN);
      memset (workspace, GARBAGE_BYTE, size);
      memset (workspace + size, MARGIN_BYTE, MARGIN);
    }
  launch->workspace = workspace;
  launch->workspace_size = size;
  ok = func (launch, error);
  if (memory != NULL)
    {
      check_margin (memory, ebb_kernel_get_name (launch->kernel), "in front of");
      check_margin (workspace + size, ebb_kernel_get_name (launch->kernel), "behind");
      free (memory);
    }
  return ok;
}

/* -- other devices ------------------------------------------------------------------------------------------------- */

static gboolean
run_on_device (const EbbLaunch *launch,
               GError **error)
{
  return test_device_kernel_run (test_device (), launch, error);
}

const EbbKernelFunc *
test_kernels_of (const char *simd)
{
  static EbbKernelFunc kernels[EBB_N_KERNELS];

  if (test_device_is_cpu ())
    return ebb_cpu_find_variant (simd).kernels;
  for (guint i = 0; i < EBB_N_KERNELS; i++)
    kernels[i] = run_on_device;
  return strcmp (simd, "portable") == 0 ? kernels : NULL;
}

void
test_kernel_set_threads (int n_threads)
{
  g_autofree char *order = g_strdup_printf ("%d", MAX (n_threads - 1, 0) % 3);

  ebb_cpu_set_n_threads (n_threads);
  if (!test_device_is_cpu ())
    g_setenv ("EBB_CUDAEMU_ORDER", order, TRUE);
}
