/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/replicate.h"

#include "dist/agree-private.h"
#include "dist/init.h"
#include "nn/module-private.h"
#include "tensor/error-private.h"
#include "wrap/shard/unit-private.h"

/* Makes a module replicated: its parameters are in buckets, each of them a unit of a group of one, whose gradients are
 * averaged over the replicas. */

typedef struct
{
  char *name;
  EbbTensor *tensor;
  /* when the buckets were made */
  EbbDType dtype;
  EbbDevice *device;
  gboolean is_trainable;
} Parameter;

typedef struct
{
  EbbProcessGroup *group;
  GArray *parameters; /* of Parameter, in reverse order of registration, about that of backward */
  GPtrArray *buckets; /* of EbbShardUnit; the last one has the frozen parameters, if there are any */
  guint n_buckets;    /* with trainable parameters */
  guint64 bucket_bytes;
  EbbUnusedParameters unused_parameters;
  guint64 pass; /* The backward pass that last used the parameters. */
} Replica;

static const EbbParameterOwnerFuncs owner_funcs;
static void update_buckets (Replica *self);
static void replica_free (gpointer data);

/* -- making -------------------------------------------------------------------------------------------------------- */

static GQuark
replica_quark (void)
{
  return g_quark_from_static_string ("ebb-replica");
}

static Replica *
find_replica (EbbModule *module)
{
  return g_object_get_qdata (G_OBJECT (module), replica_quark ());
}

static Parameter *
get_parameter (Replica *self,
               guint i)
{
  return &g_array_index (self->parameters, Parameter, i);
}

static void
parameter_clear (gpointer data)
{
  Parameter *self = data;

  g_free (self->name);
  ebb_tensor_unref (self->tensor);
}

/* Lists the parameters in reverse order, each once, by its first name. */
static Replica *
replica_new (EbbModule *module,
             EbbProcessGroup *group,
             EbbReplicateOptions *options)
{
  Replica *self = g_new0 (Replica, 1);
  g_autoptr (GHashTable) seen = g_hash_table_new (NULL, NULL);
  g_auto (GStrv) names = ebb_module_get_parameter_names (module, TRUE);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (module, TRUE, &n);

  self->group = g_object_ref (group);
  g_object_get (options, "bucket-bytes", &self->bucket_bytes, "unused-parameters", &self->unused_parameters, NULL);
  self->buckets = g_ptr_array_new ();
  self->parameters = g_array_new (FALSE, FALSE, sizeof (Parameter));
  g_array_set_clear_func (self->parameters, parameter_clear);
  for (guint i = 0; i < n; i++)
    {
      const Parameter parameter = { .name = g_strdup (names[i]), .tensor = parameters[i] };

      if (g_hash_table_add (seen, parameters[i]))
        g_array_prepend_val (self->parameters, parameter);
      else
        parameter_clear ((gpointer) &parameter);
    }
  return self;
}

static gboolean
check_parameters (EbbModule *module,
                  Replica *self,
                  GError **error)
{
  if (self->parameters->len == 0)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: it has no parameters that ranks could share",
                     ebb_module_get_type_name (module));
  for (guint i = self->parameters->len; i > 0; i--)
    {
      const Parameter *parameter = get_parameter (self, i - 1);

      if (parameter->tensor->owner != NULL)
        return ebb_fail (error, EBB_ERROR_STATE, "%s: the parameter %s is replicated or sharded over ranks already",
                         ebb_module_get_type_name (module), parameter->name);
      if (!ebb_view_is_contiguous (&parameter->tensor->view))
        return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                         "%s: the parameter %s is not contiguous; ranks share contiguous parameters only",
                         ebb_module_get_type_name (module), parameter->name);
    }
  return TRUE;
}

