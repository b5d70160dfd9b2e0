/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tensor/sim/sim-private.h"

#include <sys/mman.h>

/* Host memory of the emulated device, which copies run from and to. */

#define PAGE 4096

SimHostBlock *
sim_host_block_find (SimDevice *device,
                     const void *address)
{
  GTreeNode *node = g_tree_upper_bound (device->host_blocks, address);
  SimHostBlock *block;

  node = node != NULL ? g_tree_node_previous (node) : g_tree_node_last (device->host_blocks);
  if (node == NULL)
    return NULL;
  block = g_tree_node_value (node);
  return (gsize) address - (gsize) block->data < block->size ? block : NULL;
}

void *
sim_alloc_host (int index,
                gsize size,
                GError **error)
{
  SimDevice *device = sim_device_get (index);
  gsize mapped = MAX ((size + PAGE - 1) / PAGE, 1) * PAGE;
  char *data = MAP_FAILED;
  SimHostBlock *block;
  gboolean fails;

  pthread_mutex_lock (&device->lock);
  fails = sim_device_take_failure (device, EBB_FAILURE_ALLOC_HOST);
  pthread_mutex_unlock (&device->lock);
  if (!fails && mapped >= size)
    data = mmap (NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY,
                   "out of host memory for copies of %s: %" G_GSIZE_FORMAT " bytes asked for%s", device->name, size,
                   fails ? " (asked to fail)" : "");
      return NULL;
    }
  madvise (data, mapped, MADV_HUGEPAGE);
  block = g_new0 (SimHostBlock, 1);
  block->data = data;
  block->size = size;
  block->mapped = mapped;
  pthread_mutex_lock (&device->lock);
  sim_uses_init (&block->uses, device, "host block", size);
  block->uses.born = 0;
  block->uses.on_host = TRUE;
  g_tree_insert (device->host_blocks, data, block);
  pthread_mutex_unlock (&device->lock);
  return data;
}

void
sim_free_host (int index,
               void *data,
               gsize size)
{
  SimDevice *device = sim_device_get (index);
  g_autoptr (GError) race = NULL;
  SimHostBlock *block;

  if (data == NULL)
    return;
  pthread_mutex_lock (&device->lock);
  block = g_tree_lookup (device->host_blocks, data);
  if (block != NULL && !sim_uses_check_free (&block->uses, device, TRUE, &race))
    {
      if (device->race == NULL)
        device->race = g_error_copy (race);
      sim_device_drain (device);
    }
  if (block != NULL)
    g_tree_remove (device->host_blocks, data);
  pthread_mutex_unlock (&device->lock);
  if (race != NULL)
    g_critical ("%s", race->message);
  g_return_if_fail (block != NULL && block->size == size);
  munmap (block->data, block->mapped);
  sim_uses_clear (&block->uses);
  g_free (block);
}
