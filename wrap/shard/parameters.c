/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Makes the unit of a module: finds its parameters, checks them on all ranks, and keeps this rank's shards. */
#include "wrap/shard/unit-private.h"

#include "dist/agree-private.h"
#include "nn/module-instance-private.h"

/* -- parameters ---------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbShardUnit *unit;
  GArray *entries;  /* of EbbShardEntry */
  GHashTable *seen; /* modules and parameters */
} Search;

static gboolean
take_parameter (Search *search,
                EbbTensor *tensor,
                const char *path,
                const char *name,
                GError **error)
{
  EbbShardUnit *owner = ebb_shard_unit_of (tensor, NULL);
  GPtrArray *borrowed = search->unit->borrowed;
  g_autofree char *full_name = ebb_module_join_path (path, name);
  EbbShardEntry entry;

  if (!g_hash_table_add (search->seen, tensor))
    return TRUE;
  if (owner != NULL)
    {
      if (!g_ptr_array_find (borrowed, owner, NULL))
        g_ptr_array_add (borrowed, ebb_shard_unit_ref (owner));
      return TRUE;
    }
  if (tensor->owner != NULL)
    return ebb_fail (error, EBB_ERROR_STATE,
                     "%s is replicated already: a module is sharded or replicated, not both; hybrid sharding takes the "
                     "option replicate-group",
                     full_name);
  entry = (EbbShardEntry){ .tensor = ebb_tensor_ref (tensor), .name = g_steal_pointer (&full_name) };
  g_array_append_val (search->entries, entry);
  return TRUE;
}

/* An inner unit owns everything below its module. */
static gboolean
search_module (Search *search,
               EbbModule *module,
               const char *path,
               GError **error)
{
  EbbModulePrivate *priv = ebb_module_get_private (module);

  if (!g_hash_table_add (search->seen, module) || (*path != '\0' && ebb_shard_unit_on (module) != NULL))
    return TRUE;
  for (guint i = 0; i < priv->parameters.n_items; i++)
    if (priv->parameters.items[i].tensor != NULL
        && !take_parameter (search, priv->parameters.items[i].tensor, path, priv->parameters.items[i].name, error))
      return FALSE;
  for (guint i = 0; i < priv->n_children; i++)
    if (priv->children[i].module != NULL)
      {
        g_autofree char *below = ebb_module_join_path (path, priv->children[i].name);

        if (!search_module (search, priv->children[i].module, below, error))
          return FALSE;
      }
  return TRUE;
}

static gboolean
check_parameter (const EbbShardEntry *entry,
                 const EbbShardEntry *first,
                 GError **error)
{
  EbbTensor *tensor = entry->tensor, *other = first->tensor;

  if (!ebb_dtype_is_floating_point (tensor->view.dtype))
    return ebb_fail (error, EBB_ERROR_DTYPE, "%s is %s: only floating-point parameters can be sharded", entry->name,
                     ebb_dtype_get_name (tensor->view.dtype));
  if (!ebb_view_is_contiguous (&tensor->view))
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "%s is not contiguous: make it so first", entry->name);
  if (tensor->grad != NULL)
    return ebb_fail (error, EBB_ERROR_STATE, "%s has a gradient: drop it first by ebb_module_zero_grad ()",
                     entry->name);
  if (__atomic_load_n (&tensor->n_uses, __ATOMIC_RELAXED) > 0)
    return ebb_fail (error, EBB_ERROR_STATE,
                     "%s belongs to a graph whose backward is still to come: shard before the forward", entry->name);
  if (tensor->storage->device != other->storage->device)
    return ebb_fail (error, EBB_ERROR_DEVICE, "%s is on %s and %s on %s: a unit is on one device", first->name,
                     ebb_device_get_name (other->storage->device), entry->name,
                     ebb_device_get_name (tensor->storage->device));
  return TRUE;
}

static gboolean
take_parameters (EbbShardUnit *self,
                 EbbModule *module,
                 GError **error)
{
  g_autoptr (GHashTable) seen = g_hash_table_new (NULL, NULL);
  GArray *entries = g_array_new (TRUE, TRUE, sizeof (EbbShardEntry));
  Search search = { self, entries, seen };
  const gboolean ok = search_module (&search, module, "", error);

  self->n_entries = entries->len;
  self->entries = (EbbShardEntry *) (gpointer) g_array_free (entries, FALSE);
  self->device = self->n_entries > 0 ? self->entries[0].tensor->storage->device : ebb_device_get_cpu ();
  for (guint i = 0; ok && i < self->n_entries; i++)
    if (!check_parameter (&self->entries[i], &self->entries[0], error))
      return FALSE;
  return ok;
}

/* -- the same on all ranks ----------------------------------------------------------------------------------------- */

