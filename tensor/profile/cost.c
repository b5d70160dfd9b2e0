/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The table of costs: finds a launch among those that were seen, follows what lies in the cache, and estimates. */
#include "tensor/profile/cost-private.h"

#include "tensor/backend/launch-item-private.h"
#include "tensor/n-threads-private.h"
#include "tensor/profile/profiler-private.h"
#include "tensor/util/checksum-private.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* Smaller operands are always taken to be in the cache: reading them from memory takes no time to speak of. */
#define SMALL_BYTES (64 * 1024)
/* Memory is followed by chunks: tensors that are parts of one have neighbouring addresses. */
#define CHUNK_SHIFT 16
#define ALL_COLD G_MAXUINT32
/* Of a device that says nothing about its cache. */
#define CACHE_BYTES_UNKNOWN (64 * 1024 * 1024)

/* -- the table ----------------------------------------------------------------------------------------------------- */

static guint64
get_cache_bytes (EbbDevice *device)
{
  glong bytes = 0;

#ifdef _SC_LEVEL3_CACHE_SIZE
  if (device->backend->host_memory)
    bytes = sysconf (_SC_LEVEL3_CACHE_SIZE);
  if (device->backend->host_memory && bytes <= 0)
    bytes = sysconf (_SC_LEVEL2_CACHE_SIZE);
#endif
  return bytes > 0 ? (guint64) bytes : CACHE_BYTES_UNKNOWN;
}

static void
launch_free (gpointer data)
{
  EbbCostLaunch *self = data;

  g_free (self->items);
  g_free (self);
}

EbbCostTable *
ebb_cost_table_new (EbbDevice *device)
{
  EbbCostTable *self = g_new0 (EbbCostTable, 1);

  self->device = device;
  self->n_threads = ebb_cpu_get_n_threads ();
  self->cache_bytes = get_cache_bytes (device);
  self->launches = g_ptr_array_new_with_free_func (launch_free);
  self->by_key = g_hash_table_new (g_int64_hash, g_int64_equal);
  self->known = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, g_free);
  self->host_seconds = -1;
  ebb_cost_file_load (self);
  return self;
}

void
ebb_cost_table_free (EbbCostTable *self)
{
  if (self == NULL)
    return;
  g_hash_table_unref (self->by_key);
  g_hash_table_unref (self->known);
  g_ptr_array_unref (self->launches);
  g_free (self->disk_folder);
  g_free (self);
}

/* -- what lies in the cache ---------------------------------------------------------------------------------------- */

static EbbCostTouch *
get_touch (EbbCostTable *self,
           gsize chunk)
{
  return &self->touches[ebb_hash_add (EBB_HASH_BEGIN, chunk) % EBB_COST_N_TOUCHES];
}

static gboolean
was_touched (EbbCostTable *self,
             gsize chunk)
{
  const EbbCostTouch *touch = get_touch (self, chunk);

  return touch->chunk == chunk && self->n_touched - touch->stamp <= self->cache_bytes;
}

/* Memory at @data is read or written, @n_bytes of it. Returns TRUE if it is not in the cache: more was touched since
 * than that holds. Its beginning and its end stand for the whole. */
static gboolean
touch (EbbCostTable *self,
       const void *data,
       guint64 n_bytes)
{
  gsize first = (gsize) data >> CHUNK_SHIFT, last = ((gsize) data + MAX (n_bytes, 1) - 1) >> CHUNK_SHIFT;
  gboolean is_cold = n_bytes > SMALL_BYTES && !was_touched (self, first) && !was_touched (self, first - 1);

  *get_touch (self, first) = (EbbCostTouch){ first, self->n_touched };
  if (last != first)
    *get_touch (self, last) = (EbbCostTouch){ last, self->n_touched };
  self->n_touched += n_bytes;
  return is_cold;
}

/* Items are in the cache where all of them fit, and the first one is. */
static gboolean
touch_items (EbbCostTable *self,
             const EbbLaunch *launch)
{
  guint64 before = self->n_touched;
  gboolean is_cold = FALSE;

  for (guint i = 0; i < launch->n_items; i++)
    for (guint k = 0; k < EBB_LAUNCH_ITEM_DATA; k++)
      {
        gboolean writes;
        gsize size = ebb_launch_item_get_size (launch, &launch->items[i], k, &writes);

        if (size > 0 && touch (self, launch->items[i].data[k], size))
          is_cold = TRUE;
      }
  return is_cold || self->n_touched - before > self->cache_bytes;
}

/* -- which launch it is -------------------------------------------------------------------------------------------- */

