/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/unit-private.h"

#include "nn/module-instance-private.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/thread-private.h"
#include "wrap/shard/tensors-private.h"

/* Making a unit, and its parameters' way between here and away. */

static gint64 get_n_elements (EbbParameterOwner *owner,
                              EbbTensor *parameter);

/* -- owner -------------------------------------------------------------------------------------------------------- */

static gboolean
prepare (EbbParameterOwner *owner,
         EbbTensor *parameter,
         GError **error)
{
  EbbShardUnit *self = (EbbShardUnit *) owner;

  if (ebb_thread.in_backward > 0)
    return ebb_shard_meet (self, error);
  return ebb_shard_unit_fetch (self, error);
}

static gboolean
unused (EbbParameterOwner *owner,
        EbbTensor *parameter,
        GError **error)
{
  EbbShardUnit *self = (EbbShardUnit *) owner;

  return ebb_shard_unit_is_used (self) || ebb_shard_leave (self, error);
}

static gboolean
finalize (EbbParameterOwner *owner,
          EbbTensor *parameter,
          GError **error)
{
  return ebb_shard_unit_settle ((EbbShardUnit *) owner, error);
}

static void
drop_grads (EbbParameterOwner *owner,
            EbbTensor *parameter)
{
  guint i = 0;
  EbbShardUnit *self = ebb_shard_unit_of (parameter, &i);

  g_clear_pointer (&self->entries[i].aside, ebb_tensor_unref);
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
                    double *values,
                    guint n_values,
                    GError **error)
{
  return ebb_shard_reduce_doubles (((EbbShardUnit *) owner)->group, op, values, n_values, error);
}

static gboolean
is_full (EbbParameterOwner *owner,
         EbbTensor *parameter)
{
  return ((EbbShardUnit *) owner)->n_summoned > 0;
}

static const EbbParameterOwnerFuncs owner_funcs = {
  .prepare = prepare,
  .unused = unused,
  .finalize = finalize,
  .drop_grads = drop_grads,
  .get_shard_group = get_shard_group,
  .reduce_over_shards = reduce_over_shards,
  .is_full = is_full,
  .get_n_elements = get_n_elements,
};

