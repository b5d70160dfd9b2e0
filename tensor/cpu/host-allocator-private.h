/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error.h"

/* Memory for tensors on the host: cached, so that a training step in steady state asks the system for nothing. */

G_BEGIN_DECLS

void *ebb_host_alloc (gsize size,
                      GError **error);
void ebb_host_free (void *data,
                    gsize size);
/* Whether the system may make memory that nobody has touched yet of huge pages; it may as long as nobody says
 * otherwise. Huge pages are read faster later, and where the system has to find them first they take longer to get. */
void ebb_host_allow_huge_pages (void *data,
                                gsize size,
                                gboolean allow);
/* The same for all memory that was never handed out. Making many large tensors that nobody writes yet touches a few
 * bytes in front of each, and a huge page for these costs far more. */
void ebb_host_allow_huge_pages_ahead (gboolean allow);
/* Gives the memory of the process that nobody uses back to the system: its heap's, and malloc ()'s. */
void ebb_host_trim (void);
/* Bytes ever taken from the system and not given back; how often it was asked. */
guint64 ebb_host_get_reserved (void);
guint64 ebb_host_get_system_calls (void);
/* Bytes of address space that the process may still map; G_MAXSIZE where it is not limited. */
gsize ebb_host_get_address_space (void);

/* A heap that places blocks as the process' own does. A dry run's large blocks are addresses alone: those with values
 * must be mapped first. */
typedef struct _EbbHostHeap EbbHostHeap;

EbbHostHeap *ebb_host_heap_new (void);
/* The process' own, never to be freed. */
EbbHostHeap *ebb_host_heap_get_own (void);
/* With all of its blocks. */
void ebb_host_heap_free (EbbHostHeap *heap);
void *ebb_host_heap_alloc (EbbHostHeap *heap,
                           gsize size,
                           GError **error);
void ebb_host_heap_release (EbbHostHeap *heap,
                            void *data,
                            gsize size);
/* Of a dry run's: a block of @size bytes can be read and written until it is released. */
gboolean ebb_host_heap_map (EbbHostHeap *heap,
                            void *data,
                            gsize size,
                            GError **error);
/* Large blocks keep resident memory below @n_bytes if its extent is: what lies free is given back to the system before
 * an allocation would pass it. At first there is no bound. */
void ebb_host_heap_set_bound (EbbHostHeap *heap,
                              guint64 n_bytes);
/* Gives the huge pages of free blocks back to the system. */
void ebb_host_heap_trim (EbbHostHeap *heap);
/* The most bytes that were needed at one time: of the huge pages in which blocks lay. */
guint64 ebb_host_heap_get_extent (EbbHostHeap *heap);
/* The bytes of blocks over EBB_HOST_SMALL_LIMIT, used or free, that are resident now, by the system's count of pages.
 */
guint64 ebb_host_heap_get_resident (EbbHostHeap *heap);

G_END_DECLS