/* Adds the parameters that the time of a launch depends on. */
static guint64
hash_params (guint64 hash,
             const EbbLaunch *launch)
{
  const EbbKernelParams *p = &launch->params;

  switch (launch->kernel)
    {
    case EBB_KERNEL_UNARY:
    case EBB_KERNEL_UNARY_GRAD:
      return ebb_hash_add (hash, p->unary.op);
    case EBB_KERNEL_BINARY:
    case EBB_KERNEL_BINARY_SCALAR:
      hash = ebb_hash_add (hash, p->binary.op);
      return ebb_hash_add (hash, p->binary.reverse);
    case EBB_KERNEL_TRIANGLE:
      hash = ebb_hash_add (hash, (guint64) p->triangle.diagonal);
      return ebb_hash_add (hash, p->triangle.upper);
    case EBB_KERNEL_BIAS_GELU:
    case EBB_KERNEL_BIAS_GELU_GRAD:
      return ebb_hash_add (hash, p->gelu.tanh);
    case EBB_KERNEL_GATED_ACTIVATION:
    case EBB_KERNEL_GATED_ACTIVATION_GRAD:
      return ebb_hash_add (hash, p->gated.op);
    case EBB_KERNEL_COLUMN_SUM:
      return ebb_hash_add (hash, p->column_sum.accumulate);
    case EBB_KERNEL_REDUCE:
    case EBB_KERNEL_VAR:
    case EBB_KERNEL_ARG_REDUCE:
      hash = ebb_hash_add (hash, p->reduce.op);
      return ebb_hash_add (hash, p->reduce.dims);
    case EBB_KERNEL_TOPK:
      hash = ebb_hash_add (hash, (guint64) p->topk.k);
      return ebb_hash_add (hash, p->topk.largest);
    case EBB_KERNEL_SOFTMAX:
    case EBB_KERNEL_SOFTMAX_GRAD:
      return ebb_hash_add (hash, p->softmax.log);
    case EBB_KERNEL_LAYER_NORM:
    case EBB_KERNEL_LAYER_NORM_GRAD:
    case EBB_KERNEL_RMS_NORM:
    case EBB_KERNEL_RMS_NORM_GRAD:
    case EBB_KERNEL_BATCH_NORM:
    case EBB_KERNEL_BATCH_NORM_GRAD:
    case EBB_KERNEL_ADD_LAYER_NORM:
    case EBB_KERNEL_ADD_RMS_NORM:
      return ebb_hash_add (hash, (guint64) (p->norm.p > 0) | (guint64) (p->norm.training != 0) << 1
                                     | (guint64) (p->norm.accumulate_weight != 0) << 2
                                     | (guint64) (p->norm.accumulate_bias != 0) << 3
                                     | (guint64) (p->norm.normalizes_branch != 0) << 4);
    case EBB_KERNEL_CROSS_ENTROPY:
    case EBB_KERNEL_CROSS_ENTROPY_GRAD:
    case EBB_KERNEL_CROSS_ENTROPY_PART:
    case EBB_KERNEL_CROSS_ENTROPY_JOIN:
      hash = ebb_hash_add (hash, (guint64) (p->xent.smoothing > 0) | (guint64) (p->xent.cap != 0) << 1);
      return ebb_hash_add (hash, (guint64) p->xent.n_classes);
    case EBB_KERNEL_GATHER:
    case EBB_KERNEL_SCATTER_ADD:
      return ebb_hash_add (hash, (guint64) p->index.dim);
    case EBB_KERNEL_ROTARY:
      return ebb_hash_add (hash, (guint64) (p->rotary.ntk != 1.0));
    case EBB_KERNEL_MATMUL:
      return ebb_hash_add (hash, (guint64) (p->matmul.accumulate != 0) | (guint64) p->matmul.row_block << 1);
    case EBB_KERNEL_ATTENTION:
    case EBB_KERNEL_ATTENTION_GRAD:
      hash = ebb_hash_add (hash, (guint64) (p->attention.p > 0) | (guint64) (p->attention.softcap != 0) << 1
                                     | (guint64) (p->attention.causal != 0) << 2);
      hash = ebb_hash_add (hash, (guint64) p->attention.first_query);
      return ebb_hash_add (hash, (guint64) p->attention.window);
    case EBB_KERNEL_ADAMW:
      hash = ebb_hash_add (hash, p->adamw.grad_dtype);
      hash = ebb_hash_add (hash, p->adamw.moment_dtype);
      return ebb_hash_add (hash, (guint64) (p->adamw.l2 != 0) | (guint64) (p->adamw.rounds_at_random != 0) << 1
                                     | (guint64) p->adamw.dtype << 2);
    case EBB_KERNEL_SGD:
      return ebb_hash_add (hash, (guint64) (p->sgd.momentum != 0) | (guint64) (p->sgd.nesterov != 0) << 1
                                     | (guint64) (p->sgd.first != 0) << 2
                                     | (guint64) (p->sgd.rounds_at_random != 0) << 3);
    case EBB_KERNEL_MOMENT_ENCODE:
      return ebb_hash_add (hash, p->moment.is_signed);
    case EBB_KERNEL_SQUARED_NORM:
      return ebb_hash_add (hash, p->squared_norm.dtype);
    case EBB_KERNEL_NORM_SUM:
      return ebb_hash_add (hash, p->norm_sum.max);
    case EBB_KERNEL_REDUCE_RANKS:
      return ebb_hash_add (hash, (guint64) p->reduce_ranks.op);
    default:
      return hash;
    }
}

