/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Runs one launch, whose operands are host memory, on a device: operands and workspace lie there between bytes that
 * must stay. */
#include "support/device-kernel-run.h"

#include "tensor/backend/backend-private.h"

#include <string.h>

#define MARGIN 512 /* a multiple of what devices align memory to */
#define MARGIN_BYTE 0x5a
#define GARBAGE_BYTE 0xff /* a NaN as f32 and as f64 */
#define MAX_BLOCKS (EBB_LAUNCH_MAX_INPUTS + EBB_LAUNCH_MAX_OUTPUTS + 64 * EBB_LAUNCH_ITEM_DATA)

/* Bytes of the host that operands lie in, and their copy on the device, which is aligned as they are. */
typedef struct
{
  char *begin, *end;
  gboolean is_output;
  char *memory; /* of the device */
  gsize first;  /* where in it the copy lies */
  gsize size;
} Block;

typedef struct
{
  EbbDevice *device;
  const EbbLaunch *launch;
  Block blocks[MAX_BLOCKS];
  guint n_blocks;
} Run;

/* -- which bytes --------------------------------------------------------------------------------------------------- */

static gsize
get_element_size (EbbDType dtype)
{
  return ebb_dtype_get_size (dtype);
}

/* Blocks that share bytes become one. */
static void
add_block (Run *self,
           void *data,
           gsize size,
           gboolean is_output)
{
  Block block = { .begin = data, .end = (char *) data + size, .is_output = is_output };

  if (data == NULL || size == 0)
    return;
  for (guint i = 0; i < self->n_blocks;)
    if (self->blocks[i].begin < block.end && block.begin < self->blocks[i].end)
      {
        block.begin = MIN (block.begin, self->blocks[i].begin);
        block.end = MAX (block.end, self->blocks[i].end);
        block.is_output |= self->blocks[i].is_output;
        self->blocks[i] = self->blocks[--self->n_blocks];
        i = 0;
      }
    else
      i++;
  g_assert_cmpuint (self->n_blocks, <, MAX_BLOCKS);
  self->blocks[self->n_blocks++] = block;
}

static void
add_view (Run *self,
          const EbbView *view,
          gboolean is_output)
{
  gsize n = 1;

  if (view == NULL)
    return;
  for (int d = 0; d < view->n_dims; d++)
    {
      if (view->shape[d] == 0)
        return;
      n += (gsize) ((view->shape[d] - 1) * view->strides[d]);
    }
  add_block (self, view->data, n * get_element_size (view->dtype), is_output);
}

/* Bytes of each element of an item's data; of its scales, of which each is for a block of elements, 0. */
static gsize
get_item_element_size (const EbbLaunch *launch,
                       guint k)
{
  if (launch->kernel == EBB_KERNEL_SQUARED_NORM)
    return get_element_size (launch->params.squared_norm.dtype);
  g_assert_cmpint (launch->kernel, ==, EBB_KERNEL_ADAMW);
  switch (k)
    {
    case 0: return get_element_size (launch->params.adamw.grad_dtype);
    case 1: return get_element_size (launch->params.adamw.dtype);
    case 2:
    case 3: return get_element_size (launch->params.adamw.moment_dtype);
    default: return 0;
    }
}

static void
add_item (Run *self,
          const EbbLaunchItem *item)
{
  gint64 n_scales = (item->n_elements + EBB_MOMENT_BLOCK - 1) / EBB_MOMENT_BLOCK;

  for (guint k = 0; k < EBB_LAUNCH_ITEM_DATA; k++)
    if (item->data[k] != NULL)
      {
        gsize size = get_item_element_size (self->launch, k);

        add_block (self, item->data[k],
                   size > 0 ? (gsize) item->n_elements * size : (gsize) n_scales * sizeof (float),
                   self->launch->kernel == EBB_KERNEL_ADAMW && k > 0);
      }
}

/* -- there and back ------------------------------------------------------------------------------------------------ */

static void
copy (Run *self,
      void *destination,
      const void *source,
      gsize size,
      gboolean to_host)
{
  const EbbBackend *backend = self->device->backend;

  /* Failures of the kernel are not reported here. */
  if (backend->host_memory)
    memcpy (destination, source, size);
  else
    g_assert_true (backend->copy (self->device->index, destination, source, size, to_host, NULL));
}

static void
send (Run *self,
      Block *block)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *bytes = NULL;

  block->size = block->first + (gsize) (block->end - block->begin) + MARGIN;
  block->memory = self->device->backend->alloc (self->device->index, block->size, &error);
  g_assert_no_error (error);
  bytes = g_malloc (block->size);
  memset (bytes, MARGIN_BYTE, block->size);
  memcpy (bytes + block->first, block->begin, (gsize) (block->end - block->begin));
  copy (self, block->memory, bytes, block->size, FALSE);
}