/* Succeeds on all ranks or on none: a rank that can't be replicated tells the others its @failure. */
static gboolean
begin_with_the_same (EbbModule *module,
                     Replica *self,
                     gboolean broadcasts,
                     const GError *failure,
                     GError **error)
{
  g_autoptr (EbbAgreeTensors) state = ebb_agree_tensors_new ();
  g_autoptr (GString) text = g_string_new (failure != NULL ? failure->message : NULL);
  gboolean ok;

  for (guint i = self->parameters->len; i > 0; i--)
    ebb_agree_tensors_add_parameter (state, get_parameter (self, i - 1)->name, get_parameter (self, i - 1)->tensor);
  ebb_agree_tensors_add_buffers (state, module);
  if (failure == NULL)
    {
      ebb_agree_tensors_describe (state, text);
      g_string_append_printf (text, "bucket-bytes: %" G_GUINT64_FORMAT "\n", self->bucket_bytes);
      g_string_append_printf (text, "unused-parameters: %s\n",
                              self->unused_parameters == EBB_UNUSED_PARAMETERS_ZERO ? "zero" : "error");
      g_string_append_printf (text, "broadcast: %d\n", broadcasts);
    }
  ok = ebb_agree_same_text (self->group, "the module", text->str, failure == NULL ? error : NULL);
  if (failure != NULL)
    g_propagate_error (error, g_error_copy (failure));
  return failure == NULL && ok
         && (!broadcasts
             || ebb_agree_tensors_broadcast (state, self->group, self->bucket_bytes,
                                             "the first values of the replicated module", error));
}

/**
 * ebb_replicate:
 * @module: a module, the same on all ranks except for its values
 * @group: (nullable): the ranks that train it together; %NULL for ebb_process_group_get_default()
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Trains a module on several ranks, each with its own data: every rank holds all parameters, begins with those of rank
 * 0 (buffers too), and has the mean of all ranks' gradients after each backward pass. If each rank's loss is the mean
 * over the same number of examples, that is the gradient of the mean over all of them. The module's type, properties,
 * parameter names and state dict don't change; optimizers update the parameters of all ranks alike without knowing of
 * each other. All ranks call this together, and then run the same passes and steps.
 *
 * Gradients are reduced in buckets (#EbbReplicateOptions:bucket-bytes), each as soon as the pass has all of its
 * gradients, while the pass continues (Li et al., "PyTorch Distributed: experiences on accelerating data parallel
 * training", 2020). While another graph uses the parameters, because several forwards came before the first backward or
 * the pass retains its graph, the reduction waits for the last pass. ebb_optimizer_step() reduces the gradients that
 * are still local then, and those that passes without sync (see ebb_push_gradient_sync()) have accumulated. Until they
 * are reduced, these gradients are stashed: a parameter shows only what is the same on all ranks.
 *
 * A trainable parameter that gets no gradient is an error of the backward pass, which names all of them; or see
 * #EbbReplicateOptions:unused-parameters. Frozen parameters are left out, and so are parameters that are registered
 * later. Checkpoints may be on the module or inside, wrapped before or after: nothing is reduced in a recompute.
 *
 * The module is not kept alive; when it is freed, its parameters have no owner any more.
 *
 * Returns: (transfer full) (nullable): @module; %NULL with %EBB_ERROR_PROCESS_GROUP if the ranks' modules or options
 *   differ or one rank can't do this, which is found before anything is sent; with %EBB_ERROR_STATE if a parameter is
 *   replicated or sharded already, %EBB_ERROR_NOT_SUPPORTED if a parameter, or a buffer to be broadcast, is not
 *   contiguous
 */
EbbModule *
ebb_replicate (EbbModule *module,
               EbbProcessGroup *group,
               EbbReplicateOptions *options,
               GError **error)
{
  g_autoptr (EbbReplicateOptions) used = NULL;
  g_autoptr (GError) failure = NULL;
  gboolean broadcast;
  Replica *self;

  g_return_val_if_fail (module == NULL || EBB_IS_MODULE (module), NULL);
  g_return_val_if_fail (group == NULL || EBB_IS_PROCESS_GROUP (group), NULL);
  g_return_val_if_fail (options == NULL || EBB_IS_REPLICATE_OPTIONS (options), NULL);

  if (!EBB_MAY_BEGIN (error, module))
    return NULL;
  used = options != NULL ? g_object_ref (options) : ebb_replicate_options_new ();
  g_object_get (used, "broadcast", &broadcast, NULL);
  self = replica_new (module, group != NULL ? group : ebb_process_group_get_default (), used);
  check_parameters (module, self, &failure);
  if (!begin_with_the_same (module, self, broadcast, failure, error))
    {
      replica_free (self);
      return NULL;
    }
  update_buckets (self);
  g_object_set_qdata_full (G_OBJECT (module), replica_quark (), self, replica_free);
  return g_object_ref (module);
}

/* -- asking -------------------------------------------------------------------------------------------------------- */

/**
 * ebb_replicate_unwrap:
 * @module: a module
 *
 * Undoes ebb_replicate(): gradients stay as they are, and are this rank's alone from now on.
 *
 * Returns: %FALSE if @module itself is not replicated
 */
