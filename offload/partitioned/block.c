/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Stored blocks of a partitioned store: cuts out this rank's shard, and gathers the full block from all ranks. */
#include "offload/partitioned/block-private.h"

#include "dist/group/process-group-private.h"
#include "dist/tensor-parallel/ops-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

/* The next store begins to bring a block this many blocks before the gather that needs it. */
#define N_READ_AHEAD 2

typedef struct
{
  EbbStoredBlock base;
  EbbPartitionState *partition;
  EbbHandle
      *kept;     /* this rank's shard and the sample, or the full block: of the next store, the fallback, or a tensor */
  char *purpose; /* of the gather, as ranks compare it; NULL: the block is kept full */
  EbbDevice *device;
  EbbDType dtype;
  gsize n_full; /* bytes */
  gint64 n_elements, n_own, n_sampled;
  GList link; /* in the store's blocks, unless the block is kept full */
  /* of a gather that a prefetch has begun */
  EbbTensor *full, *samples;
  EbbWork *gathering;
  GError *failure; /* or why it couldn't be begun */
  gsize n_ahead;   /* bytes of it that count as held */
} PartitionedBlock;

static EbbTensor *
view_run (EbbTensor *tensor,
          gint64 start,
          gint64 n)
{
  return ebb_tensor_new_view (tensor->storage, tensor->offset + start, &n, NULL, 1, tensor->view.dtype);
}

/* -- putting ------------------------------------------------------------------------------------------------------- */

/* No op: profilers and other observers of ops do not see it. */
static gboolean
copy (EbbDevice *device,
      const EbbView *from,
      char *to,
      GError **error)
{
  EbbView there = *from;
  EbbLaunch launch;
  gint64 stride = 1;

  there.data = to;
  for (int d = there.n_dims; d-- > 0; stride *= there.shape[d])
    there.strides[d] = stride;
  ebb_launch_init (&launch, EBB_KERNEL_COPY);
  launch.inputs[launch.n_inputs++] = from;
  launch.outputs[launch.n_outputs++] = &there;
  return ebb_device_launch (device, &launch, error);
}

/* The own shard with the sample behind it, in memory of its own: that of the source can be freed. */
static EbbTensor *
cut_out (PartitionedBlock *self,
         EbbTensor *source,
         EbbTensor *tensor,
         gboolean is_sampled,
         GError **error)
{
  const guint n_ranks = ebb_process_group_get_size (self->partition->group);
  const guint rank = ebb_process_group_get_rank (self->partition->group);
  const gsize size = ebb_dtype_get_size (self->dtype);
  EbbView shard = source->view, sample;
  gint64 first, n;
  EbbTensor *kept;

  ebb_parallel_get_part (self->n_elements, n_ranks, rank, &first, &self->n_own);
  shard.data = (char *) shard.data + (gsize) first * size;
  shard.shape[0] = self->n_own;
  ebb_partition_sample (&tensor->view, &sample);
  self->n_sampled = is_sampled ? ebb_view_count_elements (&sample) : 0;
  n = self->n_own + self->n_sampled;
  if (self->device->kernels[EBB_KERNEL_COPY] == NULL)
    return ebb_fail_null (error, EBB_ERROR_NOT_SUPPORTED, "device %s has no kernel %s",
                          ebb_device_get_name (self->device), ebb_kernel_get_name (EBB_KERNEL_COPY));
  kept = ebb_tensor_new_uninitialized (&n, 1, self->dtype, self->device, error);
  if (kept == NULL)
    return NULL;
  if (copy (self->device, &shard, kept->view.data, error)
      && (!is_sampled
          || copy (self->device, &sample, (char *) kept->view.data + (gsize) self->n_own * size, error)))
    return kept;
  ebb_tensor_unref (kept);
  return NULL;
}

/* Where the next store has no room, the same bytes go to the fallback: other ranks need not know. */
static gboolean
keep (PartitionedBlock *self,
      EbbTensor *tensor,
      GError **error)
{
  EbbActivationStore *next = self->partition->next;
  g_autoptr (GError) local = NULL;

  self->base.n_bytes = ebb_tensor_get_n_bytes (tensor);
  if (next == NULL)
    {
      self->kept = ebb_handle_new (tensor);
      return TRUE;
    }
  self->kept = ebb_activation_store_put_block (next, tensor, &local);
  if (self->kept == NULL)
    self->kept = ebb_activation_store_put_instead (self->base.store, tensor, local, error);
  return self->kept != NULL;
}

static void block_clear (EbbStoredBlock *base);
static EbbTensor *block_get (EbbStoredBlock *base,
                             GError **error);
