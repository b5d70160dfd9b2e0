/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend/kernel-private.h"
#include "tensor/n-threads-private.h"

/* Shared by the files of the CPU backend. Kernels of simd/ are compiled once per instruction set; each set has its own
 * table, and the best that the processor runs is picked once (EBB_CPU_SIMD=portable|avx2|avx512|avx512bf16 asks for a
 * lesser one). */

G_BEGIN_DECLS

#define EBB_SIMD_PASTE_(a, b) a##_##b
#define EBB_SIMD_PASTE(a, b) EBB_SIMD_PASTE_ (a, b)
#define EBB_SIMD_NAME(name) EBB_SIMD_PASTE (name, EBB_SIMD)

typedef gsize (*EbbCpuWorkspaceFunc) (const EbbLaunch *launch);

extern const EbbKernelFunc ebb_cpu_kernels_portable[EBB_N_KERNELS];
extern const EbbCpuWorkspaceFunc ebb_cpu_workspaces_portable[EBB_N_KERNELS];
#if EBB_HAVE_SIMD_AVX2
extern const EbbKernelFunc ebb_cpu_kernels_avx2[EBB_N_KERNELS];
extern const EbbCpuWorkspaceFunc ebb_cpu_workspaces_avx2[EBB_N_KERNELS];
#endif
#if EBB_HAVE_SIMD_AVX512
extern const EbbKernelFunc ebb_cpu_kernels_avx512[EBB_N_KERNELS];
extern const EbbCpuWorkspaceFunc ebb_cpu_workspaces_avx512[EBB_N_KERNELS];
extern const EbbKernelFunc ebb_cpu_kernels_avx512bf16[EBB_N_KERNELS];
extern const EbbCpuWorkspaceFunc ebb_cpu_workspaces_avx512bf16[EBB_N_KERNELS];
#endif

/* The kernels of one instruction set. Its kernel of products takes only products with few rows, see simd/few-rows.c. */
typedef struct
{
  const char *name; /* "avx2" */
  const EbbKernelFunc *kernels;
  const EbbCpuWorkspaceFunc
      *workspaces; /* the bytes of workspace that each kernel needs; an entry that is NULL: none */
} EbbCpuVariant;

/* All NULL if the processor or the build does not have it. @simd_name NULL: the best that there is. */
EbbCpuVariant ebb_cpu_find_variant (const char *simd_name);

/* The kernels in use. */
const EbbCpuVariant *ebb_cpu_get_variant (void);
/* The instruction set in use: "avx2". */
const char *ebb_cpu_get_simd_name (void);

/* What kernels do before they trust indices: FALSE with @error set (EBB_ERROR_INDEX) at the first of @index, of any
 * strides, outside [0, limit). */
gboolean ebb_cpu_check_indices (const EbbLaunch *launch,
                                const EbbView *index,
                                gint64 limit,
                                GError **error);
/* The same of a loss: its parameters say how many classes there are, and which target is ignored. */
gboolean ebb_cpu_check_targets (const EbbLaunch *launch,
                                const EbbView *targets,
                                GError **error);

/* dest[i] = the reduction of sources[0 .. n)[i], in that order, by a value of reduce_ranks.op; f32 for 16-bit floats,
 * 64 bits for integers. @dest may be one of the sources. */
void ebb_cpu_reduce (void *dest,
                     const void *const *sources,
                     guint n,
                     gsize n_elements,
                     EbbDType dtype,
                     int op);
/* Elements that it takes at a time. */
#define EBB_REDUCE_BLOCK 1024

gboolean ebb_cpu_matmul (const EbbLaunch *launch,
                         GError **error);
gsize ebb_cpu_matmul_workspace (const EbbLaunch *launch);
/* The kernel of products with few rows for the instruction set in use. */
gboolean ebb_cpu_multiply_few_rows (const EbbLaunch *launch,
                                    GError **error);
gsize ebb_cpu_multiply_few_rows_workspace (const EbbLaunch *launch);

G_END_DECLS
