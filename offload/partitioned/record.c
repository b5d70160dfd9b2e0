/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/partitioned/record-private.h"

#include "dist/tensor-parallel/ops-private.h"
#include "dist/group/process-group-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

/* So many blocks before the one that is gathered ahead the next store begins to bring. */
#define N_READ_AHEAD 2

struct _EbbPartitionRecord
{
  EbbPartitionRecords *partition;
  EbbActivationStore *where; /* the store that @kept is of: the next one, or the fallback; NULL: a tensor */
  EbbHandle *kept;           /* this rank's piece and the sample, or the block */
  char *purpose;             /* of the gather, as ranks compare it; NULL: the block is kept whole */
  EbbDevice *device;
  EbbDType dtype;
  gsize n_bytes; /* of the block */
  gsize n_kept;
  gint64 n_elements, n_own, n_sampled;
  GList link; /* in the store's records, unless the block is kept whole */
  /* of a gather that a prefetch has begun */
  EbbTensor *whole, *samples;
  EbbWork *gathering;
  GError *failure; /* or why it couldn't be begun */
  gsize n_ahead;   /* bytes of it that count as held */
};

static EbbTensor *
view_run (EbbTensor *tensor,
          gint64 start,
          gint64 n)
{
  return ebb_tensor_new_view (tensor->storage, tensor->offset + start, &n, NULL, 1, tensor->view.dtype);
}

/* -- putting ------------------------------------------------------------------------------------------------------- */

/* Beside the ops: none of those who watch them is concerned. */
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

static gint64
count_elements (const EbbView *view)
{
  gint64 n = 1;

  for (int d = 0; d < view->n_dims; d++)
    n *= view->shape[d];
  return n;
}

/* The own piece with the sample behind it, in memory of its own: that of the block can go. */
static EbbTensor *
cut_out (EbbPartitionRecord *self,
         EbbTensor *block,
         EbbTensor *tensor,
         gboolean is_sampled,
         GError **error)
{
  const guint n_ranks = ebb_process_group_get_size (self->partition->group);
  const guint rank = ebb_process_group_get_rank (self->partition->group);
  const gsize size = ebb_dtype_get_size (self->dtype);
  EbbView piece = block->view, sample;
  gint64 first, n;
  EbbTensor *kept;

  ebb_parallel_get_part (self->n_elements, n_ranks, rank, &first, &self->n_own);
  piece.data = (char *) piece.data + (gsize) first * size;
  piece.shape[0] = self->n_own;
  ebb_partition_sample (&tensor->view, &sample);
  self->n_sampled = is_sampled ? count_elements (&sample) : 0;
  n = self->n_own + self->n_sampled;
  if (self->device->kernels[EBB_KERNEL_COPY] == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED, "device %s has no kernel %s",
                   ebb_device_get_name (self->device), ebb_kernel_get_name (EBB_KERNEL_COPY));
      return NULL;
    }
  kept = ebb_tensor_new_uninitialized (&n, 1, self->dtype, self->device, error);
  if (kept == NULL)
    return NULL;
  if (copy (self->device, &piece, kept->view.data, error)
      && (!is_sampled
          || copy (self->device, &sample, (char *) kept->view.data + (gsize) self->n_own * size, error)))
    return kept;
  ebb_tensor_unref (kept);
  return NULL;
}

/* Where the next store has no place, the same bytes go to the fallback: other ranks need not know. */
static gboolean
keep (EbbPartitionRecord *self,
      EbbTensor *tensor,
      GError **error)
{
  EbbPartitionRecords *partition = self->partition;
  g_autoptr (GError) local = NULL;

  self->n_kept = ebb_tensor_get_n_bytes (tensor);
  if (partition->next == NULL)
    {
      self->kept = ebb_handle_new (tensor);
      return TRUE;
    }
  self->kept = ebb_activation_store_put_block (partition->next, tensor, &local);
  if (self->kept != NULL)
    self->where = g_object_ref (partition->next);
  else
    self->kept = ebb_activation_store_put_instead (partition->store, tensor, local, &self->where, error);
  return self->kept != NULL;
}