/* The first operand at the address of operand @k; that itself if it has none. */
static guint
find_shared (const EbbLaunch *launch,
             guint k)
{
  const void *data = ebb_launch_get_operand (launch, k)->data;

  for (guint i = 0; data != NULL && i < k; i++)
    {
      const EbbView *view = ebb_launch_get_operand (launch, i);

      if (view != NULL && view->data == data)
        return i;
    }
  return k;
}

static guint64
hash_view (guint64 hash,
           const EbbView *view)
{
  hash = ebb_hash_add (hash, (guint64) view->dtype << 8 | (guint64) view->n_dims);
  for (int i = 0; i < view->n_dims; i++)
    {
      hash = ebb_hash_add (hash, (guint64) view->shape[i]);
      hash = ebb_hash_add (hash, (guint64) view->strides[i]);
    }
  return hash;
}

static guint64
hash_items (guint64 hash,
            const EbbLaunch *launch)
{
  for (guint i = 0; i < launch->n_items; i++)
    {
      guint64 has = 0;

      for (guint k = 0; k < EBB_LAUNCH_ITEM_DATA; k++)
        has |= (guint64) (launch->items[i].data[k] != NULL) << k;
      hash = ebb_hash_add (hash, (guint64) launch->items[i].n_elements << 8 | has);
    }
  return hash;
}

/* 64 bits stand for a launch, here and in the file: a thousand launches share a key with a chance of 2^-45. */
static guint64
hash_launch (EbbCostTable *self,
             const EbbLaunch *launch,
             guint32 *cold)
{
  guint64 hash = EBB_HASH_BEGIN;

  hash = ebb_hash_add (hash, (guint64) launch->kernel << 32 | launch->n_items);
  *cold = 0;
  for (guint k = 0; k < EBB_LAUNCH_MAX_OPERANDS; k++)
    {
      const EbbView *view = ebb_launch_get_operand (launch, k);
      guint shared;

      if (view == NULL)
        continue;
      shared = find_shared (launch, k);
      hash = hash_view (ebb_hash_add (hash, k << 8 | shared), view);
      if (shared == k && touch (self, view->data, ebb_launch_count_operand_bytes (launch, k)))
        *cold |= 1u << k;
    }
  hash = hash_params (hash, launch);
  if (launch->n_items > 0)
    {
      hash = hash_items (hash, launch);
      if (touch_items (self, launch))
        *cold = ALL_COLD;
    }
  return ebb_hash_add (hash, *cold);
}

static EbbCostLaunch *
launch_new (guint64 key,
            const EbbLaunch *launch,
            guint32 cold)
{
  EbbCostLaunch *self = g_new0 (EbbCostLaunch, 1);

  self->key = key;
  self->kernel = launch->kernel;
  self->n_inputs = launch->n_inputs;
  self->n_outputs = launch->n_outputs;
  self->n_items = launch->n_items;
  self->params = launch->params;
  self->op = launch->op;
  self->cold = cold;
  self->bytes = ebb_launch_count_bytes (launch);
  self->flop = ebb_launch_count_flop (launch);
  self->figure.seconds = -1;
  for (guint k = 0; k < EBB_LAUNCH_MAX_OPERANDS; k++)
    {
      const EbbView *view = ebb_launch_get_operand (launch, k);

      self->views[k].n_dims = -1;
      if (view == NULL)
        continue;
      self->views[k] = *view;
      self->views[k].data = NULL;
      self->shared[k] = (gint8) find_shared (launch, k);
    }
  self->items = g_new0 (EbbCostItem, launch->n_items);
  for (guint i = 0; i < launch->n_items; i++)
    {
      self->items[i].n_elements = launch->items[i].n_elements;
      for (guint k = 0; k < EBB_LAUNCH_ITEM_DATA; k++)
        if (launch->items[i].data[k] != NULL)
          self->items[i].has |= (guint8) (1u << k);
    }
  return self;
}

