/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The operands of launches that are measured: random numbers, indices that are in range, and memory that lies in the
 * cache or doesn't, as in the step. */
#include "tensor/profile/cost-private.h"

#include "tensor/error-private.h"
#include "tensor/n-threads-private.h"
#include "tensor/profile/rerun-private.h"
#include "tensor/thread-private.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT 256
#define LEAST_RING (64 * 1024)
/* Share of the available memory that timing may take for operands, and share that one launch may take besides. */
#define PART_OF_AVAILABLE 4
/* Most bytes that oneDNN packs of an operand on one thread, as far as was seen. */
#define MOST_PACKED ((gsize) 5 << 20)

/* Where an operand lies. */
typedef enum
{
  PLACE_NONE,
  PLACE_READ,
  PLACE_WRITE,
  PLACE_REST
} Place;

/* -- memory -------------------------------------------------------------------------------------------------------- */

/* Bytes of the device that timing may take. The system grants host memory that a control group doesn't have, and kills
 * the process that uses it. */
static guint64
get_room (EbbDevice *device)
{
  return ebb_memory_get_available (device) / PART_OF_AVAILABLE;
}

/* Host memory past the allocator of tensors: the heap of those is not to grow by what is needed once. */
static gboolean
ring_init (EbbCostRing *self,
           EbbDevice *device,
           gsize size,
           GError **error)
{
  self->size = size;
  self->next = 0;
  if (!device->backend->host_memory)
    {
      self->data = ebb_device_alloc (device, size, EBB_PURPOSE_WORKSPACE, error);
      return self->data != NULL;
    }
  self->data = mmap (NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (self->data == MAP_FAILED)
    {
      self->data = NULL;
      return ebb_fail (error, EBB_ERROR_NO_MEMORY, "no %" G_GSIZE_FORMAT " bytes for operands: %s", size,
                       g_strerror (errno));
    }
  madvise (self->data, size, MADV_HUGEPAGE); /* as tensors have them */
  return TRUE;
}

static void
ring_clear (EbbCostRing *self,
            EbbDevice *device)
{
  if (self->data == NULL)
    return;
  if (device->backend->host_memory)
    munmap (self->data, self->size);
  else
    ebb_device_free (device, self->data, self->size, EBB_PURPOSE_WORKSPACE);
  self->data = NULL;
}

static void *
ring_take (EbbCostRing *self,
           gsize size)
{
  void *data;

  if (self->next + size > self->size)
    self->next = 0;
  data = self->data + self->next;
  self->next += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return data;
}

/* As bf16, so that each four bytes are an f32 in [-1, 1) as well, and each two an f16. */
static gboolean
fill_random (EbbDevice *device,
             void *data,
             gsize size,
             GError **error)
{
  EbbView view = { .data = data,
                   .dtype = EBB_DTYPE_BF16,
                   .n_dims = 1,
                   .shape = { (gint64) size / 2 },
                   .strides = { 1 } };

  return ebb_rerun_fill_random (device, &view, 1, error);
}

static gboolean
try_init (EbbCostMemory *self,
          EbbDevice *device,
          gsize ring_size,
          GError **error)
{
  *self = (EbbCostMemory){ .device = device };
  if (ring_init (&self->reads, device, ring_size, error) && ring_init (&self->writes, device, ring_size, error)
      && ring_init (&self->rest, device, 2 * ring_size, error)
      && fill_random (device, self->reads.data, ring_size, error)
      && fill_random (device, self->writes.data, ring_size, error))
    return TRUE;
  ebb_cost_memory_clear (self);
  return FALSE;
}

/* Rings of twice the cache, where @max_bytes, the machine, and the device have room. */
gboolean
ebb_cost_memory_init (EbbCostMemory *self,
                      EbbDevice *device,
                      guint64 cache_bytes,
                      guint64 max_bytes,
                      GError **error)
{
  gsize size = (gsize) MIN (2 * cache_bytes, MIN (max_bytes, get_room (device)) / 4) / ALIGNMENT * ALIGNMENT;

  for (size = MAX (size, LEAST_RING);; size = size / 2 / ALIGNMENT * ALIGNMENT)
    {
      g_autoptr (GError) local_error = NULL;

      if (try_init (self, device, size, &local_error))
        return TRUE;
      if (!g_error_matches (local_error, EBB_ERROR, EBB_ERROR_NO_MEMORY) || size < 2 * LEAST_RING)
        {
          g_propagate_prefixed_error (error, g_steal_pointer (&local_error), "costs of launches: ");
          return FALSE;
        }
    }
}

void
ebb_cost_memory_clear (EbbCostMemory *self)
{
  ring_clear (&self->reads, self->device);
  ring_clear (&self->writes, self->device);
  ring_clear (&self->rest, self->device);
}

/* -- integers ------------------------------------------------------------------------------------------------------ */

static gboolean
fill_value (EbbDevice *device,
            EbbView *view,
            double value,
            GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_FILL);
  launch.params.fill.value = value;
  launch.outputs[launch.n_outputs++] = view;
  return ebb_rerun_launch (device, &launch, error);
}