EbbShardUnit *
ebb_shard_unit_of (EbbTensor *parameter,
                   guint *entry)
{
  EbbShardUnit *self = (EbbShardUnit *) parameter->owner;

  if (self == NULL || self->base.funcs != &owner_funcs)
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

static gint64
get_n_elements (EbbParameterOwner *owner,
                EbbTensor *parameter)
{
  guint i = 0;
  EbbShardUnit *self = ebb_shard_unit_of (parameter, &i);

  return ebb_shard_layout_get_n_elements (self->layout, i);
}

EbbThreadModes
ebb_shard_begin_quiet (void)
{
  const EbbThreadModes modes = ebb_thread_save_modes ();

  ebb_thread.no_grad = TRUE;
  ebb_thread.autocast = FALSE;
  ebb_thread.stopped = 0;
  ebb_thread.hooks = NULL;
  ebb_thread.observers = NULL;
  ebb_thread.frame = 0;
  ebb_thread.rematerialization_log = NULL;
  return modes;
}

gint64
ebb_shard_unit_count_elements (const EbbShardUnit *self)
{
  gint64 n = 0;

  for (guint i = 0; i < self->n_entries; i++)
    n += ebb_shard_layout_get_n_elements (self->layout, i);
  return n;
}

gboolean
ebb_shard_unit_is_used (const EbbShardUnit *self)
{
  for (guint i = 0; i < self->n_entries; i++)
    if (__atomic_load_n (&self->entries[i].tensor->n_uses, __ATOMIC_RELAXED) != 0)
      return TRUE;
  return FALSE;
}

/* -- gathering ----------------------------------------------------------------------------------------------------- */

/* What this rank gives to the gather of a buffer: its piece, where and as the unit computes. */
static EbbTensor *
prepare_piece (EbbShardUnit *self,
               EbbTensor *piece,
               gboolean lowers,
               GError **error)
{
  g_autoptr (EbbTensor) cast = lowers ? ebb_tensor_convert (piece, self->compute_dtype, error) : ebb_tensor_ref (piece);

  return cast != NULL ? ebb_to_device (cast, self->device, error) : NULL;
}

static gboolean
make_whole (EbbShardUnit *self,
            guint buffer,
            EbbTensor *piece,
            GError **error)
{
  EbbShardBuffer *it = &self->buffers[buffer];
  gint64 n = ebb_shard_layout_get_buffer_size (self->layout, buffer);

  if (n == piece->n_elements)
    it->whole = ebb_tensor_alias (piece); /* one rank has it all */
  else
    it->whole = ebb_tensor_new_uninitialized (&n, 1, piece->view.dtype, self->device, error);
  if (it->whole == NULL)
    return FALSE;
  ebb_storage_set_purpose (it->whole->storage, EBB_PURPOSE_PARAMETER);
  return TRUE;
}

static void
drop_whole (EbbShardUnit *self)
{
  for (guint i = 0; i < ebb_shard_layout_get_n_buffers (self->layout); i++)
    g_clear_pointer (&self->buffers[i].whole, ebb_tensor_unref);
  self->is_cached = FALSE;
}

/* What other programs may write to could have changed without a trace. */
static gboolean
is_up_to_date (EbbShardUnit *self)
{
  for (guint i = 0; i < ebb_shard_layout_get_n_buffers (self->layout); i++)
    {
      const EbbShardBuffer *it = &self->buffers[i];

      if (it->piece->storage->version != it->version || it->whole->storage->version != it->version
          || it->piece->storage->pinned)
        return FALSE;
    }
  return TRUE;
}

static gboolean
begin_gather (EbbShardUnit *self,
              gboolean lowers,
              GError **error)
{
  const guint n = ebb_shard_layout_get_n_buffers (self->layout);
  g_autofree EbbCollectivePart *parts = g_new0 (EbbCollectivePart, n + 1);
  g_autoptr (GPtrArray) pieces = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  const EbbThreadModes modes = ebb_shard_begin_quiet ();
  gboolean ok = TRUE;

  for (guint i = 0; ok && i < n; i++)
    {
      EbbTensor *piece = prepare_piece (self, self->buffers[i].piece, lowers, error);

      if (piece != NULL)
        g_ptr_array_add (pieces, piece);
      ok = piece != NULL && make_whole (self, i, piece, error);
      if (ok)
        parts[i] = (EbbCollectivePart){
          .whole = self->buffers[i].whole,
          .piece = piece->n_elements > 0 ? piece : NULL,
          .counts = ebb_shard_layout_get_counts (self->layout, i),
        };
    }
  if (ok)
    {
      g_autofree char *purpose = g_strdup_printf ("gathering %s", self->name);

      self->gathering = ebb_process_group_start (self->group, EBB_COLLECTIVE_ALL_GATHER, EBB_REDUCE_OP_SUM, parts, n, 0,
                                                 purpose, error);
    }
  ebb_thread_restore_modes (&modes);
  if (!ok || self->gathering == NULL)
    {
      drop_whole (self);
      g_prefix_error (error, "gathering %s: ", self->name);
      return FALSE;
    }
  for (guint i = 0; i < n; i++)
    self->gathered_bytes += ebb_tensor_get_n_bytes (self->buffers[i].whole);
  self->n_gathers++;
  self->state = EBB_SHARD_COMING;
  ebb_shard_note_here (self, TRUE);
  return TRUE;
}

gboolean
ebb_shard_unit_begin_gather (EbbShardUnit *self,
                             GError **error)
{
  if (self->n_entries == 0 || self->state != EBB_SHARD_AWAY)
    return TRUE;
  drop_whole (self);
  return begin_gather (self, self->lowers, error);
}

static void
exchange_gradients (EbbShardUnit *self)
{
  for (guint i = 0; i < self->n_entries; i++)
    {
      EbbShardEntry *entry = &self->entries[i];
      EbbTensor *grad = entry->tensor->grad;

      entry->tensor->grad = entry->aside;
      entry->aside = grad;
    }
}

/* Points the parameters at their places in what was gathered. */
static void
arrive (EbbShardUnit *self)
{
  for (guint i = 0; i < self->n_entries; i++)
    {
      EbbShardEntry *entry = &self->entries[i];
      g_autoptr (EbbTensor) view = NULL;
      EbbShardBuffer *it;
      guint buffer, n_dims;
      gint64 offset;
      const gint64 *shape = ebb_shard_layout_get_whole_shape (self->layout, i, &n_dims);

      ebb_shard_layout_locate (self->layout, i, &buffer, &offset);
      it = &self->buffers[buffer];
      it->whole->storage->birth = it->piece->storage->birth;
      it->version = it->whole->storage->version = it->piece->storage->version;
      view = ebb_tensor_new_view (it->whole->storage, it->whole->offset + offset, shape, NULL, n_dims,
                                  it->whole->view.dtype);
      ebb_tensor_swap_storage (entry->tensor, view);
    }
  exchange_gradients (self);
  self->state = EBB_SHARD_HERE;
}

/* What was cached is there again, if it is what the shards would give. */
static gboolean
resume (EbbShardUnit *self)
{
  EbbThreadModes modes;

  if (!self->is_cached || !is_up_to_date (self))
    return FALSE;
  modes = ebb_shard_begin_quiet ();
  self->is_cached = FALSE;
  arrive (self);
  ebb_thread_restore_modes (&modes);
  ebb_shard_note_here (self, TRUE);
  return TRUE;
}

/* Waits for the gather; FALSE: it failed, and the unit is away again. */
static gboolean
finish_gather (EbbShardUnit *self,
               GError **error)
{
  g_autoptr (EbbWork) work = g_steal_pointer (&self->gathering);
  const EbbThreadModes modes = ebb_shard_begin_quiet ();
  const gboolean ok = ebb_work_wait (work, error);

  if (ok)
    arrive (self);
  ebb_thread_restore_modes (&modes);
  if (ok)
    return TRUE;
  g_prefix_error (error, "gathering %s: ", self->name);
  drop_whole (self);
  self->state = EBB_SHARD_AWAY;
  ebb_shard_note_here (self, FALSE);
  return FALSE;
}

gboolean
ebb_shard_unit_fetch (EbbShardUnit *self,
                      GError **error)
{
  if (G_LIKELY (self->state == EBB_SHARD_HERE) || self->n_entries == 0 || resume (self))
    return TRUE;
  return ebb_shard_unit_begin_gather (self, error) && finish_gather (self, error);
}

gboolean
ebb_shard_unit_reshard_cached (EbbShardUnit *self,
                               GError **error)
{
  if (self->state == EBB_SHARD_AWAY)
    return TRUE;
  if (self->state == EBB_SHARD_COMING && !finish_gather (self, error))
    return FALSE;
  for (guint i = 0; i < self->n_entries; i++)
    ebb_tensor_swap_storage (self->entries[i].tensor, self->entries[i].shard);
  exchange_gradients (self);
  self->state = EBB_SHARD_AWAY;
  self->is_cached = TRUE;
  ebb_shard_note_here (self, FALSE);
  return TRUE;
}

gboolean
ebb_shard_unit_reshard (EbbShardUnit *self,
                        GError **error)
{
  if (!ebb_shard_unit_reshard_cached (self, error))
    return FALSE;
  drop_whole (self);
  return TRUE;
}

/* -- whole for a while --------------------------------------------------------------------------------------------- */

gboolean
ebb_shard_unit_summon (EbbShardUnit *self,
                       GError **error)
{
  if (self->n_open > 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "%s can't be made whole while its forward runs", self->name);
      return FALSE;
    }
  if (self->n_summoned == 0 && self->n_entries > 0)
    {
      if (!ebb_shard_unit_settle (self, error) || !begin_gather (self, FALSE, error) || !finish_gather (self, error))
        return FALSE;
    }
  self->n_summoned++;
  return TRUE;
}