static void
fetch (Run *self,
       Block *block,
       const char *kind)
{
  const char *name = ebb_kernel_get_name (self->launch->kernel);
  gsize first = block->first, n = (gsize) (block->end - block->begin);
  g_autofree char *bytes = g_malloc (block->size);

  copy (self, bytes, block->memory, block->size, TRUE);
  for (gsize i = 0; i < block->size; i++)
    if ((i < first || i >= first + n) && bytes[i] != MARGIN_BYTE)
      g_error ("%s: byte %" G_GSSIZE_FORMAT " of %s of %" G_GSIZE_FORMAT " bytes was written", name,
               (gssize) i - (gssize) first, kind, n);
  if (block->is_output)
    memcpy (block->begin, bytes + first, n);
  else if (memcmp (block->begin, bytes + first, n) != 0)
    g_error ("%s: an operand that is read alone was written", name);
  self->device->backend->free (self->device->index, block->memory, block->size);
}

static void *
translate (const Run *self,
           void *data)
{
  for (guint i = 0; i < self->n_blocks; i++)
    if ((char *) data >= self->blocks[i].begin && (char *) data < self->blocks[i].end)
      return self->blocks[i].memory + self->blocks[i].first + ((char *) data - self->blocks[i].begin);
  return data; /* without elements */
}

/* -- the launch ---------------------------------------------------------------------------------------------------- */

static gboolean
launch_there (Run *self,
              EbbLaunch *there,
              GError **error)
{
  const EbbBackend *backend = self->device->backend;
  int index = self->device->index;
  gboolean ok = backend->launch != NULL ? backend->launch (index, there, error)
                                        : self->device->kernels[there->kernel](there, error);

  return ok && (backend->synchronize == NULL || backend->synchronize (index, error));
}

static gboolean
launch_with_workspace (Run *self,
                       EbbLaunch *there,
                       GError **error)
{
  const EbbBackend *backend = self->device->backend;
  gsize size = backend->get_workspace != NULL ? backend->get_workspace (self->device->index, there) : 0;
  g_autofree char *garbage = g_malloc (size + 1);
  Block block = { .begin = garbage, .end = garbage + size, .is_output = TRUE, .first = MARGIN };
  gboolean ok;

  there->workspace = NULL;
  there->workspace_size = size;
  if (size == 0)
    return launch_there (self, there, error);
  memset (garbage, GARBAGE_BYTE, size);
  send (self, &block);
  there->workspace = block.memory + block.first;
  ok = launch_there (self, there, error);
  fetch (self, &block, "the workspace");
  return ok;
}

gboolean
test_device_kernel_run (EbbDevice *device,
                        const EbbLaunch *launch,
                        GError **error)
{
  Run self = { .device = device, .launch = launch };
  EbbLaunch there = *launch;
  EbbView inputs[EBB_LAUNCH_MAX_INPUTS], outputs[EBB_LAUNCH_MAX_OUTPUTS];
  g_autofree EbbLaunchItem *items = g_memdup2 (launch->items, launch->n_items * sizeof *items);
  gboolean ok;

  for (guint i = 0; i < launch->n_inputs; i++)
    add_view (&self, launch->inputs[i], launch->kernel == EBB_KERNEL_BATCH_NORM && i >= 3); /* running statistics */
  for (guint i = 0; i < launch->n_outputs; i++)
    add_view (&self, launch->outputs[i], TRUE);
  for (guint i = 0; i < launch->n_items; i++)
    add_item (&self, &launch->items[i]);
  for (guint i = 0; i < self.n_blocks; i++)
    {
      self.blocks[i].first = MARGIN + (gsize) self.blocks[i].begin % MARGIN;
      send (&self, &self.blocks[i]);
    }
  for (guint i = 0; i < launch->n_inputs; i++)
    if (launch->inputs[i] != NULL)
      {
        inputs[i] = *launch->inputs[i];
        inputs[i].data = translate (&self, inputs[i].data);
        there.inputs[i] = &inputs[i];
      }
  for (guint i = 0; i < launch->n_outputs; i++)
    if (launch->outputs[i] != NULL)
      {
        outputs[i] = *launch->outputs[i];
        outputs[i].data = translate (&self, outputs[i].data);
        there.outputs[i] = &outputs[i];
      }
  for (guint i = 0; i < launch->n_items; i++)
    for (guint k = 0; k < EBB_LAUNCH_ITEM_DATA; k++)
      items[i].data[k] = translate (&self, items[i].data[k]);
  there.items = items;
  ok = launch_with_workspace (&self, &there, error);
  for (guint i = 0; i < self.n_blocks; i++)
    fetch (&self, &self.blocks[i], "an operand");
  return ok;
}