static EbbPartitionRecord *
record_new (EbbPartitionRecords *partition,
            EbbTensor *block)
{
  EbbPartitionRecord *self = g_new0 (EbbPartitionRecord, 1);

  self->partition = partition;
  self->device = block->storage->device;
  self->dtype = block->view.dtype;
  self->n_bytes = ebb_tensor_get_n_bytes (block);
  self->n_elements = block->n_elements;
  self->link.data = self;
  return self;
}

static void
count (EbbPartitionRecord *self)
{
  EbbPartitionRecords *partition = self->partition;

  pthread_mutex_lock (&partition->lock);
  g_queue_push_tail_link (&partition->records, &self->link);
  partition->bytes_whole += self->n_bytes;
  partition->bytes_kept += self->n_kept;
  partition->n_partitioned++;
  pthread_mutex_unlock (&partition->lock);
}

EbbPartitionRecord *
ebb_partition_record_new (EbbPartitionRecords *partition,
                          EbbTensor *block,
                          EbbTensor *tensor,
                          gboolean is_sampled,
                          GError **error)
{
  EbbPartitionRecord *self = record_new (partition, block);
  g_autofree char *what = ebb_partition_describe (tensor);
  g_autoptr (EbbTensor) kept = cut_out (self, block, tensor, is_sampled, error);

  if (kept == NULL || !keep (self, kept, error))
    {
      ebb_partition_record_free (self);
      return NULL;
    }
  self->purpose = g_strconcat ("gathering ", what, NULL);
  count (self);
  return self;
}

EbbPartitionRecord *
ebb_partition_record_new_whole (EbbPartitionRecords *partition,
                                EbbTensor *block,
                                GError **error)
{
  EbbPartitionRecord *self = record_new (partition, block);

  if (keep (self, block, error))
    return self;
  ebb_partition_record_free (self);
  return NULL;
}

/* What was brought ahead is held no longer: somebody asked for it, or nobody will. */
static void
count_no_more (EbbPartitionRecord *self)
{
  if (self->n_ahead > 0)
    ebb_activation_store_count_held (self->partition->store, -(gint64) self->n_ahead);
  self->n_ahead = 0;
}

static void
drop_room (EbbPartitionRecord *self)
{
  count_no_more (self);
  g_clear_pointer (&self->whole, ebb_tensor_unref);
  g_clear_pointer (&self->samples, ebb_tensor_unref);
}

void
ebb_partition_record_free (EbbPartitionRecord *self)
{
  EbbPartitionRecords *partition = self->partition;

  if (self->purpose != NULL)
    {
      pthread_mutex_lock (&partition->lock);
      g_queue_unlink (&partition->records, &self->link);
      partition->bytes_whole -= self->n_bytes;
      partition->bytes_kept -= self->n_kept;
      pthread_mutex_unlock (&partition->lock);
    }
  g_clear_pointer (&self->gathering, ebb_work_unref);
  drop_room (self);
  g_clear_error (&self->failure);
  g_clear_pointer (&self->kept, ebb_handle_unref);
  g_clear_object (&self->where);
  g_free (self->purpose);
  g_free (self);
}

guint64
ebb_partition_record_get_held_bytes (EbbPartitionRecord *self)
{
  return self->n_kept;
}

/* -- gathering ----------------------------------------------------------------------------------------------------- */

static EbbTensor *
fetch (EbbPartitionRecord *self,
       GError **error)
{
  return self->where != NULL ? ebb_activation_store_get_block (self->where, self->kept, error)
                             : ebb_handle_get_tensor (self->kept);
}

static gboolean
make_room (EbbPartitionRecord *self,
           GError **error)
{
  const gint64 n = self->n_sampled * ebb_process_group_get_size (self->partition->group);

  self->whole = ebb_tensor_new_uninitialized (&self->n_elements, 1, self->dtype, self->device, error);
  if (self->whole != NULL && n > 0)
    self->samples = ebb_tensor_new_uninitialized (&n, 1, self->dtype, self->device, error);
  if (self->whole != NULL && (n == 0 || self->samples != NULL))
    return TRUE;
  g_clear_pointer (&self->whole, ebb_tensor_unref);
  return FALSE;
}