static EbbAgreeTensors *
get_state (EbbShardUnit *self,
           EbbModule *module)
{
  EbbAgreeTensors *state = ebb_agree_tensors_new ();

  for (guint i = 0; i < self->n_entries; i++)
    ebb_agree_tensors_add_parameter (state, self->entries[i].name, self->entries[i].tensor);
  ebb_agree_tensors_add_buffers (state, module);
  return state;
}

/* Fails if the ranks don't shard the same, or if one of them can't, because of @failure, which is then the error
 * here. */
static gboolean
check_ranks (EbbShardUnit *self,
             EbbAgreeTensors *state,
             gboolean flatten,
             const GError *failure,
             GError **error)
{
  g_autoptr (GString) text = g_string_new (failure != NULL ? failure->message : NULL);
  g_autoptr (GError) first = NULL;

  if (failure == NULL)
    {
      g_string_append_printf (text, "%s: flatten %d, reshard %d, compute %d, reduce %d, predivide %g, prefetch %d\n",
                              self->name, flatten, self->reshard, self->lowers ? (int) self->compute_dtype : -1,
                              self->reduce_dtype, self->predivide, self->prefetch);
      ebb_agree_tensors_describe (state, text);
    }
  /* No rank may wait for one that has given up, so each rank reports its group's error to the replicas. */
  ebb_agree_same_text (self->group, "the module to shard", text->str, &first);
  if (failure != NULL)
    {
      g_clear_error (&first);
      first = g_error_copy (failure);
    }
  if (self->replicas != NULL)
    ebb_agree_same_text (self->replicas, "the module to shard", first != NULL ? first->message : text->str,
                         first == NULL ? &first : NULL);
  return first == NULL || ebb_fail_with (error, g_steal_pointer (&first));
}

static gboolean
synchronize (EbbShardUnit *self,
             EbbAgreeTensors *state,
             GError **error)
{
  g_autofree char *purpose = g_strdup_printf ("the first values of %s", self->name);

  /* The replicas come first, so that the first rank of each group of shards has the values to send. */
  return ebb_agree_tensors_broadcast (state, self->replicas, G_MAXUINT64, purpose, error)
         && ebb_agree_tensors_broadcast (state, self->group, G_MAXUINT64, purpose, error);
}

/* -- shards -------------------------------------------------------------------------------------------------------- */

static void
lay_out (EbbShardUnit *self,
         gboolean flatten)
{
  g_autofree const gint64 **shapes = g_new (const gint64 *, self->n_entries + 1);
  g_autofree guint *n_dims = g_new (guint, self->n_entries + 1);
  g_autofree guint *classes = g_new (guint, self->n_entries + 1);

  for (guint i = 0; i < self->n_entries; i++)
    {
      const EbbTensor *tensor = self->entries[i].tensor;

      classes[i] =
          (guint) tensor->view.dtype << 2 | (tensor->partition != NULL ? 2 : 0) | (tensor->requires_grad ? 0 : 1);
      shapes[i] = tensor->view.shape;
      n_dims[i] = (guint) tensor->view.n_dims;
    }
  self->layout = ebb_shard_layout_new (ebb_process_group_get_size (self->group), flatten, self->n_entries, shapes,
                                       n_dims, classes);
  self->buffers = g_new0 (EbbShardBuffer, self->layout->n_buffers + 1);
}

/* Copies this rank's elements of a parameter, which stays as it is for now. */
static gboolean
make_shard (EbbShardUnit *self,
            guint i,
            GError **error)
{
  const guint rank = ebb_process_group_get_rank (self->group), number = self->layout->parameters[i].buffer;
  EbbShardEntry *entry = &self->entries[i];
  EbbShardBuffer *buffer = &self->buffers[number];
  EbbDevice *device = self->offload ? ebb_device_get_cpu () : self->device;
  gint64 shape[EBB_MAX_DIMS], begin, end;
  guint n_dims;

  if (buffer->shard == NULL)
    {
      buffer->shard = ebb_tensor_new_uninitialized (ebb_shard_layout_get_counts (self->layout, number) + rank, 1,
                                                    entry->tensor->view.dtype, device, error);
      if (buffer->shard == NULL)
        return FALSE;
      ebb_storage_set_purpose (buffer->shard->storage, EBB_PURPOSE_PARAMETER);
    }
  n_dims = ebb_shard_layout_get_shape (self->layout, i, rank, shape);
  entry->shard = ebb_tensor_new_view (buffer->shard->storage, ebb_shard_layout_get_shard_offset (self->layout, i, rank),
                                      shape, NULL, n_dims, entry->tensor->view.dtype);
  ebb_shard_layout_get_range (self->layout, i, rank, &begin, &end);
  return ebb_shard_copy_elements (entry->tensor, begin, end - begin, entry->shard, 0, error);
}