gboolean
ebb_replicate_unwrap (EbbModule *module)
{
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  if (find_replica (module) == NULL)
    return FALSE;
  g_object_set_qdata (G_OBJECT (module), replica_quark (), NULL);
  return TRUE;
}

/**
 * ebb_replicate_is_wrapped:
 * @module: a module
 *
 * Returns: %TRUE if ebb_replicate() was called for @module itself
 */
gboolean
ebb_replicate_is_wrapped (EbbModule *module)
{
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  return find_replica (module) != NULL;
}

/**
 * ebb_replicate_get_n_buckets:
 * @module: a module
 *
 * Returns: how many reductions one backward pass takes; 0 if @module is not replicated or all of it is frozen
 */
guint
ebb_replicate_get_n_buckets (EbbModule *module)
{
  Replica *self;

  g_return_val_if_fail (EBB_IS_MODULE (module), 0);

  self = find_replica (module);
  if (self == NULL)
    return 0;
  update_buckets (self);
  return self->n_buckets;
}

/**
 * ebb_replicate_report:
 * @module: a module
 *
 * Reports in a few lines what is reduced, how often it was, and how long this rank has waited for it. The group knows
 * how much was sent: see ebb_process_group_get_n_bytes().
 *
 * Returns: (transfer full): the text; "" if @module is not replicated
 */
char *
ebb_replicate_report (EbbModule *module)
{
  g_autofree char *in_bucket = NULL;
  g_autofree char *in_pass = NULL;
  g_autofree char *in_all = NULL;
  guint64 n_bytes = 0, n_passes = 0, n_reductions = 0, n_reduced = 0;
  guint n_trainable = 0;
  double seconds = 0;
  Replica *self;

  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  self = find_replica (module);
  if (self == NULL)
    return g_strdup ("");
  update_buckets (self);
  for (guint i = 0; i < self->parameters->len; i++)
    if (get_parameter (self, i)->is_trainable)
      {
        n_trainable++;
        n_bytes += ebb_tensor_get_n_bytes (get_parameter (self, i)->tensor);
      }
  for (guint i = 0; i < self->buckets->len; i++)
    {
      const EbbShardUnit *unit = g_ptr_array_index (self->buckets, i);

      n_passes = MAX (n_passes, unit->n_reductions);
      n_reductions += unit->n_reductions;
      n_reduced += unit->reduced_bytes;
      seconds += unit->seconds;
    }
  in_bucket = g_format_size_full (self->bucket_bytes, G_FORMAT_SIZE_IEC_UNITS);
  in_pass = g_format_size_full (n_bytes, G_FORMAT_SIZE_IEC_UNITS);
  in_all = g_format_size_full (n_reduced, G_FORMAT_SIZE_IEC_UNITS);
  return g_strdup_printf ("%s on %u ranks (%s), this is rank %u\n"
                          "%u of %u parameters are trained: %s of gradients in %u buckets of at most %s\n"
                          "reduced %" G_GUINT64_FORMAT " times, %" G_GUINT64_FORMAT
                          " buckets with %s in all; waited %.3f s for them\n",
                          ebb_module_get_type_name (module), ebb_process_group_get_size (self->group),
                          ebb_process_group_get_backend (self->group), ebb_process_group_get_rank (self->group),
                          n_trainable, self->parameters->len, in_pass, self->n_buckets, in_bucket, n_passes,
                          n_reductions, in_all, seconds);
}

/* -- buckets ------------------------------------------------------------------------------------------------------- */

/* Fails if a parameter has no gradient and no graph is left that could give it one. */
static gboolean
check_unused (gpointer data,
              GError **error)
{
  Replica *self = data;
  g_autoptr (GString) names = g_string_new (NULL);
  guint n = 0, n_trainable = 0;

  for (guint b = self->n_buckets; b-- > 0;)
    {
      EbbShardUnit *unit = g_ptr_array_index (self->buckets, b);

      n_trainable += unit->n_entries;
      for (guint i = unit->n_entries; i-- > 0 && (unit->last_pass != self->pass || unit->reduction != NULL);)
        {
          const EbbShardEntry *entry = &unit->entries[i];

          if (entry->tensor->grad == NULL && entry->stashed_grad == NULL
              && __atomic_load_n (&entry->tensor->n_uses, __ATOMIC_RELAXED) == 0)
            g_string_append_printf (names, "%s%s", n++ > 0 ? ", " : "", entry->name);
        }
    }
  return n == 0
         || ebb_fail (error, EBB_ERROR_STATE,
                      "rank %u: %u of %u trainable parameters of the replicated module got no gradient in the backward "
                      "pass: %s; freeze them, or set EbbReplicateOptions:unused-parameters to zero if some ranks may "
                      "leave them out",
                      ebb_process_group_get_rank (self->group), n, n_trainable, names->str);
}