/* Copies this rank's part of what is whole to its shards. */
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

static void
note_changed_pieces (EbbShardUnit *self)
{
  for (guint i = 0; i < ebb_shard_layout_get_n_buffers (self->layout); i++)
    if (self->buffers[i].whole->storage != self->buffers[i].piece->storage)
      ebb_storage_change (self->buffers[i].piece->storage);
}

gboolean
ebb_shard_unit_release (EbbShardUnit *self,
                        gboolean writeback,
                        GError **error)
{
  EbbThreadModes modes;
  gboolean ok;

  if (self->n_summoned == 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "%s was not summoned: call ebb_summon_full_params () first",
                   self->name);
      return FALSE;
    }
  if (--self->n_summoned > 0 || self->n_entries == 0)
    return TRUE;
  modes = ebb_shard_begin_quiet ();
  ok = !writeback || write_back (self, error);
  ebb_thread_restore_modes (&modes);
  if (writeback)
    note_changed_pieces (self);
  return ebb_shard_unit_reshard (self, ok ? error : NULL) && ok;
}

/* -- making -------------------------------------------------------------------------------------------------------- */

static gboolean
make_piece (EbbShardUnit *self,
            guint buffer,
            EbbDType dtype,
            GError **error)
{
  const guint rank = ebb_process_group_get_rank (self->group);
  gint64 n = ebb_shard_layout_get_counts (self->layout, buffer)[rank];
  EbbDevice *device = self->offload ? ebb_device_get_cpu () : self->device;
  EbbTensor *piece = ebb_tensor_new_uninitialized (&n, 1, dtype, device, error);

  self->buffers[buffer].piece = piece;
  if (piece == NULL)
    return FALSE;
  ebb_storage_set_purpose (piece->storage, EBB_PURPOSE_PARAMETER);
  return TRUE;
}