/* @is_ahead: on the group's thread, beside computing. */
static gboolean
start (EbbPartitionRecord *self,
       EbbTensor *kept,
       gboolean is_ahead,
       GError **error)
{
  EbbProcessGroup *group = self->partition->group;
  const guint n_ranks = ebb_process_group_get_size (group), n_parts = self->n_sampled > 0 ? 2 : 1;
  g_autofree gint64 *counts = g_new (gint64, n_ranks);
  g_autoptr (EbbTensor) piece = view_run (kept, 0, self->n_own);
  g_autoptr (EbbTensor) sample = self->n_sampled > 0 ? view_run (kept, self->n_own, self->n_sampled) : NULL;
  const EbbCollectivePart parts[] = { { self->whole, piece, counts }, { self->samples, sample, NULL } };

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
gather (EbbPartitionRecord *self,
        gboolean is_ahead,
        GError **error)
{
  EbbPartitionRecords *partition = self->partition;
  g_autoptr (EbbTensor) kept = fetch (self, error);

  if (kept == NULL || !make_room (self, error))
    return FALSE;
  if (!start (self, kept, is_ahead, error))
    {
      drop_room (self);
      return FALSE;
    }
  pthread_mutex_lock (&partition->lock);
  partition->n_gathers++;
  pthread_mutex_unlock (&partition->lock);
  return TRUE;
}

/* What was put just before @self comes next: by then the pieces are to be here. */
static void
read_ahead (EbbPartitionRecord *self)
{
  EbbActivationStore *stores[N_READ_AHEAD];
  EbbHandle *handles[N_READ_AHEAD];
  guint n = 0;

  pthread_mutex_lock (&self->partition->lock);
  for (GList *l = self->link.prev; l != NULL && n < N_READ_AHEAD; l = l->prev)
    {
      EbbPartitionRecord *record = l->data;

      if (record->where == NULL || record->gathering != NULL)
        continue;
      stores[n] = g_object_ref (record->where);
      handles[n++] = ebb_handle_ref (record->kept);
    }
  pthread_mutex_unlock (&self->partition->lock);
  for (guint i = 0; i < n; i++)
    {
      ebb_activation_store_prefetch_block (stores[i], handles[i]);
      ebb_handle_unref (handles[i]);
      g_object_unref (stores[i]);
    }
}

/* The others gather by now, and would take whatever this rank calls next for its part of that. */
static void
give_up (EbbPartitionRecord *self)
{
  g_prefix_error (&self->failure, "%s ahead (a prefetch of 0 does without): ", self->purpose);
  ebb_process_group_fail (self->partition->group, self->failure);
}

void
ebb_partition_record_prefetch (EbbPartitionRecord *self)
{
  const int stopped = ebb_thread.stopped;

  if (self->purpose == NULL)
    {
      if (self->where != NULL)
        ebb_activation_store_prefetch_block (self->where, self->kept);
      return;
    }
  if (self->gathering != NULL || self->failure != NULL)
    return;
  ebb_thread.stopped = 0;
  if (gather (self, TRUE, &self->failure))
    {
      self->n_ahead = ebb_tensor_get_n_bytes (self->whole);
      if (self->samples != NULL)
        self->n_ahead += ebb_tensor_get_n_bytes (self->samples);
      ebb_activation_store_count_held (self->partition->store, (gint64) self->n_ahead);
      read_ahead (self);
    }
  else
    give_up (self);
  ebb_thread.stopped = stopped;
}

static gboolean
finish (EbbPartitionRecord *self,
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
  ebb_activation_store_count_seconds (self->partition->store, work != NULL ? ebb_work_get_seconds (work) : waited,
                                      waited);
  return ok
         && (self->samples == NULL
             || ebb_partition_compare_samples (self->samples, ebb_process_group_get_size (self->partition->group),
                                               self->purpose, error));
}

EbbTensor *
ebb_partition_record_get (EbbPartitionRecord *self,
                          GError **error)
{
  const int stopped = ebb_thread.stopped;
  EbbTensor *whole;
  gboolean ok;

  if (self->purpose == NULL)
    return fetch (self, error);
  ebb_thread.stopped = 0;
  ok = finish (self, error);
  ebb_thread.stopped = stopped;
  whole = g_steal_pointer (&self->whole);
  drop_room (self);
  if (!ok)
    g_clear_pointer (&whole, ebb_tensor_unref);
  return whole;
}