guint
ebb_cost_table_add (EbbCostTable *self,
                    const EbbLaunch *launch)
{
  guint32 cold;
  guint64 key = hash_launch (self, launch, &cold);
  guint index = GPOINTER_TO_UINT (g_hash_table_lookup (self->by_key, &key));
  EbbCostLaunch *cost;
  const EbbCostFigure *figure;

  if (G_LIKELY (index > 0))
    {
      ebb_cost_table_get_launch (self, index - 1)->count++;
      return index - 1;
    }
  cost = launch_new (key, launch, cold);
  cost->count = 1;
  figure = g_hash_table_lookup (self->known, &key);
  if (figure != NULL)
    cost->figure = *figure;
  g_ptr_array_add (self->launches, cost);
  g_hash_table_insert (self->by_key, &cost->key, GUINT_TO_POINTER (self->launches->len));
  return self->launches->len - 1;
}

void
ebb_cost_launch_init (const EbbCostLaunch *self,
                      EbbView *views,
                      EbbLaunch *launch)
{
  memset (launch, 0, sizeof *launch);
  launch->kernel = self->kernel;
  launch->n_inputs = self->n_inputs;
  launch->n_outputs = self->n_outputs;
  launch->params = self->params;
  launch->op = self->op;
  for (guint k = 0; k < EBB_LAUNCH_MAX_OPERANDS; k++)
    {
      EbbView *view = views[k].n_dims >= 0 ? &views[k] : NULL;

      if (k < EBB_LAUNCH_MAX_INPUTS)
        launch->inputs[k] = view;
      else
        launch->outputs[k - EBB_LAUNCH_MAX_INPUTS] = view;
    }
}

/* -- seconds ------------------------------------------------------------------------------------------------------- */

guint
ebb_cost_table_get_n_launches (EbbCostTable *self)
{
  return self->launches->len;
}

guint
ebb_cost_table_get_n_measured (EbbCostTable *self)
{
  guint n = 0;

  for (guint i = 0; i < self->launches->len; i++)
    n += ebb_cost_table_get_launch (self, i)->figure.seconds >= 0;
  return n;
}

guint
ebb_cost_table_get_n_disturbed (EbbCostTable *self)
{
  guint n = 0;

  for (guint i = 0; i < self->launches->len; i++)
    n += ebb_cost_table_get_launch (self, i)->figure.is_disturbed;
  return n;
}

/* What a launch's time grows with. A launch of nothing counts as one of a cache line. */
static double
get_work (const EbbCostLaunch *launch)
{
  return launch->flop > 0 ? (double) launch->flop : (double) MAX (launch->bytes, 64);
}

/* The rates of a slow core, for the first launches. */
#define SLOW_FLOP 2e9
#define SLOW_BYTES 1e9
#define LEAST_SECONDS 1e-7

/* At the rate of the measured launch of the same kernel that is nearest in size; until there is one, at a low rate. */
double
ebb_cost_table_estimate (EbbCostTable *self,
                         const EbbCostLaunch *launch)
{
  double work = get_work (launch), nearest = HUGE_VAL, rate = launch->flop > 0 ? SLOW_FLOP : SLOW_BYTES;

  for (guint i = 0; i < self->launches->len; i++)
    {
      const EbbCostLaunch *other = ebb_cost_table_get_launch (self, i);
      double distance;

      if (other->kernel != launch->kernel || other->figure.seconds < 0)
        continue;
      distance = fabs (log (get_work (other) / work));
      if (distance >= nearest)
        continue;
      nearest = distance;
      rate = get_work (other) / MAX (other->figure.seconds, LEAST_SECONDS);
    }
  return MAX (work / rate, LEAST_SECONDS);
}

double
ebb_cost_table_get_seconds (EbbCostTable *self,
                            guint index)
{
  const EbbCostLaunch *launch;
  double seconds, host_seconds = MAX (self->host_seconds, LEAST_SECONDS);

  g_return_val_if_fail (index < self->launches->len, LEAST_SECONDS);

  launch = ebb_cost_table_get_launch (self, index);
  seconds = launch->figure.seconds >= 0 ? launch->figure.seconds : ebb_cost_table_estimate (self, launch);
  /* A device with queues works while the host prepares the next launch. */
  return self->device->backend->launch != NULL ? MAX (seconds, host_seconds) : seconds + host_seconds;
}
