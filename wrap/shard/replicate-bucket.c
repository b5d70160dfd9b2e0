/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/group/process-group-private.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/autograd/leaf-hook-private.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/profile/profiler-private.h"
#include "wrap/shard/replicate-private.h"

/* Puts the parameters of a replicated module into buckets, and reduces the gradients of each bucket at once. */

static EbbReplicaBucket *
get_bucket (EbbReplica *self,
            guint index)
{
  return &g_array_index (self->buckets, EbbReplicaBucket, index);
}

static EbbReplicaEntry *
get_member (EbbReplica *self,
            const EbbReplicaBucket *bucket,
            guint index)
{
  return &self->entries[g_array_index (bucket->members, guint, index)];
}

gboolean
ebb_replica_entry_is_local (const EbbReplicaEntry *entry)
{
  return entry->bucket != EBB_REPLICA_NO_BUCKET && entry->parameter->grad != NULL && !entry->is_reduced
         && !entry->in_flight;
}

/* -- making buckets ------------------------------------------------------------------------------------------------ */

static gboolean
is_up_to_date (EbbReplica *self)
{
  for (guint i = 0; i < self->n_entries; i++)
    {
      const EbbReplicaEntry *entry = &self->entries[i];
      EbbTensor *parameter = entry->parameter;

      if (entry->is_trainable != parameter->requires_grad || entry->dtype != parameter->view.dtype
          || entry->device != parameter->storage->device)
        return FALSE;
    }
  return self->buckets->len > 0;
}

/* The bucket of @entry's dtype and device that has room for it: only the last of a kind does. */
static guint
find_room (EbbReplica *self,
           const EbbReplicaEntry *entry,
           guint64 n_bytes)
{
  for (guint i = self->buckets->len; i > 0; i--)
    {
      EbbReplicaBucket *bucket = get_bucket (self, i - 1);
      const EbbReplicaEntry *other = get_member (self, bucket, 0);

      if (other->dtype == entry->dtype && other->device == entry->device)
        return n_bytes <= self->bucket_bytes && bucket->n_bytes <= self->bucket_bytes - n_bytes
                   ? i - 1
                   : EBB_REPLICA_NO_BUCKET;
    }
  return EBB_REPLICA_NO_BUCKET;
}

static void
put_into_bucket (EbbReplica *self,
                 guint number)
{
  EbbReplicaEntry *entry = &self->entries[number];
  guint64 n_bytes = ebb_tensor_get_n_bytes (entry->parameter);

  entry->bucket = find_room (self, entry, n_bytes);
  if (entry->bucket == EBB_REPLICA_NO_BUCKET)
    {
      EbbReplicaBucket bucket = { .members = g_array_new (FALSE, FALSE, sizeof (guint)) };

      entry->bucket = self->buckets->len;
      g_array_append_val (self->buckets, bucket);
    }
  g_array_append_val (get_bucket (self, entry->bucket)->members, number);
  get_bucket (self, entry->bucket)->n_bytes += n_bytes;
}

void
ebb_replica_update_buckets (EbbReplica *self)
{
  if (is_up_to_date (self))
    return;
  ebb_replica_clear_buckets (self);
  for (guint i = 0; i < self->n_entries; i++)
    {
      EbbReplicaEntry *entry = &self->entries[i];
      EbbTensor *parameter = entry->parameter;

      entry->is_trainable = parameter->requires_grad;
      entry->dtype = parameter->view.dtype;
      entry->device = parameter->storage->device;
      entry->bucket = EBB_REPLICA_NO_BUCKET;
      if (entry->is_trainable)
        put_into_bucket (self, i);
    }
}

/* -- beginning ----------------------------------------------------------------------------------------------------- */

/* Stashes the gradient, unless one is stashed already, and puts zeros in its place: another rank may have one. */
static gboolean
pad (EbbReplicaEntry *entry,
     GError **error)
{
  EbbTensor *parameter = entry->parameter;

  if (entry->stashed_grad == NULL)
    entry->stashed_grad = g_steal_pointer (&parameter->grad);
  g_clear_pointer (&parameter->grad, ebb_tensor_unref);
  entry->is_reduced = FALSE;
  parameter->grad = ebb_tensor_new_zeros_like (parameter, error);
  if (parameter->grad == NULL)
    return FALSE;
  ebb_storage_set_purpose (parameter->grad->storage, EBB_PURPOSE_GRADIENT);
  entry->is_padded = TRUE;
  return TRUE;
}