static gboolean
fill_indices (EbbDevice *device,
              EbbView *view,
              gint64 limit,
              GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_RANDINT);
  launch.params.random.philox.seed = 2;
  launch.params.random.low = 0;
  launch.params.random.high = (double) MAX (limit, 1);
  launch.outputs[launch.n_outputs++] = view;
  return ebb_rerun_launch (device, &launch, error);
}

/* The number of values that input @k indexes; 0 if it holds no indices. */
static gint64
get_index_limit (const EbbCostRun *self,
                 guint k)
{
  const EbbView *x = &self->views[0], *y = &self->views[EBB_LAUNCH_MAX_INPUTS];
  int dim = self->launch.params.index.dim;

  switch (self->launch.kernel)
    {
    case EBB_KERNEL_INDEX_SELECT:
      return k == 1 ? x->shape[1] : 0;
    case EBB_KERNEL_INDEX_ADD:
      return k == 1 ? y->shape[1] : 0;
    case EBB_KERNEL_GATHER:
      return k == 1 ? (x->n_dims > 0 ? x->shape[dim] : 1) : 0;
    case EBB_KERNEL_SCATTER_ADD:
      return k == 1 ? (y->n_dims > 0 ? y->shape[dim] : 1) : 0;
    case EBB_KERNEL_CROSS_ENTROPY:
    case EBB_KERNEL_CROSS_ENTROPY_PART:
    case EBB_KERNEL_CROSS_ENTROPY_JOIN:
      return k == 1 ? self->launch.params.xent.n_classes : 0;
    case EBB_KERNEL_CROSS_ENTROPY_GRAD:
      return k == 2 ? self->launch.params.xent.n_classes : 0;
    default:
      return 0;
    }
}

static gboolean
is_random (const EbbCostRun *self,
           guint k)
{
  const EbbDType dtype = self->views[k].dtype;

  return dtype != EBB_DTYPE_I64 && dtype != EBB_DTYPE_I32 && dtype != EBB_DTYPE_BOOL
         && self->launch.kernel != EBB_KERNEL_MULTINOMIAL;
}

/* What has no random bytes: indices, masks that are true everywhere, and starts and 64-bit floats that are 0. Weights
 * to draw by must not be negative. */
static gboolean
fill_rest (EbbCostRun *self,
           guint k,
           GError **error)
{
  EbbDevice *device = self->memory->device;
  const EbbView *view = &self->views[k];
  EbbView flat = { .data = view->data, .dtype = view->dtype, .n_dims = 1, .strides = { 1 } };
  gint64 limit = get_index_limit (self, k);

  flat.shape[0] = (gint64) (ebb_rerun_get_extent (view) / ebb_dtype_get_size (view->dtype));
  if (!is_random (self, k)) /* it lies in the rest, which the next launch would take for random floats */
    self->memory->filled = MIN (self->memory->filled, (gsize) ((guint8 *) view->data - self->memory->rest.data));
  if (limit > 0)
    return fill_indices (device, &flat, limit, error);
  if (view->dtype == EBB_DTYPE_BOOL)
    return fill_value (device, &flat, 1, error);
  if (view->dtype == EBB_DTYPE_I64 || view->dtype == EBB_DTYPE_I32)
    return fill_value (device, &flat, 0, error);
  if (self->launch.kernel == EBB_KERNEL_MULTINOMIAL)
    return fill_value (device, &flat, 0.5, error);
  return TRUE;
}

