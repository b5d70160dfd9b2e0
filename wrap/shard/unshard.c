/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/unit-private.h"

#include "tensor/autograd/autograd-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/profile/timeline-private.h"

#include <string.h>

/* Gathers the full parameters of a unit and reshards them: the states that unit-private.h describes. */

/* -- unsharding ---------------------------------------------------------------------------------------------------- */

static void
drop_full (EbbShardUnit *self)
{
  for (guint i = 0; i < self->layout->n_buffers; i++)
    g_clear_pointer (&self->buffers[i].full, ebb_tensor_unref);
  self->is_cached = FALSE;
}

/* This rank's input to the all-gather of a buffer: its shard, on the device and in the dtype of compute. */
static EbbTensor *
prepare_shard (EbbShardUnit *self,
               EbbTensor *shard,
               gboolean lowers,
               GError **error)
{
  g_autoptr (EbbTensor) cast = lowers ? ebb_tensor_convert (shard, self->compute_dtype, error) : ebb_tensor_ref (shard);

  return cast != NULL ? ebb_to_device (cast, self->device, error) : NULL;
}

static gboolean
make_full (EbbShardUnit *self,
           guint buffer,
           EbbTensor *shard,
           GError **error)
{
  EbbShardBuffer *it = &self->buffers[buffer];
  const gint64 n = self->layout->n_elements[buffer];
  const char *op_name = ebb_thread.op_name;

  ebb_thread.op_name = "all_gather"; /* not the op that runs while this unit is prefetched */
  if (n == shard->n_elements)
    it->full = ebb_tensor_alias (shard); /* one rank has it all */
  else
    it->full = ebb_tensor_new_uninitialized (&n, 1, shard->view.dtype, self->device, error);
  ebb_thread.op_name = op_name;
  if (it->full == NULL)
    return FALSE;
  ebb_storage_set_purpose (it->full->storage, EBB_PURPOSE_PARAMETER);
  if (n != shard->n_elements)
    ebb_timeline_name_tensor (it->full, "%s, unsharded", self->name);
  return TRUE;
}

static gboolean
begin_gather (EbbShardUnit *self,
              gboolean lowers,
              GError **error)
{
  const guint n = self->layout->n_buffers;
  g_autofree EbbCollectivePart *parts = g_new0 (EbbCollectivePart, n + 1);
  g_autoptr (GPtrArray) shards = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  const EbbModes modes = ebb_modes_enter_internal ();
  gboolean ok = TRUE;

  for (guint i = 0; ok && i < n; i++)
    {
      EbbTensor *shard = prepare_shard (self, self->buffers[i].shard, lowers, error);

      if (shard != NULL)
        g_ptr_array_add (shards, shard);
      ok = shard != NULL && make_full (self, i, shard, error);
      if (ok)
        parts[i] = (EbbCollectivePart){
          .full = self->buffers[i].full,
          .shard = shard->n_elements > 0 ? shard : NULL,
          .counts = ebb_shard_layout_get_counts (self->layout, i),
        };
    }
  if (ok)
    {
      g_autofree char *purpose = g_strdup_printf ("gathering %s", self->name);

      self->gathering = ebb_process_group_start (self->group, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, parts, n, 0,
                                                 purpose, error);
    }
  ebb_modes_leave (&modes);
  if (!ok || self->gathering == NULL)
    {
      drop_full (self);
      g_prefix_error (error, "gathering %s: ", self->name);
      return FALSE;
    }
  for (guint i = 0; i < n; i++)
    self->gathered_bytes += ebb_tensor_get_n_bytes (self->buffers[i].full);
  self->n_gathers++;
  self->state = EBB_SHARD_UNSHARDING;
  ebb_shard_note_unsharded (self, TRUE);
  return TRUE;
}

static void
exchange_gradients (EbbShardUnit *self)
{
  for (guint i = 0; i < self->n_entries; i++)
    {
      EbbShardEntry *entry = &self->entries[i];
      EbbTensor *grad = entry->tensor->grad;

      entry->tensor->grad = entry->stashed_grad;
      entry->stashed_grad = grad;
    }
}