/* Copies what this rank keeps of a parameter, which stays as it is for now. */
static gboolean
make_shard (EbbShardUnit *self,
            guint i,
            GError **error)
{
  const guint rank = ebb_process_group_get_rank (self->group);
  EbbShardEntry *entry = &self->entries[i];
  gint64 shape[EBB_MAX_DIMS], offset, begin, end;
  guint buffer;

  ebb_shard_layout_locate (self->layout, i, &buffer, &offset);
  if (self->buffers[buffer].piece == NULL && !make_piece (self, buffer, entry->tensor->view.dtype, error))
    return FALSE;
  ebb_shard_layout_get_shape (self->layout, i, rank, shape);
  entry->shard = ebb_tensor_new_view (self->buffers[buffer].piece->storage,
                                      ebb_shard_layout_get_shard_offset (self->layout, i, rank), shape, NULL,
                                      ebb_shard_layout_get_shard_n_dims (self->layout, i), entry->tensor->view.dtype);
  ebb_shard_layout_get_range (self->layout, i, rank, &begin, &end);
  return ebb_shard_copy_elements (entry->tensor, begin, end - begin, entry->shard, 0, error);
}

static void
lay_out (EbbShardUnit *self,
         gboolean flatten)
{
  g_autofree const gint64 **shapes = g_new (const gint64 *, self->n_entries + 1);
  g_autofree guint *n_dims = g_new (guint, self->n_entries + 1);
  g_autofree gboolean *are_parts = g_new (gboolean, self->n_entries + 1);

  for (guint i = 0; i < self->n_entries; i++)
    {
      are_parts[i] = self->entries[i].tensor->partition != NULL;
      shapes[i] = self->entries[i].tensor->view.shape;
      n_dims[i] = (guint) self->entries[i].tensor->view.n_dims;
    }
  self->layout = ebb_shard_layout_new (ebb_process_group_get_size (self->group), flatten, self->n_entries, shapes,
                                       n_dims, are_parts);
  self->buffers = g_new0 (EbbShardBuffer, ebb_shard_layout_get_n_buffers (self->layout) + 1);
}

static void
take_options (EbbShardUnit *self,
              EbbFullyShardOptions *options)
{
  EbbDType dtype;
  EbbProcessGroup *replicas = ebb_fully_shard_options_get_replicate_group (options);

  self->reshard = ebb_fully_shard_options_get_reshard_after_forward (options);
  self->prefetch = ebb_fully_shard_options_get_prefetch (options);
  self->offload = ebb_fully_shard_options_get_offload (options);
  self->predivide = ebb_fully_shard_options_get_predivide_factor (options);
  self->lowers = ebb_fully_shard_options_get_compute_dtype (options, &self->compute_dtype);
  self->reduce_dtype = ebb_fully_shard_options_get_reduce_dtype (options, &dtype) ? (int) dtype : -1;
  if (replicas != NULL && ebb_process_group_get_size (replicas) > 1)
    self->replicas = g_object_ref (replicas);
}

static gboolean
take_parameters (EbbShardUnit *self,
                 EbbModule *module,
                 gboolean flatten,
                 GError **error)
{
  g_autoptr (GArray) found = ebb_shard_collect (module, self->borrowed, error);
  EbbShardFound *items;

  if (found == NULL)
    return FALSE;
  items = (EbbShardFound *) (gpointer) found->data;
  self->entries = g_new0 (EbbShardEntry, found->len + 1);
  self->n_entries = found->len;
  for (guint i = 0; i < found->len; i++)
    {
      self->entries[i].tensor = ebb_tensor_ref (items[i].tensor);
      self->entries[i].name = g_strdup (items[i].name);
    }
  self->device = found->len > 0 ? items[0].tensor->storage->device : ebb_device_get_cpu ();
  return ebb_shard_check_alike (found, flatten, self->name, error);
}