/* A bucket has one dtype, that of its parameters. */
static gboolean
make_alike (EbbTensor *parameter,
            GError **error)
{
  EbbTensor *copy;

  if (ebb_view_is_contiguous (&parameter->grad->view) && parameter->grad->view.dtype == parameter->view.dtype)
    return TRUE;
  copy = ebb_tensor_convert (parameter->grad, parameter->view.dtype, error);
  if (copy == NULL)
    return FALSE;
  ebb_storage_set_purpose (copy->storage, EBB_PURPOSE_GRADIENT);
  ebb_tensor_unref (parameter->grad);
  parameter->grad = copy;
  return TRUE;
}

/* One number a member: 1 where this rank has a gradient. */
static EbbTensor *
make_flags (EbbReplica *self,
            const EbbReplicaBucket *bucket,
            GError **error)
{
  const EbbReplicaEntry *first = get_member (self, bucket, 0);
  gint64 n = bucket->members->len;
  g_autofree float *values = g_new (float, n);
  g_autoptr (EbbTensor) wide = NULL;

  for (guint i = 0; i < n; i++)
    values[i] = !get_member (self, bucket, i)->is_padded;
  wide = ebb_tensor_new_from_values (values, (gsize) n, &n, 1, EBB_DTYPE_F32, first->device, error);
  return wide != NULL ? ebb_cast (wide, first->dtype, error) : NULL;
}

/* @parts has room for all members and the flags. */
static gboolean
collect_parts (EbbReplica *self,
               EbbReplicaBucket *bucket,
               EbbCollectivePart *parts,
               guint *n_parts,
               GError **error)
{
  gboolean pads = self->unused_parameters == EBB_UNUSED_PARAMETERS_ZERO;

  *n_parts = 0;
  for (guint i = 0; i < bucket->members->len; i++)
    {
      EbbReplicaEntry *entry = get_member (self, bucket, i);

      if (!ebb_replica_entry_is_local (entry) && (!pads || !pad (entry, error)))
        {
          if (pads)
            return FALSE;
          continue;
        }
      if (!make_alike (entry->parameter, error))
        return FALSE;
      parts[(*n_parts)++] = (EbbCollectivePart){ .full = entry->parameter->grad };
      entry->in_flight = TRUE;
    }
  if (!pads)
    return TRUE;
  bucket->flags = make_flags (self, bucket, error);
  if (bucket->flags == NULL)
    return FALSE;
  parts[(*n_parts)++] = (EbbCollectivePart){ .full = bucket->flags };
  return TRUE;
}

/* Takes the bucket out of flight, and drops the zeros that stood for missing gradients. */
static void
take_back (EbbReplica *self,
           EbbReplicaBucket *bucket)
{
  g_clear_pointer (&bucket->flags, ebb_tensor_unref);
  for (guint i = 0; i < bucket->members->len; i++)
    {
      EbbReplicaEntry *entry = get_member (self, bucket, i);

      if (entry->is_padded)
        g_clear_pointer (&entry->parameter->grad, ebb_tensor_unref);
      entry->in_flight = entry->is_padded = FALSE;
    }
}

/* Begins the reduction of the local gradients in the bucket, if there are any. */
static gboolean
begin_bucket (EbbReplica *self,
              guint index,
              GError **error)
{
  EbbReplicaBucket *bucket = get_bucket (self, index);
  g_autofree EbbCollectivePart *parts = g_new0 (EbbCollectivePart, bucket->members->len + 1);
  g_autofree char *purpose = NULL;
  guint n_parts;

  if (!collect_parts (self, bucket, parts, &n_parts, error))
    {
      take_back (self, bucket);
      return FALSE;
    }
  if (n_parts == 0)
    return TRUE;
  purpose = g_strdup_printf ("the gradients of bucket %u of %u", index + 1, self->buckets->len);
  bucket->work = ebb_process_group_start (self->group, EBB_COLLECTIVE_ALL_REDUCE, EBB_REDUCE_OP_MEAN, parts, n_parts, 0,
                                          purpose, error);
  if (bucket->work == NULL)
    {
      take_back (self, bucket);
      return FALSE;
    }
  self->n_reductions++;
  for (guint i = 0; i < n_parts; i++)
    self->n_bytes += ebb_tensor_get_n_bytes (parts[i].full);
  for (guint i = 0; i < bucket->members->len; i++)
    if (get_member (self, bucket, i)->in_flight)
      {
        get_member (self, bucket, i)->was_begun = TRUE;
        get_member (self, bucket, i)->is_ready = FALSE;
      }
  return TRUE;
}