/* -- one launch ---------------------------------------------------------------------------------------------------- */

/* Decides where operands lie; returns the bytes that are wanted of the rest. */
static gsize
choose_places (EbbCostRun *self)
{
  const gsize half = self->memory->reads.size / 2;
  gsize n_rest = 0;

  memset (self->sizes, 0, sizeof self->sizes);
  memset (self->places, PLACE_NONE, sizeof self->places);
  for (guint k = 0; k < EBB_LAUNCH_MAX_OPERANDS; k++)
    {
      const EbbView *view = &self->views[k];
      const guint root = (guint) self->cost->shared[k];
      guint8 place = k >= EBB_LAUNCH_MAX_INPUTS ? PLACE_WRITE : PLACE_READ;

      if (view->n_dims < 0)
        continue;
      if (k < EBB_LAUNCH_MAX_INPUTS && !is_random (self, k))
        place = PLACE_REST;
      self->places[root] = MAX (self->places[root], place);
      self->sizes[root] = MAX (self->sizes[root], ebb_rerun_get_extent (view));
    }
  for (guint k = 0; k < EBB_LAUNCH_MAX_OPERANDS; k++)
    {
      if (self->sizes[k] > half)
        self->places[k] = PLACE_REST;
      if (self->places[k] == PLACE_REST)
        n_rest += (self->sizes[k] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
  return n_rest;
}

static gsize
get_item_size (const EbbCostLaunch *cost,
               const EbbCostItem *item,
               guint k)
{
  static const gsize floats = sizeof (float);
  gsize n = (gsize) item->n_elements;

  if ((item->has & 1u << k) == 0)
    return 0;
  if (cost->kernel == EBB_KERNEL_SQUARED_NORM)
    return n * ebb_dtype_get_size (cost->params.squared_norm.dtype);
  switch (k)
    {
    case 0: return n * ebb_dtype_get_size (cost->params.adamw.grad_dtype);
    case 1: return n * ebb_dtype_get_size (cost->params.adamw.dtype);
    case 2:
    case 3: return n * ebb_dtype_get_size (cost->params.adamw.moment_dtype);
    default: return (n + EBB_MOMENT_BLOCK - 1) / EBB_MOMENT_BLOCK * floats;
    }
}

/* The largest sum of items' data in one of the rings. */
static gsize
count_item_bytes (const EbbCostRun *self)
{
  gsize n_read = 0, n_written = 0;

  for (guint i = 0; i < self->cost->n_items; i++)
    for (guint k = 0; k < EBB_LAUNCH_ITEM_DATA; k++)
      *(k == 0 ? &n_read : &n_written) += get_item_size (self->cost, &self->shapes[i], k) + ALIGNMENT;
  return MAX (n_read, n_written);
}

static void
place_items (EbbCostRun *self)
{
  for (guint i = 0; i < self->cost->n_items; i++)
    {
      self->items[i].n_elements = self->shapes[i].n_elements;
      for (guint k = 0; k < EBB_LAUNCH_ITEM_DATA; k++)
        {
          gsize size = get_item_size (self->cost, &self->shapes[i], k);

          if (size > 0)
            self->items[i].data[k] = ring_take (k == 0 ? &self->memory->reads : &self->memory->writes, size);
        }
    }
}

static void
place_view (EbbCostRun *self,
            guint root,
            EbbCostRing *ring)
{
  void *data = ring_take (ring, self->sizes[root]);

  for (guint k = root; k < EBB_LAUNCH_MAX_OPERANDS; k++)
    if (self->views[k].n_dims >= 0 && (guint) self->cost->shared[k] == root)
      self->views[k].data = data;
}

static gboolean
place_views (EbbCostRun *self,
             gsize n_rest,
             GError **error)
{
  EbbCostMemory *memory = self->memory;

  memory->rest.next = 0;
  if (n_rest > memory->filled)
    {
      if (!fill_random (memory->device, memory->rest.data + memory->filled, n_rest - memory->filled, error))
        return FALSE;
      memory->filled = n_rest;
    }
  for (guint k = 0; k < EBB_LAUNCH_MAX_OPERANDS; k++)
    if (self->sizes[k] > 0)
      place_view (self, k,
                  self->places[k] == PLACE_REST   ? &memory->rest
                  : self->places[k] == PLACE_READ ? &memory->reads
                                                  : &memory->writes);
  for (guint k = 0; k < EBB_LAUNCH_MAX_INPUTS; k++)
    if (self->sizes[k] > 0 && !fill_rest (self, k, error))
      return FALSE;
  return TRUE;
}

/* Bytes that the launch takes besides its operands: workspace, and on the CPU what oneDNN packs on each thread. */
static guint64
count_besides (const EbbCostRun *self)
{
  const EbbBackend *backend = self->memory->device->backend;
  guint64 n_bytes = backend->get_workspace != NULL
                        ? backend->get_workspace (self->memory->device->index, &self->launch)
                        : 0;

  for (guint k = 0; backend->host_memory && self->cost->kernel == EBB_KERNEL_MATMUL && k < EBB_LAUNCH_MAX_INPUTS; k++)
    n_bytes += (guint64) ebb_cpu_get_n_threads () * MIN (self->sizes[k], MOST_PACKED);
  return n_bytes;
}

gboolean
ebb_cost_run_init (EbbCostRun *self,
                   EbbCostMemory *memory,
                   const EbbCostLaunch *cost,
                   double share,
                   GError **error)
{
  const guint64 room = get_room (memory->device); /* less than before: kernels keep code and tables of each shape */
  gsize n_rest = 0, n_items = 0;

  memset (self, 0, sizeof *self);
  self->memory = memory;
  self->cost = cost;
  self->shapes = g_new (EbbCostItem, cost->n_items);
  self->items = g_new0 (EbbLaunchItem, cost->n_items);
  memcpy (self->views, cost->views, sizeof self->views);
  ebb_cost_launch_init (cost, self->views, &self->launch);
  self->launch.n_items = cost->n_items;
  self->launch.items = self->items;
  for (int attempt = 0; attempt < 16; attempt++)
    {
      guint64 n_besides;

      memcpy (self->views, cost->views, sizeof self->views);
      for (guint i = 0; i < cost->n_items; i++)
        self->shapes[i] = cost->items[i];
      self->share = ebb_cost_launch_scale (cost, self->views, self->shapes, share);
      n_rest = choose_places (self);
      n_items = cost->n_items > 0 ? count_item_bytes (self) : 0;
      n_besides = count_besides (self);
      if (n_rest <= memory->rest.size && n_items <= memory->reads.size && n_besides <= room)
        {
          place_items (self);
          return place_views (self, n_rest, error);
        }
      share = MIN (share, 1)
              * MIN (0.9, 0.95
                              * MIN ((double) room / (double) MAX (n_besides, 1),
                                     MIN ((double) memory->rest.size / (double) MAX (n_rest, 1),
                                          (double) memory->reads.size / (double) MAX (n_items, 1))));
    }
  return FALSE;
}

void
ebb_cost_run_move (EbbCostRun *self)
{
  if (self->cost->n_items > 0 && self->cost->cold != 0)
    place_items (self);
  for (guint k = 0; k < EBB_LAUNCH_MAX_OPERANDS; k++)
    if (self->sizes[k] > 0 && self->places[k] != PLACE_REST && (self->cost->cold & 1u << k) != 0)
      place_view (self, k, self->places[k] == PLACE_READ ? &self->memory->reads : &self->memory->writes);
}

void
ebb_cost_run_clear (EbbCostRun *self)
{
  g_free (self->shapes);
  g_free (self->items);
}