/* -- making and dissolving ----------------------------------------------------------------------------------------- */

static void
take_options (EbbShardUnit *self,
              EbbFullyShardOptions *options)
{
  EbbDType dtype;
  g_autoptr (EbbProcessGroup) replicas = NULL;

  g_object_get (options, "reshard-after-forward", &self->reshard, "prefetch", &self->prefetch, "offload",
                &self->offload, "predivide-factor", &self->predivide, "replicate-group", &replicas, NULL);
  self->lowers = ebb_fully_shard_options_get_compute_dtype (options, &self->compute_dtype);
  self->reduce_dtype = ebb_fully_shard_options_get_reduce_dtype (options, &dtype) ? (int) dtype : -1;
  if (replicas != NULL && ebb_process_group_get_size (replicas) > 1)
    self->replicas = g_steal_pointer (&replicas);
}

static gboolean
shard_parameters (EbbShardUnit *self,
                  EbbModule *module,
                  EbbFullyShardOptions *options,
                  GError **error)
{
  gboolean flatten, synchronize_weights;
  g_autoptr (EbbAgreeTensors) state = NULL;
  g_autoptr (GError) failure = NULL;

  g_object_get (options, "flatten", &flatten, "synchronize-weights", &synchronize_weights, NULL);
  take_parameters (self, module, &failure);
  state = get_state (self, module);
  if (!check_ranks (self, state, flatten, failure, error)
      || (synchronize_weights && !synchronize (self, state, error)))
    return FALSE;
  lay_out (self, flatten);
  for (guint i = 0; i < self->n_entries; i++)
    if (!make_shard (self, i, error))
      return FALSE;
  return TRUE;
}

EbbShardUnit *
ebb_shard_unit_new (EbbModule *module,
                    EbbProcessGroup *group,
                    EbbFullyShardOptions *options,
                    GError **error)
{
  EbbShardUnit *self = g_new0 (EbbShardUnit, 1);
  g_autofree char *path = ebb_module_get_path (module);
  const EbbModes modes = ebb_modes_enter_internal ();
  gboolean ok;

  self->base.funcs = &ebb_shard_unit_funcs;
  self->ref_count = 1;
  self->module = ebb_module_weak_new (module);
  self->name = *path != '\0' ? g_strdup_printf ("%s (%s)", path, G_OBJECT_TYPE_NAME (module))
                             : g_strdup (G_OBJECT_TYPE_NAME (module));
  self->group = g_object_ref (group);
  self->borrowed = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_shard_unit_unref);
  self->own_order = ebb_shard_order_new (self);
  take_options (self, options);
  ok = shard_parameters (self, module, options, error);
  ebb_modes_leave (&modes);
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
ebb_shard_unit_new_bucket (const EbbParameterOwnerFuncs *funcs,
                           EbbProcessGroup *replicas,
                           GArray *entries,
                           char *name)
{
  EbbShardUnit *self = g_new0 (EbbShardUnit, 1);

  self->base.funcs = funcs;
  self->ref_count = 1;
  self->name = name;
  self->group = ebb_single_group_new ();
  self->replicas = g_object_ref (replicas);
  self->borrowed = g_ptr_array_new ();
  self->own_order = ebb_shard_order_new (self);
  self->reshard = EBB_RESHARD_ALWAYS;
  self->reduce_dtype = -1;
  self->is_in_place = TRUE;
  self->n_entries = entries->len;
  self->entries = (EbbShardEntry *) (gpointer) g_array_free (entries, FALSE);
  self->device = self->entries[0].tensor->storage->device;
  lay_out (self, FALSE);
  for (guint i = 0; i < self->n_entries; i++)
    {
      self->entries[i].shard = ebb_tensor_ref (self->entries[i].tensor);
      self->buffers[i].shard = ebb_tensor_ref (self->entries[i].tensor);
      self->entries[i].tensor->owner = &self->base;
    }
  return self;
}

/* Other references to the unit find it without entries. */
gboolean
ebb_shard_unit_dissolve (EbbShardUnit *self,
                         GError **error)
{
  if (!ebb_shard_unit_summon (self, error))
    return FALSE;
  self->n_summoned = 0;
  for (guint i = 0; i < self->layout->n_buffers; i++)
    g_clear_pointer (&self->buffers[i].full, ebb_tensor_unref);
  if (self->state != EBB_SHARD_SHARDED)
    ebb_shard_note_unsharded (self, FALSE);
  self->state = EBB_SHARD_SHARDED;
  for (guint i = 0; i < self->n_entries; i++)
    ebb_shard_entry_clear (self,
                           &self->entries[i]); /* with the shard's gradient, which doesn't fit the full parameter */
  self->n_entries = 0;
  return TRUE;
}
