/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/cpu-private.h"

#include <string.h>

#define N_VARIANTS 4

typedef struct
{
  const char *name;
  const EbbKernelFunc *kernels;
} Variant;

static EbbKernelFunc kernels_in_use[EBB_N_KERNELS];

/* Lists the instruction sets that the processor runs, the best first. */
static guint
list_variants (Variant variants[N_VARIANTS])
{
  guint n = 0;

#if EBB_HAVE_SIMD_AVX512
  if (__builtin_cpu_supports ("avx512f") && __builtin_cpu_supports ("avx512bw") && __builtin_cpu_supports ("avx512dq")
      && __builtin_cpu_supports ("avx512vl") && __builtin_cpu_supports ("avx2") && __builtin_cpu_supports ("fma"))
    {
      if (__builtin_cpu_supports ("avx512bf16"))
        variants[n++] = (Variant){ "avx512bf16", ebb_cpu_kernels_avx512bf16 };
      variants[n++] = (Variant){ "avx512", ebb_cpu_kernels_avx512 };
    }
#endif
#if EBB_HAVE_SIMD_AVX2
  if (__builtin_cpu_supports ("avx2") && __builtin_cpu_supports ("fma"))
    variants[n++] = (Variant){ "avx2", ebb_cpu_kernels_avx2 };
#endif
  variants[n++] = (Variant){ "portable", ebb_cpu_kernels_portable };
  return n;
}

const EbbKernelFunc *
ebb_cpu_get_kernels_of (const char *simd_name)
{
  Variant variants[N_VARIANTS];
  guint n = list_variants (variants);

  for (guint k = 0; k < n; k++)
    if (strcmp (variants[k].name, simd_name) == 0)
      return variants[k].kernels;
  return NULL;
}

static void
pick_kernels (void)
{
  const char *wanted = g_getenv ("EBB_CPU_SIMD");
  Variant variants[N_VARIANTS];
  guint n = list_variants (variants);
  guint picked = 0;

  if (wanted != NULL && *wanted != '\0')
    {
      for (picked = 0; picked < n; picked++)
        if (strcmp (variants[picked].name, wanted) == 0)
          break;
      if (picked == n)
        {
          picked = 0;
          g_warning ("EBB_CPU_SIMD is \"%s\", which this processor or build does not have; using %s", wanted,
                     variants[0].name);
        }
    }
  memcpy (kernels_in_use, variants[picked].kernels, sizeof kernels_in_use);
  kernels_in_use[EBB_KERNEL_MATMUL] = ebb_cpu_matmul;
}

static void
ensure_kernels (void)
{
  static gsize initialized;

  if (g_once_init_enter (&initialized))
    {
      pick_kernels ();
      g_once_init_leave (&initialized, 1);
    }
}

const EbbKernelFunc *
ebb_cpu_get_kernels (void)
{
  ensure_kernels ();
  return kernels_in_use;
}
