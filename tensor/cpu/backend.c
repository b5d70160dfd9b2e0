/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cpu/cpu-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/cpu/host-allocator-private.h"
#include "tensor/cpu/matmul-private.h"
#include "tensor/memory.h"

#include <string.h>

/* The CPU as a backend: its memory, and the kernels for the instruction set of this processor with their workspace. */

#define N_VARIANTS 4

#define VARIANT(name)                                        \
  {                                                          \
#name, ebb_cpu_kernels_##name, ebb_cpu_workspaces_##name \
  }

static const char *name_in_use;
static EbbKernelFunc kernels_in_use[EBB_N_KERNELS], few_rows_in_use;
static EbbCpuWorkspaceFunc workspaces_in_use[EBB_N_KERNELS], few_rows_workspace_in_use;

/* Lists the instruction sets that the processor runs, the best first. */
static guint
list_variants (EbbCpuVariant variants[N_VARIANTS])
{
  guint n = 0;

#if EBB_HAVE_SIMD_AVX512
  if (__builtin_cpu_supports ("avx512f") && __builtin_cpu_supports ("avx512bw") && __builtin_cpu_supports ("avx512dq")
      && __builtin_cpu_supports ("avx512vl") && __builtin_cpu_supports ("avx2") && __builtin_cpu_supports ("fma"))
    {
      if (__builtin_cpu_supports ("avx512bf16"))
        variants[n++] = (EbbCpuVariant) VARIANT (avx512bf16);
      variants[n++] = (EbbCpuVariant) VARIANT (avx512);
    }
#endif
#if EBB_HAVE_SIMD_AVX2
  if (__builtin_cpu_supports ("avx2") && __builtin_cpu_supports ("fma"))
    variants[n++] = (EbbCpuVariant) VARIANT (avx2);
#endif
  variants[n++] = (EbbCpuVariant) VARIANT (portable);
  return n;
}

EbbCpuVariant
ebb_cpu_find_variant (const char *simd_name)
{
  EbbCpuVariant variants[N_VARIANTS];
  guint n = list_variants (variants);

  if (simd_name == NULL)
    return variants[0];
  for (guint k = 0; k < n; k++)
    if (strcmp (variants[k].name, simd_name) == 0)
      return variants[k];
  return (EbbCpuVariant){ NULL };
}

static void
pick_kernels (void)
{
  const char *wanted = g_getenv ("EBB_CPU_SIMD");
  EbbCpuVariant picked = ebb_cpu_find_variant (wanted != NULL && *wanted != '\0' ? wanted : NULL);

  if (picked.name == NULL)
    {
      picked = ebb_cpu_find_variant (NULL);
      g_warning ("EBB_CPU_SIMD is \"%s\", which this processor or build does not have; using %s", wanted, picked.name);
    }
  name_in_use = picked.name;
  memcpy (kernels_in_use, picked.kernels, sizeof kernels_in_use);
  few_rows_in_use = kernels_in_use[EBB_KERNEL_MATMUL];
  kernels_in_use[EBB_KERNEL_MATMUL] = ebb_cpu_matmul;
  memcpy (workspaces_in_use, picked.workspaces, sizeof workspaces_in_use);
  few_rows_workspace_in_use = workspaces_in_use[EBB_KERNEL_MATMUL];
  workspaces_in_use[EBB_KERNEL_MATMUL] = ebb_cpu_matmul_workspace;
}

static const EbbKernelFunc *
get_kernels (void)
{
  static gsize initialized;

  if (g_once_init_enter (&initialized))
    {
      pick_kernels ();
      g_once_init_leave (&initialized, 1);
    }
  return kernels_in_use;
}

const char *
ebb_cpu_get_simd_name (void)
{
  get_kernels ();
  return name_in_use;
}

gboolean
ebb_cpu_multiply_few_rows (const EbbLaunch *launch,
                           GError **error)
{
  get_kernels ();
  return few_rows_in_use (launch, error);
}

gsize
ebb_cpu_multiply_few_rows_workspace (const EbbLaunch *launch)
{
  get_kernels ();
  return few_rows_workspace_in_use (launch);
}

void
ebb_cpu_copy_view (const EbbView *from,
                   const EbbView *to)
{
  const EbbLaunch launch = {
    .kernel = EBB_KERNEL_COPY,
    .n_inputs = 1,
    .n_outputs = 1,
    .inputs = { from },
    .outputs = { (EbbView *) to }
  };

  get_kernels ()[EBB_KERNEL_COPY](&launch, NULL);
}

/* -- the backend --------------------------------------------------------------------------------------------------- */

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
  const EbbCpuWorkspaceFunc func = workspaces_in_use[launch->kernel];

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
