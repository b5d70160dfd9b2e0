/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Which bytes of a range are in use. It touches none of them, so the range may be a device's memory, or addresses that
 * nothing lies behind.
 *
 * Best fit: a block is placed in the smallest free piece that is big enough, the lowest of those. Neighbours that are
 * free merge. So a block's place depends on the allocations and frees before it and on nothing else: a program that
 * fits once fits every time.
 *
 * The modules of devices are compiled with it, as they aren't linked to the library. */

G_BEGIN_DECLS

typedef struct _EbbHeapBlock EbbHeapBlock;

struct _EbbHeapBlock
{
  gsize offset, size; /* in multiples of the alignment */
  gsize asked;        /* bytes, as they were asked for */
  gboolean in_use;
  EbbHeapBlock *previous, *next; /* neighbours, in use or free */
  gpointer data;                 /* the caller's, NULL at first; the heap frees none of it */
};

typedef struct
{
  gsize size, alignment;
  gsize capacity; /* bytes that blocks may take together; size at first */
  gsize n_free;   /* bytes of size that no block takes */
  EbbHeapBlock *first;
  GTree *free_by_size;
  GTree *used; /* by offset */
} EbbBlockHeap;

/* Of @size bytes, the last @size % @alignment stay free for ever. */
void ebb_block_heap_init (EbbBlockHeap *self,
                          gsize size,
                          gsize alignment);
void ebb_block_heap_clear (EbbBlockHeap *self);
/* NULL: no free piece is big enough, or too little of the capacity is free. A block of no bytes has an offset of its
 * own. */
EbbHeapBlock *ebb_block_heap_alloc (EbbBlockHeap *self,
                                    gsize size);
void ebb_block_heap_free (EbbBlockHeap *self,
                          EbbHeapBlock *block);
/* The block in use that @offset lies in, or NULL; allocates nothing. */
EbbHeapBlock *ebb_block_heap_find (EbbBlockHeap *self,
                                   gsize offset);
/* The block in use that begins at @offset and was allocated with @size bytes, or NULL. */
EbbHeapBlock *ebb_block_heap_find_exactly (EbbBlockHeap *self,
                                           gsize offset,
                                           gsize size);
gsize ebb_block_heap_get_largest_free (EbbBlockHeap *self);
/* Why @size bytes can't be had, for the message of an error: how many are free, and in which pieces. */
char *ebb_block_heap_describe_shortage (EbbBlockHeap *self,
                                        gsize size);

G_END_DECLS
