/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Picks the instruction set of this processor, once, and calls its kernels for the CPU backend's own files. */
#include "tensor/cpu/cpu-private.h"

#include "tensor/cpu/matmul-private.h"

#include <string.h>

#define N_VARIANTS 4

#define VARIANT(name)                                        \
  {                                                          \
#name, ebb_cpu_kernels_##name, ebb_cpu_workspaces_##name \
  }

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

static EbbCpuVariant
pick (void)
{
  const char *wanted = g_getenv ("EBB_CPU_SIMD");
  EbbCpuVariant picked = ebb_cpu_find_variant (wanted != NULL && *wanted != '\0' ? wanted : NULL);

  if (picked.name != NULL)
    return picked;
  picked = ebb_cpu_find_variant (NULL);
  g_warning ("EBB_CPU_SIMD is \"%s\", which this processor or build does not have; using %s", wanted, picked.name);
  return picked;
}

const EbbCpuVariant *
ebb_cpu_get_variant (void)
{
  static gsize initialized;
  static EbbCpuVariant variant;

  if (g_once_init_enter (&initialized))
    {
      variant = pick ();
      g_once_init_leave (&initialized, 1);
    }
  return &variant;
}

const char *
ebb_cpu_get_simd_name (void)
{
  return ebb_cpu_get_variant ()->name;
}

gboolean
ebb_cpu_multiply_few_rows (const EbbLaunch *launch,
                           GError **error)
{
  return ebb_cpu_get_variant ()->kernels[EBB_KERNEL_MATMUL](launch, error);
}

gsize
ebb_cpu_multiply_few_rows_workspace (const EbbLaunch *launch)
{
  return ebb_cpu_get_variant ()->workspaces[EBB_KERNEL_MATMUL](launch);
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

  ebb_cpu_get_variant ()->kernels[EBB_KERNEL_COPY](&launch, NULL);
}