/* Points the parameters into the full buffers. */
static void
use_full (EbbShardUnit *self)
{
  for (guint i = 0; i < self->n_entries; i++)
    {
      const EbbShardParameter *parameter = &self->layout->parameters[i];
      EbbShardBuffer *it = &self->buffers[parameter->buffer];
      g_autoptr (EbbTensor) view = NULL;

      it->full->storage->birth = it->shard->storage->birth;
      it->version = it->full->storage->version = it->shard->storage->version;
      view = ebb_tensor_new_view (it->full->storage, it->full->offset + parameter->start, parameter->shape, NULL,
                                  parameter->n_dims, it->full->view.dtype);
      ebb_tensor_swap_storage (self->entries[i].tensor, view);
    }
  exchange_gradients (self);
  self->state = EBB_SHARD_UNSHARDED;
}

/* If the gather fails, the unit is sharded again. */
static gboolean
finish_gather (EbbShardUnit *self,
               GError **error)
{
  g_autoptr (EbbWork) work = g_steal_pointer (&self->gathering);
  const EbbModes modes = ebb_modes_enter_internal ();
  const gboolean ok = ebb_work_wait (work, error);

  if (ok)
    use_full (self);
  ebb_modes_leave (&modes);
  if (ok)
    return TRUE;
  g_prefix_error (error, "gathering %s: ", self->name);
  drop_full (self);
  self->state = EBB_SHARD_SHARDED;
  ebb_shard_note_unsharded (self, FALSE);
  return FALSE;
}

/* Pinned memory may have been changed by other programs, which leaves no trace. */
static gboolean
cache_is_valid (EbbShardUnit *self)
{
  for (guint i = 0; i < self->layout->n_buffers; i++)
    {
      const EbbShardBuffer *it = &self->buffers[i];

      if (it->shard->storage->version != it->version || it->full->storage->version != it->version
          || it->shard->storage->pinned)
        return FALSE;
    }
  return TRUE;
}

static gboolean
use_in_place (EbbShardUnit *self)
{
  if (!self->is_in_place)
    return FALSE;
  exchange_gradients (self);
  self->state = EBB_SHARD_UNSHARDED;
  ebb_shard_note_unsharded (self, TRUE);
  return TRUE;
}

static gboolean
use_cache (EbbShardUnit *self)
{
  EbbModes modes;

  if (!self->is_cached || !cache_is_valid (self))
    return FALSE;
  modes = ebb_modes_enter_internal ();
  self->is_cached = FALSE;
  use_full (self);
  ebb_modes_leave (&modes);
  ebb_shard_note_unsharded (self, TRUE);
  return TRUE;
}

gboolean
ebb_shard_unit_begin_unshard (EbbShardUnit *self,
                              GError **error)
{
  if (self->n_entries == 0 || self->state != EBB_SHARD_SHARDED)
    return TRUE;
  drop_full (self);
  return begin_gather (self, self->lowers, error);
}

gboolean
ebb_shard_unit_unshard (EbbShardUnit *self,
                        GError **error)
{
  if (G_LIKELY (self->state == EBB_SHARD_UNSHARDED) || self->n_entries == 0 || use_in_place (self)
      || use_cache (self))
    return TRUE;
  return ebb_shard_unit_begin_unshard (self, error) && finish_gather (self, error);
}

/* -- resharding ---------------------------------------------------------------------------------------------------- */

gboolean
ebb_shard_unit_reshard_cached (EbbShardUnit *self,
                               GError **error)
{
  if (self->state == EBB_SHARD_SHARDED)
    return TRUE;
  if (self->state == EBB_SHARD_UNSHARDING && !finish_gather (self, error))
    return FALSE;
  for (guint i = 0; !self->is_in_place && i < self->n_entries; i++)
    ebb_tensor_swap_storage (self->entries[i].tensor, self->entries[i].shard);
  exchange_gradients (self);
  self->state = EBB_SHARD_SHARDED;
  self->is_cached = TRUE;
  ebb_shard_note_unsharded (self, FALSE);
  return TRUE;
}

gboolean
ebb_shard_unit_reshard (EbbShardUnit *self,
                        GError **error)
{
  if (!ebb_shard_unit_reshard_cached (self, error))
    return FALSE;
  drop_full (self);
  return TRUE;
}