EbbShardUnit *
ebb_shard_unit_new (EbbModule *module,
                    EbbProcessGroup *group,
                    EbbFullyShardOptions *options,
                    GError **error)
{
  const gboolean flatten = ebb_fully_shard_options_get_flatten (options);
  EbbShardUnit *self = g_new0 (EbbShardUnit, 1);
  g_autofree char *path = ebb_module_get_path (module);
  const EbbThreadModes modes = ebb_shard_begin_quiet ();
  g_autoptr (GError) failure = NULL;
  gboolean ok;

  self->base.funcs = &owner_funcs;
  self->ref_count = 1;
  self->module = ebb_module_get_weak (module);
  self->name = *path != '\0' ? g_strdup_printf ("%s (%s)", path, G_OBJECT_TYPE_NAME (module))
                             : g_strdup (G_OBJECT_TYPE_NAME (module));
  self->group = g_object_ref (group);
  self->borrowed = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_shard_unit_unref);
  self->own_order = ebb_shard_order_new (self);
  take_options (self, options);
  ok = take_parameters (self, module, flatten, &failure);
  ok = ebb_shard_check_ranks (self, flatten, failure, error)
       && (!ebb_fully_shard_options_get_synchronize_weights (options)
           || ebb_shard_broadcast_state (self, module, error));
  if (ok)
    {
      lay_out (self, flatten);
      for (guint i = 0; ok && i < self->n_entries; i++)
        ok = make_shard (self, i, error);
    }
  ebb_thread_restore_modes (&modes);
  if (!ok)
    {
      g_prefix_error (error, "sharding %s: ", self->name);
      ebb_shard_unit_unref (self);
      return NULL;
    }
  for (guint i = 0; i < self->n_entries; i++)
    {
      ebb_tensor_swap_storage (self->entries[i].tensor, self->entries[i].shard);
      self->entries[i].tensor->owner = &self->base;
    }
  return self;
}

EbbShardUnit *
ebb_shard_unit_ref (EbbShardUnit *self)
{
  __atomic_add_fetch (&self->ref_count, 1, __ATOMIC_RELAXED);
  return self;
}

static void
entry_clear (EbbShardUnit *self,
             EbbShardEntry *entry)
{
  if (entry->tensor->owner == &self->base)
    entry->tensor->owner = NULL;
  g_clear_pointer (&entry->aside, ebb_tensor_unref);
  if (entry->shard != NULL)
    ebb_tensor_unref (entry->shard);
  ebb_tensor_unref (entry->tensor);
  g_free (entry->name);
}

/* Work that is under way is waited for: it writes to memory that goes here. Parameters that somebody else holds are
 * left as this rank's shards. */
void
ebb_shard_unit_free (EbbShardUnit *self)
{
  ebb_shard_unit_drop_reduction (self);
  if (self->layout != NULL)
    {
      ebb_shard_unit_reshard (self, NULL);
      for (guint i = 0; i < ebb_shard_layout_get_n_buffers (self->layout); i++)
        g_clear_pointer (&self->buffers[i].piece, ebb_tensor_unref);
    }
  ebb_shard_forget_unit (self);
  for (guint i = 0; i < self->n_entries; i++)
    entry_clear (self, &self->entries[i]);
  g_clear_pointer (&self->layout, ebb_shard_layout_unref);
  g_free (self->buffers);
  g_free (self->entries);
  g_ptr_array_unref (self->borrowed);
  ebb_module_weak_free (self->module);
  g_clear_object (&self->replicas);
  g_object_unref (self->group);
  g_free (self->name);
  g_free (self);
}

gboolean
ebb_shard_unit_check_idle (EbbShardUnit *self,
                           const char *call,
                           GError **error)
{
  const char *why = NULL;

  if (self->n_open > 0)
    why = "its forward runs: wait for its end";
  else if (self->n_summoned > 0)
    why = "it is whole: call ebb_release_full_params () first";
  else if (ebb_shard_unit_is_used (self))
    why = "a graph holds its parameters: run its backward or drop it first";
  if (why != NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "%s of %s: %s", call, self->name, why);
  return why == NULL;
}

void
ebb_shard_unit_unref (EbbShardUnit *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) == 0 && !ebb_shard_leave_to_owner (self))
    ebb_shard_unit_free (self);
}

/* What still holds the unit finds it empty. */
gboolean
ebb_shard_unit_dissolve (EbbShardUnit *self,
                         GError **error)
{
  if (!ebb_shard_unit_summon (self, error))
    return FALSE;
  self->n_summoned = 0;
  drop_whole (self);
  if (self->state != EBB_SHARD_AWAY)
    ebb_shard_note_here (self, FALSE);
  self->state = EBB_SHARD_AWAY;
  for (guint i = 0; i < self->n_entries; i++)
    entry_clear (self, &self->entries[i]); /* with the shard's gradient, which fits the whole no more */
  self->n_entries = 0;
  return TRUE;
}