/* -- finishing ----------------------------------------------------------------------------------------------------- */

static gboolean
add_stashed (EbbReplicaEntry *entry,
             GError **error)
{
  EbbTensor *parameter = entry->parameter;
  gboolean ok = TRUE;

  if (entry->stashed_grad == NULL)
    return TRUE;
  if (parameter->grad == NULL)
    {
      parameter->grad = g_steal_pointer (&entry->stashed_grad);
      return TRUE;
    }
  ebb_push_grad_enabled (FALSE);
  ok = ebb_tensor_add_scaled (parameter->grad, entry->stashed_grad, 1, error);
  ebb_pop_grad_enabled ();
  g_clear_pointer (&entry->stashed_grad, ebb_tensor_unref);
  return ok;
}

/* A parameter of which all ranks gave zeros for a missing gradient gets none. */
static gboolean
drop_unused (EbbReplica *self,
             EbbReplicaBucket *bucket,
             GError **error)
{
  g_autoptr (EbbTensor) wide = NULL;
  g_autoptr (EbbTensor) host = NULL;
  const float *values;

  if (bucket->flags == NULL)
    return TRUE;
  wide = ebb_cast (bucket->flags, EBB_DTYPE_F32, error);
  host = ebb_to_device (wide, ebb_device_get_cpu (), error);
  values = ebb_tensor_get_data (host, error);
  if (values == NULL)
    return FALSE;
  for (guint i = 0; i < bucket->members->len; i++)
    if (values[i] != 0)
      get_member (self, bucket, i)->is_padded = FALSE;
  return TRUE;
}

static gboolean
await_work (EbbReplica *self,
            EbbReplicaBucket *bucket,
            GError **error)
{
  g_autoptr (EbbWork) work = g_steal_pointer (&bucket->work);
  EbbProfileMark mark = ebb_profile_push_range ("wait for gradients", EBB_PHASE_BACKWARD);
  gint64 before = g_get_monotonic_time ();
  gboolean ok = ebb_work_wait (work, error);

  self->seconds += (double) (g_get_monotonic_time () - before) / G_USEC_PER_SEC;
  ebb_profile_pop (mark);
  return ok;
}

gboolean
ebb_replica_finish_bucket (EbbReplica *self,
                           guint index,
                           gboolean notify,
                           GError **error)
{
  EbbReplicaBucket *bucket = get_bucket (self, index);
  g_autofree gboolean *reduced = NULL;
  gboolean ok;

  if (bucket->work == NULL)
    return TRUE;
  reduced = g_new (gboolean, bucket->members->len);
  ok = await_work (self, bucket, error) && drop_unused (self, bucket, error);
  for (guint i = 0; i < bucket->members->len; i++)
    reduced[i] = get_member (self, bucket, i)->in_flight;
  take_back (self, bucket);
  for (guint i = 0; ok && i < bucket->members->len; i++)
    {
      EbbReplicaEntry *entry = get_member (self, bucket, i);

      if (!reduced[i])
        continue;
      entry->is_reduced = TRUE;
      /* A parameter that a graph still uses may not be changed. */
      ok = add_stashed (entry, error)
           && (!notify || __atomic_load_n (&entry->parameter->n_uses, __ATOMIC_RELAXED) != 0
               || ebb_leaf_notify (entry->parameter, error));
    }
  return ok;
}

/* -- sweeps -------------------------------------------------------------------------------------------------------- */

static gboolean
is_complete (EbbReplica *self,
             const EbbReplicaBucket *bucket)
{
  for (guint i = 0; i < bucket->members->len; i++)
    if (!get_member (self, bucket, i)->is_ready)
      return FALSE;
  return TRUE;
}