/* -- summoned parameters ------------------------------------------------------------------------------------------- */

gboolean
ebb_shard_unit_summon (EbbShardUnit *self,
                       GError **error)
{
  if (self->n_forwards > 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "the full parameters of %s can't be summoned during its forward",
                   self->name);
      return FALSE;
    }
  if (self->n_summoned == 0 && self->n_entries > 0
      && (!ebb_shard_unit_finalize (self, error) || !begin_gather (self, FALSE, error)
          || !finish_gather (self, error)))
    return FALSE;
  self->n_summoned++;
  return TRUE;
}

/* Copies this rank's elements of the full parameters to its shards. */
static gboolean
write_back (EbbShardUnit *self,
            GError **error)
{
  const guint rank = ebb_process_group_get_rank (self->group);

  for (guint i = 0; i < self->n_entries; i++)
    {
      EbbTensor *tensor = self->entries[i].tensor;
      gint64 begin, end;

      ebb_shard_layout_get_range (self->layout, i, rank, &begin, &end);
      if (tensor->storage != self->entries[i].shard->storage
          && !ebb_shard_copy_elements (tensor, begin, end - begin, self->entries[i].shard, 0, error))
        return FALSE;
    }
  return TRUE;
}

gboolean
ebb_shard_unit_release (EbbShardUnit *self,
                        gboolean writeback,
                        GError **error)
{
  EbbModes modes;
  gboolean ok;

  if (self->n_summoned == 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "%s was not summoned: call ebb_summon_full_params () first",
                   self->name);
      return FALSE;
    }
  if (--self->n_summoned > 0 || self->n_entries == 0)
    return TRUE;
  modes = ebb_modes_enter_internal ();
  ok = !writeback || write_back (self, error);
  ebb_modes_leave (&modes);
  for (guint i = 0; writeback && i < self->layout->n_buffers; i++)
    if (self->buffers[i].full->storage != self->buffers[i].shard->storage)
      ebb_storage_change (self->buffers[i].shard->storage);
  return ebb_shard_unit_reshard (self, ok ? error : NULL) && ok;
}

/* -- queries ------------------------------------------------------------------------------------------------------- */

EbbShardUnit *
ebb_shard_unit_of (EbbTensor *parameter,
                   guint *entry)
{
  EbbShardUnit *self = (EbbShardUnit *) parameter->owner;

  if (self == NULL || self->base.funcs != &ebb_shard_unit_funcs)
    return NULL;
  for (guint i = 0; i < self->n_entries; i++)
    if (self->entries[i].tensor == parameter)
      {
        if (entry != NULL)
          *entry = i;
        return self;
      }
  return NULL;
}

gboolean
ebb_shard_unit_is_used (const EbbShardUnit *self)
{
  for (guint i = 0; i < self->n_entries; i++)
    if (__atomic_load_n (&self->entries[i].tensor->n_uses, __ATOMIC_RELAXED) != 0)
      return TRUE;
  return FALSE;
}

gint64
ebb_shard_unit_count_elements (const EbbShardUnit *self)
{
  gint64 n = 0;

  for (guint i = 0; i < self->n_entries; i++)
    n += self->layout->parameters[i].n_elements;
  return n;
}

/* -- the owner of the parameters ----------------------------------------------------------------------------------- */

static gboolean
prepare (EbbParameterOwner *owner,
         EbbTensor *parameter,
         GError **error)
{
  EbbShardUnit *self = (EbbShardUnit *) owner;

  return ebb_modes.in_backward > 0 ? ebb_shard_unit_pre_backward (self, error) : ebb_shard_unit_unshard (self, error);
}

static gboolean
unused (EbbParameterOwner *owner,
        EbbTensor *parameter,
        GError **error)
{
  EbbShardUnit *self = (EbbShardUnit *) owner;

  return ebb_shard_unit_is_used (self) || ebb_shard_unit_post_backward (self, error);
}

static gboolean
finalize (EbbParameterOwner *owner,
          EbbTensor *parameter,
          GError **error)
{
  return ebb_shard_unit_finalize ((EbbShardUnit *) owner, error);
}

