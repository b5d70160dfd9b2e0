/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/host-allocator-private.h"

/* The heap under the host's allocator, and what both know of small blocks. */

G_BEGIN_DECLS

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void) (address), (void) (size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void) (address), (void) (size))
#endif

#define EBB_HOST_ALIGNMENT 64
#define EBB_HOST_HUGE_PAGE (2ul << 20)
#define EBB_HOST_SMALL_LIMIT 2048
#define EBB_HOST_N_SMALL (EBB_HOST_SMALL_LIMIT / EBB_HOST_ALIGNMENT)
#define EBB_HOST_SMALL_CHUNK (64 * 1024)

/* Where address space is limited, this much of it is left for threads, the code that oneDNN makes, and malloc: these
 * end the process if they get none. */
#define EBB_HOST_SPACE_FOR_OTHERS (64ul << 20)

typedef struct _EbbHostSmall EbbHostSmall;

/* A free small block. */
struct _EbbHostSmall
{
  EbbHostSmall *next;
};

/* A block over EBB_HOST_SMALL_LIMIT bytes of the process' heap; NULL: no address space is left. */
void *ebb_host_alloc_large (gsize size);
void ebb_host_free_large (void *data,
                          gsize size);
/* EBB_HOST_SMALL_CHUNK bytes for small blocks, for ever; NULL: no memory is left. */
char *ebb_host_take_chunk (void);
/* Whether huge pages have EBB_HOST_HUGE_PAGE bytes, by which the heap counts memory, where others have @page bytes. One
 * is as large as a page of 8-byte entries describes: 2 MiB of 4 KiB pages, 32 MiB of 16 KiB, 512 MiB of 64 KiB; the
 * larger ones, which some kernels for ARM have, would take more memory than is counted, and stay unused. */
gboolean ebb_host_has_huge_pages (gsize page);
/* Finds @size bytes of addresses that nothing in the process maps or will map, beginning at a huge page. The caller
 * maps them with MAP_FIXED_NOREPLACE. NULL: no such addresses are left. */
void *ebb_host_invent_addresses (gsize size);
/* Nothing of them is mapped any more. */
void ebb_host_forget_addresses (void *start,
                                gsize size);
void ebb_host_set_no_space (gsize size,
                            GError **error);

G_END_DECLS