/* The buckets are up to date, or in use. */
static gboolean
stay (Replica *self)
{
  gboolean same = self->buckets->len > 0;

  for (guint i = 0; i < self->buckets->len; i++)
    {
      const EbbShardUnit *unit = g_ptr_array_index (self->buckets, i);

      if (unit->state != EBB_SHARD_SHARDED || unit->reduction != NULL)
        return TRUE;
    }
  for (guint i = 0; i < self->parameters->len; i++)
    {
      const Parameter *it = get_parameter (self, i);

      same = same && it->is_trainable == it->tensor->requires_grad && it->dtype == it->tensor->view.dtype
             && it->device == it->tensor->storage->device;
    }
  return same;
}

/* Frees the buckets; gradients stay as they are. @stashed: gets those that no pass has reduced; NULL: they are this
 * rank's alone from now on. */
static void
drop_buckets (Replica *self,
              GHashTable *stashed)
{
  for (guint b = 0; b < self->buckets->len; b++)
    {
      EbbShardUnit *unit = g_ptr_array_index (self->buckets, b);

      ebb_shard_unit_finish_reduce (unit, NULL);
      ebb_shard_unit_reshard (unit, NULL);
      for (guint i = 0; i < unit->n_entries; i++)
        {
          EbbShardEntry *entry = &unit->entries[i];

          if (entry->tensor->owner == &unit->base)
            entry->tensor->owner = NULL;
          if (stashed != NULL && entry->stashed_grad != NULL)
            g_hash_table_insert (stashed, entry->tensor, g_steal_pointer (&entry->stashed_grad));
          else if (entry->tensor->grad == NULL)
            entry->tensor->grad = g_steal_pointer (&entry->stashed_grad);
        }
      unit->check_unused = NULL;
      ebb_shard_unit_unref (unit);
    }
  g_ptr_array_set_size (self->buckets, 0);
  self->n_buckets = 0;
}

/* A bucket being filled; only the last of its dtype and device has room. */
typedef struct
{
  const Parameter *first;
  guint64 n_bytes;
  GArray *entries; /* of EbbShardEntry */
} Bucket;

static Bucket *
find_room (Replica *self,
           GArray *buckets,
           const Parameter *parameter)
{
  const guint64 n_bytes = ebb_tensor_get_n_bytes (parameter->tensor);

  for (guint i = buckets->len; i-- > 0;)
    {
      Bucket *bucket = &g_array_index (buckets, Bucket, i);

      if (bucket->first->dtype != parameter->dtype || bucket->first->device != parameter->device
          || bucket->first->is_trainable != parameter->is_trainable)
        continue;
      if (!parameter->is_trainable
          || (n_bytes <= self->bucket_bytes && bucket->n_bytes <= self->bucket_bytes - n_bytes))
        return bucket;
      break;
    }
  g_array_set_size (buckets, buckets->len + 1);
  g_array_index (buckets, Bucket, buckets->len - 1) =
      (Bucket){ .first = parameter, .entries = g_array_new (FALSE, TRUE, sizeof (EbbShardEntry)) };
  return &g_array_index (buckets, Bucket, buckets->len - 1);
}

static void
fill_buckets (Replica *self,
              GArray *buckets,
              gboolean is_trainable,
              GHashTable *stashed)
{
  for (guint i = 0; i < self->parameters->len; i++)
    {
      Parameter *it = get_parameter (self, i);
      const EbbShardEntry entry = { .tensor = it->tensor,
                                    .name = it->name,
                                    .stashed_grad = g_hash_table_lookup (stashed, it->tensor) };
      Bucket *bucket;

      if (it->is_trainable != is_trainable)
        continue;
      bucket = find_room (self, buckets, it);
      bucket->n_bytes += ebb_tensor_get_n_bytes (it->tensor);
      g_array_append_val (bucket->entries, entry);
      g_array_index (bucket->entries, EbbShardEntry, bucket->entries->len - 1).name = g_strdup (it->name);
      ebb_tensor_ref (it->tensor);
    }
}