static void block_prefetch (EbbStoredBlock *base);

static PartitionedBlock *
block_new (EbbActivationStore *store,
           EbbPartitionState *partition,
           EbbTensor *source)
{
  static const EbbStoredBlockFuncs funcs = { sizeof (PartitionedBlock), block_get, block_prefetch, block_clear };
  PartitionedBlock *self = ebb_stored_block_new (&funcs, store);

  self->partition = partition;
  self->device = source->storage->device;
  self->dtype = source->view.dtype;
  self->n_full = ebb_tensor_get_n_bytes (source);
  self->n_elements = source->n_elements;
  self->link.data = self;
  return self;
}

static void
count (PartitionedBlock *self)
{
  EbbPartitionState *partition = self->partition;

  EBB_AUTO_LOCK (&partition->lock);
  g_queue_push_tail_link (&partition->blocks, &self->link);
  partition->bytes_full += self->n_full;
  partition->bytes_kept += self->base.n_bytes;
  partition->n_partitioned++;
}

EbbHandle *
ebb_partitioned_block_new (EbbActivationStore *store,
                           EbbPartitionState *partition,
                           EbbTensor *source,
                           EbbTensor *tensor,
                           gboolean is_sampled,
                           GError **error)
{
  PartitionedBlock *self = block_new (store, partition, source);
  g_autofree char *what = ebb_partition_describe (tensor);
  g_autoptr (EbbTensor) kept = cut_out (self, source, tensor, is_sampled, error);

  if (kept == NULL || !keep (self, kept, error))
    {
      ebb_handle_unref (&self->base.handle);
      return NULL;
    }
  self->purpose = g_strconcat ("gathering ", what, NULL);
  count (self);
  return &self->base.handle;
}

EbbHandle *
ebb_partitioned_block_new_full (EbbActivationStore *store,
                                EbbPartitionState *partition,
                                EbbTensor *source,
                                GError **error)
{
  PartitionedBlock *self = block_new (store, partition, source);

  if (keep (self, source, error))
    return &self->base.handle;
  ebb_handle_unref (&self->base.handle);
  return NULL;
}

/* The gathered tensor is held no longer: it was asked for, or will not be. */
static void
drop_full (PartitionedBlock *self)
{
  if (self->n_ahead > 0)
    ebb_activation_store_count_held (self->base.store, -(gint64) self->n_ahead);
  self->n_ahead = 0;
  g_clear_pointer (&self->full, ebb_tensor_unref);
  g_clear_pointer (&self->samples, ebb_tensor_unref);
}

/* A gather that was begun runs to its end. */
static void
block_clear (EbbStoredBlock *base)
{
  PartitionedBlock *self = (PartitionedBlock *) base;
  EbbPartitionState *partition = self->partition;

  if (self->purpose != NULL)
    {
      pthread_mutex_lock (&partition->lock);
      g_queue_unlink (&partition->blocks, &self->link);
      partition->bytes_full -= self->n_full;
      partition->bytes_kept -= self->base.n_bytes;
      pthread_mutex_unlock (&partition->lock);
    }
  g_clear_pointer (&self->gathering, ebb_work_unref);
  drop_full (self);
  g_clear_error (&self->failure);
  ebb_handle_unref (self->kept);
  g_free (self->purpose);
}

/* -- gathering ----------------------------------------------------------------------------------------------------- */

static gboolean
take_memory (PartitionedBlock *self,
             GError **error)
{
  const gint64 n = self->n_sampled * ebb_process_group_get_size (self->partition->group);

  self->full = ebb_tensor_new_uninitialized (&self->n_elements, 1, self->dtype, self->device, error);
  if (self->full != NULL && n > 0)
    self->samples = ebb_tensor_new_uninitialized (&n, 1, self->dtype, self->device, error);
  if (self->full != NULL && (n == 0 || self->samples != NULL))
    return TRUE;
  g_clear_pointer (&self->full, ebb_tensor_unref);
  return FALSE;
}