static void
drop_grads (EbbParameterOwner *owner,
            EbbTensor *parameter)
{
  guint i = 0;
  EbbShardUnit *self = ebb_shard_unit_of (parameter, &i);

  g_clear_pointer (&self->entries[i].stashed_grad, ebb_tensor_unref);
}

static gpointer
get_shard_group (EbbParameterOwner *owner)
{
  EbbShardUnit *self = (EbbShardUnit *) owner;

  return ebb_process_group_get_size (self->group) > 1 ? self->group : NULL;
}

static gboolean
reduce_over_shards (EbbParameterOwner *owner,
                    EbbReduceKind op,
                    EbbTensor *values,
                    GError **error)
{
  return ebb_process_group_reduce_norms (((EbbShardUnit *) owner)->group, op, values, "a norm over shards", error);
}

static gboolean
is_full (EbbParameterOwner *owner,
         EbbTensor *parameter)
{
  return ((EbbShardUnit *) owner)->n_summoned > 0;
}

static gboolean
is_available (EbbParameterOwner *owner)
{
  return ((EbbShardUnit *) owner)->state == EBB_SHARD_UNSHARDED;
}

static gint64
get_n_elements (EbbParameterOwner *owner,
                EbbTensor *parameter)
{
  guint i = 0;
  EbbShardUnit *self = ebb_shard_unit_of (parameter, &i);

  return self->layout->parameters[i].n_elements;
}

static EbbDevice *
get_device (EbbParameterOwner *owner)
{
  return ((EbbShardUnit *) owner)->device;
}

/* A full parameter begins at its first element. */
static gint64
get_first_element (EbbParameterOwner *owner,
                   EbbTensor *parameter)
{
  guint i = 0;
  EbbShardUnit *self = ebb_shard_unit_of (parameter, &i);
  gint64 begin, end;

  ebb_shard_layout_get_range (self->layout, i, ebb_process_group_get_rank (self->group), &begin, &end);
  return parameter->n_elements == self->layout->parameters[i].n_elements ? 0 : begin;
}

static gboolean
prepare_recompute (EbbParameterOwner *owner,
                   gboolean is_needed,
                   GError **error)
{
  return ebb_shard_unit_pre_recompute ((EbbShardUnit *) owner, is_needed, error);
}

static void
owner_ref (EbbParameterOwner *owner)
{
  ebb_shard_unit_ref ((EbbShardUnit *) owner);
}

static void
owner_unref (EbbParameterOwner *owner)
{
  ebb_shard_unit_unref ((EbbShardUnit *) owner);
}

const EbbParameterOwnerFuncs ebb_shard_unit_funcs = {
  .prepare = prepare,
  .unused = unused,
  .finalize = finalize,
  .drop_grads = drop_grads,
  .get_shard_group = get_shard_group,
  .reduce_over_shards = reduce_over_shards,
  .is_full = is_full,
  .is_available = is_available,
  .get_n_elements = get_n_elements,
  .get_first_element = get_first_element,
  .get_device = get_device,
  .prepare_recompute = prepare_recompute,
  .ref = owner_ref,
  .unref = owner_unref,
};

/* -- elements ------------------------------------------------------------------------------------------------------ */

static EbbTensor *
view_elements (EbbTensor *tensor,
               gint64 begin,
               gint64 n)
{
  return ebb_tensor_new_view (tensor->storage, tensor->offset + begin, &n, NULL, 1, tensor->view.dtype);
}

gboolean
ebb_shard_copy_elements (EbbTensor *source,
                         gint64 source_begin,
                         gint64 n,
                         EbbTensor *target,
                         gint64 target_begin,
                         GError **error)
{
  g_autoptr (EbbTensor) from = view_elements (source, source_begin, n);
  g_autoptr (EbbTensor) to = view_elements (target, target_begin, n);
  g_autoptr (EbbTensor) near = NULL;
  EbbLaunch launch;

  if (n == 0)
    return TRUE;
  near = ebb_to_device (from, target->storage->device, error);
  if (near == NULL)
    return FALSE;
  ebb_launch_init (&launch, EBB_KERNEL_COPY);
  ebb_launch_input (&launch, near);
  ebb_launch_output (&launch, to);
  return ebb_launch (target->storage->device, &launch, error);
}