static gboolean
has_hook (EbbReplica *self,
          const EbbReplicaBucket *bucket)
{
  for (guint i = 0; i < bucket->members->len; i++)
    if (ebb_leaf_has_hook (get_member (self, bucket, i)->parameter))
      return TRUE;
  return FALSE;
}

/* Finishes the buckets whose reduction is done. If an optimizer that steps in backward waits for gradients to drop
 * them, at most two buckets stay in flight. */
static gboolean
finish_early (EbbReplica *self,
              GError **error)
{
  for (guint i = 0; i < self->next; i++)
    {
      EbbReplicaBucket *bucket = get_bucket (self, i);

      if (bucket->work != NULL && (ebb_work_is_done (bucket->work) || (i + 2 < self->next && has_hook (self, bucket)))
          && !ebb_replica_finish_bucket (self, i, TRUE, error))
        return FALSE;
    }
  return TRUE;
}

gboolean
ebb_replica_begin_ready (EbbReplica *self,
                         GError **error)
{
  gboolean any = FALSE;

  while (self->next < self->buckets->len && is_complete (self, get_bucket (self, self->next)))
    {
      if (!begin_bucket (self, self->next, error))
        return FALSE;
      self->next++;
      any = TRUE;
    }
  return !any || finish_early (self, error);
}

void
ebb_replica_close_sweep (EbbReplica *self)
{
  self->is_open = FALSE;
  self->next = 0;
  for (guint i = 0; i < self->n_entries; i++)
    self->entries[i].is_ready = self->entries[i].was_begun = FALSE;
}

static gboolean
any_local (EbbReplica *self)
{
  for (guint i = 0; i < self->n_entries; i++)
    if (ebb_replica_entry_is_local (&self->entries[i]))
      return TRUE;
  return FALSE;
}

/* Fails if a parameter has no gradient and no graph is left that could give it one. */
static gboolean
check_unused (EbbReplica *self,
              GError **error)
{
  g_autoptr (GString) names = g_string_new (NULL);
  guint n = 0, n_trainable = 0;

  if (!self->is_open || self->unused_parameters != EBB_UNUSED_PARAMETERS_ERROR)
    return TRUE;
  for (guint i = self->n_entries; i > 0; i--)
    {
      const EbbReplicaEntry *entry = &self->entries[i - 1];

      if (entry->bucket == EBB_REPLICA_NO_BUCKET)
        continue;
      n_trainable++;
      if (entry->was_begun || entry->parameter->grad != NULL
          || __atomic_load_n (&entry->parameter->n_uses, __ATOMIC_RELAXED) != 0)
        continue;
      g_string_append_printf (names, "%s%s", n++ > 0 ? ", " : "", entry->name);
    }
  if (n == 0)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
               "rank %u: %u of %u trainable parameters of the replicated module got no gradient in the backward pass: "
               "%s; freeze them, or set EbbReplicateOptions:unused-parameters to zero if some ranks may leave them out",
               ebb_process_group_get_rank (self->group), n, n_trainable, names->str);
  return FALSE;
}

gboolean
ebb_replica_end_sweep (EbbReplica *self,
                       gboolean in_backward,
                       GError **error)
{
  gboolean ok = check_unused (self, error);

  if (!self->is_open)
    ebb_replica_update_buckets (self);
  self->n_sweeps++;
  do
    {
      for (; ok && self->next < self->buckets->len; self->next++)
        ok = begin_bucket (self, self->next, error);
      /* Even after a failure all are waited for: reductions in flight write to the gradients. */
      for (guint i = 0; i < self->buckets->len; i++)
        if (!ebb_replica_finish_bucket (self, i, in_backward && ok, ok ? error : NULL))
          ok = FALSE;
      self->next = 0;
    }
  while (ok && any_local (self));
  ebb_replica_close_sweep (self);
  return ok;
}

void
ebb_replica_clear_buckets (EbbReplica *self)
{
  for (guint i = 0; i < self->buckets->len; i++)
    {
      EbbReplicaBucket *bucket = get_bucket (self, i);

      g_array_unref (bucket->members);
      g_clear_pointer (&bucket->work, ebb_work_unref);
      g_clear_pointer (&bucket->flags, ebb_tensor_unref);
    }
  g_array_set_size (self->buckets, 0);
}
