/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a range of memory: best fit, neighbours merged, where a block lies a function of what came before it. */
#include "tensor/cuda/cuda-private.h"

static int
compare_sizes (gconstpointer a,
               gconstpointer b,
               gpointer data)
{
  const EbbCudaBlock *x = a, *y = b;

  if (x->size != y->size)
    return x->size < y->size ? -1 : 1;
  return x->offset < y->offset ? -1 : x->offset > y->offset;
}

void
ebb_cuda_blocks_init (EbbCudaBlocks *self,
                      gsize size,
                      gsize alignment)
{
  self->size = self->n_free = size / alignment * alignment;
  self->alignment = alignment;
  self->free_by_size = g_tree_new_full (compare_sizes, NULL, NULL, NULL);
  self->used = g_hash_table_new (NULL, NULL);
  self->first = g_new0 (EbbCudaBlock, 1);
  self->first->size = self->size;
  g_tree_insert (self->free_by_size, self->first, self->first);
}

/* @block keeps @size bytes, and what is left becomes a free block. */
static void
split (EbbCudaBlocks *self,
       EbbCudaBlock *block,
       gsize size)
{
  EbbCudaBlock *rest = g_new0 (EbbCudaBlock, 1);

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

EbbCudaBlock *
ebb_cuda_blocks_alloc (EbbCudaBlocks *self,
                       gsize size)
{
  EbbCudaBlock wanted = { .offset = 0 };
  GTreeNode *node;
  EbbCudaBlock *block;

  if (size > self->n_free)
    return NULL;
  wanted.size = MAX ((size + self->alignment - 1) / self->alignment, 1) * self->alignment;
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
  g_hash_table_insert (self->used, GSIZE_TO_POINTER (block->offset), block);
  return block;
}

/* @block takes in the block after it. */
static void
merge_next (EbbCudaBlock *block)
{
  EbbCudaBlock *next = block->next;

  block->size += next->size;
  block->next = next->next;
  if (block->next != NULL)
    block->next->previous = block;
  g_free (next);
}

void
ebb_cuda_blocks_free (EbbCudaBlocks *self,
                      EbbCudaBlock *block)
{
  g_hash_table_remove (self->used, GSIZE_TO_POINTER (block->offset));
  self->n_free += block->size;
  block->in_use = FALSE;
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

EbbCudaBlock *
ebb_cuda_blocks_find (EbbCudaBlocks *self,
                      gsize offset)
{
  return g_hash_table_lookup (self->used, GSIZE_TO_POINTER (offset));
}

gsize
ebb_cuda_blocks_get_largest_free (EbbCudaBlocks *self)
{
  GTreeNode *node = g_tree_node_last (self->free_by_size);

  return node != NULL ? ((EbbCudaBlock *) g_tree_node_value (node))->size : 0;
}

void
ebb_cuda_blocks_clear (EbbCudaBlocks *self)
{
  EbbCudaBlock *next;

  for (EbbCudaBlock *block = self->first; block != NULL; block = next)
    {
      next = block->next;
      g_free (block);
    }
  self->first = NULL;
  g_clear_pointer (&self->free_by_size, g_tree_unref);
  g_clear_pointer (&self->used, g_hash_table_unref);
}