/* @is_ahead: on the group's thread, overlapped with computing. */
static gboolean
start (PartitionedBlock *self,
       EbbTensor *kept,
       gboolean is_ahead,
       GError **error)
{
  EbbProcessGroup *group = self->partition->group;
  const guint n_ranks = ebb_process_group_get_size (group), n_parts = self->n_sampled > 0 ? 2 : 1;
  g_autofree gint64 *counts = g_new (gint64, n_ranks);
  g_autoptr (EbbTensor) shard = view_run (kept, 0, self->n_own);
  g_autoptr (EbbTensor) sample = self->n_sampled > 0 ? view_run (kept, self->n_own, self->n_sampled) : NULL;
  const EbbCollectivePart parts[] = { { self->full, shard, counts }, { self->samples, sample, NULL } };

  for (guint r = 0; r < n_ranks; r++)
    {
      gint64 first;

      ebb_parallel_get_part (self->n_elements, n_ranks, r, &first, &counts[r]);
    }
  if (!is_ahead)
    return ebb_process_group_run (group, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, parts, n_parts, 0,
                                  self->purpose, error);
  self->gathering = ebb_process_group_start (group, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, parts, n_parts, 0,
                                             self->purpose, error);
  return self->gathering != NULL;
}

static gboolean
gather (PartitionedBlock *self,
        gboolean is_ahead,
        GError **error)
{
  EbbPartitionState *partition = self->partition;
  g_autoptr (EbbTensor) kept = ebb_stored_block_get (self->kept, error);

  if (kept == NULL || !take_memory (self, error))
    return FALSE;
  if (!start (self, kept, is_ahead, error))
    {
      drop_full (self);
      return FALSE;
    }
  EBB_AUTO_LOCK (&partition->lock);
  partition->n_gathers++;
  return TRUE;
}

/* The blocks that were put just before @self come next: by then their shards are to be here. */
static void
read_ahead (PartitionedBlock *self)
{
  EbbHandle *handles[N_READ_AHEAD];
  guint n = 0;

  pthread_mutex_lock (&self->partition->lock);
  for (GList *l = self->link.prev; l != NULL && n < N_READ_AHEAD; l = l->prev)
    if (((PartitionedBlock *) l->data)->gathering == NULL)
      handles[n++] = ebb_handle_ref (((PartitionedBlock *) l->data)->kept);
  pthread_mutex_unlock (&self->partition->lock);
  for (guint i = 0; i < n; i++)
    {
      ebb_stored_block_prefetch (handles[i]);
      ebb_handle_unref (handles[i]);
    }
}

/* The others gather by now, and would take whatever this rank calls next for its part of that. */
static void
give_up (PartitionedBlock *self)
{
  g_prefix_error (&self->failure, "%s ahead (a prefetch of 0 does without): ", self->purpose);
  ebb_process_group_fail (self->partition->group, self->failure);
}

static void
block_prefetch (EbbStoredBlock *base)
{
  PartitionedBlock *self = (PartitionedBlock *) base;
  const int stopped = ebb_modes.stopped;

  if (self->purpose == NULL)
    {
      ebb_stored_block_prefetch (self->kept);
      return;
    }
  if (self->gathering != NULL || self->failure != NULL)
    return;
  ebb_modes.stopped = 0;
  if (gather (self, TRUE, &self->failure))
    {
      self->n_ahead = ebb_tensor_get_n_bytes (self->full);
      if (self->samples != NULL)
        self->n_ahead += ebb_tensor_get_n_bytes (self->samples);
      ebb_activation_store_count_held (self->base.store, (gint64) self->n_ahead);
      read_ahead (self);
    }
  else
    give_up (self);
  ebb_modes.stopped = stopped;
}

static gboolean
finish (PartitionedBlock *self,
        GError **error)
{
  const gint64 begin = g_get_monotonic_time ();
  g_autoptr (EbbWork) work = g_steal_pointer (&self->gathering);
  double waited;
  gboolean ok;

  if (self->failure != NULL)
    {
      g_propagate_error (error, g_error_copy (self->failure));
      return FALSE;
    }
  ok = work != NULL ? ebb_work_wait (work, error) : gather (self, FALSE, error);
  waited = (double) (g_get_monotonic_time () - begin) * 1e-6;
  ebb_activation_store_count_seconds (self->base.store, work != NULL ? ebb_work_get_seconds (work) : waited,
                                      waited);
  return ok
         && (self->samples == NULL
             || ebb_partition_compare_samples (self->samples, ebb_process_group_get_size (self->partition->group),
                                               self->purpose, error));
}

static EbbTensor *
block_get (EbbStoredBlock *base,
           GError **error)
{
  PartitionedBlock *self = (PartitionedBlock *) base;
  const int stopped = ebb_modes.stopped;
  EbbTensor *full;
  gboolean ok;

  if (self->purpose == NULL)
    return ebb_stored_block_get (self->kept, error);
  ebb_modes.stopped = 0;
  ok = finish (self, error);
  ebb_modes.stopped = stopped;
  full = g_steal_pointer (&self->full);
  drop_full (self);
  if (!ok)
    g_clear_pointer (&full, ebb_tensor_unref);
  return full;
}