/* Makes new buckets if parameters were frozen, unfrozen or converted since. */
static void
update_buckets (Replica *self)
{
  g_autoptr (GArray) buckets = g_array_new (FALSE, FALSE, sizeof (Bucket));
  g_autoptr (GHashTable) stashed = g_hash_table_new (NULL, NULL);

  if (stay (self))
    return;
  drop_buckets (self, stashed);
  for (guint i = 0; i < self->parameters->len; i++)
    {
      Parameter *it = get_parameter (self, i);

      it->is_trainable = it->tensor->requires_grad;
      it->dtype = it->tensor->view.dtype;
      it->device = it->tensor->storage->device;
    }
  fill_buckets (self, buckets, TRUE, stashed);
  self->n_buckets = buckets->len;
  fill_buckets (self, buckets, FALSE, stashed);
  for (guint i = 0; i < buckets->len; i++)
    {
      EbbShardUnit *unit =
          ebb_shard_unit_new_bucket (&owner_funcs, self->group, g_array_index (buckets, Bucket, i).entries,
                                     g_strdup_printf ("bucket %u of %u", i + 1, self->n_buckets));

      if (self->unused_parameters == EBB_UNUSED_PARAMETERS_ERROR)
        unit->check_unused = check_unused;
      unit->check_data = self;
      g_ptr_array_add (self->buckets, unit);
    }
}

/* -- the owner of the parameters ----------------------------------------------------------------------------------- */

/* Outside of backward the parameters are as they are. */
static gboolean
prepare (EbbParameterOwner *owner,
         EbbTensor *parameter,
         GError **error)
{
  Replica *self = ((EbbShardUnit *) owner)->check_data;

  if (ebb_modes.in_backward == 0)
    return TRUE;
  if (ebb_shard_begins_pass (&self->pass))
    {
      update_buckets (self);
      ebb_shard_reduce_in_pass (self->buckets);
    }
  return ebb_shard_unit_pre_backward ((EbbShardUnit *) parameter->owner, error);
}

static gboolean
unused (EbbParameterOwner *owner,
        EbbTensor *parameter,
        GError **error)
{
  EbbShardUnit *unit = (EbbShardUnit *) owner;

  return ebb_shard_unit_is_used (unit) || ebb_shard_unit_post_backward (unit, error);
}

static gboolean
is_pending (EbbShardUnit *unit)
{
  return unit->state != EBB_SHARD_SHARDED || unit->reduction != NULL || ebb_shard_unit_has_gradients (unit);
}

/* All ranks reduce all buckets if they may leave out parameters: one may have gradients in other buckets than another.
 */
static gboolean
finalize (EbbParameterOwner *owner,
          EbbTensor *parameter,
          GError **error)
{
  Replica *self = ((EbbShardUnit *) owner)->check_data;
  gboolean ok = TRUE;

  if (!is_pending ((EbbShardUnit *) owner))
    return TRUE;
  for (guint i = 0; ok && i < self->n_buckets; i++)
    {
      EbbShardUnit *unit = g_ptr_array_index (self->buckets, i);

      ok = ebb_shard_unit_finish_reduce (unit, error)
           && (!(self->unused_parameters == EBB_UNUSED_PARAMETERS_ZERO || ebb_shard_unit_has_gradients (unit))
               || (ebb_shard_unit_begin_reduce (unit, error) && ebb_shard_unit_finish_reduce (unit, error)))
           && ebb_shard_unit_reshard (unit, error);
    }
  return ok;
}

static void
drop_grads (EbbParameterOwner *owner,
            EbbTensor *parameter)
{
  EbbShardUnit *unit = (EbbShardUnit *) owner;

  for (guint i = 0; i < unit->n_entries; i++)
    if (unit->entries[i].tensor == parameter)
      g_clear_pointer (&unit->entries[i].stashed_grad, ebb_tensor_unref);
}

static const EbbParameterOwnerFuncs owner_funcs = {
  .prepare = prepare,
  .unused = unused,
  .finalize = finalize,
  .drop_grads = drop_grads,
};

/* The module is freed or unwrapped; its parameters may live on. */
static void
replica_free (gpointer data)
{
  Replica *self = data;

  drop_buckets (self, NULL);
  g_ptr_array_unref (self->buckets);
  g_array_unref (self->parameters);
  g_object_unref (self->group);
  g_free (self);
}
