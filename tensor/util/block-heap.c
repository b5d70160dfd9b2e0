/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* A heap of offsets: best fit, neighbours merged, without the memory. */
#include "tensor/util/block-heap-private.h"

static int
compare_sizes (gconstpointer a,
               gconstpointer b,
               gpointer data)
{
  const EbbHeapBlock *x = a, *y = b;

  if (x->size != y->size)
    return x->size < y->size ? -1 : 1;
  return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int
compare_offsets (gconstpointer a,
                 gconstpointer b,
                 gpointer data)
{
  const gsize x = *(const gsize *) a, y = *(const gsize *) b;

  return x < y ? -1 : x > y;
}

void
ebb_block_heap_init (EbbBlockHeap *self,
                     gsize size,
                     gsize alignment)
{
  self->size = self->capacity = self->n_free = size;
  self->alignment = alignment;
  self->free_by_size = g_tree_new_full (compare_sizes, NULL, NULL, NULL);
  self->used = g_tree_new_full (compare_offsets, NULL, NULL, NULL);
  self->first = g_new0 (EbbHeapBlock, 1);
  self->first->size = size;
  g_tree_insert (self->free_by_size, self->first, self->first);
}

/* @block keeps @size bytes; the others become a free block. */
static void
split (EbbBlockHeap *self,
       EbbHeapBlock *block,
       gsize size)
{
  EbbHeapBlock *rest = g_new0 (EbbHeapBlock, 1);

  rest->offset = block->offset + size;
  rest->size = block->size - size;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != NULL)
    rest->next->previous = rest;
  block->next = rest;
  block->size = size;
  g_tree_insert (self->free_by_size, rest, rest);
}

EbbHeapBlock *
ebb_block_heap_alloc (EbbBlockHeap *self,
                      gsize size)
{
  EbbHeapBlock wanted = { .offset = 0 };
  GTreeNode *node;
  EbbHeapBlock *block;

  if (size > self->n_free)
    return NULL;
  wanted.size = MAX ((size + self->alignment - 1) / self->alignment, 1) * self->alignment;
  if (wanted.size > self->capacity - (self->size - self->n_free))
    return NULL;
  node = g_tree_lower_bound (self->free_by_size, &wanted);
  if (node == NULL)
    return NULL;
  block = g_tree_node_value (node);
  g_tree_remove (self->free_by_size, block);
  if (block->size > wanted.size)
    split (self, block, wanted.size);
  block->in_use = TRUE;
  block->asked = size;
  self->n_free -= block->size;
  g_tree_insert (self->used, &block->offset, block);
  return block;
}

/* @block takes in the block after it. */
static void
merge_next (EbbHeapBlock *block)
{
  EbbHeapBlock *next = block->next;

  block->size += next->size;
  block->next = next->next;
  if (block->next != NULL)
    block->next->previous = block;
  g_free (next);
}

void
ebb_block_heap_free (EbbBlockHeap *self,
                     EbbHeapBlock *block)
{
  g_tree_remove (self->used, &block->offset);
  self->n_free += block->size;
  block->in_use = FALSE;
  block->data = NULL;
  if (block->next != NULL && !block->next->in_use)
    {
      g_tree_remove (self->free_by_size, block->next);
      merge_next (block);
    }
  if (block->previous != NULL && !block->previous->in_use)
    {
      block = block->previous;
      g_tree_remove (self->free_by_size, block);
      merge_next (block);
    }
  g_tree_insert (self->free_by_size, block, block);
}

EbbHeapBlock *
ebb_block_heap_find (EbbBlockHeap *self,
                     gsize offset)
{
  GTreeNode *node = g_tree_upper_bound (self->used, &offset);
  EbbHeapBlock *block;

  node = node != NULL ? g_tree_node_previous (node) : g_tree_node_last (self->used);
  if (node == NULL)
    return NULL;
  block = g_tree_node_value (node);
  return offset - block->offset < block->size ? block : NULL;
}

EbbHeapBlock *
ebb_block_heap_find_exactly (EbbBlockHeap *self,
                             gsize offset,
                             gsize size)
{
  EbbHeapBlock *block = g_tree_lookup (self->used, &offset);

  return block != NULL && block->asked == size ? block : NULL;
}

gsize
ebb_block_heap_get_largest_free (EbbBlockHeap *self)
{
  GTreeNode *node = g_tree_node_last (self->free_by_size);

  return node != NULL ? ((EbbHeapBlock *) g_tree_node_value (node))->size : 0;
}

char *
ebb_block_heap_describe_shortage (EbbBlockHeap *self,
                                  gsize size)
{
  const gsize n_free = self->capacity - (self->size - self->n_free);

  return g_strdup_printf ("%" G_GSIZE_FORMAT " bytes asked for, %" G_GSIZE_FORMAT " of %" G_GSIZE_FORMAT
                          " free, in pieces of at most %" G_GSIZE_FORMAT,
                          size, n_free, self->capacity, MIN (n_free, ebb_block_heap_get_largest_free (self)));
}

void
ebb_block_heap_clear (EbbBlockHeap *self)
{
  EbbHeapBlock *next;

  for (EbbHeapBlock *block = self->first; block != NULL; block = next)
    {
      next = block->next;
      g_free (block);
    }
  self->first = NULL;
  g_clear_pointer (&self->free_by_size, g_tree_unref);
  g_clear_pointer (&self->used, g_tree_unref);
}
